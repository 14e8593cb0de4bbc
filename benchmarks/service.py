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

import argparse
import asyncio
import contextlib
import json
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import peers
from stream_svt.service.embedded import EmbeddedKafka

TOPIC = "counts"
PARTITIONS = 4
DATASETS_EACH = 16
TOP, THRESHOLD, LOW = 50_000, 5_000, 100
TOP_SHARE = 1e-4
PATIENCE = 60.0
CONFIG = """
application: {application}
kafka: {{bootstrap_servers: "{servers}"}}
topics: {{partitions: {partitions}}}
sealing: {{key_file: master.key}}
web: {{port: {port}}}
commit: {{max_records: {commit_records}}}
datasets:
  - {{names: [{datasets}], limit: 100, unit: one basket}}
monitors:
{monitors}
"""
MONITORS = """\
  - {{name: plain, mechanism: svt, {common}}}
  - {{name: adaptive, mechanism: adaptive, {common}}}
""".format(
    common=f"topic: {TOPIC}, epsilon: 1, cutoff: 10, sensitivity: 1, monotonic: true, expected_queries: 1000000, "
    f"bounds: [0, 100000], threshold: {THRESHOLD}"
)
_WORKER = """
import sys
from stream_svt.service.app import run
from stream_svt.service.config import load_config
from stream_svt.service.web import pages
pages.AGE = 0.0  # every look sees the shards as they are
sys.exit(run(load_config(sys.argv[1])))
"""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: so many messages on the topic, so many of them read by the agent.

    ``commit_records`` is the worker's commit.max_records, the default one; ``look_every`` is in milliseconds.
    """

    messages: int = 1_600_000
    agent_messages: int = 40_000
    repetitions: int = 5
    commit_records: int = 20_000
    look_every: int = 200


class Worker:
    """A running worker's process and its status page."""

    def __init__(self, process: subprocess.Popen[bytes], application: str, port: int, log: Path) -> None:
        self.process = process
        self.alerts = f"{application}.alerts"
        self._url = f"http://127.0.0.1:{port}/api/v1/status"
        self._log = log

    def status(self, part: str = "shards") -> list[dict[str, Any]]:
        """Return a part of the status page; nothing while it does not answer yet."""
        if self.process.poll() is not None:
            raise AssertionError(f"the worker ended:\n{self._log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(self._url, timeout=10) as page:  # noqa: S310 - a literal http URL
                status: dict[str, Any] = json.load(page)
        except OSError:
            return []
        assert status["sealed"]
        return list(status[part])

    def await_running(self) -> None:
        """Wait until every shard has taken over and replayed."""
        end = time.monotonic() + PATIENCE
        while len(shards := self.status()) < PARTITIONS or any(s["state"] != "running" for s in shards):
            assert time.monotonic() < end, self._log.read_text()[-2000:]
            time.sleep(0.1)


def datasets(each: int, partitions: int = PARTITIONS) -> list[str]:
    """Return names of datasets, so many at home on each partition, the partitions in turn."""
    homes: list[list[str]] = [[] for _ in range(partitions)]
    number = 0
    while min(map(len, homes)) < each:
        name = f"d{number}"
        homes[peers.home(name.encode(), partitions)].append(name)
        number += 1
    return [names[k] for k in range(each) for names in homes]


@contextlib.contextmanager
def worker(
    servers: str, names: Sequence[str], monitors: str = MONITORS, commit_records: int = Size().commit_records
) -> Iterator[Worker]:
    """Run a worker of a new application, with topics and a master key of its own."""
    application = f"bench-{secrets.token_hex(4)}"
    own = [f"{application}.{name}" for name in ("alerts", "rejects", "control")]
    asyncio.run(peers.create_topics(servers, own, PARTITIONS))
    compacted = {"cleanup.policy": "compact"}
    asyncio.run(peers.create_topics(servers, [f"{application}.state"], PARTITIONS, compacted))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        key, config, log = (Path(directory) / name for name in ("master.key", "config.yaml", "worker.log"))
        key.touch(mode=0o600)
        key.write_text(secrets.token_hex(32))
        text = CONFIG.format(
            application=application,
            servers=servers,
            partitions=PARTITIONS,
            port=port,
            commit_records=commit_records,
            datasets=", ".join(names),
            monitors=monitors,
        )
        config.write_text(text)
        with log.open("wb") as output:
            command = [sys.executable, "-c", _WORKER, str(config)]
            process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            yield Worker(process, application, port, log)
        finally:
            process.terminate()
            process.wait(PATIENCE)


def worker_rate(servers: str, names: Sequence[str], size: Size, tops: int) -> float:
    """Return the messages a second that a new worker commits, over the topic from its beginning.

    Then it is held to what it was there for: an alert from each monitor for each of the ``tops``, but for the few
    whose series an earlier one muted.
    """
    near_the_end = 0.98 * size.messages / PARTITIONS
    looks: list[dict[int, tuple[float, int]]] = []
    end = time.monotonic() + PATIENCE
    with worker(servers, names, commit_records=size.commit_records) as running:
        while True:
            assert time.monotonic() < end, "the worker did not get through the topic in time"
            look = {
                shard["shard"]: (shard["committed_at"], shard["offsets"].get(TOPIC, 0))
                for shard in running.status()
            }
            offsets = [offset for _, offset in look.values()]
            if len(look) == PARTITIONS and min(offsets) > 0:
                if max(offsets) >= near_the_end:
                    break
                if not looks or look != looks[-1]:
                    looks.append(look)
            time.sleep(size.look_every / 1000)
        while sum(shard["offsets"][TOPIC] for shard in running.status()) < size.messages:
            assert time.monotonic() < end, "the worker did not get to the end of the topic in time"
            time.sleep(0.1)
        alerts = sum(view["tops"] for each in running.status("datasets") for view in each["monitors"])
        assert 1.8 * tops <= alerts <= 2 * tops, f"{alerts} alerts for {tops} tops and two monitors"
    assert len(looks) > 1, "the worker was faster than it could be looked at: take more messages"
    return sum(_rate(looks[0][shard], looks[-1][shard]) for shard in looks[0])


def _rate(first: tuple[float, int], last: tuple[float, int]) -> float:
    return (last[1] - first[1]) / (last[0] - first[0]) if last[0] > first[0] else 0.0


def figures(size: Size = Size()) -> dict[str, float]:
    """Return `json_vs_getmany` and `json_vs_faust_agent`; rates and spreads go to standard error."""
    names = datasets(DATASETS_EACH)
    rng = np.random.default_rng(1)
    values = rng.integers(0, LOW, size.messages)
    values[rng.random(size.messages) < TOP_SHARE] = TOP
    rates: dict[str, list[float]] = {"worker": [], "getmany": [], "agent": []}
    with EmbeddedKafka() as kafka:
        servers = kafka.bootstrap_servers
        asyncio.run(peers.create_topics(servers, [TOPIC], PARTITIONS))
        write = peers.write_queries(
            servers, TOPIC, partitions=PARTITIONS, datasets=names, values=values.tolist()
        )
        asyncio.run(write)
        peers.getmany_rate(servers, TOPIC)  # the first reader warms the broker up
        for _ in range(size.repetitions):
            rates["getmany"].append(peers.getmany_rate(servers, TOPIC))
            rates["worker"].append(worker_rate(servers, names, size, int((values == TOP).sum())))
            rates["agent"].append(peers.faust_agent_rate(servers, TOPIC, size.agent_messages))
            print({who: f"{each[-1]:,.0f}/s" for who, each in rates.items()}, file=sys.stderr)
    return {
        "json_vs_getmany": _median_ratio(rates["worker"], rates["getmany"]),
        "json_vs_faust_agent": _median_ratio(rates["worker"], rates["agent"]),
    }


def _median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    ratios = sorted(one / other for one, other in zip(ours, theirs, strict=True))
    print("ratios: " + " ".join(f"{ratio:.2f}" for ratio in ratios), file=sys.stderr)
    return statistics.median(ratios)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks/run service")
    for name in Size.__slots__:
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=getattr(Size(), name))
    for name, figure in figures(Size(**vars(parser.parse_args(arguments)))).items():
        print(f"service.{name} {figure:.3f}")


if __name__ == "__main__":
    main()
