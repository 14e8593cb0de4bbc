"""The state, outbox and rejects of one shard on Kafka, one transaction at a time.

Transaction N makes batch N's state, events and rejects durable. Transaction N+1 publishes them. If they are too
large for one transaction, it publishes the first slice, and transactions that only publish follow before the next
commit. So an event is visible only after the transaction that charged it has committed. After any exception the
outcome of a transaction is unknown: `open` fences the old producer and reads everything again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial

import msgspec

from stream_svt.errors import (
    ApplicationClosed,
    CommandRefused,
    MisuseError,
    RecordsLost,
    StateRolledBack,
    UnreadableState,
)
from stream_svt.monitor import released
from stream_svt.monitor.operations import Command
from stream_svt.monitor.state.accounts import Commit
from stream_svt.protocol.history.rollback import GIVEN_UP, AlertScan, LatestEvent, contradiction
from stream_svt.protocol.ports import Log, Transaction
from stream_svt.protocol.sealing import NO_KEY
from stream_svt.protocol.state_records import (
    CLOSED,
    META,
    Closed,
    Event,
    JournalSettings,
    Meta,
    ShardRecords,
    created_again,
    other_partitioning,
)

log = logging.getLogger(__name__)

ORIGIN_BYTES = 8
"""Random bytes of an event's origin. Together with the sequence they differ between two histories."""


