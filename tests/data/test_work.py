"""Work directories and the private report: the owner's alone, whole, and nothing left over."""

from __future__ import annotations

import json
import os
import shutil
import stat
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.neighbours import Adversary

from dpmtv import pipeline
from dpmtv.data import work
from dpmtv.data.demonstrations import BadRow
from dpmtv.data.work import open_work, records_sha256, require_report, write_report
from dpmtv.errors import DataError
from dpmtv.privacy import mechanisms
from dpmtv.types import Demonstration

CHUNKS = 6
UMASKS = [0o000, 0o022, 0o077]
CANARY = "c4n4ry"


@pytest.fixture(params=UMASKS, ids="{:03o}".format)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def row(word: object, image: object = "any.png") -> Demonstration:
    return Demonstration(image, f"{word} {CANARY}", f"answer {CANARY}")


@pytest.fixture
def rows() -> list:
    """20 rows for 6 chunks of 3: two spare, and content of every kind."""
    words = [*range(1, 14), "raise", "nan", 40]
    return [*map(row, words), BadRow(17, "not JSON"), BadRow(18, "empty line"), row(7), row(9)]


class Interrupted(Adversary):
    """Stops the build at the chunk of this number, as Ctrl-C would; keeps the prompts before."""

    def __init__(self, at: int | None = None) -> None:
        self.left, self.prompts = at, []

    def last_token_heads(self, prompt):
        if self.left == 0 and CANARY in prompt.query.question:
            raise SystemExit  # an uncaught KeyboardInterrupt would stop pytest
        if CANARY in prompt.query.question:
            self.prompts.append(prompt)
            self.left = None if self.left is None else self.left - 1
        return super().last_token_heads(prompt)


@pytest.fixture
def sums(monkeypatch) -> list[np.ndarray]:
    """The exact sums that noise would be added to."""
    found = []

    def silent(values, scale):
        found.append(values.copy())
        return values

    monkeypatch.setattr(mechanisms, "_discrete_gaussian", silent)
    return found


def build(rows, folder=None, model=None, **options):
    settings = {"epsilon": 1.0, "delta": 1e-5, "selection": "all", "clip": 3.0, "shots": 2}
    return pipeline.build_task_vector(
        model or Adversary(), rows, work=folder, **(settings | options)
    )


def interrupt(rows, folder: Path, at: int, **options) -> Interrupted:
    model = Interrupted(at)
    with pytest.raises(SystemExit):
        build(rows, folder, model, **options)
    return model


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- going on -------------------------------------------------------------------------------


@contextmanager
def fixed_key(key: bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "fresh_key", lambda: key)
        patch.setattr(work, "fresh_key", lambda: key)
        yield


def test_two_builds_cannot_work_in_one_directory(tmp_path):
    with open_work(tmp_path / "work", []) as first:
        with pytest.raises(DataError, match="in use"), open_work(tmp_path / "work", []):
            pass
        first.store(0, None)
    with open_work(tmp_path / "work", []) as second:
        assert second.key == first.key
        assert second.load(0) == (True, None)


@pytest.mark.parametrize("relation", ["replace_one", "add_remove"])
def test_the_sum_is_the_same_wherever_the_build_was_interrupted(rows, tmp_path, sums, relation):
    options = {}
    if relation == "add_remove":
        rows = [replace(r, unit=f"unit {i}") for i, r in enumerate(rows)]
        options = {"relation": relation, "unit": "patient", "population": 3 * CHUNKS}
    folder = tmp_path / "work"
    for key in (b"one", b"two"):
        sums.clear()
        with fixed_key(key):
            whole = Interrupted()
            build(rows, model=whole, **options)
        assert len(whole.prompts) >= 3
        for at in range(len(whole.prompts)):
            with fixed_key(key):
                before = interrupt(rows, folder, at, **options)
            model = Interrupted()  # with the key of the directory; a fresh one has other chunks
            build(rows, folder, model, **options)
            assert before.prompts + model.prompts == whole.prompts
            assert (sums[-1] == sums[0]).all()
            assert not folder.exists()
        assert len(sums) == 1 + len(whole.prompts)


def test_interrupted_after_every_chunk_in_turn(rows, tmp_path, sums):
    with fixed_key(b"key"):
        build(rows)
        folder, model = tmp_path / "work", interrupt(rows, tmp_path / "work", 1)
    prompts = list(model.prompts)
    while folder.exists():
        model = Interrupted(1)
        try:
            build(rows, folder, model)
        except SystemExit:
            assert len(model.prompts) == 1
        prompts += model.prompts
    assert len(prompts) == len({id(p) for p in prompts}) <= CHUNKS
    assert (sums[0] == sums[1]).all()


