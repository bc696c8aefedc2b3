"""The accuracy tables of docs/results.md: run what is missing, then write tables and pictures.

    python benchmarks/results.py [--full] [--jobs N] [--again PART …] [--only [PART …]]

Each part is one `dpmtv evaluate` command on the sealed test; its rows go into docs/results.json as
they are, with a hash of the weights. A part whose rows are there, for these weights and by this
command, is not run again, so an interrupted run goes on where it stopped. Parts run side by side,
one thread each. `--only` without a name runs nothing and writes the page from the rows there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import equal_records
import scaling
from dpmtv.evaluation.report import plot_png
from dpmtv.evaluation.settings import GEOMETRIES
from dpmtv.models.loading import EMBEDDED

DOCS = Path(__file__).resolve().parent.parent / "docs"
Row = dict[str, Any]

SEALED = ("evaluate", "embedded", "--sealed", "--draws")
COMMON = (*SEALED, "20", "--json")
BASES = "zero-shot,in-context,task vector"
WORDS = "words listed,words enforced,words listed and enforced"
NOISY = "color-spanish-noisy,digit-dutch-noisy,presence-german-noisy,shape-french-noisy"
# For curves: some tasks of each kind that can be learned, named before anything was measured.
CURVE = (
    "digit-french,digit-phrase,color-gem-turned-2,shape-spanish,presence-english-turned-1,"
    "digit-dutch-noisy,presence-german-noisy,mixed-easy-vqa,"
    "parity-words,warmth-words,parity-pair,presence-pair"
)
FEWER = ("--tasks", CURVE, "--n-test", "50")
SHORT = (*FEWER, "--methods", "zero-shot,task vector,dp-mtv")
AT_ONE = ("--epsilons", "1")
# As in the paper: four demonstrations and a private query a chunk, a clip a layer.
CHUNKED = ("--geometries", "selected,all-heads")
SUITE: dict[str, str] = json.loads(
    (EMBEDDED.parent / "data" / "suite.json").read_text("utf-8")
)  # task → group
# On the unsealed test of these tasks the defaults were chosen.
CHOSEN_ON = (
    "digit-french,color-warmth,presence-french,parity-words,shape-spanish,mixed-easy-vqa,"
    "digit-phrase,presence-pair,warmth-words"
)
OTHERS = ",".join(task for task in SUITE if task not in CHOSEN_ON.split(","))
# Private questions about digits, public records about shapes alone.
DIGITS = "digit-french,digit-phrase,digit-dutch-noisy,parity-words,parity-pair"
SHAPES = (
    "color-english,color-light,color-planet,color-planet-turned-3,presence-truth,"
    "presence-truth-turned-1,round-public,round-sign,shape-german,shape-phrase,warmth-truth"
)
METHODS = ("--methods", "zero-shot,task vector,dp-mtv")
REPLACE = ("--relations", "replace_one")
BY_RECORDS = (*COMMON, "--n-test", "50", *METHODS)
DEFAULT = ("--geometries", "default", *REPLACE)
PAPERS = ("--geometries", "all-heads", *REPLACE)
PAPERS_K = {4: ("--shots", "4"), 1: ("--shots", "1")}
ALL_SIZES = ("--records", "50,100,250")
MODES = {
    "every-step": "Patched at the prompt's last token and at every decoding step",
    "prompt": "Patched at the prompt's last token alone",
}
PARTS = {
    "main, every-step": (*COMMON, *AT_ONE, "--methods", f"{BASES},dp-mtv,{WORDS}", *CHUNKED),
    "main, prompt": (
        *(*COMMON, *AT_ONE, "--patch", "prompt", "--methods", f"{BASES},dp-mtv"),
        *("--geometries", "selected", "--relations", "replace_one"),
    ),
    "noisy": (
        *(*COMMON, "--tasks", NOISY, "--methods", BASES),
        *("--chunks", "1,5,10,25,50,100", "--geometries", "selected"),
    ),
    "epsilon": (
        *(*COMMON, *SHORT, "--epsilons", "0.25,0.5,1,2,4,8,none"),
        *("--relations", "replace_one", *CHUNKED),
    ),
    "chunks, K = 4": (*COMMON, *SHORT, *AT_ONE, "--chunks", "25,50,100,200", *CHUNKED),
    "chunks, K = 1": (
        *(*COMMON, *SHORT, *AT_ONE, "--chunks", "25,50,100,200,400", "--shots", "1"),
        *CHUNKED,
    ),
    "controls": (
        *(*COMMON, *AT_ONE, *FEWER),
        *("--methods", "zero-shot,other task,pure noise", *CHUNKED),
    ),
    equal_records.CHOICE: (
        *(*BY_RECORDS, *DEFAULT, *AT_ONE, "--records", "50,100,250"),
        *("--tasks", CHOSEN_ON),
    ),
    equal_records.OTHERS: (
        *(*BY_RECORDS, *DEFAULT, *AT_ONE, "--records", "50,100,250"),
        *("--tasks", OTHERS),
    ),
}
# What takes hours: every rival and step at equal records, a head search for every release, and
# every task at every ε.
FULL = {
    **{
        equal_records.PAPERS[k]: (*BY_RECORDS, *PAPERS, *AT_ONE, *ALL_SIZES, *shots)
        for k, shots in PAPERS_K.items()
    },
    equal_records.LEVERS: (
        *(*COMMON, *SHORT, *AT_ONE, *REPLACE, "--records", "100"),
        *("--geometries", ",".join(equal_records.STEPS)),
    ),
    equal_records.RIVAL: (
        *(*SEALED, "10", "--json", *FEWER, *AT_ONE, *DEFAULT, "--records", "100,250"),
        *("--methods", ",".join(equal_records.RIVAL_METHODS)),
    ),
    equal_records.SMALL: (
        *(*COMMON, *SHORT, *DEFAULT, "--epsilons", "0.25", "--records", "250,500"),
    ),
    **{
        equal_records.PAPERS_SMALL[k]: (
            *(*COMMON, *SHORT, *PAPERS, "--epsilons", "0.25", "--records", "250,500,1000"),
            *shots,
        )
        for k, shots in PAPERS_K.items()
    },
    equal_records.ALONE: (
        *(*COMMON, *SHORT, *AT_ONE, *REPLACE, "--records", "100,250,500"),
        *("--geometries", ",".join(equal_records.ALONE_STEPS)),
    ),
    equal_records.CONTROL: (
        *(*COMMON, *FEWER, *AT_ONE, *DEFAULT, "--records", "100"),
        *("--methods", "zero-shot,other task,pure noise"),
    ),
    equal_records.FOREIGN: (
        *(*COMMON, "--tasks", DIGITS, "--n-test", "50", *METHODS, *AT_ONE, *REPLACE),
        *("--records", "100,250", "--public", SHAPES, "--geometries", "default,all-heads"),
        *("--shots", "1"),
    ),
    equal_records.SYNTHETIC: (
        *(*COMMON, *SHORT, *DEFAULT, *AT_ONE, "--records", "100,250"),
        *("--public", "synthetic"),
    ),
    **{
        f"mask from the release, {task}": (
            *(*COMMON, *AT_ONE, "--tasks", task, "--search-steps", "100"),
            *("--methods", f"{BASES},dp-mtv", "--geometries", "paper,all-heads"),
        )
        for task in CURVE.split(",")
    },
    "epsilon, all tasks": (
        *(*COMMON, "--epsilons", "0.25,0.5,1,2,4,8"),
        *(*METHODS, *CHUNKED),
    ),
}
ORDER = [*PARTS, *FULL]
GROUPS = {
    "trained": "rules that the model was trained on, with other pictures",
    "noisy": "trained rules; 25–30 % of the private answers are wrong or another annotator's style",
    "mixed": "two or three trained rules, by the kind of question; never mixed so in training",
    "held-out words": "two words that were never a picture's answer in training",
    "held-out pairs": "two words that were, never as the two answers of a rule",
    "new combination": "names of a trained rule with a new word before or after each",
    "inverted": "the two words of a trained rule, exchanged",
    "two new words": "answers of two held-out words each",
    "new names": "three or ten held-out words for three or ten classes",
}


def weights() -> str:
    """Names the model that the rows are about."""
    return hashlib.sha256((EMBEDDED / "model.safetensors").read_bytes()).hexdigest()[:12]


def typed(part: str) -> str:
    """The command of a part, as its rows name it."""
    words = ("dpmtv", *{**PARTS, **FULL}[part])
    return " ".join(f'"{word}"' if " " in word else word for word in words)


def run(part: str) -> list[Row]:
    """The rows of one part, by the command line as a user would run it."""
    command = [sys.executable, "-m", "dpmtv.cli", *{**PARTS, **FULL}[part]]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise RuntimeError(f"{part}: {done.stderr[-2000:]}")
    return [{**row, "table": part, "weights": weights()} for row in json.loads(done.stdout)]


def merge(path: Path, part: str, rows: list[Row]) -> None:
    """Replace one part's rows in the file."""
    old = json.loads(path.read_text("utf-8")) if path.exists() else []
    kept = [r for r in old if r["table"] in ORDER and r["table"] != part] + rows
    kept.sort(key=lambda r: ORDER.index(r["table"]))
    scratch = path.with_suffix(".tmp")
    lines = ",\n".join(json.dumps(r, ensure_ascii=False) for r in kept)
    scratch.write_text(f"[\n{lines}\n]\n", "utf-8")
    scratch.replace(path)


