"""Random pairs of neighbouring streams, with commits, crashes, commands and changes of the specification.

A topic's records have one row each, or up to hundreds, like columnar records, which have one offset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, groupby
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import numpy as np

from stream_svt.columns.query_batch import DECILES, NO_TEXTS, OF_DECILES, DecilesRequest, QueryBatch
from stream_svt.columns.strings import TextCodes, TextList, TextParts, Texts
from stream_svt.mechanisms.contract import Neighbours
from stream_svt.mechanisms.grid import PARTS, WHOLE_LIMIT
from stream_svt.mechanisms.numbers import UNITS_PER_EPSILON
from stream_svt.monitor.deciles import most_moved
from stream_svt.monitor.operations import TO_MONITORS, Action, Command
from stream_svt.monitor.state.accounts import BOUNDS, Bounds
from stream_svt.privacy.loss import as_text
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.fields import Retry, Sweep
from stream_svt.settings.monitors import MonitorSpec, rows_asked

_T = TypeVar("_T")

DATASETS = 3
"""Largest number of datasets in a case; further datasets of a shard differ by number only."""

_QUERIES = (20, 220)
_COLUMNAR_QUERIES = (300, 900)
_COLUMNAR = 0.25
"""Share of topics with records of several rows."""
_FEW, _MANY = (2, 12), (256, 400)
"""Rows of short and of long columnar records: the latter are tested by themselves, by all monitors in turn."""
_SERIES = 7
_REQUESTED = 0.05
"""Share of requests for deciles among short records of a topic of counts; four times as many are among long ones."""
_AT_ONCE = 70
"""Rows of a topic, on average, that are read at once at most; but at least one record is."""
_FAR = Fraction(10) ** 12
_CLOCK_STEPS = (0, 0, 5, 20, -30, 60, 400, 3000)
_SMALL_BOUNDS = Bounds(runs=2, records=4, rejects=3, cost=300)
"""Steps end within long records."""
ACTIONS = (
    Action.PAUSE,
    Action.CLOSE,
    Action.MUTE,
    Action.UNMUTE,
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


@dataclass(frozen=True, slots=True)
class QueryRecord:
    """Rows of one dataset and timestamp; ``coded``: whether their series are entries of a dictionary.

    ``measure`` is what they count; empty on query topics. A ``request`` has deciles.
    """

    rows: tuple[Row, ...]
    coded: bool = False
    measure: str = ""
    request: DecilesRequest | None = None


Stream = Mapping[str, Sequence[QueryRecord]]
"""Records by topic."""


Decode: TypeAlias = Callable[[str, Sequence[QueryRecord], int], QueryBatch]
"""Returns records of a topic as a batch that starts at an offset. The same function serves both streams."""


@dataclass(frozen=True, slots=True)
class StepTo:
    """Step through a topic up to an offset."""

    topic: str
    last: int


ScriptStep = StepTo | Command | ApplicationSpec | Literal["commit", "crash"]
"""A command, and another specification, come between two commits."""


@dataclass(frozen=True, slots=True)
class Case:
    """A pair of neighbouring streams whose records depend on released events.

    Attributes:
        spec: The first specification.
        script: Steps, the same on both streams.
        first, second: Two possible records for each offset of a topic, on the first stream and on its neighbour. The
            events released before a record is written decide which of the two it is.
        directions: How the answers of each dataset move from the first stream to the second.
        bounds: Limits of a step and a commit.
    """

    spec: ApplicationSpec
    script: tuple[ScriptStep, ...]
    first: tuple[Stream, Stream]
    second: tuple[Stream, Stream]
    directions: tuple[Neighbours, ...]
    bounds: Bounds = BOUNDS


def batch_of(topic: str, rows: Sequence[Row], first: int) -> QueryBatch:
    """Return rows of a topic, each a record, as a batch that starts at offset `first`."""
    last = first + len(rows)
    series, sets = [row.series for row in rows], [row.set_id for row in rows]
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
        series=TextList(series) if any(series) else NO_TEXTS,
        set_id=sets if any(sets) else None,
        threshold={k: Fraction(row.threshold) for k, row in enumerate(rows) if row.threshold is not None},
        monitor={k: row.monitor for k, row in enumerate(rows) if row.monitor is not None},
        markers={k: row.set_id or "" for k, row in enumerate(rows) if row.closes},
        query_id=TextList([f"q{first + k}" for k in range(len(rows))]),
    )


def batch_of_records(topic: str, records: Sequence[QueryRecord], first: int) -> QueryBatch:
    """Return records of a topic as a batch that starts at offset `first`, as the worker decodes them.

    The rows of a record share its id.
    """
    batch = batch_of(topic, [*chain.from_iterable(record.rows for record in records)], first)
    counts = [len(record.rows) for record in records]
    batch.end = first + len(records)
    batch.offset = np.repeat(np.arange(first, batch.end, dtype=np.int64), counts)
    batch.row = np.concatenate([np.arange(count, dtype=np.int64) for count in counts])
    batch.query_id = TextList([f"q{offset}" for offset in batch.offset.tolist()])
    batch.measures = tuple(sorted({record.measure for record in records}))
    if any(batch.measures):
        of_records = [batch.measures.index(record.measure) for record in records]
        batch.measure = np.repeat(np.array(of_records), counts)
    begins = np.cumsum([0, *counts]).tolist()
    batch.requests = {
        begin: one.request for begin, one in zip(begins, records, strict=False) if one.request is not None
    }
    if any(record.coded for record in records):
        parts = [_series(coded, [*group]) for coded, group in groupby(records, lambda record: record.coded)]
        batch.series = TextParts([*chain.from_iterable(parts)])
    return batch


def _series(coded: bool, records: Sequence[QueryRecord]) -> Sequence[Texts]:
    """Return the series of records, together as a list or each as codes of its dictionary, which repeats entries."""
    series = [[row.series for row in record.rows] for record in records]
    if not coded:
        return [TextList([*chain.from_iterable(series)])]
    found = []
    for names in series:
        entries = sorted({name for name in names if name is not None})
        code = {name: number for number, name in enumerate(entries)}
        codes = [-1 if name is None else code[name] + row % 2 * len(code) for row, name in enumerate(names)]
        found.append(TextCodes(TextList(entries * 2), np.array(codes, dtype=np.int64)))
    return found


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
        distances.append(int(min((monitor.sensitivity for monitor in monitors), default=Fraction(0)) * PARTS))
    asked, moved_by = dict[str, tuple[int, int]](), dict[str, tuple[int, int]]()
    for known in every:
        for monitor in (one for one in known.monitors if one.source is not None):
            step = int(monitor.granularity * PARTS)
            down, up = moves_of(known, monitor)
            if monitor.asks:
                asked[monitor.tested or ""] = moved_by[monitor.name] = down * step, up * step
            elif monitor.measure is not None:  # answers that are passed on have none
                moved_by[monitor.name] = 0, most_moved(monitor, known.source(monitor.source or "")) * step
    topics = sorted({topic for known in every for topic in known.topics()})

    def neighbour(stream: Stream) -> Stream:
        return {
            topic: [
                replace(
                    record,
                    rows=tuple(
                        _moved(
                            row,
                            directions[row.dataset],
                            moved_by[record.request.monitor]
                            if record.request
                            else asked.get(record.measure, (0, distances[row.dataset])),
                            rng,
                        )
                        for row in record.rows
                    ),
                )
                for record in records
            ]
            for topic, records in stream.items()
        }

    stream, drawn = ({topic: _records(topic, every, rng) for topic in topics} for _ in range(2))
    instead = {
        topic: [*drawn[topic][: len(records)], *records[len(drawn[topic]) :]]
        for topic, records in stream.items()
    }
    bounds = _SMALL_BOUNDS if rng.random() < 0.2 else BOUNDS
    first, second = (stream, instead), (neighbour(stream), neighbour(instead))
    return Case(spec, _script(spec, later, stream, rng), first, second, tuple(directions), bounds)


def _records(topic: str, specs: Sequence[ApplicationSpec], rng: RandomSource) -> list[QueryRecord]:
    datasets = specs[0].datasets
    monitors = [monitor for spec in specs for monitor in spec.monitors if monitor.topic == topic]
    clock = rng.choice(
        [one.terms.from_ms for one in datasets if one.terms.from_ms is not None] or [1_000_000]
    )
    pauses = [*_CLOCK_STEPS, *(m.resample_every // 5 for m in monitors if m.resample_every is not None)]
    has_layout = monitors[0].record is not None  # then a record is one query without options
    sources = [one for one in specs[0].sources if one.counts_topic(specs[0].application) == topic]
    measures = [name for source in sources for name in source.measure_names]
    asked = dict.fromkeys(rows_asked(monitors))
    measures += asked
    is_counts = any(measures)  # answers that are passed on have none
    columnar = (rng.random() < _COLUMNAR and not has_layout) or bool(measures)
    options, series, sets = (rng.choice((often, often, 0.0)) for often in (0.05, 0.9, 0.9))
    options *= not has_layout
    values = [_Values.of(monitor) for monitor in monitors]
    writer = _Writer(values, options, series, sets, rng)
    records: list[QueryRecord] = []
    rows = rng.randrange(*(_COLUMNAR_QUERIES if columnar else _QUERIES))
    while writer.written < rows:
        if is_counts and rng.random() < (_REQUESTED if asked else 4 * _REQUESTED):
            # At a tick that was counted.
            head = Row(rng.randrange(0, len(datasets)), None, time_ms=max(clock, 0))
            records.append(_request(head, len(records), rng.choice(values), rng))
            continue
        clock += rng.choice(pauses)
        longest = _FEW if asked else _MANY  # so that many records follow each other
        size = rng.choice((1, 1, rng.randrange(*_FEW), rng.randrange(*longest))) if columnar else 1
        head = Row(rng.randrange(0, len(datasets)), None, time_ms=max(clock, 0))
        measure = rng.choice(measures) if measures else ""
        writer.monitors = [one for one in values if one.monitor.tested in (None, measure)] or values
        of_record = tuple(writer.row(head, many=size >= _MANY[0]) for _ in range(size))
        if measures:  # counts have no options
            of_record = tuple(replace(row, threshold=None, monitor=None) for row in of_record)
        records.append(QueryRecord(of_record, columnar and rng.random() < 0.6, measure))
    return records


def _request(head: Row, number: int, values: _Values, rng: RandomSource) -> QueryRecord:
    """Return a request for deciles of what a monitor tests; some are dearer than what is left."""
    monitor = values.monitor
    drawn = [values.value(monitor.threshold, rng, many=False) or 0 for _ in range(DECILES)]
    epsilon = rng.choice((1, 5, 20, 10**6)) * UNITS_PER_EPSILON // 100
    request = DecilesRequest(
        f"r{number}", monitor.name, monitor.tested or "", epsilon, 0, head.time_ms, DECILES
    )
    return QueryRecord(tuple(replace(head, value=one) for one in drawn), measure=OF_DECILES, request=request)


@dataclass(slots=True)
class _Writer:
    """Writes the rows of a topic; ``options``, ``series`` and ``sets``: shares of the rows that have one."""

    monitors: Sequence[_Values]
    options: float
    series: float
    sets: float
    rng: RandomSource
    written: int = 0

    def row(self, head: Row, *, many: bool) -> Row:
        """Return the next row of a record, which has its dataset and timestamp."""
        rng, number = self.rng, self.written
        self.written += 1
        set_id = f"set{number // 40 - (number >= 40 and rng.random() < 0.1)}"
        if rng.random() < 0.8 * self.options:
            return replace(head, set_id=set_id, closes=True)
        values, threshold = rng.choice(self.monitors), None
        monitor = values.monitor
        if rng.random() < self.options:
            threshold = monitor.threshold + rng.randrange(-4, 5) * monitor.granularity / 2
        return replace(
            head,
            value=values.value(threshold or monitor.threshold, rng, many=many),
            series=f"s{rng.randrange(0, _SERIES)}" if rng.random() < self.series else None,
            set_id=set_id if rng.random() < self.sets else None,
            threshold=threshold,
            monitor=monitor.name if rng.random() < self.options else None,
        )


@dataclass(frozen=True, slots=True)
class _Values:
    """Random values of a monitor; ``scale`` and ``correction`` in real units."""

    monitor: MonitorSpec
    scale: Fraction
    correction: Fraction

    @classmethod
    def of(cls, monitor: MonitorSpec) -> _Values:
        """Return the values of a monitor, in terms of its last branch."""
        branch = monitor.mechanism().branches[-1]
        return cls(monitor, monitor.granularity / branch.rate, branch.corrections[0] * monitor.granularity)

    def value(self, threshold: Fraction, rng: RandomSource, *, many: bool) -> int | None:
        """Return a value: most near the bar, some at or below zero, some beyond the bounds, some None (not a number).

        Of ``many`` in one record, most are far below the bar.
        """
        monitor, scale, bar = self.monitor, self.scale, threshold + self.correction
        low, high = monitor.bounds
        spread = Fraction(rng.randrange(-1000, 1001), 1000)
        kinds: list[tuple[int, Callable[[], Fraction | None]]] = [  # with their weights
            (40, lambda: bar + (4 * spread - 3) * scale),
            (5, lambda: bar + (12 + 10 * spread) * scale),
            (5, lambda: bar - 3 * scale),
            (5, lambda: threshold),
            (15 + 800 * many, lambda: threshold - abs(spread) * 20 * scale),
            (5, lambda: Fraction(0)),
            (5, lambda: -abs(spread) * scale),
            (5, lambda: rng.choice((low, high)) + 2 * spread * monitor.sensitivity),
            (5, lambda: spread * _FAR * 10 ** rng.randrange(0, 12)),
            (7, lambda: low + (high - low) * (spread + 1) / 2),
            (3, lambda: None),
        ]
        weights, values = zip(*kinds, strict=True)
        real = rng.choices(values, weights)[0]()
        if real is None:
            return None
        step = monitor.granularity / rng.choice((1, 4))
        return int(real / step) * int(step * PARTS) if step * PARTS >= 1 else int(real * PARTS)


def moves_of(spec: ApplicationSpec, monitor: MonitorSpec) -> tuple[int, int]:
    """Return by how many grid steps one unit moves the values of a monitor, at most: down, and up."""
    if monitor.source is None or not monitor.asks:
        return 0, monitor.grid_sensitivity
    return monitor.question(spec.source(monitor.source)).moves


def _moved(row: Row, direction: Neighbours, moves: tuple[int, int], rng: RandomSource) -> Row:
    """Return the query on the neighbour: moved as far as it may be (half of the queries) or less."""
    if row.value is None:
        return row
    down, up = moves
    (distance,) = rng.choices((up, -down, rng.randrange(-down, up + 1)), (5, 2, 3))
    sign = {Neighbours.UP: 1, Neighbours.DOWN: -1, Neighbours.MIXED: rng.choice((1, -1))}[direction]
    return replace(row, value=row.value + sign * distance)


def _script(
    spec: ApplicationSpec, later: Sequence[ApplicationSpec], stream: Stream, rng: RandomSource
) -> tuple[ScriptStep, ...]:
    script: list[ScriptStep] = []
    fed = dict.fromkeys(spec.topics(), 0)
    remaining = list(later)
    most = {
        topic: max(2, _AT_ONCE * len(records) // sum(len(record.rows) for record in records))
        for topic, records in stream.items()
    }
    while any(fed[topic] < len(stream[topic]) for topic in fed):
        topic = rng.choice(sorted(fed))
        fed[topic] = min(len(stream[topic]), fed[topic] + rng.randrange(1, most[topic] + 1))
        script.append(StepTo(topic, fed[topic]))
        kind = rng.random()
        if kind < 0.3:
            script.append("commit")
        elif kind < 0.5:
            # The engine reads the same records again before the next step, as after a takeover.
            script += ["crash", *(StepTo(read, last) for read, last in sorted(fed.items()))]
        elif kind < 0.65:
            now_ms = max(stream[read][last - 1].rows[0].time_ms for read, last in fed.items() if last)
            script.append(_command(spec, len(script), now_ms, rng))
        elif kind < 0.75 and remaining:
            script.append(remaining[0])
            fed |= {read: 0 for read in remaining.pop(0).topics() if read not in fed}
    return (*script, "commit")


def _command(spec: ApplicationSpec, number: int, now_ms: int, rng: RandomSource) -> Command:
    dataset, options = rng.choice(spec.datasets), dict[str, Any]()
    action = rng.choice(ACTIONS)
    end = max(now_ms + rng.choice(_CLOCK_STEPS), 1)
    if action is Action.PAUSE:
        options["until"] = rng.choice((0, end))
    if action in (Action.MUTE, Action.UNMUTE):
        options["series"] = f"s{rng.randrange(0, _SERIES)}"
    if action is Action.MUTE:
        options |= rng.choice(({"until": end}, {"until_word": "run"}, {"until_word": "period"}))
    if action is Action.RAISE_BUDGET:
        options["limit"] = as_text(
            dataset.terms.limit + dataset.terms.kind.units * (1 + number), dataset.terms.kind
        )
    named = rng.random() < 0.7 or action not in TO_MONITORS
    several = () if named else tuple(one.name for one in spec.datasets if rng.random() < 0.5)
    options |= {"datasets": several} if several else {"dataset": dataset.name}
    return Command(id=f"c{number}", action=action, **options)
