"""The books of one shard on Kafka: state, outbox and rejects, one transaction at a time.

Layout of a shard's partition of the state topic (compacted)::

    meta     sequence of the last transaction, the engine's progress, keys, digest, what was published
    closed   only where the state was given up: whatever the others say, the shard opens no more
    ob/<i>   events charged and rejects found by transaction meta.charged and not all published yet, compressed; counts
             only if i < meta.chunks and the record carries that sequence (chunks are overwritten, never deleted)
    others   the engine's records and the shard's, opaque here

Transaction N makes batch N's state, events and rejects durable. Transaction N+1 publishes them, or their first slice
where one transaction would become too large; then transactions that only publish follow, and no commit before the last
of them. So an event is visible to anybody only after the transaction that charged it has committed. Any exception
leaves the outcome of a transaction unknown, so the journal is broken then: `open` fences the old producer and reads
everything again.
"""

from __future__ import annotations

import hashlib
import logging
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, TypeVar

import msgspec

from stream_svt.errors import ApplicationClosed, CommandRefused, MisuseError, StateRolledBack, UnreadableState
from stream_svt.monitor import released
from stream_svt.monitor.bounds import BOUNDS, Bounds
from stream_svt.monitor.commands import Command
from stream_svt.monitor.engine import Commit
from stream_svt.protocol.controls import Standing
from stream_svt.protocol.ports import Log, Transaction
from stream_svt.protocol.rollback import GIVEN_UP, Known, Newest, Seen, contradiction
from stream_svt.protocol.sealing import NO_KEY, Opened, Place, Sealing, describe

log = logging.getLogger(__name__)
_T = TypeVar("_T")

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
RESTORE_RECORDS = 500
"""Records that are verified before other work of the process gets its turn: some 10 ms."""
SECRET_BYTES = 32
STATE_ID_BYTES = 16
ORIGIN_BYTES = 8
"""Random bytes of an event's origin: with the sequence, two histories have no origin in common."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=released.LARGEST_SEQUENCE)]
"""A number or offset that Kafka and the format know: what a forged record holds beyond it is refused by name."""
_Secret = Annotated[bytes, msgspec.Meta(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]
_StateId = Annotated[bytes, msgspec.Meta(min_length=STATE_ID_BYTES, max_length=STATE_ID_BYTES)]


class Meta(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The one record that every transaction writes.

    Attributes
    ----------
    sequence
        Number of the transaction.
    charged, chunks
        Number of the newest transaction that charged events or found rejects, and of its outbox records; no chunks
        once all of it is published.
    partitions
        Number of partitions of all topics: it fixes where each dataset is at home.
    progress
        The engine's positions, clocks and counters; None before its first commit.
    state_id
        Random bytes, drawn when the state begins: what commands name. Public.
    commands
        Which command is the next one.
    last_event, published
        Number of the newest event charged, and of the newest one published, by this transaction at the latest.
    origin, published_origin
        Their origins (see `stream_svt.protocol.rollback`).
    alert_offset
        Offset of a published event on the alert partition: the rollback check reads from there.
    alert_end
        End of the alert partition as far as this transaction and those before explain it, the marks that end
        transactions included.
    read_to
        By query topic the offset that bounds what was ever stepped: no record from there on has been. A record past
        it is stepped only once a larger bound is durable.
    noise_key, digest_key
        Secrets of the shard; drawn once, durable before their first use.
    digest
        Sum modulo 2**256 of the live records' keyed hashes.
    sealed_only
        Whether every live record is sealed, so that a plain one is a forgery.
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

    Attributes
    ----------
    successor
        Name of the application that goes on.
    event, origin
        Number and origin of the event that closed it: the last one of its alert partition.
    """

    successor: str
    event: int
    origin: str


