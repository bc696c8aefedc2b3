"""Measure every method on a benchmark, on the same records, prompts and code.

Everything here runs on public benchmark files. Draws on private data would be releases of their
own and are not offered.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmtv.data.partition import partition
from dpmtv.data.prompts import chunk_prompt
from dpmtv.errors import DataError
from dpmtv.evaluation.metrics import EXACT_MATCH, exact_match
from dpmtv.models.extraction import chunk_activations
from dpmtv.models.synthetic import public_records
from dpmtv.pipeline import (
    SEARCH_STEPS,
    SHOTS,
    PublicTask,
    calibrate_for,
    public_tasks,
    release_geometry,
    select_heads,
)
from dpmtv.privacy.mechanisms import clipped_mean
from dpmtv.types import Prompt, Query

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jaxtyping import Float

    from dpmtv.artifact import TaskVector
    from dpmtv.evaluation.benchmark import Benchmark, BenchmarkTask
    from dpmtv.models.adapters import VisionLanguageModel
    from dpmtv.pipeline import PatchMode, Progress
    from dpmtv.types import Demonstration

    Row = dict[str, Any]

SELECTED = "selected heads, clip per layer"
UNCLIPPED = "selected heads, no clip"
ALL_HEADS = "all heads, clip per layer, public mask"
PAPER = "all heads, clip per layer, mask from the release"
GEOMETRIES = {"selected": SELECTED, "all-heads": ALL_HEADS, "paper": PAPER}
# The second three know the task's true answer words, which are taken to be public: listed in the
# question, or alone allowed in decoding, or both. The last two should stay near zero-shot.
METHODS = (
    *("zero-shot", "in-context", "task vector", "dp-mtv"),
    *("words listed", "words enforced", "words listed and enforced"),
    *("other task", "pure noise"),
)
_KNOWN_WORDS = METHODS[4:7]
_CONTROLS = METHODS[7:]
_NO_RECORDS = ("zero-shot", *_KNOWN_WORDS)
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
RELATIONS = ("replace_one", "zero_out")
MEAN = "mean"  # task column of a row over all tasks; "mean of GROUP" for those of a group
FORMATIONS = 5  # times that the records of a task are cut into chunks


@dataclass(frozen=True)
class Settings:
    """What is measured. Sizes are public choices.

    Args:
        methods: of METHODS.
        geometries: of GEOMETRIES, for "dp-mtv" and the controls.
        relations: neighbour relations.
        epsilons: privacy levels; None for the clipped mean without noise.
        delta: δ of each release.
        chunks: values of m; each setting is measured at every one.
        shots: K.
        draws: repetitions, each with its own choice of chunks and its own noise.
        n_test: queries a task.
        patch: patch mode.
        search_steps: steps of each head search.
    """

    methods: tuple[str, ...] = METHODS[:4]
    geometries: tuple[str, ...] = ("selected", "all-heads")
    relations: tuple[str, ...] = RELATIONS
    epsilons: tuple[float | None, ...] = (*EPSILONS, None)
    delta: float = 1e-5
    chunks: tuple[int, ...] = (100,)
    shots: int = SHOTS
    draws: int = 20
    n_test: int = 100
    patch: PatchMode = "every-step"
    search_steps: int = SEARCH_STEPS


@dataclass(frozen=True)
class Setting:
    """What one group of scores has in common; the columns of a result row that name it."""

    method: str
    geometry: str | None = None
    relation: str | None = None
    epsilon: float | None = None
    coordinates: int = 0
    m: int | None = None


@dataclass
class Study:
    """Public knowledge and all scores so far; rows() turns it into result rows."""

    model: VisionLanguageModel
    benchmark: Benchmark
    settings: Settings
    heads: np.ndarray
    public: list[PublicTask]
    scores: dict[Setting, dict[str, list[tuple[float, float]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )  # exact match, and share of answers that are one of the task's wanted ones
    words: dict[str, list[str]] = field(default_factory=dict)  # the wanted answers of each task
    pools: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)


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
    records, synthetic = public_records(model, benchmark.public, settings.shots, progress)
    public = public_tasks(model, records or [], settings.shots, progress)
    heads = select_heads(
        model, public, settings.patch, settings.search_steps, progress, check=synthetic
    ).heads
    study = Study(model, benchmark, settings, heads, public)
    total = settings.draws * len(benchmark.tasks)
    for place, task in enumerate(benchmark.tasks):
        measure = _Measure(study, task)
        for draw in range(settings.draws):
            measure.draw(draw)
            progress("draws", place * settings.draws + draw + 1, total)
    return list(_rows(study, name, command)), heads


def chunk_pool(
    model: VisionLanguageModel, task: BenchmarkTask, size: int, shots: int, formation: int = 0
) -> Float[np.ndarray, "chunks coordinates"]:
    """Activations of ``size`` disjoint chunks, without clip or noise: NOT PRIVATE.

    Args:
        model: the model.
        task: whose records are cut.
        size: number of chunks.
        shots: K.
        formation: which of many ways to cut.

    Raises:
        DataError: too few records, or an image that cannot be read.
    """
    slots = partition(len(task.private), size, shots + 1, b"formation %d" % formation)
    prompts = [chunk_prompt([task.private[i] for i in chunk]) for chunk in slots]
    rows = [a for a in chunk_activations(model, prompts) if a is not None]
    if len(rows) < size:
        raise DataError(f"{task.name}: an image cannot be read")
    return np.stack(rows)


def _draw_activations(study: Study, task: BenchmarkTask, draw: int, m: int) -> np.ndarray:
    """Take m chunks at random out of one of the formations; a chunk's pass serves several draws."""
    s, key = study.settings, (task.name, draw % FORMATIONS)
    if key not in study.pools:
        full, draws_each = len(task.private) // (s.shots + 1), -(-s.draws // FORMATIONS)
        size = max(max(s.chunks), min(full, draws_each * max(s.chunks)))
        study.pools[key] = chunk_pool(study.model, task, size, s.shots, key[1])
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
        geometries = {
            name: release_geometry(
                model,
                study.heads if name == "selected" else np.ones_like(study.heads),
                study.public,
            )
            for name in study.settings.geometries
        }
        self.geometries = geometries

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
            self._note(Setting("in-context"), model.generate(model.prepare(prompts), self.most))
        if {"task vector", "dp-mtv", *_CONTROLS}.isdisjoint(s.methods):
            return
        for m in s.chunks:
            chunks = _draw_activations(self.study, self.task, draw, m)
            if "task vector" in s.methods:
                size = int(model.layout.coordinates(self.study.heads).sum())
                setting = Setting("task vector", UNCLIPPED, coordinates=size, m=m)
                self._patched(setting, chunks.mean(0), self.study.heads)
            for name in s.geometries:
                self._releases(name, chunks, draw, m)

    def _without_records(self) -> None:
        """Zero-shot, and its variants that know the answer words."""
        s, model = self.study.settings, self.study.model
        words = self.words
        listed = [Query(r.image, f"{r.question} One of: {', '.join(words)}.") for r in self.test]
        for method in s.methods:
            if method not in _NO_RECORDS:
                continue
            queries = model.prepare(listed) if "listed" in method else self.queries
            allowed = words if "enforced" in method else ()
            self._note(Setting(method), model.generate(queries, self.most, allowed))

    def _releases(self, name: str, chunks: np.ndarray, draw: int, m: int) -> None:
        """One geometry: the release and the controls, at every level."""
        s, geometry = self.study.settings, self.geometries[name]
        values: dict[str, list[Any]] = {
            "dp-mtv": [geometry.to_release(a) for a in chunks],
            "pure noise": [None] * m,
        }
        if self.other is not None and "other task" in s.methods:
            rows = _draw_activations(self.study, self.other, draw, m)
            values["other task"] = [geometry.to_release(a) for a in rows]
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
                vector, heads = geometry.from_release(release.value), self.study.heads
                if name == "paper":
                    heads = _mask_from_release(self.study, self.task, vector)
                size = len(release.value)
                setting = Setting(method, GEOMETRIES[name], relation or None, epsilon, size, m)
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
    best_m = max(s.chunks)
    best = next((k for k in study.scores if k.method == "task vector" and k.m == best_m), None)

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
                "records": _records(setting, s),
                "m": setting.m,
                "K": 0 if setting.method in _NO_RECORDS else s.shots,
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
                or setting.method in (*_NO_RECORDS, "pure noise"),
            }


def _records(setting: Setting, s: Settings) -> int:
    """Records that play the private role in one answer."""
    if setting.method in (*_NO_RECORDS, "pure noise"):
        return 0
    return s.shots if setting.m is None else setting.m * (s.shots + 1)


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
            "records": privacy.chunks * (privacy.shots + 1),
            "m": privacy.chunks,
            "K": privacy.shots,
            "coordinates": sum(privacy.block_sizes),
            "mean": patched,
            "private": not noiseless,
        },
    ]
