"""With a cadence, when something becomes visible tells nothing of how long the work for it took.

In the timed world everything takes time: requests always the same, work as long as its values say. Queries arrive when
they arrive, whatever the service does meanwhile. Everything that somebody outside could time is kept: when each record
and each marker was appended, and what the observer was told.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from stream_svt.columns.query_batch import QueryBatch
from stream_svt.monitor.engine import Engine, Step
from stream_svt.queries.codec import QueryDecoder
from stream_svt.settings.application import ApplicationSpec
from tests.simulation.applications import APPLICATIONS, DATASETS, OTHER, TOPIC, Application, application
from tests.simulation.log import Effect, Entry, Txn
from tests.simulation.script import Script
from tests.simulation.world import CONTROL, ModelWorkload, Process, Silent, Variant, World

TAKES = {"fetch": 0.001, "append": 0.0005, "end": 0.002, "sleep": 0.0}
"""Seconds of a request; 0.001 for any other."""

Arrival = tuple[float, str, bytes, bytes]
"""Seconds after the beginning, topic, key and content of a query."""
Work = Callable[[Sequence[bytes]], float]
"""Seconds that these queries take."""


class Stopwatch(Silent):
    """An observer that keeps every duration it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def count(self, name: str, *_: str, by: int = 1) -> None:
        if name not in {"records_total", "records_rejected_total"}:
            self.told.append((name, by))

    def time(self, name: str, seconds: float) -> None:
        self.told.append((name, round(seconds, 6)))


class TimedWorld(World):
    """One owner without faults; ``work`` is how long the decoder takes for queries, and the engine again."""

    def __init__(self, stage: Application, arrivals: Sequence[Arrival], work: Work) -> None:
        super().__init__(Script(1, 0, 0, ()), Variant(workload=self._workload, observer=Stopwatch), stage)
        self.now = self._began = 1_000.0
        self.moments: list[tuple[str, int, float, bool]] = []
        self._arrivals = list(arrivals)
        self._work = work
        self._batch: Sequence[bytes] = ()
        self._rule = self.broker.appended
        self.broker.appended = self._appended
        for topic in (TOPIC, OTHER, CONTROL):
            self.broker.partitions[topic] = []
        owner = self._spawn()
        self.observer = owner.observer
        while owner in self._processes:
            self._step(owner)
        assert self.rules.violations == []

    def _appended(self, entry: Entry) -> None:
        self._rule(entry)
        if entry.partition not in {TOPIC, OTHER, CONTROL}:
            self.moments.append((entry.partition, entry.offset, round(self.now, 6), entry.marker))

    def pass_until(self, moment: float) -> None:
        while self._arrivals and self._began + self._arrivals[0][0] <= moment:
            after, topic, key, body = self._arrivals.pop(0)
            self.now = max(self.now, self._began + after)
            self.broker.write(topic, key, body)
        self.now = max(self.now, moment)

    def _pass_time(self, effect: Effect) -> None:
        self.pass_until(self.now + TAKES.get(effect.kind, 0.001))

    def _let_happen(self, process: Process, effect: Effect) -> None:
        super()._let_happen(process, effect)
        if effect.kind == "end":
            self.pass_until(self.now + 0.001)
            self.broker.mark("app-0", everything=True)

    def fetched(self, process: Process, *, empty: bool, max_wait: float) -> None:
        """Let a fetch wait for the next query, as long as it may."""
        process.stop = self.now - self._began >= SECONDS
        if empty and max_wait:
            following = self._began + self._arrivals[0][0] if self._arrivals else self.now + max_wait
            self.pass_until(min(following, self.now + max_wait))

    async def _sleep(self, seconds: float) -> None:
        end = self.now + seconds
        if seconds > 0:  # nobody else shares the worker
            await Effect("sleep", lambda: self.pass_until(end))

    def _workload(self, spec: ApplicationSpec, **parts: Any) -> ModelWorkload:
        """Return a workload whose decoders and engines take time."""
        world = self

        class Laborious(Engine):
            def step(self, batch: QueryBatch) -> Step:
                assert batch.end
                world.pass_until(world.now + world._work(world._batch))
                return super().step(batch)

        class Slow(QueryDecoder):
            def decode(self, records: Sequence[Any]) -> QueryBatch:
                world._batch = [record.value for record in records]
                world.pass_until(world.now + world._work(world._batch))
                return super().decode(records)

        return ModelWorkload(spec, decoder=Slow, kind=Laborious, **parts)


