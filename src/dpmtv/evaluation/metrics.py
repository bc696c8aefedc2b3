"""Scores of generated answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpmtv.data.values import composed

if TYPE_CHECKING:
    from collections.abc import Sequence

EXACT_MATCH = "exact match of the whole answer"


def exact_match(answers: Sequence[str], wanted: Sequence[str | Sequence[str]]) -> float:
    """Share of answers that are the wanted one, or one of several.

    Neither white space nor the Unicode form of the letters counts.

    >>> exact_match(["rot", "blau blau", "oui"], ["rot", "blau", ("non", "oui")])
    0.6666666666666666
    """
    right = 0
    for answer, accepted in zip(answers, wanted, strict=True):
        several = (accepted,) if isinstance(accepted, str) else accepted
        right += _words(answer) in [_words(a) for a in several]
    return right / len(wanted)


def _words(text: str) -> list[str]:
    return composed(text).split()
