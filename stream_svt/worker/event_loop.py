"""Keeps the event loop of a worker responsive: shards take turns, and memory is freed in small pieces.

One piece of a shard's work (loading, decoding, testing) takes about 50 milliseconds. A worker may own 64 shards. If
all of them ran a piece in the same round of the event loop, no heartbeat or web page would be served for seconds. So
at most one shard runs a piece in each round (`pause`), and none while another shard has priority (`ahead`).

A full garbage collection walks every object that may be in a cycle. So objects that survive two young collections are
frozen (`gc.freeze`) and freed by reference counting alone. An engine must therefore hold no reference cycle once it is
discarded.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
from collections.abc import Iterator
from time import monotonic as _now
from typing import Any

COLLECT_AFTER = (30_000, 1, 1_000_000)
"""Thresholds of `gc.set_threshold`: a collection walks 90,000 objects at most, some 40 milliseconds. Only
`collect_soon` starts full collections."""
COLLECT_DELAY = 1.0
"""Seconds from the end of a session to a full collection: one collection serves all shards that end together."""
KEPT = 64 << 20
"""Bytes of freed memory that the process keeps for its next batches."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
FREED_PER_TURN = 500
"""Objects freed in one round of the event loop: declarations of datasets."""

LONGEST_AHEAD = 0.05
"""Longest time, in seconds, that one shard keeps priority (`ahead`); the others then get as long."""


class _FairScheduler:
    """The turns of an event loop's shards: one at a time, in the order in which they ask."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self._taken = asyncio.Lock()
        self._ahead: set[object] = set()  # tasks
        self._released: asyncio.Future[None] | None = None
        self._began = self._until = self._again = 0.0

    def begin(self, task: object) -> None:
        """Give a task priority, unless others have waited long enough."""
        now = _now()
        if now >= self._again:
            self._ahead.clear()  # tasks whose brokers are slow
            self._began, self._until, self._again = now, now + LONGEST_AHEAD, now + 2 * LONGEST_AHEAD
        if now < self._until:
            self._ahead.add(task)

    def end(self, task: object) -> None:
        """End what `begin` began."""
        if task not in self._ahead:
            return
        self._ahead.discard(task)
        if not self._ahead:
            self._until = min(self._until, _now())
            self._again = 2 * self._until - self._began
            if self._released is not None and not self._released.done():
                self._released.set_result(None)

    def is_ahead(self, task: object) -> bool:
        """Return whether a task has priority over others."""
        return task in self._ahead and _now() < self._until

    async def wait(self) -> None:
        """Wait until no task has priority, or for the longest time of a priority."""
        if (left := self._until - _now()) > 0:
            self._released = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._released], timeout=left)

    async def take(self) -> None:
        """Take a turn; tasks with priority take turns, too."""
        # Releasing a lock wakes the next task, which runs one round later.
        async with self._taken:
            await asyncio.sleep(0)


_all_turns: dict[asyncio.AbstractEventLoop, _FairScheduler] = {}
_next_collection: asyncio.TimerHandle | None = None


def _turns() -> _FairScheduler:
    loop = asyncio.get_running_loop()
    if loop not in _all_turns:
        for closed in [one for one in tuple(_all_turns) if one.is_closed()]:
            _all_turns.pop(closed, None)  # their locks refer to them
    return _all_turns.setdefault(loop, _FairScheduler())


async def pause(seconds: float = 0) -> None:
    """Sleep; zero seconds wait for the caller's turn, which lasts until the caller awaits something."""
    if seconds > 0:
        await asyncio.sleep(seconds)
        return
    turns = _turns()
    if turns.is_ahead(asyncio.current_task()):
        await turns.take()
        return
    async with turns.lock:
        await turns.wait()
        await turns.take()


@contextlib.contextmanager
def ahead() -> Iterator[None]:
    """Give no other shard a turn while the body waits for the brokers, for a short time.

    A transaction is a dozen steps of the event loop one after another, and the turn of another shard may come before
    each of them.
    """
    turns, task = _turns(), asyncio.current_task()
    turns.begin(task)
    try:
        yield
    finally:
        turns.end(task)


async def wait_first(*events: Any, seconds: float | None = None) -> None:  # noqa: ANN401  awaitables of any kind
    """Wait for the first of several events, at most ``seconds``; tasks among them are not cancelled."""
    waits = [asyncio.ensure_future(event) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        mine = [wait for wait, event in zip(waits, events, strict=True) if wait is not event]
        for wait in mine:
            wait.cancel()
        await asyncio.gather(*mine, return_exceptions=True)


def keep_freed_memory() -> None:
    """Keep up to `KEPT` bytes of freed memory in this process, including arrays of a batch.

    The C library would return them to the kernel after each batch, which clears every page again: a third of the time
    of columnar queries. Without glibc nothing changes.
    """
    try:
        tune = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    tune(_MMAP_THRESHOLD, KEPT // 2)
    tune(_TRIM_THRESHOLD, KEPT)


def collect_rarely() -> None:
    """Freeze all objects that exist now, and from now on those that survive two young collections."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    if _freeze not in gc.callbacks:
        gc.callbacks.append(_freeze)


def _freeze(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 1:
        gc.freeze()


def collect_soon() -> None:
    """Schedule a full collection: cycles that a session leaves would otherwise stay for hours.

    Without `collect_rarely`, in a program that hosts a worker, Python's own full collections free them.
    """
    global _next_collection  # noqa: PLW0603  one process has one heap
    if _freeze not in gc.callbacks:
        return
    loop = asyncio.get_running_loop()
    if _next_collection is None or _next_collection.when() < loop.time():
        _next_collection = loop.call_later(COLLECT_DELAY, gc.collect)


def free_gradually(objects: list[Any], at_once: int = 0, after: list[Any] | None = None) -> None:
    """Free ``objects``, then ``after``, a few in each round of the event loop; the lists hold the last references."""
    del objects[-(at_once or FREED_PER_TURN) :]
    if objects:
        asyncio.get_running_loop().call_soon(free_gradually, objects, at_once, after)
    elif after:
        asyncio.get_running_loop().call_soon(free_gradually, after)
