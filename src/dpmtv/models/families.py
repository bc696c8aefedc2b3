"""Model families that were checked, and how each is worked with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """A row of the table that `dpmtv models` prints; tests hold it against `check_model`.

    Args:
        model_type: as in a checkpoint's config.json.
        name: what users call it.
        heads: which layers' heads are patched.
        kept_prefixes: whether the head search runs a prompt once for many masks.
        note: what is particular.
        refused: the reason why it is refused in a plain environment; "" if it works.
        since: the version of transformers that it works from; "" for all that are taken.
    """

    model_type: str
    name: str
    heads: str = "every layer"
    kept_prefixes: bool = True
    note: str = ""
    refused: str = ""
    since: str = ""

    @property
    def works(self) -> str:
        """A tick, with the version of transformers from which it holds."""
        return "✓" + (f" from transformers {self.since}" if self.since else "")


_THREE_AXES = "positions in three axes, an offset kept on a module is put back"

FAMILIES = (
    Family("idefics2", "Idefics2"),
    Family("idefics3", "Idefics3, SmolVLM"),
    Family("smolvlm", "SmolVLM2"),
    Family("llava", "LLaVA 1.5"),
    Family("vipllava", "ViP-LLaVA", since="5.23"),
    Family("llava_next", "LLaVA-NeXT (1.6)"),
    Family("llava_onevision", "LLaVA-OneVision"),
    Family("llava_llama", "VILA-1.5 (Llama 3)", note="its own layout, read by classes of dpmtv"),
    Family("qwen", "Qwen-VL, Qwen-VL-Chat (2023)", note="by classes of this package"),
    Family("qwen2_vl", "Qwen2-VL", note=_THREE_AXES),
    Family("qwen2_5_vl", "Qwen2.5-VL", note=_THREE_AXES),
    Family("qwen3_vl", "Qwen3-VL", note=_THREE_AXES),
    Family("qwen3_vl_moe", "Qwen3-VL, mixture of experts", note=_THREE_AXES),
    Family(
        "qwen3_5",
        "Qwen3.5",
        heads="layers with full attention",
        note="linear-attention layers stay as they are; " + _THREE_AXES,
    ),
    Family("glm4v", "GLM-4V", note=_THREE_AXES),
    Family("internvl", "InternVL 3"),
    Family(
        "paligemma",
        "PaliGemma",
        kept_prefixes=False,
        note="a prompt sees itself in both directions",
    ),
    Family("gemma3", "Gemma 3"),
    Family("gemma4", "Gemma 4", note="layers of different widths", since="5.21"),
    Family("mistral3", "Mistral Small 3.1"),
    Family(
        "mllama",
        "Llama 3.2 Vision",
        heads="layers with self-attention",
        note="cross-attention layers stay as they are; never batched",
    ),
    Family("llama4", "Llama 4", refused="its image processor is made for torchvision alone"),
    Family("aria", "Aria"),
    Family("aya_vision", "Aya Vision"),
    Family("ovis2", "Ovis2"),
    Family("deepseek_vl", "DeepSeek-VL"),
    Family("lighton_ocr", "LightOnOCR"),
    Family(
        "blip-2",
        "BLIP-2 (OPT)",
        kept_prefixes=False,
        note="trained on one picture a prompt",
    ),
)
