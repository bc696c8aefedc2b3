"""The loss of many head masks at the cost of one last token each.

Replacing heads at the last prompt token leaves everything before it unchanged, so the prompt is
run once per example, its key-value cache kept, and only the last prompt token and the answer run
again, with one row per mask. The reference implementation of multimodal task vectors runs the
whole prompt once per mask (Huang et al. 2024, arXiv 2406.15334).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from dpmtv.models.hooks import patch_heads

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dpmtv.models.adapters import VisionLanguageModel
    from dpmtv.types import Prompt


_MOST_KEPT = 8e9  # bytes of prefixes; a large model's are 0.1 GB each


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
        self._prefixes: dict[int, _Prefix] = {}
        self._kept = 0  # bytes of them
        self._prefix_is_exact: bool | None = None

    def __len__(self) -> int:
        """Number of examples."""
        return len(self.prompts)

    @property
    def keeps_prefixes(self) -> bool:
        """Whether prompts are run once for all masks; known after the first loss."""
        return bool(self._prefix_is_exact)

    # Not inference mode: its tensors, such as a kept prefix, could not serve a gradient later.
    @torch.no_grad()
    def __call__(
        self, masks: Bool[np.ndarray, "masks heads"], example: int
    ) -> Float[np.ndarray, " masks"]:
        """Loss of each mask on one example, in nats per answer token.

        The first call compares kept prefixes with whole passes. A model for which they differ
        (one that lets a prompt see itself in both directions, or that keeps positions outside the
        cache) is scored by whole passes, slower and right.
        """
        losses = self._losses(self.model.by_layer(self.vectors[example]), masks, example)
        return np.asarray(losses.cpu().numpy(), np.float32)

    def of_vectors(
        self, vectors: Float[Tensor, "rows coordinates"], heads: Bool[np.ndarray, " heads"], at: int
    ) -> Float[Tensor, " rows"]:
        """Loss of each of several vectors, put in place of the same heads, on example ``at``.

        A gradient flows back to ``vectors``, through the last prompt token and the answer alone.
        """
        values = torch.split(vectors, list(self.model.layout.widths), dim=1)
        return self._losses(values, np.tile(heads, (len(vectors), 1)), at)

    @torch.no_grad()
    def under(
        self,
        vectors: Float[np.ndarray, "rows coordinates"],
        heads: Bool[np.ndarray, " heads"],
        at: int,
    ) -> Float[np.ndarray, " rows"]:
        """Loss of example ``at`` under each vector, as `of_vectors`, without gradients."""
        rows = self._losses(self.model.by_layer(vectors), np.tile(heads, (len(vectors), 1)), at)
        return np.asarray(rows.cpu().numpy(), np.float32)

    @torch.no_grad()
    def right(
        self,
        vectors: Float[np.ndarray, "#rows coordinates"],
        heads: Bool[np.ndarray, "*#rows heads"],
        at: int,
    ) -> Bool[np.ndarray, " rows"]:
        """Whether example ``at`` is answered exactly under each vector; see `answered_right`."""
        values = self.model.by_layer(vectors)
        masks = np.tile(heads, (len(vectors), 1)) if heads.ndim == 1 else heads
        if self._prefix_is_exact is None:
            self._prefix_is_exact = self._compare(values, masks, at)
        if not self._prefix_is_exact:
            return answered_right(
                self.model, self.prompts[at], self.answers[at], vectors, heads, self.patch
            )
        answer = torch.tensor(self.answers[at], device=self.model.device)
        return _all_right(self.model, self._prefix_logits(values, masks, at, answer), answer)

    def _losses(
        self, values: Sequence[Tensor], masks: Bool[np.ndarray, "rows heads"], example: int
    ) -> Tensor:
        if self._prefix_is_exact is None:
            self._prefix_is_exact = self._compare(values, masks, example)
        run = self._from_prefix if self._prefix_is_exact else self._whole
        return run(values, masks, example)

    @torch.no_grad()
    def _compare(
        self, values: Sequence[Tensor], masks: Bool[np.ndarray, "rows heads"], example: int
    ) -> bool:
        tolerance = 1e-3 if self.model.dtype == "float32" else 5e-2
        values, masks = [v[:2] for v in values], masks[:2]
        try:
            self._prefix(example)
            self._prefix((example + 1) % len(self))  # what a model keeps aside is now another's
            kept = self._from_prefix(values, masks, example)
        except Exception:  # a cache or an input of another kind; the prompts are public
            return False
        whole = self._whole(values, masks, example)
        return bool((kept - whole).abs().max() <= tolerance * (1 + whole.abs().max()))

    def _whole(
        self, values: Sequence[Tensor], masks: Bool[np.ndarray, "rows heads"], example: int
    ) -> Tensor:
        return whole_pass_losses(
            self.model, self.prompts[example], self.answers[example], values, masks, self.patch
        )

    def _from_prefix(
        self, values: Sequence[Tensor], masks: Bool[np.ndarray, "rows heads"], example: int
    ) -> Tensor:
        answer = torch.tensor(self.answers[example], device=self.model.device)
        return answer_losses(self._prefix_logits(values, masks, example, answer), answer)

    def _prefix_logits(
        self,
        values: Sequence[Tensor],
        masks: Bool[np.ndarray, "rows heads"],
        example: int,
        answer: Tensor,
    ) -> Tensor:
        prefix = self._prefix(example)
        rows = len(masks)
        ids = torch.cat([prefix.last["input_ids"][0], answer[:-1]]).expand(rows, -1)
        inputs = {"input_ids": ids}
        if "cross_attention_mask" in prefix.last:  # which images the text may look at
            seen = prefix.last["cross_attention_mask"]
            inputs["cross_attention_mask"] = seen.expand(rows, ids.shape[1], -1, -1)
        if not prefix.offsets:  # with them a mask would be taken for all tokens' positions
            length = prefix.cache.get_seq_length() + ids.shape[1]
            inputs["attention_mask"] = torch.ones(rows, length, device=ids.device).long()
        self.model.position_offsets = prefix.offsets
        where = slice(0, 1) if self.patch == "prompt" else slice(0, None)
        with patch_heads(
            self.model.projections,
            values,
            self.model.coordinate_masks(masks),
            lambda _tokens: where,
        ):
            cache = _widen(prefix.cache, rows)
            logits, _ = self.model.forward(inputs, cache=cache, use_cache=True)
        return logits

    @torch.no_grad()
    def _prefix(self, example: int) -> _Prefix:
        """Everything before the prompt's last token, run once."""
        if example not in self._prefixes:
            inputs = self.model.inputs([self.prompts[example]])
            of_tokens = {k: inputs[k] for k in _PER_TOKEN & set(inputs)}
            short = inputs | {k: v[:, :-1] for k, v in of_tokens.items()}
            _, cache = self.model.forward(short, use_cache=True, logits_to_keep=1)
            last = {k: v[:, -1:] for k, v in of_tokens.items()}
            self._kept += _bytes(cache)
            while self._prefixes and self._kept > _MOST_KEPT:
                oldest = next(iter(self._prefixes))
                self._kept -= _bytes(self._prefixes.pop(oldest).cache)
            self._prefixes[example] = _Prefix(last, cache, self.model.position_offsets)
        return self._prefixes[example]


