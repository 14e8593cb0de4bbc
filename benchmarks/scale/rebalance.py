"""How long shards stand still while another worker joins or leaves: those that stay, and those that move.

One embedded broker, 4 partitions, 20,000 datasets with a ledger and an open run each. A worker owns every shard;
another one joins and leaves again, a few times. *Stay*: from the revocation to the moment at which the first worker's
own shards read on, in its log; that includes Kafka's protocol, in which every worker must join again. *Move*: from the
assignment to the moment at which the other worker's last shard is open. *Opened again*: shards that stayed and were
opened nevertheless.
"""

from __future__ import annotations

import re
import statistics
import tempfile
from datetime import datetime
from pathlib import Path

from benchmarks.application import PARTITIONS, Application, wait_until
from stream_svt.service.embedded import EmbeddedKafka

DATASETS = 20_000
ROUNDS = 4
_EVENT = re.compile(
    r"^(\S+ \S+) INFO .*event=(revoked|kept|shard_opened)(?:.* seconds=([0-9.]+))?", re.MULTILINE
)


def measure() -> dict[str, float]:
    """Return medians in seconds, and the number of shards opened again."""
    moves: list[float] = []
    with EmbeddedKafka() as kafka, tempfile.TemporaryDirectory() as directory:
        application = Application(
            servers=kafka.bootstrap_servers,
            directory=Path(directory),
            names=[f"d{number}" for number in range(DATASETS)],
        )
        application.fill()
        with application.worker() as first:
            wait_until(lambda: application.read(first) == DATASETS, "every dataset has a ledger")
            for _ in range(ROUNDS):
                with application.worker() as other:
                    for one in (other, first):
                        wait_until(lambda one=one: one.has(PARTITIONS // 2), "shards are shared")
                    moves.append(other.takeover())
                wait_until(lambda: first.has(PARTITIONS), "every shard is back")
            said = first.log.read_text()
    stays, opened, began = [], 0, 0.0
    for moment, event, seconds in _EVENT.findall(said):
        at = datetime.strptime(moment, "%Y-%m-%d %H:%M:%S,%f").timestamp()  # noqa: DTZ007  two of one clock
        opened += event == "shard_opened"
        if event == "revoked":
            began = at - float(seconds)
        elif event == "kept":
            stays.append(at - began)
    return {
        "rebalance_stay_seconds": statistics.median(stays),
        "rebalance_move_seconds": statistics.median(moves),
        "rebalance_opened_again": opened - PARTITIONS - ROUNDS * PARTITIONS // 2,
    }
