r"""Losses on differentiable ranks: a document's rank is one plus the number of documents that beat it, softly.

One pairwise core, :func:`approx_ranks`. The difference inside it is *other minus own*: a document that scores higher
than the others must come out with a smaller rank. Turned round, a trained reranker sorts its lists backwards.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from st_listwise.functional.lists import (
    Reduction,
    as_lists,
    as_mask,
    check_choice,
    check_finite,
    check_positive,
    check_top_k,
    label_ranks,
    reduce_lists,
    row_chunks,
    teaches,
    upcast,
)

Gain = Literal["exponential", "linear"]
Discount = Literal["log2", "reciprocal", "none"]
GAINS = ("exponential", "linear")
DISCOUNTS = ("log2", "reciprocal", "none")


def approx_ranks(scores: Tensor, mask: Tensor | None = None, *, alpha: float = 1.0) -> Tensor:
    r"""Differentiable rank of every document by its score, 1 is best (Qin et al., Information Retrieval 2010).

    .. math:: \hat\pi_i = 1 + \sum_{j \neq i} \sigma\big(\alpha (s_j - s_i)\big)

    Args:
        scores: ``(lists, docs)`` model scores.
        mask: ``(lists, docs)`` bool, True for real documents. None: all are.
        alpha: Steepness of the sigmoid, above 0. Larger is closer to true ranks, with gradients that fade sooner.

    Returns:
        ``(lists, docs)`` ranks, 0 in the padding.

    Raises:
        ValueError: wrong shapes, non-finite scores, ``alpha`` not above 0.

    >>> approx_ranks(torch.tensor([[9.0, -9.0, 0.0]]), alpha=5.0)
    tensor([[1., 3., 2.]])
    """
    check_positive("alpha", alpha)
    scores = upcast(scores)
    mask = as_mask(scores, mask)
    check_finite("scores", scores.detach(), mask)
    return _approx_ranks(torch.where(mask, scores, 0), mask, alpha)


def adr_mse(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    alpha: float = 1.0,
    discount: Discount = "log2",
    normalize: bool = False,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""ADR-MSE: discounted squared error between approximate and true ranks (Schlatt et al., ECIR 2025).

    .. math:: \ell(s, y) = \frac{1}{n} \sum_i d(r_i) \, (r_i - \hat\pi_i)^2

    with :math:`r_i` the rank of document i by its label (ties share their average rank) and :math:`\hat\pi_i` that of
    :func:`approx_ranks`. The value grows like :math:`n^2`: with equal scores .2 at 2 documents, 11,540 at 1,000.
    ``normalize=True`` makes lists of all lengths weigh alike.

    Args:
        scores: ``(lists, docs)`` model scores.
        labels: ``(lists, docs)`` relevance, larger is better.
        mask: ``(lists, docs)`` bool, True for real documents. None: all are.
        alpha: Steepness of the rank approximation, above 0.
        discount: "log2": :math:`d(r) = 1 / \log_2(1 + r)`, the paper's; "reciprocal": :math:`1 / r`; "none": 1.
        normalize: Divide rank differences by n - 1, so that they lie within 0 and 1.
        reduction: "none" → ``(lists,)``, "sum", or "mean" over lists.

    Returns:
        The loss; a list of one document or one label gives 0.

    Raises:
        ValueError: wrong shapes, non-finite scores or labels, ``alpha`` not above 0, unknown ``discount``.

    >>> round(adr_mse(torch.tensor([[1.5, 0.3]]), torch.tensor([[2.0, 1.0]])).item(), 6)
    0.043693
    """
    check_positive("alpha", alpha)
    check_choice("discount", discount, DISCOUNTS)
    scores, labels, mask = as_lists(scores, labels, mask)
    ranks = label_ranks(labels, mask)
    sizes = mask.sum(-1).to(scores)
    error = ranks - _approx_ranks(scores, mask, alpha)
    if normalize:
        error = error / (sizes - 1).clamp_min(1)[:, None]
    per_list = (_discount(ranks, mask, discount) * error.square()).sum(-1) / sizes.clamp_min(1)
    return reduce_lists(per_list, teaches(labels, mask), reduction)


