"""Published figures, each with where it was read; nothing else is known of the papers' tables.

`read_published` adds figures from a file, or replaces these.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpmtv.data.benchmarks import SETS
from dpmtv.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

MODELS = {"qwen": "Qwen-VL", "llava_llama": "ViLA-1.5", "idefics2": "Idefics2"}
"""Hugging Face model type → the name that the papers' tables have."""

COLUMNS = ("benchmark", "model", "method", "epsilon", "accuracy", "source")
BENCHMARKS = (*SETS, *(f"{name} triples" for name, of in SETS.items() if of.triples))

Key = tuple[str, str, str, float | None]  # benchmark, model, method and ε of a figure

_METHOD = re.compile(
    r"zero-shot|[1-9]\d*-shot|task vector( [1-9]\d*x[1-9]\d*)?|dp-mtv( without public data)?"
)
_LISTED = 5  # figures that a warning names


@dataclass(frozen=True)
class Published:
    """One figure of a paper.

    Args:
        benchmark: of `dpmtv.data.benchmarks.SETS`; "flowers102 triples" and the like for MTV's
            2-way 1-shot files.
        model: a value of `MODELS` or any other name; "" where it was not stated.
        method: "zero-shot", "4-shot" or another K, "task vector" (without noise; of 100 chunks of
            4 shots, or unstated), "task vector 25x100" (shots x chunks), "dp-mtv", or
            "dp-mtv without public data".
        epsilon: of the last two.
        accuracy: in %.
        source: where it stands.
    """

    benchmark: str
    model: str
    method: str
    epsilon: float | None
    accuracy: float
    source: str


_DP = "arXiv 2603.04894, {}; model, δ, m, K, clip norm and neighbour relation not stated there"
_MTV = "Huang et al. 2024, arXiv 2406.15334, {}"


def _mtv(benchmark: str, model: str, methods: Iterable[str], *accuracies: float) -> list[Published]:
    source = _MTV.format("4 shots x 100 chunks for the task vector")
    return [
        Published(benchmark, model, method, None, accuracy, source)
        for method, accuracy in zip(methods, accuracies, strict=True)
    ]


_VQA = ("zero-shot", "4-shot", "8-shot", "task vector")
_ONE_SHOT = ("zero-shot", "task vector")  # the prompt of the triples has its one shot already
PUBLISHED = (
    Published("vizwiz", "", "dp-mtv", 1.0, 50.4, _DP.format("text (abstract: 50)")),
    Published("vizwiz", "", "task vector", None, 55.0, _DP.format("abstract")),
    Published("vizwiz", "", "zero-shot", None, 35.0, _DP.format("abstract")),
    Published("flowers102", "", "dp-mtv", 1.0, 96.2, _DP.format("text")),
    Published("flowers102", "", "task vector", None, 76.8, _DP.format("text")),
    *_mtv("vizwiz", "Qwen-VL", _VQA, 35.2, 42.0, 44.3, 45.6),
    *_mtv("ok-vqa", "Qwen-VL", _VQA, 58.6, 62.0, 61.5, 62.0),
    *_mtv("vizwiz", "Idefics2", _VQA, 31.3, 40.8, 43.8, 52.5),
    *_mtv("ok-vqa", "Idefics2", _VQA, 52.4, 51.5, 52.3, 53.0),
    *_mtv("vizwiz", "ViLA-1.5", _VQA, 28.0, 39.3, 44.2, 55.2),
    *_mtv("ok-vqa", "ViLA-1.5", _VQA, 32.8, 35.6, 36.5, 40.6),
    # Of the other two models' figures on these we could not make sure which is whose.
    *_mtv("flowers102 triples", "Qwen-VL", _ONE_SHOT, 55.0, 78.1),
    *_mtv("cub-200 triples", "Qwen-VL", _ONE_SHOT, 56.5, 80.0),
    Published(
        *("vizwiz", "Qwen-VL", "task vector 20x100", None, 54.9, _MTV.format("more shots a chunk"))
    ),
    Published(
        *("vizwiz", "Qwen-VL", "task vector 25x100", None, 56.4, _MTV.format("more shots a chunk"))
    ),
)


