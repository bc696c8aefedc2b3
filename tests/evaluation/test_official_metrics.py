"""Official scores by hand: each case of docs/benchmarks.md, as the code runs and repaired."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpmtv.evaluation.comparisons import bootstrap_interval, paired_p
from dpmtv.evaluation.official_metrics import (
    OFFICIAL,
    bleu_1,
    closed_accuracy,
    closed_as_run,
    f1_as_run,
    letter_as_run,
    letter_of,
    outcomes,
    token_f1,
    token_precision,
)
from dpmtv.evaluation.vqa_accuracy import (
    CONTRACTIONS,
    accuracy_as_run,
    accuracy_repaired,
    normalised,
)
from dpmtv.types import Demonstration

PAGE = (Path(__file__).parents[2] / "docs/benchmarks.md").read_text("utf-8")


def plain(*counts: tuple[str, int]) -> list[dict[str, str]]:
    """Annotators' answers without ids, all equally sure: VizWiz's schema."""
    return [
        {"answer": answer, "answer_confidence": "yes"} for answer, n in counts for _ in range(n)
    ]


def numbered(*counts: tuple[str, int]) -> list[dict[str, object]]:
    """The same with ids: OK-VQA's schema."""
    return [{**record, "answer_id": i} for i, record in enumerate(plain(*counts), start=1)]


# (case on the page, answer, annotators' answers, as it runs, repaired), in per cent
VQA = [
    ("ten identical, no ids", "red", plain(("red", 10)), 0, 100),
    ("ten identical, ids", "red", numbered(("red", 10)), 100, 100),
    ("five and five, no ids", "red", plain(("red", 5), ("blue", 5)), 50, 100),
    ("five and five, ids", "red", numbered(("red", 5), ("blue", 5)), 100, 100),
    ("three of ten, ids", "red", numbered(("red", 3), ("blue", 7)), 90, 90),
    ("three of ten, no ids", "red", plain(("red", 3), ("blue", 7)), 70, 90),
    ("two of ten, ids", "red", numbered(("red", 2), ("blue", 8)), 60, 60),
    ("one of ten, ids", "red", numbered(("red", 1), ("blue", 9)), 30, 30),
    ("none of ten", "green", numbered(("red", 10)), 0, 0),
    (
        "unanswerable",
        "Unanswerable.",
        numbered(("unanswerable", 9), ("dark", 1)),
        100,
        100,
    ),
    (
        "unanswerable, sure and unsure",
        "unanswerable",
        [{"answer": "unanswerable", "answer_confidence": s} for s in ["yes"] * 8 + ["no"] * 2],
        # eight times 2/3, twice 1
        100 * (8 * 2 / 3 + 2) / 10,
        100,
    ),
    ("number word", "two", numbered(("2", 10)), 100, 100),
    ("number word among the annotators'", "two", numbered(("two", 10)), 0, 100),
    ("none", "none", numbered(("none", 4), ("nothing", 6)), 0, 100),
    ("article", "the dog", numbered(("dog", 9), ("cat", 1)), 100, 100),
    ("article among the annotators'", "the dog", numbered(("the dog", 9), ("cat", 1)), 0, 100),
    ("capital among the annotators'", "Coca-Cola", numbered(("Coca Cola", 9), ("x", 1)), 0, 100),
    ("punctuation, all alike", "yes!", numbered(("yes!", 10)), 0, 100),
    ("punctuation, a blank left over", "yes!", numbered(("yes!", 9), ("no", 1)), 0, 100),
    ("punctuation between words", "black/white", numbered(("black/white", 9), ("no", 1)), 100, 100),
    ("comma in a number", "1,000", numbered(("1000", 10)), 100, 100),
    ("decimal", "3.5", numbered(("3.5", 10)), 100, 100),
    ("contraction", "dont walk", numbered(("don't walk", 10)), 100, 100),
    ("curly apostrophe", "don’t walk", numbered(("don't walk", 10)), 0, 100),
    ("composed accent", "cafe\u0301", numbered(("caf\u00e9", 10)), 0, 100),
    ("other scripts", "白い犬", numbered(("白い犬", 10)), 100, 100),
    ("blank ones among ten", "red", ["red"] * 9 + [""], 100, 100),
    ("plain texts", "red", ["red"] * 10, 100, 100),
    ("another article", "the", ["a"] * 10, 0, 0),
    ("nothing, and an article", "", ["A"] * 10, 0, 0),
    ("other marks alone", "+", ["-"] * 10, 0, 0),
    ("the same mark alone", "+", ["+"] * 10, 0, 100),
]


