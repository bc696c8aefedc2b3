"""The documents say what was measured, and their links lead somewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from results import DOCS, page  # benchmarks/results.py

ROOT = DOCS.parent
ROWS = json.loads((DOCS / "results.json").read_text("utf-8"))


def mean(method: str, **wanted: object) -> dict:
    (row,) = [
        r
        for r in ROWS
        if r["task"] == "mean"
        and r["method"] == method
        and all(r[k] == v for k, v in wanted.items())
    ]
    return row


def test_the_results_page_is_made_from_the_committed_rows():
    assert (DOCS / "results.md").read_text("utf-8") == page(ROWS)


def test_figures_in_the_readme_are_on_the_results_page():
    results = (DOCS / "results.md").read_text("utf-8")
    figures = re.findall(r"\d+\.\d ± \d+\.\d", (ROOT / "README.md").read_text("utf-8"))
    assert len(figures) >= 4
    for figure in figures:
        assert figure in results


@pytest.mark.parametrize("patch", ["every-step", "prompt"])
def test_the_committed_rows_meet_what_is_promised(patch):
    table = f"main, {patch}"
    assert mean("zero-shot", table=table)["mean"] <= 0.20
    assert mean("in-context", table=table)["mean"] >= 0.85
    assert mean("task vector", table=table)["mean"] >= 0.85
    paper = mean(
        "dp-mtv",
        table=table,
        relation="zero_out",
        epsilon=1.0,
        geometry="all heads, clip per layer, public mask",
    )
    assert paper["mean"] >= 0.75
    assert (paper["m"], paper["delta"], paper["draws"]) == (100, 1e-5, 20)


def test_controls_stay_near_zero_shot():
    table = "controls, every-step"
    zero = mean("zero-shot", table=table)["mean"]
    controls = [r for r in ROWS if r["table"] == table and r["method"] != "zero-shot"]
    means = [r for r in controls if r["task"] == "mean"]
    assert len(means) == 8, "two controls, two geometries, two relations"
    for row in means:
        assert row["draws"] == 20
        assert row["mean"] <= zero + 0.03, row


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *DOCS.glob("*.md"), ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name
)
def test_links_lead_somewhere(path: Path):
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text("utf-8")):
        if not target.startswith("https://"):
            assert (path.parent / target).exists(), target
