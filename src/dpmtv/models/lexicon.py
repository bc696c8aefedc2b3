"""Candidate answers for decoding, from the released vector, public records and the tokenizer."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from dpmtv.models.synthetic import answer_words
from dpmtv.types import Prompt, Query

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float

    from dpmtv.models.adapters import VisionLanguageModel

WORDS = 800  # of the tokenizer's, beside the model's own answers and the public ones
_TOKENS = 48  # most likely first tokens of an answer
_VOCABULARY = 4000  # frequent words of the tokenizer, of which the likely ones serve
_BATCH = 32


def answer_lexicon(
    model: VisionLanguageModel,
    vector: Float[np.ndarray, " coordinates"],
    heads: Bool[np.ndarray, " heads"],
    queries: Sequence[Query],
    answers: Sequence[str],
    chances: Float[np.ndarray, "queries vocabulary"],
    count: int = WORDS,
    patch: str = "every-step",
) -> list[str]:
    """Words that the private rule may use: the released vector's answers, public ones, others.

    Noise that spoils every answer often leaves the right words among the likely ones, so these
    come first, and the tokenizer's words in the order of their probability.

    Args:
        model: the model.
        vector: the *noised* vector; any other would make the words, and with them what follows,
            a function of private records.
        heads: the head mask.
        queries: public, asked with the vector patched in.
        answers: of public records.
        chances: `first_tokens` of the same vector and queries.
        count: most words from the tokenizer.
        patch: as at inference.

    Returns:
        Each once, the most promising first, so that a list that is too long can be cut.
    """
    own = _own_answers(model, vector, heads, queries, patch, chances)
    likely = chances.mean(0)
    known, tokens = _vocabulary(model)
    others = [known[i] for i in np.argsort(-likely[list(tokens)], kind="stable")[:count]]
    words = [word.strip() for word in (*own, *answers, *others)]
    return [word for word in dict.fromkeys(words) if word and word.isprintable()]


@lru_cache(maxsize=1)
def _vocabulary(model: VisionLanguageModel) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The tokenizer's words that answers may be, and the first token of each."""
    bare = Prompt((), Query("", "?"))
    words = tuple(answer_words(model, _VOCABULARY))
    return words, tuple(model.answer_ids(bare, word)[0] for word in words)


@torch.inference_mode()
def first_tokens(
    model: VisionLanguageModel,
    vector: Float[np.ndarray, " coordinates"],
    heads: Bool[np.ndarray, " heads"],
    queries: Sequence[Query | Prompt],
    patch: str,
) -> Float[np.ndarray, "queries vocabulary"]:
    """Log-probabilities of an answer's first token, with the vector patched in."""
    with model.patched(vector, heads, patch):
        logits = [
            model.forward(batch, use_cache=False, logits_to_keep=1)[0][:, -1]
            for batch in model.prepare(queries, _BATCH).batches
        ]
    chances: Float[np.ndarray, "queries vocabulary"]
    chances = torch.cat(logits).float().log_softmax(1).cpu().numpy()
    return chances


@torch.inference_mode()
def _own_answers(
    model: VisionLanguageModel,
    vector: Float[np.ndarray, " coordinates"],
    heads: Bool[np.ndarray, " heads"],
    queries: Sequence[Query],
    patch: str,
    chances: Float[np.ndarray, "queries vocabulary"],
) -> list[str]:
    """The likeliest first tokens, each with the answer that it begins and alone.

    Alone too, since noise may keep the model from ending an answer.
    """
    likeliest = np.argsort(-chances.mean(0), kind="stable")[:_TOKENS].tolist()
    tokens = [token for token in likeliest if token not in model.end_ids]
    # Each goes on where it is likeliest, on a picture of its own class if it names one.
    asked = [Prompt((), queries[i]) for i in chances[:, tokens].argmax(0)]
    answers: list[list[int]] = []
    with model.patched(vector, heads, patch):
        for start in range(0, len(tokens), _BATCH):
            part = slice(start, start + _BATCH)
            answers += _continued(model, asked[part], tokens[part])
    words: list[str] = []
    for token, answer in zip(tokens, answers, strict=True):
        ended = not model.end_ids.isdisjoint(answer)
        words += [model.tokenizer.decode(answer, skip_special_tokens=True)] if ended else []
        words += [model.tokenizer.decode([token], skip_special_tokens=True)]
    return words


def _continued(
    model: VisionLanguageModel, prompts: Sequence[Prompt], first: Sequence[int]
) -> list[list[int]]:
    """Greedy answers that begin with given tokens, one a prompt."""
    from transformers import LogitsProcessor, LogitsProcessorList

    batch = model.inputs(prompts)
    start = batch["input_ids"].shape[1]
    begun = torch.tensor(first, device=model.device)[:, None]

    class Begin(LogitsProcessor):
        """At the first step, only one token."""

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            if input_ids.shape[1] > start:
                return scores
            return torch.full_like(scores, -torch.inf).scatter(1, begun, 0.0)

    ids = model.model.generate(
        **batch,
        max_new_tokens=model.max_new_tokens,
        do_sample=False,
        logits_processor=LogitsProcessorList([Begin()]),
    )
    new: list[list[int]] = ids[:, start:].tolist()
    return new
