"""ListStatisticsCallback: its figures counted another way, where they are logged, and the warning of a collapse."""

from __future__ import annotations

import logging
import math
import os
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, DatasetDict
from sentence_transformers import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.cross_encoder.losses import ListNetLoss as UpstreamListNetLoss
from sentence_transformers.sentence_transformer.evaluation import SequentialEvaluator
from separate_runs import count_together, finish, rows, start
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_models import tiny_bert, tiny_set

import st_listwise
from st_listwise import ListStatisticsCallback
from st_listwise.evaluation import GradedRerankingEvaluator

ROWS: dict[str, list[Any]] = {
    "query": ["what is a bear", "capital of france", "how fast", "why"],
    "docs": [["an animal", "a planet"], ["paris", "rome", "berlin"], ["as light"], ["because", "no", "it is so"]],
    "weight": [1.0, 1.0, 1.0, 0.0],
    "labels": [[1, 0], [1, 1, 1], [1], [1, 0, 2]],
}
PAIRS = [(query, doc) for query, docs in zip(ROWS["query"], ROWS["docs"]) for doc in docs]
SIZES = [2, 3, 1, 3]


def trainer_of(folder: Path, model: Any, loss: Any, dataset: Any = None, **options: Any) -> CrossEncoderTrainer:
    defaults: dict[str, Any] = {
        "max_steps": 4,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 3,
        "learning_rate": 0.0,  # so that scores are those of the model that went in
        "report_to": "none",
        "logging_steps": 2,
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
    }
    args = CrossEncoderTrainingArguments(output_dir=str(folder), **(defaults | options))
    dataset = Dataset.from_dict(ROWS) if dataset is None else dataset
    return CrossEncoderTrainer(model=model, args=args, train_dataset=dataset, eval_dataset=dataset, loss=loss)


