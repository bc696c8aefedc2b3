"""How the eight benchmarks score answers: by official code as it runs, and repaired beside it.

Every score is of one answer, from 0 to 1, or NaN where a measure does not count the question.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmtv.evaluation.metrics import EXACT_MATCH, exact_match
from dpmtv.evaluation.vqa_accuracy import accuracy_as_run, accuracy_repaired, normalised, repaired

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float

    from dpmtv.types import Demonstration

Score = Callable[[str, "Demonstration", Any], float]


@dataclass(frozen=True)
class Metric:
    """A measure: its name in the rows, and its score of (answer, record, what its code sees)."""

    name: str
    score: Score


def outcomes(
    metrics: Sequence[Metric],
    answers: Sequence[str],
    records: Sequence[Demonstration],
    seen: Sequence[Any],
) -> Float[np.ndarray, "metrics answers"]:
    """Every answer's score under every measure; NaN where it does not count."""
    asked = list(zip(answers, records, seen or [None] * len(records), strict=True))
    return np.array([[metric.score(*one) for one in asked] for metric in metrics], dtype=float)


# --- medical questions: LLaVA-Med, llava/eval/run_eval.py ------------------------------------


def token_precision(answer: str, wanted: str) -> float:
    """What LLaVA-Med calls exact match: different words found, of all words said."""
    said, right = _words(answer, normalised), _words(wanted, normalised)
    return sum(word in said for word in right) / said.total() if said else 0.0


def f1_as_run(answer: str, wanted: str) -> float:
    """LLaVA-Med's F1: a right word counts as often as it is said, so repeating costs nothing."""
    said, right = _words(answer, normalised), _words(wanted, normalised)
    hits = sum(count for word, count in said.items() if word in right)
    return _f1(hits, said.total(), hits + sum(n for word, n in right.items() if word not in said))


def token_f1(answer: str, wanted: str) -> float:
    """F1 over words with multiplicity (Rajpurkar et al. 2016, SQuAD).

    >>> token_f1("left lung", "left upper lung")
    0.8
    """
    said, right = _words(answer), _words(wanted)
    return _f1((said & right).total(), said.total(), right.total())


def bleu_1(answer: str, wanted: str) -> float:
    """Sentence BLEU of single words (Papineni et al. 2002), as nltk's with weights (1, 0, 0, 0).

    >>> round(bleu_1("left lung", "left upper lung"), 4)
    0.6065
    """
    said, right = _words(answer), _words(wanted)
    if not said:
        return 0.0
    brief = min(1.0, math.exp(1 - right.total() / said.total()))
    return (said & right).total() / said.total() * brief


def closed_as_run(answer: str, wanted: str) -> float:
    """LLaVA-Med's yes/no accuracy: "no" is found inside words, and wrong yes or no is not counted.

    A wrong "yes" or "no" adds nothing to the list that is averaged, so only answers without
    either are ever wrong.
    """
    said, right = normalised(answer), normalised(wanted)
    if "yes" in said or "no" in said:
        return 1.0 if right in said else math.nan
    return 0.0


def closed_accuracy(answer: str, wanted: str) -> float:
    """Whether a closed question is answered right: yes or no as a word, or the whole wanted answer.

    >>> closed_accuracy("Yes, there is.", "yes"), closed_accuracy("normal", "no")
    (1.0, 0.0)
    """
    said, right = repaired(answer), repaired(wanted)
    if right in ("yes", "no"):
        named = {"yes", "no"} & set(said.split())
        return float(named == {right})
    return float(said == right)


def _same(answer: str, wanted: str) -> float:
    return float(repaired(answer) == repaired(wanted))


def _words(text: str, form: Callable[[str], str] = repaired) -> Counter[str]:
    return Counter(form(text).split())


def _f1(hits: int, said: int, right: int) -> float:
    return 2 * hits / (said + right) if hits else 0.0


def _of(kind: str, score: Callable[[str, str], float]) -> Score:
    def of_kind(answer: str, record: Demonstration, seen: Any) -> float:
        return score(answer, record.answer) if seen == kind else math.nan

    return of_kind


# --- options: MTV, mtv_eval.py --------------------------------------------------------------

_ALONE = re.compile(r"\W*([ABab])(?:\W*$|\s*[.):,])")
_TOLD = re.compile(r"\b(?i:answer|option|choice)(?i:\s+is|\s*:)?\W*\b([ABb]|a(?!\s+[a-z]))\b")


def letter_as_run(answer: str) -> str:
    """MTV reads what comes before the first full stop and line end, and nothing else."""
    return answer.split(".")[0].split("\n")[0].strip().upper()


def letter_of(answer: str, options: tuple[str, str]) -> str | None:
    """The option that an answer in any form names: "A", "(b)", "A. rose", "the answer is B", "rose".

    A letter counts alone, before a mark, or after "answer" or "option"; "a rose" has no letter.
    The first line decides if it names one option, else the whole; naming both is naming none.

    >>> letter_of("The answer is B.", ("rose", "lotus")), letter_of("a rose", ("rose", "lotus"))
    ('B', 'A')
    """  # noqa: E501
    lines = answer.strip().splitlines() or [""]
    return _letter(lines[0], options) or _letter(" ".join(lines), options)


def _letter(text: str, options: tuple[str, str]) -> str | None:
    said = {letter.upper() for letter in _TOLD.findall(text)}
    if alone := _ALONE.match(text):
        said.add(alone[1].upper())
    if not said:
        said = {letter for letter, name in zip("AB", options, strict=True) if _names(text, name)}
        longer, shorter = sorted(options, key=len, reverse=True)
        if len(said) == 2 and not _names(_left_out(text, longer), shorter):
            said = {"AB"[options.index(longer)]}  # "water lily" is not "lily" too
    return said.pop() if len(said) == 1 else None


def _names(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE) is not None


def _left_out(text: str, name: str) -> str:
    return re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", " ", text, flags=re.IGNORECASE)


# --- the table ------------------------------------------------------------------------------

EXACT = Metric(EXACT_MATCH, lambda answer, r, _: exact_match([answer], [r.accepted or r.answer]))

OFFICIAL = {
    "vqa": (
        Metric("VQA accuracy, official code as it runs", lambda a, _, s: accuracy_as_run(a, s)),
        Metric("VQA accuracy, repaired", lambda a, _, s: accuracy_repaired(a, s)),
    ),
    "medical": (
        Metric(
            "accuracy, open and closed",
            lambda a, r, s: closed_accuracy(a, r.answer) if s == "CLOSED" else _same(a, r.answer),
        ),
        Metric("closed accuracy", _of("CLOSED", closed_accuracy)),
        Metric("closed accuracy, LLaVA-Med as it runs", _of("CLOSED", closed_as_run)),
        Metric("open exact match", _of("OPEN", _same)),
        Metric("open exact match, LLaVA-Med as it runs", _of("OPEN", token_precision)),
        Metric("open F1", _of("OPEN", token_f1)),
        Metric("open F1, LLaVA-Med as it runs", _of("OPEN", f1_as_run)),
        Metric("open BLEU-1", _of("OPEN", bleu_1)),
    ),
    "options": (
        Metric(
            "option letter, MTV as it runs", lambda a, r, _: float(letter_as_run(a) == r.answer)
        ),
        Metric("option named in any form", lambda a, r, s: float(letter_of(a, s) == r.answer)),
    ),
}
"""The first of each leads the tables. "As it runs" marks official code with known faults."""
