"""Counts are exact whatever happens to counters: killed, stopped for a while, fenced, and handed over."""

from __future__ import annotations

import asyncio
import os
import random
import signal

import pytest
from aiokafka import AIOKafkaProducer

from tests.support.counting import Counting

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

FAULTS = int(os.environ.get("SOAK_FAULTS", "7"))


async def test_counts_are_exact_while_counters_are_killed_and_stopped(scene):
    await scene.publish()
    chance = random.Random(7)
    counters = [scene.process() for _ in range(2)]
    await asyncio.gather(*(one.until(lambda one=one: is_ready(one)) for one in counters))
    ending = asyncio.Event()
    sending = asyncio.gather(send(scene, chance, ending), send_transactions(scene, chance, ending))
    for fault in range(FAULTS):
        await asyncio.sleep(chance.uniform(0.5, 3))
        number = chance.randrange(2)
        if fault % 3 == 2:
            counters[number].process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(chance.uniform(1, 4))  # longer than a session: the other one takes over
            counters[number].process.send_signal(signal.SIGCONT)
        else:
            await counters[number].end(chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
            counters[number] = scene.process()
    ending.set()
    await sending
    found = await scene.agrees(seconds=60)
    assert sum(one.value for one in found) > 1000
    text = "".join(one.output for one in scene.processes)
    assert "user-" not in text
    assert "Traceback" not in text


def is_ready(process) -> bool:
    return process.fetch("/health/ready") == "ready\n"


async def send(scene: Counting, chance: random.Random, ending: asyncio.Event) -> None:
    """Send events of few users, so that many are counted more than once."""
    while not ending.is_set():
        for _ in range(chance.randrange(20)):
            await scene.event(f"user-{chance.randrange(80)}", chance.choice("abcd"))
        await asyncio.sleep(0.02)
    await scene.producer.flush()


async def send_transactions(scene: Counting, chance: random.Random, ending: asyncio.Event) -> None:
    """Write transactions that stay open for a while, and abort some."""
    async with AIOKafkaProducer(bootstrap_servers=scene.servers, transactional_id=scene.topic) as producer:
        while not ending.is_set():
            await producer.begin_transaction()
            for _ in range(chance.randrange(1, 30)):
                value = b'{"user":"user-%d","page":"a"}' % chance.randrange(200)
                await producer.send(scene.topic, value, partition=chance.randrange(scene.places))
            await asyncio.sleep(chance.choice([0, 0.1, 1.5]))
            await (producer.commit_transaction if chance.random() < 0.7 else producer.abort_transaction)()
