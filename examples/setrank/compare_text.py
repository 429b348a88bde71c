"""A set model against a pointwise one on texts: same encoder, loss, steps and seeds, and a paired test over queries.

    python examples/setrank/compare_text.py --train train.jsonl --test test.jsonl --model demo
    python examples/setrank/compare_text.py --train rows.jsonl --folds 5 --model demo --two_stage

Arms: ``pointwise``, the stock CrossEncoder; ``mean pooling``, a linear layer on the encoder's mean; ``SetRank``;
``without context``, the layers of SetRank where each document attends to itself alone; ``SetRank, initial rank``, with
ordinal embeddings of the given order. With
``--two_stage`` an encoder with a linear layer is trained first, then frozen, and all arms start from it: ``pointwise``
trains the linear layer on, the others the set layers as well. Beside them stands ``order as given``, which needs no
training. Figures: nDCG@10 with gain 2^label - 1, and MAP.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from figures import describe_arm, measured_before, ndcg, run_comparison
from sentence_transformers import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
from sklearn.metrics import average_precision_score
from torch import Tensor
from tqdm.auto import tqdm
from train_letor import WithoutContext
from train_text import SetRankArguments
from transformers import set_seed

from st_listwise import AttentionRankLoss, FeatureVectors, SetRankConfig, SetRankCrossEncoder
from st_listwise.evaluation import predict_lists

sys.path.append(str(Path(__file__).resolve().parents[1] / "ms_marco"))

from mapper import map_dataset
from options import HelpFormatter
from reporting import loss_facts
from sources import load_lists, load_model
from train_listwise import loss_builder

ARMS = ("pointwise", "SetRank", "without context", "SetRank, initial rank", "mean pooling")
GIVEN = "order as given"
#: Arms that score each document by a linear layer.
LINEAR = ("pointwise", "first stage", "mean pooling")
COMPARED = [
    ("SetRank", "pointwise"),
    ("SetRank", "without context"),
    ("SetRank, initial rank", "SetRank"),
    ("SetRank", "mean pooling"),
    ("mean pooling", "pointwise"),
    ("SetRank, initial rank", GIVEN),
]


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--train", required=True, help="rows as train_text.py takes them")
    parser.add_argument("--test", help="rows for the figures; or --folds")
    parser.add_argument("--folds", type=int, help="cut the queries of --train into so many parts, each tested once")
    parser.add_argument("--model", default="demo", help="encoder: name on the Hub, folder, or 'demo'")
    parser.add_argument("--two_stage", action="store_true", help="first train the encoder pointwise, then freeze it")
    parser.add_argument("--first_epochs", type=float, default=2, help="epochs of the first stage")
    parser.add_argument("--first_docs", type=int, default=None, help="most documents of a list in the first stage")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS[:3]), help="what is trained")
    parser.add_argument("--loss", default="ListMLELoss", help="class name of a loss")
    parser.add_argument("--seeds", type=int, nargs="+", default=[12, 13, 14], help="each arm is trained with each")
    parser.add_argument("--epochs", type=float, default=2, help="epochs")
    parser.add_argument("--batch", type=int, default=16, help="queries in a step")
    parser.add_argument("--learning_rate", type=float, default=5e-5, help="peak learning rate of the encoder")
    head_rate = SetRankArguments.head_learning_rate
    parser.add_argument("--head_learning_rate", type=float, default=head_rate, help="of everything on top of it")
    parser.add_argument("--layers", type=int, default=SetRankConfig.layers, help="blocks of set attention")
    parser.add_argument("--dropout", type=float, default=SetRankConfig.dropout, help="in the set layers")
    parser.add_argument("--pooling", default=None, help="of the set models; default: mean")
    parser.add_argument("--max_length", type=int, default=None, help="longest pair in tokens; default: the model's")
    parser.add_argument("--output_dir", type=Path, default=Path("output/compare_text"), help="where everything goes")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the script; returns the exit status."""
    return run_comparison(build_parser(), run, "examples/setrank/compare_text.py", argv)


