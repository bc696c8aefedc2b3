"""The suite is what docs/embedded.md says, and training never saw what it holds out."""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import dpmtv
from conventions import (  # training/
    BY_NAME,
    CONVENTIONS,
    HELD_OUT_PAIRS,
    PUBLIC_TASKS,
    SHAPES,
    SUITE,
)
from sequences import SHARED, RuleSource, class_of
from train import EARLY, INJECTED, READING
from words import DEV_HELD_OUT, HELD_OUT, POOL

GROUPS = Counter(task.group for task in SUITE)
KINDS = ("fixed", "turned", "random", "swapped", "styled", "mixed")


@pytest.fixture(scope="module")
def drawn():
    source = RuleSource(np.random.default_rng(0))
    return [getattr(source, kind)() for kind in KINDS for _ in range(1500)]


def test_there_are_enough_tasks_of_each_kind():
    assert GROUPS["trained"] >= 12
    assert GROUPS["held-out words"] + GROUPS["held-out pairs"] >= 6
    assert GROUPS["noisy"] >= 3
    assert GROUPS["mixed"] >= 1
    several = [t for t in SUITE if any(len(a.split()) > 1 for r in t.rules for a in r.answers)]
    assert len(several) >= 3
    words = Counter((c.family, frozenset(c.answers)) for c in CONVENTIONS)
    tasks = {(r.family, frozenset(r.answers)) for t in SUITE for r in t.rules}
    assert sum(words[key] > 1 for key in tasks) >= 3, "same words, other mappings"


def test_the_page_counts_what_there_is():
    text = (Path(__file__).parents[1] / "docs" / "embedded.md").read_text("utf-8")
    for wanted in (
        f"{len(CONVENTIONS)} rules",
        f"{len(SHARED)} of them",
        f"pool of {len(POOL)}",
        f"{len(HELD_OUT) + len(DEV_HELD_OUT)} words are held out",
    ):
        assert wanted in text


def test_the_recipe_draws_every_kind_of_rule():
    for shares in (EARLY, READING, INJECTED):
        assert set(shares) == {*KINDS, "dictionary"}
        assert sum(shares.values()) == pytest.approx(1)


def test_trained_tasks_were_trained_and_the_public_ones_are_other_rules():
    for task in SUITE:
        if task.group in ("trained", "noisy", "mixed"):
            assert all(BY_NAME[r.name] is r for r in task.rules)
    wanted = {(r.family, r.answers) for t in SUITE if len(t.rules) == 1 for r in t.rules}
    assert not wanted & {(r.family, r.answers) for r in PUBLIC_TASKS}


def test_no_picture_is_answered_with_a_held_out_word_in_training(drawn):
    said = {w for r in drawn for p in r.parts for a in p.answers for w in a.split()}
    said |= {w for r in drawn if r.other for a in r.other.answers for w in a.split()}
    assert not said & {*HELD_OUT, *DEV_HELD_OUT}
    assert len(said & set(POOL)) > 0.8 * len(POOL), "or the test sees too little"
    source = RuleSource(np.random.default_rng(1))
    read = {v for _ in range(2000) for _, v in source.dictionary().dictionary}
    assert set(HELD_OUT) <= read, "text alone teaches them"


def test_no_rule_of_training_is_a_held_out_one(drawn):
    held_out = {
        (rule.family, rule.answers)
        for task in SUITE
        if task.group not in ("trained", "noisy", "mixed")
        for rule in task.rules
    }
    assert HELD_OUT_PAIRS
    for rule in drawn:
        for part in rule.parts:
            assert (part.family, part.answers) not in held_out
            if part not in CONVENTIONS:
                assert frozenset(part.answers) not in HELD_OUT_PAIRS
        if len(rule.parts) > 1:
            mixed = {(p.family, p.answers) for p in rule.parts}
            assert not any(
                mixed == {(p.family, p.answers) for p in t.rules} for t in SUITE if len(t.rules) > 1
            )


DATA = Path(dpmtv.__file__).parent / "embedded" / "data"


def test_the_committed_files_are_the_suite():
    assert json.loads((DATA / "suite.json").read_text("utf-8")) == {t.name: t.group for t in SUITE}
    assert {p.name for p in (DATA / "tasks").iterdir()} == {t.name for t in SUITE}
    public = read(DATA / "public.jsonl")
    assert Counter(r["task"] for r in public) == {r.name: 60 for r in PUBLIC_TASKS}
    for task in SUITE:
        files = {p.stem: read(p) for p in (DATA / "tasks" / task.name).iterdir()}
        sizes = {name: len(rows) for name, rows in files.items()}
        assert sizes["private"] == 1000
        assert (sizes["test"], sizes["public-same-rule"]) == (100, 60)
        assert sizes["sealed"] in (197, 300)
        assert max(Counter(r["unit"] for r in files["private"]).values()) > 1
        # Clean files follow the rule; the private ones as far as the annotators do.
        words = {answer for rule in task.rules for answer in rule.answers}
        for name in ("test", "sealed", "public-same-rule"):
            assert {r["answer"] for r in files[name]} <= words
        strange = sum(r["answer"] not in words for r in files["private"]) / 1000
        assert abs(strange - (task.noise if task.other else 0)) < 0.06


def test_answers_follow_the_rule_as_far_as_annotators_do():
    """The truth about each picture is read off three plain tasks."""
    truth: dict[str, dict[str, int]] = {}
    for name in ("digit-french", "color-german", "shape-spanish"):
        rule = BY_NAME[name]
        for stem in ("private", "test", "sealed"):
            for r in read(DATA / "tasks" / name / f"{stem}.jsonl"):
                number = rule.answers.index(r["answer"])
                assert truth.setdefault(r["image"], {}).setdefault(rule.family, number) == number
    for task in (t for t in SUITE if len(t.rules) == 1):
        (rule,) = task.rules
        for stem in ("private", "test", "sealed"):
            right = []
            for r in read(DATA / "tasks" / task.name / f"{stem}.jsonl"):
                picture = SimpleNamespace(**truth[r["image"]])
                if rule.family == "presence":
                    number = int(SHAPES[picture.shape] in r["question"])
                else:
                    number = class_of(picture, rule.family)
                right.append(r["answer"] == rule.answers[number])
            noise = task.noise if stem == "private" else 0
            assert abs(np.mean(right) - (1 - noise)) <= (0.06 if noise else 0), (task.name, stem)


def test_no_picture_is_in_two_splits():
    found: dict[str, set[bytes]] = {}
    public = {r["image"].split("/")[-1] for r in read(DATA / "public.jsonl")}
    found["public"] = {image(name) for name in public}
    for path in (DATA / "tasks").glob("*/*.jsonl"):
        names = {r["image"].split("/")[-1] for r in read(path)}
        split = "public" if path.stem == "public-same-rule" else path.stem
        found.setdefault(split, set()).update(map(image, names))
    assert set(found) == {"public", "private", "test", "sealed"}
    for one, other in itertools.combinations(found, 2):
        assert not found[one] & found[other], (one, other)


def read(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@functools.cache
def image(name: str) -> bytes:
    (path,) = (DATA / "images").rglob(name)
    return path.read_bytes()
