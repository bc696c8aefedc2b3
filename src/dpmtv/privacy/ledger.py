"""The budget ledger: one SQLite file per data set that adds up what its releases cost.

`create` fixes the terms. A build reserves its events before it works, charges them before the
noise is drawn, and says when the release is out:

    reserved ──→ charged ──→ released
        └──→ cancelled   └──→ lost: its process is gone without a word; counts as spent

A reservation lives as long as the lock (``flock``) on its small file beside the ledger, which the
kernel drops however the process ends; a forked child holds it too. Clocks and process numbers
decide nothing. The lock tells only whether a reservation still counts. Whether a charge is good,
the stored state tells: where locks fail, charges are refused, and nothing is released unpaid.

Guarantee:
    A mechanism that draws its noise after `Reservation.charge` has returned (``charge=`` of
    `GaussianMean.release`) releases nothing unpaid, wherever it is killed. So all releases of the
    data set together are (ε, δ)-differentially private per unit under the relation of the terms,
    also when later ones are chosen after seeing earlier ones.

Keep the file on a local disk, because SQLite's locks fail on many network disks. Never put an older
copy back: it forgets what was charged since, and cannot notice. It stops mistakes, not forgers.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Literal, NamedTuple

from dpmtv.errors import InternalError, LedgerError, PrivacyParameterError, UserError
from dpmtv.privacy import accounting, strict_json
from dpmtv.privacy.ledger_locks import NEW_FILE
from dpmtv.privacy.ledger_locks import is_held as _is_held
from dpmtv.privacy.ledger_locks import lock_path as _lock_path
from dpmtv.privacy.ledger_locks import sync_folder as _sync_folder
from dpmtv.privacy.ledger_locks import take_lock as _take_lock
from dpmtv.privacy.ledger_locks import told as _told
from dpmtv.privacy.sensitivity import NeighbourRelation
from dpmtv.types import Event

_APPLICATION_ID, _FORMAT_VERSION = 0x64706D74, 1  # in the header of the file: "dpmt", version
_SCHEMA = (
    "CREATE TABLE terms (id TEXT, epsilon REAL, delta REAL, unit TEXT, relation TEXT)",
    "CREATE TABLE entries (id INTEGER PRIMARY KEY, part TEXT NOT NULL, state TEXT NOT NULL "
    "CHECK (state IN ('reserved', 'charged', 'released', 'cancelled')), events TEXT NOT NULL, "
    "reserved_at TEXT NOT NULL, tool_version TEXT NOT NULL, lock TEXT NOT NULL)",
)
# EXTRA also syncs the folder after the journal is deleted: a journal that comes back after a power
# cut would undo the charge.
_PRAGMAS = ("journal_mode = DELETE", "synchronous = EXTRA", "fullfsync = ON")
_TIMEOUT_S = 30.0

_DAMAGED = "is damaged; restore a copy that holds every release so far, or what was spent is lost"
_CLOSED = "cannot be written; you need write access to it and to its folder"
_CAUSES = {
    sqlite3.SQLITE_BUSY: "is locked by another process; try again when that is done",
    sqlite3.SQLITE_CANTOPEN: _CLOSED,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_FULL: "cannot grow; free some space on its disk",
    sqlite3.SQLITE_IOERR: "cannot be read or written; its disk is full, faulty or a network disk",
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_READONLY: _CLOSED,
}


State = Literal["reserved", "charged", "released", "cancelled", "lost"]
_WITHOUT_LOCK: dict[str, State] = {"reserved": "cancelled", "charged": "lost"}
_LATE = 0.99  # of δ, for releases that may follow from earlier ones; the rest is for slack


@dataclass(frozen=True)
class Terms:
    """Total ε and δ, the field that names the unit (None: single records), and the relation."""

    epsilon: float
    delta: float
    unit: str | None
    relation: NeighbourRelation


@dataclass(frozen=True)
class Entry:
    """A reservation and what became of it. ``reserved_at`` (UTC) is for reading only."""

    id: int
    part: str
    state: State
    events: tuple[Event, ...]
    reserved_at: str
    tool_version: str
    lock: str


@dataclass(frozen=True)
class History:
    """A ledger as it stands; ``dataclasses.asdict`` makes JSON of it.

    By part, at the total δ: ``spent`` ε (all together cost the largest), and as ``remaining`` the
    largest ε of one more Gaussian release.
    """

    ledger_id: str
    terms: Terms
    spent: dict[str, float]
    remaining: dict[str, float]
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Ledger:
    """An open ledger: a name for a file, without a connection. Made by `create` and `open`.

    Parts are groups of units that share no unit: each month's new patients, say. A change of one
    unit then changes the releases of one part only, and the whole costs as much as its most
    expensive part (parallel composition). That is true only if units are assigned to parts without
    looking at their content and keep their part (under ``replace_one`` the newcomer takes it over),
    and if a release reads records of its own part only. A patient with records in two months
    belongs to one part. A release without a
    part counts in all of them. Leave ``part`` alone where the rest is not sure.
    """

    path: Path
    terms: Terms
    id: str  # random, and kept in the file: shows another ledger in its place
    inode: tuple[int, int]  # with the device: shows a copy in its place

    def reserve(
        self,
        events: Sequence[Event],
        *,
        relation: NeighbourRelation,
        unit: str | None,
        part: str = "",
    ) -> Reservation:
        """Set budget aside for one release, before any work is done.

        Guarantee:
            Once it returns, all that counts of the part composes to at most the terms' ε at δ.

        Args:
            events: everything that the one charge will pay for.
            relation: the neighbour relation of the release.
            unit: the unit field of the release; None for single records.
            part: the group of units that the release reads.

        Raises:
            PrivacyParameterError: another relation or unit than the terms', or more than is left.
            LedgerError: the file cannot be used.
        """
        booked, reservation = tuple(events), None
        self._require_terms(relation, unit, part)
        text = strict_json.dumps(_Booking(booked))
        try:
            with _transaction(self, "BEGIN IMMEDIATE") as db:
                _cancel_dead(self.path, db)
                self._require_room(_rows(self.path, db), part, booked)
                # Inside the transaction, or somebody might take the new lock for a left one.
                reservation = Reservation(self, 0, booked, *_take_lock(self.path))
                now = datetime.now(UTC).isoformat(timespec="seconds")
                row = (None, part, "reserved", text, now, version("dpmtv"), reservation._token)
                inserted = db.execute("INSERT INTO entries VALUES (?,?,?,?,?,?,?)", row)
                reservation.entry = int(inserted.lastrowid or 0)
                return reservation
        except BaseException:
            if reservation is not None:
                reservation.cancel()
            raise

    def check(
        self,
        events: Sequence[Event],
        *,
        relation: NeighbourRelation,
        unit: str | None,
        part: str = "",
    ) -> None:
        """Refuse what `reserve` would refuse, and book nothing."""
        self._require_terms(relation, unit, part)
        with _transaction(self) as db:
            self._require_room(_rows(self.path, db, seen=True), part, tuple(events))

    def _require_terms(self, relation: NeighbourRelation, unit: str | None, part: str) -> None:
        terms = self.terms
        if (relation, unit) != (terms.relation, terms.unit):
            raise PrivacyParameterError(
                f"{self.path} adds up {terms.relation} per {terms.unit or 'record'}, the release "
                f"is {relation} per {unit or 'record'}: there is no common sum; use the ledger's"
            )
        if not part.isprintable() or part != part.strip():
            raise PrivacyParameterError("a part needs a printable name without blanks around it")

    def history(self) -> History:
        """Entries, spent ε by part and what is left. Writes nothing.

        Raises:
            LedgerError: the file cannot be used.
        """
        with _transaction(self) as db:
            entries = _rows(self.path, db, seen=True)
        past = {part: _spending(entries, part) for part in {x.part for x in entries} or {""}}
        spent = {p: past[p].cost(self.terms) for p in sorted(past)}
        left = {p: past[p].left(self.terms) for p in sorted(past)}
        return History(self.id, self.terms, spent, left, entries)

    def _require_room(self, entries: Sequence[Entry], part: str, events: tuple[Event, ...]) -> None:
        terms, epsilon, delta = self.terms, self.terms.epsilon, self.terms.delta
        parts = _parts(entries, part)
        pasts = [(_spending(entries, p), _spending(entries, p, events)) for p in parts]
        past, after = max(pasts, key=lambda pair: pair[1].cost(terms))
        if after.cost(terms) <= epsilon:
            return
        costs = (e.cost(terms) for e in (past, _Spending(events), after))
        # Rounded up, because a cost must not look smaller than it is.
        spent, asked, both = (math.ceil(c * 1e4) / 1e4 if c < math.inf else c for c in costs)
        raise PrivacyParameterError(
            f"{self.path} allows epsilon {epsilon:.12g} at delta {delta:.12g}: {spent:.12g} is "
            f"spent or reserved, this release asks for {asked:.12g}, together {both:.12g}; one "
            f"with epsilon {past.left(terms):.12g} or less fits"
        )


@dataclass(eq=False)
class Reservation:
    """Budget set aside for one release. Made by `Ledger.reserve`; use it with ``with``.

    Leaving the block before the charge gives the budget back; after the charge, nothing does.
    """

    ledger: Ledger
    entry: int
    events: tuple[Event, ...]
    _token: str
    _descriptor: int | None
    _left: list[Event] = field(default_factory=list)  # charged, and not asked for yet

    def charge(self, event: Event | None = None) -> None:
        """Spend the reservation, on disk. Pays for one draw of noise, after it has returned.

        The first charge spends all of it; later ones let each other event be drawn, once.

        Guarantee:
            If it returns, the entry counts for ever: committed, synced, and read back from the
            very file that was opened. If it raises, draw nothing; the entry may count.

        Args:
            event: what the mechanism is about to release; has to be a reserved one. None for all.

        Raises:
            InternalError: another event than reserved.
            LedgerError: charged before, cancelled, or the file cannot be written or is another.
        """
        if event is not None and event not in self.events:
            raise InternalError("the mechanism's event is not the one that was reserved")
        if self._descriptor is None:
            raise LedgerError(f"entry {self.entry} of {self.ledger.path} was given back; reserve")
        if event is None or event not in self._left:
            self._move("reserved", "charged")
            self._left = list(self.events) if event else []
        if event:
            self._left.remove(event)
        _sync_folder(self.ledger.path)
        with _transaction(self.ledger) as db:
            self._require(db, "charged")

    def released(self) -> None:
        """Note that the release is out. Changes no sum.

        Raises:
            LedgerError: not charged, or the file cannot be used.
        """
        self._move("charged", "released")
        self.cancel()

    def cancel(self) -> None:
        """Let go: an entry that is not charged stops counting, one that is charged never does."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):  # a file that stays is unlocked, and swept later
                os.unlink(_lock_path(self.ledger.path, self._token))
            os.close(descriptor)  # LOCK_UN would unlock it for a forked process as well

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel()

    def _move(self, old: State, new: State) -> None:
        with _transaction(self.ledger, "BEGIN IMMEDIATE") as db:
            self._require(db, old)
            db.execute("UPDATE entries SET state = ? WHERE lock = ?", (new, self._token))

    def _require(self, db: sqlite3.Connection, state: State) -> None:
        rows = list(
            db.execute("SELECT id, state, events FROM entries WHERE lock = ?", [self._token])
        )
        if rows != [(self.entry, state, strict_json.dumps(_Booking(self.events)))]:
            raise LedgerError(
                f"entry {self.entry} of {self.ledger.path} is {rows[0][1] if rows else 'missing'}, "
                f"not {state}; one reservation allows one charge: reserve again"
            )


