"""Saving, reading, and refusing what does not belong."""

from __future__ import annotations

import hashlib
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpmtv.artifact import (
    CARD,
    CERTIFICATE,
    TENSORS,
    TaskVector,
    require_writable,
    sign,
    tensor_bytes,
    verify,
)
from dpmtv.data.demonstrations import read_demonstrations
from dpmtv.errors import ArtifactError
from dpmtv.evaluation.benchmark import EMBEDDED_DATA
from dpmtv.models.adapters import VisionLanguageModel
from dpmtv.pipeline import build_task_vector
from dpmtv.privacy import accounting, mechanisms
from dpmtv.privacy import certificate as certificates
from dpmtv.privacy.sensitivity import NeighbourRelation


@pytest.fixture(scope="module")
def vector(model) -> TaskVector:
    rows = read_demonstrations(EMBEDDED_DATA / "tasks/color-gem/private.jsonl")[:30]
    return build_task_vector(
        model, rows, epsilon=2.0, delta=1e-4, selection="all", clip=5.0, shots=2
    )


@pytest.fixture
def folder(vector, tmp_path):
    vector.save_pretrained(tmp_path / "vector")
    return tmp_path / "vector"


def test_round_trip(vector, folder):
    again = TaskVector.from_pretrained(folder)
    assert np.array_equal(again.values, vector.values)
    assert np.array_equal(again.heads, vector.heads)
    assert again.certificate == vector.certificate
    assert sorted(p.name for p in folder.iterdir()) == sorted([TENSORS, CERTIFICATE, CARD])
    assert "ε = 2" in (folder / CARD).read_text()
    assert any("ε = 2" in line for line in verify(folder))


def test_no_private_path_seed_or_count_is_stored(folder):
    text = (folder / CERTIFICATE).read_text() + (folder / CARD).read_text()
    assert str(EMBEDDED_DATA) not in text
    assert not re.search(r"seed|path|n_records|failed", text)


