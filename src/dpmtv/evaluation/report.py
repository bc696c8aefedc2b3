"""One self-contained HTML page that shows what a set of result rows says.

The page carries its styles, pictures and images, and asks the network for nothing. Whatever has
no guarantee carries the red words "not private", in tables and pictures alike.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpmtv.errors import UserError
from dpmtv.evaluation import report_plots as plots
from dpmtv.evaluation.report_plots import Heads, Row, epsilon_of, is_private

_METHODS = {
    "zero-shot": "zero-shot",
    "in-context": "{K}-shot in context",
    "task vector": "task vector without noise",
    "dp-mtv": "DP-MTV",
}
_SETTINGS = {
    "model": "Model",
    "metric": "Metric",
    "prompt": "Prompt",
    "delta": "δ",
    "records": "Private records",
    "m": "Chunks, m",
    "K": "Demonstrations a prompt, K",
    "coordinates": "Released coordinates",
    "draws": "Noise draws",
    "n_test": "Test questions",
}


def write_report(
    path: str | Path,
    *,
    rows: Sequence[Row],
    heads: Heads,
    examples: Sequence[Mapping[str, Any]],
    timings: Sequence[tuple[str, float]],
    title: str,
    statement_lines: Sequence[str],
) -> None:
    """Write one HTML page with tables, pictures and examples; it needs no network.

    Args:
        path: the file to write; an existing one is replaced.
        rows: result rows of one table, accuracies as fractions; a row a task, and one with
            ``"task": "mean"`` unless there is only one task.
        heads: which heads were released: for each layer, in order, one truth value a head.
        examples: *public* test examples: ``task``, ``image`` (PNG bytes), ``question``,
            ``wanted``, ``answers`` (method → (answer, correct)), ``private`` (method → bool; a
            method that is missing there counts as not private).
        timings: what was done and how many seconds it took, in order.
        title: heading of the page.
        statement_lines: the guarantee in plain words, a sentence or two an entry.

    Raises:
        UserError: matplotlib or jinja2 is missing, or two rows give the same result.
    """
    plots.require("jinja2")
    import jinja2
    from markupsafe import Markup

    means, single, shown = _overall(rows), _at_focus(rows), _tasks(rows)
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters.update(
        percent=_percent,
        duration=_duration,
        names=_names,
        epsilon=epsilon_of,
        is_private=is_private,
    )
    template = Path(__file__).with_name("report.html.j2").read_text("utf-8")
    page = environment.from_string(template).render(
        title=title,
        palette=Markup(plots.palette_css()),
        fonts=Markup(plots.FONTS),
        statement_lines=statement_lines,
        headline=list(_series(means).values()),
        focus=_focus(rows),
        accuracy=Markup(plots.accuracy_svg(_series(means))),
        tasks=shown,
        tasks_picture=Markup(plots.tasks_svg(_series(single), shown)),
        by_task={
            label: {row["task"]: row for row in found} for label, found in _series(single).items()
        },
        heads_picture=Markup(plots.heads_svg(heads) if heads else ""),
        heads_words=plots.heads_words(heads),
        examples=[
            {**example, "base64": base64.b64encode(example["image"]).decode()}
            for example in examples
        ],
        timings=timings,
        settings={words: _distinct(means, key) for key, words in _SETTINGS.items()},
        commands=_distinct(rows, "command"),
    )
    # A model's answer may hold half of a surrogate pair, which UTF-8 cannot.
    Path(path).write_bytes(page.encode("utf-8", "replace"))


def accuracy_plot(rows: Sequence[Row]) -> str:
    """Accuracy against ε as an SVG that stands alone and follows its reader's dark mode.

    Points are means over tasks with one standard error; methods without an ε are lines.

    Raises:
        UserError: matplotlib is missing, or two rows give the same result.
    """
    svg = plots.accuracy_svg(_series(_overall(rows)))
    return svg.replace(">", f"><style>{plots.palette_css()}</style>", 1)


def plot_png(rows: Sequence[Row], path: str | Path) -> None:
    """Write the picture of :func:`accuracy_plot` as a PNG, 1200 pixels wide, on white.

    Raises:
        UserError: matplotlib is missing, or two rows give the same result.
    """
    found = _series(_overall(rows))
    plots.save(lambda: plots.draw_accuracy(found), path, format="png", dpi=216)


def _names(row: Row) -> tuple[str, str]:
    """The method and the neighbour relation (empty for a baseline) in the words of the page."""
    method = _METHODS.get(str(row["method"]), str(row["method"])).replace("{K}", str(row["K"]))
    if epsilon_of(row) is None:
        return method + " without noise" * (row["method"] == "dp-mtv"), ""
    relation = row["relation"] or "relation not stated"
    return method, relation + " (the paper's)" * (relation == "zero_out")


def _ordered(rows: Iterable[Row]) -> list[Row]:
    """Baselines first, then the private methods, each by relation and rising ε."""
    order = dict(zip(_METHODS, range(len(_METHODS)), strict=True))
    return sorted(
        rows,
        key=lambda row: (
            order.get(row["method"], len(order)),
            row["relation"] or "",
            epsilon_of(row) or 0.0,
            row["K"] or 0,
        ),
    )


def _series(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Label → the rows of one method under one relation, ε rising.

    Raises:
        UserError: two rows give the same result, so that neither picture nor table could.
    """
    found: dict[str, dict[tuple[str, float | None], Row]] = {}
    for row in _ordered(rows):
        label, key = ", ".join(filter(None, _names(row))), (row["task"], epsilon_of(row))
        if key in found.setdefault(label, {}):
            raise UserError(f"two rows for {label} at ε = {key[1]}: report one table at a time")
        found[label][key] = row
    return {label: list(points.values()) for label, points in found.items()}


def _tasks(rows: Iterable[Row]) -> list[str]:
    """The tasks in the order of the rows."""
    return list(dict.fromkeys(row["task"] for row in rows if row["task"] != "mean"))


def _overall(rows: Sequence[Row]) -> list[Row]:
    """The means over tasks; with one task only, that task."""
    means = [row for row in rows if row["task"] == "mean"]
    return means or (list(rows) if len(_tasks(rows)) == 1 else [])


def _focus(rows: Iterable[Row]) -> float | None:
    """The ε that is shown task by task: 1, or the nearest to it."""
    epsilons = [epsilon for row in rows if (epsilon := epsilon_of(row))]
    return min(epsilons, key=lambda epsilon: abs(math.log(epsilon)), default=None)


def _at_focus(rows: Sequence[Row]) -> list[Row]:
    """The rows of single tasks at the ε in focus, and those without an ε."""
    shown = (None, _focus(rows))
    return [row for row in rows if row["task"] != "mean" and epsilon_of(row) in shown]


def _distinct(rows: Iterable[Row], key: str) -> list[str]:
    values = (row[key] for row in rows if row[key] is not None)
    return [
        f"{value:g}".replace("e-0", "e-") if isinstance(value, float) else str(value)
        for value in dict.fromkeys(values)
    ]


def _percent(fraction: float | None, digits: int = 1) -> str:
    return "–" if fraction is None else f"{100 * fraction:.{digits}f}".replace("-", "−")


def _duration(seconds: float) -> str:
    if seconds < 59.5:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"
