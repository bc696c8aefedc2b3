"""Private choice: one of several public options by integer scores, with an exact draw."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from jaxtyping import Float, Int64

from dpmtv.errors import InternalError, PrivacyParameterError
from dpmtv.types import BoundedRangeEvent

_INT64_LIMIT = 2**63


@dataclass(frozen=True)
class Choice:
    """The option that was picked, and the event that pays for it."""

    index: int
    event: BoundedRangeEvent


def exponential_mechanism(
    scores: Int64[np.ndarray, " options"],
    *,
    sensitivity: int,
    range_: float,
    monotone: bool = False,
    charge: Callable[[BoundedRangeEvent], None] | None = None,
) -> Choice:
    """Pick an option privately, with probability proportional to e^(score/s): high scores win.

    McSherry and Talwar 2007; report-noisy-max with Gumbel noise of scale s is the same. s is
    2Δ/E, or Δ/E for monotone scores, rounded up.

    Guarantee:
        If one unit moves each score by at most ``sensitivity``, the privacy losses lie in an
        interval of length ``range_``: the event on the result. It is drawn exactly, in rational
        arithmetic, from the operating system's randomness by OpenDP. ``charge`` returns before
        anything is drawn; if it raises, nothing is.

    ================================  ===========================================
    one option                        picked, and charged all the same
    equal scores                      equally likely
    ``monotone`` that is not true     the real range is up to twice the stated one
    ================================  ===========================================

    Args:
        scores: of the options, whole numbers.
        sensitivity: Δ, the most that one unit moves any score.
        range_: E.
        monotone: one unit moves all scores in the same direction, as sums of scores that are
            never negative do where a unit is added or removed; not where one is replaced.
        charge: books the event; raises to refuse.

    Raises:
        PrivacyParameterError: a sensitivity or range that cannot be used.
        InternalError: no option.
    """
    scale = _gumbel_scale(sensitivity, range_, monotone)
    if not len(scores):
        raise InternalError("there is no option to choose from")
    event = BoundedRangeEvent(range=float(range_), count=1)
    if charge is not None:
        charge(event)
    return Choice(_noisy_max(scores, scale), event)


def _gumbel_scale(sensitivity: int, range_: float, monotone: bool) -> float:
    """Δ/E or 2Δ/E, rounded up."""
    if sensitivity < 1:
        raise PrivacyParameterError(f"the sensitivity must be at least 1, not {sensitivity}")
    if not (math.isfinite(range_) and range_ > 0):
        raise PrivacyParameterError(f"the range must be a positive, finite number, not {range_}")
    exact = Fraction(sensitivity if monotone else 2 * sensitivity) / Fraction(range_)
    if exact >= _INT64_LIMIT:
        raise PrivacyParameterError(f"a range of {range_:g} needs too much noise; raise it")
    scale = float(exact)
    return math.nextafter(scale, math.inf) if Fraction(scale) < exact else scale


def clipped_scores(
    per_unit: Float[np.ndarray, "units options"], bound: float, levels: int = 2**20
) -> Int64[np.ndarray, " options"]:
    """Sums of the units' scores, clipped and in whole numbers: ``levels`` stand for ``bound``.

    Guarantee:
        One unit contributes to each option a whole number from 0 to ``levels``, whatever it
        holds, and nothing else depends on it. So Δ = ``levels`` where a unit is added, removed or
        replaced, exactly; where one is added or removed the sums are monotone as well.

    ==============================================  ======================
    a unit with a score that is NaN or infinite     0 for all options
    scores below 0, or above ``bound``              0, or ``levels``
    no unit                                         0 for all options
    ==============================================  ======================

    Args:
        per_unit: one row a unit, high is good.
        bound: score that counts in full.
        levels: steps of the scale; scores are cut toward zero to them.

    Raises:
        PrivacyParameterError: a bound or number of levels that cannot be used.
        InternalError: sums beyond 64 bits.
    """
    if not (math.isfinite(bound) and bound > 0):
        raise PrivacyParameterError(f"the bound must be a positive, finite number, not {bound}")
    if not 1 <= levels <= 2**50:  # float64 is exact to this
        raise PrivacyParameterError(f"levels must lie between 1 and 2^50, not {levels}")
    if len(per_unit) * levels >= _INT64_LIMIT:
        raise InternalError("the sum of the scores does not fit 64-bit integers")
    values = np.asarray(per_unit, np.float64)
    usable = np.isfinite(values).all(axis=1, keepdims=True)
    # At most 1 before the multiplication, since division rounds monotonically.
    shares = np.clip(np.where(usable, values, 0.0), 0.0, bound) / bound
    steps = np.trunc(shares * levels).astype(np.int64)
    return np.asarray(steps.sum(axis=0, dtype=np.int64))


def _noisy_max(scores: Int64[np.ndarray, " options"], scale: float) -> int:
    """Index of the largest score plus Gumbel noise, by OpenDP: an exact draw with this law."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.linf_distance(T="i64")
    # The measure decides the law: that of Gumbel noise for this one. For the measure of pure
    # privacy, and in ``make_report_noisy_max_gumbel`` since 0.14, it is that of exponential noise,
    # whose range is not bounded by E.
    measure = dp.zero_concentrated_divergence()
    measurement = dp.m.make_noisy_max(*space, measure, scale=scale)
    return int(measurement(scores.tolist()))
