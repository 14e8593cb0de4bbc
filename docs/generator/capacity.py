"""The tables of capacity.md: what three applications need, computed from measured figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from docs.generator import costs, performance
from docs.generator.markdown import number, table
from stream_svt.settings.datasets import MAX_DATASETS
from stream_svt.settings.sections import CommitConfig

DAY: Final = 86_400
PEAK: Final = 4
"""The busiest minutes over the mean."""
BUSY: Final = 0.5
"""Share of a core that queries take at the peak: the rest catches up after a restart."""
TAKEOVER: Final = 10.0
"""Seconds that a takeover may last."""
MESSAGE: Final = 60
"""Bytes of a query."""
BATCH_OVERHEAD: Final = 40
"""Bytes of a record around key and value, and of its share of its batch."""
REPLICAS: Final = 3
SPARE: Final = 1.5
"""Memory limit over the memory in use, at least: garbage, fetched records, what an apply holds twice."""
SPARE_AT_PEAK: Final = 1.1
"""Memory limit over the peak of a restart, at least."""
COMPACTED_AFTER: Final = 2 * 3600
"""Seconds after which what is written to the state topic is compacted: one hour of lag, one until the cleaner ran."""


class Constant(NamedTuple):
    """A measured number with its unit and meaning."""

    value: float
    unit: str
    what: str


def constants() -> Mapping[str, Constant]:
    """Return all constants by name, measured as the data files of docs/ say."""
    found: dict[str, Constant] = {}
    figures = costs.measured()["figures"]
    for name, (unit, what) in _OF_COSTS.items():
        found[name] = Constant(figures[name], unit, what)
    for name, (figure, unit, what) in _OF_PERFORMANCE.items():
        found[name] = Constant(performance.value_of(figure), unit, what)
    return found


_OF_PERFORMANCE: Final = {
    "json": (
        "service.json_mqueries",
        "million/s",
        "JSON queries that a worker reads on one core, two monitors",
    ),
    "columnar": ("service.columnar_mrows", "million/s", "rows of columnar records, likewise"),
    "takeover": (
        "scale.restore_seconds_per_100k",
        "s",
        "takeover of 100,000 datasets with one open run each",
    ),
    "open_us": ("scale.open_us", "µs", "opening a run, with Kafka"),
    "restart": (
        "scale.restart_state_copies",
        "times the state",
        "further memory at the peak of a restart",
    ),
}
_OF_COSTS: Final = {
    "json_ns": ("ns", "a JSON query without Kafka"),
    "avro_ns": ("ns", "an Avro query without Kafka"),
    "monitor_ns": ("ns", "each further monitor, a query"),
    "alert_us": ("µs", "an alert"),
    "process_mib": ("MiB", "memory of a worker without its datasets"),
    "memory_name_bytes": ("bytes", "memory of a dataset in every other worker"),
    "memory_dataset_bytes": ("bytes", "memory of a dataset beside its runs, in the worker of its shard"),
    "memory_run_bytes": ("bytes", "memory of an open run: one a dataset and monitor"),
    "memory_waiting_bytes": ("bytes", "memory of a query that waits for a retry"),
    "state_dataset_bytes": ("bytes", "state of a dataset"),
    "state_run_bytes": ("bytes", "state of an open run"),
    "state_waiting_bytes": ("bytes", "state of a query that waits"),
    "commit_bytes": ("bytes", "written to the state topic by a commit, two monitors"),
    "commit_monitor_bytes": ("bytes", "more of them for each further monitor"),
    "alert_state_bytes": ("bytes", "more of them for an alert, two monitors"),
    "alert_bytes": ("bytes", "written to the alert topic by an alert"),
}


@dataclass(frozen=True)
class Size:
    """An application, and what it needs by the constants ``c``; ``datasets`` have one run open at each monitor."""

    name: str
    queries: float
    datasets: int
    monitors: int
    alerts: float
    c: Mapping[str, float]

    @cached_property
    def applications(self) -> int:
        """Applications that share the datasets: one declares at most `MAX_DATASETS`."""
        return math.ceil(self.datasets / MAX_DATASETS)

    @cached_property
    def peak(self) -> float:
        """Queries a second in the busiest minutes, of all applications."""
        return PEAK * self.queries / DAY

    def cores_of(self, nanoseconds: float) -> float:
        """Return the cores that the peak takes, of all applications, at so much processor time a query."""
        query = nanoseconds + self.c["monitor_ns"] * max(0, self.monitors - 2)
        return 1e-9 * self.peak * query + 1e-6 * self.c["alert_us"] * PEAK * self.alerts / DAY

    @cached_property
    def cores(self) -> float:
        """Cores to have for JSON."""
        return self.cores_of(1e3 / self.c["json"]) / BUSY

    @cached_property
    def state(self) -> float:
        """Bytes of the live state."""
        return self.datasets * (self.c["state_dataset_bytes"] + self.monitors * self.c["state_run_bytes"])

    @cached_property
    def takeover_of_all(self) -> float:
        """Seconds that taking over every shard would last, one after the other: in proportion to the state."""
        measured = 1e5 * (self.c["state_dataset_bytes"] + self.c["state_run_bytes"])
        return self.c["takeover"] * self.state / measured

    @cached_property
    def partitions(self) -> int:
        """Partitions of each application, a power of two: for the time of a takeover, and for the cores."""
        least = max(self.takeover_of_all / TAKEOVER, self.cores) / self.applications
        return int(2 ** math.ceil(math.log2(max(4.0, least))))

    @cached_property
    def workers(self) -> int:
        """Workers of each application: enough if one is missing, and at least two."""
        return min(self.partitions, math.ceil(self.cores / self.applications) + 1)

    @cached_property
    def memory(self) -> float:
        """Bytes of memory that a worker uses while another one is missing."""
        c, datasets = self.c, self.datasets / self.applications
        names = c["memory_name_bytes"]
        held = self.own * (c["memory_dataset_bytes"] - names + self.monitors * c["memory_run_bytes"])
        return c["process_mib"] * 2**20 + datasets * names + held

    @cached_property
    def own(self) -> float:
        """Datasets of a worker while another one is missing."""
        return self.datasets / self.applications / max(1, self.workers - 1)

    @cached_property
    def peak_memory(self) -> float:
        """Bytes of memory of a worker at the peak of a restart that gives it all of these: it reads their state."""
        return self.memory + self.c["restart"] * self.state * self.own / self.datasets

    @cached_property
    def memory_limit(self) -> float:
        """Bytes of memory to give to a worker."""
        return max(SPARE * self.memory, SPARE_AT_PEAK * self.peak_memory)

    @cached_property
    def takeover(self) -> float:
        """Seconds in which a worker's shards are taken over by the others, one after the other at each."""
        return self.takeover_of_all / self.applications / self.workers / max(1, self.workers - 1)

    @cached_property
    def opening(self) -> float:
        """Seconds until every run has opened for the first time, all workers at work."""
        runs = self.datasets * self.monitors
        return runs * 1e-6 * self.c["open_us"] / (self.applications * self.workers)

    @cached_property
    def transactions(self) -> float:
        """Transactions a second at the peak: a commit each interval and shard, and two for an alert."""
        shards = self.applications * self.partitions
        regular = min(shards * 1000 / CommitConfig().interval, self.peak)
        return regular + 2 * PEAK * self.alerts / DAY

    @cached_property
    def state_rate(self) -> float:
        """Bytes a second written to the state topics at the peak; an alert writes all runs of its dataset."""
        c, more = self.c, self.monitors - 2
        commits = self.transactions * (c["commit_bytes"] + more * c["commit_monitor_bytes"])
        return commits + PEAK * self.alerts / DAY * (c["alert_state_bytes"] + more * c["state_run_bytes"])

    @cached_property
    def disk(self) -> float:
        """Bytes of the state topics on the brokers' disks."""
        return REPLICAS * (self.state + COMPACTED_AFTER * self.state_rate / PEAK)


