"""Two-world test: is a release as private as its certificate says?

The same build runs many times in two neighbouring worlds, and an attacker who knows everything but
the noise tries to tell them apart. A certificate with μ = Δ₂/σ says that no attacker's curve of
hits against false alarms lies above Φ(Φ⁻¹(false alarms) + μ) (Dong, Roth and Su 2022). Here the
curve is measured, and a lower bound on its μ that lies above the certificate's is a violation.

The canary statistic, larger in world 1, is the projection of the released vector on the difference
of the two means: for spherical Gaussian noise no other test is better (Neyman and Pearson).

Two lower bounds share the error probability; the larger one counts.

* **Threshold** (a fifth of the error). The first tenth of the runs sets one threshold, the others
  are counted: Φ⁻¹(TPR_low) − Φ⁻¹(FPR_high) with Clopper-Pearson limits. Exact for any build, and
  the better one where the worlds hardly overlap.
* **Ranks** (four fifths). Of all pairs of a run in world 0 and one in world 1: how often is world 1
  larger (Mann and Whitney 1947)? That is all thresholds at once, with 95 % of the efficiency of a
  mean difference of Gaussians, and yet for any shape of noise: bring world 0 to a uniform
  distribution (ranks do not notice); then μ-Gaussian privacy says that world 1 is stochastically
  below what N(0, 1) against N(μ, 1) gives, and the count only grows with the values of world 1. So
  the Gaussian pair is the worst case. Mean and variance of its count are exact; the upper tail is
  taken as normal, which is safe because the count is bounded and skewed to the left.

Why two: the probability of finding half the noise of (1, 1e-5), with 1,000 runs a world and an
error of 1e-4, in simulations of Gaussian statistics (4,000; the first line 20,000):

=====================================================================  =====
`judge`: ranks and threshold                                           0.978
one threshold alone, known beforehand / from a tenth / from a half     0.20 / 0.13 / 0.01
all thresholds, in bands of Dvoretzky, Kiefer and Wolfowitz            0.12
mean difference over standard deviation                                0.983
=====================================================================  =====

Rates lose because two limits are asked to hold together and one cut uses 2/π of what the runs tell.
The mean difference is valid only for noise that is Gaussian, the very thing under test; so it is
given as an estimate, without limits. False alarms of the rank bound at the claim itself, as a
multiple of the allowed 8e-5 (800,000 and more simulations each, ± one standard error): 0.78 ± 0.11
for 1,000 runs at μ = 0.268 and 0.53 ± 0.09 at 0.925; 0.83 ± 0.10 and 0.40 ± 0.07 for 300 runs;
0.63 ± 0.09 and 0.18 ± 0.05 for 100; nearest to 1 as μ goes to 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.special import betainccinv, betaincinv, log_ndtr, ndtr, ndtri, owens_t

from dpmtv.errors import InternalError, UserError

Progress = Callable[[str, int, int], None]

RUNS = 1000
ERROR = 1e-4
"""A build that keeps its certificate fails at most this often."""

_LEAST_RUNS = 20
_RANKS_SHARE, _LIMIT_SHARE = 0.8, 0.1  # of the error; the threshold has two limits
_PILOT_SHARE = 10  # one run in ten sets the threshold


@dataclass(frozen=True)
class Claim:
    """What a certificate says of one release.

    Args:
        epsilon: ε.
        delta: δ.
        mu: Δ₂/σ.
    """

    epsilon: float
    delta: float
    mu: float


@dataclass(frozen=True)
class MechanismAudit:
    """What two worlds showed. Made by `judge`.

    Args:
        claim: the certificate's.
        worlds: how the two worlds differ, in words.
        runs: builds in each world.
        error: probability at which a build that keeps its claim is called a violation, at most.
        counted: builds of each world that the threshold was counted on.
        hits: of them, in world 1, above the threshold.
        false_alarms: of them, in world 0, above the threshold.
        tpr_low: lower limit of the hit rate.
        fpr_high: upper limit of the false-alarm rate.
        wins: pairs of runs, of runs², with the larger statistic in world 1.
        mu_threshold: lower bound on μ from the threshold.
        mu_ranks: lower bound on μ from the ranks.
        mu_low: the larger of the two.
        epsilon_low: ε at the claim's δ of Gaussian noise with ``mu_low``.
        epsilon_low_any_noise: lower bound on ε at δ from the threshold alone, whatever the noise.
        mu_estimate: mean difference over standard deviation; no bound. None without any spread.
        power: about how probably so many runs show a build with half the noise of the claim.
    """

    claim: Claim
    worlds: str
    runs: int
    error: float
    counted: int
    hits: int
    false_alarms: int
    tpr_low: float
    fpr_high: float
    wins: int
    mu_threshold: float
    mu_ranks: float
    mu_low: float
    epsilon_low: float
    epsilon_low_any_noise: float
    mu_estimate: float | None
    power: float

    @property
    def violation(self) -> bool:
        """Whether the lower bound lies above the claim."""
        return self.mu_low > self.claim.mu

    @property
    def verdict(self) -> str:
        """One sentence or two; a pass is never more than "nothing found"."""
        claim, confidence = self.claim, f"confidence {100 * (1 - self.error):.6g} %"
        at = f"at δ = {claim.delta:g}"
        shown = f"μ ≥ {self.mu_low:.4f}, for Gaussian noise ε ≥ {self.epsilon_low:.4f} {at}"
        said = f"μ = {claim.mu:.4f}, ε = {claim.epsilon:.6g}"
        if self.violation:
            return (
                f"VIOLATION: the builds reveal more than their certificate says. Found at "
                f"{confidence}: {shown}; certified: {said}."
            )
        return (
            f"no violation found at {confidence}: shown is {shown}; certified is {said}. That is "
            "no proof: it tells of these two worlds and this attacker alone."
        )

    def lines(self) -> list[str]:
        """The whole result for a terminal, the verdict last."""
        estimate = "none" if self.mu_estimate is None else f"{self.mu_estimate:.4f}"
        return [
            f"{self.runs} builds in each of two worlds: {self.worlds}.",
            f"One threshold, {self.counted} builds a world: {self.hits} hits, "
            f"{self.false_alarms} false alarms; hit rate ≥ {self.tpr_low:.4f}, false-alarm rate ≤ "
            f"{self.fpr_high:.4f}: μ ≥ {self.mu_threshold:.4f}, for any noise ε ≥ "
            f"{self.epsilon_low_any_noise:.4f}.",
            f"All pairs of builds: told apart {100 * self.wins / self.runs**2:.2f} %: "
            f"μ ≥ {self.mu_ranks:.4f}.",
            f"Estimate of μ, without limits: {estimate}. Half the certified noise would be found "
            f"with probability {self.power:.2f}.",
            self.verdict,
        ]

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return asdict(self) | {"violation": self.violation, "verdict": self.verdict}


def two_worlds(
    release: Callable[[int], np.ndarray | float],
    claim: Claim,
    *,
    worlds: str,
    direction: np.ndarray | None = None,
    runs: int = RUNS,
    error: float = ERROR,
    progress: Progress = lambda _what, _done, _total: None,
) -> MechanismAudit:
    """Run a build in two worlds and compare what it reveals with its claim.

    Every build is paid for like any other: use data that are public or made up.

    Args:
        release: one whole build, with fresh noise, in world 0 or 1. Gives the released vector, or
            the canary statistic itself if there is no ``direction``.
        claim: what the certificate says.
        worlds: how the two worlds differ, in words.
        direction: mean of world 1 minus mean of world 0, at any scale; public.
        runs: builds in each world.
        error: most false alarms that a build with this claim may give.
        progress: called with (what, done, total).

    Raises:
        UserError: too few runs, or an error probability that is none.
        InternalError: a statistic that is not a finite number.
    """
    _check(runs, error)
    found: tuple[list[float], list[float]] = ([], [])
    for run in range(runs):
        for world in (0, 1):  # in turn, so that nothing that drifts can look like a difference
            value = release(world)
            if direction is not None:
                value = np.asarray(value, np.float64) @ direction
            found[world].append(float(value))
            progress("builds", 2 * run + world + 1, 2 * runs)
    return judge(np.array(found[0]), np.array(found[1]), claim, worlds=worlds, error=error)


def judge(
    zero: np.ndarray, one: np.ndarray, claim: Claim, *, worlds: str, error: float = ERROR
) -> MechanismAudit:
    """Bounds and verdict from the canary statistics of the runs, in their order, in each world.

    Raises:
        UserError: too few runs, or an error probability that is none.
        InternalError: two numbers of runs, or a statistic that is not a finite number.
    """
    runs = len(zero)
    _check(runs, error)
    if len(one) != runs or not np.isfinite([zero, one]).all():
        raise InternalError("a canary statistic is missing or not a finite number")
    pilot = max(1, runs // _PILOT_SHARE)
    threshold = (np.median(zero[:pilot]) + np.median(one[:pilot])) / 2
    counted = runs - pilot
    hits, alarms = (int((x[pilot:] > threshold).sum()) for x in (one, zero))
    tpr_low, _ = clopper_pearson(hits, counted, _LIMIT_SHARE * error)
    _, fpr_high = clopper_pearson(alarms, counted, _LIMIT_SHARE * error)
    # Equal values lose: broken by lot they would win more, so this stays below the worst case.
    wins = int(np.searchsorted(np.sort(zero), one, side="left").sum())
    mu_threshold = max(0.0, _quantile(tpr_low) - _quantile(fpr_high))
    mu_ranks = rank_bound(wins, runs, _RANKS_SHARE * error)
    mu_low = max(mu_threshold, mu_ranks)
    spread = math.sqrt((zero.var(ddof=1) + one.var(ddof=1)) / 2)
    return MechanismAudit(
        claim=claim,
        worlds=worlds,
        runs=runs,
        error=error,
        counted=counted,
        hits=hits,
        false_alarms=alarms,
        tpr_low=tpr_low,
        fpr_high=fpr_high,
        wins=wins,
        mu_threshold=mu_threshold,
        mu_ranks=mu_ranks,
        mu_low=mu_low,
        epsilon_low=gaussian_epsilon(mu_low, claim.delta),
        epsilon_low_any_noise=_epsilon_any_noise(tpr_low, fpr_high, claim.delta),
        mu_estimate=float(one.mean() - zero.mean()) / spread if spread else None,
        power=power(2 * claim.mu, claim.mu, runs, error),
    )


def clopper_pearson(count: int, runs: int, error: float) -> tuple[float, float]:
    """Lower and upper limit of a rate, each exceeded with probability ``error`` at most.

    Clopper and Pearson 1934: exact for the binomial distribution, not approximate.
    """
    low = float(betaincinv(count, runs - count + 1, error)) if count else 0.0
    high = float(betainccinv(count + 1, runs - count, error)) if count < runs else 1.0
    return low, high


def rank_bound(wins: int, runs: int, error: float) -> float:
    """Lower bound on μ from the number of pairs, of ``runs``², with the larger value in world 1."""
    z = -_quantile(error)

    def too_many(mu: float) -> bool:
        mean, deviation = _pairs(mu, runs)
        return wins / runs**2 - mean > z * deviation

    low, high = 0.0, 40.0
    if not too_many(low):
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if too_many(middle) else (low, middle)
    return low


def power(mu: float, claimed: float, runs: int, error: float = ERROR) -> float:
    """About how probably the ranks show that a Gaussian release with ``mu`` breaks ``claimed``.

    By a normal approximation: within 0.02 of simulations of 60 to 1,000 runs.
    """
    limit, deviation = _pairs(claimed, runs)
    limit -= _quantile(_RANKS_SHARE * error) * deviation
    mean, deviation = _pairs(mu, runs)
    return _normal((mean - limit) / deviation)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε at δ of Gaussian noise with μ = Δ₂/σ, rounded down as a lower bound should be.

    Balle and Wang 2018, Theorem 8: δ = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ). Not taken from the
    accountant, so that an audit does not lean on what it checks.
    """

    def spends(epsilon: float) -> bool:
        gain = float(log_ndtr(mu / 2 - epsilon / mu))
        loss = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
        return loss < gain and gain + math.log1p(-math.exp(loss - gain)) > math.log(delta)

    if mu <= 0 or not spends(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while spends(high):
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if spends(middle) else (low, middle)
    return low


def _pairs(mu: float, runs: int) -> tuple[float, float]:
    """Mean and standard deviation of the share of won pairs, N(0, 1) against N(μ, 1).

    A pair is won with probability θ = Φ(μ/√2), and two pairs with a run in common are both won
    with probability Φ₂(μ/√2, μ/√2; ½), which Owen's T function gives.
    """
    h = mu / math.sqrt(2)
    mean, miss = _normal(h), _normal(-h)
    # Counted as lost pairs, which is the same: near θ = 1 the difference would cancel.
    both = miss - 2 * float(owens_t(h, 1 / math.sqrt(3)))
    variance = mean * miss + 2 * (runs - 1) * (both - miss**2)
    return mean, math.sqrt(variance) / runs


def _epsilon_any_noise(tpr_low: float, fpr_high: float, delta: float) -> float:
    """Least ε with TPR ≤ e^ε FPR + δ and 1 − FPR ≤ e^ε (1 − TPR) + δ."""
    odds = max((tpr_low - delta) / fpr_high, (1 - fpr_high - delta) / (1 - tpr_low))
    return math.log(odds) if odds > 1 else 0.0


def _check(runs: int, error: float) -> None:
    if runs < _LEAST_RUNS:
        raise UserError(f"an audit needs at least {_LEAST_RUNS} builds a world, not {runs}")
    if not 0 < error < 0.5:
        raise UserError(f"the error probability must lie between 0 and 0.5, not {error}")


def _normal(x: float) -> float:
    return float(ndtr(x))


def _quantile(probability: float) -> float:
    return float(ndtri(probability))
