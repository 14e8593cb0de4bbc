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
from stream_svt.protocol.command_handler import CommandHandler
from stream_svt.protocol.committer import Committer, SessionParts
from stream_svt.protocol.controls import Controls, Gate
from stream_svt.protocol.ports import Decoder
from stream_svt.protocol.shard_states import Cause, Signal

log = logging.getLogger(__name__)

COMMAND_FETCH = 1.0
"""Seconds a fetch waits while only a command can help."""
Spans = Mapping[str, tuple[int, int]]
"""First offset and end of topics."""


class Takeover:
    """Makes a shard ready to be stepped; ``committer`` gets its engine and its commands."""

    def __init__(self, parts: SessionParts, committer: Committer) -> None:
        self._parts = parts
        self._committer = committer

    async def run(self) -> tuple[Mapping[str, Decoder], dict[str, int]]:
        """Take the state over and find the place in every topic.

        Returns:
            By query topic the decoder, and the offset up to which an earlier owner can have stepped.

        Raises:
            UnreadableState, StateRolledBack, ApplicationClosed, RecordsLost, BrokerError, ConfigError: See
                `Journal.open`, `stream_svt.monitor.loading.loading`.
        """
        parts, committer = self._parts, self._committer
        began = parts.clock.now()
        records = await parts.journal.open()
        restoring = parts.clock.now() - began
        if parts.journal.meta.commands.closed:
            await committer.end_closed()
        await self._load(records)
        engine, controls = committer.engine, committer.commands.controls
        decoders = parts.workload.decoders(parts.shard, engine.datasets, engine.readers())
        spans = await parts.feed.spans([*committer.topics, parts.control])
        parts.feed.seek(parts.control, controls.begin_at(*spans[parts.control]))
        for _ in engine.retirement.close_runs():
            await committer.commit_or_give_way()
        for _ in engine.projection.sum_up():
            await committer.turn()
        parts.status.views = {view.dataset: view for view in engine.projection.shown()}
        parts.status.totals = engine.projection.totals()
        replay_to: dict[str, int] = {}
        if controls.closing:  # nothing is read again, for nothing is tested any more
            for _ in engine.retirement.retire():
                await committer.commit_or_give_way()
        else:
            replay_to = await self.find_places(spans)
        await committer.commit()
        seconds = parts.clock.now() - began
        parts.observer.taken_over(seconds, restoring)
        said = "event=shard_opened shard=%d records=%d seconds=%.3f key=%s"
        log.info(said, parts.shard, len(records), seconds, parts.journal.key_id)
        return decoders, replay_to

    async def _load(self, records: dict[bytes, bytes]) -> None:
        """Load the engine with what was read."""
        parts, committer, workload = self._parts, self._committer, self._parts.workload
        meta = parts.journal.meta
        for _ in workload.gather(parts.shard, gone(workload.spec, records, meta.progress)):
            await committer.turn()
        engine = committer.engine = workload.engine(parts.shard, meta.noise_key)
        controls = Controls(meta.commands, meta.state_id.hex(), parts.verify)
        committer.commands = CommandHandler(
            parts.shard, parts.control, engine, controls, parts.clock, parts.observer
        )
        await committer.publish_backlog()  # a commit comes after everything that was charged before
        progress = parts.journal.meta.progress
        if progress is not None:
            self.compare_versions(progress)
        for _ in loading(engine, records, progress):
            await committer.turn()
        if not controls.closing:
            may_retire = workload.version[0] > 0
            engine.retirement.check(engine.number, parts.shard, may_retire=may_retire)
        if progress is None:
            engine.begin_state(workload.partitions, parts.journal.place.cluster)

    def compare_versions(self, progress: bytes) -> None:
        """Refuse to go on with an older configuration than the shard has adopted, or with another of the same number.

        Raises:
            ConfigurationBehind: The worker has not read the newer one yet.
            ConfigError: Two versions have one number.
        """
        adopted, digest = from_bytes(ProgressRecord, progress, key="meta").configuration
        number, wanted = self._parts.workload.version
        if number < adopted:
            raise ConfigurationBehind(
                f"shard {self._parts.shard} has adopted version {adopted} of the configuration, and this worker knows "
                f"version {number}: it waits for the newer one. Where the configuration topic was made anew, number "
                f"the next one above it: 'stream-svt apply -c FILE --above {adopted}'"
            )
        if number == adopted and digest != wanted:
            message = (
                f"the shard has adopted another version {number} than the configuration topic holds: the topic was "
                f"made anew, or changed. Number the next one above it: 'stream-svt apply -c FILE --above {adopted}'"
            )
            raise ConfigError([Problem(0, "", message)], "the configuration against the stored state")

    async def find_places(self, spans: Spans) -> dict[str, int]:
        """Seek every topic to where the state says; return up to where a previous owner can have stepped each."""
        feed, engine = self._parts.feed, self._committer.engine
        places: dict[str, int] = {}
        for topic in self._committer.topics:
            first, end = spans[topic]
            offset = engine.next_offset(topic)
            if offset is None:
                offset = first if self._parts.policy.start_at == "earliest" else end
                if topic not in engine.topics():
                    # Its monitors are added after the replay, and read it from here.
                    feed.seek(topic, offset)
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
            if offset < (read_to := min(self._committer.read_to.get(topic, 0), spans[topic][1]))
            and topic not in lost
        }
        if lost:
            places |= await self._await_acceptance(lost, spans)
        for topic, offset in places.items():
            feed.seek(topic, offset)
        return replay_to

    async def _await_acceptance(self, lost: Mapping[str, int], spans: Spans) -> dict[str, int]:
        """Wait for an `accept-loss` for each topic: records between the state and it are gone, and that must be loud.

        Returns:
            Where each of them is read on.
        """
        committer, commands = self._committer, self._committer.commands
        left = dict(lost)
        while left:
            self._park(left, spans)
            command = await self._await_command()
            self._parts.status.signal(Signal.OPENED, Cause.NONE)
            if left.get(command.topic) == command.offset:
                del left[command.topic]
                await self._accept_loss(command)
            else:
                commands.carry_out(command)
            await committer.commit()
            await committer.publish_all()  # nothing else may come for long
        return {topic: committer.engine.next_offset(topic) or 0 for topic in lost}

    def _park(self, lost: Mapping[str, int], spans: Spans) -> None:
        shard = self._parts.shard
        gaps = [
            f"from offset {wanted} of {topic!r}, which now holds {spans[topic][0]} to {spans[topic][1]}"
            for topic, wanted in lost.items()
        ]
        ways = [
            f"'stream-svt control accept-loss -c FILE --shard {shard} --topic {topic} --offset {wanted}'"
            for topic, wanted in lost.items()
        ]
        error = RecordsLost(
            f"shard {shard}: records of query topics are gone, {'; '.join(gaps)}: retention or deletion took "
            f"them, or the topic was made anew. The shard waits; {', then '.join(ways)} goes on, closing the open "
            "runs there at their full price"
        )
        self._parts.status.signal(Signal.PARKED, Cause.RECORDS_LOST, str(error))
        log.critical("event=shard_parked shard=%d cause=%s error=%r", shard, Cause.RECORDS_LOST, str(error))
        self._parts.observer.failed(shard, "parked")

    async def _accept_loss(self, command: Command) -> None:
        topic, committer = command.topic, self._committer
        engine = committer.engine
        first, end = (await self._parts.feed.spans([topic]))[topic]  # retention goes on meanwhile
        for _ in operations.close_lost(engine, topic):
            await committer.commit_or_give_way()
        operations.pass_over(engine, topic, first, end)
        committer.read_to.pop(topic, None)
        log.warning("event=loss_accepted shard=%d topic=%s offset=%d", self._parts.shard, topic, first)
        committer.commands.use_up(command, accepted=True)
        engine.accounts.reply(command, accepted=True, message=f"reading goes on: {topic} at offset {first}")

    async def _await_command(self) -> Command:
        """Read only the control partition until an `accept-loss` comes that names the next number.

        Raises:
            Stopped: The shard was told to stop.
        """
        parts, commands = self._parts, self._committer.commands
        parts.feed.resume([parts.control])
        try:
            command = await commands.next(Gate.LOSS)
            while command is None:
                records = await parts.feed.fetch([parts.control], COMMAND_FETCH)
                commands.add(records.get(parts.control, ()))
                command = await commands.next(Gate.LOSS)
                parts.status.beat = parts.clock.now()
        finally:
            parts.feed.pause([parts.control])
        return command
