"""How much noise each head gets, and what of it is used: learned on public tasks under noise.

Everything here is public: the tasks, their prompts, and the noise, which only has the size of the
noise to come. Its result is fixed before a private record is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dpmtv.models.mask_loss import MaskLoss
    from dpmtv.types import HeadLayout

START = 0.45  # × the public median norm: what is put back of a mean of clipped directions
_EXAMPLES, _DRAWS, _CHUNKS = 8, 4, 16  # a step's public prompts, noise draws of each; chunks a mean
_RATE = 0.05


@dataclass(frozen=True)
class HeadWeights:
    """Public factors of heads, as of `ReleaseGeometry`, shape [heads of all layers] each.

    Gains are those for a mean whose clip norm is the median norm.
    """

    weights: Float[np.ndarray, " heads"]
    gains: Float[np.ndarray, " heads"]
    losses: Float[np.ndarray, " steps"]


def learn_head_weights(
    loss: MaskLoss,
    layout: HeadLayout,
    heads: Bool[np.ndarray, " heads"],
    centre: Float[np.ndarray, " coordinates"],
    activations: Sequence[Float[np.ndarray, "chunks coordinates"]],
    noise: float,
    *,
    steps: int,
    progress: Callable[[int, int], None] | None = None,
) -> HeadWeights:
    """Gradient descent on the answer loss of public prompts under simulated releases.

    A head's weight says how much of the clip norm it takes up, and so how small its noise is
    beside it; its gain, how much of it is put back. Both are learned by Adam, each step on a few
    public prompts with fresh simulated noise. The gradient runs through the last prompt token and
    the answer alone, as everything before them is the same for all vectors.

    Args:
        loss: public zero-shot prompts and answers.
        layout: layers, heads and head widths of the model.
        heads: those that are released.
        centre: what is subtracted, and the value of a head whose gain is zero.
        activations: for each example of ``loss``, those of public chunks of the same rule.
        noise: standard deviation of a released coordinate's noise, in units of the clip norm.
        steps: gradient steps.
        progress: called with (done, total).

    Returns:
        Weights and gains; 1 and `START` for heads that are not released.
    """
    model = loss.model
    kept = torch.from_numpy(layout.coordinates(heads))
    index = torch.from_numpy(layout.spread(np.arange(layout.n_heads)))[kept]
    middle = torch.from_numpy(np.asarray(centre, np.float32))
    moved = [torch.from_numpy(np.asarray(a - centre, np.float32))[:, kept] for a in activations]
    # One tensor for all examples of a rule: the same array comes back for each of them.
    every = torch.cat(list({id(a): m for a, m in zip(activations, moved, strict=True)}.values()))
    log_weights = torch.zeros(layout.n_heads, requires_grad=True)
    log_gains = torch.full((layout.n_heads,), float(np.log(START)), requires_grad=True)
    optimizer = torch.optim.Adam([log_weights, log_gains], lr=_RATE)
    draws = torch.Generator().manual_seed(0)  # of public noise
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:  # falls linearly over the second half
            group["lr"] = _RATE * min(1.0, 2 * (1 - step / steps))
        chosen = torch.randint(len(loss), (min(_EXAMPLES, len(loss)),), generator=draws).tolist()
        weights, gains = log_weights.exp()[index], log_gains.exp()[index]
        median = (every * weights).norm(dim=1).median()
        optimizer.zero_grad()
        total = 0.0
        for place, example in enumerate(chosen):
            rows = moved[example]
            some = torch.randint(len(rows), (_DRAWS, _CHUNKS), generator=draws)
            directions = torch.nn.functional.normalize(rows[some] * weights, dim=2).mean(1)
            drawn = torch.randn(directions.shape, generator=draws)
            back = (directions + noise * drawn) * median * gains / weights
            vectors = middle.repeat(_DRAWS, 1).masked_scatter(kept, middle[kept] + back)
            mean = loss.of_vectors(vectors.to(model.device), heads, example).mean() / len(chosen)
            mean.backward(retain_graph=place + 1 < len(chosen))  # type: ignore[no-untyped-call]
            total += float(mean.detach())
        optimizer.step()
        losses.append(total)
        if progress is not None:
            progress(step + 1, steps)
    return HeadWeights(_numpy(log_weights), _numpy(log_gains), np.array(losses))


def _numpy(logarithms: Tensor) -> np.ndarray:
    return np.asarray(logarithms.detach().exp().numpy(), np.float64)