@dataclass(frozen=True)
class _Prefix:
    """What it takes to go on with a prompt: its last token, and the cache of all before it."""

    last: dict[str, Tensor]
    cache: Any
    offsets: list[Tensor | None]


_PER_TOKEN = {
    "input_ids",
    "attention_mask",
    "token_type_ids",
    "mm_token_type_ids",
    "cross_attention_mask",
}


def whole_pass_losses(
    model: VisionLanguageModel,
    prompt: Prompt,
    answer: Sequence[int],
    values: Sequence[Tensor],
    masks: Bool[np.ndarray, "rows heads"],
    patch: str,
    rows_a_pass: int = 8,
) -> Float[Tensor, " rows"]:
    """The same losses by whole forward passes: slow, and right for every model.

    Args:
        model: the model.
        prompt: one public prompt.
        answer: its answer's tokens.
        values: what to patch with: per layer, one row for all masks or one for each.
        masks: one loss for each.
        patch: as at inference.
        rows_a_pass: masks in one batch; 1 is the plain loop of the reference implementation.
    """
    answer_ids = torch.tensor(answer, device=model.device)
    passes = _whole_passes(model, prompt, answer_ids, values, masks, patch, rows_a_pass)
    return torch.cat([answer_losses(logits, answer_ids) for logits in passes])


