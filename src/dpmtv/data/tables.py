"""Records in tables: CSV, Parquet, and Hugging Face datasets."""

from __future__ import annotations

import csv
import importlib
import io
import json
import os
import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpmtv.data.rows import FIELDS, LISTS
from dpmtv.data.stored import Record, file_place
from dpmtv.data.textfiles import MAX_RECORD, open_file
from dpmtv.data.turns import CONVERSATIONS, IMAGE_FIELDS
from dpmtv.data.values import composed, is_text
from dpmtv.errors import DataError, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from dpmtv.data.textfiles import TextFile

_DELIMITERS = ",;\t|"
_PLAIN = re.compile(r"u?int\d+$|(large_)?string$")
_TOLD = re.compile(r"sep=([^\w\s\"]|\t)\r?", re.IGNORECASE)  # Excel's line above the header
_CELL = 2**31 - 1  # what Python allows in a cell; it is the record that is measured
_BUFFER = 2**20  # bytes; without it, a column of a whole row group is held
_BATCH = 32  # rows held at once; each may carry large images


def used_columns(
    names: Sequence[Any],
    what: str | Path,
    unit: str | None,
    columns: Mapping[str, str],
    plain: Sequence[Any] = (),
) -> list[str]:
    """The columns that are read: ours, and plain ones, of which one may name units.

    Raises:
        DataError: a column that is needed is not there, or is there twice. The names that are
            there are not quoted: a file without a header line shows a record in their place.
    """
    known = [composed(str(name)) for name in names]

    def there(*ours: str) -> bool:
        return any(columns.get(name, name) in known for name in ours)

    missing = [theirs for theirs in columns.values() if theirs not in known]
    missing += [unit] if unit is not None and unit not in known else []
    if not missing and not there(*CONVERSATIONS):
        wanted = {"image": IMAGE_FIELDS, "question": ("question",), "answer": ("answer", "answers")}
        missing = [name for name, fields in wanted.items() if not there(*fields)]
    if missing:
        raise DataError(
            f"{what} has no column {', '.join(missing)}. If columns have other names, say which "
            "(columns={'question': 'THEIRS'} / --column question=THEIRS)."
        )
    used = {columns.get(name, name) for name in FIELDS} | {unit}
    found = [n for n, name in zip(names, known, strict=True) if name in used or n in plain]
    if len({composed(str(name)) for name in found}) < len(found):
        raise DataError(f"{what} has two columns of one name.")
    return found


class Csv:
    """A table in text. The header line alone decides the columns and what parts them."""

    def __init__(
        self, text: TextFile, tabs: bool, unit: str | None, columns: Mapping[str, str]
    ) -> None:
        self._text, self.place = text, text.place
        open_file(text.path).close()  # refuses what begins like a zip file
        header = text.decode(next(text.lines())[1] or b"")
        told = _TOLD.fullmatch(header)
        self._skipped = 1 if told else 0
        for _, raw in islice(text.lines(), self._skipped, self._skipped + 1):
            header = text.decode(raw or b"")
        self._delimiter = "\t" if tabs else max(_DELIMITERS, key=header.count)
        self._delimiter = told[1] if told else self._delimiter
        if not is_text(header):
            raise DataError(
                f"{text.path}, line 1: {text.not_text}. Name the encoding "
                "(encoding='cp1252' / --encoding cp1252)."
            )
        row = next(self._rows(), ([], 0, 0))[0]
        if isinstance(row, str):
            raise DataError(f"{text.path}, line 1: its quotes or line ends do not match.")
        self._header = [composed(name.strip()) for name in row]
        used_columns(self._header, text.path, unit, columns)
        self._lists = {columns.get(name, name) for name in LISTS}

    def records(self) -> Iterator[Record]:
        """All records below the header, blank lines included."""
        for number, (row, start, length) in enumerate(self._rows()):
            if number:
                fields = row if isinstance(row, str) else self._fields(row)
                yield Record(number, fields, (start, length))

    def again(self, place: tuple[int, ...]) -> Any:
        """One record, read anew."""
        text = self._text.decode(self._text.read_at(place))
        lines = io.StringIO(text, newline="\n")
        return self._fields(next(csv.reader(lines, delimiter=self._delimiter)))

    def _rows(self) -> Iterator[tuple[list[str] | str, int, int]]:
        """Cells (or why there are none), offset and length of every record."""
        csv.field_size_limit(max(csv.field_size_limit(), _CELL))
        pulled: list[tuple[int, int]] = []
        count, long, ended = self._skipped, False, False

        def lines() -> Iterator[str]:
            nonlocal count, long, ended
            for offset, raw in islice(self._text.lines(), self._skipped, None):
                count, long = count + 1, long or raw is None
                pulled.append((offset, offset + len(raw or b"")))
                yield ("" if raw is None else self._text.decode(raw)) + "\n"
            ended = True

        reader = csv.reader(lines(), delimiter=self._delimiter, strict=True)
        row: list[str] | str | None
        while True:
            try:
                row = next(reader, None)
            except csv.Error:  # the reader goes on with the next line
                row = None if ended else "cannot be read"
            if row is None:
                break
            yield "too long" if long else row, pulled[0][0], pulled[-1][1] - pulled[0][0]
            pulled.clear()
            long = False
        if pulled:
            raise DataError(
                f"{self._text.path}, line {count - len(pulled) + 1}: a quote opens in this row "
                "and stays open to the end of the file."
            )

    def _fields(self, row: list[str]) -> dict[str, Any] | str:
        if not row or not any(cell.strip() for cell in row):
            return "empty line"
        if not is_text("".join(row)):
            return self._text.not_text
        if sum(map(len, row)) > MAX_RECORD:
            return "too long"
        if len(row) != len(self._header):
            return "wrong number of columns"
        return {
            name: _listed(cell) if name in self._lists else cell or None
            for name, cell in zip(self._header, row, strict=True)
        }


