"""A run on disk beside its documents and queries → an Arrow file of lists, made by one process or by several."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets.arrow_writer import ArrowWriter
from datasets.utils import tqdm

from st_listwise.data.arguments import check_count
from st_listwise.data.ir_dataset import opened
from st_listwise.data.ranked import Key, RankedLists, Ranker
from st_listwise.data.runs import RunSpool, parse_run
from st_listwise.data.tally import Tally
from st_listwise.data.texts import Corpus, read_queries

#: Bytes of text that are written at once.
BYTES = 1 << 25
#: From a query's identifier, documents, ranks and scores to its columns of numbers.
Labels = Callable[[str, list[str], np.ndarray, np.ndarray], dict[str, Any]]
#: Of some queries: what was left out, the number of lists, and those that are kept as rows.
Part = tuple[Tally, int, Iterator[pa.Table]]


class Collection:
    """A run on disk beside its documents and queries.

    Args:
        parts: Run, corpus and queries.
        folder: Where run and corpus are put.
        tally: Takes the faults.

    Raises:
        ValueError: a part is empty; in strict mode, a fault.
    """

    def __init__(self, parts: Mapping[str, Any], folder: Path, tally: Tally) -> None:
        self.name, self.folder, self.tally = str(parts["run"]), folder, tally
        self.texts = read_queries(opened(parts["queries"]), tally)
        self.corpus = Corpus(opened(parts["corpus"]), folder / "texts", tally)
        run = opened(parts["run"])
        self.run = RunSpool(parse_run(run, tally) if run is parts["run"] else run, folder / "run")

    def write(
        self, output: Path, by: Key, depth: int | None, make: Labels, keep_all: bool, num_proc: int | None
    ) -> None:
        """Write lists in order of ``by``; those of one label only with ``keep_all``.

        Raises:
            ValueError: ``depth`` or ``num_proc`` is no whole number from 1 on, or no list is left; in strict mode, a
                fault.
        """
        check_count("depth", depth)
        check_count("num_proc", num_proc)
        maker = _Maker(self, by, depth, make, keep_all)
        found = written = documents = 0
        with (
            ArrowWriter(path=str(output)) as writer,
            tqdm(total=len(self.run.queries), desc="Writing lists") as bar,
            closing(maker.parts(num_proc or 1)) as parts,
        ):
            for tally, lists, tables in parts:
                for table in tables:
                    writer.write_table(table, len(table))
                    written += len(table)
                    documents += len(table["docs"].combine_chunks().values)
                self.tally.add(tally)
                found += lists
                bar.update(lists)
            self.tally.count_lists(written, documents, found - written)
            if not written:
                raise ValueError(f"{self.name}: no list is left. {self.tally.sentence()}")
            writer.finalize()


@dataclass
class _Maker:
    """Makes rows of a collection's lists. Each process has a copy."""

    collection: Collection
    by: Key
    depth: int | None
    make: Labels
    keep_all: bool

    def parts(self, num_proc: int) -> Generator[Part, None, None]:
        """All lists, those of some queries at a time, in the same order whatever the number of processes.

        A process leaves its tables in a file: sent, they would be in memory several times.
        """
        ranges = self.collection.run.ranges()
        processes = min(num_proc, len(ranges))
        if processes < 2:
            yield from map(self.part, ranges)
            return
        with ProcessPoolExecutor(processes, initializer=_keep, initargs=(self,)) as executor:
            try:
                for tally, lists, path in executor.map(_write_part, ranges):
                    yield tally, lists, _tables_in(path)
                    path.unlink()
            finally:
                executor.shutdown(cancel_futures=True)  # after an error, what is left is not worth the wait

    def part(self, queries: tuple[int, int]) -> Part:
        """Lists of a range of queries."""
        own, tally = self.collection, Tally(self.collection.tally.strict)
        ranker = Ranker(own.name, self.by, self.depth, own.run.queries, own.texts, own.corpus, tally)
        lists = ranker(own.run.part(*queries))
        return tally, len(lists), self._tables(lists)

    def _tables(self, lists: RankedLists) -> Iterator[pa.Table]:
        """Lists as rows, some megabytes of text at a time."""
        chosen: list[int] = []
        numbers: list[dict[str, Any]] = []
        size = 0
        for place in range(len(lists)):
            own = slice(lists.starts[place], lists.starts[place + 1])
            docs = lists.docs[own.start : own.stop].to_pylist()
            columns = self.make(lists.queries[place], docs, lists.ranks[own], lists.scores[own])
            if self.keep_all or min(columns["labels"]) < max(columns["labels"]):
                chosen.append(place)
                numbers.append(columns)
                size += int(self.collection.corpus.lengths[lists.rows[own]].sum())
            if size > BYTES:
                yield self._table(lists, chosen, numbers)
                chosen, numbers, size = [], [], 0
        if chosen:
            yield self._table(lists, chosen, numbers)

    def _table(self, lists: RankedLists, chosen: list[int], numbers: list[dict[str, Any]]) -> pa.Table:
        places = np.concatenate([np.arange(lists.starts[place], lists.starts[place + 1]) for place in chosen])
        offsets = pa.array(np.cumsum([0, *np.diff(lists.starts)[chosen]]), pa.int32())
        queries = [lists.queries[place] for place in chosen]
        columns = {
            "query": pa.array([self.collection.texts[query] for query in queries]),
            "docs": pa.ListArray.from_arrays(offsets, self.collection.corpus.take(lists.rows[places])),
        }
        for name in numbers[0]:
            columns[name] = pa.array([own[name] for own in numbers], pa.list_(pa.float64()))
        columns["query_id"] = pa.array(queries)
        columns["doc_ids"] = pa.ListArray.from_arrays(offsets, lists.docs.take(pa.array(places)))
        return pa.table(columns)


#: In one of several processes: what it makes rows with, sent once and not with each part.
_kept: _Maker


def _keep(maker: _Maker) -> None:
    global _kept
    _kept = maker


def _write_part(queries: tuple[int, int]) -> tuple[Tally, int, Path]:
    """In one of several processes: a part, with the file in which its tables are."""
    tally, lists, tables = _kept.part(queries)
    path = _kept.collection.folder / f"part-{queries[0]}"
    with pa.OSFile(str(path), "wb") as file:
        writer = None
        for table in tables:
            writer = writer or pa.ipc.new_stream(file, table.schema)
            writer.write_table(table)
        if writer:
            writer.close()
    return tally, lists, path


def _tables_in(path: Path) -> Iterator[pa.Table]:
    if path.stat().st_size:
        with pa.OSFile(str(path), "rb") as file:
            for batch in pa.ipc.open_stream(file):
                yield pa.Table.from_batches([batch])
