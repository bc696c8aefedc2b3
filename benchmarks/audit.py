"""Measure the audits of docs/audit.md and put their table into it: ``python benchmarks/audit.py``.

Writes docs/audit.json and docs/img/audit.png. About seven minutes of computing on one core.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]

DOCS = Path(__file__).resolve().parent.parent / "docs"
COMMAND = (
    *("audit", "membership", "embedded"),
    *("--tasks", "color-gem,digit-french,shape-spanish,parity-words", "-o", "audit"),
)
BEGIN, END = "<!-- made from audit.json -->\n", "<!-- end -->"


def table(rows: Sequence[Row]) -> str:
    """What was found, as Markdown; targets without noise say that they are not private."""
    lines = [
        "| target | records | attack | AUC (95 % interval) | allowed | hits at 5 % (95 %) | "
        "allowed | μ ≥ | says |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        target = f"{r['target']}, **not private**"
        if r["private"]:
            target = f"{r['target']}, ε = {r['epsilon']:g}"
        auc, hits = r["auc_allowed"], r["hits_at_5_allowed"]
        lines.append(
            f"| {target} | {r['candidates']} | {r['attack']} | {r['auc']:.3f} "
            f"({r['auc_low']:.3f}–{r['auc_high']:.3f}) | {'' if auc is None else f'{auc:.3f}'} | "
            f"{100 * r['hits_at_5']:.1f} % ({100 * r['hits_at_5_low']:.1f}–"
            f"{100 * r['hits_at_5_high']:.1f}) | {'' if hits is None else f'{100 * hits:.1f} %'} | "
            f"{r['mu_low']:.2f} | {short(r)} |"
        )
    return "\n".join(lines) + "\n"


def short(row: Row) -> str:
    """The verdict in a few words."""
    if row["violation"]:
        return "violation"
    if not row["private"]:
        return "finds members" if row["auc_low"] > 0.5 else "finds none"
    return "nothing found" if row["verdict"].startswith("no violation") else "too weak to say"


def page(text: str, rows: Sequence[Row]) -> str:
    """The document with its table made anew."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + table(rows) + END + after


def main() -> None:
    """Attack, then write rows, picture and table."""
    with tempfile.TemporaryDirectory() as name:
        subprocess.run([sys.executable, "-m", "dpmtv.cli", *COMMAND], cwd=name, check=True)
        made = Path(name) / "audit"
        shutil.copy(made / "audit.json", DOCS / "audit.json")
        shutil.copy(made / "audit.png", DOCS / "img" / "audit.png")
    rows = json.loads((DOCS / "audit.json").read_text("utf-8"))
    document = DOCS / "audit.md"
    document.write_text(page(document.read_text("utf-8"), rows), "utf-8")


if __name__ == "__main__":
    main()
