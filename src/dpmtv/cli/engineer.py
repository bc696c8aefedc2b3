"""The engineer's commands: build a vector, ask it, measure."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from dpmtv.cli.common import (
    AskedLater,
    Instruction,
    Json,
    Longest,
    Model,
    ModelOption,
    PerUnit,
    Population,
    Relation,
    Revision,
    Unit,
    command,
    model_options,
    one_of,
)
from dpmtv.cli.data import (
    Answers,
    Asked,
    Columns,
    Data,
    Encoding,
    Format,
    Images,
    Public,
    PublicOption,
    Split,
    Ways,
    public_records,
    reading,
)
from dpmtv.console import print_json, print_rows, progress_bars
from dpmtv.errors import ArtifactError, PrivacyParameterError, UserError

if TYPE_CHECKING:
    from dpmtv.artifact import TaskVector
    from dpmtv.models.adapters import VisionLanguageModel


@command
def demo(
    output: Annotated[Path, typer.Option("-o", "--output", help="New folder for the results.")] = (
        Path("demo-output")
    ),
    draws: Annotated[int, typer.Option(min=2, help="Noise and record draws.")] = 5,
    json_: Json = False,
) -> None:
    """Build private vectors on three embedded tasks and compare all methods: a few minutes."""
    from dataclasses import replace

    from dpmtv.artifact import require_writable
    from dpmtv.evaluation.demo import SETTINGS, run_demo

    require_writable(output)
    output.mkdir(parents=True, exist_ok=True)
    _quiet_transformers()
    with progress_bars() as progress:
        result = run_demo(output, replace(SETTINGS, draws=draws), progress)
    if json_:
        print_json(result.rows)
        return
    print_rows(result.rows)
    for what, seconds in result.timings:
        typer.echo(f"{seconds:7.1f} s  {what}")
    typer.echo(f"Report: {result.report}")
    typer.echo(f"Task vectors: {', '.join(str(output / name) for name in result.vectors)}")


@command
def build(
    model: Annotated[str, typer.Argument(help='Model folder, hub id, or "embedded".')],
    data: Data,
    output: Annotated[Path, typer.Option("-o", "--output", help="New folder for the vector.")],
    epsilon: Annotated[float, typer.Option(help="ε, the privacy loss; 1 is a common choice.")],
    delta: Annotated[float, typer.Option(help="δ, below 1/n.")] = 1e-5,
    public: Public = [],  # noqa: B006 - typer copies it
    public_option: PublicOption = [],  # noqa: B006
    relation: Relation = "replace_one",
    unit: Unit = None,
    per_unit: PerUnit = 1,
    population: Population = None,
    selection: Annotated[
        str | None,
        typer.Option(
            help="Heads: public (select first), private (chosen from the private records), "
            "released (the paper's), or all."
        ),
    ] = None,
    selection_epsilon: Annotated[
        float | None,
        typer.Option(help="Part of ε for a private selection; default: a tenth."),
    ] = None,
    query: Annotated[
        str | None,
        typer.Option(help="A chunk's query: public, or private (the paper's: one more record)."),
    ] = None,
    asked: AskedLater = [],  # noqa: B006
    chunks: Annotated[int | None, typer.Option(help="m; default: as many as fit.")] = None,
    shots: Annotated[
        int | None, typer.Option(min=1, help="K, demonstrations a chunk; 1 or, private, 4.")
    ] = None,
    clip: Annotated[str | None, typer.Option(help="The clip norm: a number, or private.")] = None,
    clip_epsilon: Annotated[
        float | None, typer.Option(help="Part of ε for a private clip norm; default: a tenth.")
    ] = None,
    per_layer: Annotated[
        bool, typer.Option("--per-layer", help="Clip every layer alone (the paper's).")
    ] = False,
    choice: Annotated[
        float | None,
        typer.Option(help="Part of ε for choosing what the release decodes to; 0: as it is."),
    ] = None,
    patch: Annotated[str, typer.Option(help="prompt or every-step.")] = "every-step",
    alpha: Annotated[float, typer.Option(help="Patch strength; 1 replaces.")] = 1.0,
    instruction: Instruction = None,
    revision: Revision = None,
    model_option: ModelOption = [],  # noqa: B006
    strict: Annotated[
        bool, typer.Option(help="Refuse bad private rows (tells their numbers).")
    ] = False,
    allow_large_delta: Annotated[
        bool, typer.Option(help="Permit δ ≥ 1/n, but not under add_remove.")
    ] = False,
    ledger: Annotated[
        Path | None, typer.Option(help="Budget ledger; default: DATA with .ledger, made if new.")
    ] = None,
    no_ledger: Annotated[
        bool, typer.Option("--no-ledger", help="Count no budget; the certificate says so.")
    ] = False,
    ignore_ledgers: Annotated[
        bool,
        typer.Option(
            "--ignore-ledgers",
            help="Build although another ledger may have paid for these records; the certificate "
            "says so.",
        ),
    ] = False,
    part: Annotated[
        str, typer.Option(help="Name of a group of units that shares none with other groups.")
    ] = "",
    work: Annotated[
        Path | None, typer.Option(help="Private folder to go on from after an interruption.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Private build report; default: DATA with .report.json.")
    ] = None,
    format: Format = None,
    answers: Answers = "majority",
    encoding: Encoding = None,
    images: Images = None,
    question: Asked = None,
    ways: Ways = None,
    column: Columns = [],  # noqa: B006
    split: Split = None,
) -> None:
    """Turn private records into a task vector with an (ε, δ) guarantee per record or person."""
    find(model, revision)
    from dpmtv.artifact import require_writable
    from dpmtv.data.demonstrations import check_images, read_demonstrations, require_good
    from dpmtv.data.formats import data_file, same_data
    from dpmtv.data.work import require_report
    from dpmtv.options import PrivateClip, PublicWord, SelectionMode
    from dpmtv.pipeline import build_task_vector
    from dpmtv.privacy.ledger_records import beside
    from dpmtv.privacy.statement import statement

    if selection is not None:
        one_of("selection", selection, get_args(SelectionMode))
    one_of("patch", patch, ("prompt", "every-step"))
    if query is not None:
        one_of("query", query, ("public", "private"))
    norm = None if clip is None else clip if clip in get_args(PrivateClip) else _number(clip)
    require_writable(output)
    if no_ledger and (ledger is not None or part):
        raise UserError("--no-ledger goes with neither --ledger nor --part")
    how = reading(
        answers=answers,
        encoding=encoding,
        images=images,
        question=question,
        ways=ways,
        columns=column,
        split=split,
    )
    words = set(get_args(PublicWord))
    ours, theirs = (set[object]().union(*map(same_data, paths)) for paths in (data, public))
    if words.isdisjoint(public) and ours & theirs:
        raise PrivacyParameterError("the private file was given as the public one too")
    rows = read_demonstrations(data, unit=unit, format=format, **how)
    if strict:
        require_good(check_images(rows), "the private file")
    others = public_records(public, public_option)
    if ledger is None and not no_ledger and (len(data) > 1 or not data[0].exists()):
        raise UserError("for several files, or data of a hub, name the ledger: --ledger FILE")
    first = data_file(data[0])  # one data set, one ledger
    report = report or beside(first, ".report.json")
    book = None if no_ledger else ledger or beside(first, ".ledger")
    _apart(*map(data_file, data), output, report, book, work)
    require_report(report)
    loaded = load(model, revision=revision, instruction=instruction, **model_options(model_option))
    typer.echo(
        f"One release at ε = {epsilon:g}, δ = {delta:g} under {relation} per {unit or 'record'}. "
        f"Rows that cannot be used are passed over in silence: {report} (private) names them, "
        "--strict refuses them.",
        err=True,
    )
    with progress_bars() as progress:
        vector = build_task_vector(
            loaded,
            rows,
            epsilon=epsilon,
            delta=delta,
            public=others,
            relation=relation,
            unit=unit,
            per_unit=per_unit,
            population=population,
            selection=selection,  # type: ignore[arg-type]
            selection_epsilon=selection_epsilon,
            query=query,  # type: ignore[arg-type]
            asked=asked,
            chunks=chunks,
            shots=shots,
            clip=norm,  # type: ignore[arg-type]
            clip_epsilon=clip_epsilon,
            per_layer=per_layer,
            choice=choice,
            patch=patch,  # type: ignore[arg-type]
            alpha=alpha,
            allow_large_delta=allow_large_delta,
            ledger=book,
            part=part,
            files=data,
            ignore_ledgers=ignore_ledgers,
            work=work,
            report=report,
            progress=progress,
        )
    _save(vector, output, (book or first).parent)
    for line in statement(vector.certificate):
        typer.echo(line)
    typer.echo(f"Saved: {output}")


@command
def ask(
    folder: Annotated[Path, typer.Argument(help="A task vector.")],
    question: Annotated[str, typer.Argument(help="The question.")],
    image: Annotated[list[Path], typer.Option(help="The image; again for several.")],
    model: Model = None,
    model_option: ModelOption = [],  # noqa: B006
    max_new_tokens: Longest = None,
    json_: Json = False,
) -> None:
    """Answer one question with a task vector, and without for comparison."""
    from dpmtv.artifact import TaskVector
    from dpmtv.types import Query

    vector = TaskVector.from_pretrained(folder)
    loaded = model_of(vector, model, max_new_tokens, model_options(model_option))
    queries = [Query(tuple(image), question)]
    (bare,) = loaded.generate(queries)
    with vector.applied(loaded):
        (answer,) = loaded.generate(queries)
    if json_:
        print_json({"answer": answer, "zero_shot": bare, "epsilon": _epsilon(vector)})
        return
    _warn_without_noise(vector)
    typer.echo(answer)
    typer.secho(f"without the vector: {bare}", dim=True)


# --- helpers -------------------------------------------------------------------------------


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"--clip is a number or private, not {text}") from None


def _save(vector: TaskVector, output: Path, beside: Path) -> None:
    """Save a vector that is paid for: where it should go, or else wherever it can.

    Raises:
        UserError: it is not in ``output``; the text says where it is.
    """
    try:
        vector.save_pretrained(output)
        return
    except (OSError, ArtifactError):  # a full disk, a share that is gone, a name taken meanwhile
        pass
    for place in (beside, Path(), None):  # None: the system's folder for temporary files
        try:
            folder = Path(tempfile.mkdtemp(prefix="task-vector-", dir=place)).resolve()
        except OSError:
            continue
        try:
            vector.save_pretrained(folder)
            folder.chmod(0o700)  # nobody chose this place
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            continue
        raise UserError(
            f"the vector is saved in {folder} instead, because {output} cannot be written; "
            "its budget is spent, so move it and do not build again"
        )
    raise UserError(
        f"the vector is lost and its budget is spent: neither {output}, nor {beside}, the current "
        "folder or the one for temporary files can be written"
    )


def _apart(*paths: Path | None) -> None:
    """Refuse files that would overwrite, or lie inside, one another."""
    found = [path.resolve() for path in paths if path is not None]
    for place, path in enumerate(found):
        for other in found[place + 1 :]:
            if path == other or path in other.parents or other in path.parents:
                raise UserError(f"{path} and {other} must be apart from each other")


def find(name: str, revision: str | None) -> None:
    """Refuse a name that leads to no model before data are read or torch is imported."""
    from dpmtv.models.places import find_model

    find_model(name, revision)


def load(name: str, **options: Any) -> VisionLanguageModel:
    """The model of that name, without the bars and warnings of its library."""
    find(name, options.get("revision"))
    from dpmtv.models.adapters import load_model

    _quiet_transformers()
    return load_model(name, **options)


def _quiet_transformers() -> None:
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def model_of(
    vector: TaskVector, name: str | None, most: int | None, how: dict[str, Any]
) -> VisionLanguageModel:
    """The model that a vector was made for, by hub id, or the embedded one by its hash."""
    made_for = vector.certificate.model
    inference = vector.certificate.inference
    options: dict[str, Any] = {
        "instruction": inference.answer_instruction,
        "dtype": inference.dtype,
        **how,
    }
    if most is not None:
        options["max_new_tokens"] = most
    if name is not None or made_for.id is not None:
        revision = made_for.revision if name is None else None
        return load(name or str(made_for.id), revision=revision, **options)
    model = load("embedded", **options)
    if model.identity != made_for:
        raise ArtifactError("the vector was made for a model in a local folder; name it: --model")
    return model


def _epsilon(vector: TaskVector) -> float | str:
    epsilon = vector.certificate.privacy.epsilon
    return "inf" if epsilon == float("inf") else epsilon


def _warn_without_noise(vector: TaskVector) -> None:
    if _epsilon(vector) == "inf":
        typer.secho("ε = inf: this vector is NOT PRIVATE", fg="red", bold=True, err=True)
