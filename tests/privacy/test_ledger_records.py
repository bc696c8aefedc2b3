"""A ledger that paid for a record, or lies beside it, is not passed over in silence."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from dpmtv.errors import LedgerError, PrivacyParameterError
from dpmtv.privacy import ledger, ledger_records
from dpmtv.privacy.sensitivity import NeighbourRelation
from dpmtv.types import GaussianEvent

DIGESTS = [hashlib.sha256(b"%d" % n).digest() for n in range(20)]
OTHERS = [hashlib.sha256(b"other %d" % n).digest() for n in range(5)]
RELATION = NeighbourRelation.REPLACE_ONE
EVENT = GaussianEvent(delta2=1.0, sigma=10.0, scale=2**40, d=8)


def new(path: Path, charged: bool = False) -> ledger.Ledger:
    path.parent.mkdir(parents=True, exist_ok=True)
    book = ledger.create(path, epsilon=1.0, delta=1e-5, unit=None, relation=RELATION)
    if charged:
        with book.reserve([EVENT], relation=RELATION, unit=None) as reservation:
            reservation.charge()
    return book


def file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("any")
    return path


def look(digests, book, *files):
    return ledger_records.look(digests, book, files, ignore=False)


def refused(digests, book, *files) -> str:
    with pytest.raises(PrivacyParameterError) as found:
        look(digests, book, *files)
    assert "--ignore-ledgers" in str(found.value)
    assert ledger_records.look(digests, book, files, ignore=True) == "ignored"
    return str(found.value)


def lists(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.records"))


def test_one_common_record_is_enough_wherever_the_ledger_lies(tmp_path):
    data, far = file(tmp_path / "data" / "a.jsonl"), tmp_path / "books" / "far"
    book = new(far)
    assert look(DIGESTS, book, data) == "none-found"
    ledger_records.note(DIGESTS[:10], book, [data])
    assert {path.parent for path in lists(tmp_path)} == {data.parent, far.parent}
    for other in (None, new(tmp_path / "own" / "b")):
        assert f"build with --ledger {far}" in refused([*OTHERS, DIGESTS[9]], other, data)
        assert look(OTHERS, other, data) == "none-found"
        assert look(DIGESTS[10:], other, data) == "none-found"
    assert look(DIGESTS, book, data) == "none-found"
    moved = file(tmp_path / "elsewhere" / "a.jsonl")
    assert look(DIGESTS, None, moved) == "none-found", "a copy elsewhere is not recognised"
    shutil.copytree(data.parent, tmp_path / "copy")
    refused(DIGESTS, None, tmp_path / "copy" / "a.jsonl")


def test_a_ledger_named_after_the_file_or_another_name_of_it(tmp_path):
    data = file(tmp_path / "a.jsonl")
    os.link(data, tmp_path / "b.jsonl")
    (tmp_path / "c.jsonl").symlink_to(data)
    new(tmp_path / "a.ledger")  # no fingerprints, nothing spent
    own = new(tmp_path / "own" / "book")
    for name in "abc":
        assert str(tmp_path / "a.ledger") in refused([], own, tmp_path / f"{name}.jsonl")
    assert look([], own, file(tmp_path / "d.jsonl")) == "none-found"
    (tmp_path / "nowhere.jsonl").symlink_to(tmp_path / "gone")
    assert look([], own, tmp_path / "d.jsonl") == "none-found"
    folder = tmp_path / "study.v1"
    folder.mkdir()
    new(tmp_path / "study.v1.ledger")
    assert "study.v1.ledger" in refused([], own, folder)


def test_a_ledger_that_keeps_no_fingerprints(tmp_path):
    """Of an older version, or made by hand and not charged yet: it may be meant for these files."""
    data, other = file(tmp_path / "a.jsonl"), new(tmp_path / "own" / "book")
    new(tmp_path / "officer")  # of any name
    refused(DIGESTS, None, data)
    assert look(DIGESTS, other, data) == "none-found", "nothing was spent there"
    new(tmp_path / "older", charged=True)
    assert "older" in refused(DIGESTS, other, data)
    (tmp_path / "older").unlink()
    (tmp_path / "officer").unlink()
    file(tmp_path / "b.jsonl")
    new(tmp_path / "b.ledger", charged=True)
    assert look(DIGESTS, None, data) == "none-found", "that of another file"


def test_what_cannot_be_read_may_know_the_records(tmp_path):
    data = file(tmp_path / "a.jsonl")
    (tmp_path / "x.ledger").write_bytes(b"damaged")
    refused([], None, data)
    (tmp_path / "x.ledger").unlink()
    (tmp_path / "x.records").write_text("{}")
    with pytest.raises(LedgerError, match="move it away"):
        look([], None, data)
    (tmp_path / "x.records").unlink()
    (tmp_path / "page").write_bytes(b"\0" * 4096)
    (tmp_path / "empty").touch()
    assert look([], None, data) == "none-found"
    assert look([], None) is None, "nowhere to look"


def test_fingerprints_are_keyed_private_and_kept_once(tmp_path):
    books = [new(tmp_path / name / "book") for name in "ab"]
    for book in books:
        for digests in (DIGESTS[:5], DIGESTS[:8], []):
            ledger_records.note(digests, book, [])
    one, two = (path.read_text().splitlines()[1:] for path in lists(tmp_path))
    assert len(one) == len(set(one)) == len(two) == 8
    assert not set(one) & set(two), "another key"
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in lists(tmp_path))
    (path,) = lists(tmp_path / "a")
    path.write_text(path.read_text()[:-20])  # a write that was cut short
    ledger_records.note(DIGESTS[:8], books[0], [])
    for digest in DIGESTS[:8]:
        refused([digest], None, tmp_path / "a" / "any.jsonl")
    path.chmod(0o644)
    with pytest.raises(LedgerError, match="chmod 600"):
        ledger_records.note(DIGESTS, books[0], [])


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    data, book = file(tmp_path / "data" / "a.jsonl"), new(tmp_path / "book")
    ledger_records.note([], book, [])
    (taken,) = lists(tmp_path)
    (data.parent / taken.name).symlink_to(tmp_path / "trap")
    with pytest.warns(UserWarning, match="may not find"):
        ledger_records.note(DIGESTS, book, [data])
    assert not (tmp_path / "trap").exists()
    (data.parent / taken.name).unlink()
    taken.unlink()
    taken.mkdir()
    with pytest.raises(LedgerError, match="cannot be written"):
        ledger_records.note(DIGESTS, book, [data])
