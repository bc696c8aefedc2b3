"""The certificate beside a task vector: what was released, what it cost, how to check it.

One JSON file with one canonical form. Reading refuses every file that is not byte for byte what
`write` would produce, so nothing can hide in it: no unknown key, no path, no seed, no count that
depends on private data, no text taken from the data.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from dpmtv.errors import ArtifactError, PrivacyParameterError
from dpmtv.privacy import accounting, strict_json
from dpmtv.privacy.mechanisms import GaussianMean
from dpmtv.privacy.sensitivity import NeighbourRelation
from dpmtv.privacy.strict_json import SINCE, FloatOrInf, require
from dpmtv.types import BoundedRangeEvent, Event, GaussianEvent

_FORMAT_VERSION = 3
_READABLE = (2, _FORMAT_VERSION)
_NEW = {SINCE: 3}
_SAMPLER = "opendp discrete gaussian"
_ACCOUNTANT = "analytic gaussian, dp-accounting"

ALARMS = (0.01, 0.05, 0.1)
"""Shares of false alarms for which a certificate states what an attacker finds."""

# What every release with noise states beside ε and its events.
_PRICE = ("delta", "slack", "mu", "grid", "scale", "sampler", "accountant")

_SHA256 = r"[0-9a-f]{64}"
_COMMIT = r"[0-9a-f]{40}"
_HUB_ID = r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?"
_CLASS_NAME = r"[A-Za-z][A-Za-z0-9_]*"
_LEDGER_ID = r"[0-9a-f]{32}"
_VERSION = r"[0-9]+(\.[0-9]+)*((a|b|rc|\.post|\.dev)[0-9]+)?"

_UNITS = "belongs to a unit of several records"
_DECLARED = "goes with add_remove, where the number of units is private"

# A stated ε may lie above the recomputed one by this much; more means that the statement and the
# event do not belong together.
_EPSILON_TOLERANCE = 1e-6


ClipSource = Literal["option", "public", "made-up", "private", "private-steps"]
"""``"private-steps"`` is of older versions, which also had the head selection "private-top-k"."""
OtherLedgers = Literal["none-found", "ignored"]


@dataclass(frozen=True)
class ModelIdentity:
    """The model that the vector belongs to: hub id and commit, or a hash of its weights.

    Args:
        id: hub id, never a local path; only together with ``revision``.
        revision: commit hash of the weights, 40 hexadecimal digits.
        weights_sha256: hash of the weight files; required without an id.
        architecture: class name of the model.
        heads: attention heads of each hooked layer.
        head_dims: width of one head in each hooked layer.
    """

    id: str | None
    revision: str | None
    weights_sha256: str | None
    architecture: str
    heads: tuple[int, ...]
    head_dims: tuple[int, ...]

    def __post_init__(self) -> None:
        _matches(self.id, "model.id", _HUB_ID)
        _matches(self.revision, "model.revision", _COMMIT)
        _matches(self.weights_sha256, "model.weights_sha256", _SHA256)
        _matches(self.architecture, "model.architecture", _CLASS_NAME)
        require((self.id is None) == (self.revision is None), "model.revision", "goes with an id")
        require((self.id or self.weights_sha256) is not None, "model", "names no weights")
        require(all(h > 0 for h in self.heads), "model.heads", "must be positive")
        require(all(d > 0 for d in self.head_dims), "model.head_dims", "must be positive")
        require(len(self.heads) == len(self.head_dims), "model.head_dims", "must match model.heads")


@dataclass(frozen=True)
class Privacy:
    """The release and its price.

    Without noise, ``epsilon`` is inf and every field after it stays empty.

    Args:
        relation: the neighbour relation.
        unit: "record", or the field whose values name whom a record belongs to.
        per_unit: most records of a unit that serve; None where a unit is one record.
        population: units in the declared public population, under add_remove alone.
        ledger: random id of the budget ledger that paid; None if none was kept.
        chunks: m, of which the vector is the mean.
        shots: K, demonstrations in one chunk.
        query: whose example a chunk's last question is.
        queries_sha256: names the public queries, where there are any.
        clip_norms: C_b of each block.
        clip_source: where the clip norms come from: an option, public records, prompts made up for
            the purpose, or private choices, which are events.
        released_heads: per hooked layer, the indices of its released heads, ascending.
        block_sizes: coordinates of each block.
        geometry_sha256: names the map from activations to what was clipped: heads, clip norms,
            centre, weights and gains.
        epsilon: total ε; ``math.inf`` is written as ``"inf"``.
        delta: total δ, slack included.
        slack: the part of δ that the discrete sampler uses.
        mu: Δ₂/σ; beside picks, the μ that bounds everything together (`accounting.gdp_mu`).
        grid: length of one integer unit, in the units of the activations.
        scale: standard deviation of the noise on the sum, in grid units.
        sampler: noise sampler and its version.
        accountant: accountant and its version.
        voting_chunks: None; older versions could leave choices to further chunks.
        events: every release that ε and δ cover: the vector, then in their order the choices made
            beside it: of heads, of the clip norm, of what the vector decodes to.
        power: what an attacker finds at most at the `ALARMS` (`accounting.power_of`), rounded up
            to four digits. Since format 3.
        other_ledgers: whether ledgers beside the data were looked for, and none knew the records,
            or the operator had them ignored; None where nobody looked. Since format 3.
    """

    relation: NeighbourRelation
    unit: str
    per_unit: int | None
    population: int | None
    ledger: str | None
    chunks: int
    shots: int
    query: Literal["private", "public"]
    queries_sha256: str | None
    clip_norms: tuple[float, ...]
    clip_source: ClipSource
    released_heads: tuple[tuple[int, ...], ...]
    block_sizes: tuple[int, ...]
    geometry_sha256: str | None
    epsilon: FloatOrInf = math.inf
    delta: float | None = None
    slack: float | None = None
    mu: float | None = None
    grid: float | None = None
    scale: int | None = None
    sampler: str | None = None
    accountant: str | None = None
    voting_chunks: None = None
    events: tuple[Event, ...] = ()
    power: tuple[float, ...] = field(default=(), metadata=_NEW)
    other_ledgers: OtherLedgers | None = field(default=None, metadata=_NEW)

    def __post_init__(self) -> None:
        require(_is_label(self.unit), "privacy.unit", "must be one printable line")
        require((self.per_unit is None) == (self.unit == "record"), "privacy.per_unit", _UNITS)
        declared = self.relation is NeighbourRelation.ADD_REMOVE
        require((self.population is not None) == declared, "privacy.population", _DECLARED)
        _matches(self.ledger, "privacy.ledger", _LEDGER_ID)
        for key in ("queries_sha256", "geometry_sha256"):
            _matches(getattr(self, key), f"privacy.{key}", _SHA256)
        named = self.queries_sha256 is not None
        require(named == (self.query == "public"), "privacy.queries_sha256", "goes with query")
        for name in (
            "per_unit",
            "population",
            "chunks",
            "shots",
            "epsilon",
            "delta",
            "slack",
            "mu",
            "grid",
            "scale",
        ):
            value = getattr(self, name)
            require(value is None or value > 0, f"privacy.{name}", "must be positive")
        require(len(self.clip_norms) > 0, "privacy.clip_norms", "must not be empty")
        require(all(c > 0 for c in self.clip_norms), "privacy.clip_norms", "must be positive")
        require(all(d > 0 for d in self.block_sizes), "privacy.block_sizes", "must be positive")
        same_length = len(self.block_sizes) == len(self.clip_norms)
        require(same_length, "privacy.block_sizes", "must match privacy.clip_norms")
        _matches(self.sampler, "privacy.sampler", f"{_SAMPLER} {_VERSION}")
        _matches(self.accountant, "privacy.accountant", f"{_ACCOUNTANT} {_VERSION}")
        for event in self.events:
            for name, value in vars(event).items():
                require(value > 0, f"privacy.events.{name}", "must be positive")
        price = [getattr(self, name) for name in _PRICE]
        if self.epsilon == math.inf:
            bare = not self.events and all(part is None for part in price)
            require(bare, "privacy.epsilon", "is infinite, and yet noise is described")
        else:
            kinds = [type(event) for event in self.events]
            one = "must be the vector's one gaussian event, then its choices"
            steps = self.clip_source == "private-steps"
            require(kinds[:1] == [GaussianEvent], "privacy.events", one)
            require((GaussianEvent in kinds[1:]) == steps, "privacy.events", one)
            require(None not in price, "privacy", f"a finite epsilon needs {', '.join(_PRICE)}")


@dataclass(frozen=True)
class Selection:
    """How the heads were chosen: not at all, on public data, privately, or from the release.

    ``source_sha256`` names the public records that heads or clip norms come from.
    """

    mode: Literal["all", "public", "released", "private", "private-top-k"]
    source_sha256: str | None

    def __post_init__(self) -> None:
        _matches(self.source_sha256, "selection.source_sha256", _SHA256)


@dataclass(frozen=True)
class Inference:
    """How the vector is meant to be used. ``answer_instruction`` is the operator's public text."""

    patch: Literal["prompt", "every-step"]
    alpha: float
    prompt_template_sha256: str
    answer_instruction: str
    dtype: Literal["float32", "float16", "bfloat16"]

    def __post_init__(self) -> None:
        require(self.alpha > 0, "inference.alpha", "must be positive")
        _matches(self.prompt_template_sha256, "inference.prompt_template_sha256", _SHA256)
        text = self.answer_instruction.replace("\n", "")
        require(
            text.isprintable() and len(text) <= 500,
            "inference.answer_instruction",
            "must be at most 500 printable characters",
        )


