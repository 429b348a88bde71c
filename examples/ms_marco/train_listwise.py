"""Train a reranker on ranked lists: MS MARCO, judgments of your own in a file, or a demo that needs no download.

    python examples/ms_marco/train_listwise.py                                  # MS MARCO v1.1, MiniLM-L12
    python examples/ms_marco/train_listwise.py --dataset demo --model demo      # minutes on a laptop
    python examples/ms_marco/train_listwise.py --dataset rows.jsonl --loss ADRMSELoss --loss_args '{"alpha": 2}'
    accelerate launch --multi_gpu --num_processes 4 examples/ms_marco/train_listwise.py    # one process for each GPU

Every argument of CrossEncoderTrainingArguments can be given as well. See the README beside this file.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from card import BINARY, complete_card
from datasets import Dataset
from demo import lexical_scores
from mapper import describe, map_dataset
from options import parse_options
from publishing import push_final, push_settings
from reporting import (
    COLUMNS,
    PerQuery,
    command_line,
    loss_facts,
    means,
    plot_curve,
    plot_queries,
    table,
    versions,
    write_json,
)
from sentence_transformers import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.cross_encoder.evaluation import CrossEncoderNanoBEIREvaluator
from sources import load_lists, load_model
from transformers import TrainerCallback, set_seed

from st_listwise import ListStatisticsCallback, ListwiseDataCollator, ListwiseLoss, losses
from st_listwise.checkpoints import last_complete_checkpoint
from st_listwise.evaluation import GradedRerankingEvaluator

logger = logging.getLogger("train_listwise")
#: Losses that can be built from a name and JSON.
SINGLE = [name for name in losses.__all__ if name not in ("ListwiseLoss", "CombinedLoss")]
BF16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported()


#: Lists to train on; lists to evaluate on by name, "held-out" and perhaps "test"; counts of what was left out.
Data = tuple[Dataset, dict[str, Dataset], dict[str, Any]]


@dataclass(kw_only=True)
class RunArguments:
    """What every script takes. A script of its own says where lists come from, and what they are measured against."""

    path: ClassVar[str]  #: from the root of the repository
    defaults: ClassVar[dict[str, Any]] = {}  #: of training arguments, where they differ
    files: ClassVar[str] = "final/, loss_curve.png, per_query.png, metrics.json"  #: what is written

    model: str = field(
        default="microsoft/MiniLM-L12-H384-uncased", metadata={"help": "name on the Hub, local folder, or 'demo'"}
    )
    loss: str = field(default="ListMLELoss", metadata={"help": "class name: " + ", ".join(SINGLE)})
    loss_args: str = field(default="{}", metadata={"help": "the loss's arguments as JSON, such as '{\"alpha\": 2}'"})
    max_docs: int | None = field(default=None, metadata={"help": "most documents of a training list, at least 2"})
    max_length: int | None = field(default=None, metadata={"help": "longest pair in tokens"})
    eval_queries: int = field(default=1000, metadata={"help": "queries held out, at most a tenth of all"})

    def source(self) -> str:
        """Names the data, in figures and card."""
        raise NotImplementedError

    def prepare_data(self, output: Path) -> Data:
        """Read everything, and say what is wrong with it."""
        raise NotImplementedError

    def limits(self) -> list[str]:
        """What the card says of the figures."""
        return [BINARY]

    def build_model(self) -> CrossEncoder:
        return load_model(self.model, self.max_length)

    def learning_rates(self) -> dict[str, float]:
        """Pattern of parameter names → learning rate, for those that do not have the common one."""
        return {}

    def sample(self, train: Dataset) -> tuple[Dataset, list[TrainerCallback]]:
        """The training lists as they are read, and what the trainer needs for it."""
        return train, []

    def build_evaluator(self, lists: Dataset, name: str) -> GradedRerankingEvaluator:
        """Figures of whole lists; relevant is above 0 and above the lowest label, as for ``BINARY``."""
        rows = []
        for row in lists:
            threshold = max(0.0, min(row["labels"]))
            rows.append({**row, "labels": [int(label > threshold) for label in row["labels"]]})
        return GradedRerankingEvaluator(rows, list(COLUMNS), name=name, show_progress_bar=True, write_csv=False)

    def measure_first(self, evaluator: GradedRerankingEvaluator) -> dict[str, PerQuery]:
        """Figures to compare with, by name: what is there without a model."""
        return {"BM25": measure(LexicalOrder(), evaluator)}

    def guide(self) -> BaseEvaluator | None:
        """What chooses the best checkpoint. None: the held-out queries."""
        return None

    def measure_last(
        self, model: CrossEncoder, evaluator: GradedRerankingEvaluator, lists: Dataset, output: Path
    ) -> PerQuery:
        """Figures of the trained model."""
        return measure(model, evaluator)


@dataclass(kw_only=True)
class ScriptArguments(RunArguments):
    """What is trained on what."""

    path: ClassVar[str] = "examples/ms_marco/train_listwise.py"
    keep_order: ClassVar[bool] = False  #: the order in which documents are given means something to the model

    dataset: str = field(
        default="microsoft/ms_marco", metadata={"help": "name on the Hub, .json/.jsonl/.parquet file, or 'demo'"}
    )
    dataset_config: str | None = field(
        default=None,
        metadata={"help": "configuration of a data set on the Hub; default: v1.1 of microsoft/ms_marco"},
    )
    eval_file: str | None = field(default=None, metadata={"help": "file to evaluate on instead of held-out queries"})
    test_file: str | None = field(default=None, metadata={"help": "file for figures before and after training"})
    nano_beir: bool | None = field(
        default=None,
        metadata={"help": "choose the best model on NanoBEIR; default: with data from the Hub, if reachable"},
    )

    def source(self) -> str:
        return self.dataset

    def prepare_data(self, output: Path) -> Data:
        return prepare_data(self)

    def guide(self) -> BaseEvaluator | None:
        return nano_beir(self)


@dataclass
class TrainingArguments(CrossEncoderTrainingArguments):
    """CrossEncoderTrainingArguments with defaults for a reranker on MS MARCO v1.1."""

    output_dir: str | None = field(default="output/ms_marco", metadata={"help": "where everything goes"})
    num_train_epochs: float = field(default=1.0, metadata={"help": "epochs"})
    per_device_train_batch_size: int = field(default=16, metadata={"help": "queries in a step"})
    learning_rate: float = field(default=2e-5, metadata={"help": "peak learning rate"})
    warmup_steps: float = field(
        default=0.1, metadata={"help": "steps of warm-up, or below 1 their share of all steps"}
    )
    seed: int = field(default=12, metadata={"help": "of the model's head and the order of data"})
    bf16: bool = field(default=BF16, metadata={"help": "default: where the hardware has it"})
    eval_strategy: str = field(default="steps", metadata={"help": "no, steps or epoch"})
    eval_steps: float | None = field(default=0.25, metadata={"help": "steps, or below 1 their share of all steps"})
    save_strategy: str = field(default="steps", metadata={"help": "no, steps, epoch or best"})
    save_steps: float = field(default=0.25, metadata={"help": "steps, or below 1 their share of all steps"})
    save_total_limit: int | None = field(default=2, metadata={"help": "checkpoints to keep"})
    load_best_model_at_end: bool = field(default=True, metadata={"help": "end with the best evaluated checkpoint"})
    logging_steps: float = field(default=0.02, metadata={"help": "steps, or below 1 their share of all steps"})
    dataloader_pin_memory: bool = field(default=torch.cuda.is_available(), metadata={"help": "of use with a GPU"})
    resume_from_checkpoint: str | None = field(
        default=None, metadata={"help": "folder of a checkpoint, or 'last': the newest complete one, if there is one"}
    )
    create_pr: bool = field(default=False, metadata={"help": "with --push_to_hub: push as a pull request"})
    report_to: None | str | list[str] = field(  # noqa: RUF036  # the parser looks at the second
        default="none", metadata={"help": "wandb, tensorboard, ..."}
    )


class LexicalOrder:
    """Orders by BM25, in the place of a model in an evaluator."""

    model_card_data = SimpleNamespace(set_evaluation_metrics=lambda *arguments: None)

    def predict(self, pairs: list[tuple[str, str]], **options: Any) -> Any:
        return lexical_scores(pairs)


def main(
    argv: list[str] | None = None,
    script_class: type[RunArguments] = ScriptArguments,
    description: str | None = __doc__,
) -> int:
    """Run the script; returns the exit status."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        script, args = parse_options(argv, (script_class, TrainingArguments), description, script_class.defaults)
        for name in ("train_listwise", "st_listwise"):  # of several processes the first one tells
            logging.getLogger(name).setLevel(logging.INFO if args.process_index == 0 else logging.WARNING)
        return run(script, args, argv)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def run(script: RunArguments, args: TrainingArguments, argv: list[str] | None) -> int:
    if args.fsdp or os.environ.get("ACCELERATE_USE_FSDP") == "true":
        raise ValueError(
            "This script keeps checkpoints, which sentence-transformers does not save from FSDP. Start it with "
            "`accelerate launch --multi_gpu`; the README shows how a script of your own saves."
        )
    push = push_settings(args, args.create_pr)
    build_loss = loss_builder(script.loss, script.loss_args)
    output = Path(str(args.output_dir))
    with args.main_process_first(desc="reading the data"):  # what it makes the others find
        train, evaluation, counts = script.prepare_data(output)
    set_seed(args.seed)  # before the model is built: its head starts at random
    model = script.build_model()
    model.model_card_data.language = model.model_card_data.language or ["en"]
    loss = build_loss(model)

    sets = {name: script.build_evaluator(lists, name) for name, lists in evaluation.items()}
    first = args.process_index == 0  # of several processes it measures before training, and writes
    values = {name: script.measure_first(evaluator) for name, evaluator in sets.items() if first}
    for name in values:
        values[name]["before"] = measure(model, sets[name])

    guide = script.guide() or sets["held-out"]
    args.learning_rate_mapping = script.learning_rates() | dict(args.learning_rate_mapping or {})  # type: ignore[arg-type]
    trainer = build_trainer(model, args, script.sample(train), loss, guide)
    trainer.train(resume_from_checkpoint=checkpoint_to_resume(args))
    if not first:
        return 0
    trainer.accelerator.unwrap_model(model, keep_fp32_wrapper=False)  # figures are of what is saved: no autocast
    for name in values:
        values[name]["after"] = script.measure_last(model, sets[name], evaluation[name], output)

    if push:
        model.model_card_data.set_model_id(push["repo_id"])  # what the card's snippet loads
    model.save_pretrained(str(output / "final"))
    results = summary(script, args, argv, counts, values, trainer, loss)
    write_json(output / "metrics.json", results)
    complete_card(output / "final" / "README.md", results)
    plot_curve(output / "loss_curve.png", trainer.state.log_history, args.metric_for_best_model, describe_run(script))
    name, orders = list(values.items())[-1]
    plot_queries(output / "per_query.png", orders, f"{describe_run(script)}: {name} queries")
    print(f"\n{table(values)}\n\nModel, card and figures are in {output}: {script.files}.")
    return push_final(model, output / "final", push) if push else 0


