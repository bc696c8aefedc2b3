"""The paper's tables in little: each data set, the paper's model families, resume, files, costs."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.models.families import make
from typer.testing import CliRunner

from dpmtv import cli
from dpmtv.data.benchmarks import SETS
from dpmtv.evaluation import benchmark as benchmarks
from dpmtv.evaluation import reproduce
from dpmtv.evaluation.benchmark import BenchmarkTask, load_official
from dpmtv.evaluation.costs import (
    PAPER_MODELS,
    PAPER_SETS,
    cell_cost,
    hours_page,
    measured_sizes,
    paper_hours,
    paper_sizes,
    pool_cost,
    public_cost,
    total_cost,
)
from dpmtv.evaluation.official_metrics import OFFICIAL
from dpmtv.evaluation.paper_tables import DEFAULT, LINES, TABLES, VALUES, cells
from dpmtv.evaluation.published import (
    MODELS,
    PUBLISHED,
    Published,
    figure,
    read_published,
)
from dpmtv.evaluation.table_files import COLUMNS
from dpmtv.models import atoms
from dpmtv.models.adapters import load_model

from .official_files import MAKERS, hub_copy, triples

DOCS = Path(__file__).parents[2] / "docs"
SMALL = ["--chunks", "2", "--shots", "1", "--draws", "1", "--n-test", "4", "--search-steps", "2"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {name: tmp_path_factory.mktemp(name) for name in MAKERS}
    for name, make_set in MAKERS.items():
        make_set(made[name])
    return made


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make("idefics2", tmp_path_factory.mktemp("models") / "idefics2")


@pytest.fixture(autouse=True)
def _in_little(monkeypatch):
    """Two values a table, and few words where the default release is decoded."""
    monkeypatch.setattr(cli.common, "_debug", False)
    monkeypatch.setattr(atoms, "rule_atoms", partial(atoms.rule_atoms, most_passes=64))
    for table, values in VALUES.items():
        monkeypatch.setitem(VALUES, table, values[1:3])
    monkeypatch.setitem(VALUES, "chunks", (("m = 2", {"chunks": (2,)}), VALUES["chunks"][-1]))


@pytest.fixture
def run(tmp_path):
    def invoke(*words: object, code: int = 0, small: bool = True):
        given = ["reproduce", *map(str, words), *(SMALL if small else ())]
        result = CliRunner().invoke(cli.app, [*given, "-o", str(tmp_path / "out")])
        assert result.exit_code == code, result.output
        return result

    return invoke


@pytest.fixture
def measured(monkeypatch):
    """What was measured: the settings of each study."""
    seen, real = [], reproduce.measure

    def measure(study, progress):
        seen.append(study.settings)
        if len(seen) == measure.stop_at:
            raise KeyboardInterrupt
        real(study, progress)

    measure.stop_at = None
    monkeypatch.setattr(reproduce, "measure", measure)
    return seen, measure


# --- every data set, every family -----------------------------------------------------------


@pytest.mark.parametrize("name", SETS)
def test_each_of_the_eight_is_reproduced(name, folders, tiny, run, tmp_path):
    words = ("--benchmark", f"{name}={folders[name]}", "--model", tiny, "--table", "clip")
    rows = json.loads(run(*words, *SMALL, "--n-test", 8, "--json", small=False).stdout)
    metrics = [metric.name for metric in OFFICIAL[SETS[name].metrics]]
    assert list(dict.fromkeys(r["metric"] for r in rows)) == metrics
    leading = [r for r in rows if r["metric"] == metrics[0]]
    assert [(r["line"], r["value"]) for r in leading] == [
        ("zero-shot", ""),
        ("task vector, no noise (MTV)", ""),
        *(
            (f"DP-MTV, {relation}", f"clip × {clip}")
            for relation in ("zero_out", "replace_one")
            for clip in ("0.5", "1")
        ),
    ]
    for row in leading:
        assert 0 <= row["mean"] <= 1
        assert row["tokens"] > 0
        assert row["n_test"] == 8
        assert 0 < row["p"] <= 1
        assert row["private"] is (row["method"] != "task vector")
    assert "clip norms × 0.5" in leading[2]["geometry"]
    assert leading[3]["public_tokens"] > 0
    with (tmp_path / "out/clip.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == list(COLUMNS)
    assert [float(r["mean"]) for r in table] == [r["mean"] for r in rows]


@pytest.mark.parametrize("family", MODELS)
def test_the_main_table_of_the_papers_families(family, folders, run, tmp_path):
    model = make(family, tmp_path / family)
    words = ("--benchmark", f"vizwiz={folders['vizwiz']}", "--model", model)
    shown = " ".join(run(*words).stdout.split())
    rows = json.loads((tmp_path / "out/main.json").read_text("utf-8"))
    assert {r["metric"] for r in rows} == {m.name for m in OFFICIAL["vqa"]}
    first = [r for r in rows if r["metric"] == rows[0]["metric"]]
    assert [r["line"] for r in first] == [line.label for line in LINES["main"]]
    assert [r["private"] for r in first] == [True, False, False, *[True] * 8]
    assert {r["records"] for r in first[2:]} == {4}  # the same for all
    zero = figure(PUBLISHED, "vizwiz", MODELS[family], "zero-shot")
    for row in rows:  # beside both figures, since the papers' annotations are not known
        is_zero = row["line"] == "zero-shot"
        assert row["published"] == (zero.accuracy / 100 if is_zero else None)
        assert ("2406.15334" in row["published_source"]) is is_zero
    assert f" {zero.accuracy} " in shown
    assert "model not stated: vizwiz, dp-mtv, ε = 1: 50.4 %, 77 % of the gain" in shown
    assert "respond unanswerable" in rows[0]["prompt"]
    tex = (tmp_path / "out/main.tex").read_text("utf-8")
    assert f"zero-shot & 0.0 [{zero.accuracy}]" in tex or f"[{zero.accuracy}]" in tex
    assert tex.count("{") == tex.count("}")
    assert not {"ε", "δ", "×", "±", "†"} & set(tex)
    begun = [part.split("}")[0] for part in tex.split("\\begin{tabular}{")[1:]]
    for columns, body in zip(begun, tex.split("\\midrule\n")[1:], strict=True):
        for line in body.split("\n\\bottomrule")[0].splitlines():
            assert line.count(" &") == len(columns) - 1
            assert line.endswith("\\\\")


def test_copies_of_the_hub_and_triples_are_named_apart(run, tiny, tmp_path):
    saved = hub_copy("textvqa", tmp_path / "hub")
    (tmp_path / "flowers").mkdir()
    triples(tmp_path / "flowers")
    words = ("--benchmark", f"textvqa={saved}", "--benchmark", f"flowers102={tmp_path}/flowers")
    found = run(
        *words, "--model", tiny, "--table", "clip", "--published-model", "Qwen-VL", "--json"
    )
    rows = json.loads(found.stdout)
    of = {r["benchmark"]: r for r in rows if r["method"] == "zero-shot"}
    assert set(of) == {"textvqa", "flowers102 triples"}
    last = [r for r in rows if r["benchmark"] == "flowers102 triples"]
    assert last[0]["published"] == 0.55  # of the 1-shot prompt, which the triples are
    assert last[1]["published"] is None


# --- cells -----------------------------------------------------------------------------------


def test_tables_share_their_cells():
    assert {*LINES} == {*VALUES} == {*TABLES}
    base = replace(DEFAULT, draws=3)
    found = {table: cells(table, base) for table in TABLES}
    bare = {
        cell.settings for of in found.values() for cell in of if cell.line.method == "zero-shot"
    }
    assert len(bare) == 1
    usual = next(c for c in found["main"] if c.line.label == "DP-MTV, zero_out")
    for table, value in (("shots", "K = 4"), ("clip", "clip × 1"), ("epsilon", "ε = 1")):
        same = [c.settings for c in found[table] if c.line == usual.line and c.value == value]
        assert same == [usual.settings]
    for cell in found["main"]:
        if cell.line.method in ("task vector", "dp-mtv"):
            assert cell.records == 500


def test_an_interrupted_run_goes_on_and_measures_only_the_rest(
    folders, tiny, run, measured, tmp_path
):
    seen, measure = measured
    words = ("--benchmark", f"dtd={folders['dtd']}", "--model", tiny, "--table", "clip")
    measure.stop_at = 4
    stopped = run(*words, code=130)
    assert "The same command goes on" in stopped.stderr
    kept = {p.name: p.read_bytes() for p in (tmp_path / "out/cells").iterdir()}
    assert len(kept) == 3
    broken = max((tmp_path / "out/cells").iterdir(), key=lambda p: p.stat().st_mtime_ns)
    kept.pop(broken.name)
    broken.write_text('["valid JSON", "but no cell"]')
    assert all(name.endswith(".json") for name in kept)
    assert not (tmp_path / "out/clip.csv").exists()
    measure.stop_at = None
    seen.clear()
    whole = run(*words)
    assert len(seen) == 4
    assert "2 of 6 cells were finished before" in whole.stderr
    again = {p.name: p.read_bytes() for p in (tmp_path / "out/cells").iterdir()}
    assert len(again) == 6
    assert kept.items() <= again.items()
    rows = json.loads((tmp_path / "out/clip.json").read_text("utf-8"))
    assert all(0 < r["p"] <= 1 for r in rows)  # against the zero-shot scores of the first run
    seen.clear()
    run(*words)
    assert seen == []


def test_whatever_decides_a_figure_makes_another_cell(folders, tiny, run, measured, tmp_path):
    seen, _ = measured
    MAKERS["vizwiz"](tmp_path / "vizwiz")
    words = ["--benchmark", f"vizwiz={tmp_path}/vizwiz", "--model", tiny, "--table", "clip"]
    run(*words)

    def new(*more: object) -> int:
        seen.clear()
        run(*words, *more)
        return len(seen)

    assert new() == 0
    assert new("--table", "clip", "--published-model", "Qwen-VL") == 0
    assert new("--delta", "1e-4") == 4  # all but zero-shot and the vector without noise
    assert new("--instruction", "") == 6
    annotations = tmp_path / "vizwiz/Annotations/train.json"
    annotations.write_text(annotations.read_text("utf-8").replace("colour", "color"), "utf-8")
    assert new() == 6
    moved = (tmp_path / "vizwiz").rename(tmp_path / "elsewhere")
    words[1] = f"vizwiz={moved}"
    assert new() == 0
    config = tiny / "generation_config.json"
    before = config.read_text("utf-8")
    try:
        config.write_text(before.replace("{", "{ ", 1), "utf-8")
        assert new() == 6  # other files of the model
    finally:
        config.write_text(before, "utf-8")


def test_a_set_that_is_too_small_says_so_in_its_cells(folders, tiny, run, tmp_path):
    words = ("--benchmark", f"dtd={folders['dtd']}", "--model", tiny, "--table", "chunks")
    shown = run(*words).stdout
    assert "too few records: has 20, needs 200" in shown
    assert "δ = 1e-05." in shown
    rows = json.loads((tmp_path / "out/chunks.json").read_text("utf-8"))
    empty = [r for r in rows if r["mean"] is None]
    assert {r["value"] for r in empty} == {"m = 100"}
    assert len(empty) == 5
    assert {r["note"] for r in empty} == {"too few records: has 20, needs 200"}
    assert all(r["mean"] is not None for r in rows if r not in empty)
    assert "{too few records}" in (tmp_path / "out/chunks.tex").read_text("utf-8")
    small = ("--benchmark", f"vizwiz={folders['vizwiz']}", "--model", tiny, "--table", "clip")
    rows = json.loads(run(*small, *SMALL, "--shots", "4", "--json", small=False).stdout)
    assert "too few public records: has 4, for chunks of 5" in {r["note"] for r in rows}


def test_a_delta_that_lets_a_record_out_says_so_in_its_cells():
    wanted = cells("main", replace(DEFAULT, chunks=(2,), shots=1, delta=0.25))
    task = BenchmarkTask("t", [None] * 4, [], [None] * 300)
    notes = {cell.line.method: reproduce.missing(task, cell) for cell in wanted}
    assert notes.pop("dp-mtv") == "delta is not below 1/records"
    assert {*notes.values()} == {""}
    wanted = cells("main", replace(DEFAULT, chunks=(2,), shots=1, delta=0.2))
    assert {reproduce.missing(task, cell) for cell in wanted} == {""}


def test_the_epsilon_table_measures_no_noise_once(folders, tiny, run, measured, monkeypatch):
    seen, _ = measured
    none = ("no noise", {"epsilons": (None,)})
    monkeypatch.setitem(VALUES, "epsilon", (VALUES["epsilon"][0], none))
    words = ("--benchmark", f"dtd={folders['dtd']}", "--model", tiny, "--table", "epsilon")
    rows = json.loads(run(*words, "--json").stdout)
    bare = [r for r in rows if r["value"] == "no noise" and r["metric"] == rows[0]["metric"]]
    assert [r["line"].split(",")[0] for r in bare] == ["DP-MTV"] * 2 + ["dpmtv default"] * 2
    assert {(r["epsilon"], r["relation"], r["private"]) for r in bare} == {(None, None, False)}
    assert len(seen) == 2 + 4 + 2


def test_gains_are_of_the_vector_in_the_same_column():
    def row(method: str, mean: float | None, value: str = "") -> dict:
        return {"method": method, "mean": mean, "value": value}

    zero, one, two = (
        row("zero-shot", 0.3),
        row("task vector", 0.4, "m = 1"),
        row("task vector", 0.5, "m = 2"),
    )
    rows = [zero, one, two]
    assert reproduce._gain(row("dp-mtv", 0.35, "m = 1"), rows) == pytest.approx(0.5)
    assert reproduce._gain(row("dp-mtv", 0.35, "m = 2"), rows) == pytest.approx(0.25)
    only = [zero, row("task vector", 0.5)]
    assert reproduce._gain(row("dp-mtv", 0.35, "ε = 1"), only) == pytest.approx(0.25)
    assert reproduce._gain(zero, rows) is None
    assert reproduce._gain(row("dp-mtv", None, "m = 1"), rows) is None
    assert reproduce._gain(row("dp-mtv", 0.35, "m = 1"), [zero, row("task vector", 0.2)]) is None
    assert reproduce._gain(row("dp-mtv", 0.35), [zero, row("task vector", None)]) is None


# --- published figures ------------------------------------------------------------------------


def test_figures_of_a_file_stand_beside_ours(folders, tiny, run, tmp_path, monkeypatch):
    path = tmp_path / "mine.csv"
    path.write_text(
        "benchmark,model,method,epsilon,accuracy,source\n"
        "vizwiz,Mine,zero-shot,,30,table 1\nvizwiz,Mine,task vector,,50,table 1\n"
        "vizwiz,Mine,dp-mtv,1,45,table 1\nvizwiz,Qwen-VL,zero-shot,,36,table 9\n"
    )
    given = ("--published", path, "--published-model", "Mine")
    words = ("--benchmark", f"vizwiz={folders['vizwiz']}", "--model", tiny, *given)
    monkeypatch.setitem(LINES, "main", LINES["main"][:5])
    found = run(*words, "--json")
    assert "no line of this table uses: vizwiz, Qwen-VL, zero-shot: 36 %\n" in found.stderr
    rows = json.loads(found.stdout)
    of = {r["line"]: r for r in rows}
    assert of["DP-MTV, zero_out"]["published"] == 0.45
    assert of["DP-MTV, zero_out"]["published_gain"] == pytest.approx(0.75)
    assert of["DP-MTV, replace_one"]["published"] is None
    read = read_published(path)
    assert figure(read, "vizwiz", "Qwen-VL", "zero-shot").accuracy == 36
    assert len(read) == len(PUBLISHED) + 3


def test_an_unknown_model_has_no_published_figures(folders, run):
    words = ("--benchmark", f"dtd={folders['dtd']}", "--model", "embedded", "--table", "clip")
    assert "No published figure is known for this model" in run(*words).stdout


def test_where_a_published_figure_belongs():
    def name(table: str, label: str, **changed: object) -> list[str]:
        of = [c for c in cells(table, replace(DEFAULT, **changed)) if c.line.label == label]
        return [reproduce._published_method(table, cell) for cell in of]

    vector = "task vector, no noise (MTV)"
    assert name("main", vector) == ["task vector"]
    assert name("main", vector, shots=25) == ["task vector 25x100"]
    assert name("shots", "in-context demonstrations") == ["2-shot", "4-shot"]
    assert name("epsilon", "DP-MTV, zero_out") == ["dp-mtv"] * 2
    assert name("clip", "DP-MTV, zero_out") == [""] * 2  # its clip norm is not stated
    assert name("main", "dpmtv default, zero_out") == [""]
    assert Published("a", "b", "c", None, 1.0, "s").epsilon is None


# --- costs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [0, 16])
def test_the_dry_run_says_what_is_counted_when_it_runs(folders, tiny, tmp_path, known, monkeypatch):
    monkeypatch.setattr(benchmarks, "KNOWN_QUESTIONS", known)
    model = load_model(tiny)
    benchmark = load_official([("vizwiz", str(folders["vizwiz"]))], n_test=6)
    base = replace(DEFAULT, chunks=(3,), shots=2, draws=2, n_test=6, search_steps=3)
    sizes = measured_sizes(model, benchmark.tasks[0])
    for cell in cells("main", base):
        if cell.line.geometry == "default":
            continue  # an upper bound: as if thousands of words were shown
        alone = reproduce.Reproduction(model, "vizwiz", benchmark, tmp_path / cell.line.label, "m")
        found = alone.run(cell, None)
        said = cell_cost(cell, sizes) + pool_cost(cell, sizes)
        assert found["tokens"] == pytest.approx(said.tokens, rel=0.12), cell.line.label
        assert found["public_tokens"] == pytest.approx(public_cost(cell, sizes).tokens, rel=0.15)


@pytest.mark.parametrize("assumed", [(), ("--tokens-per-picture", "64")])
def test_a_dry_run_runs_nothing(folders, tiny, run, measured, tmp_path, assumed):
    model = tmp_path / "no such model" if assumed else tiny
    words = ("--benchmark", f"dtd={folders['dtd']}", "--model", model, "--dry-run", *assumed)
    rows = json.loads(run(*words, "--json", "--table", "chunks").stdout)
    assert measured[0] == []
    assert not (tmp_path / "out").exists()
    *cells_of, together = rows
    assert [r["note"] for r in cells_of].count("too few records: has 20, needs 200") == 5
    fitting = [r["tokens"] for r in cells_of if not r["note"]]
    assert together["tokens"] > sum(fitting)
    assert "GPU hours" in run(*words).stdout


def test_what_cells_share_is_counted_once(monkeypatch):
    monkeypatch.undo()
    n = paper_sizes("vizwiz", "ViLA-1.5")
    wanted = cells("main", DEFAULT)
    by_label = {cell.line.label: cell for cell in wanted}
    alone = sum(cell_cost(cell, n).tokens for cell in wanted)
    for label in ("DP-MTV, zero_out", "dpmtv default, zero_out"):
        assert pool_cost(by_label[label], n).tokens > 0
        alone += (pool_cost(by_label[label], n) + public_cost(by_label[label], n)).tokens
    assert total_cost(wanted, n).tokens == pytest.approx(alone)
    # The sums of docs/reproduce.md, by hand: 246 tokens a question, 250 a demonstration.
    assert cell_cost(by_label["zero-shot"], n).tokens == 500 * (246 + 9)
    assert pool_cost(by_label["DP-MTV, zero_out"], n).tokens == 5 * 400 * (246 + 4 * 250)
    assert pool_cost(by_label["dpmtv default, zero_out"], n).tokens == 10_000 * 4 * (246 + 250)
    search = 20 * (201 * 246 + 200 * 32 * 4 + 2 * (246 + 8))
    assert cell_cost(by_label["DP-MTV, zero_out"], n).tokens == 20 * 500 * 255 + search
    hours = paper_hours("vizwiz", "ViLA-1.5", "main")
    page = (DOCS / "reproduce.md").read_text("utf-8")
    assert f"{alone / 1e6:.0f} million tokens: {hours:.1f} hours" in page


def test_the_pages_gpu_hours_are_the_functions(monkeypatch):
    monkeypatch.undo()
    page = (DOCS / "reproduce.md").read_text("utf-8")
    assert hours_page() in page
    assert len(hours_page().splitlines()) == 2 + 24 == 2 + len(PAPER_SETS) * len(PAPER_MODELS)
    assert {*PAPER_SETS} == {*SETS}
    assert {*PAPER_MODELS} == {*MODELS.values()}


# --- mistakes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--benchmark dtd={dtd} --model embedded --table all", "--table must be one of main"),
        ("--benchmark {dtd} --model embedded", "NAME=FOLDER"),
        ("--benchmark nosuch=x --model embedded", "NAME of vizwiz"),
        ("--benchmark dtd={dtd} --benchmark dtd={dtd} --model embedded", "once"),
        ("--benchmark dtd={dtd} --model embedded --tokens-per-picture 9", "--dry-run"),
        ("--benchmark dtd={dtd} --model /nowhere/at/all", "there is no folder /nowhere"),
        ("--benchmark dtd=/nowhere --model embedded --epsilon 0", "epsilon must be a positive"),
        ("--benchmark dtd=/nowhere --model embedded --delta 1", "delta must lie between"),
    ],
)
def test_mistakes_are_the_users_and_told(folders, run, words, message):
    given = words.format(dtd=folders["dtd"]).split()
    assert message in run(*given, code=2).stderr


def test_a_folder_that_cannot_be_used_is_refused_before_a_pass(
    folders, tiny, measured, tmp_path, monkeypatch
):
    monkeypatch.chdir(tiny)
    (tmp_path / "file").write_text("")
    (tmp_path / "half").mkdir()
    (tmp_path / "half/cells").write_text("")
    words = ["reproduce", "--benchmark", f"dtd={folders['dtd']}", "--model", "."]
    for given, named in (
        ([], f"reproduction-{tiny.name} lies in the model's folder"),
        (["-o", tiny / "out"], "lies in the model's folder"),
        (["-o", tmp_path / "file"], str(tmp_path / "file")),
        (["-o", tmp_path / "half"], str(tmp_path / "half/cells")),
        (["-o", "/proc/x"], "/proc/x cannot be written"),
    ):
        result = CliRunner().invoke(cli.app, [*words, *map(str, given)])
        assert result.exit_code == 2, result.output
        assert named in result.stderr
    assert measured[0] == []
    assert not any("reproduction" in path.name for path in tiny.iterdir())
