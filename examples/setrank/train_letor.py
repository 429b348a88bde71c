"""Train SetRank on numeric documents: LETOR or SVMlight files with qid, or data that the script makes itself.

    python examples/setrank/train_letor.py                                    # made data, minutes on a laptop
    python examples/setrank/train_letor.py --train train.txt --test test.txt --loss AttentionRankLoss

Beside SetRank it trains the same network without attention between documents, so that you see what the list adds.
Every argument of CrossEncoderTrainingArguments can be given as well. See the README beside this file.
"""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from figures import ndcg
from sentence_transformers import CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.base.evaluation import BaseEvaluator
from torch import Tensor
from transformers import set_seed

from st_listwise import FeatureVectors, SetRankConfig, SetRankCrossEncoder
from st_listwise.data import read_letor
from st_listwise.evaluation import predict_lists
from st_listwise.modules import SetRank

sys.path.append(str(Path(__file__).resolve().parents[1] / "ms_marco"))

from options import parse_options, refuse_processes
from publishing import push_final, push_settings
from reporting import command_line, plot_curve, write_json
from train_listwise import checkpoint_to_resume, choose_best_by, loss_builder

logger = logging.getLogger("train_letor")


@dataclass
class ScriptArguments:
    """What is trained on what."""

    train: str = field(default="demo", metadata={"help": "LETOR or SVMlight file with qid, or 'demo'"})
    test: str | None = field(default=None, metadata={"help": "file for figures; needed unless train is 'demo'"})
    valid: str | None = field(default=None, metadata={"help": "file to choose the best epoch on; default: held-out"})
    loss: str = field(default="AttentionRankLoss", metadata={"help": "class name of a loss"})
    loss_args: str = field(default="{}", metadata={"help": "the loss's arguments as JSON"})
    width: int = field(default=64, metadata={"help": "width of the set layers"})
    layers: int = field(default=2, metadata={"help": "number of blocks"})
    heads: int = field(default=4, metadata={"help": "attention heads, a divisor of the width"})
    inducing_points: int = field(default=0, metadata={"help": "0: MSAB; M: IMSAB with M learned vectors"})
    dropout: float = field(default=0.1, metadata={"help": "in the set layers"})
    paper: bool = field(
        default=False,
        metadata={
            "help": "width, layers, heads and dropout of the authors' code, whatever is given above, and 20 inducing "
            "points unless given"
        },
    )
    ordinal: str = field(default="none", metadata={"help": "initial rankings: none, absolute or relative"})
    ranking_features: str = field(default="", metadata={"help": "numbers of features that rank, such as '110,115'"})
    longest_list: int = field(default=1000, metadata={"help": "rows of the table of ordinal embeddings"})
    max_docs: int | None = field(
        default=None,
        metadata={"help": "most documents of a training list, at least 2, drawn by chance, the same ones in each run"},
    )
    log1p: bool | None = field(
        default=None, metadata={"help": "logarithm of the features before they are normalised; default: of files"}
    )
    compare: bool = field(default=True, metadata={"help": "train the network without attention between documents too"})


@dataclass
class TrainingArguments(CrossEncoderTrainingArguments):
    """CrossEncoderTrainingArguments with defaults for a small network on numbers."""

    output_dir: str | None = field(default="output/setrank", metadata={"help": "where everything goes"})
    num_train_epochs: float = field(default=30.0, metadata={"help": "epochs"})
    per_device_train_batch_size: int = field(default=16, metadata={"help": "queries in a step"})
    learning_rate: float = field(default=1e-3, metadata={"help": "peak learning rate"})
    weight_decay: float = field(default=0.01, metadata={"help": "of AdamW"})
    warmup_steps: float = field(default=0.1, metadata={"help": "steps, or below 1 their share of all steps"})
    seed: int = field(default=12, metadata={"help": "of the weights and the order of data"})
    eval_strategy: str = field(default="epoch", metadata={"help": "no, steps or epoch"})
    save_strategy: str = field(default="epoch", metadata={"help": "no, steps, epoch or best"})
    save_total_limit: int | None = field(default=1, metadata={"help": "checkpoints to keep"})
    load_best_model_at_end: bool = field(default=True, metadata={"help": "end with the best epoch"})
    logging_strategy: str = field(default="epoch", metadata={"help": "no, steps or epoch"})
    dataloader_pin_memory: bool = field(default=torch.cuda.is_available(), metadata={"help": "of use with a GPU"})
    resume_from_checkpoint: str | None = field(
        default=None, metadata={"help": "'last': each network goes on from its newest complete checkpoint, if any"}
    )
    report_to: None | str | list[str] = field(  # noqa: RUF036  # the parser looks at the second
        default="none", metadata={"help": "wandb, tensorboard, ..."}
    )


class WithoutContext(SetRank):
    """The same layers, ordinal embeddings too, but each document attends to itself alone."""

    def attend(self, documents: Tensor, mask: Tensor) -> Tensor:
        alone = documents[mask][:, None]
        return super().attend(alone, torch.ones_like(alone[..., 0], dtype=torch.bool))


