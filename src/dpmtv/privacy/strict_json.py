"""Dataclasses to JSON and back, with one canonical form and no tolerance."""

from __future__ import annotations

import hashlib
import json
import math
import types
from dataclasses import Field, fields, is_dataclass
from datetime import date
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from dpmtv.errors import ArtifactError
from dpmtv.types import BoundedRangeEvent, GaussianEvent

T = TypeVar("T")

FloatOrInf = Annotated[float, "inf"]
"""A number whose infinity is written as ``"inf"``; every other float must be finite."""

_TAGS: dict[type, str] = {GaussianEvent: "gaussian", BoundedRangeEvent: "bounded_range"}
"""Classes that carry a ``type`` key, so that unlike kinds can stand in one list."""


SINCE = "since"
"""Metadata of a field: the first format version that has it. Older files are read without it."""


def require(condition: bool, key: str, reason: str) -> None:
    """Raise an ArtifactError that names ``key`` unless ``condition`` holds."""
    if not condition:
        raise ArtifactError(f"certificate: {key} {reason}")


def dumps(value: object) -> str:
    """The canonical text of a dataclass: sorted keys, two spaces, UTF-8, one final newline.

    Its ``sha256`` is the hash of the same text without that key, so that a flipped bit shows even
    where nothing can be recomputed. It shows accidents; whoever edits on purpose can renew it.
    """
    data = _encode(value, getattr(value, "format_version", 0))
    return _text({**data, "sha256": hashlib.sha256(_text(data).encode()).hexdigest()})


def _text(data: object) -> str:
    return json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def loads(kind: type[T], text: str, *format_versions: int) -> T:
    """Decode a dataclass by its type hints: no conversion, no default, no extra key.

    Args:
        kind: the dataclass.
        text: what `dumps` wrote.
        format_versions: those that can be read; the newest comes last.

    Raises:
        ArtifactError: anything that `dumps` would not have written; names the key.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArtifactError("certificate: the file is not valid JSON") from error
    newest = format_versions[-1]
    stated = data.get("format_version") if isinstance(data, dict) else newest
    # Before the keys: another version may have other ones.
    require(stated in format_versions, "format_version", f"is not {newest}: unknown version")
    if isinstance(data, dict):
        data.pop("sha256", None)  # compared below, with everything else
    value: T = _decode(kind, data, "", format_versions[format_versions.index(stated)])
    require(dumps(value) == text, "the file", "was edited: its bytes are not those written")
    return value


def _is_in(field: Field[Any], version: int) -> bool:
    return int(field.metadata.get(SINCE, 0)) <= version


def _encode(value: Any, version: int) -> Any:
    if is_dataclass(value):
        tag = {"type": _TAGS[type(value)]} if type(value) in _TAGS else {}
        names = [f.name for f in fields(value) if _is_in(f, version)]
        return tag | {name: _encode(getattr(value, name), version) for name in names}
    if isinstance(value, tuple):
        return [_encode(item, version) for item in value]
    if isinstance(value, date):
        return value.isoformat()
    return "inf" if value == math.inf else value


def _decode(kind: Any, value: Any, key: str, version: int) -> Any:
    args = get_args(kind)
    if is_dataclass(kind):
        return _decode_object(kind, value, key, version)
    if get_origin(kind) is tuple:
        require(isinstance(value, list), key, "must be a list")
        return tuple(_decode(args[0], item, key, version) for item in value)
    if get_origin(kind) in (Union, types.UnionType):  # tagged classes, or something and None
        if all(arg in _TAGS for arg in args):
            tag = value.get("type") if isinstance(value, dict) else None
            # An unknown tag is refused by the first class, as it refuses any but its own.
            known = next((a for a in args if _TAGS[a] == tag), args[0])
            return _decode(known, value, key, version)
        return None if value is None else _decode(args[0], value, key, version)
    if get_origin(kind) is Literal:
        require(isinstance(value, str) and value in args, key, "is not a known word")
        return value
    if get_origin(kind) is Annotated:  # FloatOrInf
        return math.inf if value == "inf" else _decode(float, value, key, version)
    if issubclass(kind, StrEnum):
        require(isinstance(value, str) and value in list(kind), key, "is not a known word")
        return kind(value)
    if kind is date:
        try:
            day = date.fromisoformat(value)
        except (TypeError, ValueError):
            day = None
        require(day is not None and day.isoformat() == value, key, "must be a day: 2026-01-31")
        return day
    require(type(value) is kind, key, f"must be of type {kind.__name__}")
    require(kind is not float or math.isfinite(value), key, "must be a finite number")
    return value


def _decode_object(kind: Any, value: Any, key: str, version: int) -> Any:
    require(isinstance(value, dict), key or "the file", "must be an object")
    prefix = f"{key}." if key else ""
    hints = get_type_hints(kind, include_extras=True)
    hints = {f.name: hints[f.name] for f in fields(kind) if _is_in(f, version)}
    expected = set(hints) | ({"type"} if kind in _TAGS else set())
    if kind in _TAGS and "type" in value:  # before the keys: another kind has other ones
        require(value["type"] == _TAGS[kind], prefix + "type", "is unknown")
    for name in value.keys() | expected:
        require(name in expected, prefix + name, "is unknown")
        require(name in value, prefix + name, "is missing")
    found = {n: _decode(hint, value[n], prefix + n, version) for n, hint in hints.items()}
    return kind(**found)
