"""What a data file holds, for the eyes of whoever owns it.

Everything here is computed from records as they are and has no guarantee. It quotes no question,
answer, file name or id; it counts them.
"""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpmtv.data.images import UnreadableImage, load_image, missing_extra
from dpmtv.data.rows import BadRow
from dpmtv.data.values import is_text, nearly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dpmtv.data.formats import Entry
    from dpmtv.types import Demonstration, ImageSource

Place = tuple[int, int]

_ENOUGH_CHUNKS = 100  # as docs/results.md measures; the noise on the mean grows as 1/m
_LONGEST_NAME = 40
_MOST_FIELDS = 5
_LARGE_UNIT = 4  # more records of one person hardly help


@dataclass(frozen=True)
class Spread:
    """Smallest, median and largest of some numbers."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """None without any number."""
        found = sorted(values)
        return cls(found[0], statistics.median(found), found[-1]) if found else None


@dataclass
class DataReport:
    """Counts over a data set. Places are (file, row), both from 1.

    Args:
        records: entries, good and bad.
        good: those that can be used.
        bad: reason → places. `build` passes over them in silence, `build --strict` refuses them.
        images: pictures a good record.
        width: of the pictures, in pixels.
        height: of the pictures.
        question: length in characters.
        answer: length in characters.
        several_answers: records that accept several.
        distinct_answers: number of different answers.
        units: number of units, if a field was named.
        per_unit: records a unit.
        nearly_equal: units whose names differ in capitals, leading zeros, or blanks and marks
            inside alone, in groups; each by the place where it was first seen.
        repeated: where pictures, question and answer were all seen before.
        same_pictures: where pictures were seen before, with another question or answer.
        same_ids: where an ``id`` was seen before.
        could_be_units: other fields whose values repeat: (name, values, most records of one).
        suggestions: what to do, a sentence each.
    """

    records: int = 0
    good: int = 0
    bad: dict[str, list[Place]] = field(default_factory=dict)
    images: Spread | None = None
    width: Spread | None = None
    height: Spread | None = None
    question: Spread | None = None
    answer: Spread | None = None
    several_answers: int = 0
    distinct_answers: int = 0
    units: int | None = None
    per_unit: Spread | None = None
    nearly_equal: list[list[Place]] = field(default_factory=list)
    repeated: list[Place] = field(default_factory=list)
    same_pictures: list[Place] = field(default_factory=list)
    same_ids: list[Place] = field(default_factory=list)
    could_be_units: list[tuple[str, int, int]] = field(default_factory=list)
    suggestions: list[str] = field(default_factory=list)


def check_data(
    entries: Iterable[Entry],
    *,
    unit: str | None = None,
    pictures: bool = True,
    progress: Callable[[int], None] = lambda _done: None,
) -> DataReport:
    """Read a data set once and count what it holds, in memory of some hundred bytes a record.

    Args:
        entries: as `iter_entries` gives them.
        unit: the field that was read as the unit, if one was.
        pictures: decode every picture.
        progress: called with the number of records done.
    """
    report, seen = DataReport(), _Seen()
    for done, entry in enumerate(entries, start=1):
        place, row = (entry.file, entry.row), entry.entry
        report.records += 1
        problem = row.reason if isinstance(row, BadRow) else None
        if row.unit is not None:
            named = _digest(row.unit)
            seen.units[named] += 1
            seen.nearly.setdefault(_digest(nearly(row.unit)), {}).setdefault(named, place)
        for name, value in entry.others.items():
            # The name of a field can be a record's own doing, and is told only if most have it.
            if len(name) <= _LONGEST_NAME and name.isprintable() and is_text(name):
                seen.others.setdefault(name, Counter())[_digest(value)] += 1
        if entry.id is not None:
            named = _digest(entry.id)
            if named in seen.ids:
                report.same_ids.append(place)
            seen.ids.add(named)
        if not isinstance(row, BadRow):
            try:
                looked = [seen.look(image) for image in row.images] if pictures else []
                seen.add(place, row, looked, report)
                report.good += 1
            except UnreadableImage:
                extra = next(filter(None, map(missing_extra, row.images)), None)
                problem = f"image needs dpmtv[{extra}]" if extra else "image unreadable"
        if problem is not None:
            report.bad.setdefault(problem, []).append(place)
        progress(done)
    report.images = Spread.of(seen.images.elements())
    report.width, report.height = Spread.of(seen.widths), Spread.of(seen.heights)
    report.question, report.answer = Spread.of(seen.questions), Spread.of(seen.answers)
    report.distinct_answers = len(seen.different)
    if unit is not None:
        report.units = len(seen.units)
        report.per_unit = Spread.of(seen.units.values())
        report.nearly_equal = [[*of.values()] for of in seen.nearly.values() if len(of) > 1]
    report.could_be_units = [
        (name, len(values), max(values.values()))
        for name, values in seen.others.items()
        if name != unit and 1 < len(values) < values.total() and 2 * values.total() > report.records
    ][:_MOST_FIELDS]
    report.suggestions = list(_suggestions(report, unit))
    return report


class _Seen:
    """Digests and lengths of what went by; no text and no picture is kept."""

    def __init__(self) -> None:
        self.units: Counter[bytes] = Counter()
        self.nearly: dict[bytes, dict[bytes, Place]] = {}
        self.others: dict[str, Counter[bytes]] = {}
        self.ids: set[bytes] = set()
        self.pictures: dict[bytes, tuple[int, int, bytes] | None] = {}
        self.images: Counter[int] = Counter()
        self.widths: list[int] = []
        self.heights: list[int] = []
        self.questions: list[int] = []
        self.answers: list[int] = []
        self.different: set[bytes] = set()
        self.whole: set[bytes] = set()
        self.shown: set[bytes] = set()

    def look(self, source: ImageSource) -> tuple[int, int, bytes]:
        """Width, height and digest of a picture; one file often serves many records."""
        key = _digest(str(source if isinstance(source, Path | str) else source.place))  # type: ignore[union-attr]
        if key not in self.pictures:
            self.pictures[key] = None
            image = load_image(source)
            digest = hashlib.blake2b(image.tobytes(), digest_size=16).digest()
            self.pictures[key] = (image.width, image.height, digest)
        found = self.pictures[key]
        if found is None:
            raise UnreadableImage
        return found

    def add(
        self,
        place: Place,
        row: Demonstration,
        pictures: list[tuple[int, int, bytes]],
        report: DataReport,
    ) -> None:
        for width, height, _ in pictures:
            self.widths.append(width)
            self.heights.append(height)
        self.images[len(row.images)] += 1
        self.questions.append(len(row.question))
        self.answers.append(len(row.answer))
        self.different.add(_digest(row.answer))
        report.several_answers += len(row.accepted) > 1
        if pictures:
            shown = b"".join(digest for _, _, digest in pictures)
            whole = _digest(shown.hex() + row.question + "\0" + row.answer)
            shown = _digest(shown.hex())
            if whole in self.whole:
                report.repeated.append(place)
            elif shown in self.shown:
                report.same_pictures.append(place)
            self.whole.add(whole)
            self.shown.add(shown)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _suggestions(report: DataReport, unit: str | None) -> Iterator[str]:
    lost = sum(map(len, report.bad.values()))
    nameless = sum(len(report.bad.get(reason, ())) for reason in ("no unit", "unit is not text"))
    if nameless:
        yield f"{nameless} of {report.records} rows do not say whose they are: no build takes them."
    if lost > nameless:
        yield (
            f"{lost - nameless} of {report.records} rows cannot be used: correct or remove them, "
            "or build passes over them in silence and their chunks work with less."
        )
    if len(report.bad.get("image file missing", ())) > report.records / 2:
        yield "Most images are not where the paths lead: name the folder they start from, --images."
    if "not UTF-8" in report.bad:
        yield "If the text is of an older Windows program, try --encoding cp1252."
    if unit is None:
        if report.could_be_units:
            named = ", ".join(
                f"{name} ({values} values, at most {most} records each)"
                for name, values, most in report.could_be_units
            )
            yield f"Fields that could name a person: {named}. If one does, build with --unit."
        elif report.same_pictures or report.repeated:
            yield (
                "Some pictures stand in several records: if records of one person do too, add a "
                "field that names the person and build with --unit."
            )
    if report.nearly_equal:
        yield (
            f"{sum(map(len, report.nearly_equal))} values of {unit} are nearly those of others. "
            "Where they are one person's, spell them alike: as several units a person is "
            "protected less."
        )
    n = report.records if report.units is None else report.units
    per_unit = 1
    if report.per_unit is not None and report.per_unit.median > 1:
        per_unit = min(_LARGE_UNIT, int(report.per_unit.median))
    if not report.good:
        return
    what = "units" if report.units is not None else "records"
    options = f"--shots {per_unit} --per-unit {per_unit}" if per_unit > 1 else "the defaults"
    yield f"With these {n} {what}: {options}, for {n} chunks with public queries."
    if n < _ENOUGH_CHUNKS:
        yield (
            "Few chunks: at ε = 1 expect little of the vector to survive the noise, and weigh a "
            "larger ε or more records."
        )


def as_json(report: DataReport) -> dict[str, Any]:
    """Plain values; spreads as [low, median, high]."""
    return {
        name: [value.low, value.median, value.high] if isinstance(value, Spread) else value
        for name, value in vars(report).items()
    }
