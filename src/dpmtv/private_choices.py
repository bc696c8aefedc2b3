"""Heads and clip norms chosen from the private records themselves, each choice with its event.

Nothing here averages raw activations: a chunk votes with numbers that depend on its own rows alone
and are bounded whatever they hold, and only what an exact mechanism draws from the sums comes out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal

import numpy as np
from PIL import Image

from dpmtv.errors import ModelError, PrivacyParameterError
from dpmtv.geometry import ReleaseGeometry, geometry_from_public
from dpmtv.models.choosing import first_right
from dpmtv.models.extraction import private_pass, public_activations
from dpmtv.models.synthetic import answer_words
from dpmtv.privacy.bounded_range import range_mu
from dpmtv.privacy.choice import clipped_scores, exponential_mechanism, noisy_top_k
from dpmtv.privacy.quantile import (
    STEPS,
    noisy_quantile,
    noisy_quantile_steps,
    quantile_step_event,
    require_enough_for_quantile,
    require_enough_for_steps,
    spread_edges,
)
from dpmtv.public_tasks import CLIP_FACTOR, chunk_values, public_values
from dpmtv.types import BoundedRangeEvent, Demonstration, HeadLayout, Prompt, Query

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from jaxtyping import Bool, Float

    from dpmtv.data.demonstrations import BadRow
    from dpmtv.models.adapters import VisionLanguageModel
    from dpmtv.options import PrivateClip
    from dpmtv.types import SingleEvent

PrivateSelection = Literal["private", "private-top-k"]

# Of ε; docs/results.md, "Tried and left out", has others. Many small picks of single heads cost
# little together, and choose well only with much more.
SELECTION_SHARES = {"private": 0.1, "private-top-k": 0.8}
CLIP_SHARE = 0.1
# × the median norm of made-up chunks, or of private ones: so short that only directions count,
# whatever that norm is worth; and × what is released, for a length of three quarters of it. Chosen
# on the unsealed tests of five tasks of the choice.
MADE_UP_CLIP_FACTOR, GAIN = 0.3, 2.5
NEUTRAL_QUESTION = "What is the answer?"
_QUERIES, MADE_UP_WORDS = 4, 8
_EDGES = 3  # factors of two to each side of the public norm
_TOP_SHARE = 1 / 3  # of all heads


@dataclass(frozen=True)
class ChoicePlan:
    """What will be chosen privately; fixed, with its price, before a private record is read.

    Args:
        selection: of PrivateSelection, or None where the heads are known.
        selection_range: E of the heads' picks together.
        clip: of PrivateClip, or None where the clip norm is known.
        clip_range: E of its pick; of steps, what is worth as much.
        split: the share of the chunks that vote and do nothing else, the others making the vector;
            None where all do both.
    """

    selection: PrivateSelection | None
    selection_range: float
    clip: PrivateClip | None
    clip_range: float
    split: float | None = None

    @property
    def any(self) -> bool:
        """Whether there is a private choice at all."""
        return self.selection is not None or self.clip is not None

    def events(self, layout: HeadLayout) -> tuple[SingleEvent, ...]:
        """What the choices cost, in their order."""
        found: list[SingleEvent] = []
        if self.selection is not None:
            count = top_k(layout.n_heads) if self.selection == "private-top-k" else 1
            found.append(BoundedRangeEvent(self.selection_range / count, count))
        if self.clip == "private":
            found.append(BoundedRangeEvent(float(self.clip_range), 1))
        if self.clip == "private-steps":
            found += [quantile_step_event(range_mu(self.clip_range))] * STEPS
        return tuple(found)

    def voting(self, chunks: int) -> int | None:
        """How many of the chunks, the first ones, only vote: at least 1, and 1 is left."""
        return None if self.split is None else min(max(1, round(self.split * chunks)), chunks - 1)

    def check(self, chunks: int) -> None:
        """Refuse a choice that so few chunks could only make at random.

        Raises:
            PrivacyParameterError: too few chunks for a private clip norm, or for a split.
        """
        if self.split is not None:
            if chunks < 2:
                raise PrivacyParameterError("a split needs two chunks, one to vote and one to use")
            chunks = self.voting(chunks) or chunks
        if self.clip == "private":
            require_enough_for_quantile(chunks, len(spread_edges(1.0, _EDGES)) - 1, self.clip_range)
        if self.clip == "private-steps":
            require_enough_for_steps(chunks, quantile_step_event(range_mu(self.clip_range)))


def top_k(n_heads: int) -> int:
    """How many heads "private-top-k" picks."""
    return max(1, round(_TOP_SHARE * n_heads))


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


def options_of(layout: HeadLayout, plan: ChoicePlan) -> Bool[np.ndarray, "options heads"]:
    """The masks that a chunk votes on: bands of layers, or for top-k single heads."""
    return band_masks(layout) if plan.selection == "private" else np.eye(layout.n_heads, dtype=bool)


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


def head_shares(
    layout: HeadLayout,
    values: Float[np.ndarray, " coordinates"],
    bare: Float[np.ndarray, " coordinates"],
) -> Float[np.ndarray, " heads"]:
    """How far each head moves from its value without a demonstration, as a share of the farthest.

    The head score of STV (arXiv 2511.08246), bounded: 0 to 1 whatever the chunk holds.
    """
    norms = head_norms(layout, values - bare)
    shares: Float[np.ndarray, " heads"] = norms / max(float(norms.max()), np.finfo(np.float64).tiny)
    return shares


def head_norms(
    layout: HeadLayout, values: Float[np.ndarray, " coordinates"]
) -> Float[np.ndarray, " heads"]:
    """L2 norm of each head's part."""
    squares = np.square(values, dtype=np.float64)
    starts = np.cumsum([0, *np.repeat(layout.head_dims, layout.heads)[:-1]])
    return np.sqrt(np.add.reduceat(squares, starts))


