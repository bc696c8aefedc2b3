"""The loss of many head masks at the cost of one last token each.

Replacing heads at the last prompt token leaves everything before it unchanged, so the prompt is
run once per example, its key-value cache kept, and only the last prompt token and the answer run
again, with one row per mask. The reference implementation of multimodal task vectors runs the
whole prompt once per mask (Huang et al. 2024, arXiv 2406.15334).
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from dpmtv.models.hooks import patch_heads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float

    from dpmtv.models.adapters import VisionLanguageModel
    from dpmtv.types import Prompt


class MaskLoss:
    """Mean answer loss of each head mask on one public example at a time.

    Args:
        model: the frozen model.
        prompts: public prompts, usually zero-shot.
        answers: the wanted answer of each; the loss runs over all its tokens and the end token.
        vectors: per example, the flat vector to patch with, shape [coordinates]. Public or
            released values only: a mask found by patching a raw private mean would leak it.
        patch: ``"prompt"`` or ``"every-step"``, as at inference.
    """

    def __init__(
        self,
        model: VisionLanguageModel,
        prompts: Sequence[Prompt],
        answers: Sequence[str],
        vectors: Sequence[Float[np.ndarray, " coordinates"]],
        patch: str = "every-step",
    ) -> None:
        self.model, self.prompts, self.patch = model, prompts, patch
        self.answers = [model.answer_ids(p, a) for p, a in zip(prompts, answers, strict=True)]
        self.vectors = vectors
        self._prefixes: dict[int, tuple[Tensor, Any]] = {}

    def __len__(self) -> int:
        """Number of examples."""
        return len(self.prompts)

    @torch.inference_mode()
    def __call__(
        self, masks: Bool[np.ndarray, "masks heads"], example: int
    ) -> Float[np.ndarray, " masks"]:
        """Loss of each mask on one example, in nats per answer token."""
        last, prefix = self._prefix(example)
        rows = len(masks)
        cache = copy.deepcopy(prefix)
        cache.reorder_cache(torch.zeros(rows, dtype=torch.long, device=self.model.device))
        answer = torch.tensor(self.answers[example], device=self.model.device)
        ids = torch.cat([last, answer[:-1]]).expand(rows, -1)
        seen = torch.ones(rows, prefix.get_seq_length() + ids.shape[1], device=ids.device)
        where = slice(0, 1) if self.patch == "prompt" else slice(0, None)
        with patch_heads(
            self.model.projections,
            self.model.by_layer(self.vectors[example]),
            self.model.coordinate_masks(masks),
            lambda _tokens: where,
        ):
            inputs = {"input_ids": ids, "attention_mask": seen.long()}
            logits, _ = self.model.forward(inputs, cache=cache, use_cache=True)
        return answer_losses(logits, answer)

    def _prefix(self, example: int) -> tuple[Tensor, Any]:
        """The prompt's last token and the cache of everything before it, made once."""
        if example not in self._prefixes:
            inputs = self.model.inputs([self.prompts[example]])
            length = inputs["input_ids"].shape[1]
            short = {
                k: v[:, :-1] if k in _PER_TOKEN and v.shape[1] == length else v
                for k, v in inputs.items()
            }
            _, cache = self.model.forward(short, use_cache=True, logits_to_keep=1)
            self._prefixes[example] = (inputs["input_ids"][0, -1:], cache)
        return self._prefixes[example]


_PER_TOKEN = {"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"}


def answer_losses(logits: Tensor, answer: Tensor) -> Float[np.ndarray, " rows"]:
    """Mean cross-entropy over answer tokens; logits are [rows, answer tokens, vocabulary]."""
    rows = len(logits)
    losses = nn.functional.cross_entropy(
        logits.float().flatten(0, 1), answer.repeat(rows), reduction="none"
    )
    means: Float[np.ndarray, " rows"] = losses.reshape(rows, -1).mean(1).cpu().numpy()
    return means
