"""Flat rows of query, document and label → one row a query."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, Features, List, Value
from datasets.arrow_writer import ArrowWriter
from datasets.utils import tqdm

from st_listwise.data.arguments import check_dataset
from st_listwise.data.column import Column
from st_listwise.data.conversion import converted, spans
from st_listwise.data.tally import Tally

logger = logging.getLogger(__name__)

#: Bytes of documents that are worked on at once.
BYTES = 1 << 25


def group_by_query(
    rows: Dataset,
    query: str = "query",
    doc: str = "doc",
    label: str = "label",
    *,
    ranks: bool = False,
    keep_all: bool = False,
    strict: bool = False,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Group flat rows into lists, as the losses take them. The grouping is Arrow's: no row becomes a Python object.

    In memory are some bytes a row, and some megabytes of documents at a time: they may be larger than memory.

    Rows with nothing in one of the three columns, with a label that is NaN or infinite, or with a blank document are
    left out. A text that a query has more than once counts once, by its best label. Queries of which all documents
    have one label teach nothing and are dropped. All are counted in the log, and by
    :func:`~st_listwise.data.counts`.

    Args:
        rows: One row a document, in any order.
        query: Column that rows of one list have in common: a text, or an identifier.
        doc: Column of documents: texts, or whatever else a model takes, such as feature vectors. Only texts are looked
            at for blank and repeated ones.
        label: Column of numbers, larger is better.
        ranks: The column holds ranks, smaller is better: they are taken off the largest of their list.
        keep_all: Keep queries of one label, to evaluate on them.
        strict: Raise at a row that would be left out for what it holds, and at labels that look like ranks.
        cache_dir: Folder in which lists are written, a file for each call with other input; it is read again while the
            input and the options are the same. None: a folder in that of the data sets.

    Returns:
        ``query``, ``docs``, ``labels``: queries in the order in which they are met, documents in that of the rows.
        Where no list is left there is a warning.

    Raises:
        ValueError: it is no data set, a column is not there, queries are no texts or identifiers, or labels are no
            numbers; in strict mode, a fault.

    >>> rows = Dataset.from_dict({"query": ["a", "b", "a"], "doc": ["x", "y", "z"], "label": [1, 0, 0]})
    >>> group_by_query(rows)[:]
    {'query': ['a'], 'docs': [['x', 'z']], 'labels': [[1.0, 0.0]]}
    """
    check_dataset("rows", rows)
    columns = [query, doc, label]
    if missing := [name for name in columns if name not in rows.column_names]:
        raise ValueError(f"There is no column {', '.join(missing)}; the rows have {', '.join(rows.column_names)}.")
    own = rows.features
    if not isinstance(own[query], Value | ClassLabel):
        raise ValueError(f"The column {query} does not hold texts or identifiers, but {own[query]}.")
    features = Features({"query": own[query], "docs": List(own[doc]), "labels": List(Value("float64"))})

    def convert(folder: Path, output: Path, tally: Tally) -> None:
        grouper = _Grouper(*(Column(rows, name) for name in columns), ranks=ranks, keep_all=keep_all, tally=tally)
        with ArrowWriter(path=str(output), features=features) as writer:
            for table in grouper.tables():
                writer.write_table(table, len(table))
            writer.finalize()

    key = ["group_by_query", rows, *columns, ranks, keep_all]
    lists = converted(convert, key, f"{len(rows):,} rows", strict, cache_dir)
    if not len(lists):
        remedy = "" if keep_all else " Each query needs documents of two labels; keep_all=True keeps the others."
        logger.warning(f"No list is left of {len(rows):,} rows. {Tally.of(lists).sentence()}{remedy}")
    return lists


