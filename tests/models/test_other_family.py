"""Another architecture through the same code: a tiny LLaVA with grouped-query heads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpmtv.data.prompts import BRIEF
from dpmtv.models.adapters import VisionLanguageModel, load_model
from dpmtv.models.extraction import preflight
from dpmtv.models.loading import EMBEDDED
from dpmtv.models.mask_loss import MaskLoss, answered_right, whole_pass_losses
from dpmtv.pipeline import build_task_vector
from dpmtv.types import Demonstration, Prompt

TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'user' %}USER: {% for x in m['content'] %}"
    "{% if x['type'] == 'image' %}<image>\n{% else %}{{ x['text'] }}{% endif %}{% endfor %} "
    "{% else %}ASSISTANT: {{ m['content'][0]['text'] }}<end_of_utterance>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


@pytest.fixture(scope="module")
def llava(tmp_path_factory) -> VisionLanguageModel:
    from transformers import (
        AutoTokenizer,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    image_id = tokenizer.convert_tokens_to_ids("<image>")
    torch.manual_seed(0)
    config = LlavaConfig(
        vision_config={
            "model_type": "clip_vision_model",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 8,
            "projection_dim": 32,
        },
        text_config={
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            "hidden_size": 48,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 20,  # not hidden size ÷ heads
            "initializer_range": 0.3,
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
        },
        image_token_id=image_id,
        vision_feature_layer=-1,
    )
    model = LlavaForConditionalGeneration(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    processor = LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=32),
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token="<image>",
        chat_template=TEMPLATE,
    )
    folder = tmp_path_factory.mktemp("llava")
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return load_model(folder, max_new_tokens=3)


@pytest.fixture
def record(picture) -> Demonstration:
    return Demonstration(picture, "What digit is this?", "seven")


def test_layout_prompt_and_preflight(llava, record):
    assert llava.layout.heads == (4, 4, 4)
    assert llava.layout.head_dims == (20, 20, 20)
    prompt = Prompt((record,), record.query)
    assert llava.render(prompt) == (
        f"USER: <image>\nWhat digit is this?\n{BRIEF} ASSISTANT: seven<end_of_utterance>"
        f"USER: <image>\nWhat digit is this?\n{BRIEF} ASSISTANT:"
    )
    assert llava.tokenizer.decode(llava.answer_ids(prompt, "rot")) == " rot<end_of_utterance>"
    preflight(llava, shots=2)


def test_kept_prefixes_equal_whole_passes(llava, record):
    prompts = [Prompt((record, record), record.query), Prompt((), record.query)]
    vectors = [llava.last_token_heads(p) + 0.5 for p in prompts]
    loss = MaskLoss(llava, prompts, ["rot", "blau"], vectors)
    masks = np.random.default_rng(0).random((5, 12)) < 0.5
    for example in (0, 1):
        whole = whole_pass_losses(
            llava,
            prompts[example],
            loss.answers[example],
            llava.by_layer(vectors[example]),
            masks,
            loss.patch,
        ).numpy()
        assert np.abs(loss(masks, example) - whole).max() < 1e-5
        assert np.ptp(whole) > 0.01
    assert loss._prefix_is_exact


def test_one_pass_tells_what_decoding_would_give(llava, record):
    prompt, heads = Prompt((), record.query), np.ones(12, dtype=bool)
    vectors = np.stack([llava.last_token_heads(prompt) * factor for factor in (1, -1, 5)])
    end = max(llava.end_ids)
    for place, vector in enumerate(vectors):
        with llava.patched(vector, heads):
            batch = llava.inputs([prompt])
            ids = llava.model.generate(**batch, max_new_tokens=3, do_sample=False)
        said = ids[0, batch["input_ids"].shape[1] :].tolist()
        assert answered_right(llava, prompt, said, vectors, heads, "every-step")[place]
        for other in ([*said[:-1], (said[-1] + 1) % end], [*said[:1], end]):
            right = answered_right(llava, prompt, other, vectors, heads, "every-step")
            assert right[place] == (other == said)


def test_builds_and_answers(llava, record):
    vector = build_task_vector(
        llava, [record] * 30, epsilon=1.0, delta=1e-4, public=[record] * 12, shots=2, search_steps=4
    )
    with vector.applied(llava):
        assert len(llava.generate([record.query])) == 1
