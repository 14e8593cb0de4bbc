"""One session of a shard: it takes the state over, steps the engine, commits, and hands over, in the right order.

- A batch is stepped again only after the commit that the engine asked for (`durable_first`).
- Commands and a changed specification take effect between two commits. After a takeover they wait until everything
  that the previous owner may have read has been replayed.
- After an error nothing in memory is trusted: the session ends and the next one reads the state.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from stream_svt.columns.query_batch import QueryBatch
from stream_svt.errors import ConfigError, ConfigurationBehind, Problem, RecordsUnreadable, TimestampAhead
from stream_svt.monitor import operations
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.operations import Command, CommandProgress
from stream_svt.monitor.state.snapshot import ProgressRecord, from_bytes
from stream_svt.monitor.takeover import (
    announce_covered,
    change_spec_in_slices,
    check_declared,
    check_spec,
    close_removed,
    close_undeclared,
    load_in_slices,
    retire,
    retired_datasets,
    take_mutes,
)
from stream_svt.protocol.command_reader import CommandReader
from stream_svt.protocol.controls import CommandPhase, Controls, Verify, accept_all
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.ports import Clock, Decoder, Feed, Observer, ShardWorkload, Stopped
from stream_svt.protocol.records import Record, Records
from stream_svt.protocol.shard_states import Cause, ShardSignal, ShardStatus
from stream_svt.protocol.state_records import created_again
from stream_svt.protocol.transactions import Transactions
from stream_svt.settings.sections import CommitConfig

log = logging.getLogger(__name__)

Spans = Mapping[str, tuple[int, int]]
"""First offset and end of topics."""
COMMAND_FETCH = 1.0
"""Seconds that a fetch waits while the session needs a command."""
IDLE_FETCH = 15.0
"""Seconds that an idle fetch waits: the longest delay of a sign of life, and of the discovery of a deleted topic."""
FARTHEST_AHEAD = 600.0
"""Seconds that a query's timestamp may be ahead of this worker's clock, if durations depend on timestamps."""
IDLE_MARGIN = 3600.0
"""Seconds that a watermark stays behind the clock once a topic is read to its end: a record in an open transaction,
or with the timestamp of a slow clock, must not be late."""
FEW = 2000
"""Number of records, and of queries of a batch, that a shard processes in the same turn: a few milliseconds."""
MANY = 10_000
"""A batch with more queries than this counts as part of a backlog."""
SCHEMA_WAITS = (0.1, 0.25, 0.5, 1.0, 2.0)
"""Seconds before the second and later attempts to decode records whose schema is missing."""


@dataclass(eq=False, kw_only=True)
class ShardSession:
    """Runs a shard until told to stop.

    ``journal`` is not opened yet; ``control`` names the control topic. ``start_at`` is the end of a new topic at
    which reading starts.

    With a cadence every transaction begins at a tick, a multiple of the cadence since the session began. One fetch is
    processed between two ticks, and each tick has its transaction, even an empty one. So the time of a transaction does
    not reveal how long its work took, if the work fits between two ticks. The engine's durations are not reported then.
    """

    shard: int
    feed: Feed
    journal: Journal
    workload: ShardWorkload
    control: str
    policy: CommitConfig
    start_at: str
    clock: Clock
    observer: Observer
    status: ShardStatus
    verify: Verify = accept_all
    engine: Engine = field(init=False)
    transactions: Transactions = field(init=False)
    reader: CommandReader = field(init=False)
    _ending: ExitStack = field(init=False, default_factory=ExitStack)
    _decoders: Mapping[str, Decoder] = field(init=False, default_factory=dict)
    _replaced: set[str] = field(init=False, default_factory=set)
    """Topics that were created again since the state was written."""
    _replay_to: Mapping[str, int] = field(init=False, default_factory=dict)
    """By topic, the offset before which an earlier owner may have stepped records."""
    _replayed: bool = field(init=False, default=False)
    _ends: Mapping[str, int] = field(init=False, default_factory=dict)
    """Ends of topics when the replay was complete, without topics that were read to there, and the time of these
    ends."""
    _ends_read_ms: int = field(init=False, default=0)
    _undecoded: dict[str, tuple[float, int]] = field(init=False, default_factory=dict)
    """By topic whose next record cannot be decoded yet: the time of the next try, and the number of tries so far."""

    def __post_init__(self) -> None:
        self.transactions = Transactions(
            feed=self.feed,
            journal=self.journal,
            workload=self.workload,
            policy=self.policy,
            clock=self.clock,
            observer=self.observer,
            status=self.status,
        )

    # Taking over

    async def open(self) -> None:
        """Take the state over and seek each topic; raises the errors of `Journal.open`, and `ConfigError`."""
        self.status.signal(ShardSignal.OPENED)
        began = self.clock.now()
        records = await self.journal.open()
        restoring = self.clock.now() - began
        if self.journal.meta.commands.closed:
            await self.transactions.end_closed()
        await self._load(records)
        engine = self.engine
        self._decoders = self.workload.decoders(engine)
        spans, ids = await self.feed.spans_and_ids([*self.workload.topics, self.control])
        self._compare_topic_ids(ids)
        await self._seek_commands(*spans[self.control])
        await self.transactions.in_slices(close_undeclared(engine), commits=True)
        self.status.views = {view.dataset: view for view in engine.projection.shown()}
        self.status.totals = engine.projection.totals()
        if self.reader.controls.closing:  # no query is tested any more, so no query is replayed
            await self.transactions.in_slices(retire(engine), commits=True)
        else:
            await self.transactions.in_slices(take_mutes(engine), commits=True)
            self._replay_to = await self._seek_topics(spans)
        await self.transactions.commit()
        seconds = self.clock.now() - began
        self.observer.time("takeover_seconds", seconds)
        self.observer.time("restore_seconds", restoring)
        line = "event=shard_opened shard=%d records=%d seconds=%.3f key=%s"
        log.info(line, self.shard, len(records), seconds, self.journal.records.sealing.key_id)
        self.status.signal(ShardSignal.TAKEN_OVER, Cause.NONE)

    def _compare_topic_ids(self, found: Mapping[str, str]) -> None:
        """Find the topics that were created again. Topics of which records were read keep their stored id for now."""
        known, engine = self.journal.meta.topic_ids, self.engine
        self._replaced = created_again(known, found)
        lost = {topic for topic in self._replaced if engine.next_offset(topic)}
        known |= {topic: number for topic, number in found.items() if topic not in lost}
        self.status.topic_ids = {**known}

    async def _seek_commands(self, first: int, end: int) -> None:
        """Seek the control partition to the stored offset, after noting the withdrawals up to its present end.

        A withdrawal takes precedence over the commands before it.
        """
        start = self.reader.controls.begin_at(first, end, replaced=self.control in self._replaced)
        if start < end:
            await self.feed.scan(self.control, start, self.reader.controls.note_withdrawal)
        self.feed.seek(self.control, start)

    async def _load(self, records: dict[bytes, bytes]) -> None:
        meta, workload = self.journal.meta, self.workload
        gone = retired_datasets(workload.spec, records, meta.progress)
        await self.transactions.in_slices(workload.gather(self.shard, gone))
        engine = self.engine = self.transactions.engine = workload.engine(self.shard, meta.noise_key)
        self._ending.callback(engine.discard)
        engine.topic_ids = meta.topic_ids  # a successor begins with the ids of its positions
        controls = self.transactions.controls = Controls(meta.commands, meta.state_id.hex(), self.verify)
        self.reader = CommandReader(
            shard=self.shard,
            control=self.control,
            engine=engine,
            controls=controls,
            transactions=self.transactions,
            clock=self.clock,
            observer=self.observer,
        )
        # A commit is allowed only after all earlier charges are published.
        await self.transactions.publish_backlog()
        progress = self.journal.meta.progress
        if progress is not None:
            self._compare_versions(progress)
        await self.transactions.in_slices(load_in_slices(engine, records, progress))
        if not self.reader.controls.closing:
            await self.transactions.in_slices(check_declared(engine, may_retire=workload.version[0] > 0))
        if progress is None:
            engine.begin_state(meta.partitions, meta.partitioner, self.journal.context.cluster)
            engine.adopt(workload.version)

    def _compare_versions(self, progress: bytes) -> None:
        """Refuse a configuration that is older than the adopted one, or differs from it and has the same number."""
        adopted, digest = from_bytes(ProgressRecord, progress, key="meta").configuration
        number, wanted = self.workload.version
        if number < adopted:
            raise ConfigurationBehind(
                f"shard {self.shard} has adopted version {adopted} of the configuration, and this worker "
                f"knows version {number}: it waits for the newer one. If the configuration topic was recreated, "
                f"number the next one above it: 'stream-svt apply -c FILE --above {adopted}'"
            )
        if number == adopted and digest != wanted:
            message = (
                f"the shard has adopted another version {number} than the configuration topic holds: the topic was "
                f"recreated or changed. Number the next one above it: 'stream-svt apply -c FILE --above {adopted}'"
            )
            raise ConfigError([Problem(0, "", message)], "the configuration against the stored state")

    async def _seek_topics(self, spans: Spans) -> Mapping[str, int]:
        """Seek every topic to its stored offset; return the offsets up to which earlier owners may have stepped."""
        engine = self.engine
        starts: dict[str, int] = {}
        for topic in self.workload.topics:
            first, end = spans[topic]
            offset = engine.next_offset(topic)
            if offset is None:
                is_first = self.start_at == "earliest" or topic in self.workload.spec.counts_topics()
                offset = first if is_first else end
                if topic not in engine.topics():
                    # Its monitors are added after the replay and start here.
                    self.feed.seek(topic, offset)
                    continue
                engine.begin(topic, offset)
            starts[topic] = offset
        lost = {
            topic: 0 if engine.is_counts(topic) else at
            for topic, at in starts.items()
            if (at and topic in self._replaced) or not spans[topic][0] <= at <= spans[topic][1]
        }
        # Accepting a loss charges for it, and lost records cannot be replayed.
        replay_to = {
            topic: min(self.transactions.read_to.get(topic, 0), spans[topic][1])
            for topic in starts
            if topic not in lost
        }
        if lost:
            await self._await_acceptance(lost, spans)
            starts |= {topic: engine.next_offset(topic) or 0 for topic in lost}
        for topic, offset in starts.items():
            self.feed.seek(topic, offset)
        return replay_to

    async def _await_acceptance(self, lost: Mapping[str, int], spans: Spans) -> None:
        """Park until an `accept-loss` has arrived for each topic whose next records are gone."""
        left = dict(lost)
        while left:
            self._park(left, spans)
            while (command := await self.reader.next_command(CommandPhase.LOSS)) is None:
                if self.transactions.uncommitted:
                    await self.transactions.commit()
                await self.transactions.publish_all()
                records = await self.feed.fetch([self.control], COMMAND_FETCH)
                self.reader.take(records.get(self.control, ()))
                self.status.beat = self.clock.now()
            self.status.signal(ShardSignal.OPENED, Cause.NONE)
            if left.get(command.topic) == command.offset:
                del left[command.topic]
                await self._accept_loss(command)
            else:
                self.reader.consume_number(command, accepted=operations.apply(self.engine, command))
            await self.transactions.commit()
            await self.transactions.publish_all()  # the next commit may be far away

    def _park(self, lost: Mapping[str, int], spans: Spans) -> None:
        gaps, commands = [], []
        for topic, offset in lost.items():
            again = topic in self._replaced
            command = f"'stream-svt control accept-loss -c FILE --shard {self.shard} --topic {topic}"
            if self.engine.is_counts(topic):
                gaps.append(f"counts of {topic!r}{', which was created again' * again}")
                commands.append(f"{command}'")
            else:
                span = f"which {'was created again and ' * again}now holds {spans[topic][0]} to {spans[topic][1]}"
                gaps.append(f"from offset {offset} of {topic!r}, {span}")
                commands.append(f"{command} --offset {offset}'")
        reason = (
            f"shard {self.shard}: records of query topics are gone, {'; '.join(gaps)}: retention or deletion "
            f"removed them, or the topic was recreated. The shard waits; {', then '.join(commands)} continues and "
            "closes the open runs there at their full price"
        )
        self.status.signal(ShardSignal.PARKED, Cause.RECORDS_LOST, reason)
        log.critical("event=shard_parked shard=%d cause=%s error=%r", self.shard, Cause.RECORDS_LOST, reason)
        self.observer.count("failures_total", "parked")

    async def _accept_loss(self, command: Command) -> None:
        topic, engine = command.topic, self.engine
        spans, ids = await self.feed.spans_and_ids([topic])
        first, end = spans[topic]  # retention may have deleted more
        await self.transactions.in_slices(operations.close_runs_of_topic(engine, topic), commits=True)
        # In a topic that was created again, no monitor has read the records before its stored offset.
        operations.skip_lost_records(engine, topic, first, -1 if topic in self._replaced else end)
        self.journal.meta.topic_ids |= ids
        self.status.topic_ids = {**self.journal.meta.topic_ids}
        self.transactions.read_to.pop(topic, None)
        place = "not shown" if engine.is_counts(topic) else str(first)
        log.warning("event=loss_accepted shard=%d topic=%s offset=%s", self.shard, topic, place)
        self.reader.consume_number(command, accepted=True)
        message = f"reading goes on: {topic} at offset {place}"
        operations.reply(engine, command, accepted=True, message=message)

    # Running

    def end(self) -> None:
        """Free the state, although the traceback of an error may still refer to the session."""
        self._ending.close()

    async def run(self) -> None:
        """Read, step and commit until stopped or closed; then publish all charged events."""
        transactions, controls = self.transactions, self.reader.controls
        if not controls.closing:
            await self._barrier()
        while not self.feed.stopping:
            try:
                if self.feed.held:
                    await self._wait_for_rebalance()
                    continue
                if controls.closing:
                    await self.reader.continue_command()
                    continue
                if controls.closed:
                    await transactions.end_closed()
                topics = {*self.engine.topics()}.intersection(self.workload.topics) | {self.control}
                topics -= {topic for topic, (at, _) in self._undecoded.items() if at > self.clock.now()}
                records = await self.feed.fetch(topics, self._fetch_wait(), self.policy.max_records)
            except Stopped:
                break
            except RecordsUnreadable:
                await transactions.hand_over()  # an operator may also delete the records before them
                raise
            transactions.fetched_at = self.clock.now()
            await self._process(records)
            await self._barrier()
            if controls.closed:
                continue
            full = transactions.uncommitted >= self.policy.max_records or not transactions.seconds_left
            due = transactions.uncommitted > 0 and (full or self.journal.pending > 0)
            # Clocks that the watermarks advance must be durable before the next record is stepped.
            due = self._advance_watermarks() or due or transactions.positions_due
            if self.policy.cadence is not None or due:
                await transactions.commit()
            elif not records and self.journal.pending:
                await transactions.publish()
            self._update_status()
        await transactions.hand_over(ends=self._replayed)

    def _fetch_wait(self) -> float:
        transactions = self.transactions
        may_continue = self.reader.controls.may_continue(replayed=self._replayed)
        if self.journal.pending or self.policy.cadence is not None or may_continue:
            return 0.0
        if self._undecoded:
            return min(transactions.seconds_left, SCHEMA_WAITS[0])
        return min(transactions.seconds_left, IDLE_FETCH) if transactions.uncommitted else IDLE_FETCH

    async def _process(self, records: Mapping[str, Sequence[Record]]) -> None:
        """Step the engine through fetched records; before a handover, seek back to the rest."""
        interrupted = False
        for topic, fetched in records.items():
            if topic == self.control:
                self.reader.take(fetched)
            elif fetched and interrupted:
                self.feed.seek(topic, fetched[0].offset)
            elif fetched and (found := self._decodable(topic, Records.of(fetched))):
                interrupted = not await self._step_through(topic, found)
        self.transactions.advance_positions()

    def _decodable(self, topic: str, fetched: Records) -> Records:
        """Return the records before the first record that cannot be decoded yet, and seek back to that record."""
        count, why = self._decoders[topic].lack(fetched)
        if not why:
            if self._undecoded.pop(topic, None) and not self._undecoded:
                self.status.cause, self.status.reason = Cause.NONE, ""
            return fetched
        offset = fetched[count].offset
        self.feed.seek(topic, offset)
        _, tries = (0, 0) if count else self._undecoded.get(topic, (0, 0))
        wait = SCHEMA_WAITS[min(tries, len(SCHEMA_WAITS) - 1)]
        self._undecoded[topic] = self.clock.now() + wait, tries + 1
        if tries:  # the first try only begins to fetch the schema
            reason = f"shard {self.shard}: topic {topic!r} waits at offset {offset}: {why}"
            if reason != self.status.reason:
                log.warning("event=schema_missing shard=%d error=%r", self.shard, reason)
            self.status.cause, self.status.reason = Cause.SCHEMA_MISSING, reason
        return fetched[:count]

    async def _step_through(self, topic: str, fetched: Records) -> bool:
        """Step the engine through records of a topic, and commit where the engine must be durable first.

        A backlog can take many commits. Return whether all records were stepped; if the shard is to be handed over
        meanwhile, the rest is read again.
        """
        if len(fetched) > FEW:  # a smaller batch is decoded in the turn in which it was fetched
            await self.transactions.yield_turn()
        found, future = self._split_future(topic, fetched)
        self.observer.count("records_total", topic, by=len(found))
        while found:
            batch = self._decoders[topic].decode(found)
            count = int(np.searchsorted(found.offset, batch.end))
            found = found[count:]
            last = future is not None and not found
            if not await self._step_batch(batch, count, commits=last, is_last=not found and not last):
                return False
            if found and (self.feed.stopping or self.feed.held):
                self.feed.seek(topic, int(found.offset[0]))
                return False
            if found:
                await self.transactions.yield_turn()
        if future is not None:
            raise future
        return True

    async def _step_batch(self, batch: QueryBatch, count: int, *, commits: bool, is_last: bool) -> bool:
        """Step the engine through a batch of ``count`` records, and commit if it is urgent, or ``commits``.

        ``is_last``: no fetched record of its topic follows.
        """
        topic, transactions = batch.topic, self.transactions
        if batch.end > transactions.read_to.get(topic, 0):
            transactions.read_to[topic] = batch.end
            await transactions.commit()
        transactions.uncommitted += count
        transactions.stepped_to[topic] = max(transactions.stepped_to.get(topic, 0), batch.end)
        while True:
            if len(batch) > FEW:
                await transactions.yield_turn()
            step = self.engine.step(batch)
            if step.done:
                break
            if step.durable_first:
                await transactions.commit()
                if self.feed.stopping or self.feed.held:
                    self.feed.seek(topic, self.engine.next_offset(topic) or batch.first)
                    return False
                transactions.uncommitted += count  # some of these are not stepped yet
        if is_last:
            transactions.advance_positions([topic])
        if self.policy.cadence is None and step.urgent and not self._is_behind(batch):
            with self.clock.ahead():
                await transactions.commit(at_once=transactions.uncommitted <= FEW)
                await transactions.publish_all()
        elif commits or (self.policy.cadence is None and step.urgent):
            await transactions.commit()
        return True

    def _is_behind(self, batch: QueryBatch) -> bool:
        """Return whether the backlog makes throughput matter more than latency.

        Charged events are then published with the next commit, not at once.
        """
        unread = (self.feed.high_water(batch.topic) or 0) - (self.engine.next_offset(batch.topic) or 0)
        return len(batch) > MANY or unread > self.policy.max_records

    def _split_future(self, topic: str, found: Records) -> tuple[Records, TimestampAhead | None]:
        """Return the records before the first one with a timestamp too far ahead, and the error for that one."""
        latest = self._latest_ms
        if not self.engine.needs_timestamps(topic) or int(found.timestamp.max()) <= latest:
            return found, None
        index = int((found.timestamp > latest).argmax())
        record = found[index]
        place = "a tick" if self.engine.is_counts(topic) else f"the record at offset {record.offset}"
        error = TimestampAhead(
            f"shard {self.shard}: {place} of {topic!r} is stamped "
            f"{(record.timestamp - latest) / 1000 + FARTHEST_AHEAD:.0f} s ahead of this worker's clock, more than "
            f"{FARTHEST_AHEAD:.0f} s: it would end mutes, runs and periods too early. The shard waits until "
            "the clock has caught up. If the broker's clock was wrong, set it, delete the records up to the last "
            "such one (kafka-delete-records), and accept their loss with 'stream-svt control accept-loss'",
            record.timestamp / 1000 - FARTHEST_AHEAD,
        )
        if not index:
            raise error
        return found[:index], error

    @property
    def _latest_ms(self) -> int:
        """The latest timestamp, in ms, that a query of a monitor with durations may have now."""
        return int((self.clock.epoch() + FARTHEST_AHEAD) * 1000)

    async def _barrier(self) -> None:
        """Do the work that must happen between commits: commands and, after the replay, the change of specification."""
        self.status.beat = self.clock.now()
        if not self._replayed:
            await self._finish_replay()
        if self.reader.controls.may_continue(replayed=self._replayed):
            await self.reader.continue_command()
        phase = CommandPhase.OPEN if self._replayed else CommandPhase.REPLAY
        while not self.reader.controls.closed and (command := await self.reader.next_command(phase)):
            await self._carry_out_and_commit(command)

    async def _carry_out_and_commit(self, command: Command) -> None:
        """Carry out a command, or begin a command to many datasets. Its number becomes durable with its effect."""
        if command.for_many:
            self.reader.consume_number(command, accepted=False, in_progress=CommandProgress(command))
        else:
            self.reader.consume_number(command, accepted=operations.apply(self.engine, command))
        await self.reader.continue_command()

    async def _finish_replay(self) -> None:
        """Change to the configured specification once the replay is complete."""
        engine, topics, transactions = self.engine, self.workload.topics, self.transactions
        for topic, end in self._replay_to.items():
            if (self.feed.position(topic) or 0) < end:
                return
        transactions.advance_positions()
        await transactions.commit()
        unread = {
            topic
            for topic in set(engine.topics()).difference(topics)
            if (engine.next_offset(topic) or 0) < transactions.read_to.get(topic, 0)
        }
        spec = self.workload.spec
        check_spec(engine, spec)
        await transactions.yield_turn()
        await transactions.in_slices(close_removed(engine, spec, unread), commits=True)
        await transactions.in_slices(change_spec_in_slices(engine, spec))
        self._decoders = self.workload.decoders(engine)
        for topic in topics:
            engine.begin(topic, self.feed.position(topic) or 0)
        for runner in engine.runners.values():
            # Its monitor may have had no durations when it read a wrong timestamp. Ticks are what a counter says.
            if runner.spec.source is None:
                runner.clock_ms = min(runner.clock_ms, self._latest_ms)
        engine.adopt(self.workload.version)
        await transactions.in_slices(chain(announce_covered(engine), retire(engine)), commits=True)
        if engine.datasets.patterns:
            spans, _ = await self.feed.spans_and_ids(topics)
            self._ends = {topic: end for topic, (_, end) in spans.items()}
            self._ends_read_ms = int((self.clock.epoch() - IDLE_MARGIN) * 1000)
            self._advance_watermarks()
        # Only once the configuration is accepted and removed monitors are closed.
        for topic in transactions.read_to.keys() - engine.topics():
            del transactions.read_to[topic]
        await transactions.commit()
        self._replayed = True
        self.status.signal(ShardSignal.REPLAYED)
        log.info("event=shard_replayed shard=%d", self.shard)

    def _advance_watermarks(self) -> bool:
        """Find the periods that are over, at first and for each topic read to its end; return whether there are any."""
        reached = {
            topic: end
            for topic, end in self._ends.items()
            if (offset := self.engine.next_offset(topic)) is not None and offset >= end
        }
        if reached or not self._replayed:
            self.engine.advance_watermarks(reached, self._ends_read_ms)
        self._ends = {topic: end for topic, end in self._ends.items() if topic not in reached}
        return bool(reached)

    def _update_status(self) -> None:
        status, records = self.status, self.journal.records
        status.beat = self.clock.now()
        status.key_id, status.state_records = records.sealing.key_id, len(records.macs)
        status.sequence = records.meta.sequence
        for topic in self.workload.topics:
            high = self.feed.high_water(topic)
            # No monitor reads a topic that is new in the configuration before the replay is complete.
            read_ms = (runner.read_ms for runner in self.engine.runners_of(topic))
            status.read_ms[topic] = max(read_ms, default=0)
            if self.engine.is_counts(topic) and status.read_ms[topic]:
                status.ticks[topic] = status.read_ms[topic]
            if high is not None and topic in status.offsets:
                status.lag[topic] = max(high - status.offsets[topic], 0)

    async def _wait_for_rebalance(self) -> None:
        """Commit and publish, wait for the end of a rebalance, and check that no other owner took over."""
        await self.transactions.hand_over(ends=self._replayed)
        self._update_status()
        await self.feed.wait_for_rebalance()
        await self.journal.check_fenced()
        self.status.beat = self.clock.now()
