"""Batches of queries as arrays, and the grid that a monitor puts their values on: exact for every grid."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Annotated, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from stream_svt.columns.strings import TextList, Texts
from stream_svt.mechanisms.grid import GUARD, PARTS, VALUE_LIMIT, grid_ceil
from stream_svt.mechanisms.sampler import Packing
from stream_svt.settings.fields import LAST_MS

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
NO_ROWS: Integers = np.zeros(0, np.int64)
NO_ROWS.flags.writeable = False
NO_TEXTS: Texts = TextList(())
_ROWS_AT_ONCE = 1 << 14
"""Rows whose columns fit a processor's own cache."""
_MANY = 256
"""Rows of one record that are tested by themselves, by all monitors in turn."""


DECILES: Final = 9
"""Rows of a request for deciles."""
OF_DECILES: Final = " deciles"
"""Stands for the measure of such rows: no measure has a space."""


class DecilesRequest(msgspec.Struct, frozen=True, gc=False):
    """A request for the deciles of what a monitor tests, with noise: it comes with the true ones, the rows of a record.

    Attributes:
        id: Chosen by the requester: the noise depends on it.
        monitor: The monitor that tests the values.
        tested: What the values are (`MonitorSpec.tested`): another monitor of this name may test others.
        epsilon: The charge, in ledger units.
        from_ms, until_ms: The windows: begin of the first one, and end of the last one, in ms.
        values: Number of values: of each series and window.
    """

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    monitor: Annotated[str, msgspec.Meta(max_length=256)]
    tested: Annotated[str, msgspec.Meta(max_length=512)]
    epsilon: Annotated[int, msgspec.Meta(ge=1, le=2**62)]
    from_ms: Annotated[int, msgspec.Meta(ge=0, le=LAST_MS)]
    until_ms: Annotated[int, msgspec.Meta(ge=0, le=LAST_MS)]
    values: Annotated[int, msgspec.Meta(ge=1, le=2**62)]


