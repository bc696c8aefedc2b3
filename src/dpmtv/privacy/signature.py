"""An officer's signature on a certificate: Ed25519 over the bytes of ``certificate.json``.

The certificate's own hash shows accidents; whoever edits on purpose can renew it. A signature can
be renewed only with the officer's private key. Keys are PEM files, as ``openssl genpkey -algorithm
ed25519`` and ``openssl pkey -pubout`` make them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpmtv.errors import ArtifactError, UserError

if TYPE_CHECKING:
    from pathlib import Path

# Signed together with the bytes, so that a signature made for something else is worth nothing here.
_CONTEXT = b"dpmtv certificate 1\n"
_NEEDED = "signatures need the package cryptography: pip install 'dpmtv[sign]'"


def sign(certificate: bytes, private_key: Path) -> str:
    """The signature of a certificate's bytes, in hexadecimal digits and a line feed.

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
    signed: bytes = key.sign(_CONTEXT + certificate)
    return signed.hex() + "\n"


def check(certificate: bytes, signature: str, public_key: Path) -> None:
    """Raise unless the signature of these very bytes was made with the key's private half.

    Raises:
        ArtifactError: it was not.
        UserError: no Ed25519 public key in the file, or no cryptography.
    """
    from cryptography.exceptions import InvalidSignature

    serialization, ed25519 = _library()
    try:
        key = serialization.load_pem_public_key(public_key.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{public_key} is not a PEM public key") from error
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise UserError(f"{public_key} is not an Ed25519 key")
    try:
        key.verify(bytes.fromhex(signature.strip()), _CONTEXT + certificate)
    except (InvalidSignature, ValueError) as error:
        raise ArtifactError(
            "the signature is not this officer's, or the certificate was changed"
        ) from error


def _library() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise UserError(_NEEDED) from error
    return serialization, ed25519
