"""From a query to its alert in a read_committed reader's hands: a worker against a bare relay.

One embedded broker. Queries that are certain tops are sent one at a time, the next 20 ms after the alert to the last
one was read. The worker is the one of the service benchmark (a process of its own, 4 shards, sealed state) with one
monitor. The relay of `benchmarks.peers` writes one state record in a transaction and one alert in the next, and does
nothing else. Reader, sender, topics' partitions, collector and the clients' tuning are the same on both sides. Both are
up all the time and take turns; a figure is the median over the turns of the ratio of medians, or of 99th percentiles.

Light load is those queries alone. Half load adds a steady stream of bottoms, on all partitions of the same topic: half
of what the worker commits a second while it catches up, or of what a bare loop reads where that is less, because the
relay reads the same stream too. It has to find the tops in it, as whatever publishes alerts has; but it decodes,
tests and commits nothing of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from aiokafka import ConsumerRecord

from benchmarks import peers
from benchmarks.application import PARTITIONS, Application, Worker, monitor, wait_until
from benchmarks.command import median_ratio, say, show
from benchmarks.service.reading import DATASETS_EACH, committed, datasets
from stream_svt.kafka.embedded import EmbeddedKafka
from stream_svt.monitor.released import EventType

MONITOR = monitor("plain", epsilon=90, cutoff=10_000, bounds=[0, 10_000_000], threshold=1_000_000)
NAME = "shop"
RELAY = ("relay.queries", "relay.state", "relay.alerts")
LOADS = ("", "_half_load")
_WARM = 5


class Sides:
    """The worker and the relay, up and warm."""

    def __init__(self, servers: str, application: Application) -> None:
        self._servers = servers
        self.topics = {
            "worker": (application.queries, f"{application.name}.alerts"),
            "relay": RELAY[::2],
        }
        self._numbers = (
            itertools.count()
        )  # each query is of a series of its own, for an alert mutes its series

    def latencies(self, side: str, count: int) -> list[float]:
        """Return how long each of so many queries takes, in seconds, after some that warm up."""
        sending = peers.alert_latencies(
            self._servers,
            *self.topics[side],
            query=lambda _: (NAME.encode(), _top(next(self._numbers))),
            is_alert=_is_alert,
            partitions=PARTITIONS,
            count=_WARM + count,
        )
        return asyncio.run(sending)[_WARM:]


@contextlib.contextmanager
def running(
    messages: int, commit_records: int, look_every: int
) -> Iterator[tuple[Sides, str, list[str], float]]:
    """Yield both sides, the brokers, the datasets of a stream and its rate at half load."""
    names = datasets(DATASETS_EACH)
    with EmbeddedKafka() as kafka, tempfile.TemporaryDirectory() as directory:
        servers = kafka.bootstrap_servers
        asyncio.run(peers.create_topics(servers, RELAY, PARTITIONS))
        application = Application(
            servers=servers,
            directory=Path(directory),
            names=[NAME, *names],
            monitors=[MONITOR],
            sections={"commit": {"max_records": commit_records}},
        )
        backlog = peers.write_queries(
            servers,
            application.queries,
            partitions=PARTITIONS,
            datasets=names,
            values=[b"%d" % (number % 100) for number in range(messages)],
        )
        asyncio.run(backlog)
        bare = peers.getmany_reading(servers, application.queries, tuned=True)
        relay = peers.bare_relay(servers, *RELAY, partition=peers.home(NAME.encode(), PARTITIONS))
        with application.worker() as worker, relay:
            private = committed([worker], application.queries, messages, look_every=look_every)
            wait_until(lambda: _is_idle(application, worker, messages), "the worker has read the backlog")
            say(f"catching up: worker {private}, bare loop {bare}")
            yield Sides(servers, application), servers, names, min(private.rate, bare.rate) / 2


def _is_idle(application: Application, worker: Worker, messages: int) -> bool:
    return worker.has(PARTITIONS) and application.read(worker) >= messages


def figures(
    queries: int = 200,
    turns: int = 7,
    messages: int = 3_200_000,
    commit_records: int = 20_000,
    look_every: int = 200,
) -> dict[str, float]:
    """Return `p50_vs_bare_relay` and `p99_vs_bare_relay`, and those at half load; medians go to standard error.

    These are `p50_vs_bare_relay_half_load` and `p99_vs_bare_relay_half_load`.

    A turn sends so many ``queries`` to each side; ``messages`` wait for the worker, and show how fast it catches up.
    ``look_every`` is in milliseconds.
    """
    found: dict[str, float] = {}
    with running(messages, commit_records, look_every) as (sides, servers, names, rate):
        for load in LOADS:
            taken: dict[str, list[tuple[float, float]]] = {"relay": [], "worker": []}
            for _ in range(turns):
                for side, each in taken.items():
                    topic = sides.topics[side][0]
                    with (
                        peers.steady_stream(servers, topic, names, rate) if load else contextlib.nullcontext()
                    ):
                        each.append(percentiles(sides.latencies(side, queries)))
                say(f"{load.strip('_') or 'light'}: " + ", ".join(map(_said, taken, taken.values())))
            for index, name in enumerate(("p50", "p99")):
                ours, theirs = ([one[index] for one in taken[side]] for side in ("worker", "relay"))
                found[f"{name}_vs_bare_relay{load}"] = median_ratio(f"{name}{load}", ours, theirs)
    return found


def percentiles(latencies: list[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile."""
    return statistics.median(latencies), statistics.quantiles(latencies, n=100, method="inclusive")[98]


def _said(side: str, taken: list[tuple[float, float]]) -> str:
    median, high = taken[-1]
    return f"{side} {1e3 * median:.1f} ms, 99 % {1e3 * high:.1f} ms"


def _top(number: int) -> bytes:
    return b'{"id":"q%d","value":%b,"series":"s%d"}' % (number, peers.MARK, number)


def _is_alert(record: ConsumerRecord[bytes, bytes]) -> bool:
    """Tell alerts from the service's lifecycle events; the relay's records are all alerts and hold zeros only."""
    value = record.value or b""
    return not any(value) or EventType.ALERT.value.encode() in value


if __name__ == "__main__":
    show(figures)
