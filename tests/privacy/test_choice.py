"""Private choice: the draw, the scores' sensitivity, and what picks cost with everything else."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import chi2

from dpmtv.errors import InternalError, PrivacyParameterError
from dpmtv.privacy import accounting, bounded_range, choice
from dpmtv.privacy.choice import clipped_scores, exponential_mechanism
from dpmtv.privacy.mechanisms import calibrate
from dpmtv.privacy.sensitivity import NeighbourRelation
from dpmtv.types import BoundedRangeEvent, GaussianEvent

FALSE_ALARM = 1e-6
REFERENCE = 3.7306316348  # σ/Δ of (1, 1e-5) alone


def pick(range_: float, count: int = 1) -> BoundedRangeEvent:
    return BoundedRangeEvent(range=range_, count=count)


def gaussian(multiplier: float) -> GaussianEvent:
    return GaussianEvent(delta2=1.0, sigma=multiplier, scale=2**50, d=1)


# --- the draw ------------------------------------------------------------------------------


def check_law(monotone: bool = False, draws: int = 3000) -> None:
    """Picks follow softmax(score · E / 2Δ), or of E/Δ for monotone scores: chi-square."""
    scores, sensitivity, range_ = np.array([0, 500, 1000, 2500, -700, 2400]), 1000, 1.6
    chances = np.exp(scores * range_ / (sensitivity if monotone else 2 * sensitivity))
    expected = draws * chances / chances.sum()
    found = np.bincount(
        [
            exponential_mechanism(
                scores, sensitivity=sensitivity, range_=range_, monotone=monotone
            ).index
            for _ in range(draws)
        ],
        minlength=len(scores),
    )
    statistic = float(np.sum((found - expected) ** 2 / expected))
    assert statistic < chi2.isf(FALSE_ALARM, len(scores) - 1), "not the exponential mechanism"


@pytest.mark.parametrize("monotone", [False, True])
def test_picks_follow_the_exponential_mechanism(monotone):
    check_law(monotone)


def exponential_noise(patch) -> None:
    """OpenDP's noise for the other measure: the law of permute-and-flip."""
    import opendp.prelude as dp

    patch.setattr(dp, "zero_concentrated_divergence", dp.max_divergence)


def scale_of_monotone_scores(patch) -> None:
    real = choice._noisy_max
    patch.setattr(choice, "_noisy_max", lambda scores, scale: real(scores, scale / 2))


@pytest.mark.parametrize("fault", [exponential_noise, scale_of_monotone_scores])
def test_planted_faults_in_the_draw_are_caught(fault, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(AssertionError, match="not the exponential mechanism"):
        check_law(draws=9000)  # 3,000 miss the first fault in one run of eight


def test_scores_of_64_bits_and_one_option():
    large = np.array([2**62, 2**62 - 2**50, -(2**63)])
    for _ in range(20):
        assert exponential_mechanism(large, sensitivity=2**20, range_=0.1).index == 0
    assert exponential_mechanism(np.array([-5]), sensitivity=1, range_=1e-9).index == 0


def check_payment_comes_before_the_draw() -> None:
    order = []
    draw = choice._noisy_max
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "_noisy_max", lambda *args: order.append("draw") or draw(*args))
        exponential_mechanism(
            np.array([0, 1]), sensitivity=1, range_=0.5, charge=lambda event: order.append(event)
        )
    assert order == [pick(0.5), "draw"]


def test_payment_comes_before_the_draw():
    check_payment_comes_before_the_draw()


def test_a_refused_charge_prevents_the_draw(monkeypatch):
    def refuse(event):
        raise PrivacyParameterError("the budget is spent")

    monkeypatch.setattr(choice, "_noisy_max", lambda *_: pytest.fail("drawn"))
    with pytest.raises(PrivacyParameterError, match="the budget is spent"):
        exponential_mechanism(np.array([0, 1]), sensitivity=1, range_=0.5, charge=refuse)