def alerts(world: TimedWorld) -> list[bytes | None]:
    return [entry.value for entry in world.broker.read("alerts")]


CADENCE = 0.25
JITTER = 0.06
"""Seconds that the modelled world takes between waking and the first record of a transaction."""
SECONDS = 12.0


def stream(form: int, seed: int, *, neighbour: bool) -> list[Arrival]:
    """Queries that alert now and then; in the neighbour every bottom is lower by a half, and so no integer."""
    chance = random.Random(seed)
    topics = application(form).spec.topics()
    found = []
    for number in range(240):
        value: float = chance.randrange(1, 300)
        if chance.random() < 0.06:
            value = 90_000
        elif neighbour:
            value -= 0.5
        body = {
            "id": f"q{number}",
            "value": value,
            "series": f"i{chance.randrange(9)}",
            "set": f"s{number // 12}",
        }
        moment, topic = number * 0.04 + chance.random() * 0.01, chance.choice(topics)
        found.append((moment, topic, chance.choice(DATASETS).encode(), msgspec.json.encode(body)))
    return found


def labour(queries: Sequence[bytes], most: float = 0.03) -> float:
    """Seconds for some queries: more where one is no integer, and else as their values would have it."""
    slow = 0.015 if any(b".5," in query for query in queries) else 0.0
    return slow + most * random.Random(b"".join(queries)).random()


def played(form: int, seed: int, *, neighbour: bool, cadence: float | None, most: float = 0.03) -> TimedWorld:
    stage = replace(application(form), cadence=cadence and f"{cadence}s")
    arrivals = stream(form, seed, neighbour=neighbour)
    return TimedWorld(stage, arrivals, lambda queries: labour(queries, most))


def begins(world: TimedWorld) -> list[float]:
    """When each transaction wrote its first record, in seconds after the last tick."""
    first: dict[Txn, float] = {}
    for entry in itertools.chain.from_iterable(world.broker.partitions.values()):
        if entry.txn is not None:
            first[entry.txn] = min(first.get(entry.txn, math.inf), entry.timestamp / 1000)
    return [moment % CADENCE for moment in first.values()]


@pytest.mark.parametrize("form", range(len(APPLICATIONS)))
def test_transactions_begin_at_ticks_and_at_each_of_them(form: int) -> None:
    found = begins(played(form, 0, neighbour=False, cadence=CADENCE))
    # The claim of a takeover comes when the takeover does; all others wait.
    assert len([late for late in found if late > JITTER]) <= 2
    assert len(found) >= SECONDS / CADENCE - 2


@pytest.mark.parametrize("form", range(len(APPLICATIONS)))
@pytest.mark.parametrize("seed", range(2))
def test_neighbours_that_released_the_same_cannot_be_told_apart_by_any_time(form: int, seed: int) -> None:
    """Work takes up to 0.2 s and depends on the values; the times of all records and all metrics are the same."""
    one, other = (played(form, seed, neighbour=which, cadence=CADENCE) for which in (False, True))
    assert len([event for event in alerts(one) if b'"gap"' in event]) >= 3
    assert alerts(one) == alerts(other)
    assert (one.moments, one.observer.told) == (other.moments, other.observer.told)


@pytest.mark.parametrize("form", range(len(APPLICATIONS)))
def test_without_a_cadence_the_same_neighbours_are_told_apart(form: int) -> None:
    one, other = (played(form, 0, neighbour=which, cadence=None) for which in (False, True))
    assert one.moments != other.moments
    assert one.observer.told != other.observer.told
    assert len([late for late in begins(one) if late > JITTER]) > 3


def test_work_that_does_not_fit_between_two_ticks_shows() -> None:
    """The limit of the claim, and that the comparison sees a difference where a cadence is set."""
    one, other = (played(0, 0, neighbour=which, cadence=CADENCE, most=0.4) for which in (False, True))
    assert one.moments != other.moments
