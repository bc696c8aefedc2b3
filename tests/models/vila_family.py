"""VILA-1.5, tiny: three models in folders of their own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.models.checkpoints import FAMILIES, SMALL, pil, special_tokens, text, vision
from transformers import AutoConfig, LlamaForCausalLM, SiglipVisionModel

from dpmtv.models.vila.modeling import VilaProjector, VilaProjectorConfig

if TYPE_CHECKING:
    from pathlib import Path

TOP = {
    "model_type": "llava_llama",
    "llm_cfg": {},
    "vision_tower_cfg": {},
    "mm_projector_cfg": {},
    "image_aspect_ratio": "resize",
    "mm_use_im_patch_token": False,
    "mm_vision_select_feature": "cls_patch",
    "mm_vision_select_layer": -2,
}


def write(folder: Path) -> None:
    headers = ("<|start_header_id|>", "<|end_header_id|>", "<|end_of_text|>")
    tokenizer = special_tokens("<|begin_of_text|>", *headers)
    tokenizer.bos_token = "<|begin_of_text|>"
    llama = LlamaForCausalLM(AutoConfig.for_model(**text(tokenizer, "llama")))
    llama.save_pretrained(folder / "llm")
    tokenizer.save_pretrained(folder / "llm")
    tower = SiglipVisionModel(AutoConfig.for_model(**vision("siglip_vision_model")))
    tower.save_pretrained(folder / "vision_tower")
    pictures = pil("siglip", "SiglipImageProcessorPil", size=SMALL)
    pictures.save_pretrained(folder / "vision_tower")
    widths = VilaProjectorConfig(vision_width=32, text_width=48)
    VilaProjector(widths).save_pretrained(folder / "mm_projector")
    known = {"model_type": "v2l_projector", "mm_projector_type": "mlp_downsample"}
    (folder / "mm_projector" / "config.json").write_text(json.dumps(known), "utf-8")
    (folder / "config.json").write_text(json.dumps(TOP), "utf-8")


FAMILIES["llava_llama"] = lambda: write
