"""A tiny random Qwen-VL checkpoint, as a folder with the files of the hub's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from tests.models.checkpoints import LAYERS, family

if TYPE_CHECKING:
    from collections.abc import Callable

REFERENCE = Path(__file__).parents[1] / "data" / "qwen_vl_tiny"
"""Tiny checkpoints and what the official code makes of them: see its README.md."""

VISUAL = {
    "image_size": 28,
    "patch_size": 14,
    "width": 32,
    "layers": LAYERS,
    "heads": 2,
    "mlp_ratio": 2,
    "output_dim": 128,
    "n_queries": 4,
    "image_start_id": 482,
}


def write(folder: Path, chat_format: str | None = None, **fields: Any) -> Path:
    """Heads of width 32 and a vocabulary of 485; ``fields`` replace those of config.json."""
    from dpmtv.models.qwen_vl.configuration import QwenVLConfig
    from dpmtv.models.qwen_vl.modeling import QwenVLForConditionalGeneration

    folder.mkdir(exist_ok=True)
    config = json.loads((REFERENCE / "config.json").read_text("utf-8"))
    sizes = {"vocab_size": 488, "hidden_size": 128, "kv_channels": 32, "seq_length": 2048}
    config |= sizes | {"max_position_embeddings": 4096, "visual": VISUAL} | fields
    torch.manual_seed(0)
    model = QwenVLForConditionalGeneration(QwenVLConfig(**config))
    for name, values in model.named_parameters():
        if "ln_" not in name:
            torch.nn.init.normal_(values, std=0.15)
    save_file(model.state_dict(), folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    shutil.copy(REFERENCE / "qwen.tiktoken", folder)
    if chat_format is not None:
        known = {"chat_format": chat_format, "do_sample": True, "top_p": 0.3, "eos_token_id": 268}
        (folder / "generation_config.json").write_text(json.dumps(known), "utf-8")
    return folder


@family("qwen")
def _() -> Callable[[Path], Path]:
    return write
