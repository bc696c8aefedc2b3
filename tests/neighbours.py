"""Neighbours through the real partition, chunks and build: how far apart are the sums?

The model is an adversary: its chunk map knows the clip and answers as badly as any model could.
tests/test_neighbours.py runs the check on the code as it is, tests/test_planted_faults.py on code
with a fault in it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
from PIL import Image

from dpmtv import pipeline, public_tasks
from dpmtv.data import chunks as data_chunks
from dpmtv.data.demonstrations import BadRow
from dpmtv.data.images import load_image
from dpmtv.data.partition import assign_by_id
from dpmtv.geometry import ReleaseGeometry
from dpmtv.models import choosing, extraction
from dpmtv.privacy import certificate, mechanisms
from dpmtv.types import Demonstration, HeadLayout

FARTHER = "neighbours are farther apart than the certificate says"
SHORT = "no pair reaches the certified distance, so the check shows little"
MOVED = "a change of one unit moved another"

CLIP = (3.0, 0.15)  # what the public activations below lead to
M, CODES, HALF = 8, 64, 32
MISSING = Path("/nowhere/missing.png")
FAILING = ("raise", "panic", "nan")
NAMES = ("Ω", "é", "É", "0", "00", "患者", "\U0001f9ea", "a b", "null", "x" * 300)


class Panic(BaseException):
    """As PyO3 raises for a panic in Rust."""


def _table() -> np.ndarray:
    """Answers of the adversary: entry i + 32 is the opposite of entry i."""
    rng = np.random.default_rng(7)
    rows = []
    for i in range(HALF):
        blocks = []
        for size, radius in zip((4, 3), CLIP, strict=True):
            direction = np.eye(size)[rng.integers(size)] * rng.choice([-1, 1])
            if i % 4 == 3:  # elsewhere the longest that whole grid units allow
                direction = rng.normal(size=size)
            length = rng.choice([1.0, 1.0002, 1e3, 1e300]) if i % 8 else rng.choice([0.3, 1e-320])
            blocks.append(direction / np.linalg.norm(direction) * radius * length)
        rows.append(np.concatenate(blocks))
    rows[8][5], rows[16][0] = np.nan, np.inf
    return np.array([*rows, *(-row for row in rows)])


class Adversary:
    """What `build_task_vector` needs of a model: two layers, of two heads of 2 and one of 3.

    The sum of the codes in the chunk, weighted by place, names an entry of the table. So each row
    decides alone, its place too, and a code changed by 32 turns the answer into its opposite.
    """

    layout = HeadLayout((2, 1), (2, 3))
    instruction = ""
    dtype = "float32"
    prompt_template_sha256 = "0" * 64
    table = _table()
    identity = certificate.ModelIdentity(None, None, "0" * 64, "Adversary", (2, 1), (2, 3))

    def last_token_heads(self, prompt):
        total = 0
        queries = [*(d.query for d in prompt.demonstrations), prompt.query]
        # The second is the preflight's.
        own = [q for q in queries if q.question.split(" ")[0] not in ("public", "What")]
        if not own:
            return np.array([2.0, 0, 0, 0, 0.1, 0, 0])
        for place, query in enumerate(own):
            word = query.question.split(" ", 1)[0]
            if word == "nan":
                return np.full(7, np.nan)
            if word in FAILING:
                raise Panic if word == "panic" else RuntimeError(query.question)
            if isinstance(query.image, Path):
                load_image(query.image)
            total += (2 * place + 1) * int(word)
        return self.table[total % CODES]

    def recover(self) -> None:
        """Nothing to free."""


def one_by_one(model, prompts):
    """Public activations of a model that knows no batches."""
    return np.stack([model.last_token_heads(prompt) for prompt in prompts])


@dataclass(frozen=True)
class Case:
    """One relation and unit; ``slots`` is n where that is public."""

    relation: str
    named: bool = False
    per_unit: int = 1
    shots: int = 2
    slots: int = 27
    versions: int = 6
    query: str = "private"
    per_layer: bool = True
    learned: bool = False

    @property
    def size(self) -> int:
        """Rows of a full chunk."""
        return self.shots + (self.query == "private")

    @property
    def options(self) -> dict:
        declared = self.relation == "add_remove"
        return {
            "relation": self.relation,
            "unit": "patient" if self.named else None,
            "per_unit": self.per_unit,
            "population": M * 3 if declared else None,
            "shots": self.shots,
            "chunks": M,
            "query": self.query,
            "per_layer": self.per_layer,
        }


RECORD = Case("replace_one")
PAPER = Case("zero_out", versions=17)
UNIT = Case("replace_one", named=True)
BIG_UNIT = Case("replace_one", named=True, per_unit=3, shots=3, slots=18)
ADDED = Case("add_remove", named=True, versions=17)
BIG_ADDED = Case("add_remove", named=True, per_unit=3, shots=3, versions=17)
# Public queries and one clip for all layers: the default.
TOGETHER = {"query": "public", "per_layer": False, "shots": 1}
DEFAULT = Case("replace_one", slots=11, **TOGETHER)
DEFAULT_ADDED = Case("add_remove", named=True, versions=17, **TOGETHER)
# With a centre, weights and gains besides, as the default has them.
LEARNED = Case("replace_one", slots=11, learned=True, **TOGETHER)


# --- building --------------------------------------------------------------------------------


@dataclass
class Built:
    """A build without noise: the integer sum, the chunks, and what was certified."""

    total: np.ndarray
    chunks: list
    privacy: certificate.Privacy
    units: dict = field(repr=False)  # row → unit, both by identity

    @functools.cached_property
    def places(self) -> list[list[int]]:
        return [[id(row) for row in chunk] for chunk in self.chunks]


@contextlib.contextmanager
def builder(case: Case):
    """``build(units, rows, key)``: the real build, its noise left out and its key given.

    Work that is the same in every build is done once, or 20,000 builds would take too long.
    """
    public = [
        Demonstration(Image.new("RGB", (2, 2)), f"public {i}", "a") for i in range(case.shots + 2)
    ]
    seen: dict = {}
    learned = ReleaseGeometry(
        Adversary.layout,
        np.ones(3, bool),
        (1.0,),
        centre=np.array([0.3, -0.1, 0.2, 0, 0.5, -0.2, 0.1]),
        weights=np.array([0.5, 2.0, 1.3]),
        gains=np.array([3.0, 0.2, 1.0]),
    )

    def silent(values, scale):
        seen.setdefault("noise", []).append((values.copy(), scale))
        return values

    plain = pipeline.form_chunks

    def form_chunks(*args, **options):
        seen["chunks"] = plain(*args, **options)
        return seen["chunks"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mechanisms, "_discrete_gaussian", silent)
        patch.setattr(pipeline, "form_chunks", form_chunks)
        patch.setattr(pipeline, "fresh_key", lambda: seen["key"])
        patch.setattr(pipeline, "preflight", lambda *_: None)
        patch.setattr(public_tasks, "public_activations", one_by_one)
        if case.learned:
            patch.setattr(pipeline, "release_geometry", lambda *_, **__: learned)
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        patch.setattr(extraction, "_silence", contextlib.nullcontext)
        patch.setattr(pipeline, "calibrate", functools.cache(pipeline.calibrate))
        for module in (pipeline, certificate):
            patch.setattr(module, "version", functools.cache(module.version))

        def build(units, rows, key) -> Built:
            seen.clear()
            seen["key"] = key
            vector = pipeline.build_task_vector(
                Adversary(),
                rows,
                public=public,
                epsilon=1.0,
                delta=1e-5,
                selection="all",
                **case.options,
            )
            privacy = vector.certificate.privacy
            ((total, scale),) = seen["noise"]
            assert scale == privacy.scale, "the noise is not of the certified size"
            released = total * privacy.grid / M
            if case.learned:
                released = learned.from_release(released)
            assert (vector.values == released.astype(np.float32)).all(), "not the sum over m"
            owner = {id(row): place for place, unit in enumerate(units) for row in unit}
            return Built(total, seen["chunks"], privacy, owner)

        yield build


# --- neighbours ------------------------------------------------------------------------------


def draw_row(rng: random.Random, name: str | None):
    roll = rng.random()
    word = rng.choice(FAILING) if roll < 0.06 else str(rng.randrange(CODES))
    if roll > 0.9:
        return BadRow(rng.randrange(1, 99), "not JSON", name)
    image = MISSING if roll > 0.86 else "any.png"
    return Demonstration(image, f"{word} {rng.random()}", "a", unit=name)


def draw_unit(rng: random.Random, case: Case, name: str | None) -> list:
    """One record, or for a person between one and far more than the cap; some wholly bad."""
    if not case.named:
        return [draw_row(rng, None)]
    if rng.random() < 0.07:
        return [BadRow(i, "not UTF-8", name) for i in range(1, rng.randrange(2, 9))]
    return [draw_row(rng, name) for _ in range(rng.choice((1, 1, 2, 3, 3, 4, 12)))]


def turned(rng: random.Random, unit: list) -> list:
    """The same unit with one code turned round, and the answer of its chunk with it."""
    able = [i for i, row in enumerate(unit) if isinstance(row, Demonstration)]
    able = [i for i in able if unit[i].question.split(" ")[0].isdigit()]
    if not able:
        return list(unit)
    place = rng.choice(able)
    code, rest = unit[place].question.split(" ", 1)
    other = replace(unit[place], question=f"{(int(code) + HALF) % CODES} {rest}")
    return [*unit[:place], other, *unit[place + 1 :]]


def failed(rng: random.Random, unit: list) -> list:
    """Content that makes the unit's chunk null."""
    row = Demonstration("any.png", f"{rng.choice(FAILING)} {rng.random()}", "a", unit=unit[0].unit)
    return [rng.choice((row, replace(row, image=MISSING, question="1 x")))]