@dataclass(frozen=True)
class Certificate:
    """Everything that is public about one task vector."""

    product_version: str
    created: date
    model: ModelIdentity
    tensor_sha256: str
    privacy: Privacy
    selection: Selection
    inference: Inference
    format_version: int = _FORMAT_VERSION

    def __post_init__(self) -> None:
        require(self.format_version in _READABLE, "format_version", "is unknown")
        noisy = self.privacy.epsilon != math.inf and self.format_version >= _NEW[SINCE]
        stated = len(self.privacy.power) == len(ALARMS) * noisy
        require(stated, "privacy.power", "must go with the noise, at each share of false alarms")
        _matches(self.product_version, "product_version", _VERSION)
        _matches(self.tensor_sha256, "tensor_sha256", _SHA256)
        mode, clip = self.selection.mode, self.privacy.clip_source
        # Public records may have given the queries alone, which are named elsewhere.
        public = mode in ("public", "released") or clip == "public"
        sourced = self.selection.source_sha256 is not None
        require(
            sourced or not public, "selection.source_sha256", "must name the public records used"
        )
        picks = sum(isinstance(event, BoundedRangeEvent) for event in self.privacy.events)
        named = mode.startswith("private") + (clip == "private")
        paid = self.privacy.epsilon == math.inf or picks >= named
        require(paid, "privacy.events", "lack a private choice that selection or clip norm name")
        heads, released = self.model.heads, self.privacy.released_heads
        key = "privacy.released_heads"
        require(len(released) == len(heads), key, "must have one list per layer of model.heads")
        for indices, count in zip(released, heads, strict=True):
            ascending = list(indices) == sorted(set(indices))
            require(ascending, key, "must ascend without repetition")
            require(all(0 <= i < count for i in indices), key, "names a head that does not exist")