def test_null_chunks_stay_null(tmp_path, sums):
    """A chunk that failed is not tried again: it might not fail the second time."""
    rows = [row("raise") for _ in range(4)] + [row(1) for _ in range(14)]
    folder, report = tmp_path / "work", tmp_path / "report.json"
    with fixed_key(b"key"):
        model = interrupt(rows, folder, 5)
    stored = [np.load(folder / f"chunk-{j:06d}.npy") for j in range(5)]
    null = [not values.size for values in stored]
    assert null == [_fails(prompt) for prompt in model.prompts]
    assert 0 < sum(null) < 5
    healthy = Adversary()
    healthy.last_token_heads = lambda prompt: np.ones(7)  # nothing fails any more
    build(rows, folder, healthy, report=report)
    assert len(json.loads(report.read_text())["null_chunks"]) == sum(null)


def _fails(prompt) -> bool:
    shown = [*(d.question for d in prompt.demonstrations), prompt.query.question]
    return any(text.startswith("raise") for text in shown)


def test_a_build_that_goes_on_draws_its_own_noise(rows, tmp_path):
    folder, copy = tmp_path / "work", tmp_path / "copy"
    interrupt(rows, folder, 3)
    shutil.copytree(folder, copy)
    one, two = build(rows, folder), build(rows, copy)
    assert (one.values != two.values).all()


def test_another_price_is_no_other_build(rows, tmp_path, sums):
    """What was computed does not depend on ε, δ or the ledger."""
    with fixed_key(b"key"):
        build(rows, epsilon=2.0)
        interrupt(rows, tmp_path / "work", 3)
    vector = build(rows, tmp_path / "work", epsilon=2.0)
    assert vector.certificate.privacy.epsilon == 2.0
    assert (sums[0] == sums[1]).all()


# --- what is refused ------------------------------------------------------------------------


def _edit(rows: list, place: int, **changes) -> list:
    return [*rows[:place], replace(rows[place], **changes), *rows[place + 1 :]]


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: (_edit(rows, 2, question="60 q"), {}),
        lambda rows: (_edit(rows, 2, answer="other"), {}),
        lambda rows: (_edit(rows, 2, image="other.png"), {}),
        lambda rows: (_edit(rows, 16, reason="empty line"), {}),
        lambda rows: ([*rows[1:], rows[0]], {}),
        lambda rows: (rows[:-1], {}),
        lambda rows: (rows, {"relation": "zero_out"}),
        lambda rows: (rows, {"shots": 1}),
        lambda rows: (rows, {"chunks": 5}),
        lambda rows: (rows, {"clip": 2.0}),
    ],
    ids=[
        "question",
        "answer",
        "image",
        "reason",
        "order",
        "fewer",
        "relation",
        "shots",
        "chunks",
        "clip",
    ],
)
def test_a_directory_of_another_build_is_refused_and_left_alone(rows, tmp_path, change):
    folder = tmp_path / "work"
    interrupt(rows, folder, 2)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    others, options = change(rows)
    with pytest.raises(DataError, match="other records") as caught:
        build(others, folder, **options)
    assert CANARY not in str(caught.value)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    build(rows, folder)


@pytest.mark.parametrize(
    "changes", [{"instruction": "Be brief."}, {"prompt_template_sha256": "1" * 64}]
)
def test_another_model_is_another_build(rows, tmp_path, changes):
    interrupt(rows, tmp_path / "work", 2)
    other = Adversary()
    vars(other).update(changes)
    with pytest.raises(DataError, match="other records"):
        build(rows, tmp_path / "work", other)
    other = Adversary()
    other.identity = replace(Adversary.identity, weights_sha256="1" * 64)
    with pytest.raises(DataError, match="other records"):
        build(rows, tmp_path / "work", other)


def test_a_changed_picture_is_another_build(tmp_path, picture):
    path = tmp_path / "a.png"
    picture.save(path)
    rows = [row(1, path) for _ in range(18)]
    interrupt(rows, tmp_path / "work", 2)
    picture.rotate(180).save(path)
    os.utime(path, ns=(0, 0))
    with pytest.raises(DataError, match="other records"):
        build(rows, tmp_path / "work")


