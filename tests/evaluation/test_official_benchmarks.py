"""Each of the eight public data sets: read, built on, and evaluated, in little."""

from __future__ import annotations

import json
import pickle
import shlex
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dpmtv import cli
from dpmtv.data.benchmark_files import FLOWERS
from dpmtv.data.benchmarks import PROMPTS, SETS, read_set
from dpmtv.data.images import load_image
from dpmtv.errors import DataError, UserError
from dpmtv.evaluation import study
from dpmtv.evaluation.benchmark import (
    BenchmarkTask,
    asked_of,
    load_benchmark,
    load_official,
    official_name,
)
from dpmtv.evaluation.official_metrics import OFFICIAL, outcomes
from dpmtv.evaluation.runner import evaluate_benchmark
from dpmtv.evaluation.settings import Settings
from dpmtv.pipeline import build_task_vector
from dpmtv.types import Demonstration

from .official_files import COLOURS, MAKERS, draw, hub_copy, triples, vizwiz

SIZES = {  # private, public, test
    "vizwiz": (36, 4, 8),
    "vqa-rad": (26, 4, 8),  # whole pictures, two questions each
    "path-vqa": (20, 8, 8),
    "ok-vqa": (36, 4, 8),
    "textvqa": (36, 4, 8),
    "flowers102": (20, 8, 8),
    "cub-200": (36, 4, 8),
    "dtd": (20, 8, 8),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}
    for name, make in MAKERS.items():
        made[name] = tmp_path_factory.mktemp(name)
        make(made[name])
    return made


def test_all_eight_are_there():
    assert list(MAKERS) == list(SETS) == list(SIZES)
    assert len(FLOWERS) == len({*FLOWERS}) == 102


@pytest.mark.parametrize("name", SETS)
def test_official_files_give_three_parts(folders, name):
    parts = read_set(name, folders[name])
    assert (len(parts.private), len(parts.public), len(parts.test)) == SIZES[name]
    for record in (*parts.private, *parts.public, *(e.record for e in parts.test)):
        load_image(record.image)
        assert record.unit
    assert {r.unit for r in parts.private}.isdisjoint({r.unit for r in parts.public})
    assert {r.task for r in parts.public} == {name}
    assert {r.task for r in parts.private} == {None}
    assert PROMPTS[parts.prompt].split("{")[0] in parts.private[0].question


def test_vizwiz_keeps_ten_answers_with_their_confidences_and_shows_the_majority(folders):
    parts = read_set("vizwiz", folders["vizwiz"])
    example = parts.test[0]
    assert [len(e.seen) for e in parts.test] == [10] * 8
    assert set(example.seen[0]) == {"answer", "answer_confidence"}
    assert example.record.answer in COLOURS
    assert set(example.record.accepted) == {example.record.answer, "unanswerable", "café au lait"}
    assert example.record.question == (
        "What colour is it?\nIf the question can not be answered, respond unanswerable."
    )


def test_ok_vqa_joins_by_question_id(folders):
    for example in read_set("ok-vqa", folders["ok-vqa"]).test:
        number = int(Path(str(example.record.image)).stem.rpartition("_")[2])
        assert example.record.answer == COLOURS[(number - 51606) % 4]
        assert example.seen[0]["answer_id"] == 1


def test_textvqa_keeps_its_blank_answers_for_the_evaluator_alone(folders):
    example = read_set("textvqa", folders["textvqa"]).test[0]
    assert Counter(example.seen)[""] == 1
    assert len(example.seen) == 10
    assert "" not in example.record.accepted


@pytest.mark.parametrize("name", ["vqa-rad", "path-vqa"])
def test_medical_records_name_their_picture_and_whether_they_are_closed(folders, name):
    parts = read_set(name, folders[name])
    assert Counter(e.seen for e in parts.test) == {"CLOSED": 4, "OPEN": 4}
    for example in parts.test:
        assert (example.record.answer.lower() in ("yes", "no")) == (example.seen == "CLOSED")
        assert example.record.answer == example.record.answer.strip()
    assert set(Counter(r.unit for r in parts.private).values()) == {2}
    alone = read_set(name, folders[name], one_a_picture=True)
    assert len(alone.private) == len({r.unit for r in parts.private}) == len(parts.private) / 2


def test_classes_become_two_options_in_a_fixed_order(folders):
    parts = read_set("flowers102", folders["flowers102"])
    again = read_set("flowers102", folders["flowers102"])
    assert parts == again
    assert {r.answer for r in parts.private} == {"A", "B"}
    for example in parts.test:
        a, b = example.seen
        assert a != b
        assert example.record.question == PROMPTS["two options"].format(kind="flower", a=a, b=b)
        number = int(str(example.record.image)[-9:-4])
        assert example.seen["AB".index(example.record.answer)] == FLOWERS[(number - 1) % 4]


