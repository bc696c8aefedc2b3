"""The paper's tables as CSV, one line a cell and metric, and as LaTeX in the paper's shape."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from dpmtv.data.benchmarks import SETS
from dpmtv.evaluation.published import published_gain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dpmtv.evaluation.published import Published

    Row = dict[str, Any]

COLUMNS = (
    *("benchmark", "line", "value", "metric", "mean", "se", "interval", "p", "gain"),
    *("published", "published_gain", "published_source", "private", "method", "geometry"),
    *("relation", "epsilon", "delta", "records", "m", "K", "draws", "n_test", "seconds", "passes"),
    *("tokens", "public_seconds", "public_tokens", "note", "task", "model", "prompt", "table"),
    *("command", "cell"),
)
_ABREAST = 3  # columns of figures that fit on a page beside the lines' names

_SPECIAL = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "ε": r"$\varepsilon$",
    "δ": r"$\delta$",
    "×": r"$\times$",
    "±": r"$\pm$",
    "†": r"$\dagger$",
    "\n": r" / ",
}


def csv_text(rows: Sequence[Row]) -> str:
    """All rows as CSV; means, gains and published figures are shares of one."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def shown(rows: Sequence[Row]) -> list[Row]:
    """Rows of the metrics that a table shows: the first of each data set, and both of VizWiz."""
    first: dict[str, str] = {}
    for row in rows:
        first.setdefault(row["benchmark"], row["metric"])
    return [r for r in rows if r["benchmark"] == "vizwiz" or r["metric"] == first[r["benchmark"]]]


def title(row: Row) -> str:
    """A data set as it is headed, with its metric."""
    known = SETS.get(row["benchmark"].split()[0])
    return f"{known.title if known else row['benchmark']}: {row['metric']}"


def latex_text(rows: Sequence[Row], unplaced: Sequence[Published]) -> str:
    """Tables for a plain article with the package booktabs.

    Where a table varies something, its values are the columns and each data set has a table; else
    the data sets are the columns. A column is accuracy in %, with the published figure in
    brackets, and the share of the gain kept, with the published one.

    Args:
        rows: of one table.
        unplaced: published figures of these data sets whose model is not stated.
    """
    rows = shown(rows)
    values = list(dict.fromkeys(r["value"] for r in rows if r["value"]))
    blocks: dict[str, list[Row]] = {}
    for row in rows:
        blocks.setdefault(title(row) if values else "", []).append(row)
    parts = [_table(name, found, values, unplaced) for name, found in blocks.items()]
    return "% needs \\usepackage{booktabs}\n" + "\n".join(parts)


def _table(
    name: str, rows: Sequence[Row], values: Sequence[str], unplaced: Sequence[Published]
) -> str:
    columns = [*values] or list(dict.fromkeys(title(r) for r in rows))
    lines = list(dict.fromkeys(r["line"] for r in rows))
    cells = {(r["line"], r["value"] if values else title(r)): r for r in rows}
    out = ["\\begin{table}", "\\centering\\footnotesize\\setlength{\\tabcolsep}{3pt}"]
    out.append(f"\\caption{{{_escaped(_caption(name, rows))}}}")
    for start in range(0, len(columns), _ABREAST):
        part = columns[start : start + _ABREAST]
        out += [
            "\\begin{tabular}{l" + "rr" * len(part) + "}",
            "\\toprule",
            "".join(f" & \\multicolumn{{2}}{{c}}{{{_heading(c)}}}" for c in part) + " \\\\",
            "".join(f"\\cmidrule(lr){{{2 * i + 2}-{2 * i + 3}}}" for i in range(len(part))),
            "method" + " & \\% & kept" * len(part) + " \\\\",
            "\\midrule",
        ]
        for line in lines:
            # A line that does not depend on the columns' values has the same figure in all.
            of = [cells.get((line, c)) or cells.get((line, "")) for c in part]
            out.append(f"{_escaped(line)} & " + " & ".join(map(_pair, of)) + " \\\\")
        out += ["\\bottomrule", "\\end{tabular}", ""]
    named = {r["benchmark"] for r in rows}
    out += [f"\\par {_escaped(text)}" for text in notes(unplaced, named)]
    return "\n".join([*out, "\\end{table}", ""])


def notes(unplaced: Sequence[Published], benchmarks: set[str]) -> Iterator[str]:
    """Published figures that stand in no line, because their model is not stated."""
    for p in unplaced:
        if p.benchmark in benchmarks:
            level = "" if p.epsilon is None else f", ε = {p.epsilon:g}"
            gain = None if p.epsilon is None else published_gain(unplaced, p)
            kept = "" if gain is None else f", {100 * gain:.0f} % of the gain"
            yield (
                f"Published, model not stated: {p.benchmark}, {p.method}{level}: "
                f"{p.accuracy:g} %{kept} ({p.source})."
            )


def _caption(name: str, rows: Sequence[Row]) -> str:
    draws = max(r["draws"] for r in rows)
    delta = {r["delta"] for r in rows if r["delta"] is not None}
    vectors = {(r["m"], r["K"]) for r in rows if r["method"] == "task vector"}
    asked = ", ".join(f"{k} {v}" for k, v in {r["benchmark"]: r["n_test"] for r in rows}.items())
    prompts = "; ".join(dict.fromkeys(r["prompt"] for r in rows if r.get("prompt")))
    measured = {r["cell"]: r for r in rows if r["mean"] is not None}.values()
    hours = sum(r["seconds"] for r in measured) / 3600
    tokens = sum(r["tokens"] for r in measured) / 1e6
    head = f"{name}. " if name else ""
    return (
        f"{head}Model {rows[0]['model']}; questions: {asked}; {draws} draws, ± the standard error "
        "over them"
        + "".join(f"; δ = {d:g}" for d in delta)
        + "".join(f"; m = {m}, K = {k}" for m, k in vectors if len(vectors) == 1)
        + f"; {hours:.2f} hours and {tokens:.2f} million tokens. In brackets: published. Kept: the "
        "share, in %, of the gain of the task vector without noise over zero-shot. †: not private. "
        f"Prompts: {prompts}"
    )


def _heading(column: str) -> str:
    return _escaped(column.split(", official")[0].split(":")[0] + _short(column))


def _short(column: str) -> str:
    return " (repaired)" if column.endswith("repaired") else ""


def _pair(row: Row | None) -> str:
    if row is None:
        return " & "
    if row["mean"] is None:
        return f"\\multicolumn{{2}}{{c}}{{{_escaped(row['note'].split(':')[0])}}}"
    error = "" if row["se"] is None else f" $\\pm$ {100 * row['se']:.1f}"
    error += "" if row["private"] else "$^{\\dagger}$"
    return " & ".join(
        (
            f"{100 * row['mean']:.1f}{error}" + _bracket(row["published"], 1),
            _share(row["gain"]) + _bracket(row["published_gain"], 0),
        )
    )


def _share(gain: float | None) -> str:
    return "" if gain is None else f"{100 * gain:.0f}"


def _bracket(share: float | None, places: int) -> str:
    return "" if share is None else f" [{100 * share:.{places}f}]"


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(c, c) for c in text)
