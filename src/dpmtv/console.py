"""What the command line prints: tables, JSON and progress bars."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpmtv.data.check import DataReport, Spread
    from dpmtv.planning import Plan
    from dpmtv.privacy.ledger import History
    from dpmtv.public_tasks import Progress
    from dpmtv.types import Event


_MOST_COLUMNS = 6
_MOST_PLACES = 10


def print_json(value: Any) -> None:
    """Indented JSON on standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """A table for each metric; red where not private."""
    for metric in dict.fromkeys(row["metric"] for row in rows):
        _print_metric([row for row in rows if row["metric"] == metric])


def _print_metric(rows: Sequence[dict[str, Any]]) -> None:
    """Methods as rows, tasks (means of groups, if many) as columns."""
    from rich.console import Console
    from rich.table import Table

    places = list(dict.fromkeys(r["task"] for r in rows if r["task"] != "mean"))
    tasks = [p for p in places if not p.startswith("mean of ")]
    if len(tasks) > _MOST_COLUMNS:
        tasks = [p for p in places if p not in tasks]
    columns = [*tasks, "mean"] if len(tasks) != 1 and rows[-1]["task"] == "mean" else tasks
    sizes = {r["m"] for r in rows if r["m"] is not None}
    table = Table(box=None, header_style="bold")
    for heading in ("method", "released", "privacy", *["m"] * (len(sizes) > 1)):
        table.add_column(heading)
    for column in columns:
        table.add_column(column.removeprefix("mean of ").replace("-", " "), justify="right")
    table.add_column("gain kept", justify="right")
    groups: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        key = (
            row["method"],
            row["geometry"],
            row["relation"],
            row["epsilon"],
            row["private"],
            row["m"],
        )
        groups.setdefault(key, {})[row["task"]] = row
    for (method, geometry, relation, epsilon, private, m), cells in groups.items():
        last = cells.get(columns[-1], {"gain": None})
        table.add_row(
            method,
            (geometry or "").split(",")[0],
            _privacy(epsilon, relation, private),
            *[str(m or "")] * (len(sizes) > 1),
            *(_cell(cells.get(column), column == columns[-1]) for column in columns),
            "" if last["gain"] is None or method == "zero-shot" else f"{100 * last['gain']:.0f} %",
        )
    # A pipe has no width; 150 columns keep every row on one line.
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(table)
    draws = max(r["draws"] for r in rows)
    spread = f"; ± standard error over {draws} draws" if draws > 1 else ""
    console.print(f"Accuracy in %: {rows[0]['metric']}{spread}.", style="dim")


def print_cells(rows: Sequence[dict[str, Any]]) -> None:
    """The cells of the paper's tables, a table a data set and metric; red where not private."""
    from rich.console import Console
    from rich.table import Table

    from dpmtv.evaluation.table_files import shown, title

    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    blocks: dict[str, list[dict[str, Any]]] = {}
    for row in shown(rows):
        blocks.setdefault(title(row), []).append(row)
    for name, found in blocks.items():
        table = Table(box=None, header_style="bold", title=name, title_justify="left")
        for heading in ("method", "", "privacy"):
            table.add_column(heading, no_wrap=True)
        for heading in ("m", "K", "%", "published", "kept", "publ. kept", "draws", "time"):
            table.add_column(heading, justify="right")
        table.add_column("tokens", justify="right")
        for row in found:
            if row["mean"] is None:
                table.add_row(row["line"], row["value"], f"[yellow]{row['note']}[/]")
                continue
            table.add_row(
                *(row["line"], row["value"]),
                _privacy(row["epsilon"], row["relation"], row["private"]),
                *(str(row["m"] or ""), str(row["K"] or "")),
                *(_cell(row, spread=True), _percent(row["published"], 1)),
                *(_percent(row["gain"], 0), _percent(row["published_gain"], 0)),
                *(str(row["draws"]), _duration(row["seconds"]), _large(row["tokens"])),
            )
        console.print(table)
        first = found[0]
        deltas = sorted({row["delta"] for row in found if row["delta"] is not None})
        said = "".join(f" δ = {delta:g}." for delta in deltas)
        console.print(f"{first['n_test']} questions.{said} Prompt: {first['prompt']}", style="dim")
    console.print(
        "± is the standard error over draws; kept is the share of the gain in %: (x − zero-shot) / "
        "(task vector without noise − zero-shot).",
        style="dim",
    )


