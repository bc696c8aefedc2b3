"""A plan reads nothing private, uses the real mechanism, and says what to expect of a build."""

from __future__ import annotations

import builtins
import functools
import inspect
import io
import json
import os
import re
import shlex
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import pytest
from typer.testing import CliRunner

import dpmtv
from dpmtv import cli, planning
from dpmtv.data.chunks import form_chunks, rows_of_units, units_in_a_chunk
from dpmtv.data.demonstrations import read_demonstrations
from dpmtv.errors import PrivacyParameterError, UserError
from dpmtv.evaluation import forecasts, rehearsal, rivals
from dpmtv.evaluation.benchmark import EMBEDDED_DATA
from dpmtv.evaluation.forecasts import Forecast, null_share, simulated_release
from dpmtv.evaluation.rehearsal import Known, rehearse
from dpmtv.evaluation.settings import RIVALS
from dpmtv.geometry import ReleaseGeometry
from dpmtv.head_selection import Selection
from dpmtv.models import atoms, choosing
from dpmtv.models.synthetic import SyntheticPublic
from dpmtv.pipeline import calibrate_for
from dpmtv.planning import Plan, plan
from dpmtv.privacy import mechanisms
from dpmtv.privacy.accounting import noise_multiplier
from dpmtv.types import BoundedRangeEvent, Demonstration, HeadLayout

RULES = ("digit-english", "color-english", "shape-german")
PER_RULE = 12
FAST = {"delta": 1e-5, "draws": 1, "search_steps": 2}


@pytest.fixture(scope="module")
def public() -> list[Demonstration]:
    rows = read_demonstrations(EMBEDDED_DATA / "public.jsonl")
    return [r for name in RULES for r in [r for r in rows if r.task == name][:PER_RULE]]


@pytest.fixture(scope="module", autouse=True)
def _few_words():
    """Decoding tries few words: what it reads is of other tests."""

    def words(_model, _vector, _heads, _queries, answers, *_chances, **_patch):
        return list(dict.fromkeys(answers))[:16]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atoms, "answer_lexicon", words)
        yield


@dataclass(frozen=True)
class Drawn:
    """One plan, and what the real mechanisms were called with."""

    made: Plan
    scales: list[int]  # of the noise, every time that it was sampled
    ranges: list[float]  # of every private choice


@pytest.fixture(scope="module")
def drawn(model, public) -> Drawn:
    scales, ranges = [], []
    picked = choosing.exponential_mechanism

    def chosen(sums, **how):
        ranges.append(how["range_"])
        return picked(sums, **how)

    sampler = mechanisms._discrete_gaussian

    def counted(values: np.ndarray, scale: int) -> np.ndarray:
        scales.append(scale)
        return sampler(values, scale)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mechanisms, "_discrete_gaussian", counted)
        patch.setattr(choosing, "exponential_mechanism", chosen)
        patch.setattr(planning, "_ahead", lambda *_: False)  # every K is tried, 1 is taken
        made = plan(model, records=40, epsilon=1.0, public=public, **FAST)
    return Drawn(made, scales, ranges)


@pytest.fixture(scope="module")
def known(model, public) -> Known:
    return rehearse(model, public, None, 1, ["?"], 1, lambda *_: None)


def test_there_is_no_way_to_give_it_private_records():
    parameters = inspect.signature(dpmtv.plan).parameters
    assert "data" not in parameters
    kinds = {p.kind for p in parameters.values()}
    assert not kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    taken = [n for n, p in parameters.items() if "Demonstration" in str(p.annotation)]
    assert taken == ["public"]


def test_importing_the_module_does_not_hide_the_function():
    assert dpmtv.plan is planning.plan


def test_every_simulated_release_draws_the_real_noise_and_chooses(drawn):
    vectors = [f for f in drawn.made.forecasts if f.method == "vector"]
    each = len(RULES) * FAST["draws"]
    assert len(drawn.scales) == (len(vectors) + 1) * each  # one rival is of words and a vector
    assert min(drawn.scales) > 0
    paid = [0.2 * f.epsilon for f in vectors if f.shots == 1 for _ in range(each)]
    assert sorted(drawn.ranges) == pytest.approx(sorted(paid)), "larger chunks have no choice"


