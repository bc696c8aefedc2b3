"""Images that lie inside a file of records, and are read from there only when they are wanted."""

from __future__ import annotations

import base64
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DATA_URI = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)


@dataclass(frozen=True)
class Record:
    """One record as its file gives it.

    Args:
        number: its number in the file, from 1.
        fields: what it holds by name, or the reason why it cannot be used.
        place: where the file finds it again.
    """

    number: int
    fields: dict[str, Any] | str
    place: tuple[int, ...] = ()


class Container(Protocol):
    """A file or folder of records."""

    @property
    def place(self) -> tuple[str | int, ...]:
        """The file, with its size and date."""

    def records(self) -> Iterator[Record]:
        """All records in order, good and bad."""

    def again(self, place: tuple[int, ...]) -> Any:
        """The fields of one record, read anew; OSError or ValueError if they are not there."""


class InRecord:
    """An image inside a record (`dpmtv.types.StoredImage`): bytes, or a data URI.

    Args:
        container: the file.
        record: place of the record in it.
        index: which of the record's inner images it is.
    """

    def __init__(self, container: Container, record: tuple[int, ...], index: int) -> None:
        self._container, self._record, self._index = container, record, index

    @property
    def place(self) -> tuple[str | int, ...]:
        """The outer file, its size and date, the record, and the number of the image in it."""
        return (*self._container.place, *self._record, self._index)

    def read(self) -> bytes:
        """The bytes of the image file; OSError or ValueError if they are not there any more."""
        values = list(inner_images(self._container.again(self._record)))
        if self._index >= len(values):
            raise ValueError("the record has changed")
        value = values[self._index]
        if isinstance(value, bytes):
            return value
        return base64.b64decode(value.partition(",")[2], validate=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InRecord) and self.place == other.place

    def __hash__(self) -> int:
        return hash(self.place)


def inner_images(value: Any) -> Iterator[str | bytes]:
    """Everything inside a record that is an image itself, in order."""
    waiting = [value]  # not by recursion, which a deep record could exhaust
    while waiting:
        value = waiting.pop()
        if isinstance(value, bytes) or (isinstance(value, str) and DATA_URI.match(value)):
            yield value
        elif isinstance(value, dict | list):
            inner = value.values() if isinstance(value, dict) else value
            waiting.extend(reversed([*inner]))


def file_place(path: Path) -> tuple[str | int, ...]:
    """Name, size and date of a file."""
    found = os.stat(path)
    return os.path.abspath(path), found.st_size, found.st_mtime_ns