def test_names_of_classes_are_read_as_words(folders):
    seen = {name for e in read_set("cub-200", folders["cub-200"]).test for name in e.seen}
    assert seen <= {f"{c.title()} breasted Disc" for c in COLOURS}
    seen = {name for e in read_set("dtd", folders["dtd"]).test for name in e.seen}
    assert seen <= {"polka-dotted", "banded", "zigzagged", "woven"}


def test_mtvs_triples_are_read_where_they_are(tmp_path):
    parts = read_set("flowers102", triples(tmp_path))
    assert (parts.prompt, len(parts.test)) == ("two options, one shot", 6)
    for example in parts.test:
        shown, against, query = (int(str(i)[-9:-4]) for i in example.record.images)
        right = "AB".index(example.record.answer)
        assert (shown, against)[right] % 4 == query % 4 != (shown, against)[1 - right] % 4
        assert example.seen == (COLOURS[shown % 4], COLOURS[against % 4])


@pytest.mark.parametrize("name", SETS)
def test_copies_from_the_hub_are_read_too(tmp_path, name):
    parts = read_set(name, hub_copy(name, tmp_path))
    pictures = [{r.unit for r in part} for part in (parts.private, parts.public)]
    pictures.append({e.record.unit for e in parts.test})
    assert pictures[0].isdisjoint(pictures[1])
    if name in ("vizwiz", "ok-vqa"):  # one split, cut in three
        assert pictures[2].isdisjoint(pictures[0] | pictures[1])
        assert sum(map(len, (parts.private, parts.public, parts.test))) == 40
    load_image(parts.test[0].record.image)
    if SETS[name].metrics == "vqa":
        assert parts.test[0].seen == [parts.test[0].record.answer] * 10
    if name == "cub-200":
        assert set(parts.test[0].seen) <= {"A Bird", "B Bird", "C Bird", "D Bird"}


@pytest.mark.parametrize("name", SETS)
def test_a_hub_id_is_loaded_by_the_library_with_its_revision(tmp_path, name, monkeypatch):
    import datasets

    saved, asked = hub_copy(name, tmp_path), []

    def load_dataset(wanted: str, revision: str | None) -> datasets.DatasetDict:
        asked.append((wanted, revision))
        return datasets.load_from_disk(str(saved))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    found, same = read_set(name, f"hf://{SETS[name].hub}@v1"), read_set(name, saved)
    assert set(asked) == {(SETS[name].hub, "v1")}
    for part in ("private", "public"):
        assert [(r.question, r.answer, r.unit) for r in getattr(found, part)] == [
            (r.question, r.answer, r.unit) for r in getattr(same, part)
        ]
    assert [e.seen for e in found.test] == [e.seen for e in same.test]
    load_image(found.test[0].record.image)


@pytest.fixture(scope="module")
def rows(model, folders):
    settings = Settings(
        methods=("zero-shot", "in-context", "task vector", "dp-mtv"),
        geometries=("selected",),
        relations=("replace_one",),
        epsilons=(8.0,),
        chunks=(3,),
        shots=1,
        draws=2,
        n_test=6,
        search_steps=3,
        patch="prompt",
    )
    made = {}
    for name in SETS:
        benchmark = load_official([(name, str(folders[name]))], n_test=6)
        made[name] = evaluate_benchmark(model, benchmark, settings, name="embedded", command="c")[0]
    return made


@pytest.mark.parametrize("name", SETS)
def test_rows_carry_the_official_metric_and_the_repaired_one(rows, name):
    metrics = [metric.name for metric in OFFICIAL[SETS[name].metrics]]
    of = [row for row in rows[name] if row["task"] != "mean"]
    assert {row["task"].split(" (")[0] for row in of} == {name}
    assert list(dict.fromkeys(row["metric"] for row in of)) == metrics
    methods = Counter(row["method"] for row in of)
    assert set(methods) == {"zero-shot", "in-context", "task vector", "dp-mtv"}
    for row in of:
        low, high = row["interval"]
        assert 0 <= low <= row["mean"] <= high <= 1
        assert 0 < row["p"] <= 1
        assert PROMPTS[SETS[name].prompt] in row["prompt"]
        assert (row["method"] == "dp-mtv") == (row["epsilon"] == 8.0)
    json.dumps(rows[name], allow_nan=False)


