"""Read and replace attention heads at the input of the attention output projections.

A forward pre-hook on the projection sees every head's output side by side, shape
[rows, tokens, heads × head_dim], whatever the attention implementation, and keeps bias, quantised
weights and adapters of the projection itself intact. Hooks return new tensors and never edit in
place; they are removed when the context ends, however it ends.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor, nn


@contextmanager
def record_heads(projections: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """Record what each projection receives at the last token.

    Yields:
        A list that holds, after a forward pass, one tensor [rows, heads × head_dim] per layer,
        in layer order. A second pass inside the same context starts over.
    """
    records: list[Tensor] = [torch.empty(0)] * len(projections)

    def recorder(layer: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(_module: nn.Module, args: tuple[Tensor, ...]) -> None:
            records[layer] = args[0][:, -1].detach()

        return hook

    handles = []
    try:
        for layer, projection in enumerate(projections):
            handles.append(projection.register_forward_pre_hook(recorder(layer)))
        yield records
    finally:
        for handle in handles:
            handle.remove()


def last_token(every_step: bool) -> Callable[[int], slice]:
    """Where generation is patched: at the prompt's last token, and at each decoding step if asked.

    A prompt is always longer than one token (it holds an image), a decoding step never is.
    """
    return lambda tokens: slice(-1, None) if every_step or tokens > 1 else slice(0, 0)


@contextmanager
def patch_heads(
    projections: Sequence[nn.Module],
    values: Sequence[Tensor],
    masks: Sequence[Tensor],
    positions: Callable[[int], slice],
    alpha: float = 1.0,
) -> Iterator[list[int]]:
    """Put given values in place of what the masked heads would have sent to the projection.

    Args:
        projections: one module per layer.
        values: per layer, [rows or 1, heads × head_dim].
        masks: per layer, bool of the same form: True where a coordinate is replaced.
        positions: number of tokens in a pass → the tokens to patch.
        alpha: 1 replaces; less mixes with what was there.

    Yields:
        How often each layer's hook has fired, so that a hook that never does can be noticed.
    """
    fired = [0] * len(projections)
    held = list(zip(values, masks, strict=True))

    def patcher(layer: int) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...] | None]:
        def hook(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            fired[layer] += 1
            x = args[0]
            where = positions(x.shape[1])
            old = x[:, where]
            if old.shape[1] == 0:
                return None
            value, mask = held[layer]
            held[layer] = value, mask = value.to(x), mask.to(x.device)  # moved in the first pass
            new = value[:, None]
            mixed = new if alpha == 1 else alpha * new + (1 - alpha) * old
            mixed = torch.where(mask[:, None], mixed, old)
            if mixed.shape == x.shape:  # a decoding step: no token stays as it was
                return (mixed, *args[1:])
            result = x.clone()
            result[:, where] = mixed
            return (result, *args[1:])

        return hook

    handles = []
    try:
        for layer, projection in enumerate(projections):
            if bool(masks[layer].any()):
                handles.append(projection.register_forward_pre_hook(patcher(layer)))
        yield fired
    finally:
        for handle in handles:
            handle.remove()
