"""Blocks in which the documents of one list look at each other: MSAB, and IMSAB at linear cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Norm = Literal["pre", "post"]


class MultiHeadAttention(nn.Module):
    r"""Scaled dot-product attention with several heads and a mask over the keys (Vaswani et al., 2017).

    .. math:: \operatorname{MHA}(Q, K) = [A_1, \ldots, A_h] W^O, \quad
        A_i = \operatorname{softmax}(Q W_i^Q (K W_i^K)^\top / \sqrt{d / h})\, K W_i^V

    Args:
        width: d, of queries, keys and output.
        heads: h, a divisor of ``width``.
        dropout: Of the attention weights, in training.
        qkv_relu: ReLU on projected queries, keys and values, as in SetRank's published code.
        output_projection: Whether :math:`W^O` is there; without it heads are only joined.
    """

    def __init__(
        self, width: int, heads: int, dropout: float = 0.0, *, qkv_relu: bool = False, output_projection: bool = True
    ) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise ValueError(f"heads={heads} must divide the width, {width}.")
        self.heads = heads
        self.dropout = dropout
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.activation = nn.ReLU() if qkv_relu else nn.Identity()
        self.output = nn.Linear(width, width) if output_projection else nn.Identity()

    def forward(self, queries: Tensor, keys: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend from each query to the keys of its own list.

        Args:
            queries: ``(lists, queries, width)``.
            keys: ``(lists, keys, width)``; they give the values as well.
            mask: ``(lists, keys)`` bool, True for keys that may be attended to. None: all.

        Returns:
            ``(lists, queries, width)``.
        """
        if mask is not None:
            mask = (mask | ~mask.any(-1, keepdim=True))[:, None, None, :]  # a list of padding alone must not give NaN
        attended = F.scaled_dot_product_attention(
            self._split(self.query(queries)),
            self._split(self.key(keys)),
            self._split(self.value(keys)),
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.output(attended.transpose(1, 2).flatten(2))

    def _split(self, projected: Tensor) -> Tensor:
        """``(lists, n, width)`` → ``(lists, heads, n, width / heads)``."""
        return self.activation(projected).unflatten(-1, (self.heads, -1)).transpose(1, 2)


class _Block(nn.Module):
    """What MSAB and IMSAB share: norms before or after each step, the feed-forward network, and an identity start."""

    def __init__(
        self,
        width: int,
        heads: int,
        feed_forward: int | None = None,
        dropout: float = 0.0,
        *,
        norm: Norm = "pre",
        qkv_relu: bool = False,
        output_projection: bool = True,
        identity_start: bool = False,
    ) -> None:
        super().__init__()
        if norm not in ("pre", "post"):
            raise ValueError(f"norm={norm!r} is not known; choose 'pre' or 'post'.")
        if identity_start and not (norm == "pre" and output_projection):
            raise ValueError("identity_start=True needs norm='pre' and output_projection=True.")
        self.pre_norm = norm == "pre"
        self.attention = MultiHeadAttention(
            width, heads, dropout, qkv_relu=qkv_relu, output_projection=output_projection
        )
        inner = 4 * width if feed_forward is None else feed_forward
        self.feed_forward = nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width))
        self.dropout = nn.Dropout(dropout)
        self.attention_norm = nn.LayerNorm(width)
        self.feed_forward_norm = nn.LayerNorm(width)
        if identity_start:
            for last in (self.attention.output, self.feed_forward[-1]):
                nn.init.zeros_(last.weight)  # type: ignore[arg-type]
                nn.init.zeros_(last.bias)  # type: ignore[arg-type]

    def _add(self, documents: Tensor, norm: nn.Module, step: Callable[[Tensor], Tensor]) -> Tensor:
        if self.pre_norm:
            return documents + self.dropout(step(norm(documents)))
        return norm(documents + self.dropout(step(documents)))


