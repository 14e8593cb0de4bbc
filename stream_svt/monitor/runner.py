"""Steps one monitor through batches: which rows are tested next, and when runs end by schedule.

It stops at a row whose run is not durable yet, or where the next commit is full, until the shard has committed. Noise
is drawn for many rows at once, and only crossings are handled one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from stream_svt.mechanisms.noise import Law
from stream_svt.mechanisms.sampler import Identity
from stream_svt.monitor.accounts import Accounts
from stream_svt.monitor.batch import Crossing, Integers, Mask, QueryBatch, Segment, Tests, View
from stream_svt.monitor.queue_journal import Queue
from stream_svt.monitor.runs import Runs, Status
from stream_svt.settings.monitors import MonitorSpec

QueryNoise = Callable[[Law, Identity], Integers]
"""What query noise is drawn from: see `KeyedSampler.draw`."""

_NO_ROWS = np.zeros(0, dtype=np.int64)
_NO_ROW = np.zeros(0, dtype=np.bool_)


class Runner:
    """Steps one monitor, and tests each query once, on arrival.

    Attributes:
        row_cost: What a query costs, as a multiple of one that is tested with a whole batch at once.
        queue: What queries of a dataset wait in for another test, None where none waits.
        offset, row, clock_ms: The next query to look at, and the running maximum of the broker's timestamps
            before it.
        started: Whether the monitor's topic was ever read.
        refused: Rows of the batch outside their dataset's period, since the engine took note of them last.
    """

    row_cost: ClassVar[int] = 1
    queue: ClassVar[type[Queue[Any]] | None] = None

    def __init__(self, accounts: Accounts, noise: QueryNoise, spec: MonitorSpec) -> None:
        self.name = spec.name
        self.runs = Runs(accounts, spec)
        self.noise = noise
        self.periods = accounts.datasets.periods
        self.offset = 0
        self.row = 0
        self.clock_ms = 0
        self.started = False
        self.refused: list[int] = []

    @property
    def spec(self) -> MonitorSpec:
        """The specification that new runs are opened under."""
        return self.runs.spec

    # -- what comes next ---------------------------------------------------------------------------------------

    def advance(self, batch: QueryBatch, stop: int, end: int) -> bool:
        """Consume the batch from where the monitor stands, before row ``stop`` and offset ``end``.

        False where the engine has to commit before the end: durable noise is needed, or the commit is full.
        """
        view = self._view(batch, stop)
        at = view.start
        self.open_waiting(view, at, stop, ahead=True)
        while True:
            if self.runs.accounts.full and at < stop:
                return self._stop_at(view, at)
            due = self._resample_due(view, at)
            last = min(at + int(due.argmax()) if due.any() else stop, self.next_close(view, at))
            reached = self.test(view, at, last)
            if at < reached < last:
                at = reached  # cut short, to look again at what comes next
                continue
            if reached < last:
                return self._stop_at(view, reached)
            self._resample(view, reached)
            if not self.close(view, reached):
                return self._stop_at(view, reached)
            at = reached
            if at >= stop:
                break
            at += at in view.markers
        self._passed(view, stop)
        # Where monitors of a topic stand apart, a batch may lie behind this one.
        inside = stop < len(batch) and int(batch.offset[stop]) == end
        self.offset, self.row = max((self.offset, self.row), (end, int(batch.row[stop]) if inside else 0))
        return True

    def _view(self, batch: QueryBatch, stop: int) -> View:
        """Return the batch before row ``stop`` as this monitor sees it."""
        start = 0
        if self.offset > batch.first or self.row > 0:
            start = min(stop, batch.index_of(self.offset, self.row))
        clock = batch.timestamp_ms.copy()
        if start < stop:
            clock[start] = max(self.clock_ms, int(clock[start]))
            np.maximum.accumulate(clock[start:], out=clock[start:])
        eligible, outside = self._eligible(batch, start, clock)
        markers = {
            row: name
            for row, name in batch.markers.items()
            if start <= row < stop
            and self.runs.covers[batch.dataset[row]]
            and batch.monitor.get(row, self.name) == self.name
        }
        return View(batch, start, stop, clock, eligible, outside, markers, sorted(markers))

    def _eligible(self, batch: QueryBatch, start: int, clock: Integers) -> tuple[Mask | None, Integers]:
        """Return which rows are queries for this monitor (None: all), and which are but for their period."""
        if self.runs.covers.all() and not batch.markers and not batch.monitor and self.periods is None:
            return None, _NO_ROWS
        eligible: Mask = self.runs.covers[batch.dataset]
        eligible[list(batch.markers)] = False
        eligible[[row for row, name in batch.monitor.items() if name != self.name]] = False
        if self.periods is None:
            return eligible, _NO_ROWS
        begins, ends = self.periods
        inside = (clock >= begins[batch.dataset]) & (clock < ends[batch.dataset])
        outside = np.flatnonzero(eligible & ~inside)
        return eligible & inside, outside[outside >= start]

    def _passed(self, view: View, end: int) -> None:
        """Go by the clock before row ``end``; count and note the rows that came outside their dataset's period."""
        outside = view.outside[view.outside < end].tolist()
        self.runs.skip("outside-period", len(outside))
        self.refused += outside
        if end > view.start:
            self.clock_ms = int(view.clock[end - 1])

    def _stop_at(self, view: View, at: int) -> bool:
        """Remember row ``at`` as the next one; return False."""
        self._passed(view, at)
        self.offset, self.row = int(view.batch.offset[at]), int(view.batch.row[at])
        return False

    def _resample_due(self, view: View, at: int) -> Mask:
        """Return which of the rows from ``at`` on are queries that meet a run past its scheduled end."""
        if self.spec.resample_every is None:
            return _NO_ROW
        datasets = view.batch.dataset[at : view.stop]
        is_open = self.runs.status[datasets] == Status.TESTABLE
        return view.only_eligible((view.clock[at : view.stop] >= self.runs.deadline[datasets]) & is_open, at)

    def _resample(self, view: View, at: int) -> None:
        """End the run that row ``at`` meets past its scheduled end, and open the next one.

        Where it is due, so are those of other datasets whose next query comes too late for theirs: all are opened
        now, each at the clock of its own query, for one commit to make them durable.
        """
        due = self._resample_due(view, at)
        if not due.any() or not due[0]:
            return
        runs = self.runs
        queries = np.flatnonzero(view.only_eligible(np.ones(len(due), dtype=np.bool_), at))
        _, first = np.unique(view.batch.dataset[at:][queries], return_index=True)
        for row in np.sort(queries[first]).tolist():
            dataset = int(view.batch.dataset[at + row])
            if due[row] and (row == 0 or runs.acts_on_queries_alone(dataset)):
                if row and runs.accounts.full:
                    break
                runs.end_run(dataset, "schedule")
                runs.open_run(dataset, int(view.clock[at + row]))

    # -- tests -----------------------------------------------------------------------------------------------

    def test(self, view: View, start: int, stop: int) -> int:
        """Test rows [start, stop); return the row reached, before ``stop`` where something comes first."""
        return self.test_arrivals(view, start, stop).stop

    def next_close(self, view: View, start: int) -> int:  # noqa: ARG002 - nothing closes
        """Return the next row from ``start`` on before which a set closes; the view's end where none does."""
        return view.stop

    def close(self, view: View, row: int) -> bool:  # noqa: ARG002
        """Test again what waits in the sets that close before a row; False where durable noise is needed first."""
        return True

    def test_arrivals(self, view: View, start: int, stop: int) -> Segment:
        """Test rows [start, stop) once; the segment ends before a run that is not durable, or a row a top concerns."""
        segment = self._begin(view, start, self.open_waiting(view, start, stop))
        self._find_tops(segment)
        size, runs = segment.stop - start, self.runs
        live, silent = segment.live, segment.silent = segment.live[:size], segment.silent[:size]
        if tested := int(live.sum()):
            runs.accounts.next.tested[runs.name] += tested
        runs.skip("muted", int(silent.sum()))
        if not live.all():
            datasets = view.batch.dataset[start : segment.stop]
            idle = view.only_eligible(~live & ~silent & runs.covers[datasets], start)
            for dataset, count in zip(*np.unique(datasets[idle], return_counts=True), strict=True):
                runs.skip(runs.run_state(int(dataset)).shown, int(count))
        return segment

    def open_waiting(self, view: View, first: int, last: int, *, ahead: bool = False) -> int:
        """Open runs for rows [first, last) in order, perhaps ``ahead`` of the tests, for one commit to make durable.

        Returns the row reached: ``last``, or the first one whose run has to wait for the next commit.
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
                runs.open_run(dataset, int(view.clock[row]))
        return last

    def _begin(self, view: View, start: int, stop: int) -> Segment:
        """Return the segment from ``start`` on, up to ``stop`` or the first run that is not durable."""
        status = self.runs.status[view.batch.dataset[start:stop]]
        pending = view.only_eligible(status == Status.PENDING, start)
        if pending.any():
            stop = start + int(pending.argmax())
        live = view.only_eligible(status[: stop - start] == Status.TESTABLE, start)
        segment = Segment(view, start, stop, live, np.zeros(len(live), dtype=np.bool_), [])
        if self.runs.mutes and view.batch.series:
            self._silence(segment, np.flatnonzero(live) + start)
        return segment

    def _silence(self, segment: Segment, rows: Integers) -> None:
        """Skip those of some live rows whose series is muted at their clock."""
        mutes, names, clock = self.runs.mutes, segment.view.batch.series, segment.view.clock
        datasets = segment.view.batch.dataset[rows].tolist()
        muted = [
            row
            for row, dataset in zip(rows.tolist(), datasets, strict=True)
            if dataset in mutes
            and names[row] in mutes[dataset].entries
            and mutes[dataset].is_muted(names[row], int(clock[row]))
        ]
        segment.silence(np.array(muted, dtype=np.int64))

    def _find_tops(self, segment: Segment) -> None:
        """Report the tops of a segment in order; each may skip later rows, or end the segment before one of them."""
        view, batch, runs = segment.view, segment.view.batch, self.runs
        for row, gaps, threshold in self.candidates(view, segment.start, segment.live):
            if row >= segment.stop:
                break
            dataset = int(batch.dataset[row])
            if not segment.live[row - segment.start] or (branch := self.branch(dataset, gaps)) is None:
                continue
            series = batch.series[row] if batch.series else None
            query = int(batch.offset[row]), int(batch.row[row]), threshold, series, batch.query_id[row]
            segment.tops.append(row)
            woken = runs.report(Crossing(dataset, *query, branch, int(gaps[branch]), 0), int(view.clock[row]))
            self._after_top(segment, row, series, woken)
            if runs.accounts.full:
                segment.stop = min(segment.stop, row + 1)

    def _after_top(self, segment: Segment, row: int, series: str | None, woken: list[str]) -> None:
        """Skip later rows as a top demands; end the segment where a run may begin or a series is no longer muted."""
        later = segment.later(row)
        if len(later) == 0:
            return
        batch, start = segment.view.batch, segment.start
        status = self.runs.status[batch.dataset[row]]
        if status == Status.WAITING:
            segment.stop = int(later[0])
        elif status == Status.SKIP:
            segment.live[later - start] = segment.silent[later - start] = False
        elif series is not None:
            alike = [k for k in later.tolist() if batch.series[k] == series]
            self._silence(segment, np.array(alike, dtype=np.int64))
            if woken:
                rows = (k for k in later.tolist() if segment.silent[k - start] and batch.series[k] in woken)
                segment.stop = next(rows, segment.stop)

    def candidates(self, view: View, start: int, live: Mask) -> list[tuple[int, Integers, int]]:
        """Return the rows of ``live``, a mask from ``start`` on, that reach the noisy threshold at some branch.

        They come in order, with their gaps by branch and their threshold in grid steps.
        """
        if not live.any():
            return []
        batch = view.batch
        values, thresholds = self.on_grid(batch, start, live)
        rows = np.flatnonzero(live) + start
        # A slice is no copy.
        part = slice(start, start + len(live)) if len(rows) == len(live) else rows
        tests = Tests(batch.dataset[part], batch.offset[part], batch.row[part], values, thresholds, 0)
        chosen, gaps = self.reached(tests)
        found = np.broadcast_to(thresholds, len(rows))[chosen].tolist()
        return list(zip(rows[chosen].tolist(), gaps.T, found, strict=True))

    def on_grid(self, batch: QueryBatch, start: int, live: Mask) -> tuple[Integers, Integers | int]:
        """Return values and thresholds of the rows of ``live`` in grid steps."""
        plan = self.runs.plan
        values = plan.grid.values(batch, start, start + len(live))
        common = plan.grid.threshold(self.runs.spec.threshold)
        whole = bool(live.all())
        if not batch.threshold:
            return (values if whole else values[live]), common
        thresholds = np.full(len(live), common, dtype=np.int64)
        for row, threshold in batch.threshold.items():
            if start <= row < start + len(live):
                thresholds[row - start] = plan.grid.threshold(threshold)
        return (values, thresholds) if whole else (values[live], thresholds[live])

    def reached(self, tests: Tests) -> tuple[Integers, Integers]:
        """Return which tests reach the noisy threshold at some branch, and their gaps at every branch."""
        gaps = self.runs.plan.mechanism.branch_gaps(
            tests.value,
            tests.threshold,
            self.runs.secrets["noise"][tests.dataset],
            tests.attempt,
            lambda branch: self.draw(tests, branch),
        )
        best = gaps[0] if len(gaps) == 1 else gaps.max(axis=0)
        chosen = np.flatnonzero(best >= 0)
        return chosen, gaps[:, chosen]

    def draw(self, tests: Tests, branch: int) -> Integers:
        """Return the query noise of every test for a branch: a function of run, place, attempt and value."""
        mechanism, secrets = self.runs.plan.mechanism, self.runs.secrets
        identity = Identity(
            salt=(secrets["salt_high"][tests.dataset], secrets["salt_low"][tests.dataset]),
            offset=tests.offset,
            row=tests.row if tests.row.any() else 0,
            attempt=tests.attempt,
            branch=branch,
            value=tests.value,
        )
        return self.noise(Law(mechanism.query_noise, mechanism.branches[branch].rate), identity)

    def branch(self, dataset: int, gaps: Integers) -> int | None:
        """Return the first branch that fired and that the run can still pay."""
        return self.runs.plan.mechanism.branch_of(gaps, self.runs.run_state(dataset).left)