@given(
    range_=st.floats(1e-6, 50),
    sensitivity=st.integers(1, 2**40),
    monotone=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_the_scale_never_exceeds_the_stated_range(range_, sensitivity, monotone):
    scales = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "_noisy_max", lambda _, scale: scales.append(scale) or 0)
        exponential_mechanism(
            np.array([0, 0]), sensitivity=sensitivity, range_=range_, monotone=monotone
        )
    needed = Fraction(sensitivity) * (1 if monotone else 2)
    real = needed / Fraction(scales[0])
    assert Fraction(range_) * (1 - Fraction(1, 10**15)) <= real <= Fraction(range_)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"sensitivity": 0}, PrivacyParameterError, "sensitivity must be at least 1"),
        ({"range_": 0.0}, PrivacyParameterError, "range must be a positive"),
        ({"range_": math.nan}, PrivacyParameterError, "range must be a positive"),
        ({"range_": math.inf}, PrivacyParameterError, "range must be a positive"),
        ({"range_": 1e-300}, PrivacyParameterError, "too much noise; raise it"),
        ({"scores": np.array([], np.int64)}, InternalError, "no option"),
    ],
)
def test_unusable_choices_are_refused(changes, error, message):
    usual = {"scores": np.array([0, 1]), "sensitivity": 1, "range_": 1.0}
    arguments = usual | changes
    with pytest.raises(error, match=message):
        exponential_mechanism(arguments.pop("scores"), **arguments)


# --- scores --------------------------------------------------------------------------------

NUMBERS = st.one_of(
    st.floats(-2, 3),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 0.7, 1.5]),
)


def check_sensitivity_of_scores(units: int = 4, options: int = 3) -> None:
    """Neighbours' sums differ by at most Δ, reach it, and rise when a unit is added."""
    best = 0

    @given(
        st.lists(
            st.lists(NUMBERS, min_size=options, max_size=options),
            min_size=units + 1,
            max_size=units + 1,
        ),
        st.sampled_from([0.7, 1.5, 1e-300, 1e300]),
        st.sampled_from([1, 7, 2**20, 2**50]),
        st.integers(0, units - 1),
    )
    @settings(
        max_examples=300,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
    )
    def check(rows, bound, levels, place):
        nonlocal best
        one = np.array(rows[:units])
        other = one.copy()
        other[place] = rows[units]
        fewer = np.delete(one, place, axis=0)
        sums = [clipped_scores(data, bound, levels) for data in (one, other, fewer)]
        assert all(total.dtype == np.int64 for total in sums)
        moved = int(np.abs(sums[0] - sums[1]).max())
        assert moved <= levels, "farther than the sensitivity"
        gained = sums[0] - sums[2]
        assert gained.min() >= 0, "not monotone"
        assert gained.max() <= levels, "farther than the sensitivity"
        best = max(best, moved if levels == 2**20 else 0)

    check()
    assert best == 2**20


def test_the_scores_have_the_stated_sensitivity():
    check_sensitivity_of_scores()


def forget_to_clip_scores(patch) -> None:
    patch.setattr(choice.np, "clip", lambda values, low, high: values)


def nan_as_the_largest(patch) -> None:
    """The bad score counts in full, with the others: not a fault of the sum, but of the row."""
    patch.setattr(choice.np, "isfinite", lambda values: np.ones(values.shape, bool))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("fault", [forget_to_clip_scores, nan_as_the_largest])
def test_planted_faults_in_the_scores_are_caught(fault, monkeypatch):
    fault(monkeypatch)
    with pytest.raises((AssertionError, ExceptionGroup)):
        check_sensitivity_of_scores()


def test_scores_are_cut_toward_zero_and_bad_rows_count_as_nothing():
    rows = np.array([[0.25, 0.9, -3.0], [math.nan, 0.5, 0.5], [2.0, 0.999, 1.0]])
    assert clipped_scores(rows, 1.0, 4).tolist() == [1 + 4, 3 + 3, 0 + 4]
    assert clipped_scores(np.zeros((0, 3)), 1.0).tolist() == [0, 0, 0]
    for bound in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(PrivacyParameterError, match="bound must be"):
            clipped_scores(rows, bound)
    for levels in (0, 2**51):
        with pytest.raises(PrivacyParameterError, match="levels must"):
            clipped_scores(rows, 1.0, levels)
    with pytest.raises(InternalError, match="64-bit"):
        clipped_scores(np.zeros((2**13, 1)), 1.0, 2**50)


