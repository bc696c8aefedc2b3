"""What to expect of a build, before it."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from dpmtv.cli.common import (
    AskedLater,
    Instruction,
    Json,
    ModelOption,
    PerUnit,
    Population,
    Relation,
    Revision,
    Unit,
    command,
    model_options,
)
from dpmtv.cli.data import Public, PublicOption, public_records
from dpmtv.cli.engineer import find, load
from dpmtv.console import print_json, print_plan, progress_bars


@command
def plan(
    model: Annotated[str, typer.Argument(help='Model folder, hub id, or "embedded".')],
    records: Annotated[
        int, typer.Option(min=1, help="How many private records will serve; a guess if private.")
    ],
    epsilon: Annotated[float, typer.Option(help="ε, the privacy loss; 1 is a common choice.")],
    public: Public,
    delta: Annotated[float, typer.Option(help="δ, below 1/n.")] = 1e-5,
    public_option: PublicOption = [],  # noqa: B006
    relation: Relation = "replace_one",
    unit: Unit = None,
    per_unit: PerUnit = 1,
    population: Population = None,
    asked: AskedLater = [],  # noqa: B006
    draws: Annotated[
        int | None,
        typer.Option(
            min=1, help="Simulated releases a public rule and row; about 20 a row by default."
        ),
    ] = None,
    instruction: Instruction = None,
    revision: Revision = None,
    model_option: ModelOption = [],  # noqa: B006
    json_: Json = False,
) -> None:
    """Say what accuracy to expect of a build, from public records alone; spends no budget.

    It takes no private file: how many records there will be is all it is told.
    """
    find(model, revision)
    from dataclasses import asdict

    from dpmtv.planning import plan as make_plan

    others = public_records(public, public_option)
    loaded = load(model, revision=revision, instruction=instruction, **model_options(model_option))
    with progress_bars() as progress:
        made = make_plan(
            loaded,
            records=records,
            epsilon=epsilon,
            delta=delta,
            public=others or [],
            relation=relation,
            unit=unit,
            per_unit=per_unit,
            population=population,
            asked=asked,
            draws=draws,
            progress=progress,
        )
    words = ["dpmtv", "build", model, "PRIVATE.jsonl", "-o", "VECTOR"]
    words += ["--epsilon", str(epsilon), "--delta", str(delta)]  # never rounded up
    words += ["--shots", str(made.recommended.shots), "--relation", relation]
    for option, values in (
        ("--public", public),
        ("--public-option", public_option),
        ("--unit", [unit]),
        ("--per-unit", [per_unit if per_unit > 1 else None]),
        ("--population", [made.population]),
        ("--asked", asked),
        ("--instruction", [instruction]),
        ("--revision", [revision]),
        ("--model-option", model_option),
    ):
        words += [w for v in values if v is not None for w in (option, str(v))]
    ready = shlex.join(words)
    if json_:
        print_json({**asdict(made), "build": ready})
    else:
        print_plan(made, ready)
