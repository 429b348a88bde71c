"""A conversion on disk that is there whole or not at all, and is not done twice for the same input."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import numpy as np
from datasets import Dataset
from datasets.fingerprint import Hasher

from st_listwise.data.tally import Tally

logger = logging.getLogger(__name__)


def converted(
    convert: Callable[[Path, Path, Tally], None],
    key: Sequence[Any],
    source: str,
    strict: bool,
    cache_dir: str | os.PathLike[str] | None,
) -> Dataset:
    """The data set that ``convert`` writes, or wrote before from the same input.

    Args:
        convert: Called with a folder for what it needs on the way, the Arrow file that it is to write, and a tally.
        key: All that the result depends on. Files count by name, size and time of change.
        source: Names the input in the log.
        strict: For the tally.
        cache_dir: Where results are kept. None: a folder in that of the data sets.

    An interrupted conversion leaves at most a folder whose name begins with a dot, and no result.
    """
    folder = Path(cache_dir or Path(datasets.config.HF_DATASETS_CACHE) / "st_listwise")
    folder.mkdir(parents=True, exist_ok=True)
    name = Hasher.hash([version("st-listwise"), strict, *map(_identity, key)])
    output, note = folder / f"{name}.arrow", folder / f"{name}.json"
    if not output.exists():
        with TemporaryDirectory(prefix=f".{name}-", dir=folder) as temporary:
            tally = Tally(strict)
            convert(Path(temporary), Path(temporary) / "output", tally)
            (Path(temporary) / "note").write_text(tally.dumps(), encoding="utf-8")
            os.replace(Path(temporary) / "note", note)
            os.replace(Path(temporary) / "output", output)  # last: where it is, all is
    tally = Tally.loads(note.read_text(encoding="utf-8"))
    tally.log(source)
    return tally.attach(Dataset.from_file(str(output)))


def spans(sizes: np.ndarray, most: int) -> list[tuple[int, int]]:
    """Begin and end of parts of a sequence, each of at most a size in all, unless one element is larger.

    >>> spans(np.array([2, 3, 9, 1]), 5)
    [(0, 2), (2, 3), (3, 4)]
    """
    ends = np.cumsum(sizes)
    parts = []
    low = 0
    while low < len(ends):
        done = ends[low - 1] if low else 0
        high = max(low + 1, int(np.searchsorted(ends, done + most, side="right")))
        parts.append((low, high))
        low = high
    return parts


def _identity(part: Any) -> Any:
    """What tells one input from another."""
    if isinstance(part, Dataset):
        return part._fingerprint
    if isinstance(part, (str, os.PathLike)) and Path(part).is_file():
        stat = Path(part).stat()
        return [str(Path(part).resolve()), stat.st_size, stat.st_mtime_ns]
    return dict(part) if isinstance(part, Mapping) else part
