"""What a value is as text, which texts are one, and which picture a number names: in every reader.

The table of kinds in docs/formats/README.md has a small input here for every line.
"""

from __future__ import annotations

import datetime
import decimal
import json
import uuid
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dpmtv.data.check import check_data
from dpmtv.data.demonstrations import group_by_unit, read_demonstrations
from dpmtv.data.fingerprints import record_digests
from dpmtv.data.formats import ReadOptions, iter_entries
from dpmtv.data.prompts import to_messages, to_text
from dpmtv.data.rows import BadRow
from dpmtv.data.values import MAX_TEXT, composed, is_blank, nearly, unit_name
from dpmtv.evaluation.metrics import exact_match
from dpmtv.evaluation.rivals import private_words
from dpmtv.types import Demonstration, Prompt, Query

NFC, NFD = "gr\u00fcn", "gru\u0308n"


@pytest.fixture
def folder(tmp_path) -> Path:
    Image.new("RGB", (3, 2)).save(tmp_path / "x.png")
    return tmp_path


def lines(folder: Path, *records: dict) -> Path:
    path = folder / "a.jsonl"
    good = {"image": "x.png", "question": "q", "answer": "a"}
    path.write_text("".join(json.dumps({**good, **record}) + "\n" for record in records))
    return path


def column(folder: Path, name: str, values: pa.Array) -> Path:
    known = {"image": ["x.png"], "question": ["q"], "answer": ["a"], name: values}
    if name == "answers":
        del known["answer"]
    table = pa.table({n: v if n == name else v * len(values) for n, v in known.items()})
    pq.write_table(table, folder / "a.parquet")
    return folder / "a.parquet"


AT = datetime.datetime(2024, 5, 6, 7, 8, 9)
ID = uuid.UUID(int=7)
PRINTED = [  # what a column holds, and the text of each value
    (pa.array([0.1, 3, 16777216, 1 / 3, 1e20], pa.float32()),
     ["0.1", "3", "16777216", "0.33333334", "1e+20"]),
    (pa.array([0.1, 2.5, 4], pa.float16()), ["0.1", "2.5", "4"]),
    (pa.array([0.1, 4, 1 / 3], pa.float64()), ["0.1", "4", "0.3333333333333333"]),
    (pa.array([0.1, 0.2], pa.float32()).dictionary_encode(), ["0.1", "0.2"]),
    (pa.array([255, 0], pa.uint8()), ["255", "0"]),
    (pa.array([-(2**63), 2**63 - 1]), ["-9223372036854775808", "9223372036854775807"]),
    (pa.array([True, False]), ["true", "false"]),
    (pa.array(map(decimal.Decimal, ("2.50", "3.00", "-0.10"))), ["2.50", "3", "-0.10"]),
    (pa.array([AT.date()]), ["2024-05-06"]),
    *((pa.array([AT], pa.timestamp(width)), ["2024-05-06 07:08:09"])
      for width in ("s", "ms", "us", "ns")),
    (pa.array([AT], pa.timestamp("us", "Europe/Berlin")), ["2024-05-06 09:08:09+02:00"]),
    (pa.array([AT.time()]), ["07:08:09"]),
    (pa.array([ID.bytes], pa.uuid()), ["00000000-0000-0000-0000-000000000007"]),
]  # fmt: skip


@pytest.mark.parametrize(("values", "texts"), PRINTED, ids=lambda v: str(getattr(v, "type", "")))
def test_values_of_tables_print_as_their_writer_would(values, texts, folder):
    path = column(folder, "answer", values)
    assert [row.answer for row in read_demonstrations(path)] == texts
    assert [row.unit for row in read_demonstrations(path, unit="answer")] == texts


def test_values_in_lists_of_tables_do_too(folder):
    kinds = pa.float32(), pa.struct({"answer": pa.float32(), "by": pa.string()})
    given = [0.1, 0.2, 0.2], [{"answer": 0.1}, {"answer": 0.2}, {"answer": 0.2}, None]
    for kind, values in zip(kinds, given, strict=True):
        path = column(folder, "answers", pa.array([values, None], pa.list_(kind)))
        first, none = read_demonstrations(path, answers="all")
        assert (first.answer, first.accepted) == ("0.2", ("0.1", "0.2"))
        assert none.reason == "no answer"


