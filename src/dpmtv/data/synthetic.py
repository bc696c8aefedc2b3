"""Public records for those who have none: drawn pictures under random answer rules.

A head search needs tasks that only demonstrations explain, not tasks like the private one. Here
every task is a rule from something plain to see, or from the question, to words drawn at random.
One generator serves all models: it is given the words and knows nothing else of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from PIL import Image

from dpmtv.errors import DataError
from dpmtv.types import Demonstration

SYNTHETIC: Final = "synthetic"
"""Stands for generated records where a public file could be named."""

TASKS, RECORDS = 54, 25
FEWEST_WORDS = 6  # three answers of two words
KINDS = ("seen", "asked", "constant")
"""What an answer follows: the picture, the question alone, or neither (a rule without seeing)."""

_SIDE = 128  # pixels
_AXIS = np.linspace(-1, 1, _SIDE)
_DISC, _BOX, _WEDGE = range(3)
_TONES = _RED, _GREEN, _BLUE, _YELLOW, _BLACK = (
    (220, 30, 30),
    (40, 170, 60),
    (40, 70, 220),
    (235, 215, 40),
    (20, 20, 20),
)
_TWO_WORDS = 5  # every fifth task answers in two words

Draw = Callable[[int, np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class _Attribute:
    """Something plain to see: how it is asked for, and how value 0, 1, … is drawn."""

    questions: tuple[str, ...]
    values: int
    draw: Draw


def _tone(low: int, high: int, rng: np.random.Generator) -> np.ndarray:
    """A random colour between two levels."""
    return rng.integers(low, high, 3).astype(float)


def _plain(tone: np.ndarray) -> np.ndarray:
    picture: np.ndarray = np.tile(tone, (_SIDE, _SIDE, 1))
    return picture


def _spot(
    rng: np.random.Generator, x: float, y: float, radius: float, hole: float = 0.0
) -> np.ndarray:
    """A spot of one colour before a contrasting ground; places and sizes in half picture sides."""
    light, dark = _tone(170, 256, rng), _tone(0, 80, rng)
    inside, ground = (light, dark) if rng.random() < 0.5 else (dark, light)
    distance = np.hypot(_AXIS[None, :] - x, _AXIS[:, None] - y)
    covered = (distance <= radius) & (distance >= hole)
    return np.where(covered[..., None], inside, ground)


def _light(value: int, rng: np.random.Generator) -> np.ndarray:
    return _plain(_tone(190, 256, rng) if value else _tone(0, 66, rng))


def _across(value: int, rng: np.random.Generator) -> np.ndarray:
    x = rng.uniform(0.4, 0.65) * (1 if value else -1)
    return _spot(rng, x, rng.uniform(-0.5, 0.5), rng.uniform(0.2, 0.32))


def _along(value: int, rng: np.random.Generator) -> np.ndarray:
    y = rng.uniform(0.4, 0.65) * (1 if value else -1)
    return _spot(rng, rng.uniform(-0.5, 0.5), y, rng.uniform(0.2, 0.32))


def _size(value: int, rng: np.random.Generator) -> np.ndarray:
    x, y = rng.uniform(-0.2, 0.2, 2)
    return _spot(rng, x, y, rng.uniform(0.6, 0.75) if value else rng.uniform(0.12, 0.22))


def _filling(value: int, rng: np.random.Generator) -> np.ndarray:
    x, y = rng.uniform(-0.2, 0.2, 2)
    radius = rng.uniform(0.5, 0.7)
    return _spot(rng, x, y, radius, hole=radius * 0.7 * value)


def _stripes(value: int, rng: np.random.Generator) -> np.ndarray:
    phase, waves = rng.uniform(0, 2 * np.pi), rng.uniform(9, 16)
    wave = np.sin(_AXIS * waves + phase) > 0
    lit = np.broadcast_to(wave[None, :] if value else wave[:, None], (_SIDE, _SIDE))
    return np.where(lit[..., None], _tone(170, 256, rng), _tone(0, 80, rng))


def _hue(value: int, rng: np.random.Generator) -> np.ndarray:
    tone = _tone(0, 60, rng)
    tone[value] = rng.integers(200, 256)
    return _plain(tone)


def _surface(value: int, rng: np.random.Generator) -> np.ndarray:
    tone = _plain(_tone(70, 186, rng))
    if value:
        grains = rng.normal(0, 60, (_SIDE // 4, _SIDE // 4, 1))
        tone = tone + grains.repeat(4, 0).repeat(4, 1)
    return tone


def _shade(value: int, rng: np.random.Generator) -> np.ndarray:
    rising = (1 + _AXIS * (1 if value else -1)) / 2
    return _plain(_tone(190, 256, rng)) * rising[None, :, None]


def _object(form: int, tone: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """A disc, a box or a wedge of one colour on a light ground."""
    x, y = rng.uniform(-0.3, 0.3, 2)
    radius = rng.uniform(0.35, 0.6)
    across, down = np.abs(_AXIS[None, :] - x), _AXIS[:, None] - y
    if form == _DISC:
        covered = np.hypot(across, down) < radius
    elif form == _BOX:
        covered = (across < 0.9 * radius) & (np.abs(down) < 0.6 * radius)
    else:
        covered = (down < 0.7 * radius) & (down > 2 * across - 0.7 * radius)
    inside = np.array(tone) + rng.normal(0, 8, 3)
    return np.where(covered[..., None], inside, _tone(200, 256, rng))


def _painted(*tones: Sequence[int]) -> Draw:
    """Objects of any form, each value in a colour of its own."""
    return lambda value, rng: _object(int(rng.integers(3)), tones[value], rng)


def _formed(*forms: tuple[int, ...]) -> Draw:
    """Objects of any colour, each value in forms of its own."""

    def draw(value: int, rng: np.random.Generator) -> np.ndarray:
        tone = _TONES[rng.integers(len(_TONES))]
        return _object(int(rng.choice(forms[value])), tone, rng)

    return draw


_COLOR = ("What color is it?", "What is the color?")
_FORM = ("Which shape is in the image?", "Which shape is present?")
_ROUND = ("Is it a circle?", "Is it round?")
_ATTRIBUTES = (
    _Attribute(("How much light is there?", "How is the scene lit?"), 2, _light),
    _Attribute(("On which side is the spot?", "Where is the mark, across?"), 2, _across),
    _Attribute(("At which height is the spot?", "Where is the mark, from top down?"), 2, _along),
    _Attribute(("What size has the spot?", "How much room does the mark take?"), 2, _size),
    _Attribute(("How is the spot filled?", "What is inside the mark?"), 2, _filling),
    _Attribute(("How do the stripes run?", "Which way do the bands go?"), 2, _stripes),
    _Attribute(("Which tint is it?", "What tone fills the frame?"), 3, _hue),
    _Attribute(("What is the surface like?", "How does the texture feel?"), 2, _surface),
    _Attribute(("Where does the shade fall?", "Which end is lighter?"), 2, _shade),
    _Attribute(_COLOR, 2, _painted(_RED, _BLUE)),
    _Attribute(_FORM, 2, _formed((_DISC,), (_BOX,))),
    _Attribute(_COLOR, 2, _painted(_GREEN, _YELLOW)),
    _Attribute(_FORM, 2, _formed((_WEDGE,), (_BOX,))),
    _Attribute(_COLOR, 2, _painted(_BLUE, _BLACK)),
    _Attribute(_FORM, 2, _formed((_DISC,), (_WEDGE,))),
    _Attribute(_COLOR, 3, _painted(_RED, _GREEN, _BLUE)),
    _Attribute(_FORM, 3, _formed((_DISC,), (_BOX,), (_WEDGE,))),
    _Attribute(_ROUND, 2, _formed((_BOX, _WEDGE), (_DISC,))),
)


def synthetic_records(
    words: Sequence[str], *, tasks: int = TASKS, records: int = RECORDS
) -> list[Demonstration]:
    """Public records of ``tasks`` random answer rules, task after task.

    The kinds of rule take turns: the answer follows what is seen, or which of two questions is
    asked, or is the same throughout. Every fifth task answers in two words, the others in one.
    What an answer follows is balanced: within a task each value comes once before any comes again.

    Args:
        words: different words to answer with, six at least; a model's own tokens serve best.
        tasks: number of rules.
        records: records of each.

    Returns:
        Records with ``task`` set and a picture of 128 × 128 pixels in memory; the same ones for
        the same arguments.

    Raises:
        DataError: too few words.
    """
    known = list(dict.fromkeys(words))
    if len(known) < FEWEST_WORDS:
        raise DataError(f"synthetic tasks need {FEWEST_WORDS} different words, not {len(known)}")
    rng = np.random.default_rng(0)  # pictures and rules are public
    made = []
    for number in range(tasks):
        turn, kind = divmod(number, len(KINDS))
        first = _ATTRIBUTES[turn % len(_ATTRIBUTES)]
        other = _ATTRIBUTES[(turn + 1) % len(_ATTRIBUTES)]  # asks something else
        length = 2 if number % _TWO_WORDS == _TWO_WORDS - 1 else 1
        made += _task(
            f"synthetic-{number}-{KINDS[kind]}",
            KINDS[kind],
            first,
            other,
            known,
            length,
            records,
            rng,
        )
    return made


def _task(
    name: str,
    kind: str,
    first: _Attribute,
    other: _Attribute,
    words: Sequence[str],
    length: int,
    records: int,
    rng: np.random.Generator,
) -> list[Demonstration]:
    values = {"seen": first.values, "asked": 2, "constant": 1}[kind]
    drawn = rng.choice(len(words), values * length, replace=False).reshape(values, length)
    answers = [" ".join(words[i] for i in row) for row in drawn]
    # One wording a task where the question is the rule, or its two wordings would be four.
    wording = int(rng.integers(2))
    blocks = [rng.permutation(values) for _ in range(-(-records // values))]
    made = []
    for value in np.concatenate(blocks)[:records].tolist():
        asked = other if kind == "asked" and value else first
        seen = value if kind == "seen" else int(rng.integers(first.values))
        pixels = first.draw(seen, rng) + rng.normal(0, 4, (_SIDE, _SIDE, 1))
        picture = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        if kind != "asked":
            wording = int(rng.integers(len(asked.questions)))
        made.append(Demonstration(picture, asked.questions[wording], answers[value], task=name))
    return made
