"""Mini-batches whose activations are not kept: computed again in the backward pass, without what teaches nothing.

Pairs whose outputs have a gradient of exactly zero need no second pass, and get none. Each mini-batch is one node of
autograd's graph, behind which lies one node for all parameters. Gradients of parameters are summed as they arise, so
that there is one set of them at a time, and come out of the latter node: distributed training sees each of them once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

Features = dict[str, Any]
#: A part of a model that sees each pair alone: features of a mini-batch → tensors with one row a pair.
Stage = Callable[[Features], dict[str, Tensor]]

#: Share of the free memory that ``recompute="auto"`` fills with activations.
SHARE = 0.5
CGROUP = Path("/sys/fs/cgroup")


def run_mini_batches(
    stage: Stage,
    batches: Sequence[Features],
    parameters: Sequence[Tensor],
    free_memory: float = 0.0,
    keep_last: bool = False,
) -> list[dict[str, Tensor]]:
    """Run a stage on mini-batches, keeping graphs of the last ones only, as many as fit.

    Args:
        stage: What is run. It may draw random numbers on the CPU and on the model's device; they are replayed.
        batches: On the device, longest pairs first.
        parameters: All of the model: a mini-batch may use some that another one does not.
        free_memory: Bytes that activations may take, 0: none are kept.
        keep_last: Keep the graph of the last one whatever it takes: the backward pass needs it first.

    Returns:
        The outputs of each mini-batch.
    """
    if not batches:
        return []
    device = parameters[0].device
    first, live, used, activations = _run_first(stage, batches[0], parameters)
    per_token = activations / _tokens(batches[0])
    kept = len(batches) - keep_last
    while kept > 0 and (free_memory := free_memory - per_token * _tokens(batches[kept - 1])) >= 0:
        kept -= 1
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if kept == 0 or not trained:
        return [live, *(stage(features) for features in batches[1:])]
    del live  # and with it the graph
    autocast = _autocast_states(device)
    with torch.no_grad():
        parts = [first, *(_run(stage, features, device) for features in batches[1:kept])]
    parts += [_run(stage, features, device, keep=True) for features in batches[kept:]]
    sums = _Sums(trained, used)
    behind = _Parameters.apply(sums, *sums.joined)
    return [dict(zip(part.outputs, _Recomputed.apply(stage, part, autocast, sums, behind))) for part in parts]


def free_memory(device: torch.device, parameters: Sequence[Tensor]) -> float:
    """Bytes that activations may fill for ``recompute="auto"``: half of what is free beside the gradients.

    On a CPU that is the memory available to this process, within its control group, shared with the other processes
    of the machine; on CUDA what the driver and torch's cache have free. 0 on other devices.
    """
    gradients = sum(parameter.nbytes for parameter in parameters if parameter.requires_grad)
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free = torch.cuda.mem_get_info(device)[0] + cached
    elif device.type == "cpu":
        free = min(psutil.virtual_memory().available, _control_group_memory())
        free = free // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    else:
        return 0.0
    return max(0.0, SHARE * (free - gradients))


@contextmanager
def count_saved(saved: dict[int, int]) -> Iterator[None]:
    """Note the bytes of each storage that graphs keep from here on, by its address; those that stand there stay."""

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved.setdefault(storage.data_ptr(), storage.nbytes())
        return tensor.detach()  # a node that keeps its own output would keep itself

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        yield


def take_rows(features: Features, rows: Tensor) -> Features:
    """The features of some pairs, without the padding columns that all of them share, on the padded side only.

    Whole numbers stand for tokens, one column each; other numbers, such as scores of initial rankings, do not.
    """
    mask = features["attention_mask"]
    used = mask[rows].any(0).int()
    left_padded = bool((mask[:, 0] == 0).any())
    columns = slice(int(used.argmax()), None) if left_padded else slice(len(used) - int(used.flip(0).argmax()))
    taken = {}
    for name, value in features.items():
        if isinstance(value, Tensor):
            value = value[rows]
            by_token = value.shape[1:2] == mask.shape[1:] and not value.is_floating_point()
            value = value[:, columns] if by_token else value
        taken[name] = value
    return taken


def can_take_rows(features: Features, pairs: int) -> bool:
    """Whether every tensor has a row for each pair, and there is a mask that tells padding."""
    mask = features.get("attention_mask")
    tensors = [value for value in features.values() if isinstance(value, Tensor)]
    return isinstance(mask, Tensor) and mask.ndim == 2 and all(value.shape[:1] == (pairs,) for value in tensors)


class _Sums:
    """Gradients of parameters, summed in place over all parts: one set of them is in memory at a time.

    Args:
        parameters: Those that want a gradient.
        used: Addresses of those that the first mini-batch uses. Others may be used by later ones, or by none.
    """

    def __init__(self, parameters: Sequence[Tensor], used: set[int]) -> None:
        self.parameters = parameters
        self.used = used
        # Those that autograd sees behind all parts. It would call hooks of one that no part uses, with None.
        self.joined = [own for own in parameters if id(own) in used or not _has_hooks(own)]
        self.totals: dict[int, Tensor] = {}

    def add(self, outputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Add what the gradients of some outputs give; hooks of the user are left for the sums."""
        hooks = [parameter._backward_hooks for parameter in self.parameters]
        handles = []
        try:
            for parameter in self.parameters:
                parameter._backward_hooks = None
                handles.append(parameter.register_hook(partial(self._take, id(parameter))))
            torch.autograd.grad(outputs, self.parameters, gradients, allow_unused=True)
        except RuntimeError as error:
            if "use_reentrant" not in str(error):
                raise
            raise ValueError(
                "recompute does not go with reentrant gradient checkpointing: give "
                'gradient_checkpointing_kwargs={"use_reentrant": False}, or leave gradient checkpointing out.'
            ) from error
        finally:
            for handle in handles:
                handle.remove()
            for parameter, own in zip(self.parameters, hooks):
                parameter._backward_hooks = own

    def _take(self, address: int, gradient: Tensor) -> Tensor:
        """Add one as soon as it is there, and hand on a zero that takes no memory."""
        if address in self.totals:
            self.totals[address].add_(gradient)
        else:
            self.totals[address] = gradient.clone()
        return torch.zeros((), dtype=gradient.dtype, device=gradient.device).expand(gradient.shape)

    def hand_over(self) -> list[Tensor | None]:
        """Sums for the joined ones, zero for those of them whose pairs teach nothing; others get theirs here."""
        totals, self.totals = self.totals, {}
        for own in self.joined:
            if id(own) in self.used and id(own) not in totals:
                totals[id(own)] = torch.zeros_like(own)
        handed = [totals.pop(id(own), None) for own in self.joined]
        for own in self.parameters:
            if id(own) in totals:
                own.backward(totals[id(own)])
        return handed


