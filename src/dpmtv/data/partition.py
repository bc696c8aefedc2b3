"""Which slots of a private file go into which chunk."""

from __future__ import annotations

import hashlib
import secrets

from dpmtv.errors import DataError, PrivacyParameterError


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

    def rank(slot: int) -> tuple[bytes, int]:
        digest = hashlib.blake2b(slot.to_bytes(8, "big"), key=key, digest_size=16).digest()
        return digest, slot

    order = sorted(range(n), key=rank)
    return [tuple(order[i : i + chunk_size]) for i in range(0, needed, chunk_size)]
