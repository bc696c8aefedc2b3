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
from typing import TYPE_CHECKING, get_args

import numpy as np
from PIL import Image

from dpmtv.artifact import TaskVector, tensor_bytes
from dpmtv.data.chunks import form_chunks, rows_of_units, units_in_a_chunk
from dpmtv.data.demonstrations import BadRow, require_good
from dpmtv.data.fingerprints import record_digests
from dpmtv.data.formats import data_file
from dpmtv.data.partition import fresh_key
from dpmtv.data.work import open_work, records_sha256, write_report
from dpmtv.errors import InternalError, LedgerError, PrivacyParameterError
from dpmtv.geometry import ReleaseGeometry
from dpmtv.models.choosing import choose_decoded
from dpmtv.models.extraction import preflight, private_pass
from dpmtv.models.synthetic import public_records
from dpmtv.options import (
    NONE,
    SHOTS,
    PatchMode,
    check_options,
    clip_source,
    default_picks,
    picks_of,
    public_size,
    relation_of,
)
from dpmtv.privacy import certificate as certificates
from dpmtv.privacy import ledger as ledgers
from dpmtv.privacy import ledger_records
from dpmtv.privacy.accounting import check_delta, gdp_mu
from dpmtv.privacy.mechanisms import GaussianMean, calibrate
from dpmtv.privacy.sensitivity import NeighbourRelation
from dpmtv.private_choices import (
    PrivateVotes,
    made_up_geometry,
    made_up_queries,
    plan_choices,
)
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
from dpmtv.types import Demonstration, HeadLayout, Query

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dpmtv.models.adapters import VisionLanguageModel
    from dpmtv.options import PrivateClip, PublicWord, QueryMode, SelectionMode
    from dpmtv.public_tasks import Progress
    from dpmtv.types import Event, GaussianEvent


