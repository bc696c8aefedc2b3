"""The model's side of decoding: the activations that candidate words would give.

Everything here is public or released: public records, the model, and the noised vector. So all of
it is post-processing, passes are batched, and nothing is charged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dpmtv.data.images import load_image
from dpmtv.decoding import decode, mixture, public_rules
from dpmtv.models.extraction import public_activations
from dpmtv.models.lexicon import answer_lexicon, first_tokens
from dpmtv.types import Demonstration, Prompt, Query

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxtyping import Bool, Float

    from dpmtv.decoding import PublicRule
    from dpmtv.geometry import ReleaseGeometry
    from dpmtv.models.adapters import VisionLanguageModel

    Progress = Callable[[str, int, int], None]
    Shown = dict[tuple[int, str], np.ndarray]  # a class's first record and a word → activations

PICTURES = 2  # that an atom is the mean of
# Mean probability of the likeliest first token, on public pictures, above which the release is not
# decoded: noise that spoils the answers spoils the model's certainty first.
SURE = 0.7
MOST_PASSES = 5000  # for one rule's atoms
# Of a rule with more, noise that hides the words from the model hides them from the likelihood too.
MOST_CLASSES = 4
CANDIDATES = 8  # decoded vectors of one rule
QUERIES = 24  # public pictures that the released vector is tried on
_FEWEST = 16  # words with which a rule is worth its passes
_BATCH = 32


def candidate_vectors(
    model: VisionLanguageModel,
    geometry: ReleaseGeometry,
    release: Float[np.ndarray, " released"],
    sigma: float,
    heads: Bool[np.ndarray, " heads"],
    public: Sequence[Demonstration],
    queries: Sequence[Query],
    asked: Sequence[str] = (),
    patch: str = "every-step",
    shown: Shown | None = None,
    progress: Progress = lambda _what, _done, _total: None,
) -> Float[np.ndarray, "options coordinates"]:
    """The released vector as it is, then what it decodes to: the options of a private choice.

    A vector with which the model is sure of its answers is not decoded.

    *Guarantee.* A function of the release and of public values.

    Args:
        model: the frozen model.
        geometry: of the release.
        release: the released value, noise included.
        sigma: standard deviation of its noise on each coordinate.
        heads: the head mask that the vector is used with.
        public: the public records.
        queries: those that end the private chunks' prompts.
        asked: the questions that the vector will be asked, if they are known.
        patch: as at inference.
        shown: passes that were run before with the same ``public`` and ``queries``, to be kept.
        progress: called with (what, done, total).

    Raises:
        DataError: a public image cannot be read.
    """
    raw = geometry.from_release(release)
    wanted = {" ".join(question.split()) for question in asked}
    tried = [r.query for r in public if not wanted or " ".join(r.question.split()) in wanted]
    answers = [record.answer for record in public]
    tried = tried[:: max(1, len(tried) // QUERIES)][:QUERIES]  # of all rules
    tried = tried or list(queries)
    chances = first_tokens(model, raw, heads, tried, patch)
    if float(np.exp(chances.max(1)).mean()) >= SURE:
        return raw[None]
    words = answer_lexicon(model, raw, heads, tried, answers, chances, patch=patch)
    options, kept = [raw], geometry.layout.coordinates(geometry.heads)
    for rule in public_rules(public, asked):
        if len(rule.classes) > MOST_CLASSES:
            continue
        atoms = rule_atoms(model, geometry, rule, words, queries, shown=shown, progress=progress)
        if atoms is not None:
            found = decode(release, atoms.released, rule.shares, sigma, CANDIDATES)
            # As in the release itself, heads that were not released hold nothing.
            options += [kept * mixture(atoms.whole, rule.shares, one.words) for one in found]
    return np.stack(options)


@dataclass(frozen=True)
class Atoms:
    """Activations of one public demonstration for each class of a rule and each word.

    Args:
        released: means of the clipped activations, in released coordinates: what one such chunk
            would add to the release.
        whole: means of the activations as they are, of all coordinates: what a vector without
            clip and noise would hold.
    """

    released: Float[np.ndarray, "classes words released"]
    whole: Float[np.ndarray, "classes words coordinates"]


def rule_atoms(
    model: VisionLanguageModel,
    geometry: ReleaseGeometry,
    rule: PublicRule,
    words: Sequence[str],
    queries: Sequence[Query],
    most_passes: int = MOST_PASSES,
    shown: Shown | None = None,
    progress: Progress = lambda _what, _done, _total: None,
) -> Atoms | None:
    """Show each class of a rule with each word, as chunks of one demonstration do.

    Args:
        model: the model.
        geometry: of the release.
        rule: the classes.
        words: the most promising first.
        queries: those that end the private chunks' prompts; a picture is shown with one of them.
        most_passes: classes × words × `PICTURES` stay within it: words at the end are left out.
        shown: passes that were run before; see `candidate_vectors`.
        progress: called with (what, done, total).

    Returns:
        None if the limit leaves fewer than 16 words.

    Raises:
        DataError: a public image cannot be read.
    """
    most = most_passes // (len(rule.classes) * PICTURES)
    if most < _FEWEST:
        return None
    words, shown = words[:most], {} if shown is None else shown
    asked = [Query(_loaded(q), q.question) for q in queries]
    # The same pictures and queries for all words, so that only the word makes a difference.
    cells = [(records, word) for records in rule.classes for word in words]
    new = [cell for cell in cells if (id(cell[0][0]), cell[1]) not in shown]
    at_once = _BATCH // PICTURES
    loaded = {id(c[0]): [replace(r, image=_loaded(r)) for r in _few(c)] for c in rule.classes}
    for start in range(0, len(new), at_once):
        part = new[start : start + at_once]
        prompts = [
            Prompt((replace(record, answer=word),), asked[i % len(asked)])
            for records, word in part
            for i, record in enumerate(loaded[id(records[0])])
        ]
        found = public_activations(model, prompts)
        for (records, word), pair in zip(part, found.reshape(len(part), PICTURES, -1), strict=True):
            shown[id(records[0]), word] = pair
        progress("decoding", min(start + at_once, len(new)), len(new))
    shape = (len(rule.classes), len(words), PICTURES, -1)
    pairs = np.stack([shown[id(records[0]), word] for records, word in cells]).reshape(shape)
    return Atoms(_clipped(geometry, geometry.to_release(pairs)).mean(2), pairs.mean(2))


def _clipped(
    geometry: ReleaseGeometry, values: Float[np.ndarray, "*rows released"]
) -> Float[np.ndarray, "*rows released"]:
    """Cut block by block to the clip norms; public values need no exact grid."""
    ends = np.cumsum(geometry.block_sizes)[:-1]
    parts = [
        block * np.minimum(1, c / np.maximum(np.linalg.norm(block, axis=-1, keepdims=True), 1e-30))
        for block, c in zip(np.split(values, ends, axis=-1), geometry.clip_norms, strict=True)
    ]
    return np.concatenate(parts, axis=-1).astype(np.float32)


def _few(records: Sequence[Demonstration]) -> list[Demonstration]:
    return [records[i % len(records)] for i in range(PICTURES)]


def _loaded(record: Demonstration | Query) -> tuple:
    """Its images, opened: they are shown with hundreds of words."""
    return tuple(load_image(source) for source in record.images)
