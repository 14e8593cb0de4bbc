"""One session of a shard: it takes the state over, steps the engine, commits, and hands over.

The loop reads, steps the engine and commits; it decides nothing about privacy. What it must get right is
order:

- a batch is stepped again only after the commit the engine asked for (`durable_first`);
- commands and a changed specification take effect between two commits, and after a takeover only once everything
  the previous owner could have read has been replayed;
- after an error nothing in memory is trusted: the session ends and the next one reads the state.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from stream_svt.errors import ConfigError, ConfigurationBehind, Problem, RecordsLost, TimestampAhead
from stream_svt.monitor import operations
from stream_svt.monitor.commands import Command
from stream_svt.monitor.dataset_account import DatasetAccount
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.projection import Totals
from stream_svt.monitor.released import DatasetView
from stream_svt.monitor.retirement import gone
from stream_svt.monitor.snapshot import ProgressRecord, from_bytes
from stream_svt.monitor.spec_change import changing_spec, check_spec, close_removed
from stream_svt.protocol.command_handler import CommandHandler
from stream_svt.protocol.controls import (
    Controls,
    Gate,
    Verify,
    trust_the_topic,
)
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.ports import Clock, Decoder, Feed, Observer, Record, Stopped, Workload
from stream_svt.protocol.shard_states import Cause, Signal, State, advance

log = logging.getLogger(__name__)

IDLE_FETCH = 0.5
"""Seconds a fetch waits where nothing presses: bounds how late a new configuration or the watchdog is served."""

FARTHEST_AHEAD = 600.0
"""Seconds that a query may be stamped ahead of this worker's clock, where durations run on timestamps."""

IDLE_MARGIN = 3600.0
"""Seconds by which time lags for a monitor that has read all of its topic: a record that a transaction hides still, or
that a broker whose clock is slow writes, must not be late."""

_TIMESTAMP = attrgetter("timestamp")

READ_AHEAD = 2
"""How far beyond a commit records are stepped, in multiples of the most records of a fetch: what a takeover replays."""

COMMAND_FETCH = 1.0
"""Seconds a fetch waits while only a command can help."""


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """How often a shard commits.

    Attributes:
        interval: Seconds between commits of batches without released outcomes.
        max_records: Records after which such a commit is due at once, and most a fetch returns.
        start_at: "earliest" or "latest": where a topic is read from that was never read.
        cadence: Seconds between transactions where they are to happen at fixed times, None where what is
            charged is published as soon as it can be. See `ShardSession`.
    """

    interval: float = 2.0
    max_records: int = 20_000
    start_at: str = "earliest"
    cadence: float | None = None


@dataclass(slots=True)
class ShardStatus:
    """What may be said about a shard, all of it committed or public.

    ``outbox`` is the number of events that are charged and not yet published. ``views`` are those of the datasets
    that are shown one by one; ``totals`` of all, None until the shard's state was read. ``reason`` says in words, and
    ``cause`` for machines, why the shard is not open.
    """

    shard: int
    state: State = State.OPENING
    reason: str = ""
    cause: Cause = Cause.NONE
    key_id: str = ""
    sequence: int = 0
    state_records: int = 0
    outbox: int = 0
    offsets: dict[str, int] = field(default_factory=dict)
    lag: dict[str, int] = field(default_factory=dict)
    views: dict[str, DatasetView] = field(default_factory=dict)
    totals: Totals | None = None
    opened_at: float = 0.0
    committed_at: float = 0.0
    beat: float = 0.0

    def signal(self, signal: Signal, cause: Cause | None = None, reason: str = "") -> None:
        """Move to the state that follows; ``cause`` and ``reason`` stay as they are where no cause is given."""
        self.state = advance(self.state, signal)
        if cause is not None:
            self.cause, self.reason = cause, reason


