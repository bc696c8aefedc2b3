"""What the text model reads in training: sequences of demonstrations under one rule each.

A rule is a list of (question family, answers): the trained conventions, random ones with words of
the pool, random styles around a known list of names, two conventions mixed by question, and text
dictionaries without pictures, where alone the held-out words occur.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from conventions import (
    BINARY,
    CLASSES,
    CONVENTIONS,
    HELD_OUT_MIXES,
    HELD_OUT_PAIRS,
    HELD_OUT_STYLES,
    QUESTIONS,
    SHAPES,
    SOURCE,
    TURNED,
    WARM,
    Convention,
)
from model import END, SPECIAL
from pictures import Picture
from words import DEV_HELD_OUT, HELD_OUT, POOL

END_WEIGHT = 0.3
FIRST_CLASS = dict(zip(CLASSES, np.cumsum([0, *CLASSES.values()])[:-1].tolist(), strict=True))
N_CLASSES = sum(CLASSES.values())
NAMES = tuple(
    c
    for c in CONVENTIONS
    if c.family in ("digit", "color", "shape")
    and len(set(c.answers)) == CLASSES[c.family]
    and all(len(a.split()) == 1 for a in c.answers)
)
SHARED = tuple(c for c in CONVENTIONS if c.name.split("-turned-")[0] in TURNED)


@dataclass(frozen=True)
class Rule:
    """One sequence's rule: a convention for each question family, or a dictionary of words.

    ``known`` rules can be answered before any demonstration was seen; ``noise`` is the share of
    records that ``other`` answers, or a wrong class where there is no other.
    """

    parts: tuple[Convention, ...] = ()
    known: bool = False
    noise: float = 0.0
    other: Convention | None = None
    dictionary: tuple[tuple[str, str], ...] = ()


def class_of(picture: Picture, family: str) -> int:
    """Class index of the picture under one family; presence is decided by the question."""
    if family in ("digit", "color", "shape"):
        return getattr(picture, family)
    return int(
        {
            "parity": lambda: picture.digit % 2 == 0,
            "size": lambda: picture.digit >= 5,
            "warmth": lambda: picture.color in WARM,
            "round": lambda: picture.shape == 0,
        }[family]()
    )


def ask(picture: Picture, family: str, rng: np.random.Generator) -> tuple[str, int]:
    """A question of the family about the picture, and the class that answers it."""
    questions = QUESTIONS[family]
    if family == "presence":
        there = bool(rng.integers(2))
        shape = picture.shape if there else (picture.shape + int(rng.integers(1, 3))) % len(SHAPES)
        wordings = [q for q in questions if SHAPES[shape] in q]
        return wordings[rng.integers(len(wordings))], int(there)
    return questions[rng.integers(len(questions))], class_of(picture, family)


class RuleSource:
    """Draws rules. The shares of the kinds are the recipe; see docs/embedded.md."""

    def __init__(self, rng: np.random.Generator, image_words: Sequence[str] = POOL):
        self.rng = rng
        self.image_words = image_words

    def _pick(self, items: Sequence, count: int) -> list:
        return [items[i] for i in self.rng.choice(len(items), count, replace=False)]

    def fixed(self) -> Rule:
        """A trained convention, now and then with noisy annotators."""
        rng = self.rng
        rule = CONVENTIONS[rng.integers(len(CONVENTIONS))]
        if rng.random() < 0.85:
            return Rule((rule,), known=True)
        others = [c for c in CONVENTIONS if c.family == rule.family and c is not rule]
        other = others[rng.integers(len(others))] if rng.random() < 0.6 else None
        return Rule((rule,), known=True, noise=float(rng.uniform(0.15, 0.35)), other=other)

    def random(self) -> Rule:
        """Two or three words of the pool (sometimes two words each) on a named attribute."""
        rng = self.rng
        # Presence twice: comparing the question with the picture is what is learned last.
        families = (*BINARY, "shape", "presence")
        family = families[rng.integers(len(families))]
        count = CLASSES[family]
        length = 2 if rng.random() < 0.1 else 1
        while True:
            words = self._pick(self.image_words, count * length)
            answers = tuple(" ".join(words[i * length : (i + 1) * length]) for i in range(count))
            if frozenset(answers) not in HELD_OUT_PAIRS:
                return Rule((Convention("random", family, answers),))

    def turned(self) -> Rule:
        """A trained rule that shares its words with others: only demonstrations tell them apart."""
        # By the number of classes: with ten, demonstrations seldom show the class asked for.
        weight = np.array([CLASSES[c.family] for c in SHARED])
        return Rule((SHARED[self.rng.choice(len(SHARED), p=weight / weight.sum())],), known=True)

    def swapped(self) -> Rule:
        """A trained list of few names in a random order."""
        few = [c for c in CONVENTIONS if c.family in (*BINARY, "shape")]
        while True:
            rule = few[self.rng.integers(len(few))]
            if len(set(rule.answers)) == 1 or frozenset(rule.answers) in HELD_OUT_PAIRS:
                continue
            answers = tuple(rule.answers[i] for i in self.rng.permutation(len(rule.answers)))
            return Rule((Convention("swapped", rule.family, answers),))

    def styled(self) -> Rule:
        """A word of the pool before or after the names of a trained convention."""
        rule = NAMES[self.rng.integers(len(NAMES))]
        (word,) = self._pick([w for w in self.image_words if w not in HELD_OUT_STYLES], 1)
        pattern = f"{word} {{}}" if self.rng.random() < 0.5 else f"{{}} {word}"
        answers = tuple(pattern.format(a) for a in rule.answers)
        return Rule((Convention("styled", rule.family, answers),))

    def mixed(self) -> Rule:
        """Two trained conventions for two kinds of question about the same pictures."""
        rng = self.rng
        while True:
            first, second = (CONVENTIONS[i] for i in rng.integers(len(CONVENTIONS), size=2))
            same_pictures = SOURCE[first.family] == SOURCE[second.family]
            if not same_pictures or first.family == second.family:
                continue
            if not any({first.name, second.name} <= mix for mix in HELD_OUT_MIXES):
                return Rule((first, second), known=True)

    def dictionary(self) -> Rule:
        """Two to four keys and their words, any word of all; one in five has two-word values."""
        rng = self.rng
        count = int(rng.integers(2, 5))
        keys = self._pick(POOL, count)
        rare = self._pick((*HELD_OUT, *DEV_HELD_OUT), count)
        usual = self._pick(POOL, 2 * count)
        values = [rare[i] if rng.random() < 0.4 else usual[i] for i in range(count)]
        if rng.random() < 0.2:
            values = [f"{v} {usual[count + i]}" for i, v in enumerate(values)]
        return Rule(dictionary=tuple(zip(keys, values, strict=True)))

    def draw(self, count: int, shares: dict[str, float]) -> list[Rule]:
        """Rules of the named kinds."""
        kinds = self.rng.choice(list(shares), size=count, p=list(shares.values()))
        return [getattr(self, kind)() for kind in kinds]


@dataclass
class _Row:
    ids: list[int]
    want: list[int] = field(default_factory=list)
    weight: list[float] = field(default_factory=list)
    colon: list[int] = field(default_factory=list)
    label: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)  # the ':' of each answered record

    def fill(self) -> None:
        missing = len(self.ids) - len(self.want)
        self.want += [-100] * missing
        self.weight += [0.0] * missing


class Sequences:
    """Builds batches of interleaved demonstrations from cached picture features."""

    def __init__(self, tokenizer: object, pictures: list[Picture], features: Tensor, seed: int):
        self.tokenizer = tokenizer
        self.pictures, self.features = pictures, features
        self.rng = np.random.default_rng(seed)
        special = dict(zip(SPECIAL, tokenizer.convert_tokens_to_ids(SPECIAL), strict=True))
        fake = special["<fake_token_around_image>"]
        self.picture_ids = [fake, special["<global-img>"], *[special["<image>"]] * 4, fake]
        self.bos, self.end, self.pad = special["<bos>"], special[END], special["<pad>"]
        self.image = special["<image>"]
        self.cache: dict[str, list[int]] = {}
        self.by_source = {
            s: [i for i, p in enumerate(pictures) if p.source == s] for s in ("digits", "shapes")
        }
        shapes = self.by_source["shapes"]
        self.by_shape = [[i for i in shapes if pictures[i].shape == s] for s in range(3)]
        self.by_class = {
            family: [
                [i for i in self.by_source[SOURCE[family]] if class_of(pictures[i], family) == c]
                for c in range(CLASSES[family])
            ]
            for family in BINARY
            if family != "presence"
        }
        self.one_question = 0.0  # share of presence questions that name the first shape

    def encode(self, text: str) -> list[int]:
        if text not in self.cache:
            self.cache[text] = self.tokenizer.encode(text, add_special_tokens=False)
        return self.cache[text]

    def record(self, family: str) -> tuple[int, str, int]:
        """A random picture, a question, and the class asked for; binary classes are balanced."""
        rng = self.rng
        if family == "presence":
            asked = 0 if rng.random() < self.one_question else int(rng.integers(3))
            there = int(rng.integers(2))
            pool = self.by_shape[asked if there else int((asked + rng.integers(1, 3)) % 3)]
            wordings = [q for q in QUESTIONS[family] if SHAPES[asked] in q]
            return pool[rng.integers(len(pool))], wordings[rng.integers(len(wordings))], there
        if family in self.by_class:
            classes = self.by_class[family]
            pool = classes[rng.integers(len(classes))]
        else:
            pool = self.by_source[SOURCE[family]]
        index = pool[rng.integers(len(pool))]
        return index, *ask(self.pictures[index], family, rng)

    def _one(self, rule: Rule, row: _Row, shown: list[int], seen: set, options: bool) -> str | None:
        """Write one record's picture and question into the row; the answer, or None if wrong."""
        rng = self.rng
        if rule.dictionary:
            key, value = rule.dictionary[rng.integers(len(rule.dictionary))]
            row.ids += self.encode(f" {key} Answer:")
            mark, label, answer, clean = key, -100, value, True
        else:
            part = rule.parts[rng.integers(len(rule.parts))]
            index, question, number = self.record(part.family)
            shown.append(index)
            if options:
                words = list(dict.fromkeys(part.answers))
                listed = ", ".join(words[i] for i in rng.permutation(len(words)))
                question = f"{question} One of: {listed}."
            row.ids += [*self.picture_ids, *self.encode(f"{question} Answer:")]
            label = FIRST_CLASS[part.family] + number
            answer, clean = part.answers[number], True
            if rule.noise and rng.random() < rule.noise:
                clean = False
                wrong = [a for a in part.answers if a != answer]
                answer = (
                    rule.other.answers[number] if rule.other else wrong[rng.integers(len(wrong))]
                )
            mark = (part.family, number)
        row.colon.append(len(row.ids) - 1)
        row.label.append(label)
        # An answer that nothing seen so far can tell is written and not asked for.
        guessable = rule.known or options or mark in seen
        # A style is known in half once any record was seen; its names are trained.
        guessable = guessable or (bool(seen) and rule.parts and rule.parts[0].name == "styled")
        seen.add(mark)
        row.first.append(len(row.ids) - 1 if guessable and clean else -1)
        return answer

    def batch(
        self,
        rules: Sequence[Rule],
        length: int,
        last_only: bool = False,
        options: bool = False,
        ask_all: bool = False,
    ) -> dict:
        """One sequence per rule, each of ``length`` records.

        With ``last_only`` the final record has no answer: a prompt that ends at "Answer:". With
        ``options`` the possible words are listed in the question; ``ask_all`` wants every answer.
        """
        rows, shown = [], []
        for rule in rules:
            row, seen = _Row([self.bos]), set()
            for position in range(length):
                answer = self._one(rule, row, shown, seen, options)
                row.fill()
                if last_only and position == length - 1:
                    row.first.pop()
                    break
                ids = self.encode(f" {answer}")
                if row.first[-1] >= 0 or ask_all:
                    row.want[-1], row.weight[-1] = ids[0], 1.0
                    row.want += [*ids[1:], self.end]
                    row.weight += [1.0] * (len(ids) - 1) + [END_WEIGHT]
                row.ids += [*ids, self.end]
                row.fill()
            rows.append(row)
        width = max(len(r.ids) for r in rows)

        def padded(name: str, fill: float) -> Tensor:
            lists = [getattr(r, name) for r in rows]
            return torch.tensor([v + [fill] * (width - len(v)) for v in lists])

        copies = self.rng.integers(len(self.features), size=len(shown))
        return {
            "ids": padded("ids", self.pad),
            "want": padded("want", -100),
            "weight": padded("weight", 0.0),
            "colon": torch.tensor([r.colon for r in rows]),
            "label": torch.tensor([r.label for r in rows]),
            "firsts": [r.first for r in rows],
            "features": self.features[torch.from_numpy(copies), torch.tensor(shown)].float()
            if shown
            else None,
        }
