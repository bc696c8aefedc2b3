"""The speed benches run, their rows have one form, and docs/speed.md shows the committed ones."""

from __future__ import annotations

import json
import statistics

import numpy as np
import pytest
import torch

import speed
from mask_loss import search_rows
from results import DOCS
from side_by_side import in_turns, median_interval, row

ROWS = json.loads((DOCS / "speed.json").read_text("utf-8"))
CPU = torch.device("cpu")
KEYS = {
    *("bench", "ours_s", "other_s", "ours_mb", "other_mb", "other", "ratio", "ratio_of"),
    *("low", "high", "pairs", "target", "max_difference", "model", "tokens", "device", "command"),
}


@pytest.fixture(scope="module")
def records():
    return speed.records_of(speed.TASK)


def check(made: dict, pairs: int) -> None:
    assert set(made) == KEYS
    assert made["pairs"] == pairs
    unit = "mb" if made["ours_s"] is None else "s"
    assert made[f"ours_{unit}"] > 0
    assert made[f"other_{unit}"] > 0
    assert made["ratio"] > 0
    assert speed.line(made).count("|") == speed.table([]).splitlines()[0].count("|")


def test_rows_of_a_tiny_model(random_model, records):
    config = random_model.model.generation_config
    before = config.min_new_tokens
    try:
        made = [
            speed.extraction_row(random_model, "tiny", records, 2),
            *(speed.query_row(random_model, "tiny", records, 2, 3, shots) for shots in (0, 4)),
        ]
    finally:
        config.min_new_tokens = before
    made += search_rows(random_model, "tiny", records, 0, 2)
    assert len(made) == 5
    for one in made:
        check(one, 2)
    assert made[0]["max_difference"] == 0
    assert all(one["max_difference"] < 1e-5 for one in made[3:])


def test_every_generation_runs_to_its_length(random_model, records, monkeypatch):
    """Or one that ends early would look fast."""
    lengths, plain = [], type(random_model.model).generate

    def generate(self, **inputs):
        ids = plain(self, **inputs)
        lengths.append(ids.shape[1] - inputs["input_ids"].shape[1])
        return ids

    monkeypatch.setattr(type(random_model.model), "generate", generate)
    config = random_model.model.generation_config
    before = config.min_new_tokens
    try:
        speed.query_row(random_model, "tiny", records, 1, 7, 2)
    finally:
        config.min_new_tokens = before
    assert set(lengths) == {7}


def test_peak_memory_is_of_the_build_alone():
    """Not of the process that started it, which ru_maxrss would give."""
    held = np.ones(2**27)  # 1 GB, more than such a build needs
    made = speed.memory_row("private part", 1, 2, 1, CPU)
    check(made, 1)
    assert made["ours_mb"] < held.nbytes / 1e6


def test_pairs_alternate_and_start_warm():
    calls = []
    measured = in_turns(lambda: calls.append("a"), lambda: calls.append("b"), 3, CPU)
    assert "".join(calls) == "ab" + "abbaab"
    assert len(measured) == 3


def test_the_interval_covers_the_median_as_often_as_it_says():
    assert median_interval(range(20)) == (5, 14)
    assert median_interval(range(6)) == (0, 5)
    assert median_interval(range(5)) == (None, None)
    rng = np.random.default_rng(0)
    drawn = rng.lognormal(size=(4000, 20))  # skewed, median 1
    covered = [low <= 1 <= high for low, high in map(median_interval, drawn)]
    assert 0.95 <= np.mean(covered) <= 0.97  # 0.9586; the standard error is 0.003


@pytest.mark.parametrize(("target", "met"), [("≤ 1.9", False), ("≥ 1.9", True), (None, None)])
def test_a_row_says_whether_its_target_is_met(target, met):
    said = {"model": "m", "tokens": 1, "device": "d", "max_difference": None}
    measured = [(2.0, 1.0), (9.0, 3.0), (1.0, 1.0)]
    one = row("what", "other", measured, ratio_of="ours / other", target=target, **said)
    assert one["ratio"] == statistics.median([2.0, 3.0, 1.0])
    assert (one["ours_s"], one["other_s"]) == (2.0, 1.0)
    assert speed.met(one) is met


def test_a_gpu_that_is_not_there_is_refused(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stopped:
        speed.main(["--device", "cuda"])
    assert stopped.value.code == 2
    assert "torch finds no GPU here" in capsys.readouterr().err


def test_the_page_shows_the_committed_rows():
    text = (DOCS / "speed.md").read_text("utf-8")
    assert speed.page(text, ROWS) == text


def test_committed_rows_are_of_enough_pairs():
    for one in ROWS:
        check(one, one["pairs"])
    assert all(one["pairs"] >= 20 for one in ROWS if one["target"] and one["ours_s"])