class _Parameters(torch.autograd.Function):
    """All parameters as one scalar, the input of all parts; autograd comes back to it when it is through with them."""

    @staticmethod
    def forward(ctx: Any, sums: _Sums, *parameters: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.sums = sums
        return parameters[0].new_zeros(())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, _: Tensor | None) -> Any:
        return None, *ctx.sums.hand_over()


@dataclass
class _Part:
    """A mini-batch after its first pass."""

    features: Features
    outputs: dict[str, Tensor]
    states: list[Any]  #: of the random number generators, before the pass
    random: bool  #: whether it drew random numbers
    device: torch.device
    live: list[Tensor] | None  #: outputs with their graph, where that is kept

    def backward(self, stage: Stage, gradients: Sequence[Tensor | None], autocast: list[Any], sums: _Sums) -> None:
        """Add the gradients of the parameters, from those of the outputs: through the graph, or a second pass.

        The second pass is one of the rows that teach. If it draws random numbers it is run again with all of its rows,
        for each to meet its own.
        """
        teaches = _teaches(gradients)
        outputs, self.live = self.live, None
        if not teaches.any():
            return
        if outputs is None:
            features, gradients = self._rows_that_teach(teaches, gradients)
            with torch.enable_grad(), _replay(self.device, autocast, self.states):
                outputs = list(stage(features).values())
        known = [(out, own) for out, own in zip(outputs, gradients) if own is not None and out.requires_grad]
        del outputs
        sums.add([out for out, _ in known], [own for _, own in known])

    def _rows_that_teach(self, teaches: Tensor, gradients: Sequence[Tensor | None]) -> Any:
        if self.random or teaches.all() or not can_take_rows(self.features, len(teaches)):
            return self.features, gradients
        rows = teaches.nonzero().flatten().to(self.device)
        return take_rows(self.features, rows), [None if own is None else own[rows] for own in gradients]


