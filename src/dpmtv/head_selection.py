"""Choose attention heads from losses on public data; knows no model, only ``loss(masks)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float


@runtime_checkable
class ExampleLoss(Protocol):
    """Losses of many head masks on one of several public examples."""

    def __len__(self) -> int:
        """Number of examples."""
        ...

    def __call__(
        self, masks: Bool[np.ndarray, "masks heads"], example: int
    ) -> Float[np.ndarray, " masks"]:
        """One loss per mask."""
        ...


@dataclass(frozen=True)
class Selection:
    """A head mask and how the search went: the mean loss of each step's masks."""

    heads: Bool[np.ndarray, " heads"]
    probabilities: Float[np.ndarray, " heads"]
    losses: Float[np.ndarray, " steps"]


def reinforce(
    loss: ExampleLoss,
    n_heads: int,
    *,
    steps: int = 200,
    masks: int = 32,
    learning_rate: float = 0.1,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Selection:
    """Bernoulli head probabilities by policy gradient (Huang et al. 2024, section 3.2).

    Each step draws ``masks`` head masks from the current probabilities, scores them on the next
    public example, and moves the log-odds along (mask − p) weighted by how much better than the
    step's mean a mask did, in units of the step's spread (a baseline that also makes the step size
    independent of the loss's scale). Adam; the heads with p > 1/2 are kept.

    Args:
        loss: scores of masks on one public example.
        n_heads: length of a mask.
        steps: gradient steps; each sees one example.
        masks: masks a step.
        learning_rate: of Adam, on the log-odds.
        seed: of the public search. Nothing private is drawn from it.
        progress: called with (step, steps).
    """
    rng = np.random.default_rng(seed)
    odds = np.zeros(n_heads)
    first, second = np.zeros(n_heads), np.zeros(n_heads)
    history = np.zeros(steps)
    order = np.concatenate([rng.permutation(len(loss)) for _ in range(-(-steps // len(loss)))])
    for step in range(steps):
        p = _sigmoid(odds)
        drawn = rng.random((masks, n_heads)) < p
        scores = loss(drawn, int(order[step]))
        history[step] = scores.mean()
        advantage = (scores.mean() - scores) / (scores.std() + 1e-8)
        gradient = (advantage[:, None] * (drawn - p)).mean(0)
        first = 0.9 * first + 0.1 * gradient
        second = 0.99 * second + 0.01 * gradient**2
        unbiased = np.sqrt(second / (1 - 0.99 ** (step + 1))) + 1e-8
        odds += learning_rate * first / (1 - 0.9 ** (step + 1)) / unbiased
        if progress:
            progress(step + 1, steps)
    p = _sigmoid(odds)
    heads = p > 0.5
    if not heads.any():
        heads = p == p.max()
    return Selection(heads, p, history)


def _sigmoid(x: Float[np.ndarray, " heads"]) -> Float[np.ndarray, " heads"]:
    p: Float[np.ndarray, " heads"] = 1 / (1 + np.exp(-x))
    return p
