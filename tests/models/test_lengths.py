"""One record that is too long becomes a null chunk, at once, and says so to nobody."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from dpmtv.data.rows import MAX_TEXT
from dpmtv.errors import ModelError
from dpmtv.models.choosing import first_right
from dpmtv.models.extraction import chunk_activations, private_pass, public_activations
from dpmtv.types import Demonstration, Prompt, Query


@pytest.mark.parametrize("question", ["long " * 1100, "q" * MAX_TEXT])
def test_a_prompt_beyond_the_model_is_a_null_chunk(model, picture, question):
    good = Demonstration(picture, "What digit is this?", "seven")
    long = Prompt((Demonstration(picture, question, "seven"),), good.query)
    found = list(chunk_activations(model, [long, Prompt((good,), good.query)]))
    assert found[0] is None
    assert found[1] is not None
    with pytest.raises(ModelError, match="tokens, and the model takes 1024"):
        public_activations(model, [long])


def test_an_answer_beyond_the_model_scores_nothing(model, picture):
    rows = [Demonstration(picture, "What digit is this?", "seven " * 1100)]
    vectors = public_activations(model, [Prompt((), Query(picture, "What digit is this?"))])
    heads = np.ones(model.layout.n_heads, bool)
    asked = partial(first_right, model, rows, vectors, heads, "every-step")
    assert private_pass(model, asked) is None
