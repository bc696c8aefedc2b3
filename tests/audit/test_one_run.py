"""The one-run bounds: against their definitions, correct mechanisms and broken ones."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import stats

from dpmtv.audit import one_run
from dpmtv.audit.one_run import (
    bounds_from_guesses,
    chance_of_right,
    epsilon_bound,
    judge_guesses,
    mu_bound,
    needed_mass,
)
from dpmtv.audit.two_worlds import Claim
from dpmtv.errors import InternalError, UserError

REFERENCE = Claim(1.0, 1e-5, 0.26805)


def gaussian(rng, coins: int, mu: float) -> tuple[np.ndarray, np.ndarray]:
    """Scores of so many coins, each under noise of its own."""
    fell = rng.random(coins) < 0.5
    return mu * fell + rng.normal(size=coins), fell


# The bound on ε.


@pytest.mark.parametrize("right", [0, 1, 7, 12, 20])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0])
def test_the_chance_is_the_theorems(right, epsilon):
    coins, guesses, delta = 30, 20, 1e-3
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))

    def tail(count):
        return stats.binom.sf(count - 1, guesses, chance)

    excess = max((tail(right - i) - tail(right)) / i for i in range(1, coins + 1))
    wanted = tail(right) + 2 * coins * delta * excess
    assert chance_of_right(coins, guesses, right, epsilon, delta) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize(("guesses", "right"), [(20, 20), (50, 45), (100, 80)])
def test_without_delta_the_bound_is_that_of_clopper_and_pearson(guesses, right):
    low = stats.binomtest(right, guesses).proportion_ci(0.9, "exact").low
    found = epsilon_bound(200, guesses, right, 0.0, 0.05)
    assert found == pytest.approx(math.log(low / (1 - low)), abs=1e-9)


def respond(rng, coins, epsilon):
    """Randomised response: the worst release of pure ε."""
    return np.where(rng.random(len(coins)) < 1 / (1 + math.exp(-epsilon)), coins, ~coins)


@pytest.mark.parametrize(
    ("release", "epsilon", "delta"),
    [
        (lambda rng, coins: respond(rng, coins, 1.0), 1.0, 0.0),
        (lambda rng, coins: respond(rng, coins, 0.3), 0.3, 0.0),
        # Each coin shown with probability δ, or all of them together.
        (lambda rng, coins: np.where(rng.random(len(coins)) < 0.05, coins, 0.5), 0.0, 0.05),
        (lambda rng, coins: coins if rng.random() < 0.2 else rng.random(len(coins)), 0.0, 0.2),
    ],
    ids=["response", "weak response", "some leak", "all leak"],
)
def test_a_release_that_keeps_epsilon_rarely_looks_worse(release, epsilon, delta):
    rng, error, runs = np.random.default_rng(1), 0.1, 150
    wrong = 0
    for _ in range(runs):
        coins = rng.random(40) < 0.5
        scores = np.asarray(release(rng, coins), float) + 1e-6 * rng.random(40)
        wrong += bounds_from_guesses(scores, coins, delta, error).epsilon_low > epsilon
    assert wrong <= stats.binom.isf(1e-6, runs, error)


def test_the_correction_for_delta_is_needed():
    """Without it, a release that is (0, 0.2)-private would be called worse every fifth time."""
    assert chance_of_right(80, 80, 80, 0.0, 0.0) < 1e-20
    assert chance_of_right(80, 80, 80, 0.0, 0.2) >= 0.2


# The bound on μ.


@pytest.mark.parametrize("mu", [0.1, 0.26805, 1.0, 3.0])
def test_one_coin_is_guessed_right_as_often_as_gaussian_privacy_allows(mu):
    most = stats.norm.cdf(mu / 2)
    assert needed_mass(np.array([mu]), 1, 1, 1, most) == pytest.approx(1)
    assert mu_bound(1, 1, 1, most) == pytest.approx(mu, abs=1e-5)


@pytest.mark.parametrize(
    ("coins", "guesses", "right"), [(3, 3, 2), (3, 3, 3), (6, 3, 2), (5, 2, 1)]
)
def test_no_distribution_that_keeps_the_inequalities_needs_less(coins, guesses, right):
    rng, mu = np.random.default_rng(2), 0.8
    p = np.exp(rng.uniform(-9, 0, (200_000, guesses + 1)))
    count = np.arange(guesses + 1)
    upper = np.cumsum((count * p)[:, ::-1], axis=1)[:, ::-1] / coins
    lower = np.cumsum(((guesses - count) * p)[:, ::-1], axis=1)[:, ::-1] / coins
    allowed = stats.norm.cdf(stats.norm.ppf(np.minimum(lower, 1)) + mu)
    kept = (upper[:, 1 : right + 1] <= allowed[:, :right]).all(axis=1)
    assert kept.sum() > 1000
    for row in p[kept][:300]:
        least = needed_mass(np.array([mu]), coins, guesses, right, row[right:].sum())
        assert least <= row.sum() * (1 + 1e-12)


@pytest.mark.parametrize("mu", [0.26805, 1.666])
def test_gaussian_releases_rarely_look_worse_than_they_are(mu):
    rng, error, runs = np.random.default_rng(3), 0.2, 20
    found = [bounds_from_guesses(*gaussian(rng, 400, mu), 1e-5, error) for _ in range(runs)]
    assert sum(f.mu_low > mu for f in found) <= stats.binom.isf(1e-6, runs, error)
    assert np.median([f.mu_low for f in found]) > 0.1 * mu, "a bound of nothing shows nothing"


def test_half_the_noise_is_found_with_the_default_canaries():
    rng = np.random.default_rng(4)
    found = judge_guesses(*gaussian(rng, 10_000, 2 * REFERENCE.mu), REFERENCE, canaries="c")
    assert found.violation
    assert found.verdict.startswith("VIOLATION")
    assert found.mu_estimate == pytest.approx(2 * REFERENCE.mu, abs=0.1)


def test_no_noise_is_found_with_few_canaries():
    coins = np.arange(100) % 2 == 0
    found = judge_guesses(coins.astype(float), coins, Claim(4.0, 1e-5, 0.9249), canaries="c")
    assert found.violation
    assert found.bounds.right == found.bounds.guesses
    assert found.mu_estimate is None, "no spread"


def test_coins_of_several_releases_count_together():
    rng = np.random.default_rng(5)
    scores, coins = gaussian(rng, 2000, 3.0)
    alone = bounds_from_guesses(scores[:200], coins[:200], 1e-5, 0.05)
    together = bounds_from_guesses(scores, coins, 1e-5, 0.05)
    assert together.mu_low > alone.mu_low


def test_a_pass_is_told_as_nothing_found():
    rng = np.random.default_rng(6)
    found = judge_guesses(*gaussian(rng, 500, REFERENCE.mu), REFERENCE, canaries="c")
    assert not found.violation
    assert "no violation found" in found.verdict
    assert "no proof" in found.verdict
    assert "private" not in " ".join(found.lines())
    said = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert said["violation"] is False
    assert said["bounds"]["coins"] == 500


def test_what_cannot_be_judged_is_refused():
    coins = np.arange(40) % 2 == 0
    with pytest.raises(UserError, match="at least 20 canaries"):
        bounds_from_guesses(np.zeros(10), coins[:10], 1e-5, 0.05)
    with pytest.raises(UserError, match="error probability"):
        bounds_from_guesses(np.zeros(40), coins, 1e-5, 0.5)
    for scores in (np.zeros(39), np.full(40, np.nan)):
        with pytest.raises(InternalError, match="canary's score"):
            bounds_from_guesses(scores, coins, 1e-5, 0.05)


def test_nothing_is_shown_by_chance_alone():
    coins = np.random.default_rng(7).random(1000) < 0.5
    found = bounds_from_guesses(np.random.default_rng(8).random(1000), coins, 1e-5, one_run.ERROR)
    assert found.mu_low < 0.05
    assert found.epsilon_low < 0.2
