"""Heads and clip norms from private records alone: the laws, the price, and the whole build."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

from dpmtv import pipeline, private_choices
from dpmtv.artifact import TaskVector
from dpmtv.data.demonstrations import BadRow, read_demonstrations
from dpmtv.errors import ArtifactError, InternalError, ModelError, PrivacyParameterError
from dpmtv.pipeline import build_task_vector
from dpmtv.privacy import accounting, certificate, choice, ledger, mechanisms
from dpmtv.private_choices import (
    PrivateVotes,
    band_masks,
    choose_heads,
    made_up_queries,
    plan_choices,
)
from dpmtv.types import BoundedRangeEvent, HeadLayout

FALSE_ALARM = 1e-6
LAYOUT = HeadLayout((2, 2, 2, 2), (3, 3, 3, 3))


@pytest.fixture(scope="module")
def records():
    from dpmtv.evaluation.benchmark import EMBEDDED_DATA

    return read_demonstrations(EMBEDDED_DATA / "tasks/digit-french/private.jsonl")[:60]


def build(model, rows, **options):
    settings = {"epsilon": 1.0, "delta": 1e-5, "public": "none"} | options
    return build_task_vector(model, rows, **settings)


# --- the laws ------------------------------------------------------------------------------


def test_with_a_large_range_the_true_best_and_with_a_tiny_one_anything():
    masks = np.eye(6, dtype=bool)
    votes = np.zeros((50, 6))
    votes[:, 4] = 1
    votes[:30, 1] = 0.9
    for _ in range(10):
        assert np.flatnonzero(choose_heads(np.ceil(votes), masks, 1e5)).tolist() == [4]
    draws = np.stack([choose_heads(votes, masks, 1e-9) for _ in range(1200)])
    counts, expected = draws.sum(0), len(draws) / 6
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert statistic < chi2.isf(FALSE_ALARM, 5)


def test_whatever_a_chunk_holds_it_moves_the_sums_by_one_vote(monkeypatch):
    seen = []

    def watched(scores, *rest, sensitivity, **_):
        seen.append(scores / sensitivity)
        raise LookupError

    monkeypatch.setattr(private_choices, "exponential_mechanism", watched)
    rng = np.random.default_rng(0)
    masks = np.eye(6, dtype=bool)
    one = rng.random((9, 6))
    for bad in (1e300, -1e300, math.nan, math.inf, 0.0, 1.0):
        other = one.copy()
        other[3] = bad
        for votes in (one, other):
            with pytest.raises(LookupError):
                choose_heads(votes, masks, 0.1)
        assert np.abs(seen[-1] - seen[-2]).max() <= 1


def test_the_family_is_public_small_and_has_bands_of_every_depth():
    for layers in (4, 6, 32):
        layout = HeadLayout((2,) * layers, (3,) * layers)
        masks = band_masks(layout)
        assert masks.any(0).all(), "every head is in some band"
        assert len(masks) <= 24
        assert len({m.tobytes() for m in masks}) == len(masks)
        assert masks.all(1).sum() == 1, "all heads are one of the options"
        for mask in masks:
            depth = np.flatnonzero(mask.reshape(layers, 2).any(1))
            assert (np.diff(depth) == 1).all()
            assert mask.reshape(layers, 2)[depth].all()


# --- the price -----------------------------------------------------------------------------


def test_selection_at_a_tenth_costs_under_three_and_a_half_percent_of_noise(model, records):
    """The issue's bound: total (1, 1e-5), E = 0.1, and a clip norm that costs nothing."""
    vector = build(model, records, selection="private", selection_epsilon=0.1)
    noise, picks = vector.certificate.privacy.events
    assert picks == BoundedRangeEvent(0.1, 1)
    alone = accounting.noise_multiplier(1.0, 1e-5)
    assert 1 < noise.sigma / noise.delta2 / alone < 1.035
    assert vector.certificate.privacy.epsilon == 1.0
    certificate.verify(vector.certificate, vector.certificate.tensor_sha256)


def test_the_noise_does_not_depend_on_what_is_chosen(model, records):
    """σ/Δ₂ and the grid are fixed before the picks, for the most coordinates."""
    ratios, scales, released = set(), set(), set()
    plan = {"selection": "private", "selection_epsilon": 1e-6}
    for _ in range(6):
        privacy = build(model, records[:20], **plan).certificate.privacy
        event = privacy.events[0]
        ratios.add(round(event.sigma / event.delta2, 9))
        scales.add(event.scale)
        assert event.d == model.layout.size
        released.add(privacy.block_sizes)
    assert len(ratios) == len(scales) == 1
    assert len(released) > 1, "the picks were to differ"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"selection": "public"}, "without public records"),
        ({"selection": "released"}, "the paper's selection"),
        ({"query": "private"}, "public queries"),
        ({"per_layer": True}, "one clip norm"),
        ({"clip": "private"}, "needs 184 chunks"),
        ({"clip": "private-steps"}, "clip must be one of private"),
        ({"selection": "private-top-k"}, "selection must be one of"),
        ({"selection_epsilon": 0.0}, "above 0"),
        ({"selection_epsilon": 1.0}, "must leave something of epsilon"),
        ({"selection": "all", "selection_epsilon": 0.1}, "there is none"),
        ({"clip_epsilon": 0.1}, "there is none"),
        ({"choice": 0.1}, "public records"),
    ],
)
def test_what_cannot_work_is_refused_before_any_pass(model, records, options, message, monkeypatch):
    monkeypatch.setattr(type(model), "last_token_heads", lambda *_: pytest.fail("a pass was made"))
    with pytest.raises(PrivacyParameterError, match=message):
        build(model, records, **options)


# --- the whole build -----------------------------------------------------------------------


