"""Neighbours through the real build: never farther apart than certified, and as far as that.

4,000 pairs each. Only the noise is left out, and the sums are compared as exact integers.
"""

from __future__ import annotations

import pytest
from tests import neighbours

EVERYWHERE = {"full", "raise", "panic", "nan", "unreadable", "bad row", "surplus"}
UNITS = {"over the cap", "all bad"}
ADDED = UNITS | {"deficit", "empty", "pushed out"}


@pytest.mark.parametrize(
    ("case", "pairs", "situations"),
    [
        (neighbours.RECORD, 4000, EVERYWHERE),
        (neighbours.PAPER, 4000, EVERYWHERE),
        (neighbours.UNIT, 4000, EVERYWHERE | UNITS),
        (neighbours.BIG_UNIT, 4000, EVERYWHERE | UNITS | {"deficit"}),
        (neighbours.ADDED, 2000, EVERYWHERE | ADDED),
        (neighbours.BIG_ADDED, 2000, EVERYWHERE | ADDED),
        (neighbours.DEFAULT, 4000, EVERYWHERE | {"all bad"}),
        (neighbours.LEARNED, 4000, EVERYWHERE | {"all bad"}),
        # A chunk of one row is full or empty.
        (neighbours.DEFAULT_ADDED, 6000, EVERYWHERE | ADDED - {"deficit"}),
    ],
    ids=[
        *("record", "paper", "unit", "unit of 3 rows", "added", "added with 3 rows"),
        *("default", "learned weights", "default, added"),
    ],
)
def test_no_pair_is_farther_apart_than_certified_and_some_are_as_far(case, pairs, situations):
    seen = neighbours.check_neighbours(case, pairs)
    missing = {name for name in situations if seen[name] < 20}
    assert not missing, "the pairs lack a situation that they are to show"
    assert seen["changed"] > pairs / 5


@pytest.mark.parametrize(
    "case",
    [
        neighbours.RECORD,
        neighbours.PAPER,
        neighbours.BIG_UNIT,
        neighbours.ADDED,
        neighbours.DEFAULT,
        neighbours.DEFAULT_ADDED,
    ],
    ids=["record", "paper", "unit of 3 rows", "added", "default", "default, added"],
)
def test_no_unit_moves_a_score_of_a_choice_by_more_than_one(case):
    seen = neighbours.check_choice(case, 2000)
    if case is not neighbours.PAPER:
        assert seen["both ways"] > 20, "such scores are not monotone"
