"""Workers for an hour, one of them from beginning to end: ``tests/run soak hour [--minutes M]``.

The one that stays is disturbed all the time: the others are killed and stopped, it reads its configuration again, the
broker is restarted under it. Its memory and its open files must not grow. ``soak.hour mb_per_hour`` is the slope of its
memory after the first ten minutes; of an hour and more it has a bound.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from stream_svt.kafka.aiokafka_fixes import apply_fixes
from stream_svt.kafka.embedded import EmbeddedKafka
from tests.soak.report import Progress
from tests.soak.stage import DATASETS, HIGH, LOW, Outcome, Stage, value_of
from tests.support import records
from tests.support.keys import write_secrets
from tests.support.process import Service, applied
from tests.support.verifier import Certain, Findings, check_queries

SPEC = """
application: {application}
kafka: {{bootstrap_servers: "{servers}", session_timeout: {session}, heartbeat_interval: 500ms}}
topics: {{partitions: {partitions}}}
sealing: {{keys: [master.key]}}
commit: {{interval: 500ms}}
datasets:
  - {{names: [{datasets}], limit: {{epsilon: 1000000}}, unit: one basket}}
monitors:
  - {{name: plain, cutoff: 15, mute: none, resample_every: 90s, expected_queries: 1000000, {common}}}
  - {{name: adaptive, mechanism: adaptive, cutoff: 10, mute: 20s, expected_queries: 1000000, {common}}}
  - {{name: patient, cutoff: 5, mute: run, append: {{retry: {{attempts: 3, lifetime: 5000, capacity: 100, every: 7}}}},
     expected_queries: 1000000, {common}}}
"""
COMPACTING = {"log.cleaner.backoff.ms": "5000"}
"""What its broker needs besides."""
RATE = 300
"""Queries a second."""
CYCLES = 12
"""How often the others are replaced, the configuration is read again, and so on, in the whole time."""
MEMORY_BOUND = 8 << 20
FILES_BOUND = 4
"""Growth, in bytes and files, from the maximum of an early part to that of the last part."""
EARLY, LATE = (0.15, 0.4), (0.75, 1.0)
"""Shares of the time that are compared; before the first one caches fill."""
SLOPE_BOUND = 5.0
"""MB an hour, over an hour or more."""
FILLING, SHORTEST = 600.0, 3600.0
"""Seconds in which caches fill, and from which on the slope of a soak is judged: a shorter one has too few cycles."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one process held at a moment: resident bytes and open files."""

    at: float
    memory: int
    files: int


def look(pid: int, at: float) -> Sample:
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return Sample(at, resident * os.sysconf("SC_PAGE_SIZE"), len(list(Path(f"/proc/{pid}/fd").iterdir())))


