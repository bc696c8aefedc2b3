"""The report page and its pictures: self-contained, escaped, honest about what is private."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest

from dpmtv.errors import UserError
from dpmtv.evaluation import report_plots
from dpmtv.evaluation.report import accuracy_plot, plot_png, write_report

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
    "0000000c4944415408d763f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
)
VOID = {"meta", "img", "br", "link"}
OPEN_LABELS = {"4-shot in context", "task vector without noise"}
SECTIONS = ["results", "epsilon", "guarantee", "tasks", "heads", "timings", "examples"]
SECTIONS += ["reproduce"]
NASTY = "\"><script>alert('1')</script><img src=http://evil.example/x onerror=a()> $x^2$ 😀 مرحبا"


class Page(HTMLParser):
    """Every element with its attributes, text, and the headings of the way down to it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []  # (way down, text)
        self.path: list[str] = []
        self.feed(text)
        self.close()
        assert not self.path, f"left open: {self.path}"

    def handle_starttag(self, tag, attrs):
        attrs = {name: value or "" for name, value in attrs}
        self.elements.append((tag, attrs))
        if tag not in VOID:
            self.path.append(f"{tag}.{attrs['class']}" if attrs.get("class") else tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag):
        assert self.path.pop().split(".")[0] == tag

    def handle_data(self, data):
        if data.strip():
            self.texts.append(("/".join(self.path), data.strip()))

    def text(self, within: str = "") -> str:
        return " ".join(text for path, text in self.texts if within in path)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attrs for found, attrs in self.elements if found == tag]


def row(task, method, mean, *, relation=None, epsilon=None, private=False, **more):
    return {
        "table": "demo",
        "task": task,
        "method": method,
        "geometry": "joint",
        "relation": relation,
        "epsilon": epsilon,
        "delta": 1e-5,
        "records": 400,
        "m": 100,
        "K": 4,
        "coordinates": 64,
        "draws": 20,
        "n_test": 50,
        "mean": mean,
        "se": 0.01,
        "gain": None,
        "metric": "exact match",
        "model": "embedded",
        "prompt": "brief",
        "command": "dpmtv demo --table main",
        "private": private,
    } | more


def rows_of(tasks, epsilons=(0.5, 1.0, 4.0)):
    rows = []
    for task in tasks:
        rows += [
            row(task, "zero-shot", 0.05, private=True, gain=0.0),
            row(task, "in-context", 0.99),
            row(task, "task vector", 0.97, gain=1.0),
        ]
        rows += [
            row(task, "dp-mtv", 0.6 + 0.02 * epsilon, relation=relation, epsilon=epsilon,
                private=True, gain=0.7)
            for relation in ("replace_one", "zero_out")
            for epsilon in epsilons
        ]  # fmt: skip
    return rows


def example(task="digit", **more):
    return {
        "task": task,
        "image": PNG,
        "question": "What digit?",
        "wanted": "sept",
        "answers": {"zero-shot": ("7", False), "4-shot in context": ("sept", True)},
        "private": {"zero-shot": True, "4-shot in context": False},
    } | more


INPUT = {
    "rows": rows_of(["digit", "colour", "mean"]),
    "heads": [np.array([True, False, True]), np.array([False, True])],
    "examples": [example(), example("colour")],
    "timings": [("build", 2.5), ("evaluate", 125.0)],
    "title": "Task vectors",
    "statement_lines": ["Each record is protected."],
}


@pytest.fixture
def write(tmp_path):
    def written(**changes):
        write_report(tmp_path / "report.html", **(INPUT | changes))
        return (tmp_path / "report.html").read_text("utf-8")

    return written


def svg_texts(svg: str) -> list[tuple[str, dict[str, str]]]:
    """(text, attributes) of each text element, in the order drawn."""
    texts = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return [(text.text or "", dict(text.attrib)) for text in texts]


def pictures(page: str) -> list[str]:
    return re.findall(r"<svg .*?</svg>", page, re.DOTALL)


def assert_open_series_are_marked(svg: str, open_labels: set[str], labels: set[str]) -> None:
    texts = svg_texts(svg)
    assert labels <= {text for text, _ in texts}
    marked = set()
    for (label, at), (text, attributes) in pairwise(texts):
        if text == "not private":
            marked.add(label)
            assert float(at["y"]) == pytest.approx(
                float(attributes["y"])
            )  # on the same line of the legend
            assert "fill: var(--danger, #c1121f)" in attributes["style"]
    assert marked == open_labels
    assert sum(text == "not private" for text, _ in texts) == len(open_labels)


def test_nothing_is_loaded_from_elsewhere(write):
    text = write()
    page = Page(text)
    for _, attributes in page.elements:
        for name, value in attributes.items():
            if name in {"src", "href", "xlink:href", "srcset", "action", "data", "poster"}:
                assert value.startswith(("#", "data:image/png;base64,"))
    assert not {tag for tag, _ in page.elements} & {"script", "link", "iframe", "base", "object"}
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)", text))
    assert "@import" not in text
    assert set(re.findall(r"https?://[^\"' <)]+", text)) == {
        "http://www.w3.org/2000/svg",  # names of XML vocabularies, never fetched
        "http://www.w3.org/1999/xlink",
    }
    policies = [m["content"] for m in page.all("meta") if "http-equiv" in m]
    assert policies == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]


