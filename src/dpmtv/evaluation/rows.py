"""What was measured, as rows that name all that made them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dpmtv.evaluation.comparisons import bootstrap_interval, paired_p
from dpmtv.evaluation.official_metrics import outcomes
from dpmtv.evaluation.settings import MEAN, NO_RECORDS, Setting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dpmtv.artifact import TaskVector
    from dpmtv.evaluation.benchmark import BenchmarkTask
    from dpmtv.evaluation.study import Study
    from dpmtv.models.adapters import VisionLanguageModel

    Row = dict[str, Any]


def result_rows(study: Study, name: str, command: str) -> Iterator[Row]:
    """One row for each setting, task and metric, and for each mean of tasks with one metric."""
    s, benchmark = study.settings, study.benchmark
    tasks = {task.name: task for task in benchmark.tasks}
    groups = {name: [name] for name in tasks}
    several = len({task.group for task in benchmark.tasks}) > 1
    for task in benchmark.tasks:
        if task.group and several:
            groups.setdefault(f"{MEAN} of {task.group}", []).append(task.name)
    groups[MEAN] = [*tasks]
    best = max(
        (k for k in study.scores if k.method == "task vector"), key=lambda k: k.m or 0, default=None
    )

    def values(setting: Setting, tasks: Sequence[str], place: int) -> np.ndarray:
        """The mean of the tasks in each draw."""
        by_task = study.scores[setting]
        means = [[_mean(score[place]) for score, _ in by_task[t]] for t in tasks]
        return np.array([np.mean(draw) for draw in zip(*means, strict=True)])

    def baseline(setting: Setting | None, tasks: Sequence[str], place: int) -> float | None:
        if setting not in study.scores:
            return None
        return float(np.mean(values(setting, tasks, place)))

    for setting, by_task in list(study.scores.items()):
        for group, wanted in groups.items():
            columns = [t for t in wanted if by_task[t]]
            if not columns or len({tasks[t].metrics for t in columns}) > 1:
                continue
            known = float(np.mean([share for t in columns for _, share in by_task[t]]))
            of = tasks[columns[0]]
            for place, metric in enumerate(of.metrics):
                found = values(setting, columns, place)
                if np.isnan(found).any():  # of these questions, none is of the metric's kind
                    continue
                zero = baseline(Setting("zero-shot"), columns, place)
                high = baseline(best, columns, place)
                row: Row = {
                    "table": f"benchmark, patched {s.patch}",
                    "task": group,
                    "method": setting.method,
                    "geometry": setting.geometry,
                    "relation": setting.relation,
                    "epsilon": setting.epsilon,
                    "delta": None if setting.epsilon is None else s.delta,
                    "records": setting.records,
                    "m": setting.m,
                    "K": setting.K,
                    "coordinates": setting.coordinates,
                    "draws": len(found),
                    "n_test": s.n_test,
                    "mean": float(np.mean(found)),
                    "se": float(np.std(found, ddof=1) / np.sqrt(len(found)))
                    if len(found) > 1
                    else None,
                    "gain": _gain(float(np.mean(found)), zero, high),
                    "chance": float(np.mean([1 / len(study.words[t]) for t in columns])),
                    "in_words": known,
                    "metric": metric.name,
                    "model": name,
                    "prompt": _prompt(study.model, of),
                    "command": command,
                    "private": setting.epsilon is not None
                    or setting.method in (*NO_RECORDS, "pure noise"),
                }
                if of.prompt and len(columns) == 1:
                    asked = by_task, study.scores.get(Setting("zero-shot"), {})
                    both = [[score[place] for score, _ in one[columns[0]]] for one in asked if one]
                    row |= _sureness(*both)
                yield row


def _mean(scores: np.ndarray) -> float:
    counted = scores[~np.isnan(scores)]
    return float(counted.mean()) if len(counted) else float("nan")


def _prompt(model: VisionLanguageModel, task: BenchmarkTask) -> str:
    """The hash of the format; of official data sets also the prompt's name and whole text."""
    format = model.prompt_template_sha256[:12]
    return f"{format}; {task.prompt}\n{model.instruction}".strip() if task.prompt else format


def _sureness(scores: Sequence[np.ndarray], zero: Sequence[np.ndarray] = ()) -> Row:
    """The interval over questions, and the p-value against zero-shot where that was asked.

    The p-value is of the questions that count in every draw of both.
    """
    p = None
    if zero:
        mean, other = np.mean(scores, axis=0), np.mean(zero, axis=0)
        both = ~np.isnan(mean) & ~np.isnan(other)
        p = paired_p(mean[both], other[both])
    return {"interval": list(bootstrap_interval(np.array(scores))), "p": p}


def _gain(value: float, low: float | None, high: float | None) -> float | None:
    """(x − zero-shot) / (vector without noise − zero-shot), on the same tasks."""
    if low is None or high is None or high <= low:
        return None
    return (value - low) / (high - low)


def evaluate_vector(
    model: VisionLanguageModel,
    vector: TaskVector,
    task: BenchmarkTask,
    *,
    command: str,
) -> list[Row]:
    """Rows of zero-shot and of the vector. Using a vector costs no further privacy.

    Args:
        model: the model the vector was made for.
        vector: the released vector.
        task: queries with wanted answers, and how they are scored.
        command: what reproduces the rows.
    """
    queries = model.prepare([r.query for r in task.test])
    most = max(task.tokens, model.max_new_tokens)
    zero = outcomes(task.metrics, model.generate(queries, most), task.test, task.seen)
    with vector.applied(model):
        patched = outcomes(task.metrics, model.generate(queries, most), task.test, task.seen)
    privacy = vector.certificate.privacy
    noiseless = privacy.delta is None
    common = {
        "table": "vector",
        "task": task.name,
        "draws": 1,
        "n_test": len(task.test),
        "se": None,
        "gain": None,
        "chance": None,
        "in_words": None,
        "model": model.identity.id or model.identity.architecture,
        "prompt": _prompt(model, task),
        "command": command,
    }
    absent = dict.fromkeys(("geometry", "relation", "epsilon", "delta", "records", "m"))
    without = {**absent, "method": "zero-shot", "K": 0, "coordinates": 0, "private": True}
    released = {
        "method": "task vector" if noiseless else "dp-mtv",
        "geometry": None,
        "relation": None if noiseless else str(privacy.relation),
        "epsilon": None if noiseless else privacy.epsilon,
        "delta": privacy.delta,
        "records": privacy.chunks * (privacy.shots + (privacy.query == "private")),
        "m": privacy.chunks,
        "K": privacy.shots,
        "coordinates": sum(privacy.block_sizes),
        "private": not noiseless,
    }
    rows = []
    for place, metric in enumerate(task.metrics):
        for what, scores in ((without, zero[place]), (released, patched[place])):
            if np.isnan(scores).all():
                continue
            row = {**common, **what, "metric": metric.name, "mean": _mean(scores)}
            if task.prompt:
                row |= _sureness([scores], [zero[place]])
            rows.append(row)
    return rows
