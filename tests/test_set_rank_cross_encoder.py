"""SetRankCrossEncoder: scores depend on the list and on nothing else; it saves, loads, trains and evaluates."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.cross_encoder.evaluation import CrossEncoderRerankingEvaluator
from tiny_models import tiny_bert, tiny_set
from torch import nn

from st_listwise import FeatureVectors, ListMLELoss, SetRankConfig, SetRankCrossEncoder

QUERIES = ["what is a bear", "capital of france", "how fast"]
DOCS = [
    ["an animal", "a planet"],
    ["paris is the capital", "rome", "berlin is big and far away", "x"],
    ["fast as light", "slow", "it is so"],
]
LABELS = [[1, 0], [2, 0, 1, 0], [0, 1, 0]]
SIZES = [len(docs) for docs in DOCS]
PAIRS = [(query, doc) for query, docs in zip(QUERIES, DOCS) for doc in docs]
SHAPES: list[dict[str, Any]] = [
    {},
    {"inducing_points": 3, "layers": 2},
    {"width": 8, "norm": "post"},
    {"ordinal": "relative", "max_docs": 6},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scores_do_not_depend_on_the_batch_size_or_on_other_queries(shape: dict[str, Any]) -> None:
    model = tiny_set(**shape).double()
    together = model.predict(PAIRS, convert_to_tensor=True)
    assert together.shape == (len(PAIRS),)
    for batch_size in (1, 2, 3, 100):
        torch.testing.assert_close(
            model.predict(PAIRS, batch_size=batch_size, convert_to_tensor=True), together, rtol=1e-9, atol=1e-9
        )
    start = 0
    for size in SIZES:
        alone = model.predict(PAIRS[start : start + size], convert_to_tensor=True)
        torch.testing.assert_close(alone, together[start : start + size], rtol=1e-9, atol=1e-9)
        start += size


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_autocast_broke_off_prediction(shape: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores in half precision were written into a buffer of the embeddings' precision."""
    monkeypatch.setattr("st_listwise.set_rank_cross_encoder.DOCUMENTS_AT_ONCE", 4)  # several parts to put in order
    config = SetRankConfig(**{"width": 8, "heads": 4, "identity_start": False, **shape})
    text, numeric = tiny_set(**shape), SetRankCrossEncoder(features=FeatureVectors(3), set_rank=config)
    vectors = [("q", row) for row in np.random.default_rng(0).normal(size=(len(PAIRS), 3))]
    for model, pairs in ((text, PAIRS), (numeric, vectors)):
        expected = model.predict(pairs, list_sizes=SIZES)
        with torch.autocast("cpu", torch.bfloat16):
            scores = model.predict(pairs, list_sizes=SIZES)
            best = model.rank("q", [document for _, document in pairs[:4]])[0]
        assert scores.dtype == np.float32
        assert expected.std() > 0.1
        np.testing.assert_allclose(scores, expected, atol=0.1 * expected.std())
        assert np.isfinite(best["score"])


def test_scores_depend_on_the_other_documents_of_the_list() -> None:
    model = tiny_set()
    assert abs(model.predict(PAIRS[:2])[0] - model.predict(PAIRS[:1])[0]) > 0.1


def test_list_sizes_part_lists_of_the_same_query() -> None:
    model = tiny_set()
    pairs = PAIRS[2:6]
    one_list = model.predict(pairs)
    apart = model.predict(pairs, list_sizes=[1, 3])
    np.testing.assert_allclose(apart[:1], model.predict(pairs[:1]), rtol=1e-5)
    np.testing.assert_allclose(apart[1:], model.predict(pairs[1:]), rtol=1e-5)
    assert np.abs(apart - one_list).max() > 0.1


def test_predict_returns_what_a_cross_encoder_returns() -> None:
    model = tiny_set()
    scores = model.predict([list(pair) for pair in PAIRS])
    assert isinstance(scores, np.ndarray)
    assert scores.dtype == np.float32
    assert [score.item() for score in model.predict(PAIRS, convert_to_numpy=False)] == scores.tolist()
    assert model.predict(PAIRS[0]) == pytest.approx(model.predict(PAIRS[:1])[0], rel=1e-5)  # one pair
    np.testing.assert_allclose(model.predict(PAIRS, activation_fn=nn.Sigmoid()), 1 / (1 + np.exp(-scores)), rtol=1e-5)
    assert model.predict([]).shape == (0,)
    assert isinstance(model.activation_fn, nn.Identity)


