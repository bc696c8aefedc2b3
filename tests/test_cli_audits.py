"""The audit commands as a user types them, and the page that tells of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from audit import BEGIN, COMMAND, DOCS, END, page  # benchmarks/audit.py
from dpmtv import cli
from dpmtv.cli import audits
from dpmtv.evaluation import membership
from dpmtv.privacy import mechanisms

TEXT = (DOCS / "audit.md").read_text("utf-8")
ROWS = json.loads((DOCS / "audit.json").read_text("utf-8"))


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, ["audit", *words])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def measured(monkeypatch):
    """The command with the committed rows in place of the attacks."""
    given = {}

    def attacks(model, benchmark, settings, **options):
        given.update(benchmark=benchmark, settings=settings, **options)
        return [dict(row) for row in ROWS]

    monkeypatch.setattr(membership, "audit_membership", attacks)
    monkeypatch.setattr(audits, "load", lambda name: None)
    return given


def test_one_run_says_what_it_found():
    code, out, _ = run("one-run", "--canaries", "200", "--epsilon", "4")
    assert code == 0
    assert "200 canaries: replace_one" in out
    assert "no violation found at confidence 99 %" in out
    code, out, _ = run("one-run", "--canaries", "200", "--relation", "zero_out", "--json")
    assert code == 0
    assert json.loads(out)["bounds"]["coins"] == 200


def test_a_violation_ends_with_code_1(monkeypatch):
    monkeypatch.setattr(mechanisms, "_discrete_gaussian", lambda values, scale: values)
    code, out, _ = run("one-run", "--canaries", "200")
    assert code == 1
    assert "VIOLATION" in out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("one-run", "--canaries", "5"), "100"),
        (("one-run", "--relation", "add_one"), "--relation must be one of"),
        (("one-run", "--canaries", "200", "--delta", "0.1"), "delta"),
        (("membership", "embedded", "--epsilons", "1,none"), "--epsilons takes numbers alone"),
        (("membership", "embedded", "--epsilons", "one"), "--epsilons takes numbers"),
        (("membership", "embedded", "--tasks", "no-such"), "no task no-such"),
        (("membership", "embedded", "--benchmark", "/nowhere"), "not a benchmark folder"),
    ],
)
def test_a_users_mistake_ends_with_code_2(words, named):
    code, _, err = run(*words)
    assert code == 2
    assert named in re.sub(r"\s+|[│\x1b]", " ", err)


def test_membership_prints_a_table_and_writes_rows_and_picture(measured, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("membership", "embedded", "--tasks", "color-gem", "--draws", "3", "-o", "out")
    code, out, _ = run(*words)
    assert code == 0
    assert measured["settings"].trials == 3
    assert [task.name for task in measured["benchmark"].tasks] == ["color-gem"]
    assert "not private" in out
    assert out.count("own answer: ") == 4, "a verdict a private target"
    assert json.loads(Path("out/audit.json").read_text("utf-8")) == ROWS
    assert Path("out/audit.png").stat().st_size > 10_000
    code, out, _ = run(*words[:6], "--json")
    assert json.loads(out) == ROWS


def test_membership_ends_with_code_1_on_a_violation(measured, monkeypatch):
    monkeypatch.setitem(ROWS[-1], "violation", True)
    assert run("membership", "embedded", "--json")[0] == 1


# The page.


def test_the_table_is_made_from_the_committed_rows():
    assert page(TEXT, ROWS) == TEXT
    assert TEXT.index(BEGIN) < TEXT.index(END)


def test_rows_name_the_command_that_makes_them():
    assert {row["command"] for row in ROWS} == {" ".join(["dpmtv", *COMMAND])}
    group = get_command(cli.app).commands["audit"].commands["membership"]
    given = group.make_context("membership", list(COMMAND[2:])).params
    assert given["tasks"].split(",") == ROWS[0]["tasks"]
    assert {row["trials"] for row in ROWS} == {given["draws"]}
    assert {row["records"] for row in ROWS} == {given["records"]}


def test_attacks_succeed_where_nothing_protects():
    for row in ROWS:
        strong = row["attack"] in ("vector", "answers")
        if strong and not row["private"]:
            assert row["auc_low"] > 0.5, row["attack"]
    assert not any(row["violation"] for row in ROWS)


def test_python_on_the_page_prints_what_its_comments_say(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out.split() == code.rsplit("# ", 1)[1].split()


@pytest.mark.parametrize(
    "line", re.findall(r"^dpmtv audit .*$", TEXT, re.MULTILINE), ids=lambda line: line[:40]
)
def test_commands_on_the_page_exist(line):
    words = line.split("#")[0].split()[2:]
    command = get_command(cli.app).commands["audit"].commands[words[0]]
    assert command.make_context(words[0], words[1:])