def test_rows_are_the_alternatives_that_were_promised(drawn):
    made = drawn.made
    found = [(f.method, f.epsilon, f.records, f.shots, f.chunks) for f in made.forecasts]
    assert found == [
        *(("vector", 1.0, 40, shots, 40 // shots) for shots in (1, 2, 4)),
        *((method, 1.0, 40, 1, 40) for method in RIVALS),
        *(("vector", e, 40, 1, 40) for e in (0.5, 2.0)),
        *(("vector", 1.0, n, 1, n) for n in (20, 80)),
    ]
    assert made.recommended is made.forecasts[0]
    assert sum(f.recommended for f in made.forecasts) == 1
    for f in made.forecasts:
        assert set(f.by_rule) == set(RULES)
        assert f.accuracy == pytest.approx(np.mean(list(f.by_rule.values())))
        assert f.spread >= np.std(list(f.by_rule.values())) - 1e-9
        assert f.error == pytest.approx(np.std(list(f.by_rule.values()), ddof=1) / np.sqrt(3))
        assert (f.noise_to_signal is None) is (f.method != "vector")
        assert f.null_chunks == 0
    assert made.seconds > 0
    assert made.recommended.seconds < made.took
    assert made.words > made.zero_shot, "no other answer is allowed"
    assert made.memory is None or 1e8 < made.memory < 1e12, "bytes"


def test_more_epsilon_or_records_is_less_noise(drawn):
    vectors = [f for f in drawn.made.forecasts if f.method == "vector"]
    ratio = {(f.epsilon, f.records): f.noise_to_signal for f in vectors[3:]}
    base = drawn.made.recommended.noise_to_signal
    for e in (0.5, 2.0):
        expected = noise_multiplier(e, 1e-5) / noise_multiplier(1.0, 1e-5)
        assert ratio[e, 40] / base == pytest.approx(expected, rel=0.1)
    # Not exactly: the heads' weights are learned for each level of noise.
    assert ratio[1.0, 20] / base == pytest.approx(2, rel=0.1)
    assert ratio[1.0, 80] / base == pytest.approx(0.5, rel=0.1)


def test_a_simulated_release_has_the_noise_and_the_mean_of_a_build():
    layout = HeadLayout((8, 8), (50, 50))
    heads = np.ones(16, dtype=bool)
    geometry = ReleaseGeometry(layout, heads, (2.0,))
    chunks = np.zeros((1, layout.size))
    chunks[0, 0] = 1.5
    drawn = [0] * 30 + [None] * 10
    mechanism = calibrate_for(geometry, 1.0, 1e-5, "replace_one", 40)
    found = geometry.from_release(simulated_release(mechanism, geometry, chunks, drawn))
    sigma = noise_multiplier(1.0, 1e-5) * 2 * 2.0 / 40
    assert found[1:].std() == pytest.approx(sigma, rel=0.12)  # 799 coordinates: 4.8 deviations
    mechanism = calibrate_for(geometry, 20.0, 1e-5, "replace_one", 40)
    exact = simulated_release(mechanism, geometry, chunks, drawn)
    assert exact[0] == pytest.approx(1.5 * 30 / 40, abs=0.25), "null chunks count as zero"


@pytest.mark.parametrize(("units", "shots", "per_unit"), [(60, 1, 1), (60, 4, 5), (60, 2, 1)])
def test_null_share_is_that_of_the_real_hash(units, shots, per_unit):
    rows = [
        Demonstration("", "?", "a", unit=f"unit {u}") for u in range(units) for _ in range(per_unit)
    ]
    m = units // units_in_a_chunk(shots, per_unit)
    form = functools.partial(
        form_chunks, rows_of_units(rows, True), chunks=m, size=shots, per_unit=per_unit, by_id=True
    )
    empty = [not chunk for key in range(200) for chunk in form(key=b"%d" % key)]
    assert null_share(units, m) == pytest.approx(np.mean(empty), abs=0.015)


def test_add_remove_counts_null_chunks_and_declares_a_population(model, public, monkeypatch):
    monkeypatch.setattr(planning, "SHOTS", (1,))
    how = {"relation": "add_remove", "unit": "patient", "per_unit": 2}
    made = plan(model, records=40, epsilon=1.0, public=public[: 2 * PER_RULE], **how, **FAST)
    best = made.recommended
    assert (made.population, best.chunks) == (20, 20)
    assert best.null_chunks == pytest.approx((1 - 1 / 20) ** 20)
    assert any("get no unit" in w for w in made.warnings)
    assert {f.method for f in made.forecasts} == {"vector"}
    assert "No other method was compared" in made.advice


def test_a_release_is_decoded_and_chosen_by_the_records_that_made_it(
    model, public, known, monkeypatch
):
    asked = []

    def options(_model, geometry, release, sigma, heads, others, queries, questions, **how):
        asked.append((sigma, heads, others, queries, questions, how["shown"]))
        return np.stack([geometry.from_release(release), np.zeros(model.layout.size)])

    scored = []
    monkeypatch.setattr(choosing, "candidate_vectors", options)
    monkeypatch.setattr(
        forecasts.MaskLoss,
        "right",
        lambda self, _v, _h, at: scored.append(self.prompts[at].query) or np.array([False, True]),
    )
    monkeypatch.setattr(forecasts, "right_share", lambda *_: 0.5)
    monkeypatch.setattr(  # a choice that hardly errs would take long to compose
        forecasts, "default_picks", lambda *_: (BoundedRangeEvent(0.5, 1),)
    )
    level, size = (1.0, 1e-5, "replace_one"), (40, 1, 40, 0.0)
    forecasts.forecast(model, known, level, size, 1, lambda: None)
    assert len(asked) == len(known.rules) == len(RULES)
    for rule, (sigma, heads, others, queries, questions, shown) in zip(
        known.rules, asked, strict=True
    ):
        own = [r for r in public if r.task == rule.name]
        assert sigma > 0
        assert heads is rule.heads
        assert others is rule.public
        assert shown is rule.shown
        assert others
        assert all(r.task != rule.name for r in others)
        assert set(questions) == {r.question for r in rule.held_out}
        assert {q.question for q in queries} <= set(questions)
        assert not {q.image for q in queries} & {r.image for r in own}
        assert not {r.image for r in rule.records} & {r.image for r in rule.held_out}
    queries = {(q.image, q.question) for q in scored}
    assert queries <= {(r.image, r.question) for rule in known.rules for r in rule.records}
    assert len(scored) == len(queries), "a record is asked once a draw"


def test_heads_and_clip_are_found_without_the_rule_that_they_are_measured_on(
    model, public, monkeypatch
):
    searched = []

    def select(model, tasks, _patch, _steps, _told, check):
        searched.append({task.scoring[0].task for task in tasks})
        if check is not None:
            assert [task.scoring[0].task for task in tasks] == check.checks, "each its own"
        heads = np.zeros(model.layout.n_heads, dtype=bool)
        heads[len(searched)] = True
        return Selection(heads, heads.astype(float), np.zeros(1))

    monkeypatch.setattr(rehearsal, "select_heads", select)
    progress = lambda *_: None  # noqa: E731
    check = SyntheticPublic(public, list(RULES))  # names stand for the checks of the rules
    known = rehearse(model, public, check, 4, ["?"], 1, progress)
    assert {r.name for r in known.rules} == set(RULES)
    for rule in known.rules:
        assert rule.name not in searched[int(np.flatnonzero(rule.heads)[0]) - 1]
        assert rule.geometry(0.1).heads is rule.heads
        assert {r.task for r in rule.public} == searched[int(np.flatnonzero(rule.heads)[0]) - 1]
        assert len(rule.bank) == len({r.task for r in rule.public})
    one = [r for r in public if r.task == RULES[0]]
    searched.clear()
    known = rehearse(model, one, None, 4, ["?"], 1, progress)
    halves = [rule.wanted for rule in known.rules]
    assert len(halves) == 2
    assert sum(map(len, halves)) == PER_RULE // 3, "each record is in one half"
    for rule in known.rules:
        assert rule.public == rule.bank == [], "its own records would tell too much"
        assert not {q.image for q in rule.queries} & {r.image for r in rule.held_out}


def row(**fields) -> Forecast:
    rules = {"a": 0.6, "b": 0.6}
    made = Forecast(1.0, 100, 1, 100, 0.6, 0.05, 0.0, rules, 0.9, 1.0, 0.0, 1.0, recommended=True)
    return replace(made, **fields)


def plan_of(*rows: Forecast, **fields) -> Plan:
    bare = {"zero_shot": 0.05, "words": 0.3, "in_context": 0.95}
    cost = {"seconds": 1.0, "memory": None, "took": 1.0, "draws": 1}
    how = {"relation": "replace_one", "delta": 1e-5, "population": None}
    found = Plan(list(rows) or [row()], **bare, **cost, **how, advice="", warnings=[])
    return replace(found, **fields)


def test_no_warning_without_a_reason():
    known = [Demonstration("", "Which  colour?", "a")]
    assert planning._warnings(plan_of(), known, ["Which colour?"]) == []


@pytest.mark.parametrize(
    ("made", "asked", "words"),
    [
        (plan_of(), ["How heavy?"], "no public record asks 'How heavy\\?'"),
        (plan_of(row(by_rule={"a": 0.6})), [], "one public answer rule"),
        (
            plan_of(row(by_rule={"a": 0.2, "b": 0.9}, spread=0.35)),
            [],
            "± 35 points, more than 8: 20% on a, 90% on b",
        ),
        (plan_of(in_context=0.3), [], "30% only"),
        (plan_of(zero_shot=0.85), [], "little for a vector to gain"),
        (plan_of(words=0.7), [], "enforced, 70% are right: if yours are public"),
        (
            plan_of(
                row(accuracy=0.3),
                row(epsilon=2.0, accuracy=0.7, recommended=False),
                row(records=200, accuracy=0.8, recommended=False),
                row(method="bank choice", accuracy=0.9, recommended=False),
                words=0.2,
            ),
            [],
            r"noise leaves 29%.*epsilon 2 \(70%\) or 200 records \(80%\)",
        ),
        (plan_of(row(accuracy=0.3), words=0.2), [], "far more records"),
        (plan_of(row(null_chunks=0.37)), [], "37% of the chunks"),
    ],
)
def test_warnings_say_what_is_wrong(made, asked, words):
    (said,) = planning._warnings(made, [Demonstration("", "Which colour?", "a")], asked)
    with pytest.raises(UserError, match=words):
        raise UserError(said)


def test_a_larger_k_has_to_be_clearly_better():
    base = row(by_rule={"a": 0.5, "b": 0.5, "c": 0.5})
    assert planning._ahead(row(by_rule={"a": 0.7, "b": 0.6, "c": 0.6}), base)
    assert not planning._ahead(row(by_rule={"a": 0.9, "b": 0.4, "c": 0.4}), base)
    assert not planning._ahead(base, base)


def rival(method: str, *accuracies: float) -> Forecast:
    by_rule = {str(i): a for i, a in enumerate(accuracies)}
    accuracy = float(np.mean(accuracies))
    return row(method=method, by_rule=by_rule, accuracy=accuracy, recommended=method == "vector")


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([], "No other method was compared"),
        ([("bank choice", 0.1, 0.2, 0.1)], "vector is expected best: 36.7 ± 3.3 points above bank"),
        ([("bank choice", 0.9, 0.2, 0.6)], "No method is clearly better.*6.7 ± 20.3 points above"),
        ([("bank choice", 0.2, 0.6, 0.3)], "No method is clearly better.*13.3 ± .* below"),
        (
            [
                ("private words + vector", 0.5, 0.6, 0.5),
                ("private words listed and enforced", 0.7, 0.8, 0.7),
            ],
            "best is private words listed and enforced, 23.3 ± 3.3 points above the vector: a "
            "list of private words in the prompt would serve as well.*makes the vector alone",
        ),
        ([("private words + vector", 0.9, 0.9, 0.9)], "held to would help"),
        ([("bank choice", 0.9, 0.9, 0.9)], "a public task vector, chosen privately"),
    ],
)
def test_a_rival_is_recommended_only_if_it_is_clearly_better(others, words):
    made = plan_of(rival("vector", 0.5, 0.5, 0.5), *(rival(*r) for r in others))
    assert re.search(words, planning._advice(made)), planning._advice(made)


