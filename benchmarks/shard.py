"""One shard in this process: all that a worker does with queries, on a log, a feed and a clock in memory.

The session, decoder, engine, journal and sealing are the service's own; only what talks to Kafka is replaced.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from stream_svt.kafka.partitioning import Partitioning
from stream_svt.monitor.released import Alert
from stream_svt.monitor.state.accounts import Commit
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.ports import Clock, Stopped, Transaction, Written
from stream_svt.protocol.records import OneRecord, Records
from stream_svt.protocol.sealing import RecordContext
from stream_svt.protocol.session import ShardSession
from stream_svt.protocol.shard_states import ShardStatus
from stream_svt.protocol.state_records import META, JournalSettings
from stream_svt.queries.avro.records import Schemas
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.sections import CommitConfig, TopicsConfig
from stream_svt.worker.workload import AppliedWorkload

TIME_MS = 1_700_000_000_000


class Store:
    """The shard's log: the state as sizes of its live records, and what was written in all."""

    def __init__(self) -> None:
        self.sizes: dict[bytes, int] = {}
        self.transactions = self.written = self.alert_bytes = 0
        self._meta = b""

    @property
    def state_bytes(self) -> int:
        """Bytes of the live state records, their keys included."""
        return sum(len(key) + size for key, size in self.sizes.items())

    async def fence(self) -> None:
        """There are no other writers."""

    check_fenced = close = fence

    async def transact(self, transaction: Transaction) -> Written:
        """Note what is written."""
        self.transactions += 1
        for key, record in transaction.records.items():
            self.written += len(key) + len(record or b"")
            self.sizes.pop(key, None)
            if record is not None:
                self.sizes[key] = len(record)
        self.alert_bytes += sum(len(event) for _, event in transaction.alerts)
        self._meta = transaction.records[META] or b""
        return Written(None, TIME_MS)

    async def read_state(self, *, committed: bool = True) -> dict[bytes, bytes]:
        """Return the record that a new state is checked by; before the first transaction nothing."""
        return {} if committed else {META: self._meta}

    async def read_alerts(self, *_: object, committed: bool = False) -> tuple[int, int]:
        """Return that there are none."""
        del committed
        return 0, 0

    async def topic_ids(self) -> dict[str, str]:
        """Return that the topics have no ids."""
        return {}


class Queue:
    """The shard's queries: what is put in is fetched once, one batch at a time."""

    held = stopping = False

    def __init__(self, topic: str) -> None:
        self.batches: deque[Records] = deque()
        self._topic, self.end = topic, 0

    async def wait_for_rebalance(self) -> None:
        """There is no rebalance."""

    async def spans_and_ids(self, topics: Sequence[str]) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
        """Return that topics begin empty, and have no ids."""
        return dict.fromkeys(topics, (0, 0)), {}

    async def fetch(self, *_: object) -> Mapping[str, Records]:
        """Return the next batch."""
        if not self.batches:
            raise Stopped
        batch = self.batches.popleft()
        self.end = int(batch.offset[-1]) + 1
        return {self._topic: batch}

    def position(self, topic: str) -> int:
        """Return where a topic is read on."""
        return self.end if topic == self._topic else 0

    def seek(self, *_: object) -> None:
        """Each record is fetched once."""

    def high_water(self, _: str) -> None:
        """Nothing is known of the end."""


class Counts:
    """Counts the alerts of durable commits."""

    def __init__(self) -> None:
        self.alerts = 0

    def committed(self, commit: Commit) -> None:
        """Count a commit's alerts."""
        self.alerts += sum(isinstance(event.data, Alert) for event in commit.events)

    def count(self, *_: object, by: int = 1) -> None:
        """Count nothing."""

    def time(self, *_: object) -> None:
        """Time nothing."""


class Shard:
    """A running session of an application's only shard; its state is sealed, and begins empty.

    It commits after ``commit_records`` queries: batches should have so many.
    """

    def __init__(
        self, spec: ApplicationSpec, topic: str, *, commit_records: int, schemas: Schemas | None = None
    ) -> None:
        self.store, self.queue, self.counts = Store(), Queue(topic), Counts()
        policy = CommitConfig.model_validate({"interval": "1m", "max_records": commit_records})
        clock = Clock(now=time.monotonic, epoch=time.time, sleep=_no_sleep)
        workload = workload_of(spec, schemas)
        self.session = session_of(workload, self.store, self.queue, self.counts, policy, clock)
        asyncio.run(self.session.open())

    def play(self, batches: Iterable[Sequence[OneRecord]]) -> float:
        """Read and commit batches, and publish what they released; return the seconds of processor time."""
        self.queue.batches.extend(map(Records.of, batches))
        began = time.process_time()
        asyncio.run(self.session.run())
        return time.process_time() - began


def session_of(
    workload: AppliedWorkload, store: Store, queue: Queue, counts: Counts, policy: CommitConfig, clock: Clock
) -> ShardSession:
    """Return a session of an application's only shard."""
    settings = JournalSettings(
        context=RecordContext("cluster", workload.spec.application, "state", 0),
        topics=TopicsConfig(state="state", alerts="alerts", rejects="rejects", partitions=1),
        masters=(os.urandom(32),),
        entropy=os.urandom,
        epoch=time.time,
    )
    return ShardSession(
        feed=queue,  # type: ignore[arg-type]  # it has no records to scan
        journal=Journal(store, settings),
        workload=workload,
        shard=0,
        control="control",
        policy=policy,
        start_at="earliest",
        clock=clock,
        observer=counts,
        status=ShardStatus(0),
    )


def workload_of(spec: ApplicationSpec, schemas: Schemas | None = None) -> AppliedWorkload:
    """Return what a worker holds of a specification before it takes a shard over."""
    workload = AppliedWorkload(spec, Partitioning(1, "murmur2"), schemas=schemas, now_ms=TIME_MS)
    for _ in workload.prepare():
        pass
    return workload


async def _no_sleep(_: float) -> None:
    """Go on at once."""
