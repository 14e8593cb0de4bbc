"""One tenure of one shard: from taking its books over to handing them on.

The loop reads, steps the engine and commits; it decides nothing about privacy. What it must get right is
order:

- a batch is stepped again only after the commit the engine asked for (`durable_first`);
- commands and a changed specification take effect between two commits, and after a takeover only once
everything
  the previous owner could have read has been replayed;
- after an error nothing in memory is trusted: the tenure ends and the next one reads the books.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from stream_svt.errors import ConfigError, MisuseError, RecordsLost
from stream_svt.monitor.commands import Action, Command
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.released import DatasetView
from stream_svt.service.controls import Controls
from stream_svt.service.journal import Journal, Restored
from stream_svt.service.kafka import Cluster, spans
from stream_svt.service.metrics import Metrics
from stream_svt.service.workload import Workload

log = logging.getLogger(__name__)

IDLE_FETCH = 0.5
"""Seconds a fetch waits where nothing presses: bounds how late a reload or the watchdog is served."""


class State(StrEnum):
    """What a shard is doing, as shown by metrics and the status API."""

    OPENING = "opening"
    REPLAYING = "replaying"
    RUNNING = "running"
    LOST = "records-lost"
    ROLLED_BACK = "rolled-back"
    PARKED = "parked"
    RETRYING = "retrying"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a shard commits.

    Attributes
    ----------
    interval
        Seconds between commits of batches without released outcomes.
    max_records
        Records after which such a commit is due at once, and most a fetch returns.
    start_at
        "earliest" or "latest": where a topic is read from that was never read.
    """

    interval: float = 2.0
    max_records: int = 20_000
    start_at: str = "earliest"


@dataclass(slots=True)
class Status:
    """What may be said about a shard, all of it committed or public."""

    shard: int
    state: State = State.OPENING
    reason: str = ""
    key_id: str = ""
    sequence: int = 0
    state_records: int = 0
    offsets: dict[str, int] = field(default_factory=dict)
    lag: dict[str, int] = field(default_factory=dict)
    views: dict[str, DatasetView] = field(default_factory=dict)
    opened_at: float = 0.0
    committed_at: float = 0.0
    beat: float = field(default_factory=time.monotonic)


class Stopped(Exception):
    """The shard was told to stop while it waited; nothing is in flight."""


