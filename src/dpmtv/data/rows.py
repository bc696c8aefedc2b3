"""From a record, in any of the usual shapes, to demonstrations."""

from __future__ import annotations

import os
import re
import urllib.parse
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpmtv.data.stored import DATA_URI, InRecord, inner_images
from dpmtv.data.turns import CONVERSATIONS, IMAGE_FIELDS, Bad, Turn, turns_of
from dpmtv.data.values import MAX_TEXT, composed, is_blank, is_text, unit_name, written
from dpmtv.types import Demonstration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dpmtv.data.stored import Container, Record
    from dpmtv.types import ImageSource

FIELDS = (*IMAGE_FIELDS, *CONVERSATIONS, "question", "answer", "answers", "options", "task", "id")
LISTS = ("images", "file_names", "images_file_names", *CONVERSATIONS, "answers", "options")
_SHORT = 200  # characters of a name or a number of a client
_PATH = 4096  # characters of a path; no system takes longer ones

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used. It keeps its place, so that every other row keeps its own.

    Args:
        row: number of the record in its file, from 1; of a JSONL file, the line.
        reason: one of "empty line", "not UTF-8", "not in its encoding", "not JSON",
            "not an object", "wrong number of columns", "cannot be read", "too long"; "no F" and
            "F is not text" with F one of image, question, answer, options, unit (and task for
            the second); "question is too long", "answer is too long"; "answers is not a list",
            "options is not a list", "conversation is not a list"; "no question_id",
            "question_id given before"; "image is a web address", "image data is not base64",
            "image file missing", "two image files fit", "image unreadable". Never a
            word of the row itself.
        unit: whom the row belongs to, where units are read and this one can be.
        file: which of the files that were named together, from 1.
    """

    row: int
    reason: str
    unit: str | None = field(default=None, repr=False)
    file: int = 1

    @property
    def place(self) -> tuple[int, int]:
        """File and row."""
        return self.file, self.row


@dataclass(frozen=True)
class Shape:
    """How the records of one file are to be understood: nothing here comes from a record.

    Args:
        container: the file.
        folder: where relative image paths start.
        unit: field that names the unit.
        answers: "majority", "first" or "all".
        columns: our name of a field → the file's.
        file: number of the file.
    """

    container: Container
    folder: Path
    unit: str | None
    answers: str
    columns: Mapping[str, str]
    file: int


def entries_of(record: Record, shape: Shape) -> list[Demonstration | BadRow]:
    """What one record gives: one entry; where units are named, one for every turn of a talk."""
    owner = None

    def attempt(make: Callable[[], Any]) -> Any:
        try:
            return make()
        except Bad as bad:
            return BadRow(record.number, str(bad), owner, shape.file)

    fields = record.fields
    if isinstance(fields, str):
        return [BadRow(record.number, fields, None, shape.file)]
    if shape.unit is not None:
        found = attempt(lambda: _unit(fields.get(str(shape.unit))))
        if isinstance(found, BadRow):
            return [found]
        owner = found
    named = {name: fields.get(shape.columns.get(name, name)) for name in FIELDS}
    turns = attempt(lambda: turns_of(named, first=shape.unit is None))
    if isinstance(turns, BadRow):
        return [turns]
    sources = _Sources(record, shape)
    return [
        attempt(lambda turn=turn: _demonstration(turn, named, owner, sources))  # type: ignore[misc]
        for turn in turns
    ]


def id_of(record: Record, shape: Shape) -> str | None:
    """The record's ``id``, where it has one that is text or a number."""
    if isinstance(record.fields, str):
        return None
    value = unit_name(record.fields.get(shape.columns.get("id", "id")))
    return value if is_text(value) else None


def others_of(record: Record, shape: Shape) -> dict[str, str]:
    """Fields that are none of ours, where they hold whole numbers or short text."""
    if isinstance(record.fields, str):
        return {}
    ours = {shape.columns.get(name, name) for name in FIELDS} | {shape.unit}
    return {
        name: unit_name(value)
        for name, value in record.fields.items()
        if name not in ours
        and (type(value) is int or (isinstance(value, str) and 0 < len(value) <= _SHORT))
    }


def _unit(value: Any) -> str:
    value = unit_name(value)
    if is_blank(value):
        raise Bad("no unit")
    if not is_text(value):
        raise Bad("unit is not text")
    return str(value)


