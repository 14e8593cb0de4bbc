"""Append on a stream: series whose last test was a bottom wait in a bounded queue and are tested again.

A newer query of a waiting series replaces the entry's value, keeps its order and attempt count, and gets no test of
its own. After each ``every`` queries of the dataset the queue is tested once, oldest entry first. An entry leaves after
its last attempt, after its lifetime, or when a new entry comes to a full queue. None of this reads a value.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from msgspec.structs import replace

from stream_svt.columns.query_batch import Crossing, Integers, Tests, View
from stream_svt.monitor.state.queue_journal import Queue
from stream_svt.monitor.state.runs import Status
from stream_svt.monitor.state.snapshot import Waiting
from stream_svt.monitor.testing.query_tester import Append
from stream_svt.settings.fields import Retry


@dataclass(slots=True, repr=False, eq=False)
class RetryQueue(Queue[Waiting]):
    """Series whose last test was a bottom, oldest first. ``count`` is the number of queries seen."""

    kind: ClassVar[int] = 1
    entry_types: ClassVar[tuple[type, ...]] = (Waiting,)

    def attempt(self, entry: Waiting) -> int:
        """Return how often an entry was tested."""
        return 1 + self.sweeps - entry.begun

    def count_sweep(self) -> None:
        """Count one more attempt of all entries."""
        self.sweeps += 1
        self.journal.mark_changed(self)

    def count_sweep_up_to(self, last: Waiting) -> None:
        """Count one more attempt of the entries up to ``last``."""
        for entry in self.entries.values():
            if entry.number > last.number:
                break
            self.put(replace(entry, begun=entry.begun - 1))


class RetryAppend(Append):
    """Append with ``retry``."""

    row_cost = 50
    queue = RetryQueue

    @property
    def rules(self) -> Retry:
        """Attempts, lifetime, capacity and pace, as currently specified."""
        return cast("Retry", self.runs.spec.append)

    def test(self, view: View, start: int, stop: int) -> Generator[int, None, int]:
        """Test rows [start, stop); see `_test`."""
        yield from ()  # not in turns: a queue decides row by row
        return self._test(view, start, stop)

    def _test(self, view: View, start: int, stop: int) -> int:
        """Test each of rows [start, stop) on arrival or update its waiting series; sweep queues that are due.

        Noise is drawn for all rows at once; a loop over the rows decides which tests count.
        """
        batch, runs = view.batch, self.runs
        datasets = batch.dataset[start:stop]
        live = view.only_eligible(runs.status[datasets] == Status.TESTABLE, start, stop)
        # Rows of waiting or muted series are not tested, and only this loop finds them.
        rows, gaps, _ = self.tester.candidates(view, start, live, draw_all=True)
        mask = np.zeros(stop - start, dtype=np.bool_)
        mask[rows - start] = True
        reached = mask.tolist()
        columns: tuple[bytes, list[int]] | None = None
        # Local names: the loop below dominates the time per query.
        rules, testable, eligible = self.rules, int(Status.TESTABLE), view.eligible
        queues = cast("dict[int, RetryQueue]", runs.queues)
        journal, mutes, hashes = runs.accounts.queues, runs.mutes.of, list[int]()
        status, covers, names = runs.status, runs.covers, batch.series
        offsets, clock = batch.offset[start:stop].tolist(), view.clock[start:stop].tolist()
        check_full = True
        for row, dataset in enumerate(datasets.tolist(), start=start):
            if check_full or not row & 63:
                check_full = False
                if runs.accounts.full:
                    return row
            if not covers[dataset] or (eligible is not None and not eligible[row]):
                continue
            now, offset = clock[row - start], offsets[row - start]
            if status[dataset] != testable:
                if runs.opens(dataset, time_ms := int(batch.time_ms[row])):
                    runs.open_run(dataset, time_ms)
                    check_full = True
                if status[dataset] == Status.PENDING:
                    return row
                runs.skip(runs.shown(dataset), 1)
                continue
            queue = queues.get(dataset)
            if queue is None:
                queue = queues[dataset] = runs.accounts.new_queue(RetryQueue, runs.name, dataset)
            queue.count += 1
            if not queue.changed:
                journal.mark_changed(queue)
            series = names[row] if names else None
            is_muted = False
            if series is not None and dataset in mutes:
                hashes = hashes or runs.mutes.hashes_of(names)[start:stop].tolist()
                is_muted = now < mutes[dataset].until(hashes[row - start])
            if is_muted:
                runs.skip("muted", 1)
            else:
                columns = columns or self._columns(view, start, stop)
                values, thresholds = columns
                within, record_row = row - start, int(batch.row[row])
                previous = queue.entries.get((offset, record_row) if series is None else series)
                entry = Waiting(
                    queue.count if previous is None else previous.number,
                    offset,
                    record_row,
                    values[8 * within : 8 * within + 8],
                    thresholds[within],
                    offset if previous is None else previous.entered,
                    now if previous is None else previous.entered_ms,
                    queue.sweeps if previous is None else previous.begun,
                    series,
                    batch.query_id[row] or "",
                )
                if previous is None:
                    fired = gaps[:, np.searchsorted(rows, row)].tolist() if reached[within] else None
                    check_full |= self._arrive(dataset, queue, entry, fired, now)
                else:
                    queue.put(entry)
            if queue.count % rules.every == 0 and status[dataset] == testable:
                self._sweep(dataset, queue, offset, now)
                check_full = True
        return stop

    def _columns(self, view: View, start: int, stop: int) -> tuple[bytes, list[int]]:
        """Return values and thresholds of rows [start, stop), in grid steps."""
        values, thresholds = self.tester.on_grid(view.batch, start, stop)
        return values.astype("<i8").tobytes(), np.broadcast_to(thresholds, stop - start).tolist()

    def _arrive(
        self, dataset: int, queue: RetryQueue, arrival: Waiting, gaps: list[int] | None, now: int
    ) -> bool:
        """Test a query whose series does not wait; enqueue a bottom. Returns whether it is a top."""
        self.runs.accounts.next.tested[self.runs.name] += 1
        if (top := self.tester.top_of(dataset, gaps)) is not None:
            self._report(dataset, arrival, top, attempt=0, now=now)
            return True
        if len(queue.entries) >= self.rules.capacity:
            queue.remove(next(iter(queue.entries)))
            self.runs.skip("retry-overflow", 1)
        queue.put(arrival)
        return False

    def _report(
        self, dataset: int, entry: Waiting, top: tuple[int, int, int], *, attempt: int, now: int
    ) -> None:
        query = entry.offset, entry.row, entry.threshold, entry.series, entry.query_id
        self.runs.report(Crossing(dataset, *query, *top, attempt), now)

    def _sweep(self, dataset: int, queue: RetryQueue, offset: int, now: int) -> None:
        """Test every waiting series once more, oldest entry first."""
        rules, runs = self.rules, self.runs
        self._expire(dataset, queue, offset, now)
        if not (waiting := list(queue.entries.values())):
            return
        attempts = 1 + queue.sweeps - _column(entry.begun for entry in waiting)
        tests = Tests(
            np.full(len(waiting), dataset, dtype=np.int64),
            _column(entry.offset for entry in waiting),
            _column(entry.row for entry in waiting),
            np.frombuffer(b"".join([entry.value for entry in waiting]), dtype="<i8").astype(np.int64),
            _column(entry.threshold for entry in waiting),
            attempts,
        )
        chosen, gaps = self.tester.reached(tests)
        fired = dict(zip(chosen.tolist(), gaps.T.tolist(), strict=True))
        last = np.flatnonzero(attempts + 1 >= rules.attempts)
        for index in np.union1d(last, chosen).tolist():
            entry, attempt = waiting[index], int(attempts[index])
            top = self.tester.top_of(dataset, fired.get(index))
            if top is not None or attempt + 1 >= rules.attempts:
                queue.remove(entry.name)
            if top is not None:
                self._report(dataset, entry, top, attempt=attempt, now=now)
                if runs.status[dataset] != Status.TESTABLE:
                    queue.count_sweep_up_to(entry)
                    return
        queue.count_sweep()

    def _expire(self, dataset: int, queue: RetryQueue, offset: int, now: int) -> None:
        """Remove the entries whose lifetime is over, and those of muted series."""
        lifetime, runs = self.rules.lifetime, self.runs
        first = None if lifetime.offsets is None else offset - lifetime.offsets
        first_ms = None if lifetime.ms is None else now - lifetime.ms
        muted = runs.mutes.held(dataset, [entry.series for entry in queue.entries.values()], now)
        over = [
            name
            for (name, entry), is_muted in zip(queue.entries.items(), muted.tolist(), strict=True)
            if (first is not None and entry.entered < first)
            or (first_ms is not None and entry.entered_ms < first_ms)
            or is_muted
        ]
        for name in over:
            queue.remove(name)


def _column(numbers: Iterable[int]) -> Integers:
    return np.fromiter(numbers, np.int64)