class ShardSession:
    """Runs a shard until told to stop.

    With a cadence every transaction begins at a tick, a multiple of the cadence since the session began, one fetch
    is processed between two ticks, and a tick without news has its transaction, too: when something becomes
    visible tells nothing of how long the work for it took, as long as the work fits between two ticks. How long the
    engine took is then not reported either.

    Args:
        feed: The shard's queries and commands; every topic is paused.
        journal: The shard's journal, not opened.
        workload: What to run.
        control: Name of the control topic.
        pace, clock: How often to commit, and by which clock.
        observer, status: Where to report.
        verify: Tells which commands to hear.
    """

    def __init__(
        self,
        feed: Feed,
        journal: Journal,
        workload: Workload,
        *,
        shard: int,
        control: str,
        pace: CommitPolicy,
        clock: Clock,
        observer: Observer,
        status: ShardStatus,
        verify: Verify = trust_the_topic,
    ) -> None:
        self._feed = feed
        self._journal = journal
        self._workload = workload
        self._shard = shard
        self._control = control
        self._verify = verify
        self._pace = pace
        self._clock = clock
        self._now = clock.now
        self._observer = observer
        self._status = status
        self._engine: Engine
        self._commands: CommandHandler
        self._decoders: Mapping[str, Decoder] = {}
        self._topics: tuple[str, ...] = ()
        self._replay_to: dict[str, int] = {}
        self._read_to: dict[str, int] = {}
        self._replayed = False
        self._reading: set[str] = set()
        self._stepped = 0
        self._last_commit = self._now()
        self._steps: list[float] = []
        self._fetched_at = 0.0
        self._charged_at: float | None = None
        self._origin = clock.now()

    # Taking over

    async def open(self) -> None:
        """Take the state over and find the place in every topic.

        Raises:
            UnreadableState, StateRolledBack, ApplicationClosed, RecordsLost, BrokerError, ConfigError: See
                `Journal.open`, `Engine.loading`.
        """
        began = self._now()
        status = self._status
        status.signal(Signal.OPENED)
        status.opened_at = self._clock.epoch()
        restored = await self._journal.open()
        self._observer.restored(self._now() - began)
        self._read_to = dict(restored.read_to)
        if restored.commands.closed:
            await self._end_closed()
        controls = self._controls = Controls(restored.commands, restored.state_id, self._verify)
        held = gone(self._workload.spec, restored.records, restored.progress)
        for _ in self._workload.gather(self._shard, held):
            await self._turn()
        engine = self._engine = self._workload.engine(self._shard, restored.noise_key)
        self._commands = CommandHandler(
            self._shard, self._control, engine, controls, self._clock, self._observer
        )
        while self._journal.backlog:
            await self._publish()  # a commit comes after everything that was charged before
        if restored.progress is not None:
            self._compare_versions(restored.progress)
        for _ in self._engine.loading(restored.records, restored.progress):
            await self._turn()
        if not self._controls.closing:
            declared, may_retire = self._engine.number, self._workload.version[0] > 0
            self._engine.retirement.check(declared, self._shard, may_retire=may_retire)
        if restored.progress is None:
            self._engine.begin_state(self._workload.partitions, self._journal.cluster)
        self._topics = self._workload.topics
        self._decoders = self._workload.decoders(self._shard, self._engine.datasets, self._engine.readers())
        offsets = await self._feed.spans([*self._topics, self._control])
        self._feed.seek(self._control, self._controls.begin_at(*offsets[self._control]))
        for _ in self._engine.close_incompatible():
            await self._commit()
        for _ in self._engine.retirement.close_runs():
            await self._commit_or_give_way()
        for _ in self._engine.projection.sum_up():
            await self._turn()
        status.views = {view.dataset: view for view in self._engine.projection.shown()}
        status.totals = self._engine.projection.totals()
        if self._controls.closing:  # nothing is read again, for nothing is tested any more
            for _ in self._engine.retire():
                await self._commit_or_give_way()
        else:
            await self._find_places(offsets)
        await self._commit()
        self._resume()
        status.signal(Signal.TAKEN_OVER, Cause.NONE)
        self._observer.taken_over(self._now() - began)
        log.info(
            "event=shard_opened shard=%d records=%d seconds=%.3f key=%s",
            self._shard,
            len(restored.records),
            self._now() - began,
            self._journal.key_id,
        )

    def end(self) -> list[DatasetAccount]:
        """Let go of what the session held in memory, however it ended; nothing is written.

        Returns the ledgers, for the caller to free little by little.
        """
        return self._engine.discard() if hasattr(self, "_engine") else []

    def _compare_versions(self, progress: bytes) -> None:
        """Refuse to go on with an older configuration than the shard has adopted, or with another of the same number.

        Raises:
            ConfigurationBehind: The worker has not read the newer one yet.
            ConfigError: Two versions have one number.
        """
        adopted, digest = from_bytes(ProgressRecord, progress, key="meta").configuration
        number, wanted = self._workload.version
        if number < adopted:
            raise ConfigurationBehind(
                f"shard {self._shard} has adopted version {adopted} of the configuration, and this worker knows version"
                f" {number}: it waits for the newer one. Where the configuration topic was made anew, number the next "
                f"one above it: 'stream-svt apply -c FILE --above {adopted}'"
            )
        if number == adopted and digest != wanted:
            message = (
                f"the shard has adopted another version {number} than the configuration topic holds: the topic was "
                f"made anew, or changed. Number the next one above it: 'stream-svt apply -c FILE --above {adopted}'"
            )
            raise ConfigError([Problem(0, "", message)], "the configuration against the stored state")

    async def _find_places(self, offsets: Mapping[str, tuple[int, int]]) -> None:
        """Seek every topic to where the state says, and note how far a previous owner can have stepped."""
        places: dict[str, int] = {}
        for topic in self._topics:
            first, end = offsets[topic]
            offset = self._engine.next_offset(topic)
            if offset is None:
                offset = first if self._pace.start_at == "earliest" else end
                if topic not in self._engine.topics():
                    # Its monitors are added after the replay, and read it from here.
                    self._feed.seek(topic, offset)
                    continue
                self._engine.begin(topic, offset)
            places[topic] = offset
        lost = {
            topic: offset
            for topic, offset in places.items()
            if not offsets[topic][0] <= offset <= offsets[topic][1]
        }
        owed = dict(self._read_to)
        if lost:
            places |= await self._await_acceptance(lost, offsets)
        for topic, offset in places.items():
            self._feed.seek(topic, offset)
            read_to = min(owed.get(topic, 0), offsets[topic][1])
            if offset < read_to and topic not in lost:  # what was lost is paid for, and nothing of it owed
                self._replay_to[topic] = read_to

    async def _await_acceptance(
        self, lost: Mapping[str, int], offsets: Mapping[str, tuple[int, int]]
    ) -> dict[str, int]:
        """Wait for an `accept-loss` for each topic: records between the state and it are gone, and that must be loud.

        Returns where each of them is read on.
        """
        left = dict(lost)
        while left:
            self._wait_for_acceptance(left, offsets)
            command = await self._await_command()
            self._status.signal(Signal.OPENED, Cause.NONE)
            if left.get(command.topic) == command.offset:
                del left[command.topic]
                await self._accept_loss(command)
            else:
                self._commands.carry_out(command)
            await self._commit()
            while self._journal.pending:  # nothing else may come for long
                await self._publish()
        return {topic: self._engine.next_offset(topic) or 0 for topic in lost}

    def _wait_for_acceptance(self, lost: Mapping[str, int], offsets: Mapping[str, tuple[int, int]]) -> None:
        gaps = [
            f"from offset {wanted} of {topic!r}, which now holds {offsets[topic][0]} to {offsets[topic][1]}"
            for topic, wanted in lost.items()
        ]
        ways = [
            f"'stream-svt control accept-loss -c FILE --shard {self._shard} --topic {topic} --offset {wanted}'"
            for topic, wanted in lost.items()
        ]
        error = RecordsLost(
            f"shard {self._shard}: records of query topics are gone, {'; '.join(gaps)}: retention or deletion took "
            f"them, or the topic was made anew. The shard waits; {', then '.join(ways)} goes on, closing the open "
            "runs there at their full price"
        )
        self._status.signal(Signal.PARKED, Cause.RECORDS_LOST, str(error))
        log.critical(
            "event=shard_parked shard=%d cause=%s error=%r", self._shard, Cause.RECORDS_LOST, str(error)
        )
        self._observer.failed(self._shard, "parked")

    async def _accept_loss(self, command: Command) -> None:
        topic = command.topic
        first, end = (await self._feed.spans([topic]))[topic]  # retention goes on meanwhile
        for _ in operations.close_lost(self._engine, topic):
            await self._commit_or_give_way()
        operations.pass_over(self._engine, topic, first, end)
        self._read_to.pop(topic, None)
        log.warning("event=loss_accepted shard=%d topic=%s offset=%d", self._shard, topic, first)
        self._commands.use_up(command, accepted=True)
        self._engine.accounts.reply(
            command, accepted=True, message=f"reading goes on: {topic} at offset {first}"
        )

    async def _await_command(self) -> Command:
        """Read only the control partition until an `accept-loss` comes that names the next number.

        Raises:
            Stopped: The shard was told to stop.
        """
        feed = self._feed
        feed.resume([self._control])
        try:
            command = self._controls.ready(Gate.LOSS)
            while command is None:
                if not self._commands.unread:
                    records = await feed.fetch([self._control], COMMAND_FETCH)
                    self._commands.add(records.get(self._control, ()))
                command = await self._commands.next(Gate.LOSS)
                self._status.beat = self._now()
        finally:
            feed.pause([self._control])
        return command

    def _resume(self) -> None:
        """Read the topics of the monitors in use."""
        wanted = {*self._engine.topics()}.intersection(self._topics) | {self._control}
        self._feed.resume(wanted - self._reading)
        self._feed.pause(self._reading - wanted)
        self._reading = wanted

    # The loop

    async def run(self) -> None:
        """Read, step and commit until stopped; then publish what is charged.

        Raises:
            ApplicationClosed: A command closed it.
        """
        if not self._controls.closing:
            await self._barrier()
        while not self._feed.stopping:
            try:
                if self._feed.held:
                    await self._stand_by()
                    continue
                if self._controls.closing:
                    await self._go_on()
                    continue
                if self._controls.closed:
                    await self._end_closed()
                records = await self._feed.fetch(self._reading, self._patience(), self._pace.max_records)
            except Stopped:
                break
            self._fetched_at = self._now()
            await self._process(records)
            await self._barrier()
            if self._controls.closed:
                continue
            if self._pace.cadence is not None or (self._uncommitted and self._commit_is_due()):
                await self._commit()
            elif not records and self._journal.pending:
                await self._publish()
            self._observe()
        await self._hand_over()

    def _patience(self) -> float:
        if self._journal.pending or self._pace.cadence is not None or self._may_go_on():
            return 0.0
        if not self._uncommitted:
            return IDLE_FETCH
        return min(max(self._last_commit + self._pace.interval - self._now(), 0.0), IDLE_FETCH)

    async def _process(self, records: Mapping[str, Sequence[Record]]) -> None:
        """Step the engine through what was fetched, committing where it must be durable first.

        A backlog can take many commits. Where the shard is to be handed over meanwhile, the rest is read again.
        """
        interrupted = False
        for topic, fetched in records.items():
            if not fetched:
                continue
            if topic == self._control:
                self._commands.add(fetched)
                continue
            if interrupted:
                self._feed.seek(topic, fetched[0].offset)
                continue
            await self._turn()
            found, ahead = self._not_ahead(topic, fetched)
            batch = self._decoders[topic].decode(found)
            self._observer.read(topic, len(found))
            if batch.end > self._read_to.get(topic, 0):
                self._read_to[topic] = batch.end
                await self._commit()
            self._stepped += len(found)
            while True:
                await self._turn()
                began = self._now()
                step = self._engine.step(batch)
                if self._pace.cadence is None:
                    self._steps.append(self._now() - began)
                if step.done:
                    break
                if step.durable_first:
                    await self._commit()
                    interrupted = self._feed.stopping or self._feed.held
                    if interrupted:
                        self._feed.seek(topic, self._engine.next_offset(topic) or found[0].offset)
                        break
                    self._stepped += len(found)  # of which some are still to be looked at
            if ahead is not None and not interrupted:
                await self._commit()
                raise ahead
            if self._pace.cadence is None and step.urgent:
                await self._commit()

    def _not_ahead(
        self, topic: str, found: Sequence[Record]
    ) -> tuple[Sequence[Record], TimestampAhead | None]:
        """Return the records before the first that is stamped too far ahead, and the error where there is one.

        Raises:
            TimestampAhead: It is the first record.
        """
        latest = int((self._clock.epoch() + FARTHEST_AHEAD) * 1000)
        if not self._engine.goes_by_timestamps(topic) or max(map(_TIMESTAMP, found)) <= latest:
            return found, None
        place = next(place for place, record in enumerate(found) if record.timestamp > latest)
        record = found[place]
        error = TimestampAhead(
            f"shard {self._shard}: the record at offset {record.offset} of {topic!r} is stamped "
            f"{(record.timestamp - latest) / 1000 + FARTHEST_AHEAD:.0f} s ahead of this worker's clock, more than "
            f"{FARTHEST_AHEAD:.0f} s: tested, it would end mutes, runs and periods too early. The shard waits until "
            "the clock has caught up. Where the broker's clock was wrong, set it, delete the records up to the last of "
            "that kind (kafka-delete-records), and accept their loss with 'stream-svt control accept-loss'",
            record.timestamp / 1000 - FARTHEST_AHEAD,
        )
        if not place:
            raise error
        return found[:place], error

    @property
    def _uncommitted(self) -> int:
        """Number of records stepped and of commands read since the last commit."""
        return self._stepped + self._commands.taken

    def _commit_is_due(self) -> bool:
        return (
            self._journal.pending > 0
            or self._uncommitted >= self._pace.max_records
            or self._now() - self._last_commit >= self._pace.interval
        )

    async def _barrier(self) -> None:
        """Carry out what waits for a barrier: commands, and the configured specification after the replay."""
        self._status.beat = self._now()
        if not self._replayed:
            await self._finish_replay()
        if self._may_go_on():
            await self._go_on()
        gate = Gate.OPEN if self._replayed else Gate.REPLAY
        while not self._controls.closed and (command := await self._commands.next(gate)):
            await self._commit()
            await self._carry_out(command)

    async def _carry_out(self, command: Command) -> None:
        """Carry out a command and commit: its number becomes durable with what it does."""
        self._commands.carry_out(command)
        if command.for_all:
            await self._commands.go_on()
        await self._commit()

    def _may_go_on(self) -> bool:
        """Tell whether a command to all datasets is under way and need not wait for the replay."""
        return self._commands.may_go_on and (self._replayed or self._commands.acts_at_once)

    async def _go_on(self) -> None:
        """Carry out and commit the next slice of a command to all datasets."""
        await self._commands.go_on()
        await self._commit()

    async def _end_closed(self) -> None:
        """End for ever, once everything is published that was charged.

        Raises:
            ApplicationClosed: Always.
        """
        while self._journal.pending:
            await self._publish()
        raise self._journal.closed_error()

    async def _finish_replay(self) -> None:
        for topic, end in self._replay_to.items():
            if await self._feed.position(topic) < end:
                return
        await self._commit()
        unread = {
            topic
            for topic in set(self._engine.topics()).difference(self._topics)
            if (self._engine.next_offset(topic) or 0) < self._read_to.get(topic, 0)
        }
        spec = self._workload.spec
        try:
            check_spec(self._engine, spec)
        except ConfigError as error:
            raise ConfigError(
                error.problems, "the configuration against the stored state", error.more
            ) from error
        await self._turn()
        for _ in close_removed(self._engine, spec, unread):
            await self._commit_or_give_way()
        for _ in changing_spec(self._engine, spec):
            await self._turn()
        self._decoders = self._workload.decoders(self._shard, self._engine.datasets)
        for topic in self._topics:
            self._engine.begin(topic, await self._feed.position(topic))
        self._engine.adopt(self._workload.version)
        for _ in self._engine.retire():
            await self._commit_or_give_way()
        if self._engine.datasets.patterns:
            ends = {topic: end for topic, (_, end) in (await self._feed.spans(self._topics)).items()}
            self._engine.pass_periods(ends, int((self._clock.epoch() - IDLE_MARGIN) * 1000))
        # Not before the configuration is accepted, and what it takes away is closed.
        topics = self._engine.topics()
        self._read_to = {topic: end for topic, end in self._read_to.items() if topic in topics}
        await self._commit()
        self._resume()
        self._replayed = True
        self._status.signal(Signal.REPLAYED)
        log.info("event=shard_replayed shard=%d", self._shard)

    async def _turn(self) -> None:
        """Wait for the shard's turn between two pieces of work; that one was done is a sign of life."""
        self._status.beat = self._now()
        await self._clock.sleep(0)

    # Writing

    async def _tick(self) -> None:
        """Wait for the next tick where transactions have fixed times."""
        if self._pace.cadence is None:
            return
        now = self._now() - self._origin
        await self._clock.sleep(self._pace.cadence - now % self._pace.cadence)

    async def _commit(self) -> None:
        """Make durable what the engine holds; then publish what is too much for the next transaction to publish."""
        await self._turn()
        await self._tick()
        began = self._now()
        commit = self._engine.take_commit()
        self._journal.set_read_to(self._bounds())
        self._journal.set_commands(self._controls.standing)
        await self._journal.commit(commit)
        self._engine.committed()
        # From here on everything in the commit is durable, and only now may anything of it be shown.
        now = self._now()
        self._status.views.update({view.dataset: view for view in commit.views})
        self._status.totals = commit.totals
        self._observer.committed(self._shard, commit, now - began, self._steps)
        self._published(now)
        if commit.events:
            self._charged_at = self._fetched_at or began
        self._steps = []
        self._stepped = self._commands.taken = 0
        self._last_commit = now
        self._status.committed_at = self._clock.epoch()
        self._status.offsets = {
            topic: offset for topic in self._topics if (offset := self._engine.next_offset(topic)) is not None
        }
        while self._journal.backlog:
            await self._publish()

    async def _commit_or_give_way(self) -> None:
        """Commit where the next commit is full; else let others have their turn."""
        if self._engine.full:
            await self._commit()
        else:
            await self._turn()

    def _bounds(self) -> Mapping[str, int]:
        """Return how far each topic may be stepped before the next commit."""
        for topic in self._engine.topics():
            if (offset := self._engine.next_offset(topic)) is not None:
                least = offset + READ_AHEAD * self._pace.max_records
                self._read_to[topic] = max(self._read_to.get(topic, 0), least)
        return self._read_to

    async def _publish(self) -> None:
        await self._tick()
        began = self._now()
        await self._journal.flush()
        self._observer.flushed(self._now() - began)
        self._published(self._now())

    def _published(self, now: float) -> None:
        self._status.outbox = self._journal.pending
        self._observer.published(len(self._journal.published))
        if self._journal.published and self._charged_at is not None:
            self._observer.alert_latency(now - self._charged_at)
            self._charged_at = None

    def _observe(self) -> None:
        status = self._status
        status.beat = self._now()
        status.key_id, status.state_records = self._journal.key_id, self._journal.live_records
        status.sequence = self._journal.sequence
        for topic in self._topics:
            high = self._feed.high_water(topic)
            if high is not None and topic in status.offsets:
                status.lag[topic] = max(high - status.offsets[topic], 0)

    async def _stand_by(self) -> None:
        """Wait for the end of a rebalance with nothing left to repeat, then make sure that nobody else took over."""
        await self._hand_over()
        self._observe()
        await self._feed.settled()
        await self._journal.prove()
        self._status.beat = self._now()

    async def _hand_over(self) -> None:
        """Store positions and publish what is charged, so that the next owner has nothing to repeat."""
        if self._uncommitted:
            await self._commit()
        while self._journal.pending:
            await self._publish()
