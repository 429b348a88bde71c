"""The public checks find the faults that they are named after: each is shown a loss with that fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tiny_models import tiny_bert
from torch import Tensor

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


def test_a_loss_in_input_order_passes_when_it_says_so() -> None:
    testing.check_list_loss(input_order, input_order=True)


class MeanOverDocuments(st_listwise.ListwiseLoss):
    """ADR-MSE as it was: averaged over all documents of the batch."""

    def list_loss(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        sizes = mask.sum(-1)
        return functional.adr_mse(scores, labels, mask, reduction="none") * sizes / sizes.double().mean()


def test_a_loss_that_averages_over_the_batch_is_found() -> None:
    with pytest.raises(AssertionError, match="batch and single lists"):
        testing.check_batch_invariance(MeanOverDocuments(tiny_bert()), [QUERIES, DOCS], LABELS)


def test_a_sound_loss_passes_and_stays_in_its_mode() -> None:
    loss = st_listwise.ADRMSELoss(tiny_bert(dropout=0.2)).train()
    testing.check_batch_invariance(loss, [QUERIES, DOCS], LABELS)
    assert loss.training
    assert all(parameter.grad is None for parameter in loss.parameters())