def test_one_rule_recommends_no_method():
    made = plan_of(rival("vector", 0.2), rival("bank choice", 0.9))
    assert "one public rule does not tell" in planning._advice(made)


def test_a_rival_that_cannot_meet_the_level_is_left_out(model, known, monkeypatch):
    def refuse(*_):
        raise PrivacyParameterError("it cannot be split")

    monkeypatch.setattr(rivals, "vector_epsilon", refuse)
    told = count()
    level = (1.0, 1e-5, "replace_one")
    made = forecasts.rival_forecasts(model, known, row(), level, 1, lambda: next(told))
    assert {f.method for f in made} == {*RIVALS} - {"private words + vector"}
    assert not any(f.recommended for f in made)
    assert next(told) == len(RULES)


@pytest.fixture
def stubbed(monkeypatch):
    """Forecasts of a given accuracy for each K, without a release; and what was tried."""
    accuracy, tried = {1: 0.6, 2: 0.6, 4: 0.6}, []

    def forecast(_model, _known, level, size, draws, _told):
        tried.append((level[0], size[1], draws))
        return row(by_rule=dict.fromkeys("ab", accuracy[size[1]]), shots=size[1])

    monkeypatch.setattr(planning, "forecast", forecast)
    monkeypatch.setattr(planning, "rival_forecasts", lambda *_: [])
    bare = dict.fromkeys(("zero-shot", "words listed and enforced", "in-context"), 0.5)
    monkeypatch.setattr(planning, "baselines", lambda *_: bare)
    return accuracy, tried


