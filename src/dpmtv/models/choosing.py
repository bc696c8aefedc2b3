"""Private choice of a vector: which one makes the private records' questions give their answers?"""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dpmtv.errors import LedgerError
from dpmtv.models.atoms import candidate_vectors
from dpmtv.models.extraction import private_pass
from dpmtv.models.mask_loss import answered_right
from dpmtv.privacy.choice import clipped_scores, exponential_mechanism
from dpmtv.types import Demonstration, Prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxtyping import Bool, Float

    from dpmtv.data.demonstrations import BadRow
    from dpmtv.geometry import ReleaseGeometry
    from dpmtv.models.adapters import VisionLanguageModel
    from dpmtv.models.atoms import Shown
    from dpmtv.models.mask_loss import MaskLoss
    from dpmtv.privacy.choice import Choice
    from dpmtv.types import BoundedRangeEvent, Query

    Progress = Callable[[str, int, int], None]


def choose_decoded(
    model: VisionLanguageModel,
    geometry: ReleaseGeometry,
    release: Float[np.ndarray, " released"],
    sigma: float,
    heads: Bool[np.ndarray, " heads"],
    chunks: Sequence[Sequence[Demonstration | BadRow]],
    pick: BoundedRangeEvent,
    *,
    public: Sequence[Demonstration],
    queries: Sequence[Query],
    asked: Sequence[str],
    patch: str,
    charge: Callable[[BoundedRangeEvent], None] | None,
    progress: Progress,
) -> Float[np.ndarray, " coordinates"]:
    """The release as it is, or one that it decodes to: what answers more private records.

    *Guarantee.* One pick of `choose_vector` among functions of the release and of public values.
    If the decoding or the ledger fails, which no record decides, the release is taken as it is,
    with a warning that names no cause: it is paid for, and must not be lost. A device that is lost
    while records are asked stops the build: to go on without the choice would tell of them.

    Args:
        model: the frozen model.
        geometry: of the release.
        release: the released value.
        sigma: standard deviation of its noise on each coordinate.
        heads: the head mask.
        chunks: the rows of each.
        pick: the event that the choice may cost.
        public: see `candidate_vectors`, and for the rest.
        queries: see there.
        asked: see there.
        patch: as at inference.
        charge: books the event before the draw; raises to refuse.
        progress: called with (what, done, total).
    """
    try:
        options = candidate_vectors(
            *(model, geometry, release, sigma, heads, public, queries, asked),
            patch=patch,
            progress=progress,
        )
    except Exception:  # of the release and public values alone
        return _as_it_is(geometry, release)
    try:
        found = choose_vector(model, options, heads, chunks, pick.range, patch, charge, progress)
    except LedgerError:
        return _as_it_is(geometry, release)
    chosen: Float[np.ndarray, " coordinates"] = options[found.index]
    return chosen


def _as_it_is(
    geometry: ReleaseGeometry, release: Float[np.ndarray, " released"]
) -> Float[np.ndarray, " coordinates"]:
    warnings.warn("the private choice failed: the vector is the release as it is", stacklevel=3)
    return geometry.from_release(release)


def choose_decoded_public(
    model: VisionLanguageModel,
    geometry: ReleaseGeometry,
    release: Float[np.ndarray, " released"],
    sigma: float,
    heads: Bool[np.ndarray, " heads"],
    records: MaskLoss,
    drawn: Sequence[int],
    range_: float,
    *,
    public: Sequence[Demonstration],
    queries: Sequence[Query],
    asked: Sequence[str],
    shown: Shown,
) -> Float[np.ndarray, " coordinates"]:
    """What `choose_decoded` takes where public records play the private ones.

    Their passes may be kept from draw to draw, which a build must not do, and what fails is
    raised.

    Args:
        model: the frozen model.
        geometry: of the release.
        release: the released value.
        sigma: standard deviation of its noise on each coordinate.
        heads: the head mask.
        records: zero-shot prompts of public records, and their answers.
        drawn: the place there of each chunk's first record; empty for chunks of noise alone.
        range_: E of the pick.
        public: see `candidate_vectors`, and for the rest.
        queries: see there.
        asked: see there.
        shown: see there.

    Raises:
        DataError: an image cannot be read.
    """
    options = candidate_vectors(
        *(model, geometry, release, sigma, heads, public, queries, asked),
        patch=records.patch,
        shown=shown,
    )
    scores = np.zeros((len(drawn), len(options)))
    if len(options) > 1 and len(drawn):
        once, places = np.unique(drawn, return_inverse=True)
        scores = np.stack([records.right(options, heads, i) for i in once])[places].astype(float)
    chosen: Float[np.ndarray, " coordinates"] = options[_most_right(scores, range_, None).index]
    return chosen


