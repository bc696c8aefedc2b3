"""Decoding: the planted words are found, by the exhaustive search and by the iterated one."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from PIL import Image

from dpmtv import decoding
from dpmtv.decoding import decode, mixture, public_rules
from dpmtv.types import Demonstration


def planted(rng, classes: int, words: int, size: int = 20, noise: float = 0.01):
    """Atoms, shares, the words that made the release, and the release."""
    atoms = rng.normal(size=(classes, words, size)).astype(np.float32)
    shares = rng.dirichlet(np.full(classes, 5.0))
    truth = tuple(rng.permutation(words)[:classes].tolist())
    release = mixture(atoms, shares, truth) + rng.normal(size=size) * noise
    return atoms, shares, truth, release


def brute_force(release, atoms, shares, sigma):
    classes, words = atoms.shape[:2]
    scored = [
        (-np.sum((release - mixture(atoms, shares, z)) ** 2) / (2 * sigma**2), z)
        for z in permutations(range(words), classes)
    ]
    return sorted(scored, reverse=True)


@pytest.mark.parametrize("classes", [1, 2, 3, 6])
def test_a_planted_assignment_is_found_at_little_noise(classes):
    rng = np.random.default_rng(classes)
    for _ in range(10):
        atoms, shares, truth, release = planted(rng, classes, 40, size=60)
        best, second, *_ = decode(release, atoms, shares, 0.01, 5)
        assert best.words == truth
        assert best.log_likelihood > second.log_likelihood + 10


@pytest.mark.parametrize(("classes", "words"), [(1, 7), (2, 7), (2, 2), (1, 1)])
def test_one_or_two_classes_are_searched_in_full(classes, words):
    rng = np.random.default_rng(0)
    for _ in range(10):
        atoms, shares, _, release = planted(rng, classes, words, noise=0.5)
        wanted = brute_force(release, atoms, shares, 0.5)
        found = decode(release, atoms, shares, 0.5, 1000)
        assert [one.words for one in found] == [z for _, z in wanted]
        likelihoods = [one.log_likelihood for one in found]
        assert np.allclose(likelihoods, [value for value, _ in wanted], rtol=1e-5)
        assert decode(release, atoms, shares, 0.5, 3) == found[:3]


def test_no_word_serves_two_classes():
    rng = np.random.default_rng(1)
    for classes in (2, 3, 4):
        word = rng.normal(size=20)
        atoms = np.stack([np.stack([word, word / 2, -word, word * 0])] * classes)
        shares = np.full(classes, 1 / classes)
        found = decode(word, atoms, shares, 0.1, 6)  # saying word 0 throughout would fit best
        assert found
        for one in found:
            assert len(set(one.words)) == classes
    assert decode(word, atoms[:, :3], shares, 0.1, 6) == []  # four classes, three words


def agreement(runs: int = 40) -> float:
    """Share of small random cases in which the iterated search finds the best assignment."""
    rng = np.random.default_rng(2)
    right = 0
    for _ in range(runs):
        atoms, shares, _, release = planted(rng, 3, 7, noise=0.3)
        found = decode(release, atoms, shares, 0.3, 3)
        likelihoods = [one.log_likelihood for one in found]
        assert likelihoods == sorted(likelihoods, reverse=True)
        right += found[0].words == brute_force(release, atoms, shares, 0.3)[0][1]
    return right / runs


def test_the_iterated_search_mostly_finds_the_best():
    assert agreement() >= 0.95


def test_one_start_without_sweeps_would_not(monkeypatch):
    monkeypatch.setattr(decoding, "_STARTS", 1)
    monkeypatch.setattr(decoding, "_SWEEPS", 0)
    assert agreement() < 0.95


def test_the_search_is_the_same_at_every_call():
    atoms, shares, _, release = planted(np.random.default_rng(3), 5, 30, noise=1.0)
    assert decode(release, atoms, shares, 1.0, 8) == decode(release, atoms, shares, 1.0, 8)


def test_rules_are_told_apart_by_question_and_number_of_classes():
    image = Image.new("RGB", (2, 2))

    def rule(task, question, answers):
        return [Demonstration(image, question, a, task=task) for a in answers]

    public = [
        *rule("warmth", "Is it  warm?", ["yes", "no", "no", "yes", "no"]),
        *rule("warmth, other words", "Is it warm?", ["hot", "cold"]),
        *rule("colour", "Which colour?", ["red", "green", "blue"]),
        *rule("constant", "Is it warm? ", ["ja", "ja"]),
    ]
    constant, warmth, colour = public_rules(public)
    assert [len(r.classes) for r in (constant, warmth, colour)] == [1, 2, 3]
    assert [[r.answer for r in c] for c in warmth.classes] == [["yes"] * 2, ["no"] * 3]
    assert warmth.shares == pytest.approx([0.4, 0.6])
    assert public_rules(public, ["Is it warm?"]) == [constant, warmth]
    assert public_rules(public, ["How many?"]) == []
