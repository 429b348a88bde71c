"""What SetRank's paper claims, on LETOR files of your own: list context, longer lists, noisy initial orders.

    python examples/setrank/claims.py --train train.txt --test test.txt --ranking_feature 110

Every arm is trained with each of ``--seeds`` for a fixed number of epochs; figures are nDCG@10 on the test file, mean
and standard deviation over seeds, and paired t-tests over its queries. LightGBM's LambdaMART on the same rows stands
beside them, if lightgbm is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from figures import describe_arm, measured_before, run_comparison
from train_letor import NDCGEvaluator, ScriptArguments, TrainingArguments, build_model, shorten, teaching
from transformers import set_seed

from st_listwise import AttentionRankLoss, SetRankCrossEncoder
from st_listwise.data import read_letor

sys.path.append(str(Path(__file__).resolve().parents[1] / "ms_marco"))

from options import HelpFormatter
from reporting import loss_facts
from sentence_transformers import CrossEncoderTrainer

#: name → (options of train_letor's network, whether documents see each other, most documents of a training list)
ARMS: dict[str, tuple[dict[str, Any], bool, int | None]] = {
    "MSAB": ({}, True, None),
    "without context": ({}, False, None),
    "IMSAB": ({"inducing_points": 20}, True, None),
    "MSAB, short lists": ({}, True, 40),
    "IMSAB, short lists": ({"inducing_points": 20}, True, 40),
    "without context, short lists": ({}, False, 40),
    "MSAB, absolute": ({"ordinal": "absolute"}, True, None),
    "MSAB, relative": ({"ordinal": "relative"}, True, None),
    "paper settings": ({"paper": True, "inducing_points": 20}, True, None),
}
TREES = "LambdaMART"
COMPARED = [
    ("MSAB", "without context"),
    ("IMSAB", "without context"),
    ("IMSAB", "MSAB"),
    ("MSAB", TREES),
    ("IMSAB", TREES),
    ("without context", TREES),
    ("IMSAB, short lists", "MSAB, short lists"),
    ("MSAB, short lists", "without context, short lists"),
    ("MSAB, short lists", "MSAB"),
    ("IMSAB, short lists", "IMSAB"),
    ("without context, short lists", "without context"),
    ("MSAB, absolute", "MSAB"),
    ("MSAB, relative", "MSAB"),
    ("MSAB, shuffled", "MSAB"),
    ("MSAB, absolute, shuffled", "MSAB, absolute"),
    ("MSAB, relative, shuffled", "MSAB, relative"),
    ("MSAB, absolute, shuffled", "MSAB"),
    ("MSAB, relative, shuffled", "MSAB"),
    ("paper settings", "MSAB"),
]
MEASURE = "nDCG@10"
Found = dict[str, dict[str, list[float]]]  #: arm → measure → values of each query
NOISE = {"as ranked": 0.0, "noise 5": 5.0, "noise 20": 20.0, "shuffled": 1e6}
#: Trees and leaves are the best of 50 to 400 and 7 to 31 in 5 folds over the training queries of two data sets.
TREE_OPTIONS: dict[str, Any] = {
    "n_estimators": 200,
    "num_leaves": 7,
    "learning_rate": 0.05,
    "subsample": 0.8,
    "subsample_freq": 1,
    "colsample_bytree": 0.8,
}


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--train", required=True, help="LETOR file with qid")
    parser.add_argument("--test", required=True, help="LETOR file with qid")
    parser.add_argument("--ranking_feature", type=int, required=True, help="number of the one that ranks initially")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), help="what is trained")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="each arm is trained with each")
    parser.add_argument("--epochs", type=int, default=15, help="epochs")
    parser.add_argument("--batch", type=int, default=8, help="queries in a step")
    parser.add_argument("--dropout", type=float, default=0.3, help="in the set layers; paper settings: none")
    parser.add_argument("--learning_rate", type=float, default=1e-3, help="peak learning rate; paper settings: 5e-4")
    parser.add_argument("--output_dir", type=Path, default=Path("output/claims"), help="where everything goes")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the script; returns the exit status."""
    return run_comparison(build_parser(), run, "examples/setrank/claims.py", argv)


def run(args: argparse.Namespace, command: str) -> int:
    train, test, counts = read_lists(args)
    measured = measured_before(args.output_dir / "claims.json", args, command)
    has_trees = importlib.util.find_spec("lightgbm") is not None
    arms = [*args.arms, *([TREES] if has_trees else [])]
    missing = [(name, seed) for name in arms for seed in args.seeds if (name, seed) not in measured]
    known = [name for name in (*ARMS, TREES) if name in arms or name in measured.arms(MEASURE)]
    stated = {"counts": counts, **facts(known, train, test, args)}
    measured.state(stated, measures=bool(missing), packages=["lightgbm"] if has_trees else [])
    for name, seed in missing:
        measured.add(seed, run_arm(name, train, test, seed, args))
        print(f"{name}, seed {seed}: {np.mean(measured.arms(MEASURE)[name][str(seed)]):.4f}", flush=True)
    print("\n" + measured.report(COMPARED))
    return 0


