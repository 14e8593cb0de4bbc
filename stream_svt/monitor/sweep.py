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
from numpy.typing import NDArray

from stream_svt.monitor.append import Append
from stream_svt.monitor.event_builder import Crossing
from stream_svt.monitor.pending import Block, OpenSet, OpenSets
from stream_svt.monitor.query_tester import QueryTester, Segment, Tests, View
from stream_svt.monitor.run_arrays import Status
from stream_svt.settings.options import Sweep


class SweepAppend(Append):
    """Append with ``sweep``."""

    row_cost = (
        100  # the place of a query in its set is looked up by itself, and all that wait have to fit a commit
    )

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
                for name, waiting in sets.open.items()
            ]
            heapify(self._opened)
        return self._opened

    def new_queue(self, name: str) -> OpenSets:
        """Return the open sets of the dataset of this name: none."""
        return OpenSets(self.runs.accounts.queues, self.runs.name, name)

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
        columns: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        everything = np.ones(len(live), dtype=np.bool_)
        for (dataset, name), mine in members.items():
            waiting = self._open_set(dataset, name, int(view.clock[mine[0]]))
            bottoms = [row for row in mine if row not in found]
            room = 0 if waiting is None else self.rules.max_set_size - len(waiting)
            kept = np.array(bottoms[: max(room, 0)], dtype=np.int64)
            self.runs.skip("set-overflow", len(bottoms) - len(kept))
            if waiting is None:
                continue
            sets = self.sets[dataset]
            if len(mine) > len(bottoms):
                waiting.tops += len(mine) - len(bottoms)
                sets.touch(waiting)
            if len(kept):
                version = int(self.runs.version[dataset])
                if version not in columns:
                    plan = self.runs.plans[version]
                    values, thresholds = self.tester.on_grid(view.batch, plan, start, everything)
                    columns[version] = values, np.broadcast_to(thresholds, len(live))
                values, thresholds = columns[version]
                sets.add(waiting, _block_of(view, kept, values[kept - start], thresholds[kept - start]))

    def _open_set(self, dataset: int, name: str, clock_ms: int) -> OpenSet | None:
        """Return a set, opened if need be; None where no further set may open."""
        opened, sets = self.opened, self.sets.get(dataset)
        if sets is None:
            sets = self.sets[dataset] = self.new_queue(self.runs.datasets[dataset].name)
        waiting = sets.open.get(name)
        if waiting is None and len(sets) < self.rules.max_open_sets:
            waiting = sets.begin(name, clock_ms)
            heappush(opened, (clock_ms, dataset, name))
        return waiting

    def next_close(self, view: View, start: int) -> int:
        """Return the next row before which a set closes: a marker, or by the clock.

        By the clock a set closes that is open already, or that opens from ``start`` on.
        """
        marker = bisect_left(view.marked, start)
        stop = view.marked[marker] if marker < len(view.marked) else len(view.batch)
        after = self.rules.close_after
        if after is not None and start < len(view.batch):
            oldest = self._oldest()
            opened = int(view.clock[start]) if oldest is None else min(int(view.clock[start]), oldest[0])
            stop = min(stop, start + int(np.searchsorted(view.clock[start:], opened + after)))
        return stop

    def _oldest(self) -> tuple[int, int, str] | None:
        """Return the open set that was opened first; forget those before it that have closed."""
        while self.opened:
            opened_ms, dataset, name = self.opened[0]
            sets = self.sets.get(dataset)
            waiting = None if sets is None else sets.open.get(name)
            if waiting is not None and waiting.opened_ms == opened_ms:
                return self.opened[0]
            heappop(self.opened)
        return None

    def close(self, view: View, row: int) -> bool:
        """Sweep the sets that close before a row; False where durable noise is needed first."""
        if row >= len(view.batch):
            return True
        now, after = int(view.clock[row]), self.rules.close_after
        while after is not None and (oldest := self._oldest()) is not None and oldest[0] + after <= now:
            _, dataset, name = oldest
            if self.runs.accounts.full:
                return False
            if not self._sweep(dataset, self.sets[dataset].open[name], now):
                return False
        marked = view.markers.get(row)
        if marked is not None:
            dataset = int(view.batch.dataset[row])
            sets = self.sets.get(dataset)
            closing = None if sets is None else sets.open.get(marked)
            if closing is not None:
                return not self.runs.accounts.full and self._sweep(dataset, closing, now)
        return True

    def _sweep(self, dataset: int, waiting: OpenSet, now: int) -> bool:
        """Test the bottoms of a closed set, pass after pass; False where the run is not durable yet."""
        allowed = self.rules.tops_per_set
        if waiting.blocks:
            if self.runs.status[dataset] == Status.WAITING:
                self.runs.open_run(dataset, now)
            if self.runs.status[dataset] == Status.PENDING:
                return False
            rest: Block | None = Block.concatenate(waiting.blocks)
            plan = self.runs.plan_of(dataset)
            passes = max(len(branch.corrections) for branch in plan.mechanism.branches)
            for attempt in range(1, passes):
                if rest is None or self.runs.status[dataset] != Status.TESTABLE or waiting.tops >= allowed:
                    break
                rest = self._pass(dataset, waiting, rest, attempt, now)
        self.sets[dataset].close(waiting)
        return True

    def _pass(self, dataset: int, waiting: OpenSet, rest: Block, attempt: int, now: int) -> Block | None:
        """Test what is left of a set once; return what stays a bottom."""
        allowed, plan = self.rules.tops_per_set, self.runs.plan_of(dataset)
        muted = self.runs.mutes.held.get(dataset, ())
        silent = [
            index
            for index, series in enumerate(rest.series)
            if series in muted and self.runs.mutes.is_muted(dataset, series, now)
        ]
        if silent:
            rest = rest.take(np.delete(np.arange(len(rest)), silent))
        if not len(rest):
            return None
        datasets = np.full(len(rest), dataset, dtype=np.int64)
        tests = Tests(datasets, rest.offset, rest.row, rest.value, rest.threshold, attempt)
        chosen, gaps = self.tester.reached(plan, tests)
        tops: list[int] = []
        for k, index in enumerate(chosen.tolist()):
            if self.runs.status[dataset] != Status.TESTABLE or waiting.tops >= allowed:
                break
            if self.runs.mutes.is_muted(dataset, rest.series[index], now):
                continue
            branch = self.tester.branch(dataset, gaps[:, k])
            if branch is None:
                continue
            crossing = Crossing(
                dataset=dataset,
                branch=branch,
                gap=int(gaps[branch, k]),
                threshold=int(rest.threshold[index]),
                attempt=attempt,
                offset=int(rest.offset[index]),
                row=int(rest.row[index]),
                series=rest.series[index],
                query_id=rest.query_id[index],
            )
            tops.append(index)
            waiting.tops += 1
            self.runs.report(crossing, now)
        if tops:
            rest = rest.take(np.delete(np.arange(len(rest)), tops))
        return rest if len(rest) else None


def _block_of(
    view: View, rows: NDArray[np.int64], values: NDArray[np.int64], thresholds: NDArray[np.int64]
) -> Block:
    """Return rows of a batch as a block that can wait."""
    batch, chosen = view.batch, rows.tolist()
    return Block(
        batch.offset[rows],
        batch.row[rows],
        values,
        thresholds,
        [batch.series[row] if batch.series else None for row in chosen],
        [batch.query_id[row] for row in chosen],
    )
