"""The label words: a pool to draw random rules from, and words that are never image labels.

A rule of the suite that is "held out" names its classes with words of HELD_OUT. In training these
words occur in text dictionaries only, so a model that answers a picture with them has read them.
DEV_HELD_OUT are treated likewise and may be watched while training; those of the suite may not.
"""

from __future__ import annotations

import hashlib

_NOUNS = """
anchor apron arrow attic badge bakery balcony barrel basket beacon bell bench blanket board bonnet
bottle bridge broom bucket butter button cabin cable camera candle canoe canvas carpet castle cedar
chalk chapel chimney clock cloud clover cobalt comet compass copper coral cotton cradle crayon
cricket crown crystal curtain cushion dagger daisy desert diamond doctor dolphin drawer drum easel
elbow engine envelope fabric falcon feather fence ferry fiddle flask flute forest fossil fountain
garden garlic gate ginger glacier globe glove granite gravel guitar hammer harvest hazel hedge
helmet hinge honey hood hornet island ivory jacket jasmine jelly jigsaw jungle kernel kettle kitchen
knight ladder lagoon laptop lattice laurel leather ledger linen lizard locket magnet mango maple
marble meadow medal melody mirror mitten monkey mortar muffin museum mustard napkin needle nickel
nugget oasis olive orchard otter oven oyster paddle palace panda paper parrot pebble pencil pepper
piano pickle pigeon pillow pirate pistol plank plaza pocket poem pony poppy pottery prism pulley
puzzle quarry quartz quilt rabbit radar radish raft raven ribbon river rocket rope saddle salmon
sandal satin saucer scarf school shadow shield signal silver siren slipper sparrow spider spiral
sponge spoon squash stable statue stone storm stove sugar summit swan table tablet tailor temple
thistle thread ticket timber tomato towel tower trumpet tunnel turnip vault velvet violin wagon
walnut wallet whistle willow window winter wizard wool yogurt zipper
"""

# Words that the suite keeps for itself, chosen by hand before training.
_HELD_OUT = """
lantern harbor tulip badger walrus cactus pewter saffron hammock pretzel bishop cobweb
turbine mosaic kayak nectar gazebo fennel rudder sonnet
dovu kila rone saji temu luba pogi vaze wiko hune
"""
HELD_OUT = tuple(_HELD_OUT.split())
_DEV = "beetle corsair magpie trellis pumice lotus heron zenith bamu ceno firo gule"
DEV_HELD_OUT = tuple(_DEV.split())


def _codes(count: int) -> list[str]:
    """Invented words of two syllables, in an order that only their spelling decides."""
    syllables = [c + v for c in "bcdfghjklmnprstvwz" for v in "aeiou"]
    words = {a + b for a in syllables for b in syllables if a != b}
    words -= {*HELD_OUT, *DEV_HELD_OUT}
    return sorted(words, key=lambda w: hashlib.sha256(w.encode()).digest())[:count]


POOL = (*dict.fromkeys(_NOUNS.split()), *_codes(750))
