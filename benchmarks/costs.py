"""Processor time a query against datasets, monitors, waiting queries, batch size, message size and tops.

One shard in this process does all that a worker does with queries but talk to Kafka: decode, test, prepare and seal
commits, encode events. One size varies, the others stay at the base point: 1,000 datasets with open runs, two
monitors (SVT with exponential noise, Adaptive SVT), JSON messages of 60 bytes, 20,000 queries a commit, one query in
10,000 a top of a series of its own. The points of an axis take turns; a figure is the median of its turns.

Besides: bytes of memory (`tracemalloc`) and of state (sealed records with keys) of a dataset, of a dataset and
monitor with an open run, and of a waiting query; other formats of messages. ``--draw`` writes all of it to
`docs/data/costs.json` and draws docs/pictures/costs.svg from it: a quarter of an hour.
"""

from __future__ import annotations

import gc
import inspect
import json
import platform
import random
import re
import statistics
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.command import say, show
from benchmarks.shard import TIME_MS, Shard, workload_of
from stream_svt.protocol.records import OneRecord
from stream_svt.settings.application import ApplicationSpec, load_spec

DATA: Final = Path(__file__).parent.parent / "docs" / "data" / "costs.json"
TOPIC: Final = "counts"
TOP, THRESHOLD, LOW = 1_000_000, 500_000, 100
SERIES: Final = 1000
ATTEMPTS: Final = 5
LARGEST_BATCH: Final = 20_000_000
"""Bytes of the messages of one batch at most: large messages come in smaller batches."""
MOST_BATCHES: Final = 200
HELD: Final = 10_000
"""Datasets, and waiting queries, whose bytes are counted."""
ROWS: Final = 10_000
"""Of a columnar record."""
MANY: Final = 10
"""Monitors of a shard whose memory, state and commits are compared with those of a shard with few."""
MECHANISMS: Final = ("svt", "adaptive")


@dataclass(frozen=True, slots=True)
class Point:
    """A shard and its queries; without arguments the base point.

    Attributes:
        waiting: Queries that wait for a retry, of all datasets, for each monitor; 0 for monitors without retries.
        batch: Queries a commit.
        message: Bytes of a JSON message.
        tops: Share of the queries that are tops.
        kind: json, fields (JSON with the section `record`), avro, or columnar: 10,000 rows a record.
    """

    datasets: int = 1_000
    monitors: int = 2
    waiting: int = 0
    batch: int = 20_000
    message: int = 60
    tops: float = 1e-4
    kind: str = "json"


BASE: Final = Point()
AXES: Final[Mapping[str, Sequence[float]]] = {
    "datasets": (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000),
    "monitors": (1, 2, 4, 10, 20, 40),
    "waiting": (100, 1_000, 10_000, 100_000),
    "batch": (1, 10, 100, 1_000, 20_000, 100_000),
    "message": (60, 100, 300, 1_000, 3_000, 10_000),
    "tops": (1e-5, 1e-4, 1e-3, 1e-2, 1e-1),
}
KINDS: Final = ("json", "fields", "avro", "columnar")
SCHEMA: Final = {
    "type": "record",
    "name": "Query",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "value", "type": "long"},
        {"name": "series", "type": "string"},
    ],
}


