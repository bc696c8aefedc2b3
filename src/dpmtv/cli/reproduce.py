"""The command that measures the paper's tables."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpmtv.cli.common import (
    Instruction,
    Json,
    ModelOption,
    Revision,
    command,
    model_options,
    one_of,
)
from dpmtv.cli.engineer import find, load
from dpmtv.cli.evaluate import as_typed
from dpmtv.console import print_cells, print_costs, print_json, progress_bars
from dpmtv.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpmtv.evaluation.benchmark import Benchmark
    from dpmtv.evaluation.paper_tables import Cell
    from dpmtv.models.adapters import VisionLanguageModel


@command
def reproduce(
    benchmark: Annotated[
        list[str],
        typer.Option(
            help="NAME=FOLDER, again for several: vizwiz, vqa-rad, path-vqa, ok-vqa, textvqa, "
            "flowers102, cub-200, dtd, as their owners publish them."
        ),
    ],
    model: Annotated[str, typer.Option(help="Model folder or hub id.")],
    table: Annotated[str, typer.Option(help="main, epsilon, chunks, shots or clip.")] = "main",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder for cells and tables: reproduction-MODEL."),
    ] = None,
    epsilon: Annotated[float, typer.Option(help="ε, where the table does not vary it.")] = 1.0,
    delta: Annotated[float, typer.Option(help="δ.")] = 1e-5,
    chunks: Annotated[int, typer.Option(min=1, help="m, where the table does not vary it.")] = 100,
    shots: Annotated[int, typer.Option(min=1, help="K, where the table does not vary it.")] = 4,
    draws: Annotated[int, typer.Option(min=1, help="Draws of records and noise a cell.")] = 20,
    n_test: Annotated[int, typer.Option(min=1, help="Questions a data set, or all it has.")] = 500,
    search_steps: Annotated[int, typer.Option(min=1, help="Steps of each head search.")] = 200,
    patch: Annotated[str, typer.Option(help="prompt or every-step.")] = "every-step",
    one_a_picture: Annotated[
        bool, typer.Option("--one-a-picture", help="One private question of each picture.")
    ] = False,
    instruction: Instruction = None,
    revision: Revision = None,
    model_option: ModelOption = [],  # noqa: B006
    published: Annotated[
        Path | None,
        typer.Option(
            help="CSV of published figures to add or replace: benchmark, model, method, epsilon, "
            "accuracy (in %), source."
        ),
    ] = None,
    published_model: Annotated[
        str | None, typer.Option(help="Which of the papers' models this is; by its architecture.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the cells and what they will take; run none.")
    ] = False,
    tokens_per_picture: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --dry-run: assume so many, and load no model (258, 196, 64 …)."
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """The paper's tables on its data sets, with the published figures beside; goes on if stopped.

    Every record of these sets counts as public, also those that play the private role.
    """
    if tokens_per_picture is None:
        find(model, revision)
    from dpmtv.evaluation.benchmark import load_official, official_name
    from dpmtv.evaluation.paper_tables import DEFAULT, TABLES, cells
    from dpmtv.evaluation.published import MODELS, PUBLISHED, doubts, read_published
    from dpmtv.evaluation.reproduce import Reproduction, published_keys, reproduce, table_rows
    from dpmtv.evaluation.table_files import csv_text, latex_text, notes
    from dpmtv.privacy.accounting import check_budget

    check_budget(epsilon, delta)
    one_of("table", table, TABLES)
    one_of("patch", patch, ("prompt", "every-step"))
    named = [official_name(text) for text in benchmark]
    if not all(named) or len({name[0] for name in named if name}) < len(named):
        raise UserError("--benchmark takes NAME=FOLDER, every NAME once")
    base = replace(
        DEFAULT,
        epsilons=(epsilon,),
        delta=delta,
        chunks=(chunks,),
        shots=shots,
        draws=draws,
        n_test=n_test,
        search_steps=search_steps,
        patch=patch,  # type: ignore[arg-type]
    )
    figures = PUBLISHED if published is None else read_published(published)
    loaded: dict[str, Benchmark] = {}
    for one in named:
        assert one is not None
        found = load_official([one], one_a_picture=one_a_picture, n_test=n_test)
        triples = " triples" if "one shot" in found.tasks[0].prompt else ""
        loaded[one[0] + triples] = found
    if tokens_per_picture is not None and not dry_run:
        raise UserError("--tokens-per-picture goes with --dry-run")

    def cells_of(found: Benchmark) -> list[Cell]:
        asked = min(n_test, len(found.tasks[0].test))
        return cells(table, replace(base, n_test=asked))  # type: ignore[arg-type]

    name = Path(model).resolve().name if Path(model).is_dir() else Path(model).name
    folder = output or Path(f"reproduction-{name}")
    if not dry_run:
        _check_folder(folder, model)
    how: dict[str, Any] = {"revision": revision, "instruction": instruction}
    how |= model_options(model_option)
    running = None if tokens_per_picture else load(model, **how)
    if dry_run:
        costs = [
            row
            for key, found in loaded.items()
            for row in _costs(key, found, cells_of(found), running, tokens_per_picture)
        ]
        print_json(costs) if json_ else print_costs(costs)
        return
    assert running is not None
    model_type = running.model.config.model_type
    paper_model = published_model or MODELS.get(model_type, model_type)
    asked = {
        key
        for one, found in loaded.items()
        for key in published_keys(table, one, cells_of(found), paper_model)  # type: ignore[arg-type]
    }
    for doubt in doubts((p for p in figures if p not in PUBLISHED), asked):
        typer.secho(f"warning: {doubt}", err=True, fg="yellow")
    try:
        with progress_bars() as progress:
            runs = [
                Reproduction(running, key, found, folder, name, progress)
                for key, found in loaded.items()
            ]
            told = partial(typer.echo, err=True)
            measured = list(reproduce(runs, lambda run: cells_of(run.benchmark), told, progress))
    except KeyboardInterrupt:
        typer.secho(
            f"stopped; finished cells are kept in {folder}/cells and only the one that was "
            "running is lost. The same command goes on.",
            err=True,
            fg="yellow",
        )
        raise typer.Exit(130) from None
    rows = table_rows(table, measured, figures, paper_model, as_typed())  # type: ignore[arg-type]
    unplaced = [p for p in figures if not p.model]
    (folder / f"{table}.csv").write_text(csv_text(rows), encoding="utf-8")
    (folder / f"{table}.tex").write_text(latex_text(rows, unplaced), encoding="utf-8")
    (folder / f"{table}.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    if json_:
        print_json(rows)
        return
    print_cells(rows)
    for note in notes(unplaced, {*loaded}):
        typer.echo(note)
    if not any(p.model == paper_model for p in figures):
        typer.echo(
            "No published figure is known for this model; --published-model names one of "
            f"{', '.join(MODELS.values())}, --published adds figures."
        )
    typer.echo(f"Written: {table}.csv, {table}.tex and {table}.json in {folder}")


def _check_folder(folder: Path, model: str) -> None:
    """Make the folder of cells; refuse one that cannot be written, or is the model's."""
    if Path(model).is_dir() and folder.resolve().is_relative_to(Path(model).resolve()):
        raise UserError(
            f"{folder} lies in the model's folder, whose files decide which cells are the same; "
            "name another with -o"
        )
    for place in (folder, folder / "cells"):
        try:
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=place):
                pass
        except OSError as error:
            raise UserError(
                f"{place} cannot be written as a folder ({error.strerror}); name another with -o"
            ) from None


