"""The engine: every (dataset, monitor) of a shard as arrays. (Interface; the body follows.)"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stream_svt.monitor.batch import QueryBatch
from stream_svt.monitor.commands import Command
from stream_svt.monitor.released import DatasetView, ReleasedEvent
from stream_svt.monitor.spec import ApplicationSpec


@dataclass(frozen=True, slots=True)
class Step:
    """What a call to `Engine.step` achieved.

    Attributes
    ----------
    done
        Every monitor has consumed the whole batch.
    durable_first
        New threshold noise must be durable before `step` is called again with the same batch.
    urgent
        Something waits to be charged or published: commit now rather than at the next interval.
    """

    done: bool
    durable_first: bool
    urgent: bool


@dataclass(slots=True)
class Commit:
    """Everything one transaction has to make durable.

    Attributes
    ----------
    records
        State records (plain bytes, to be sealed) by key; None deletes the key.
    progress
        Positions, clocks and counters; goes into the transaction's meta record.
    events
        Released events in order: durable with this transaction, published with the next one.
    rejects
        (topic, offset, reason) of records that were refused.
    views
        Released state of the datasets that changed; valid once the transaction is durable.
    tested, skipped
        Queries tested by monitor, and skipped by (monitor, reason), since the last commit.
    """

    records: dict[bytes, bytes | None] = field(default_factory=dict)
    progress: bytes = b""
    events: list[ReleasedEvent] = field(default_factory=list)
    rejects: list[tuple[str, int, str]] = field(default_factory=list)
    views: list[DatasetView] = field(default_factory=list)
    tested: dict[str, int] = field(default_factory=dict)
    skipped: dict[tuple[str, str], int] = field(default_factory=dict)


class Engine:
    """Monitors of one shard."""

    def __init__(
        self, spec: ApplicationSpec, *, shard: int, datasets: Sequence[str], key: bytes, entropy: Callable[[int], bytes]
    ) -> None:
        """``key``: 32 secret bytes from which query noise is derived; ``datasets``: those homed at this shard."""
        raise NotImplementedError

    def load(self, records: Mapping[bytes, bytes], progress: bytes | None) -> None:
        """Take over from the live state records; an empty mapping and no progress is the very first start."""
        raise NotImplementedError

    def next_offset(self, topic: str) -> int | None:
        """Return where reading ``topic`` goes on, None where it was never read."""
        raise NotImplementedError

    def begin(self, topic: str, offset: int) -> None:
        """Journal where ``topic`` is read from at the very first start."""
        raise NotImplementedError

    def step(self, batch: QueryBatch) -> Step:
        """Test the queries of a batch, or what an earlier call with the same batch left of them."""
        raise NotImplementedError

    def take_commit(self) -> Commit:
        """Return what has to be durable next."""
        raise NotImplementedError

    def committed(self) -> None:
        """Tell that the last commit taken is durable: new thresholds may be compared from now on."""
        raise NotImplementedError

    def apply(self, command: Command) -> None:
        """Carry out a command at a barrier; the reply is an event of the next commit. Never raises for a
        command that cannot be carried out: the reply says why.
        """
        raise NotImplementedError

    def reload(self, spec: ApplicationSpec) -> None:
        """Go on with another spec at a barrier. Raises ConfigError for changes that need a new application."""
        raise NotImplementedError

    def paused(self, topic: str) -> bool:
        """Tell whether consumption of a topic is stopped by a command."""
        raise NotImplementedError

    def views(self) -> list[DatasetView]:
        """Return the released state of all datasets, as it stands after `load`."""
        raise NotImplementedError

    def accept_loss(self, topic: str, offset: int) -> None:
        """Go on at ``offset`` although records before it are gone: open runs of the topic close at full price."""
        raise NotImplementedError

    def mark_exhausted(self) -> None:
        """Mark every dataset of the shard exhausted (the way out of a rollback)."""
        raise NotImplementedError
