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
from stream_svt.protocol.committer import Committer
from stream_svt.protocol.controls import Gate
from stream_svt.protocol.ports import Decoder, Record, Stopped
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


class ShardSession:
    """Runs a shard until told to stop.

    With a cadence every transaction begins at a tick, a multiple of the cadence since the session began, one fetch
    is processed between two ticks, and a tick without news has its transaction, too: when something becomes
    visible tells nothing of how long the work for it took, as long as the work fits between two ticks. How long the
    engine took is then not reported either.
    """

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._decoders: Mapping[str, Decoder] = {}
        self._replay_to: Mapping[str, int] = {}
        self._replayed = False
        self._reading: AbstractSet[str] = frozenset()

    async def open(self) -> None:
        """Take the state over, see `Takeover.open`, and read the topics of the monitors in use."""
        self._decoders, self._replay_to = await Takeover(self._committer).open()
        self._resume()
        self._committer.status.signal(ShardSignal.TAKEN_OVER, Cause.NONE)

    def end(self) -> list[DatasetAccount]:
        """Let go of what the session held in memory, and return the ledgers, to be freed little by little."""
        return self._committer.engine.discard() if hasattr(self._committer, "engine") else []

    def _resume(self) -> None:
        committer = self._committer
        wanted = {*committer.engine.topics()}.intersection(committer.workload.topics) | {committer.control}
        committer.feed.resume(wanted - self._reading)
        committer.feed.pause(self._reading - wanted)
        self._reading = wanted

    async def run(self) -> None:
        """Read, step and commit until stopped, or closed by a command; then publish what is charged."""
        committer = self._committer
        if not committer.commands.closing:
            await self._barrier()
        while not committer.feed.stopping:
            try:
                if committer.feed.held:
                    await self._stand_by()
                    continue
                if committer.commands.closing:
                    await self._sweep()
                    continue
                if committer.commands.closed:
                    await committer.end_closed()
                records = await committer.feed.fetch(
                    self._reading, self._patience(), committer.policy.max_records
                )
            except Stopped:
                break
            committer.fetched_at = committer.clock.now()
            await self._process(records)
            await self._barrier()
            if committer.commands.closed:
                continue
            if committer.policy.cadence is not None or committer.is_due:
                await committer.commit()
            elif not records and committer.journal.pending:
                await committer.publish()
            self._observe()
        await committer.hand_over()

    def _patience(self) -> float:
        committer = self._committer
        may_sweep = committer.commands.may_sweep(replayed=self._replayed)
        if committer.journal.pending or committer.policy.cadence is not None or may_sweep:
            return 0.0
        return min(committer.seconds_left, IDLE_FETCH) if committer.uncommitted else IDLE_FETCH

    async def _process(self, records: Mapping[str, Sequence[Record]]) -> None:
        """Step the engine through what was fetched; where the shard is to be handed over, the rest is read again."""
        committer = self._committer
        interrupted = False
        for topic, fetched in records.items():
            if topic == committer.control:
                committer.commands.unread.extend(fetched)
            elif fetched and interrupted:
                committer.feed.seek(topic, fetched[0].offset)
            elif fetched:
                interrupted = not await self._step_through(topic, fetched)

    async def _step_through(self, topic: str, fetched: Sequence[Record]) -> bool:
        """Step the engine through records of a topic, committing where it must be durable first.

        A backlog can take many commits. Return whether all of it was stepped: where the shard is to be handed over
        meanwhile, the rest is read again.
        """
        committer = self._committer
        await committer.turn()
        found, ahead = self._not_ahead(topic, fetched)
        batch = self._decoders[topic].decode(found)
        committer.observer.read(topic, len(found))
        if batch.end > committer.read_to.get(topic, 0):
            committer.read_to[topic] = batch.end
            await committer.commit()
        committer.stepped += len(found)
        while True:
            await committer.turn()
            began = committer.clock.now()
            step = committer.engine.step(batch)
            if committer.policy.cadence is None:
                committer.steps.append(committer.clock.now() - began)
            if step.done:
                break
            if step.durable_first:
                await committer.commit()
                if committer.feed.stopping or committer.feed.held:
                    committer.feed.seek(topic, committer.engine.next_offset(topic) or found[0].offset)
                    return False
                committer.stepped += len(found)  # of which some are still to be looked at
        if ahead is not None or (committer.policy.cadence is None and step.urgent):
            await committer.commit()
        if ahead is not None:
            raise ahead
        return True

    def _not_ahead(
        self, topic: str, found: Sequence[Record]
    ) -> tuple[Sequence[Record], TimestampAhead | None]:
        """Return the records before the first that is stamped too far ahead, and the error where there is one."""
        committer = self._committer
        latest = int((committer.clock.epoch() + FARTHEST_AHEAD) * 1000)
        if not committer.engine.goes_by_timestamps(topic) or max(map(_TIMESTAMP, found)) <= latest:
            return found, None
        place = next(place for place, record in enumerate(found) if record.timestamp > latest)
        record = found[place]
        error = TimestampAhead(
            f"shard {committer.shard}: the record at offset {record.offset} of {topic!r} is stamped "
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
        committer = self._committer
        committer.status.beat = committer.clock.now()
        if not self._replayed:
            await self._finish_replay()
        if committer.commands.may_sweep(replayed=self._replayed):
            await self._sweep()
        gate = Gate.OPEN if self._replayed else Gate.REPLAY
        while not committer.commands.closed and (command := await committer.commands.next(gate)):
            await committer.commit()
            await self._carry_out(command)

    async def _carry_out(self, command: Command) -> None:
        """Carry out a command and commit: its number becomes durable with what it does."""
        self._committer.commands.carry_out(command)
        await self._sweep()

    async def _sweep(self) -> None:
        """Carry out the next slice of a command to all datasets, where one is under way, and commit."""
        await self._committer.commands.sweep()
        await self._committer.commit()

    async def _finish_replay(self) -> None:
        """Go over to the configured specification, once everything is replayed."""
        committer = self._committer
        engine, topics = committer.engine, committer.workload.topics
        for topic, end in self._replay_to.items():
            if await committer.feed.position(topic) < end:
                return
        await committer.commit()
        unread = {
            topic
            for topic in set(engine.topics()).difference(topics)
            if (engine.next_offset(topic) or 0) < committer.read_to.get(topic, 0)
        }
        spec = committer.workload.spec
        try:
            check_spec(engine, spec)
        except ConfigError as error:
            raise ConfigError(
                error.problems, "the configuration against the stored state", error.more
            ) from error
        await committer.turn()
        await committer.in_slices(close_removed(engine, spec, unread), commits=True)
        await committer.in_slices(changing_spec(engine, spec))
        self._decoders = committer.workload.decoders(committer.shard, engine.datasets)
        for topic in topics:
            engine.begin(topic, await committer.feed.position(topic))
        engine.adopt(committer.workload.version)
        await committer.in_slices(engine.retirement.retire(), commits=True)
        if engine.datasets.patterns:
            ends = {topic: end for topic, (_, end) in (await committer.feed.spans(topics)).items()}
            engine.pass_periods(ends, int((committer.clock.epoch() - IDLE_MARGIN) * 1000))
        # Not before the configuration is accepted, and what it takes away is closed.
        for topic in committer.read_to.keys() - engine.topics():
            del committer.read_to[topic]
        await committer.commit()
        self._resume()
        self._replayed = True
        committer.status.signal(ShardSignal.REPLAYED)
        log.info("event=shard_replayed shard=%d", committer.shard)

    def _observe(self) -> None:
        committer = self._committer
        status = committer.status
        status.beat = committer.clock.now()
        status.key_id, status.state_records = committer.journal.key_id, len(committer.journal.held.macs)
        status.sequence = committer.journal.meta.sequence
        for topic in committer.workload.topics:
            high = committer.feed.high_water(topic)
            if high is not None and topic in status.offsets:
                status.lag[topic] = max(high - status.offsets[topic], 0)

    async def _stand_by(self) -> None:
        """Wait for the end of a rebalance with nothing left to repeat, then make sure that nobody else took over."""
        committer = self._committer
        await committer.hand_over()
        self._observe()
        await committer.feed.settled()
        await committer.journal.prove()
        committer.status.beat = committer.clock.now()