def test_no_larger_k_is_tried_after_a_clearly_worse_one(model, public, stubbed, monkeypatch):
    accuracy, tried = stubbed
    rules = [None] * 3
    monkeypatch.setattr(planning, "rehearse", lambda *_: Known(rules, 1, 1, 1))
    how = {"records": 40, "epsilon": 1.0, "delta": 1e-5, "public": public}
    accuracy |= {2: 0.5, 4: 0.9}
    plan(model, **how)
    assert tried[:3] == [(1.0, 1, 7), (1.0, 2, 7), (0.5, 1, 7)], "about twenty releases a row"
    accuracy[2] = 0.6
    tried.clear()
    plan(model, **how, draws=3)
    assert tried[:4] == [(1.0, 1, 3), (1.0, 2, 3), (1.0, 4, 3), (0.5, 4, 3)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 0.025}, "1/n"),
        ({"records": 0}, "no records"),
        ({"records": 3, "unit": "patient", "per_unit": 4}, "no records"),
        ({"relation": "add_one"}, "relation"),
        ({"relation": "add_remove"}, "unit"),
        ({"relation": "add_remove", "unit": "patient", "population": 0}, "population"),
        ({"population": 30}, "population"),
        ({"per_unit": 2}, "per_unit"),
        ({"per_unit": 0, "unit": "patient"}, "per_unit"),
        ({"unit": "record"}, "unit"),
        ({"draws": 0}, "draw"),
        ({"public": []}, "public records"),
        ({"public": "public.jsonl"}, "synthetic"),
    ],
)
def test_refused_before_any_pass(model, public, options, message, monkeypatch):
    monkeypatch.setattr(type(model), "last_token_heads", lambda *_: pytest.fail("a pass was made"))
    arguments = {"records": 40, "epsilon": 1.0, "public": public, **FAST} | options
    with pytest.raises(UserError, match=message):
        plan(model, **arguments)


