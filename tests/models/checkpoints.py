"""Tiny random checkpoints of vision-language families, each a folder as a hub would give it.

Configurations are the families' own classes with small sizes; the tokenizer is the embedded
model's with each family's special tokens; image processors are the families' own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText, AutoTokenizer

from dpmtv.models.loading import EMBEDDED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_CHAT = (
    "{% for m in messages %}{% if m['role'] == 'user' %}USER: {% for x in m['content'] %}"
    "{% if x['type'] == 'image' %}IMAGE{% else %}{{ x['text'] }}{% endif %}{% endfor %} "
    "{% else %}ASSISTANT: {{ m['content'][0]['text'] }}<end_of_utterance>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
LAYERS = 2
SMALL = {"height": 32, "width": 32}


@dataclass
class Checkpoint:
    """What a folder holds. ``image`` is the chat template's placeholder, None without template."""

    config: dict[str, Any]
    tokenizer: Any
    pictures: Any
    processor: str
    image: str | None = "<image>"
    options: dict[str, Any] = field(default_factory=dict)


FAMILIES: dict[str, Callable[[], Any]] = {}
"""Model type → its `Checkpoint`; for classes of this package what writes the folder."""


def make(family: str, folder: Path) -> Path:
    """Write the family's checkpoint into ``folder``."""
    torch.manual_seed(0)
    made = FAMILIES[family]()
    if callable(made):
        made(folder)
        return folder
    config = AutoConfig.for_model(family, **made.config)
    model = AutoModelForImageTextToText.from_config(config).float()
    for name, values in model.named_parameters():
        # Mllama's gates and Gemma's projector start at zero: no picture would be seen.
        if name.endswith(("gate", "projection_weight")) and not values.any():
            torch.nn.init.normal_(values)
    for name in ("eos_token_id", "pad_token_id", "bos_token_id"):
        setattr(model.generation_config, name, getattr(made.tokenizer, name))
    model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    made.pictures.save_pretrained(folder)
    known = {"processor_class": made.processor, **made.options}
    (folder / "processor_config.json").write_text(json.dumps(known), "utf-8")
    if made.image is not None:
        template = _CHAT.replace("IMAGE", made.image)
        (folder / "chat_template.jinja").write_text(template, "utf-8")
    return folder


def family(name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def register(function: Callable[[], Any]) -> Callable[[], Any]:
        FAMILIES[name] = function
        return function

    return register


def special_tokens(*special: str, **named: str) -> Any:
    """The embedded tokenizer with more special tokens; ``named`` ones are attributes of it."""
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED, extra_special_tokens=named)
    more = [*special, "<image>", *named.values()]
    tokenizer.add_special_tokens({"extra_special_tokens": more}, replace_extra_special_tokens=False)
    return tokenizer


def ids(tokenizer: Any, **tokens: str) -> dict[str, int]:
    return {name: tokenizer.convert_tokens_to_ids(token) for name, token in tokens.items()}


def text(tokenizer: Any, model_type: str, **more: Any) -> dict[str, Any]:
    """A decoder with grouped-query heads whose width is not hidden size ÷ heads."""
    return {
        "model_type": model_type,
        "vocab_size": len(tokenizer),
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 20,
        "initializer_range": 0.3,
        "max_position_embeddings": 4096,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        **more,
    }


def vision(model_type: str, **more: Any) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 8,
        "initializer_range": 0.3,
        **more,
    }


def pil(module: str, name: str, **options: Any) -> Any:
    path = f"transformers.models.{module}.image_processing_pil_{module}"
    return getattr(import_module(path), name)(**options)