@dataclass(repr=False)
class QueryBatch:
    """Consecutive, well-formed queries of one partition of one query topic, in offset order.

    Attributes:
        first, end: Offset of the first record and offset after the last one. Rejected records and transaction
            markers lie inside this range without a row.
        offset, row: Position of each query: record offset and row inside a columnar record (0 for JSON).
        whole, fraction: The floor of each row's value, clipped to +-2^62, and the rest of the value in units of 10^-18,
            rounded down. A value that is not a number is -2^62. ``fraction`` is None if all values are integers.
        series: Series of the rows, or no texts at all if no row names one.
        set_id: Sets of the rows, None if no row names one.
        threshold: Thresholds that replace the monitor's, by row index, in real units.
        monitor: The only monitor that a row is for, by row index.
        markers: Set that a marker row closes, by row index; such a row is not a query.
        rejects: (offset, reason) of the refused records inside the range.
        window, window_ms: On a topic of counts or answers, begin of the window that each row is about, in ms, and its
            length. None on query topics.
        measures, measure: On a topic of counts, the measures of its source and what stands for the monitors that ask
            questions (`MonitorSpec.tested`), and the number of the one of each row. None on query topics.
        requests: Requests for deciles, by the index of the first row of their record.
        shared: How many monitors put values on a grid, for those of several.
        packed: Packings that some of them have not had, and how many, by grid and rows.
    """

    topic: str
    first: int
    end: int
    offset: Integers = field(default_factory=lambda: NO_ROWS)
    row: Integers = field(default_factory=lambda: NO_ROWS)
    timestamp_ms: Integers = field(default_factory=lambda: NO_ROWS)
    dataset: Integers = field(default_factory=lambda: NO_ROWS)
    whole: Integers = field(default_factory=lambda: NO_ROWS)
    fraction: Integers | None = None
    series: Texts = field(default_factory=lambda: NO_TEXTS)
    set_id: list[str | None] | None = None
    threshold: dict[int, Fraction] = field(default_factory=dict)
    monitor: dict[int, str] = field(default_factory=dict)
    markers: dict[int, str] = field(default_factory=dict)
    query_id: Texts = field(default_factory=lambda: NO_TEXTS)
    rejects: list[tuple[int, str]] = field(default_factory=list)
    window: Integers | None = None
    window_ms: int = 0
    measures: tuple[str, ...] = ()
    measure: Integers | None = None
    requests: dict[int, DecilesRequest] = field(default_factory=dict)
    shared: Mapping[Grid, int] = field(default_factory=dict)
    packed: dict[tuple[Grid, int, int], tuple[Packing, int]] = field(default_factory=dict)
    _steps: dict[Grid, Integers] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        """Return the number of rows, markers included."""
        return len(self.offset)

    def index_of(self, offset: int, row: int) -> int:
        """Return the first row at or after a position."""
        if (offset, row) <= (self.first, 0):
            return 0
        start, end = np.searchsorted(self.offset, (offset, offset + 1)).tolist()
        return int(start + np.searchsorted(self.row[start:end], row))

    def measure_at(self, row: int) -> str | None:
        """Return the measure that a row counts; None on query topics."""
        return None if self.measure is None else self.measures[self.measure.item(row)]

    def of_one_measure(self, start: int, stop: int) -> int:
        """Return the row before which to stop, so that rows from ``start`` on count the same measure."""
        if self.measure is None or start == stop:
            return stop
        return first_of(self.measure[start:stop] != self.measure[start], start, stop)

    @cached_property
    def time_ms(self) -> Integers:
        """The timestamps as monitors take them: brokers store any 64 bits."""
        times = self.timestamp_ms
        if self.in_time_order and len(times) and times.item(0) >= -LAST_MS and times.item(-1) <= LAST_MS:
            return times
        return times.clip(-LAST_MS, LAST_MS)

    @property
    def nominal_ms(self) -> tuple[Integers, Integers]:
        """From when until before when the window of each row lasts; of a query topic, the moment of its timestamp."""
        begins = self.time_ms if self.window is None else self.window
        return begins, begins + max(self.window_ms, 1)

    @cached_property
    def has_rows(self) -> bool:
        """Whether some query is not the first row of its record."""
        return bool(np.count_nonzero(self.row))

    @cached_property
    def heads(self) -> Integers:
        """The first row of each record: all rows of a record have its dataset and timestamp."""
        begins = np.ones(len(self), dtype=np.bool_)
        np.not_equal(self.offset[1:], self.offset[:-1], out=begins[1:])
        return np.flatnonzero(begins)

    @cached_property
    def in_time_order(self) -> bool:
        """Whether no record has an earlier timestamp than the one before."""
        times = self.timestamp_ms
        return len(times) < 2 or not np.count_nonzero(times[1:] < times[:-1])

    def datasets(self, start: int, stop: int) -> Integers:
        """Return the datasets of the records with rows in [start, stop), which is not empty."""
        if self.offset[start] == self.offset[stop - 1]:
            return self.dataset[start : start + 1]
        if len(self.heads) == len(self):
            return self.dataset[start:stop]
        first, last = np.searchsorted(self.heads, (start + 1, stop)).tolist()
        return self.dataset.take(self.heads[first - 1 : last])

    def record_start(self, start: int, number: int) -> int:
        """Return the first row of a record, by its number among the records from row ``start``."""
        if not number:
            return start
        first = int(np.searchsorted(self.heads, start, side="right")) - 1
        return int(self.heads[first + number])

    @cached_property
    def _thresholds(self) -> tuple[Integers, Integers, list[Fraction]]:
        """Rows with their own threshold, in order, their codes, and the thresholds by code."""
        rows = sorted(self.threshold)
        limits = [self.threshold[row] for row in rows]
        codes = {
            key: code for code, key in enumerate(dict.fromkeys(map(id, limits)))
        }  # a decoder repeats objects
        entries = list({id(limit): limit for limit in limits}.values())
        return np.array(rows), np.array([codes[id(limit)] for limit in limits]), entries

    def thresholds(self, grid: Grid) -> tuple[Integers, Integers]:
        """Return the rows with their own threshold, in order, and these thresholds in steps of a grid."""
        rows, codes, limits = self._thresholds
        if grid not in self._steps:
            self._steps[grid] = np.array([*map(grid.threshold, limits)], dtype=np.int64)[codes]
        return rows, self._steps[grid]

    def common(self, column: Integers, start: int, stop: int) -> Integers | int:
        """Return a column of rows [start, stop), or the number that they share because they are of one record."""
        if start < stop and self.offset[start] == self.offset[stop - 1]:
            return column.item(start)
        return column[start:stop]

    def share(self, grids: Iterable[Grid]) -> None:
        """Note the grids, by monitor, on which monitors will put the values: many rows are packed once for each."""
        if len(self) >= _MANY and not self.shared:
            self.shared = {grid: count for grid, count in Counter(grids).items() if count > 1}

    def packing(self, grid: Grid, start: int, stop: int) -> Packing | None:
        """Return many rows [start, stop) of one record, packed for the monitors of a grid, or None if one has it.

        A packing is kept until each of them has had it, or the step ends: a monitor may skip these rows or cut others.
        """
        if stop - start < _MANY or not (readers := self.shared.get(grid, 0)):
            return None
        packing, left = self.packed.pop((grid, start, stop), (None, readers))
        if packing is None:
            row = self.row[start:stop] if self.has_rows else 0
            packing = Packing(int(self.offset[start]), row, grid.values(self, start, stop))
        if left > 1:
            self.packed[grid, start, stop] = packing, left - 1
        return packing

    def part(self, start: int, stop: int) -> int:
        """Return the row before which to stop, so that rows from ``start`` on fit a cache and, if many, one record."""
        end = min(stop, start + _ROWS_AT_ONCE)
        if end - start < _MANY:
            return end
        of_record = start + int(self.offset[start:end].searchsorted(self.offset[start], side="right"))
        return of_record if of_record - start >= _MANY else end


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """The grid of monitors: steps of ``granularity`` real units (a multiple of 10^-18), clamped to [low, high]."""

    granularity: Fraction
    low: int
    high: int

    @classmethod
    @lru_cache(maxsize=256)
    def of(cls, granularity: Fraction, low: int, high: int) -> Grid:
        """Return a grid; equal ones are mostly one object."""
        return cls(granularity, low, high)

    def values(self, batch: QueryBatch, first: int, last: int) -> Integers:
        """Return the grid values of rows [first, last): `grid_floor` after clamping.

        A value that is not a number becomes the lower bound. No branch depends on a value.
        """
        numerator, denominator = self.granularity.numerator, self.granularity.denominator
        steps = batch.whole[first:last]
        if numerator != 1 or denominator != 1:
            lowest = math.floor(self.low * self.granularity) - 1
            highest = math.ceil((self.high + 1) * self.granularity)
            steps = np.clip(steps, lowest, highest)
        if denominator != 1:
            steps *= denominator
        if batch.fraction is not None:
            # The guard, granularity / GUARD: its whole part, and its rest in units of 10^-18.
            whole, part = divmod(PARTS * numerator // (GUARD * denominator), PARTS)
            parts = batch.fraction[first:last] + part
            parts //= PARTS // denominator
            steps = np.add(steps, parts, out=parts)
            if whole:
                steps += whole * denominator
        elif numerator >= GUARD:
            steps += numerator // GUARD
        if numerator != 1:
            steps //= numerator
        # Bounds that are no int of Python need no check of their size.
        return steps.clip(np.int64(self.low), np.int64(self.high))

    def threshold(self, number: Fraction) -> int:
        """Return a threshold in steps, see `grid_ceil`."""
        return min(max(grid_ceil(number, self.granularity), 1 - VALUE_LIMIT), VALUE_LIMIT - 1)


@dataclass(slots=True, repr=False)
class View:
    """Rows [start, stop) of a batch for one monitor, with its clock (ms) at each row.

    ``eligible`` is the mask of the rows that are queries for it (None: all), ``outside`` the rows that only their
    dataset's period excludes, ``resting`` those that only its maintenance does. ``markers`` close a set of a dataset it
    covers; ``marked`` are their rows in order.
    """

    batch: QueryBatch
    start: int
    stop: int
    clock: Integers
    eligible: Mask | None
    outside: Sequence[int]
    resting: Sequence[int]
    markers: dict[int, str]
    marked: list[int]

    def only_eligible(self, mask: Mask | np.bool_, start: int, stop: int) -> Mask:
        """Return a new mask: rows [start, stop) of a mask, or one answer for all, if eligible."""
        eligible = np.empty(stop - start, dtype=np.bool_)
        eligible[:] = mask
        if self.eligible is not None:
            eligible &= self.eligible[start:stop]
        return eligible


@dataclass(slots=True, repr=False)
class Tests:
    """Queries to be tested: columns, or one number for all. ``attempt`` counts from 0."""

    dataset: Integers | int
    offset: Integers | int
    row: Integers | int
    value: Integers
    threshold: Integers | int
    attempt: Integers | int
    packing: Packing | None = None

    def at(self, rows: Integers) -> Tests:
        """Return some of the tests."""
        columns = self.dataset, self.offset, self.row, self.threshold, self.attempt
        dataset, offset, row, threshold, attempt = (entries_of(column, rows) for column in columns)
        return Tests(dataset, offset, row, self.value[rows], threshold, attempt)


class Crossing(msgspec.Struct, frozen=True, gc=False):
    """A test whose noisy value reached the noisy threshold: its gap (in grid steps) and attempt, counted from 0.

    ``left`` is what its run may spend after it, in epsilon units; ``series_hash`` is the hash of the series, where it
    is known.
    """

    dataset: int
    offset: int
    row: int
    threshold: int
    series: str | None
    query_id: str
    branch: int
    gap: int
    left: int
    attempt: int
    series_hash: int | None = None


@dataclass(repr=False)
class Segment:
    """Rows [start, stop) of a view that are tested on arrival, and the result.

    ``dataset`` is a column, or one number for all rows. ``live`` is the mask of tested rows, ``muted`` the mask of rows
    of muted series; ``tops`` are the rows of tops. ``changed``: whether candidates left ``live``. ``is_waiting``:
    whether a top ended a run, so that the next one may be opened.
    """

    view: View
    start: int
    stop: int
    dataset: Integers | int
    live: Mask
    muted: Mask
    tops: list[int] = field(default_factory=list)
    changed: bool = False
    is_waiting: bool = False

    @property
    def is_long(self) -> bool:
        """Whether it has so many rows that other monitors should test them while they are in the processor's cache."""
        return len(self.live) >= _MANY

    def mute(self, rows: Integers) -> None:
        """Skip the live ones of some rows, by index, because their series is muted."""
        rows = rows[self.live[rows]]
        if len(rows):
            self.live[rows], self.muted[rows] = False, True
            self.changed = True


def first_of(mask: Mask, start: int, stop: int) -> int:
    """Return the first row of a mask of the rows from ``start`` on; ``stop`` if it has none."""
    return start + int(mask.argmax()) if len(mask) and mask.any() else stop


def entries_of(column: Integers | int, rows: Integers) -> Integers | int:
    """Return the entries of a column at some rows, or the number that is the same for all rows."""
    return column if isinstance(column, int) else column[rows]
