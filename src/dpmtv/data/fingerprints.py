"""What a private record is, in one hash: its texts and the bytes of its pictures."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpmtv.data.values import composed
from dpmtv.types import Demonstration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpmtv.data.rows import BadRow

_MOST = 2**26  # bytes of a picture that count: one file must not hold up a build


def record_digests(rows: Sequence[Demonstration | BadRow]) -> list[bytes]:
    """A hash of each record that can be told from others, wherever its file lies.

    Capitals, white space and Unicode form do not count, nor do unit, file format and the pictures'
    names. Rows that cannot be used, or whose picture cannot be read, have none: they never served.
    """
    known: dict[object, str] = {}  # one picture often serves many questions
    found = []
    for row in rows:
        if isinstance(row, Demonstration):
            try:
                pictures = [_picture(image, known) for image in row.images]
            except Exception:  # whatever a damaged file raises: it stops nothing
                continue
            named = [_plain(row.question), _plain(row.answer), *pictures]
            found.append(hashlib.sha256(json.dumps(named).encode()).digest())
    return found


def _plain(text: str) -> str:
    return " ".join(composed(text).split()).casefold()


def _picture(image: Any, known: dict[object, str]) -> str:
    stored = hasattr(image, "place")
    key = image.place if stored else str(image) if isinstance(image, str | Path) else None
    if key is not None and key in known:
        return known[key]
    if stored:
        content = image.read()
    elif key is not None:
        if not os.path.isfile(image):  # a pipe would wait for ever
            raise FileNotFoundError
        with open(image, "rb") as file:
            content = file.read(_MOST)
    else:
        content = repr((image.mode, image.size)).encode() + image.tobytes()
    digest = hashlib.sha256(content[:_MOST]).hexdigest()
    if key is not None:
        known[key] = digest
    return digest
