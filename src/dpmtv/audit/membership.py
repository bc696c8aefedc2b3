"""What membership attacks found, in figures and in words.

A *game* is one trial of one attack: slots with two candidate records each, a fair coin for each
slot that decides which of the two is a member, and the attacker's scores of all candidates.

* **AUC**: how often a member scores above a non-member of the same trial. Scores of a trial share
  its release and are not independent; trials are. So the interval is Student's, over the trials'
  AUCs. Where all trials agree it would have no length: then the limit is that of Clopper and
  Pearson for the share of trials that agree.
* **Hits** at a rate of false alarms: candidates of all trials together, under one threshold. The
  interval is a bootstrap over trials.
* **Lower bounds** on μ and ε: the one-run bounds (:mod:`dpmtv.audit.one_run`) over the coins of all
  trials, which need no independence of scores.
* **What the certificate allows**: hits up to Φ(Φ⁻¹(false alarms) + μ), and so an AUC up to Φ(μ/√2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import ndtr, ndtri, stdtrit

from dpmtv.audit.one_run import bounds_from_guesses, violates
from dpmtv.audit.two_worlds import Claim, clopper_pearson

Row = dict[str, Any]

PROMPT, BARE, PRIVATE = "in-context prompt", "vector without noise", "private vector"
ALARMS = (0.01, 0.05)  # rates of false alarms at which hits are told
_CURVE = tuple(float(f"{a:.3g}") for a in np.geomspace(0.005, 1, 24))
_RESAMPLES = 1000


@dataclass(frozen=True)
class Attack:
    """Who was attacked, and how.

    Args:
        target: what the attacker got: PROMPT, BARE or PRIVATE.
        epsilon: of a private target; None where there is no noise.
        attack: how candidates were scored.
        candidates: which records they were.
    """

    target: str
    epsilon: float | None
    attack: str
    candidates: str


@dataclass(frozen=True)
class Game:
    """Scores of one trial: large for a candidate that seems to be a member.

    Args:
        coins: True where a slot's first candidate is the member.
        first: score of each slot's first candidate.
        second: of its second.
    """

    coins: Bool[np.ndarray, " slots"]
    first: Float[np.ndarray, " slots"]
    second: Float[np.ndarray, " slots"]

    @property
    def members(self) -> Float[np.ndarray, " slots"]:
        """Scores of the members."""
        return np.where(self.coins, self.first, self.second)

    @property
    def others(self) -> Float[np.ndarray, " slots"]:
        """Scores of the candidates that were not taken."""
        return np.where(self.coins, self.second, self.first)


def membership_rows(
    found: Mapping[Attack, Sequence[Game]], claims: Mapping[float, Claim], error: float
) -> list[Row]:
    """A row for each attack, ready for JSON; see the module's text.

    Args:
        found: the games of each attack.
        claims: what the certificate says at each ε.
        error: probability at which a lower bound may lie above the truth, and with which an
            interval misses.
    """
    kinds, targets = list(dict.fromkeys(a.candidates for a in found)), (PROMPT, BARE, PRIVATE)

    def place(attack: Attack) -> tuple[float, ...]:
        kind, target = kinds.index(attack.candidates), targets.index(attack.target)
        return kind, target, attack.epsilon or 0

    rows = [_row(attack, found[attack], claims, error) for attack in sorted(found, key=place)]
    for row in rows:
        # Before decoding, a vector without noise is the same as after.
        attack = {"release": "vector"}.get(row["attack"], row["attack"])
        wanted = (BARE, attack, row["candidates"])
        bare = [r for r in rows if (r["target"], r["attack"], r["candidates"]) == wanted]
        row["verdict"] = verdict(row, next(iter(bare), None))
    return rows


def _row(attack: Attack, games: Sequence[Game], claims: Mapping[float, Claim], error: float) -> Row:
    claim = None if attack.epsilon is None else claims[attack.epsilon]
    delta = next(iter(claims.values())).delta
    coins = np.concatenate([game.coins for game in games])
    guess = np.concatenate([game.first - game.second for game in games])
    bounds = bounds_from_guesses(guess, coins, delta, error)
    value, low, high = auc_interval([auc(game.members, game.others) for game in games], error)
    row: Row = {
        "target": attack.target,
        "private": claim is not None,
        "epsilon": attack.epsilon,
        "delta": delta,
        "attack": attack.attack,
        "candidates": attack.candidates,
        "trials": len(games),
        "coins": len(coins),
        "error": error,
        "auc": value,
        "auc_low": low,
        "auc_high": high,
        "auc_allowed": None if claim is None else allowed_auc(claim.mu),
    }
    for alarms in ALARMS:
        at = f"hits_at_{100 * alarms:g}"
        row[at], row[f"{at}_low"], row[f"{at}_high"] = hits_interval(games, alarms, error)
        row[f"{at}_allowed"] = None if claim is None else allowed_hits(claim.mu, alarms)
    row |= {
        "mu_low": bounds.mu_low,
        "epsilon_low": bounds.epsilon_low,
        "mu": None if claim is None else claim.mu,
        "violation": claim is not None and violates(bounds, claim),
        "curve": [[alarms, hits_at(games, alarms)] for alarms in _CURVE],
    }
    return row


def auc(members: Float[np.ndarray, " a"], others: Float[np.ndarray, " b"]) -> float:
    """Share of pairs in which the member scores higher; equal scores count half."""
    ordered = np.sort(others)
    below, upto = (np.searchsorted(ordered, members, side) for side in ("left", "right"))
    return float((below + upto).sum() / (2 * len(members) * len(others)))


def auc_interval(values: Sequence[float], error: float) -> tuple[float, float, float]:
    """Mean of the trials' AUCs and its limits; none (0 and 1) from a single trial."""
    trials, mean = len(values), float(np.mean(values))
    if trials < 2:
        return mean, 0.0, 1.0
    if min(values) == max(values):
        agree, _ = clopper_pearson(trials, trials, error / 2)
        return mean, agree * mean, 1 - agree * (1 - mean)
    reach = float(stdtrit(trials - 1, 1 - error / 2)) * float(np.std(values, ddof=1))
    reach /= math.sqrt(trials)
    return mean, max(0.0, mean - reach), min(1.0, mean + reach)


