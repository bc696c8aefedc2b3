"""Records whose pictures are found by listing a folder: class folders and VQA-v2."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpmtv.data.stored import Record
from dpmtv.data.turns import Bad
from dpmtv.data.values import composed, is_text, unit_name, written
from dpmtv.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dpmtv.data.textfiles import JsonDocument

PICTURES = (  # every ending of images.FORMATS, and of DICOM
    *(".apng", ".avif", ".avifs", ".bmp", ".bw", ".dcm", ".dds", ".dicom", ".gif", ".icb"),
    *(".icns", ".ico", ".j2c", ".j2k", ".jfif", ".jp2", ".jpc", ".jpe", ".jpeg", ".jpf"),
    *(".jpg", ".jpx", ".mpo", ".pbm", ".pcx", ".pfm", ".pgm", ".png", ".pnm", ".ppm", ".qoi"),
    *(".rgb", ".rgba", ".sgi", ".tga", ".tif", ".tiff", ".vda", ".vst", ".webp"),
)
ONE_OF = "What is shown in this image? Answer with one of: {classes}."
TWO_WAYS = (
    "The first image shows {first}, the second shows {second}. "
    "Does the third show {first} or {second}?"
)
_KEY = b"dpmtv class folders"  # public: pictures are put together by their place alone


def listing(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder, by name; hidden things left out.

    Raises:
        DataError: it cannot be listed.
    """
    found = None
    try:
        with os.scandir(folder) as entries:
            found = sorted((e for e in entries if e.name[0] != "."), key=lambda e: e.name)
    except (OSError, ValueError):
        pass
    if found is None:
        raise DataError(f"{folder} cannot be listed. Check that it is a folder you may read.")
    return found


def pictures(folder: Path, inside: str = "") -> list[str]:
    """Paths of the image files in a folder inside ``folder``, from there, by name."""
    names = [entry.name for entry in listing(folder / inside)]
    return [os.path.join(inside, n) for n in names if os.path.splitext(n)[1].lower() in PICTURES]


class ClassFolders:
    """A folder for every class. Classes, file names and their number are public.

    Args:
        folder: holds the folders of the classes.
        ways: None for one picture a record, asked which class it is; 2 for a picture of one class,
            one of another, and a third that is of one of them.
        question: asked instead of ours; ``{classes}``, ``{first}``, ``{second}`` are filled in.
    """

    def __init__(self, folder: Path, ways: int | None, question: str | None) -> None:
        self.place = (str(folder),)
        found = [
            (composed(e.name.replace("_", " ")), pictures(folder, e.name))
            for e in listing(folder)
            if os.path.isdir(e.path)
        ]
        self._classes = dict(sorted((name, files) for name, files in found if files))
        if len(self._classes) < len([files for _, files in found if files]):
            raise DataError(f"{folder} has two class folders of one name, but for underscores.")
        if len(self._classes) < 2:
            raise DataError(f"{folder} holds fewer than two folders with images: one a class.")
        self._ways = ways
        self._question = question or (ONE_OF if ways is None else TWO_WAYS)

    def records(self) -> Iterator[Record]:
        """One picture each, or three, by rules that see no content."""
        for number, fields in enumerate(self._singles() if self._ways is None else self._triples()):
            yield Record(number + 1, fields)

    def again(self, place: tuple[int, ...]) -> Any:
        """No image of a folder lies inside a record."""
        raise ValueError

    def _asked(self, names: list[str]) -> str:
        filled = {"{classes}": ", ".join(names), "{first}": names[0], "{second}": names[1]}
        return re.sub(r"\{(classes|first|second)\}", lambda m: filled[m[0]], self._question)

    def _singles(self) -> Iterator[dict[str, Any]]:
        question = self._asked(list(self._classes))
        for name, files in self._classes.items():
            for file in files:
                yield {"image": file, "question": question, "answer": name}

    def _triples(self) -> Iterator[dict[str, Any]]:
        """Every picture serves once. The fullest class is asked for, until no three are left."""
        left = {name: list(reversed(files)) for name, files in self._classes.items()}
        slot = 0
        while True:
            answer = max(left, key=lambda name: len(left[name]))  # the first of equals
            others = [name for name in left if left[name] and name != answer]
            if len(left[answer]) < 2 or not others:
                return
            drawn = hashlib.blake2b(slot.to_bytes(8, "big"), key=_KEY).digest()
            other = others[int.from_bytes(drawn[:8], "big") % len(others)]
            pair = [answer, other] if drawn[8] % 2 else [other, answer]
            images = [left[name].pop() for name in [*pair, answer]]
            yield {"images": images, "question": self._asked(pair), "answer": answer}
            slot += 1


