"""Which format a file of records has, and its records as demonstrations."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dpmtv.data.folders import ClassFolders, Vqa, VqaFile, listing
from dpmtv.data.rows import FIELDS, BadRow, Shape, entries_of, id_of, others_of
from dpmtv.data.tables import Csv, Dataset, Parquet
from dpmtv.data.textfiles import JsonDocument, JsonLines, TextFile, open_file
from dpmtv.data.values import composed
from dpmtv.errors import DataError, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dpmtv.data.stored import Container, Record
    from dpmtv.types import Demonstration

FORMATS = {
    "jsonl": "one JSON object a line (.jsonl, .ndjson)",
    "json": "one JSON list of records (.json)",
    "vqa": "VQA-v2: a questions file and an annotations file (.json)",
    "csv": "a table with a header line (.csv, .tsv)",
    "parquet": "a Parquet table (.parquet)",
    "metadata": "a folder with metadata.jsonl, metadata.csv or metadata.parquet",
    "classes": "a folder with one folder of images for every class",
    "datasets": "a saved Hugging Face dataset, or hf://name of one on the Hub",
}
"""Names of the formats and what they look like. The shape of a record is its own matter."""

_ENDINGS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_METADATA = ("metadata.jsonl", "metadata.csv", "metadata.parquet")
_RULES = ("majority", "first", "all")
MEANT_FOR = {
    "unit": {*FORMATS} - {"classes"},
    "columns": {*FORMATS} - {"classes", "vqa"},
    "encoding": {"jsonl", "json", "vqa", "csv", "metadata"},
    "images": {*FORMATS} - {"classes"},
    "question": {"classes"},
    "ways": {"classes"},
    "split": {"datasets"},
}
"""Which formats an option means something for; it is refused where none of the files has one."""


@dataclass(frozen=True)
class ReadOptions:
    """How to read files of records; the meaning of each is told at `read_demonstrations`."""

    unit: str | None = None
    format: str | None = None
    answers: str = "majority"
    encoding: str | None = None
    images: Path | str | None = None
    question: str | None = None
    ways: int | None = None
    columns: Mapping[str, str] | None = None
    split: str | None = None

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in FORMATS:
            raise UserError(f"format {self.format!r} is not known; one of {', '.join(FORMATS)}")
        if self.answers not in _RULES:
            raise UserError(f"answers {self.answers!r} is not known; one of {', '.join(_RULES)}")
        if self.ways not in (None, 2):
            raise UserError("ways is 2, or left out")
        unknown = [name for name in self.columns or () if name not in FIELDS]
        if unknown:
            raise UserError(
                f"columns: {', '.join(map(repr, unknown))} is none of our fields; these are "
                f"{', '.join(FIELDS)}. The field of the unit is named with unit."
            )


@dataclass(frozen=True)
class Entry:
    """One entry of the result, and where it comes from.

    Args:
        file: which of the files, from 1.
        row: number of the record in its file, from 1.
        entry: the demonstration, or why there is none.
        id: the record's ``id``, where it has one. Nothing is decided by it.
        others: short values of fields that are none of ours; one of them may name units.
    """

    file: int
    row: int
    entry: Demonstration | BadRow = field(repr=False)
    id: str | None = field(default=None, repr=False)
    others: Mapping[str, str] = field(default_factory=dict, repr=False)


def iter_entries(
    paths: Path | str | Sequence[Path | str], options: ReadOptions | None = None
) -> Iterator[Entry]:
    """Read files one record after the other, without holding them.

    Args:
        paths: one file, or several; their entries come in this order.
        options: how.

    Raises:
        DataError: a file is not there, cannot be read as what it is, or holds no records.
        UserError: an option does not go with these files, or a package is missing.
    """
    options = _composed(options or ReadOptions())
    named = [paths] if isinstance(paths, str | Path) else list(paths)
    formats = [options.format or detect_format(path) for path in named]
    _check(named, formats, options)
    for number, (container, folder) in _opened(named, formats, options):
        shape = Shape(
            container=container,
            folder=Path(options.images) if options.images is not None else folder,
            unit=options.unit,
            answers=options.answers,
            columns=options.columns or {},
            file=number,
        )
        empty = True
        for record in map(_by_name, container.records()):
            empty = False
            own, others = id_of(record, shape), others_of(record, shape)
            for entry in entries_of(record, shape):
                yield Entry(number, record.number, entry, own, others)
        if empty:
            raise DataError(f"{named[number - 1]} holds no records.")


def _composed(options: ReadOptions) -> ReadOptions:
    """With the names of fields in one Unicode form, as `_by_name` has them."""
    unit = None if options.unit is None else composed(options.unit)
    columns = {ours: composed(theirs) for ours, theirs in (options.columns or {}).items()}
    return replace(options, unit=unit, columns=columns or None)


def _by_name(record: Record) -> Record:
    fields = record.fields
    if isinstance(fields, str) or all(map(str.isascii, fields)):
        return record
    return replace(record, fields={composed(name): value for name, value in fields.items()})


def detect_format(path: Path | str) -> str:
    """One of `FORMATS`, by the kind of the path, its ending, or how the file begins.

    Never by what stands in a record: one record would decide how the others are read.

    Raises:
        DataError: there is no such file, or it is none of them.
    """
    if str(path).startswith("hf:/"):
        return "datasets"
    path = Path(path)
    if os.path.isdir(path):
        return _kind_of_folder(path)
    with open_file(path) as file:
        ending = path.suffix.lower()
        if ending in _ENDINGS:
            return _ENDINGS[ending]
        start = file.read(4096)
    if start.startswith(b"PAR1"):
        return "parquet"
    if ending == ".json":
        # Of a document the bracket around all records; only zeros and marks come before it.
        bracket = start.lstrip(b" \t\r\n\0\xef\xbb\xbf\xfe\xff")[:1]
        return "vqa" if bracket == b"{" else "json"
    raise DataError(f"{path} has no format that its name tells. {_known()}")


def data_file(path: Path | str) -> Path:
    """The real file or folder that names a data set, so that one set has one name.

    A metadata folder and the metadata file in it are the same data: both give the file. Links are
    followed. A name on the Hub stays as it is.
    """
    path = Path(path)
    if str(path).startswith("hf:/") or "\0" in str(path):
        return path
    real = Path(os.path.realpath(path))
    try:
        folder = os.path.isdir(real) and _kind_of_folder(real) == "metadata"
    except DataError:  # reading it will say so
        folder = False
    return Path(os.path.realpath(_metadata_file(real) or real)) if folder else real


def same_data(path: Path | str) -> set[object]:
    """What tells that two paths are one data set, whatever links lead there: any of these."""
    real = data_file(path)
    try:
        at = os.stat(real)
    except (OSError, ValueError):  # reading it will say so
        return {real}
    return {real, (at.st_dev, at.st_ino)}


def _metadata_file(folder: Path) -> Path | None:
    there = (folder / name for name in _METADATA)
    return next((file for file in there if os.path.exists(file)), None)


def _kind_of_folder(path: Path) -> str:
    names = {entry.name: os.path.isdir(entry.path) for entry in listing(path)}
    if "dataset_dict.json" in names or {"state.json", "dataset_info.json"} <= names.keys():
        return "datasets"
    if any(name in names for name in _METADATA):
        return "metadata"
    folders = [path / name for name, is_folder in names.items() if is_folder]
    inside = [str(folder) for folder in folders if _metadata_file(folder)]
    if inside:  # splits: as class folders, their names would be the answers
        raise DataError(f"{path} holds no records itself: name the folder inside: {_few(inside)}.")
    if folders:
        return "classes"
    raise DataError(f"{path} is a folder, and none that holds records. {_known()}")


def _known() -> str:
    return f"Name the format, one of: {', '.join(FORMATS)}; see docs/formats."


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


def _check(named: Sequence[Path | str], formats: Sequence[str], options: ReadOptions) -> None:
    if not named:
        raise UserError("no file is named")
    for option, meant_for in MEANT_FOR.items():
        value = getattr(options, option)
        if value is not None and not meant_for & {*formats}:
            raise UserError(f"{option} means nothing for the format {formats[0]}")
    if options.unit is not None and "classes" in formats:
        raise UserError("class folders do not say whose a picture is: leave unit out")
    known: set[object] = set()
    for path in named:
        if known & (names := same_data(path)):
            raise DataError(f"{path} is named twice.")
        known |= names
    if options.images is not None and not os.path.isdir(options.images):
        raise DataError(f"{options.images} is not a folder of images.")


def _opened(
    named: Sequence[Path | str], formats: Sequence[str], options: ReadOptions
) -> Iterator[tuple[int, tuple[Container, Path]]]:
    """Number of a file, its records, and where its images are."""
    loaded = {
        number: VqaFile(JsonDocument(TextFile(Path(path), options.encoding)))
        for number, (path, format) in enumerate(zip(named, formats, strict=True), start=1)
        if format == "vqa"
    }
    asking = [number for number, file in loaded.items() if file.asks]
    answering = [number for number, file in loaded.items() if file.answers]
    if len(asking) != len(answering):
        raise DataError(
            f"{named[min(loaded) - 1]}: of VQA-v2, name the file of questions and the file of "
            "annotations together."
        )
    pairs = dict(zip(asking, answering, strict=True))
    for number, (path, format) in enumerate(zip(named, formats, strict=True), start=1):
        if number in pairs:
            folder = Path(options.images or Path(path).parent)
            yield number, (Vqa(loaded[number], loaded[pairs[number]], folder), folder)
        elif number not in loaded:
            yield number, _open(path, format, options)


def _open(path: Path | str, format: str, options: ReadOptions) -> tuple[Container, Path]:
    unit, columns = options.unit, options.columns or {}
    if format == "datasets":
        data = Dataset(path, options.split, unit, columns)
        return data, Path(path) if os.path.isdir(path) else Path()
    path = Path(path)
    if format == "classes":
        return ClassFolders(path, options.ways, options.question), path
    if format == "metadata":
        there = _metadata_file(path)
        if there is None:
            raise DataError(f"{path} holds none of {', '.join(_METADATA)}.")
        path = there
        format = _ENDINGS[path.suffix]
    if format == "parquet":
        return Parquet(path, unit, columns), path.parent
    text = TextFile(path, options.encoding)
    if format == "csv":
        tabs = path.suffix.lower() == ".tsv"
        return Csv(text, tabs, unit, columns), path.parent
    return (JsonLines(text) if format == "jsonl" else JsonDocument(text)), path.parent
