"""What ``skip_below`` buys and costs: lists of 100 documents of NFCorpus, trained with several shares.

    python tests/benchmarks/skip_below.py

A MiniLM-L6 without dropout is trained on the same lists in the same order with ``recompute=True``; printed are the
seconds of all steps, the share of documents that had a second pass, and nDCG@10 on test queries.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import build_model
from shapes import ROOT, nfcorpus
from sklearn.metrics import ndcg_score
from torch import nn

import st_listwise
from st_listwise import recompute
from st_listwise.evaluation import predict_lists


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.02, 0.1, 0.3])
    parser.add_argument("--lists", type=int, default=64)
    parser.add_argument("--tests", type=int, default=60)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--max_length", type=int, default=48)
    parser.add_argument("--loss", default="ListMLELoss")
    parser.add_argument("--seeds", type=int, nargs="+", default=[12])
    parser.add_argument("--output", type=Path, default=ROOT / "output" / "bench" / "skip_below.json")
    args = parser.parse_args()
    train = list(itertools.islice(nfcorpus(args.data, "train"), args.lists))
    test = list(itertools.islice(nfcorpus(args.data, "test"), args.tests))
    results = []
    for seed, share in itertools.product(args.seeds, args.shares):
        results.append({"seed": seed, "skip_below": share, **trained(train, test, share, seed, args)})
        print(results[-1], flush=True)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    temporary = args.output.with_suffix(".tmp")
    temporary.write_text(json.dumps(results, indent=2))
    os.replace(temporary, args.output)


def trained(train: Any, test: Any, share: float, seed: int, args: argparse.Namespace) -> dict[str, float]:
    torch.manual_seed(seed)
    model = build_model()
    torch.manual_seed(seed)
    model.model.classifier.reset_parameters()  # type: ignore[union-attr,operator]
    model.max_seq_length = args.max_length
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    loss = getattr(st_listwise, args.loss)(model, recompute=True, skip_below=share)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    order = np.random.default_rng(seed)
    seconds, again, pairs = 0.0, CountedRows(), 0
    for _ in range(args.epochs):
        for part in np.array_split(order.permutation(len(train)), len(train) // 2):
            queries, docs, labels = zip(*(train[index] for index in part))
            start = time.perf_counter()
            with torch.autocast(model.device.type, torch.bfloat16):
                value = loss([queries, docs], labels)
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            seconds += time.perf_counter() - start
            pairs += sum(map(len, docs))
    again.close()
    with torch.autocast(model.device.type, torch.bfloat16):
        scores = predict_lists(model, [row[0] for row in test], [row[1] for row in test], show_progress_bar=False)
    values = [ndcg_score([2.0 ** row[2].numpy() - 1], [own.astype(float)], k=10) for row, own in zip(test, scores)]
    return {
        "seconds": round(seconds, 1),
        "again": round(again.rows / pairs, 3),
        "nDCG@10": round(float(np.mean(values)), 4),
    }


class CountedRows:
    """Counts the rows of second passes."""

    def __init__(self) -> None:
        self.rows = 0
        self.teaches = recompute._teaches
        recompute._teaches = self._count  # type: ignore[assignment]

    def _count(self, gradients: Any) -> torch.Tensor:
        found = self.teaches(gradients)
        self.rows += int(found.sum())
        return found

    def close(self) -> None:
        recompute._teaches = self.teaches


if __name__ == "__main__":
    main()
