"""Find the attention output projections of any decoder, and the heads that lie before them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dpmtv.errors import ModelError
from dpmtv.types import HeadLayout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

# Names that architectures give to the attention output projection of a decoder layer, and parts
# of a module path that mark something else (vision towers, cross-attention, recurrent layers).
_PROJECTION = re.compile(
    r"(?:^|\.)(?:layers|h|blocks|layer)\.\d+\..*(?:attn|attention|mixer).*"
    r"\.(?:o_proj|out_proj|dense|c_proj|wo|attn_out)$"
)
_ELSEWHERE = re.compile(r"cross|encoder_attn|encoder\.layers|vision|visual|linear_attn|mamba|conv")
_RECURRENT = re.compile(r"mamba|linear|delta|recurrent|conv", re.IGNORECASE)


def find_projections(model: Any, pattern: str | None = None) -> list[nn.Module]:
    """The attention output projections of the language model, in layer order.

    Args:
        model: a transformers model.
        pattern: a regular expression to find in the full names of the modules that are meant, for
            an architecture that the general rule does not fit.

    Raises:
        ModelError: none found, or the pattern is none.
    """
    refuse_encoder_decoder(getattr(model, "config", None), type(model).__name__)
    found = _named(model, pattern) if pattern else _by_rule(model)
    if not found:
        how = f"match {pattern!r}" if pattern else "were found by name"
        raise ModelError(
            f"no attention output projections of {type(model).__name__} {how}; name the linear "
            "layers that take in the heads of a decoder layer by projections=REGEX (command line: "
            "--model-option projections=REGEX)"
        )
    return found


def refuse_encoder_decoder(config: Any, name: str) -> None:
    """Refuse models whose answer is not a continuation of the prompt.

    Raises:
        ModelError: it is one.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{name} is an encoder-decoder; only decoder models can be patched")


def _by_rule(model: Any) -> list[nn.Module]:
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    modules = dict(decoder.named_modules())
    return [
        module
        for name, module in modules.items()
        if _PROJECTION.search(name)
        and not _ELSEWHERE.search(name)
        and hasattr(module, "weight")
        and not _RECURRENT.search(type(modules[name.rpartition(".")[0]]).__name__)
    ]


def _named(model: Any, pattern: str) -> list[nn.Module]:
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise ModelError(f"projections={pattern!r} is no regular expression: {error}") from error
    found = [module for name, module in model.named_modules() if wanted.search(name)]
    # GPT-2's Conv1D is a linear layer that stores its weight the other way round.
    if not all(hasattr(m, "in_features") or type(m).__name__ == "Conv1D" for m in found):
        raise ModelError(f"projections={pattern!r} also matches modules that are no linear layers")
    return found


def head_layout(model: Any, projections: Sequence[nn.Module]) -> HeadLayout:
    """Heads from the text config, width from the projection itself: never hidden size ÷ heads.

    Where layers have different numbers of heads, each attention module's own head width says how
    many it has.

    Raises:
        ModelError: the heads cannot be told, or positions depend on earlier prompts.
    """
    config = model.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if "dynamic" in str(rope):
        raise ModelError(
            "this model's position encoding ('dynamic' RoPE) remembers the longest prompt so far, "
            "so private chunks would not be isolated"
        )
    heads = getattr(config, "num_attention_heads", None)
    widths = [_width(p) for p in projections]
    if isinstance(heads, int):
        counts = [heads] * len(widths)
    else:
        parents = {child: module for module in model.modules() for child in module.children()}
        dims: list[Any] = [getattr(parents[p], "head_dim", None) for p in projections]
        if not all(isinstance(dim, int) for dim in dims):
            raise ModelError("the number of attention heads is not one number in its config")
        counts = [w // int(d) for w, d in zip(widths, dims, strict=True)]
    if any(w % n for w, n in zip(widths, counts, strict=True)):
        raise ModelError(
            f"projection widths {sorted(set(widths))} do not divide into "
            f"{', '.join(map(str, sorted(set(counts))))} heads"
        )
    return HeadLayout(tuple(counts), tuple(w // n for w, n in zip(widths, counts, strict=True)))


def _width(projection: Any) -> int:
    """What a linear layer takes in."""
    return int(getattr(projection, "in_features", projection.weight.shape[0]))
