"""Accounting against 50-digit arithmetic, the published figures, and its pessimistic side."""

from __future__ import annotations

import math
import warnings

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmtv.errors import PrivacyParameterError
from dpmtv.privacy import accounting
from dpmtv.types import GaussianEvent

TABLE = {
    0.1: (17.4043962030, 30.7495661320, 36.3046904262),
    0.5: (4.6101279507, 7.0318266756, 8.0576184807),
    1.0: (2.5746570186, 3.7306316348, 4.2246788893),
    2.0: (1.4452391609, 1.9938124456, 2.2304762712),
    4.0: (0.8230776852, 1.0811618495, 1.1935185872),
    8.0: (0.4800137525, 0.6002290722, 0.6529353844),
}
PAIRS = [
    (epsilon, delta, value)
    for epsilon, row in TABLE.items()
    for delta, value in zip((1e-3, 1e-5, 1e-6), row, strict=True)
]


def exact_delta(multiplier, epsilon) -> mpmath.mpf:
    """Balle and Wang's formula as printed, in 50 digits; the tail leaves 300 digits to lose."""
    with mpmath.workdps(50):
        z, epsilon = mpmath.mpf(multiplier), mpmath.mpf(epsilon)
        shift, half = epsilon * z, 1 / (2 * z)
        return mpmath.ncdf(half - shift) - mpmath.exp(epsilon) * mpmath.ncdf(-half - shift)


def exact_multiplier(epsilon: float, delta: float) -> mpmath.mpf:
    with mpmath.workdps(50):
        low, high = mpmath.mpf("1e-2"), mpmath.mpf(100)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if exact_delta(middle, epsilon) > delta else (low, middle)
        return high


def gaussian(mu: float, d: int = 1, scale: int = 2**40) -> GaussianEvent:
    return GaussianEvent(delta2=mu, sigma=1.0, scale=scale, d=d)


@pytest.mark.parametrize(("epsilon", "delta", "value"), PAIRS)
def test_noise_multiplier_matches_the_table_and_fifty_digits(epsilon, delta, value):
    result = accounting.noise_multiplier(epsilon, delta)
    exact = exact_multiplier(epsilon, delta)
    assert result == pytest.approx(value, rel=1e-9)
    assert result == pytest.approx(float(exact), rel=1e-10)
    assert result >= exact
    assert exact_delta(result, epsilon) <= delta


def test_the_classical_formula_would_under_noise():
    classical = math.sqrt(2 * math.log(1.25 / 1e-3)) / 8
    assert classical < accounting.noise_multiplier(8.0, 1e-3)
    assert accounting.gaussian_delta(classical, 8.0) == pytest.approx(1.313e-3, abs=5e-7)


@given(
    epsilon=st.floats(1e-6, 50),
    log_delta=st.floats(math.log(1e-12), math.log(0.5)),
)
@settings(max_examples=60, deadline=None)
def test_calibration_is_safe_and_tight(epsilon, log_delta):
    delta = math.exp(log_delta)
    multiplier = accounting.noise_multiplier(epsilon, delta)
    assert exact_delta(multiplier, epsilon) <= delta
    assert exact_delta(multiplier * (1 - 1e-6), epsilon) > delta
    assert accounting.gaussian_epsilon(multiplier, delta) <= epsilon


@given(log_multiplier=st.floats(math.log(0.02), math.log(1e4)), epsilon=st.floats(0, 1000))
@settings(max_examples=150, deadline=None)
def test_delta_is_never_below_the_exact_one_and_close(log_multiplier, epsilon):
    multiplier = math.exp(log_multiplier)
    exact = exact_delta(multiplier, epsilon)
    result = accounting.gaussian_delta(multiplier, epsilon)
    if exact > 1e-300:
        assert float(exact) <= result <= float(exact) * (1 + 1e-9)


@given(epsilon=st.floats(1e-3, 50), log_multiplier=st.floats(math.log(0.1), math.log(100)))
@settings(max_examples=60, deadline=None)
def test_epsilon_inverts_delta_from_above(epsilon, log_multiplier):
    multiplier = math.exp(log_multiplier)
    delta = float(exact_delta(multiplier, epsilon))
    if 1e-12 < delta < 0.9:
        result = accounting.gaussian_epsilon(multiplier, delta)
        assert exact_delta(multiplier, result) <= delta
        assert result == pytest.approx(epsilon, rel=1e-6)


