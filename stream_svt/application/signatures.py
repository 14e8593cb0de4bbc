"""Signed commands: a key proves who issued a command, in addition to the right to write to the control topic.

The signature is in a header of the command's record and covers the record's value, the cluster, the application, the
control topic and the shard. The value names the state and the number of the command: a replayed copy of a signed
command is refused as stale.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from stream_svt.protocol.controls import Refusal
from stream_svt.protocol.records import Record
from stream_svt.protocol.sealing import RecordContext

HEADER: Final = "stream-svt-signature"
KEY_BYTES: Final = 32
_PREFIX: Final = b"stream-svt command, version 3\0"
_FORM: Final = re.compile(rb"v3 ((?:hmac-sha256|ed25519) [0-9a-f]{16}) ([0-9a-f]{64}|[0-9a-f]{128})")


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """Key that verifies signatures; ``name`` is public and contains a digest of the key."""

    name: str
    verify: Callable[[bytes, bytes], bool] = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class SigningKey:
    """Key that signs; ``name`` is that of the verifying key."""

    name: str
    sign: Callable[[bytes], bytes] = field(repr=False)

    def header(self, context: RecordContext, value: bytes) -> tuple[str, bytes]:
        """Return the header that signs ``value`` as a command of one shard of one application."""
        return HEADER, f"v3 {self.name} {self.sign(_covered(context, value)).hex()}".encode()


class Verifier:
    """Checks whether records of one shard's control partition are signed with a known key."""

    def __init__(self, context: RecordContext, keys: Iterable[VerifyingKey]) -> None:
        self._context = context
        self._keys = {key.name: key for key in keys}

    def __call__(self, record: Record) -> str | None:
        """Return None for a valid signature, else why the record is refused."""
        signatures = [value for name, value in record.headers if name == HEADER]
        if not signatures:
            return Refusal.UNSIGNED
        # Headers of Kafka may have no value.
        form = _FORM.fullmatch(signatures[0] or b"") if len(signatures) == 1 else None
        if form is None:
            return Refusal.BAD_SIGNATURE
        name, signature = (part.decode() for part in form.groups())
        if (key := self._keys.get(name)) is None:
            return Refusal.UNKNOWN_KEY
        covered = _covered(self._context, record.value or b"")
        return None if key.verify(bytes.fromhex(signature), covered) else Refusal.BAD_SIGNATURE


def _covered(context: RecordContext, value: bytes) -> bytes:
    return _PREFIX + context.bind(b"", 0) + value


def secret_bytes(text: str) -> bytes:
    """Return the 32 bytes that a text holds as 64 hex digits or base64, or raise ValueError."""
    stripped = "".join(text.split())
    url_safe = b"-_" if set(stripped) & {"-", "_"} else None
    for read in (bytes.fromhex, lambda text: base64.b64decode(text, altchars=url_safe, validate=True)):
        with contextlib.suppress(ValueError):
            if len(key := read(stripped)) == KEY_BYTES:
                return key
    raise ValueError(f"must hold {KEY_BYTES} bytes as {2 * KEY_BYTES} hex digits or as base64")


def shared_key(secret: bytes) -> tuple[SigningKey, VerifyingKey]:
    """Return an HMAC-SHA256 key to sign and to verify with: both use the same secret."""

    def sign(covered: bytes) -> bytes:
        return hmac.digest(secret, covered, "sha256")

    name = f"hmac-sha256 {_key_id(b'hmac', sign(b'stream-svt command key id'))}"
    verify = VerifyingKey(name, lambda signature, covered: hmac.compare_digest(sign(covered), signature))
    return SigningKey(name, sign), verify


def public_key(text: str) -> VerifyingKey:
    """Return the Ed25519 public key in a PEM text, or raise ValueError, whose message never repeats the text."""
    if "PRIVATE KEY" in text:
        raise ValueError("holds a private key: workers need the public half only (openssl pkey -pubout)")
    try:
        key = serialization.load_pem_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError("must hold an Ed25519 public key as PEM") from None
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("holds a public key of another kind, expected Ed25519")  # noqa: TRY004  the file is wrong, not a type
    return _public(key)


def verifying_key(text: str) -> VerifyingKey:
    """Return the verifying key in a text: Ed25519 as PEM, or 32 shared bytes. Raises as `public_key` does."""
    if "-----BEGIN" in text:
        return public_key(text)
    try:
        return shared_key(secret_bytes(text))[1]
    except ValueError as error:
        raise ValueError(f"{error}, or an Ed25519 public key as PEM") from None


def signing_key(text: str) -> SigningKey:
    """Return the signing key in a text: Ed25519 as PEM, or 32 shared bytes. Raises ValueError as `public_key` does."""
    if "-----BEGIN" not in text:
        try:
            return shared_key(secret_bytes(text))[0]
        except ValueError as error:
            raise ValueError(f"{error}, or an Ed25519 private key as PEM") from None
    if "ENCRYPTED" in text:
        raise ValueError("holds an encrypted key: decrypt it first (openssl pkey), onto a file of your own")
    try:
        key = serialization.load_pem_private_key(text.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError("must hold an Ed25519 private key as PEM") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError("holds a private key of another kind, expected Ed25519")  # noqa: TRY004  likewise
    return SigningKey(_public(key.public_key()).name, key.sign)


def _public(key: Ed25519PublicKey) -> VerifyingKey:
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)

    def verify(signature: bytes, covered: bytes) -> bool:
        try:
            key.verify(signature, covered)
        except InvalidSignature:
            return False
        return True

    return VerifyingKey(f"ed25519 {_key_id(b'ed25519', raw)}", verify)


def _key_id(kind: bytes, public: bytes) -> str:
    return hashlib.sha256(b"stream-svt " + kind + b" " + public).hexdigest()[:16]
