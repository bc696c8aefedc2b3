"""What all commands share: the app, how errors end, options that several commands take."""

from __future__ import annotations

import functools
import logging
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from dpmtv.errors import UserError

if TYPE_CHECKING:
    from dpmtv.privacy.sensitivity import NeighbourRelation

app = typer.Typer(
    name="dpmtv",
    help="Differentially private task vectors for vision-language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # its tracebacks show local variables: private records
)
budget = typer.Typer(help="The budget of a data set.", no_args_is_help=True)
app.add_typer(budget, name="ledger")
audits = typer.Typer(help="Attacks on what the product promises.", no_args_is_help=True)
app.add_typer(audits, name="audit")
_debug = False

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Model = Annotated[
    str | None, typer.Option(help="Model folder or hub id; by default the certificate's.")
]
Instruction = Annotated[
    str | None,
    typer.Option(
        help='A line added to every question, such as "Answer briefly."; "" for none. By default '
        "the one of the model's family."
    ),
]
Relation = Annotated[str, typer.Option(help="replace_one, add_remove, or zero_out (the paper's).")]
Unit = Annotated[
    str | None, typer.Option(help="Field that names whose a record is; protects the whole unit.")
]
PerUnit = Annotated[int, typer.Option(min=1, help="Most records of a unit that serve.")]
Population = Annotated[
    int | None, typer.Option(help="Public number of units, declared for add_remove.")
]
AskedLater = Annotated[
    list[str], typer.Option(help="A question that will be asked; again for several.")
]
Revision = Annotated[str | None, typer.Option(help="Hub revision of the model.")]
ModelOption = Annotated[
    list[str],
    typer.Option(
        help="How the model is loaded, as bits=4; again for several: dtype, device, device_map, "
        "bits, attention, projections, trust_remote_code (true runs the checkpoint's own code)."
    ),
]
Longest = Annotated[int | None, typer.Option(min=1, help="Longest answer, in tokens.")]
_MODEL_OPTIONS = (
    "dtype",
    "device",
    "device_map",
    "bits",
    "attention",
    "projections",
    "trust_remote_code",
)
Command = TypeVar("Command", bound=Callable[..., None])


@app.callback()
def _options(
    debug: Annotated[
        bool, typer.Option(help="Show tracebacks. They may hold private content.")
    ] = False,
) -> None:
    global _debug
    _debug = debug


def command(function: Command) -> Command:
    """Errors as one line and an exit code: 2 for the caller's, 1 for ours."""
    return command_of(app)(function)


def command_of(group: typer.Typer, name: str | None = None) -> Callable[[Command], Command]:
    """The same in a group of commands, under a name of its own if one is given."""

    def register(function: Command) -> Command:
        return group.command(name)(_guarded(function))

    return register


def _guarded(function: Command) -> Command:
    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> None:
        warnings.showwarning = _show_warning  # type: ignore[assignment]
        logging.getLogger("PIL").setLevel(logging.ERROR)
        try:
            function(*args, **options)
        except UserError as error:
            _fail(str(error), 2)
        except (KeyboardInterrupt, SystemExit, typer.Exit, typer.Abort):
            raise
        except BaseException as error:  # panics of Rust libraries are no Exceptions
            # The text of a foreign error may quote a record, so only its type is shown.
            _fail(
                f"internal error ({type(error).__name__}); dpmtv --debug shows where, with text "
                "that may be private",
                1,
            )

    return run  # type: ignore[return-value]


def _fail(message: str, code: int) -> None:
    if _debug:
        traceback.print_exc()
    typer.secho(f"error: {message}", err=True, fg="red")
    raise typer.Exit(code)


def _show_warning(
    message: Warning | str, _category: type[Warning], filename: str, *_: Any, **__: Any
) -> None:
    # Only our own: what other libraries warn of may be about a record.
    if Path(filename).is_relative_to(Path(__file__).parent.parent):
        typer.secho(f"warning: {message}", err=True, fg="yellow")


def one_of(option: str, value: str, allowed: Sequence[str]) -> None:
    """Refuse a value that the option does not know."""
    if value not in allowed:
        raise UserError(f"--{option} must be one of {', '.join(allowed)}")


def model_options(named: Sequence[str]) -> dict[str, Any]:
    """``["bits=4", "device_map=auto"]`` as arguments of `load_model`."""
    options: dict[str, Any] = {}
    for text in named:
        name, sign, value = text.partition("=")
        if name not in _MODEL_OPTIONS or not sign:
            raise UserError(
                f"--model-option takes NAME=VALUE with NAME one of {', '.join(_MODEL_OPTIONS)}"
            )
        if name == "trust_remote_code":
            one_of("model-option trust_remote_code", value, ("true", "false"))
            options[name] = value == "true"
        elif name == "bits":
            one_of("model-option bits", value, ("4", "8"))
            options[name] = int(value)
        else:
            options[name] = value
    return options


def relation_of(name: str) -> NeighbourRelation:
    """The relation of that name."""
    from dpmtv.privacy.sensitivity import NeighbourRelation

    one_of("relation", name, tuple(NeighbourRelation))
    return NeighbourRelation(name)
