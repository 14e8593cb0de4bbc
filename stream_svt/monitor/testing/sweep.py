"""Append over finite sets: the bottoms of a set are tested again, in several passes, after the set has closed.

The first test is on arrival, at the highest correction. When a marker record (or the public clock) closes the set, the
bottoms are tested at falling corrections until the set has its maximum of tops, the run ends, or the last correction
was tried. The choice of tests depends on released outcomes and public facts alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import ClassVar, cast

import numpy as np
from msgspec.structs import replace

from stream_svt.columns.query_batch import Crossing, Integers, Segment, Tests, View
from stream_svt.monitor.state.queue_journal import Queue, size_of
from stream_svt.monitor.state.runs import Status
from stream_svt.monitor.state.snapshot import Block, OpenSet
from stream_svt.monitor.testing.query_tester import Append, QueryTester
from stream_svt.settings.fields import Sweep

_BLOCK_BYTES = 60_000
"""A larger block is stored in halves, because the journal rewrites entries as a whole."""


Columns = tuple[Integers, list[str | None], list[str]]


def columns_of(blocks: Sequence[Block]) -> Columns:
    """Return an array with the offsets, rows, values and thresholds of all queries in blocks, their series and ids."""
    numbers = [np.frombuffer(block.numbers, dtype="<i8").reshape(4, -1) for block in blocks]
    series = [name for block in blocks for name in block.series]
    return np.hstack(numbers).astype(np.int64), series, [name for block in blocks for name in block.query_id]


@dataclass(slots=True, repr=False, eq=False)
class OpenSets(Queue[OpenSet | Block]):
    """The open sets of a monitor on a dataset; ``blocks`` has their waiting queries, one block per set and batch."""

    kind: ClassVar[int] = 0
    entry_types: ClassVar[tuple[type, ...]] = (OpenSet, Block)

    blocks: dict[str, list[Block]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of open sets."""
        return len(self.blocks)

    @property
    def waiting(self) -> int:
        """Return the number of queries that wait in open sets."""
        return sum(map(self.size_of, self.blocks))

    def open(self, set_id: str) -> OpenSet | None:
        """Return an open set, None if none of this name is open."""
        entry = self.entries.get(set_id)
        return entry if isinstance(entry, OpenSet) else None

    def size_of(self, set_id: str) -> int:
        """Return the number of queries that wait in a set."""
        return sum(len(block.query_id) for block in self.blocks[set_id])

    def begin(self, set_id: str, opened_ms: int) -> OpenSet:
        """Open a set."""
        self.count += 1
        opened = OpenSet(self.count, set_id, opened_ms, 0)
        self.blocks[set_id] = []
        self.put(opened)
        return opened

    def add(self, growing: OpenSet, numbers: Integers, series: list[str | None], query_id: list[str]) -> None:
        """Store the bottoms of one batch: columns as `columns_of` returns them."""
        data = numbers.astype("<i8").tobytes()
        block = Block(self.count + 1, growing.number, data, series, query_id)
        if size_of(block) > _BLOCK_BYTES and len(series) > 1:
            half = len(series) // 2
            for part in (slice(half), slice(half, None)):
                self.add(growing, numbers[:, part], series[part], query_id[part])
            return
        self.count += 1
        self.blocks[growing.name].append(block)
        self.put(block)

    def close(self, set_id: str) -> None:
        """Remove a set and its queries."""
        self.remove(set_id)
        for block in self.blocks.pop(set_id):
            self.remove(block.number)

    def clear(self) -> None:
        """Close all sets."""
        for set_id in list(self.blocks):
            self.close(set_id)

    def finish_loading(self) -> None:
        """See `Queue`."""
        names = {entry.number: entry.name for entry in self.entries.values() if isinstance(entry, OpenSet)}
        self.blocks = {set_id: [] for set_id in names.values()}
        for block in self.entries.values():
            if isinstance(block, Block):
                if block.owner not in names:
                    raise ValueError(f"the entry of set {block.owner} is missing")
                if {len(block.numbers), 32 * len(block.series)} != {32 * len(block.query_id)}:
                    raise ValueError("the columns of a block differ in length")
                self.blocks[names[block.owner]].append(block)


