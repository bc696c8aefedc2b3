"""Scores of generated answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

EXACT_MATCH = "exact match of the whole answer"


def exact_match(answers: Sequence[str], wanted: Sequence[str]) -> float:
    """Share of answers that are the wanted one, white space apart.

    >>> exact_match(["rot", "blau blau"], ["rot", "blau"])
    0.5
    """
    pairs = zip(answers, wanted, strict=True)
    return sum(a.split() == w.split() for a, w in pairs) / len(wanted)
