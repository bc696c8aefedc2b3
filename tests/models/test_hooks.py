"""Patching: own value changes nothing, another changes only what is downstream, no hook stays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpmtv.errors import InternalError
from dpmtv.models.adapters import VisionLanguageModel
from dpmtv.models.hooks import last_token, patch_heads, record_heads
from dpmtv.types import Demonstration, Prompt, Query


@pytest.fixture
def prompt(picture) -> Prompt:
    shown = Demonstration(picture, "What digit is this?", "seven")
    return Prompt((shown, shown), Query(picture.rotate(90), "What digit is this?"))


def hooks_left(model: VisionLanguageModel) -> int:
    return sum(len(m._forward_pre_hooks) for m in [model.model, *model.projections])


def layer_outputs(model: VisionLanguageModel, inputs: dict) -> list[torch.Tensor]:
    return list(model.model(**inputs, output_hidden_states=True).hidden_states)


@torch.no_grad()
def test_each_heads_own_value_changes_no_logit(random_model, prompt):
    model = random_model
    inputs = model.inputs([prompt])
    plain, _ = model.forward(inputs)
    own = model.last_token_heads(prompt)
    for head in range(model.layout.n_heads):
        mask = np.zeros(model.layout.n_heads, bool)
        mask[head] = True
        with model.patched(own, mask):
            patched, _ = model.forward(inputs)
        assert torch.equal(plain, patched), head


@torch.no_grad()
def test_each_heads_other_value_changes_the_output_and_nothing_upstream(random_model, prompt):
    model = random_model
    inputs = model.inputs([prompt])
    plain = layer_outputs(model, inputs)
    other = model.last_token_heads(prompt) + 1.0
    for head, layer in enumerate(np.repeat(np.arange(6), model.layout.heads)):
        mask = np.zeros(model.layout.n_heads, bool)
        mask[head] = True
        with model.patched(other, mask):
            patched = layer_outputs(model, inputs)
        for depth, (a, b) in enumerate(zip(plain, patched, strict=True)):
            assert torch.equal(a[:, :-1], b[:, :-1]), "an earlier token changed"
            if depth <= layer:
                assert torch.equal(a, b), f"head {head}: layer {depth} is upstream"
        assert not torch.equal(plain[-1][:, -1], patched[-1][:, -1]), head


@torch.no_grad()
def test_only_the_masked_coordinates_are_replaced(random_model, prompt):
    model = random_model
    own = model.last_token_heads(prompt)
    mask = np.arange(model.layout.n_heads) % 3 == 0
    with model.patched(own + 2.0, mask), record_heads(model.projections) as records:
        model.forward(model.inputs([prompt]))
    # The recording hook was registered after the patching one, so it sees the patched input.
    seen = np.concatenate([r[0].numpy() for r in records])
    first_layer = slice(0, model.layout.widths[0])
    kept = model.layout.coordinates(mask)
    assert np.array_equal(seen[kept], (own + 2.0).astype(np.float32)[kept])
    assert np.array_equal(
        seen[first_layer][~kept[first_layer]], own[first_layer][~kept[first_layer]]
    )


@torch.no_grad()
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_prompts_and_decoding_steps_are_patched_alike_and_never_in_place(kind):
    through = torch.nn.Identity()
    values = torch.tensor([[1 / 3, 2 / 3, 1.0]], dtype=torch.float64)
    mask = torch.tensor([[True, False, True]])
    with patch_heads([through], [values], [mask], last_token(every_step=True)):
        for tokens in (4, 1, 1):
            x = torch.randn(2, tokens, 3).to(kind)
            before = x.clone()
            got = through(x)
            assert torch.equal(x, before)
            assert torch.equal(got[:, :-1], before[:, :-1])
            want = torch.where(mask, values.to(kind), before[:, -1])
            assert torch.equal(got[:, -1], want)
            assert got.dtype == kind


@torch.no_grad()
def test_alpha_mixes(random_model, prompt):
    model = random_model
    own = model.last_token_heads(prompt)
    mask = np.zeros(model.layout.n_heads, bool)
    mask[0] = True
    with model.patched(own + 2.0, mask, alpha=0.25), record_heads(model.projections) as records:
        model.forward(model.inputs([prompt]))
    width = model.layout.head_dims[0]
    assert np.allclose(records[0][0, :width].numpy(), own[:width] + 0.5, atol=1e-5)


def test_record_sees_every_layer_at_the_last_token(random_model, prompt):
    model = random_model
    with record_heads(model.projections) as records:
        model.forward(model.inputs([prompt]))
    assert [r.shape for r in records] == [(1, w) for w in model.layout.widths]
    assert hooks_left(model) == 0


def test_exceptions_leave_no_hook(random_model, prompt):
    model = random_model
    everything = np.ones(model.layout.n_heads, bool)
    with pytest.raises(KeyError), model.patched(np.zeros(model.layout.size), everything):
        raise KeyError
    with pytest.raises(KeyError), record_heads(model.projections):
        raise KeyError
    broken = [*model.projections[:-1], None]
    with pytest.raises(AttributeError), record_heads(broken):
        pass
    masks = model.coordinate_masks(everything)
    values = model.by_layer(np.zeros(model.layout.size))
    with pytest.raises(AttributeError), patch_heads(broken, values, masks, last_token(True)):
        pass
    assert hooks_left(model) == 0


def test_hooks_are_counted_and_a_silent_one_is_an_error(random_model, prompt, monkeypatch):
    model = random_model
    everything = np.ones(model.layout.n_heads, bool)
    with patch_heads(
        model.projections,
        model.by_layer(np.zeros(model.layout.size)),
        model.coordinate_masks(everything),
        last_token(every_step=True),
    ) as fired:
        answers = model.generate([prompt.query, prompt.query])
    assert len(answers) == 2
    steps = fired[0]
    assert 1 <= steps <= model.max_new_tokens
    assert fired == [steps] * model.layout.layers

    elsewhere = torch.nn.Linear(4, 4)  # a projection that no pass ever reaches
    monkeypatch.setattr(model, "projections", [*model.projections[:-1], elsewhere])
    with (
        pytest.raises(InternalError, match=r"layers \[5\]"),
        model.patched(np.zeros(model.layout.size), everything),
    ):
        model.generate([prompt.query])


def test_prompt_mode_patches_once_and_every_step_mode_each_time(random_model, prompt):
    model = random_model
    everything = np.ones(model.layout.n_heads, bool)
    values = np.full(model.layout.size, 3.0, np.float32)
    for patch, expected in (("prompt", 1), ("every-step", 4)):
        seen = []

        def look(_module, args, seen=seen):
            seen.append(bool((args[0][:, -1] == 3.0).all()))

        with model.patched(values, everything, patch):
            handle = model.projections[0].register_forward_pre_hook(look)
            ids = model.model.generate(
                **model.inputs([prompt]), max_new_tokens=4, min_new_tokens=4, do_sample=False
            )
            handle.remove()
        assert len(seen) == 4
        assert sum(seen) == expected, (patch, ids)


def test_batched_patched_answers_equal_single_ones(model, data):
    from dpmtv.data.demonstrations import read_demonstrations

    records = read_demonstrations(data / "tasks/digit-french/test.jsonl")[:6]
    records += read_demonstrations(data / "tasks/presence-french/test.jsonl")[:6]
    values = model.last_token_heads(Prompt(tuple(records[:2]), records[2].query))
    mask = np.arange(model.layout.n_heads) % 2 == 0
    with model.patched(values, mask):
        together = model.generate([r.query for r in records])
        alone = [model.generate([r.query])[0] for r in records]
    assert together == alone
