"""The answer conventions and the suite: fixed and committed before the model was trained.

A convention maps the class of a picture to the words of an answer; one picture and one question
have many right answers, and only demonstrations tell which is wanted. CONVENTIONS are trained on
(with other pictures), SUITE lists the tasks that play the private role, PUBLIC_TASKS those that
play the public one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from words import HELD_OUT

COLORS = ("black", "blue", "brown", "gray", "green", "red", "teal", "yellow")
SHAPES = ("circle", "rectangle", "triangle")
WARM = {2, 5, 7}  # brown, red, yellow

# The attribute asked for → how people ask. Colour, shape and presence are easy-VQA's wordings.
QUESTIONS = {
    "digit": ("What digit is this?", "Which number is shown?"),
    "parity": ("Is the number even?", "Is this an even number?"),
    "size": ("Is the number large?", "Is this a large number?"),
    "color": ("what color is the shape?", "what is the color of the shape?"),
    "warmth": ("is the color warm?", "is it a warm color?"),
    "shape": ("what shape is in the image?", "what shape is present?"),
    "round": ("is the shape round?", "is it a round shape?"),
    "presence": tuple(
        text.format(shape)
        for shape in SHAPES
        for text in ("does the image contain a {}?", "is there a {} in the image?")
    ),
}
CLASSES = {
    "digit": 10,
    "parity": 2,
    "size": 2,
    "color": 8,
    "warmth": 2,
    "shape": 3,
    "round": 2,
    "presence": 2,
}
SOURCE = {f: "digits" if f in ("digit", "parity", "size") else "shapes" for f in CLASSES}
BINARY = tuple(f for f, n in CLASSES.items() if n == 2)  # class 1 means yes


@dataclass(frozen=True)
class Convention:
    """A rule from the class of a picture to answer words.

    ``answers[i]`` answers class i of the family; (no, yes) for the binary ones.
    """

    name: str
    family: str
    answers: tuple[str, ...]


def _c(name: str, answers: str) -> Convention:
    family = name.split("-")[0]
    words = tuple(answers.split("|") if "|" in answers else answers.split())
    if len(words) != CLASSES[family]:
        raise ValueError(f"{name}: {len(words)} answers for {CLASSES[family]} classes")
    return Convention(name, family, words)


def _turned(rule: Convention, by: int) -> Convention:
    """The same words, each standing for another class."""
    words = rule.answers[by:] + rule.answers[:by]
    return replace(rule, name=f"{rule.name}-turned-{by}", answers=words)


_PLAIN = (
    # digits: languages, codes, invented names, coarse classes, answers of several words
    _c("digit-english", "zero one two three four five six seven eight nine"),
    _c("digit-arabic", "0 1 2 3 4 5 6 7 8 9"),
    _c("digit-french", "zéro un deux trois quatre cinq six sept huit neuf"),
    _c("digit-german", "null eins zwei drei vier fünf sechs sieben acht neun"),
    _c("digit-spanish", "cero uno dos tres cuatro cinco seis siete ocho nueve"),
    _c("digit-dutch", "nul een twee drie vier vijf zes zeven acht negen"),
    _c("digit-roman", "N I II III IV V VI VII VIII IX"),
    _c("digit-nato", "alfa bravo charlie delta echo foxtrot golf hotel india juliett"),
    _c("digit-letter", "A B C D E F G H J K"),
    _c("digit-greek", "alpha beta gamma epsilon zeta eta theta iota kappa lambda"),
    _c("digit-fruit", "apple banana cherry date elderberry fig grape honeydew kiwi lemon"),
    _c("digit-animal", "ant bear cat dog eagle fox goat horse ibis jaguar"),
    _c("digit-month", "january february march april may june july august september october"),
    _c("digit-parity", "even odd even odd even odd even odd even odd"),
    _c("digit-pair", "pair impair pair impair pair impair pair impair pair impair"),
    _c("digit-size", "low low low low low high high high high high"),
    _c("digit-third", "small small small small middle middle middle big big big"),
    _c(
        "digit-phrase",
        "number zero|number one|number two|number three|number four|number five|number six"
        "|number seven|number eight|number nine",
    ),
    _c("digit-code", "code 0|code 1|code 2|code 3|code 4|code 5|code 6|code 7|code 8|code 9"),
    # colours
    _c("color-english", "black blue brown gray green red teal yellow"),
    _c("color-french", "noir bleu marron gris vert rouge sarcelle jaune"),
    _c("color-german", "schwarz blau braun grau grün rot türkis gelb"),
    _c("color-spanish", "negro azul pardo plomo verde rojo turquesa amarillo"),
    _c("color-gem", "onyx sapphire agate pearl emerald ruby opal topaz"),
    _c("color-code", "K0 B1 N2 S3 G4 R5 T6 Y7"),
    _c("color-planet", "pluto neptune jupiter mercury earth mars uranus venus"),
    _c("color-warmth", "cool cool warm cool cool warm cool warm"),
    _c("color-light", "dark dark dark bright bright bright bright bright"),
    _c(
        "color-phrase",
        "painted black|painted blue|painted brown|painted gray|painted green|painted red"
        "|painted teal|painted yellow",
    ),
    # shapes
    _c("shape-english", "circle rectangle triangle"),
    _c("shape-french", "cercle carré trigone"),
    _c("shape-german", "kreis rechteck dreieck"),
    _c("shape-spanish", "círculo rectángulo triángulo"),
    _c("shape-object", "ball box roof"),
    _c("shape-letter", "O M W"),
    _c("shape-round", "curved angular angular"),
    _c("shape-phrase", "a circle|a rectangle|a triangle"),
    _c("shape-edges", "no edges|four edges|three edges"),
    # yes or no
    _c("presence-english", "no yes"),
    _c("presence-french", "non oui"),
    _c("presence-german", "nein ja"),
    _c("presence-truth", "false true"),
    _c("presence-verdict", "wrong right"),
    _c("presence-state", "absent present"),
    _c("presence-sign", "negative positive"),
    _c("presence-phrase", "not there|it is there"),
    _c("parity-english", "no yes"),
    _c("parity-french", "non oui"),
    _c("parity-grade", "uneven paired"),
    _c("size-english", "no yes"),
    _c("size-german", "nein ja"),
    _c("size-height", "tiny huge"),
    _c("warmth-english", "no yes"),
    _c("warmth-truth", "false true"),
    _c("warmth-weather", "icy sunny"),
    _c("round-english", "no yes"),
    _c("round-sign", "negative positive"),
    _c("round-feel", "pointed smooth"),
)
_BY_NAME = {c.name: c for c in _PLAIN}

# Groups that share their words and differ in the mapping alone: the words are not enough.
TURNED = {
    "digit-nato": (3, 5, 7),
    "digit-fruit": (4,),
    "digit-parity": (1,),
    "color-gem": (2, 3, 5),
    "color-planet": (3,),
    "shape-object": (1, 2),
    "shape-letter": (1,),
    "presence-english": (1,),
    "presence-truth": (1,),
    "parity-english": (1,),
    "size-english": (1,),
    "warmth-english": (1,),
    "round-english": (1,),
}
CONVENTIONS = _PLAIN + tuple(
    _turned(_BY_NAME[name], by) for name, turns in TURNED.items() for by in turns
)
BY_NAME = {c.name: c for c in CONVENTIONS}


@dataclass(frozen=True)
class Task:
    """One task of the suite.

    Args:
        name: folder name.
        group: line of the results tables.
        rules: the convention wanted for each family of questions (several: mixed by question).
        noise: share of annotators (``other`` given) or of answers (otherwise) that are wrong.
        other: the convention that such annotators follow.
    """

    name: str
    group: str
    rules: tuple[Convention, ...]
    noise: float = 0.0
    other: Convention | None = None


def _trained(name: str) -> Task:
    return Task(name, "trained", (BY_NAME[name],))


def _new(group: str, name: str, answers: str) -> Task:
    return Task(name, group, (_c(name, answers),))


def _noisy(name: str, noise: float, other: str = "") -> Task:
    return Task(f"{name}-noisy", "noisy", (BY_NAME[name],), noise, BY_NAME.get(other))


def _styled(name: str, family: str, pattern: str) -> Task:
    words = tuple(pattern.format(word) for word in BY_NAME[family].answers)
    return Task(name, "new combination", (Convention(name, family.split("-")[0], words),))


def _inverted(name: str) -> Task:
    rule = BY_NAME[name]
    return Task(
        f"{name}-inverted", "inverted", (replace(rule, answers=tuple(reversed(rule.answers))),)
    )


_H = HELD_OUT
SUITE = (
    *map(
        _trained,
        (
            "digit-french",
            "digit-roman",
            "digit-phrase",
            "digit-nato-turned-3",
            "digit-nato-turned-5",
            "digit-parity-turned-1",
            "color-german",
            "color-gem",
            "color-gem-turned-2",
            "color-warmth",
            "color-phrase",
            "shape-spanish",
            "shape-object-turned-1",
            "shape-edges",
            "presence-french",
            "presence-english-turned-1",
        ),
    ),
    _noisy("digit-dutch", 0.3, "digit-english"),
    _noisy("color-spanish", 0.3, "color-code"),
    _noisy("shape-french", 0.3, "shape-english"),
    _noisy("presence-german", 0.25),
    # mixed by question type: each rule is trained on, this pair of them is not
    Task("mixed-color-shape", "mixed", (BY_NAME["color-french"], BY_NAME["shape-object"])),
    Task(
        "mixed-easy-vqa",
        "mixed",
        tuple(BY_NAME[f"{f}-english"] for f in ("color", "shape", "presence")),
    ),
    # never an image label in training
    _new("held-out words", "parity-words", f"{_H[0]} {_H[1]}"),
    _new("held-out words", "size-words", f"{_H[20]} {_H[21]}"),
    _new("held-out words", "warmth-words", f"{_H[2]} {_H[3]}"),
    _new("held-out words", "round-words", f"{_H[22]} {_H[23]}"),
    # each word is an image label in training, the pair never
    _new("held-out pairs", "parity-pair", "kettle willow"),
    _new("held-out pairs", "warmth-pair", "granite otter"),
    _new("held-out pairs", "presence-pair", "mirror cedar"),
    _styled("digit-style", "digit-german", f"{_H[4]} {{}}"),
    _styled("color-style", "color-english", "{} velvet"),
    _inverted("presence-state"),
    _inverted("size-height"),
    _inverted("warmth-weather"),
    _new("two new words", "parity-two-words", f"{_H[5]} {_H[24]}|{_H[6]} {_H[25]}"),
    _new("two new words", "round-two-words", f"{_H[7]} {_H[26]}|{_H[8]} {_H[27]}"),
    _new("new names", "shape-names", f"{_H[9]} {_H[10]} {_H[11]}"),
    _new("new names", "digit-names", " ".join(_H[12:20] + _H[28:30])),
)

PUBLIC_TASKS = (
    *(
        BY_NAME[name]
        for name in (
            "digit-english",
            "digit-greek",
            "digit-fruit",
            "digit-fruit-turned-4",
            "digit-size",
            "digit-code",
            "color-english",
            "color-planet",
            "color-planet-turned-3",
            "color-light",
            "shape-german",
            "shape-phrase",
            "presence-truth",
            "presence-truth-turned-1",
            "parity-english",
            "size-english-turned-1",
            "warmth-truth",
            "round-sign",
        )
    ),
    # two rules of their own for these questions, with words of the pool
    _c("parity-public", "barrel meadow"),
    _c("round-public", "cobalt parrot"),
)

# Pairs that a random rule of training may not use, in either order.
HELD_OUT_PAIRS = frozenset(
    frozenset(r.answers)
    for t in SUITE
    if t.group in ("held-out pairs", "inverted")
    for r in t.rules
)
# Styled words likewise ("{} velvet" on colours).
HELD_OUT_STYLES = frozenset({"velvet"})
# Conventions that a mixed rule of training may not put together.
HELD_OUT_MIXES = tuple({r.name for r in t.rules} for t in SUITE if t.group == "mixed")
