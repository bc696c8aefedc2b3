"""Files of image-question-answer records, read row by row."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpmtv.data.formats import ReadOptions, iter_entries
from dpmtv.data.images import UnreadableImage, load_image
from dpmtv.data.rows import BadRow as BadRow
from dpmtv.data.values import is_blank, unit_name
from dpmtv.errors import DataError
from dpmtv.types import Demonstration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dpmtv.types import ImageSource

_SHOWN = 10  # bad rows that a message lists


def read_demonstrations(
    paths: Path | str | Sequence[Path | str],
    *,
    unit: str | None = None,
    format: str | None = None,
    answers: str = "majority",
    encoding: str | None = None,
    images: Path | str | None = None,
    question: str | None = None,
    ways: int | None = None,
    columns: Mapping[str, str] | None = None,
    split: str | None = None,
) -> list[Demonstration | BadRow]:
    """Read image-question-answer records from a file or folder, or from several.

    The simplest is JSONL: one object a line with ``image`` (or a list, ``images``), ``question``
    and ``answer``. docs/formats tells of the others.

    Every record is an entry of the result, good or bad, blank lines included: what stands in a
    record decides neither the number of entries nor what the others are. Images are not opened,
    see `check_images`.

    Args:
        paths: one file or folder, or several, whose entries follow each other.
        unit: the field that tells whom a record belongs to, text or a number
            (`dpmtv.data.values.unit_name` says which values are one). A record without it is a bad
            row without a unit, even where the rest could be used. Every turn of a conversation is
            an entry then; without units the first turn alone is.
        format: one of `dpmtv.data.formats.FORMATS`, where the path does not tell it.
        answers: which of several answers is shown: "majority" (ties go to the one that is given
            first), "first", or "all": the majority is shown and all are ``accepted``.
        encoding: of text files; without it the byte order mark decides, and else it is UTF-8.
        images: the folder where image paths start; without it, the folder of the file.
        question: for class folders, instead of the usual one; ``{classes}`` stands for the names.
        ways: for class folders, 2: three pictures a record, of which the third is to be named.
        columns: our name of a field → the name it has in the file.
        split: of a Hugging Face dataset.

    Raises:
        DataError: a file is not there, cannot be read as what it is, or holds no records.
        UserError: an option does not go with these files, or a package is missing.
    """
    options = ReadOptions(
        unit=unit,
        format=format,
        answers=answers,
        encoding=encoding,
        images=images,
        question=question,
        ways=ways,
        columns=columns,
        split=split,
    )
    return [found.entry for found in iter_entries(paths, options)]


def iter_demonstrations(
    paths: Path | str | Sequence[Path | str], **options: Any
) -> Iterator[Demonstration | BadRow]:
    """The same one by one, for files too long to hold; options as of `read_demonstrations`."""
    return (found.entry for found in iter_entries(paths, ReadOptions(**options)))


def group_by_unit(
    rows: Sequence[Demonstration | BadRow],
) -> dict[str, list[Demonstration | BadRow]]:
    """Unit → its rows, in the order of the file; units in the order of their first rows.

    Units are one by `dpmtv.data.values.unit_name`, rows made without a reader included.

    A file stands for a list of units. Neighbouring lists differ in one unit, so every row has to
    say whose it is: one that does not could be anybody's.

    Raises:
        DataError: a row without a unit, by number. Which rows these are is told to the operator,
            and no guarantee covers that.
    """
    lost = [row.place or (1, n) for n, row in enumerate(rows, start=1) if is_blank(row.unit)]
    if lost:
        several = any(file > 1 for file, _ in lost)
        named = [f"file {f} row {r}" if several else f"{r}" for f, r in lost[:_SHOWN]]
        shown = ", ".join(named) + (" …" if len(lost) > _SHOWN else "")
        raise DataError(
            f"{len(lost)} row{'s' if len(lost) > 1 else ''} without a unit that can be read: "
            f"{shown}. Every row must say whose it is."
        )
    units: dict[str, list[Demonstration | BadRow]] = {}
    for row in rows:
        units.setdefault(unit_name(row.unit), []).append(row)
    return units


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
            file, place = row.place or (1, number)
            bad.append(BadRow(place, "image unreadable", row.unit, file))
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
        files = any(row.file > 1 for row in bad)
        listed = ", ".join(
            f"{f'file {row.file} ' if files else ''}row {row.row} ({row.reason})"
            for row in bad[:_SHOWN]
        )
        more = f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
        raise DataError(
            f"{what} has {len(bad)} bad row{'s' if len(bad) > 1 else ''}: {listed}{more}. "
            "Correct or remove them."
        )
    return [row for row in rows if isinstance(row, Demonstration)]