def hits_at(games: Sequence[Game], alarms: float) -> float:
    """Share of members above the threshold that this share of non-members passes, at most."""
    members = np.concatenate([game.members for game in games])
    others = np.sort(np.concatenate([game.others for game in games]))
    passing = int(alarms * len(others) + 1e-9)
    if passing == len(others):
        return 1.0
    return float((members > others[len(others) - 1 - passing]).mean())


def hits_interval(games: Sequence[Game], alarms: float, error: float) -> tuple[float, float, float]:
    """Hits, and percentiles over trials drawn anew (Efron 1979)."""
    again = np.random.default_rng(0)  # of which trials are drawn; no noise of a release
    drawn = again.integers(len(games), size=(_RESAMPLES, len(games)))
    seen = [hits_at([games[i] for i in trial], alarms) for trial in drawn]
    low, high = np.quantile(seen, [error / 2, 1 - error / 2])
    return hits_at(games, alarms), float(low), float(high)


def allowed_hits(mu: float, alarms: float) -> float:
    """Most hits against μ-Gaussian privacy (Dong, Roth and Su 2022, Equation 6)."""
    return float(ndtr(ndtri(alarms) + mu))


def allowed_auc(mu: float) -> float:
    """Area under `allowed_hits`: N(μ, 1) is above N(0, 1) with this probability."""
    return float(ndtr(mu / math.sqrt(2)))


def verdict(row: Row, bare: Row | None) -> str:
    """What a row shows, and what it cannot.

    An attack says something of a private vector only if, on the same vector without noise, it does
    better than the certificate allows: else it would have found nothing there in any case.

    Args:
        row: of one attack on one target.
        bare: the same attack on a vector without noise, if there was one.
    """
    confidence = f"{100 * (1 - row['error']):g} %"
    between = f"AUC {row['auc']:.3f} ({row['auc_low']:.3f} to {row['auc_high']:.3f})"
    if not row["private"]:
        found = "finds members" if row["auc_low"] > 0.5 else "finds no members"
        return f"not private: the attack {found}, {between} at {confidence}."
    allowed = row["auc_allowed"]
    said = f"certified is AUC ≤ {allowed:.3f}, μ = {row['mu']:.3f}"
    if row["violation"]:
        return (
            f"VIOLATION: more is revealed than the certificate says. Shown at {confidence}: μ ≥ "
            f"{row['mu_low']:.3f}, ε ≥ {row['epsilon_low']:.3f}; {said}, ε = {row['epsilon']:g}."
        )
    if bare is None:
        return f"too weak to say anything: not tried without noise. Here: {between}; {said}."
    if bare["auc_low"] <= 0.5 or bare["auc"] <= allowed:
        return (
            f"too weak to say anything: without noise its AUC is {bare['auc']:.3f} "
            f"({bare['auc_low']:.3f} to {bare['auc_high']:.3f}). Here: {between}; {said} in any "
            "case."
        )
    return (
        f"no violation found: {between} at {confidence}, where the same attack has "
        f"{bare['auc']:.3f} without noise; {said}. That is no proof: it tells of this attack alone."
    )