def read_lists(args: argparse.Namespace) -> tuple[Dataset, Dataset, dict[str, Any]]:
    """Lists to train on and for the figures, in the order of the ranking feature, and how many of them count."""
    lists = read_letor(args.train)
    train = teaching(lists, args.train)
    width = len(train[0]["docs"][0])
    if not 1 <= args.ranking_feature <= width:
        raise ValueError(
            f"--ranking_feature {args.ranking_feature}: features of {args.train} are numbered from 1 to {width}."
        )
    test = read_letor(args.test, width)
    relevant = NDCGEvaluator(test, "test").labels
    counts = {
        "train": {**count(train["labels"]), "queries": len(lists), "one label": len(lists) - len(train)},
        "test": {**count(relevant), "queries": len(test), "no positive": len(test) - len(relevant)},
    }
    return sort_lists(train, args.ranking_feature), sort_lists(test, args.ranking_feature), counts


def count(labels: Sequence[Sequence[float]]) -> dict[str, int]:
    return {"kept": len(labels), "documents": sum(map(len, labels))}


def facts(names: Sequence[str], train: Dataset, test: Dataset, args: argparse.Namespace) -> dict[str, Any]:
    """What a card states of arms beside their figures; nothing is trained for it."""
    arms: dict[str, Any] = {}
    for name in names:
        if name == TREES:
            arms[name] = {"network": "LightGBM's LGBMRanker", **TREE_OPTIONS}
        else:
            model = network(name, train, longest(train, test), args)
            arms[name] = describe_arm(
                model, learning_rate=learning_rate(name, args), longest_training_list=ARMS[name][2]
            )
    return {
        "loss": loss_facts(AttentionRankLoss(model)),
        "arms": arms,
        "precision": "float32",
        "compared": COMPARED,
        "noise": NOISE,
    }


def run_arm(name: str, train: Dataset, test: Dataset, seed: int, args: argparse.Namespace) -> Found:
    """nDCG@10 of each test query; with ordinal embeddings, and for one model without, for noisy orders as well."""
    if name == TREES:
        return {name: {MEASURE: lambda_mart(train, test, seed)}}
    lists = shorten(train, ARMS[name][2], seed)
    set_seed(seed)
    model = network(name, lists, longest(train, test), args)
    fit(model, lists, seed, args, learning_rate(name, args))
    found = {name: {MEASURE: ndcg(model, test)}}
    if name == "MSAB" or "ordinal" in ARMS[name][0]:
        for noise, scale in NOISE.items():
            disturbed = sort_lists(test, args.ranking_feature, scale, seed)
            found[f"{name}, {noise}"] = {MEASURE: ndcg(model, disturbed)}
    return found


def longest(*parts: Dataset) -> int:
    return max(len(labels) for lists in parts for labels in lists["labels"])


def network(name: str, lists: Dataset, longest_list: int, args: argparse.Namespace) -> SetRankCrossEncoder:
    options, context, _ = ARMS[name]
    script = ScriptArguments(train=args.train, dropout=args.dropout, longest_list=longest_list, **options)
    return build_model(script, lists, context)


def learning_rate(name: str, args: argparse.Namespace) -> float:
    return 5e-4 if ARMS[name][0].get("paper") else args.learning_rate


def fit(model: SetRankCrossEncoder, lists: Dataset, seed: int, args: argparse.Namespace, learning_rate: float) -> None:
    training = TrainingArguments(
        output_dir=str(args.output_dir / "run"),
        num_train_epochs=args.epochs,
        per_device_train_batch_size=args.batch,
        learning_rate=learning_rate,
        seed=seed,
        eval_strategy="no",
        save_strategy="no",
        logging_strategy="no",
        load_best_model_at_end=False,
        disable_tqdm=True,
    )
    CrossEncoderTrainer(model=model, args=training, train_dataset=lists, loss=AttentionRankLoss(model)).train()


def ndcg(model: SetRankCrossEncoder, lists: Dataset) -> list[float]:
    evaluator = NDCGEvaluator(lists, "test")
    return evaluator.per_query(evaluator.scores(model))


def sort_lists(lists: Dataset, feature: int, noise: float = 0.0, seed: int = 0) -> Dataset:
    """Documents in the order of a feature (from 1), best first, their ranks disturbed by Gaussian noise of a scale."""
    generator = np.random.default_rng(seed)
    rows = []
    for row in lists:
        ranks = np.argsort(np.argsort([-doc[feature - 1] for doc in row["docs"]], kind="stable"), kind="stable")
        order = np.argsort(ranks + noise * generator.normal(size=len(ranks)), kind="stable")
        rows.append({**row, "docs": [row["docs"][i] for i in order], "labels": [row["labels"][i] for i in order]})
    return Dataset.from_list(rows)


def lambda_mart(train: Dataset, test: Dataset, seed: int) -> list[float]:
    """nDCG@10 of each test query under LightGBM's LambdaMART."""
    from lightgbm import LGBMRanker

    ranker = LGBMRanker(**TREE_OPTIONS, random_state=seed, verbose=-1)
    labels = np.concatenate(train["labels"]).astype(int)
    vectors = np.concatenate([np.asarray(docs) for docs in train["docs"]])
    ranker.fit(vectors, labels, group=list(map(len, train["labels"])))
    evaluator = NDCGEvaluator(test, "test")
    return evaluator.per_query([np.asarray(ranker.predict(np.asarray(docs))) for docs in evaluator.docs])


if __name__ == "__main__":
    sys.exit(main())
