"""Plays queries of generated datasets through the successive engines of a shard."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from stream_svt.kafka.partitioning import Partitioning
from stream_svt.monitor.released import EventType
from stream_svt.monitor.takeover import (
    announce_covered,
    change_spec_in_slices,
    check_declared,
    check_spec,
    close_removed,
    close_undeclared,
    load_in_slices,
    retire,
    retired_datasets,
)
from stream_svt.settings.application import ApplicationSpec
from stream_svt.worker.workload import AppliedWorkload
from tests.support.engine_play import KEY, Play, Query, batch_of, finish

DAY_MS = 86_400_000
START_MS = int(datetime(2026, 1, 5, tzinfo=UTC).timestamp()) * 1000
"""A Monday."""
NOBODY = Query(0, None)


@dataclass
class GeneratedPlay(Play):
    """A shard's state and its engine. `open` discards the engine and makes the next one."""

    now_ms: int = START_MS
    ends: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        self.open()

    def open(self, spec: ApplicationSpec | None = None, now_ms: int | None = None) -> None:
        """Take over as a worker with this specification does at this time."""
        self.spec, self.now_ms = spec or self.spec, now_ms or self.now_ms
        workload = AppliedWorkload(self.spec, Partitioning(1, "murmur2"), (1, "digest"), now_ms=self.now_ms)
        finish(workload.gather(0, retired_datasets(self.spec, self.records, self.progress)))
        self.engine = workload.engine(0, KEY)
        finish(
            load_in_slices(self.engine, self.records, self.progress),
            check_declared(self.engine, may_retire=True),
        )
        if self.progress is None:
            self.engine.begin_state(1, "murmur2", "cluster")
        finish(close_undeclared(self.engine))
        self.commit()

    def adopt(self, *, idle_ms: int = 0) -> None:
        """Adopt the specification after the replay, with every topic read to its end."""
        spec = self.engine.spec
        check_spec(self.engine, spec)
        finish(
            close_removed(self.engine, spec),
            change_spec_in_slices(self.engine, spec),
            announce_covered(self.engine),
        )
        for topic in self.engine.topics():
            self.engine.begin(topic, 0)
        finish(retire(self.engine))
        self.engine.advance_watermarks(self.ends if idle_ms else {}, idle_ms)
        self.commit()

    def roll(self, now_ms: int) -> None:
        """Take over and adopt at a later time."""
        self.open(now_ms=now_ms)
        self.adopt()

    def ask(self, name: str, time_ms: int, value: int = 0, *, topic: str = "t") -> bool:
        """Step through the next query of a topic, with this timestamp; return whether it was tested."""
        offset, self.ends[topic] = self.ends[topic], self.ends[topic] + 1
        if name not in self.engine.number:
            return False
        query = Query(self.engine.number[name], value, f"s{offset}", time_ms=time_ms)
        batch = batch_of(topic, [NOBODY] * offset + [query], offset, offset + 1)
        before = len(self.commits)
        self.step(batch)
        self.commit()
        return any(sum(commit.tested.values()) for commit in self.commits[before:])

    @property
    def stored(self) -> list[str]:
        """Names of the datasets in the state, with their kind of record."""
        return sorted(key.decode() for key in self.records if key[:2] in (b"d/", b"r/"))

    def reasons(self, *kinds: EventType) -> list[tuple[str, str]]:
        """Return dataset and reason of the events of some types."""
        return [(event.data.dataset, event.data.reason) for event in self.events if event.type in kinds]


def day(number: int, *, prefix: str = "d") -> str:
    """Return the name of a day's dataset: 0 is the day that begins at `START_MS`."""
    date = datetime.fromtimestamp((START_MS + number * DAY_MS) / 1000, UTC).date()
    return f"{prefix}-{date.isoformat()}"


def at(number: float) -> int:
    """Return a time, in days since `START_MS`."""
    return START_MS + round(number * DAY_MS)


def watermarks(play: GeneratedPlay) -> Mapping[str, int]:
    """Return the watermarks of the state, in days since `START_MS`."""
    found = retired_datasets(play.spec, play.records, play.progress).watermarks
    return {pattern: (end - START_MS) // DAY_MS for pattern, end in found.items()}
