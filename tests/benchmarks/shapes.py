"""Batches of real text to measure on, or the demo data where they are absent.

python tests/benchmarks/shapes.py ../shared/data > output/cranfield50.jsonl    # Cranfield's BM25 top 50 as rows
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

ROOT = Path(__file__).parents[2]


class Batch(NamedTuple):
    queries: list[str]
    docs: list[list[str]]
    labels: list[Tensor]


def batches(shape: str, data: Path) -> list[Batch]:
    """All batches of a shape, in a fixed random order."""
    lists = list(SHAPES[shape].source(data))
    random.Random(12).shuffle(lists)
    size = SHAPES[shape].lists
    return [Batch(*map(list, zip(*lists[start : start + size]))) for start in range(0, len(lists) - size + 1, size)]


def wikiqa(data: Path) -> Iterator[tuple[str, list[str], Tensor]]:
    """Questions with a positive and all their candidate sentences."""
    for row in _rows(data / "wikiqa" / "train.jsonl"):
        passages = row["passages"]
        if any(passages["is_selected"]):
            yield row["query"], passages["passage_text"], torch.tensor(passages["is_selected"])


def cranfield(data: Path, depth: int = 10) -> Iterator[tuple[str, list[str], Tensor]]:
    """Queries with the abstracts that BM25 ranks first, in its order."""
    folder = data / "cranfield"
    docs = {row["doc_id"]: f"{row['title']} {row['text']}" for row in _rows(folder / "docs.jsonl")}
    queries = {row["query_id"]: row["text"] for row in _rows(folder / "queries.jsonl")}
    qrels = (line.split("\t") for line in (folder / "qrels_no_neg1.tsv").read_text().splitlines()[1:])
    grades = {(row[0], row[1]): int(row[2]) for row in qrels}
    run: dict[str, list[str]] = {}
    for line in (folder / "bm25_top50_no_neg1.run").read_text().splitlines():
        query, _, doc, *_ = line.split()
        if docs[doc].strip():
            run.setdefault(query, []).append(doc)
    for query, ranked in run.items():
        top = ranked[:depth]
        yield queries[query], [docs[doc] for doc in top], torch.tensor([grades.get((query, doc), 0) for doc in top])


def msmarco(data: Path) -> Iterator[tuple[str, list[str], Tensor]]:
    """Queries with their passage and 9 others of MS MARCO."""
    folder = data / "msmarco_small"
    docs = {row["doc_id"]: row["text"] for row in _rows(folder / "docs.jsonl")}
    queries = {row["query_id"]: row["text"] for row in _rows(folder / "queries.jsonl")}
    others = sorted(docs)
    random.Random(12).shuffle(others)
    for number, line in enumerate((folder / "qrels.tsv").read_text().splitlines()[1:]):
        query, doc, _ = line.split("\t")
        drawn = [others[(9 * number + i) % len(others)] for i in range(9)]
        yield queries[query], [docs[doc], *(docs[other] for other in drawn)], torch.tensor([1] + [0] * 9)


def sentences(count: int, data: Path) -> Iterator[tuple[str, list[str], Tensor]]:
    """Questions with as many sentences of WikiQA, their own first."""
    lists = list(wikiqa(data))
    pool = [sentence for _, docs, _ in lists for sentence in docs]
    for number, (query, docs, labels) in enumerate(lists[:40]):
        start = 200 * number
        more = (pool + pool)[start : start + max(0, count - len(docs))]
        yield query, [*docs, *more][:count], torch.cat([labels, torch.zeros(len(more), dtype=labels.dtype)])[:count]


def with_longest(count: int, of: int, data: Path) -> Iterator[tuple[str, list[str], Tensor]]:
    """The same lists, the last sentence being the longest one of a list of more."""
    for (query, docs, labels), (_, more, _) in zip(sentences(count, data), sentences(of, data)):
        yield query, [*docs[:-1], max(more, key=len)], labels


def demo(data: Path) -> Iterator[tuple[str, list[str], Tensor]]:
    """Docstrings of the standard library: needs no data."""
    sys.path.insert(0, str(ROOT / "examples" / "ms_marco"))
    from demo import demo_rows

    for row in demo_rows():
        passages = row["passages"]
        yield row["query"], passages["passage_text"], torch.tensor(passages["is_selected"])


class Shape(NamedTuple):
    """Lists in a batch, where lists come from, and whether sentence-transformers' losses fit into 24 GiB."""

    lists: int
    source: Callable[[Path], Iterator[tuple[str, list[str], Tensor]]]
    upstream: bool = True


SHAPES = {
    "wikiqa": Shape(16, wikiqa),
    "cranfield": Shape(4, cranfield),
    "msmarco": Shape(16, msmarco),
    "1 x 16": Shape(1, partial(sentences, 16)),
    "1 x 16, long": Shape(1, partial(with_longest, 16, 1000)),
    "1 x 100": Shape(1, partial(sentences, 100)),
    "1 x 1000": Shape(1, partial(sentences, 1000), upstream=False),
    "demo": Shape(16, demo),
}


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


if __name__ == "__main__":
    for query, docs, labels in cranfield(Path(sys.argv[1]), depth=50):
        print(json.dumps({"query": query, "docs": docs, "labels": labels.tolist()}))
