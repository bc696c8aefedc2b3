"""Clipping: the ball is never left, in exact integers, whatever the activations hold."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmtv.errors import InternalError
from dpmtv.privacy.clipping import _into_ball, clip_to_grid

SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=3)
WIDE = st.one_of(
    st.floats(-100, 100),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 5e-324, 1e-310, 1e300, -1.7e308, 3e38]),
)


def squares(units: np.ndarray) -> int:
    return sum(u * u for u in units.tolist())


@given(data=st.data(), sizes=SIZES)
@settings(max_examples=300, deadline=None)
def test_no_block_leaves_its_ball_or_turns_round(data, sizes):
    values = np.array(data.draw(st.lists(WIDE, min_size=sum(sizes), max_size=sum(sizes))))
    radii = data.draw(st.lists(st.integers(0, 2**58), min_size=len(sizes), max_size=len(sizes)))
    grid = data.draw(st.floats(1e-20, 1e20))
    units = clip_to_grid(values, sizes, radii, grid)
    assert units.dtype == np.int64
    for block, radius in zip(np.split(units, np.cumsum(sizes)[:-1]), radii, strict=True):
        assert squares(block) <= radius * radius
    assert ((units == 0) | (np.sign(units) == np.sign(values))).all()


@given(
    values=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8),
    radius=st.integers(1, 2**45),
    grid=st.floats(1e-9, 1.0),
)
@settings(max_examples=300, deadline=None)
def test_direction_is_kept_to_a_grid_unit_and_values_move_toward_zero(values, radius, grid):
    values = np.array(values)
    units = clip_to_grid(values, [len(values)], [radius], grid)
    norm = math.hypot(*values)
    exact = values * min(1.0, radius * grid / norm) / grid if norm > 0 else values
    assert (np.abs(units) <= np.abs(exact) * (1 + 1e-14)).all()
    # One unit for the cut toward zero, one for a norm that rounding had put outside.
    assert (np.abs(units) >= np.abs(exact) * (1 - 1e-14) - 2).all()


@pytest.mark.parametrize("radius", [1, 7, 2**22, 2**45])
def test_a_single_coordinate_reaches_the_radius_exactly(radius):
    for value in (radius * 0.25, 1e9 * radius):
        assert clip_to_grid(np.array([-value]), [1], [radius], 0.25).tolist() == [-radius]


def test_values_inside_the_ball_are_only_cut_to_the_grid():
    units = clip_to_grid(np.array([0.99, -0.99, 2.5]), [3], [100], 0.5)
    assert units.tolist() == [1, -1, 5]


def test_blocks_are_clipped_apart():
    units = clip_to_grid(np.array([30.0, 40.0, 3.0, 4.0]), [2, 2], [10, 10], 1.0)
    assert units.tolist() == [6, 8, 3, 4]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_one_bad_value_makes_the_whole_chunk_null(bad, dtype):
    values = np.array([1.0, 2.0, 3.0, bad], dtype)
    assert clip_to_grid(values, [1, 3], [10, 10], 0.5).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("size", [1e-5, 6e-8, 300.0, 65504.0])
def test_half_precision_norms_neither_vanish_nor_overflow(size):
    values = np.full(64, size, np.float16)
    exact = float(values[0])
    inside = clip_to_grid(values, [64], [2**30], exact / 1024)
    assert inside.tolist() == [1024] * 64
    outside = clip_to_grid(values, [64], [8192], exact / 2**20)
    assert outside.tolist() == [1024] * 64


def test_bfloat16_values_carried_in_float32_are_exact():
    # 1.0078125 is the neighbour of 1 in bfloat16.
    values = np.array([1.0078125, -1.0078125], np.float32)
    assert clip_to_grid(values, [2], [2**20], 2.0**-7).tolist() == [129, -129]


@pytest.mark.parametrize(
    ("size", "dtype"), [(3e38, np.float32), (1e300, np.float64), (1e-320, np.float64)]
)
def test_norms_beyond_the_number_format_keep_their_direction(size, dtype):
    values = np.array([size, -size, size, size], dtype)
    grid = float(np.abs(values[0])) / 2**60 if size > 1 else 5e-324
    assert clip_to_grid(values, [4], [2000], grid).tolist() == [1000, -1000, 1000, 1000]


def test_float_scaling_alone_would_leave_the_ball():
    rng = np.random.default_rng(0)
    radius, outside = 2**50, 0
    for _ in range(50):
        values = rng.normal(size=4)
        scaled = values * (radius / np.linalg.norm(values))
        outside += squares(np.rint(scaled).astype(np.int64)) > radius**2
        assert squares(clip_to_grid(values, [4], [radius], 1e-20)) <= radius**2
    assert outside > 10


@given(units=st.lists(st.integers(-50, 50), min_size=1, max_size=6), radius=st.integers(0, 60))
@settings(deadline=None)
def test_into_ball_takes_no_more_units_than_it_must(units, radius):
    before = np.array(units, np.int64)
    after = _into_ball(before.copy(), radius)
    assert squares(after) <= radius**2
    assert (np.abs(after) <= np.abs(before)).all()
    if squares(before) <= radius**2:
        assert (after == before).all()
    else:
        assert (math.isqrt(squares(after)) + 2) ** 2 > radius**2


def test_into_ball_does_not_overflow():
    assert _into_ball(np.array([2**62, 1], np.int64), 2**62).tolist() == [2**62 - 1, 1]


@pytest.mark.parametrize("size", [3, 5])
def test_blocks_that_do_not_fit_are_a_bug(size):
    with pytest.raises(InternalError):
        clip_to_grid(np.zeros(size), [2, 2], [1, 1], 1.0)
    with pytest.raises(InternalError):
        clip_to_grid(np.zeros(4), [2, 2], [1], 1.0)


def test_a_signalling_nan_makes_no_warning():
    values = np.ones(3, np.float32)
    values.view(np.uint32)[1] = 0x7FA00000
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not clip_to_grid(values, [3], [100], 0.01).any()
