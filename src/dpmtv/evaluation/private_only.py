"""Releases without public records, simulated on public ones: a build's own choices and mechanisms.

`dpmtv evaluate` knows the records, so what a chunk holds and votes is computed once and kept over
the draws; partition, choices, noise and patching are fresh in each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dpmtv.errors import PrivacyParameterError
from dpmtv.evaluation.benchmark import asked_of
from dpmtv.geometry import geometry_from_public
from dpmtv.models.mask_loss import MaskLoss
from dpmtv.pipeline import calibrate_for
from dpmtv.privacy.choice import clipped_scores, exponential_mechanism
from dpmtv.private_choices import (
    VOTE_SHARE,
    PrivateVotes,
    band_masks,
    made_up_geometry,
    made_up_queries,
    plan_choices,
)
from dpmtv.public_tasks import LAYER_CLIP_FACTOR, public_values
from dpmtv.types import Demonstration, Prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpmtv.evaluation.benchmark import BenchmarkTask
    from dpmtv.evaluation.settings import Recipe
    from dpmtv.models.adapters import VisionLanguageModel

Released = tuple[np.ndarray, np.ndarray, int]  # vector, heads, released coordinates


@dataclass
class PrivateOnly:
    """One task's records in the private role, with nothing public but made-up prompts.

    Args:
        model: the model.
        task: its records, and its questions, which are taken as known if they are few.
        patch: patch mode.
        delta: δ.
    """

    model: VisionLanguageModel
    task: BenchmarkTask
    patch: str
    delta: float
    values: dict[int, np.ndarray] = field(default_factory=dict)
    votes: dict[int, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.queries = made_up_queries(asked_of(self.task))
        self.geometry_of = made_up_geometry(self.model, 1, self.queries)
        records = self.task.private
        self.asked = MaskLoss(
            self.model,
            [Prompt((), r.query) for r in records],
            [r.answer for r in records],
            [],
            self.patch,
        )

    def ours(
        self, recipe: Recipe, drawn: Sequence[int], epsilon: float, relation: str
    ) -> Released | None:
        """A build with ``public="none"``, a record a chunk; None where it refuses."""
        model = self.model
        plan = plan_choices("private", recipe.clip, epsilon, None, None)
        try:
            plan.check(len(drawn))
        except PrivacyParameterError:
            return None
        votes = PrivateVotes(model, plan, self.queries, self.patch)
        seen = [self._seen(votes.masks, i) for i in drawn]
        heads, geometry, coordinates = votes.choose(seen, votes.masks[0], self.geometry_of)
        mechanism = calibrate_for(
            *(geometry, epsilon, self.delta, relation, len(drawn), plan.events),
            largest=model.layout.size,
        )
        release = mechanism.release(coordinates)
        # How many coordinates there are is chosen in each draw; at most all.
        return geometry.from_release(release.value), heads, model.layout.size

    def paper(
        self, chunks: np.ndarray, first: Sequence[int], epsilon: float, relation: str
    ) -> Released:
        """The paper's release of every head, then a private mask by patching it; ε split in two.

        Args:
            chunks: activations of its chunks, [chunks, coordinates].
            first: the first record of each, which votes.
            epsilon: of both together, added up.
            relation: the neighbour relation.
        """
        model = self.model
        selecting = VOTE_SHARE * epsilon
        every = np.ones(model.layout.n_heads, dtype=bool)
        query = self.queries[0]
        made_up = [[Demonstration(query.image, query.question, "yes")] * 4]
        typical = public_values(model, made_up, self.queries)
        geometry = geometry_from_public(
            model.layout, every, typical, LAYER_CLIP_FACTOR, per_layer=True
        )
        left = epsilon - selecting
        mechanism = calibrate_for(geometry, left, self.delta, relation, len(chunks))
        release = mechanism.release([geometry.to_release(c) for c in chunks])
        vector = geometry.from_release(release.value)
        masks = band_masks(model.layout)
        right = np.stack([self.asked.right(vector[None], masks, i) for i in first])
        sums = clipped_scores(right.astype(float), bound=1.0, levels=1)
        pick = exponential_mechanism(sums, sensitivity=1, range_=selecting)
        return vector, masks[pick.index], len(release.value)

    def _seen(self, masks: np.ndarray, at: int) -> np.ndarray:
        if at not in self.values:
            self.values[at] = public_values(self.model, [[self.task.private[at]]], self.queries)[0]
            right = self.asked.right(self.values[at][None], masks, at)
            self.votes[at] = right.astype(float)
        return np.concatenate([self.values[at], self.votes[at]])
