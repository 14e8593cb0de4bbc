"""The books of one shard on Kafka: state, outbox and rejects, one transaction at a time.

Layout of a shard's partition of the state topic (compacted)::

    meta     sequence of the last transaction, the engine's progress, keys, digest, what was published
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

from stream_svt.errors import MisuseError, StateRolledBack, UnreadableState
from stream_svt.monitor import released
from stream_svt.monitor.bounds import BOUNDS, Bounds
from stream_svt.monitor.engine import Commit
from stream_svt.protocol.ports import Log, Record, Transaction
from stream_svt.protocol.sealing import NO_KEY, Opened, Place, Sealing, describe

log = logging.getLogger(__name__)
_T = TypeVar("_T")

FORMAT = 1
META = b"meta"
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
LEAP = 2**53
"""Events that no shard has charged: a number beyond it is forged."""
STEP = 2**20
"""How far a number may lie beyond the highest one known: what goes on after a forged one, once accepted, is genuine."""
YEAR_2020 = 1_577_836_800
"""Seconds from 1970 to 2020."""


_Count = Annotated[int, msgspec.Meta(ge=0, le=released.LARGEST_SEQUENCE)]
"""A number or offset that Kafka and the format know: what a forged record holds beyond it is refused by name."""
_Secret = Annotated[bytes, msgspec.Meta(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]


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
        Number of partitions of all topics. While a migration is under way, the number wanted, negative: then
        nobody but the migration goes on.
    progress
        The engine's positions, clocks and counters; None before its first commit.
    control_next, control_ahead
        Offset from which the control partition is read on, and offsets after it that are already done
        (see `stream_svt.protocol.controls.Runs`).
    commands_since
        Moment, in milliseconds since 1970, before which no signed command is heard: when the books, or their
        place in the control partition, began.
    last_event, published
        Sequence of the newest event charged, and of the newest one published, by this transaction at the
        latest.
    alert_offset
        Offset of a published event on the alert partition: the rollback check reads from there.
    alert_end
        End of the alert partition as far as this transaction and those before explain it, the marks that end
        transactions included; None in books from before it was kept.
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
    partitions: int
    progress: bytes | None = None
    control_next: _Count | None = None
    control_ahead: list[int] = []
    commands_since: _Count = 0
    last_event: _Count = 0
    published: _Count = 0
    alert_offset: _Count | None = None
    alert_end: _Count | None = None
    read_to: dict[str, _Count] = {}
    noise_key: _Secret
    digest_key: _Secret
    digest: bytes = bytes(32)
    sealed_only: bool = False


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

    ``last_event`` is the number of the newest event, or, after a rollback, one that no event's number exceeds;
    ``shown`` is then the largest limit and loss that events on the alert topic show, by dataset and measure, and
    ``highest_id`` one that no number exceeds with which their ids end.
    """

    records: dict[bytes, bytes] = field(repr=False)
    progress: bytes | None = field(repr=False)
    noise_key: bytes = field(repr=False)
    control_next: int | None
    control_ahead: list[int]
    commands_since: int
    last_event: int
    read_to: dict[str, int]
    shown: dict[tuple[str, str], released.Account] = field(default_factory=dict)
    highest_id: int = 0


