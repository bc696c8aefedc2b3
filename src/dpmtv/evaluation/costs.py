"""What the cells of a table will take, by arithmetic: nothing is run.

Upper bounds in two places: answers are counted at their longest, and the default release as if
every draw had to be decoded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmtv.data.benchmarks import SETS
from dpmtv.evaluation.benchmark import asked_of
from dpmtv.evaluation.paper_tables import DEFAULT, TABLES, cells
from dpmtv.evaluation.settings import GEOMETRIES
from dpmtv.evaluation.study import pool_size
from dpmtv.models.atoms import CANDIDATES, MOST_CLASSES, MOST_PASSES
from dpmtv.models.atoms import QUERIES as TRIED
from dpmtv.private_choices import MADE_UP_WORDS as WORDS
from dpmtv.private_choices import NEUTRAL_QUESTION, band_masks
from dpmtv.public_tasks import QUERIES, public_chunks
from dpmtv.types import HeadLayout, Prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpmtv.evaluation.benchmark import BenchmarkTask
    from dpmtv.evaluation.paper_tables import Cell, Table
    from dpmtv.models.adapters import VisionLanguageModel

MASKS = 32  # of a step of the head search
FIRST_TOKENS = 48  # that begin the default release's own words
FLOPS = 125e12  # a second: 40 % of an A100's peak in bfloat16


@dataclass(frozen=True)
class Sizes:
    """What the counts of a data set and its prompts are.

    Args:
        private, public, test: numbers of records.
        query: tokens of a zero-shot prompt, pictures included.
        made_up: the same of the prompts that a build without public records makes up.
        shown: tokens that a demonstration adds.
        answer: tokens of a wanted answer, its end included.
        longest: tokens that an answer may have.
        classes: different answers of the public records; few are decoded.
        questions: different questions of the test if they are known, or 1, the neutral one.
        pictures: of a record.
        layers: of the model.
    """

    private: int
    public: int
    test: int
    query: float
    made_up: float
    shown: float
    answer: float
    longest: int
    classes: int = MOST_CLASSES + 1
    questions: int = 1
    pictures: int = 1
    layers: int = 32


@dataclass(frozen=True)
class Cost:
    """Tokens through the language model, and pictures through its vision tower."""

    tokens: float = 0.0
    pictures: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        """Both together."""
        return Cost(self.tokens + other.tokens, self.pictures + other.pictures)

    def __mul__(self, times: float) -> Cost:
        """So many times."""
        return Cost(self.tokens * times, self.pictures * times)

    def hours(self, parameters: float, vision: float = 0.0) -> float:
        """GPU hours: two operations a parameter and token.

        Args:
            parameters: of the language model.
            vision: operations that a picture costs.
        """
        return (2 * parameters * self.tokens + vision * self.pictures) / FLOPS / 3600


def cell_cost(cell: Cell, n: Sizes) -> Cost:
    """A cell alone; its chunks (`pool_cost`) and public work (`public_cost`) are shared by others.

    Args:
        cell: the cell.
        n: the data set's sizes.
    """
    s, line = cell.settings, cell.line
    asked = Cost(n.query, n.pictures)
    answers = (asked + Cost(n.longest - 1)) * s.n_test
    if line.method == "zero-shot":
        return answers
    if line.method == "in-context":
        shown = Cost(n.shown, n.pictures) * s.shots
        return (answers + shown * s.n_test) * s.draws
    found = answers * s.draws
    if line.method == "task vector":
        return found
    masks = Cost(n.answer * _bands(n.layers))
    if GEOMETRIES[line.geometry].mask_from_release:
        found += _search(n, s.search_steps, n.public) * s.draws
    elif line.geometry == "paper-private-only":
        # One record of each chunk votes; its prompt runs once for all draws while it is kept.
        chunks, formations = pool_size(s, n.private, "private")
        voters = min(s.draws * cell.chunks, chunks * min(formations, s.draws), n.private)
        found += asked * voters + masks * (s.draws * cell.chunks)
        found += _made_up(n) + _shown(_of_made_up(n), 4) * (min(QUERIES, n.questions) * s.draws)
    elif line.geometry == "private-only":
        pool, _ = pool_size(s, n.private, "public")
        records = min(pool, s.draws * cell.chunks)
        shown = _shown(replace(n, query=n.made_up), 1) * min(QUERIES, n.questions)
        found += (shown + asked + masks) * records + _made_up(n)
    else:
        found += asked * ((TRIED + FIRST_TOKENS) * s.draws)
        if n.classes <= MOST_CLASSES:
            # Words are shown once for all draws; each drawn record is asked under every vector.
            records = min(n.private, s.draws * cell.chunks)
            found += _shown(n, 1) * MOST_PASSES + asked * records
            found += Cost(n.answer * (1 + CANDIDATES)) * (s.draws * cell.chunks)
    return found


def pool_cost(cell: Cell, n: Sizes) -> Cost:
    """The private chunks that a cell's draws are taken from."""
    if not cell.chunks or GEOMETRIES[cell.line.geometry].alone == "ours":  # it keeps its own
        return Cost()
    s, query = cell.settings, cell.query
    chunks, formations = pool_size(s, n.private, query)
    queries = min(QUERIES, n.public) if query == "public" else 1
    return _shown(n, s.k(query)) * (queries * chunks * min(formations, s.draws))


