"""What releases are worth: noise multiplier, ε, δ, and what an attacker can still do.

Gaussian noise is stated by the analytic Gaussian mechanism (Balle and Wang 2018, Theorem 8), picks
by their privacy losses, on the pessimistic side of rounding. Accounting reads events and nothing
else.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Sequence
from fractions import Fraction

from dpmtv.errors import PrivacyParameterError
from dpmtv.privacy.bounded_range import losses_of, range_mu
from dpmtv.types import BoundedRangeEvent, Event, GaussianEvent

_MIN_SCALE, _MAX_SCALE = 2**20, 2**60

# The discrete Gaussian of scale S and a continuous one rounded to integers differ by
# (k²/S² − 1)/(24 S²) relative to their mass at k, up to higher orders in 1/S². Half the mean
# absolute value is E|x² − 1|/(48 S²) = 4φ(1)/(48 S²) = 0.020165/S²; at S ≥ 2^20 the higher
# orders are far below the 0.17 % that this constant adds.
_TOTAL_VARIATION = 0.0202

# Floating-point error of log δ stays below this in the tested range (δ ≥ 1e-300, ε ≤ 1000).
_LOG_ERROR = 1e-12

# Beside picks, more Gaussian releases than this are not worth computing: no budget allows them.
_MAX_MU = 10.0


def noise_multiplier(epsilon: float, delta: float) -> float:
    """σ/Δ₂ that makes one Gaussian release (ε, δ)-private.

    Balle and Wang 2018, Algorithm 1. The classical sqrt(2 ln(1.25/δ))/ε is not used: above
    ε = 1 it may give too little noise, below it wastes 25 % and more.

    Guarantee:
        ``gaussian_epsilon(result, delta) <= epsilon``; σ is at most 1e-11 (relative, more above a
        multiplier of 100, where rounding weighs more) above the exact solution.

    Raises:
        PrivacyParameterError: ε or δ that cannot be met.
    """
    check_budget(epsilon, delta)
    from dp_accounting.gaussian_mechanism import get_sigma_gaussian

    exact = float(get_sigma_gaussian(epsilon, delta))
    margin = 1e-11 * max(1.0, exact / 100)
    while gaussian_epsilon(exact * (1 + margin), delta) > epsilon:
        margin *= 2
    return exact * (1 + margin)


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """δ at ε of Gaussian noise with σ/Δ₂ = ``noise_multiplier``, never below the exact value.

    Balle and Wang 2018, Theorem 8: δ = Φ(−a) − e^ε Φ(−b).
    """
    if not noise_multiplier > 0:
        return 1.0
    return min(1.0, math.exp(_log_delta(noise_multiplier, epsilon)))


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """ε at δ of Gaussian noise with σ/Δ₂ = ``noise_multiplier``, never below the exact value."""
    if delta >= 1:
        return 0.0
    if not (delta > 0 and noise_multiplier > 0):
        return math.inf
    target = math.log(delta)
    if _log_delta(noise_multiplier, 0.0) <= target:
        return 0.0
    low, high = 0.0, 1.0
    while _log_delta(noise_multiplier, high) > target:
        low, high = high, 2 * high
        if high > 1e300:
            return math.inf
    while low < (middle := (low + high) / 2) < high:
        if _log_delta(noise_multiplier, middle) > target:
            low = middle
        else:
            high = middle
    return high


def discreteness_slack(epsilon: float, d: int, scale: int) -> float:
    """What the discrete Gaussian adds to the δ of the continuous one.

    Both d-dimensional noises, one rounded, are within t = d·0.0202/S² in total variation, in
    either of two neighbouring worlds, so δ grows by at most (1 + e^ε)·t.

    Args:
        epsilon: the total ε that is stated.
        d: number of released coordinates.
        scale: S, standard deviation in grid units; below 2^20 nothing is proved, so inf.
    """
    if scale < _MIN_SCALE:
        return math.inf
    growth = math.exp(epsilon) if epsilon < 700 else math.inf
    return (1 + growth) * d * _TOTAL_VARIATION / scale**2


def grid_scale(epsilon: float, delta: float, d: int) -> int:
    """Smallest power of two, at least 2^20, whose discreteness slack is at most δ/1000.

    Raises:
        PrivacyParameterError: ε or δ that cannot be met; ε too large for 64-bit integers.
    """
    check_budget(epsilon, delta)
    scale = _MIN_SCALE
    while discreteness_slack(epsilon, d, scale) > delta / 1000:
        scale *= 2
        if scale > _MAX_SCALE:
            raise PrivacyParameterError(
                f"epsilon {epsilon:g} is too large for exact integer noise at delta {delta:g}; "
                "lower epsilon"
            )
    return scale


def gdp_mu(*events: Event) -> float:
    """μ of Gaussian differential privacy (Dong, Roth and Su 2022) of releases together.

    Δ₂/σ for a Gaussian, the μ that dominates it for a pick (docs/privacy.md, Theorem 16); squares
    add up, also where a release was chosen after seeing earlier ones (Theorem 11).
    """
    return math.hypot(*map(_mu, events))


def _mu(event: Event) -> float:
    if isinstance(event, GaussianEvent):
        return event.delta2 / event.sigma
    return range_mu(event.range) * math.sqrt(event.count)


def as_gaussian(event: Event) -> GaussianEvent:
    """The same event, or a Gaussian one that costs no less: for sizes chosen on the way."""
    if isinstance(event, GaussianEvent):
        return event
    # So fine a grid that its slack, below 1e-37, is nothing beside a δ.
    return GaussianEvent(delta2=gdp_mu(event), sigma=1.0, scale=_MAX_SCALE, d=1)


def power_at(mu: float, false_alarm_rate: float) -> float:
    """Share of true members that the best attack finds at a given share of false alarms.

    The trade-off curve of μ-Gaussian privacy (Dong, Roth and Su 2022, Equation 6):
    Φ(Φ⁻¹(false alarms) + μ).
    """
    normal = statistics.NormalDist()
    return normal.cdf(normal.inv_cdf(false_alarm_rate) + mu)


def power_of(events: Sequence[Event], false_alarm_rate: float) -> float:
    """Share of true members that the best attack on releases finds at a share of false alarms.

    A test with the false-alarm rate α has at most the power δ(ε) + α e^ε, for every real ε, and
    the least of these bounds is the power of the best test on the worst pair: Gaussians and picks
    whose ranges are fixed beforehand enter by that pair (docs/privacy.md, Theorem 21).

    Guarantee:
        Never below the exact value, the discreteness of the noise included; within 1e-4 of that
        of the worst pair. Beside picks with μ above 10 or ranges that add up to 100, that of
        `gdp_mu`. Without any event 1.
    """
    gaussians = [event for event in events if isinstance(event, GaussianEvent)]
    picks = [event for event in events if isinstance(event, BoundedRangeEvent)]
    # Each noise is this far, in either world, from the continuous one (`discreteness_slack`).
    far = math.fsum(discreteness_slack(0.0, e.d, e.scale) / 2 for e in gaussians)
    alarms = false_alarm_rate + far
    if not events or not alarms < 1:
        return 1.0
    mu, losses = gdp_mu(*gaussians), losses_of(picks)
    if losses is None or mu > _MAX_MU:
        return min(1.0, power_at(gdp_mu(*events), alarms) + far)

    from scipy.optimize import minimize_scalar

    def bound(epsilon: float) -> float:
        return losses.delta(epsilon, 1 / mu if mu else math.inf) + alarms * math.exp(epsilon)

    # The best ε is where the loss of the Gaussians exceeds with probability α, up to the picks'.
    middle = -mu * statistics.NormalDist().inv_cdf(alarms) - mu * mu / 2
    reach = float(losses.values[-1])
    least = minimize_scalar(
        bound, bounds=(middle - reach, middle + reach), method="bounded", options={"xatol": 1e-7}
    )
    return min(1.0, float(least.fun) + far)


def epsilon_of(events: Sequence[Event], delta: float) -> float:
    """ε that a list of releases costs together at δ, never below the exact value.

    Gaussian releases compose exactly: μ² adds up, also where the noise of a later one was chosen
    after seeing an earlier one (Smith and Thakurta 2022, arXiv 2210.17520). The discreteness
    slack of each adds up too and is taken from δ first; it depends on ε, so the two are solved
    together. Picks compose by their privacy losses, and alone cost the sum of their ranges at
    most.

    Guarantee:
        δ of the list at the result, slack included, is at most ``delta``: without picks
        ``gaussian_delta(1/μ, result) + slack(result)``. With picks, at a δ of 1e-9 or more, the
        result is at most 1e-4 a pick above that of the worst losses; the number and ranges of the
        picks have to be fixed before the first release, and a bound on the Gaussians' μ with
        them. `as_gaussian` is for picks that are not.

    ================================================  =======
    no event                                          inf: no release was described, no noise
    noise or range that is not positive and finite    inf
    beside picks: μ above 10; ranges that add to 100  inf: more than any budget
    ================================================  =======
    """
    gaussians = [event for event in events if isinstance(event, GaussianEvent)]
    picks = [event for event in events if isinstance(event, BoundedRangeEvent)]
    mu = gdp_mu(*gaussians)
    losses = losses_of(picks)
    if not events or not math.isfinite(mu) or (picks and (losses is None or mu > _MAX_MU)):
        return math.inf
    if losses is not None and not gaussians:
        # (Σ E, 0)-private, which the grid of the losses may pass by its width.
        exact = sum(Fraction(event.range) * event.count for event in picks)
        pure = float(exact)
        pure = pure if pure >= exact else math.nextafter(pure, math.inf)
        return min(losses.epsilon(delta), pure)
    multiplier = 1 / mu
    epsilon = 0.0
    for _ in range(1000):
        # The slack of a slightly larger ε: once the solution stays below that, it is covered.
        reach = epsilon * (1 + 1e-12) + 1e-15
        slack = sum(discreteness_slack(reach, event.d, event.scale) for event in gaussians)
        if losses is None:
            solved = gaussian_epsilon(multiplier, delta - slack)
        else:
            solved = losses.epsilon(delta - slack, multiplier)
        if solved <= reach or solved == math.inf:
            return solved
        epsilon = solved
    return math.inf


def gaussian_beside(others: Sequence[Event], epsilon: float, delta: float) -> float:
    """σ/Δ₂ of one Gaussian release that is (ε, δ)-private together with ``others``.

    Guarantee:
        The smallest that `epsilon_of` accepts, but for 1e-11 (relative); `noise_multiplier`
        without others.

    Raises:
        PrivacyParameterError: ε or δ that cannot be met; the others alone cost more.
    """
    alone = noise_multiplier(epsilon, delta)
    if not others:
        return alone
    left = _left(others, epsilon, delta)
    if not left > 0:
        raise PrivacyParameterError(
            f"the private choices leave nothing of epsilon {epsilon:g} at delta {delta:g}; raise "
            "epsilon or lower their range"
        )
    return max(alone, 1 / math.sqrt(left)) * (1 + 1e-11)


def slack_of(events: Sequence[Event], epsilon: float) -> float:
    """Discreteness slacks of all at one ε."""
    gaussians = (e for e in events if isinstance(e, GaussianEvent))
    return math.fsum(discreteness_slack(epsilon, e.d, e.scale) for e in gaussians)


def further_epsilon(
    events: Sequence[Event], epsilon: float, delta: float, share: float = 1.0
) -> float:
    """Largest ε that one more Gaussian release at δ may have beside ``events``; 0 if none fits.

    Together they have ``share`` of δ.

    Guarantee:
        Rounded down to four digits after the point, with room for a discreteness slack of δ/1000:
        a release calibrated for it keeps all together within (``epsilon``, ``delta``).
    """
    if not events:
        return epsilon
    left = _left(events, epsilon, 0.999 * share * delta)
    if left <= 0:
        return 0.0
    return math.floor(gaussian_epsilon(1 / math.sqrt(left), delta) * 1e4) / 1e4


def _left(events: Sequence[Event], epsilon: float, delta: float) -> float:
    """Largest μ² of a Gaussian release that is (ε, δ)-private together with ``events``."""
    gaussians = [event for event in events if isinstance(event, GaussianEvent)]
    picks = [event for event in events if isinstance(event, BoundedRangeEvent)]
    room = delta - sum(discreteness_slack(epsilon, e.d, e.scale) for e in gaussians)
    return _room(picks, epsilon, room) ** 2 - math.fsum(gdp_mu(e) ** 2 for e in gaussians)


def _room(picks: Sequence[BoundedRangeEvent], epsilon: float, delta: float) -> float:
    """Largest μ of Gaussian releases that are (ε, δ)-private together with the picks, or 0."""
    losses = losses_of(picks)
    if picks and losses is None:
        return 0.0

    def fits(mu: float) -> bool:
        if losses is None:
            return gaussian_delta(1 / mu, epsilon) <= delta
        return mu <= _MAX_MU and losses.delta(epsilon, 1 / mu) <= delta

    low, high = 0.0, 1.0
    while fits(high):
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def check_budget(epsilon: float, delta: float) -> None:
    """Refuse an ε or δ that no noise can meet.

    Raises:
        PrivacyParameterError: ε not positive and finite, or δ not strictly between 0 and 1.
    """
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise PrivacyParameterError(
            f"epsilon must be a positive, finite number, not {epsilon}; 1 is a common choice"
        )
    if not 0 < delta < 1:
        raise PrivacyParameterError(
            f"delta must lie between 0 and 1, not {delta}; choose less than one over the number "
            "of records, such as 1e-5"
        )


def check_delta(delta: float, n: int, allow_large: bool = False) -> None:
    """Refuse a δ that lets whole records out; warn about one that comes near.

    Publishing one record in n at random is (0, 1/n)-private, so δ must be well below 1/n.

    Args:
        delta: the δ that is asked for.
        n: public number of units.
        allow_large: warn where this function would refuse.

    Raises:
        PrivacyParameterError: δ ≥ 1/n.
    """
    if n < 1:
        raise PrivacyParameterError("there are no records to protect")
    if not (delta < 1 / n or allow_large):
        raise PrivacyParameterError(
            f"delta {delta:g} is not below 1/n with n = {n}: it would allow publishing a record; "
            f"use {0.1 / n:.2g} or less, or allow a large delta explicitly (where n is counted)"
        )
    if delta > 0.1 / n:
        warnings.warn(
            f"delta {delta:g} is above 1/(10 n) with n = {n}; {0.1 / n:.2g} or less is usual",
            stacklevel=2,
        )


def _log_delta(noise_multiplier: float, epsilon: float) -> float:
    """Logarithm of the analytic δ, rounded up.

    With a, b = εz ∓ 1/(2z) and e^ε φ(b) = φ(a), the formula is φ(a)·(M(a) − M(b)) where
    M(t) = Φ(−t)/φ(t) is Mills' ratio: no huge e^ε, no tiny tails.
    """
    from scipy.special import erfcx

    centre, half = epsilon * noise_multiplier, 0.5 / noise_multiplier
    a = max(centre - half, -37.0)  # below, Φ(−a) is 1 in float64 and M(a) would overflow
    mills_a, mills_b = (
        math.sqrt(math.pi / 2) * float(erfcx(t / math.sqrt(2))) for t in (a, centre + half)
    )
    gap = mills_a - mills_b + 4e-15 * mills_a  # a few ulps of erfcx, grown by cancellation
    return math.log(gap) - a * a / 2 - math.log(2 * math.pi) / 2 + _LOG_ERROR
