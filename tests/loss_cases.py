"""The rows of the property matrix: every functional loss with its options, its reference, and what holds for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import reference
import torch
from torch import Tensor

from st_listwise import functional

WEIGHTS = [0.5, 3.0, 0.0, 1.0, 0.25, 2.0, 1.0, 1.0, 0.0, 0.7, 0.1, 0.2]


class Case(NamedTuple):
    name: str
    loss: Callable[..., Tensor]  #: (scores, labels, mask, reduction=...) → loss
    reference: Callable[[list[float], list[float]], float]
    input_order: bool = False  #: the order in which documents are given counts
    any_label: bool = True  #: labels may be negative


def case(name: str, input_order: bool = False, any_label: bool = True, **options: Any) -> Case:
    loss, slow = getattr(functional, name), getattr(reference, name)
    title = f"{name}({', '.join(f'{key}={value}' for key, value in options.items() if key != 'weights')})"
    fast = dict(options)
    if "weights" in options:
        title = f"{name}(own weights)"
        fast["weights"] = torch.tensor(options["weights"], dtype=torch.float64)
    return Case(title, partial(_call, loss, fast), partial(slow, **options), input_order, any_label)


def _call(
    loss: Callable[..., Tensor],
    options: dict[str, Any],
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    reduction: str = "none",
) -> Tensor:
    if "weights" in options:
        options = options | {"weights": options["weights"][: scores.shape[-1]]}
    return loss(scores, labels, mask, reduction=reduction, **options)


CASES = [
    case("list_mle"),
    case("list_mle", top_k=2),
    case("list_mle", ties="input", input_order=True),
    case("list_mle", ties="input", top_k=3, input_order=True),
    case("p_list_mle"),
    case("p_list_mle", weights=WEIGHTS),
    case("p_list_mle", ties="input", input_order=True),
    case("list_net"),
    case("list_net", label_temperature=0.3),
    case("attention_rank"),
    case("adr_mse"),
    case("adr_mse", alpha=2.5, discount="reciprocal"),
    case("adr_mse", discount="none", normalize=True),
    case("approx_ndcg", any_label=False),
    case("approx_ndcg", alpha=3.0, top_k=3, any_label=False),
    case("approx_ndcg", gain="linear", any_label=False),
    case("approx_mrr"),
    case("approx_mrr", alpha=4.0),
    case("rank_net"),
    case("rank_net", sigma=0.5, top_k=2, log_base="natural"),
    *(case("lambda_loss", weighting=name, any_label=False) for name in ("none", "ndcg1", "ndcg2", "lambdarank")),
    case("lambda_loss", any_label=False),
    case("lambda_loss", top_k=3, sigma=2.0, mu=3.0, gain="linear", any_label=False),
]
