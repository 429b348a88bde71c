"""The arithmetic of pairwise losses on long lists, without a model: time against sentence-transformers, peak memory.

    python tests/benchmarks/long_lists.py

Time: 16 lists of 1,000 documents, forward and backward, interleaved, medians of paired ratios with quartiles. Memory:
one list of 20,000 documents, each loss in a process of its own, above what was there before.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from typing import Any

import torch
from differences import ChosenScores
from measure import host_peak
from sentence_transformers.cross_encoder import losses as upstream

import st_listwise
from st_listwise import functional

LOSSES = ("ADRMSELoss", "LambdaLoss", "RankNetLoss")
FUNCTIONS = ("adr_mse", "approx_ndcg", "approx_mrr", "rank_net", "lambda_loss")


def step(loss: Any, docs: list[list[str]], labels: list[torch.Tensor]) -> float:
    start = time.perf_counter()
    loss([["q"] * len(docs), docs], labels).backward()
    loss.zero_grad()
    return time.perf_counter() - start


def times(name: str, lists: int, length: int, repeats: int) -> None:
    torch.manual_seed(12)
    model = ChosenScores(torch.randn(lists * length).tolist())
    docs = [[str(row * length + i) for i in range(length)] for row in range(lists)]
    labels = [torch.randint(0, 5, (length,)).float() for _ in range(lists)]
    pair = [getattr(module, name)(model, mini_batch_size=lists * length) for module in (upstream, st_listwise)]
    seconds: list[list[float]] = [[], []]
    for repeat in range(repeats + 1):
        for which in (0, 1) if repeat % 2 else (1, 0):
            value = step(pair[which], docs, labels)
            if repeat:  # the first turn warms up
                seconds[which].append(value)
    ratios = [a / b for a, b in zip(*seconds)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    theirs, ours = map(statistics.median, seconds)
    print(f"{name:14}{theirs:9.3f} s{ours:9.3f} s{middle:8.1f}x ({low:.1f}-{high:.1f})", flush=True)


def peak(name: str, length: int) -> None:
    """Peak MiB and seconds of one list, in a fresh process."""
    torch.manual_seed(12)
    scores, labels = torch.randn(1, length, requires_grad=True), torch.randint(0, 5, (1, length)).float()
    loss = getattr(functional, name)
    loss(scores[:, :10], labels[:, :10]).backward()
    start = time.perf_counter()
    memory = host_peak(lambda: loss(scores, labels).backward())
    print(f"{memory:.0f} {time.perf_counter() - start:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--peak", choices=FUNCTIONS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peak:
        peak(args.peak, 20_000)
        return
    print("16 lists of 1,000 documents: sentence-transformers, here")
    for name in LOSSES:
        times(name, 16, 1000, args.repeats)
    print("1 list of 20,000 documents")
    for name in FUNCTIONS:
        command = [sys.executable, __file__, "--peak", name]
        memory, seconds = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        print(f"{name:14}{memory:>7} MiB{seconds:>8} s", flush=True)


if __name__ == "__main__":
    main()
