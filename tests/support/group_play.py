"""A group of one worker whose assignments a test makes, and the watchdog of a group."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition

from stream_svt.protocol.shard_states import ShardStatus
from stream_svt.service import group as module
from stream_svt.service.group import Group
from stream_svt.service.kafka import REBALANCE_TIMEOUT
from tests.support.shard_play import CONTROL, worker_parts
from tests.support.shard_play import Play as ShardPlay


class Consumer:
    """A member without errors."""

    def __init__(self, *_: object) -> None:
        self.paused: set[TopicPartition] = set()
        self.topics = {CONTROL: {0, 1, 2, 3}}
        self.partitions_for_topic = self.topics.get
        self.subscribe = lambda topics, listener: None

    def pause(self, *places: TopicPartition) -> None:
        self.paused |= set(places)

    async def start(self) -> None:
        """Nobody answers; nothing is assigned but by the test."""

    async def stop(self) -> None:
        """Leave the group."""


class Shard:
    """Notes what it is told."""

    def __init__(self, number: int) -> None:
        self.number, self.status = number, ShardStatus(number)
        self.told: list[str] = []
        self.in_time = True
        self.start = partial(self.told.append, "start")
        self.hold = partial(self.told.append, "hold")
        self.release = partial(self.told.append, "release")
        self.halt = partial(self.told.append, "halt")

    async def settle(self, seconds: float) -> bool:
        assert seconds < REBALANCE_TIMEOUT
        return self.in_time

    async def stop(self, seconds: float) -> None:
        self.told.append(f"stop {seconds:g}")


class GroupPlay:
    """A group of this worker alone, whose shards note what they are told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "Shard", self.make)
        self.fatal: list[BaseException] = []
        self.made: list[Shard] = []
        parts = worker_parts(cluster=SimpleNamespace(member=Consumer))
        self.group = Group(parts, self.fatal.append)
        self.consumer = self.group._consumer

    def make(self, number: int, *_: object) -> Shard:
        self.made.append(Shard(number))
        return self.made[-1]

    async def assign(self, *numbers: int) -> None:
        await self.group.on_partitions_assigned({TopicPartition(CONTROL, number) for number in numbers})

    async def revoke(self) -> None:
        await self.group.on_partitions_revoked(set(self.consumer.paused))
        self.consumer.paused = set()


STUCK = 0.5


@contextlib.asynccontextmanager
async def watched(monkeypatch: pytest.MonkeyPatch, play: ShardPlay) -> AsyncIterator[None]:
    """Watch the shard, with the watchdog's patience cut to `STUCK`."""
    monkeypatch.setattr(module, "STUCK", STUCK)
    monkeypatch.setattr(module, "WATCH_INTERVAL", 0.05)
    made = GroupPlay(monkeypatch).group
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
