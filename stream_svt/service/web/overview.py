"""What the status page shows: budgets of the whole application, and the newest released events.

The alert topic is read while somebody asks and a little longer, committed records only: what a page shows was
charged, is durable and is published. How far back is read and how many events are kept is bounded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from itertools import chain
from operator import itemgetter
from typing import Annotated, Any, TypeAlias

import msgspec
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from msgspec import Meta

from stream_svt.errors import BrokerError
from stream_svt.monitor.released import Budget, DatasetView, MonitorView, ReleasedStatus, decode
from stream_svt.planning.budget import Exhaustion, exhaustion
from stream_svt.privacy.loss import Kind, best_guess, to_float
from stream_svt.service.kafka import CALL_DEADLINE, deadline, edges, explain, seek_all, started
from stream_svt.service.shard import describe
from stream_svt.service.worker import Worker
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import DatasetSpec

log = logging.getLogger(__name__)

READ_AT_ONCE = 200
"""Records a read returns at most: decoding them takes a few milliseconds, and the shards share the loop."""
READ_WAIT_MS = 250
HISTORY = 20_000
"""Offsets read back, over all partitions: a second's work, in slices of a few milliseconds."""
KEPT = 200
"""Newest events that are shown."""
LINGER = 30.0
"""Seconds the topic is read on after the last request."""
FIRST_ANSWER = 3.0
"""Longest time in seconds that a request waits for the history to be read."""
PROBE = 10.0
"""Seconds between two requests for a sign of life: a read does not tell silent brokers from absent ones."""
PATIENCE = 5.0
"""Seconds between two tries to reach brokers that do not answer."""
AT_ONCE = 50
"""Datasets of an answer between two turns of the shards: a few milliseconds."""
LARGEST = 1 << 16
"""Bytes of a record that may be an event; the service writes none of a tenth of that."""

_DOING = "reading the alerts"


