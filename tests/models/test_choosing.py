"""The private choice of a vector: right scores, one chunk a pass, nothing told."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from PIL import Image

from dpmtv.data.demonstrations import BadRow, read_demonstrations
from dpmtv.errors import PrivacyParameterError
from dpmtv.models import choosing
from dpmtv.models.choosing import choose_decoded, choose_decoded_public, choose_vector
from dpmtv.models.mask_loss import MaskLoss, answered_right
from dpmtv.privacy import choice
from dpmtv.types import BoundedRangeEvent, Demonstration, Prompt

CANARY = "c4n4ry"


@pytest.fixture
def heads(model):
    """Those of the middle layers: answers of several words end under them."""
    layer = np.repeat(np.arange(model.layout.layers), model.layout.heads)
    return (layer >= 1) & (layer < 4)


@pytest.fixture
def asked(data):
    return read_demonstrations(data / "tasks/digit-french/test.jsonl")[:6]


@pytest.fixture
def vectors(model, data, asked):
    """Of prompts under different rules, which make the model say different things."""
    names = ("digit-french", "digit-phrase", "presence-french")
    shown = [read_demonstrations(data / f"tasks/{n}/test.jsonl")[8:12] for n in names]
    return np.stack([model.last_token_heads(Prompt(tuple(s), asked[0].query)) for s in shown])


def says(model, vector, heads, queries, patch="every-step") -> list[str]:
    with model.patched(vector, heads, patch):
        return model.generate(queries)


@pytest.fixture
def scores(monkeypatch):
    """What the mechanism is given, once for each call."""
    given: list[np.ndarray] = []
    plain = choosing.exponential_mechanism

    def spy(sums, **options):
        given.append(sums)
        return plain(sums, **options)

    monkeypatch.setattr(choosing, "exponential_mechanism", spy)
    return given


@pytest.mark.parametrize("patch", ["prompt", "every-step"])
def test_one_pass_tells_what_decoding_would_give(model, heads, asked, vectors, patch):
    query = asked[0].query
    prompt = Prompt((), query)
    said = [says(model, v, heads, [query], patch)[0] for v in vectors]
    assert len(set(said)) > 1, "the vectors must matter, or the test shows nothing"
    for answer in {*said, f"{said[0]} {said[1]}", said[1].split()[0], "nothing"}:
        ids = model.answer_ids(prompt, answer)
        right = answered_right(model, prompt, ids, vectors, heads, patch, rows_a_pass=2)
        assert right.tolist() == [answer == s for s in said], answer
    assert right.shape == (3,)


def test_with_little_noise_the_vector_that_answers_right_is_chosen(
    model, heads, asked, vectors, scores
):
    for wanted in (0, 1):
        answers = says(model, vectors[wanted], heads, [r.query for r in asked])
        chunks = [
            [Demonstration(r.image, r.question, answer)]
            for r, answer in zip(asked, answers, strict=True)
        ]
        chosen = choose_vector(model, vectors, heads, chunks, range_=40.0)
        assert scores[-1][wanted] == len(chunks)
        assert sorted(scores[-1])[-2] < len(chunks)
        assert chosen.index == wanted
        assert chosen.event == BoundedRangeEvent(range=40.0, count=1)


def test_public_records_are_chosen_by_as_private_ones_are(
    model, heads, asked, vectors, scores, monkeypatch
):
    monkeypatch.setattr(choosing, "candidate_vectors", lambda *_, **__: vectors)
    answers = says(model, vectors[1], heads, [r.query for r in asked])
    records = [
        Demonstration(r.image, r.question, answer) for r, answer in zip(asked, answers, strict=True)
    ]
    kept = MaskLoss(model, [Prompt((), r.query) for r in records], answers, [])
    release = (model, None, None, 0.0, heads)
    known = {"public": (), "queries": (), "asked": ()}
    for drawn in ([0, 2, 2], [1], list(range(len(records)))):
        chunks = [[records[i]] for i in drawn]
        private = choose_decoded(
            *(*release, chunks, BoundedRangeEvent(40.0, 1)),
            **known,
            patch="every-step",
            charge=None,
            progress=lambda *_: None,
        )
        public = choose_decoded_public(*release, kept, drawn, 40.0, **known, shown={})
        assert scores[-2].tolist() == scores[-1].tolist()
        assert scores[-1][1] == len(drawn)
        assert any((public == v).all() for v in vectors)
        assert any((private == v).all() for v in vectors)
    choose_decoded_public(*release, kept, [], 40.0, **known, shown={})
    assert scores[-1].tolist() == [0] * len(vectors), "noise alone"


def test_whatever_fails_in_a_chunk_scores_zero_in_silence(
    model, heads, asked, vectors, scores, tmp_path, caplog, capfd, monkeypatch
):
    broken = tmp_path / f"{CANARY}.png"
    broken.write_bytes(CANARY.encode() * 9)
    (answer,) = says(model, vectors[0], heads, [asked[0].query])
    good = Demonstration(asked[0].image, asked[0].question, answer)
    plain = type(model).inputs

    def talkative(self, prompts):
        logging.getLogger("transformers").error(CANARY)
        if "panic" in prompts[0].query.question:
            raise BaseException(CANARY)
        return plain(self, prompts)

    monkeypatch.setattr(type(model), "inputs", talkative)
    bad = [
        [],
        [BadRow(1, f"not JSON: {CANARY}", None)],
        [Demonstration(broken, CANARY, answer)],
        [Demonstration(good.image, f"panic {CANARY}", answer)],
        [Demonstration(good.image, "<image><image>", answer)],
    ]
    steps = []
    chosen = choose_vector(
        model, vectors, heads, [*bad, [good]], 40.0, progress=lambda *s: steps.append(s)
    )
    alone = choose_vector(model, vectors, heads, [[good]], 40.0)
    assert scores[0].tolist() == scores[1].tolist()
    assert scores[0][0] == 1
    for chunk in bad:
        choose_vector(model, vectors, heads, [chunk], 40.0)
        assert scores.pop().tolist() == [0, 0, 0]
    assert steps == [("private choice", i, 6) for i in range(1, 7)]
    assert caplog.text + "".join(capfd.readouterr()) == ""
    assert CANARY not in repr((chosen, alone, steps))
    # A bad row before a good one is left out, as in extraction.
    choose_vector(model, vectors, heads, [[BadRow(1, "", None), good]], 40.0)
    assert scores[-1].tolist() == scores[1].tolist()


def check_poisoned_chunk() -> None:
    """One chunk's scores, whatever they are made to be, move each sum by at most one."""
    honest = np.array([1.0, 0.0, 1.0])
    poison = [np.array([1e300, -5.0, 2.0]), np.array([np.nan, 1.0, 1.0]), np.full(3, np.inf)]
    sums = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing, "private_pass", lambda _model, compute: compute.args[1][0])
        patch.setattr(
            choosing, "exponential_mechanism", lambda given, **_: sums.append(given.tolist())
        )
        for other in (honest, *poison, None):
            choose_vector(None, np.zeros((3, 1)), None, [[honest], [other], [honest]], 1.0)
    assert sums[0] == [3, 0, 3]
    assert sums[-1] == [2, 0, 2]
    moved = np.abs(np.array(sums)[:, None] - np.array(sums)).max()
    assert moved == 1, "one chunk moves a score by more than one"