def test_every_answer_is_scored_against_its_own_question(folders):
    benchmark = load_official([(name, str(folders[name])) for name in SETS])
    wanted = {r.query: r.answer for task in benchmark.tasks for r in task.test}
    for task in benchmark.tasks:
        right = [wanted[r.query] for r in task.test]
        assert np.nanmin(outcomes(task.metrics[:1], right, task.test, task.seen)) > 0.6
        wrong = outcomes(task.metrics, ["mauve"] * len(right), task.test, task.seen)
        assert np.nanmax(wrong) == 0


@pytest.mark.parametrize("name", SETS)
def test_a_vector_is_built_on_the_private_part_and_tested_by_name(
    model, folders, name, tmp_path, monkeypatch
):
    monkeypatch.setattr(cli.common, "_debug", False)
    (task,) = load_official([(name, str(folders[name]))]).tasks
    vector = build_task_vector(
        model,
        task.private,
        epsilon=8.0,
        delta=1e-3,
        public=task.same_rule,
        unit="picture",
        choice=0,
        shots=1,
        search_steps=3,
        ledger=tmp_path / "x.ledger",
    )
    vector.save_pretrained(tmp_path / "v")
    result = CliRunner().invoke(
        cli.app,
        ["evaluate", str(tmp_path / "v"), "--benchmark", f"{name}={folders[name]}", "--json"],
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [row["method"] for row in found][:2] == ["zero-shot", "dp-mtv"]
    assert {row["n_test"] for row in found} == {8}  # all
    assert found[0]["metric"] == OFFICIAL[SETS[name].metrics][0].name


def test_a_vector_is_asked_as_many_questions_as_told(folders, monkeypatch, tmp_path):
    monkeypatch.setattr(cli.common, "_debug", False)
    (tmp_path / "certificate.json").write_text("{}")
    seen = []
    monkeypatch.setattr(
        cli.evaluate, "_evaluate_vector", lambda _folder, tested, *_: seen.extend(tested) or []
    )
    (tmp_path / "t.jsonl").write_text(
        "".join(
            json.dumps({"image": str(r.image), "question": r.question, "answer": r.answer}) + "\n"
            for r in read_set("vqa-rad", folders["vqa-rad"]).private
        )
    )
    named = f"vqa-rad={folders['vqa-rad']}"
    for benchmark, options, count in (
        (named, "", 8),
        (named, "--n-test 3 --one-a-picture", 3),
        (str(tmp_path / "t.jsonl"), "", 26),
        (str(tmp_path / "t.jsonl"), "--n-test 3", 3),
    ):
        words = ["evaluate", str(tmp_path), "--benchmark", benchmark, "--json", *options.split()]
        result = CliRunner().invoke(cli.app, words)
        assert result.exit_code == 0, result.output
        assert len(seen.pop().test) == count
    result = CliRunner().invoke(cli.app, [*words, "--draws", "20", "--search-steps", "3"])
    assert result.exit_code == 2
    assert "--draws, --search-steps means nothing for a vector" in result.stderr


def test_a_release_knows_the_questions_where_they_are_the_task(monkeypatch):
    record = Demonstration("x.png", "What?", "yes")
    few = [replace(record, question=f"Is it {i % 16}?") for i in range(40)]
    asked = asked_of(BenchmarkTask("t", [record], few, []))
    assert asked == tuple(sorted(f"Is it {i}?" for i in range(16)))
    more = BenchmarkTask("t", [record], [*few, replace(record, question="And this?")], [])
    assert asked_of(more) == ()
    told = []
    monkeypatch.setattr(study, "public_queries", lambda _public, asked: told.append(asked) or [])
    monkeypatch.setattr(study, "public_values", lambda *_: None)
    study.chunk_pool(None, [record], more, 1, 1, "public")
    assert told == [()]
    assert all(asked_of(task) for task in load_benchmark("embedded").tasks)


def test_a_command_line_can_be_pasted(monkeypatch):
    words = ["a b", "$x y", 'say "no"', "it's", "(1)", "0.5,none", "", "back\\ slash"]
    monkeypatch.setattr(sys, "argv", ["dpmtv", *words])
    typed = cli.evaluate.as_typed()
    assert shlex.split(typed) == ["dpmtv", *words]
    assert typed.startswith('dpmtv "a b" ')


def test_the_command_measures_two_sets_side_by_side(folders, monkeypatch):
    monkeypatch.setattr(cli.common, "_debug", False)
    options = (
        "--methods zero-shot,dp-mtv --geometries selected --relations zero_out --epsilons 8 "
        "--chunks 3 --shots 1 --draws 1 --n-test 8 --search-steps 2 --patch prompt --public dtd"
    )
    named = [f"{name}={folders[name]}" for name in ("dtd", "vqa-rad")]
    words = ["evaluate", "embedded", "--benchmark", named[0], "--benchmark", named[1]]
    result = CliRunner().invoke(cli.app, [*words, "--one-a-picture", *options.split()])
    assert result.exit_code == 0, result.output
    assert "option letter, MTV as it runs" in result.stdout
    assert "open BLEU-1" in result.stdout
    assert "one question a picture" in " ".join(result.stdout.split())


def test_an_instruction_of_ones_own_stands_in_the_prompt_column(folders, monkeypatch):
    monkeypatch.setattr(cli.common, "_debug", False)
    words = ["evaluate", "embedded", "--benchmark", f"dtd={folders['dtd']}", "--n-test", "2"]
    words += ["--methods", "zero-shot", "--geometries", "private-only", "--draws", "1"]
    for given, last in ((["--instruction", "Be brief."], "Be brief."), (["--instruction", ""], "")):
        result = CliRunner().invoke(cli.app, [*words, "--search-steps", "1", "--json", *given])
        assert result.exit_code == 0, result.output
        prompt = json.loads(result.stdout)[0]["prompt"]
        assert prompt.endswith(f"directly.\n{last}".strip())


# --- what goes wrong -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--benchmark nosuch=/tmp", "NAME of vizwiz"),
        ("--benchmark vizwiz=/nowhere/at/all", "holds no"),
        ("--benchmark dtd={dtd} --benchmark dtd={dtd}", "named twice"),
        ("--benchmark dtd={dtd} --benchmark embedded", "alone"),
        ("--benchmark dtd={dtd} --public okvqa", "--public takes"),
        ("--benchmark dtd={dtd} --sealed", "--sealed"),
        ("--one-a-picture", "--one-a-picture"),
        ("--benchmark {dtd}", "write NAME=FOLDER"),
    ],
)
def test_mistakes_are_the_users_and_told(folders, monkeypatch, words, message):
    monkeypatch.setattr(cli.common, "_debug", False)
    given = words.format(dtd=folders["dtd"]).split()
    result = CliRunner().invoke(cli.app, ["evaluate", "embedded", *given])
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_folder_with_an_equals_sign_is_still_a_folder(tmp_path, monkeypatch):
    (tmp_path / "dtd=x").mkdir()
    monkeypatch.chdir(tmp_path)
    assert official_name("dtd=x") is None
    assert official_name("dtd=y") == ("dtd", "y")
    with pytest.raises(UserError):
        official_name("flowers=y")


