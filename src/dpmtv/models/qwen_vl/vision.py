"""Qwen-VL's eyes: a vision transformer, and a resampler that makes each image 256 features."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from dpmtv.models.qwen_vl.configuration import QwenVLConfig

_EPSILON = 1e-6
_PLACES = 256  # rows of the stored position table, 16 × 16, whatever the size of an image
_HEAD_WIDTH = 128


class VisionTower(nn.Module):
    """Pixels → what stands in the prompt for each image. Modules are named as in checkpoints."""

    def __init__(self, config: QwenVLConfig) -> None:
        super().__init__()
        v = config.visual
        width, out, patch = v["width"], v["output_dim"], v["patch_size"]
        self.conv1 = nn.Conv2d(3, width, patch, stride=patch, bias=False)
        self.positional_embedding = nn.Parameter(torch.zeros(_PLACES, width))
        self.ln_pre = nn.LayerNorm(width, _EPSILON)
        blocks = (
            VisionBlock(width, v["heads"], int(width * v["mlp_ratio"])) for _ in range(v["layers"])
        )
        self.transformer = nn.ModuleDict({"resblocks": nn.ModuleList(blocks)})
        self.attn_pool = Resampler(v["n_queries"], width, out)
        self.ln_post = nn.LayerNorm(out, _EPSILON)
        self.proj = nn.Parameter(torch.zeros(out, out))

    def forward(
        self, pixels: Float[Tensor, "images 3 size size"]
    ) -> Float[Tensor, "images queries hidden"]:
        """Features of each image."""
        x = self.conv1(pixels.to(self.conv1.weight.dtype)).flatten(2).transpose(1, 2)
        x = self.ln_pre(x + _resized(self.positional_embedding, x.shape[1]))
        for block in self.transformer["resblocks"].children():
            x = block(x)
        features: Tensor = self.ln_post(self.attn_pool(x)) @ self.proj
        return features


class VisionBlock(nn.Module):
    """A pre-norm transformer block without mask."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, _EPSILON)
        self.ln_2 = nn.LayerNorm(width, _EPSILON)
        self.attn = VisionAttention(width, heads)
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(width, hidden), "c_proj": nn.Linear(hidden, width)}
        )

    def forward(self, x: Float[Tensor, "images patches width"]) -> Tensor:
        """Of the same shape."""
        x = x + self.attn(self.ln_1(x))
        mlp: Tensor = self.mlp["c_proj"](functional.gelu(self.mlp["c_fc"](self.ln_2(x))))
        return x + mlp


class VisionAttention(nn.Module):
    """Attention whose input projection holds query, key and value head by head."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj = nn.Linear(width, 3 * width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Float[Tensor, "images patches width"]) -> Tensor:
        """Of the same shape."""
        q, k, v = _by_head(self.in_proj(x), self.heads).chunk(3, -1)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        return out


class Resampler(nn.Module):
    """Learned queries that look at all patches of an image."""

    def __init__(self, queries: int, width: int, out: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(queries, out))
        self.pos_embed = nn.Parameter(torch.zeros(queries, out))
        same = width == out
        self.kv_proj = nn.Identity() if same else nn.Linear(width, out, bias=False)
        self.ln_q = nn.LayerNorm(out, _EPSILON)
        self.ln_kv = nn.LayerNorm(out, _EPSILON)
        self.attn = CrossAttention(out)

    def forward(self, x: Float[Tensor, "images patches width"]) -> Tensor:
        """Shape [images, queries, out]."""
        values = self.ln_kv(self.kv_proj(x))
        keys = values + _resized(self.pos_embed, values.shape[1])  # values carry no position
        queries = self.ln_q(self.query) + self.pos_embed
        out: Tensor = self.attn(queries.expand(len(x), -1, -1), keys, values)
        return out


class CrossAttention(nn.Module):
    """What `torch.nn.MultiheadAttention` computes, with its tensor names.

    Its own class, because that one reads `out_proj`'s weight past the module, where neither
    quantised weights nor weights on another device are seen.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // _HEAD_WIDTH
        self.in_proj_weight = nn.Parameter(torch.zeros(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """All are [images, tokens, width]; the result has as many tokens as ``queries``."""
        weights, biases = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
        inputs = (queries, keys, values)
        q, k, v = (
            _by_head(functional.linear(x, w, b), self.heads)
            for x, w, b in zip(inputs, weights, biases, strict=True)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        return out


def _by_head(x: Float[Tensor, "images tokens width"], heads: int) -> Tensor:
    """Shape [images, heads, tokens, width / heads]."""
    return x.view(len(x), x.shape[1], heads, -1).transpose(1, 2)


def _resized(table: Float[Tensor, "places width"], places: int) -> Tensor:
    """A square table of positions for a grid of another size, by bicubic interpolation."""
    if len(table) == places:
        return table
    old, new = math.isqrt(len(table)), math.isqrt(places)
    grid = table.float().view(old, old, -1).permute(2, 0, 1)[None]
    resized = functional.interpolate(grid, (new, new), mode="bicubic", align_corners=False)
    return resized[0].permute(1, 2, 0).flatten(0, 1).to(table.dtype)
