"""Our losses in sentence-transformers' CrossEncoderTrainer, in every way in which it takes a loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, DatasetDict
from sentence_transformers import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
from tiny_models import tiny_bert, tiny_decoder

import st_listwise

ROWS: dict[str, list[Any]] = {
    "query": ["what is a bear", "capital of france", "how fast", "why"],
    "docs": [
        ["an animal", "a planet"],
        ["paris", "rome", "berlin"],
        ["as light", "slow"],
        ["because", "no", "it is so"],
    ],
    "labels": [[1, 0], [2, 0, 1], [0, 1], [1, 0, 0]],
}
PAIRS = [(query, doc) for query, docs in zip(ROWS["query"], ROWS["docs"]) for doc in docs]


def arguments(folder: Path, **options: Any) -> CrossEncoderTrainingArguments:
    defaults: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": 12,
        "per_device_train_batch_size": 2,
        "learning_rate": 5e-3,
        "report_to": "none",
        "logging_steps": 4,
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return CrossEncoderTrainingArguments(**(defaults | options))


def train(folder: Path, loss: Any, dataset: Any = None, **options: Any) -> CrossEncoderTrainer:
    dataset = Dataset.from_dict(ROWS) if dataset is None else dataset
    trainer = CrossEncoderTrainer(args=arguments(folder), train_dataset=dataset, loss=loss, **options)
    trainer.train()
    return trainer


def losses_logged(trainer: CrossEncoderTrainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize(
    "name", [name for name in st_listwise.losses.__all__ if name not in ("ListwiseLoss", "CombinedLoss")]
)
def test_every_loss_trains(tmp_path: Path, name: str) -> None:
    model = tiny_bert()
    logged = losses_logged(train(tmp_path, getattr(st_listwise, name)(model, mini_batch_size=3), model=model))
    assert logged[-1] < logged[0]


def test_a_trained_model_is_saved_as_a_stock_one(tmp_path: Path) -> None:
    model = tiny_bert()
    train(tmp_path, st_listwise.ListMLELoss(model), model=model)
    model.save_pretrained(str(tmp_path / "final"))
    loaded = CrossEncoder(str(tmp_path / "final"))
    assert isinstance(loaded.activation_fn, torch.nn.Identity)
    assert loaded.predict(PAIRS).tolist() == model.predict(PAIRS).tolist()


def test_a_decoder_trains_with_recompute_and_gradient_checkpointing(tmp_path: Path) -> None:
    model = tiny_decoder()
    model.model.gradient_checkpointing_enable({"use_reentrant": False})
    loss = st_listwise.ListMLELoss(model, mini_batch_size=2, recompute=True)
    logged = losses_logged(train(tmp_path, loss, model=model))
    assert logged[-1] < logged[0]


def test_the_trainer_logs_the_parts_of_a_combined_loss(tmp_path: Path) -> None:
    model = tiny_bert()
    parts = {"rank": (st_listwise.ListMLELoss(model), 1.0), "teacher": (st_listwise.ADRMSELoss(model), 0.5)}
    trainer = train(tmp_path, st_listwise.CombinedLoss(parts, mini_batch_size=3), model=model)
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert logged[-1]["loss"] < logged[0]["loss"]
    for entry in logged:
        assert entry["rank"] + entry["teacher"] == pytest.approx(entry["loss"], abs=2e-3)
    model.save_pretrained(str(tmp_path / "final"))
    card = (tmp_path / "final" / "README.md").read_text(encoding="utf-8")
    assert "CombinedLoss" in card
    assert "@inproceedings{xia2008listwise" in card
    assert "schlatt2025rankdistillm" in card


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_that_workers_make_ready_train_the_same_weights(tmp_path: Path, workers: int) -> None:
    models = [tiny_bert(), tiny_bert()]
    losses = [st_listwise.ListMLELoss(model, mini_batch_size=3) for model in models]
    rows = Dataset.from_dict({**ROWS, "weight": [1.0, 0.5, 2.0, 1.0]})
    prompt = {"prompts": "rank: "}
    plain = CrossEncoderTrainer(models[0], arguments(tmp_path, **prompt), rows, loss=losses[0])
    collator = st_listwise.ListwiseDataCollator(losses[1], prompts="rank: ")
    ready = CrossEncoderTrainer(
        models[1],
        arguments(tmp_path, dataloader_num_workers=workers, **prompt),
        rows,
        loss=losses[1],
        data_collator=collator,
    )
    plain.train()
    ready.train()
    assert losses_logged(ready) == losses_logged(plain)
    for ours, theirs in zip(models[1].parameters(), models[0].parameters()):
        assert torch.equal(ours, theirs)


def test_workers_know_the_loss_of_each_data_set_and_name_what_is_wrong(tmp_path: Path) -> None:
    model = tiny_bert()
    losses = {"a": st_listwise.ListMLELoss(model), "b": st_listwise.ADRMSELoss(model, mini_batch_size=1)}
    collator = st_listwise.ListwiseDataCollator(losses)
    rows = [dict(zip(ROWS, row)) for row in zip(*ROWS.values())]
    sizes = [
        len(collator([{"dataset_name": name, **row} for row in rows])["ready"].mini_batches.features) for name in "ab"
    ]
    assert sizes == [1, len(PAIRS)]
    with pytest.raises(ValueError, match="documents of query 1 is an empty list"):
        collator([{"dataset_name": "a", **rows[0]}, {"dataset_name": "a", "query": "q", "docs": [], "labels": []}])
    with pytest.raises(ValueError, match="takes losses of st_listwise, got Linear"):
        st_listwise.ListwiseDataCollator(torch.nn.Linear(1, 1))  # type: ignore[arg-type]


def test_a_data_set_without_a_loss_was_a_bare_key_error_of_the_collator() -> None:
    with pytest.raises(ValueError, match="needs at least one loss"):
        st_listwise.ListwiseDataCollator({})
    model = tiny_bert()
    collator = st_listwise.ListwiseDataCollator(
        {"a": st_listwise.ListMLELoss(model), "c": st_listwise.RankNetLoss(model)}
    )
    row = {"query": "q", "docs": ["x", "y"], "labels": [1, 0]}
    with pytest.raises(ValueError, match="for the data sets 'a', 'c', but this one has no name"):
        collator([row])
    with pytest.raises(ValueError, match="no loss for the data set 'b', only for 'a', 'c'"):
        collator([{"dataset_name": "b", **row}])


def test_a_dictionary_of_losses_for_several_data_sets(tmp_path: Path) -> None:
    model = tiny_bert()
    dataset = DatasetDict({"graded": Dataset.from_dict(ROWS), "teacher": Dataset.from_dict(ROWS)})
    losses = {"graded": st_listwise.LambdaLoss(model), "teacher": st_listwise.ADRMSELoss}  # the second as a callable
    logged = losses_logged(train(tmp_path, losses, dataset, model=model))
    assert len(logged) == 3


def test_a_callable_with_model_init_starts_from_that_model(tmp_path: Path) -> None:
    """The trainer builds the model again for each trial: the loss must look at the new one."""
    models: list[CrossEncoder] = []

    def build() -> CrossEncoder:
        models.append(tiny_bert(seed=len(models)))
        return models[-1]

    trainer = train(tmp_path, lambda model: st_listwise.ListNetLoss(model, label_temperature=0.5), model_init=build)
    assert trainer.loss.model is trainer.model is models[-1]
    assert losses_logged(trainer)[-1] < losses_logged(trainer)[0]


def test_a_third_column_weighs_the_lists(tmp_path: Path) -> None:
    """Weight 0 for all lists but one must train as that list alone does, at the share that it has of the batch."""
    weighted = Dataset.from_dict({"query": ROWS["query"], "docs": ROWS["docs"], "weight": [0.0, 4.0, 0.0, 0.0]} | ROWS)
    weighted = weighted.select_columns(["query", "docs", "weight", "labels"])
    alone = Dataset.from_dict({name: column[1:2] for name, column in ROWS.items()})
    scores = []
    for dataset, batch_size in ((weighted, 4), (alone, 1)):
        model = tiny_bert().double()  # Adam blows rounding up
        args = arguments(tmp_path, per_device_train_batch_size=batch_size, max_steps=3)
        loss = st_listwise.ListMLELoss(model)
        CrossEncoderTrainer(model=model, args=args, train_dataset=dataset, loss=loss).train()
        scores.append(torch.tensor(model.predict(PAIRS)))
    torch.testing.assert_close(scores[0], scores[1], rtol=1e-5, atol=1e-6)


def test_evaluation_loss_is_the_mean_over_lists_whatever_the_batch(tmp_path: Path) -> None:
    values = []
    for batch_size in (1, 2, 4):
        model = tiny_bert()
        loss = st_listwise.ADRMSELoss(model, mini_batch_size=2, recompute=True)
        args = arguments(tmp_path, per_device_eval_batch_size=batch_size)
        dataset = Dataset.from_dict(ROWS)
        values.append(
            CrossEncoderTrainer(model=model, args=args, eval_dataset=dataset, loss=loss).evaluate()["eval_loss"]
        )
    assert values == pytest.approx([values[0]] * 3, rel=1e-5)


def test_accumulated_steps_are_one_large_step(tmp_path: Path) -> None:
    weights = []
    for batch_size, accumulation in ((4, 1), (2, 2), (1, 4)):
        model = tiny_bert().double()
        args = arguments(
            tmp_path,
            max_steps=1,
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=accumulation,
            optim="sgd",
            warmup_steps=0,
            max_grad_norm=0,
        )
        loss = st_listwise.LambdaLoss(model)
        CrossEncoderTrainer(model=model, args=args, train_dataset=Dataset.from_dict(ROWS), loss=loss).train()
        weights.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(weights[2], weights[0], rtol=1e-9, atol=1e-9)


def test_the_saved_card_names_the_loss_with_its_configuration_and_cites_the_paper(tmp_path: Path) -> None:
    model = tiny_bert()
    loss = st_listwise.ApproxNDCGLoss(model, alpha=3.0, top_k=10, recompute=True)
    train(tmp_path, loss, model=model)
    model.save_pretrained(str(tmp_path / "final"))
    card = (tmp_path / "final" / "README.md").read_text(encoding="utf-8")
    assert "st_listwise.losses.approx_rank.ApproxNDCGLoss" in card
    shown = json.loads(
        card.split("ApproxNDCGLoss</code> with these parameters:")[1].split("```json")[1].split("```")[0]
    )
    assert shown == loss.get_config_dict()
    assert "@article{qin2010general" in card


def test_a_fault_in_the_data_is_one_error_and_not_a_second_run_without_prompt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """CrossEncoderTrainer takes a TypeError to mean "this loss knows no prompt" and calls it again without."""
    rows = ROWS | {"docs": [[1, 2], [3, 4, 5], [6, 7], [8, 9, 10]]}
    model = tiny_bert()
    with pytest.raises(ValueError, match=r"documents of query \d, document 0 is the number"):
        train(tmp_path, st_listwise.ListMLELoss(model), Dataset.from_dict(rows), model=model)
    assert "could not be passed" not in caplog.text


def test_a_sigmoid_model_whose_scores_saturate_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    """predict() would give 1.0 for all of them, and the ranking is gone."""
    model = tiny_bert()
    model.activation_fn = torch.nn.Sigmoid()
    with torch.no_grad():
        model.model.classifier.bias.fill_(40.0)
    loss = st_listwise.ListMLELoss(model)
    labels = [torch.tensor(row) for row in ROWS["labels"]]
    for _ in range(2):
        loss([ROWS["query"], ROWS["docs"]], labels)
    assert caplog.text.count("sigmoid") == 1


def test_documents_in_rising_label_order_under_respect_input_order_are_warned_about(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Ranks given where relevance is expected, or lists sorted the wrong way round."""
    loss = st_listwise.ListMLELoss(tiny_bert(), respect_input_order=True).train()
    queries, docs = ROWS["query"][:1], ROWS["docs"][:1]
    loss([queries, docs], [torch.tensor([2, 1])])
    assert "rising labels" not in caplog.text
    loss([queries, docs], [torch.tensor([1, 2])])
    loss([queries, docs], [torch.tensor([1, 2])])
    assert caplog.text.count("rising labels") == 1
