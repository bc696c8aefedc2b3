"""An officer's signature on a task vector's folder: Ed25519 over names and hashes of its files.

The certificate's own hash shows accidents; whoever edits on purpose can renew it. A signature can
be renewed only with the officer's private key. Keys are PEM files, as ``openssl genpkey -algorithm
ed25519`` and ``openssl pkey -pubout`` make them.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from dpmtv.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# Signed together with the bytes, so that a signature made for something else is worth nothing here.
_CONTEXT = b"dpmtv folder 2\n"
_OLD_CONTEXT = b"dpmtv certificate 1\n"
_NEEDED = "signatures need the package cryptography: pip install 'dpmtv[sign]'"


def of_folder(files: Mapping[str, bytes]) -> bytes:
    """What is signed of files: each name with the hash of its content."""
    lines = (f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files))
    return _CONTEXT + "".join(lines).encode()


def of_certificate(certificate: bytes) -> bytes:
    """What older versions signed: the certificate alone."""
    return _OLD_CONTEXT + certificate


def sign(message: bytes, private_key: Path) -> str:
    """The signature of a message, in hexadecimal digits and a line feed.

    Raises:
        UserError: no Ed25519 private key without a passphrase in the file, or no cryptography.
    """
    serialization, ed25519 = _library()
    try:
        key = serialization.load_pem_private_key(private_key.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{private_key} is not a PEM private key without a passphrase") from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise UserError(f"{private_key} is not an Ed25519 key")
    signed: bytes = key.sign(message)
    return signed.hex() + "\n"


def matches(message: bytes, signature: str, public_key: Path) -> bool:
    """Whether the signature of this very message was made with the key's private half.

    Raises:
        UserError: no Ed25519 public key in the file, or no cryptography.
    """
    serialization, ed25519 = _library()
    from cryptography.exceptions import InvalidSignature

    try:
        key = serialization.load_pem_public_key(public_key.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{public_key} is not a PEM public key") from error
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise UserError(f"{public_key} is not an Ed25519 key")
    try:
        key.verify(bytes.fromhex(signature.strip()), message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _library() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise UserError(_NEEDED) from error
    return serialization, ed25519
