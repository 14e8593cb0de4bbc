"""Append over finite sets: bottoms of an open set are tested again, pass after pass, once the set has closed.

The first test comes on arrival at the highest correction. When a marker record (or the public clock) closes the
set, the bottoms meet falling corrections until the tops allowed for the set are found, the run ends, or the last
correction was tried. Which query is tested when depends on released outcomes and public facts alone.
"""

from __future__ import annotations

from bisect import bisect_left
from heapq import heapify, heappop, heappush
from typing import cast

import numpy as np

from stream_svt.monitor.append import Append
from stream_svt.monitor.event_builder import Crossing
from stream_svt.monitor.pending import OpenSets, Waits
from stream_svt.monitor.query_tester import QueryTester, Segment, Tests, View
from stream_svt.monitor.run_arrays import Integers, Status
from stream_svt.monitor.snapshot import OpenSet
from stream_svt.settings.options import Sweep


class SweepAppend(Append):
    """Append with ``sweep``."""

    row_cost = (
        100  # the place of a query in its set is looked up by itself, and all that wait have to fit a commit
    )
    queue = OpenSets

    def __init__(self, tester: QueryTester) -> None:
        super().__init__(tester)
        self._opened: list[tuple[int, int, str]] | None = None

    @property
    def rules(self) -> Sweep:
        """Caps of sets and sweeps, as specified now."""
        return cast("Sweep", self.runs.spec.append)

    @property
    def sets(self) -> dict[int, OpenSets]:
        """The open sets by dataset."""
        return cast("dict[int, OpenSets]", self.runs.queues)

    @property
    def opened(self) -> list[tuple[int, int, str]]:
        """A heap of (clock at opening, dataset, set) of the open sets, in which closed ones may still stand."""
        if self._opened is None:  # first looked at after the state was loaded
            self._opened = [
                (waiting.opened_ms, dataset, name)
                for dataset, sets in self.sets.items()
                for name in sets.blocks
                if (waiting := sets.open(name)) is not None
            ]
            heapify(self._opened)
        return self._opened

    def test(self, view: View, start: int, stop: int) -> int:
        """Test rows [start, stop) on arrival, and keep the bottoms of sets."""
        segment = self.tester.test_arrivals(view, start, stop)
        self._keep(segment)
        return segment.stop

    def _keep(self, segment: Segment) -> None:
        """Keep the bottoms of open sets and count the tops found in them; sets open in order of their rows."""
        view, live, start = segment.view, segment.live, segment.start
        names = view.batch.set_id
        rows = np.flatnonzero(live) + start
        if names is None or not len(rows):
            return
        found = set(segment.tops)
        members: dict[tuple[int, str], list[int]] = {}
        for row, dataset in zip(rows.tolist(), view.batch.dataset[rows].tolist(), strict=True):
            name = names[row]
            if name is not None:
                members.setdefault((dataset, name), []).append(row)
        on_grid: tuple[Integers, Integers] | None = None
        everything = np.ones(len(live), dtype=np.bool_)
        for (dataset, name), mine in members.items():
            waiting = self._open_set(dataset, name, int(view.clock[mine[0]]))
            bottoms = [row for row in mine if row not in found]
            sets = self.sets[dataset]
            room = 0 if waiting is None else self.rules.max_set_size - sets.size_of(name)
            kept = np.array(bottoms[: max(room, 0)], dtype=np.int64)
            self.runs.skip("set-overflow", len(bottoms) - len(kept))
            if waiting is None:
                continue
            if len(mine) > len(bottoms):
                sets.add_tops(waiting, len(mine) - len(bottoms))
            if len(kept):
                if on_grid is None:
                    values, thresholds = self.tester.on_grid(view.batch, start, everything)
                    on_grid = values, np.broadcast_to(thresholds, len(live))
                values, thresholds = on_grid
                batch, chosen = view.batch, kept.tolist()
                columns = batch.offset[kept], batch.row[kept], values[kept - start], thresholds[kept - start]
                series = [batch.series[row] if batch.series else None for row in chosen]
                query_id = [batch.query_id[row] for row in chosen]
                sets.add(waiting, Waits(np.stack(columns), series, query_id))

    def _open_set(self, dataset: int, name: str, clock_ms: int) -> OpenSet | None:
        """Return a set, opened if need be; None where no further set may open."""
        opened, sets = self.opened, self.sets.get(dataset)
        if sets is None:
            runs = self.runs
            sets = self.sets[dataset] = OpenSets(runs.accounts.queues, runs.name, runs.datasets[dataset].name)
        waiting = sets.open(name)
        if waiting is None and len(sets) < self.rules.max_open_sets:
            waiting = sets.begin(name, clock_ms)
            heappush(opened, (clock_ms, dataset, name))
        return waiting

    def next_close(self, view: View, start: int) -> int:
        """Return the next row before which a set closes: a marker, or by the clock.

        By the clock a set closes that is open already, or that opens from ``start`` on.
        """
        marker = bisect_left(view.marked, start)
        stop = view.marked[marker] if marker < len(view.marked) else view.stop
        after = self.rules.close_after
        if after is not None and start < view.stop:
            oldest = self._oldest()
            opened = int(view.clock[start]) if oldest is None else min(int(view.clock[start]), oldest[0])
            stop = min(stop, start + int(np.searchsorted(view.clock[start : view.stop], opened + after)))
        return stop

    def _oldest(self) -> tuple[int, int, str] | None:
        """Return the open set that was opened first; forget those before it that have closed."""
        while self.opened:
            opened_ms, dataset, name = self.opened[0]
            sets = self.sets.get(dataset)
            waiting = None if sets is None else sets.open(name)
            if waiting is not None and waiting.opened_ms == opened_ms:
                return self.opened[0]
            heappop(self.opened)
        return None

    def close(self, view: View, row: int) -> bool:
        """Sweep the sets that close before a row; False where durable noise is needed first."""
        if row >= view.stop:
            return True
        now, after = int(view.clock[row]), self.rules.close_after
        while after is not None and (oldest := self._oldest()) is not None and oldest[0] + after <= now:
            _, dataset, name = oldest
            if self.runs.accounts.full or not self._sweep(dataset, name, now):
                return False
        marked = view.markers.get(row)
        if marked is not None:
            dataset = int(view.batch.dataset[row])
            if dataset in self.sets and marked in self.sets[dataset].blocks:
                return not self.runs.accounts.full and self._sweep(dataset, marked, now)
        return True

    def _sweep(self, dataset: int, name: str, now: int) -> bool:
        """Test the bottoms of a closed set, pass after pass; False where the run is not durable yet."""
        sets, runs = self.sets[dataset], self.runs
        closing, blocks = sets.open(name), sets.blocks[name]
        if blocks and closing is not None:
            if runs.status[dataset] == Status.WAITING:
                runs.open_run(dataset, now)
            if runs.status[dataset] == Status.PENDING:
                return False
            waiting = Waits.of(blocks)
            rest = np.arange(len(waiting.series))
            allowed = self.rules.tops_per_set - closing.tops
            passes = max(len(branch.corrections) for branch in runs.plan.mechanism.branches)
            for attempt in range(1, passes):
                if dataset in runs.mutes.held:
                    series = waiting.series
                    muted = [k for k in rest.tolist() if runs.mutes.is_muted(dataset, series[k], now)]
                    rest = np.setdiff1d(rest, muted)
                if not len(rest) or runs.status[dataset] != Status.TESTABLE or allowed <= 0:
                    break
                tops = self._pass(dataset, waiting, rest, attempt, allowed, now)
                allowed -= len(tops)
                rest = np.setdiff1d(rest, tops)
        sets.close(name)
        return True

    def _pass(
        self, dataset: int, waiting: Waits, rest: Integers, attempt: int, allowed: int, now: int
    ) -> list[int]:
        """Test what is left of a set once; return what was a top."""
        runs = self.runs
        tops: list[int] = []
        datasets = np.full(len(rest), dataset, dtype=np.int64)
        offsets, rows, values, thresholds = waiting.numbers[:, rest]
        tests = Tests(datasets, offsets, rows, values, thresholds, attempt)
        chosen, gaps = self.tester.reached(tests)
        for k, index in enumerate(rest[chosen].tolist()):
            if runs.status[dataset] != Status.TESTABLE or len(tops) >= allowed:
                break
            series = waiting.series[index]
            if runs.mutes.is_muted(dataset, series, now):
                continue
            branch = self.tester.branch(dataset, gaps[:, k])
            if branch is not None:
                offset, row, _, threshold = waiting.numbers[:, index].tolist()
                crossing = Crossing(
                    dataset=dataset,
                    branch=branch,
                    gap=int(gaps[branch, k]),
                    threshold=threshold,
                    attempt=attempt,
                    offset=offset,
                    row=row,
                    series=series,
                    query_id=waiting.query_id[index],
                )
                tops.append(index)
                runs.report(crossing, now)
        return tops
