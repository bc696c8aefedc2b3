from __future__ import annotations

import codecs
import json
import os
import traceback
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from PIL import Image

from dpmtv.data import demonstrations
from dpmtv.data.demonstrations import BadRow, check_images, read_demonstrations, require_good
from dpmtv.errors import DataError
from dpmtv.types import Demonstration, Query

CANARY = "canary-9c1e"
GOOD = {"image": "x.png", "question": "What?", "answer": "This."}


@pytest.fixture
def folder(tmp_path) -> Path:
    Image.new("RGB", (2, 2), "red").save(tmp_path / "x.png")
    return tmp_path


def line(**changes) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


def without(name: str) -> bytes:
    return json.dumps({key: value for key, value in GOOD.items() if key != name}).encode()


def read(folder: Path, *lines: bytes):
    (folder / "data.jsonl").write_bytes(b"\n".join(lines))
    return read_demonstrations(folder / "data.jsonl")


def good(folder: Path) -> Demonstration:
    return Demonstration(folder / "x.png", "What?", "This.")


def test_a_good_row(folder):
    (row,) = read(folder, line())
    assert row == good(folder)
    assert row.query == Query(folder / "x.png", "What?")


def test_a_string_path_does_as_well(folder):
    read(folder, line())
    assert read_demonstrations(str(folder / "data.jsonl")) == [good(folder)]


def test_an_image_path_is_relative_to_the_file_or_absolute(folder, monkeypatch):
    monkeypatch.chdir("/")
    (folder / "deep").mkdir()
    Image.new("RGB", (1, 1)).save(folder / "deep" / "y.png")
    rows = read(folder, line(image="deep/y.png"), line(image=str(folder / "x.png")))
    assert [row.image for row in rows] == [folder / "deep" / "y.png", folder / "x.png"]


def test_task_is_read_and_other_keys_are_not(folder):
    rows = read(
        folder, line(task="colour", unit=7, id=None, extra=[CANARY]), line(task=None), line(task=3)
    )
    assert [row.task for row in rows] == ["colour", None, "3"]


def test_text_is_kept_as_it_is(folder):
    text = " Größe\u2028 naïve 図 \U0001f600\x85 two\nlines "
    rows = read(folder, line(question=text), json.dumps({**GOOD, "answer": text}).encode())
    raw = json.dumps({**GOOD, "answer": text}, ensure_ascii=False).encode()
    assert rows[0].question == rows[1].answer == read(folder, raw)[0].answer == text


BAD = {
    "empty line": [b"", b"   ", b"\t", b"\r"],
    "not UTF-8": [b"\xff\xfe{}", line(answer="x").replace(b"x", b"\xe9"), b"\x80" + line()],
    "not JSON": [
        b"{",
        b"What?,This.",
        line() + line(),
        line()[:-1],
        b"'a'",
        b"[" * 100_000,
        b'{"a": ' * 100_000,
        b"1" * 5000,
        codecs.BOM_UTF8 + line(),
    ],
    "not an object": [b"1", b"null", b"[]", b'"text"', b"true", b"NaN"],
    "no image": [without("image"), line(image=None), line(image=""), line(image=" "), b"{}"],
    "no question": [without("question"), line(question=""), line(question=" \n\u2003")],
    "no answer": [without("answer"), line(answer=None), line(answer="\t")],
    "image is not text": [line(image=3), line(image=["x.png", 3]), line(image="\ud800.png")],
    "question is not text": [line(question=0), line(question={}), line(question="a \udfff")],
    "answer is not text": [line(answer=["x"]), line(answer={}), line(answer="\ud83d x")],
    "task is not text": [line(task={}), line(task=[]), line(task="\ud800")],
    "image file missing": [
        line(image="nothing.png"),
        line(image="."),
        line(image="a\0b"),
        line(image="n" * 5000),
    ],
    "image is a web address": [line(image="http://example.org/x.png")],
}
CASES = [(reason, raw) for reason, lines in BAD.items() for raw in lines]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_a_bad_row_keeps_its_place_and_leaves_the_others(case, folder):
    reason, raw = CASES[case]
    expected = [good(folder), BadRow(2, reason), good(folder)]
    assert read(folder, line(), raw, line()) == expected


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=40).map(lambda raw: raw.replace(b"\n", b"")), place=st.integers(0, 4))
def test_no_content_of_a_row_moves_another(folder, raw, place):
    # At the very start a byte order mark belongs to the file, and is no record's.
    marks = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)
    assume(place or not raw.startswith(marks))
    rows = read(folder, *[line()] * place, raw, *[line()] * (5 - place))
    assert len(rows) == 6
    del rows[place]
    assert rows == [good(folder)] * 5


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("between", [b"\n", b"\r\n"])
@pytest.mark.parametrize("start", [b"", codecs.BOM_UTF8])
def test_line_ends_and_byte_order_mark(start, between, end, folder):
    path = folder / "data.jsonl"
    path.write_bytes(start + line() + between + between + line() + end)
    assert read_demonstrations(path) == [good(folder), BadRow(2, "empty line"), good(folder)]


def test_blank_lines_at_the_end_keep_their_slots(folder):
    """Or the number of slots, which is public, would depend on what the last record is."""
    path = folder / "data.jsonl"
    path.write_bytes(line() + b"\n\n \n")
    assert read_demonstrations(path) == [
        good(folder),
        BadRow(2, "empty line"),
        BadRow(3, "empty line"),
    ]


