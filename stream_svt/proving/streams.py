"""Random pairs of neighbouring streams, with commits, crashes, commands and changes of the specification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, Protocol, TypeVar

import numpy as np

from stream_svt.mechanisms.contract import Neighbours
from stream_svt.mechanisms.grid import PARTS, WHOLE_LIMIT
from stream_svt.monitor.batch import QueryBatch
from stream_svt.monitor.operations import Action, Command
from stream_svt.monitor.texts import TextList
from stream_svt.privacy.loss import as_text
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.fields import Retry, Sweep
from stream_svt.settings.monitors import MonitorSpec

_T = TypeVar("_T")

DATASETS = 3
"""Largest number of datasets in a case; further datasets of a shard differ by number only."""

_QUERIES = (20, 220)
_SERIES = 7
_FAR = Fraction(10) ** 12
_CLOCK_STEPS = (0, 0, 5, 20, -30, 60, 400, 3000)
ACTIONS = (
    Action.PAUSE,
    Action.CLOSE,
    Action.RAISE_BUDGET,
    Action.WITHDRAW,
    *[Action.RESUME, Action.RESAMPLE] * 2,
)


class RandomSource(Protocol):
    """A source of pseudo-random numbers, such as `random.Random`."""

    def random(self) -> float:
        """Return a number in [0, 1)."""

    def randrange(self, start: int, stop: int, /) -> int:
        """Return an integer in [start, stop)."""

    def choice(self, options: Sequence[_T], /) -> _T:
        """Return one of the options."""

    def choices(self, options: Sequence[_T], weights: Sequence[int], /) -> list[_T]:
        """Return a list of one of the options, chosen with these weights."""


@dataclass(frozen=True, slots=True)
class Row:
    """A query, or the marker that closes a set. ``value`` is in units of 10^-18, None for a value not a number."""

    dataset: int
    value: int | None
    series: str | None = None
    set_id: str | None = None
    closes: bool = False
    time_ms: int = 0
    threshold: Fraction | None = None
    monitor: str | None = None


Stream = Mapping[str, Sequence[Row]]
"""Rows by topic."""


@dataclass(frozen=True, slots=True)
class StepTo:
    """Step through a topic up to an offset."""

    topic: str
    last: int


ScriptStep = StepTo | Command | ApplicationSpec | Literal["commit", "crash"]
"""A command, and another specification, come between two commits."""


@dataclass(frozen=True, slots=True)
class Case:
    """A pair of neighbouring streams.

    Attributes:
        spec: The first specification.
        script: Steps, the same on both streams.
        directions: How the answers of each dataset move from the first stream to the second.
    """

    spec: ApplicationSpec
    script: tuple[ScriptStep, ...]
    first: Stream
    second: Stream
    directions: tuple[Neighbours, ...]


def batch_of(topic: str, rows: Sequence[Row], first: int) -> QueryBatch:
    """Return rows of a topic as a batch that starts at offset `first`."""
    last = first + len(rows)
    split = [(-WHOLE_LIMIT, 0) if row.value is None else divmod(row.value, PARTS) for row in rows]
    return QueryBatch(
        topic=topic,
        first=first,
        end=last,
        offset=np.arange(first, last, dtype=np.int64),
        row=np.zeros(len(rows), dtype=np.int64),
        timestamp_ms=np.array([row.time_ms for row in rows], dtype=np.int64),
        dataset=np.array([row.dataset for row in rows], dtype=np.int64),
        whole=np.array([min(max(whole, -WHOLE_LIMIT), WHOLE_LIMIT) for whole, _ in split], dtype=np.int64),
        fraction=np.array([fraction for _, fraction in split], dtype=np.int64),
        series=TextList([row.series for row in rows]),
        set_id=[row.set_id for row in rows],
        threshold={k: Fraction(row.threshold) for k, row in enumerate(rows) if row.threshold is not None},
        monitor={k: row.monitor for k, row in enumerate(rows) if row.monitor is not None},
        markers={k: row.set_id or "" for k, row in enumerate(rows) if row.closes},
        query_id=TextList([f"q{first + k}" for k in range(len(rows))]),
    )


def reduce_spec(spec: ApplicationSpec, rng: RandomSource) -> ApplicationSpec:
    """Return a specification with at most `DATASETS` datasets, and queues small enough for short streams to fill."""
    covered = [d for d in spec.datasets if any(monitor.covers(d.name) for monitor in spec.monitors)]
    chosen = [covered.pop(rng.randrange(0, len(covered))) for _ in range(min(DATASETS, len(covered)))]
    return replace(
        spec, datasets=tuple(chosen), monitors=tuple(_with_short_queues(monitor) for monitor in spec.monitors)
    )


def _with_short_queues(monitor: MonitorSpec) -> MonitorSpec:
    append = monitor.append
    if isinstance(append, Retry):
        short = {"every": min(append.every, 9), "capacity": min(append.capacity, 4)}
    elif isinstance(append, Sweep):
        short = {"max_set_size": min(append.max_set_size, 12), "max_open_sets": min(append.max_open_sets, 3)}
    else:
        return monitor
    return monitor.model_copy(update={"append": append.model_copy(update=short)})


def case_of(spec: ApplicationSpec, rng: RandomSource, later: Sequence[ApplicationSpec] = ()) -> Case:
    """Return a random case.

    Args:
        later: Specifications that may be applied in this order, none of them less cautious than an earlier one.
    """
    every = [spec, *later]
    directions, distances = [], []
    for dataset in spec.datasets:
        monitors = [m for known in every for m in known.monitors if m.covers(dataset.name)]
        free = not any(monitor.monotonic for monitor in monitors)
        directions.append(rng.choice([Neighbours.UP, Neighbours.DOWN] + [Neighbours.MIXED] * free))
        distances.append(min((monitor.sensitivity for monitor in monitors), default=Fraction(0)))
    first = {
        topic: _rows(topic, every, rng) for topic in sorted({t for known in every for t in known.topics()})
    }
    second = {
        topic: [_moved(row, directions[row.dataset], distances[row.dataset], rng) for row in rows]
        for topic, rows in first.items()
    }
    return Case(spec, _script(spec, later, first, rng), first, second, tuple(directions))


def _rows(topic: str, specs: Sequence[ApplicationSpec], rng: RandomSource) -> list[Row]:
    datasets = specs[0].datasets
    monitors = [monitor for spec in specs for monitor in spec.monitors if monitor.topic == topic]
    clock = rng.choice(
        [one.terms.from_ms for one in datasets if one.terms.from_ms is not None] or [1_000_000]
    )
    pauses = [*_CLOCK_STEPS, *(m.resample_every // 5 for m in monitors if m.resample_every is not None)]
    rows: list[Row] = []
    for number in range(rng.randrange(*_QUERIES)):
        clock += rng.choice(pauses)
        set_id = f"set{number // 40 - (number >= 40 and rng.random() < 0.1)}"
        dataset = rng.randrange(0, len(datasets))
        if rng.random() < 0.04:
            rows.append(Row(dataset, None, time_ms=max(clock, 0), set_id=set_id, closes=True))
            continue
        monitor, threshold = rng.choice(monitors), None
        if rng.random() < 0.05:
            threshold = monitor.threshold + rng.randrange(-4, 5) * monitor.granularity / 2
        rows.append(
            Row(
                dataset=dataset,
                time_ms=max(clock, 0),
                value=_value(monitor, threshold or monitor.threshold, rng),
                series=f"s{rng.randrange(0, _SERIES)}" if rng.random() < 0.9 else None,
                set_id=set_id if rng.random() < 0.9 else None,
                threshold=threshold,
                monitor=monitor.name if rng.random() < 0.05 else None,
            )
        )
    return rows


def _value(monitor: MonitorSpec, threshold: Fraction, rng: RandomSource) -> int | None:
    """Return a value: most near the bar, some at or below zero, some beyond the bounds, some None (not a number)."""
    branch = monitor.mechanism().branches[-1]
    scale = monitor.granularity / branch.rate
    bar = threshold + branch.corrections[0] * monitor.granularity
    low, high = monitor.bounds
    spread = Fraction(rng.randrange(-1000, 1001), 1000)
    kinds: list[tuple[int, Fraction | None]] = [  # with their weights
        (40, bar + (4 * spread - 3) * scale),
        (5, bar + (12 + 10 * spread) * scale),
        (5, bar - 3 * scale),
        (5, threshold),
        (15, threshold - abs(spread) * 20 * scale),
        (5, Fraction(0)),
        (5, -abs(spread) * scale),
        (5, rng.choice((low, high)) + 2 * spread * monitor.sensitivity),
        (5, spread * _FAR * 10 ** rng.randrange(0, 12)),
        (7, low + (high - low) * (spread + 1) / 2),
        (3, None),
    ]
    weights, values = zip(*kinds, strict=True)
    (real,) = rng.choices(values, weights)
    if real is None:
        return None
    step = monitor.granularity / rng.choice((1, 4))
    return int(real / step) * int(step * PARTS) if step * PARTS >= 1 else int(real * PARTS)


def _moved(row: Row, direction: Neighbours, sensitivity: Fraction, rng: RandomSource) -> Row:
    """Return the query on the neighbour: moved by the sensitivity (half of the queries) or less."""
    if row.value is None:
        return row
    limit = int(sensitivity * PARTS)
    (distance,) = rng.choices((limit, 0, rng.randrange(0, limit + 1)), (5, 2, 3))
    sign = {Neighbours.UP: 1, Neighbours.DOWN: -1, Neighbours.MIXED: rng.choice((1, -1))}[direction]
    return replace(row, value=row.value + sign * distance)


def _script(
    spec: ApplicationSpec, later: Sequence[ApplicationSpec], stream: Stream, rng: RandomSource
) -> tuple[ScriptStep, ...]:
    script: list[ScriptStep] = []
    fed = dict.fromkeys(spec.topics(), 0)
    remaining = list(later)
    while any(fed[topic] < len(stream[topic]) for topic in fed):
        topic = rng.choice(sorted(fed))
        fed[topic] = min(len(stream[topic]), fed[topic] + rng.randrange(1, 71))
        script.append(StepTo(topic, fed[topic]))
        kind = rng.random()
        if kind < 0.3:
            script.append("commit")
        elif kind < 0.5:
            # The engine reads the same records again before the next step, as after a takeover.
            script += ["crash", *(StepTo(read, last) for read, last in sorted(fed.items()))]
        elif kind < 0.65:
            script.append(_command(spec, len(script), rng))
        elif kind < 0.75 and remaining:
            script.append(remaining[0])
            fed |= {read: 0 for read in remaining.pop(0).topics() if read not in fed}
    return (*script, "commit")


def _command(spec: ApplicationSpec, number: int, rng: RandomSource) -> Command:
    dataset, limit = rng.choice(spec.datasets), ""
    action = rng.choice(ACTIONS)
    if action is Action.RAISE_BUDGET:
        limit = as_text(dataset.terms.limit + dataset.terms.kind.units * (1 + number), dataset.terms.kind)
    return Command(id=f"c{number}", action=action, dataset=dataset.name, limit=limit)
