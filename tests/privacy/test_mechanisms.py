"""The Gaussian release: sensitivity, noise, order of payment and noise; and planted faults.

Every check below is a function that must pass on the real code and must fail on a fault that is
planted in it.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import pkgutil
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chi2

import dpmtv.privacy
from dpmtv.errors import InternalError, PrivacyParameterError
from dpmtv.privacy import accounting, mechanisms, sensitivity
from dpmtv.privacy.clipping import clip_to_grid
from dpmtv.privacy.mechanisms import GaussianMean, calibrate, clipped_mean
from dpmtv.privacy.sensitivity import NeighbourRelation, l2_sensitivity

FALSE_ALARM = 1e-6
REAL_SAMPLER = mechanisms._discrete_gaussian
REAL_RELEASE = GaussianMean.release


def make(**changes) -> GaussianMean:
    parameters = {
        "epsilon": 1.0,
        "delta": 1e-5,
        "relation": NeighbourRelation.REPLACE_ONE,
        "chunks": 5,
        "clip_norms": [1.5, 0.25, 4.0],
        "block_sizes": [3, 1, 2],
    }
    return calibrate(**(parameters | changes))


@pytest.fixture
def silent(monkeypatch):
    """Replace the sampler: no noise, so that the sum shows."""
    monkeypatch.setattr(mechanisms, "_discrete_gaussian", lambda values, scale: values.copy())


def units(mechanism: GaussianMean, chunks) -> np.ndarray:
    """The sum in grid units, read back from a release without noise."""
    value = mechanism.release(chunks).value
    return np.rint(value * mechanism.chunks / mechanism.grid).astype(np.int64)


# Checks: each takes no argument, draws its own data and asserts.


def check_sensitivity() -> None:
    """Adversarial neighbours reach Δ₂ within a millionth and never pass it, in exact integers."""
    rng = np.random.default_rng(1)
    for relation in NeighbourRelation:
        mechanism = make(relation=relation)
        # What the noise was calibrated for, as integers see it: S/z, and z from fifty-digit tests.
        multiplier = accounting.noise_multiplier(
            1.0, 1e-5 - accounting.discreteness_slack(1.0, 6, mechanism.scale)
        )
        bound = Fraction(mechanism.scale) / Fraction(multiplier)
        best = 0
        for _ in range(200):
            chunks = [rng.normal(size=6) * 10.0 ** rng.integers(-2, 6) for _ in range(5)]
            one, other = neighbours(rng, relation)
            j = int(rng.integers(5))
            sums = [
                units(mechanism, [*chunks[:j], chunk, *chunks[j + 1 :]]) for chunk in (one, other)
            ]
            square = sum(u * u for u in (sums[0] - sums[1]).tolist())
            assert square <= bound**2
            best = max(best, square)
        assert best >= (Fraction(1) - Fraction(1, 10**6)) ** 2 * bound**2


def neighbours(rng: np.random.Generator, relation: NeighbourRelation):
    """One chunk in two worlds: on the sphere of every block (or far outside), and its worst."""
    one = np.zeros(6)
    for start, size, radius in ((0, 3, 1.5), (3, 1, 0.25), (4, 2, 4.0)):
        factor = rng.choice([1.0, 1e3, 1e200])
        if rng.random() < 0.5:
            one[start + rng.integers(size)] = radius * factor
        else:
            direction = rng.normal(size=size)
            one[start : start + size] = direction / np.linalg.norm(direction) * radius * factor
    return one, (None if relation is NeighbourRelation.ZERO_OUT else -one)


def check_noise() -> None:
    """Chi-square on the released noise, both sides, through the real release."""
    d = 3600
    mechanism = make(chunks=2, clip_norms=[1.0], block_sizes=[d])
    value = mechanism.release([None, None]).value
    statistic = float(np.square(value / mechanism.event.sigma).sum())
    assert chi2.ppf(FALSE_ALARM / 2, d) < statistic < chi2.isf(FALSE_ALARM / 2, d)


def check_a_bad_value_makes_the_chunk_null() -> None:
    mechanism = make()
    good = [np.ones(6) for _ in range(4)]
    for bad in (np.nan, np.inf, -np.inf):
        broken = np.ones(6)
        broken[2] = bad
        assert (units(mechanism, [*good, broken]) == units(mechanism, [*good, None])).all()


def check_divisor_is_public() -> None:
    mechanism = make()
    chunk = np.array([0.5, 0, 0, 0.1, 1, 1])
    expected = clip_to_grid(chunk, [3, 1, 2], mechanism.radii, mechanism.grid) * mechanism.grid / 5
    assert mechanism.release([None, chunk, None, None, None]).value == pytest.approx(expected)


def check_payment_comes_before_noise() -> None:
    order = []
    sampler = mechanisms._discrete_gaussian

    def recording(values, scale):
        order.append("noise")
        return sampler(values, scale)

    mechanisms._discrete_gaussian = recording
    try:
        make().release([None] * 5, charge=lambda event: order.append(event))
    finally:
        mechanisms._discrete_gaussian = sampler
    assert order == [make().event, "noise"]


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    "check", [check_sensitivity, check_a_bad_value_makes_the_chunk_null, check_divisor_is_public]
)
def test_checks_on_the_sum_pass(check):
    check()


@pytest.mark.parametrize("check", [check_noise, check_payment_comes_before_noise])
def test_checks_on_the_noise_pass(check):
    check()


# Planted faults.


def halve_sigma(patch) -> None:
    patch.setattr(mechanisms, "_discrete_gaussian", lambda v, scale: REAL_SAMPLER(v, scale // 2))


def forget_the_factor_two(patch) -> None:
    patch.setitem(sensitivity._MULTIPLIERS, NeighbourRelation.REPLACE_ONE, 1)


def forget_to_clip(patch) -> None:
    def cut(values, block_sizes, radii, grid):
        return np.trunc(np.clip(values / grid, -(2**60), 2**60)).astype(np.int64)

    patch.setattr(mechanisms, "clip_to_grid", cut)


def clip_in_floats(patch) -> None:
    """Blocks scaled and rounded in floating point, without the exact check."""

    def scaled(values, block_sizes, radii, grid):
        parts = np.split(values, np.cumsum(block_sizes)[:-1])
        factors = [
            min(1 / grid, r / max(np.linalg.norm(p / np.abs(p).max()) * np.abs(p).max(), 1e-300))
            for p, r in zip(parts, radii, strict=True)
        ]
        return np.concatenate(
            [np.rint(p * f * (1 + 1e-6)) for p, f in zip(parts, factors, strict=True)]
        ).astype(np.int64)

    patch.setattr(mechanisms, "clip_to_grid", scaled)


def let_nan_pass(patch) -> None:
    """Only the bad coordinate becomes zero; the rest of the chunk still counts."""

    def lenient(values, block_sizes, radii, grid):
        return clip_to_grid(np.nan_to_num(values, posinf=0, neginf=0), block_sizes, radii, grid)

    patch.setattr(mechanisms, "clip_to_grid", lenient)


def divide_by_what_worked(patch) -> None:
    def release(self, chunk_values, charge=None):
        chunks = list(chunk_values)
        worked = sum(chunk is not None for chunk in chunks)
        result = REAL_RELEASE(self, chunks, charge)
        return dataclasses.replace(result, value=result.value * self.chunks / max(worked, 1))

    patch.setattr(GaussianMean, "release", release)


def draw_before_paying(patch) -> None:
    def release(self, chunk_values, charge=None):
        result = REAL_RELEASE(self, chunk_values)
        charge(result.event)
        return result

    patch.setattr(GaussianMean, "release", release)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (forget_the_factor_two, check_sensitivity),
        (forget_to_clip, check_sensitivity),
        (clip_in_floats, check_sensitivity),
        (let_nan_pass, check_a_bad_value_makes_the_chunk_null),
        (divide_by_what_worked, check_divisor_is_public),
    ],
)
def test_planted_faults_in_the_sum_are_caught(fault, check, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check()


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (halve_sigma, check_noise),
        (draw_before_paying, check_payment_comes_before_noise),
    ],
)
def test_planted_faults_in_the_noise_are_caught(fault, check, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check()


# The rest of the contract.


def test_a_refused_charge_prevents_the_noise(monkeypatch):
    def never(values, scale):
        pytest.fail("noise was drawn")

    def refuse(event):
        raise PrivacyParameterError("the budget is spent")

    monkeypatch.setattr(mechanisms, "_discrete_gaussian", never)
    with pytest.raises(PrivacyParameterError, match="the budget is spent"):
        make().release([None] * 5, charge=refuse)


def test_the_release_carries_its_event():
    mechanism = make()
    event = mechanism.release([None] * 5).event
    assert event == mechanism.event
    assert event.d == 6
    assert event.delta2 == l2_sensitivity(mechanism.relation, mechanism.clip_norms, 5)
    assert event.sigma == mechanism.scale * mechanism.grid / 5
    assert accounting.epsilon_of([event], 1e-5) == pytest.approx(1.0, rel=1e-9)
    assert accounting.epsilon_of([event], 1e-5) <= 1.0


@pytest.mark.parametrize("relation", NeighbourRelation)
@pytest.mark.parametrize("epsilon", [1e-4, 0.1, 1.0, 8.0, 30.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-10])
@pytest.mark.parametrize("shape", [([1.0], [1]), ([3e-4] * 32, [4096] * 32), ([1e-6, 1.0], [2, 9])])
def test_calibration_keeps_its_promise_in_exact_integers(relation, epsilon, delta, shape):
    clip_norms, block_sizes = shape
    mechanism = make(
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        chunks=100,
        clip_norms=clip_norms,
        block_sizes=block_sizes,
    )
    d = sum(block_sizes)
    assert mechanism.scale >= 2**20
    assert mechanism.scale.bit_count() == 1
    assert min(mechanism.radii) >= 2**22 - 1 or mechanism.scale == 2**50
    for radius, norm in zip(mechanism.radii, mechanism.clip_norms, strict=True):
        assert radius * Fraction(mechanism.grid) <= norm < (radius + 1) * Fraction(mechanism.grid)
    slack = accounting.discreteness_slack(epsilon, d, mechanism.scale)
    assert slack <= delta / 1000
    multiplier = Fraction(accounting.noise_multiplier(epsilon, delta - slack))
    reach = 1 if relation is NeighbourRelation.ZERO_OUT else 2
    in_units = sum(r * r for r in mechanism.radii) * reach**2
    assert in_units * multiplier**2 <= mechanism.scale**2
    assert accounting.epsilon_of([mechanism.event], delta) <= epsilon


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"epsilon": math.nan}, "epsilon must be"),
        ({"epsilon": 47.0, "delta": 1e-12}, "64-bit"),
        ({"epsilon": 500.0}, "lower epsilon"),
        ({"delta": 0.0}, "delta must lie"),
        ({"chunks": 0}, "at least 1"),
        ({"chunks": 2**60}, "64-bit"),
        ({"clip_norms": [1.0, math.nan, 1.0]}, "clip norms must be positive"),
        ({"clip_norms": [1.0, 0.0, 1.0]}, "clip norms must be positive"),
        ({"clip_norms": [1.0, 1e-100, 1.0]}, "too far apart"),
        ({"clip_norms": [1e200, 1e-200, 1.0]}, "too far apart"),
        ({"clip_norms": [1.0]}, "every block"),
        ({"block_sizes": [3, 0, 2]}, "every block"),
    ],
)
def test_unusable_parameters_are_refused(changes, message):
    with pytest.raises(PrivacyParameterError, match=message):
        make(**changes)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: {"grid": m.grid / 2},
        lambda m: {"scale": m.scale // 2},
        lambda m: {"epsilon": 0.99},
        lambda m: {"delta": 0.99e-5},
        lambda m: {"clip_norms": (1.6, 0.25, 4.0)},
        lambda m: {"grid": math.nan},
        lambda m: {"grid": 5.0},
        lambda m: {"epsilon": math.nan},
        lambda m: {"delta": math.nan},
        lambda m: {"scale": 2**10, "grid": m.grid * m.scale / 2**10},
    ],
)
def test_a_promise_that_the_noise_does_not_keep_cannot_be_made(change):
    mechanism = make()
    with pytest.raises(PrivacyParameterError):
        dataclasses.replace(mechanism, **change(mechanism))


@pytest.mark.parametrize("count", [0, 4, 6, 7])
def test_exactly_the_announced_chunks_are_wanted(count):
    with pytest.raises(InternalError, match="than the 5 chunks"):
        make().release(iter([None] * count))
    with pytest.raises(InternalError, match="than the 5 chunks"):
        clipped_mean([None] * count, chunks=5, clip_norms=[1.0], block_sizes=[6])


def test_chunks_are_streamed():
    alive = []

    def stream():
        for j in range(5):
            alive.append(j)
            yield np.full(6, float(j))

    make().release(stream())
    assert alive == [0, 1, 2, 3, 4]


def test_the_sampler_is_64_bit_exact_and_unseeded():
    values = np.array([2**55, -(2**55)] * 50, np.int64)
    first, second = (REAL_SAMPLER(values, 2**40) for _ in range(2))
    assert (first != second).any()
    assert first.dtype == np.int64
    assert (np.abs(first - values) < 64 * 2**40).all()
    assert np.abs(first - values).max() > 2**38


@pytest.mark.usefixtures("silent")
def test_the_baseline_is_the_same_mean_without_noise():
    rng = np.random.default_rng(2)
    chunks = [rng.normal(size=6) * 10.0**k for k in range(-2, 2)] + [None]
    mechanism = make()
    bare = clipped_mean(chunks, chunks=5, clip_norms=[1.5, 0.25, 4.0], block_sizes=[3, 1, 2])
    assert bare.event is None
    assert bare.value == pytest.approx(mechanism.release(chunks).value, abs=1e-5)
    assert "NOT PRIVATE" in clipped_mean.__doc__


def test_the_baseline_refuses_sums_beyond_its_integers():
    with pytest.raises(InternalError, match="64-bit"):
        clipped_mean([], chunks=2**30, clip_norms=[1.0], block_sizes=[1])
    with pytest.raises(PrivacyParameterError):
        clipped_mean([], chunks=1, clip_norms=[math.inf], block_sizes=[1])


def room():
    for module in pkgutil.iter_modules(dpmtv.privacy.__path__):
        yield importlib.import_module(f"dpmtv.privacy.{module.name}")


def test_nothing_in_the_room_takes_a_seed():
    parameters = {
        name.lower()
        for module in room()
        for _, item in inspect.getmembers(module)
        for _, function in [("", item), *inspect.getmembers(item, inspect.isfunction)]
        if inspect.isfunction(function) and function.__module__.startswith("dpmtv")
        for name in inspect.signature(function).parameters
    }
    assert {"epsilon", "chunk_values", "scale"} <= parameters
    assert not {name for name in parameters if "seed" in name or "rng" in name}
    for module in room():
        source = inspect.getsource(module)
        assert not any(word in source for word in ("np.random", "import random", "torch"))