def interleaved(rng: random.Random, units: list[list], keep_first: bool) -> list:
    """A file: units in any mixture, each unit's rows in their order.

    ``keep_first`` keeps the order of first rows too, which is the list of slots.
    """
    if all(len(unit) == 1 for unit in units) and keep_first:
        return [row for unit in units for row in unit]
    waiting, begun, rows = [iter(unit) for unit in units], [], []
    if not keep_first:
        begun, waiting = waiting, []
    while waiting or begun:
        if waiting and (not begun or rng.random() < 0.4):
            begun.append(waiting.pop(0))
            rows.append(next(begun[-1]))
            continue
        source = rng.choice(begun)
        row = next(source, None)
        if row is None:
            begun.remove(source)
        else:
            rows.append(row)
    return rows


def replacements(rng: random.Random, case: Case):
    """Worlds that differ in one slot; every two of them are neighbours."""
    units = [draw_unit(rng, case, f"unit {i}" if case.named else None) for i in range(case.slots)]
    slot = rng.randrange(case.slots)
    newcomer = units[slot][0].unit
    if case.named and rng.random() < 0.5:
        newcomer += "'"  # between its neighbours, also where ids are sorted
    other = draw_unit(rng, case, newcomer)
    contents = [units[slot], turned(rng, units[slot]), other, turned(rng, other)]
    contents += [failed(rng, other), draw_unit(rng, case, newcomer)]
    worlds = [[*units[:slot], c, *units[slot + 1 :]] for c in contents[: case.versions]]
    return worlds, list(itertools.combinations(range(len(worlds)), 2)), slot


