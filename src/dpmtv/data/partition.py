"""Which slots of a private file go into which chunk."""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING

from dpmtv.errors import DataError, PrivacyParameterError

if TYPE_CHECKING:
    from collections.abc import Sequence


def fresh_key() -> bytes:
    """Draw the 16 bytes that order the slots of one build, from the operating system.

    The key may be kept and even published. The guarantee holds for every fixed key, because it
    bounds what one record can change under any partition; the key only makes the choice
    arbitrary. Kept, it lets an interrupted build go on with the same chunks. Noise is another
    matter: it is the guarantee, and whoever has it subtracts it.
    """
    return secrets.token_bytes(16)


def partition(n: int, chunks: int, chunk_size: int, key: bytes) -> list[tuple[int, ...]]:
    """Cut slots 0 … n-1 into disjoint chunks, in the order of a keyed hash of the slot.

    Surplus slots stay unused. Where a chunk's query is private it is the chunk's last slot.

    *Guarantee.* The result depends on the arguments alone: no record is an argument, so under
    ``replace_one`` and ``zero_out``, where n is public, replacing what a slot holds changes the
    content of at most one chunk and the membership of none.

    | case | result |
    |---|---|
    | n > chunks · chunk_size | the slots of the highest hashes are in no chunk |
    | n < chunks · chunk_size | refused: no short chunks, no slot twice |
    | the same key | the same chunks |

    Args:
        n: number of slots, public.
        chunks: m, the number of chunks, public.
        chunk_size: slots of a chunk: K demonstrations, and one more when the query is private.
        key: `fresh_key`, kept for resuming.

    Returns:
        m tuples of ``chunk_size`` slots.

    Raises:
        PrivacyParameterError: ``chunks`` or ``chunk_size`` is below 1.
        DataError: there are fewer slots than the chunks need.
    """
    if chunks < 1 or chunk_size < 1:
        raise PrivacyParameterError(
            f"{chunks} chunks of {chunk_size} records: both numbers must be at least 1."
        )
    needed = chunks * chunk_size
    if n < needed:
        raise DataError(
            f"{chunks} chunks of {chunk_size} records need {needed} records, and there are {n}. "
            "Use fewer chunks, fewer shots, or more records."
        )

    order = sorted(range(n), key=lambda slot: _rank(key, slot.to_bytes(8, "big")))
    return [tuple(order[i : i + chunk_size]) for i in range(0, needed, chunk_size)]


def assign_by_id(ids: Sequence[str], chunks: int, key: bytes) -> list[tuple[int, ...]]:
    """Send every unit to the chunk that a keyed hash of its id names.

    *Guarantee.* Where a unit goes depends on its own id, the key and the public m alone. A unit
    that is added or removed changes one chunk, and the order of the others in it not at all.

    | case | result |
    |---|---|
    | a chunk gets more units than it can use | all are listed, in hash order; the first serve |
    | a chunk gets none | an empty tuple, a null chunk |
    | an id twice | refused: one unit would be in two places |

    Args:
        ids: one explicit id per unit, each once.
        chunks: m, public, never made from the number of ids.
        key: `fresh_key`.

    Returns:
        m tuples of positions in ``ids``.

    Raises:
        PrivacyParameterError: ``chunks`` is below 1, or an id occurs twice.
    """
    if chunks < 1:
        raise PrivacyParameterError(f"the number of chunks must be at least 1, not {chunks}.")
    if len(set(ids)) < len(ids):
        raise PrivacyParameterError("unit ids must be unique.")
    found: list[list[tuple[bytes, int]]] = [[] for _ in range(chunks)]
    for place, name in enumerate(ids):
        digest = _rank(key, name.encode("utf-8"))
        # The high half chooses the chunk, the low half the order inside it. With 64 bits no
        # chunk is likelier than another by more than m / 2^64.
        found[int.from_bytes(digest[:8], "big") % chunks].append((digest[8:], place))
    return [tuple(place for _, place in sorted(chunk)) for chunk in found]


def choose(count: int, most: int, key: bytes) -> list[int]:
    """Which of a unit's ``count`` records serve: all, or ``most`` of them in hash order.

    A function of the unit alone, so a record too many displaces nobody else's.
    """
    order = sorted(range(count), key=lambda place: _rank(key, b"record" + place.to_bytes(8, "big")))
    return order[:most]


def _rank(key: bytes, name: bytes) -> bytes:
    return hashlib.blake2b(name, key=key, digest_size=16).digest()