def _demonstration(
    turn: Turn, named: Mapping[str, Any], owner: str | None, sources: _Sources
) -> Demonstration:
    if not turn.images:
        raise Bad("no image")
    question = _text(turn.question, "question")
    answer, accepted = _answer(turn, sources.shape.answers)
    options = named["options"]
    if options is not None:
        if not isinstance(options, list):
            raise Bad("options is not a list")
        listed = ", ".join(_text(written(option), "options") for option in options)
        question = f"{question}\nOptions: {listed}." if listed else question
    task = None if is_blank(named["task"]) else unit_name(named["task"])
    if task is not None and not is_text(task):
        raise Bad("task is not text")
    images = tuple(sources.of(image) for image in turn.images)
    image = images if len(images) > 1 else images[0]
    place = (sources.shape.file, sources.record.number)
    return Demonstration(image, question, answer, task, owner, accepted, place)


def _answer(turn: Turn, rule: str) -> tuple[str, tuple[str, ...]]:
    """The answer to show and all that count as right. ``answer`` beside ``answers`` leads them."""
    if turn.answers is None or (rule == "majority" and not is_blank(turn.answer)):
        return _text(written(turn.answer), "answer"), ()
    if not isinstance(turn.answers, list):
        raise Bad("answers is not a list")
    values = [v.get("answer") if isinstance(v, dict) else v for v in turn.answers]
    texts = [_text(written(value), "answer") for value in values if not is_blank(value)]
    if rule == "first" and texts:
        return texts[0], ()
    leading = [] if is_blank(turn.answer) else [_text(written(turn.answer), "answer")]
    if not leading + texts:
        raise Bad("no answer")
    spelt: dict[str, str] = {}
    for text in leading + texts:
        spelt.setdefault(_spelling(text), text)
    accepted = tuple(spelt.values()) if rule == "all" and len(spelt) > 1 else ()
    return leading[0] if leading else spelt[_commonest(texts)], accepted


def _commonest(texts: Sequence[str]) -> str:
    """The commonest spelling of the commonest answer; of equals the one given first."""
    spellings = [_spelling(text) for text in texts]
    answers = [composed(spelling.casefold()) for spelling in spellings]
    answer = Counter(answers).most_common(1)[0][0]
    votes = Counter(s for s, a in zip(spellings, answers, strict=True) if a == answer)
    return votes.most_common(1)[0][0]


def _spelling(text: str) -> str:
    return " ".join(text.split())


def _text(value: Any, name: str) -> str:
    if is_blank(value):
        raise Bad(f"no {name}")
    if not is_text(value):
        raise Bad(f"{name} is not text")
    if len(value) > MAX_TEXT:
        raise Bad(f"{name} is too long")
    return composed(str(value)).replace("\r\n", "\n").replace("\r", "\n")


class _Sources:
    """Where the images of one record are; each is looked for once, however often it is named."""

    def __init__(self, record: Record, shape: Shape) -> None:
        self.record, self.shape = record, shape
        self._files: dict[str, Path] = {}
        self._inner: dict[int, int] = {}  # id of what is an image itself → its number

    def of(self, reference: str | bytes) -> ImageSource:
        """The image that a record names or holds."""
        if isinstance(reference, bytes) or reference[:5].lower() == "data:":
            if isinstance(reference, str) and not DATA_URI.match(reference):
                raise Bad("image data is not base64")
            if not self._inner:
                for number, value in enumerate(inner_images(self.record.fields)):
                    self._inner.setdefault(id(value), number)
            return InRecord(self.shape.container, self.record.place, self._inner[id(reference)])
        if reference not in self._files:
            self._files[reference] = _file(reference, self.shape.folder)
        return self._files[reference]


def _file(reference: str, folder: Path) -> Path:
    if reference[:5].lower() == "file:":
        reference = re.sub(r"^(//localhost|//)(?=/)", "", reference[5:], flags=re.IGNORECASE)
        if reference.startswith("//"):
            raise Bad("image is a web address")
        reference = urllib.parse.unquote(reference)
    elif _ADDRESS.match(reference):
        raise Bad("image is a web address")
    if len(reference) <= _PATH:
        # As given; as Windows would have it read; as a Mac writes letters, and as all others do.
        names = [reference, reference.replace("\\", "/")]
        names += [composed(name, form) for form in ("NFC", "NFD") for name in names]
        for name in dict.fromkeys(names):
            path = folder / name
            if os.path.isfile(path):
                return path
    raise Bad("image file missing")