def approx_ndcg(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    alpha: float = 1.0,
    top_k: int | None = None,
    gain: Gain = "exponential",
    reduction: Reduction = "mean",
) -> Tensor:
    r"""ApproxNDCG: one minus nDCG at approximate ranks (Qin et al., 2010; Bruch et al., SIGIR 2019).

    .. math:: \ell(s, y) = 1 - \frac{1}{\mathrm{maxDCG}} \sum_i \frac{G(y_i)}{\log_2(1 + \hat\pi_i)}

    With ``top_k`` every term is multiplied by :math:`\sigma(\alpha (k + 1/2 - \hat\pi_i))`, a smooth form of "ranked
    among the first k", and maxDCG is that of the best k documents; for large alpha this is 1 - nDCG@k exactly.

    Args:
        scores: ``(lists, docs)`` model scores.
        labels: ``(lists, docs)`` relevance, larger is better, not negative.
        mask: ``(lists, docs)`` bool, True for real documents. None: all are.
        alpha: Steepness of the rank approximation, above 0.
        top_k: Cut-off of the metric. None: the whole list.
        gain: "exponential": :math:`G(y) = 2^y - 1`, labels below 128; "linear": :math:`G(y) = y`.
        reduction: "none" → ``(lists,)``, "sum", or "mean" over lists.

    Returns:
        The loss; a list of one document or one label gives 0.

    Raises:
        ValueError: wrong shapes, non-finite scores or labels, labels out of the gain's range, ``alpha`` not above 0,
            ``top_k`` below 1, unknown ``gain``.

    >>> round(approx_ndcg(torch.tensor([[1.5, 0.3, -1.0]]), torch.tensor([[2.0, 1.0, 0.0]])).item(), 6)
    0.14034
    """
    check_positive("alpha", alpha)
    check_top_k(top_k)
    scores, labels, mask = as_lists(scores, labels, mask)
    gains = ideal_share(labels, mask, gain, top_k)
    ranks = _approx_ranks(scores, mask, alpha)
    terms = gains / torch.log2(1 + ranks.masked_fill(~mask, 1))
    if top_k is not None:
        terms = terms * torch.sigmoid(alpha * (top_k + 0.5 - ranks))
    return reduce_lists(1 - terms.sum(-1), teaches(labels, mask), reduction)


