"""The demo's scenario: queries about a shop's baskets, and the configuration of the service that monitors them.

A query asks how many baskets of the current week contain an item. The data are retail baskets that ship with the
package, supplied by Tom Brijs: anonymised baskets of a Belgian retail store, one a line. Line numbers are the public
clock. Privacy unit: one basket. Two data sets are neighbours when the basket of one line is emptied in one of them and
**the lines stay**. Emptying a basket lowers the counts of its items by one, from the next checkpoint to the end of its
week, and changes nothing else: sensitivity 1, monotonic. Counting *non-empty* baskets instead would pull the successors
of a removed basket into another week.

Ids, order and number of records depend on the clock alone. So do record lengths, which are public: a value is padded
with the spaces that JSON allows after a number. The producer belongs to the trusted zone: it reads the baskets and
writes true counts, and the times at which it sends depend on the clock alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from string import Template
from typing import NamedTuple

import numpy as np
from aiokafka import AIOKafkaProducer
from numpy.typing import NDArray

from stream_svt.kafka.partitioning import Partitioning

ACKNOWLEDGEMENT = (
    "Retail baskets: the anonymised market baskets of a Belgian retail store, kindly supplied by Tom Brijs. "
    "T. Brijs, G. Swinnen, K. Vanhoof, G. Wets: The use of association rules for product assortment "
    "decisions: a case study. KDD 1999, pp. 254-260."
)
FILE = "retail-baskets.npz"
LAST_ITEM = 16_470
"""Items are numbered from 1 to this number without a gap. The list is public; which items sell is not."""
LINES = 88_162
WEEK_LINES = 14_700
"""The data carry no dates, so a "week" is a number of lines; nothing in a monitor depends on its length."""
EVERY = 300
"""Lines between two checkpoints of a week."""
DIGITS = 5
"""Width that every count is padded to. A count is at most the lines of a week, which has five digits."""
BATCH = 4000
"""Records of a batch: about 420 kB."""
SERIES = "item-%d"

APPEND = "hot-items-append"
ADAPTIVE = "hot-items-adaptive"
MONITORS = (APPEND, ADAPTIVE)
THRESHOLD = 400
"""Sales since the start of its week from which an item counts as hot."""
LIMITS = {f"retail-week-{number}": "1.6" if number == 2 else "4" for number in range(1, 7)}
"""Epsilon for the baskets of each week. One week has less, so that the demo shows an exhausted budget."""


@dataclass(frozen=True, slots=True)
class Baskets:
    """Baskets by line number: ``items[start[n]:start[n + 1]]``, ascending, is the basket of line ``n``. Private."""

    start: NDArray[np.int64] = field(repr=False)
    items: NDArray[np.uint16] = field(repr=False)


def load_baskets() -> Baskets:
    """Return the shipped baskets, in order of time.

    The file holds the sizes of the baskets and the differences between their items, low and high bytes apart.
    """
    with (
        resources.files("stream_svt.demo").joinpath("data", FILE).open("rb") as stream,
        np.load(stream, allow_pickle=False) as packed,
    ):
        start = np.concatenate([[0], np.cumsum(packed["sizes"], dtype=np.int64)])
        steps = packed["low"].astype(np.int64) | packed["high"].astype(np.int64) << 8
    # A running sum over all baskets, less the sum before each basket.
    sums = np.concatenate([[0], np.cumsum(steps)])
    items = sums[1:] - np.repeat(sums[start[:-1]], np.diff(start))
    return Baskets(start, items.astype(np.uint16))


class Checkpoint(NamedTuple):
    """A moment at which the running counts of all items are queried: the queries form the finite set ``set_id``.

    It adds the lines ``first`` to ``end - 1`` to the counts.
    """

    dataset: str
    set_id: str
    first: int
    end: int


def checkpoints() -> Iterator[Checkpoint]:
    """Yield the checkpoints of all weeks in order of time; the last one of a week is at its end."""
    for dataset, start in zip(LIMITS, range(0, LINES, WEEK_LINES), strict=True):
        stop = min(start + WEEK_LINES, LINES)
        for first in range(start, stop, EVERY):
            end = min(first + EVERY, stop)
            yield Checkpoint(dataset, f"line-{end:05}", first, end)


def running_counts(baskets: Baskets) -> Iterator[tuple[Checkpoint, NDArray[np.int64]]]:
    """Yield each checkpoint with the counts of items 1 to `LAST_ITEM` since its week began (private)."""
    counts = np.zeros(LAST_ITEM + 1, dtype=np.int64)
    for point in checkpoints():
        if point.first % WEEK_LINES == 0:
            counts[:] = 0
        sold = baskets.items[baskets.start[point.first] : baskets.start[point.end]]
        counts += np.bincount(sold, minlength=LAST_ITEM + 1)
        yield point, counts[1:].copy()


def records_of(point: Checkpoint, counts: NDArray[np.int64]) -> list[bytes]:
    """Return the queries of one checkpoint, then the marker that closes their set."""
    name = point.set_id
    records = [
        f'{{"id":"{name}/{item}","series":"{SERIES % item}","set":"{name}","value":{count:<{DIGITS}}}}'
        for item, count in enumerate(counts.tolist(), 1)
    ]
    return [record.encode("ascii") for record in [*records, json.dumps({"set": name, "closed": True})]]


async def send(
    client: AIOKafkaProducer,
    topic: str,
    partitioning: Partitioning,
    point: Checkpoint,
    counts: NDArray[np.int64],
) -> None:
    """Store the records of one checkpoint on the partition of its dataset."""
    records = await asyncio.to_thread(records_of, point, counts)
    key, stored = point.dataset.encode(), []
    # Batches are built here: a call of the client's `send` for each record would take most of the time.
    for start in range(0, len(records), BATCH):
        batch = client.create_batch()
        for record in records[start : start + BATCH]:
            batch.append(timestamp=None, key=key, value=record)
        batch.close()
        stored.append(await client.send_batch(batch, topic, partition=partitioning.of(key)))
    await asyncio.gather(*stored)


_COMMON = """\
    topic: $application.counts
    datasets: ["retail-week-*"]
    epsilon: 0.8 # of one whole run: its threshold and all its alerts
    cutoff: 6 # alerts of a run; then the run halts, and the next one starts if the budget pays for it
    sensitivity: 1
    monotonic: true
    bounds: [0, 14700]
    threshold: 400
    max_runs: off # the six weeks pass within minutes here
    mute: period # an item that was reported is muted for the rest of its week
    beta: 0.1 # an alert's bound holds with 90 %
