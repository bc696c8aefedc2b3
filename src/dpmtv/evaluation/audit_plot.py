"""The picture of a membership audit: hits against false alarms, beside what is certified."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmtv.audit.membership import BARE, PROMPT, allowed_hits
from dpmtv.evaluation.report_plots import PALETTE, save

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK = {name: light for name, (light, _) in PALETTE.items()}
_PRIVATE = ("blue", "purple", "orange")
_OPEN = {PROMPT: (0, (5, 2)), BARE: (0, (1.5, 1))}
_PANELS = ("vector", "answers", "own answer")


def tradeoff_png(rows: Sequence[dict[str, Any]], path: Path | str) -> None:
    """Write the picture; odd records, against which attacks are at their best.

    Raises:
        UserError: matplotlib is missing.
    """
    save(lambda: _draw([row for row in rows if row["candidates"] == "odd"]), path, dpi=144)


def _draw(rows: Sequence[dict[str, Any]]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 6.1))
    levels = sorted({row["epsilon"] for row in rows if row["private"]})
    colours = {epsilon: _INK[_PRIVATE[i % 3]] for i, epsilon in enumerate(levels)}
    panels = figure.subplots(1, len(_PANELS), sharey=True)
    for axes, attack in zip(panels, _PANELS, strict=True):
        _panel(axes, [row for row in rows if row["attack"] == attack], colours)
        axes.set_title(f"attack on the {attack}")
    panels[0].set_ylabel("members found")
    handles: dict[str, Any] = {}
    for axes in panels:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.subplots_adjust(left=0.065, right=0.975, top=0.93, bottom=0.28, wspace=0.08)
    legend = figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=3)
    legend.set_frame_on(False)
    for text in legend.get_texts():
        if "not private" in text.get_text():
            text.set_color(_INK["danger"])
    return figure


def _panel(axes: Axes, rows: Sequence[dict[str, Any]], colours: dict[float, str]) -> None:
    alarms = np.geomspace(0.005, 1, 200)[:-1]
    axes.plot(alarms, alarms, color=_INK["muted"], linewidth=1, label="guessing")
    for row in rows:
        if row["private"]:
            look: dict[str, Any] = {"color": colours[row["epsilon"]], "linewidth": 2}
            label = f"private vector, ε = {row['epsilon']:g}: found"
            allowed = [allowed_hits(row["mu"], float(a)) for a in alarms]
            bound = f"ε = {row['epsilon']:g}: the most that is certified"
            axes.plot(alarms, allowed, color=look["color"], linestyle=(0, (6, 2)), label=bound)
        else:
            look = {"color": _INK["danger"], "linewidth": 2, "linestyle": _OPEN[row["target"]]}
            label = f"{row['target']}: not private"
        x, y = np.array(row["curve"]).T
        axes.plot(x, y, label=label, **look)
    axes.set(xscale="log", xlim=(0.005, 1), ylim=(0, 1.02), xlabel="false alarms")
    axes.set_xticks([0.01, 0.05, 0.2, 1], ["1 %", "5 %", "20 %", "100 %"])
    axes.set_xticks([], minor=True)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.grid(axis="y")
