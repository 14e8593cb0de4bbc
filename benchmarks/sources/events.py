"""A counter on raw events against a bare aiokafka loop over the same topic, in turns, each a process of its own.

JSON of 60 bytes, or the same events in Avro: a user of 100,000, a page of 20,000, on 4 partitions with brokers'
timestamps; one measure, one window, exactly once: pairs and positions in transactions. The loop calls ``getmany`` and
counts records. `events_vs_getmany` is the counter's rate over the loop's, taken between looks at its metrics, so that
neither its start nor the wait for a look counts. In the end the durable pairs of each page are compared with a count of
all events. `events_cpu_vs_getmany` is the ratio of events a processor second, which a busy machine moves less, and
`million_events` how many million the counter counts a second.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import numpy as np
from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks import peers
from benchmarks.application import PATIENCE
from benchmarks.command import median_ratio, say
from benchmarks.peers import Reading
from benchmarks.sources.raw_events import (
    SOURCE,
    Application,
    Events,
    Integers,
    avro_message,
    json_message,
    new_topic,
    reading_of,
    registry,
)
from stream_svt.counting.event_log import HOMES
from stream_svt.kafka.embedded import EmbeddedKafka
from stream_svt.settings.sources import log_topic
from stream_svt.sources.log import Pairs, Read, decode
from stream_svt.sources.tally import Tally

ONE_WINDOW = {"window": "7d", "every": "1d", "settle": "0s"}


async def durable_counts(application: Application, events: int) -> Integers:
    """Return the counts of the pairs in the event log, once all events are read there."""
    place = TopicPartition(log_topic(application.name), HOMES.of(SOURCE.encode()))
    tally, read = Tally(np.ones(application.pages, np.int64)), 0
    consumer = AIOKafkaConsumer(
        bootstrap_servers=application.servers, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        consumer.assign([place])
        async with asyncio.timeout(PATIENCE):
            while read < events:
                for record in (await consumer.getmany(timeout_ms=200)).get(place, []):
                    match decode(record.value):
                        case Pairs() as pairs:
                            tally.add(np.frombuffer(pairs.keys, "<u8"))
                        case Read() as position:
                            read = sum(position.offsets.values())
        return tally.counts()
    finally:
        await consumer.stop()


def figures(
    events: int = 6_000_000,
    users: int = 100_000,
    pages: int = 20_000,
    repetitions: int = 5,
    look_every: int = 200,
    seed: int = 1,
) -> dict[str, float]:
    """Return the counter's rates over the loop's; rates, processor times and spreads go to standard error."""
    drawn = Events.drawn(events, users, pages, seed)
    expected, found = drawn.counts(), dict[str, float]()
    with EmbeddedKafka() as kafka, tempfile.TemporaryDirectory() as directory, registry() as address:
        servers = kafka.bootstrap_servers
        for prefix, message in (("", json_message), ("avro_", avro_message)):
            topic, read = new_topic(servers), list[tuple[Reading, Reading]]()
            asyncio.run(drawn.write(servers, topic, message))
            peers.getmany_reading(servers, topic)  # the first reader warms the broker up
            for _ in range(repetitions):
                bare = peers.getmany_reading(servers, topic)
                application = Application(
                    servers=servers,
                    directory=Path(directory),
                    topic=topic,
                    pages=pages,
                    source=ONE_WINDOW | ({"format": "avro"} if prefix else {}),
                    registry=address if prefix else "",
                )
                application.create()
                with application.counter() as counter:
                    ours = reading_of(counter, events, look_every)
                    durable = asyncio.run(durable_counts(application, events))
                    say(f"getmany {bare}, {prefix}counter {ours}, {counter.peak_mib():.0f} MiB")
                assert (durable == expected).all(), "each page has as many pairs as different users"
                read.append((ours, bare))
            rates = [[reading.rate for reading in side] for side in zip(*read, strict=True)]
            used = [[bare.cpu_ns for _, bare in read], [ours.cpu_ns for ours, _ in read]]
            found |= {
                f"{prefix}events_vs_getmany": median_ratio(f"{prefix}events_vs_getmany", *rates),
                f"{prefix}events_cpu_vs_getmany": median_ratio(f"{prefix}events_cpu_vs_getmany", *used),
                f"{prefix}million_events": float(np.median(rates[0])) / 1e6,
            }
    return found
