"""Order and progress: records of one dataset one after the other, and what may be committed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from weakref import WeakValueDictionary

from stream_svt.forward.event import Record


class Progress:
    """Which offset of a partition may be committed: the first, from ``start`` on, that is not delivered.

    Attributes:
        committed: The offset that the group has, -1 where that is not known.
        waiting: Offsets that are not delivered, ascending, with the time of each event.
    """

    def __init__(self, start: int) -> None:
        self.committed = -1
        self.waiting: dict[int, datetime] = {}
        self._reached = start

    def reached(self, offset: int) -> None:
        """Note that everything before an offset was looked at."""
        self._reached = max(self._reached, offset)

    @property
    def next(self) -> int:
        """The offset to commit."""
        return next(iter(self.waiting), self._reached)

    @property
    def span(self) -> int:
        """How many offsets were read beyond it."""
        return self._reached - self.next


class KeyedQueue:
    """Hands records on: one at a time for each dataset of a partition, all datasets at once.

    Attributes:
        error: What ``deliver`` raised. Nothing more is handed on then.
    """

    def __init__(self, deliver: Callable[[Record], Awaitable[None]]) -> None:
        self.error: Exception | None = None
        self._deliver = deliver
        self._tasks: set[asyncio.Task[None]] = set()
        self._last: WeakValueDictionary[tuple[int, str], asyncio.Task[None]] = WeakValueDictionary()

    def put(self, record: Record, progress: Progress) -> None:
        """Deliver a record after the earlier ones of its dataset; offsets of a partition ascend."""
        progress.waiting[record.offset] = record.when
        progress.reached(record.offset + 1)
        key = (record.partition, record.dataset)
        task = asyncio.create_task(self._run(record, progress, self._last.get(key)))
        self._last[key] = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self, seconds: float) -> None:
        """Wait until nothing waits, but no longer than so many seconds; then let go of what does."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _run(self, record: Record, progress: Progress, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await asyncio.wait([earlier])
        if self.error is None:
            try:
                await self._deliver(record)
                del progress.waiting[record.offset]
            except Exception as error:  # noqa: BLE001  whoever reads asks for it
                self.error = error
