"""Data of the status page: budgets of the whole application, and the newest released events.

Committed records of the alert topic are read while the page is requested and a little longer: the page shows only
charged, durable and published events. The length of the history and the number of kept events are bounded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from importlib import import_module
from itertools import chain
from operator import itemgetter
from typing import Annotated, Any, TypeAlias

import msgspec
from aiokafka import TopicPartition
from msgspec import Meta

from stream_svt.errors import BrokerError
from stream_svt.kafka.clients import CALL_DEADLINE, deadline, edges, seek_all, started
from stream_svt.monitor.released import Budget, DatasetView, MonitorView, ReleasedStatus, decode
from stream_svt.monitor.state.snapshot import State
from stream_svt.planning.budget import Exhaustion, exhaustion, least_end
from stream_svt.privacy.loss import Kind, best_guess, to_float
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import DatasetSpec
from stream_svt.worker.shard import describe
from stream_svt.worker.worker import Worker

log = logging.getLogger(__name__)

MAX_RECORDS = 200
"""Maximum records of a read: decoding them takes a few milliseconds of the loop that the shards share."""
READ_WAIT_MS = 250
HISTORY = 20_000
"""Offsets of history that are read, over all partitions: a second of work, in slices of a few milliseconds."""
MAX_EVENTS = 200
"""Number of newest events shown."""
IDLE_SECONDS = 30.0
"""Seconds after the last request until reading stops."""
HISTORY_TIMEOUT = 3.0
PROBE_SECONDS = 10.0
"""Seconds between two requests for end offsets: a fetch raises no error when brokers are gone."""
RETRY_SECONDS = 5.0
DATASETS_PER_TURN = 50
"""Datasets of a response between two yields to the shards: a few milliseconds of work."""
MAX_EVENT_BYTES = 1 << 16
"""Maximum size of an event in bytes; the service's events are less than a tenth of that."""

_DOING = "reading the alerts"