def loss_builder(name: str, arguments: str) -> Any:
    """A function from a model to the loss; name and arguments are checked before anything is loaded."""
    if name not in SINGLE:
        folded = {known.lower(): known for known in SINGLE}
        close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.4)
        hint = f" Did you mean {folded[close[0]]}?" if close else ""
        raise ValueError(f"--loss {name!r} is not known.{hint} There are {', '.join(SINGLE)}.")
    try:
        options = json.loads(arguments)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"--loss_args {arguments!r} is not valid JSON ({error}). Write '{{\"alpha\": 2}}'."
        ) from error
    if not isinstance(options, dict):
        raise ValueError(f"--loss_args {arguments!r} must be a JSON object, such as '{{\"alpha\": 2}}'.")

    def build(model: CrossEncoder) -> ListwiseLoss:
        loss_class = getattr(losses, name)
        known = loss_class(model).get_config_dict()
        if unknown := set(options) - set(known):
            raise ValueError(f"--loss_args: {name} has no {', '.join(sorted(unknown))}; it takes {', '.join(known)}.")
        return loss_class(model, **options)

    return build


def prepare_data(script: ScriptArguments) -> Data:
    """Lists of rows from the Hub or files."""
    if script.dataset_config and (script.dataset == "demo" or Path(script.dataset).exists()):
        raise ValueError(f"--dataset_config {script.dataset_config!r} is for data sets on the Hub only; leave it out.")
    config = script.dataset_config or ("v1.1" if script.dataset == "microsoft/ms_marco" else None)
    counts, evaluation = {}, {}
    lists, counts["train"] = mapped(script, script.dataset, config)
    for name, path in {"held-out": script.eval_file, "test": script.test_file}.items():
        if path:
            evaluation[name], counts[name] = mapped(script, path)
    if "held-out" not in evaluation:
        lists, held_out = hold_out(script, lists, ", or an --eval_file")
        counts["held-out"] = {"queries": len(held_out)}
        evaluation = {"held-out": held_out, **evaluation}
    if script.max_docs is not None:  # of training lists alone: figures are of whole lists
        whole = sum(map(len, lists["docs"]))
        lists, short = map_dataset(lists, script.max_docs, script.keep_order)
        counts["train"]["documents"] += short["documents"] - whole
        counts["train"]["truncated"] = short["truncated"]
        logger.info(f"--max_docs {script.max_docs} cuts {short['truncated']:,} of {len(lists):,} lists to train on.")
    return lists, evaluation, counts