def run(args: argparse.Namespace, command: str) -> int:
    loss_builder(args.loss, "{}")
    splits, counts = read_splits(args)
    kept = measured_before(args.output_dir / "compare_text.json", args, command)
    missing = [(arm, seed) for seed in args.seeds for arm in (*args.arms, GIVEN) if (arm, seed) not in kept]
    known = [arm for arm in ARMS if arm in args.arms or arm in kept.arms("MAP")]
    kept.state({"counts": counts, **facts(known, args)}, measures=bool(missing))
    if args.two_stage and any(arm != GIVEN for arm, _ in missing):
        splits = [first_stage(number, split.train, split.test, args) for number, split in enumerate(splits)]
    for arm, seed in missing:
        found: dict[str, list[float]] = {"nDCG@10": [], "MAP": []}
        for split in splits:
            model = None if arm == GIVEN else trained(arm, split, args, seed)
            for name, values in measured(model, split.test).items():
                found[name] += values
        kept.add(seed, {arm: found})
        print(f"seed {seed}, {arm}: " + ", ".join(f"{n} {np.mean(v):.4f}" for n, v in found.items()), flush=True)
    print("\n" + kept.report(COMPARED))
    return 0


def facts(names: Sequence[str], args: argparse.Namespace) -> dict[str, Any]:
    """What a card states of arms beside their figures; nothing is trained for it."""
    encoder: Any = text_model(args, SetRankConfig(layers=0)) if args.two_stage else None
    models = {name: build(name, args, encoder[-1].in_features if encoder else None) for name in names}
    model = next(iter(models.values()))
    return {
        "loss": loss_facts(loss_builder(args.loss, "{}")(model)),
        "paper": AttentionRankLoss(model).citation.strip(),
        "arms": {**{name: describe_arm(own) for name, own in models.items()}, GIVEN: {"network": "none"}},
        "precision": "bfloat16 autocast" + (" in the first stage, float32 after it" if args.two_stage else ""),
        "compared": COMPARED,
    }


class Split(NamedTuple):
    """Lists to train on and for the figures; of a first stage also the weights of its last layer."""

    train: Dataset
    test: Dataset
    scores: dict[str, Tensor] | None


def read_splits(args: argparse.Namespace) -> tuple[list[Split], dict[str, Any]]:
    """Lists as they are read, and what was left out of them."""
    if (args.test is None) == (args.folds is None):
        raise ValueError("Give --test or --folds, one of them.")
    rows, counts = load_lists(args.train, keep_order=True)
    if args.folds is not None:
        return list(folds(rows, args.folds)), {"train": counts}
    tested, left = load_lists(args.test, keep_order=True)
    return [Split(rows, tested, None)], {"train": counts, "test": left}


def folds(rows: Dataset, count: int) -> Iterator[Split]:
    """Each part of the lists once as the test. ValueError: there are not so many parts."""
    if not 2 <= count <= len(rows):
        raise ValueError(f"--folds {count}: there can be 2 to {len(rows)} parts, as many as lists.")
    order = np.random.default_rng(12).permutation(len(rows))
    for part in np.array_split(order, count):
        yield Split(rows.select(np.setdiff1d(order, part)), rows.select(np.sort(part)), None)


def first_stage(number: int, train: Dataset, test: Dataset, args: argparse.Namespace) -> Split:
    """Train an encoder pointwise and put its vectors in the place of texts; kept in the output folder."""
    folder = args.output_dir / "first_stage" / str(number)
    if not folder.exists():
        short, _ = map_dataset(train, args.first_docs, keep_order=True)
        model = trained("first stage", Split(short, test, None), args, args.seeds[0])
        temporary = folder.with_suffix(".tmp")
        for name, lists in (("train", train), ("test", test)):
            encoded(model, lists).save_to_disk(str(temporary / name))
        torch.save(model[-1].state_dict(), temporary / "scores.pt")
        os.replace(temporary, folder)
    vectors, tested = (Dataset.load_from_disk(str(folder / name)) for name in ("train", "test"))
    return Split(vectors, tested, torch.load(folder / "scores.pt"))


