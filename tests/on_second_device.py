"""What is run on two devices and compared: on the CPU, and with :func:`main` on the one of second_device.py."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
from tiny_models import tiny_bert, tiny_decoder, tiny_set
from torch import Tensor

import st_listwise
from st_listwise import FeatureVectors, ListwiseDataCollator, SetRankConfig, SetRankCrossEncoder
from st_listwise.callback import ListStatistics
from st_listwise.evaluation import GradedRerankingEvaluator

QUERIES = ["what is a bear", "capital of france"]
DOCS = [["an animal", "a planet", "x y z"], ["paris", "rome is big and far away"]]
LABELS = [[1.0, 0.0, 2.0], [0.0, 1.0]]
RANKED = [[{"text": text, "initial_scores": [float(len(text))]} for text in docs] for docs in DOCS]
ROWS = [{"query": q, "docs": docs, "labels": labels} for q, docs, labels in zip(QUERIES, DOCS, LABELS)]
VECTORS = [[[0.1, 2.0], [0.4, -1.0], [0.0, 3.0]], [[0.7, 0.2], [0.3, 0.9]]]


def numeric() -> SetRankCrossEncoder:
    torch.manual_seed(5)
    features = FeatureVectors.fit(np.concatenate([np.asarray(vectors) for vectors in VECTORS]))
    return SetRankCrossEncoder(
        features=features, set_rank=SetRankConfig(width=8, heads=2, identity_start=False)
    ).eval()


BUILDERS: dict[str, Callable[[], CrossEncoder]] = {
    "pairs": tiny_bert,
    "dropout": lambda: tiny_bert(dropout=0.3).train(),
    "decoder": tiny_decoder,
    "sets": tiny_set,
    "induced sets": lambda: tiny_set(inducing_points=2),
    "ordinal sets": lambda: tiny_set(ordinal="absolute"),
    "numbers": numeric,
}
LOSSES = [name for name in st_listwise.losses.__all__ if name not in ("ListwiseLoss", "CombinedLoss")]
#: kind of model, loss, its options
TRAINED: list[tuple[str, str, dict[str, Any]]] = [
    *(("pairs", name, {}) for name in LOSSES),
    ("pairs", "ListMLELoss", {"ties": "random"}),
    ("pairs", "PListMLELoss", {"lambda_weight": torch.reciprocal}),
    ("pairs", "LambdaLoss", {"k": 2, "weighting_scheme": lambda gain, discount, labels: gain[:, :, None] / discount}),
    *((kind, "ListMLELoss", {"mini_batch_size": 2, "recompute": r}) for kind in BUILDERS for r in (False, True)),
    ("pairs", "ListMLELoss", {"mini_batch_size": 2, "recompute": "auto"}),
    *(("decoder", "ListMLELoss", {"mini_batch_size": 2, "share_prefix": True, "recompute": r}) for r in (False, True)),
]


def docs_for(kind: str) -> list[Any]:
    return {"numbers": VECTORS, "ordinal sets": RANKED}.get(kind, DOCS)


def gradients(model: CrossEncoder, device: Any, kind: str, name: str, options: dict[str, Any]) -> dict[str, Tensor]:
    """Loss and gradients of a batch whose labels and weights came to the model's device, as they do in the trainer."""
    model.to(device)
    torch.manual_seed(1)  # for dropout, and the order of ties
    labels = [torch.tensor(row).to(device) for row in LABELS]
    value = getattr(st_listwise, name)(model, **options)(
        [QUERIES, docs_for(kind), torch.tensor([1.0, 2.0]).to(device)], labels
    )
    value.backward()
    grads = {name: own.grad.cpu() for name, own in model.named_parameters() if own.grad is not None}
    return {"loss": value.detach().cpu(), **grads}


def combined(model: CrossEncoder, device: Any) -> dict[str, Tensor]:
    """A batch from the collator through a CombinedLoss that statistics are taken of."""
    model.to(device)
    parts = {"rank": (st_listwise.LambdaLoss(model), 1.0), "teacher": (st_listwise.ADRMSELoss(model), 0.5)}
    loss = st_listwise.CombinedLoss(parts)
    loss.on_scores = statistics = ListStatistics()
    batch = ListwiseDataCollator(loss)(ROWS)
    values = loss([batch["ready"]], [label.to(device) for label in batch["label"]])
    return {name: value.detach().cpu() for name, value in values.items()} | {"statistics": statistics.take(True)}


def scores(model: CrossEncoder, device: Any, kind: str) -> dict[str, Tensor]:
    """What a model says of pairs and lists, and how it is measured."""
    model.to(device)
    docs = docs_for(kind)
    pairs = [(query, doc) for query, own in zip(QUERIES, docs) for doc in own]
    found = {"predict": torch.as_tensor(model.predict(pairs, batch_size=2))}
    if isinstance(model, SetRankCrossEncoder):
        ranked = model.rank_batch(QUERIES, docs)
        found["rank_batch"] = torch.tensor([[float(hit["corpus_id"]), hit["score"]] for own in ranked for hit in own])
    if kind == "pairs":
        found["measures"] = torch.tensor(list(GradedRerankingEvaluator(ROWS, ["nDCG@10", "RR"])(model).values()))
    return found


def trained(model: CrossEncoder, device: Any) -> dict[str, Tensor]:
    """Two steps of the trainer, which moves model and labels by itself."""
    args = CrossEncoderTrainingArguments(
        mkdtemp(),
        max_steps=2,
        learning_rate=1e-3,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    args.distributed_state._shared_state["device"] = args.__dict__["_setup_devices"] = torch.device(device)
    trainer = CrossEncoderTrainer(model, args, Dataset.from_list(ROWS), loss=st_listwise.ListMLELoss(model))
    trainer.train()
    assert model.device.type == torch.device(device).type
    return {name: value.cpu() for name, value in model.state_dict().items()}


def title(kind: str, name: str, options: dict[str, Any]) -> str:
    return ", ".join([kind, name, *(f"{key}={'…' if callable(own) else own}" for key, own in options.items())])


#: name → kind of model, and what is done with one on a device
CASES: dict[str, tuple[str, Callable[[CrossEncoder, Any], dict[str, Tensor]]]] = {
    **{title(*case): (case[0], partial(gradients, kind=case[0], name=case[1], options=case[2])) for case in TRAINED},
    "collator, CombinedLoss, statistics": ("pairs", combined),
    "trainer": ("pairs", trained),
    **{f"{kind}, scores": (kind, partial(scores, kind=kind)) for kind in BUILDERS},
}


def run(name: str, device: Any, mode: Callable[[], AbstractContextManager[Any]] = nullcontext) -> dict[str, Tensor]:
    """One case. Models are built outside of the mode within which the device is known."""
    kind, act = CASES[name]
    model = BUILDERS[kind]().double()
    with mode():
        return act(model, device)


def main(path: str) -> None:
    """All cases on the second device, results to a file; where one fails, what was said."""
    from second_device import SECOND, SecondDevice

    results: dict[str, Any] = {}
    for name in CASES:
        try:
            results[name] = run(name, SECOND, SecondDevice)
        except Exception:
            lines = traceback.format_exc().splitlines()
            results[name] = "\n".join(line for line in lines if "registered at" not in line)
    torch.save(results, path)
