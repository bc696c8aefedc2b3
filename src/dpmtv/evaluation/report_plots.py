"""The report's pictures.

A picture is drawn by matplotlib in the light palette and then refers to the palette by name, so
that it follows the page, or its reader, into dark mode. Its text stays text.
"""

from __future__ import annotations

import html
import io
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool

from dpmtv.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
Series = Mapping[str, Sequence[Row]]  # label → rows of one method under one relation, ε rising
Heads = Sequence[Bool[np.ndarray, " _"]]

# Name → (light, dark). Blue, orange and purple stay apart under the common colour blindnesses;
# text has a contrast of 4.5 or more. Light values are unique, because they stand for the name.
PALETTE = {
    "paper": ("#fefefe", "#15181b"),
    "panel": ("#f4f5f6", "#1e2226"),
    "rule": ("#dcdfe3", "#363c43"),
    "ink": ("#1b1f23", "#e6e8eb"),
    "muted": ("#59616b", "#a5adb7"),
    "blue": ("#0b62a8", "#6db3f2"),
    "orange": ("#b55d00", "#f0a24b"),
    "purple": ("#7d3c98", "#cf9fe6"),
    "danger": ("#c1121f", "#ff8080"),
}
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_LIGHT = {name: light for name, (light, _) in PALETTE.items()}

_CURVES = (("blue", "o", "-"), ("orange", "s", (0, (4, 1.5))), ("purple", "^", (0, (1.5, 1))))
_BASELINES = (("o", (1, 2)), ("D", (7, 2, 1, 2)), ("^", (6, 3)), ("v", (3, 2)), ("s", (10, 3)))

