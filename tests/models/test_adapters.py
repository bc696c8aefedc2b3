"""Loading, head layout, identity, prompts."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

from dpmtv.data.demonstrations import read_demonstrations
from dpmtv.errors import ModelError
from dpmtv.models.adapters import VisionLanguageModel, load_model
from dpmtv.models.loading import EMBEDDED
from dpmtv.models.projections import find_projections
from dpmtv.types import Prompt


def test_the_answer_instruction_is_the_models_own_unless_one_is_given(model, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(EMBEDDED, copy)
    assert load_model(copy).instruction == ""
    assert load_model(copy, instruction="In one word.").instruction == "In one word."
    config = json.loads((copy / "config.json").read_text("utf-8"))
    del config["answer_instruction"]
    (copy / "config.json").write_text(json.dumps(config), "utf-8")
    loaded = load_model(copy)
    assert loaded.instruction == "Give a very brief answer.", "that of Idefics3"
    assert loaded.prompt_template_sha256 != model.prompt_template_sha256


def test_a_template_that_ends_with_a_space_is_warned_of(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(EMBEDDED, copy)
    (template,) = copy.glob("chat_template.*")
    template.write_text(template.read_text("utf-8").rstrip() + "{{ ' ' }}", "utf-8")
    with pytest.warns(UserWarning, match="ends with a space"):
        load_model(copy)


def test_embedded_is_loaded_as_any_folder(model, tmp_path):
    copy = tmp_path / "somewhere"
    shutil.copytree(EMBEDDED, copy)
    again = load_model(copy)
    assert again.identity == model.identity, "named by content, not by path"
    assert again.prompt_template_sha256 == model.prompt_template_sha256
    config = json.loads((copy / "config.json").read_text())
    config["text_config"]["rms_norm_eps"] = 1e-5
    (copy / "config.json").write_text(json.dumps(config))
    assert load_model(copy).identity != model.identity
    shutil.copy(EMBEDDED / "config.json", copy)
    assert load_model(copy).identity == model.identity
    tokenizer = (copy / "tokenizer.json").read_text()
    (copy / "tokenizer.json").write_text(tokenizer + " ")
    assert load_model(copy).identity != model.identity, "the tokenizer belongs to it"


def test_embedded_size():
    assert sum(p.stat().st_size for p in EMBEDDED.iterdir()) <= 6_000_000


def test_layout_comes_from_the_projection(model):
    assert model.layout.heads == (8,) * 6
    assert model.layout.head_dims == (16,) * 6
    names = {m: n for n, m in model.model.named_modules()}
    assert [names[p] for p in model.projections] == [
        f"model.text_model.layers.{i}.self_attn.o_proj" for i in range(6)
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path / "nowhere", "there is no folder"),
        (lambda path: path, "without config.json"),
        (lambda path: _write(path, {"model_type": "bert"}), "bert is a language model for text"),
        (lambda path: _write(path, {"no": "type"}), "names no model_type"),
    ],
)
def test_what_is_no_vision_language_model_is_refused(tmp_path, make, message):
    with pytest.raises(ModelError, match=message):
        load_model(make(tmp_path))


def _write(path, config):
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_a_model_without_attention_projections_is_refused():
    with pytest.raises(ModelError, match="no attention output projections"):
        find_projections(torch.nn.Sequential(torch.nn.Linear(2, 2)))


def test_models_that_would_break_isolation_or_hooks_are_refused(model):
    def changed(**text_options):
        config = type(model.model.config).from_dict(model.model.config.to_dict())
        for name, value in text_options.items():
            setattr(config.text_config, name, value)
        return type(model.model)(config).float()

    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    with pytest.raises(ModelError, match="remembers the longest prompt"):
        VisionLanguageModel(changed(rope_parameters=rope), model.processor, weights_sha256="0" * 64)
    fake = torch.nn.Module()
    fake.config = type("Config", (), {"is_encoder_decoder": True})()
    with pytest.raises(ModelError, match="encoder-decoder"):
        find_projections(fake)


def test_recurrent_mixers_are_not_attention():
    class FakeMamba2Mixer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.out_proj = torch.nn.Linear(8, 8)

    class FakeAttention(FakeMamba2Mixer):
        pass

    layers = torch.nn.ModuleList()
    for kind in (FakeMamba2Mixer, FakeAttention):
        layer = torch.nn.Module()
        layer.mixer = kind()
        layers.append(layer)
    decoder = torch.nn.Module()
    decoder.layers = layers
    assert find_projections(decoder) == [layers[1].mixer.out_proj]


def test_a_template_may_sit_with_the_tokenizer_or_under_a_name(model, data, monkeypatch):
    prompt = Prompt((), read_demonstrations(data / "tasks/color-gem/test.jsonl")[0].query)
    text, template = model.render(prompt), model.processor.chat_template
    monkeypatch.setattr(model.processor, "chat_template", {"default": template, "other": "x"})
    assert model.render(prompt) == text
    monkeypatch.setattr(model.processor, "chat_template", None)
    monkeypatch.setattr(model.tokenizer, "chat_template", template)
    assert model.render(prompt) == text
    monkeypatch.setattr(model.tokenizer, "chat_template", None)
    assert model.render(prompt).endswith("Answer:")
    assert "Question:" in model.render(prompt)


def test_left_padding_and_batching_change_no_activation(model, data):
    from dpmtv.models.hooks import record_heads

    records = read_demonstrations(data / "tasks/color-gem/private.jsonl")[:8]
    prompts = [Prompt((), records[0].query), Prompt(tuple(records[1:5]), records[5].query)]
    with record_heads(model.projections) as seen:
        # generate() derives position ids from the attention mask; so must any batched pass
        model.model.generate(**model.inputs(prompts), max_new_tokens=1, do_sample=False)
        batched = np.concatenate([r.numpy() for r in seen], axis=1)
    single = np.stack([model.last_token_heads(p) for p in prompts])
    assert np.abs(batched - single).max() < 1e-4


def test_rendered_prompt_matches_the_trained_format(model, data):
    records = read_demonstrations(data / "tasks/digit-phrase/private.jsonl")[:2]
    text = model.render(Prompt((records[0],), records[1].query))
    assert text == (
        f"<bos><image>{records[0].question} Answer: {records[0].answer}<end_of_utterance>"
        f"<image>{records[1].question} Answer:"
    )
    ids = model.inputs([Prompt((records[0],), records[1].query)])["input_ids"][0].tolist()
    assert ids.count(model.tokenizer.bos_token_id) == 1