def test_the_papers_noise_is_worth_less_under_replacement():
    assert accounting.gaussian_epsilon(3.7306316348 / 2, 1e-5) == pytest.approx(2.1547, abs=5e-5)


def test_limits_of_delta_and_epsilon():
    assert accounting.gaussian_delta(0.0, 1.0) == 1.0
    assert accounting.gaussian_delta(math.nan, 1.0) == 1.0
    assert accounting.gaussian_delta(1e-3, 1.0) == 1.0
    assert accounting.gaussian_epsilon(3.0, 0.0) == math.inf
    assert accounting.gaussian_epsilon(0.0, 1e-5) == math.inf
    assert accounting.gaussian_epsilon(1e-200, 1e-5) == math.inf
    assert accounting.gaussian_epsilon(3.0, math.nan) == math.inf
    assert accounting.gaussian_epsilon(3.0, 1.0) == 0.0
    assert accounting.gaussian_epsilon(1e6, 1e-5) == 0.0


@pytest.mark.parametrize("function", [accounting.noise_multiplier, accounting.check_budget])
def test_unusable_budgets_are_refused_with_advice(function):
    for epsilon in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(PrivacyParameterError, match=r"epsilon must be .* 1 is a common"):
            function(epsilon, 1e-5)
    for delta in (0.0, 1.0, -1e-5, 2.0, math.nan):
        with pytest.raises(PrivacyParameterError, match=r"delta must lie .* choose less than one"):
            function(1.0, delta)


def test_slack_has_its_published_values():
    assert accounting.discreteness_slack(1.0, 131_072, 2**20) == pytest.approx(8.95e-9, rel=1e-3)
    assert accounting.discreteness_slack(8.0, 131_072, 2**20) == pytest.approx(7.2e-6, rel=3e-3)
    assert accounting.discreteness_slack(1.0, 1, 2**19) == math.inf
    assert accounting.discreteness_slack(1e4, 1, 2**20) == math.inf


@pytest.mark.parametrize("scale", [16, 64, 256])
def test_slack_constant_covers_the_distance_from_a_rounded_gaussian(scale):
    with mpmath.workdps(40):
        step, half = mpmath.mpf(1) / scale, mpmath.mpf(1) / 2
        mass = [mpmath.exp(-((k * step) ** 2) / 2) for k in range(12 * scale)]
        total = 2 * mpmath.fsum(mass) - 1
        edges = [mpmath.ncdf(-(k - half) * step) for k in range(12 * scale + 1)]
        gaps = [abs(mass[k] / total - (edges[k] - edges[k + 1])) for k in range(12 * scale)]
        variation = float(mpmath.fsum(gaps) - gaps[0] / 2) * scale**2
    assert 0.0201 < variation < 0.0202


