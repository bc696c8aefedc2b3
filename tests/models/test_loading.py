"""How a model may be loaded, and what is refused before any weight is read."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from huggingface_hub import constants

from dpmtv.errors import ModelError
from dpmtv.models import loading
from dpmtv.models.adapters import VisionLanguageModel, load_model
from dpmtv.models.loading import EMBEDDED
from dpmtv.models.projections import find_projections, head_layout


def test_projections_can_be_named(model):
    same = load_model("embedded", projections=r"text_model\.layers\.\d+\.self_attn\.o_proj$")
    assert same.layout == model.layout
    assert same.identity != model.identity, "a vector must not go from one choice to another"
    upper = load_model("embedded", projections=r"text_model\.layers\.[45]\.self_attn\.o_proj$")
    assert upper.layout.layers == 2
    assert [
        m is upper.model.model.text_model.layers[i].self_attn.o_proj
        for m, i in zip(upper.projections, (4, 5), strict=True)
    ] == [True, True]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "no regular expression"),
        ("nothing_of_that_name", "match 'nothing_of_that_name'"),
        (r"layers\.0$", "no linear layers"),
        (r"embed_tokens$", "no linear layers"),
    ],
)
def test_bad_patterns_are_refused(model, pattern, message):
    with pytest.raises(ModelError, match=message):
        VisionLanguageModel(
            model.model, model.processor, weights_sha256="0" * 64, projections=pattern
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 4}, "bits=4 needs the package bitsandbytes"),
        ({"bits": 8}, "bits=8 needs the package bitsandbytes"),
        ({"bits": 5}, "4 or 8"),
        ({"device_map": "auto"}, "device_map needs the package accelerate"),
        ({"dtype": "float8"}, "dtype must be one of"),
        ({"attention": "no_such_attention"}, "cannot load"),
    ],
)
def test_options_that_cannot_be_met_are_refused(options, message, monkeypatch):
    monkeypatch.setattr(loading, "find_spec", lambda _: None)  # also where they are installed
    with pytest.raises(ModelError, match=message):
        load_model("embedded", **options)


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        *((name, "encoder-decoder") for name in ("florence2", "t5gemma2", "pix2struct", "udop")),
        *((name, "one picture a prompt") for name in ("git", "instructblip")),
    ],
)
def test_what_cannot_be_used_is_refused_before_its_weights_are_read(tmp_path, model_type, reason):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(ModelError, match=reason):
        load_model(tmp_path)


def test_a_half_precision_checkpoint_is_computed_in_full_on_a_cpu(model, tmp_path):
    shutil.copytree(EMBEDDED, tmp_path / "half")
    half = load_model(EMBEDDED, dtype="bfloat16")
    assert half.dtype == "bfloat16"
    half.model.save_pretrained(tmp_path / "half")
    assert load_model(tmp_path / "half", device="cpu").dtype == "float32"


def test_a_hub_id_is_pinned_to_its_commit(model, tmp_path, monkeypatch):
    """As a download leaves it in the cache; transformers 5.24 no longer tells the commit."""
    commit, repository = "c" * 40, tmp_path / "models--org--tiny"
    shutil.copytree(EMBEDDED, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit, "utf-8")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    identity = load_model("org/tiny").identity
    assert (identity.id, identity.revision, identity.weights_sha256) == ("org/tiny", commit, None)
    assert identity.heads == model.identity.heads


def test_layers_with_different_numbers_of_heads():
    class Attention(torch.nn.Module):
        def __init__(self, heads):
            super().__init__()
            self.head_dim = 4
            self.o_proj = torch.nn.Linear(4 * heads, 8)

    class Decoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList()
            for heads in (2, 3):
                layer = torch.nn.Module()
                layer.self_attn = Attention(heads)
                self.layers.append(layer)
            text = type("Text", (), {"num_attention_heads": [2, 3]})
            self.config = type("Config", (), {"get_text_config": staticmethod(lambda: text)})

    decoder = Decoder()
    layout = head_layout(decoder, find_projections(decoder))
    assert layout.heads == (2, 3)
    assert layout.head_dims == (4, 4)
    assert np.array_equal(layout.widths, (8, 12))
