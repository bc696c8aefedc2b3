"""Every format gives the same demonstrations, lazily, and no record decides about another."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import subprocess
import sys
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpmtv.data import formats, tables
from dpmtv.data.demonstrations import (
    BadRow,
    check_images,
    iter_demonstrations,
    read_demonstrations,
)
from dpmtv.data.formats import FORMATS, ReadOptions, detect_format, iter_entries
from dpmtv.data.images import load_image
from dpmtv.data.stored import InRecord
from dpmtv.errors import DataError, UserError
from dpmtv.types import Demonstration

PAGES = Path(__file__).parents[2] / "docs" / "formats"
CLASSES = ("circle", "red square", "star")
ASKED = "What is shown in this image? Answer with one of: circle, red square, star."

# Twelve records that even class folders can tell, and twelve that take more to write down.
PLAIN = [
    {"image": f"{n}.png", "question": ASKED, "answer": CLASSES[n // 4], "unit": f"p{n % 5}"}
    for n in range(12)
]
RICH = [
    {
        "images": [f"{n}.png", f"{(n + 1) % 12}.png"][: 1 + n % 2],
        "question": f"Größe {n}, “fein”;\nzwei\tZeilen?",
        "answer": f"antwort {n}, \u56f3 'x'" + "\nmehr" * (n % 3),
        "unit": n % 4,
    }
    for n in range(12)
]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for n in range(12):
        Image.new("RGB", (3, 2), (20 * n, 255 - 20 * n, 7)).save(folder / f"{n}.png")
    return folder


def names(record: dict) -> list[str]:
    return record.get("images") or ([record["image"]] if record.get("image") else [])


def text_file(path: Path, lines) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def uri(folder: Path, name: str) -> str:
    try:
        raw = (folder / name).read_bytes()
    except OSError:
        return name
    return "data:image/png;base64," + base64.b64encode(raw).decode()


def chat(record: dict, url=lambda name: name) -> dict:
    parts = [{"type": "image_url", "image_url": {"url": url(name)}} for name in names(record)]
    parts.append({"type": "text", "text": record.get("question")})
    return {
        "unit": record.get("unit"),
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": parts},
            {"role": "assistant", "content": record.get("answer")},
        ],
    }


def llava(record: dict) -> dict:
    asked = "<image>\n" * len(names(record)) + (record.get("question") or "")
    return {
        "id": "x",
        "unit": record.get("unit"),
        "image": names(record),
        "conversations": [
            {"from": "human", "value": asked},
            {"from": "gpt", "value": record.get("answer")},
        ],
    }


def table(path: Path, records, delimiter: str, image: str = "image") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        several = any("images" in record for record in records)
        writer.writerow(["images" if several else image, "question", "answer", "unit"])
        for record in records:
            shown = json.dumps(names(record)) if several else "".join(names(record))
            writer.writerow([shown, *(record.get(n) for n in ("question", "answer", "unit"))])
    return path


def columns(records, image) -> dict:
    found = {n: [record.get(n) for record in records] for n in ("question", "answer", "unit")}
    several = any("images" in record for record in records)
    shown = [[image(name) for name in names(record)] or [None] for record in records]
    return found | ({"images": shown} if several else {"image": [one[0] for one in shown]})


def parquet(path: Path, records, image) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns(records, image)), path, row_group_size=5)
    return path


def struct(folder: Path, name: str) -> dict:
    there = (folder / name).is_file()
    return {"bytes": (folder / name).read_bytes() if there else None, "path": name}


def saved(folder: Path, records) -> Path:
    import datasets

    data = datasets.Dataset.from_dict(columns(records, lambda name: struct(folder, name)))
    kind = {"images": datasets.List(datasets.Image())}
    kind = kind if "images" in data.column_names else {"image": datasets.Image()}
    data = data.cast(datasets.Features({**data.features, **kind}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data.save_to_disk(folder / "saved")
    return folder / "saved"


def vqa(folder: Path, records) -> list[Path]:
    questions, annotations = [], []
    for n, record in enumerate(records):
        image = record.get("image", "").removesuffix(".png")
        if (folder / f"{image}.png").is_file():
            coco = folder / "train" / f"COCO_train2014_{int(image):012d}.png"
            coco.parent.mkdir(exist_ok=True)
            coco.write_bytes((folder / f"{image}.png").read_bytes())
        asked = {"image_id": int(image) if image.isdigit() else image, "unit": record.get("unit")}
        questions.append({"question_id": 900 - n, "question": record.get("question"), **asked})
        answer = record.get("answer")
        annotations.append(
            {
                "question_id": 900 - n,
                "multiple_choice_answer": answer,
                "answers": [{"answer": a, "answer_id": 1} for a in ("odd", answer) if answer],
            }
        )
    paths = [folder / "questions.json", folder / "annotations.json"]
    paths[0].write_text(json.dumps({"info": {"a": [1]}, "questions": questions}))
    paths[1].write_text(json.dumps({"annotations": annotations[::-1], "license": None}))
    return paths


def metadata(folder: Path, records) -> Path:
    theirs = {"images": "images_file_names", "image": "file_name"}
    lines = [{theirs.get(name, name): r[name] for name in r} for r in records]
    text_file(folder / "metadata.jsonl", lines)
    return folder


def metadata_table(folder: Path, records) -> Path:
    table(folder / "metadata.csv", records, ",", "file_name")
    return folder


# name → what writes records into a folder, and the format that is detected
WRITERS = {
    "jsonl": (lambda f, r: text_file(f / "data.jsonl", r), "jsonl"),
    "json": (lambda f, r: write(f / "data.json", json.dumps(r, indent=1)), "json"),
    "chat": (lambda f, r: text_file(f / "chat.jsonl", map(chat, r)), "jsonl"),
    "chat inline": (
        lambda f, r: text_file(f / "c.jsonl", [chat(x, lambda n: uri(f, n)) for x in r]),
        "jsonl",
    ),
    "llava": (lambda f, r: write(f / "llava.json", json.dumps([*map(llava, r)])), "json"),
    "llava lines": (lambda f, r: text_file(f / "llava.jsonl", map(llava, r)), "jsonl"),
    "json inline": (
        lambda f, r: write(f / "i.json", json.dumps([chat(x, lambda n: uri(f, n)) for x in r])),
        "json",
    ),
    "csv": (lambda f, r: table(f / "data.csv", r, ","), "csv"),
    "semicolons": (lambda f, r: table(f / "data.CSV", r, ";"), "csv"),
    "tsv": (lambda f, r: table(f / "data.tsv", r, "\t"), "csv"),
    "parquet paths": (lambda f, r: parquet(f / "p.parquet", r, lambda n: n), "parquet"),
    "parquet": (lambda f, r: parquet(f / "s.parquet", r, lambda n: struct(f, n)), "parquet"),
    "metadata": (metadata, "metadata"),
    "metadata.csv": (metadata_table, "metadata"),
    "datasets": (saved, "datasets"),
}
ONLY_PLAIN = {"vqa": (vqa, "vqa")}


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def folder_of(tmp_path: Path, pictures: Path) -> Path:
    for file in pictures.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def seen(rows) -> list:
    assert check_images(rows) == []
    return [
        ([load_image(i).tobytes() for i in r.images], r.question, r.answer, r.unit, r.accepted)
        for r in rows
    ]


def wanted(records, pictures: Path, unit: bool) -> list:
    return [
        (
            [load_image(pictures / name).tobytes() for name in names(record)],
            record["question"],
            record["answer"],
            str(record["unit"]) if unit else None,
            (),
        )
        for record in records
    ]


@pytest.mark.parametrize("name", [*WRITERS, *ONLY_PLAIN])
def test_the_same_twelve_records_in_every_format(name, tmp_path, pictures):
    folder = folder_of(tmp_path, pictures)
    make, kind = (WRITERS | ONLY_PLAIN)[name]
    for records in (PLAIN, RICH)[: 1 if name in ONLY_PLAIN else 2]:
        path = make(folder, records)
        several = path if isinstance(path, list) else [path]
        assert [detect_format(file) for file in several] == [kind] * len(several)
        assert seen(read_demonstrations(path)) == wanted(records, pictures, False)
        rows = read_demonstrations(path, unit="unit", format=kind)
        assert seen(rows) == wanted(records, pictures, True)
        assert len({image.place for row in rows for image in row.images if not_a_path(image)}) in (
            0,
            sum(len(row.images) for row in rows),
        )
        if name == "datasets":
            break


def not_a_path(image) -> bool:
    return isinstance(image, InRecord)


def test_class_folders_give_the_same_twelve(tmp_path, pictures):
    for record in PLAIN:
        folder = tmp_path / record["answer"].replace(" ", "_")
        folder.mkdir(exist_ok=True)
        name = record["image"].zfill(6)
        (folder / name).write_bytes((pictures / record["image"]).read_bytes())
    (tmp_path / "star" / "Thumbs.db").write_bytes(b"x")
    (tmp_path / "notes.txt").write_bytes(b"x")
    assert detect_format(tmp_path) == "classes"
    assert seen(read_demonstrations(tmp_path)) == wanted(PLAIN, pictures, False)
    rows = read_demonstrations(tmp_path, question="Which of {classes}?")
    assert {row.question for row in rows} == {"Which of circle, red square, star?"}


def test_three_pictures_make_a_two_way_record(tmp_path):
    for name, count in (("a_cat", 7), ("dog", 5), ("owl", 1)):
        (tmp_path / name).mkdir()
        for n in range(count):
            Image.new("RGB", (1, 1)).save(tmp_path / name / f"{n}.png")
    rows = read_demonstrations(tmp_path, ways=2)
    used = [image for row in rows for image in row.images]
    assert len(set(used)) == len(used) == 3 * len(rows) == 12
    for row in rows:
        first, second, third = (Path(i).parent.name.replace("_", " ") for i in row.images)
        assert first != second
        assert row.answer == third in (first, second)
        assert row.question == (
            f"The first image shows {first}, the second shows {second}. "
            f"Does the third show {first} or {second}?"
        )
    assert {row.images[0].parent.name for row in rows} != {"a_cat"}
    # The content of a picture decides nothing, its unreadability included.
    (tmp_path / "dog" / "2.png").write_bytes(b"broken")
    assert read_demonstrations(tmp_path, ways=2) == rows


JUNK = [
    {},
    {"image": "nothing.png", "question": "q", "answer": "a", "unit": "p0"},
    {"image": "http://example.org/1.png", "question": "q", "answer": "a", "unit": "p0"},
    {"image": "1.png", "question": "", "answer": 'a "b,\n;\t', "unit": "p0"},
    {"image": "1.png", "question": "q" * 5000, "answer": "", "unit": "p0"},
]


@pytest.mark.parametrize("name", [n for n in WRITERS if n != "datasets"] + ["vqa"])
def test_a_record_that_is_replaced_changes_its_own_entry(name, tmp_path, pictures):
    folder = folder_of(tmp_path, pictures)
    make = (WRITERS | ONLY_PLAIN)[name][0]
    before = seen(read_demonstrations(make(folder, PLAIN)))
    for place in (0, 5, 11):
        for junk in JUNK:
            records = [*PLAIN[:place], junk, *PLAIN[place + 1 :]]
            rows = read_demonstrations(make(folder, records))
            assert len(rows) == 12
            assert isinstance(rows[place], BadRow)
            assert (rows[place].row, rows[place].unit) == (place + 1, None)
            del rows[place]
            assert seen(rows) == before[:place] + before[place + 1 :]


def test_several_files_follow_each_other(tmp_path, pictures):
    folder = folder_of(tmp_path, pictures)
    first = text_file(folder / "a.jsonl", PLAIN[:5])
    last = table(folder / "b.csv", [*PLAIN[5:], {"question": "q"}], ",")
    rows = read_demonstrations([first, str(last)])
    assert seen(rows[:-1]) == wanted(PLAIN, pictures, False)
    assert rows[-1] == BadRow(8, "no image", file=2)
    assert [*iter_demonstrations([first, last])] == rows
    places = [(found.file, found.row) for found in iter_entries([first, last])]
    assert places == [(1, n) for n in range(1, 6)] + [(2, n) for n in range(1, 9)]
    (folder / "link.jsonl").symlink_to(first)
    (folder / "hard.jsonl").hardlink_to(first)
    for again in (first, *(folder / name for name in ("link.jsonl", "hard.jsonl", "./a.jsonl"))):
        with pytest.raises(DataError, match="is named twice"):
            read_demonstrations([first, again])


def test_two_pairs_of_vqa_files(tmp_path, pictures):
    halves = []
    for name, records in (("one", PLAIN[:7]), ("two", PLAIN[7:])):
        (tmp_path / name).mkdir()
        halves.append(vqa(folder_of(tmp_path / name, pictures), records))
    rows = read_demonstrations([halves[0][0], halves[1][0], halves[0][1], halves[1][1]])
    assert seen(rows) == wanted(PLAIN, pictures, False)
    # One file may hold both.
    both = json.loads(halves[0][0].read_text()) | json.loads(halves[0][1].read_text())
    (tmp_path / "both.json").write_text(json.dumps(both))
    rows = read_demonstrations(tmp_path / "both.json", images=tmp_path / "one")
    assert seen(rows) == wanted(PLAIN[:7], pictures, False)


ANSWERS = ["No", "yes ", "Yes", " ", {"answer": "maybe", "answer_confidence": "yes"}, "no", None]


@pytest.mark.parametrize(
    ("rule", "record", "shown", "accepted"),
    [
        ("majority", {"answers": ANSWERS}, "No", ()),
        ("first", {"answers": ["b", "a", "a"]}, "b", ()),
        ("majority", {"answers": ["b", "a", "A"]}, "a", ()),
        ("all", {"answers": ANSWERS}, "No", ("No", "yes ", "Yes", "maybe", "no")),
        ("all", {"answers": ["a", "A"]}, "a", ("a", "A")),
        ("all", {"answers": ["Black", "black", "black"]}, "black", ("Black", "black")),
        ("all", {"answers": ["Red", "red", "blue"]}, "Red", ("Red", "red", "blue")),
        ("all", {"answers": ["b", "a b", "A  b", "A b "]}, "A  b", ("b", "a b", "A  b")),
        ("all", {"answers": ["RED", "red"], "answer": "Red"}, "Red", ("Red", "RED", "red")),
        ("majority", {"answers": ["rot", "gru\u0308n", "gr\u00fcn"]}, "gr\u00fcn", ()),
        ("majority", {"answers": ["b", "\u200b", "\u200b"]}, "b", ()),
        ("majority", {"answers": ["a", "a"], "answer": "b"}, "b", ()),
        ("first", {"answers": ["a", "a"], "answer": "b"}, "a", ()),
        ("all", {"answers": ["a", "a"], "answer": "b"}, "b", ("b", "a")),
        ("all", {"answer": "b"}, "b", ()),
        ("majority", {"answers": [3, 3.0, True]}, "3", ()),
        ("majority", {"answer": 2.5}, "2.5", ()),
        ("majority", {"answer": True}, "true", ()),
        ("majority", {"answer": "two\r\nlines\rhere"}, "two\nlines\nhere", ()),
    ],
)
def test_rules_for_several_answers(rule, record, shown, accepted, tmp_path, pictures):
    folder = folder_of(tmp_path, pictures)
    path = text_file(folder / "a.jsonl", [{"image": "1.png", "question": "q", **record}])
    (row,) = read_demonstrations(path, answers=rule)
    assert (row.answer, row.accepted) == (shown, accepted)


def test_options_are_shown_with_the_question(tmp_path, pictures):
    folder = folder_of(tmp_path, pictures)
    record = {**PLAIN[0], "options": ["red", "blue", 3]}
    (row,) = read_demonstrations(text_file(folder / "a.jsonl", [record]))
    assert row.question == f"{ASKED}\nOptions: red, blue, 3."


TALK = {
    "image": ["0.png", "1.png"],
    "who": "ann",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "<image> What?"},
        {"role": "assistant", "content": [{"type": "text", "text": "A."}]},
        {"role": "assistant", "content": "left out"},
        {"role": "user", "content": [{"type": "text", "text": "And"}, {"type": "image"}]},
        {"role": "user", "content": "this?"},
        {"role": "tool", "content": "left out"},
        {"role": "assistant", "content": "B."},
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "C."},
        {"role": "user", "content": "Open"},
    ],
}


def test_turns_of_a_conversation(tmp_path, pictures):
    folder = folder_of(tmp_path, pictures)
    path = text_file(folder / "a.jsonl", [TALK, PLAIN[0] | {"who": "bob"}])
    assert [(r.question, r.answer) for r in read_demonstrations(path)] == [
        ("What?", "A."),
        (ASKED, "circle"),
    ]
    rows = read_demonstrations(path, unit="who")
    zero, one = folder / "0.png", folder / "1.png"
    assert rows[:3] == [
        Demonstration(zero, "What?", "A.", unit="ann"),
        Demonstration(one, "And\nthis?", "B.", unit="ann"),
        Demonstration((zero, one), "Why?", "C.", unit="ann"),
    ]
    assert rows[3] == BadRow(1, "no answer", "ann")
    assert rows[4].unit == "bob"


def test_other_names_of_columns(tmp_path, pictures):
    folder = folder_of(tmp_path, pictures)
    records = [{"Bild": r["image"], "Frage": ASKED, "answer": r["answer"]} for r in PLAIN]
    ours = {"image": "Bild", "question": "Frage"}
    with (folder / "a.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["Bild", "Frage", "answer"])
        writer.writeheader()
        writer.writerows(records)
    for path in (text_file(folder / "a.jsonl", records), folder / "a.csv"):
        rows = read_demonstrations(path, columns=ours)
        assert seen(rows) == wanted(PLAIN, pictures, False)


def test_images_may_lie_elsewhere(tmp_path, pictures):
    path = text_file(tmp_path / "a.jsonl", PLAIN)
    assert {row.reason for row in read_demonstrations(path)} == {"image file missing"}
    assert seen(read_demonstrations(path, images=pictures)) == wanted(PLAIN, pictures, False)


def test_ids_are_told_and_decide_nothing(tmp_path, pictures):
    folder = folder_of(tmp_path, pictures)
    path = text_file(folder / "a.jsonl", [{**PLAIN[0], "id": n} for n in (7, "x", 7, [1], None)])
    assert [found.id for found in iter_entries(path)] == ["7", "x", "7", None, None]
    assert len(set(read_demonstrations(path))) == 1


@pytest.mark.parametrize("name", ["jsonl", "csv", "parquet", "datasets", "vqa"])
def test_fields_that_could_name_units_are_told(name, tmp_path, pictures):
    folder = folder_of(tmp_path, pictures)
    records = [{**record, "unit": n // 3} for n, record in enumerate(PLAIN)]
    found = list(iter_entries((WRITERS | ONLY_PLAIN)[name][0](folder, records)))
    assert [entry.others["unit"] for entry in found] == [str(n // 3) for n in range(12)]
    assert all({*entry.others} <= {"unit", "image_id", "question_id"} for entry in found)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "cp1252"])
@pytest.mark.parametrize("name", ["jsonl", "json", "csv", "json inline"])
def test_encodings(encoding, name, tmp_path, pictures):
    folder = folder_of(tmp_path, pictures)
    records = [{**r, "question": "Grün – größer?"} for r in PLAIN]
    make, kind = WRITERS[name]
    path = make(folder, records)
    text = path.read_bytes().decode()
    text = json.dumps(json.loads(text), ensure_ascii=False) if kind == "json" else text
    path.write_bytes(text.encode(encoding))
    options = {} if encoding in ("utf-8-sig", "utf-16") else {"encoding": encoding}
    expected = wanted(records, pictures, False)
    assert seen(read_demonstrations(path, **options)) == expected
    assert seen(read_demonstrations(path, encoding=encoding)) == expected


@pytest.mark.parametrize("name", ["chat inline", "json inline", "parquet", "datasets", "csv"])
def test_images_inside_files_are_read_when_they_are_wanted(name, tmp_path, pictures):
    folder = folder_of(tmp_path, pictures)
    noise = np.random.default_rng(0).integers(0, 256, (200, 200, 3), np.uint8)
    for n in range(12):
        Image.fromarray(noise).save(folder / f"{n}.png")  # 120 kB each, 1.4 MB together
    records = PLAIN
    if name == "csv":
        records = [{**record, "image": uri(folder, record["image"])} for record in PLAIN]
    path = WRITERS[name][0](folder, records)
    read_demonstrations(path)  # loads libraries
    tracemalloc.start()
    rows = read_demonstrations(path)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 200_000
    assert len({row.image.place for row in rows}) == 12
    assert len({*rows}) == 12
    assert all("png" not in repr(row) + repr(row.image) for row in rows)
    image = rows[7].image
    assert image.read() == image.read() == (folder / "7.png").read_bytes()
    if name not in ("datasets",):
        path.write_bytes(path.read_bytes() + b" ")
        with pytest.raises(ValueError, match="has changed"):
            image.read()


@pytest.mark.parametrize("name", ["jsonl", "csv", "parquet paths"])
def test_long_files_are_not_held(name, tmp_path, pictures):
    folder = folder_of(tmp_path, pictures)
    many = [PLAIN[n % 12] | {"question": "why " * 50} for n in range(4000)]
    path = WRITERS[name][0](folder, many)
    next(iter_demonstrations(path))
    tracemalloc.start()
    count = sum(isinstance(row, Demonstration) for row in iter_demonstrations(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 4000
    assert peak < 900_000  # the file is 1 MB, its rows together are several


def test_lines_longer_than_the_limit_are_passed_over(tmp_path, pictures, monkeypatch):
    folder = folder_of(tmp_path, pictures)
    path = text_file(folder / "a.jsonl", [PLAIN[0], {**PLAIN[1], "x": "y" * 9000}, PLAIN[2]])
    monkeypatch.setattr("dpmtv.data.textfiles.MAX_RECORD", 1000)
    rows = read_demonstrations(path)
    assert rows[1] == BadRow(2, "too long")
    assert [rows[0].answer, rows[2].answer] == ["circle", "circle"]


def test_class_labels_of_datasets_are_told_by_name(tmp_path, pictures):
    import datasets

    folder = folder_of(tmp_path, pictures)
    label = datasets.ClassLabel(names=["cat", "dog"])
    data = datasets.Dataset.from_dict(
        {"image": ["0.png", "1.png"], "question": ["q", "q"], "answer": [1, 0]},
        datasets.Features(
            {"image": datasets.Value("string"), "question": datasets.Value("string")}
            | {"answer": label}
        ),
    )
    whole = datasets.DatasetDict({"train": data, "test": data.select([1])})
    whole.save_to_disk(folder / "saved")
    rows = read_demonstrations(folder / "saved", split="train", images=folder)
    assert [row.answer for row in rows] == ["dog", "cat"]
    with pytest.raises(DataError, match=r"has the splits train, test\. Name one with split"):
        read_demonstrations(folder / "saved")


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    def refuse(name):
        raise ImportError(name)

    monkeypatch.setattr(tables.importlib, "import_module", refuse)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    for path in (tmp_path / "a.parquet", "hf://some/name"):
        with pytest.raises(UserError, match=r"pip install 'dpmtv\[data\]'"):
            read_demonstrations(path)


def test_reading_text_loads_no_table_library():
    code = (
        "import sys, dpmtv.data.demonstrations as d\n"
        "assert not {'datasets', 'pyarrow', 'pandas', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_hub_names_load_datasets(monkeypatch):
    asked = []

    class Library:
        ClassLabel = int

        @staticmethod
        def load_dataset(name, revision):
            asked.append((name, revision))
            raise ConnectionError("secret")

    monkeypatch.setattr(tables.importlib, "import_module", lambda name: Library)
    for name in ("hf://a/b", Path("hf://a/b"), "hf://a/b@v1"):
        assert detect_format(name) == "datasets"
        with pytest.raises(DataError, match=r"The dataset a/b cannot be loaded") as caught:
            read_demonstrations(name)
        assert "secret" not in str(caught.value)
        assert caught.value.__context__ is None
    assert asked == [("a/b", None), ("a/b", None), ("a/b", "v1")]


def test_every_option_is_refused_where_it_means_nothing(tmp_path, pictures):
    path = text_file(folder_of(tmp_path, pictures) / "a.jsonl", PLAIN)
    for option in ({"ways": 2}, {"split": "train"}, {"question": "q"}):
        with pytest.raises(UserError, match="means nothing for the format jsonl"):
            read_demonstrations(path, **option)
    for bad, message in [
        ({"format": "xml"}, "format 'xml' is not known; one of jsonl, json, vqa"),
        ({"answers": "best"}, "answers 'best' is not known; one of majority, first, all"),
        ({"encoding": "klingon"}, "encoding 'klingon' is not known"),
        ({"encoding": "base64"}, "encoding 'base64' is not known"),
        ({"ways": 3}, "ways is 2, or left out"),
        ({"columns": {"picture": "x"}}, "columns: 'picture' is none of our fields"),
        ({"images": tmp_path / "nowhere"}, "nowhere is not a folder of images"),
    ]:
        with pytest.raises(UserError, match=re.escape(message)):
            read_demonstrations(path, **bad)


def test_the_page_of_formats_lists_them_all():
    index = (PAGES / "README.md").read_text("utf-8")
    for name in FORMATS:
        assert f"`{name}`" in index
    for page in PAGES.glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in index
    assert ReadOptions.__dataclass_fields__.keys() <= set(re.findall(r"`(\w+)=?", index))
    assert formats.FORMATS is FORMATS


@pytest.mark.parametrize("page", sorted(PAGES.glob("[a-z]*.md")), ids=lambda page: page.stem)
def test_the_example_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdout", io.StringIO())
    blocks = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, page.name, "exec"), {})
