"""The disjoint split: some chunks vote on the heads, the others make the vector, none does both."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from PIL import Image

from dpmtv import pipeline, private_choices
from dpmtv.artifact import TaskVector
from dpmtv.data.chunks import form_chunks
from dpmtv.data.demonstrations import read_demonstrations
from dpmtv.data.partition import assign_by_id
from dpmtv.errors import DataError, PrivacyParameterError
from dpmtv.models import choosing
from dpmtv.pipeline import build_task_vector
from dpmtv.privacy import accounting, certificate, choice, ledger, mechanisms
from dpmtv.private_choices import plan_choices
from dpmtv.types import BoundedRangeEvent, Demonstration, GaussianEvent, ParallelEvent

KEY = bytes(range(16))
SPLIT = {"public": "none", "selection_split": 0.25}


@pytest.fixture(scope="module")
def records():
    from dpmtv.evaluation.benchmark import EMBEDDED_DATA

    return read_demonstrations(EMBEDDED_DATA / "tasks/digit-french/private.jsonl")[:60]


def build(model, rows, **options):
    return build_task_vector(model, rows, **{"epsilon": 1.0, "delta": 1e-5} | SPLIT | options)


# --- sizes and prices ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "chunks", "voting"),
    [(0.25, 12, 3), (0.1, 250, 25), (0.5, 2, 1), (1e-9, 12, 1), (0.999, 12, 11), (0.999, 2, 1)],
)
def test_how_many_vote_is_a_function_of_public_numbers(share, chunks, voting):
    plan = plan_choices("private", None, 1.0, None, None, share)
    plan.check(chunks)
    assert plan.voting(chunks) == voting
    assert plan_choices("private", None, 1.0, None, None).voting(chunks) is None


def test_the_votes_have_all_of_epsilon_by_default():
    for epsilon in (0.3, 1.0, 7.7):
        alone = plan_choices("private", None, epsilon, None, None, 0.5)
        assert alone.selection_range == epsilon
        both = plan_choices("private", "private", epsilon, None, None, 0.5)
        assert both.clip_range == 0.1 * epsilon
        assert both.selection_range == pytest.approx(0.9 * epsilon)
        steps = plan_choices("private", "private-steps", epsilon, None, None, 0.5)
        named = plan_choices("private", None, epsilon, 0.2, None, 0.5)
        assert named.selection_range == 0.2
        layout = private_choices.HeadLayout((4, 4), (3, 3))
        for plan in (alone, both, steps):
            assert accounting.epsilon_of(plan.events(layout), 1e-5) <= epsilon
    assert plan_choices("private", None, 1.0, None, None).selection_range == 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"selection": "all"}, "goes with a private selection"),
        ({"selection": "all", "clip": "private"}, "goes with a private selection"),
        ({"selection_split": 0.0}, "between 0 and 1"),
        ({"selection_split": 1.0}, "between 0 and 1"),
        ({"selection_split": float("nan")}, "between 0 and 1"),
        ({"epsilon": -1.0}, "epsilon must be a positive"),
        ({"chunks": 1}, "needs two chunks"),
        ({"selection_epsilon": 1.1}, "voting chunks cost more than epsilon 1"),
        ({"clip": "private"}, "needs 184 chunks.*there are 15"),
        ({"clip": "private-steps"}, "and there are 15"),
    ],
)
def test_what_cannot_work_is_refused_before_any_pass(model, records, options, message, monkeypatch):
    monkeypatch.setattr(type(model), "last_token_heads", lambda *_: pytest.fail("a pass was made"))
    with pytest.raises(PrivacyParameterError, match=message):
        build(model, records, **options)


# --- who does what -------------------------------------------------------------------------


def watch(model, rows, monkeypatch, **options):
    """The voters' summed scores and the exact sum of the vector, both without noise; public chunks.

    The mask that is picked is always the first, so that the sums of neighbours can be compared.
    """
    scores, sums = [], []
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "fresh_key", lambda: KEY)
        patch.setattr(choice, "_noisy_max", lambda s, _: scores.append(s.copy()) or 0)
        patch.setattr(mechanisms, "_discrete_gaussian", lambda s, _: sums.append(s.copy()) or s)
        vector = build(model, rows, **options)
    return scores, sums, vector


def chunk_of(n: int, chunks: int) -> dict[int, int]:
    """Slot → chunk, of chunks of one record."""
    members = form_chunks(
        [(None, [i]) for i in range(n)], chunks=chunks, size=1, per_unit=1, key=KEY, by_id=False
    )
    return {slot: place for place, (slot,) in enumerate(members)}


def odd_one(unit: str | None = None) -> Demonstration:
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    return Demonstration(Image.fromarray(noise), "Which way?", "zebra crossing", unit=unit)


def others_in(rows, places, where):
    """The records of the chunks that ``where`` takes replaced by something else altogether."""
    return [odd_one() if where(places[i]) else row for i, row in enumerate(rows)]


def test_neighbours_move_the_part_that_they_are_in_and_no_other(model, records, monkeypatch):
    """Twelve chunks, three vote: bit for bit, whatever stands in the other part's chunks."""
    rows, places = records[:12], chunk_of(12, 12)
    scores, sums, vector = watch(model, rows, monkeypatch)
    privacy = vector.certificate.privacy
    assert (privacy.voting_chunks, privacy.chunks) == (3, 9)
    for where in (lambda p: p < 3, lambda p: p == 2):  # voters: all of them, or one
        changed = watch(model, others_in(rows, places, where), monkeypatch)
        assert not (changed[0][0] == scores[0]).all(), "the votes were to change"
        assert np.abs(changed[0][0] - scores[0]).max() <= (3 if where(0) else 1)
        assert (changed[1][0] == sums[0]).all(), "a voting chunk is in the sum"
    for where in (lambda p: p >= 3, lambda p: p == 3):
        changed = watch(model, others_in(rows, places, where), monkeypatch)
        assert (changed[0][0] == scores[0]).all(), "a chunk of the vector has voted"
        assert not (changed[1][0] == sums[0]).all(), "the sum was to change"


