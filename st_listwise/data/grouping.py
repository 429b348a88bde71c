"""Flat rows of query, document and label → one row a query."""

from __future__ import annotations

import logging

import pyarrow.compute as pc
from datasets import Dataset

logger = logging.getLogger(__name__)


def group_by_query(
    rows: Dataset, query: str = "query", doc: str = "doc", label: str = "label", *, keep_all: bool = False
) -> Dataset:
    """Group flat rows into lists, as the losses take them. The grouping is Arrow's: no row becomes a Python object.

    Rows with nothing in one of the three columns are left out. Queries of which all documents have one label teach
    nothing and are dropped. Both are counted in the log.

    Args:
        rows: One row a document, in any order.
        query: Column that rows of one list have in common: a text, or an identifier.
        doc: Column of documents.
        label: Column of numbers, larger is better.
        keep_all: Keep queries of one label, to evaluate on them.

    Returns:
        ``query``, ``docs``, ``labels``: queries in the order in which they are met, documents in that of the rows.

    Raises:
        ValueError: a column is not there, or labels are no numbers.

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
    grouped = complete.group_by("query", use_threads=False).aggregate(
        [("doc", "list"), ("label", "list"), ("label", "min"), ("label", "max")]
    )
    teaches = pc.less(grouped["label_min"], grouped["label_max"])
    kept = grouped if keep_all else grouped.filter(teaches)
    logger.info(
        f"{len(table):,} rows: {len(kept):,} of {len(grouped):,} queries kept; {len(table) - len(complete):,} rows "
        f"without a query, document or label left out; {len(grouped) - len(kept):,} queries of one label dropped."
    )
    lists = kept.select(["query", "doc_list", "label_list"]).rename_columns(["query", "docs", "labels"])
    return Dataset(lists)
