"""Qwen-VL (Bai et al. 2023, arXiv 2308.12966) for current transformers, for inference.

Its official code does not run on transformers 5. The arithmetic is that code's, and modules have
the names of its checkpoints. Two things differ, neither for a prompt alone in its pass:

- In a padded batch each row is counted by its own tokens, so that it gives what it gives alone.
  The official code counts the padding, too: the same up to ``seq_length``, others beyond.
- Softmax runs in float32, as everywhere in transformers; the official code's runs in the weights'
  type, which in half precision rounds otherwise.

*Stateless.* No module keeps anything from one pass to the next. The rotary base depends on a
prompt's length; it is computed in the pass that reads the prompt and then goes with the cache of
this prompt's keys and values, which ends with it.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import (
    LlamaRMSNorm,
    apply_rotary_pos_emb,
    eager_attention_forward,
)

from dpmtv.models.qwen_vl.configuration import QwenVLConfig
from dpmtv.models.qwen_vl.vision import VisionTower

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

_MOST_TOKENS = 32767  # for which the official code scales queries
# Its name in transformers before 5.24, and since.
_CACHE = {f.name for f in fields(CausalLMOutputWithPast)} & {"past_key_values", "cache"}


class Places(NamedTuple):
    """What attention has to know about tokens' places, for one pass.

    Args:
        mask: added to scores, [rows, 1, tokens, keys].
        cos, sin: of the rotary embedding, float32, [rows, tokens, head width].
        growth: factor of each query, [rows, 1, tokens, 1]; None where all are 1.
    """

    mask: Tensor
    cos: Tensor
    sin: Tensor
    growth: Tensor | None


class QwenVLForConditionalGeneration(PreTrainedModel, GenerationMixin):  # type: ignore[no-untyped-call]
    """Images and text → the next token."""

    config_class = QwenVLConfig
    _no_split_modules = ["Block", "VisionTower"]  # noqa: RUF012 - transformers' own form
    _supports_sdpa = True

    def __init__(self, config: QwenVLConfig) -> None:
        super().__init__(config)
        self.transformer = Decoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]

    def get_decoder(self) -> Decoder:
        """All but the output layer."""
        return self.transformer

    def get_input_embeddings(self) -> nn.Embedding:
        """The token embedding."""
        return self.transformer.wte

    def forward(
        self,
        input_ids: Int[Tensor, "rows tokens"],
        pixel_values: Float[Tensor, "images 3 size size"] | None = None,
        attention_mask: Int[Tensor, "rows keys"] | None = None,
        past_key_values: Any = None,
        cache: Any = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **_ignored: Any,
    ) -> CausalLMOutputWithPast:
        """One pass.

        Args:
            input_ids: tokens; with a cache, those after it.
            pixel_values: the images in the order of their places, row after row. They are read
                with the prompt alone: not where there is something in the cache.
            attention_mask: of the tokens in the cache, too; 0 for padding, which is on the left.
            past_key_values: the cache, under its old name.
            cache: the cache.
            use_cache: make one if there is none.
            logits_to_keep: of the last tokens only; 0 for all.

        Raises:
            ValueError: images and their places do not match, or too many tokens.
        """
        cache = past_key_values if cache is None else cache
        if cache is None and (use_cache or use_cache is None):
            cache = DynamicCache()
        hidden = self.transformer(input_ids, pixel_values, attention_mask, cache)
        logits = self.lm_head(hidden[:, -logits_to_keep:])
        return CausalLMOutputWithPast(logits=logits, **dict.fromkeys(_CACHE, cache))


class Decoder(nn.Module):
    """Embeddings with images in their places, and the layers of the language model."""

    def __init__(self, config: QwenVLConfig) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
        self.h = nn.ModuleList(Block(config, i) for i in range(config.num_hidden_layers))
        self.ln_f = LlamaRMSNorm(config.hidden_size, config.layer_norm_epsilon)
        self.visual = VisionTower(config)

    def forward(
        self,
        input_ids: Tensor,
        pixel_values: Tensor | None,
        attention_mask: Tensor | None,
        cache: Any,
    ) -> Float[Tensor, "rows tokens hidden"]:
        """The last hidden state, after the last norm."""
        before = 0 if cache is None else cache.get_seq_length()
        x = self.wte(input_ids)
        if before == 0:
            x = self._with_images(x, input_ids, pixel_values)
        if attention_mask is None:
            attention_mask = input_ids.new_ones(len(x), before + x.shape[1])
        places = self._places(attention_mask, x, before, cache)
        for block in self.h:
            x = block(x, places, cache)
        last: Tensor = self.ln_f(x)
        return last

    def _with_images(self, x: Tensor, input_ids: Tensor, pixel_values: Tensor | None) -> Tensor:
        """Features in place of what stands between an image's start and end.

        What stands there is not read: the official code finds the image's path in it.
        """
        start, queries = self.config.visual["image_start_id"], self.config.visual["n_queries"]
        starts, ends = (input_ids == start).nonzero(), (input_ids == start + 1).nonzero()
        between = torch.tensor([0, queries + 1], device=ends.device)
        if starts.shape != ends.shape or not torch.equal(starts + between, ends):
            raise ValueError(f"an image is a start, {queries} tokens and an end; one here is not")
        images = 0 if pixel_values is None else len(pixel_values)
        if len(starts) != images:
            raise ValueError(f"{len(starts)} places for images, but {images} images")
        if pixel_values is None:
            return x
        x = x.clone()
        columns = starts[:, 1:] + torch.arange(1, queries + 1, device=starts.device)
        x[starts[:, :1], columns] = self.visual(pixel_values).to(x)
        return x

    def _places(self, attention_mask: Tensor, x: Tensor, before: int, cache: Any) -> Places:
        """Mask, rotary embedding and growth of queries of the tokens after ``before``."""
        if attention_mask.shape[1] > _MOST_TOKENS:
            raise ValueError(f"{attention_mask.shape[1]} tokens; Qwen-VL takes {_MOST_TOKENS}")
        seen = attention_mask.bool()
        position = (seen.long().cumsum(1) - 1).clamp(min=0)[:, before:]
        if before:
            bases = cache.rotary_bases
        else:
            bases = self.rotary_bases(seen.sum(1))
            if cache is not None:
                cache.rotary_bases = bases
        width = self.config.kv_channels
        exponents = torch.arange(0, width, 2, device=x.device).float() / width
        angles = position[..., None].float() / bases[:, None, None] ** exponents
        angles = torch.cat([angles, angles], -1)
        return Places(
            _added(seen, before, x.dtype), angles.cos(), angles.sin(), self._growth(position)
        )

    def rotary_bases(self, lengths: Int[Tensor, " rows"]) -> Float[Tensor, " rows"]:
        """The rotary base of prompts of these lengths ("dynamic NTK"), float32.

        Constant up to ``seq_length`` tokens; then it grows by 3 up to twice, by 7 up to four
        times as many, to the power of d / (d - 2) with heads of width d.
        """
        base = self.config.rotary_emb_base
        if not self.config.use_dynamic_ntk:
            return torch.full_like(lengths, base, dtype=torch.float32)
        doublings = torch.ceil(torch.log2(lengths.double() / self.config.seq_length) + 1)
        alpha = (2**doublings - 1).clamp(min=1)
        width = self.config.kv_channels
        return (base * alpha ** (width / (width - 2))).float()

    def _growth(self, position: Int[Tensor, "rows tokens"]) -> Tensor | None:
        """What the query at the i-th token is multiplied by: log i / log seq_length beyond it."""
        if not self.config.use_logn_attn:
            return None
        factors = torch.log(position.double() + 1) / math.log(self.config.seq_length)
        return factors.clamp(min=1).float()[:, None, :, None]


def _added(seen: Bool[Tensor, "rows keys"], before: int, dtype: torch.dtype) -> Tensor:
    """0 where a token may look, else the lowest number: padding, which sees nothing, stays finite.

    Shape [rows, 1, tokens, keys].
    """
    keys = torch.arange(seen.shape[1], device=seen.device)
    allowed = seen[:, None, :] & (keys <= keys[before:, None])
    lowest = torch.finfo(dtype).min
    return torch.zeros_like(allowed, dtype=dtype).masked_fill(~allowed, lowest)[:, None]


class Block(nn.Module):
    """A layer: attention, then a gated MLP, each after a norm."""

    def __init__(self, config: QwenVLConfig, layer: int) -> None:
        super().__init__()
        hidden, branch = config.hidden_size, config.intermediate_size // 2
        self.ln_1 = LlamaRMSNorm(hidden, config.layer_norm_epsilon)
        self.ln_2 = LlamaRMSNorm(hidden, config.layer_norm_epsilon)
        self.attn = Attention(config, layer)
        self.mlp = nn.ModuleDict(
            {
                "w1": nn.Linear(hidden, branch, bias=False),
                "w2": nn.Linear(hidden, branch, bias=False),
                "c_proj": nn.Linear(branch, hidden, bias=False),
            }
        )

    def forward(self, x: Float[Tensor, "rows tokens hidden"], places: Places, cache: Any) -> Tensor:
        """Of the same shape."""
        x = x + self.attn(self.ln_1(x), places, cache)
        y = self.ln_2(x)
        gated = self.mlp["w1"](y) * nn.functional.silu(self.mlp["w2"](y))
        mlp: Tensor = self.mlp["c_proj"](gated)
        return x + mlp


class Attention(nn.Module):
    """Causal attention with rotary positions; `c_proj` takes in the heads side by side."""

    is_causal = True
    num_key_value_groups = 1  # for transformers' attention functions

    def __init__(self, config: QwenVLConfig, layer: int) -> None:
        super().__init__()
        self.config, self.layer = config, layer
        self.c_attn = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.c_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Float[Tensor, "rows tokens hidden"], places: Places, cache: Any) -> Tensor:
        """Of the same shape."""
        by_head = (*x.shape[:2], self.config.num_attention_heads, self.config.kv_channels)
        q, k, v = (t.view(by_head).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1))
        q, k = apply_rotary_pos_emb(q.float(), k.float(), places.cos, places.sin)
        q, k = q.to(x.dtype), k.to(x.dtype)
        if places.growth is not None:
            q = q * places.growth.to(x.dtype)
        if cache is not None:
            k, v = cache.update(k, v, self.layer)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        heads, _ = attend(
            self, q, k, v, places.mask, dropout=0.0, scaling=self.config.kv_channels**-0.5
        )
        out: Tensor = self.c_proj(heads.flatten(2))
        return out