def create(
    path: Path | str, *, epsilon: float, delta: float, unit: str | None, relation: NeighbourRelation
) -> Ledger:
    """Make an empty ledger, mode 0600, and fix its `Terms` for good.

    Raises:
        PrivacyParameterError: terms that cannot be used.
        LedgerError: the file exists or cannot be written.
    """
    accounting.check_budget(epsilon, delta)
    if unit is not None and not (unit and unit.isprintable()):
        raise PrivacyParameterError("the unit field must have a printable name")
    path = Path(os.path.abspath(path))
    with _told(path, "cannot be created; a ledger never overwrites a file"):
        os.close(os.open(path, NEW_FILE, 0o600))
    try:
        with _transaction(path, "BEGIN IMMEDIATE") as db:
            db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {_FORMAT_VERSION}")
            for statement in _SCHEMA:
                db.execute(statement)
            terms = (secrets.token_hex(16), float(epsilon), float(delta), unit, relation)
            db.execute("INSERT INTO terms VALUES (?,?,?,?,?)", terms)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    _sync_folder(path)
    return open(path)


def open(path: Path | str) -> Ledger:
    """Open a ledger after a look at the file, its format and its terms.

    A file that others may read or write is refused, not corrected: a copy that was put back looks
    like that, and only its owner can say whether it is complete. Refused too are a symbolic link,
    which may point elsewhere tomorrow, and a second hard link, which hides SQLite's journal.

    Raises:
        LedgerError: any of that, or a file that is missing, damaged or of an unknown version.
    """
    path = Path(os.path.abspath(path))
    with _transaction(path) as db:
        names = ("application_id", "user_version", "integrity_check")
        mark, number, intact = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
        if mark != _APPLICATION_ID:
            raise LedgerError(f"{path} is empty or no ledger; delete it only if never charged")
        if number != _FORMAT_VERSION:
            raise LedgerError(f"{path} has format version {number}: use the dpmtv that wrote it")
        # Compared whole: a trigger could undo a charge.
        schema = tuple(sql for (sql,) in db.execute("SELECT sql FROM sqlite_master ORDER BY rowid"))
        if intact != "ok" or schema != _SCHEMA:
            raise LedgerError(f"{path} {_DAMAGED}")
        ledger_id, terms = _read_terms(path, db)
        _rows(path, db)
        return Ledger(path, terms, ledger_id, _inspect(path))


