"""Only the officer's key signs, and only what was signed passes."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives import serialization as s
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from dpmtv.errors import UserError
from dpmtv.privacy import signature

TEXT = b'{"a": 1}\n'


def write(folder, name, key):
    """Private and public PEM files."""
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()))
    public.write_bytes(
        key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


@pytest.fixture
def keys(tmp_path):
    return write(tmp_path, "officer", ed25519.Ed25519PrivateKey.generate())


def test_a_signature_holds_for_these_bytes_and_this_key_alone(tmp_path, keys):
    private, public = keys
    text = signature.sign(TEXT, private)
    assert signature.matches(TEXT, text, public)
    _, other = write(tmp_path, "other", ed25519.Ed25519PrivateKey.generate())
    for bad in (
        (TEXT + b" ", text, public),
        (TEXT, text, other),
        (TEXT, "00" * 64, public),
        (TEXT, "no hexadecimal digits", public),
        (TEXT, "", public),
    ):
        assert not signature.matches(*bad)


def test_keys_of_another_kind_are_refused(tmp_path, keys):
    private, public = keys
    curve, curve_public = write(tmp_path, "curve", ec.generate_private_key(ec.SECP256R1()))
    with pytest.raises(UserError, match="not an Ed25519 key"):
        signature.sign(TEXT, curve)
    with pytest.raises(UserError, match="not an Ed25519 key"):
        signature.matches(TEXT, "00" * 64, curve_public)
    with pytest.raises(UserError, match="PEM private key"):
        signature.sign(TEXT, public)
    with pytest.raises(UserError, match="PEM public key"):
        signature.matches(TEXT, "00" * 64, private)
    with pytest.raises(UserError, match="PEM private key"):
        signature.sign(TEXT, tmp_path / "absent")


def test_names_and_contents_of_all_files_are_signed():
    files = {"a": b"1", "b": b"2"}
    messages = {
        signature.of_folder(found)
        for found in (files, {"a": b"1"}, {"a": b"2", "b": b"1"}, files | {"c": b""}, {"b": b"1"})
    }
    assert len(messages) == 5
    assert signature.of_folder({"b": b"2", "a": b"1"}) in messages
    assert signature.of_certificate(b"1") not in messages
