"""Keeps the event loop of a worker free: shards take turns, and garbage is collected and freed little by little.

A piece of a shard's work is bounded, some 50 milliseconds of loading, decoding or testing. But a worker may own 64
shards, and pieces that begin in the same round of the event loop add up to seconds without a heartbeat or a page. So of
all shards that have work at hand, one at most does a piece of it in each round (`pause`).

A full collection walks every object there is, half a second for the state of 200,000 runs. So whatever survives two
collections of the young is set aside for good (`gc.freeze`) and freed by its last reference alone, which is why an
engine must hold no cycle once it is discarded.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Any
from weakref import WeakKeyDictionary

COLLECT_AFTER = (30_000, 1, 1_000_000)
"""Net allocations before the youngest are walked, then how often before those that survived it: 90,000 objects at
most, some 40 milliseconds. A full collection happens only where `collect_soon` asks for it."""
COLLECT_DELAY = 1.0
"""Seconds after which a session's garbage is looked for: shards that end together are collected together."""
FREED_PER_TURN = 500
"""Objects let go of in one turn of the event loop: ledgers of datasets, each with its monitors' runs."""

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
_next_collection: asyncio.TimerHandle | None = None


async def pause(seconds: float = 0) -> None:
    """Sleep; for no time at all, until it is the caller's turn, which lasts until it waits for anything."""
    if seconds > 0:
        await asyncio.sleep(seconds)
        return
    # Given in the order asked for. Whoever is next is woken as the lock is given back, and goes on a round later.
    async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        await asyncio.sleep(0)


async def wait_first(*events: Any, seconds: float | None = None) -> None:  # noqa: ANN401  awaitables of any kind
    """Wait for the first of several events, at most so long; tasks among them go on."""
    waits = [asyncio.ensure_future(event) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        mine = [wait for wait, event in zip(waits, events, strict=True) if wait is not event]
        for wait in mine:
            wait.cancel()
        await asyncio.gather(*mine, return_exceptions=True)


def collect_rarely() -> None:
    """Leave alone what is there, which stays for good, and set aside from now on whatever grows old."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    if _freeze not in gc.callbacks:
        gc.callbacks.append(_freeze)


def _freeze(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 1:
        gc.freeze()


def collect_soon() -> None:
    """Look for garbage in a moment: what a session left in cycles would wait for hours by itself."""
    global _next_collection  # noqa: PLW0603  one process has one heap
    loop = asyncio.get_running_loop()
    if _next_collection is None or _next_collection.when() < loop.time():
        _next_collection = loop.call_later(COLLECT_DELAY, gc.collect)


def free_gradually(objects: list[Any], at_once: int = 0, after: list[Any] | None = None) -> None:
    """Free objects of which lists hold the last references, some in each turn of the event loop; others after them."""
    del objects[-(at_once or FREED_PER_TURN) :]
    if objects:
        asyncio.get_running_loop().call_soon(free_gradually, objects, at_once, after)
    elif after:
        asyncio.get_running_loop().call_soon(free_gradually, after)
