"""A plan reads nothing private, uses the real mechanism, and says what to expect of a build."""

from __future__ import annotations

import builtins
import functools
import inspect
import io
import json
import os
import shlex
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from typer.testing import CliRunner

import dpmtv
from dpmtv import cli, planning
from dpmtv.data.chunks import form_chunks, rows_of_units, units_in_a_chunk
from dpmtv.data.demonstrations import read_demonstrations
from dpmtv.errors import UserError
from dpmtv.evaluation import rehearsal
from dpmtv.evaluation.benchmark import EMBEDDED_DATA
from dpmtv.evaluation.rehearsal import Forecast, null_share, rehearse, simulated_release
from dpmtv.geometry import ReleaseGeometry
from dpmtv.head_selection import Selection
from dpmtv.models.synthetic import SyntheticPublic
from dpmtv.planning import Plan, plan
from dpmtv.privacy import mechanisms
from dpmtv.privacy.accounting import noise_multiplier
from dpmtv.types import Demonstration, HeadLayout

RULES = ("digit-english", "color-english", "shape-german")
PER_RULE = 12
FAST = {"delta": 1e-5, "draws": 2, "search_steps": 2}


@pytest.fixture(scope="module")
def public() -> list[Demonstration]:
    rows = read_demonstrations(EMBEDDED_DATA / "public.jsonl")
    return [r for name in RULES for r in [r for r in rows if r.task == name][:PER_RULE]]


@pytest.fixture(scope="module")
def drawn(model, public) -> tuple[Plan, list[int]]:
    """One plan, and the scale of the noise every time that the real sampler was called."""
    scales = []
    sampler = mechanisms._discrete_gaussian

    def counted(values: np.ndarray, scale: int) -> np.ndarray:
        scales.append(scale)
        return sampler(values, scale)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mechanisms, "_discrete_gaussian", counted)
        made = plan(model, records=40, epsilon=1.0, public=public, **FAST)
    return made, scales


def test_there_is_no_way_to_give_it_private_records():
    parameters = inspect.signature(dpmtv.plan).parameters
    assert "data" not in parameters
    kinds = {p.kind for p in parameters.values()}
    assert not kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    taken = [n for n, p in parameters.items() if "Demonstration" in str(p.annotation)]
    assert taken == ["public"]


def test_importing_the_module_does_not_hide_the_function():
    assert dpmtv.plan is planning.plan


def test_every_simulated_release_draws_the_real_noise(drawn):
    made, scales = drawn
    assert len(scales) == len(made.forecasts) * len(RULES) * FAST["draws"]
    assert min(scales) > 0


def test_rows_are_the_alternatives_that_were_promised(drawn):
    made, _ = drawn
    best = made.recommended
    found = [(f.epsilon, f.records, f.shots, f.chunks) for f in made.forecasts]
    k = best.shots
    assert found == [
        *((1.0, 40, shots, 40 // shots) for shots in (1, 2, 4)),
        *((e, 40, k, 40 // k) for e in (0.5, 2.0)),
        *((1.0, n, k, n // k) for n in (20, 80)),
    ]
    assert sum(f.recommended for f in made.forecasts) == 1
    for f in made.forecasts:
        assert set(f.by_rule) == set(RULES)
        assert f.accuracy == pytest.approx(np.mean(list(f.by_rule.values())))
        assert f.spread >= np.std(list(f.by_rule.values())) - 1e-9
        assert f.null_chunks == 0
    assert made.seconds > 0
    assert made.memory is None or 1e8 < made.memory < 1e12, "bytes"


def test_more_epsilon_or_records_is_less_noise(drawn):
    made, _ = drawn
    ratio = {(f.epsilon, f.records): f.noise_to_signal for f in made.forecasts[3:]}
    base = made.recommended.noise_to_signal
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
    chunk = np.zeros(layout.size)
    chunk[0] = 1.5
    found = simulated_release(geometry, [chunk] * 30 + [None] * 10, 1.0, 1e-5, "replace_one")
    sigma = noise_multiplier(1.0, 1e-5) * 2 * 2.0 / 40
    assert found[1:].std() == pytest.approx(sigma, rel=0.12)  # 799 coordinates: 4.8 deviations
    exact = simulated_release(geometry, [chunk] * 30 + [None] * 10, 20.0, 1e-5, "replace_one")
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
    one = [r for r in public if r.task == RULES[0]]
    searched.clear()
    known = rehearse(model, one, None, 4, ["?"], 1, progress)
    halves = [rule.wanted for rule in known.rules]
    assert len(halves) == 2
    assert sum(map(len, halves)) == PER_RULE // 3, "each record is in one half"


def row(**fields) -> Forecast:
    made = Forecast(1.0, 100, 1, 100, 0.6, 0.1, {"a": 0.6, "b": 0.6}, 0.9, 1.0, 0.0, True)
    return replace(made, **fields)


def plan_of(*rows: Forecast, **fields) -> Plan:
    found = Plan(list(rows) or [row()], 0.05, 0.95, 1.0, None, 1, "replace_one", 1e-5, None, [])
    return replace(found, **fields)


def test_no_warning_without_a_reason():
    known = [Demonstration("", "Which  colour?", "a")]
    assert planning._warnings(plan_of(), known, ["Which colour?"]) == []


@pytest.mark.parametrize(
    ("made", "asked", "words"),
    [
        (plan_of(), ["How heavy?"], "no public record asks 'How heavy\\?'"),
        (plan_of(row(by_rule={"a": 0.6})), [], "one public answer rule"),
        (plan_of(row(by_rule={"a": 0.2, "b": 0.9})), [], "differ widely: 20% on a, 90% on b"),
        (plan_of(in_context=0.3), [], "30% only"),
        (plan_of(zero_shot=0.85), [], "little for a vector to gain"),
        (
            plan_of(
                row(accuracy=0.3),
                row(epsilon=2.0, accuracy=0.7, recommended=False),
                row(records=200, accuracy=0.8, recommended=False),
            ),
            [],
            r"noise leaves 29%.*epsilon 2 \(70%\) or 200 records \(80%\)",
        ),
        (plan_of(row(accuracy=0.3)), [], "far more records"),
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


def test_rules_too_small_for_a_larger_k_are_planned_at_k_1_and_2(model, public, monkeypatch):
    monkeypatch.setattr(planning, "rehearse", told := count_calls(rehearse))
    small = [r for name in RULES[:2] for r in [r for r in public if r.task == name][:4]]
    made = plan(model, records=40, epsilon=1.0, public=small, **FAST | {"draws": 1})
    assert {f.shots for f in made.forecasts[:2]} == {1, 2}
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
    monkeypatch.setattr(planning, "plan", functools.partial(plan, search_steps=2))
    before = sorted(folder.iterdir())
    words = ["plan", "embedded", "--records", "30", "--epsilon", "2", "--public", "public.jsonl"]
    words += ["--draws", "1", "--asked", "How heavy is it?"]
    result = CliRunner().invoke(cli.app, words)
    assert result.exit_code == 0, result.stderr
    assert any("public.jsonl" in path for path in guarded), "the watch sees what is opened"
    assert sorted(folder.iterdir()) == before
    assert "Expected accuracy" in result.stdout
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
