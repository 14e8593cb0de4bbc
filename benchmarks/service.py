"""A worker on JSON queries against a bare aiokafka loop and an idle Faust agent: messages a second.

One embedded broker, one query topic: 4 partitions, 64 datasets spread evenly, JSON queries with id, value
and series, one in 10,000 a top. The worker runs in a process of its own, as a user starts it, with two
monitors that test every query of every dataset (SVT with exponential noise, Adaptive SVT), keyed noise and
sealed state; but for that the configuration is the default one. The peers read the same topic, each in a
process of its own.

The worker's rate is taken from its own commits, as its status page shows them. Between a first look at which
every shard has committed queries and a last one at which none is near its end, each shard committed so many
queries in the time between the two commits shown; the rates of the shards add up to the worker's. So starting,
joining the group and the wait before a last, partial commit do not count, and no query does that is not
committed.

Repetitions are interleaved; a figure is the median of their ratios. The agent is slow and reads the
beginning only.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import peers
from benchmarks.application import PARTITIONS, Application, monitor
from benchmarks.command import median_ratio, say, show
from stream_svt.service.embedded import EmbeddedKafka

TOPIC = "counts"
DATASETS_EACH = 16
TOP, THRESHOLD, LOW = 50_000, 5_000, 100
TOP_SHARE = 1e-4
PATIENCE = 60.0
MONITORS = [monitor(mechanism, mechanism=mechanism, threshold=THRESHOLD) for mechanism in ("svt", "adaptive")]


def datasets(each: int, partitions: int = PARTITIONS) -> list[str]:
    """Return names of datasets, so many at home on each partition, the partitions in turn."""
    homes: list[list[str]] = [[] for _ in range(partitions)]
    number = 0
    while min(map(len, homes)) < each:
        name = f"d{number}"
        homes[peers.home(name.encode(), partitions)].append(name)
        number += 1
    return [names[k] for k in range(each) for names in homes]


def worker_rate(
    servers: str, names: Sequence[str], messages: int, commit_records: int, look_every: int, tops: int
) -> float:
    """Return the messages a second that a new worker commits, over the topic from its beginning.

    Then it is held to what it was there for: an alert from each monitor for each of the ``tops``, but for the few
    whose series an earlier one muted.
    """
    near_the_end = 0.98 * messages / PARTITIONS
    looks: list[dict[int, tuple[float, int]]] = []
    end = time.monotonic() + PATIENCE
    with (
        tempfile.TemporaryDirectory() as directory,
        Application(
            servers=servers,
            directory=Path(directory),
            names=names,
            monitors=MONITORS,
            queries=TOPIC,
            sections={"commit": {"max_records": commit_records}},
        ).worker() as running,
    ):
        while True:
            assert time.monotonic() < end, "the worker did not get through the topic in time"
            look = {
                shard["shard"]: (shard["committed_at"], shard["offsets"].get(TOPIC, 0))
                for shard in running.shards()
            }
            offsets = [offset for _, offset in look.values()]
            if len(look) == PARTITIONS and min(offsets) > 0:
                if max(offsets) >= near_the_end:
                    break
                if not looks or look != looks[-1]:
                    looks.append(look)
            time.sleep(look_every / 1000)
        while sum(shard["offsets"][TOPIC] for shard in running.shards()) < messages:
            assert time.monotonic() < end, "the worker did not get to the end of the topic in time"
            time.sleep(0.1)
        account = json.loads(running.get("/api/v1/status"))["datasets"]
        alerts = sum(view["alerts"] for each in account for view in each["monitors"])
        assert 1.8 * tops <= alerts <= 2 * tops, f"{alerts} alerts for {tops} tops and two monitors"
    assert len(looks) > 1, "the worker was faster than it could be looked at: take more messages"
    return sum(_rate(looks[0][shard], looks[-1][shard]) for shard in looks[0])


def _rate(first: tuple[float, int], last: tuple[float, int]) -> float:
    return (last[1] - first[1]) / (last[0] - first[0]) if last[0] > first[0] else 0.0


def figures(
    messages: int = 1_600_000,
    agent_messages: int = 40_000,
    repetitions: int = 5,
    commit_records: int = 20_000,
    look_every: int = 200,
) -> dict[str, float]:
    """Return `json_vs_getmany` and `json_vs_faust_agent`; rates and spreads go to standard error.

    The agent reads ``agent_messages`` of the topic; ``look_every`` is in milliseconds.
    """
    names = datasets(DATASETS_EACH)
    rng = np.random.default_rng(1)
    values = rng.integers(0, LOW, messages)
    values[rng.random(messages) < TOP_SHARE] = TOP
    tops = int((values == TOP).sum())
    rates: dict[str, list[float]] = {"worker": [], "getmany": [], "agent": []}
    with EmbeddedKafka() as kafka:
        servers = kafka.bootstrap_servers
        asyncio.run(peers.create_topics(servers, [TOPIC], PARTITIONS))
        write = peers.write_queries(
            servers, TOPIC, partitions=PARTITIONS, datasets=names, values=values.tolist()
        )
        asyncio.run(write)
        peers.getmany_rate(servers, TOPIC)  # the first reader warms the broker up
        for _ in range(repetitions):
            rates["getmany"].append(peers.getmany_rate(servers, TOPIC))
            rates["worker"].append(worker_rate(servers, names, messages, commit_records, look_every, tops))
            rates["agent"].append(peers.faust_agent_rate(servers, TOPIC, agent_messages))
            say(", ".join(f"{who} {each[-1]:,.0f}/s" for who, each in rates.items()))
    return {
        f"json_vs_{name}": median_ratio(name, rates["worker"], rates[peer])
        for name, peer in (("getmany", "getmany"), ("faust_agent", "agent"))
    }


if __name__ == "__main__":
    show(figures)