def logged(trainer: CrossEncoderTrainer, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def spread_within_lists(model: CrossEncoder) -> float:
    """By the standard library, from what the model predicts; the list of one document has no spread."""
    scores = model.predict(PAIRS).tolist()
    lists = [scores[start : start + size] for start, size in [(0, 2), (2, 3), (6, 3)]]
    return statistics.fmean(statistics.pstdev(one) for one in lists)


@pytest.mark.parametrize("build", [tiny_bert, tiny_set])
@pytest.mark.parametrize(("batch_size", "accumulation"), [(4, 1), (1, 4)])
def test_figures_are_those_of_the_lists_whatever_the_batch(
    tmp_path: Path, build: Any, batch_size: int, accumulation: int
) -> None:
    model = build()
    loss = st_listwise.ListNetLoss(model, mini_batch_size=2, recompute=True)
    trainer = trainer_of(
        tmp_path, model, loss, per_device_train_batch_size=batch_size, gradient_accumulation_steps=accumulation
    )
    trainer.add_callback(ListStatisticsCallback(trainer))
    trainer.train()
    trainer.evaluate()
    expected = spread_within_lists(model)
    assert logged(trainer, "score_spread") == pytest.approx([expected] * 2, rel=1e-3)
    assert logged(trainer, "eval_score_spread") == pytest.approx([expected], rel=1e-3)
    assert logged(trainer, "lists_that_teach") == [0.25] * 2  # one label, one document, and weight 0 do not
    tokens = sum(len(model.tokenizer(query, doc)["input_ids"]) for query, doc in PAIRS)
    rates = zip(logged(trainer, "tokens_per_second"), logged(trainer, "pairs_per_second"))
    assert [of_tokens / of_pairs for of_tokens, of_pairs in rates] == pytest.approx([tokens / 9] * 2, rel=2e-3)


def test_rates_leave_evaluation_and_saving_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of the test's own: a step of 9 pairs takes 1 second, an evaluation 100, a checkpoint 1000."""
    clock = [0.0]
    monkeypatch.setattr("st_listwise.callback.time.perf_counter", lambda: clock[0])
    model = tiny_bert()
    trainer = trainer_of(tmp_path, model, st_listwise.ListNetLoss(model), max_steps=6, eval_strategy="steps")
    trainer.args.eval_steps, trainer.args.save_strategy, trainer.args.save_steps = 3, "steps", 1
    slow = {"training_step": 1, "evaluation_loop": 100, "_save_checkpoint": 1000}
    for name, seconds in slow.items():
        monkeypatch.setattr(trainer, name, _taking(clock, seconds, getattr(trainer, name)))
    trainer.add_callback(ListStatisticsCallback(trainer))
    trainer.train()
    assert logged(trainer, "pairs_per_second") == [9.0] * 3


def _taking(clock: list[float], seconds: float, function: Any) -> Any:
    def wrapped(*arguments: Any, **options: Any) -> Any:
        clock[0] += seconds
        return function(*arguments, **options)

    return wrapped


def test_tensorboard_gets_every_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    model = tiny_bert()
    trainer = trainer_of(tmp_path, model, st_listwise.ListMLELoss(model), report_to="tensorboard")
    trainer.add_callback(ListStatisticsCallback(trainer))
    trainer.train()
    board = EventAccumulator(str(tmp_path / "board")).Reload()
    for name in ("score_spread", "lists_that_teach", "pairs_per_second", "tokens_per_second"):
        events = board.Scalars(f"train/{name}")
        assert [event.step for event in events] == [2, 4]
        assert [event.value for event in events] == pytest.approx(logged(trainer, name), rel=1e-6)


def test_parts_of_a_combination_are_scored_once_and_counted_once(tmp_path: Path) -> None:
    model = tiny_bert()
    parts = {"rank": (st_listwise.ListMLELoss(model), 1.0), "teacher": (st_listwise.ADRMSELoss(model), 0.5)}
    loss = st_listwise.CombinedLoss(parts)
    trainer = trainer_of(tmp_path, model, loss, max_steps=1, logging_steps=1)
    callback = ListStatisticsCallback(trainer)
    loss([column for name, column in ROWS.items() if name != "labels"], [torch.tensor(row) for row in ROWS["labels"]])
    assert callback._statistics.take(training=True).tolist()[3:5] == [4, 9]


def test_losses_of_several_data_sets_are_counted_together_and_others_are_left_alone(tmp_path: Path) -> None:
    model = tiny_bert()
    rows = {name: column for name, column in ROWS.items() if name != "weight"}
    first = {name: column[:1] for name, column in rows.items()}
    columns = {"ours": rows, "theirs": rows, "also ours": first}
    sets = DatasetDict({name: Dataset.from_dict(own) for name, own in columns.items()})
    losses = {
        "ours": st_listwise.ListNetLoss(model),
        "theirs": UpstreamListNetLoss(model),
        "also ours": st_listwise.ADRMSELoss(model),
    }
    trainer = trainer_of(tmp_path, model, losses, sets, num_train_epochs=1, max_steps=-1, logging_steps=3)
    trainer.add_callback(ListStatisticsCallback(trainer))
    trainer.train()
    assert logged(trainer, "lists_that_teach") == [0.6]  # of five lists the first, the last, and the first again


def test_scores_that_are_all_equal_are_warned_about_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The loss is stuck at ln(list size), and nothing else would tell."""
    model = tiny_bert()
    torch.nn.init.zeros_(model.model.classifier.weight)
    rows = Dataset.from_dict({"query": ["a", "b"], "docs": [["c", "d", "e"]] * 2, "labels": [[1, 0, 0]] * 2})
    trainer = trainer_of(tmp_path, model, st_listwise.ListMLELoss(model), rows, max_steps=8)
    trainer.add_callback(ListStatisticsCallback(trainer))
    trainer.train()
    assert logged(trainer, "loss") == pytest.approx([math.log(3)] * 4, abs=1e-3)
    assert logged(trainer, "score_spread") == [0.0] * 4
    assert caplog.text.count("scores all documents of a query alike") == 1


def test_dropout_does_not_hide_a_collapse_from_evaluation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A model that no longer looks at the text, but whose head still drops a tenth: training scores are noise."""
    model = tiny_bert(dropout=0.5)
    torch.nn.init.zeros_(model.model.bert.pooler.dense.weight)
    torch.nn.init.ones_(model.model.bert.pooler.dense.bias)
    trainer = trainer_of(tmp_path, model, st_listwise.ListMLELoss(model), eval_strategy="steps", eval_steps=1)
    trainer.add_callback(ListStatisticsCallback(trainer))
    trainer.train()
    assert min(logged(trainer, "score_spread")) > 0.01
    assert logged(trainer, "eval_score_spread") == pytest.approx([0.0] * 4, abs=1e-6)
    assert caplog.text.count("scores all documents of a query alike") == 1


def test_a_healthy_run_is_not_warned_about_nor_one_that_recovers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_bert()
    trainer = trainer_of(tmp_path, model, st_listwise.ListMLELoss(model))
    callback = ListStatisticsCallback(trainer, patience=2)
    trainer.add_callback(callback)
    caplog.set_level(logging.WARNING)
    trainer.train()
    for spread in (0.0, 0.1, 0.0, 0.1):
        callback._watch(spread, training=True)
    assert "alike" not in caplog.text


def test_too_little_spread_is_warned_about_at_the_last_of_patience_logs_in_a_row(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_bert()
    trainer = trainer_of(tmp_path, model, st_listwise.ListMLELoss(model))
    callback = ListStatisticsCallback(trainer, min_spread=0.5, patience=2)
    warnings = []
    for spread in (0.4, 0.5, 0.4, 0.4, 0.4):
        callback._watch(spread, training=True)
        warnings.append(caplog.text.count("scores all documents of a query alike"))
    assert warnings == [0, 0, 0, 1, 1]
    assert "in the last 2 logs the standard deviation within a list was below 0.5 (0.4 now)" in caplog.text


def test_a_trainer_without_a_loss_of_ours_is_refused(tmp_path: Path) -> None:
    model = tiny_bert()
    trainer = trainer_of(tmp_path, model, UpstreamListNetLoss(model))
    with pytest.raises(ValueError, match=r"losses of st_listwise; this trainer's is ListNetLoss\."):
        ListStatisticsCallback(trainer)
    with pytest.raises(ValueError, match=r"watches a trainer, got ListMLELoss: .*trainer\.add_callback"):
        ListStatisticsCallback(st_listwise.ListMLELoss(model))  # type: ignore[arg-type]


@pytest.mark.parametrize("metric", ["eval_dev_nDCG@10", "dev_nDCG@10", "eval_test_AP", "eval_loss", "loss"])
def test_a_best_model_by_what_is_measured_is_taken(tmp_path: Path, metric: str) -> None:
    ListStatisticsCallback(_best_by(metric, tmp_path))


@pytest.mark.parametrize("metric", ["eval_nDCG@10", "eval_dev_ndcg@10", "nDCG"])
def test_a_best_model_by_what_is_not_measured_is_refused_before_training(tmp_path: Path, metric: str) -> None:
    """A mistyped key ended training with a KeyError after the first evaluation."""
    with pytest.raises(
        ValueError, match=rf"'{metric}' is not measured .* 'eval_dev_nDCG@10', 'eval_test_AP',.*_loss'"
    ):
        ListStatisticsCallback(_best_by(metric, tmp_path))


def _best_by(metric: str, folder: Path) -> CrossEncoderTrainer:
    options = {"load_best_model_at_end": True, "eval_strategy": "steps", "save_strategy": "steps"}
    model = tiny_bert()
    trainer = trainer_of(folder, model, st_listwise.ListMLELoss(model), metric_for_best_model=metric, **options)
    lists = [{"query": "q", "docs": ["a", "b"], "labels": [0, 1]}]
    dev, test = (
        GradedRerankingEvaluator(lists, [own], name=name) for name, own in (("dev", "nDCG@10"), ("test", "AP"))
    )
    trainer.evaluator = SequentialEvaluator([dev, test])
    return trainer


def test_two_processes_log_what_both_have_seen(tmp_path: Path) -> None:
    port = 20000 + (os.getpid() + 1) % 20000
    processes = [start(count_together, rank, port, tmp_path) for rank in range(2)]
    assert [finish(process) for process in processes] == [0, 0]
    model, lists = tiny_bert(), list(rows())
    scores = [model.predict([(row["query"], doc) for doc in row["docs"]]).tolist() for row in lists]
    expected = statistics.fmean(statistics.pstdev(own) for own in scores)
    log = torch.load(tmp_path / "log.pt")
    assert [entry["score_spread"] for entry in log if "score_spread" in entry] == [pytest.approx(expected, rel=1e-3)]
    assert [e["eval_score_spread"] for e in log if "eval_score_spread" in e] == [pytest.approx(expected, rel=1e-3)]
    assert [entry["lists_that_teach"] for entry in log if "lists_that_teach" in entry] == [1.0]
