"""ListwiseDataCollator: checks, tokenises and cuts batches in the workers of the data loader, not in the step."""

from __future__ import annotations

from typing import Any

from sentence_transformers.cross_encoder.data_collator import CrossEncoderDataCollator

from st_listwise.losses.base import ListwiseLoss

#: What the trainer takes out of a batch by itself.
APART = ("dataset_name", "label", "prompt", "task")


class ListwiseDataCollator(CrossEncoderDataCollator):
    """Hands the loss batches that are ready to be scored, so that a GPU does not wait for the tokenizer.

    Pass it to the trainer and set ``dataloader_num_workers`` above 0; with ``dataloader_pin_memory`` tokens come in
    pinned memory. Values and gradients are those without it.

    Args:
        loss: The loss that is given to the trainer, whose mini-batch options are followed; or, as there, a dictionary
            from the names of data sets to losses.
        options: Those of :class:`~sentence_transformers.cross_encoder.data_collator.CrossEncoderDataCollator`. The
            trainer gives its ``prompts`` and ``router_mapping`` only to a collator that it builds by itself: whoever
            has set them in the training arguments gives them here as well.

    Raises:
        ValueError: no loss, or one that is not of this package; a data set that has none; bad input, as the loss would
            raise it.

    Example:
        ::

            loss = ListMLELoss(model)
            args = CrossEncoderTrainingArguments(..., dataloader_num_workers=2)
            collator = ListwiseDataCollator(loss, prompts=args.prompts)
            CrossEncoderTrainer(model, args, train_dataset, loss=loss, data_collator=collator).train()
    """

    def __init__(self, loss: ListwiseLoss | dict[str, ListwiseLoss], **options: Any) -> None:
        losses = loss if isinstance(loss, dict) else {"": loss}
        if not losses:
            raise ValueError("ListwiseDataCollator needs at least one loss: {'name of the data set': loss}.")
        for part in losses.values():
            if not isinstance(part, ListwiseLoss):
                raise ValueError(f"ListwiseDataCollator takes losses of st_listwise, got {type(part).__name__}.")
        super().__init__(preprocess_fn=next(iter(losses.values())).model.preprocess, **options)
        self.loss = loss

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = super().__call__(features)
        loss = self._loss_of(batch.get("dataset_name"))
        columns: Any = [column for name, column in batch.items() if name not in APART]
        ready = loss.prepare(columns, batch.get("label"), batch.get("prompt"), batch.get("task"))
        return {name: batch[name] for name in APART if name in batch} | {"ready": ready}

    def _loss_of(self, name: str | None) -> ListwiseLoss:
        if not isinstance(self.loss, dict):
            return self.loss
        if name in self.loss:
            return self.loss[name]
        known = ", ".join(map(repr, self.loss))
        if name is None:
            raise ValueError(
                f"ListwiseDataCollator has losses for the data sets {known}, but this one has no name: give "
                "the trainer a dictionary of data sets, or the collator one loss."
            )
        raise ValueError(f"ListwiseDataCollator has no loss for the data set {name!r}, only for {known}.")
