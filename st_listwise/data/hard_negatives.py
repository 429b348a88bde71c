"""What sentence-transformers' ``mine_hard_negatives`` gives → lists: all positives of a query with its negatives."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from datasets import Dataset, Features, LargeList, List, Value

from st_listwise.data.arguments import check_dataset
from st_listwise.data.tally import Tally

#: Columns of negatives in n-tuples and triplets.
NEGATIVE = re.compile(r"negative(_\d+)?")
#: Said in advance: from lists of faults that are all empty a writer would take that there are none later.
MERGED = Features(
    {
        "query": Value("string"),
        "docs": List(Value("string")),
        "labels": List(Value("float64")),
        "faults": List(Value("string")),
        "again": Value("int64"),
    }
)


def from_hard_negatives(
    dataset: Dataset,
    *,
    labels: Literal["positives", "scores"] = "positives",
    strict: bool = False,
    num_proc: int | None = None,
) -> Dataset:
    """Lists from mined hard negatives: the formats "labeled-list", "n-tuple" and "triplet", with scores or without.

    Rows of one query become one list, so that its positives are no rivals in lists of their own. A document that a
    query has more than once counts once, by its highest label.

    Args:
        dataset: Query, positive and ``negative`` or ``negative_1``, ``negative_2``, …; or query, documents and
            ``labels``. With ``output_scores=True`` there is a column ``scores`` besides, or in place of ``labels``,
            and the first document is the positive. The first two columns may have any name.
        labels: "positives": 1 for positives, 0 for negatives. "scores": the scores that the miner left, for instance
            those of its cross-encoder.
        strict: Raise at the first fault in place of leaving it out.
        num_proc: Processes.

    Returns:
        ``query``, ``docs``, ``labels``; queries in the order in which they are met. Lists of one label are left out.
        What was left out is logged, and given by :func:`~st_listwise.data.counts`.

    Raises:
        ValueError: it is no data set; the columns are not those of one of the formats, or there are others besides;
            there are no scores to take, or no list is left; in strict mode a query or document without text, documents
            that their labels do not fit, or a number that is not finite.
    """
    check_dataset("dataset", dataset)
    dataset = dataset.with_format(None)
    layout = _layout(dataset, labels)
    if layout.numbers:
        _check_numbers(dataset, layout.numbers)
    tally = Tally(strict)
    rows: dict[str, list[int]] = {}
    for place, query in enumerate(dataset[layout.query]):
        if isinstance(query, str) and query.strip():
            rows.setdefault(query, []).append(place)
        else:
            tally.fault("rows without a query", f"row {place}: {query!r}")
    if not rows:
        raise ValueError(f"No list is left. {tally.sentence()}")
    lists = Dataset.from_dict({"query": list(rows), "rows": list(rows.values())}).map(
        _merged,
        fn_kwargs={"dataset": dataset, "layout": layout},
        remove_columns=["rows"],
        features=MERGED,
        num_proc=num_proc,
        desc="Hard negatives to lists",
    )
    return _kept(lists, tally)


class _Layout(NamedTuple):
    """Columns of one of the formats."""

    query: str
    docs: list[str]  #: one column of lists, or one column a document
    numbers: str | None  #: labels or scores; None: the first document is the positive


def _layout(dataset: Dataset, labels: str) -> _Layout:
    if labels not in ("positives", "scores"):
        raise ValueError(f'labels={labels!r} is not known; expected "positives" or "scores".')
    names = dataset.column_names
    if labels == "scores" and "scores" not in names:
        raise ValueError(f"There is no column scores, only {', '.join(names)}: mine with output_scores=True.")
    negatives = sorted(filter(NEGATIVE.fullmatch, names), key=lambda name: (len(name), name))
    numbers = "scores" if labels == "scores" else "labels" if "labels" in names and not negatives else None
    if negatives and len(names) > 2:
        return _alone(_Layout(names[0], [names[1], *negatives], numbers), names)
    if len(names) > 2 and isinstance(dataset.features[names[1]], List | LargeList) and {"labels", "scores"} & {*names}:
        return _alone(_Layout(names[0], [names[1]], numbers), names)
    raise ValueError(
        f"The columns {', '.join(names)} are not those of mine_hard_negatives in one of the formats labeled-list, "
        "n-tuple and triplet. Rows of one document and one label are for group_by_query."
    )


def _check_numbers(dataset: Dataset, name: str) -> None:
    """ValueError unless the column holds lists of numbers."""
    feature = dataset.features[name]
    if not isinstance(feature, List | LargeList) or getattr(feature.feature, "dtype", "") == "string":
        raise ValueError(f"The column {name} does not hold lists of numbers, but {feature}.")


def _alone(layout: _Layout, names: list[str]) -> _Layout:
    """The layout, where it uses all columns: with others, the first two may not be query and positive.

    Raises:
        ValueError: there is another column.
    """
    used = [layout.query, *layout.docs]
    if others := [name for name in names if name not in {*used, "labels", "scores"}]:
        what = "documents" if len(layout.docs) == 1 else "positive"
        raise ValueError(
            f"The first two columns, {used[0]} and {used[1]}, are taken as query and {what}, and nothing is known of "
            f"{', '.join(others)}. Leave what is needed, query and {what} first, with dataset.select_columns([…])."
        )
    return layout


def _merged(group: Mapping[str, Any], dataset: Dataset, layout: _Layout) -> dict[str, Any]:
    """The rows of one query as one list."""
    best: dict[str, float] = {}
    faults: list[str] = []
    given = 0
    for place in group["rows"]:
        row = dataset[place]
        docs = row[layout.docs[0]] if len(layout.docs) == 1 else [row[name] for name in layout.docs]
        numbers = row[layout.numbers] if layout.numbers else [1.0] + [0.0] * (len(docs or []) - 1)
        if docs is None or numbers is None or len(docs) != len(numbers):
            sizes = ["no" if own is None else len(own) for own in (docs, numbers)]
            faults.append(f"row {place}: {sizes[0]} documents, but {sizes[1]} {layout.numbers or 'labels'}")
            continue
        for doc, number in zip(docs, numbers):
            if not isinstance(doc, str) or not doc.strip() or number is None or not math.isfinite(number):
                faults.append(f"row {place}: document {doc!r}, {layout.numbers or 'label'} {number!r}")
                continue
            given += 1
            best[doc] = max(float(number), best.get(doc, -math.inf))
    labels = list(best.values())
    return {"docs": list(best), "labels": labels, "faults": faults, "again": given - len(best)}


def _kept(lists: Dataset, tally: Tally) -> Dataset:
    """Lists that teach, with counts."""
    for faults in lists["faults"]:
        for fault in faults:
            tally.fault("documents without a text or a finite number", fault)
    teach = [place for place, own in enumerate(lists["labels"]) if own and min(own) < max(own)]
    kept = lists.select(teach).select_columns(["query", "docs", "labels"])
    tally.count_lists(len(kept), sum(map(len, kept["labels"])), len(lists) - len(kept))
    if again := sum(lists["again"]):
        tally.count("documents given again", again)
    if not len(kept):
        raise ValueError(f"No list is left. {tally.sentence()}")
    tally.log("hard negatives")
    return tally.attach(kept)
