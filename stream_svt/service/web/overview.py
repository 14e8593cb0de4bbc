"""What the status page shows: budgets of the whole application, and the newest released events.

The alert topic is read while somebody asks and a little longer, committed records only: what a page shows was
charged, is durable and is published. How far back is read and how many events are kept is bounded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from itertools import chain
from operator import itemgetter
from typing import Any

import msgspec

from stream_svt.errors import BrokerError
from stream_svt.monitor.released import DatasetView, decode
from stream_svt.service.shard import describe
from stream_svt.service.web.alert_tail import AlertTail
from stream_svt.service.web.status_snapshot import DatasetNow, StatusSnapshot
from stream_svt.settings.application import ApplicationSpec

log = logging.getLogger(__name__)

KEPT = 200
"""Newest events that are shown."""

LINGER = 30.0
"""Seconds the topic is read on after the last request."""

FIRST_ANSWER = 3.0
"""Longest time in seconds that a request waits for the history to be read."""

PROBE = 10.0
PATIENCE = (1.0, 30.0)
"""Seconds between two tries to reach brokers that do not answer: the first, and the longest."""

AT_ONCE = 50
"""Datasets of an answer between two turns of the shards: a few milliseconds."""

LARGEST = 1 << 16
"""Bytes of a record that may be an event; the service writes none of a tenth of that."""


class _Newest:
    """The newest events of all partitions: a history is read partition by partition, not by time."""

    def __init__(self) -> None:
        self._kept: dict[int, deque[tuple[str, msgspec.Raw]]] = {}

    def add(self, partition: int, time: str, event: msgspec.Raw) -> None:
        """Add the next event of a partition."""
        self._kept.setdefault(partition, deque(maxlen=KEPT)).append((time, event))

    def all(self) -> list[msgspec.Raw]:
        """Return the newest events, oldest first."""
        found = sorted(chain.from_iterable(self._kept.values()), key=itemgetter(0))
        return [event for _, event in found[-KEPT:]]


class Overview:
    """Reads the alert topic while somebody asks.

    Args:
        open_tail: Opens the end of the alert topic.
        spec: Returns what runs now; where it is another one than before, everything is read again.
        views: Returns the committed accounts of the datasets this worker owns now.
        clock: Returns Unix time in seconds.
    """

    def __init__(
        self,
        open_tail: Callable[[], AbstractAsyncContextManager[AlertTail]],
        spec: Callable[[], ApplicationSpec],
        views: Callable[[], Mapping[str, DatasetView]],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._open_tail = open_tail
        self._spec = spec
        self._views = views
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._asked = 0.0
        self._warned = False
        self._forget()

    def _forget(self) -> None:
        self._snapshot = StatusSnapshot(self._spec(), complete=False)
        self._events = _Newest()
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
        snapshot, events, views, now = self._snapshot, self._events.all(), self._views(), self._clock()
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
                "events": events,
            }
        )

    async def close(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _goes_on(self, spec: ApplicationSpec) -> bool:
        return time.monotonic() - self._asked < LINGER and spec is self._spec()

    async def _run(self) -> None:
        """Read until nobody has asked for a while."""
        patience = PATIENCE[0]
        while self._goes_on(spec := self._spec()):
            try:
                async with self._open_tail() as tail:
                    patience = PATIENCE[0]
                    await self._follow(tail, spec)
            except Exception as error:  # noqa: BLE001  who looks is told, and reading begins again
                log.warning("event=status_page_feed error=%r", describe(error))
                refused = isinstance(error, BrokerError) and not error.retriable
                self._trouble = "refused" if refused else "unreachable"
                self._settled.set()
                await asyncio.sleep(patience)
                patience = min(2 * patience, PATIENCE[1])
        self._forget()
        self._task = None

    async def _follow(self, tail: AlertTail, spec: ApplicationSpec) -> None:
        """Fold the history, then show that instead of what was shown, and read on."""
        snapshot, events = StatusSnapshot(spec, complete=tail.complete), _Newest()
        probed = 0.0
        while self._goes_on(spec):
            for record in await tail.read():
                self._take(record, snapshot, events)
            if time.monotonic() - probed > PROBE:
                await tail.probe()
                probed = time.monotonic()
            if tail.caught_up:
                self._snapshot, self._events, self._trouble = snapshot, events, ""
                self._settled.set()
            await asyncio.sleep(0)  # the shards' turn, also where there is always something to read

    def _take(self, record: Any, snapshot: StatusSnapshot, events: _Newest) -> None:  # noqa: ANN401
        """Fold a record; records that are no events of this package are skipped."""
        try:
            if len(value := record.value or b"") > LARGEST:
                raise msgspec.DecodeError("too large for an event")
            envelope, data = decode(value)
            snapshot.status.take(envelope, data)
        except (msgspec.DecodeError, ValueError, ArithmeticError):  # sums of forged amounts, too
            if not self._warned:  # once: there may be many
                self._warned = True
                where = (record.partition, record.offset)
                log.warning("event=status_page_skipped partition=%d offset=%d reason=no-event", *where)
            return
        # Encoded again: bytes that somebody else wrote to the topic never reach a browser as they are.
        content = msgspec.structs.asdict(envelope) | {"data": data}
        events.add(record.partition, envelope.time, msgspec.Raw(msgspec.json.encode(content)))
