"""Rows, gains and controls of the benchmark runner, on the embedded model."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from dpmtv.data.demonstrations import read_demonstrations
from dpmtv.errors import DataError
from dpmtv.evaluation import study
from dpmtv.evaluation.benchmark import load_benchmark
from dpmtv.evaluation.metrics import exact_match
from dpmtv.evaluation.rows import evaluate_vector
from dpmtv.evaluation.runner import evaluate_benchmark
from dpmtv.evaluation.settings import KNOWN_WORDS, METHODS, Settings
from dpmtv.pipeline import build_task_vector

KEYS = [
    *("table", "task", "method", "geometry", "relation", "epsilon", "delta", "records"),
    *("m", "K", "coordinates", "draws", "n_test", "mean", "se", "gain"),
    *("chance", "in_words", "metric", "model", "prompt", "command", "private"),
]


@pytest.fixture(scope="module")
def benchmark():
    loaded = load_benchmark("embedded", ["digit-roman", "color-gem"])
    roman, gem = loaded.tasks
    return replace(loaded, tasks=(replace(roman, group="one"), replace(gem, group="another")))


@pytest.fixture(scope="module")
def rows(model, benchmark):
    settings = Settings(
        methods=METHODS,
        geometries=("selected", "all-heads", "paper"),
        epsilons=(8.0, None),
        chunks=(10, 20),
        shots=2,
        draws=2,
        n_test=12,
        search_steps=20,
        patch="prompt",
    )
    return evaluate_benchmark(model, benchmark, settings, name="embedded", command="c")[0]


def test_rows_have_the_documented_keys_and_are_json(rows):
    assert all(list(r) == KEYS for r in rows)
    json.loads(json.dumps(rows, allow_nan=False))


def test_every_method_geometry_relation_and_epsilon_is_there(rows):
    means = [r for r in rows if r["task"] == "mean"]
    assert {r["method"] for r in means} == set(METHODS)
    private = [
        (r["geometry"], r["relation"], r["epsilon"], r["m"])
        for r in means
        if r["method"] == "dp-mtv"
    ]
    assert len(private) == len(set(private)) == 3 * (2 + 1) * 2
    for row in means:
        of_tasks = [
            r["mean"]
            for r in rows
            if not r["task"].startswith("mean")
            and all(r[k] == row[k] for k in ("method", "geometry", "relation", "epsilon", "m"))
        ]
        assert row["mean"] == pytest.approx(np.mean(of_tasks))


def test_what_has_no_guarantee_says_so(rows):
    for row in rows:
        bare = row["method"] in ("in-context", "task vector") or (
            row["method"] == "dp-mtv" and row["epsilon"] is None
        )
        assert row["private"] is not bare, row["method"]


def test_gain_is_relative_to_zero_shot_and_the_vector_without_noise(rows):
    means = {
        r["method"]: r
        for r in rows
        if r["task"] == "mean" and r["epsilon"] is None and r["m"] in (None, 20)
    }
    low, high = means["zero-shot"]["mean"], means["task vector"]["mean"]
    assert high > low, "otherwise there is no gain to share"
    for row in rows:
        if row["task"] == "mean":
            assert row["gain"] == pytest.approx((row["mean"] - low) / (high - low))


def test_a_group_has_a_mean_of_its_own(rows):
    assert {r["task"] for r in rows if r["task"].startswith("mean of")} == {
        "mean of one",
        "mean of another",
    }


def test_rivals_that_know_the_words_give_nothing_else(rows):
    for row in rows:
        if row["method"] in KNOWN_WORDS[1:]:
            assert row["in_words"] == 1
        assert 0 <= row["in_words"] <= 1
        if row["task"] == "digit-roman":
            assert row["chance"] == pytest.approx(0.1)


def test_select_first_releases_fewer_coordinates(rows):
    sizes = {r["geometry"]: r["coordinates"] for r in rows if r["method"] == "dp-mtv"}
    selected, *others = sizes.values()
    assert selected < 768
    assert others == [768, 768]


def test_exact_match_wants_the_whole_answer():
    assert (
        exact_match(["rot", "rot rot", " number  two ", ""], ["rot", "rot", "number two", "x"])
        == 0.5
    )


def test_evaluate_vector_compares_with_zero_shot(model, benchmark):
    task = benchmark.tasks[0]
    vector = build_task_vector(
        model,
        task.private[:90],
        epsilon=8.0,
        delta=1e-3,
        public=benchmark.public[:120],
        shots=2,
        search_steps=30,
    )
    zero, patched = evaluate_vector(model, vector, replace(task, test=task.test[:20]), command="c")
    assert (zero["method"], patched["method"]) == ("zero-shot", "dp-mtv")
    assert (patched["epsilon"], patched["delta"], patched["private"]) == (8.0, 1e-3, True)
    assert set(KEYS) == set(zero) == set(patched)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: (root / "tasks").rename(root / "other"), "no folder tasks"),
        (lambda root: (root / "tasks/a/test.jsonl").unlink(), "does not exist"),
        (lambda root: (root / "tasks/a/test.jsonl").write_text("{}\n"), r"row 1 \(no image\)"),
    ],
)
def test_bad_benchmark_folders_are_explained(tmp_path, data, change, message):
    good = (data / "public.jsonl").read_text().splitlines()[:3]
    good = "\n".join(good).replace("images/", f"{data}/images/")
    for name in ("public.jsonl", "tasks/a/private.jsonl", "tasks/a/test.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(good)
    assert len(load_benchmark(tmp_path).tasks[0].test) == 3
    with pytest.raises(DataError, match="no task b"):
        load_benchmark(tmp_path, ["b"])
    change(tmp_path)
    with pytest.raises(DataError, match=message):
        load_benchmark(tmp_path)


def test_generated_public_records_need_no_public_file(
    model, benchmark, data, tmp_path, monkeypatch
):
    (tmp_path / "tasks").symlink_to(data / "tasks")
    with pytest.raises(DataError, match="does not exist"):
        load_benchmark(tmp_path, ["color-gem"])
    loaded = load_benchmark(tmp_path, ["color-gem"], public="synthetic")
    asked = []

    def known(_model, public, *_):
        asked.append(public)
        return benchmark.public[:120], None

    monkeypatch.setattr(study, "public_records", known)
    settings = Settings(methods=("zero-shot",), draws=1, n_test=2, shots=2, search_steps=1)
    rows, _ = evaluate_benchmark(model, loaded, settings, name="embedded", command="c")
    assert asked == ["synthetic"]
    assert {r["method"] for r in rows} == {"zero-shot"}


def test_the_embedded_data_look_like_a_users_own(data):
    """Images, JSONL with units, roles apart: no picture is both private and test or public."""
    roles: dict[str, set] = {"private": set(), "test": set(), "sealed": set(), "public": set()}
    for path in [*data.glob("tasks/*/*.jsonl"), data / "public.jsonl"]:
        rows = read_demonstrations(path)
        role = path.stem.split("-")[0]
        roles[role] |= {r.image.resolve() for r in rows}
        if role == "private":
            assert len(rows) >= 1000
            raw = [json.loads(line) for line in path.read_text().splitlines()]
            units = {r["unit"] for r in raw}
            assert 150 <= len(units) <= 200, "annotators with several records each"
    for one, other in itertools.combinations(roles.values(), 2):
        assert not one & other
    assert (data / "ATTRIBUTION.md").is_file()
