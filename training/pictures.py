"""The pictures: scikit-learn's digits and easy-VQA's shapes, split once and augmented for training.

Splits are by picture and fixed by hash, so that no private or test picture is ever trained on.
The digits come without writer ids, so the split is not writer-disjoint; the shapes are drawn.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from conventions import COLORS, SHAPES

SIZE = 64
SPLITS = {
    "digits": {"train": 390, "dev": 30, "public": 80, "private": 1000, "test": 100, "sealed": 197},
    "shapes": {
        "train": 1300,
        "dev": 100,
        "public": 238,
        "private": 1000,
        "test": 100,
        "sealed": 300,
    },
}


@dataclass(frozen=True)
class Picture:
    """One picture with its classes; ``digit`` or (``color``, ``shape``) is None."""

    source: str
    name: str
    pixels: np.ndarray  # [64, 64, 3] uint8
    digit: int | None = None
    color: int | None = None
    shape: int | None = None


def _digits() -> list[Picture]:
    from sklearn.datasets import load_digits

    found = load_digits()
    pictures = []
    for index, (grid, digit) in enumerate(zip(found.images, found.target, strict=True)):
        small = Image.fromarray((grid * (255 / 16)).astype(np.uint8))
        large = Image.new("L", (SIZE, SIZE))  # a margin of 8, as around a written digit
        large.paste(small.resize((48, 48), Image.Resampling.BICUBIC), (8, 8))
        large = large.convert("RGB")
        pictures.append(Picture("digits", f"digit-{index:04d}", np.asarray(large), int(digit)))
    return pictures


def _shapes() -> list[Picture]:
    """One picture per easy-VQA image whose colour and shape its own questions reveal."""
    import easy_vqa

    root = Path(easy_vqa.__file__).parent / "data"
    pictures = []
    for split in ("train", "test"):
        known: dict[int, dict[str, int]] = {}
        for _, answer, image_id in json.loads((root / split / "questions.json").read_text()):
            if answer in COLORS:
                known.setdefault(image_id, {})["color"] = COLORS.index(answer)
            elif answer in SHAPES:
                known.setdefault(image_id, {})["shape"] = SHAPES.index(answer)
        for image_id, classes in sorted(known.items()):
            if len(classes) < 2:
                continue
            with Image.open(root / split / "images" / f"{image_id}.png") as image:
                pixels = np.asarray(image.convert("RGB"))
            pictures.append(Picture("shapes", f"shape-{split}-{image_id:04d}", pixels, **classes))
    return pictures


def load_splits() -> dict[str, list[Picture]]:
    """Split name → pictures of both sources; identical pictures are kept once."""
    splits: dict[str, list[Picture]] = {name: [] for name in SPLITS["digits"]}
    for source, pictures in (("digits", _digits()), ("shapes", _shapes())):
        unique = {p.pixels.tobytes(): p for p in pictures}.values()
        order = sorted(unique, key=lambda p: hashlib.sha256(p.name.encode()).digest())
        order.sort(key=lambda p: "-test-" in p.name)  # easy-VQA's own test pictures come last
        start = 0
        for split, count in SPLITS[source].items():
            chosen = order[start : start + count]
            if len(chosen) < count:
                raise ValueError(f"{source}: only {len(chosen)} of {count} pictures for {split}")
            splits[split] += chosen
            start += count
    names = [p.name for pictures in splits.values() for p in pictures]
    if len(set(names)) < len(names):
        raise ValueError("a picture is in two splits")
    return splits


def to_model(pixels: np.ndarray) -> np.ndarray:
    """uint8 [..., 64, 64, 3] → float32 [..., 3, 64, 64] in [-1, 1], as the image processor does."""
    return np.moveaxis(pixels.astype(np.float32) / 127.5 - 1, -1, -3)


def augment(picture: Picture, rng: np.random.Generator) -> np.ndarray:
    """A slightly turned, scaled, shifted, brightened copy; uint8 [64, 64, 3]."""
    image = Image.fromarray(picture.pixels)
    digit = picture.digit is not None
    angle = rng.uniform(-12, 12) if digit else rng.uniform(-25, 25)
    radians = np.deg2rad(angle)
    turn = np.array([[np.cos(radians), np.sin(radians)], [-np.sin(radians), np.cos(radians)]])
    slant = np.array([[1, rng.uniform(-0.2, 0.2) if digit else 0], [0, 1]])
    stretch = np.diag(
        1 / rng.uniform(0.85, 1.15, 2) if digit else [1 / rng.uniform(0.85, 1.15)] * 2
    )
    linear = stretch @ slant @ turn
    middle = np.full(2, (SIZE - 1) / 2)
    shift = middle - linear @ (middle + rng.uniform(-4, 4, 2))
    matrix = (*linear[0], shift[0], *linear[1], shift[1])
    corner = tuple(int(v) for v in picture.pixels[0, 0])
    image = image.transform(
        (SIZE, SIZE), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=corner
    )
    pixels = np.asarray(image).astype(np.float32)
    if digit:
        pixels = pixels * rng.uniform(0.75, 1.1) + rng.normal(0, 4, pixels.shape)
    else:
        pixels = pixels + rng.normal(0, 2, pixels.shape)
        if rng.random() < 0.5:
            pixels = pixels[:, ::-1]
    return np.clip(pixels, 0, 255).astype(np.uint8)
