"""Measure every method on a benchmark, on the same records, prompts and code.

Everything here runs on public benchmark files. Draws on private data would be releases of their
own and are not offered.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmtv.data.demonstrations import require_good
from dpmtv.data.partition import partition
from dpmtv.errors import DataError
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
from dpmtv.models.choosing import choose_decoded_public
from dpmtv.models.mask_loss import MaskLoss
from dpmtv.models.synthetic import public_records
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
from dpmtv.types import BoundedRangeEvent, Prompt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from jaxtyping import Float

    from dpmtv.evaluation.benchmark import Benchmark, BenchmarkTask
    from dpmtv.geometry import ReleaseGeometry
    from dpmtv.models.adapters import VisionLanguageModel
    from dpmtv.models.atoms import Shown
    from dpmtv.options import QueryMode
    from dpmtv.public_tasks import Progress
    from dpmtv.types import Demonstration

    Row = dict[str, Any]


FORMATIONS = 5  # times that the records of a task are cut into chunks


@dataclass
class Study:
    """Public knowledge and all scores so far; rows() turns it into result rows."""

    model: VisionLanguageModel
    benchmark: Benchmark
    settings: Settings
    records: list[Demonstration]  # the public ones
    public: dict[QueryMode, list[PublicTask]]  # by the query that private chunks have
    heads: dict[QueryMode, np.ndarray]
    scores: dict[Setting, dict[str, list[tuple[np.ndarray, float]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )  # scores [metrics, questions], and share of answers that are one of the task's wanted ones
    words: dict[str, list[str]] = field(default_factory=dict)  # the wanted answers of each task
    pools: dict[tuple[str, QueryMode, int], np.ndarray] = field(default_factory=dict)
    geometries: dict[tuple[str, float | None], ReleaseGeometry] = field(default_factory=dict)
    shown: dict[tuple[str, ...], Shown] = field(default_factory=dict)  # by the questions asked

    @property
    def first(self) -> QueryMode:
        """How the vector without noise forms its chunks."""
        return GEOMETRIES[self.settings.geometries[0]].query

    def geometry(self, name: str, m: int, relation: str, epsilon: float | None) -> ReleaseGeometry:
        """A recipe's geometry; with learned weights it is another one for each level of noise."""
        recipe, noise = GEOMETRIES[name], None
        if recipe.learned:
            noise = 0.0
            if epsilon is not None:
                level = (epsilon, self.settings.delta, relation, m)
                noise = relative_noise(self.model.layout, *level, picks(recipe, epsilon))
        if (name, noise) not in self.geometries:
            heads = self.heads[recipe.query]
            self.geometries[name, noise] = release_geometry(
                self.model,
                heads if recipe.selected else np.ones_like(heads),
                self.public[recipe.query],
                per_layer=recipe.per_layer,
                noise=noise,
                patch=self.settings.patch,
                steps=weight_steps(self.settings.search_steps),
            )
        return self.geometries[name, noise]


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
    for task in benchmark.tasks:
        if len(task.test) < settings.n_test:
            raise DataError(f"{task.name} has {len(task.test)} test records, not {settings.n_test}")
    records, check = public_records(model, benchmark.public, settings.shots, progress)
    records = require_good(records or (), "the public file")
    public, heads = {}, {}
    for query in dict.fromkeys(GEOMETRIES[name].query for name in settings.geometries):
        known = public_tasks(model, records, settings.k(query), query == "private", progress)
        found = select_heads(model, known, settings.patch, settings.search_steps, progress, check)
        public[query], heads[query] = known, found.heads
    study = Study(model, benchmark, settings, records, public, heads)
    total = settings.draws * len(benchmark.tasks)
    for place, task in enumerate(benchmark.tasks):
        measure = _Measure(study, task)
        for draw in range(settings.draws):
            measure.draw(draw)
            progress("draws", place * settings.draws + draw + 1, total)
    return list(result_rows(study, name, command)), heads[study.first]


def chunk_pool(
    model: VisionLanguageModel,
    public: Sequence[Demonstration],
    task: BenchmarkTask,
    chunks: int,
    size: int,
    query: QueryMode,
    formation: int = 0,
) -> Float[np.ndarray, "chunks coordinates"]:
    """Activations of disjoint chunks, without clip or noise: NOT PRIVATE.

    Args:
        model: the model.
        public: where public queries come from; the task's own questions are taken as public.
        task: whose records are cut.
        chunks: how many.
        size: records of each.
        query: whose question ends a chunk's prompt.
        formation: which of many ways to cut.

    Raises:
        DataError: too few records, or an image that cannot be read.
    """
    queries = []
    if query == "public":
        queries = public_queries(public, sorted({r.question for r in task.test}))
    slots = partition(len(task.private), chunks, size, _formation_key(formation))
    rows = [[task.private[i] for i in chunk] for chunk in slots]
    return public_values(model, rows, queries)


