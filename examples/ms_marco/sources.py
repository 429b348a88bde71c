"""Where data and models come from: the Hub, a local file, or the embedded demo. Faults name the file and the line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, load_dataset
from demo import demo_model_path, demo_rows
from mapper import describe, map_dataset, read_list
from sentence_transformers import CrossEncoder

SUFFIXES = (".json", ".jsonl", ".parquet")


def load_rows(name: str, config: str | None = None, split: str = "train") -> Dataset:
    """Rows in a form that the mapper takes.

    Args:
        name: "demo", the path of a JSON, JSON-lines or Parquet file, or the name of a data set on the Hub.
        config: Configuration of a data set on the Hub, for example "v1.1".
        split: Split of a data set on the Hub.

    Raises:
        ValueError: names the file and the line (or row) of a fault, or says why the data set was not found.
    """
    if name == "demo":
        return Dataset.from_list(demo_rows())
    path = Path(name)
    if path.suffix.lower() in SUFFIXES or path.exists():
        return _load_file(path)
    try:
        return load_dataset(name, config, split=split)
    except Exception as error:
        raise ValueError(
            f"--dataset {name!r} is no file here and could not be loaded from the Hub ({type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else 'no message'}). Give a .json, .jsonl or .parquet file, "
            "or 'demo'."
        ) from error


def load_lists(name: str, config: str | None = None, keep_order: bool = False) -> tuple[Dataset, dict[str, int]]:
    """The lists of :func:`load_rows`, and counts of what was left out of them.

    Args:
        name: As there.
        config: As there.
        keep_order: As the mapper has it.

    Raises:
        ValueError: as there, or no list is left.
    """
    lists, counts = map_dataset(load_rows(name, config), keep_order=keep_order)
    if not len(lists):
        raise ValueError(f"{name} leaves no list that teaches or measures anything: {describe(counts)}")
    return lists, counts


def pointwise(source: str, **options: Any) -> CrossEncoder:
    """A cross-encoder with one output whose ``predict`` gives raw scores, which a sigmoid would saturate."""
    return CrossEncoder(source, num_labels=1, activation_fn=torch.nn.Identity(), **options)


def load_model(
    name: str, max_length: int | None = None, build: Callable[..., CrossEncoder] = pointwise
) -> CrossEncoder:
    """A model from where the user says.

    Args:
        name: "demo", a local folder, or a model on the Hub.
        max_length: Longest pair in tokens. None: the model's own.
        build: From a folder or name, and the options of ``CrossEncoder``, to the model.

    Raises:
        ValueError: there is no such model.
    """
    source = demo_model_path() if name == "demo" else name
    options: dict[str, Any] = {} if max_length is None else {"max_length": max_length}
    try:
        return build(source, local_files_only=name == "demo", **options)
    except OSError as error:
        raise ValueError(
            f"--model {name!r} is no folder here and could not be loaded from the Hub: {str(error).splitlines()[0]} "
            "Give a folder, a name on the Hub, or 'demo'."
        ) from error


def _load_file(path: Path) -> Dataset:
    if not path.is_file():
        what = "a folder" if path.is_dir() else "not there"
        raise ValueError(f"{path} is {what}; give one file that ends in {', '.join(SUFFIXES)}.")
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path}: the ending {path.suffix!r} is not known; expected {', '.join(SUFFIXES)}.")
    rows = [_plain(row, f"{path}, {place}") for place, row in _read(path)]
    if not rows:
        raise ValueError(f"{path} holds no rows.")
    return Dataset.from_list(rows)


def _read(path: Path) -> Iterator[tuple[str, Any]]:
    """Every row with its place in the file. A .json file may hold one array, or JSON lines."""
    if path.suffix.lower() == ".parquet":
        for number, row in enumerate(Dataset.from_parquet(str(path))):
            yield f"row {number}", row
        return
    with path.open(encoding="utf-8") as file:
        try:
            if path.suffix.lower() == ".json" and file.read(1) == "[":
                file.seek(0)
                yield from ((f"row {number}", row) for number, row in enumerate(json.load(file)))
                return
            file.seek(0)
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"line {number}", _parse(line, f"{path}, line {number}")
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {error.lineno}: not valid JSON ({error.msg}).") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text: {error}.") from error


def _parse(line: str, place: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{place}: not valid JSON ({error.msg}, column {error.colno}).") from error


def _plain(row: Any, place: str) -> dict[str, Any]:
    """The columns that count, in one form for all rows."""
    if not isinstance(row, dict):
        raise ValueError(f"{place}: expected an object with query and passages, got {type(row).__name__}.")
    try:
        texts, labels = read_list(row)
    except ValueError as error:
        raise ValueError(f"{place}: {error}.") from error
    if "docs" in row and "labels" in row:
        return {"query": row["query"], "docs": texts, "labels": labels}
    return {"query": row["query"], "passages": {"passage_text": texts, "is_selected": labels}}
