"""Other private uses of the same records: their answer words, and a choice among public vectors.

A rival spends the ε and δ of a vector on the same records, under the same neighbour relation.
Public benchmark files only: records are answered in batches.

**Private words.** Each record adds one to the count of its answer. Every answer that occurs is
released with probability p(count), independently; nothing else is. With p(0) = 0 and

    p(c) = min(e^α p(c − 1) + δ₁,  1 − e^(−β) (1 − p(c − 1) − δ₀))

the set of released answers is (ε, δ)-private. *Proof.* Between neighbours some answers' counts
differ by one; the other answers are released alike, and an answer that does not occur is as one
with count 0. Say that a pair (P, Q) has (a, d) if P(A) ≤ e^a Q(A) + d for every A. Whether one
answer is released has, from c to c − 1, (α, δ₁): "released" by the first term, and "not released"
is no likelier at c. From c − 1 to c it has (β, δ₀), by the second term. Independent parts add a
and d. If a record vanishes (``zero_out``), one count falls or, seen from the other side, rises:
α = β = ε and δ₁ = δ₀ = δ. If one is replaced, one count falls and another rises, in either
direction: α + β = ε and δ₁ + δ₀ = δ. ∎

For one count this is the best law there is (Desfontaines, Voss, Gipson and Mandayam 2022); no
list of candidates is needed. For two, halves of ε would make it truncated Laplace noise with a
threshold (Korolova et al. 2009; Bun, Nissim and Stemmer 2016). Unequal parts are better: α alone
decides how fast p grows out of δ, β only how fast it then comes near 1. At (1, 1e-5) and
``replace_one`` an answer is as likely released as not at count 16. By Laplace noise this takes
25, by Gaussian noise of L2 sensitivity √2 and a threshold (Wilkins et al. 2024) 26, and no
mechanism that never releases what does not occur can do it below 12.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from dpmtv.data.values import composed
from dpmtv.errors import PrivacyParameterError
from dpmtv.evaluation.metrics import exact_match
from dpmtv.pipeline import calibrate_for
from dpmtv.privacy import accounting
from dpmtv.privacy.choice import exponential_mechanism
from dpmtv.privacy.sensitivity import NeighbourRelation
from dpmtv.types import Query

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float, Int64

    from dpmtv.geometry import ReleaseGeometry
    from dpmtv.models.adapters import PreparedQueries, VisionLanguageModel
    from dpmtv.options import PatchMode
    from dpmtv.types import Demonstration

_GRID = 2**53  # of probabilities: p and 1 − p are both float64
_SHARES = tuple(k / 20 for k in range(10, 20))  # of ε for α, when a record is replaced

# Beside a vector the words take this share of ε and of δ: chosen on the embedded tests.
WORDS_EPSILON, WORDS_DELTA = 0.4, 0.5
_SLACK = 0.002  # of δ, for the discreteness of the vector's noise


@lru_cache(maxsize=64)
def release_law(
    epsilon: float, delta: float, relation: str, counts: int
) -> Float[np.ndarray, " counts"]:
    """p(c) for c = 0 … ``counts``, the recursion above rounded down in exact rationals.

    When a record is replaced, δ₀ = 0 and α is the share of ε with the largest sum of p(c).

    Args:
        epsilon: ε of the whole set of words.
        delta: δ of the whole set of words.
        relation: the neighbour relation.
        counts: largest count, the public number of records.

    Raises:
        PrivacyParameterError: ε or δ that no mechanism can meet.
    """
    accounting.check_budget(epsilon, delta)
    if NeighbourRelation(relation) is not NeighbourRelation.REPLACE_ONE:
        return _law(epsilon, epsilon, delta, delta, counts)
    # β is exact (Sterbenz), since α is at least half of ε.
    laws = [
        _law(share * epsilon, epsilon - share * epsilon, delta, 0.0, counts) for share in _SHARES
    ]
    return max(laws, key=lambda law: float(law.sum()))


def _law(alpha: float, beta: float, delta1: float, delta0: float, counts: int) -> np.ndarray:
    # exp is at most one unit in the last place off: one step makes it a bound.
    grow = Fraction(math.nextafter(math.exp(min(alpha, 700.0)), 0.0))
    fall = Fraction(math.nextafter(math.exp(-beta), math.inf))
    first, last = Fraction(delta1), Fraction(delta0)
    law = [Fraction(0)]
    for _ in range(counts):
        high = min(grow * law[-1] + first, 1 - fall * (1 - law[-1] - last), Fraction(1))
        law.append(Fraction(math.floor(high * _GRID), _GRID))
    return np.array([float(p) for p in law])


def private_words(
    answers: Sequence[str], epsilon: float, delta: float, relation: str
) -> tuple[str, ...]:
    """The answers that are released, white space apart, in alphabetical order.

    Guarantee:
        (ε, δ)-private under ``relation``, by the proof above. The draws are exact ones of OpenDP,
        from the operating system's randomness.

    Args:
        answers: one a record; an empty one is no word.
        epsilon: ε of the whole set.
        delta: δ of the whole set.
        relation: the neighbour relation.

    Raises:
        PrivacyParameterError: ε or δ that no mechanism can meet.
    """
    law = release_law(epsilon, delta, relation, len(answers))
    counts = Counter(" ".join(composed(answer).split()) for answer in answers)
    return tuple(sorted(w for w, count in counts.items() if w and _happens(float(law[count]))))


def _happens(probability: float) -> bool:
    """True with this probability, a multiple of 2^-53, exactly."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    likely = probability >= 0.5
    keep = probability if likely else 1 - probability
    # OpenDP tells the truth with a probability of at least one half.
    return bool(dp.m.make_randomized_response_bool(keep)(likely))