def privacy_of(
    mechanism: GaussianMean,
    *,
    unit: str | None = None,
    per_unit: int | None = None,
    population: int | None = None,
    ledger: str | None = None,
    other_ledgers: OtherLedgers | None = None,
    shots: int,
    query: Literal["private", "public"],
    queries_sha256: str | None = None,
    clip_source: ClipSource,
    released_heads: Sequence[Sequence[int]],
    geometry_sha256: str | None = None,
) -> Privacy:
    """The certificate's privacy part for one release of ``mechanism``."""
    event = mechanism.event
    return Privacy(
        relation=mechanism.relation,
        unit=unit or "record",
        per_unit=per_unit if unit else None,
        population=population,
        ledger=ledger,
        chunks=mechanism.chunks,
        shots=shots,
        query=query,
        queries_sha256=queries_sha256,
        clip_norms=mechanism.clip_norms,
        clip_source=clip_source,
        released_heads=tuple(tuple(map(int, heads)) for heads in released_heads),
        block_sizes=mechanism.block_sizes,
        geometry_sha256=geometry_sha256,
        epsilon=mechanism.epsilon,
        delta=mechanism.delta,
        slack=accounting.discreteness_slack(mechanism.epsilon, event.d, event.scale),
        mu=accounting.gdp_mu(*mechanism.events),
        grid=mechanism.grid,
        scale=mechanism.scale,
        sampler=f"{_SAMPLER} {version('opendp')}",
        accountant=f"{_ACCOUNTANT} {version('dp-accounting')}",
        events=mechanism.events,
        power=tuple(_power(mechanism.events, alarms) for alarms in ALARMS),
        other_ledgers=other_ledgers,
    )


