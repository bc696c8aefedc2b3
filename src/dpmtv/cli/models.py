"""Which models work, and a check of any one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpmtv.cli.common import Json, ModelOption, Revision, app, command_of, model_options
from dpmtv.cli.engineer import find, load
from dpmtv.console import print_json, progress_bars
from dpmtv.errors import ModelError

if TYPE_CHECKING:
    from dpmtv.models.check import ModelReport

models = typer.Typer(help="Models that work.", invoke_without_command=True)
app.add_typer(models, name="models")


@models.callback()
def families(context: typer.Context, json_: Json = False) -> None:
    """The families that were checked, and how each is worked with; `check` looks at any model."""
    if context.invoked_subcommand is not None:
        return
    from dataclasses import asdict

    from dpmtv.models.families import FAMILIES

    if json_:
        print_json([asdict(family) for family in FAMILIES])
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for heading in ("family", "model_type", "", "heads", "head search", "note"):
        table.add_column(heading)
    for row in FAMILIES:
        search = "kept prefixes" if row.kept_prefixes else "whole passes"
        how = (
            ("refused", "", "", row.refused)
            if row.refused
            else (row.works, row.heads, search, row.note)
        )
        table.add_row(row.name, row.model_type, *how)
    Console(width=None if Console().is_terminal else 160).print(table)
    typer.echo("Any other image-text-to-text model: dpmtv models check MODEL")


@command_of(models, "check")
def check(
    model: Annotated[str, typer.Argument(help='Model folder, hub id, or "embedded".')],
    shots: Annotated[int, typer.Option(min=1, help="K of the longest prompt.")] = 4,
    revision: Revision = None,
    model_option: ModelOption = [],  # noqa: B006 - typer copies it
    json_: Json = False,
) -> None:
    """Whether a model can be used: hooks, pictures, isolation, batches, memory and time.

    Ends with 2 and the reason if it cannot.
    """
    from dataclasses import asdict

    try:
        find(model, revision)
        from dpmtv.models.check import check_model

        loaded = load(model, revision=revision, **model_options(model_option))
    except ModelError as error:
        if json_:
            print_json({"model": model, "usable": False, "reasons": [str(error)]})
        raise
    with progress_bars() as progress:
        report = check_model(loaded, model, shots, progress)
    if json_:
        print_json({"usable": not report.reasons, "reasons": report.reasons, **asdict(report)})
    else:
        for line in _lines(report):
            typer.echo(line)
    if report.reasons:
        raise ModelError(f"{model} is refused: {'; '.join(report.reasons)}")


def _lines(report: ModelReport) -> list[str]:
    """The report as text that can be pasted."""
    dims = sorted(set(report.head_dims))
    facts: list[tuple[str, Any]] = [
        ("model", f"{report.model} ({report.model_type}, {report.architecture})"),
        ("loaded as", f"{report.dtype}, {report.attention}, {report.device}"),
        (
            "heads",
            f"{sum(report.heads)} in {report.layers} of {report.of_layers} layers, width "
            f"{' and '.join(map(str, dims))}",
        ),
    ]
    facts += [("✓" if f.passed else "✗", f"{f.what}: {f.detail}") for f in report.findings]
    facts.append(("vector", f"{_size(report.vector_bytes)} with all heads"))
    if report.cache_bytes_a_token is not None:
        facts.append(("cache", f"{_size(report.cache_bytes_a_token)} a token"))
    if report.chunk_seconds is not None:
        facts.append(
            (
                "a chunk",
                f"{report.chunk_shots} demonstrations and a query, {report.chunk_tokens} tokens: "
                f"{report.chunk_seconds:.2g} s",
            )
        )
    facts.append(("memory", f"{_size(report.memory_bytes)} at most so far"))
    facts.append(("versions", ", ".join(f"{p} {v}" for p, v in report.versions.items())))
    facts.append(("verdict", "refused" if report.reasons else "usable"))
    return [f"{name:<10} {text}" for name, text in facts]


def _size(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"
