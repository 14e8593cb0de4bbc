"""Three brokers that lose one under load and get it back, and full disks: ``tests/run soak cluster [--count N]``."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import sys
from functools import partial
from pathlib import Path

from aiokafka.errors import KafkaError

from tests.soak import report
from tests.soak.stage import BROKER, PARTITIONS, Outcome, Stage
from tests.support.cluster import REPLICAS, Member, ThreeBrokers
from tests.support.topics import administrator

SHORT, FULL = 1, 5
ROOM = 20_000
"""Bytes that a full disk still takes."""


async def losses(
    brokers: ThreeBrokers, application: str, directory: Path, count: int, seed: int, *, full_disks: bool
) -> Outcome:
    """Lose a broker so many times, every third time in order; at the end, let two disks be full at once."""
    stage = Stage(
        brokers.bootstrap_servers,
        [member.data_dir for member in brokers.members],
        application,
        directory,
        replicas=REPLICAS,
        rate=200,
        scarce=4,
        seed=seed,
    )
    chance = stage.chance
    async with stage.on():
        stage.feed()
        stage.start()
        stage.start()
        await stage.owned()
        for number in range(count):
            await asyncio.sleep(1 + chance.random())
            leader = await _leader(brokers, f"{application}.state", chance.randrange(PARTITIONS))
            leader.process.send_signal(signal.SIGTERM if number % 3 == 2 else signal.SIGKILL)
            await asyncio.to_thread(leader.process.wait)
            stage.outcome.count += 1
            await stage.caught_up()
            await asyncio.to_thread(leader.restart)
            await _replicated(brokers)
            await stage.caught_up()
        if full_disks:
            await _fill(brokers, stage)
        await _replicated(brokers)
    stage.outcome.notes.append(
        f"{stage.said('event=shard_retry')} tenures ended because no broker answered in time"
    )
    return stage.outcome


async def _fill(brokers: ThreeBrokers, stage: Stage) -> None:
    """Let what the service writes no longer fit on two disks: the brokers halt, and it must say so and wait.

    State or alerts reach the limit first, whichever has the larger files: a broker whose disk is full halts as a whole.
    """
    full = brokers.members[:2]
    for member in full:
        sizes = [path.stat().st_size for path in member.data_dir.glob(f"{stage.application}.state-*/*.log")]
        room = max(sizes) + ROOM
        resource.prlimit(member.process.pid, resource.RLIMIT_FSIZE, (room, room))
    for member in full:
        async with asyncio.timeout(60):
            await asyncio.to_thread(member.process.wait)

    async def parked() -> bool:
        found = await asyncio.gather(*(asyncio.to_thread(worker.status) for worker in stage.workers))
        return all(status is not None and not status["ready"] for status in found)

    await stage.until(parked, "no worker calls itself ready")
    failed = [
        f"Error while appending records to {stage.application}.{topic}" for topic in ("state", "alerts")
    ]
    logs = [member.log_file.read_text() for member in full]
    assert any(text in log for text in failed for log in logs), "no broker failed at what the service writes"
    await asyncio.gather(*(asyncio.to_thread(member.restart) for member in full))
    await _replicated(brokers)
    await stage.caught_up()
    stage.outcome.notes.append("two of three disks were full at once; the service waited and went on")


async def _leader(brokers: ThreeBrokers, topic: str, partition: int) -> Member:
    """Return the broker that leads a partition."""
    async with administrator(brokers.bootstrap_servers) as admin:
        (found,) = await admin.describe_topics([topic])
    (leader,) = [place["leader"] for place in found["partitions"] if place["partition"] == partition]
    return brokers.members[leader - 1]


async def _replicated(brokers: ThreeBrokers) -> None:
    """Wait until every replica of every partition is in sync."""
    async with asyncio.timeout(90):
        while True:
            with contextlib.suppress(KafkaError):
                async with administrator(brokers.bootstrap_servers) as admin:
                    topics = await admin.describe_topics()
                places = [place for topic in topics for place in topic["partitions"]]
                if all(len(place["isr"]) == REPLICAS for place in places):
                    return
            await asyncio.sleep(0.5)


if __name__ == "__main__":
    losing = partial(losses, full_disks=True)
    play = report.on_brokers("cluster", lambda: ThreeBrokers(BROKER).running(), losing)
    sys.exit(report.run("cluster", __doc__, play, short=SHORT, full=FULL))
