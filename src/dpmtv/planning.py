"""What accuracy to expect of a build, from public data alone and before any budget is spent.

Every public answer rule plays the private one: heads and clip norm are found without it, as many
chunks are drawn as the build will have, the real mechanism releases their mean, and what it decodes
to is chosen privately. Other private uses of the same records stand beside. There is no argument
for private records, so nothing here can read one.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dpmtv.data.chunks import units_in_a_chunk
from dpmtv.data.demonstrations import require_good
from dpmtv.data.synthetic import SYNTHETIC
from dpmtv.errors import DataError, PrivacyParameterError
from dpmtv.evaluation.forecasts import (
    VECTOR,
    Forecast,
    forecast,
    null_share,
    rival_forecasts,
)
from dpmtv.evaluation.rehearsal import IN_CONTEXT, Known, baselines, rehearse
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
    from dpmtv.options import PublicWord
    from dpmtv.public_tasks import Progress
    from dpmtv.types import Demonstration

SHOTS = (1, 2, 4)  # values of K that are compared
RELEASES = 20  # about, of a row; with many rules each is drawn twice
_TIMES = (0.5, 2.0)  # other values of epsilon, and of the records
_SPREAD = 0.08  # a forecast for one rule should not be less certain
_POOR, _NULL, _LITTLE = 0.5, 0.2, 0.1  # when to warn
_CLEAR = 2.0  # standard errors by which a rival, one of four, has to be better or worse


@dataclass(frozen=True)
class Plan:
    """Forecasts of one build and of its alternatives.

    Args:
        forecasts: the settings; one is ``recommended``: that with the best K at the ε and number
            of records that were asked for. Rivals have another ``method``.
        zero_shot: accuracy without a vector, on the same public records.
        words: the same with the rule's answer words listed and nothing else allowed: what a user
            has without any budget if the words are public.
        in_context: the same with `IN_CONTEXT` demonstrations in the prompt.
        seconds: of the recommended build on this machine.
        memory: most bytes of main memory that this process held; None where that is not told.
        took: seconds of the plan.
        draws: of each rule and setting.
        advice: which method is expected best, and by how much.
        warnings: sentences.
    """

    forecasts: list[Forecast]
    zero_shot: float
    words: float
    in_context: float
    seconds: float
    memory: int | None
    took: float
    draws: int
    relation: str
    delta: float
    population: int | None
    advice: str
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
    public: Sequence[Demonstration | BadRow] | PublicWord,
    relation: str = NeighbourRelation.REPLACE_ONE,
    unit: str | None = None,
    per_unit: int = 1,
    population: int | None = None,
    asked: Sequence[str] = (),
    draws: int | None = None,
    search_steps: int = SEARCH_STEPS,
    progress: Progress = lambda _what, _done, _total: None,
) -> Plan:
    """Say what `build_task_vector` with its default recipe will reach, from public data alone.

    The public rules are cut in two halves. Heads and clip norm are found on one and measured on
    the other, and the other way round, because the private rule is not among the public ones
    either. A single rule has only its records cut in two, and a warning says so.

    The rivals (docs/method.md, "Baselines") are rehearsed where a unit is one record and the
    number of units is public; `build_task_vector` makes the vector alone.

    What bias is left: half the rules find slightly worse heads than all of them will, and decode
    less; chunks are drawn with replacement from those a public rule has, which may be fewer than
    m; under ``"add_remove"`` chunks that get some units but too few count as full ones. And the
    private rule may be harder or easier than the public ones, of which the spread over these is
    the only sign.

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
        asked: the questions that will be asked, if they are few and public. Each rule then plays
            with its own questions known. Without them chunks are asked any of the public records'
            questions, as in the build.
        draws: releases a rule and setting; by default about `RELEASES` a setting, two a rule at
            least.
        search_steps: steps of each head search.
        progress: called with (what, done, total).

    Raises:
        UserError: parameters that the build would refuse, or public records that do not do.
    """
    start = time.perf_counter()
    if draws is not None and draws < 1:
        raise PrivacyParameterError("at least one draw is needed")
    if isinstance(public, str) and public != SYNTHETIC:
        raise PrivacyParameterError(
            'a plan is made from public records: give a list of them or "synthetic"'
        )
    if not public:
        raise PrivacyParameterError('a plan is made from public records: give some, or "synthetic"')
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

    done, rows = 0, len(SHOTS) + 1 + 2 * len(_TIMES)  # at most

    def told() -> None:
        nonlocal done
        done += 1
        progress("releases", done, rows * rules * each)

    def expect(shots: int, e: float, times: float = 1.0) -> Forecast:
        level = (e, delta, relation)
        return forecast(model, at[shots], level, size(shots, times), each, told)

    at: dict[int, Known] = {}
    tried: list[Forecast] = []
    rules = each = 0  # each: draws of a rule in a row
    for shots in SHOTS:
        if n < units_in_a_chunk(shots, per_unit):
            continue
        try:
            at[shots] = rehearse(model, known, check, shots, asked, search_steps, progress)
        except DataError:
            if shots == SHOTS[0]:  # a larger K only if the public rules have records for it
                raise
            continue
        rules = len(at[shots].rules)
        each = draws or max(2, -(-RELEASES // rules))
        tried.append(expect(shots, epsilon))
        if _ahead(tried[0], tried[-1]):
            break  # a larger one has still fewer chunks and more noise
    best = tried[0]
    for other in tried[1:]:
        if _ahead(other, best):
            best = other
    forecasts = [replace(f, recommended=f is best) for f in tried]
    others = [(epsilon * times, 1.0) for times in _TIMES]
    others += [
        (epsilon, times)
        for times in _TIMES
        if size(best.shots, times)[2] and delta < 1 / (n * times)  # or the build refuses
    ]
    compared = not by_id and per_unit == 1 and (best.shots == 1 or relation == "replace_one")
    rows = len(tried) + compared + len(others)
    if compared:
        level = (epsilon, delta, relation)
        forecasts += rival_forecasts(model, at[best.shots], best, level, each, told)
    forecasts += [expect(best.shots, e, times) for e, times in others]
    bare = baselines(model, at[best.shots].rules)
    found = Plan(
        forecasts=forecasts,
        zero_shot=bare["zero-shot"],
        words=bare["words listed and enforced"],
        in_context=bare["in-context"],
        seconds=at[best.shots].prepared + best.chunks * at[best.shots].chunk + best.seconds,
        memory=_most_memory(),
        took=time.perf_counter() - start,
        draws=each,
        relation=str(relation),
        delta=delta,
        population=population,
        advice="",
        warnings=[],
    )
    return replace(found, advice=_advice(found), warnings=_warnings(found, known, asked))


def _gain(other: Forecast, best: Forecast) -> tuple[float, float]:
    """Mean difference of two forecasts of the same rules, and its standard error (one rule: 0)."""
    gains = np.subtract(list(other.by_rule.values()), list(best.by_rule.values()))
    error = float(np.std(gains, ddof=1) / np.sqrt(len(gains))) if len(gains) > 1 else 0.0
    return float(gains.mean()), error


def _ahead(other: Forecast, best: Forecast) -> bool:
    """Whether another K is better by more than the standard error of the difference."""
    gain, error = _gain(other, best)
    return gain > error


def _advice(made: Plan) -> str:
    """Which method is expected best; the vector unless another is clearly better."""
    vector = made.recommended
    rivals = [f for f in made.forecasts if f.method != VECTOR]
    if not rivals:
        return (
            "No other method was compared: these need a unit of one record, a public number of "
            "units, and an epsilon that can be split."
        )
    rival = max(rivals, key=lambda f: f.accuracy)
    gain, error = _gain(rival, vector)
    figures = f"{abs(100 * gain):.1f} ± {100 * error:.1f} points"
    if len(vector.by_rule) == 1:
        return (
            f"The vector is at {vector.accuracy:.0%}, {rival.method} at {rival.accuracy:.0%}; one "
            "public rule does not tell which is better on another."
        )
    if gain > _CLEAR * error:
        instead = {
            "bank choice": "a public task vector, chosen privately, would serve better",
            "private words + vector": "private words that the vector is held to would help",
        }.get(rival.method, "a list of private words in the prompt would serve as well")
        return (
            f"Expected best is {rival.method}, {figures} above the vector: {instead}; see "
            "docs/method.md#baselines. dpmtv build makes the vector alone."
        )
    if -gain > _CLEAR * error:
        return f"The vector is expected best: {figures} above {rival.method}, the next."
    return (
        f"No method is clearly better than the vector: {rival.method} is {figures} "
        f"{'above' if gain > 0 else 'below'} it."
    )


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
    elif best.spread > _SPREAD:
        low, high = min(rules, key=rules.__getitem__), max(rules, key=rules.__getitem__)
        said.append(
            f"one build is uncertain by ± {100 * best.spread:.0f} points, more than "
            f"{100 * _SPREAD:.0f}: {rules[low]:.0%} on {low}, {rules[high]:.0%} on {high}; the "
            "private rule may be like any of them, so compare with those that are most like it"
        )
    if made.in_context < _POOR:
        said.append(
            f"with {IN_CONTEXT} demonstrations in the prompt the model is right in "
            f"{made.in_context:.0%} only: it can hardly do such tasks, and no vector will be much "
            "better; a more able model would help, more records or a larger epsilon will not"
        )
    if made.words >= best.accuracy:
        said.append(
            f"zero-shot, with the answer words listed and enforced, {made.words:.0%} are right: if "
            "yours are public, list them, and spend no budget"
        )
    gain, most = best.accuracy - made.zero_shot, best.without_noise - made.zero_shot
    if most < _LITTLE:
        said.append(
            f"without a vector {made.zero_shot:.0%} are right, with one without noise "
            f"{best.without_noise:.0%}: there is little for a vector to gain on such tasks"
        )
    elif gain < _POOR * most:
        better = [f for f in made.forecasts if f.method == VECTOR and f.accuracy > best.accuracy]
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
    if best.null_chunks > _NULL:
        said.append(
            f"{best.null_chunks:.0%} of the chunks will get no unit and count as zero; under "
            "add_remove that is the price of not telling how many units there are"
        )
    return said