@pytest.mark.parametrize("case", VQA, ids=lambda case: case[0])
def test_vqa_accuracy_by_hand(case):
    _, answer, given_, as_run, repaired = case
    assert 100 * accuracy_as_run(answer, given_) == pytest.approx(as_run)
    assert 100 * accuracy_repaired(answer, given_) == pytest.approx(repaired)


# (case, answer, wanted, scores in the order of the page's columns), in per cent
MEDICAL = [
    # exact, token precision, F1, F1 as run, BLEU-1
    ("the whole answer", "left lung", "left lung", 100, 100, 100, 100, 100),
    ("a word missing", "left lung", "left upper lung", 0, 100, 80, 80, 100 * math.exp(-1 / 2)),
    ("a word more", "left upper lung", "left lung", 0, 100 * 2 / 3, 80, 80, 100 * 2 / 3),
    ("one word again and again", "lung lung lung", "lung", 0, 100 / 3, 50, 100, 100 / 3),
    ("case, article, full stop", "The Lung.", "lung", 100, 100, 100, 100, 100),
    ("other words", "heart", "left lung", 0, 0, 0, 0, 0),
    ("nothing", "", "left lung", 0, 0, 0, 0, 0),
]


@pytest.mark.parametrize("case", MEDICAL, ids=lambda case: case[0])
def test_open_medical_answers_by_hand(case):
    _, answer, wanted, *scores = case
    found = (
        float(normalised(answer) == normalised(wanted)),
        *(f(answer, wanted) for f in (token_precision, token_f1, f1_as_run, bleu_1)),
    )
    assert [100 * score for score in found] == pytest.approx(scores)


CLOSED = [  # case, answer, wanted, as run (None: not counted), repaired
    ("right", "Yes, it is.", "yes", 100, 100),
    ("wrong", "no", "yes", None, 0),
    ("no inside a word", "normal", "no", 100, 0),
    ("both", "yes and no", "no", 100, 0),
    ("neither", "maybe", "yes", 0, 0),
    ("another closed answer", "left", "left", 0, 100),
    ("another, with a sentence", "on the left", "left", 0, 0),
    ("articles alone", "the", "a", 0, 0),
]


@pytest.mark.parametrize("case", CLOSED, ids=lambda case: case[0])
def test_closed_medical_answers_by_hand(case):
    _, answer, wanted, as_run, repaired = case
    found = closed_as_run(answer, wanted)
    assert (None if math.isnan(found) else 100 * found) == as_run
    assert 100 * closed_accuracy(answer, wanted) == repaired


OPTIONS = [  # answer, MTV reads, we read, of A rose, B water lily
    ("A", "A", "A"),
    ("b.", "B", "B"),
    ("(B)", "(B)", "B"),
    ("A. rose", "A", "A"),
    ("B) water lily", "B) WATER LILY", "B"),
    ("The answer is B.", "THE ANSWER IS B", "B"),
    ("Answer: A", "ANSWER: A", "A"),
    ("option b", "OPTION B", "B"),
    ("a rose", "A ROSE", "A"),
    ("a water lily", "A WATER LILY", "B"),
    ("The answer is a rose", "THE ANSWER IS A ROSE", "A"),
    ("Water Lily", "WATER LILY", "B"),
    ("roses", "ROSES", None),
    ("a rose or a water lily", "A ROSE OR A WATER LILY", None),
    ("A. The answer is B.", "A", None),
    ("A\nWhat is the type of flower?", "A", "A"),
    ("The answer is:\nB", "THE ANSWER IS:", "B"),
    ("C", "C", None),
    ("", "", None),
]


@pytest.mark.parametrize("case", OPTIONS, ids=lambda case: case[0] or "nothing")
def test_options_by_hand(case):
    answer, as_run, ours = case
    assert letter_as_run(answer) == as_run
    assert letter_of(answer, ("rose", "water lily")) == ours


def test_an_option_inside_the_other_is_not_named_with_it():
    assert letter_of("water lily", ("lily", "water lily")) == "B"
    assert letter_of("a lily", ("lily", "water lily")) == "A"
    assert letter_of("lily, not water lily", ("lily", "water lily")) is None


def _row(*cells: object) -> str:
    def shown(cell: object) -> str:
        if cell is None:
            return "—"
        if isinstance(cell, int | float):
            return f"{cell:.1f}".removesuffix(".0")
        return str(cell)

    return "| " + " | ".join(shown(cell) for cell in cells) + " |"


