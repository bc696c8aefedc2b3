"""The DP-MTV paper's tables as cells: one for each line of a table and each value it varies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from dpmtv.evaluation.settings import EPSILONS, GEOMETRIES, Settings

if TYPE_CHECKING:
    from dpmtv.options import QueryMode

Table = Literal["main", "epsilon", "chunks", "shots", "clip"]
TABLES: tuple[Table, ...] = get_args(Table)

# δ, m and K are not published where we could read: 100 chunks of 4 shots are MTV's.
DEFAULT = Settings(epsilons=(1.0,), n_test=500)

# Each value of what a table varies.
VALUES: dict[Table, tuple[tuple[str, dict[str, Any]], ...]] = {
    "main": (),
    "epsilon": (
        *((f"ε = {e:g}", {"epsilons": (e,)}) for e in EPSILONS),
        ("no noise", {"epsilons": (None,)}),
    ),
    "chunks": tuple((f"m = {m}", {"chunks": (m,)}) for m in (25, 50, 100, 200, 400)),
    "shots": tuple((f"K = {k}", {"shots": k}) for k in (1, 2, 4, 8)),
    "clip": tuple((f"clip × {f:g}", {"clip_factor": f}) for f in (0.25, 0.5, 1.0, 2.0, 4.0)),
}


@dataclass(frozen=True)
class Line:
    """A line of a table.

    Args:
        label: as it is printed.
        method: of `dpmtv.evaluation.settings.METHODS`.
        geometry: of `GEOMETRIES`; of "task vector" how its chunks are formed.
        relation: the neighbour relation, of a release.
        published: what the method is called among published figures, if it is there.
        moved: what its figure depends on among what tables vary.
    """

    label: str
    method: str = "dp-mtv"
    geometry: str = "paper"
    relation: str = "replace_one"
    published: str = ""
    moved: tuple[str, ...] = ("epsilons", "chunks", "shots", "clip_factor")


ZERO_SHOT = Line("zero-shot", "zero-shot", published="zero-shot", moved=())
IN_CONTEXT = Line("in-context demonstrations", "in-context", moved=("shots",))
VECTOR = Line(
    "task vector, no noise (MTV)",
    "task vector",
    published="task vector",
    moved=("chunks", "shots"),
)
PAPER = (
    Line("DP-MTV, zero_out", relation="zero_out", published="dp-mtv"),
    Line("DP-MTV, replace_one"),
)
PAPER_ALONE = (
    Line(
        "DP-MTV without public data, zero_out",
        geometry="paper-private-only",
        relation="zero_out",
        published="dp-mtv without public data",
    ),
    Line("DP-MTV without public data, replace_one", geometry="paper-private-only"),
)
DEFAULT_RELEASE = (
    Line("dpmtv default, zero_out", geometry="default", relation="zero_out"),
    Line("dpmtv default, replace_one", geometry="default"),
)
ALONE = (
    Line("dpmtv without public data, zero_out", geometry="private-only", relation="zero_out"),
    Line("dpmtv without public data, replace_one", geometry="private-only"),
)
LINES: dict[Table, tuple[Line, ...]] = {
    "main": (ZERO_SHOT, IN_CONTEXT, VECTOR, *PAPER, *PAPER_ALONE, *DEFAULT_RELEASE, *ALONE),
    "epsilon": (ZERO_SHOT, VECTOR, *PAPER, *DEFAULT_RELEASE),
    "chunks": (ZERO_SHOT, VECTOR, *PAPER, *DEFAULT_RELEASE),
    "shots": (ZERO_SHOT, IN_CONTEXT, VECTOR, *PAPER, *DEFAULT_RELEASE),
    "clip": (ZERO_SHOT, VECTOR, *PAPER),
}


@dataclass(frozen=True)
class Cell:
    """One figure of a table; cells of the same settings are one, whatever table they stand in."""

    line: Line
    value: str  # of what the table varies; "" where the line does not depend on it
    settings: Settings

    @property
    def query(self) -> QueryMode:
        """How its chunks end."""
        return GEOMETRIES[self.line.geometry].query

    @property
    def public_queries(self) -> tuple[QueryMode, ...]:
        """Queries of the public chunks that its heads and clip norms come from, if any do."""
        known = self.line.moved != () and self.line.method != "in-context"
        return (self.query,) if known and not GEOMETRIES[self.line.geometry].alone else ()

    @property
    def chunks(self) -> int:
        """Chunks that it takes, 0 for methods without."""
        counted = self.line.method in ("task vector", "dp-mtv")
        return self.settings.sizes(self.query)[0] if counted else 0

    @property
    def records(self) -> int:
        """Private records that it takes."""
        if self.chunks:
            return self.chunks * self.settings.size(self.query)
        return self.settings.shots if self.line.method == "in-context" else 0


def cells(table: Table, base: Settings) -> list[Cell]:
    """The cells of a table.

    Args:
        table: which.
        base: what the table does not vary: one m, one ε, K, and δ, draws, questions, patch mode
            and search steps. ``records`` and what names methods are not looked at.
    """
    found = []
    for line in LINES[table]:
        moving = [v for v in VALUES[table] if {*v[1]} & {*line.moved}]
        for value, change in moving or [("", {})]:
            found.append(Cell(line, value, _settings(line, replace(base, **change))))
    return found


def _settings(line: Line, s: Settings) -> Settings:
    """What a line needs of the settings; the rest as by default, so that equal cells are equal."""
    plain = Settings()
    m, level = s.chunks[0], s.epsilons[0]
    return replace(
        s,
        methods=(line.method,),
        geometries=(line.geometry,),
        relations=(line.relation if level is not None else plain.relations[0],),
        epsilons=s.epsilons if "epsilons" in line.moved else (None,),
        delta=s.delta if "epsilons" in line.moved else plain.delta,
        chunks=plain.chunks,
        # All take the same records; where a chunk is one record, there are as many chunks.
        records=(m * (s.shots + 1),) if "chunks" in line.moved else (),
        shots=s.shots if "shots" in line.moved else plain.shots,
        draws=s.draws if line.moved else 1,
        search_steps=s.search_steps if "chunks" in line.moved else plain.search_steps,
    )
