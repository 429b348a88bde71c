"""MS MARCO question rows → ranked lists: ``query``, ``docs``, ``labels``, best documents first.

Takes the forms in which such data is found: Hugging Face's MS MARCO v1.1 and v2.1 (``passages`` is a dictionary of
parallel lists), Microsoft's original JSON lines (``passages`` is a list of dictionaries), and rows that are lists
already (``query``, ``docs``, ``labels``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from datasets import Dataset

#: Why a row teaches nothing, in the order in which it is looked at.
REASONS = ("no query", "no passages", "no positive", "only positives", "one label")


def map_row(row: Mapping[str, Any], max_docs: int | None = None, keep_order: bool = False) -> dict[str, Any]:
    """One row as a list, with what was left out of it.

    Args:
        row: ``query`` and ``passages``, or ``query``, ``docs`` and ``labels``.
        max_docs: Most documents of a list, at least 2. The best are kept, but the last place goes to a document of a
            lower label if there would be none: a list of one label teaches nothing.
        keep_order: Leave those that are kept in the order in which they are given, for models that look at it.

    Returns:
        ``query``, ``docs``, ``labels``, and ``dropped`` ("" or one of ``REASONS``), ``empty``, ``unlabelled``,
        ``duplicates`` (numbers of documents left out) and ``truncated`` (bool).

    Raises:
        ValueError: columns are missing or do not fit each other, or a label is no number.

    >>> row = {"query": "why", "passages": {"passage_text": ["no", "", "so", "no"], "is_selected": [0, 0, 1, 0]}}
    >>> mapped = map_row(row)
    >>> mapped["docs"], mapped["labels"], mapped["empty"], mapped["duplicates"]
    (['so', 'no'], [1.0, 0.0], 1, 1)
    """
    if max_docs is not None and max_docs < 2:
        raise ValueError(f"max_docs={max_docs} must be at least 2: a list of one document teaches nothing.")
    texts, labels = read_list(row)
    filled = [(text, label) for text, label in zip(texts, labels) if isinstance(text, str) and text.strip()]
    best: dict[str, float] = {}
    for text, label in filled:
        if label is not None:
            best[text] = max(label, best.get(text, label))  # a passage that is given twice counts by its better label
    ranked = sorted(best.items(), key=lambda item: -item[1])  # stable: equal labels keep their order
    kept = ranked if max_docs is None else _truncate(ranked, max_docs)
    if keep_order:
        places = {text: place for place, text in enumerate(best)}
        kept = sorted(kept, key=lambda item: places[item[0]])
    return {
        "query": row["query"] or "",
        "docs": [text for text, _ in kept],
        "labels": [label for _, label in kept],
        "dropped": _why_dropped(row, [label for _, label in kept]),
        "empty": len(texts) - len(filled),
        "unlabelled": sum(label is None for _, label in filled),
        "duplicates": sum(label is not None for _, label in filled) - len(best),
        "truncated": len(kept) < len(ranked),
    }


def read_list(row: Mapping[str, Any]) -> tuple[list[Any], list[float | None]]:
    """Texts and labels of a row in any of the forms, checked for their shape."""
    if "query" not in row:
        raise ValueError(f'there is no "query", only {_names(row)}')
    if "docs" in row and "labels" in row:
        texts, labels = row["docs"], row["labels"]
    elif "passages" in row:
        texts, labels = _read_passages(row["passages"])
    else:
        raise ValueError(f'there is neither "passages" nor "docs" and "labels", only {_names(row)}')
    if not isinstance(texts, Sequence) or not isinstance(labels, Sequence) or isinstance(texts, str):
        raise ValueError("documents and labels must be lists")
    if len(texts) != len(labels):
        raise ValueError(f"{len(texts)} documents, but {len(labels)} labels")
    return list(texts), [_number(label, place) for place, label in enumerate(labels)]


def map_dataset(
    dataset: Dataset, max_docs: int | None = None, keep_order: bool = False
) -> tuple[Dataset, dict[str, int]]:
    """Map every row, drop those that teach nothing, and count.

    Args:
        dataset: Rows in any of the forms of :func:`map_row`.
        max_docs: As in :func:`map_row`.
        keep_order: As in :func:`map_row`.

    Returns:
        A data set of ``query``, ``docs`` and ``labels``, and the counts that :func:`describe` puts into words.
    """
    mapped = dataset.map(
        map_row,
        fn_kwargs={"max_docs": max_docs, "keep_order": keep_order},
        remove_columns=dataset.column_names,
        desc="Mapping to lists",
    )
    dropped = Counter(mapped["dropped"])
    kept = mapped.filter(lambda reason: reason == "", input_columns="dropped", desc="Dropping lists without use")
    counts = {"queries": len(mapped), "kept": len(kept), "documents": sum(map(len, kept["docs"]))}
    counts |= {reason: dropped[reason] for reason in REASONS if dropped[reason]}
    counts |= {name: sum(mapped[name]) for name in ("empty", "unlabelled", "duplicates", "truncated")}
    return kept.select_columns(["query", "docs", "labels"]), counts


def describe(counts: Mapping[str, int]) -> str:
    """The counts of :func:`map_dataset` in a sentence or two.

    >>> counts = {"queries": 9, "kept": 7, "documents": 70, "no positive": 2, "empty": 1, "truncated": 3}
    >>> describe(counts)
    '7 of 9 queries kept, with 70 documents; dropped: 2 no positive; left out: 1 empty document; 3 lists truncated.'
    """
    parts = [f"{counts['kept']:,} of {counts['queries']:,} queries kept, with {counts['documents']:,} documents"]
    if dropped := [f"{counts[reason]:,} {reason}" for reason in REASONS if counts.get(reason)]:
        parts.append("dropped: " + ", ".join(dropped))
    names = {"empty": "empty", "unlabelled": "unlabelled", "duplicates": "duplicate"}
    if left := [f"{counts[key]:,} {word}" for key, word in names.items() if counts.get(key)]:
        one = sum(counts.get(key, 0) for key in names) == 1
        parts.append("left out: " + ", ".join(left) + (" document" if one else " documents"))
    if counts.get("truncated"):
        parts.append(f"{counts['truncated']:,} lists truncated")
    return "; ".join(parts) + "."


def _read_passages(passages: Any) -> tuple[Any, Any]:
    if isinstance(passages, Mapping):
        if missing := {"passage_text", "is_selected"} - set(passages):
            raise ValueError(f"passages has no {' and no '.join(sorted(missing))}, only {_names(passages)}")
        return passages["passage_text"], passages["is_selected"]
    if isinstance(passages, Sequence) and not isinstance(passages, str):
        if not all(isinstance(passage, Mapping) for passage in passages):
            raise ValueError("passages must be a list of dictionaries, or a dictionary of lists")
        return [passage.get("passage_text") for passage in passages], [
            passage.get("is_selected") for passage in passages
        ]
    raise ValueError(
        f"passages is {type(passages).__name__}; expected a dictionary of lists or a list of dictionaries"
    )


def _number(label: Any, place: int) -> float | None:
    if label is None:
        return None
    if not isinstance(label, (int, float)) or not abs(label) < float("inf"):
        raise ValueError(f"the label of document {place} is {label!r}, not a finite number")
    return float(label)


def _truncate(ranked: list[tuple[str, float]], max_docs: int) -> list[tuple[str, float]]:
    kept = ranked[:max_docs]
    if len({label for _, label in kept}) == 1:
        lower = next((item for item in ranked[max_docs:] if item[1] < kept[0][1]), None)
        kept = [*kept[:-1], lower] if lower else kept
    return kept


def _why_dropped(row: Mapping[str, Any], labels: list[float]) -> str:
    query = row["query"]
    if not isinstance(query, str) or not query.strip():
        return "no query"
    if not labels:
        return "no passages"
    if len(set(labels)) > 1:
        return ""
    if "passages" not in row:
        return "one label"
    return "only positives" if max(labels) > 0 else "no positive"


def _names(row: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, row)) or "nothing"
