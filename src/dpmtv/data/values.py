"""What a value of a record is as text, and which texts are one."""

from __future__ import annotations

import datetime
import decimal
import math
import re
import unicodedata
import uuid
from typing import Any

# Characters of a question or an answer. Far more than a model takes: tokenising millions would let
# one record hold up a build.
MAX_TEXT = 2**16
# Composing takes the square of the length of a row of marks. No writing has so many: Unicode's
# stream-safe text (UAX 15) has at most 30.
_MOST_MARKS = 30
# White space, controls, and what Unicode says to leave out of sight (Default_Ignorable).
_UNSEEN = "".join(
    chr(code)
    for first, last in (
        *((0x00, 0x20), (0x7F, 0xA0), (0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C)),
        *((0x115F, 0x1160), (0x1680, 0x1680), (0x17B4, 0x17B5), (0x180B, 0x180F)),
        *((0x2000, 0x200F), (0x2028, 0x202F), (0x205F, 0x206F), (0x2800, 0x2800)),
        *((0x3000, 0x3000), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF)),
        *((0xFFA0, 0xFFA0), (0xFFF0, 0xFFFB), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A)),
        *((0xE0000, 0xE007F), (0xE0100, 0xE01EF)),
    )
    for code in range(first, last + 1)
)
_BLANKS = re.compile(f"[{re.escape(_UNSEEN)}]+")
_WHOLE = re.compile(r"(-?[0-9]+)\.0+")
_BETWEEN = r"[-_./:#\u2010-\u2015\u2212]"
_SEPARATORS = re.compile(f"(?<![0-9]){_BETWEEN}+|{_BETWEEN}+(?![0-9])")
_ZEROS = re.compile(r"(?<![0-9])0+(?=[0-9])")


def is_text(value: Any) -> bool:
    """Whether ``value`` is a string that a tokenizer can take: JSON can spell half characters."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def is_blank(value: Any) -> bool:
    r"""Whether nothing is there, or nothing that can be seen.

    >>> is_blank(" \u200b\ufeff"), is_blank("."), is_blank(0)
    (True, False, False)
    """
    return value is None or (isinstance(value, str) and not value.strip(_UNSEEN))


def written(value: Any) -> Any:
    """Numbers, truth values, dates and times as text; all else as it is.

    A number is its shortest text; a whole one has no fraction, because tables turn 3 into 3.0.

    >>> written(3.0), written(0.1), written(decimal.Decimal("2.50")), written(True), written([])
    ('3', '0.1', '2.50', 'true', [])
    >>> written(datetime.datetime(2024, 5, 6, 7, 8, 9))
    '2024-05-06 07:08:09'
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    if isinstance(value, decimal.Decimal) and value.is_finite() and abs(value.adjusted()) < 1000:
        return str(int(value)) if value == value.to_integral_value() else f"{value:f}"
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta | uuid.UUID):
        return str(value)
    return str(value) if type(value) is int and abs(value) < 10**1000 else value


def composed(text: str, form: Any = "NFC") -> str:
    r"""The same letters in Unicode's normal form C; what no writing has stays as it is.

    >>> composed("gru\u0308n") == "gr\u00fcn"
    True
    """
    if text.isascii() or len(text) > MAX_TEXT:
        return text
    marks = 0
    for character in text:
        marks = marks + 1 if unicodedata.category(character)[0] == "M" else 0
        if marks > _MOST_MARKS:
            return text
    return unicodedata.normalize(form, text)


def unit_name(value: Any) -> Any:
    """The text that names a unit; what is surely one has one name, whatever file it stands in.

    >>> [unit_name(value) for value in (3, 3.0, "3", "3.0", " 3 ", "03", "P 1")]
    ['3', '3', '3', '3', '3', '03', 'P 1']
    """
    value = written(value)
    if not isinstance(value, str):
        return value
    name = composed(value.strip(_UNSEEN))
    whole = _WHOLE.fullmatch(name)
    return (whole[1] if whole[1].strip("-0") else "0") if whole else name


def nearly(name: str) -> str:
    """What is left of a unit's name without capitals, leading zeros, and blanks or marks inside.

    >>> nearly("P 007") == nearly("p-7"), nearly("1-23") == nearly("12-3")
    (True, False)
    """
    plain = composed(composed(name, "NFKC").casefold())
    return _ZEROS.sub("", _SEPARATORS.sub("", _BLANKS.sub("", plain)))
