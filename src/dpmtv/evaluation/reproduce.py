"""Measure the cells of the paper's tables, each once, and set published figures beside them.

A finished cell is a file of its own, named by a hash of everything that decides its figure. So a
run that was stopped goes on with the next cell, tables share the cells that they have in common,
and a cell of other settings, data or weights is measured anew and never mixed in.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmtv.evaluation.paper_tables import LINES, VALUES
from dpmtv.evaluation.published import figure, published_gain
from dpmtv.evaluation.rows import result_rows
from dpmtv.evaluation.runner import measure
from dpmtv.evaluation.settings import Setting
from dpmtv.evaluation.study import prepare
from dpmtv.models.tokens import count_tokens
from dpmtv.public_tasks import public_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from dpmtv.evaluation.benchmark import Benchmark, BenchmarkTask
    from dpmtv.evaluation.paper_tables import Cell, Table
    from dpmtv.evaluation.published import Key, Published
    from dpmtv.evaluation.study import PublicWork, Study
    from dpmtv.models.adapters import VisionLanguageModel
    from dpmtv.models.atoms import Shown
    from dpmtv.options import QueryMode
    from dpmtv.public_tasks import Progress

    Row = dict[str, Any]

ZERO = Setting("zero-shot")
_COSTS = ("seconds", "passes", "tokens", "public_seconds", "public_tokens")
_KEPT = {"rows", "note", *_COSTS}  # of every cell


@dataclass
class Reproduction:
    """One data set under one model; its public work is done once for all cells that need it.

    Args:
        model: the model.
        name: of the data set, as published figures have it.
        benchmark: the data set alone, so that no figure depends on what else was asked for.
        folder: where finished cells are kept.
        model_name: for the rows.
        progress: called with (what, done, total).
    """

    model: VisionLanguageModel
    name: str
    benchmark: Benchmark
    folder: Path
    model_name: str
    progress: Progress = lambda _what, _done, _total: None
    known: PublicWork = field(default_factory=dict)
    costs: dict[tuple[QueryMode, int], tuple[float, int]] = field(default_factory=dict)
    shown: dict[tuple[str, ...], Shown] = field(default_factory=dict)
    pools: dict[Any, np.ndarray] = field(default_factory=dict)
    pooled: Any = None  # what the cells have in common whose chunks are in ``pools``

    @cached_property
    def data_sha256(self) -> str:
        """Names the records."""
        return records_sha256(self.benchmark)

    def key(self, cell: Cell) -> str:
        """Names everything that decides a cell's figure."""
        (task,) = self.benchmark.tasks
        config = self.model.model.config
        decides = {
            "version": version("dpmtv"),
            "model": asdict(self.model.identity),
            "loaded as": [self.model.dtype, config._attn_implementation],
            "quantised": str(getattr(config, "quantization_config", None)),
            "format": self.model.prompt_template_sha256,
            "instruction": self.model.instruction,
            "data": self.data_sha256,
            "task": [self.name, task.name, task.prompt],
            "settings": asdict(cell.settings),
        }
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:32]

    def path(self, cell: Cell) -> Path:
        """Where a cell is kept."""
        return self.folder / "cells" / f"{self.key(cell)}.json"

    def finished(self, cell: Cell) -> dict[str, Any] | None:
        """What is kept of a cell."""
        try:
            kept: dict[str, Any] = json.loads(self.path(cell).read_text("utf-8"))
        except (FileNotFoundError, ValueError):  # not there, or damaged since
            return None
        # What p-values of all cells are against is kept with zero-shot alone.
        needed = _KEPT | ({"scores"} if cell.line.method == ZERO.method else set())
        whole = isinstance(kept, dict) and needed <= {*kept} and isinstance(kept["rows"], list)
        return kept if whole else None

    def run(self, cell: Cell, zero: np.ndarray | None) -> dict[str, Any]:
        """Measure a cell and keep it.

        Args:
            cell: one that the data set is large enough for.
            zero: the zero-shot scores [metrics, questions] that p-values are against.
        """
        (task,) = self.benchmark.tasks
        scores: Any = defaultdict(lambda: defaultdict(list))
        if zero is not None:
            scores[ZERO][task.name].append((zero, 0.0))
        study, public_seconds, public_tokens = self._prepared(cell)
        pooled = cell.query, cell.settings.shots, cell.chunks
        if pooled != self.pooled:  # gigabytes of a large model
            self.pools, self.pooled = {}, pooled
        study = replace(study, scores=scores, pools=self.pools, shown=self.shown)
        start = time.perf_counter()
        with count_tokens(self.model) as counted:
            measure(study, self.progress)
        seconds = time.perf_counter() - start
        wanted = cell.line.method
        rows = [
            row
            for row in result_rows(study, self.model_name, "")
            if row["method"] == wanted and row["task"] == task.name
        ]
        kept = {
            "rows": rows,
            "seconds": seconds,
            "passes": counted.passes,
            "tokens": counted.tokens,
            "public_seconds": public_seconds,
            "public_tokens": public_tokens,
            "note": "" if rows else "the method refuses so few records",
        }
        if wanted == ZERO.method:
            kept["scores"] = study.scores[ZERO][task.name][0][0].tolist()
        path = self.path(cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps(kept), encoding="utf-8")
        os.replace(part, path)  # a cell is there as a whole or not at all
        return kept

    def forget(self) -> None:
        """Free what was kept for further cells."""
        for kept in (self.pools, self.shown, self.known):
            kept.clear()
        self.pooled = None

    def _prepared(self, cell: Cell) -> tuple[Study, float, int]:
        """Public knowledge for a cell, and the seconds and tokens that it took, once for all."""
        s, queries = cell.settings, cell.public_queries
        before, start = {*self.known}, time.perf_counter()
        with count_tokens(self.model) as counted:
            study = prepare(self.model, self.benchmark, s, queries, self.known, self.progress)
        for key in {*self.known} - before:
            self.costs[key] = time.perf_counter() - start, counted.tokens
        seconds, tokens = self.costs.get((cell.query, s.k(cell.query)), (0.0, 0))
        return study, *((seconds, tokens) if queries else (0.0, 0))


