"""The judge of the soaks sees mistakes in the commit protocol, each made on purpose on a real broker.

Each of its rules is broken in logs made up for it in `tests/soak/test_verifier.py`.
"""

from __future__ import annotations

import asyncio
import itertools

import pytest

from stream_svt.kafka.clients import Cluster
from stream_svt.worker import ports
from tests.support.broken_protocol import NamesEachOwner, SameTransaction
from tests.support.worker import HIGH, Scene, until

pytestmark = pytest.mark.kafka
SCENE = {"limit": 1000}
ROUNDS = 4
"""Times that the workers release some alerts."""


async def _one_after_the_other(scene: Scene) -> int:
    """Let a second worker take over in the middle of a run, in order."""
    for number in (1, 2):
        worker = await scene.start()
        await scene.send("a", HIGH)
        await scene.settled(worker, number)
        await scene.stop(worker)
    return 2


async def _two_at_once(scene: Scene) -> int:
    """Let two workers, each alone in its group, own every shard at the same time; one has the last word."""
    # Both begin on books that are empty: each draws secrets of its own.
    await asyncio.gather(scene.start(ready=False), scene.start(ready=False))
    await asyncio.gather(*(until(lambda worker=worker: worker.ready) for worker in scene.workers))
    for _ in range(ROUNDS):
        await scene.send("a", *[HIGH] * 3)
        await asyncio.sleep(0.2)
    await scene.stop(scene.workers[0])
    (worker,) = scene.workers

    def processed() -> bool:
        offsets = [offset for status in worker.statuses() for offset in status.offsets.values()]
        return worker.ready and sum(offsets) >= 3 * ROUNDS

    await until(lambda: not worker.alive or processed(), 60)
    return 3 * ROUNDS


@pytest.mark.parametrize(
    ("part", "play", "said"),
    [
        # What the broken protocols go through is no violation by itself: owners fence one another.
        (None, _one_after_the_other, ""),
        (None, _two_at_once, ""),
        (SameTransaction, _one_after_the_other, "before its charge"),
        (NamesEachOwner, _two_at_once, "two contents"),
    ],
)
async def test_the_protocol_as_it_is_passes_and_the_judge_catches_a_broken_one(
    scene, broker, monkeypatch, part, play, said
):
    if part is not None:
        monkeypatch.setattr(ports, "ShardLog" if part is NamesEachOwner else "Journal", part)
    numbers, member = itertools.count(1), Cluster.member
    if play is _two_at_once:
        monkeypatch.setattr(
            Cluster, "member", lambda self, group, *rest: member(self, f"{group}-{next(numbers)}", *rest)
        )
    sent = await play(scene)
    for worker in list(scene.workers):
        await scene.stop(worker)
    found = await scene.judged(broker)
    if said:
        assert any(said in text for text in found.violations), found.violations
    else:
        assert found.violations == []
        assert len(found.alerts) == found.queries == sent
