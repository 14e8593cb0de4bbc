"""A year of generated datasets, one a name and day: what a shard holds after it, against after its first month.

A shard's engines follow one another as its owners do, on a store of its state records. Every name gets a query a day
on two topics, of which one lags by up to three days. Owners change every night, and now and then without having
committed what they did. The configuration changes every 45 days, most times by the lateness; after half a year a
successor continues with what the application left.

``state_ratio``    bytes of the live state records after a year, over those after a month; mean of five days
``restore_ratio``  processor time in which an engine takes the state over, likewise; median of several takeovers
``rss_ratio``      resident memory of the process, likewise
``violations``     datasets that were opened twice, shown after their end, or tested in two applications
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import numpy as np

from benchmarks.command import show
from stream_svt.columns.query_batch import QueryBatch
from stream_svt.columns.strings import TextList
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.released import EventType, ReleasedEvent, encode
from stream_svt.monitor.takeover import (
    change_spec_in_slices,
    check_declared,
    close_removed,
    close_undeclared,
    load_in_slices,
    retire,
    retired_datasets,
)
from stream_svt.protocol.history.carry_over import ShardHistory, carry_over
from stream_svt.protocol.state_records import Closed
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.carried import NOTHING
from stream_svt.settings.periods import period_end
from stream_svt.worker.workload import AppliedWorkload

DAY_MS = 86_400_000
START_MS = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1000
APPLIED_EVERY = 45
LAGS_FROM, MONTH = 5, 30
"""Of 30 days the later topic lags on all but the first ones."""
PATTERN = "{name}-{date}"
TAKEOVERS = 9
KEPT_DAYS = 7
"""Days of events that are left on the alert topic when the application is closed."""

SPEC = """
application: {application}
datasets:
  - {{generate: "{pattern}", names: [{names}], from: 2026-01-01, lateness: {lateness}, limit: 2, unit: one event}}
monitors:
  - {{name: now, topic: now, {common}}}
  - {{name: later, topic: later, {common}, append: {{retry: {{attempts: 3, capacity: 5, every: 4}}}}}}
