"""Forward and backward of one list through a decoder, with its prefix computed once and with whole pairs.

A random Qwen3 of 6 layers and width 256 behind a chat template, one token a character; instruction and query make 138
tokens, a document and what follows it 70 to 140. Time: variants take turns, medians of paired ratios with quartiles.
"by tokens": what the tokens of a forward pass let expect. Peak memory: each variant in a process of its own, above the
model and its gradients.

    python tests/benchmarks/shared_prefix.py
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
from typing import Any

import torch
from measure import CUDA, peak_of, quartiles, seconds_of
from sentence_transformers import CrossEncoder
from shapes import ROOT

from st_listwise import ListMLELoss

sys.path.insert(0, str(ROOT / "tests"))
from tiny_models import decoder_folder

SHAPE = {
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "intermediate_size": 768,
    "max_position_embeddings": 512,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "whole pairs": {},
    "share_prefix": {"share_prefix": True},
    "whole pairs, recompute": {"recompute": True},
    "share_prefix, recompute": {"share_prefix": True, "recompute": True},
}


def build_model() -> CrossEncoder:
    torch.manual_seed(12)
    model = CrossEncoder(str(decoder_folder(template=True, **SHAPE)), activation_fn=torch.nn.Identity())
    model.max_seq_length = 512
    return model.train()


def one_list(docs: int, seed: int) -> tuple[list[Any], list[torch.Tensor]]:
    """A query of 80 characters and documents of 60 to 130."""
    draw = random.Random(seed)

    def text(length: int) -> str:
        return "".join(draw.choices("abcdefghijklmnopqrstuvwxyz    ", k=length))

    labels = torch.tensor([draw.randrange(4) for _ in range(docs)])
    return [[text(80)], [[text(draw.randint(60, 130)) for _ in range(docs)]]], [labels]


def tokens(loss: ListMLELoss, batch: Any) -> int:
    """Tokens that a forward pass computes, padding included."""
    ready = loss.prepare(*batch).mini_batches
    return sum(features["input_ids"].numel() for features in [*ready.features, *ready.prefixes])


def step(loss: ListMLELoss, batch: Any) -> None:
    loss(*batch).backward()
    loss.zero_grad()


def compare(docs: int, steps: int) -> None:
    model = build_model()
    losses = {name: ListMLELoss(model, **options) for name, options in VARIANTS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    batches = [one_list(docs, seed) for seed in range(steps)]
    for loss in losses.values():
        step(loss, one_list(2, 0))
    for index, batch in enumerate(batches):
        for shift in range(len(VARIANTS)):
            name = list(VARIANTS)[(index + shift) % len(VARIANTS)]
            seconds[name].append(seconds_of(step, losses[name], batch))
        print(f"  {docs} documents: batch {index + 1} of {steps}", end="\r", file=sys.stderr)
    print(f"\n1 query x {docs} documents, on {'CUDA' if CUDA else 'CPU'}")
    print(f"{'':26}{'seconds':>9}{'speed':>8}{'quartiles':>14}{'by tokens':>11}{'peak MiB':>10}")
    for name, own in seconds.items():
        base = "whole pairs, recompute" if name.endswith("recompute") else "whole pairs"
        low, middle, high = quartiles([plain / shared for plain, shared in zip(seconds[base], own)])
        by_tokens = statistics.median(tokens(losses[base], b) / tokens(losses[name], b) for b in batches)
        spread = f"{low:.2f}-{high:.2f}"
        peak = peak_in_subprocess(name, docs)
        print(
            f"{name:26}{statistics.median(own):9.2f}{middle:7.2f}x{spread:>14}{by_tokens:10.2f}x{peak:10.0f}",
            flush=True,
        )


def peak_memory(name: str, docs: int) -> float:
    """Peak MiB above the model and its gradients, of one step. To be called in a fresh process."""
    loss = ListMLELoss(build_model(), **VARIANTS[name])
    loss(*one_list(2, 0)).backward()
    batch = one_list(docs, 0)
    return peak_of(lambda: loss(*batch).backward())


def peak_in_subprocess(name: str, docs: int) -> float:
    command = [sys.executable, __file__, "--peak", name, "--docs", str(docs)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(output.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=int, nargs="+", default=[16, 64], help="documents of the list")
    parser.add_argument("--steps", type=int, default=7, help="lists of each length")
    parser.add_argument("--peak", choices=VARIANTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peak:
        print(peak_memory(args.peak, args.docs[0]))
        return
    for docs in args.docs:
        compare(docs, args.steps)


if __name__ == "__main__":
    main()
