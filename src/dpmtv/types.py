"""The plain values that cross between the rooms: no torch, no files, no method."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
from jaxtyping import Bool, Float

if TYPE_CHECKING:
    from PIL.Image import Image


class StoredImage(Protocol):
    """An image that lies inside another file: a row of a Parquet file, a data URI in a line."""

    @property
    def place(self) -> tuple[str | int, ...]:
        """Where it lies: the outer file with its size and date, and the place inside."""

    def read(self) -> bytes:
        """The bytes of the image file, read anew at every call; OSError or ValueError if not."""


ImageSource: TypeAlias = "Path | str | Image | StoredImage"
Images: TypeAlias = "ImageSource | tuple[ImageSource, ...]"


@dataclass(frozen=True)
class Query:
    """An image (or several) and a question, without an answer. Never shows content in ``repr``."""

    image: Images = field(repr=False)
    question: str = field(repr=False)

    @property
    def images(self) -> tuple[ImageSource, ...]:
        """The images in order, also where there is only one."""
        return self.image if isinstance(self.image, tuple) else (self.image,)


@dataclass(frozen=True)
class Demonstration:
    """An image, a question and the answer that is wanted. Its content never shows in ``repr``.

    ``task`` is for public files that hold several answer rules: records with the same value
    were answered by the same rule. It is never read from a private record. ``unit`` names whom
    the record belongs to (a person, a client, a document), where units are protected.
    ``accepted`` are all answers that count as right when this record is a test question; empty
    means ``answer`` alone. ``place`` is where it was read, (file, row) from 1, for messages to
    the operator.
    """

    image: Images = field(repr=False)
    question: str = field(repr=False)
    answer: str = field(repr=False)
    task: str | None = field(default=None, repr=False)
    unit: str | None = field(default=None, repr=False)
    accepted: tuple[str, ...] = field(default=(), repr=False)
    place: tuple[int, int] | None = field(default=None, repr=False, compare=False)

    @property
    def images(self) -> tuple[ImageSource, ...]:
        """The images in order, also where there is only one."""
        return self.query.images

    @property
    def query(self) -> Query:
        """The same image and question, asked instead of shown."""
        return Query(self.image, self.question)


@dataclass(frozen=True)
class Prompt:
    """Demonstrations in order, then one query."""

    demonstrations: tuple[Demonstration, ...]
    query: Query


@dataclass(frozen=True)
class HeadLayout:
    """How a flat activation vector divides into layers and heads.

    Args:
        heads: attention heads of each hooked layer.
        head_dims: width of one head in each hooked layer. Layers may differ (ragged models),
            which is why activations travel flat.
    """

    heads: tuple[int, ...]
    head_dims: tuple[int, ...]

    @property
    def layers(self) -> int:
        """Number of hooked layers."""
        return len(self.heads)

    @property
    def n_heads(self) -> int:
        """Heads of all layers together: the length of a head mask."""
        return sum(self.heads)

    @property
    def widths(self) -> tuple[int, ...]:
        """Coordinates of each layer: heads × head width."""
        return tuple(h * d for h, d in zip(self.heads, self.head_dims, strict=True))

    @property
    def size(self) -> int:
        """Coordinates of all layers together: the length of an activation vector."""
        return sum(self.widths)

    def coordinates(self, mask: Bool[np.ndarray, " heads"]) -> Bool[np.ndarray, " coordinates"]:
        """Which coordinates belong to the heads of ``mask``."""
        return np.repeat(mask, np.repeat(self.head_dims, self.heads))

    def spread(self, values: Float[np.ndarray, " heads"]) -> Float[np.ndarray, " coordinates"]:
        """Each head's value at all of its coordinates."""
        return np.repeat(values, np.repeat(self.head_dims, self.heads))

    def split(self, values: np.ndarray) -> list[np.ndarray]:
        """Cut the last axis of ``values`` (coordinates or heads) into layers."""
        sizes = self.widths if values.shape[-1] == self.size else self.heads
        return np.split(values, np.cumsum(sizes)[:-1], axis=-1)


@dataclass(frozen=True)
class GaussianEvent:
    """One Gaussian release, as accounting sees it.

    Args:
        delta2: L2 sensitivity of the released mean; the neighbour relation is inside it.
        sigma: standard deviation of the noise on each coordinate of the mean.
        scale: the same standard deviation in units of the integer grid of the sum.
        d: number of released coordinates; the most there might have been, where a private choice
            decides it.
    """

    delta2: float
    sigma: float
    scale: int
    d: int


@dataclass(frozen=True)
class BoundedRangeEvent:
    """Private picks, as accounting sees them.

    Args:
        range: E, the length of the interval in which the privacy losses of one pick lie; the
            neighbour relation is inside it.
        count: number of picks; later ones may depend on what earlier ones gave.
    """

    range: float
    count: int


Event: TypeAlias = GaussianEvent | BoundedRangeEvent


@dataclass(frozen=True)
class Release:
    """What may leave the private room: a noised value and the event that pays for it.

    ``event`` is None for a vector without noise, which has no guarantee (ε = inf).
    """

    value: Float[np.ndarray, " coordinates"]
    event: Event | None