def test_bad_rows_are_counted_and_named(tmp_path):
    vizwiz(tmp_path)
    path = tmp_path / "Annotations/val.json"
    records = json.loads(path.read_text("utf-8"))
    records[0] = 7
    records[1]["answers"] = []
    (tmp_path / "val" / records[2]["image"]).unlink()
    path.write_text(json.dumps(records), encoding="utf-8")
    with pytest.raises(
        DataError,
        match=r"VizWiz, val has 3 bad rows: row 1 \(not an object\), row 2 \(no answer\), row 3",
    ):
        read_set("vizwiz", tmp_path)


class _Evil:
    def __reduce__(self):
        return (Path.touch, (Path("/tmp/dpmtv-was-here"),))


@pytest.mark.parametrize("content", [pickle.dumps([_Evil()]), b"\x80", pickle.dumps({"a": 1})])
def test_a_pickle_that_is_more_than_plain_records_is_refused(tmp_path, content):
    (tmp_path / "test_qa.pkl").write_bytes(content)
    with pytest.raises(DataError, match="plain records"):
        read_set("path-vqa", tmp_path)
    assert not Path("/tmp/dpmtv-was-here").exists()


@pytest.mark.parametrize(
    ("name", "broken", "message"),
    [
        ("vizwiz", "val.json", "not the JSON list"),
        ("textvqa", "TextVQA_0.5.1_val.json", "not the JSON dict"),
        ("ok-vqa", "mscoco_val2014_annotations.json", "not the JSON dict"),
        ("vqa-rad", "VQA_RAD Dataset Public.json", "not the JSON list"),
        ("flowers102", "setid.mat", "MATLAB"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, broken, message):
    MAKERS[name](tmp_path)
    (path,) = tmp_path.rglob(broken)
    path.write_bytes(b"\x00damaged")
    with pytest.raises(DataError, match=message):
        read_set(name, tmp_path)


def test_two_files_of_one_name_are_not_guessed_between(tmp_path):
    draw(tmp_path / "a/x.jpg", 1)
    for inside in ("a", "b"):
        (tmp_path / inside).mkdir(exist_ok=True)
        (tmp_path / inside / "val.json").write_text("[]")
    with pytest.raises(DataError, match="several files val"):
        read_set("vizwiz", tmp_path)
    (tmp_path / "b/val.json").unlink()
    with pytest.raises(DataError, match="no records"):
        read_set("vizwiz", tmp_path)
