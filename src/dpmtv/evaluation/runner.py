"""Measure every method on a benchmark, on the same records, prompts and code.

Everything here runs on public benchmark files. Draws on private data would be releases of their
own and are not offered.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmtv.data.partition import partition
from dpmtv.errors import DataError
from dpmtv.evaluation.benchmark import asked_of
from dpmtv.evaluation.official_metrics import outcomes
from dpmtv.evaluation.private_only import PrivateOnly
from dpmtv.evaluation.rivals import Rivals, with_words
from dpmtv.evaluation.rows import result_rows
from dpmtv.evaluation.settings import (
    CONTROLS,
    GEOMETRIES,
    NO_RECORDS,
    RIVALS,
    UNCLIPPED,
    Recipe,
    Setting,
    Settings,
)
from dpmtv.evaluation.study import (
    Study,
    draw_activations,
    draw_key,
    draw_records,
    picks,
    prepare,
)
from dpmtv.models.choosing import choose_decoded_public
from dpmtv.models.mask_loss import MaskLoss
from dpmtv.pipeline import calibrate_for
from dpmtv.privacy.mechanisms import clipped_mean
from dpmtv.public_tasks import PublicTask, public_queries, select_heads
from dpmtv.types import Prompt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dpmtv.evaluation.benchmark import Benchmark, BenchmarkTask
    from dpmtv.geometry import ReleaseGeometry
    from dpmtv.models.adapters import VisionLanguageModel
    from dpmtv.options import QueryMode
    from dpmtv.public_tasks import Progress

    Row = dict[str, Any]


BATCH = 64  # queries answered at once


def evaluate_benchmark(
    model: VisionLanguageModel,
    benchmark: Benchmark,
    settings: Settings,
    *,
    name: str,
    command: str,
    progress: Progress = lambda _what, _done, _total: None,
) -> tuple[list[Row], np.ndarray]:
    """Result rows, one a task and one for each mean of tasks; and the public head mask.

    Args:
        model: the model.
        benchmark: its tasks.
        settings: what is measured.
        name: model name for the rows.
        command: what reproduces the rows.
        progress: called with (what, done, total).

    Raises:
        DataError: a task has too few records.
        ModelError: no heads are found on generated public records.
    """
    study = prepare(model, benchmark, settings, progress=progress)
    measure(study, progress)
    return list(result_rows(study, name, command)), study.heads[study.first]


def measure(study: Study, progress: Progress = lambda _what, _done, _total: None) -> None:
    """Run every draw of every task; the scores are the study's."""
    draws, tasks = study.settings.draws, study.benchmark.tasks
    for place, task in enumerate(tasks):
        measured = _Measure(study, task)
        for draw in range(draws):
            measured.draw(draw)
            progress("draws", place * draws + draw + 1, draws * len(tasks))


