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
from operator import attrgetter

from stream_svt.errors import ConfigError, TimestampAhead
from stream_svt.monitor.commands import Command
from stream_svt.monitor.dataset_account import DatasetAccount
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.spec_change import changing_spec, check_spec, close_removed
from stream_svt.protocol.committer import Committer, SessionParts
from stream_svt.protocol.controls import Gate
from stream_svt.protocol.ports import Decoder, Record, Stopped
from stream_svt.protocol.shard_states import Cause, Signal
from stream_svt.protocol.takeover import Takeover

log = logging.getLogger(__name__)

IDLE_FETCH = 2.0
"""Seconds a fetch waits where nothing presses: bounds how late a new configuration or the watchdog is served."""

FARTHEST_AHEAD = 600.0
"""Seconds that a query may be stamped ahead of this worker's clock, where durations run on timestamps."""

IDLE_MARGIN = 3600.0
"""Seconds by which time lags for a monitor that has read all of its topic: a record that a transaction hides still, or
that a broker whose clock is slow writes, must not be late."""

_TIMESTAMP = attrgetter("timestamp")


class ShardSession:
    """Runs a shard until told to stop.

    With a cadence every transaction begins at a tick, a multiple of the cadence since the session began, one fetch
    is processed between two ticks, and a tick without news has its transaction, too: when something becomes
    visible tells nothing of how long the work for it took, as long as the work fits between two ticks. How long the
    engine took is then not reported either.
    """

    def __init__(self, parts: SessionParts) -> None:
        self._parts = parts
        self._committer = Committer(parts)
        self._shard = parts.shard
        self._feed = parts.feed
        self._journal = parts.journal
        self._workload = parts.workload
        self._policy = parts.policy
        self._clock = parts.clock
        self._status = parts.status
        self._decoders: Mapping[str, Decoder] = {}
        self._replay_to: dict[str, int] = {}
        self._replayed = False
        self._reading: set[str] = set()

    @property
    def _engine(self) -> Engine:
        return self._committer.engine

    async def open(self) -> None:
        """Take the state over; see `Takeover.run` for what is raised."""
        await self._open(Takeover(self._parts, self._committer))

    async def _open(self, takeover: Takeover) -> None:
        self._status.signal(Signal.OPENED)
        self._decoders, self._replay_to = await takeover.run()
        self._commands = self._committer.commands
        self._resume()
        self._status.signal(Signal.TAKEN_OVER, Cause.NONE)

    def end(self) -> list[DatasetAccount]:
        """Let go of what the session held in memory, however it ended; nothing is written.

        Returns:
            The ledgers, for the caller to free little by little.
        """
        return self._engine.discard() if hasattr(self._committer, "engine") else []

    def _resume(self) -> None:
        """Read the topics of the monitors in use."""
        wanted = {*self._engine.topics()}.intersection(self._committer.topics) | {self._parts.control}
        self._feed.resume(wanted - self._reading)
        self._feed.pause(self._reading - wanted)
        self._reading = wanted

    async def run(self) -> None:
        """Read, step and commit until stopped; then publish what is charged.

        Raises:
            ApplicationClosed: A command closed it.
        """
        if not self._commands.controls.closing:
            await self._barrier()
        while not self._feed.stopping:
            try:
                if self._feed.held:
                    await self._stand_by()
                    continue
                if self._commands.controls.closing:
                    await self._go_on()
                    continue
                if self._commands.controls.closed:
                    await self._committer.end_closed()
                records = await self._feed.fetch(self._reading, self._patience(), self._policy.max_records)
            except Stopped:
                break
            self._committer.fetched_at = self._clock.now()
            await self._process(records)
            await self._barrier()
            if self._commands.controls.closed:
                continue
            if self._policy.cadence is not None or self._committer.is_due:
                await self._committer.commit()
            elif not records and self._journal.pending:
                await self._committer.publish()
            self._observe()
        await self._committer.hand_over()

    def _patience(self) -> float:
        if self._journal.pending or self._policy.cadence is not None or self._may_go_on():
            return 0.0
        return min(self._committer.seconds_left, IDLE_FETCH) if self._committer.uncommitted else IDLE_FETCH

    async def _process(self, records: Mapping[str, Sequence[Record]]) -> None:
        """Step the engine through what was fetched; where the shard is to be handed over, the rest is read again."""
        interrupted = False
        for topic, fetched in records.items():
            if topic == self._parts.control:
                self._commands.add(fetched)
            elif fetched and interrupted:
                self._feed.seek(topic, fetched[0].offset)
            elif fetched:
                interrupted = not await self._step_through(topic, fetched)

    async def _step_through(self, topic: str, fetched: Sequence[Record]) -> bool:
        """Step the engine through records of a topic, committing where it must be durable first.

        A backlog can take many commits. Where the shard is to be handed over meanwhile, the rest is read again.

        Returns:
            Whether all of them were stepped.
        """
        committer = self._committer
        await committer.turn()
        found, ahead = self._not_ahead(topic, fetched)
        batch = self._decoders[topic].decode(found)
        self._parts.observer.read(topic, len(found))
        if batch.end > committer.read_to.get(topic, 0):
            committer.read_to[topic] = batch.end
            await committer.commit()
        committer.stepped += len(found)
        while True:
            await committer.turn()
            began = self._clock.now()
            step = self._engine.step(batch)
            if self._policy.cadence is None:
                committer.steps.append(self._clock.now() - began)
            if step.done:
                break
            if step.durable_first:
                await committer.commit()
                if self._feed.stopping or self._feed.held:
                    self._feed.seek(topic, self._engine.next_offset(topic) or found[0].offset)
                    return False
                committer.stepped += len(found)  # of which some are still to be looked at
        if ahead is not None or (self._policy.cadence is None and step.urgent):
            await committer.commit()
        if ahead is not None:
            raise ahead
        return True

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

    async def _barrier(self) -> None:
        """Carry out what waits for a barrier: commands, and the configured specification after the replay."""
        self._status.beat = self._clock.now()
        if not self._replayed:
            await self._finish_replay()
        if self._may_go_on():
            await self._go_on()
        gate = Gate.OPEN if self._replayed else Gate.REPLAY
        while not self._commands.controls.closed and (command := await self._commands.next(gate)):
            await self._committer.commit()
            await self._carry_out(command)

    async def _carry_out(self, command: Command) -> None:
        """Carry out a command and commit: its number becomes durable with what it does."""
        self._commands.carry_out(command)
        if command.for_all:
            await self._commands.go_on()
        await self._committer.commit()

    def _may_go_on(self) -> bool:
        return self._commands.may_go_on(replayed=self._replayed)

    async def _go_on(self) -> None:
        """Carry out and commit the next slice of a command to all datasets."""
        await self._commands.go_on()
        await self._committer.commit()

    async def _finish_replay(self) -> None:
        """Go over to the configured specification, once everything is replayed."""
        committer, engine = self._committer, self._engine
        for topic, end in self._replay_to.items():
            if await self._feed.position(topic) < end:
                return
        await committer.commit()
        unread = {
            topic
            for topic in set(engine.topics()).difference(committer.topics)
            if (engine.next_offset(topic) or 0) < committer.read_to.get(topic, 0)
        }
        spec = self._workload.spec
        try:
            check_spec(engine, spec)
        except ConfigError as error:
            raise ConfigError(
                error.problems, "the configuration against the stored state", error.more
            ) from error
        await committer.turn()
        for _ in close_removed(engine, spec, unread):
            await committer.commit_or_give_way()
        for _ in changing_spec(engine, spec):
            await committer.turn()
        self._decoders = self._workload.decoders(self._shard, engine.datasets)
        for topic in committer.topics:
            engine.begin(topic, await self._feed.position(topic))
        engine.adopt(self._workload.version)
        for _ in engine.retirement.retire():
            await committer.commit_or_give_way()
        if engine.datasets.patterns:
            ends = {topic: end for topic, (_, end) in (await self._feed.spans(committer.topics)).items()}
            engine.pass_periods(ends, int((self._clock.epoch() - IDLE_MARGIN) * 1000))
        # Not before the configuration is accepted, and what it takes away is closed.
        topics = engine.topics()
        for topic in committer.read_to.keys() - topics:
            del committer.read_to[topic]
        await committer.commit()
        self._resume()
        self._replayed = True
        self._status.signal(Signal.REPLAYED)
        log.info("event=shard_replayed shard=%d", self._shard)

    def _observe(self) -> None:
        status = self._status
        status.beat = self._clock.now()
        status.key_id, status.state_records = self._journal.key_id, self._journal.live_records
        status.sequence = self._journal.meta.sequence
        for topic in self._committer.topics:
            high = self._feed.high_water(topic)
            if high is not None and topic in status.offsets:
                status.lag[topic] = max(high - status.offsets[topic], 0)

    async def _stand_by(self) -> None:
        """Wait for the end of a rebalance with nothing left to repeat, then make sure that nobody else took over."""
        await self._committer.hand_over()
        self._observe()
        await self._feed.settled()
        await self._journal.prove()
        self._status.beat = self._clock.now()
