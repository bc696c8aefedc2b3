"""Generated public records: rules that hold, pictures that show them, nothing of the suite."""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path

import numpy as np
import pytest

import dpmtv
from conventions import BY_NAME, CLASSES, QUESTIONS, SUITE  # training/
from dpmtv.data import synthetic
from dpmtv.data.synthetic import FEWEST_WORDS, KINDS, synthetic_records
from dpmtv.errors import DataError
from dpmtv.evaluation.benchmark import EMBEDDED_DATA
from dpmtv.models import synthetic as fitted

ROOT = Path(dpmtv.__file__).parent
WORDS = [f"word{letter}" for letter in "abcdefghij"]


@pytest.fixture(scope="module")
def tasks():
    found: dict[str, list] = {}
    for record in synthetic_records(WORDS):
        found.setdefault(record.task, []).append(record)
    return found


def texts(records):
    return [(r.task, r.question, r.answer, r.image.tobytes()) for r in records]


def test_the_same_arguments_give_the_same_records():
    first, again, other = (
        texts(synthetic_records(words, tasks=4, records=6)) for words in (WORDS, WORDS, WORDS[::-1])
    )
    assert first == again
    assert first != other


def test_every_task_is_one_rule_and_the_kinds_take_turns(tasks):
    assert len(tasks) == synthetic.TASKS
    for number, (name, records) in enumerate(tasks.items()):
        assert len(records) == synthetic.RECORDS
        kind = KINDS[number % len(KINDS)]
        assert name.endswith(kind)
        answers, questions = {r.answer for r in records}, {r.question for r in records}
        assert {len(a.split()) for a in answers} == {2 if number % 5 == 4 else 1}
        assert {w for a in answers for w in a.split()} <= set(WORDS)
        if kind == "constant":
            assert len(answers) == 1
        elif kind == "asked":
            assert len(questions) == len(answers) == 2
            assert len({(r.question, r.answer) for r in records}) == 2
        else:
            assert len(answers) in (2, 3)
        counts = [sum(r.answer == a for r in records) for a in answers]
        assert max(counts) - min(counts) <= 1


def _middle(pixels: np.ndarray, axis: int) -> float:
    """Where what differs from the corner lies, along one axis."""
    differs = np.abs(pixels - pixels[:4, :4].mean((0, 1))).sum(2) > 90
    return float((differs.any(axis) * np.linspace(-1, 1, len(pixels))).sum())


def _covered(pixels: np.ndarray) -> float:
    return float((np.abs(pixels - pixels[:4, :4].mean((0, 1))).sum(2) > 90).mean())


def _rough(pixels: np.ndarray, axis: int) -> float:
    return float(np.abs(np.diff(pixels.mean(2), axis=axis)).mean())


def _object(pixels: np.ndarray) -> np.ndarray:
    """Where a plain object is, in its bounding box: how much of that it fills tells its form."""
    covered = np.abs(pixels - pixels[:4, :4].mean((0, 1))).sum(2) > 60
    rows, columns = np.flatnonzero(covered.any(1)), np.flatnonzero(covered.any(0))
    return covered[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _form(pixels: np.ndarray) -> int:
    """0 for a triangle, 1 for a circle, 2 for a rectangle."""
    return int(np.digitize(_object(pixels).mean(), (0.65, 0.9)))


def _color(pixels: np.ndarray) -> int:
    """Which of the generator's colours the object is nearest to."""
    differs = np.abs(pixels - pixels[:4, :4].mean((0, 1))).sum(2) > 60
    far = np.abs(np.array(synthetic._TONES) - np.median(pixels[differs], axis=0)).sum(1)
    assert far.min() < 90
    return int(far.argmin())


MEASURES = [
    lambda p: p.mean() > 128,
    lambda p: _middle(p, 0) > 0,
    lambda p: _middle(p, 1) > 0,
    lambda p: _covered(p) > 0.15,
    lambda p: np.abs(p[:4, :4].mean((0, 1)) - p[54:74, 54:74].mean((0, 1))).sum() < 60,
    lambda p: _rough(p, 1) > _rough(p, 0),
    lambda p: int(p.mean((0, 1)).argmax()),
    lambda p: p.std((0, 1)).max() > 15,
    lambda p: p[:, 64:].mean() > p[:, :64].mean(),
    *(_color, _form) * 4,
    lambda p: _form(p) == 1,
]


def test_what_a_seen_rule_follows_can_be_measured_in_the_picture(tasks):
    seen = [records for name, records in tasks.items() if name.endswith("seen")]
    assert len(seen) == len(MEASURES)
    for measure, records in zip(MEASURES, seen, strict=True):
        pixels = [np.asarray(r.image, dtype=float) for r in records]
        assert {p.shape for p in pixels} == {(128, 128, 3)}
        rule = {(int(measure(p)), r.answer) for p, r in zip(pixels, records, strict=True)}
        assert len(rule) == len({a for _, a in rule}) == len({v for v, _ in rule}), records[0]


def test_every_attribute_serves_and_is_asked_in_two_ways(tasks):
    assert len(tasks) == len(KINDS) * len(synthetic._ATTRIBUTES)
    seen = [records for name, records in tasks.items() if name.endswith("seen")]
    for attribute, records in zip(synthetic._ATTRIBUTES, seen, strict=True):
        assert {r.question for r in records} == set(attribute.questions)
        assert len({r.answer for r in records}) == attribute.values
        assert len({r.image.tobytes() for r in records}) == len(records)


def test_too_few_words_are_refused():
    assert synthetic_records(WORDS[:FEWEST_WORDS], records=3)
    with pytest.raises(DataError, match="6 different words"):
        synthetic_records(WORDS[:5] * 2)


def imported(path: Path) -> set[str]:
    """The package's modules that a file imports, and theirs."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in (n for n in names if n.startswith("dpmtv.")):
            for module in (name, name.rpartition(".")[0]):
                file = ROOT.parent / (module.replace(".", "/") + ".py")
                if file.is_file():
                    found |= {module} | imported(file)
    return found


def test_the_generator_stands_on_plain_types_alone():
    assert imported(ROOT / "data" / "synthetic.py") == {"dpmtv.errors", "dpmtv.types"}


@pytest.fixture(scope="module")
def asked():
    """Every question of the suite, as the files have it and as it was trained."""
    files = EMBEDDED_DATA.rglob("*.jsonl")
    lines = [line for f in files for line in f.read_text("utf-8").splitlines()]
    return {json.loads(line)["question"] for line in lines} | {
        q for family in QUESTIONS.values() for q in family
    }


@pytest.mark.parametrize("module", [synthetic, fitted], ids=["generator", "fitting"])
def test_nothing_of_the_suite_is_written_into_it(module, asked):
    source = inspect.getsource(module)
    assert len(asked) > 10
    assert not [q for q in asked if q.strip(" ?").lower() in source.lower()]
    answers = {a for c in BY_NAME.values() for a in c.answers}
    answers |= {a for task in SUITE for rule in task.rules for a in rule.answers}
    strings = {
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert not strings & (answers | set(CLASSES))
    for room in ("embedded", "training", "conventions"):
        assert room not in source
