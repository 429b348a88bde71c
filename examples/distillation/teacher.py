"""A teacher's rankings as TREC runs, from a table of scores or by ranking with a model; rows as TREC collections."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from accelerate import PartialState
from datasets import Dataset
from mapper import read_list
from reporting import write_text
from sentence_transformers import CrossEncoder
from sentence_transformers.util import load_file_path
from sources import load_model

from st_listwise import SetRankCrossEncoder
from st_listwise.data import write_run
from st_listwise.evaluation import predict_lists

logger = logging.getLogger("train_listwise.distillation")
#: A score a document, in the order in which they are to be written.
Run = dict[str, dict[str, float]]


class Collection(NamedTuple):
    """Rows of questions and passages as a TREC collection."""

    queries: dict[str, str]
    corpus: dict[str, str]
    grades: Run  #: selected or not, for passages in the order of the rows


def read_rows(path: Path) -> Collection:
    """JSON lines with ``query_id``, ``query``, ``passage_ids`` and ``passages``, as WikiQA in MS MARCO's form.

    Rows of one query are put together, and a passage that is given twice counts by its better label. Queries and
    passages without text are left to the readers of TREC collections, which count and name them.

    Raises:
        ValueError: names the file and the line.
    """
    found = Collection({}, {}, {})
    for place, line in _lines(path):
        try:
            _add_row(found, json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"{place}: not valid JSON ({error.msg}).") from error
        except ValueError as error:
            raise ValueError(f"{place}: {error}.") from error
    if not found.queries:
        raise ValueError(f"{path} holds no rows.")
    return found


def _add_row(found: Collection, row: Any) -> None:
    """Put a row into a collection; ValueError says what is wrong with it."""
    if not isinstance(row, dict):
        raise ValueError(f"expected an object, got {type(row).__name__}")
    texts, labels = read_list(row)
    if missing := [key for key in ("query_id", "passage_ids") if row.get(key) is None]:
        raise ValueError(f"there is no {missing[0]!r}, which tells what the teacher's scores belong to")
    ids, query = row["passage_ids"], _identifier(row["query_id"])
    if not isinstance(ids, list):
        raise ValueError("passage_ids must be a list")
    if len(ids) != len(texts):
        raise ValueError(f"{len(ids)} passage_ids for {len(texts)} passages")
    _put(found.queries, query, _text(row["query"]), f"query {query!r}")
    grades = found.grades.setdefault(query, {})
    for doc, text, label in zip(map(_identifier, ids), texts, labels):
        _put(found.corpus, doc, _text(text), f"passage {doc!r}")
        grades[doc] = max(label or 0.0, grades.get(doc, label or 0.0))


def _identifier(value: Any) -> str:
    if str(value).split() != [str(value)]:
        raise ValueError(f"the identifier {value!r} is empty or has spaces, which part the columns of runs: rename it")
    return str(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _put(known: dict[str, Any], key: str, value: Any, what: str) -> None:
    """Of two values for one key one would be lost: they must be the same."""
    if known.setdefault(key, value) != value:
        raise ValueError(f"{what} was there before as {str(known[key])[:60]!r}, and is {str(value)[:60]!r} here")


def is_table(path: Path) -> bool:
    """Whether a file is a table of scores: its first line is a header between tabs, which no run has."""
    _, first = next(_lines(path), ("", ""))
    return "\t" in first and not any(_number(field) is not None for field in first.split("\t")[2:])


def read_table(path: Path, column: str | None) -> Run:
    """A teacher's scores from lines between tabs: query, document, scores, under a header that names the columns.

    Args:
        path: The file.
        column: Name of the column with the scores. None: the third.

    Raises:
        ValueError: names the file and the line.
    """
    lines = _lines(path)
    place, header = next(lines)
    names = header.split("\t")
    if len(names) < 3:
        raise ValueError(f"{place}: expected query, document and scores, got {len(names)} columns: {header[:60]!r}.")
    if column not in (None, *names[2:]):
        raise ValueError(f"{path} has no column {column!r} of scores, only {', '.join(names[2:])}.")
    wanted = names.index(column) if column else 2
    scores: Run = {}
    for place, line in lines:
        fields = line.split("\t")
        score = _number(fields[wanted]) if len(fields) == len(names) else None
        if score is None:
            raise ValueError(f"{place}: expected {len(names)} columns and a number as {names[wanted]}: {line[:60]!r}.")
        try:
            query, doc = map(_identifier, fields[:2])
            _put(scores.setdefault(query, {}), doc, score, f"the score of query {query!r}, document {doc!r}")
        except ValueError as error:
            raise ValueError(f"{place}: {error}.") from error
    return scores


def run_text(scores: Run) -> str:
    """As a TREC run.

    >>> run_text({"q1": {"d1": 0.25, "d2": 0.5}})
    'q1 Q0 d2 1 0.5 teacher\\nq1 Q0 d1 2 0.25 teacher\\n'
    """
    lines = []
    for query, own in scores.items():
        for rank, (doc, score) in enumerate(sorted(own.items(), key=lambda item: -item[1]), 1):
            lines.append(f"{query} Q0 {doc} {rank} {score!r} teacher\n")
    return "".join(lines)


def qrels_text(grades: Run) -> str:
    """As TREC qrels.

    >>> qrels_text({"q1": {"d1": 0.0, "d2": 1.0}})
    'q1 0 d1 0\\nq1 0 d2 1\\n'
    """
    return "".join(f"{query} 0 {doc} {grade:g}\n" for query, own in grades.items() for doc, grade in own.items())


def candidates_text(grades: Run) -> str:
    """The passages of each row as a run to be ranked, in their order, which says nothing."""
    return run_text({query: {doc: float(-place) for place, doc in enumerate(own)} for query, own in grades.items()})


def rank_by_model(name: str, candidates: Dataset, path: Path) -> None:
    """Rank lists with a pointwise or a set model, and write them as a run; of several processes the main one does it.

    Args:
        name: Local folder, or a model on the Hub.
        candidates: Lists with ``query``, ``docs``, ``query_id`` and ``doc_ids``.
        path: The run.
    """
    if not PartialState().is_main_process:
        return  # it comes first, and has written the run
    teacher = load_teacher(name)
    logger.info(f"{name} ranks {len(candidates)} lists.")
    scores = predict_lists(teacher, candidates["query"], candidates["docs"], show_progress_bar=True)
    tag = "-".join(Path(name).name.split()) or "teacher"  # a folder's name may have spaces, a column of a run none
    write_run(path, candidates, [own.tolist() for own in scores], tag=tag)


def load_teacher(name: str) -> CrossEncoder:
    """A pointwise or a set model, as it was saved.

    Raises:
        ValueError: there is no such model.
    """
    modules = load_file_path(name, "modules.json")
    is_set = modules is not None and "st_listwise.modules." in Path(modules).read_text(encoding="utf-8")
    try:
        return load_model(name, None, SetRankCrossEncoder if is_set else CrossEncoder)
    except ValueError as error:
        raise ValueError(str(error).replace("--model", "--teacher_model", 1)) from error


def save(path: Path, text: str) -> str:
    """Write a file that is whole whenever it is there, unless it is there already; returns its name."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    return str(path)


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Lines that are not blank, each with its place."""
    if not path.is_file():
        raise ValueError(f"{path} is not a file.")
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield f"{path}, line {number}", line.rstrip("\r\n")


def _number(field: str) -> float | None:
    try:
        value = float(field)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None
