"""The audit of the mechanism: its arithmetic, and real builds with and without planted faults.

Statistics that only imitate builds come from a fixed generator, so those tests cannot waver. Real
builds draw real noise: a correct one is called a violation at most once in 10,000 runs of a test,
and a planted fault is missed less often than that (none of 20,000 simulated audits of their size).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math

import numpy as np
import pytest
from scipy import integrate, stats

from dpmtv import pipeline
from dpmtv.audit import two_worlds as audit
from dpmtv.audit.two_worlds import (
    Claim,
    clopper_pearson,
    gaussian_epsilon,
    judge,
    rank_bound,
    two_worlds,
)
from dpmtv.errors import InternalError, PrivacyParameterError, UserError
from dpmtv.evaluation import mechanism_audit
from dpmtv.evaluation.mechanism_audit import audit_mechanism
from dpmtv.geometry import ReleaseGeometry
from dpmtv.privacy import accounting, mechanisms, sensitivity
from dpmtv.privacy.ledger import Reservation
from dpmtv.privacy.mechanisms import GaussianMean
from dpmtv.privacy.sensitivity import NeighbourRelation

REAL_SAMPLER = mechanisms._discrete_gaussian
REAL_RELEASE = GaussianMean.release
REFERENCE = Claim(1.0, 1e-5, 0.26805)
WORLDS = [(relation, units) for relation in NeighbourRelation for units in (False, True)]


# The arithmetic.


@pytest.mark.parametrize(("count", "runs"), [(0, 100), (1, 100), (47, 900), (899, 900), (900, 900)])
@pytest.mark.parametrize("error", [0.025, 1e-5])
def test_limits_are_those_of_clopper_and_pearson(count, runs, error):
    low, high = clopper_pearson(count, runs, error)
    exact = stats.binomtest(count, runs).proportion_ci(1 - 2 * error, "exact")
    assert (low, high) == pytest.approx((exact.low, exact.high), rel=1e-9)
    if count:
        assert stats.binom.sf(count - 1, runs, low) == pytest.approx(error)
    if count < runs:
        assert stats.binom.cdf(count, runs, high) == pytest.approx(error)


def test_limits_have_the_known_values():
    assert clopper_pearson(5, 10, 0.025) == pytest.approx((0.1871, 0.8129), abs=5e-5)
    assert clopper_pearson(0, 100, 0.05) == pytest.approx((0, 1 - 0.05**0.01))


@pytest.mark.parametrize("mu", [1e-3, 0.05, 0.26805, 1.0, 1.666, 5.0, 20.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-12])
def test_epsilon_is_the_accountants_rounded_down(mu, delta):
    epsilon, upper = gaussian_epsilon(mu, delta), accounting.gaussian_epsilon(1 / mu, delta)
    assert epsilon <= upper
    assert epsilon == pytest.approx(upper, rel=1e-7, abs=1e-7)


def test_no_bound_on_mu_is_none_on_epsilon():
    assert gaussian_epsilon(0.0, 1e-5) == 0
    assert gaussian_epsilon(0.26805, 1e-5) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("mu", [0.0, 0.3, 1.7, 4.0])
def test_mean_and_variance_of_the_count_are_those_of_two_gaussians(mu):
    def expect(function):
        return integrate.quad(lambda y: stats.norm.pdf(y, mu) * function(y), mu - 9, mu + 9)[0]

    won = expect(stats.norm.cdf)
    both = expect(lambda y: stats.norm.cdf(y) ** 2)  # two runs of world 0 against one of world 1
    for runs in (1, 7, 1000):
        mean, deviation = audit._pairs(mu, runs)
        variance = (won * (1 - won) + 2 * (runs - 1) * (both - won**2)) / runs**2
        assert (mean, deviation) == pytest.approx((won, math.sqrt(variance)), rel=1e-6)


def test_rank_bound_is_where_the_count_becomes_too_large():
    bounds = [rank_bound(wins, 100, 1e-3) for wins in range(5000, 10_001, 50)]
    assert bounds == sorted(bounds)
    assert bounds[0] == 0
    for wins, bound in ((7000, bounds[40]), (10_000, bounds[100])):
        mean, deviation = audit._pairs(bound, 100)
        z = (wins / 100**2 - mean) / deviation
        assert stats.norm.sf(z) == pytest.approx(1e-3, rel=1e-6)


SHAPES = {
    "as it is": lambda x, rng: x,
    "cubed": lambda x, rng: x**3,
    "one bit": lambda x, rng: np.sign(x - 0.2),
    "sometimes lost": lambda x, rng: np.where(rng.random(x.shape) < 0.3, rng.normal(size=100), x),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_release_that_keeps_its_claim_fails_no_oftener_than_stated(shape):
    """1,000 audits at an error of 10 %; what is made from a μ-Gaussian release is μ-private too."""
    rng, count = np.random.default_rng(3), {"ranks": 0, "threshold": 0, "together": 0}
    make, error, audits = SHAPES[shape], 0.1, 1000
    claim = dataclasses.replace(REFERENCE, mu=0.9)
    for _ in range(audits):
        zero, one = make(rng.normal(size=100), rng), make(rng.normal(0.9, 1, 100), rng)
        found = judge(zero, one, claim, worlds="", error=error)
        count["ranks"] += found.mu_ranks > claim.mu
        count["threshold"] += found.mu_threshold > claim.mu
        count["together"] += found.violation
    for name, share in (("ranks", 0.8), ("threshold", 0.2), ("together", 1.0)):
        allowed = share * error * audits
        assert count[name] <= allowed + 3 * math.sqrt(allowed), name
    if shape in {"as it is", "cubed"}:
        assert count["ranks"] > 0.6 * 0.8 * error * audits, "a bound that never fails is too weak"


def test_a_thousand_runs_find_half_the_noise():
    rng, audits = np.random.default_rng(4), 400
    found = [
        judge(rng.normal(size=1000), rng.normal(2 * REFERENCE.mu, 1, 1000), REFERENCE, worlds="")
        for _ in range(audits)
    ]
    share = sum(f.violation and f.epsilon_low > 1 for f in found) / audits
    assert share > 0.95
    assert found[0].power == pytest.approx(share, abs=0.02)


def test_the_bound_without_assumption_holds_for_the_worst_noise():
    """Randomised response is (ε, 0)-private, and no Gaussian: its ε may be nearly reached."""
    rng, truth = np.random.default_rng(5), math.exp(2) / (1 + math.exp(2))
    zero, one = (np.where(rng.random(20_000) < truth, b, 1 - b) for b in (0, 1))
    bound = judge(zero, one, dataclasses.replace(REFERENCE, delta=1e-9), worlds="")
    assert 1.8 < bound.epsilon_low_any_noise < 2


# Results and refusals.


def test_a_result_in_words_and_json():
    rng = np.random.default_rng(6)
    zero, one = rng.normal(size=200), rng.normal(REFERENCE.mu, 1, 200)
    passed = judge(zero, one, REFERENCE, worlds="one record replaced")
    failed = judge(zero, one + 3, REFERENCE, worlds="one record replaced")
    assert (passed.violation, failed.violation) == (False, True)
    assert passed.verdict.startswith("no violation found at confidence 99.99 %")
    assert failed.verdict.startswith("VIOLATION: ")
    for result in (passed, failed):
        assert "private" not in " ".join(result.lines()), "which an audit cannot know"
        assert result.lines()[-1] == result.verdict
        stored = json.loads(json.dumps(result.to_dict(), allow_nan=False))
        assert stored["claim"] == {"epsilon": 1.0, "delta": 1e-5, "mu": 0.26805}
        assert (stored["violation"], stored["verdict"]) == (result.violation, result.verdict)
        assert stored["mu_low"] == max(stored["mu_threshold"], stored["mu_ranks"])


def test_equal_values_tell_nothing():
    same = judge(np.ones(100), np.ones(100), REFERENCE, worlds="")
    assert (same.mu_low, same.epsilon_low, same.epsilon_low_any_noise) == (0, 0, 0)
    assert same.mu_estimate is None


@pytest.mark.parametrize("options", [{"runs": 19}, {"error": 0.0}, {"error": 0.5}])
def test_audits_that_show_nothing_are_refused(options):
    with pytest.raises(UserError, match=r"audit needs|error probability"):
        two_worlds(lambda world: pytest.fail("a build was made"), REFERENCE, worlds="", **options)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_statistic_that_is_no_number_is_no_pass(bad):
    with pytest.raises(InternalError, match="finite"):
        two_worlds(lambda world: bad, REFERENCE, worlds="", runs=20)


def test_worlds_take_turns_and_the_direction_is_applied():
    seen, steps = [], []

    def release(world):
        seen.append(world)
        return np.array([len(seen), 5 * world, 0.0])

    result = two_worlds(
        release,
        REFERENCE,
        worlds="",
        direction=np.array([0.0, 2.0, 7.0]),
        runs=30,
        progress=lambda *step: steps.append(step),
    )
    assert seen == [0, 1] * 30
    assert steps[0] == ("builds", 1, 60)
    assert steps[-1] == ("builds", 60, 60)
    assert (result.wins, result.hits, result.false_alarms) == (30**2, result.counted, 0)


# The whole build. Faults are planted in the code that it runs.


@pytest.fixture
def fast(monkeypatch):
    """σ is looked up after the first build: a pure function, and most of a build's time."""
    cached = functools.cache(accounting.noise_multiplier)
    monkeypatch.setattr(accounting, "noise_multiplier", cached)