def test_a_row_that_cannot_be_read_leaves_narrow_numbers_right(folder):
    far = pa.array([0, 2**40]).cast(pa.timestamp("s"))
    table = {"image": ["x.png"] * 2, "question": ["q"] * 2, "task": far}
    table["answer"] = pa.array([0.1, 0.1], pa.float32())
    pq.write_table(pa.table(table), folder / "a.parquet")
    first, second = read_demonstrations(folder / "a.parquet")
    assert (first.answer, first.task) == ("0.1", "1970-01-01 00:00:00")
    assert second.reason == "cannot be read"


def test_hugging_face_datasets_print_alike(folder):
    features = datasets.Features(
        {name: datasets.Value("string") for name in ("image", "question")}
        | {"answer": datasets.Value("float32"), "day": datasets.Value("date32")}
    )
    values = {"image": ["x.png"], "question": ["q"], "answer": [0.1], "day": [AT.date()]}
    datasets.Dataset.from_dict(values, features).save_to_disk(folder / "saved")
    (row,) = read_demonstrations(folder / "saved", images=folder, unit="day")
    assert (row.answer, row.unit) == ("0.1", "2024-05-06")


# --- units --------------------------------------------------------------------------------------

SAME = ["3", "3.0", "3.00", " 3", "3\u00a0", "3.0\u200b", "\ufeff3"]


def test_one_person_is_one_unit_in_every_reader(folder):
    found = {row.unit for row in read_demonstrations(
        lines(folder, *({"who": who} for who in [3, 3.0, *SAME])), unit="who")}  # fmt: skip
    table = "".join(f"x.png,q,a,{who}\n" for who in SAME)
    (folder / "a.csv").write_text("image,question,answer,who\n" + table)
    found |= {row.unit for row in read_demonstrations(folder / "a.csv", unit="who")}
    for kind in (pa.float32(), pa.float64(), pa.int8(), pa.decimal128(9, 2)):
        path = column(folder, "who", pa.array([3], kind))
        found |= {row.unit for row in read_demonstrations(path, unit="who")}
    path = column(folder, "who", pa.array(SAME))
    found |= {row.unit for row in read_demonstrations(path, unit="who")}
    made = [Demonstration("x.png", "q", "a", unit=who) for who in SAME]
    assert found == {"3"} == {*group_by_unit(made)}


def test_unicode_forms_of_a_unit_are_one(folder):
    rows = read_demonstrations(lines(folder, {"who": NFC}, {"who": NFD + " "}), unit="who")
    assert {row.unit for row in rows} == {NFC}


def test_what_may_be_two_persons_is_two():
    apart = ["P1", "p1", "P 1", "P01", "P-1", "1.5", "1.50", "3,0", "03", "3.01", "\uff13"]
    assert [unit_name(name) for name in apart] == apart
    assert unit_name("-0.0") == unit_name(0) == "0"
    assert unit_name("-3.0") == "-3"


def test_near_equal_units_are_counted_and_shown(folder):
    names = ["P1", "P1 ", "p1", "P 1", "P-001", "Q1", "1-23", "12-3", "Ann Lee", "ann  lee", "Bob"]
    path = lines(folder, *({"who": name} for name in names))
    report = check_data(iter_entries(path, ReadOptions(unit="who")), unit="who", pictures=False)
    assert report.units == 10
    assert report.nearly_equal == [[(1, 1), (1, 3), (1, 4), (1, 5)], [(1, 9), (1, 10)]]
    assert any("6 values of who are nearly those of others" in s for s in report.suggestions)
    assert not check_data(iter_entries(path), pictures=False).nearly_equal
    assert nearly("943 476 5919") == nearly("9434765919") == nearly("９４３ ４７６ ５９１９")


# --- Unicode forms ------------------------------------------------------------------------------


