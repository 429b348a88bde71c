"""What may come out of the trainer's collator, checked before anything is scored. Each error names its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from st_listwise.functional.lists import check_finite, length_mask, pad_lists

#: Columns that a loss takes, in their order.
SELECT = 'dataset.select_columns(["query", "docs", "labels"])'
#: Beyond this whole numbers that are all different are taken for identifiers.
LARGEST_WEIGHT = 1000


class ListBatch(NamedTuple):
    """A checked batch: every query has at least one document and one finite label for each."""

    pairs: list[tuple[Any, Any]]
    sizes: list[int]
    labels: Tensor  #: flat, one for each pair
    weights: Tensor | None  #: one for each query


def check_batch(inputs: Sequence[Sequence[Any]], labels: Sequence[Tensor] | None, loss: str) -> ListBatch:
    """Check what a loss is called with.

    Args:
        inputs: (queries, documents of each query) or (queries, documents, one weight a query).
        labels: For each query one label a document: tensors or lists of numbers.
        loss: Name of the loss, for messages.

    Raises:
        ValueError: names the argument, the query and the document, and says what to do.
    """
    if len(inputs) not in (2, 3):
        raise ValueError(
            f"{loss} takes two columns, query and list of documents, or a third with one weight a query, besides the "
            f"labels; got {len(inputs)} columns. Select them: {SELECT}."
        )
    queries, docs_lists = inputs[0], inputs[1]
    if len(queries) != len(docs_lists) or len(queries) == 0:
        raise ValueError(f"{loss} got {len(queries)} queries and {len(docs_lists)} lists of documents.")
    for index, (query, docs) in enumerate(zip(queries, docs_lists)):
        _check_texts(query, docs, index)
    sizes = [len(docs) for docs in docs_lists]
    flat = _flat_labels(labels, sizes, loss)
    pairs = [(query, doc) for query, docs in zip(queries, docs_lists) for doc in docs]
    return ListBatch(pairs, sizes, flat, _query_weights(inputs[2], len(sizes)) if len(inputs) == 3 else None)


def _check_texts(query: Any, docs: Any, index: int) -> None:
    if not isinstance(docs, Sequence) or isinstance(docs, (str, bytes)):
        raise ValueError(
            f"documents of query {index} is {type(docs).__name__}, expected a list of documents. "
            f"Is the second column the list, and is there one row a query? To put columns in order: {SELECT}."
        )
    if len(docs) == 0:
        raise ValueError(f"documents of query {index} is an empty list. Drop queries without documents.")
    if fault := _text_fault(query):
        raise ValueError(f"query {index} is {fault}. Drop it, or fill it in.")
    for place, doc in enumerate(docs):
        if fault := _text_fault(doc):
            raise ValueError(f"documents of query {index}, document {place} is {fault}. Drop it and its label.")


def _text_fault(text: Any) -> str | None:
    """What is wrong with a query or document; inputs that are not text (images, dictionaries) are the model's matter."""
    if text is None:
        return "None"
    if isinstance(text, (bool, int, float)):
        return f"the number {text!r}, not text"
    return "empty text" if isinstance(text, str) and not text.strip() else None


def _flat_labels(labels: Any, sizes: list[int], loss: str) -> Tensor:
    if labels is None:
        raise ValueError(
            f'{loss} needs labels: a column named "labels" (or label, score, scores), one number a document.'
        )
    if isinstance(labels, Tensor):
        raise ValueError(
            f"labels is one tensor of shape {tuple(labels.shape)}; {loss} expects a list with one tensor a query, one "
            "label a document. A labels column of lists gives that, a column of single numbers does not."
        )
    if len(labels) != len(sizes):
        raise ValueError(f"labels has {len(labels)} entries for {len(sizes)} queries.")
    rows = [_label_row(row, size, index) for index, (row, size) in enumerate(zip(labels, sizes))]
    flat = torch.cat(rows)
    check_finite("labels", pad_lists(flat, sizes), length_mask(sizes, flat.device))
    return flat


def _label_row(row: Any, size: int, index: int) -> Tensor:
    try:
        row = torch.as_tensor(row)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"labels of query {index} is not a list of numbers: {row!r}") from error
    if row.ndim != 1 or len(row) != size:
        got = f"{len(row)} labels" if row.ndim == 1 else f"labels of shape {tuple(row.shape)}"
        raise ValueError(f"labels of query {index}: {got} for {size} documents; expected one a document.")
    return row if row.dtype == torch.float64 else row.float()


def _query_weights(weights: Any, queries: int) -> Tensor:
    taken = "The third column is taken for weights, one number a query"
    remedy = f"If it is something else, drop it: {SELECT}."
    try:
        weights = weights.cpu() if isinstance(weights, Tensor) else weights  # Apple's GPUs have no float64
        weights = torch.as_tensor(weights, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{taken}, and could not be read as such. {remedy}") from error
    if weights.shape != (queries,):
        raise ValueError(f"{taken}, and has shape {tuple(weights.shape)} for {queries} queries. {remedy}")
    bad = ~torch.isfinite(weights) | (weights < 0)
    if bad.any():
        index = int(bad.nonzero()[0])
        raise ValueError(
            f"weight of query {index}, in the third column, is {weights[index].item()}; weights must be finite and at "
            f"least 0. {remedy}"
        )
    return weights


def look_like_identifiers(weights: Tensor) -> bool:
    """Whether weights of several queries are large whole numbers, each another one."""
    large = (weights > LARGEST_WEIGHT) & (weights == weights.round())
    return len(weights) > 1 and bool(large.all()) and len(weights.unique()) == len(weights)