def _listed(cell: str) -> Any:
    if not cell.strip().startswith("["):
        return cell or None
    try:
        return json.loads(cell)
    except (ValueError, RecursionError, MemoryError):
        return cell


@dataclass
class _Cursor:
    """The rows of a row group that were decoded last, and the batches after them."""

    group: int
    more: Iterator[Any]
    batch: Any = None
    first: int = 0
    rows: int = 0


class Parquet:
    """A Parquet file, read in small batches."""

    def __init__(self, path: Path, unit: str | None, columns: Mapping[str, str]) -> None:
        open_file(path).close()
        self.path, self.place = path, file_place(path)
        self._held: _Cursor | None = None
        schema = self._open().schema_arrow
        plain = [column.name for column in schema if _PLAIN.match(str(column.type))]
        self._used = used_columns(schema.names, path, unit, columns, plain)

    def records(self) -> Iterator[Record]:
        """All rows in order."""
        file, number = self._open(), 0
        for group in range(file.num_row_groups):
            row = 0
            for batch in self._batches(file, group):
                for fields in _as_fields(batch):
                    yield Record(number + row + 1, fields, (group, row))
                    row += 1
            number += row

    def again(self, place: tuple[int, ...]) -> Any:
        """One row, read anew; rows asked for in order are not searched for from the start."""
        if file_place(self.path) != self.place:
            raise ValueError("the file has changed")
        group, row = place
        held, self._held = self._held, None  # no other thread shares it
        if held is None or held.group != group or row < held.first:
            held = _Cursor(group, self._batches(self._open(), group))
        while row >= held.first + held.rows:
            held.first += held.rows
            held.batch = _attempt(lambda: next(held.more, None))
            if held.batch is None:
                raise ValueError("the row is not there")
            held.rows = held.batch.num_rows
        self._held = held
        return next(_as_fields(held.batch.slice(row - held.first, 1)))

    def _batches(self, file: Any, group: int) -> Iterator[Any]:
        batches = file.iter_batches(_BATCH, row_groups=[group], columns=self._used)
        while (batch := _safely(lambda: next(batches, None), self._damaged)) is not None:
            yield batch

    def _open(self) -> Any:
        parquet = _library("pyarrow.parquet")
        return _safely(lambda: parquet.ParquetFile(self.path, buffer_size=_BUFFER), self._damaged)

    @property
    def _damaged(self) -> str:
        return f"{self.path} cannot be read as Parquet: it is damaged, or something else."


