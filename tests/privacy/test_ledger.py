"""The ledger against crashes, competitors, full disks and files that are not what they were.

As a script (``test_ledger.py FOLDER kills 1000``) this file is the harness of processes that are
killed or compete. ``DPMTV_KILLS`` raises the number of kills in the suite.
"""

from __future__ import annotations

import json
import math
import os
import random
import resource
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmtv.errors import InternalError, PrivacyParameterError
from dpmtv.privacy import accounting, ledger, ledger_locks, mechanisms
from dpmtv.privacy.sensitivity import NeighbourRelation
from dpmtv.types import GaussianEvent

RELATION = NeighbourRelation.REPLACE_ONE
FAST = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # where a sync costs nothing
EPSILON, DELTA = 1.0, 1e-5
ALL = 0.26805  # μ of a release at (0.999995, 1e-5)
REFUSED, TAKE_LOCK = 3, ledger._take_lock
complains = partial(pytest.raises, ledger.LedgerError)
refuses = partial(pytest.raises, PrivacyParameterError)


def event(mu: float, scale: int = 2**50, d: int = 1) -> GaussianEvent:
    return GaussianEvent(delta2=mu, sigma=1.0, scale=scale, d=d)


def cost(*mus: float) -> float:
    """ε of Gaussian releases together, from μ alone; of several, at 0.99 δ."""
    delta = DELTA if len(mus) < 2 else 0.99 * DELTA
    return accounting.gaussian_epsilon(1 / math.hypot(*mus), delta) if mus else 0.0


def create(path: Path, **terms) -> ledger.Ledger:
    usual = {"epsilon": EPSILON, "delta": DELTA, "unit": None, "relation": RELATION}
    return ledger.create(path, **usual | terms)


def reserve(book: ledger.Ledger, mu: float = ALL, part: str = "") -> ledger.Reservation:
    return book.reserve([event(mu)], relation=RELATION, unit=None, part=part)


def charge(book: ledger.Ledger, mu: float = ALL, part: str = "") -> ledger.Reservation:
    with reserve(book, mu, part) as reservation:
        reservation.charge()
    return reservation


def states(book: ledger.Ledger) -> list[str]:
    return [entry.state for entry in book.history().entries]


def sql(path: Path, *statements: str) -> list[tuple]:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        return [db.execute(statement).fetchall() for statement in statements][-1]


def stored(book: ledger.Ledger) -> list[str]:
    return [state for (state,) in sql(book.path, "SELECT state FROM entries ORDER BY id")]


def locks(book: ledger.Ledger) -> list[Path]:
    return list(book.path.parent.glob(f".{book.path.name}.????????*.lock"))


def die(reservation: ledger.Reservation) -> None:
    """What the kernel does for a killed process: the descriptor goes, all else stays."""
    os.close(reservation._descriptor)
    reservation._descriptor = None


