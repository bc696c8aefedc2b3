"""Gemma and the other families, tiny."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.models.checkpoints import (
    SMALL,
    Checkpoint,
    family,
    ids,
    pil,
    special_tokens,
    text,
    vision,
)

if TYPE_CHECKING:
    from pathlib import Path


# --- Google ------------------------------------------------------------------------------------


@family("paligemma")
def _paligemma() -> Checkpoint:
    tokenizer = special_tokens()
    tokenizer.add_tokens([f"<loc{i:0>4}>" for i in range(1024)])
    tokenizer.add_tokens([f"<seg{i:0>3}>" for i in range(128)])
    return Checkpoint(
        {
            "text_config": text(tokenizer, "gemma"),
            "vision_config": vision("siglip_vision_model"),
            "projection_dim": 48,
            **ids(tokenizer, image_token_id="<image>"),
        },
        tokenizer,
        pil("siglip", "SiglipImageProcessorPil", size=SMALL, image_seq_length=16),
        "PaliGemmaProcessor",
        image=None,
    )


def _gemma_tokenizer() -> Any:
    return special_tokens(
        image_token="<image_soft_token>", boi_token="<start_of_image>", eoi_token="<end_of_image>"
    )


@family("gemma3")
def _gemma3() -> Checkpoint:
    tokenizer = _gemma_tokenizer()
    return Checkpoint(
        {
            "text_config": text(
                tokenizer,
                "gemma3_text",
                query_pre_attn_scalar=20,
                sliding_window=32,
                layer_types=["sliding_attention", "full_attention"],
            ),
            "vision_config": vision("siglip_vision_model"),
            "mm_tokens_per_image": 4,
            **ids(
                tokenizer,
                image_token_index="<image_soft_token>",
                boi_token_index="<start_of_image>",
                eoi_token_index="<end_of_image>",
            ),
        },
        tokenizer,
        pil("gemma3", "Gemma3ImageProcessorPil", size=SMALL, image_seq_length=4),
        "Gemma3Processor",
        image="<start_of_image>",
        options={"image_seq_length": 4},
    )


@family("gemma4")
def _gemma4() -> Checkpoint:
    tokenizer = special_tokens(
        "<|video|>",
        image_token="<|image|>",
        boi_token="<|image>",
        eoi_token="<image|>",
        audio_token="<|audio|>",
        boa_token="<|audio>",
        eoa_token="<audio|>",
    )
    return Checkpoint(
        {
            "text_config": text(
                tokenizer,
                "gemma4_text",
                layer_types=["sliding_attention", "full_attention"],
                global_head_dim=24,  # layers of different widths
                sliding_window=32,
                vocab_size_per_layer_input=len(tokenizer),
                hidden_size_per_layer_input=8,
            ),
            "vision_config": {
                **vision("gemma4_vision", patch_size=8),
                "head_dim": 16,
                "num_key_value_heads": 2,
                "position_embedding_size": 64,
                "pooling_kernel_size": 3,
            },
            "audio_config": None,
            **ids(
                tokenizer,
                image_token_id="<|image|>",
                video_token_id="<|video|>",
                boi_token_id="<|image>",
                eoi_token_id="<image|>",
            ),
        },
        tokenizer,
        pil("gemma4", "Gemma4ImageProcessorPil", patch_size=8, max_soft_tokens=70),
        "Gemma4Processor",
        image="<|image|>",
    )


# --- others ------------------------------------------------------------------------------------


@family("internvl")
def _internvl() -> Checkpoint:
    tokenizer = special_tokens(
        start_image_token="<img>",
        end_image_token="</img>",
        context_image_token="<IMG_CONTEXT>",
        video_token="<video>",
    )
    return Checkpoint(
        {
            "text_config": text(tokenizer, "qwen2"),
            "vision_config": vision("internvl_vision", image_size=[32, 32], patch_size=[8, 8]),
            "image_seq_length": 4,
            **ids(tokenizer, image_token_id="<IMG_CONTEXT>"),
        },
        tokenizer,
        pil("got_ocr2", "GotOcr2ImageProcessorPil", size=SMALL, crop_to_patches=False),
        "InternVLProcessor",
        image="<IMG_CONTEXT>",
        options={"image_seq_length": 4},
    )


@family("mistral3")
def _mistral3() -> Checkpoint:
    tokenizer = special_tokens("[IMG]", "[IMG_BREAK]", "[IMG_END]")
    return Checkpoint(
        {
            "text_config": text(tokenizer, "mistral"),
            "vision_config": vision("pixtral"),
            **ids(tokenizer, image_token_index="[IMG]"),
        },
        tokenizer,
        pil(
            "pixtral",
            "PixtralImageProcessorPil",
            size={"longest_edge": 32},
            patch_size={"height": 16, "width": 16},
        ),
        "PixtralProcessor",
        image="[IMG]",
        options={"patch_size": 8, "spatial_merge_size": 2},
    )


@family("lighton_ocr")
def _lighton_ocr() -> Checkpoint:
    tokenizer = special_tokens(
        image_token="<|image_pad|>",
        image_break_token="<|vision_pad|>",
        image_end_token="<|vision_end|>",
    )
    return Checkpoint(
        {
            "text_config": text(tokenizer, "qwen3"),
            "vision_config": vision("pixtral"),
            **ids(tokenizer, image_token_id="<|image_pad|>"),
        },
        tokenizer,
        _mistral3().pictures,
        "LightOnOcrProcessor",
        image="<|image_pad|>",
        options={"patch_size": 8, "spatial_merge_size": 2},
    )


@family("deepseek_vl")
def _deepseek_vl() -> Checkpoint:
    tokenizer = special_tokens(image_token="<image_placeholder>")
    return Checkpoint(
        {
            "text_config": text(tokenizer, "llama"),
            "vision_config": vision("siglip_vision_model"),
            **ids(tokenizer, image_token_id="<image_placeholder>"),
        },
        tokenizer,
        pil("deepseek_vl", "DeepseekVLImageProcessorPil", size=SMALL),
        "DeepseekVLProcessor",
        image="<image_placeholder>",
        options={"num_image_tokens": 16},
    )


@family("mllama")
def _mllama() -> Checkpoint:
    tokenizer = special_tokens("<|image|>", "<|python_tag|>")
    return Checkpoint(
        {
            "text_config": {
                **text(tokenizer, "mllama_text_model", cross_attention_layers=[1]),
                "head_dim": 12,
                "num_hidden_layers": 3,
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            },
            "vision_config": {
                **vision("mllama_vision_model"),
                "num_global_layers": 1,
                "attention_heads": 2,
                "vision_output_dim": 64,
                "max_num_tiles": 1,
                "intermediate_layers_indices": [0],
                "supported_aspect_ratios": [[1, 1]],
            },
            **ids(tokenizer, image_token_index="<|image|>"),
        },
        tokenizer,
        pil("mllama", "MllamaImageProcessorPil", size=SMALL, max_image_tiles=1),
        "MllamaProcessor",
        image="<|image|>",
    )


@family("aria")
def _aria() -> Checkpoint:
    tokenizer = special_tokens(image_token="<|img|>")
    return Checkpoint(
        {
            "text_config": text(
                tokenizer, "aria_text", moe_num_experts=4, moe_topk=2, moe_num_shared_experts=1
            ),
            "vision_config": {**vision("idefics3_vision"), "image_size": 490, "patch_size": 70},
            "projector_patch_to_query_dict": {"49": 4, "196": 8},
            **ids(tokenizer, image_token_index="<|img|>"),
        },
        tokenizer,
        pil("aria", "AriaImageProcessorPil", max_image_size=490, min_image_size=70),
        "AriaProcessor",
        image="<|img|>",
        options={"size_conversion": {"490": 4, "980": 8}},
    )


@family("aya_vision")
def _aya_vision() -> Checkpoint:
    marks = {
        "start_of_img_token": "<|START_OF_IMG|>",
        "end_of_img_token": "<|END_OF_IMG|>",
        "img_patch_token": "<|IMG_PATCH|>",
        "img_line_break_token": "<|IMG_LINE_BREAK|>",
        "tile_token": "TILE",
        "tile_global_token": "TILE_GLOBAL",
    }
    tokenizer = special_tokens(*marks.values())
    return Checkpoint(
        {
            "text_config": text(
                tokenizer,
                "cohere2",
                layer_types=["sliding_attention", "full_attention"],
                sliding_window=32,
            ),
            "vision_config": vision("siglip_vision_model"),
            "vision_feature_select_strategy": "full",
            "downsample_factor": 2,
            **ids(tokenizer, image_token_index="<|IMG_PATCH|>"),
        },
        tokenizer,
        pil("got_ocr2", "GotOcr2ImageProcessorPil", size=SMALL, crop_to_patches=False),
        "AyaVisionProcessor",
        options={"patch_size": 8, "img_size": 32, "downsample_factor": 2},
    )


@family("llama4")
def _llama4() -> Checkpoint:
    tokenizer = special_tokens("<|image|>", "<|image_start|>", "<|image_end|>", "<|patch|>")
    return Checkpoint(
        {
            "text_config": text(
                tokenizer,
                "llama4_text",
                intermediate_size_mlp=64,
                num_local_experts=2,
                layer_types=["chunked_attention", "full_attention"],
            ),
            "vision_config": vision(
                "llama4_vision_model",
                vision_output_dim=32,
                projector_input_dim=32,
                projector_output_dim=32,
            ),
            **ids(tokenizer, image_token_index="<|patch|>"),
        },
        tokenizer,
        # Its image processor needs torchvision: only the file of it is here.
        _Saved({"image_processor_type": "Llama4ImageProcessor", "size": SMALL}),
        "Llama4Processor",
        image="<|image|>",
        options={"patch_size": 8, "pixel_shuffle_ratio": 0.5},
    )


@dataclass
class _Saved:
    """An image processor's file, where the processor itself cannot be made."""

    known: dict[str, Any]

    def save_pretrained(self, folder: Path) -> None:
        (folder / "preprocessor_config.json").write_text(json.dumps(self.known), "utf-8")


