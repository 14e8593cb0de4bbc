"""Append over finite sets: bottoms of an open set are tested again, pass after pass, once the set has closed.

The first test comes on arrival at the highest correction. When a marker record (or the public clock) closes the
set, the bottoms meet falling corrections until the tops allowed for the set are found, the run ends, or the last
correction was tried. Which query is tested when depends on released outcomes and public facts alone.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import ClassVar, cast

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from stream_svt.monitor.accounts import Accounts
from stream_svt.monitor.batch import Integers, Segment, Tests, View
from stream_svt.monitor.event_builder import Crossing
from stream_svt.monitor.queue_journal import Queue, size_of
from stream_svt.monitor.runner import QueryNoise, Runner
from stream_svt.monitor.runs import Status
from stream_svt.monitor.snapshot import Block, OpenSet
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.settings.options import Sweep

_BLOCK_BYTES = 60_000
"""A block whose line is longer is stored in halves: it is written again as a whole."""


@dataclass(slots=True, repr=False)
class Waits:
    """Queries that wait, as columns; ``numbers`` has rows for offset, row, value and threshold, in grid steps."""

    numbers: NDArray[np.int64]
    series: list[str | None]
    query_id: list[str]

    @classmethod
    def of(cls, blocks: list[Block]) -> Waits:
        """Return the queries in blocks."""
        columns = [np.frombuffer(block.numbers, dtype="<i8").reshape(4, -1) for block in blocks]
        return cls(
            np.concatenate(columns, axis=1).astype(np.int64),
            [series for block in blocks for series in block.series],
            [query_id for block in blocks for query_id in block.query_id],
        )

    def part(self, rows: slice) -> Waits:
        """Return some of the queries."""
        return Waits(self.numbers[:, rows], self.series[rows], self.query_id[rows])


@dataclass(slots=True, repr=False, eq=False)
class OpenSets(Queue[OpenSet | Block]):
    """The open sets of a monitor on a dataset. ``blocks`` has the queries that wait, by set: the bottoms of a batch."""

    kind: ClassVar[int] = 0
    holds: ClassVar[tuple[type, ...]] = (OpenSet, Block)

    blocks: dict[str, list[Block]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of open sets."""
        return len(self.blocks)

    @property
    def waiting(self) -> int:
        """Return the number of queries that wait in open sets."""
        return sum(map(self.size_of, self.blocks))

    def open(self, set_id: str) -> OpenSet | None:
        """Return an open set, None where none of this name is open."""
        found = self.entries.get(set_id)
        return found if isinstance(found, OpenSet) else None

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

    def add(self, growing: OpenSet, waits: Waits) -> None:
        """Keep the bottoms of one batch."""
        numbers = waits.numbers.astype("<i8").tobytes()
        block = Block(self.count + 1, growing.number, numbers, waits.series, waits.query_id)
        if size_of(block) > _BLOCK_BYTES and len(waits.series) > 1:
            half = len(waits.series) // 2
            self.add(growing, waits.part(slice(half)))
            self.add(growing, waits.part(slice(half, None)))
            return
        self.count += 1
        self.blocks[growing.set_id].append(block)
        self.put(block)

    def close(self, set_id: str) -> None:
        """Forget a set."""
        self.remove(set_id)
        for block in self.blocks.pop(set_id):
            self.remove(block.number)

    def forget(self) -> None:
        """Close all sets."""
        for set_id in list(self.blocks):
            self.close(set_id)

    def settle(self) -> None:
        """See `Queue`."""
        names = {entry.number: entry.set_id for entry in self.entries.values() if isinstance(entry, OpenSet)}
        self.blocks = {set_id: [] for set_id in names.values()}
        for block in self.entries.values():
            if isinstance(block, Block):
                if block.owner not in names:
                    raise ValueError(f"there is no line of set {block.owner}")
                if {len(block.numbers), 32 * len(block.series)} != {32 * len(block.query_id)}:
                    raise ValueError("its columns are not of one length")
                self.blocks[names[block.owner]].append(block)


class SweepAppend(Runner):
    """Append with ``sweep``."""

    row_cost = 100  # each is looked up in its set by itself, and all that wait have to fit a commit
    queue = OpenSets

    def __init__(self, accounts: Accounts, noise: QueryNoise, spec: MonitorSpec) -> None:
        super().__init__(accounts, noise, spec)
        self._opened: list[tuple[int, int, str]] | None = None

    @property
    def rules(self) -> Sweep:
        """Caps of sets and sweeps, as specified now."""
        return cast("Sweep", self.spec.append)

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
        segment = self.test_arrivals(view, start, stop)
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
                sets.put(replace(waiting, tops=waiting.tops + len(mine) - len(bottoms)))
            if len(kept):
                if on_grid is None:
                    values, thresholds = self.on_grid(view.batch, start, everything)
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
            sets = self.sets[dataset] = runs.new_queue(OpenSets, dataset)
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
        chosen, gaps = self.reached(tests)
        for k, index in enumerate(rest[chosen].tolist()):
            if runs.status[dataset] != Status.TESTABLE or len(tops) >= allowed:
                break
            series = waiting.series[index]
            if runs.mutes.is_muted(dataset, series, now):
                continue
            branch = self.branch(dataset, gaps[:, k])
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
