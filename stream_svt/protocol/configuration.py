"""The configuration of an application as numbered versions on its configuration topic.

A version is the text that an operator applied, with the files that it names, in parts that fit a record. The parts
come first; the record `current` names the newest version by number and digest. Parts of the version before are deleted
with it, so a compacted topic holds one version. A version counts once all of its parts are there and have the digest
that `current` names.

Numbers only rise: a reader that knows a version takes no lower one, and no other one under the same number.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from stream_svt.protocol.controls import Verify, accept_all
from stream_svt.protocol.ports import Record

FORMAT: Final = 1
CURRENT: Final = b"current"
PART_BYTES: Final = 800_000
"""Most bytes of a part: a record of a megabyte passes every broker's default."""
MAX_BYTES: Final = 256 * 1024 * 1024
"""Most bytes of an unpacked version: what a record says of its size is not trusted."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class VersionFault(StrEnum):
    """Why a record `current` is not followed, or why what it names cannot be read."""

    MALFORMED = "it is no record of this format"
    LOWER = "its number is lower than that of a version known"
    OTHER = "another version has this number"
    DIGEST = "its parts have another digest"


class Bundle(msgspec.Struct, frozen=True):
    """A configuration as it was applied, and the files that it names, by the names in it.

    ``retired`` holds, sorted, the names of all datasets that this version or one before has retired.
    """

    text: str
    files: dict[str, str] = {}
    retired: list[str] = []

    def to_bytes(self) -> bytes:
        """Return the bytes that the digest covers; the same for the same content."""
        return msgspec.json.encode(Bundle(self.text, dict(sorted(self.files.items())), self.retired))


class Current(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The record that names the newest version; ``digest`` is the SHA-256 of the bundle's bytes, as 64 hex digits."""

    number: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    digest: str
    parts: _Count
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Version:
    """A version that was read whole, or is to be written."""

    number: int
    bundle: Bundle

    @property
    def digest(self) -> str:
        """See `Current`."""
        return hashlib.sha256(self.bundle.to_bytes()).hexdigest()


def records(version: Version, before: Current | None = None) -> list[tuple[bytes, bytes | None]]:
    """Return the records of a version in the order in which they are written; None deletes a part of the one before."""
    packed = zlib.compress(version.bundle.to_bytes())
    parts = [packed[at : at + PART_BYTES] for at in range(0, len(packed), PART_BYTES)]
    found: list[tuple[bytes, bytes | None]] = [
        (_part(version.number, index), part) for index, part in enumerate(parts)
    ]
    current = Current(version.number, version.digest, len(parts))
    found.append((CURRENT, msgspec.json.encode(current)))
    if before is not None:
        found += [(_part(before.number, index), None) for index in range(before.parts)]
    return found


@dataclass(slots=True)
class Versions:
    """What a configuration topic shows: a pass over its committed records in order of offsets.

    Attributes:
        verify: Asked of every record `current` before its content is looked at.
        known: Number and digest of a version known from elsewhere; (0, "") where none is.
        current: The newest version that is named, whether or not its parts are there.
        refused: Why the last record `current` is not followed, where it is not.
    """

    verify: Verify = accept_all
    known: tuple[int, str] = (0, "")
    current: Current | None = None
    refused: str | None = None
    _parts: dict[bytes, bytes | None] = field(default_factory=dict)

    def take(self, record: Record) -> None:
        """Take the next record in."""
        key, value = record.key or b"", record.value
        if key != CURRENT:
            self._parts[key] = value
            return
        self.refused = self.verify(record) or self._follow(value)

    def _follow(self, value: bytes | None) -> str | None:
        """Take a record `current` for the newest; return why not, where it is not."""
        try:
            found = msgspec.json.decode(value or b"", type=Current)
        except msgspec.DecodeError:
            return VersionFault.MALFORMED
        if found.format != FORMAT:
            return f"it has format {found.format}, this version reads {FORMAT}"
        number, digest = self.known if self.current is None else (self.current.number, self.current.digest)
        if found.number < number:
            return VersionFault.LOWER
        if found.number == number and found.digest != digest:
            return VersionFault.OTHER
        self.current = found
        return None

    def newest(self) -> Version | str | None:
        """Return the newest version, or why its parts cannot be used; None where none is named or parts are missing."""
        current = self.current
        if current is None:
            return None
        packed = []
        for index in range(current.parts):
            part = self._parts.get(_part(current.number, index))
            if part is None:
                return None
            packed.append(part)
        try:
            content = zlib.decompressobj().decompress(b"".join(packed), MAX_BYTES)
            if hashlib.sha256(content).hexdigest() != current.digest:
                return VersionFault.DIGEST
            return Version(current.number, msgspec.json.decode(content, type=Bundle))
        except (zlib.error, msgspec.DecodeError):
            return VersionFault.DIGEST


def _part(number: int, index: int) -> bytes:
    return f"part/{number}/{index}".encode()
