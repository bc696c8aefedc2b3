"""The whole method: private records → chunks → activations → one noised mean → task vector."""

from __future__ import annotations

import contextlib
import hashlib
import json
import warnings
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from PIL import Image

from dpmtv.artifact import TaskVector, tensor_bytes
from dpmtv.data.chunks import form_chunks, rows_of_units, units_in_a_chunk
from dpmtv.data.demonstrations import BadRow, require_good
from dpmtv.data.partition import fresh_key
from dpmtv.data.synthetic import SYNTHETIC
from dpmtv.data.work import open_work, records_sha256, write_report
from dpmtv.errors import LedgerError, PrivacyParameterError
from dpmtv.geometry import ReleaseGeometry
from dpmtv.models.choosing import choose_decoded
from dpmtv.models.extraction import preflight
from dpmtv.models.synthetic import public_records
from dpmtv.privacy import certificate as certificates
from dpmtv.privacy import ledger as ledgers
from dpmtv.privacy.accounting import check_delta
from dpmtv.privacy.mechanisms import GaussianMean, calibrate
from dpmtv.privacy.sensitivity import NeighbourRelation
from dpmtv.public_tasks import (
    SEARCH_STEPS,
    WEIGHT_STEPS,
    PublicTask,
    chunk_values,
    public_queries,
    public_tasks,
    release_geometry,
    select_heads,
)
from dpmtv.types import BoundedRangeEvent, Demonstration, HeadLayout, Query

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dpmtv.models.adapters import VisionLanguageModel
    from dpmtv.public_tasks import Progress

SelectionMode = Literal["public", "released", "all"]
QueryMode = Literal["public", "private"]
PatchMode = Literal["prompt", "every-step"]

SHOTS = {"public": 1, "private": 4}
CHOICE_SHARE = 0.2  # of ε: 8.6 % more noise at (1, 1e-5); not tuned
_LARGEST_CLIP = 1e30  # activations and released values are 32-bit


