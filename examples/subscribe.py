"""Print alerts as they are published, with the package's own subscriber.

KAFKA=127.0.0.1:9092 ALERTS=retail-watch.alerts python examples/subscribe.py
"""

# ruff: noqa: INP001, T201 - a script, and it prints

from __future__ import annotations

import asyncio
import contextlib
import os

import stream_svt


async def main() -> None:
    """Follow the alert topic from its oldest event on."""
    subscription = stream_svt.subscribe(
        bootstrap_servers=os.environ.get("KAFKA", "127.0.0.1:9092"),
        topic=os.environ.get("ALERTS", "retail-watch.alerts"),
        from_beginning=True,
    )
    async with subscription:
        async for event in subscription:
            alert = event.data
            sure = "not certified" if alert.bound is None else f"at least {alert.bound:g}"
            print(f"{alert.dataset!r} {alert.series!r}: gap {alert.gap:g}, {sure}", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