def build_task_vector(
    model: VisionLanguageModel,
    data: Sequence[Demonstration | BadRow],
    *,
    epsilon: float,
    delta: float,
    public: Sequence[Demonstration | BadRow] | PublicWord | None = None,
    relation: str = NeighbourRelation.REPLACE_ONE,
    unit: str | None = None,
    per_unit: int = 1,
    population: int | None = None,
    selection: SelectionMode | None = None,
    selection_epsilon: float | None = None,
    query: QueryMode | None = None,
    asked: Sequence[str] = (),
    chunks: int | None = None,
    shots: int | None = None,
    clip: float | PrivateClip | None = None,
    clip_epsilon: float | None = None,
    per_layer: bool = False,
    choice: float | None = None,
    patch: PatchMode = "every-step",
    alpha: float = 1.0,
    search_steps: int = SEARCH_STEPS,
    allow_large_delta: bool = False,
    ledger: Path | str | None = None,
    part: str = "",
    files: Sequence[Path | str] = (),
    ignore_ledgers: bool = False,
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
    another ledger knows a record   refused before any pass
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
            (:mod:`dpmtv.models.synthetic`). ``"none"`` does without: heads are chosen privately,
            queries and clip norm come from a grey picture.
        relation: ``"replace_one"``; ``"add_remove"``, which needs units with ids; or
            ``"zero_out"``, the paper's.
        unit: what the rows' ``unit`` values name (a field such as "patient"); it stands on the
            certificate. None protects single records.
        per_unit: most records of a unit that serve; a chunk takes as few units as fill it.
        population: a public number that stands for n under ``"add_remove"``.
        selection: ``"public"`` selects heads first, patching public vectors, and releases only
            those; ``"private"`` lets the private records choose among bands of layers by the
            exponential mechanism, and then releases these; ``"released"`` (the paper) releases
            every head and then selects by patching the released vector; ``"all"`` releases and
            patches every head. By default public, or private with ``public="none"``.
        selection_epsilon: the part of ε for a private selection, the range of its pick; a tenth of
            ε by default.
        query: ``"public"`` ends every chunk's prompt with public questions about public images
            (the mean over a few of them counts), so that every record is a demonstration and
            may be a chunk alone; ``"private"`` (the paper) with one more record of the chunk.
            By default public where there are public records.
        asked: the questions that the vector will be asked, if they are few and public. Public
            queries ask them; otherwise they are any of the public records'.
        chunks: m; by default as many as the records fill.
        shots: K demonstrations a chunk: 1 by default with public queries, 4 with private ones.
        clip: one clip norm, in place of public ones; ``"private"`` picks one near the private
            median by the exponential mechanism.
        clip_epsilon: the part of ε for a private clip norm; a tenth of ε by default.
        per_layer: clip layer by layer, as the paper does, and not all released heads together.
        choice: the part of ε, as the range E of an exponential mechanism, that goes into a private
            choice among the release as it is and what it decodes to (`candidate_vectors`). By
            default a fifth of ε with one demonstration a chunk, and heads, queries and one clip
            norm from public records. With 0 there is none.
        patch: patch at the prompt's last token alone, or at every decoding step too.
        alpha: patch strength.
        search_steps: steps of the head search; learning the heads' weights takes 3 for 5 of them.
        allow_large_delta: permit δ ≥ 1/n, but not of a declared population.
        ledger: file of the budget book that is charged before the noise is drawn; made, with
            this build's ε and δ as its total, if there is none.
        part: the ledger's group of units that these rows belong to.
        files: where the rows were read from. Ledgers that lie beside them, or know any of the
            records, and are not this one, refuse the build.
        ignore_ledgers: build although they might; the certificate says so.
        work: a new folder for what an interrupted build needs; the same one to go on. Deleted on
            success.
        report: file for the operator, with bad rows and null chunks: as private as the records.
        progress: called with (what, done, total).

    Raises:
        UserError: see the table.
    """
    relation = relation_of(relation)
    query = query or ("private" if public is None else "public")
    shots = SHOTS[query] if shots is None else shots
    selection = selection or ("private" if public == NONE else "public")
    check_options(data, public, selection, query, shots, clip, per_layer)
    plan = plan_choices(selection, clip, epsilon, selection_epsilon, clip_epsilon)
    number = clip if isinstance(clip, int | float) else None
    learned = (
        selection.startswith(("public", "private"))
        and (query, clip, per_layer) == ("public", None, False)
        and public != NONE
    )
    if choice is None:
        decoding = default_picks(epsilon, shots) if learned else ()
    else:
        decoding = picks_of(choice, epsilon, learned)
    inference = _inference(model, patch, alpha)
    units = rows_of_units(data, unit is not None)
    n = public_size(len(units), relation, unit, population, per_unit)
    check_delta(delta, n, allow_large_delta and population is None)
    size = shots + (query == "private")
    if chunks is None:
        chunks = max(1, n // units_in_a_chunk(size, per_unit))
    plan.check(chunks)
    beside = (*plan.events, *decoding)
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
    # Refuses an epsilon, delta or clip that cannot be met, before any work is done. Where heads or
    # clip norm are chosen privately, σ/Δ₂ is this one's, whatever is chosen.
    wanted = calibrate(
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        chunks=chunks,
        clip_norms=(1.0 if number is None else number,),
        block_sizes=(layout.size,),
        beside=beside,
    )
    book = None
    if ledger is not None and Path(ledger).exists():
        book = ledgers.open(ledger)
        book.check(wanted.events, relation=relation, unit=unit, part=part)
    places = [Path(path) for named in files for path in (named, data_file(named))]
    digests = record_digests(data) if files or ledger is not None else []
    others = ledger_records.look(digests, book, places, ignore_ledgers)
    preflight(model, shots)

    needed = selection != "all" or clip is None or query == "public"
    used, check = public_records(model, public if needed else None, shots, progress)
    known = require_good(used or (), "the public file")
    queries = []
    if query == "public":
        queries = made_up_queries(asked) if public == NONE else public_queries(known, asked)
    tasks = public_tasks(model, known, shots, query == "private", progress) if known else []
    made_up = None
    if public == NONE and number is None:
        made_up = made_up_geometry(model, shots, queries)

    def geometry_of(heads: np.ndarray) -> ReleaseGeometry:
        if made_up is not None:
            return made_up(heads)
        return release_geometry(
            model,
            heads,
            tasks,
            clip=number,
            per_layer=per_layer,
            noise=wanted.event.sigma if learned else None,
            patch=patch,
            steps=weight_steps(search_steps),
            progress=progress,
        )

    votes = None
    if plan.any:
        votes = PrivateVotes(model, plan, queries, patch)
        votes.preflight(shots)
    heads = every_head
    if selection == "public":
        heads = select_heads(model, tasks, patch, search_steps, progress, check=check).heads
    geometry = None if votes else geometry_of(heads)
    calibrated = partial(
        calibrate_for,
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        chunks=chunks,
        beside=beside,
    )
    mechanism = calibrated(geometry) if geometry else wanted

    book_id = None
    with contextlib.ExitStack() as stack:
        kept = None
        if work is not None:
            decides = [
                [records_sha256(data), str(relation), unit, per_unit, chunks, shots],
                [_hash_records(queries), str(model.identity)],
                [inference.prompt_template_sha256, inference.dtype, patch],
                [geometry.sha256 if geometry else "private", model.instruction],
            ]
            kept = stack.enter_context(open_work(Path(work), decides))
        members = form(key=kept.key if kept else fresh_key())
        null: list[int] = []
        if report is not None:  # a file that cannot be written must not cost the budget
            write_report(Path(report), data, members, null)

        def coordinates_of(rows: Sequence[Demonstration | BadRow]) -> np.ndarray | None:
            found = chunk_values(model, rows, queries)
            return None if found is None or geometry is None else geometry.to_release(found)

        def each_chunk() -> Iterator[np.ndarray | None]:
            """Of each chunk its coordinates, or where it votes activations and votes."""
            for place, rows in enumerate(members):
                done, values = kept.load(place) if kept else (False, None)
                if not done:
                    if votes:
                        values = votes.of(rows)
                    else:
                        values = private_pass(model, partial(coordinates_of, rows))
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
            ledger_records.note(digests, book, places)
            # Another build may have begun meanwhile.
            ledger_records.look(digests, book, places, ignore_ledgers)
        charge = paid.charge if paid else None

        def stated(mechanism: GaussianMean, geometry: ReleaseGeometry) -> certificates.Privacy:
            return certificates.privacy_of(
                mechanism,
                unit=unit,
                per_unit=per_unit,
                population=population,
                ledger=book_id,
                other_ledgers=others,
                shots=shots,
                query=query,
                queries_sha256=_hash_records(queries) if queries else None,
                clip_source=clip_source(clip, public),
                released_heads=[np.flatnonzero(p).tolist() for p in layout.split(geometry.heads)],
                geometry_sha256=geometry.sha256,
            )

        booked = mechanism.event
        coordinates: Iterable[np.ndarray | None] = each_chunk()
        whole = ReleaseGeometry(layout, every_head, wanted.clip_norms)
        # Refuses what no certificate can say, before anything is paid.
        privacy = stated(mechanism, geometry or whole)
        chosen_by = certificates.Selection(selection, _hash_records(known) if known else None)
        if votes:
            heads, geometry, coordinates = votes.choose(coordinates, heads, geometry_of, charge)
            mechanism = calibrated(geometry, largest=layout.size)
            privacy = stated(mechanism, geometry)
        assert geometry is not None
        release = mechanism.release(coordinates, partial(_pay, charge, booked))
        # The vector is paid for: what cannot be done or written now must not lose it.
        values = geometry.from_release(release.value)
        if decoding:
            values = choose_decoded(
                model,
                geometry,
                release.value,
                mechanism.event.sigma,
                heads,
                members,
                decoding[0],
                public=known,
                queries=queries,
                asked=asked,
                patch=patch,
                charge=charge,
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
    certificate = certificates.Certificate(
        product_version=version("dpmtv"),
        created=datetime.now(UTC).date(),
        model=model.identity,
        tensor_sha256=hashlib.sha256(tensor_bytes(values, heads)).hexdigest(),
        privacy=privacy,
        selection=chosen_by,
        inference=inference,
    )
    return TaskVector(values, heads, certificate)


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
    beside: Sequence[Event] = (),
) -> float:
    """Standard deviation of a released coordinate's noise, in units of a single clip norm."""
    whole = ReleaseGeometry(layout, np.ones(layout.n_heads, dtype=bool), (1.0,))
    return calibrate_for(whole, epsilon, delta, relation, chunks, beside).event.sigma


def calibrate_for(
    geometry: ReleaseGeometry,
    epsilon: float,
    delta: float,
    relation: str,
    chunks: int,
    beside: Sequence[Event] = (),
    largest: int = 0,
) -> GaussianMean:
    """The Gaussian mechanism of a geometry, with room for what is beside it (see `calibrate`)."""
    return calibrate(
        epsilon=epsilon,
        delta=delta,
        relation=relation_of(relation),
        chunks=chunks,
        clip_norms=geometry.clip_norms,
        block_sizes=geometry.block_sizes,
        beside=beside,
        largest=largest,
    )


def _pay(
    charge: Callable[[Event], None] | None, booked: GaussianEvent, event: GaussianEvent
) -> None:
    """Charge what was booked before private choices decided the clip norm and the heads."""
    dearer = gdp_mu(event) > gdp_mu(booked) * (1 + 1e-12) or event.d > booked.d
    if dearer or event.scale != booked.scale:
        raise InternalError("the release costs more than what was booked for it")
    if charge is not None:
        charge(booked)


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
