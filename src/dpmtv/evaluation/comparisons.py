"""How sure a figure is, and whether two methods differ, question by question."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import binomtest

if TYPE_CHECKING:
    from jaxtyping import Float

_RESAMPLES = 2000


def bootstrap_interval(
    scores: Float[np.ndarray, "draws questions"], level: float = 0.95
) -> tuple[float, float]:
    """Percentile interval of the mean over questions (Efron and Tibshirani 1993, chapter 13).

    Questions are drawn anew, with all their draws of records and noise; the resamples are the same
    at every call. It tells how much a figure depends on which questions were asked.

    Args:
        scores: NaN where a question is not counted.
        level: of confidence.

    >>> bootstrap_interval(np.ones((1, 5)))
    (1.0, 1.0)
    """
    rng = np.random.default_rng(0)
    counted = ~np.isnan(scores)
    filled = np.where(counted, scores, 0.0)
    means = []
    for _ in range(_RESAMPLES):
        drawn = rng.integers(0, scores.shape[1], scores.shape[1])
        counts = counted[:, drawn].sum(1)
        some = counts > 0
        if some.any():
            means.append(np.mean(filled[:, drawn].sum(1)[some] / counts[some]))
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def paired_p(one: Float[np.ndarray, " questions"], other: Float[np.ndarray, " questions"]) -> float:
    """Two-sided p-value of "both methods are equally good", on the same questions.

    Where every score is right or wrong, McNemar's exact test (McNemar 1947); otherwise a paired
    permutation test, which swaps the two scores of a question at random.

    >>> paired_p(np.array([1, 1, 1, 1, 1, 0.0]), np.array([0, 0, 0, 0, 0, 0.0]))
    0.0625
    """
    difference = one - other
    if np.isin(one, (0, 1)).all() and np.isin(other, (0, 1)).all():
        better, worse = int((difference > 0).sum()), int((difference < 0).sum())
        return float(binomtest(better, better + worse).pvalue) if better + worse else 1.0
    rng = np.random.default_rng(0)
    signs = rng.choice([-1, 1], (_RESAMPLES, len(difference)))
    extreme = np.abs(signs @ difference) >= abs(difference.sum()) - 1e-9
    return float((1 + extreme.sum()) / (1 + _RESAMPLES))