@contextmanager
def limited(size: int):
    """No file may grow beyond ``size`` bytes: a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def book():
    with tempfile.TemporaryDirectory(dir=FAST) as folder:
        yield create(Path(folder) / "x")


def test_create_makes_a_private_file_and_never_overwrites(book):
    old, folder = os.umask(0), book.path.parent
    made = create(folder / "a b?#%", epsilon=0.1, delta=1e-7, unit="patient")
    os.umask(old)
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600
    assert made.terms == ledger.Terms(0.1, 1e-7, "patient", RELATION)
    before = made.path.read_bytes()
    (folder / "link").symlink_to("elsewhere")
    for name in (made.path.name, "link"):
        with complains(match="cannot be created; a ledger never overwrites"):
            create(folder / name)
    for terms in ({"epsilon": 0.0}, {"delta": 1.0}, {"unit": ""}):
        with refuses(match="must"):
            create(folder / "y", **terms)
    with limited(1000), complains(match="disk is full"):
        create(folder / "y")
    assert (made.path.read_bytes(), ledger.open(made.path)) == (before, made)
    assert sorted(os.listdir(folder)) == ["a b?#%", "link", "x"]


DAMAGE = [
    (lambda p: p.unlink(), r"cannot be found \(No such file"),
    (lambda p: p.symlink_to(p.rename(p.with_name("other"))), "is a link or no file"),
    (lambda p: os.link(p, p.with_name("other")), r"is a link .* under one name"),
    (lambda p: p.chmod(0o604), r"has mode 0604.* chmod 600"),
    (lambda p: os.truncate(p, 0), "is empty or no ledger; delete it only if"),
    (lambda p: sql(p, "PRAGMA application_id = 1"), "is empty or no ledger"),
    (lambda p: sql(p, "PRAGMA user_version = 2"), "has format version 2: use the dpmtv that"),
    (lambda p: os.truncate(p, p.stat().st_size // 2), "is damaged; restore a copy"),
    (lambda p: p.write_bytes(b"\x07" * 4096), "is damaged; restore a copy"),
    (lambda p: p.write_bytes(p.read_bytes().replace(b": 0.25", b": 0.15")), "is damaged"),
    (
        lambda p: sql(p, "CREATE TRIGGER t AFTER UPDATE ON entries BEGIN SELECT 1; END"),
        "is damaged",
    ),
    (
        lambda p: sql(p, "PRAGMA ignore_check_constraints=1", "UPDATE entries SET state=0"),
        "damaged",
    ),
    (lambda p: sql(p, "DELETE FROM terms"), "has terms that this dpmtv cannot read"),
    (lambda p: sql(p, "UPDATE terms SET relation = 'swap'"), "has terms that"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE)
def test_open_refuses_what_is_not_a_whole_ledger_of_its_owner(book, damage, message):
    charge(book, 0.25)
    damage(book.path)
    with complains(match=message) as caught:
        ledger.open(book.path)
    assert str(caught.value).startswith(f"{book.path} ")


def test_releases_that_do_not_belong_together_are_refused(book):
    made = create(book.path.with_name("y"), unit="patient")
    for relation, unit in ((NeighbourRelation.ZERO_OUT, "patient"), (RELATION, None)):
        with refuses(match=f"one per patient, the release is {relation} per {unit or 'record'}"):
            made.reserve([event(0.1)], relation=relation, unit=unit)
    for bad in (event(0.0), event(-1.0), event(math.nan), event(math.inf), event(0.1, d=0), None):
        with refuses(match="numbers must be positive"):
            book.reserve([event(0.1), bad] if bad else [], relation=RELATION, unit=None)
    with refuses(match="a part needs a printable name"):
        reserve(book, part="a\nb")
    assert states(made) == states(book) == []


def test_the_refusal_tells_what_is_spent_asked_and_left(book):
    with refuses(match=r": 0 is .* inf, together inf; one with epsilon 1 or less fits"):
        book.reserve([event(0.1, scale=2**10)], relation=RELATION, unit=None)
    charge(book, 0.2)
    with refuses() as caught:
        reserve(book, 0.2)
    left = book.history().remaining[""]
    assert str(caught.value) == (
        f"{book.path} allows epsilon 1 at delta 1e-05: 0.7256 is spent or reserved, this release "
        f"asks for 0.7256, together 1.0615; one with epsilon {left:g} or less fits"
    )
    with refuses():
        reserve(book, 1 / accounting.noise_multiplier(left + 1e-3, DELTA))
    charge(book, 1 / accounting.noise_multiplier(left, DELTA))


def test_noise_so_coarse_that_another_way_might_have_used_delta_up_is_refused(tmp_path):
    """Each of two ways meets ε = 8: coarse noise, or fine noise with more μ. Not both together."""
    roomy = create(tmp_path / "roomy", epsilon=8.0)
    coarse = event(0.1, scale=2**20, d=10_000)
    assert 0.01 * DELTA < accounting.discreteness_slack(8.0, 10_000, 2**20) < DELTA
    charge(roomy, 0.1)
    with refuses(match="together inf"):
        roomy.reserve([coarse], relation=RELATION, unit=None)
    roomy.reserve([event(0.1, scale=2**30, d=10_000)], relation=RELATION, unit=None).cancel()


def test_exactly_the_budget_can_be_spent_in_each_part(book):
    mu = 1 / accounting.noise_multiplier(EPSILON, DELTA)
    for part, some in (("january", mu), ("february", 0.25), ("february", 0.05)):
        with refuses():
            reserve(book, 1.0001 * mu, part)
        charge(book, some, part)
    told = book.history()
    assert told.spent == pytest.approx({"february": 0.947119114526, "january": EPSILON}, rel=1e-9)
    assert told.remaining["january"] == 0 < told.remaining["february"]
    with refuses():  # without a part it is about everybody
        reserve(book, 0.01)


def test_a_release_without_a_part_counts_in_all(book):
    mu = 1 / accounting.noise_multiplier(EPSILON, DELTA)
    charge(book, 0.8 * mu)
    with refuses():
        reserve(book, 0.7 * mu, "march")
    charge(book, 0.5 * mu, "march")
    with refuses():
        reserve(book, 0.5 * mu)
    for name in (" march", "march ", " "):
        with refuses():
            reserve(book, 0.01, name)


def test_reserved_charged_released(book):
    with reserve(book, 0.2) as reservation:
        assert states(book) == stored(book) == ["reserved"]
        with complains(match=r"entry 1 .* is reserved, not charged"):
            reservation.released()
        with pytest.raises(InternalError, match="not the one that was reserved"):
            reservation.charge(event(0.21))
        reservation.charge(event(0.2))
        assert states(book) == stored(book) == ["charged"]
        with complains(match=r"entry 1 .* is charged, not reserved; one reservation allows one"):
            reservation.charge()
        reservation.released()
    assert stored(book) == ["released"]
    told = ledger.history(book.path)
    assert told.entries[0].events == (event(0.2),)
    again = json.loads(json.dumps(asdict(told), allow_nan=False))
    assert again["entries"][0]["events"] == [asdict(event(0.2))]
    assert (again["terms"]["relation"], again["spent"]) == ("replace_one", {"": cost(0.2)})


def test_before_the_charge_nothing_is_spent_after_it_everything(book):
    with reserve(book) as given_back:
        pass
    with complains(match=r"entry 1 .* was given back; reserve"):
        given_back.charge()
    with suppress(KeyError), reserve(book):
        raise KeyError
    reservation = charge(book)
    assert states(book) == ["cancelled", "cancelled", "lost"]
    with refuses():
        reserve(book, 0.1)
    reservation.released()  # the release was out after all
    assert states(book)[-1] == "released"


def test_noise_is_drawn_only_after_the_charge_is_on_disk(book, monkeypatch):
    drawn, draw = [], mechanisms._discrete_gaussian
    watched = lambda *arguments: drawn.append(stored(book)) or draw(*arguments)  # noqa: E731
    monkeypatch.setattr(mechanisms, "_discrete_gaussian", watched)
    shape = {"chunks": 2, "clip_norms": [1.0], "block_sizes": [3]}
    mechanism = mechanisms.calibrate(epsilon=0.9, delta=DELTA, relation=RELATION, **shape)
    with book.reserve([mechanism.event], relation=RELATION, unit=None) as reservation:
        mechanism.release([np.ones(3), None], charge=reservation.charge)
        with complains(match="one reservation allows one charge"):
            mechanism.release([np.ones(3), None], charge=reservation.charge)
    assert drawn == [["charged"]]


def test_the_charge_is_synced_with_its_folder_and_read_back(book, monkeypatch):
    with ledger._transaction(book) as db:
        assert db.execute("PRAGMA synchronous").fetchone() == (3,)  # EXTRA
        assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(stat.S_ISDIR(os.fstat(fd).st_mode)))
    charge(book, 0.1)
    assert synced == [True]
    # A disk that swallows the charge, and a file that is swapped: noticed after the commit.
    undo = "UPDATE entries SET state = 'reserved'"
    monkeypatch.setattr(os, "fsync", lambda fd: sql(book.path, undo))
    with complains(match=r"entry 2 .* is reserved, not charged"):
        charge(book, 0.1)
    monkeypatch.setattr(os, "fsync", lambda fd: put_copy(book.path))
    with complains(match="was replaced by another file"):
        charge(book, 0.1)


def test_a_reservation_counts_while_it_lives_and_not_when_its_process_is_gone(book):
    first = reserve(book)
    child = os.dup(first._descriptor)  # the lock is shared as with a forked child
    die(first)
    with refuses(match="1 is spent or reserved"):
        reserve(book)
    os.close(child)
    assert states(book) == ["cancelled"]
    assert stored(book) == ["reserved"]  # looking writes nothing
    second = reserve(book)
    assert stored(book) == ["cancelled", "reserved"]
    assert len(locks(book)) == 1
    second.charge(), die(second)
    assert states(book) == ["cancelled", "lost"]


def test_where_locks_fail_charges_are_refused(book, monkeypatch):
    first = reserve(book)
    locks(book)[0].unlink()
    # A new lock of the ledger x.b, not yet held, is none of our business.
    (other := book.path.with_name(f".x.b.{'0' * 32}.lock")).touch()
    with reserve(book), complains(match="is cancelled, not reserved"):
        first.charge()
    first.cancel()
    assert locks(book) == [other]
    other.rename(book.path.with_name(f".x.{'0' * 32}.lock"))
    with monkeypatch.context() as patch:  # somebody else sweeps it at the same time
        patch.setattr(ledger, "_is_held", lambda lock: lock.unlink(missing_ok=True))
        reserve(book).cancel()
    monkeypatch.setattr(ledger_locks.fcntl, "flock", lambda *_: os.stat("/nowhere"))
    with complains(match=r"needs a lock file .* \(No such file"):
        reserve(book)


def test_the_clock_decides_nothing(book, monkeypatch):
    dates = iter([datetime(year, 1, 1, tzinfo=UTC) for year in (2020, 2010, 1970)])
    monkeypatch.setattr(ledger, "datetime", type("", (), {"now": lambda zone: next(dates)}))
    charge(book, 0.2).released()
    charge(book, 0.1)
    assert book.history().entries[1].reserved_at == "2010-01-01T00:00:00+00:00"
    assert states(book) == ["released", "lost"]
    assert book.history().spent[""] == pytest.approx(cost(0.2, 0.1))


def put_copy(path: Path) -> None:
    os.replace(shutil.copy2(path, path.with_name("copy")), path)


SWAPS = [
    (lambda p: p.unlink(), "cannot be found"),
    (put_copy, "was replaced by another file"),
    (lambda p: p.write_bytes(create(p.with_name("y")).path.read_bytes()), "holds another ledger"),
    (lambda p: sql(p, "DELETE FROM entries"), r"entry 1 .* is missing, not reserved"),
    (lambda p: sql(p, "UPDATE entries SET events = replace(events, '0.1', '0.01')"), "entry 1"),
]


@pytest.mark.parametrize(("swap", "message"), SWAPS)
def test_a_charge_goes_to_the_very_file_that_was_opened_or_nowhere(book, swap, message):
    with reserve(book, 0.1) as reservation:
        swap(book.path)
        with complains(match=message):
            reservation.charge()
    assert "charged" not in stored(book) if book.path.exists() else not os.listdir(book.path.parent)


def test_a_full_disk_refuses_the_charge_and_leaves_the_ledger_whole(book, monkeypatch):
    with reserve(book, 0.1) as reservation:
        for size in (0, 100, 512, 1000, 4096, 4600, 8192, 9000):
            for action in (reservation.charge, lambda: reserve(book, 0.1)):
                with limited(size), complains(match="its disk is full"):
                    action()
            assert states(ledger.open(book.path)) == ["reserved"]
        reservation.charge()
    reserve(book, 0.1).cancel()
    assert (states(book), locks(book)) == (["lost", "cancelled"], [])
    monkeypatch.setattr(ledger, "_PRAGMAS", (*ledger._PRAGMAS, "max_page_count = 3"))
    with complains(match="cannot grow; free some space"):
        [charge(book, 0.001) for _ in range(100)]
    assert stored(book).count("reserved") == 0


def test_a_ledger_locked_too_long_is_refused(book, monkeypatch):
    monkeypatch.setattr(ledger, "_TIMEOUT_S", 0.05)
    with reserve(book, 0.1) as reservation:
        with closing(sqlite3.connect(book.path, isolation_level=None)) as db:
            for begin in ("BEGIN IMMEDIATE", "BEGIN"):  # a writer, and a reader that never ends
                db.execute(begin)
                db.execute("SELECT * FROM terms").fetchall()
                for action in (reservation.charge, lambda: reserve(book, 0.1)):
                    with complains(match="is locked by another process"):
                        action()
                db.execute("ROLLBACK")
        reservation.charge()


def test_what_cannot_be_written_is_told_and_can_still_be_read(monkeypatch):
    folder, user = Path(tempfile.mkdtemp(dir="/tmp")), os.geteuid()
    monkeypatch.setattr(ledger, "version", lambda _: "0")  # the other user may not see us installed
    cost(0.1)  # imports what is needed, for the same reason
    if user == 0:  # whom file modes do not bind
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)
    try:
        made = create(folder / "x")
        with reserve(made, 0.1) as reservation:
            for path, mode in ((made.path, 0o400), (folder, 0o500)):
                path.chmod(mode)
                for action in (reservation.charge, lambda: reserve(made, 0.1)):
                    with complains(match="cannot be written; you need write|needs a lock file"):
                        action()
                assert states(ledger.open(made.path)) == ["reserved"]
                path.chmod(mode | 0o200)
            reservation.charge()
    finally:
        os.seteuid(user)
        shutil.rmtree(folder)


# Model of a reservation: what a step makes of a state; a charge or release of another one raises.
TURNS = {
    "charge": {"reserved": "charged", "unlocked": "charged"},
    "released": {"charged": "released", "lost": "released"},
    "die": {"reserved": "cancelled", "unlocked": "cancelled", "charged": "lost"},
    "unlock": {"reserved": "unlocked"},
}
SPENT = {"charged", "lost", "released"}
STEP = st.sampled_from(["reserve", "reserve", *TURNS])


@given(st.lists(st.tuples(STEP, st.integers(0, 5), st.sampled_from("ab")), min_size=4, max_size=14))
@settings(max_examples=20, deadline=None)
def test_no_order_of_steps_goes_over_the_budget(steps):
    held: list[list] = []  # reservation, μ, part, state

    mus = lambda part, of: [mu for _, mu, p, state in held if p == part and state in of]  # noqa: E731
    with tempfile.TemporaryDirectory(dir=FAST) as name:
        made = create(Path(name) / "x")
        for step, number, part in steps:
            if step == "reserve":
                mu = (0.05, 0.1, 0.15, 0.18, 0.2, ALL)[number]
                fits = cost(*mus(part, SPENT | {"reserved"}), mu) <= EPSILON
                with nullcontext() if fits else refuses():
                    held.append([reserve(made, mu, part), mu, part, "reserved"])
                    for item in held:  # whose lock was deleted is found out now
                        item[3] = "cancelled" if item[3] == "unlocked" else item[3]
            elif held:
                item = held[number % len(held)]
                reservation, new = item[0], TURNS[step].get(item[3])
                if step in {"charge", "released"}:
                    with nullcontext() if new else complains(match="entry"):
                        reservation.charge() if step == "charge" else reservation.released()
                elif new and step == "die":
                    die(reservation)
                elif new:
                    ledger._lock_path(made.path, reservation._token).unlink()
                item[3] = new or item[3]
            told = made.history().spent
            for part in {item[2] for item in held}:
                assert cost(*mus(part, SPENT)) <= EPSILON
                assert told[part] == pytest.approx(cost(*mus(part, SPENT | {"reserved"})), rel=1e-9)
        for reservation, *_ in held:
            reservation.cancel()


def attempt(book: ledger.Ledger) -> int:
    try:
        charge(book)
        return 0
    except PrivacyParameterError:
        return REFUSED


def test_threads_cannot_both_spend_the_last(book):
    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(attempt, [book] * 8)) == [0] + [REFUSED] * 7


@pytest.mark.parametrize("part", ["race 40", f"kills {os.environ.get('DPMTV_KILLS', '10')}"])
def test_processes_that_compete_or_are_killed(book, part):
    """This file as a script: a process of one thread, so that it may fork."""
    command = [sys.executable, __file__, str(book.path.parent), *part.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{part}: ")


def fork(function) -> int:
    child = os.fork()
    if child == 0:
        os._exit(function() or 0)  # an exception ends the child with a traceback and 1
    return child


def race(made: ledger.Ledger) -> str:
    """Two processes want the last of the budget; who is allowed it is slow to write it down."""
    ledger._take_lock = lambda path: time.sleep(0.002) or TAKE_LOCK(path)
    children = [fork(lambda: attempt(made)) for _ in range(2)]
    assert sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in children) == [0, REFUSED]
    assert stored(made) == ["charged"]
    return "one winner"


def kills(made: ledger.Ledger) -> str:
    """Kill -9 at a random instant a process that reserves, charges, and tells what it released."""
    os.mkdir(out := made.path.with_suffix(".released"))

    def work():
        while True:
            with reserve(made, 1e-3) as reservation:
                reservation.charge()
                (out / str(reservation.entry)).touch()
                reservation.released()

    child = fork(work)
    time.sleep(random.uniform(0, 0.1))
    os.kill(child, signal.SIGKILL)
    assert os.wait() == (child, signal.SIGKILL)
    told = ledger.history(made.path)
    paid = {entry.id for entry in told.entries if entry.state in {"released", "lost"}}
    assert {int(path.name) for path in out.iterdir()} <= paid
    assert {entry.state for entry in told.entries} <= {"released", "lost", "cancelled"}
    assert math.isclose(told.spent[""], cost(*[1e-3] * len(paid)), rel_tol=1e-9)
    charge(made, 1e-3).released()  # the next run works, and sweeps
    assert locks(made) == []
    return told.entries[-1].state if told.entries else "nothing"


if __name__ == "__main__":
    cost(0.1)  # imports what the children need
    folder, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    told = [globals()[name](create(folder / f"{number}.ledger")) for number in range(count)]
    print(f"{name} {count}:", {what: told.count(what) for what in told})  # noqa: T201