# --- what the page says --------------------------------------------------------------------


def cell(row: Row | None) -> str:
    """Accuracy in percent with its standard error."""
    return equal_records.percent(None if row is None else (row["mean"], row["se"]))


def gain(row: Row) -> str:
    """Share of the gain that is kept, in percent."""
    return "" if row["gain"] is None else str(round(100 * row["gain"]))


def label(row: Row) -> str:
    """Method, geometry and privacy of a row, as a table cell."""
    names = {"in-context": f"{row['K']} demonstrations in the prompt", "dp-mtv": "DP-MTV"}
    parts = [names.get(row["method"], row["method"])]
    if row["method"] == "task vector":
        parts = ["task vector without clip or noise"]
    elif row["geometry"]:
        parts.append(str(row["geometry"]).replace(", clip per layer", ""))
        parts.append("" if row["relation"] is None else f"`{row['relation']}`")
        parts.append("clipped, no noise" if row["epsilon"] is None else f"ε = {row['epsilon']:g}")
    return ", ".join(p for p in parts if p) + ("" if row["private"] else " — **not private**")


def table(rows: list[Row]) -> str:
    """Markdown: one line a method and setting, mean of the tasks and gain kept."""
    if not any(gain(row) for row in rows):
        lines = ["| method | accuracy, % |", "|---|---|"]
        return "\n".join(lines + [f"| {label(row)} | {cell(row)} |" for row in rows])
    lines = ["| method | accuracy, % | gain kept, % |", "|---|---|---|"]
    lines += [f"| {label(row)} | {cell(row)} | {gain(row)} |" for row in rows]
    return "\n".join(lines)


