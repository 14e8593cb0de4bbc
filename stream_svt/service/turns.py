"""Shards take turns: of all that have work at hand, one at most does a piece of it in each round of the event loop.

A piece of work is bounded, some 50 milliseconds of loading, decoding or testing. But a worker may own 64 shards, and
pieces that begin in the same round add up to seconds in which nothing else happens: no heartbeat, no page.
"""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def rest(seconds: float) -> None:
    """Sleep; for no time at all, until it is the caller's turn among all that have work at hand.

    The turn lasts until the caller waits for anything.
    """
    if seconds > 0:
        await asyncio.sleep(seconds)
        return
    # Given in the order asked for. Whoever is next is woken as the lock is given back, and goes on a round later.
    async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        await asyncio.sleep(0)


async def first(*events: Any, seconds: float | None = None) -> None:  # noqa: ANN401  awaitables of any kind
    """Wait for the first of several events, at most so long; tasks among them go on."""
    waits = [asyncio.ensure_future(event) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        mine = [wait for wait, event in zip(waits, events, strict=True) if wait is not event]
        for wait in mine:
            wait.cancel()
        await asyncio.gather(*mine, return_exceptions=True)
