"""Records in text files: JSON Lines, one JSON document, and CSV; found again by their bytes."""

from __future__ import annotations

import codecs
import json
import os
import re
import stat
from typing import IO, TYPE_CHECKING, Any

from dpmtv.data.stored import Record, file_place
from dpmtv.data.turns import is_text
from dpmtv.errors import DataError, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_RECORD = 256 * 2**20  # bytes of a line, characters of a CSV record

_MARKS = (  # UTF-32 first: its mark begins with that of UTF-16
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_SPACE = re.compile(r"[ \t\n\r]*")
_BLANK = b" \t\r\n\v\f\0"


def open_file(path: Path) -> IO[bytes]:
    """The file, open for reading.

    Raises:
        DataError: it is not there, cannot be read, or is no ordinary file (a pipe, a device).
    """
    problem = "is not an ordinary file. Name a file of records"
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode):
            return path.open("rb")
        if stat.S_ISDIR(mode):
            problem = "is a folder. Name the file inside it"
    except (FileNotFoundError, NotADirectoryError):
        problem = "does not exist. Check the path"
    except (OSError, ValueError):  # ValueError: a null character in the path
        problem = "cannot be read. Check the path and its permissions"
    raise DataError(f"{path} {problem}.")


class TextFile:
    """A text file and its encoding: as named, else by the byte order mark, else UTF-8.

    Never by what else stands in it: one record would decide how the others are read.
    """

    def __init__(self, path: Path, encoding: str | None = None) -> None:
        with open_file(path) as file:
            head = file.read(4)
            file.seek(0)
            while piece := file.read(2**14):
                if piece.removeprefix(codecs.BOM_UTF8).strip(_BLANK):
                    break
            else:
                raise DataError(f"{path} is empty. Write records into it.")
        self.path, self.place = path, file_place(path)
        wanted = None if encoding is None else _normal(encoding)
        self.start, self.encoding = 0, wanted or "utf-8"
        for mark, name in _MARKS:
            if head.startswith(mark) and (wanted is None or name.startswith(wanted)):
                self.start, self.encoding = len(mark), name
                break
        if self.encoding in ("utf-16", "utf-32"):
            self.encoding += "-le"
        wide = self.encoding.startswith(("utf-16", "utf-32"))
        self._errors = "surrogatepass" if wide else "surrogateescape"
        self.not_text = "not UTF-8" if self.encoding == "utf-8" else "not in its encoding"

    def decode(self, raw: bytes) -> str:
        """Text; what is not in the encoding becomes halves of characters, see `is_text`."""
        try:
            return raw.decode(self.encoding, self._errors)
        except UnicodeError:
            return "\udcff"

    def encoded_length(self, text: str) -> int:
        """How many bytes of the file ``text`` took."""
        try:
            return len(text.encode(self.encoding, self._errors))
        except UnicodeError:  # such a place cannot be found again
            return 0

    def lines(self, end: str = "\n") -> Iterator[tuple[int, bytes | None]]:
        """Offset and bytes of every line, without its end; None for one longer than MAX_RECORD."""
        newline = end.encode(self.encoding)
        with open_file(self.path) as file:
            file.seek(self.start)
            if newline == b"\n":
                yield from _short_lines(file)
                return
            data = file.read()
        start = 0
        while start < len(data):
            found = data.find(newline, start)
            while found >= 0 and found % len(newline):
                found = data.find(newline, found + 1)
            stop = len(data) if found < 0 else found
            yield self.start + start, data[start:stop]
            start = stop + len(newline)

    def read_at(self, place: tuple[int, ...]) -> bytes:
        """The bytes of a record, as long as the file is the same."""
        if file_place(self.path) != self.place:
            raise ValueError("the file has changed")
        with self.path.open("rb") as file:
            file.seek(place[0])
            return file.read(place[1])


def _normal(encoding: str) -> str:
    try:
        name = codecs.lookup(encoding).name
        if "\n".encode(name) and b"".decode(name) == "":
            return name.removesuffix("-sig")
    except (LookupError, ValueError):  # also codecs that are no encodings of text
        pass
    raise UserError(f"encoding {encoding!r} is not known. Examples: utf-8, utf-16, cp1252.")


def _short_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    while line := file.readline(MAX_RECORD + 1):
        offset = file.tell() - len(line)
        long = len(line) > MAX_RECORD
        while long and line and not line.endswith(b"\n"):
            line = file.readline(MAX_RECORD)
        yield offset, None if long else line.removesuffix(b"\n")


