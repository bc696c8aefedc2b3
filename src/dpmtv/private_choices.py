"""Heads and clip norms chosen from the private records themselves, each choice with its event.

Nothing here averages raw activations: a chunk votes with numbers that depend on its own rows alone
and are bounded whatever they hold, and only what an exact mechanism draws from the sums comes out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from dpmtv.errors import ModelError, PrivacyParameterError
from dpmtv.geometry import ReleaseGeometry, geometry_from_public
from dpmtv.models.choosing import first_right
from dpmtv.models.extraction import private_pass, public_activations
from dpmtv.models.synthetic import answer_words
from dpmtv.privacy.choice import clipped_scores, exponential_mechanism
from dpmtv.privacy.quantile import (
    noisy_quantile,
    require_enough_for_quantile,
    spread_edges,
)
from dpmtv.public_tasks import CLIP_FACTOR, chunk_values, public_values
from dpmtv.types import BoundedRangeEvent, Demonstration, HeadLayout, Prompt, Query

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from jaxtyping import Bool, Float

    from dpmtv.data.demonstrations import BadRow
    from dpmtv.models.adapters import VisionLanguageModel
    from dpmtv.types import Event

VOTE_SHARE = 0.1  # of ε, for each; docs/results.md, "Tried and left out", has others
# × the median norm of made-up chunks, or of private ones: so short that only directions count,
# whatever that norm is worth; and × what is released, for a length of three quarters of it. Chosen
# on the unsealed tests of five tasks of the choice.
MADE_UP_CLIP_FACTOR, GAIN = 0.3, 2.5
NEUTRAL_QUESTION = "What is the answer?"
_QUERIES, MADE_UP_WORDS = 4, 8
_EDGES = 3  # factors of two to each side of the public norm


@dataclass(frozen=True)
class ChoicePlan:
    """What will be chosen privately; fixed, with its price, before a private record is read.

    Args:
        selection_range: E of the pick of the heads, or None where they are known.
        clip_range: E of the pick of the clip norm, or None where it is known.
    """

    selection_range: float | None
    clip_range: float | None

    @property
    def any(self) -> bool:
        """Whether there is a private choice at all."""
        return bool(self.events)

    @property
    def events(self) -> tuple[BoundedRangeEvent, ...]:
        """What the choices cost, in their order."""
        ranges = (self.selection_range, self.clip_range)
        return tuple(BoundedRangeEvent(float(r), 1) for r in ranges if r is not None)

    def check(self, chunks: int) -> None:
        """Refuse a choice that so few chunks could only make at random.

        Raises:
            PrivacyParameterError: too few chunks for a private clip norm.
        """
        if self.clip_range is not None:
            require_enough_for_quantile(chunks, len(spread_edges(1.0, _EDGES)) - 1, self.clip_range)


def band_masks(layout: HeadLayout) -> Bool[np.ndarray, "masks heads"]:
    """The public family of head masks: every head of some layers that follow one another.

    A quarter, half or all of the layers, from every place on a grid of a quarter of that. Where a
    task lies is mostly a matter of depth; a family of single heads would be too large for the few
    records of a private choice.
    """
    layers = np.repeat(np.arange(layout.layers), layout.heads)
    masks: dict[tuple[int, int], np.ndarray] = {}
    for share in (4, 2, 1):
        width = -(-layout.layers // share)
        starts = [*range(0, layout.layers - width, max(1, width // 4)), layout.layers - width]
        for start in starts:
            masks[start, width] = (layers >= start) & (layers < start + width)
    return np.stack(list(masks.values()))


# --- without public records ----------------------------------------------------------------


def made_up_queries(asked: Sequence[str]) -> list[Query]:
    """A grey picture with the questions that will be asked, if they are known, or a neutral one."""
    grey = Image.new("RGB", (224, 224), (128, 128, 128))
    return [Query(grey, question) for question in [*asked[:_QUERIES]] or [NEUTRAL_QUESTION]]


def bare_values(
    model: VisionLanguageModel, queries: Sequence[Query]
) -> Float[np.ndarray, " coordinates"]:
    """Mean activations of the public queries without a demonstration."""
    values: Float[np.ndarray, " coordinates"]
    values = public_activations(model, [Prompt((), query) for query in queries]).mean(0)
    return values


def made_up_geometry(
    model: VisionLanguageModel,
    shots: int,
    queries: Sequence[Query],
) -> Callable[[Bool[np.ndarray, " heads"]], ReleaseGeometry]:
    """Heads → their geometry, from demonstrations that say a frequent word of a grey picture."""
    words = answer_words(model, MADE_UP_WORDS) or ["yes"]
    chunks = [[Demonstration(q.image, q.question, w)] * shots for w in words for q in queries[:1]]
    values, bare = public_values(model, chunks, queries), bare_values(model, queries)
    gains = np.full(model.layout.n_heads, GAIN)

    def geometry_of(heads: Bool[np.ndarray, " heads"]) -> ReleaseGeometry:
        return geometry_from_public(
            model.layout, heads, values, MADE_UP_CLIP_FACTOR, centre=bare, gains=gains
        )

    for mask in band_masks(model.layout):  # what cannot be released has to show before it is picked
        geometry_of(mask)
    return geometry_of


# --- what a chunk votes with ---------------------------------------------------------------


def votes_of(
    model: VisionLanguageModel,
    rows: Sequence[Demonstration | BadRow],
    values: Float[np.ndarray, " coordinates"],
    masks: Bool[np.ndarray, "masks heads"],
    patch: str,
) -> Bool[np.ndarray, " masks"]:
    """For each mask: does the chunk's own vector, patched there, answer the chunk's first record?

    What does not carry the answer from a demonstration to a question carries no task either.
    Only the chunk itself is looked at, so no mean of raw activations is patched.
    """
    return first_right(model, rows, values[None], masks, patch)


# --- the choices ---------------------------------------------------------------------------


def choose_heads(
    votes: Float[np.ndarray, "chunks options"],
    masks: Bool[np.ndarray, "options heads"],
    range_: float,
    charge: Callable[[Event], None] | None = None,
) -> Bool[np.ndarray, " heads"]:
    """One mask of the family, by the exponential mechanism.

    Guarantee:
        A chunk's votes lie between 0 and 1, so replaced or made null it moves each sum by at most
        1: ``range_``-bounded-range, paid before the draw.

    Args:
        votes: `votes_of` each chunk; NaN for a null chunk.
        masks: of each option.
        range_: E.
        charge: books the event; raises to refuse.
    """
    sums = clipped_scores(votes, bound=1.0, levels=1)
    pick = exponential_mechanism(sums, sensitivity=1, range_=range_, charge=charge)
    return np.asarray(masks[pick.index], bool)


def choose_clip(
    norms: Float[np.ndarray, " chunks"],
    geometry: ReleaseGeometry,
    factor: float,
    range_: float,
    charge: Callable[[Event], None] | None = None,
) -> ReleaseGeometry:
    """The geometry with a private clip norm: its own, moved as the private median asks.

    Guarantee:
        `noisy_quantile`, paid before the draw.

    Args:
        norms: of the chunks' released coordinates; NaN for a null chunk.
        geometry: with a clip norm that the private one is found from.
        factor: the share of the median that it is, and is to be.
        range_: E.
        charge: books the event; raises to refuse.
    """
    edges = np.array(spread_edges(geometry.clip_norms[0] / factor, _EDGES))
    norm = noisy_quantile(norms, edges, range_=range_, charge=charge)
    return replace(geometry, clip_norms=(factor * norm,))


@dataclass(frozen=True)
class PrivateVotes:
    """Every chunk's activations and votes, and what is chosen by them. Nothing of it is kept.

    Args:
        model: the frozen model.
        plan: what is chosen.
        queries: public ones that every chunk is asked.
        patch: as at inference.
    """

    model: VisionLanguageModel
    plan: ChoicePlan
    queries: Sequence[Query]
    patch: str

    @cached_property
    def masks(self) -> Bool[np.ndarray, "options heads"]:
        """The options that a chunk votes on."""
        return band_masks(self.model.layout)

    def preflight(self, shots: int) -> None:
        """Let a made-up chunk vote, so that a broken setup shows before any budget is spent.

        Raises:
            ModelError: the model cannot be patched with so many masks.
        """
        query = self.queries[0]
        shown = Demonstration(query.image, query.question, "yes")
        try:
            seen = self._look([shown] * shots)
        except Exception as error:
            raise ModelError(
                f"a made-up chunk cannot vote on heads: {type(error).__name__}: "
                f"{str(error).strip()[:300]}"
            ) from error
        if seen is None:
            raise ModelError("a made-up chunk fails, so every private one might")

    def of(self, rows: Sequence[Demonstration | BadRow]) -> Float[np.ndarray, " numbers"] | None:
        """One chunk's activations, then its votes. None if anything goes wrong in it."""
        return private_pass(self.model, partial(self._look, rows))

    def _look(self, rows: Sequence[Demonstration | BadRow]) -> np.ndarray | None:
        values = chunk_values(self.model, rows, self.queries)
        if values is None or not np.isfinite(values).all():
            return None
        if self.plan.selection_range is None:
            return values
        cast = votes_of(self.model, rows, values, self.masks, self.patch)
        return np.concatenate([values, cast.astype(np.float64)])

    def choose(
        self,
        seen: Iterable[Float[np.ndarray, " numbers"] | None],
        heads: Bool[np.ndarray, " heads"],
        geometry_of: Callable[[Bool[np.ndarray, " heads"]], ReleaseGeometry],
        charge: Callable[[Event], None] | None = None,
    ) -> tuple[Bool[np.ndarray, " heads"], ReleaseGeometry, Iterator[np.ndarray | None]]:
        """Heads, geometry, and the chunks' coordinates as they are released.

        Args:
            seen: of every chunk, what `of` gave.
            heads: the mask where it is not chosen here.
            geometry_of: a mask's geometry from public or made-up prompts.
            charge: books each event before its draw; raises to refuse.
        """
        size, chunks = self.model.layout.size, list(seen)
        if self.plan.selection_range is not None:
            nothing = np.full(len(self.masks), np.nan)
            votes = np.stack([nothing if v is None else v[size:] for v in chunks])
            heads = choose_heads(votes, self.masks, self.plan.selection_range, charge)
        geometry = geometry_of(heads)
        if self.plan.clip_range is not None:
            coordinates = (_released(geometry, v, size) for v in chunks)
            norms = [np.nan if c is None else float(np.linalg.norm(c)) for c in coordinates]
            # Made-up geometries have gains, those of public records without weights have none.
            factor = CLIP_FACTOR if geometry.gains is None else MADE_UP_CLIP_FACTOR
            geometry = choose_clip(np.array(norms), geometry, factor, self.plan.clip_range, charge)
        return heads, geometry, (_released(geometry, v, size) for v in chunks)


