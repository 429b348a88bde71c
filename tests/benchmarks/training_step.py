"""Forward and backward of one batch: our losses against sentence-transformers' of the same name.

Time: same model, same pairs, one process, interleaved; medians of paired ratios with quartiles, and the share of the
throughput that no padding at all would give ("of floor", see measure.Floor). Peak memory: each variant in a process of
its own, above the model and its gradients. Alike on CPU and on a CUDA device, there with bfloat16.

    make bench                                                            # everything, an hour on 2 cores
    python tests/benchmarks/training_step.py --shapes wikiqa --losses ADRMSELoss LambdaLoss --steps 9
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from chart import draw
from measure import CUDA, Floor, build_model, peak_of, quartiles, seconds_of
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder import losses as upstream
from shapes import ROOT, SHAPES, Batch, batches
from torch import nn

import st_listwise
from st_listwise.losses import __all__ as OURS

VARIANTS = ("upstream", "ours", "ours, recompute")
ALL = [name for name in OURS if name not in ("ListwiseLoss", "CombinedLoss")]


def build_loss(variant: str, name: str, model: CrossEncoder) -> nn.Module:
    if variant == "upstream":
        return getattr(upstream, name)(model, mini_batch_size=16)
    return getattr(st_listwise, name)(model, recompute=variant.endswith("recompute"))


def variants(shape: str, name: str) -> list[str]:
    """Those that exist, and fit into memory."""
    return [v for v in VARIANTS if v != "upstream" or (hasattr(upstream, name) and SHAPES[shape].upstream)]


def step(loss: nn.Module, batch: Batch) -> None:
    loss([batch.queries, batch.docs], batch.labels).backward()
    loss.zero_grad()


def first_list(batch: Batch, docs: int = 8) -> Batch:
    """One short list, to warm up on."""
    return Batch(batch.queries[:1], [batch.docs[0][:docs]], [batch.labels[0][:docs]])


def time_variants(
    shape: str, name: str, model: CrossEncoder, steps: list[Batch], lengths: list[list[int]]
) -> dict[str, list[float]]:
    """Seconds of each variant, of preprocessing, and of the floor, for each batch; variants take turns."""
    losses = {variant: build_loss(variant, name, model) for variant in variants(shape, name)}
    seconds: dict[str, list[float]] = {key: [] for key in [*losses, "preprocessing"]}
    for loss in losses.values():
        step(loss, first_list(steps[0]))
    floor = Floor(model, [length for own in lengths for length in own])
    order = list(losses)
    for index, batch in enumerate(steps):
        floor.measure()
        for shift in range(len(order)):
            variant = order[(index + shift) % len(order)]
            seconds[variant].append(seconds_of(step, losses[variant], batch))
        columns = [batch.queries, batch.docs]
        seconds["preprocessing"].append(seconds_of(losses["ours"].prepare, columns, batch.labels))
        print(f"  {shape}, {name}: batch {index + 1} of {len(steps)}", end="\r", file=sys.stderr)
    return seconds | {"floor": floor.seconds(lengths)}


def token_lengths(model: CrossEncoder, batch: Batch) -> list[int]:
    pairs = [(query, doc) for query, docs in zip(batch.queries, batch.docs) for doc in docs]
    return model.preprocess(pairs)["attention_mask"].sum(-1).tolist()


def padding(model: CrossEncoder, steps: list[Batch]) -> float:
    """Padded tokens of our mini-batches over real ones."""
    loss = st_listwise.ListNetLoss(model)
    ready = [loss.prepare([batch.queries, batch.docs], batch.labels).mini_batches.features for batch in steps]
    masks = [features["attention_mask"] for cut in ready for features in cut]
    return sum(mask.numel() for mask in masks) / sum(int(mask.sum()) for mask in masks)


def peak_memory(variant: str, name: str, batch: Batch) -> float:
    """Peak MiB above the model and its gradients, of one step. To be called in a fresh process."""
    loss = build_loss(variant, name, build_model())
    small = first_list(batch)
    loss([small.queries, small.docs], small.labels).backward()  # gradients and thread pools exist from here on
    return peak_of(lambda: loss([batch.queries, batch.docs], batch.labels).backward())


def peak_in_subprocess(shape: str, variant: str, name: str, data: Path) -> float:
    command = [sys.executable, __file__, "--peak", variant, "--shapes", shape, "--losses", name, "--data", str(data)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(output.strip().splitlines()[-1])


def measured(shape: str, name: str, steps: list[Batch], data: Path, with_peaks: bool) -> dict[str, Any]:
    model = build_model()
    lengths = [token_lengths(model, batch) for batch in steps]
    seconds = time_variants(shape, name, model, steps, lengths)
    base = "upstream" if "upstream" in seconds else "ours"
    rows = []
    for variant in variants(shape, name):
        own = seconds[variant]
        low, middle, high = quartiles([a / b for a, b in zip(seconds[base], own)])
        row = {
            "variant": variant,
            "seconds": quartiles(own)[1],
            "pairs/s": round(sum(map(len, lengths)) / sum(own), 1),
            "tokens/s": round(sum(map(sum, lengths)) / sum(own)),
            "speed": middle,
            "speed quartiles": [low, high],
            "of floor": quartiles([floor / value for floor, value in zip(seconds["floor"], own)])[1],
        }
        rows.append(row | ({"peak MiB": round(peak_in_subprocess(shape, variant, name, data))} if with_peaks else {}))
    return {
        "against": base,
        "padded/real tokens": round(padding(model, steps), 3),
        "preprocessing": quartiles([a / b for a, b in zip(seconds["preprocessing"], seconds["ours"])])[1],
        "rows": rows,
    }


def report(title: str, result: dict[str, Any]) -> None:
    print(
        f"\n{title}: padded/real tokens {result['padded/real tokens']:.2f}, preprocessing "
        f"{result['preprocessing']:.1%} of our step, speed against {result['against']}"
    )
    print(
        f"{'':18}{'seconds':>9}{'pairs/s':>9}{'tokens/s':>10}{'speed':>8}{'quartiles':>12}{'floor':>7}{'peak MiB':>10}"
    )
    for row in result["rows"]:
        spread = "{:.1f}-{:.1f}".format(*row["speed quartiles"])
        print(
            f"{row['variant']:18}{row['seconds']:9.2f}{row['pairs/s']:9.1f}{row['tokens/s']:10,}"
            f"{row['speed']:7.2f}x{spread:>12}{row['of floor']:7.0%}{row.get('peak MiB', ''):>10}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the data sets")
    parser.add_argument(
        "--shapes", nargs="+", choices=list(SHAPES), help="default: all of those that data is there for"
    )
    parser.add_argument("--losses", nargs="+", choices=ALL, help="default: all on the first shape, then ADRMSELoss")
    parser.add_argument("--steps", type=int, default=5, help="batches of each shape")
    parser.add_argument("--output", type=Path, default=ROOT / "output" / "bench" / "training_step.json")
    parser.add_argument("--peak", choices=VARIANTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    shapes = args.shapes or [name for name in SHAPES if (name == "demo") != args.data.exists()]
    if args.peak:
        print(peak_memory(args.peak, args.losses[0], batches(shapes[0], args.data)[0]))
        return
    device = torch.cuda.get_device_name() if CUDA else f"{platform.machine()}, {os.cpu_count()} cores"
    results: dict[str, Any] = {"device": device, "torch": torch.__version__, "results": {}}
    args.output.parent.mkdir(parents=True, exist_ok=True)
    for number, shape in enumerate(shapes):
        steps = batches(shape, args.data)[: args.steps]
        for name in args.losses or (ALL if number == 0 else ["ADRMSELoss"]):
            result = measured(shape, name, steps, args.data, with_peaks=name == "ADRMSELoss" or bool(args.losses))
            results["results"][f"{shape}, {name}"] = result
            report(f"{shape}, {name}", result)
            temporary = args.output.with_suffix(".tmp")
            temporary.write_text(json.dumps(results, indent=2))
            os.replace(temporary, args.output)
    draw(results, args.output.with_suffix(".png"))
    print(f"\nWritten to {args.output}, with a chart beside it.")


if __name__ == "__main__":
    main()
