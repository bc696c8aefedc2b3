"""Idefics, LLaVA, Qwen and GLM, tiny."""

from __future__ import annotations

from typing import Any

from tests.models import (  # noqa: F401 - fill FAMILIES, too
    more_families,
    qwen_vl_checkpoint,
    vila_family,
)
from tests.models.checkpoints import (
    FAMILIES,
    LAYERS,
    SMALL,
    Checkpoint,
    family,
    ids,
    make,
    pil,
    special_tokens,
    text,
    vision,
)

__all__ = ["FAMILIES", "make"]

# --- Idefics -----------------------------------------------------------------------------------


@family("idefics2")
def _idefics2() -> Checkpoint:
    tokenizer = special_tokens("<fake_token_around_image>")
    return Checkpoint(
        {
            "text_config": text(tokenizer, "mistral"),
            "vision_config": vision("idefics2_vision"),
            "perceiver_config": {
                "model_type": "idefics2_perceiver",
                "hidden_size": 48,
                "resampler_n_latents": 4,
                "resampler_depth": 1,
                "resampler_n_heads": 2,
                "resampler_head_dim": 8,
                "num_key_value_heads": 1,
            },
            **ids(tokenizer, image_token_id="<image>"),
        },
        tokenizer,
        pil(
            "idefics2",
            "Idefics2ImageProcessorPil",
            do_image_splitting=False,
            size={"shortest_edge": 16, "longest_edge": 32},
        ),
        "Idefics2Processor",
        options={"image_seq_len": 4},
    )


def _idefics3(name: str, module: str) -> Checkpoint:
    tokenizer = special_tokens("<fake_token_around_image>", "<global-img>")
    edge = {"longest_edge": 32}
    return Checkpoint(
        {
            "text_config": text(tokenizer, "llama"),
            "vision_config": vision(f"{module}_vision"),
            "scale_factor": 2,
            **ids(tokenizer, image_token_id="<image>"),
        },
        tokenizer,
        pil(
            module,
            f"{name}ImageProcessorPil",
            do_image_splitting=False,
            size=edge,
            max_image_size=edge,
        ),
        f"{name}Processor",
        options={"image_seq_len": 4},
    )


@family("idefics3")
def _() -> Checkpoint:
    return _idefics3("Idefics3", "idefics3")


@family("smolvlm")
def _() -> Checkpoint:
    return _idefics3("SmolVLM", "smolvlm")


# --- LLaVA -------------------------------------------------------------------------------------


def _clip(name: str = "CLIPImageProcessorPil", module: str = "clip", **more: Any) -> Any:
    return pil(module, name, size={"shortest_edge": 32}, crop_size=SMALL, **more)


@family("llava")
def _llava() -> Checkpoint:
    tokenizer = special_tokens()
    return Checkpoint(
        {
            "text_config": text(tokenizer, "llama"),
            "vision_config": vision("clip_vision_model", projection_dim=32),
            "vision_feature_layer": -1,
            **ids(tokenizer, image_token_id="<image>"),
        },
        tokenizer,
        _clip(),
        "LlavaProcessor",
        options={
            "patch_size": 8,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
    )


@family("vipllava")
def _vipllava() -> Checkpoint:
    made = _llava()
    made.config["vision_feature_layer"] = [-1, -2]
    return made


@family("llava_next")
def _llava_next() -> Checkpoint:
    made = _llava()
    made.config["image_grid_pinpoints"] = [[32, 64], [64, 32]]
    made.processor = "LlavaNextProcessor"
    made.pictures = _clip(
        "LlavaNextImageProcessorPil", "llava_next", image_grid_pinpoints=[[32, 64], [64, 32]]
    )
    return made


@family("llava_onevision")
def _llava_onevision() -> Checkpoint:
    tokenizer = special_tokens("<video>")
    pinpoints = [[32, 64], [64, 32]]
    return Checkpoint(
        {
            "text_config": text(tokenizer, "qwen2"),
            "vision_config": vision("siglip_vision_model"),
            "image_grid_pinpoints": pinpoints,
            **ids(tokenizer, image_token_id="<image>", video_token_id="<video>"),
        },
        tokenizer,
        pil(
            "llava_onevision",
            "LlavaOnevisionImageProcessorPil",
            size=SMALL,
            image_grid_pinpoints=pinpoints,
        ),
        "LlavaOnevisionProcessor",
        options={"num_image_tokens": 16, "vision_feature_select_strategy": "full"},
    )


# --- Qwen and those that count positions in three axes -----------------------------------------

_MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2]}