@pytest.mark.parametrize(("epsilon", "d"), [(0.1, 1), (1.0, 131_072), (8.0, 131_072), (20.0, 512)])
def test_grid_scale_is_the_smallest_sufficient_power_of_two(epsilon, d):
    scale = accounting.grid_scale(epsilon, 1e-5, d)
    assert scale.bit_count() == 1
    assert accounting.discreteness_slack(epsilon, d, scale) <= 1e-8
    assert scale == 2**20 or accounting.discreteness_slack(epsilon, d, scale // 2) > 1e-8


def test_grid_scale_refuses_what_integers_cannot_hold():
    with pytest.raises(PrivacyParameterError, match="lower epsilon"):
        accounting.grid_scale(100.0, 1e-5, 1000)


def test_trade_off_curve_at_the_reference_release():
    mu = 1 / accounting.noise_multiplier(1.0, 1e-5)
    assert mu == pytest.approx(0.268, abs=1e-4)
    assert accounting.power_at(mu, 0.05) == pytest.approx(0.0843, abs=5e-5)
    assert accounting.power_at(0.0, 0.05) == pytest.approx(0.05)


def test_mu_is_sensitivity_over_sigma():
    assert accounting.gdp_mu(GaussianEvent(delta2=0.5, sigma=2.0, scale=2**20, d=3)) == 0.25


def test_no_event_is_no_noise():
    assert accounting.epsilon_of([], 1e-5) == math.inf


@given(
    mus=st.lists(st.floats(0.01, 2), min_size=1, max_size=4),
    d=st.integers(1, 10**6),
    log_scale=st.integers(20, 40),
    delta=st.sampled_from([1e-3, 1e-5, 1e-8]),
)
@settings(max_examples=80, deadline=None)
def test_epsilon_of_covers_noise_and_slack_together(mus, d, log_scale, delta):
    events = [gaussian(mu, d, 2**log_scale) for mu in mus]
    epsilon = accounting.epsilon_of(events, delta)
    multiplier = 1 / math.sqrt(math.fsum(mu * mu for mu in mus))
    assert epsilon >= accounting.gaussian_epsilon(multiplier, delta) * (1 - 1e-9)
    if epsilon < math.inf:
        slack = len(mus) * accounting.discreteness_slack(epsilon, d, 2**log_scale)
        assert exact_delta(multiplier, epsilon) + slack <= delta * (1 + 1e-9)


def test_gaussians_compose_exactly():
    together = accounting.epsilon_of([gaussian(0.3), gaussian(0.4)], 1e-5)
    assert together == pytest.approx(accounting.epsilon_of([gaussian(0.5)], 1e-5), rel=1e-12)


def test_slack_above_delta_leaves_no_guarantee():
    assert accounting.epsilon_of([gaussian(0.3, d=10**9, scale=2**20)], 1e-8) == math.inf
    assert accounting.epsilon_of([gaussian(0.3, d=1, scale=2**10)], 1e-5) == math.inf


def test_delta_is_measured_against_the_number_of_records():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accounting.check_delta(1e-5, 1000)
    with pytest.warns(UserWarning, match=r"above 1/\(10 n\)"):
        accounting.check_delta(5e-4, 1000)
    with pytest.raises(PrivacyParameterError, match="not below 1/n"):
        accounting.check_delta(1e-3, 1000)
    with pytest.raises(PrivacyParameterError, match="not below 1/n"):
        accounting.check_delta(math.nan, 1000)
    with pytest.warns(UserWarning, match="is usual"):
        accounting.check_delta(1e-3, 1000, allow_large=True)
    with pytest.raises(PrivacyParameterError, match="no records"):
        accounting.check_delta(1e-5, 0)


def calibrated(epsilon: float, delta: float = 1e-5) -> GaussianEvent:
    return gaussian(1 / accounting.noise_multiplier(epsilon, delta))


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_composition_of_gaussians_is_exact_and_never_below(delta):
    one = calibrated(1.0, delta)
    assert accounting.epsilon_of([one], delta) == pytest.approx(1.0, rel=1e-9)
    for count in (2, 30):
        composed = accounting.epsilon_of([one] * count, delta)
        multiplier = mpmath.sqrt(mpmath.mpf(1) / count) / accounting.gdp_mu(one)
        assert exact_delta(multiplier, composed) <= delta
        assert exact_delta(multiplier, composed - 1e-8) > delta


@given(
    spent=st.lists(st.floats(0.05, 3), min_size=1, max_size=3),
    epsilon=st.floats(0.5, 20),
    log_delta=st.floats(-20, -5),
    d=st.integers(1, 10**5),
)
@settings(max_examples=60, deadline=None)
def test_what_further_epsilon_promises_fits_and_little_more_does_not(spent, epsilon, log_delta, d):
    delta = math.exp(log_delta)
    past = [calibrated(some, delta) for some in spent]
    left = accounting.further_epsilon(past, epsilon, delta)
    assert 0 <= left <= epsilon
    if left > 0:
        scale = accounting.grid_scale(epsilon, delta, d)
        slack = accounting.discreteness_slack(left, d, scale)
        mu = 1 / accounting.noise_multiplier(left, delta - slack)
        assert accounting.epsilon_of([*past, gaussian(mu, d, scale)], delta) <= epsilon
    more = [*past, calibrated(left + 1e-3 * (1 + epsilon), delta)]
    assert accounting.epsilon_of(more, delta) > epsilon


def test_further_epsilon_of_nothing_spent_is_all():
    assert accounting.further_epsilon([], 1.0, 1e-5) == 1.0
    assert accounting.further_epsilon([gaussian(0.3, d=10**9, scale=2**20)], 1.0, 1e-5) == 0.0
