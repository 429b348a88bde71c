"""LoRA: the head and the set layers are trained whole, saved and restored, and a run resumes as without it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from datasets import Dataset
from sentence_transformers import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
from tiny_models import tiny_bert

from st_listwise import ListMLELoss, SetRankConfig, SetRankCrossEncoder

ROWS: dict[str, list[Any]] = {
    "query": ["what is a bear", "capital of france", "how fast", "why"],
    "docs": [["an animal", "a planet"], ["paris", "rome", "berlin"], ["as light", "slow"], ["because", "no", "it is"]],
    "labels": [[1, 0], [2, 0, 1], [0, 1], [1, 0, 0]],
}
PAIRS = [(query, doc) for query, docs in zip(ROWS["query"], ROWS["docs"]) for doc in docs]
TARGETS = ["query", "value"]


@pytest.fixture
def encoder(tmp_path: Path) -> str:
    """An encoder without a head, as it comes from the Hub."""
    model = tiny_bert()
    model.model.bert.save_pretrained(tmp_path / "encoder")
    model.tokenizer.save_pretrained(tmp_path / "encoder")
    return str(tmp_path / "encoder")


def pointwise(encoder: str) -> CrossEncoder:
    """A new head, in a fresh draw, on a frozen encoder with adapters."""
    model = CrossEncoder(encoder, num_labels=1, activation_fn=torch.nn.Identity())
    model.add_adapter(
        peft.LoraConfig(
            task_type="SEQ_CLS", r=4, lora_dropout=0.1, target_modules=TARGETS, modules_to_save=["classifier"]
        )
    )
    return model


def of_sets(encoder: str) -> SetRankCrossEncoder:
    model = SetRankCrossEncoder(encoder, set_rank=SetRankConfig(layers=1, heads=4, identity_start=False))
    model.add_adapter(peft.LoraConfig(task_type="FEATURE_EXTRACTION", r=4, lora_dropout=0.1, target_modules=TARGETS))
    return model


def train(model: Any, folder: Path, recompute: bool = False, resume: str | None = None, **options: Any) -> list[float]:
    args = CrossEncoderTrainingArguments(
        output_dir=str(folder),
        max_steps=10,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        report_to="none",
        logging_steps=1,
        save_steps=5,
        use_cpu=True,
        disable_tqdm=True,
        **options,
    )
    loss = ListMLELoss(model, mini_batch_size=2, recompute=recompute)
    trainer = CrossEncoderTrainer(model, args, Dataset.from_dict(ROWS), loss=loss)
    trainer.train(resume_from_checkpoint=resume)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize(
    ("build", "head", "load"),
    [(pointwise, "classifier.modules_to_save", CrossEncoder), (of_sets, "blocks.0", SetRankCrossEncoder)],
)
def test_what_is_trained_is_saved_and_restored(tmp_path: Path, encoder: str, build: Any, head: str, load: Any) -> None:
    model = build(encoder)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    train(model, tmp_path)
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert any(head in name for name in moved)
    assert any("lora_B" in name for name in moved)
    encoder_weights = [name for name in before if name.startswith("0.") and "lora" not in name and head not in name]
    assert encoder_weights
    assert not moved & set(encoder_weights)
    model.save_pretrained(str(tmp_path / "final"))
    assert (tmp_path / "final" / "adapter_model.safetensors").exists()
    assert not (tmp_path / "final" / "model.safetensors").exists()
    torch.manual_seed(99)  # a head that is not restored is drawn anew
    loaded = load(str(tmp_path / "final"))
    assert isinstance(loaded.activation_fn, torch.nn.Identity)
    assert loaded.predict(PAIRS).tolist() == pytest.approx(model.predict(PAIRS).tolist(), abs=1e-6)


@pytest.mark.parametrize("build", [pointwise, of_sets])
def test_neither_recompute_nor_gradient_checkpointing_changes_a_step(tmp_path: Path, encoder: str, build: Any) -> None:
    curves, scores = [], []
    for recompute, checkpointing in itertools.product((False, True), repeat=2):
        torch.manual_seed(3)
        model = build(encoder)
        untrained = model.predict(PAIRS)
        curves.append(train(model, tmp_path, recompute, gradient_checkpointing=checkpointing))
        scores.append(model.predict(PAIRS))
    assert abs(scores[0] - untrained).max() > 0.1
    for curve, own in zip(curves[1:], scores[1:]):
        assert curve == pytest.approx(curves[0], rel=1e-4)
        assert own.tolist() == pytest.approx(scores[0].tolist(), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("build", [pointwise, of_sets])
def test_a_run_resumes_with_its_adapters_and_head(tmp_path: Path, encoder: str, build: Any) -> None:
    torch.manual_seed(3)
    whole = build(encoder)
    curve = train(whole, tmp_path)
    torch.manual_seed(4)  # what the model starts with is replaced
    resumed = build(encoder)
    assert train(resumed, tmp_path, resume=str(tmp_path / "checkpoint-5")) == curve
    assert resumed.predict(PAIRS).tolist() == pytest.approx(whole.predict(PAIRS).tolist(), abs=1e-6)


def test_without_modules_to_save_a_new_head_is_frozen_and_lost(tmp_path: Path, encoder: str) -> None:
    """Why the recipe names the head: nothing else tells that the loaded model has another one."""
    model = CrossEncoder(encoder, num_labels=1, activation_fn=torch.nn.Identity())
    model.add_adapter(peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=TARGETS))
    assert not any(parameter.requires_grad for parameter in model.model.classifier.parameters())
    model.save_pretrained(str(tmp_path / "final"))
    torch.manual_seed(99)
    loaded = CrossEncoder(str(tmp_path / "final"))
    assert not torch.equal(loaded.model.classifier.weight, model.model.classifier.weight)
    whole = tiny_bert()
    whole.save_pretrained(str(tmp_path / "whole"))  # a reranker whose head lies with its encoder keeps it
    model = CrossEncoder(str(tmp_path / "whole"))
    model.add_adapter(peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=TARGETS))
    model.save_pretrained(str(tmp_path / "adapters"))
    assert torch.equal(CrossEncoder(str(tmp_path / "adapters")).model.classifier.weight, whole.model.classifier.weight)
