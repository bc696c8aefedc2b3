"""Records in text files: JSON Lines, one JSON document, and CSV; found again by their bytes."""

from __future__ import annotations

import codecs
import json
import os
import re
import stat
from typing import IO, TYPE_CHECKING, Any, cast

from dpmtv.data.stored import Record, file_place
from dpmtv.data.values import is_text
from dpmtv.errors import DataError, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_RECORD = 64 * 2**20  # bytes of a line, characters of a CSV record

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_PACKED = (  # how files begin that hold others
    (b"PK\x03\x04", "is a zip (or Excel) file: unpack it, or export the sheet as CSV"),
    (b"\x1f\x8b", "is a gzip file: unpack it"),
)
_SPACE = re.compile(r"[ \t\n\r]*")
_SIGNS = re.compile(r'\\.|["\[\]{}]', re.DOTALL)
# Encodings in which a record can change how what follows is read, or that are none of files.
_REFUSED = re.compile(r"utf-7|utf-32.*|hz|iso2022.*|punycode|idna|.*unicode.escape")
_AS_LINES = "For one object a line, name the format (format='jsonl' / --format jsonl)."


def _half(error: UnicodeError) -> tuple[str, int]:
    """Half a character for what UTF-16 does not allow: the rest stays as it is."""
    return "\udcff", cast("UnicodeDecodeError", error).end


codecs.register_error("dpmtv-half", _half)


def open_file(path: Path, packed: bool = False) -> IO[bytes]:
    """The file, open for reading. With ``packed`` it may begin like a zip file.

    Raises:
        DataError: it is not there, cannot be read, or is no ordinary file (a pipe, a device).
    """
    problem = "is not an ordinary file. Name a file of records"
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode):
            file = path.open("rb")
            kind = None if packed else _packed(file, path)
            if kind is None:
                return file
            file.close()
            problem = kind
        elif stat.S_ISDIR(mode):
            problem = "is a folder. Name the file inside it"
    except (FileNotFoundError, NotADirectoryError):
        problem = "does not exist. Check the path"
    except (OSError, ValueError):  # ValueError: a null character in the path
        problem = "cannot be read. Check the path and its permissions"
    raise DataError(f"{path} {problem}.")


def _packed(file: IO[bytes], path: Path) -> str | None:
    """What it is instead of a file of records."""
    start = file.read(4)
    file.seek(0)
    if path.suffix.lower() in (".jsonl", ".ndjson"):  # the beginning belongs to a record
        return None
    return next((what for begin, what in _PACKED if start.startswith(begin)), None)


class TextFile:
    """A text file and its encoding: as named, else by the byte order mark, else UTF-8.

    Never by what else stands in it: one record would decide how the others are read.
    """

    def __init__(self, path: Path, encoding: str | None = None) -> None:
        with open_file(path, packed=True) as file:
            head = file.read(5)
        if head in (b"", *(mark for mark, _ in _MARKS)):
            raise DataError(f"{path} is empty. Write records into it.")
        if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
            raise DataError(f"{path} is UTF-32, which is not read. Save it as UTF-8.")
        self.path, self.place = path, file_place(path)
        wanted = None if encoding is None else _normal(encoding)
        self.start, self.encoding = 0, wanted or "utf-8"
        for mark, name in _MARKS:
            if head.startswith(mark) and (wanted is None or name.startswith(wanted)):
                self.start, self.encoding = len(mark), name
                break
        if self.encoding == "utf-16":
            self.encoding += "-le"
        wide = self.encoding.startswith("utf-16")
        self._errors = "dpmtv-half" if wide else "surrogateescape"
        self._back = "surrogatepass" if wide else "surrogateescape"
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
            return len(text.encode(self.encoding, self._back))
        except UnicodeError:  # such a place cannot be found again
            return 0

    def lines(self) -> Iterator[tuple[int, bytes | None]]:
        """Offset and bytes of every line, without its end; None for one longer than MAX_RECORD."""
        newline = "\n".encode(self.encoding)
        with open_file(self.path, packed=True) as file:
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
            yield self.start + start, data[start:stop] if stop - start <= MAX_RECORD else None
            start = stop + len(newline)

    def read_at(self, place: tuple[int, ...]) -> bytes:
        """The bytes of a record, as long as the file is the same."""
        if file_place(self.path) != self.place:
            raise ValueError("the file has changed")
        with self.path.open("rb") as file:
            file.seek(place[0])
            return file.read(place[1])


def _normal(encoding: str) -> str:
    refused = False
    try:
        name = codecs.lookup(encoding).name
        refused = bool(_REFUSED.fullmatch(name))
        if not refused and "\n".encode(name) and b"".decode(name) == "":
            return name.removesuffix("-sig")
    except (LookupError, ValueError):  # also codecs that are no encodings of text
        pass
    if refused:
        raise UserError(
            f"encoding {encoding!r} is not read: in it one record could change how the next are "
            "read. Save the file as UTF-8."
        )
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
        except MemoryError:  # objects take many times their text
            return "too long"
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
            f"{self.path} holds one object, not a list of records. If the list is a member of it, "
            f"write that list alone into a file. {_AS_LINES}"
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
                elif isinstance(value, _Unread):
                    value = str(value)
                elif not isinstance(value, dict):
                    value = "not an object"
                yield name, Record(0, value, (offset, length))
                offset += length
        except json.JSONDecodeError as error:
            problem = f"is not one JSON document: line {error.lineno} cannot be read"
        if problem is not None:
            raise DataError(f"{self.path} {problem}. {_AS_LINES}")

    def again(self, place: tuple[int, ...]) -> Any:
        """One element, read anew."""
        return _Scanner(self._text.decode(self._text.read_at(place))).value()[0]


class _Unread(str):
    """Why an element of a document was passed over."""


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
                name, start, _ = self.value()
                if type(name) is not str:
                    raise json.JSONDecodeError("", self._text, start)
                self._sign(":")
                if self._peek() == "[":
                    self._sign("[")
                    yield from self._elements(name)
                else:
                    self.value()
                if self._sign(",}") == "}":
                    break
        if self._peek():
            raise json.JSONDecodeError("", self._text, self._at)

    def _elements(self, name: str | None) -> Iterator[tuple[str | None, Any, int, int]]:
        sign = self._sign("]") if self._peek() == "]" else ","
        while sign == ",":
            yield (name, *self.value())
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

    def value(self) -> tuple[Any, int, int]:
        """The next value, where it starts and where it ends."""
        self._peek()
        start, problem = self._at, ""
        try:
            value, self._at = self._decoder.raw_decode(self._text, start)
        except RecursionError:
            problem = "not JSON"
        except MemoryError:
            problem = "too long"
        if problem:
            value, self._at = _Unread(problem), self._end(start)
        return value, start, self._at

    def _end(self, start: int) -> int:
        """Where the value at ``start`` ends, by its quotes and brackets alone."""
        depth, quoted = 0, False
        for found in _SIGNS.finditer(self._text, start):
            sign = found[0]
            if sign == '"':
                quoted = not quoted
            elif not quoted and sign in "[]{}":
                depth += 1 if sign in "[{" else -1
            if depth == 0 and not quoted:
                return found.end()
        raise json.JSONDecodeError("", self._text, start)