class _Grouper:
    """Numbers of rows by query; the documents are looked up when their lists are made.

    Args:
        query: A column, as those below.
        doc: Likewise.
        label: Likewise.
        ranks: Labels are ranks.
        keep_all: Lists of one label stay.
        tally: Takes the faults.
    """

    def __init__(
        self, query: Column, doc: Column, label: Column, *, ranks: bool, keep_all: bool, tally: Tally
    ) -> None:
        self.doc, self.ranks, self.keep_all, self.tally = doc, ranks, keep_all, tally
        self.labels = label.numbers()
        kept = _whole(query, doc, label, self.labels, tally)
        encoded = query.values().filter(pa.array(kept)).dictionary_encode().combine_chunks()
        codes = encoded.indices.to_numpy()  # numbered as they are met
        self.queries = encoded.dictionary
        self.rows = np.flatnonzero(kept)[np.argsort(codes, kind="stable")]
        self.starts = np.append(0, np.cumsum(np.bincount(codes, minlength=len(self.queries))))
        self._long = self._ranked = 0  #: lists of three or more documents, and those whose labels are 1 to n
        self._first = ""

    def tables(self) -> Iterator[pa.Table]:
        """Lists as rows, some megabytes of documents at a time; counts when all are made."""
        sizes = np.append(0, np.cumsum(self.doc.sizes()[self.rows]))
        written = documents = again = 0
        with tqdm(total=len(self.queries), desc="Grouping rows") as bar:
            for low, high in spans(np.diff(sizes[self.starts]), BYTES):
                flat = self._distinct(low, high)
                again += int(self.starts[high] - self.starts[low]) - len(flat)
                table = self._lists(flat, self.queries.slice(low, high - low))
                written += len(table)
                documents += pc.sum(pc.list_value_length(table["docs"])).as_py() or 0
                if len(table):
                    yield table
                bar.update(high - low)
        if 2 * self._ranked > self._long:
            self.tally.fault("lists whose labels look like ranks", self._first, self._ranked)
        self.tally.count_lists(written, documents, len(self.queries) - written)
        if again:
            self.tally.count("documents given again", again)

    def _distinct(self, low: int, high: int) -> pa.Table:
        """List, document and label of each row of some queries; of equal texts of a list one row, the best."""
        own = slice(self.starts[low], self.starts[high])
        lists = np.repeat(np.arange(high - low), np.diff(self.starts[low : high + 1]))
        rows = self.rows[own]
        flat = pa.table({"list": lists, "doc": self.doc.take(rows), "label": self.labels[rows]})
        if not self.doc.is_text:
            return flat
        best = "min" if self.ranks else "max"
        placed = flat.append_column("place", pa.array(np.arange(len(flat))))
        once = placed.group_by(["list", "doc"], use_threads=False).aggregate([("label", best), ("place", "min")])
        once = once.sort_by("place_min")  # groups of more than some thousand rows come in no order
        return once.select(["list", "doc", f"label_{best}"]).rename_columns(flat.column_names)

    def _lists(self, flat: pa.Table, queries: pa.Array) -> pa.Table:
        """One row a query of those that teach."""
        labels = flat["label"].to_numpy()
        starts = np.flatnonzero(np.diff(flat["list"].to_numpy(), prepend=-1))
        sizes = np.diff(np.append(starts, len(labels)))
        largest = np.maximum.reduceat(labels, starts)
        teach = (np.minimum.reduceat(labels, starts) < largest) | self.keep_all
        if self.ranks:
            labels = np.repeat(largest, sizes) - labels
        else:
            self._look_for_ranks(flat, starts, sizes, queries)
        inside = np.repeat(teach, sizes)
        offsets = pa.array(np.append(0, np.cumsum(sizes[teach])), pa.int32())
        columns = {"docs": flat["doc"].filter(pa.array(inside)).combine_chunks(), "labels": pa.array(labels[inside])}
        lists = {name: pa.ListArray.from_arrays(offsets, column) for name, column in columns.items()}
        return pa.table({"query": queries.filter(pa.array(teach)), **lists})

    def _look_for_ranks(self, flat: pa.Table, starts: np.ndarray, sizes: np.ndarray, queries: pa.Array) -> None:
        """Count lists of three or more documents, and those of them whose labels are 1 to n, each once."""
        order = np.lexsort([flat["label"].to_numpy(), flat["list"].to_numpy()])
        wanted = np.arange(len(order)) - np.repeat(starts, sizes) + 1
        each_once = np.logical_and.reduceat(flat["label"].to_numpy()[order] == wanted, starts) & (sizes > 2)
        self._long += int(np.count_nonzero(sizes > 2))
        self._ranked += int(np.count_nonzero(each_once))
        if each_once.any() and not self._first:
            place = int(each_once.argmax())
            here = f"query {queries[place].as_py()!r} has labels 1 to {sizes[place]}, each once"
            self._first = f"{here}; larger is better, or give ranks=True"


def _whole(query: Column, doc: Column, label: Column, labels: np.ndarray, tally: Tally) -> np.ndarray:
    """Rows that hold something in all three columns; others are faults."""
    whole = np.ones(len(labels), bool)
    for kind, bad, what in (
        (
            "rows that are not complete",
            query.missing() | doc.missing() | label.missing(),
            "the query, document or label is None",
        ),
        ("rows whose label is not finite", ~np.isfinite(labels), "the label is NaN or infinite"),
        ("rows whose document is blank", doc.blank(), "the document has no text"),
    ):
        new = bad & whole
        if new.any():
            tally.fault(kind, f"row {new.argmax()}: {what}", new.sum())
        whole &= ~new
    return whole
