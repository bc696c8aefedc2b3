"""A folder that cannot be loaded: what it is, which file, and what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dpmtv.errors import ModelError
from dpmtv.models.adapters import load_model
from dpmtv.models.places import EMBEDDED

LFS = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345\n"
KNOWN = json.loads((EMBEDDED / "config.json").read_text("utf-8"))


@pytest.fixture
def folder(tmp_path) -> Path:
    return shutil.copytree(EMBEDDED, tmp_path / "model")


def refused(folder: Path, message: str, **how: object) -> None:
    with pytest.raises(ModelError, match=message):
        load_model(folder, **how)


# --- JSON --------------------------------------------------------------------------------------

JSON = [
    *("config.json", "generation_config.json", "processor_config.json"),
    *("tokenizer_config.json", "tokenizer.json"),
]
BROKEN = {
    "a list": (b"[]", r"holds no JSON object \({…}\) but a list"),
    "cut off": (b'{\n"model_type": "idefics3",', r", line 2, column \d+, is no JSON .*: mend it"),
    "empty": (b"", "is empty: copy or download it again"),
    "UTF-16": ('{"a": "ä"}'.encode("utf-16"), "is not UTF-8: save it in that encoding"),
    "Latin-1": ('{"a": "ä"}'.encode("latin-1"), "is not UTF-8"),
    "byte order mark": ("{}".encode("utf-8-sig"), "byte order mark: save it as UTF-8 without"),
    "LFS": (LFS.encode(), "is a Git LFS pointer, not the file: run `git lfs pull`"),
    "web page": (b"<!DOCTYPE html>", "is a web page, not the file: download it again"),
}


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("name", JSON)
def test_unreadable_json_is_named(folder, name, fault):
    data, message = BROKEN[fault]
    (folder / name).write_bytes(data)
    refused(folder, f"/model/{name}.*{message}")
    refused(folder, f"/model/{name}.*{message}", trust_remote_code=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": None}, "config.json names no model_type"),
        ({"model_type": "lava"}, "has no model_type 'lava'; a newer version may"),
        ({"model_type": 7}, "has no model_type 7"),
        ({"model_type": "llama"}, "llama is a language model for text alone"),
        ({"model_type": "gpt2"}, "gpt2 is a language model for text alone"),
        ({"model_type": "llama", "auto_map": {"AutoModelForCausalLM": "x.Y"}}, "for text alone"),
        ({"model_type": "clip"}, "clip answers no questions about pictures"),
        ({"text_config": [1]}, "Field 'text_config' with value"),
        ({"text_config": {"model_type": "lava"}}, "lava"),
        ({"vision_config": {"hidden_size": "x"}}, "'hidden_size' expected int, got str"),
        *(
            ({"quantization_config": how}, rf"does not know \(quant_method: {said}\)")
            for how, said in (
                ({"quant_method": "superquant", "bits": 2}, "'superquant'"),
                ({"bits": 2}, "None"),
                ([2], r"\[2\]"),
            )
        ),
        (
            {"text_config": KNOWN["text_config"] | {"quantization_config": {"quant_method": "x"}}},
            r"does not know \(quant_method: 'x'\)",
        ),
    ],
)
def test_configurations_that_are_no_models(folder, changes, message):
    known = {k: v for k, v in (KNOWN | changes).items() if v is not None}
    (folder / "config.json").write_text(json.dumps(known), "utf-8")
    refused(folder, message)


# --- folders -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ((), "it is empty"),
        (("model.safetensors",), "it lies beside the weights"),
        (("adapter_config.json", "adapter_model.safetensors"), r"an adapter \(PEFT\). Merge it"),
        (("certificate.json", "task_vector.safetensors"), "a task vector; name the model that"),
        (("model-Q4.gguf",), "model-Q4.gguf is a GGUF file.* take the checkpoint"),
        (("checkpoint-500/config.json",), "There is one in .*checkpoint-500"),
        (("snapshots/abc/config.json",), "There is one in .*snapshots/abc"),
        (("params.json", "consolidated.safetensors"), "another layout"),
    ],
)
def test_a_folder_without_configuration_is_called_what_it_is(tmp_path, files, message):
    for name in files:
        (tmp_path / "other" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "other" / name).write_text("{}", "utf-8")
    (tmp_path / "other").mkdir(exist_ok=True)
    refused(tmp_path / "other", f"other is a folder without config.json, not a model.*{message}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tokenizer.json", "/model has no tokenizer: none of .*tokenizer.json"),
        ("processor_config.json", "does not say how pictures are prepared"),
    ],
)
def test_a_part_that_is_missing_is_named(folder, name, message):
    (folder / name).unlink()
    refused(folder, message)


def test_a_processor_that_is_unknown_is_refused(folder):
    known = json.loads((folder / "processor_config.json").read_text("utf-8"))
    known["processor_class"] = "NoSuchProcessor"
    (folder / "processor_config.json").write_text(json.dumps(known), "utf-8")
    refused(folder, "no processor that transformers knows; processor_class in")


@pytest.mark.parametrize(
    ("data", "message"),
    [("{% if %}", "chat template cannot be used"), ("ä", "or another text of it is not UTF-8")],
)
def test_a_broken_chat_template_is_named(folder, data, message):
    (folder / "chat_template.jinja").write_text(data, "latin-1")
    refused(folder, message)


# --- weights -----------------------------------------------------------------------------------

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
WHOLE = (EMBEDDED / "model.safetensors").read_bytes()
INDEX = json.dumps({"weight_map": {"a": ONE, "b": TWO}}).encode()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "/model has no weights: none of model.safetensors, .* Download them, too"),
        ({"model.safetensors": LFS.encode()}, "model.safetensors is a Git LFS pointer"),
        ({"model.safetensors": b""}, "model.safetensors is empty"),
        ({"model.safetensors": b"<html>" * 99}, "model.safetensors is a web page"),
        ({"model.safetensors": WHOLE[:-9]}, "model.safetensors cannot be read, being cut off"),
        ({"model.safetensors": WHOLE[:99]}, "model.safetensors cannot be read, being cut off"),
        ({"pytorch_model.bin": LFS.encode()}, "pytorch_model.bin is a Git LFS pointer"),
        ({"pytorch_model.bin": b"PK\3\4" * 99}, "pytorch_model.bin cannot be read, being cut"),
        ({"pytorch_model.bin": b"numbers" * 99}, "pytorch_model.bin cannot be read, being cut"),
        ({"model.gguf": b"GGUF"}, "no weights.*model.gguf is a GGUF file, for other programs"),
        ({"consolidated.00.pth": b"x"}, "consolidated.00.pth is a pickle in another layout"),
        ({"flax_model.msgpack": b"x"}, "flax_model.msgpack is for other libraries"),
        ({"weights.safetensors": WHOLE}, "weights.safetensors has another name"),
        ({ONE: WHOLE, TWO: WHOLE}, "model.safetensors.index.json, which says .* is missing"),
        (
            {ONE: WHOLE, "model.safetensors.index.json": INDEX},
            f"lacks 1 of the 2 files that model.safetensors.index.json names: {TWO}",
        ),
        (
            {ONE: WHOLE, TWO: LFS.encode(), "model.safetensors.index.json": INDEX},
            f"{TWO} is a Git LFS pointer",
        ),
        ({"model.safetensors.index.json": b"{"}, "index.json, line 1, column 2, is no JSON"),
        ({"model.safetensors.index.json": b"[]"}, "index.json holds no JSON object"),
        ({"model.safetensors.index.json": b"{}"}, r"says of no tensor .* \(weight_map\)"),
    ],
)
def test_weights_that_are_not_all_there(folder, files, message):
    (folder / "model.safetensors").unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    refused(folder, message)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_link_to_nothing_is_called_one(folder, name):
    (folder / name).unlink()
    (folder / name).symlink_to("../../blobs/0")
    refused(folder, f"{name} is a link to a file that is not here: .*cp -rL")


def test_pickled_weights_are_read_whole_in_both_forms(folder, model):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    for new in (True, False):
        path = folder / "pytorch_model.bin"
        torch.save(tensors, path, _use_new_zipfile_serialization=new)
        assert load_model(folder).layout == model.layout


def test_answers_are_greedy_whatever_the_checkpoint_says(folder, model, picture):
    from dpmtv.types import Query

    known = {"eos_token_id": 6, "pad_token_id": 0, "num_beams": 3, "penalty_alpha": 0.6, "top_k": 4}
    known |= {"prompt_lookup_num_tokens": 2}
    (folder / "generation_config.json").write_text(json.dumps(known), "utf-8")
    asked = [Query(picture, "Which number is shown?")]
    assert load_model(folder).generate(asked) == model.generate(asked)
    generation = load_model(folder).model.generation_config
    assert generation.get_generation_mode() == "greedy_search"
