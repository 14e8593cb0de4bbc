"""Asks, every ten seconds, how many different users each page has had in this hour.

Reads requests {user, page, status, ms, ts} from the topic web.requests; ts is in milliseconds since 1970, UTC. Writes
one query for each page of a fixed list, zeros included. Requests count by their own time, ts; one that comes more than
LATENESS seconds after its hour is over does not count.

What is asked, and when, depends on the list and the clock alone, never on what requests say; a program that is too slow
for their number skips moments. It belongs to the trusted zone. Run one. After a crash it goes on where the brokers
have acknowledged its queries; of the moments missed it asks about the last of each hour. A query that is sent twice is
tested twice. Requests that do not count are counted by reason, and printed with the next moment.

KAFKA=127.0.0.1:9092 python count_users.py
KAFKA_PROPERTIES=client.properties python count_users.py    # key=value lines of librdkafka, for TLS and SASL
"""

# ruff: noqa: INP001, T201 - a script, and it prints

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition


def connection() -> dict[str, str]:
    """Return librdkafka's properties: the brokers, and the lines of the file that KAFKA_PROPERTIES names."""
    found = {"bootstrap.servers": os.environ.get("KAFKA", "127.0.0.1:9092")}
    if file := os.environ.get("KAFKA_PROPERTIES"):
        lines = Path(file).read_text("utf-8-sig").split("\n")
        pairs = [line.partition("=") for line in lines if line.strip() and not line.startswith("#")]
        found |= {key.strip(): value.strip() for key, _, value in pairs}
    return found


KAFKA = connection()
REQUESTS, COUNTS, GROUP = "web.requests", "web.counts", "web-users-counter"
PAGES = ("/", "/search", "/product", "/cart", "/checkout")
"""All pages of the site, from its source: never from requests, for then a query would tell of one."""
EVERY, LATENESS, HOUR = 10, 60, 3600
"""Seconds between two moments, seconds that a request may be late, and of an hour."""


def hour_at(moment: int) -> int:
    """Return the hour that is asked about at a moment, as its first second since 1970."""
    return (moment - LATENESS) // HOUR * HOUR


