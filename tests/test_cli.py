"""The commands as a user types them, and what bad input gets."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpmtv import cli, pipeline
from dpmtv.artifact import TaskVector
from dpmtv.errors import UserError
from dpmtv.evaluation.benchmark import EMBEDDED_DATA
from dpmtv.privacy import certificate

TASK = EMBEDDED_DATA / "tasks" / "color-gem"


@pytest.fixture
def run(monkeypatch, model):
    monkeypatch.setattr(cli.common, "_debug", False)
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
        (["--epsilon", "1", "--chunks", "65"], "65 records"),
        (["--epsilon", "1", "--shots", "61"], "61 records"),
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
        ("\n\n", "there are 2"),
    ],
)
def test_unusable_private_files(run, tmp_path, public, content, message):
    path = tmp_path / "p.jsonl"
    if content is not None:
        path.write_text(content)
    words = ["build", "embedded", path, "-o", tmp_path / "v", "--epsilon", 1, "--shots", 3]
    code, _, err = run(*words, "--public", public)
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
    told = {}
    for name, bad in (("bad", BAD_ROWS), ("clean", {})):
        path = tmp_path / name / "p.jsonl"
        path.parent.mkdir()
        path.write_text(lines(60, bad))
        words = ["build", "embedded", path, "--epsilon", 1, "--public", public]
        code, out, err = run(*words, "-o", path.parent / "v")
        assert code == 0, err
        told[name] = (out + err).replace(f"/{name}/", "/")
        told[name] = re.sub(r"ledger [0-9a-f]{8}", "ledger", told[name])
    assert told["bad"] == told["clean"], "nothing tells the two apart"
    report = tmp_path / "bad" / "p.report.json"
    assert report.stat().st_mode & 0o777 == 0o600
    listed = {row["row"] for row in json.loads(report.read_text())["bad_rows"]}
    assert listed == {5, 10, 15, 20}
    words[2] = tmp_path / "bad" / "p.jsonl"
    code, out, err = run(*words, "-o", tmp_path / "w", "--strict")
    assert code == 2
    for row in (5, 10, 15, 20):
        assert f"row {row} " in err
    assert "c4n4ry" not in out + err
    assert not (tmp_path / "w").exists()


def with_units(text: str, rows_each: int = 3) -> str:
    rows = [json.loads(line) for line in text.splitlines()]
    for place, row in enumerate(rows):
        row["patient"] = f"c4n4ry-{place // rows_each}"
    return "\n".join(map(json.dumps, rows)) + "\n"


def test_persons_a_ledger_and_a_signed_statement(run, tmp_path, public):
    path, book = tmp_path / "p.jsonl", tmp_path / "book"
    path.write_text(with_units(lines(60)))
    terms = ("--epsilon", 2, "--unit", "patient")
    code, out, err = run("ledger", "init", book, *terms)
    assert code == 0, err
    words = ["build", "embedded", path, "--public", public, "--unit", "patient", "--shots", 2]
    words += ["--per-unit", 3, "--ledger", book]
    code, out, err = run(*words, "-o", tmp_path / "one", "--epsilon", 1.5)
    assert code == 0, err
    assert "which of two versions of the records of one patient was used" in out
    code, out, err = run(*words, "-o", tmp_path / "two", "--epsilon", 1.5)
    assert code == 2
    assert "allows epsilon 2 " in err
    assert not (tmp_path / "two").exists()
    code, out, err = run(*words[:6], "-o", tmp_path / "two", "--epsilon", 0.1, "--ledger", book)
    assert code == 2, "records are another unit"
    code, out, err = run("ledger", "show", book)
    assert code == 0, err
    assert "released" in out
    assert "spent ε = 1.5" in out
    code, out, _ = run("ledger", "show", book, "--json")
    assert [e["state"] for e in json.loads(out)["entries"]] == ["released"]
    certified = json.loads((tmp_path / "one" / "certificate.json").read_text())["privacy"]
    assert (certified["unit"], certified["per_unit"], certified["chunks"]) == ("patient", 3, 20)
    page = tmp_path / "statement.html"
    code, out, err = run("show", tmp_path / "one", "--html", page)
    assert code == 0, err
    assert "Statement of privacy" in page.read_text("utf-8")
    everything = [p for p in tmp_path.rglob("*") if p.is_file() and p != path]
    for file in everything:
        assert b"c4n4ry" not in file.read_bytes(), file


def test_canaries_show_nowhere(run, tmp_path, public, caplog):
    """Strings planted in questions, answers, unit ids and file names of private and test rows."""
    rows = [json.loads(line) for line in lines(60).splitlines()]
    for place, row in enumerate(rows):
        picture = tmp_path / f"c4n4ry-{place}.png"
        picture.write_bytes(Path(row["image"]).read_bytes() if place % 7 else b"c4n4ry")
        row |= {"image": picture.name, "question": f"c4n4ry {place}?", "answer": f"c4n4ry{place}"}
        row |= {"patient": f"c4n4ry {place // 3}"}
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    test = tmp_path / "t.jsonl"
    test.write_text("\n".join(json.dumps(r) for r in rows[1:6]) + "\n")
    vector, work = tmp_path / "v", tmp_path / "w"
    common = ["--epsilon", 1, "--public", public, "--unit", "patient", "--shots", 2]
    told = []
    for words in (
        ["build", "embedded", path, "-o", vector, "--work", work, *common],
        ["build", "embedded", path, "-o", tmp_path / "v2", *common],  # nothing is left
        ["build", "embedded", path, "-o", tmp_path / "v3", "--strict", *common],
        ["build", "embedded", path, "-o", tmp_path / "v4", "--chunks", 999, *common],
        ["show", vector],
        ["show", vector, "--html", tmp_path / "page.html"],
        ["verify", vector],
        ["ledger", "show", tmp_path / "p.ledger"],
        ["evaluate", vector, "--benchmark", test],
        ["evaluate", vector, "--benchmark", path],  # has pictures that cannot be read
        ["--debug", "verify", path],
    ):
        code, out, err = run(*words)
        told.append(code)
        assert "c4n4ry" not in out + err, words
    assert told == [0, 2, 2, 2, 0, 0, 0, 0, 0, 2, 2]
    assert "c4n4ry" not in caplog.text
    assert not work.exists()
    for file in tmp_path.rglob("*"):
        ours = file.name.startswith("c4n4ry-") or file in (path, test)
        if file.is_file() and not ours:
            assert b"c4n4ry" not in file.read_bytes(), file


def test_added_or_removed_persons_need_ids_and_a_population(run, tmp_path, public):
    path = tmp_path / "p.jsonl"
    path.write_text(with_units(lines(60)))
    words = ["build", "embedded", path, "-o", tmp_path / "v", "--epsilon", 4, "--public", public]
    words += ["--relation", "add_remove", "--shots", 2, "--per-unit", 3, "--no-ledger"]
    large = ["--delta", 0.05, "--allow-large-delta"]
    for more, message in (
        ([], "name the field"),
        (["--unit", "patient"], "declare a public population"),
        (["--unit", "doctor", "--population", 20], "60 rows without a unit"),
        (["--unit", "patient", "--population", 20, *large], "where n is counted"),
    ):
        code, _, err = run(*words, *more)
        assert code == 2
        assert message in err
    code, out, err = run(*words, "--unit", "patient", "--population", 24)
    assert code == 0, err
    assert "whether the records of a given patient were used at all" in out
    assert "No budget ledger was kept" in out
    said = re.sub(r"\S*/\S*", "", out + err)
    assert not re.search(r"\b20\b", said), "the number of patients is private"


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
          "--selection", "all", "--clip", 3], "there is no folder"),
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


def test_what_cannot_be_written_is_told_before_the_model_is_loaded(run, tmp_path, private):
    none = tmp_path / "none" / "r.json"
    for words in (["-o", private / "v"], ["-o", tmp_path / "v", "--report", none]):
        code, _, err = run("build", tmp_path, private, "--epsilon", 1, *words)  # no model
        assert code == 2, err
        assert f"{words[-1]} cannot be written" in err
    code, _, err = run("demo", "-o", private / "demo")
    assert code == 2, err
    assert [p.name for p in tmp_path.iterdir()] == [private.name]


@pytest.mark.parametrize("writable", ["ledger", "current", "temporary", "nothing"])
def test_a_vector_that_is_paid_for_is_saved_elsewhere(
    run, tmp_path, private, monkeypatch, writable
):
    """The folder's disk fills while the vector is made, and so may the others'."""
    places = {"ledger": private.parent}
    for name in ("current", "temporary"):
        places[name] = tmp_path / name
        places[name].mkdir()
    monkeypatch.chdir(places["current"])
    monkeypatch.setattr("tempfile.tempdir", str(places["temporary"]))
    save, output = TaskVector.save_pretrained, tmp_path / "share" / "v"

    def full(self, folder):
        if writable == "nothing" or Path(folder).parent != places[writable]:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(self, folder)

    monkeypatch.setattr(TaskVector, "save_pretrained", full)
    words = ["--selection", "all", "--clip", 3, "--query", "private", "--shots", 4, "--work"]
    code, out, err = run(
        "build", "embedded", private, "-o", output, "--epsilon", 1, *words, tmp_path / "work"
    )
    assert code == 2, err
    assert "internal" not in err
    assert f"{output}" in err
    assert "Saved" not in out
    found = list(tmp_path.rglob("task-vector-*"))
    if writable == "nothing":
        assert "lost" in err
        assert found == []
        return
    (folder,) = found
    assert folder.parent == places[writable]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert f"the vector is saved in {folder} instead, because {output}" in err
    assert run("verify", folder)[0] == 0


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
    """Half a second of a core for help and show, three for verify; the best of three runs."""
    for words, limit in (
        (["--help"], 0.5),
        (["show", str(built)], 0.5),
        (["verify", str(built)], 3),
    ):
        spent = []
        for _ in range(3):
            before = os.times()
            subprocess.run(
                [sys.executable, "-m", "dpmtv.cli", *words], check=True, capture_output=True
            )
            after = os.times()  # of the core, since others may be at work on the machine
            spent.append(sum(after[2:4]) - sum(before[2:4]))
        assert min(spent) < limit, (words, spent)


def test_the_word_synthetic_stands_for_generated_public_records(
    run, private, public, tmp_path, monkeypatch
):
    def told(_model, _data, *, public, **_):
        raise UserError(f"public is {public if isinstance(public, str) else len(public)}")

    monkeypatch.setattr(pipeline, "build_task_vector", told)
    monkeypatch.chdir(tmp_path)
    words = ["build", "embedded", private, "-o", tmp_path / "v", "--epsilon", 1, "--no-ledger"]
    code, _, err = run(*words, "--public", "synthetic")
    assert (code, "public is synthetic" in err) == (2, True)
    public.rename(tmp_path / "synthetic")
    how = ["--public-option", "format=jsonl"]
    code, _, err = run(*words, "--public", "./synthetic", *how)
    assert re.search(r"public is [1-9]\d*$", err.strip())
    code, _, err = run(*words, "--public", "synthetic", "--public", "./synthetic", *how)
    assert (code, "one of that name is ./synthetic" in err) == (2, True)
    code, _, err = run("evaluate", "embedded", "--public", "./synthetic")
    assert (code, "no task ./synthetic" in err) == (2, True)
