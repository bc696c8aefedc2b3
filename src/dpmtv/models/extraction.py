"""Chunks → activations, one chunk a forward pass."""

from __future__ import annotations

import logging
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from dpmtv.types import Demonstration, Prompt, Query

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jaxtyping import Float

    from dpmtv.models.adapters import VisionLanguageModel


def chunk_activations(
    model: VisionLanguageModel, prompts: Iterable[Prompt | None]
) -> Iterator[Float[np.ndarray, " coordinates"] | None]:
    """Every attention head's output at the last token of each chunk's prompt.

    Args:
        model: the frozen model.
        prompts: one per chunk; None for a chunk without a usable prompt.

    Yields:
        A flat vector per chunk, or None: the null chunk. Whatever goes wrong inside one chunk (an
        unreadable image, a prompt too long, memory) makes that chunk null and stops nothing,
        because stopping would tell something about its records. Systematic failures are found
        before, by :func:`preflight`.

    *Guarantee:* a chunk's vector depends on that chunk's records alone: prompts are never
    batched, padded or cached together.
    """
    for prompt in prompts:
        if prompt is None:
            yield None
            continue
        try:
            with _silence():
                values = model.last_token_heads(prompt)
        except Exception:  # content of a private record must not stop the build
            values = None
        yield values


@contextmanager
def _silence() -> Iterator[None]:
    """No log line and no warning: libraries like to tell lengths, shapes and file names."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def preflight(model: VisionLanguageModel, shots: int) -> None:
    """Run one synthetic chunk, so that a broken setup shows before any budget is spent.

    Raises:
        Exception: whatever the model raises; nothing private is in it.
    """
    noise = np.arange(64 * 64 * 3, dtype=np.uint32).reshape(64, 64, 3) * 2654435761 >> 24
    image = Image.fromarray(noise.astype(np.uint8))
    shown = Demonstration(image, "What is shown in this picture?", "a synthetic test picture")
    values = model.last_token_heads(Prompt((shown,) * shots, Query(image, shown.question)))
    if values.shape != (model.layout.size,) or not np.isfinite(values).all():
        raise FloatingPointError("the model gives activations that are not finite numbers")