def test_a_histogram_is_a_mean_of_one_hot_vectors():
    """One block of clip norm 1: nothing new is needed, and a unit that is none of these is None."""
    answers = [0, 2, None, 2, 2, 1] * 50
    rows = [None if a is None else np.eye(3)[a] for a in answers]
    mechanism = calibrate(
        epsilon=1.0,
        delta=1e-5,
        relation=NeighbourRelation.REPLACE_ONE,
        chunks=len(rows),
        clip_norms=[1.0],
        block_sizes=[3],
    )
    counts = mechanism.release(rows).value * len(rows)
    sigma = mechanism.event.sigma * len(rows)
    assert sigma == pytest.approx(2 * REFERENCE, rel=1e-3)  # 2, where √2 would do
    assert np.abs(counts - [50, 50, 150]).max() < 7 * sigma


# --- what picks cost -----------------------------------------------------------------------


@pytest.mark.parametrize("range_", [1e-3, 0.1, 1.0, 7.0])
def test_the_worst_curve_is_reached_by_a_pair_and_passed_by_none(range_):
    """Two-point pairs whose losses are t and t − E; and the curve's own pair is symmetric."""
    for epsilon in np.linspace(-1.2, 1.2, 49) * range_:
        curve = bounded_range.worst_delta(range_, epsilon)
        best = 0.0
        middle = (epsilon + range_) / 2
        for t in [*np.linspace(0, range_, 101), min(max(middle, 0), range_)]:
            first = np.array([-math.expm1(t - range_), 0]) / -math.expm1(-range_)
            first[1] = 1 - first[0]  # P of the losses t and t − E; Q is P e^(−loss)
            second = first * np.exp([-t, range_ - t])
            assert second.sum() == pytest.approx(1, rel=1e-9)
            best = max(best, float(np.maximum(0, first - math.exp(epsilon) * second).sum()))
        assert best <= curve * (1 + 1e-9) + 1e-15
        assert best == pytest.approx(curve, rel=1e-9, abs=1e-15)
        mirrored = bounded_range.worst_delta(range_, -epsilon)
        assert curve == pytest.approx(
            -math.expm1(epsilon) + math.exp(epsilon) * mirrored, rel=1e-9, abs=1e-14
        )
    assert bounded_range.worst_delta(range_, 0.0) == pytest.approx(math.tanh(range_ / 4))


@given(
    scores=st.lists(st.integers(-60, 60), min_size=2, max_size=8),
    moves=st.lists(st.integers(-4, 4), min_size=8, max_size=8),
    scale=st.floats(0.5, 200),
    place=st.floats(-1, 1),
)
@settings(max_examples=300, deadline=None)
def test_no_exponential_mechanism_passes_the_worst_curve(scores, moves, scale, place):
    """Random scores and neighbours of them, Δ = 4; monotone ones have half the range."""
    for clipped, share in ((moves, 2), ([abs(m) for m in moves], 1)):
        range_ = share * 4 / scale
        laws = []
        for shift in (0, 1):
            values = np.array([s + shift * m for s, m in zip(scores, clipped, strict=False)])
            weights = np.exp((values - values.max()) / scale)
            laws.append(weights / weights.sum())
        for one, other in (laws, laws[::-1]):
            delta = float(np.maximum(0, one - math.exp(place * range_) * other).sum())
            assert delta <= bounded_range.worst_delta(range_, place * range_) * (1 + 1e-9) + 1e-12


@given(range_=st.floats(1e-6, 20), place=st.floats(-1.1, 1.1))
@settings(max_examples=100, deadline=None)
def test_the_losses_of_a_pick_are_never_below_the_curve_and_close(range_, place):
    losses = bounded_range.losses_of([pick(range_)])
    curve = bounded_range.worst_delta(range_, place * range_)
    assert losses.masses.sum() == pytest.approx(1, rel=1e-12)
    assert losses.masses @ np.exp(-losses.values) == pytest.approx(1, rel=1e-9)
    assert curve <= losses.delta(place * range_) * (1 + 1e-12) + 1e-15
    assert losses.delta(place * range_) <= curve + 2.0**-14


