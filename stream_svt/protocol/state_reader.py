"""Verifies the records of a shard's state: whether they are this shard's, whole, and of one transaction."""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import msgspec

from stream_svt.errors import UnreadableState
from stream_svt.monitor.accounts import BOUNDS, Bounds
from stream_svt.protocol.sealing import NO_KEY, Opened, RecordContext, Sealing, describe
from stream_svt.protocol.state_records import (
    FORMAT,
    META,
    OUTBOX,
    RECORD_LIMIT,
    SECRET_BYTES,
    STATE_ID_BYTES,
    Chunk,
    Closed,
    Event,
    Meta,
    Reject,
    ShardRecords,
    chunk_keys,
    digest,
    hashing,
)

_T = TypeVar("_T")

RESTORE_RECORDS = 500
"""Records that are verified before other work of the process gets its turn: some 10 ms."""


class Restoration(NamedTuple):
    """What was verified: the journal's own, the engine's live records, and keys of those to be sealed again."""

    held: ShardRecords
    records: dict[bytes, bytes]
    stale: list[bytes]


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics a journal writes."""

    state: str
    alerts: str
    rejects: str


async def keep_going() -> None:
    """Give way to nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSettings:
    """What a journal needs to know of its shard and its surroundings.

    Attributes:
        place: Cluster id, application, state topic and shard: what the records are bound to.
        topics, partitions: Names of the topics written, for messages, and the number of partitions of all of
            them.
        masters: Master keys, the first seals; empty leaves records plain.
        adopt_plain: Whether a state that was written without any key may be sealed; without it, it is
            refused, for whoever may write the topic could have put it there.
        entropy: Source of secret random bytes.
        epoch: Seconds since 1970, for the time frozen in an event.
        bounds: How much a transaction publishes.
        give_way: Awaited between the slices of long work, so that other work of the process gets its turn.
    """

    place: RecordContext
    topics: Topics
    partitions: int
    masters: tuple[bytes, ...] = field(default=(), repr=False)
    adopt_plain: bool = False
    entropy: Callable[[int], bytes]
    epoch: Callable[[], float]
    bounds: Bounds = BOUNDS
    give_way: Callable[[], Awaitable[None]] = keep_going


