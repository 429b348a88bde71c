"""Shared prefixes: what all documents of a query begin with is computed once, and each of them reads it.

In a decoder a token depends on those before it only, so that keys and values of what the pairs of a list have in
common, such as system prompt, instruction and query, are the same for all its documents.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Literal, cast

import torch
from sentence_transformers.base.modules import Transformer
from sentence_transformers.cross_encoder import CrossEncoder
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.util import batch_to_device
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from st_listwise.processes import is_sharded, passes, unwrap
from st_listwise.recompute import Features, count_saved, free_memory
from st_listwise.scoring import Limits, MiniBatches, check_one_each, pair_scores

#: Names of the argument that takes the cache, in newer and older versions of transformers.
CACHE_ARGUMENTS = ("cache", "past_key_values")
#: Rotary embeddings that change with the length of what one forward pass sees.
ROPE_OF_LENGTH = ("dynamic", "longrope")


def check_shares_prefix(model: CrossEncoder) -> None:
    """ValueError that says why, if this model cannot compute a prefix apart from what follows."""
    reason = _obstacle(model)
    if reason:
        raise ValueError(
            f"share_prefix=True is for decoders that score a pair at its last token; this model {reason}. "
            "Leave share_prefix out."
        )


def _obstacle(model: CrossEncoder) -> str | None:
    transformer, *others = model.children()
    if not isinstance(transformer, Transformer) or not all(isinstance(module, LogitScore) for module in others):
        names = ", ".join(type(module).__name__ for module in model.children())
        return f"is {type(model).__name__} of {names}, whose scores look at all tokens"
    config = _config(model)
    parameters = inspect.signature(transformer.auto_model.forward).parameters
    taken = [name for name in ("position_ids", "use_cache", *CACHE_ARGUMENTS) if name in parameters]
    if getattr(transformer.config, "is_encoder_decoder", False) or len(taken) < 3:
        return f"({type(transformer.auto_model).__name__}) takes no keys and values of earlier tokens"
    if not getattr(config, "is_causal", True) or getattr(config, "use_bidirectional_attention", False):
        return "attends in both directions, so that a prefix depends on what follows"
    layers = {type(layer) for layer in DynamicCache(config=config).layers} - {DynamicLayer}
    if layers:
        names = ", ".join(sorted(layer.__name__ for layer in layers))
        return f"has layers that do not keep all tokens ({names}): sliding windows, or no attention at all"
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    return f"has {rope!r} rotary embeddings, which change with the length" if rope in ROPE_OF_LENGTH else None


def split_prefixes(
    model: nn.Module,
    whole: MiniBatches,
    list_sizes: Sequence[int],
    *,
    mini_batch_size: int | None = None,
    mini_batch_tokens: int | None = None,
) -> MiniBatches:
    """Split each pair into the tokens that all pairs of its list begin with, and its own.

    Lists are sorted by the length of their prefix, and as many as the limits allow form a group, whose prefixes run in
    one forward pass. Documents of a group are sorted by the length of what is left, at least one token each, and cut
    into mini-batches by the same limits.

    Args:
        model: As in :func:`~st_listwise.scoring.cut_pairs`.
        whole: All pairs in one mini-batch, left-padded.
        list_sizes: Number of documents of each query.
        mini_batch_size: Most pairs, and most prefixes, in one forward pass; 0 or less: all.
        mini_batch_tokens: Most padded tokens in one forward pass: own tokens of pairs, or tokens of prefixes.

    Returns:
        Mini-batches of own tokens. "prefix" of each is the place of its group in ``prefixes``, and "prefix_rows" tells
        which prefix each document follows; its attention mask covers both, and positions go on where the prefix ends.

    Raises:
        ValueError: the inputs have no attention mask, or are not padded on the left.
    """
    bare = unwrap(model)
    limits = Limits.from_options(mini_batch_size, mini_batch_tokens, bare)
    places = torch.argsort(whole.order)
    features = _in_given_order(whole.features, places)
    _check_left_padded(features)
    pairs_of_list = list(torch.arange(len(places)).split(list(list_sizes)))
    shared = _shared_lengths(features, pairs_of_list, _config(bare).pad_token_id)
    own = features["attention_mask"].sum(-1) - torch.repeat_interleave(shared, torch.tensor(list_sizes))
    by_prefix = torch.argsort(shared, descending=True, stable=True)
    order: list[Tensor] = []
    parts: list[Features] = []
    prefixes: list[Features] = []
    for group in limits.cut(shared[by_prefix].tolist()):
        lists = by_prefix[group]
        first = torch.stack([pairs_of_list[index][0] for index in lists])
        prefixes.append(_prefixes(features, first, shared[lists]))
        rows = torch.cat([pairs_of_list[index] for index in lists])
        prefix_rows = torch.repeat_interleave(torch.arange(len(lists)), torch.tensor(list_sizes)[lists])
        longest_first = torch.argsort(own[rows], descending=True, stable=True)
        for cut in limits.cut(own[rows][longest_first].tolist()):
            chosen = longest_first[cut]
            part = _suffixes(features, rows[chosen], own[rows[chosen]], prefixes[-1], prefix_rows[chosen])
            parts.append({**part, "prefix": len(prefixes) - 1})
            order.append(rows[chosen])
    return MiniBatches(torch.cat(order), parts, prefixes)


def score_after_prefixes(
    model: nn.Module, batches: MiniBatches, *, recompute: bool | Literal["auto"] = False
) -> Tensor:
    """Score mini-batches of :func:`split_prefixes`, with gradients: those of a prefix add up over its documents.

    As in :func:`~st_listwise.scoring.score_mini_batches` the last mini-batch alone goes through the DDP wrapper.
    With dropout all documents of a list share what is dropped in their prefix.

    Args:
        model: As in :func:`~st_listwise.scoring.cut_pairs`.
        batches: From :func:`split_prefixes`.
        recompute: Keep keys and values of the prefixes, and activations of one mini-batch; the others, and then the
            prefixes, are computed again in the backward pass, dropout and autocast replayed. "auto": activations are
            kept until they fill half of the free memory.

    Returns:
        ``(pairs,)`` scores in the order in which the pairs were given, in the model's precision.

    Raises:
        ValueError: the model drops the cache, as with gradient checkpointing, is sharded by FSDP2, or does not return
            one score a pair.
    """
    bare = unwrap(model)
    if is_sharded(model):
        raise ValueError(
            "share_prefix=True does not run in FSDP2, whose processes must make as many forward passes each: use "
            "DistributedDataParallel, or leave share_prefix out."
        )
    inner, outer = passes(model)
    graphs = _Graphs(bare, recompute)
    *earlier, last = (batch_to_device(dict(features), bare.device) for features in batches.features)
    prefixes = [batch_to_device(dict(features), bare.device) for features in batches.prefixes]
    scores: list[Tensor] = []
    caches: list[DynamicCache] = []
    for features in [*earlier, last]:
        if features["prefix"] == len(caches):
            caches.append(graphs.run(_encode, inner, prefixes[len(caches)]))
        if features is not last:
            scores.append(graphs.run(_score, inner, features, caches[-1]))
    flat = torch.cat([*scores, _score(outer, last, caches[-1])])
    check_one_each(flat, batches)
    return flat[torch.argsort(batches.order).to(flat.device)]


class _Graphs:
    """Runs stages and keeps their graphs while there is space; what is left out is computed again in backward."""

    def __init__(self, model: CrossEncoder, recompute: bool | Literal["auto"]) -> None:
        parameters = list(model.parameters())
        self.saved = {parameter.untyped_storage().data_ptr(): 0 for parameter in parameters}
        self.space = math.inf
        if recompute and torch.is_grad_enabled():
            self.space = free_memory(model.device, parameters) if recompute == "auto" else 0.0

    def run(self, stage: Callable[..., Any], *inputs: Any) -> Any:
        if self.space == math.inf:
            return stage(*inputs)
        if sum(self.saved.values()) >= self.space:
            return checkpoint(stage, *inputs, use_reentrant=False)
        with count_saved(self.saved):
            return stage(*inputs)


def _encode(model: nn.Module, features: Features) -> DynamicCache:
    """Keys and values of prefixes. They come from the model's own call, so that autocast and adapters apply."""
    cache = DynamicCache(config=_config(unwrap(model)))
    model(_with_cache(unwrap(model), features, cache))
    if cache.get_seq_length() != features["input_ids"].shape[1]:
        raise ValueError(
            "share_prefix=True: the model did not keep its keys and values. Its own gradient checkpointing drops "
            "them: turn it off (gradient_checkpointing=False) and use recompute=True instead."
        )
    return cache