class Dataset:
    """A dataset of the `datasets` library: a saved folder, or one of the Hub (hf://name)."""

    def __init__(
        self, name: str | Path, split: str | None, unit: str | None, columns: Mapping[str, str]
    ) -> None:
        library = _library("datasets")
        hub = re.fullmatch(r"hf://?([^@]+)(?:@(.+))?", str(name))  # a Path has one slash left
        if hub is None and os.path.exists(name):
            found = _safely(
                lambda: library.load_from_disk(str(name)), f"{name} is no saved dataset."
            )
        else:
            wanted, revision = hub.groups() if hub is not None else (str(name), None)
            found = _safely(
                lambda: library.load_dataset(wanted, revision=revision),
                f"The dataset {wanted} cannot be loaded. Check its name and the network.",
            )
        if isinstance(found, dict):
            if split is None and len(found) == 1:
                split = next(iter(found))
            if split not in found:
                raise DataError(
                    f"{name} has the splits {', '.join(found)}. Name one with split "
                    f"(split={next(iter(found))!r} / --split {next(iter(found))})."
                )
            found = found[split]
        elif split is not None:
            raise DataError(f"{name} has no splits. Leave split out.")
        kinds = found.features.items()
        plain = [c for c, kind in kinds if _PLAIN.match(str(getattr(kind, "dtype", "")))]
        used = used_columns(found.column_names, name, unit, columns, plain)
        # As Arrow tables: images stay what was stored, and are not decoded here.
        self._names = {
            column: kind.names for column, kind in kinds if isinstance(kind, library.ClassLabel)
        }
        self._table = found.select_columns(used).with_format("arrow")
        self.place = (str(name), str(split), str(found._fingerprint))

    def records(self) -> Iterator[Record]:
        """All rows in order."""
        number = 0
        for batch in self._table.iter(_BATCH):
            for fields in _as_fields(batch):
                yield Record(number + 1, self._named(fields), (number,))
                number += 1

    def again(self, place: tuple[int, ...]) -> Any:
        """One row, read anew."""
        return next(_as_fields(self._table[place[0] : place[0] + 1]))

    def _named(self, fields: Any) -> Any:
        """Class labels are stored as numbers; their names are what was meant."""
        for column in self._names.keys() & fields if isinstance(fields, dict) else ():
            label, names = fields[column], self._names[column]
            if isinstance(label, int):
                fields[column] = names[label] if 0 <= label < len(names) else None
        return fields


def _as_fields(batch: Any) -> Iterator[dict[str, Any] | str]:
    widths = _own_widths(batch.schema)
    rows = _attempt(batch.to_pylist)
    if rows is None:  # the rows beside a bad one are read all the same
        parts = (batch.slice(place, 1) for place in range(batch.num_rows))
        rows = [(_attempt(part.to_pylist) or ["cannot be read"])[0] for part in parts]
    yield from (widths(row) if widths and isinstance(row, dict) else row for row in rows)


def _own_widths(fields: Any) -> Callable[[Any], Any] | None:
    """`_own_width` of the members of a struct or a row."""
    own = {field.name: change for field in fields if (change := _own_width(field.type))}
    if not own:
        return None
    return lambda row: row and row | {name: change(row[name]) for name, change in own.items()}


def _own_width(kind: Any) -> Callable[[Any], Any] | None:
    """What makes a column's numbers of 16 or 32 bits doubles of the same text: 0.1 stays 0.1."""
    name = str(kind)
    if name in ("float", "halffloat"):
        width = kind.to_pandas_dtype()
        return lambda value: None if value is None else float(str(width(value)))
    if name.startswith("struct"):
        return _own_widths(kind)
    inner = _own_width(kind.value_type) if hasattr(kind, "value_type") else None
    if inner is None or name.startswith("dictionary"):
        return inner
    return lambda values: values and [inner(value) for value in values]


def _attempt(make: Any) -> Any:
    try:
        return make()
    except Exception:  # damaged files, text that is not UTF-8, dates beyond the calendar
        return None


def _safely(make: Any, problem: str) -> Any:
    """What libraries say may hold content: their errors end here."""
    result = _attempt(lambda: (make(),))
    if result is None:
        raise DataError(problem)
    return result[0]


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        pass
    raise UserError("Parquet files and datasets need more packages: pip install 'dpmtv[data]'")