@pytest.mark.parametrize("picks", [[pick(0.3, 3)], [pick(0.2), pick(1.1), pick(1e-5, 2)]])
def test_sums_of_losses_are_those_of_plain_convolutions(picks):
    together = bounded_range.losses_of(picks)
    plain = np.ones(1)
    for event in picks:
        for _ in range(event.count):
            plain = np.convolve(plain, bounded_range.losses_of([pick(event.range)]).masses)
    assert len(plain) == len(together.masses)
    assert np.abs(plain - together.masses).sum() < together.lost < 1e-12


@pytest.mark.parametrize("picks", [[pick(0.2)], [pick(0.5, 4)], [pick(0.1), pick(1.0)]])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
def test_an_independent_accountant_agrees(picks, delta):
    """dp-accounting: the curve discretised by its connect-the-dots, composed by its transform."""
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld

    step = 1e-4
    theirs = pld.from_gaussian_mechanism(REFERENCE, value_discretization_interval=step)
    for event in picks:
        reach = math.ceil(event.range / step - 1e-9)
        deltas = [
            bounded_range.worst_delta(event.range, i * step) for i in range(-reach, reach + 1)
        ]
        one = pld.PrivacyLossDistribution(
            pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, -reach, reach, deltas)
        )
        for _ in range(event.count):
            theirs = theirs.compose(one)
    ours = accounting.epsilon_of([gaussian(REFERENCE), *picks], delta)
    assert ours == pytest.approx(float(theirs.get_epsilon_for_delta(delta)), abs=1e-4)


def exact_delta(range_: float, multiplier: float, epsilon: float) -> float:
    """Of one pick and one Gaussian: the pick's density of losses against the Gaussian's δ."""

    def part(loss: float) -> float:
        density = math.exp((loss - range_) / 2) / (-2 * math.expm1(-range_))
        return density * accounting.gaussian_delta(multiplier, epsilon - loss)

    return float(quad(part, -range_, range_, epsabs=0, epsrel=1e-9, limit=200)[0])


@pytest.mark.parametrize(
    ("range_", "epsilon"), [(0.1, 1.02388), (0.2, 1.08243), (0.5, 1.32761), (1.0, 1.79272)]
)
def test_a_gaussian_and_a_pick_cost_the_reference(range_, epsilon):
    found = accounting.epsilon_of([gaussian(REFERENCE), pick(range_)], 1e-5)
    assert found == pytest.approx(epsilon, abs=1e-4)
    assert exact_delta(range_, REFERENCE, found) <= 1e-5
    assert exact_delta(range_, REFERENCE, found - 1e-4) > 1e-5


@pytest.mark.parametrize(
    ("range_", "multiplier", "basic"),
    [
        (0.05, 3.75213, 3.9091),
        (0.1, 3.81514, 4.1066),
        (0.2, 4.05093, 4.5728),
        (0.5, 5.64403, 7.0318),
    ],
)
def test_noise_beside_a_pick_is_the_reference(range_, multiplier, basic):
    found = accounting.gaussian_beside([pick(range_)], 1.0, 1e-5)
    assert found == pytest.approx(multiplier, rel=1e-3)
    assert accounting.epsilon_of([gaussian(found), pick(range_)], 1e-5) <= 1
    assert accounting.epsilon_of([gaussian(found * (1 - 1e-6)), pick(range_)], 1e-5) > 1
    assert exact_delta(range_, found, 1.0) <= 1e-5
    if range_ == 0.05:  # basic composition, which takes E as pure privacy
        assert accounting.noise_multiplier(0.95, 1e-5) == pytest.approx(basic, rel=1e-4)
    assert found < basic