class StateReader:
    """Verifies one shard's records."""

    def __init__(self, settings: JournalSettings) -> None:
        self.sealing = Sealing(settings.place, settings.masters, settings.entropy)
        self._settings = settings

    async def restore(self, raw: Mapping[bytes, bytes]) -> Restoration:
        """Verify what was read from the partition.

        Raises:
            UnreadableState: A record is missing, foreign, changed, or sealed with an unknown key.
        """
        if not raw:
            meta = Meta(
                partitions=self._settings.partitions,
                noise_key=self._settings.entropy(SECRET_BYTES),
                digest_key=self._settings.entropy(SECRET_BYTES),
                state_id=self._settings.entropy(STATE_ID_BYTES),
            )
            return Restoration(ShardRecords(meta), {}, [])
        if META not in raw:
            raise self.unreadable("it has records but no record 'meta'")
        opened = self.sealing.open(META, raw[META])
        if self._settings.masters and opened.key_id == NO_KEY and not self._settings.adopt_plain:
            raise self.unreadable(
                "record 'meta' is plain although a sealing key is configured. If the state was never sealed, "
                "set sealing.adopt_plain for one start, which seals it; if it was, somebody replaced it"
            )
        meta = self._decode(META, opened, Meta)
        if meta.format != FORMAT or meta.sequence != opened.sequence:
            raise self.unreadable(f"record 'meta' has format {meta.format}, this version reads {FORMAT}")
        records: dict[bytes, bytes] = {}
        macs: dict[bytes, int] = {}
        stale: list[bytes] = []
        mac, key_id, total = hashing(meta.digest_key), self.sealing.key_id, 0
        for number, (key, record) in enumerate(raw.items(), start=1):
            if number % RESTORE_RECORDS == 0:
                await self._settings.give_way()
            if key == META or key.startswith(OUTBOX):
                continue
            found = self._open(key, record, meta)
            records[key] = found.content
            macs[key] = hashed = mac(key, record)
            total += hashed
            if found.key_id != key_id:
                stale.append(key)
        outbox, rejects, chunks_total = self._restore_outbox(raw, meta)
        if digest(total + chunks_total) != meta.digest:
            raise self.unreadable(
                "its records do not add up to the digest in 'meta': some were lost, added, or put back "
                "to an older version"
            )
        if opened.key_id != key_id:
            # Whoever knows the key before, or read what was plain, knows the digest's secret.
            meta.digest_key = self._settings.entropy(SECRET_BYTES)
            mac = hashing(meta.digest_key)
            for number, key in enumerate(records, start=1):
                if number % RESTORE_RECORDS == 0:
                    await self._settings.give_way()
                macs[key] = mac(key, raw[key])
            total = sum(macs.values())
            chunks_total = sum(mac(key, raw[key]) for key in chunk_keys(meta))
        return Restoration(ShardRecords(meta, macs, total, chunks_total, outbox, rejects), records, stale)

    def _restore_outbox(
        self, raw: Mapping[bytes, bytes], meta: Meta
    ) -> tuple[list[Event], list[Reject], int]:
        """Return what is charged and not published, and the sum of the hashes of its records."""
        events: list[Event] = []
        rejects: list[Reject] = []
        mac, total = hashing(meta.digest_key), 0
        for key in chunk_keys(meta):
            if key not in raw:
                raise self.unreadable(f"record {describe(key)} is missing")
            found = self._open(key, raw[key], meta)
            if found.sequence != meta.charged:
                raise self.unreadable(f"record {describe(key)} belongs to another transaction")
            total += mac(key, raw[key])
            chunk = self._decode(key, found._replace(content=self._unpacked(key, found.content)), Chunk)
            events += [event for event in chunk.events if event[0] > meta.published]
            if meta.charged == meta.sequence:  # else they went out with the first slice
                rejects += chunk.rejects
        return events, rejects, total

    def _unpacked(self, key: bytes, content: bytes) -> bytes:
        """Return the content of an outbox record before it was compressed."""
        unpacking = zlib.decompressobj()
        try:
            found = unpacking.decompress(content, RECORD_LIMIT + 1)
        except zlib.error:
            found = b""
        if not unpacking.eof or unpacking.unused_data:
            raise self.unreadable(f"record {describe(key)} is not of this format: it cannot be unpacked")
        return found

    def _open(self, key: bytes, record: bytes, meta: Meta) -> Opened:
        found = self.sealing.open(key, record)
        if meta.sealed_only and found.key_id == NO_KEY:
            raise self.unreadable(f"record {describe(key)} is plain among sealed ones")
        if found.sequence > meta.sequence:
            raise self.unreadable(f"record {describe(key)} is newer than 'meta'")
        try:
            key.decode()
        except UnicodeDecodeError:
            raise self.unreadable(f"record {describe(key)} has a key that is no text") from None
        return found

    def _decode(self, key: bytes, opened: Opened, kind: type[_T]) -> _T:
        try:
            return msgspec.msgpack.decode(opened.content, type=kind)
        except msgspec.DecodeError as error:
            why = str(error)
        except UnicodeDecodeError:
            why = "a text is no UTF-8"
        except RecursionError:
            why = "it is nested too deep"
        raise self.unreadable(f"record {describe(key)} is not of this format: {why}")

    def decode_closed(self, record: bytes) -> Closed:
        """Decode the record of a shard whose state was given up."""
        try:
            return msgspec.json.decode(record, type=Closed)
        except msgspec.DecodeError as error:
            raise self.unreadable(f"record 'closed' is not of this format: {error}") from None

    def unreadable(self, why: str) -> UnreadableState:
        """Return the error that says why the state cannot be used."""
        shard, topic = self._settings.place.shard, self._settings.topics.state
        return UnreadableState(
            f"the state of shard {shard} on topic {topic!r} cannot be used: {why}. "
            "The shard is parked; nothing was changed"
        )