def test_a_vector_from_private_records_alone_answers_by_their_rule(model, records, tmp_path):
    """60 records and a large ε: the French names of digits, with nothing public but the model."""
    book = tmp_path / "book"
    vector = build(model, records, epsilon=8.0, ledger=book)
    chosen, privacy = vector.certificate.selection, vector.certificate.privacy
    assert (chosen.mode, chosen.source_sha256) == ("private", None)
    assert (privacy.clip_source, privacy.query, privacy.shots) == ("made-up", "public", 1)
    vector.save_pretrained(tmp_path / "v")
    loaded = TaskVector.from_pretrained(tmp_path / "v")
    with loaded.applied(model):
        said = model.generate([r.query for r in records[:20]])
    assert np.mean([a == r.answer for a, r in zip(said, records[:20], strict=True)]) >= 0.9
    (entry,) = ledger.history(book).entries
    noise, pick = entry.events
    assert (entry.state, pick) == ("released", privacy.events[1])
    assert noise.sigma / noise.delta2 == pytest.approx(
        privacy.events[0].sigma / privacy.events[0].delta2, rel=1e-12
    )


def test_with_public_records_a_private_clip_norm_is_near_the_median(model, records, data):
    rows = read_demonstrations(data / "public.jsonl")
    public = [r for r in rows if r.task in {"digit-english", "digit-greek"}][:80]
    options = {"public": public, "search_steps": 5, "clip_epsilon": 1.0}
    vector = build(model, records, epsilon=8.0, clip="private", **options)
    privacy = vector.certificate.privacy
    assert privacy.clip_source == "private"
    assert {type(e) for e in privacy.events[1:]} == {BoundedRangeEvent}
    bare = build(
        model,
        records,
        epsilon=8.0,
        choice=0.0,
        clip=None,
        **{k: v for k, v in options.items() if k != "clip_epsilon"},
    )
    # Both are a share of a median norm: half the public one, three quarters of the private one.
    assert 0.6 < privacy.clip_norms[0] / bare.certificate.privacy.clip_norms[0] < 4
    certificate.verify(vector.certificate, vector.certificate.tensor_sha256)


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


def test_a_chunk_votes_alone(model, records):
    """Bit for bit the same numbers whatever stands in the other chunks."""
    queries = made_up_queries([])
    plan = plan_choices("private", None, 1.0, None, None)
    votes = PrivateVotes(model, plan, queries, "every-step")
    alone = votes.of([records[0]])
    for other in records[1:4]:
        votes.of([other])
    assert (votes.of([records[0]]) == alone).all()
    assert alone.shape == (model.layout.size + len(band_masks(model.layout)),)


def test_bad_rows_stop_nothing_and_vote_nothing(model, records, capfd, caplog):
    rows = [BadRow(1, "not JSON"), *records[:11]]
    vector = build(model, rows)
    assert "".join(capfd.readouterr()) + caplog.text == ""
    assert vector.certificate.privacy.chunks == 12


def test_an_interrupted_build_goes_on_before_the_choices(model, records, tmp_path, monkeypatch):
    work, passes = tmp_path / "work", []
    plain = PrivateVotes._look

    def counted(self, *arguments):
        passes.append(1)
        if len(passes) == 6:
            raise KeyboardInterrupt
        return plain(self, *arguments)

    monkeypatch.setattr(PrivateVotes, "preflight", lambda *_: None)
    monkeypatch.setattr(PrivateVotes, "_look", counted)
    with pytest.raises(KeyboardInterrupt):
        build(model, records[:10], work=work, ledger=tmp_path / "book")
    assert [e.state for e in ledger.history(tmp_path / "book").entries] == ["cancelled"]
    build(model, records[:10], work=work, ledger=tmp_path / "book")
    assert len(passes) == 6 + 5
    assert not work.exists()


def test_a_model_that_cannot_vote_spends_nothing(model, records, tmp_path, monkeypatch):
    monkeypatch.setattr(private_choices, "first_right", lambda *_: 1 / 0)
    with pytest.raises(ModelError, match="cannot vote"):
        build(model, records, ledger=tmp_path / "book")
    assert not (tmp_path / "book").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"selection": "all", "clip": 1.0},
        {"selection": "private", "clip": 1.0},
        {"selection": "all", "clip": "private", "clip_epsilon": 4.0},
    ],
)
def test_public_records_may_give_the_queries_alone(model, records, data, options):
    public = read_demonstrations(data / "public.jsonl")[:20]
    vector = build(model, records[:24], public=public, epsilon=8.0, choice=0.0, **options)
    assert vector.certificate.selection.source_sha256 is not None
    certificate.verify(vector.certificate, vector.certificate.tensor_sha256)


def test_what_no_certificate_can_say_is_refused_before_paying(model, records, tmp_path):
    rows = [replace(r, unit=str(i)) for i, r in enumerate(records[:24])]
    with pytest.raises(ArtifactError, match=r"privacy\.unit"):
        build(model, rows, unit="x" * 90, ledger=tmp_path / "book")
    states = [entry.state for entry in ledger.history(tmp_path / "book").entries]
    assert states in ([], ["cancelled"])


def test_a_release_that_costs_more_than_was_booked_is_not_drawn(
    model, records, tmp_path, monkeypatch
):
    monkeypatch.setattr(mechanisms, "_discrete_gaussian", lambda *_: pytest.fail("drawn"))
    plain = pipeline.calibrate_for

    def cheaper(geometry, **options):
        made = plain(geometry, **options)
        if options.get("largest"):
            object.__setattr__(made, "scale", made.scale // 2)
        return made

    monkeypatch.setattr(pipeline, "calibrate_for", cheaper)
    with pytest.raises(InternalError, match="costs more than what was booked"):
        build(model, records[:12], ledger=tmp_path / "book")