def nulled(rng: random.Random, case: Case):
    """A world, and others in which one chunk fails; only the first is a neighbour of each."""
    units = [draw_unit(rng, case, None) for _ in range(case.slots)]
    slots = rng.sample(range(case.slots), case.versions - 1)
    others = [[*units[:s], failed(rng, units[s]), *units[s + 1 :]] for s in slots]
    return [units, *others], [(0, i) for i in range(1, case.versions)], None


def additions(rng: random.Random, case: Case, key: bytes):
    """A world without a unit, and worlds with one whose id sends it to a chunk of each kind."""
    names = [f"unit {i}" for i in range(rng.choice((0, 1, 5, 12, 24, 40)))]
    names += rng.sample(NAMES, rng.randrange(len(NAMES)))
    units = [draw_unit(rng, case, name) for name in names]
    loads = [len(chunk) for chunk in assign_by_id(names, M, key)]
    worlds = [units]
    while len(worlds) < case.versions:
        aim = loads.index(rng.choice(loads))
        name = next(
            name
            for name in iter(lambda: f"newcomer {rng.random()}", None)
            if assign_by_id([name], M, key)[aim]
        )
        place = rng.randrange(len(units) + 1)
        worlds.append([*units[:place], draw_unit(rng, case, name), *units[place:]])
    return worlds, [(0, i) for i in range(1, case.versions)], None


