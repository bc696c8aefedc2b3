"""The Gaussian release: clip every chunk, add up in integers, pay, draw the noise once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from jaxtyping import Int64

from dpmtv.errors import InternalError, PrivacyParameterError
from dpmtv.privacy import accounting
from dpmtv.privacy.clipping import clip_to_grid
from dpmtv.privacy.sensitivity import NeighbourRelation, l2_sensitivity
from dpmtv.types import Event, GaussianEvent, Release

# Every clip radius spans at least this many grid units, so that cutting toward zero costs less
# than a millionth of the radius. A finer grid costs no privacy and no time; the noise scale is
# raised for it up to a limit that leaves room for the sum.
_FINENESS, _FINENESS_LIMIT = 2**22, 2**50

# Sums and noise are 64-bit. Noise beyond 64 standard deviations has probability e^-2000, and the
# sampler saturates there, which is post-processing.
_NOISE_REACH, _INT64_LIMIT = 64, 2**63


@dataclass(frozen=True)
class GaussianMean:
    """One private mean of clipped chunks: all of its public parameters. Made by `calibrate`.

    Guarantee:
        `release` is (ε, δ)-differentially private under ``relation``, together with all that is
        ``beside`` it. An instance that promises more than its noise pays for cannot be made.

    Args:
        relation: the neighbour relation.
        chunks: m, the public number of chunks, null chunks included.
        clip_norms: C_b of each block, in the units of the activations.
        block_sizes: coordinates of each block.
        epsilon: the promised ε.
        delta: the promised δ, discreteness slack included.
        grid: length of one integer unit, in the units of the activations.
        scale: standard deviation of the noise on the sum, in grid units.
        beside: picks from the same records that the promised ε and δ cover as well. They and σ/Δ₂
            of this release are fixed before the first of them is made.
        largest: the most coordinates that the release might have had, where a pick decides which:
            its event is of so many.

    Raises:
        PrivacyParameterError: parameters that cannot be used or do not keep the promise.
    """

    relation: NeighbourRelation
    chunks: int
    clip_norms: tuple[float, ...]
    block_sizes: tuple[int, ...]
    epsilon: float
    delta: float
    grid: float
    scale: int
    beside: tuple[Event, ...] = ()
    largest: int = 0

    def __post_init__(self) -> None:
        if len(self.clip_norms) != len(self.block_sizes) or any(d < 1 for d in self.block_sizes):
            raise PrivacyParameterError("every block needs a clip norm and at least one coordinate")
        accounting.check_budget(self.epsilon, self.delta)
        events = self.events  # refuses clip norms and chunks that cannot be used
        if not 0 < self.grid <= min(self.clip_norms):
            raise PrivacyParameterError(
                "a clip norm is shorter than one unit of the grid: the clip norms lie too far apart"
            )
        if self.chunks * max(self.radii) + _NOISE_REACH * self.scale >= _INT64_LIMIT:
            raise PrivacyParameterError(
                "the sum does not fit 64-bit integers: lower epsilon or the number of chunks"
            )
        if accounting.epsilon_of(events, self.delta) > self.epsilon:
            raise PrivacyParameterError("the noise is too small for this epsilon and delta")

    @property
    def radii(self) -> tuple[int, ...]:
        """Clip radius of each block in whole grid units, rounded down exactly."""
        return _radii(self.clip_norms, self.grid)

    @property
    def event(self) -> GaussianEvent:
        """What one release costs, in the units of the mean."""
        return GaussianEvent(
            delta2=l2_sensitivity(self.relation, self.clip_norms, self.chunks),
            sigma=self.scale * self.grid / self.chunks,
            scale=self.scale,
            d=max(sum(self.block_sizes), self.largest),
        )

    @property
    def events(self) -> tuple[Event, ...]:
        """All that the promise covers: this release and what is beside it."""
        return (self.event, *self.beside)

    def release(
        self,
        chunk_values: Iterable[np.ndarray | None],
        charge: Callable[[GaussianEvent], None] | None = None,
    ) -> Release:
        """The private mean, in one pass over the chunks.

        Guarantee:
            The sum moves by at most ``multiplier · sqrt(Σ radii²)`` grid units between
            neighbours, in exact integers, and carries discrete Gaussian noise of ``scale`` grid
            units from the operating system's randomness (sampler of Canonne, Kamath and
            Steinke 2020, in OpenDP). The divisor is m whatever the chunks hold. ``charge``
            returns before any noise exists; if it raises, none is drawn.

        Args:
            chunk_values: exactly m items, each the activations [coordinates] of one chunk, or
                None for a chunk that gave none and counts as zero.
            charge: books the event; raises to refuse.

        Raises:
            InternalError: not exactly m chunks, or a chunk of the wrong size.
        """
        total = _clipped_sum(chunk_values, self.chunks, self.block_sizes, self.radii, self.grid)
        event = self.event
        if charge is not None:
            charge(event)
        noisy = _discrete_gaussian(total, self.scale)
        return Release(noisy * self.grid / self.chunks, event)


def calibrate(
    *,
    epsilon: float,
    delta: float,
    relation: NeighbourRelation,
    chunks: int,
    clip_norms: Sequence[float],
    block_sizes: Sequence[int],
    beside: Sequence[Event] = (),
    largest: int = 0,
) -> GaussianMean:
    """The Gaussian release with the least noise that keeps the promise.

    The grid is chosen so that the noise of the sum is a power of two in grid units; σ is
    calibrated at δ minus the discreteness slack, so that the promise includes it.

    Args:
        epsilon: ε of this release and of all beside it.
        delta: δ of this release and of all beside it.
        relation: the neighbour relation.
        chunks: m, the public number of chunks.
        clip_norms: C_b of each block, in the units of the activations.
        block_sizes: coordinates of each block.
        beside: picks from the same records.
        largest: the most coordinates that the release might have had, where a pick decides which:
            then σ/Δ₂ does not depend on the pick.

    Raises:
        PrivacyParameterError: parameters that cannot be used or met.
    """
    reach = l2_sensitivity(relation, clip_norms, 1)
    d = max(sum(block_sizes), largest)
    scale = accounting.grid_scale(epsilon, delta, d)
    coarsest = accounting.gaussian_beside(beside, epsilon, 0.999 * delta) * reach / min(clip_norms)
    while scale < min(_FINENESS * coarsest, _FINENESS_LIMIT):
        scale *= 2
    slack = accounting.discreteness_slack(epsilon, d, scale)
    multiplier = accounting.gaussian_beside(beside, epsilon, delta - slack)
    return GaussianMean(
        relation=relation,
        chunks=int(chunks),
        clip_norms=tuple(map(float, clip_norms)),
        block_sizes=tuple(map(int, block_sizes)),
        epsilon=float(epsilon),
        delta=float(delta),
        grid=math.nextafter(multiplier * reach / scale, math.inf),
        scale=scale,
        beside=tuple(beside),
        largest=int(largest),
    )


def clipped_mean(
    chunk_values: Iterable[np.ndarray | None],
    *,
    chunks: int,
    clip_norms: Sequence[float],
    block_sizes: Sequence[int],
) -> Release:
    """The same clipped mean without noise: NOT PRIVATE, a baseline to compare with.

    Guarantee:
        None. The value reveals the private data; the event is None (ε = inf).

    Args:
        chunk_values: exactly m items, as in `GaussianMean.release`.
        chunks: m.
        clip_norms: C_b of each block.
        block_sizes: coordinates of each block.

    Raises:
        PrivacyParameterError: clip norms or chunks that cannot be used.
        InternalError: not exactly m chunks, or a chunk of the wrong size.
    """
    l2_sensitivity(NeighbourRelation.ZERO_OUT, clip_norms, chunks)  # refuses what cannot be used
    grid = max(clip_norms) / 2**40
    total = _clipped_sum(chunk_values, chunks, block_sizes, _radii(clip_norms, grid), grid)
    return Release(total * grid / chunks, None)


def _radii(clip_norms: Sequence[float], grid: float) -> tuple[int, ...]:
    return tuple(Fraction(c) // Fraction(grid) for c in clip_norms)


def _clipped_sum(
    chunk_values: Iterable[np.ndarray | None],
    chunks: int,
    block_sizes: Sequence[int],
    radii: Sequence[int],
    grid: float,
) -> Int64[np.ndarray, " coordinates"]:
    """Sum of the clipped chunks in grid units: integers, so no order or rounding matters."""
    if chunks * max(radii) >= _INT64_LIMIT:
        raise InternalError("the sum of the chunks does not fit 64-bit integers")
    total = np.zeros(sum(block_sizes), np.int64)
    missing = chunks
    for values in chunk_values:
        if missing == 0:
            raise InternalError(f"more than the {chunks} chunks that were announced")
        missing -= 1
        if values is not None:
            total += clip_to_grid(values, block_sizes, radii, grid)
    if missing:
        raise InternalError(f"fewer than the {chunks} chunks that were announced")
    return total


def _discrete_gaussian(
    values: Int64[np.ndarray, " coordinates"], scale: int
) -> Int64[np.ndarray, " coordinates"]:
    """Add exact discrete Gaussian noise, drawn by OpenDP from the operating system."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    # 64-bit atoms by name: plain ``int`` means 32 bits here and saturates at 2^31.
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    measurement = dp.m.make_gaussian(*space, scale=float(scale))
    return np.asarray(measurement(values.tolist()), np.int64)
