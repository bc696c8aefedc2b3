"""How many tokens go through the language model."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from dpmtv.models.adapters import VisionLanguageModel


@dataclass
class Passes:
    """Forward passes so far, and the tokens in them: rows × positions, padding and pictures too."""

    passes: int = 0
    tokens: int = 0


@contextmanager
def count_tokens(model: VisionLanguageModel) -> Iterator[Passes]:
    """Count what reaches the first attention layer, whatever runs the passes.

    Args:
        model: the model.

    Yields:
        The counts, which grow with every pass.
    """
    counted = Passes()

    def count(_module: nn.Module, args: tuple[Tensor, ...]) -> None:
        counted.passes += 1
        counted.tokens += args[0].shape[0] * args[0].shape[1]

    handle = model.projections[0].register_forward_pre_hook(count)
    try:
        yield counted
    finally:
        handle.remove()
