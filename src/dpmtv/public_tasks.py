"""What public records are for: queries, heads, clip norms and a centre. All of it is free."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dpmtv.data.demonstrations import require_good
from dpmtv.data.partition import partition
from dpmtv.data.prompts import chunk_prompt
from dpmtv.errors import DataError
from dpmtv.geometry import ReleaseGeometry, geometry_from_public, released_sizes
from dpmtv.head_selection import Selection, reinforce
from dpmtv.models.extraction import chunk_activations, public_activations
from dpmtv.models.head_weights import learn_head_weights
from dpmtv.models.mask_loss import MaskLoss
from dpmtv.types import Demonstration, Prompt, Query

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxtyping import Bool, Float

    from dpmtv.data.demonstrations import BadRow
    from dpmtv.models.adapters import VisionLanguageModel
    from dpmtv.models.synthetic import SyntheticPublic

    Progress = Callable[[str, int, int], None]

SEARCH_STEPS, WEIGHT_STEPS = 200, 120
# × the public median norm: of a layer, of all released heads together, and with learned gains;
# the last two matter little (docs/results.md, "Tried and left out")
LAYER_CLIP_FACTOR, CLIP_FACTOR, DIRECTION_CLIP_FACTOR = 1.5, 0.5, 0.3
# What is learned on a few rules serves those and harms others: of four colour rules, two taught and
# two tried, 61 % were right, and 96 % without (docs/plan.md has the command).
LEAST_TASKS = 8
QUERIES = 4  # public ones that a chunk is asked and averaged over
_SCORING_SHARE = 1 / 3  # of each public task's records, kept apart to score head masks


@dataclass(frozen=True)
class PublicTask:
    """One public answer rule: its mean activations, and held-out records to score masks on."""

    vector: Float[np.ndarray, " coordinates"]
    activations: Float[np.ndarray, "chunks coordinates"]
    scoring: list[Demonstration]


def public_queries(
    public: Sequence[Demonstration], asked: Sequence[str], count: int = QUERIES
) -> list[Query]:
    """Public images with public questions, for the end of every private chunk's prompt.

    Without them a chunk spends one of its records on its query, as in the paper; with them every
    record is a demonstration, and may be a chunk of its own.

    Args:
        public: records whose answers are not looked at.
        asked: the questions that the vector will be asked, if they are known. Records with these
            questions come first; if there are none, other images are asked them.
        count: how many, or as many as there are records.
    """
    order = partition(len(public), 1, len(public), b"public queries")[0]
    shuffled = [public[i] for i in order]
    wanted = {" ".join(question.split()) for question in asked}
    same = [r for r in shuffled if not asked or " ".join(r.question.split()) in wanted]
    if same:
        return [r.query for r in same[:count]]
    return [
        Query(record.image, asked[place % len(asked)])
        for place, record in enumerate(shuffled[:count])
    ]


def chunk_values(
    model: VisionLanguageModel,
    rows: Sequence[Demonstration | BadRow],
    queries: Sequence[Query] = (),
) -> Float[np.ndarray, " coordinates"] | None:
    """One chunk's activations: of its only prompt, or the mean over its public queries.

    *Guarantee.* A function of the chunk's rows and of public values; None, the null chunk, if
    one of its passes fails.
    """
    prompts = [chunk_prompt(rows, query) for query in queries or (None,)]
    found = list(chunk_activations(model, prompts))
    good = [values for values in found if values is not None]
    if len(good) < len(found):
        return None
    return good[0] if len(good) == 1 else np.mean(good, axis=0)


def public_values(
    model: VisionLanguageModel,
    chunks: Sequence[Sequence[Demonstration]],
    queries: Sequence[Query] = (),
) -> Float[np.ndarray, "chunks coordinates"]:
    """As `chunk_values`, many in a pass: for public records alone.

    Raises:
        DataError: an image cannot be read.
    """
    prompts = [chunk_prompt(rows, query) for rows in chunks for query in queries or (None,)]
    if not all(prompts):
        raise DataError("a public chunk needs a demonstration and a query")
    found = public_activations(model, [p for p in prompts if p is not None])
    means: Float[np.ndarray, "chunks coordinates"]
    means = found.reshape(len(chunks), -1, model.layout.size).mean(1)
    return means


def public_chunks(records: int, size: int) -> tuple[int, int]:
    """Of so many records of a rule: how many are kept apart, and chunks of the others."""
    apart = max(1, int(records * _SCORING_SHARE))
    return apart, (records - apart) // size


def public_tasks(
    model: VisionLanguageModel,
    public: Sequence[Demonstration | BadRow],
    shots: int,
    private_query: bool,
    progress: Progress = lambda _what, _done, _total: None,
) -> list[PublicTask]:
    """Mean activations of each public answer rule, and records kept apart to score masks.

    Chunks are formed as the private ones will be; where these have public queries, the records
    kept apart give the queries here.

    Raises:
        DataError: a bad row, or a rule with too few records.
    """
    rules: dict[str | None, list[Demonstration]] = {}
    for record in require_good(public, "the public file"):
        rules.setdefault(record.task, []).append(record)
    tasks = []
    size = shots + private_query
    for done, records in enumerate(rules.values(), 1):
        apart, chunks = public_chunks(len(records), size)
        if chunks < 1:
            raise DataError(
                f"a public answer rule has {len(records)} records; {shots} shots need at least "
                f"{size + 1} a rule"
            )
        order = partition(len(records), 1, len(records), b"public")[0]
        shuffled = [records[i] for i in order]
        scoring = shuffled[-apart:]
        queries = () if private_query else [r.query for r in scoring[:QUERIES]]
        rows = [shuffled[c * size : (c + 1) * size] for c in range(chunks)]
        activations = public_values(model, rows, queries)
        tasks.append(PublicTask(activations.mean(0), activations, scoring))
        progress("public chunks", done, len(rules))
    return tasks


def select_heads(
    model: VisionLanguageModel,
    tasks: Sequence[PublicTask],
    patch: str,
    steps: int = SEARCH_STEPS,
    progress: Progress = lambda _what, _done, _total: None,
    check: SyntheticPublic | None = None,
) -> Selection:
    """Search a head mask that makes public zero-shot prompts give their answers.

    Every held-out public record is asked with its own rule's vector patched in: a public one, or
    the released one. With ``check`` the mask is tried on records that the search did not see.

    Raises:
        ModelError: the check was not passed.
    """
    loss = scoring_loss(model, tasks, patch)
    search = partial(
        reinforce,
        loss,
        model.layout.n_heads,
        steps=steps,
        progress=lambda done, total: progress("head search", done, total),
    )
    if check is None:
        return search()
    vectors = [task.vector for task in tasks]
    return check.search(model, vectors, patch, lambda seed: search(seed=seed), progress)


def scoring_loss(model: VisionLanguageModel, tasks: Sequence[PublicTask], patch: str) -> MaskLoss:
    """Zero-shot prompts of every held-out public record, with its rule's vector to patch in."""
    examples = [(q, task.vector) for task in tasks for q in task.scoring]
    return MaskLoss(
        model,
        prompts=[Prompt((), q.query) for q, _ in examples],
        answers=[q.answer for q, _ in examples],
        vectors=[vector for _, vector in examples],
        patch=patch,
    )