@torch.no_grad()
def answered_right(
    model: VisionLanguageModel,
    prompt: Prompt,
    answer: Sequence[int],
    vectors: Float[np.ndarray, "#rows coordinates"],
    heads: Bool[np.ndarray, "*#rows heads"],
    patch: str,
    rows_a_pass: int = 8,
) -> Bool[np.ndarray, " rows"]:
    """Whether greedy decoding under each vector would give exactly this answer and end.

    It would if, after the answer's tokens so far, the next one is always the likeliest: that
    needs no decoding, only one pass over prompt and answer.

    Args:
        model: the model.
        prompt: one prompt.
        answer: its answer's tokens; any end token serves at the end.
        vectors: what to patch with, one result for each; or one for all masks.
        heads: the head mask of all, or one for each result.
        patch: as at inference.
        rows_a_pass: results in one batch.
    """
    model.require_length(len(answer))
    masks = np.tile(heads, (len(vectors), 1)) if heads.ndim == 1 else heads
    answer_ids = torch.tensor(answer, device=model.device)
    passes = _whole_passes(
        model, prompt, answer_ids, model.by_layer(vectors), masks, patch, rows_a_pass
    )
    return np.concatenate([_all_right(model, logits, answer_ids) for logits in passes])


def _all_right(
    model: VisionLanguageModel, logits: Tensor, answer: Tensor
) -> Bool[np.ndarray, " rows"]:
    ends = torch.tensor(sorted(model.end_ids), dtype=torch.long, device=model.device)
    likeliest = logits.argmax(-1)
    right = likeliest == answer
    right |= torch.isin(likeliest, ends) & torch.isin(answer, ends)
    return np.asarray(right.all(1).cpu().numpy(), bool)


def _whole_passes(
    model: VisionLanguageModel,
    prompt: Prompt,
    answer: Tensor,
    values: Sequence[Tensor],
    masks: Bool[np.ndarray, "rows heads"],
    patch: str,
    rows_a_pass: int,
) -> Iterator[Tensor]:
    """Logits of the answer's tokens, [rows of a pass, answer tokens, vocabulary], pass by pass."""
    inputs = model.inputs([prompt])
    length = inputs["input_ids"].shape[1]
    for name in _PER_TOKEN & set(inputs):
        more = answer[None, :-1]
        if name != "input_ids":  # an answer's tokens are text like the prompt's last one
            more = inputs[name][:, -1:].expand(-1, more.shape[1], *inputs[name].shape[2:])
        if name == "token_type_ids" and model.model.config.model_type == "paligemma":
            more = torch.ones_like(more)  # a prefix sees itself in both directions, an answer not
        inputs[name] = torch.cat([inputs[name], more], 1)
    where = slice(length - 1, length) if patch == "prompt" else slice(length - 1, None)
    for start in range(0, len(masks), rows_a_pass):
        model.position_offsets = [None] * len(model.position_offsets)  # of another prompt
        rows = slice(start, start + rows_a_pass)
        # Whole copies one after the other: some models lay the patches of all images in one axis.
        copies = len(masks[rows])
        batch = {k: v.repeat(copies, *[1] * (v.dim() - 1)) for k, v in inputs.items()}
        with patch_heads(
            model.projections,
            [v if len(v) == 1 else v[rows] for v in values],
            model.coordinate_masks(masks[rows]),
            lambda _tokens: where,
        ):
            logits, _ = model.forward(batch, use_cache=False, logits_to_keep=len(answer))
        yield logits


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


def _bytes(cache: Any) -> int:
    held = (value for layer in cache.layers for value in vars(layer).values())
    return sum(value.nbytes for value in held if isinstance(value, Tensor))


def answer_losses(logits: Tensor, answer: Tensor) -> Float[Tensor, " rows"]:
    """Mean cross-entropy over answer tokens; logits are [rows, answer tokens, vocabulary]."""
    rows = len(logits)
    losses = nn.functional.cross_entropy(
        logits.float().flatten(0, 1), answer.repeat(rows), reduction="none"
    )
    return losses.reshape(rows, -1).mean(1)
