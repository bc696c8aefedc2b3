"""The documents say what was measured, and their links lead somewhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from dpmtv import cli
from dpmtv.evaluation.settings import GEOMETRIES, METHODS, RELATIONS
from equal_records import summary
from results import (  # benchmarks/results.py
    CHOSEN_ON,
    CURVE,
    DOCS,
    FULL,
    MODES,
    OTHERS,
    PARTS,
    SUITE,
    carried,
    harder_than_words,
    headline,
    page,
    typed,
    weights,
    wider_rows,
)

ROOT = DOCS.parent
ROWS = json.loads((DOCS / "results.json").read_text("utf-8"))
READ_AT_ONCE = ("held-out words", "held-out pairs")


def row(method: str, **wanted: object) -> dict:
    (found,) = [
        r for r in ROWS if r["method"] == method and all(r[k] == v for k, v in wanted.items())
    ]
    return found


def of_group(method: str, group: str, patch: str = "every-step") -> float:
    return row(method, table=f"main, {patch}", task=f"mean of {group}")["mean"]


def test_the_results_page_is_made_from_the_committed_rows():
    assert (DOCS / "results.md").read_text("utf-8") == page(ROWS, wider_rows())


def test_every_figure_is_of_the_sealed_test_and_of_twenty_draws():
    assert {r["table"] for r in ROWS} >= set(PARTS)
    model = weights()
    for r in ROWS:
        assert r["command"] == typed(r["table"]), "made by another command"
        assert " --sealed " in r["command"]
        assert r["weights"] == model, "of another model than the one in the package"
        if r["K"] or r["m"]:
            assert r["draws"] == (10 if r["table"] == "rivals" else 20), r


@pytest.mark.parametrize("part", [*PARTS, *FULL])
def test_parts_are_commands_that_the_command_line_takes(part):
    name, *arguments = {**PARTS, **FULL}[part]
    assert len([a for a in arguments if a == "--draws"]) == 1
    given = get_command(cli.app).commands[name].make_context(name, [*arguments]).params
    assert (given["target"], given["sealed"], given["json_"]) == ("embedded", True, True)
    for option, allowed in (
        *(("methods", METHODS), ("geometries", GEOMETRIES), ("relations", RELATIONS)),
        ("tasks", SUITE),
    ):
        values = given[option].split(",") if given[option] else []
        assert {*values} <= {*allowed}
        assert len({*values}) == len(values)
    if "dp-mtv" in given["methods"]:
        assert "--geometries" in arguments, "a part must not change with the default"
    assert all(int(n) <= 1000 for n in f"{given['records'] or 0}".split(","))


def test_tasks_of_the_choice_and_the_others_are_the_whole_suite():
    chosen, others = CHOSEN_ON.split(","), OTHERS.split(",")
    assert (len(chosen), len(others)) == (9, 29)
    assert sorted(chosen + others) == sorted(SUITE)
    assert others == [task for task in SUITE if task in others]


def test_tables_on_other_pages_are_made_from_the_committed_rows():
    assert carried(ROWS) in (DOCS / "embedded.md").read_text("utf-8")
    readme = (ROOT / "README.md").read_text("utf-8")
    assert headline(ROWS) in readme
    assert summary(ROWS, SUITE) in readme
    outside = readme.replace(headline(ROWS), "")
    results = (DOCS / "results.md").read_text("utf-8")
    for figure in re.findall(r"\d+\.\d ± \d+\.\d", outside):
        assert figure in results


@pytest.mark.parametrize("patch", MODES)
def test_trained_rules_are_followed_in_both_patch_modes(patch):
    assert of_group("zero-shot", "trained", patch) <= 0.20
    assert of_group("in-context", "trained", patch) >= 0.90
    assert of_group("task vector", "trained", patch) >= 0.90


@pytest.mark.parametrize("patch", MODES)
@pytest.mark.parametrize("group", READ_AT_ONCE)
def test_rules_that_were_never_trained_are_read(group, patch):
    assert of_group("in-context", group, patch) >= 0.90
    assert of_group("task vector", group, patch) >= 0.75


def test_many_chunks_beat_one_where_annotators_are_noisy():
    of = {m: row("task vector", table="noisy", task="mean", m=m)["mean"] for m in (1, 50)}
    in_context = row("in-context", table="noisy", task="mean")["mean"]
    assert of[50] >= of[1] + 0.10
    assert of[50] >= in_context + 0.05


def test_knowing_the_words_is_not_enough():
    assert len(harder_than_words(ROWS)) >= 6


@pytest.mark.parametrize(
    ("table", "m"),
    [
        *(("chunks, K = 4", m) for m in (25, 50, 100, 200)),
        *(("chunks, K = 1", m) for m in (25, 50, 100, 200, 400)),
    ],
)
@pytest.mark.parametrize("relation", ["replace_one", "zero_out"])
def test_the_papers_release_is_measured_at_every_size(table, m, relation):
    paper = row(
        "dp-mtv",
        table=table,
        task="mean",
        m=m,
        relation=relation,
        geometry="all heads, clip per layer, public mask",
    )
    assert (paper["epsilon"], paper["delta"]) == (1.0, 1e-5)
    assert paper["gain"] is not None


def test_controls_stay_near_zero_shot():
    zero = row("zero-shot", table="controls", task="mean")["mean"]
    controls = [r for r in ROWS if r["table"] == "controls" and r["method"] != "zero-shot"]
    means = [r for r in controls if r["task"] == "mean"]
    assert len(means) == 8, "two controls, two geometries, two relations"
    for r in means:
        assert r["mean"] <= zero + 0.05, r


def test_curves_are_of_tasks_of_the_suite():
    assert {SUITE[t] for t in CURVE.split(",")} >= {"trained", "noisy", *READ_AT_ONCE}


def examples() -> list:
    """Python blocks that say in comments what they print."""
    found = []
    for path in (DOCS / "privacy.md", DOCS / "audit.md"):
        text = path.read_text("utf-8")
        for block in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, block.start()) + 1
            found.append(pytest.param(block[1], id=f"{path.name} line {line}"))
    return found


@pytest.mark.parametrize("code", examples())
def test_examples_print_what_their_comments_say(code):
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said = iter(re.findall(r"# (.*)$", code, re.MULTILINE))
    assert run.stdout
    for line in run.stdout.splitlines():
        assert line in said, line  # in their order


def test_the_table_of_powers_is_what_its_example_prints():
    text = (DOCS / "privacy.md").read_text("utf-8")
    head, example = text.split("What an attacker finds, at", 1)[1].split("```", 2)[:2]
    table = [line for line in head.splitlines() if re.match(r"\| [0-9]", line)]
    assert table == re.findall(r"^# (\|.*)$", example, re.MULTILINE)
    assert len(table) == 5
    default, alone = (table[1].split(" | ")[place] for place in (2, 6))
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert f"at most {default} of the time ({alone.removesuffix(' |')} without" in readme
    assert f"them **{default}**" in text


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", *DOCS.rglob("*.md"), ROOT / "CONTRIBUTING.md"],
    ids=lambda p: p.name,
)
def test_links_lead_somewhere(path: Path):
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text("utf-8")):
        if not target.startswith("https://"):
            assert (path.parent / target).exists(), target