def history(path: Path | str) -> History:
    """What `Ledger.history` tells about the ledger at ``path``."""
    return open(path).history()


@dataclass(frozen=True)
class _Booking:
    """An entry's events in the certificate's JSON, with a hash that shows a flipped bit."""

    events: tuple[Event, ...]
    format_version: int = _FORMAT_VERSION

    def __post_init__(self) -> None:
        values = [value for e in self.events for value in vars(e).values()]
        if not values or not all(math.isfinite(value) and value > 0 for value in values):
            raise PrivacyParameterError("an entry needs events, and their numbers must be positive")


def _rows(path: Path, db: sqlite3.Connection, seen: bool = False) -> tuple[Entry, ...]:
    """The entries as they are stored, or ``seen`` with the locks that are gone.

    While the transaction lasts nobody can commit a step and then let go of its lock.
    """
    entries = []
    rows = db.execute("SELECT * FROM entries ORDER BY id")
    for number, part, state, text, at, tool, lock in rows:
        try:
            events = strict_json.loads(_Booking, text, _FORMAT_VERSION).events
        except UserError as error:
            raise LedgerError(f"{path} {_DAMAGED}") from error
        if seen and state in _WITHOUT_LOCK and not _is_held(_lock_path(path, lock)):
            state = _WITHOUT_LOCK[state]
        entries.append(Entry(number, part, state, events, at, tool, lock))
    return tuple(entries)