def by_place(rows: list[Row], places: dict[str, str], words: bool = True) -> str:
    """Markdown: groups or tasks as lines, methods as columns, chance and known words last."""
    keys = list(dict.fromkeys(label(r) for r in rows))
    cells = {(r["task"], label(r)): r for r in rows}
    last = ["a guess, %", "its words, %"] if words else []
    shown = [key.replace(" without clip or noise", ", no noise") for key in keys]
    lines = [f"| accuracy, % | {' | '.join([*shown, *last])} |"]
    lines.append("|---" * (len(keys) + 1 + len(last)) + "|")
    for task, place in places.items():
        of = [cells.get((task, key)) for key in keys]
        values = [cell(row) for row in of]
        if words:
            vector = next(r for r in of if r is not None and r["method"] == "task vector")
            values += [f"{100 * vector['chance']:.0f}", f"{100 * vector['in_words']:.0f}"]
        lines.append(f"| {place} | {' | '.join(values)} |")
    return "\n".join(lines)


def harder_than_words(rows: list[Row]) -> dict[str, float]:
    """Tasks where the vector without noise is 15 points above all that are told the words."""
    found = {}
    main = [
        r for r in rows if r["table"] == "main, every-step" and not r["task"].startswith("mean")
    ]
    for task in dict.fromkeys(r["task"] for r in main):
        of = {r["method"]: r["mean"] for r in main if r["task"] == task}
        ahead = of["task vector"] - max(of[m] for m in WORDS.split(","))
        if ahead >= 0.15:
            found[task] = ahead
    return found


