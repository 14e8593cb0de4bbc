"""Order and progress: events of one dataset one after the other, and what may be committed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from stream_svt.forward.event import Record


class Progress:
    """Which offset of a partition may be committed: the first, from ``start`` on, that is not delivered."""

    def __init__(self, start: int) -> None:
        self.committed = -1
        self._reached = start
        self._waiting: dict[int, None] = {}

    def begin(self, offset: int) -> None:
        """Note an event that has to be delivered; offsets come in ascending order."""
        self._waiting[offset] = None
        self.reached(offset + 1)

    def done(self, offset: int) -> None:
        """Note that it has been."""
        del self._waiting[offset]

    def reached(self, offset: int) -> None:
        """Note that everything before an offset was looked at."""
        self._reached = max(self._reached, offset)

    @property
    def next(self) -> int:
        """The offset to commit."""
        return next(iter(self._waiting), self._reached)

    @property
    def span(self) -> int:
        """How many offsets were read beyond it."""
        return self._reached - self.next

    @property
    def waiting(self) -> int:
        """How many events are not delivered."""
        return len(self._waiting)


class KeyedQueue:
    """Hands events on: one at a time for each dataset of a partition, all datasets at once.

    Args:
        deliver: Returns once an event is delivered; what it raises first is kept as ``error``, and its
            dataset waits.
        delivered: Called after that, in the same step.
    """

    def __init__(
        self, deliver: Callable[[Record], Awaitable[None]], delivered: Callable[[Record], None]
    ) -> None:
        self.error: Exception | None = None
        self._deliver = deliver
        self._delivered = delivered
        self._queues: dict[tuple[int, str], deque[Record]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, event: Record) -> None:
        """Deliver an event after the earlier ones of its dataset."""
        key = (event.partition, event.dataset)
        if key in self._queues:
            self._queues[key].append(event)
            return
        self._queues[key] = deque([event])
        task = asyncio.create_task(self._run(key), name=f"queue-{key[0]}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def oldest(self) -> Record | None:
        """The event that has been waiting for the longest since it was charged."""
        return min((queue[0] for queue in self._queues.values()), key=lambda event: event.when, default=None)

    async def drain(self, seconds: float) -> None:
        """Wait until nothing waits, but no longer than so many seconds; then let go of what does."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self._queues.clear()

    async def _run(self, key: tuple[int, str]) -> None:
        queue = self._queues[key]
        try:
            while queue:
                await self._deliver(queue[0])
                # No step in between: nobody may see it delivered and still waiting.
                self._delivered(queue.popleft())
        except Exception as error:  # noqa: BLE001  whoever reads asks for it
            self.error = self.error or error
        else:
            del self._queues[key]