def test_a_split_that_leaks_is_found(model, records, monkeypatch):
    """The check above with the fault in it: all chunks vote, as without a split."""
    plain = private_choices.PrivateVotes.choose

    def leaky(self, seen, *rest):
        both = list(seen)
        return plain(self, [*both[3:6], *both[3:]], *rest)

    rows, places = records[:12], chunk_of(12, 12)
    monkeypatch.setattr(private_choices.PrivateVotes, "of", lambda s, r, _: s._look(r, votes=True))
    monkeypatch.setattr(private_choices.PrivateVotes, "choose", leaky)
    scores, _, _ = watch(model, rows, monkeypatch)
    changed, _, _ = watch(model, others_in(rows, places, lambda p: p >= 3), monkeypatch)
    assert not (changed[0] == scores[0]).all()


def test_only_voting_chunks_are_asked_to_vote(model, records, monkeypatch):
    asked = []
    plain = private_choices.votes_of
    monkeypatch.setattr(
        private_choices, "votes_of", lambda *a: asked.append(tuple(a[1])) or plain(*a)
    )
    scores, _, _ = watch(model, records[:12], monkeypatch)
    places = chunk_of(12, 12)
    voters = {i for i, place in places.items() if place < 3}
    assert {(records[i],) for i in voters} == set(asked[1:]), "after the made-up one"
    assert scores[0].max() <= 3


def test_a_private_clip_norm_is_of_the_voters(model, records, monkeypatch):
    seen = []
    monkeypatch.setattr(private_choices, "require_enough_for_quantile", lambda *_: None)
    monkeypatch.setattr(
        private_choices, "noisy_quantile", lambda v, e, **_: seen.append(v) or float(e[6])
    )
    rows, places = records[:12], chunk_of(12, 12)
    _, _, vector = watch(model, rows, monkeypatch, clip="private")
    changed = others_in(rows, places, lambda p: p >= 3)
    watch(model, changed, monkeypatch, clip="private")
    assert len(seen[0]) == 3
    assert (seen[0] == seen[1]).all()
    (event,) = vector.certificate.privacy.events
    assert [len(group) for group in event.groups] == [1, 2]


# --- the whole build -----------------------------------------------------------------------


def test_a_split_build_answers_and_its_certificate_is_recomputed(model, records, tmp_path):
    book = tmp_path / "book"
    vector = build(model, records, epsilon=8.0, ledger=book)
    vector.save_pretrained(tmp_path / "v")
    loaded = TaskVector.from_pretrained(tmp_path / "v")
    certificate.verify(loaded.certificate, loaded.certificate.tensor_sha256)
    privacy = loaded.certificate.privacy
    assert (privacy.chunks, privacy.voting_chunks) == (45, 15)
    (event,) = privacy.events
    assert isinstance(event, ParallelEvent)
    (noise,), (pick,) = event.groups
    assert isinstance(noise, GaussianEvent)
    assert pick == BoundedRangeEvent(8.0, 1)
    alone = accounting.noise_multiplier(8.0, 1e-5)
    assert noise.sigma / noise.delta2 == pytest.approx(alone, rel=2e-3)
    assert noise.delta2 == pytest.approx(2 * privacy.clip_norms[0] / 45)
    (entry,) = ledger.history(book).entries
    assert entry.state == "released"
    assert ledger.history(book).spent[""] == pytest.approx(8, rel=1e-3)
    with loaded.applied(model):
        said = model.generate([r.query for r in records[:20]])
    assert np.mean([a == r.answer for a, r in zip(said, records[:20], strict=True)]) >= 0.8


