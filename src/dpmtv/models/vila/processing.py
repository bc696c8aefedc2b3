"""VILA-1.5's prompts: ids with a place for every embedding of an image, and pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dpmtv.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from PIL import Image
    from torch import Tensor

IMAGE = "<image>"

_BEGIN = "<|begin_of_text|>"
_SYSTEM = (
    "You are a helpful language and vision assistant. You are able to understand the visual "
    "content that the user provides, and assist the user with a variety of tasks using natural "
    "language."
)
# The conversation "llama_3" of VILA's branch vila1.5. Answers do stand under the header "system".
_LLAMA_3 = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n" + _SYSTEM + "<|end_of_text|>"
    "{% for m in messages %}<|start_header_id|>"
    "{{ 'user' if m['role'] == 'user' else 'system' }}<|end_header_id|>\n\n"
    "{% for x in m['content'] %}"
    "{{ '<image>\\n' if x['type'] == 'image' else x['text'] }}"
    "{% endfor %}<|end_of_text|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>system<|end_header_id|>\n\n{% endif %}"
)


def chat_template(folder: Path, tokenizer: Any) -> str:
    """The folder's own chat_template.jinja, or the conversation of the first 8B release.

    Raises:
        ModelError: there is none, and the tokenizer is not Llama 3's.
    """
    own = folder / "chat_template.jinja"
    vocabulary = tokenizer.get_vocab()
    headers = (_BEGIN, "<|start_header_id|>", "<|end_header_id|>", "<|end_of_text|>")
    if own.is_file():
        template = own.read_text("utf-8")
    elif all(header in vocabulary for header in headers):
        template = _LLAMA_3
    else:
        raise ModelError(
            f"the tokenizer in {folder} is not Llama 3's, so its prompts have another form: put "
            f"that form into {own}"
        )
    # VILA tokenises a template's text as any other: a tokenizer that begins every text adds a
    # second begin token. Prompts that begin with one get none added here.
    begins = bool(tokenizer("").input_ids) and template.startswith(_BEGIN)
    return _BEGIN + template if begins else template


class VilaProcessor:
    """From text and images to ids, mask and pixels, with the interface of transformers' own.

    Args:
        image_processor: of the vision tower.
        tokenizer: of the language model; knows `IMAGE` as a token.
        chat_template: Jinja text.
        tokens_per_image: embeddings that an image becomes.
        longest: most tokens of a prompt, None for any. VILA's own code cuts what is longer, and
            with it the question; here it is refused.
    """

    image_token = IMAGE

    def __init__(
        self,
        image_processor: Any,
        tokenizer: Any,
        *,
        chat_template: str,
        tokens_per_image: int,
        longest: int | None = None,
    ) -> None:
        self.image_processor = image_processor
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.tokens_per_image = tokens_per_image
        self.longest = longest

    def apply_chat_template(self, messages: list[dict[str, Any]], **options: Any) -> str:
        """Messages as text, with one `IMAGE` for each image."""
        options.setdefault("chat_template", self.chat_template)
        text: str = self.tokenizer.apply_chat_template(messages, tokenize=False, **options)
        return text

    def __call__(
        self,
        text: Sequence[str],
        images: Sequence[Sequence[Image.Image]],
        add_special_tokens: bool = True,
        **_always: Any,
    ) -> dict[str, Tensor]:
        """Ids and mask [prompts, tokens], padded on the tokenizer's side; pixels of all images.

        Raises:
            ValueError: a prompt has not one place for each of its images, or is too long.
        """
        rows = [self._ids(t, add_special_tokens) for t in text]
        for ids, pictures in zip(rows, images, strict=True):
            if ids.count(self._image_id) != len(pictures) * self.tokens_per_image:
                raise ValueError(f"a prompt has {IMAGE} more or less often than it has images")
            if self.longest is not None and len(ids) > self.longest:
                raise ValueError(
                    f"a prompt has {len(ids)} tokens, more than the {self.longest} that the model "
                    f"takes; each image is {self.tokens_per_image} of them"
                )
        inputs = self._padded(rows)
        flat = [picture for pictures in images for picture in pictures]
        if flat:
            pixels = self.image_processor(flat, return_tensors="pt")
            inputs["pixel_values"] = pixels["pixel_values"]
        return inputs

    @property
    def _image_id(self) -> int:
        return int(self.tokenizer.convert_tokens_to_ids(IMAGE))

    def _ids(self, text: str, add_special_tokens: bool) -> list[int]:
        """Every piece between images tokenised on its own, with one begin token for all."""
        begin = self.tokenizer.bos_token_id
        ids: list[int] = []
        for place, piece in enumerate(text.split(IMAGE)):
            more = self.tokenizer(piece, add_special_tokens=add_special_tokens).input_ids
            if place:
                more = more[1:] if add_special_tokens and more[:1] == [begin] else more
                ids += [self._image_id] * self.tokens_per_image
            ids += more
        return ids

    def _padded(self, rows: list[list[int]]) -> dict[str, Tensor]:
        length = max(map(len, rows))
        ids = torch.full((len(rows), length), self.tokenizer.pad_token_id)
        mask = torch.zeros_like(ids)
        for row, known in enumerate(rows):
            left = self.tokenizer.padding_side == "left"
            where = slice(length - len(known), None) if left else slice(0, len(known))
            ids[row, where], mask[row, where] = torch.tensor(known, dtype=torch.long), 1
        return {"input_ids": ids, "attention_mask": mask}
