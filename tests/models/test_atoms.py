"""Atoms and candidate words: what they are, what they cost, and what they are functions of."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from dpmtv.data.demonstrations import read_demonstrations
from dpmtv.decoding import PublicRule, mixture, public_rules
from dpmtv.geometry import ReleaseGeometry
from dpmtv.models import atoms as atoms_module
from dpmtv.models.atoms import PICTURES, candidate_vectors, rule_atoms
from dpmtv.models.lexicon import answer_lexicon, first_tokens
from dpmtv.privacy.mechanisms import clipped_mean
from dpmtv.types import Prompt

WORDS = [f"word{i}" for i in range(20)]


@pytest.fixture
def records(data):
    return read_demonstrations(data / "tasks/presence-french/test.jsonl")[:12]


@pytest.fixture
def geometry(random_model) -> ReleaseGeometry:
    heads = np.arange(random_model.layout.n_heads) % 3 == 0
    return ReleaseGeometry(random_model.layout, heads, (0.2,))


@pytest.fixture
def seen(random_model, monkeypatch):
    """Every prompt that the model is given."""
    prompts: list[Prompt] = []
    plain = type(random_model).inputs

    def spy(self, batch):
        prompts.extend(batch)
        return plain(self, batch)

    monkeypatch.setattr(type(random_model), "inputs", spy)
    return prompts


def test_an_atom_is_the_mean_of_chunks_of_one_public_demonstration(random_model, records, geometry):
    rule = PublicRule(((records[0], records[1], records[2]), (records[3],)))
    queries = [r.query for r in records[4:6]]
    steps = []
    atoms = rule_atoms(
        random_model, geometry, rule, WORDS[:17], queries, progress=lambda *s: steps.append(s)
    )
    kept = geometry.layout.coordinates(geometry.heads)
    assert atoms.released.shape == (2, 17, kept.sum())
    assert atoms.whole.shape == (2, 17, geometry.layout.size)
    for c, shown in enumerate([(records[0], records[1]), (records[3], records[3])]):
        for w in (0, 15, 16):  # a batch ends after the 16th
            prompts = [
                Prompt((replace(record, answer=WORDS[w]),), query)
                for record, query in zip(shown, queries, strict=True)
            ]
            alone = np.stack([random_model.last_token_heads(p) for p in prompts])
            assert np.allclose(atoms.whole[c, w], alone.mean(0), atol=1e-5)
            clipped = clipped_mean(
                alone[:, kept],
                chunks=PICTURES,
                clip_norms=geometry.clip_norms,
                block_sizes=geometry.block_sizes,
            )
            assert np.allclose(atoms.released[c, w], clipped.value, atol=1e-5)
            assert np.linalg.norm(alone[:, kept], axis=1).min() > 0.2, "or nothing is clipped"
    assert np.ptp(atoms.whole, axis=1).max() > 1e-3, "words must matter"
    assert np.ptp(atoms.whole, axis=0).max() > 1e-3, "classes must matter"
    assert steps[-1] == ("decoding", 34, 34)


def test_passes_are_limited_and_the_first_words_stay(random_model, records, geometry, seen):
    rule = PublicRule((tuple(records[:2]), tuple(records[2:5])))
    queries = [records[5].query]
    assert rule_atoms(random_model, geometry, rule, WORDS, queries, 63) is None
    assert seen == []
    atoms = rule_atoms(random_model, geometry, rule, WORDS, queries, 70)
    assert atoms.whole.shape[:2] == (2, 17)
    assert len(seen) == 2 * 17 * PICTURES <= 70
    assert {p.demonstrations[0].answer for p in seen} == set(WORDS[:17])


def test_the_lexicon_sees_public_queries_and_the_released_vector_alone(random_model, records, seen):
    model = random_model
    rng = np.random.default_rng(0)
    heads = np.ones(model.layout.n_heads, dtype=bool)
    one, other = rng.normal(size=(2, model.layout.size))
    queries = [r.query for r in records[:3]]
    answers = ["two words", "again", " again ", "\u0007"]

    def lexicon(vector, count):
        chances = first_tokens(model, vector, heads, queries, "every-step")
        return answer_lexicon(model, vector, heads, queries, answers, chances, count=count)

    words = lexicon(one, 5)
    assert seen
    assert all(p.demonstrations == () and p.query in queries for p in seen)
    assert words == lexicon(one, 5)
    assert words != lexicon(other, 5)
    assert len(words) == len(set(words))
    own = words[: words.index("two words")]
    assert len(own) > 16, "the most promising words come first"
    assert words.count("again") == 1
    assert "\u0007" not in words
    others = words[words.index("again") + 1 :]
    assert len(others) <= 5
    more = lexicon(one, 300)
    with model.patched(one, heads):
        logits = model.forward(model.inputs([Prompt((), q) for q in queries]))[0][:, -1]
    likely = logits.log_softmax(1).mean(0)
    ids = [model.answer_ids(Prompt((), queries[0]), word)[0] for word in more[len(own) + 2 :]]
    assert len(ids) > 200
    assert ids == sorted(ids, key=lambda token: -likely[token]), "the likeliest words first"


@pytest.mark.parametrize("patch", ["prompt", "every-step"])
def test_own_answers_are_what_the_patched_model_says(model, data, patch):
    """Whole answers of several tokens, too: each likely first token goes on under the patch."""
    records = read_demonstrations(data / "tasks/digit-phrase/test.jsonl")[:8]
    shown = Prompt(tuple(records[:4]), records[4].query)
    vector = model.last_token_heads(shown)
    layer = np.repeat(np.arange(model.layout.layers), model.layout.heads)
    heads = (layer >= 1) & (layer < 4)
    query = records[4].query
    with model.patched(vector, heads, patch):
        (said,) = model.generate([query])
    chances = first_tokens(model, vector, heads, [query], patch)
    words = answer_lexicon(model, vector, heads, [query], [], chances, count=1, patch=patch)
    assert said == records[4].answer, "or the test shows little"
    assert len(said.split()) == 2
    assert words[:2] == [said, said.split()[0]]


def test_options_are_the_release_and_what_it_decodes_to(
    random_model, records, geometry, seen, monkeypatch
):
    """A release made of two atoms, without noise, decodes into them."""
    monkeypatch.setattr(atoms_module, "answer_lexicon", partial(answer_lexicon, count=4))
    queries = [r.query for r in records[8:10]]
    public = [
        replace(record, answer=answer, task="rule")
        for record, answer in zip(records, ["ja", "nee"] * 4, strict=False)
    ]
    heads = geometry.heads
    (rule,) = public_rules(public)
    words = ["ja", "nee", "maybe"]
    atoms = rule_atoms(random_model, geometry, rule, words, queries)
    release = mixture(atoms.released, rule.shares, (1, 0))
    options = candidate_vectors(random_model, geometry, release, 1e-4, heads, public, queries)
    assert options.shape == (9, geometry.layout.size)
    assert np.allclose(options[0], geometry.from_release(release))
    kept = geometry.layout.coordinates(heads)
    assert np.allclose(options[1], kept * mixture(atoms.whole, rule.shares, (1, 0)), atol=1e-5)
    assert not options[:, ~kept].any(), "heads that were not released hold nothing"
    known = {record.question for record in public} | {q.question for q in queries}
    assert {p.query.question for p in seen} <= known
