from __future__ import annotations

import inspect
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpmtv.data.partition import fresh_key, partition
from dpmtv.errors import DataError, PrivacyParameterError

shapes = st.tuples(st.integers(1, 12), st.integers(1, 6), st.integers(0, 20))


@given(shapes, st.binary(min_size=16, max_size=16))
def test_chunks_are_disjoint_of_exact_size_and_inside_n(shape, key):
    chunks, size, surplus = shape
    n = chunks * size + surplus
    result = partition(n, chunks, size, key)
    used = [slot for chunk in result for slot in chunk]
    assert [len(chunk) for chunk in result] == [size] * chunks
    assert len(set(used)) == len(used)
    assert set(used) <= set(range(n))


@given(shapes, st.binary(min_size=16, max_size=16))
def test_the_same_key_gives_the_same_partition(shape, key):
    chunks, size, surplus = shape
    arguments = (chunks * size + surplus, chunks, size, key)
    assert partition(*arguments) == partition(*arguments)


def test_a_partition_is_pinned():
    # A resumed build must see the chunks of the build that was interrupted, after an update too.
    assert partition(8, 3, 2, bytes(range(16))) == [(1, 6), (4, 0), (5, 3)]


def test_another_key_gives_another_partition():
    assert len({tuple(partition(50, 5, 5, fresh_key())) for _ in range(20)}) == 20


def test_content_is_no_argument():
    assert list(inspect.signature(partition).parameters) == ["n", "chunks", "chunk_size", "key"]


def test_every_slot_is_equally_likely_at_every_position():
    n, chunks, size, draws = 8, 3, 2, 3000
    counts = np.zeros((n, chunks * size))
    for draw in range(draws):  # fixed keys: the figure below never changes
        used = np.concatenate(partition(n, chunks, size, draw.to_bytes(16, "big")))
        counts[used, np.arange(chunks * size)] += 1
    expected = draws / n
    # Chi-square of each position, 7 degrees of freedom: 29.9 is passed once in 10,000.
    assert ((counts - expected) ** 2 / expected).sum(axis=0).max() < 29.9


@pytest.mark.parametrize(("n", "chunks", "size"), [(0, 1, 1), (9, 5, 2), (399, 80, 5)])
def test_too_few_records_are_refused_with_the_numbers(n, chunks, size):
    with pytest.raises(DataError, match="fewer shots") as caught:
        partition(n, chunks, size, fresh_key())
    numbers = [int(number) for number in re.findall(r"\d+", str(caught.value))]
    assert numbers == [chunks, size, chunks * size, n]


@pytest.mark.parametrize(("chunks", "size"), [(0, 2), (2, 0), (-1, -3)])
def test_an_impossible_shape_is_refused(chunks, size):
    with pytest.raises(PrivacyParameterError, match="at least 1"):
        partition(10, chunks, size, fresh_key())


def test_fresh_keys_have_16_bytes_and_differ():
    keys = {fresh_key() for _ in range(100)}
    assert len(keys) == 100
    assert {len(key) for key in keys} == {16}
