"""The work directory of one build: what an interrupted build needs to go on.

It holds the partition key and the chunks' activations, which are as private as the records. So it
is the operator's own folder with mode 0700, named by the operator, and it is deleted when the
build has succeeded. No noise is ever in it: a build that goes on draws its own.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmtv.data.demonstrations import BadRow
from dpmtv.data.partition import fresh_key
from dpmtv.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dpmtv.types import Demonstration

_STATE = "build.json"


@dataclass(frozen=True)
class WorkDirectory:
    """Made by `open_work`; every file in it is whole or not there."""

    folder: Path
    key: bytes

    def load(self, chunk: int) -> tuple[bool, np.ndarray | None]:
        """Whether the chunk was done, and its coordinates (None for a null chunk)."""
        path = self._path(chunk)
        if not path.is_file():
            return False, None
        try:
            values = np.load(path, allow_pickle=False)
        except (ValueError, EOFError):
            raise DataError(
                f"{path} is damaged; delete this one file, and its chunk is made again."
            ) from None
        return True, values if values.size else None

    def store(self, chunk: int, values: np.ndarray | None) -> None:
        """Keep a chunk's coordinates; a null chunk stays one."""
        path = self._path(chunk)
        scratch = path.with_suffix(".tmp")
        with _private(scratch) as file:
            np.save(file, np.empty(0) if values is None else values, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)

    def remove(self) -> None:
        """Delete the directory and everything in it."""
        # The state goes last: what is left of a killed deletion can be gone on with.
        for path in self.folder.iterdir():
            if path.name != _STATE:
                path.unlink()
        shutil.rmtree(self.folder)

    def _path(self, chunk: int) -> Path:
        return self.folder / f"chunk-{chunk:06d}.npy"


@contextlib.contextmanager
def open_work(folder: Path, settings: Any) -> Iterator[WorkDirectory]:
    """Make the directory, or go on in it if the same build was interrupted there.

    While it is open no other process can open it: two partitions in one sum would hold a record
    twice.

    Args:
        folder: new, or one that an interrupted build left behind.
        settings: JSON of everything that decides a chunk's coordinates, records included.

    Raises:
        DataError: the folder is a link, holds something else, another build, is readable by
            others, or is in use.
    """
    state = folder / _STATE
    scratch = state.with_suffix(".tmp")
    if folder.is_symlink():  # could not be deleted in the end, when the budget is spent
        raise DataError(f"{folder} is a symbolic link; name the folder itself.")
    if not folder.exists():
        folder.mkdir(mode=0o700, parents=True)
        folder.chmod(0o700)
    # A build that was killed at its very start leaves nothing, or a state half written.
    foreign = folder.is_dir() and {path.name for path in folder.iterdir()} - {scratch.name}
    if not folder.is_dir() or (foreign and not state.is_file()):
        raise DataError(f"{folder} is not a work directory; name a new one with --work.")
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o077:
        raise DataError(
            f"{folder} can be read by others (mode {mode:o}), and private activations go there: "
            f"chmod 700 {folder}"
        )
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataError(f"{folder} is in use by another build.") from None
        yield WorkDirectory(folder, _key(folder, settings))
    finally:
        os.close(descriptor)


def _key(folder: Path, settings: Any) -> bytes:
    """The partition key of the build that the directory belongs to; a new one for a new build."""
    state = folder / _STATE
    if state.is_file():
        try:
            kept = json.loads(state.read_text("utf-8"))
            key = bytes.fromhex(kept["key"])
            same = kept["settings_sha256"] == _named(settings, key)
        except (ValueError, KeyError, TypeError, OSError):
            raise DataError(f"{state} is damaged; delete the work directory.") from None
        if not same:
            raise DataError(
                f"{folder} belongs to a build with other records, options or model; finish that "
                "one, or delete the directory."
            )
        return key
    key = fresh_key()
    scratch = state.with_suffix(".tmp")
    with _private(scratch) as file:
        file.write(
            json.dumps({"key": key.hex(), "settings_sha256": _named(settings, key)}).encode()
        )
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, state)
    return key


def _named(settings: Any, key: bytes) -> str:
    # With the key: chunks of two partitions in one sum would hold a record twice.
    return hashlib.sha256(json.dumps([key.hex(), settings], sort_keys=True).encode()).hexdigest()


def records_sha256(rows: Sequence[Demonstration | BadRow]) -> str:
    """Names private rows, for the work directory alone: texts, and size and date of each image."""
    digest = hashlib.sha256()
    for row in rows:
        if isinstance(row, BadRow):
            named: list[Any] = [row.row, row.reason, row.unit]
        else:
            named = [row.question, row.answer, row.unit, *map(_image, row.images)]
        digest.update(json.dumps(named).encode() + b"\0")
    return digest.hexdigest()


def _image(image: Any) -> list[Any]:
    """Whatever cannot be read is told apart no further: it stops nothing."""
    try:
        if isinstance(image, str | Path):
            found = os.stat(image)
            return [str(image), found.st_size, found.st_mtime_ns]
        if hasattr(image, "place"):
            return [*image.place]
        return [image.mode, image.size, hashlib.sha256(image.tobytes()).hexdigest()]
    except Exception:  # a null character in a path; decoders raise nearly anything
        return [str(image) if isinstance(image, str | Path) else "unreadable"]


def write_report(
    path: Path, rows: Sequence[Demonstration | BadRow], chunks: Sequence[Any], null: Sequence[int]
) -> None:
    """What went wrong, for the operator alone: as private as the records, mode 0600.

    Args:
        path: the file; an old one is replaced.
        rows: all rows of the private file.
        chunks: rows of each chunk.
        null: chunks that gave nothing and counted as zero.
    """
    places = {id(row): row.place or (1, n) for n, row in enumerate(rows, start=1)}

    def named(row: Demonstration | BadRow) -> dict[str, int]:
        return dict(zip(("file", "row"), places[id(row)], strict=True))

    content = {
        "private": "This file tells about single records. Keep it with them.",
        "rows": len(rows),
        "bad_rows": [
            {**named(row), "reason": row.reason} for row in rows if isinstance(row, BadRow)
        ],
        "chunks": len(chunks),
        "null_chunks": [{"rows": [named(row) for row in chunks[j]]} for j in null],
    }
    scratch = _beside(path)
    with _private(scratch) as file:
        file.write((json.dumps(content, indent=1) + "\n").encode())
    os.replace(scratch, path)


def require_report(path: Path) -> None:
    """Refuse a report that cannot be written, before any work is done.

    Raises:
        DataError: the path is a folder, or its folder is missing or cannot be written.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        scratch = _beside(path)
        _private(scratch).close()
        scratch.unlink()
    except OSError as error:
        raise DataError(
            f"the report {path} cannot be written ({error.strerror}); name a file in a folder "
            "that can be: --report FILE"
        ) from None


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def _private(path: Path) -> Any:
    """A new file for the owner alone, open for writing; an old one of that name is replaced."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