def test_a_prompt_given_by_itself_or_by_its_name_goes_before_the_query() -> None:
    model = tiny_set()
    model.prompts = {"rank": "rank: "}
    expected = model.predict([(f"rank: {query}", doc) for query, doc in PAIRS])
    assert np.abs(expected - model.predict(PAIRS)).max() > 0.1
    for prompt in ({"prompt": "rank: "}, {"prompt_name": "rank"}):
        np.testing.assert_allclose(model.predict(PAIRS, **prompt), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "message"), [([2, 4], "add up to 6, but there are 9 pairs"), ([2, 4, 3, 0], "list 3 is empty")]
)
def test_list_sizes_that_do_not_fit_are_refused(sizes: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny_set().predict(PAIRS, list_sizes=sizes)


def test_rank_and_rank_batch_agree_with_predict() -> None:
    model = tiny_set()
    scores = np.split(model.predict(PAIRS), np.cumsum(SIZES)[:-1])
    rankings = model.rank_batch(QUERIES, DOCS, return_documents=True)
    for query, docs, own, ranking in zip(QUERIES, DOCS, scores, rankings):
        expected = np.argsort(-own).tolist()
        assert [entry["corpus_id"] for entry in ranking] == expected
        assert [entry["text"] for entry in ranking] == [docs[index] for index in expected]
        np.testing.assert_allclose([entry["score"] for entry in ranking], np.sort(own)[::-1], rtol=1e-5)
        alone = model.rank(query, docs)
        assert [entry["corpus_id"] for entry in alone] == expected
    assert [len(ranking) for ranking in model.rank_batch(QUERIES, DOCS, top_k=2)] == [2, 2, 2]
    same = model.rank_batch([QUERIES[1]] * 2, [DOCS[1], DOCS[1]])
    assert [e["corpus_id"] for e in same[0]] == [e["corpus_id"] for e in same[1]]
    with pytest.raises(ValueError, match="2 queries were given, but 1 lists"):
        model.rank_batch(QUERIES[:2], DOCS[:1])
    with pytest.raises(ValueError, match="list 1 is empty"):
        model.rank_batch(QUERIES[:2], [DOCS[0], []])


def test_a_pool_of_processes_is_handed_whole_lists() -> None:
    model = tiny_set()
    expected = model.predict(PAIRS)
    pool = model.start_multi_process_pool(["cpu", "cpu"])
    try:
        for chunk_size in (None, 1, 2):
            np.testing.assert_allclose(
                model.predict(PAIRS, pool=pool, chunk_size=chunk_size), expected, rtol=1e-5, atol=1e-5
            )
    finally:
        model.stop_multi_process_pool(pool)


def test_distributed_inference_is_handed_whole_lists() -> None:
    """sentence-transformers cuts what it distributes into equal parts; half a list would get other scores."""
    model = tiny_set()
    expected = model.predict(PAIRS)
    handed: list[Any] = []

    def two_shards(inputs: list[Any], **options: Any) -> torch.Tensor:
        handed.extend(inputs)
        return torch.cat([model._inference(inputs[:1], **options), model._inference(inputs[1:], **options)])

    model._distributed_inference = two_shards
    np.testing.assert_allclose(model.predict(PAIRS), expected, rtol=1e-5, atol=1e-5)
    assert [len(documents) for documents in handed] == SIZES


def test_the_stock_evaluator_works_unchanged() -> None:
    model = tiny_set()
    samples = [{"query": query, "positive": [docs[0]], "negative": docs[1:]} for query, docs in zip(QUERIES, DOCS)]
    metrics = CrossEncoderRerankingEvaluator(samples, write_csv=False)(model)
    ranks = [[entry["corpus_id"] for entry in ranking].index(0) + 1 for ranking in model.rank_batch(QUERIES, DOCS)]
    assert metrics["mrr@10"] == pytest.approx(np.mean([1 / rank for rank in ranks]))


# Building, saving, loading


def test_a_new_model_scores_each_document_by_itself() -> None:
    """The set layers start as the identity, so that training starts from a pointwise model."""
    model = tiny_set(identity_start=True)
    untouched = SetRankCrossEncoder(modules=[*list(model)[:2], *SetRankCrossEncoder._set_modules(model, 32)])
    together = untouched.predict(PAIRS)
    np.testing.assert_allclose(untouched.predict(PAIRS, list_sizes=[1] * len(PAIRS)), together, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_saved_model_loads_without_trusting_remote_code(tmp_path: Path, shape: dict[str, Any]) -> None:
    model = tiny_set(**shape)
    model.save_pretrained(str(tmp_path))
    loaded = SetRankCrossEncoder(str(tmp_path))
    assert loaded.predict(PAIRS).tolist() == model.predict(PAIRS).tolist()
    assert loaded.num_labels == 1
    assert isinstance(loaded.activation_fn, nn.Identity)
    assert json.loads((tmp_path / "config_sentence_transformers.json").read_text())["model_type"] == "CrossEncoder"


def test_a_stock_cross_encoder_loads_it_only_with_trust_and_refuses_to_predict(tmp_path: Path) -> None:
    tiny_set().save_pretrained(str(tmp_path))
    with pytest.raises(ValueError, match="trust_remote_code"):
        CrossEncoder(str(tmp_path))
    stock = CrossEncoder(str(tmp_path), trust_remote_code=True)
    with pytest.raises(ValueError, match=r"Load it with st_listwise\.SetRankCrossEncoder"):
        stock.predict(PAIRS)


def test_only_our_own_modules_are_trusted(tmp_path: Path) -> None:
    tiny_set().save_pretrained(str(tmp_path))
    listing = tmp_path / "modules.json"
    for reference in ("os.path.join", "st_listwise_evil.modules.SetRank", "st_listwise.losses.base.ListwiseLoss"):
        listing.write_text(listing.read_text().replace("st_listwise.modules.set_rank.SetRank", reference))
        with pytest.raises(ValueError, match="trust_remote_code"):
            SetRankCrossEncoder(str(tmp_path))
        listing.write_text(listing.read_text().replace(reference, "st_listwise.modules.set_rank.SetRank"))


@pytest.mark.parametrize("model_class", [SetRankCrossEncoder, CrossEncoder])
def test_a_model_of_a_later_version_says_what_to_install(tmp_path: Path, model_class: Any) -> None:
    tiny_set().save_pretrained(str(tmp_path))
    config = tmp_path / "config_sentence_transformers.json"
    assert '"specifier": ">=0.1' in config.read_text()
    config.write_text(re.sub(r'"specifier": ">=[^"]+"', '"specifier": ">=99"', config.read_text()))
    with pytest.raises(ImportError, match=r"st-listwise.*99"):
        model_class(str(tmp_path))


def test_a_trained_pointwise_model_gives_its_encoder(tmp_path: Path) -> None:
    pointwise = tiny_bert()
    pointwise.activation_fn = nn.Sigmoid()
    pointwise.save_pretrained(str(tmp_path))
    model = SetRankCrossEncoder(str(tmp_path), set_rank=SetRankConfig(layers=1, heads=4))
    assert isinstance(model.activation_fn, nn.Identity)
    expected = dict(pointwise.model.bert.named_parameters())
    for name, parameter in model.transformers_model.named_parameters():
        assert torch.equal(parameter, expected[name])


@pytest.mark.parametrize("pooling", [None, "mean", "cls"])
@torch.no_grad()
def test_the_vector_of_a_pair_is_its_first_token_or_the_mean_of_real_ones(tmp_path: Path, pooling: Any) -> None:
    tiny_bert().save_pretrained(str(tmp_path))
    model = SetRankCrossEncoder(str(tmp_path), set_rank=SetRankConfig(layers=1, heads=4), pooling=pooling).eval()
    features = model.preprocess(PAIRS)
    tokens = {name: features[name] for name in ("input_ids", "token_type_ids", "attention_mask")}
    hidden = model.transformers_model(**tokens).last_hidden_state
    real = tokens["attention_mask"][..., None]
    mean = (hidden * real).sum(1) / real.sum(1)
    assert not torch.allclose(mean, hidden[:, 0], atol=0.1)
    vectors = model.encode_pairs(features)["sentence_embedding"]
    torch.testing.assert_close(vectors, hidden[:, 0] if pooling == "cls" else mean, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_a_runtime_that_is_given_single_pairs_is_refused(tmp_path: Path, backend: str) -> None:
    tiny_set().save_pretrained(str(tmp_path))
    with pytest.raises(ValueError, match=rf"backend='{backend}' is not for set models: .* Run it with torch"):
        SetRankCrossEncoder(str(tmp_path), backend=backend)


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(ValueError, match="Give one of model_name_or_path, features"):
        SetRankCrossEncoder()
    with pytest.raises(ValueError, match="Give one of model_name_or_path, features"):
        SetRankCrossEncoder("x", features=FeatureVectors(3))
    with pytest.raises(ValueError, match="num_labels=3"):
        SetRankCrossEncoder("x", num_labels=3)
    given: list[dict[str, Any]] = [
        {"model_name_or_path": FeatureVectors(3)},
        {"features": 3},
        {"features": np.zeros((2, 3))},
        {"model_name_or_path": "x", "set_rank": {"layers": 4}},
        {"model_name_or_path": "x", "set_rank": SetRankConfig},
    ]
    for options in given:
        name, part = list(options.items())[-1]
        message = rf"{name} is {type(part).__name__}: expected .*set_rank=SetRankConfig\(\.\.\.\)\), or features="
        with pytest.raises(ValueError, match=message):
            SetRankCrossEncoder(**options)
    with pytest.raises(ValueError, match="no SetRank among the modules"):
        SetRankCrossEncoder(modules=list(tiny_set())[:2])


@pytest.mark.parametrize("options", [{"set_rank": SetRankConfig(layers=4)}, {"pooling": "cls"}], ids=str)
def test_a_shape_for_a_saved_model_is_not_silently_ignored(tmp_path: Path, options: dict[str, Any]) -> None:
    tiny_set().save_pretrained(str(tmp_path))
    with pytest.raises(ValueError, match="leave out set_rank and pooling"):
        SetRankCrossEncoder(str(tmp_path), **options)


def test_no_parameter_waits_for_a_gradient_that_never_comes() -> None:
    """BERT's pooler is loaded but not used; with DistributedDataParallel every process would wait for it."""
    model = tiny_set()
    ListMLELoss(model)([QUERIES, DOCS], [torch.tensor(row) for row in LABELS]).backward()
    assert [name for name, part in model.named_parameters() if part.requires_grad and part.grad is None] == []


# Training


def train(model: SetRankCrossEncoder, folder: Path, dataset: Any = None, **options: Any) -> CrossEncoderTrainer:
    rows = Dataset.from_dict({"query": QUERIES, "docs": DOCS, "labels": LABELS}) if dataset is None else dataset
    resume = options.pop("resume", None)
    evaluator = options.pop("evaluator", None)
    args = CrossEncoderTrainingArguments(
        **{
            "output_dir": str(folder),
            "num_train_epochs": 6,
            "per_device_train_batch_size": 2,
            "learning_rate": 5e-3,
            "report_to": "none",
            "logging_steps": 1,
            "save_strategy": "epoch",
            "use_cpu": True,
            "disable_tqdm": True,
            **options,
        }
    )
    loss = ListMLELoss(model, mini_batch_size=3)
    trainer = CrossEncoderTrainer(model=model, args=args, train_dataset=rows, loss=loss, evaluator=evaluator)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_training_resumes_from_a_checkpoint_to_the_same_weights(tmp_path: Path) -> None:
    whole = tiny_set()
    trainer = train(whole, tmp_path / "whole")
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert logged[-1] < logged[0]
    resumed = tiny_set(seed=1)
    train(resumed, tmp_path / "resumed", resume=str(tmp_path / "whole" / "checkpoint-6"))
    for name, parameter in resumed.named_parameters():
        torch.testing.assert_close(parameter, whole.get_parameter(name), rtol=0, atol=0)


def test_the_best_checkpoint_is_loaded_at_the_end(tmp_path: Path) -> None:
    samples = [{"query": query, "positive": [docs[0]], "negative": docs[1:]} for query, docs in zip(QUERIES, DOCS)]
    model = tiny_set()
    trainer = train(
        model,
        tmp_path,
        evaluator=CrossEncoderRerankingEvaluator(samples, write_csv=False),
        eval_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="eval_ndcg@10",
    )
    best = SetRankCrossEncoder(trainer.state.best_model_checkpoint)
    assert best.predict(PAIRS).tolist() == model.predict(PAIRS).tolist()


def test_the_snippet_of_the_saved_card_runs(tmp_path: Path) -> None:
    model = tiny_set()
    train(model, tmp_path / "run", save_strategy="no")
    model.save_pretrained(str(tmp_path / "final"))
    card = (tmp_path / "final" / "README.md").read_text(encoding="utf-8")
    assert "ListMLELoss" in card
    assert "pip install -U st-listwise" in card
    run_snippet(card, tmp_path / "final")


def run_snippet(card: str, folder: Path) -> dict[str, Any]:
    snippet = re.search(r"```python\n(.*?)```", card, re.DOTALL)
    assert snippet
    assert "from st_listwise import SetRankCrossEncoder" in snippet[1]
    assert '"cross_encoder_model_id"' in snippet[1]
    scope: dict[str, Any] = {}
    exec(snippet[1].replace('"cross_encoder_model_id"', repr(str(folder))), scope)
    assert isinstance(scope["model"], SetRankCrossEncoder)
    assert len(scope["ranks"]) >= 2
    return scope


# Numeric documents


def numeric_rows(queries: int = 12) -> Dataset:
    generator = np.random.default_rng(0)
    docs = [generator.normal(size=(int(generator.integers(2, 7)), 5)) for _ in range(queries)]
    labels = [(vectors[:, 0] > vectors[:, 0].mean()).astype(float) for vectors in docs]
    return Dataset.from_dict({"query": [f"q{i}" for i in range(queries)], "docs": docs, "labels": labels})


def test_a_numeric_model_trains_saves_and_loads(tmp_path: Path) -> None:
    rows = numeric_rows()
    features = FeatureVectors.fit(np.concatenate([np.asarray(docs) for docs in rows["docs"]]), ranking_columns=[1])
    config = SetRankConfig(width=16, heads=2, ordinal="absolute", max_docs=10)
    model = SetRankCrossEncoder(features=features, set_rank=config)
    trainer = train(model, tmp_path / "run", rows, num_train_epochs=20, save_strategy="no")
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert np.mean(logged[-6:]) < 0.7 * np.mean(logged[:6])
    model.save_pretrained(str(tmp_path / "final"))
    loaded = SetRankCrossEncoder(str(tmp_path / "final"))
    vectors = np.asarray(rows[0]["docs"])
    assert loaded.rank("q", vectors) == model.rank("q", vectors)
    assert loaded.predict(("q", vectors[0])) == model.predict([("q", vectors[0])])[0]
    scope = run_snippet((tmp_path / "final" / "README.md").read_text(encoding="utf-8"), tmp_path / "final")
    assert scope["documents"].shape == (3, 5)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.zeros((4, 5)), r"Input 0 is no \(query, document\) pair: array"),
        ([("q", np.zeros(5)), np.zeros(5)], r"Input 1 is no \(query, document\) pair: array"),
        ("q", r"Input 0 is no \(query, document\) pair: 'q'"),
    ],
)
def test_inputs_without_a_query_are_named(inputs: Any, message: str) -> None:
    model = SetRankCrossEncoder(features=FeatureVectors(5), set_rank=SetRankConfig(width=8))
    with pytest.raises(ValueError, match=message):
        model.predict(inputs)


def test_a_vector_of_the_wrong_width_is_named_in_predict() -> None:
    model = SetRankCrossEncoder(features=FeatureVectors(5), set_rank=SetRankConfig(width=8))
    with pytest.raises(ValueError, match=r"query 'q', document 1 has shape \(4,\)"):
        model.rank("q", [[0.0] * 5, [0.0] * 4])
