"""Shards take turns: of all that have work at hand, one does a piece of it in each round of the event loop.

A piece of work is bounded, some 50 milliseconds of loading, decoding or testing. But a worker may own 64 shards, and
pieces that begin in the same round add up to seconds in which nothing else happens: no heartbeat, no page.
"""

from __future__ import annotations

import asyncio
from collections import deque
from weakref import WeakKeyDictionary

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


class Turns:
    """Wakes those who wait one by one, each in a round of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._going = False

    async def take(self) -> None:
        """Wait for a turn; it lasts until the caller waits for anything."""
        turn = self._loop.create_future()
        self._waiting.append(turn)
        if not self._going:
            self._going = True
            self._loop.call_soon(self._next)
        await turn

    def _next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # whoever waited may have been told to stop
                turn.set_result(None)
                break
        self._going = bool(self._waiting)
        if self._going:
            self._loop.call_soon(self._next)


async def rest(seconds: float) -> None:
    """Sleep; for no time at all, until it is the caller's turn among all that have work at hand."""
    if seconds > 0:
        await asyncio.sleep(seconds)
        return
    loop = asyncio.get_running_loop()
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = Turns(loop)
    await turns.take()
