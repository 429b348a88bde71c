"""What every list loss needs: padding, masks, checks, tie groups, reduction. Tensors in, tensors out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

#: Pairs of documents that pairwise losses hold at once, whatever the length of the lists.
PAIRS_AT_ONCE = 2**18

Reduction = Literal["none", "sum", "mean"]


def pad_lists(values: Tensor, lengths: Sequence[int], fill: float = 0.0) -> Tensor:
    """Lay a flat tensor of all documents out as one row a list.

    Args:
        values: ``(sum(lengths), …)``, the documents of the first list, then those of the second, ...
        lengths: Number of documents of each list.
        fill: What stands in the padding.

    Returns:
        ``(lists, max(lengths), …)``, differentiable in ``values``.

    Raises:
        ValueError: the lengths do not add up to the number of documents, or one is negative.

    >>> pad_lists(torch.tensor([3.0, 1.0, 2.0]), [1, 2])
    tensor([[3., 0.],
            [1., 2.]])
    """
    if sum(lengths) != len(values) or min(lengths, default=0) < 0:
        raise ValueError(f"lengths must be from 0 on and add up to {len(values)} documents, not to {sum(lengths)}.")
    mask = length_mask(lengths, device=values.device)
    padded = values.new_full((*mask.shape, *values.shape[1:]), fill)
    return padded.masked_scatter(mask.view(*mask.shape, *[1] * (values.ndim - 1)), values)


def length_mask(lengths: Sequence[int], device: torch.device | str | None = None) -> Tensor:
    """``(lists, max(lengths))`` bool, True for the documents of each list.

    >>> length_mask([1, 3])
    tensor([[ True, False, False],
            [ True,  True,  True]])
    """
    sizes = torch.tensor(lengths, device=device)
    return torch.arange(max(lengths, default=0), device=device) < sizes[:, None]


def unpad_lists(values: Tensor, mask: Tensor) -> list[Tensor]:
    """The inverse of :func:`pad_lists`: the real documents of each row, as a list of ``(docs,)`` tensors."""
    return list(values[mask].split(mask.sum(-1).tolist()))


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """ValueError unless ``value`` is one of ``choices``; the message quotes the value and lists them."""
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not known; choose one of {', '.join(map(repr, choices))}.")


def check_positive(name: str, value: float) -> None:
    """ValueError unless ``value`` is a finite number above zero."""
    if not (isinstance(value, (int, float)) and 0 < value < float("inf")):
        raise ValueError(f"{name}={value!r} must be a finite number above 0.")


def check_top_k(top_k: int | None, name: str = "top_k") -> None:
    """ValueError unless ``top_k``, which the user calls by ``name``, is None or a whole number of at least 1."""
    if top_k is not None and (not isinstance(top_k, int) or isinstance(top_k, bool) or top_k < 1):
        raise ValueError(f"{name}={top_k!r} must be a whole number of at least 1, or None for all documents.")


def check_finite(name: str, values: Tensor, mask: Tensor) -> None:
    """ValueError that names query and document of the first real value that is NaN or infinite."""
    bad = ~torch.isfinite(values) & mask
    if bad.any():
        query, document = bad.nonzero()[0].tolist()
        raise ValueError(
            f"{name} of query {query}, document {document} is {values[query, document].item()} "
            f"({int(bad.sum())} of {int(mask.sum())} are not finite). " + _REMEDY.get(name, "")
        )


_REMEDY = {
    "scores": "The model has diverged or overflowed: lower the learning rate, clip gradients, or use bf16 for fp16.",
    "labels": "Clean the labels, or drop that document.",
}


def as_lists(scores: Tensor, labels: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Check one batch of lists and make it safe to compute with.

    Args:
        scores: ``(lists, docs)`` model scores.
        labels: ``(lists, docs)`` relevance, larger is better.
        mask: ``(lists, docs)`` bool, True for real documents. None: all are.

    Returns:
        scores and labels in the same precision (float32, or float64 where scores are) with 0 in place of whatever
        stood in the padding, and the mask.

    Raises:
        ValueError: no tensors, shapes that differ, no lists, a mask that is not bool, a real score or label that is
            not finite.
    """
    for name, values in (("scores", scores), ("labels", labels)):
        if not isinstance(values, Tensor):
            raise ValueError(f"{name} is {type(values).__name__}, expected a (lists, docs) tensor.")
    scores = upcast(scores)
    mask = as_mask(scores, mask)
    if labels.shape != scores.shape:
        raise ValueError(f"labels have shape {tuple(labels.shape)}, scores {tuple(scores.shape)}; they must be equal.")
    labels = labels.to(scores)
    check_finite("scores", scores.detach(), mask)
    check_finite("labels", labels, mask)
    return torch.where(mask, scores, 0), torch.where(mask, labels, 0), mask


def upcast(scores: Tensor) -> Tensor:
    """Half precision (and whole numbers) to float32; float32 and float64 stay."""
    return scores if scores.dtype in (torch.float32, torch.float64) else scores.float()


def as_mask(values: Tensor, mask: Tensor | None) -> Tensor:
    """The mask, or all True, once the shapes are checked to be ``(lists, docs)`` with at least one of each."""
    if values.ndim != 2 or 0 in values.shape:
        raise ValueError(
            f"scores and labels must be (lists, docs) with at least one of each, got {tuple(values.shape)}."
        )
    if mask is None:
        return torch.ones_like(values, dtype=torch.bool)
    if mask.dtype != torch.bool or mask.shape != values.shape:
        raise ValueError(
            f"mask must be bool of shape {tuple(values.shape)}, got {mask.dtype} of shape {tuple(mask.shape)}."
        )
    return mask