class _Measure:
    """All methods on one task; each call of draw() adds one score to each."""

    def __init__(self, study: Study, task: BenchmarkTask):
        self.study, self.task = study, task
        self.test = task.test[: study.settings.n_test]
        self.words = sorted({" ".join(r.answer.split()) for r in task.test})
        study.words[task.name] = self.words
        model = study.model
        # Two tokens more than any wanted answer: whatever goes on longer is wrong already, except
        # where an official metric reads it.
        lengths = (len(model.answer_ids(Prompt((), r.query), r.answer)) for r in self.test)
        self.most = max(task.tokens, 2 + max(lengths))
        self.queries = model.prepare([r.query for r in self.test], BATCH)
        self.other = _disjoint_task(task, study.benchmark)
        self.asked: dict[str, MaskLoss] = {}  # private records of a task, zero-shot

    @cached_property
    def rivals(self) -> Rivals:
        """Other private uses of this task's records."""
        study, first = self.study, self.study.first
        return Rivals(
            model=study.model,
            test=[r.query for r in self.test],
            records=self.task.private,
            bank=[known.vector for known in study.public[first]],
            heads=study.heads[first],
            patch=study.settings.patch,
            most=self.most,
        )

    def _note(self, setting: Setting, answers: Sequence[str]) -> None:
        task = self.task
        score = outcomes(task.metrics, answers, self.test, task.seen[: len(self.test)])
        known = float(np.mean([" ".join(a.split()) in self.words for a in answers]))
        self.study.scores[setting][task.name].append((score, known))

    def _patched(self, setting: Setting, vector: np.ndarray, heads: np.ndarray) -> None:
        with self.study.model.patched(vector, heads, self.study.settings.patch):
            self._note(setting, self.study.model.generate(self.queries, self.most))

    def draw(self, draw: int) -> None:
        s, model = self.study.settings, self.study.model
        if draw == 0:
            self._without_records()
        if "in-context" in s.methods:
            prompts = _in_context(self.task, s, draw)
            batch = max(
                1, BATCH // (1 + s.shots)
            )  # as many pictures at once as in a batch of queries
            answers: list[str] = []
            for start in range(0, len(prompts), batch):
                answers += model.generate(prompts[start : start + batch], self.most)
            self._note(Setting("in-context", K=s.shots, records=s.shots), answers)
        for m in s.sizes(self.study.first):
            self._rivals(draw, m)
        if {"task vector", "dp-mtv", *CONTROLS}.isdisjoint(s.methods):
            return
        if "task vector" in s.methods:
            heads, query = self.study.heads[self.study.first], self.study.first
            size = int(model.layout.coordinates(heads).sum())
            for m in s.sizes(query):
                chunks = draw_activations(self.study, self.task, query, draw, m)
                setting = self._setting("task vector", UNCLIPPED, query, m, size)
                self._patched(setting, chunks.mean(0), heads)
        for name in s.geometries:
            for m in s.sizes(GEOMETRIES[name].query):
                self._releases(name, draw, m)

    def _setting(
        self, method: str, words: str, query: QueryMode, m: int, size: int, *level: Any
    ) -> Setting:
        s = self.study.settings
        relation, epsilon = level or (None, None)
        records = 0 if method == "pure noise" else m * s.size(query)
        return Setting(method, words, relation or None, epsilon, size, m, s.k(query), records)

    def _without_records(self) -> None:
        """Zero-shot, and its variants that know the answer words."""
        s, model = self.study.settings, self.study.model
        words = self.words
        listed = with_words([r.query for r in self.test], words)
        for method in s.methods:
            if method not in NO_RECORDS:
                continue
            queries = model.prepare(listed) if "listed" in method else self.queries
            allowed = words if "enforced" in method else ()
            self._note(Setting(method), model.generate(queries, self.most, allowed))

    def _rivals(self, draw: int, m: int) -> None:
        """Other private uses of the records of m chunks, formed as the first geometry does."""
        s, query = self.study.settings, self.study.first
        wanted = [method for method in RIVALS if method in s.methods]
        if not wanted:
            return
        drawn = draw_records(s, self.task, query, draw, m)
        for relation, epsilon in _levels(s, ""):
            # Where a chunk of several records vanishes, no rival bounds what goes with it.
            if epsilon is None or (relation == "zero_out" and s.size(query) > 1):
                continue
            for method in wanted:
                words, size, beside = None, 0, None
                if method == "private words + vector":
                    words = GEOMETRIES[s.geometries[0]].words
                    geometry = self.study.geometry(s.geometries[0], m, relation, epsilon)
                    size = sum(geometry.block_sizes)
                    beside = geometry, draw_activations(self.study, self.task, query, draw, m)
                answers = self.rivals.answers(method, drawn, beside, epsilon, s.delta, relation)
                setting = Setting(
                    *(method, words, relation, epsilon, size, m),
                    *(s.k(query) if size else 0, len(drawn)),
                )
                self._note(setting, answers)

    def _releases(self, name: str, draw: int, m: int) -> None:
        """One geometry: the release and the controls, at every level."""
        s, recipe = self.study.settings, GEOMETRIES[name]
        if recipe.alone:
            self._alone(recipe, draw, m)
            return
        used = {"pure noise": None, "dp-mtv": self.task, "other task": self.other}
        if self.other is None:
            del used["other task"]
        for method, task in used.items():
            if method not in s.methods:
                continue
            rows: Iterable[np.ndarray] = ()
            if task is not None:
                rows = draw_activations(self.study, task, recipe.query, draw, m)
            for relation, epsilon in _levels(s, method):
                geometry = self.study.geometry(name, m, relation, epsilon)
                coordinates: list[np.ndarray | None] = [geometry.to_release(a) for a in rows]
                coordinates = coordinates or [None] * m
                if epsilon is None:
                    release = clipped_mean(
                        coordinates,
                        chunks=m,
                        clip_norms=geometry.clip_norms,
                        block_sizes=geometry.block_sizes,
                    )
                else:
                    beside = picks(recipe, epsilon)
                    mechanism = calibrate_for(geometry, epsilon, s.delta, relation, m, beside)
                    release = mechanism.release(coordinates)
                vector, heads = geometry.from_release(release.value), self.study.heads[recipe.query]
                if epsilon is not None and recipe.choice:
                    drawn = draw_records(s, task, recipe.query, draw, m) if task else []
                    found = (geometry, release.value, mechanism.event.sigma, heads)
                    vector = self._chosen(task, drawn, found, beside[0].range)
                if recipe.mask_from_release:
                    heads = _mask_from_release(self.study, self.task, vector)
                level = (relation, epsilon)
                words = recipe.words
                if s.clip_factor != 1:
                    words += f", clip norms × {s.clip_factor:g}"
                setting = self._setting(method, words, recipe.query, m, len(release.value), *level)
                self._patched(setting, vector, heads)

    def _alone(self, recipe: Recipe, draw: int, m: int) -> None:
        """A release without public records, at every level."""
        s, task, query = self.study.settings, self.task, recipe.query
        if "dp-mtv" not in s.methods:
            return
        drawn = draw_records(s, task, query, draw, m)
        for relation, epsilon in _levels(s, ""):
            if epsilon is None:
                continue
            if recipe.alone == "ours":
                found = self.alone.ours(recipe, drawn, epsilon, relation)
            else:
                chunks = draw_activations(self.study, task, query, draw, m)
                first = drawn[:: s.size(query)]
                found = self.alone.paper(chunks, first, epsilon, relation)
            if found is None:
                continue
            vector, heads, size = found
            setting = self._setting("dp-mtv", recipe.words, query, m, size, relation, epsilon)
            self._patched(setting, vector, heads)

    @cached_property
    def alone(self) -> PrivateOnly:
        """This task without public records."""
        s = self.study.settings
        return PrivateOnly(self.study.model, self.task, s.patch, s.delta)

    def _chosen(
        self,
        task: BenchmarkTask | None,
        drawn: Sequence[int],
        release: tuple[ReleaseGeometry, np.ndarray, float, np.ndarray],
        range_: float,
    ) -> np.ndarray:
        """As `choose_decoded`, with passes kept from draw to draw."""
        study, asked = self.study, asked_of(self.task)
        played = task or self.task  # without one, none of its records is asked
        if played.name not in self.asked:
            self.asked[played.name] = MaskLoss(
                study.model,
                [Prompt((), r.query) for r in played.private],
                [r.answer for r in played.private],
                [],
                study.settings.patch,
            )
        return choose_decoded_public(
            *(study.model, *release, self.asked[played.name], drawn, range_),
            public=study.records,
            queries=public_queries(study.records, asked),
            asked=asked,
            shown=study.shown.setdefault(asked, {}),
        )


