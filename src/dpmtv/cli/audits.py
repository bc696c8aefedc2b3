"""Attacks on what the product promises: by made-up records, or public ones on a real model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpmtv.cli.common import Json, Relation, audits, command_of, relation_of
from dpmtv.cli.engineer import load
from dpmtv.cli.evaluate import as_typed, numbers
from dpmtv.console import print_json, print_membership, progress_bars
from dpmtv.errors import UserError

if TYPE_CHECKING:
    from dpmtv.audit.one_run import OneRunAudit
    from dpmtv.audit.two_worlds import MechanismAudit


@command_of(audits)
def mechanism(
    relation: Relation = "replace_one",
    unit: Annotated[bool, typer.Option(help="Units of several records.")] = False,
    epsilon: Annotated[float, typer.Option(help="ε that the builds claim.")] = 1.0,
    delta: Annotated[float, typer.Option(help="δ that the builds claim.")] = 1e-5,
    runs: Annotated[int, typer.Option(min=100, help="Builds in each of the two worlds.")] = 1000,
    json_: Json = False,
) -> None:
    """Build the same vector many times in two neighbouring worlds and try to tell them apart.

    Everything but the model is real; the model is one that answers as badly for privacy as it can.
    """
    from dpmtv.evaluation.mechanism_audit import audit_mechanism

    with progress_bars() as progress:
        result = audit_mechanism(
            relation=relation_of(relation),
            units=unit,
            epsilon=epsilon,
            delta=delta,
            runs=runs,
            progress=progress,
        )
    _tell(result, json_)


@command_of(audits)
def one_run(
    relation: Relation = "replace_one",
    epsilon: Annotated[float, typer.Option(help="ε that the build claims.")] = 1.0,
    delta: Annotated[float, typer.Option(help="δ that the build claims.")] = 1e-5,
    canaries: Annotated[
        int, typer.Option(min=100, max=50_000, help="Persons that coins decide about.")
    ] = 10_000,
    json_: Json = False,
) -> None:
    """Build once from many canaries that coins decide about, and guess the coins.

    Quicker than `mechanism` and about any number of records at once, and not as sharp. Everything
    but the model is real.
    """
    from dpmtv.evaluation.one_run_audit import audit_one_run

    with progress_bars() as progress:
        result = audit_one_run(
            relation=relation_of(relation),
            epsilon=epsilon,
            delta=delta,
            canaries=canaries,
            progress=progress,
        )
    _tell(result, json_)


@command_of(audits)
def membership(
    model: Annotated[str, typer.Argument(help='Model folder, hub id, or "embedded".')],
    benchmark: Annotated[
        str, typer.Option(help="Benchmark folder; every file of it counts as public.")
    ] = "embedded",
    tasks: Annotated[str, typer.Option(help="Tasks of the benchmark, by comma.")] = "",
    public: Annotated[
        str,
        typer.Option(help='"synthetic" records, or tasks of public.jsonl by comma; default: all.'),
    ] = "",
    epsilons: Annotated[str, typer.Option(help="ε of the private vectors, by comma.")] = "1,8",
    delta: Annotated[float, typer.Option(help="δ of each release.")] = 1e-5,
    records: Annotated[int, typer.Option(min=20, help="Records of a vector.")] = 50,
    draws: Annotated[
        int, typer.Option(min=2, help="Trials, each with other records, coins and noise.")
    ] = 24,
    shots: Annotated[int, typer.Option(min=1, help="K of the in-context prompts.")] = 4,
    search_steps: Annotated[int, typer.Option(min=1, help="Steps of the head search.")] = 200,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for audit.json and audit.png.")
    ] = None,
    json_: Json = False,
) -> None:
    """Attack in-context prompts, vectors without noise and private ones: who was a member?

    On public benchmark records alone: on private ones every trial would be a further release.
    """
    from dpmtv.evaluation.benchmark import load_benchmark
    from dpmtv.evaluation.membership import MembershipSettings, audit_membership
    from dpmtv.evaluation.report_plots import require

    levels = [epsilon for epsilon in numbers(epsilons) if epsilon is not None]
    if not levels or len(levels) < len(numbers(epsilons)):
        raise UserError("--epsilons takes numbers alone: what has no noise is attacked beside them")
    if output is not None:
        require("matplotlib")
        output.mkdir(parents=True, exist_ok=True)
    loaded = load_benchmark(
        benchmark,
        [t for t in tasks.split(",") if t],
        public="synthetic" if public == "synthetic" else [t for t in public.split(",") if t],
    )
    settings = MembershipSettings(
        epsilons=tuple(levels),
        records=records,
        trials=draws,
        delta=delta,
        shots=shots,
        search_steps=search_steps,
    )
    with progress_bars() as progress:
        rows = audit_membership(
            load(model),
            loaded,
            settings,
            name=model if model == "embedded" or "/" not in model else Path(model).name,
            command=as_typed(),
            progress=progress,
        )
    if output is not None:
        import json

        from dpmtv.evaluation.audit_plot import tradeoff_png

        text = json.dumps(rows, ensure_ascii=False, indent=1) + "\n"
        (output / "audit.json").write_text(text, encoding="utf-8")
        tradeoff_png(rows, output / "audit.png")
    if json_:
        print_json(rows)
    else:
        print_membership(rows)
        if output is not None:
            typer.echo(f"Rows and picture: {output / 'audit.json'}, {output / 'audit.png'}")
    if any(row["violation"] for row in rows):
        raise typer.Exit(1)


def _tell(result: MechanismAudit | OneRunAudit, json_: bool) -> None:
    """Print an audit's result; a violation ends with code 1."""
    if json_:
        print_json(result.to_dict())
    else:
        for line in result.lines():
            typer.echo(f"  {line}")
    if result.violation:
        raise typer.Exit(1)
