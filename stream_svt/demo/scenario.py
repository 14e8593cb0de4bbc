"""The demo's scenario: a shop's baskets as raw events, and the configuration of the service.

The data are retail baskets that ship with the package, supplied by Tom Brijs: anonymised baskets of a Belgian retail
store, one a line. Line numbers are the public clock: when anything is sent, and its times, depend on them alone.

Raw events, one for each item of a basket, go to a counter. It counts the different baskets of each item in windows of
`WINDOW_MS`, each of which plays `WINDOW_LINES` lines. Privacy unit: all events of one basket. They have one week, in
whose dataset they count, and raise each count there by 0 or 1. The producer belongs to the trusted zone.
"""

from __future__ import annotations

import asyncio
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
WINDOW_LINES = 4_900
"""Lines of a window: a third of a week."""
WINDOW_MS, LATENESS_MS = 3_000, 3_000
"""Length of a window, and how long after its end it takes events."""
BATCH = 4000
"""Records of a batch: at most 420 kB."""
SERIES = "item-%d"
ITEMS = tuple(SERIES % item for item in range(1, LAST_ITEM + 1))
UNIT = "basket"
"""The field of raw events that names the privacy unit."""
THRESHOLD = 200
"""An item counts as hot from so many sales on."""

APPEND = "hot-items-append"
ADAPTIVE = "hot-items-adaptive"
MONITORS = (APPEND, ADAPTIVE)
LIMITS = {f"retail-week-{number}": "1.6" if number == 2 else "4" for number in range(1, 7)}
"""Epsilon for the baskets of each week. One week has less, so that the demo shows an exhausted budget."""
ASKED = LAST_ITEM * len(LIMITS)
"""Counts that a window asks: of all weeks."""


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


class Window(NamedTuple):
    """A window of a week, whose counts are the set ``set_id``; it plays the lines ``first`` to ``end - 1``."""

    dataset: str
    set_id: str
    first: int
    end: int


def windows(begin_ms: int, window_ms: int = WINDOW_MS) -> Iterator[Window]:
    """Yield the windows that play all weeks, in order of time, the first one from a moment on."""
    for dataset, start in zip(LIMITS, range(0, LINES, WEEK_LINES), strict=True):
        stop = min(start + WEEK_LINES, LINES)
        for first in range(start, stop, WINDOW_LINES):
            name = set_id(sold_ms(first, begin_ms, window_ms), "units")
            yield Window(dataset, name, first, min(first + WINDOW_LINES, stop))


def counts_of(baskets: Baskets, window: Window) -> NDArray[np.int64]:
    """Return how many of a window's lines contain each of the items 1 to `LAST_ITEM` (private)."""
    sold = baskets.items[baskets.start[window.first] : baskets.start[window.end]]
    return np.bincount(sold, minlength=LAST_ITEM + 1)[1:]


def sold_ms(line: int, begin_ms: int, window_ms: int = WINDOW_MS) -> int:
    """Return the time of the events of a line. The first window begins at a moment, and a week is whole windows."""
    return begin_ms + line * window_ms // WINDOW_LINES


def lines_sold(until_ms: int, begin_ms: int, window_ms: int = WINDOW_MS) -> int:
    """Return the number of lines whose events are due at a moment."""
    return max(until_ms - begin_ms, 0) * WINDOW_LINES // window_ms


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


_SOURCE = f"""\
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
    settle: 1s # one broker: no others to wait for
"""
_COMMON = f"""\
    source: baskets
    epsilon: 0.8 # of one whole run: its threshold and all its alerts
    cutoff: 6 # alerts of a run; then the run halts, and the next one starts if the budget pays for it
    threshold: {THRESHOLD}
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
SOURCE
datasets: # the rest of the second week's budget was given to a study
$datasets
monitors:
  # Each window is one finite set. Its items are tested at the highest bar as they arrive; when it is closed,
  # bottoms are tested again (APPEND), many times, while the bar falls from 12 to 4 noise scales.
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
""".replace("COMMON\n", _COMMON).replace("SOURCE\n", _SOURCE)
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

    @property
    def partitioning(self) -> Partitioning:
        """The shards of datasets."""
        return Partitioning(self.partitions, "murmur2")

    def topic(self, name: str) -> str:
        """Return the full name of a topic, such as alerts."""
        return f"{self.application}.{name}"

    def yaml(self) -> str:
        """Return the configuration file of the service, as ``--show-config`` prints it."""
        datasets = [f"  - {{name: {name}, limit: {{epsilon: {limit}}}}}" for name, limit in LIMITS.items()]
        return _TEMPLATE.substitute(asdict(self), datasets="\n".join(datasets))
