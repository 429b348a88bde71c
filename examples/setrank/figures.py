"""Figures that the comparisons share: nDCG@10, the spread over seeds, paired tests over queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from sklearn.metrics import ndcg_score

from st_listwise.evaluation import compare

Seeds = Sequence[Sequence[float]]  #: of each seed the values of all queries


def ndcg(labels: Sequence[float] | np.ndarray, scores: np.ndarray) -> float:
    """nDCG@10 of one list with gain 2^label - 1, ties averaged; a list of one document is in order."""
    return float(ndcg_score([2.0 ** np.array(labels) - 1], [scores], k=10)) if len(labels) > 1 else 1.0


def spread(seeds: Seeds) -> str:
    """Mean and standard deviation over seeds.

    >>> spread([[0.5, 0.75], [0.75, 1.0]])
    '0.7500 ± 0.1768'
    """
    means = [np.mean(values) for values in seeds]
    return f"{np.mean(means):.4f} ± {np.std(means, ddof=1) if len(means) > 1 else 0.0:.4f}"


def paired(arms: Mapping[str, Seeds], pairs: Sequence[tuple[str, str]]) -> list[str]:
    """A line with a paired t-test over queries, each averaged over seeds, for each pair of arms that are there."""
    lines = []
    for first, second in pairs:
        if first in arms and second in arms:
            values = np.mean(arms[first], 0)
            found = compare(values, np.mean(arms[second], 0))
            lines.append(
                f"{first} - {second}: {found.difference:+.4f} (p = {found.p_value:.3f}, {len(values)} queries)"
            )
    return lines
