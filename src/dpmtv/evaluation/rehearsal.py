"""Public answer rules in the private role: what a release of each would be worth.

Everything here is public. The noise is the real mechanism's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from dpmtv.errors import DataError
from dpmtv.evaluation.metrics import exact_match
from dpmtv.options import default_picks
from dpmtv.pipeline import calibrate_for, relative_noise, weight_steps
from dpmtv.privacy.mechanisms import clipped_mean
from dpmtv.public_tasks import (
    PublicTask,
    public_queries,
    public_tasks,
    public_values,
    release_geometry,
    select_heads,
)
from dpmtv.types import Prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxtyping import Bool, Float

    from dpmtv.geometry import ReleaseGeometry
    from dpmtv.models.adapters import PreparedQueries, VisionLanguageModel
    from dpmtv.models.synthetic import SyntheticPublic
    from dpmtv.public_tasks import Progress
    from dpmtv.types import BoundedRangeEvent, Demonstration, Query

IN_CONTEXT = 4  # demonstrations in the prompt, for comparison


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
        by_rule: mean over the draws, for each public rule.
        without_noise: accuracy of the rules' vectors without clip and noise.
        noise_to_signal: norm of the noise ÷ norm of the clipped mean, mean over the rules.
        null_chunks: share of chunks that get no unit and count as zero.
    """

    epsilon: float
    records: int
    shots: int
    chunks: int
    accuracy: float
    spread: float
    by_rule: dict[str, float]
    without_noise: float
    noise_to_signal: float
    null_chunks: float
    recommended: bool = False


@dataclass(frozen=True)
class Rule:
    """A public answer rule in the private role; its heads and clip norm come from others.

    Args:
        name: its ``task``.
        chunks: activations as the private chunks will have them.
        heads: those found.
        geometry: noise in units of the clip norm → what is released of them.
        queries: the records that accuracy is measured on, as zero-shot prompts.
        in_context: the same after demonstrations.
        wanted: their answers.
        longest: tokens of an answer, two more than any wanted one has.
    """

    name: str
    chunks: Float[np.ndarray, "chunks coordinates"]
    heads: Bool[np.ndarray, " heads"]
    geometry: Callable[[float], ReleaseGeometry]
    queries: PreparedQueries
    in_context: list[Prompt]
    wanted: list[str | tuple[str, ...]]
    longest: int


@dataclass(frozen=True)
class Known:
    """What public records give at one K.

    Args:
        rules: each in the private role.
        without_noise: accuracy of their vectors without clip and noise.
        prepared: seconds that public chunks and one head search took.
        chunk: seconds of one chunk with all of its queries.
    """

    rules: list[Rule]
    without_noise: float
    prepared: float
    chunk: float


def simulated_release(
    geometry: ReleaseGeometry,
    chunks: Sequence[Float[np.ndarray, " coordinates"] | None],
    epsilon: float,
    delta: float,
    relation: str,
    picks: Sequence[BoundedRangeEvent] = (),
) -> Float[np.ndarray, " coordinates"]:
    """What the build would patch, had these been its chunks: the real mechanism, once.

    Decoding and the private choice are left out: they are worth most where the words are new to
    the model, which those of public rules often are not.

    Args:
        geometry: released heads and clip norm.
        chunks: m activations of shape [coordinates]; None for a null chunk.
        epsilon: ε.
        delta: δ.
        relation: the neighbour relation.
        picks: what ε pays for besides.
    """
    mechanism = calibrate_for(geometry, epsilon, delta, relation, len(chunks), picks)
    release = mechanism.release(None if c is None else geometry.to_release(c) for c in chunks)
    return geometry.from_release(release.value).astype(np.float32)


def null_share(units: int, chunks: int) -> float:
    """Share of ``chunks`` that a hash sends none of ``units`` to: (1 − 1/m)^n."""
    return (1 - 1 / chunks) ** units


def rehearse(
    model: VisionLanguageModel,
    known: Sequence[Demonstration],
    check: SyntheticPublic | None,
    shots: int,
    asked: Sequence[str],
    steps: int,
    progress: Progress,
) -> Known:
    """Public rules in the private role, each with heads and a clip norm from the other half.

    Args:
        model: the model.
        known: public records.
        check: how heads found on generated records are checked.
        shots: K.
        asked: as in the build; without them chunks are asked any of the public questions.
        steps: of each head search.
        progress: called with (what, done, total).

    Raises:
        DataError: a rule with too few records for this K.
        ModelError: heads found on generated records do not pass the check.
    """

    def told(what: str, done: int, total: int) -> None:
        progress(f"{what}, K = {shots}", done, total)

    start = time.perf_counter()
    tasks = public_tasks(model, known, shots, False, told)
    seconds = time.perf_counter() - start
    chunk = seconds / sum(len(task.activations) for task in tasks)
    apart = {id(record) for task in tasks for record in task.scoring}
    queries = [] if asked else public_queries(known, ())
    halves = [tasks[0::2], tasks[1::2]]
    if len(tasks) == 1:
        if len(tasks[0].scoring) < 2:
            raise DataError("the only public answer rule needs at least six records")
        halves = [[replace(tasks[0], scoring=tasks[0].scoring[h::2])] for h in (0, 1)]
    rules: list[Rule] = []
    searched, right = 0.0, []  # seconds, accuracies
    for h, measured in enumerate(halves):
        others = halves[1 - h]
        start = time.perf_counter()
        # Checks are in the order of the tasks, so those of the other half are every second one.
        half = None if check is None else replace(check, checks=check.checks[1 - h :: 2])
        heads = select_heads(model, others, "every-step", steps, told, half).heads
        searched = max(searched, time.perf_counter() - start)
        geometry = _geometries(model, heads, others, steps)
        for task in measured:
            name = task.scoring[0].task
            shown = [r for r in known if r.task == name and id(r) not in apart]
            chunks = task.activations
            if queries:  # the build's chunks are asked these, not their own rule's questions
                chunks = _asked(model, shown, shots, queries)
                told("chunks as in the build", len(rules) + 1, len(tasks))
            rule = _rule(model, task, shown, chunks, heads, geometry)
            with model.patched(chunks.mean(0), heads):
                right.append(right_share(model, rule, rule.queries))
            rules.append(rule)
    return Known(rules, float(np.mean(right)), seconds + searched, chunk)


