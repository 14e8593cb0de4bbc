"""Released events as they are published, for those who look at the status page.

The alert topic is read while somebody looks and a little longer, committed records only: what a viewer sees was
charged, is durable and is published. Everything is bounded: how far back is read, how many events are kept, how
many viewers there are and how far each may fall behind. Who falls further is cut off, and may come back with the
id of the last event received.

An event's id here is the place to go on from: the next offset of every partition, joined by dots. It means the
same at every worker, so that a viewer may come back to another one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

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
"""Newest events, for those who come and for those who come back."""

VIEWERS = 32
OF_ONE_ADDRESS = 4
"""Viewers from one address, so that a single one cannot take all places. Behind a proxy, all have the proxy's."""

WAITING = 256
"""Messages a viewer may fall behind."""

LINGER = 30.0
"""Seconds the topic is read on after the last viewer has gone: a page that is loaded anew finds all in place."""

KEEP_ALIVE = 15.0
"""Seconds of silence after which a comment is sent, so that nothing on the way takes the silence for the end."""

LOOK_UP = 1.0
"""Seconds of silence after which it is asked whether the viewer is still there."""

TOLD_EVERY = 0.5
DRIFT = 15.0
PROBE = 10.0
PATIENCE = (1.0, 30.0)
"""Seconds between two tries to reach brokers that do not answer: the first, and the longest."""

LARGEST = 1 << 16
"""Bytes of a record that may be an event; the service writes none of a tenth of that."""

_COMMENT = b": still here\n\n"
_RETRY = b"retry: 3000\n\n"


OpenTail = Callable[[Mapping[int, int]], AbstractAsyncContextManager[AlertTail]]
"""Opens the alert topic, to go on from some offsets."""


class TooManyViewers(Exception):
    """All places are taken; one may become free."""


def message(event: str, data: object, place: str = "") -> bytes:
    """Return a server-sent event; JSON has no line breaks, so no content can end it early."""
    head = f"id: {place}\n" if place else ""
    return f"{head}event: {event}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"


