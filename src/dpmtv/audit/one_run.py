"""One-run audit: many coins, one build, and what the right guesses say of its privacy.

Independent fair coins decide what stands in many slots (Steinke, Nasr and Jagielski 2023, arXiv
2305.08846). The attacker sees the release, guesses the coins he is surest of and abstains from the
others. If too many guesses are right, the build reveals more than it says. Neither bound asks how
the coins act together: one coin may spoil another's guess.

* **(ε, δ).** With r guesses of m coins, W of them right, and B binomial of r trials at
  e^ε/(1 + e^ε): P[W ≥ v] ≤ P[B ≥ v] + 2mδ · max_i (P[B ≥ v − i] − P[B ≥ v])/i (their Theorem 5.2).
* **μ.** Let p_k = P[W = k] and G(x) = Φ(Φ⁻¹(x) + μ), which is concave. Fix all coins but the i-th.
  "Guess i is right, and k − 1 others" is the event "guess i names this side, and k − 1 others are
  right", whose probability grows to G of it at most when the coin is turned, and then it reads
  "guess i is wrong, and k − 1 others are right". Add up over the coins, with Jensen's inequality,
  for W = k and all above together (Mahloujifar, Melis and Chaudhuri 2024, arXiv 2410.22235):
  R_k ≤ G(H_{k−1}) with R_k = Σ_{j≥k} j p_j/m and H_k = Σ_{j≥k} (r − j) p_j/m. `needed_mass` runs
  this down from P[W ≥ v] = τ: if the p_k must add up to more than 1, then P[W ≥ v] < τ.

Both are exact for any build, and below the truth: guesses forget how sure they were, and m coins
might have failed together. With 10,000 canaries of a Gaussian release about half of its μ is shown.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import bdtrc, ndtr, ndtri

from dpmtv.audit.two_worlds import Claim, gaussian_epsilon
from dpmtv.errors import InternalError, UserError

CANARIES = 10_000
ERROR = 0.01
"""A build that keeps its certificate is called a violation at most this often."""

# Few guesses bring out a small μ, many a large one. The bounds share the error.
GUESSED = (1.0, 0.5, 0.1, 0.02)
LEAST_CANARIES = 20
_LARGEST = 40.0  # of μ and ε; no audit shows so much


@dataclass(frozen=True)
class Bounds:
    """What the guesses of coins show. Made by `bounds_from_guesses`.

    Args:
        coins: how many.
        error: probability that a bound lies above the truth, at most.
        guesses: how many of the coins were guessed, each time.
        right: right guesses, each time.
        mu_low: lower bound on μ.
        epsilon_low: lower bound on ε at the δ that was asked for, whatever the noise.
    """

    coins: int
    error: float
    guesses: tuple[int, ...]
    right: tuple[int, ...]
    mu_low: float
    epsilon_low: float


@dataclass(frozen=True)
class OneRunAudit:
    """What one build showed. Made by `judge_guesses`.

    Args:
        claim: the certificate's.
        canaries: what the coins decided, in words.
        bounds: lower bounds.
        epsilon_gaussian: ε at the claim's δ of Gaussian noise with the bound on μ.
        mu_estimate: mean difference over standard deviation, as if the canaries were alike; no
            bound. None without any spread.
    """

    claim: Claim
    canaries: str
    bounds: Bounds
    epsilon_gaussian: float
    mu_estimate: float | None

    @property
    def violation(self) -> bool:
        """Whether a lower bound lies above the claim."""
        return violates(self.bounds, self.claim)

    @property
    def verdict(self) -> str:
        """One sentence or two; a pass is never more than "nothing found"."""
        found, claim = self.bounds, self.claim
        confidence = f"confidence {100 * (1 - found.error):.6g} %"
        shown = (
            f"μ ≥ {found.mu_low:.4f} (for Gaussian noise ε ≥ {self.epsilon_gaussian:.4f}), for "
            f"any noise ε ≥ {found.epsilon_low:.4f} at δ = {claim.delta:g}"
        )
        said = f"μ = {claim.mu:.4f}, ε = {claim.epsilon:.6g}"
        if self.violation:
            return (
                f"VIOLATION: the build reveals more than its certificate says. Found at "
                f"{confidence}: {shown}; certified: {said}."
            )
        return (
            f"no violation found at {confidence}: shown is {shown}; certified is {said}. That is "
            "no proof: it tells of these canaries and this attacker alone."
        )

    def lines(self) -> list[str]:
        """The whole result for a terminal, the verdict last."""
        estimate = "none" if self.mu_estimate is None else f"{self.mu_estimate:.4f}"
        right = "; ".join(
            f"{right} of {guesses} ({100 * right / guesses:.1f} %)"
            for guesses, right in zip(self.bounds.guesses, self.bounds.right, strict=True)
        )
        return [
            f"One build, {self.bounds.coins} canaries: {self.canaries}.",
            f"Right guesses: {right}.",
            f"Estimate of μ, without limits: {estimate}.",
            self.verdict,
        ]

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return asdict(self) | {"violation": self.violation, "verdict": self.verdict}


def judge_guesses(
    scores: Float[np.ndarray, " coins"],
    coins: Bool[np.ndarray, " coins"],
    claim: Claim,
    *,
    canaries: str,
    error: float = ERROR,
) -> OneRunAudit:
    """Bounds and verdict from one build.

    Args:
        scores: one a coin, large if it seems to have fallen on True.
        coins: how they fell.
        claim: what the certificate says.
        canaries: what the coins decided, in words.
        error: most false alarms of a build with this claim.

    Raises:
        UserError: too few coins, or an error probability that is none.
        InternalError: a score that is missing or not a finite number.
    """
    bounds = bounds_from_guesses(scores, coins, claim.delta, error)
    one, zero = scores[coins], scores[~coins]
    spread = math.sqrt((one.var() + zero.var()) / 2) if len(one) and len(zero) else 0.0
    return OneRunAudit(
        claim=claim,
        canaries=canaries,
        bounds=bounds,
        epsilon_gaussian=gaussian_epsilon(bounds.mu_low, claim.delta),
        mu_estimate=float(one.mean() - zero.mean()) / spread if spread else None,
    )


def violates(found: Bounds, claim: Claim) -> bool:
    """Whether a lower bound lies above the claim."""
    return found.mu_low > claim.mu or found.epsilon_low > claim.epsilon


def bounds_from_guesses(
    scores: Float[np.ndarray, " coins"],
    coins: Bool[np.ndarray, " coins"],
    delta: float,
    error: float,
) -> Bounds:
    """Guess True at the highest scores and False at the lowest, and bound ε and μ from below.

    The coins may belong to several releases, each with coins of its own: together they are one
    that turning a coin changes in one part.

    Raises:
        UserError: too few coins, or an error probability that is none.
        InternalError: a score that is missing or not a finite number.
    """
    count = len(coins)
    if count < LEAST_CANARIES:
        raise UserError(f"an audit needs at least {LEAST_CANARIES} canaries, not {count}")
    if not 0 < error < 0.5:
        raise UserError(f"the error probability must lie between 0 and 0.5, not {error}")
    if len(scores) != count or not np.isfinite(scores).all():
        raise InternalError("a canary's score is missing or not a finite number")
    order = np.argsort(scores, kind="stable")
    share = error / (2 * len(GUESSED))
    guesses, right, mus, epsilons = [], [], [], []
    for part in GUESSED:
        side = max(1, int(part * count / 2))
        hits = int(coins[order[-side:]].sum() + (~coins[order[:side]]).sum())
        guesses.append(2 * side)
        right.append(hits)
        mus.append(mu_bound(count, 2 * side, hits, share))
        epsilons.append(epsilon_bound(count, 2 * side, hits, delta, share))
    return Bounds(count, error, tuple(guesses), tuple(right), max(mus), max(epsilons))


def epsilon_bound(coins: int, guesses: int, right: int, delta: float, error: float) -> float:
    """Largest ε, rounded down, at which so many right guesses are less probable than ``error``.

    Steinke, Nasr and Jagielski 2023, Theorem 5.2 and Appendix D.
    """

    def unlikely(epsilon: float) -> bool:
        return chance_of_right(coins, guesses, right, epsilon, delta) < error

    if not unlikely(0.0):
        return 0.0
    low, high = 0.0, _LARGEST
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if unlikely(middle) else (low, middle)
    return low


def chance_of_right(coins: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Bound on the probability of so many right guesses about an (ε, δ)-private release."""
    if not right:
        return 1.0
    chance = 1 / (1 + math.exp(-epsilon))
    # P[B ≥ v − i] for i = 0 … v; at v it is 1, and from there on only i grows.
    tails = np.append(bdtrc(right - 1 - np.arange(right), guesses, chance), 1.0)
    excess = float(((tails[1:] - tails[0]) / np.arange(1, right + 1)).max())
    return float(tails[0]) + 2 * coins * delta * excess


