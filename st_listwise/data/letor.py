"""LETOR and SVMlight files with qid → rows of query, docs (feature vectors) and labels."""

from __future__ import annotations

import bz2
import gzip
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from sklearn.datasets import load_svmlight_file

from st_listwise.data.tally import Tally


def read_letor(path: str | os.PathLike[str], num_features: int | None = None) -> Dataset:
    """Read judged feature vectors: lines such as ``2 qid:10 1:0.5 3:0.25 # docid = GX000``.

    Features are numbered from 1; those that a line leaves out are 0. Comments are skipped. Lines of one qid are one
    list, in the order of the file, wherever they stand; lists come in the order in which their qid is met first.

    Args:
        path: The file; gzip and bzip2 by their ending.
        num_features: Width of the vectors. None: the highest feature number in the file. Give the training set's width
            when reading a test set.

    Returns:
        ``query``: the qid as a string, ``docs``: float32 vectors, ``labels``: floats. Nothing is left out.

    Raises:
        ValueError: names the file and the line of what is malformed, of a line without qid, of a feature beyond
            ``num_features``, and of a value that is NaN or infinite.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} is not a file.")
    try:
        features, labels, queries = _parse(path, num_features)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(_describe_fault(path, num_features, str(error))) from error
    vectors = features.toarray()
    finite = np.isfinite(vectors).all(1) & np.isfinite(labels)
    if len(queries) != len(labels) or not finite.all():
        raise ValueError(_describe_fault(path, num_features, "a value is not finite, or a line has no qid"))
    if not len(labels):
        raise ValueError(f"{path} holds no rows.")
    _, first, inverse = np.unique(queries, return_index=True, return_inverse=True)
    by_appearance = np.argsort(np.argsort(first))[inverse]
    order = np.argsort(by_appearance, kind="stable")
    cuts = np.flatnonzero(np.diff(by_appearance[order])) + 1
    rows = np.split(order, cuts)
    lists = Dataset.from_dict(
        {
            "query": [str(queries[row[0]]) for row in rows],
            "docs": [vectors[row] for row in rows],
            "labels": [labels[row].astype(np.float64) for row in rows],
        }
    )
    tally = Tally()
    tally.count_lists(len(rows), len(labels))
    tally.log(str(path))
    return tally.attach(lists)


def _parse(source: Path | io.BytesIO, num_features: int | None) -> tuple:
    file = source if isinstance(source, io.BytesIO) else str(source)
    return load_svmlight_file(file, n_features=num_features, dtype=np.float32, query_id=True, zero_based=False)


def _describe_fault(path: Path, num_features: int | None, message: str) -> str:
    """The first line that does not stand up by itself, as scikit-learn's parser does not say which it is."""
    try:
        for number, line in _lines(path):
            if fault := _fault(line, num_features):
                begin = line[:60].decode(errors="replace").strip()
                return f"{path}, line {number}: {fault}. The line begins {begin!r}."
    except (OSError, EOFError) as error:
        return f"{path} cannot be read: {error}"
    return f"{path}: {message}"


def _fault(line: bytes, num_features: int | None) -> str | None:
    try:
        features, labels, queries = _parse(io.BytesIO(line), num_features)
    except ValueError as error:
        return str(error).rstrip(".")
    if len(labels) and not len(queries):
        return "there is no qid"
    finite = np.isfinite(features.data).all() and np.isfinite(labels).all()
    return None if finite else "a label or feature is NaN or infinite"


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    opener: Any = {".gz": gzip.open, ".bz2": bz2.open}.get(path.suffix, open)
    with opener(path, "rb") as file:
        yield from enumerate(file, 1)
