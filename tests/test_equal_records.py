"""The tables by number of records, from made-up rows."""

from __future__ import annotations

import pytest

import scaling  # benchmarks/scaling.py
from dpmtv.evaluation.settings import GEOMETRIES
from equal_records import (  # benchmarks/equal_records.py
    CHOICE,
    LEVERS,
    OTHERS,
    PAPERS,
    Rows,
    Scale,
    best_k,
    draw,
    section,
)

SUITE = {"a": "one", "b": "one", "c": "two"}
TASKS = {CHOICE: ("a",), OTHERS: ("b", "c")}
OF = {"a": 0.9, "b": 0.6, "c": 0.3}  # the default with 100 records


def row(table, task, method, records, mean, se=None, geometry=None, k=1):
    return {
        "table": table,
        "task": task,
        "method": method,
        "geometry": geometry,
        "relation": "replace_one",
        "epsilon": 1.0,
        "records": records,
        "m": records // (k if k == 1 else k + 1),
        "K": k,
        "coordinates": 7,
        "draws": 20,
        "mean": mean,
        "se": se,
        "gain": None,
    }


def rows_of(table):
    for task in TASKS[table]:
        yield row(table, task, "zero-shot", 0, 0.1)
        yield row(table, task, "task vector", 100, 1.0)
        yield row(table, task, "dp-mtv", 100, OF[task], 0.05)
    mean = sum(OF[t] for t in TASKS[table]) / len(TASKS[table])
    yield row(table, "mean", "dp-mtv", 100, mean, 0.02)


def papers(k, mean):
    return [row(PAPERS[k], t, "dp-mtv", 100, mean, k=k) for t in (*SUITE, "mean")]


@pytest.fixture
def rows():
    return [*rows_of(CHOICE), *rows_of(OTHERS), *papers(4, 0.2), *papers(1, 0.4)]


def test_a_mean_is_a_rows_own_with_its_error_or_the_tasks_without(rows):
    ours = Rows(rows, SUITE).of(CHOICE, OTHERS, method="dp-mtv")
    assert ours.curve(["b", "c"]) == {100: (pytest.approx(0.45), 0.02)}
    assert ours.curve(SUITE) == {100: (pytest.approx(0.6), None)}
    assert ours.of(CHOICE).curve(SUITE) == {}, "a mean of some of the tasks"


def test_gain_is_computed_from_means(rows):
    own = Rows(rows, SUITE).of(CHOICE, OTHERS)
    assert Scale(own, SUITE).gain((0.55, None)) == pytest.approx(0.5)
    assert Scale(own.of(method="dp-mtv"), SUITE).gain((0.55, None)) is None


def test_the_papers_release_is_shown_at_its_best_k(rows):
    assert best_k(Rows(rows, SUITE), PAPERS) == {100: 1}
    text = section(rows, SUITE)
    assert "the paper's (K = 1), 100" in text
    assert "**all 3 tasks** | **the default** | 60.0 (56) |" in text
    assert "c (+10 at 100 records)" in text, "it says where it loses"


def test_there_is_nothing_without_rows():
    assert section([], SUITE) == scaling.section([]) == ""


@pytest.mark.parametrize("table", [CHOICE, OTHERS])
def test_a_part_of_the_rows_is_enough(table):
    text = section(list(rows_of(table)), SUITE)
    assert "Accuracy at the same epsilon" in text
    assert ".png" not in text


def test_every_picture_that_is_linked_is_drawn(rows, tmp_path):
    for name in ("all-heads", "one-clip", "default"):
        words = GEOMETRIES[name].words
        rows += [row(LEVERS, t, "dp-mtv", 100, 0.5, 0.1, words) for t in (*SUITE, "mean")]
    words = GEOMETRIES["one-clip"].words
    wider = [
        row("", "mean", "dp-mtv", 100, 0.5, 0.1, words)
        | {"model": m, "coordinates": c, "epsilon": 1.0, "gain": 0.6}
        for m, c in (("embedded", 480), ("wide", 2640))
    ]
    text = section(rows, SUITE) + scaling.section(wider)
    draw(rows, SUITE, tmp_path)
    scaling.draw(wider, tmp_path / "scaling.png")
    assert "| selected heads, one clip | wide | 2,640 | 50.0 ± 10.0 (60) |" in text
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == {"records.png", "levers.png", "scaling.png"}
    assert all(f"(img/{name})" in text for name in drawn)
    assert "an extrapolation" in text