def mu_bound(coins: int, guesses: int, right: int, error: float) -> float:
    """Largest μ, rounded down, at which so many right guesses are less probable than ``error``."""
    low, high = 0.0, _LARGEST
    for _ in range(4):  # to within 1e-5
        grid = np.linspace(low, high, 65)
        unlikely = needed_mass(grid, coins, guesses, right, error) > 1
        first = len(grid) if unlikely.all() else int(np.argmin(unlikely))
        if first == 0:
            return 0.0
        low, high = float(grid[first - 1]), float(grid[min(first, len(grid) - 1)])
    return low


def needed_mass(
    mu: Float[np.ndarray, " values"], coins: int, guesses: int, right: int, tail: float
) -> Float[np.ndarray, " values"]:
    """Least Σ p_k of a μ-Gaussian private release with P[W ≥ ``right``] = ``tail``.

    The recursion of the module's text, from k = ``right`` down: H_{k−1} has to reach G⁻¹(R_k), and
    p_{k−1} is the least that brings it there. That is minimal. Let another p have n ≥ 0 more in
    Σ_{j≥k} p_j and at least k n more in m R_k, as it has at the top, whatever lies above
    ``right``. Its sum from k − 1 on is at least (m G⁻¹(R_k) + m R_k − (k − 1) Σ_{j≥k} p_j)/(r − k
    + 1), which is larger by (k n − (k − 1) n)/(r − k + 1) ≥ 0 or more: so again some n′ ≥ 0 more,
    and m R_{k−1} has at least k n + (k − 1)(n′ − n) ≥ (k − 1) n′ more.

    Args:
        mu: values of μ.
        coins: m.
        guesses: r.
        right: v.
        tail: τ.
    """
    total = np.full(len(mu), tail)
    upper = total * right / coins  # R_k
    for k in range(right, 0, -1):
        wanted = ndtr(ndtri(np.minimum(upper, 1.0)) - mu)
        short = wanted - (guesses * total / coins - upper)
        mass = np.maximum(0.0, short * coins / (guesses - k + 1))
        total = total + mass
        upper = upper + (k - 1) * mass / coins
    least: Float[np.ndarray, " values"] = total
    return least
