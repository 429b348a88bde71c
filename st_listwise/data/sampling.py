"""Sampling by epoch: positives stay, negatives are drawn anew in each epoch, the same ones after a resumption."""

from __future__ import annotations

import zlib
from typing import Any, Literal

import numpy as np
import torch
from datasets import Dataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from st_listwise.data.arguments import check_dataset

#: Columns that have one entry a document.
PARALLEL = ("docs", "labels", "doc_ids")


class EpochSampler(TrainerCallback):
    """Cuts long lists to a sample that changes with the epoch. It is both the transform and the trainer's callback.

    What is drawn depends on ``seed``, the epoch and the list, and on nothing else: not on batches, workers or
    processes, and not on an interruption.

    Args:
        max_docs: Most documents of a list, at least 2. Shorter lists stay as they are.
        strategy: "uniform", or "top-heavy": the document in place i of its list, from 1, is drawn with weight 1 / i,
            so that most negatives are those that the first stage ranked high. Lists are to be best first, as
            :func:`~st_listwise.data.read_trec` gives them.
        keep_above: Documents with a label above this are positives. They are all kept, the best of them where they are
            more than ``max_docs`` - 1, and the other places are drawn. ``math.inf`` draws all, as for a teacher's
            ranking, where no document is a negative.
        seed: Of the draws.

    Raises:
        ValueError: an option makes no sense; a row is read before the trainer has the callback, or its labels do not
            fit its documents.

    Example:
        ::

            sampler = EpochSampler(max_docs=16, strategy="top-heavy")
            CrossEncoderTrainer(model, args, sampler.attach(train_dataset), loss=loss, callbacks=[sampler]).train()
    """

    def __init__(
        self,
        max_docs: int,
        strategy: Literal["uniform", "top-heavy"] = "uniform",
        *,
        keep_above: float = 0.0,
        seed: int = 12,
    ) -> None:
        if not isinstance(max_docs, int) or max_docs < 2:
            raise ValueError(
                f"max_docs={max_docs!r} must be a whole number of at least 2: a list of one document teaches nothing."
            )
        if strategy not in ("uniform", "top-heavy"):
            raise ValueError(f'strategy={strategy!r} is not known; expected "uniform" or "top-heavy".')
        self.max_docs, self.strategy, self.keep_above, self.seed = max_docs, strategy, keep_above, seed
        # In shared memory, so that workers of the data loader that live through epochs see it change.
        self._epoch = torch.tensor(-1).share_memory_()
        self._begun = False

    def __deepcopy__(self, memo: dict[int, Any]) -> EpochSampler:
        """Itself: data sets are copied with their transform, and each copy must hear of the epoch."""
        return self

    def attach(self, dataset: Dataset) -> Dataset:
        """The data set with its lists sampled whenever they are read. It must have ``query``, ``docs``, ``labels``.

        Raises:
            ValueError: it is no data set, a column is not there, or it has a transform already.
        """
        check_dataset("dataset", dataset)
        if missing := [name for name in ("query", "docs", "labels") if name not in dataset.column_names]:
            raise ValueError(f"There is no column {', '.join(missing)}, only {', '.join(dataset.column_names)}.")
        if dataset.format["type"] is not None:
            raise ValueError(f"The data set has the format {dataset.format['type']}: sampling needs plain rows.")
        return dataset.with_transform(self)

    def set_epoch(self, epoch: int) -> None:
        """What the trainer does at the begin of each epoch; for training loops of your own."""
        self._epoch.fill_(epoch)

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """Sample the lists of some rows."""
        if "docs" not in batch or "labels" not in batch or "query" not in batch:
            return batch  # a single column, read as such, is not sampled
        epoch = int(self._epoch)
        if epoch < 0:
            raise ValueError(
                "EpochSampler does not know the epoch: give the same object to the trainer, "
                "CrossEncoderTrainer(..., callbacks=[sampler]), or call set_epoch in a training loop of your own."
            )
        rows = zip(batch["query"], batch["docs"], batch["labels"])
        chosen = [self._choose(query, _checked(query, docs, labels), epoch) for query, docs, labels in rows]
        return {
            name: [[own[place] for place in places] for own, places in zip(column, chosen)]
            if name in PARALLEL
            else column
            for name, column in batch.items()
        }

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The trainer knows the callback from here on."""
        self.set_epoch(0)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The epoch at which training starts, which after a resumption is that of the checkpoint."""
        self.set_epoch(int(state.epoch or 0))
        self._begun = False

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Before the data loader starts. Counted, as ``state.epoch`` lags where a sampler gives fewer batches."""
        self._epoch += int(self._begun)
        self._begun = True

    def _choose(self, query: Any, labels: list[float], epoch: int) -> list[int]:
        """Places of the documents that are kept, in their order."""
        if len(labels) <= self.max_docs:
            return list(range(len(labels)))
        values = np.asarray(labels, np.float64)
        generator = np.random.default_rng([self.seed, epoch, zlib.crc32(str(query).encode())])
        by_label = np.lexsort((generator.random(len(values)), -values))  # equal labels by chance
        kept = by_label[: min(self.max_docs - 1, int((values > self.keep_above).sum()))]
        rest = np.setdiff1d(np.arange(len(values)), kept)
        negatives = rest[values[rest] <= self.keep_above]
        pool = negatives if len(negatives) else rest
        weights = 1 / (pool + 1.0) if self.strategy == "top-heavy" else np.ones(len(pool))
        places = min(self.max_docs - len(kept), len(pool))
        drawn = generator.choice(pool, places, replace=False, p=weights / weights.sum())
        return sorted(int(place) for place in [*kept, *drawn])


def _checked(query: Any, docs: Any, labels: Any) -> list[float]:
    """The labels, once there is one for each document: what is sampled would hide that they do not fit."""
    if docs is None or labels is None or len(docs) != len(labels):
        sizes = ["no" if own is None else len(own) for own in (labels, docs)]
        raise ValueError(f"The row of query {query!r:.60} has {sizes[0]} labels for {sizes[1]} documents.")
    return list(labels)