class DatasetNow(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset's budget and its monitors.

    Under zCDP only the limit bounds the probability of a right guess: the amount spent so far is no bound by itself,
    because later runs depend on earlier ones. See `stream_svt.privacy.loss.best_guess`.
    """

    dataset: Annotated[str, Meta(description="Its name.")]
    unit: Annotated[str, Meta(description="The privacy unit, as declared.")]
    measure: Annotated[str, Meta(description="epsilon or rho.")]
    limit: Annotated[float, Meta(description="Limit of the ledger.")]
    spent: Annotated[float | None, Meta(description="Privacy loss spent.")]
    reserved: Annotated[float | None, Meta(description="Reserved by open runs.")]
    shard: Annotated[int | None, Meta(description="Its shard, if this worker owns it.")]
    source: Annotated[str, Meta(description="Origin of the amounts: state, alerts, declaration or unknown.")]
    ends: Annotated[float | None, Meta(description="Unix time at which the period is over.")]
    next: Annotated[
        float | None, Meta(description="Unix time at which the next period begins, of a limit that renews.")
    ]
    promise: Annotated[
        str | None, Meta(description="What any time costs over all periods, of a limit that renews.")
    ]
    guess_spent: Annotated[
        float | None, Meta(description="Probability that a guess about a unit is right now.")
    ]
    guess_limit: Annotated[float, Meta(description="This probability once the limit is spent.")]
    outlook: Annotated[
        Exhaustion | None, Meta(description="When the budget ends: early, expected, late, none before least.")
    ]
    charges: Annotated[
        Sequence[tuple[float, float]],
        Meta(description="The latest charges, the oldest first: Unix time and amount."),
    ]
    monitors: Annotated[Sequence[MonitorView | dict[str, Any]], Meta(description="Monitors that cover it.")]


class StatusSnapshot(ReleasedStatus):
    """State of all datasets from their events; this worker's committed accounts take precedence.

    ``complete``: whether all events ever released are included.
    """

    def __init__(self, spec: ApplicationSpec, *, complete: bool = False) -> None:
        self.spec = spec
        self.complete = complete
        # By partition: histories of partitions are not read in order of time.
        self._newest: dict[int, deque[tuple[datetime, msgspec.Raw]]] = {}
        shown = {one.name: one.terms for one in spec.shown}
        budgets = {
            name: Budget(to_float(one.limit, one.kind), one.kind.measure) for name, one in shown.items()
        }
        covers = {one.name: [name for name in budgets if one.covers(name)] for one in spec.monitors}
        super().__init__(budgets, covers)

    def add(self, record: Any) -> None:  # noqa: ANN401
        """Fold a record of the alert topic and keep its event; skip other records."""
        try:
            if len(value := record.value or b"") > MAX_EVENT_BYTES:
                raise msgspec.DecodeError("too large for an event")
            event = decode(value, record.partition, record.offset)
            self.take(event)
        except (ValueError, ArithmeticError):  # forged amounts can overflow sums
            position = (record.partition, record.offset)
            log.warning("event=status_page_skipped partition=%d offset=%d reason=no-event", *position)
            return
        # Encoded again: bytes from the topic, which others may have written, never reach a browser unchanged.
        newest = self._newest.setdefault(record.partition, deque(maxlen=MAX_EVENTS))
        newest.append((event.time, msgspec.Raw(msgspec.json.encode(event))))

    def events(self) -> list[msgspec.Raw]:
        """Return the newest events, the oldest of them first."""
        events = sorted(chain.from_iterable(self._newest.values()), key=itemgetter(0))
        return [event for _, event in events[-MAX_EVENTS:]]

    def of(self, dataset: DatasetSpec, view: DatasetView | None, now: float) -> DatasetNow:
        """Return the state of a dataset; ``view`` is its committed account if this worker owns its shard."""
        budget, terms = self.budgets[dataset.name], dataset.terms
        account, source = (budget, "alerts") if view is None else (view, "state")
        if view is None and not budget.reported:
            source = "declaration" if self.complete else "unknown"
        limit, spent, known = account.limit, account.spent, source != "unknown"
        return DatasetNow(
            dataset=dataset.name,
            unit=terms.unit,
            measure=budget.measure,
            limit=limit,
            spent=spent if known else None,
            reserved=account.reserved if known else None,
            shard=None if view is None else view.shard,
            source=source,
            ends=None if terms.ends_ms is None else terms.ends_ms / 1000,
            next=None if (begin := self.spec.renewal_ms(terms)) is None else begin / 1000,
            promise=None if terms.renewal is None else terms.renewal.promise,
            guess_spent=best_guess(spent, terms.kind) if known and terms.kind is Kind.PURE else None,
            guess_limit=best_guess(limit, terms.kind),
            outlook=self._outlook(dataset, account, now) if known else None,
            charges=[*budget.charges],
            monitors=list(self._monitors(dataset.name, known=known)) if view is None else view.monitors,
        )

    def _outlook(self, dataset: DatasetSpec, account: Budget | DatasetView, now: float) -> Exhaustion | None:
        """Return when a budget ends at its pace, but not before `max_runs` permits."""
        budget, left = self.budgets[dataset.name], max(account.limit - account.spent, 0.0)
        found = exhaustion(budget.charges, left, now)
        if found is None:
            return None
        monitors = {one.name: one for one in self.spec.monitors}
        begins = {
            monitors[name]: status.limited_until / 1000 if status.state is State.LIMITED else 0.0
            for name, status in self.of_dataset(dataset.name).items()
        }
        terms = replace(dataset.terms, limit=round(account.limit * dataset.terms.kind.units))
        return found.not_before(least_end(begins, terms, left, account.reserved, now))

    def _monitors(self, dataset: str, *, known: bool) -> Iterator[dict[str, Any]]:
        """Yield the state of monitors from events; only the owner of the shard knows the rest."""
        for name, one in self.of_dataset(dataset).items():
            counts = {"run": one.run, "alerts": one.tops, "halts": one.halts}
            blind: dict[str, Any] = {"since": one.blind_ms, "until": one.until_ms}
            if known and one.paused:
                blind |= {"beneath": one.beneath, "beneath_until": one.beneath_until_ms}
            unknown = dict.fromkeys(("spent", "muted", "queued"))
            yield {"monitor": name, "state": one.shown if known else None, **counts, **blind, **unknown}


AlertsRead: TypeAlias = tuple[list[Any], bool, bool]


async def read_alerts(worker: Worker) -> AsyncGenerator[AlertsRead, None]:
    """Read the alert topic from `HISTORY` offsets before its end, without a group and without end.

    Yield the next records, possibly none, whether reading began with the first record ever written, and whether the
    history has been read.
    """
    topics = worker.config.topics
    partitions = [TopicPartition(topics.alerts, number) for number in range(topics.partitions)]
    async with started(worker.config.cluster().reader(), _DOING) as consumer:
        spans = await edges(consumer, partitions, _DOING)
        behind = {tp: end for tp, (_, end) in spans.items()}
        share = max(HISTORY // topics.partitions, 1)
        starts = {tp: max(first, end - share) for tp, (first, end) in spans.items()}
        seek_all(consumer, starts)
        probed = 0.0
        while True:
            async with deadline(CALL_DEADLINE, _DOING):
                if time.monotonic() - probed > PROBE_SECONDS:
                    await consumer.end_offsets(partitions)
                    probed = time.monotonic()
                batch = await consumer.getmany(timeout_ms=READ_WAIT_MS, max_records=MAX_RECORDS)
                # Positions, not records, show progress: transaction markers take offsets too.
                behind = {tp: end for tp, end in behind.items() if await consumer.position(tp) < end}
            yield [*chain.from_iterable(batch.values())], not any(starts.values()), not behind


class Overview:
    """Reads the alert topic while the page is requested, and again when the specification changes."""

    def __init__(
        self, worker: Worker, read: Callable[[Worker], AsyncGenerator[AlertsRead, None]] = read_alerts
    ) -> None:
        self._worker = worker
        self._read = read
        self._task: asyncio.Task[None] | None = None
        self._asked = 0.0
        self._reset()

    def _reset(self) -> None:
        self._snapshot = StatusSnapshot(self._worker.workload.spec)
        self._loaded = asyncio.Event()  # set once the history was read or failed
        self._trouble = ""

    async def answer(self) -> bytes:
        """Return the overview as JSON, described in docs/status-page.md."""
        self._asked = time.monotonic()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="status page")
        try:
            async with asyncio.timeout(HISTORY_TIMEOUT):
                await self._loaded.wait()
        except TimeoutError:
            self._trouble = self._trouble or "slow"
        snapshot, now = self._snapshot, time.time()
        views = {name: view for status in self._worker.statuses() for name, view in status.views.items()}
        datasets: list[DatasetNow] = []
        for number, dataset in enumerate(snapshot.spec.shown, 1):
            datasets.append(snapshot.of(dataset, views.get(dataset.name), now))
            if number % DATASETS_PER_TURN == 0:
                await asyncio.sleep(0)
        found = {
            "application": snapshot.spec.application,
            "now": now,
            "trouble": self._trouble,
            "complete": snapshot.complete,
            "datasets_declared": len(snapshot.spec.datasets),
            "datasets": datasets,
            "events": snapshot.events(),
        }
        return msgspec.json.encode(found)

    async def close(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _is_wanted(self, spec: ApplicationSpec) -> bool:
        return time.monotonic() - self._asked < IDLE_SECONDS and spec is self._worker.workload.spec

    async def _run(self) -> None:
        """Read until there was no request for a while."""
        # Forecasts need it. It is slow to import: not at the start of a worker, and not while the loop waits for it.
        await asyncio.to_thread(import_module, "scipy.special")
        while self._is_wanted(spec := self._worker.workload.spec):
            try:
                async with aclosing(self._read(self._worker)) as readings:
                    await self._follow(readings, spec)
            except Exception as error:  # noqa: BLE001  the page shows it, and reading restarts
                log.warning("event=status_page_feed error=%r", describe(error))
                refused = isinstance(error, BrokerError) and not error.retriable
                self._trouble = "refused" if refused else "unreachable"
                self._loaded.set()
                await asyncio.sleep(RETRY_SECONDS)
        self._reset()
        self._task = None

    async def _follow(self, readings: AsyncGenerator[AlertsRead, None], spec: ApplicationSpec) -> None:
        """Fold the history into a new snapshot, replace the old one with it, and keep reading."""
        snapshot = StatusSnapshot(spec)
        async for records, complete, caught_up in readings:
            snapshot.complete = complete
            for record in records:
                snapshot.add(record)
            if caught_up:
                self._snapshot, self._trouble = snapshot, ""
                self._loaded.set()
            if not self._is_wanted(spec):
                break
            await asyncio.sleep(0)  # yield to the shards even if records are always available