def test_leading_blank_lines_are_rows(folder):
    assert read(folder, b"", line()) == [BadRow(1, "empty line"), good(folder)]


@pytest.mark.parametrize(
    "content", [b"", codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE]
)
def test_an_empty_file_is_refused(content, folder):
    (folder / "data.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=r"data\.jsonl is empty\. Write records"):
        read_demonstrations(folder / "data.jsonl")


@pytest.mark.parametrize("content", [b"\n", b" \n", b"\r\n", codecs.BOM_UTF8 + b"\n", b"\0"])
def test_a_file_of_blank_lines_has_rows(content, folder):
    """Or one record, in a file of blank ones, would decide whether there is a file."""
    (folder / "data.jsonl").write_bytes(content)
    reason = "not JSON" if content == b"\0" else "empty line"
    assert read_demonstrations(folder / "data.jsonl") == [BadRow(1, reason)]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing.jsonl", "nothing.jsonl does not exist. Check the path"),
        ("x.png/data.jsonl", "does not exist"),
        ("", "is a folder, and none that holds records"),
        ("a\0b", "cannot be read"),
        ("n" * 5000, "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(name, message, folder):
    with pytest.raises(DataError) as caught:
        read_demonstrations(folder / name)
    assert message in str(caught.value)
    assert caught.value.__context__ is None


def test_a_file_without_permission_is_refused(folder, monkeypatch):
    def refuse(self, mode):
        raise PermissionError(13, "Permission denied")  # root may read everything

    read(folder, line())
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match="cannot be read"):
        read_demonstrations(folder / "data.jsonl")


def test_images_are_not_opened_by_the_reader(folder, monkeypatch):
    monkeypatch.setattr(demonstrations, "load_image", None)
    assert read(folder, line()) == [good(folder)]


def test_require_good_returns_the_rows(folder):
    rows = read(folder, line(), line(task="t"))
    assert require_good(rows, "the public file") == rows


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (1, "the test file has 1 bad row: row 2 (no answer). Correct or remove them."),
        (2, "the test file has 2 bad rows: row 2 (no answer), row 3 (no answer). Correct"),
        (10, "row 11 (no answer). Correct"),
        (13, "row 11 (no answer) and 3 more. Correct"),
    ],
)
def test_require_good_names_ten_bad_rows_and_the_total(count, message, folder):
    rows = read(folder, line(), *[without("answer")] * count)
    with pytest.raises(DataError) as caught:
        require_good(rows, "the test file")
    assert message in str(caught.value)
    assert str(caught.value).count("(no answer)") == min(count, 10)
    assert f"{count} bad row" in str(caught.value)


def test_check_images_finds_what_does_not_decode(folder):
    (folder / "broken.png").write_bytes((folder / "x.png").read_bytes()[:40])
    (folder / "text.png").write_text("no image")
    names = ["x.png", "broken.png", "x.png", "text.png", "broken.png"]
    rows = read(folder, *[line(image=name) for name in names], b"{")
    rows.append(Demonstration(Image.new("RGB", (1, 1)), "q", "a"))
    rows.append(Demonstration(Image.new("F", (1, 1), float("nan")), "q", "a"))
    bad = check_images(rows)
    unreadable = [BadRow(row, "image unreadable") for row in (2, 4, 5)]
    assert bad == [*unreadable, BadRow(6, "not JSON"), BadRow(8, "image unreadable")]
    with pytest.raises(DataError, match=r"5 bad rows: row 2 \(image unreadable\), row 4"):
        require_good(bad, "the public file")


def test_check_images_decodes_each_file_once(folder, monkeypatch):
    decoded = []
    monkeypatch.setattr(demonstrations, "load_image", decoded.append)
    Image.new("RGB", (2, 2)).save(folder / "y.png")
    assert check_images(read(folder, line(), line(), line(image="y.png"), line())) == []
    assert decoded == [folder / "x.png", folder / "y.png"]


def test_nothing_shown_holds_content(folder, capfd):
    (folder / f"{CANARY}.png").write_text(CANARY)
    planted = dict.fromkeys(GOOD, CANARY)
    rows = read(
        folder,
        line(image=f"{CANARY}.png", question=CANARY, answer=CANARY, task=CANARY),
        json.dumps(planted).encode(),
        json.dumps(planted).encode()[:-1],
        CANARY.encode() + b"\xff",
        line(question=[CANARY]),
        json.dumps({CANARY: CANARY}).encode(),
    )
    assert [type(row) for row in rows] == [Demonstration] + [BadRow] * 5
    shown = repr(rows) + str(rows) + repr(rows[0].query)
    for everything in (rows, check_images(rows)):
        with pytest.raises(DataError) as caught:
            require_good(everything, "the file")
        shown += str(caught.value) + repr(caught.value)
        shown += "".join(traceback.format_exception(caught.value))
        assert caught.value.__context__ is None
    assert CANARY not in shown
    assert capfd.readouterr() == ("", "")


def test_reasons_come_from_the_documented_words():
    for reason in [*BAD, "image unreadable"]:
        if reason.endswith(" is not text"):
            assert reason.split()[0] in ("image", "question", "answer", "task")
        elif reason not in ("no image", "no question", "no answer"):
            assert f'"{reason}"' in BadRow.__doc__.replace("\n", " ")


def test_an_image_behind_a_link_is_found(folder):
    os.symlink(folder / "x.png", folder / "link.png")
    assert read(folder, line(image="link.png"))[0].image == folder / "link.png"
