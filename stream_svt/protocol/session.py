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
from collections.abc import Set as AbstractSet
from operator import attrgetter

from stream_svt.errors import ConfigError, TimestampAhead
from stream_svt.monitor.accounts import DatasetAccount
from stream_svt.monitor.commands import Command
from stream_svt.monitor.spec_change import changing_spec, check_spec, close_removed
from stream_svt.protocol.controls import Gate
from stream_svt.protocol.ports import Record, Stopped
from stream_svt.protocol.shard_states import Cause, ShardSignal
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


class ShardSession(Takeover):
    """Runs a shard until told to stop.

    With a cadence every transaction begins at a tick, a multiple of the cadence since the session began, one fetch
    is processed between two ticks, and a tick without news has its transaction, too: when something becomes
    visible tells nothing of how long the work for it took, as long as the work fits between two ticks. How long the
    engine took is then not reported either.
    """

    _replayed = False
    _reading: AbstractSet[str] = frozenset()

    async def open(self) -> None:
        """Take the state over, see `Takeover.open`, and read the topics of the monitors in use."""
        await super().open()
        self._resume()
        self.status.signal(ShardSignal.TAKEN_OVER, Cause.NONE)

    def end(self) -> list[DatasetAccount]:
        """Let go of what the session held in memory, and return the ledgers, to be freed little by little."""
        return self.engine.discard() if hasattr(self, "engine") else []

    def _resume(self) -> None:
        wanted = {*self.engine.topics()}.intersection(self.workload.topics) | {self.control}
        self.feed.resume(wanted - self._reading)
        self.feed.pause(self._reading - wanted)
        self._reading = wanted

    async def run(self) -> None:
        """Read, step and commit until stopped, or closed by a command; then publish what is charged."""
        if not self.commands.closing:
            await self._barrier()
        while not self.feed.stopping:
            try:
                if self.feed.held:
                    await self._stand_by()
                    continue
                if self.commands.closing:
                    await self._sweep()
                    continue
                if self.commands.closed:
                    await self._end_closed()
                records = await self.feed.fetch(self._reading, self._patience(), self.policy.max_records)
            except Stopped:
                break
            self._fetched_at = self.clock.now()
            await self._process(records)
            await self._barrier()
            if self.commands.closed:
                continue
            if self.policy.cadence is not None or self._is_due:
                await self._commit()
            elif not records and self.journal.pending:
                await self._publish()
            self._observe()
        await self._hand_over()

    @property
    def _is_due(self) -> bool:
        """Whether what is not committed has to be."""
        full = self._uncommitted >= self.policy.max_records
        return self._uncommitted > 0 and (self.journal.pending > 0 or full or not self._seconds_left)

    def _patience(self) -> float:
        may_sweep = self.commands.may_sweep(replayed=self._replayed)
        if self.journal.pending or self.policy.cadence is not None or may_sweep:
            return 0.0
        return min(self._seconds_left, IDLE_FETCH) if self._uncommitted else IDLE_FETCH

    async def _process(self, records: Mapping[str, Sequence[Record]]) -> None:
        """Step the engine through what was fetched; where the shard is to be handed over, the rest is read again."""
        interrupted = False
        for topic, fetched in records.items():
            if topic == self.control:
                self.commands.unread.extend(fetched)
            elif fetched and interrupted:
                self.feed.seek(topic, fetched[0].offset)
            elif fetched:
                interrupted = not await self._step_through(topic, fetched)

    async def _step_through(self, topic: str, fetched: Sequence[Record]) -> bool:
        """Step the engine through records of a topic, committing where it must be durable first.

        A backlog can take many commits. Return whether all of it was stepped: where the shard is to be handed over
        meanwhile, the rest is read again.
        """
        await self._turn()
        found, ahead = self._not_ahead(topic, fetched)
        batch = self._decoders[topic].decode(found)
        self.observer.read(topic, len(found))
        if batch.end > self._read_to.get(topic, 0):
            self._read_to[topic] = batch.end
            await self._commit()
        self._stepped += len(found)
        while True:
            await self._turn()
            began = self.clock.now()
            step = self.engine.step(batch)
            if self.policy.cadence is None:
                self._steps.append(self.clock.now() - began)
            if step.done:
                break
            if step.durable_first:
                await self._commit()
                if self.feed.stopping or self.feed.held:
                    self.feed.seek(topic, self.engine.next_offset(topic) or found[0].offset)
                    return False
                self._stepped += len(found)  # of which some are still to be looked at
        if ahead is not None or (self.policy.cadence is None and step.urgent):
            await self._commit()
        if ahead is not None:
            raise ahead
        return True

    def _not_ahead(
        self, topic: str, found: Sequence[Record]
    ) -> tuple[Sequence[Record], TimestampAhead | None]:
        """Return the records before the first that is stamped too far ahead, and the error where there is one."""
        latest = int((self.clock.epoch() + FARTHEST_AHEAD) * 1000)
        if not self.engine.goes_by_timestamps(topic) or max(map(_TIMESTAMP, found)) <= latest:
            return found, None
        place = next(place for place, record in enumerate(found) if record.timestamp > latest)
        record = found[place]
        error = TimestampAhead(
            f"shard {self.shard}: the record at offset {record.offset} of {topic!r} is stamped "
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
        self.status.beat = self.clock.now()
        if not self._replayed:
            await self._finish_replay()
        if self.commands.may_sweep(replayed=self._replayed):
            await self._sweep()
        gate = Gate.OPEN if self._replayed else Gate.REPLAY
        while not self.commands.closed and (command := await self.commands.next(gate)):
            await self._commit()
            await self._carry_out(command)

    async def _carry_out(self, command: Command) -> None:
        """Carry out a command and commit: its number becomes durable with what it does."""
        self.commands.carry_out(command)
        await self._sweep()

    async def _sweep(self) -> None:
        """Carry out the next slice of a command to all datasets, where one is under way, and commit."""
        await self.commands.sweep()
        await self._commit()

    async def _finish_replay(self) -> None:
        """Go over to the configured specification, once everything is replayed."""
        engine, topics = self.engine, self.workload.topics
        for topic, end in self._replay_to.items():
            if await self.feed.position(topic) < end:
                return
        await self._commit()
        unread = {
            topic
            for topic in set(engine.topics()).difference(topics)
            if (engine.next_offset(topic) or 0) < self._read_to.get(topic, 0)
        }
        spec = self.workload.spec
        try:
            check_spec(engine, spec)
        except ConfigError as error:
            raise ConfigError(
                error.problems, "the configuration against the stored state", error.more
            ) from error
        await self._turn()
        await self._in_slices(close_removed(engine, spec, unread), commits=True)
        await self._in_slices(changing_spec(engine, spec))
        self._decoders = self.workload.decoders(self.shard, engine.datasets)
        for topic in topics:
            engine.begin(topic, await self.feed.position(topic))
        engine.adopt(self.workload.version)
        await self._in_slices(engine.retirement.retire(), commits=True)
        if engine.datasets.patterns:
            ends = {topic: end for topic, (_, end) in (await self.feed.spans(topics)).items()}
            engine.pass_periods(ends, int((self.clock.epoch() - IDLE_MARGIN) * 1000))
        # Not before the configuration is accepted, and what it takes away is closed.
        for topic in self._read_to.keys() - engine.topics():
            del self._read_to[topic]
        await self._commit()
        self._resume()
        self._replayed = True
        self.status.signal(ShardSignal.REPLAYED)
        log.info("event=shard_replayed shard=%d", self.shard)

    def _observe(self) -> None:
        status = self.status
        status.beat = self.clock.now()
        status.key_id, status.state_records = self.journal.key_id, len(self.journal.held.macs)
        status.sequence = self.journal.meta.sequence
        for topic in self.workload.topics:
            high = self.feed.high_water(topic)
            if high is not None and topic in status.offsets:
                status.lag[topic] = max(high - status.offsets[topic], 0)

    async def _stand_by(self) -> None:
        """Wait for the end of a rebalance with nothing left to repeat, then make sure that nobody else took over."""
        await self._hand_over()
        self._observe()
        await self.feed.settled()
        await self.journal.prove()
        self.status.beat = self.clock.now()