def approx_mrr(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    alpha: float = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""ApproxMRR: one minus the reciprocal of the first relevant document's approximate rank (after Qin et al., 2010).

    .. math:: \ell(s, y) = 1 - \max_{i: y_i > 0} \frac{1}{\hat\pi_i}

    Args:
        scores: ``(lists, docs)`` model scores.
        labels: ``(lists, docs)`` relevance; a document is relevant when its label is above 0.
        mask: ``(lists, docs)`` bool, True for real documents. None: all are.
        alpha: Steepness of the rank approximation, above 0.
        reduction: "none" → ``(lists,)``, "sum", or "mean" over lists.

    Returns:
        The loss; a list of one document, of one label, or without a relevant document, gives 0.

    Raises:
        ValueError: wrong shapes, non-finite scores or labels, ``alpha`` not above 0.

    >>> round(approx_mrr(torch.tensor([[0.0, 0.0, 0.0]]), torch.tensor([[0.0, 1.0, 0.0]])).item(), 4)
    0.5
    """
    check_positive("alpha", alpha)
    scores, labels, mask = as_lists(scores, labels, mask)
    relevant = mask & (labels > 0)
    counts = teaches(labels, mask) & relevant.any(-1)
    ranks = torch.where(relevant, _approx_ranks(scores, mask, alpha), torch.inf)
    first = torch.where(counts, ranks.amin(-1), 1)
    return reduce_lists(1 - 1 / first, counts, reduction)


def ideal_share(labels: Tensor, mask: Tensor, gain: Gain, top_k: int | None = None, eps: float = 0.0) -> Tensor:
    """Each document's gain over the DCG of the ideal order, ``(lists, docs)``; 0 where no document has a gain.

    Args:
        labels: ``(lists, docs)`` finite.
        mask: ``(lists, docs)`` bool.
        gain: "exponential" or "linear".
        top_k: Cut-off of the ideal DCG. None: the whole list.
        eps: Smallest ideal DCG to divide by.

    Raises:
        ValueError: unknown gain; a negative label; with the exponential gain a label of 128 or more.
    """
    check_choice("gain", gain, GAINS)
    _check_gain_range(labels, mask, gain)
    # 2^y of a large label leaves float32; the share does not change when all gains are scaled by the largest.
    scale, gains = torch.ones_like(labels[:, :1]), labels
    if gain == "exponential":
        top = labels.amax(-1, keepdim=True)
        scale = torch.exp2(-top)
        gains = torch.exp2(labels - top) * -torch.expm1(-math.log(2) * labels)  # as 2^y - 1 is 0 for a tiny label
    gains = gains.masked_fill(~mask, 0)
    ideal = gains.sort(dim=-1, descending=True).values[:, :top_k]
    positions = torch.arange(1, ideal.shape[-1] + 1, device=labels.device)
    max_dcg = (ideal / torch.log2(1 + positions.to(ideal))).sum(-1, keepdim=True)
    return gains / max_dcg.maximum(eps * scale).clamp_min(torch.finfo(gains.dtype).tiny)


def _check_gain_range(labels: Tensor, mask: Tensor, gain: Gain) -> None:
    bad = mask & ((labels < 0) | (labels >= 128) if gain == "exponential" else labels < 0)
    if bad.any():
        query, document = bad.nonzero()[0].tolist()
        limit = "0 <= label < 128" if gain == "exponential" else "label >= 0"
        raise ValueError(
            f"labels of query {query}, document {document} is {labels[query, document].item():g}, but gain={gain!r} "
            f"needs {limit}. Map labels to grades, shift each list's labels to start at 0"
            + (', or use gain="linear".' if gain == "exponential" else ".")
        )


def _approx_ranks(scores: Tensor, mask: Tensor, alpha: float) -> Tensor:
    """:func:`approx_ranks` of checked scores: finite everywhere, 0 in the padding."""
    ranks = _SigmoidSums.apply(alpha * scores, mask)
    return (ranks + 0.5).masked_fill(~mask, 0)  # the sums hold the document itself, at one half


class _SigmoidSums(torch.autograd.Function):
    r"""Sum over j of :math:`\sigma(x_j - x_i)`, in memory that grows with documents and not with pairs of them.

    As :math:`\sigma'` is even, the gradient of :math:`\sum_i g_i \sum_j \sigma(x_j - x_i)` on :math:`x_k` is
    :math:`\sum_j \sigma'(x_j - x_k) (g_j - g_k)`: one more pass over the pairs, nothing of the first one is kept.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(x, mask)
        sums, keys = torch.empty_like(x), x.masked_fill(~mask, -torch.inf)
        for rows in row_chunks(x):
            sums[:, rows] = _pair_sigmoids(keys, x[:, rows]).sum(-1)
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, mask = ctx.saved_tensors
        grad = grad.masked_fill(~mask, 0)
        ones = torch.ones_like(grad)
        result, keys = torch.empty_like(x), x.masked_fill(~mask, -torch.inf)
        with torch.autocast(x.device.type, enabled=False):  # inside it products would be of half precision
            for rows in row_chunks(x):
                slope = _pair_sigmoids(keys, x[:, rows])
                slope = slope.addcmul_(slope, slope, value=-1)  # of the sigmoid, 0 for padding
                pulled, total = (torch.matmul(slope, values[:, :, None])[..., 0] for values in (grad, ones))
                result[:, rows] = pulled - grad[:, rows] * total
        return result.masked_fill_(~mask, 0), None


def _pair_sigmoids(keys: Tensor, rows: Tensor) -> Tensor:
    """``(lists, rows, docs)``: by how much each key beats each row; 0 for keys of minus infinity, the padding."""
    return (keys[:, None, :] - rows[:, :, None]).sigmoid_()


def _discount(ranks: Tensor, mask: Tensor, discount: Discount) -> Tensor:
    """Weight of each true rank; 0 in the padding."""
    safe = ranks.masked_fill(~mask, 1)
    if discount == "log2":
        weights = 1 / torch.log2(1 + safe)
    else:
        weights = 1 / safe if discount == "reciprocal" else torch.ones_like(safe)
    return weights.masked_fill(~mask, 0)