def _draw_activations(
    study: Study, task: BenchmarkTask, query: QueryMode, draw: int, m: int
) -> np.ndarray:
    """Take m chunks at random out of one of the formations; a chunk's pass serves several draws."""
    size = study.settings.size(query)
    chunks, formation = _pool_of(study.settings, task, query, draw)
    key = (task.name, query, formation)
    if key not in study.pools:
        study.pools[key] = chunk_pool(
            study.model, study.records, task, chunks, size, query, formation
        )
    return study.pools[key][list(partition(chunks, 1, m, _draw_key(draw))[0])]


def _draw_records(
    s: Settings, task: BenchmarkTask, query: QueryMode, draw: int, m: int
) -> list[int]:
    """The records of the chunks that `_draw_activations` takes, by their place."""
    chunks, formation = _pool_of(s, task, query, draw)
    slots = partition(len(task.private), chunks, s.size(query), _formation_key(formation))
    return [i for c in partition(chunks, 1, m, _draw_key(draw))[0] for i in slots[c]]


def _pool_of(s: Settings, task: BenchmarkTask, query: QueryMode, draw: int) -> tuple[int, int]:
    """How many chunks are cut for a draw to choose from, and in which of the formations."""
    size = s.size(query)
    formations = FORMATIONS if size > 1 else 1
    full, most = len(task.private) // size, max(s.sizes(query))
    return max(most, min(full, -(-s.draws // formations) * most)), draw % formations


def _formation_key(formation: int) -> bytes:
    return b"formation %d" % formation


def _draw_key(draw: int) -> bytes:
    # Benchmark records are public: a fixed key lets everybody draw the same ones.
    return b"draw %d" % draw


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
        self.queries = model.prepare([r.query for r in self.test])
        self.other = _disjoint_task(task, study.benchmark)
        self.asked: dict[str, MaskLoss] = {}  # private records of a task, zero-shot
        first = study.first
        self.rivals = Rivals(
            model=model,
            test=[r.query for r in self.test],
            records=task.private,
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
            setting = Setting("in-context", K=s.shots, records=s.shots)
            self._note(setting, model.generate(model.prepare(prompts), self.most))
        for m in s.sizes(self.study.first):
            self._rivals(draw, m)
        if {"task vector", "dp-mtv", *CONTROLS}.isdisjoint(s.methods):
            return
        if "task vector" in s.methods:
            heads, query = self.study.heads[self.study.first], self.study.first
            size = int(model.layout.coordinates(heads).sum())
            for m in s.sizes(query):
                chunks = _draw_activations(self.study, self.task, query, draw, m)
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
        drawn = _draw_records(s, self.task, query, draw, m)
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
                    beside = geometry, _draw_activations(self.study, self.task, query, draw, m)
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
                rows = _draw_activations(self.study, task, recipe.query, draw, m)
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
                    drawn = _draw_records(s, task, recipe.query, draw, m) if task else []
                    found = (geometry, release.value, mechanism.event.sigma, heads)
                    vector = self._chosen(task, drawn, found, beside[0].range)
                if recipe.mask_from_release:
                    heads = _mask_from_release(self.study, self.task, vector)
                level = (relation, epsilon)
                setting = self._setting(
                    method, recipe.words, recipe.query, m, len(release.value), *level
                )
                self._patched(setting, vector, heads)

    def _alone(self, recipe: Recipe, draw: int, m: int) -> None:
        """A release without public records, at every level."""
        s, task, query = self.study.settings, self.task, recipe.query
        if "dp-mtv" not in s.methods:
            return
        drawn = _draw_records(s, task, query, draw, m)
        for relation, epsilon in _levels(s, ""):
            if epsilon is None:
                continue
            if recipe.alone == "ours":
                found = self.alone.ours(recipe, drawn, epsilon, relation)
            else:
                chunks = _draw_activations(self.study, task, query, draw, m)
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
        study, asked = self.study, sorted({r.question for r in self.task.test})
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
            shown=study.shown.setdefault(tuple(asked), {}),
        )


def picks(recipe: Recipe, epsilon: float) -> tuple[BoundedRangeEvent, ...]:
    """What a recipe chooses privately beside the release."""
    return (BoundedRangeEvent(recipe.choice * epsilon, 1),) if recipe.choice else ()


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
    slots = partition(len(task.private), groups, s.shots, _draw_key(draw))
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