def test_foreign_text_stays_text(write):
    tasks = [NASTY, "$x^2$", "mean"]
    rows = rows_of(tasks) + [row(task, NASTY, 0.5) for task in tasks]
    text = write(
        rows=[r | {"model": NASTY, "command": NASTY, "metric": NASTY} for r in rows],
        examples=[
            example(NASTY, question=NASTY, wanted=NASTY, answers={NASTY: (NASTY, True)}),
            example(
                NASTY, answers={"zero-shot": ("half a surrogate \ud83d", True), "4": ("", False)}
            ),
        ],
        timings=[(NASTY, 1.0)],
        title=NASTY,
        statement_lines=[NASTY],
    )
    page = Page(text)
    assert "script" not in {tag for tag, _ in page.elements}
    assert len(page.all("img")) == 2
    assert all("onerror" not in attributes for _, attributes in page.elements)
    for within in ("title", "h1", "h3", "li", "bdi", "dt", "dd", "code", "tbody/tr/th", "svg"):
        assert "<script>alert('1')</script>" in page.text(within), within
    for picture in pictures(text):
        ElementTree.fromstring(picture)  # well-formed in spite of the task's name
    assert "no answer" in page.text("dd")
    assert "$x^2$" in page.text("svg")


def test_whatever_is_not_private_says_so_in_red(write):
    text = write()
    page = Page(text)
    groups = re.findall(r'<th scope="rowgroup".*?</th>', text, re.DOTALL)
    assert len(groups) == 5
    for group in groups:
        is_open = any(label in group for label in OPEN_LABELS)
        assert ('<strong class="not-private">not private</strong>' in group) == is_open
    assert page.text("td.number/span.not-private") == "∞ ∞"
    heads = re.findall(
        r'<th scope="col" class="number">([^<]*?)( <strong class="not-private">.*?)?</th>', text
    )
    assert {label.strip() for label, mark in heads if mark} == OPEN_LABELS
    answers = re.findall(r"<dt>(.*?)</dt>", text)
    assert answers.count("zero-shot") == 2
    assert sum(a.endswith('<strong class="not-private">not private</strong>') for a in answers) == 2
    assert re.search(r"\.not-private \{ color: var\(--danger\)", text)
    labels = OPEN_LABELS | {"zero-shot", "DP-MTV, replace_one", "DP-MTV, zero_out (the paper's)"}
    accuracy, tasks, _ = pictures(text)
    assert_open_series_are_marked(accuracy, OPEN_LABELS, labels)
    assert_open_series_are_marked(tasks, OPEN_LABELS, labels)
    assert accuracy.split(">")[0].count("(not private)") == 2  # the words for the blind


@pytest.mark.parametrize(
    ("change", "label"),
    [
        ({"private": False}, "DP-MTV, replace_one"),
        ({"epsilon": None}, "DP-MTV without noise"),
        ({"epsilon": float("inf")}, "DP-MTV without noise"),
    ],
)
def test_a_row_that_lacks_or_contradicts_its_guarantee_has_none(change, label):
    rows = [row("one", "dp-mtv", 0.5, relation="replace_one", epsilon=1.0, private=True) | change]
    assert_open_series_are_marked(accuracy_plot(rows), {label}, {label})


def test_an_example_without_a_word_on_privacy_counts_as_not_private(write):
    text = write(examples=[example(private={})])
    assert text.count("not private</strong></dt>") == 2


def test_the_papers_relation_is_always_named_as_such(write):
    text = write()
    page = Page(text)
    words = [t for _, t in page.texts] + [v for _, a in page.elements for v in a.values()]
    found = [w for w in words if "zero_out" in w]
    assert len(found) >= 4
    assert all(w.count("zero_out") == w.count("zero_out (the paper's)") for w in found)


def test_the_numbers_are_those_of_the_rows(write):
    rows = [r | {"mean": 0.8769, "se": 0.0123, "gain": 0.914} if r["task"] == "mean" else r
            for r in INPUT["rows"]]  # fmt: skip
    text = write(rows=rows)
    table = re.search(r'<table class="grouped".*?</table>', text, re.DOTALL)[0]
    assert table.count("87.7") == table.count("± 1.2") == table.count(">91<") == 9
    assert "61.0" not in table  # a single task's
    assert "62.0" in Page(text).text("details")
    page = Page(text)
    assert "2.50 s" in page.text("td.number")
    assert "2 min 05 s" in page.text("td.number")
    assert "dpmtv demo --table main" in page.text("pre/code")
    assert "Mean over 2 tasks, exact match" in page.text("p.note")
    assert "δ = 1e-5" in page.text("p.note")


