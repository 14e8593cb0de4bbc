"""Append over finite sets: bottoms of an open set are tested again, pass after pass, once the set has closed.

The first test comes on arrival at the highest correction. When a marker record (or the public clock) closes the
set, the bottoms meet falling corrections until the tops allowed for the set are found, the run ends, or the last
correction was tried. Which query is tested when depends on released outcomes and public facts alone.
"""

from __future__ import annotations

from bisect import bisect_left
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from stream_svt.errors import MisuseError
from stream_svt.monitor.accounts import Accounts
from stream_svt.monitor.announcer import Crossing
from stream_svt.monitor.monitor_spec import MonitorSpec
from stream_svt.monitor.options import Sweep
from stream_svt.monitor.pending import Block, OpenSet, OpenSets
from stream_svt.monitor.queue_journal import Queue
from stream_svt.monitor.runner import (
    Mask,
    QueryNoise,
    Runner,
    Status,
    Tests,
    View,
    block_of,
)
from stream_svt.monitor.shard_datasets import ShardDatasets


class SweepRunner(Runner):
    """A monitor with ``append: sweep``.

    ``sets`` holds the open sets by dataset, ``opened`` all of them as a heap of (clock at opening, dataset, set), in
    which closed ones may still stand.
    """

    def __init__(
        self, accounts: Accounts, noise: QueryNoise, spec: MonitorSpec, datasets: ShardDatasets
    ) -> None:
        super().__init__(accounts, noise, spec, datasets)
        self.sets: dict[int, OpenSets] = {}
        self.opened: list[tuple[int, int, str]] = []

    @property
    def rules(self) -> Sweep:
        """Caps of sets and sweeps, as specified now."""
        rules = self.spec.append
        if not isinstance(rules, Sweep):
            message = f"monitor {self.name} sweeps no sets"
            raise MisuseError(message)
        return rules

    @property
    def row_cost(self) -> int:
        """What a query costs: its place in its set is looked up by itself, and all that wait have to fit a commit."""
        return 100

    def queued(self, dataset: int) -> int:
        """Return the number of queries that wait in open sets of a dataset."""
        sets = self.sets.get(dataset)
        return 0 if sets is None else sum(map(len, sets.open.values()))

    def forget_pending(self, dataset: int) -> None:
        """Drop what waits: the lattice it was measured on is no longer the monitor's."""
        sets = self.sets.get(dataset)
        if sets is not None:
            for waiting in list(sets.open.values()):
                sets.close(waiting)

    def drop_pending(self, dataset: int) -> None:
        """Drop what waits."""
        sets = self.sets.pop(dataset, None)
        if sets is not None:
            sets.drop()

    def drop_all(self) -> None:
        """Drop what waits on any dataset."""
        for dataset in list(self.sets):
            self.drop_pending(dataset)

    def new_queue(self, dataset: int, name: str) -> Queue:  # noqa: ARG002
        """Return the open sets of a dataset: none."""
        return OpenSets(self.accounts.queues, self.name, name)

    def take_back(self, dataset: int, queue: Queue) -> None:
        """Go on with open sets that were loaded."""
        if isinstance(queue, OpenSets):
            self.sets[dataset] = queue
            for set_id, waiting in queue.open.items():
                heappush(self.opened, (waiting.opened_ms, dataset, set_id))

    # -- a batch ---------------------------------------------------------------------------------------------

    def _tested(self, view: View, at: int, live: Mask, tops: list[int]) -> None:
        """Keep the bottoms of open sets and count the tops found in them; sets open in order of their rows."""
        names = view.batch.set_id
        rows = np.flatnonzero(live) + at
        if names is None or not len(rows):
            return
        found = set(tops)
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
            self.skip("set-overflow", len(bottoms) - len(kept))
            if waiting is None:
                continue
            sets = self.sets[dataset]
            if len(mine) > len(bottoms):
                waiting.tops += len(mine) - len(bottoms)
                sets.touch(waiting)
            if len(kept):
                version = int(self.version[dataset])
                if version not in columns:
                    values, thresholds = self._on_grid(view.batch, self.plans[version], at, everything)
                    columns[version] = values, np.broadcast_to(thresholds, len(live))
                values, bars = columns[version]
                sets.add(waiting, block_of(view, kept, values[kept - at], bars[kept - at]))

    def _acts_on_queries_alone(self, dataset: int) -> bool:
        return not self.sets.get(dataset)

    def _open_set(self, dataset: int, name: str, clock_ms: int) -> OpenSet | None:
        """Return a set, opened if need be; None where no further set may open."""
        sets = self.sets.get(dataset)
        if sets is None:
            sets = OpenSets(self.accounts.queues, self.name, self.datasets[dataset].name)
            self.sets[dataset] = sets
        waiting = sets.open.get(name)
        if waiting is None and len(sets) < self.rules.max_open_sets:
            waiting = sets.begin(name, clock_ms)
            heappush(self.opened, (clock_ms, dataset, name))
        return waiting

    def _boundary(self, view: View, at: int) -> int:
        """Stop at markers and where a set closes by the clock, be it open already or opened from ``at`` on."""
        stop = super()._boundary(view, at)
        marker = bisect_left(view.marked, at)
        if marker < len(view.marked):
            stop = min(stop, view.marked[marker])
        after = self.rules.close_after
        if after is not None and at < len(view.batch):
            oldest = self._oldest()
            opened = int(view.clock[at]) if oldest is None else min(int(view.clock[at]), oldest[0])
            stop = min(stop, at + int(np.searchsorted(view.clock[at:], opened + after)))
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

    def _happen(self, view: View, at: int) -> bool:
        """Sweep the sets that close before row ``at``."""
        super()._happen(view, at)
        if at >= len(view.batch):
            return True
        now, after = int(view.clock[at]), self.rules.close_after
        while after is not None and (oldest := self._oldest()) is not None and oldest[0] + after <= now:
            _, dataset, name = oldest
            if self.accounts.full:
                return False
            if not self._sweep(dataset, self.sets[dataset].open[name], now):
                return False
        marked = view.markers.get(at)
        if marked is not None:
            dataset = int(view.batch.dataset[at])
            sets = self.sets.get(dataset)
            closing = None if sets is None else sets.open.get(marked)
            if closing is not None:
                return not self.accounts.full and self._sweep(dataset, closing, now)
        return True

    def _sweep(self, dataset: int, waiting: OpenSet, now: int) -> bool:
        """Test the bottoms of a closed set, pass after pass; False where the run is not durable yet."""
        allowed = self.rules.tops_per_set
        if waiting.blocks:
            if self.status[dataset] == Status.WAITING:
                self.open_run(dataset, now)
            if self.status[dataset] == Status.PENDING:
                return False
            rest: Block | None = Block.concatenate(waiting.blocks)
            plan = self.plan_of(dataset)
            passes = max(len(branch.corrections) for branch in plan.mechanism.branches)
            for attempt in range(1, passes):
                if rest is None or self.status[dataset] != Status.TESTABLE or waiting.tops >= allowed:
                    break
                rest = self._pass(dataset, waiting, rest, attempt, now)
        self.sets[dataset].close(waiting)
        return True

    def _pass(self, dataset: int, waiting: OpenSet, rest: Block, attempt: int, now: int) -> Block | None:
        """Test what is left of a set once; return what stays a bottom."""
        allowed, plan = self.rules.tops_per_set, self.plan_of(dataset)
        muted = self.mutes.get(dataset, ())
        silent = [
            index
            for index, series in enumerate(rest.series)
            if series in muted and self.is_muted(dataset, series, now)
        ]
        if silent:
            rest = rest.take(np.delete(np.arange(len(rest)), silent))
        if not len(rest):
            return None
        datasets = np.full(len(rest), dataset, dtype=np.int64)
        tests = Tests(datasets, rest.offset, rest.row, rest.value, rest.threshold, attempt)
        chosen, gaps = self._reached(plan, tests)
        tops: list[int] = []
        for k, index in enumerate(chosen.tolist()):
            if self.status[dataset] != Status.TESTABLE or waiting.tops >= allowed:
                break
            if self.is_muted(dataset, rest.series[index], now):
                continue
            branch = self._branch(dataset, gaps[:, k])
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
            self.top(crossing, now)
        if tops:
            rest = rest.take(np.delete(np.arange(len(rest)), tops))
        return rest if len(rest) else None
