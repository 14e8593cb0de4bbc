"""What a session of a shard works with, and what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from stream_svt.monitor.projection import Totals
from stream_svt.monitor.released import DatasetView
from stream_svt.protocol.controls import Verify, trust_the_topic
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.ports import Clock, Feed, Observer, Workload
from stream_svt.protocol.shard_states import Cause, Signal, State, advance


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


@dataclass(slots=True)
class ShardStatus:
    """What may be said about a shard, all of it committed or public.

    ``outbox`` is the number of events that are charged and not yet published. ``views`` are those of the datasets
    that are shown one by one; ``totals`` of all, None until the shard's state was read. ``reason`` says in words, and
    ``cause`` for machines, why the shard is not open.
    """

    shard: int
    state: State = State.OPENING
    reason: str = ""
    cause: Cause = Cause.NONE
    key_id: str = ""
    sequence: int = 0
    state_records: int = 0
    outbox: int = 0
    offsets: dict[str, int] = field(default_factory=dict)
    lag: dict[str, int] = field(default_factory=dict)
    views: dict[str, DatasetView] = field(default_factory=dict)
    totals: Totals | None = None
    committed_at: float = 0.0
    beat: float = 0.0

    def signal(self, signal: Signal, cause: Cause | None = None, reason: str = "") -> None:
        """Move to the state that follows; ``cause`` and ``reason`` stay as they are where no cause is given."""
        self.state = advance(self.state, signal)
        if cause is not None:
            self.cause, self.reason = cause, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionParts:
    """What a session works with.

    Attributes:
        shard: Number of the shard.
        feed: The shard's queries and commands; every topic is paused.
        journal: The shard's journal, not opened.
        workload: What to run.
        control: Name of the control topic.
        policy, clock: How often to commit, and by which clock.
        observer, status: Where to report.
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