def _geometries(
    model: VisionLanguageModel,
    heads: Bool[np.ndarray, " heads"],
    tasks: Sequence[PublicTask],
    steps: int,
) -> Callable[[float], ReleaseGeometry]:
    """Learned once for each level of noise, and kept."""
    taken = weight_steps(steps)
    return cache(lambda noise: release_geometry(model, heads, tasks, noise=noise, steps=taken))


def _asked(
    model: VisionLanguageModel,
    shown: Sequence[Demonstration],
    shots: int,
    queries: Sequence[Query],
) -> Float[np.ndarray, "chunks coordinates"]:
    starts = range(0, len(shown) + 1, shots)
    return public_values(model, [shown[a:b] for a, b in pairwise(starts)], queries)


def _rule(
    model: VisionLanguageModel,
    task: PublicTask,
    shown: Sequence[Demonstration],
    chunks: Float[np.ndarray, "chunks coordinates"],
    heads: Bool[np.ndarray, " heads"],
    geometry: Callable[[float], ReleaseGeometry],
) -> Rule:
    asked = task.scoring
    count = min(IN_CONTEXT, len(shown))
    prompts = [
        Prompt(tuple(shown[(q * count + i) % len(shown)] for i in range(count)), record.query)
        for q, record in enumerate(asked)
    ]
    # Two tokens more than any wanted answer: whatever goes on longer is wrong already.
    longest = 2 + max(len(model.answer_ids(Prompt((), r.query), r.answer)) for r in asked)
    return Rule(
        name=asked[0].task or "the public file",
        chunks=chunks,
        heads=heads,
        geometry=geometry,
        queries=model.prepare([r.query for r in asked]),
        in_context=prompts,
        wanted=[r.accepted or r.answer for r in asked],
        longest=longest,
    )


def right_share(model: VisionLanguageModel, rule: Rule, queries: PreparedQueries) -> float:
    """Share of the rule's records answered right, with whatever is patched at the moment."""
    return exact_match(model.generate(queries, rule.longest), rule.wanted)


def forecast(
    model: VisionLanguageModel,
    known: Known,
    level: tuple[float, float, str],
    size: tuple[int, int, int, float],
    draws: int,
    progress: Progress,
) -> Forecast:
    """Release every rule's mean as the build would, and ask its records.

    Args:
        model: the model.
        known: of the K that is wanted.
        level: ε, δ and relation.
        size: number of records, K, m, and the share of null chunks.
        draws: releases a rule.
        progress: called with (what, done, total).
    """
    records, shots, m, empty = size
    what = f"releases, ε = {level[0]:g}, {records} records, K = {shots}"
    scores = np.zeros((len(known.rules), draws))
    names = [rule.name for rule in known.rules]
    picks = default_picks(level[0], shots)
    level_noise = relative_noise(model.layout, *level, m, picks)
    noise = []
    for place, rule in enumerate(known.rules):
        geometry = rule.geometry(level_noise)
        bare = clipped_mean(
            [geometry.to_release(c) for c in rule.chunks],
            chunks=len(rule.chunks),
            clip_norms=geometry.clip_norms,
            block_sizes=geometry.block_sizes,
        )
        event = calibrate_for(geometry, *level, m, picks).event
        signal = (1 - empty) * float(np.linalg.norm(bare.value))
        noise.append(event.sigma * np.sqrt(event.d) / signal if signal else np.inf)
        for draw in range(draws):
            # Which public chunks are drawn is no secret; the noise has no seed.
            rng = np.random.default_rng((place, draw))
            drawn = [rule.chunks[i] for i in rng.integers(len(rule.chunks), size=m)]
            lost = rng.random(m) < empty
            used = [None if gone else c for c, gone in zip(drawn, lost, strict=True)]
            with model.patched(simulated_release(geometry, used, *level, picks), rule.heads):
                scores[place, draw] = right_share(model, rule, rule.queries)
            progress(what, place * draws + draw + 1, scores.size)
    return Forecast(
        epsilon=level[0],
        records=records,
        shots=shots,
        chunks=m,
        accuracy=float(scores.mean()),
        spread=float(scores.std()),
        by_rule={n: float(scores[[n == name for name in names]].mean()) for n in names},
        without_noise=known.without_noise,
        noise_to_signal=float(np.mean(noise)),
        null_chunks=empty,
    )
