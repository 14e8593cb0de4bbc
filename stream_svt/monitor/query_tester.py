"""Tests of queries by one monitor: noise is drawn for a batch at once, and only crossings are handled one by one."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stream_svt.mechanisms.noise import Noise
from stream_svt.mechanisms.sampler import Salt
from stream_svt.monitor.batch import QueryBatch
from stream_svt.monitor.event_builder import Crossing
from stream_svt.monitor.mutes import series_hashes
from stream_svt.monitor.queue_journal import Queue
from stream_svt.monitor.run_arrays import Integers, Mask, RunArrays, Status


class QueryNoise(Protocol):
    """What query noise is drawn from: see `KeyedSampler.draw`."""

    def draw(
        self,
        noise: Noise,
        rate: Fraction,
        *,
        salt: Salt,
        offset: Integers,
        row: Integers | int,
        attempt: Integers | int,
        branch: int,
        value: Integers,
    ) -> Integers:
        """Return the noise of each test, in grid steps."""
        ...


@dataclass(slots=True, repr=False)
class View:
    """A batch as one monitor sees it: rows [start, stop), with the clock at each row.

    ``eligible`` says which rows are queries for the monitor (None: all), ``outside`` which would be but for their
    dataset's period, ``markers`` which close a set of a dataset it covers; ``marked`` are their rows in order.
    """

    batch: QueryBatch
    start: int
    stop: int
    clock: Integers
    eligible: Mask | None
    outside: Integers
    markers: dict[int, str]
    marked: list[int]


@dataclass(slots=True, repr=False)
class Tests:
    """Queries to be tested, as columns; ``attempt`` counts from 0 and is one number for all or one for each."""

    dataset: Integers
    offset: Integers
    row: Integers
    value: Integers
    threshold: Integers | int
    attempt: Integers | int


class Candidate(NamedTuple):
    """A row whose test reaches the noisy threshold at some branch: its gaps by branch, and its threshold."""

    row: int
    gaps: Integers
    threshold: int


@dataclass(slots=True, repr=False)
class Segment:
    """Rows of a view from ``start`` on that are tested on arrival, and what was found.

    ``live`` are the rows that are tested, ``silent`` those of muted series. The segment ends before ``stop``.
    """

    view: View
    start: int
    stop: int
    live: Mask
    silent: Mask
    tops: list[int]

    def later(self, row: int) -> Integers:
        """Return the queries of a row's dataset that come after it in the segment."""
        datasets = self.view.batch.dataset
        rows = np.flatnonzero(datasets[row + 1 : self.stop] == datasets[row]) + row + 1
        eligible = self.view.eligible
        return rows if eligible is None else rows[eligible[rows]]

    def silence(self, rows: Integers) -> None:
        """Skip those of some rows that would be tested: their series are muted."""
        rows = rows[self.live[rows - self.start]] - self.start
        self.live[rows] = False
        self.silent[rows] = True

    def leave_out(self, rows: Integers) -> None:
        """Skip some rows: their run has ended."""
        self.live[rows - self.start] = self.silent[rows - self.start] = False

    def cut(self) -> None:
        """Leave out what comes after the end."""
        self.live, self.silent = self.live[: self.stop - self.start], self.silent[: self.stop - self.start]