def test_a_foreign_folder_is_refused_and_left_alone(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir(mode=0o700)
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(DataError, match="not a work directory"), open_work(folder, []):
        pass
    assert kept(folder) == ["thesis.txt"]
    foreign = open_work(folder / "thesis.txt", [])
    with pytest.raises(DataError, match="not a work directory"), foreign:
        pass
    assert (folder / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("target", ["folder", "nothing", "a build"])
def test_a_symbolic_link_is_refused_before_anything_is_spent(rows, tmp_path, target):
    """Deleting through a link fails, and that would be after the budget is spent."""
    real, link = tmp_path / "real", tmp_path / "link"
    if target == "a build":
        interrupt(rows, real, 2)
    elif target == "folder":
        real.mkdir(mode=0o700)
    link.symlink_to(real)
    model = Interrupted(0)
    with pytest.raises(DataError, match="link"):
        build(rows, link, model)
    assert target == "nothing" or real.is_dir()
    assert link.is_symlink()


DAMAGE = {
    "cut": lambda text: text[: len(text) // 2],
    "empty": lambda text: b"",
    "no JSON": lambda text: b"{" + text,
    "no UTF-8": lambda text: b"\xff" + text,
    "a list": lambda text: b"[]",
    "no key": lambda text: text.replace(b'"key"', b'"kex"'),
    "no hexadecimal": lambda text: text.replace(b'"key": "', b'"key": "zz'),
    "key is a number": lambda text: b'{"key": 5, "settings_sha256": "0"}',
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_state_is_refused_with_advice(rows, tmp_path, damage):
    folder = tmp_path / "work"
    interrupt(rows, folder, 2)
    state = folder / "build.json"
    state.write_bytes(damage(state.read_bytes()))
    with pytest.raises(DataError, match="damaged; delete the work directory"):
        build(rows, folder)


def test_a_changed_key_is_noticed(rows, tmp_path):
    """Chunks of two partitions in one sum: a record could be in two of them."""
    folder = tmp_path / "work"
    interrupt(rows, folder, 2)
    state = json.loads((folder / "build.json").read_text())
    digit = "0" if state["key"][0] != "0" else "1"
    for key in (digit + state["key"][1:], "", state["key"][2:], "00" * 65):
        (folder / "build.json").write_text(json.dumps(state | {"key": key}))
        with pytest.raises(DataError):
            build(rows, folder)


@pytest.mark.parametrize(
    "damage",
    [lambda data: b"", lambda data: data[:-3], lambda data: b"x" + data, lambda data: data[:9]],
    ids=["empty", "cut", "shifted", "header"],
)
def test_a_damaged_chunk_is_refused_with_advice(rows, tmp_path, sums, damage):
    folder = tmp_path / "work"
    interrupt(rows, folder, 3)
    path = folder / "chunk-000001.npy"
    if not np.load(path).size:
        np.save(path, np.ones(7))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=f"{path} is damaged; delete this one file"):
        build(rows, folder)
    path.unlink()
    with fixed_key(bytes.fromhex(json.loads((folder / "build.json").read_text())["key"])):
        build(rows)
    build(rows, folder)
    assert (sums[0] == sums[1]).all()


# --- whose it is ----------------------------------------------------------------------------


def test_everything_is_for_the_owner_alone_whatever_the_umask(rows, tmp_path, umask):
    folder = tmp_path / "deep" / "er" / "work"
    interrupt(rows, folder, 4)
    assert mode(folder) == 0o700
    assert kept(folder) == [
        "build.json",
        *(f"chunk-{j:06d}.npy" for j in range(len(kept(folder)) - 1)),
    ]
    assert {mode(path) for path in folder.iterdir()} == {0o600}
    build(rows, folder)
    assert kept(tmp_path) == ["deep"]
    assert kept(tmp_path / "deep" / "er") == [], "nothing is left over"


def test_files_are_never_open_to_others_while_they_are_written(rows, tmp_path, monkeypatch, umask):
    plain, seen = np.save, []

    def looking(file, values, **options):
        seen.append(stat.S_IMODE(os.fstat(file.fileno()).st_mode))
        plain(file, values, **options)

    monkeypatch.setattr(np, "save", looking)
    interrupt(rows, tmp_path / "work", 3)
    assert set(seen) == {0o600}


@pytest.mark.parametrize("open_mode", [0o755, 0o750, 0o701, 0o720, 0o777])
def test_a_folder_that_others_can_read_is_refused(rows, tmp_path, open_mode):
    empty, begun = tmp_path / "empty", tmp_path / "begun"
    empty.mkdir()
    interrupt(rows, begun, 2)
    for folder in (empty, begun):
        before = kept(folder)
        folder.chmod(open_mode)
        with pytest.raises(DataError, match=f"mode {open_mode:o}.*chmod 700"):
            build(rows, folder)
        assert kept(folder) == before
        folder.chmod(0o700)
        build(rows, folder)
        assert not folder.exists()


def test_what_is_kept_is_no_text_and_no_name(rows, tmp_path):
    folder = tmp_path / "work"
    interrupt(rows, folder, 4)
    for path in folder.iterdir():
        assert CANARY.encode() not in path.read_bytes()
    assert set(json.loads((folder / "build.json").read_text())) == {"key", "settings_sha256"}


def test_a_chunk_that_could_not_be_stored_leaves_no_half(rows, tmp_path, monkeypatch, sums):
    folder = tmp_path / "work"
    with fixed_key(b"key"):
        build(rows)
        with monkeypatch.context() as patch:
            replaced = os.replace

            def full(source, target):
                if "chunk-000002" in str(target):
                    raise OSError(28, "No space left on device")
                replaced(source, target)

            patch.setattr(os, "replace", full)
            with pytest.raises(OSError, match="No space"):
                build(rows, folder)
    assert not (folder / "chunk-000002.npy").exists()
    build(rows, folder)
    assert (sums[0] == sums[1]).all()
    assert not folder.exists()


# --- names of records -----------------------------------------------------------------------


def test_pictures_that_differ_only_in_shape_are_different_records():
    shapes = [("RGB", (4, 2)), ("RGB", (2, 4)), ("L", (4, 6)), ("L", (24, 1))]
    names = {records_sha256([row(1, Image.new(kind, size))]) for kind, size in shapes}
    assert len(names) == len(shapes)


def test_no_picture_stops_a_build_that_keeps_its_work(tmp_path, picture):
    """A picture that cannot be read makes its chunk null, and nothing else happens."""
    path = tmp_path / "cut.png"
    picture.save(path)
    path.write_bytes(path.read_bytes()[:200])
    with Image.open(path) as cut:  # opened, not read: that fails later
        images = [cut, "a\0b", "\ud800", tmp_path / "missing.png", *["any.png"] * 5]
        build([row(1, image) for image in images], tmp_path / "work")
    assert not (tmp_path / "work").exists()


# --- the report -----------------------------------------------------------------------------


def test_the_report_names_rows_and_is_the_owners(rows, tmp_path, umask):
    path = tmp_path / "report.json"
    path.write_text("an old one that everybody may read")
    path.chmod(0o644)
    chunks = [rows[0:3], rows[12:15], [], rows[15:17]]
    write_report(path, rows, chunks, [1, 2, 3])
    assert mode(path) == 0o600
    assert kept(tmp_path) == ["report.json"], "nothing is left over"
    report = json.loads(path.read_text())
    assert report.pop("private")
    assert report == {
        "rows": 20,
        "bad_rows": [
            {"file": 1, "row": 17, "reason": "not JSON"},
            {"file": 1, "row": 18, "reason": "empty line"},
        ],
        "chunks": 4,
        "null_chunks": [
            {"rows": [{"file": 1, "row": row} for row in rows]}
            for rows in ([13, 14, 15], [], [16, 17])
        ],
    }


def test_the_report_of_a_build_names_every_chunk_that_counted_as_zero(rows, tmp_path, sums):
    path = tmp_path / "report.json"
    model = Interrupted()
    build(rows, model=model, report=path)
    text = path.read_text()
    assert CANARY not in text
    report = json.loads(text)
    assert [bad["row"] for bad in report["bad_rows"]] == [17, 18]
    null = {row["row"] for chunk in report["null_chunks"] for row in chunk["rows"]}
    spare = set(range(1, 21)) - {rows.index(r) + 1 for r in _served(model, rows)}
    assert {14, 15} <= null | spare, "a chunk that raised, and one that is not a number"
    assert len(null) < 18


def _served(model: Interrupted, rows: list) -> list:
    shown = [d for p in model.prompts for d in p.demonstrations]
    asked = [p.query for p in model.prompts]
    return [r for r in rows if isinstance(r, Demonstration) and (r in shown or r.query in asked)]


def test_a_report_that_cannot_be_written_is_told_before_anything_is_spent(rows, tmp_path, sums):
    for path in (tmp_path / "no folder" / "report.json", tmp_path):
        with pytest.raises((DataError, OSError)):
            build(rows, report=path)
    assert sums == []


def test_a_report_that_cannot_be_written_is_refused_before_any_work(tmp_path):
    (tmp_path / "old.json").write_text("{}")
    for path in (tmp_path / "none" / "r.json", tmp_path, Path(), tmp_path / "old.json" / "r.json"):
        with pytest.raises(DataError, match=f"{path} cannot be written .*--report"):
            require_report(path)
    require_report(tmp_path / "old.json")
    require_report(tmp_path / "new.json")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"old.json": "{}"}
