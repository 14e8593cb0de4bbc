"""Forwarders killed and stopped, brokers restarted, receivers away: ``tests/run soak forward [--count N]``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from aiohttp import web
from aiokafka.errors import KafkaError

from stream_svt.kafka.embedded import EmbeddedKafka
from tests.soak.stage import Outcome
from tests.support import records
from tests.support.forwarding import FAST, Forwarder, Stage, serving
from tests.support.topics import create_topics

SHORT, FULL = 4, 200
DATASETS = "abcd"
DESTINATIONS = ("pager", "tickets")
BROKER_AWAY = 3
"""Exit code of a forwarder that was started while no broker answered."""
CATCH_UP_S = 120.0


class Desk:
    """Takes events for each destination, slowly; now and then it fails, or is away altogether."""

    def __init__(self, chance: random.Random) -> None:
        self.taken: dict[str, list[bytes]] = defaultdict(list)
        self.away = False
        self._chance = chance

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        await asyncio.sleep(0.03)
        if self.away or self._chance.random() < 0.1:
            return web.Response(status=503)
        self.taken[request.path.strip("/")].append(body)
        if self._chance.random() < 0.05 and request.transport is not None:
            request.transport.close()  # it took the event, and nobody hears of it
        return web.Response(status=204)


async def blows(
    kafka: EmbeddedKafka, topic: str, directory: Path, count: int, seed: int, *, restarts: bool = True
) -> Outcome:
    """Forwarders killed and stopped, brokers restarted, receivers away; judged once everybody has caught up."""
    chance = random.Random(seed)
    outcome, desk = Outcome(0), Desk(random.Random(seed + 1))
    await create_topics(kafka.bootstrap_servers, {topic: 2})
    stage = Stage(kafka.bootstrap_servers, topic, directory)
    struck: dict[str, int] = defaultdict(int)
    async with serving(desk.take) as url:
        stage.configure(
            *(
                f"name: {name}, {FAST}, webhook: {{url: '{url}/{name}', key_files: [hook.key]}}"
                for name in DESTINATIONS
            )
        )
        forwarders = [await stage.begin(), await stage.begin()]
        try:
            while outcome.count < count:
                for _ in range(3):
                    await _publish(stage, chance)
                    await asyncio.sleep(0.2 * chance.random())
                kind = chance.choice(_KINDS if restarts else _KINDS[:3])
                struck[kind] += 1
                outcome.count += 1
                desk.away = kind == "away"
                if kind == "restart":
                    kafka.process.send_signal(chance.choice((signal.SIGKILL, signal.SIGTERM)))
                    await asyncio.to_thread(kafka.process.wait)
                    await asyncio.sleep(3 * chance.random())
                    await asyncio.to_thread(kafka.restart)
                elif kind in {"kill", "stop"}:
                    victim = max(forwarders, key=_waiting)
                    struck["in the middle"] += _waiting(victim) > 0
                    await victim.end(signal.SIGKILL if kind == "kill" else signal.SIGTERM)
                _revive(stage, forwarders, outcome, killed=kind == "kill")
                if chance.random() < 0.7:  # else the next blow comes in the middle of a start
                    await _settled(forwarders)
            desk.away = False
            sent: dict[str, list[bytes]] = defaultdict(list)
            for record in await records.read(stage.servers, stage.topic, range(2)):
                sent[record.key.decode()].append(record.value)
            events = sum(map(len, sent.values()))
            with contextlib.suppress(TimeoutError):  # who never gets everything is judged all the same
                async with asyncio.timeout(CATCH_UP_S):
                    while any(len(set(desk.taken[name])) < events for name in DESTINATIONS):
                        _revive(stage, forwarders, outcome)
                        await asyncio.sleep(0.2)
            for forwarder in forwarders:
                await forwarder.end()
                _check_end(forwarder, outcome)
        finally:
            for forwarder in stage.running:
                await forwarder.end(signal.SIGKILL)
    for name in DESTINATIONS:
        outcome.violations += [f"{name}: {text}" for text in judged(sent, desk.taken[name])]
    if count >= SHORT and not struck["in the middle"]:
        outcome.violations.append("no forwarder was struck while it delivered: nothing was tried")
    copies = sum(map(len, desk.taken.values())) - len(DESTINATIONS) * events
    outcome.notes.append(
        f"{events} events to {len(DESTINATIONS)} destinations, {copies} copies; {dict(struck)}"
    )
    return outcome


_KINDS = ("kill", "kill", "away", "stop", "restart")


def judged(sent: Mapping[str, Sequence[bytes]], taken: Sequence[bytes]) -> list[str]:
    """Return the datasets whose events one destination lost, changed or got out of order; copies are in order."""
    found: dict[str, list[bytes]] = defaultdict(list)
    for body in dict.fromkeys(taken):
        found[json.loads(body)["data"]["dataset"]].append(body)
    return [
        f"dataset {name}: {found[name]} instead of {bodies}"
        for name, bodies in sent.items()
        if found[name] != list(bodies)
    ]


def _waiting(forwarder: Forwarder) -> float:
    """Return how many events are under way, 0 while its pages are not there."""
    return sum(max(0.0, forwarder.metric("waiting_events", name)) for name in DESTINATIONS)


async def _publish(stage: Stage, chance: random.Random) -> None:
    events = [stage.event(chance.choice(DATASETS)) for _ in range(chance.randint(1, 12))]
    with contextlib.suppress(KafkaError, TimeoutError, OSError):  # the topic says what was committed
        async with asyncio.timeout(15):
            await stage.publish(*events)


def _check_end(forwarder: Forwarder, outcome: Outcome, *more: int) -> None:
    """Note an exit code that is a fault; one that has not begun yet knows nothing of signals."""
    in_order = {0, BROKER_AWAY, *more}
    if not forwarder.said("event=forward_assigned"):
        in_order.add(-signal.SIGTERM)
    if (code := forwarder.process.returncode) not in in_order:
        outcome.violations.append(f"a forwarder ended with {code}: {forwarder.log[-500:]}")


async def _settled(forwarders: list[Forwarder]) -> None:
    """Wait until all are in their groups or have ended, but not for ever."""

    def settled() -> bool:
        return all(not one.alive or one.fetch("/health/ready") == "ready\n" for one in forwarders)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(20):
            while not await asyncio.to_thread(settled):
                await asyncio.sleep(0.2)


def _revive(stage: Stage, forwarders: list[Forwarder], outcome: Outcome, *, killed: bool = False) -> None:
    """Start those anew that were ended, or gave up for want of a broker, as a supervisor would."""
    for place, forwarder in enumerate(forwarders):
        if not forwarder.alive:
            _check_end(forwarder, outcome, *[-signal.SIGKILL] * killed)
            forwarders[place] = stage.start()
