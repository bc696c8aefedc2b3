"""Qwen-VL and Qwen-VL-Chat (2023), whose official code does not run on transformers 5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpmtv.errors import ModelError
from dpmtv.models.folder_check import check_weights, read_json
from dpmtv.models.qwen_vl.configuration import read_config
from dpmtv.models.qwen_vl.modeling import QwenVLForConditionalGeneration
from dpmtv.models.qwen_vl.processor import CHATML, RAW, QwenVLProcessor
from dpmtv.models.qwen_vl.tokenizer import QwenTokenizer
from dpmtv.models.weights import load_weights

if TYPE_CHECKING:
    from pathlib import Path

FILES = ("config.json", "generation_config.json", "qwen.tiktoken")
"""What is needed of a checkpoint beside its weights."""


def load(folder: Path, options: dict[str, Any]) -> tuple[Any, Any]:
    """A checkpoint as (model, processor).

    The prompt format is that of ``chat_format`` in generation_config.json: ``chatml`` is the chat
    model's, ``raw``, also where none is named, the base model's.

    Args:
        folder: with the files of the hub.
        options: of transformers' ``from_pretrained``: dtype, device_map …

    Raises:
        ModelError: a file, a field or a tensor is missing, unknown or of another shape.
    """
    config = read_config(folder)
    vocabulary = folder / "qwen.tiktoken"
    if not vocabulary.is_file():
        raise ModelError(f"{folder} lacks qwen.tiktoken, the vocabulary")
    tokenizer = QwenTokenizer(vocabulary, config.visual["n_queries"])
    image = tokenizer.convert_tokens_to_ids("<img>")
    if image != config.visual["image_start_id"] or len(tokenizer) > config.vocab_size:
        raise ModelError(
            f"qwen.tiktoken has {len(tokenizer)} tokens and <img> as token {image}; it belongs to "
            "another checkpoint than config.json"
        )
    template = _template(folder)
    if template is RAW and not hasattr(config, "answer_instruction"):
        config.answer_instruction = ""  # " Answer:" says it
    check_weights(folder)
    model = load_weights(QwenVLForConditionalGeneration, folder, config=config, **options)
    ends = ["<|endoftext|>"] if template is RAW else ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(ends)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model, QwenVLProcessor(tokenizer, config.visual["image_size"], template)


def _template(folder: Path) -> str:
    """The prompt format, from generation_config.json.

    Raises:
        ModelError: an unknown one.
    """
    path = folder / "generation_config.json"
    known = {"raw": RAW, "chatml": CHATML}
    name = read_json(path).get("chat_format", "raw") if path.is_file() else "raw"
    if name not in known:
        raise ModelError(f"generation_config.json: chat_format {name!r} is not raw or chatml")
    return known[name]
