"""Build, ask and evaluate as typed, on tiny random checkpoints of five families."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.models.families import make
from typer.testing import CliRunner

from dpmtv import cli

GIVEN = {"llava_llama": Path(__file__).parents[1] / "data" / "vila15_tiny"}
ANSWERS = ("red", "blue", "seven", "two")


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(cli.common, "_debug", False)

    def invoke(*words: object) -> str:
        result = CliRunner().invoke(cli.app, [str(w) for w in words])
        assert result.exit_code == 0, result.stderr
        return result.stdout

    return invoke


def records(folder, name: str, count: int, **more: str):
    rng = np.random.default_rng(len(name))
    lines = []
    for place in range(count):
        picture = f"{name}{place}.png"
        Image.fromarray(rng.integers(0, 256, (40, 56, 3), dtype=np.uint8)).save(folder / picture)
        row = {"image": picture, "question": "What is this?", "answer": ANSWERS[place % 4]}
        lines.append(json.dumps(row | more))
    path = folder / f"{name}.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("family", ["idefics2", "llava", "qwen", "qwen2_5_vl", "smolvlm", *GIVEN])
def test_a_vector_is_built_asked_and_measured(family, run, tmp_path):
    model = GIVEN.get(family) or make(family, tmp_path / family)
    private, public = records(tmp_path, "private", 12), records(tmp_path, "public", 8)
    test, vector = records(tmp_path, "test", 3), tmp_path / "vector"
    build = ("build", model, private, "--public", public, "-o", vector, "--epsilon", 1)
    # One of them searches heads, the others release all: a search is most of the time.
    selection = "public" if family == "qwen2_5_vl" else "all"
    run(*build, "--delta", 1e-3, "--selection", selection)
    asked = ("ask", vector, "--model", model, "--image", tmp_path / "test0.png", "--json")
    # A few tokens of a random model are often the same broken characters with and without.
    answer = json.loads(run(*asked, "--max-new-tokens", 12, "What is this?"))
    assert answer["epsilon"] == 1.0
    assert answer["answer"] != answer["zero_shot"]
    measured = ("evaluate", vector, "--model", model, "--benchmark", test, "--json")
    rows = json.loads(run(*measured, "--max-new-tokens", 3))
    assert {r["n_test"] for r in rows} == {3}
    assert all(0 <= r["mean"] <= 1 for r in rows)


@pytest.mark.parametrize("family", GIVEN)
def test_a_checkpoint_in_its_own_layout_is_checked(family, run):
    report = json.loads(run("models", "check", GIVEN[family], "--shots", 2, "--json"))
    assert report["usable"], report["reasons"]
    assert (report["model_type"], report["kept_prefixes"]) == (family, True)
    assert report["layers"] == report["of_layers"]