@dataclass(eq=False)
class Hour(Stage):
    """An application whose workers seal their state and whose state topic is compacted."""

    spec: ClassVar = SPEC
    session: str = "6s"
    state_settings: ClassVar[Mapping[str, str]] = {
        "segment.ms": "10000",
        "min.cleanable.dirty.ratio": "0.1",
        "delete.retention.ms": "60000",
    }
    """It is compacted all the time, as over weeks: a takeover must not take longer and longer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        write_secrets(self.directory, {"master.key": secrets.token_hex(32)})

    def apply_again(self, number: int) -> None:
        """Apply a version that says the same in another text: every shard ends its session and begins the next."""
        config = self.write()
        config.write_text(f"{config.read_text()}# {number}\n")
        applied(config)

    def _query(self, chance: random.Random) -> tuple[str, dict[str, Any]]:
        value = value_of(chance, 0.005, 0.005)
        return chance.choice(DATASETS), {"value": value, "series": f"s{chance.randrange(5000)}"}

    async def _judge(self) -> None:
        """Hold alerts to queries, and audit; what a compacted state topic held before is gone."""
        apply_fixes()
        found, certain = Findings(), Certain(self.queries, "plain", HIGH, LOW)
        async for record in records.each(self.servers, f"{self.application}.alerts", range(self.partitions)):
            data = json.loads(record.value)["data"]
            if "gap" in data:
                found.alerts.append(data)
        for number in range(self.partitions):
            queries = [record async for record in records.each(self.servers, self.queries, [number])]
            check_queries(found, number, certain, queries)
        self.outcome.violations += found.violations
        config = self.config()
        operator = await self._audit(config, config.cluster())
        alerts = f"{len(found.alerts)} alerts in {operator.events} events"
        self.outcome.notes.append(f"{found.queries} queries, {alerts}, {operator.ledgers} ledgers")


async def _watch(worker: Service, samples: list[Sample], began: float) -> None:
    progress = Progress()
    while worker.alive:
        samples.append(look(worker.process.pid, time.monotonic() - began))
        progress(len(samples), f", {samples[-1].memory / 1e6:.2f} MB, {samples[-1].files} files")
        await asyncio.sleep(2.0)


async def hour(kafka: EmbeddedKafka, application: str, directory: Path, minutes: int, seed: int) -> Outcome:
    """Run for so long; one worker stays, whatever happens to the others and to the broker."""
    stage = Hour.of(kafka, application, directory, rate=RATE, seed=seed)
    samples: list[Sample] = []
    span = 60 * minutes
    async with stage.on(workers=1):
        (steady,) = stage.running
        began = time.monotonic()
        watching = asyncio.create_task(_watch(steady, samples, began))
        try:
            for cycle in range(CYCLES):
                other = stage.join()
                await stage.owned()
                await _sleep_until(began + span * (cycle + 0.4) / CYCLES)
                await asyncio.to_thread(stage.apply_again, cycle)
                await stage.owned()
                if cycle == CYCLES // 2:
                    await asyncio.to_thread(kafka.restart)
                    await stage.owned(seconds=180)
                await _sleep_until(began + span * (cycle + 0.7) / CYCLES)
                await (stage.leave if cycle % 2 else stage.kill)(other)
                await stage.owned()
                await _sleep_until(began + span * (cycle + 1) / CYCLES)
        finally:
            watching.cancel()
        if steady not in stage.running:
            stage.outcome.violations.append("the worker that was to stay did not")
    stage.outcome.count = minutes
    compare(stage.outcome, samples, span)
    judge_slope(stage.outcome, samples, span)
    return stage.outcome


def judge_slope(outcome: Outcome, samples: list[Sample], span: float) -> None:
    """Print and judge the slope of the memory once caches are filled: by least squares, in MB (10^6 bytes) an hour."""
    first = min(FILLING, EARLY[0] * span)
    filled = [(sample.at, sample.memory) for sample in samples if sample.at >= first]
    if len(filled) < 2:
        outcome.violations.append(f"no slope: the worker was looked at {len(filled)} times")
        return
    slope = statistics.linear_regression(*zip(*filled, strict=True)).slope * 3600 / 1e6
    print(f"soak.hour mb_per_hour {slope:.2f}")
    if span >= SHORTEST and slope > SLOPE_BOUND:
        outcome.violations.append(f"memory grew by {slope:.2f} MB an hour, bound {SLOPE_BOUND:g}")


def compare(outcome: Outcome, samples: list[Sample], span: float) -> None:
    """Note what grew, as a violation where it grew beyond its bound, or was not looked at."""
    looks = [
        [sample for sample in samples if first * span <= sample.at <= last * span]
        for first, last in (EARLY, LATE)
    ]
    if not all(looks):
        early, late = map(len, looks)
        said = f"nothing to compare: the worker was looked at {early} times early, {late} times late"
        outcome.violations.append(said)
        return
    for name, of, bound in (
        ("bytes of memory", lambda sample: sample.memory, MEMORY_BOUND),
        ("open files", lambda sample: sample.files, FILES_BOUND),
    ):
        early, late = (max(map(of, part)) for part in looks)
        said = f"{name}: at most {early:,} early, {late:,} late, bound {bound:,} more"
        outcome.notes.append(said)
        if late > early + bound:
            outcome.violations.append(f"growth of {said}")


async def _sleep_until(moment: float) -> None:
    await asyncio.sleep(max(moment - time.monotonic(), 0))
