"""The one-prefix loss equals full passes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpmtv.data.demonstrations import read_demonstrations
from dpmtv.models import mask_loss
from dpmtv.models.mask_loss import MaskLoss, whole_pass_losses
from dpmtv.types import Prompt


@pytest.mark.parametrize("patch", ["prompt", "every-step"])
@pytest.mark.parametrize("shots", [0, 3])
def test_equals_full_passes(random_model, data, patch, shots):
    model = random_model
    records = read_demonstrations(data / "tasks/digit-phrase/test.jsonl")[:8]
    prompts = [Prompt(tuple(records[:shots]), r.query) for r in records[4:6]]
    answers = [r.answer for r in records[4:6]]
    rng = np.random.default_rng(0)
    vectors = [rng.normal(size=model.layout.size) for _ in prompts]
    masks = rng.random((5, model.layout.n_heads)) < 0.5
    loss = MaskLoss(model, prompts, answers, vectors, patch)
    for _ in range(2):  # the second round reads the kept prefix
        for example in (0, 1):
            ours = loss(masks, example)
            answer = model.answer_ids(prompts[example], answers[example])
            values = model.by_layer(vectors[example])
            same = (model, prompts[example], answer, values, masks, patch)
            for rows in (1, 3, 8):
                whole = whole_pass_losses(*same, rows).numpy()
                assert np.abs(ours - whole).max() < 2e-6
                assert np.ptp(whole) > 1e-4, "the masks must matter, or the test shows nothing"
    assert loss._prefix_is_exact


@pytest.mark.parametrize("fault", ["wrong", "crash"])
def test_where_a_prefix_is_not_exact_whole_passes_are_used(random_model, data, monkeypatch, fault):
    """Such as a prefix-LM, whose earlier tokens see the last one, or an unknown kind of cache."""
    model = random_model
    records = read_demonstrations(data / "tasks/digit-phrase/test.jsonl")[:3]
    prompts = [Prompt((), r.query) for r in records]
    vectors = [np.ones(model.layout.size)] * 3
    loss = MaskLoss(model, prompts, [r.answer for r in records], vectors)
    plain = MaskLoss._from_prefix

    def faulty(self, values, masks, example):
        if fault == "crash":
            raise RuntimeError("no such cache")
        return plain(self, values, masks, example) + 0.1

    monkeypatch.setattr(mask_loss.MaskLoss, "_from_prefix", faulty)
    masks = np.eye(model.layout.n_heads, dtype=bool)[:4]
    values = model.by_layer(vectors[1])
    want = whole_pass_losses(model, prompts[1], loss.answers[1], values, masks, loss.patch)
    assert np.allclose(loss(masks, 1), want.numpy(), atol=1e-6)
    assert loss._prefix_is_exact is False


def test_old_prefixes_go_when_they_take_too_much_and_losses_stay(random_model, data, monkeypatch):
    model = random_model
    records = read_demonstrations(data / "tasks/digit-phrase/test.jsonl")[:4]
    prompts = [Prompt((), r.query) for r in records]
    vectors = [np.ones(model.layout.size)] * 4
    masks = np.eye(model.layout.n_heads, dtype=bool)[:3]

    def losses(order):
        loss = MaskLoss(model, prompts, [r.answer for r in records], vectors)
        return loss, {i: loss(masks, i) for i in order}

    every, wanted = losses(range(4))
    assert len(every._prefixes) == 4
    one = mask_loss._bytes(every._prefixes[0].cache)
    assert every._kept >= 4 * one > 0
    monkeypatch.setattr(mask_loss, "_MOST_KEPT", 2.5 * one)
    few, found = losses([0, 1, 2, 3, 0, 2])
    assert few._prefix_is_exact
    assert len(few._prefixes) == 2
    assert few._kept == sum(mask_loss._bytes(p.cache) for p in few._prefixes.values())
    for i, values in wanted.items():
        assert np.array_equal(found[i], values)


def test_the_loss_runs_over_all_answer_tokens_and_the_end(model, data):
    record = read_demonstrations(data / "tasks/digit-phrase/test.jsonl")[0]
    ids = model.answer_ids(Prompt((), record.query), record.answer)
    assert model.tokenizer.decode(ids) == f" {record.answer}<end_of_utterance>"
    assert len(ids) == 3


def test_images_that_lie_in_one_axis_are_copied_whole(model, data, monkeypatch):
    """Some models line up the patches of all images: each row's must stay together."""
    record = read_demonstrations(data / "tasks/digit-phrase/test.jsonl")[0]
    plain_inputs, plain_forward, seen = type(model).inputs, type(model).forward, []

    def inputs(self, prompts):
        return plain_inputs(self, prompts) | {"patches": torch.arange(3)[:, None]}

    def forward(self, batch, **options):
        seen.append(batch.pop("patches").flatten().tolist())
        return plain_forward(self, batch, **options)

    monkeypatch.setattr(type(model), "inputs", inputs)
    monkeypatch.setattr(type(model), "forward", forward)
    masks = np.zeros((2, model.layout.n_heads), dtype=bool)
    vector = np.zeros(model.layout.size)
    whole_pass_losses(
        model, Prompt((), record.query), [5, 6], model.by_layer(vector), masks, "prompt"
    )
    assert seen == [[0, 1, 2, 0, 1, 2]]