def public_cost(cell: Cell, n: Sizes) -> Cost:
    """Public chunks and the head search."""
    s, found = cell.settings, Cost()
    for query in cell.public_queries:
        apart, chunks = public_chunks(n.public, s.size(query))
        queries = min(QUERIES, apart) if query == "public" else 1
        found += _shown(n, s.k(query)) * (queries * chunks)
        found += _search(n, s.search_steps, apart)
    return found


def total_cost(wanted: Sequence[Cell], n: Sizes) -> Cost:
    """Cells of one data set, with what they share counted once."""
    shared: dict[object, Cost] = {}
    for cell in wanted:
        s, query = cell.settings, cell.query
        if GEOMETRIES[cell.line.geometry].alone != "ours":
            shared["chunks", query, s.k(query), cell.chunks] = pool_cost(cell, n)
        if cell.public_queries:
            shared["public", query, s.k(query)] = public_cost(cell, n)
    # The same cell may stand in two lines.
    alone = {cell.settings: cell_cost(cell, n) for cell in wanted}
    return sum([*shared.values(), *alone.values()], Cost())


def _shown(n: Sizes, shots: int) -> Cost:
    return Cost(n.query, n.pictures) + Cost(n.shown, n.pictures) * shots


def _search(n: Sizes, steps: int, examples: int) -> Cost:
    """A prefix an example, and the last token and answer of every mask.

    Two masks on a whole prompt, and again from a prefix, show whether the two agree.
    """
    compared = Cost(2 * (n.query + 2 * n.answer), 2 * n.pictures)
    prefixes = Cost(n.query, n.pictures) * min(steps + 1, examples)
    return compared + prefixes + Cost(n.answer * MASKS * steps)


def _made_up(n: Sizes) -> Cost:
    """Frequent words, shown of a grey picture: clip norms without public records."""
    made = _shown(_of_made_up(n), 1) * WORDS + Cost(n.made_up, n.pictures) * 2
    return made * min(QUERIES, n.questions)


def _of_made_up(n: Sizes) -> Sizes:
    """The sizes of prompts whose demonstrations are made up too."""
    return replace(n, query=n.made_up, shown=n.shown + n.made_up - n.query)


def _bands(layers: int) -> int:
    return len(band_masks(HeadLayout((1,) * layers, (1,) * layers)))


# --- lengths of prompts --------------------------------------------------------------------

_TRIED = 20  # prompts that lengths are the mean of


def measured_sizes(model: VisionLanguageModel, task: BenchmarkTask) -> Sizes:
    """Sizes of prompts as this model's processor makes them, means of some; no pass is run."""

    def length(prompt: Prompt) -> int:
        tokens: int = model.inputs([prompt])["input_ids"].shape[1]
        return tokens

    shown, asked = task.private[:_TRIED], task.test[:_TRIED]
    made_up = [replace(task.test[0].query, question=q) for q in _made_up_questions(task)]
    bare = np.mean([length(Prompt((), r.query)) for r in asked])
    one = [length(Prompt((shown[i % len(shown)],), r.query)) for i, r in enumerate(asked)]
    answers = [len(model.answer_ids(Prompt((), r.query), r.answer)) for r in shown]
    most = [len(model.answer_ids(Prompt((), r.query), r.answer)) + 2 for r in task.test]
    return _sizes(
        task,
        query=float(bare),
        made_up=float(np.mean([length(Prompt((), q)) for q in made_up])),
        shown=float(np.mean(one) - bare),
        answer=float(np.mean(answers)),
        longest=max(task.tokens, *most),
        layers=model.layout.layers,
    )


