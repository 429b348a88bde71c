"""TREC run files → lines on disk, given back a few queries at a time: memory does not grow with the run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from st_listwise.data.conversion import spans
from st_listwise.data.files import blocks, excerpt
from st_listwise.data.tally import Tally

#: One line of a run. Spooled, queries are numbers, in the order in which they are met.
PARSED = pa.schema(
    [
        ("query", pa.string()),
        ("doc", pa.string()),
        ("rank", pa.float64()),
        ("score", pa.float64()),
        ("line", pa.int64()),
    ]
)
SPOOLED = PARSED.set(0, pa.field("query", pa.int32()))
#: Most lines that are given back at once, unless one query has more.
LINES = 500_000
COLUMNS = ["query", "q0", "doc", "rank", "score", "tag"]


def parse_run(path: str | os.PathLike[str], tally: Tally) -> Iterator[pa.Table]:
    """Lines ``qid Q0 docid rank score tag`` as tables of ``PARSED``; those that cannot be read are faults.

    A block without a fault is Arrow's to parse, any other is read line by line.
    """
    for first, block in blocks(path, tally):
        try:
            yield _parse_clean(block, first)
        except (pa.ArrowInvalid, UnicodeDecodeError):
            yield _parse_lines(block, first, path, tally)


class RunSpool:
    """The lines of a run on disk.

    Args:
        tables: From :func:`parse_run`.
        path: Where the lines are put.
    """

    def __init__(self, tables: Iterable[pa.Table], path: Path) -> None:
        self.path = path
        codes: dict[str, int] = {}
        self.sizes = np.zeros(0, np.int64)  #: lines of each query
        self._spans: list[tuple[int, int]] = []  #: lowest and highest query of each batch
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, SPOOLED) as writer:
            for table in tables:
                if len(table):
                    self._add(table.combine_chunks(), codes, writer)
        self.queries = list(codes)

    def ranges(self) -> list[tuple[int, int]]:
        """The first query and the one after the last of each part, queries in the order in which they are met."""
        return spans(self.sizes, LINES)

    def part(self, low: int, high: int) -> pa.Table:
        """All lines of a range of queries, as ``SPOOLED``."""
        with pa.OSFile(str(self.path), "rb") as file:
            reader = pa.ipc.open_file(file)
            batches = [
                _between(reader.get_batch(number), low, high)
                for number, (lowest, highest) in enumerate(self._spans)
                if lowest < high and highest >= low
            ]
        return pa.Table.from_batches(batches, SPOOLED)

    def _add(self, table: pa.Table, codes: dict[str, int], writer: pa.ipc.RecordBatchFileWriter) -> None:
        encoded = table["query"].combine_chunks().dictionary_encode()
        known = np.array([codes.setdefault(query, len(codes)) for query in encoded.dictionary.to_pylist()], np.int32)
        own = known[encoded.indices.to_numpy()]
        counted = np.bincount(own, minlength=len(codes))
        counted[: len(self.sizes)] += self.sizes
        self.sizes = counted
        self._spans.append((int(own.min()), int(own.max())))
        writer.write_batch(table.set_column(0, SPOOLED[0], pa.array(own)).combine_chunks().to_batches()[0])


def _between(batch: pa.RecordBatch, low: int, high: int) -> pa.RecordBatch:
    codes = batch["query"].to_numpy()
    inside = (codes >= low) & (codes < high)
    return batch if inside.all() else batch.filter(pa.array(inside))


def _parse_clean(block: bytes, first: int) -> pa.Table:
    lines = block.count(b"\n") + (not block.endswith(b"\n"))
    if b"\t" in block or b"\r" in block or b"  " in block or b" \n" in block:
        block = re.sub(rb" ?\n ?", b"\n", re.sub(rb"[ \t\r]+", b" ", block)).strip(b" ")
    table = csv.read_csv(
        pa.BufferReader(block),
        csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=COLUMNS),
        csv.ParseOptions(delimiter=" ", quote_char=False),
        csv.ConvertOptions(
            column_types={field.name: field.type for field in PARSED},
            include_columns=PARSED.names[:-1],
            null_values=[],
            strings_can_be_null=False,
        ),
    )
    if len(table) != lines or not np.isfinite(table["score"]).all() or not np.isfinite(table["rank"]).all():
        raise pa.ArrowInvalid("a line is blank, or a number is not finite")
    return table.append_column(PARSED.field("line"), pa.array(np.arange(first, first + lines)))


def _parse_lines(block: bytes, first: int, path: str | os.PathLike[str], tally: Tally) -> pa.Table:
    rows = []
    for number, line in enumerate(block.split(b"\n"), first):
        if not line.strip():
            continue
        fields = [field.decode(errors="replace") for field in line.split()]
        if fault := _fault(fields):
            text = excerpt(line.decode(errors="replace"))
            tally.fault("run lines that cannot be read", f"{path}, line {number}: {fault}: {text}")
        else:
            rows.append((fields[0], fields[2], float(fields[3]), float(fields[4]), number))
    columns = zip(*rows) if rows else [[]] * len(PARSED)
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, PARSED)], schema=PARSED
    )


def _fault(fields: list[str]) -> str:
    if len(fields) != len(COLUMNS):
        return f"{len(fields)} columns, not the 6 of qid Q0 docid rank score tag"
    for name, field in (("rank", fields[3]), ("score", fields[4])):
        try:
            finite = np.isfinite(float(field))
        except ValueError:
            return f"the {name} {field!r} is no number"
        if not finite:
            return f"the {name} is {field}"
    return ""
