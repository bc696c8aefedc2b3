"""A benchmark folder: public tasks in which some files play the private role.

FOLDER/public.jsonl                        records of other answer rules, with ``task``
FOLDER/tasks/NAME/private.jsonl            the records that play the private role
FOLDER/tasks/NAME/test.jsonl               queries and wanted answers
FOLDER/tasks/NAME/sealed.jsonl             the same for the last run alone, if there is one
FOLDER/tasks/NAME/public-same-rule.jsonl   public records of the same rule (the paper's mode)
FOLDER/suite.json                          {task: group}, if results are to be grouped
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dpmtv.data.demonstrations import read_demonstrations, require_good
from dpmtv.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpmtv.types import Demonstration

EMBEDDED_DATA = Path(__file__).resolve().parent.parent / "embedded" / "data"


@dataclass(frozen=True)
class BenchmarkTask:
    """One task; every record in it is public, whatever its file is called."""

    name: str
    private: list[Demonstration]
    test: list[Demonstration]
    same_rule: list[Demonstration]
    group: str = ""


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
        raise DataError(f"{folder} is not a benchmark folder: it has no folder tasks")
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