class Tenure:
    """Runs a shard until told to stop.

    Parameters
    ----------
    cluster
        How to reach the brokers.
    consumer
        The worker's group consumer; partitions of this shard are assigned to it and paused.
    journal
        The shard's books, not opened.
    workload
        What to run.
    control
        Name of the control topic.
    pace, metrics, status
        How often to commit; where to report.
    stop
        Set to end the tenure.
    """

    def __init__(
        self,
        cluster: Cluster,
        consumer: AIOKafkaConsumer,
        journal: Journal,
        workload: Workload,
        *,
        shard: int,
        control: str,
        pace: Pace,
        metrics: Metrics,
        status: Status,
        stop: asyncio.Event,
    ) -> None:
        self._cluster = cluster
        self._consumer = consumer
        self._journal = journal
        self._workload = workload
        self._shard = shard
        self._control = TopicPartition(control, shard)
        self._pace = pace
        self._metrics = metrics
        self._status = status
        self._stop = stop
        self._engine: Engine
        self._controls: Controls
        self._decoders = workload.decoders(shard)
        self._topics: dict[str, TopicPartition] = {}
        self._replay_to: dict[TopicPartition, int] = {}
        self._replayed = False
        self._reading: set[TopicPartition] = set()
        self._uncommitted = 0
        self._last_commit = time.monotonic()
        self._steps: list[float] = []
        self._fetched_at = 0.0
        self._charged_at: float | None = None

    # Taking over

    async def open(self, *, given_up: tuple[int, Command] | None = None) -> None:
        """Take the books over and find the place in every topic.

        Parameters
        ----------
        given_up
            The `mark-exhausted` command, with its offset, that allows going on after a rollback.

        Raises
        ------
        UnreadableState, StateRolledBack, RecordsLost, BrokerError, ConfigError
            See `Journal.open`, `Engine.load`.
        """
        began = time.monotonic()
        status = self._status
        status.state, status.opened_at = State.OPENING, time.time()
        restored = await self._journal.open(after_rollback=given_up is not None)
        self._metrics.restored(time.monotonic() - began)
        self._engine = self._workload.engine(self._shard, restored.noise_key)
        self._engine.load(restored.records, restored.progress)
        self._topics = {topic: TopicPartition(topic, self._shard) for topic in self._workload.topics}
        doing = f"shard {self._shard}: finding the place in the topics"
        offsets = await spans(self._cluster, [*self._topics.values(), self._control], doing)
        self._controls = self._control_position(restored, given_up, offsets[self._control][1])
        if given_up is not None:
            self._engine.mark_exhausted(restored.last_event)
            self._reply(given_up[1], "every dataset of the shard is marked exhausted")
        status.views = {view.dataset: view for view in self._engine.views()}
        self._metrics.baseline(self._shard, status.views.values())
        await self._find_places(offsets)
        await self._commit()
        self._resume()
        status.state = State.REPLAYING
        self._metrics.taken_over(time.monotonic() - began)
        log.info(
            "event=shard_opened shard=%d records=%d seconds=%.3f key=%s",
            self._shard,
            len(restored.records),
            time.monotonic() - began,
            self._journal.key_id,
        )

    @staticmethod
    def _control_position(restored: Restored, given_up: tuple[int, Command] | None, end: int) -> Controls:
        if given_up is not None:
            return Controls(given_up[0] + 1)
        if restored.control_next is not None:
            return Controls(restored.control_next, restored.control_ahead)
        # Never read: commands older than the books are none of theirs.
        return Controls(end)

    async def _find_places(self, offsets: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Seek every topic to where the state says, and note how far a previous owner can have read."""
        for topic, place in self._topics.items():
            first, end = offsets[place]
            offset = self._engine.next_offset(topic)
            if offset is None:
                offset = first if self._pace.start_at == "earliest" else end
                self._engine.begin(topic, offset)
            if not first <= offset <= end:
                await self._await_acceptance(topic, offset, first, end)
                offset = self._engine.next_offset(topic) or first
            self._consumer.seek(place, offset)
            # Pausing is a barrier: of a topic that is paused nothing was read beyond the state.
            if not self._engine.paused(topic):
                self._replay_to[place] = end
        control_next, _ = self._controls.position
        self._consumer.seek(self._control, max(control_next, offsets[self._control][0]))

    async def _await_acceptance(self, topic: str, wanted: int, first: int, end: int) -> None:
        """Wait for `accept-loss`: records between the state and the topic are gone, and that must be loud."""
        error = RecordsLost(
            f"shard {self._shard}: records of query topic {topic!r} from offset {wanted} are gone, it "
            f"now holds {first} "
            f"to {end}: retention or deletion took them, or the topic was made anew. The shard waits; "
            "'stream-svt "
            "control accept-loss' goes on, closing its open runs at their full price"
        )
        self._status.state, self._status.reason = State.LOST, str(error)
        log.critical("event=records_lost shard=%d error=%r", self._shard, str(error))
        self._metrics.failed(self._shard, "records_lost")
        offset, command = await self.await_command(Action.ACCEPT_LOSS, self._controls)
        self._engine.accept_loss(topic, first)
        self._controls.done(offset)
        self._reply(command, f"reading of {topic} goes on at offset {first}")
        self._status.state, self._status.reason = State.OPENING, ""
        log.warning("event=loss_accepted shard=%d topic=%s offset=%d", self._shard, topic, first)

    async def await_command(self, action: Action, controls: Controls) -> tuple[int, Command]:
        """Read only the control partition until a command of this kind comes.

        Raises
        ------
        Stopped
            The shard was told to stop.
        """
        consumer = self._consumer
        consumer.seek(self._control, controls.position[0])
        consumer.resume(self._control)
        try:
            while (found := controls.first(action)) is None:
                records = await self._race(consumer.getmany(self._control, timeout_ms=1000))
                controls.add(records.get(self._control, []))
                self._status.beat = time.monotonic()
        finally:
            if self._control in consumer.assignment():
                consumer.pause(self._control)
        return found

    def _reply(self, command: Command, message: str) -> None:
        self._engine.reply(command.id, command.action.value, command.dataset, accepted=True, message=message)

    def _resume(self) -> None:
        """Read what no command has stopped."""
        wanted = {place for topic, place in self._topics.items() if not self._engine.paused(topic)}
        wanted.add(self._control)
        self._consumer.resume(*(wanted - self._reading))
        if stopped := self._reading - wanted:
            self._consumer.pause(*stopped)
        self._reading = wanted

    # The loop

    async def run(self) -> None:
        """Read, step and commit until stopped; then publish what is charged."""
        await self._barrier()
        while not self._stop.is_set():
            try:
                records = await self._race(
                    self._consumer.getmany(
                        *self._reading,
                        timeout_ms=int(1000 * self._patience()),
                        max_records=self._pace.max_records,
                    )
                )
            except OffsetOutOfRangeError as error:
                raise RecordsLost(
                    f"shard {self._shard}: offsets are out of range on "
                    f"{', '.join(sorted(p.topic for p in error.args[0]))}"
                ) from error
            except Stopped:
                break
            self._fetched_at = time.monotonic()
            await self._process(records)
            await self._barrier()
            if self._uncommitted and self._commit_is_due():
                await self._commit()
            elif not records and self._journal.pending:
                await self._publish()
            self._observe()
            await asyncio.sleep(0)  # buffered records come without a pause, and heartbeats need the loop
        await self._hand_over()

    async def _race(self, fetch: Awaitable[Any]) -> Mapping[TopicPartition, Sequence[Any]]:
        """Await a fetch or the stop signal; cancelling a fetch loses nothing, a transaction is never cancelled."""
        reading = asyncio.ensure_future(fetch)
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise Stopped
            found: Mapping[TopicPartition, Sequence[Any]] = reading.result()
            return found
        finally:
            stopping.cancel()
            reading.cancel()
            await asyncio.gather(reading, stopping, return_exceptions=True)

    def _patience(self) -> float:
        if self._journal.pending:
            return 0.0
        if not self._uncommitted:
            return IDLE_FETCH
        return min(max(self._last_commit + self._pace.interval - time.monotonic(), 0.0), IDLE_FETCH)

    async def _process(self, records: Mapping[TopicPartition, Sequence[Any]]) -> None:
        """Step the engine through what was fetched, committing where it must be durable first."""
        for place, found in records.items():
            if not found:
                continue
            if place == self._control:
                self._controls.add(found)
                self._uncommitted += 1
                continue
            batch = self._decoders[place.topic].decode(found)
            self._metrics.read(place.topic, len(found))
            while True:
                began = time.perf_counter()
                step = self._engine.step(batch)
                self._steps.append(time.perf_counter() - began)
                self._uncommitted += len(found)
                if step.done:
                    break
                if not step.durable_first:
                    raise MisuseError("the engine neither consumed a batch nor asked for a commit")
                await self._commit()
            if step.urgent or step.durable_first:
                await self._commit()

    def _commit_is_due(self) -> bool:
        return (
            self._journal.pending > 0
            or self._uncommitted >= self._pace.max_records
            or time.monotonic() - self._last_commit >= self._pace.interval
        )

    async def _barrier(self) -> None:
        """Carry out what waits for a barrier: commands, and the configured specification after the replay."""
        self._status.beat = time.monotonic()
        if not self._replayed:
            await self._finish_replay()
        due = self._controls.due(replayed=self._replayed)
        if not due:
            return
        await self._commit()
        rejects: list[tuple[str, int, str]] = []
        for offset, command in due:
            if isinstance(command, str):
                rejects.append((self._control.topic, offset, command))
            else:
                log.info(
                    "event=command shard=%d action=%s offset=%d", self._shard, command.action.value, offset
                )
                self._engine.apply(command)
            self._controls.done(offset)
        await self._commit(rejects)
        self._resume()

    async def _finish_replay(self) -> None:
        for place, end in self._replay_to.items():
            if await self._consumer.position(place) < end:
                return
        await self._commit()
        try:
            self._engine.reload(self._workload.spec)
        except ConfigError as error:
            raise ConfigError(error.problems, "the configuration against the stored state") from error
        for topic, place in self._topics.items():
            self._engine.begin(topic, await self._consumer.position(place))
        await self._commit()
        self._resume()
        self._replayed = True
        self._status.state = State.RUNNING
        log.info("event=shard_replayed shard=%d", self._shard)

    # Writing

    async def _commit(self, rejects: Sequence[tuple[str, int, str]] = ()) -> None:
        began = time.monotonic()
        commit = self._engine.take_commit()
        commit.rejects = [*commit.rejects, *rejects]
        self._journal.set_control(*self._controls.position)
        await self._journal.commit(commit)
        self._engine.committed()
        # From here on everything in the commit is durable, and only now may anything of it be shown.
        now = time.monotonic()
        self._status.views.update({view.dataset: view for view in commit.views})
        self._metrics.committed(self._shard, commit, now - began, self._steps)
        self._published(now)
        if commit.events:
            self._charged_at = self._fetched_at or began
        self._steps = []
        self._uncommitted = 0
        self._last_commit = now
        self._status.committed_at = time.time()
        self._status.offsets = {
            topic: offset for topic in self._topics if (offset := self._engine.next_offset(topic)) is not None
        }

    async def _publish(self) -> None:
        began = time.monotonic()
        await self._journal.flush()
        self._metrics.flushed(time.monotonic() - began)
        self._published(time.monotonic())

    def _published(self, now: float) -> None:
        self._metrics.published(len(self._journal.published))
        if self._journal.published and self._charged_at is not None:
            self._metrics.alert_latency(now - self._charged_at)
            self._charged_at = None

    def _observe(self) -> None:
        status = self._status
        status.beat = time.monotonic()
        status.key_id, status.state_records = self._journal.key_id, self._journal.live_records
        status.sequence = self._journal.sequence
        for topic, place in self._topics.items():
            high = self._consumer.highwater(place)
            if high is not None and topic in status.offsets:
                status.lag[topic] = max(high - status.offsets[topic], 0)

    async def _hand_over(self) -> None:
        """Store positions and publish what is charged, so that the next owner has nothing to repeat."""
        if self._uncommitted:
            await self._commit()
        while self._journal.pending:
            await self._publish()
