r"""Losses on ordered pairs of one list: a logistic loss for each pair, weighted by what swapping it would change."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import softplus

from st_listwise.functional.approx_rank import Gain, ideal_share
from st_listwise.functional.lists import (
    Reduction,
    as_lists,
    check_choice,
    check_positive,
    check_top_k,
    reduce_lists,
    row_chunks,
    teaches,
)

LogBase = Literal["binary", "natural"]
Weighting = Literal["none", "ndcg1", "ndcg2", "lambdarank", "ndcg2pp"]
LOG_BASES = ("binary", "natural")
WEIGHTINGS = ("none", "ndcg1", "ndcg2", "lambdarank", "ndcg2pp")
#: ``(gain, discount, labels) → weights``, each of one list in the model's order: ``(1, docs)`` → ``(1, docs, docs)``.
WeightingFunction = Callable[[Tensor, Tensor, Tensor], Tensor]


def rank_net(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    sigma: float = 1.0,
    top_k: int | None = None,
    log_base: LogBase = "binary",
    reduction: Reduction = "mean",
) -> Tensor:
    r"""RankNet: logistic loss of every pair of documents with different labels (Burges et al., ICML 2005).

    .. math:: \ell(s, y) = \frac{1}{|P|} \sum_{(i, j) \in P} \log_2 \big(1 + e^{-\sigma (s_i - s_j)}\big), \qquad
              P = \{(i, j) : y_i > y_j\}

    Args:
        scores: ``(lists, docs)`` model scores.
        labels: ``(lists, docs)`` relevance, larger is better.
        mask: ``(lists, docs)`` bool, True for real documents. None: all are.
        sigma: Scale of score differences, above 0.
        top_k: Keep the pairs of which at least one document is among the model's first k. None: all.
        log_base: "binary" or "natural" logarithm.
        reduction: "none" → ``(lists,)``, "sum", or "mean" over lists.

    Returns:
        The loss; a list of one document or one label gives 0.

    Raises:
        ValueError: wrong shapes, non-finite scores or labels, ``sigma`` not above 0, ``top_k`` below 1.

    >>> rank_net(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]])).item()
    1.0
    """
    return lambda_loss(
        scores, labels, mask, weighting="none", top_k=top_k, sigma=sigma, log_base=log_base, reduction=reduction
    )


def lambda_loss(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    weighting: Weighting | WeightingFunction = "ndcg2pp",
    top_k: int | None = None,
    sigma: float = 1.0,
    mu: float = 10.0,
    gain: Gain = "exponential",
    log_base: LogBase = "binary",
    eps: float = 1e-10,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""LambdaLoss: RankNet's pairs, weighted by their effect on nDCG (Wang et al., CIKM 2018).

    .. math:: \ell(s, y) = -\frac{1}{|P|} \sum_{(i, j) \in P} w_{ij} \log_2 \sigma\big(\sigma_0 (s_i - s_j)\big)

    With i and j positions in the model's order, :math:`G` the gain over the ideal DCG and :math:`D_i = \log_2(1 + i)`:

    - "none": :math:`w = 1`, which is RankNet
    - "ndcg1": :math:`w = G_i / D_i`; here P is all pairs of documents, i = j included
    - "ndcg2": :math:`w = |1 / D_{|i-j|} - 1 / D_{|i-j|+1}| \, |G_i - G_j|`
    - "lambdarank": :math:`w = |1 / D_i - 1 / D_j| \, |G_i - G_j|`
    - "ndcg2pp": :math:`\mu` times "ndcg2" plus "lambdarank"

    Documents of equal score stand in the worst order, lower labels first, so that no input order matters and a model
    that scores all documents alike is not thought to be right.

    Args:
        scores: ``(lists, docs)`` model scores.
        labels: ``(lists, docs)`` relevance, larger is better, not negative (any sign for ``weighting="none"``).
        mask: ``(lists, docs)`` bool, True for real documents. None: all are.
        weighting: A name from the list above, or a function of (gain, discount, labels), each ``(1, docs)`` for one
            list in the model's order, that returns weights which broadcast to ``(1, docs, docs)``; those of pairs
            that do not count may be anything.
        top_k: nDCG@k: the cut-off of the ideal DCG; pairs need one document among the model's first k. None: all.
        sigma: Scale of score differences, above 0.
        mu: Weight of "ndcg2" in "ndcg2pp".
        gain: "exponential": :math:`2^y - 1`, labels below 128; "linear": y.
        log_base: "binary" or "natural" logarithm.
        eps: Smallest ideal DCG to divide by.
        reduction: "none" → ``(lists,)``, "sum", or "mean" over lists.

    Returns:
        The loss; a list of one document or one label gives 0.

    Raises:
        ValueError: wrong shapes, non-finite scores or labels, labels out of the gain's range, ``sigma`` or ``mu`` not
            above 0, ``top_k`` below 1, unknown ``weighting``, ``gain`` or ``log_base``; weights of a function that
            do not broadcast, or are not finite for a pair that counts.

    >>> labels = torch.tensor([[2.0, 1.0, 0.0]])
    >>> good, bad = torch.tensor([[1.5, 0.3, -1.0]]), torch.tensor([[-1.0, 0.3, 1.5]])
    >>> bool(lambda_loss(good, labels) < lambda_loss(bad, labels))
    True
    """
    check_positive("sigma", sigma)
    check_positive("mu", mu)
    check_top_k(top_k)
    check_choice("log_base", log_base, LOG_BASES)
    if not callable(weighting):
        check_choice("weighting", weighting, WEIGHTINGS)
    scores, labels, mask = as_lists(scores, labels, mask)
    shares = torch.zeros_like(labels) if weighting == "none" else ideal_share(labels, mask, gain, top_k, eps)
    order = _model_order(scores.detach(), labels, mask)
    scores, labels, mask, shares = (part.gather(-1, order) for part in (scores, labels, mask, shares))
    weigh = _weigher(weighting, shares, labels, mask, mu, top_k)

    def pair_weights(rows: slice) -> tuple[Tensor, Tensor]:
        pairs = _kept_pairs(labels, mask, top_k, weighting == "ndcg1", rows).to(scores)
        return weigh(rows) * pairs, pairs.sum((-2, -1)).long()  # a sum of ones within one chunk is exact

    total, pairs = _LogisticSums.apply(sigma * scores, pair_weights)
    per_list = total / pairs.clamp_min(1)
    if log_base == "binary":
        per_list = per_list / math.log(2)
    return reduce_lists(per_list, teaches(labels, mask), reduction)


