"""ListStatisticsCallback: what a loss curve does not tell about training on lists, in the trainer's log."""

from __future__ import annotations

import logging
import time
from typing import Any

import torch
from sentence_transformers.cross_encoder import CrossEncoderTrainer
from torch import Tensor
from transformers import TrainerCallback

from st_listwise.functional.lists import length_mask, pad_lists, teaches
from st_listwise.losses.base import ListwiseLoss, ReadyBatch

logger = logging.getLogger(__name__)


class ListStatistics:
    """Sums over the batches that losses have scored. Nothing waits for a GPU until they are read."""

    def __init__(self) -> None:
        self.sums: dict[bool, Any] = {}  #: by whether gradients were wanted: training, or evaluation

    def __call__(self, batch: ReadyBatch, scores: Tensor) -> None:
        """Add a batch. ``scores``: ``(pairs,)``, detached."""
        spread, several = _spread(scores, batch.sizes)
        labels = pad_lists(batch.labels, batch.sizes)
        teach = teaches(labels, length_mask(batch.sizes, labels.device))
        if batch.weights is not None:
            teach = teach & (batch.weights > 0).to(teach.device)
        masks = (features.get("attention_mask") for features in batch.mini_batches.features)
        tokens = sum(mask.sum() for mask in masks if isinstance(mask, Tensor))
        new = [spread.sum(), several.sum(), teach.sum(), len(batch.sizes), sum(batch.sizes), tokens]
        training = torch.is_grad_enabled()
        self.sums[training] = [old + value for old, value in zip(self.sums.get(training, [0] * 6), new)]

    def take(self, training: bool) -> Tensor:
        """The sums of training or evaluation, which begin anew."""
        return torch.tensor([float(value) for value in self.sums.pop(training, [0] * 6)])


