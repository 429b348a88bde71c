"""What documents bring beside their text, and where a pair stands, for messages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Pair = Sequence[Any]


def take_initial_scores(pairs: Sequence[Pair], rankings: int) -> tuple[list[Pair], Tensor | None]:
    """Part documents ``{"text": …, "initial_scores": […]}`` into text and scores of initial rankings.

    Args:
        pairs: (query, document) pairs, whose documents all bring scores, or none of them.
        rankings: Scores that each document must bring.

    Returns:
        The pairs with plain texts, and ``(pairs, rankings)`` scores, larger is better; or, where there are no scores,
        the inputs as they are, which need not be pairs, and None.

    Raises:
        ValueError: some documents bring scores and others do not, one brings another number of them, or one of them is
            not a number. Minus infinity is one: a ranking that does not have the document.
    """
    given = [_brings_scores(pair) for pair in pairs]
    if not any(given):
        return list(pairs), None
    if not all(given):
        place = place_of(pairs, given.index(False))
        raise ValueError(f"{place} has no initial_scores, others have: give them for all documents, or for none.")
    rows = [_row(doc["initial_scores"], rankings, pairs, index) for index, (_, doc) in enumerate(pairs)]
    for index, (_, doc) in enumerate(pairs):
        if set(doc) != {"text", "initial_scores"}:
            raise ValueError(f'{place_of(pairs, index)} has {sorted(doc)}: expected "text" and "initial_scores".')
    return [(query, doc["text"]) for query, doc in pairs], torch.tensor(rows, dtype=torch.float32)


def _brings_scores(pair: Any) -> bool:
    pair_of_two = isinstance(pair, (tuple, list)) and len(pair) == 2
    return pair_of_two and isinstance(pair[1], dict) and "initial_scores" in pair[1]


def place_of(pairs: Sequence[Pair], row: int) -> str:
    """Where a pair stands: its query, and its number among the documents of that query."""
    query = pairs[row][0]
    first = row
    while first and pairs[first - 1][0] == query:
        first -= 1
    return f"query {query!r:.60}, document {row - first}"


def _row(scores: Any, rankings: int, pairs: Sequence[Pair], index: int) -> list[float]:
    try:
        row = [float(score) for score in scores]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"initial_scores of {place_of(pairs, index)} is no list of numbers: {scores!r:.60}"
        ) from error
    if len(row) != rankings:
        raise ValueError(
            f"initial_scores of {place_of(pairs, index)} has {len(row)} scores, the model knows {rankings} initial "
            "rankings: give one score for each, or build it with SetRankConfig(rankings=...)."
        )
    if any(math.isnan(score) for score in row):
        raise ValueError(f"initial_scores of {place_of(pairs, index)} has NaN; -inf is for what was not retrieved.")
    return row
