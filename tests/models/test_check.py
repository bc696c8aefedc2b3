"""The check of a model: what it says of a good one, and that each part of it can fail."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from dpmtv import cli
from dpmtv.models import adapters, check, families
from dpmtv.models.check import check_model
from dpmtv.models.hooks import patch_heads


def failures(model) -> set[str]:
    return {f.what for f in check_model(model, "it", shots=2).findings if not f.passed}


def test_a_model_of_random_weights_passes_too(random_model):
    assert failures(random_model) == set()


def test_a_good_model_is_usable(model):
    report = check_model(model, "embedded", shots=2)
    assert report.reasons == []
    assert report.kept_prefixes
    assert (report.layers, report.of_layers) == (6, 6)
    assert report.vector_bytes == 4 * model.layout.size
    # 6 layers, keys and values, all heads, float32
    config = model.model.config.text_config
    kept = config.num_key_value_heads * config.head_dim
    assert report.cache_bytes_a_token == 6 * 2 * kept * 4
    prompt = check._prompt(0, 1, 2)
    assert report.chunk_tokens == model.inputs([prompt])["input_ids"].shape[1]
    assert report.memory_bytes > 50e6
    assert report.chunk_seconds > 0


def swapped_pictures(monkeypatch, model):
    plain = adapters.processed

    def processed(processor, texts, images, **options):
        return plain(processor, texts, [row[::-1] for row in images], **options)

    monkeypatch.setattr(adapters, "processed", processed)


def one_picture_for_all(monkeypatch, model):
    plain = adapters.processed

    def processed(processor, texts, images, **options):
        return plain(processor, texts, [[row[-1]] * len(row) for row in images], **options)

    monkeypatch.setattr(adapters, "processed", processed)


def memory_of_earlier_prompts(monkeypatch, model):
    plain, longest = type(model).last_token_heads, []

    def last_token_heads(self, prompt):
        longest.append(len(prompt.demonstrations))
        return plain(self, prompt) * (1 + max(longest))

    monkeypatch.setattr(type(model), "last_token_heads", last_token_heads)


def a_hook_that_adds(monkeypatch, model):
    def shifted(projections, values, *rest):
        return patch_heads(projections, [v + 0.1 for v in values], *rest)

    monkeypatch.setattr(adapters, "patch_heads", shifted)


def a_layer_that_runs_twice(monkeypatch, model):
    projection = model.projections[2]
    plain = type(projection).forward
    again = []

    def forward(x):
        if not again:
            again.append(True)
            projection(x)
            again.clear()
        return plain(projection, x)

    monkeypatch.setattr(projection, "forward", forward)


def a_layer_that_does_nothing(monkeypatch, model):
    monkeypatch.setattr(model.projections[3], "forward", lambda x: torch.zeros_like(x))


def padding_that_is_seen(monkeypatch, model):
    plain = type(model).inputs

    def inputs(self, prompts):
        batch = plain(self, prompts)
        return batch | {"attention_mask": torch.ones_like(batch["attention_mask"])}

    monkeypatch.setattr(type(model), "inputs", inputs)


def scores_of_other_tokens(monkeypatch, model):
    plain = model.model.generate

    def generate(**options):
        ids = plain(**options)
        ids[:, options["input_ids"].shape[1] :] += 1
        return ids

    monkeypatch.setattr(model.model, "generate", generate)


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (swapped_pictures, "every image stands at its place"),
        (one_picture_for_all, "every image stands at its place"),
        (memory_of_earlier_prompts, "prompts of 2 demonstrations run, alone and forgotten"),
        (a_hook_that_adds, "a layer's own values change nothing"),
        (a_layer_that_runs_twice, "each layer fires once in every pass"),
        (a_layer_that_does_nothing, "other values of any layer change the answer"),
        (padding_that_is_seen, "a batch gives what single prompts give"),
        (scores_of_other_tokens, "answers are scored as they are decoded"),
    ],
)
def test_each_fault_is_found(monkeypatch, random_model, fault, found):
    fault(monkeypatch, random_model)
    assert found in failures(random_model)


def test_prefixes_that_differ_are_no_reason_to_refuse(monkeypatch, random_model):
    from dpmtv.models.mask_loss import MaskLoss

    monkeypatch.setattr(MaskLoss, "_from_prefix", lambda *_: torch.zeros(2))
    report = check_model(random_model, "it", shots=2)
    assert report.reasons == []
    assert not report.kept_prefixes


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(cli.common, "_debug", False)

    def invoke(*words: object) -> tuple[int, str, str]:
        result = CliRunner().invoke(cli.app, [str(w) for w in words])
        return result.exit_code, result.stdout, result.stderr

    return invoke


def test_the_table_is_printed(run):
    code, out, _ = run("models")
    assert code == 0
    for row in families.FAMILIES:
        assert row.model_type in out
    code, out, _ = run("models", "--json")
    assert [r["model_type"] for r in json.loads(out)] == [r.model_type for r in families.FAMILIES]


def test_a_report_can_be_pasted(run):
    code, out, err = run("models", "check", "embedded", "--shots", 2)
    assert (code, err.strip()) == (0, "checks: 7")
    assert "verdict    usable" in out
    assert "transformers" in out
    code, out, _ = run("models", "check", "embedded", "--shots", 2, "--json")
    report = json.loads(out)
    assert report["usable"]
    assert len(report["findings"]) == 7


def test_a_refused_model_ends_with_two_and_the_reason(run, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"model_type": "florence2"}')
    code, out, err = run("models", "check", tmp_path, "--json")
    assert code == 2
    assert "encoder-decoder" in json.loads(out)["reasons"][0]
    assert "encoder-decoder" in err
    swapped_pictures(monkeypatch, None)
    code, out, err = run("models", "check", "embedded", "--shots", 2)
    assert code == 2
    assert "✗          every image stands at its place" in out
    assert "verdict    refused" in out
    assert "out of order" in err


@pytest.mark.parametrize(
    "option", ["bits", "size=4", "bits=5", "trust_remote_code=yes", "dtype=float8"]
)
def test_bad_model_options_are_refused(run, option):
    code, _, err = run("models", "check", "embedded", "--model-option", option)
    assert code == 2
    assert "error:" in err


def test_model_options_reach_the_model(run):
    words = ("--model-option", "dtype=float16", "--model-option", "attention=eager")
    code, out, _ = run("models", "check", "embedded", "--shots", 1, "--json", *words)
    report = json.loads(out)
    assert (report["dtype"], report["attention"]) == ("float16", "eager")
    assert np.isfinite(report["chunk_seconds"])
    assert code == 0, report["reasons"]
