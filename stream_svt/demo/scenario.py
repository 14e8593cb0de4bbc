"""The demo's scenario: a shop's baskets as raw events or as queries, and the configuration of the service.

The data are retail baskets that ship with the package, supplied by Tom Brijs: anonymised baskets of a Belgian retail
store, one a line. Line numbers are the public clock: when anything is sent, and its times, depend on them alone.

**Raw events**, one for each item of a basket, go to a counter. It counts the different baskets of each item in windows
of `WINDOW_MS`, each of which plays `WINDOW_LINES` lines. Privacy unit: all events of one basket. They have one week, in
whose dataset they count, and raise each count there by 0 or 1.

**Queries** ask how many baskets of the current week contain an item. Privacy unit: one basket. Two data sets are
neighbours when the basket of one line is emptied in one of them and **the lines stay**. Emptying a basket lowers the
counts of its items by one, from the next checkpoint to the end of its week, and changes nothing else: sensitivity 1,
monotonic. Counting *non-empty* baskets instead would pull the successors of a removed basket into another week. Ids,
order and number of records depend on the clock alone. So do record lengths, which are public: a value is padded with
the spaces that JSON allows after a number. The producer belongs to the trusted zone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from string import Template
from typing import NamedTuple

import numpy as np
from aiokafka import AIOKafkaProducer
from numpy.typing import NDArray

from stream_svt.kafka.partitioning import Partitioning
from stream_svt.queries.counts import set_id

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
WINDOW_LINES = 4_900
"""Lines of a window: a third of a week."""
WINDOW_MS, LATENESS_MS = 3_000, 3_000
"""Length of a window, and how long after its end it takes events."""
DIGITS = 5
"""Width that every count is padded to. A count is at most the lines of a week, which has five digits."""
BATCH = 4000
"""Records of a batch: at most 420 kB."""
SERIES = "item-%d"
ITEMS = tuple(SERIES % item for item in range(1, LAST_ITEM + 1))
UNIT = "basket"
"""The field of raw events that names the privacy unit."""

APPEND = "hot-items-append"
ADAPTIVE = "hot-items-adaptive"
MONITORS = (APPEND, ADAPTIVE)
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
    """A window, or a moment at which the running counts of all items are queried: the finite set ``set_id``.

    It adds the lines ``first`` to ``end - 1`` to the counts.
    """

    dataset: str
    set_id: str
    first: int
    end: int


def checkpoints(every: int = 0) -> Iterator[Checkpoint]:
    """Yield the checkpoints of all weeks in order of time; the last one of a week is at its end."""
    for dataset, start in zip(LIMITS, range(0, LINES, WEEK_LINES), strict=True):
        stop = min(start + WEEK_LINES, LINES)
        for first in range(start, stop, every or EVERY):
            end = min(first + (every or EVERY), stop)
            yield Checkpoint(dataset, f"line-{end:05}", first, end)


def windows(baskets: Baskets, begin_ms: int) -> Iterator[tuple[Checkpoint, NDArray[np.int64]]]:
    """Yield the windows that play all weeks, the first one from a moment on, with their counts (private)."""
    for point in checkpoints(WINDOW_LINES):
        named = point._replace(set_id=set_id(sold_ms(point.first, begin_ms), "units"))
        yield named, counts_of(baskets, point)


def sold_ms(line: int, begin_ms: int, window_ms: int = WINDOW_MS) -> int:
    """Return the time of the events of a line. The first window begins at a moment, and a week is whole windows."""
    return begin_ms + line * window_ms // WINDOW_LINES


def lines_sold(until_ms: int, begin_ms: int, window_ms: int = WINDOW_MS) -> int:
    """Return the number of lines whose events are due at a moment."""
    return max(until_ms - begin_ms, 0) * WINDOW_LINES // window_ms


def counts_of(baskets: Baskets, point: Checkpoint) -> NDArray[np.int64]:
    """Return how many of a checkpoint's lines contain each of the items 1 to `LAST_ITEM` (private)."""
    sold = baskets.items[baskets.start[point.first] : baskets.start[point.end]]
    return np.bincount(sold, minlength=LAST_ITEM + 1)[1:]


def running_counts(baskets: Baskets) -> Iterator[tuple[Checkpoint, NDArray[np.int64]]]:
    """Yield each checkpoint with the counts of items 1 to `LAST_ITEM` since its week began (private)."""
    counts = np.zeros(LAST_ITEM, dtype=np.int64)
    for point in checkpoints():
        if point.first % WEEK_LINES == 0:
            counts[:] = 0
        counts += counts_of(baskets, point)
        yield point, counts.copy()


def records_of(point: Checkpoint, counts: NDArray[np.int64]) -> list[bytes]:
    """Return the queries of one checkpoint, then the marker that closes their set."""
    name = point.set_id
    records = [
        f'{{"id":"{name}/{item}","series":"{SERIES % item}","set":"{name}","value":{count:<{DIGITS}}}}'
        for item, count in enumerate(counts.tolist(), 1)
    ]
    return [record.encode("ascii") for record in [*records, json.dumps({"set": name, "closed": True})]]


