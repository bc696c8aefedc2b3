"""Private rows, by unit, into chunks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dpmtv.data.demonstrations import group_by_unit
from dpmtv.data.partition import assign_by_id, choose, partition
from dpmtv.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpmtv.data.demonstrations import BadRow
    from dpmtv.types import Demonstration

    Row = Demonstration | BadRow


def rows_of_units(rows: Sequence[Row], named: bool) -> list[tuple[str | None, list[Row]]]:
    """Units with their rows: every row its own, or those that share a ``unit`` value.

    Raises:
        DataError: rows carry units and none is named, or one is named and a row lacks it.
    """
    if named:
        # By id: where a unit's rows stand in the file is its own content and must move nobody.
        return [(name, of) for name, of in sorted(group_by_unit(rows).items())]
    if any(row.unit is not None for row in rows):
        raise DataError(
            "the rows say whose they are, but the build does not protect units: name the field "
            "(unit=), or read the file without it"
        )
    return [(None, [row]) for row in rows]


def units_in_a_chunk(size: int, per_unit: int) -> int:
    """How many units fill a chunk of ``size`` records, at ``per_unit`` records each."""
    return math.ceil(size / per_unit)


def form_chunks(
    units: Sequence[tuple[str | None, list[Row]]],
    *,
    chunks: int,
    size: int,
    per_unit: int,
    key: bytes,
    by_id: bool,
) -> list[list[Row]]:
    """Cut the units into m chunks of at most ``size`` rows.

    *Guarantee.* All rows of a unit that serve stand in one chunk. Which one is decided by the
    unit's slot (`partition`), or by its id (``by_id``, `assign_by_id`); which rows serve, inside
    the unit; which fit into a chunk, by the units of that chunk. So a unit that is replaced
    in its slot, or added or removed with its id, changes one chunk.

    | case | result |
    |---|---|
    | a unit has more than ``per_unit`` rows | that many are chosen by keyed hash |
    | a unit has fewer | the chunk has fewer rows; nobody fills in |
    | units of a chunk bring more than ``size`` rows | the first ``size`` |

    Args:
        units: id and rows of each unit; slots are places in this list.
        chunks: m.
        size: rows of a chunk: K demonstrations, and one more if its query is private.
        per_unit: most rows of a unit that serve.
        key: of the partition.
        by_id: ids decide instead of slots.
    """
    if by_id:
        members = assign_by_id([str(name) for name, _ in units], chunks, key)
    else:
        members = partition(len(units), chunks, units_in_a_chunk(size, per_unit), key)
    return [
        [
            units[place][1][row]
            for place in chunk
            for row in choose(len(units[place][1]), per_unit, key)
        ][:size]
        for chunk in members
    ]
