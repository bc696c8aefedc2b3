"""The command that measures accuracy, and what other measuring commands share with it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpmtv.cli.common import (
    Instruction,
    Json,
    Longest,
    Model,
    ModelOption,
    command,
    model_options,
    one_of,
)
from dpmtv.cli.data import (
    Answers,
    Asked,
    Columns,
    Encoding,
    Format,
    Images,
    Split,
    Ways,
    reading,
)
from dpmtv.cli.engineer import find, load, model_of
from dpmtv.console import print_json, print_rows, progress_bars
from dpmtv.errors import DataError, UserError

if TYPE_CHECKING:
    from dpmtv.evaluation.benchmark import BenchmarkTask
    from dpmtv.types import Demonstration


# Options of the measuring of a model, which ask nothing of a vector.
_OF_A_MODEL = (
    *("tasks", "public", "methods", "geometries", "relations", "epsilons", "delta", "chunks"),
    *("records", "shots", "draws", "patch", "sealed", "search_steps"),
)


@command
def evaluate(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="A task vector folder, or a model.")],
    benchmark: Annotated[
        list[str],
        typer.Option(
            help="Test files for a vector; benchmark folder for a model; or NAME=FOLDER of public "
            "data sets as their owners publish them: vizwiz, vqa-rad, path-vqa, ok-vqa, textvqa, "
            "flowers102, cub-200, dtd."
        ),
    ] = ["embedded"],  # noqa: B006 - typer copies it
    model: Model = None,
    instruction: Instruction = None,
    model_option: ModelOption = [],  # noqa: B006
    tasks: Annotated[str, typer.Option(help="Tasks of the benchmark, by comma.")] = "",
    public: Annotated[
        str,
        typer.Option(
            help='"synthetic" records, or tasks of public.jsonl (of NAME=FOLDER: names) by comma; '
            "default: all."
        ),
    ] = "",
    methods: Annotated[
        str,
        typer.Option(
            help="Methods, by comma: also words listed, words enforced, words listed and enforced "
            "(words taken as public); private words enforced, private words listed and enforced, "
            "private words + vector, bank choice (same ε and δ); other task, pure noise."
        ),
    ] = "zero-shot,in-context,task vector,dp-mtv",
    geometries: Annotated[
        str,
        typer.Option(help="default, selected, all-heads, paper, all-heads-public-query, …"),
    ] = "default,all-heads",
    relations: Annotated[str, typer.Option(help="Neighbour relations.")] = "replace_one,zero_out",
    epsilons: Annotated[str, typer.Option(help='Numbers; "none" is the mean without noise.')] = (
        "0.5,1,2,4,8,none"
    ),
    delta: Annotated[float, typer.Option(help="δ.")] = 1e-5,
    chunks: Annotated[str, typer.Option(help="Values of m, by comma.")] = "100",
    records: Annotated[
        str, typer.Option(help="Private records, by comma: as many chunks as they give.")
    ] = "",
    shots: Annotated[int, typer.Option(min=1, help="K, where the query is private.")] = 4,
    draws: Annotated[int, typer.Option(min=1, help="Draws of records and noise.")] = 20,
    n_test: Annotated[
        int | None,
        typer.Option(min=1, help="Test queries a task: by default 100, for a vector all."),
    ] = None,
    patch: Annotated[str, typer.Option(help="prompt or every-step.")] = "every-step",
    sealed: Annotated[
        bool, typer.Option("--sealed", help="Test on sealed.jsonl: for figures to be published.")
    ] = False,
    search_steps: Annotated[int, typer.Option(min=1, help="Steps of each head search.")] = 200,
    one_a_picture: Annotated[
        bool, typer.Option("--one-a-picture", help="Of NAME=FOLDER: one private question each.")
    ] = False,
    max_new_tokens: Longest = None,
    format: Format = None,
    answers: Answers = "majority",
    encoding: Encoding = None,
    images: Images = None,
    question: Asked = None,
    ways: Ways = None,
    column: Columns = [],  # noqa: B006
    split: Split = None,
    json_: Json = False,
) -> None:
    """Accuracy of a vector on a test file, or of every method on a public benchmark.

    Every file of a benchmark folder counts as public, also those that play the private role.
    """
    from dpmtv.evaluation.benchmark import BenchmarkTask, load_benchmark, load_official
    from dpmtv.evaluation.benchmark import official_name as official

    named = [found for text in benchmark if (found := official(text))]
    if named and (len(named) < len(benchmark) or sealed or tasks):
        raise UserError(
            "--benchmark NAME=FOLDER goes with others of its kind alone, and without "
            "--sealed and --tasks"
        )
    if one_a_picture and not named:
        raise UserError("--one-a-picture means nothing without --benchmark NAME=FOLDER")
    if (Path(target) / "certificate.json").is_file():
        given = [o for o in _OF_A_MODEL if _typed(context, o)]
        if given:
            raise UserError(
                ", ".join(f"--{option.replace('_', '-')}" for option in given)
                + " means nothing for a vector, which is measured as it is"
            )
        if instruction is not None:
            raise UserError("a vector is asked with the instruction that it was made with")
        how = reading(
            answers=answers,
            encoding=encoding,
            images=images,
            question=question,
            ways=ways,
            columns=column,
            split=split,
        )
        if named:
            tested = [*load_official(named, one_a_picture=one_a_picture, n_test=n_test).tasks]
        else:
            test = _test_records(benchmark, format=format, **how)
            tested = [BenchmarkTask("test file", [], test[:n_test], [])]
        rows = _evaluate_vector(
            Path(target), tested, model, max_new_tokens, model_options(model_option)
        )
    else:
        find(target, None)
        from dpmtv.evaluation.runner import evaluate_benchmark
        from dpmtv.evaluation.settings import GEOMETRIES, METHODS, Settings

        one_of("patch", patch, ("prompt", "every-step"))
        n_test = n_test or 100
        settings = Settings(
            methods=_listed("methods", methods, METHODS),
            geometries=_listed("geometries", geometries, tuple(GEOMETRIES)),
            relations=_listed("relations", relations, ("replace_one", "zero_out")),
            epsilons=numbers(epsilons),
            delta=delta,
            chunks=_integers("chunks", chunks),
            records=_integers("records", records) if records else (),
            shots=shots,
            draws=draws,
            n_test=n_test,
            patch=patch,  # type: ignore[arg-type]
            search_steps=search_steps,
        )
        known: Any = [t for t in public.split(",") if t]
        known = "synthetic" if public == "synthetic" else known
        if named:
            loaded = load_official(named, public=known, one_a_picture=one_a_picture, n_test=n_test)
        elif len(benchmark) > 1:
            raise UserError("one benchmark folder at a time")
        else:
            wanted = [t for t in tasks.split(",") if t]
            loaded = load_benchmark(benchmark[0], wanted, sealed=sealed, public=known)
        with progress_bars() as progress:
            rows, _ = evaluate_benchmark(
                load(target, instruction=instruction, **model_options(model_option)),
                loaded,
                settings,
                name=target if target == "embedded" or "/" not in target else Path(target).name,
                command=as_typed(),
                progress=progress,
            )
    if json_:
        print_json(rows)
    else:
        print_rows(rows)


# --- helpers -------------------------------------------------------------------------------


def _typed(context: typer.Context, option: str) -> bool:
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def _test_records(files: Sequence[str], **how: Any) -> list[Demonstration]:
    from dpmtv.data.demonstrations import check_images, read_demonstrations, require_good

    if list(files) == ["embedded"]:
        raise DataError("to evaluate a vector, name a test file: --benchmark test.jsonl")
    rows = read_demonstrations(list(files), **how)
    require_good(check_images(rows), "the test file")
    return require_good(rows, "the test file")


def _evaluate_vector(
    folder: Path,
    tested: Sequence[BenchmarkTask],
    model: str | None,
    most: int | None,
    how: dict[str, Any],
) -> list[dict[str, Any]]:
    from dpmtv.artifact import TaskVector
    from dpmtv.evaluation.rows import evaluate_vector

    vector = TaskVector.from_pretrained(folder)
    loaded = model_of(vector, model, most, how)
    return [r for t in tested for r in evaluate_vector(loaded, vector, t, command=as_typed())]


def _listed(option: str, text: str, allowed: Sequence[str]) -> tuple[str, ...]:
    values = tuple(part.strip() for part in text.split(",") if part.strip())
    for value in values:
        one_of(option, value, allowed)
    return values


def numbers(text: str) -> tuple[float | None, ...]:
    """The values of --epsilons; None for "none"."""
    try:
        return tuple(None if t.strip() == "none" else float(t) for t in text.split(","))
    except ValueError:
        raise UserError('--epsilons takes numbers by comma, and "none"') from None


def _integers(option: str, text: str) -> tuple[int, ...]:
    try:
        values = tuple(int(t) for t in text.split(","))
    except ValueError:
        values = ()
    if not values or min(values) < 1:
        raise UserError(f"--{option} takes whole numbers above 0, by comma")
    return values


def as_typed() -> str:
    """The command line, for rows that name what reproduces them."""
    return " ".join(["dpmtv", *map(_quoted, sys.argv[1:])])


def _quoted(word: str) -> str:
    """As `shlex.quote`, in double quotes where nothing but blanks asks for any."""
    return f'"{word}"' if " " in word and not {*word} & {*'"\\$`!'} else shlex.quote(word)