def print_costs(rows: Sequence[dict[str, Any]]) -> None:
    """What cells will take, by arithmetic."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    table = Table(box=None, header_style="bold")
    for heading in ("data set", "cell", ""):
        table.add_column(heading)
    for heading in ("records", "tokens", "pictures", "GPU hours"):
        table.add_column(heading, justify="right")
    for row in rows:
        taken = (_large(row["tokens"]), _large(row["pictures"]), f"{row['hours']:.2f}")
        table.add_row(
            *(row["benchmark"], row["line"], row["value"], str(row["records"] or "")),
            *((f"[yellow]{row['note']}[/]",) if row["note"] else taken),
        )
    console.print(table)
    console.print(
        f"By arithmetic, nothing was run: 2 × {rows[0]['parameters'] / 1e9:.2g} billion parameters "
        "operations a token, 125 TFLOP/s, vision tower left out, every answer as long as it may be "
        "(docs/reproduce.md).",
        style="dim",
    )


def _percent(share: float | None, places: int) -> str:
    return "" if share is None else f"{100 * share:.{places}f}"


def _large(number: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f}"


def print_membership(rows: Sequence[dict[str, Any]]) -> None:
    """Attacks with what they found beside what the certificate allows, then the verdicts."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    table = Table(box=None, header_style="bold")
    for heading in ("target", "records", "attack", "privacy"):
        table.add_column(heading)
    for heading in ("AUC", "allowed", "hits at 1 %", "hits at 5 %", "μ ≥", "ε ≥"):
        table.add_column(heading, justify="right")
    for row in rows:
        privacy = f"ε = {row['epsilon']:g}" if row["private"] else "[bold red]not private[/]"
        table.add_row(
            *(row["target"], row["candidates"], row["attack"], privacy),
            f"{row['auc']:.3f} ({row['auc_low']:.3f} to {row['auc_high']:.3f})",
            "" if row["auc_allowed"] is None else f"{row['auc_allowed']:.3f}",
            *(f"{row[at]:.1%}" for at in ("hits_at_1", "hits_at_5")),
            *(f"{row[bound]:.2f}" for bound in ("mu_low", "epsilon_low")),
        )
    console.print(table)
    for row in rows:
        if row["private"]:
            console.print(
                f"{row['target']}, ε = {row['epsilon']:g}, {row['candidates']} records, "
                f"{row['attack']}: {row['verdict']}"
            )


def print_plan(plan: Plan, build: str) -> None:
    """Forecasts, what they rest on, warnings, and the build's command line."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    best = plan.recommended
    rules = len(best.by_rule)
    known = "" if best.error is None else f"; the mean itself ± {100 * best.error:.1f}"
    console.print(
        f"[bold]Expected accuracy: {best.accuracy:.0%} ± {100 * best.spread:.0f}[/] (one build on "
        f"one of {rules} public rule{'s' * (rules > 1)}; {plan.draws} draws each{known})"
    )
    console.print(
        f"On the same records: zero-shot {plan.zero_shot:.0%}; answer words listed and enforced, "
        f"if public, {plan.words:.0%}; demonstrations in the prompt {plan.in_context:.0%}; the "
        f"vector without noise {best.without_noise:.0%}."
    )
    table = Table(box=None, header_style="bold")
    headings = ("", "method", "ε", "records", "K", "m", "accuracy, %", "noise ÷ signal")
    for heading in (*headings, "null chunks"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for row in plan.forecasts:
        ratio = row.noise_to_signal
        table.add_row(
            "→" if row.recommended else "",
            row.method,
            *(f"{row.epsilon:g}", str(row.records), str(row.shots), str(row.chunks)),
            f"{100 * row.accuracy:.1f} ± {100 * row.spread:.1f}",
            *("" if ratio is None else f"{ratio:.2f}", f"{row.null_chunks:.0%}"),
            style="bold" if row.recommended else None,
        )
    console.print(table)
    console.print(escape(plan.advice))
    memory = "" if plan.memory is None else f" and {plan.memory / 1e9:.1f} GB of main memory"
    console.print(
        f"The build takes about {_duration(plan.seconds)}{memory} on this machine; this plan took "
        f"{_duration(plan.took)}."
    )
    for warning in plan.warnings:
        console.print(f"[yellow]- {escape(warning)}[/]")
    console.print("Nothing private was read and no budget spent. To build:")
    console.print(escape(build), soft_wrap=True)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def print_ledger(history: History) -> None:
    """Terms, entries, and what is left."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    terms = history.terms
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(
        f"Budget: ε = {terms.epsilon:g} at δ = {terms.delta:g}, {terms.relation} per "
        f"{escape(terms.unit or 'record')}; ledger {history.ledger_id[:8]}…"
    )
    table = Table(box=None, header_style="bold")
    for heading in ("entry", "reserved (UTC)", "state", "part", "Δ/σ or E", "dpmtv"):
        table.add_column(heading)
    for entry in history.entries:
        cost = ", ".join(_cost(event) for event in entry.events)
        table.add_row(
            *(str(entry.id), entry.reserved_at, entry.state),
            *(escape(entry.part) or "–", cost, entry.tool_version),
        )
    if history.entries:
        console.print(table)
    for part, spent in history.spent.items():
        where = f"part {escape(part)}: " if part else ""
        console.print(
            f"{where}spent ε = {spent:.4g}; one more release with ε = "
            f"{history.remaining[part]:.4g} would fit."
        )