def test_a_poisoned_chunk_moves_each_score_by_at_most_one():
    check_poisoned_chunk()


def test_no_pass_holds_two_chunks(model, heads, asked, vectors, monkeypatch):
    prompts, passes = [], []
    plain_inputs, plain_forward = type(model).inputs, type(model).forward

    def inputs(self, batch):
        prompts.append(list(batch))
        return plain_inputs(self, batch)

    def forward(self, batch, **options):
        passes.append({k: v.clone() for k, v in batch.items()})
        return plain_forward(self, batch, **options)

    monkeypatch.setattr(type(model), "inputs", inputs)
    monkeypatch.setattr(type(model), "forward", forward)
    choose_vector(model, np.repeat(vectors, 4, 0), heads, [[r] for r in asked], 1.0)
    assert [[p.query for p in batch] for batch in prompts] == [[r.query] for r in asked]
    assert len(passes) == 2 * len(asked)  # twelve options, at most eight a pass
    for batch in passes:
        for values in batch.values():
            assert (values == values[:1]).all(), "rows of one pass must show the same prompt"


def test_payment_comes_before_the_draw_and_a_refusal_prevents_it(
    model, heads, asked, vectors, monkeypatch
):
    order = []
    draw = choice._noisy_max
    monkeypatch.setattr(choice, "_noisy_max", lambda *args: order.append("draw") or draw(*args))
    choose_vector(model, vectors, heads, [asked[:1]], 0.2, charge=order.append)
    assert order == [BoundedRangeEvent(range=0.2, count=1), "draw"]

    def refuse(_event):
        raise PrivacyParameterError("the budget is spent")

    with pytest.raises(PrivacyParameterError, match="the budget is spent"):
        choose_vector(model, vectors, heads, [asked[:1]], 0.2, charge=refuse)
    assert len(order) == 2


def test_an_interrupt_stops(model, heads, vectors, monkeypatch):
    def fail(self, _prompts):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(model), "inputs", fail)
    shown = Demonstration(Image.new("RGB", (8, 8)), "What is it?", "")
    with pytest.raises(KeyboardInterrupt):
        choose_vector(model, vectors, heads, [[shown]], 1.0)