def release_geometry(
    model: VisionLanguageModel,
    heads: Bool[np.ndarray, " heads"],
    tasks: Sequence[PublicTask],
    *,
    clip: float | None = None,
    per_layer: bool = False,
    noise: float | None = None,
    patch: str = "every-step",
    steps: int = WEIGHT_STEPS,
    progress: Progress = lambda _what, _done, _total: None,
) -> ReleaseGeometry:
    """Released heads with what public records say of them.

    Args:
        model: the model.
        heads: the released ones.
        tasks: public tasks; may be empty where ``clip`` is given.
        clip: one clip norm instead of public ones, and nothing else learned.
        per_layer: a clip norm a layer, as in the paper, instead of one for all.
        noise: standard deviation to come, in units of a single clip norm, for which weights and
            gains of the heads are learned, about the mean of the public tasks. No weights and no
            centre if it is None, or there are fewer than `LEAST_TASKS` tasks.
        patch: as at inference.
        steps: of learning them.
        progress: called with (what, done, total).
    """
    if clip is not None:
        blocks = len(released_sizes(model.layout, heads)) if per_layer else 1
        return ReleaseGeometry(model.layout, heads, (float(clip),) * blocks)
    activations = np.concatenate([task.activations for task in tasks])
    if noise is None or per_layer or len(tasks) < LEAST_TASKS:
        factor = LAYER_CLIP_FACTOR if per_layer else CLIP_FACTOR
        return geometry_from_public(model.layout, heads, activations, factor, per_layer=per_layer)
    centre = np.mean([task.activations.mean(0) for task in tasks], axis=0)
    learned = learn_head_weights(
        scoring_loss(model, tasks, patch),
        model.layout,
        heads,
        centre,
        [task.activations for task in tasks for _ in task.scoring],
        noise,
        steps=steps,
        progress=lambda done, total: progress("head weights", done, total),
    )
    # Far below the median: nearly every chunk is cut to the same length, and what is released is
    # the mean direction. The gains make up for it.
    return geometry_from_public(
        model.layout,
        heads,
        activations,
        DIRECTION_CLIP_FACTOR,
        centre=centre,
        weights=learned.weights,
        gains=learned.gains / DIRECTION_CLIP_FACTOR,
    )