def encoded(model: Any, lists: Dataset) -> Dataset:
    pairs = [(query, doc) for query, docs in zip(lists["query"], lists["docs"]) for doc in docs]
    order = sorted(range(len(pairs)), key=lambda index: -sum(map(len, pairs[index])))
    vectors = np.empty((len(pairs), model[-1].in_features), dtype=np.float32)
    with torch.inference_mode():
        for start in tqdm(range(0, len(order), 16), desc="Encoding"):
            part = order[start : start + 16]
            features = model.eval().preprocess([pairs[index] for index in part])
            vectors[part] = model.encode_pairs(features)["sentence_embedding"].numpy()
    cuts = np.cumsum(list(map(len, lists["labels"])))[:-1]
    return Dataset.from_dict({"query": lists["query"], "docs": np.split(vectors, cuts), "labels": lists["labels"]})


def text_model(args: argparse.Namespace, config: SetRankConfig) -> CrossEncoder:
    script = SetRankArguments(
        model=args.model,
        max_length=args.max_length,
        pooling=args.pooling,
        layers=config.layers,
        set_dropout=config.dropout,
        ordinal=config.ordinal,
    )
    return script.build_model()


def build(arm: str, args: argparse.Namespace, width: int | None = None) -> CrossEncoder:
    """An untrained model of texts, or of vectors of a width that a first stage made of them."""
    config = SetRankConfig(
        layers=0 if arm in LINEAR else args.layers,
        dropout=args.dropout,
        ordinal="absolute" if arm.endswith("initial rank") else "none",
    )
    if width is not None:
        model: CrossEncoder = SetRankCrossEncoder(features=FeatureVectors(width, log1p=False), set_rank=config)
    else:
        model = load_model(args.model, args.max_length) if arm == "pointwise" else text_model(args, config)
    for module in model:
        if arm == "without context" and type(module).__name__ == "SetRank":
            module.__class__ = WithoutContext
    return model


def trained(arm: str, split: Split, args: argparse.Namespace, seed: int) -> CrossEncoder:
    set_seed(seed)
    model = build(arm, args, None if split.scores is None else len(split.train[0]["docs"][0]))
    if split.scores is not None:
        model[-1].load_state_dict(split.scores)  # every arm starts from the first stage
    rates = {r"\b([123]\.(projection|ordinal|blocks|linear)|classifier)\b": args.head_learning_rate}
    training = CrossEncoderTrainingArguments(
        output_dir=str(args.output_dir / "run"),
        num_train_epochs=args.first_epochs if arm == "first stage" else args.epochs,
        per_device_train_batch_size=args.batch,
        learning_rate=args.learning_rate,
        learning_rate_mapping=rates,
        warmup_steps=0.1,
        seed=seed,
        bf16=split.scores is None,
        use_cpu=not torch.cuda.is_available(),
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        dataloader_pin_memory=False,
    )
    loss = loss_builder(args.loss, "{}")(model)
    CrossEncoderTrainer(model=model, args=training, train_dataset=split.train, loss=loss).train()
    return model


def measured(model: CrossEncoder | None, lists: Dataset) -> dict[str, list[float]]:
    """nDCG@10 and average precision of each query with a relevant document and another one; None: order as given."""
    rows = [row for row in lists if max(row["labels"]) > 0 and min(row["labels"]) <= 0]
    queries, docs = [row["query"] for row in rows], [row["docs"] for row in rows]
    if model is None:
        scores = [-np.arange(len(own), dtype=float) for own in docs]
    else:
        scores = predict_lists(model, queries, docs, show_progress_bar=False)
    labels = [np.array(row["labels"]) for row in rows]
    return {
        "nDCG@10": [ndcg(y, s) for y, s in zip(labels, scores)],
        "MAP": [float(average_precision_score(y > 0, s)) for y, s in zip(labels, scores)],
    }


if __name__ == "__main__":
    sys.exit(main())
