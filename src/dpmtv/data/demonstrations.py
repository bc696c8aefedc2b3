"""Files of image-question-answer records, read row by row."""

from __future__ import annotations

import codecs
import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpmtv.data.images import UnreadableImage, load_image
from dpmtv.errors import DataError
from dpmtv.types import Demonstration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpmtv.types import ImageSource

_SHOWN = 10  # bad rows that a message lists


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used. It keeps its place, so that every other row keeps its own.

    Args:
        row: line number in the file, from 1.
        reason: one of "empty line", "not UTF-8", "not JSON", "not an object"; "no F" and
            "F is not text" with F one of image, question, answer, unit (and task for the second);
            "image file missing", "image unreadable". Never a word of the row itself.
        unit: whom the row belongs to, where units are read and this one can be.
    """

    row: int
    reason: str
    unit: str | None = field(default=None, repr=False)


def read_demonstrations(
    path: Path | str, *, unit: str | None = None
) -> list[Demonstration | BadRow]:
    """Read a JSONL file: one object a line with ``image``, ``question`` and ``answer``.

    ``image`` is a path, relative to the file's folder or absolute; all three are text that is not
    blank. ``task`` is text or a whole number and optional; other keys are ignored. UTF-8, with or
    without a byte order mark; lines end with a line feed, or a carriage return and a line feed.

    Every line is an entry of the result, good or bad, blank lines included: what stands in a row
    decides neither the number of rows nor what the other entries are. Images are not opened, see
    `check_images`.

    Args:
        path: the file.
        unit: the field that tells whom a record belongs to, text or a whole number. A row
            without it is a bad row without a unit, even where the rest could be used.

    Raises:
        DataError: there is no such file, it cannot be read, or it is empty.
    """
    path = Path(path)
    data, problem = b"", None
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        problem = "does not exist. Check the path"
    except IsADirectoryError:
        problem = "is a folder. Name the JSONL file inside it"
    except (OSError, ValueError):  # ValueError: a null character in the path
        problem = "cannot be read. Check the path and its permissions"
    data = data.removeprefix(codecs.BOM_UTF8)
    lines = data.removesuffix(b"\n").split(b"\n")
    if problem is None and not data.strip():
        problem = "is empty. Write one JSON object a line, with image, question and answer"
    if problem is not None:
        raise DataError(f"{path} {problem}.")
    rows = (_read_row(n, line, path.parent, unit) for n, line in enumerate(lines, start=1))
    return list(rows)


def _read_row(number: int, line: bytes, folder: Path, unit: str | None) -> Demonstration | BadRow:
    if not line.strip():
        return BadRow(number, "empty line")
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        return BadRow(number, "not UTF-8")
    except (ValueError, RecursionError):  # ValueError also for integers of absurd length
        return BadRow(number, "not JSON")
    if not isinstance(record, dict):
        return BadRow(number, "not an object")
    owner = None
    if unit is not None:
        owner = record.get(unit)
        owner = str(owner) if type(owner) is int else owner
        if owner is None or (isinstance(owner, str) and not owner.strip()):
            return BadRow(number, "no unit")
        if not _is_text(owner):
            return BadRow(number, "unit is not text")
    row = _read_fields(number, record, folder)
    return row if owner is None else replace(row, unit=owner)


def _read_fields(number: int, record: dict[str, Any], folder: Path) -> Demonstration | BadRow:
    for name in ("image", "question", "answer"):
        value = record.get(name)
        if value is None or (isinstance(value, str) and not value.strip()):
            return BadRow(number, f"no {name}")
        if not _is_text(value):
            return BadRow(number, f"{name} is not text")
    task = record.get("task")
    task = str(task) if type(task) is int else task
    if task is not None and not _is_text(task):
        return BadRow(number, "task is not text")
    image = folder / record["image"]
    if not os.path.isfile(image):
        return BadRow(number, "image file missing")
    return Demonstration(image, record["question"], record["answer"], task)


def group_by_unit(
    rows: Sequence[Demonstration | BadRow],
) -> dict[str, list[Demonstration | BadRow]]:
    """Unit → its rows, in the order of the file; units in the order of their first rows.

    A file stands for a list of units. Neighbouring lists differ in one unit, so every row has to
    say whose it is: one that does not could be anybody's.

    Raises:
        DataError: a row without a unit, by number. Which rows these are is told to the operator,
            and no guarantee covers that.
    """
    lost = [n for n, row in enumerate(rows, start=1) if row.unit is None]
    if lost:
        shown = ", ".join(map(str, lost[:_SHOWN])) + (" …" if len(lost) > _SHOWN else "")
        raise DataError(
            f"{len(lost)} row{'s' if len(lost) > 1 else ''} without a unit that can be read: "
            f"{shown}. Every row must say whose it is."
        )
    units: dict[str, list[Demonstration | BadRow]] = {}
    for row in rows:
        units.setdefault(str(row.unit), []).append(row)
    return units


def _is_text(value: Any) -> bool:
    """Whether ``value`` is a string that a tokenizer can take: JSON can spell half characters."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def check_images(rows: Sequence[Demonstration | BadRow]) -> list[BadRow]:
    """Decode every image once and return all bad rows of a file, those read as bad included.

    For files that may be talked about: public and test files, and the operator's own check.

    Args:
        rows: all rows of a file, in order, as `read_demonstrations` gives them.
    """
    readable: dict[object, bool] = {}  # one image often serves many questions
    bad = []
    for number, row in enumerate(rows, start=1):
        if isinstance(row, BadRow):
            bad.append(row)
        elif not all(_is_readable(image, readable) for image in row.images):
            bad.append(BadRow(number, "image unreadable"))
    return bad


def _is_readable(image: ImageSource, known: dict[object, bool]) -> bool:
    key = image if isinstance(image, Path | str) else getattr(image, "place", id(image))
    if key not in known:
        try:
            load_image(image)
            known[key] = True
        except UnreadableImage:
            known[key] = False
    return known[key]


def require_good(rows: Sequence[Demonstration | BadRow], what: str) -> list[Demonstration]:
    """The rows as demonstrations, or one error that names the bad ones.

    For public and test files, and for the operator's own checks of private ones: whether and
    where rows are bad is content, and no guarantee covers this error.

    Args:
        rows: all rows of a file, or its bad ones alone.
        what: how to call the file in the message, such as "the public file".

    Raises:
        DataError: with the first ten bad row numbers, the reasons, and how many there are.
    """
    bad = [row for row in rows if isinstance(row, BadRow)]
    if bad:
        listed = ", ".join(f"row {row.row} ({row.reason})" for row in bad[:_SHOWN])
        more = f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
        raise DataError(
            f"{what} has {len(bad)} bad row{'s' if len(bad) > 1 else ''}: {listed}{more}. "
            "Correct or remove them."
        )
    return [row for row in rows if isinstance(row, Demonstration)]
