"""Private words and a private choice: exact audits of their laws, and their rows."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import norm

from dpmtv.errors import PrivacyParameterError
from dpmtv.evaluation import rivals, runner
from dpmtv.evaluation import study as study_module
from dpmtv.evaluation.benchmark import load_benchmark
from dpmtv.evaluation.rivals import bank_choice, private_words, release_law, vector_epsilon
from dpmtv.evaluation.runner import evaluate_benchmark
from dpmtv.evaluation.settings import RIVALS, Settings
from dpmtv.privacy.accounting import noise_multiplier

REPLACE, ZERO = "replace_one", "zero_out"
BUDGETS = [(0.2, 1e-5), (1.0, 1e-5), (1.0, 1e-9), (8.0, 1e-5), (30.0, 1e-6)]


def worlds(law, relation):
    """Probabilities of what is released of the answers whose counts differ, in both worlds."""
    bits = [(Fraction(p), 1 - Fraction(p)) for p in law]
    steps = [(bits[c], bits[c - 1]) for c in range(1, len(bits))]  # P and Q, where c falls
    if relation == ZERO:
        return steps + [(q, p) for p, q in steps]
    return [
        (tuple(x * y for x in p for y in q2), tuple(x * y for x in q for y in p2))
        for p, q in steps
        for p2, q2 in steps
    ]


def delta_of(law, epsilon, relation):
    """Exact but for e^ε, over all pairs of counts."""
    growth = Fraction(math.exp(epsilon))
    return float(
        max(
            sum(max(Fraction(0), x - growth * y) for x, y in zip(p, q, strict=True))
            for p, q in worlds(law, relation)
        )
    )


@pytest.mark.parametrize("relation", [REPLACE, ZERO])
@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_the_words_cost_what_they_say_and_no_less(epsilon, delta, relation):
    law = release_law(epsilon, delta, relation, 40)
    assert law[0] == 0
    assert law[1] <= delta, "a word that one record has is hardly ever released"
    assert (np.diff(law) >= 0).all()
    assert 0.999 * delta < delta_of(law, epsilon, relation) <= delta * (1 + 1e-9)


def test_the_audit_finds_a_law_for_one_count_where_two_differ():
    law = release_law(1.0, 1e-5, ZERO, 40)
    assert delta_of(law, 1.0, REPLACE) > 0.1


def test_the_law_is_the_best_for_one_count_and_near_it_for_two():
    def half(law):
        return int(np.argmax(law >= 0.5))

    bound = [0.0]  # what group privacy leaves to any mechanism
    while bound[-1] < 0.5:
        bound.append(math.e * bound[-1] + 1e-5)
    assert half(release_law(1.0, 1e-5, ZERO, 100)) == len(bound) - 1 == 12
    assert half(release_law(1.0, 1e-5, REPLACE, 100)) == 16
    # Discrete Laplace noise of scale 2 with a threshold T: δ/2 for each of the two counts.
    q = math.exp(-1 / 2)
    assert next(t for t in range(1, 99) if q ** (t - 1) / (1 + q) <= 1e-5 / 2) == 25


def test_all_words_at_a_huge_epsilon_and_none_at_a_tiny_one():
    answers = ["rot"] * 20 + ["helles  blau", " helles blau"] * 10 + ["", " "] * 20 + ["grün"] * 20
    for relation in (REPLACE, ZERO):
        assert private_words(answers, 50.0, 1e-5, relation) == ("grün", "helles blau", "rot")
        assert private_words(answers, 1e-3, 1e-9, relation) == ()
    assert private_words(["rot"] * 30 + ["blau"], 8.0, 1e-12, REPLACE) == ("rot",)
    assert private_words([], 1.0, 1e-5, REPLACE) == ()
    with pytest.raises(PrivacyParameterError, match="delta"):
        private_words(answers, 1.0, 0.0, REPLACE)


@pytest.mark.parametrize("probability", [0.0, 2**-53, 0.25, 0.5, 0.8, 1 - 2**-53, 1.0])
def test_a_word_is_released_as_often_as_the_law_says(probability):
    n = 3000
    found = sum(rivals._happens(probability) for _ in range(n))
    # Five standard errors: one false alarm in a million.
    assert abs(found - n * probability) <= 5 * math.sqrt(n * probability * (1 - probability))


@pytest.mark.parametrize("relation", [REPLACE, ZERO])
def test_a_vector_beside_words_leaves_their_cost(relation):
    """δ of words and vector by brute force: cells of the Gaussian, every pair of counts."""
    epsilon, delta = 1.0, 1e-3
    law = release_law(0.4, delta / 2, relation, 12)
    left = vector_epsilon(epsilon, delta, relation, tuple(law.tolist()))
    assert 0.4 < left < 1, "more than the rest of epsilon or all of it"

    def together(vector):
        mu, cells = 1 / noise_multiplier(vector, delta), np.linspace(-12, 12, 8001)
        one, other = np.diff(norm.cdf(cells - mu)), np.diff(norm.cdf(cells))
        return max(
            sum(
                np.maximum(0, float(x) * one - math.exp(epsilon) * float(y) * other).sum()
                for x, y in zip(p, q, strict=True)
            )
            for p, q in worlds(law, relation)
        )

    assert 0.99 * delta < together(left) <= delta
    assert together(left + 0.05) > delta


def test_words_can_leave_nothing_for_a_vector():
    law = release_law(1.0, 1e-5, REPLACE, 20)
    assert vector_epsilon(1.0, 1e-5, REPLACE, tuple(law.tolist())) == 0


def test_the_bank_choice_takes_the_best_and_ends_up_blind(monkeypatch):
    scores = np.array([3, 0, 90, 89])
    assert {bank_choice(scores, 200.0, relation) for relation in (REPLACE, ZERO)} == {2}
    assert {bank_choice(scores, 1e-6, REPLACE) for _ in range(80)} == {0, 1, 2, 3}
    seen = []

    def note(scores, **how):
        seen.append(how)
        return SimpleNamespace(index=0)

    monkeypatch.setattr(rivals, "exponential_mechanism", note)
    for relation in (REPLACE, ZERO):
        bank_choice(scores, 1.5, relation)
    # A replaced record may raise one score and lower another.
    assert seen == [
        {"sensitivity": 1, "range_": 1.5, "monotone": False},
        {"sensitivity": 1, "range_": 1.5, "monotone": True},
    ]


@pytest.fixture(scope="module")
def benchmark():
    loaded = load_benchmark("embedded", ["color-warmth"])
    return replace(loaded, public=loaded.public[:120])


@pytest.mark.parametrize("geometry", ["default", "selected"])
def test_rivals_take_the_records_of_the_vectors_chunks(benchmark, monkeypatch, geometry):
    (task,) = benchmark.tasks
    settings = Settings(geometries=(geometry,), records=(30, 60), draws=7, shots=2)
    study = SimpleNamespace(model=None, settings=settings, records=benchmark.public, pools={})
    places = {id(record): place for place, record in enumerate(task.private)}
    monkeypatch.setattr(
        study_module,
        "public_values",
        lambda _m, cut, _q: np.array([[places[id(r)] for r in c] for c in cut]),
    )
    query = runner.GEOMETRIES[geometry].query
    for draw in range(settings.draws):
        for m in settings.sizes(query):
            rows = study_module.draw_activations(study, task, query, draw, m)
            drawn = study_module.draw_records(settings, task, query, draw, m)
            assert rows.ravel().tolist() == drawn
            assert len(set(drawn)) == len(drawn) in (30, 60)


def test_every_rival_has_a_row_for_each_level_and_says_what_it_used(model, benchmark):
    settings = Settings(
        methods=("zero-shot", *RIVALS),
        geometries=("default",),
        epsilons=(1.0, 8.0, None),
        records=(60,),
        draws=2,
        n_test=6,
        search_steps=1,
    )
    rows, _ = evaluate_benchmark(model, benchmark, settings, name="embedded", command="c")
    zero, *found = [r for r in rows if r["task"] == "mean"]
    levels = {(r["method"], r["relation"], r["epsilon"]) for r in found}
    assert levels == {(m, r, e) for m in RIVALS for r in (REPLACE, ZERO) for e in (1.0, 8.0)}
    assert len(found) == len(levels)
    for row in found:
        assert (row["records"], row["m"], row["delta"], row["draws"]) == (60, 60, 1e-5, 2)
        assert row["private"] is True
        assert (row["coordinates"] > 0) is (row["method"] == "private words + vector")
    words = [r for r in found if r["method"].startswith("private words") and r["epsilon"] == 8]
    # Two words of thirty records each are always released, and nothing else can be said.
    assert all(r["in_words"] == 1 for r in words)
    assert zero["in_words"] < 1


def test_where_several_records_vanish_no_rival_is_measured():
    settings = Settings(methods=RIVALS, geometries=("selected",), epsilons=(1.0,), chunks=(2,))
    asked = []
    measure = SimpleNamespace(
        study=SimpleNamespace(
            settings=settings,
            first="private",
            pools={("t", 4, 5, "private", 0): np.zeros((4, 4))},
            geometry=lambda *_: SimpleNamespace(block_sizes=(4,)),
        ),
        task=SimpleNamespace(name="t", private=[None] * 20),
        rivals=SimpleNamespace(answers=lambda *level: asked.append(level)),
        _note=lambda *_: None,
    )
    runner._Measure._rivals(measure, 0, 2)
    assert {(method, level[-1]) for method, *level in asked} == {(m, REPLACE) for m in RIVALS}


def test_a_set_of_words_is_answered_once(model, benchmark, monkeypatch):
    (task,) = benchmark.tasks
    bank = [np.zeros(model.layout.size)]
    heads = np.ones(model.layout.n_heads, bool)
    found = rivals.Rivals(
        model, [r.query for r in task.test[:3]], task.private, bank, heads, "prompt", 6
    )
    drawn = list(range(40))
    how = (drawn, None, 50.0, 1e-5, REPLACE)
    enforced = found.answers("private words enforced", *how)
    listed = found.answers("private words listed and enforced", *how)
    words = {" ".join(r.answer.split()) for r in task.private[:40]}
    assert set(enforced) | set(listed) <= words
    generated = []
    monkeypatch.setattr(model, "generate", lambda *a: generated.append(a))
    assert found.answers("private words enforced", *how) is enforced
    assert found.answers("private words listed and enforced", *how) is listed
    assert generated == []


def test_the_score_of_an_option_is_the_records_it_answers_right(benchmark, monkeypatch):
    (task,) = benchmark.tasks
    asked = []
    model = SimpleNamespace(prepare=lambda queries: queries)
    found = rivals.Rivals(model, [], task.private, [None, None], None, "prompt", 6)

    def under(_self, queries, option):
        asked.append((len(queries), option))
        right = [next(r.answer for r in task.private if r.query is q) for q in queries]
        return {0: ["?"] * len(right), 1: right, 2: [right[0], *["?"] * (len(right) - 1)]}[option]

    queries = {id(r): r.query for r in task.private}
    monkeypatch.setattr(rivals.Rivals, "_under_option", under)
    monkeypatch.setattr(type(task.private[0]), "query", property(lambda r: queries[id(r)]))
    assert found._scores([4, 7, 9]).tolist() == [0, 3, 1]
    assert found._scores([9, 4]).tolist() == [0, 2, 1]
    assert asked == [(3, 0), (3, 1), (3, 2)], "a record is scored once"
