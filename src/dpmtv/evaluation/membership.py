"""Membership attacks on a real model: was this record among those of the vector, or of the prompt?

Everything here runs on public benchmark files, whatever role they play. A trial draws n slots. A
fifth of them have two candidate records each, and a fair coin decides which of the two is the
member, as under ``replace_one``. The attacker knows all candidates, all members of the other slots
and everything public, and not the coins.

===========  =====================================================================================
attack       what the attacker sees, and how each candidate is scored
===========  =====================================================================================
release      the noised mean, before it is decoded: more than is published. The best linear
             estimate of all coins, whose effects on the mean are known (`coin_estimates`)
vector       the published vector; the same estimate
answers      what the model answers to public queries. For a vector: the loss of each of the task's
             words; the same estimate, with the coins' effects and the noise found by trying. For a
             prompt: the distribution of the first token, compared with that under either candidate
own answer   the loss of a candidate's own answer to its own question, less what it is with known
             members alone: the plain attack, which sees one answer
===========  =====================================================================================

Records are *ordinary*, or *odd*: the candidates are answered with a wrong word of the task, so that
nothing but the record explains that answer. An in-context prompt shows one candidate, then K − 1
known members.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from dpmtv.audit.membership import BARE, PRIVATE, PROMPT, Attack, Game, membership_rows
from dpmtv.audit.one_run import LEAST_CANARIES
from dpmtv.audit.two_worlds import Claim
from dpmtv.data.demonstrations import require_good
from dpmtv.errors import DataError
from dpmtv.evaluation.benchmark import asked_of
from dpmtv.evaluation.membership_attacks import LinearRelease, as_released, contribution
from dpmtv.models.choosing import choose_decoded_public
from dpmtv.models.lexicon import first_tokens
from dpmtv.models.mask_loss import MaskLoss
from dpmtv.models.synthetic import public_records
from dpmtv.options import SHOTS, default_picks
from dpmtv.pipeline import calibrate_for, relative_noise, weight_steps
from dpmtv.privacy.accounting import gdp_mu
from dpmtv.public_tasks import (
    SEARCH_STEPS,
    public_queries,
    public_tasks,
    public_values,
    release_geometry,
    select_heads,
)
from dpmtv.types import BoundedRangeEvent, Demonstration, Prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jaxtyping import Bool, Float

    from dpmtv.audit.membership import Row
    from dpmtv.evaluation.benchmark import Benchmark, BenchmarkTask
    from dpmtv.geometry import ReleaseGeometry
    from dpmtv.models.adapters import VisionLanguageModel
    from dpmtv.models.atoms import Shown
    from dpmtv.options import PatchMode
    from dpmtv.privacy.mechanisms import GaussianMean
    from dpmtv.public_tasks import Progress
    from dpmtv.types import Query

    Whole = Callable[[np.ndarray], np.ndarray]

RELATION = "replace_one"
KINDS = ("ordinary", "odd")
SHARE = 5  # one slot in so many has two candidates
PROBES, WORDS = 6, 6  # public queries and words of the attack on a vector's answers


@dataclass(frozen=True)
class MembershipSettings:
    """What is attacked. Sizes are public choices.

    Args:
        epsilons: of the private vectors.
        records: n, slots of a trial; each is a chunk of one record, as by default.
        trials: each with records, coins and noise of its own; the tasks take turns.
        delta: δ of each release.
        shots: K of the in-context prompts.
        error: probability at which a lower bound may lie above the truth; intervals miss as often.
        patch: patch mode.
        search_steps: steps of the head search.
    """

    epsilons: tuple[float, ...] = (1.0, 8.0)
    records: int = 50
    trials: int = 24
    delta: float = 1e-5
    shots: int = 4
    error: float = 0.05
    patch: PatchMode = "every-step"
    search_steps: int = SEARCH_STEPS


def audit_membership(
    model: VisionLanguageModel,
    benchmark: Benchmark,
    settings: MembershipSettings,
    *,
    name: str,
    command: str,
    progress: Progress = lambda _what, _done, _total: None,
) -> list[Row]:
    """One row for each attack on each target, with its verdict.

    Args:
        model: the model.
        benchmark: its tasks; all of its records are public.
        settings: what is attacked.
        name: model name for the rows.
        command: what reproduces the rows.
        progress: called with (what, done, total).

    Raises:
        DataError: a task has too few records.
        ModelError: no heads are found on generated public records.
    """
    s = settings
    for task in benchmark.tasks:
        if len(task.private) < _drawn(s.records):
            raise DataError(
                f"{task.name} has {len(task.private)} records to play the private role; "
                f"{s.records} slots need {_drawn(s.records)}"
            )
        if len({r.answer for r in task.private}) < 2:
            raise DataError(f"{task.name} has one answer alone; odd records need another")
    if s.records < SHARE * s.shots:
        raise DataError(f"a trial needs at least {SHARE * s.shots} records, not {s.records}")
    if s.trials * (s.records // SHARE) < LEAST_CANARIES:
        raise DataError(
            f"{s.trials} draws of {s.records} records are {s.trials * (s.records // SHARE)} coins; "
            f"an audit needs at least {LEAST_CANARIES}"
        )
    known = _learn(model, benchmark, s, progress)
    games: dict[Attack, list[Game]] = defaultdict(list)
    for trial in range(s.trials):
        task = benchmark.tasks[trial % len(benchmark.tasks)]
        for kind in KINDS:
            # Benchmark records are public: everybody can draw the same ones. The noise has no seed.
            rng = np.random.default_rng((trial, KINDS.index(kind)))
            for attack, game in _Trial(known, task, kind, rng).games():
                games[attack].append(game)
        progress("trials", trial + 1, s.trials)
    claims = {
        epsilon: Claim(epsilon, s.delta, gdp_mu(*mechanism.events))
        for epsilon, (_, mechanism) in known.levels.items()
    }
    beside = {"records": s.records, "shots": s.shots, "relation": RELATION}
    beside |= {"tasks": [t.name for t in benchmark.tasks], "model": name, "command": command}
    return [row | beside for row in membership_rows(games, claims, s.error)]


@dataclass
class _Known:
    """What is public, and found before any trial."""

    model: VisionLanguageModel
    settings: MembershipSettings
    public: list[Demonstration]
    heads: Bool[np.ndarray, " heads"]
    levels: dict[float, tuple[ReleaseGeometry, GaussianMean]]
    # What was run before: a record's activations, words on probes, passes of decoding.
    values: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)
    probes: dict[str, MaskLoss] = field(default_factory=dict)
    shown: dict[tuple[str, ...], Shown] = field(default_factory=dict)


def _learn(
    model: VisionLanguageModel, benchmark: Benchmark, s: MembershipSettings, progress: Progress
) -> _Known:
    """Heads, geometries and noise by the default recipe."""
    records, check = public_records(model, benchmark.public, SHOTS["public"], progress)
    public = require_good(records or (), "the public file")
    tasks = public_tasks(model, public, SHOTS["public"], False, progress)
    heads = select_heads(model, tasks, s.patch, s.search_steps, progress, check).heads
    levels = {}
    for epsilon in s.epsilons:
        picks = default_picks(epsilon, SHOTS["public"])
        level = (epsilon, s.delta, RELATION, s.records, picks)
        geometry = release_geometry(
            model,
            heads,
            tasks,
            noise=relative_noise(model.layout, *level),
            patch=s.patch,
            steps=weight_steps(s.search_steps),
            progress=progress,
        )
        levels[epsilon] = geometry, calibrate_for(geometry, *level)
    return _Known(model, s, public, heads, levels)


class _Trial:
    """The slots of one task with their candidates and coins, and all attacks on them."""

    def __init__(
        self, known: _Known, task: BenchmarkTask, kind: str, rng: np.random.Generator
    ) -> None:
        self.known, self.task, self.kind, self.rng = known, task, kind, rng
        self.asked = asked_of(task)
        self.words = sorted({r.answer for r in task.private})
        n = known.settings.records
        self.slots = slots = n // SHARE
        places = [int(i) for i in rng.permutation(len(task.private))[: _drawn(n)]]
        self.coins = rng.random(slots) < 0.5
        # First candidates, second ones, then the members of the other slots.
        self.records = [task.private[place] for place in places]
        if kind == "odd":
            odd = [self._odd(record) for record in self.records[: 2 * slots]]
            self.records[: 2 * slots] = odd
            rest = self._kept(places[2 * slots :])
            self.values = np.concatenate([self._activations(odd), rest])
        else:
            self.values = self._kept(places)
        chosen = np.arange(slots) + slots * ~self.coins
        self.members = np.concatenate([chosen, np.arange(2 * slots, len(places))])
        self.own = MaskLoss(
            known.model,
            [Prompt((), record.query) for record in self.records],
            [record.answer for record in self.records],
            [],
            known.settings.patch,
        )

    def games(self) -> Iterator[tuple[Attack, Game]]:
        """Every attack on every target."""
        for attack, game in self._in_context().items():
            yield Attack(PROMPT, None, attack, self.kind), game
        layout, heads = self.known.model.layout, self.known.heads
        kept = layout.coordinates(heads)

        def whole(rows: np.ndarray) -> np.ndarray:
            full = np.zeros((len(rows), layout.size))
            full[:, kept] = rows
            return full

        bare = self._linear(self.values[:, kept], 0.0, whole)
        mean = self.values[self.members].mean(0)
        target: tuple[str, float | None] = (BARE, None)
        yield from self._of_vector(target, bare, mean, mean[kept])
        targets = {target: mean}
        for epsilon, (geometry, mechanism) in self.known.levels.items():
            parts = np.stack([contribution(geometry, values) for values in self.values])
            release = mechanism.release(list(parts[self.members])).value

            def mapped(rows: np.ndarray, geometry: ReleaseGeometry = geometry) -> np.ndarray:
                return np.stack([geometry.from_release(row) for row in rows])

            linear = self._linear(parts, mechanism.event.sigma, mapped)
            target = (PRIVATE, epsilon)
            game = self._game(linear.estimates(release))
            yield Attack(*target, "release", self.kind), game
            vector = self._published(release, geometry, mechanism)
            yield from self._of_vector(target, linear, vector, as_released(geometry, vector))
            targets[target] = vector
        known = self.values[2 * self.slots :].mean(0)
        vectors = np.stack([known, *targets.values()])
        losses = np.stack([self.own.under(vectors, heads, at) for at in range(2 * self.slots)])
        for place, target in enumerate(targets, 1):
            game = self._own_game(losses[:, 0] - losses[:, place])
            yield Attack(*target, "own answer", self.kind), game

    def _of_vector(
        self,
        target: tuple[str, float | None],
        linear: LinearRelease,
        vector: Float[np.ndarray, " coordinates"],
        seen: Float[np.ndarray, " released"],
    ) -> Iterator[tuple[Attack, Game]]:
        through = linear.estimates_through(self._answers, vector, self.rng)
        for attack, estimates in (("vector", linear.estimates(seen)), ("answers", through)):
            yield Attack(*target, attack, self.kind), self._game(estimates)

    def _game(self, estimates: Float[np.ndarray, " slots"]) -> Game:
        return Game(self.coins, estimates, -estimates)

    def _own_game(self, gained: Float[np.ndarray, " candidates"]) -> Game:
        return Game(self.coins, *np.split(gained, 2))

    def _linear(
        self, parts: Float[np.ndarray, "records released"], sigma: float, whole: Whole
    ) -> LinearRelease:
        """How the mean of the members moves with the coins."""
        first, second, rest = np.split(parts.astype(np.float64), [self.slots, 2 * self.slots])
        n = len(self.members)
        centre = (rest.sum(0) + (first + second).sum(0) / 2) / n
        return LinearRelease(centre, (first - second) / n, sigma, whole)

    def _in_context(self) -> dict[str, Game]:
        """A prompt for each coin: its member first, then known ones."""
        s, model, slots = self.known.settings, self.known.model, self.slots
        known = tuple(self.records[2 * slots : 2 * slots + s.shots])

        def shown(place: int | None, query: Query) -> Prompt:
            first = known[-1] if place is None else self.records[place]
            return Prompt((first, *known[:-1]), query)

        candidates = self.records[: 2 * slots]
        prompts = [shown(None, r.query) for r in candidates]
        prompts += [shown(int(self.members[i % slots]), r.query) for i, r in enumerate(candidates)]
        asked = MaskLoss(model, prompts, [r.answer for r in candidates] * 2, [], s.patch)
        none = np.zeros(model.layout.n_heads, dtype=bool)
        nothing = np.zeros((1, model.layout.size))
        losses = np.array([asked.under(nothing, none, at)[0] for at in range(len(prompts))])
        before, after = np.split(losses, 2)
        # Public questions: what either candidate would make of them is known, and one is the truth.
        probe = self.task.test[0].query
        told = [shown(place, probe) for place in range(2 * slots)]
        told += [shown(int(place), probe) for place in self.members[:slots]]
        found = first_tokens(model, nothing[0], none, told, s.patch)
        one, other, truth = np.split(found, [slots, 2 * slots])
        nearer = np.abs(truth - other).sum(1) - np.abs(truth - one).sum(1)
        return {"answers": self._game(nearer), "own answer": self._own_game(before - after)}

    def _answers(self, vectors: np.ndarray) -> np.ndarray:
        """Losses of words of the task on public queries, one row a vector."""
        name, kept = self.task.name, self.known.probes
        if name not in kept:
            asked = [(r, word) for r in self.task.test[:PROBES] for word in self.words[:WORDS]]
            kept[name] = MaskLoss(
                self.known.model,
                [Prompt((), record.query) for record, _ in asked],
                [word for _, word in asked],
                [],
                self.known.settings.patch,
            )
        loss, heads = kept[name], self.known.heads
        return np.stack([loss.under(vectors, heads, at) for at in range(len(loss))], axis=1)

    def _published(
        self,
        release: Float[np.ndarray, " released"],
        geometry: ReleaseGeometry,
        mechanism: GaussianMean,
    ) -> Float[np.ndarray, " coordinates"]:
        """Decoded and chosen as in a build, with passes kept from trial to trial."""
        known = self.known
        return choose_decoded_public(
            *(known.model, geometry, release, mechanism.event.sigma, known.heads, self.own),
            [int(i) for i in self.members],
            _range(mechanism),
            public=known.public,
            queries=self._queries(),
            asked=self.asked,
            shown=known.shown.setdefault(self.asked, {}),
        )

    def _odd(self, record: Demonstration) -> Demonstration:
        """The same record, answered with another word of the task."""
        others = [word for word in self.words if word != record.answer]
        return replace(record, answer=str(self.rng.choice(others)))

    def _kept(self, places: Sequence[int]) -> Float[np.ndarray, "records coordinates"]:
        """Activations of records, each alone in its chunk; those run before are kept."""
        kept, name = self.known.values, self.task.name
        new = [place for place in places if (name, place) not in kept]
        if new:
            found = self._activations([self.task.private[place] for place in new])
            kept.update({(name, place): row for place, row in zip(new, found, strict=True)})
        return np.stack([kept[name, place] for place in places])

    def _activations(
        self, records: Sequence[Demonstration]
    ) -> Float[np.ndarray, "records coordinates"]:
        return public_values(self.known.model, [[r] for r in records], self._queries())

    def _queries(self) -> list[Query]:
        return public_queries(self.known.public, self.asked)


def _drawn(records: int) -> int:
    """Records of a task that a trial needs: one a slot, and second candidates."""
    return records + records // SHARE


def _range(mechanism: GaussianMean) -> float:
    """E of the one pick beside a release."""
    (pick,) = (e for e in mechanism.beside if isinstance(e, BoundedRangeEvent))
    return pick.range