def test_the_same_file_in_another_unicode_form_gives_the_same_records(folder):
    rows = []
    Image.new("RGB", (1, 1)).save(folder / f"{NFC}.png")
    for text in (NFC, NFD):
        record = {"image": f"{text}.png", "question": text, "answer": None, "options": [text],
                  "answers": [text, "rot", text], f"Wer {text}": text, "task": text}  # fmt: skip
        path = lines(folder, record)
        rows += read_demonstrations(path, answers="all", unit=f"Wer {NFC}")
        head = f"image,{text},answer\nx.png,{text}?,{text}\n"
        (folder / "a.csv").write_text(head)
        rows += read_demonstrations(folder / "a.csv", columns={"question": NFD})
        table = pa.table({"image": ["x.png"], text: [f"{text}?"], "answer": [text]})
        pq.write_table(table, folder / "a.parquet")
        rows += read_demonstrations(folder / "a.parquet", columns={"question": NFC})
    assert rows[:3] == rows[3:]
    assert (rows[0].answer, rows[0].accepted) == (NFC, (NFC, "rot"))
    assert rows[1].question == rows[2].question == f"{NFC}?"


def test_a_model_is_shown_composed_letters_whoever_made_the_prompt():
    prompt = Prompt((Demonstration("x.png", NFD, NFD),), Query("x.png", NFD))
    for shown in (json.dumps(to_messages(prompt), ensure_ascii=False), to_text(prompt, "<i>")):
        assert (shown.count(NFC), shown.count(NFD)) == (3, 0)


def test_answers_are_compared_and_counted_composed():
    assert exact_match([NFD, NFC, "grun"], [NFC, ("rot", NFD), NFC]) == 2 / 3
    words = private_words([NFC, NFD] * 100, 8.0, 1e-3, "replace_one")
    assert words == (NFC,)
    picture = Image.new("RGB", (1, 1))
    assert len({*record_digests([Demonstration(picture, text, text) for text in (NFC, NFD)])}) == 1


def test_what_no_writing_has_is_left_and_costs_no_time():
    marks = "a" + "\u0301\u0323" * 30_000
    assert composed(marks) == marks
    assert composed("a" + "\u0f73" * 60_000)[1:] == "\u0f73" * 60_000
    assert composed(NFD * MAX_TEXT) == NFD * MAX_TEXT
    assert composed("x" * 10**6 + "u\u0308"[:0]) == "x" * 10**6


def test_what_cannot_be_seen_is_blank():
    for text in ("", " \t", "\u200b", "\ufeff\u2060", "\u00ad", "\u3164", "\ufe0f", "\u2800", "\0"):
        assert is_blank(text)
    for text in (".", "0", "\u0301", "\u2764\ufe0f", "\u0915\u094d\u200d", "\U0001f600"):
        assert not is_blank(text)


# --- pictures by number -------------------------------------------------------------------------

NAMED = [  # files, image_id, the file that is taken or why none is
    (["007.png", "7.png"], 7, "7.png"),
    (["007.png", "7.png"], "007", "007.png"),
    (["007.png", "7.png"], 7.0, "7.png"),
    (["007.png", "7.png"], "07", "two image files fit"),
    (["007.png", "0007.png"], 7, "two image files fit"),
    (["7.png", "7.jpg"], 7, "two image files fit"),
    (["a/7.png", "b/7.png"], 7, "two image files fit"),
    (["7.png", "a/7.png"], 7, "two image files fit"),
    (["7.png", "a/COCO_val2014_000000000007.jpg"], 7, "7.png"),
    (["a/COCO_val2014_000000000007.jpg", "b/COCO_train2014_000000000007.jpg"], 7,
     "two image files fit"),
    (["7.0.png", "7.png"], "7.0", "7.0.png"),
    (["000.png"], 0, "000.png"),
    ([NFD + ".png"], NFC, NFD + ".png"),
    (["8.png"], 7, "image file missing"),
    (["8.png"], " ", "image file missing"),
    (["8.png"], [7], "no image"),
]  # fmt: skip


@pytest.mark.parametrize("case", NAMED, ids=range(len(NAMED)))
def test_a_picture_is_found_by_its_name_then_by_its_number(case, tmp_path):
    files, image, taken = case
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        Image.new("RGB", (1, 1)).save(tmp_path / file)
    asked = [{"question_id": 1, "image_id": image, "question": "q", "who": "P1"}]
    given = [{"question_id": "1.0", "multiple_choice_answer": "a"}]
    content = {"questions": asked, "annotations": given}
    (tmp_path / "both.json").write_text(json.dumps(content))
    (row,) = read_demonstrations(tmp_path / "both.json", unit="who")
    assert row.unit == "P1"
    assert taken == (
        row.reason if isinstance(row, BadRow) else str(row.image.relative_to(tmp_path))
    )