class NDCGEvaluator(BaseEvaluator):
    """nDCG@10 with gain 2^label - 1 over the lists with a relevant document, ties averaged.

    ValueError: there is no such list.
    """

    def __init__(self, lists: Dataset, name: str) -> None:
        super().__init__()
        rows = [row for row in lists if max(row["labels"]) > 0]
        if not rows:
            raise ValueError(
                f"None of the {len(lists)} {name} lists has a label above 0, so that nDCG@10 has no value. Give other "
                "files; --valid, if that is the held-out tenth of the training file."
            )
        self.queries, self.docs = [row["query"] for row in rows], [row["docs"] for row in rows]
        self.labels = [row["labels"] for row in rows]
        self.name, self.metric = name, f"{name}_ndcg@10"
        self.primary_metric = self.metric

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        metrics = {self.metric: float(np.mean(self.per_query(self.scores(model))))}
        self.store_metrics_in_model_card_data(model, metrics, epoch, steps)
        return metrics

    def per_query(self, scores: Sequence[np.ndarray]) -> list[float]:
        """nDCG@10 of each list."""
        return [ndcg(labels, own) for labels, own in zip(self.labels, scores)]

    def scores(self, model: SetRankCrossEncoder) -> list[np.ndarray]:
        """Scores of each list."""
        return predict_lists(model, self.queries, self.docs, batch_size=4096, show_progress_bar=False)