"""
COMMON = (
    "epsilon: 1, sensitivity: 1, monotonic: true, bounds: [0, 1000], threshold: 500, cutoff: 3, "
    "expected_queries: 100, mute: 6h, max_runs: off"
)


@dataclass
class _Record:
    """A record of the alert topic."""

    value: bytes | None
    timestamp: int
    offset: int = 0
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()


@dataclass
class Shard:
    """The store of a shard's state, and its engine."""

    spec: ApplicationSpec
    now_ms: int
    records: dict[bytes, bytes] = field(default_factory=dict)
    progress: bytes | None = None
    ends: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    version: int = 1

    def __post_init__(self) -> None:
        """Begin the state."""
        self.take_over()

    def load(self) -> Engine:
        """Return an engine that has taken the state over."""
        workload = AppliedWorkload(
            self.spec, Partitioning(1, "murmur2"), (self.version, ""), now_ms=self.now_ms
        )
        for _ in workload.gather(0, retired_datasets(self.spec, self.records, self.progress)):
            pass
        engine = workload.engine(0, bytes(32))
        for _ in load_in_slices(engine, self.records, self.progress):
            pass
        return engine

    def take_over(self) -> list[ReleasedEvent]:
        """Be the next owner, who adopts the specification; return the events."""
        engine = self.engine = self.load()
        for _ in check_declared(engine, may_retire=True):
            pass
        if self.progress is None:
            engine.begin_state(1, "murmur2", "cluster")
        for _ in close_undeclared(engine):
            pass
        events = self.commit()
        for _ in close_removed(engine, self.spec):
            pass
        for _ in change_spec_in_slices(engine, self.spec):
            pass
        for topic in engine.topics():
            engine.begin(topic, 0)
        engine.adopt((self.version, ""))
        for _ in retire(engine):
            pass
        engine.advance_watermarks({}, 0)
        return events + self.commit()

    def test(self, topic: str, queries: Sequence[tuple[str, int, int]], *, dies: bool) -> list[ReleasedEvent]:
        """Test queries (dataset, value, time), the next ones of a topic; return what was charged.

        An owner that ``dies`` has tested some of them before, without a commit at the end.
        """
        offset = self.ends[topic]
        events: list[ReleasedEvent] = []
        if dies:
            events += self._step(topic, offset, queries[: len(queries) // 2])
            events += self.take_over()
        self.ends[topic] = offset + len(queries)
        return events + self._step(topic, offset, queries) + self.commit()

    def _step(self, topic: str, offset: int, queries: Sequence[tuple[str, int, int]]) -> list[ReleasedEvent]:
        number = self.engine.number
        known = [(offset + place, *query) for place, query in enumerate(queries) if query[0] in number]
        batch = QueryBatch(
            topic=topic,
            first=offset,
            end=offset + len(queries),
            offset=np.array([place for place, *_ in known], dtype=np.int64),
            row=np.zeros(len(known), dtype=np.int64),
            timestamp_ms=np.array([time_ms for *_, time_ms in known], dtype=np.int64),
            dataset=np.array([number[name] for _, name, *_ in known], dtype=np.int64),
            whole=np.array([value for _, _, value, _ in known], dtype=np.int64),
            fraction=np.zeros(len(known), dtype=np.int64),
            series=TextList([f"s{place}" for place, *_ in known]),
            set_id=[None] * len(known),
            threshold={},
            monitor={},
            markers={},
            query_id=TextList([f"q{place}" for place, *_ in known]),
        )
        events: list[ReleasedEvent] = []
        while not self.engine.step(batch).done:
            events += self.commit()
        return events

    def commit(self) -> list[ReleasedEvent]:
        """Make durable what the engine holds; return the events."""
        commit = self.engine.take_commit()
        for key, data in commit.records.items():
            if data is None:
                self.records.pop(key, None)
            else:
                self.records[key] = data
        self.progress = commit.progress
        self.engine.committed()
        return commit.events

    @property
    def size(self) -> int:
        """Bytes of the live state."""
        return sum(len(key) + len(data) for key, data in self.records.items()) + len(self.progress or b"")


class Year:
    """What is played, and what is found."""

    def __init__(self, names: int, seed: int = 0) -> None:
        self._names = [f"n{number:05}" for number in range(names)]
        self._places = {name: place for place, name in enumerate(self._names)}
        self._chance = random.Random(seed)
        self._lagging: deque[list[tuple[str, int, int]]] = deque()
        self._declared = np.zeros((names, 400), dtype=np.uint8)
        self._retired = np.zeros((names, 400), dtype=np.uint8)
        self._shown: deque[list[ReleasedEvent]] = deque(maxlen=KEPT_DAYS)
        self._lateness = "6h"
        self._carried = NOTHING
        self.violations = 0
        self.shard = Shard(self._spec("app"), START_MS)

    def _spec(self, application: str) -> ApplicationSpec:
        text = SPEC.format(
            application=application,
            names=", ".join(self._names),
            lateness=self._lateness,
            common=COMMON,
            pattern=PATTERN,
        )
        return replace(load_spec(text), carried=self._carried)

    def play(self, day: int) -> None:
        """Play one day."""
        now = START_MS + day * DAY_MS
        shard = self.shard
        shard.now_ms = now
        if day % APPLIED_EVERY == APPLIED_EVERY - 1:
            self._lateness = self._chance.choice(["0s", "2d", "5d"])
            self._apply()
        elif day % APPLIED_EVERY == 0 and day:
            self._lateness = "6h"
            self._apply()
        events = shard.take_over()
        queries = [
            (
                f"{name}-{self._date(day)}",
                self._chance.choice((0, 0, 0, 900)),
                now + k * DAY_MS // len(self._names),
            )
            for k, name in enumerate(self._names)
        ]
        # Some ask for the day before, which is over, or for one that is yet to come.
        for place in range(0, len(queries), 50):
            other = day + self._chance.choice((-40, -2, -1, 1))
            queries[place] = (f"{self._names[place]}-{self._date(max(other, 0))}", 900, queries[place][2])
        events += shard.test("now", queries, dies=self._chance.random() < 0.3)
        self._lagging.append(queries)
        while len(self._lagging) > self._chance.randrange(4) * (day % MONTH >= LAGS_FROM):
            events += shard.test("later", self._lagging.popleft(), dies=self._chance.random() < 0.3)
        self._look(events)
        self._shown.append(events)

    def _apply(self) -> None:
        self.shard.spec = self._spec(self.shard.spec.application)
        self.shard.version += 1

    def succeed(self, day: int) -> None:
        """Have a successor go on, by what is left on the alert topic."""
        history = ShardHistory("app", 0, lambda *_: False, closed=Closed("next", 2**62, "x"))
        for events in self._shown:
            for event in events:
                text = datetime.fromtimestamp(self.shard.now_ms / 1000, UTC).isoformat()
                value = encode(event, application="app", shard=0, time=text, origin="1-a")
                history.take(_Record(value, self.shard.now_ms))
        history.end()
        carried, _ = carry_over(
            self.shard.spec,
            [history],
            cluster="cluster",
            alerts="alerts",
            successor="next",
            home=lambda *_: 0,
            now_ms=self.shard.now_ms,
        )
        self._carried = carried
        self._lagging.clear()
        self.shard = Shard(self._spec("next"), START_MS + day * DAY_MS)

    def _date(self, day: int) -> str:
        return datetime.fromtimestamp((START_MS + day * DAY_MS) / 1000, UTC).date().isoformat()

    def _look(self, events: Sequence[ReleasedEvent]) -> None:
        for event in events:
            name = event.data.dataset
            end = period_end(PATTERN, name) if name else None
            if end is None:
                continue
            place = self._places[name[:6]], (end - START_MS) // DAY_MS
            if event.type is EventType.DECLARED:
                self.violations += int(self._declared[place])
                self._declared[place] = 1
            self.violations += int(self._retired[place])
            if event.type is EventType.RETIRED:
                self._retired[place] = 1

    @property
    def opened(self) -> int:
        """How many datasets were opened."""
        return int(self._declared.sum())

    def settle(self) -> int:
        """Have the next owners retire what is over; return the bytes of the live state."""
        for _ in range(2):
            self._look(self.shard.take_over())
        return self.shard.size

    def held(self, sizes: Sequence[int]) -> Mapping[str, float]:
        """Return what the shard holds now, and held on the last days."""
        times = []
        for _ in range(TAKEOVERS):
            began = time.process_time()
            self.shard.load()
            times.append(time.process_time() - began)
        gc.collect()
        with open("/proc/self/statm") as file:  # noqa: PTH123  no path of ours
            pages = int(file.read().split()[1])
        return {
            "state": statistics.mean(sizes),
            "restore": statistics.median(times),
            "rss": pages * os.sysconf("SC_PAGESIZE"),
        }


def figures(names: int = 1_000, days: int = 365) -> dict[str, float]:
    """Return the figures."""
    year = Year(names)
    month: Mapping[str, float] = {}
    sizes: deque[int] = deque(maxlen=LAGS_FROM)
    for day in range(days):
        if day == days // 2:
            year.succeed(day)
        year.play(day)
        if day % MONTH < LAGS_FROM:
            sizes.append(year.settle())
        if day == MONTH + LAGS_FROM - 1:
            month = year.held(sizes)
    last = year.held(sizes)
    if year.opened < names * days * 0.7:
        raise AssertionError(f"{year.opened} datasets were opened")
    return {f"{name}_ratio": last[name] / month[name] for name in month} | {
        "violations": float(year.violations)
    }


if __name__ == "__main__":
    show(figures)