def _released(
    geometry: ReleaseGeometry, seen: Float[np.ndarray, " numbers"] | None, size: int
) -> Float[np.ndarray, " released"] | None:
    """One chunk's coordinates, in doubles and silence: a warning would tell of its numbers."""
    if seen is None:
        return None
    with np.errstate(all="ignore"):
        return geometry.to_release(seen[:size].astype(np.float64))


def plan_choices(
    selection: str,
    clip: object,
    epsilon: float,
    selection_range: float | None,
    clip_range: float | None,
) -> ChoicePlan:
    """From a build's options; a tenth of ε for each choice whose part is not given.

    Raises:
        PrivacyParameterError: a part that is not below ε, or that goes with no private choice.
    """
    parts: list[float | None] = []
    for name, part, used in (
        ("selection_epsilon", selection_range, selection == "private"),
        ("clip_epsilon", clip_range, clip == "private"),
    ):
        if part is not None and not used:
            raise PrivacyParameterError(f"{name} goes with a private choice, and there is none")
        if part is not None and not part > 0:
            raise PrivacyParameterError(f"{name} is a part of epsilon, above 0")
        if part is not None and not part < epsilon:
            raise PrivacyParameterError(f"{name} must leave something of epsilon {epsilon:g}")
        parts.append((VOTE_SHARE * epsilon if part is None else part) if used else None)
    return ChoicePlan(*parts)