# --- the choices ---------------------------------------------------------------------------


def choose_heads(
    votes: Float[np.ndarray, "chunks options"],
    masks: Bool[np.ndarray, "options heads"],
    plan: ChoicePlan,
    charge: Callable[[SingleEvent], None] | None = None,
) -> Bool[np.ndarray, " heads"]:
    """One mask of the family, or the k heads with the highest noisy scores.

    Guarantee:
        A chunk's votes lie between 0 and 1, so replaced or made null it moves each sum by at most
        1: the first event of ``plan``, paid before the draw.

    Args:
        votes: `votes_of`, or `head_shares` where each option is a head; NaN for a null chunk.
        masks: of each option.
        plan: with a private selection.
        charge: books the event; raises to refuse.
    """
    how = plan.selection_range
    if plan.selection == "private":
        sums = clipped_scores(votes, bound=1.0, levels=1)
        picked = [exponential_mechanism(sums, sensitivity=1, range_=how, charge=charge).index]
    else:
        levels = 2**20
        sums = clipped_scores(votes, bound=1.0, levels=levels)
        k = top_k(len(masks))  # every option is a single head
        found = noisy_top_k(sums, k, sensitivity=levels, range_=how, charge=charge)
        picked = list(found.indices)
    return np.asarray(masks[picked].any(axis=0), bool)


def choose_clip(
    norms: Float[np.ndarray, " chunks"],
    geometry: ReleaseGeometry,
    factor: float,
    plan: ChoicePlan,
    charge: Callable[[SingleEvent], None] | None = None,
) -> ReleaseGeometry:
    """The geometry with a private clip norm: its own, moved as the private median asks.

    Guarantee:
        `noisy_quantile` or `noisy_quantile_steps`, paid before each draw.

    Args:
        norms: of the chunks' released coordinates; NaN for a null chunk.
        geometry: with a clip norm that the private one is found from.
        factor: the share of the median that it is, and is to be.
        plan: with a private clip norm.
        charge: books each event; raises to refuse.
    """
    start = geometry.clip_norms[0] / factor
    if plan.clip == "private":
        edges = np.array(spread_edges(start, _EDGES))
        norm = noisy_quantile(norms, edges, range_=plan.clip_range, charge=charge)
    else:
        event = quantile_step_event(range_mu(plan.clip_range))
        norm = noisy_quantile_steps(norms, start, event, charge=charge)
    return replace(geometry, clip_norms=(factor * norm,))