_SIZES: Final = {
    "small": (1e7, 100, 2, 1e3),
    "many datasets": (1e9, 10**7, 2, 1e5),
    "many monitors": (1e8, 10**5, 40, 1e4),
}


def sizes(known: Mapping[str, Constant] | None = None) -> list[Size]:
    """Return the three applications of the page."""
    values = {name: constant.value for name, constant in (known or constants()).items()}
    return [Size(name, *size, values) for name, size in _SIZES.items()]


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{number(count / size)} {unit}"
    return f"{count:.0f} bytes"


def _cores(size: Size) -> str:
    c = size.c
    kinds = 1e3 / c["json"], 1e3 / c["json"] + c["avro_ns"] - c["json_ns"], 1e3 / c["columnar"]
    return ", ".join(_least(size.cores_of(kind), 0.01) for kind in kinds)


def _seconds(count: float) -> str:
    return f"{_least(count, 1)} s"


def _least(value: float, least: float) -> str:
    return f"under {least:g}" if value < least else f"{float(f'{value:.2g}'):g}"


_ROWS: Final[Mapping[str, Callable[[Size], str]]] = {
    "queries a day": lambda size: f"{size.queries:,.0f}",
    "datasets x monitors": lambda size: f"{size.datasets:,} x {size.monitors}",
    "alerts a day": lambda size: f"{size.alerts:,.0f}",
    "queries a second, mean and peak": lambda size: (
        f"{number(round(size.peak / PEAK))}, {number(round(size.peak))}"
    ),
    "**applications**": lambda size: str(size.applications),
    "**partitions** of each": lambda size: str(size.partitions),
    "**workers** of each, one core each": lambda size: str(size.workers),
    "cores busy at the peak, in all: JSON, Avro, columnar": _cores,
    "**memory limit** of a worker": lambda size: _bytes(size.memory_limit),
    "memory of a worker: in use, at the peak of a restart": lambda size: (
        f"{_bytes(size.memory)}, {_bytes(size.peak_memory)}"
    ),
    "state, live": lambda size: _bytes(size.state),
    "state on disks, three replicas": lambda size: _bytes(size.disk),
    "queries into the brokers, a second": lambda size: _bytes(size.peak * (MESSAGE + BATCH_OVERHEAD)),
    "transactions a second": lambda size: number(size.transactions),
    "state written, a second": lambda size: _bytes(size.state_rate),
    "alerts of a year on disks": lambda size: _bytes(REPLICAS * 365 * size.alerts * size.c["alert_bytes"]),
    "takeover of a dead worker's shards, after 6 s": lambda size: _seconds(size.takeover),
    "first opening of every run": lambda size: _seconds(size.opening),
}


def _worked() -> str:
    three = sizes()
    rows = [[head, *(show(size) for size in three)] for head, show in _ROWS.items()]
    return table(["", *(size.name for size in three)], rows)


def _constants() -> str:
    known = constants().values()
    return "\n".join(f"- {one.what}: {number(one.value)} {one.unit}" for one in known)


BLOCKS: Final = {"worked": _worked, "constants": _constants}
