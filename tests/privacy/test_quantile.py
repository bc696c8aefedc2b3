"""Private medians of norms: their law, their sensitivity, and when they are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from dpmtv.errors import PrivacyParameterError
from dpmtv.privacy import quantile
from dpmtv.privacy.choice import Choice
from dpmtv.privacy.quantile import noisy_quantile, spread_edges
from dpmtv.types import BoundedRangeEvent

FALSE_ALARM = 1e-6
EDGES = np.array(spread_edges(1.0))
NORMS = st.one_of(
    st.floats(0, 20), st.sampled_from([0.0, 1.0, math.nan, math.inf, 1e-300, 1e300, *EDGES])
)


def scores_of(values, monkeypatch) -> np.ndarray:
    seen = []

    def watched(scores, **options):
        seen.append((scores, options["sensitivity"]))
        return Choice(0, BoundedRangeEvent(options["range_"], 1))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantile, "exponential_mechanism", watched)
        patch.setattr(quantile, "require_enough_for_quantile", lambda *_: None)
        noisy_quantile(np.array(values), EDGES, range_=1.0)
    ((scores, sensitivity),) = seen
    assert sensitivity == 2
    return scores


@given(st.lists(NORMS, min_size=6, max_size=6), NORMS, st.integers(0, 4))
@settings(max_examples=300, deadline=None, derandomize=True, phases=[Phase.generate])
def test_one_chunk_moves_each_score_by_two_at_most(values, other, place):
    one, two = values[:5], values[:5]
    two[place] = other
    moved = np.abs(scores_of(one, None) - scores_of(two, None))
    assert moved.max() <= 2


def test_the_score_counts_how_far_the_median_is():
    values = [0.9] * 60 + [1.1] * 41  # the median lies below 1
    scores = scores_of(values, None)
    right = int(np.searchsorted(EDGES, 0.9)) - 1
    assert scores[right] == 0
    assert scores[right + 1] == -(2 * 60 - 101)
    assert (np.delete(scores, [right, right + 1]) == -101).all()
    assert len(scores) == len(EDGES) - 1


def test_with_a_large_range_the_median_and_with_a_small_one_anything():
    rng = np.random.default_rng(0)
    values = rng.uniform(0.1, 5.0, 501)
    for _ in range(20):
        found = noisy_quantile(values, EDGES, range_=200.0)
        assert found / 2**0.5 <= np.median(values) <= found
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantile, "require_enough_for_quantile", lambda *_: None)
        drawn = [noisy_quantile(values, EDGES, range_=1e-9) for _ in range(1200)]
    counts = np.array([np.isclose(drawn, edge).sum() for edge in EDGES[1:]])
    expected = len(drawn) / len(counts)
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert statistic < chi2.isf(FALSE_ALARM, len(counts) - 1)


@pytest.mark.parametrize(("range_", "least"), [(0.1, 184), (0.05, 368), (1.0, 19)])
def test_refused_where_it_would_be_wrong_in_more_than_one_of_ten_builds(range_, least):
    """All norms alike is the worst case; the law is explicit, so the share of right picks is."""
    intervals = len(EDGES) - 1
    for chunks, enough in ((least, True), (least - 1, False)):
        right = 1 / (1 + (intervals - 1) * math.exp(-range_ * chunks / 4))
        assert (right >= 0.9) is enough
        if enough:
            noisy_quantile(np.full(chunks, 1.2), EDGES, range_=range_)
        else:
            with pytest.raises(PrivacyParameterError, match=f"needs {least} chunks"):
                noisy_quantile(np.full(chunks, 1.2), EDGES, range_=range_)


def test_bad_norms_count_as_large():
    values = np.array([math.nan, math.inf] * 200)
    assert noisy_quantile(values, EDGES, range_=1.0) == EDGES[-1]
