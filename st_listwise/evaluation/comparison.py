"""Two models on the same queries: is the difference more than chance?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

#: Values that are resampled at once; each takes some 24 bytes. The resamples are the same whatever it is.
RESAMPLED = 1 << 21


class Comparison(NamedTuple):
    """Difference of two models over queries, first minus second."""

    difference: float  #: of the means
    low: float  #: lower end of the bootstrap confidence interval
    high: float  #: its upper end
    p_value: float  #: of the paired t-test, two-sided
    wins: int  #: queries on which the first is better
    losses: int  #: queries on which the second is better


def compare(
    first: Sequence[float], second: Sequence[float], *, confidence: float = 0.95, resamples: int = 9999, seed: int = 12
) -> Comparison:
    """Paired comparison over queries: t-test, and a bootstrap interval of the difference (Sakai, SIGIR 2006).

    Args:
        first: One value a query, such as ``evaluator.per_query["nDCG@10"]`` of one model. With several seeds, the mean
            of a query over seeds.
        second: Those of the other model, in the same order of queries.
        confidence: Of the interval, between 0 and 1.
        resamples: Bootstrap samples of queries.
        seed: Of the bootstrap.

    Raises:
        ValueError: the numbers of queries differ, there are fewer than 2, a value is no finite number, or
            ``confidence`` is not between 0 and 1.
    """
    from scipy.stats import bootstrap, ttest_rel

    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence!r} must lie between 0 and 1, such as 0.95.")
    try:
        a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "Both need one number a query, such as evaluator.per_query['nDCG@10'] of each model: got "
            f"{type(first).__name__} and {type(second).__name__} ({error})."
        ) from error
    if a.shape != b.shape or a.ndim != 1 or len(a) < 2:
        raise ValueError(
            f"Both need one value a query, for the same queries, at least 2: got {a.shape} and {b.shape}."
        )
    if len(bad := np.flatnonzero(~(np.isfinite(a) & np.isfinite(b)))):
        raise ValueError(f"The values of query {bad[0]} are {a[bad[0]]} and {b[bad[0]]}: both must be finite.")
    difference = a - b
    if np.ptp(difference) == 0:  # nothing to resample, and no spread for the t-test
        value = float(difference[0])
        return Comparison(value, value, value, 1.0 if value == 0 else 0.0, int((a > b).sum()), int((b > a).sum()))
    interval = bootstrap(
        (difference,),
        np.mean,
        confidence_level=confidence,
        n_resamples=resamples,
        batch=max(1, RESAMPLED // len(difference)),
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Comparison(
        float(difference.mean()),
        float(interval.low),
        float(interval.high),
        float(ttest_rel(a, b).pvalue),
        int((a > b).sum()),
        int((b > a).sum()),
    )
