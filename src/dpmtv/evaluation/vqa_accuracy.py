"""VQA accuracy (Antol et al. 2015, arXiv 1505.00468): as its evaluator runs, and repaired.

The official evaluator is GT-Vision-Lab/VQA, PythonEvaluationTools/vqaEvaluation/vqaEval.py; copies
of it score VizWiz and OK-VQA in most repositories, also in Qwen-VL's, from which MTV takes it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dpmtv.data.values import composed

if TYPE_CHECKING:
    from collections.abc import Sequence

_MARKS = ';/[]"{}()=+\\_-><@`,?!'
_COMMA = re.compile(r"\d,\d")
_PERIOD = re.compile(r"\.(?!\d)")
_PERIODS = 32  # the evaluator passes re.UNICODE (32) where re.sub takes the most replacements
_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NUMBERS = {word: str(number) for number, word in enumerate(_WORDS)} | {"none": "0"}
_ARTICLES = ("a", "an", "the")
# The evaluator lists these without one of their apostrophes; capitals in its list never match.
_CONTRACTED = """
    ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't
    haven't he'd he'd've he's how'd how'll how's isn't it'd it'd've it'll ma'am mightn't mightn't've
    might've mustn't must've needn't not've o'clock oughtn't 'ow's'at shan't she'd've should've
    shouldn't shouldn't've somebody'd've somebody'll somebody's someone'd someone'd've someone'll
    someone's something'd something'd've something'll that's there'd there'd've there're there's
    they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're
    what's what've when's where'd where's where've who'd who'd've who'll who's who've why'll why're
    why's won't would've wouldn't wouldn't've y'all y'all'll y'all'd've you'd you'd've you'll you're
    you've
"""
CONTRACTIONS = {
    word[:at] + word[at + 1 :]: word
    for word in _CONTRACTED.split()
    for at in range(len(word))
    if word[at] == "'"
} | {"somebody'd": "somebodyd"}  # the only one that goes the other way


def without_punctuation(text: str) -> str:
    """Punctuation gone where it stands beside a space or a number has a comma, else a space.

    >>> without_punctuation("blue, green"), without_punctuation("blue/green"), without_punctuation("no.")
    ('blue green', 'blue green', 'no')
    """  # noqa: E501
    result = text
    commas = _COMMA.search(text)
    for mark in _MARKS:
        gone = commas or mark + " " in text or " " + mark in text
        result = result.replace(mark, "" if gone else " ")
    return _PERIOD.sub("", result, _PERIODS)


def plain_words(text: str) -> str:
    """Lower case, number words as digits, no articles, apostrophes where they belong.

    >>> plain_words("The  three dogs dont bark")
    "3 dogs don't bark"
    """
    words = [_NUMBERS.get(word, word) for word in text.lower().split()]
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in _ARTICLES)


def normalised(text: str) -> str:
    """All that the evaluator does to an answer.

    >>> normalised("The two cats!")
    '2 cats'
    """
    return plain_words(without_punctuation(_line(text)))


def _line(text: str) -> str:
    return re.sub(r"[\n\t]", " ", text).strip()


def accuracy_as_run(answer: str, given: Sequence[Any]) -> float:
    """What the official evaluator gives one answer, faults included.

    The annotators' answers lose their punctuation only where they differ, and nothing else; each
    is compared with those that are not equal to it, so that records without ids leave out all
    their equals at once.

    Args:
        answer: the model's.
        given: the annotators' as they stand in the file: objects with ``answer``, or plain texts,
            which the evaluator cannot read and whose places stand for ids here.
    """
    records = [dict(g) if isinstance(g, dict) else {"answer": g, "at": i} for i, g in _all(given)]
    if len({str(record["answer"]) for record in records}) > 1:
        records = [{**r, "answer": without_punctuation(str(r["answer"]))} for r in records]
    found = normalised(answer)
    shares: list[float] = []
    for record in records:
        others = [other for other in records if other != record]
        shares.append(min(1.0, sum(other["answer"] == found for other in others) / 3))
    return sum(shares) / len(shares)


def accuracy_repaired(answer: str, given: Sequence[Any]) -> float:
    """The same measure with its faults repaired: one is left out by its place, all are normalised.

    >>> accuracy_repaired("two", ["two"] * 10), accuracy_repaired("two", ["2"] * 3 + ["3"] * 7)
    (1.0, 0.9)
    """
    found = repaired(answer)
    same = [
        repaired(str(g.get("answer")) if isinstance(g, dict) else str(g)) == found
        for _, g in _all(given)
    ]
    return sum(min(1.0, (sum(same) - one) / 3) for one in same) / len(same)


def _all(given: Sequence[Any]) -> list[tuple[int, Any]]:
    if not given:
        raise ValueError("a question without answers cannot be scored")
    return list(enumerate(given))


def repaired(text: str) -> str:
    """`normalised`, with composed letters and straight apostrophes, and never to nothing.

    Where marks or articles are all there is, they are what was said.

    >>> repaired("don’t"), repaired("A"), repaired("+")
    ("don't", 'a', '+')
    """
    plain = _line(composed(text).replace("’", "'"))
    unmarked = without_punctuation(plain).strip() or plain
    return plain_words(unmarked) or unmarked.lower()
