"""LETOR and SVMlight files with qid → rows of query, docs (feature vectors) and labels."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset
from sklearn.datasets import load_svmlight_file

from st_listwise.data.arguments import check_count
from st_listwise.data.files import blocks, excerpt
from st_listwise.data.tally import Tally


def read_letor(path: str | os.PathLike[str], num_features: int | None = None, *, strict: bool = False) -> Dataset:
    """Read judged feature vectors: lines such as ``2 qid:10 1:0.5 3:0.25 # docid = GX000``.

    Features are numbered from 1; those that a line leaves out are 0. Comments are skipped. Lines of one qid are one
    list, in the order of the file, wherever they stand; lists come in the order in which their qid is met first.

    Args:
        path: The file, plain, gzip or bzip2.
        num_features: Width of the vectors. None: the highest feature number in the file. Give the training set's width
            when reading a test set.
        strict: Raise at the first fault in place of counting it.

    Returns:
        ``query``: the qid as a string, ``docs``: float32 vectors, ``labels``: floats. Lists of one label stay. Lines
        with a fault are left out, logged, and given by :func:`~st_listwise.data.counts`.

    Raises:
        ValueError: there is no such file, or no line in it that can be read; ``num_features`` is no whole number from
            1 on, or a feature is beyond it, as then it is the option that is wrong and not the line; in strict mode
            any fault: lines that are malformed or have no qid, a label or feature that is NaN or infinite, a qid that
            comes again after another one (its lines stay, in one list), a file that breaks off.
    """
    check_count("num_features", num_features)
    tally = Tally(strict)
    parts = [
        part.finite(path, tally)
        for first, block in blocks(path, tally)
        for part in _parse(block.splitlines(keepends=True), first, path, tally)
    ]
    lines, labels, queries = (
        np.concatenate([np.zeros(0, dtype), *(getattr(part, name) for part in parts)])
        for name, dtype in (("lines", np.int64), ("labels", np.float64), ("queries", np.int64))
    )
    starts, rows = _group(queries)
    _check_order(queries, starts, lines, path, tally)
    tally.count_lists(len(rows), len(labels))
    if not rows:
        raise ValueError(f"{path} holds no rows that can be read. {tally.sentence()}")
    vectors = _stack(parts, num_features, path)
    lists = Dataset.from_dict(
        {
            "query": [str(queries[row[0]]) for row in rows],
            "docs": [vectors[row] for row in rows],
            "labels": [labels[row] for row in rows],
        }
    )
    tally.log(str(path))
    return tally.attach(lists)


@dataclass
class _Rows:
    """Documents, and the lines on which they stand."""

    features: Any  #: sparse ``(documents, highest feature number)``
    labels: np.ndarray
    queries: np.ndarray
    lines: np.ndarray

    def finite(self, path: str | os.PathLike[str], tally: Tally) -> _Rows:
        """Those without NaN and infinity; others are faults."""
        bad = ~np.isfinite(self.labels)
        bad[np.repeat(np.arange(len(bad)), np.diff(self.features.indptr))[~np.isfinite(self.features.data)]] = True
        if not bad.any():
            return self
        first = int(np.argmax(bad))
        place = (
            f"{path}, line {self.lines[first]}: a label or feature of query {self.queries[first]} is NaN or infinite"
        )
        tally.fault("lines with a value that is not finite", place, bad.sum())
        return _Rows(self.features[~bad], self.labels[~bad], self.queries[~bad], self.lines[~bad])


def _parse(lines: list[bytes], first: int, path: str | os.PathLike[str], tally: Tally) -> Iterator[_Rows]:
    """Documents of lines. As scikit-learn does not say which line has a fault, lines are halved until it is found."""
    numbers = [number for number, line in enumerate(lines, first) if line.partition(b"#")[0].strip()]
    if not numbers:
        return
    try:
        features, labels, queries = load_svmlight_file(
            io.BytesIO(b"".join(lines)), dtype=np.float32, query_id=True, zero_based=False
        )
        fault = "" if len(queries) == len(labels) else "there is no qid"
    except (ValueError, OverflowError) as error:
        fault = str(error).rstrip(".")
    if not fault:
        yield _Rows(features, labels.astype(np.float64), queries, np.array(numbers))
    elif len(lines) > 1:
        half = len(lines) // 2
        yield from _parse(lines[:half], first, path, tally)
        yield from _parse(lines[half:], first + half, path, tally)
    else:
        kind = "lines without qid" if fault == "there is no qid" else "lines that cannot be read"
        begin = excerpt(lines[0].decode(errors="replace"))
        tally.fault(kind, f"{path}, line {first}: {fault}. The line begins {begin}")


def _group(queries: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """The document at which each list begins, in the order of the file, and the documents of each."""
    _, first, inverse = np.unique(queries, return_index=True, return_inverse=True)
    by_appearance = np.argsort(np.argsort(first))[inverse]
    order = np.argsort(by_appearance, kind="stable")
    cuts = np.flatnonzero(np.diff(by_appearance[order])) + 1
    return np.sort(first), np.split(order, cuts) if len(order) else []


def _check_order(
    queries: np.ndarray, starts: np.ndarray, lines: np.ndarray, path: str | os.PathLike[str], tally: Tally
) -> None:
    """A qid that comes again: files put together, in which it may stand for two queries."""
    begins = np.flatnonzero(np.diff(queries, prepend=queries[:1] - 1))
    again = np.setdiff1d(begins, starts)
    if len(again):
        place = f"{path}, line {lines[again[0]]}: query {queries[again[0]]} stood before, with others in between"
        tally.fault("lists in several places", place, len(np.unique(queries[again])))


def _stack(parts: list[_Rows], num_features: int | None, path: str | os.PathLike[str]) -> np.ndarray:
    """``(documents, num_features)`` of all parts."""
    widths = [int(part.features.indices.max(initial=-1)) + 1 for part in parts]
    width = max(1, *widths) if num_features is None else num_features
    for part, own in zip(parts, widths):
        if own > width:
            place = int(np.argmax(part.features.indices >= width))
            line = part.lines[int(np.searchsorted(part.features.indptr, place, side="right")) - 1]
            number = part.features.indices[place] + 1
            raise ValueError(
                f"{path}, line {line}: feature {number} is beyond num_features={width}. Give the width of the widest "
                "file, or None."
            )
    vectors = np.zeros((sum(len(part.labels) for part in parts), width), np.float32)
    begin = 0
    for part in parts:
        documents = len(part.labels)
        part.features.resize(documents, width)
        part.features.toarray(out=vectors[begin : begin + documents])
        begin += documents
    return vectors
