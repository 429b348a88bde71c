r"""Losses on the Plackett-Luce model: a ranking is a sequence of choices, each by softmax from what is left.

One masked core, O(n log n) in the documents of a list: sort by label, then one reversed ``logcumsumexp`` gives the
normaliser of every choice. Padding is masked before it, so that it is never a document to choose from.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from st_listwise.functional.lists import (
    Reduction,
    as_lists,
    check_choice,
    check_positive,
    check_top_k,
    masked_log_softmax,
    reduce_lists,
    sort_labels,
    teaches,
)

Ties = Literal["breslow", "random", "input"]
TIES = ("breslow", "random", "input")


def list_mle(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    ties: Ties = "breslow",
    top_k: int | None = None,
    generator: torch.Generator | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""ListMLE: negative log-likelihood of the labels' ranking under Plackett-Luce (Xia et al., ICML 2008).

    .. math:: \ell(s, y) = \sum_{i=1}^{n} \Big[\log \sum_{j \in C_i} \exp s_{j} - s_{\pi(i)}\Big]

    where :math:`\pi` sorts the labels, best first, and :math:`C_i` is the choice set: what is left when the i-th
    document is chosen.

    Labels are a partial order, and ``ties`` says what is made of it:

    - "breslow": documents of one label share one choice set, that of the first of them (Breslow's treatment of ties
      in the Cox model), and the lowest label group, whose inner order nobody knows, adds nothing. No input order
      matters; one positive among negatives is exactly softmax cross-entropy.
    - "random": a fresh random order of tied documents at each call.
    - "input": tied documents are ranked in the order in which they are given.

    Args:
        scores: ``(lists, docs)`` model scores.
        labels: ``(lists, docs)`` relevance, larger is better.
        mask: ``(lists, docs)`` bool, True for real documents. None: all are.
        ties: "breslow", "random" or "input", see above.
        top_k: Count the first ``top_k`` choices only, a "breslow" group across the cut in proportion. None: all.
        generator: Source of randomness for ``ties="random"``, on the device of ``scores``. None: torch's global one.
        reduction: "none" → ``(lists,)``, "sum", or "mean" over lists.

    Returns:
        The loss; a list of one document or one label gives 0 (with ``ties="input"`` one label is an order as well).

    Raises:
        ValueError: wrong shapes, non-finite scores or labels, unknown ``ties`` or ``reduction``, ``top_k`` below 1.

    >>> scores = torch.tensor([[0.2, -1.0, 0.5, 2.0]])
    >>> round(list_mle(scores, torch.tensor([[1.0, 0.0, 0.0, 0.0]])).item(), 6)
    2.163404
    """
    check_top_k(top_k)
    scores, labels, mask = as_lists(scores, labels, mask)
    weights = torch.ones_like(scores)
    if top_k is not None:
        weights[:, top_k:] = 0
    return _plackett_luce(scores, labels, mask, weights, ties, generator, reduction)


