"""What was measured, as rows that name all that made them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dpmtv.evaluation.metrics import EXACT_MATCH, exact_match
from dpmtv.evaluation.settings import MEAN, NO_RECORDS, Setting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dpmtv.artifact import TaskVector
    from dpmtv.evaluation.runner import Study
    from dpmtv.models.adapters import VisionLanguageModel
    from dpmtv.types import Demonstration

    Row = dict[str, Any]


def result_rows(study: Study, name: str, command: str) -> Iterator[Row]:
    """One row for each setting and task, and for each mean of tasks."""
    s, benchmark = study.settings, study.benchmark
    groups = {task.name: [task.name] for task in benchmark.tasks}
    several = len({task.group for task in benchmark.tasks}) > 1
    for task in benchmark.tasks:
        if task.group and several:
            groups.setdefault(f"{MEAN} of {task.group}", []).append(task.name)
    groups[MEAN] = [task.name for task in benchmark.tasks]
    best = max(
        (k for k in study.scores if k.method == "task vector"), key=lambda k: k.m or 0, default=None
    )

    def baseline(setting: Setting | None, tasks: Sequence[str]) -> float | None:
        if setting not in study.scores:
            return None
        return float(np.mean([np.mean(study.scores[setting][t], axis=0)[0] for t in tasks]))

    for setting, by_task in list(study.scores.items()):
        for place, tasks in groups.items():
            columns = [t for t in tasks if by_task[t]]
            if not columns:
                continue
            values, known = np.mean([by_task[t] for t in columns], axis=0).T
            zero, high = baseline(Setting("zero-shot"), columns), baseline(best, columns)
            yield {
                "table": f"benchmark, patched {s.patch}",
                "task": place,
                "method": setting.method,
                "geometry": setting.geometry,
                "relation": setting.relation,
                "epsilon": setting.epsilon,
                "delta": None if setting.epsilon is None else s.delta,
                "records": setting.records,
                "m": setting.m,
                "K": setting.K,
                "coordinates": setting.coordinates,
                "draws": len(values),
                "n_test": s.n_test,
                "mean": float(np.mean(values)),
                "se": float(np.std(values, ddof=1) / np.sqrt(len(values)))
                if len(values) > 1
                else None,
                "gain": _gain(float(np.mean(values)), zero, high),
                "chance": float(np.mean([1 / len(study.words[t]) for t in columns])),
                "in_words": float(np.mean(known)),
                "metric": EXACT_MATCH,
                "model": name,
                "prompt": study.model.prompt_template_sha256[:12],
                "command": command,
                "private": setting.epsilon is not None
                or setting.method in (*NO_RECORDS, "pure noise"),
            }


def _gain(value: float, low: float | None, high: float | None) -> float | None:
    """(x − zero-shot) / (vector without noise − zero-shot), on the same tasks."""
    if low is None or high is None or high <= low:
        return None
    return (value - low) / (high - low)


def evaluate_vector(
    model: VisionLanguageModel,
    vector: TaskVector,
    test: Sequence[Demonstration],
    *,
    command: str,
) -> list[Row]:
    """Two rows: zero-shot, and with the vector. Using a vector costs no further privacy.

    Args:
        model: the model the vector was made for.
        vector: the released vector.
        test: queries with wanted answers.
        command: what reproduces the rows.
    """
    queries = model.prepare([r.query for r in test])
    wanted = [r.accepted or r.answer for r in test]
    zero = exact_match(model.generate(queries), wanted)
    with vector.applied(model):
        patched = exact_match(model.generate(queries), wanted)
    privacy = vector.certificate.privacy
    noiseless = privacy.delta is None
    common = {
        "table": "vector",
        "task": "test file",
        "draws": 1,
        "n_test": len(test),
        "se": None,
        "gain": None,
        "chance": None,
        "in_words": None,
        "metric": EXACT_MATCH,
        "model": model.identity.id or model.identity.architecture,
        "prompt": model.prompt_template_sha256[:12],
        "command": command,
    }
    absent = dict.fromkeys(("geometry", "relation", "epsilon", "delta", "records", "m"))
    return [
        {**common, **absent, "method": "zero-shot", "K": 0, "coordinates": 0}
        | {"mean": zero, "private": True},
        {
            **common,
            "method": "task vector" if noiseless else "dp-mtv",
            "geometry": None,
            "relation": None if noiseless else str(privacy.relation),
            "epsilon": None if noiseless else privacy.epsilon,
            "delta": privacy.delta,
            "records": (privacy.chunks + (privacy.voting_chunks or 0))
            * (privacy.shots + (privacy.query == "private")),
            "m": privacy.chunks,
            "K": privacy.shots,
            "coordinates": sum(privacy.block_sizes),
            "mean": patched,
            "private": not noiseless,
        },
    ]
