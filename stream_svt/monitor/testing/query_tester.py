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
    QueryBatch,
    Segment,
    Tests,
    View,
    entries_of,
    first_of,
)
from stream_svt.mechanisms.arguments import reaching
from stream_svt.mechanisms.sampler import Identity, Sampler
from stream_svt.monitor.state.queue_journal import Queue
from stream_svt.monitor.state.runs import Runs, Status
from stream_svt.monitor.testing.watch import Watch
from stream_svt.settings.fields import Mute


class QueryTester:
    """Tests queries in the runs of a monitor, and reports the tops."""

    def __init__(self, runs: Runs, sampler: Sampler) -> None:
        self.runs = runs
        self.sampler = sampler
        self.watch = Watch(runs)

    def test_arrivals(self, view: View, start: int, stop: int) -> Segment:
        """Test rows [start, stop) once; see `Append.test` for where the segment ends."""
        segment, runs = self._begin(view, start, stop), self.runs
        self._find_tops(segment)
        if (size := segment.stop - start) < len(segment.live):
            segment.live, segment.muted = segment.live[:size], segment.muted[:size]
        live, muted = segment.live, segment.muted
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
        if first == last or not runs.has_waiting(batch.datasets(first, last)):
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
        if runs.pending or runs.timed:
            stop = self._barred(view, start, stop)
        dataset = batch.common(batch.dataset, start, stop)
        live = view.only_eligible(runs.status.take(dataset) == Status.TESTABLE, start, stop)
        if runs.mutes.of and runs.ended is None:
            muted = self.muted(batch, view.clock, start, stop)
            muted &= live
            live ^= muted
        else:
            muted = np.zeros(stop - start, dtype=np.bool_)
        return Segment(view, start, stop, dataset, live, muted)

    def muted(self, batch: QueryBatch, clocks: Integers, start: int, stop: int) -> Mask:
        """Return the mask of the rows [start, stop) of muted series; a short dictionary is looked up instead."""
        mutes, index, series = self.runs.mutes, self.runs.mutes.index, batch.series
        dataset, clock = (batch.common(column, start, stop) for column in (batch.dataset, clocks))
        if start == stop or not series or (isinstance(dataset, int) and dataset not in mutes.of):
            return np.zeros(stop - start, dtype=np.bool_)
        coded = series.coded(start, stop) if isinstance(dataset, int) else None
        if coded is None or len(coded[0]) > stop - start:
            return index.muted(dataset, mutes.hashes_of(series)[start:stop], clock)
        of_entries = index.muted(dataset, mutes.hashes_of(coded[0]), clock)
        return np.append(of_entries, False).take(coded[1], mode="wrap")

    def _barred(self, view: View, start: int, stop: int) -> int:
        """Return the first of rows [start, stop) whose run is not durable or not open yet, or ``stop``."""
        batch, runs = view.batch, self.runs
        dataset, time_ms = (batch.common(column, start, stop) for column in (batch.dataset, batch.time_ms))
        status = runs.status[dataset]
        passed = (status == Status.LIMITED) & runs.due(dataset, time_ms)
        barred = view.only_eligible((status == Status.PENDING) | passed, start, stop)
        return first_of(barred, start, stop)

    def _find_tops(self, segment: Segment) -> None:
        """Report the tops of a segment in order; each may mute later rows or shorten the segment."""
        view, batch, runs = segment.view, segment.view.batch, self.runs
        texts, watching, counted = batch.series or None, runs.mutes.watching, segment.start
        for row, column, threshold in self._live_candidates(segment):
            dataset = batch.dataset.item(row)  # quicker than the integer of an entry
            if (top := self.top_of(dataset, column)) is None:
                continue
            if watching:
                counted = self.watch.count(segment, counted, row, is_top=True)
                if counted < row or runs.accounts.full:
                    segment.stop = counted
                    return
            series = None if texts is None else texts[row]
            offset, own, query_id = batch.offset.item(row), batch.row.item(row), batch.query_id[row] or ""
            mutes = series is not None and runs.spec.mute is not Mute.NONE
            known = runs.mutes.hashes_of(batch.series).item(row) if mutes else None
            segment.tops.append(row)
            counted = row + 1
            branch, gap, left = top
            crossing = Crossing(
                dataset, offset, own, threshold, series, query_id, branch, gap, left, 0, known
            )
            self._after_top(segment, row, crossing, runs.report(crossing, view.clock.item(row)))
            if runs.accounts.full:
                segment.stop = min(segment.stop, row + 1)
        if watching:
            segment.stop = self.watch.count(segment, counted, segment.stop)

    def _live_candidates(self, segment: Segment) -> Iterator[tuple[int, list[int], int]]:
        """Yield row, gaps by branch and threshold of the candidates that no top before them mutes or ends.

        Candidates are removed in bulk, so their number does not affect the run time.
        """
        rows, gaps, thresholds = self.candidates(segment.view, segment.start, segment.live)
        if not len(rows):
            return
        places, at, segment.changed = np.arange(len(rows)), 0, False
        while at < len(places) and (row := rows.item(place := places.item(at))) < segment.stop:
            yield row, gaps[:, place].tolist(), thresholds.item(place)
            at += 1
            if segment.changed:
                places = places[at:]
                places = places[segment.live[rows[places] - segment.start]]
                at, segment.changed = 0, False

    def _after_top(self, segment: Segment, row: int, top: Crossing, woken: list[int]) -> None:
        """Skip later rows after a top; end the segment where a run may begin or a series is no longer muted."""
        batch, runs, start = segment.view.batch, self.runs, segment.start
        if runs.ended is not None and top.series is not None:
            self._end_like(segment, row, top.dataset)
        status = runs.status.item(top.dataset)
        if status > Status.WAITING:
            if top.series is not None and top.dataset in runs.mutes.of:
                self._mute_like(segment, row, top.dataset)
            if not woken:
                return
        part = slice(row + 1 - start, segment.stop - start)
        later = batch.dataset[row + 1 : segment.stop] == top.dataset
        if status > Status.WAITING:
            hashes = runs.mutes.hashes_of(batch.series)[row + 1 : segment.stop]
            later &= segment.muted[part] & np.isin(hashes, np.array(woken, np.uint64))
        else:
            later = segment.view.only_eligible(later, row + 1, segment.stop)
        if status < Status.WAITING:
            segment.live[part] &= ~later
            segment.muted[part] &= ~later
            segment.changed = True
        else:
            segment.stop = first_of(later, row + 1, segment.stop)
        segment.is_waiting |= status == Status.WAITING

    def _end_like(self, segment: Segment, row: int, dataset: int) -> None:
        """Skip the rows behind the end of an incident that are of its series."""
        view = segment.view
        hashes = self.runs.mutes.hashes_of(view.batch.series)[row : view.stop]
        others = (hashes != hashes[0]) | (view.batch.dataset[row : view.stop] != dataset)
        if view.eligible is not None:
            view.eligible[row + 1 : view.stop] &= others[1:]
        segment.live[row + 1 - segment.start :] &= others[1 : len(segment.live) - row + segment.start]
        segment.changed = True

    def _mute_like(self, segment: Segment, row: int, dataset: int) -> None:
        """Skip the rows behind a top that are of its series, while that is muted."""
        hashes = self.runs.mutes.hashes_of(segment.view.batch.series)[row : segment.stop]
        rows = (hashes[1:] == hashes[0]).nonzero()[0]
        if len(rows):
            rows += row + 1 - segment.start
            end = self.runs.mutes.of[dataset].until(hashes.item(0))
            is_muted = segment.view.clock[rows + segment.start] < end
            segment.mute(rows[is_muted & (entries_of(segment.dataset, rows) == dataset)])

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
            rows, gaps = self.reached(tests, None if tested == len(live) else live)
        else:
            of_live = np.flatnonzero(live)
            chosen, gaps = self.reached(tests.at(of_live), draw_all=draw_all)
            rows = of_live[chosen]
        if not len(rows) and not draw_all:  # no secret then: the first candidate is released
            return NO_ROWS, NO_ROWS, NO_ROWS
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
            (high, low), tests.offset, tests.row, tests.attempt, 0, tests.value, tests.packing
        )

        def drawn(branch: int) -> Integers:
            return self.sampler.draw(laws[branch], identity._replace(branch=branch))

        def drawn_where_reached(leasts: Sequence[Integers]) -> Sequence[tuple[Integers, Integers]]:
            return self.sampler.reaching(laws, identity, leasts, among)

        noise = reaching(drawn) if draw_all else drawn_where_reached
        return mechanism.reached(tests.value, tests.threshold, rho, left, tests.attempt, noise)

    def top_of(self, dataset: int, gaps: Sequence[int] | None) -> tuple[int, int, int] | None:
        """Return the top of a dataset's query as `SparseVector.top_of`; without ``gaps`` it reached no branch."""
        return None if gaps is None else self.runs.plan.mechanism.top_of(gaps, self.runs.left.item(dataset))


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
        """Test rows [start, stop) in segments that fit a cache, and yield the row reached after each long one.

        Returns the last row reached: less than ``stop`` before a run that is not durable or is to be opened, and if a
        commit comes first.
        """
        is_waiting = True
        while start < stop:
            if is_waiting:  # the last top of a run lets the next one begin
                stop = self.tester.open_waiting(view, start, stop)
            end = view.batch.part(start, stop)
            segment = self.tester.test_arrivals(view, start, end)
            self.keep(segment)
            start, is_waiting = segment.stop, segment.is_waiting
            if segment.is_long:
                yield start
            if start < end or self.runs.accounts.full:
                break
        return start

    def keep(self, segment: Segment) -> None:
        """Keep the queries of a tested segment that are tested again: here none is."""

    def next_close(self, view: View, start: int) -> int:  # noqa: ARG002 - nothing closes
        """Return the next row from ``start`` on before which a set closes; the view's end if none does."""
        return view.stop

    def close(self, view: View, row: int) -> bool:  # noqa: ARG002
        """Test the queries of sets that close before a row again; False if a commit has to come first."""
        return True
