"""Sensitivity: the constants, and rounding that never goes below the real number."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpmtv.errors import PrivacyParameterError
from dpmtv.privacy.sensitivity import NeighbourRelation, l2_sensitivity

MULTIPLIER = {
    NeighbourRelation.REPLACE_ONE: 2,
    NeighbourRelation.ADD_REMOVE: 2,
    NeighbourRelation.ZERO_OUT: 1,
}


def test_relations_are_spelled_as_the_command_line_spells_them():
    assert {str(r) for r in NeighbourRelation} == {"replace_one", "add_remove", "zero_out"}


@pytest.mark.parametrize("relation", NeighbourRelation)
def test_equal_clip_norms_give_the_closed_form(relation):
    # 32 layers clipped to 1.5, 100 chunks: sqrt(32)·1.5/100 times the multiplier.
    expected = MULTIPLIER[relation] * math.sqrt(32) * 1.5 / 100
    assert l2_sensitivity(relation, [1.5] * 32, 100) == pytest.approx(expected, rel=1e-15)


@given(
    relation=st.sampled_from(NeighbourRelation),
    clip_norms=st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=6),
    chunks=st.integers(1, 10**9),
)
def test_result_is_the_smallest_float_not_below_the_real_number(relation, clip_norms, chunks):
    square = Fraction(MULTIPLIER[relation], chunks) ** 2 * sum(Fraction(c) ** 2 for c in clip_norms)
    result = l2_sensitivity(relation, clip_norms, chunks)
    assert Fraction(result) ** 2 >= square
    assert Fraction(math.nextafter(result, 0)) ** 2 < square


@pytest.mark.parametrize("clip_norms", [[], [0.0], [-1.0], [math.nan], [math.inf], [1.0, 0.0]])
def test_unusable_clip_norms_are_refused(clip_norms):
    with pytest.raises(PrivacyParameterError, match="clip norms must be positive"):
        l2_sensitivity(NeighbourRelation.REPLACE_ONE, clip_norms, 10)


def test_overflow_is_refused():
    with pytest.raises(PrivacyParameterError, match="too large"):
        l2_sensitivity(NeighbourRelation.REPLACE_ONE, [1e308, 1e308], 1)


@pytest.mark.parametrize("chunks", [0, -3])
def test_no_chunk_is_refused(chunks):
    with pytest.raises(PrivacyParameterError, match="at least 1"):
        l2_sensitivity(NeighbourRelation.REPLACE_ONE, [1.0], chunks)
