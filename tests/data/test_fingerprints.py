"""A record is known again by what it says and shows, wherever and however it is stored."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from tests.data.test_formats import PLAIN, WRITERS

from dpmtv.data.demonstrations import read_demonstrations
from dpmtv.data.fingerprints import record_digests
from dpmtv.data.rows import BadRow
from dpmtv.types import Demonstration


@pytest.fixture
def folder(tmp_path) -> Path:
    for n in range(12):
        Image.new("RGB", (8, 8), (20 * n, 255 - 20 * n, 7)).save(tmp_path / f"{n}.png")
    return tmp_path


def test_every_format_gives_the_same_records(folder):
    found = {}
    for name, (make, _) in WRITERS.items():
        (folder / name).mkdir()
        for n in range(12):
            (folder / name / f"{n}.png").write_bytes((folder / f"{n}.png").read_bytes())
        found[name] = frozenset(record_digests(read_demonstrations(make(folder / name, PLAIN))))
    assert len(set(found.values())) == 1, found.keys()
    assert len(next(iter(found.values()))) == 12


def test_what_tells_records_apart(folder):
    row = Demonstration(folder / "1.png", "Which View?", "lateral", unit="a", place=(1, 1))
    (one,) = record_digests([row])
    os.link(folder / "1.png", folder / "other name.png")
    same = [
        replace(row, unit="b", place=(2, 7), task="t", accepted=("lateral", "side")),
        replace(row, question="which  view?\n", answer=" Lateral"),
        replace(row, image=str(folder / "other name.png")),
    ]
    assert record_digests(same) == [one] * 3
    others = [
        replace(row, question="Which views?"),
        replace(row, answer="frontal"),
        replace(row, question="Which View? lateral", answer=""),
        replace(row, image=folder / "2.png"),
        replace(row, image=(folder / "1.png", folder / "1.png")),
    ]
    assert len({one, *record_digests(others)}) == 6


def test_pictures_in_memory_are_told_apart():
    pictures = [Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")]
    pictures += [Image.new("RGB", (2, 8), "red"), Image.new("RGB", (4, 4), "red")]
    digests = record_digests([Demonstration(image, "q", "a") for image in pictures])
    assert digests[0] == digests[3]
    assert len(set(digests)) == 3


def test_rows_that_cannot_serve_have_no_fingerprint_and_stop_nothing(folder):
    os.mkfifo(folder / "pipe.png")  # opening it would wait for ever

    class Damaged:
        place = ("file", 1)

        def read(self):
            raise RuntimeError("a foreign library")

    bad = [folder / "none.png", folder / "pipe.png", folder, "\0", Damaged()]
    rows = [Demonstration(image, "q", "a") for image in bad]
    assert record_digests([BadRow(1, "empty line"), *rows]) == []
