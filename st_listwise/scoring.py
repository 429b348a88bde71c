"""Pairs → scores: length-sorted mini-batches by token budget, optionally recomputed in the backward pass.

Scores do not depend on how pairs are cut, so this is where all freedom of batching lives: no loss knows of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from sentence_transformers.cross_encoder import CrossEncoder
from sentence_transformers.util import batch_to_device
from torch import Tensor, nn

from st_listwise.functional.lists import cut_padded
from st_listwise.processes import is_sharded, passes, unwrap
from st_listwise.recompute import Features, Stage, can_take_rows, free_memory, run_mini_batches, take_rows
from st_listwise.set_rank_cross_encoder import SetRankCrossEncoder
from st_listwise.sharded import recomputed, run_together

#: Padded tokens in a mini-batch when the user sets no limit: on a CPU, and on a GPU for a model as small as ``SMALL``.
AUTO_TOKENS = {"cpu": 1024, "gpu": 32768}
#: Larger models get fewer tokens on a GPU, so that a mini-batch stays as much work, but not fewer than this.
LEAST_TOKENS = 2048
#: Parameters of MiniLM-L6 beside its embeddings.
SMALL = 10_800_000
#: What a mini-batch costs beside its tokens, as a share of the automatic budget: parameters are read, gradients added.
OVERHEAD = 1 / 8
#: Pairs in a mini-batch where inputs tell no length.
AUTO_PAIRS = 32


def check_model(model: Any, user: str) -> None:
    """ValueError unless it is a CrossEncoder, wrapped or not, that gives one score a pair."""
    bare = unwrap(model)
    if not isinstance(bare, CrossEncoder):
        raise ValueError(
            f"{user} needs a CrossEncoder, got {type(bare).__name__}: "
            "CrossEncoder(name, num_labels=1, activation_fn=torch.nn.Identity())."
        )
    if bare.num_labels != 1:
        raise ValueError(
            f"{user} needs a model with 1 output label, got one with {bare.num_labels}: "
            "build it as CrossEncoder(..., num_labels=1)."
        )


class Limits(NamedTuple):
    """Limits of one mini-batch; at least one pair always fits.

    ``pairs`` None: no limit by count. ``tokens`` None: no limit by padded tokens (pairs times the longest of them).
    ``overhead``: what a mini-batch costs, in tokens; with it there are more of them where that saves padding.
    """

    pairs: int | None
    tokens: int | None
    overhead: int | None = None

    @classmethod
    def from_options(cls, size: int | None, tokens: int | None, model: CrossEncoder) -> Limits:
        """Both options None: an automatic token budget. ``size`` of 0 or less: no limit by count."""
        pairs = size if size is not None and size > 0 else None
        if size is not None and tokens is None:
            return cls(pairs, None)
        automatic = auto_tokens(model)
        return cls(pairs, automatic if tokens is None else tokens, round(OVERHEAD * automatic))

    def cut(self, lengths: Sequence[int]) -> list[slice]:
        """Cut lengths, longest first, into mini-batches, so that padding and overhead are least.

        >>> Limits(pairs=3, tokens=20, overhead=2).cut([9, 9, 5, 5, 4, 4])
        [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]
        """
        return cut_padded(lengths, self.tokens, self.pairs, self.overhead)


def auto_tokens(model: CrossEncoder) -> int:
    """Padded tokens in a mini-batch of this model, on its device, when the user sets no limit."""
    if model.device.type == "cpu":
        return AUTO_TOKENS["cpu"]
    embeddings = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Embedding))
    layers = max(1, sum(parameter.numel() for parameter in model.parameters()) - embeddings)
    return min(AUTO_TOKENS["gpu"], max(LEAST_TOKENS, AUTO_TOKENS["gpu"] * SMALL // layers))


class MiniBatches(NamedTuple):
    """Pairs that are ready to be scored: the order in which they stand, and the features of each mini-batch."""

    order: Tensor
    features: list[Features]
    prefixes: Sequence[Features] = ()  #: what pairs begin with, where that runs apart (see shared_prefix.py)


def cut_pairs(
    model: nn.Module,
    pairs: Sequence[tuple[Any, Any]],
    *,
    mini_batch_size: int | None = None,
    mini_batch_tokens: int | None = None,
    prompt: str | None = None,
    task: str | None = None,
) -> MiniBatches:
    """Preprocess (query, document) pairs and cut them into mini-batches, longest pairs first.

    Args:
        model: A ``CrossEncoder``, or a wrapper of one that has its ``preprocess`` bound, as sentence-transformers'
            trainer does.
        pairs: Queries and documents, anything that ``model.preprocess`` takes.
        mini_batch_size: Most pairs in one forward pass; 0 or less: all.
        mini_batch_tokens: Most padded tokens in one forward pass. With neither option: :func:`auto_tokens`.
        prompt: Passed to ``model.preprocess``.
        task: Passed to ``model.preprocess``.
    """
    bare = unwrap(model)
    limits = Limits.from_options(mini_batch_size, mini_batch_tokens, bare)
    features = bare.preprocess(list(pairs), prompt=prompt, task=task)
    lengths = _lengths(features, len(pairs))
    if lengths is None:  # images: count pairs
        limits = Limits(limits.pairs or (AUTO_PAIRS if limits.tokens is not None else None), None)
        lengths = torch.ones(len(pairs), dtype=torch.long)
    order = torch.argsort(lengths, descending=True, stable=True)
    parts = [order[cut] for cut in limits.cut(lengths[order].tolist())]
    if can_take_rows(features, len(pairs)):
        return MiniBatches(order, [take_rows(features, part) for part in parts])
    return MiniBatches(
        order, [bare.preprocess([pairs[index] for index in part], prompt=prompt, task=task) for part in parts]
    )


def truncated_alike(batches: MiniBatches, max_length: int | None) -> int:
    """Number of pairs whose tokens, cut to the model's longest input, are those of another pair of the batch."""
    batch_features = [part for part in batches.features if "input_ids" in part and "attention_mask" in part]
    lengths = [features["attention_mask"].sum(-1) for features in batch_features]
    longest = max((int(own.max()) for own in lengths), default=0)
    if not max_length or longest < max_length:
        return 0
    # A model may be told to take more than max_length: what is cut is as long as the longest.
    full = torch.cat(
        [part["input_ids"][own == longest] for part, own in zip(batch_features, lengths) if own.max() == longest]
    )
    counts = torch.unique(full, dim=0, return_counts=True)[1]
    return int(counts[counts > 1].sum())


