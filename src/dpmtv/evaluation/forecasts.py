"""What a release of each public rule, and every rival of it, would be worth.

Everything here is public. The noise is the real mechanism's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dpmtv.errors import PrivacyParameterError
from dpmtv.evaluation.metrics import exact_match
from dpmtv.evaluation.rehearsal import right_share
from dpmtv.evaluation.rivals import Rivals
from dpmtv.evaluation.settings import RIVALS
from dpmtv.models.choosing import choose_decoded_public
from dpmtv.models.mask_loss import MaskLoss
from dpmtv.options import default_picks
from dpmtv.pipeline import calibrate_for, relative_noise
from dpmtv.privacy.mechanisms import clipped_mean
from dpmtv.types import Prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxtyping import Float

    from dpmtv.evaluation.rehearsal import Known, Rule
    from dpmtv.geometry import ReleaseGeometry
    from dpmtv.models.adapters import VisionLanguageModel
    from dpmtv.privacy.mechanisms import GaussianMean
    from dpmtv.types import GaussianEvent

    Level = tuple[float, float, str]  # ε, δ, relation
    Size = tuple[int, int, int, float]  # records, K, m, share of null chunks

VECTOR = "vector"


@dataclass(frozen=True)
class Forecast:
    """What to expect of one setting. Accuracies are shares of right answers, 0 to 1.

    Args:
        epsilon: ε.
        records: number of private records.
        shots: K, demonstrations a chunk.
        chunks: m.
        accuracy: mean over public rules and draws.
        spread: standard deviation over them: of one build on one rule.
        error: standard error of ``accuracy``, the rules taken as drawn at random; None for one.
        by_rule: mean over the draws, for each public rule.
        without_noise: accuracy of the rules' vectors without clip and noise.
        noise_to_signal: norm of the noise ÷ norm of the clipped mean, mean over the rules; None
            for a rival.
        null_chunks: share of chunks that get no unit and count as zero.
        seconds: the longest release, with learning the heads' weights, decoding and the choice.
        method: the vector, or one of settings.RIVALS.
        recommended: whether the build should be this one.
    """

    epsilon: float
    records: int
    shots: int
    chunks: int
    accuracy: float
    spread: float
    error: float | None
    by_rule: dict[str, float]
    without_noise: float
    noise_to_signal: float | None
    null_chunks: float
    seconds: float
    method: str = VECTOR
    recommended: bool = False


def null_share(units: int, chunks: int) -> float:
    """Share of ``chunks`` that a hash sends none of ``units`` to: (1 − 1/m)^n."""
    return (1 - 1 / chunks) ** units


def simulated_release(
    mechanism: GaussianMean,
    geometry: ReleaseGeometry,
    chunks: Float[np.ndarray, "chunks coordinates"],
    drawn: Sequence[int | None],
) -> Float[np.ndarray, " released"]:
    """What the build would release, had these been its chunks: the real mechanism, once.

    Args:
        mechanism: calibrated for m chunks.
        geometry: released heads and clip norm.
        chunks: activations.
        drawn: the places of m of them; None for a null chunk.
    """
    used = (None if i is None else geometry.to_release(chunks[i]) for i in drawn)
    value: Float[np.ndarray, " released"] = mechanism.release(used).value
    return value


def forecast(
    model: VisionLanguageModel,
    known: Known,
    level: Level,
    size: Size,
    draws: int,
    told: Callable[[], None],
) -> Forecast:
    """Build a vector of every rule as the default recipe does, and ask the rule's records.

    Args:
        model: the model.
        known: of the K that is wanted.
        level: ε, δ and relation.
        size: number of records, K, m, and the share of null chunks.
        draws: releases a rule.
        told: called after each.
    """
    records, shots, m, empty = size
    scores = np.zeros((len(known.rules), draws))
    picks = default_picks(level[0], shots)
    noise = relative_noise(model.layout, *level, m, picks)
    calibrated: dict[int, GaussianMean] = {}  # by the geometry, which rules of a half share
    ratios, learning, releasing = [], 0.0, 0.0
    for place, rule in enumerate(known.rules):
        start = time.perf_counter()
        geometry = rule.geometry(noise)
        learning = max(learning, time.perf_counter() - start)
        if id(geometry) not in calibrated:
            calibrated[id(geometry)] = calibrate_for(geometry, *level, m, picks)
        mechanism = calibrated[id(geometry)]
        ratios.append(_noise_to_signal(mechanism.event, geometry, rule, empty))
        # Prefixes are kept from draw to draw, and no longer: they are large.
        kept = MaskLoss(
            model, [Prompt((), r.query) for r in rule.records], [r.answer for r in rule.records], []
        )
        for draw in range(draws):
            start = time.perf_counter()
            drawn = _drawn(rule, m, empty, (place, draw))
            release = simulated_release(mechanism, geometry, rule.chunks, drawn)
            vector = geometry.from_release(release)
            if picks:  # with one demonstration a chunk: a chunk's place is its record's
                vector = choose_decoded_public(
                    *(model, geometry, release, mechanism.event.sigma, rule.heads, kept),
                    [i for i in drawn if i is not None],
                    picks[0].range,
                    public=rule.public,
                    queries=rule.queries,
                    asked=rule.asked,
                    shown=rule.shown,
                )
            releasing = max(releasing, time.perf_counter() - start)
            with model.patched(vector.astype(np.float32), rule.heads):
                scores[place, draw] = right_share(model, rule, rule.tested)
            told()
    made = Forecast(
        epsilon=level[0],
        records=records,
        shots=shots,
        chunks=m,
        accuracy=0.0,
        spread=0.0,
        error=None,
        by_rule={},
        without_noise=known.without_noise,
        noise_to_signal=float(np.mean(ratios)),
        null_chunks=empty,
        seconds=learning + releasing,
    )
    return _scored(made, known, scores)


def rival_forecasts(
    model: VisionLanguageModel,
    known: Known,
    vector: Forecast,
    level: Level,
    draws: int,
    told: Callable[[], None],
) -> list[Forecast]:
    """Other private uses of the same records, of which every one is a unit, at the same ε and δ.

    Args:
        model: the model.
        known: of the vector's K.
        vector: the forecast that they stand beside.
        level: ε, δ and relation.
        draws: of each rival on each rule.
        told: called after each draw of all.

    Returns:
        One forecast for each rival that can meet this level.
    """
    shots, m = vector.shots, vector.chunks
    noise = relative_noise(model.layout, *level, m, default_picks(level[0], shots))
    scores = {method: np.zeros((len(known.rules), draws)) for method in RIVALS}
    for place, rule in enumerate(known.rules):
        geometry = rule.geometry(noise)
        rivals = Rivals(
            model=model,
            test=[r.query for r in rule.held_out],
            records=rule.records,
            bank=rule.bank,
            heads=rule.heads,
            patch="every-step",
            most=rule.longest,
        )
        for draw in range(draws):
            drawn = [i for i in _drawn(rule, m, 0.0, (place, draw)) if i is not None]
            used = [shots * i + k for i in drawn for k in range(shots)]
            for method in list(scores):
                beside = (
                    (geometry, rule.chunks[drawn]) if method == "private words + vector" else None
                )
                try:
                    answers = rivals.answers(method, used, beside, *level)
                except PrivacyParameterError:  # an ε too small or too large to be split exactly
                    del scores[method]
                    continue
                scores[method][place, draw] = exact_match(answers, rule.wanted)
            told()
    bare = replace(vector, noise_to_signal=None, recommended=False)
    return [_scored(replace(bare, method=name), known, found) for name, found in scores.items()]


def _drawn(rule: Rule, m: int, empty: float, seed: tuple[int, int]) -> list[int | None]:
    """Which public chunks play the private ones, None for a null chunk.

    That is no secret and the same for all methods; the noise has no seed.
    """
    rng = np.random.default_rng(seed)
    places = rng.integers(len(rule.chunks), size=m).tolist()
    return [None if gone else i for i, gone in zip(places, rng.random(m) < empty, strict=True)]


def _noise_to_signal(
    event: GaussianEvent, geometry: ReleaseGeometry, rule: Rule, empty: float
) -> float:
    bare = clipped_mean(
        [geometry.to_release(c) for c in rule.chunks],
        chunks=len(rule.chunks),
        clip_norms=geometry.clip_norms,
        block_sizes=geometry.block_sizes,
    )
    signal = (1 - empty) * float(np.linalg.norm(bare.value))
    return float(event.sigma * np.sqrt(event.d) / signal) if signal else np.inf


def _scored(made: Forecast, known: Known, scores: Float[np.ndarray, "rules draws"]) -> Forecast:
    names = np.array([rule.name for rule in known.rules])
    by_rule = {str(n): float(scores[names == n].mean()) for n in dict.fromkeys(names)}
    means = list(by_rule.values())
    return replace(
        made,
        accuracy=float(scores.mean()),
        spread=float(scores.std()),
        error=float(np.std(means, ddof=1) / np.sqrt(len(means))) if len(means) > 1 else None,
        by_rule=by_rule,
    )