class Chunk(msgspec.Struct, array_like=True):
    """One outbox record: (event sequence, record key, encoded event) and (topic, offset, reason), in order."""

    events: list[tuple[int, bytes, bytes]]
    rejects: list[tuple[str, int, str]] = []


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics a journal writes."""

    state: str
    alerts: str
    rejects: str


@dataclass(frozen=True, slots=True)
class Restored:
    """What a takeover found: an empty mapping and no progress is the very first start.

    ``last_event`` is the number of the newest event.
    """

    records: dict[bytes, bytes] = field(repr=False)
    progress: bytes | None = field(repr=False)
    noise_key: bytes = field(repr=False)
    state_id: str
    commands: Standing
    last_event: int
    read_to: dict[str, int]


async def keep_going() -> None:
    """Nothing else waits for its turn."""


class Journal:
    """Reads and writes one shard's books; fences whoever wrote them before.

    Parameters
    ----------
    log
        The shard's partitions.
    place
        Cluster id, application, state topic and shard: what the records are bound to.
    topics, partitions
        Names of the topics written, for messages, and the number of partitions of all of them.
    masters
        Master keys, the first seals; empty leaves records plain.
    adopt_plain
        Whether a state that was written without any key may be sealed; without it, it is refused, for whoever
        may write the topic could have put it there.
    entropy
        Source of secret random bytes.
    epoch
        Seconds since 1970, for the time frozen in an event.
    bounds
        How much a transaction publishes.
    give_way
        Awaited between the slices of long work, so that other work of the process gets its turn.
    """

    def __init__(
        self,
        log: Log,
        place: Place,
        topics: Topics,
        *,
        partitions: int,
        masters: Sequence[bytes] = (),
        adopt_plain: bool = False,
        entropy: Callable[[int], bytes],
        epoch: Callable[[], float],
        bounds: Bounds = BOUNDS,
        give_way: Callable[[], Awaitable[None]] = keep_going,
    ) -> None:
        self._log = log
        self._place = place
        self._topics = topics
        self._partitions = partitions
        self._masters = tuple(masters)
        self._adopt_plain = adopt_plain
        self._entropy = entropy
        self._epoch = epoch
        self._bounds = bounds
        self._give_way = give_way
        self._shard = place.shard
        self._broken = True
        self._meta = Meta(partitions=partitions, noise_key=b"", digest_key=b"", state_id=b"")
        self._sealing = Sealing(place, (), entropy)
        self._macs: dict[bytes, int] = {}
        self._total = 0
        self._chunks_total = 0
        self._outbox: list[tuple[int, bytes, bytes]] = []
        self._rejects: list[tuple[str, int, str]] = []
        self._claim = False
        self.published: list[int] = []

    @property
    def key_id(self) -> str:
        """Name of the key that seals the shard's records, "none" without one."""
        return self._sealing.key_id

    @property
    def pending(self) -> int:
        """Number of events and rejects that are durable but not yet published."""
        return len(self._outbox) + len(self._rejects)

    @property
    def backlog(self) -> bool:
        """Whether more waits than the next transaction publishes: the next commit has to wait for the rest."""
        return len(self._slice()) < len(self._outbox)

    @property
    def waiting(self) -> list[tuple[int, bytes, bytes]]:
        """Events that are charged and durable but not yet published: number, key and content, in order."""
        return list(self._outbox)

    @property
    def cluster(self) -> str:
        """Id of the cluster."""
        return self._place.cluster

    @property
    def sequence(self) -> int:
        """Number of the last transaction."""
        return self._meta.sequence

    @property
    def live_records(self) -> int:
        """Number of live records, without meta and outbox."""
        return len(self._macs)

    def set_commands(self, standing: Standing) -> None:
        """Say which command is the next one; durable with the next transaction."""
        self._meta.commands = standing

    @property
    def read_to(self) -> Mapping[str, int]:
        """By query topic the offset before which everything lies that was ever stepped (see `Meta`)."""
        return self._meta.read_to

    def set_read_to(self, ends: Mapping[str, int]) -> None:
        """Say how far each topic may be stepped; durable with the next transaction."""
        self._meta.read_to = dict(ends)

    async def open(self) -> Restored:
        """Take the shard over: fence, read, verify, and write a first transaction of this tenure.

        Raises
        ------
        UnreadableState
            A record is missing, foreign, changed, or sealed with an unknown key.
        StateRolledBack
            The alert partition knows events that the state does not.
        ApplicationClosed
            The shard was closed, and everything is published.
        Fenced
            Another owner took the shard over meanwhile.
        BrokerError
            See `stream_svt.service.kafka`.
        """
        self._broken = True
        await self._log.fence()
        self._sealing = Sealing(self._place, self._masters, self._entropy)
        # Only now: the older owner can no longer commit, and its open transaction has been aborted.
        try:
            raw = await self._read()
            records, stale = await self._prove(raw)
            if self._meta.commands.closed and not self.pending:
                raise self.closed_error()
            self._broken, self._claim = False, True
            await self._transaction(Commit(progress=self._meta.progress or b""))
            if not raw:
                await self._read_back()
        except (UnreadableState, StateRolledBack):
            # Whoever stood still while another owner went on sees books and alerts of different times: only
            # the rightful owner may judge them.
            self._broken = True
            await self._log.prove()
            raise
        await self._seal_again({key: records[key] for key in stale})
        return self._restored(records)

    async def prove(self) -> None:
        """Find out whether the books still are this journal's to write; see `Log.prove`."""
        await self._log.prove()

    async def look(self, *, beside_alerts: bool = False) -> Restored:
        """Read and verify the books as they are, whoever holds them; writes nothing and takes nothing over.

        Parameters
        ----------
        beside_alerts
            Also check them against the alert partition, as `open` does. Books and alerts are read one after the
            other: this says whether opening is worth a try, and no more.

        Raises
        ------
        UnreadableState, StateRolledBack, BrokerError
            As `open`.
        """
        self._broken = True
        self._sealing = Sealing(self._place, self._masters, self._entropy)
        raw = await self._read()
        records, _ = await self._prove(raw, beside_alerts=beside_alerts)
        return self._restored(records)

    async def give_up(self, command: Command) -> None:
        """Close the shard for ever without its state, which cannot be proved; its other records stay as they are.

        Raises
        ------
        CommandRefused
            The command names another cluster, or other events than there are now, or another successor than the one
            for whom the shard was closed; or the state can be proved.
        ApplicationClosed
            The shard is closed already.
        Fenced, BrokerError
            As `open`; the outcome is unknown.
        """
        if command.cluster != self._place.cluster:
            raise CommandRefused(f"it is meant for cluster {command.cluster!r}")
        self._broken = True
        await self._log.fence()
        self._sealing = Sealing(self._place, self._masters, self._entropy)
        newest = Newest()
        await self._log.read_alerts(None, newest.take)
        if (newest.number, newest.origin, newest.state_id) != (command.event, command.origin, command.state):
            raise CommandRefused(
                f"it names event {command.event} of origin {command.origin!r} as the newest one, which is event "
                f"{newest.number} of origin {newest.origin!r}"
            )
        if others := newest.successors - {command.successor}:
            raise CommandRefused(f"events say that the shard was closed for successor {min(others)!r}")
        if (why := await self._unproved()) is None:
            raise CommandRefused("the state can be proved: close the shard without --give-up-state")
        log.critical("event=state_given_up shard=%d error=%r", self._shard, why)
        # Where the state knows of events that are not there, a gap before the last one shows it.
        is_own = self._meta.state_id.hex() == newest.state_id
        number = max(newest.number, newest.largest, self._meta.published if is_own else 0) + 1
        detail = {"successor": command.successor, "balances": 0, "command": command.id}
        data = released.Lifecycle(
            dataset="", monitor="", run=0, reason="given-up", account=None, detail=detail
        )
        event = released.ReleasedEvent(
            type=released.EventType.APPLICATION_CLOSED,
            id=f"{self._place.application}/shard-{self._shard}/closed/{number}",
            sequence=number,
            subject=f"shard-{self._shard}",
            data=data,
        )
        origin = f"{GIVEN_UP}{self._entropy(ORIGIN_BYTES).hex()}"
        encoded = released.encode(
            event,
            application=self._place.application,
            shard=self._shard,
            time=self._now_text(),
            origin=origin,
            state_id=newest.state_id,
        )
        record = msgspec.json.encode(Closed(command.successor, number, origin))
        await self._log.transact(Transaction([(b"", encoded)], [], {CLOSED: record}))

    async def read_closed(self) -> Closed | None:
        """Return how the shard was closed, as its state says; None until that is published.

        Reads as `look` does, and raises the same, but for a closed shard.
        """
        self._broken = True
        self._sealing = Sealing(self._place, self._masters, self._entropy)
        raw = await self._log.read_state()
        if CLOSED in raw:
            return self._decode_closed(raw[CLOSED])
        await self._restore(raw)
        meta = self._meta
        if self.pending or not meta.commands.closed:
            return None
        return Closed(meta.commands.closed, meta.published, meta.published_origin)

    def _decode_closed(self, record: bytes) -> Closed:
        try:
            return msgspec.json.decode(record, type=Closed)
        except msgspec.DecodeError as error:
            raise self._unreadable(f"record 'closed' is not of this format: {error}") from None

    async def _unproved(self) -> str | None:
        """Return why the state cannot be proved, None where it can."""
        raw = await self._read()
        try:
            await self._prove(raw)
        except UnreadableState as error:
            return str(error)
        return None

    async def _read(self) -> dict[bytes, bytes]:
        raw = await self._log.read_state()
        if CLOSED in raw:
            raise self.closed_error()
        return raw

    def _restored(self, records: dict[bytes, bytes]) -> Restored:
        meta = self._meta
        return Restored(
            records,
            meta.progress,
            meta.noise_key,
            meta.state_id.hex(),
            meta.commands,
            meta.last_event,
            dict(meta.read_to),
        )

    async def commit(self, commit: Commit) -> int:
        """Make a commit durable and publish what waits of the previous one; return how many events went out.

        Raises
        ------
        Fenced, BrokerUnavailable
            The outcome is unknown; `open` before anything else.
        MisuseError
            A record is larger than Kafka takes, the journal was not opened again after an error, or more waits to
            be published than one transaction takes (`backlog`).
        """
        return await self._transaction(commit)

    async def flush(self) -> int:
        """Publish what waits, or the first slice of it, without new state; return how many events went out."""
        if not self.pending:
            return 0
        return await self._transaction(Commit(progress=self._meta.progress or b""))

    async def close(self) -> None:
        """Give the producer up; nothing is committed by this."""
        self._broken = True
        await self._log.close()

    # Reading

    async def _restore(self, raw: Mapping[bytes, bytes]) -> tuple[dict[bytes, bytes], list[bytes]]:
        """Verify what was read; return the live records and the keys of those to be sealed again."""
        self._macs, self._total, self._chunks_total = {}, 0, 0
        self._outbox, self._rejects = [], []
        if not raw:
            self._meta = Meta(
                partitions=self._partitions,
                noise_key=self._entropy(SECRET_BYTES),
                digest_key=self._entropy(SECRET_BYTES),
                state_id=self._entropy(STATE_ID_BYTES),
            )
            return {}, []
        if META not in raw:
            raise self._unreadable("it has records but no record 'meta'")
        opened = self._sealing.open(META, raw[META])
        if self._masters and opened.key_id == NO_KEY and not self._adopt_plain:
            raise self._unreadable(
                "record 'meta' is plain although a sealing key is configured. If the state was never sealed, "
                "set sealing.adopt_plain for one start, which seals it; if it was, somebody replaced it"
            )
        meta = self._decode(META, opened, Meta)
        if meta.format != FORMAT or meta.sequence != opened.sequence:
            raise self._unreadable(f"record 'meta' has format {meta.format}, this version reads {FORMAT}")
        records: dict[bytes, bytes] = {}
        stale: list[bytes] = []
        mac, key_id, total = _hashing(meta.digest_key), self.key_id, 0
        for number, (key, record) in enumerate(raw.items(), start=1):
            if number % RESTORE_RECORDS == 0:
                await self._give_way()
            if key == META or key.startswith(OUTBOX):
                continue
            found = self._open(key, record, meta)
            records[key] = found.content
            self._macs[key] = hashed = mac(key, record)
            total += hashed
            if found.key_id != key_id:
                stale.append(key)
        chunks_total = self._restore_outbox(raw, meta)
        if _digest(total + chunks_total) != meta.digest:
            raise self._unreadable(
                "its records do not add up to the digest in 'meta': some were lost, added, or put back "
                "to an older version"
            )
        self._total, self._chunks_total = total, chunks_total
        if opened.key_id != self.key_id:
            # Whoever knows the key before, or read what was plain, knows the digest's secret.
            meta.digest_key = self._entropy(SECRET_BYTES)
            mac = _hashing(meta.digest_key)
            for number, key in enumerate(records, start=1):
                if number % RESTORE_RECORDS == 0:
                    await self._give_way()
                self._macs[key] = mac(key, raw[key])
            self._total = sum(self._macs.values())
            self._chunks_total = sum(mac(key, raw[key]) for key in _chunk_keys(meta))
        self._meta = meta
        return records, stale

    def _restore_outbox(self, raw: Mapping[bytes, bytes], meta: Meta) -> int:
        """Take back what is charged and not published; return the sum of the hashes of its records."""
        mac, total = _hashing(meta.digest_key), 0
        for key in _chunk_keys(meta):
            if key not in raw:
                raise self._unreadable(f"record {describe(key)} is missing")
            found = self._open(key, raw[key], meta)
            if found.sequence != meta.charged:
                raise self._unreadable(f"record {describe(key)} belongs to another transaction")
            total += mac(key, raw[key])
            chunk = self._decode(key, found._replace(content=self._unpacked(key, found.content)), Chunk)
            self._outbox += [event for event in chunk.events if event[0] > meta.published]
            if meta.charged == meta.sequence:  # else they went out with the first slice
                self._rejects += chunk.rejects
        return total

    def _unpacked(self, key: bytes, content: bytes) -> bytes:
        """Return the content of an outbox record before it was compressed."""
        unpacking = zlib.decompressobj()
        try:
            found = unpacking.decompress(content, RECORD_LIMIT + 1)
        except zlib.error:
            found = b""
        if not unpacking.eof or unpacking.unused_data:
            raise self._unreadable(f"record {describe(key)} is not of this format: it cannot be unpacked")
        return found

    async def _prove(
        self, raw: Mapping[bytes, bytes], *, beside_alerts: bool = True
    ) -> tuple[dict[bytes, bytes], list[bytes]]:
        """Hold what was read to the digest, to the alert partition, and to the number of partitions."""
        found = await self._restore(raw)
        if beside_alerts:
            await self._check_rollback(empty=not raw)
        if self._meta.partitions != self._partitions:
            raise self._unreadable(
                f"the application has {self._meta.partitions} partitions and its topics now have {self._partitions}: a "
                "dataset would get a second ledger. Restore the partition count; for another one, close the "
                "application and carry its budgets over to a successor"
            )
        return found

    def _open(self, key: bytes, record: bytes, meta: Meta) -> Opened:
        found = self._sealing.open(key, record)
        if meta.sealed_only and found.key_id == NO_KEY:
            raise self._unreadable(f"record {describe(key)} is plain among sealed ones")
        if found.sequence > meta.sequence:
            raise self._unreadable(f"record {describe(key)} is newer than 'meta'")
        try:
            key.decode()
        except UnicodeDecodeError:
            raise self._unreadable(f"record {describe(key)} has a key that is no text") from None
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
        raise self._unreadable(f"record {describe(key)} is not of this format: {why}")

    async def _check_rollback(self, *, empty: bool) -> None:
        """Refuse a state that is not the one behind what the alert partition shows (`stream_svt.protocol.rollback`)."""
        meta, topic = self._meta, self._topics.alerts
        known = Known()
        if not empty:
            waiting = {number for number, *_ in self._outbox}
            place = meta.alert_offset or 0
            known = Known(meta.published, meta.published_origin, waiting, meta.origin, place, meta.alert_end)
        seen, first, end = await self._look_at_alerts(known)
        committed, *_ = await self._look_at_alerts(known, committed=True)
        found = contradiction(known, seen, committed, first, end)
        if found is not None:
            raise StateRolledBack(
                f"the state of shard {self._shard} on topic {self._topics.state!r} "
                f"{'is empty' if empty else f'ends with event {meta.last_event}'}, but partition {self._shard} of "
                f"alert topic {topic!r} {found}. The state was deleted, restored from a backup, or belongs to another "
                "application, or the alert topic was made anew. Going on would spend budgets twice. Put the newest "
                "state back; where there is none, 'stream-svt control close-application -c FILE --successor NAME "
                f"--shard {self._shard} --give-up-state' closes the shard for a successor"
            )
        meta.alert_end = end

    async def _look_at_alerts(self, known: Known, *, committed: bool = False) -> tuple[Seen, int, int]:
        """Return what the alert partition shows, with its first offset and its end."""
        seen = Seen(known)
        first, end = await self._log.read_alerts(self._meta.alert_offset, seen.take, committed=committed)
        return seen, first, end

    def _now_text(self) -> str:
        now = datetime.fromtimestamp(self._epoch(), UTC)
        return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    async def _seal_again(self, stale: Mapping[bytes, bytes]) -> None:
        """Write again what the present key has not sealed; what waits to be published is sealed with the old one."""
        if stale or not self._meta.sealed_only:
            while self.pending:
                await self.flush()
        again: dict[bytes, bytes | None] = {}
        size = 0
        for key, content in stale.items():
            if again and (len(again) == self._bounds.records or size + len(content) > self._bounds.size):
                await self._transaction(Commit(records=again, progress=self._meta.progress or b""))
                again, size = {}, 0
            again[key] = content
            size += len(content)
        if again:
            await self._transaction(Commit(records=again, progress=self._meta.progress or b""))
        self._meta.sealed_only = self.key_id != NO_KEY

    async def _read_back(self) -> None:
        """Read the first record written: WRITE without READ would only show at the next takeover."""
        # Committed, but its marker may not be written yet: read_committed could miss it.
        raw = await self._log.read_state(committed=False)
        if META not in raw or self._sealing.open(META, raw[META]).sequence != self._meta.sequence:
            raise self._unreadable("the first record written could not be read back")

    def closed_error(self) -> ApplicationClosed:
        """Return what says that the shard was closed for ever."""
        return ApplicationClosed(
            f"shard {self._shard} of application {self._place.application!r} is closed for ever: 'control "
            "close-application' ended it. 'stream-svt carry-over' gives a successor what is left of each budget"
        )

    def _unreadable(self, why: str) -> UnreadableState:
        return UnreadableState(
            f"the state of shard {self._shard} on topic {self._topics.state!r} cannot be used: {why}. "
            "The shard is parked; nothing was changed"
        )

    # Writing

    async def _transaction(self, commit: Commit) -> int:
        if self._broken:
            raise MisuseError(f"the journal of shard {self._shard} must be opened before it is used")
        # Whatever ends this early, cancellation included, leaves memory and log apart.
        self._broken = True
        claim, self._claim = self._claim, False
        sealed, after = self._prepare(commit, claim=claim)
        shown = self._slice()
        offset = await self._log.transact(
            Transaction([(key, event) for _, key, event in shown], self._rejects, sealed, claim)
        )
        if offset is not None:
            after.meta.alert_offset = offset
        self.published = [number for number, _, _ in shown]
        self._meta, self._total, self._chunks_total = after.meta, after.total, after.chunks_total
        self._outbox, self._rejects = after.outbox, after.rejects
        self._broken = False
        return len(self.published)

    def _slice(self) -> list[tuple[int, bytes, bytes]]:
        """Return the events that the next transaction publishes: all that wait, or as many as it may hold."""
        size, most = 0, max(1, self._bounds.published - len(self._rejects))
        for number, (_, _, event) in enumerate(self._outbox):
            size += len(event)
            if number and (number == most or size > self._bounds.published_size):
                return self._outbox[:number]
        return self._outbox

    def _prepare(self, commit: Commit, *, claim: bool = False) -> tuple[dict[bytes, bytes | None], _After]:
        """Return the next transaction's records, and what holds once they are durable."""
        sequence = self._meta.sequence + 1
        shown = self._slice()
        sealed, total = self._seal_records(commit, sequence)
        rest, rejects, chunks, charged = self._outbox[len(shown) :], list(commit.rejects), 0, sequence
        origin = self._meta.origin
        mac, chunks_total = _hashing(self._meta.digest_key), 0
        if commit.events or commit.rejects:
            if rest:
                raise MisuseError(
                    f"shard {self._shard} commits before everything is published that was charged before"
                )
            origin = f"{sequence}-{self._entropy(ORIGIN_BYTES).hex()}"
            rest = self._freeze(commit.events, origin)
            for chunk in _split(rest, rejects):
                key = OUTBOX + str(chunks).encode()
                # What will be public: of a thousand events, most bytes are the same.
                sealed[key] = record = self._sealed(key, sequence, chunk, compress=True)
                chunks_total += mac(key, record)
                chunks += 1
        elif rest:
            chunks, charged, chunks_total = self._meta.chunks, self._meta.charged, self._chunks_total
        meta = msgspec.structs.replace(
            self._meta,
            sequence=sequence,
            charged=charged,
            chunks=chunks,
            progress=commit.progress or self._meta.progress,
            published=shown[-1][0] if shown else self._meta.published,
            published_origin=self._meta.origin if shown else self._meta.published_origin,
            origin=origin,
            last_event=max([self._meta.last_event, *(number for number, _, _ in rest[-1:])]),
            # Its events, and its mark.
            alert_end=self._meta.alert_end + (len(shown) + 1 if shown or claim else 0),
            digest=_digest(total + chunks_total),
        )
        sealed[META] = self._sealed(META, sequence, meta)
        return sealed, _After(meta, total, chunks_total, rest, rejects)

    def _seal_records(self, commit: Commit, sequence: int) -> tuple[dict[bytes, bytes | None], int]:
        """Return the records as they are written and the new sum of the live records' hashes."""
        sealed: dict[bytes, bytes | None] = {}
        macs, total, mac = self._macs, self._total, _hashing(self._meta.digest_key)
        for key, content in commit.records.items():
            if key == META or key.startswith(OUTBOX):
                raise MisuseError(f"record key {describe(key)} belongs to the journal")
            total -= macs.pop(key, 0)
            if content is None:
                sealed[key] = None
            else:
                sealed[key] = record = self._sealed(key, sequence, content)
                macs[key] = hashed = mac(key, record)
                total += hashed
        return sealed, total

    def _sealed(
        self, key: bytes, sequence: int, content: bytes | msgspec.Struct, *, compress: bool = False
    ) -> bytes:
        plain = content if isinstance(content, bytes) else msgspec.msgpack.encode(content)
        if len(plain) > RECORD_LIMIT:
            raise MisuseError(
                f"state record {describe(key)} of shard {self._shard} has {len(plain)} bytes, the limit "
                f"is {RECORD_LIMIT}"
            )
        return self._sealing.seal(key, sequence, zlib.compress(plain, 1) if compress else plain)

    def _freeze(
        self, events: Iterable[released.ReleasedEvent], origin: str
    ) -> list[tuple[int, bytes, bytes]]:
        """Encode events with the time at which they enter the outbox: published twice, they are the same bytes."""
        now = self._now_text()
        return [
            (
                event.sequence,
                event.data.dataset.encode(),
                released.encode(
                    event,
                    application=self._place.application,
                    shard=self._shard,
                    time=now,
                    origin=origin,
                    state_id=self._meta.state_id.hex(),
                    command=self._meta.commands.number,
                    prove=self._sealing.prover() if event.type in released.CLOSING else None,
                ),
            )
            for event in events
        ]


@dataclass(frozen=True, slots=True)
class _After:
    """What holds once a transaction is durable."""

    meta: Meta
    total: int
    chunks_total: int
    outbox: list[tuple[int, bytes, bytes]]
    rejects: list[tuple[str, int, str]]


def _chunk_keys(meta: Meta) -> Iterator[bytes]:
    return (OUTBOX + str(number).encode() for number in range(meta.chunks))


def _hashing(secret: bytes) -> Callable[[bytes, bytes], int]:
    """Return what hashes a record with its key, under a secret: for many of them."""
    begun = hashlib.blake2b(digest_size=32, key=secret)

    def mac(key: bytes, record: bytes) -> int:
        digest = begun.copy()
        digest.update(b"".join((len(key).to_bytes(4, "big"), key, record)))
        return int.from_bytes(digest.digest(), "big")

    return mac


def _digest(total: int) -> bytes:
    return (total % (1 << 256)).to_bytes(32, "big")


def _split(events: list[tuple[int, bytes, bytes]], rejects: list[tuple[str, int, str]]) -> list[Chunk]:
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
