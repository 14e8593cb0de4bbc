"""A shard with scripted sessions, and a group of one worker whose assignments a test makes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError

from stream_svt.application.config import parse_config
from stream_svt.errors import StateRolledBack
from stream_svt.kafka.clients import REBALANCE_TIMEOUT, Cluster
from stream_svt.protocol.shard_states import Cause, ShardSignal, ShardState, ShardStatus
from stream_svt.worker import failures
from stream_svt.worker import group as groups
from stream_svt.worker import shard as module
from stream_svt.worker.failures import Survey
from stream_svt.worker.group import Group
from stream_svt.worker.metrics import Metrics
from stream_svt.worker.ports import ShardFeed
from stream_svt.worker.shard import Shard, WorkerParts
from tests.support.reading_client import Brokers
from tests.support.shop import SPEC
from tests.support.worker import until

CONTROL = "control"
CONFIG = parse_config(f"{SPEC}\ntopics: {{control: {CONTROL}, partitions: 4}}\n")
STATE, COMMANDS = TopicPartition("state", 0), TopicPartition(CONTROL, 0)


def worker_parts(**others: Any) -> WorkerParts:
    """Return the parts of a worker of `CONFIG`, without brokers."""
    parts: dict[str, Any] = dict.fromkeys(("workload", "request_self_test", "on_broker_time"))
    parts |= {"config": CONFIG, "cluster": Cluster({}), "cluster_id": "c"}
    return WorkerParts(**{"metrics": Metrics(CONFIG.spec, "hash")} | parts | others)


class Consumer:
    """A group consumer whose commits succeed or are refused."""

    def __init__(self) -> None:
        self.commits = 0
        self.refuse = False

    async def commit(self, offsets: object) -> None:
        self.commits += 1
        if self.refuse:
            raise CommitFailedError


class Journal:
    """A journal that is read only while its shard is parked."""

    proved = False

    def __init__(self, play: ScriptedShard) -> None:
        self.play = play

    async def inspect(self, *, beside_alerts: bool) -> None:
        assert beside_alerts
        self.play.reads += 1
        if not self.play.proves:
            raise StateRolledBack("as before")

    async def close(self) -> None:
        """Nothing is open."""


class ScriptedShard:
    """A shard whose sessions open or end as scripted; later ones run until they are stopped.

    Attributes:
        brokers: Records of the control and state partitions.
        faults: Topics that a survey finds unreadable.
        proves: Whether the state proves when it is read again.
        reads: Number of times that it was read again.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *endings: Exception | Callable[[], Awaitable[None]]
    ) -> None:
        self.endings = list(endings)
        self.opened = 0
        self.suspected = 0
        self.consumer = Consumer()
        self.brokers = Brokers(records={STATE: 5, COMMANDS: 7})
        self.faults: tuple[str, ...] = ()
        self.reads = 0
        self.proves = False
        declared = SimpleNamespace(counts_topics=frozenset)
        self.workload = SimpleNamespace(topics=("counts",), partitions=4, text_topics={}, declared=declared)
        self.kept = 0
        self.fenced: list[Exception] = []
        self.make_journal: Callable[[], Any] = lambda: Journal(self)
        play = self

        class ShardSession:
            def __init__(self, *, status: ShardStatus, feed: ShardFeed, **parts: object) -> None:
                self.status, self.feed = status, feed

            async def open(self) -> None:
                play.opened += 1
                self.status.signal(ShardSignal.OPENED)
                if play.endings:
                    ending = play.endings.pop(0)
                    if isinstance(ending, Exception):
                        raise ending
                    await ending()

            async def run(self) -> None:
                self.status.signal(ShardSignal.TAKEN_OVER, Cause.NONE)
                self.status.signal(ShardSignal.REPLAYED)
                await play.run(self.feed)

            def end(self) -> list[object]:
                return []

        async def survey(*_: object) -> Survey:
            records = play.brokers.records
            spans = (("state", 0, records[STATE]),)
            return Survey(spans, play.faults, bool(play.faults), records[COMMANDS])

        monkeypatch.setattr(module, "ShardSession", ShardSession)
        monkeypatch.setattr(failures, "survey", survey)
        monkeypatch.setattr(module, "journal_of", lambda *_, **__: self.make_journal())
        monkeypatch.setattr(module, "BACKOFF", (0.0, 0.001))
        monkeypatch.setattr(module, "UNEXPECTED_BACKOFF", (0.0, 0.001))
        monkeypatch.setattr(module, "FENCED_PAUSE", 0.1)
        monkeypatch.setattr(module, "SURVEY_INTERVALS", (0.02,))
        metrics = Metrics(CONFIG.spec, "hash", lambda: [self.shard.status])
        parts = {"cluster": self.brokers, "workload": lambda: self.workload, "metrics": metrics}
        self.shard = Shard(0, worker_parts(request_self_test=self.request_self_test, **parts), self.consumer)

    def request_self_test(self) -> None:
        self.suspected += 1

    async def run(self, feed: ShardFeed) -> None:
        while not feed.stopping:
            done = {asyncio.ensure_future(event.wait()) for event in (feed.requests.stop, feed.requests.held)}
            await asyncio.wait(done, return_when=asyncio.FIRST_COMPLETED)
            if feed.held:
                await self.hand_over()
                await feed.wait_for_rebalance()
                self.kept += 1
                if self.fenced:
                    raise self.fenced.pop()

    async def hand_over(self) -> None:
        """Publish what is charged."""
        await asyncio.sleep(0)

    async def until(self, state: ShardState) -> None:
        await until(lambda: self.shard.status.state is state)

    async def stays(self, state: ShardState, *, opened: int) -> None:
        await self.until(state)
        for _ in range(20):
            await asyncio.sleep(0.01)
            assert self.shard.status.state is state
        assert self.opened == opened

    async def hold(self) -> None:
        assert await self.shard.hold(2.0)

    async def end(self) -> None:
        await self.shard.stop(2.0)
        assert self.shard.status.state in {ShardState.STOPPED, ShardState.NOT_MEMBER}


