"""The configuration of an application as numbered versions on its configuration topic.

A version is the text that an operator applied, with the files that it names, split into parts that fit a record. The
parts come first; the record `current` names the newest version by number and digest. The parts of the version before
are deleted. A version is valid once all of its parts are there and have the digest in `current`. A reader refuses a
lower number than it knows, and another version with the same number.
"""

from __future__ import annotations

import hashlib
import zlib
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import itemgetter
from typing import Annotated, Final, TypeAlias

import msgspec

from stream_svt.protocol.controls import Verify, accept_all
from stream_svt.protocol.records import Record
from stream_svt.settings.sections import Partitioner
from stream_svt.settings.sources import WindowList

FORMAT: Final = 1
CURRENT: Final = b"current"
PART_BYTES: Final = 800_000
"""Most bytes of a part; brokers accept records of a megabyte by default."""
MAX_BYTES: Final = 256 * 1024 * 1024
"""Most bytes of an unpacked version; larger ones are refused."""
LISTS_KEPT_MS: Final = 35 * 86_400_000
"""How long a version keeps the lists of versions before it: a counter may be as late, records of counts are kept for
30 days."""

History: TypeAlias = list[tuple[int, WindowList]]
"""Lists of a source, each with the broker's time at which its version was stored, in ascending order."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class VersionFault(StrEnum):
    """Why a record `current` is refused, or why the version that it names cannot be read."""

    MALFORMED = "it is no record of this format"
    LOWER = "its number is lower than that of a known version: apply with a larger --above"
    OTHER = "another version has this number: apply with a larger --above"
    DIGEST = "its parts have another digest"


class Bundle(msgspec.Struct, frozen=True):
    """A configuration as it was applied, and the files that it names, by the names in it.

    ``retired`` holds, sorted, the names of all datasets that this version or an earlier one retired. ``partitioner``
    is the same in every version: so no two workers give a dataset two homes. ``sources`` holds the digests of all
    sources that this version or an earlier one declared: see `SourceSpec.digests`. ``earlier`` holds the lists
    of sources in earlier versions, as far as a late counter may need them.
    """

    text: str
    files: dict[str, str] = {}
    retired: list[str] = []
    partitioner: Partitioner = "murmur2"
    sources: dict[str, str] = {}
    earlier: dict[str, History] = {}

    def to_bytes(self) -> bytes:
        """Return the bytes that the digest covers; equal content has equal bytes."""
        content = msgspec.structs.asdict(self) | {"files": dict(sorted(self.files.items()))}
        for name in ("sources", "earlier"):
            if not content[name]:  # as in versions of releases without sources
                del content[name]
        return msgspec.json.encode(content)


class Current(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The record that names the newest version; ``digest`` is the SHA-256 of the bundle's bytes, as 64 hex digits."""

    number: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    digest: str
    parts: _Count
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Version:
    """A complete version, read or to be written; ``stored_ms`` is the broker's time of its record `current`."""

    number: int
    bundle: Bundle
    stored_ms: int = field(default=0, compare=False)

    @property
    def digest(self) -> str:
        """See `Current`."""
        return digest_of(self.bundle.to_bytes())

    def history(self, source: str, listed: WindowList) -> History:
        """Return the lists that a source had until now, given its list in this version."""
        earlier = self.bundle.earlier.get(source, [])
        if earlier and earlier[-1][1] == listed:
            return earlier
        since = max(self.stored_ms, earlier[-1][0]) if earlier else self.stored_ms
        return [*earlier, (since, listed)]

    def histories(self, lists: Mapping[str, WindowList], now_ms: int) -> dict[str, History]:
        """Return ``earlier`` of the next version, given the sources' lists in this one."""
        found = self.bundle.earlier | {name: self.history(name, listed) for name, listed in lists.items()}
        return {name: _kept(history, now_ms - LISTS_KEPT_MS) for name, history in sorted(found.items())}


def _kept(history: History, since_ms: int) -> History:
    """Return the list that was valid at a moment, and all later ones."""
    valid = bisect_right(history, since_ms, key=itemgetter(0)) - 1
    return history[max(valid, 0) :]


def digest_of(content: bytes) -> str:
    """Return the digest of a bundle's bytes; see `Current`."""
    return hashlib.sha256(content).hexdigest()


def records(version: Version, before: Current | None = None) -> list[tuple[bytes, bytes | None]]:
    """Return the records of a version in write order; None deletes a part of the version ``before``."""
    packed = zlib.compress(version.bundle.to_bytes())
    parts = [packed[at : at + PART_BYTES] for at in range(0, len(packed), PART_BYTES)]
    current = msgspec.json.encode(Current(version.number, version.digest, len(parts)))
    gone = () if before is None else (_part(before.number, index) for index in range(before.parts))
    return [
        *((_part(version.number, index), part) for index, part in enumerate(parts)),
        (CURRENT, current),
        *((key, None) for key in gone),
    ]


@dataclass(slots=True)
class Versions:
    """The versions on a configuration topic: a pass over its committed records in order of offsets.

    ``verify`` checks every record `current` before its content is read. ``known`` are number and digest of a version
    known from elsewhere. ``current`` is the newest record accepted, whether or not its parts are there; ``refused`` is
    why the last record was refused, None if it was not.
    """

    verify: Verify = accept_all
    known: tuple[int, str] = (0, "")
    current: Current | None = None
    refused: str | None = None
    _stored_ms: int = 0
    _parts: dict[bytes, bytes | None] = field(default_factory=dict)

    def take(self, record: Record) -> None:
        """Add the next record."""
        key, value = record.key or b"", record.value
        if key != CURRENT:
            self._parts[key] = value
            return
        why = self.verify(record) or self._follow(value, record.timestamp)
        self.refused = None if why is None else str(why)  # logs show a member of an enumeration as code

    def _follow(self, value: bytes | None, stored_ms: int) -> str | None:
        """Accept a record `current` as the newest, or return the reason of a refusal."""
        try:
            found = msgspec.json.decode(value or b"", type=Current)
        except msgspec.DecodeError:
            return VersionFault.MALFORMED
        if found.format != FORMAT:
            return f"it has format {found.format}, this version reads {FORMAT}"
        number, digest = self.known
        if found.number < number:
            return VersionFault.LOWER
        if found.number == number and found.digest != digest:
            return VersionFault.OTHER
        self.current, self.known, self._stored_ms = found, (found.number, found.digest), stored_ms
        return None

    def newest(self) -> Version | str | None:
        """Return the newest version, or why it cannot be used; None if there is none or parts are missing."""
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
            if digest_of(content) != current.digest:
                return VersionFault.DIGEST
            bundle = msgspec.json.decode(content, type=Bundle)
        except (zlib.error, msgspec.DecodeError):
            return VersionFault.DIGEST
        return Version(current.number, bundle, self._stored_ms)


def _part(number: int, index: int) -> bytes:
    return f"part/{number}/{index}".encode()
