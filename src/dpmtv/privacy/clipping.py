"""Clipping to an exact L2 ball of integers: no rounding can carry a chunk over its radius."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int64

from dpmtv.errors import InternalError


def clip_to_grid(
    values: Float[np.ndarray, " coordinates"],
    block_sizes: Sequence[int],
    radii: Sequence[int],
    grid: float,
) -> Int64[np.ndarray, " coordinates"]:
    """Scale every block of one chunk into its ball and cut it to whole grid units.

    The clip of the paper's Algorithm 1 (arXiv 2603.04894), made exact: a block that is only
    scaled in floating point ends outside its ball about every second time.

    Guarantee:
        The squares of block b, added in exact integers, are at most ``radii[b]**2``, whatever
        ``values`` holds. The result depends on nothing but the arguments.

    ============================  ==============================================
    input                         result
    ============================  ==============================================
    inside the ball               cut toward zero to the grid, else unchanged
    outside the ball              same direction, norm just inside the radius
    NaN or infinity anywhere      all zeros: the null contribution of a chunk
    float16, float32, denormal    converted exactly before any arithmetic
    norm beyond float64           handled: blocks are divided by their peak first
    ============================  ==============================================

    Args:
        values: one chunk's activations; block b is the next ``block_sizes[b]`` coordinates.
        block_sizes: coordinates of each block.
        radii: clip norm of each block in grid units, public.
        grid: the length of one unit, public.

    Raises:
        InternalError: the blocks do not cover ``values``.
    """
    if values.shape != (sum(block_sizes),) or len(block_sizes) != len(radii):
        raise InternalError("the blocks do not match the activations")
    # Before the conversion, which warns of signalling NaNs: that would tell of this chunk.
    if not np.isfinite(values).all():
        return np.zeros(values.shape, np.int64)
    exact = values.astype(np.float64)
    blocks = np.split(exact, np.cumsum(block_sizes)[:-1])
    return np.concatenate(
        [_clip_block(block, radius, grid) for block, radius in zip(blocks, radii, strict=True)]
    )


def _clip_block(
    block: Float[np.ndarray, " coordinates"], radius: int, grid: float
) -> Int64[np.ndarray, " coordinates"]:
    peak = float(np.abs(block).max())
    if peak == 0:
        return np.zeros(block.shape, np.int64)
    unit = block / peak  # norm between 1 and sqrt(size): neither overflows nor vanishes
    norm = math.sqrt(float(np.square(unit).sum()))
    units = np.trunc(unit * min(peak / grid, radius / norm)).astype(np.int64)
    return _into_ball(units, radius)


def _into_ball(
    units: Int64[np.ndarray, " coordinates"], radius: int
) -> Int64[np.ndarray, " coordinates"]:
    """Take single units off the largest coordinates until the exact norm fits the radius."""
    # Scaling left the norm within rounding of the radius, so below 2^31 the squares fit 64 bits;
    # above, Python's integers are exact and slower.
    narrow = radius < 2**31
    square = int(np.dot(units, units)) if narrow else sum(u * u for u in units.tolist())
    while square > radius * radius:
        largest = int(np.abs(units).argmax())
        size = abs(int(units[largest]))
        units[largest] -= np.sign(units[largest])
        square -= 2 * size - 1
    return units