def test_the_page_shows_these_cases():
    for case, answer, _, as_run, repaired in VQA:
        row = _row(case, f"`{answer}`", as_run, repaired)
        assert row in PAGE, row
    for case, answer, wanted, *scores in MEDICAL:
        row = _row(case, f"`{answer}`" if answer else "", f"`{wanted}`", *scores)
        assert row in PAGE, row
    for case, answer, wanted, as_run, repaired in CLOSED:
        row = _row(case, f"`{answer}`", f"`{wanted}`", as_run, repaired)
        assert row in PAGE, row
    for answer, as_run, ours in OPTIONS:
        if answer and "\n" not in answer:
            row = _row(f"`{answer}`", f"`{as_run}`", ours)
            assert row in PAGE, row


def test_the_page_lists_every_prompt_and_metric():
    from dpmtv.data.benchmarks import PROMPTS, SETS

    for name, text in PROMPTS.items():
        assert f"`{name}`" in PAGE
        assert re.sub(r"\n", "⏎", text) in PAGE
    for metrics in OFFICIAL.values():
        for metric in metrics:
            assert metric.name in PAGE
    for name, of in SETS.items():
        assert f"`{name}`" in PAGE
        assert of.hub in PAGE


def test_contractions_miss_one_apostrophe_each():
    assert len(CONTRACTIONS) == 114
    for without, with_ in CONTRACTIONS.items():
        assert len(with_) - len(without) in (1, -1)


@given(
    st.lists(st.sampled_from(["two", "2", "the cat", "cat", "Cat!"]), min_size=10, max_size=10),
    st.sampled_from(["two", "cat", "dog"]),
)
def test_repaired_accuracy_is_the_mean_of_ten_leave_one_outs(given_, answer):
    same = sum(normalised(text) == normalised(answer) for text in given_)
    by_hand = (same * min(1, (same - 1) / 3) + (10 - same) * min(1, same / 3)) / 10
    assert accuracy_repaired(answer, given_) == pytest.approx(by_hand)


def test_scores_of_a_kind_leave_the_others_out():
    records = [Demonstration("", "q", answer) for answer in ("yes", "lung")]
    scores = outcomes(OFFICIAL["medical"], ["yes", "heart"], records, ["CLOSED", "OPEN"])
    by_name = dict(zip([m.name for m in OFFICIAL["medical"]], scores, strict=True))
    np.testing.assert_array_equal(by_name["accuracy, open and closed"], [1, 0])
    np.testing.assert_array_equal(by_name["closed accuracy"], [1, np.nan])
    np.testing.assert_array_equal(by_name["open BLEU-1"], [np.nan, 0])


# --- intervals and tests -------------------------------------------------------------------


def test_a_bootstrap_interval_is_about_two_standard_errors_wide():
    scores = np.repeat([0.0, 1.0], 200)[None]
    low, high = bootstrap_interval(scores)
    assert low == pytest.approx(0.5 - 1.96 * 0.025, abs=0.006)
    assert high == pytest.approx(0.5 + 1.96 * 0.025, abs=0.006)
    assert bootstrap_interval(scores) == (low, high)


def test_questions_that_do_not_count_do_not_narrow_an_interval():
    scores = np.repeat([0.0, 1.0], 20)
    with_blanks = np.concatenate([scores, np.full(40, np.nan)])
    low, high = bootstrap_interval(with_blanks[None])
    assert high - low > 0.9 * np.subtract(*bootstrap_interval(scores[None])[::-1])


def test_mcnemar_counts_only_questions_that_differ():
    one, other = np.ones(100), np.ones(100)
    other[:8], one[8] = 0, 0
    # of nine that differ, eight for one: 2 (1 + 9) / 2^9
    assert paired_p(one, other) == pytest.approx(2 * (1 + 9) / 2**9)
    assert paired_p(one, one) == 1.0


def test_shares_are_compared_by_swapping():
    rng = np.random.default_rng(1)
    base = rng.uniform(0, 0.5, 60)
    assert paired_p(base + 0.2, base) < 0.001
    assert paired_p(base, rng.permutation(base)) > 0.01
    assert paired_p(np.array([0.5]), np.array([0.5])) == 1.0


def test_a_test_without_difference_rejects_as_often_as_it_says():
    rng = np.random.default_rng(2)
    found = [paired_p(*rng.integers(0, 2, (2, 40)).astype(float)) for _ in range(300)]
    assert np.mean(np.array(found) < 0.05) < 0.07
