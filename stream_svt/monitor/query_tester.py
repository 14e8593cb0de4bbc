"""Tests queries of one monitor: noise is drawn for many rows at once, only crossings are handled one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from stream_svt.mechanisms.arguments import reaching
from stream_svt.mechanisms.sampler import Identity, Sampler
from stream_svt.monitor.batch import NO_ROWS, Crossing, Integers, Mask, QueryBatch, Segment, Tests, View
from stream_svt.monitor.queue_journal import Queue
from stream_svt.monitor.runs import Runs, Status


class QueryTester:
    """Tests queries in the runs of a monitor, and reports the tops."""

    def __init__(self, runs: Runs, sampler: Sampler) -> None:
        self.runs = runs
        self.sampler = sampler

    def test_arrivals(self, view: View, start: int, stop: int) -> Segment:
        """Test rows [start, stop) once; the segment ends early before a run that is not durable or is to be opened."""
        segment = self._begin(view, start, self.open_waiting(view, start, stop))
        self._find_tops(segment)
        size, runs = segment.stop - start, self.runs
        live, muted = segment.live, segment.muted = segment.live[:size], segment.muted[:size]
        tested, skipped = int(np.count_nonzero(live)), int(np.count_nonzero(muted))
        if tested:
            runs.accounts.next.tested[runs.name] += tested
        runs.skip("muted", skipped)
        if tested + skipped < size:
            datasets = view.batch.dataset[start : segment.stop]
            idle = view.only_eligible(~live & ~muted & runs.covers[datasets], start)
            for dataset, count in zip(*np.unique(datasets[idle], return_counts=True), strict=True):
                runs.skip(runs.shown(int(dataset)), int(count))
        return segment

    def open_waiting(self, view: View, first: int, last: int, *, ahead: bool = False) -> int:
        """Open the runs that rows [first, last) need, in order, so that one commit makes all of them durable.

        ``ahead``: earlier rows are not tested yet. Returns ``last``, or the first row whose run has to wait because the
        commit is full.
        """
        runs = self.runs
        waiting = view.only_eligible(runs.status[view.batch.dataset[first:last]] == Status.WAITING, first)
        if not waiting.any():
            return last
        rows = np.flatnonzero(waiting) + first
        _, appearance = np.unique(view.batch.dataset[rows], return_index=True)
        for row in rows[np.sort(appearance)].tolist():
            dataset = int(view.batch.dataset[row])
            if not ahead or runs.acts_on_queries_alone(dataset):
                if runs.accounts.full:
                    return int(row)
                runs.open_run(dataset, int(view.batch.timestamp_ms[row]))
        return last

    def _begin(self, view: View, start: int, stop: int) -> Segment:
        """Return the segment from ``start`` to ``stop`` or the first row whose run is not durable or not open yet."""
        datasets = view.batch.dataset[start:stop]
        status = self.runs.status[datasets]
        pending = status == Status.PENDING
        if self.runs.limited:
            passed = self.runs.due(datasets, view.batch.timestamp_ms[start:stop])
            pending |= (status == Status.LIMITED) & passed
        pending = view.only_eligible(pending, start)
        if pending.any():
            stop = start + int(pending.argmax())
        live = view.only_eligible(status[: stop - start] == Status.TESTABLE, start)
        segment = Segment(view, start, stop, live, np.zeros(len(live), dtype=np.bool_), [])
        if self.runs.mutes and view.batch.series:
            hashes = view.batch.series.hashes()[start:stop]
            hits = self.runs.filter.hits(view.batch.dataset[start:stop], hashes)
            self._mute_rows(segment, hits + start)
        return segment

    def _mute_rows(self, segment: Segment, rows: Integers) -> None:
        """Skip those of these rows whose series is muted at their clock."""
        if not len(rows):
            return
        batch, runs = segment.view.batch, self.runs
        series, which = batch.series.at(rows)
        pair = which * len(runs.covers) + batch.dataset[rows]
        _, first, index = np.unique(pair, return_index=True, return_inverse=True)
        pairs = zip(batch.dataset[rows[first]].tolist(), which[first].tolist(), strict=True)
        ends = np.array([runs.muted_until(dataset, series[text]) for dataset, text in pairs])
        hit = rows[segment.view.clock[rows] < ends[index]] - segment.start
        hit = hit[segment.live[hit]]
        segment.live[hit], segment.muted[hit] = False, True

    def _find_tops(self, segment: Segment) -> None:
        """Report the tops of a segment in order; each may mute later rows or shorten the segment."""
        view, batch, runs = segment.view, segment.view.batch, self.runs
        rows, gaps, thresholds = self.candidates(view, segment.start, segment.live)
        place = 0
        while place < len(rows) and (row := int(rows[place])) < segment.stop:
            if not segment.live[row - segment.start]:
                # Nothing is released of such rows: all are skipped at once, so that their number takes no time.
                live = segment.live[rows[place:] - segment.start]
                place += int(live.argmax()) or len(live)
                continue
            column, threshold = gaps[:, place].tolist(), int(thresholds[place])
            place += 1
            dataset = int(batch.dataset[row])
            if (branch := self.branch(dataset, column)) is None:
                continue
            series = batch.series[row] if batch.series else None
            query = int(batch.offset[row]), int(batch.row[row]), threshold, series, batch.query_id[row] or ""
            segment.tops.append(row)
            woken = runs.report(Crossing(dataset, *query, branch, column[branch], 0), int(view.clock[row]))
            self._after_top(segment, row, series, woken)
            if runs.accounts.full:
                segment.stop = min(segment.stop, row + 1)

    def _after_top(self, segment: Segment, row: int, series: str | None, woken: list[str]) -> None:
        """Skip later rows after a top; end the segment where a run may begin or a series is no longer muted."""
        batch, start, dataset = segment.view.batch, segment.start, int(segment.view.batch.dataset[row])
        status = self.runs.status[dataset]
        if series is not None and dataset in self.runs.mutes and status > Status.WAITING:
            hashes = batch.series.hashes()[row : segment.stop]
            same = (hashes[1:] == hashes[0]).nonzero()[0] + row + 1
            self._mute_rows(segment, same[batch.dataset[same] == dataset])
            if not woken:
                return
        of_dataset = batch.dataset[row + 1 : segment.stop] == dataset
        later = np.flatnonzero(segment.view.only_eligible(of_dataset, row + 1)) + row + 1
        if status == Status.WAITING:
            segment.stop = int(later.min(initial=segment.stop))
        elif status < Status.WAITING:
            segment.live[later - start] = segment.muted[later - start] = False
        else:
            rows = (k for k in later.tolist() if segment.muted[k - start] and batch.series[k] in woken)
            segment.stop = next(rows, segment.stop)

    def candidates(
        self, view: View, start: int, live: Mask, *, draw_all: bool = False
    ) -> tuple[Integers, Integers, Integers]:
        """Return the rows of ``live``, a mask from ``start`` on, that reach the noisy threshold at some branch.

        Returns rows in order, their gaps by branch, shape (branches, rows), and their thresholds in grid steps.
        ``draw_all``: see `reached`.
        """
        tested, batch = int(np.count_nonzero(live)), view.batch
        if not tested:
            return NO_ROWS, NO_ROWS, NO_ROWS
        values, thresholds = self.on_grid(batch, start, live)
        rows = None if tested == len(live) else np.flatnonzero(live) + start
        part = slice(start, start + len(live)) if rows is None else rows  # a slice makes no copy
        tests = Tests(batch.dataset[part], batch.offset[part], batch.row[part], values, thresholds, 0)
        chosen, gaps = self.reached(tests, draw_all=draw_all)
        return (
            chosen + start if rows is None else rows[chosen],
            gaps,
            np.broadcast_to(thresholds, tested)[chosen],
        )

    def on_grid(self, batch: QueryBatch, start: int, live: Mask) -> tuple[Integers, Integers | int]:
        """Return values and thresholds of the rows of ``live`` in grid steps."""
        plan = self.runs.plan
        values = plan.grid.values(batch, start, start + len(live))
        common = plan.grid.threshold(self.runs.spec.threshold)
        all_live = bool(live.all())
        if not batch.threshold:
            return (values if all_live else values[live]), common
        thresholds = np.full(len(live), common, dtype=np.int64)
        for row, threshold in batch.threshold.items():
            if start <= row < start + len(live):
                thresholds[row - start] = plan.grid.threshold(threshold)
        return (values, thresholds) if all_live else (values[live], thresholds[live])

    def reached(self, tests: Tests, *, draw_all: bool = False) -> tuple[Integers, Integers]:
        """Return which tests reach the noisy threshold at some branch, and their gaps: see `SparseVector.reached`.

        Noise is a function of run, position, attempt and value. ``draw_all``: draw it for each test, because not all
        that reach the threshold are released, and a draw takes time.
        """
        runs, mechanism = self.runs, self.runs.plan.mechanism
        secrets, laws = runs.secrets.take(tests.dataset), mechanism.branch_laws
        identity = Identity(
            salt=(secrets["salt_high"], secrets["salt_low"]),
            offset=tests.offset,
            row=tests.row if tests.row.any() else 0,
            attempt=tests.attempt,
            branch=0,
            value=tests.value,
        )

        def drawn(branch: int) -> Integers:
            return self.sampler.draw(laws[branch], identity._replace(branch=branch))

        def drawn_where_reached(branch: int, least: Integers) -> tuple[Integers, Integers]:
            return self.sampler.reaching(laws[branch], identity._replace(branch=branch), least)

        noise = reaching(drawn) if draw_all else drawn_where_reached
        # An open run pays its only branch.
        left = runs.left.take(tests.dataset) if len(laws) > 1 else mechanism.smallest_units
        return mechanism.reached(tests.value, tests.threshold, secrets["noise"], left, tests.attempt, noise)

    def branch(self, dataset: int, gaps: Sequence[int] | Integers) -> int | None:
        """Return the first branch that fired and that the run can pay, None if there is none."""
        return self.runs.plan.mechanism.branch_of(gaps, int(self.runs.left[dataset]))


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

    def test(self, view: View, start: int, stop: int) -> int:
        """Test rows [start, stop); return the row reached: less than ``stop`` if a commit or a new run comes first."""
        return self.tester.test_arrivals(view, start, stop).stop

    def next_close(self, view: View, start: int) -> int:  # noqa: ARG002 - nothing closes
        """Return the next row from ``start`` on before which a set closes; the view's end if none does."""
        return view.stop

    def close(self, view: View, row: int) -> bool:  # noqa: ARG002
        """Test the queries of sets that close before a row again; False if a commit has to come first."""
        return True