class QueryTester:
    """Tests every query of one monitor once, and reports the tops. Those that test again (append) build on this.

    Args:
        runs: The monitor's runs.
        noise: Source of query noise.

    Attributes:
        row_cost: What a query costs, as a multiple of one that is tested with a whole batch at once.
        queue: What queries of a dataset wait in, None where none waits.
    """

    row_cost = 1
    queue: type[Queue[Any]] | None = None

    def __init__(self, runs: RunArrays, noise: QueryNoise) -> None:
        self.runs = runs
        self.noise = noise

    def test(self, view: View, start: int, stop: int) -> int:
        """Test rows [start, stop); return the row reached, before ``stop`` where something comes first."""
        return self.test_arrivals(view, start, stop).stop

    def next_close(self, view: View, start: int) -> int:  # noqa: ARG002 - nothing closes
        """Return the next row from ``start`` on before which a set closes; the view's end where none does."""
        return view.stop

    def close(self, view: View, row: int) -> bool:  # noqa: ARG002
        """Test again what waits in the sets that close before a row; False where durable noise is needed first."""
        return True

    # -- on arrival ------------------------------------------------------------------------------------------

    def test_arrivals(self, view: View, start: int, stop: int) -> Segment:
        """Test rows [start, stop) once; the segment ends before ``stop`` where something comes first.

        That is a run whose noise is not durable yet, a commit that is full, or a row that a top concerns.
        """
        segment = self._begin(view, start, self.open_waiting(view, start, stop))
        self._find_tops(segment)
        segment.cut()
        runs, live, silent = self.runs, segment.live, segment.silent
        if tested := int(live.sum()):
            runs.accounts.tested[runs.name] += tested
        runs.skip("muted", int(silent.sum()))
        if not live.all():
            datasets = view.batch.dataset[start : segment.stop]
            idle = ~live & ~silent & runs.covers[datasets]
            if view.eligible is not None:
                idle &= view.eligible[start : segment.stop]
            for dataset, count in zip(*np.unique(datasets[idle], return_counts=True), strict=True):
                runs.skip(runs.accounts.run_state(runs.name, int(dataset)).shown, int(count))
        return segment

    def open_waiting(self, view: View, first: int, last: int, *, ahead: bool = False) -> int:
        """Open runs for datasets that have a query in rows [first, last) and no run, in order of appearance.

        ``ahead`` of the tests this is done for a whole batch, so that one commit makes all of them durable. Returns
        the row reached: ``last``, or the first one whose run has to wait for the next commit.
        """
        runs = self.runs
        waiting = runs.status[view.batch.dataset[first:last]] == Status.WAITING
        if view.eligible is not None:
            waiting &= view.eligible[first:last]
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
        eligible = None if view.eligible is None else view.eligible[start:stop]
        pending = status == Status.PENDING
        if eligible is not None:
            pending &= eligible
        if pending.any():
            stop = start + int(pending.argmax())
            status, eligible = status[: stop - start], None if eligible is None else eligible[: stop - start]
        live = status == Status.TESTABLE
        if eligible is not None:
            live &= eligible
        segment = Segment(view, start, stop, live, np.zeros(len(live), dtype=np.bool_), [])
        if len(self.runs.mutes) and view.batch.series:
            self._silence(segment)
        return segment

    def _silence(self, segment: Segment) -> None:
        """Skip the queries of series that are muted at the beginning."""
        view, batch = segment.view, segment.view.batch
        rows = slice(segment.start, segment.stop)
        hits = self.runs.mutes.hits(batch.dataset[rows], _hashes(batch)[rows]) + segment.start
        segment.silence(self._muted(view, hits[segment.live[hits - segment.start]]))

    def _muted(self, view: View, rows: Integers) -> Integers:
        """Return those of some rows whose series is muted at their clock."""
        datasets, names, clock = view.batch.dataset, view.batch.series, view.clock
        is_muted = self.runs.mutes.is_muted
        muted = [row for row in rows.tolist() if is_muted(int(datasets[row]), names[row], int(clock[row]))]
        return np.array(muted, dtype=np.int64)

    def _find_tops(self, segment: Segment) -> None:
        """Report the tops of a segment in order; each may skip later rows, or end the segment before one of them."""
        view, batch, runs = segment.view, segment.view.batch, self.runs
        for row, gaps, threshold in self.candidates(view, segment.start, segment.live):
            if row >= segment.stop:
                break
            if not segment.live[row - segment.start]:
                continue
            dataset = int(batch.dataset[row])
            branch = self.branch(dataset, gaps)
            if branch is None:
                continue
            crossing = Crossing(
                dataset=dataset,
                branch=branch,
                gap=int(gaps[branch]),
                threshold=threshold,
                attempt=0,
                offset=int(batch.offset[row]),
                row=int(batch.row[row]),
                series=batch.series[row] if batch.series else None,
                query_id=batch.query_id[row],
            )
            segment.tops.append(row)
            woken = runs.report(crossing, int(view.clock[row]))
            self._after_top(segment, row, crossing.series, woken)
            if runs.accounts.full:
                segment.stop = min(segment.stop, row + 1)

    def _after_top(self, segment: Segment, row: int, series: str | None, woken: list[str]) -> None:
        """Skip later rows as a top demands; end the segment where a run may begin or a series is no longer muted."""
        later = segment.later(row)
        if len(later) == 0:
            return
        batch, dataset = segment.view.batch, int(segment.view.batch.dataset[row])
        status = self.runs.status[dataset]
        if status == Status.WAITING:
            segment.stop = int(later[0])
        elif status == Status.SKIP:
            segment.leave_out(later)
        elif series is not None:
            alike = later[_hashes(batch)[later] == series_hashes([series], 1)]
            segment.silence(self._muted(segment.view, alike))
            if woken:
                silent, start = segment.silent, segment.start
                rows = (k for k in later.tolist() if silent[k - start] and batch.series[k] in woken)
                segment.stop = next(rows, segment.stop)

    # -- tests -----------------------------------------------------------------------------------------------

    def candidates(self, view: View, start: int, live: Mask) -> list[Candidate]:
        """Return the rows of ``live``, a mask from ``start`` on, whose tests reach the noisy threshold, in order."""
        if not live.any():
            return []
        tests, rows = self._tests(view, start, live)
        chosen, gaps = self.reached(tests)
        thresholds = np.broadcast_to(tests.threshold, len(rows))[chosen].tolist()
        return list(map(Candidate, rows[chosen].tolist(), gaps.T, thresholds))

    def _tests(self, view: View, start: int, live: Mask) -> tuple[Tests, Integers]:
        """Return the tests of ``live``, and their rows."""
        batch = view.batch
        values, thresholds = self.on_grid(batch, start, live)
        rows = np.flatnonzero(live) + start
        # A slice is no copy.
        part = slice(start, start + len(live)) if len(rows) == len(live) else rows
        return Tests(batch.dataset[part], batch.offset[part], batch.row[part], values, thresholds, 0), rows

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
        mechanism, runs = self.runs.plan.mechanism, self.runs
        return self.noise.draw(
            mechanism.query_noise,
            mechanism.branches[branch].rate,
            salt=(runs.secrets["salt_high"][tests.dataset], runs.secrets["salt_low"][tests.dataset]),
            offset=tests.offset,
            row=tests.row if tests.row.any() else 0,
            attempt=tests.attempt,
            branch=branch,
            value=tests.value,
        )

    def branch(self, dataset: int, gaps: Integers) -> int | None:
        """Return the first branch that fired and that the run can still pay."""
        left = self.runs.accounts.run_state(self.runs.name, dataset).left
        return self.runs.plan.mechanism.branch_of(gaps, left)


def _hashes(batch: QueryBatch) -> NDArray[np.uint64]:
    """Return a number for the series of each row, computed once for all monitors."""
    if batch.series_hashes is None:
        batch.series_hashes = series_hashes(batch.series, len(batch))
    return batch.series_hashes