def test_rules_too_small_for_a_larger_k_are_planned_at_k_1_and_2(
    model, public, stubbed, monkeypatch
):
    monkeypatch.setattr(planning, "rehearse", told := count_calls(rehearse))
    small = [r for name in RULES[:2] for r in [r for r in public if r.task == name][:4]]
    made = plan(model, records=40, epsilon=1.0, public=small, **FAST)
    assert [f.shots for f in made.forecasts[:2]] == [1, 2]
    assert all(f.shots != 4 for f in made.forecasts)
    assert next(told.calls) == 3


def count_calls(function):
    @functools.wraps(function)
    def counted(*args):
        next(counted.calls)
        return function(*args)

    counted.calls = count()
    return counted


# --- the command ---------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a public file, and a private one that nobody may open."""
    lines = [
        line.replace("images/", f"{EMBEDDED_DATA}/images/")
        for line in (EMBEDDED_DATA / "public.jsonl").read_text("utf-8").splitlines()
    ]
    rows = [x for n in RULES[:2] for x in [x for x in lines if json.loads(x)["task"] == n][:12]]
    (tmp_path / "public.jsonl").write_text("\n".join(rows) + "\n", "utf-8")
    (tmp_path / "PRIVATE.jsonl").write_text('{"secret": 1}\n', "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def guarded(monkeypatch):
    """Every way to open a file by name, watching for the private one."""
    opened = []
    for module, name in ((builtins, "open"), (io, "open"), (os, "open")):
        real = getattr(module, name)

        def watched(path, *args, real=real, **how):
            opened.append(str(path))
            assert "PRIVATE" not in str(path)
            return real(path, *args, **how)

        monkeypatch.setattr(module, name, watched)
    return opened


def test_the_command_reads_public_records_alone(folder, guarded, monkeypatch):
    monkeypatch.setattr(cli.common, "_debug", False)
    monkeypatch.setattr(planning, "SHOTS", (1,))
    made = []

    def once(*arguments, **options):
        made.append(made[0] if made else plan(*arguments, **options, search_steps=2))
        return made[-1]

    monkeypatch.setattr(planning, "plan", once)
    before = sorted(folder.iterdir())
    words = ["plan", "embedded", "--records", "30", "--epsilon", "2", "--public", "public.jsonl"]
    words += ["--draws", "1", "--asked", "How heavy is it?"]
    result = CliRunner().invoke(cli.app, words)
    assert result.exit_code == 0, result.stderr
    assert any("public.jsonl" in path for path in guarded), "the watch sees what is opened"
    assert sorted(folder.iterdir()) == before
    assert "Expected accuracy" in result.stdout
    assert "private words listed and enforced" in result.stdout
    assert "this plan took" in result.stdout
    assert "no public record asks" in result.stdout
    ready = shlex.split(result.stdout.splitlines()[-1])
    assert ready[:4] == ["dpmtv", "build", "embedded", "PRIVATE.jsonl"]
    assert ready[ready.index("--asked") + 1] == "How heavy is it?"
    known = CliRunner().invoke(cli.app, ["build", "--help"], env={"COLUMNS": "200"}).stdout
    assert all(word in known for word in ready if word.startswith("--"))

    result = CliRunner().invoke(cli.app, [*words, "--json"])
    told = json.loads(result.stdout)
    assert told["forecasts"][0]["recommended"] is True
    assert shlex.split(told["build"]) == ready


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--epsilon", "0"], "epsilon"),
        (["--epsilon", "1", "--delta", "0.5"], "1/n"),
        (["--epsilon", "1", "--relation", "other"], "relation"),
        (["--epsilon", "1", "--population", "5"], "population"),
        (["--epsilon", "1", "--per-unit", "2"], "per_unit"),
        (["--epsilon", "1", "--public", "synthetic"], "--public is synthetic or files"),
        (["--epsilon", "1", "--records", "0"], "records"),
    ],
)
def test_bad_arguments_exit_2(folder, words, message, monkeypatch):
    monkeypatch.setattr(cli.common, "_debug", False)
    base = ["plan", "embedded", "--records", "30", "--public", "public.jsonl"]
    result = CliRunner().invoke(cli.app, base + words)
    assert result.exit_code == 2
    assert message in result.stderr
