"""Tests queries of one monitor: noise is drawn for many rows at once, only crossings are handled one by one."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from stream_svt.columns.query_batch import (
    NO_ROWS,
    Crossing,
    Integers,
    Mask,
    NewMutes,
    QueryBatch,
    Segment,
    Tests,
    View,
    rows_of,
)
from stream_svt.mechanisms.arguments import reaching
from stream_svt.mechanisms.sampler import Identity, Sampler
from stream_svt.monitor.state.queue_journal import Queue
from stream_svt.monitor.state.runs import Runs, Status

_CHECKED_AT_ONCE = 1 << 12
"""Rows of a segment that are compared at once with the series of all tops before them; see `_live_candidates`."""


class QueryTester:
    """Tests queries in the runs of a monitor, and reports the tops."""

    def __init__(self, runs: Runs, sampler: Sampler) -> None:
        self.runs = runs
        self.sampler = sampler

    def segments(self, view: View, start: int, stop: int) -> Iterator[Segment]:
        """Test rows [start, stop) once, in segments that fit a cache.

        The last one ends early before a run that is not durable or is to be opened, and if a commit comes first.
        """
        is_waiting = True
        while start < stop:
            if is_waiting:  # the last top of a run lets the next one begin
                stop = self.open_waiting(view, start, stop)
            end = view.batch.part(start, stop)
            segment = self.test_arrivals(view, start, end)
            yield segment
            if segment.stop < end or self.runs.accounts.full:
                return
            start, is_waiting = end, segment.is_waiting

    def test_arrivals(self, view: View, start: int, stop: int) -> Segment:
        """Test rows [start, stop) once; the segment ends early as the last one of `segments` does."""
        segment, runs = self._begin(view, start, stop), self.runs
        self._find_tops(segment)
        size = segment.stop - start
        live, muted = segment.live, segment.muted = segment.live[:size], segment.muted[:size]
        tested, skipped = int(np.count_nonzero(live)), int(np.count_nonzero(muted))
        if tested:
            runs.accounts.next.tested[runs.name] += tested
        runs.skip("muted", skipped)
        if tested + skipped < size:
            datasets = view.batch.dataset[start : segment.stop]
            idle = view.only_eligible(runs.covers[datasets], start, segment.stop) & ~live & ~muted
            runs.skip_idle(datasets[idle])
        return segment

    def open_waiting(self, view: View, first: int, last: int, *, ahead: bool = False) -> int:
        """Open the runs that rows [first, last) need, in order, so that one commit makes all of them durable.

        ``ahead``: earlier rows are not tested yet. Returns ``last``, or the first row whose run has to wait because the
        commit is full.
        """
        batch, runs = view.batch, self.runs
        if first == last or not (runs.status.take(batch.datasets(first, last)) == Status.WAITING).any():
            return last
        waiting = view.only_eligible(runs.status[batch.dataset[first:last]] == Status.WAITING, first, last)
        rows = np.flatnonzero(waiting) + first
        _, appearance = np.unique(batch.dataset[rows], return_index=True)
        for row in rows[np.sort(appearance)].tolist():
            dataset = int(batch.dataset[row])
            if not ahead or runs.acts_on_queries_alone(dataset):
                if runs.accounts.full:
                    return int(row)
                runs.open_run(dataset, int(batch.time_ms[row]))
        return last

    def _begin(self, view: View, start: int, stop: int) -> Segment:
        """Return the segment from ``start`` to ``stop`` or the first row whose run is not durable or not open yet."""
        batch, runs = view.batch, self.runs
        stop = self._barred(view, start, stop)
        dataset, clock = batch.common(batch.dataset, start, stop), batch.common(view.clock, start, stop)
        live = view.only_eligible(runs.status.take(dataset) == Status.TESTABLE, start, stop)
        muted = np.zeros(stop - start, dtype=np.bool_)
        segment = Segment(view, start, stop, dataset, clock, live, muted, start, NewMutes())
        if not runs.mutes or not batch.series or (isinstance(dataset, int) and dataset not in runs.mutes):
            return segment
        entries, codes = segment.series
        if codes is None:
            self._mute(segment, *runs.mute_index.ends(dataset, entries))
        else:  # rows of one record, which has one dataset and timestamp
            self._mute_entries(segment, codes, runs.muted_entries.at(int(dataset), entries, int(clock)))
        return segment

    def _barred(self, view: View, start: int, stop: int) -> int:
        """Return the first of rows [start, stop) whose run is not durable or not open yet, or ``stop``."""
        batch, runs = view.batch, self.runs
        if not runs.pending and not runs.timed:
            return stop
        dataset, time_ms = (batch.common(column, start, stop) for column in (batch.dataset, batch.time_ms))
        status = runs.status[dataset]
        passed = (status == Status.LIMITED) & runs.due(dataset, time_ms)
        barred = view.only_eligible((status == Status.PENDING) | passed, start, stop)
        return start + int(barred.argmax()) if barred.any() else stop

    def _mute(self, segment: Segment, rows: Integers, ends: Integers) -> None:
        """Skip rows, by index, whose series, which no other row shares an entry with, is muted up to these clocks."""
        muted = rows[(segment.clock if isinstance(segment.clock, int) else segment.clock[rows]) < ends]
        muted = muted[segment.live[muted]]
        if len(muted):
            segment.live[muted], segment.muted[muted] = False, True
            segment.changed = True

    def _mute_found(self, segment: Segment, rows: Integers) -> None:
        """Skip those of some rows, by index, that are muted now."""
        self._mute(segment, *self.runs.mute_index.ends(segment.dataset, segment.series[0], rows))

    def _mute_entries(
        self, segment: Segment, codes: Integers, muted: Sequence[int] | Integers, first: int = 0
    ) -> None:
        """Skip the rows, by index from ``first`` on, whose code is one of these."""
        if not len(muted):
            return
        live, codes = segment.live[first:], codes[first:]
        if len(muted) == 1:
            of_rows = codes == muted[0]
        else:
            of_entries = np.zeros(len(segment.hashes) + 1, dtype=np.bool_)
            of_entries[muted] = True
            of_rows = of_entries.take(codes, mode="wrap")
        of_rows &= live
        live ^= of_rows
        segment.muted[first:] |= of_rows
        segment.changed = True

    def _find_tops(self, segment: Segment) -> None:
        """Report the tops of a segment in order; each may mute later rows or shorten the segment."""
        view, batch, runs = segment.view, segment.view.batch, self.runs
        texts = batch.series or None
        for row, column, threshold in self._live_candidates(segment):
            dataset = batch.dataset.item(row)  # quicker than the integer of an entry
            if (branch := self.branch(dataset, column)) is None:
                continue
            series = None if texts is None else texts[row]
            offset, own, query_id = batch.offset.item(row), batch.row.item(row), batch.query_id[row] or ""
            known = None if series is None else segment.series_hash(row)
            segment.tops.append(row)
            gap = column[branch]
            top = Crossing(dataset, offset, own, threshold, series, query_id, branch, gap, 0, known)
            self._after_top(segment, row, top, runs.report(top, view.clock.item(row)))
            if runs.accounts.full:
                segment.stop = min(segment.stop, row + 1)

    def _live_candidates(self, segment: Segment) -> Iterator[tuple[int, list[int], int]]:
        """Yield row, gaps by branch and threshold of the candidates that no top before them mutes or ends.

        Others are left out with what a top or a number of rows leads to, never one by one: they take no time.
        """
        rows, gaps, thresholds = self.candidates(segment.view, segment.start, segment.live)
        while len(rows) and (first := segment.checked) < segment.stop:
            self._mute_next(segment)
            places = np.arange(*rows.searchsorted((first, segment.checked)))
            at, segment.changed = 0, True
            while True:
                if segment.changed:
                    places = places[at:]
                    places = places[segment.live[rows[places] - segment.start]]
                    at, segment.changed = 0, False
                if at == len(places) or (row := rows.item(place := places.item(at))) >= segment.stop:
                    break
                at += 1
                yield row, gaps[:, place].tolist(), thresholds.item(place)

    def _mute_next(self, segment: Segment) -> None:
        """Skip the next rows whose series the tops of this segment, all before them, have muted."""
        first = segment.checked
        segment.checked = segment.stop
        if segment.series[1] is None:
            segment.checked = min(first + _CHECKED_AT_ONCE, segment.stop)
        if segment.muting:
            part = slice(first - segment.start, segment.checked - segment.start)
            found = segment.muting.rows(segment.datasets(part), segment.hashes[part])
            if len(found):
                self._mute_found(segment, found + part.start)

    def _after_top(self, segment: Segment, row: int, top: Crossing, woken: list[str]) -> None:
        """Skip later rows after a top; end the segment where a run may begin or a series is no longer muted."""
        batch, runs, start = segment.view.batch, self.runs, segment.start
        dataset, first = top.dataset, row + 1 - start
        status = runs.status.item(dataset)
        if top.series_hash is not None and dataset in runs.mutes and status > Status.WAITING:
            self._mute_like(segment, row, dataset, top.series_hash)
            if not woken:
                return
        of_dataset = batch.dataset[row + 1 : segment.stop] == dataset
        if status > Status.WAITING:
            muted = np.flatnonzero(segment.muted[first : segment.stop - start] & of_dataset) + row + 1
            segment.stop = next((k for k in muted.tolist() if batch.series[k] in woken), segment.stop)
            return
        later = np.flatnonzero(segment.view.only_eligible(of_dataset, row + 1, segment.stop))
        if status == Status.WAITING:
            segment.is_waiting = True
            segment.stop = int(later.min(initial=segment.stop - row - 1)) + row + 1
        else:
            segment.live[later + first] = segment.muted[later + first] = False
            segment.changed = True

    def _mute_like(self, segment: Segment, row: int, dataset: int, series: int) -> None:
        """Skip the rows behind a top that are of its series, by its hash; of rows with own entries, only the next."""
        entries, codes = segment.series
        if codes is not None:
            runs, clock_ms = self.runs, segment.view.clock.item(row)
            alike = np.flatnonzero(segment.hashes == np.uint64(series)).tolist()
            muted = [code for code in alike if runs.is_muted(dataset, entries[code], clock_ms)]
            self._mute_entries(segment, codes, muted, row + 1 - segment.start)
            return
        segment.muting.add(dataset, series)
        part = slice(row + 1 - segment.start, segment.checked - segment.start)
        found = rows_of(segment.datasets(part), segment.hashes[part], dataset, series)
        if len(found):
            self._mute_found(segment, found + part.start)

    def candidates(
        self, view: View, start: int, live: Mask, *, draw_all: bool = False
    ) -> tuple[Integers, Integers, Integers]:
        """Return the rows of ``live``, a mask from ``start`` on, that reach the noisy threshold at some branch.

        Returns rows in order, their gaps by branch, shape (branches, rows), and their thresholds in grid steps.
        ``draw_all``: see `reached`.
        """
        tested, batch, stop = int(np.count_nonzero(live)), view.batch, start + len(live)
        if not tested:
            return NO_ROWS, NO_ROWS, NO_ROWS
        dataset, offset = batch.common(batch.dataset, start, stop), batch.common(batch.offset, start, stop)
        packing = batch.packing(self.runs.plan.grid, start, stop) if isinstance(dataset, int) else None
        if packing is not None:
            offset, row, attempt, value = packing.columns
            tests = Tests(dataset, offset, row, value, self.thresholds(batch, start, stop), attempt, packing)
        else:
            row = batch.row[start:stop] if batch.has_rows else 0
            tests = Tests(dataset, offset, row, *self.on_grid(batch, start, stop), 0)
        # It is cheaper to leave the columns as they are.
        keeps_all = tested == len(live) or (isinstance(dataset, int) and tested >= len(live) // 2)
        if keeps_all and not draw_all:
            rows, gaps = self.reached(tests, live)
        else:
            of_live = np.flatnonzero(live)
            chosen, gaps = self.reached(tests.at(of_live), draw_all=draw_all)
            rows = of_live[chosen]
        threshold = tests.threshold
        of_rows = np.full(len(rows), threshold) if isinstance(threshold, int) else threshold[rows]
        return rows + start, gaps, of_rows

    def on_grid(self, batch: QueryBatch, start: int, stop: int) -> tuple[Integers, Integers | int]:
        """Return values and thresholds of rows [start, stop) in grid steps."""
        return self.runs.plan.grid.values(batch, start, stop), self.thresholds(batch, start, stop)

    def thresholds(self, batch: QueryBatch, start: int, stop: int) -> Integers | int:
        """Return the thresholds of rows [start, stop) in grid steps."""
        plan = self.runs.plan
        if not batch.threshold:
            return plan.threshold
        thresholds = np.full(stop - start, plan.threshold, dtype=np.int64)
        rows, own = batch.thresholds(plan.grid)
        part = slice(*rows.searchsorted((start, stop)))
        thresholds[rows[part] - start] = own[part]
        return thresholds

    def reached(
        self, tests: Tests, among: Mask | None = None, *, draw_all: bool = False
    ) -> tuple[Integers, Integers]:
        """Return which tests reach the noisy threshold at some branch, and their gaps: see `SparseVector.reached`.

        Noise is a function of run, position, attempt and value. ``among``: mask of the tests that count, None for all.
        ``draw_all``: draw it for each test, because not all that reach the threshold are released, and a draw takes
        time.
        """
        runs, mechanism = self.runs, self.runs.plan.mechanism
        laws, dataset = runs.plan.laws, tests.dataset
        columns: tuple[Any, ...]
        if isinstance(dataset, int):
            columns = *runs.secrets.item(dataset), runs.left.item(dataset)
        else:
            secrets = runs.secrets.take(dataset)
            columns = secrets["noise"], secrets["salt_high"], secrets["salt_low"], runs.left.take(dataset)
        rho, high, low, left = columns
        identity = Identity(
            salt=(high, low),
            offset=tests.offset,
            row=tests.row,
            attempt=tests.attempt,
            branch=0,
            value=tests.value,
            packing=tests.packing,
        )

        def drawn(branch: int) -> Integers:
            return self.sampler.draw(laws[branch], identity._replace(branch=branch))

        def drawn_where_reached(leasts: Sequence[Integers]) -> Sequence[tuple[Integers, Integers]]:
            return self.sampler.reaching(laws, identity, leasts, among)

        noise = reaching(drawn) if draw_all else drawn_where_reached
        return mechanism.reached(tests.value, tests.threshold, rho, left, tests.attempt, noise)

    def branch(self, dataset: int, gaps: Sequence[int] | Integers) -> int | None:
        """Return the first branch that fired and that the run can pay, None if there is none."""
        return self.runs.plan.mechanism.branch_of(gaps, self.runs.left.item(dataset))


class Append:
    """Tests each query once, on arrival; subclasses test queries again.

    Attributes:
        row_cost: Time per query, as a multiple of that of a query tested with its whole batch at once.
        queue: Type of the queue in which queries of a dataset wait for another test, None if none waits.
    """

    row_cost: ClassVar[int] = 1
    queue: ClassVar[type[Queue[Any]] | None] = None

    def __init__(self, tester: QueryTester) -> None:
        self.tester = tester
        self.runs = tester.runs

    def test(self, view: View, start: int, stop: int) -> Generator[int, None, int]:
        """Test rows [start, stop), and yield the row reached after each long segment.

        Returns the last row reached: less than ``stop`` if a commit or a new run comes first.
        """
        for segment in self.tester.segments(view, start, stop):
            start = segment.stop
            if segment.is_long:
                yield start
        return start

    def next_close(self, view: View, start: int) -> int:  # noqa: ARG002 - nothing closes
        """Return the next row from ``start`` on before which a set closes; the view's end if none does."""
        return view.stop

    def close(self, view: View, row: int) -> bool:  # noqa: ARG002
        """Test the queries of sets that close before a row again; False if a commit has to come first."""
        return True
