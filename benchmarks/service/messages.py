"""A worker on JSON queries against a bare aiokafka loop, an idle Quix Streams dataframe and an idle Faust agent.

JSON queries with id, value and series. The loop calls ``getmany`` and counts, once as Python starts it and once with
its garbage collector set as the worker's. Quix Streams and Faust are slow: they read the beginning of the topic only.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable

from benchmarks import peers
from benchmarks.application import PARTITIONS
from benchmarks.command import median_ratio, say
from benchmarks.peers import Reading
from benchmarks.service.reading import DATASETS_EACH, TOP, datasets, drawn_values, worker_reading
from stream_svt.kafka.embedded import EmbeddedKafka

TOPIC = "counts"


def figures(
    messages: int = 6_400_000,
    agent_messages: int = 80_000,
    repetitions: int = 5,
    commit_records: int = 20_000,
    look_every: int = 200,
) -> dict[str, float]:
    """Return the worker's rate over that of each peer, and `json_mqueries`: its millions of queries a second.

    Rates, processor times and spreads go to standard error. Quix Streams and the agent read
    ``agent_messages`` of the topic; ``look_every`` is in milliseconds.
    """
    names = datasets(DATASETS_EACH)
    values = drawn_values(messages)
    tops = int((values == TOP).sum())
    read: dict[str, list[Reading]] = {}
    with EmbeddedKafka() as kafka:
        servers = kafka.bootstrap_servers
        asyncio.run(peers.create_topics(servers, [TOPIC], PARTITIONS))
        texts = [b"%d" % value for value in values.tolist()]
        writing = peers.write_queries(servers, TOPIC, partitions=PARTITIONS, datasets=names, values=texts)
        say(f"written: {asyncio.run(writing):,.0f}/s")

        def worker() -> Reading:
            commit = {"look_every": look_every, "max_records": commit_records}
            return worker_reading(servers, names, TOPIC, messages, tops=tops, **commit)

        sides: dict[str, Callable[[], Reading]] = {
            "getmany": lambda: peers.getmany_reading(servers, TOPIC),
            "worker": worker,
            "tuned_getmany": lambda: peers.getmany_reading(servers, TOPIC, tuned=True),
            "quix": lambda: peers.quix_reading(servers, TOPIC, agent_messages),
            "faust_agent": lambda: peers.faust_agent_reading(servers, TOPIC, agent_messages),
        }
        peers.getmany_reading(servers, TOPIC)  # the first reader warms the broker up
        for _ in range(repetitions):
            for side, reading in sides.items():
                read.setdefault(side, []).append(reading())
            say(", ".join(f"{side} {each[-1]}" for side, each in read.items()))
    rates = {side: [reading.rate for reading in each] for side, each in read.items()}
    worker_rates = rates.pop("worker")
    ratios = {f"json_vs_{side}": median_ratio(side, worker_rates, each) for side, each in rates.items()}
    return ratios | {"json_mqueries": statistics.median(worker_rates) / 1e6}