@lru_cache(maxsize=64)
def vector_epsilon(epsilon: float, delta: float, relation: str, law: tuple[float, ...]) -> float:
    """ε at the same δ, rounded down, of a Gaussian that with words of this law is (ε, δ)-private.

    Guarantee:
        Over all neighbours δ is Σ P(o) δ_μ(ε − l(o)), where o is which of the answers whose counts
        differ are released and l(o) its privacy loss (docs/privacy.md, "Picks beside Gaussians"):
        computed for every pair of counts. A share _SLACK of δ is kept for discrete noise.

    Args:
        epsilon: ε of the words and the vector.
        delta: δ of the words and the vector.
        relation: the neighbour relation.
        law: of the words; its last place is the public number of records.
    """
    from scipy.special import ndtr

    at, below = np.array(law[1:]), np.array(law[:-1])
    falls = np.stack([at, 1 - at]), np.stack([below, 1 - below])  # P, Q: [released or not, count]
    if NeighbourRelation(relation) is NeighbourRelation.REPLACE_ONE:
        # One count falls, another rises; the way back is the same with the two exchanged.
        p, q = (
            (x[:, None, :, None] * y[None, :, None, :]).reshape(4, -1)
            for x, y in zip(falls, falls[::-1], strict=True)
        )
    else:
        p, q = (np.concatenate([x, y], axis=1) for x, y in zip(falls, falls[::-1], strict=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        left = np.where(p > 0, epsilon - np.log(p / q), np.inf)  # −∞ where Q is zero

    def fits(mu: float) -> bool:
        gaussian = ndtr(mu / 2 - left / mu)
        finite = np.isfinite(left)
        x = left[finite]
        gaussian[finite] -= np.exp(x) * ndtr(-mu / 2 - x / mu)
        return float((p * gaussian).sum(axis=0).max()) <= (1 - _SLACK) * delta

    low, high = 0.0, 1 / accounting.noise_multiplier(epsilon, delta)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return math.floor(accounting.gaussian_epsilon(1 / low, delta) * 1e4) / 1e4 if low else 0.0


def bank_choice(scores: Int64[np.ndarray, " options"], epsilon: float, relation: str) -> int:
    """The option that most records answer right, by the exponential mechanism with all of ε.

    Guarantee:
        (ε, 0)-private under ``relation`` (docs/privacy.md, Theorem 14). δ would buy half a
        percent more at ε = 1 and is not used.

    Args:
        scores: number of records that each option answers right.
        epsilon: ε.
        relation: the neighbour relation. Where a record vanishes, all scores fall together.
    """
    replaced = NeighbourRelation(relation) is NeighbourRelation.REPLACE_ONE
    return exponential_mechanism(scores, sensitivity=1, range_=epsilon, monotone=not replaced).index


def with_words(queries: Sequence[Query], words: Sequence[str]) -> list[Query]:
    """The queries with the words listed in the question."""
    return [Query(q.image, f"{q.question} One of: {', '.join(words)}.") for q in queries]


@dataclass
class Rivals:
    """The rivals on one task. Answers that can come up again are kept.

    Args:
        model: the model.
        test: the test queries.
        records: the records that play the private role.
        bank: public vectors [coordinates of all layers].
        heads: where they are patched, and the vector beside words.
        patch: patch mode.
        most: longest answer, in tokens.
    """

    model: VisionLanguageModel
    test: Sequence[Query]
    records: Sequence[Demonstration]
    bank: Sequence[np.ndarray]
    heads: Bool[np.ndarray, " heads"]
    patch: PatchMode
    most: int
    _seen: dict[object, list[str]] = field(default_factory=dict)
    _right: dict[int, np.ndarray] = field(default_factory=dict)

    def answers(
        self,
        method: str,
        drawn: Sequence[int],
        beside: tuple[ReleaseGeometry, Float[np.ndarray, "chunks coordinates"]] | None,
        epsilon: float,
        delta: float,
        relation: str,
    ) -> list[str]:
        """The test answers after one private use of the drawn records.

        Guarantee:
            (ε, δ)-private under ``relation``; a chunk that becomes zero is one record.

        Args:
            method: which of settings.RIVALS.
            drawn: places of the records.
            beside: of the vector beside words, its geometry and the chunks' activations.
            epsilon: ε of all that is used.
            delta: δ of all that is used.
            relation: the neighbour relation.

        Raises:
            PrivacyParameterError: ε or δ that cannot be met.
        """
        if method == "bank choice":
            option = bank_choice(self._scores(drawn), epsilon, relation)
            if option not in self._seen:
                self._seen[option] = self._under_option(self.model.prepare(self.test), option)
            return self._seen[option]
        found = [self.records[i].answer for i in drawn]
        if beside is None:
            words = private_words(found, epsilon, delta, relation)
            return self._under_words(words, "listed" in method)
        share = WORDS_EPSILON * epsilon, WORDS_DELTA * delta, relation
        law = tuple(release_law(*share, len(found)).tolist())
        left = vector_epsilon(epsilon, delta, relation, law)
        geometry, rows = beside
        mechanism = calibrate_for(geometry, left, delta, relation, len(rows))  # refuses 0
        event = mechanism.event
        if accounting.discreteness_slack(epsilon, event.d, event.scale) > _SLACK * delta:
            raise PrivacyParameterError("epsilon is too large for exact noise beside words")
        words = private_words(found, *share)
        release = mechanism.release([geometry.to_release(a) for a in rows])
        vector = geometry.from_release(release.value)
        with self.model.patched(vector, self.heads, self.patch):
            return self.model.generate(self.test, self.most, words)

    def _under_words(self, words: tuple[str, ...], listed: bool) -> list[str]:
        """Zero-shot answers that are one of ``words``; plain ones if there are none."""
        key = (words, listed and bool(words))
        if key not in self._seen:
            queries = with_words(self.test, words) if key[1] else self.test
            self._seen[key] = self.model.generate(queries, self.most, words)
        return self._seen[key]

    def _scores(self, drawn: Sequence[int]) -> Int64[np.ndarray, " options"]:
        """How many of the drawn records each option answers right; option 0 is no vector."""
        new = [i for i in drawn if i not in self._right]
        if new:
            queries = self.model.prepare([self.records[i].query for i in new])
            table = [self._under_option(queries, option) for option in range(len(self.bank) + 1)]
            for i, answers in zip(new, zip(*table, strict=True), strict=True):
                wanted = [self.records[i].answer]
                self._right[i] = np.array([exact_match([a], wanted) for a in answers])
        return np.asarray(sum(self._right[i] for i in drawn), np.int64)

    def _under_option(self, queries: PreparedQueries, option: int) -> list[str]:
        if option == 0:
            return self.model.generate(queries, self.most)
        with self.model.patched(self.bank[option - 1], self.heads, self.patch):
            return self.model.generate(queries, self.most)
