"""The accuracy tables of docs/results.md: run what is missing, then write tables and picture.

    python benchmarks/results.py [PART ...] [--again]

Each part is one `dpmtv evaluate` command; its rows go into docs/results.json as they are. A part
whose rows are there is not run again, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from dpmtv.evaluation.report import plot_png

DOCS = Path(__file__).resolve().parent.parent / "docs"
Row = dict[str, Any]

COMMON = ("evaluate", "embedded", "--draws", "20", "--json")
CONTROLS = ("--methods", "zero-shot,other task,pure noise", "--epsilons", "1")
PAPER = ("--methods", "dp-mtv", "--geometries", "paper", "--epsilons", "1", "--search-steps", "100")
PAPERS = "paper's masks"
PARTS = {
    "main, every-step": (*COMMON, "--patch", "every-step"),
    "controls, every-step": (*COMMON, "--patch", "every-step", *CONTROLS),
    f"{PAPERS}, every-step": (*COMMON, "--patch", "every-step", *PAPER),
    "main, prompt": (*COMMON, "--patch", "prompt"),
    "controls, prompt": (*COMMON, "--patch", "prompt", *CONTROLS),
}


def run(part: str) -> list[Row]:
    """The rows of one part, by the command line as a user would run it."""
    command = [sys.executable, "-m", "dpmtv.cli", *PARTS[part]]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [{**row, "table": part} for row in json.loads(done.stdout)]


def merge(path: Path, part: str, rows: list[Row]) -> None:
    """Replace one part's rows in the file; safe beside another run of this program."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        old = json.loads(path.read_text("utf-8")) if path.exists() else []
        kept = [r for r in old if r["table"] != part] + rows
        kept.sort(key=lambda r: list(PARTS).index(r["table"]))
        scratch = path.with_suffix(f".{os.getpid()}.tmp")
        lines = ",\n".join(json.dumps(r, ensure_ascii=False) for r in kept)
        scratch.write_text(f"[\n{lines}\n]\n", "utf-8")
        scratch.replace(path)
    path.with_suffix(".lock").unlink(missing_ok=True)


def cell(row: Row | None) -> str:
    """Accuracy in percent with its standard error."""
    if row is None:
        return ""
    spread = "" if row["se"] is None else f" ± {100 * row['se']:.1f}"
    return f"{100 * row['mean']:.1f}{spread}"


def label(row: Row) -> str:
    """Method, geometry and privacy of a row, as a table cell."""
    parts = [row["method"]]
    if row["geometry"] and row["method"] != "task vector":
        parts.append(row["geometry"])
    if row["relation"]:
        paper = " (the paper's)" if row["relation"] == "zero_out" else ""
        parts.append(f"`{row['relation']}`{paper}")
    if row["epsilon"] is not None:
        parts.append(f"ε = {row['epsilon']:g}")
    return ", ".join(parts) + ("" if row["private"] else " — **not private**")


def table(rows: list[Row]) -> str:
    """Markdown: one line a method and setting, mean of the tasks and gain kept."""
    lines = ["| method | accuracy, % | gain kept, % | draws |", "|---|---|---|---|"]
    for row in rows:
        gain = "" if row["gain"] is None else f"{100 * row['gain']:.0f}"
        lines.append(f"| {label(row)} | {cell(row)} | {gain} | {row['draws']} |")
    return "\n".join(lines)


def task_table(rows: list[Row]) -> str:
    """Markdown: tasks as lines, methods as columns."""
    keys = list(dict.fromkeys(label(r) for r in rows))
    by_place = {(r["task"], label(r)): r for r in rows}
    tasks = list(dict.fromkeys(r["task"] for r in rows))
    lines = [f"| task | {' | '.join(keys)} |", "|---" * (len(keys) + 1) + "|"]
    for task in tasks:
        cells = " | ".join(cell(by_place.get((task, key))) for key in keys)
        lines.append(f"| {task} | {cells} |")
    return "\n".join(lines)


INTRO = """\
# Results on the embedded tasks

Made by `make results` from [results.json](results.json); every row names the command that makes it.
Whole generated answers, exact match, {n_test} test questions a task, ten tasks, m = {m} chunks of
K = {K} demonstrations and a query, δ = {delta:g}. A draw is a fresh choice of records *and* fresh
noise; ± is the standard error over draws of the mean over tasks. Gain kept is
(x − zero-shot) / (task vector without noise − zero-shot).

Rows marked **not private** are computed from raw records and have no guarantee. All records
here are public; they only play the private role.

"Selected heads" are chosen on public data before the release, and only they are released. "All
heads, public mask" releases every head as the paper does and patches the same selected ones. "Mask
from the release" is the paper's search: every head is released, and the mask is found by patching
the released vector into 60 public examples of the same rule.
"""


def page(rows: list[Row]) -> str:
    """The text of docs/results.md."""
    means = [r for r in rows if r["task"] == "mean"]
    first = next(r for r in means if r["method"] == "dp-mtv")
    text = INTRO.format(**first)
    for patch, words in (
        ("every-step", "Patched at the prompt's last token and at every decoding step"),
        ("prompt", "Patched at the prompt's last token alone"),
    ):
        of = {
            part: [r for r in means if r["table"] == f"{part}, {patch}"]
            for part in ("main", "controls", PAPERS)
        }
        if not of["main"]:
            continue
        text += f"\n## {words}\n\n{table(of['main'])}\n"
        if of[PAPERS]:
            text += f"\nMask from the release:\n\n{table(of[PAPERS])}\n"
        if of["controls"]:
            text += (
                "\nControls, which should stay near zero-shot: the vector of another task, and "
                f"the noise alone.\n\n{table(of['controls'])}\n"
            )
        shown = [
            r
            for r in rows
            if r["table"] == f"main, {patch}"
            and (r["method"] != "dp-mtv" or (r["epsilon"] == 1 and "selected" in r["geometry"]))
        ]
        text += f"\nTask by task, at ε = 1 with selected heads:\n\n{task_table(shown)}\n"
    return text


def draw(rows: list[Row]) -> None:
    """The README's picture."""
    picture = [
        r
        for r in rows
        if r["table"] == "main, every-step"
        and (r["method"] != "dp-mtv" or (r["epsilon"] and "selected" in r["geometry"]))
    ]
    (DOCS / "img").mkdir(exist_ok=True)
    plot_png(picture, DOCS / "img" / "accuracy.png")


def main() -> None:
    """Run the missing parts, then write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="PART")
    parser.add_argument("--again", action="store_true", help="run parts that are there too")
    options = parser.parse_args()
    path = DOCS / "results.json"
    for part in options.parts:
        there = {r["table"] for r in json.loads(path.read_text("utf-8"))} if path.exists() else ()
        if options.again or part not in there:
            print(f"running: {part}", flush=True)
            merge(path, part, run(part))
    rows = json.loads(path.read_text("utf-8"))
    (DOCS / "results.md").write_text(page(rows), "utf-8")
    draw(rows)


if __name__ == "__main__":
    main()
