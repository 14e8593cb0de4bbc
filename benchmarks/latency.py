"""From a query to its alert in a read_committed reader's hands: a worker's median against a bare relay's.

One embedded broker. Queries that are certain tops are sent one at a time, the next 20 ms after the alert to
the last one was read: light load. The worker is the one of the service benchmark (a process of its own, 4
shards, sealed state) with one monitor. The relay of `benchmarks.peers` writes one state record in a
transaction and one alert in the next, and does nothing else. Reader, sender, topics' partitions and the
clients' tuning are the same on both sides. Both are up all the time and take turns; the figure is the
median over the turns of the ratio of medians.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
from pathlib import Path

from aiokafka import ConsumerRecord

from benchmarks import peers
from benchmarks.application import PARTITIONS, Application, monitor, wait_until
from benchmarks.command import median_ratio, say, show
from stream_svt.monitor.released import EventType
from stream_svt.service.embedded import EmbeddedKafka

MONITOR = monitor("plain", epsilon=90, cutoff=10_000, bounds=[0, 10_000_000], threshold=1_000_000)
TOP = 9_000_000
RELAY = ("relay.queries", "relay.state", "relay.alerts")


def figures(queries: int = 60, turns: int = 7) -> dict[str, float]:
    """Return `p50_vs_bare_relay`; medians and the spread go to standard error."""
    name = "shop"
    numbers = itertools.count()  # each query is of a series of its own, for an alert mutes its series
    with EmbeddedKafka() as kafka, tempfile.TemporaryDirectory() as directory:
        servers = kafka.bootstrap_servers
        asyncio.run(peers.create_topics(servers, RELAY, PARTITIONS))
        application = Application(
            servers=servers,
            directory=Path(directory),
            names=[name],
            monitors=[MONITOR],
        )
        theirs, mine = RELAY[::2], (application.queries, f"{application.name}.alerts")
        with (
            application.worker() as worker,
            peers.bare_relay(servers, *RELAY, partition=peers.home(name.encode(), PARTITIONS)),
        ):
            wait_until(lambda: worker.has(PARTITIONS), "every shard has taken over and replayed")

            def median(topic: str, alerts: str, count: int = queries) -> float:
                sending = peers.alert_latencies(
                    servers,
                    topic,
                    alerts,
                    query=lambda _: (name.encode(), _top(next(numbers))),
                    is_alert=_is_alert,
                    partitions=PARTITIONS,
                    count=count,
                )
                return statistics.median(asyncio.run(sending))

            for side in (mine, theirs):
                median(*side, count=5)  # the first ones open the run and warm the broker up
            ours, relay = [], []
            for _ in range(turns):
                relay.append(median(*theirs))
                ours.append(median(*mine))
                say(f"worker {1e3 * ours[-1]:.1f} ms, relay {1e3 * relay[-1]:.1f} ms")
    return {"p50_vs_bare_relay": median_ratio("ratios", ours, relay)}


def _top(number: int) -> bytes:
    return b'{"id":"q%d","value":%d,"series":"s%d"}' % (number, TOP, number)


def _is_alert(record: ConsumerRecord[bytes, bytes]) -> bool:
    """Tell alerts from the service's lifecycle events; the relay's records are all alerts and hold zeros only."""
    value = record.value or b""
    return not any(value) or EventType.ALERT.value.encode() in value


if __name__ == "__main__":
    show(figures)
