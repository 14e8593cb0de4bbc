"""Steps one monitor through batches: chooses the rows to test next, and the runs that begin by time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Mapping

import numpy as np

from stream_svt.columns.query_batch import Integers, Mask, QueryBatch, View, first_of
from stream_svt.mechanisms.sampler import Sampler
from stream_svt.monitor.state.accounts import Accounts
from stream_svt.monitor.state.runs import Runs
from stream_svt.monitor.testing.query_tester import Append, QueryTester
from stream_svt.monitor.testing.retry import RetryAppend
from stream_svt.monitor.testing.sweep import SweepAppend
from stream_svt.settings.fields import Retry, Sweep
from stream_svt.settings.monitors import MonitorSpec

_NO_ROW = np.zeros(0, dtype=np.bool_)
_APPEND: Mapping[type, type[Append]] = {type(None): Append, Sweep: SweepAppend, Retry: RetryAppend}


class Runner:
    """Steps one monitor.

    Attributes:
        offset, row: Position of the next query.
        clock_ms: Maximum of the broker's timestamps before it, and of the times that watermarks add at a topic's end.
        read_ms: The same, without the times that watermarks add; 0 before the first query.
        started: Whether the monitor's topic was ever read.
        refused: Rows outside their dataset's period, until the engine takes them; none of a topic of counts.
    """

    def __init__(self, accounts: Accounts, sampler: Sampler, spec: MonitorSpec) -> None:
        self.name = spec.name
        self.runs = Runs(accounts, spec)
        self.tester = QueryTester(self.runs, sampler)
        self.append = _APPEND[type(spec.append)](self.tester)
        self.periods = accounts.datasets.periods
        self.offset = 0
        self.row = 0
        self.read_ms = 0
        self.started = False
        self.refused: list[int] = []

    @property
    def spec(self) -> MonitorSpec:
        """The specification of the monitor's runs."""
        return self.runs.spec

    @property
    def clock_ms(self) -> int:
        """See `Runner`."""
        return self.runs.clock_ms

    @clock_ms.setter
    def clock_ms(self, time_ms: int) -> None:
        self.runs.clock_ms = time_ms

    def advance(self, batch: QueryBatch, stop: int, end: int) -> Generator[int, None, bool]:
        """Read the batch from the monitor's position up to row ``stop`` and offset ``end``.

        The rows between are of one measure. Those that the monitor does not test only set its position and clock.

        Yields the row reached after many rows, so that another monitor may read the same rows.

        Returns False if it stops earlier, at a row whose run is not durable yet or because the next commit is full.
        """
        start = min(stop, batch.index_of(self.offset, self.row))
        if start < stop and batch.measure_at(start) != self.spec.tested:
            self.clock_ms = self.read_ms = max(self.clock_ms, int(batch.time_ms[start:stop].max()))
            return self._reach(batch, stop, end)
        view = self._view(batch, start, stop)
        row = start
        self.tester.open_waiting(view, row, stop, ahead=True)
        while row < stop:
            if self.runs.accounts.full:
                return self._stop_at(view, row)
            due = self._due(view, row)
            last = min(first_of(due, row, stop), self.append.next_close(view, row))
            reached = yield from self.append.test(view, row, last)
            if row < reached < last:
                row = reached  # the segment was shortened: choose the next rows again
                continue
            if reached < last:
                return self._stop_at(view, reached)
            row = reached
            if row < stop:
                self._renew(view, row)
                if not self.append.close(view, row):
                    return self._stop_at(view, row)
                row += row in view.markers
        self._finish_rows(view, stop)
        return self._reach(batch, stop, end)

    def _reach(self, batch: QueryBatch, stop: int, end: int) -> bool:
        """Set the position to row ``stop`` and offset ``end``, unless it is past them; return True."""
        # Monitors of a topic may be at different positions: this monitor may be past the batch.
        inside = stop < len(batch) and int(batch.offset[stop]) == end
        self.offset, self.row = max((self.offset, self.row), (end, int(batch.row[stop]) if inside else 0))
        return True

    def _view(self, batch: QueryBatch, start: int, stop: int) -> View:
        """Return this monitor's view of rows [start, stop) of the batch."""
        clock = batch.time_ms
        if not batch.in_time_order:
            clock = np.append(clock[:start], np.maximum.accumulate(clock[start:]))
        if start < stop and clock[start] < self.clock_ms:
            clock = np.maximum(clock, self.clock_ms)
        eligible, outside, resting = self._eligible(batch, start, clock)
        if self.spec.ends:  # incidents follow from released tops: the other monitor tested all earlier rows
            incidents = np.zeros(len(batch), dtype=np.bool_)
            incidents[start:stop] = self.tester.muted(batch, clock, start, stop)
            eligible = incidents if eligible is None else eligible & incidents
        markers = {
            row: name
            for row, name in batch.markers.items()
            if start <= row < stop
            and self.runs.covers[batch.dataset[row]]
            and batch.monitor.get(row, self.name) == self.name
        }
        return View(batch, start, stop, clock, eligible, outside, resting, markers, sorted(markers))

    def _eligible(
        self, batch: QueryBatch, start: int, clock: Integers
    ) -> tuple[Mask | None, list[int], list[int]]:
        """Return the mask of the queries for this monitor (None: all), and the rows that only one rule excludes.

        These are, first, those outside their dataset's period, then those in maintenance.
        """
        is_plain = self.runs.covers_all and not batch.markers and not batch.monitor
        if is_plain and self.periods is None and not self.spec.maintenance:
            return None, [], []
        eligible: Mask = self.runs.covers[batch.dataset]
        eligible[list(batch.markers)] = False
        eligible[[row for row, name in batch.monitor.items() if name != self.name]] = False
        outside = resting = np.zeros(len(batch), dtype=np.bool_)
        if self.periods is not None:
            begins, ends = self.periods
            inside = (clock >= begins[batch.dataset]) & (clock < ends[batch.dataset])
            outside, eligible = eligible & ~inside, eligible & inside
        if self.spec.maintenance:
            resting = eligible & np.any(
                [one.overlaps(*batch.nominal_ms) for one in self.spec.maintenance], axis=0
            )
            eligible &= ~resting
        rows = [(np.flatnonzero(mask[start:]) + start).tolist() for mask in (outside, resting)]
        return eligible, rows[0], rows[1]

    def _finish_rows(self, view: View, end: int) -> None:
        """Advance the clock to row ``end``; count the rows before it that are excluded, and record those outside."""
        outside = view.outside[: bisect_left(view.outside, end)]
        self.runs.skip("outside-period", len(outside))
        self.runs.skip("maintenance", bisect_left(view.resting, end))
        if self.spec.source is None:
            self.refused += outside
        if end > view.start:
            self.clock_ms = self.read_ms = int(view.clock[end - 1])

    def _stop_at(self, view: View, row: int) -> bool:
        """Set the position to a row; return False."""
        self._finish_rows(view, row)
        self.offset, self.row = int(view.batch.offset[row]), int(view.batch.row[row])
        return False

    def _due(self, view: View, start: int) -> Mask:
        """Return the mask, from row ``start`` on, of queries that open a run by time or end a pause."""
        runs, rows = self.runs, slice(start, view.stop)
        if self.spec.resample_every is None and not runs.timed:
            return _NO_ROW
        due = runs.due(view.batch.dataset[rows], view.batch.time_ms[rows])
        return view.only_eligible(due, start, view.stop)

    def _renew(self, view: View, start: int) -> None:
        """If the query of row ``start`` opens a run by schedule or after a limit, or ends a pause, do that.

        Also open the runs of other datasets whose next query opens one, each at the timestamp of that query, so that
        one commit makes all of them durable.
        """
        due = self._due(view, start)
        if not len(due) or not due[0]:
            return
        runs = self.runs
        queries = np.flatnonzero(view.only_eligible(np.True_, start, start + len(due)))
        _, first = np.unique(view.batch.dataset[start:][queries], return_index=True)
        for row in np.sort(queries[first]).tolist():
            dataset = int(view.batch.dataset[start + row])
            if due[row] and (row == 0 or runs.acts_on_queries_alone(dataset)):
                if row and runs.accounts.full:
                    break
                runs.renew(dataset, int(view.batch.time_ms[start + row]))
