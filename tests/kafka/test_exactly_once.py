"""The judge of the soaks sees mistakes in the commit protocol, each made on purpose on a real broker."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stream_svt.service.kafka import Cluster
from tests.simulation.published import UNITS, Terms
from tests.support.broken_protocol import (
    ChargesAfterPublishing,
    ChargesHalf,
    DoublesLimits,
    ForgetsLostPublications,
    LosesPublications,
    NamesEachOwner,
    RedrawsNoise,
    SameTransaction,
)
from tests.support.verifier import Certain, Findings, verify
from tests.support.worker import HIGH, LOW, Scene, until

pytestmark = pytest.mark.kafka

ROUNDS = 4


class Trial:
    """An application of one dataset whose workers run in this process, with whatever parts they are given."""

    def __init__(self, broker, application: str, monkeypatch) -> None:
        self.scene = Scene(broker.bootstrap_servers, application, limit=1000)
        self.sent = 0
        self._broker = broker
        self.monkeypatch = monkeypatch

    def use(self, **parts: Any) -> None:
        """Let the workers be built from other parts: Journal, ShardLog, Engine."""
        for name, part in parts.items():
            module = "workload" if name == "Engine" else "shard_log"
            self.monkeypatch.setattr(f"stream_svt.service.{module}.{name}", part)

    async def send(self) -> None:
        """Send queries that are certain to be alerted."""
        await self.scene.send("a", *[HIGH] * 3)
        self.sent += 3

    async def judge(self) -> Findings:
        """Return what the logs show; the workers must have stopped."""
        certain = Certain(self.scene.queries, "hot", HIGH, LOW)
        terms = Terms(dict.fromkeys("abc", 1000 * UNITS), {"hot": 400_000_000}, {("hot", "top"): 200_000_000})
        scene = self.scene
        return await verify(self._broker.data_dir, scene.application, scene.partitions, certain, terms)


@pytest.fixture
def trial(broker, topics, monkeypatch) -> Trial:
    return Trial(broker, topics.name("trial"), monkeypatch)


async def one_worker(trial: Trial) -> None:
    """Release some alerts, wait for each."""
    async with trial.scene.on_stage() as scene:
        worker = await scene.start()
        for _ in range(ROUNDS):
            await trial.send()
            await scene.settled(worker, trial.sent)
            await until(lambda: worker.ready)
        await scene.stop(worker)


async def one_after_the_other(trial: Trial) -> None:
    """Let a second worker take over in the middle of a run, in order."""
    async with trial.scene.on_stage() as scene:
        for _ in range(2):
            worker = await scene.start()
            await scene.send("a", HIGH)
            trial.sent += 1
            await scene.settled(worker, trial.sent)
            await scene.stop(worker)


async def two_at_once(trial: Trial) -> None:
    """Let two workers, each alone in its group, own every shard at the same time; one has the last word."""
    numbers = itertools.count(1)
    member = Cluster.member
    trial.monkeypatch.setattr(
        Cluster, "member", lambda self, group, *rest: member(self, f"{group}-{next(numbers)}", *rest)
    )
    async with trial.scene.on_stage() as scene:
        # Both begin on books that are empty: each draws secrets of its own.
        await asyncio.gather(scene.start(ready=False), scene.start(ready=False))
        await asyncio.gather(*(until(lambda worker=worker: worker.ready) for worker in scene.workers))
        for _ in range(ROUNDS):
            await trial.send()
            await asyncio.sleep(0.2)
        await scene.stop(scene.workers[0])
        (worker,) = scene.workers
        await until(lambda: not worker.alive or _processed(trial, worker), 60)
        await scene.stop(worker)


def _processed(trial: Trial, worker) -> bool:
    offsets = [offset for status in worker.statuses() for offset in status.offsets.values()]
    return worker.ready and sum(offsets) >= trial.sent


Play = Callable[[Trial], Awaitable[None]]


@pytest.mark.parametrize(
    ("part", "play"),
    [
        ({}, one_worker),
        ({}, one_after_the_other),
        ({}, two_at_once),
        # The outbox is part of the state: whoever takes over publishes it, once.
        ({"Journal": LosesPublications}, one_worker),
    ],
)
async def test_the_protocol_as_it_is_passes(trial: Trial, part, play: Play) -> None:
    """What the broken ones below go through is no violation by itself: owners fence one another."""
    trial.use(**part)
    await play(trial)
    found = await trial.judge()
    assert found.violations == []
    assert len(found.alerts) == found.queries == trial.sent


@pytest.mark.parametrize(
    ("part", "play", "said"),
    [
        pytest.param({"Journal": SameTransaction}, one_worker, "before its charge", id="same-transaction"),
        pytest.param({"Journal": ChargesAfterPublishing}, one_worker, "before its charge", id="charge-after"),
        pytest.param(
            {"Journal": ForgetsLostPublications}, one_worker, "charged and never published", id="no-outbox"
        ),
        pytest.param({"Engine": RedrawsNoise}, one_after_the_other, "the noise of run", id="noise-redrawn"),
        pytest.param({"Engine": ChargesHalf}, one_worker, "not charged its price", id="half-price"),
        pytest.param({"Engine": DoublesLimits}, one_worker, "not the one declared", id="twice-the-limit"),
        pytest.param({"ShardLog": NamesEachOwner}, two_at_once, "two contents", id="two-owners"),
    ],
)
async def test_the_judge_catches_a_broken_protocol(trial: Trial, part, play: Play, said: str) -> None:
    trial.use(**part)
    await play(trial)
    found = await trial.judge()
    assert found.violations
    assert any(said in text for text in found.violations), found.violations
