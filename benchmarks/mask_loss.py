"""Part of benchmarks/speed.py: REINFORCE's losses from one kept prefix, against whole passes.

Ours is `dpmtv.models.mask_loss.MaskLoss`, as the head search uses it. The others are the plain
loop, one whole forward pass per mask, as the reference implementation of multimodal task vectors
does; and whole passes in batches. They do the same for every mask, so they run ``SHARE`` of a
step's masks and are counted as for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpmtv.models.mask_loss import MaskLoss, whole_pass_losses
from dpmtv.types import Prompt
from side_by_side import Row, device_name, length, row, timed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpmtv.models.adapters import VisionLanguageModel
    from dpmtv.types import Demonstration

STEPS, MASKS = 200, 32  # of a search by default
SHARE = 8


def search_rows(
    model: VisionLanguageModel,
    name: str,
    records: Sequence[Demonstration],
    shots: int,
    pairs: int,
) -> list[Row]:
    """Seconds of a search, from the time of a step.

    Every step sees an example for the first time and runs its prefix, as in a search with as many
    public examples as steps; with fewer, later steps find the prefix there and are faster.
    """
    size = shots + 1
    chunks = [records[i * size : (i + 1) * size] for i in range(pairs + 2)]
    prompts = [Prompt(tuple(c[:-1]), c[-1].query) for c in chunks]
    rng = np.random.default_rng(0)
    vector = rng.normal(0, 0.3, model.layout.size)
    masks = rng.random((MASKS, model.layout.n_heads)) < 0.5
    answers = [c[-1].answer for c in chunks]
    loss = MaskLoss(model, prompts, answers, [vector] * len(prompts))
    loss(masks, 0)  # warm up: runs two prefixes, and whole passes to compare with
    rivals = {"plain loop, one pass a mask": 1, f"whole passes in batches of {SHARE}": SHARE}
    spent: dict[str, list[tuple[float, float]]] = {other: [] for other in rivals}
    gaps = dict.fromkeys(rivals, 0.0)
    for at in range(2, pairs + 2):
        ours, got = timed(lambda at=at: loss(masks, at), model.device)
        for other, together in rivals.items():
            one = (model, prompts[at], loss.answers[at], model.by_layer(vector), masks[:SHARE])
            seconds, want = timed(
                lambda one=one, together=together: whole_pass_losses(*one, loss.patch, together),
                model.device,
            )
            spent[other].append((STEPS * ours, STEPS * seconds * MASKS / SHARE))
            gap = float(np.abs(got[:SHARE] - want.float().cpu().numpy()).max())
            gaps[other] = max(gaps[other], gap)
    return [
        row(
            f"head search, {STEPS} steps of {MASKS} masks",
            f"{other} (timed on {SHARE} masks a pair)",
            spent[other],
            ratio_of="other / ours",
            target=None,
            max_difference=gaps[other],
            model=name,
            tokens=length(model, prompts[0]),
            device=device_name(model.device),
        )
        for other in rivals
    ]