def by_chunks(rows: list[Row], methods: dict[str, Any]) -> str:
    """Markdown: settings as lines, one column for each number of chunks."""
    sizes = sorted({r["m"] for r in rows if r["m"]})
    heads = " | ".join(f"m = {m}" for m in sizes)
    lines = [f"| accuracy, % (gain kept, %) | {heads} |", "|---" * (len(sizes) + 1) + "|"]
    for shown, wanted in methods.items():
        found = {r["m"]: r for r in rows if wanted(r)}
        values = [
            cell(found.get(m)) + (f" ({gain(found[m])})" if found[m]["gain"] is not None else "")
            for m in sizes
        ]
        lines.append(f"| {shown} | {' | '.join(values)} |")
    return "\n".join(lines)


def _release(geometry: str, relation: str) -> Any:
    return lambda r: (
        r["method"] == "dp-mtv"
        and r["geometry"] == GEOMETRIES[geometry].words
        and r["relation"] == relation
    )


def _vector(r: Row) -> bool:
    return bool(r["method"] == "task vector")


CHUNK_LINES = {
    "task vector, no clip or noise — **not private**": _vector,
    "the paper's release (all heads), `replace_one`": _release("all-heads", "replace_one"),
    "the paper's release (all heads), `zero_out` (the paper's)": _release("all-heads", "zero_out"),
    "selected heads, `replace_one`": _release("selected", "replace_one"),
    "selected heads, `zero_out`": _release("selected", "zero_out"),
}

INTRO = """\
# Results on the embedded suite

Made by `make results` and `make results-full` from [results.json](results.json); every row there
names the command that makes it. Whole generated answers, exact match, {n_test} questions of the
*sealed* test a task (50 by number of records, and where twelve tasks are shown): pictures that
neither training nor any choice of a default has seen. 38 tasks, m = {m} chunks of K = {K}
demonstrations and a query, δ = {delta:g}, unless a table says otherwise.

A draw takes m chunks out of one of five ways to cut the 1,000 records of a task, with fresh noise;
where a chunk is one record, m records. At the largest m nearly all records are in every draw, so
that ± is mostly of the noise. ± is the standard error over 20 draws, unless others are named, of
the figure beside it. It says nothing about the choice of questions: on 100 of them the accuracy of
one task is uncertain by up to 5 points, whatever ± says. Gain kept is (x − zero-shot) / (task
vector without noise − zero-shot).

Rows marked **not private** are computed from raw records and have no guarantee. All records here
are public; they only play the private role. "Words listed" puts the task's true answer words into
the zero-shot question, "words enforced" lets the decoder say nothing else, and both take those
words to be public. "Selected heads" are chosen on public data of 20 other rules before the release,
and only they are released; "all heads, public mask" releases every head, as the paper does, and
patches the same selected ones. Both are of chunks as the paper cuts them, with a private question
and a clip a layer; **the default** is another release and is called so. (One of these 20 rules,
English colour names, is a third of the task mixed-easy-vqa.)

{groups}

Most tasks are of trained rules, and so is the mean of all 38. What the groups say about task
vectors is discussed in [embedded.md](embedded.md).
"""


