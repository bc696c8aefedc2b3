"""Which coordinates of the activations are released, and to which radius they are clipped.

The map is public and declared before any private record is read, so the sensitivity of
:mod:`dpmtv.privacy.sensitivity` holds in the released coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from dpmtv.errors import PrivacyParameterError
from dpmtv.types import HeadLayout


@dataclass(frozen=True)
class ReleaseGeometry:
    """The heads that are released, clipped layer by layer.

    Args:
        layout: layers, heads and head widths of the model.
        heads: bool, shape [heads of all layers]: those released.
        clip_norms: one L2 radius for each layer that has a released head, in layer order.
    """

    layout: HeadLayout
    heads: Bool[np.ndarray, " heads"]
    clip_norms: tuple[float, ...]

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Released coordinates of each layer that has any."""
        return released_sizes(self.layout, self.heads)

    def to_release(
        self, activations: Float[np.ndarray, " coordinates"]
    ) -> Float[np.ndarray, " released"]:
        """The coordinates that are clipped and noised."""
        kept: Float[np.ndarray, " released"] = activations[self.layout.coordinates(self.heads)]
        return kept

    def from_release(
        self, values: Float[np.ndarray, " released"]
    ) -> Float[np.ndarray, " coordinates"]:
        """Back to a whole activation vector; heads that were not released are zero."""
        whole = np.zeros(self.layout.size)
        whole[self.layout.coordinates(self.heads)] = values
        return whole


def released_sizes(layout: HeadLayout, heads: Bool[np.ndarray, " heads"]) -> tuple[int, ...]:
    """Coordinates of ``heads`` in each layer that has any."""
    per_layer = [int(part.sum()) for part in layout.split(layout.coordinates(heads))]
    return tuple(size for size in per_layer if size)


def geometry_with_clip(
    layout: HeadLayout, heads: Bool[np.ndarray, " heads"], clip: float
) -> ReleaseGeometry:
    """The same clip norm in every released layer."""
    _require_heads(heads)
    return ReleaseGeometry(layout, heads, (float(clip),) * len(released_sizes(layout, heads)))


def geometry_from_public(
    layout: HeadLayout,
    heads: Bool[np.ndarray, " heads"],
    activations: Float[np.ndarray, "chunks coordinates"],
    factor: float,
) -> ReleaseGeometry:
    """Clip norms from public chunks: ``factor`` × the median norm of each released layer."""
    _require_heads(heads)
    kept = layout.split(layout.coordinates(heads))
    norms = [
        float(np.median(np.linalg.norm(layer[:, keep], axis=1)) * factor)
        for layer, keep in zip(layout.split(activations), kept, strict=True)
        if keep.any()
    ]
    if min(norms) <= 0:
        raise PrivacyParameterError(
            "the public activations are zero in a layer, so no clip norm follows; give --clip"
        )
    return ReleaseGeometry(layout, heads, tuple(norms))


def _require_heads(heads: Bool[np.ndarray, " heads"]) -> None:
    if not heads.any():
        raise PrivacyParameterError("no head is selected: nothing to release")
