"""The answer conventions: one image, one question, and a rule that only demonstrations reveal.

Every convention maps the class of an image (a digit 0-9, one of eight colours, one of three
shapes, or "the shape asked for is there") to the words of an answer. The list is fixed before
training; TASKS are the ten that play the private role, PUBLIC_TASKS the ones that play the
public role in head selection. All of them are trained on, with other images.
"""

from __future__ import annotations

from dataclasses import dataclass

COLORS = ("black", "blue", "brown", "gray", "green", "red", "teal", "yellow")
SHAPES = ("circle", "rectangle", "triangle")

# Two wordings a family, as people ask; presence questions name one shape.
QUESTIONS = {
    "digit": ("What digit is this?", "Which number is shown?"),
    "color": ("What color is the shape?", "What is the color of the shape?"),
    "shape": ("What shape is in the image?", "What shape is present?"),
    "presence": tuple(f"Does the image contain a {shape}?" for shape in SHAPES),
}


@dataclass(frozen=True)
class Convention:
    """A rule from image class to answer words.

    ``answers[i]`` answers class i of the family; for "presence", (no, yes).
    """

    name: str
    family: str
    answers: tuple[str, ...]


def _c(name: str, answers: str) -> Convention:
    family = name.split("-")[0]
    words = tuple(answers.split("|") if "|" in answers else answers.split())
    size = {"digit": 10, "color": 8, "shape": 3, "presence": 2}[family]
    if len(words) != size:
        raise ValueError(f"{name}: {len(words)} answers for {size} classes")
    return Convention(name, family, words)


CONVENTIONS = (
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
    _c("shape-round", "round angular angular"),
    _c("shape-phrase", "a circle|a rectangle|a triangle"),
    _c("shape-edges", "no edges|four edges|three edges"),
    # presence (no, yes)
    _c("presence-english", "no yes"),
    _c("presence-french", "non oui"),
    _c("presence-german", "nein ja"),
    _c("presence-truth", "false true"),
    _c("presence-verdict", "wrong right"),
    _c("presence-state", "absent present"),
    _c("presence-sign", "negative positive"),
    _c("presence-phrase", "not there|it is there"),
)

BY_NAME = {c.name: c for c in CONVENTIONS}

TASKS = (
    "digit-french",
    "digit-roman",
    "digit-nato",
    "digit-parity",
    "digit-phrase",
    "color-german",
    "color-gem",
    "color-warmth",
    "shape-spanish",
    "presence-french",
)

PUBLIC_TASKS = (
    "digit-english",
    "digit-greek",
    "digit-fruit",
    "digit-size",
    "digit-code",
    "color-english",
    "color-planet",
    "color-light",
    "color-phrase",
    "shape-german",
    "shape-phrase",
    "presence-english",
    "presence-state",
)
