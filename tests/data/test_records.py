"""What one record may hold, and what it must not do to the reader."""

from __future__ import annotations

import decimal
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dpmtv.data import images
from dpmtv.data.demonstrations import read_demonstrations
from dpmtv.data.folders import PICTURES
from dpmtv.data.formats import data_file


@pytest.fixture
def folder(tmp_path) -> Path:
    for n in range(3):
        Image.new("RGB", (3, 2)).save(tmp_path / f"{n}.png")
    return tmp_path


def text_file(path: Path, lines) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_images_are_looked_up_once_however_many_turns_show_them(folder):
    inner = ["data:;base64," for _ in range(20_000)]
    turns = [{"role": ("user", "assistant")[n % 2], "content": "x"} for n in range(20_000)]
    records = [
        {"images": inner, "question": "q", "answer": "a", "unit": 3.0},
        {"images": inner, "messages": turns, "unit": 4},
        {"images": ["0.png"] * 20_000, "messages": turns, "unit": 5},
    ]
    path = text_file(folder / "a.jsonl", records)  # work that grows by squares would take minutes
    assert [len(row.images) for row in read_demonstrations(path)] == [20_000] * 3
    rows = read_demonstrations(path, unit="unit")
    assert [len(row.images) for row in rows[:3]] == [20_000, 20_000, 16]
    assert rows[2].images == rows[1].images[-16:]
    assert [row.unit for row in rows[:2]] == ["3", "4"]
    assert len(rows) == 1 + 2 * 10_000


def test_images_that_no_mark_asks_for_go_to_the_first_turn(folder):
    said = [("human", "<image>A?"), ("gpt", "a"), ("human", "<image>B?"), ("gpt", "b")]
    talk = [{"from": who, "value": text} for who, text in said]
    record = {"images": ["0.png", "1.png", "2.png"], "conversations": talk, "who": "u"}
    path = text_file(folder / "a.jsonl", [record])
    rows = read_demonstrations(path, unit="who")
    assert [[i.name for i in row.images] for row in rows] == [["0.png", "2.png"], ["1.png"]]
    assert [row.images for row in read_demonstrations(path)] == [rows[0].images]


def test_decimal_numbers_of_tables_are_text(folder):
    values = [decimal.Decimal(text) for text in ("3.00", "2.50")]
    asked = {"image": "0.png", "question": "q"}
    records = [{**asked, "answer": value, "unit": value} for value in values]
    pq.write_table(pa.Table.from_pylist(records), folder / "a.parquet")
    rows = read_demonstrations(folder / "a.parquet", unit="unit")
    assert [(row.answer, row.unit) for row in rows] == [("3", "3"), ("2.50", "2.50")]


def test_one_data_set_has_one_file(folder):
    (folder / "metadata.jsonl").write_text("{}")
    (folder / "link").symlink_to(folder)
    (folder / "x").mkdir()
    file = Path(folder / "metadata.jsonl").resolve()
    for name in (folder, str(folder / "link"), file, folder / "link" / "metadata.jsonl"):
        assert data_file(name) == file
    assert data_file(folder / "link" / "x") == (folder / "x").resolve()
    assert data_file(folder / "no") == (folder / "no").resolve()
    assert data_file("hf://a/b") == Path("hf://a/b")


def test_class_folders_know_the_endings_of_every_image_format():
    Image.init()
    kinds = {"MPO", *images.FORMATS}
    known = {ending for ending, kind in Image.registered_extensions().items() if kind in kinds}
    assert known | {".dcm", ".dicom"} == set(PICTURES)
