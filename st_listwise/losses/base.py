"""ListwiseLoss: check → score → list loss → mean. Everything that the losses share and no list loss should know."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal
from weakref import WeakSet

import torch
from sentence_transformers.cross_encoder import CrossEncoder
from sentence_transformers.util import fullname, import_from_string
from torch import Tensor, nn
from typing_extensions import TypedDict

from st_listwise.functional.lists import length_mask, pad_lists
from st_listwise.losses.checks import SELECT, check_batch, look_like_identifiers
from st_listwise.processes import agree, check_wrapper, must_agree, uncompiled, unwrap
from st_listwise.recompute import Features
from st_listwise.scoring import MiniBatches, check_model, cut_pairs, score_mini_batches, truncated_alike
from st_listwise.shared_prefix import check_shares_prefix, score_after_prefixes, split_prefixes

logger = logging.getLogger(__name__)

#: Beyond this a sigmoid in float32 is exactly 1, so that documents tie.
SATURATED = 16.6
#: Share of a batch's pairs that may be cut to the same tokens before there is a warning.
TRUNCATED_ALIKE = 0.05
#: Options that may differ between processes, since they change neither value nor gradient.
HARMLESS = ("mini_batch_size", "mini_batch_tokens", "recompute", "share_prefix")

_losses: WeakSet[ListwiseLoss] = WeakSet()  #: all that there are, for processes to compare


class ScoringOptions(TypedDict, total=False):
    """Keyword arguments that every loss passes on to :class:`ListwiseLoss`."""

    mini_batch_tokens: int | None
    recompute: bool | Literal["auto"]
    share_prefix: bool


@dataclass
class ReadyBatch:
    """A checked batch whose pairs are preprocessed and cut into mini-batches."""

    sizes: list[int]
    labels: Tensor  #: flat, one for each pair
    weights: Tensor | None  #: one for each query
    mini_batches: MiniBatches
    alike: int  #: pairs that are cut to the tokens of another one

    def pin_memory(self) -> ReadyBatch:
        """Called by the data loader with ``pin_memory=True``: tokens then move to a GPU without waiting."""
        batches = self.mini_batches
        features, prefixes = ([_pinned(part) for part in parts] for parts in (batches.features, batches.prefixes))
        return replace(self, mini_batches=batches._replace(features=features, prefixes=prefixes))


class ListwiseLoss(nn.Module, ABC):
    """Base of all losses on lists. A subclass gives the loss of each list, from scores, in :meth:`list_loss`.

    The loss of a batch is the mean over its lists of what each list gives alone. Neither neighbours, nor padding, nor
    mini-batches, nor processes change what a query teaches.

    Args:
        model: CrossEncoder with one output label.
        activation_fn: Applied to the scores before the loss. A module, or its dotted name in ``torch``.
        mini_batch_size: Most (query, document) pairs in one forward pass. None: an automatic token budget. 0 or less:
            the whole batch at once. Value and gradient are the same for each; memory and time are not.
        mini_batch_tokens: Most padded tokens in one forward pass. A longer pair runs alone.
        recompute: Keep activations of one mini-batch only and compute the others again in the backward pass: the
            memory of a mini-batch for a step of any size, for at most one more forward pass. Dropout is replayed;
            documents whose gradient is exactly zero are not computed again. "auto": only what does not fit into half
            of the free memory is computed again.
        share_prefix: For decoders. What all pairs of a list begin with, such as instruction and query, is computed
            once for all its documents: same scores, same gradient. Positions count from the first real token, and
            limits of mini-batches count each document's own tokens. With ``recompute`` every mini-batch is computed
            again whole, and keys and values of the prefixes stay.

    Raises:
        ValueError: the model is no CrossEncoder or has more than one output label, a limit makes no sense, or the
            model cannot share a prefix.

    Example:
        A loss of your own is one function of padded lists::

            class SoftmaxLoss(ListwiseLoss):
                def list_loss(self, scores, labels, mask):
                    return st_listwise.functional.list_net(scores, labels, mask, reduction="none")

        Check it with :mod:`st_listwise.testing`.
    """

    def __init__(
        self,
        model: CrossEncoder,
        activation_fn: nn.Module | str | None = None,
        mini_batch_size: int | None = None,
        *,
        mini_batch_tokens: int | None = None,
        recompute: bool | Literal["auto"] = False,
        share_prefix: bool = False,
    ) -> None:
        super().__init__()
        check_model(model, type(self).__name__)
        for name, limit in (("mini_batch_size", mini_batch_size), ("mini_batch_tokens", mini_batch_tokens)):
            if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool)):
                raise ValueError(f"{name}={limit!r} must be a whole number, or None.")
        if mini_batch_tokens is not None and mini_batch_tokens < 1:
            raise ValueError(f"mini_batch_tokens={mini_batch_tokens!r} must be at least 1, or None.")
        if recompute not in (True, False, "auto") or (isinstance(recompute, int) and not isinstance(recompute, bool)):
            raise ValueError(f'recompute={recompute!r} must be True, False or "auto".')
        if share_prefix:
            check_shares_prefix(model)
        self.model = model
        self.activation_fn = _activation(activation_fn)
        self.mini_batch_size = mini_batch_size
        self.mini_batch_tokens = mini_batch_tokens
        self.recompute = recompute
        self.share_prefix = share_prefix
        self.on_scores: Callable[[ReadyBatch, Tensor], None] | None = None  #: is shown each batch and its scores
        self._told: set[str] = set()  #: what is logged once
        _losses.add(self)

    @abstractmethod
    def list_loss(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """The loss of each list.

        Args:
            scores: ``(lists, docs)`` float32 or float64, 0 in the padding.
            labels: ``(lists, docs)`` relevance, larger is better.
            mask: ``(lists, docs)`` bool, True for real documents.

        Returns:
            ``(lists,)``, each entry a function of its own row only.
        """

    def forward(
        self,
        inputs: Sequence[Sequence[Any]],
        labels: Sequence[Tensor] | None,
        prompt: str | None = None,
        task: str | None = None,
    ) -> Tensor:
        """Mean loss over the lists of a batch.

        Args:
            inputs: ``[queries, documents of each query]``, or with a third column of one weight a query: each list's
                loss is multiplied by its weight before the plain mean.
            labels: For each query a tensor with one label a document, larger is better.
            prompt: Passed to the model's preprocessing.
            task: Passed to the model's preprocessing.

        Raises:
            ValueError: bad input, with the query and the document.
        """
        try:
            return self._forward(inputs, labels, prompt, task)
        except TypeError as error:
            # CrossEncoderTrainer takes a TypeError to mean that the loss knows no prompt, and runs it again without.
            raise ValueError(f"{type(self).__name__}: {error}") from error

    def _forward(
        self, inputs: Sequence[Sequence[Any]], labels: Sequence[Tensor] | None, prompt: str | None, task: str | None
    ) -> Tensor:
        return self.mean_loss(*self.score(inputs, labels, prompt, task))

    def score(
        self,
        inputs: Sequence[Any],
        labels: Sequence[Tensor] | None,
        prompt: str | None = None,
        task: str | None = None,
    ) -> tuple[ReadyBatch, Tensor]:
        """A batch made ready, and ``(pairs,)`` scores of it, at least float32, before the activation."""
        self._check_processes()
        first = inputs[0] if len(inputs) else None
        batch = first if isinstance(first, ReadyBatch) else self.prepare(inputs, labels, prompt, task)
        self._announce(batch)
        self._warn_if_long(batch)
        self._warn_if_truncated(batch)
        self._warn_if_identifiers(batch)
        if self.share_prefix:
            scores = score_after_prefixes(self.model, batch.mini_batches, recompute=self.recompute)
        else:
            scores = score_mini_batches(self.model, batch.mini_batches, batch.sizes, recompute=self.recompute)
        scores = scores if scores.dtype == torch.float64 else scores.float()
        self._warn_if_saturated(scores.detach())
        if self.on_scores is not None:
            self.on_scores(batch, scores.detach())
        return batch, scores

    def mean_loss(self, batch: ReadyBatch, scores: Tensor) -> Tensor:
        """Mean over lists, each times its weight, from what :meth:`score` returns."""
        scores = pad_lists(self.activation_fn(scores), batch.sizes)
        targets = pad_lists(batch.labels.to(scores.device, scores.dtype), batch.sizes)
        per_list = self.list_loss(scores, targets, length_mask(batch.sizes, scores.device))
        if batch.weights is not None:
            per_list = per_list * batch.weights.to(per_list)
        return per_list.mean()

    def prepare(
        self,
        inputs: Sequence[Sequence[Any]],
        labels: Sequence[Tensor] | None,
        prompt: str | None = None,
        task: str | None = None,
    ) -> ReadyBatch:
        """Check, preprocess and cut a batch; what is returned can be passed as the only input of the loss.

        Args:
            inputs: As in :meth:`forward`, and so are the others.

        Raises:
            ValueError: bad input, with the query and the document.
        """
        batch = check_batch(inputs, labels, type(self).__name__)
        limits = {"mini_batch_size": self.mini_batch_size, "mini_batch_tokens": self.mini_batch_tokens}
        whole = {"mini_batch_size": 0}
        cut = whole if self.share_prefix else limits
        mini_batches = cut_pairs(self.model, batch.pairs, prompt=prompt, task=task, **cut)
        longest = getattr(unwrap(self.model), "max_seq_length", None)
        alike = 0 if "truncated" in self._told else truncated_alike(mini_batches, longest)
        if self.share_prefix:
            mini_batches = split_prefixes(self.model, mini_batches, batch.sizes, **limits)
        return ReadyBatch(batch.sizes, batch.labels, batch.weights, mini_batches, alike)

    def get_config_dict(self) -> dict[str, Any]:
        """The constructor's arguments, JSON-able: ``type(loss)(model, **loss.get_config_dict())`` is an equal loss."""
        return {
            "activation_fn": _activation_name(self.activation_fn),
            "mini_batch_size": self.mini_batch_size,
            "mini_batch_tokens": self.mini_batch_tokens,
            "recompute": self.recompute,
            "share_prefix": self.share_prefix,
        }

    @property
    def citation(self) -> str:
        """BibTeX of the loss's source, for the model card."""
        return ""

    def check_options(self) -> None:
        """ValueError for options that the list loss does not take: at construction, not at the first step."""
        self.list_loss(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), torch.ones(1, 2, dtype=torch.bool))

    def _check_processes(self) -> None:
        """Whether we run in the model's wrapper, and, once for each, whether the processes train the same."""
        check_wrapper(self.model)
        if isinstance(uncompiled(self.model), nn.DataParallel) and "one GPU" not in self._told:
            self._told.add("one GPU")
            logger.warning(
                "The model is in DataParallel, which takes lists apart: only its first GPU is used. Start the script "
                "with `accelerate launch` or `torchrun` to use them all."
            )
        if must_agree(self.model):
            known = []
            for loss in _losses:
                with suppress(AttributeError):  # of a loss whose constructor has failed
                    known += [loss._settings()] if unwrap(loss.model) is unwrap(self.model) else []
            agree(self.model, self._settings(), known)

    def _settings(self) -> dict[str, Any]:
        """What has to be the same on all processes."""
        model = unwrap(self.model)
        return {
            "loss": fullname(self),
            **{name: value for name, value in self.get_config_dict().items() if name not in HARMLESS},
            "model": type(model).__name__,
            "dtype": str(model.dtype),
            "max_seq_length": getattr(model, "max_seq_length", None),
        }

    def _announce(self, batch: ReadyBatch) -> None:
        if "announced" not in self._told:
            self._told.add("announced")
            queries, pairs = len(batch.sizes), sum(batch.sizes)
            forwards = len(batch.mini_batches.features) + len(batch.mini_batches.prefixes)
            logger.info(
                f"{type(self).__name__}: a batch of {queries} queries = {pairs} pairs = {forwards} forward passes."
            )

    def _warn_if_long(self, batch: ReadyBatch) -> None:
        features = batch.mini_batches.features[0]
        if "long" in self._told or self.mini_batch_tokens is None or "input_ids" not in features:
            return
        tokens = features["input_ids"].shape[-1]
        if tokens > self.mini_batch_tokens:
            self._told.add("long")
            logger.warning(
                f"A pair of {tokens} tokens is longer than mini_batch_tokens={self.mini_batch_tokens}: it is "
                "scored alone, and takes the memory of its length."
            )

    def _warn_if_truncated(self, batch: ReadyBatch) -> None:
        pairs = sum(batch.sizes)
        if "truncated" not in self._told and batch.alike > TRUNCATED_ALIKE * pairs:
            self._told.add("truncated")
            longest = unwrap(self.model).max_seq_length
            logger.warning(
                f"{batch.alike / pairs:.0%} of the pairs of a batch ({batch.alike} of {pairs}) are cut to the same "
                f"{longest} tokens as another one: the model cannot tell them apart. Raise max_seq_length, or shorten "
                "what they share."
            )

    def _warn_if_identifiers(self, batch: ReadyBatch) -> None:
        weights = batch.weights
        if weights is not None and "identifiers" not in self._told and look_like_identifiers(weights):
            self._told.add("identifiers")
            logger.warning(
                "The third column is taken for weights, by which the loss of each list is multiplied; here they are "
                f"{weights[0]:.0f}, {weights[1]:.0f}, … Should these be identifiers, drop the column: {SELECT}."
            )

    def _warn_if_saturated(self, scores: Tensor) -> None:
        sigmoid = isinstance(getattr(unwrap(self.model), "activation_fn", None), nn.Sigmoid)
        if sigmoid and "saturated" not in self._told and bool((scores > SATURATED).any()):
            self._told.add("saturated")
            logger.warning(
                f"Scores have passed {SATURATED}, where the sigmoid that this model's predict() applies is 1 exactly: "
                "documents will tie. Build the model with CrossEncoder(..., activation_fn=torch.nn.Identity())."
            )


