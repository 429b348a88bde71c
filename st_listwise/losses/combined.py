"""Several losses on the scores of one forward pass."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import Tensor, nn

from st_listwise.losses.base import ListwiseLoss


class CombinedLoss(ListwiseLoss):
    r"""Weighted sum of losses, each pair scored once for all of them.

    .. math:: \ell(s, y) = \sum_k w_k \, \ell_k(s, y)

    Args:
        losses: Name → (loss, weight). All losses share one model; their own mini-batch options are not used, those of
            the combination are. Their ``activation_fn`` applies to their part alone.
        mini_batch_size: See :class:`~st_listwise.losses.ListwiseLoss`; likewise ``mini_batch_tokens``, ``recompute``,
            ``share_prefix``.

    Raises:
        ValueError: there are no losses, one comes without its weight, is not of this package or has another model, a
            weight is no finite number from 0 on, or a name is empty, has a dot, or is one that PyTorch keeps for
            itself, such as "type".

    Inputs:
        Those of each loss.

    Recommendations:
        - Losses differ in scale (``ADRMSELoss`` grows with the square of the list): look at the logged components
          before you choose weights.

    Relations:
        - The trainer logs each component, weighted, under its name.

    Example:
        ::

            loss = CombinedLoss({"rank": (LambdaLoss(model), 1.0), "teacher": (ADRMSELoss(model), 0.1)})
    """

    def __init__(
        self,
        losses: Mapping[str, tuple[ListwiseLoss, float]],
        mini_batch_size: int | None = None,
        *,
        mini_batch_tokens: int | None = None,
        recompute: bool | Literal["auto"] = False,
        share_prefix: bool = False,
    ) -> None:
        if not isinstance(losses, Mapping) or not losses:
            raise ValueError("CombinedLoss needs a dictionary of at least one loss: {'name': (loss, weight)}.")
        for name, part in losses.items():
            _check_name(name)
            _check_part(name, part)
        model = next(iter(losses.values()))[0].model
        for name, (loss, _) in losses.items():
            if loss.model is not model:
                raise ValueError(f"CombinedLoss: {name!r} has another model than the losses before it.")
        super().__init__(
            model,
            mini_batch_size=mini_batch_size,
            mini_batch_tokens=mini_batch_tokens,
            recompute=recompute,
            share_prefix=share_prefix,
        )
        self.losses: Any = nn.ModuleDict({name: loss for name, (loss, _) in losses.items()})
        self.weights = {name: float(weight) for name, (_, weight) in losses.items()}

    def list_loss(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        parts = [
            weight * self.losses[name].list_loss(self.losses[name].activation_fn(scores), labels, mask)
            for name, weight in self.weights.items()
        ]
        return sum(parts[1:], start=parts[0])

    def _forward(  # type: ignore[override]  # a dictionary, whose entries the trainer logs and adds up
        self, inputs: Sequence[Sequence[Any]], labels: Sequence[Tensor] | None, prompt: str | None, task: str | None
    ) -> dict[str, Tensor]:
        batch, scores = self.score(inputs, labels, prompt, task)
        return {name: weight * self.losses[name].mean_loss(batch, scores) for name, weight in self.weights.items()}

    def get_config_dict(self) -> dict[str, Any]:
        """Name, weight and configuration of each loss, and the options of the mini-batches."""
        config = {name: value for name, value in super().get_config_dict().items() if name != "activation_fn"}
        parts = {
            name: {"loss": type(loss).__name__, "weight": self.weights[name], **loss.get_config_dict()}
            for name, loss in self.losses.items()
        }
        return {"losses": parts, **config}

    @property
    def citation(self) -> str:
        return "\n".join(dict.fromkeys(loss.citation.strip() for loss in self.losses.values()))


def _check_part(name: str, part: Any) -> None:
    if not (isinstance(part, (tuple, list)) and len(part) == 2):
        raise ValueError(
            f"CombinedLoss: {name!r} is {type(part).__name__}, expected (loss, weight), such as "
            "(ListMLELoss(model), 1.0)."
        )
    loss, weight = part
    if not isinstance(loss, ListwiseLoss):
        raise ValueError(f"CombinedLoss: {name!r} is {type(loss).__name__}, not a loss of st_listwise.")
    if not (isinstance(weight, (int, float)) and 0 <= weight < math.inf):
        raise ValueError(f"CombinedLoss: the weight of {name!r} is {weight!r}, not a finite number from 0 on.")


def _check_name(name: object) -> None:
    """A loss is a module of that name, and PyTorch's modules have methods and paths."""
    if not isinstance(name, str) or not name or "." in name or hasattr(nn.ModuleDict(), name):
        raise ValueError(
            f"CombinedLoss: {name!r} cannot be the name of a loss. A name is a text of at least one character, without "
            "a dot, and not one that PyTorch's modules have for themselves, such as 'type' or 'train'; take 'type_loss'."
        )
