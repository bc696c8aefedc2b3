"""What the hooks, a patched query and a build cost, each beside what it is measured against.

    python benchmarks/speed.py [--json docs/speed.json] [--device cuda] [--pairs 20]

Runs on random models made on the spot and on the embedded one, in turns in one process. With
``--json`` rows go to that file, and their table into the page of the same name (docs/speed.md).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from dpmtv.data.demonstrations import read_demonstrations, require_good
from dpmtv.evaluation.benchmark import EMBEDDED_DATA
from dpmtv.models.adapters import load_model
from dpmtv.models.hooks import record_heads
from dpmtv.pipeline import build_task_vector
from dpmtv.types import Demonstration, Prompt
from mask_loss import search_rows
from side_by_side import (
    Row,
    device_name,
    in_turns,
    large_model,
    length,
    name_of,
    row,
    wide_model,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dpmtv.models.adapters import VisionLanguageModel

SHOTS = 4
SLOW_PAIRS = 6  # the least that give an interval, for pairs of a minute
FEW, MANY = 20, 200  # chunks
TASK = EMBEDDED_DATA / "tasks" / "digit-phrase" / "private.jsonl"
BEGIN, END = "<!-- made from speed.json -->\n", "<!-- end -->"


def records_of(path: Path) -> list[Demonstration]:
    """All rows of one of the embedded files."""
    return require_good(read_demonstrations(path), str(path))


def extraction_row(
    model: VisionLanguageModel, name: str, records: Sequence[Demonstration], pairs: int
) -> Row:
    """Recording every head, against the same pass without hooks; both from picture files on."""
    prompt = Prompt(tuple(records[:SHOTS]), records[SHOTS].query)

    @torch.inference_mode()
    def plain() -> None:
        model.forward(model.inputs([prompt]), use_cache=False, logits_to_keep=1)

    with record_heads(model.projections) as recorded:
        plain()
    want = np.concatenate([r[0].float().cpu().numpy() for r in recorded])
    gap = float(np.abs(model.last_token_heads(prompt) - want).max())
    return row(
        f"extraction of one chunk, {SHOTS} demonstrations and a query",
        "forward pass without hooks",
        in_turns(lambda: model.last_token_heads(prompt), plain, pairs, model.device),
        ratio_of="ours / other",
        target="≤ 1.05",
        max_difference=gap,
        model=name,
        tokens=length(model, prompt),
        device=device_name(model.device),
    )


def query_row(
    model: VisionLanguageModel,
    name: str,
    records: Sequence[Demonstration],
    pairs: int,
    new_tokens: int,
    shots: int,
) -> Row:
    """A query patched at every step, against an unpatched one with ``shots`` demonstrations."""
    rng = np.random.default_rng(0)
    vector = rng.normal(0, 0.3, model.layout.size)
    heads = rng.random(model.layout.n_heads) < 0.5
    query = Prompt((), records[SHOTS].query)
    shown = Prompt(tuple(records[:shots]), query.query)
    model.model.generation_config.min_new_tokens = new_tokens  # none ends earlier

    def patched() -> None:
        with model.patched(vector, heads, "every-step"):
            model.generate([query], new_tokens)

    def plain() -> None:
        model.generate([shown], new_tokens)

    other = "the same query without it"
    if shots:
        other = f"{shots} demonstrations in the prompt, {length(model, shown)} tokens"
    return row(
        f"query with a vector, {new_tokens} new tokens",
        other,
        in_turns(patched, plain, pairs, model.device),
        ratio_of="other / ours" if shots else "ours / other",
        target="≥ 3" if shots else "≤ 1.03",
        max_difference=None,
        model=name,
        tokens=length(model, query),
        device=device_name(model.device),
    )


def peak(chunks: int, kind: str, device: str) -> tuple[float, str]:
    """(most memory in MB that a build of so many chunks needs, model); in a process of its own.

    ``kind`` is ``"default"``, all of a build on the embedded model, with a short head search; or
    ``"private part"``, one pass a chunk of a model with very many coordinates.
    """
    place = torch.device(device)
    model = load_model("embedded", device=device)
    name = "embedded"
    if kind == "default":
        options = {"public": records_of(EMBEDDED_DATA / "public.jsonl"), "search_steps": 20}
    else:
        model = wide_model(model, place)
        name = f"{name_of(model)}, {model.layout.size:,} coordinates"
        options = {"selection": "all", "clip": 1.0, "query": "private", "shots": 1}
    data = records_of(TASK)  # as many whatever the number of chunks
    build_task_vector(model, data, epsilon=1.0, delta=1e-5, chunks=chunks, **options)
    if place.type == "cuda":
        return torch.cuda.max_memory_allocated(place) / 1e6, name
    # Not getrusage, whose ru_maxrss a new program takes over from the one that started it.
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1e3, name


def memory_row(kind: str, few: int, many: int, pairs: int, device: torch.device) -> Row:
    """Peak memory of a build with many chunks against one with few, each a fresh process."""

    def fresh(chunks: int) -> tuple[float, str]:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(peak, chunks, kind, str(device)).result()

    measured = [(fresh(many), fresh(few)) for _ in range(pairs)]
    return row(
        f"peak memory of a build, {kind}, {many} chunks",
        f"{few} chunks",
        [(a[0], b[0]) for a, b in measured],
        ratio_of="ours / other",
        target="≤ 1.02",
        max_difference=None,
        model=measured[0][0][1],
        tokens=0,
        device=device_name(device),
        unit="MB",
    )


def measure(pairs: int, device: torch.device) -> Iterator[Row]:
    """All rows, one after the other."""
    records = records_of(TASK)
    few = min(pairs, SLOW_PAIRS)
    small = load_model("embedded", device=str(device))
    large = large_model(small, device)
    name = name_of(large)
    yield extraction_row(large, name, records, pairs)
    for new_tokens, shots in ((10, 0), (10, SHOTS), (3, SHOTS)):
        yield query_row(large, name, records, pairs, new_tokens, shots)
    yield memory_row("private part", FEW, MANY, few, device)
    yield memory_row("default", FEW, MANY, 1, device)  # minutes, and the same every time
    yield from search_rows(small, "embedded", records, 8, pairs)
    yield from search_rows(large, name, records, 5, few)


def met(one: Row) -> bool | None:
    """Whether the ratio's median is on the right side of the target; None without one."""
    if one["target"] is None:
        return None
    sign, limit = one["target"].split()
    return one["ratio"] <= float(limit) if sign == "≤" else one["ratio"] >= float(limit)