def _pinned(features: Features) -> Features:
    return {name: value.pin_memory() if isinstance(value, Tensor) else value for name, value in features.items()}


def _activation(activation_fn: nn.Module | str | None) -> nn.Module:
    """A module from itself, its dotted name, or None."""
    if activation_fn is None:
        return nn.Identity()
    if isinstance(activation_fn, type) or not (isinstance(activation_fn, str) or callable(activation_fn)):
        raise ValueError(f"activation_fn={activation_fn!r} must be a module, such as torch.nn.Tanh(), or its name.")
    if not isinstance(activation_fn, str):
        return activation_fn
    if not activation_fn.startswith("torch.nn.") or "(" in activation_fn:
        raise ValueError(
            f"activation_fn={activation_fn!r}: by name only modules of torch.nn without arguments can be given; pass the "
            "module."
        )
    return import_from_string(activation_fn)()


def _activation_name(activation_fn: nn.Module) -> str:
    """Its dotted name; with the arguments it was built with, where that alone would build another one."""
    with suppress(TypeError):  # that it cannot be built without
        if repr(type(activation_fn)()) == repr(activation_fn):
            return fullname(activation_fn)
    return f"{fullname(activation_fn)}({activation_fn.extra_repr()})"


def dotted_name(function: Any) -> str:
    """Where a user's function or object comes from, for the configuration: it cannot be rebuilt from that alone."""
    return (
        f"{function.__module__}.{function.__qualname__}" if hasattr(function, "__qualname__") else fullname(function)
    )