def missing(task: BenchmarkTask, cell: Cell) -> str:
    """Why a cell has no figure, its data set too small or its δ too large; or nothing."""
    if len(task.private) < cell.records:
        return f"too few records: has {len(task.private)}, needs {cell.records}"
    for query in cell.public_queries:
        size = cell.settings.size(query)
        if public_chunks(len(task.same_rule), size)[1] < 1:
            return f"too few public records: has {len(task.same_rule)}, for chunks of {size}"
    # One record in n, published at random, is (0, 1/n)-private.
    s = cell.settings
    if cell.line.method == "dp-mtv" and s.epsilons[0] is not None and s.delta >= 1 / cell.records:
        return "delta is not below 1/records"
    return ""


def records_sha256(benchmark: Benchmark) -> str:
    """Names a data set: texts of all records and how their pictures are called, in their order."""
    digest = hashlib.sha256()
    for task in benchmark.tasks:
        for part in (task.private, task.same_rule, task.test):
            digest.update(b"part %d\0" % len(part))
            for r in part:
                named = [r.question, r.answer, list(r.accepted), str(r.unit)]
                digest.update(json.dumps(named).encode() + b"\0")
        digest.update(json.dumps(task.seen, default=str).encode())
    return digest.hexdigest()


def reproduce(
    runs: Sequence[Reproduction],
    cells: Callable[[Reproduction], Sequence[Cell]],
    told: Callable[[str], None] = lambda _line: None,
    progress: Progress = lambda _what, _done, _total: None,
) -> Iterator[tuple[Reproduction, Cell, dict[str, Any]]]:
    """Every cell of every data set, measured where it is not finished.

    Args:
        runs: the data sets.
        cells: those of one.
        told: is told a line about each cell that was measured.
        progress: called with (what, done, total).

    Yields:
        Data set, cell, and what is kept of it: ``rows`` and costs, or a ``note`` why there are
        none.
    """
    # Zero-shot first, which the others are compared with; then cells of the same chunks together.
    order = [sorted(cells(run), key=lambda c: (c.records, c.query == "public")) for run in runs]
    total, done = sum(map(len, order)), 0
    finished = (run.finished(cell) for run, of in zip(runs, order, strict=True) for cell in of)
    there = sum(kept is not None for kept in finished)
    if there:
        told(f"{there} of {total} cells were finished before")
    for run, of in zip(runs, order, strict=True):
        zero = None
        for cell in of:
            done += 1
            place = f"[{done}/{total}] {run.name}: {cell.line.label} {cell.value}".rstrip()
            note = missing(run.benchmark.tasks[0], cell)
            found: dict[str, Any] | None
            found = {"rows": [], "note": note} if note else run.finished(cell)
            if found is None:
                found = run.run(cell, zero)
                means = "".join(f"{100 * row['mean']:.1f} %" for row in found["rows"][:1])
                told(f"{place}: {means or found['note']} in {found['seconds']:.0f} s")
            elif note:
                told(f"{place}: {note}")
            if "scores" in found:
                zero = np.array(found["scores"], dtype=float)
            progress("cells", done, total)
            yield run, cell, found
        run.forget()