def assumed_sizes(task: BenchmarkTask, per_picture: int) -> Sizes:
    """The same without a model: four characters a token, and twenty tokens of format a turn."""
    shown, asked = task.private[:_TRIED], task.test[:_TRIED]
    made_up = _made_up_questions(task)
    pictures = per_picture * len(task.test[0].query.images)
    answer = float(np.mean([len(r.answer) / 4 + 2 for r in shown]))
    return _sizes(
        task,
        query=pictures + 20 + float(np.mean([len(r.question) / 4 for r in asked])),
        made_up=pictures + 20 + float(np.mean([len(q) / 4 for q in made_up])),
        shown=pictures + 20 + float(np.mean([len(r.question) / 4 for r in shown])) + answer,
        answer=answer,
        longest=max(task.tokens, *(len(r.answer) // 4 + 4 for r in task.test)),
    )


def _made_up_questions(task: BenchmarkTask) -> Sequence[str]:
    return asked_of(task)[:QUERIES] or (NEUTRAL_QUESTION,)


def _sizes(task: BenchmarkTask, **lengths: Any) -> Sizes:
    return Sizes(
        *(len(task.private), len(task.same_rule), len(task.test)),
        classes=len({r.answer for r in task.same_rule}),
        questions=len(asked_of(task)) or 1,
        pictures=len(task.test[0].query.images),
        **lengths,
    )


# --- the paper's tables (docs/reproduce.md) ------------------------------------------------


@dataclass(frozen=True)
class PaperModel:
    """What a picture and a token cost in one of the paper's models.

    Args:
        parameters: of the language model.
        tower: parameters of the vision tower.
        patches: of a picture in the tower.
        tokens: of a picture in the language model.
        weights: parameters in all.
    """

    parameters: float
    tower: float
    patches: int
    tokens: int
    weights: float

    @property
    def vision(self) -> float:
        """Operations a picture."""
        return 2 * self.tower * self.patches


PAPER_MODELS = {
    "Qwen-VL": PaperModel(7.7e9, 1.9e9, 1024, 258, 9.66e9),
    "ViLA-1.5": PaperModel(8.03e9, 0.43e9, 729, 196, 8.5e9),
    "Idefics2": PaperModel(7.24e9, 0.43e9, 4900, 64, 8.4e9),
}
# Private, public (at most 300 serve) and test records; tokens of a question with its format.
PAPER_SETS = {
    "vizwiz": (18471, 300, 4319, 50),
    "vqa-rad": (1617, 180, 451, 30),
    "path-vqa": (19755, 300, 6761, 30),
    "ok-vqa": (8108, 300, 5046, 30),
    "textvqa": (31142, 300, 5000, 30),
    "flowers102": (1020, 300, 6149, 60),
    "cub-200": (5395, 300, 5794, 60),
    "dtd": (1880, 300, 1880, 60),
}


def paper_sizes(name: str, model: str) -> Sizes:
    """A data set's sizes under one of the paper's models, answers of three tokens and an end."""
    private, public, test, text = PAPER_SETS[name]
    length = PAPER_MODELS[model].tokens + text
    options = SETS[name].metrics == "options"
    answer = 2 if options else 4
    return Sizes(
        *(private, public, test),
        query=length,
        made_up=length,
        shown=length + answer,
        answer=answer,
        longest=SETS[name].tokens,
        classes=2 if options else 100,
    )


def paper_hours(name: str, model: str, table: Table) -> float:
    """GPU hours of a table's cells for one data set and model, without cells that are too large."""
    n, of = paper_sizes(name, model), PAPER_MODELS[model]
    wanted = cells(table, replace(DEFAULT, n_test=min(DEFAULT.n_test, n.test)))
    fitting = [cell for cell in wanted if cell.records <= n.private]
    return total_cost(fitting, n).hours(of.parameters, of.vision)


def hours_page() -> str:
    """The table of docs/reproduce.md: every data set and model, by table."""
    lines = [f"| set | model | {' | '.join(TABLES)} |", "|---|---|" + "---|" * len(TABLES)]
    for name in PAPER_SETS:
        for model in PAPER_MODELS:
            hours = " | ".join(f"{paper_hours(name, model, table):.1f}" for table in TABLES)
            lines.append(f"| `{name}` | {model} | {hours} |")
    return "\n".join(lines) + "\n"