def test_kept_work_goes_on_with_the_same_split_alone(model, records, tmp_path, monkeypatch):
    work, passes, plain = tmp_path / "work", [], private_choices.PrivateVotes._look

    def counted(self, *arguments):
        passes.append(1)
        if len(passes) == 6:
            raise KeyboardInterrupt
        return plain(self, *arguments)

    monkeypatch.setattr(private_choices.PrivateVotes, "preflight", lambda *_: None)
    monkeypatch.setattr(private_choices.PrivateVotes, "_look", counted)
    with pytest.raises(KeyboardInterrupt):
        build(model, records[:8], work=work)
    for other in (0.5, None):
        with pytest.raises(DataError, match="other records, options or model"):
            build(model, records[:8], work=work, selection_split=other)
    build(model, records[:8], work=work)
    assert len(passes) == 6 + 3


def test_every_choice_is_charged_before_its_draw(model, records, tmp_path, monkeypatch):
    book, draws = tmp_path / "book", []
    pick, noise = choice._noisy_max, mechanisms._discrete_gaussian

    def watched(draw):
        def run(*arguments):
            draws.append([entry.state for entry in ledger.history(book).entries])
            return draw(*arguments)

        return run

    monkeypatch.setattr(choice, "_noisy_max", watched(pick))
    monkeypatch.setattr(mechanisms, "_discrete_gaussian", watched(noise))
    build(model, records[:24], ledger=book)
    assert draws == [["charged"], ["charged"]]
    with pytest.raises(PrivacyParameterError, match="is spent or reserved"):
        build(model, records[:24], ledger=book)


def test_what_the_vector_decodes_to_is_chosen_by_its_own_chunks(model, records, data, monkeypatch):
    rows = read_demonstrations(data / "public.jsonl")
    public = [r for r in rows if r.task in {"digit-english", "digit-greek"}][:80]
    asked = []

    def watched(model, options, heads, chunks, *rest):
        asked.append([chunk[0] for chunk in chunks])
        return choice.Choice(0, BoundedRangeEvent(0.2, 1))

    monkeypatch.setattr(choosing, "choose_vector", watched)
    options = {"public": public, "search_steps": 5, "selection": "private"}
    _, _, vector = watch(model, records[:12], monkeypatch, **options)
    (event,) = vector.certificate.privacy.events
    own, votes = event.groups
    assert own[1:] == (BoundedRangeEvent(0.2, 1),)
    assert votes == (BoundedRangeEvent(1.0, 1),)
    beside = accounting.gaussian_beside(own[1:], 1.0, 1e-5)
    assert own[0].sigma / own[0].delta2 == pytest.approx(beside, rel=2e-3)
    places = chunk_of(12, 12)
    assert set(asked[0]) == {row for i, row in enumerate(records[:12]) if places[i] >= 3}


def test_units_of_a_split_lie_in_one_part(model, records, monkeypatch):
    """Under add_remove too: by the id's keyed hash, whatever the records hold."""
    rows = [dataclasses.replace(r, unit=f"p{i % 20}") for i, r in enumerate(records[:40])]
    options = {"relation": "add_remove", "unit": "p", "population": 20, "per_unit": 2, "shots": 2}
    options |= {"chunks": 8, "epsilon": 2.0}
    scores, sums, vector = watch(model, rows, monkeypatch, **options)
    assert (vector.certificate.privacy.voting_chunks, vector.certificate.privacy.chunks) == (2, 6)
    names = sorted({row.unit for row in rows})
    # Whom each chunk's records are of: the first that its hash order has.
    serving = [names[of[0]] if of else None for of in assign_by_id(names, 8, KEY)]
    moved = []
    for place, name in enumerate(serving):
        if name is None or place in (3, 4):
            continue
        other = [odd_one(name) if r.unit == name else r for r in rows]
        other_scores, other_sums, _ = watch(model, other, monkeypatch, **options)
        same_votes = bool((other_scores[0] == scores[0]).all())
        same_sum = bool((other_sums[0] == sums[0]).all())
        assert same_sum if place < 2 else same_votes, "one unit is in both parts"
        moved += [("votes", same_votes)] if place < 2 else [("sum", same_sum)]
    assert ("sum", False) in moved
    assert ("votes", False) in moved