def point_at(axis: str, size: float) -> Point:
    """Return the base point with another size on one axis; waiting queries are those of one dataset."""
    more: dict[str, Any] = {axis: size, "datasets": 1} if axis == "waiting" else {axis: size}
    if axis == "message":
        more["batch"] = min(BASE.batch, LARGEST_BATCH // int(size))
    return replace(BASE, **more)


def specification(point: Point) -> ApplicationSpec:
    """Return the datasets and monitors of a point's shard."""
    common: dict[str, Any] = {
        "topic": TOPIC,
        "epsilon": 1000,
        "cutoff": 1000,
        "sensitivity": 1,
        "monotonic": True,
        "expected_queries": 10_000_000,
        "bounds": [0, TOP],
        "threshold": THRESHOLD,
        "max_runs": "off",
    }
    if point.waiting:
        places = point.waiting // point.datasets
        every = max(1, places // (ATTEMPTS - 1))
        retry = {"attempts": ATTEMPTS, "capacity": places, "every": every, "lifetime": 10 * point.waiting}
        common["append"] = {"retry": retry}
    if point.kind in {"fields", "avro"}:
        form = "avro" if point.kind == "avro" else "json"
        common["record"] = {"format": form, "value": "value", "id": "id", "series": "series"}
    monitors = [
        {"name": f"m{number}", "mechanism": MECHANISMS[number % 2], **common}
        for number in range(point.monitors)
    ]
    datasets = [{"file": "names", "limit": 1_000_000, "unit": "one row"}]
    text = json.dumps({"application": "costs", "datasets": datasets, "monitors": monitors})
    return load_spec(text, read_names=lambda _: [f"d{number}" for number in range(point.datasets)])


class Schemas:
    """The one schema of the Avro messages."""

    def get(self, number: int) -> str | None:
        """Return it."""
        return json.dumps(SCHEMA) if number == 1 else None

    def request(self, number: int) -> str:
        """Say that there is no other."""
        return f"there is no schema {number}"


Query = tuple[str, int, str]
"""Id, value and series."""
Encoder = Callable[[Sequence[Query], int], bytes]


class Side:
    """A point's shard, its runs open, and the queries that it gets."""

    def __init__(self, point: Point) -> None:
        self.point = point
        self._chance = random.Random(5)
        self._offset = self.queries = 0
        self._encode = ENCODERS[point.kind]()
        self.shard = Shard(specification(point), TOPIC, commit_records=point.batch, schemas=Schemas())
        self.opening = 0.0  # seconds of processor time
        for first in range(0, point.datasets, BASE.batch):
            last = min(first + BASE.batch, point.datasets)
            self.opening += self.shard.play([[self._record(dataset, 1) for dataset in range(first, last)]])
        for _ in range(0, 2 * point.waiting, point.batch):  # until as many wait as later on
            self.shard.play([self._batch()])

    def nanoseconds(self, queries: int) -> float:
        """Return the processor time a query over about so many queries."""
        most = min(queries, 3 * LARGEST_BATCH // self.point.message)
        before = self.queries
        made = [self._batch() for _ in range(min(max(1, most // self.point.batch), MOST_BATCHES))]
        gc.collect()
        return 1e9 * self.shard.play(made) / (self.queries - before)

    def _batch(self) -> list[OneRecord]:
        """Return the next queries, each of any dataset; rows of a columnar record are of the same one."""
        rows = ROWS if self.point.kind == "columnar" else 1
        datasets = self._chance.choices(range(self.point.datasets), k=max(1, self.point.batch // rows))
        return [self._record(dataset, rows) for dataset in datasets]

    def _record(self, dataset: int, rows: int) -> OneRecord:
        self._offset += 1
        content = self._encode([self._query() for _ in range(rows)], self.point.message)
        arrow = [("content-type", b"application/vnd.apache.arrow.stream")]
        headers = arrow if self.point.kind == "columnar" else ()
        return OneRecord(self._offset - 1, TIME_MS, b"d%d" % dataset, content, headers)

    def _query(self) -> Query:
        """Return the next query; tops, and queries that are to wait, are of a series of their own."""
        self.queries += 1
        is_top = self._chance.random() < self.point.tops
        value = TOP if is_top else self._chance.randrange(LOW)
        is_alone = is_top or self.point.waiting
        series = f"t{self.queries}" if is_alone else f"s{self._chance.randrange(SERIES)}"
        return f"q{self.queries}", value, series


def _json() -> Encoder:
    def encode(queries: Sequence[Query], size: int) -> bytes:
        [(query, value, series)] = queries
        start = f'{{"id":"{query}","value":{value},"series":"{series}"'
        note = size - len(start) - len(',"note":""}')
        return (start + (f',"note":"{"x" * note}"}}' if size > BASE.message else "}")).encode()

    return encode


def _avro() -> Encoder:
    from fastavro import parse_schema, schemaless_writer

    schema = parse_schema(SCHEMA)

    def encode(queries: Sequence[Query], size: int) -> bytes:
        del size
        [(query, value, series)] = queries
        out = BytesIO()
        schemaless_writer(out, schema, {"id": query, "value": value, "series": series})
        return b"\0" + (1).to_bytes(4, "big") + out.getvalue()

    return encode


def _columnar() -> Encoder:
    import pyarrow as pa

    def encode(queries: Sequence[Query], size: int) -> bytes:
        del size
        ids, values, series = (pa.array(column) for column in zip(*queries, strict=True))
        table = pa.table({"id": ids, "value": values, "series": series.dictionary_encode()})
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, table.schema) as writer:
            writer.write_table(table)
        return bytes(out.getvalue())

    return encode


ENCODERS: Final[Mapping[str, Callable[[], Encoder]]] = {
    "json": _json,
    "fields": _json,
    "avro": _avro,
    "columnar": _columnar,
}


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes that a shard holds: traced memory, without its log, and live state records."""

    memory: int
    state: int

    def over(self, other: Held, count: int) -> tuple[float, float]:
        """Return how much more memory and state this is, for each of ``count``."""
        return (self.memory - other.memory) / count, (self.state - other.state) / count


def held(point: Point) -> Held:
    """Return what a point's shard holds."""
    gc.collect()
    tracemalloc.start()
    try:
        side = Side(point)
        state = side.shard.store.state_bytes
        side.shard.store.sizes.clear()
        gc.collect()
        return Held(tracemalloc.get_traced_memory()[0], state)
    finally:
        tracemalloc.stop()


def bytes_held(count: int) -> dict[str, float]:
    """Return the bytes of a dataset without monitors, of an open run, and of a query that waits at a monitor."""
    few, twice, many = (
        held(replace(BASE, datasets=datasets, monitors=monitors))
        for datasets, monitors in ((count, 1), (2 * count, 1), (count, MANY))
    )
    each, run = twice.over(few, count), many.over(few, (MANY - 1) * count)
    waiting = [held(replace(BASE, datasets=1, waiting=much * count)) for much in (1, 2)]
    found = {
        "dataset": (each[0] - run[0], each[1] - run[1]),
        "run": run,
        "waiting": waiting[1].over(waiting[0], BASE.monitors * count),
    }
    return {
        f"{kind}_{name}_bytes": value
        for name, pair in found.items()
        for kind, value in zip(("memory", "state"), pair, strict=True)
    } | {"memory_name_bytes": name_bytes(count)}


def name_bytes(count: int) -> float:
    """Return the memory of a dataset's name and declaration, which every worker of the application holds."""
    found = []
    for much in (1, 2):
        gc.collect()
        tracemalloc.start()
        workload = workload_of(specification(replace(BASE, datasets=much * count)))
        gc.collect()
        found.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        del workload
    return (found[1] - found[0]) / count


def process_mib() -> float:
    """Return the most memory that a process with one small shard had resident: a worker's without its datasets."""
    program = (
        "import stream_svt.hosting.faust_app; from benchmarks.costs import Point, Side; "
        "Side(Point(datasets=1)).nanoseconds(20_000); print(open('/proc/self/status').read())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    [peak] = re.findall(r"VmHWM:\s+(\d+) kB", done.stdout)
    return int(peak) / 1024


def opening_us(count: int) -> float:
    """Return the processor time in which a run opens, its first query included."""
    point = replace(BASE, datasets=count)
    return 1e6 * Side(point).opening / count / point.monitors


def bytes_written(queries: int) -> dict[str, float]:
    """Return the bytes that a commit writes to the state topic, and an alert to the state and the alert topic."""
    points = {
        "quiet": replace(BASE, tops=0.0),
        "busy": replace(BASE, tops=0.05),
        "many": replace(BASE, tops=0.0, monitors=MANY),
    }
    found = {name: _written(Side(point), queries) for name, point in points.items()}
    quiet, busy, many = (found[name] for name in points)
    each = quiet.state / quiet.commits
    return {
        "commit_bytes": each,
        "commit_monitor_bytes": (many.state / many.commits - each) / (MANY - BASE.monitors),
        "alert_state_bytes": (busy.state - busy.commits * each) / busy.alerts,
        "alert_bytes": busy.published / busy.alerts,
    }


class Written(NamedTuple):
    """Transactions, bytes to the state topic, bytes to the alert topic, and alerts."""

    commits: int
    state: int
    published: int
    alerts: int


def _written(side: Side, queries: int) -> Written:
    """Return what is written over about so many queries, but at least a commit's."""
    before = _written_so_far(side)
    side.nanoseconds(max(queries, side.point.batch))
    return Written(*(now - then for now, then in zip(_written_so_far(side), before, strict=True)))


def _written_so_far(side: Side) -> Written:
    store = side.shard.store
    return Written(store.transactions, store.written, store.alert_bytes, side.shard.counts.alerts)


def costs_of(points: Mapping[Any, Point], queries: int, turns: int) -> dict[Any, float]:
    """Return nanoseconds a query of several points, which take turns."""
    sides = {name: Side(point) for name, point in points.items()}
    found: dict[Any, list[float]] = {name: [] for name in points}
    for turn in range(turns + 1):  # the first one warms up
        for name in sides if turn % 2 else reversed(sides):
            found[name].append(sides[name].nanoseconds(queries))
    for name, seen in found.items():
        say(f"{name}: " + " ".join(f"{one:.0f}" for one in sorted(seen[1:])))
    return {name: statistics.median(seen[1:]) for name, seen in found.items()}


def measure(
    datasets: int, queries: int, turns: int
) -> tuple[dict[str, dict[float, float]], dict[str, float]]:
    """Return the curves (nanoseconds a query by size, of each axis), and the figures derived from them."""
    curves = {}
    for axis, sizes in AXES.items():
        say(f"nanoseconds a query against {axis}:")
        curves[axis] = costs_of(
            {size: point_at(axis, size) for size in sizes if axis != "datasets" or size <= datasets},
            queries,
            turns,
        )
    say("nanoseconds a query of each kind of record:")
    kinds = costs_of({kind: replace(BASE, kind=kind) for kind in KINDS}, queries, turns)
    found = {f"{kind}_ns": cost for kind, cost in kinds.items()} | figures_of(curves)
    count = min(datasets, HELD)
    found |= bytes_held(count) | bytes_written(queries) | {"open_us": opening_us(count)}
    return curves, found | {"process_mib": process_mib()}


def figures_of(curves: Mapping[str, Mapping[float, float]]) -> dict[str, float]:
    """Return what the curves say in a number each: slopes, and the cost at the largest size over that at the base."""
    slopes = {axis: _slope(curve) for axis, curve in curves.items()}
    base, waiting = curves["datasets"][BASE.datasets], curves["waiting"]
    return {
        "most_datasets_vs_base": curves["datasets"][max(curves["datasets"])] / base,
        "most_waiting_vs_fewer": waiting[max(waiting)] / waiting[sorted(waiting)[-2]],
        "monitor_ns": slopes["monitors"],
        "retries_ns": (waiting[max(waiting)] - base) / BASE.monitors,
        "commit_us": (curves["batch"][1] - base) / 1000,
        "byte_ns": slopes["message"],
        "alert_us": slopes["tops"] / BASE.monitors / 1000,
    }


def _slope(curve: Mapping[float, float]) -> float:
    """Return the rise between the smallest and the largest size."""
    first, last = min(curve), max(curve)
    return (curve[last] - curve[first]) / (last - first)


def figures(
    datasets: int = 1_000_000, queries: int = 100_000, turns: int = 5, *, draw: bool = False
) -> dict[str, float]:
    """Return the figures; with ``draw``, write them with the curves to `docs/data/costs.json`, and make docs/ anew.

    ``datasets`` are the most that a shard has, ``queries`` those of a turn.
    """
    usual = inspect.signature(figures).parameters
    given = {"datasets": datasets, "queries": queries, "turns": turns}
    if draw and any(usual[name].default != size for name, size in given.items()):
        raise SystemExit("--draw needs the usual sizes: docs/data/costs.json is of these")
    curves, found = measure(datasets, queries, turns)
    if draw:
        from docs.generator.__main__ import main

        document = {
            "measured": datetime.now(UTC).date().isoformat(),
            "machine": machine(),
            "base": asdict(BASE),
            "curves": {
                axis: [[size, round(cost)] for size, cost in curve.items()] for axis, curve in curves.items()
            },
            "figures": {name: float(f"{value:.4g}") for name, value in found.items()},
        }
        DATA.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        main([])
    return found


def machine() -> str:
    """Return what the figures depend on besides the code."""
    model = re.search(
        r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE
    )
    return f"{model[1] if model else platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}"


if __name__ == "__main__":
    show(figures)
