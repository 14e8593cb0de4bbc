"""What a monitor reads: query records as arrays, values exact as far as any grid can tell, and put on its grid."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stream_svt.mechanisms.grid import PARTS, VALUE_LIMIT

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Names(Protocol):
    """Text of a row, read only for the few rows that need it (tops, queues)."""

    def __getitem__(self, row: int, /) -> str: ...


def _no_rows() -> Integers:
    return np.zeros(0, np.int64)


@dataclass(slots=True, repr=False)
class QueryBatch:
    """Consecutive, well-formed queries of one partition of one query topic, in offset order.

    Attributes:
        first, end: Offset of the first record looked at and offset after the last one: records that were
            rejected and broker markers lie inside this range without a row.
        offset, row: Place of each query: record offset and row inside a columnar record (0 for JSON).
        timestamp_ms: Broker timestamp of each row's record.
        dataset: Index of the dataset in the shard's list of datasets.
        whole, fraction: The floor of each row's value, and what the value lies above it in 10^-18, rounded down. The
            floor saturates at 2^62 in size; a value that is not a number is the least, -2^62. ``fraction`` is None
            where all values of a batch are known to be whole.
        series, set_id: Per row, or None where a query names none. ``set_id`` is None as a whole where no row
            names a set.
        threshold: Thresholds that replace the monitor's, by row index, in real units.
        monitor: Name of the only monitor a row is meant for, by row index.
        markers: Rows that are not queries but close the set they name, by row index.
        query_id: Identifier of each row, text chosen by the producer.
        rejects: (offset, reason) of the records inside the range that are no queries.
        series_hashes: One number for each row's series; filled in where some monitor needs it.
    """

    topic: str
    first: int
    end: int
    offset: Integers = field(default_factory=_no_rows)
    row: Integers = field(default_factory=_no_rows)
    timestamp_ms: Integers = field(default_factory=_no_rows)
    dataset: Integers = field(default_factory=_no_rows)
    whole: Integers = field(default_factory=_no_rows)
    fraction: Integers | None = None
    series: list[str | None] = field(default_factory=list)
    set_id: list[str | None] | None = None
    threshold: dict[int, Fraction] = field(default_factory=dict)
    monitor: dict[int, str] = field(default_factory=dict)
    markers: dict[int, str] = field(default_factory=dict)
    query_id: Names = field(default_factory=list)
    rejects: list[tuple[int, str]] = field(default_factory=list)
    series_hashes: NDArray[np.uint64] | None = None

    def __len__(self) -> int:
        """Return the number of rows, markers included."""
        return len(self.offset)

    def index_of(self, offset: int, row: int) -> int:
        """Return the first row at or behind a place."""
        start = int(np.searchsorted(self.offset, offset))
        while start < len(self) and self.offset[start] == offset and self.row[start] < row:
            start += 1
        return start


@dataclass(frozen=True, slots=True)
class Grid:
    """The grid of a monitor: ``granularity`` real units (a multiple of 10^-18) a step, clamped to [low, high] steps."""

    granularity: Fraction
    low: int
    high: int

    def values(self, batch: QueryBatch, first: int, last: int) -> Integers:
        """Return the grid values of rows [first, last): floor(value / granularity) after clamping.

        What is not a number becomes the lower bound, like any low value. All rows take the same steps.
        """
        numerator, denominator = self.granularity.numerator, self.granularity.denominator
        steps = batch.whole[first:last]
        if numerator != 1 or denominator != 1:
            least = math.floor(self.low * self.granularity) - 1
            most = math.ceil((self.high + 1) * self.granularity)
            steps = np.clip(steps, least, most)
            if denominator != 1:
                steps *= denominator
                if batch.fraction is not None:
                    steps += batch.fraction[first:last] // (PARTS // denominator)
            if numerator != 1:
                steps //= numerator
        return np.clip(steps, self.low, self.high)

    def threshold(self, number: Fraction) -> int:
        """Return a threshold in steps: the least step not below it."""
        steps = math.ceil(number / self.granularity)
        return min(max(steps, 1 - VALUE_LIMIT), VALUE_LIMIT - 1)

    def real(self, steps: int) -> float:
        """Return steps as real units, for reports."""
        return float(steps * self.granularity)


@dataclass(slots=True, repr=False)
class View:
    """A batch as one monitor sees it: rows [start, stop), with the clock at each row.

    ``eligible`` says which rows are queries for it (None: all), ``outside`` which would be but for their dataset's
    period; ``markers``, in order the rows ``marked``, close a set of a dataset it covers.
    """

    batch: QueryBatch
    start: int
    stop: int
    clock: Integers
    eligible: Mask | None
    outside: Integers
    markers: dict[int, str]
    marked: list[int]

    def only_eligible(self, mask: Mask, start: int) -> Mask:
        """Return a mask over rows from ``start`` on without those that are no queries for the monitor."""
        return mask if self.eligible is None else mask & self.eligible[start : start + len(mask)]


@dataclass(slots=True, repr=False)
class Tests:
    """Queries to be tested, as columns; ``attempt`` counts from 0 and is one number for all or one for each."""

    dataset: Integers
    offset: Integers
    row: Integers
    value: Integers
    threshold: Integers | int
    attempt: Integers | int


class Crossing(NamedTuple):
    """A test that reached its noisy threshold (in grid steps) by a gap, at an attempt that counts from 0."""

    dataset: int
    offset: int
    row: int
    threshold: int
    series: str | None
    query_id: str
    branch: int
    gap: int
    attempt: int


@dataclass(slots=True, repr=False)
class Segment:
    """Rows of a view from ``start`` on that are tested on arrival, and what was found.

    ``live`` are the rows that are tested, ``muted`` those of muted series. The segment ends before ``stop``.
    """

    view: View
    start: int
    stop: int
    live: Mask
    muted: Mask
    tops: list[int]

    def later(self, row: int) -> Integers:
        """Return the queries of a row's dataset that come after it in the segment."""
        datasets = self.view.batch.dataset
        alike = self.view.only_eligible(datasets[row + 1 : self.stop] == datasets[row], row + 1)
        return np.flatnonzero(alike) + row + 1

    def mute(self, rows: Integers) -> None:
        """Skip those of some rows that would be tested: their series are muted."""
        rows = rows[self.live[rows - self.start]] - self.start
        self.live[rows] = False
        self.muted[rows] = True