def page(rows: list[Row], wider: list[Row] | None = None) -> str:
    """The text of docs/results.md; ``wider`` are the rows of other models, if there are any."""
    first = next(r for r in rows if r["method"] == "dp-mtv")
    sizes = Counter(SUITE.values())
    lines = ["| group | tasks | what it holds |", "|---|---|---|"]
    lines += [f"| {name} | {sizes[name]} | {words} |" for name, words in GROUPS.items()]
    text = INTRO.format(**first, groups="\n".join(lines)).replace("1e-05", "1e-5")
    text += equal_records.section(rows, SUITE)

    def part(name: str, task: str | None = None) -> list[Row]:
        return [r for r in rows if r["table"] == name and task in (None, r["task"])]

    for patch, words in MODES.items():
        main = part(f"main, {patch}")
        if not main:
            continue
        columns = [r for r in main if _headline(r)]
        shown = {f"mean of {name}": name for name in GROUPS} | {"mean": "**all 38 tasks**"}
        text += f"\n## {words}\n\n{by_place(columns, shown)}\n"
        text += (
            "\nThe last two columns: one in the number of the task's answer words (for mixed tasks "
            "the words of all its kinds of question), and the share of the answers under the "
            "vector without noise that are such a word.\n"
            f"\nAll settings, mean of all tasks:\n\n{table(part(f'main, {patch}', 'mean'))}\n"
        )
    main = part("main, every-step")
    if main:
        hard = harder_than_words(rows)
        tasks = sorted(SUITE, key=lambda task: list(GROUPS).index(SUITE[task]))
        places = {task: f"{SUITE[task]}: {task}" for task in tasks}
        single = by_place(list(filter(_by_task, main)), places)
        names = ", ".join(f"{task} (+{100 * ahead:.0f})" for task, ahead in hard.items())
        text += (
            f"\n## Task by task, every step\n\n{single}\n"
            f"\nOn {len(hard)} tasks the vector without noise is at least 15 points above every "
            f"rival that knows the words: {names}.\n"
        )
    if part("noisy"):
        means = part("noisy", "mean")
        context = next(r for r in means if r["method"] == "in-context")
        text += (
            "\n## Noisy annotators\n\nMean of the four noisy tasks, without clip or privacy noise, "
            f"**not private**; four demonstrations in the prompt reach {cell(context)}. In "
            "brackets the share of the gain of the vector at m = 100.\n\n"
            + by_chunks(means, {"task vector": _vector})
            + "\n"
        )
    if part("epsilon"):
        text += (
            "\n## Accuracy against ε\n\nTwelve tasks, named in benchmarks/results.py.\n\n"
            "![Accuracy against ε](img/accuracy.png)\n\n"
            + table(part("epsilon", "mean"))
            + "\n\nThe picture shows selected heads. Without noise the clip alone costs little.\n"
        )
    chunked = [name for name in PARTS if name.startswith("chunks") and part(name)]
    if chunked:
        text += (
            "\n## The paper's release, and ours, against the number of chunks\n\nε = 1, the same "
            "twelve tasks; share of the gain in brackets, measured against the vector without "
            "noise at the largest m.\n\n![Accuracy against the number of chunks](img/chunks.png)\n"
        )
        for name in chunked:
            shots = name.removeprefix("chunks, ")
            text += f"\n{shots}:\n\n{by_chunks(part(name, 'mean'), CHUNK_LINES)}\n"
    if part("controls"):
        text += (
            "\n## Controls\n\nThe same twelve tasks. These should stay near zero-shot: the "
            "vector of a task that shares no answer, and the noise alone.\n\n"
            + table(part("controls", "mean"))
            + "\n"
        )
    masks = [
        r for r in rows if r["table"].startswith("mask from the release") and r["task"] != "mean"
    ]
    if masks:
        tasks = {r["task"]: r["task"] for r in masks}
        text += (
            "\n## The paper's mask, searched on the release\n\nEvery head is released; the mask is "
            "found by patching the released vector into 60 public examples *of the private rule*, "
            "which the paper takes to exist. ε = 1; all searches of this table take 100 steps.\n\n"
            + by_place(masks, tasks, words=False)
            + "\n"
        )
    if part("epsilon, all tasks"):
        shown_rows = table(part("epsilon, all tasks", "mean"))
        text += f"\n## Accuracy against ε, all 38 tasks\n\n{shown_rows}\n"
    return text + scaling.section(wider or [])


def wider_rows() -> list[Row]:
    """The rows of other models, in docs/scaling.json if it is there."""
    rows: list[Row] = json.loads(scaling.ROWS.read_text("utf-8")) if scaling.ROWS.exists() else []
    return rows


def _headline(r: Row) -> bool:
    """Columns of the tables by group."""
    return r["method"] != "dp-mtv" or (
        r["relation"] == "replace_one" and r["geometry"] == GEOMETRIES["selected"].words
    )


def _by_task(r: Row) -> bool:
    return _headline(r) and not r["task"].startswith("mean")


def headline(rows: list[Row]) -> str:
    """The README's table: groups of tasks, patched at every step."""
    wanted = ("zero-shot", "in-context", "words listed and enforced", "task vector", "dp-mtv")
    main = [
        r
        for r in rows
        if r["table"] == "main, every-step" and r["method"] in wanted and _headline(r)
    ]
    places = {f"mean of {name}": f"{name} ({n})" for name, n in Counter(SUITE.values()).items()}
    return by_place(main, {**places, "mean": f"**all {len(SUITE)}**"}, words=False)