class Journal:
    """Reads and writes one shard's state, on the partitions of ``log``.

    ``records`` are the records of the state; ``proved``: whether `open` has verified them. ``time_ms`` is the latest
    time of a transaction, in milliseconds since 1970 by the brokers' clock (see `Written`).
    """

    def __init__(self, log: Log, settings: JournalSettings) -> None:
        self._log = log
        self.check_fenced = log.check_fenced
        self._settings = settings
        self.context = settings.context
        self._shard = settings.context.shard
        self._broken = True
        self.records = ShardRecords(settings)
        self._claim = False
        self.proved = False
        self.time_ms = 0
        self._state_offset = -1

    @property
    def meta(self) -> Meta:
        """The record `meta`. The next transaction makes its changes durable."""
        return self.records.meta

    @property
    def pending(self) -> int:
        """Number of events and rejects that are durable but not yet published."""
        return len(self.records.outbox) + len(self.records.rejects)

    @property
    def backlog(self) -> bool:
        """Whether more events wait than one transaction publishes; a commit has to wait for the rest."""
        return len(self.records.to_publish()) < len(self.records.outbox)

    async def open(self) -> dict[bytes, bytes]:
        """Take the shard over: fence, read, verify, and write a first transaction; return the engine's records.

        Raises:
            UnreadableState: A record is missing, foreign, changed, or sealed with an unknown key.
            StateRolledBack: The alert partition knows events that the state does not.
            ApplicationClosed: The shard was closed, and everything is published.
            Fenced, BrokerError: Another owner took the shard over meanwhile; see `stream_svt.kafka.clients`.
        """
        raw = await self._read(fence=True)
        try:
            records = await self._prove(raw)
            if self.meta.commands.closed and not self.pending:
                raise self.closed_error()
            self._broken, self._claim = False, True
            self.proved = True
            await self.commit(Commit())
            if not raw:  # otherwise a missing READ permission would be found only at the next takeover
                # Committed, but its marker may not be written yet: read_committed could miss it.
                meta = (await self._log.read_state(committed=False)).get(META)
                if meta is None or self.records.sealing.open(META, meta).sequence != self.meta.sequence:
                    raise self.records.unreadable("the first record written could not be read back")
        except UnreadableState:
            # A fenced owner may have read state and alerts at different times: only the current owner may judge.
            self._broken = True
            await self._log.check_fenced()
            raise
        await self._seal_again({key: records[key] for key in self.records.stale})
        return records

    async def inspect(self, *, beside_alerts: bool = False) -> dict[bytes, bytes]:
        """Read and verify the state without taking it over; writes nothing, and raises the errors of `open`.

        ``beside_alerts`` also compares it with the alert partition; only the owner may judge by that.
        """
        return await self._prove(await self._read(), beside_alerts=beside_alerts)

    async def give_up(self, command: Command) -> None:
        """Close the shard permanently without its state, which cannot be verified. Its other records are not changed.

        Raises:
            CommandRefused: It names another cluster, other events, or another successor; or the state can be proved.
            ApplicationClosed: The shard is closed already.
            Fenced, BrokerError: As `open`; the outcome is unknown.
        """
        if command.cluster != self.context.cluster:
            raise CommandRefused(f"it is meant for cluster {command.cluster!r}")
        raw = await self._read(fence=True)
        newest = LatestEvent()
        await self._log.read_alerts(None, newest.take)
        if (newest.number, newest.origin, newest.state_id) != (command.event, command.origin, command.state):
            raise CommandRefused(
                f"it names event {command.event} of origin {command.origin!r} as the newest one, which is event "
                f"{newest.number} of origin {newest.origin!r}"
            )
        if others := newest.successors - {command.successor}:
            raise CommandRefused(f"events say that the shard was closed for successor {min(others)!r}")
        try:
            await self._prove(raw)
        except UnreadableState as error:
            log.critical("event=state_given_up shard=%d error=%r", self._shard, str(error))
        else:
            raise CommandRefused("the state can be proved: close the shard without --give-up-state")
        # If the state has events that the alert partition lacks, there is a gap before the last number.
        is_own = self.meta.state_id.hex() == newest.state_id
        number = max(newest.number, newest.largest, self.meta.published if is_own else 0) + 1
        detail = {"successor": command.successor, "balances": 0, "command": command.id}
        event = released.ReleasedEvent(
            type=released.EventType.APPLICATION_CLOSED,
            id=f"{self.context.application}/shard-{self._shard}/closed/{number}",
            sequence=number,
            subject=f"shard-{self._shard}",
            data=released.Lifecycle(
                dataset="", monitor="", run=0, reason="given-up", account=None, detail=detail
            ),
        )
        origin = f"{GIVEN_UP}{self._settings.entropy(ORIGIN_BYTES).hex()}"
        encoded = self._encoder(origin, newest.state_id)(event)
        record = msgspec.json.encode(Closed(command.successor, number, origin))
        await self._log.transact(Transaction([(b"", encoded)], [], {CLOSED: record}))

    async def read_closed(self) -> Closed | None:
        """Return how the shard was closed; None until this is published. Raises the errors of `inspect`."""
        raw = await self._read()
        if CLOSED in raw:
            return self.records.decode(CLOSED, raw[CLOSED], Closed, msgspec.json.decode)
        await self.records.restore(raw)
        meta = self.meta
        if self.pending or not meta.commands.closed:
            return None
        return Closed(meta.commands.closed, meta.published, meta.published_origin)

    async def flush(self) -> int:
        """Publish waiting events, as many as one transaction may hold; return how many."""
        return await self.commit(Commit()) if self.pending else 0

    async def close(self) -> None:
        """Close the producer; commits nothing."""
        self._broken = True
        await self._log.close()

    # Reading

    async def _read(self, *, fence: bool = False) -> dict[bytes, bytes]:
        """Discard the state in memory and read it again; with ``fence``, first end the earlier owner's session."""
        self._broken = True
        if fence:
            await self._log.fence()
        self.records = ShardRecords(self._settings)
        return await self._log.read_state()

    async def _prove(self, raw: Mapping[bytes, bytes], *, beside_alerts: bool = True) -> dict[bytes, bytes]:
        """Check a state against its digest, the alert partition, and the partitioning of datasets."""
        if CLOSED in raw:
            raise self.closed_error()
        found = await self.records.restore(raw)
        if beside_alerts:
            await self._check_rollback(empty=not raw)
        meta, topics = self.meta, self._settings.topics
        if (meta.partitions, meta.partitioner) != (topics.partitions, topics.partitioner):
            raise self.records.unreadable(other_partitioning((meta.partitions, meta.partitioner), topics))
        return found

    async def _check_rollback(self, *, empty: bool) -> None:
        """Refuse a state that the alert partition contradicts (see `stream_svt.protocol.history.rollback`)."""
        meta, topic = self.meta, self._settings.topics.alerts
        seen, first, end = await self._read_alerts()
        committed, *_ = await self._read_alerts(committed=True)
        ids = await self._log.topic_ids()
        replaced = topic in created_again(meta.topic_ids, ids)
        found = contradiction(None if empty else meta, seen, committed, first, end, replaced=replaced)
        if found is not None:
            raise StateRolledBack(
                f"the state of shard {self._shard} on topic {self._settings.topics.state!r} "
                f"{'is empty' if empty else f'ends with event {meta.last_event}'}, but partition {self._shard} of "
                f"alert topic {topic!r} {found}. The state was deleted, restored from a backup, or belongs to another "
                "application, or the alert topic was recreated. Continuing would spend budgets twice. Put the newest "
                "state back; where there is none, 'stream-svt control close-application -c FILE --successor NAME "
                f"--shard {self._shard} --give-up-state' closes the shard for a successor"
            )
        meta.alert_end = end
        meta.topic_ids |= ids

    async def _read_alerts(self, *, committed: bool = False) -> tuple[AlertScan, int, int]:
        """Return the scanned alert partition, its first offset and its end."""
        seen = AlertScan(self.meta, {number for number, *_ in self.records.outbox})
        first, end = await self._log.read_alerts(self.meta.alert_offset, seen.take, committed=committed)
        return seen, first, end

    async def _seal_again(self, stale: Mapping[bytes, bytes]) -> None:
        """Re-encrypt records that an older key sealed, after publishing waiting events."""
        if stale or not self.meta.sealed_only:
            while self.pending:
                await self.flush()
        again: dict[bytes, bytes | None] = {}
        size, bounds = 0, self._settings.bounds
        for key, content in stale.items():
            if again and (len(again) == bounds.records or size + len(content) > bounds.size):
                await self.commit(Commit(again))
                again, size = {}, 0
            again[key] = content
            size += len(content)
        if again:
            await self.commit(Commit(again))
        self.meta.sealed_only = self.records.sealing.key_id != NO_KEY

    def closed_error(self) -> ApplicationClosed:
        """Return the error for a shard that was closed permanently."""
        return ApplicationClosed(
            f"shard {self._shard} of application {self.context.application!r} is closed permanently: 'control "
            "close-application' ended it. 'stream-svt carry-over' gives a successor what is left of each budget"
        )

    # Writing

    async def commit(self, commit: Commit) -> int:
        """Write a commit and publish waiting events of the previous one in one transaction; return how many.

        Raises:
            Fenced, BrokerUnavailable: The outcome is unknown; `open` before anything else.
            MisuseError: A record is too large, the journal has to be opened again, or there is a `backlog`.
        """
        if self._broken:
            raise MisuseError(f"the journal of shard {self._shard} must be opened before it is used")
        # After any early end, including cancellation, memory and log may differ.
        self._broken = True
        claim, self._claim = self._claim, False
        published = self.records.to_publish()
        events, origin = list[Event](), self.meta.origin
        if commit.events or commit.rejects:
            origin = f"{self.meta.sequence + 1}-{self._settings.entropy(ORIGIN_BYTES).hex()}"
            events = self._freeze(commit.events, origin)
        alerts, rejects = [(key, event) for _, key, event in published], self.records.rejects
        written = self.records.write(commit, events, origin, len(published), claim=claim)
        # Further markers may come between. `alert_end` includes the markers of this transaction and of the claim.
        least = self.meta.alert_end - 3, self._state_offset + len(written)
        offset, time_ms, state_offset = await self._log.transact(Transaction(alerts, rejects, written, claim))
        self._require_same("alerts", offset, least[0])
        self._require_same("state", state_offset, least[1])
        if offset is not None:
            self.meta.alert_offset = offset
        if state_offset is not None:
            self._state_offset = state_offset
        self.time_ms = max(self.time_ms, time_ms)  # a leader's clock may be behind the former one's
        self._broken = False
        return len(published)

    def _require_same(self, name: str, offset: int | None, least: int) -> None:
        """Raise `RecordsLost` if a record got an offset below ``least``, the end of earlier records."""
        if offset is not None and offset < least:
            topic = getattr(self._settings.topics, name)
            raise RecordsLost(
                f"shard {self._shard}: a record has offset {offset} of topic {topic!r}, where earlier records end at "
                f"{least}: the topic was created again or cut short"
            )

    def _freeze(self, events: Iterable[released.ReleasedEvent], origin: str) -> list[Event]:
        """Encode events when they enter the outbox, so that a second publication has the same bytes."""
        encoded = self._encoder(origin, self.meta.state_id.hex(), self.meta.commands.number)
        proves = dict.fromkeys(released.CLOSING, self.records.sealing.prove)
        return [
            (event.sequence, event.data.dataset.encode(), encoded(event, prove=proves.get(event.type)))
            for event in events
        ]

    def _encoder(self, origin: str, state_id: str, command: int = 0) -> Callable[..., bytes]:
        """Return an encoder for the events of one transaction, with its context and time."""
        now = datetime.fromtimestamp(self._settings.epoch(), UTC).isoformat(timespec="milliseconds")
        return partial(
            released.encode,
            application=self.context.application,
            shard=self._shard,
            time=now.replace("+00:00", "Z"),
            origin=origin,
            state_id=state_id,
            command=command,
        )
