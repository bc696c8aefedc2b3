"""The private task vector as a folder: tensors, certificate, and a card in plain words."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from dpmtv.errors import ArtifactError
from dpmtv.privacy import certificate as certificates
from dpmtv.privacy import signature
from dpmtv.privacy.statement import figures_in, statement
from dpmtv.types import HeadLayout

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from jaxtyping import Bool, Float32

    from dpmtv.privacy.certificate import Certificate, ModelIdentity

TENSORS, CERTIFICATE, CARD = "task_vector.safetensors", "certificate.json", "README.md"
SIGNATURE = "certificate.sig"
_NAMES = {TENSORS, CERTIFICATE, CARD, SIGNATURE}


class PatchableModel(Protocol):
    """What a vector needs of a model."""

    @property
    def identity(self) -> ModelIdentity:
        """Weights and head layout."""
        ...

    @property
    def prompt_template_sha256(self) -> str:
        """Prompt format."""
        ...

    def patched(
        self, values: np.ndarray, heads: np.ndarray, patch: str, alpha: float
    ) -> AbstractContextManager[None]:
        """Generate with the values in place of the heads'."""
        ...


Model = TypeVar("Model", bound=PatchableModel)


@dataclass(frozen=True)
class TaskVector:
    """Noised head means, the mask of heads to patch, and the certificate.

    Args:
        values: float32, all coordinates of the model's heads; zero where nothing was released.
        heads: bool, the head mask: which heads are patched.
        certificate: what was released, what it cost.
    """

    values: Float32[np.ndarray, " coordinates"]
    heads: Bool[np.ndarray, " heads"]
    certificate: Certificate

    @contextmanager
    def applied(self, model: Model) -> Iterator[Model]:
        """Let ``model`` answer with this vector inside the context.

        Raises:
            ArtifactError: the vector was made for other weights, another head layout or another
                prompt format.
        """
        made_for, inference = self.certificate.model, self.certificate.inference
        if (made_for.heads, made_for.head_dims) != (model.identity.heads, model.identity.head_dims):
            raise ArtifactError("the vector was made for a model with another head layout")
        if made_for != model.identity:
            raise ArtifactError(
                f"the vector was made for {_name(made_for)}, this is {_name(model.identity)}"
            )
        if inference.prompt_template_sha256 != model.prompt_template_sha256:
            raise ArtifactError(
                "the vector was made with another prompt format (chat template or answer "
                "instruction); load the model as it was then"
            )
        with model.patched(self.values, self.heads, inference.patch, inference.alpha):
            yield model

    def save_pretrained(self, folder: Path | str) -> None:
        """Write the folder whole or not at all.

        Raises:
            ArtifactError: the folder exists and is not empty.
        """
        target = Path(folder)
        require_free(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            (scratch / TENSORS).write_bytes(tensor_bytes(self.values, self.heads))
            certificates.write(self.certificate, scratch / CERTIFICATE)
            (scratch / CARD).write_text(_card(self), encoding="utf-8")
            scratch.chmod(0o755)
            if target.exists():
                target.rmdir()
            os.replace(scratch, target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    @classmethod
    def from_pretrained(cls, folder: Path | str) -> TaskVector:
        """Read a folder and check everything that can be checked without the model.

        Raises:
            ArtifactError: a file is missing, changed or unknown, or the certificate's claims do
                not follow from its events.
        """
        vector, _ = _load(Path(folder))
        return vector


def verify(folder: Path | str, officer: Path | str | None = None) -> list[str]:
    """Recompute the claims of an artifact; returns what was checked, in words.

    The tensors, the certificate and the card that people read are checked, and nothing else may
    lie in the folder.

    Args:
        folder: the artifact.
        officer: public key (PEM) of whoever must have signed it; without one a signature is not
            checked.

    Raises:
        ArtifactError: as :meth:`TaskVector.from_pretrained`, a card that does not say what the
            certificate does, a file that does not belong there, or not signed with that key.
    """
    folder = Path(folder)
    vector, checked = _load(folder)
    files = _files(folder)
    checked = [*checked, _check_card(vector, files)]
    text = files.pop(SIGNATURE, None)
    if officer is None:
        unchecked = "There is a signature; name the officer's public key to check it."
        return [*checked, unchecked if text is not None else "There is no officer's signature."]
    if text is None:
        raise ArtifactError(f"{folder} is not signed: it has no {SIGNATURE}")
    signed = text.decode("utf-8", errors="replace")
    if signature.matches(signature.of_folder(files), signed, Path(officer)):
        words = "The officer's signature is on all files of this folder: none was changed since."
    elif signature.matches(signature.of_certificate(files[CERTIFICATE]), signed, Path(officer)):
        words = (
            f"The officer's signature is on this certificate, which names the tensor file. It is "
            f"of an older dpmtv and does not cover {CARD}."
        )
    else:
        raise ArtifactError("the signature is not this officer's, or a file was changed since")
    return [*checked, words]


def sign(folder: Path | str, private_key: Path | str) -> None:
    """Verify an artifact, then put the officer's signature beside its certificate.

    Raises:
        ArtifactError: what is claimed does not hold, or the card is not what this version writes.
        UserError: the key cannot be used.
    """
    folder = Path(folder)
    vector, _ = _load(folder)
    files = _files(folder)
    files.pop(SIGNATURE, None)
    if files.get(CARD) != _card(vector).encode():
        raise ArtifactError(
            f"{CARD} is not what this dpmtv writes for the certificate, and an officer's signature "
            "covers what people read: load the vector and save it again"
        )
    text = signature.sign(signature.of_folder(files), Path(private_key))
    (folder / SIGNATURE).write_text(text, "utf-8")


def _files(folder: Path) -> dict[str, bytes]:
    """All files of the folder, which may hold nothing but what belongs to a task vector."""
    paths = {path.name: path for path in folder.iterdir()}
    foreign = sorted(name for name in paths if name not in _NAMES or not paths[name].is_file())
    if foreign:
        raise ArtifactError(
            f"{folder} holds what is no part of a task vector and was checked by nobody: "
            f"{', '.join(map(repr, foreign))}; move it away"
        )
    return {name: path.read_bytes() for name, path in paths.items()}


def _check_card(vector: TaskVector, files: Mapping[str, bytes]) -> str:
    """Compare the card with the one that belongs to the certificate; returns what was found."""
    found, card = files.get(CARD), _card(vector)
    if found is None:
        return f"There is no {CARD} for people to read; dpmtv show says what it would."
    if found == card.encode():
        return f"{CARD} says what the certificate says, word for word."
    # Another version has other words. Its figures at least must be the certificate's.
    others = figures_in(found.decode("utf-8", errors="replace")) - figures_in(card)
    if certificates.is_current(vector.certificate) or others:
        raise ArtifactError(
            f"{CARD} was changed: it is not what dpmtv writes for this certificate; do not trust "
            "it, read what dpmtv show says"
        )
    return (
        f"{CARD} is NOT CHECKED but for ε and δ: it is not what this version of dpmtv writes. "
        "Read what dpmtv show says instead."
    )


def require_free(folder: Path) -> None:
    """Refuse a target folder that holds something."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ArtifactError(f"{folder} exists and is not an empty folder; choose another name")


def require_writable(folder: Path) -> None:
    """Refuse a target folder that is taken or cannot be made, before anything is spent.

    Nothing is left behind: what is tried is a scratch folder in the nearest parent that exists.

    Raises:
        ArtifactError: it holds something, is a link, or its parent cannot be written.
    """
    try:
        require_free(folder)
        if folder.is_symlink() or folder.name in ("", ".."):  # cannot be replaced when saving
            raise ArtifactError(f"{folder} is a link or no name; name a new folder")
        parent = next(parent for parent in folder.parents if parent.exists())
        Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=parent)).rmdir()
    except OSError as error:
        raise ArtifactError(
            f"{folder} cannot be written ({error.strerror}); name a folder that can be made"
        ) from error


def tensor_bytes(
    values: Float32[np.ndarray, " coordinates"], heads: Bool[np.ndarray, " heads"]
) -> bytes:
    """The tensor file's bytes; the same tensors always give the same bytes."""
    from safetensors.numpy import save

    return bytes(save({"heads": heads, "values": values}))


def _load(folder: Path) -> tuple[TaskVector, list[str]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    if not (folder / CERTIFICATE).is_file() or not (folder / TENSORS).is_file():
        raise ArtifactError(f"{folder} is not a task vector: it needs {CERTIFICATE} and {TENSORS}")
    certificate = certificates.read(folder / CERTIFICATE)
    data = (folder / TENSORS).read_bytes()
    checked = certificates.verify(certificate, hashlib.sha256(data).hexdigest())
    try:
        tensors: dict[str, Any] = load(data)
    except SafetensorError as error:
        raise ArtifactError(f"{TENSORS} is not a safetensors file") from error
    layout = HeadLayout(certificate.model.heads, certificate.model.head_dims)
    released = released_mask(layout, certificate)
    if set(tensors) != {"heads", "values"}:
        raise ArtifactError(f"{TENSORS} must hold exactly the tensors heads and values")
    values, heads = tensors["values"], tensors["heads"]
    if values.dtype != np.float32 or values.shape != (layout.size,):
        raise ArtifactError(f"{TENSORS}: values must be {layout.size} float32 numbers")
    if heads.dtype != np.bool_ or heads.shape != (layout.n_heads,):
        raise ArtifactError(f"{TENSORS}: heads must be {layout.n_heads} booleans")
    if not np.isfinite(values).all():
        raise ArtifactError(f"{TENSORS}: values hold a number that is not finite")
    if (heads & ~released).any() or values[~layout.coordinates(released)].any():
        raise ArtifactError(f"{TENSORS} holds heads that the certificate does not list as released")
    if tensor_bytes(values, heads) != data:
        raise ArtifactError(f"{TENSORS} holds more than its two tensors")
    return TaskVector(values, heads, certificate), checked


def released_mask(layout: HeadLayout, certificate: Certificate) -> Bool[np.ndarray, " heads"]:
    """The heads that the certificate lists as released."""
    mask = [
        np.isin(np.arange(count), indices)
        for count, indices in zip(layout.heads, certificate.privacy.released_heads, strict=True)
    ]
    return np.concatenate(mask)


def _name(identity: ModelIdentity) -> str:
    where = (
        f"{identity.id} at {identity.revision}"
        if identity.id
        else f"weights {(identity.weights_sha256 or '')[:12]}…"
    )
    return f"{identity.architecture} ({where})"


def _card(vector: TaskVector) -> str:
    certificate = vector.certificate
    words = "\n".join(f"- {line}" for line in statement(certificate))
    return f"""---
library_name: dpmtv
tags: [differential-privacy, task-vector]
---

# Private task vector

{words}

Made for {_name(certificate.model)}; {int(vector.heads.sum())} of {vector.heads.size} attention
heads are patched, {certificate.inference.patch}. Check it with `dpmtv verify FOLDER`, ask with
`dpmtv ask FOLDER --image IMAGE "question"`.
"""
