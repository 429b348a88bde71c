"""Training runs in processes of their own, for tests that end them before their time or run two together."""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import CrossEncoderTrainer, CrossEncoderTrainingArguments
from tiny_models import tiny_bert, tiny_set
from transformers import TrainerCallback, TrainerState, set_seed

import st_listwise

STEPS, SAVE_STEPS = 24, 5
WORDS = ["bear", "paris", "light", "why", "so", "planet", "rome", "slow", "animal", "it is"]
#: Largest file that may be written: between the sizes of files, so that the named one is cut.
LIMITS = {"weights": 50_000, "optimizer": 150_000, "state": 500}


def rows() -> Dataset:
    """10 queries of 2 to 4 documents."""
    lists = [range(index, index + 2 + index % 3) for index in range(10)]
    docs = [[f"{WORDS[i % 10]} {WORDS[(i * 3 + len(one)) % 10]}" for i in one] for one in lists]
    labels = [[(i * 7) % 3 for i in range(len(one) - 1)] + [3] for one in lists]
    return Dataset.from_dict({"query": WORDS, "docs": docs, "labels": labels})


def run(kind: str, folder: Path, checkpoint: str | None = None, stop: tuple[str, int, bool] | None = None) -> None:
    """Train and leave ``result.pt``: the loss of each step, and the weights at the end.

    Args:
        kind: "pairs" or "sets".
        folder: Where everything goes.
        checkpoint: What to resume from.
        stop: How the run ends: ("killed", step, …) after a step, or, named after a file, in the middle of writing it
            into the checkpoint of a step; with True it is killed, with False the disk is full.
    """
    begin()
    model: Any = {"pairs": tiny_bert, "sets": tiny_set}[kind](dropout=0.2)
    model._create_model_card = lambda *arguments, **options: None  # half of the time
    args = CrossEncoderTrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=3,
        learning_rate=1e-3,
        save_steps=SAVE_STEPS,
        save_total_limit=2,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    loss = st_listwise.ListMLELoss(model, mini_batch_size=2, recompute=kind == "sets")
    trainer = CrossEncoderTrainer(model, args, rows(), loss=loss)
    if stop is not None:
        end_early(trainer, *stop)
    trainer.train(resume_from_checkpoint=checkpoint)
    losses = [(entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    torch.save({"losses": losses, "weights": model.state_dict()}, folder / "result.pt")


def end_early(trainer: CrossEncoderTrainer, what: str, step: int, killed: bool) -> None:
    if what == "killed":
        trainer.add_callback(Kill(step))
        return

    def limit(*_: Any) -> None:
        if trainer.state.global_step == step:
            # The default action on a file that grows too large kills, and leaves it as it is; Python's is an OSError.
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL if killed else signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (LIMITS[what], resource.RLIM_INFINITY))

    owner, name = (TrainerState, "save_to_json") if what == "state" else (CrossEncoderTrainer, "_save_checkpoint")
    original: Any = getattr(owner, name)
    setattr(owner, name, lambda *arguments: (limit(), original(*arguments))[1])


class Kill(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **options: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def count_together(rank: int, port: int, folder: Path) -> None:
    """One of two processes that train together; the first leaves ``log.pt``, the trainer's log."""
    begin()
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()})
    model = tiny_bert()
    args = CrossEncoderTrainingArguments(
        output_dir=str(folder),
        max_steps=5,
        per_device_train_batch_size=1,
        per_device_eval_batch_size=1,
        learning_rate=0.0,
        save_strategy="no",
        logging_steps=5,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = CrossEncoderTrainer(model, args, rows(), rows(), loss=st_listwise.ListMLELoss(model))
    trainer.add_callback(st_listwise.ListStatisticsCallback(trainer))
    trainer.train()
    trainer.evaluate()
    if rank == 0:
        torch.save(trainer.state.log_history, folder / "log.pt")


def begin() -> None:
    """Quiet, quick and seeded."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)  # which may be a file, and files may be limited
    os.dup2(silence, 2)
    torch.set_num_threads(1)
    gc.freeze()  # the trainer collects garbage, of which imported modules have none
    set_seed(1)


def start(function: Any, *arguments: Any) -> Any:
    """Run a function of this module in a fresh process that has everything imported; returns the process."""
    context = multiprocessing.get_context("forkserver")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)  # for the server, which imports once
    context.set_forkserver_preload(["separate_runs"])
    process = context.Process(target=function, args=arguments)
    process.start()
    return process


def finish(process: Any) -> int:
    """Wait for a process; returns its exit code, negative for a signal."""
    process.join()
    return int(process.exitcode)
