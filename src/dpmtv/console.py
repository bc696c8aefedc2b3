"""What the command line prints: tables, JSON and progress bars."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpmtv.pipeline import Progress


def print_json(value: Any) -> None:
    """Indented JSON on standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Methods as rows, tasks as columns; what has no guarantee says so in red."""
    from rich.console import Console
    from rich.table import Table

    tasks = list(dict.fromkeys(r["task"] for r in rows if r["task"] != "mean"))
    columns = [*tasks, "mean"] if len(tasks) > 1 else tasks
    table = Table(box=None, header_style="bold")
    for heading in ("method", "released", "privacy"):
        table.add_column(heading)
    for column in columns:
        table.add_column(column.replace("-", " "), justify="right")
    table.add_column("gain kept", justify="right")
    groups: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        key = (row["method"], row["geometry"], row["relation"], row["epsilon"], row["private"])
        groups.setdefault(key, {})[row["task"]] = row
    for (method, geometry, relation, epsilon, private), cells in groups.items():
        last = cells[columns[-1]]
        table.add_row(
            method,
            (geometry or "").split(",")[0],
            _privacy(epsilon, relation, private),
            *(_cell(cells.get(column), column == columns[-1]) for column in columns),
            "" if last["gain"] is None or method == "zero-shot" else f"{100 * last['gain']:.0f} %",
        )
    # A pipe has no width; 150 columns keep every row on one line.
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(table)
    draws = max(r["draws"] for r in rows)
    spread = f"; ± standard error over {draws} draws" if draws > 1 else ""
    console.print(f"Accuracy in %: {rows[0]['metric']}{spread}.", style="dim")


def _privacy(epsilon: float | None, relation: str | None, private: bool) -> str:
    if not private:
        return "[bold red]not private[/]"
    if epsilon is None:
        return "no private data"
    return f"ε = {epsilon:g}, {'zero_out (the paper)' if relation == 'zero_out' else relation}"


def _cell(row: dict[str, Any] | None, spread: bool) -> str:
    if row is None:
        return ""
    error = f" ± {100 * row['se']:.1f}" if spread and row["se"] is not None else ""
    return f"{100 * row['mean']:.1f}{error}"


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """A bar with remaining time for each part of the work, on standard error."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as bars:
        known: dict[str, Any] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in known:
                known[what] = bars.add_task(what, total=total)
            bars.update(known[what], completed=done, total=total)

        yield report
