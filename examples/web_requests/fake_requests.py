"""Sends made-up web requests until interrupted: many users of one page, few of the others, and some errors.

KAFKA=127.0.0.1:9092 python fake_requests.py
"""

# ruff: noqa: INP001, T201, S311 - a script, it prints, and nothing is secret

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import sys
import time

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaConnectionError

KAFKA = os.environ.get("KAFKA", "127.0.0.1:9092")
TOPIC = "web.requests"
USERS = {"/": 200, "/search": 150, "/product": 100, "/cart": 20, "/checkout": 800}
EVERY = 5
"""Seconds in which every user sends a request."""


async def create_topic() -> None:
    """Create the topic if it is missing; brokers set the timestamps of its records."""
    admin = AIOKafkaAdminClient(bootstrap_servers=KAFKA)
    await admin.start()
    try:
        if TOPIC not in await admin.list_topics():
            stamps = {"message.timestamp.type": "LogAppendTime"}
            await admin.create_topics([NewTopic(TOPIC, 4, 1, topic_configs=stamps)])
    finally:
        await admin.close()


def request(page: str, user: int) -> bytes:
    """Return a request of this moment; one in a thousand fails."""
    status = 500 if random.random() < 0.001 else 200
    fields = {"user": f"user-{user}", "page": page, "status": status, "ms": random.randrange(5, 900)}
    return json.dumps(fields | {"ts": int(time.time() * 1000)}).encode()


async def main() -> None:
    """Send a request of each user in turn."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # a new topic has no leader at first
    try:
        await create_topic()
    except KafkaConnectionError:
        sys.exit(f"no Kafka at {KAFKA}: start one (python -m stream_svt.kafka.embedded), or set KAFKA")
    producer = AIOKafkaProducer(bootstrap_servers=KAFKA)
    await producer.start()
    try:
        while True:
            sent = [
                await producer.send(TOPIC, request(page, user))
                for page in USERS
                for user in range(USERS[page])
            ]
            await asyncio.gather(*sent)
            print(f"{len(sent)} requests sent, of {USERS['/checkout']} users of /checkout", flush=True)
            await asyncio.sleep(EVERY)
    finally:
        with contextlib.suppress(TimeoutError):  # without a broker, it would wait for one
            await asyncio.wait_for(producer.stop(), 2)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