def _read_terms(path: Path, db: sqlite3.Connection) -> tuple[str, Terms]:
    rows = db.execute("SELECT id, epsilon, delta, unit, relation FROM terms").fetchall()
    try:
        ((ledger_id, epsilon, delta, unit, relation),) = rows
        accounting.check_budget(epsilon, delta)
        return ledger_id, Terms(epsilon, delta, unit, NeighbourRelation(relation))
    except (PrivacyParameterError, TypeError, ValueError) as error:
        raise LedgerError(f"{path} has terms that this dpmtv cannot read") from error


class _Spending(NamedTuple):
    events: Sequence[Event]
    late: bool = False  # whether some may follow from what others gave

    def cost(self, terms: Terms) -> float:
        """ε at δ; where some are late, slack has a hundredth of δ, and the sum the rest."""
        room = terms.delta * (_LATE if self.late else 1)
        if self.late and accounting.slack_of(self.events, terms.epsilon) > terms.delta - room:
            return math.inf
        return accounting.epsilon_of(self.events, room) if self.events else 0.0

    def left(self, terms: Terms) -> float:
        return accounting.further_epsilon(self.events, terms.epsilon, terms.delta, _LATE)


def _spending(entries: Sequence[Entry], part: str, more: Sequence[Event] = ()) -> _Spending:
    """What counts for the units of a part: its own releases, those without a part, and ``more``.

    The first entry was fixed before anything was seen. Later ones may follow from what was seen:
    they count as Gaussians, which alone add up then (docs/privacy.md, 4.11).
    """
    counts = [x.events for x in entries if x.part in ("", part) and x.state != "cancelled"]
    first, *rest = [*counts, tuple(more)]
    later = [accounting.as_gaussian(e) for events in rest for e in events]
    return _Spending([*first, *later], bool(later))


