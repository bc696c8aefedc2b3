"""From text and images to Qwen-VL's inputs, and the two prompt formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jaxtyping import Float
    from torch import Tensor

_MEAN = (0.48145466, 0.4578275, 0.40821073)
_DEVIATION = (0.26862954, 0.26130258, 0.27577711)

RAW = (
    "{% for m in messages %}{% if m.role == 'user' %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<img></img>{% else %}{{ part.text }}{% endif %}{% endfor %}"
    " Answer:{% else %} {{ m.content[0].text }}{% endif %}{% endfor %}"
)
"""The base model's: records one after the other, as in Qwen's own evaluation on VQA data."""

CHATML = (  # a line break after a tag in braces would be dropped, so it stands in braces itself
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>"
    "{% for m in messages %}{{ '\n<|im_start|>' + m.role + '\n' }}{% set n = namespace(images=0) %}"
    "{% for part in m.content %}{% if part.type == 'image' %}{% set n.images = n.images + 1 %}"
    "Picture {{ n.images }}: {{ '<img></img>\n' }}{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}{{ '\n<|im_start|>assistant\n' }}{% endif %}"
)
"""The chat model's; the pictures of each turn are numbered."""


class QwenVLProcessor:
    """Tokenizer, pictures and prompt format of a checkpoint.

    Args:
        tokenizer: its `QwenTokenizer`.
        image_size: side of the square that pictures are made, in pixels.
        chat_template: `RAW` or `CHATML`.
    """

    def __init__(self, tokenizer: Any, image_size: int, chat_template: str) -> None:
        self.tokenizer = tokenizer
        self.image_size = image_size
        self.chat_template = chat_template

    def apply_chat_template(self, messages: list[dict[str, Any]], **options: Any) -> str:
        """Messages as text, with ``<img></img>`` for each image."""
        text: str = self.tokenizer.apply_chat_template(messages, tokenize=False, **options)
        return text

    def __call__(
        self, text: Sequence[str], images: Sequence[Sequence[Image.Image]], **options: Any
    ) -> dict[str, Tensor]:
        """Inputs of several prompts.

        Args:
            text: prompts.
            images: of each prompt, in the order of their places.
            **options: of the tokenizer.

        Raises:
            ValueError: places and images do not match, or a path is longer than 254 bytes: the
                official model cannot tell where such a path ends.
        """
        batch: Mapping[str, Tensor] = self.tokenizer(list(text), **options)
        start, pad = self.tokenizer.convert_tokens_to_ids(["<img>", "<imgpad>"])
        for ids, row in zip(batch["input_ids"], images, strict=True):
            starts = (ids == start).nonzero()[:, 0]
            if len(starts) != len(row):
                raise ValueError(f"{len(starts)} places for images, but {len(row)} images")
            last = self.tokenizer.image_tokens - 1
            if (ids[starts + last] != pad).any():
                raise ValueError(f"an image's path is longer than {last - 1} bytes")
        pictures = [pixels(image, self.image_size) for row in images for image in row]
        inputs = dict(batch)
        return inputs | {"pixel_values": torch.stack(pictures)} if pictures else inputs


def pixels(image: Image.Image, size: int) -> Float[Tensor, "3 size size"]:
    """A picture as the vision tower takes it: a square, whatever its shape was, normalised."""
    square = image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
    values = torch.from_numpy(np.array(square)).permute(2, 0, 1).float() / 255
    mean, deviation = torch.tensor(_MEAN), torch.tensor(_DEVIATION)
    return (values - mean[:, None, None]) / deviation[:, None, None]
