"""Parts of a certificate that say what the vector is for: the model, its heads, its use."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from dpmtv.privacy.strict_json import require

SHA256 = r"[0-9a-f]{64}"
_COMMIT = r"[0-9a-f]{40}"
_HUB_ID = r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?"
_CLASS_NAME = r"[A-Za-z][A-Za-z0-9_]*"


@dataclass(frozen=True)
class ModelIdentity:
    """The model that the vector belongs to: hub id and commit, or a hash of its weights.

    Args:
        id: hub id, never a local path; only together with ``revision``.
        revision: commit hash of the weights, 40 hexadecimal digits.
        weights_sha256: hash of the weight files; required without an id.
        architecture: class name of the model.
        heads: attention heads of each hooked layer.
        head_dims: width of one head in each hooked layer.
    """

    id: str | None
    revision: str | None
    weights_sha256: str | None
    architecture: str
    heads: tuple[int, ...]
    head_dims: tuple[int, ...]

    def __post_init__(self) -> None:
        matches(self.id, "model.id", _HUB_ID)
        matches(self.revision, "model.revision", _COMMIT)
        matches(self.weights_sha256, "model.weights_sha256", SHA256)
        matches(self.architecture, "model.architecture", _CLASS_NAME)
        require((self.id is None) == (self.revision is None), "model.revision", "goes with an id")
        require((self.id or self.weights_sha256) is not None, "model", "names no weights")
        require(all(h > 0 for h in self.heads), "model.heads", "must be positive")
        require(all(d > 0 for d in self.head_dims), "model.head_dims", "must be positive")
        require(len(self.heads) == len(self.head_dims), "model.head_dims", "must match model.heads")


@dataclass(frozen=True)
class Selection:
    """How the heads were chosen: not at all, on public data, privately, or from the release.

    ``source_sha256`` names the public records that heads or clip norms come from.
    """

    mode: Literal["all", "public", "released", "private", "private-top-k"]
    source_sha256: str | None

    def __post_init__(self) -> None:
        matches(self.source_sha256, "selection.source_sha256", SHA256)


@dataclass(frozen=True)
class Inference:
    """How the vector is meant to be used. ``answer_instruction`` is the operator's public text."""

    patch: Literal["prompt", "every-step"]
    alpha: float
    prompt_template_sha256: str
    answer_instruction: str
    dtype: Literal["float32", "float16", "bfloat16"]

    def __post_init__(self) -> None:
        require(self.alpha > 0, "inference.alpha", "must be positive")
        matches(self.prompt_template_sha256, "inference.prompt_template_sha256", SHA256)
        text = self.answer_instruction.replace("\n", "")
        require(
            text.isprintable() and len(text) <= 500,
            "inference.answer_instruction",
            "must be at most 500 printable characters",
        )


def matches(value: str | None, key: str, pattern: str) -> None:
    """Raise an ArtifactError that names ``key`` unless the value, if any, has the pattern."""
    require(value is None or re.fullmatch(pattern, value) is not None, key, "is malformed")
