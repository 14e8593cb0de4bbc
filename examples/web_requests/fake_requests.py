"""Sends made-up requests of this moment: many users of one page, few of the others.

KAFKA=127.0.0.1:9092 python fake_requests.py    # or KAFKA_PROPERTIES, as count_users.py
"""

# ruff: noqa: INP001, T201, S311 - a script, it prints, and nothing is secret

from __future__ import annotations

import json
import random
import time

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from count_users import KAFKA, REQUESTS

BUSY = "/checkout"
USERS = {"/": 200, "/search": 150, "/product": 100, "/cart": 20, BUSY: 800}


def main() -> None:
    """Create the topic if it is missing, and send three requests of each user."""
    admin = AdminClient(KAFKA)
    if REQUESTS not in admin.list_topics(timeout=10).topics:
        try:
            admin.create_topics([NewTopic(REQUESTS, 4)])[REQUESTS].result()
        except KafkaException as error:
            raise SystemExit(f"the topic {REQUESTS} cannot be created: {error}") from None
    producer, count = Producer(KAFKA), 0
    for page, users in USERS.items():
        for user in [f"user-{number}" for number in range(users)] * 3:
            fields = {"user": user, "page": page, "status": 200, "ms": random.randrange(5, 900)}
            producer.produce(REQUESTS, json.dumps(fields | {"ts": int(time.time() * 1000)}), key=user)
            count += 1
            producer.poll(0)
    if producer.flush(30):
        raise SystemExit("not all requests were acknowledged")
    print(f"{count} requests sent; {USERS[BUSY]} different users of {BUSY}")


if __name__ == "__main__":
    main()
