"""Public answer rules in the private role.

Everything here is public. Half of the rules play the private ones, one at a time, and the other
half is the public file: heads, clip norm, queries and what a release is decoded by are of it.
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
from dpmtv.evaluation.rivals import with_words
from dpmtv.pipeline import weight_steps
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
    from dpmtv.models.atoms import Shown
    from dpmtv.models.synthetic import SyntheticPublic
    from dpmtv.public_tasks import Progress
    from dpmtv.types import Demonstration, Query

IN_CONTEXT = 4  # demonstrations in the prompt, for comparison


@dataclass(frozen=True)
class Rule:
    """A public answer rule in the private role; all that is public comes from others.

    Args:
        name: its ``task``.
        records: those that play the private ones, K a chunk.
        chunks: their activations as the private chunks will have them.
        heads: those found.
        geometry: noise in units of the clip norm → what is released of them.
        public: what a release may be decoded by; empty if there is no other rule.
        queries: public ones that end the chunks' prompts.
        asked: the questions that the vector will be asked, if they are known.
        shown: passes of decoding, shared by rules with the same ``public`` and ``queries``.
        bank: vectors of the other rules.
        held_out: the records that accuracy is measured on.
        tested: these as zero-shot prompts.
        wanted: their answers.
        longest: tokens of an answer, two more than any wanted one has.
    """

    name: str
    records: list[Demonstration]
    chunks: Float[np.ndarray, "chunks coordinates"]
    heads: Bool[np.ndarray, " heads"]
    geometry: Callable[[float], ReleaseGeometry]
    public: list[Demonstration]
    queries: list[Query]
    asked: list[str]
    shown: Shown
    bank: list[Float[np.ndarray, " coordinates"]]
    held_out: list[Demonstration]
    tested: PreparedQueries
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
        asked: as in the build: with them each rule's own questions are known, without them chunks
            are asked any of the public ones.
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
    halves = [tasks[0::2], tasks[1::2]]
    alone = len(tasks) == 1
    if alone:
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
        theirs = {task.scoring[0].task for task in others}
        public = others[0].scoring if alone else [r for r in known if r.task in theirs]
        shown: dict[tuple[str, ...], Shown] = {}  # by the questions asked
        for task in measured:
            questions = sorted({r.question for r in task.scoring}) if asked else []
            queries = public_queries(public, questions)
            records = [r for r in known if r.task == task.scoring[0].task and id(r) not in apart]
            chunks = _chunks(model, records, shots, queries)
            told("chunks as in the build", len(rules) + 1, len(tasks))
            rule = Rule(
                name=task.scoring[0].task or "the public file",
                records=records,
                chunks=chunks,
                heads=heads,
                geometry=geometry,
                public=[] if alone else public,
                queries=queries,
                asked=questions,
                shown=shown.setdefault(tuple(questions), {}),
                bank=[] if alone else [other.vector for other in others],
                held_out=task.scoring,
                tested=model.prepare([r.query for r in task.scoring]),
                wanted=[r.accepted or r.answer for r in task.scoring],
                longest=_longest(model, task.scoring),
            )
            with model.patched(chunks.mean(0), heads):
                right.append(right_share(model, rule, rule.tested))
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


def _chunks(
    model: VisionLanguageModel,
    records: Sequence[Demonstration],
    shots: int,
    queries: Sequence[Query],
) -> Float[np.ndarray, "chunks coordinates"]:
    starts = range(0, len(records) + 1, shots)
    return public_values(model, [records[a:b] for a, b in pairwise(starts)], queries)


def _longest(model: VisionLanguageModel, records: Sequence[Demonstration]) -> int:
    """Two tokens more than any wanted answer: whatever goes on longer is wrong already."""
    return 2 + max(len(model.answer_ids(Prompt((), r.query), r.answer)) for r in records)


def right_share(
    model: VisionLanguageModel, rule: Rule, queries: PreparedQueries, words: Sequence[str] = ()
) -> float:
    """Share of the rule's records answered right, with whatever is patched at the moment."""
    return exact_match(model.generate(queries, rule.longest, words), rule.wanted)


def baselines(model: VisionLanguageModel, rules: Sequence[Rule]) -> dict[str, float]:
    """Accuracy, mean over rules, of what needs no release.

    Args:
        model: the model.
        rules: each in the private role.

    Returns:
        "zero-shot"; "words listed and enforced", zero-shot where the rule's own answer words are
        known; and "in-context", with `IN_CONTEXT` demonstrations in the prompt.
    """
    found: dict[str, list[float]] = {}
    for rule in rules:
        words = sorted({" ".join(r.answer.split()) for r in (*rule.records, *rule.held_out)})
        listed = model.prepare(with_words([r.query for r in rule.held_out], words))
        count, records = min(IN_CONTEXT, len(rule.records)), rule.records
        prompts = [
            Prompt(tuple(records[(q * count + i) % len(records)] for i in range(count)), r.query)
            for q, r in enumerate(rule.held_out)
        ]
        for name, queries, allowed in (
            ("zero-shot", rule.tested, ()),
            ("words listed and enforced", listed, words),
            ("in-context", model.prepare(prompts, 8), ()),
        ):
            share = right_share(model, rule, queries, allowed)
            found.setdefault(name, []).append(share)
    return {name: float(np.mean(shares)) for name, shares in found.items()}
