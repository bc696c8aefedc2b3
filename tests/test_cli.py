"""The commands as a user types them, and what bad input gets."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpmtv import cli
from dpmtv.evaluation.benchmark import EMBEDDED_DATA
from dpmtv.privacy import certificate

TASK = EMBEDDED_DATA / "tasks" / "color-gem"


@pytest.fixture
def run(monkeypatch, model):
    monkeypatch.setattr(cli, "_debug", False)
    runner = CliRunner()

    def invoke(*words: object) -> tuple[int, str, str]:
        result = runner.invoke(cli.app, [str(w) for w in words])
        return result.exit_code, result.stdout, result.stderr

    return invoke


def lines(count: int, replace: dict[int, str] | None = None) -> str:
    """The first rows of the task's private file with absolute image paths, some replaced."""
    rows = []
    for line in (TASK / "private.jsonl").read_text().splitlines()[:count]:
        row = json.loads(line)
        row["image"] = str((TASK / row["image"]).resolve())
        rows.append(json.dumps(row))
    for place, text in (replace or {}).items():
        rows[place] = text
    return "\n".join(rows) + "\n"


@pytest.fixture
def private(tmp_path) -> Path:
    path = tmp_path / "private.jsonl"
    path.write_text(lines(60))
    return path


@pytest.fixture
def public(tmp_path) -> Path:
    path = tmp_path / "public.jsonl"
    wanted = [
        line.replace("images/", f"{EMBEDDED_DATA}/images/")
        for line in (EMBEDDED_DATA / "public.jsonl").read_text().splitlines()
        if '"color-planet"' in line
    ]
    path.write_text("\n".join(wanted[:40]) + "\n")
    return path


@pytest.fixture
def built(run, private, public, tmp_path) -> Path:
    code, out, err = run(
        "build", "embedded", private, "-o", tmp_path / "vector", "--epsilon", 4, "--public", public
    )
    assert code == 0, err
    assert "ε = 4" in out
    assert "Saved" in out
    return tmp_path / "vector"


def test_build_show_verify_ask_evaluate(run, built, tmp_path):
    code, out, _ = run("show", built)
    assert code == 0
    assert "replace_one" in out
    assert "NOT PRIVATE" not in out
    code, out, _ = run("show", built, "--json")
    assert json.loads(out)["privacy"]["epsilon"] == 4.0
    code, out, _ = run("verify", built)
    assert code == 0
    assert out.rstrip().endswith("verified")
    code, out, _ = run("verify", built, "--json")
    assert json.loads(out)["verified"] is True

    record = json.loads((TASK / "test.jsonl").read_text().splitlines()[0])
    picture = (TASK / record["image"]).resolve()
    code, out, _ = run("ask", built, "--image", picture, record["question"], "--json")
    assert code == 0
    assert set(json.loads(out)) == {"answer", "zero_shot", "epsilon"}
    code, out, _ = run("ask", built, "--image", picture, record["question"])
    assert "without the vector:" in out

    test = tmp_path / "test.jsonl"
    test.write_text(lines(5))
    code, out, err = run("evaluate", built, "--benchmark", test, "--json")
    assert code == 0, err
    assert [r["method"] for r in json.loads(out)] == ["zero-shot", "dp-mtv"]
    code, out, err = run("evaluate", built, "--benchmark", test)
    assert "dp-mtv" in out


def test_evaluate_benchmark_marks_what_is_not_private(run):
    words = ["--tasks", "color-gem", "--draws", 2, "--n-test", 4, "--chunks", 6, "--shots", 2]
    words += ["--epsilons", "1,none", "--search-steps", 3, "--relations", "zero_out"]
    code, out, err = run("evaluate", "embedded", *words, "--geometries", "selected")
    assert code == 0, err
    table = {line.split("  ")[0].strip(): line for line in out.splitlines()}
    assert "not private" in table["in-context"]
    assert "not private" in table["task vector"]
    assert "ε = 1, zero_out (the paper)" in out
    assert out.count("not private") == 3, "the mean without noise is the third"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--epsilon", "0"], "epsilon"),
        (["--epsilon", "-2"], "epsilon"),
        (["--epsilon", "nan"], "epsilon"),
        (["--epsilon", "1", "--delta", "0.02"], "1/n"),
        (["--epsilon", "1", "--delta", "1"], "delta"),
        (["--epsilon", "1", "--chunks", "13"], "65 records"),
        (["--epsilon", "1", "--shots", "60"], "61 records"),
        (["--epsilon", "1", "--relation", "other"], "relation"),
        (["--epsilon", "1", "--selection", "best"], "--selection must be one of"),
        (["--epsilon", "1", "--patch", "never"], "--patch must be one of"),
        (["--epsilon", "1", "--clip", "-1"], "clip"),
    ],
)
def test_bad_parameters_exit_2_with_one_line_and_nothing_written(
    run, private, public, tmp_path, words, message
):
    before = sorted(tmp_path.iterdir())
    out = tmp_path / "v"
    code, _, err = run("build", "embedded", private, "-o", out, "--public", public, *words)
    assert code == 2
    assert message in err
    assert err.count("error:") == 1
    assert "Traceback" not in err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        ("", "is empty"),
        ("\n\n", "is empty"),
    ],
)
def test_unusable_private_files(run, tmp_path, public, content, message):
    path = tmp_path / "p.jsonl"
    if content is not None:
        path.write_text(content)
    code, _, err = run(
        "build", "embedded", path, "-o", tmp_path / "v", "--epsilon", 1, "--public", public
    )
    assert code == 2
    assert message in err
    assert not (tmp_path / "v").exists()


