"""Figures and words of membership attacks."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import integrate, stats

from dpmtv.audit.membership import (
    Attack,
    Game,
    allowed_auc,
    allowed_hits,
    auc,
    auc_interval,
    hits_at,
    hits_interval,
    membership_rows,
)
from dpmtv.audit.two_worlds import Claim

CLAIMS = {1.0: Claim(1.0, 1e-5, 0.277), 8.0: Claim(8.0, 1e-5, 1.79)}


def games(distance: float, trials: int = 24, slots: int = 10, seed: int = 0) -> list[Game]:
    """Members' scores from N(distance, 1), others' from N(0, 1)."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(trials):
        coins = rng.random(slots) < 0.5
        first, second = rng.normal(size=(2, slots)) + distance * np.stack([coins, ~coins])
        found.append(Game(coins, first, second))
    return found


def row(found, **wanted):
    (one,) = [r for r in found if all(r[k] == v for k, v in wanted.items())]
    return one


def test_area_is_the_share_of_pairs():
    assert auc(np.array([1.0, 2.0]), np.array([0.0, 3.0])) == 0.5
    assert auc(np.array([1.0]), np.array([1.0, 1.0])) == 0.5, "equal scores count half"
    rng = np.random.default_rng(0)
    members, others = rng.normal(1, 1, 50), rng.normal(0, 1, 70)
    won = stats.mannwhitneyu(members, others).statistic
    assert auc(members, others) == pytest.approx(won / 3500)


def test_scores_belong_to_members_as_the_coins_fell():
    game = Game(np.array([True, False]), np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    assert game.members.tolist() == [1, 4]
    assert game.others.tolist() == [3, 2]


def test_the_interval_covers_as_often_as_it_says():
    truth, covered = stats.norm.cdf(1 / np.sqrt(2)), 0
    for seed in range(200):
        _, low, high = auc_interval([auc(g.members, g.others) for g in games(1, seed=seed)], 0.05)
        covered += low <= truth <= high
    assert covered >= stats.binom.ppf(1e-4, 200, 0.95)


def test_trials_that_agree_leave_doubt():
    mean, low, high = auc_interval([1.0] * 24, 0.05)
    assert (mean, high) == (1, 1)
    assert low == pytest.approx(0.025 ** (1 / 24))
    assert auc_interval([0.7], 0.05) == (0.7, 0.0, 1.0)


def test_hits_are_counted_at_the_rate_of_false_alarms():
    coins = np.ones(100, bool)
    game = Game(coins, np.arange(100) + 0.5, np.arange(100.0))
    assert hits_at([game], 0.05) == 0.06
    assert hits_at([game], 1.0) == 1
    value, low, high = hits_interval([game, game], 0.05, 0.05)
    assert low <= value <= high


def test_what_is_allowed_is_the_curve_of_gaussian_privacy():
    for mu in (0.277, 1.79):
        area, _ = integrate.quad(lambda alarms, mu=mu: allowed_hits(mu, alarms), 0, 1)
        assert allowed_auc(mu) == pytest.approx(area, abs=1e-6)
    assert allowed_hits(0.26805, 0.05) == pytest.approx(0.0843, abs=1e-4)


@pytest.fixture(scope="module")
def rows():
    found = {
        Attack("vector without noise", None, "vector", "odd"): games(6),
        Attack("vector without noise", None, "own answer", "odd"): games(0.2, seed=1),
        Attack("in-context prompt", None, "own answer", "odd"): games(1.0, seed=2),
        Attack("private vector", 1.0, "release", "odd"): games(0.1, seed=3),
        Attack("private vector", 1.0, "vector", "odd"): games(0.1, seed=4),
        Attack("private vector", 1.0, "own answer", "odd"): games(0.0, seed=5),
        Attack("private vector", 8.0, "own answer", "odd"): games(0.0, seed=6),
        Attack("private vector", 1.0, "answers", "odd"): games(30, seed=7),
        Attack("private vector", 1.0, "vector", "ordinary"): games(0.0, seed=8),
    }
    return membership_rows(found, CLAIMS, 0.05)


def test_rows_are_json_and_hold_what_is_allowed(rows):
    json.loads(json.dumps(rows, allow_nan=False))
    for r in rows:
        assert r["auc_low"] <= r["auc"] <= r["auc_high"]
        assert r["private"] is (r["epsilon"] is not None) is (r["auc_allowed"] is not None)
        assert [alarms for alarms, _ in r["curve"]][-1] == 1


def test_an_attack_that_works_without_noise_is_compared(rows):
    for attack in ("release", "vector"):
        said = row(rows, attack=attack, epsilon=1.0, candidates="odd")["verdict"]
        assert said.startswith("no violation found")
        assert "no proof" in said


def test_an_attack_that_fails_without_noise_says_nothing(rows):
    for epsilon in (1.0, 8.0):
        said = row(rows, attack="own answer", epsilon=epsilon)["verdict"]
        assert said.startswith("too weak to say anything"), "that it works in context is not enough"
    said = row(rows, candidates="ordinary")["verdict"]
    assert "not tried without noise" in said


def test_more_than_is_certified_is_a_violation(rows):
    found = row(rows, epsilon=1.0, attack="answers")
    assert found["violation"]
    assert found["mu_low"] > CLAIMS[1.0].mu
    assert found["verdict"].startswith("VIOLATION")
    assert not any(r["violation"] for r in rows if r is not found)


def test_nothing_is_called_private(rows):
    for r in rows:
        assert "private" not in r["verdict"].replace("not private", "")
        assert r["verdict"].startswith("not private") is not r["private"]
