"""What the protocol needs of the world: one shard's part of the log, its queries and commands, a clock.

A port's call either has its effect and returns, or raises. `Fenced` and `Unavailable` leave the outcome unknown:
what was written may or may not be there, now or later, until `Log.fence` has returned again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stream_svt.monitor.accounts import Commit
from stream_svt.monitor.batch import QueryBatch
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.shard_datasets import ShardDatasets
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import RetiredDatasets


class Stopped(Exception):
    """The shard was told to stop while it waited; nothing is in flight."""


class Record(Protocol):
    """A record of a partition; `aiokafka.ConsumerRecord` fits.

    ``timestamp`` is in milliseconds since 1970, set by the broker where the topic says so.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Transaction:
    """What one transaction writes, to the shard's partition of three topics.

    Attributes:
        records: By key, None for a tombstone; the last one written is ``meta``.
        claim: Whether to ask for the right to write to all three topics even where nothing is written.
    """

    alerts: Sequence[tuple[bytes, bytes]] = field(repr=False)
    rejects: Sequence[tuple[str, int, str]]
    records: Mapping[bytes, bytes | None] = field(repr=False)
    claim: bool = False


class Log(Protocol):
    """The state, alert and reject partitions of one shard, written by one transactional producer."""

    async def fence(self) -> None:
        """Begin as the shard's writer: earlier writers can commit nothing more, their open transaction is gone."""

    async def transact(self, transaction: Transaction) -> int | None:
        """Write all of it or nothing; return the offset of the newest alert, None where there was none."""

    async def check_fenced(self) -> None:
        """Find out whether this still is the shard's writer; leaves nothing on the state and alert partitions."""

    async def read_state(self, *, committed: bool = True) -> dict[bytes, bytes]:
        """Return the live records of the state partition, up to its end as it is now."""

    async def read_alerts(
        self, start: int | None, take: Callable[[Record], None], *, committed: bool = False
    ) -> tuple[int, int]:
        """Show the alert partition from an offset (None: its beginning), uncommitted records too unless told.

        Return the first offset that the partition still holds, and its end.
        """

    async def close(self) -> None:
        """Give the producer up; nothing is committed by this."""


class Feed(Protocol):
    """The query partitions and the control partition of one shard."""

    @property
    def stopping(self) -> bool:
        """Whether the shard was told to stop."""

    @property
    def held(self) -> bool:
        """Whether a rebalance is under way: nothing more may be stepped until it has settled."""

    async def wait_for_rebalance(self) -> None:
        """Wait for the end of the rebalance, with nothing in flight; raise `Stopped` where the shard goes elsewhere."""

    async def spans(self, topics: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return first and end offset of the shard's partition of each topic, as they are now."""

    async def fetch(
        self, topics: Iterable[str], max_wait: float, max_records: int | None = None
    ) -> Mapping[str, Sequence[Record]]:
        """Return what there is to read, after at most so many seconds; nothing where a rebalance begins.

        Other topics are paused until they are fetched.

        Raises:
            Stopped: The shard was told to stop; nothing was consumed.
            RecordsLost: The next records of a topic are gone.
        """

    async def position(self, topic: str) -> int:
        """Offset that the next fetch reads from: behind broker markers, too."""

    def seek(self, topic: str, offset: int) -> None:
        """Read on from this offset."""

    def high_water(self, topic: str) -> int | None:
        """Return the end of the topic as of the last fetch, None where not known yet."""


class Decoder(Protocol):
    """Turns records of one query topic into a batch."""

    def decode(self, records: Sequence[Record]) -> QueryBatch:
        """Return the queries among records that follow one another; malformed ones go to `rejects`."""


class ShardWorkload(Protocol):
    """What a shard runs."""

    @property
    def spec(self) -> ApplicationSpec:
        """The specification wanted."""

    @property
    def topics(self) -> tuple[str, ...]:
        """Names of the query topics."""

    @property
    def partitions(self) -> int:
        """Number of partitions of every topic."""

    @property
    def version(self) -> tuple[int, str]:
        """Number and digest of the version applied, (0, "") where the specification came otherwise."""

    def gather(self, shard: int, gone: RetiredDatasets) -> Iterable[None]:
        """Look in slices at the datasets of one shard but for what is gone: the next engine is of these."""

    def engine(self, shard: int, key: bytes) -> Engine:
        """Return a new engine for one shard; ``key`` derives its query noise."""

    def decoders(
        self, shard: int, datasets: ShardDatasets, also: Iterable[tuple[str, str]] = ()
    ) -> Mapping[str, Decoder]:
        """Return a decoder of these datasets for each query topic; queries may name monitors in ``also``, too."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Time, handed in: seconds of a clock that never goes back, seconds since 1970, and what waits.

    ``sleep`` waits so many seconds of ``now``; for none, until it is the shard's turn among all that have work at hand.
    """

    now: Callable[[], float]
    epoch: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]


class Observer(Protocol):
    """Counts and times what a shard does, once it is durable; `stream_svt.service.metrics` has the names."""

    def committed(self, commit: Commit) -> None:
        """Count what a durable commit holds."""

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        """Raise a counter."""

    def time(self, name: str, seconds: float) -> None:
        """Add a duration to a histogram."""
