"""The one-prefix loss equals full passes."""

from __future__ import annotations

import numpy as np
import pytest

from dpmtv.data.demonstrations import read_demonstrations
from dpmtv.models.mask_loss import MaskLoss
from dpmtv.types import Prompt
from mask_loss import full_pass_losses  # benchmarks/, which compares the speed of the two


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
            same = (model, prompts[example], answers[example], vectors[example], masks, patch)
            for batched in (False, True):
                whole = full_pass_losses(*same, batched)
                assert np.abs(ours - whole).max() < 2e-6
                assert np.ptp(whole) > 1e-4, "the masks must matter, or the test shows nothing"


def test_the_loss_runs_over_all_answer_tokens_and_the_end(model, data):
    record = read_demonstrations(data / "tasks/digit-phrase/test.jsonl")[0]
    ids = model.answer_ids(Prompt((), record.query), record.answer)
    assert model.tokenizer.decode(ids) == f" {record.answer}<end_of_utterance>"
    assert len(ids) == 3
