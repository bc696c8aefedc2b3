"""The suite is what docs/embedded.md says, and training never saw what it holds out."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from conventions import BY_NAME, CONVENTIONS, PUBLIC_TASKS, SUITE  # training/
from sequences import RuleSource
from words import DEV_HELD_OUT, HELD_OUT, POOL

GROUPS = Counter(task.group for task in SUITE)
KINDS = ("fixed", "random", "swapped", "styled", "mixed")


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
    pairs = {frozenset(a) for _, a in held_out if len(set(a)) <= 3}
    for rule in drawn:
        for part in rule.parts:
            assert (part.family, part.answers) not in held_out
            if part.name != part.family and part not in CONVENTIONS:
                assert frozenset(part.answers) not in pairs
        if len(rule.parts) > 1:
            mixed = {(p.family, p.answers) for p in rule.parts}
            assert not any(
                mixed == {(p.family, p.answers) for p in t.rules} for t in SUITE if len(t.rules) > 1
            )
