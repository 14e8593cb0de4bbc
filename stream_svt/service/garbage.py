"""Bounds the garbage collector: it never walks the state of shards, and little at a time.

A full collection walks every object there is, half a second for the state of 200,000 runs, and nothing else
happens meanwhile. So whatever survives two collections of the young is set aside for good (`gc.freeze`), and full
collections walk only what is younger. What is set aside is freed by its last reference like anything else, which is
why an engine must hold no cycle once it is discarded; a producer of a library does, some 20 kB of it.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Any

COLLECT_AFTER = (30_000, 1, 1_000_000)
"""Net allocations before the youngest are walked, then how often before those that survived it: 90,000 objects at
most, some 40 milliseconds. A full collection happens only where `collect_soon` asks for it."""

DELAY = 1.0
"""Seconds after which a session's garbage is looked for: shards that end together are collected together."""

FREED_AT_ONCE = 500
"""Objects let go of in one turn of the event loop: ledgers of datasets, each with its monitors' runs."""

_next: asyncio.TimerHandle | None = None


def collect_rarely() -> None:
    """Leave alone what is there, which stays for good, and set aside from now on whatever grows old."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    if _set_aside not in gc.callbacks:
        gc.callbacks.append(_set_aside)


def collect_soon() -> None:
    """Look for garbage in a moment: what a session left in cycles would wait for hours by itself."""
    global _next  # noqa: PLW0603  one process has one heap
    loop = asyncio.get_running_loop()
    if _next is None or _next.when() < loop.time():
        _next = loop.call_later(DELAY, gc.collect)


def let_go(objects: list[Any], at_once: int = 0, after: list[Any] | None = None) -> None:
    """Free objects of which lists hold the last references, some in each turn of the event loop; others after them."""
    del objects[-(at_once or FREED_AT_ONCE) :]
    if objects:
        asyncio.get_running_loop().call_soon(let_go, objects, at_once, after)
    elif after:
        asyncio.get_running_loop().call_soon(let_go, after)


def _set_aside(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 1:
        gc.freeze()
