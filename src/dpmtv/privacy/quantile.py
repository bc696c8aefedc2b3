"""Private quantiles of the chunks' norms: a clip norm without public records."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int64

from dpmtv.errors import PrivacyParameterError
from dpmtv.privacy.choice import exponential_mechanism
from dpmtv.types import BoundedRangeEvent

_SURE = 0.9  # of the right interval where all norms are alike


def noisy_quantile(
    values: Float[np.ndarray, " chunks"],
    edges: Float[np.ndarray, " edges"],
    *,
    range_: float,
    charge: Callable[[BoundedRangeEvent], None] | None = None,
) -> float:
    """About the median of ``values``: the upper end of a privately picked interval.

    The exponential mechanism over the intervals between ``edges`` (McSherry and Talwar 2007; for
    quantiles Smith 2011). An interval scores minus the number of values that would have to move
    before a median lies in it, doubled to stay whole.

    Guarantee:
        A value counts as below an edge or not, so one chunk moves each count by at most 1 and each
        doubled score by at most 2, whatever its value, and whether it is replaced or becomes null:
        the pick is ``range_``-bounded-range.

    ==============================================  =================================
    a value that is NaN                             counts as above all edges
    values outside of the edges                     count at the end that they are near
    ==============================================  =================================

    Args:
        values: one a chunk; their number is public.
        edges: public, ascending; two at least.
        range_: E.
        charge: books the event before the draw; raises to refuse.

    Raises:
        PrivacyParameterError: so few chunks that the pick would tell nothing.
    """
    require_enough_for_quantile(len(values), len(edges) - 1, range_)
    # Of all finite and infinite values some lie below the first edge: the first interval has them.
    below = np.array([0, *((values < edge).sum() for edge in edges[1:-1]), len(values)], np.int64)
    scores: Int64[np.ndarray, " intervals"]
    scores = -np.maximum(0, np.maximum(2 * below[:-1] - len(values), len(values) - 2 * below[1:]))
    pick = exponential_mechanism(scores, sensitivity=2, range_=range_, charge=charge)
    return float(edges[1 + pick.index])


def require_enough_for_quantile(chunks: int, intervals: int, range_: float) -> None:
    """Refuse what `noisy_quantile` would be useless with, before anything is spent.

    If all values are alike, the right interval scores 0 and the others −m, with noise of scale
    4/E: it is picked with probability 1 / (1 + (intervals − 1)·e^(−Em/4)).

    Raises:
        PrivacyParameterError: that is below 90 %.
    """
    least = math.ceil(4 / range_ * math.log(_SURE / (1 - _SURE) * max(1, intervals - 1)))
    if chunks < least:
        raise PrivacyParameterError(
            f"a private clip norm of range {range_:g} needs {least} chunks to be right in 9 of 10 "
            f"builds, and there are {chunks}; leave the clip norm to public or made-up prompts, "
            "or give it a larger part of epsilon"
        )


def spread_edges(reference: float, octaves: int = 3, per_octave: int = 2) -> Sequence[float]:
    """Edges around a public reference, a few to each factor of two."""
    return [
        reference * 2 ** (place / per_octave)
        for place in range(-octaves * per_octave, octaves * per_octave + 1)
    ]
