"""Flat rows of query, document and label → one row a query."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from st_listwise.data.tally import Tally


def group_by_query(
    rows: Dataset,
    query: str = "query",
    doc: str = "doc",
    label: str = "label",
    *,
    ranks: bool = False,
    keep_all: bool = False,
    strict: bool = False,
) -> Dataset:
    """Group flat rows into lists, as the losses take them. The grouping is Arrow's: no row becomes a Python object.

    Rows with nothing in one of the three columns are left out. Queries of which all documents have one label teach
    nothing and are dropped. Both are counted in the log, and by :func:`~st_listwise.data.counts`.

    Args:
        rows: One row a document, in any order.
        query: Column that rows of one list have in common: a text, or an identifier.
        doc: Column of documents.
        label: Column of numbers, larger is better.
        ranks: The column holds ranks, smaller is better: they are taken off the largest of their list.
        keep_all: Keep queries of one label, to evaluate on them.
        strict: Raise at a row that is not complete, and at labels that look like ranks.

    Returns:
        ``query``, ``docs``, ``labels``: queries in the order in which they are met, documents in that of the rows.

    Raises:
        ValueError: a column is not there, or labels are no numbers; in strict mode, a fault.

    >>> rows = Dataset.from_dict({"query": ["a", "b", "a"], "doc": ["x", "y", "z"], "label": [1, 0, 0]})
    >>> group_by_query(rows)[:]
    {'query': ['a'], 'docs': [['x', 'z']], 'labels': [[1.0, 0.0]]}
    """
    columns = [query, doc, label]
    if missing := [name for name in columns if name not in rows.column_names]:
        raise ValueError(f"There is no column {', '.join(missing)}; the rows have {', '.join(rows.column_names)}.")
    flat = rows.select_columns(columns).flatten_indices() if rows._indices else rows.select_columns(columns)
    table = flat.data.table.select(columns).rename_columns(["query", "doc", "label"])
    try:
        labels = table["label"].cast("float64")
    except (ValueError, NotImplementedError) as error:  # Arrow's errors are subclasses of them
        raise ValueError(f"The column {label} does not hold numbers ({error}).") from error
    complete = table.set_column(2, "label", labels).drop_null()
    tally = Tally(strict)
    if len(complete) < len(table):
        bare = pc.or_kleene(pc.or_kleene(table["query"].is_null(), table["doc"].is_null()), labels.is_null())
        place = f"row {pc.index(bare, True).as_py()}: the query, document or label is None"
        tally.fault("rows that are not complete", place, len(table) - len(complete))
    of_labels = ("list", "min", "max", "count", "count_distinct")
    grouped = complete.group_by("query", use_threads=False).aggregate(
        [("doc", "list"), *(("label", name) for name in of_labels)]
    )
    if not ranks:
        _check_ranks(grouped, tally)
    teaches = pc.less(grouped["label_min"], grouped["label_max"])
    kept = grouped if keep_all else grouped.filter(teaches)
    tally.count_lists(len(kept), pc.sum(kept["label_count"]).as_py() or 0, len(grouped) - len(kept))
    tally.log(f"{len(table):,} rows")
    lists = kept.select(["query", "doc_list", "label_list"]).rename_columns(["query", "docs", "labels"])
    return tally.attach(Dataset(_from_ranks(lists) if ranks else lists))


def _check_ranks(grouped: pa.Table, tally: Tally) -> None:
    """Labels that are 1 to n, each once, in most lists of three or more documents."""
    long = grouped.filter(pc.greater(grouped["label_count"], 2))
    each_once = pc.and_(
        pc.equal(long["label_count_distinct"], long["label_count"]),
        pc.and_(pc.equal(long["label_min"], 1), pc.equal(long["label_max"], pc.cast(long["label_count"], "float64"))),
    )
    ranked = long.filter(each_once)
    if 2 * len(ranked) > len(long):
        query, size = ranked["query"][0].as_py(), ranked["label_count"][0].as_py()
        place = f"query {query!r} has labels 1 to {size}, each once; larger is better, or give ranks=True"
        tally.fault("lists whose labels look like ranks", place, len(ranked))


def _from_ranks(lists: pa.Table) -> pa.Table:
    """Labels as the largest rank of the list less the rank."""
    ranks = lists["labels"].combine_chunks()
    largest = pa.array([max(own) for own in ranks.to_pylist()], "float64")
    labels = pc.subtract(largest.take(pc.list_parent_indices(ranks)), ranks.flatten())
    return lists.set_column(2, "labels", pa.ListArray.from_arrays(ranks.offsets, labels))
