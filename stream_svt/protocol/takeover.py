"""Takes one shard's state over: reads and proves it, loads the engine, and finds the place in every topic."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from stream_svt.errors import ConfigError, ConfigurationBehind, Problem, RecordsLost
from stream_svt.monitor import operations
from stream_svt.monitor.commands import Command
from stream_svt.monitor.loading import loading
from stream_svt.monitor.retirement import gone
from stream_svt.monitor.snapshot import ProgressRecord, from_bytes
from stream_svt.protocol.committer import Committer
from stream_svt.protocol.controls import CommandHandler, Gate
from stream_svt.protocol.ports import Decoder
from stream_svt.protocol.shard_states import Cause, ShardSignal

log = logging.getLogger(__name__)

COMMAND_FETCH = 1.0
"""Seconds a fetch waits while only a command can help."""
Spans = Mapping[str, tuple[int, int]]
"""First offset and end of topics."""


class Takeover(Committer):
    """Makes a shard ready to be stepped: sets engine and commands, a decoder for each query topic, and its place."""

    _decoders: Mapping[str, Decoder]
    _replay_to: Mapping[str, int]
    """By query topic, the offset up to which an earlier owner can have stepped."""

    async def open(self) -> None:
        """Take the state over and find the place in every topic; raises as `Journal.open`, or `ConfigError`."""
        self.status.signal(ShardSignal.OPENED)
        began = self.clock.now()
        records = await self.journal.open()
        restoring = self.clock.now() - began
        if self.journal.meta.commands.closed:
            await self._end_closed()
        await self._load(records)
        engine = self.engine
        self._decoders = self.workload.decoders(self.shard, engine.datasets, engine.readers())
        spans = await self.feed.spans([*self.workload.topics, self.control])
        self.feed.seek(self.control, self.commands.begin_at(*spans[self.control]))
        await self._in_slices(engine.retirement.close_runs(), commits=True)
        await self._in_slices(engine.projection.sum_up())
        self.status.views = {view.dataset: view for view in engine.projection.shown()}
        self.status.totals = engine.projection.totals()
        if self.commands.closing:  # nothing is read again, for nothing is tested any more
            self._replay_to = {}
            await self._in_slices(engine.retirement.retire(), commits=True)
        else:
            self._replay_to = await self._find_places(spans)
        await self._commit()
        seconds = self.clock.now() - began
        self.observer.taken_over(seconds, restoring)
        said = "event=shard_opened shard=%d records=%d seconds=%.3f key=%s"
        log.info(said, self.shard, len(records), seconds, self.journal.key_id)

    async def _load(self, records: dict[bytes, bytes]) -> None:
        meta, workload = self.journal.meta, self.workload
        await self._in_slices(workload.gather(self.shard, gone(workload.spec, records, meta.progress)))
        engine = self.engine = workload.engine(self.shard, meta.noise_key)
        self.commands = CommandHandler(
            meta.commands,
            meta.state_id.hex(),
            self.verify,
            shard=self.shard,
            topic=self.control,
            engine=engine,
            clock=self.clock,
            observer=self.observer,
        )
        await self._publish_backlog()  # a commit comes after everything that was charged before
        progress = self.journal.meta.progress
        if progress is not None:
            self._compare_versions(progress)
        await self._in_slices(loading(engine, records, progress))
        if not self.commands.closing:
            engine.retirement.check(engine.number, self.shard, may_retire=workload.version[0] > 0)
        if progress is None:
            engine.begin_state(workload.partitions, self.journal.place.cluster)

    def _compare_versions(self, progress: bytes) -> None:
        """Refuse an older configuration than the shard has adopted, or another one of the same number."""
        adopted, digest = from_bytes(ProgressRecord, progress, key="meta").configuration
        number, wanted = self.workload.version
        if number < adopted:
            raise ConfigurationBehind(
                f"shard {self.shard} has adopted version {adopted} of the configuration, and this worker knows "
                f"version {number}: it waits for the newer one. Where the configuration topic was made anew, number "
                f"the next one above it: 'stream-svt apply -c FILE --above {adopted}'"
            )
        if number == adopted and digest != wanted:
            message = (
                f"the shard has adopted another version {number} than the configuration topic holds: the topic was "
                f"made anew, or changed. Number the next one above it: 'stream-svt apply -c FILE --above {adopted}'"
            )
            raise ConfigError([Problem(0, "", message)], "the configuration against the stored state")

    async def _find_places(self, spans: Spans) -> Mapping[str, int]:
        """Seek every topic to where the state says; return up to where a previous owner can have stepped each."""
        engine = self.engine
        places: dict[str, int] = {}
        for topic in self.workload.topics:
            first, end = spans[topic]
            offset = engine.next_offset(topic)
            if offset is None:
                offset = first if self.policy.start_at == "earliest" else end
                if topic not in engine.topics():
                    # Its monitors are added after the replay, and read it from here.
                    self.feed.seek(topic, offset)
                    continue
                engine.begin(topic, offset)
            places[topic] = offset
        lost = {
            topic: offset
            for topic, offset in places.items()
            if not spans[topic][0] <= offset <= spans[topic][1]
        }
        # What was lost is paid for once its loss is accepted, and nothing of it is replayed.
        replay_to = {
            topic: read_to
            for topic, offset in places.items()
            if offset < (read_to := min(self._read_to.get(topic, 0), spans[topic][1])) and topic not in lost
        }
        if lost:
            await self._await_acceptance(lost, spans)
            places |= {topic: engine.next_offset(topic) or 0 for topic in lost}
        for topic, offset in places.items():
            self.feed.seek(topic, offset)
        return replay_to

    async def _await_acceptance(self, lost: Mapping[str, int], spans: Spans) -> None:
        """Wait for an `accept-loss` for each topic: its records behind the state are gone, and that must be loud."""
        left = dict(lost)
        while left:
            self._park(left, spans)
            command = await self._await_command()
            self.status.signal(ShardSignal.OPENED, Cause.NONE)
            if left.get(command.topic) == command.offset:
                del left[command.topic]
                await self._accept_loss(command)
            else:
                self.commands.carry_out(command)
            await self._commit()
            await self._publish_all()  # nothing else may come for long

    def _park(self, lost: Mapping[str, int], spans: Spans) -> None:
        gaps = [
            f"from offset {wanted} of {topic!r}, which now holds {spans[topic][0]} to {spans[topic][1]}"
            for topic, wanted in lost.items()
        ]
        ways = [
            f"'stream-svt control accept-loss -c FILE --shard {self.shard} --topic {topic} --offset {wanted}'"
            for topic, wanted in lost.items()
        ]
        error = RecordsLost(
            f"shard {self.shard}: records of query topics are gone, {'; '.join(gaps)}: retention or deletion took "
            f"them, or the topic was made anew. The shard waits; {', then '.join(ways)} goes on, closing the open "
            "runs there at their full price"
        )
        self.status.signal(ShardSignal.PARKED, Cause.RECORDS_LOST, str(error))
        log.critical(
            "event=shard_parked shard=%d cause=%s error=%r", self.shard, Cause.RECORDS_LOST, str(error)
        )
        self.observer.failed(self.shard, "parked")

    async def _accept_loss(self, command: Command) -> None:
        topic, engine = command.topic, self.engine
        first, end = (await self.feed.spans([topic]))[topic]  # retention goes on meanwhile
        await self._in_slices(operations.close_lost(engine, topic), commits=True)
        operations.pass_over(engine, topic, first, end)
        self._read_to.pop(topic, None)
        log.warning("event=loss_accepted shard=%d topic=%s offset=%d", self.shard, topic, first)
        self.commands.use_up(command, accepted=True)
        engine.accounts.reply(command, accepted=True, message=f"reading goes on: {topic} at offset {first}")

    async def _await_command(self) -> Command:
        """Read only the control partition until an `accept-loss` comes that names the next number."""
        self.feed.resume([self.control])
        try:
            while (command := await self.commands.next(Gate.LOSS)) is None:
                records = await self.feed.fetch([self.control], COMMAND_FETCH)
                self.commands.unread.extend(records.get(self.control, ()))
                self.status.beat = self.clock.now()
        finally:
            self.feed.pause([self.control])
        return command