async def _keep_going() -> None:
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
        give_way: Callable[[], Awaitable[None]] = _keep_going,
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
        self._meta = Meta(partitions=partitions, noise_key=b"", digest_key=b"")
        self._sealing = Sealing(place, (), entropy)
        self._macs: dict[bytes, int] = {}
        self._total = 0
        self._chunks_total = 0
        self._outbox: list[tuple[int, bytes, bytes]] = []
        self._rejects: list[tuple[str, int, str]] = []
        self._shown: dict[tuple[str, str], released.Account] = {}
        self._highest_id = 0
        self._stale: dict[bytes, bytes] = {}
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
    def sequence(self) -> int:
        """Number of the last transaction."""
        return self._meta.sequence

    @property
    def live_records(self) -> int:
        """Number of live records, without meta and outbox."""
        return len(self._macs)

    def set_control(self, next_offset: int | None, ahead: Iterable[int], since: int | None = None) -> None:
        """Say how far the control partition is done, and since when it is heard; durable with the next transaction."""
        self._meta.control_next, self._meta.control_ahead = next_offset, list(ahead)
        if since is not None:
            self._meta.commands_since = since

    @property
    def read_to(self) -> Mapping[str, int]:
        """By query topic the offset before which everything lies that was ever stepped (see `Meta`)."""
        return self._meta.read_to

    def set_read_to(self, ends: Mapping[str, int]) -> None:
        """Say how far each topic may be stepped; durable with the next transaction."""
        self._meta.read_to = dict(ends)

    async def open(self, *, after_rollback: bool = False) -> Restored:
        """Take the shard over: fence, read, verify, and write a first transaction of this tenure.

        Parameters
        ----------
        after_rollback
            Go on although the state is older than the published events; the caller has been told to mark
            every dataset exhausted. Then nothing is written: the first transaction is the caller's, and holds the
            exhausted ledgers. One before it would make an older state look like the newest.

        Raises
        ------
        UnreadableState
            A record is missing, foreign, changed, or sealed with an unknown key.
        StateRolledBack
            The alert partition knows events that the state does not.
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
            raw = await self._log.read_state()
            records, stale = await self._restore(raw)
            await self._check_rollback(empty=not raw, accept=after_rollback)
            self._check_partitions(self._meta.partitions)
            self._broken, self._claim = False, True
            self._stale = {key: records[key] for key in stale}
            if after_rollback:
                return self._restored(records)
            await self._transaction(Commit(progress=self._meta.progress or b""))
            if not raw:
                await self._read_back()
        except (UnreadableState, StateRolledBack):
            # Whoever stood still while another owner went on sees books and alerts of different times: only
            # the rightful owner may judge them.
            self._broken = True
            await self._log.prove()
            raise
        await self._seal_again()
        return self._restored(records)

    async def prove(self) -> None:
        """Find out whether the books still are this journal's to write; see `Log.prove`."""
        await self._log.prove()

    async def fence(self) -> None:
        """Let no earlier writer commit anything more, and what one did commit be visible; writes nothing.

        Raises
        ------
        BrokerError
            As `open`.
        """
        self._broken = True
        await self._log.fence()

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
        raw = await self._log.read_state()
        records, _ = await self._restore(raw)
        if beside_alerts:
            await self._check_rollback(empty=not raw, accept=False)
        self._check_partitions(self._meta.partitions)
        return self._restored(records)

    def _restored(self, records: dict[bytes, bytes]) -> Restored:
        meta = self._meta
        return Restored(
            records,
            meta.progress,
            meta.noise_key,
            meta.control_next,
            list(meta.control_ahead),
            meta.commands_since,
            meta.last_event,
            dict(meta.read_to),
            self._shown,
            self._highest_id,
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
        given_up = self._claim  # the first transaction after a rollback, which `open` left to the caller
        count = await self._transaction(commit)
        if given_up:
            self._stale = {key: old for key, old in self._stale.items() if key not in commit.records}
            await self._seal_again()
        return count

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
                commands_since=self._now_ms(),
                noise_key=self._entropy(SECRET_BYTES),
                digest_key=self._entropy(SECRET_BYTES),
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

    def _check_partitions(self, count: int) -> None:
        if count < 0:
            raise self._unreadable(
                f"a migration to {-count} partitions was begun and is not finished: run 'stream-svt migrate "
                f"--partitions {-count}' again"
            )
        if count != self._partitions:
            raise self._unreadable(
                f"the application has {count} partitions and its topics now have {self._partitions}: a dataset "
                "would get a second ledger. Restore the partition count, or change it with 'stream-svt migrate'. If "
                "that was done already, this state is older: put the newest one back; if there is none, 'stream-svt "
                f"migrate --partitions {self._partitions}' says what to do, with topics.partitions: {count} in the "
                "configuration"
            )

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

    async def _check_rollback(self, *, empty: bool, accept: bool) -> None:
        """Refuse a state that is not the one behind what the alert partition shows.

        Uncommitted records count as well: an event is sent only after the transaction that charged it. So what was
        sent after the newest transaction is what waits in its outbox, byte for byte, and it was aborted; anything
        else shows another history, a newer one, or one beside it (the records of an aborted transaction, put back).
        """
        topic, meta, start = self._topics.alerts, self._meta, self._meta.alert_offset
        seen, first, end = await self._look_at_alerts(start)
        if start is not None and first <= start and not seen.anchored:
            # The topic was made anew, and what stands in it lies before the place where the old one was left.
            start = None
            seen, first, end = await self._look_at_alerts(start)
        done = 0
        if seen.waiting and not seen.foreign:
            committed, *_ = await self._look_at_alerts(start, committed=True)
            done = committed.waiting
        # Beyond what the books explain there can be one transaction that was aborted, and its mark.
        explained = 0 if empty else meta.alert_end
        deleted = explained is not None and first > explained + (len(self._outbox) + 1 if not empty else 0)
        # Whether there were alerts that nobody can read any more, and the books do not know.
        gone = first > (start or 0) or (start is None and seen.oldest != 1)
        meta.alert_end = end
        self._shown, self._highest_id = {}, 0
        if not seen.foreign and not done and not deleted and not (empty and seen.count):
            return
        if meta.partitions < 0 or seen.moved_to != self._partitions:
            # They show no migration to this number that was finished since. In the middle of one, whatever is shown
            # can be forged, and the ledgers of what was to move are nowhere else.
            self._check_partitions(meta.partitions)
        if accept:
            self._accept(seen, gone=gone)
            return
        found = "is empty" if empty else f"ends with event {meta.last_event}"
        if seen.newest > meta.last_event:
            shown = f"event {seen.newest}"
        elif seen.foreign:
            shown = f"event {seen.foreign} with another content"
        elif done:
            shown = f"event {done} as published, which the state still has to publish"
        else:
            shown = "earlier use" if empty else "that events were deleted which the state does not know of"
        raise StateRolledBack(
            f"the state of shard {self._shard} on topic {self._topics.state!r} {found}, but partition "
            f"{self._shard} of alert topic {topic!r} "
            f"shows {shown}: the state was deleted, restored from a backup, or belongs to another "
            "application. Going "
            "on would spend budgets twice. Put the state back, or give up the shard's budgets with "
            "'stream-svt "
            f"control mark-exhausted' while a worker waits{_raises_gone(empty=empty) if gone else ''}"
        )

    def _accept(self, seen: _Seen, *, gone: bool) -> None:
        """Go on with books that are older than the alerts, after every event that these show.

        Where alerts are ``gone``, by retention or with a topic made anew, nobody knows their numbers any more. Then
        numbers go on by the clock: a shard charges less than an event a second, from one such giving up to the next or
        from 2020 on, and a dataset less than one a millisecond. They have to fit 32 bits, for readers of CloudEvents.
        """
        meta, now = self._meta, self._now_ms()
        newest, highest_id = max(seen.newest, meta.published), seen.highest_id
        if gone:
            newest, highest_id = max(newest, now // 1000 - YEAR_2020), max(highest_id, now)
        meta.partitions = self._partitions
        meta.alert_offset = seen.offset
        # What waits belongs to a history that is given up: shown now, it would be a second outcome of a charge.
        self._outbox, self._rejects, self._chunks_total, meta.chunks = [], [], 0, 0
        meta.last_event = meta.published = newest
        meta.commands_since = max(meta.commands_since, now)
        self._shown, self._highest_id = seen.accounts, highest_id
        log.warning("event=rollback_accepted shard=%d newest_event=%d", self._shard, newest)

    async def _look_at_alerts(self, start: int | None, *, committed: bool = False) -> tuple[_Seen, int, int]:
        """Return what the alert partition shows from an offset on, with its first offset and its end."""
        seen = _Seen(self._meta, {number: event for number, _, event in self._outbox})
        first, end = await self._log.read_alerts(start, seen.take, committed=committed)
        return seen, first, end

    def _now_ms(self) -> int:
        return int(self._epoch() * 1000)

    async def _seal_again(self) -> None:
        """Write again what the present key has not sealed; what waits to be published is sealed with the old one."""
        if self._stale or not self._meta.sealed_only:
            while self.pending:
                await self.flush()
        stale, self._stale = list(self._stale.items()), {}
        again: dict[bytes, bytes | None] = {}
        size = 0
        for key, content in stale:
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

    def _explained(self, shown: int, *, claim: bool) -> int | None:
        """Return where the alert partition ends after the next transaction: its events, and its mark."""
        end = self._meta.alert_end
        if end is None or not (shown or claim):
            return end
        return end + shown + 1

    def _prepare(self, commit: Commit, *, claim: bool = False) -> tuple[dict[bytes, bytes | None], _After]:
        """Return the next transaction's records, and what holds once they are durable."""
        sequence = self._meta.sequence + 1
        shown = self._slice()
        sealed, total = self._seal_records(commit, sequence)
        rest, rejects, chunks, charged = self._outbox[len(shown) :], list(commit.rejects), 0, sequence
        mac, chunks_total = _hashing(self._meta.digest_key), 0
        if commit.events or commit.rejects:
            if rest:
                raise MisuseError(
                    f"shard {self._shard} commits before everything is published that was charged before"
                )
            rest = self._freeze(commit.events)
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
            last_event=max([self._meta.last_event, *(number for number, _, _ in rest[-1:])]),
            alert_end=self._explained(len(shown), claim=claim),
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

    def _freeze(self, events: Iterable[released.ReleasedEvent]) -> list[tuple[int, bytes, bytes]]:
        """Encode events with the time at which they enter the outbox: published twice, they are the same bytes."""
        now = (
            datetime.fromtimestamp(self._epoch(), UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )
        return [
            (
                event.sequence,
                event.data.dataset.encode(),
                released.encode(event, application=self._place.application, shard=self._shard, time=now),
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


class _Seen:
    """What the records of an alert partition show beside the books: a pass over them in order."""

    def __init__(self, meta: Meta, outbox: Mapping[int, bytes]) -> None:
        self._meta, self._outbox = meta, outbox
        self.count = self.oldest = self.newest = self.foreign = self.waiting = self.highest_id = 0
        self.moved_to = self._leaves_for = 0
        self.offset = meta.alert_offset
        self.anchored = False
        self.accounts: dict[tuple[str, str], released.Account] = {}

    def take(self, record: Record) -> None:
        """Take the next record in."""
        meta = self._meta
        self.count += 1
        self.offset = record.offset
        number = released.sequence_of(record.value)
        self.oldest = self.oldest or number
        # Whatever was taken for genuine once has to be so beside any other state.
        far = max(LEAP, meta.last_event + STEP)
        forged = number > max(far, self.newest + STEP)
        if record.offset == meta.alert_offset:
            # Of a topic made anew, something else stands where the old one was left.
            self.anchored = forged or number <= meta.published
            if forged:  # and given budgets up for
                return
        if number <= meta.published:
            return
        if not forged:
            self.newest = max(self.newest, number)
        if self._outbox.get(number) == record.value:
            self.waiting = self.waiting or number
            return
        self.foreign = self.foreign or number
        envelope, data = released.decode(record.value or b"")
        if (last := released.number_of(envelope.id)) <= max(far, self.highest_id + STEP):
            self.highest_id = max(self.highest_id, last)
        if envelope.type == released.EventType.MOVED and isinstance(data, released.Lifecycle):
            self.moved_to, self._leaves_for = 0, data.detail.get("partitions", 0)
        elif envelope.type != released.EventType.RUN_CLOSED:
            # Whoever has taken leave says nothing else before the migration is finished.
            self.moved_to = self._leaves_for
        if data.account is None:
            return
        place = data.dataset, data.account.measure
        before = self.accounts.setdefault(place, data.account)
        self.accounts[place] = msgspec.structs.replace(
            before,
            limit=max(data.account.limit, before.limit),
            spent=max(data.account.spent, before.spent),
        )


def _raises_gone(*, empty: bool) -> str:
    """Say what to do first where alerts are gone that may have shown a raised limit."""
    emptied = "" if empty else ", and empty the state topic's partition of this shard"
    return (
        ". Some alerts are gone, and a raise that only they showed is forgotten then: if a limit was raised, first "
        f"write the highest one ever granted into the configuration{emptied}"
    )


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
