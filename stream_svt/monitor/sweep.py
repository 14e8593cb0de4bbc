"""Append over finite sets: bottoms of an open set are tested again, pass after pass, once the set has closed.

The first test comes on arrival at the highest correction. When a marker record (or the public clock) closes the
set, the bottoms meet falling corrections until the tops allowed for the set are found, the run ends, or the last
correction was tried. Which query is tested when depends on released outcomes and public facts alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stream_svt.errors import MisuseError
from stream_svt.monitor.datasets import DatasetSpec
from stream_svt.monitor.monitor_spec import MonitorSpec
from stream_svt.monitor.options import Sweep
from stream_svt.monitor.pending import Block, OpenSet, read
from stream_svt.monitor.runner import (
    Hit,
    Host,
    Mask,
    Runner,
    Status,
    Tests,
    View,
    block_of,
)
from stream_svt.monitor.snapshot import PendingRecord


class SweepRunner(Runner):
    """A monitor with ``append: sweep``. ``sets`` holds the open sets by dataset, oldest first."""

    def __init__(
        self, host: Host, spec: MonitorSpec, datasets: list[DatasetSpec], covers: NDArray[np.bool_]
    ) -> None:
        super().__init__(host, spec, datasets, covers)
        self.sets: dict[int, dict[str, OpenSet]] = {}
        self.touched: dict[int, list[OpenSet]] = {}
        self.dropped: list[tuple[int, int]] = []
        self.next_record: dict[int, int] = {}

    @property
    def rules(self) -> Sweep:
        """Caps of sets and sweeps, as specified now."""
        rules = self.spec.append
        if not isinstance(rules, Sweep):
            message = f"monitor {self.name} sweeps no sets"
            raise MisuseError(message)
        return rules

    def queued(self, dataset: int) -> int:
        """Return the number of queries that wait in open sets of a dataset."""
        return sum(len(waiting) for waiting in self.sets.get(dataset, {}).values())

    def forget_pending(self, dataset: int) -> None:
        """Drop what waits: the lattice it was measured on is no longer the monitor's."""
        for waiting in list(self.sets.get(dataset, {}).values()):
            self._close(dataset, waiting)

    def save_pending(self) -> list[tuple[int, int, bytes | None]]:
        """Return (dataset, record number, record or None) for what changed since the last save."""
        changes: list[tuple[int, int, bytes | None]] = [(d, number, None) for d, number in self.dropped]
        for dataset, sets in self.touched.items():
            for waiting in sets:
                for number, record in waiting.save(self.next_record.get(dataset, 0)):
                    changes.append((dataset, number, record))
                    self.next_record[dataset] = number + 1
        self.touched, self.dropped = {}, []
        return changes

    def restore_pending(self, dataset: int, records: list[tuple[int, bytes]], key: str) -> None:
        """Take back what waited on a dataset."""
        by_set: dict[str, list[tuple[int, PendingRecord]]] = {}
        decoded = [(number, read(data, key)) for number, data in sorted(records)]
        for number, record in decoded:
            by_set.setdefault(record.set_id or "", []).append((number, record))
        self.sets[dataset] = {set_id: OpenSet.restore(own) for set_id, own in by_set.items()}
        self.next_record[dataset] = max(number for number, _ in decoded) + 1

    # -- a batch ---------------------------------------------------------------------------------------------

    def _tested(self, view: View, at: int, live: Mask, tops: list[int]) -> None:
        """Keep the bottoms of open sets, and count the tops found in them, in order of the rows."""
        names = view.batch.set_id
        rows = np.flatnonzero(live) + at
        if names is None or not len(rows):
            return
        is_top = np.zeros(len(live), dtype=np.bool_)
        is_top[[row - at for row in tops]] = True
        for first, last in _stretches(view, rows, names):
            stretch = rows[first:last]
            name = names[int(stretch[0])]
            if name is None:
                continue
            dataset = int(view.batch.dataset[stretch[0]])
            found = is_top[stretch - at]
            bottoms = stretch[~found]
            waiting = self._open_set(dataset, name, int(view.clock[stretch[0]]))
            room = 0 if waiting is None else self.rules.max_set_size - len(waiting)
            kept = bottoms[:room]
            self.skip("set-overflow", len(bottoms) - len(kept))
            if waiting is None:
                continue
            waiting.tops += int(found.sum())
            self._touch(dataset, waiting)
            if len(kept):
                mask = np.zeros(len(live), dtype=np.bool_)
                mask[kept - at] = True
                values, thresholds = self._on_grid(view.batch, self.plan_of(dataset), at, mask)
                waiting.add(block_of(view, kept, values, np.broadcast_to(thresholds, len(kept)).copy()))

    def _open_set(self, dataset: int, name: str, clock_ms: int) -> OpenSet | None:
        """Return a set, opened if need be; None where no further set may open."""
        sets = self.sets.setdefault(dataset, {})
        waiting = sets.get(name)
        if waiting is None and len(sets) < self.rules.max_open_sets:
            waiting = sets[name] = OpenSet(name, clock_ms)
        return waiting

    def _touch(self, dataset: int, waiting: OpenSet) -> None:
        """Remember that a set has to be saved."""
        touched = self.touched.setdefault(dataset, [])
        if not any(known is waiting for known in touched):
            touched.append(waiting)

    def _boundary(self, view: View, at: int) -> int:
        stop = super()._boundary(view, at)
        marker = next((row for row in sorted(view.markers) if row >= at), stop)
        stop = min(stop, marker)
        closes = self._next_close()
        if closes is not None:
            stop = min(stop, at + int(np.searchsorted(view.clock[at:], closes)))
        return stop

    def _next_close(self) -> int | None:
        """Return the clock at which the next open set closes by itself."""
        after = self.rules.close_after
        if after is None:
            return None
        opened = [waiting.opened_ms for sets in self.sets.values() for waiting in sets.values()]
        return min(opened) + after if opened else None

    def _happen(self, view: View, at: int) -> bool:
        """Sweep the sets that close before row ``at``."""
        super()._happen(view, at)
        if at >= len(view.batch):
            return True
        now = int(view.clock[at])
        closes = self._next_close()
        if closes is not None and closes <= now:
            after = self.rules.close_after or 0
            for dataset, sets in list(self.sets.items()):
                for waiting in list(sets.values()):
                    if waiting.opened_ms + after <= now and not self._sweep(dataset, waiting, now):
                        return False
        name = view.markers.get(at)
        if name is not None:
            dataset = int(view.batch.dataset[at])
            closing = self.sets.get(dataset, {}).get(name)
            if closing is not None:
                return self._sweep(dataset, closing, now)
        return True

    def _sweep(self, dataset: int, waiting: OpenSet, now: int) -> bool:
        """Test the bottoms of a closed set, pass after pass; False where the run is not durable yet."""
        allowed = self.rules.tops_per_set
        if waiting.blocks:
            if self.status[dataset] == Status.WAITING:
                self.host.open_run(self, dataset, now)
            if self.status[dataset] == Status.PENDING:
                return False
            rest: Block | None = Block.concatenate(waiting.blocks)
            plan = self.plan_of(dataset)
            passes = max(len(branch.corrections) for branch in plan.mechanism.branches)
            for attempt in range(1, passes):
                if rest is None or self.status[dataset] != Status.TESTABLE or waiting.tops >= allowed:
                    break
                rest = self._pass(dataset, waiting, rest, attempt, now)
        self._close(dataset, waiting)
        return True

    def _pass(self, dataset: int, waiting: OpenSet, rest: Block, attempt: int, now: int) -> Block | None:
        """Test what is left of a set once; return what stays a bottom."""
        allowed, plan = self.rules.tops_per_set, self.plan_of(dataset)
        muted = self.mutes.get(dataset, {})
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
            hit = Hit(
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
            self.host.top(self, hit, now)
        if tops:
            rest = rest.take(np.delete(np.arange(len(rest)), tops))
        return rest if len(rest) else None

    def _close(self, dataset: int, waiting: OpenSet) -> None:
        """Forget a set and its state records."""
        self.dropped.extend((dataset, number) for number in waiting.stored)
        touched = self.touched.get(dataset, [])
        self.touched[dataset] = [known for known in touched if known is not waiting]
        del self.sets[dataset][waiting.set_id]


def _stretches(view: View, rows: NDArray[np.int64], names: list[str | None]) -> list[tuple[int, int]]:
    """Return [first, last) of the stretches of ``rows`` that share dataset and set."""
    if not len(rows):
        return []
    chosen = rows.tolist()
    datasets = view.batch.dataset[rows].tolist()
    starts = [0]
    starts += [
        k
        for k in range(1, len(chosen))
        if datasets[k] != datasets[k - 1] or names[chosen[k]] != names[chosen[k - 1]]
    ]
    return list(zip(starts, [*starts[1:], len(chosen)], strict=True))