def write(certificate: Certificate, path: Path) -> None:
    """Write the canonical JSON, all or nothing.

    Raises:
        ArtifactError: a field whose value `read` would refuse; nothing is written then.
    """
    text = strict_json.dumps(certificate)
    strict_json.loads(Certificate, text, *_READABLE)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: Path) -> Certificate:
    """Read a certificate. Its arithmetic is checked by `verify`, not here.

    Raises:
        ArtifactError: no such file, an unknown or missing key, a wrong type, a number that is
            not finite, an unknown version, or any byte that is not canonical.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path.name} is not a readable certificate") from error
    return strict_json.loads(Certificate, text, *_READABLE)


def is_current(certificate: Certificate) -> bool:
    """Whether this very version wrote it, so that it knows every word that belongs to it."""
    written = (certificate.format_version, certificate.product_version)
    return written == (_FORMAT_VERSION, version("dpmtv"))


def verify(certificate: Certificate, tensor_sha256: str) -> list[str]:
    """Recompute everything that the certificate claims.

    Args:
        certificate: what `read` returned.
        tensor_sha256: hash of the tensor file as it is now.

    Returns:
        Plain-language lines: what was checked.

    Raises:
        ArtifactError: the first claim that does not hold, with the reason.
    """
    model, privacy = certificate.model, certificate.privacy
    require(
        certificate.tensor_sha256 == tensor_sha256,
        "tensor_sha256",
        "does not match the tensor file: it was changed or belongs to another certificate",
    )
    layers = zip(privacy.released_heads, model.head_dims, strict=True)
    blocks = tuple(len(indices) * width for indices, width in layers if indices)
    size = sum(blocks)
    fits = privacy.block_sizes in (blocks, (size,))
    require(fits, "privacy.block_sizes", "are neither the released layers nor all of them together")
    together = len(privacy.block_sizes) == 1
    every_head = tuple(tuple(range(count)) for count in model.heads)
    require(
        certificate.selection.mode not in ("all", "released")
        or privacy.released_heads == every_head,
        "selection.mode",
        "says that every head was released, but the list of heads is shorter",
    )
    # Where heads or clip norm were chosen, noise and slack are those of all heads (Theorem 20).
    chosen = f"{certificate.selection.mode} {privacy.clip_source}"
    whole = sum(h * d for h, d in zip(model.heads, model.head_dims, strict=True))
    return [
        "The tensor file has the hash on the certificate. A hash beside the tensor shows "
        "accidents, not tampering.",
        f"The released heads hold {size} coordinates, "
        + ("clipped together." if together else "each of their layers clipped alone."),
        *_verify_noise(privacy, whole if "private" in chosen else 0),
    ]


def _verify_noise(privacy: Privacy, largest: int) -> list[str]:
    delta, mu, grid, scale = privacy.delta, privacy.mu, privacy.grid, privacy.scale
    if delta is None or mu is None or grid is None or scale is None:
        return ["No noise and no event: this vector is NOT PRIVATE (ε = inf)."]
    try:
        # Building the mechanism again refuses a promise that the noise does not keep.
        mechanism = GaussianMean(
            relation=privacy.relation,
            chunks=privacy.chunks,
            clip_norms=privacy.clip_norms,
            block_sizes=privacy.block_sizes,
            epsilon=privacy.epsilon,
            delta=delta,
            grid=grid,
            scale=scale,
            beside=privacy.events[1:],
            largest=largest,
        )
    except (PrivacyParameterError, OverflowError) as error:
        raise ArtifactError(f"certificate: privacy: {error}") from error
    event, others = mechanism.event, mechanism.beside
    for name, value in vars(event).items():
        same = getattr(privacy.events[0], name) == value
        require(same, f"privacy.events.{name}", "does not follow from the other fields")
    # Only division is the same to the last digit everywhere.
    expected, off = accounting.gdp_mu(*mechanism.events), 1e-11 if others else 0.0
    same = math.isclose(mu, expected, rel_tol=off)
    require(same, "privacy.mu", "does not follow from the events")
    slack = accounting.discreteness_slack(privacy.epsilon, event.d, event.scale)
    # e^ε may differ in its last digit from one mathematical library to the next.
    close = privacy.slack is not None and math.isclose(privacy.slack, slack, rel_tol=1e-12)
    require(close, "privacy.slack", "is not what the sampler needs")
    epsilon = accounting.epsilon_of(mechanism.events, delta)
    require(
        privacy.epsilon <= epsilon * (1 + _EPSILON_TOLERANCE),
        "privacy.epsilon",
        "does not belong to this event and this delta",
    )
    if privacy.population is not None:
        below = delta < 1 / privacy.population
        require(below, "privacy.delta", "is not below 1/population: it lets whole records out")
    for stated, alarms in zip(privacy.power, ALARMS, strict=False):
        # Rounded up to four digits; the last digit of the exact one may differ by library.
        close = -1e-9 <= stated - accounting.power_of(mechanism.events, alarms) <= 1.01e-4
        require(close, "privacy.power", "does not follow from the events")
    return [
        f"The sensitivity follows from {privacy.relation}, {privacy.chunks} chunks and the clip "
        f"norms; the noise follows from the grid.",
        f"The event{_and_others(others)} costs ε = {epsilon:.6g} at δ = {delta:g}, sampler slack "
        f"included; stated is {privacy.epsilon:g}.",
    ]


def _power(events: Sequence[Event], alarms: float) -> float:
    return math.ceil(accounting.power_of(events, alarms) * 1e4) / 1e4


def _and_others(others: Sequence[Event]) -> str:
    if not others:
        return ""
    count = sum(e.count if isinstance(e, BoundedRangeEvent) else 1 for e in others)
    return f", with {count} private choice{'s' if count > 1 else ''},"


def _matches(value: str | None, key: str, pattern: str) -> None:
    require(value is None or re.fullmatch(pattern, value) is not None, key, "is malformed")


def _is_label(text: str) -> bool:
    return bool(text.strip()) and text.isprintable() and len(text) <= 80