def _costs(
    name: str,
    benchmark: Benchmark,
    wanted: Sequence[Cell],
    model: VisionLanguageModel | None,
    per_picture: int | None,
) -> list[dict[str, Any]]:
    """What each cell will take, and all of them together with what they share."""
    from dpmtv.evaluation.costs import assumed_sizes, cell_cost, measured_sizes, total_cost
    from dpmtv.evaluation.reproduce import missing

    (task,) = benchmark.tasks
    if model is None:
        assert per_picture is not None
        sizes, parameters = assumed_sizes(task, per_picture), 8e9
    else:
        sizes = measured_sizes(model, task)
        parameters = sum(p.numel() for p in model.model.get_decoder().parameters())
    notes = {cell: missing(task, cell) for cell in wanted}
    costs = [
        (c.line.label, c.value, c.records, cell_cost(c, sizes), note) for c, note in notes.items()
    ]
    together = total_cost([c for c, note in notes.items() if not note], sizes)
    costs.append(("all, with shared chunks and head searches", "", 0, together, ""))
    return [
        {
            "benchmark": name,
            "line": line,
            "value": value,
            "records": records,
            "tokens": round(cost.tokens),
            "pictures": round(cost.pictures),
            "hours": cost.hours(parameters),
            "parameters": parameters,
            "note": note,
        }
        for line, value, records, cost, note in costs
    ]
