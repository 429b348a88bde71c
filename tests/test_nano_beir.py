"""NanoBEIR's evaluator as it is, on pointwise and set models: data of its form, figures by plain arithmetic."""

from __future__ import annotations

import math
import random
from typing import Any

import datasets
import numpy as np
import pytest
from datasets import Dataset
from sentence_transformers.cross_encoder.evaluation import CrossEncoderNanoBEIREvaluator
from tiny_models import tiny_bert, tiny_set

NAMES = ["msmarco", "nfcorpus"]
WORDS = ["bear", "river", "stone", "light", "paris", "cloud", "iron", "apple"]
MODELS = pytest.mark.parametrize("build", [tiny_bert, tiny_set, lambda: tiny_set(inducing_points=3)])


def nano(split: str) -> dict[str, Dataset]:
    """Eight queries, sixty documents, BM25 rankings of thirty of them, one to three relevant documents a query."""
    draw = random.Random(split)
    corpus = [" ".join(draw.choices(WORDS, k=draw.randint(3, 12))) + f" {number}" for number in range(60)]
    queries = [" ".join(draw.sample(WORDS, 2)) + f" {number}" for number in range(8)]
    rankings = [draw.sample(range(60), 30) for _ in queries]
    relevant = [draw.sample(range(60), draw.randint(1, 3)) for _ in queries]  # some of them not in the ranking
    return {
        "corpus": Dataset.from_dict({"_id": [f"d{number}" for number in range(60)], "text": corpus}),
        "queries": Dataset.from_dict({"_id": [f"q{number}" for number in range(8)], "text": queries}),
        "qrels": Dataset.from_list(
            [{"query-id": f"q{q}", "corpus-id": f"d{doc}"} for q, docs in enumerate(relevant) for doc in docs]
        ),
        "bm25": Dataset.from_list(
            [{"query-id": f"q{q}", "corpus-ids": [f"d{doc}" for doc in docs]} for q, docs in enumerate(rankings)]
        ),
    }


@pytest.fixture
def evaluator(monkeypatch: pytest.MonkeyPatch) -> CrossEncoderNanoBEIREvaluator:
    """The evaluator, with data of its form in the place of the Hub's."""
    monkeypatch.setattr(datasets, "load_dataset", lambda name, subset, split: nano(split)[subset])
    return CrossEncoderNanoBEIREvaluator(NAMES, rerank_k=20, batch_size=7, write_csv=False)


def lists(split: str) -> list[tuple[str, list[str], list[int]]]:
    """Query, documents (relevant ones first, then the first 20 of BM25) and labels, from the tables by hand."""
    tables = nano(split)
    corpus = dict(zip(tables["corpus"]["_id"], tables["corpus"]["text"]))
    result = []
    for query_id, query, ranking in zip(tables["queries"]["_id"], tables["queries"]["text"], tables["bm25"]):
        good = [row["corpus-id"] for row in tables["qrels"] if row["query-id"] == query_id]
        docs = good + [doc for doc in ranking["corpus-ids"][:20] if doc not in good]
        result.append((query, [corpus[doc] for doc in docs], [1] * len(good) + [0] * (len(docs) - len(good))))
    return result


def ndcg_at_10(labels: list[int], scores: np.ndarray) -> float:
    ranked = [labels[place] for place in np.argsort(-scores)]
    gain = sum(label / math.log2(rank + 2) for rank, label in enumerate(ranked[:10]))
    return gain / sum(1 / math.log2(rank + 2) for rank in range(min(10, sum(labels))))


@MODELS
def test_figures_are_those_of_plain_arithmetic_over_the_scores_of_each_list(
    build: Any, evaluator: CrossEncoderNanoBEIREvaluator
) -> None:
    model = build()
    results = evaluator(model)
    means = []
    for name in ("NanoMSMARCO", "NanoNFCorpus"):
        rows = lists(name)
        alone = [model.predict([(query, doc) for doc in docs]) for query, docs, _ in rows]  # one query at a time
        assert min(np.diff(np.sort(scores)).min() for scores in alone) > 1e-6  # no ties to be broken by chance
        values = [ndcg_at_10(labels, scores) for (_, _, labels), scores in zip(rows, alone)]
        assert 0 < np.mean(values) < 1
        assert results[f"{name}_R20_ndcg@10"] == pytest.approx(np.mean(values), abs=1e-9)
        means.append(np.mean(values))
    assert evaluator.primary_metric == "NanoBEIR_R20_mean_ndcg@10"
    assert results[evaluator.primary_metric] == pytest.approx(np.mean(means), abs=1e-9)
