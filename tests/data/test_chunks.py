"""Units into chunks: by slot or by id, and nothing about a row but whose it is."""

from __future__ import annotations

import inspect
import itertools
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from dpmtv.data.chunks import form_chunks, rows_of_units, units_in_a_chunk
from dpmtv.data.demonstrations import BadRow
from dpmtv.data.partition import assign_by_id, choose, fresh_key, partition
from dpmtv.data.values import unit_name
from dpmtv.errors import DataError, PrivacyParameterError
from dpmtv.types import Demonstration

FALSE_ALARM = 1e-6
KEY = bytes(range(16))
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ids = st.lists(NAMES, unique=True, max_size=30)
keys = st.binary(min_size=16, max_size=16)


def row(unit: str | None = None, question: str = "q") -> Demonstration:
    return Demonstration("x.png", question, "a", unit=unit)


def is_even(counts: list[int]) -> bool:
    """Chi-square against equal shares: neither too uneven nor too even for chance."""
    expected = sum(counts) / len(counts)
    statistic = sum((count - expected) ** 2 for count in counts) / expected
    low, high = chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], len(counts) - 1)
    return bool(low < statistic < high)


# --- rows of units --------------------------------------------------------------------------


def test_without_a_unit_every_row_is_its_own_bad_ones_too():
    rows = [row(), BadRow(2, "not JSON"), row(), row()]
    assert rows_of_units(rows, named=False) == [(None, [r]) for r in rows]
    assert rows_of_units([], named=False) == []


@pytest.mark.parametrize("bad", [row("ann"), BadRow(1, "no image", "ann")])
def test_rows_with_units_are_refused_where_none_is_named(bad):
    with pytest.raises(DataError, match=r"say whose they are.*unit=") as caught:
        rows_of_units([row(), bad], named=False)
    assert "ann" not in str(caught.value)


def test_rows_of_a_unit_come_together_in_their_order():
    rows = [row("b"), row("a"), BadRow(3, "not JSON", "b"), row("é"), row("a"), row("e\u0301")]
    found = dict(rows_of_units(rows, named=True))
    assert set(found) == {"a", "b", "é"}
    assert len(found["é"]) == 2
    for name, own in found.items():
        assert list(map(id, own)) == [id(r) for r in rows if unit_name(r.unit) == name]


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=30), st.randoms())
def test_where_the_rows_of_a_unit_stand_in_the_file_moves_nobody(owners, shuffler):
    """Else a unit whose rows come later in the file would shift the slots of all in between."""
    rows = [row(owner, f"q{i}") for i, owner in enumerate(owners)]
    left = {owner: [r for r in rows if r.unit == owner] for owner in owners}
    shuffler.shuffle(owners)
    other = [left[owner].pop(0) for owner in owners]
    assert rows_of_units(other, named=True) == rows_of_units(rows, named=True)


@pytest.mark.parametrize("lost", [row(), BadRow(2, "no unit")])
def test_a_row_that_could_be_anybodys_is_refused_where_units_are_named(lost):
    with pytest.raises(DataError, match=r"1 row without a unit that can be read: 2\."):
        rows_of_units([row("a"), lost], named=True)


# --- arithmetic -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "per_unit", "units"),
    [(5, 1, 5), (5, 2, 3), (5, 4, 2), (5, 5, 1), (5, 99, 1), (1, 1, 1), (1, 2, 1), (4, 3, 2)],
)
def test_units_in_a_chunk(size, per_unit, units):
    assert units_in_a_chunk(size, per_unit) == units


@given(st.integers(1, 10**9), st.integers(1, 10**9))
def test_so_many_units_fill_a_chunk_and_one_less_does_not(size, per_unit):
    units = units_in_a_chunk(size, per_unit)
    assert units * per_unit >= size > (units - 1) * per_unit


# --- forming --------------------------------------------------------------------------------


class Closed:
    """A row that may not be looked at."""

    def __getattribute__(self, name):
        pytest.fail(f"{name} of a row was read")

    __eq__ = __hash__ = None


def closed_units(sizes: list[int]) -> tuple[list, dict[int, tuple[int, int]]]:
    units = [(f"unit {u}", [Closed() for _ in range(size)]) for u, size in enumerate(sizes)]
    return units, {id(r): (u, i) for u, (_, own) in enumerate(units) for i, r in enumerate(own)}


@given(
    st.lists(st.integers(0, 7), min_size=12, max_size=30),
    st.integers(1, 5),
    st.integers(1, 4),
    st.booleans(),
    keys,
)
def test_chunks_by_the_rules_without_a_look_at_a_row(sizes, size, per_unit, by_id, key):
    units, place = closed_units(sizes)
    m = 12 // units_in_a_chunk(size, per_unit)
    chunks = form_chunks(units, chunks=m, size=size, per_unit=per_unit, key=key, by_id=by_id)
    if by_id:
        members = assign_by_id([name for name, _ in units], m, key)
    else:
        members = partition(len(units), m, units_in_a_chunk(size, per_unit), key)
    expected = [
        [(u, i) for u in chunk for i in choose(sizes[u], per_unit, key)][:size] for chunk in members
    ]
    found = [[place[id(r)] for r in chunk] for chunk in chunks]
    assert found == expected
    served = [spot for chunk in found for spot in chunk]
    assert len(set(served)) == len(served)
    assert max(Counter(u for u, _ in served).values(), default=0) <= per_unit
    homes = {(u, j) for j, chunk in enumerate(found) for u, _ in chunk}
    assert len({u for u, _ in homes}) == len(homes), "a unit in two chunks"


