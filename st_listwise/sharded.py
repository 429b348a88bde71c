"""Mini-batches through a model that FSDP2 shards: every pass is the model's own, and all processes make as many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from st_listwise.processes import agreed_count
from st_listwise.recompute import Features, Stage

Outputs = dict[str, Tensor]
#: Outputs that parameters have a part in; others, such as scores of initial rankings, may be infinite.
LEARNT = ("scores", "sentence_embedding")


def run_together(
    stage: Stage, batches: Sequence[Features], device: torch.device, *, recompute: bool = False
) -> list[Outputs]:
    """Run a stage on mini-batches. A process with fewer of them than another repeats its last one, at weight zero.

    Args:
        stage: A call of the whole model.
        batches: On the device, at least one.
        device: Of the model.
        recompute: See :func:`recomputed`.

    Returns:
        The outputs of each mini-batch.
    """

    def run(features: Features) -> Outputs:
        return recomputed(lambda _: stage(features), device) if recompute else stage(features)

    idle = agreed_count(len(batches), device) - len(batches)
    *own, last = [run(features) for features in batches]
    for _ in range(idle):
        again = run(batches[-1])
        last = {name: value + again[name].sum() * 0.0 if name in LEARNT else value for name, value in last.items()}
    return [*own, last]


def recomputed(
    function: Callable[[Sequence[Outputs]], Outputs], device: torch.device, inputs: Sequence[Outputs] = ()
) -> Outputs:
    """Run a function without keeping its graph. In the backward pass it is run forward and backward at once.

    Sharded parameters are whole only within such a pass, and their gradients are summed over processes at its end:
    gradients cannot be returned to the outer graph, as :mod:`st_listwise.recompute` does it.

    Args:
        function: Of ``inputs``, a call of the whole model. Dropout and autocast are replayed.
        device: Of the model: random numbers drawn there are replayed.
        inputs: Outputs of earlier calls, which get their gradients.
    """
    names: list[str] = []

    def run(_: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        given = iter(values)
        outputs = function([{name: next(given) for name in part} for part in inputs])
        names[:] = outputs
        # A feature that is handed through must not become an output itself: it would be bound to its own second pass.
        return tuple(value if name in LEARNT else value.clone() for name, value in outputs.items())

    # Without an input that wants a gradient there is no backward pass; its device is the one whose states are kept.
    anchor = torch.zeros((), device=device, requires_grad=True)
    values: Any = checkpoint(run, anchor, *(value for part in inputs for value in part.values()), use_reentrant=True)
    return dict(zip(names, values))
