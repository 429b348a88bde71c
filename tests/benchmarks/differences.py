"""Where our losses differ from sentence-transformers' of the same name, in numbers. Chosen scores, no network.

python tests/benchmarks/differences.py
"""

from __future__ import annotations

from typing import Any

import torch
from sentence_transformers.cross_encoder import losses as upstream
from torch import Tensor, nn

import st_listwise


class ChosenScores(nn.Module):
    """Stands for a CrossEncoder: document number i has score i of a parameter."""

    num_labels = 1
    device = torch.device("cpu")

    def __init__(self, scores: list[float]) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.tensor(scores))

    def preprocess(self, pairs: list[Any], **options: Any) -> dict[str, Tensor]:
        return {"index": torch.tensor([int(document) for _, document in pairs])}

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"scores": self.scores[features["index"]]}


def run(module: Any, name: str, labels: list[list[float]], scores: list[float], **options: Any) -> tuple[Tensor, Any]:
    """Value of the loss, and the gradient on all scores (None if there is no path to them)."""
    model = ChosenScores(scores)
    numbers = iter(range(len(scores)))
    docs = [[str(next(numbers)) for _ in row] for row in labels]
    loss = getattr(module, name)(model, **options)
    value = loss([["q"] * len(labels), docs], [torch.tensor(row) for row in labels])
    value.backward()
    return value.detach(), model.scores.grad


def kept_gradient(module: Any, name: str) -> float:
    """Share of a two-document list's gradient that is left beside a list of 100, against the mean of both."""
    short, long = [1.0, 0.0], [float(100 - i) for i in range(100)]
    alone = run(module, name, [short], [0.0, 1.0])[1].norm() / 2
    together = run(module, name, [short, long], [0.0, 1.0] + [0.0] * 100)[1][:2].norm()
    return float(together / alone)


def main() -> None:
    print("Share of its gradient that a list of 2 keeps beside a list of 100")
    for name in ("ADRMSELoss", "RankNetLoss", "LambdaLoss"):
        print(
            f"  {name:14} upstream {kept_gradient(upstream, name):8.2%}   here {kept_gradient(st_listwise, name):8.2%}"
        )

    print("ListMLELoss(model) with its defaults, scores 1.5, 0.3, -1")
    for labels in ([0.0, 1.0, 2.0], [2.0, 1.0, 0.0]):
        values = [run(module, "ListMLELoss", [labels], [1.5, 0.3, -1.0])[0] for module in (upstream, st_listwise)]
        print(f"  labels {labels}: upstream {values[0]:.6f}   here {values[1]:.6f}")

    print("Gradient of a batch whose lists hold one document each (ListMLELoss)")
    for where, module in (("upstream", upstream), ("here", st_listwise)):
        print(f"  {where}: {run(module, 'ListMLELoss', [[1.0], [1.0]], [0.5, 0.2])[1]}")

    print("LambdaLoss with a label of 130, and with negative teacher scores -1, -3")
    for labels in ([130.0, 0.0], [-1.0, -3.0]):
        value, gradient = run(upstream, "LambdaLoss", [labels], [0.0, 0.5])
        print(f"  upstream {labels}: value {value:.4f}, gradient {gradient.tolist()}")
        try:
            run(st_listwise, "LambdaLoss", [labels], [0.0, 0.5])
        except ValueError as error:
            print(f"  here     {labels}: ValueError: {error}")


if __name__ == "__main__":
    main()
