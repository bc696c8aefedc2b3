"""No code of a checkpoint runs, and nobody is asked, unless the operator said so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants
from tests.models.families import make

from dpmtv.errors import ModelError
from dpmtv.models.adapters import load_model
from dpmtv.models.places import EMBEDDED
from dpmtv.types import Query

OWN = """
from pathlib import Path
Path({ran!r}).touch()
from transformers import (
    Idefics3Config, Idefics3ForConditionalGeneration, Idefics3Processor, PreTrainedTokenizerFast
)
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
class OwnConfig(Idefics3Config):
    model_type = "own"
class OwnModel(Idefics3ForConditionalGeneration):
    config_class = OwnConfig
class OwnProcessor(Idefics3Processor): pass
class OwnImages(Idefics3ImageProcessorPil): pass
class OwnTokenizer(PreTrainedTokenizerFast): pass
def generate(model, input_ids, **_):
    return input_ids
"""


def change(path: Path, **fields: object) -> None:
    known = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    known |= fields
    path.write_text(json.dumps({k: v for k, v in known.items() if v is not None}), "utf-8")


def config(folder):
    names = {"AutoConfig": "own.OwnConfig", "AutoModelForImageTextToText": "own.OwnModel"}
    change(folder / "config.json", model_type="own", auto_map=names)


def config_of_another(folder):
    names = {"AutoConfig": "org/other--own.OwnConfig"}
    names["AutoModelForImageTextToText"] = "org/other--own.OwnModel"
    change(folder / "config.json", model_type="own", auto_map=names)


def model(folder):
    names = {"AutoModelForImageTextToText": "own.OwnModel"}
    change(folder / "config.json", auto_map=names)


def processor(folder):
    known = {"auto_map": {"AutoProcessor": "own.OwnProcessor"}, "processor_class": "OwnProcessor"}
    change(folder / "processor_config.json", **known)


def images(folder):
    path = folder / "processor_config.json"
    known = json.loads(path.read_text("utf-8"))["image_processor"]
    known |= {"image_processor_type": "OwnImages", "processor_class": "Idefics3Processor"}
    known["auto_map"] = {"AutoImageProcessor": "own.OwnImages"}
    change(path, image_processor=None)
    change(folder / "preprocessor_config.json", **known)


def tokenizer(folder):
    names = {"AutoTokenizer": [None, "own.OwnTokenizer"]}
    change(folder / "tokenizer_config.json", auto_map=names, tokenizer_class="OwnTokenizer")


def tokenizer_without_processor_class(folder):
    """Here transformers forgets what it was told."""
    tokenizer(folder)
    change(folder / "processor_config.json", processor_class=None)
    change(folder / "tokenizer_config.json", processor_class=None)


def part_of_config(folder):
    """A type that has a configuration and no model, so that only the code would do."""
    make("llava", folder)
    part = {"model_type": "mllama_vision_model", "auto_map": {"AutoModel": "own.OwnModel"}}
    change(folder / "config.json", vision_config=part)


def audio(folder):
    (folder / "audio").mkdir()
    shutil.copy(folder / "own.py", folder / "audio")
    names = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    change(folder / "audio" / "config.json", model_type="own", auto_map=names)
    known = {"audio_tokenizer_class": "AutoModel"}
    known["audio_tokenizer_name_or_path"] = str(folder / "audio")
    change(folder / "processor_config.json", audio_tokenizer=known)


def generate(folder):
    (folder / "custom_generate").mkdir()
    shutil.copy(folder / "own.py", folder / "custom_generate" / "generate.py")


def decoding(folder):
    known = {"dola_layers": "low", "custom_generate": str(folder), "num_beams": 2}
    change(folder / "generation_config.json", **known)


def kernel(folder):
    change(folder / "config.json", attn_implementation="own/kernel")


def vila(folder):
    """Everywhere but in the tokenizer."""
    make("llava_llama", folder)
    names = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    for part in ("", "llm", "vision_tower", "mm_projector"):
        shutil.copytree(folder / "own", folder / part / "custom_generate")
        shutil.copy(folder / "own" / "own.py", folder / part)
        change(folder / part / "config.json", auto_map=names)
    change(
        folder / "vision_tower" / "preprocessor_config.json",
        auto_map={"AutoImageProcessor": "own.OwnImages"},
        image_processor_type="OwnImages",
    )


def vila_tokenizer(folder):
    make("llava_llama", folder)
    shutil.copy(folder / "own.py", folder / "llm")
    tokenizer(folder / "llm")


def qwen(folder):
    make("qwen", folder)
    config_of = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    change(folder / "config.json", auto_map=config_of)
    tokenizer(folder)


TRUST = "trust_remote_code=True"
# What is to do, if it is refused without trust; and whether code runs with it.
PATHS = {
    config: (TRUST, True),
    config_of_another: (TRUST, True),
    model: (None, True),
    processor: (TRUST, True),
    images: (TRUST, True),
    tokenizer: (TRUST, True),
    tokenizer_without_processor_class: (TRUST, True),
    part_of_config: ("Take out what names it: auto_map in that part", False),
    audio: ("Take out what names it: .*audio_tokenizer in processor_config.json", False),
    generate: (None, True),
    decoding: (None, False),
    kernel: ("attention=sdpa", False),
    vila: (None, False),
    vila_tokenizer: ("Where tokenizer.json is the same tokenizer, take auto_map out", False),
    qwen: (None, False),
}
WITHOUT = {
    part_of_config: lambda folder: make("llava", folder),
    audio: lambda folder: change(folder / "processor_config.json", audio_tokenizer=None),
    vila_tokenizer: lambda folder: change(folder / "llm" / "tokenizer_config.json", auto_map=None),
}


@pytest.mark.parametrize("path", PATHS)
def test_code_of_a_checkpoint_runs_only_when_asked(path, tmp_path, monkeypatch, picture):
    from transformers import dynamic_module_utils

    asked = []
    monkeypatch.setattr("builtins.input", lambda text="": asked.append(text) or "y")
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    folder, ran = tmp_path / "checkpoint", tmp_path / "ran"
    shutil.copytree(EMBEDDED, folder)
    code = OWN.format(ran=str(ran))
    other = tmp_path / "hub" / "models--org--other"
    for place in (folder, folder / "own", other / "snapshots" / ("c" * 40)):
        place.mkdir(exist_ok=True, parents=True)
        for name in ("own.py", "generate.py"):
            (place / name).write_text(code, "utf-8")
    (other / "refs").mkdir()
    (other / "refs" / "main").write_text("c" * 40, "utf-8")
    path(folder)
    advice, runs = PATHS[path]

    def used(**how: object) -> bool:
        loaded = load_model(folder, **how)
        loaded.generate([Query(picture, "What is shown?")], max_new_tokens=2)
        return ran.exists()

    if advice is None:
        assert not used()
    else:
        with pytest.raises(ModelError, match=advice):
            load_model(folder)
        assert not ran.exists()
    if advice == TRUST or (advice is None and path is not kernel):
        assert used(trust_remote_code=True) == runs
    else:
        if path in WITHOUT:
            with pytest.raises(ModelError, match=advice):
                load_model(folder, trust_remote_code=True)
            WITHOUT[path](folder)
        assert not used(**({"attention": "sdpa"} if path is kernel else {}))
    assert not asked