def _parts(entries: Sequence[Entry], part: str) -> list[str]:
    """The parts that a release of ``part`` adds to: all of them if it names none."""
    return [part] if part else sorted({x.part for x in entries} | {""})


@contextlib.contextmanager
def _transaction(where: Path | Ledger, begin: str = "BEGIN") -> Iterator[sqlite3.Connection]:
    """One transaction on a connection of its own, so that none crosses a fork or a thread.

    Given a ledger, on the very file and the very ledger that were opened before. It is never
    opened past SQLite: closing any descriptor of a file drops all of the process's locks on it.
    """
    path, ledger = (where.path, where) if isinstance(where, Ledger) else (where, None)
    inode = _inspect(path, ledger.inode if ledger else None)
    address = f"{path.as_uri()}?mode=rw"
    try:
        db = sqlite3.connect(address, uri=True, timeout=_TIMEOUT_S, isolation_level=None)
        with contextlib.closing(db):
            for pragma in _PRAGMAS:
                db.execute(f"PRAGMA {pragma}")
            db.execute(begin)
            _inspect(path, inode)  # now about the file that SQLite has opened
            if ledger and _read_terms(path, db) != (ledger.id, ledger.terms):
                raise LedgerError(f"{path} holds another ledger than when it was opened")
            yield db
            db.execute("COMMIT")
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        raise LedgerError(f"{path} {_CAUSES.get(code, f'cannot be used: {error}')}") from error


def _inspect(path: Path, inode: tuple[int, int] | None = None) -> tuple[int, int]:
    """Device and inode of a file that can be a ledger."""
    with _told(path, "cannot be found"):
        info = os.lstat(path)
    if not stat.S_ISREG(info.st_mode) or info.st_nlink > 1:
        raise LedgerError(f"{path} is a link or no file; name the ledger itself, under one name")
    if info.st_mode & 0o077:
        raise LedgerError(
            f"{path} has mode {stat.S_IMODE(info.st_mode):04o}, a ledger is for its owner only; if "
            f"it is complete and nobody changed it: chmod 600 {path}"
        )
    if inode not in {None, (info.st_dev, info.st_ino)}:
        raise LedgerError(f"{path} was replaced by another file since it was opened")
    return info.st_dev, info.st_ino


def _cancel_dead(path: Path, db: sqlite3.Connection) -> None:
    """Write down reservations whose processes are gone, and sweep the lock files left behind."""
    for entry in _rows(path, db, seen=True):
        if entry.state == "cancelled":
            db.execute("UPDATE entries SET state = ? WHERE lock = ?", (entry.state, entry.lock))
    pattern = re.compile(re.escape(f".{path.name}.") + r"[0-9a-f]{32}\.lock")
    with _told(path, "has lock files left in its folder that cannot be removed"):
        for name in filter(pattern.fullmatch, os.listdir(path.parent)):
            if not _is_held(path.parent / name):
                (path.parent / name).unlink(missing_ok=True)  # its owner may be at it, too