def test_each_section_is_there_and_accessible(write):
    page = Page(write())
    ids = Counter(a["id"] for _, a in page.elements if "id" in a)
    assert set(ids.values()) == {1}
    assert [i for i in ids if i in SECTIONS] == SECTIONS
    assert {a["aria-labelledby"] for _, a in page.elements if "aria-labelledby" in a} <= set(ids)
    assert page.all("html") == [{"lang": "en"}]
    assert [m["content"] for m in page.all("meta") if m.get("name") == "viewport"]
    assert all(image["alt"] for image in page.all("img"))
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in page.all("svg"))
    assert all(th["scope"] for th in page.all("th"))
    assert page.text("h1") == "Task vectors"
    assert page.text("ul.guarantee") == "Each record is protected."
    style = page.text("style")
    assert "@media print" in style
    assert "@media screen and (prefers-color-scheme:dark)" in style


@pytest.mark.parametrize("tasks", [["digit"], ["digit", "mean"]])
def test_one_task_and_no_examples(write, tasks):
    text = write(rows=rows_of(tasks, [1.0]), examples=[], timings=[], statement_lines=[])
    page = Page(text)
    assert "None were kept." in page.text()
    assert "No guarantee was stated." in page.text("li.not-private")
    assert text.count("62.0") >= 2  # 0.6 + 0.02 under both relations


def test_extreme_input_is_shown(write):
    tasks = [f"{'a very long name ' * 8}{i}" for i in range(12)]
    rows = rows_of([*tasks, "mean"], [0.1, 0.2, 0.5, 1, 2, 4, 8])
    for i, r in enumerate(rows):
        r.update(mean=float(i % 2), se=None, relation=r["relation"] if i % 3 else None)
    rows = list({(r["task"], r["method"], r["relation"], r["epsilon"]): r for r in rows}.values())
    examples = [example(t, image=PNG + bytes(8000)) for t in tasks for _ in range(4)]
    text = write(rows=rows, examples=examples, heads=[np.ones(32, bool)] * 64)
    assert len(text.encode()) < 2_000_000
    assert "relation not stated" in text
    assert Page(write(rows=[], examples=[], heads=[], timings=[])).all("svg")


def test_the_pictures_follow_dark_mode_and_have_enough_contrast(write):
    for picture in pictures(write()):
        assert not re.search(r": #[0-9a-f]{6}", picture)  # every colour goes through a name
    for name, least in [("ink", 7), ("muted", 4.5), ("danger", 4.5), ("blue", 4.5), ("orange", 3),
                        ("purple", 3)]:  # fmt: skip
        for mode in (0, 1):
            for ground in ("paper", "panel"):
                pair = report_plots.PALETTE[name][mode], report_plots.PALETTE[ground][mode]
                assert contrast(*pair) >= least, (name, ground, mode)


def contrast(a: str, b: str) -> float:
    """Contrast ratio of the web accessibility guidelines."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_the_heads_picture_shows_each_head(write):
    grid = pictures(write())[2]
    squares = {
        colour: path.count("M ")
        for path, colour in re.findall(r'<path d="([^"]*)"[^>]*fill: var\(--(rule|blue),', grid)
    }
    assert squares == {"blue": 3, "rule": 2}
    assert 'aria-label="Heads released: 3 of 5. Layers: 2."' in grid


def test_the_task_pictures_show_the_epsilon_nearest_to_one(write):
    text = write(rows=rows_of(["digit", "mean"], [0.1, 0.8, 8.0]))
    assert "Task by task at ε = 0.8" in Page(text).text("h2")


def test_two_results_for_the_same_thing_are_refused(write):
    with pytest.raises(UserError, match=r"two rows for zero-shot"):
        write(rows=[*INPUT["rows"], INPUT["rows"][0]])


def test_the_same_input_gives_the_same_page(write):
    assert write() == write()


def test_the_accuracy_picture_stands_alone(tmp_path):
    svg = accuracy_plot(INPUT["rows"])
    ElementTree.fromstring(svg)
    assert ":root{color-scheme:light dark" in svg
    assert svg.startswith("<svg ")
    plot_png(INPUT["rows"], tmp_path / "plot.png")
    png = (tmp_path / "plot.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert int.from_bytes(png[16:20]) == 1200


@pytest.mark.parametrize("library", ["matplotlib", "jinja2"])
def test_a_missing_library_names_the_extra(write, monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UserError, match=re.escape("pip install 'dpmtv[report]'")):
        write()


def test_missing_matplotlib_stops_the_pictures_too(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match="matplotlib"):
        accuracy_plot(INPUT["rows"])
    with pytest.raises(UserError, match="matplotlib"):
        plot_png(INPUT["rows"], tmp_path / "plot.png")


def test_importing_loads_no_heavy_library():
    code = (
        "import sys, dpmtv.evaluation.report\n"
        "print({'torch', 'matplotlib', 'jinja2', 'transformers'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
