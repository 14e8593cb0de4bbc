"""Frame of state records: bound to their context, and sealed when a key is configured.

Frame, all integers big-endian::

    version 1 | kind 1 | sequence 8 | plain:  check 16                      | content
                                    | sealed: key id 8, salt 16, nonce 12   | AES-256-GCM(content), tag 16

Sealed or not, a record is bound to cluster, application, topic, shard, record key and the sequence of the
transaction that wrote it: a record that was moved, cut, changed or written by another application does not
open. Without a key the check is a plain digest: it finds accidents, not an adversary who may write to the
topic.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from stream_svt.errors import MisuseError, UnknownKey, UnreadableState

VERSION = 1
PLAIN, SEALED = 0, 1
KEY_BYTES = 32
SALT_BYTES = 16
NONCE_BYTES = 12
CHECK_BYTES = 16
KEY_ID_BYTES = 8
NO_KEY = "none"

_HEAD = struct.Struct(">BBQ")
_CHECKED = _HEAD.size + CHECK_BYTES
_SALTED = _HEAD.size + KEY_ID_BYTES + SALT_BYTES
_NONCED = _SALTED + NONCE_BYTES
_BOUND = struct.Struct(">BIQ")
_LENGTH = struct.Struct(">I")
_ALTERED = "was changed or cut, or was written under another key, shard or cluster"


@dataclass(frozen=True)
class RecordContext:
    """Context to which a seal binds a record, beside its key and sequence."""

    cluster: str
    application: str
    topic: str
    shard: int

    @cached_property
    def _names(self) -> bytes:
        names = (self.cluster.encode(), self.application.encode(), self.topic.encode())
        return b"".join(_LENGTH.pack(len(name)) + name for name in names)

    def bind(self, key: bytes, sequence: int) -> bytes:
        """Return the unambiguous text of this context, a record key and a sequence."""
        bound = _BOUND.pack(VERSION, self.shard, sequence)
        return b"".join((bound, self._names, _LENGTH.pack(len(key)), key))


class Opened(NamedTuple):
    """A record's content with the sequence that wrote it and the id of the key that sealed it (or "none")."""

    sequence: int
    content: bytes
    key_id: str


def key_id(master: bytes) -> bytes:
    """Return the public name of a master key: eight bytes that reveal nothing about it."""
    return _derived(master, b"stream-svt key id", size=KEY_ID_BYTES)


def describe(key: bytes) -> str:
    """Return a record key as text for a message."""
    return repr(key.decode("utf-8", "backslashreplace"))