def hold_out(script: RunArguments, lists: Dataset, remedy: str = "") -> tuple[Dataset, Dataset]:
    """Lists to train on, and those that choose the best checkpoint.

    Raises:
        ValueError: there are too few.
    """
    size = min(script.eval_queries, len(lists) // 10)
    if size < 1:
        raise ValueError(f"{script.source()} leaves {len(lists)} lists; at least 10 are needed{remedy}.")
    split = lists.train_test_split(test_size=size, seed=12)
    return split["train"], split["test"]


def mapped(script: ScriptArguments, source: str, config: str | None = None) -> tuple[Dataset, dict[str, int]]:
    """The lists of a source, and what was left out of them, which is also logged."""
    lists, counts = load_lists(source, config, script.keep_order)
    logger.info(f"{source}: {describe(counts)}")
    return lists, counts


def measure(model: Any, evaluator: GradedRerankingEvaluator) -> PerQuery:
    evaluator(model)
    return rounded(evaluator.per_query)


def rounded(values: PerQuery) -> PerQuery:
    return {key: [round(value, 6) for value in own] for key, own in values.items()}


def nano_beir(script: ScriptArguments) -> BaseEvaluator | None:
    """NanoBEIR, where it is wanted and can be reached."""
    local = script.dataset == "demo" or Path(script.dataset).exists()
    if script.nano_beir is False or (script.nano_beir is None and local):
        return None
    try:
        return CrossEncoderNanoBEIREvaluator()
    except Exception as error:  # whatever the Hub client raises without a network
        if script.nano_beir:
            raise ValueError(
                f"--nano_beir: NanoBEIR could not be loaded ({type(error).__name__}: {error})."
            ) from error
        logger.info("NanoBEIR could not be reached: the best model is chosen on the held-out queries.")
        return None


def build_trainer(
    model: CrossEncoder,
    args: TrainingArguments,
    train: tuple[Dataset, list[TrainerCallback]],
    loss: ListwiseLoss,
    guide: BaseEvaluator,
) -> CrossEncoderTrainer:
    name = getattr(guide, "name", "")
    metric = str(guide.primary_metric)
    metric = metric if not name or metric.startswith(f"{name}_") else f"{name}_{metric}"
    choose_best_by(args, metric)
    in_workers = ListwiseDataCollator(loss, prompts=args.prompts) if args.dataloader_num_workers else None
    trainer = CrossEncoderTrainer(
        model=model,
        args=args,
        train_dataset=train[0],
        loss=loss,
        evaluator=guide,
        data_collator=in_workers,
        callbacks=train[1],
    )
    trainer.add_callback(ListStatisticsCallback(trainer))
    return trainer


def checkpoint_to_resume(args: CrossEncoderTrainingArguments) -> str | None:
    if args.resume_from_checkpoint != "last":
        return args.resume_from_checkpoint
    checkpoint = last_complete_checkpoint(str(args.output_dir))
    logger.info(f"Training goes on from {checkpoint}." if checkpoint else "No checkpoint to go on from: a new start.")
    return checkpoint


def choose_best_by(args: CrossEncoderTrainingArguments, metric: str) -> None:
    """Choose the best model by a metric, unless the user has named another."""
    if args.metric_for_best_model in (None, "loss", "eval_loss"):  # what the arguments class fills in
        args.metric_for_best_model = f"eval_{metric}"
        args.greater_is_better = True


def describe_run(script: RunArguments) -> str:
    return f"{script.loss} on {Path(script.source()).name}, {Path(script.model).name}"


def summary(
    script: RunArguments,
    args: TrainingArguments,
    argv: list[str] | None,
    counts: dict[str, Any],
    values: dict[str, dict[str, PerQuery]],
    trainer: CrossEncoderTrainer,
    loss: ListwiseLoss,
) -> dict[str, Any]:
    """Everything that is needed to know what the figures mean, and to get them again."""
    gpu = torch.cuda.get_device_name(args.device) if args.device.type == "cuda" else None
    return {
        "command": command_line(script.path, argv),
        "metrics": {name: {order: means(own) for order, own in orders.items()} for name, orders in values.items()},
        "loss": loss_facts(loss),
        "model": script.model,
        "class": type(trainer.model).__name__,
        "dataset": script.source(),
        "limits": script.limits(),
        "counts": counts,
        "seed": args.seed,
        "steps": trainer.state.global_step,
        "epochs": trainer.state.epoch,
        "batch_size": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "processes": args.world_size,
        "learning_rate": args.learning_rate,
        "precision": "bfloat16" if args.bf16 else "float16" if args.fp16 else "float32",
        "best_by": args.metric_for_best_model if args.load_best_model_at_end else None,
        "seconds": next((e["train_runtime"] for e in trainer.state.log_history if "train_runtime" in e), None),
        "device": gpu or f"CPU, threads: {torch.get_num_threads()}",
        "versions": versions(),
        "per_query": values,
    }


if __name__ == "__main__":
    sys.exit(main())
