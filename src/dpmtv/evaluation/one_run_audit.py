"""The one-run audit of the whole build: every slot a canary, one `build_task_vector`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dpmtv.artifact import TaskVector
from dpmtv.audit.one_run import CANARIES, ERROR, OneRunAudit, judge_guesses
from dpmtv.audit.two_worlds import Claim
from dpmtv.errors import InternalError, PrivacyParameterError
from dpmtv.pipeline import build_task_vector
from dpmtv.privacy.certificate import ModelIdentity
from dpmtv.privacy.sensitivity import NeighbourRelation
from dpmtv.types import Demonstration, HeadLayout, Prompt

if TYPE_CHECKING:
    from jaxtyping import Bool, Float32

    from dpmtv.models.adapters import VisionLanguageModel
    from dpmtv.public_tasks import Progress

CLIP = 1.0
_YES, _NO, _FAILS = "yes", "no", "fails"  # what a record says, after its number


class ManyCanariesModel:
    """The worst chunk map for many canaries: each has a coordinate of its own.

    A chunk goes far outside the ball, up along the coordinates of its persons that say "yes" and
    down along those that say "no", and raises if one says "fails".
    """

    instruction = ""
    dtype = "float32"
    prompt_template_sha256 = "0" * 64

    def __init__(self, canaries: int) -> None:
        self.layout = HeadLayout(heads=(canaries,), head_dims=(1,))
        self.identity = ModelIdentity(
            None, None, "0" * 64, "ManyCanariesModel", self.layout.heads, self.layout.head_dims
        )

    def last_token_heads(self, prompt: Prompt) -> Float32[np.ndarray, " coordinates"]:
        """What the chunk's records say, as activations."""
        values = np.zeros(self.layout.size, np.float32)
        questions = [r.question for r in prompt.demonstrations] + [prompt.query.question]
        for question in questions:
            number, _, said = question.partition(" ")
            if said == _FAILS:
                raise ValueError
            if said in (_YES, _NO):
                values[int(number)] = 1e3 * CLIP * (1 if said == _YES else -1)
        return values

    def recover(self) -> None:
        """Nothing to free."""


def audit_one_run(
    *,
    relation: str = NeighbourRelation.REPLACE_ONE,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    canaries: int = CANARIES,
    error: float = ERROR,
    progress: Progress = lambda _what, _done, _total: None,
) -> OneRunAudit:
    """Build once from made-up records that coins decide, and compare with the certificate.

    It tests the installed code and needs no data: rows, partition, clip, sum, ledger, noise,
    certificate and artifact are the real ones, and what is looked at is read back from the disk.

    Args:
        relation: what a coin does: replace a person, add one, or make a person's chunk null.
        epsilon: ε that the build asks for.
        delta: δ that the build asks for.
        canaries: coins, and chunks.
        error: most false alarms of a correct build.
        progress: called with (what, done, total).

    Raises:
        UserError: options that cannot be used.
        InternalError: a certificate without noise.
    """
    coins = np.random.default_rng().random(canaries) < 0.5
    rows, options, words = canary_rows(relation, coins)
    with tempfile.TemporaryDirectory(prefix="dpmtv-audit-") as name:
        folder = Path(name) / "vector"
        build_task_vector(
            cast("VisionLanguageModel", ManyCanariesModel(canaries)),
            rows,
            epsilon=epsilon,
            delta=delta,
            relation=relation,
            unit="person",
            per_unit=2,
            selection="all",
            chunks=canaries,
            clip=CLIP,
            ledger=Path(name) / "ledger",
            progress=progress,
            **options,
        ).save_pretrained(folder)
        vector = TaskVector.from_pretrained(folder)
    privacy = vector.certificate.privacy
    if privacy.delta is None or privacy.mu is None:
        raise InternalError("the build has no noise")
    return judge_guesses(
        vector.values.astype(np.float64),
        coins,
        Claim(privacy.epsilon, privacy.delta, privacy.mu),
        canaries=words,
        error=error,
    )


def canary_rows(
    relation: str, coins: Bool[np.ndarray, " coins"]
) -> tuple[list[Demonstration], dict[str, Any], str]:
    """Rows of persons as the coins fell, the build's options, what the coins decide in words.

    A person is two records, since a chunk without public queries needs a demonstration and a
    query, and is a chunk alone but under ``add_remove``, where chunks are filled by hash. There
    the canary moves its chunk from zero, half as far as the sensitivity allows, or less beside
    others.
    """
    options: dict[str, Any] = {"shots": 1}
    match relation:
        case NeighbourRelation.REPLACE_ONE:
            otherwise, words = _NO, "all records of a person replaced by others"
        case NeighbourRelation.ADD_REMOVE:
            otherwise, words = "", "all records of a person added"
            options |= {"shots": 9, "population": len(coins)}
        case NeighbourRelation.ZERO_OUT:
            otherwise, words = _FAILS, "a person's chunk becomes null"
        case _:
            known = ", ".join(NeighbourRelation)
            raise PrivacyParameterError(f"unknown neighbour relation; choose one of {known}")
    rows = [
        Demonstration("never opened", f"{number} {said}", "an answer", unit=f"{number:09}")
        for number, coin in enumerate(coins)
        if (said := _YES if coin else otherwise)
        for _ in range(2)
    ]
    return rows, options, f"{relation}, {words}"