@family("ovis2")
def _ovis2() -> Checkpoint:
    indicators = ["<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>"]
    tokenizer = special_tokens("<IMG_ATOM>", *indicators)
    return Checkpoint(
        {
            "text_config": text(tokenizer, "qwen2"),
            "vision_config": vision("ovis2_vision", vocab_size=64, hidden_stride=2),
            "visual_indicator_token_ids": tokenizer.convert_tokens_to_ids(indicators),
            "vocab_size": len(tokenizer),
            "hidden_size": 48,
            **ids(tokenizer, image_token_id="<IMG_ATOM>"),
        },
        tokenizer,
        pil("ovis2", "Ovis2ImageProcessorPil", size=SMALL, crop_to_patches=False),
        "Ovis2Processor",
        options={"image_seq_length": 4},
    )


@family("blip-2")
def _blip2() -> Checkpoint:
    tokenizer = special_tokens()
    return Checkpoint(
        {
            "text_config": {
                **text(tokenizer, "opt"),
                "ffn_dim": 64,
                "word_embed_proj_dim": 48,
                "init_std": 0.3,
            },
            "vision_config": vision("blip_2_vision_model"),
            "qformer_config": {
                "model_type": "blip_2_qformer",
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "encoder_hidden_size": 32,
                "vocab_size": 32,
            },
            "num_query_tokens": 4,
            **ids(tokenizer, image_token_index="<image>"),
        },
        tokenizer,
        pil("blip", "BlipImageProcessorPil", size=SMALL),
        "Blip2Processor",
        image=None,
        options={"num_query_tokens": 4},
    )
