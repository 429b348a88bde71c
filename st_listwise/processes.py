"""Several processes: the wrappers in which a model may come, and what processes agree on before their first step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, cast
from weakref import WeakSet

import torch
import torch.distributed as dist
from sentence_transformers.cross_encoder import CrossEncoder
from torch import nn
from torch._dynamo import OptimizedModule  # what torch.compile makes of a module
from torch.distributed import fsdp
from torch.nn.parallel import DataParallel, DistributedDataParallel

#: How long a process waits for the others before the first step.
TIMEOUT = timedelta(minutes=5)
#: How long the first process stays after a fault, so that the others can read it: the store may live in it.
FAREWELL = timedelta(seconds=10)

_agreed: WeakSet[nn.Module] = WeakSet()  #: wrappers whose processes have agreed
Settings = Mapping[str, Any]
PARALLEL = (DistributedDataParallel, DataParallel)


def unwrap(model: nn.Module) -> CrossEncoder:
    """The model inside all wrappers, whose parameters and autograd nodes are the same."""
    while isinstance(model, (OptimizedModule, *PARALLEL)):
        model = uncompiled(model) if isinstance(model, OptimizedModule) else model.module
    return cast(CrossEncoder, model)


def passes(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """What forward passes go through: those of a step before the last one, and the last one.

    DistributedDataParallel takes the last one only: one forward and one all-reduce a step, however many mini-batches
    each process has, and nothing is recomputed through it. DataParallel would take lists apart, and takes none.
    """
    wrapper = uncompiled(model)
    if not isinstance(wrapper, PARALLEL):
        return model, model
    inner: nn.Module = wrapper.module
    if isinstance(model, OptimizedModule):  # accelerate wraps first, and compiles the wrapper
        inner = OptimizedModule(inner, model.dynamo_ctx)
    return inner, (model if isinstance(wrapper, DistributedDataParallel) else inner)


def uncompiled(model: nn.Module) -> nn.Module:
    """What ``torch.compile`` was given."""
    return cast(nn.Module, model._orig_mod) if isinstance(model, OptimizedModule) else model


def is_sharded(model: nn.Module) -> bool:
    """Whether FSDP2 (``fully_shard``) keeps a part of each parameter on each process."""
    kind = getattr(fsdp, "FSDPModule", ())  # as of PyTorch 2.6
    return isinstance(model, kind) or isinstance(unwrap(model), kind)


def check_wrapper(model: nn.Module) -> None:
    """Refuse engines that count or gather in every forward pass, or take one for each backward pass.

    Raises:
        ValueError: DeepSpeed or FSDP1, with what to use in their place.
    """
    model = uncompiled(model)
    deepspeed = any(base.__module__.partition(".")[0] == "deepspeed" for base in type(model).__mro__)
    if deepspeed or isinstance(model, fsdp.FullyShardedDataParallel):
        raise ValueError(
            f"The losses of st_listwise do not run in {'DeepSpeed' if deepspeed else 'FSDP1'} "
            f"({type(model).__name__}), as they score a batch in several forward passes before one backward pass. Use "
            "DistributedDataParallel (`accelerate launch --multi_gpu`), with recompute=True where memory is short, or "
            "FSDP2 (`accelerate launch --use_fsdp --fsdp_version 2`) for models that do not fit on one GPU."
        )


def agreed_count(count: int, device: torch.device) -> int:
    """The largest of all processes' counts."""
    largest = torch.tensor(count, device=device)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return int(largest)


def must_agree(model: nn.Module) -> bool:
    """Whether a model is wrapped for several processes that have not agreed yet."""
    several = isinstance(uncompiled(model), DistributedDataParallel) or is_sharded(model)
    return several and model not in _agreed and dist.get_world_size(_group(model)) > 1


def agree(model: nn.Module, own: Settings, known: Sequence[Settings]) -> None:
    """Compare settings with those of the first process, through the store by which the processes found each other.

    No collective takes part: a process that does something else meanwhile cannot be mistaken for one that agrees, and
    no GPU waits. Processes may be at different losses, as with several data sets: each must know the other's.

    Args:
        model: The wrapped model.
        own: Name → value, JSON-able, of the loss that this process is about to compute.
        known: The same of all losses on this model in this process.

    Raises:
        ValueError: on every process, with the settings that differ, or the process that did not come in time.
    """
    group = _group(model)
    ranks = dist.get_process_group_ranks(group)
    rank, others = dist.get_rank(group), range(1, len(ranks))
    store = dist.distributed_c10d._get_process_group_store(group)
    prefix = f"st_listwise/{store.add(f'st_listwise/{rank}', 1)}"  # how often this process has come here
    settings = [_flat(own), [_flat(loss) for loss in known]]
    if rank == 0:
        store.set(f"{prefix}/first", json.dumps(settings))
        if missing := _missing(store, [f"{prefix}/fault/{other}" for other in others], TIMEOUT):
            fault = _late(ranks[missing[0] + 1])
        else:
            faults = [store.get(f"{prefix}/fault/{other}").decode() for other in others]
            fault = next(filter(None, faults), "")
        store.set(f"{prefix}/verdict", fault)
        if fault:
            _missing(store, [f"{prefix}/read/{other}" for other in others], FAREWELL)
    elif _missing(store, [f"{prefix}/first"], TIMEOUT):
        fault = _late(ranks[0])
    else:
        first = json.loads(store.get(f"{prefix}/first"))
        store.set(f"{prefix}/fault/{rank}", _difference(first, settings, ranks[rank]))
        late = _missing(store, [f"{prefix}/verdict"], 2 * TIMEOUT)
        fault = _late(ranks[0]) if late else store.get(f"{prefix}/verdict").decode()
        store.set(f"{prefix}/read/{rank}", "")
    if fault:
        raise ValueError(fault)
    _agreed.add(model)


def _group(model: nn.Module) -> Any:
    wrapper = uncompiled(model)
    return wrapper.process_group if isinstance(wrapper, DistributedDataParallel) else dist.group.WORLD


def _missing(store: dist.Store, keys: list[str], patience: timedelta) -> list[int]:
    """Which of the keys were not set in time."""
    try:
        store.wait(keys, patience)
    except dist.DistStoreError:
        return [index for index, key in enumerate(keys) if not store.check([key])]
    return []


def _late(process: int) -> str:
    return (
        f"Process {process} did not come to its first step with a loss of st_listwise within {TIMEOUT}: start all "
        "processes with the same script and arguments, and look at that process's output."
    )


def _flat(settings: Settings, prefix: str = "") -> dict[str, str]:
    """One level of names, and values as text.

    >>> _flat({"alpha": 2.0, "losses": {"rank": {"weight": 1}}})
    {'alpha': '2.0', 'losses.rank.weight': '1'}
    """
    flat = {}
    for name, value in settings.items():
        nested = _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: str(value)}
        flat.update(nested)
    return flat


def _difference(first: Any, other: Any, process: int) -> str:
    """What two processes disagree on, or nothing."""
    (own_0, known_0), (own, known) = first, other
    if own not in known_0:
        own_0 = min(known_0, key=lambda loss: len(loss.items() ^ own.items()))  # of several losses the one meant
    elif own_0 not in known:
        own = min(known, key=lambda loss: len(loss.items() ^ own_0.items()))
    else:
        return ""
    names = [name for name in {**own_0, **own} if own_0.get(name) != own.get(name)]
    names = ["loss"] if "loss" in names else names
    told = ", ".join(f"{name} is {own_0.get(name)} in process 0 and {own.get(name)} in {process}" for name in names)
    return f"The processes disagree: {told}. Start all of them with the same script and arguments."
