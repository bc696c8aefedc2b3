"""What a record says, in any of the usual shapes: pictures, a question, an answer."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpmtv.data.values import is_blank, is_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

IMAGE_FIELDS = (
    "image",
    "images",
    "file_name",
    "file_names",
    "image_file_name",
    "images_file_names",
)
CONVERSATIONS = ("messages", "conversations")

_ROLES = {"user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant"}
_MARK = "<image>"
_INHERITED = 16  # images that a turn has from those before it; all of a long talk would be n²


class Bad(Exception):  # noqa: N818 - never leaves the readers
    """A record that cannot be used, and the reason in fixed words."""


@dataclass(frozen=True)
class Turn:
    """What is asked and answered at once, as it stands in the record: not yet known to be text."""

    images: Sequence[str | bytes]
    question: Any
    answer: Any
    answers: Any = None


def turns_of(named: Mapping[str, Any], first: bool = False) -> list[Turn]:
    """The turns of a conversation, or the first alone; one, where the record is none.

    Raises:
        Bad: it holds nothing of the kind.
    """
    talk = next((named[name] for name in CONVERSATIONS if named[name] is not None), None)
    value = next((named[name] for name in IMAGE_FIELDS if not is_blank(named[name])), None)
    images = [] if talk is not None and is_blank(value) else _references(value)
    if talk is None:
        return [Turn(images, named["question"], named["answer"], named["answers"])]
    if not isinstance(talk, list) or not all(isinstance(message, dict) for message in talk):
        raise Bad("conversation is not a list")
    return _shown(_talk(talk, images)[: 1 if first else None])


@dataclass
class _Said:
    """A turn in the making: what is asked, its own images, and the answer."""

    asked: list[Any] = field(default_factory=list)
    images: list[str | bytes] = field(default_factory=list)
    answer: Any = None


def _talk(messages: Sequence[Mapping[str, Any]], given: Sequence[str | bytes]) -> list[_Said]:
    """Every user message with the assistant message after it; what others say is left out."""
    turns: list[_Said] = []
    rest = iter(given)
    open_turn = _Said()

    def close() -> None:
        if not turns and not open_turn.images:  # no mark says where they belong
            open_turn.images.extend(rest)
        turns.append(open_turn)

    for message in messages:
        role = message.get("role") if message.get("role") is not None else message.get("from")
        content = message.get("content")
        content = message.get("value") if content is None else content
        kind = _ROLES.get(role) if isinstance(role, str) else None
        if kind is None or (kind == "assistant" and not open_turn.asked):
            continue
        texts, images, marks = _parts(content, bool(given))
        if kind == "assistant":
            open_turn.answer = _joined(texts)
            close()
            open_turn = _Said()
            continue
        open_turn.asked += texts or [""]
        open_turn.images += images
        open_turn.images += itertools.islice(rest, marks)
    if open_turn.asked:
        close()
    if not turns:
        raise Bad("no question")
    turns[0].images.extend(rest)  # more images than marks: none is lost
    return turns


def _shown(said: Sequence[_Said]) -> list[Turn]:
    """Turns with their images; one without its own has the last of those before it."""
    turns: list[Turn] = []
    seen: tuple[str | bytes, ...] = ()  # one for many turns
    for turn in said:
        if turn.images:
            seen = (*seen, *turn.images)[-_INHERITED:]
        turns.append(Turn(turn.images or seen, _joined(turn.asked), turn.answer))
    return turns


def _joined(texts: Sequence[Any]) -> Any:
    """One text, or what is none as it is."""
    if all(isinstance(text, str) for text in texts):
        return "\n".join(filter(None, texts))
    return texts[0] if len(texts) == 1 else list(texts)


def _parts(content: Any, marked: bool) -> tuple[list[Any], list[str | bytes], int]:
    """Texts and images of a message, and how many images it takes from the record's own field."""
    texts: list[Any] = []
    images: list[str | bytes] = []
    marks = 0
    for part in content if isinstance(content, list) else [content]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "input_text", "output_text"):
            part = part.get("text")
        elif kind in ("image", "image_url", "input_image"):
            value = next(
                (part[n] for n in ("image_url", "image", "url", "path") if part.get(n)), None
            )
            images += [] if value is None else _references(value)
            marks += value is None
            continue
        elif isinstance(part, dict):
            continue
        if marked and isinstance(part, str) and _MARK in part:
            marks += part.count(_MARK)
            part = " ".join(piece.strip() for piece in part.split(_MARK)).strip()
        if part is not None and part != "":
            texts.append(part)
    return texts, images, marks


def _references(value: Any) -> list[str | bytes]:
    """Image fields come as a path, a data URI, bytes, a Hugging Face struct, or a list of them."""
    found = []
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, Bad):
            raise item
        if isinstance(item, dict):
            names = ("bytes", "path", "url")
            item = next((item[n] for n in names if item.get(n) is not None), None)
        if is_blank(item):
            raise Bad("no image")
        if not isinstance(item, bytes) and not is_text(item):
            raise Bad("image is not text")
        found.append(item)
    if not found:
        raise Bad("no image")
    return found
