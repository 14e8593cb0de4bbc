"""The interfaces that the protocol needs: one shard's log, its queries and commands, a clock, an observer.

A call either has its effect and returns, or raises. After `Fenced` and `BrokerUnavailable` the outcome is unknown:
written records may still appear until `Log.fence` has returned again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from stream_svt.columns.query_batch import QueryBatch
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.state.accounts import Commit
from stream_svt.protocol.records import Record
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import RetiredDatasets


class Stopped(Exception):
    """The shard was told to stop while it waited; nothing is in flight."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """Content of one transaction, for the shard's partition of three topics.

    ``records`` are by key, None for a tombstone; ``meta`` comes last. With ``claim``, the permission to write is
    checked for all three topics, even for topics without a record.
    """

    alerts: Sequence[tuple[bytes, bytes]] = field(repr=False)
    rejects: Sequence[tuple[str, int, str]]
    records: Mapping[bytes, bytes | None] = field(repr=False)
    claim: bool = False


class Written(NamedTuple):
    """Position of a written transaction: offset of its newest alert (None without one), time, last offset.

    ``time_ms`` is in milliseconds since 1970, set by the broker if the topic has append times, otherwise by this
    worker. ``state_offset`` is the offset of the last record of the state partition, None if unknown.
    """

    alert_offset: int | None
    time_ms: int
    state_offset: int | None = None


class Log(Protocol):
    """The state, alert and reject partitions of one shard, written by one transactional producer."""

    async def fence(self) -> None:
        """Become the shard's writer: earlier writers can commit nothing more, and their open transaction is aborted."""

    async def transact(self, transaction: Transaction) -> Written:
        """Write everything or nothing."""

    async def topic_ids(self) -> dict[str, str]:
        """Return the ids of the state topic and the alert topic, if brokers have ids."""

    async def check_fenced(self) -> None:
        """Raise `Fenced` if another writer has taken over; writes nothing to the state and alert partitions."""

    async def read_state(self, *, committed: bool = True) -> dict[bytes, bytes]:
        """Return the live records of the state partition, up to its current end."""

    async def read_alerts(
        self, start: int | None, take: Callable[[Record], None], *, committed: bool = False
    ) -> tuple[int, int]:
        """Pass the records of the alert partition from an offset (None: its beginning) to ``take``.

        Uncommitted records are included, unless ``committed``. Returns the first offset that the partition still
        has, and its end.
        """

    async def close(self) -> None:
        """Close the producer; commits nothing."""


class Feed(Protocol):
    """The query partitions and the control partition of one shard."""

    @property
    def stopping(self) -> bool:
        """Whether the shard was told to stop."""

    @property
    def held(self) -> bool:
        """Whether a rebalance is in progress: nothing may be stepped until it ends."""

    async def wait_for_rebalance(self) -> None:
        """Wait for the end of the rebalance, with nothing in flight; raise `Stopped` if the shard moves away."""

    async def spans_and_ids(self, topics: Sequence[str]) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
        """Return first and end offset of the shard's partition of each topic, and the ids of topics.

        A topic that is created again has another id. Brokers before Kafka 2.8 have none.
        """

    async def scan(self, topic: str, start: int, take: Callable[[Record], None]) -> None:
        """Pass the records from an offset to the topic's end, as of now, to ``take``; the next fetch is unchanged."""

    async def fetch(
        self, topics: Iterable[str], max_wait: float, max_records: int | None = None
    ) -> Mapping[str, Sequence[Record]]:
        """Return the next records after at most ``max_wait`` seconds; none when a rebalance begins.

        Other topics are paused until they are fetched. Raises `Stopped` if the shard was told to stop and no record
        was consumed, `RecordsLost` if the next records of a topic are gone, and `RecordsUnreadable` if the next
        records of a topic cannot be read and no other topic has records.
        """

    def position(self, topic: str) -> int | None:
        """Return the offset of the next fetch; None before the first `seek`.

        It is past every record that a fetch returned, and past the markers, aborted and compacted records after
        them.
        """

    def seek(self, topic: str, offset: int) -> None:
        """Continue to read at this offset."""

    def high_water(self, topic: str) -> int | None:
        """Return the end of the topic as of the last fetch, including open transactions; None if unknown."""


class Decoder(Protocol):
    """Turns records of one query topic into a batch."""

    def lack(self, records: Sequence[Record]) -> tuple[int, str]:
        """Return the number of leading records that can be decoded now, and why the next one cannot."""

    def decode(self, records: Sequence[Record]) -> QueryBatch:
        """Return the queries in the first of consecutive records, at least one; malformed ones go to `rejects`.

        The batch covers the records before its `end`.
        """


class ShardWorkload(Protocol):
    """The specification, engine and decoders of shards."""

    @property
    def spec(self) -> ApplicationSpec:
        """The configured specification."""

    @property
    def topics(self) -> tuple[str, ...]:
        """Names of the query topics."""

    @property
    def version(self) -> tuple[int, str]:
        """Number and digest of the applied version; (0, "") if the specification comes from a file."""

    def gather(self, shard: int, gone: RetiredDatasets) -> Iterable[None]:
        """Collect in slices the datasets of one shard, except those in ``gone``, for the next engine."""

    def engine(self, shard: int, key: bytes) -> Engine:
        """Return a new engine for one shard; ``key`` derives its query noise."""

    def decoders(self, engine: Engine) -> Mapping[str, Decoder]:
        """Return a decoder for each query topic; queries may name monitors of the engine, too."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Time as functions: seconds of a monotonic clock, seconds since 1970, and a sleep.

    ``sleep(0)`` waits for the shard's turn among all shards that have work. In a context of ``ahead`` the shard has
    priority for a short time: no other shard gets a turn.
    """

    now: Callable[[], float]
    epoch: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    ahead: Callable[[], AbstractContextManager[None]] = nullcontext


class Observer(Protocol):
    """Counts and times the durable work of a shard; `stream_svt.worker.metrics` defines the names."""

    def committed(self, commit: Commit) -> None:
        """Count the events and tests of a durable commit."""

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        """Raise a counter."""

    def time(self, name: str, seconds: float) -> None:
        """Add a duration to a histogram."""
