"""The public map between activations and the numbers that are clipped and noised.

Everything here is declared before a private record is read, so the sensitivity of
:mod:`dpmtv.privacy.sensitivity` holds in the released coordinates, and mapping back is
post-processing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from dpmtv.errors import PrivacyParameterError
from dpmtv.types import HeadLayout


@dataclass(frozen=True)
class ReleaseGeometry:
    """Selected heads, minus a public centre, clipped layer by layer or together.

    One clip for all of them adds no more noise than one layer's would: with a clip norm C for
    each of L layers the sensitivity grows by sqrt(L).

    ============================  =====================================================
    case                          what happens
    ============================  =====================================================
    null chunk                    counts as zero in the released numbers: as the centre
    activation not finite         stays so, and the clip makes the whole chunk null
    head not released             zero when mapped back, whatever the centre holds there
    ============================  =====================================================

    Args:
        layout: layers, heads and head widths of the model.
        heads: bool, shape [heads of all layers]: those released.
        clip_norms: one L2 radius for each layer that has a released head, in layer order; or a
            single one for all of them together.
        centre: public point that is subtracted before the clip and added back after the noise,
            shape [coordinates]; None for zero.
        weights: public factor of each head before the clip, divided out after the noise, shape
            [heads of all layers]: the same noise is small where the weight is large.
        gains: public factor of each head's released part when it is mapped back. Heads that the
            noise drowns get less.
    """

    layout: HeadLayout
    heads: Bool[np.ndarray, " heads"]
    clip_norms: tuple[float, ...]
    centre: Float[np.ndarray, " coordinates"] | None = None
    weights: Float[np.ndarray, " heads"] | None = None
    gains: Float[np.ndarray, " heads"] | None = None

    def __post_init__(self) -> None:
        if not self.heads.any():
            raise PrivacyParameterError("no head is selected: nothing to release")
        if self.weights is not None and not (self.weights[self.heads] > 0).all():
            raise PrivacyParameterError("the weight of a released head must be above zero")
        if len(self.clip_norms) not in (1, len(released_sizes(self.layout, self.heads))):
            raise PrivacyParameterError("clip norms go with layers, one each, or there is one")

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Coordinates that each clip norm holds for."""
        sizes = released_sizes(self.layout, self.heads)
        return sizes if len(sizes) == len(self.clip_norms) else (sum(sizes),)

    @property
    def sha256(self) -> str:
        """Names all of it on the certificate."""
        digest = hashlib.sha256(np.packbits(self.heads).tobytes())
        digest.update(np.array(self.clip_norms, "<f8").tobytes())
        for part in (self.centre, self.weights, self.gains):
            digest.update(b"-" if part is None else part.astype("<f4").tobytes())
        return digest.hexdigest()

    def to_release(
        self, activations: Float[np.ndarray, "*rows coordinates"]
    ) -> Float[np.ndarray, "*rows released"]:
        """The coordinates that are clipped and noised."""
        moved = activations if self.centre is None else activations - self.centre
        if self.weights is not None:
            moved = moved * self.layout.spread(self.weights)
        values: Float[np.ndarray, "*rows released"]
        values = moved[..., self.layout.coordinates(self.heads)]
        return values

    def from_release(
        self, values: Float[np.ndarray, " released"]
    ) -> Float[np.ndarray, " coordinates"]:
        """Back to a whole activation vector; heads that were not released are zero."""
        kept = self.layout.coordinates(self.heads)
        whole = np.zeros(self.layout.size)
        whole[kept] = values
        if self.weights is not None:
            whole[kept] /= self.layout.spread(self.weights)[kept]
        if self.gains is not None:
            whole[kept] *= self.layout.spread(self.gains)[kept]
        if self.centre is not None:
            whole[kept] += self.centre[kept]
        return whole


def released_sizes(layout: HeadLayout, heads: Bool[np.ndarray, " heads"]) -> tuple[int, ...]:
    """Coordinates of ``heads`` in each layer that has any."""
    per_layer = [int(part.sum()) for part in layout.split(layout.coordinates(heads))]
    return tuple(size for size in per_layer if size)


def geometry_from_public(
    layout: HeadLayout,
    heads: Bool[np.ndarray, " heads"],
    activations: Float[np.ndarray, "chunks coordinates"],
    factor: float,
    *,
    per_layer: bool = False,
    centre: Float[np.ndarray, " coordinates"] | None = None,
    weights: Float[np.ndarray, " heads"] | None = None,
    gains: Float[np.ndarray, " heads"] | None = None,
) -> ReleaseGeometry:
    """Clip norms from public chunks: ``factor`` × the median norm of what is released.

    Args:
        layout: layers, heads and head widths of the model.
        heads: the released ones.
        activations: of public chunks, made as the private ones will be.
        factor: on the median.
        per_layer: a clip norm for each layer, as in the paper.
        centre: subtracted first.
        weights: multiplied with then.
        gains: as of `ReleaseGeometry`.
    """
    moved = activations if centre is None else activations - centre
    if weights is not None:
        moved = moved * layout.spread(weights)
    kept = layout.coordinates(heads)
    layers = [
        layer[:, keep]
        for layer, keep in zip(layout.split(moved), layout.split(kept), strict=True)
        if keep.any()
    ]
    blocks = layers if per_layer else [moved[:, kept]]
    norms = tuple(float(np.median(np.linalg.norm(b, axis=1)) * factor) for b in blocks)
    if not norms or min(norms) <= 0:
        raise PrivacyParameterError(
            "the public activations are zero where they are to be released, so no clip norm "
            "follows; give --clip"
        )
    return ReleaseGeometry(layout, heads, norms, centre, weights, gains)
