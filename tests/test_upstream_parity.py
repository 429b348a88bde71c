"""Equal to sentence-transformers' losses of the same name wherever those are right, through the same model.

They are not compared where they differ on purpose: means over all documents or pairs of a batch (ADRMSELoss,
RankNetLoss, LambdaLoss), lists of one label, tied labels under ListMLE (an unstable sort), labels beyond the gain.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sentence_transformers.cross_encoder import losses as upstream
from tiny_models import tiny_bert
from torch import Tensor, nn

import st_listwise

QUERIES = ["what is a bear", "capital of france"]
DOCS = [["an animal", "a planet", "a very large animal"], ["paris is it", "rome", "berlin, far away", "x", "lyon"]]
DISTINCT = [torch.tensor([0.0, 1.0, 2.0]), torch.tensor([3.0, 0.5, 2.0, 1.0, 0.0])]
TIED = [torch.tensor([0, 1, 0]), torch.tensor([2, 0, 1, 1, 0])]


def discount(mask: Tensor) -> Tensor:
    return (1 / torch.log1p(mask.cumsum(-1))).masked_fill(~mask, 0)


#: name, arguments, labels, whether batches agree too
CASES: list[tuple[str, dict[str, Any], list[Tensor], bool]] = [
    ("ListNetLoss", {}, TIED, True),
    ("ListNetLoss", {"activation_fn": nn.Tanh()}, TIED, True),
    ("ListMLELoss", {"respect_input_order": False}, DISTINCT, True),
    ("ListMLELoss", {"respect_input_order": True}, TIED, True),
    ("PListMLELoss", {"respect_input_order": False}, DISTINCT, True),
    ("PListMLELoss", {"respect_input_order": True}, TIED, True),
    ("PListMLELoss", {"lambda_weight": None, "respect_input_order": True}, TIED, True),
    (
        "PListMLELoss",
        {"lambda_weight": upstream.PListMLELambdaWeight(discount), "respect_input_order": True},
        TIED,
        True,
    ),
    ("ADRMSELoss", {}, TIED, False),
    ("ADRMSELoss", {"alpha": 2.0}, DISTINCT, False),
    ("RankNetLoss", {}, TIED, False),
    ("RankNetLoss", {"k": 2, "sigma": 0.5, "reduction_log": "natural"}, TIED, False),
    ("LambdaLoss", {}, TIED, False),
    ("LambdaLoss", {"k": 2, "sigma": 2.0}, TIED, False),
    *(
        ("LambdaLoss", {"weighting_scheme": scheme, "k": k}, TIED, False)
        for k in (None, 1, 3)
        for scheme in (
            None,
            upstream.NoWeightingScheme(),
            upstream.NDCGLoss1Scheme(),
            upstream.NDCGLoss2Scheme(),
            upstream.LambdaRankScheme(),
            upstream.NDCGLoss2PPScheme(mu=3.0),
        )
    ),
]


def step(module: Any, name: str, options: dict[str, Any], labels: list[Tensor], lists: slice) -> tuple[Tensor, Tensor]:
    model = tiny_bert().double()
    loss = getattr(module, name)(model, mini_batch_size=-1, **options)
    value = loss([QUERIES[lists], DOCS[lists]], labels[lists])
    value.backward()
    return value.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize(("name", "options", "labels", "batches"), CASES)
def test_value_and_gradient_equal_upstream(
    name: str, options: dict[str, Any], labels: list[Tensor], batches: bool
) -> None:
    for lists in [slice(0, 1), slice(1, 2), *([slice(0, 2)] if batches else [])]:
        value, gradient = step(st_listwise, name, options, labels, lists)
        expected, expected_gradient = step(upstream, name, options, labels, lists)
        torch.testing.assert_close(value.double(), expected.double(), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-5)


class InverseDistance(nn.Module):
    """1 / |i - j|, with something else where i = j, a pair that never counts."""

    def __init__(self, diagonal: float) -> None:
        super().__init__()
        self.diagonal = diagonal

    def forward(self, gain: Tensor, discount: Tensor, labels: Tensor) -> Tensor:
        positions = torch.arange(gain.shape[-1])
        distance = (positions[:, None] - positions).abs()
        return torch.where(distance == 0, self.diagonal, 1 / distance)[None]


@pytest.mark.parametrize("diagonal", [float("inf"), float("nan"), -float("inf")])
@pytest.mark.parametrize("k", [None, 1])
def test_a_weighting_that_is_infinite_for_pairs_that_do_not_count_gave_nan(diagonal: float, k: int | None) -> None:
    for lists in (slice(0, 1), slice(1, 2)):
        options = {"weighting_scheme": InverseDistance(diagonal), "k": k}
        value, gradient = step(st_listwise, "LambdaLoss", options, TIED, lists)
        upstream_value, _ = step(upstream, "LambdaLoss", options, TIED, lists)  # its gradient is NaN
        options["weighting_scheme"] = InverseDistance(0.0)
        _, expected_gradient = step(upstream, "LambdaLoss", options, TIED, lists)
        torch.testing.assert_close(value.double(), upstream_value.double(), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["ListNetLoss", "ListMLELoss", "PListMLELoss", "ADRMSELoss", "RankNetLoss", "LambdaLoss"]
)
def test_positional_arguments_stand_where_upstream_has_them(name: str) -> None:
    def positional(loss: Callable[..., Any]) -> list[str]:
        parameters = inspect.signature(loss).parameters.values()
        return [part.name for part in parameters if part.kind == part.POSITIONAL_OR_KEYWORD]

    assert positional(getattr(st_listwise, name)) == positional(getattr(upstream, name))