def test_too_few_units_are_refused_by_slot_and_make_short_chunks_by_id():
    options = {"chunks": 3, "size": 2, "per_unit": 1, "key": KEY}
    units, _ = closed_units([1] * 5)
    with pytest.raises(DataError, match="6 records, and there are 5"):
        form_chunks(units, **options, by_id=False)
    assert sum(len(c) for c in form_chunks(units, **options, by_id=True)) <= 5
    assert form_chunks([], **options, by_id=True) == [[], [], []]


# --- ids ------------------------------------------------------------------------------------


@given(ids, st.integers(1, 9), keys)
def test_every_id_is_in_one_chunk(names, chunks, key):
    result = assign_by_id(names, chunks, key)
    assert len(result) == chunks
    assert sorted(itertools.chain(*result)) == list(range(len(names)))


@given(ids, NAMES, st.integers(0, 30), st.integers(1, 9), keys)
def test_an_id_more_moves_no_other_and_turns_no_order(names, newcomer, place, chunks, key):
    names = [name for name in names if name != newcomer]
    more = [*names[:place], newcomer, *names[place:]]
    before = [[names[i] for i in chunk] for chunk in assign_by_id(names, chunks, key)]
    after = [[more[i] for i in chunk] for chunk in assign_by_id(more, chunks, key)]
    assert [[name for name in chunk if name != newcomer] for chunk in after] == before


@given(ids, st.randoms(), keys)
def test_the_order_of_the_file_decides_nothing(names, shuffler, key):
    other = list(names)
    shuffler.shuffle(other)
    one, two = (
        [[listed[i] for i in chunk] for chunk in assign_by_id(listed, 4, key)]
        for listed in (names, other)
    )
    assert one == two


def test_an_assignment_is_pinned():
    # A resumed build must see the chunks of the build that was interrupted, after an update too.
    names = ["0", "00", "é", "e\u0301", "Ω", "患者", "\U0001f9ea", "a b"]
    assert assign_by_id(names, 3, KEY) == [(4, 5, 0, 2, 1, 3, 6), (), (7,)]


def test_ids_that_look_alike_are_different_units():
    names = ["é", "e\u0301", "A", "a", "Α", "a ", "\x00", "", "1", "１"]
    places = assign_by_id(names, 10_000, KEY)  # two alike would be in one of them
    assert sorted(len(chunk) for chunk in places)[-10:] == [1] * 10


@pytest.mark.parametrize("names", [["a", "a"], ["患者", "b", "患者"], ["", ""]])
def test_an_id_twice_is_refused_and_not_told(names):
    with pytest.raises(PrivacyParameterError, match="unique") as caught:
        assign_by_id(names, 2, KEY)
    assert str(caught.value) == "unit ids must be unique."


@pytest.mark.parametrize("chunks", [0, -1])
def test_an_impossible_number_of_chunks_is_refused(chunks):
    with pytest.raises(PrivacyParameterError, match="at least 1"):
        assign_by_id(["a"], chunks, KEY)


# --- chance ---------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [7, 16, 100])
@pytest.mark.parametrize("name", [str, lambda i: f"患者 {i:09}", lambda i: "x" * i])
def test_ids_in_a_row_spread_evenly(m, name):
    units = 200 * m if name is str else 20 * m
    loads = [len(chunk) for chunk in assign_by_id(list(map(name, range(units))), m, fresh_key())]
    assert is_even(loads)


def test_the_check_of_evenness_can_fail():
    rng = random.Random(3)  # test data
    even = Counter(rng.randrange(16) for _ in range(20_000))
    assert is_even([even[i] for i in range(16)])
    assert not is_even([even[i] + (400 if i == 5 else 0) for i in range(16)])
    assert not is_even([1250] * 16), "ids dealt round, which others would move"


def test_the_first_of_a_chunk_is_anybody():
    """The half of the hash that orders is not the half that chose the chunk."""
    firsts = Counter()
    names = [str(i) for i in range(40)]
    for _ in range(3000):
        for chunk in assign_by_id(names, 8, fresh_key()):
            if len(chunk) == 5:
                firsts[sorted(chunk).index(chunk[0])] += 1
    assert is_even([firsts[i] for i in range(5)])


# --- which rows of a unit serve -------------------------------------------------------------


def test_the_choice_sees_a_number_and_a_key():
    assert list(inspect.signature(choose).parameters) == ["count", "most", "key"]


@given(st.integers(0, 40), st.integers(1, 45), keys)
def test_all_serve_or_as_many_as_may_each_once(count, most, key):
    chosen = choose(count, most, key)
    assert len(chosen) == len(set(chosen)) == min(count, most)
    assert set(chosen) <= set(range(count))
    assert chosen == choose(count, most, key)
    assert chosen == choose(count, count, key)[:most]


def test_every_row_of_a_unit_is_as_likely_to_serve():
    counts = Counter(choose(7, 1, fresh_key())[0] for _ in range(7000))
    assert is_even([counts[i] for i in range(7)])


def test_rows_are_not_chosen_as_slots_are():
    """Under one key, the order of a unit's rows says nothing about the order of slots."""
    same = 0
    for _ in range(200):
        key = fresh_key()
        same += choose(12, 12, key) == list(partition(12, 1, 12, key)[0])
    assert same == 0
