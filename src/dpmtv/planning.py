"""What accuracy to expect of a build, from public data alone and before any budget is spent.

Every public answer rule plays the private one: heads and clip norm are found without it, as many
chunks are drawn as the build will have, and the real mechanism releases their mean. There is no
argument for private records, so nothing here can read one.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from dpmtv.data.chunks import units_in_a_chunk
from dpmtv.data.demonstrations import require_good
from dpmtv.data.synthetic import SYNTHETIC
from dpmtv.errors import DataError, PrivacyParameterError
from dpmtv.evaluation.rehearsal import (
    IN_CONTEXT,
    Forecast,
    Known,
    forecast,
    null_share,
    rehearse,
    right_share,
)
from dpmtv.geometry import ReleaseGeometry
from dpmtv.models.extraction import preflight
from dpmtv.models.synthetic import public_records
from dpmtv.options import public_size
from dpmtv.pipeline import calibrate_for
from dpmtv.privacy.accounting import check_delta
from dpmtv.privacy.sensitivity import NeighbourRelation
from dpmtv.public_tasks import SEARCH_STEPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpmtv.data.demonstrations import BadRow
    from dpmtv.models.adapters import VisionLanguageModel
    from dpmtv.public_tasks import Progress
    from dpmtv.types import Demonstration

SHOTS = (1, 2, 4)  # values of K that are compared
DRAWS = 5
_TIMES = (0.5, 2.0)  # other values of epsilon, and of the records
_POOR, _SPREAD, _LITTLE = 0.5, 0.2, 0.1  # when to warn


@dataclass(frozen=True)
class Plan:
    """Forecasts of one build and of its alternatives.

    Args:
        forecasts: the settings; one is ``recommended``: that with the best K at the ε and number
            of records that were asked for.
        zero_shot: accuracy without a vector, on the same public records.
        in_context: the same with `IN_CONTEXT` demonstrations in the prompt.
        seconds: of the recommended build on this machine.
        memory: most bytes of main memory that this process held; None where that is not told.
        warnings: sentences.
    """

    forecasts: list[Forecast]
    zero_shot: float
    in_context: float
    seconds: float
    memory: int | None
    draws: int
    relation: str
    delta: float
    population: int | None
    warnings: list[str]

    @property
    def recommended(self) -> Forecast:
        """The marked one."""
        return next(f for f in self.forecasts if f.recommended)


def plan(
    model: VisionLanguageModel,
    *,
    records: int,
    epsilon: float,
    delta: float,
    public: Sequence[Demonstration | BadRow] | Literal["synthetic"],
    relation: str = NeighbourRelation.REPLACE_ONE,
    unit: str | None = None,
    per_unit: int = 1,
    population: int | None = None,
    asked: Sequence[str] = (),
    draws: int = DRAWS,
    search_steps: int = SEARCH_STEPS,
    progress: Progress = lambda _what, _done, _total: None,
) -> Plan:
    """Say what `build_task_vector` with its default recipe will reach, from public data alone.

    The public rules are cut in two halves. Heads and clip norm are found on one and measured on
    the other, and the other way round, because the private rule is not among the public ones
    either. A single rule has only its records cut in two, and a warning says so.

    What bias is left: half the rules find slightly worse heads than all of them will; chunks are
    drawn with replacement from those a public rule has, which may be fewer than m; with ``asked``
    chunks are asked about pictures that accuracy is measured on, too; under ``"add_remove"``
    chunks that get some units but too few count as full ones. And the private rule may be harder
    or easier than the public ones, of which the spread over these is the only sign.

    *Guarantee.* No private record is an argument, so nothing is spent.

    Args:
        model: the frozen model.
        records: how many private records will serve, a public number. Units, where named, are
            taken to bring ``per_unit`` each. Under ``"add_remove"`` a guess, not a count.
        epsilon: ε > 0.
        delta: δ below 1/n.
        public: public records, or ``"synthetic"``; as in the build.
        relation: as in the build.
        unit: as in the build.
        per_unit: as in the build.
        population: as in the build; by default the number of units that ``records`` make.
        asked: the questions that will be asked, if they are few and public. Without them chunks
            are asked any of the public records' questions, as in the build.
        draws: releases a rule and setting.
        search_steps: steps of each head search.
        progress: called with (what, done, total).

    Raises:
        UserError: parameters that the build would refuse, or public records that do not do.
    """
    if draws < 1:
        raise PrivacyParameterError("at least one draw is needed")
    if isinstance(public, str) and public != SYNTHETIC:
        raise PrivacyParameterError('public is a list of records or "synthetic"')
    if not public:
        raise PrivacyParameterError("a plan is made from public records: give some")
    everything = ReleaseGeometry(model.layout, np.ones(model.layout.n_heads, dtype=bool), (1.0,))
    calibrate_for(everything, epsilon, delta, relation, 1)  # refuses what build would refuse
    by_id = relation == NeighbourRelation.ADD_REMOVE
    units = records // max(per_unit, 1)
    if by_id and population is None:
        population = units
    n = public_size(units, NeighbourRelation(relation), unit, population, per_unit)
    check_delta(delta, n)
    preflight(model, max(SHOTS))

    made, check = public_records(model, public, max(SHOTS), progress)
    known = require_good(made or (), "the public file")

    def size(shots: int, times: float = 1.0) -> tuple[int, int, int, float]:
        """Records, K, m, and the share of chunks without a unit."""
        m = int(n * times) // units_in_a_chunk(shots, per_unit)
        empty = null_share(int(units * times), m) if by_id and m else 0.0
        return int(records * times), shots, m, empty

    def expect(shots: int, e: float, times: float = 1.0) -> Forecast:
        level = (e, delta, relation)
        return forecast(model, at[shots], level, size(shots, times), draws, progress)

    at: dict[int, Known] = {}
    for shots in SHOTS:
        if n < units_in_a_chunk(shots, per_unit):
            continue
        try:
            at[shots] = rehearse(model, known, check, shots, asked, search_steps, progress)
        except DataError:
            if shots == SHOTS[0]:  # a larger K only if the public rules have records for it
                raise
    tried = [expect(shots, epsilon) for shots in at]
    best = tried[0]
    for other in tried[1:]:
        if _ahead(other, best):
            best = other
    rows = [replace(f, recommended=f is best) for f in tried]
    rows += [expect(best.shots, epsilon * times) for times in _TIMES]
    rows += [
        expect(best.shots, epsilon, times)
        for times in _TIMES
        if size(best.shots, times)[2] and delta < 1 / (n * times)  # or the build refuses
    ]
    rules = at[best.shots].rules
    zero_shot = float(np.mean([right_share(model, r, r.queries) for r in rules]))
    in_context = float(
        np.mean([right_share(model, r, model.prepare(r.in_context, 8)) for r in rules])
    )
    found = Plan(
        forecasts=rows,
        zero_shot=zero_shot,
        in_context=in_context,
        seconds=at[best.shots].prepared + best.chunks * at[best.shots].chunk,
        memory=_most_memory(),
        draws=draws,
        relation=str(relation),
        delta=delta,
        population=population,
        warnings=[],
    )
    return replace(found, warnings=_warnings(found, known, asked))


def _ahead(other: Forecast, best: Forecast) -> bool:
    """Whether a larger K is better by more than the standard error of the difference."""
    gains = np.subtract(list(other.by_rule.values()), list(best.by_rule.values()))
    return bool(gains.mean() > gains.std() / np.sqrt(len(gains)))


def _most_memory() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def _warnings(made: Plan, known: Sequence[Demonstration], asked: Sequence[str]) -> list[str]:
    """What a user should know before trusting the plan, or spending budget on the build."""
    best, said = made.recommended, []
    there = {" ".join(record.question.split()) for record in known}
    missing = [question for question in asked if " ".join(question.split()) not in there]
    if missing:
        said.append(
            f"no public record asks {', '.join(map(repr, missing))}: the public records may be of "
            "another kind than what will be asked, and the forecast with them; add public records "
            "that ask it"
        )
    rules = best.by_rule
    if len(rules) == 1:
        said.append(
            "there is one public answer rule: its heads were found on the same rule, so the "
            "forecast is too good for another, and its ± says nothing about other rules; give "
            "records of several rules, told apart by their task field"
        )
    elif np.std(list(rules.values())) > _SPREAD:
        low, high = min(rules, key=rules.__getitem__), max(rules, key=rules.__getitem__)
        said.append(
            f"public rules differ widely: {rules[low]:.0%} on {low}, {rules[high]:.0%} on {high}; "
            "the private rule may be like any of them, so compare with those that are most like it"
        )
    if made.in_context < _POOR:
        said.append(
            f"with {IN_CONTEXT} demonstrations in the prompt the model is right in "
            f"{made.in_context:.0%} only: it can hardly do such tasks, and no vector will be much "
            "better; a more able model would help, more records or a larger epsilon will not"
        )
    gain, most = best.accuracy - made.zero_shot, best.without_noise - made.zero_shot
    if most < _LITTLE:
        said.append(
            f"without a vector {made.zero_shot:.0%} are right, with one without noise "
            f"{best.without_noise:.0%}: there is little for a vector to gain on such tasks"
        )
    elif gain < _POOR * most:
        better = [f for f in made.forecasts if f.accuracy > best.accuracy]
        helps = [
            f"epsilon {f.epsilon:g} ({f.accuracy:.0%})"
            if f.epsilon > best.epsilon
            else f"{f.records} records ({f.accuracy:.0%})"
            for f in better
            if f.epsilon > best.epsilon or f.records > best.records
        ]
        said.append(
            f"the noise leaves {max(gain, 0) / most:.0%} of what a vector without noise gains; "
            f"what helps: {' or '.join(helps) or 'far more records, or a larger epsilon'}"
        )
    if best.null_chunks > _SPREAD:
        said.append(
            f"{best.null_chunks:.0%} of the chunks will get no unit and count as zero; under "
            "add_remove that is the price of not telling how many units there are"
        )
    return said
