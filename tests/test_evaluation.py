"""The graded evaluator against arithmetic by hand, and the paired comparison against its formulas."""

from __future__ import annotations

import csv
import math
import re
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from scipy import stats
from sentence_transformers import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
from tiny_models import tiny_bert, tiny_set

from st_listwise import ListMLELoss
from st_listwise.evaluation import GradedRerankingEvaluator, compare, predict_lists

LISTS: list[dict[str, Any]] = [
    {"query": "q", "docs": ["a", "b", "c"], "labels": [0, 2, 1]},
    {"query": "r", "docs": ["d", "e"], "labels": [1, 0], "missed": [3]},
]
SCORES = [np.array([3.0, 2.0, 1.0]), np.array([1.0, 2.0])]  # orders a b c, and e d


def log2(position: int) -> float:
    return math.log2(1 + position)


def test_measures_are_those_of_arithmetic_and_missed_documents_count() -> None:
    evaluator = GradedRerankingEvaluator(LISTS, ["nDCG@10", "RR@10", "AP(rel=1)", "R@10"])
    values = evaluator.measure(SCORES)
    first = (2 / log2(2) + 1 / log2(3)) / (2 / log2(1) + 1 / log2(2))
    second = (1 / log2(2)) / (3 / log2(1) + 1 / log2(2))  # the missed document of grade 3 would stand first
    np.testing.assert_allclose(values["nDCG@10"], [first, second], atol=1e-6)
    np.testing.assert_allclose(values["RR@10"], [1 / 2, 1 / 2], atol=1e-6)
    np.testing.assert_allclose(values["AP(rel=1)"], [(1 / 2 + 2 / 3) / 2, (1 / 2) / 2], atol=1e-6)
    np.testing.assert_allclose(values["R@10"], [1, 1 / 2], atol=1e-6)


def test_a_model_that_scores_all_alike_is_worth_a_random_order() -> None:
    """sentence-transformers' evaluator gives such a model the order of the data, or its reverse."""
    lists = [{"query": str(i), "docs": list("abcde"), "labels": [1, 0, 0, 0, 0]} for i in range(2000)]
    evaluator = GradedRerankingEvaluator(lists, "RR")
    values = evaluator.measure([np.zeros(5)] * 2000)["RR"]
    expected = np.mean([1 / rank for rank in range(1, 6)])
    assert np.mean(values) == pytest.approx(expected, abs=5 * np.std(values) / math.sqrt(2000))
    assert values == evaluator.measure([np.zeros(5)] * 2000)["RR"]