def test_a_taken_folder_is_refused_and_left_alone(vector, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    for target in (tmp_path / "mine", tmp_path / "mine" / "thesis.txt"):
        with pytest.raises(ArtifactError, match="choose another name"):
            vector.save_pretrained(target)
    (tmp_path / "empty").mkdir()
    vector.save_pretrained(tmp_path / "empty")
    assert {p.name for p in tmp_path.iterdir()} == {"mine", "empty"}


def test_nothing_half_written(vector, tmp_path, monkeypatch):
    monkeypatch.setattr("dpmtv.artifact._card", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        vector.save_pretrained(tmp_path / "vector")
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_cannot_be_made_is_refused_beforehand(
    tmp_path, tmp_path_factory, monkeypatch
):
    (tmp_path / "file").write_text("x")
    for target in (tmp_path / "file" / "v", tmp_path / "file" / "a" / "v", tmp_path / ("v" * 300)):
        with pytest.raises(ArtifactError, match=f"{target.name} cannot be written"):
            require_writable(target)
    with pytest.raises(ArtifactError, match="choose another name"):
        require_writable(tmp_path / "file")
    (tmp_path / "link").symlink_to(tmp_path / "new")
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))
    for target in (tmp_path / "link", Path()):
        with pytest.raises(ArtifactError, match="name a new folder"):
            require_writable(target)
    (tmp_path / "link").unlink()
    require_writable(tmp_path / "new" / "v")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def refuses(folder, path, data, place) -> None:
    flipped = bytearray(data)
    flipped[place // 8] ^= 1 << place % 8
    path.write_bytes(bytes(flipped))
    with pytest.raises(ArtifactError):
        TaskVector.from_pretrained(folder)


@pytest.mark.parametrize("name", [TENSORS, CERTIFICATE])
def test_a_flipped_bit_anywhere_is_refused(folder, name):
    """A bit in every byte of the certificate, a thousand bits of the tensors."""
    path, chooser = folder / name, random.Random(0)
    data = path.read_bytes()
    if name == CERTIFICATE:
        places = [8 * byte + chooser.randrange(8) for byte in range(len(data))]
    else:
        places = [0, 8 * len(data) - 1, *(chooser.randrange(8 * len(data)) for _ in range(1000))]
    for place in places:
        refuses(folder, path, data, place)
    path.write_bytes(data)
    TaskVector.from_pretrained(folder)


@pytest.fixture
def officer(tmp_path) -> tuple[Path, Path]:
    """Private and public key files."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private, public = tmp_path / "officer.pem", tmp_path / "officer.pub"
    private.write_bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()))
    public.write_bytes(
        key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


def test_an_officers_signature_shows_edits_that_a_hash_does_not(folder, vector, officer):
    private, public = officer
    assert verify(folder)[-1] == "There is no officer's signature."
    with pytest.raises(ArtifactError, match="not signed"):
        verify(folder, public)
    sign(folder, private)
    assert "signature is on all files" in verify(folder, public)[-1]
    assert "name the officer's public key" in verify(folder)[-1]
    forged = replace(vector, certificate=replace(vector.certificate, product_version="9.9"))
    seal(forged, folder)
    assert verify(folder), "the hash of the certificate was renewed with it"
    with pytest.raises(ArtifactError, match="not this officer's"):
        verify(folder, public)
    (folder / TENSORS).write_bytes(b"")
    with pytest.raises(ArtifactError):
        sign(folder, private)


def seal(forged: TaskVector, folder: Path) -> None:
    """Write a vector over another, but keep the signature."""
    for name in (TENSORS, CERTIFICATE, CARD):
        (folder / name).unlink(missing_ok=True)
    forged.save_pretrained(folder.with_name("forged"))
    for path in folder.with_name("forged").iterdir():
        path.rename(folder / path.name)
    folder.with_name("forged").rmdir()


CARD_EDITS = [
    lambda text: text.replace("ε = 2,", "ε = 0.01,"),
    lambda text: text.replace("δ = 0.0001", "δ = 1e-09"),
    lambda text: text.replace("at most", "hardly ever, at most"),
    lambda text: text + "\nIt is anonymous.\n",
    lambda text: text.replace("\n", "\r\n"),
    lambda _: "",
]


@pytest.mark.parametrize("edit", CARD_EDITS)
def test_what_a_person_reads_is_what_is_verified(folder, officer, edit):
    private, public = officer
    assert any("word for word" in line for line in verify(folder))
    sign(folder, private)
    text = (folder / CARD).read_text("utf-8")
    assert edit(text) != text
    (folder / CARD).write_text(edit(text), "utf-8", newline="")
    for key in (None, public):
        with pytest.raises(ArtifactError, match=r"README\.md was changed"):
            verify(folder, key)
    with pytest.raises(ArtifactError, match="covers what people read"):
        sign(folder, private)
    TaskVector.from_pretrained(folder)  # reads the certificate, not the card


@pytest.mark.parametrize("name", ["notes.txt", ".hidden", "task_vector.bin", "folder", "readme.md"])
def test_a_file_that_does_not_belong_there_is_refused_by_name(folder, officer, name):
    private, public = officer
    sign(folder, private)
    if name == "folder":
        (folder / name).mkdir()
    else:
        (folder / name).write_text("x")
    for key in (None, public):
        with pytest.raises(ArtifactError, match=re.escape(repr(name))):
            verify(folder, key)
    with pytest.raises(ArtifactError, match="move it away"):
        sign(folder, private)
    TaskVector.from_pretrained(folder)


def test_a_missing_card_is_told_and_breaks_the_signature(folder, officer):
    private, public = officer
    sign(folder, private)
    (folder / CARD).unlink()
    assert any("There is no README.md" in line for line in verify(folder))
    with pytest.raises(ArtifactError, match="not this officer's"):
        verify(folder, public)


OLD = Path(__file__).parent / "old_vector"
"""A default vector with its choice, made and signed by the version before format 3."""


@pytest.fixture
def old(tmp_path) -> Path:
    return shutil.copytree(OLD, tmp_path / "old")


def test_a_folder_of_an_older_version_loads_and_verifies(old, officer):
    public = OLD.with_suffix(".pub")
    vector = TaskVector.from_pretrained(old)
    assert vector.certificate.format_version == 2
    lines = verify(old, public)
    assert any("README.md is NOT CHECKED but for ε and δ" in line for line in lines)
    assert "does not cover README.md" in lines[-1]
    with pytest.raises(ArtifactError, match="not this officer's"):
        verify(old, officer[1])
    with pytest.raises(ArtifactError, match="save it again"):
        sign(old, officer[0])
    text = (old / CARD).read_text("utf-8")
    assert "is charged there too" in text, "which is not true, and why the card is another now"
    for figure, other in (("ε = 1,", "ε = 0.5,"), ("δ = 1e-05", "δ=1e-09")):
        (old / CARD).write_text(text.replace(figure, other), "utf-8")
        with pytest.raises(ArtifactError, match=r"README\.md was changed"):
            verify(old, public)
    vector.save_pretrained(old.with_name("again"))
    sign(old.with_name("again"), officer[0])
    assert any("word for word" in line for line in verify(old.with_name("again"), officer[1]))


def forged(honest: TaskVector, pick: bool = True, **changes) -> TaskVector:
    """Another claim for the same noise, with everything recomputed that follows from it."""
    certificate = honest.certificate
    told = certificate.privacy
    event = replace(told.events[0], delta2=changes.pop("factor") * told.events[0].delta2)
    events = [event, *told.events[1:]][: 2 if pick else 1]
    mechanism = mechanisms.GaussianMean(
        **{"relation": told.relation, "clip_norms": told.clip_norms} | changes,
        chunks=told.chunks,
        block_sizes=told.block_sizes,
        epsilon=accounting.epsilon_of(events, told.delta) * (1 + 1e-9),
        delta=told.delta,
        grid=told.grid,
        scale=told.scale,
        beside=tuple(events[1:]),
    )
    assert mechanism.event.sigma == told.events[0].sigma
    assert mechanism.epsilon < 0.95 * told.epsilon
    names = ("ledger", "shots", "query", "queries_sha256", "clip_source", "released_heads")
    kept = {name: getattr(told, name) for name in (*names, "geometry_sha256")}
    privacy = certificates.privacy_of(mechanism, **kept)
    claim = replace(certificate, privacy=privacy, format_version=3)
    return replace(honest, certificate=claim)


@pytest.mark.parametrize(
    "claim",
    [
        lambda v: forged(
            v, factor=0.5, clip_norms=tuple(c / 2 for c in v.certificate.privacy.clip_norms)
        ),
        lambda v: forged(v, factor=0.5, relation=NeighbourRelation.ZERO_OUT),
        lambda v: forged(v, factor=1.0, pick=False),
    ],
    ids=["clip norms halved", "another relation", "a pick dropped"],
)
def test_forgeries_that_only_a_signature_shows(old, officer, claim):
    """docs/privacy.md, section 7, names them."""
    private, public = officer
    honest, folder = TaskVector.from_pretrained(old), old.with_name("v")
    honest.save_pretrained(folder)
    sign(folder, private)
    seal(claim(honest), folder)
    assert any("word for word" in line for line in verify(folder))
    with pytest.raises(ArtifactError, match="not this officer's"):
        verify(folder, public)


def rewrite(folder, vector, **tensors) -> None:
    """Change the tensors and put their new hash on the certificate, as a careful forger would."""
    from safetensors.numpy import save

    data = bytes(save({"values": vector.values, "heads": vector.heads} | tensors))
    (folder / TENSORS).write_bytes(data)
    certificate = replace(vector.certificate, tensor_sha256=hashlib.sha256(data).hexdigest())
    certificates.write(certificate, folder / CERTIFICATE)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"extra": np.zeros(3, np.float32)}, "exactly"),
        ({"values": np.zeros(767, np.float32)}, "768"),
        ({"values": np.zeros(768, np.float64)}, "float32"),
        ({"values": np.full(768, np.nan, np.float32)}, "finite"),
        ({"heads": np.ones(47, bool)}, "48"),
        ({"heads": np.ones(48, np.uint8)}, "booleans"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(folder, vector, tensors, message):
    rewrite(folder, vector, **tensors)
    with pytest.raises(ArtifactError, match=message):
        TaskVector.from_pretrained(folder)


def test_values_outside_the_released_heads_are_refused(model, tmp_path):
    rows = read_demonstrations(EMBEDDED_DATA / "tasks/color-gem/private.jsonl")[:30]
    public = read_demonstrations(EMBEDDED_DATA / "public.jsonl")[-40:]
    vector = build_task_vector(
        model, rows, epsilon=2.0, delta=1e-4, public=public, shots=2, search_steps=3
    )
    assert not vector.heads.all()
    vector.save_pretrained(tmp_path / "v")
    for change in ({"heads": np.ones(48, bool)}, {"values": np.ones(768, np.float32)}):
        rewrite(tmp_path / "v", vector, **change)
        with pytest.raises(ArtifactError, match="does not list"):
            TaskVector.from_pretrained(tmp_path / "v")


@pytest.mark.parametrize("name", [TENSORS, CERTIFICATE])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(ArtifactError, match="not a task vector"):
        TaskVector.from_pretrained(folder)


def test_two_folders_mixed_up_are_refused(folder, vector, tmp_path):
    other = replace(vector, values=vector.values + 1)
    other_bytes = tensor_bytes(other.values, other.heads)
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / TENSORS).write_bytes(other_bytes)
    with pytest.raises(ArtifactError, match="tensor_sha256"):
        verify(tmp_path / "copy")


def test_other_model_layout_or_prompt_is_refused(model, random_model, vector, data, monkeypatch):
    query = read_demonstrations(data / "tasks/color-gem/test.jsonl")[0].query
    with vector.applied(model):
        assert len(model.generate([query])) == 1
    with pytest.raises(ArtifactError, match="made for"), vector.applied(random_model):
        pytest.fail("applied to other weights")

    config = random_model.model.config.__class__.from_dict(random_model.model.config.to_dict())
    config.text_config.num_hidden_layers = 3
    small = VisionLanguageModel(
        type(random_model.model)(config).float(), model.processor, weights_sha256="1" * 64
    )
    with pytest.raises(ArtifactError, match="head layout"), vector.applied(small):
        pytest.fail("applied to another layout")

    instructed = VisionLanguageModel(
        model.model,
        model.processor,
        weights_sha256=model.identity.weights_sha256,
        instruction="Hm.",
    )
    with pytest.raises(ArtifactError, match="prompt format"), vector.applied(instructed):
        pytest.fail("applied to another prompt")