def read_published(path: Path, known: Sequence[Published] = PUBLISHED) -> tuple[Published, ...]:
    """The known figures and those of a CSV file, which come first where both have one.

    Raises:
        DataError: a column is missing, or a row has no number where one is needed, more columns
            than the header, or a benchmark or method that is not known.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV: {type(error).__name__}") from None
    if not rows or {*COLUMNS} - {*rows[0]}:
        raise DataError(f"{path} needs rows, and the columns {', '.join(COLUMNS)}")
    found = []
    for number, row in enumerate(rows, start=1):
        text = {name: (row[name] or "").strip() for name in COLUMNS}
        where = f"{path}, row {number}"
        if None in row:  # what csv calls cells without a heading
            raise DataError(f"{where} has more columns than the header; quote what has a comma")
        try:
            epsilon = float(text["epsilon"]) if text["epsilon"] else None
            accuracy = float(text["accuracy"])
        except ValueError:
            raise DataError(f"{where}: accuracy (in %) or epsilon is no number") from None
        if not text["source"] or not 0 <= accuracy <= 100:
            raise DataError(f"{where}: a figure needs a source, and is from 0 to 100 %")
        if text["benchmark"] not in BENCHMARKS:
            raise DataError(f"{where}: benchmark must be one of {', '.join(BENCHMARKS)}")
        if not _METHOD.fullmatch(text["method"]):
            raise DataError(
                f"{where}: method must be zero-shot, 4-shot (any K), task vector, task vector "
                "25x100 (K x m), dp-mtv, or dp-mtv without public data"
            )
        names = (text["benchmark"], text["model"], text["method"])
        found.append(Published(*names, epsilon, accuracy, text["source"]))
    given = {(p.benchmark, p.model, p.method, p.epsilon) for p in found}
    kept = [p for p in known if (p.benchmark, p.model, p.method, p.epsilon) not in given]
    return (*found, *kept)


def doubts(given: Iterable[Published], asked: AbstractSet[Key]) -> Iterator[str]:
    """What may be wrong with figures of a file, a line for each sort.

    Args:
        given: those figures.
        asked: what the lines of a table look for; figures of these data sets without a model stand
            under it.
    """
    given = tuple(given)
    small = [p for p in given if p.accuracy <= 1]
    if small:
        yield f"accuracies are in %; a share of one? {_listed(small)}"
    shown = {benchmark for benchmark, *_ in asked}
    unused = [
        p
        for p in given
        if (p.benchmark, p.model, p.method, p.epsilon) not in asked
        and (p.model or p.benchmark not in shown)
    ]
    if unused:
        yield f"published figures that no line of this table uses: {_listed(unused)}"


def _listed(figures: Sequence[Published]) -> str:
    named = [
        ", ".join(filter(None, (p.benchmark, p.model, p.method)))
        + ("" if p.epsilon is None else f", ε = {p.epsilon:g}")
        + f": {p.accuracy:g} %"
        for p in figures[:_LISTED]
    ]
    rest = len(figures) - _LISTED
    return "; ".join(named) + (f"; and {rest} more" if rest > 0 else "")


def figure(
    published: Iterable[Published],
    benchmark: str,
    model: str,
    method: str,
    epsilon: float | None = None,
) -> Published | None:
    """The figure of these four, if one is known."""
    wanted = (benchmark, model, method, epsilon)
    same = (p for p in published if (p.benchmark, p.model, p.method, p.epsilon) == wanted)
    return next(same, None)


def published_gain(published: Sequence[Published], of: Published) -> float | None:
    """(x − zero-shot) / (task vector without noise − zero-shot) of published figures, in shares.

    None where one of them is not known or the vector gains nothing. Figures of one data set and
    model; they may be of two papers, as their sources say.
    """
    low = figure(published, of.benchmark, of.model, "zero-shot")
    high = figure(published, of.benchmark, of.model, "task vector")
    if low is None or high is None or high.accuracy <= low.accuracy or of == low:
        return None
    return (of.accuracy - low.accuracy) / (high.accuracy - low.accuracy)