def score_mini_batches(
    model: nn.Module, batches: MiniBatches, list_sizes: Sequence[int], *, recompute: bool | Literal["auto"] = False
) -> Tensor:
    """Score mini-batches, with gradients.

    The last mini-batch always keeps its graph, which the backward pass uses first. It alone goes through the DDP
    wrapper, if there is one (see :func:`~st_listwise.processes.passes`). A model of sets encodes mini-batches
    likewise; with the last one it scores all lists. A model that FSDP2 shards takes every mini-batch, and as many on
    all processes.

    Args:
        model: As in :func:`cut_pairs`, with one output label.
        batches: From :func:`cut_pairs`.
        list_sizes: Number of documents of each query, for models that score whole lists.
        recompute: Keep activations of one mini-batch only and compute the others again in the backward pass, dropout
            and autocast replayed, pairs of zero gradient left out. "auto": only those that do not fit into half of
            the free memory.

    Returns:
        ``(pairs,)`` scores in the order in which the pairs were given, in the model's precision.

    Raises:
        ValueError: the model does not return one score a pair.
    """
    bare = unwrap(model)
    features = [batch_to_device(batch, bare.device) for batch in batches.features]
    lists = {"pair_order": batches.order, "list_sizes": list_sizes}
    score = _score_sharded if is_sharded(model) else _score
    flat = score(model, features, lists, recompute if torch.is_grad_enabled() else False)
    check_one_each(flat, batches)
    of_sets = isinstance(bare, SetRankCrossEncoder)
    return flat if of_sets else flat[torch.argsort(batches.order).to(flat.device)]


def check_one_each(scores: Tensor, batches: MiniBatches) -> None:
    """ValueError unless there is one score for each pair."""
    if scores.numel() != batches.order.numel():
        raise ValueError(
            f"The model returned {scores.numel()} scores for {batches.order.numel()} pairs; expected one each."
        )


def _score(
    model: nn.Module, features: Sequence[Features], lists: Features, recompute: bool | Literal["auto"]
) -> Tensor:
    """Scores in the order of mini-batches, or, of a model of sets, in that of pairs."""
    bare = unwrap(model)
    of_sets = isinstance(bare, SetRankCrossEncoder)
    inner, outer = passes(model)
    stage: Stage = partial(encoded_pairs if of_sets else pair_scores, inner)
    # Without a wrapper the last mini-batch is one like the others.
    inside, outside = (features, []) if outer is inner else (features[:-1], features[-1:])
    if recompute:
        parameters = list(bare.parameters())
        space = free_memory(bare.device, parameters) if recompute == "auto" else 0.0
        parts = run_mini_batches(stage, inside, parameters, space, keep_last=outer is inner)
    else:
        parts = [stage(batch) for batch in inside]
    if of_sets:
        last = outside[0] if outside else {}
        return pair_scores(outer, {**last, **lists, "encoded": parts})["scores"]
    return torch.cat([part["scores"] for part in [*parts, *(pair_scores(outer, batch) for batch in outside)]])


def _score_sharded(
    model: nn.Module, features: Sequence[Features], lists: Features, recompute: bool | Literal["auto"]
) -> Tensor:
    """The same through a model that FSDP2 shards; "auto" recomputes all."""
    device = unwrap(model).device
    run = partial(run_together, batches=features, device=device, recompute=bool(recompute))
    if not isinstance(unwrap(model), SetRankCrossEncoder):
        return torch.cat([part["scores"] for part in run(partial(pair_scores, model))])

    def score(encoded: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        return pair_scores(model, {**lists, "encoded": encoded})

    encoded = run(partial(encoded_pairs, model))
    return (recomputed(score, device, encoded) if recompute else score(encoded))["scores"]


def pair_scores(model: nn.Module, features: Features) -> dict[str, Tensor]:
    """``(pairs,)`` "scores" of one forward pass."""
    # A model writes its outputs into the dictionary that it is given; a second pass must not find those of the first.
    return {"scores": model(dict(features))["scores"].reshape(-1)}


def encoded_pairs(model: nn.Module, features: Features) -> dict[str, Tensor]:
    """Vectors of pairs, from a model of sets; through its call, as wrappers know no other way."""
    encoded: dict[str, Tensor] = model({**features, "encode_only": True})
    return encoded


def _lengths(features: Features, pairs: int) -> Tensor | None:
    """Real tokens of each pair, where inputs have them: padded, or flattened for FlashAttention."""
    if can_take_rows(features, pairs):
        return features["attention_mask"].sum(-1).cpu()
    ends = features.get("cu_seq_lens_q")
    return ends.flatten().diff().cpu() if isinstance(ends, Tensor) and ends.numel() == pairs + 1 else None