@pytest.mark.parametrize("build", [tiny_bert, tiny_set])
def test_a_model_is_measured_with_its_own_scores_and_each_query_is_written(tmp_path: Path, build: Any) -> None:
    same_query = [*LISTS, {"query": "r", "docs": ["f", "g", "h"], "labels": [0, 0, 1]}]
    model: CrossEncoder = build()
    evaluator = GradedRerankingEvaluator(same_query, ["nDCG@10", "RR"], name="dev")
    metrics = evaluator(model, str(tmp_path), epoch=1, steps=7)
    scores = [model.predict([(row["query"], doc) for doc in row["docs"]]) for row in same_query]
    expected = evaluator.measure(scores)
    assert metrics == pytest.approx({f"dev_{name}": np.mean(values) for name, values in expected.items()}, abs=1e-9)
    assert evaluator.primary_metric == "dev_nDCG@10"
    with (tmp_path / "graded_reranking_dev_epoch1_step7.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["query"] for row in rows] == ["q", "r", "r"]
    np.testing.assert_allclose([float(row["RR"]) for row in rows], expected["RR"])


def test_the_best_model_is_chosen_by_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_bert()
    rows = Dataset.from_list([{key: row[key] for key in ("query", "docs", "labels")} for row in LISTS])
    args = CrossEncoderTrainingArguments(
        str(tmp_path),
        num_train_epochs=3,
        learning_rate=1e-2,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="eval_dev_nDCG@10",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    evaluator = GradedRerankingEvaluator(LISTS, name="dev", write_csv=False)
    values = iter([0.2, 0.9, 0.5])
    monkeypatch.setattr(evaluator, "measure", lambda scores: {"nDCG@10": [next(values)]})
    trainer = CrossEncoderTrainer(model, args, rows, loss=ListMLELoss(model), evaluator=evaluator)
    trainer.train()
    logged = [entry["eval_dev_nDCG@10"] for entry in trainer.state.log_history if "eval_dev_nDCG@10" in entry]
    assert logged == [0.2, 0.9, 0.5]
    assert trainer.state.best_metric == 0.9
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    pairs = [(row["query"], doc) for row in LISTS for doc in row["docs"]]
    first, best, last = (CrossEncoder(str(tmp_path / f"checkpoint-{number}")).predict(pairs) for number in (1, 2, 3))
    assert model.predict(pairs).tolist() == best.tolist()
    assert best.tolist() not in (first.tolist(), last.tolist())


def test_queries_without_a_relevant_document_are_left_out() -> None:
    nothing = {"query": "s", "docs": ["x", "y"], "labels": [0, 0]}
    assert len(GradedRerankingEvaluator([*LISTS, nothing]).rows) == 2
    one_document = {"query": "s", "docs": ["x"], "labels": [1]}
    assert GradedRerankingEvaluator([one_document]).measure([np.array([0.3])]) == {"nDCG@10": [1.0]}


@pytest.mark.parametrize(
    ("row", "measure", "message"),
    [
        ({"docs": [], "labels": []}, "nDCG", "documents of query 0 is an empty list"),
        ({"docs": ["a", "b"], "labels": [1]}, "nDCG", "labels of query 0: 1 labels for 2 documents"),
        ({"docs": ["a", "b"], "labels": [1, 0.5]}, "nDCG", "labels of query 0, document 1 is 0.5"),
        ({"docs": ["a", "b"], "labels": [-1, 1]}, "nDCG", "labels of query 0, document 0 is -1"),
        ({"docs": ["a", "b"], "labels": [1, math.nan]}, "nDCG", "labels of query 0, document 1 is nan"),
        ({"docs": ["a", "b"], "labels": [0, 0]}, "nDCG", "of 1 lists none has a relevant document"),
        ({"docs": ["a", "b"], "labels": [1, 0]}, "nDGC@10", "'nDGC@10' is not known to ir-measures"),
        ({"docs": ["a", "b"], "labels": [1, None]}, "nDCG", "labels of query 0, document 1 is None: grades are whole"),
        ({"docs": ["a", "b"], "labels": [1, "1"]}, "nDCG", "labels of query 0, document 1 is '1': grades are whole"),
        ({"docs": ["a", "b"], "labels": [math.inf, 0]}, "nDCG", "labels of query 0, document 0 is inf: grades are"),
        ({"docs": ["a"], "labels": [1], "missed": [2, None]}, "nDCG", "missed of query 0, place 1 is None"),
        ({"docs": ["a", None], "labels": [1, 0]}, "nDCG", "documents of query 0, document 1 is None: drop it"),
        ({"docs": "ab", "labels": [1, 0]}, "nDCG", "docs of query 0 is str, expected a list"),
        ({"docs": ["a"], "labels": 1}, "nDCG", "labels of query 0 is int, expected a list"),
        ({"query": None, "docs": ["a"], "labels": [1]}, "nDCG", "query 0 has no query, only docs, labels"),
        ({"docs": ["a"]}, "nDCG", "query 0 has no labels, only query, docs. Each row needs"),
        ({"docs": ["a", "b"], "labels": [1, 0]}, [], "measures is empty: name one at least"),
        ({"docs": ["a", "b"], "labels": [1, 0]}, None, "'None' is not known to ir-measures"),
    ],
)
def test_bad_lists_and_measures_are_named(row: dict[str, Any], measure: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GradedRerankingEvaluator([{"query": "q", **row}], measure)


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        ("SDCG@10", "'SDCG@10' cannot be computed here: it needs max_rel"),
        ("INST", "'INST' cannot be computed here: it needs max_rel"),
        ("BPM", "'BPM' cannot be computed here: it needs cutoff, max_rel"),
        ("P", "'P' cannot be computed here: it needs cutoff"),
        ("RBP", "'RBP' cannot be computed here: Unsupported measures .* parameters, .*: cutoff, p, rel"),
        ("RR(top=3)", r"'RR\(top=3\)' cannot be computed here: it has no top"),
        ("nDCG@0", "'nDCG@0' cannot be computed here: 0 as cutoff is below 1"),
        ("nDCG(dcg='log3')@10", "cannot be computed here: invalid param dcg='log3'"),
        ("IPrec@2.5x", "is not known to ir-measures"),
    ],
)
def test_a_measure_that_cannot_be_computed_is_named_before_training(measure: str, message: str) -> None:
    """They failed in the first evaluation, after training had begun; a cutoff of 0 ended the process."""
    with pytest.raises(ValueError, match=f"measures: .*{message}"):
        GradedRerankingEvaluator(LISTS, ["nDCG@10", measure])


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"negative": ["b", "c"]}, {"docs": ["a", "b", "c"], "labels": [1, 0, 0]}),
        ({"documents": ["b", "a"]}, {"docs": ["b", "a"], "labels": [0, 1]}),
    ],
)
def test_samples_of_sentence_transformers_are_refused_with_how_to_turn_them(
    more: dict[str, Any], expected: dict[str, Any]
) -> None:
    """It was KeyError: 'docs'. What the message says to do is done here."""
    sample = {"query": "q", "positive": ["a"], **more}
    with pytest.raises(ValueError, match=r"^query 1 has no docs, labels, only query, positive, \w+\. Make ") as caught:
        GradedRerankingEvaluator([LISTS[0], sample])
    said = re.findall(r'"(docs|labels)" of (.+?)(?=, "|, and|\.$)', str(caught.value))
    assert {name: eval(code, dict(sample)) for name, code in said} == expected


