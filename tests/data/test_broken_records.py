"""A record that cannot be read leaves those beside it, and the images inside them, as they are."""

from __future__ import annotations

import base64
import json

import pytest
from PIL import Image

from dpmtv.data import tables
from dpmtv.data.demonstrations import BadRow, read_demonstrations

GOOD = {"image": "0.png", "question": "What?", "answer": "circle"}


@pytest.fixture
def folder(tmp_path):
    for n in range(3):
        Image.new("RGB", (3, 2), (20 * n, 0, 7)).save(tmp_path / f"{n}.png")
    return tmp_path


def uri(folder, name: str) -> str:
    return "data:image/png;base64," + base64.b64encode((folder / name).read_bytes()).decode()


def test_a_record_that_memory_does_not_suffice_for_is_a_bad_row(folder, monkeypatch):
    """Of a document, the text of the record alone tells where it ends."""
    records = [GOOD, {**GOOD, "x": [{"]": '"}'}]}, GOOD]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    (folder / "a.json").write_text(json.dumps(records))
    real = json.JSONDecoder.raw_decode

    def fail(self, text, idx=0):
        value, end = real(self, text, idx)
        if "x" in value:
            raise MemoryError
        return value, end

    monkeypatch.setattr(json.JSONDecoder, "raw_decode", fail)
    for name in ("a.jsonl", "a.json"):
        rows = read_demonstrations(folder / name)
        assert [rows[0].answer, rows[1], rows[2].answer] == [
            "circle",
            BadRow(2, "too long"),
            "circle",
        ]


@pytest.mark.parametrize(
    "bad", ["", "a\rb", '"q"x,y,z', '"a\nb"x', "too,few", ",,", "\0", '"\n",a,']
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_bad_row_of_a_table_leaves_the_others(bad, end, place, folder):
    rows = [f'"{uri(folder, f"{n}.png")}","q\r{n}",a' for n in range(3)]
    rows[place] = bad
    path = folder / "a.csv"
    path.write_bytes(end.join(["image,question,answer", *rows, ""]).encode())
    found = read_demonstrations(path)
    assert len(found) == 3
    assert isinstance(found.pop(place), BadRow)
    for n, row in zip({0, 1, 2} - {place}, found, strict=True):
        assert row.question == f"q\n{n}"
        assert row.image.read() == (folder / f"{n}.png").read_bytes()


def test_images_behind_a_bad_record_of_a_document_are_found(folder):
    good = {"image": uri(folder, "0.png"), "question": "q", "answer": "a"}
    deep = '{"x": ' + "[" * 5000 + "]" * 5000 + "}"
    for encoding in ("utf-8", "utf-16-le"):
        text = json.dumps([good, "#", "DEEP", good]).replace('"DEEP"', deep).encode(encoding)
        bad = {"utf-8": b"\xff", "utf-16-le": b"\0\xd8"}[encoding]
        (folder / "a.json").write_bytes(text.replace("#".encode(encoding), bad))
        rows = read_demonstrations(folder / "a.json", encoding=encoding)
        assert [row.reason for row in rows[1:3]] == [
            "not UTF-8" if encoding == "utf-8" else "not in its encoding",
            "not JSON",
        ]
        for row in (rows[0], rows[3]):
            assert row.image.read() == (folder / "0.png").read_bytes()


def test_images_of_parquet_are_read_in_order_in_one_pass(tmp_path, monkeypatch):
    """By the batches that are decoded; other orders give the same images."""
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table(
        {"image": [bytes([n]) for n in range(200)], "question": ["q"] * 200, "answer": ["a"] * 200}
    )
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=150)
    rows = read_demonstrations(tmp_path / "a.parquet")
    decoded, real = [], tables.Parquet._batches

    def counted(self, file, group):
        for batch in real(self, file, group):
            decoded.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(tables.Parquet, "_batches", counted)
    assert [row.image.read() for row in rows] == [bytes([n]) for n in range(200)]
    assert sum(decoded) == 200
    for n in (199, 3, 3, 140, 139, 160, 0):
        assert rows[n].image.read() == bytes([n])
