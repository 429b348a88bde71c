"""The public checks find the faults that they are named after: each is shown a loss with that fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tiny_models import tiny_bert
from torch import Tensor, nn

import st_listwise
from st_listwise import functional, testing

QUERIES = ["bear", "capital of france"]
DOCS = [["an animal", "a planet"], ["paris", "rome", "berlin", "x"]]
LABELS = [torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0, 0.0, 2.0])]


def pad_in_the_normaliser(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    return -(torch.softmax(labels * mask, -1) * torch.log_softmax(scores * mask, -1)).sum(-1)


def mean_over_the_batch(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    return functional.rank_net(scores, labels, mask, reduction="none") * len(scores)


def detached_zero(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    if mask.sum() <= 1:
        return torch.zeros(len(scores))
    return functional.list_mle(scores, labels, mask, reduction="none")


def input_order(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    return functional.list_mle(scores, labels, mask, ties="input", reduction="none")


def scale_of_scores(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    return functional.list_mle(scores, labels, mask, reduction="none") + 0.01 * (scores * mask).square().sum(-1)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (pad_in_the_normaliser, "padding"),
        (mean_over_the_batch, "alone than among others"),
        (detached_zero, "not connected"),
        (input_order, "order of documents"),
        (scale_of_scores, "list of 1 documents|rise alike"),
    ],
)
def test_a_faulty_list_loss_is_found(loss: Callable[..., Tensor], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        testing.check_list_loss(loss)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (lambda value, scores, mask: scores.shape[1] * value, "the gradient changes with the padding width"),
        (lambda value, scores, mask: (scores * ~mask).sum(-1), "padding has a gradient"),
        (lambda value, scores, mask: len(scores) * value, "another gradient alone than among others"),
        (lambda value, scores, mask: (scores * mask).sum(-1), "a list of 1 documents has a gradient"),
        (lambda value, scores, mask: (scores * mask * torch.arange(scores.shape[1])).sum(-1), "does not go along"),
        (lambda value, scores, mask: (scores * mask).sum(-1) * (mask.sum(-1) > 1), "do not sum to zero"),
    ],
)
def test_a_list_loss_of_the_right_value_and_a_wrong_gradient_is_found(
    more: Callable[..., Tensor], message: str
) -> None:
    def loss(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        value = functional.list_mle(scores, labels, mask, reduction="none")
        added = more(value, scores, mask)
        return value + (added - added.detach())

    with pytest.raises(AssertionError, match=message):
        testing.check_list_loss(loss)


def test_a_loss_in_input_order_passes_when_it_says_so() -> None:
    testing.check_list_loss(input_order, input_order=True)


class MeanOverDocuments(st_listwise.ListwiseLoss):
    """ADR-MSE as it was: averaged over all documents of the batch."""

    def list_loss(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        sizes = mask.sum(-1)
        return functional.adr_mse(scores, labels, mask, reduction="none") * sizes / sizes.double().mean()


class GradientOverTheBatch(st_listwise.ListMLELoss):
    """The right value, and a gradient that grows with the number of lists."""

    def list_loss(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        value = super().list_loss(scores, labels, mask)
        return value.detach() + len(scores) * (value - value.detach())


class RootOfZero(st_listwise.ListMLELoss):
    """The right value, and a gradient of NaN."""

    def list_loss(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        return super().list_loss(scores, labels, mask) + (scores - scores).square().sum(-1).sqrt()


class DetachedZero(st_listwise.ListMLELoss):
    """Lists that cannot teach leave all parameters without a gradient, unless there are others in the batch."""

    def list_loss(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        value = super().list_loss(scores, labels, mask)
        return value if (value > 0).any() else torch.zeros(len(scores), requires_grad=True)


class Constant(st_listwise.ListMLELoss):
    def list_loss(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        return torch.zeros(len(scores))


TIED = [torch.ones(2), torch.ones(4)]


@pytest.mark.parametrize(
    ("loss", "labels", "message"),
    [
        (MeanOverDocuments, LABELS, "batch and single lists differ"),
        (GradientOverTheBatch, LABELS, "the gradient of .* differs by .* between batch and single lists"),
        (RootOfZero, LABELS, "the gradient of .* differs by nan"),
        (DetachedZero, [LABELS[0], TIED[1]], r"\d+ parameters, .* from the batch or list 1 alone only"),
        (DetachedZero, TIED, "no parameter gets a gradient"),
        (Constant, LABELS, "no parameter gets a gradient"),
    ],
)
def test_a_faulty_loss_is_found(loss: Callable[..., nn.Module], labels: list[Tensor], message: str) -> None:
    """A gradient of NaN passed, and one that was not there was a KeyError."""
    with pytest.raises(AssertionError, match=message):
        testing.check_batch_invariance(loss(tiny_bert()), [QUERIES, DOCS], labels)


def test_a_sound_combination_passes_and_a_faulty_part_of_it_is_found() -> None:
    model = tiny_bert()
    sound, faulty = st_listwise.ListMLELoss(model), MeanOverDocuments(model)
    combined = st_listwise.CombinedLoss({"a": (sound, 1.0), "b": (st_listwise.ADRMSELoss(model), 0.5)})
    testing.check_batch_invariance(combined, [QUERIES, DOCS], LABELS)
    with pytest.raises(AssertionError, match="batch and single lists differ"):
        testing.check_batch_invariance(
            st_listwise.CombinedLoss({"a": (sound, 1.0), "b": (faulty, 0.5)}), [QUERIES, DOCS], LABELS
        )


def test_a_sound_loss_passes_and_stays_in_its_mode() -> None:
    loss = st_listwise.ADRMSELoss(tiny_bert(dropout=0.2)).train()
    testing.check_batch_invariance(loss, [QUERIES, DOCS], LABELS)
    assert loss.training
    assert all(parameter.grad is None for parameter in loss.parameters())