BAD_ROWS = {
    4: "{broken c4n4ry",
    9: "",
    14: '{"image": "c4n4ry.png", "question": "c4n4ry?", "answer": "x"}',
    19: '{"question": "c4n4ry?", "answer": "x"}',
}


def test_bad_private_rows_build_in_silence_and_strict_names_their_numbers(run, tmp_path, public):
    path = tmp_path / "p.jsonl"
    path.write_text(lines(60, BAD_ROWS))
    words = ["build", "embedded", path, "--epsilon", 1, "--public", public]
    code, out, err = run(*words, "-o", tmp_path / "v")
    assert code == 0, err
    clean = tmp_path / "clean.jsonl"
    clean.write_text(lines(60))
    words[2] = clean
    same = run(*words, "-o", tmp_path / "c")
    assert (out, err) == (same[1].replace("/c\n", "/v\n"), same[2]), "nothing tells the two apart"
    words[2] = path
    code, out, err = run(*words, "-o", tmp_path / "w", "--strict")
    assert code == 2
    for row in (5, 10, 15, 20):
        assert f"row {row} " in err
    assert "c4n4ry" not in out + err
    assert not (tmp_path / "w").exists()


def test_bad_public_rows_and_images_are_named(run, tmp_path, private, public):
    text = public.read_text().splitlines()
    public.write_text("\n".join([*text[:5], "[]", *text[6:]]) + "\n")
    words = ["build", "embedded", private, "-o", tmp_path / "v", "--epsilon", 1, "--public", public]
    code, _, err = run(*words)
    assert code == 2
    assert "row 6 (not an object)" in err
    broken = tmp_path / "x.png"
    broken.write_text("no picture")
    row = json.dumps({"image": str(broken), "question": "q", "answer": "a"})
    public.write_text("\n".join([*text[:5], row, *text[6:]]) + "\n")
    code, _, err = run(*words)
    assert code == 2
    assert "row 6 (image unreadable)" in err


def test_other_bad_input(run, tmp_path, built, private):
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "x").write_text("mine")
    cases = [
        (["build", "embedded", private, "-o", taken, "--epsilon", 1], "choose another name"),
        (["build", tmp_path / "nowhere", private, "-o", tmp_path / "v", "--epsilon", 1,
          "--selection", "all", "--clip", 3], "cannot load"),
        (["build", "embedded", private, "-o", tmp_path / "v", "--epsilon", 1], "public"),
        (["build", "embedded", private, "-o", tmp_path / "v", "--epsilon", 1,
          "--public", private], "as the public one"),
        (["show", taken], "not a readable certificate"),
        (["verify", taken], "not a task vector"),
        (["verify", tmp_path / "nowhere"], "not a task vector"),
        (["ask", built, "--image", tmp_path / "no.png", "q"], "image cannot be read"),
        (["evaluate", built], "name a test file"),
        (["evaluate", built, "--benchmark", tmp_path / "no.jsonl"], "does not exist"),
        (["evaluate", "embedded", "--tasks", "cooking"], "no task cooking"),
        (["evaluate", "embedded", "--methods", "magic"], "--methods must be one of"),
        (["evaluate", "embedded", "--epsilons", "one"], "--epsilons takes numbers"),
        (["evaluate", "embedded", "--n-test", 5000], "test records"),
        (["demo", "-o", taken], "choose another name"),
    ]  # fmt: skip
    for words, message in cases:
        code, _, err = run(*words)
        assert code == 2, (words, err)
        assert message in err, words
        assert "Traceback" not in err
    assert (taken / "x").read_text() == "mine"


def test_a_wrong_artifact_is_refused(run, built):
    path = built / "certificate.json"
    honest = certificate.read(path)
    for change, reason in (
        ({"epsilon": 0.5}, "too small"),
        ({"chunks": 120}, "privacy"),
        ({"clip_norms": tuple(c / 2 for c in honest.privacy.clip_norms)}, "privacy"),
    ):
        forged = replace(honest, privacy=replace(honest.privacy, **change))
        path.unlink()
        certificate.write(forged, path)  # with a hash that fits
        code, _, err = run("verify", built)
        assert code == 2
        assert reason in err
        picture = EMBEDDED_DATA / "images" / "shapes"
        code, _, err = run("ask", built, "--image", next(picture.iterdir()), "q")
        assert code == 2


def test_our_own_faults_exit_1_and_quote_nothing(run, built, monkeypatch):
    def broken(_path):
        raise RuntimeError("a record said c4n4ry")

    monkeypatch.setattr("dpmtv.privacy.certificate.read", broken)
    code, out, err = run("show", built)
    assert code == 1
    assert "RuntimeError" in err
    assert "c4n4ry" not in out + err


def test_starts_fast_and_without_torch(built):
    """Half a second for help and show, three for verify; best of three on a noisy machine."""
    for words, limit in (
        (["--help"], 0.5),
        (["show", str(built)], 0.5),
        (["verify", str(built)], 3),
    ):
        spent = []
        for _ in range(3):
            started = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "dpmtv.cli", *words], check=True, capture_output=True
            )
            spent.append(time.perf_counter() - started)
        assert min(spent) < limit, (words, spent)
