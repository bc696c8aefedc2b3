"""Qwen-VL's config.json: what it may say, and what is refused because it is not implemented."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from transformers import PretrainedConfig

from dpmtv.errors import ModelError
from dpmtv.models.folder_check import read_json

if TYPE_CHECKING:
    from pathlib import Path

_NEEDED = {
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "kv_channels"),
    *("intermediate_size", "layer_norm_epsilon", "rotary_emb_base", "seq_length"),
    *("use_dynamic_ntk", "use_logn_attn", "visual"),
}
_NEEDED_VISUAL = {
    *("image_size", "patch_size", "width", "layers", "heads", "mlp_ratio", "output_dim"),
    "image_start_id",
}
# What would change the arithmetic, with the only value that is implemented.
_FIXED = {
    "no_bias": True,
    "scale_attn_weights": True,
    "rotary_pct": 1.0,
    "tie_word_embeddings": False,
    "quantization_config": None,
}
# What says nothing about inference: how it was trained or exported, which code once ran it.
_WITHOUT_EFFECT = {
    *("model_type", "auto_map", "tokenizer_class", "tokenizer_type", "torch_dtype"),
    *("attn_dropout_prob", "emb_dropout_prob", "initializer_range", "max_position_embeddings"),
    *("bf16", "fp16", "fp32", "onnx_safe", "use_cache", "use_flash_attn", "_name_or_path"),
    "answer_instruction",  # read by `dpmtv.models.adapters.load_model`
}
_HEAD_WIDTH = 128  # of the resampler
_QUERIES = 256  # where config.json does not say


class QwenVLConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """Dimensions of a Qwen-VL checkpoint, under the names of its own config.json.

    Args:
        visual: the vision tower's and the resampler's: ``image_size``, ``patch_size``, ``width``,
            ``layers``, ``heads``, ``mlp_ratio``, ``output_dim``, ``image_start_id``, and
            ``n_queries``, the tokens of an image.
        intermediate_size: twice the width of each of the two branches of an MLP.
        seq_length: tokens beyond which rotary base and queries are scaled; no limit.
        **more: all other fields, as attributes.
    """

    model_type = "qwen"

    def __init__(
        self,
        visual: dict[str, Any] | None = None,
        vocab_size: int = 151936,
        hidden_size: int = 4096,
        num_hidden_layers: int = 32,
        num_attention_heads: int = 32,
        kv_channels: int = 128,
        intermediate_size: int = 22016,
        layer_norm_epsilon: float = 1e-6,
        rotary_emb_base: float = 10000,
        seq_length: int = 2048,
        use_dynamic_ntk: bool = True,
        use_logn_attn: bool = True,
        **more: Any,
    ) -> None:
        self.visual = {"n_queries": _QUERIES} | (visual or {})
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.kv_channels = kv_channels
        self.intermediate_size = intermediate_size
        self.layer_norm_epsilon = layer_norm_epsilon
        self.rotary_emb_base = rotary_emb_base
        self.seq_length = seq_length
        self.use_dynamic_ntk = use_dynamic_ntk
        self.use_logn_attn = use_logn_attn
        super().__init__(**{"tie_word_embeddings": False} | more)


def read_config(folder: Path) -> QwenVLConfig:
    """The configuration of a checkpoint.

    Raises:
        ModelError: it lacks something, or has what is not implemented: never guessed.
    """
    fields = read_json(folder / "config.json")
    if "visual" not in fields:
        raise _refused("no 'visual' section: this is the Qwen that takes text alone")
    visual = fields["visual"]
    if fields.get("quantization_config") is not None:
        raise _refused(
            "quantised weights (the Int4 release) have other tensors; take Qwen/Qwen-VL-Chat itself"
        )
    for name, value in _FIXED.items():
        if fields.get(name, value) != value:
            raise _refused(f"{name} is {fields[name]!r}; only {value!r} is implemented")
    for place, given, needed, more in (
        ("", fields, _NEEDED, {*_FIXED, *_WITHOUT_EFFECT, *PretrainedConfig().to_dict()}),
        ("visual.", visual, _NEEDED_VISUAL, {"n_queries"}),
    ):
        if missing := sorted(needed - given.keys()):
            raise _refused(f"{place}{missing[0]} is missing")
        if unknown := sorted(given.keys() - needed - more):
            name = unknown[0]
            raise _refused(
                f"{place}{name} = {given[name]!r} is unknown here and may change what is computed"
            )
    config = QwenVLConfig.from_pretrained(folder)
    _fits(config)
    return config


def _fits(config: QwenVLConfig) -> None:
    """Refuse dimensions that do not go together.

    Raises:
        ModelError: such.
    """
    v = config.visual
    wrong = {
        "num_attention_heads · kv_channels is not hidden_size": config.num_attention_heads
        * config.kv_channels
        != config.hidden_size,
        "visual.output_dim is not hidden_size": v["output_dim"] != config.hidden_size,
        f"visual.output_dim is no multiple of {_HEAD_WIDTH}": v["output_dim"] % _HEAD_WIDTH,
        "visual.width is no multiple of visual.heads": v["width"] % v["heads"],
        "visual.image_size is no multiple of visual.patch_size": v["image_size"] % v["patch_size"],
        "visual.n_queries is no square": math.isqrt(v["n_queries"]) ** 2 != v["n_queries"],
        "kv_channels or intermediate_size is odd": (config.kv_channels | config.intermediate_size)
        % 2,
    }
    for what, is_so in wrong.items():
        if is_so:
            raise _refused(what)


def _refused(why: str) -> ModelError:
    return ModelError(f"config.json of a Qwen-VL checkpoint: {why}")
