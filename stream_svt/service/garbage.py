"""When Python looks for garbage in cycles: rarely while queries flow, and after each tenure."""

from __future__ import annotations

import asyncio
import gc

COLLECT_AFTER = (100_000, 20, 20)
"""A fetch brings 20,000 records, none in a cycle, and each would be walked many times over by Python's default
(700, 10, 10): that costs more than testing the queries."""

DELAY = 1.0
"""Seconds after which a tenure's garbage is looked for: shards that end together are collected together."""

_next: asyncio.TimerHandle | None = None


def collect_rarely() -> None:
    """Leave alone what is imported, which stays for good, and look at the rest less often."""
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


def collect_soon() -> None:
    """Look for garbage in a moment: what a tenure held is in cycles, and by itself would wait for hours."""
    global _next  # noqa: PLW0603  one process has one heap
    loop = asyncio.get_running_loop()
    if _next is None or _next.when() < loop.time():
        _next = loop.call_later(DELAY, gc.collect)