class VqaFile:
    """A questions file or an annotations file of VQA-v2, or one that holds both."""

    def __init__(self, document: JsonDocument) -> None:
        self.path, self.place = document.path, document.place
        self.questions: list[dict[str, Any] | str] = []
        self.annotations: dict[str, dict[str, Any]] = {}
        there = set()
        for name, record in document.elements():
            there.add(name)
            if name == "questions":
                self.questions.append(record.fields)
            elif name == "annotations" and isinstance(record.fields, dict):
                key = _id(record.fields.get("question_id"))
                if key is not None:
                    kept = ("answers", "multiple_choice_answer")
                    self.annotations.setdefault(key, {n: record.fields.get(n) for n in kept})
        self.asks, self.answers = "questions" in there, "annotations" in there
        if not (self.asks or self.answers):
            if _is_report(document.path):
                raise DataError(f"{self.path} is a build report, not data.")
            raise DataError(
                f"{self.path} is one JSON object that lists neither questions nor annotations. "
                "For one object a line, name the format: jsonl."
            )


class Vqa:
    """Questions with the annotations that have their ids.

    A record is what stands under one question id; the list of ids is public.
    """

    def __init__(self, questions: VqaFile, annotations: VqaFile, folder: Path) -> None:
        self.place = questions.place
        self._questions, self._annotations = questions.questions, annotations.annotations
        self._named: dict[str, list[str]] = {}
        self._numbered: dict[str, list[str]] = {}
        below = [entry.name for entry in listing(folder) if os.path.isdir(entry.path)]
        for file in [file for inside in ("", *below) for file in pictures(folder, inside)]:
            stem = composed(os.path.splitext(os.path.basename(file))[0])
            self._named.setdefault(stem, []).append(file)
            self._numbered.setdefault(_number(stem), []).append(file)

    def _picture(self, image: str) -> str | Bad:
        """The file of that very name, else of that number; which of two is meant no rule tells."""
        found = self._named.get(image) or self._numbered.get(_number(image), [])
        if len(found) == 1:
            return found[0]
        return Bad("two image files fit" if found else "image file missing")

    def records(self) -> Iterator[Record]:
        """All questions in order."""
        seen = set()
        for number, asked in enumerate(self._questions, start=1):
            fields: dict[str, Any] | str = asked
            if isinstance(asked, dict):
                key = _id(asked.get("question_id"))
                image = written(asked.get("image_id"))
                if key is None or key in seen:
                    fields = "no question_id" if key is None else "question_id given before"
                else:
                    seen.add(key)
                    answer = self._annotations.get(key) or {}
                    fields = {
                        **asked,
                        "id": key,
                        "image": self._picture(composed(image)) if is_text(image) else None,
                        "answers": answer.get("answers"),
                        "answer": answer.get("multiple_choice_answer"),
                    }
            yield Record(number, fields)

    def again(self, place: tuple[int, ...]) -> Any:
        """No image of VQA-v2 lies inside a record."""
        raise ValueError


def _is_report(path: Path) -> bool:
    """Whether it is what `dpmtv.data.work.write_report` writes."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and {"private", "bad_rows"} <= content.keys()


def _number(stem: str) -> str:
    """COCO_train2014_000000000139 → 139; other names stay."""
    if len(stem) > 255:  # no file is called so; and Python reads no number of that length
        return stem
    before, _, last = stem.rpartition("_")
    digits = last if before.startswith("COCO_") else stem
    return (digits.lstrip("0") or "0") if digits.isdecimal() else stem


def _id(value: Any) -> str | None:
    value = unit_name(value)
    return value if is_text(value) and value else None
