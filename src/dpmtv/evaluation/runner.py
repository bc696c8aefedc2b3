"""Measure every method on a benchmark, on the same records, prompts and code.

Everything here runs on public benchmark files. Draws on private data would be releases of their
own and are not offered.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmtv.data.demonstrations import require_good
from dpmtv.data.partition import partition
from dpmtv.errors import DataError
from dpmtv.evaluation.metrics import EXACT_MATCH, exact_match
from dpmtv.evaluation.settings import (
    CONTROLS,
    GEOMETRIES,
    MEAN,
    NO_RECORDS,
    UNCLIPPED,
    Setting,
    Settings,
)
from dpmtv.models.synthetic import public_records
from dpmtv.pipeline import calibrate_for, release_geometry
from dpmtv.privacy.mechanisms import clipped_mean
from dpmtv.public_tasks import (
    PublicTask,
    chunk_values,
    public_queries,
    public_tasks,
    select_heads,
)
from dpmtv.types import Prompt, Query

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jaxtyping import Float

    from dpmtv.artifact import TaskVector
    from dpmtv.evaluation.benchmark import Benchmark, BenchmarkTask
    from dpmtv.models.adapters import VisionLanguageModel
    from dpmtv.pipeline import QueryMode
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
    scores: dict[Setting, dict[str, list[tuple[float, float]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )  # exact match, and share of answers that are one of the task's wanted ones
    words: dict[str, list[str]] = field(default_factory=dict)  # the wanted answers of each task
    pools: dict[tuple[str, QueryMode, int], np.ndarray] = field(default_factory=dict)

    @property
    def first(self) -> QueryMode:
        """How the vector without noise forms its chunks."""
        return GEOMETRIES[self.settings.geometries[0]].query


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
    return list(_rows(study, name, command)), heads[study.first]


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
    slots = partition(len(task.private), chunks, size, b"formation %d" % formation)
    found = [chunk_values(model, [task.private[i] for i in chunk], queries) for chunk in slots]
    good = [values for values in found if values is not None]
    if len(good) < chunks:
        raise DataError(f"{task.name}: an image cannot be read")
    return np.stack(good)


def _draw_activations(
    study: Study, task: BenchmarkTask, query: QueryMode, draw: int, m: int
) -> np.ndarray:
    """Take m chunks at random out of one of the formations; a chunk's pass serves several draws."""
    s, size = study.settings, study.settings.size(query)
    formations = FORMATIONS if size > 1 else 1
    key = (task.name, query, draw % formations)
    if key not in study.pools:
        full, most = len(task.private) // size, max(s.sizes(query))
        chunks = max(most, min(full, -(-s.draws // formations) * most))
        study.pools[key] = chunk_pool(study.model, study.records, task, chunks, size, query, key[2])
    pool = study.pools[key]
    return pool[list(partition(len(pool), 1, m, _draw_key(draw))[0])]


def _draw_key(draw: int) -> bytes:
    # Benchmark records are public: a fixed key lets everybody draw the same ones.
    return b"draw %d" % draw


class _Measure:
    """All methods on one task; each call of draw() adds one score to each."""

    def __init__(self, study: Study, task: BenchmarkTask):
        self.study, self.task = study, task
        self.test = task.test[: study.settings.n_test]
        self.wanted = [r.accepted or r.answer for r in self.test]
        self.words = sorted({" ".join(r.answer.split()) for r in task.test})
        study.words[task.name] = self.words
        model = study.model
        # Two tokens more than any wanted answer: whatever goes on longer is wrong already.
        lengths = (len(model.answer_ids(Prompt((), r.query), r.answer)) for r in self.test)
        self.most = 2 + max(lengths)
        self.queries = model.prepare([r.query for r in self.test])
        self.other = _disjoint_task(task, study.benchmark)
        self.geometries = {}
        for name in study.settings.geometries:
            recipe = GEOMETRIES[name]
            heads, tasks = study.heads[recipe.query], study.public[recipe.query]
            released = heads if recipe.selected else np.ones_like(heads)
            self.geometries[name] = release_geometry(
                model, released, tasks, per_layer=recipe.per_layer
            )

    def _note(self, setting: Setting, answers: Sequence[str]) -> None:
        score = exact_match(answers, self.wanted)
        known = float(np.mean([" ".join(a.split()) in self.words for a in answers]))
        self.study.scores[setting][self.task.name].append((score, known))

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
        listed = [Query(r.image, f"{r.question} One of: {', '.join(words)}.") for r in self.test]
        for method in s.methods:
            if method not in NO_RECORDS:
                continue
            queries = model.prepare(listed) if "listed" in method else self.queries
            allowed = words if "enforced" in method else ()
            self._note(Setting(method), model.generate(queries, self.most, allowed))

    def _releases(self, name: str, draw: int, m: int) -> None:
        """One geometry: the release and the controls, at every level."""
        s, geometry, recipe = self.study.settings, self.geometries[name], GEOMETRIES[name]
        values: dict[str, list[Any]] = {"pure noise": [None] * m}
        for method, task in (("dp-mtv", self.task), ("other task", self.other)):
            if method in s.methods and task is not None:
                rows = _draw_activations(self.study, task, recipe.query, draw, m)
                values[method] = [geometry.to_release(a) for a in rows]
        for method, coordinates in values.items():
            if method not in s.methods:
                continue
            for relation, epsilon in _levels(s, method):
                if epsilon is None:
                    release = clipped_mean(
                        coordinates,
                        chunks=m,
                        clip_norms=geometry.clip_norms,
                        block_sizes=geometry.block_sizes,
                    )
                else:
                    mechanism = calibrate_for(geometry, epsilon, s.delta, relation, m)
                    release = mechanism.release(coordinates)
                vector, heads = geometry.from_release(release.value), self.study.heads[recipe.query]
                if recipe.mask_from_release:
                    heads = _mask_from_release(self.study, self.task, vector)
                level = (relation, epsilon)
                setting = self._setting(
                    method, recipe.words, recipe.query, m, len(release.value), *level
                )
                self._patched(setting, vector, heads)


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


def _rows(study: Study, name: str, command: str) -> Iterator[Row]:
    s, benchmark = study.settings, study.benchmark
    groups = {task.name: [task.name] for task in benchmark.tasks}
    several = len({task.group for task in benchmark.tasks}) > 1
    for task in benchmark.tasks:
        if task.group and several:
            groups.setdefault(f"{MEAN} of {task.group}", []).append(task.name)
    groups[MEAN] = [task.name for task in benchmark.tasks]
    best = max(
        (k for k in study.scores if k.method == "task vector"), key=lambda k: k.m or 0, default=None
    )

    def baseline(setting: Setting | None, tasks: Sequence[str]) -> float | None:
        if setting not in study.scores:
            return None
        return float(np.mean([np.mean(study.scores[setting][t], axis=0)[0] for t in tasks]))

    for setting, by_task in list(study.scores.items()):
        for place, tasks in groups.items():
            columns = [t for t in tasks if by_task[t]]
            if not columns:
                continue
            values, known = np.mean([by_task[t] for t in columns], axis=0).T
            zero, high = baseline(Setting("zero-shot"), columns), baseline(best, columns)
            yield {
                "table": f"benchmark, patched {s.patch}",
                "task": place,
                "method": setting.method,
                "geometry": setting.geometry,
                "relation": setting.relation,
                "epsilon": setting.epsilon,
                "delta": None if setting.epsilon is None else s.delta,
                "records": setting.records,
                "m": setting.m,
                "K": setting.K,
                "coordinates": setting.coordinates,
                "draws": len(values),
                "n_test": s.n_test,
                "mean": float(np.mean(values)),
                "se": float(np.std(values, ddof=1) / np.sqrt(len(values)))
                if len(values) > 1
                else None,
                "gain": _gain(float(np.mean(values)), zero, high),
                "chance": float(np.mean([1 / len(study.words[t]) for t in columns])),
                "in_words": float(np.mean(known)),
                "metric": EXACT_MATCH,
                "model": name,
                "prompt": study.model.prompt_template_sha256[:12],
                "command": command,
                "private": setting.epsilon is not None
                or setting.method in (*NO_RECORDS, "pure noise"),
            }


def _gain(value: float, low: float | None, high: float | None) -> float | None:
    """(x − zero-shot) / (vector without noise − zero-shot), on the same tasks."""
    if low is None or high is None or high <= low:
        return None
    return (value - low) / (high - low)


def evaluate_vector(
    model: VisionLanguageModel,
    vector: TaskVector,
    test: Sequence[Demonstration],
    *,
    command: str,
) -> list[Row]:
    """Two rows: zero-shot, and with the vector. Using a vector costs no further privacy.

    Args:
        model: the model the vector was made for.
        vector: the released vector.
        test: queries with wanted answers.
        command: what reproduces the rows.
    """
    queries = model.prepare([r.query for r in test])
    wanted = [r.accepted or r.answer for r in test]
    zero = exact_match(model.generate(queries), wanted)
    with vector.applied(model):
        patched = exact_match(model.generate(queries), wanted)
    privacy = vector.certificate.privacy
    noiseless = privacy.delta is None
    common = {
        "table": "vector",
        "task": "test file",
        "draws": 1,
        "n_test": len(test),
        "se": None,
        "gain": None,
        "chance": None,
        "in_words": None,
        "metric": EXACT_MATCH,
        "model": model.identity.id or model.identity.architecture,
        "prompt": model.prompt_template_sha256[:12],
        "command": command,
    }
    absent = dict.fromkeys(("geometry", "relation", "epsilon", "delta", "records", "m"))
    return [
        {**common, **absent, "method": "zero-shot", "K": 0, "coordinates": 0}
        | {"mean": zero, "private": True},
        {
            **common,
            "method": "task vector" if noiseless else "dp-mtv",
            "geometry": None,
            "relation": None if noiseless else str(privacy.relation),
            "epsilon": None if noiseless else privacy.epsilon,
            "delta": privacy.delta,
            "records": privacy.chunks * (privacy.shots + (privacy.query == "private")),
            "m": privacy.chunks,
            "K": privacy.shots,
            "coordinates": sum(privacy.block_sizes),
            "mean": patched,
            "private": not noiseless,
        },
    ]
