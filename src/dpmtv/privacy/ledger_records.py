"""Which ledgers know which records, so that none of them starts a second budget in silence.

A ledger keeps a keyed fingerprint of every record that it paid for, in a file beside it and in the
folders of the data: ``NAME.ID.records``, for its owner alone (mode 0600). Whoever has that file
can try out records on it, so it is as private as they are.

What is looked at is told to the operator alone, and decides only whether there is a build: never
which ledger pays. docs/privacy.md, section 2, says what is not recognised.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import json
import os
import secrets
import sqlite3
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpmtv.errors import LedgerError, PrivacyParameterError
from dpmtv.privacy.ledger_locks import sync_folder, told

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dpmtv.privacy.certificate import OtherLedgers
    from dpmtv.privacy.ledger import Ledger

_ENDING, _LEDGER = ".records", ".ledger"
_APPLICATION_ID = 0x64706D74  # of `dpmtv.privacy.ledger`
_TIMEOUT_S = 30.0
_PAGE = 4096  # the length of a ledger is a multiple of it: few other files are opened


@dataclass(frozen=True)
class _Known:
    """A file of fingerprints."""

    ledger: Path
    id: str
    key: bytes
    prints: frozenset[str]

    def knows(self, digests: Iterable[bytes]) -> bool:
        return any(_print(self.key, digest) in self.prints for digest in digests)


@dataclass(frozen=True)
class _Found:
    """A ledger that lies in one of the folders; ``id`` is None where it cannot be read."""

    path: Path
    inode: tuple[int, int]
    id: str | None
    spent: bool


def beside(data: Path, ending: str) -> Path:
    """Where a file about the data goes; the dots of a folder's name belong to the name."""
    return data.with_name(data.name + ending) if data.is_dir() else data.with_suffix(ending)


def look(
    digests: Sequence[bytes], ledger: Ledger | None, files: Sequence[Path], ignore: bool
) -> OtherLedgers | None:
    """Refuse a build that another ledger than ``ledger`` should pay for.

    Args:
        digests: of the records.
        ledger: the one that will pay; None if it is still to be made, or none is kept.
        files: the data files, under all names that are known. Ledgers are looked for in their
            folders and in that of ``ledger``.
        ignore: do not look.

    Returns:
        What the certificate says: None where there is no folder to look into.

    Raises:
        PrivacyParameterError: another ledger has paid for some of the records, or lies beside a
            file and may have; it is named.
    """
    if ignore:
        return "ignored"
    folders = _folders(ledger, files)
    own = ledger.id if ledger else None
    known = [found for folder in folders for found in _records_in(folder)]
    there = [entry for folder in folders for entry in _listing(folder)]
    ledgers = [found for entry in there if (found := _ledger_at(entry)) is not None]
    for at in known:
        if at.id != own and at.knows(digests):
            path = next((found.path for found in ledgers if found.id == at.id), at.ledger)
            raise PrivacyParameterError(_refusal(path, "has paid for records of this build"))
    named, taken = _names(files, there)
    recorded = {at.id for at in known}
    for found in ledgers:
        if found.inode == (ledger and ledger.inode) or (own and found.id == own):  # or its copy
            continue
        # One that keeps no fingerprints has paid for nothing, or by an older version.
        unsure = found.id not in recorded and (found.spent or ledger is None)
        if found.path in named or (unsure and found.path not in taken):
            raise PrivacyParameterError(_refusal(found.path, "is a ledger beside the records"))
    return "none-found" if folders else None


def note(digests: Sequence[bytes], ledger: Ledger, files: Sequence[Path]) -> None:
    """Keep the records' fingerprints where later builds look.

    Before the charge: what ends in between has spent nothing, and its records count as known.

    Raises:
        LedgerError: they cannot be written beside the ledger. A folder of the data that cannot be
            written is warned about: builds from there find the ledger only by its name.
    """
    for folder in _folders(ledger, files):
        path = folder / f"{ledger.path.name}.{ledger.id[:8]}{_ENDING}"
        if folder == ledger.path.parent:
            with told(path, "cannot be written"):
                _append(path, ledger, digests)
            continue
        try:
            _append(path, ledger, digests)
        except OSError:
            warnings.warn(
                f"{path} cannot be written: a build from there may not find {ledger.path}",
                stacklevel=2,
            )


