"""Tokens through the language model, counted against the hand."""

from __future__ import annotations

import pytest

from dpmtv.models.extraction import public_activations
from dpmtv.models.tokens import count_tokens
from dpmtv.types import Demonstration, Prompt, Query


@pytest.fixture
def prompts(picture):
    shown = Demonstration(picture, "What is it?", "red")
    return [Prompt((shown,) * k, Query(picture, "And what is this?")) for k in (0, 2)]


def test_a_pass_counts_rows_times_the_longest(random_model, prompts):
    lengths = [random_model.inputs([p])["input_ids"].shape[1] for p in prompts]
    with count_tokens(random_model) as counted:
        random_model.last_token_heads(prompts[0])
        assert (counted.passes, counted.tokens) == (1, lengths[0])
        public_activations(random_model, prompts)
    assert (counted.passes, counted.tokens) == (2, lengths[0] + 2 * max(lengths))


def test_each_decoding_step_is_a_pass_of_one_token_a_row(random_model, prompts):
    length = random_model.inputs(prompts[:1])["input_ids"].shape[1]
    with count_tokens(random_model) as counted:
        random_model.generate(prompts[:1], 3)
    assert counted.tokens == length + counted.passes - 1
    assert counted.passes <= 3


def test_nothing_is_counted_outside_nor_left_behind(random_model, prompts):
    with pytest.raises(ZeroDivisionError), count_tokens(random_model) as counted:
        raise ZeroDivisionError
    random_model.last_token_heads(prompts[0])
    assert counted.tokens == 0
    assert not random_model.projections[0]._forward_pre_hooks
