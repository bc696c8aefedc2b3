"""The eight public benchmarks of the DP-MTV paper: splits, prompts, and their records.

All records are public; some play the private role. The official training split does, the official
test split (or validation, where test answers are not published) is asked, and the official
validation split is public knowledge; where there is none to spare, a tenth of the training
pictures is. docs/benchmarks.md has the table, with sources.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpmtv.data import benchmark_files as files
from dpmtv.data.benchmark_files import Found
from dpmtv.data.demonstrations import require_good
from dpmtv.data.partition import partition
from dpmtv.data.rows import BadRow, Shape, entries_of
from dpmtv.data.stored import Record
from dpmtv.data.tables import Dataset
from dpmtv.errors import DataError

if TYPE_CHECKING:
    from dpmtv.types import Demonstration

_LETTER = "Answer with the option's letter from the given choice directly."
PROMPTS = {
    "question": "{question}",
    "question or unanswerable": (
        "{question}\nIf the question can not be answered, respond unanswerable."
    ),
    "two options": f"What is the type of {{kind}} in the image? A.{{a}} B.{{b}}\n{_LETTER}",
    "two options, one shot": (
        "The first image shows A, the second shows B. "
        f"What is the type of {{kind}} in the third image? A.{{a}} B.{{b}}\n{_LETTER}"
    ),
}
"""Every question of a benchmark, by name. A model family's own line, if any, follows it."""

Metrics = Literal["vqa", "medical", "options"]


@dataclass(frozen=True)
class PublicSet:
    """One data set.

    Args:
        title: as its owners write it.
        read: the reader of its official files.
        metrics: how its answers are scored (`dpmtv.evaluation.official_metrics`).
        splits: names of the splits that are private, public and test, in the official files; a
            tenth of the private pictures is public where none is named.
        hub: a copy on the Hugging Face Hub, and its splits in the same order.
        prompt: of `PROMPTS`.
        kind: what a classification asks for.
        triples: how MTV's 2-way 1-shot files are called.
        tokens: that an answer may have at least.
    """

    title: str
    read: Callable[[Path, str], Iterator[Found]]
    metrics: Metrics
    splits: tuple[str | None, str | None, str]
    hub: str
    hub_splits: tuple[str | None, str | None, str]
    prompt: str = "question"
    kind: str = ""
    triples: str = ""
    tokens: int = 10  # as MTV's mtv_eval.py


SETS = {
    "vizwiz": PublicSet(
        *("VizWiz", files.vizwiz, "vqa", ("train", None, "val")),
        *("lmms-lab/VizWiz-VQA", (None, None, "val"), "question or unanswerable"),
    ),
    "vqa-rad": PublicSet(
        *("VQA-RAD", files.vqa_rad, "medical", ("train", None, "test")),
        *("flaviagiammarino/vqa-rad", ("train", None, "test")),
        tokens=32,  # its longest answers are sentences
    ),
    "path-vqa": PublicSet(
        *("PathVQA", files.path_vqa, "medical", ("train", "val", "test")),
        *("flaviagiammarino/path-vqa", ("train", "validation", "test")),
        tokens=32,
    ),
    "ok-vqa": PublicSet(
        *("OK-VQA", files.ok_vqa, "vqa", ("train", None, "val")),
        *("lmms-lab/OK-VQA", (None, None, "val2014")),
    ),
    "textvqa": PublicSet(
        *("TextVQA", files.textvqa, "vqa", ("train", None, "val")),
        *("lmms-lab/textvqa", ("train", None, "validation")),
    ),
    "flowers102": PublicSet(
        *("Flowers102", files.flowers, "options", ("trnid", "valid", "tstid")),
        *("dpdl-benchmark/oxford_flowers102", ("train", "validation", "test")),
        *("two options", "flower", "flower"),
    ),
    "cub-200": PublicSet(
        *("CUB-200-2011", files.cub, "options", ("train", None, "test")),
        *("bentrevett/caltech-ucsd-birds-200-2011", ("train", None, "test")),
        *("two options", "bird", "cub"),
    ),
    "dtd": PublicSet(
        *("DTD", files.dtd, "options", ("train", "val", "test")),
        *("tanganke/dtd", ("train", None, "test")),
        *("two options", "texture", "dtd"),
    ),
}
"""Names for ``--benchmark NAME=FOLDER``."""


