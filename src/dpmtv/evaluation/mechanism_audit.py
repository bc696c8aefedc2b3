"""The audit of the whole build: `build_task_vector` in two worlds, with only the model made up.

It lives here because it drives the pipeline, which `audit` must not know. Rows, units, partition,
chunks, preflight, clip, integer sum, ledger, noise, certificate and artifact are the real ones; not
even a key or a sampler is replaced.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dpmtv.artifact import TaskVector
from dpmtv.audit.two_worlds import ERROR, RUNS, Claim, MechanismAudit, Progress, two_worlds
from dpmtv.errors import InternalError, PrivacyParameterError
from dpmtv.pipeline import build_task_vector
from dpmtv.privacy.certificate import ModelIdentity
from dpmtv.privacy.sensitivity import NeighbourRelation
from dpmtv.types import Demonstration, HeadLayout, Prompt

if TYPE_CHECKING:
    from jaxtyping import Float32

    from dpmtv.models.adapters import VisionLanguageModel

CLIP = 1.0
_YES, _NO, _FAILS = "yes", "no", "fails"  # what a record says
_LAYOUT = HeadLayout(heads=(2, 2), head_dims=(2, 2))
# Neighbouring coordinates and both layers have opposite signs, so noise that is shared among
# coordinates or layers cancels in the projection and shows as noise that is missing.
_PATTERN = np.array([1, -1, 1, -1, -1, 1, -1, 1], np.float32)


class CanaryModel:
    """The worst chunk map: all of the clip's ball, in a direction that one record decides.

    It answers far outside the ball in every layer, one way if any record of the chunk says "yes"
    and the opposite way if none does, and raises if one says "fails".
    """

    layout = _LAYOUT
    identity = ModelIdentity(
        None, None, "0" * 64, "CanaryModel", heads=_LAYOUT.heads, head_dims=_LAYOUT.head_dims
    )
    instruction = ""
    dtype = "float32"
    prompt_template_sha256 = "0" * 64

    def last_token_heads(self, prompt: Prompt) -> Float32[np.ndarray, " coordinates"]:
        """What the chunk's records say, as activations."""
        said = {d.question for d in prompt.demonstrations} | {prompt.query.question}
        if _FAILS in said:
            raise ValueError
        return _PATTERN * np.float32(1e3 * CLIP if _YES in said else -1e3 * CLIP)

    def recover(self) -> None:
        """Nothing to free."""


def audit_mechanism(
    *,
    relation: str = NeighbourRelation.REPLACE_ONE,
    units: bool = False,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    runs: int = RUNS,
    error: float = ERROR,
    on_disk: bool = True,
    progress: Progress = lambda _what, _done, _total: None,
) -> MechanismAudit:
    """Build again and again from two made-up neighbouring files, and compare with the certificate.

    It tests the installed code and needs no data. With 1,000 builds a world it takes one to six
    minutes on one core: 40 to 60 s of computing, the rest is the ledger's waiting for the disk.

    Args:
        relation: which change the two files differ by.
        units: protect persons with several records each; always so under ``"add_remove"``.
        epsilon: ε that the builds ask for.
        delta: δ that the builds ask for.
        runs: builds in each world.
        error: most false alarms of a correct build.
        on_disk: charge a ledger of its own for every build, write the artifact, and look at what
            is read back from there. Without, the builds are kept in memory.
        progress: called with (what, done, total).

    Raises:
        UserError: options that cannot be used.
        InternalError: certificates or head masks that tell the two worlds apart.
    """
    units = units or relation == NeighbourRelation.ADD_REMOVE
    worlds, options, words = neighbours(relation, units)

    def build(world: int, book: Path | None = None) -> TaskVector:
        return build_task_vector(
            cast("VisionLanguageModel", CanaryModel()),
            worlds[world],
            epsilon=epsilon,
            delta=delta,
            relation=relation,
            selection="all",
            clip=CLIP,
            ledger=book,
            **options,
        )

    def stored(world: int) -> TaskVector:
        with tempfile.TemporaryDirectory(prefix="dpmtv-audit-") as name:
            folder = Path(name) / "vector"
            build(world, Path(name) / "ledger").save_pretrained(folder)
            return TaskVector.from_pretrained(folder)

    make = stored if on_disk else build
    first = make(0)
    public = _public_part(first)

    def release(world: int) -> np.ndarray:
        vector = make(world)
        if _public_part(vector) != public:
            raise InternalError("what a build publishes beside its values depends on the records")
        return vector.values

    privacy = first.certificate.privacy
    if privacy.delta is None or privacy.mu is None:
        raise InternalError("the build has no noise")
    return two_worlds(
        release,
        Claim(privacy.epsilon, privacy.delta, privacy.mu),
        worlds=words,
        direction=_PATTERN,
        runs=runs,
        error=error,
        progress=progress,
    )


def neighbours(
    relation: str, units: bool
) -> tuple[tuple[list[Demonstration], list[Demonstration]], dict[str, Any], str]:
    """Two neighbouring files that differ as much as neighbours can, and the build's options.

    In world 1 the first record, or all records of the first person, say "yes", and everybody else
    says "no". Under ``zero_out`` the first one's chunk fails in world 0. The others answer the
    opposite of "yes", so that a divisor that follows the failures would double what shows.

    Returns:
        Rows of world 0 and of world 1, options of `build_task_vector`, the difference in words.
    """
    shots, chunks = (3, 3) if units else (1, 4)
    options: dict[str, Any] = {"shots": shots, "chunks": chunks}
    whose = "one record"
    if units:
        # A person has more records than the two that serve, and never the same number.
        options |= {"unit": "person", "per_unit": 2}
        whose = "all records of one person"
        others = [_row(_NO, f"person {i}") for i in range(5) for _ in range(2 + i % 3)]
        canary = [_row(_YES, "canary")] * 4
        absent = [_row(_NO, "canary")] * 3
    else:
        others = [_row(_NO)] * 7
        canary, absent = [_row(_YES)], [_row(_NO)]
    match relation:
        case NeighbourRelation.REPLACE_ONE:
            words = f"{whose} replaced by others" if units else f"{whose} replaced by another"
        case NeighbourRelation.ADD_REMOVE:
            # Chunks are filled by hash: room for everybody, so that the canary always serves, and
            # so many others that it is never alone in its chunk (but once in 4,096 builds).
            others = [_row(_NO, f"person {i}") for i in range(12) for _ in range(2)]
            absent = []
            options |= {"shots": 25, "chunks": 2, "population": 100}
            words = f"{whose} added"
        case NeighbourRelation.ZERO_OUT:
            absent = [replace(row, question=_FAILS) for row in canary]
            words = "one chunk becomes null"
        case _:
            known = ", ".join(NeighbourRelation)
            raise PrivacyParameterError(f"unknown neighbour relation; choose one of {known}")
    return ([*absent, *others], [*canary, *others]), options, f"{relation}, {words}"


def _row(says: str, unit: str | None = None) -> Demonstration:
    return Demonstration("never opened", says, "an answer", unit=unit)


def _public_part(vector: TaskVector) -> tuple[Any, ...]:
    """Everything that is published but the noised values and what names them."""
    certificate = vector.certificate
    privacy = replace(certificate.privacy, ledger=None)
    kept = (certificate.model, privacy, certificate.selection, certificate.inference)
    return (*kept, vector.heads.tolist())
