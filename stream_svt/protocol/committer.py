"""Makes durable what the engine of a shard holds, publishes what is charged, and reports both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stream_svt.monitor.engine import Engine
from stream_svt.protocol.controls import CommandHandler, Verify, trust_the_topic
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.ports import Clock, Feed, Observer, ShardWorkload
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
        cadence: Seconds between transactions at fixed times, None where they happen as soon as they can.
    """

    interval: float = 2.0
    max_records: int = 20_000
    start_at: str = "earliest"
    cadence: float | None = None


@dataclass(eq=False, kw_only=True)
class Committer:
    """Writes one transaction after the other, at ticks where the policy has a cadence.

    At first every topic of ``feed`` is paused and ``journal`` is not opened; ``control`` names the control topic. A
    takeover sets ``engine`` and ``commands``, whose effects are committed.
    """

    shard: int
    feed: Feed
    journal: Journal
    workload: ShardWorkload
    control: str
    policy: CommitPolicy
    clock: Clock
    observer: Observer
    status: ShardStatus
    verify: Verify = trust_the_topic
    engine: Engine = field(init=False)
    commands: CommandHandler = field(init=False)

    def __post_init__(self) -> None:
        self.stepped = 0  # records since the last commit
        self.steps: list[float] = []  # seconds of the engine's steps since then
        self.fetched_at = 0.0  # when the records that are stepped now were fetched
        self._charged_at: float | None = None
        self._origin = self._last_commit = self.clock.now()

    @property
    def read_to(self) -> dict[str, int]:
        """By query topic, the offset before which everything lies that any owner may have stepped."""
        return self.journal.meta.read_to

    @property
    def uncommitted(self) -> int:
        """Number of records stepped and of commands read since the last commit."""
        return self.stepped + self.commands.taken

    @property
    def seconds_left(self) -> float:
        """Seconds until a commit is due for its age alone."""
        return max(self._last_commit + self.policy.interval - self.clock.now(), 0.0)

    @property
    def is_due(self) -> bool:
        """Whether what is not committed has to be."""
        full = self.uncommitted >= self.policy.max_records
        return self.uncommitted > 0 and (self.journal.pending > 0 or full or not self.seconds_left)

    async def turn(self) -> None:
        """Wait for the shard's turn between two pieces of work; that one was done is a sign of life."""
        self.status.beat = self.clock.now()
        await self.clock.sleep(0)

    async def in_slices(self, work: Iterable[object], *, commits: bool = False) -> None:
        """Do long work, with turns of others in between; where it ``commits``, with a commit wherever one is full."""
        for _ in work:
            if commits and self.engine.full:
                await self.commit()
            else:
                await self.turn()

    async def commit(self) -> None:
        """Make durable what the engine holds; then publish what is too much for the next transaction to publish."""
        await self.turn()
        await self._tick()
        began = self.clock.now()
        commit = self.engine.take_commit()
        self._bound()
        self.journal.meta.commands = self.commands.standing
        shown = await self.journal.commit(commit)
        self.engine.committed()
        # From here on everything in the commit is durable, and only now may anything of it be shown.
        now = self.clock.now()
        status = self.status
        status.views.update({view.dataset: view for view in commit.views})
        status.totals = commit.totals
        self.observer.committed(self.shard, commit, now - began, self.steps)
        self._published(shown, now)
        if commit.events:
            self._charged_at = self.fetched_at or began
        self.steps = []
        self.stepped = self.commands.taken = 0
        self._last_commit = now
        status.committed_at = self.clock.epoch()
        status.offsets = {
            topic: offset
            for topic in self.workload.topics
            if (offset := self.engine.next_offset(topic)) is not None
        }
        await self.publish_backlog()

    async def publish_backlog(self) -> None:
        """Publish what the next commit has to wait for."""
        while self.journal.backlog:
            await self.publish()

    async def publish_all(self) -> None:
        """Publish everything that is charged."""
        while self.journal.pending:
            await self.publish()

    async def publish(self) -> None:
        """Publish what is charged, or as much of it as one transaction takes."""
        await self._tick()
        began = self.clock.now()
        shown = await self.journal.flush()
        self.observer.flushed(self.clock.now() - began)
        self._published(shown, self.clock.now())

    async def hand_over(self) -> None:
        """Store positions and publish what is charged, so that the next owner has nothing to repeat."""
        if self.uncommitted:
            await self.commit()
        await self.publish_all()

    async def end_closed(self) -> None:
        """Publish everything that is charged, and raise `ApplicationClosed`."""
        await self.publish_all()
        raise self.journal.closed_error()

    async def _tick(self) -> None:
        """Wait for the next tick where transactions have fixed times."""
        if self.policy.cadence is not None:
            since = self.clock.now() - self._origin
            await self.clock.sleep(self.policy.cadence - since % self.policy.cadence)

    def _bound(self) -> None:
        """Say how far each topic may be stepped before the next commit."""
        for topic in self.engine.topics():
            if (offset := self.engine.next_offset(topic)) is not None:
                least = offset + READ_AHEAD * self.policy.max_records
                self.read_to[topic] = max(self.read_to.get(topic, 0), least)

    def _published(self, events: int, now: float) -> None:
        self.status.outbox = self.journal.pending
        latency = None
        if events and self._charged_at is not None:
            latency, self._charged_at = now - self._charged_at, None
        self.observer.published(events, latency)
