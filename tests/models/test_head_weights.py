"""Weights and gains of heads: learned on public tasks, under noise of the size to come."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpmtv.data.demonstrations import read_demonstrations
from dpmtv.evaluation.benchmark import EMBEDDED_DATA
from dpmtv.models.head_weights import START, learn_head_weights
from dpmtv.models.mask_loss import MaskLoss
from dpmtv.public_tasks import public_tasks, release_geometry, scoring_loss
from dpmtv.types import Prompt


@pytest.fixture(scope="module")
def tasks(model):
    records = read_demonstrations(EMBEDDED_DATA / "public.jsonl")
    names = ("shape-german", "presence-truth")
    known = [r for name in names for r in [r for r in records if r.task == name][:24]]
    return public_tasks(model, known, 1, False)


@pytest.fixture(scope="module")
def heads(model):
    layer = np.repeat(np.arange(model.layout.layers), model.layout.heads)
    return (layer >= 2) & (layer < 5)


def learned(model, tasks, heads, noise: float, steps: int):
    return learn_head_weights(
        scoring_loss(model, tasks, "every-step"),
        model.layout,
        heads,
        np.mean([t.vector for t in tasks], axis=0),
        [t.activations for t in tasks for _ in t.scoring],
        noise,
        steps=steps,
    )


def test_the_loss_falls_and_nothing_depends_on_chance(model, tasks, heads):
    state = torch.get_rng_state()
    found = learned(model, tasks, heads, 0.5, 40)
    assert found.losses[-10:].mean() < found.losses[:10].mean()
    again = learned(model, tasks, heads, 0.5, 40)
    assert (found.weights == again.weights).all()
    assert (found.gains == again.gains).all()
    assert torch.equal(state, torch.get_rng_state()), "the caller's draws stay as they were"
    assert (found.weights[~heads] == 1).all()
    assert np.allclose(found.gains[~heads], START)
    assert (found.weights[heads] != 1).all()


def test_it_is_learned_for_the_noise_to_come(model, tasks, heads):
    little = learned(model, tasks, heads, 0.001, 20)
    much = learned(model, tasks, heads, 1.0, 20)
    assert much.gains[heads].mean() < little.gains[heads].mean(), "noise is held down"


def test_a_loss_of_vectors_is_that_of_masks_and_has_a_gradient(model, data):
    records = read_demonstrations(data / "tasks/digit-phrase/test.jsonl")[:2]
    heads = np.arange(model.layout.n_heads) % 3 == 0
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(2, model.layout.size)).astype(np.float32)
    for exact in (True, False):
        loss = MaskLoss(
            model,
            [Prompt((), r.query) for r in records],
            [r.answer for r in records],
            vectors,
        )
        loss._prefix_is_exact = exact
        tensor = torch.from_numpy(vectors).requires_grad_()
        both = loss.of_vectors(tensor, heads, 1)
        assert both[1].item() == pytest.approx(loss(heads[None], 1)[0], abs=1e-5)
        both.sum().backward()
        moved = tensor.grad.abs().sum(0).numpy() > 0
        assert (moved <= model.layout.coordinates(heads)).all()
        assert moved.sum() > moved.size / 6
    assert all(p.grad is None for p in model.model.parameters())


def test_the_geometry_has_what_was_learned(model, tasks, heads, monkeypatch):
    few = release_geometry(model, heads, tasks, noise=0.1)
    assert few.weights is few.gains is few.centre is None, "two rules teach nothing"
    monkeypatch.setattr("dpmtv.public_tasks.LEAST_TASKS", 2)
    geometry = release_geometry(model, heads, tasks, noise=0.1, steps=3)
    activations = np.concatenate([t.activations for t in tasks])
    centre = np.mean([t.activations.mean(0) for t in tasks], axis=0)
    assert np.allclose(geometry.centre, centre)
    norms = np.linalg.norm(geometry.to_release(activations), axis=1)
    (clip,) = geometry.clip_norms
    assert clip == pytest.approx(0.3 * np.median(norms))
    plain = release_geometry(model, heads, tasks)
    assert plain.weights is plain.gains is plain.centre is None
    given = release_geometry(model, heads, [], clip=2.0)
    assert given.clip_norms == (2.0,)
    # What was clipped to a short length comes back with about the length of START times the norm.
    released = geometry.to_release(activations)
    short = released * (clip / np.linalg.norm(released, axis=1, keepdims=True))
    back = geometry.from_release(short[0]) - np.where(
        model.layout.coordinates(heads), geometry.centre, 0
    )
    long = replace(geometry, gains=None).from_release(released[0])
    long = long - np.where(model.layout.coordinates(heads), geometry.centre, 0)
    ratio = np.linalg.norm(back) / np.linalg.norm(long)
    assert 0.2 < ratio * norms[0] / np.median(norms) < 1.0