"""
_TEMPLATE = Template(
    """\
# Differentially private monitoring of a shop's best sellers.
#
# Queries: every 300 lines of the till's journal (the line number is the public clock), for each item of
# the public price list, the number of baskets of this week that contain it. Neighbours: the basket of one
# line is emptied, the line stays. So a basket changes the answers of one week only, each by at most 1, all
# in the same direction. The topics $application.alerts, .state, .rejects, .control and .config and the
# budgets belong to this application alone.
application: $application
kafka: {bootstrap_servers: "$bootstrap"}
topics: {partitions: $partitions}
sealing: {keys: ["$key_file"]} # 32 random bytes as hex: openssl rand -hex 32
web: {port: $port}
commit: {interval: 500ms}
datasets: # the rest of the second week's budget was given to a study
$datasets
monitors:
  # Each checkpoint is one finite set. Its items are tested at the highest bar as they arrive; when the set
  # is closed, bottoms are tested again (APPEND), many times, while the bar falls from 12 to 4 noise scales.
  - name: hot-items-append
COMMON
    mechanism: svt
    correction: {annealed: {start: 12, end: 4}}
    append: {sweep: {alerts_per_set: 6, max_open_sets: 2, max_set_size: 16470}}
  # The same counts as an open stream. An item far above the threshold costs half of what one just above
  # costs.
  - name: hot-items-adaptive
COMMON
    mechanism: adaptive
    correction: {exposure: {false_alerts: 500}} # if all queries sat on the threshold; most are far below
    expected_queries: 807030 # queries of one week
""".replace("COMMON\n", _COMMON)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where one demo runs; the names of its topics, group and transactional ids begin with ``application``."""

    application: str = "retail-demo"
    bootstrap: str = "127.0.0.1:9092"
    key_file: Path = Path("sealing.key")
    port: int = 6066
    partitions: int = 4

    @property
    def partitioning(self) -> Partitioning:
        """The shards of datasets."""
        return Partitioning(self.partitions, "murmur2")

    def topic(self, name: str) -> str:
        """Return the full name of a topic: counts, alerts, state, rejects, control or config."""
        return f"{self.application}.{name}"

    def yaml(self) -> str:
        """Return the configuration file of the service, as ``--show-config`` prints it."""
        unit = "unit: one basket (its line stays)"
        datasets = [
            f"  - {{name: {name}, {unit}, limit: {{epsilon: {limit}}}}}" for name, limit in LIMITS.items()
        ]
        return _TEMPLATE.substitute(asdict(self), datasets="\n".join(datasets))
