"""What is done to workers on real brokers: killed, stopped, cut off; and to the brokers: lost one by one, and full."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import resource
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from aiokafka.errors import KafkaError

from stream_svt.kafka.embedded import EmbeddedKafka
from tests.soak.stage import PARTITIONS, Outcome, Stage, asked
from tests.support.cluster import REPLICAS, ThreeBrokers
from tests.support.process import Service
from tests.support.proxy import Api, Fault, ProxiedKafka, Proxy, Strike
from tests.support.topics import administrator

SHORT = {"kill": 3, "zombie": 1, "proxy": 4, "cluster": 1}
FULL = {"kill": 200, "zombie": 20, "proxy": 50, "cluster": 5}
"""How many blows each form has."""
BEYOND_TRANSACTION = 16.0
"""Seconds that some stand still: the broker has given their transaction up by then."""
OFTEN = 1500
"""Queries a second: many, so that an owner is often stopped in the middle of a transaction."""
BRIEF = 1.0
LONGEST = 16.0
"""Seconds that a request or a reply is late at most: longer than the worker waits and a transaction may last."""
WRITES = (Api.PRODUCE, Api.ADD_PARTITIONS_TO_TXN, Api.END_TXN)
ROOM = 20_000
"""Bytes that a full disk still takes."""


async def kills(
    kafka: EmbeddedKafka, application: str, directory: Path, count: int, seed: int, **more: int
) -> Outcome:
    """Workers killed with SIGKILL at random moments; every fifth time one more joins and another leaves in order."""
    stage = Stage.of(kafka, application, directory, seed=seed, **more)
    chance, owning = stage.chance, 0
    async with stage.on():
        for number in range(count):
            if number % 5 == 2:
                stage.join()
                await stage.owned()
                await stage.leave(chance.choice(stage.running))
            await asyncio.sleep(1.5 * chance.random())
            owners = await stage.owners()
            victim = chance.choice(owners or stage.running)
            await stage.kill(victim)
            stage.outcome.count += 1
            owning += victim in owners
            stage.join()
            if chance.random() < 0.75:
                await stage.caught_up()
            else:  # the next one comes in the middle of the takeover
                await asyncio.sleep(3.0 * chance.random())
        await stage.caught_up()
    stage.outcome.notes.append(f"{owning} of the killed owned a shard, {len(stage.services)} workers in all")
    return stage.outcome


async def zombies(
    kafka: EmbeddedKafka, application: str, directory: Path, count: int, seed: int, **more: int
) -> Outcome:
    """Owners that stand still (SIGSTOP) until another took over, and go on (SIGCONT)."""
    stage = Stage.of(kafka, application, directory, seed=seed, **{"rate": OFTEN} | more)
    chance = stage.chance
    async with stage.on():
        for number in range(count):
            await asyncio.sleep(chance.random())
            # One that went on a moment ago may not yet know that its shard is somebody else's.
            while not (owners := await stage.owners()):
                await asyncio.sleep(0.1)
            zombie = chance.choice(owners)
            began = time.monotonic()
            zombie.process.send_signal(signal.SIGSTOP)
            try:
                await stage.caught_up([worker for worker in stage.running if worker is not zombie])
                beyond = BEYOND_TRANSACTION - (time.monotonic() - began)
                await asyncio.sleep(max(beyond if number % 10 == 9 else 2 * chance.random(), 0))
            finally:
                zombie.process.send_signal(signal.SIGCONT)
            stage.outcome.count += 1
            await stage.caught_up()
    fenced, parked = stage.said("event=fenced"), stage.said("event=not_member")
    stage.outcome.notes.append(f"{fenced} sessions ended fenced, {parked} of them as no member")
    return stage.outcome


def strikes(chance: random.Random, apis: Sequence[Api] = WRITES) -> Iterator[Strike]:
    """Yield faults: first those that are soon over, then all of them again and again, late by anything."""
    yield Strike(Api.END_TXN, Fault.REPLY_LOST)
    yield Strike(Api.PRODUCE, Fault.REQUEST_LOST)
    yield Strike(Api.END_TXN, Fault.REQUEST_ASTRAY, BRIEF)
    yield Strike(Api.PRODUCE, Fault.REPLY_LATE, BRIEF)
    for fault, api in itertools.cycle(itertools.product(Fault, apis)):
        yield Strike(api, fault, chance.uniform(0.2, LONGEST))


async def faults(
    kafka: ProxiedKafka, application: str, directory: Path, count: int, seed: int, **more: int
) -> Outcome:
    """Requests and replies between worker and broker that get lost or come late, one after the other."""
    async with Proxy(kafka.front_port, kafka.behind_port).running() as proxy:
        stage = Stage.of(
            kafka, application, directory, through=proxy.address, seed=seed, **{"scarce": 10} | more
        )
        struck: list[str] = []
        async with stage.on(workers=1):
            for strike in itertools.islice(strikes(stage.chance), count):
                await asyncio.sleep(0.5 * stage.chance.random())
                proxy.arm(strike)
                async with asyncio.timeout(60):
                    await strike.done.wait()
                stage.outcome.count += 1
                struck.append(str(strike))
                # What the client does about it comes later than the fault: a commit shows that it is over.
                await stage.caught_up()
    retried, fenced = stage.said("event=shard_retry"), stage.said("event=fenced")
    stage.outcome.notes += [f"{retried} sessions ended unanswered, {fenced} fenced", *struck]
    return stage.outcome


async def losses(
    brokers: ThreeBrokers,
    application: str,
    directory: Path,
    count: int,
    seed: int,
    *,
    full_disks: bool = True,
) -> Outcome:
    """Three brokers that lose one under load, every third time in order, and get it back; then two full disks."""
    more = {"replicas": REPLICAS, "rate": 200, "scarce": 4, "seed": seed}
    data_dirs = [member.data_dir for member in brokers.members]
    stage = Stage(brokers.bootstrap_servers, application, directory=directory, data_dirs=data_dirs, **more)
    chance = stage.chance
    async with stage.on():
        for number in range(count):
            await asyncio.sleep(1 + chance.random())
            leader = await _leader(brokers, f"{application}.state", chance.randrange(PARTITIONS))
            leader.process.send_signal(signal.SIGTERM if number % 3 == 2 else signal.SIGKILL)
            await asyncio.to_thread(leader.process.wait)
            stage.outcome.count += 1
            await stage.caught_up()
            await asyncio.to_thread(leader.restart)
            await replicated(brokers)
            await stage.caught_up()
        if full_disks:
            await _fill(brokers, stage)
        await replicated(brokers)
    retried = stage.said("event=shard_retry")
    stage.outcome.notes.append(f"{retried} sessions ended because no broker answered in time")
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
        found = await asked(Service.status, stage.running)
        return all(status is not None and not status["ready"] for status in found)

    await stage.until(parked, "no worker calls itself ready")
    failed = [
        f"Error while appending records to {stage.application}.{topic}" for topic in ("state", "alerts")
    ]
    logs = [member.log_file.read_text() for member in full]
    assert any(text in log for text in failed for log in logs), "no broker failed at what the service writes"
    await asyncio.gather(*(asyncio.to_thread(member.restart) for member in full))
    await replicated(brokers)
    await stage.caught_up()
    stage.outcome.notes.append("two of three disks were full at once; the service waited and went on")


async def _leader(brokers: ThreeBrokers, topic: str, partition: int) -> EmbeddedKafka:
    async with administrator(brokers.bootstrap_servers) as admin:
        (found,) = await admin.describe_topics([topic])
    (leader,) = [place["leader"] for place in found["partitions"] if place["partition"] == partition]
    return brokers.members[leader - 1]


async def replicated(brokers: ThreeBrokers) -> None:
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
