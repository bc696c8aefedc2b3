"""What private picks are worth: privacy losses of mechanisms of bounded range, and their sums.

A mechanism is E-bounded-range if its privacy losses under two neighbours lie in an interval of
length E (Durfee and Rogers 2019). Proofs: docs/privacy.md, 4.12.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from dpmtv.types import BoundedRangeEvent

_INTERVAL = 2.0**-14
"""Grid of privacy losses. Every range is rounded up to it, which costs that much ε at most."""

_WIDEST = 100.0
"""Ranges that add up to more are not worth computing: no budget allows them."""

# The Fourier transform that convolves errs by less than this per pick, all losses together; a
# test compares with plain sums. A lone pick needs none.
_FOURIER_ERROR = 1e-13

# Relative error of the normal distribution, of e^x and of sums of like signs, with room.
_ROUNDING = 1e-12


def worst_delta(range_: float, epsilon: float) -> float:
    """Largest δ at ``epsilon``, of any sign, that one E-bounded-range mechanism can have.

    (1 − e^((ε−E)/2))² / (1 − e^(−E)) for ε between −E and E (Dong, Durfee and Rogers 2020).
    """
    if epsilon >= range_:
        return 0.0
    if epsilon <= -range_:
        return -math.expm1(epsilon)
    return math.expm1((epsilon - range_) / 2) ** 2 / -math.expm1(-range_)


def range_mu(range_: float) -> float:
    """μ of the Gaussian that hides less than any E-bounded-range mechanism.

    2Φ(μ/2) − 1 = tanh(E/4), both are the distance in total variation, so Φ(−μ/2) is the logistic
    function at −E/2; rounded up. About 0.627 E.
    """
    from scipy.special import expit, ndtri

    return -2 * float(ndtri(expit(-range_ / 2))) * (1 + 1e-12)


@dataclass(frozen=True)
class Losses:
    """Privacy losses of several picks together: a pair of distributions that dominates them.

    Args:
        values: losses, evenly spaced.
        masses: their probabilities in the world that the losses are about.
        lost: probability that is counted as an infinite loss.
    """

    values: Float[np.ndarray, " losses"]
    masses: Float[np.ndarray, " losses"]
    lost: float

    def delta(self, epsilon: float, multiplier: float = math.inf) -> float:
        """δ at ``epsilon`` of the picks and one Gaussian release of σ/Δ₂ = ``multiplier``.

        Guarantee:
            Never below the exact value: the Gaussian enters by its own δ at what each loss leaves
            of ε, and rounding goes up.
        """
        from scipy.special import ndtr

        rest = epsilon - self.values
        if multiplier == math.inf:  # no Gaussian
            return self.lost + float(self.masses @ np.maximum(0, -np.expm1(rest)))
        centre, half = rest * multiplier, 0.5 / multiplier
        above = ndtr(half - centre) * (1 + _ROUNDING)
        below = np.exp(np.minimum(rest, 700)) * ndtr(-half - centre) * (1 - _ROUNDING)
        return self.lost + float(self.masses @ np.maximum(0, above - below))

    def epsilon(self, delta: float, multiplier: float = math.inf) -> float:
        """Smallest ε ≥ 0 at which `delta` is at most ``delta``; inf if the losses lie too high."""
        low, high = 0.0, 2 * _WIDEST
        if not self.delta(high, multiplier) <= delta:
            return math.inf
        if self.delta(low, multiplier) <= delta:
            return low
        while low < (middle := (low + high) / 2) < high:
            if self.delta(middle, multiplier) <= delta:
                high = middle
            else:
                low = middle
        return high


def losses_of(events: Sequence[BoundedRangeEvent]) -> Losses | None:
    """The worst privacy losses of adaptive picks whose ranges are fixed beforehand.

    The worst pair of one pick has the losses y with density e^((y−E)/2) / (2 − 2e^(−E)) between
    −E and E. What lies between two points of the grid is moved to both, so that the mass stays
    the same in both worlds (connect the dots: Doroshenko et al. 2022, arXiv 2207.04380), which
    raises no δ below the exact one. Sums of losses are convolutions.

    Returns:
        None for ranges or counts that cannot be used, or that add up to more than 100.
    """
    if not events or not all(e.range > 0 and e.count >= 1 for e in events):
        return None
    if not sum(e.range * e.count for e in events) <= _WIDEST:
        return None
    steps = [math.ceil(e.range / _INTERVAL) for e in events]
    counts = [e.count for e in events]
    reach = sum(s * c for s, c in zip(steps, counts, strict=True))
    if reach * _INTERVAL > 2 * _WIDEST:  # a crowd of tiny ranges, rounded up
        return None
    if sum(counts) == 1:
        masses, lost = _masses(steps[0]), 0.0
    else:
        from scipy.fft import irfft, next_fast_len, rfft

        size = next_fast_len(2 * reach + 1, real=True)
        spectrum = math.prod(
            rfft(_masses(s), size) ** c for s, c in zip(steps, counts, strict=True)
        )
        masses = np.maximum(0, irfft(spectrum, size)[: 2 * reach + 1])
        lost = _FOURIER_ERROR * sum(counts)
    return Losses(np.arange(-reach, reach + 1) * _INTERVAL, masses, lost)


def _masses(steps: int) -> Float[np.ndarray, " losses"]:
    """Losses of one pick at the points of the grid from −E to E, 2 · ``steps`` cells."""
    # Cells have masses in the ratio e^(h/2); a common share of each goes to its upper end.
    cells = np.exp(np.arange(1 - 2 * steps, 1) * (_INTERVAL / 2))
    cells /= cells.sum()
    share = 1 / (1 + math.exp(-_INTERVAL / 2))
    return (1 - share) * np.append(cells, 0) + share * np.append(0, cells)
