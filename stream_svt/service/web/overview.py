"""What the status page shows: budgets of the whole application, and the newest released events.

The alert topic is read while somebody asks and a little longer, committed records only: what a page shows was
charged, is durable and is published. How far back is read and how many events are kept is bounded, and one answer
serves everybody who asks within a second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from stream_svt.errors import BrokerError
from stream_svt.monitor.released import DatasetView, decode
from stream_svt.service.alert_tail import AlertTail
from stream_svt.service.shard import describe
from stream_svt.service.web.status_snapshot import StatusSnapshot
from stream_svt.settings.application import ApplicationSpec

log = logging.getLogger(__name__)

HISTORY = 20_000
"""Offsets read back, over all partitions: a second's work, in slices of a few milliseconds."""

KEPT = 200
"""Newest events that are shown."""

AGE = 1.0
"""Seconds for which an answer is given again."""

LINGER = 30.0
"""Seconds the topic is read on after the last request."""

FIRST_ANSWER = 3.0
"""Longest time in seconds that a request waits for the history to be read."""

DRIFT = 15.0
"""Seconds after which outlooks are computed again, which change by the mere passing of time."""

PROBE = 10.0
PATIENCE = (1.0, 30.0)
"""Seconds between two tries to reach brokers that do not answer: the first, and the longest."""

LARGEST = 1 << 16
"""Bytes of a record that may be an event; the service writes none of a tenth of that."""

OpenTail = Callable[[Mapping[int, int]], AbstractAsyncContextManager[AlertTail]]
"""Opens the alert topic, to go on from some offsets."""


class Overview:
    """Reads the alert topic while somebody asks, and answers everybody the same.

    Args:
        open_tail: Opens the alert topic.
        spec: Returns what runs now; where it is another one than before, everything is read again.
        views: Returns the committed accounts of the datasets this worker owns now.
        clock: Returns Unix time in seconds.
    """

    def __init__(
        self,
        open_tail: OpenTail,
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
        self._forget()

    def _forget(self) -> None:
        self._snapshot = StatusSnapshot(self._spec())
        self._events: deque[msgspec.Raw] = deque(maxlen=KEPT)
        self._next: dict[int, int] = {}
        self._settled = asyncio.Event()  # the history was read, or cannot be
        self._trouble = ""
        self._body = b""
        self._made = self._drifted = 0.0
        self._warned = False

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
        if not self._body or time.monotonic() - self._made >= AGE:
            self._body, self._made = self._make(), time.monotonic()
        return self._body

    async def close(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _make(self) -> bytes:
        now = self._clock()
        if now - self._drifted >= DRIFT:
            self._snapshot.age()
            self._drifted = now
        return msgspec.json.encode(
            {
                "application": self._snapshot.spec.application,
                "now": now,
                "trouble": self._trouble,
                "complete": self._snapshot.complete,
                "datasets_declared": len(self._snapshot.spec.datasets),
                "datasets": self._snapshot.all(self._views(), now),
                "events": list(self._events),
            }
        )

    # -- reading ---------------------------------------------------------------------------------------------

    @property
    def _wanted(self) -> bool:
        return time.monotonic() - self._asked < LINGER

    async def _run(self) -> None:
        """Read until nobody has asked for a while."""
        patience = PATIENCE[0]
        while self._wanted:
            if self._snapshot.spec is not self._spec():
                self._forget()
            try:
                async with self._open_tail(self._next) as tail:
                    patience = PATIENCE[0]
                    await self._follow(tail)
            except Exception as error:  # noqa: BLE001  who looks is told, and reading begins again
                log.warning("event=status_page_feed error=%r", describe(error))
                refused = isinstance(error, BrokerError) and not error.retriable
                self._trouble = "refused" if refused else "unreachable"
                self._settled.set()
                await asyncio.sleep(patience)
                patience = min(2 * patience, PATIENCE[1])
        self._forget()
        self._task = None

    async def _follow(self, tail: AlertTail) -> None:
        if not self._next:
            self._next = dict(tail.starts)
            self._snapshot.complete = tail.complete
            self._snapshot.age()
        probed = 0.0
        while self._wanted and self._snapshot.spec is self._spec():
            for record in await tail.read():
                self._take(record)
            if time.monotonic() - probed > PROBE:
                await tail.probe()
                probed = time.monotonic()
            if tail.caught_up:
                self._trouble = ""
                self._settled.set()
            await asyncio.sleep(0)  # the shards' turn, also where there is always something to read

    def _take(self, record: Any) -> None:  # noqa: ANN401
        """Fold a record; records that are no events of this package are skipped."""
        self._next[record.partition] = record.offset + 1
        try:
            if len(value := record.value or b"") > LARGEST:
                raise msgspec.DecodeError("too large for an event")
            envelope, data = decode(value)
            self._snapshot.take(envelope, data)
        except (msgspec.DecodeError, ValueError, ArithmeticError):  # sums of forged amounts, too
            if not self._warned:  # once: there may be many
                self._warned = True
                where = (record.partition, record.offset)
                log.warning("event=status_page_skipped partition=%d offset=%d reason=no-event", *where)
            return
        # Encoded again: bytes that somebody else wrote to the topic never reach a browser as they are.
        content = msgspec.structs.asdict(envelope) | {"data": data}
        self._events.append(msgspec.Raw(msgspec.json.encode(content)))