def _cost(event: Event) -> str:
    from dpmtv.types import GaussianEvent

    if isinstance(event, GaussianEvent):
        return f"{event.delta2 / event.sigma:.4g}"
    return f"E = {event.range:.4g}" + (f" × {event.count}" if event.count > 1 else "")


def print_data_report(report: DataReport, files: Sequence[tuple[str, str]]) -> None:
    """What `data check` found; ``files`` are paths and formats."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    console.print(
        "[bold red]not private[/]: for the operator's eyes only, computed from the records as they "
        "are."
    )
    for path, kind in files:
        console.print(f"{escape(path)}: {kind}", style="dim")
    table = Table(box=None, show_header=False)
    table.add_row("records", f"{report.records}, of which {report.good} can be used")
    for reason, places in report.bad.items():
        table.add_row(f"[red]{escape(reason)}[/]", _places(places, len(files)))
    if report.units is not None:
        table.add_row("units", f"{report.units}, {_spread(report.per_unit)} records each")
    if report.nearly_equal:
        shown = report.nearly_equal[:_MOST_PLACES]
        groups = (_places(group, len(files)).partition(": ")[2] for group in shown)
        more = " …" if len(report.nearly_equal) > _MOST_PLACES else ""
        table.add_row(
            "[red]units nearly equal[/]",
            f"{sum(map(len, report.nearly_equal))}, first seen in {'; '.join(groups)}{more}",
        )
    if report.images is not None:
        table.add_row("pictures a record", _spread(report.images))
    if report.width is not None:
        table.add_row(
            "picture size", f"width {_spread(report.width)}, height {_spread(report.height)}"
        )
    if report.question is not None:
        table.add_row("question length", f"{_spread(report.question)} characters")
        table.add_row("answer length", f"{_spread(report.answer)} characters")
        table.add_row("different answers", f"{report.distinct_answers}")
    if report.several_answers:
        table.add_row("with several answers", f"{report.several_answers}")
    for what, places in (
        ("the same record again", report.repeated),
        ("the same picture, asked otherwise", report.same_pictures),
        ("the same id again", report.same_ids),
    ):
        if places:
            table.add_row(what, _places(places, len(files)))
    console.print(table)
    for sentence in report.suggestions:
        console.print(f"- {escape(sentence)}")


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return "–"
    if spread.low == spread.high:
        return f"{spread.low:g}"
    return f"{spread.low:g} to {spread.high:g} (median {spread.median:g})"


def _places(places: Sequence[tuple[int, int]], files: int) -> str:
    """The number of places, and the first of them."""
    shown = [f"file {f} row {r}" if files > 1 else str(r) for f, r in places[:_MOST_PLACES]]
    more = " …" if len(places) > _MOST_PLACES else ""
    row = "" if files > 1 else "row " if len(places) == 1 else "rows "
    return f"{len(places)}: {row}{', '.join(shown)}{more}"


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
    """A bar with remaining time for each part of the work, on standard error; a line in a file."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    # A descriptor of its own, because private passes silence the process's standard error.
    real = sys.stderr is sys.__stderr__
    with (
        os.fdopen(os.dup(2), "w") if real else nullcontext(sys.stderr) as own,
        Progress(
            *columns, TimeRemainingColumn(), console=Console(file=own), transient=True
        ) as bars,
    ):
        known: dict[str, Any] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in known:
                known[what] = bars.add_task(what, total=total)
                if not bars.console.is_terminal:
                    bars.console.print(f"{what}: {total}", highlight=False)
            bars.update(known[what], completed=done, total=total)

        yield report
