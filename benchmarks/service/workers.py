"""Two workers and four on one topic against one worker: what they commit a second in all.

Workers of one application share its four partitions. They start with a monitor of an empty topic; once each has its
share, a configuration is applied whose monitors read the full one, so that all begin at the same time.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks import peers
from benchmarks.application import PARTITIONS, Application, monitor, wait_until
from benchmarks.command import median_ratio, say
from benchmarks.peers import Reading
from benchmarks.service.reading import (
    DATASETS_EACH,
    MONITORS,
    application,
    committed,
    datasets,
    drawn_values,
)
from stream_svt.kafka.embedded import EmbeddedKafka

TOPIC = "counts"
COUNTS = (1, 2, 4)
_APPLY = "import sys; from stream_svt.cli import main; main(['apply', '--yes', '--wait', '300', '-c', sys.argv[1]])"


def reading(servers: str, names: list[str], workers: int, messages: int, **commit: int) -> Reading:
    """Return what so many workers commit a second together."""
    look_every = commit.pop("look_every")
    with application(servers, names, "", **commit) as shared, ExitStack() as stack:
        idle = monitor("idle")
        shared.monitors = [idle]
        running = [stack.enter_context(shared.worker()) for _ in range(workers)]
        wait_until(
            lambda: all(worker.has(PARTITIONS // workers) for worker in running), "each worker has its share"
        )
        shared.monitors = [idle, *({**fields, "topic": TOPIC} for fields in MONITORS)]
        with _applying(shared, running[0].port):
            return committed(running, TOPIC, messages, look_every=look_every)


@contextmanager
def _applying(changed: Application, port: int) -> Iterator[None]:
    """Apply a changed configuration meanwhile: the command waits until every shard has adopted it."""
    config = changed.directory / "changed"
    config.write_text(changed.config(port))
    with subprocess.Popen([sys.executable, "-c", _APPLY, str(config)], stdout=subprocess.DEVNULL) as command:
        yield
        assert command.wait() == 0, "the changed configuration was not applied"


def figures(
    messages: int = 12_800_000, repetitions: int = 5, commit_records: int = 20_000, look_every: int = 200
) -> dict[str, float]:
    """Return `workers_2_vs_1` and `workers_4_vs_1`; rates and processor times go to standard error.

    A turn is over so many ``messages``; ``look_every`` is in milliseconds.
    """
    names = datasets(DATASETS_EACH)
    read: dict[int, list[Reading]] = {count: [] for count in COUNTS}
    with EmbeddedKafka() as kafka:
        servers = kafka.bootstrap_servers
        asyncio.run(peers.create_topics(servers, [TOPIC], PARTITIONS))
        texts = [b"%d" % value for value in drawn_values(messages).tolist()]
        asyncio.run(peers.write_queries(servers, TOPIC, partitions=PARTITIONS, datasets=names, values=texts))
        peers.getmany_reading(servers, TOPIC)  # the first reader warms the broker up
        commit = {"look_every": look_every, "max_records": commit_records}
        for _ in range(repetitions):
            for count, each in read.items():
                each.append(reading(servers, names, count, messages, **commit))
            say(", ".join(f"{count}: {each[-1]}" for count, each in read.items()))
    rates = {count: [one.rate for one in each] for count, each in read.items()}
    return {
        f"workers_{count}_vs_1": median_ratio(f"{count} workers", rates[count], rates[1]) for count in (2, 4)
    }