class Viewer:
    """One who looks: what was not sent yet.

    Attributes
    ----------
    place
        Where the viewer says that it was, as it came; empty for a new one.
    address
        Where it comes from; empty where that is not known.
    """

    def __init__(self, place: str, address: str = "") -> None:
        self.place = place
        self.address = address
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(WAITING)
        self._ended = False

    def send(self, text: bytes) -> None:
        """Let a message wait; a viewer that is too far behind is cut off."""
        try:
            self._queue.put_nowait(text)
        except asyncio.QueueFull:
            self.end()

    def end(self) -> None:
        """Send nothing more."""
        self._ended = True
        if self._queue.empty():
            self._queue.put_nowait(b"")  # whoever waits for a message wakes

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield messages until the viewer is cut off; in silence nothing once a second, and a comment now and then."""
        yield _RETRY
        heard = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(min(LOOK_UP, KEEP_ALIVE)):
                    text = await self._queue.get()
            except TimeoutError:
                text = _COMMENT if time.monotonic() - heard >= KEEP_ALIVE else b""
            if self._ended:
                return
            if text:
                heard = time.monotonic()
            yield text


class _Kept(NamedTuple):
    """An event, as the message that is the same for all viewers."""

    partition: int
    offset: int
    text: bytes


class Feed:
    """Reads while somebody looks, and tells everybody the same.

    Parameters
    ----------
    open_tail, partitions
        The alert topic.
    spec
        Returns what runs now; where it is another one than before, everything is read again.
    views
        Returns the committed books of the datasets this worker owns now.
    clock
        Returns Unix time in seconds.
    """

    def __init__(
        self,
        open_tail: OpenTail,
        partitions: int,
        spec: Callable[[], ApplicationSpec],
        views: Callable[[], Mapping[str, DatasetView]],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._open_tail = open_tail
        self._partitions = partitions
        self._spec = spec
        self._views = views
        self._clock = clock
        self._viewers: set[Viewer] = set()
        self._task: asyncio.Task[None] | None = None
        self._last_left = 0.0
        self._closed = False
        self._forget()

    def join(self, place: str = "", address: str = "") -> Viewer:
        """Return a new viewer, who is told everything from ``place`` on as soon as it is known.

        Raises
        ------
        TooManyViewers
            There are `VIEWERS` already, or `OF_ONE_ADDRESS` of this address.
        """
        neighbours = sum(viewer.address == address for viewer in self._viewers) if address else 0
        if self._closed or len(self._viewers) >= VIEWERS or neighbours >= OF_ONE_ADDRESS:
            raise TooManyViewers
        viewer = Viewer(place, address)
        self._viewers.add(viewer)
        if self._trouble:
            viewer.send(self._trouble_message())
        if self._showing:
            self._greet(viewer)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="status page")
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Forget a viewer."""
        self._viewers.discard(viewer)
        self._last_left = time.monotonic()

    async def close(self) -> None:
        """End every viewer and stop reading; nobody can join any more."""
        self._closed = True
        for viewer in self._viewers:
            viewer.end()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # -- reading ---------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._snapshot = StatusSnapshot(self._spec())
        self._kept: deque[_Kept] = deque()
        self._next: dict[int, int] = {}
        self._before: dict[int, int] = {}  # the next offsets before the oldest event kept
        self._overviews: dict[bool, bytes] = {}
        self._overviewed = 0.0
        self._showing = False
        self._warned = False
        self._trouble = ""

    @property
    def _wanted(self) -> bool:
        return bool(self._viewers) or time.monotonic() - self._last_left < LINGER

    async def _run(self) -> None:
        """Read until nobody has looked for a while; whoever joins during the last step finds the task running."""
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
                self._worry("refused" if refused else "unreachable")
                await asyncio.sleep(patience)
                patience = min(2 * patience, PATIENCE[1])
        self._forget()
        self._task = None

    async def _follow(self, tail: AlertTail) -> None:
        if not self._next:
            self._next, self._before = dict(tail.starts), dict(tail.starts)
            self._snapshot.complete = tail.complete
        told = drifted = probed = 0.0
        while self._wanted and self._snapshot.spec is self._spec():
            fresh = [event for record in await tail.read() if (event := self._take(record)) is not None]
            now = time.monotonic()
            if now - probed > PROBE:
                await tail.probe()
                probed = now
            if tail.caught_up and not self._showing:
                self._showing = True
                self._snapshot.told()
                for viewer in self._viewers:
                    self._greet(viewer)
                drifted = now
            elif self._showing:
                for kept in fresh:
                    self._tell(kept.text)
            if tail.caught_up:
                self._worry("")
            if self._showing and now - told > TOLD_EVERY:
                told, drift = now, now - drifted > DRIFT
                drifted = now if drift else drifted
                self._tell_changes(drift=drift)
            await asyncio.sleep(0)  # the shards' turn, also where there is always something to read

    def _take(self, record: Any) -> _Kept | None:  # noqa: ANN401
        """Fold a record; records that are no events of this package are skipped."""
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
            return None
        finally:
            self._next[record.partition] = record.offset + 1
        # Put together again: bytes that somebody else wrote to the topic never reach a browser as they are.
        content = msgspec.structs.asdict(envelope) | {"data": data}
        place = ".".join(str(self._next[number]) for number in sorted(self._next))
        kept = _Kept(record.partition, record.offset, message("released", content, place))
        self._kept.append(kept)
        while len(self._kept) > KEPT:
            gone = self._kept.popleft()
            self._before[gone.partition] = gone.offset + 1
        return kept

    # -- telling ---------------------------------------------------------------------------------------------

    def _tell(self, text: bytes) -> None:
        for viewer in self._viewers:
            viewer.send(text)

    def _tell_changes(self, *, drift: bool) -> None:
        self._snapshot.lay(self._views())
        now = self._clock()
        changed = {dataset.dataset: dataset for dataset in self._snapshot.changed(now)}
        if drift:
            changed |= {dataset.dataset: dataset for dataset in self._snapshot.drifting(now)}
        if changed:
            self._overviews.clear()
            self._tell(message("datasets", {"now": now, "datasets": list(changed.values())}))

    def _worry(self, reason: str) -> None:
        """Tell everybody of trouble with the alert topic, or of its end, where that is news."""
        if reason != self._trouble:
            self._trouble = reason
            self._tell(self._trouble_message())

    def _trouble_message(self) -> bytes:
        return message("trouble", {"reason": self._trouble})

    def _greet(self, viewer: Viewer) -> None:
        """Send a viewer the whole snapshot, and the events kept that it has not seen."""
        known = self._places(viewer.place)
        # A place the topic has not reached is one of another topic: everything is new.
        if known is None or any(known[number] > at for number, at in self._next.items()):
            known, missed = {}, False
        else:
            missed = any(known[number] < at for number, at in self._before.items())
        viewer.send(self._overview(missed=missed))
        for kept in self._kept:
            if kept.offset >= known.get(kept.partition, 0):
                viewer.send(kept.text)
        viewer.send(message("present", {"now": self._clock()}))

    def _overview(self, *, missed: bool) -> bytes:
        """Return the message with every dataset; put together once where many viewers come at once."""
        now = self._clock()
        if not 0 <= now - self._overviewed < TOLD_EVERY:
            self._overviews.clear()
            self._overviewed = now
        if missed not in self._overviews:
            self._snapshot.lay(self._views())
            overview = {
                "application": self._snapshot.spec.application,
                "now": now,
                "complete": self._snapshot.complete,
                "missed": missed,
                "datasets_declared": len(self._snapshot.spec.datasets),
                "datasets": self._snapshot.all(now),
            }
            self._overviews[missed] = message("overview", overview)
        return self._overviews[missed]

    def _places(self, text: str) -> dict[int, int] | None:
        parts = text.split(".")
        if len(parts) != self._partitions or not all(
            part.isascii() and part.isdigit() and len(part) < 20 for part in parts
        ):
            return None
        return dict(enumerate(map(int, parts)))