@dataclass(frozen=True)
class PrivateVotes:
    """Every chunk's activations and votes, and what is chosen by them. Nothing of it is kept.

    Args:
        model: the frozen model.
        plan: what is chosen.
        queries: public ones that every chunk is asked.
        bare: `bare_values` of them.
        patch: as at inference.
        voting: so many chunks, the first ones, only vote, and the others make the vector; None
            where all do both.
    """

    model: VisionLanguageModel
    plan: ChoicePlan
    queries: Sequence[Query]
    bare: Float[np.ndarray, " coordinates"]
    patch: str
    voting: int | None = None

    @cached_property
    def masks(self) -> Bool[np.ndarray, "options heads"]:
        """The options that a chunk votes on."""
        return options_of(self.model.layout, self.plan)

    def preflight(self, shots: int) -> None:
        """Let a made-up chunk vote, so that a broken setup shows before any budget is spent.

        Raises:
            ModelError: the model cannot be patched with so many masks.
        """
        query = self.queries[0]
        shown = Demonstration(query.image, query.question, "yes")
        try:
            seen = self._look([shown] * shots, votes=True)
        except Exception as error:
            raise ModelError(
                f"a made-up chunk cannot vote on heads: {type(error).__name__}: "
                f"{str(error).strip()[:300]}"
            ) from error
        if seen is None:
            raise ModelError("a made-up chunk fails, so every private one might")

    def of(
        self, rows: Sequence[Demonstration | BadRow], place: int = 0
    ) -> Float[np.ndarray, " numbers"] | None:
        """One chunk's activations, then its votes if it is in a place that votes.

        None if anything goes wrong in it.
        """
        votes = self.voting is None or place < self.voting
        return private_pass(self.model, partial(self._look, rows, votes))

    def _look(self, rows: Sequence[Demonstration | BadRow], votes: bool) -> np.ndarray | None:
        model = self.model
        values = chunk_values(model, rows, self.queries)
        if values is None or not np.isfinite(values).all():
            return None
        if not votes or self.plan.selection is None:
            return values
        if self.plan.selection == "private":
            cast = votes_of(model, rows, values, self.masks, self.patch).astype(np.float64)
        else:
            cast = head_shares(model.layout, values, self.bare)
        return np.concatenate([values, cast])

    def choose(
        self,
        seen: Iterable[Float[np.ndarray, " numbers"] | None],
        heads: Bool[np.ndarray, " heads"],
        geometry_of: Callable[[Bool[np.ndarray, " heads"]], ReleaseGeometry],
        charge: Callable[[SingleEvent], None] | None = None,
    ) -> tuple[Bool[np.ndarray, " heads"], ReleaseGeometry, Iterator[np.ndarray | None]]:
        """Heads, geometry, and the coordinates as they are released, of whom the vector is made.

        Guarantee:
            What comes first is a function of the chunks that vote, what comes last of the others,
            given the geometry; without ``voting`` both are all.

        Args:
            seen: of every chunk, what `of` gave.
            heads: the mask where it is not chosen here.
            geometry_of: a mask's geometry from public or made-up prompts.
            charge: books each event before its draw; raises to refuse.
        """
        size = self.model.layout.size
        both = list(seen)
        voters, makers = both[: self.voting], both[self.voting or 0 :]
        if self.plan.selection is not None:
            nothing = np.full(len(self.masks), np.nan)
            votes = np.stack([nothing if v is None else v[size:] for v in voters])
            heads = choose_heads(votes, self.masks, self.plan, charge)
        geometry = geometry_of(heads)
        if self.plan.clip is not None:
            coordinates = (_released(geometry, v, size) for v in voters)
            norms = [np.nan if c is None else float(np.linalg.norm(c)) for c in coordinates]
            # Made-up geometries have gains, those of public records without weights have none.
            factor = CLIP_FACTOR if geometry.gains is None else MADE_UP_CLIP_FACTOR
            geometry = choose_clip(np.array(norms), geometry, factor, self.plan, charge)
        return heads, geometry, (_released(geometry, v, size) for v in makers)


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
    split: float | None = None,
) -> ChoicePlan:
    """From a build's options; parts that are not given default to shares of ε.

    With a split the votes have an ε of their own, and the selection has by default all of it, less
    what a private clip norm takes, or half beside the noisy counts of one.

    Raises:
        PrivacyParameterError: a part that is not below ε, or that goes with no private choice; a
            split without a private selection, or that is no share.
    """
    picked: PrivateSelection | None
    picked = selection if selection in ("private", "private-top-k") else None  # type: ignore[assignment]
    cut: PrivateClip | None
    cut = clip if clip in ("private", "private-steps") else None
    for name, part, used in (
        ("selection_epsilon", selection_range, picked),
        ("clip_epsilon", clip_range, cut),
    ):
        if part is not None and used is None:
            raise PrivacyParameterError(f"{name} goes with a private choice, and there is none")
        if part is not None and not part > 0:
            raise PrivacyParameterError(f"{name} is a part of epsilon, above 0")
        if part is not None and split is None and not part < epsilon:
            raise PrivacyParameterError(f"{name} must leave something of epsilon {epsilon:g}")
    if split is not None and not picked:
        raise PrivacyParameterError("selection_split goes with a private selection")
    if split is not None and not 0 < split < 1:
        raise PrivacyParameterError("selection_split is a share of the chunks, between 0 and 1")
    clip_range = CLIP_SHARE * epsilon if clip_range is None else clip_range
    if selection_range is None and split is None:
        selection_range = SELECTION_SHARES.get(selection, 0.0) * epsilon
    elif selection_range is None:
        # Below the difference, so that rounding makes no more of both than ε.
        rest = math.nextafter(epsilon - clip_range, 0.0)
        selection_range = {"private": rest, "private-steps": epsilon / 2}.get(cut or "", epsilon)
    return ChoicePlan(picked, selection_range, cut, clip_range, split)