class ListStatisticsCallback(TrainerCallback):
    """Logs what lists do in training, wherever ``report_to`` says, and warns when scores collapse.

    Each time that the trainer logs its loss, one more entry follows, over the same steps and all processes:

    - ``score_spread``: mean over lists of the standard deviation of scores within the list (lists of one document
      have none). A model that gives all documents of a query one score is at 0, its loss at what chance gives, such
      as ln(list size). Dropout is part of it.
    - ``lists_that_teach``: share of lists with more than one label, and a weight above 0.
    - ``pairs_per_second``, ``tokens_per_second``: (query, document) pairs and their real tokens, without padding,
      through forward and backward pass. Loading of data counts, evaluation and saving do not.

    With an ``eval_dataset`` each evaluation logs ``eval_score_spread``, without dropout.

    Args:
        trainer: The trainer whose losses are watched, one or a dictionary of them. At least one is of this package.
        min_spread: A spread below this, in training or in evaluation, is warned about, once. A new head on MiniLM-L6
            starts at 0.013.
        patience: Number of logs in a row below ``min_spread`` before the warning.

    Raises:
        ValueError: it is no trainer; the trainer has no loss of this package; or it is to load the best model by a
            metric that its evaluator does not measure, which would otherwise end training after the first evaluation.

    Example:
        ::

            trainer = CrossEncoderTrainer(model, args, train_dataset, loss=ListMLELoss(model))
            trainer.add_callback(ListStatisticsCallback(trainer))
            trainer.train()
    """

    def __init__(self, trainer: CrossEncoderTrainer, min_spread: float = 1e-3, patience: int = 3) -> None:
        if not isinstance(trainer, CrossEncoderTrainer):
            raise ValueError(
                f"ListStatisticsCallback watches a trainer, got {type(trainer).__name__}: once it is built, "
                "trainer.add_callback(ListStatisticsCallback(trainer))."
            )
        losses = list(trainer.loss.values()) if isinstance(trainer.loss, dict) else [trainer.loss]
        ours = [loss for loss in losses if isinstance(loss, ListwiseLoss)]
        if not ours:
            names = ", ".join(type(loss).__name__ for loss in losses)
            raise ValueError(f"ListStatisticsCallback watches losses of st_listwise; this trainer's is {names}.")
        _check_best_metric(trainer)
        self.trainer = trainer
        self.min_spread = min_spread
        self.patience = patience
        self._statistics = ListStatistics()
        for loss in ours:
            loss.on_scores = self._statistics
        self._flat = {True: 0, False: 0}  #: logs in a row with too little spread, of training and evaluation
        self._warned = False
        self._start = self._done = time.perf_counter()  #: of the window, and of what was last seen

    def on_train_begin(self, *event: Any, **options: Any) -> None:
        self._start = self._done = time.perf_counter()

    def on_step_end(self, *event: Any, **options: Any) -> None:
        self._done = time.perf_counter()

    def on_evaluate(self, *event: Any, **options: Any) -> None:
        self._leave_out()

    def on_save(self, *event: Any, **options: Any) -> None:
        self._leave_out()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **options: Any) -> None:
        if "loss" in (logs or {}):
            self._log_training()
        elif prefixes := [name[:-4] for name in logs or {} if name.endswith("_loss") and name != "train_loss"]:
            self._log_evaluation(prefixes[0])

    def _log_training(self) -> None:
        spread, several, teach, lists, pairs, tokens = self._take(training=True)
        now = time.perf_counter()
        seconds, self._start, self._done = now - self._start, now, now
        if not lists:
            return
        values = {"lists_that_teach": teach / lists, "pairs_per_second": pairs / seconds}
        if several:
            values["score_spread"] = spread / several
            self._watch(spread / several, training=True)
        if tokens:  # feature vectors have none
            values["tokens_per_second"] = tokens / seconds
        self.trainer.log({name: _rounded(value) for name, value in values.items()})

    def _log_evaluation(self, prefix: str) -> None:
        spread, several, *_ = self._take(training=False)
        if several:
            self._watch(spread / several, training=False)
            self.trainer.log({f"{prefix}score_spread": _rounded(spread / several)})

    def _take(self, training: bool) -> list[float]:
        """Sums over processes, all of which log at the same steps."""
        sums = self._statistics.take(training).to(self.trainer.args.device)
        return self.trainer.accelerator.reduce(sums, reduction="sum").tolist()

    def _leave_out(self) -> None:
        """What has happened since the last step is not training."""
        now = time.perf_counter()
        self._start += now - self._done
        self._done = now

    def _watch(self, spread: float, training: bool) -> None:
        self._flat[training] = self._flat[training] + 1 if spread < self.min_spread else 0
        if self._flat[training] >= self.patience and not self._warned:
            self._warned = True
            logger.warning(
                f"The model scores all documents of a query alike: in the last {self.patience} logs the standard "
                f"deviation within a list was below {self.min_spread} ({spread:.2g} now). Nothing is learnt like "
                "this. Lower the learning rate or warm up longer; see whether documents of a query still differ "
                "where they are cut to max_seq_length."
            )


def _check_best_metric(trainer: CrossEncoderTrainer) -> None:
    """ValueError if the best model is chosen by what is not measured, as far as evaluators say what they measure."""
    evaluators = getattr(trainer.evaluator, "evaluators", [trainer.evaluator])
    if not trainer.args.load_best_model_at_end or not all(hasattr(own, "keys") for own in evaluators):
        return
    known = [f"eval_{key}" for own in evaluators for key in own.keys]
    if len(evaluators) > 1:
        known.append("eval_sequential_score")
    sets = trainer.eval_dataset
    if sets is not None:
        known += [f"eval_{name}_loss" for name in sets] if isinstance(sets, dict) else ["eval_loss"]
    metric = str(trainer.args.metric_for_best_model)
    if metric not in known and f"eval_{metric}" not in known:
        raise ValueError(
            f"metric_for_best_model={metric!r} is not measured in this training; choose one of "
            f"{', '.join(map(repr, known))}."
        )


def _spread(scores: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
    """``(lists,)`` standard deviation of the scores of each list, and whether it has several documents."""
    mask = length_mask(sizes, scores.device)
    count = mask.sum(-1, keepdim=True)
    padded = pad_lists(scores, sizes)
    deviations = (padded - padded.sum(-1, keepdim=True) / count) * mask
    return (deviations.square().sum(-1) / count.squeeze(-1)).sqrt(), count.squeeze(-1) > 1


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
