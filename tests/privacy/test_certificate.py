"""The certificate: strict reading, recomputed claims, and words a privacy officer can rely on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import random
from datetime import date

import pytest

from dpmtv.errors import ArtifactError
from dpmtv.privacy import accounting, certificate
from dpmtv.privacy.certificate import (
    Certificate,
    Inference,
    ModelIdentity,
    Privacy,
    Selection,
    privacy_of,
)
from dpmtv.privacy.mechanisms import calibrate
from dpmtv.privacy.sensitivity import NeighbourRelation
from dpmtv.privacy.statement import statement, statement_page
from dpmtv.types import BoundedRangeEvent

PICK = BoundedRangeEvent(range=0.2, count=1)
HASH = hashlib.sha256(b"tensor").hexdigest()
OTHER = hashlib.sha256(b"other").hexdigest()
HEADS = ((0, 2), (), (1,))
HEAD_DIMS = (4, 4, 6)


def make(relation=NeighbourRelation.REPLACE_ONE, epsilon=1.0, beside=(), **changes) -> Certificate:
    mechanism = calibrate(
        beside=beside,
        epsilon=epsilon,
        delta=1e-5,
        relation=relation,
        chunks=100,
        clip_norms=[1.5, 2.0],
        block_sizes=[8, 6],
    )
    parts = {
        "product_version": "0.1.0",
        "created": date(2026, 3, 9),
        "model": ModelIdentity(
            id="HuggingFaceTB/SmolVLM-256M-Instruct",
            revision="7e3e67edbbed1bf9888184d9df282b700a323964",
            weights_sha256=None,
            architecture="Idefics3ForConditionalGeneration",
            heads=(3, 3, 3),
            head_dims=HEAD_DIMS,
        ),
        "tensor_sha256": HASH,
        "privacy": privacy_of(
            mechanism, shots=4, query="private", clip_source="option", released_heads=HEADS
        ),
        "selection": Selection(mode="public", source_sha256=OTHER),
        "inference": Inference(
            patch="every-step",
            alpha=1.0,
            prompt_template_sha256=HASH,
            answer_instruction="Antworte kurz – ein Wort.\n",
            dtype="float32",
        ),
    }
    return Certificate(**(parts | changes))


def bare(**changes) -> Certificate:
    """The certificate of a vector without noise."""
    privacy = {
        "relation": NeighbourRelation.REPLACE_ONE,
        "unit": "record",
        "per_unit": None,
        "population": None,
        "ledger": None,
        "chunks": 100,
        "shots": 4,
        "query": "private",
        "queries_sha256": None,
        "clip_norms": (1.5, 2.0),
        "clip_source": "public",
        "released_heads": HEADS,
        "block_sizes": (8, 6),
        "geometry_sha256": None,
    }
    return make(privacy=Privacy(**(privacy | changes)))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "certificate.json"


def write_data(path, data) -> None:
    """A changed file in canonical form, so that only the change itself can be refused."""
    path.write_text(json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")


def data_of(path, original) -> dict:
    certificate.write(original, path)
    return json.loads(path.read_text("utf-8"))


def put(data, key: str, value) -> None:
    *parents, last = [int(k) if k.isdigit() else k for k in key.split(".")]
    for parent in parents:
        data = data[parent]
    data[last] = value


@pytest.mark.parametrize(
    "original",
    [make(), make(NeighbourRelation.ZERO_OUT, 8.0), make(beside=[PICK, PICK]), bare()],
)
def test_round_trip_and_canonical_form(path, original):
    certificate.write(original, path)
    text = path.read_text("utf-8")
    assert certificate.read(path) == original
    assert text.startswith('{\n  "created": "2026-03-09",\n  "format_version": 3,\n')
    assert text.endswith("}\n")
    assert list(path.parent.iterdir()) == [path]
    assert certificate.verify(original, HASH)


def test_the_fields_are_the_agreed_ones_and_no_others(path):
    data = data_of(path, make())
    assert set(data) == {
        *("format_version", "product_version", "created", "model", "tensor_sha256"),
        *("privacy", "selection", "inference", "sha256"),
    }
    assert data["privacy"]["events"] == [
        {"type": "gaussian"} | dataclasses.asdict(make().privacy.events[0])
    ]
    assert data["privacy"]["sampler"].startswith("opendp discrete gaussian 0.")
    assert data["privacy"]["accountant"].startswith("analytic gaussian, dp-accounting 0.")
    assert data_of(path, bare())["privacy"]["epsilon"] == "inf"


BAD_VALUES = [
    ("format_version", True),
    ("product_version", "0.1 from /srv/me"),
    ("created", "20260309"),
    ("created", 20260309),
    ("model.id", "/srv/models/vlm"),
    ("model.id", "../vlm"),
    ("model.id", "C:\\models\\vlm"),
    ("model.id", None),
    ("model.revision", "main"),
    ("model.revision", None),
    ("model.weights_sha256", "abc"),
    ("model.architecture", "a b"),
    ("model.heads", []),
    ("model.heads", [3, 3, 0]),
    ("model.head_dims", [4, 4, -6]),
    ("model.head_dims", [4, 4]),
    ("model.head_dims", 4),
    ("tensor_sha256", HASH.upper()),
    ("privacy", []),
    ("privacy.relation", "swap_two"),
    ("privacy.relation", 1),
    ("privacy.unit", "patient"),
    ("privacy.chunks", 100.0),
    ("privacy.chunks", 0),
    ("privacy.chunks", True),
    ("privacy.shots", 0),
    ("privacy.query", "both"),
    ("privacy.query", ["private"]),
    ("privacy.clip_norms", []),
    ("privacy.clip_norms", [1.5]),
    ("privacy.clip_norms.0", -1.5),
    ("privacy.clip_norms.0", math.nan),
    ("privacy.clip_source", "measured"),
    ("privacy.released_heads", [[0, 2], []]),
    ("privacy.released_heads.0", [0, 3]),
    ("privacy.released_heads.0", [2, 0]),
    ("privacy.released_heads.0", [0, 0]),
    ("privacy.released_heads.0", [-1, 0]),
    ("privacy.block_sizes", [14]),
    ("privacy.block_sizes", [14, 0]),
    ("privacy.epsilon", "inf"),
    ("privacy.epsilon", 1),
    ("privacy.epsilon", -1.0),
    ("privacy.epsilon", math.inf),
    ("privacy.epsilon", math.nan),
    ("privacy.delta", None),
    ("privacy.delta", "inf"),
    ("privacy.slack", -1e-9),
    ("privacy.mu", None),
    ("privacy.power", []),
    ("privacy.power", [0.1, 0.2]),
    ("privacy.power.0", 1),
    ("privacy.other_ledgers", "none"),
    ("privacy.grid", 0.0),
    ("privacy.scale", 1048576.0),
    ("privacy.sampler", "numpy 1.0"),
    ("privacy.accountant", "rdp 1.0"),
    ("privacy.events", []),
    ("privacy.events.0.type", "laplace"),
    ("privacy.events.0.sigma", 0.0),
    ("privacy.events.0", "gaussian"),
    ("selection.mode", "private"),
    ("selection.source_sha256", "train.jsonl"),
    ("inference.patch", "never"),
    ("inference.alpha", 0.0),
    ("inference.alpha", "1.0"),
    ("inference.prompt_template_sha256", None),
    ("inference.answer_instruction", "x" * 501),
    ("inference.answer_instruction", "bell \a"),
    ("inference.dtype", "float64"),
]


@pytest.mark.parametrize(("key", "value"), BAD_VALUES)
def test_a_bad_value_is_refused_by_name(path, key, value):
    data = data_of(path, make())
    put(data, key, value)
    write_data(path, data)
    part = next(part for part in reversed(key.split(".")) if not part.isdigit())
    named = "privacy" if key in ("privacy.delta", "privacy.mu") and value is None else part
    named = {"id": "model", "mode": "selection", "heads": "head"}.get(named, named)
    with pytest.raises(ArtifactError, match=named):
        certificate.read(path)


@pytest.mark.parametrize("place", ["privacy.events.1", "privacy.events.2"])
@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("type", "laplace", "type is unknown"),
        ("type", ["bounded_range"], "type is unknown"),
        ("type", None, "type is unknown"),
        ("type", "gaussian", "is unknown|is missing"),
        ("range", 0.0, "range must be positive"),
        ("range", -0.2, "range must be positive"),
        ("range", math.nan, "range must be a finite"),
        ("range", math.inf, "range must be a finite"),
        ("range", "inf", "range must be of type float"),
        ("range", 1, "range must be of type float"),
        ("count", 0, "count must be positive"),
        ("count", 1.0, "count must be of type int"),
        ("seed", 1, "seed is unknown"),
    ],
)
def test_a_bad_pick_is_refused_by_name(path, place, key, value, named):
    data = data_of(path, make(beside=[PICK, PICK]))
    put(data, f"{place}.{key}", value)
    write_data(path, data)
    with pytest.raises(ArtifactError, match=named):
        certificate.read(path)


@pytest.mark.parametrize("order", [[1, 0], [1], [0, 0, 1], [1, 1]])
def test_the_vector_has_one_gaussian_event_and_it_stands_first(path, order):
    data = data_of(path, make(beside=[PICK]))
    events = data["privacy"]["events"]
    assert events[1] == {"type": "bounded_range", "range": 0.2, "count": 1}
    data["privacy"]["events"] = [events[i] for i in order]
    write_data(path, data)
    with pytest.raises(ArtifactError, match=r"privacy\.events must be the vector's one gaussian"):
        certificate.read(path)


def test_two_events_are_refused(path):
    data = data_of(path, make())
    data["privacy"]["events"] *= 2
    write_data(path, data)
    with pytest.raises(ArtifactError, match=r"privacy\.events must be the vector's one gaussian"):
        certificate.read(path)


@pytest.mark.parametrize(
    ("place", "value"), [("selection.mode", "private"), ("privacy.clip_source", "private")]
)
def test_a_private_choice_that_nobody_paid_for_is_refused(path, place, value):
    data = data_of(path, make())
    put(data, place, value)
    put(data, "selection.source_sha256", OTHER if data["selection"]["mode"] == "public" else None)
    write_data(path, data)
    with pytest.raises(ArtifactError, match=r"privacy\.events lack a private choice"):
        certificate.read(path)


@pytest.mark.parametrize("version", [0, 1, 4, "2", "3"])
def test_another_version_is_refused_before_its_keys(path, version):
    data = data_of(path, make()) | {"format_version": version, "new_key": 1}
    write_data(path, data)
    with pytest.raises(ArtifactError, match="unknown version"):
        certificate.read(path)


OBJECTS = ["", "model", "privacy", "privacy.events.0", "selection", "inference"]


@pytest.mark.parametrize("place", OBJECTS)
def test_unknown_missing_and_double_keys_are_refused_by_name(path, place):
    data = data_of(path, make())
    target = data
    for part in place.split(".") if place else []:
        target = target[int(part) if part.isdigit() else part]
    target["seed"] = 1
    write_data(path, data)
    with pytest.raises(ArtifactError, match=r"seed is unknown"):
        certificate.read(path)
    del target["seed"]
    for name in list(target):
        value = target.pop(name)
        write_data(path, data)
        reason = rf"{name}( is missing|.*unknown version)" if name != "sha256" else "was edited"
        with pytest.raises(ArtifactError, match=reason):
            certificate.read(path)
        target[name] = value
        write_data(path, data)
        line = f'"{name}": '
        text = path.read_text("utf-8").replace(line, f'{line}0,\n"{name}": ')
        path.write_text(text, "utf-8")
        with pytest.raises(ArtifactError, match="was edited"):
            certificate.read(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"null", b"{", b"\xff\xfe", b"[" * 100_000, b"1" * 5000, b'{"a": 1e999}'],
)
def test_files_that_are_no_certificate_are_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(ArtifactError):
        certificate.read(path)


def test_a_missing_file_is_refused_without_its_folder(path):
    with pytest.raises(ArtifactError, match=r"^certificate\.json is not"):
        certificate.read(path)


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text + "\n",
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("  ", " "),
        lambda text: text.replace("1e-05", "0.00001"),
        lambda text: text.replace("–", "\\u2013"),
        lambda text: json.dumps(dict(reversed(json.loads(text).items())), indent=2) + "\n",
    ],
)
def test_only_the_canonical_bytes_are_read(path, edit):
    certificate.write(make(), path)
    text = path.read_text("utf-8")
    changed = edit(text)
    assert changed != text
    path.write_bytes(changed.encode("utf-8"))
    with pytest.raises(ArtifactError, match="was edited"):
        certificate.read(path)


def older(original: Certificate) -> Certificate:
    """The same as a version wrote it that did not know of powers and other ledgers."""
    privacy = dataclasses.replace(original.privacy, power=(), other_ledgers=None)
    return dataclasses.replace(original, privacy=privacy, format_version=2)


def test_older_certificates_are_read_without_what_they_do_not_state(path):
    for original in (make(), make(beside=[PICK]), bare()):
        certificate.write(older(original), path)
        assert "power" not in path.read_text("utf-8")
        assert certificate.read(path) == older(original)
        lines = certificate.verify(older(original), HASH)
        assert lines == certificate.verify(original, HASH)
        assert statement(older(original))[2:3] == statement(original)[2:3], "the power"
    data = data_of(path, older(make()))
    data["privacy"]["power"] = [0.1, 0.1, 0.1]
    write_data(path, data)
    with pytest.raises(ArtifactError, match=r"privacy\.power is unknown"):
        certificate.read(path)
    with pytest.raises(ArtifactError, match="power must go with the noise"):
        dataclasses.replace(make(), format_version=2)
    with pytest.raises(ArtifactError, match="power must go with the noise"):
        dataclasses.replace(older(make()), format_version=3)


def declared(population: int) -> Certificate:
    privacy = make(NeighbourRelation.REPLACE_ONE).privacy
    parts = {"unit": "patient", "per_unit": 1, "population": population}
    relation = NeighbourRelation.ADD_REMOVE
    return make(privacy=dataclasses.replace(privacy, relation=relation, **parts))


def test_delta_must_be_below_one_in_the_declared_population():
    certificate.verify(declared(99_999), HASH)
    for population in (100_000, 100_001, 10**9):
        with pytest.raises(ArtifactError, match=r"privacy\.delta is not below 1/population"):
            certificate.verify(declared(population), HASH)


@pytest.mark.parametrize("ledger", [None, "0" * 32])
@pytest.mark.parametrize("others", [None, "none-found", "ignored"])
def test_the_statement_says_what_it_knows_of_other_builds(ledger, others):
    privacy = dataclasses.replace(make().privacy, ledger=ledger, other_ledgers=others)
    text = "\n".join(statement(make(privacy=privacy)))
    assert "charged there too" not in text, "another build need not be"
    assert ("No budget ledger was kept" in text) == (ledger is None)
    assert ("adds up all builds that are charged there" in text) == (ledger is not None)
    assert ("found no other ledger" in text) == (others == "none-found")
    assert ("told dpmtv to ignore other ledgers" in text) == (others == "ignored")
    unseen = "comes on top" in text or "adds its own ε and δ" in text
    assert unseen, "what is not counted"


def test_what_could_not_be_read_is_not_written(path):
    certificate.write(make(), path)
    before = path.read_bytes()
    inference = dataclasses.replace(make().inference, alpha=math.inf)
    with pytest.raises(ArtifactError, match=r"inference\.alpha must be of type float"):
        certificate.write(make(inference=inference), path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file(path, monkeypatch):
    def fail(source, target):
        raise OSError("disk")

    certificate.write(bare(), path)
    before = path.read_bytes()
    monkeypatch.setattr(certificate.os, "replace", fail)
    with pytest.raises(OSError, match="disk"):
        certificate.write(make(), path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_verify_says_what_it_checked():
    lines = certificate.verify(make(), HASH)
    assert "A hash beside the tensor shows accidents, not tampering." in lines[0]
    assert "14 coordinates" in lines[1]
    assert "replace_one, 100 chunks" in lines[2]
    assert lines[3].startswith("The event costs ε = 1 at δ = 1e-05")
    assert "NOT PRIVATE" in certificate.verify(bare(), HASH)[-1]


def test_verify_refuses_another_tensor():
    with pytest.raises(ArtifactError, match="tensor_sha256 does not match"):
        certificate.verify(make(), OTHER)


def changed(key: str, factor: float = 1.0, value=None) -> Certificate:
    """One field of the privacy part (or its event, ``event.x``) multiplied or replaced."""
    privacy = make().privacy
    if key.startswith("event."):
        name = key.removeprefix("event.")
        old = getattr(privacy.events[0], name)
        event = dataclasses.replace(privacy.events[0], **{name: value or type(old)(old * factor)})
        return make(privacy=dataclasses.replace(privacy, events=(event,)))
    old = getattr(privacy, key)
    return make(privacy=dataclasses.replace(privacy, **{key: value or type(old)(old * factor)}))


@pytest.mark.parametrize(
    ("tampered", "reason"),
    [
        (changed("event.delta2", 0.5), "events.delta2"),
        (changed("event.delta2", 1 - 1e-15), "events.delta2"),
        (changed("event.delta2", 1 + 1e-11), "events.delta2"),
        (changed("event.sigma", 2.0), "events.sigma"),
        (changed("event.sigma", 1 + 1e-15), "events.sigma"),
        (changed("event.scale", 2), "events.scale"),
        (changed("event.d", 2), "events.d"),
        (changed("relation", value=NeighbourRelation.ZERO_OUT), "events.delta2"),
        (changed("chunks", 2), "events.delta2"),
        (changed("clip_norms", value=(1.4, 2.0)), "events.delta2"),
        (changed("clip_norms", value=(1.6, 2.0)), "too small"),
        (changed("grid", 2.0), "events.sigma"),
        (changed("grid", 0.5), "too small"),
        (changed("scale", 2), "events.sigma"),
        (changed("scale", 0.5), "too small"),
        (changed("epsilon", 0.5), "too small"),
        (changed("epsilon", 1 - 1e-9), "too small"),
        (changed("epsilon", 2.0), "privacy.slack|privacy.epsilon"),
        (changed("delta", 0.5), "too small"),
        (changed("delta", 2.0), "privacy.epsilon"),
        (changed("delta", value=1.5), "delta must lie"),
        (changed("slack", 0.5), "privacy.slack"),
        (changed("slack", 1 - 1e-11), "privacy.slack"),
        (changed("mu", 0.5), "privacy.mu"),
        (changed("mu", 1 - 1e-15), "privacy.mu"),
        (changed("mu", 2.0), "privacy.mu"),
        (changed("block_sizes", value=(8, 7)), "block_sizes"),
        (changed("block_sizes", value=(6, 8)), "block_sizes"),
        (changed("released_heads", value=((0, 1, 2), (), (1,))), "block_sizes"),
        (changed("chunks", value=10**400), "privacy"),
        (changed("power", value=(0.0198, 0.0842, 0.1556)), "privacy.power"),
        (changed("power", value=(0.02, 0.0843, 0.1556)), "privacy.power"),
    ],
)
def test_verify_refuses_a_claim_that_does_not_hold(tampered, reason):
    with pytest.raises(ArtifactError, match=reason):
        certificate.verify(tampered, HASH)


def with_picks(*picks: BoundedRangeEvent, **parts) -> Certificate:
    """A certificate of a vector beside ``PICK``, with other picks written into it."""
    privacy = make(beside=[PICK]).privacy
    events = (privacy.events[0], *picks)
    return make(privacy=dataclasses.replace(privacy, events=events, **parts))


@pytest.mark.parametrize(
    ("tampered", "reason"),
    [
        (with_picks(BoundedRangeEvent(0.21, 1)), "too small"),
        (with_picks(BoundedRangeEvent(0.2, 2)), "too small"),
        (with_picks(PICK, PICK), "too small"),
        (with_picks(BoundedRangeEvent(1e300, 10**9)), "too small"),
        (with_picks(BoundedRangeEvent(0.19, 1)), "privacy.mu"),
        (with_picks(), "privacy.mu"),
        (with_picks(BoundedRangeEvent(0.1, 1), mu=accounting.gdp_mu(PICK)), "privacy.mu"),
        (with_picks(PICK, mu=0.2), "privacy.mu"),
        (with_picks(PICK, mu=make(beside=[PICK]).privacy.mu * (1 - 1e-10)), "privacy.mu"),
        (with_picks(PICK, epsilon=0.999), "too small"),
    ],
)
def test_verify_refuses_picks_that_the_claim_does_not_cover(tampered, reason):
    certificate.verify(make(beside=[PICK]), HASH)
    with pytest.raises(ArtifactError, match=reason):
        certificate.verify(tampered, HASH)


def test_picks_that_were_dropped_from_the_certificate_show_in_epsilon():
    privacy = make(beside=[PICK]).privacy
    mu = accounting.gdp_mu(privacy.events[0])
    with pytest.raises(ArtifactError, match=r"privacy\.epsilon does not belong"):
        certificate.verify(with_picks(mu=mu), HASH)


def test_verify_holds_the_selection_to_its_word():
    for mode, source in (("all", None), ("released", OTHER)):
        with pytest.raises(ArtifactError, match=r"selection\.mode"):
            certificate.verify(make(selection=Selection(mode=mode, source_sha256=source)), HASH)


def test_public_records_are_named_where_they_were_used():
    with pytest.raises(ArtifactError, match=r"selection\.source_sha256"):
        make(selection=Selection(mode="public", source_sha256=None))


def test_every_flipped_bit_is_refused(path):
    certificate.write(make(), path)
    intact = path.read_bytes()
    chance = random.Random(0)
    for place in range(len(intact)):
        content = bytearray(intact)
        content[place] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
        with pytest.raises(ArtifactError):
            certificate.read(path)


def test_statement_under_replacement():
    text = "\n".join(statement(make()))
    assert "(ε = 1, δ = 1e-05)-differentially private" in text
    assert "one record is replaced by another" in text
    assert "factor 2.72" in text
    assert "at most 8.43 %" in text
    assert "per record" in text
    assert "2.15" not in text


def test_statement_for_units_says_which_values_are_two():
    per_record = make().privacy
    whole = make(privacy=dataclasses.replace(per_record, unit="patient", per_unit=1))
    text = "\n".join(statement(whole))
    assert "whoever stands in the data under two values is protected less" in text
    assert "a fraction of zero (3.0 and 3); capitals and leading zeros count" in text


def test_statement_of_the_papers_relation_names_its_worth_under_replacement():
    text = "\n".join(statement(make(NeighbourRelation.ZERO_OUT)))
    assert "one whole chunk becomes the null vector" in text
    assert "the relation of the paper" in text
    assert "per record" not in text
    assert "under replace_one the same noise gives ε = 2.1547 at the same δ" in text


def test_statement_when_the_slack_leaves_nothing_under_replacement():
    original = make(NeighbourRelation.ZERO_OUT, 30.0)
    event = original.privacy.events[0]
    doubled = dataclasses.replace(event, delta2=2 * event.delta2)
    assert accounting.epsilon_of([doubled], 1e-5) == math.inf
    assert "an ε above 8" in "\n".join(statement(original))


def test_statement_without_noise():
    assert statement(bare())[0] == "NOT PRIVATE: no noise was added (ε = inf)."


def test_statement_beside_picks():
    lines = certificate.verify(make(beside=[PICK]), HASH)
    assert lines[3].startswith("The event, with 1 private choice, costs ε = 1 at δ = 1e-05")
    one, more = (make(beside=picks) for picks in ([PICK], [BoundedRangeEvent(0.1, 2), PICK]))
    text = "\n".join(statement(one))
    assert "(ε = 1, δ = 1e-05)-differentially private" in text
    assert "the vector together with one choice that was made privately" in text
    assert "at most 8.49 %" in text  # by μ = 0.2769, which bounds all together, it would be 8.57
    assert "with 3 choices that were made privately" in "\n".join(statement(more))
    assert "choice" not in "\n".join(statement(make()))
    assert "μ = 0.2769" in statement_page(one, lines)
    paper = make(NeighbourRelation.ZERO_OUT, beside=[PICK])
    gaussian = paper.privacy.events[0]
    doubled = [
        dataclasses.replace(gaussian, delta2=2 * gaussian.delta2),
        BoundedRangeEvent(range=0.4, count=1),
    ]
    worth = math.ceil(accounting.epsilon_of(doubled, 1e-5) * 1e4) / 1e4
    assert f"the same noise gives ε = {worth:g} at" in "\n".join(statement(paper))