def table_rows(
    table: Table,
    measured: Sequence[tuple[Reproduction, Cell, dict[str, Any]]],
    published: Sequence[Published],
    paper_model: str,
    command: str,
) -> list[Row]:
    """Result rows with what a table adds: its line and value, costs, gains, published figures."""
    values = ["", *(value for value, _ in VALUES[table])]
    runs = list(dict.fromkeys(run.name for run, _, _ in measured))
    rows = [
        row
        for run, cell, found in sorted(
            measured,
            key=lambda one: (
                runs.index(one[0].name),
                LINES[table].index(one[1].line),
                values.index(one[1].value),
            ),
        )
        for row in _rows(table, run, cell, found, published, paper_model, command)
    ]
    for row in rows:
        same = [r for r in rows if (r["task"], r["metric"]) == (row["task"], row["metric"])]
        row["gain"] = _gain(row, same)
    return rows


def _rows(
    table: Table,
    run: Reproduction,
    cell: Cell,
    found: dict[str, Any],
    published: Sequence[Published],
    paper_model: str,
    command: str,
) -> Iterator[Row]:
    (task,) = run.benchmark.tasks
    s = cell.settings
    given = {
        "benchmark": run.name,
        "line": cell.line.label,
        "value": cell.value,
        "cell": run.key(cell),
        **{k: found.get(k) for k in _COSTS},
        "note": found["note"],
    }
    epsilon = s.epsilons[0]
    method = _published_method(table, cell)
    for row in found["rows"] or [_empty(run, cell)]:
        place = [metric.name for metric in task.metrics].index(row["metric"])
        known = None
        # Which copy of VizWiz's annotations the papers used is not known: both figures are near.
        if method and (place == 0 or run.name == "vizwiz"):
            known = figure(published, run.name, paper_model, method, epsilon)
        yield {
            **row,
            "table": f"reproduce {table}, patched {s.patch}",
            "command": command,
            **given,
            "published": None if known is None else known.accuracy / 100,
            "published_gain": None if known is None else published_gain(published, known),
            "published_source": "" if known is None else known.source,
        }


def published_keys(table: Table, name: str, cells: Sequence[Cell], model: str) -> set[Key]:
    """What published figures beside a data set's cells are found by."""
    named = {(_published_method(table, c), c.settings.epsilons[0]) for c in cells}
    named.add(("task vector", None))  # gains are shares of its
    return {(name, model, method, epsilon) for method, epsilon in named if method}


def _published_method(table: Table, cell: Cell) -> str:
    """What a cell's figure is called among published ones, "" if it cannot be there."""
    s = cell.settings
    if cell.line.method == "in-context":
        return f"{s.shots}-shot"
    if cell.line.method == "task vector" and (s.shots, cell.chunks) != (4, 100):
        return f"task vector {s.shots}x{cell.chunks}"
    # Its m, K and clip norm are not stated, so it stands where ours are the defaults.
    if cell.line.method == "dp-mtv" and table not in ("main", "epsilon"):
        return ""
    return cell.line.published


def _empty(run: Reproduction, cell: Cell) -> Row:
    """A row without a figure, of the first metric."""
    (task,) = run.benchmark.tasks
    line, s = cell.line, cell.settings
    private = line.method == "dp-mtv"
    noisy = private and s.epsilons[0] is not None
    return {
        "task": task.name,
        "method": line.method,
        "geometry": line.geometry,
        "relation": line.relation if noisy else None,
        "epsilon": s.epsilons[0] if private else None,
        "delta": s.delta if noisy else None,
        "records": cell.records,
        "m": cell.chunks or None,
        "K": s.k(cell.query),
        "draws": 0,
        "n_test": s.n_test,
        "mean": None,
        "se": None,
        "metric": task.metrics[0].name,
        "model": run.model_name,
        "private": noisy,
    }


def _gain(row: Row, same: Sequence[Row]) -> float | None:
    """(x − zero-shot) / (vector without noise − zero-shot) of the same data set and metric.

    The vector in the same column of the table, or the only one.
    """
    zero = [r["mean"] for r in same if r["method"] == "zero-shot"]
    vectors = [r for r in same if r["method"] == "task vector"]
    column = [r for r in vectors if r["value"] == row["value"]]
    high = [r["mean"] for r in (column or vectors)][:1]
    known = [*zero[:1], *high, row["mean"]]
    if len(known) < 3 or None in known or high[0] <= zero[0] or row["method"] == "zero-shot":
        return None
    return float((row["mean"] - zero[0]) / (high[0] - zero[0]))
