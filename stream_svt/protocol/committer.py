"""Makes durable what the engine holds, publishes what is charged, and reports both."""

from __future__ import annotations

from dataclasses import dataclass

from stream_svt.monitor.engine import Engine
from stream_svt.protocol.command_handler import CommandHandler
from stream_svt.protocol.controls import Verify, trust_the_topic
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.ports import Clock, Feed, Observer, Workload
from stream_svt.protocol.shard_states import ShardStatus

READ_AHEAD = 2
"""How far beyond a commit records are stepped, in multiples of the most records of a fetch: what a takeover replays."""


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """How often a shard commits.

    Attributes:
        interval: Seconds between commits of batches without released outcomes.
        max_records: Records after which such a commit is due at once, and most a fetch returns.
        start_at: "earliest" or "latest": where a topic is read from that was never read.
        cadence: Seconds between transactions where they are to happen at fixed times, None where what is charged is
            published as soon as it can be. See `stream_svt.protocol.session.ShardSession`.
    """

    interval: float = 2.0
    max_records: int = 20_000
    start_at: str = "earliest"
    cadence: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionParts:
    """What a session works with.

    Attributes:
        feed: Every topic of it is paused.
        journal: Not opened.
        control: Name of the control topic.
        verify: Tells which commands to hear.
    """

    shard: int
    feed: Feed
    journal: Journal
    workload: Workload
    control: str
    policy: CommitPolicy
    clock: Clock
    observer: Observer
    status: ShardStatus
    verify: Verify = trust_the_topic


class Committer:
    """Writes one transaction after the other, at ticks where the policy has a cadence.

    Attributes:
        engine, commands: Whose effects are committed; set by the takeover before the first commit.
        topics: Names of the query topics.
        stepped: Records stepped since the last commit.
        steps: Seconds of the engine's steps since then.
        fetched_at: When the records that are stepped now were fetched.
    """

    engine: Engine
    commands: CommandHandler

    def __init__(self, parts: SessionParts) -> None:
        self._journal = parts.journal
        self._policy = parts.policy
        self._clock = parts.clock
        self._now = parts.clock.now
        self._observer = parts.observer
        self._status = parts.status
        self._shard = parts.shard
        self.topics = parts.workload.topics
        self.stepped = 0
        self.steps: list[float] = []
        self.fetched_at = 0.0
        self._charged_at: float | None = None
        self._origin = self._last_commit = self._now()

    @property
    def read_to(self) -> dict[str, int]:
        """By query topic, the offset before which everything lies that any owner may have stepped."""
        return self._journal.meta.read_to

    @property
    def uncommitted(self) -> int:
        """Number of records stepped and of commands read since the last commit."""
        return self.stepped + self.commands.taken

    @property
    def seconds_left(self) -> float:
        """Seconds until a commit is due for its age alone."""
        return max(self._last_commit + self._policy.interval - self._now(), 0.0)

    @property
    def is_due(self) -> bool:
        """Whether what is not committed has to be."""
        full = self.uncommitted >= self._policy.max_records
        return self.uncommitted > 0 and (self._journal.pending > 0 or full or not self.seconds_left)

    async def turn(self) -> None:
        """Wait for the shard's turn between two pieces of work; that one was done is a sign of life."""
        self._status.beat = self._now()
        await self._clock.sleep(0)

    async def commit(self) -> None:
        """Make durable what the engine holds; then publish what is too much for the next transaction to publish."""
        await self.turn()
        await self._tick()
        began = self._now()
        commit = self.engine.take_commit()
        self._bound()
        self._journal.meta.commands = self.commands.controls.standing
        await self._journal.commit(commit)
        self.engine.committed()
        # From here on everything in the commit is durable, and only now may anything of it be shown.
        now = self._now()
        status = self._status
        status.views.update({view.dataset: view for view in commit.views})
        status.totals = commit.totals
        self._observer.committed(self._shard, commit, now - began, self.steps)
        self._published(now)
        if commit.events:
            self._charged_at = self.fetched_at or began
        self.steps = []
        self.stepped = self.commands.taken = 0
        self._last_commit = now
        status.committed_at = self._clock.epoch()
        status.offsets = {
            topic: offset for topic in self.topics if (offset := self.engine.next_offset(topic)) is not None
        }
        await self.publish_backlog()

    async def commit_or_give_way(self) -> None:
        """Commit where the next commit is full; else let others have their turn."""
        if self.engine.full:
            await self.commit()
        else:
            await self.turn()

    async def publish_backlog(self) -> None:
        """Publish what the next commit has to wait for."""
        while self._journal.backlog:
            await self.publish()

    async def publish_all(self) -> None:
        """Publish everything that is charged."""
        while self._journal.pending:
            await self.publish()

    async def publish(self) -> None:
        """Publish what is charged, or as much of it as one transaction takes."""
        await self._tick()
        began = self._now()
        await self._journal.flush()
        self._observer.flushed(self._now() - began)
        self._published(self._now())

    async def hand_over(self) -> None:
        """Store positions and publish what is charged, so that the next owner has nothing to repeat."""
        if self.uncommitted:
            await self.commit()
        await self.publish_all()

    async def end_closed(self) -> None:
        """Publish everything that is charged, and end for ever.

        Raises:
            ApplicationClosed: Always.
        """
        await self.publish_all()
        raise self._journal.closed_error()

    async def _tick(self) -> None:
        """Wait for the next tick where transactions have fixed times."""
        if self._policy.cadence is not None:
            since = self._now() - self._origin
            await self._clock.sleep(self._policy.cadence - since % self._policy.cadence)

    def _bound(self) -> None:
        """Say how far each topic may be stepped before the next commit."""
        for topic in self.engine.topics():
            if (offset := self.engine.next_offset(topic)) is not None:
                least = offset + READ_AHEAD * self._policy.max_records
                self.read_to[topic] = max(self.read_to.get(topic, 0), least)

    def _published(self, now: float) -> None:
        self._status.outbox = self._journal.pending
        latency = None
        if self._journal.published and self._charged_at is not None:
            latency, self._charged_at = now - self._charged_at, None
        self._observer.published(len(self._journal.published), latency)
