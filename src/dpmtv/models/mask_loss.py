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
        self._prefix_is_exact: bool | None = None

    def __len__(self) -> int:
        """Number of examples."""
        return len(self.prompts)

    @torch.inference_mode()
    def __call__(
        self, masks: Bool[np.ndarray, "masks heads"], example: int
    ) -> Float[np.ndarray, " masks"]:
        """Loss of each mask on one example, in nats per answer token.

        The first call compares kept prefixes with whole passes. A model for which they differ
        (one that lets a prompt see itself in both directions, or that keeps positions outside the
        cache) is scored by whole passes, slower and right.
        """
        if self._prefix_is_exact is None:
            self._prefix_is_exact = self._compare(masks[:2], example)
        if self._prefix_is_exact:
            return self._from_prefix(masks, example)
        return self._whole(masks, example)

    def _compare(self, masks: Bool[np.ndarray, "masks heads"], example: int) -> bool:
        tolerance = 1e-3 if self.model.dtype == "float32" else 5e-2
        try:
            self._prefix(example)
            self._prefix((example + 1) % len(self))  # what a model keeps aside is now another's
            kept = self._from_prefix(masks, example)
        except Exception:  # a cache or an input of another kind; the prompts are public
            return False
        whole = self._whole(masks, example)
        return bool(np.abs(kept - whole).max() <= tolerance * (1 + np.abs(whole).max()))

    def _whole(
        self, masks: Bool[np.ndarray, "masks heads"], example: int
    ) -> Float[np.ndarray, " masks"]:
        return whole_pass_losses(
            self.model,
            self.prompts[example],
            self.answers[example],
            self.vectors[example],
            masks,
            self.patch,
        )

    def _from_prefix(
        self, masks: Bool[np.ndarray, "masks heads"], example: int
    ) -> Float[np.ndarray, " masks"]:
        last, prefix = self._prefix(example)
        rows = len(masks)
        cache = _widen(prefix, rows)
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


@torch.inference_mode()
def whole_pass_losses(
    model: VisionLanguageModel,
    prompt: Prompt,
    answer: Sequence[int],
    vector: Float[np.ndarray, " coordinates"],
    masks: Bool[np.ndarray, "masks heads"],
    patch: str,
    rows_a_pass: int = 8,
) -> Float[np.ndarray, " masks"]:
    """The same losses by whole forward passes: slow, and right for every model.

    Args:
        model: the model.
        prompt: one public prompt.
        answer: its answer's tokens.
        vector: what to patch with.
        masks: one loss for each.
        patch: as at inference.
        rows_a_pass: masks in one batch; 1 is the plain loop of the reference implementation.
    """
    answer_ids = torch.tensor(answer, device=model.device)
    inputs = model.inputs([prompt])
    length = inputs["input_ids"].shape[1]
    for name in _PER_TOKEN & set(inputs):
        fill = torch.zeros_like(answer_ids) if "type" in name else torch.ones_like(answer_ids)
        more = answer_ids if name == "input_ids" else fill
        inputs[name] = torch.cat([inputs[name], more[None, :-1]], 1)
    where = slice(length - 1, length) if patch == "prompt" else slice(length - 1, None)
    losses = []
    for start in range(0, len(masks), rows_a_pass):
        rows = masks[start : start + rows_a_pass]
        batch = {k: v.repeat_interleave(len(rows), 0) for k, v in inputs.items()}
        with patch_heads(
            model.projections,
            model.by_layer(vector),
            model.coordinate_masks(rows),
            lambda _tokens: where,
        ):
            logits, _ = model.forward(batch, use_cache=False, logits_to_keep=len(answer_ids))
        losses.append(answer_losses(logits, answer_ids))
    return np.concatenate(losses)


def _widen(prefix: Any, rows: int) -> Any:
    """A cache of ``rows`` equal rows to run on from; the prefix itself stays as it is."""
    from transformers.cache_utils import DynamicLayer

    if any(type(layer) is not DynamicLayer for layer in prefix.layers):
        cache = copy.deepcopy(prefix)
        cache.reorder_cache(torch.zeros(rows, dtype=torch.long))
        return cache
    cache = copy.copy(prefix)
    cache.layers = [copy.copy(layer) for layer in prefix.layers]
    for layer in cache.layers:  # views: a layer's update joins old and new into a new tensor
        layer.keys = layer.keys.expand(rows, -1, -1, -1)
        layer.values = layer.values.expand(rows, -1, -1, -1)
    return cache


def answer_losses(logits: Tensor, answer: Tensor) -> Float[np.ndarray, " rows"]:
    """Mean cross-entropy over answer tokens; logits are [rows, answer tokens, vocabulary]."""
    rows = len(logits)
    losses = nn.functional.cross_entropy(
        logits.float().flatten(0, 1), answer.repeat(rows), reduction="none"
    )
    means: Float[np.ndarray, " rows"] = losses.reshape(rows, -1).mean(1).cpu().numpy()
    return means
