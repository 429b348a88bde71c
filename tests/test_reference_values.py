"""Literals worked out in float64 from the definitions, by explicit loops, apart from this code. Tolerance 1e-6."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from st_listwise import functional

S3, S4 = [1.5, 0.3, -1.0], [0.2, -1.0, 0.5, 2.0]
#: (loss, scores, labels, options, value, gradient or None)
VALUES: list[tuple[str, list[float], list[float], dict[str, Any], float, list[float] | None]] = [
    ("list_mle", [1.5, 0.3], [2, 1], {}, 0.263282, [-0.231475, 0.231475]),
    ("list_mle", [1000, 999], [1, 0], {}, 0.313262, [-0.268941, 0.268941]),
    ("list_mle", [-1000, -999], [1, 0], {}, 1.313262, [-0.731059, 0.731059]),
    ("list_mle", S4, [1, 0, 0, 0], {}, 2.163404, [-0.885067, 0.034617, 0.155144, 0.695306]),
    ("list_mle", S4, [1, 1, 0, 0], {}, 5.526807, None),
    ("list_mle", S3, [0, 1, 2], {}, 4.287739, [1.491445, -0.550786, -0.940659]),
    ("list_mle", S3, [2, 1, 0], {}, 0.565465, None),
    ("p_list_mle", [0, 0, 0], [2, 1, 0], {}, 0.997246, None),
    ("p_list_mle", S3, [2, 1, 0], {}, 0.303595, [-0.207810, 0.109763, 0.098047]),
    ("list_net", S3, [2, 1, 0], {}, 0.843208, [0.057679, -0.026989, -0.030690]),
    ("adr_mse", [1.5, 0.3], [2, 1], {}, 0.043693, [-0.067159, 0.067159]),
    ("adr_mse", [0.3, 1.5], [1, 0], {}, 0.481638, None),
    ("adr_mse", [0] * 10, list(range(10, 0, -1)), {}, 4.452151, None),
    ("approx_ndcg", S3, [2, 1, 0], {}, 0.140340, [-0.078522, 0.044611, 0.033911]),
    ("approx_ndcg", S3, [0, 1, 2], {}, 0.388479, None),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("width", [0, 1, 4])
@pytest.mark.parametrize(("name", "scores", "labels", "options", "value", "gradient"), VALUES)
def test_value_and_gradient_at_any_padding_width(
    name: str,
    scores: list[float],
    labels: list[float],
    options: Any,
    value: float,
    gradient: Any,
    width: int,
    dtype: Any,
) -> None:
    """A pad logit in the normaliser turned .2633 into .9759, 1.4671, 2.1627 at widths 3, 4, 6."""
    row = torch.tensor([scores + [0.0] * width], dtype=dtype, requires_grad=True)
    mask = torch.arange(len(scores) + width)[None] < len(scores)
    loss = getattr(functional, name)(row, torch.tensor([[*labels, *[7.0] * width]], dtype=dtype), mask, **options)
    loss.backward()
    assert loss.item() == pytest.approx(value, abs=1.1e-6)
    if gradient is not None:
        assert row.grad[0].tolist() == pytest.approx([*gradient, *[0.0] * width], abs=1.1e-6)


def test_a_short_list_beside_a_long_one() -> None:
    """Batch of A with six zero scores, labels 6..1: the mean, and half of A's own gradient."""
    scores = torch.tensor([[1.5, 0.3, 0, 0, 0, 0], [0.0] * 6], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[2.0, 1, 0, 0, 0, 0], [6.0, 5, 4, 3, 2, 1]])
    mask = torch.tensor([[True] * 2 + [False] * 4, [True] * 6])
    loss = functional.list_mle(scores, labels, mask)
    loss.backward()
    assert loss.item() == pytest.approx(3.421267, abs=1e-6)
    assert scores.grad[0, :2].tolist() == pytest.approx([-0.231475 / 2, 0.231475 / 2], abs=1e-6)
