"""The invariance checks that every loss of this package passes, for users' own losses.

Each check raises AssertionError with what differed. A list loss is a function of ``(scores, labels, mask)``, all
``(lists, docs)``, that returns ``(lists,)``: a function of :mod:`st_listwise.functional` with ``reduction="none"``, or
the ``list_loss`` method of a loss::

    from st_listwise import testing

    testing.check_list_loss(MyLoss(model).list_loss)
    testing.check_batch_invariance(MyLoss(model), [queries, docs], labels)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

ListLoss = Callable[[Tensor, Tensor, Tensor], Tensor]


def random_lists(
    lists: int = 6, docs: int = 7, *, grades: int = 3, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """Ragged lists to check a loss with.

    Args:
        lists: Number of lists. The first is full; the last holds one document, the one before it one label.
        docs: Documents of the longest list.
        grades: Labels are whole numbers from 0 to below this, ties included.
        seed: Of the random numbers.
        dtype: Of scores and labels.

    Returns:
        scores, labels and mask, ``(lists, docs)`` each.
    """
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(lists, docs, generator=generator, dtype=dtype)
    labels = torch.randint(grades, (lists, docs), generator=generator).to(dtype)
    sizes = torch.randint(2, docs + 1, (lists,), generator=generator)
    sizes[0], sizes[-1] = docs, 1
    labels[-2] = grades - 1
    return scores, labels, torch.arange(docs) < sizes[:, None]


def check_list_loss(loss: ListLoss, *, input_order: bool = False, shift: bool = True, seed: int = 0) -> None:
    """All checks on a list loss: padding, neighbours, order of documents, shift of scores, lists that cannot teach.

    Args:
        loss: The list loss.
        input_order: The order in which documents are given counts, so that it may not be changed.
        shift: The loss does not change when all scores of a list rise alike.
        seed: Of the random lists.
    """
    scores, labels, mask = random_lists(seed=seed)
    check_padding_invariance(loss, scores, labels, mask)
    check_neighbour_invariance(loss, scores, labels, mask)
    check_cannot_teach(loss)
    if not input_order:
        check_permutation_invariance(loss, scores, labels, mask, seed=seed)
    if shift:
        check_shift_invariance(loss, scores, labels, mask)


def check_padding_invariance(loss: ListLoss, scores: Tensor, labels: Tensor, mask: Tensor) -> None:
    """More padding, with anything in it, changes neither values nor gradients."""
    value, gradient = _run(loss, scores, labels, mask)
    wider = [torch.nn.functional.pad(part, (0, 3), value=fill) for part, fill in ((scores, 9.0), (labels, 99.0))]
    padded, padded_gradient = _run(loss, wider[0], wider[1], torch.nn.functional.pad(mask, (0, 3)))
    _same(padded, value, "the values change with the padding width")
    _same(padded_gradient[:, : scores.shape[1]], gradient, "the gradient changes with the padding width")
    _same(padded_gradient[:, scores.shape[1] :], torch.zeros_like(padded_gradient[:, -3:]), "padding has a gradient")


def check_neighbour_invariance(loss: ListLoss, scores: Tensor, labels: Tensor, mask: Tensor) -> None:
    """Every list of a batch has the value and gradient that it has alone, without padding."""
    value, gradient = _run(loss, scores, labels, mask)
    for row, size in enumerate(mask.sum(-1).tolist()):
        part = (slice(row, row + 1), slice(0, size))
        alone, alone_gradient = _run(loss, scores[part], labels[part], mask[part])
        _same(alone, value[row : row + 1], f"list {row} has another value alone than among others")
        _same(alone_gradient, gradient[part], f"list {row} has another gradient alone than among others")


def check_permutation_invariance(
    loss: ListLoss, scores: Tensor, labels: Tensor, mask: Tensor, *, seed: int = 0
) -> None:
    """Documents given in another order: the same value, and the gradient goes along."""
    value, gradient = _run(loss, scores, labels, mask)
    order = torch.argsort(torch.rand(scores.shape, generator=torch.Generator().manual_seed(seed)), dim=-1)
    moved, moved_gradient = _run(loss, *(part.gather(-1, order) for part in (scores, labels, mask)))
    _same(moved, value, "the value changes with the order of documents")
    _same(moved_gradient, gradient.gather(-1, order), "the gradient does not go along with the order of documents")


def check_shift_invariance(loss: ListLoss, scores: Tensor, labels: Tensor, mask: Tensor) -> None:
    """All scores of a list raised alike: the same value, and gradients that sum to zero."""
    value, gradient = _run(loss, scores, labels, mask)
    _same(_run(loss, scores + 5, labels, mask)[0], value, "the value changes when all scores rise alike")
    _same(gradient.sum(-1), torch.zeros_like(value), "the gradients of a list do not sum to zero")


def check_cannot_teach(loss: ListLoss) -> None:
    """One document, or no document: exactly 0, with a gradient of zeros rather than none."""
    for size in (1, 0):
        mask = torch.arange(3)[None] < size
        value, gradient = _run(loss, torch.tensor([[2.0, -1.0, 0.5]]), torch.tensor([[1.0, 0.0, 2.0]]), mask)
        _same(value, torch.zeros(1), f"a list of {size} documents does not give 0")
        _same(gradient, torch.zeros(1, 3), f"a list of {size} documents has a gradient")


def check_batch_invariance(
    loss: nn.Module, inputs: Sequence[Sequence[Any]], labels: Sequence[Tensor], *, tolerance: float = 1e-5
) -> None:
    """The loss of a batch is the mean of its lists' losses: the value, and the gradient of every parameter.

    Args:
        loss: A loss as ``CrossEncoderTrainer`` takes it. Dropout is switched off during the check.
        inputs: ``[queries, documents of each query]``.
        labels: For each query a tensor with one label a document.
        tolerance: Largest difference, relative to the largest entry of the whole gradient.
    """
    training = loss.training
    loss.eval()
    value, gradients = _step(loss, inputs, labels)
    singles = [
        _step(loss, [column[row : row + 1] for column in inputs], labels[row : row + 1]) for row in range(len(labels))
    ]
    loss.train(training)
    _same(value, torch.stack([single for single, _ in singles]).mean(), "batch and single lists differ", tolerance)
    if not gradients:
        raise AssertionError("no parameter gets a gradient from the batch")
    for row, (_, single) in enumerate(singles):
        if apart := sorted(gradients.keys() ^ single.keys()):
            raise AssertionError(
                f"{len(apart)} parameters, first {apart[0]}, get a gradient from the batch or list {row} alone only"
            )
    scale = max(float(gradient.abs().max()) for gradient in gradients.values())
    for name, gradient in gradients.items():
        mean = torch.stack([single[name] for _, single in singles]).mean(0)
        difference = float((gradient - mean).abs().max())
        if not difference <= tolerance * scale:  # of a gradient of NaN as well
            raise AssertionError(f"the gradient of {name} differs by {difference:.2e} between batch and single lists")


def _run(loss: ListLoss, scores: Tensor, labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    scores = scores.detach().clone().requires_grad_()
    value = loss(scores, labels, mask)
    if value.shape != scores.shape[:1]:
        raise AssertionError(f"expected one value a list, {tuple(scores.shape[:1])}, got {tuple(value.shape)}")
    if not value.requires_grad:
        raise AssertionError("the value is not connected to the scores")
    (gradient,) = torch.autograd.grad(value.sum(), scores)
    return value.detach(), gradient


def _step(
    loss: nn.Module, inputs: Sequence[Sequence[Any]], labels: Sequence[Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    loss.zero_grad()
    value = loss(inputs, labels)
    if isinstance(value, dict):  # the trainer adds the parts up
        value = sum(value.values())
    if value.requires_grad:
        value.backward()
    gradients = {name: part.grad.clone() for name, part in loss.named_parameters() if part.grad is not None}
    loss.zero_grad()
    return value.detach(), gradients


def _same(actual: Tensor, expected: Tensor, what: str, tolerance: float = 1e-9) -> None:
    difference = float((actual.double() - expected.double()).abs().max()) if actual.numel() else 0.0
    if not difference <= tolerance * max(1.0, float(expected.double().abs().max()) if expected.numel() else 0.0):
        raise AssertionError(f"{what}: {actual.tolist()} against {expected.tolist()}")
