"""What Gaussian noise is worth: noise multiplier, ε, δ, and what an attacker can still do.

Everything is stated by the analytic Gaussian mechanism (Balle and Wang 2018, Theorem 8), on the
pessimistic side of rounding. Accounting reads events and nothing else.
"""

from __future__ import annotations

import functools
import math
import statistics
import warnings
from collections.abc import Sequence
from typing import Any

from dpmtv.errors import PrivacyParameterError
from dpmtv.types import GaussianEvent

_MIN_SCALE, _MAX_SCALE = 2**20, 2**60

# The discrete Gaussian of scale S and a continuous one rounded to integers differ by
# (k²/S² − 1)/(24 S²) relative to their mass at k, up to higher orders in 1/S². Half the mean
# absolute value is E|x² − 1|/(48 S²) = 4φ(1)/(48 S²) = 0.020165/S²; at S ≥ 2^20 the higher
# orders are far below the 0.17 % that this constant adds.
_TOTAL_VARIATION = 0.0202

# Floating-point error of log δ stays below this in the tested range (δ ≥ 1e-300, ε ≤ 1000).
_LOG_ERROR = 1e-12

PLD_INTERVAL = 1e-4
"""Grid of privacy losses on which dp-accounting composes; all PLDs of a sum have to share it."""


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


def gdp_mu(event: GaussianEvent) -> float:
    """μ = Δ₂/σ of Gaussian differential privacy (Dong, Roth and Su 2022)."""
    return event.delta2 / event.sigma


def power_at(mu: float, false_alarm_rate: float) -> float:
    """Share of true members that the best attack finds at a given share of false alarms.

    The trade-off curve of μ-Gaussian privacy (Dong, Roth and Su 2022, Equation 6):
    Φ(Φ⁻¹(false alarms) + μ).
    """
    normal = statistics.NormalDist()
    return normal.cdf(normal.inv_cdf(false_alarm_rate) + mu)


def epsilon_of(events: Sequence[GaussianEvent], delta: float) -> float:
    """ε that a list of releases costs together at δ, never below the exact value.

    Gaussian releases compose exactly: μ² adds up. The discreteness slack of each adds up too and
    is taken from δ first; it depends on ε, so the two are solved together.

    Guarantee:
        ``gaussian_delta(1/μ, result) + slack(result) <= delta``. No event is no noise: inf.
    """
    mu = math.hypot(*(gdp_mu(event) for event in events))
    if not events or not math.isfinite(mu):
        return math.inf
    epsilon = 0.0
    for _ in range(1000):
        # The slack of a slightly larger ε: once the solution stays below that, it is covered.
        reach = epsilon * (1 + 1e-12) + 1e-15
        slack = sum(discreteness_slack(reach, event.d, event.scale) for event in events)
        solved = gaussian_epsilon(1 / mu, delta - slack)
        if solved <= reach or solved == math.inf:
            return solved
        epsilon = solved
    return math.inf


def composed_epsilon(
    events: Sequence[GaussianEvent], delta: float, others: Sequence[Any] = ()
) -> float:
    """ε of several releases of one data set together at δ; 0 for none, inf for too much.

    Gaussian releases are folded into one first, because that is exact (`epsilon_of`), also where
    the noise of a later release was chosen after seeing an earlier one (Smith and Thakurta 2022,
    arXiv 2210.17520). Privacy loss distributions (PLDs) do the rest: for Gaussians alone they
    would take 0.2 s an event and may end below the exact value, by rounding, at a small δ.

    Guarantee:
        Never below the exact ε of the Gaussian events, nor, up to the rounding of the library's
        Fourier transform, below that of everything; in tests at most 1e-4 above it.

    Args:
        events: the Gaussian releases, each with its discreteness slack.
        delta: total δ; the slacks are taken from it.
        others: PLDs of dp-accounting for releases of other kinds, pessimistic, for the direction
            of add-or-remove (a sensitivity already holds the neighbour relation), discretised at
            ``PLD_INTERVAL``.
    """
    exact = epsilon_of(events, delta) if events else 0.0
    if not others or exact == math.inf:
        return exact
    losses = list(others)
    if events:
        from dp_accounting.pld import privacy_loss_distribution as pld

        mu = math.hypot(*(gdp_mu(event) for event in events))
        losses.append(
            pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=PLD_INTERVAL)
        )
    together = functools.reduce(lambda one, other: one.compose(other), losses)
    reach = exact
    for _ in range(100):
        # As in `epsilon_of`: the slack grows with ε, so it is taken at an ε that covers the result.
        slack = sum(discreteness_slack(reach, event.d, event.scale) for event in events)
        needed = float(together.get_epsilon_for_delta(delta - slack)) if slack < delta else math.inf
        if needed <= reach or needed == math.inf:
            return max(needed, reach)
        reach = needed * (1 + 1e-9)
    return math.inf


def further_epsilon(events: Sequence[GaussianEvent], epsilon: float, delta: float) -> float:
    """Largest ε that one more Gaussian release at δ may have beside ``events``; 0 if none fits.

    Guarantee:
        Rounded down to four digits after the point, with room for a discreteness slack of δ/1000:
        a release calibrated for it keeps all together within (``epsilon``, ``delta``).
    """
    if not events:
        return epsilon
    room = 0.999 * delta - sum(discreteness_slack(epsilon, e.d, e.scale) for e in events)
    spent = math.fsum(gdp_mu(event) ** 2 for event in events)
    low, high = 0.0, 1.0  # squares of μ: Gaussian releases add up in them
    while gaussian_delta(1 / math.sqrt(high), epsilon) <= room:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        fits = gaussian_delta(1 / math.sqrt(middle), epsilon) <= room
        low, high = (middle, high) if fits else (low, middle)
    if low <= spent:
        return 0.0
    return math.floor(gaussian_epsilon(1 / math.sqrt(low - spent), delta) * 1e4) / 1e4


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
            f"use {0.1 / n:.2g} or less, or allow a large delta explicitly"
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
