"""What is known before and between the draws of a measurement: public work, chunks, scores."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from dpmtv.data.demonstrations import require_good
from dpmtv.data.partition import partition
from dpmtv.errors import DataError
from dpmtv.evaluation.benchmark import asked_of
from dpmtv.evaluation.settings import GEOMETRIES, Recipe, Setting, Settings
from dpmtv.models.synthetic import public_records
from dpmtv.pipeline import relative_noise, weight_steps
from dpmtv.public_tasks import (
    PublicTask,
    public_queries,
    public_tasks,
    public_values,
    release_geometry,
    select_heads,
)
from dpmtv.types import BoundedRangeEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float

    from dpmtv.evaluation.benchmark import Benchmark, BenchmarkTask
    from dpmtv.geometry import ReleaseGeometry
    from dpmtv.models.adapters import VisionLanguageModel
    from dpmtv.models.atoms import Shown
    from dpmtv.options import QueryMode
    from dpmtv.public_tasks import Progress
    from dpmtv.types import Demonstration

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
    # by task, number and size of its chunks, query and formation
    pools: dict[tuple[str, int, int, QueryMode, int], np.ndarray] = field(default_factory=dict)
    geometries: dict[tuple[str, float | None, float], ReleaseGeometry] = field(
        default_factory=dict
    )  # by recipe, noise to come and clip factor
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
        key = (name, noise, self.settings.clip_factor)
        if key not in self.geometries:
            heads = self.heads[recipe.query]
            found = release_geometry(
                self.model,
                heads if recipe.selected else np.ones_like(heads),
                self.public[recipe.query],
                per_layer=recipe.per_layer,
                noise=noise,
                patch=self.settings.patch,
                steps=weight_steps(self.settings.search_steps),
            )
            norms = tuple(c * self.settings.clip_factor for c in found.clip_norms)
            self.geometries[key] = replace(found, clip_norms=norms)
        return self.geometries[key]


PublicWork = dict[tuple["QueryMode", int], tuple[list[PublicTask], np.ndarray]]  # by query and K


def prepare(
    model: VisionLanguageModel,
    benchmark: Benchmark,
    settings: Settings,
    queries: Sequence[QueryMode] | None = None,
    known: PublicWork | None = None,
    progress: Progress = lambda _what, _done, _total: None,
) -> Study:
    """What public records give, before anything is measured: activations and head masks.

    Args:
        model: the model.
        benchmark: its tasks.
        settings: what will be measured.
        queries: how the chunks end for which it is needed; by default as ``settings`` say.
        known: what was found before on the same records, with the same steps and patch mode; what
            is found is added.
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
    known = {} if known is None else known
    study = Study(model, benchmark, settings, records, {}, {})
    for query in dict.fromkeys(
        [GEOMETRIES[name].query for name in settings.geometries] if queries is None else queries
    ):
        key = (query, settings.k(query))
        if key not in known:
            tasks = public_tasks(model, records, key[1], query == "private", progress)
            steps = settings.search_steps
            found = select_heads(model, tasks, settings.patch, steps, progress, check)
            known[key] = tasks, found.heads
        study.public[query], study.heads[query] = known[key]
    return study


def picks(recipe: Recipe, epsilon: float) -> tuple[BoundedRangeEvent, ...]:
    """What a recipe chooses privately beside the release."""
    return (BoundedRangeEvent(recipe.choice * epsilon, 1),) if recipe.choice else ()


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
        public: where public queries come from; a task's few questions are taken as public.
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
        queries = public_queries(public, asked_of(task))
    slots = partition(len(task.private), chunks, size, _formation_key(formation))
    rows = [[task.private[i] for i in chunk] for chunk in slots]
    return public_values(model, rows, queries)


def draw_activations(
    study: Study, task: BenchmarkTask, query: QueryMode, draw: int, m: int
) -> np.ndarray:
    """Take m chunks at random out of one of the formations; a chunk's pass serves several draws."""
    size = study.settings.size(query)
    chunks, formations = pool_size(study.settings, len(task.private), query)
    formation = draw % formations
    key = (task.name, chunks, size, query, formation)
    if key not in study.pools:
        study.pools[key] = chunk_pool(
            study.model, study.records, task, chunks, size, query, formation
        )
    return study.pools[key][list(partition(chunks, 1, m, draw_key(draw))[0])]


def draw_records(
    s: Settings, task: BenchmarkTask, query: QueryMode, draw: int, m: int
) -> list[int]:
    """The records of the chunks that `draw_activations` takes, by their place."""
    chunks, formations = pool_size(s, len(task.private), query)
    key = _formation_key(draw % formations)
    slots = partition(len(task.private), chunks, s.size(query), key)
    return [i for c in partition(chunks, 1, m, draw_key(draw))[0] for i in slots[c]]


def pool_size(s: Settings, records: int, query: QueryMode) -> tuple[int, int]:
    """How many chunks are cut for the draws to choose from, and in how many ways."""
    size = s.size(query)
    formations = FORMATIONS if size > 1 else 1
    most = max(s.sizes(query))
    return max(most, min(records // size, -(-s.draws // formations) * most)), formations


def _formation_key(formation: int) -> bytes:
    return b"formation %d" % formation


def draw_key(draw: int) -> bytes:
    """What decides the chunks of a draw."""
    # Benchmark records are public: a fixed key lets everybody draw the same ones.
    return b"draw %d" % draw
