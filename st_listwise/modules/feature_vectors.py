"""Numeric documents as input: vectors of features, normalised with the statistics of the training set."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers.base.modules import InputModule
from torch import Tensor
from typing_extensions import Self

from st_listwise.modules.inputs import place_of
from st_listwise.modules.saving import SavedModule


class FeatureVectors(SavedModule, InputModule):
    r"""Takes (query, vector) pairs; what the query is does not matter, it only says which documents belong together.

    .. math:: z = (g(x) - \mu) / \sigma, \quad g(x) = \operatorname{sign}(x) \log(1 + |x|) \text{ or } x

    with the mean and standard deviation of :math:`g(x)` over the training set, saved with the model. A feature that is
    constant there becomes 0.

    Args:
        dim: Number of features.
        log1p: Whether g is the logarithm, which tames counts and lengths.
        ranking_columns: Features, counted from 0, whose raw values are initial rankings for ordinal embeddings (larger
            is better), for example BM25.

    Raises:
        ValueError: ``dim`` is no number of features, or ``ranking_columns`` are no columns; from :meth:`preprocess`: a
            vector of another width, or a value that is NaN or infinite, with query and document.
    """

    config_file_name = "feature_vectors_config.json"
    config_keys = ["dim", "log1p", "ranking_columns"]  # noqa: RUF012  # as in the base class
    mean: Tensor
    scale: Tensor

    def __init__(self, dim: int, log1p: bool = True, ranking_columns: Sequence[int] = ()) -> None:
        super().__init__()
        if not isinstance(dim, int) or dim < 1:
            raise ValueError(
                f"dim is {dim!r:.60}, expected the number of features. FeatureVectors.fit(vectors) takes vectors."
            )
        self.dim = dim
        self.log1p = log1p
        self.ranking_columns = _columns(ranking_columns, dim)
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))

    @classmethod
    def fit(cls, vectors: Any, log1p: bool = True, ranking_columns: Sequence[int] = ()) -> Self:
        """A module with the statistics of a training set.

        Args:
            vectors: ``(documents, dim)`` array, of all documents of the training set.
            log1p: As in the constructor.
            ranking_columns: As in the constructor.

        Raises:
            ValueError: vectors are no such array, such as the lists of :func:`~st_listwise.data.read_letor`, or hold
                NaN or infinity.
        """
        expected = "vectors must be one (documents, features) array"
        try:
            values = np.asarray(vectors, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{expected}; put lists together with np.concatenate ({error}).") from error
        if values.ndim != 2 or not len(values):
            raise ValueError(
                f"{expected} with at least one document, got {values.shape}; put lists together with np.concatenate."
            )
        if not np.isfinite(values).all():
            row, column = np.argwhere(~np.isfinite(values))[0]
            raise ValueError(f"feature {column} of document {row} is {values[row, column]}. Clean the features.")
        module = cls(values.shape[1], log1p, ranking_columns)
        tamed = module._tame(torch.from_numpy(values))
        mean, deviation = tamed.mean(0), tamed.std(0, correction=0)
        module.mean.copy_(mean)
        module.scale.copy_(torch.where(deviation <= 1e-8 * (1 + mean.abs()), 0, 1 / deviation))
        return module

    def preprocess(  # type: ignore[override]
        self, inputs: Sequence[tuple[Any, Any]], prompt: str | None = None, **kwargs: Any
    ) -> dict[str, Tensor]:
        """Pairs → ``feature_vectors`` ``(pairs, dim)``, and an ``attention_mask`` ``(pairs, 1)``: one token each."""
        try:
            values = np.asarray([vector for _, vector in inputs], dtype=np.float32)
        except (TypeError, ValueError):
            values = np.empty((), dtype=np.float32)
        if values.shape != (len(inputs), self.dim):
            self._raise_width(inputs)
        if not np.isfinite(values).all():
            row, column = np.argwhere(~np.isfinite(values))[0]
            raise ValueError(f"feature {column} of {place_of(inputs, int(row))} is {values[row, column]}.")
        return {"feature_vectors": torch.from_numpy(values), "attention_mask": torch.ones(len(inputs), 1).long()}

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add ``sentence_embedding`` ``(pairs, dim)`` and, with ranking columns, ``initial_scores``."""
        raw = features["feature_vectors"]
        if self.ranking_columns:
            features["initial_scores"] = raw[:, self.ranking_columns]
        features["sentence_embedding"] = ((self._tame(raw) - self.mean.float()) * self.scale.float()).to(
            self.mean.dtype
        )
        return features

    def _tame(self, raw: Tensor) -> Tensor:
        """g, of the formula above."""
        return torch.sign(raw) * torch.log1p(raw.abs()) if self.log1p else raw

    def get_embedding_dimension(self) -> int:
        """Size of the vectors that it gives."""
        return self.dim

    def _raise_width(self, inputs: Sequence[tuple[Any, Any]]) -> None:
        for row, (_, vector) in enumerate(inputs):
            try:
                shape = np.asarray(vector, dtype=np.float32).shape
            except (TypeError, ValueError) as error:
                raise ValueError(f"{place_of(inputs, row)} is no vector of numbers: {vector!r:.80}") from error
            if shape != (self.dim,):
                raise ValueError(f"{place_of(inputs, row)} has shape {shape}; the model takes vectors of {self.dim}.")


def _columns(columns: Any, dim: int) -> list[int]:
    """Numbers of columns, of which there are ``dim``."""
    try:
        numbers = [operator.index(column) for column in columns]
    except TypeError:
        numbers = [-1]
    if any(not 0 <= column < dim for column in numbers):
        raise ValueError(f"ranking_columns={columns!r} must be a list of whole numbers between 0 and {dim - 1}.")
    return numbers
