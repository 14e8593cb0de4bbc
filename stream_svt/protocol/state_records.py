"""The records of a shard's state: their layout, their verification, and what one transaction writes.

Layout of a shard's partition of the state topic (compacted)::

    meta     sequence of the last transaction, the engine's progress, keys, digest, what was published
    closed   only if the state was given up: the shard never opens again, whatever the other records say
    ob/<i>   outbox: events and rejects of transaction meta.charged, not all published yet, compressed; valid only if
             i < meta.chunks and the record carries that sequence (chunks are overwritten, never deleted)
    others   the engine's records, opaque here
"""

from __future__ import annotations

import contextlib
import hashlib
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import msgspec

from stream_svt.errors import MisuseError, UnreadableState
from stream_svt.monitor import released
from stream_svt.monitor.state.accounts import BOUNDS, Bounds, Commit
from stream_svt.protocol.controls import CommandState
from stream_svt.protocol.sealing import NO_KEY, Opened, RecordContext, Sealing, describe
from stream_svt.settings.sections import TopicsConfig

_T = TypeVar("_T")

Event = tuple[int, bytes, bytes]
"""Number, record key and content of an encoded event."""
Reject = tuple[str, int, str]
"""Topic, offset and reason."""

FORMAT = 1
META = b"meta"
CLOSED = b"closed"
"""Record of a shard whose state was given up; plain, so that reading it needs no key."""
OUTBOX = b"ob/"
RECORD_LIMIT = 900_000
"""Largest size of a record in bytes: Kafka's default limit is 1,048,588 for a whole batch."""
CHUNK_EVENTS = 200
CHUNK_BYTES = 600_000
NUMBERS_BYTES = 24
"""Largest size in bytes of an event or a reject without its texts."""
RESTORE_RECORDS = 500
"""Records that are verified before other work of the process gets a turn: about 10 ms."""
SECRET_BYTES = 32
STATE_ID_BYTES = 16
_Count = Annotated[int, msgspec.Meta(ge=0, le=released.LARGEST_SEQUENCE)]
"""A number or offset in the range of the format; a forged record outside of it is refused."""
_Secret = Annotated[bytes, msgspec.Meta(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]
_StateId = Annotated[bytes, msgspec.Meta(min_length=STATE_ID_BYTES, max_length=STATE_ID_BYTES)]


class Meta(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The one record that every transaction writes.

    Attributes:
        charged, chunks: Number of the newest transaction that charged events or found rejects, and of its
            outbox records; no chunks once all of it is published.
        partitions, partitioner: They determine the shard of each dataset.
        progress: The engine's positions, clocks and counters; None before its first commit.
        state_id: Random bytes, drawn when the state begins, that commands name. Public.
        last_event, published: Number of the newest charged event, and of the newest event published up to this
            transaction.
        origin, published_origin: Their origins (see `stream_svt.protocol.history.rollback`).
        alert_offset: Offset of a published event on the alert partition: the rollback check reads from there.
        alert_end: End of the alert partition by this and earlier transactions, including their commit markers.
        topic_ids: By topic, the ids of the topics of the state's offsets, if brokers have ids.
        read_to: By query topic, the offset before which records may have been stepped. A record past it is stepped
            only once a larger offset is durable.
        noise_key, digest_key: Secrets of the shard; drawn once, durable before their first use.
        digest: Sum modulo 2**256 of the records' keyed hashes.
        sealed_only: Whether every live record is sealed, so that a plain one is a forgery.
    """

    format: int = FORMAT
    sequence: _Count = 0
    charged: _Count = 0
    chunks: _Count = 0
    partitions: _Count
    partitioner: str
    progress: bytes | None = None
    state_id: _StateId
    commands: CommandState = CommandState()
    last_event: _Count = 0
    published: _Count = 0
    origin: str = ""
    published_origin: str = ""
    alert_offset: _Count | None = None
    alert_end: _Count = 0
    topic_ids: dict[str, str] = {}
    read_to: dict[str, _Count] = {}
    noise_key: _Secret
    digest_key: _Secret
    digest: bytes = bytes(32)
    sealed_only: bool = False


class Closed(msgspec.Struct, frozen=True):
    """How a shard was closed, and by which event; also the record of a shard whose state was given up."""

    successor: str
    event: int
    origin: str


class Chunk(msgspec.Struct, array_like=True):
    """One outbox record."""

    events: list[Event]
    rejects: list[Reject] = []


async def no_yield() -> None:
    """Yield to nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSettings:
    """Settings of a journal: its shard, cluster, keys and bounds.

    The first of the ``masters`` seals; without any, records are plain. ``adopt_plain`` accepts a plain state and seals
    it; anyone with write permission for the topic could have written that state. ``yield_to_loop`` is awaited between
    slices of long work. ``epoch`` returns the time of events, in seconds since 1970.
    """

    context: RecordContext
    topics: TopicsConfig
    masters: tuple[bytes, ...] = field(default=(), repr=False)
    adopt_plain: bool = False
    entropy: Callable[[int], bytes]
    epoch: Callable[[], float]
    bounds: Bounds = BOUNDS
    yield_to_loop: Callable[[], Awaitable[None]] = no_yield


def created_again(known: Mapping[str, str], found: Mapping[str, str]) -> set[str]:
    """Return the topics whose id differs from the ``known`` id; topics without a known id are left out."""
    return {topic for topic, number in found.items() if known.get(topic, number) != number}


def other_partitioning(began: tuple[int, str], topics: TopicsConfig) -> str:
    """Return the text that an application began with another number of partitions, or another partitioner."""
    return (
        f"the application began with topics.partitions: {began[0]} and topics.partitioner: {began[1]}, and this "
        f"worker has {topics.partitions} and {topics.partitioner}: a dataset would get a second ledger. Restore both; "
        "to change them, close the application and carry its budgets over to a successor"
    )


class ShardRecords:
    """The records of one shard during one session: verified when read, and made for each transaction.

    The next transaction makes changes in ``meta`` durable. ``outbox`` and ``rejects`` are not published yet; ``macs``
    are the hashes of the engine's records. The present sealing key did not seal the records whose keys are ``stale``.
    """

    def __init__(self, settings: JournalSettings) -> None:
        self._settings = settings
        self.sealing = Sealing(settings.context, settings.masters, settings.entropy)
        self.meta = self._first_meta(lambda _: b"")
        self.macs: dict[bytes, int] = {}
        self.outbox: list[Event] = []
        self.rejects: list[Reject] = []
        self.stale: list[bytes] = []
        self._total = self._chunks_total = 0  # sums of hashes: of `macs`, and of the outbox records

    async def restore(self, raw: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """Return the engine's verified records: none is missing, foreign, changed, or sealed with an unknown key."""
        entropy = self._settings.entropy
        if not raw:
            self.meta = self._first_meta(entropy)
            return {}
        meta, key_id = self._read_meta(raw)
        records: dict[bytes, bytes] = {}
        own = self.sealing.key_id
        for number, (key, record) in enumerate(raw.items(), start=1):
            if number % RESTORE_RECORDS == 0:
                await self._settings.yield_to_loop()
            if key != META and not key.startswith(OUTBOX):
                found = self._open(key, record, meta)
                records[key] = found.content
                if found.key_id != own:
                    self.stale.append(key)
        self._read_outbox(raw, meta)
        await self._add_up(raw, records, meta)
        if digest(self._total + self._chunks_total) != meta.digest:
            raise self.unreadable(
                "its records do not add up to the digest in 'meta': some were lost, added, or put back "
                "to an older version, or the topic was created again under a running worker"
            )
        if key_id != own:
            # The digest's secret is known to holders of the old key, and to readers of a plain state.
            meta.digest_key = entropy(SECRET_BYTES)
            await self._add_up(raw, records, meta)
        self.meta = meta
        return records

    def _first_meta(self, entropy: Callable[[int], bytes]) -> Meta:
        """Return the record `meta` of a state that begins."""
        return Meta(
            partitions=self._settings.topics.partitions,
            partitioner=self._settings.topics.partitioner,
            noise_key=entropy(SECRET_BYTES),
            digest_key=entropy(SECRET_BYTES),
            state_id=entropy(STATE_ID_BYTES),
        )

    async def _add_up(self, raw: Mapping[bytes, bytes], keys: Iterable[bytes], meta: Meta) -> None:
        """Hash the engine's records of these keys, and the outbox."""
        mac = hashing(meta.digest_key)
        for number, key in enumerate(keys, start=1):
            if number % RESTORE_RECORDS == 0:
                await self._settings.yield_to_loop()
            self.macs[key] = mac(key, raw[key])
        self._total = sum(self.macs.values())
        self._chunks_total = sum(mac(key, raw[key]) for key in chunk_keys(meta))

    def _read_meta(self, raw: Mapping[bytes, bytes]) -> tuple[Meta, str]:
        """Return the record `meta`, and the name of the key that sealed it."""
        if META not in raw:
            raise self.unreadable("it has records but no record 'meta'")
        opened = self.sealing.open(META, raw[META])
        if self._settings.masters and opened.key_id == NO_KEY and not self._settings.adopt_plain:
            raise self.unreadable(
                "record 'meta' is plain although a sealing key is configured. If the state was never sealed, "
                "set sealing.adopt_plain for one start, which seals it; if it was, somebody replaced it"
            )
        meta = self.decode(META, opened.content, Meta)
        if meta.format != FORMAT or meta.sequence != opened.sequence:
            raise self.unreadable(f"record 'meta' has format {meta.format}, this version reads {FORMAT}")
        return meta, opened.key_id

    def _read_outbox(self, raw: Mapping[bytes, bytes], meta: Meta) -> None:
        """Read the charged events and rejects that are not published yet."""
        for key in chunk_keys(meta):
            if key not in raw:
                raise self.unreadable(f"record {describe(key)} is missing")
            found = self._open(key, raw[key], meta)
            if found.sequence != meta.charged:
                raise self.unreadable(f"record {describe(key)} belongs to another transaction")
            content, unpacking = b"", zlib.decompressobj()
            with contextlib.suppress(zlib.error):
                content = unpacking.decompress(found.content, RECORD_LIMIT + 1)
            if not unpacking.eof or unpacking.unused_data:
                raise self.unreadable(f"record {describe(key)} is not of this format: it cannot be unpacked")
            chunk = self.decode(key, content, Chunk)
            self.outbox += [event for event in chunk.events if event[0] > meta.published]
            if meta.charged == meta.sequence:  # otherwise they were published with the first slice
                self.rejects += chunk.rejects

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

    def decode(
        self, key: bytes, content: bytes, kind: type[_T], decode: Callable[..., Any] = msgspec.msgpack.decode
    ) -> _T:
        """Return the content of a record; raise `UnreadableState` if it is of another format."""
        try:
            found: _T = decode(content, type=kind)
            return found
        except msgspec.DecodeError as error:
            why = str(error)
        except (UnicodeDecodeError, RecursionError):
            why = "a text is not UTF-8, or it is nested too deep"
        raise self.unreadable(f"record {describe(key)} is not of this format: {why}")

    def unreadable(self, why: str) -> UnreadableState:
        """Return the error for a state that cannot be used."""
        context = self._settings.context
        return UnreadableState(
            f"the state of shard {context.shard} on topic {context.topic!r} cannot be used: {why}. "
            "Nothing was changed"
        )

    # Writing

    def to_publish(self) -> list[Event]:
        """Return the events that the next transaction publishes: the whole outbox, or as much as it may hold."""
        bounds = self._settings.bounds
        size, most = 0, max(1, bounds.published - len(self.rejects))
        for number, (_, _, event) in enumerate(self.outbox):
            size += len(event)
            if number and (number == most or size > bounds.published_size):
                return self.outbox[:number]
        return self.outbox

    def write(
        self, commit: Commit, events: list[Event], origin: str, published: int, *, claim: bool
    ) -> dict[bytes, bytes | None]:
        """Return the sealed records of the next transaction, and keep their content.

        ``events`` are encoded. ``published`` is the number of events of the outbox that this transaction publishes.
        ``claim``: whether it is the first transaction of a session. If the transaction fails, everything has to be
        read again.
        """
        meta, sequence, mac = self.meta, self.meta.sequence + 1, hashing(self.meta.digest_key)
        if published:
            meta.published, meta.published_origin = self.outbox[published - 1][0], meta.origin
        self.outbox = self.outbox[published:]
        sealed: dict[bytes, bytes | None] = {}
        for key, content in commit.records.items():
            self._total -= self.macs.pop(key, 0)
            sealed[key] = None
            if content is not None:
                sealed[key] = record = self._seal(key, sequence, content)
                self.macs[key] = hashed = mac(key, record)
                self._total += hashed
        if events or commit.rejects:
            if self.outbox:
                raise MisuseError("a commit comes before everything is published that was charged before")
            self.outbox = events
            chunks = _chunks(events, commit.rejects)
            meta.charged, meta.chunks, self._chunks_total = sequence, len(chunks), 0
            for key, chunk in zip(chunk_keys(meta), chunks, strict=True):
                # Compression reveals nothing: the content becomes public. Events share most of their bytes.
                sealed[key] = record = self._seal(key, sequence, chunk, compress=True)
                self._chunks_total += mac(key, record)
        elif not self.outbox:
            meta.charged, meta.chunks, self._chunks_total = sequence, 0, 0
        self.rejects = list(commit.rejects)
        if self.outbox:
            meta.last_event = max(meta.last_event, self.outbox[-1][0])
        meta.sequence, meta.origin, meta.progress = sequence, origin, commit.progress or meta.progress
        # Its events and its commit marker.
        meta.alert_end += published + 1 if published or claim else 0
        meta.digest = digest(self._total + self._chunks_total)
        sealed[META] = self._seal(META, sequence, meta)
        return sealed

    def _seal(
        self, key: bytes, sequence: int, content: bytes | msgspec.Struct, *, compress: bool = False
    ) -> bytes:
        plain = content if isinstance(content, bytes) else msgspec.msgpack.encode(content)
        if len(plain) > RECORD_LIMIT:
            raise MisuseError(f"record {describe(key)} has {len(plain)} bytes, the limit is {RECORD_LIMIT}")
        return self.sealing.seal(key, sequence, _compressed(plain) if compress else plain)


def _compressed(content: bytes) -> bytes:
    """Return content in zlib's format; its usual memory of 256 KB takes ten times as long to clear."""
    compressor = zlib.compressobj(1, wbits=12, memLevel=5)
    return compressor.compress(content) + compressor.flush()


def chunk_keys(meta: Meta) -> Iterator[bytes]:
    """Return the keys of the valid outbox records."""
    return (OUTBOX + str(number).encode() for number in range(meta.chunks))


def hashing(secret: bytes) -> Callable[[bytes, bytes], int]:
    """Return a hash function for record keys and records, keyed with a secret."""
    begun = hashlib.blake2b(digest_size=32, key=secret)

    def mac(key: bytes, record: bytes) -> int:
        digest = begun.copy()
        digest.update(b"".join((len(key).to_bytes(4, "big"), key, record)))
        return int.from_bytes(digest.digest(), "big")

    return mac


def digest(total: int) -> bytes:
    """Return the digest in `Meta` for a sum of hashes."""
    return (total % (1 << 256)).to_bytes(32, "big")


def _chunks(events: list[Event], rejects: list[Reject]) -> list[Chunk]:
    """Return outbox records of bounded size; the first one contains the rejects, whose number a commit bounds."""
    chunks = [Chunk([], rejects)]
    size = sum(len(topic) + len(reason) + NUMBERS_BYTES for topic, _, reason in rejects)
    for event in events:
        more = len(event[1]) + len(event[2]) + NUMBERS_BYTES
        if size and (size + more > CHUNK_BYTES or len(chunks[-1].events) == CHUNK_EVENTS):
            chunks.append(Chunk([]))
            size = 0
        size += more
        chunks[-1].events.append(event)
    return chunks
