"""The privacy officer's commands: read, check, sign, keep the budget. None loads a model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dpmtv.cli.common import (
    Json,
    Relation,
    Unit,
    budget,
    command,
    command_of,
    relation_of,
)
from dpmtv.console import print_json, print_ledger


@command
def show(
    folder: Annotated[Path, typer.Argument(help="A task vector.")],
    html: Annotated[
        Path | None, typer.Option(help="Write a one-page statement to print and sign.")
    ] = None,
    json_: Json = False,
) -> None:
    """What a task vector guarantees, in words; reads the certificate without checking it."""
    from dpmtv.privacy.certificate import read
    from dpmtv.privacy.statement import statement, statement_page

    path = folder / "certificate.json"
    certificate = read(path)
    if json_:
        sys.stdout.write(path.read_text(encoding="utf-8"))
        return
    if html is not None:
        from dpmtv.artifact import verify as check

        html.write_text(statement_page(certificate, check(folder)), encoding="utf-8")
        typer.echo(f"Statement: {html}")
        return
    privacy, inference = certificate.privacy, certificate.inference
    if privacy.delta is None:
        typer.secho("ε = inf: NOT PRIVATE", fg="red", bold=True)
    for line in statement(certificate):
        typer.echo(f"  {line}")
    released = sum(len(heads) for heads in privacy.released_heads)
    typer.echo(
        f"{certificate.model.architecture}; {released} of {sum(certificate.model.heads)} heads "
        f"released, {sum(privacy.block_sizes)} coordinates; m = {privacy.chunks}, "
        f"K = {privacy.shots}; patched: {inference.patch}; made {certificate.created}"
    )


@command
def verify(
    folder: Annotated[Path, typer.Argument(help="A task vector.")],
    officer: Annotated[
        Path | None, typer.Option(help="Public key (PEM) of who must have signed it.")
    ] = None,
    json_: Json = False,
) -> None:
    """Recompute the guarantee from the certificate's events; check every file of the folder."""
    from dpmtv.artifact import verify as check

    lines = check(folder, officer)
    if json_:
        print_json({"verified": True, "checked": lines})
        return
    for line in lines:
        typer.echo(f"  {line}")
    if any("NOT CHECKED" in line for line in lines):
        typer.secho("verified, but for what is NOT CHECKED", fg="yellow")
        return
    typer.secho("verified", fg="green")


@command
def sign(
    folder: Annotated[Path, typer.Argument(help="A task vector.")],
    key: Annotated[Path, typer.Option(help="The officer's Ed25519 private key (PEM).")],
) -> None:
    """Verify a task vector and sign its folder, as the officer who answers for the data."""
    from dpmtv.artifact import SIGNATURE
    from dpmtv.artifact import sign as put

    put(folder, key)
    typer.echo(f"Signed: {folder / SIGNATURE}")


@command_of(budget)
def init(
    file: Annotated[Path, typer.Argument(help="New file, best beside the data.")],
    epsilon: Annotated[float, typer.Option(help="Total ε of all releases.")],
    delta: Annotated[float, typer.Option(help="Total δ of all releases.")] = 1e-5,
    unit: Unit = None,
    relation: Relation = "replace_one",
) -> None:
    """Make a budget ledger for one data set; its terms cannot be changed later."""
    from dpmtv.privacy import ledger

    book = ledger.create(
        file, epsilon=epsilon, delta=delta, unit=unit, relation=relation_of(relation)
    )
    typer.echo(
        f"{file}: at most ε = {epsilon:g} at δ = {delta:g}, {relation} per {unit or 'record'}; "
        f"ledger {book.id[:8]}…"
    )


@command_of(budget, "show")
def show_ledger(
    file: Annotated[Path, typer.Argument(help="A budget ledger.")], json_: Json = False
) -> None:
    """What was spent, by which releases, and what is left."""
    from dataclasses import asdict

    from dpmtv.privacy import ledger

    history = ledger.history(file)
    if json_:
        print_json(asdict(history))
        return
    print_ledger(history)