class JsonLines:
    """One JSON object a line; every line is a record, blank ones too."""

    def __init__(self, text: TextFile) -> None:
        self._text, self.place = text, text.place

    def records(self) -> Iterator[Record]:
        """All lines in order."""
        for number, (offset, line) in enumerate(self._text.lines(), start=1):
            fields = "too long" if line is None else self._parse(line)
            yield Record(number, fields, (offset, 0 if line is None else len(line)))

    def again(self, place: tuple[int, ...]) -> Any:
        """One line, read anew."""
        return self._parse(self._text.read_at(place))

    def _parse(self, line: bytes) -> dict[str, Any] | str:
        text = self._text.decode(line)
        if not text.strip(" \t\r\n\v\f"):
            return "empty line"
        if not is_text(text):
            return self._text.not_text
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):  # ValueError also for integers of absurd length
            return "not JSON"
        return value if isinstance(value, dict) else "not an object"


class JsonDocument:
    """One JSON document: a list of records, or an object whose members are lists of them."""

    def __init__(self, text: TextFile) -> None:
        self._text, self.path, self.place = text, text.path, text.place

    def records(self) -> Iterator[Record]:
        """The elements of the list."""
        for number, (name, record) in enumerate(self.elements(), start=1):
            if name is not None:
                break
            yield Record(number, record.fields, record.place)
        else:
            return
        raise DataError(
            f"{self.path} holds one object, not a list of records. For one object a line, "
            "name the format: jsonl."
        )

    def elements(self) -> Iterator[tuple[str | None, Record]]:
        """Name of the member and element, for every list at the top.

        Raises:
            DataError: the file is not one JSON document. It names the line, and no content.
        """
        with open_file(self.path) as file:
            file.seek(self._text.start)
            text = self._text.decode(file.read())
        offset, done = self._text.start, 0
        problem = None
        try:
            for name, value, start, stop in _Scanner(text).lists():
                raw = text[start:stop]
                offset += self._text.encoded_length(text[done:start])
                length, done = self._text.encoded_length(raw), stop
                if not is_text(raw):
                    value = self._text.not_text
                elif not isinstance(value, dict):
                    value = "not an object"
                yield name, Record(0, value, (offset, length))
                offset += length
        except json.JSONDecodeError as error:
            problem = f"is not one JSON document: line {error.lineno} cannot be read"
        except RecursionError:
            problem = "nests too deep"
        if problem is not None:
            raise DataError(
                f"{self.path} {problem}. For one object a line, name the format: jsonl."
            )

    def again(self, place: tuple[int, ...]) -> Any:
        """One element, read anew."""
        return json.loads(self._text.decode(self._text.read_at(place)))


class _Scanner:
    """Reads a JSON document element by element, so that they are never all held."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        # A number of absurd length is the matter of its record alone.
        self._decoder = json.JSONDecoder(parse_int=lambda n: int(n) if len(n) < 1000 else None)

    def lists(self) -> Iterator[tuple[str | None, Any, int, int]]:
        """Elements of the top list (name None), or of every list that is a member of the object."""
        if self._sign("[{") == "[":
            yield from self._elements(None)
        elif self._peek() == "}":
            self._sign("}")
        else:
            while True:
                name, start, _ = self._value()
                if not isinstance(name, str):
                    raise json.JSONDecodeError("", self._text, start)
                self._sign(":")
                if self._peek() == "[":
                    self._sign("[")
                    yield from self._elements(name)
                else:
                    self._value()
                if self._sign(",}") == "}":
                    break
        if self._peek():
            raise json.JSONDecodeError("", self._text, self._at)

    def _elements(self, name: str | None) -> Iterator[tuple[str | None, Any, int, int]]:
        sign = self._sign("]") if self._peek() == "]" else ","
        while sign == ",":
            yield (name, *self._value())
            sign = self._sign(",]")

    def _peek(self) -> str:
        self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
        return self._text[self._at : self._at + 1]

    def _sign(self, wanted: str) -> str:
        found = self._peek()
        if not found or found not in wanted:
            raise json.JSONDecodeError("", self._text, self._at)
        self._at += 1
        return found

    def _value(self) -> tuple[Any, int, int]:
        self._peek()
        start = self._at
        value, self._at = self._decoder.raw_decode(self._text, start)
        return value, start, self._at