@dataclass(frozen=True)
class Example:
    """A record, and what the official evaluator looks at beside the answer."""

    record: Demonstration
    seen: Any = field(default=None, repr=False)


@dataclass(frozen=True)
class Parts:
    """A data set in three parts that share no picture, as far as its own splits do not.

    Args:
        private, public, test: the records; test is in a fixed shuffled order, so that its first
            ones are a fair sample.
        prompt: which of `PROMPTS` was asked.
        split: how the parts were made.
    """

    private: list[Demonstration]
    public: list[Demonstration]
    test: list[Example]
    prompt: str
    split: str


def read_set(name: str, folder: Path | str, *, one_a_picture: bool = False) -> Parts:
    """Read a data set from its official files, MTV's triples, or a copy from the Hub.

    Args:
        name: of `SETS`.
        folder: the official files as unpacked; or a dataset saved with `datasets`, or ``hf://ID``.
            Where MTV's files of triples are in it, these are read.
        one_a_picture: keep the first question of each picture in the private part, so that a
            guarantee for a record holds for all that a picture (of VQA-RAD, a patient) has there.

    Raises:
        DataError: files are missing, are not what they should be, or have bad rows.
    """
    known = SETS[name]
    private, public, test = known.splits
    prompt = known.prompt
    if _is_dataset(folder):
        private, public, test = known.hub_splits
        read = _hub_reader(known, folder)
    elif known.triples and _triples(Path(folder), known.triples, "train"):
        private, public, test, prompt = "train", None, "test", "two options, one shot"
        read = _triples_reader(known, Path(folder))
    else:
        read = _file_reader(known, Path(folder))
    asked = read(test)
    if private is None:
        share = len(asked) // 10, 11 * len(asked) // 20
        held, shown, asked = _by_picture(asked, *share)
        split = f"{test} in three, by picture"
    elif public is None:
        trained = read(private)
        held, shown, rest = _by_picture(trained, len(trained) // 10, len(trained))
        split = f"{private} and a tenth of it, {test}"
        assert not rest
    else:
        held, shown = read(private), read(public)
        split = f"{private}, {public}, {test}"
    if one_a_picture:
        first: dict[Any, Example] = {}
        for example in held:
            first.setdefault(example.record.unit, example)
        held = list(first.values())
        split += ", one question a picture"
    order = partition(len(asked), 1, len(asked), b"test order")[0]
    return Parts(
        private=[example.record for example in held],
        public=[replace(example.record, task=name) for example in shown],
        test=[asked[i] for i in order],
        prompt=prompt,
        split=split,
    )


def _by_picture(
    examples: Sequence[Example], public: int, private: int
) -> tuple[list[Example], list[Example], list[Example]]:
    """Private, public and the rest: whole pictures in a fixed order, until so many records."""
    pictures: dict[str, list[Example]] = {}
    for example in examples:
        pictures.setdefault(str(example.record.unit), []).append(example)
    parts: tuple[list[Example], list[Example], list[Example]] = ([], [], [])
    seen = 0
    for key in sorted(pictures, key=_place):
        parts[1 if seen < public or not seen else 0 if seen < private else 2].extend(pictures[key])
        seen += len(pictures[key])
    return parts


def _place(key: str) -> bytes:
    return hashlib.blake2b(key.encode("utf-8", "replace")).digest()


# --- where records come from ---------------------------------------------------------------


def _is_dataset(folder: Path | str) -> bool:
    marks = ("dataset_dict.json", "state.json")
    return str(folder).startswith("hf:/") or any((Path(folder) / m).is_file() for m in marks)


def _file_reader(known: PublicSet, root: Path) -> Callable[[str], list[Example]]:
    def read(split: str) -> list[Example]:
        what = f"{known.title}, {split}"
        return _examples(known, known.prompt, lambda: known.read(root, split), root, what)

    return read


def _triples_reader(known: PublicSet, root: Path) -> Callable[[str], list[Example]]:
    def read(split: str) -> list[Example]:
        path = _triples(root, known.triples, split)
        if path is None:
            raise DataError(f"{root} has {known.triples}_train.json and no {split} file beside it.")
        prompt = "two options, one shot"
        return _examples(known, prompt, lambda: files.triples(root, path), root, path.name)

    return read


def _triples(root: Path, word: str, split: str) -> Path | None:
    names = [f"{word}_{split}.json", *([f"{word}_val.json"] if split == "test" else [])]
    there = (root / inside / name for inside in ("", word) for name in names)
    return next((path for path in there if path.is_file()), None)


def _hub_reader(known: PublicSet, folder: Path | str) -> Callable[[str], list[Example]]:
    def read(split: str) -> list[Example]:
        # A classification has one column for what we call question and answer.
        columns = {"question": "label", "answer": "label"} if known.kind else {}
        data = Dataset(folder, split, None, columns)

        def found() -> Iterator[Found]:  # one by one: the pictures are gigabytes
            return (_of_hub(known, record) for record in data.records())

        return _examples(known, known.prompt, found, Path(), f"{known.title}, {split}", data)

    return read


def _of_hub(known: PublicSet, record: Record) -> Found:
    fields = record.fields
    if isinstance(fields, str):
        return Found(fields)
    stored = fields.get("image")
    content = stored.get("bytes") if isinstance(stored, dict) else stored
    key = hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else str(stored)
    if known.kind:
        name = str(fields.get("label") or "")
        label = name.lstrip("0123456789.").replace("_", " ")  # 001.Black_footed_Albatross
        return Found({"image": stored, "label": label}, key, None, record.place)
    seen = fields.get("answers")
    if known.metrics == "medical":  # the copies leave out which questions are closed
        seen = files.kind_of(fields.get("answer"))
    kept = ("image", "question", "answer", "answers")
    return Found({n: fields[n] for n in kept if n in fields}, key, seen, record.place)


# --- from what was found to records --------------------------------------------------------


def _examples(
    known: PublicSet,
    prompt: str,
    found: Callable[[], Iterator[Found]],
    root: Path,
    what: str,
    data: Any = None,
) -> list[Example]:
    """Records of a split.

    Args:
        known: the data set.
        prompt: of `PROMPTS`.
        found: reads the split anew; the classes have to be known before the first question.
        root: where pictures are.
        what: the split's name for messages.
        data: the container that pictures lie in, if they are no files.
    """
    shape = Shape(data, root, "unit", "all", {}, 1)
    classes: list[str] = []
    if known.kind:
        labels = {f.fields.get("label") for f in found() if not isinstance(f.fields, str)}
        classes = sorted(str(label) for label in labels if label)
        if len(classes) < 2:
            raise DataError(f"{what} has fewer than two classes.")
    entries: list[Demonstration | BadRow] = []
    seen = []
    for number, one in enumerate(found(), start=1):
        fields, beside = one.fields, one.seen
        if isinstance(fields, dict):
            if known.kind:
                fields, beside = _options(known.kind, prompt, fields, classes, number)
            question = fields.get("question")
            if prompt in ("question", "question or unanswerable") and isinstance(question, str):
                fields = {**fields, "question": PROMPTS[prompt].format(question=question.strip())}
            fields = {**fields, "unit": one.key}
        entries += entries_of(Record(number, fields, one.place), shape)
        seen.append(beside)
    if not entries:
        raise DataError(f"{what} holds no records.")
    good = require_good(entries, what)
    return [Example(record, beside) for record, beside in zip(good, seen, strict=True)]


def _options(
    kind: str, prompt: str, fields: dict[str, Any], classes: list[str], number: int
) -> tuple[dict[str, Any], tuple[str, str]]:
    """A question with two options, and the options; drawn by the record's number alone."""
    drawn = hashlib.blake2b(number.to_bytes(8, "big"), key=b"dpmtv options").digest()
    label = str(fields.get("label") or "")
    others = [name for name in classes if name != label]
    other = str(fields.get("other") or others[int.from_bytes(drawn[:8], "big") % len(others)])
    first = drawn[8] % 2 == 0
    a, b = (label, other) if first else (other, label)
    asked: dict[str, Any] = {"question": PROMPTS[prompt].format(kind=kind, a=a, b=b)}
    if "images" in fields:
        shown, against, query = fields["images"]
        asked["images"] = [*((shown, against) if first else (against, shown)), query]
    else:
        asked["image"] = fields.get("image")
    return {**asked, "answer": ("A" if first else "B") if label else None}, (a, b)
