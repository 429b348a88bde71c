"""Where a document stood in one or several initial rankings, as a vector."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

Sampling = Literal["absolute", "relative"]


class OrdinalEmbedding(nn.Module):
    """Learned vectors of positions in initial rankings, summed over the rankings.

    Args:
        width: Size of a document's vector.
        max_docs: Rows of the table of each ranking: the longest list that can be scored.
        rankings: Number of initial rankings.
        sampling: "absolute": the document at position p gets row p. "relative": in training a list of n documents gets
            rows start … start + n - 1, with start drawn uniformly from 0 … ``max_docs`` - n, so that rows are trained
            that only longer lists will use; in evaluation start is 0.

    References:
        - Pang et al., SetRank, SIGIR 2020, section 3.3, https://arxiv.org/abs/1912.05891
    """

    def __init__(self, width: int, max_docs: int, rankings: int = 1, sampling: Sampling = "relative") -> None:
        super().__init__()
        if sampling not in ("absolute", "relative"):
            raise ValueError(f"sampling={sampling!r} is not known; choose 'absolute' or 'relative'.")
        if max_docs < 1 or rankings < 1:
            raise ValueError(f"max_docs={max_docs} and rankings={rankings} must be at least 1.")
        self.max_docs = max_docs
        self.rankings = rankings
        self.sampling = sampling
        self.tables = nn.Parameter(torch.randn(rankings, max_docs, width) * 0.02)

    def forward(self, positions: Tensor, sizes: Tensor) -> Tensor:
        """Sum of the vectors of each document's positions.

        Args:
            positions: ``(lists, docs, rankings)``, from 0 for the first document; anything in the padding.
            sizes: ``(lists,)``, number of documents of each list.

        Returns:
            ``(lists, docs, width)``.

        Raises:
            ValueError: a list is longer than the table, or the number of rankings is another.
        """
        if positions.shape[-1] != self.rankings:
            raise ValueError(
                f"Expected {self.rankings} initial rankings, got {positions.shape[-1]}. Give each document's scores "
                'in all of them: {"text": ..., "initial_scores": [...]}, or ranking_columns of numeric documents.'
            )
        if bool((sizes > self.max_docs).any()):
            index = int((sizes > self.max_docs).nonzero()[0])
            raise ValueError(
                f"List {index} has {int(sizes[index])} documents, more than the {self.max_docs} rows of the ordinal "
                "embedding: cut the list, or train with a larger max_docs."
            )
        if self.training and self.sampling == "relative":
            room = self.max_docs - sizes + 1
            start = (torch.rand(sizes.shape, device=sizes.device) * room).long().clamp(max=self.max_docs - sizes)
            positions = positions + start[:, None, None]
        rows = positions.clamp(max=self.max_docs - 1)  # those of padding can lie beyond
        return torch.stack([table[rows[..., ranking]] for ranking, table in enumerate(self.tables)]).sum(0)


def positions_from_scores(scores: Tensor, mask: Tensor) -> Tensor:
    """Position of each document when its list is sorted by score, best first; ties keep the given order.

    Args:
        scores: ``(lists, docs, rankings)``, larger is better.
        mask: ``(lists, docs)`` bool, True for real documents.

    Returns:
        ``(lists, docs, rankings)`` whole numbers from 0.

    >>> positions_from_scores(torch.tensor([[[0.1], [0.9], [0.1]]]), torch.tensor([[True, True, True]])).flatten()
    tensor([1, 0, 2])
    """
    order = scores.masked_fill(~mask[..., None], -torch.inf).sort(dim=1, descending=True, stable=True).indices
    return order.argsort(dim=1)