def test_measures_may_be_the_objects_of_ir_measures() -> None:
    from ir_measures import AP, nDCG

    for measures, names in ((nDCG @ 10, ["nDCG@10"]), ([nDCG @ 10, AP(rel=2)], ["nDCG@10", "AP(rel=2)"])):
        assert GradedRerankingEvaluator(LISTS, measures).measure(SCORES) == (
            GradedRerankingEvaluator(LISTS, names).measure(SCORES)
        )


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        (DatasetDict(test=Dataset.from_list([LISTS[0]])), "query 0 is str 'test', expected a row.* not a DatasetDict"),
        ({"query": ["q"], "docs": [["a"]], "labels": [[1]]}, "query 0 is str 'query', expected a row"),
    ],
    ids=["DatasetDict", "columns"],
)
def test_lists_that_are_no_rows_are_named(lists: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GradedRerankingEvaluator(lists)


def test_a_model_that_cannot_rank_is_refused_before_it_predicts() -> None:
    """Its scores failed inside np.lexsort, after all pairs had been scored."""
    evaluator = GradedRerankingEvaluator(LISTS)
    with pytest.raises(ValueError, match="Ranking needs a model with 1 output label, got one with 3: build it as"):
        evaluator(tiny_bert(num_labels=3))
    with pytest.raises(ValueError, match=r"Ranking needs a CrossEncoder, got str: CrossEncoder\(name, num_labels=1"):
        evaluator("a name")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("queries", "docs", "message"),
    [
        (["q", "r"], [["a"]], "2 queries were given, but 1 lists of documents"),
        ("qr", [["a"], ["b"]], "queries is one text, 'qr', expected a list"),
        (["q", "r"], [["a"], "bc"], "documents of query 1 is 'bc', expected a list"),
        (["q", "r"], [None, ["b"]], "documents of query 0 is None, expected a list"),
    ],
)
@pytest.mark.parametrize("build", [tiny_bert, tiny_set])
def test_a_text_in_place_of_a_list_was_ranked_as_its_characters(
    build: Any, queries: Any, docs: Any, message: str
) -> None:
    model = build()
    for rank in (partial(predict_lists, model), *([model.rank_batch] if build is tiny_set else [])):
        with pytest.raises(ValueError, match=message):
            rank(queries, docs)