def teaches(labels: Tensor, mask: Tensor) -> Tensor:
    """``(lists,)`` bool: the list has two documents of different labels, so that there is an order to learn."""
    highest = labels.masked_fill(~mask, -torch.inf).amax(-1)
    lowest = labels.masked_fill(~mask, torch.inf).amin(-1)
    return highest > lowest


def reduce_lists(per_list: Tensor, counts: Tensor, reduction: Reduction = "mean") -> Tensor:
    """The shared last step: lists that do not count become exact zeros that stay connected to the graph.

    Args:
        per_list: ``(lists,)`` finite values.
        counts: ``(lists,)`` bool, as from :func:`teaches`.
        reduction: "none" → ``(lists,)``, "sum", or "mean" over all lists, those that do not count included.
    """
    check_choice("reduction", reduction, ("none", "sum", "mean"))
    per_list = torch.where(counts, per_list, 0)
    return per_list if reduction == "none" else per_list.sum() if reduction == "sum" else per_list.mean()


def cut_padded(
    lengths: Sequence[int], most: int | None, count: int | None = None, each: int | None = None
) -> list[slice]:
    """Cut lengths, longest first, where padding is least; no part holds more than ``most``, but one always fits.

    Args:
        lengths: In descending order.
        most: Entries of a part with its padding: their number times the first, longest of them. None: no limit.
        count: Lengths in a part. None: no limit.
        each: What a part costs beside its entries, in entries: the sum of both is least. None: as few parts as can be.

    >>> cut_padded([9, 8, 5, 5, 4, 4], most=20, count=3)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]
    >>> cut_padded([9, 8, 2, 2], most=None, each=4)
    [slice(0, 2, None), slice(2, 4, None)]
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    total = len(sizes)
    each = int(sizes.max(initial=0)) * total + 1 if each is None else each  # more than any padding
    room = np.full(total, total) if most is None else np.maximum(most // np.maximum(sizes, 1), 1)
    least = np.zeros(total + 1, dtype=np.int64)  # cost of the lengths from each on, well cut
    stops = [0] * total  # and where their first part ends
    for start in range(total - 1, -1, -1):
        furthest = min(start + int(room[start]), start + (count or total), total)
        costs = least[start + 1 : furthest + 1] + sizes[start] * np.arange(1, furthest - start + 1)
        stops[start] = furthest - int(costs[::-1].argmin())
        least[start] = costs.min() + each
    starts = [0]
    while starts[-1] < total:
        starts.append(stops[starts[-1]])
    return [slice(start, stop) for start, stop in itertools.pairwise(starts)]


def row_chunks(values: Tensor) -> Iterator[slice]:
    """Slices over the documents of ``(lists, docs)``, so that pairs of a slice and all documents stay in the cache.

    >>> list(row_chunks(torch.zeros(2, 5)))
    [slice(0, 5, None)]
    """
    lists, docs = values.shape
    rows = max(PAIRS_AT_ONCE // (lists * docs), 1)
    for start in range(0, docs, rows):
        yield slice(start, min(start + rows, docs))


def masked_log_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Log-softmax over the real documents of each list; 0 in the padding, gradients included."""
    logits = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.log_softmax(logits, dim=-1).masked_fill(~mask, 0)


class SortedLabels(NamedTuple):
    """Documents from the best label to the worst, padding last, with their tie groups. All ``(lists, docs)``."""

    order: Tensor  #: position → index of the document
    mask: Tensor  #: position holds a real document
    first: Tensor  #: position → first position of its tie group
    last: Tensor  #: position → last position of its tie group


def sort_labels(labels: Tensor, mask: Tensor, tie_order: Tensor | None = None) -> SortedLabels:
    """Sort by label, best first; stable, so that ties keep the order in which documents are given.

    Args:
        labels: ``(lists, docs)`` finite in the real slots.
        mask: ``(lists, docs)`` bool.
        tie_order: ``(lists, docs)``, optional: documents of one label are ordered by it, smallest first.
    """
    keys = labels.masked_fill(~mask, -torch.inf)
    if tie_order is None:
        order = torch.sort(keys, dim=-1, descending=True, stable=True).indices
    else:
        order = torch.argsort(tie_order, dim=-1, stable=True)
        order = order.gather(-1, torch.sort(keys.gather(-1, order), dim=-1, descending=True, stable=True).indices)
    keys, mask = keys.gather(-1, order), mask.gather(-1, order)
    positions = torch.arange(labels.shape[-1], device=labels.device).expand_as(order)
    new_group = torch.ones_like(mask)
    new_group[:, 1:] = keys[:, 1:] != keys[:, :-1]
    first = torch.where(new_group, positions, 0).cummax(-1).values
    group_end = torch.ones_like(mask)
    group_end[:, :-1] = new_group[:, 1:]
    backwards = torch.where(group_end, positions, labels.shape[-1]).flip(-1)
    return SortedLabels(order, mask, first, backwards.cummin(-1).values.flip(-1))


def label_ranks(labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """Rank of each document by its label: 1 is best, tied documents share their average rank.

    Args:
        labels: ``(lists, docs)`` relevance, larger is better.
        mask: ``(lists, docs)`` bool, True for real documents. None: all are.

    Returns:
        ``(lists, docs)`` ranks, 0 in the padding.

    Raises:
        ValueError: wrong shapes, or a label that is not finite.

    >>> label_ranks(torch.tensor([[0.0, 2.0, 0.0, 1.0]]))
    tensor([[3.5000, 1.0000, 3.5000, 2.0000]])
    """
    labels = upcast(labels)
    mask = as_mask(labels, mask)
    check_finite("labels", labels, mask)
    by_label = sort_labels(labels, mask)
    average = (by_label.first + by_label.last).to(labels.dtype) / 2 + 1
    return torch.zeros_like(labels).scatter(-1, by_label.order, average).masked_fill(~mask, 0)
