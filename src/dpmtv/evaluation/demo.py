"""The demonstration: three embedded tasks from private images to a table and a report."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpmtv.evaluation.benchmark import load_benchmark
from dpmtv.evaluation.metrics import exact_match
from dpmtv.evaluation.report import write_report
from dpmtv.evaluation.runner import evaluate_benchmark
from dpmtv.evaluation.settings import METHODS, Settings
from dpmtv.evaluation.study import chunk_pool
from dpmtv.models.adapters import load_model
from dpmtv.pipeline import build_task_vector
from dpmtv.privacy.statement import statement
from dpmtv.types import Prompt

if TYPE_CHECKING:
    from dpmtv.artifact import TaskVector
    from dpmtv.evaluation.benchmark import Benchmark, BenchmarkTask
    from dpmtv.models.adapters import VisionLanguageModel
    from dpmtv.public_tasks import Progress

DEMO_TASKS = ("digit-roman", "color-gem", "shape-spanish")
SETTINGS = Settings(
    methods=METHODS[:4],
    geometries=("default",),
    relations=("replace_one",),
    epsilons=(0.5, 1.0, 2.0, 8.0),
    draws=5,
    n_test=60,
)
EPSILON, DELTA = 1.0, 1e-5
_EXAMPLES = 4  # a task


@dataclass
class Demo:
    """What the demonstration made."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    timings: list[tuple[str, float]] = field(default_factory=list)
    vectors: dict[str, TaskVector] = field(default_factory=dict)
    report: Path | None = None


def run_demo(folder: Path, settings: Settings, progress: Progress) -> Demo:
    """Build and save three task vectors, measure every method, write report.html.

    Args:
        folder: receives one task vector a task, and report.html.
        settings: what is measured.
        progress: called with (what, done, total).
    """
    demo = Demo()
    with _timed(demo, "load the embedded model and its data"):
        model = load_model("embedded")
        loaded = load_benchmark("embedded", DEMO_TASKS)
        # Half of the public records: enough here, and public passes take most of the time.
        known = [record for record in loaded.public if not isinstance(record, str)]
        benchmark = replace(loaded, public=known[::2])
    with _timed(demo, f"build three task vectors at ε = {EPSILON:g}"):
        for task in benchmark.tasks:
            vector = build_task_vector(
                model,
                task.private,
                epsilon=EPSILON,
                delta=DELTA,
                public=benchmark.public,
                chunks=max(settings.chunks),
                asked=sorted({r.question for r in task.test}),
                patch=settings.patch,
                search_steps=settings.search_steps,
                progress=progress,
            )
            vector.save_pretrained(folder / task.name)
            demo.vectors[task.name] = vector
    with _timed(demo, f"measure {len(settings.methods)} methods with {settings.draws} draws"):
        demo.rows, heads = evaluate_benchmark(
            model,
            benchmark,
            settings,
            name="embedded",
            command="dpmtv demo",
            progress=progress,
        )
    with _timed(demo, "answer the examples and write the report"):
        demo.report = folder / "report.html"
        write_report(
            demo.report,
            rows=demo.rows,
            heads=model.layout.split(heads),
            examples=_examples(model, benchmark, demo, settings),
            timings=demo.timings,
            title="Private task vectors on three embedded tasks",
            statement_lines=statement(next(iter(demo.vectors.values())).certificate),
        )
    return demo


@contextmanager
def _timed(demo: Demo, what: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    demo.timings.append((what, time.perf_counter() - started))


def _examples(
    model: VisionLanguageModel, benchmark: Benchmark, demo: Demo, s: Settings
) -> list[dict[str, Any]]:
    """The first test pictures of each task with every method's answer; all of them public."""
    examples = []
    for task in benchmark.tasks:
        records = task.test[:_EXAMPLES]
        answers = _answers(model, benchmark, task, demo.vectors[task.name], s)
        for place, record in enumerate(records):
            given = {label: texts[place] for label, texts in answers.items()}
            examples.append(
                {
                    "task": task.name,
                    "image": Path(str(record.image)).read_bytes(),
                    "question": record.question,
                    "wanted": record.answer,
                    "answers": {
                        label: (text, exact_match([text], [record.answer]) == 1)
                        for label, text in given.items()
                    },
                    "private": {
                        label: label == "zero-shot" or label.startswith("DP-MTV") for label in given
                    },
                }
            )
    return examples


def _answers(
    model: VisionLanguageModel,
    benchmark: Benchmark,
    task: BenchmarkTask,
    vector: TaskVector,
    s: Settings,
) -> dict[str, list[str]]:
    records = task.test[:_EXAMPLES]
    queries = model.prepare([r.query for r in records])
    shown = tuple(task.private[: s.shots])
    public = [record for record in benchmark.public if not isinstance(record, str)]
    bare = chunk_pool(model, public, task, max(s.chunks), s.size("public"), "public").mean(0)
    result = {
        "zero-shot": model.generate(queries),
        f"{s.shots}-shot in context": model.generate([Prompt(shown, r.query) for r in records]),
    }
    with model.patched(bare, vector.heads, s.patch):
        result["task vector without noise"] = model.generate(queries)
    with vector.applied(model):
        result[f"DP-MTV, ε = {EPSILON:g}"] = model.generate(queries)
    return result
