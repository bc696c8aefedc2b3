"""What a build may be asked for: options, their defaults, and what is refused before any work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from dpmtv.errors import PrivacyParameterError
from dpmtv.privacy import certificate as certificates
from dpmtv.privacy.sensitivity import NeighbourRelation
from dpmtv.types import BoundedRangeEvent, Demonstration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpmtv.data.demonstrations import BadRow

SelectionMode = Literal["public", "released", "all", "private"]
QueryMode = Literal["public", "private"]
PatchMode = Literal["prompt", "every-step"]
PrivateClip = Literal["private"]
PublicWord = Literal["synthetic", "none"]
NONE = "none"

SHOTS = {"public": 1, "private": 4}
CHOICE_SHARE = 0.2  # of ε: 8.6 % more noise at (1, 1e-5); not tuned
_LARGEST_CLIP = 1e30  # activations and released values are 32-bit


def default_picks(epsilon: float, shots: int) -> tuple[BoundedRangeEvent, ...]:
    """The private choice beside a release by the default recipe; atoms are of one demonstration."""
    return (BoundedRangeEvent(range=CHOICE_SHARE * epsilon, count=1),) if shots == 1 else ()


def picks_of(choice: float, epsilon: float, learned: bool) -> tuple[BoundedRangeEvent, ...]:
    """The private choice of a given part of ε."""
    if not 0 <= choice < epsilon:
        raise PrivacyParameterError("the choice takes a part of epsilon: from 0, below epsilon")
    if choice and not learned:
        raise PrivacyParameterError(
            "the choice is among what public records decode: it needs public records, public "
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


def check_options(
    data: Sequence[Demonstration | BadRow],
    public: Sequence[Demonstration | BadRow] | PublicWord | None,
    selection: str,
    query: str,
    shots: int,
    clip: float | PrivateClip | None,
    per_layer: bool,
) -> None:
    """Refuse options that cannot work, before anything is read or drawn."""
    for name, value, known in (
        ("selection", selection, get_args(SelectionMode)),
        ("query", query, get_args(QueryMode)),
        ("clip", clip if isinstance(clip, str) else "private", get_args(PrivateClip)),
        ("public", public if isinstance(public, str) else NONE, get_args(PublicWord)),
    ):
        if value not in known:
            raise PrivacyParameterError(f"{name} must be one of {', '.join(known)}")
    if isinstance(public, str) and selection == "released":
        raise PrivacyParameterError(
            "the paper's selection needs public records that are answered by the private rule"
        )
    if public == NONE and selection == "public":
        raise PrivacyParameterError(
            'without public records the heads are chosen privately (selection="private"), or all '
            "are released"
        )
    if public is data:
        raise PrivacyParameterError("the private records were given as the public ones too")
    if public is None and (selection != "all" or clip is None):
        raise PrivacyParameterError(
            "heads and clip norms come from public records: give some, or a clip norm and "
            'selection="all"; or public="none" for a vector from private records alone'
        )
    if query == "public" and not public:
        raise PrivacyParameterError(
            "public queries come from public records: give some, or ask a private record of each "
            'chunk (query="private")'
        )
    if query == "private" and (public == NONE or "private" in f"{selection} {clip}"):
        raise PrivacyParameterError(
            'private choices, and public="none", go with public queries: a chunk is compared with '
            "the same query without it"
        )
    if per_layer and (public == NONE or "private" in f"{selection} {clip}"):
        raise PrivacyParameterError("private choices go with one clip norm for all layers")
    if shots < 1:
        raise PrivacyParameterError("a chunk needs at least one demonstration (shots)")
    if isinstance(clip, int | float) and not clip < _LARGEST_CLIP:
        raise PrivacyParameterError("the clip norm is too large for 32-bit activations")


def clip_source(
    clip: float | PrivateClip | None, public: Sequence[object] | PublicWord | None
) -> certificates.ClipSource:
    """How the certificate names where the clip norm comes from."""
    if isinstance(clip, str):
        return clip
    if clip is not None:
        return "option"
    return "made-up" if public == NONE else "public"


def relation_of(name: str) -> NeighbourRelation:
    """The relation of this name."""
    try:
        return NeighbourRelation(name)
    except ValueError:
        known = ", ".join(NeighbourRelation)
        raise PrivacyParameterError(f"unknown neighbour relation; choose one of {known}") from None
