"""Membership attacks on the embedded model, in small."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from dpmtv.errors import DataError
from dpmtv.evaluation.audit_plot import tradeoff_png
from dpmtv.evaluation.benchmark import load_benchmark
from dpmtv.evaluation.membership import MembershipSettings, audit_membership
from dpmtv.evaluation.membership_attacks import (
    LinearRelease,
    as_released,
    coin_estimates,
    contribution,
)
from dpmtv.geometry import ReleaseGeometry
from dpmtv.models.atoms import MOST_CLASSES
from dpmtv.types import HeadLayout

SETTINGS = MembershipSettings(records=20, trials=5, search_steps=3)


@pytest.fixture(scope="module")
def rows(model):
    bench = load_benchmark("embedded", ["color-gem"])
    answers = defaultdict(set)
    for record in bench.public:
        answers[record.task].add(record.answer)
    # Rules of many classes, which are not decoded: that takes thousands of passes.
    names = [task for task, words in answers.items() if len(words) > MOST_CLASSES][:2]
    bench = load_benchmark("embedded", ["color-gem"], public=names)
    return audit_membership(model, bench, SETTINGS, name="embedded", command="c")


def of(rows, **wanted):
    return [r for r in rows if all(r[k] == v for k, v in wanted.items())]


def test_every_target_is_attacked_in_every_way(rows):
    found = {(r["target"], r["epsilon"], r["attack"], r["candidates"]) for r in rows}
    assert len(found) == len(rows) == 2 * (2 + 3 + 2 * 4)
    for r in rows:
        assert (r["trials"], r["coins"]) == (5, 20)
        assert r["tasks"] == ["color-gem"]
    assert {r["mu"] for r in of(rows, epsilon=None)} == {None}


def test_attacks_succeed_where_nothing_protects(rows):
    for kind in ("ordinary", "odd"):
        (vector,) = of(rows, target="vector without noise", attack="vector", candidates=kind)
        (prompt,) = of(rows, target="in-context prompt", attack="answers", candidates=kind)
        assert vector["auc"] == prompt["auc"] == 1
        (answers,) = of(rows, target="vector without noise", attack="answers", candidates=kind)
        assert answers["auc"] > 0.75


def test_private_vectors_are_beside_what_is_certified(rows):
    for r in of(rows, private=True):
        assert not r["violation"]
        assert r["mu"] == pytest.approx({1.0: 0.277, 8.0: 1.790}[r["epsilon"]], abs=2e-3)
    for kind in ("ordinary", "odd"):
        assert {r["attack"] for r in of(rows, epsilon=8.0, candidates=kind)} == {
            *("release", "vector", "answers", "own answer"),
        }


def test_the_picture_is_drawn(rows, tmp_path):
    tradeoff_png(rows, tmp_path / "audit.png")
    assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")


def test_too_few_records_are_refused(model):
    bench = load_benchmark("embedded", ["color-gem"])
    with pytest.raises(DataError, match="1000 records to play the private role"):
        audit_membership(
            model, bench, MembershipSettings(records=900), name="embedded", command="c"
        )
    with pytest.raises(DataError, match="at least 20 records, not 19"):
        audit_membership(model, bench, MembershipSettings(records=19), name="embedded", command="c")
    few = MembershipSettings(records=20, trials=4)
    with pytest.raises(DataError, match="4 draws of 20 records are 16 coins"):
        audit_membership(model, bench, few, name="embedded", command="c")
    one = [r for r in bench.tasks[0].private if r.answer == bench.tasks[0].private[0].answer]
    same = replace(bench, tasks=(replace(bench.tasks[0], private=one),))
    with pytest.raises(DataError, match="one answer alone"):
        audit_membership(model, same, SETTINGS, name="embedded", command="c")


# The arithmetic of the attacks.


def test_coins_are_read_off_a_mean_without_noise():
    rng = np.random.default_rng(0)
    effects, coins = rng.normal(size=(10, 40)), rng.choice([-0.5, 0.5], 10)
    assert coin_estimates(coins @ effects, effects, 0.0) == pytest.approx(coins, abs=1e-5)


def test_estimates_are_the_best_linear_ones():
    rng = np.random.default_rng(1)
    effects, sigma = rng.normal(size=(6, 20)), 2.0
    coins = rng.choice([-0.5, 0.5], (20_000, 6))
    seen = coins @ effects + sigma * rng.normal(size=(20_000, 20))
    best, *_ = np.linalg.lstsq(seen, coins, rcond=None)
    ours = np.stack([coin_estimates(row, effects, sigma) for row in np.eye(20)])
    assert ours == pytest.approx(best, abs=0.01)


def test_coins_are_read_through_answers():
    rng = np.random.default_rng(2)
    effects, coins = rng.normal(size=(5, 30)) / 20, rng.choice([-0.5, 0.5], 5)
    through = rng.normal(size=(30, 25))
    linear = LinearRelease(rng.normal(size=30), effects, 0.0, lambda rows: rows)
    vector = linear.centre + coins @ effects
    found = linear.estimates_through(lambda rows: np.tanh(rows @ through / 9), vector, rng)
    assert (np.sign(found) == np.sign(coins)).all()


def test_a_mapped_release_is_mapped_back():
    rng = np.random.default_rng(3)
    layout, heads = HeadLayout((2, 2), (3, 3)), np.array([True, False, True, True])
    geometry = ReleaseGeometry(
        layout,
        heads,
        (1.0,),
        centre=rng.normal(size=12),
        weights=np.array([2.0, 1.0, 0.5, 3.0]),
        gains=np.array([0.5, 1.0, 2.0, 0.0]),
    )
    release = rng.normal(size=9)
    found = as_released(geometry, geometry.from_release(release))
    assert found[:6] == pytest.approx(release[:6])
    assert (found[6:] == 0).all(), "a head without gain tells nothing"
    assert np.linalg.norm(contribution(geometry, 1e3 * rng.normal(size=12))) <= 1
