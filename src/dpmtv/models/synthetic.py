"""Public records made for one model: tasks that it can do, and a check of the heads found on them.

The pictures and rules are the same for all models (:mod:`dpmtv.data.synthetic`). Here they get the
model's own words, are cut down to what it answers right in context, and what is left is split: most
of it serves as a public file does, the rest checks the heads that a search has found.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Literal

import numpy as np

from dpmtv.data.synthetic import FEWEST_WORDS, synthetic_records
from dpmtv.errors import ModelError
from dpmtv.models.extraction import preflight
from dpmtv.models.mask_loss import MaskLoss, whole_pass_losses
from dpmtv.types import Prompt, Query

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxtyping import Float

    from dpmtv.data.demonstrations import BadRow
    from dpmtv.head_selection import Selection
    from dpmtv.models.adapters import VisionLanguageModel
    from dpmtv.types import Demonstration

    Progress = Callable[[str, int, int], None]

WORDS = 64
SHOWN = 6  # demonstrations at least: fewer often show only some of a rule's answers
TRIES = 3
ENOUGH = 0.8  # of the in-context gain in loss
_LEAST_TASKS = 4  # with several answers: heads of constant ones can pass and carry no rule
_RIGHT = 0.7  # of a task's records: saying one of two answers throughout is right for half
_CHECKS = 1 / 5  # of a task's records, kept apart from the search
_COMMON = 4000  # tokenizers list frequent words first; rare ones may never have been trained
_MARKS = ("Ġ", "▁")  # how byte-level BPE and SentencePiece write the space before a word
_WORD = re.compile("[a-z]{3,}")
_INSTEAD = "give public records of tasks that it can do: --public FILE"


def answer_words(model: VisionLanguageModel, count: int = WORDS) -> list[str]:
    """Words that the model answers with one token, from its own tokenizer.

    Args:
        model: the model.
        count: most words.

    Returns:
        Lower-case Latin words of three letters or more, spread over the frequent part of the
        vocabulary; the same ones at every call.
    """
    vocabulary = sorted(model.tokenizer.get_vocab().items(), key=lambda item: item[1])
    tokens = [token for token, _ in vocabulary]
    starts = [token[1:] for token in tokens if token.startswith(_MARKS)]
    whole = dict.fromkeys(word for word in starts or tokens if _WORD.fullmatch(word))
    spread = sorted(islice(whole, _COMMON), key=lambda w: hashlib.sha256(w.encode()).digest())
    prompt = Prompt((), Query("", "?"))

    def tokens_of(word: str) -> int:
        return sum(token not in model.end_ids for token in model.answer_ids(prompt, word))

    return list(islice((word for word in spread if tokens_of(word) == 1), count))


@dataclass(frozen=True)
class SyntheticPublic:
    """Generated records that the model answers right in context.

    Args:
        records: to be used as those of a public file, task after task.
        checks: of each task, in the same order, prompts with demonstrations and the answers that
            are wanted, none of them among ``records``.
    """

    records: list[Demonstration]
    checks: list[list[tuple[Prompt, str]]]

    def search(
        self,
        model: VisionLanguageModel,
        vectors: Sequence[Float[np.ndarray, " coordinates"]],
        patch: str,
        attempt: Callable[[int], Selection],
        progress: Progress = lambda _what, _done, _total: None,
    ) -> Selection:
        """Search until the heads do on checked records what the demonstrations do.

        Some searches end in a part of the heads that carry a task. The loss on records that no
        search has seen tells which: 1 is as good as the demonstrations, 0 as bad as none.

        Args:
            model: the model.
            vectors: each task's mean activations, shape [coordinates].
            patch: as at inference.
            attempt: one head search, from a seed.
            progress: called with (what, done, total).

        Raises:
            ModelError: no search did well enough.
        """
        cases = [
            (prompt, answer, vector)
            for task, vector in zip(self.checks, vectors, strict=True)
            for prompt, answer in task
        ]
        loss = MaskLoss(
            model,
            prompts=[Prompt((), prompt.query) for prompt, _, _ in cases],
            answers=[answer for _, answer, _ in cases],
            vectors=[vector for _, _, vector in cases],
            patch=patch,
        )

        def mean_loss(heads: np.ndarray) -> float:
            return float(np.mean([loss(heads[None], i)[0] for i in range(len(cases))]))

        none = np.zeros(model.layout.n_heads, dtype=bool)
        bare = mean_loss(none)
        shown = np.mean(
            [
                whole_pass_losses(
                    model, p, model.answer_ids(p, a), model.by_layer(v), none[None], patch
                ).item()
                for p, a, v in cases
            ]
        )
        best, kept = None, -np.inf
        for seed in range(TRIES):
            found = attempt(seed)
            share = (bare - mean_loss(found.heads)) / max(bare - float(shown), 1e-9)
            if share > kept:
                best, kept = found, share
            if kept >= ENOUGH:
                break
        progress(f"check: {max(kept, 0):.0%} of the in-context gain", 1, 1)
        if best is None or kept < ENOUGH:
            raise ModelError(
                f"the heads found on synthetic tasks keep {max(kept, 0):.0%} of what "
                f"demonstrations gain, after {TRIES} searches; {ENOUGH:.0%} are needed. For this "
                f"model, {_INSTEAD}"
            )
        return best


def synthetic_public(
    model: VisionLanguageModel,
    shots: int,
    progress: Progress = lambda _what, _done, _total: None,
) -> SyntheticPublic:
    """Generate public records, and keep those that the model answers right in context.

    Args:
        model: the model.
        shots: K of the chunks that the records are to fill.
        progress: called with (what, done, total).

    Raises:
        ModelError: too few words or tasks that the model can do.
    """
    words = answer_words(model)
    if len(words) < FEWEST_WORDS:
        raise ModelError(
            f"the tokenizer has {len(words)} words of one token, too few for synthetic tasks; "
            f"{_INSTEAD}"
        )
    # What is left of a task must still make a chunk or more, queries and a check.
    records = synthetic_records(words, records=max(24, 5 * (shots + 1)))
    return answered_in_context(model, records, shots, progress)


def answered_in_context(
    model: VisionLanguageModel,
    records: Sequence[Demonstration],
    shots: int,
    progress: Progress = lambda _what, _done, _total: None,
) -> SyntheticPublic:
    """Ask every record after some of its own task, and keep those that are answered right.

    A task that the model often gets wrong teaches nothing about where it keeps a task, so it goes
    as a whole. Arguments and errors as of `synthetic_public`.
    """
    if shots < SHOWN:
        preflight(model, SHOWN)  # longer prompts than those of the chunks
    rules: dict[str | None, list[Demonstration]] = {}
    for record in records:
        rules.setdefault(record.task, []).append(record)
    several = [task for task, rule in rules.items() if len({r.answer for r in rule}) > 1]
    used: list[Demonstration] = []
    checks = []
    for done, rule in enumerate(rules.values(), 1):
        prompts = [_asked(rule, place, max(shots, SHOWN)) for place in range(len(rule))]
        # Two tokens more than the answer, or a right beginning would pass for the whole.
        most = 2 + max(len(model.answer_ids(Prompt((), r.query), r.answer)) for r in rule)
        said = model.generate(model.prepare(prompts, batch_size=8), most)
        right = [i for i, record in enumerate(rule) if said[i] == record.answer]
        if len(right) >= _RIGHT * len(rule):
            apart = max(1, int(len(right) * _CHECKS))
            checks.append([(prompts[i], rule[i].answer) for i in right[:apart]])
            used += [rule[i] for i in right[apart:]]
        progress("synthetic tasks", done, len(rules))
    able = len({record.task for record in used} & set(several))
    if able < _LEAST_TASKS:
        raise ModelError(
            f"from demonstrations the model can do {able} of {len(several)} synthetic tasks with "
            f"several answers; {_LEAST_TASKS} are needed to find its heads. For this model, "
            f"{_INSTEAD}"
        )
    return SyntheticPublic(used, checks)


def public_records(
    model: VisionLanguageModel,
    public: Sequence[Demonstration | BadRow] | Literal["synthetic", "none"] | None,
    shots: int,
    progress: Progress = lambda _what, _done, _total: None,
) -> tuple[Sequence[Demonstration | BadRow] | None, SyntheticPublic | None]:
    """Given records as they are; for "synthetic" generated ones, and how to check them."""
    if public == "none" or public is None:
        return None, None
    if not isinstance(public, str):
        return public, None
    made = synthetic_public(model, shots, progress)
    return made.records, made


def _asked(rule: Sequence[Demonstration], place: int, shown: int) -> Prompt:
    """One record's question after the ``shown`` records before it, going round."""
    return Prompt(tuple(rule[place - 1 - i] for i in reversed(range(shown))), rule[place].query)