def p_list_mle(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    weights: Tensor | None = None,
    ties: Ties = "breslow",
    generator: torch.Generator | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""p-ListMLE: ListMLE whose choices are weighted by position (Lan et al., UAI 2014).

    .. math:: \ell(s, y) = \sum_{i=1}^{n} w_i \Big[\log \sum_{j \in C_i} \exp s_{j} - s_{\pi(i)}\Big],
              \qquad w_i \propto 2^{n-i} - 1

    with weights that sum to 1 over the list. Under ``ties="breslow"`` tied documents share the mean of their weights.

    Args:
        scores: ``(lists, docs)`` model scores.
        labels: ``(lists, docs)`` relevance, larger is better.
        mask: ``(lists, docs)`` bool, True for real documents. None: all are.
        weights: ``(docs,)`` or ``(lists, docs)``, not negative: the weight of each position, best first. The first n
            of a list of n documents are scaled to the sum 1. None: the paper's, see :func:`p_list_mle_weights`.
        ties: As in :func:`list_mle`.
        generator: As in :func:`list_mle`.
        reduction: "none" → ``(lists,)``, "sum", or "mean" over lists.

    Returns:
        The loss; a list of one document, of one label, or whose weights are all 0, gives 0.

    Raises:
        ValueError: as :func:`list_mle`, and for weights of the wrong shape, negative or not finite.

    >>> round(p_list_mle(torch.tensor([[1.5, 0.3, -1.0]]), torch.tensor([[2.0, 1.0, 0.0]])).item(), 6)
    0.303595
    """
    scores, labels, mask = as_lists(scores, labels, mask)
    sizes = mask.sum(-1, keepdim=True)
    if weights is None:
        weights = p_list_mle_weights(sizes, mask.shape[-1], scores.dtype)
    else:
        weights = _checked_weights(weights, scores, mask)
    weights = weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
    return _plackett_luce(scores, labels, mask, weights, ties, generator, reduction)


def p_list_mle_weights(sizes: Tensor, width: int, dtype: torch.dtype = torch.float64) -> Tensor:
    r"""The paper's position weights :math:`2^{n-i} - 1`, i from 1, scaled to the sum 1: finite for every n.

    Args:
        sizes: ``(lists, 1)`` number of documents n of each list.
        width: Number of positions to return.
        dtype: Precision of the weights.

    Returns:
        ``(lists, width)`` weights, 0 from position n on (which the formula gives the n-th anyway).

    >>> p_list_mle_weights(torch.tensor([[3]]), 4).tolist()
    [[0.75, 0.25, 0.0, 0.0]]
    """
    ranks = torch.arange(1, width + 1, device=sizes.device, dtype=dtype)
    weights = (torch.exp2(-ranks) - torch.exp2(-sizes.to(dtype))).clamp_min(0)  # 2^-n times the paper's
    return weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(dtype).tiny)


def list_net(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    label_temperature: float = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""ListNet: cross-entropy between the top-one distributions of labels and scores (Cao et al., ICML 2007).

    .. math:: \ell(s, y) = -\sum_i \operatorname{softmax}(y / t)_i \log \operatorname{softmax}(s)_i

    The target is soft: with binary labels and t = 1 the positive of ten documents is given 23% of the probability, so
    once its score stands higher than that the loss pushes it *down*. A ``label_temperature`` below 1 sharpens it.

    Args:
        scores: ``(lists, docs)`` model scores.
        labels: ``(lists, docs)`` relevance, larger is better.
        mask: ``(lists, docs)`` bool, True for real documents. None: all are.
        label_temperature: t > 0. Below 1 sharpens the target towards the best documents.
        reduction: "none" → ``(lists,)``, "sum", or "mean" over lists.

    Returns:
        The loss; a list of one document or one label gives 0.

    Raises:
        ValueError: wrong shapes, non-finite scores or labels, ``label_temperature`` not above 0.

    >>> round(list_net(torch.tensor([[1.5, 0.3, -1.0]]), torch.tensor([[2.0, 1.0, 0.0]])).item(), 6)
    0.843208
    """
    check_positive("label_temperature", label_temperature)
    scores, labels, mask = as_lists(scores, labels, mask)
    target = masked_log_softmax(labels / label_temperature, mask).exp()
    return _cross_entropy(target, scores, labels, mask, reduction)


def attention_rank(
    scores: Tensor, labels: Tensor, mask: Tensor | None = None, *, reduction: Reduction = "mean"
) -> Tensor:
    r"""Attention rank loss of SetRank: cross-entropy with the attention that the labels deserve (Pang et al., 2020).

    .. math:: \ell(s, y) = -\sum_i a_i \log \operatorname{softmax}(s)_i, \qquad
              a_i = \frac{\phi(y_i)}{\sum_j \phi(y_j)}, \quad \phi(y) = e^y \text{ if } y > 0 \text{ else } 0

    After Ai et al. (SIGIR 2018, "Learning a Deep Listwise Context Model"). Unlike ListNet, documents of label 0
    receive no part of the target.

    Args:
        scores: ``(lists, docs)`` model scores.
        labels: ``(lists, docs)`` relevance, larger is better; 0 and below is not relevant.
        mask: ``(lists, docs)`` bool, True for real documents. None: all are.
        reduction: "none" → ``(lists,)``, "sum", or "mean" over lists.

    Returns:
        The loss; a list of one document, of one label, or without a label above 0, gives 0.

    Raises:
        ValueError: wrong shapes, non-finite scores or labels.

    >>> round(attention_rank(torch.tensor([[0.2, -1.0, 0.5, 2.0]]), torch.tensor([[1.0, 0.0, 0.0, 0.0]])).item(), 6)
    2.163404
    """
    scores, labels, mask = as_lists(scores, labels, mask)
    relevant = mask & (labels > 0)
    target = masked_log_softmax(labels, relevant).exp() * relevant
    return _cross_entropy(target, scores, labels, mask, reduction)


def _cross_entropy(target: Tensor, scores: Tensor, labels: Tensor, mask: Tensor, reduction: Reduction) -> Tensor:
    per_list = -(target * mask * masked_log_softmax(scores, mask)).sum(-1)
    return reduce_lists(per_list, teaches(labels, mask), reduction)


def _checked_weights(weights: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
    """Position weights as ``(lists, docs)`` in the scores' precision, 0 beyond each list's last position."""
    if weights.shape not in (mask.shape, mask.shape[-1:]):
        raise ValueError(
            f"weights have shape {tuple(weights.shape)}; expected (docs,) or (lists, docs) of {tuple(mask.shape)}."
        )
    inside = torch.arange(mask.shape[-1], device=mask.device) < mask.sum(-1, keepdim=True)
    weights = weights.to(scores).expand(mask.shape)
    bad = inside & ~(torch.isfinite(weights) & (weights >= 0))
    if bad.any():
        query, position = bad.nonzero()[0].tolist()
        value = weights[query, position].item()
        raise ValueError(f"weights of query {query}, position {position} is {value}; weights must be finite and >= 0.")
    return torch.where(inside, weights, 0)


def _plackett_luce(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor,
    weights: Tensor,
    ties: Ties,
    generator: torch.Generator | None,
    reduction: Reduction,
) -> Tensor:
    """Sum over choices of weight times (log of the choice set's mass - score), of checked lists."""
    check_choice("ties", ties, TIES)
    tie_order = torch.rand(scores.shape, generator=generator, device=scores.device) if ties == "random" else None
    by_label = sort_labels(labels, mask, tie_order)
    ordered = scores.gather(-1, by_label.order)
    # Padding must weigh nothing in the normaliser, and -inf would turn its gradient into NaN: the least number it is.
    nothing = torch.finfo(ordered.dtype).min
    ordered = ordered - ordered.detach().masked_fill(~by_label.mask, nothing).amax(-1, keepdim=True)
    log_mass = ordered.masked_fill(~by_label.mask, nothing).flip(-1).logcumsumexp(-1).flip(-1)
    counts = mask.sum(-1) > 1 if ties == "input" else teaches(labels, mask)
    if ties == "breslow":
        log_mass = log_mass.gather(-1, by_label.first)
        weights = _share_in_groups(weights, by_label.first, by_label.last)
        lowest = by_label.last >= mask.sum(-1, keepdim=True) - 1
        weights = weights.masked_fill(lowest, 0)
    surprise = torch.where(by_label.mask, log_mass - ordered, 0)
    return reduce_lists((weights.to(surprise) * surprise).sum(-1), counts, reduction)


def _share_in_groups(weights: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Every position's weight becomes the mean of its tie group's."""
    total = torch.zeros_like(weights).scatter_add(-1, first, weights).gather(-1, first)
    return total / (last - first + 1)