# --- the check -------------------------------------------------------------------------------


def check_neighbours(case: Case, pairs: int, look: str = "distances and members") -> Counter:
    """At least ``pairs`` pairs: how far the exact sums are apart, and who stands where.

    Returns how often each situation occurred, so that a caller can ask for every kind.
    """
    rng = random.Random(str(case))  # test data; the noise is left out
    seen: Counter = Counter()
    best = limit = 0
    with builder(case) as build:
        while seen["pairs"] < pairs:
            key = rng.randbytes(16)
            if case.relation == "add_remove":
                worlds, near, slot = additions(rng, case, key)
            else:
                worlds, near, slot = (nulled if case is PAPER else replacements)(rng, case)
            keep = case.relation != "add_remove"
            built = [build(units, interleaved(rng, units, keep), key) for units in worlds]
            seen["pairs"] += len(near)
            for one in built:
                if "members" in look:
                    check_one(case, one, seen)
                limit = limit or _limit(one.privacy)
                assert _limit(one.privacy) == limit, "the certified distance depends on the data"
            for i, j in near:
                if "members" in look:
                    check_pair(case, built[i], built[j], slot, seen)
                gap = (built[i].total.astype(object) - built[j].total).tolist()
                square = sum(units * units for units in gap)
                best = max(best, square)
                if "distances" in look:
                    assert square <= limit, FARTHER
    if "distances" in look:
        assert best >= limit * (1 - Fraction(1, 10**6)) ** 2, SHORT
    return seen


OPTIONS = np.random.default_rng(8).integers(0, 2, (HALF, 5))
"""Scores that the adversary's records give; entry i + 32 is again the opposite of entry i."""