def test_picks_alone_and_the_ends_of_the_range():
    assert accounting.epsilon_of([pick(0.5)], 1e-12) == pytest.approx(0.5, abs=1e-4)
    assert accounting.epsilon_of([pick(0.5)], 0.2) == 0.0  # tanh(1/8) = 0.124
    # Bounded range composes better than pure privacy: kE²/8 instead of kE²/2 for many picks.
    assert accounting.epsilon_of([pick(0.1, 100)], 1e-5) < 3
    for bad in (pick(0.0), pick(-1.0), pick(math.nan), pick(math.inf), pick(1.0, 0), pick(51.0, 2)):
        assert accounting.epsilon_of([gaussian(4.0), bad], 1e-5) == math.inf
        assert accounting.further_epsilon([gaussian(4.0), bad], 1.0, 1e-5) == 0
    assert accounting.epsilon_of([pick(1e-6, 10**9)], 1e-5) == math.inf
    assert accounting.epsilon_of([gaussian(0.01), pick(0.1)], 1e-5) == math.inf
    assert accounting.gaussian_beside([], 1.0, 1e-5) == accounting.noise_multiplier(1.0, 1e-5)
    for much in (pick(1.1), pick(101.0)):
        with pytest.raises(PrivacyParameterError, match="choices leave nothing"):
            accounting.gaussian_beside([much], 1.0, 1e-5)


@given(
    range_=st.floats(0.01, 0.5),
    count=st.integers(1, 2),
    multiplier=st.floats(1.0, 20),
    epsilon=st.floats(1, 6),
)
@settings(max_examples=10, deadline=None)
def test_what_is_left_beside_picks_fits_and_little_more_does_not(
    range_, count, multiplier, epsilon
):
    past = [gaussian(multiplier), pick(range_, count)]
    left = accounting.further_epsilon(past, epsilon, 1e-5)
    if left > 0:
        further = gaussian(accounting.noise_multiplier(left, 0.999e-5))
        assert accounting.epsilon_of([*past, further], 1e-5) <= epsilon
    further = gaussian(accounting.noise_multiplier(left + 1e-3 * (1 + epsilon), 1e-5))
    assert accounting.epsilon_of([*past, further], 1e-5) > epsilon


@pytest.mark.parametrize("range_", [1e-6, 0.01, 0.3, 1.0, 4.0, 20.0])
def test_a_gaussian_of_the_same_total_variation_dominates_a_pick(range_):
    mu = bounded_range.range_mu(range_)
    for epsilon in np.linspace(0, range_, 200):
        curve = bounded_range.worst_delta(range_, epsilon)
        assert accounting.gaussian_delta(1 / mu, epsilon) >= curve * (1 - 1e-12)
    assert accounting.gaussian_delta(1 / mu, 0.0) == pytest.approx(math.tanh(range_ / 4), rel=1e-9)


@pytest.mark.parametrize("range_", [1e-3, 1.0, 30.0, 60.0, 74.0, 200.0])
def test_the_mu_of_a_range_is_rounded_up_at_fifty_digits(range_):
    import mpmath

    with mpmath.workdps(60):
        share = 1 / (1 + mpmath.exp(mpmath.mpf(range_) / 2))  # Φ(−μ/2)
        mu = -2 * mpmath.findroot(
            lambda x: mpmath.log(mpmath.erfc(-x / mpmath.sqrt(2)) / 2) - mpmath.log(share),
            -bounded_range.range_mu(range_) / 2,
        )
        assert 0 <= bounded_range.range_mu(range_) / mu - 1 < 3e-12


def test_sizes_that_are_chosen_on_the_way_count_as_gaussians():
    as_gaussian = accounting.as_gaussian(pick(0.3, 4))
    assert accounting.gdp_mu(as_gaussian) == accounting.gdp_mu(pick(0.3, 4))
    assert accounting.gdp_mu(pick(0.3, 4)) == pytest.approx(2 * bounded_range.range_mu(0.3))
    assert accounting.as_gaussian(gaussian(4.0)) == gaussian(4.0)
    dearer = accounting.epsilon_of([gaussian(4.0), as_gaussian], 1e-5)
    assert accounting.epsilon_of([gaussian(4.0), pick(0.3, 4)], 1e-5) < dearer
    assert bounded_range.range_mu(90.0) < math.inf


# --- a release beside picks ----------------------------------------------------------------


