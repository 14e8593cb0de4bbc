"""Print alerts with a plain Kafka client; any language that reads Kafka and JSON can do the same.

KAFKA=127.0.0.1:9092 ALERTS=retail-watch.alerts python examples/plain_aiokafka.py
"""

# ruff: noqa: INP001, T201 - a script, and it prints

from __future__ import annotations

import asyncio
import contextlib
import json
import os

from aiokafka import AIOKafkaConsumer

ALERT = "io.stream-svt.alert.v1"


def described(value: bytes | None) -> str | None:
    """Return an alert as text, None for other types of event, which are about runs and budgets."""
    event = json.loads(value or b"")
    if event["type"] != ALERT:
        return None
    alert = event["data"]
    sure = "not certified" if alert["bound"] is None else f"at least {alert['bound']:g}"
    return f"{alert['dataset']!r} {alert['series']!r}: gap {alert['gap']:g}, {sure}"


async def main() -> None:
    """Follow the alert topic from its oldest event on."""
    consumer = AIOKafkaConsumer(
        os.environ.get("ALERTS", "retail-watch.alerts"),
        bootstrap_servers=os.environ.get("KAFKA", "127.0.0.1:9092"),
        isolation_level="read_committed",  # without it an event may come more than once
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        async for record in consumer:
            try:
                line = described(record.value)
                if line is not None:
                    print(line, flush=True)
            except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
                # A record of another writer: skip it, so that it does not stop the program.
                print(
                    f"skipped a record that is not an event: partition {record.partition} offset {record.offset}",
                    flush=True,
                )
    finally:
        await consumer.stop()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
