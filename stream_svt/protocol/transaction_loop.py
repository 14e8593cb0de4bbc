"""Commits the changes of a shard's engine, publishes charged events, and reads commands between commits."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from stream_svt.monitor import operations
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.operations import Action, Command, CommandProgress
from stream_svt.protocol.controls import CommandPhase, Controls, Refusal, Repeated, Verify, accept_all
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.ports import Clock, Feed, Observer, ShardWorkload
from stream_svt.protocol.records import Record
from stream_svt.protocol.shard_states import ShardStatus
from stream_svt.settings.sections import CommitConfig

log = logging.getLogger(__name__)

COMMANDS_AT_ONCE = 50
"""Control records that are checked before other shards get a turn: their signatures take a few milliseconds."""
REPORTED = 100
"""Largest burst of reports of refused commands and of replies to repeated commands. The allowance grows by one each
second; beyond it, refusals are only counted."""
POSITIONS_EVERY = 5.0
"""Seconds between two commits of positions alone: a producer may write markers without end."""
FEW = 2000
"""Number of records, and of queries of a batch, that a shard processes in the same turn: a few milliseconds."""
READ_AHEAD = 2
"""Records that may be stepped past a commit, in multiples of `max_records`: the most that a takeover replays."""


@dataclass(eq=False, kw_only=True)
class TransactionLoop:
    """Writes transactions, at ticks if the policy has a cadence, and reads commands between them.

    ``journal`` is not opened yet; ``control`` names the control topic. ``start_at`` is the end of a new topic at
    which reading starts. A takeover sets ``engine`` and ``commands``.
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
    commands: Controls = field(init=False)

    def __post_init__(self) -> None:
        self.uncommitted = 0  # records stepped and commands read since the last commit
        self.unread: deque[Record] = deque()  # fetched from the control partition
        self.fetched_at = 0.0  # when the current records were fetched
        self.stepped_to: dict[str, int] = {}  # by query topic, the end of the batches stepped
        self.advanced = (
            False  # whether a position is past the committed one, although nothing else is to be committed
        )
        self._charged_at: float | None = None
        self._origin = self._last_commit = self._reports_full_at = self.clock.now()
        self._slices: Iterator[CommandProgress] | None = None

    @property
    def read_to(self) -> dict[str, int]:
        """By query topic, the offset before which any owner may have stepped records."""
        return self.journal.meta.read_to

    @property
    def positions_due(self) -> bool:
        """Whether positions are to be committed, although nothing else is."""
        wait = max(POSITIONS_EVERY, self.policy.interval / 1000)
        return self.advanced and self.clock.now() - self._last_commit >= wait

    @property
    def seconds_left(self) -> float:
        """Seconds until the commit interval ends."""
        return max(self._last_commit + self.policy.interval / 1000 - self.clock.now(), 0.0)

    async def yield_turn(self) -> None:
        """Record a sign of life and let other shards work."""
        self.status.beat = self.clock.now()
        await self.clock.sleep(0)

    async def in_slices(self, work: Iterable[object], *, commits: bool = False) -> None:
        """Do long work in slices that yield to other shards; with ``commits``, commit whenever the engine is full."""
        for _ in work:
            if commits and self.engine.full:
                await self.commit()
            else:
                await self.yield_turn()

    async def commit(self, *, at_once: bool = False, last: bool = False) -> None:
        """Commit the engine's changes; then publish until the rest fits into the next transaction.

        ``at_once``: do not yield before committing, because little work precedes. ``last``: no record is stepped
        before the next commit.
        """
        if not at_once:
            await self.yield_turn()
        await self._tick()
        began = self.clock.now()
        commit = self.engine.take_commit()
        ahead = READ_AHEAD * self.policy.max_records
        for topic, offset in self._offsets().items():
            claimed = max(self.read_to.get(topic, 0), offset + ahead)
            self.read_to[topic] = self._stepped(topic, offset) if last else claimed
        self.journal.meta.commands = self.commands.snapshot
        shown = await self.journal.commit(commit)
        self.engine.committed()
        # The commit is durable from here on; no part of it may be shown earlier.
        now = self.clock.now()
        status = self.status
        status.views.update({view.dataset: view for view in commit.views})
        status.totals = commit.totals
        self.observer.committed(commit)
        self._published(shown, began, now)
        if commit.events:
            self._charged_at = self.fetched_at or began
        self.uncommitted, self.advanced = 0, False
        self._last_commit = now
        status.committed_at = self.clock.epoch()
        offsets = self._offsets()
        status.offsets = {topic: offsets[topic] for topic in self.workload.topics if topic in offsets}
        await self.publish_backlog()

    def _offsets(self) -> dict[str, int]:
        """Return the next offset of each topic that was ever read."""
        each = ((topic, self.engine.next_offset(topic)) for topic in self.engine.topics())
        return {topic: offset for topic, offset in each if offset is not None}

    def _stepped(self, topic: str, offset: int) -> int:
        """Return the offset before which any owner may have stepped records of a topic; a takeover replays them."""
        return max(self.stepped_to.get(topic, 0), offset)

    def advance_positions(self, topics: Iterable[str] | None = None) -> None:
        """Advance to the feed's positions in ``topics`` (None: all), of which every returned record was stepped."""
        for topic in self.engine.topics() if topics is None else topics:
            if (offset := self.feed.position(topic)) is not None:
                self.advanced |= self.engine.advance(topic, offset)

    async def publish_backlog(self) -> None:
        """Publish until the rest fits into the next transaction."""
        while self.journal.backlog:
            await self.publish()

    async def publish_all(self) -> None:
        """Publish all charged events."""
        while self.journal.pending:
            await self.publish()

    async def publish(self) -> None:
        """Publish charged events, as many as one transaction may hold."""
        await self._tick()
        began = self.clock.now()
        shown = await self.journal.flush()
        self._published(shown, began, self.clock.now())

    async def hand_over(self, *, ends: bool = False) -> None:
        """Commit positions and publish all charged events, so that the next owner repeats nothing.

        ``ends``: no record is stepped before another commit, so that the next owner may read under another
        specification at once.
        """
        more = (
            self.read_to.get(topic, 0) > self._stepped(topic, at) for topic, at in self._offsets().items()
        )
        self.advance_positions()
        if self.uncommitted or self.advanced or (ends and any(more)):
            await self.commit(last=ends)
        await self.publish_all()

    async def end_closed(self) -> None:
        """Publish all charged events, and raise `ApplicationClosed`."""
        await self.publish_all()
        raise self.journal.closed_error()

    async def _tick(self) -> None:
        """Wait for the next tick if the policy has a cadence."""
        if self.policy.cadence is not None:
            since, cadence = self.clock.now() - self._origin, self.policy.cadence / 1000
            await self.clock.sleep(cadence - since % cadence)

    def _published(self, events: int, began: float, now: float) -> None:
        """Count and time a transaction that published events."""
        self.status.outbox = self.journal.pending
        self.observer.count("commits_total")
        self.observer.time("commit_seconds", now - began)
        self.observer.count("events_published_total", by=events)
        if events and self._charged_at is not None:
            self.observer.time("alert_latency_seconds", now - self._charged_at)
            self._charged_at = None

    # Commands

    def take_commands(self, records: Iterable[Record]) -> None:
        """Add fetched records of the control partition to those that `next_command` reads."""
        for record in records:
            self.commands.note_withdrawal(record)
            self.unread.append(record)

    async def next_command(self, phase: CommandPhase) -> Command | None:
        """Commit, and return the command to carry out now; None if every record read is refused or has to wait.

        Expired commands and withdrawals are answered here. The time of the commit, by the brokers' clock, decides
        whether a command is in time.
        """
        while (command := await self._find_command(phase)) is not None:
            await self.commit()
            if command.action is Action.WITHDRAW:
                self._withdraw(command)
            elif (now_ms := self.journal.time_ms) > command.expires:
                operations.expire(self.engine, command, now_ms)
                self.consume_number(command, accepted=False, expired=True)
            else:
                return command
            await self.commit()
        return None

    def _withdraw(self, command: Command) -> None:
        last = self.commands.snapshot
        before = f"the last one, number {last.number} ({last.action}), {last.outcome}"
        before = before if last.number else "there was none before"
        accepted = operations.withdraw(self.engine, command, self.commands.waiting, before)
        self.consume_number(command, accepted=accepted)

    async def _find_command(self, phase: CommandPhase) -> Command | None:
        """Return the next command that may be carried out unless it has expired, or None."""
        if (command := self.commands.ready(phase, self.journal.time_ms)) is not None:
            return command
        while self.unread:
            record = self.unread.popleft()
            self.uncommitted += 1
            found = self.commands.read(record, phase)
            if isinstance(found, Command):
                return found
            if isinstance(found, str):
                self._refuse(record.offset, found)
            elif isinstance(found, Repeated) and self._may_report():
                self._answer_again(found)
            if self.unread and len(self.unread) % COMMANDS_AT_ONCE == 0:
                await self.clock.sleep(0)
        return None

    def _answer_again(self, found: Repeated) -> None:
        stored = found.stored
        outcome = {"accepted": stored.accepted, "expired": stored.expired}
        operations.reply(self.engine, found.command, message=f"it {stored.outcome} before", **outcome)

    def consume_number(
        self,
        command: Command,
        *,
        accepted: bool,
        in_progress: CommandProgress | None = None,
        expired: bool = False,
    ) -> None:
        """Mark a command's number as used, and refuse another command that waited for it."""
        outcome = {"accepted": accepted, "expired": expired}
        waited = self.commands.consume_number(command, in_progress=in_progress, **outcome)
        if waited is not None:
            withdrawn = command.action is Action.WITHDRAW
            self._refuse(waited, Refusal.WITHDRAWN if withdrawn else Refusal.STALE)
        if in_progress is None:
            self._log_outcome(command, accepted=accepted)

    async def continue_command(self) -> None:
        """Carry out the next slice of a command to many datasets, if one is in progress, and commit."""
        if (in_progress := self.commands.in_progress) is not None:
            self._slices = self._slices or operations.apply_to_many(self.engine, in_progress)
            for in_progress in self._slices:
                self.commands.advance(in_progress)
                if self.engine.full:
                    break
                await self.clock.sleep(0)
            else:
                self._slices = None
                self.commands.end(accepted=in_progress.accepted)
                self._log_outcome(in_progress.command, accepted=in_progress.accepted)
        await self.commit()

    def _refuse(self, offset: int, reason: str) -> None:
        """Report a refused record; beyond the rate limit, only count it."""
        if self._may_report():
            self.engine.accounts.next.rejects.append((self.control, offset, reason))
            log.warning("event=command_refused shard=%d offset=%d reason=%s", self.shard, offset, reason)
        else:
            self.observer.count("records_rejected_total", self.control, reason)

    def _may_report(self) -> bool:
        """Return whether the rate limit admits one more report: a bucket that is full again at a known time."""
        now = self.clock.now()
        full_at = max(self._reports_full_at, now) + 1
        if self.engine.full or full_at - now > REPORTED:
            return False
        self._reports_full_at = full_at
        return True

    def _log_outcome(self, command: Command, *, accepted: bool) -> None:
        told = (self.shard, command.number, command.action.value)
        if accepted:
            log.info("event=command_done shard=%d number=%d action=%s", *told)
        else:
            log.warning("event=command_refused shard=%d number=%d action=%s reason=see-reply", *told)