def _score(model: nn.Module, features: Features, prefixes: DynamicCache) -> Tensor:
    features = dict(features)
    rows = features.pop("prefix_rows")
    del features["prefix"]
    cache = copy(prefixes)  # a model adds to the cache that it is given
    cache.layers = [copy(layer) for layer in prefixes.layers]
    cache.reorder_cache(rows)
    return pair_scores(model, _with_cache(unwrap(model), features, cache))["scores"]


def _with_cache(model: CrossEncoder, features: Features, cache: DynamicCache) -> Features:
    parameters = inspect.signature(cast(Transformer, model[0]).auto_model.forward).parameters
    name = next(name for name in CACHE_ARGUMENTS if name in parameters)
    return {**features, name: cache, "use_cache": True}


def _config(model: CrossEncoder) -> Any:
    return cast(Transformer, model[0]).config.get_text_config(decoder=True)


def _in_given_order(batches: list[Features], places: Tensor) -> Features:
    features = batches[0]
    if len(batches) != 1 or not isinstance(features.get("attention_mask"), Tensor):
        raise ValueError(
            "share_prefix=True needs an attention mask with the tokens of each pair; inputs that are flattened for "
            "FlashAttention have none: turn that off (unpad_inputs=False), or leave share_prefix out."
        )
    rows = len(features["attention_mask"])
    return {
        name: value[places] if isinstance(value, Tensor) and value.shape[:1] == (rows,) else value
        for name, value in features.items()
    }


