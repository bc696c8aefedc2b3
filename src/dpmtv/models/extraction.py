"""Chunks → activations, one chunk a forward pass."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from PIL import Image

from dpmtv.errors import ModelError
from dpmtv.models.hooks import record_heads
from dpmtv.types import Demonstration, Prompt, Query

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from jaxtyping import Float

    from dpmtv.models.adapters import VisionLanguageModel

T = TypeVar("T")


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
        else:
            yield private_pass(model, partial(model.last_token_heads, prompt))


@torch.inference_mode()
def public_activations(
    model: VisionLanguageModel, prompts: Sequence[Prompt], batch_size: int = 16
) -> Float[np.ndarray, "prompts coordinates"]:
    """Last-token activations of public prompts, many in a pass: never for private ones."""
    parts = []
    batch_size = model.rows(batch_size)
    for start in range(0, len(prompts), batch_size):
        with record_heads(model.projections) as records:
            inputs = model.inputs(prompts[start : start + batch_size])
            model.forward(inputs, use_cache=False, logits_to_keep=1)
            layers = [r.to("cpu", torch.float32).numpy() for r in records]
        parts.append(np.concatenate(layers, axis=1))
    return np.concatenate(parts)


def private_pass(model: VisionLanguageModel, compute: Callable[[], T]) -> T | None:
    """What ``compute`` makes of one chunk, in silence, or None if anything goes wrong in it."""
    values = None
    try:
        with _silence():
            values = compute()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: S110 - no record may stop the build, nor a panic in Rust
        pass
    if values is None:
        model.recover()
    return values


@contextmanager
def _silence() -> Iterator[None]:
    """No log line and no warning: libraries like to tell lengths, shapes and file names.

    Libraries in C write past Python, to the process's standard error: libtiff quotes bytes of a
    broken picture there. So that goes nowhere, too.
    """
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
        logging.disable(before)


def preflight(model: VisionLanguageModel, shots: int) -> None:
    """Run synthetic chunks, so that a broken setup shows before any budget is spent.

    A short chunk runs before and after a longer one and must give the same numbers, or the model
    keeps something from one pass to the next and chunks would not be isolated.

    Raises:
        ModelError: the model cannot run such a prompt, gives numbers that are not finite, or
            remembers.
    """
    noise = np.arange(64 * 64 * 3, dtype=np.uint32).reshape(64, 64, 3) * 2654435761 >> 24
    image = Image.fromarray(noise.astype(np.uint8))
    shown = Demonstration(image, "What is shown in this picture?", "a synthetic test picture")
    query = Query(image, shown.question)
    prompts = [Prompt((shown,) * count, query) for count in (shots, shots + 1, shots)]
    try:
        first, longer, again = (model.last_token_heads(p) for p in prompts)
    except Exception as error:
        raise ModelError(
            f"the model cannot run a synthetic prompt of {shots} demonstrations: "
            f"{type(error).__name__}: {str(error).strip()[:300]}"
        ) from error
    if not all(np.isfinite(v).all() for v in (first, longer)):
        raise ModelError("the model gives activations that are not finite numbers")
    # Kernels on a GPU may differ in the last bits from one run to the next; memory would not.
    if np.abs(first - again).max() > 1e-3 * np.abs(first).max():
        raise ModelError("the model remembers earlier prompts, so chunks would not be isolated")
