"""One tenure in a world where everything takes time: requests always the same, work as long as its values say.

Queries arrive when they arrive, whatever the service does meanwhile. Everything that somebody outside could time is
kept: when each record and each marker was appended, and what the observer was told.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from stream_svt.monitor.batch import QueryBatch
from stream_svt.monitor.engine import Commit, Engine, Step
from stream_svt.protocol.ports import Clock
from stream_svt.protocol.tenure import Pace, Tenure
from stream_svt.service.wire import QueryDecoder
from tests.simulation.applications import OTHER, TOPIC, Application
from tests.simulation.effects import Effect, journal_of, lived
from tests.simulation.log import Broker, Entry
from tests.simulation.world import CONTROL, ModelFeed, ModelWorkload, Process, Silent

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

    def __getattr__(self, name: str) -> Callable[..., None]:
        return partial(self._note, name) if name not in {"read", "refused"} else super().__getattr__(name)

    def _note(self, name: str, *told: Any) -> None:
        self.told.append((name, *(round(one, 6) if isinstance(one, float) else one for one in told)))

    def committed(self, shard: int, commit: Commit, seconds: float, steps: Iterable[float]) -> None:
        self._note("committed", seconds, *steps)


class TimedWorld:
    """A broker, a tenure and a clock.

    Parameters
    ----------
    application
        What runs, with or without a cadence.
    arrivals
        The queries, in order.
    work
        How long the decoder takes for queries, and the engine for them again.
    seconds
        When the tenure is asked to end.
    """

    def __init__(
        self, application: Application, arrivals: Sequence[Arrival], work: Work, *, seconds: float
    ) -> None:
        self.application = application
        self.now = self._began = 1_000.0
        self.chance = random.Random(1)
        self.broker = Broker(now_ms=lambda: int(self.now * 1000))
        self.observer = Stopwatch()
        self.moments: list[tuple[str, int, float, bool]] = []
        self._arrivals = list(arrivals)
        self._work = work
        self._seconds = seconds
        self._batch: Sequence[bytes] = ()
        self.broker.appended = self._appended
        for topic in (TOPIC, OTHER, CONTROL):
            self.broker.partitions[topic] = []

    @property
    def alerts(self) -> list[bytes | None]:
        """What subscribers were shown, in order."""
        return [entry.value for entry in self.broker.read("alerts")]

    def _appended(self, entry: Entry) -> None:
        if entry.partition not in {TOPIC, OTHER, CONTROL}:
            self.moments.append((entry.partition, entry.offset, round(self.now, 6), entry.marker))

    def pass_until(self, moment: float) -> None:
        """Let time pass; queries arrive meanwhile."""
        while self._arrivals and self._began + self._arrivals[0][0] <= moment:
            after, topic, key, body = self._arrivals.pop(0)
            self.now = max(self.now, self._began + after)
            self.broker.write(topic, key, body)
        self.now = max(self.now, moment)

    def fetched(self, process: Process, *, empty: bool, patience: float) -> None:
        """Let a fetch wait for the next query, as long as it may."""
        process.stop = self.now - self._began >= self._seconds
        if empty and patience:
            following = self._began + self._arrivals[0][0] if self._arrivals else self.now + patience
            self.pass_until(min(following, self.now + patience))

    async def _sleep(self, seconds: float) -> None:
        end = self.now + seconds
        if seconds > 0:  # nobody else shares the worker
            await Effect("sleep", lambda: self.pass_until(end))

    def _workload(self, entropy: random.Random) -> ModelWorkload:
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

        return ModelWorkload(self.application.spec, entropy=entropy.randbytes, decoder=Slow, kind=Laborious)

    def run(self) -> TimedWorld:
        """Play the tenure to its end."""
        entropy = random.Random(2)
        process = Process(1, None, entropy)  # type: ignore[arg-type]
        journal = journal_of(self.broker, entropy=entropy.randbytes, epoch=lambda: self.now)
        tenure = Tenure(
            ModelFeed(self, process),  # type: ignore[arg-type]
            journal,
            self._workload(entropy),
            shard=0,
            control=CONTROL,
            pace=Pace(interval=0.5, max_records=40, cadence=self.application.cadence),
            clock=Clock(now=lambda: self.now, epoch=lambda: self.now, sleep=self._sleep),
            observer=self.observer,
            status=process.status,
        )

        life, outcome = lived(tenure), None
        while True:
            try:
                effect = life.send(outcome)
            except StopIteration:
                return self
            self.pass_until(self.now + TAKES.get(effect.kind, 0.001))
            outcome = effect.act()
            if effect.kind == "end":
                self.pass_until(self.now + 0.001)
                self.broker.mark("app-0", everything=True)


def outside(world: TimedWorld) -> Mapping[str, object]:
    """Return everything that can be timed."""
    return {"appended": world.moments, "told": world.observer.told, "alerts": world.alerts}