def _check_left_padded(features: Features) -> None:
    mask = features["attention_mask"]
    if not (mask[:, -1].all() and (mask.diff(dim=1) >= 0).all()):
        raise ValueError(
            "share_prefix=True needs pairs that are padded on the left: set model.tokenizer.padding_side = 'left'."
        )


def _token_features(features: Features) -> list[str]:
    """Names of what there is one of for each token."""
    shape = features["attention_mask"].shape
    return [name for name, value in features.items() if isinstance(value, Tensor) and value.shape == shape]


def _shared_lengths(features: Features, pairs_of_list: Sequence[Tensor], pad_token_id: int | None) -> Tensor:
    """``(lists,)`` number of tokens with which all pairs of a list begin.

    A token that is no padding token is left to each pair: heads of sequence classification look for the last one.
    """
    mask = features["attention_mask"]
    width = mask.shape[1]
    starts = width - mask.sum(-1)
    columns = torch.arange(width)
    aligned = (starts[:, None] + columns).clamp(max=width - 1)
    readable = mask.bool()
    if pad_token_id is not None:
        readable = readable & (features["input_ids"] != pad_token_id)
    last = (columns * readable).amax(-1) - starts
    same = torch.stack([features[name].gather(1, aligned) for name in _token_features(features)])
    lengths = [
        torch.minimum((same[:, rows] == same[:, rows[:1]]).all(0).all(0).cumprod(0).sum(), last[rows].min())
        for rows in pairs_of_list
    ]
    return torch.stack(lengths).clamp(min=0)


def _prefixes(features: Features, first: Tensor, lengths: Tensor) -> Features:
    """Prefixes of lists, read from their first pairs and padded on the left; a masked token stands for none at all."""
    mask = features["attention_mask"]
    width = max(int(lengths.max()), 1)
    columns = torch.arange(width) - (width - lengths)[:, None]
    source = (mask.shape[1] - mask[first].sum(-1))[:, None] + columns.clamp(min=0)
    taken = {name: features[name][first].gather(1, source) for name in _token_features(features)}
    return {**features, **taken, "attention_mask": (columns >= 0).to(mask.dtype), "position_ids": columns.clamp(min=0)}


def _suffixes(features: Features, rows: Tensor, lengths: Tensor, prefixes: Features, prefix_rows: Tensor) -> Features:
    """Own tokens of pairs, padded on the left with whatever stood there, which the mask hides."""
    width = int(lengths.max())
    prefix_mask = prefixes["attention_mask"][prefix_rows]
    columns = torch.arange(width) - (width - lengths)[:, None]
    own_mask = (columns >= 0).to(prefix_mask.dtype)
    return {
        **features,
        **{name: features[name][rows, -width:] for name in _token_features(features)},
        "attention_mask": torch.cat([prefix_mask, own_mask], dim=1),
        "position_ids": columns.clamp(min=0) + prefix_mask.sum(-1, keepdim=True),
        "prefix_rows": prefix_rows,
    }
