"""A wider model: what the number of released coordinates does to the same releases.

    python benchmarks/scaling.py

runs `dpmtv evaluate` on the embedded model and on training/wide, made by the same training with
heads 5.5 times as wide, on the sealed test; writes docs/scaling.json. Some 40 minutes on a core.
`python benchmarks/results.py --only` then writes the page and the picture.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpmtv.evaluation.settings import GEOMETRIES

Row = dict[str, Any]

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "docs" / "scaling.json"
MODELS = {"embedded": "embedded", "wide": "training/wide"}  # as rows call them: what is loaded
# Some trained rules, and one with words that are new to the model.
TASKS = (
    "digit-french,digit-phrase,color-gem-turned-2,shape-spanish,presence-english-turned-1,"
    "parity-words"
)
RELEASES = {
    "all-heads-public-query": "all heads, a clip a layer",
    "one-clip": "selected heads, one clip",
    "default": "the default",
}
COMMAND = (
    *("--sealed", "--draws", "10", "--json", "--n-test", "50", "--tasks", TASKS),
    *("--methods", "zero-shot,task vector,dp-mtv"),
    *("--geometries", ",".join(["default", "one-clip", "all-heads-public-query"])),
    *("--relations", "replace_one", "--epsilons", "0.25,1", "--records", "50,100,250"),
)


def measure() -> list[Row]:
    """The rows of both models, means of the tasks alone."""
    rows: list[Row] = []
    for model in MODELS.values():
        done = subprocess.run(
            [sys.executable, "-m", "dpmtv.cli", "evaluate", model, *COMMAND],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        rows += means(json.loads(done.stdout))
    return rows


def means(rows: Sequence[Row]) -> list[Row]:
    """What is kept of a model's rows."""
    return [r for r in rows if r["task"] == "mean"]


def section(rows: Sequence[Row]) -> str:
    """Markdown: the same releases of both models; empty without rows."""
    if not rows:
        return ""
    levels = sorted({(-r["epsilon"], r["records"]) for r in rows if r["epsilon"]})
    heads = ["release", "model", "coordinates"]
    heads += [f"ε = {-e:g}, {n} records" for e, n in levels]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, words in RELEASES.items():
        for model in MODELS:
            found = {
                (-r["epsilon"], r["records"]): r
                for r in _releases(rows, name)
                if r["model"] == model
            }
            if not found:
                continue
            size = next(iter(found.values()))["coordinates"]
            cells = [_cell(found.get(level)) for level in levels]
            lines.append(f"| {words} | {model} | {size:,} | {' | '.join(cells)} |")
    bare = {
        m: max(
            (r for r in rows if r["method"] == "task vector" and r["model"] == m),
            key=lambda r: r["records"],
            default=None,
        )
        for m in MODELS
    }
    noiseless = ", ".join(f"{m} {100 * r['mean']:.1f} %" for m, r in bare.items() if r is not None)
    most = max(r["coordinates"] for r in rows)
    return (
        "\n## A wider model\n\nThe same training, with heads 5.5 times as wide: what does the "
        f"number of released coordinates do? {len(TASKS.split(','))} tasks, 10 draws; in brackets "
        "the share of the gain of each model's own vector without noise (**not private**: "
        f"{noiseless}). At equal ε and records the noise of each coordinate, in units of the clip "
        "norm, is the same for both, so its length grows with the square root of their number.\n\n"
        "![Share of the gain against released coordinates](img/scaling.png)\n\n"
        + "\n".join(lines)
        + f"\n\nThe most is {most:,} coordinates; a model of 7 billion parameters has 131,072. "
        "What is said of such a model by prolonging these lines is an extrapolation from two "
        "models, not a measurement.\n"
    )


def _releases(rows: Sequence[Row], name: str) -> list[Row]:
    words = GEOMETRIES[name].words
    return [r for r in rows if r["method"] == "dp-mtv" and r["geometry"] == words]


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    gain = "" if row["gain"] is None else f" ({round(100 * row['gain'])})"
    return f"{100 * row['mean']:.1f} ± {100 * row['se']:.1f}{gain}"


def draw(rows: Sequence[Row], path: Path) -> None:
    """Share of the gain against coordinates: a panel a release, a line each ε and size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for axis, (name, words) in zip(
        figure.subplots(1, len(RELEASES), sharey=True), RELEASES.items(), strict=True
    ):
        lines: dict[tuple[float, int], list[Row]] = defaultdict(list)
        for r in _releases(rows, name):
            if r["gain"] is not None:
                lines[r["epsilon"], r["records"]].append(r)
        for (epsilon, records), of in sorted(lines.items(), reverse=True):
            of.sort(key=lambda r: int(r["coordinates"]))
            axis.plot(
                [r["coordinates"] for r in of],
                [100 * r["gain"] for r in of],
                color={50: "C1", 100: "C0", 250: "C2"}.get(records),
                linestyle="-" if epsilon >= 1 else "--",
                marker="o",
                markersize=4,
                label=f"ε = {epsilon:g}, {records} records",
            )
        sizes = sorted({r["coordinates"] for of in lines.values() for r in of})
        axis.set(xscale="log", title=words, xlabel="released coordinates", ylim=(-10, 110))
        axis.set_xticks(sizes, [f"{n:,}" for n in sizes])
        axis.set_xticks([], minor=True)
        axis.grid(axis="y", color="0.9")
    figure.axes[0].set_ylabel("gain kept, %")
    handles, labels = figure.axes[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncol=3, fontsize=8)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure both models and write docs/scaling.json."""
    lines = ",\n".join(json.dumps(r, ensure_ascii=False) for r in measure())
    ROWS.write_text(f"[\n{lines}\n]\n", "utf-8")
    print(f"{ROWS}; now python benchmarks/results.py --only")


if __name__ == "__main__":
    main()
