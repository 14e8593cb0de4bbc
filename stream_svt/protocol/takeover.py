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


class Takeover:
    """Makes a shard ready to be stepped: gives the committer its engine and commands."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer

    async def open(self) -> tuple[Mapping[str, Decoder], Mapping[str, int]]:
        """Take the state over and find the place in every topic; raises as `Journal.open`, or `ConfigError`.

        Returns a decoder for each query topic, and the offset up to which an earlier owner can have stepped it.
        """
        committer = self._committer
        committer.status.signal(ShardSignal.OPENED)
        began = committer.clock.now()
        records = await committer.journal.open()
        restoring = committer.clock.now() - began
        if committer.journal.meta.commands.closed:
            await committer.end_closed()
        await self._load(records)
        engine = committer.engine
        decoders = committer.workload.decoders(committer.shard, engine.datasets, engine.readers())
        spans = await committer.feed.spans([*committer.workload.topics, committer.control])
        committer.feed.seek(committer.control, committer.commands.begin_at(*spans[committer.control]))
        await committer.in_slices(engine.retirement.close_runs(), commits=True)
        await committer.in_slices(engine.projection.sum_up())
        committer.status.views = {view.dataset: view for view in engine.projection.shown()}
        committer.status.totals = engine.projection.totals()
        if committer.commands.closing:  # nothing is read again, for nothing is tested any more
            replay_to: Mapping[str, int] = {}
            await committer.in_slices(engine.retirement.retire(), commits=True)
        else:
            replay_to = await self._find_places(spans)
        await committer.commit()
        seconds = committer.clock.now() - began
        committer.observer.taken_over(seconds, restoring)
        said = "event=shard_opened shard=%d records=%d seconds=%.3f key=%s"
        log.info(said, committer.shard, len(records), seconds, committer.journal.key_id)
        return decoders, replay_to

    async def _load(self, records: dict[bytes, bytes]) -> None:
        committer = self._committer
        meta, workload = committer.journal.meta, committer.workload
        await committer.in_slices(
            workload.gather(committer.shard, gone(workload.spec, records, meta.progress))
        )
        engine = committer.engine = workload.engine(committer.shard, meta.noise_key)
        committer.commands = CommandHandler(
            meta.commands,
            meta.state_id.hex(),
            committer.verify,
            shard=committer.shard,
            topic=committer.control,
            engine=engine,
            clock=committer.clock,
            observer=committer.observer,
        )
        await committer.publish_backlog()  # a commit comes after everything that was charged before
        progress = committer.journal.meta.progress
        if progress is not None:
            self._compare_versions(progress)
        await committer.in_slices(loading(engine, records, progress))
        if not committer.commands.closing:
            engine.retirement.check(engine.number, committer.shard, may_retire=workload.version[0] > 0)
        if progress is None:
            engine.begin_state(workload.partitions, committer.journal.place.cluster)
            engine.adopt(workload.version)

    def _compare_versions(self, progress: bytes) -> None:
        """Refuse an older configuration than the shard has adopted, or another one of the same number."""
        adopted, digest = from_bytes(ProgressRecord, progress, key="meta").configuration
        number, wanted = self._committer.workload.version
        if number < adopted:
            raise ConfigurationBehind(
                f"shard {self._committer.shard} has adopted version {adopted} of the configuration, and this worker "
                f"knows version {number}: it waits for the newer one. Where the configuration topic was made anew, "
                f"number the next one above it: 'stream-svt apply -c FILE --above {adopted}'"
            )
        if number == adopted and digest != wanted:
            message = (
                f"the shard has adopted another version {number} than the configuration topic holds: the topic was "
                f"made anew, or changed. Number the next one above it: 'stream-svt apply -c FILE --above {adopted}'"
            )
            raise ConfigError([Problem(0, "", message)], "the configuration against the stored state")

    async def _find_places(self, spans: Spans) -> Mapping[str, int]:
        """Seek every topic to where the state says; return up to where a previous owner can have stepped each."""
        committer = self._committer
        engine = committer.engine
        places: dict[str, int] = {}
        for topic in committer.workload.topics:
            first, end = spans[topic]
            offset = engine.next_offset(topic)
            if offset is None:
                offset = first if committer.policy.start_at == "earliest" else end
                if topic not in engine.topics():
                    # Its monitors are added after the replay, and read it from here.
                    committer.feed.seek(topic, offset)
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
            if offset < (read_to := min(committer.read_to.get(topic, 0), spans[topic][1]))
            and topic not in lost
        }
        if lost:
            await self._await_acceptance(lost, spans)
            places |= {topic: engine.next_offset(topic) or 0 for topic in lost}
        for topic, offset in places.items():
            committer.feed.seek(topic, offset)
        return replay_to

    async def _await_acceptance(self, lost: Mapping[str, int], spans: Spans) -> None:
        """Wait for an `accept-loss` for each topic: its records behind the state are gone, and that must be loud."""
        committer = self._committer
        left = dict(lost)
        while left:
            self._park(left, spans)
            command = await self._await_command()
            committer.status.signal(ShardSignal.OPENED, Cause.NONE)
            if left.get(command.topic) == command.offset:
                del left[command.topic]
                await self._accept_loss(command)
            else:
                committer.commands.carry_out(command)
            await committer.commit()
            await committer.publish_all()  # nothing else may come for long

    def _park(self, lost: Mapping[str, int], spans: Spans) -> None:
        committer = self._committer
        gaps = [
            f"from offset {wanted} of {topic!r}, which now holds {spans[topic][0]} to {spans[topic][1]}"
            for topic, wanted in lost.items()
        ]
        ways = [
            f"'stream-svt control accept-loss -c FILE --shard {committer.shard} --topic {topic} --offset {wanted}'"
            for topic, wanted in lost.items()
        ]
        error = RecordsLost(
            f"shard {committer.shard}: records of query topics are gone, {'; '.join(gaps)}: retention or deletion took "
            f"them, or the topic was made anew. The shard waits; {', then '.join(ways)} goes on, closing the open "
            "runs there at their full price"
        )
        committer.status.signal(ShardSignal.PARKED, Cause.RECORDS_LOST, str(error))
        log.critical(
            "event=shard_parked shard=%d cause=%s error=%r", committer.shard, Cause.RECORDS_LOST, str(error)
        )
        committer.observer.failed(committer.shard, "parked")

    async def _accept_loss(self, command: Command) -> None:
        committer = self._committer
        topic, engine = command.topic, committer.engine
        first, end = (await committer.feed.spans([topic]))[topic]  # retention goes on meanwhile
        await committer.in_slices(operations.close_lost(engine, topic), commits=True)
        operations.pass_over(engine, topic, first, end)
        committer.read_to.pop(topic, None)
        log.warning("event=loss_accepted shard=%d topic=%s offset=%d", committer.shard, topic, first)
        committer.commands.use_up(command, accepted=True)
        engine.accounts.reply(command, accepted=True, message=f"reading goes on: {topic} at offset {first}")

    async def _await_command(self) -> Command:
        """Read only the control partition until an `accept-loss` comes that names the next number."""
        committer = self._committer
        committer.feed.resume([committer.control])
        try:
            while (command := await committer.commands.next(Gate.LOSS)) is None:
                records = await committer.feed.fetch([committer.control], COMMAND_FETCH)
                committer.commands.unread.extend(records.get(committer.control, ()))
                committer.status.beat = committer.clock.now()
        finally:
            committer.feed.pause([committer.control])
        return command