class SweepAppend(Append):
    """Append with ``sweep``."""

    row_cost = 100  # one dictionary access per query, and the waiting queries of a step have to fit a commit
    queue = OpenSets

    def __init__(self, tester: QueryTester) -> None:
        super().__init__(tester)
        self._opened: list[tuple[int, int, str]] | None = None

    @property
    def rules(self) -> Sweep:
        """Limits of sets and sweeps, as currently specified."""
        return cast("Sweep", self.runs.spec.append)

    @property
    def sets(self) -> dict[int, OpenSets]:
        """The open sets by dataset."""
        return cast("dict[int, OpenSets]", self.runs.queues)

    @property
    def opened(self) -> list[tuple[int, int, str]]:
        """A heap of (clock at opening, dataset, set) of the open sets; it may contain closed ones."""
        if self._opened is None:  # first use after the state was loaded
            self._opened = [
                (entry.opened_ms, dataset, entry.name)
                for dataset, sets in self.sets.items()
                for entry in sets.entries.values()
                if isinstance(entry, OpenSet)
            ]
            heapify(self._opened)
        return self._opened

    def keep(self, segment: Segment) -> None:
        """Store the bottoms of open sets and count their tops; sets open in the order of their rows."""
        view, batch, live, start = segment.view, segment.view.batch, segment.live, segment.start
        names = batch.set_id
        rows = np.flatnonzero(live) + start
        if names is None or not len(rows):
            return
        tops = set(segment.tops)
        members: dict[tuple[int, str], list[int]] = defaultdict(list)
        for row, dataset in zip(rows.tolist(), batch.dataset[rows].tolist(), strict=True):
            name = names[row]
            if name is not None:
                members[dataset, name].append(row)
        if not members:
            return
        values, thresholds = self.tester.on_grid(batch, start, start + len(live))
        thresholds = np.broadcast_to(thresholds, len(live))
        for (dataset, name), arrived in members.items():
            opened = self._open_set(dataset, name, int(view.clock[arrived[0]]))
            bottoms = [row for row in arrived if row not in tops]
            sets = self.sets[dataset]
            room = 0 if opened is None else self.rules.max_set_size - sets.size_of(name)
            chosen = bottoms[: max(room, 0)]
            self.runs.skip("set-overflow", len(bottoms) - len(chosen))
            if opened is not None and len(arrived) > len(bottoms):
                sets.put(replace(opened, tops=opened.tops + len(arrived) - len(bottoms)))
            if opened is not None and chosen:
                kept = np.array(chosen, dtype=np.int64)
                columns = batch.offset[kept], batch.row[kept], values[kept - start], thresholds[kept - start]
                series = [batch.series[row] if batch.series else None for row in chosen]
                sets.add(opened, np.stack(columns), series, [batch.query_id[row] or "" for row in chosen])

    def _open_set(self, dataset: int, name: str, clock_ms: int) -> OpenSet | None:
        """Return a set, and open it if necessary; None if no further set may open."""
        opened, sets = self.opened, self.sets.get(dataset)
        if sets is None:
            sets = self.sets[dataset] = self.runs.accounts.new_queue(OpenSets, self.runs.name, dataset)
        waiting = sets.open(name)
        if waiting is None and len(sets) < self.rules.max_open_sets:
            waiting = sets.begin(name, clock_ms)
            heappush(opened, (clock_ms, dataset, name))
        return waiting

    def next_close(self, view: View, start: int) -> int:
        """Return the next row before which a set closes: at a marker, or by the clock.

        The clock can close a set that is open now, or one that opens from ``start`` on.
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
        """Return the oldest open set; remove closed ones from the heap."""
        while self.opened:
            opened_ms, dataset, name = self.opened[0]
            sets = self.sets.get(dataset)
            waiting = None if sets is None else sets.open(name)
            if waiting is not None and waiting.opened_ms == opened_ms:
                return self.opened[0]
            heappop(self.opened)
        return None

    def close(self, view: View, row: int) -> bool:
        """Sweep the sets that close before a row; False if a commit has to come first."""
        now, after = int(view.clock[row]), self.rules.close_after
        while after is not None and (oldest := self._oldest()) is not None and oldest[0] + after <= now:
            if not self._sweep(*oldest[1:], view, row):
                return False
        marked = view.markers.get(row)
        dataset = int(view.batch.dataset[row])
        if marked is not None and dataset in self.sets and marked in self.sets[dataset].blocks:
            return self._sweep(dataset, marked, view, row)
        return True

    def _sweep(self, dataset: int, name: str, view: View, row: int) -> bool:
        """Test the bottoms of a set that closes at a row in passes; False if a commit has to come first."""
        sets, runs, now = self.sets[dataset], self.runs, int(view.clock[row])
        closing, blocks = sets.open(name), sets.blocks[name]
        if runs.accounts.full:
            return False
        if blocks and closing is not None:
            if runs.opens(dataset, time_ms := int(view.batch.time_ms[row])):
                runs.open_run(dataset, time_ms)
            if runs.status[dataset] == Status.PENDING:
                return False
            columns = columns_of(blocks)
            rest = np.arange(len(columns[1]))
            allowed = self.rules.alerts_per_set - closing.tops
            passes = max(len(branch.corrections) for branch in runs.plan.mechanism.branches)
            for attempt in range(1, passes):
                rest = rest[~runs.mutes.held(dataset, [columns[1][index] for index in rest.tolist()], now)]
                if not len(rest) or runs.status[dataset] != Status.TESTABLE or allowed <= 0:
                    break
                tops = self._pass(dataset, columns, rest, attempt, allowed, now)
                allowed -= len(tops)
                rest = np.setdiff1d(rest, tops)
        sets.close(name)
        return True

    def _pass(
        self, dataset: int, columns: Columns, rest: Integers, attempt: int, allowed: int, now: int
    ) -> list[int]:
        """Test the rest of a set once; return the indexes of the tops."""
        runs = self.runs
        tops: list[int] = []
        numbers, series, query_id = columns
        datasets = np.full(len(rest), dataset, dtype=np.int64)
        offsets, rows, values, thresholds = numbers[:, rest]
        chosen, gaps = self.tester.reached(Tests(datasets, offsets, rows, values, thresholds, attempt))
        for k, index in enumerate(rest[chosen].tolist()):
            if runs.status[dataset] != Status.TESTABLE or len(tops) >= allowed:
                break
            if runs.mutes.holds(dataset, series[index], now):
                continue
            if (top := self.tester.top_of(dataset, gaps[:, k].tolist())) is not None:
                offset, row, _, threshold = numbers[:, index].tolist()
                query = offset, row, threshold, series[index], query_id[index]
                tops.append(index)
                runs.report(Crossing(dataset, *query, *top, attempt), now)
        return tops
