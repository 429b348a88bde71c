"""A second device, for tests of what runs on GPUs: its tensors lie in CPU memory, but do not mix with CPU tensors.

Importing this changes PyTorch for the whole process: run it in one of its own.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

#: Operations that take tensors of both devices on CUDA as well.
CROSSING = ("_to_copy", "copy_", "_index_put_impl_", "index", "index_put_", "index_put")


class _Module(_DummyBackendModule):
    """``torch.second``, as there is ``torch.cuda``."""

    @staticmethod
    def get_rng_state(device: Any = None) -> Tensor:
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state: Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


_setup_privateuseone_for_python_backend("second", backend_module=_Module())
SECOND = torch.device("second:0")


def _no_grad(mode: Any = True) -> Any:
    """In place of inference mode, in which only PyTorch's own devices take views."""
    if callable(mode):
        return torch.no_grad()(mode)
    return torch.no_grad() if mode else torch.enable_grad()


torch.inference_mode = _no_grad


class SecondTensor(Tensor):
    """Stands on the second device; ``held`` is what it holds."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> SecondTensor:
        made = Tensor._make_wrapper_subclass(
            cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device=SECOND
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.held.tolist()

    def untyped_storage(self) -> Any:
        return self.held.untyped_storage()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"second:{self.held!r}"


class SecondDevice(TorchDispatchMode):
    """With this, new tensors come to stand there when they are asked to."""

    def __enter__(self) -> SecondDevice:
        torch.tensor, torch.as_tensor = _moving(torch.tensor), _moving(torch.as_tensor)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.tensor, torch.as_tensor = torch.tensor.__wrapped__, torch.as_tensor.__wrapped__

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _moving(make: Any) -> Any:
    """``torch.tensor`` fills its result where no mode sees it: on the CPU, then, from where it moves."""

    @functools.wraps(make)
    def made(data: Any, *, device: Any = None, **options: Any) -> Tensor:
        return make(data, **options) if device is None else make(data, **options).to(device)

    return made


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """On the CPU, in memory of the second device where an argument stands there or the result is asked for there."""
    tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
    there = any(isinstance(value, SecondTensor) for value in tensors)
    name = func.overloadpacket.__name__
    here = [value for value in tensors if not isinstance(value, SecondTensor) and value.ndim]
    if there and here and name not in CROSSING:
        raise RuntimeError(f"{name}: tensors of {SECOND} and of shape {tuple(here[0].shape)} on the CPU do not mix.")
    device = kwargs.get("device")
    if device is not None:
        there = torch.device(device).type == SECOND.type
        kwargs = {**kwargs, "device": torch.device("cpu")} if there else kwargs
    elif name == "copy_":
        there = isinstance(args[0], SecondTensor)
    own, options = tree_map(lambda value: value.held if isinstance(value, SecondTensor) else value, (args, kwargs))
    result = func(*own, **options)
    known = {id(value.held): value for value in tensors if isinstance(value, SecondTensor)}
    return tree_map(lambda value: _there(value, known) if there and isinstance(value, Tensor) else value, result)


def _there(value: Tensor, known: dict[int, SecondTensor]) -> Tensor:
    """Results that are an argument, such as those of operations in place, stay that one."""
    return known[id(value)] if id(value) in known else SecondTensor(value)