def test_a_score_that_is_not_finite_is_named() -> None:
    with pytest.raises(ValueError, match="score of query 1, document 0 is nan"):
        GradedRerankingEvaluator(LISTS).measure([SCORES[0], np.array([math.nan, 1.0])])


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([SCORES[0], np.zeros(1), SCORES[1]], "There are 3 lists of scores for 2 lists with a relevant document"),
        (SCORES[:1], "There are 1 lists of scores for 2 lists"),
        ([SCORES[0], SCORES[0]], r"Query 1 has 2 documents, but scores of shape \(3,\)"),
        (np.zeros(2), r"Query 0 has 3 documents, but scores of shape \(\)"),
    ],
)
def test_scores_that_do_not_fit_the_lists_were_measured_with_those_of_another_one(scores: Any, message: str) -> None:
    """Queries without a relevant document are left out, so that scores of all lists stand in other places."""
    evaluator = GradedRerankingEvaluator([LISTS[0], {"query": "s", "docs": ["x"], "labels": [0]}, LISTS[1]])
    with pytest.raises(ValueError, match=message):
        evaluator.measure(scores)


# Comparison


def test_a_comparison_is_the_paired_t_test_with_a_bootstrap_interval() -> None:
    generator = np.random.default_rng(0)
    a, b = generator.normal(0.6, 0.2, 200), generator.normal(0.55, 0.2, 200)
    found = compare(a, b)
    d = a - b
    t = d.mean() / (d.std(ddof=1) / math.sqrt(len(d)))
    assert found.p_value == pytest.approx(2 * stats.t.sf(abs(t), len(d) - 1))
    assert found.difference == pytest.approx(d.mean())
    for interval, errors in ((found, 1.96), (compare(a, b, confidence=0.5), 0.6745)):
        half = errors * d.std(ddof=1) / math.sqrt(len(d))  # what the bootstrap comes to for a mean of many
        assert interval.low == pytest.approx(d.mean() - half, abs=0.1 * half)
        assert interval.high == pytest.approx(d.mean() + half, abs=0.1 * half)
    assert (found.wins, found.losses) == (int((d > 0).sum()), int((d < 0).sum()))


def test_equal_models_differ_by_nothing() -> None:
    assert compare([0.5, 0.2], [0.5, 0.2]) == (0.0, 0.0, 0.0, 1.0, 0, 0)
    with pytest.raises(ValueError, match=r"got \(2,\) and \(3,\)"):
        compare([0.5, 0.2], [0.5, 0.2, 0.1])
    with pytest.raises(ValueError, match=r"such as evaluator.per_query\['nDCG@10'\] of each model: got dict and dict"):
        compare({"nDCG@10": [0.5, 0.2]}, {"nDCG@10": [0.5, 0.2]})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"The values of query 1 are 0\.2 and nan: both must be finite"):
        compare([0.5, 0.2], [0.5, math.nan])
    with pytest.raises(ValueError, match="confidence=95 must lie between 0 and 1"):
        compare([0.5, 0.2], [0.1, 0.3], confidence=95)  # its interval was from NaN to NaN


def test_seven_thousand_queries_are_resampled_in_little_memory() -> None:
    """scipy's matrix of all resamples took 1.55 GB for the queries of MS MARCO's small development set."""
    a, b = np.random.default_rng(0).random((2, 7000))
    compare([1.0, 0.0], [0.0, 0.0])  # scipy is imported
    tracemalloc.start()
    try:
        compare(a, b)
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("queries", [2, 243, 1999])
def test_resampling_in_parts_changes_no_digit(queries: int) -> None:
    """Cards hold such intervals, and are compared with what is made anew."""
    a, b = np.random.default_rng(queries).random((2, queries))
    whole = stats.bootstrap(
        (a - b,), np.mean, n_resamples=9999, method="percentile", rng=np.random.default_rng(12)
    ).confidence_interval
    found = compare(a, b)
    assert (found.low, found.high) == (whole.low, whole.high)