def _model_order(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Documents by score, best first; equal scores by label, worst first; padding last."""
    worst_first = labels.argsort(dim=-1, stable=True)
    keys = scores.masked_fill(~mask, -torch.inf).gather(-1, worst_first)
    return worst_first.gather(-1, keys.sort(dim=-1, descending=True, stable=True).indices)


class _LogisticSums(torch.autograd.Function):
    r"""Sums over pairs of :math:`w_{ij} \log(1 + e^{-(x_i - x_j)})` and their number, a few rows i at a time.

    Weights have no gradient, so that of the scores is known in the same pass over the pairs, and nothing else is kept.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, pair_weights: Callable[[slice], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        total, number, slope = x.new_zeros(len(x)), x.new_zeros(len(x), dtype=torch.long), torch.zeros_like(x)
        for rows in row_chunks(x):
            weights, pairs = pair_weights(rows)
            behind = x[:, None, :] - x[:, rows, None]  # x_j - x_i
            total += softplus(behind).mul_(weights).sum((-2, -1))
            number += pairs
            pull = behind.sigmoid_().mul_(weights)
            slope[:, rows] -= pull.sum(-1)
            slope += pull.sum(-2)
        ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(number)
        return total, number.to(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
        return grad[:, None] * ctx.saved_tensors[0], None


def _kept_pairs(labels: Tensor, mask: Tensor, top_k: int | None, all_pairs: bool, rows: slice) -> Tensor:
    """``(lists, rows, docs)`` bool: the pairs (better, worse) that count, documents in the model's order."""
    pairs = mask[:, rows, None] & mask[:, None, :]
    if not all_pairs:
        pairs &= labels[:, rows, None] > labels[:, None, :]
    if top_k is not None:
        inside = torch.arange(labels.shape[-1], device=labels.device) < top_k
        pairs &= inside[rows, None] | inside[None, :]
    return pairs


def _weigher(
    weighting: Weighting | WeightingFunction, gain: Tensor, labels: Tensor, mask: Tensor, mu: float, top_k: int | None
) -> Callable[[slice], Tensor]:
    """From some rows to weights that broadcast to ``(lists, rows, docs)``, documents in the model's order."""
    docs = gain.shape[-1]
    discount = torch.log2(torch.arange(2, docs + 2, device=gain.device).to(gain))
    if callable(weighting):
        dense = _custom_weights(weighting, gain, discount[None], labels, mask, top_k)
        return lambda rows: dense[:, rows]
    if weighting == "none":
        return lambda rows: gain.new_ones(())
    if weighting == "ndcg1":
        discounted = gain / discount
        return lambda rows: discounted[:, rows, None]
    inverse = 1 / discount
    positions = torch.arange(docs, device=gain.device)
    steps = torch.cat([inverse.new_zeros(1), inverse[:-1] - inverse[1:]])  # from |i - j| to the next position

    def change(rows: slice) -> Tensor:
        if weighting == "lambdarank":
            return (inverse[rows, None] - inverse).abs()
        ndcg2 = steps[(positions[rows, None] - positions).abs()]
        return ndcg2 if weighting == "ndcg2" else mu * ndcg2 + (inverse[rows, None] - inverse).abs()

    return lambda rows: change(rows) * (gain[:, rows, None] - gain[:, None, :]).abs()


def _custom_weights(
    function: WeightingFunction, gain: Tensor, discount: Tensor, labels: Tensor, mask: Tensor, top_k: int | None
) -> Tensor:
    """A user's weighting, called for one unpadded list at a time, so that it cannot see neighbours or padding."""
    docs = gain.shape[-1]
    weights = gain.new_zeros(*gain.shape, docs)
    for row, size in enumerate(mask.sum(-1).tolist()):
        if size:
            own = slice(row, row + 1), slice(size)
            value = torch.as_tensor(function(gain[own], discount[:, :size], labels[own])).to(gain)
            pairs = _kept_pairs(labels[own], mask[own], top_k, False, slice(size))
            weights[row, :size, :size] = _checked_weights(value, pairs, row)
    return weights


def _checked_weights(value: Tensor, pairs: Tensor, query: int) -> Tensor:
    """``(docs, docs)``, 0 for pairs that do not count: a weighting may well be infinite where i = j."""
    try:
        value = value.expand_as(pairs)
    except RuntimeError as error:
        raise ValueError(
            f"weighting gives weights of shape {tuple(value.shape)} for query {query}; they must broadcast to "
            f"{tuple(pairs.shape)}."
        ) from error
    bad = pairs & ~torch.isfinite(value)
    if bad.any():
        _, better, worse = bad.nonzero()[0].tolist()
        raise ValueError(
            f"weighting gives {value[0, better, worse].item()} for query {query}, positions {better + 1} and "
            f"{worse + 1} of the model's order, of which the first has the larger label: such weights must be finite."
        )
    return torch.where(pairs, value, 0)[0]
