"""VILA-1.5 as a transformers model: SigLIP, a projector that merges 2 x 2 patches, Llama."""

from __future__ import annotations

import inspect
from math import isqrt
from typing import Any

from torch import Tensor, nn
from transformers import (
    GenerationMixin,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    SiglipVisionConfig,
)


class VilaConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """Configuration of the whole; those of the parts are the parts' own.

    Args:
        text_config: of the language model.
        vision_config: of the vision tower.
        image_token_id: the id that stands at each place of an image's embeddings. It may lie
            beyond the vocabulary: it is never looked up.
        feature_layer: which of the tower's hidden states is an image's features; -2 leaves the
            last layer and the norm after it out.
    """

    model_type = "llava_llama"
    sub_configs = {"text_config": LlamaConfig, "vision_config": SiglipVisionConfig}  # noqa: RUF012

    def __init__(
        self,
        text_config: Any = None,
        vision_config: Any = None,
        image_token_id: int | None = None,
        feature_layer: int | None = None,
        **known: Any,
    ) -> None:
        self.text_config, self.vision_config = text_config, vision_config
        self.image_token_id, self.feature_layer = image_token_id, feature_layer
        super().__init__(**known)


class VilaProjectorConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """Widths of the features and of the embeddings: its own config.json does not say them."""

    model_type = "v2l_projector"

    def __init__(self, vision_width: int = 0, text_width: int = 0, **known: Any) -> None:
        self.vision_width, self.text_width = vision_width, text_width
        super().__init__(**known)


class SpaceToDepth(nn.Module):
    """Join the patches of every 2 x 2 cell: a quarter of the tokens, four times as wide."""

    def forward(self, features: Tensor) -> Tensor:
        """Features [images, side², width] to [images, ⌈side/2⌉², 4 · width].

        An odd side gets a row and a column of zeros, below and to the right. Within a cell its
        upper row comes first; the cells themselves go down the columns.
        """
        images, tokens, width = features.shape
        side = isqrt(tokens)
        grid = features.reshape(images, side, side, width)
        grid = nn.functional.pad(grid, (0, 0, 0, side % 2, 0, side % 2))
        half = (side + 1) // 2
        cells = grid.reshape(images, half, 2, half, 2, width).permute(0, 3, 1, 2, 4, 5)
        return cells.reshape(images, half * half, 4 * width)


class VilaProjector(PreTrainedModel):  # type: ignore[no-untyped-call]
    """From a vision tower's features to embeddings of the language model ("mlp_downsample")."""

    config_class = VilaProjectorConfig
    base_model_prefix = "mm_projector"

    def __init__(self, config: VilaProjectorConfig) -> None:
        super().__init__(config)
        joined, out = 4 * config.vision_width, config.text_width
        self.layers = nn.Sequential(
            SpaceToDepth(),
            nn.LayerNorm(joined),
            nn.Linear(joined, out),
            nn.GELU(),
            nn.Linear(out, out),
        )
        self.post_init()  # type: ignore[no-untyped-call]

    @staticmethod
    def tokens_of(patches: int) -> int:
        """Embeddings that an image of so many patches becomes."""
        return ((isqrt(patches) + 1) // 2) ** 2

    def forward(self, features: Tensor) -> Tensor:
        """Features [images, patches, vision width] to [images, tokens, text width]."""
        embeddings: Tensor = self.layers(features)
        return embeddings


class VilaForConditionalGeneration(  # type: ignore[no-untyped-call]
    PreTrainedModel, GenerationMixin
):
    """The three parts as one model that `generate` runs.

    Ids hold the image id once for *each* embedding of an image, so that ids, mask, positions and
    cache all have the length of what the language model sees.
    """

    config_class = VilaConfig
    main_input_name = "input_ids"
    _supports_sdpa = _supports_flash_attn = _supports_attention_backend = True

    def __init__(
        self, config: VilaConfig, llm: Any, vision_tower: Any, mm_projector: VilaProjector
    ) -> None:
        super().__init__(config)
        self.llm, self.vision_tower, self.mm_projector = llm, vision_tower, mm_projector
        self.generation_config = llm.generation_config

    def get_input_embeddings(self) -> Any:
        """The language model's."""
        return self.llm.get_input_embeddings()

    def get_output_embeddings(self) -> Any:
        """The language model's."""
        return self.llm.get_output_embeddings()

    def get_decoder(self) -> Any:
        """The language model without its head."""
        return self.llm.model

    def image_features(self, pixel_values: Tensor) -> Tensor:
        """Pictures [images, channels, edge, edge] to [images, tokens, text width]."""
        tower = self.vision_tower
        seen = tower(pixel_values.to(tower.device, tower.dtype), output_hidden_states=True)
        features: Tensor = self.mm_projector(
            seen.hidden_states[self.config.feature_layer].to(self.mm_projector.dtype)
        )
        return features

    def embed(self, input_ids: Tensor, pixel_values: Tensor | None = None) -> Tensor:
        """Embeddings [rows, tokens, width]: of the text, with images at their places in order.

        Raises:
            ValueError: the places are not as many as the images' embeddings.
        """
        table = self.get_input_embeddings()
        # Image and padding ids may have no row. Neither is seen: one is replaced, one is masked.
        embeddings: Tensor = table(input_ids.where(input_ids < table.num_embeddings, 0))
        if pixel_values is None:
            return embeddings
        features = self.image_features(pixel_values).to(embeddings).flatten(0, 1)
        places = input_ids == self.config.image_token_id
        if int(places.sum()) != len(features):
            raise ValueError(
                f"the prompts have places for {int(places.sum())} image embeddings, the images "
                f"have {len(features)}"
            )
        return embeddings.masked_scatter(places[..., None], features)

    def forward(
        self,
        input_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **options: Any,
    ) -> Any:
        """As `LlamaForCausalLM.forward`, with images.

        Args:
            input_ids: [rows, tokens], the image id at every place of an image embedding.
            pixel_values: [images of all rows, channels, edge, edge].
            inputs_embeds: [rows, tokens, width] instead of both.
            options: the language model's.
        """
        if inputs_embeds is None:
            assert input_ids is not None, "ids or embeddings"
            inputs_embeds = self.embed(input_ids, pixel_values)
        return self.llm(inputs_embeds=inputs_embeds, **options)


def _signature() -> inspect.Signature:
    """That of the language model, with pictures: what `generate` looks up.

    Written out, it would be right for one version of transformers: the name of the cache changes.
    """
    taken = dict(inspect.signature(LlamaForCausalLM.forward).parameters)
    rest = taken.pop("kwargs")
    pictures = inspect.Parameter(
        "pixel_values", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None
    )
    return inspect.Signature([*taken.values(), pictures, rest])


VilaForConditionalGeneration.forward.__signature__ = _signature()  # type: ignore[attr-defined]