class _Recomputed(torch.autograd.Function):
    """The outputs of a part, whose graph autograd does not see."""

    @staticmethod
    def forward(ctx: Any, stage: Stage, part: _Part, autocast: list[Any], sums: _Sums, behind: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.stage, ctx.part, ctx.autocast, ctx.sums = stage, part, autocast, sums
        # Not the tensors themselves: the part would keep its own node.
        return tuple(value.detach() for value in part.outputs.values())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        ctx.part.backward(ctx.stage, gradients, ctx.autocast, ctx.sums)
        return None, None, None, None, ctx.sums.parameters[0].new_zeros(())


def _teaches(gradients: Sequence[Tensor | None]) -> Tensor:
    """Rows with a gradient other than zero in any of the outputs, on the CPU."""
    rows = [
        (gradient.flatten(1) if gradient.ndim > 1 else gradient[:, None])
        for gradient in gradients
        if gradient is not None
    ]
    return torch.stack([(row != 0).any(1) for row in rows]).any(0).cpu() if rows else torch.zeros(0, dtype=torch.bool)


def _run(stage: Stage, features: Features, device: torch.device, keep: bool = False) -> _Part:
    """A first pass; with ``keep`` its graph lies in the part, where autograd does not see it."""
    states = _states(device)
    live = stage(features)
    outputs = {name: value.detach() for name, value in live.items()}
    drawn = any(not torch.equal(old, new) for old, new in zip(states, _states(device)))
    return _Part(features, outputs, states, drawn, device, list(live.values()) if keep else None)


def _has_hooks(parameter: Tensor) -> bool:
    return bool(parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None))


def _run_first(stage: Stage, features: Features, parameters: Sequence[Tensor]) -> tuple[_Part, Any, set[int], int]:
    """The first part, its outputs with their graph, which parameters are in that, and the bytes that it keeps."""
    saved = {parameter.untyped_storage().data_ptr(): 0 for parameter in parameters}
    live: dict[str, Tensor] = {}

    def watched(features: Features) -> dict[str, Tensor]:
        with count_saved(saved):
            live.update(stage(features))
        return live

    part = _run(watched, features, parameters[0].device)
    return part, live, {id(leaf) for leaf in _leaves(live.values())}, sum(saved.values())


def _leaves(outputs: Any) -> Iterator[Tensor]:
    """Tensors that want a gradient at the ends of the graph of some outputs."""
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
        following = {after for after, _ in node.next_functions if after is not None} - seen
        seen |= following
        waiting.extend(following)


def _tokens(features: Features) -> int:
    """Padded tokens, or pairs where there are none."""
    tensors = [value for value in features.values() if isinstance(value, Tensor)]
    ids = features.get("input_ids", tensors[0] if tensors else None)
    return ids.shape[0] * (ids.shape[1] if ids.ndim == 2 else 1) if isinstance(ids, Tensor) else 1


def _states(device: torch.device) -> list[Tensor]:
    own = [] if device.type == "cpu" else [getattr(torch, device.type).get_rng_state(device)]
    return [torch.get_rng_state(), *own]


def _set_states(device: torch.device, states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    for state in states[1:]:
        getattr(torch, device.type).set_rng_state(state, device)


def _autocast_states(device: torch.device) -> list[tuple[str, bool, torch.dtype]]:
    kinds = dict.fromkeys([device.type, "cpu"])
    return [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds]


@contextmanager
def _replay(
    device: torch.device, autocast: list[tuple[str, bool, torch.dtype]], states: list[Tensor]
) -> Iterator[None]:
    """Autocast and random numbers as they were in the forward pass; afterwards both go on from where they are now."""
    own = _states(device)
    try:
        with ExitStack() as stack:
            for kind, enabled, dtype in autocast:
                stack.enter_context(torch.autocast(kind, dtype, enabled))
            _set_states(device, states)
            yield
    finally:
        _set_states(device, own)


def _control_group_memory() -> float:
    """Bytes that the control group of this process leaves free, where it has a limit."""
    try:
        limit, used = ((CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return float("inf") if limit == "max" else float(limit) - float(used)
    except (OSError, ValueError):
        return float("inf")