class DatasetNow(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset's budget and its monitors.

    Under zCDP only the limit says how often a guess is right: what was spent on the way there is no bound by itself
    where later runs depend on earlier ones. See `stream_svt.privacy.loss.best_guess`.
    """

    dataset: Annotated[str, Meta(description="Its name.")]
    unit: Annotated[str, Meta(description="The privacy unit, as declared.")]
    measure: Annotated[str, Meta(description="epsilon or rho.")]
    limit: Annotated[float, Meta(description="Of its ledger.")]
    spent: Annotated[float | None, Meta(description="Privacy loss spent.")]
    reserved: Annotated[float | None, Meta(description="Reserved by open runs.")]
    source: Annotated[str, Meta(description="Where amounts are from: state, alerts, declaration or unknown.")]
    ends: Annotated[float | None, Meta(description="Unix time at which its period is over.")]
    guess_spent: Annotated[float | None, Meta(description="How often a guess about a unit is right by now.")]
    guess_limit: Annotated[float, Meta(description="The same after the whole limit.")]
    outlook: Annotated[Exhaustion | None, Meta(description="When the budget ends: early, expected, late.")]
    monitors: Annotated[Sequence[MonitorView | dict[str, Any]], Meta(description="Those that cover it.")]


class StatusSnapshot(ReleasedStatus):
    """Folds events, and puts the committed accounts of this worker's shards in the place of what they say.

    ``complete`` says whether every event ever released is folded.
    """

    def __init__(self, spec: ApplicationSpec, *, complete: bool) -> None:
        self.spec = spec
        self.complete = complete
        budgets = {one.name: Budget(to_float(one.limit, one.kind), one.kind.measure) for one in spec.shown}
        covers = {
            monitor.name: [name for name in budgets if monitor.covers(name)] for monitor in spec.monitors
        }
        super().__init__(budgets, covers)

    def of(self, dataset: DatasetSpec, view: DatasetView | None, now: float) -> DatasetNow:
        """Return what is known of a dataset; ``view`` is its committed account, where this worker owns its shard."""
        budget = self.budgets[dataset.name]
        limit, spent, reserved = budget.limit, budget.spent, budget.reserved
        if view is not None:
            source, limit, spent, reserved = "state", view.limit, view.spent, view.reserved
        elif budget.reported:
            source = "alerts"
        else:
            source = "declaration" if self.complete else "unknown"
        known = source != "unknown"
        left = max(limit - spent, 0.0)
        return DatasetNow(
            dataset=dataset.name,
            unit=dataset.unit,
            measure=budget.measure,
            limit=limit,
            spent=spent if known else None,
            reserved=reserved if known else None,
            source=source,
            ends=None if dataset.ends_ms is None else dataset.ends_ms / 1000,
            guess_spent=best_guess(spent, dataset.kind) if known and dataset.kind is Kind.PURE else None,
            guess_limit=best_guess(limit, dataset.kind),
            outlook=exhaustion(budget.charges, left, now) if known else None,
            monitors=self._monitors(dataset.name, known=known) if view is None else view.monitors,
        )

    def _monitors(self, dataset: str, *, known: bool) -> list[dict[str, Any]]:
        """Return what events say of monitors; the rest only the worker knows that owns the shard."""
        unknown = dict.fromkeys(("spent", "muted", "queued"))
        return [
            {"monitor": name, "state": one.shown if known else None}
            | {"run": one.run, "tops": one.tops, "halts": one.halts}
            | unknown
            for name, one in self.of_dataset(dataset).items()
        ]


AlertsRead: TypeAlias = tuple[list[Any], bool, bool]
"""The next records of the alert topic, none after a moment without news; whether reading began with the first record
ever, and whether all that was there then has been read."""


async def read_alerts(worker: Worker) -> AsyncGenerator[AlertsRead, None]:
    """Read the alert topic from `HISTORY` offsets before its end, for ever and outside any group."""
    topics = worker.config.topics
    places = [TopicPartition(topics.alerts, number) for number in range(topics.partitions)]
    async with started(worker.config.cluster().reader(), _DOING) as consumer:
        spans = await edges(consumer, places, _DOING)
        behind = {place: end for place, (_, end) in spans.items()}
        share = max(HISTORY // topics.partitions, 1)
        starts = {place: max(first, end - share) for place, (first, end) in spans.items()}
        seek_all(consumer, starts)
        probed = 0.0
        while True:
            try:
                batch = await consumer.getmany(timeout_ms=READ_WAIT_MS, max_records=READ_AT_ONCE)
            except KafkaError as error:
                raise explain(error, _DOING) from error
            # Positions, not records: markers of transactions take offsets too.
            behind = {place: end for place, end in behind.items() if await consumer.position(place) < end}
            yield [*chain.from_iterable(batch.values())], not any(starts.values()), not behind
            if time.monotonic() - probed > PROBE:
                async with deadline(CALL_DEADLINE, _DOING):
                    await consumer.end_offsets(places)
                probed = time.monotonic()


class Overview:
    """Reads the alert topic while somebody asks; where another specification runs than before, all of it again."""

    def __init__(
        self, worker: Worker, read: Callable[[Worker], AsyncGenerator[AlertsRead, None]] = read_alerts
    ) -> None:
        self._worker = worker
        self._read = read
        self._task: asyncio.Task[None] | None = None
        self._asked = 0.0
        self._forget()

    def _forget(self) -> None:
        self._snapshot = StatusSnapshot(self._worker.workload.spec, complete=False)
        # By partition: a history is read partition by partition, not by time.
        self._newest: dict[int, deque[tuple[str, msgspec.Raw]]] = {}
        self._settled = asyncio.Event()  # the history was read, or cannot be
        self._trouble = ""

    async def answer(self) -> bytes:
        """Return the overview as JSON; its members are described in docs/status-page.md."""
        self._asked = time.monotonic()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="status page")
        try:
            async with asyncio.timeout(FIRST_ANSWER):
                await self._settled.wait()
        except TimeoutError:
            self._trouble = self._trouble or "slow"
        snapshot, now = self._snapshot, time.time()
        events = sorted(chain.from_iterable(self._newest.values()), key=itemgetter(0))[-KEPT:]
        views = {name: view for status in self._worker.statuses() for name, view in status.views.items()}
        datasets: list[DatasetNow] = []
        for number, dataset in enumerate(snapshot.spec.shown, 1):
            datasets.append(snapshot.of(dataset, views.get(dataset.name), now))
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return msgspec.json.encode(
            {
                "application": snapshot.spec.application,
                "now": now,
                "trouble": self._trouble,
                "complete": snapshot.complete,
                "datasets_declared": len(snapshot.spec.datasets),
                "datasets": datasets,
                "events": [event for _, event in events],
            }
        )

    async def close(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _goes_on(self, spec: ApplicationSpec) -> bool:
        return time.monotonic() - self._asked < LINGER and spec is self._worker.workload.spec

    async def _run(self) -> None:
        """Read until nobody has asked for a while."""
        while self._goes_on(spec := self._worker.workload.spec):
            try:
                async with aclosing(self._read(self._worker)) as readings:
                    await self._follow(readings, spec)
            except Exception as error:  # noqa: BLE001  who looks is told, and reading begins again
                log.warning("event=status_page_feed error=%r", describe(error))
                refused = isinstance(error, BrokerError) and not error.retriable
                self._trouble = "refused" if refused else "unreachable"
                self._settled.set()
                await asyncio.sleep(PATIENCE)
        self._forget()
        self._task = None

    async def _follow(self, readings: AsyncGenerator[AlertsRead, None], spec: ApplicationSpec) -> None:
        """Fold the history, then show that instead of what was shown, and read on."""
        snapshot = StatusSnapshot(spec, complete=False)
        newest: dict[int, deque[tuple[str, msgspec.Raw]]] = {}
        async for records, complete, caught_up in readings:
            snapshot.complete = complete
            for record in records:
                if (event := self._folded(record, snapshot)) is not None:
                    newest.setdefault(record.partition, deque(maxlen=KEPT)).append(event)
            if caught_up:
                self._snapshot, self._newest, self._trouble = snapshot, newest, ""
                self._settled.set()
            if not self._goes_on(spec):
                break
            await asyncio.sleep(0)  # the shards' turn, also where there is always something to read

    def _folded(self, record: Any, snapshot: StatusSnapshot) -> tuple[str, msgspec.Raw] | None:  # noqa: ANN401
        """Fold a record, and return it with its time; None for what is no event of this package."""
        try:
            if len(value := record.value or b"") > LARGEST:
                raise msgspec.DecodeError("too large for an event")
            envelope, data = decode(value)
            snapshot.take(envelope, data)
        except (msgspec.DecodeError, ValueError, ArithmeticError):  # sums of forged amounts, too
            where = (record.partition, record.offset)
            log.warning("event=status_page_skipped partition=%d offset=%d reason=no-event", *where)
            return None
        # Encoded again: bytes that somebody else wrote to the topic never reach a browser as they are.
        content = msgspec.structs.asdict(envelope) | {"data": data}
        return envelope.time, msgspec.Raw(msgspec.json.encode(content))
