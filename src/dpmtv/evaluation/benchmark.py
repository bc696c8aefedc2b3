"""A benchmark folder: public tasks in which some files play the private role.

FOLDER/public.jsonl                        records of other answer rules, with ``task``
FOLDER/tasks/NAME/private.jsonl            the records that play the private role
FOLDER/tasks/NAME/test.jsonl               queries and wanted answers
FOLDER/tasks/NAME/sealed.jsonl             the same for the last run alone, if there is one
FOLDER/tasks/NAME/public-same-rule.jsonl   public records of the same rule (the paper's mode)
FOLDER/suite.json                          {task: group}, if results are to be grouped

Or the official files of public data sets (docs/benchmarks.md), each of which is a task.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpmtv.data.benchmarks import PROMPTS, SETS, read_set
from dpmtv.data.demonstrations import read_demonstrations, require_good
from dpmtv.errors import DataError, UserError
from dpmtv.evaluation.official_metrics import EXACT, OFFICIAL, Metric

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpmtv.types import Demonstration

EMBEDDED_DATA = Path(__file__).resolve().parent.parent / "embedded" / "data"


@dataclass(frozen=True)
class BenchmarkTask:
    """One task; every record in it is public, whatever its file is called.

    Args:
        name: its name in the rows.
        private: the records that play the private role.
        test: queries and wanted answers.
        same_rule: public records of the same rule.
        group: of the suite.
        metrics: how answers are scored; the first leads.
        seen: what the metrics look at beside the answers, one for each test record, if anything.
        prompt: of an official data set: name and text of how it is asked.
        tokens: that an answer may have at least, beside what the wanted ones have.
    """

    name: str
    private: list[Demonstration]
    test: list[Demonstration]
    same_rule: list[Demonstration]
    group: str = ""
    metrics: tuple[Metric, ...] = (EXACT,)
    seen: list[Any] = field(default_factory=list)
    prompt: str = ""
    tokens: int = 0


KNOWN_QUESTIONS = 16  # at most, of a task whose questions are the task: known to its builder


def asked_of(task: BenchmarkTask) -> tuple[str, ...]:
    """The questions that a vector will be asked, in order; () where a task has too many to know.

    With more, a build would be told literal test questions.
    """
    questions = sorted({r.question for r in task.test})
    return tuple(questions) if len(questions) <= KNOWN_QUESTIONS else ()


@dataclass(frozen=True)
class Benchmark:
    """Tasks and the public records of other rules, or the word for generated ones."""

    tasks: tuple[BenchmarkTask, ...]
    public: list[Demonstration] | Literal["synthetic"]


def load_benchmark(
    folder: Path | str,
    names: Sequence[str] = (),
    *,
    sealed: bool = False,
    public: Literal["synthetic"] | Sequence[str] = (),
) -> Benchmark:
    """Read a benchmark folder; ``"embedded"`` is the one that comes with the package.

    Args:
        folder: see the module's text.
        names: the tasks wanted, all by default.
        sealed: test on ``sealed.jsonl``, which is for figures to be published: nothing may be
            chosen on it.
        public: ``"synthetic"`` in place of the folder's ``public.jsonl``, or the tasks of that
            file that are wanted, all by default.

    Raises:
        DataError: a file is missing or has bad rows, or a task does not exist.
    """
    root = EMBEDDED_DATA if str(folder) == "embedded" else Path(folder)
    if not (root / "tasks").is_dir():
        raise DataError(
            f"{folder} is not a benchmark folder: it has no folder tasks. For the official files "
            f"of a data set, write NAME=FOLDER with NAME one of {', '.join(SETS)}."
        )
    found = sorted(p.name for p in (root / "tasks").iterdir() if p.is_dir())
    unknown = sorted(set(names) - set(found))
    if unknown:
        raise DataError(f"no task {', '.join(unknown)}; there are {', '.join(found)}")

    def read(path: Path) -> list[Demonstration]:
        return require_good(read_demonstrations(path), str(path))

    table = root / "suite.json"
    groups = json.loads(table.read_text("utf-8")) if table.is_file() else {}

    def task(name: str) -> BenchmarkTask:
        at = root / "tasks" / name
        same = at / "public-same-rule.jsonl"
        return BenchmarkTask(
            name=name,
            private=read(at / "private.jsonl"),
            test=read(at / ("sealed.jsonl" if sealed else "test.jsonl")),
            same_rule=read(same) if same.is_file() else [],
            group=groups.get(name, ""),
        )

    tasks = tuple(task(n) for n in names or found)
    if public == "synthetic":
        return Benchmark(tasks, "synthetic")
    known = read(root / "public.jsonl")
    there = {record.task for record in known}
    absent = sorted(set(public) - there)
    if absent:
        raise DataError(
            f"public.jsonl has no task {', '.join(absent)}; there are "
            f"{', '.join(sorted(str(task) for task in there))}"
        )
    return Benchmark(tasks, [r for r in known if not public or r.task in public])


PUBLIC_RECORDS = 300  # of each official data set; a third of them scores head masks, as MTV's 100


def official_name(text: str) -> tuple[str, str] | None:
    """``NAME=FOLDER`` of an official data set in two parts, or None.

    Raises:
        UserError: it has that form, and no set of that name is known.
    """
    name, sign, folder = text.partition("=")
    if not sign or Path(text).exists():
        return None
    if name not in SETS or not folder:
        raise UserError(f"--benchmark NAME=FOLDER takes a NAME of {', '.join(SETS)}")
    return name, folder


def load_official(
    named: Sequence[tuple[str, str]],
    *,
    public: Literal["synthetic"] | Sequence[str] = (),
    one_a_picture: bool = False,
    n_test: int | None = None,
) -> Benchmark:
    """Official data sets, each a task with the metrics of its official code.

    Args:
        named: name and folder (or dataset) of each; see `dpmtv.data.benchmarks.read_set`.
        public: whose public parts are known, all by default; or ``"synthetic"``.
        one_a_picture: keep one private question of each picture.
        n_test: test questions kept of each, all by default.

    Raises:
        DataError: files are missing or have bad rows.
        UserError: a set is named twice, or ``public`` names one that is not there.
    """
    names = [name for name, _ in named]
    if len({*names}) < len(names):
        raise UserError("a data set is named twice")
    if public != "synthetic" and not {*public} <= {*names}:
        raise UserError(f"--public takes names of the data sets given: {', '.join(names)}")
    tasks, known = [], []
    for name, folder in named:
        parts, of = read_set(name, folder, one_a_picture=one_a_picture), SETS[name]
        test, shown = parts.test[:n_test], parts.public[:PUBLIC_RECORDS]
        task = BenchmarkTask(
            name=f"{name} ({parts.split})",
            private=parts.private,
            test=[example.record for example in test],
            same_rule=shown,
            metrics=OFFICIAL[of.metrics],
            seen=[example.seen for example in test],
            prompt=f"{parts.prompt}: {PROMPTS[parts.prompt]}",
            tokens=of.tokens,
        )
        tasks.append(task)
        known += shown if not public or name in public else []
    return Benchmark(tuple(tasks), "synthetic" if public == "synthetic" else known)
