"""Measure every method on a benchmark, on the same records, prompts and code.

Everything here runs on public benchmark files. Draws on private data would be releases of their
own and are not offered.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmtv.data.partition import partition
from dpmtv.data.prompts import chunk_prompt
from dpmtv.errors import DataError
from dpmtv.evaluation.metrics import EXACT_MATCH, exact_match
from dpmtv.models.extraction import chunk_activations
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
from dpmtv.types import Prompt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jaxtyping import Float

    from dpmtv.artifact import TaskVector
    from dpmtv.evaluation.benchmark import Benchmark, BenchmarkTask
    from dpmtv.models.adapters import PreparedQueries, VisionLanguageModel
    from dpmtv.pipeline import PatchMode, Progress
    from dpmtv.types import Demonstration

    Row = dict[str, Any]

SELECTED = "selected heads, clip per layer"
UNCLIPPED = "selected heads, no clip"
ALL_HEADS = "all heads, clip per layer, public mask"
PAPER = "all heads, clip per layer, mask from the release"
GEOMETRIES = {"selected": SELECTED, "all-heads": ALL_HEADS, "paper": PAPER}
METHODS = ("zero-shot", "in-context", "task vector", "dp-mtv", "other task", "pure noise")
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
RELATIONS = ("replace_one", "zero_out")


@dataclass(frozen=True)
class Settings:
    """What is measured. Sizes are public choices.

    Args:
        methods: of METHODS; the last two are controls that should stay near zero-shot.
        geometries: of GEOMETRIES, for "dp-mtv" and the controls.
        relations: neighbour relations.
        epsilons: privacy levels; None for the clipped mean without noise.
        delta: δ of each release.
        chunks: m.
        shots: K.
        draws: repetitions, each with its own records and its own noise.
        n_test: queries a task.
        patch: patch mode.
        search_steps: steps of each head search.
    """

    methods: tuple[str, ...] = METHODS[:4]
    geometries: tuple[str, ...] = ("selected", "all-heads")
    relations: tuple[str, ...] = RELATIONS
    epsilons: tuple[float | None, ...] = (*EPSILONS, None)
    delta: float = 1e-5
    chunks: int = 100
    shots: int = SHOTS
    draws: int = 20
    n_test: int = 100
    patch: PatchMode = "every-step"
    search_steps: int = SEARCH_STEPS


@dataclass
class Study:
    """Public knowledge and all scores so far; rows() turns it into result rows."""

    model: VisionLanguageModel
    settings: Settings
    heads: np.ndarray
    public: list[PublicTask]
    scores: dict[tuple[Any, ...], dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )


def evaluate_benchmark(
    model: VisionLanguageModel,
    benchmark: Benchmark,
    settings: Settings,
    *,
    name: str,
    command: str,
    progress: Progress = lambda _what, _done, _total: None,
) -> tuple[list[Row], np.ndarray]:
    """Result rows, one a task and one for the mean of the tasks; and the public head mask.

    Args:
        model: the model.
        benchmark: its tasks.
        settings: what is measured.
        name: model name for the rows.
        command: what reproduces the rows.
        progress: called with (what, done, total).

    Raises:
        DataError: a task has too few records.
    """
    public = public_tasks(model, benchmark.public, settings.shots, progress)
    heads = select_heads(model, public, settings.patch, settings.search_steps, progress).heads
    study = Study(model, settings, heads, public)
    for task in benchmark.tasks:
        if len(task.test) < settings.n_test:
            raise DataError(f"{task.name} has {len(task.test)} test records, not {settings.n_test}")
    queries = {
        task.name: model.prepare([r.query for r in task.test[: settings.n_test]])
        for task in benchmark.tasks
    }
    total = settings.draws * len(benchmark.tasks)
    for draw in range(settings.draws):
        activations = {t.name: draw_activations(model, t, settings, draw) for t in benchmark.tasks}
        for place, task in enumerate(benchmark.tasks):
            wrong = _disjoint_task(task, benchmark)
            other = activations[wrong.name] if wrong else None
            _measure_task(study, task, queries[task.name], activations[task.name], other, draw)
            progress("draws", draw * len(benchmark.tasks) + place + 1, total)
    return list(_rows(study, benchmark, name, command)), heads


def draw_activations(
    model: VisionLanguageModel, task: BenchmarkTask, s: Settings, draw: int
) -> Float[np.ndarray, "chunks coordinates"]:
    """Chunk activations of one draw's records, without clip or noise: NOT PRIVATE.

    Raises:
        DataError: too few records, or an image that cannot be read.
    """
    slots = partition(len(task.private), s.chunks, s.shots + 1, _draw_key(draw))
    prompts = [chunk_prompt([task.private[i] for i in chunk]) for chunk in slots]
    rows = [a for a in chunk_activations(model, prompts) if a is not None]
    if len(rows) < s.chunks:
        raise DataError(f"{task.name}: an image cannot be read")
    return np.stack(rows)


def _draw_key(draw: int) -> bytes:
    # Benchmark records are public: a fixed key lets everybody draw the same ones.
    return b"draw %d" % draw


def _measure_task(
    study: Study,
    task: BenchmarkTask,
    queries: PreparedQueries,
    chunks: np.ndarray,
    other: np.ndarray | None,
    draw: int,
) -> None:
    s, model = study.settings, study.model
    wanted = [r.answer for r in task.test[: s.n_test]]
    most = _longest(model, task.test[: s.n_test])

    key: tuple[Any, ...]

    def score(key: tuple[Any, ...], vector: np.ndarray | None, heads: np.ndarray) -> None:
        patch = (
            contextlib.nullcontext() if vector is None else model.patched(vector, heads, s.patch)
        )
        with patch:
            answers = model.generate(queries, most)
        study.scores[key][task.name].append(exact_match(answers, wanted))

    if "zero-shot" in s.methods and draw == 0:
        score(("zero-shot", None, None, None, 0), None, study.heads)
    if "in-context" in s.methods:
        prompts = _in_context(task, s, draw)
        answers = model.generate(model.prepare(prompts), most)
        key = ("in-context", None, None, None, 0)
        study.scores[key][task.name].append(exact_match(answers, wanted))
    if "task vector" in s.methods:
        size = int(model.layout.coordinates(study.heads).sum())
        score(("task vector", UNCLIPPED, None, None, size), chunks.mean(0), study.heads)
    for geometry_name in s.geometries:
        released = study.heads if geometry_name == "selected" else np.ones_like(study.heads)
        geometry = release_geometry(model, released, study.public)
        coordinates = [geometry.to_release(a) for a in chunks]
        controls: dict[str, list[Any]] = {"dp-mtv": coordinates}
        controls["pure noise"] = [None] * s.chunks
        if other is not None:
            controls["other task"] = [geometry.to_release(a) for a in other]
        for method, values in controls.items():
            if method not in s.methods:
                continue
            for relation, epsilon in _levels(s, method):
                release = (
                    clipped_mean(
                        values,
                        chunks=s.chunks,
                        clip_norms=geometry.clip_norms,
                        block_sizes=geometry.block_sizes,
                    )
                    if epsilon is None
                    else calibrate_for(geometry, epsilon, s.delta, relation, s.chunks).release(
                        values
                    )
                )
                vector, heads = geometry.from_release(release.value), study.heads
                if geometry_name == "paper":
                    heads = _mask_from_release(study, task, vector)
                label = GEOMETRIES[geometry_name]
                key = (method, label, relation or None, epsilon, len(release.value))
                score(key, vector, heads)


def _longest(model: VisionLanguageModel, test: Sequence[Demonstration]) -> int:
    """Two tokens more than any wanted answer: whatever goes on longer is wrong already."""
    return 2 + max(len(model.answer_ids(Prompt((), r.query), r.answer)) for r in test)


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


def _rows(study: Study, benchmark: Benchmark, name: str, command: str) -> Iterator[Row]:
    s = study.settings
    tasks = [t.name for t in benchmark.tasks]

    def mean(key: tuple[Any, ...], task: str) -> float | None:
        return float(np.mean(study.scores[key][task])) if key in study.scores else None

    zero_key = ("zero-shot", None, None, None, 0)
    best_key = next((k for k in study.scores if k[0] == "task vector"), zero_key)
    for key, by_task in list(study.scores.items()):
        method, geometry, relation, epsilon, coordinates = key
        columns = [t for t in tasks if by_task[t]]
        per_draw = np.mean([by_task[t] for t in columns], axis=0)
        everything = {**{t: np.asarray(by_task[t]) for t in columns}, "mean": per_draw}
        for task, values in everything.items():
            of = [task] if task != "mean" else columns
            zero = [mean(zero_key, t) for t in of]
            best = [mean(best_key, t) for t in of]
            yield {
                "table": f"benchmark, patched {s.patch}",
                "task": task,
                "method": method,
                "geometry": geometry,
                "relation": relation,
                "epsilon": epsilon,
                "delta": None if epsilon is None else s.delta,
                "records": _records(method, s),
                "m": None if method in ("zero-shot", "in-context") else s.chunks,
                "K": 0 if method == "zero-shot" else s.shots,
                "coordinates": coordinates,
                "draws": len(values),
                "n_test": s.n_test,
                "mean": float(np.mean(values)),
                "se": float(np.std(values, ddof=1) / np.sqrt(len(values)))
                if len(values) > 1
                else None,
                "gain": _gain(float(np.mean(values)), zero, best),
                "metric": EXACT_MATCH,
                "model": name,
                "prompt": study.model.prompt_template_sha256[:12],
                "command": command,
                "private": epsilon is not None or method in ("zero-shot", "pure noise"),
            }


def _records(method: str, s: Settings) -> int:
    """Records that play the private role in one answer."""
    none = method in ("zero-shot", "pure noise")
    return 0 if none else s.shots if method == "in-context" else s.chunks * (s.shots + 1)


def _gain(value: float, zero: list[float | None], best: list[float | None]) -> float | None:
    """(x − zero-shot) / (vector without noise − zero-shot), on the same tasks."""
    if None in zero or None in best:
        return None
    low, high = float(np.mean(zero)), float(np.mean(best))  # type: ignore[arg-type]
    return None if high <= low else (value - low) / (high - low)


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
    wanted = [r.answer for r in test]
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
