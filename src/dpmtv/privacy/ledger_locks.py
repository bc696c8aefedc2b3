"""Locks that tell whether the process of a ledger's reservation still lives.

The kernel drops them however the process ends. See `dpmtv.privacy.ledger`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from dpmtv.errors import LedgerError

NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL


def lock_path(ledger: Path, token: str) -> Path:
    """Where a reservation keeps its lock, beside the ledger."""
    return ledger.with_name(f".{ledger.name}.{token}.lock")


def take_lock(ledger: Path) -> tuple[str, int]:
    """A new lock that this process holds: its random name and its open descriptor."""
    token = secrets.token_hex(16)
    with told(ledger, "needs a lock file in its folder, on a disk with file locks"):
        descriptor = os.open(lock_path(ledger, token), NEW_FILE, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return token, descriptor


def is_held(lock: Path) -> bool:
    """Whether a process holds it. What cannot be told is taken for yes: then it counts longer."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    try:
        # Shared, so that two processes that look do not see each other.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Put the names in the file's folder on the disk."""
    with told(path, "lies in a folder that cannot be synced"):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def told(path: Path, trouble: str) -> Iterator[None]:
    """Turn an error of the operating system into one of the ledger."""
    try:
        yield
    except OSError as error:
        raise LedgerError(f"{path} {trouble} ({error.strerror})") from error
