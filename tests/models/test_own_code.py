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
    """A type that has a configuration and no model, and a model of its own."""
    part = {"model_type": "idefics3_vision", "auto_map": {"AutoModel": "own.OwnModel"}}
    change(folder / "config.json", text_config=part)


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


TRUST = "trust_remote_code=True"
# What is said without trust, if it is refused.
PATHS = {
    config: TRUST,
    config_of_another: TRUST,
    model: None,
    processor: TRUST,
    images: TRUST,
    tokenizer: None,
    tokenizer_without_processor_class: None,
    part_of_config: TRUST,
    audio: TRUST,
    generate: None,
    decoding: None,
    kernel: "attention=sdpa",
}
