"""Keys and passwords, as files hold them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)


def ed25519_pair(password: bytes | None = None) -> tuple[str, str]:
    """Return a new private key and its public half, both as PEM."""
    key = Ed25519PrivateKey.generate()
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return private.decode(), public.decode()


def write_secrets(directory: Path, contents: Mapping[str, str]) -> None:
    """Write files that only their owner may read."""
    for name, content in contents.items():
        (directory / name).write_text(content)
        (directory / name).chmod(0o600)