class Users:
    """The different users of each page and hour, and the offset of each hour's first request.

    ``skipped`` counts requests that do not count, by reason, with the first one of each.
    """

    def __init__(self) -> None:
        self.seen: defaultdict[tuple[int, str], set[str]] = defaultdict(set)
        self.first: dict[tuple[int, int], int] = {}
        self.skipped: Counter[str] = Counter()
        self._examples: dict[str, str] = {}

    def add(self, message: Message, open_hour: int) -> None:
        """Count the user of a request; skip what is no request, and what is too late."""
        try:
            request = json.loads(message.value())
            seconds, page, user = int(request["ts"]) // 1000, request["page"], str(request["user"])
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            self._skip("no JSON object with user, page and ts", message.value())
            return
        now = time.time()
        if page not in PAGES:
            self._skip("a page that PAGES lacks", page)
        elif not now / 2 < seconds <= now + HOUR:
            self._skip("ts is not in milliseconds since 1970, or in the future", request["ts"])
        elif (hour := seconds // HOUR * HOUR) < open_hour:
            self._skip(f"too late: more than {LATENESS} seconds after the hour of ts", request["ts"])
        else:
            self.seen[hour, page].add(user)
            self.first.setdefault((hour, message.partition()), message.offset())

    def _skip(self, why: str, what: object) -> None:
        self.skipped[why] += 1
        self._examples.setdefault(why, repr(what)[:60])

    def report(self) -> list[str]:
        """Return a line for each reason why requests were skipped since the last report."""
        lines = [
            f"{number} requests skipped: {why}, such as {self._examples[why]}"
            for why, number in self.skipped.items()
        ]
        self.skipped.clear()
        self._examples.clear()
        return lines

    def queries(self, moment: int) -> list[tuple[str, dict[str, object]]]:
        """Return dataset and query for each page."""
        hour = hour_at(moment)
        day, at = (datetime.fromtimestamp(one, UTC) for one in (hour, moment))
        name, when = f"web-{day:%Y-%m-%d}", f"{day:%Y-%m-%dT%H} {at:%H:%M:%S}"
        return [
            (name, {"id": f"{page} {when}", "series": page, "value": len(self.seen[hour, page])})
            for page in PAGES
        ]

    def forget(self, open_hour: int) -> None:
        """Forget the hours before."""
        self.seen = defaultdict(set, {key: users for key, users in self.seen.items() if key[0] >= open_hour})
        self.first = {key: offset for key, offset in self.first.items() if key[0] >= open_hour}


class Reader:
    """Reads all partitions of the requests; ``next`` is the offset to read next in each."""

    def __init__(self) -> None:
        options = {"group.id": GROUP, "enable.auto.commit": False, "enable.partition.eof": True}
        self.consumer = Consumer({**KAFKA, **options, "auto.offset.reset": "earliest"})
        topic = self.consumer.list_topics(REQUESTS, timeout=10).topics[REQUESTS]
        if topic.error is not None:
            raise SystemExit(
                f"topic {REQUESTS}: {topic.error.str()}; create it, or write the name of yours into REQUESTS"
            )
        self.partitions = [TopicPartition(REQUESTS, number) for number in topic.partitions]
        self.next: dict[int, int] = {}

    def start(self, now: int) -> int:
        """Go on from what was committed, or from the beginning of the hour; return the moment that is due."""
        places = self.consumer.committed(self.partitions, timeout=10)
        moment = max((int(one.metadata) for one in places if one.metadata), default=now // EVERY * EVERY)
        if any(one.offset < 0 for one in places):
            since = [TopicPartition(REQUESTS, one.partition, hour_at(moment) * 1000) for one in places]
            places = self.consumer.offsets_for_times(since, timeout=10)
        self.consumer.assign([TopicPartition(REQUESTS, one.partition, one.offset) for one in places])
        return moment

    def read(self, users: Users, open_hour: int, seconds: float) -> None:
        """Count what comes within some seconds."""
        for message in self.consumer.consume(10_000, seconds):
            error = message.error()
            if error is None:
                users.add(message, open_hour)
                self.next[message.partition()] = message.offset() + 1
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                self.next[message.partition()] = message.offset()
            elif not error.retriable():
                raise KafkaException(error)

    def read_to_end(self, users: Users, open_hour: int) -> None:
        """Count everything that is on the topic now."""
        ends = {
            one.partition: self.consumer.get_watermark_offsets(one, timeout=10)[1] for one in self.partitions
        }
        while any(self.next.get(partition, -1) < end for partition, end in ends.items()):
            self.read(users, open_hour, 0.1)

    def commit(self, users: Users, moment: int) -> None:
        """Commit the next moment, and where the requests of the hours that are still open begin."""
        places = dict(self.next)
        for (_, partition), offset in users.first.items():
            places[partition] = min(places[partition], offset)
        offsets = [TopicPartition(REQUESTS, *place, metadata=str(moment)) for place in places.items()]
        self.consumer.commit(offsets=offsets, asynchronous=False)


def send(producer: Producer, queries: list[tuple[str, dict[str, object]]]) -> None:
    """Send queries and wait until the brokers have acknowledged all of them."""
    failed: list[KafkaError] = []
    for dataset, query in queries:
        producer.produce(
            COUNTS,
            json.dumps(query).encode(),
            key=dataset,
            on_delivery=lambda error, _: failed.append(error) if error is not None else None,
        )
    if producer.flush(30) or failed:
        raise SystemExit(f"queries were not acknowledged: {failed or 'no answer'}; start again")


def main() -> None:
    """Read and ask until stopped."""
    users, reader, producer = (
        Users(),
        Reader(),
        Producer({**KAFKA, "acks": "all", "enable.idempotence": True}),
    )
    moment = reader.start(int(time.time()))
    while True:
        while (now := time.time()) < moment:
            reader.read(users, hour_at(moment), min(1.0, moment - now))
        reader.read_to_end(users, hour_at(moment))
        # After an outage: of each hour, the last moment that was missed.
        for due in {hour_at(one): one for one in range(moment, int(now) + 1, EVERY)}.values():
            send(producer, users.queries(due))
        moment = int(now) // EVERY * EVERY + EVERY
        users.forget(hour_at(moment))
        reader.commit(users, moment)
        for line in users.report():
            print(line, flush=True)
        print(
            f"asked about {len(PAGES)} pages; next at {datetime.fromtimestamp(moment, UTC):%H:%M:%S}",
            flush=True,
        )


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