class Sealing:
    """Seals and opens the records of one shard during one session.

    The first of the ``masters``, 32 bytes each, seals, and all of them open; without any, records are written plain.
    ``entropy`` is the source of the session's salt and of one nonce per record.
    """

    def __init__(
        self, context: RecordContext, masters: Sequence[bytes], entropy: Callable[[int], bytes]
    ) -> None:
        self._context = context
        self._entropy = entropy
        self._masters = {key_id(master): master for master in masters}
        self._ciphers: dict[bytes, tuple[AESGCM, str]] = {}
        first = next(iter(self._masters), b"")
        self.key_id = first.hex() or NO_KEY
        self._prefix = first and first + entropy(SALT_BYTES)

    def seal(self, key: bytes, sequence: int, content: bytes) -> bytes:
        """Return the record with ``content`` under ``key`` in transaction ``sequence``."""
        bound = self._context.bind(key, sequence)
        if not self._prefix:
            return _HEAD.pack(VERSION, PLAIN, sequence) + _check(bound, content) + content
        nonce = self._entropy(NONCE_BYTES)
        cipher, _ = self._cipher(key, self._prefix)
        sealed = cipher.encrypt(nonce, content, bound)
        return _HEAD.pack(VERSION, SEALED, sequence) + self._prefix + nonce + sealed

    def open(self, key: bytes, record: bytes) -> Opened:
        """Return the content of a record.

        Raises:
            UnreadableState: The record was cut, changed, moved, or sealed with a key that is not configured.
        """
        if len(record) < _HEAD.size:
            raise self._refuse(key, f"it is cut off after {len(record)} bytes")
        version, kind, sequence = _HEAD.unpack_from(record)
        if version != VERSION or kind not in (PLAIN, SEALED):
            known = f"this version reads {VERSION}.0 and {VERSION}.1"
            raise self._refuse(key, f"it has format {version}.{kind}, {known}")
        bound = self._context.bind(key, sequence)
        if kind == PLAIN:
            check, content = record[_HEAD.size : _CHECKED], record[_CHECKED:]
            if not hmac.compare_digest(check, _check(bound, content)):
                raise self._refuse(key, f"it {_ALTERED}")
            return Opened(sequence, content, NO_KEY)
        prefix, nonce = record[_HEAD.size : _SALTED], record[_SALTED:_NONCED]
        if len(nonce) < NONCE_BYTES:
            raise self._refuse(key, f"it is cut off after {len(record)} bytes")
        cipher, name = self._cipher(key, prefix)
        try:
            return Opened(sequence, cipher.decrypt(nonce, record[_NONCED:], bound), name)
        except InvalidTag:
            raise self._refuse(key, f"its seal is broken: it {_ALTERED}") from None

    @cached_property
    def prove(self) -> Callable[[bytes], str] | None:
        """Function that proves content with the key; None without a key."""
        return _prover(next(iter(self._masters.values()))) if self._masters else None

    def _cipher(self, key: bytes, prefix: bytes) -> tuple[AESGCM, str]:
        """Return the cipher for records that begin with a key's id and a salt, and the key's name."""
        if prefix not in self._ciphers:
            name, salt = prefix[:KEY_ID_BYTES], prefix[KEY_ID_BYTES:]
            if name not in self._masters:
                known = ", ".join(known.hex() for known in self._masters) or "none"
                remedy = "name the key's file in sealing.keys"
                if self._masters:
                    remedy = "correct a wrong file; an older key's file stands behind the current one in sealing.keys"
                why = f"it is sealed with key {name.hex()}, configured: {known}; {remedy}"
                raise self._refuse(key, why, UnknownKey)
            info = b"stream-svt state" + struct.pack(">I", self._context.shard)
            self._ciphers[prefix] = AESGCM(_derived(self._masters[name], info, salt)), name.hex()
        return self._ciphers[prefix]

    def _refuse(self, key: bytes, why: str, kind: type[UnreadableState] = UnreadableState) -> UnreadableState:
        context = self._context
        return kind(
            f"state record {describe(key)} of shard {context.shard} on topic {context.topic!r} cannot be opened for "
            f"application {context.application!r} on cluster {context.cluster!r}: {why}. "
            "Nothing was changed."
        )


def proof_checker(masters: Sequence[bytes]) -> Callable[[str, bytes], bool]:
    """Return a check whether a proof was made of exactly this content with one of the master keys."""
    provers = {key_id(master).hex(): _prover(master) for master in masters}

    def is_proved(proof: str, content: bytes) -> bool:
        prover = provers.get(proof.partition("-")[0])
        return prover is not None and hmac.compare_digest(prover(content).encode(), proof.encode())

    return is_proved


def _prover(master: bytes) -> Callable[[bytes], str]:
    name, key = key_id(master).hex(), _derived(master, b"stream-svt proof of released events")
    return lambda content: f"{name}-{hmac.new(key, content, hashlib.sha256).hexdigest()}"


def _derived(master: bytes, info: bytes, salt: bytes | None = None, size: int = KEY_BYTES) -> bytes:
    if len(master) != KEY_BYTES:  # HKDF takes any length, even none
        raise MisuseError(f"a sealing key has {KEY_BYTES} bytes, this one has {len(master)}")
    return HKDF(hashes.SHA256(), size, salt, info).derive(master)


def _check(bound: bytes, content: bytes) -> bytes:
    return hashlib.blake2b(bound + content, digest_size=CHECK_BYTES).digest()