def line(one: Row) -> str:
    """A row of the table in Markdown."""
    interval = "—" if one["low"] is None else f"{one['low']:.3g}–{one['high']:.3g}"
    verdict = {True: "met", False: "**missed**", None: ""}[met(one)]
    unit = "MB" if one["ours_s"] is None else "s"
    sides = [one[f"{side}_{unit.lower()}"] for side in ("ours", "other")]
    gap = "" if one["max_difference"] is None else f"{one['max_difference']:.1e}"
    cells = (
        *(one["bench"], one["tokens"] or "", one["other"]),
        *(f"{side:,.{1 if side > 100 else 2}f} {unit}" for side in sides),
        one["ratio_of"],
        *(f"{one['ratio']:.3g} ({interval})", one["pairs"], one["target"] or "", verdict),
        *(gap, one["model"], one["device"]),
    )
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def table(rows: Sequence[Row]) -> str:
    """All rows, as Markdown."""
    head = (
        "| what | tokens | against | ours | other | ratio | median (95 %) | pairs | target | | "
        "largest difference | model | device |\n" + "|---" * 13 + "|\n"
    )
    return head + "\n".join(line(one) for one in rows) + "\n"


def page(text: str, rows: Sequence[Row]) -> str:
    """The document with its table made anew."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + table(rows) + END + after


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write rows and page as they come, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--pairs", type=int, default=20, help="of measurements of each kind")
    options = parser.parse_args(arguments)
    if options.pairs < 1:
        parser.error("--pairs must be at least 1; 6 and more give an interval")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU here; leave the option out to use the CPU")
    rows: list[Row] = []
    for one in measure(options.pairs, torch.device(options.device)):
        rows.append(one)
        print(line(one), file=sys.stderr, flush=True)
        if options.json:
            write(rows, options.json)
    print(table(rows), end="")


def write(rows: Sequence[Row], path: Path) -> None:
    """The rows, and their table into the page of the same name, if there is one."""
    path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", "utf-8")
    document = path.with_suffix(".md")
    if document.exists():
        document.write_text(page(document.read_text("utf-8"), rows), "utf-8")


if __name__ == "__main__":
    main()