# A group


class Member:
    """A member without errors."""

    def __init__(self, *_: object) -> None:
        self.paused: set[TopicPartition] = set()
        self.topics = {CONTROL: {0, 1, 2, 3}}
        self.partitions_for_topic = self.topics.get
        self.subscribe = lambda topics, listener: None

    def pause(self, *partitions: TopicPartition) -> None:
        self.paused |= set(partitions)

    async def start(self) -> None:
        """Do nothing: the test makes the assignments."""

    async def stop(self) -> None:
        """Leave the group."""


class RecordedShard:
    """A shard that records the calls of its group."""

    def __init__(self, number: int) -> None:
        self.number, self.status = number, ShardStatus(number)
        self.calls: list[str] = []
        self.in_time = True
        self.release = partial(self.calls.append, "release")

    async def hold(self, seconds: float) -> bool:
        assert seconds < REBALANCE_TIMEOUT
        self.calls.append("hold")
        return self.in_time

    async def stop(self, seconds: float) -> None:
        self.calls.append(f"stop {seconds:g}")


class ScriptedGroup:
    """A group of this worker only, whose shards record their calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(groups, "Shard", self.make)
        self.fatal: list[BaseException] = []
        self.made: list[RecordedShard] = []
        parts = worker_parts(cluster=SimpleNamespace(member=Member))
        self.group = Group(parts, self.fatal.append)
        self.consumer = self.group._consumer

    def make(self, number: int, *_: object) -> RecordedShard:
        self.made.append(RecordedShard(number))
        return self.made[-1]

    async def assign(self, *numbers: int) -> None:
        await self.group.on_partitions_assigned({TopicPartition(CONTROL, number) for number in numbers})

    async def revoke(self) -> None:
        await self.group.on_partitions_revoked(set(self.consumer.paused))
        self.consumer.paused = set()


STUCK = 0.5


@contextlib.asynccontextmanager
async def watched(monkeypatch: pytest.MonkeyPatch, play: ScriptedShard) -> AsyncIterator[None]:
    """Watch the shard, with a watchdog timeout of `STUCK`."""
    monkeypatch.setattr(groups, "STUCK", STUCK)
    monkeypatch.setattr(groups, "WATCH_INTERVAL", 0.05)
    made = ScriptedGroup(monkeypatch).group
    monkeypatch.setattr(made, "_check_client", lambda: None)
    made.shards[0] = play.shard
    watch = asyncio.create_task(made._watch())
    try:
        yield
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


async def hang() -> None:
    await asyncio.sleep(1000)
