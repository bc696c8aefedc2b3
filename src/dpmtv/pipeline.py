"""The whole method: private records → chunks → activations → one noised mean → task vector."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from dpmtv.artifact import TaskVector, tensor_bytes
from dpmtv.data.demonstrations import BadRow, require_good
from dpmtv.data.partition import fresh_key, partition
from dpmtv.data.prompts import chunk_prompt
from dpmtv.errors import DataError, PrivacyParameterError
from dpmtv.geometry import ReleaseGeometry, geometry_from_public, geometry_with_clip
from dpmtv.head_selection import Selection, reinforce
from dpmtv.models.extraction import chunk_activations, preflight
from dpmtv.models.mask_loss import MaskLoss
from dpmtv.privacy import certificate as certificates
from dpmtv.privacy.accounting import check_delta
from dpmtv.privacy.mechanisms import GaussianMean, calibrate
from dpmtv.privacy.sensitivity import NeighbourRelation
from dpmtv.types import Demonstration, Prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jaxtyping import Bool, Float

    from dpmtv.models.adapters import VisionLanguageModel

    Progress = Callable[[str, int, int], None]

SelectionMode = Literal["public", "released", "all"]
PatchMode = Literal["prompt", "every-step"]

SHOTS = 4
SEARCH_STEPS = 200
CLIP_FACTOR = 1.5  # × the public median norm of a layer; measured in docs/results.md
_LARGEST_CLIP = 1e30  # activations and released values are 32-bit
_QUERY_SHARE = 1 / 3  # of each public task's records, kept apart to score head masks


@dataclass(frozen=True)
class PublicTask:
    """One public answer rule: its mean activations, and held-out records to score masks on."""

    vector: Float[np.ndarray, " coordinates"]
    activations: Float[np.ndarray, "chunks coordinates"]
    queries: list[Demonstration]


def build_task_vector(
    model: VisionLanguageModel,
    data: Sequence[Demonstration | BadRow],
    *,
    epsilon: float,
    delta: float,
    public: Sequence[Demonstration | BadRow] | None = None,
    relation: str = NeighbourRelation.REPLACE_ONE,
    selection: SelectionMode = "public",
    chunks: int | None = None,
    shots: int = SHOTS,
    clip: float | None = None,
    patch: PatchMode = "every-step",
    alpha: float = 1.0,
    search_steps: int = SEARCH_STEPS,
    allow_large_delta: bool = False,
    progress: Progress = lambda _what, _done, _total: None,
) -> TaskVector:
    """Turn private records into a task vector with an (ε, δ) guarantee per record.

    DP-MTV (Ngong, Reza and Near 2026, arXiv 2603.04894): disjoint chunks, one prompt per chunk,
    the heads' outputs at the last token clipped, averaged and noised once. docs/method.md lists
    where we differ.

    *Guarantee:* this one vector is (epsilon, delta)-differentially private under ``relation``;
    another build from the same records adds its own ε and δ.

    ==============================  =========================================================
    case                            what happens
    ==============================  =========================================================
    a private row or image is bad   its chunk works with what it has, or counts as zero;
                                    nothing stops and nothing is printed
    the model fails on every chunk  a synthetic chunk shows it before private data are touched
    ε ≤ 0, δ ≥ 1/n, too few rows    refused before any pass
    ==============================  =========================================================

    Args:
        model: the frozen model.
        data: private rows in their slots; their number n is public.
        epsilon: ε > 0.
        delta: δ below 1/n.
        public: public records that select heads and clip norms. With ``task`` values each is an
            answer rule of its own. For ``selection="released"`` they should be answered by the
            private rule, as the paper assumes.
        relation: ``"replace_one"``, or ``"zero_out"``, the paper's.
        selection: ``"public"`` selects heads first, patching public vectors, and releases only
            those; ``"released"`` (the paper) releases every head and then selects by patching
            the released vector; ``"all"`` releases and patches every head.
        chunks: m; by default as many as the records fill.
        shots: K demonstrations a chunk; its query is one more private record.
        clip: one clip norm for every layer, in place of public ones.
        patch: patch at the prompt's last token alone, or at every decoding step too.
        alpha: patch strength.
        search_steps: steps of the head search.
        allow_large_delta: permit δ ≥ 1/n.
        progress: called with (what, done, total).

    Raises:
        UserError: see the table.
    """
    relation = _relation(relation)
    _check_options(data, public, selection, shots, clip)
    inference = _inference(model, patch, alpha)
    n = len(data)
    check_delta(delta, n, allow_large_delta)
    chunks = chunks if chunks is not None else max(1, n // (shots + 1))
    slots = partition(n, chunks, shots + 1, fresh_key())
    layout = model.layout
    every_head = np.ones(layout.n_heads, dtype=bool)
    calibrate(  # refuses an epsilon, delta or clip that cannot be met before any work is done
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        chunks=chunks,
        clip_norms=(1.0 if clip is None else clip,),
        block_sizes=(layout.size,),
    )
    preflight(model, shots)

    used = public if selection != "all" or clip is None else None
    tasks = public_tasks(model, used, shots, progress) if used is not None else []
    heads = (
        select_heads(model, tasks, patch, search_steps, progress).heads
        if selection == "public"
        else every_head
    )
    geometry = release_geometry(model, heads, tasks, clip)
    mechanism = calibrate_for(geometry, epsilon, delta, relation, chunks)

    def released_coordinates() -> Iterator[np.ndarray | None]:
        prompts = (chunk_prompt([data[slot] for slot in chunk]) for chunk in slots)
        for done, values in enumerate(chunk_activations(model, prompts), 1):
            progress("private chunks", done, chunks)
            yield None if values is None else geometry.to_release(values)

    release = mechanism.release(released_coordinates())
    values = geometry.from_release(release.value).astype(np.float32)
    if selection == "released":
        seen = [PublicTask(values, t.activations, t.queries) for t in tasks]
        heads = select_heads(model, seen, patch, search_steps, progress).heads
    privacy = certificates.privacy_of(
        mechanism,
        shots=shots,
        query="private",
        clip_source="public" if clip is None else "option",
        released_heads=[np.flatnonzero(part).tolist() for part in layout.split(geometry.heads)],
    )
    source = None if used is None else _hash_records(require_good(used, "the public file"))
    certificate = certificates.Certificate(
        product_version=version("dpmtv"),
        created=datetime.now(UTC).date(),
        model=model.identity,
        tensor_sha256=hashlib.sha256(tensor_bytes(values, heads)).hexdigest(),
        privacy=privacy,
        selection=certificates.Selection(selection, source),
        inference=inference,
    )
    return TaskVector(values, heads, certificate)


def _check_options(
    data: Sequence[Demonstration | BadRow],
    public: Sequence[Demonstration | BadRow] | None,
    selection: SelectionMode,
    shots: int,
    clip: float | None,
) -> None:
    """Refuse options that cannot work, before anything is read or drawn."""
    if selection not in get_args(SelectionMode):
        raise PrivacyParameterError(
            f"selection must be one of {', '.join(get_args(SelectionMode))}"
        )
    if public is data:
        raise PrivacyParameterError("the private records were given as the public ones too")
    if public is None and (selection != "all" or clip is None):
        raise PrivacyParameterError(
            "heads and clip norms come from public records: give some, or a clip norm and "
            'selection="all"'
        )
    if shots < 1:
        raise PrivacyParameterError("a chunk needs at least one demonstration (shots)")
    if clip is not None and not clip < _LARGEST_CLIP:
        raise PrivacyParameterError("the clip norm is too large for 32-bit activations")


def _inference(
    model: VisionLanguageModel, patch: PatchMode, alpha: float
) -> certificates.Inference:
    """How the vector will be used; made first, so that a bad option costs no release."""
    if patch not in get_args(PatchMode):
        raise PrivacyParameterError(f"patch must be one of {', '.join(get_args(PatchMode))}")
    if not 0 < alpha <= 1:
        raise PrivacyParameterError("alpha must be above 0 and at most 1")
    return certificates.Inference(
        patch=patch,
        alpha=float(alpha),
        prompt_template_sha256=model.prompt_template_sha256,
        answer_instruction=model.instruction,
        dtype=model.dtype,
    )


def public_tasks(
    model: VisionLanguageModel,
    public: Sequence[Demonstration | BadRow],
    shots: int,
    progress: Progress = lambda _what, _done, _total: None,
) -> list[PublicTask]:
    """Mean activations of each public answer rule, and records kept apart to score masks.

    Raises:
        DataError: a bad row, or a rule with too few records.
    """
    rules: dict[str | None, list[Demonstration]] = {}
    for record in require_good(public, "the public file"):
        rules.setdefault(record.task, []).append(record)
    tasks = []
    for done, records in enumerate(rules.values(), 1):
        queries = max(1, int(len(records) * _QUERY_SHARE))
        chunks = (len(records) - queries) // (shots + 1)
        if chunks < 1:
            raise DataError(
                f"a public answer rule has {len(records)} records; {shots} shots need at least "
                f"{shots + 2} a rule"
            )
        order = partition(len(records), 1, len(records), b"public")[0]
        shuffled = [records[i] for i in order]
        size = shots + 1
        prompts = [chunk_prompt(shuffled[c * size : (c + 1) * size]) for c in range(chunks)]
        seen = [a for a in chunk_activations(model, prompts) if a is not None]
        if len(seen) < chunks:
            raise DataError("an image or prompt of the public file cannot be used")
        activations = np.stack(seen)
        tasks.append(PublicTask(activations.mean(0), activations, shuffled[-queries:]))
        progress("public chunks", done, len(rules))
    return tasks


def select_heads(
    model: VisionLanguageModel,
    tasks: Sequence[PublicTask],
    patch: PatchMode,
    steps: int = SEARCH_STEPS,
    progress: Progress = lambda _what, _done, _total: None,
    seed: int = 0,
) -> Selection:
    """Search a head mask that makes public zero-shot prompts give their answers.

    Every held-out public record is asked with its own rule's vector patched in: a public one, or
    the released one.
    """
    examples = [(q, task.vector) for task in tasks for q in task.queries]
    loss = MaskLoss(
        model,
        prompts=[Prompt((), q.query) for q, _ in examples],
        answers=[q.answer for q, _ in examples],
        vectors=[vector for _, vector in examples],
        patch=patch,
    )
    return reinforce(
        loss,
        model.layout.n_heads,
        steps=steps,
        seed=seed,
        progress=lambda done, total: progress("head search", done, total),
    )


def release_geometry(
    model: VisionLanguageModel,
    heads: Bool[np.ndarray, " heads"],
    tasks: Sequence[PublicTask],
    clip: float | None = None,
) -> ReleaseGeometry:
    """Released heads with per-layer clip norms: the given one, or public medians × a factor."""
    if clip is not None:
        return geometry_with_clip(model.layout, heads, clip)
    activations = np.concatenate([task.activations for task in tasks])
    return geometry_from_public(model.layout, heads, activations, CLIP_FACTOR)


def calibrate_for(
    geometry: ReleaseGeometry, epsilon: float, delta: float, relation: str, chunks: int
) -> GaussianMean:
    """The Gaussian mechanism of a geometry."""
    return calibrate(
        epsilon=epsilon,
        delta=delta,
        relation=_relation(relation),
        chunks=chunks,
        clip_norms=geometry.clip_norms,
        block_sizes=geometry.block_sizes,
    )


def _relation(name: str) -> NeighbourRelation:
    try:
        return NeighbourRelation(name)
    except ValueError:
        known = ", ".join(NeighbourRelation)
        raise PrivacyParameterError(f"unknown neighbour relation; choose one of {known}") from None


def _hash_records(records: Sequence[Demonstration]) -> str:
    """Names the public records on the certificate: texts and image bytes, no paths."""
    digest = hashlib.sha256()
    for record in records:
        text = json.dumps([record.question, record.answer, record.task], ensure_ascii=False)
        digest.update(text.encode() + b"\0")
        if isinstance(record.image, str | Path):
            digest.update(hashlib.sha256(Path(record.image).read_bytes()).digest())
        else:
            digest.update(record.image.tobytes())
    return digest.hexdigest()
