"""What the soaks on real brokers share: topics, a stream of queries, workers that come and go, a judge at the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from aiokafka.errors import KafkaError

from stream_svt.application.config import Config
from stream_svt.errors import BrokerError
from stream_svt.kafka.clients import Cluster
from stream_svt.kafka.embedded import EmbeddedKafka
from stream_svt.operate.audit import audit_state, audit_topic
from stream_svt.protocol.history.audit import Audit
from tests.support.process import Process, Service
from tests.support.topics import create_application
from tests.support.verifier import Certain, Findings, Terms, verify
from tests.support.worker import Scene

SPEC = """
application: {application}
kafka: {{bootstrap_servers: "{servers}", session_timeout: {session}, heartbeat_interval: 300ms}}
topics: {{partitions: {partitions}}}
commit: {{interval: 200ms}}
datasets:
  - {{names: [{datasets}], limit: {{epsilon: 100000}}, unit: one basket}}
  - {{name: scarce, limit: {{epsilon: {scarce}}}, unit: one basket}}
monitors:
  - {{name: plain, cutoff: 15, mute: none, expected_queries: 10000, {common}}}
  - {{name: adaptive, mechanism: adaptive, cutoff: 10, mute: run, expected_queries: 10000, {common}}}
"""
COMMON = (
    "topic: {application}.counts, epsilon: 2, sensitivity: 1, monotonic: true, bounds: [0, 100000], "
    "threshold: 5000, max_runs: off"
)
DATASETS = ("north", "south", "east", "west", "centre")
SCARCE = "scarce"
"""A dataset whose budget ends."""
PRICES = {
    ("plain", "start"): 235_294_130,
    ("plain", "top"): 117_647_058,
    ("adaptive", "start"): 354_510_060,
    ("adaptive", "top"): 82_274_497,
    ("adaptive", "middle"): 164_548_994,
}
"""Worked out once from the specification, and written down: the judge asks the service for nothing."""
PARTITIONS = 2
SESSION = 2.0
HIGH, LOW = 50_000, 100
SHARE, SCARCE_SHARE, NEAR_SHARE = 0.03, 0.1, 0.05
"""Of the queries, how many are far above the threshold, more where the budget is to end, and how many near it."""
BURSTS = 40
"""Times a second at which queries are sent."""


@dataclass
class Outcome:
    """What a soak showed; ``notes`` say what it went through."""

    count: int
    violations: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    found: Findings = field(default_factory=Findings)


class Processes:
    """Processes that come and go; one that ends by itself is a violation."""

    running: list[Any]
    outcome: Outcome

    def join(self) -> Any:
        """Start one more."""
        raise NotImplementedError

    async def kill(self, process: Process) -> None:
        self.running.remove(process)
        await process.end(signal.SIGKILL)

    async def leave(self, process: Process) -> None:
        self.running.remove(process)
        code = await process.end()
        if code:
            self.outcome.violations.append(
                f"a process that was asked to stop ended with {code}:\n{process.log}"
            )

    async def until(
        self, condition: Callable[[], Awaitable[bool]], wanted: str, seconds: float = 90.0
    ) -> None:
        """Wait for an asynchronous condition; the place of a process that ends is taken by another one."""
        async with asyncio.timeout(seconds):
            while not await condition():
                for process in [process for process in self.running if not process.alive]:
                    self.running.remove(process)
                    ended = f"a process ended with {process.process.returncode} while {wanted} was awaited"
                    self.outcome.violations.append(f"{ended}:\n{process.log}")
                    self.join()
                await asyncio.sleep(0.1)


@dataclass(eq=False)
class Stage(Processes, Scene):
    """One application on running brokers, as the judge and the stream of queries reach them.

    ``data_dirs`` hold the brokers' logs; ``through`` is how the workers reach the brokers, where that differs;
    ``rate`` counts queries a second, and ``scarce`` is the limit of the dataset whose budget ends: low enough for the
    queries of the short form.
    """

    _: KW_ONLY
    data_dirs: Sequence[Path]
    partitions: int = PARTITIONS
    datasets: str = ", ".join(DATASETS)
    session: str = f"{SESSION:g}s"
    through: str = ""
    replicas: int = 1
    rate: int = 600
    scarce: int = 40
    seed: int = 0

    spec: ClassVar = SPEC
    # The judge wants to see every version of a state record.
    state_settings: ClassVar[Mapping[str, str]] = {"min.compaction.lag.ms": str(7 * 24 * 3600 * 1000)}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.chance = random.Random(self.seed)
        self.running: list[Service] = []
        self.outcome = Outcome(0)

    @classmethod
    def of(cls, kafka: EmbeddedKafka, application: str, directory: Path, **more: Any) -> Self:
        where = {"directory": directory, "data_dirs": [kafka.data_dir]}
        return cls(kafka.bootstrap_servers, application, **where, **more)

    @contextlib.asynccontextmanager
    async def on(self, *, workers: int = 2) -> AsyncIterator[None]:
        """Have workers on a stream; at the end let them finish, judge, and leave no process behind."""
        settings = {"replicas": self.replicas, "state": self.state_settings}
        await create_application(self.servers, self.application, self.partitions, **settings)
        async with self.on_stage(create=False):
            self._feed = asyncio.create_task(self._send())
            try:
                for _ in range(workers):
                    self.join()
                await self.owned()
                yield
                await self._end_feed()
                await self.caught_up()
                await asyncio.gather(*(self.leave(worker) for worker in list(self.running)))
            except (AssertionError, TimeoutError, KafkaError, subprocess.TimeoutExpired) as error:
                self.outcome.violations.append(f"it got stuck: {type(error).__name__}: {error}")
                words = await asked(_last_words, self.running)
                self.outcome.notes += [f"1-minute load {os.getloadavg()[0]:.0f}", *words]
            finally:
                await self._end_feed()
            try:
                await self._judge()
            except (TimeoutError, BrokerError) as error:
                self.outcome.violations.append(f"it could not be judged: {type(error).__name__}: {error}")

    def text(self, **changes: object) -> str:
        common = COMMON.format(application=self.application)
        return self.spec.format(**asdict(self) | {"servers": self.through or self.servers, "common": common})

    # The stream

    async def _send(self) -> None:
        """Send queries without end: most far below the threshold, some far above, some near it."""
        chance = random.Random(self.chance.random())
        number, began, sent = 0, time.monotonic(), 0
        while True:
            futures = []
            # What a broker that was away has held up is not made good: the rate stays what it is.
            due = min(int(self.rate * (time.monotonic() - began)) - sent, self.rate)
            for _ in range(due):
                number += 1
                name, query = self._query(chance)
                text = json.dumps(query | {"id": f"q{number}"}).encode()
                futures.append(await self.producer.send(self.queries, text, key=name.encode()))
            sent += due
            if due == self.rate:
                began, sent = time.monotonic(), 0
            await asyncio.sleep(1 / BURSTS)
            # A broker that is away costs the stream some of its queries; what counts is what the log holds.
            await asyncio.gather(*futures, return_exceptions=True)

    def _query(self, chance: random.Random) -> tuple[str, dict[str, Any]]:
        name = chance.choice((*DATASETS, SCARCE))
        value = value_of(chance, SCARCE_SHARE if name == SCARCE else SHARE, NEAR_SHARE)
        return name, {"value": value, "series": f"s{chance.randrange(50)}"}

    async def _end_feed(self) -> None:
        self._feed.cancel()
        await asyncio.gather(self._feed, return_exceptions=True)

    # Workers

    def join(self) -> Service:
        self.running.append(self.serve(applies=not self.services))
        return self.running[-1]

    async def opened(
        self, among: Sequence[Service] | None = None
    ) -> dict[int, tuple[Service, dict[str, Any]]]:
        """Return who has which shard open, with its status; a shard that two claim is left out."""
        workers = self.running if among is None else among
        found = zip(workers, await asked(Service.shards, workers), strict=True)
        claims = [(number, (worker, shards[number])) for worker, shards in found for number in shards]
        counts = Counter(number for number, _ in claims)
        return {number: claim for number, claim in claims if counts[number] == 1}

    async def owners(self) -> list[Service]:
        """Return who has a shard open that nobody else claims."""
        return [worker for worker, _ in (await self.opened()).values()]

    async def owned(self, among: Sequence[Service] | None = None, seconds: float = 90.0) -> None:
        """Wait until each shard is open at exactly one of these workers, and each has joined."""

        async def done() -> bool:
            found = await asked(Service.status, self.running if among is None else among)
            joined = all(status is not None and status["ready"] for status in found)
            return joined and len(await self.opened(among)) == self.partitions

        await self.until(done, "every shard is open at one worker", seconds)

    async def caught_up(self, among: Sequence[Service] | None = None) -> None:
        """Wait until each shard runs at exactly one of these workers and has processed what the topic holds now."""
        async with asyncio.timeout(90):
            await self.owned(among)
            ends = {place.partition: end for place, end in (await self.ends("counts")).items()}

            async def done() -> bool:
                opened = await self.opened(among)
                return len(opened) == self.partitions and all(
                    shard["state"] == "running" and shard["offsets"].get(self.queries, 0) >= ends[number]
                    for number, (_, shard) in opened.items()
                )

            await self.until(done, "what was sent is processed")

    # The end

    async def _judge(self) -> None:
        certain = Certain(self.queries, "plain", HIGH, LOW, frozenset({SCARCE}))
        limits = dict.fromkeys(DATASETS, 100_000 * 10**9) | {SCARCE: self.scarce * 10**9}
        terms, violations = Terms(limits, PRICES), dict.fromkeys(self.outcome.violations)
        for data_dir in self.data_dirs:
            found = await verify(data_dir, self.application, self.partitions, certain, terms)
            self.outcome.found = found
            violations |= dict.fromkeys(found.violations)
        self.outcome.violations = [*violations]
        await self._audit(self.config(), Cluster({"bootstrap_servers": self.servers}))
        self.outcome.notes.append(
            f"{found.queries} queries, {len(found.alerts)} alerts in {len(found.events)} events, "
            f"{len(found.secrets)} runs, {found.aborted} aborted transactions on a partition; "
            f"used up: {sorted('/'.join(place) for place in found.exhausted)}"
        )

    async def _audit(self, config: Config, brokers: Cluster) -> Audit:
        """Note what either form of the audit finds; return the operator's."""
        public = await audit_topic(brokers, config.topics.alerts, config.spec.monitors)
        operator = await audit_state(config, brokers)
        self.outcome.violations += [f"audit: {problem}" for problem in public.problems + operator.problems]
        return operator

    def said(self, text: str) -> int:
        return sum(worker.said(text) for worker in self.services)


async def asked(ask: Callable[[Service], Any], workers: Iterable[Service]) -> list[Any]:
    return await asyncio.gather(*(asyncio.to_thread(ask, worker) for worker in workers))


def value_of(chance: random.Random, high: float, near: float) -> int:
    """Return a value: by these shares far above the threshold or so near it that the noise decides, else below."""
    share = chance.random()
    if share < high:
        return HIGH
    return chance.randrange(4900, 5700) if share < high + near else chance.randrange(LOW)


def _last_words(worker: Service) -> str:
    """Return what a worker knows of itself, and what it said last."""
    return f"{worker.url} alive: {worker.alive}, status: {worker.status()}, log:\n{worker.log}"
