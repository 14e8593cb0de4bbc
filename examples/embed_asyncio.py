"""Run a worker inside an asyncio program, beside its own work.

CONFIG=monitors.yaml KAFKA=127.0.0.1:9092 ALERTS=retail.alerts python examples/embed_asyncio.py

First `stream-svt apply -c monitors.yaml --create-topics`. Any number of these programs and of `stream-svt run` share
the partitions; where one of them dies, the others take over its shards.
"""

# ruff: noqa: INP001, T201 - a script, and it prints

from __future__ import annotations

import asyncio
import logging
import os
import signal

import stream_svt


async def print_alerts(alerts: stream_svt.Subscription[stream_svt.Alert]) -> None:
    """Stand for the program's own work: here it reads what the workers publish."""
    async for event in alerts:
        print(f"{event.data.dataset!r} {event.data.series!r}: gap {event.data.gap:g}", flush=True)


async def main() -> None:
    """Run until SIGTERM or Ctrl-C; signals are the program's business, the worker handles none."""
    alerts = stream_svt.subscribe(
        bootstrap_servers=os.environ.get("KAFKA", "127.0.0.1:9092"), topic=os.environ["ALERTS"]
    )
    async with alerts, stream_svt.Worker(os.environ["CONFIG"]) as worker, asyncio.TaskGroup() as tasks:
        work = [tasks.create_task(print_alerts(alerts)), tasks.create_task(worker.wait())]
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, lambda: [task.cancel() for task in work])
        print(f"ready with shards {[line.shard for line in worker.status.shards]}", flush=True)
    print("left the group", flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(main())