def build_task_vector(
    model: VisionLanguageModel,
    data: Sequence[Demonstration | BadRow],
    *,
    epsilon: float,
    delta: float,
    public: Sequence[Demonstration | BadRow] | Literal["synthetic"] | None = None,
    relation: str = NeighbourRelation.REPLACE_ONE,
    unit: str | None = None,
    per_unit: int = 1,
    population: int | None = None,
    selection: SelectionMode = "public",
    query: QueryMode | None = None,
    asked: Sequence[str] = (),
    chunks: int | None = None,
    shots: int | None = None,
    clip: float | None = None,
    per_layer: bool = False,
    choice: float | None = None,
    patch: PatchMode = "every-step",
    alpha: float = 1.0,
    search_steps: int = SEARCH_STEPS,
    allow_large_delta: bool = False,
    ledger: Path | str | None = None,
    part: str = "",
    work: Path | str | None = None,
    report: Path | str | None = None,
    progress: Progress = lambda _what, _done, _total: None,
) -> TaskVector:
    """Turn private records into a task vector with an (ε, δ) guarantee per record or person.

    DP-MTV (Ngong, Reza and Near 2026, arXiv 2603.04894): disjoint chunks, one prompt per chunk,
    the heads' outputs at the last token clipped, averaged and noised once. docs/method.md lists
    where we differ; the paper's own release is ``selection="released", query="private", shots=4,
    per_layer=True``.

    *Guarantee:* this one vector is (epsilon, delta)-differentially private under ``relation`` for
    one record, or for all records of one unit if ``unit`` is named. Another build from the same
    records adds its own ε and δ, which a ledger counts.

    ==============================  =========================================================
    case                            what happens
    ==============================  =========================================================
    a private row or image is bad   its chunk works with what it has, or counts as zero;
                                    nothing stops and nothing is printed
    the model fails on every chunk  a synthetic chunk shows it before private data are touched
    ε ≤ 0, δ ≥ 1/n, too few rows    refused before any pass
    the ledger has too little left  refused before any pass
    interrupted before the charge   nothing is spent; ``work`` lets it go on
    interrupted after the charge    the budget is spent, and the vector lost
    ==============================  =========================================================

    Args:
        model: the frozen model.
        data: private rows. Each is a unit in its slot, or rows of one ``unit`` value are one. The
            number n of units is public, except under ``"add_remove"``.
        epsilon: ε > 0.
        delta: δ below 1/n.
        public: public records that select heads and clip norms. With ``task`` values each is an
            answer rule of its own. For ``selection="released"`` they should be answered by the
            private rule, as the paper assumes. ``"synthetic"`` generates them
            (:mod:`dpmtv.models.synthetic`).
        relation: ``"replace_one"``; ``"add_remove"``, which needs units with ids; or
            ``"zero_out"``, the paper's.
        unit: what the rows' ``unit`` values name (a field such as "patient"); it stands on the
            certificate. None protects single records.
        per_unit: most records of a unit that serve; a chunk takes as few units as fill it.
        population: a public number that stands for n under ``"add_remove"``.
        selection: ``"public"`` selects heads first, patching public vectors, and releases only
            those; ``"released"`` (the paper) releases every head and then selects by patching
            the released vector; ``"all"`` releases and patches every head.
        query: ``"public"`` ends every chunk's prompt with public questions about public images
            (the mean over a few of them counts), so that every record is a demonstration and
            may be a chunk alone; ``"private"`` (the paper) with one more record of the chunk.
            By default public where there are public records.
        asked: the questions that the vector will be asked, if they are few and public. Public
            queries ask them; otherwise they are any of the public records'.
        chunks: m; by default as many as the records fill.
        shots: K demonstrations a chunk: 1 by default with public queries, 4 with private ones.
        clip: one clip norm, in place of public ones.
        per_layer: clip layer by layer, as the paper does, and not all released heads together.
        choice: the part of ε, as the range E of an exponential mechanism, that goes into a private
            choice among the release as it is and what it decodes to (`candidate_vectors`). By
            default a fifth of ε with one demonstration a chunk, and heads, queries and one clip
            norm from public records. With 0 there is none.
        patch: patch at the prompt's last token alone, or at every decoding step too.
        alpha: patch strength.
        search_steps: steps of the head search; learning the heads' weights takes 3 for 5 of them.
        allow_large_delta: permit δ ≥ 1/n.
        ledger: file of the budget book that is charged before the noise is drawn; made, with
            this build's ε and δ as its total, if there is none.
        part: the ledger's group of units that these rows belong to.
        work: a new folder for what an interrupted build needs; the same one to go on. Deleted on
            success.
        report: file for the operator, with bad rows and null chunks: as private as the records.
        progress: called with (what, done, total).

    Raises:
        UserError: see the table.
    """
    relation = _relation(relation)
    query = query or ("private" if public is None else "public")
    shots = SHOTS[query] if shots is None else shots
    _check_options(data, public, selection, query, shots, clip)
    learned = selection == query == "public" and clip is None and not per_layer
    if choice is None:
        picks = default_picks(epsilon, shots) if learned else ()
    else:
        picks = _picks(choice, epsilon, learned)
    inference = _inference(model, patch, alpha)
    units = rows_of_units(data, unit is not None)
    n = public_size(len(units), relation, unit, population, per_unit)
    check_delta(delta, n, allow_large_delta)
    size = shots + (query == "private")
    if chunks is None:
        chunks = max(1, n // units_in_a_chunk(size, per_unit))
    form = partial(
        form_chunks,
        units,
        chunks=chunks,
        size=size,
        per_unit=per_unit,
        by_id=relation is NeighbourRelation.ADD_REMOVE,
    )
    form(key=b"")  # refuses sizes that do not fit
    layout = model.layout
    every_head = np.ones(layout.n_heads, dtype=bool)
    # Refuses an epsilon, delta or clip that cannot be met, before any work is done.
    wanted = calibrate(
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        chunks=chunks,
        clip_norms=(1.0 if clip is None else clip,),
        block_sizes=(layout.size,),
        beside=picks,
    )
    book = None
    if ledger is not None and Path(ledger).exists():
        book = ledgers.open(ledger)
        book.check(wanted.events, relation=relation, unit=unit, part=part)
    preflight(model, shots)

    needed = selection != "all" or clip is None or query == "public"
    used, check = public_records(model, public if needed else None, shots, progress)
    known = require_good(used or (), "the public file")
    queries = public_queries(known, asked) if query == "public" else []
    tasks = public_tasks(model, known, shots, query == "private", progress) if known else []
    heads = (
        select_heads(model, tasks, patch, search_steps, progress, check=check).heads
        if selection == "public"
        else every_head
    )
    geometry = release_geometry(
        model,
        heads,
        tasks,
        clip=clip,
        per_layer=per_layer,
        noise=wanted.event.sigma if learned else None,
        patch=patch,
        steps=weight_steps(search_steps),
        progress=progress,
    )
    mechanism = calibrate_for(geometry, epsilon, delta, relation, chunks, picks)

    book_id = None
    with contextlib.ExitStack() as stack:
        kept = None
        if work is not None:
            decides = [
                [records_sha256(data), str(relation), unit, per_unit, chunks, shots],
                [_hash_records(queries), str(model.identity)],
                [inference.prompt_template_sha256, inference.dtype],
                [geometry.sha256, model.instruction],
            ]
            kept = stack.enter_context(open_work(Path(work), decides))
        members = form(key=kept.key if kept else fresh_key())
        null: list[int] = []
        if report is not None:  # a file that cannot be written must not cost the budget
            write_report(Path(report), data, members, null)

        def coordinates() -> Iterator[np.ndarray | None]:
            for place, rows in enumerate(members):
                done, values = kept.load(place) if kept else (False, None)
                if not done:
                    found = chunk_values(model, rows, queries)
                    values = None if found is None else geometry.to_release(found)
                    if kept:
                        kept.store(place, values)
                if values is None or not np.isfinite(values).all():  # the clip makes it zero
                    null.append(place)
                progress("private chunks", place + 1, chunks)
                yield values
            if report is not None:
                write_report(Path(report), data, members, null)

        paid = None
        if ledger is not None:
            book = book or ledgers.create(
                ledger, epsilon=epsilon, delta=delta, unit=unit, relation=relation
            )
            book_id = book.id
            paid = book.reserve(mechanism.events, relation=relation, unit=unit, part=part)
            stack.enter_context(paid)
        privacy = certificates.privacy_of(  # refuses what no certificate can say, before paying
            mechanism,
            unit=unit,
            per_unit=per_unit,
            population=population,
            ledger=book_id,
            shots=shots,
            query=query,
            queries_sha256=_hash_records(queries) if queries else None,
            clip_source="public" if clip is None else "option",
            released_heads=[np.flatnonzero(p).tolist() for p in layout.split(geometry.heads)],
            geometry_sha256=geometry.sha256,
        )
        release = mechanism.release(coordinates(), charge=paid.charge if paid else None)
        # The vector is paid for: what cannot be done or written now must not lose it.
        values = geometry.from_release(release.value)
        if picks:
            values = choose_decoded(
                model,
                geometry,
                release.value,
                mechanism.event.sigma,
                heads,
                members,
                picks[0],
                public=known,
                queries=queries,
                asked=asked,
                patch=patch,
                charge=paid.charge if paid else None,
                progress=progress,
            )
        try:
            if paid:
                paid.released()
        except LedgerError:
            warnings.warn("the ledger could not note the release; it counts as lost", stacklevel=2)
        try:
            if kept:
                kept.remove()
        except OSError:
            warnings.warn(
                "the work directory could not be deleted; it holds private activations",
                stacklevel=2,
            )
    values = values.astype(np.float32)
    if selection == "released":
        seen = [PublicTask(values, t.activations, t.scoring) for t in tasks]
        heads = select_heads(model, seen, patch, search_steps, progress).heads
    source = _hash_records(known) if known else None
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


def default_picks(epsilon: float, shots: int) -> tuple[BoundedRangeEvent, ...]:
    """The private choice beside a release by the default recipe; atoms are of one demonstration."""
    return (BoundedRangeEvent(range=CHOICE_SHARE * epsilon, count=1),) if shots == 1 else ()


def _picks(choice: float, epsilon: float, learned: bool) -> tuple[BoundedRangeEvent, ...]:
    if not 0 <= choice < epsilon:
        raise PrivacyParameterError("the choice takes a part of epsilon: from 0, below epsilon")
    if choice and not learned:
        raise PrivacyParameterError(
            "the choice is among what public records decode: it needs public selection, public "
            "queries and one public clip norm"
        )
    return (BoundedRangeEvent(range=float(choice), count=1),) if choice else ()


def public_size(
    units: int, relation: NeighbourRelation, unit: str | None, population: int | None, per_unit: int
) -> int:
    """The public n: the number of units, or the declared population where that is private."""
    if unit is not None and (not unit.strip() or unit == "record"):
        raise PrivacyParameterError(
            'the unit needs a name, and "record" is what it is called without'
        )
    if relation is not NeighbourRelation.ADD_REMOVE:
        if population is not None:
            raise PrivacyParameterError(
                f"under {relation} the number of units is public and counted; a population is "
                "declared for add_remove alone"
            )
        _check_per_unit(per_unit, unit)
        return units
    if unit is None:
        raise PrivacyParameterError(
            "add_remove sends units to chunks by their ids: name the field that holds them (unit)"
        )
    if population is None or population < 1:
        raise PrivacyParameterError(
            "under add_remove the number of units is private: declare a public population, such as "
            "the number of beds, clients or licences"
        )
    _check_per_unit(per_unit, unit)
    return population


def _check_per_unit(per_unit: int, unit: str | None) -> None:
    if per_unit < 1 or (per_unit > 1 and unit is None):
        raise PrivacyParameterError("per_unit counts records of a named unit, from 1")


def _check_options(
    data: Sequence[Demonstration | BadRow],
    public: Sequence[Demonstration | BadRow] | Literal["synthetic"] | None,
    selection: SelectionMode,
    query: QueryMode,
    shots: int,
    clip: float | None,
) -> None:
    """Refuse options that cannot work, before anything is read or drawn."""
    if selection not in get_args(SelectionMode):
        raise PrivacyParameterError(
            f"selection must be one of {', '.join(get_args(SelectionMode))}"
        )
    if query not in get_args(QueryMode):
        raise PrivacyParameterError(f"query must be one of {', '.join(get_args(QueryMode))}")
    if isinstance(public, str) and (public != SYNTHETIC or selection == "released"):
        raise PrivacyParameterError(
            'public is a list of records or "synthetic"; the paper\'s selection needs records that '
            "are answered by the private rule"
        )
    if public is data:
        raise PrivacyParameterError("the private records were given as the public ones too")
    if public is None and (selection != "all" or clip is None):
        raise PrivacyParameterError(
            "heads and clip norms come from public records: give some, or a clip norm and "
            'selection="all"'
        )
    if query == "public" and not public:
        raise PrivacyParameterError(
            "public queries come from public records: give some, or ask a private record of each "
            'chunk (query="private")'
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


def weight_steps(search_steps: int) -> int:
    """Steps of learning head weights that go with so many of a head search."""
    return max(1, search_steps * WEIGHT_STEPS // SEARCH_STEPS)


def relative_noise(
    layout: HeadLayout,
    epsilon: float,
    delta: float,
    relation: str,
    chunks: int,
    picks: Sequence[BoundedRangeEvent] = (),
) -> float:
    """Standard deviation of a released coordinate's noise, in units of a single clip norm."""
    whole = ReleaseGeometry(layout, np.ones(layout.n_heads, dtype=bool), (1.0,))
    return calibrate_for(whole, epsilon, delta, relation, chunks, picks).event.sigma


def calibrate_for(
    geometry: ReleaseGeometry,
    epsilon: float,
    delta: float,
    relation: str,
    chunks: int,
    picks: Sequence[BoundedRangeEvent] = (),
) -> GaussianMean:
    """The Gaussian mechanism of a geometry, with room for picks beside it."""
    return calibrate(
        epsilon=epsilon,
        delta=delta,
        relation=_relation(relation),
        chunks=chunks,
        clip_norms=geometry.clip_norms,
        block_sizes=geometry.block_sizes,
        beside=picks,
    )


def _relation(name: str) -> NeighbourRelation:
    try:
        return NeighbourRelation(name)
    except ValueError:
        known = ", ".join(NeighbourRelation)
        raise PrivacyParameterError(f"unknown neighbour relation; choose one of {known}") from None


def _hash_records(records: Sequence[Demonstration | Query]) -> str:
    """Names public records or queries on the certificate: texts and image bytes, no paths."""
    digest = hashlib.sha256()
    for record in records:
        named: list[str | None] = [record.question]
        if isinstance(record, Demonstration):
            named += [record.answer, record.task]
        digest.update(json.dumps(named, ensure_ascii=False).encode() + b"\0")
        for image in record.images:
            if isinstance(image, str | Path):
                data = Path(image).read_bytes()
            else:
                data = image.tobytes() if isinstance(image, Image.Image) else image.read()
            digest.update(hashlib.sha256(data).digest())
    return digest.hexdigest()