def _refusal(path: Path, why: str) -> str:
    return (
        f"{path} {why}, and another budget would not count what it spent: build with --ledger "
        f"{path}; or say --ignore-ledgers, and the certificate tells that you did"
    )


def _folders(ledger: Ledger | None, files: Sequence[Path]) -> list[Path]:
    places = [*([ledger.path] if ledger else []), *(Path(os.path.abspath(f)) for f in files)]
    return list(dict.fromkeys(place.parent for place in places if place.parent.is_dir()))


def _print(key: bytes, digest: bytes) -> str:
    return hmac.digest(key, digest, "sha256")[:16].hex()


def _append(path: Path, ledger: Ledger, digests: Sequence[bytes]) -> None:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            raise LedgerError(f"{path} has mode {mode:04o}, it is for its owner: chmod 600 {path}")
        file.seek(0)
        content = file.read()
        if not content:
            head = {"ledger": str(ledger.path), "id": ledger.id, "key": secrets.token_hex(32)}
            content = json.dumps(head).encode() + b"\n"
            file.write(content)
        known = _parse(path, content)
        new = dict.fromkeys(_print(known.key, digest) for digest in digests)
        lines = [text for text in new if text not in known.prints]
        # A write that was cut short left half a line.
        file.write(
            b"\n" * (not content.endswith(b"\n")) + "".join(f"{t}\n" for t in lines).encode()
        )
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path)


def _parse(path: Path, content: bytes) -> _Known:
    head, *lines = content.decode("ascii", errors="replace").splitlines() or [""]
    try:
        told_by = json.loads(head)
        key = bytes.fromhex(told_by["key"])
        return _Known(Path(told_by["ledger"]), str(told_by["id"]), key, frozenset(lines))
    except (ValueError, KeyError, TypeError):
        raise LedgerError(f"{path} is damaged, or no list of a ledger; move it away") from None


def _records_in(folder: Path) -> Iterator[_Known]:
    for path in sorted(folder.glob(f"*{_ENDING}")):
        with told(path, "cannot be read, and may know these records"), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            content = file.read()
        if content:  # another process is about to write its first line
            yield _parse(path, content)


def _listing(folder: Path) -> list[os.DirEntry[str]]:
    with told(folder, "cannot be read, and may hold a ledger"), os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def _ledger_at(entry: os.DirEntry[str]) -> _Found | None:
    """A ledger, whatever it is called; None for another file."""
    if not entry.is_file(follow_symlinks=False):
        return None
    path, at = Path(entry.path), entry.stat(follow_symlinks=False)
    if path.suffix != _LEDGER and (at.st_size == 0 or at.st_size % _PAGE):
        return None
    try:
        # Never past SQLite: closing another descriptor would drop this process's locks.
        address = f"{path.as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, _TIMEOUT_S, uri=True)) as db:
            if db.execute("PRAGMA application_id").fetchone() != (_APPLICATION_ID,):
                return None
            ((number,),) = db.execute("SELECT id FROM terms")
            counted = db.execute("SELECT 1 FROM entries WHERE state != 'cancelled' LIMIT 1")
            return _Found(path, _inode(at), number, counted.fetchone() is not None)
    except (sqlite3.Error, ValueError):
        return _Found(path, _inode(at), None, True) if path.suffix == _LEDGER else None


def _names(files: Sequence[Path], there: Sequence[os.DirEntry[str]]) -> tuple[set[Path], set[Path]]:
    """What ledgers of these files are called by default, and those of others beside them.

    A hard link is another name of the same file.
    """
    named: set[Path] = set()
    taken: set[Path] = set()
    ours: set[tuple[int, int]] = set()
    for file in files:
        named.add(beside(Path(os.path.abspath(file)), _LEDGER))
        with contextlib.suppress(OSError):  # a name on the Hub
            ours.add(_inode(os.stat(file)))
    for entry in there:
        path = Path(entry.path)
        if path.suffix not in (_LEDGER, _ENDING):
            with contextlib.suppress(OSError):  # a link that leads nowhere
                same = _inode(entry.stat()) in ours
                (named if same else taken).add(beside(path, _LEDGER))
    return named, taken - named


def _inode(at: os.stat_result) -> tuple[int, int]:
    return at.st_dev, at.st_ino
