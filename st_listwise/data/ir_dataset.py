"""Parts of a collection that ir-datasets knows: run, qrels, corpus and queries by its identifier."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa

from st_listwise.data.qrels import Judgment
from st_listwise.data.runs import PARSED

#: What ir-datasets calls the parts.
PARTS = {"run": "scoreddocs", "qrels": "qrels", "corpus": "docs", "queries": "queries"}
#: Lines of a run that are turned into Arrow at a time.
LINES = 100_000


class IrDatasetPart(NamedTuple):
    """A part of a collection, not opened yet."""

    id: str
    part: str

    def __str__(self) -> str:
        return f"{self.part} of {self.id} (ir-datasets)"

    def open(self) -> Iterable[Any]:
        """Tables of a run's lines, judgments, or (identifier, text).

        Raises:
            ImportError: ir-datasets is not installed.
            ValueError: it does not know the identifier, or the collection has no such part.
        """
        rows = getattr(_load(self.id), f"{PARTS[self.part]}_iter", None)
        if rows is None:
            raise ValueError(f"{self.id} has no {PARTS[self.part]} in ir-datasets: give a file as {self.part}.")
        if self.part == "run":
            return _tables(rows())
        if self.part == "qrels":
            return (Judgment(row.query_id, row.doc_id, float(row.relevance), n) for n, row in enumerate(rows(), 1))
        return ((row[0], row.default_text()) for row in rows())  # the identifier is their first field


def _load(id: str) -> Any:
    try:
        ir_datasets = importlib.import_module("ir_datasets")
    except ImportError as error:
        raise ImportError("ir_dataset needs ir-datasets: pip install ir_datasets") from error
    try:
        return ir_datasets.load(id)
    except KeyError as error:
        raise ValueError(f"ir_dataset={id!r} is not known to ir-datasets ({error}).") from error


def _tables(rows: Iterable[Any]) -> Iterator[pa.Table]:
    iterator, first = iter(rows), 1
    while chunk := list(islice(iterator, LINES)):
        columns: list[Any] = [
            [row.query_id for row in chunk],
            [row.doc_id for row in chunk],
            [0.0] * len(chunk),  # it keeps no ranks
            [float(row.score) for row in chunk],
            range(first, first + len(chunk)),
        ]
        yield pa.Table.from_arrays([pa.array(own, field.type) for own, field in zip(columns, PARSED)], schema=PARSED)
        first += len(chunk)


def opened(part: Any) -> Any:
    """What a part of a collection is read from."""
    return part.open() if isinstance(part, IrDatasetPart) else part
