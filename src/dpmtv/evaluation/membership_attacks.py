"""Scores of membership attacks: estimates of coins whose effects are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpmtv.privacy.mechanisms import clipped_mean

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float

    from dpmtv.geometry import ReleaseGeometry

_SHADOWS = 8  # releases that the attacker makes up, to see how far the effects explain answers


@dataclass(frozen=True)
class LinearRelease:
    """A mean that moves by a known vector with each coin, under noise of known size.

    It is centre + Σ ± effects/2 + N(0, sigma² I). The attacker knows all of it but the coins.

    Args:
        centre: the mean halfway between the sides of all coins.
        effects: what it moves by, from one side of a coin to the other.
        sigma: standard deviation of the noise on each coordinate.
        whole: rows of such values as vectors to patch with.
    """

    centre: Float[np.ndarray, " released"]
    effects: Float[np.ndarray, "coins released"]
    sigma: float
    whole: Callable[[np.ndarray], np.ndarray]

    def estimates(self, seen: Float[np.ndarray, " released"]) -> Float[np.ndarray, " coins"]:
        """Scores from the mean itself."""
        return coin_estimates(seen - self.centre, self.effects, self.sigma)

    def estimates_through(
        self,
        answers: Callable[[np.ndarray], np.ndarray],
        vector: Float[np.ndarray, " coordinates"],
        rng: np.random.Generator,
    ) -> Float[np.ndarray, " coins"]:
        """Scores from what a model answers under ``vector``.

        Effects are tried one coin at a time, half a step up and down. What they do not explain of
        releases that the attacker makes up, coins, noise and all, counts as noise.

        Args:
            answers: figures of the model's answers, for rows of vectors.
            vector: the published one.
            rng: the attacker's.
        """
        coins = rng.choice([-0.5, 0.5], (_SHADOWS, len(self.effects)))
        noise = self.sigma * rng.normal(size=(_SHADOWS, len(self.centre)))
        tried = np.concatenate(
            [
                self.centre[None],
                self.centre + self.effects / 2,
                self.centre - self.effects / 2,
                self.centre + coins @ self.effects + noise,
            ]
        )
        found = answers(np.concatenate([self.whole(tried), vector[None]]))
        middle, count = found[0], len(self.effects)
        up, down, shadows = np.split(found[1:-1], [count, 2 * count])
        effects = up - down
        unexplained = shadows - middle - coins @ effects
        scale = np.sqrt((unexplained**2).mean(0)) + 1e-6  # figures are 32-bit
        return coin_estimates((found[-1] - middle) / scale, effects / scale, 1.0)


def coin_estimates(
    moved: Float[np.ndarray, " released"],
    effects: Float[np.ndarray, "coins released"],
    sigma: float,
) -> Float[np.ndarray, " coins"]:
    """Best linear estimates of coins of ±1/2 from ``moved`` = coins · effects + N(0, sigma² I).

    Each coin has variance 1/4, so (E Eᵀ + 4 σ²) x = E moved: least squares without noise, the
    projections on the effects under much of it.
    """
    gram = effects @ effects.T
    ridge = 4 * sigma**2 + 1e-9 * np.trace(gram) / len(gram)  # solvable without noise, too
    found: Float[np.ndarray, " coins"]
    found = np.linalg.solve(gram + ridge * np.eye(len(gram)), effects @ moved)
    return found


def contribution(
    geometry: ReleaseGeometry, values: Float[np.ndarray, " coordinates"]
) -> Float[np.ndarray, " released"]:
    """What one chunk adds to the release, times m: its clipped activations."""
    return clipped_mean(
        [geometry.to_release(values)],
        chunks=1,
        clip_norms=geometry.clip_norms,
        block_sizes=geometry.block_sizes,
    ).value


def as_released(
    geometry: ReleaseGeometry, vector: Float[np.ndarray, " coordinates"]
) -> Float[np.ndarray, " released"]:
    """The release that would have been mapped back to this vector."""
    values = geometry.to_release(vector)
    if geometry.gains is None:
        return values
    gains = geometry.layout.spread(geometry.gains)[geometry.layout.coordinates(geometry.heads)]
    undone: Float[np.ndarray, " released"]
    undone = np.divide(values, gains, out=np.zeros_like(values), where=gains != 0)
    return undone
