"""What can be measured, and how a measurement is named in the result rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpmtv.options import CHOICE_SHARE, SHOTS
from dpmtv.public_tasks import SEARCH_STEPS

if TYPE_CHECKING:
    from dpmtv.options import PatchMode, PrivateClip, QueryMode


@dataclass(frozen=True)
class Recipe:
    """One way to release a vector; ``words`` are the rows' geometry column."""

    words: str
    query: QueryMode = "private"
    selected: bool = True  # only the selected heads are released
    per_layer: bool = True
    learned: bool = False  # weights and gains of the heads, about the mean of public tasks
    choice: float = 0.0  # share of ε for a private choice of what the release decodes to
    mask_from_release: bool = False
    alone: str = ""  # "ours" or "paper": without public records, heads chosen privately
    clip: PrivateClip | None = None  # chosen privately too


GEOMETRIES = {
    "default": Recipe(
        "selected heads, one clip, public query, learned weights, decoded",
        "public",
        per_layer=False,
        learned=True,
        choice=CHOICE_SHARE,
    ),
    "selected": Recipe("selected heads, clip per layer"),
    "all-heads": Recipe("all heads, clip per layer, public mask", selected=False),
    "paper": Recipe(
        "all heads, clip per layer, mask from the release", selected=False, mask_from_release=True
    ),
    # What the default is made of, one step at a time from the paper's release.
    "all-heads-public-query": Recipe(
        "all heads, clip per layer, public mask, public query", "public", selected=False
    ),
    "selected-public-query": Recipe("selected heads, clip per layer, public query", "public"),
    "one-clip": Recipe("selected heads, one clip, public query", "public", per_layer=False),
    "learned": Recipe(
        "selected heads, one clip, public query, learned weights",
        "public",
        per_layer=False,
        learned=True,
    ),
    "private-only": Recipe(
        "private band of layers, one clip, grey query", "public", per_layer=False, alone="ours"
    ),
    "private-only-clip": Recipe(
        "private band of layers, private clip, grey query",
        "public",
        per_layer=False,
        alone="ours",
        clip="private",
    ),
    "paper-private-only": Recipe(
        "all heads, clip per layer, private band after the release, basic composition",
        alone="paper",
    ),
}
UNCLIPPED = "selected heads, no clip"
# The second three know the task's true answer words, which are taken to be public: listed in the
# question, or alone allowed in decoding, or both. The two after them should stay near zero-shot.
# The last four are other private uses of the records, at the same ε and δ (rivals.py).
METHODS = (
    *("zero-shot", "in-context", "task vector", "dp-mtv"),
    *("words listed", "words enforced", "words listed and enforced"),
    *("other task", "pure noise"),
    *("private words enforced", "private words listed and enforced"),
    *("private words + vector", "bank choice"),
)
KNOWN_WORDS = METHODS[4:7]
CONTROLS = METHODS[7:9]
RIVALS = METHODS[9:]
NO_RECORDS = ("zero-shot", *KNOWN_WORDS)
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
RELATIONS = ("replace_one", "zero_out")
MEAN = "mean"  # task column of a row over all tasks; "mean of GROUP" for those of a group


@dataclass(frozen=True)
class Settings:
    """What is measured. Sizes are public choices.

    Args:
        methods: of METHODS.
        geometries: of GEOMETRIES, for "dp-mtv" and the controls. "task vector" forms its chunks
            as the first of them does, and the rivals take the records of these.
        relations: neighbour relations.
        epsilons: privacy levels; None for the clipped mean without noise.
        delta: δ of each release.
        chunks: values of m; each setting is measured at every one.
        records: numbers of private records, in place of ``chunks``: every geometry makes of them
            as many chunks as it can.
        shots: K of the chunks with a private query, and in the prompt; with a public one K is 1.
        draws: repetitions, each with its own choice of chunks and its own noise.
        n_test: queries a task.
        patch: patch mode.
        search_steps: steps of each head search.
        clip_factor: on the public clip norms of every release that has them.
    """

    methods: tuple[str, ...] = METHODS[:4]
    geometries: tuple[str, ...] = ("default", "all-heads")
    relations: tuple[str, ...] = RELATIONS
    epsilons: tuple[float | None, ...] = (*EPSILONS, None)
    delta: float = 1e-5
    chunks: tuple[int, ...] = (100,)
    records: tuple[int, ...] = ()
    shots: int = SHOTS["private"]
    draws: int = 20
    n_test: int = 100
    patch: PatchMode = "every-step"
    search_steps: int = SEARCH_STEPS
    clip_factor: float = 1.0

    def k(self, query: QueryMode) -> int:
        """K of chunks with such a query."""
        return SHOTS["public"] if query == "public" else self.shots

    def size(self, query: QueryMode) -> int:
        """Records that a chunk uses up."""
        return self.k(query) + (query == "private")

    def sizes(self, query: QueryMode) -> tuple[int, ...]:
        """Values of m for chunks with such a query."""
        return tuple(n // self.size(query) for n in self.records) or self.chunks


@dataclass(frozen=True)
class Setting:
    """What one group of scores has in common; the columns of a result row that name it."""

    method: str
    geometry: str | None = None
    relation: str | None = None
    epsilon: float | None = None
    coordinates: int = 0
    m: int | None = None
    K: int = 0
    records: int = 0