def test_a_mean_beside_picks_keeps_the_promise_for_all():
    shape = {"chunks": 5, "clip_norms": [1.0, 2.0], "block_sizes": [3, 2]}
    terms = {"epsilon": 1.0, "delta": 1e-5, "relation": NeighbourRelation.REPLACE_ONE}
    alone = calibrate(**terms, **shape)
    assert alone == calibrate(**terms, **shape, beside=[])
    mechanism = calibrate(**terms, **shape, beside=[pick(0.2), pick(0.1)])
    assert mechanism.events == (mechanism.event, pick(0.2), pick(0.1))
    assert accounting.epsilon_of(mechanism.events, 1e-5) == pytest.approx(1, rel=1e-9)
    assert mechanism.event.sigma > 1.08 * alone.event.sigma
    assert mechanism.release([None] * 5).event == mechanism.event
    for change in (
        {"beside": (pick(0.21), pick(0.1))},
        {"beside": (pick(0.2, 2), pick(0.1))},
        {"beside": (*mechanism.beside, pick(math.nan))},
        {"grid": mechanism.grid * 0.999},
        {"epsilon": 0.999},
    ):
        with pytest.raises(PrivacyParameterError, match="noise is too small"):
            dataclasses.replace(mechanism, **change)
    with pytest.raises(PrivacyParameterError, match="noise is too small"):
        dataclasses.replace(alone, beside=(pick(0.01),))


def exact_power(range_: float, mu: float, alarms: float) -> float:
    """Neyman and Pearson's test on a Gaussian beside the worst pair of one pick, by quadrature."""
    from scipy.optimize import brentq
    from scipy.special import ndtr

    def share(threshold: float, drift: float, tilt: float) -> float:
        def density(loss: float) -> float:
            return math.exp((loss - range_) / 2 - tilt * loss) / (2 - 2 * math.exp(-range_))

        def above(loss: float) -> float:
            return float(density(loss) * ndtr((drift - (threshold - loss)) / mu))

        return float(quad(above, -range_, range_, epsabs=1e-12, limit=200)[0])

    half = mu * mu / 2
    at = brentq(lambda t: share(t, -half, 1) - alarms, -range_ - 9 * mu, range_ + 9 * mu + half)
    return share(at, half, 0)


@pytest.mark.parametrize("alarms", [0.01, 0.05, 0.1])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0, 8.0])
def test_the_power_of_a_gaussian_beside_a_pick_is_that_of_the_best_test(epsilon, alarms):
    events = [pick(epsilon / 5)]
    multiplier = accounting.gaussian_beside(events, epsilon, 1e-5)
    exact = exact_power(epsilon / 5, 1 / multiplier, alarms)
    power = accounting.power_of([gaussian(multiplier), *events], alarms)
    assert exact <= power <= exact + 1e-4
    bound = accounting.power_at(accounting.gdp_mu(gaussian(multiplier), *events), alarms)
    assert accounting.power_at(1 / multiplier, alarms) < power < bound


def test_power_without_picks_without_noise_and_beyond_any_budget():
    for mu in (0.3, 3.0):
        noise = gaussian(1 / mu)
        assert accounting.power_of([noise], 0.05) == pytest.approx(accounting.power_at(mu, 0.05))
        both = accounting.power_of([noise, noise], 0.05)
        assert both == pytest.approx(accounting.power_at(mu * 2**0.5, 0.05))
    coarse = GaussianEvent(delta2=1.0, sigma=2.0, scale=2**20, d=2**31)
    far = 2**31 * 0.0202 / 2**40
    assert accounting.power_of([coarse], 0.05) >= accounting.power_at(0.5, 0.05 + far) + far - 1e-12
    # One pick alone: (1 − e^((ε−E)/2))² / (1 − e^(−E)) + α e^ε, at its least over ε.
    grid = np.linspace(-1, 1, 20001)
    least = min(bounded_range.worst_delta(1.0, e) + 0.05 * math.exp(e) for e in grid)
    assert least - 1e-6 <= accounting.power_of([pick(1.0)], 0.05) <= least + 1e-4
    assert accounting.power_of([], 0.05) == 1.0
    wide = [gaussian(1 / 11), pick(0.2)], [gaussian(2.0), pick(99.0, 2)]
    for events in wide:
        bound = accounting.power_at(accounting.gdp_mu(*events), 0.05)
        assert accounting.power_of(events, 0.05) == pytest.approx(bound)
