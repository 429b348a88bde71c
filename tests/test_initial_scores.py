"""Text documents that bring scores of initial rankings: what the model sees of them, in every way of batching."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import CrossEncoderTrainer, CrossEncoderTrainingArguments
from tiny_models import tiny_set
from torch import Tensor

from st_listwise import ListMLELoss, SetRankCrossEncoder
from st_listwise.evaluation import GradedRerankingEvaluator
from st_listwise.recompute import take_rows

QUERIES = ["what is a bear", "capital of france", "how fast"]
TEXTS = [
    ["an animal", "a planet"],
    ["paris is the capital", "rome", "berlin is big and far away", "x"],
    ["fast as light", "slow", "it is so"],
]
LABELS = [[1, 0], [2, 0, 1, 0], [0, 1, 0]]


def with_scores(texts: list[str], *rankings: list[float]) -> list[dict[str, Any]]:
    return [{"text": text, "initial_scores": list(scores)} for text, scores in zip(texts, zip(*rankings))]


def falling(texts: list[str]) -> list[float]:
    """Scores in the order in which documents are given."""
    return [float(-place) for place in range(len(texts))]


def two_rankings() -> list[list[dict[str, Any]]]:
    """Every document of every list in the given order and in a drawn one."""
    drawn = random.Random(3)
    return [with_scores(texts, falling(texts), [drawn.gauss(0, 1) for _ in texts]) for texts in TEXTS]


def tables(model: SetRankCrossEncoder) -> Tensor:
    return model[2].ordinal.tables


def test_with_initial_scores_the_order_in_which_documents_are_given_does_not_matter() -> None:
    model = tiny_set(ordinal="absolute", max_docs=6)
    for texts in TEXTS:
        in_order = model.predict([("q", text) for text in texts])
        docs = with_scores(texts, falling(texts))
        for seed in range(5):
            order = np.random.default_rng(seed).permutation(len(docs))
            scores = model.predict([("q", docs[place]) for place in order])
            np.testing.assert_allclose(scores, in_order[order], rtol=1e-5, atol=1e-5)
    shuffled = model.predict([("q", text) for text in TEXTS[1][::-1]])[::-1]
    assert np.abs(shuffled - model.predict([("q", text) for text in TEXTS[1]])).max() > 1e-3


def test_a_ranking_that_lacks_documents_puts_them_last_in_the_given_order() -> None:
    model = tiny_set(ordinal="absolute", max_docs=6)
    texts = TEXTS[1]
    found = model.predict([("q", doc) for doc in with_scores(texts, [-np.inf, 7.0, -np.inf, 9.0])])
    expected = model.predict([("q", texts[place]) for place in (3, 1, 0, 2)])
    np.testing.assert_allclose(found[[3, 1, 0, 2]], expected, rtol=1e-5, atol=1e-5)


def test_each_initial_ranking_has_a_table_and_their_vectors_are_summed() -> None:
    model = tiny_set(ordinal="absolute", max_docs=6, rankings=2)
    one = tiny_set(ordinal="absolute", max_docs=6)
    for module in (0, 3):
        one[module].load_state_dict(model[module].state_dict())
    own = {name: value for name, value in model[2].state_dict().items() if name != "ordinal.tables"}
    for used in (0, 1):
        with torch.no_grad():
            one[2].load_state_dict({**own, "ordinal.tables": tables(model)[used : used + 1]})
            kept = tables(model).clone()
            tables(model)[1 - used] = 0
        pairs = [("q", doc) for doc in two_rankings()[1]]
        alone = [("q", {**doc, "initial_scores": [doc["initial_scores"][used]]}) for _, doc in pairs]
        np.testing.assert_allclose(model.predict(pairs), one.predict(alone), rtol=1e-5, atol=1e-5)
        with torch.no_grad():
            tables(model).copy_(kept)


def test_scores_do_not_depend_on_the_batch_size_on_other_queries_or_on_processes() -> None:
    model = tiny_set(ordinal="absolute", max_docs=6, rankings=2).double()
    pairs = [(query, doc) for query, docs in zip(QUERIES, two_rankings()) for doc in docs]
    together = model.predict(pairs, convert_to_tensor=True)
    for batch_size in (1, 2, 4):
        found = model.predict(pairs, batch_size=batch_size, convert_to_tensor=True)
        torch.testing.assert_close(found, together, rtol=1e-9, atol=1e-9)
    alone = model.predict(pairs[2:6], convert_to_tensor=True)
    torch.testing.assert_close(alone, together[2:6], rtol=1e-9, atol=1e-9)
    rankings = model.rank_batch(QUERIES, two_rankings(), return_documents=True)
    expected = sorted(zip(together[2:6].tolist(), TEXTS[1]), reverse=True)
    assert [entry["text"]["text"] for entry in rankings[1]] == [text for _, text in expected]
    pool = model.start_multi_process_pool(["cpu", "cpu"])
    try:
        found = model.predict(pairs, pool=pool, chunk_size=1, convert_to_tensor=True)
    finally:
        model.stop_multi_process_pool(pool)
    torch.testing.assert_close(found, together, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rankings", [1, 2])
def test_every_mini_batch_gives_the_same_gradient_to_the_table_of_every_ranking(rankings: int) -> None:
    model = tiny_set(ordinal="absolute", max_docs=6, rankings=rankings).double()
    docs = [[{**doc, "initial_scores": doc["initial_scores"][:rankings]} for doc in own] for own in two_rankings()]
    found = []
    for options in ({"mini_batch_size": 0}, {"mini_batch_size": 1}, {"mini_batch_size": 2, "recompute": True}):
        model.zero_grad()
        loss = ListMLELoss(model, **options)
        loss([QUERIES, docs], [torch.tensor(row) for row in LABELS]).backward()
        found.append({name: part.grad.clone() for name, part in model.named_parameters() if part.grad is not None})
    assert (found[0]["2.ordinal.tables"].abs().amax((1, 2)) > 1e-3).tolist() == [True] * rankings
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-8, atol=1e-12)


def test_as_many_rankings_as_token_columns_are_not_cut_with_them() -> None:
    """Columns were known by their number alone: three rankings beside three tokens lost one with the padding."""
    features = {
        "input_ids": torch.tensor([[5, 6, 7], [5, 6, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
        "initial_scores": torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
    }
    taken = take_rows(features, torch.tensor([1]))
    assert taken["input_ids"].tolist() == [[5, 6]]
    assert taken["initial_scores"].tolist() == [[4.0, 5.0, 6.0]]


def test_a_model_with_two_rankings_trains_evaluates_and_has_a_card(tmp_path: Path) -> None:
    """The relevant document is told by the second ranking alone; texts are all the same."""
    drawn = random.Random(0)
    rows: dict[str, list[Any]] = {"query": [], "docs": [], "labels": []}
    for index in range(24):
        labels = [1, 0, 0, 0]
        drawn.shuffle(labels)
        docs = with_scores(
            ["a document"] * 4, [drawn.random() for _ in labels], [label + drawn.random() for label in labels]
        )
        rows["query"].append(f"query {index}")
        rows["docs"].append(docs)
        rows["labels"].append(labels)
    dataset = Dataset.from_dict(rows)
    model = tiny_set(ordinal="absolute", max_docs=4, rankings=2)
    samples = [{"query": row["query"], "docs": row["docs"], "labels": row["labels"]} for row in dataset]
    args = CrossEncoderTrainingArguments(
        output_dir=str(tmp_path / "run"),
        num_train_epochs=15,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    CrossEncoderTrainer(model=model, args=args, train_dataset=dataset, loss=ListMLELoss(model)).train()
    metrics = GradedRerankingEvaluator(samples, write_csv=False)(model)
    assert next(value for key, value in metrics.items() if key.lower().endswith("ndcg@10")) > 0.95
    model.save_pretrained(str(tmp_path / "final"))
    loaded = SetRankCrossEncoder(str(tmp_path / "final"))
    pairs = [(rows["query"][0], doc) for doc in rows["docs"][0]]
    assert loaded.predict(pairs).tolist() == model.predict(pairs).tolist()
    assert "query 0" in (tmp_path / "final" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("docs", "message"),
    [
        ([{"text": "a", "initial_scores": [1.0]}, "b"], "query 'q', document 1 has no initial_scores, others have"),
        (with_scores(["a", "b"], [1.0, np.nan]), "initial_scores of query 'q', document 1 has NaN; -inf is for"),
        (with_scores(["a", "b"], [1, 2], [3, 4]), "document 0 has 2 scores, the model knows 1 initial rankings"),
        ([{"text": "a", "initial_scores": 3.0}], "document 0 is no list of numbers: 3.0"),
        ([{"text": "a", "initial_scores": ["high"]}], "document 0 is no list of numbers"),
        ([{"title": "a", "initial_scores": [1.0]}], "document 0 has \\['initial_scores', 'title'\\]: expected"),
    ],
)
def test_initial_scores_that_do_not_fit_are_named(docs: list[Any], message: str) -> None:
    model = tiny_set(ordinal="absolute", max_docs=6)
    for batch_size in (1, 32):  # whichever pairs are encoded together
        with pytest.raises(ValueError, match=message):
            model.rank("q", docs, batch_size=batch_size)
    with pytest.raises(ValueError, match=message):
        ListMLELoss(model)([["q"], [docs]], [torch.arange(len(docs))])


def test_a_model_that_would_ignore_them_refuses_initial_scores() -> None:
    with pytest.raises(ValueError, match="this model has no ordinal embeddings: give their texts alone"):
        tiny_set().rank("q", with_scores(["a", "b"], [1.0, 2.0]))