class MSAB(_Block):
    r"""Multi-head self-attention block: every document attends to every other one of its list.

    .. math:: B = \operatorname{LN}(X + \operatorname{MHA}(X, X)), \quad
        \operatorname{MSAB}(X) = \operatorname{LN}(B + \operatorname{FFN}(B))

    with ``norm="post"``, as published; with ``norm="pre"`` the norms stand before attention and feed-forward network.
    Permutation-equivariant. Cost O(n²) for n documents.

    Args:
        width: Size d of a document's vector.
        heads: Number of attention heads, a divisor of ``width``.
        feed_forward: Inner width of the feed-forward network. None: 4 d.
        dropout: Of attention weights and of what is added to the documents, in training.
        norm: "pre" or "post".
        qkv_relu: ReLU on projected queries, keys and values.
        output_projection: Whether the joined heads are projected once more.
        identity_start: Start as the identity: the last layers of both steps are zero. Needs ``norm="pre"``.

    References:
        - Pang et al., SetRank, SIGIR 2020, https://arxiv.org/abs/1912.05891
    """

    def forward(self, documents: Tensor, mask: Tensor | None = None) -> Tensor:
        """``(lists, docs, width)`` and a ``(lists, docs)`` bool mask, True for real documents → the same shape."""
        attended = self._add(documents, self.attention_norm, lambda x: self.attention(x, x, mask))
        return self._add(attended, self.feed_forward_norm, self.feed_forward)


class IMSAB(_Block):
    r"""Induced multi-head self-attention block: documents look at each other through M learned vectors I.

    .. math:: H = \operatorname{LN}(I + \operatorname{MHA}(I, X)), \quad
        O = \operatorname{LN}(X + \operatorname{MHA}(X, H)), \quad
        \operatorname{IMSAB}(X) = \operatorname{LN}(O + \operatorname{FFN}(O))

    with ``norm="post"``. Permutation-equivariant. Cost O(n M) for n documents; H has the same size for lists of any
    length, which is what the paper credits for adapting to longer lists than those trained on.

    Args:
        width: Size of a document's vector.
        heads: Number of attention heads, a divisor of ``width``.
        inducing_points: M. The vectors start from N(0, 0.1), a set of their own in each block.
        feed_forward: As in :class:`MSAB`, and so are the other options.

    References:
        - Pang et al., SetRank, SIGIR 2020, https://arxiv.org/abs/1912.05891
        - Lee et al., Set Transformer, ICML 2019, https://arxiv.org/abs/1810.00825
    """

    def __init__(
        self,
        width: int,
        heads: int,
        inducing_points: int = 20,
        feed_forward: int | None = None,
        dropout: float = 0.0,
        *,
        norm: Norm = "pre",
        qkv_relu: bool = False,
        output_projection: bool = True,
        identity_start: bool = False,
    ) -> None:
        super().__init__(
            width,
            heads,
            feed_forward,
            dropout,
            norm=norm,
            qkv_relu=qkv_relu,
            output_projection=output_projection,
            identity_start=identity_start,
        )
        if inducing_points < 1:
            raise ValueError(f"inducing_points={inducing_points} must be at least 1.")
        self.inducing = nn.Parameter(torch.randn(inducing_points, width) * 0.1)
        self.induced_attention = MultiHeadAttention(
            width, heads, dropout, qkv_relu=qkv_relu, output_projection=output_projection
        )
        self.induced_norm = nn.LayerNorm(width)

    def forward(self, documents: Tensor, mask: Tensor | None = None) -> Tensor:
        """``(lists, docs, width)`` and a ``(lists, docs)`` bool mask, True for real documents → the same shape."""

        def through_inducing(x: Tensor) -> Tensor:
            inducing = self.inducing.to(x.dtype).expand(len(x), -1, -1)
            induced = self.induced_norm(inducing + self.dropout(self.induced_attention(inducing, x, mask)))
            return self.attention(x, induced)

        attended = self._add(documents, self.attention_norm, through_inducing)
        return self._add(attended, self.feed_forward_norm, self.feed_forward)
