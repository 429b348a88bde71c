"""SetRank: vectors of a list's documents → vectors that know the whole list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Self

from st_listwise.functional.lists import check_choice, length_mask, pad_lists
from st_listwise.modules.ordinal import OrdinalEmbedding, positions_from_scores
from st_listwise.modules.saving import SavedModule
from st_listwise.modules.set_attention import IMSAB, MSAB, Norm


@dataclass(frozen=True)
class SetRankConfig:
    """Shape of a :class:`SetRank`.

    Args:
        width: Size of a document's vector between the blocks. None: that of the input, unprojected.
        layers: Number of blocks.
        heads: Attention heads of a block, a divisor of the width.
        feed_forward: Inner width of the feed-forward networks, as a multiple of the width.
        inducing_points: 0: MSAB, every document attends to every other. M above 0: IMSAB with M learned vectors.
        dropout: Of attention weights and of what each step adds, in training.
        norm: "pre" or "post": layer norms before each step, or after, as published.
        qkv_relu: ReLU on projected queries, keys and values, as in the authors' code.
        output_projection: Whether attention heads, once joined, are projected; not so in the authors' code.
        identity_start: Blocks start as the identity, so that the untrained model scores each document by itself.
        ordinal: Embeddings of positions in initial rankings: "none", "absolute" or "relative".
        max_docs: Longest list that ordinal embeddings know.
        rankings: Number of initial rankings. One: the order in which documents are given, unless scores are given.

    Raises:
        ValueError: ``norm`` or ``ordinal`` is not known.
    """

    width: int | None = None
    layers: int = 2
    heads: int = 8
    feed_forward: float = 4.0
    inducing_points: int = 0
    dropout: float = 0.1
    norm: Norm = "pre"
    qkv_relu: bool = False
    output_projection: bool = True
    identity_start: bool = True
    ordinal: Literal["none", "absolute", "relative"] = "none"
    max_docs: int = 1000
    rankings: int = 1

    def __post_init__(self) -> None:
        check_choice("norm", self.norm, ("pre", "post"))
        check_choice("ordinal", self.ordinal, ("none", "absolute", "relative"))

    @classmethod
    def paper(cls, **changes: Any) -> SetRankConfig:
        """The settings of the authors' code, with IMSAB: 6 post-norm blocks of width 256, 8 heads, 20 inducing points.

        They train it with Adam at 5e-4, gradients clipped at 5, batches of 32 lists, and the attention rank loss.

        Args:
            changes: Fields to set otherwise, such as ``inducing_points=0`` for MSAB.
        """
        settings: dict[str, Any] = {
            "width": 256,
            "layers": 6,
            "heads": 8,
            "feed_forward": 4.0,
            "inducing_points": 20,
            "dropout": 0.0,
            "norm": "post",
            "qkv_relu": True,
            "output_projection": False,
            "identity_start": False,
        }
        return cls(**{**settings, **changes})


class SetRank(SavedModule):
    """Lets the documents of each list look at each other, between an encoder of pairs and a layer that gives scores.

    Reads ``sentence_embedding``, ``(pairs, input_dim)``, and ``list_sizes`` from the features, writes
    ``set_embedding``, ``(pairs, width)``. Lists never see each other. Without ordinal embeddings it is
    permutation-equivariant: documents given in another order get the same vectors, in that order.

    Args:
        input_dim: Size of the vectors that it reads.
        config: Its shape.

    References:
        - Pang et al., SetRank: Learning a Permutation-Invariant Ranking Model for Information Retrieval, SIGIR 2020,
          https://arxiv.org/abs/1912.05891
    """

    def __init__(self, input_dim: int, config: SetRankConfig | None = None) -> None:
        super().__init__()
        self.input_dim = input_dim
        self.set_config = config = config or SetRankConfig()
        self.width = config.width or input_dim
        # A width that is given is one of its own, even if it happens to be that of the input.
        self.projection = nn.Linear(input_dim, config.width) if config.width else nn.Identity()
        self.ordinal = (
            None
            if config.ordinal == "none"
            else OrdinalEmbedding(self.width, config.max_docs, config.rankings, config.ordinal)
        )
        self.blocks = nn.ModuleList(_block(self.width, config) for _ in range(config.layers))

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add ``set_embedding`` to the features.

        Args:
            features: ``sentence_embedding``: ``(pairs, input_dim)``, the documents of the first list, then those of
                the second, … ``list_sizes``: number of documents of each list. ``initial_scores``, optional:
                ``(pairs, rankings)``, what ordinal embeddings take positions from.

        Raises:
            ValueError: there are no list sizes, they do not add up to the number of pairs, or a list is longer than
                the ordinal embeddings.
        """
        vectors, sizes = features["sentence_embedding"], features.get("list_sizes")
        if sizes is None:
            raise ValueError(
                "This model scores whole lists, and was not told where they begin. Load it with "
                "st_listwise.SetRankCrossEncoder instead of CrossEncoder, and train it with losses of st_listwise."
            )
        check_sizes(sizes, len(vectors))
        mask = length_mask(sizes, vectors.device)
        documents = pad_lists(self.projection(vectors), sizes)
        if self.ordinal is not None:
            counts = torch.tensor(sizes, device=vectors.device)
            documents = documents + self.ordinal(self._positions(features.get("initial_scores"), sizes, mask), counts)
        features["set_embedding"] = self.attend(documents, mask)
        return features

    def attend(self, documents: Tensor, mask: Tensor) -> Tensor:
        """``(lists, docs, width)`` through all blocks → ``(pairs, width)``, those that the mask has."""
        for block in self.blocks:
            documents = block(documents, mask)
        return documents[mask]

    def _positions(self, initial_scores: Tensor | None, sizes: Sequence[int], mask: Tensor) -> Tensor:
        if initial_scores is not None:
            return positions_from_scores(pad_lists(initial_scores, sizes), mask)
        return torch.arange(mask.shape[1], device=mask.device).expand_as(mask)[..., None]

    def get_config_dict(self) -> dict[str, Any]:
        return {"input_dim": self.input_dim, **asdict(self.set_config)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls(config.pop("input_dim"), SetRankConfig(**config))


def check_sizes(sizes: Sequence[int], pairs: int) -> None:
    """ValueError unless there are ``pairs`` documents in lists of at least one each."""
    for index, size in enumerate(sizes):
        if size < 1:
            raise ValueError(f"list {index} is empty; leave out queries without documents.")
    if sum(sizes) != pairs:
        raise ValueError(f"list_sizes add up to {sum(sizes)}, but there are {pairs} pairs.")


def _block(width: int, config: SetRankConfig) -> MSAB | IMSAB:
    options: dict[str, Any] = {
        "feed_forward": round(config.feed_forward * width),
        "dropout": config.dropout,
        "norm": config.norm,
        "qkv_relu": config.qkv_relu,
        "output_projection": config.output_projection,
        "identity_start": config.identity_start,
    }
    if config.inducing_points:
        return IMSAB(width, config.heads, config.inducing_points, **options)
    return MSAB(width, config.heads, **options)