_PERCENT = ([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100"])

# Lengths are CSS pixels. A picture is as wide as a phone, or as half of a desktop page.
_WIDTH, _LEFT, _RIGHT, _LINE = 400, 42, 14, 20


def epsilon_of(row: Row) -> float | None:
    """The row's ε, or None for whatever was made without noise."""
    epsilon = row["epsilon"]
    return None if epsilon is None or math.isinf(epsilon) else float(epsilon)


def is_private(row: Row) -> bool:
    """Whether a guarantee stands behind the row; one that contradicts itself has none."""
    return bool(row["private"]) and (epsilon_of(row) is not None or row["method"] == "zero-shot")


def accuracy_svg(found: Series) -> str:
    """Accuracy against ε."""

    def words(points: Sequence[Row]) -> str:
        marks = (f" at ε = {e:g}" if (e := epsilon_of(row)) else "" for row in points)
        values = ", ".join(
            f"{row['mean']:.1%}{mark}" for row, mark in zip(points, marks, strict=True)
        )
        return values + " (not private)" * (not all(map(is_private, points)))

    lines = [f"{label}: {words(points)}" for label, points in found.items()]
    return _svg(lambda: draw_accuracy(found), "Accuracy against ε. " + "; ".join(lines) + ".")


def tasks_svg(found: Series, tasks: Sequence[str]) -> str:
    """Accuracy at one ε, a bar a private method and a mark a baseline for each task."""
    return _svg(
        lambda: _draw_tasks(found, tasks), "Accuracy by task: the table below holds the numbers."
    )


def heads_svg(heads: Heads) -> str:
    """Which heads of which layer are released."""
    return _svg(lambda: _draw_heads(heads), heads_words(heads))


def heads_words(heads: Heads) -> str:
    """The same in a sentence."""
    released = sum(int(np.sum(layer)) for layer in heads)
    return f"Heads released: {released} of {sum(map(len, heads))}. Layers: {len(heads)}."


def draw_accuracy(found: Series) -> Figure:
    """A curve with standard errors for what has an ε, a horizontal line for what has none."""
    epsilons = sorted({e for points in found.values() for row in points if (e := epsilon_of(row))})
    figure, axes, looks = _picture(260, found)
    low, high = (epsilons[0] / 1.3, epsilons[-1] * 1.3) if epsilons else (0.5, 2.0)
    across, place = np.geomspace(low, high, 21), -1
    for label, points in found.items():
        means = [row["mean"] for row in points]
        if epsilon_of(points[0]) is None:  # marks step to the right, so that equal lines show
            place += 1
            axes.plot(across, means * 21, **looks[label], markevery=[place], clip_on=False)
        else:
            x, errors = zip(*((epsilon_of(row), row["se"] or 0.0) for row in points), strict=True)
            curve = axes.errorbar(x, means, errors, **looks[label], elinewidth=1, capsize=3)
            curve[0].set_clip_on(False)  # whole marks at 0 and 100, but no whisker beyond
    axes.set(xscale="log", xlim=(low, high), ylim=(0, 1), xlabel="ε")
    axes.set_title("accuracy, %", loc="left", size=12, color=_LIGHT["muted"], x=-0.09, pad=11)
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.set_xticks([], minor=True)
    axes.set_yticks(*_PERCENT)
    axes.grid(axis="y")
    return figure


def _draw_tasks(found: Series, tasks: Sequence[str]) -> Figure:
    bars = [label for label, points in found.items() if epsilon_of(points[0]) is not None]
    marks = [label for label in found if label not in bars]
    name, height, gap = 19, 10 * max(len(bars), 2), 12
    slot = name + height + gap
    figure, axes, looks = _picture(slot * max(len(tasks), 1), found, bars=True)
    for label, points in found.items():
        beside = bars if label in bars else marks
        step = height / len(beside)
        for row in points:
            y = slot * tasks.index(row["task"]) + name + step * (beside.index(label) + 0.5)
            if label in bars:
                axes.barh(y, row["mean"], step - 2, color=looks[label]["color"])
                axes.errorbar(row["mean"], y, xerr=row["se"] or 0.0, color=_LIGHT["ink"])
            else:
                axes.plot(row["mean"], y, **looks[label], clip_on=False)
    for index, task in enumerate(tasks):
        axes.text(0, slot * index + name - 5, _short(task, 56))
    axes.set(xlim=(0, 1), ylim=(slot * max(len(tasks), 1), 0), yticks=[], xlabel="accuracy, %")
    axes.set_xticks(*_PERCENT)
    axes.grid(axis="x")
    return figure


def _draw_heads(heads: Heads) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    columns = max(map(len, heads), default=1)
    cell = min(26.0, (_WIDTH - _LEFT - _RIGHT) / columns)
    width, height = _LEFT + cell * columns + _RIGHT, 44 + cell * len(heads) + 4
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    axes = figure.add_axes((_LEFT / width, 4 / height, cell * columns / width, 1 - 48 / height))
    for released, colour in ((False, "rule"), (True, "blue")):
        squares = [
            Path([(x, y), (x + 0.84, y), (x + 0.84, y + 0.84), (x, y + 0.84), (x, y)], closed=True)
            for y, layer in enumerate(heads)
            for x in np.flatnonzero(np.asarray(layer) == released).tolist()
        ]
        if squares:  # one path for all: a large model has thousands of heads
            axes.add_patch(PathPatch(Path.make_compound_path(*squares), fc=_LIGHT[colour], lw=0))
    axes.set(xlim=(0, columns), ylim=(max(len(heads), 1), 0), xlabel="head", ylabel="layer")
    for axis, count in ((axes.xaxis, columns), (axes.yaxis, len(heads))):
        shown = range(0, count, math.ceil(20 / cell))
        axis.set_ticks([number + 0.42 for number in shown], [str(number) for number in shown])
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure


def _picture(
    height: int, found: Series, *, bars: bool = False
) -> tuple[Figure, Axes, dict[str, dict[str, Any]]]:
    """An empty picture with its legend below, and the look of each series as line arguments."""
    from matplotlib.figure import Figure

    left, top, foot = 4 if bars else _LEFT, 8 if bars else 28, 44 + _LINE * len(found) + 4
    total = top + height + foot
    figure = Figure(figsize=(_WIDTH / 72, total / 72), dpi=72)
    inner = (_WIDTH - left - _RIGHT) / _WIDTH
    axes = figure.add_axes((left / _WIDTH, foot / total, inner, height / total))
    axes.spines[["top", "right"]].set_visible(False)
    key = figure.add_axes((0, 0, 1, (foot - 44) / total), xlim=(0, _WIDTH))
    key.set(ylim=(len(found) or 1, 0))
    key.axis("off")
    curves, baselines = iter(_CURVES * len(found)), iter(_BASELINES * len(found))
    looks: dict[str, dict[str, Any]] = {}
    open_labels = [label for label, rows in found.items() if not all(map(is_private, rows))]
    column = min(left + 44 + 6.7 * max(map(len, open_labels), default=0), _WIDTH - 80)
    for line, (label, rows) in enumerate(found.items()):
        if epsilon_of(rows[0]) is None:
            marker, dashes = next(baselines)
            look: dict[str, Any] = {"color": _LIGHT["muted"], "mfc": _LIGHT["paper"]}
            look |= {"marker": marker, "linestyle": "none" if bars else (0, dashes)}
        else:
            colour, marker, style = next(curves)
            look = {"color": _LIGHT[colour]}
            look |= {"linewidth": 7} if bars else {"marker": marker, "linestyle": style}
        looks[label] = {"markersize": 6.5, "linewidth": 1.6, **look}
        y = line + 0.5
        key.plot([left, left + 14, left + 28], [y] * 3, **looks[label], markevery=[1])
        key.text(left + 40, y, _short(label, 40), va="center_baseline")
        if label in open_labels:
            tag = key.text(column, y, "not private", va="center_baseline", weight="bold")
            tag.set_color(_LIGHT["danger"])
    return figure, axes, looks


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def save(draw: Callable[[], Figure], target: Any, *, salt: str = "", **options: Any) -> None:
    """Draw and save, without a display and without complaints about glyphs a font lacks.

    Raises:
        UserError: matplotlib is missing.
    """
    require("matplotlib")
    import matplotlib

    settings: dict[Any, Any] = {
        "svg.fonttype": "none",  # real text: it can be read aloud, found and copied
        "svg.hashsalt": salt,  # the same rows give the same bytes
        "text.parse_math": False,  # a dollar in a task's name is a dollar
        "font.family": "DejaVu Sans",
        "font.size": 12,
        "text.color": _LIGHT["ink"],
        "axes.edgecolor": _LIGHT["muted"],
        "axes.labelcolor": _LIGHT["muted"],
        "axes.axisbelow": True,
        "grid.color": _LIGHT["rule"],
        "xtick.color": _LIGHT["muted"],
        "ytick.color": _LIGHT["muted"],
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draw().savefig(target, **options)


def _svg(draw: Callable[[], Figure], words: str) -> str:
    """An SVG element in the palette's names and the page's fonts, with ``words`` for the blind."""
    buffer = io.StringIO()
    silent = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    save(draw, buffer, salt=words, format="svg", transparent=True, metadata=silent)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg ") :]
    svg = re.sub(r'(width|height)="([\d.]+)pt"', r'\1="\2"', svg)
    svg = re.sub(r' id="[\w.]+_\d+"', "", svg)  # would repeat from picture to picture
    for name, light in _LIGHT.items():
        svg = svg.replace(f": {light}", f": var(--{name}, {light})")
    svg = svg.replace("font-family: 'DejaVu Sans'", f"font-family: {FONTS}")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(words)}" ', 1)


def palette_css() -> str:
    """The palette as CSS variables; dark on dark screens, never on paper."""
    light, dark = (
        "".join(f"--{name}:{shades[i]};" for name, shades in PALETTE.items()) for i in (0, 1)
    )
    return (
        f":root{{color-scheme:light dark;background:var(--paper);{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    )


def require(library: str) -> None:
    """Import ``library``, or say how to install it.

    Raises:
        UserError: it is missing.
    """
    try:
        __import__(library)
    except ImportError as error:
        raise UserError(f"a report needs {library}: pip install 'dpmtv[report]'") from error
