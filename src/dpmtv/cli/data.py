"""The options that say how files of records are read, and a look at what is in them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from dpmtv.cli.common import Json, Unit, app, command_of
from dpmtv.console import print_data_report, print_json, progress_bars
from dpmtv.errors import UserError

if TYPE_CHECKING:
    from dpmtv.data.check import DataReport
    from dpmtv.data.demonstrations import BadRow
    from dpmtv.options import PublicWord
    from dpmtv.types import Demonstration

records = typer.Typer(help="Files of records.", no_args_is_help=True)
app.add_typer(records, name="data")

Data = Annotated[
    list[Path], typer.Argument(help="Private records: files or folders, see docs/formats.")
]
Format = Annotated[
    str | None, typer.Option(help="Format of DATA, where its name does not tell it.")
]
Answers = Annotated[
    str, typer.Option(help="Which of several answers is shown: majority, first, or all accepted.")
]
Encoding = Annotated[
    str | None, typer.Option(help="Encoding of text files, such as cp1252; else UTF-8 or by mark.")
]
Images = Annotated[Path | None, typer.Option(help="Folder where image paths start.")]
Asked = Annotated[
    str | None, typer.Option("--question", help="Class folders: the question, with {classes}.")
]
Ways = Annotated[int | None, typer.Option(help="Class folders: 2 for 2-way 1-shot records.")]
Columns = Annotated[
    list[str], typer.Option("--column", help="A field by another name, as question=Frage.")
]
Split = Annotated[str | None, typer.Option(help="Split of a Hugging Face dataset.")]
Public = Annotated[
    list[str],
    typer.Option(
        help='Public records, in a format of their own; "synthetic" generates some, "none" builds '
        "without."
    ),
]
PublicOption = Annotated[
    list[str], typer.Option(help="How they are read, as encoding=cp1252; DATA has its own.")
]
_PUBLIC = ("format", "answers", "encoding", "images", "question", "ways", "split")


def columns_of(named: list[str]) -> dict[str, str] | None:
    """``["question=Frage"]`` as a mapping; None for none."""
    pairs = [text.partition("=") for text in named]
    if not all(ours and sign and theirs for ours, sign, theirs in pairs):
        raise UserError("--column takes our name and the file's, as question=Frage")
    return {ours: theirs for ours, _, theirs in pairs} or None


@command_of(records, "check")
def check(
    data: Data,
    unit: Unit = None,
    format: Format = None,
    answers: Answers = "majority",
    encoding: Encoding = None,
    images: Images = None,
    question: Asked = None,
    ways: Ways = None,
    column: Columns = [],  # noqa: B006 - typer copies it
    split: Split = None,
    pictures: Annotated[bool, typer.Option(help="Decode every picture.")] = True,
    json_: Json = False,
) -> None:
    """What was understood of private records, for the operator's eyes only; spends no budget.

    Ends with 2 if there are rows that `build --strict` would refuse.
    """
    from dpmtv.data.check import as_json, check_data
    from dpmtv.data.formats import ReadOptions, detect_format, iter_entries

    options = ReadOptions(
        unit=unit,
        format=format,
        answers=answers,
        encoding=encoding,
        images=images,
        question=question,
        ways=ways,
        columns=columns_of(column),
        split=split,
    )
    with progress_bars() as progress:
        total = 0
        for total, _ in enumerate(iter_entries(data, options), start=1):
            if total % 1000 == 0:
                progress("counting", total, total)
        report: DataReport = check_data(
            iter_entries(data, options),
            unit=unit,
            pictures=pictures,
            progress=lambda done: progress("records", done, total),
        )
    formats = [format or detect_format(path) for path in data]
    if json_:
        print_json({"private": False, "formats": formats, **as_json(report)})
    else:
        print_data_report(report, list(zip(map(str, data), formats, strict=True)))
    if report.bad:
        raise typer.Exit(2)


def reading(**options: Any) -> dict[str, Any]:
    """The same options as arguments of `read_demonstrations`."""
    return {**options, "columns": columns_of(options["columns"])}


def public_reading(named: list[str]) -> dict[str, Any]:
    """``["format=csv", "column.question=Frage"]`` as arguments of `read_demonstrations`."""
    options: dict[str, Any] = {}
    columns = []
    for text in named:
        name, sign, value = text.partition("=")
        if name.startswith("column.") and sign:
            columns.append(text.removeprefix("column."))
        elif name in _PUBLIC and sign:
            options[name] = int(value) if name == "ways" and value.isdecimal() else value
        else:
            raise UserError(
                f"--public-option takes NAME=VALUE with NAME one of {', '.join(_PUBLIC)}, or "
                "column.question and the like"
            )
    return {**options, "columns": columns_of(columns)}


def public_records(
    files: list[str], named: list[str]
) -> list[Demonstration | BadRow] | PublicWord | None:
    """Public records, read and looked at, or the word in their place; None if there is neither."""
    from dpmtv.data.demonstrations import check_images, read_demonstrations, require_good
    from dpmtv.options import PublicWord

    words: tuple[PublicWord, ...] = get_args(PublicWord)
    for word in words:
        if word in files:
            if len(files) > 1:
                raise UserError(f"--public is {word} or files (one of that name is ./{word})")
            return word
    if not files:
        return None
    records = read_demonstrations(files, **public_reading(named))
    require_good(check_images(records), "the public file")
    return records