def _qwen(decoder: str, tower: dict[str, Any], processor: str, **more: Any) -> Checkpoint:
    marks = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    tokenizer = special_tokens(*marks)
    patch = tower["patch_size"]
    return Checkpoint(
        {
            "text_config": text(tokenizer, decoder, **{"rope_parameters": _MROPE, **more}),
            "vision_config": tower,
            **ids(
                tokenizer,
                image_token_id="<|image_pad|>",
                video_token_id="<|video_pad|>",
                vision_start_token_id="<|vision_start|>",
                vision_end_token_id="<|vision_end|>",
            ),
        },
        tokenizer,
        pil(
            "qwen2_vl",
            "Qwen2VLImageProcessorPil",
            patch_size=patch,
            size={"shortest_edge": 16 * patch * patch, "longest_edge": 36 * patch * patch},
        ),
        processor,
        image="<|vision_start|><|image_pad|><|vision_end|>",
    )


def _qwen_vision(model_type: str, **more: Any) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "depth": LAYERS,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "patch_size": 8,
        "initializer_range": 0.3,
        "out_hidden_size": 48,
        **more,
    }


@family("qwen2_vl")
def _() -> Checkpoint:
    tower = _qwen_vision("qwen2_vl_vision", embed_dim=32, hidden_size=48)
    return _qwen("qwen2_vl_text", tower, "Qwen2VLProcessor", head_dim=12)


@family("qwen2_5_vl")
def _() -> Checkpoint:
    tower = _qwen_vision("qwen2_5_vl_vision", window_size=32, fullatt_block_indexes=[1])
    return _qwen("qwen2_5_vl_text", tower, "Qwen2_5_VLProcessor", head_dim=12)


def _qwen3_vision(model_type: str, **more: Any) -> dict[str, Any]:
    return _qwen_vision(model_type, num_position_embeddings=16, **more)


_WIDE_MROPE = {**_MROPE, "mrope_section": [4, 3, 3]}


@family("qwen3_vl")
def _() -> Checkpoint:
    tower = _qwen3_vision("qwen3_vl_vision", deepstack_visual_indexes=[0])
    return _qwen("qwen3_vl_text", tower, "Qwen3VLProcessor", rope_parameters=_WIDE_MROPE)


@family("qwen3_vl_moe")
def _() -> Checkpoint:
    tower = _qwen3_vision("qwen3_vl_moe_vision", deepstack_visual_indexes=[0])
    return _qwen(
        "qwen3_vl_moe_text",
        tower,
        "Qwen3VLProcessor",
        rope_parameters=_WIDE_MROPE,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
    )


@family("qwen3_5")
def _() -> Checkpoint:
    return _qwen(
        "qwen3_5_text",
        _qwen3_vision("qwen3_5_vision"),
        "Qwen3VLProcessor",
        rope_parameters={**_MROPE, "partial_rotary_factor": 0.6},
        layer_types=["linear_attention", "full_attention"],
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
    )


@family("glm4v")
def _glm4v() -> Checkpoint:
    marks = ("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>")
    tokenizer = special_tokens("<|image|>", "<|video|>", *marks)
    return Checkpoint(
        {
            "text_config": text(
                tokenizer,
                "glm4v_text",
                head_dim=12,
                rope_parameters=_MROPE,
            ),
            "vision_config": _qwen_vision("glm4v_vision", image_size=32),
            **ids(
                tokenizer,
                image_token_id="<|image|>",
                video_token_id="<|video|>",
                image_start_token_id=marks[0],
                image_end_token_id=marks[1],
                video_start_token_id=marks[2],
                video_end_token_id=marks[3],
            ),
        },
        tokenizer,
        pil(
            "glm4v",
            "Glm4vImageProcessorPil",
            patch_size=8,
            size={"shortest_edge": 2 * 16 * 64, "longest_edge": 2 * 36 * 64},
        ),
        "Glm4vProcessor",
        image="<|begin_of_image|><|image|><|end_of_image|>",
    )
