"""A user's own files, in every format, from `data check` to `evaluate` by the command line."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path

import pytest
from PIL import Image
from tests.data.test_formats import ONLY_PLAIN, PLAIN, WRITERS
from typer.testing import CliRunner

from dpmtv import cli
from dpmtv.console import progress_bars
from dpmtv.data.check import check_data
from dpmtv.data.formats import ReadOptions, iter_entries

QUICK = ["--selection", "all", "--clip", 5, "--shots", 1, "--epsilon", 8, "--delta", 0.001]
CANARY = "canary-9d1c"


@pytest.fixture
def run(monkeypatch, model):
    monkeypatch.setattr(cli.common, "_debug", False)

    def invoke(*words: object) -> tuple[int, str, str]:
        result = CliRunner().invoke(cli.app, [str(w) for w in words])
        return result.exit_code, result.stdout, result.stderr

    return invoke


def pictures(folder: Path) -> None:
    for n in range(12):
        Image.new("RGB", (64, 64), (20 * n, 255 - 20 * n, 7)).save(folder / f"{n}.png")


def class_folders(folder: Path, records: list[dict]) -> Path:
    for record in records:
        to = folder / "shapes" / record["answer"] / record["image"]
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes((folder / record["image"]).read_bytes())
    return folder / "shapes"


@pytest.mark.parametrize("name", [*WRITERS, *ONLY_PLAIN, "class folders"])
def test_check_build_ask_evaluate_from_every_format(name, run, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    pictures(data)
    make = {**WRITERS, **ONLY_PLAIN, "class folders": (class_folders, "classes")}[name][0]
    written = make(data, PLAIN)
    files = written if isinstance(written, list) else [written]
    code, out, err = run("data", "check", *files, "--json")
    assert code == 0, err
    report = json.loads(out)
    assert (report["private"], report["records"], report["good"]) == (False, 12, 12)
    assert report["distinct_answers"] == 3

    vector = tmp_path / "vector"
    words = ["--ledger", tmp_path / "book.ledger", "--report", tmp_path / "report.json"]
    code, _, err = run("build", "embedded", *files, "-o", vector, *QUICK, *words)
    assert code == 0, err
    shown = ["--image", data / "0.png", "--image", data / "1.png"][: 2 + 2 * (name == "jsonl")]
    code, out, err = run("ask", vector, *shown, "What is shown?", "--json")
    assert code == 0, err
    asked = [part for file in files for part in ("--benchmark", file)]
    code, out, err = run("evaluate", vector, *asked, "--json")
    assert code == 0, err
    assert [(r["method"], r["n_test"]) for r in json.loads(out)] == [
        ("zero-shot", 12),
        ("dp-mtv", 12),
    ]


def rows(folder: Path, count: int) -> list[dict]:
    return [
        {"image": f"{n % 12}.png", "question": f"Which {n}?", "answer": str(n % 7), "who": n // 3}
        for n in range(count)
    ]


def write(path: Path, records: list) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in records), "utf-8")
    return path


def test_data_check_tells_the_operator_what_is_there(run, tmp_path):
    pictures(tmp_path)
    records = rows(tmp_path, 30)
    records[3] = {"image": f"{CANARY}.png", "question": CANARY, "answer": CANARY, "who": CANARY}
    records[4] = {"image": "4.png", "question": CANARY}
    records[17] = dict(records[5])
    (tmp_path / "11.png").write_bytes(b"no picture " + CANARY.encode())
    file = write(tmp_path / "a.jsonl", records)
    code, out, err = run("data", "check", file)
    assert code == 2
    assert "not private" in out
    assert CANARY not in out + err
    for line in (
        "30, of which 26 can be used",
        "image file missing *1: row 4",
        "no answer *1: row 5",
        "image unreadable *2: rows 12, 24",
        "the same record again *1: row 18",
        "who .*values, at most",
        "--unit",
    ):
        assert re.search(line, out), line
    assert run("build", "embedded", file, "-o", tmp_path / "v", *QUICK, "--strict")[0] == 2

    good = write(tmp_path / "b.jsonl", [{**r, "image": "1.png"} for r in rows(tmp_path, 30)])
    code, out, _ = run("data", "check", good, "--unit", "who", "--json")
    assert code == 0
    report = json.loads(out)
    assert (report["units"], report["per_unit"]) == (10, [3, 3, 3])
    assert report["suggestions"][0].startswith("With these 10 units: --shots 3 --per-unit 3")
    code, out, _ = run("data", "check", file, good, "--no-pictures")
    assert code == 2
    assert "file 1 row 5" in out


def test_data_check_shows_units_that_are_nearly_equal(run, tmp_path):
    pictures(tmp_path)
    names = ["P1", "P1 ", "p1", CANARY, CANARY.upper(), "P2"]
    file = write(tmp_path / "a.jsonl", [{**rows(tmp_path, 1)[0], "who": name} for name in names])
    code, out, _ = run("data", "check", file, "--unit", "who")
    assert code == 0
    assert re.search("units +5, 1 to 2", out)
    assert re.search("units nearly equal +4, first seen in rows 1, 3; rows 4, 5", out)
    assert "4 values of who are nearly those of others" in out
    assert CANARY not in out
    found = json.loads(run("data", "check", file, "--unit", "who", "--json")[1])
    assert found["nearly_equal"] == [[[1, 1], [1, 3]], [[1, 4], [1, 5]]]


def test_reading_options_are_told_apart(run, tmp_path):
    pictures(tmp_path)
    table = tmp_path / "t.csv"
    table.write_bytes("Bild;Frage;answer\n1.png;Größe?;groß\n".encode("cp1252"))
    named = ["--column", "image=Bild", "--column", "question=Frage"]
    assert run("data", "check", table, *named)[0] == 2
    assert "cp1252" in run("data", "check", table, *named)[1]
    assert run("data", "check", table, *named, "--encoding", "cp1252")[0] == 0
    code, _, err = run("data", "check", table, "--column", "image")
    assert code == 2
    assert "question=Frage" in err
    code, _, err = run("data", "check", table, "--ways", 2)
    assert code == 2
    assert "ways" in err


def test_several_files_need_a_ledger_of_their_own(run, tmp_path):
    pictures(tmp_path)
    files = [write(tmp_path / f"{n}.jsonl", rows(tmp_path, 6)) for n in "ab"]
    code, _, err = run("build", "embedded", *files, "-o", tmp_path / "v", *QUICK)
    assert code == 2
    assert "--ledger" in err
    code, _, err = run(
        "build", "embedded", *files, "-o", tmp_path / "v", *QUICK, "--ledger", tmp_path / "l"
    )
    assert code == 0, err
    public = ["--public", files[0]]
    code, _, err = run("build", "embedded", *files, "-o", tmp_path / "w", *QUICK, *public)
    assert code == 2
    assert "public one too" in err


def test_public_files_have_reading_options_of_their_own(run, tmp_path):
    pictures(tmp_path)
    private = write(tmp_path / "private.jsonl", rows(tmp_path, 12))
    public = tmp_path / "public.txt"
    lines = [f"{n}.png;Größe {n}?;groß" for n in range(12)]
    public.write_bytes(("image;Frage;answer\n" + "\n".join(lines)).encode("cp1252"))
    words = ["build", "embedded", private, "-o", tmp_path / "v", "--shots", 1, "--epsilon", 8]
    words += [
        "--delta",
        0.001,
        "--public",
        public,
        "--query",
        "private",
        "--selection",
        "all",
        "--clip",
    ]
    options = ["format=csv", "encoding=cp1252", "column.question=Frage"]
    told = [part for option in options for part in ("--public-option", option)]
    code, _, err = run(*words, 5, *told)
    assert code == 0, err
    words[4] = tmp_path / "w"
    code, _, err = run(*words, 5, "--public-option", "unit=who")
    assert code == 2
    assert "--public-option takes" in err


def test_one_data_set_has_one_ledger(run, tmp_path):
    folder = tmp_path / "study.v1"
    folder.mkdir()
    pictures(folder)
    write(folder / "metadata.jsonl", rows(folder, 12))
    assert run("build", "embedded", folder, "-o", tmp_path / "a", *QUICK)[0] == 0
    code, _, err = run("build", "embedded", folder / "metadata.jsonl", "-o", tmp_path / "b", *QUICK)
    assert code == 2
    assert "spent or reserved" in err
    public = ["--public", folder / "metadata.jsonl"]
    code, _, err = run("build", "embedded", folder, "-o", tmp_path / "b", *QUICK, *public)
    assert code == 2
    assert "public one too" in err
    classes = class_folders(folder, PLAIN)
    assert run("build", "embedded", classes, "-o", tmp_path / "c", *QUICK)[0] == 0
    assert (folder / "shapes.ledger").is_file()


def test_no_second_budget_is_begun_in_silence(run, tmp_path):
    """Another name, another ledger, none, a part of several files, a copy: each is refused."""
    pictures(tmp_path)
    one, two = (write(tmp_path / name, rows(tmp_path, 12)) for name in ("a.jsonl", "b.jsonl"))
    write(two, [{**row, "question": f"And {row['question']}"} for row in rows(tmp_path, 12)])
    book, far = tmp_path / "a.ledger", tmp_path / "far" / "book"
    far.parent.mkdir()

    def build(*words: object) -> tuple[int, str, str]:
        free = next(v for n in range(9) if not (v := tmp_path / f"v{n}").exists())
        return run("build", "embedded", *words, "-o", free, *QUICK)

    code, out, err = build(one)
    assert code == 0, err
    assert "found no other ledger that is known to have paid" in out
    (tmp_path / "c.jsonl").hardlink_to(one)
    csv = tmp_path / "d.csv"
    csv.write_text("image,question,answer\n7.png,WHICH 7?,0\n1.png,new,new\n2.png,new,2\n")
    for words in (
        ["c.jsonl"],
        ["a.jsonl", "--ledger", far],
        ["a.jsonl", "--no-ledger"],
        ["a.jsonl", "b.jsonl", "--ledger", far],
        ["d.csv", "--no-ledger"],  # one record of a.jsonl, in another format
    ):
        named = [tmp_path / word if "." in str(word) else word for word in words]
        code, _, err = build(*named)
        assert code == 2, words
        assert f"build with --ledger {book}" in err
        assert "--ignore-ledgers" in err
    assert not far.exists()
    code, out, err = build(two, "--ledger", far)
    assert code == 0, err
    code, _, err = build(two)
    assert code == 2, "the ledger lies elsewhere"
    assert f"build with --ledger {far}" in err
    code, out, err = build(one, "--no-ledger", "--ignore-ledgers")
    assert code == 0, err
    assert "told dpmtv to ignore other ledgers" in out
    assert "No budget ledger was kept" in out
    certified = json.loads((tmp_path / "v2" / "certificate.json").read_text())["privacy"]
    assert (certified["ledger"], certified["other_ledgers"]) == (None, "ignored")


def test_data_check_tells_no_field_that_few_records_have(run, tmp_path):
    pictures(tmp_path)
    records = rows(tmp_path, 20)
    for record in records[:3]:
        record[CANARY] = "x"
    for record in records:
        record["\x1b[2J"] = record["\ud800"] = record["y" * 41] = "x"
    file = write(tmp_path / "a.jsonl", records)
    code, out, err = run("data", "check", file)
    assert code == 0, err
    assert "who (" in out
    assert CANARY not in out
    assert "\x1b[2J" not in out
    assert "yyy" not in out


def test_a_long_file_is_checked_in_bounded_memory(tmp_path):
    pictures(tmp_path)

    def peak(count: int) -> int:
        file = tmp_path / f"{count}.jsonl"
        with file.open("w") as out:
            for n in range(count):
                row = {"image": f"{n % 12}.png", "question": f"Q {n}? " * 20, "answer": f"a{n}"}
                out.write(json.dumps(row) + "\n")
        tracemalloc.start()
        report = check_data(iter_entries(file, ReadOptions()))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert report.records == report.good == count
        return most

    assert (peak(4000) - peak(1000)) / 3000 < 700, "bytes a record"


def test_a_build_opens_only_the_images_it_needs(run, tmp_path, monkeypatch):
    from dpmtv.data import images
    from dpmtv.models import adapters

    pictures(tmp_path)
    for n in range(40):
        Image.new("RGB", (64, 64), (n, n, n)).save(tmp_path / f"x{n}.png")
    records = [{"image": f"x{n}.png", "question": "Q?", "answer": "a"} for n in range(40)]
    file, opened = write(tmp_path / "many.jsonl", records), []

    def counted(source):
        opened.append(Path(str(source)).name)
        return images.load_image(source)

    monkeypatch.setattr(adapters, "load_image", counted)
    monkeypatch.setattr("dpmtv.data.demonstrations.load_image", counted)
    words = ["-o", tmp_path / "v", *QUICK, "--chunks", 5]
    assert run("build", "embedded", file, *words)[0] == 0
    assert len({name for name in opened if name.startswith("x")}) == 10, "5 chunks of 2 records"


def test_a_log_file_has_a_line_for_each_part_of_the_work(capsys):
    with progress_bars() as progress:
        for done in (1, 2):
            progress("head search", done, 200)
        progress("private chunks", 1, 60)
    assert capsys.readouterr().err.split("\n")[:2] == ["head search: 200", "private chunks: 60"]