def _levels(s: Settings, method: str) -> Iterator[tuple[str, float | None]]:
    for epsilon in s.epsilons:
        if epsilon is None:
            if method == "dp-mtv":
                yield "", None
        else:
            for relation in s.relations:
                yield relation, epsilon


def _mask_from_release(study: Study, task: BenchmarkTask, vector: np.ndarray) -> np.ndarray:
    """The paper's mode: patch the released vector into public prompts of the same rule."""
    if not task.same_rule:
        raise DataError(f"{task.name} has no public-same-rule.jsonl, which the paper's mode needs")
    seen = PublicTask(vector, np.empty((0, len(vector))), task.same_rule)
    s = study.settings
    return select_heads(study.model, [seen], s.patch, s.search_steps).heads


def _in_context(task: BenchmarkTask, s: Settings, draw: int) -> list[Prompt]:
    """K demonstrations for each query, other ones for each while there are enough."""
    groups = len(task.private) // s.shots
    slots = partition(len(task.private), groups, s.shots, draw_key(draw))
    return [
        Prompt(tuple(task.private[i] for i in slots[q % groups]), record.query)
        for q, record in enumerate(task.test[: s.n_test])
    ]


def _disjoint_task(task: BenchmarkTask, benchmark: Benchmark) -> BenchmarkTask | None:
    """A task that shares no answer with ``task``, asking the same questions if there is one."""
    answers, questions = {r.answer for r in task.test}, {r.question for r in task.test}
    place = benchmark.tasks.index(task)
    others = [
        other
        for other in (*benchmark.tasks[place + 1 :], *benchmark.tasks[:place])
        if answers.isdisjoint({r.answer for r in other.private})
    ]
    same = [o for o in others if not questions.isdisjoint({r.question for r in o.test})]
    return next(iter(same or others), None)
