"""The records of a shard's state, and what one transaction makes of them; nothing is read or written here.

Layout of a shard's partition of the state topic (compacted)::

    meta     sequence of the last transaction, the engine's progress, keys, digest, what was published
    closed   only where the state was given up: whatever the others say, the shard opens no more
    ob/<i>   events charged and rejects found by transaction meta.charged and not all published yet, compressed; counts
             only if i < meta.chunks and the record carries that sequence (chunks are overwritten, never deleted)
    others   the engine's records and the shard's, opaque here
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from stream_svt.errors import MisuseError
from stream_svt.monitor import released
from stream_svt.monitor.accounts import Bounds
from stream_svt.monitor.engine import Commit
from stream_svt.protocol.controls import Standing
from stream_svt.protocol.sealing import Sealing, describe

Event = tuple[int, bytes, bytes]
"""Number, record key and content of an encoded event."""
Reject = tuple[str, int, str]
"""Topic, offset and reason."""

FORMAT = 1
META = b"meta"
CLOSED = b"closed"
"""Record of a shard whose state was given up; plain, so that nobody needs a key to see it."""
OUTBOX = b"ob/"
RECORD_LIMIT = 900_000
"""Bytes of the largest record: Kafka's default limit is 1,048,588 for a whole batch."""
CHUNK_EVENTS = 200
CHUNK_BYTES = 600_000
NUMBERS_BYTES = 24
"""What an event or a reject has beside its texts, at most."""
SECRET_BYTES = 32
STATE_ID_BYTES = 16
_Count = Annotated[int, msgspec.Meta(ge=0, le=released.LARGEST_SEQUENCE)]
"""A number or offset that Kafka and the format know: what a forged record holds beyond it is refused by name."""
_Secret = Annotated[bytes, msgspec.Meta(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]
_StateId = Annotated[bytes, msgspec.Meta(min_length=STATE_ID_BYTES, max_length=STATE_ID_BYTES)]


class Meta(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The one record that every transaction writes.

    Attributes:
        sequence: Number of the transaction.
        charged, chunks: Number of the newest transaction that charged events or found rejects, and of its
            outbox records; no chunks once all of it is published.
        partitions: Number of partitions of all topics: it fixes where each dataset is at home.
        progress: The engine's positions, clocks and counters; None before its first commit.
        state_id: Random bytes, drawn when the state begins: what commands name. Public.
        commands: Which command is the next one.
        last_event, published: Number of the newest event charged, and of the newest one published, by this
            transaction at the latest.
        origin, published_origin: Their origins (see `stream_svt.protocol.rollback`).
        alert_offset: Offset of a published event on the alert partition: the rollback check reads from there.
        alert_end: End of the alert partition as far as this transaction and those before explain it, the
            marks that end transactions included.
        read_to: By query topic the offset that bounds what was ever stepped: no record from there on has
            been. A record past it is stepped only once a larger bound is durable.
        noise_key, digest_key: Secrets of the shard; drawn once, durable before their first use.
        digest: Sum modulo 2**256 of the live records' keyed hashes.
        sealed_only: Whether every live record is sealed, so that a plain one is a forgery.
    """

    format: int = FORMAT
    sequence: _Count = 0
    charged: _Count = 0
    chunks: _Count = 0
    partitions: _Count
    progress: bytes | None = None
    state_id: _StateId
    commands: Standing = Standing()
    last_event: _Count = 0
    published: _Count = 0
    origin: str = ""
    published_origin: str = ""
    alert_offset: _Count | None = None
    alert_end: _Count = 0
    read_to: dict[str, _Count] = {}
    noise_key: _Secret
    digest_key: _Secret
    digest: bytes = bytes(32)
    sealed_only: bool = False


class Closed(msgspec.Struct, frozen=True):
    """What a state says of a shard that was closed; also the record of one whose state was given up.

    Attributes:
        successor: Name of the application that goes on.
        event, origin: Number and origin of the event that closed it: the last one of its alert partition.
    """

    successor: str
    event: int
    origin: str


class Chunk(msgspec.Struct, array_like=True):
    """One outbox record."""

    events: list[Event]
    rejects: list[Reject] = []


@dataclass(frozen=True, slots=True)
class ShardRecords:
    """What the records of a shard hold beside the engine's.

    Attributes:
        macs, total, chunks_total: Keyed hashes of the live records, their sum, and the sum of those of the
            outbox.
        outbox, rejects: What is charged and not published yet, in order.
    """

    meta: Meta
    macs: dict[bytes, int] = field(default_factory=dict)
    total: int = 0
    chunks_total: int = 0
    outbox: list[Event] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)

    @property
    def pending(self) -> int:
        """Number of events and rejects that are durable but not yet published."""
        return len(self.outbox) + len(self.rejects)

    def to_publish(self, bounds: Bounds) -> list[Event]:
        """Return the events that the next transaction publishes: all that wait, or as many as it may hold."""
        size, most = 0, max(1, bounds.published - len(self.rejects))
        for number, (_, _, event) in enumerate(self.outbox):
            size += len(event)
            if number and (number == most or size > bounds.published_size):
                return self.outbox[:number]
        return self.outbox

    def after(
        self, commit: Commit, events: list[Event], origin: str, shown: int, *, claim: bool, sealing: Sealing
    ) -> tuple[dict[bytes, bytes | None], ShardRecords]:
        """Return the sealed records that the next transaction writes, and what holds once they are durable.

        ``macs`` is changed in place: if the transaction fails, everything has to be read again.

        Args:
            events, origin: Encoded, and their origin; the last one where the commit has no events and no rejects.
            shown: Number of events that the transaction publishes, the first of the outbox.
            claim: Whether it is the first one of a session.

        Raises:
            MisuseError: A record is too large or not the engine's to write, or events are charged before the
                others are published.
        """
        meta, sequence, published = self.meta, self.meta.sequence + 1, self.outbox[:shown]
        rest, mac = self.outbox[shown:], hashing(meta.digest_key)
        sealed: dict[bytes, bytes | None] = {}
        total, chunks_total, chunks, charged = self.total, 0, 0, sequence
        for key, content in commit.records.items():
            if key == META or key.startswith(OUTBOX):
                raise MisuseError(f"record key {describe(key)} belongs to the journal")
            total -= self.macs.pop(key, 0)
            sealed[key] = None
            if content is not None:
                sealed[key] = record = _sealed(sealing, key, sequence, content)
                self.macs[key] = hashed = mac(key, record)
                total += hashed
        if events or commit.rejects:
            if rest:
                raise MisuseError("a commit comes before everything is published that was charged before")
            rest = events
            for chunk in _chunks(events, commit.rejects):
                key = OUTBOX + str(chunks).encode()
                # What will be public: of a thousand events, most bytes are the same.
                sealed[key] = record = _sealed(sealing, key, sequence, chunk, compress=True)
                chunks_total += mac(key, record)
                chunks += 1
        elif rest:
            chunks, charged, chunks_total = meta.chunks, meta.charged, self.chunks_total
        meta = msgspec.structs.replace(
            meta,
            sequence=sequence,
            charged=charged,
            chunks=chunks,
            progress=commit.progress or meta.progress,
            published=published[-1][0] if published else meta.published,
            published_origin=meta.origin if published else meta.published_origin,
            origin=origin,
            last_event=max([meta.last_event, *(number for number, _, _ in rest[-1:])]),
            # Its events, and its mark.
            alert_end=meta.alert_end + (shown + 1 if shown or claim else 0),
            digest=digest(total + chunks_total),
        )
        sealed[META] = _sealed(sealing, META, sequence, meta)
        return sealed, ShardRecords(meta, self.macs, total, chunks_total, rest, list(commit.rejects))


def _sealed(
    sealing: Sealing, key: bytes, sequence: int, content: bytes | msgspec.Struct, *, compress: bool = False
) -> bytes:
    plain = content if isinstance(content, bytes) else msgspec.msgpack.encode(content)
    if len(plain) > RECORD_LIMIT:
        raise MisuseError(f"state record {describe(key)} has {len(plain)} bytes, the limit is {RECORD_LIMIT}")
    return sealing.seal(key, sequence, zlib.compress(plain, 1) if compress else plain)


def chunk_keys(meta: Meta) -> Iterator[bytes]:
    """Return the keys of the outbox records that count."""
    return (OUTBOX + str(number).encode() for number in range(meta.chunks))


def hashing(secret: bytes) -> Callable[[bytes, bytes], int]:
    """Return what hashes a record with its key, under a secret: for many of them."""
    begun = hashlib.blake2b(digest_size=32, key=secret)

    def mac(key: bytes, record: bytes) -> int:
        digest = begun.copy()
        digest.update(b"".join((len(key).to_bytes(4, "big"), key, record)))
        return int.from_bytes(digest.digest(), "big")

    return mac


def digest(total: int) -> bytes:
    """Return what `Meta` holds of a sum of hashes."""
    return (total % (1 << 256)).to_bytes(32, "big")


def _chunks(events: list[Event], rejects: list[Reject]) -> list[Chunk]:
    """Return outbox records of a bounded size."""
    chunks = [Chunk([], [])]
    size = 0

    def chunk_for(more: int) -> Chunk:
        nonlocal size
        last = chunks[-1]
        if size and (size + more > CHUNK_BYTES or len(last.events) == CHUNK_EVENTS):
            last = Chunk([], [])
            chunks.append(last)
            size = 0
        size += more
        return last

    for topic, offset, reason in rejects:
        chunk_for(len(topic) + len(reason) + NUMBERS_BYTES).rejects.append((topic, offset, reason))
    for event in events:
        chunk_for(len(event[1]) + len(event[2]) + NUMBERS_BYTES).events.append(event)
    return chunks