def run(runs: int, **options):
    return audit_mechanism(runs=runs, on_disk=False, **options)


def halve_sigma(patch) -> None:
    patch.setattr(mechanisms, "_discrete_gaussian", lambda v, scale: REAL_SAMPLER(v, scale // 2))


def forget_the_factor_two(patch) -> None:
    patch.setitem(sensitivity._MULTIPLIERS, NeighbourRelation.REPLACE_ONE, 1)


def forget_to_clip(patch) -> None:
    def cut(values, block_sizes, radii, grid):
        return np.trunc(values.astype(np.float64) / grid).astype(np.int64)

    patch.setattr(mechanisms, "clip_to_grid", cut)


def keep_the_noise(patch) -> None:
    """The draw of the first build serves all others."""
    draws: dict[str, np.ndarray] = {}

    def sampler(values, scale):
        if not draws:
            draws["first"] = REAL_SAMPLER(np.zeros_like(values), scale)
        return values + draws["first"]

    patch.setattr(mechanisms, "_discrete_gaussian", sampler)


def share_the_noise(patch) -> None:
    """One number serves all coordinates."""
    patch.setattr(
        mechanisms,
        "_discrete_gaussian",
        lambda v, scale: v + REAL_SAMPLER(np.zeros(1, np.int64), scale),
    )


def repeat_the_noise_by_layer(patch) -> None:
    def sampler(values, scale):
        return values + np.tile(REAL_SAMPLER(np.zeros(4, np.int64), scale), 2)

    patch.setattr(mechanisms, "_discrete_gaussian", sampler)


def test_a_correct_build_passes(fast):
    result = run(120, epsilon=8.0)
    assert not result.violation, result.verdict
    assert (result.claim.epsilon, result.claim.delta) == (8.0, 1e-5)
    assert result.mu_low > 0.3, "the canary must show something, or the pass says nothing"


def test_a_build_with_centre_weights_and_gains_passes(fast, monkeypatch):
    """As the default has them; without the clip after them it does not pass."""
    weights = np.array([0.5, 1.0, 2.0, 1.0])
    centre = np.array([3, -1, 0, 2, 5, 1, -4, 0.5])

    def learned(model, heads, _tasks, **_):
        return ReleaseGeometry(model.layout, heads, (1.0,), centre, weights, weights)

    monkeypatch.setattr(pipeline, "release_geometry", learned)
    result = run(120, epsilon=8.0)
    assert not result.violation, result.verdict
    assert result.mu_low > 0.3, "the canary must show something, or the pass says nothing"
    forget_to_clip(monkeypatch)
    assert run(40).violation


@pytest.mark.parametrize(
    ("fault", "epsilon", "runs"),
    [
        (halve_sigma, 8.0, 120),
        (forget_the_factor_two, 8.0, 120),
        (forget_to_clip, 1.0, 40),
        (keep_the_noise, 1.0, 40),
        (share_the_noise, 1.0, 40),
        (repeat_the_noise_by_layer, 1.0, 40),
    ],
)
def test_planted_faults_are_found(fault, epsilon, runs, fast, monkeypatch):
    fault(monkeypatch)
    result = run(runs, epsilon=epsilon)
    assert result.violation, result.verdict
    assert result.epsilon_low > epsilon


def distances(relation: str, units: bool, monkeypatch) -> tuple[list[float], float]:
    """How far apart the two worlds are without noise, in the audit's own builds."""
    monkeypatch.setattr(mechanisms, "_discrete_gaussian", lambda values, scale: values.copy())
    found: list[float] = []
    events = []
    plain = mechanism_audit.build_task_vector

    def build(*args, **options):
        vector = plain(*args, **options)
        events.append(vector.certificate.privacy.events[0])
        return vector

    def look(release, claim, *, direction, **_):
        unit = direction / np.linalg.norm(direction)
        # Partitions are random: a fault that shows in half of them hides once in 10^9 runs.
        found.extend(float((release(1) - release(0)) @ unit) for _ in range(30))

    # Neighbours share their partition: with one each, an odd one (once in 4,096) adds to the rest.
    keys = (bytes([n // 2 % 256]) * 32 for n in itertools.count())
    monkeypatch.setattr("dpmtv.pipeline.fresh_key", lambda: next(keys))
    monkeypatch.setattr(mechanism_audit, "build_task_vector", build)
    monkeypatch.setattr(mechanism_audit, "two_worlds", look)
    run(20, relation=relation, units=units)
    return found, events[0].delta2


@pytest.mark.parametrize(("relation", "units"), WORLDS)
def test_the_worlds_are_as_far_apart_as_neighbours_can_be(relation, units, fast, monkeypatch):
    found, delta2 = distances(relation, units, monkeypatch)
    assert max(found) <= delta2 * (1 + 1e-6), "values are float32"
    # Under add_remove the canary is alone in its chunk once in 4,096 builds, and then shows half.
    assert max(found) >= delta2 * (1 - 1e-5)


def divide_by_what_worked(patch) -> None:
    def release(self, chunk_values, charge=None):
        chunks = list(chunk_values)
        worked = sum(chunk is not None for chunk in chunks)
        result = REAL_RELEASE(self, chunks, charge)
        return dataclasses.replace(result, value=result.value * self.chunks / max(worked, 1))

    patch.setattr(GaussianMean, "release", release)


def spread_units_over_chunks(patch) -> None:
    from dpmtv import pipeline

    def scattered(rows, named):
        return [(f"row {i}", [row]) for i, row in enumerate(rows)]

    patch.setattr(pipeline, "rows_of_units", scattered)


@pytest.mark.parametrize(
    ("fault", "relation", "units"),
    [
        (divide_by_what_worked, "zero_out", False),
        (spread_units_over_chunks, "replace_one", True),
        (spread_units_over_chunks, "add_remove", True),
    ],
)
def test_the_worlds_bring_out_faults_of_their_relation(fault, relation, units, fast, monkeypatch):
    fault(monkeypatch)
    found, delta2 = distances(relation, units, monkeypatch)
    assert max(found) > 1.2 * delta2


def test_a_ledger_is_charged_and_the_artifact_read_back(fast, monkeypatch, tmp_path):
    calls = []
    plain_charge, plain_load = Reservation.charge, mechanism_audit.TaskVector.from_pretrained

    def charge(self, event=None):
        calls.append("charge")
        plain_charge(self, event)

    def load(folder):
        calls.append("load")
        return plain_load(folder)

    def look(release, claim, **_):
        return [release(world).dtype for world in (0, 1)]

    monkeypatch.setattr(Reservation, "charge", charge)
    monkeypatch.setattr(mechanism_audit.TaskVector, "from_pretrained", staticmethod(load))
    monkeypatch.setattr(mechanism_audit, "two_worlds", look)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert audit_mechanism(relation="add_remove") == [np.float32] * 2
    assert calls == ["charge", "load"] * 3
    assert list(tmp_path.iterdir()) == [], "nothing stays behind"


def test_a_certificate_that_follows_the_records_is_found(fast, monkeypatch):
    plain = mechanism_audit.build_task_vector

    def counting(model, rows, **options):
        return plain(model, rows, **options | {"population": len({row.unit for row in rows})})

    monkeypatch.setattr(mechanism_audit, "build_task_vector", counting)
    with pytest.raises(InternalError, match="depends on the records"):
        run(20, relation="add_remove")


def test_an_unknown_relation_is_refused():
    with pytest.raises(PrivacyParameterError, match="choose one of"):
        run(20, relation="add_one")
