"""How much of a batch one step looks at: bounded runs to open, bounded work, bounded rejects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stream_svt.monitor.batch import QueryBatch
from stream_svt.monitor.bounds import Bounds
from stream_svt.monitor.run_arrays import Status
from stream_svt.monitor.runner import Runner


def place(batch: QueryBatch, runners: Sequence[Runner]) -> int:
    """Return the first offset of a batch that some of its monitors have yet to look at."""
    return max([batch.first, *([min(runner.offset for runner in runners)] if runners else [])])


def next_part(
    batch: QueryBatch, runners: Sequence[Runner], bounds: Bounds, *, rejects: int, runs: int
) -> tuple[int, int]:
    """Return before which row and offset of a batch the monitors stop next: ``end`` may lie inside a record.

    All monitors look at the same rows, so that a dataset's record is written once for all runs that open on it.

    Args:
        rejects, runs: How many refused records and opened runs the next commit still takes.
    """
    size = len(batch)
    offset, row = min(((runner.offset, runner.row) for runner in runners), default=(batch.end, 0))
    start = int(np.searchsorted(batch.offset, offset))
    while start < size and batch.offset[start] == offset and batch.row[start] < row:
        start += 1
    cost = max(1, sum(runner.append.row_cost for runner in runners))
    stop = min(size, start + max(1, bounds.cost // cost))
    refused = max(1, rejects)
    if any(runner.periods is not None for runner in runners):  # each row may be refused
        stop = min(stop, start + refused)
    stop = _rows_to_open(batch, runners, start, stop, bounds.runs, max(1, runs))
    end = batch.end if stop == size else int(batch.offset[stop])
    rest = [offset_ for offset_, _ in batch.rejects if offset_ >= offset]
    if len(rest) > refused and rest[refused] < end:
        end = rest[refused]
        stop = int(np.searchsorted(batch.offset, end))
    return stop, end


def _rows_to_open(
    batch: QueryBatch, runners: Sequence[Runner], start: int, stop: int, at_once: int, room: int
) -> int:
    """Return before which row at most ``room`` runs open, one for each dataset and monitor that waits."""
    rows = batch.dataset[start:stop]
    waiting = [runner for runner in runners if (runner.runs.status[rows] == Status.WAITING).any()]
    while waiting and start < stop:
        # Each row may open a run for every monitor: look at no more rows than may be of use, and at more where
        # few of them open one.
        last = min(stop, start + at_once)
        datasets, first = np.unique(batch.dataset[start:last], return_index=True)
        opens = np.zeros(last - start, dtype=np.int64)
        for runner in waiting:
            opens[first] += runner.runs.status[datasets] == Status.WAITING
        total = np.cumsum(opens)
        if total[-1] > room:
            return start + max(1, int(np.searchsorted(total, room, side="right")))
        if total[-1]:
            return last
        start = last
    return stop