def events_of(
    baskets: Baskets, first: int, end: int, begin_ms: int, window_ms: int = WINDOW_MS
) -> list[bytes]:
    """Return the events of the lines ``first`` to ``end - 1``, where the first window begins at a moment."""
    events = []
    for line in range(first, end):
        rest = f'"week":{line // WEEK_LINES + 1},"ts":{sold_ms(line, begin_ms, window_ms)}}}'
        items = baskets.items[baskets.start[line] : baskets.start[line + 1]].tolist()
        events += [f'{{"basket":{line},"item":"{SERIES % item}",{rest}'.encode() for item in items]
    return events


async def send(
    client: AIOKafkaProducer, topic: str, partition: int, key: bytes | None, records: Sequence[bytes]
) -> None:
    """Store records with one key on a partition."""
    stored = []
    # Batches are built here: a call of the client's `send` for each record would take most of the time.
    for start in range(0, len(records), BATCH):
        batch = client.create_batch()
        for record in records[start : start + BATCH]:
            batch.append(timestamp=None, key=key, value=record)
        batch.close()
        stored.append(await client.send_batch(batch, topic, partition=partition))
    await asyncio.gather(*stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoInput:
    """What the demo sends, with its privacy unit, and two parts of the configuration.

    An item counts as hot from ``threshold`` sales on. A checkpoint has ``asked`` queries; a window asks all weeks.
    """

    unit: str
    threshold: int
    asked: int
    about: str
    keys: str


QUERIES = DemoInput(
    unit="one basket (its line stays)",
    threshold=400,
    asked=LAST_ITEM,
    about="""\
# Queries: every 300 lines of the till's journal (the line number is the public clock), for each item of
# the public price list, the number of baskets of this week that contain it. Neighbours: the basket of one
# line is emptied, the line stays. So a basket changes the answers of one week only, each by at most 1, all
# in the same direction. The topics $application.alerts, .state, .rejects, .control and .config and the
# budgets belong to this application alone.""",
    keys="""\
    topic: $application.counts
    datasets: ["retail-week-*"]
    sensitivity: 1
    monotonic: true
    bounds: [0, 14700]""",
)
EVENTS = DemoInput(
    unit="all events of one basket",
    threshold=200,
    asked=LAST_ITEM * len(LIMITS),
    about=f"""\
# Raw events: {{"basket": 17, "item": "item-39", "week": 1, "ts": 1795694400000}}, one for each item of a
# basket. A counter counts the different baskets of each item in each window. A window takes {WINDOW_MS // 1000} seconds
# and plays a third of a week. The privacy unit is a basket: all its events have the same week, and raise
# each count of that week's dataset by 0 or 1. The budgets, and the topics $application.* but that of the
# raw events, belong to this application alone.
sources:
  - name: baskets
    topic: $application.events
    unit: {UNIT}
    series: {{field: item, file: "$items_file"}} # the public price list: seq -f item-%g {LAST_ITEM}
    dataset: {{pattern: "retail-week-{{name}}", field: week, names: [1, 2, 3, 4, 5, 6]}}
    time: {{field: ts, in: ms}}
    window: {WINDOW_MS // 1000}s # every window asks all weeks: {LAST_ITEM} items of each, zeros included
    lateness: {LATENESS_MS // 1000}s
    ahead: 10s
    every: 1s
    settle: 1s # one broker: no others to wait for""",
    keys="    source: baskets",
)
_COMMON = """\
$keys
    epsilon: 0.8 # of one whole run: its threshold and all its alerts
    cutoff: 6 # alerts of a run; then the run halts, and the next one starts if the budget pays for it
    threshold: $threshold
    max_runs: off # the six weeks pass within minutes here
    mute: period # an item that was reported is muted for the rest of its week
    beta: 0.1 # an alert's bound holds with 90 %
"""
_TEMPLATE = Template(
    """\
# Differentially private monitoring of a shop's best sellers.
application: $application
kafka: {bootstrap_servers: "$bootstrap"}
topics: {partitions: $partitions}
sealing: {keys: ["$key_file"]} # 32 random bytes as hex: openssl rand -hex 32
web: {port: $port}
commit: {interval: 500ms}
$about
datasets: # the rest of the second week's budget was given to a study
$datasets
monitors:
  # Each checkpoint or window is one finite set. Its items are tested at the highest bar as they arrive; when
  # it is closed, bottoms are tested again (APPEND), many times, while the bar falls from 12 to 4 noise scales.
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
    expected_queries: 807030 # no week has more
""".replace("COMMON\n", _COMMON)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where one demo runs; the names of its topics, group and transactional ids begin with ``application``."""

    application: str = "retail-demo"
    bootstrap: str = "127.0.0.1:9092"
    key_file: Path = Path("sealing.key")
    items_file: Path = Path("items.txt")
    port: int = 6066
    partitions: int = 4
    form: DemoInput = EVENTS

    @property
    def partitioning(self) -> Partitioning:
        """The shards of datasets."""
        return Partitioning(self.partitions, "murmur2")

    def topic(self, name: str) -> str:
        """Return the full name of a topic, such as alerts."""
        return f"{self.application}.{name}"

    def yaml(self) -> str:
        """Return the configuration file of the service, as ``--show-config`` prints it."""
        unit = f"unit: {self.form.unit}, " if self.form is QUERIES else ""  # of raw events it follows
        datasets = [
            f"  - {{name: {name}, {unit}limit: {{epsilon: {limit}}}}}" for name, limit in LIMITS.items()
        ]
        text = _TEMPLATE.safe_substitute(asdict(self.form), datasets="\n".join(datasets))
        return Template(text).substitute(asdict(self))