def carried(rows: list[Row]) -> str:
    """The table of docs/embedded.md: what demonstrations and a mean vector do for each group."""
    main = {(r["task"], r["method"]): r for r in rows if r["table"] == "main, every-step"}
    lines = ["| % | a guess | 4 demonstrations | vector | its answers that are the task's words |"]
    lines.append("|---|---|---|---|---|")
    for name in GROUPS:
        shown, vector = (main[f"mean of {name}", m] for m in ("in-context", "task vector"))
        words = f"{100 * vector['chance']:.0f} | {cell(shown)} | {cell(vector)}"
        lines.append(f"| {name} | {words} | {100 * vector['in_words']:.0f} |")
    return "\n".join(lines)


# --- pictures ------------------------------------------------------------------------------


def draw(rows: list[Row], wider: list[Row]) -> None:
    """The README's picture, accuracy against chunks and records, and of other models."""
    (DOCS / "img").mkdir(exist_ok=True)
    equal_records.draw(rows, SUITE, DOCS / "img")
    if wider:
        scaling.draw(wider, DOCS / "img" / "scaling.png")
    curve = [
        r
        for r in rows
        if r["table"] == "epsilon" and (r["method"] != "dp-mtv" or "selected" in r["geometry"])
    ]
    if curve:
        plot_png(curve, DOCS / "img" / "accuracy.png")
    parts = [n for n in PARTS if n.startswith("chunks") and any(r["table"] == n for r in rows)]
    if parts:
        draw_chunks(rows, parts)


def draw_chunks(rows: list[Row], parts: list[str]) -> None:
    """One panel for each K: accuracy against m with standard errors."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    for axis, name in zip(figure.subplots(1, len(parts), squeeze=False)[0], parts, strict=True):
        means = [r for r in rows if r["table"] == name and r["task"] == "mean"]
        for line, (shown, wanted) in enumerate(CHUNK_LINES.items()):
            points = sorted((r for r in means if wanted(r)), key=lambda r: r["m"])
            axis.errorbar(
                [r["m"] for r in points],
                [100 * r["mean"] for r in points],
                [100 * (r["se"] or 0) for r in points],
                color=("0.4", "C1", "C1", "C0", "C0")[line],
                linestyle=("-", "-", "--", "-", "--")[line],
                marker="o",
                markersize=4,
                capsize=2,
                label=shown.replace("**", "").replace("`", ""),
            )
        axis.set(xscale="log", ylim=(0, 100), xlabel="chunks m", title=name.split(", ")[1])
        sizes = sorted({r["m"] for r in means if r["m"]})
        axis.set_xticks(sizes, [str(m) for m in sizes])
        axis.set_xticks([], minor=True)
        axis.grid(axis="y", color="0.9")
    figure.axes[0].set_ylabel("accuracy, %")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="outside lower center", ncol=2, fontsize=8)
    legend.get_texts()[0].set_color("#b00020")  # not private
    figure.savefig(DOCS / "img" / "chunks.png", dpi=150)


def main() -> None:
    """Run the missing parts, then write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="also what takes hours")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="parts side by side")
    parser.add_argument("--again", nargs="*", default=[], choices=ORDER, help="run these anew")
    parser.add_argument("--only", nargs="*", metavar="PART", help="of what is missing, run these")
    options = parser.parse_args()
    path = DOCS / "results.json"
    old = json.loads(path.read_text("utf-8")) if path.exists() else []
    if unknown := {*(options.only or ())} - {*ORDER}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are: {'; '.join(ORDER)}")
    model, commands = weights(), {part: typed(part) for part in ORDER}
    there = {
        r["table"]
        for r in old
        if r.get("weights") == model and r["command"] == commands.get(r["table"])
    } - {*options.again}
    wanted = [p for p in ORDER if p in PARTS or options.full or p in options.again]
    if options.only is not None:
        wanted = options.only
    todo = [p for p in wanted if p not in there]
    started, failed = time.time(), []
    with ThreadPoolExecutor(options.jobs) as pool:
        jobs = {pool.submit(run, part): part for part in todo}
        for done, job in enumerate(as_completed(jobs), 1):
            try:
                merge(path, jobs[job], job.result())
            except RuntimeError as error:
                failed.append(str(error))
            minutes = (time.time() - started) / 60
            print(f"{done} of {len(todo)} parts, {minutes:.0f} min: {jobs[job]}", flush=True)
    if failed:
        sys.exit("\n".join(failed))
    rows = json.loads(path.read_text("utf-8"))
    wider = wider_rows()
    (DOCS / "results.md").write_text(page(rows, wider), "utf-8")
    draw(rows, wider)


if __name__ == "__main__":
    main()
