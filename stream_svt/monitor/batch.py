"""What a monitor reads: query records as arrays, values still exact as far as any grid can tell, and unclamped."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Names(Protocol):
    """Text of a row, read only for the few rows that need it (tops, queues)."""

    def __getitem__(self, row: int, /) -> str:
        """Return the text of one row of the batch."""
        ...


@dataclass(slots=True, repr=False)
class QueryBatch:
    """Consecutive, well-formed queries of one partition of one query topic, in offset order.

    Attributes:
        topic: Name of the query topic.
        first, end: Offset of the first record looked at and offset after the last one: records that were
            rejected and broker markers lie inside this range without a row.
        offset, row: int64 arrays; place of each query: record offset and row inside a columnar record (0 for
            JSON).
        timestamp_ms: int64; broker timestamp of each row's record.
        dataset: int64; index of the dataset in the shard's list of datasets.
        whole, fraction: int64; the floor of each row's value, and what the value lies above it in 10^-18,
            rounded down. The floor saturates at 2^62 in size; a value that is not a number is the least,
            -2^62. ``fraction`` is None where all values of a batch are known to be whole.
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
    offset: NDArray[np.int64]
    row: NDArray[np.int64]
    timestamp_ms: NDArray[np.int64]
    dataset: NDArray[np.int64]
    whole: NDArray[np.int64]
    fraction: NDArray[np.int64] | None = None
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
