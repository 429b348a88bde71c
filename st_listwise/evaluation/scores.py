"""Scores of whole lists, from pointwise and set models alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sentence_transformers import CrossEncoder

from st_listwise.scoring import check_model
from st_listwise.set_rank_cross_encoder import SetRankCrossEncoder, check_lists


def predict_lists(
    model: CrossEncoder, queries: Sequence[Any], docs_lists: Sequence[Sequence[Any]], **options: Any
) -> list[np.ndarray]:
    """Score the documents of several queries in one call of ``predict``.

    Args:
        model: With one output. A set model is told where lists begin, so that two lists of one query stay apart.
        queries: One for each list.
        docs_lists: Documents of each query.
        options: Those of ``model.predict``.

    Returns:
        For each query ``(docs,)`` scores, in the order of its documents.

    Raises:
        ValueError: the model has no ``predict`` or more than one output; the numbers of queries and lists differ,
            or a list is a text.
    """
    if isinstance(model, CrossEncoder) or not hasattr(model, "predict"):  # a baseline need not be a model
        check_model(model, "Ranking")
    docs_lists = list(docs_lists)  # of a data set, whose columns are decoded each time that they are read
    check_lists(queries, docs_lists)
    pairs = [(query, doc) for query, docs in zip(queries, docs_lists) for doc in docs]
    sizes = [len(docs) for docs in docs_lists]
    if isinstance(model, SetRankCrossEncoder):
        options = {**options, "list_sizes": sizes}
    return np.split(np.asarray(model.predict(pairs, **options)), np.cumsum(sizes)[:-1])
