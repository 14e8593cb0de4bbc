"""Plays queries through an engine with any batching and any crashes, and collects what became durable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from stream_svt.columns.decimals import split
from stream_svt.columns.query_batch import QueryBatch
from stream_svt.mechanisms.grid import PARTS, WHOLE_LIMIT
from stream_svt.monitor import operations
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.released import Alert, DatasetView, ReleasedEvent
from stream_svt.monitor.state.accounts import BOUNDS, Bounds, Commit
from stream_svt.monitor.state.plan import Plan
from stream_svt.monitor.state.runs import Runs, Status
from stream_svt.monitor.state.snapshot import RunState, Signal
from stream_svt.monitor.takeover import check_declared, close_undeclared, load, load_in_slices, retire
from stream_svt.privacy.ledger import Ledger
from stream_svt.proving import streams
from stream_svt.proving.streams import Row as Query
from stream_svt.settings import monitors as monitor_spec
from stream_svt.settings.application import ApplicationSpec

KEY = bytes(range(32))


def constant_entropy(count: int) -> bytes:
    """Return bytes that are always the same: every run then draws the same noise, whenever it is opened."""
    return (b"\x9d\x31\x5a\xc4\x77\x02\xee\x18" * (count // 8 + 1))[:count]


def exhaust(engine: Engine) -> None:
    """Spend all budgets, so that no monitor opens a run."""
    for number in range(len(engine.datasets)):
        account = engine.accounts.account(number)
        for name, runner in engine.runners.items():
            if runner.runs.is_open(number):
                runner.runs.end_run(number, "paused", full_price=True)
            account.run_state(name).signal(Signal.REFUSED)
            runner.runs.status[number] = Status.EXHAUSTED
        account.ledger.charge(account.ledger.available)


def finish(*works: Iterable[None]) -> None:
    """Run generators of slices to their end."""
    for work in works:
        for _ in work:
            pass


@contextmanager
def another_release() -> Iterator[None]:
    """Simulate a release with another sampler, which cannot continue open runs of this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monitor_spec, "SAMPLER_VERSION", monitor_spec.SAMPLER_VERSION + 1)
        # Without the cache, which has plans of this release.
        patch.setattr(Plan, "of", Plan.of.__wrapped__.__get__(Plan))
        yield


def batch_of(topic: str, queries: Sequence[Query], first: int, last: int) -> QueryBatch:
    """Return queries [first, last) of a topic, whose values are numbers or decimals, as a batch."""
    rows = []
    for query in queries[first:last]:
        whole, fraction = split(None if query.value is None else Decimal(query.value))
        rows.append(replace(query, value=whole * PARTS + fraction))
    return streams.batch_of(topic, rows, first)


@dataclass
class Play:
    """An engine and the state that it would have on Kafka. `crash` discards the engine and loads the state."""

    spec: ApplicationSpec
    entropy: Callable[[int], bytes] = constant_entropy
    bounds: Bounds = BOUNDS
    records: dict[bytes, bytes] = field(default_factory=dict)
    progress: bytes | None = None
    events: list[ReleasedEvent] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    barriers: int = 0

    def __post_init__(self) -> None:
        self.engine = self._new()
        for topic in self.engine.topics():
            self.engine.begin(topic, 0)

    def _new(self) -> Engine:
        names = [dataset.name for dataset in self.spec.datasets]
        return Engine(self.spec, shard=0, datasets=names, key=KEY, entropy=self.entropy, bounds=self.bounds)

    def loaded(self) -> Engine:
        """Return a new engine, loaded from the last commit."""
        engine = self._new()
        load(engine, self.records, self.progress)
        return engine

    def crash(self) -> None:
        """Lose everything since the last commit."""
        self.engine = self.loaded()
        for topic in self.engine.topics():
            if self.engine.next_offset(topic) is None:
                self.engine.begin(topic, 0)

    def take_over(self, spec: ApplicationSpec) -> None:
        """Lose everything since the last commit, and load an applied configuration that may retire datasets."""
        self.spec = spec
        self.engine = self._new()
        finish(load_in_slices(self.engine, self.records, self.progress))
        finish(check_declared(self.engine, may_retire=True), close_undeclared(self.engine))

    def retire(self, spec: ApplicationSpec) -> list[ReleasedEvent]:
        """Load an applied configuration, and retire the datasets that it does not declare; return the events."""
        self.take_over(spec)
        finish(retire(self.engine))
        return self.commit().events

    def commit(self) -> Commit:
        """Take a commit, and make it durable."""
        commit = self.engine.take_commit()
        for key, data in commit.records.items():
            if data is None:
                self.records.pop(key, None)
            else:
                self.records[key] = data
        self.progress = commit.progress
        self.events.extend(commit.events)
        self.commits.append(commit)
        self.engine.committed()
        return commit

    def accept_loss(self, topic: str, offset: int, end: int | None = None) -> None:
        finish(operations.close_runs_of_topic(self.engine, topic))
        operations.skip_lost_records(self.engine, topic, offset, end)

    def feed(self, topic: str, queries: Sequence[Query], last: int) -> None:
        """Step through queries up to ``last``, committing where the engine asks for it."""
        self.step(batch_of(topic, queries, self.engine.next_offset(topic) or 0, last))

    def step(self, batch: QueryBatch) -> None:
        """Step through a batch, committing where the engine asks for it."""
        while not self.engine.step(batch).done:
            self.barriers += 1
            self.commit()

    def play(self, topic: str, queries: Sequence[Query]) -> list[ReleasedEvent]:
        """Step through all queries at once, commit, and return all events."""
        self.feed(topic, queries, len(queries))
        self.commit()
        return self.events

    def more(self, *queries: Query) -> None:
        """Step through the next queries of the only topic, and commit."""
        (topic,) = self.engine.topics()
        self.play(topic, [*[Query(0, 0)] * (self.engine.next_offset(topic) or 0), *queries])

    def run_state(self, number: int = 0, monitor: str = "m0") -> RunState:
        return self.engine.accounts.run_state(monitor, number)

    def ledger(self, number: int = 0) -> Ledger:
        return self.engine.accounts.account(number).ledger

    def runs(self, monitor: str = "m0") -> Runs:
        return self.engine.runners[monitor].runs

    def views(self) -> list[DatasetView]:
        return list(map(self.engine.projection.view, range(len(self.engine.datasets))))

    def alerts(self, monitor: str = "") -> list[Alert]:
        """Return the alerts committed so far, of one monitor or all."""
        found = (event.data for event in self.events if isinstance(event.data, Alert))
        return [alert for alert in found if monitor in ("", alert.monitor)]


def numbers(batch: QueryBatch) -> list[Fraction | None]:
    """Return the value of each row as far as a batch holds it; None for what is no number, or below all grids."""
    fraction = np.zeros_like(batch.whole) if batch.fraction is None else batch.fraction
    assert ((fraction >= 0) & (fraction < PARTS)).all()
    pairs = zip(batch.whole.tolist(), fraction.tolist(), strict=True)
    return [None if whole == -WHOLE_LIMIT else whole + Fraction(part, PARTS) for whole, part in pairs]
