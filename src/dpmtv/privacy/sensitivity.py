"""How far one change in the private data can move the released mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from fractions import Fraction

from dpmtv.errors import PrivacyParameterError


class NeighbourRelation(StrEnum):
    """Which change of the data the guarantee covers."""

    REPLACE_ONE = "replace_one"
    """What stands in one slot is replaced; the list of slots (lines, or ids of units) is public."""

    ADD_REMOVE = "add_remove"
    """One unit is added or removed; its id names its chunk, and the number of units is private."""

    ZERO_OUT = "zero_out"
    """One whole chunk becomes the null vector: the paper's relation, for reproduction only."""


_MULTIPLIERS = {
    # The slot fixes the chunk, so one chunk changes. Its old and its new contribution both lie
    # in the ball of radius C, and two points of that ball are at most 2C apart.
    NeighbourRelation.REPLACE_ONE: 2,
    # The id fixes the chunk, so one chunk changes, from any content to any other.
    NeighbourRelation.ADD_REMOVE: 2,
    # One contribution in the ball of radius C becomes the centre of that ball.
    NeighbourRelation.ZERO_OUT: 1,
}


def l2_sensitivity(relation: NeighbourRelation, clip_norms: Sequence[float], chunks: int) -> float:
    """L2 sensitivity Δ₂ of the mean of clipped chunks.

    A chunk's contribution is cut into blocks; block b is clipped to L2 norm C_b, so that the
    whole contribution has at most norm sqrt(Σ C_b²). The mean over m chunks moves by
    ``multiplier · sqrt(Σ C_b²) / m``. The paper (arXiv 2603.04894) uses the multiplier 1 with
    one C for all layers.

    Guarantee:
        The result is the smallest float64 that is not below the real number, decided in exact
        rationals; it is the same on every machine.

    Args:
        relation: the neighbour relation.
        clip_norms: C_b of each block, in the units of the activations.
        chunks: m, the public number of chunks that the sum is divided by; null chunks count.

    Raises:
        PrivacyParameterError: no block, a clip norm that is not positive and finite, or m < 1.
    """
    if chunks < 1:
        raise PrivacyParameterError(f"the number of chunks must be at least 1, not {chunks}")
    if not clip_norms or not all(math.isfinite(c) and c > 0 for c in clip_norms):
        raise PrivacyParameterError("clip norms must be positive, finite numbers; give one a block")
    multiplier = _MULTIPLIERS[relation]
    square = sum(Fraction(c) ** 2 for c in clip_norms) * Fraction(multiplier, chunks) ** 2
    bound = multiplier * math.hypot(*clip_norms) / chunks
    if not math.isfinite(bound):
        raise PrivacyParameterError("the clip norms are too large; lower them")
    while Fraction(bound) ** 2 < square:
        bound = math.nextafter(bound, math.inf)
    while Fraction(below := math.nextafter(bound, 0.0)) ** 2 >= square:
        bound = below
    return bound