def check_choice(case: Case, pairs: int) -> Counter:
    """At least ``pairs`` pairs: how far the scores of a private choice are apart.

    The chunks are formed as a build forms them. The adversary scores in place of the model, and
    outside of what scores may be, too.
    """
    rng = random.Random(str(case))  # test data
    seen: Counter = Counter()
    given: list[np.ndarray] = []
    best = 0

    def score(_model, prompt, _answer, _vectors, _heads, _patch):
        word = prompt.query.question.split(" ", 1)[0]
        if word == "nan":
            return np.full(5, np.nan)
        if word in FAILING:
            raise Panic if word == "panic" else RuntimeError(word)
        if isinstance(prompt.query.image, Path):
            load_image(prompt.query.image)
        row = OPTIONS[int(word) % HALF]
        return np.where((row if int(word) < HALF else 1 - row) > 0, 1e9, -1e9)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extraction, "_silence", contextlib.nullcontext)
        patch.setattr(choosing, "answered_right", score)
        patch.setattr(choosing, "exponential_mechanism", lambda sums, **_: given.append(sums))
        patch.setattr(Adversary, "answer_ids", lambda *_: [0], raising=False)
        while seen["pairs"] < pairs:
            key = rng.randbytes(16)
            keep = case.relation != "add_remove"
            if keep:
                worlds, near, _ = (nulled if case is PAPER else replacements)(rng, case)
            else:
                worlds, near, _ = additions(rng, case, key)
            given.clear()
            for units in worlds:
                chunks = data_chunks.form_chunks(
                    pipeline.rows_of_units(interleaved(rng, units, keep), case.named),
                    chunks=M,
                    size=case.size,
                    per_unit=case.per_unit,
                    by_id=not keep,
                    key=key,
                )
                choosing.choose_vector(Adversary(), np.zeros((5, 7)), None, chunks, 1.0)
            seen["pairs"] += len(near)
            for i, j in near:
                move = given[j] - given[i]
                assert np.isfinite(move).all(), FARTHER
                best = max(best, int(np.abs(move).max()))
                seen["both ways"] += move.min() < 0 < move.max()
                assert np.abs(move).max() <= 1, FARTHER
    assert best == 1, SHORT
    return seen


def _limit(privacy: certificate.Privacy) -> Fraction:
    """The certified Δ₂, squared, in grid units of the sum: exact."""
    (event,) = privacy.events
    return (Fraction(event.delta2) * M / Fraction(privacy.grid)) ** 2


def check_one(case: Case, built: Built, seen: Counter) -> None:
    """Every row and every unit stands in one chunk, within the caps."""
    assert len(built.chunks) == M, MOVED
    rows = [place for chunk in built.places for place in chunk]
    assert len(set(rows)) == len(rows), "a record stands in two places"
    homes = {(built.units[row], j) for j, chunk in enumerate(built.places) for row in chunk}
    assert len({unit for unit, _ in homes}) == len(homes), "a unit stands in two chunks"
    served = Counter(built.units[row] for row in rows)
    assert max(served.values(), default=0) <= case.per_unit, "more rows of a unit than the cap"
    assert max(map(len, built.places)) <= case.size, "more rows in a chunk than it holds"
    for chunk in built.chunks:
        good = [row for row in chunk if isinstance(row, Demonstration)]
        full = len(chunk) == case.size
        seen["empty" if not chunk else "full" if full else "deficit"] += 1
        seen["all bad"] += bool(chunk) and not good
        seen["bad row"] += len(good) < len(chunk)
        words = {row.question.split(" ")[0] for row in good}
        seen.update(words.intersection(FAILING))
        seen["unreadable"] += any(row.image is MISSING for row in good)
    owned = Counter(built.units.values())
    seen["over the cap"] += any(owned[unit] > case.per_unit for unit in served)
    seen["surplus"] += len(served) < len(owned)


def check_pair(case: Case, one: Built, other: Built, slot: int | None, seen: Counter) -> None:
    """At most one chunk changes, and in it everybody else keeps the order."""
    changed = [j for j in range(M) if one.places[j] != other.places[j]]
    assert len(changed) <= 1, MOVED
    seen["changed"] += len(changed)
    for j in changed:
        stay = set(one.places[j]) & set(other.places[j])
        assert [r for r in one.places[j] if r in stay] == [
            r for r in other.places[j] if r in stay
        ], MOVED
        if case.relation == "add_remove":
            gone = set(one.places[j]) - stay
            assert not gone or len(other.places[j]) == case.size, MOVED
            seen["pushed out"] += bool(gone)
        elif slot is not None:
            homes = [{b.units[row] for row in b.places[j]} - {slot} for b in (one, other)]
            full = max(len(b.places[j]) for b in (one, other)) == case.size
            assert homes[0] == homes[1] or full, MOVED
