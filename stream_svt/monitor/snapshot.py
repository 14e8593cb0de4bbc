"""Engine state as bytes and back: the plain form of the records on the state topic.

Records, by key:

- ``d/<dataset>``: ledger and monitors of a dataset (:class:`DatasetRecord`);
- ``m/<monitor>``: the monitor's specification as last applied;
- ``h/<hash>``: an older specification under which a run is still open;
- ``t/<topic>``: what was ever declared about the answers on a query topic (:class:`TopicRecord`);
- ``p/<dataset>/<monitor>/<number>``: queries waiting for another test (:class:`PendingRecord`);
- ``q/<dataset>/<monitor>/<number>``: muted series (:class:`MuteRecord`), where a dataset has many.

Every record starts with its format version; a version this code does not know is refused, never guessed.
"""

from __future__ import annotations

import struct
from typing import TypeVar

import msgspec

from stream_svt.errors import UnreadableState

VERSION = 1
SPLIT = 2
"""Version of a dataset whose mutes are in records of their own, and of those records: a release that knows only
``VERSION`` would take such a dataset for one without mutes. Where the mutes fit, it can still read what is written."""


class _Secret(msgspec.Struct, array_like=True):
    """What must not show when it is printed."""

    def __repr__(self) -> str:
        """Nothing of the content."""
        return f"{type(self).__name__}()"


class SlotRecord(_Secret, array_like=True):
    """One monitor on one dataset.

    ``secrets`` holds threshold noise and salt in 24 bytes, so that the length of a record tells nothing of them;
    it is zero once the run is closed. ``spec_hash`` names the specification of the last run: what waits was
    measured on its lattice. ``mutes`` holds (series, until), oldest first; none of a dataset of version ``SPLIT``.
    """

    state: str
    stopped: bool
    paused: bool
    run: int
    spec_hash: str
    secrets: bytes
    left: int
    run_tops: int
    started_ms: int
    tops: int
    runs: int
    halts: int
    spent: int
    mutes: list[tuple[str, int]]


class DatasetRecord(_Secret, array_like=True):
    """One dataset: its books, its number of released events and its monitors."""

    version: int
    name: str
    unit: str
    declared_limit: int
    ledger: bytes
    events: int
    slots: dict[str, SlotRecord]


class MuteRecord(msgspec.Struct, array_like=True):
    """Muted series of one monitor on one dataset, as (series, until): oldest first, as are the records' numbers."""

    version: int
    mutes: list[tuple[str, int]]


class PendingRecord(_Secret, array_like=True):
    """Queries of one set or retry queue that wait for another test; numbers are little-endian int64 bytes.

    ``count`` is the number of queries the retry queue has seen, ``opened_ms`` the clock when the set opened.
    """

    version: int
    set_id: str | None
    count: int
    opened_ms: int
    offset: bytes
    row: bytes
    value: bytes
    threshold: bytes
    attempt: bytes
    entered: bytes
    entered_ms: bytes
    series: list[str | None]
    query_id: list[str]


class ProgressRecord(msgspec.Struct, array_like=True):
    """Where every monitor stands in its topic: (offset, row, clock in ms), and the shard's counters."""

    version: int
    sequence: int
    shard_events: int
    positions: dict[str, tuple[int, int, int]]


class SpecRecord(msgspec.Struct, array_like=True):
    """A monitor's specification as JSON, and its hash when it was written."""

    version: int
    hash: str
    spec: str


class TopicRecord(msgspec.Struct, array_like=True):
    """The most cautious declaration ever made about a query topic; it outlives the monitors that made it.

    ``sensitivity`` is an exact fraction as text, in real units; ``general`` says that some monitor did not declare its
    answers monotonic.
    """

    version: int
    sensitivity: str
    general: bool


_SECRETS = struct.Struct("<qQQ")


def pack_secrets(threshold_noise: int, salt_high: int, salt_low: int) -> bytes:
    """Return a run's secrets as `SlotRecord` holds them."""
    return _SECRETS.pack(threshold_noise, salt_high, salt_low)


def unpack_secrets(secrets: bytes) -> tuple[int, int, int]:
    """Return threshold noise and the two halves of the salt.

    Raises
    ------
    ValueError
        The bytes are not what `pack_secrets` returned.
    """
    if len(secrets) != _SECRETS.size:
        message = "a run's secrets have another length"
        raise ValueError(message)
    threshold_noise, salt_high, salt_low = _SECRETS.unpack(secrets)
    return threshold_noise, salt_high, salt_low


Record = TypeVar("Record", DatasetRecord, MuteRecord, PendingRecord, ProgressRecord, SpecRecord, TopicRecord)
_READABLE: dict[type, tuple[int, ...]] = {DatasetRecord: (VERSION, SPLIT), MuteRecord: (SPLIT,)}

_ENCODER = msgspec.msgpack.Encoder()


def to_bytes(
    record: DatasetRecord | MuteRecord | PendingRecord | ProgressRecord | SpecRecord | TopicRecord,
) -> bytes:
    """Return the record's plain bytes."""
    return _ENCODER.encode(record)


def from_bytes(kind: type[Record], data: bytes, *, key: str) -> Record:
    """Return the record in ``data``.

    Raises
    ------
    UnreadableState
        The bytes are not such a record, or of a format version this release does not know.
    """
    version, readable = _version(data), _READABLE.get(kind, (VERSION,))
    if version is not None and version not in readable:
        message = (
            f"state record {key} has format {version}, this release reads format "
            f"{' and '.join(map(str, readable))}; use the release that wrote it"
        )
        raise UnreadableState(message)
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        message = f"state record {key} cannot be decoded; the shard stops rather than start afresh"
        raise UnreadableState(message) from None


def _version(data: bytes) -> int | None:
    """Return the format version of a record, None where it cannot be told."""
    try:
        content = msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(content, list) or not content or type(content[0]) is not int:
        return None
    return content[0]