def _most_right(
    scores: Float[np.ndarray, "chunks options"],
    range_: float,
    charge: Callable[[BoundedRangeEvent], None] | None,
) -> Choice:
    sums = clipped_scores(scores, bound=1.0, levels=1)
    return exponential_mechanism(sums, sensitivity=1, range_=range_, charge=charge)


def choose_vector(
    model: VisionLanguageModel,
    vectors: Float[np.ndarray, "options coordinates"],
    heads: Bool[np.ndarray, " heads"],
    chunks: Sequence[Sequence[Demonstration | BadRow]],
    range_: float,
    patch: str = "every-step",
    charge: Callable[[BoundedRangeEvent], None] | None = None,
    progress: Progress = lambda _what, _done, _total: None,
) -> Choice:
    """Pick one of several vectors by the exponential mechanism: the one that answers most right.

    A chunk's score for a vector is 1 if its first good record, asked zero-shot with the vector
    patched in, gets exactly its answer, and 0 if not.

    Guarantee:
        The pick is ``range_``-bounded-range in one unit (Theorem 14 of docs/privacy.md with
        Δ = 1). Chunk j's scores are a function of its own rows and of ``vectors``, whatever else
        is in the file: chunks are never batched together, though one chunk's options are. A unit
        has rows in one chunk only. So replaced, added, removed or zeroed out it changes the
        scores of one chunk, from whole numbers in {0, 1} to others, and each sum by at most 1.
        The scores are not monotone: a replaced record may raise one and lower another, and so
        may an added one that takes another's place in a full chunk. Nothing but the pick is
        returned, and nothing is told of what fails.

    ==============================================  =================================
    case                                            what happens
    ==============================================  =================================
    no good row, a broken image, a failing pass     0 for all options, in silence
    an answer with other words, or more of them     not right
    ``charge`` raises                               nothing is drawn
    ==============================================  =================================

    Args:
        model: the frozen model.
        vectors: the options: functions of public and released values alone.
        heads: the head mask of all.
        chunks: the rows of each; their number is public.
        range_: E of the pick.
        patch: as at inference.
        charge: books the event before the draw; raises to refuse.
        progress: called with (what, done, total).

    Raises:
        PrivacyParameterError: a range that cannot be used.
        ModelError: the device is lost.
    """
    scores = np.zeros((len(chunks), len(vectors)))
    # How many options there are is a function of public and released values.
    for place, rows in enumerate(chunks if len(vectors) > 1 else ()):
        found = private_pass(model, partial(first_right, model, rows, vectors, heads, patch))
        if found is not None:
            scores[place] = found
        progress("private choice", place + 1, len(chunks))
    return _most_right(scores, range_, charge)


def first_right(
    model: VisionLanguageModel,
    rows: Sequence[Demonstration | BadRow],
    vectors: Float[np.ndarray, "#options coordinates"],
    heads: Bool[np.ndarray, "*#options heads"],
    patch: str,
) -> Bool[np.ndarray, " options"]:
    """Whether a chunk's first good record is answered exactly, zero-shot; see `answered_right`."""
    record = next(row for row in rows if isinstance(row, Demonstration))
    prompt = Prompt((), record.query)
    answer = model.answer_ids(prompt, record.answer)
    return answered_right(model, prompt, answer, vectors, heads, patch)
