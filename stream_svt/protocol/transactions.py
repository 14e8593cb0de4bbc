"""Transactions of a shard: the changes of its engine, and the charged events of earlier transactions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stream_svt.monitor.engine import Engine
from stream_svt.protocol.controls import Controls
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.ports import Clock, Feed, Observer, ShardWorkload
from stream_svt.protocol.shard_states import ShardStatus
from stream_svt.settings.sections import CommitConfig

POSITIONS_EVERY = 5.0
"""Seconds between two commits of positions alone: a producer may write markers without end."""
READ_AHEAD = 2
"""Records that may be stepped past a commit, in multiples of `max_records`: the most that a takeover replays."""


@dataclass(eq=False, kw_only=True)
class Transactions:
    """Commits the changes of an engine and publishes charged events, at ticks if the policy has a cadence.

    ``journal`` is not opened yet; a takeover sets ``engine`` and ``controls`` before the first commit.

    Attributes:
        uncommitted: Records stepped and commands read since the last commit.
        fetched_at: When the current records were fetched.
        stepped_to: By query topic, the end of the batches stepped.
        advanced: Whether a position is past the committed one, although nothing else is to be committed.
    """

    feed: Feed
    journal: Journal
    workload: ShardWorkload
    policy: CommitConfig
    clock: Clock
    observer: Observer
    status: ShardStatus
    engine: Engine = field(init=False)
    controls: Controls = field(init=False)
    uncommitted: int = field(init=False, default=0)
    fetched_at: float = field(init=False, default=0.0)
    stepped_to: dict[str, int] = field(init=False, default_factory=dict)
    advanced: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._charged_at: float | None = None
        self._origin = self._last_commit = self.clock.now()

    @property
    def read_to(self) -> dict[str, int]:
        """By query topic, the offset before which any owner may have stepped records."""
        return self.journal.meta.read_to

    @property
    def time_ms(self) -> int:
        """Time of the last commit by the brokers' clock, in ms."""
        return self.journal.time_ms

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
        self.journal.meta.commands = self.controls.snapshot
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
        topics = (topic for topic in self.workload.topics if not self.engine.is_counts(topic))
        status.offsets = {topic: offsets[topic] for topic in topics if topic in offsets}
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
