"""Decoding: which answers, given to which pictures, are most likely to have made the release.

An answer rule is unknown in two parts: how it sorts pictures into classes, and what it calls each
class. Public rules propose the first; of their answers only the classes count. For the second,
an *atom* is the clipped activation of one public demonstration: a picture of a class, answered
with a candidate word. Under a rule that answers class c with word w_c the released mean is about
Σ_c p_c A[c, w_c], p_c the share of class c, plus Gaussian noise of known size. The best words are
those with the least squared distance: maximum likelihood.

All this is post-processing of the release (docs/privacy.md, 4.1) and costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from dpmtv.types import Demonstration

if TYPE_CHECKING:
    from collections.abc import Sequence

_STARTS, _SWEEPS = 8, 50  # of the iterated modes


@dataclass(frozen=True)
class PublicRule:
    """How one public answer rule sorts pictures: its records, class by class.

    Args:
        classes: the records of each distinct answer, in the order of first appearance.
    """

    classes: tuple[tuple[Demonstration, ...], ...]

    @property
    def shares(self) -> Float[np.ndarray, " classes"]:
        """Share of each class among the rule's records; they add up to 1."""
        sizes = np.array([len(records) for records in self.classes])
        shares: Float[np.ndarray, " classes"] = sizes / sizes.sum()
        return shares


def public_rules(public: Sequence[Demonstration], asked: Sequence[str] = ()) -> list[PublicRule]:
    """Rules that may sort pictures as the private one does, one for each number of classes.

    Rules with the same number of classes mostly share them, and every further rule would be one
    more chance for noise to fit.

    Args:
        public: records; those with the same ``task`` were answered by the same rule.
        asked: the questions that the vector will be asked, if they are known. Rules that ask none
            of them are left out.

    Returns:
        By number of classes; of several rules the first of the file.
    """
    wanted = {" ".join(question.split()) for question in asked}
    tasks: dict[str | None, list[Demonstration]] = {}
    for record in public:
        tasks.setdefault(record.task, []).append(record)
    rules: dict[int, PublicRule] = {}
    for records in tasks.values():
        if wanted and not any(" ".join(r.question.split()) in wanted for r in records):
            continue
        classes: dict[str, list[Demonstration]] = {}
        for record in records:
            classes.setdefault(record.answer, []).append(record)
        rules.setdefault(len(classes), PublicRule(tuple(map(tuple, classes.values()))))
    return [rules[size] for size in sorted(rules)]


@dataclass(frozen=True)
class Assignment:
    """A word for each class.

    Args:
        words: index of each class's word; no word serves two classes.
        log_likelihood: in nats, without the constant of the Gaussian, which is the same for all
            assignments of all rules.
    """

    words: tuple[int, ...]
    log_likelihood: float


def decode(
    release: Float[np.ndarray, " released"],
    atoms: Float[np.ndarray, "classes words released"],
    shares: Float[np.ndarray, " classes"],
    sigma: float,
    count: int,
) -> list[Assignment]:
    """The most likely words of the classes, given the release.

    The model is release ~ N(Σ_c shares[c] · atoms[c, w_c], sigma² I).

    ================  =========================================================================
    classes           search
    ================  =========================================================================
    one or two        all assignments
    more              iterated conditional modes (Besag 1986) from several starts: the best word
                      of one class, given the others' words, until none changes. Considered are
                      the ends and what differs from them in one class
    more than words   none: the list is empty
    ================  =========================================================================

    Args:
        release: the released value, in released coordinates.
        atoms: clipped activations of one demonstration for each class and word, as the release
            would hold them.
        shares: share of each class; they add up to 1.
        sigma: standard deviation of the noise on each coordinate.
        count: most assignments.

    Returns:
        The best first.
    """
    classes, words = atoms.shape[:2]
    if words < classes:
        return []
    scaled = (atoms * shares[:, None, None]).reshape(classes * words, -1)
    # |release|² − |release − sum of parts|² = Σ alone − Σ over pairs of together
    gram = (scaled @ scaled.T).astype(np.float64).reshape(classes, words, classes, words)
    alone = 2 * (scaled @ release).reshape(classes, words) - np.einsum("cwcw->cw", gram)
    together = 2 * gram
    search = _all if classes <= 2 else _iterated_modes
    found = [
        Assignment(best, _log_likelihood(release, atoms, shares, sigma, best))
        for best in search(alone, together, count)
    ]
    return sorted(found, key=lambda one: -one.log_likelihood)


def mixture(
    atoms: Float[np.ndarray, "classes words coordinates"],
    shares: Float[np.ndarray, " classes"],
    words: Sequence[int],
) -> Float[np.ndarray, " coordinates"]:
    """What a rule with these words gives on the mean: Σ_c shares[c] · atoms[c, words[c]]."""
    parts = atoms[np.arange(len(shares)), list(words)].astype(np.float64)
    mean: Float[np.ndarray, " coordinates"] = shares @ parts
    return mean


def _log_likelihood(
    release: np.ndarray,
    atoms: np.ndarray,
    shares: np.ndarray,
    sigma: float,
    words: tuple[int, ...],
) -> float:
    rest = release - mixture(atoms, shares, words)
    return -float(rest @ rest) / (2 * sigma**2)


def _all(alone: np.ndarray, together: np.ndarray, count: int) -> list[tuple[int, ...]]:
    table = alone[0]
    if len(alone) == 2:
        table = alone[0][:, None] + alone[1] - together[0, :, 1]
        np.fill_diagonal(table, -np.inf)
    best = np.argsort(-table, axis=None, kind="stable")[:count]
    places = zip(*np.unravel_index(best, table.shape), strict=True)
    return [tuple(map(int, p)) for p in places if np.isfinite(table[p])]


def _iterated_modes(alone: np.ndarray, together: np.ndarray, count: int) -> list[tuple[int, ...]]:
    classes, words = alone.shape
    starts = np.random.default_rng(0)  # of a search in public values; no noise
    seen: dict[tuple[int, ...], float] = {}

    def gains(chosen: np.ndarray, changed: int) -> np.ndarray:
        """What each word of one class would give beside the others' words."""
        others = np.delete(np.arange(classes), changed)
        result: np.ndarray = alone[changed] - together[others, chosen[others], changed].sum(0)
        result[chosen[others]] = -np.inf
        return result

    for start in range(_STARTS):
        chosen = starts.permutation(words)[:classes]
        if start == 0:  # the classes in order, each beside those before it
            for c in range(classes):
                fitting = alone[c] - sum(together[b, chosen[b], c] for b in range(c))
                fitting[chosen[:c]] = -np.inf
                chosen[c] = fitting.argmax()
        for _ in range(_SWEEPS):
            before = chosen.copy()
            for c in starts.permutation(classes):
                chosen[c] = gains(chosen, c).argmax()
            if (chosen == before).all():
                break
        pairs = combinations(range(classes), 2)
        fit = alone[np.arange(classes), chosen].sum()
        fit -= sum(together[a, chosen[a], b, chosen[b]] for a, b in pairs)
        for c in range(classes):
            gain = gains(chosen, c)
            for word in np.argsort(-gain, kind="stable")[:count]:
                if np.isfinite(gain[word]):
                    one = (*chosen[:c], word, *chosen[c + 1 :])
                    seen[tuple(map(int, one))] = float(fit - gain[chosen[c]] + gain[word])
    return sorted(seen, key=lambda one: -seen[one])[:count]