def main(argv: list[str] | None = None) -> int:
    """Run the script; returns the exit status."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    for name in ("train_letor", "train_listwise", "st_listwise"):
        logging.getLogger(name).setLevel(logging.INFO)
    try:
        refuse_processes()
        script, args = parse_options(argv, (ScriptArguments, TrainingArguments), __doc__)
        return run(script, args, argv)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def run(script: ScriptArguments, args: TrainingArguments, argv: list[str] | None) -> int:
    if args.resume_from_checkpoint not in (None, "last"):
        raise ValueError(
            f"--resume_from_checkpoint {args.resume_from_checkpoint}: each network goes on from a checkpoint of its "
            "own, which 'last' finds."
        )
    push = push_settings(args)
    build_loss = loss_builder(script.loss, script.loss_args)
    train, valid, test = prepare_data(script)
    output = Path(str(args.output_dir))
    models: dict[str, SetRankCrossEncoder] = {}
    results: dict[str, float] = {}
    evaluator, tested = NDCGEvaluator(valid, "valid"), NDCGEvaluator(test, "test")
    for name in ["SetRank", *(["without context"] if script.compare else [])]:
        set_seed(args.seed)
        models[name] = model = build_model(script, train, context=name == "SetRank")
        if name == "SetRank":
            results["untrained"] = tested(model)[tested.metric]
        trainer = build_trainer(model, args, train, build_loss(model), evaluator, output / name.replace(" ", "_"))
        trainer.train(resume_from_checkpoint=checkpoint_to_resume(trainer.args))
        results[name] = tested(model)[tested.metric]
        title = f"{name}, {script.loss} on {Path(script.train).name}"
        plot_curve(
            output / f"loss_curve_{name.replace(' ', '_')}.png",
            trainer.state.log_history,
            f"eval_{evaluator.primary_metric}",
            title,
        )
        if name == "SetRank":
            if push:
                model.model_card_data.set_model_id(push["repo_id"])  # what the card's snippet loads
            model.save_pretrained(str(output / "final"))
    command = command_line("examples/setrank/train_letor.py", argv)
    write_json(
        output / "metrics.json",
        {"command": command, "test nDCG@10": results, "seed": args.seed, "settings": asdict(script)},
    )
    print(table(results, len(tested.queries)))
    print(f"\nModel, card and figures are in {output}: final/, loss_curve_*.png, metrics.json.")
    return push_final(models["SetRank"], output / "final", push) if push else 0


def table(results: dict[str, float], queries: int) -> str:
    """Results as text."""
    lines = [f"test, {queries} queries{'':6}nDCG@10"]
    return "\n".join(lines + [f"{name:24}{value:7.4f}" for name, value in results.items()])


def prepare_data(script: ScriptArguments) -> tuple[Dataset, Dataset, Dataset]:
    """Lists to train on, to choose the best epoch on, and for the figures."""
    if script.train == "demo":
        rows = made_lists(460, seed=12)
        train, valid, test = (Dataset.from_list(rows[cut]) for cut in (slice(300), slice(300, 360), slice(360, None)))
        return shorten(train, script.max_docs, 12), valid, test
    if script.test is None:
        raise ValueError("--train with a file needs a --test file.")
    train = read_letor(script.train)
    width = len(train[0]["docs"][0])
    test = read_letor(script.test, width)
    if script.valid:
        valid = read_letor(script.valid, width)
    else:
        parts = train.train_test_split(test_size=max(len(train) // 10, 1), seed=12)
        train, valid = parts["train"], parts["test"]
    teaches = teaching(train, script.train)
    logger.info(f"{script.train}: {len(teaches)} lists; {len(train) - len(teaches)} of one label are left out.")
    return shorten(teaches, script.max_docs, 12), valid, test


def teaching(lists: Dataset, source: str) -> Dataset:
    """The lists with documents of two labels. ValueError: there is none."""
    kept = lists.filter(lambda labels: len(set(labels)) > 1, input_columns="labels")
    if not len(kept):
        raise ValueError(f"{source}: none of the {len(lists)} lists to train on has documents of two labels.")
    return kept


def shorten(lists: Dataset, max_docs: int | None, seed: int) -> Dataset:
    """Lists of at most ``max_docs`` documents, drawn at random; those that are left with one label are dropped.

    ValueError: none is left.
    """
    if max_docs is None:
        return lists
    if max_docs < 2:
        raise ValueError(f"--max_docs {max_docs} must be at least 2: a list of one document teaches nothing.")
    generator = np.random.default_rng(seed)
    rows = []
    for row in lists:
        kept = np.sort(generator.permutation(len(row["labels"]))[:max_docs])
        short = {"docs": [row["docs"][i] for i in kept], "labels": [row["labels"][i] for i in kept]}
        if len(set(short["labels"])) > 1:
            rows.append({"query": row["query"], **short})
    if not rows:
        raise ValueError(f"{max_docs} documents, drawn from each of {len(lists)} lists, are never of two labels.")
    return Dataset.from_list(rows)


def made_lists(queries: int, seed: int, features: int = 6) -> list[dict[str, Any]]:
    """Lists that follow the cluster hypothesis: relevant documents resemble each other, around a topic of the query.

    The topic is drawn anew for each query and not given, so that only the rest of the list tells where it lies. One
    more feature is a weak first-stage score.
    """
    generator = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    while len(rows) < queries:
        docs = int(generator.integers(10, 40))
        labels = generator.choice(4, size=docs, p=[0.55, 0.2, 0.15, 0.1])
        topic = generator.normal(size=features)
        vectors = 2 * labels[:, None] / 3 * topic + generator.normal(size=(docs, features))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)  # the length must not tell
        first_stage = labels + 3 * generator.normal(size=docs)
        if len(set(labels.tolist())) > 1:
            docs_and_score = np.column_stack([vectors, first_stage])
            rows.append({"query": f"q{len(rows)}", "docs": docs_and_score.tolist(), "labels": labels.tolist()})
    return rows


def build_model(script: ScriptArguments, train: Dataset, context: bool = True) -> SetRankCrossEncoder:
    """FeatureVectors → SetRank → Dense, with the statistics of the training lists."""
    vectors = np.concatenate([np.asarray(docs) for docs in train["docs"]])
    columns = ranking_columns(script.ranking_features, vectors.shape[1])
    if script.ordinal != "none" and not columns:
        logger.info("Ordinal embeddings take the order of the documents in the file as the initial ranking.")
    ordinal: dict[str, Any] = {
        "ordinal": script.ordinal,
        "max_docs": script.longest_list,
        "rankings": max(len(columns), 1),
    }
    if script.paper:
        config = SetRankConfig.paper(inducing_points=script.inducing_points or 20, **ordinal)
    else:
        config = SetRankConfig(
            width=script.width,
            layers=script.layers,
            heads=script.heads,
            inducing_points=script.inducing_points,
            dropout=script.dropout,
            **ordinal,
        )
    log1p = script.train != "demo" if script.log1p is None else script.log1p
    features = FeatureVectors.fit(vectors, log1p=log1p, ranking_columns=columns)
    model = SetRankCrossEncoder(features=features, set_rank=config)
    if not context:
        model[1].__class__ = WithoutContext
    return model


def ranking_columns(features: str, width: int) -> list[int]:
    """Columns, from 0, of features that are numbered from 1. ValueError: one is no such number.

    >>> ranking_columns("3, 1", width=3), ranking_columns("", width=3)
    ([2, 0], [])
    """
    given = [part.strip() for part in features.split(",") if part.strip()]
    for part in given:
        if not part.isdecimal() or not 1 <= int(part) <= width:
            raise ValueError(f"--ranking_features {features}: {part!r} is no number of a feature, from 1 to {width}.")
    return [int(part) - 1 for part in given]


def build_trainer(
    model: SetRankCrossEncoder,
    args: TrainingArguments,
    train: Dataset,
    loss: Any,
    evaluator: NDCGEvaluator,
    output: Path,
) -> CrossEncoderTrainer:
    own = copy.copy(args)
    own.output_dir = str(output)
    choose_best_by(own, evaluator.metric)
    return CrossEncoderTrainer(model=model, args=own, train_dataset=train, loss=loss, evaluator=evaluator)


if __name__ == "__main__":
    sys.exit(main())
