"""Append on a stream: series whose last test was a bottom wait in a bounded queue and are tested again.

A newer query of a waiting series replaces its value, keeps its place and attempt count, and gets no test of its
own. Every ``every`` queries of the dataset the queue is tested once, oldest place first. A place is given up after
its last attempt, beyond its lifetime, or when the queue is full and a newer one comes. None of this reads a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from msgspec.structs import replace

from stream_svt.monitor.batch import Crossing, Integers, Tests, View
from stream_svt.monitor.query_tester import Append
from stream_svt.monitor.queue_journal import Queue
from stream_svt.monitor.runs import Status
from stream_svt.monitor.snapshot import Waiting
from stream_svt.settings.fields import Retry


@dataclass(slots=True, repr=False, eq=False)
class RetryQueue(Queue[Waiting]):
    """Series whose last test was a bottom, oldest first. ``count`` is the number of queries seen."""

    kind: ClassVar[int] = 1
    entry_types: ClassVar[tuple[type, ...]] = (Waiting,)

    def attempt(self, place: Waiting) -> int:
        """Return how often a place was tested."""
        return 1 + self.sweeps - place.begun

    def count_sweep(self) -> None:
        """Take note that all places had one more attempt."""
        self.sweeps += 1
        self.journal.mark_changed(self)

    def count_sweep_up_to(self, last: Waiting) -> None:
        """Take note that the places up to the ``last`` one had one more attempt."""
        for place in self.entries.values():
            if place.number > last.number:
                break
            self.put(replace(place, begun=place.begun - 1))


class RetryAppend(Append):
    """Append with ``retry``."""

    row_cost = 50
    queue = RetryQueue

    @property
    def rules(self) -> Retry:
        """Attempts, lifetime, capacity and pace, as specified now."""
        return cast("Retry", self.runs.spec.append)

    def test(self, view: View, start: int, stop: int) -> int:
        """Test rows [start, stop) on arrival or take them as news of a waiting series; sweep queues that are due.

        Noise is drawn for all arrival tests at once; which of them are made is decided row by row.
        """
        batch, runs = view.batch, self.runs
        datasets = batch.dataset[start:stop]
        live = view.only_eligible(runs.status[datasets] == Status.TESTABLE, start)
        reached = {row: gaps for row, gaps, _ in self.tester.candidates(view, start, live)}
        columns: tuple[bytes, list[int]] | None = None
        # Looked up once: this loop is what a query costs.
        rules, testable, eligible = self.rules, int(Status.TESTABLE), view.eligible
        queues = cast("dict[int, RetryQueue]", runs.queues)
        journal, mutes = runs.accounts.queues, runs.mutes
        status, covers, names = runs.status, runs.covers, batch.series
        offsets, clock = batch.offset[start:stop].tolist(), view.clock[start:stop].tolist()
        look = True
        for row, dataset in enumerate(datasets.tolist(), start=start):
            if look or not row & 63:
                look = False
                if runs.accounts.full:
                    return row
            if not covers[dataset] or (eligible is not None and not eligible[row]):
                continue
            now, offset = clock[row - start], offsets[row - start]
            if status[dataset] != testable:
                if status[dataset] == Status.WAITING:
                    runs.open_run(dataset, now)
                    look = True
                if status[dataset] == Status.PENDING:
                    return row
                runs.skip(runs.run_state(dataset).shown, 1)
                continue
            queue = queues.get(dataset)
            if queue is None:
                queue = queues[dataset] = runs.new_queue(RetryQueue, dataset)
            queue.count += 1
            if not queue.changed:
                journal.mark_changed(queue)
            series = names[row] if names else None
            if dataset in mutes and mutes[dataset].is_muted(series, now):
                runs.skip("muted", 1)
            else:
                columns = columns or self._columns(view, start, stop)
                values, thresholds = columns
                within, place_row = row - start, int(batch.row[row])
                known = queue.entries.get((offset, place_row) if series is None else series)
                place = Waiting(
                    queue.count if known is None else known.number,
                    offset,
                    place_row,
                    values[8 * within : 8 * within + 8],
                    thresholds[within],
                    offset if known is None else known.entered,
                    now if known is None else known.entered_ms,
                    queue.sweeps if known is None else known.begun,
                    series,
                    batch.query_id[row],
                )
                if known is None:
                    look |= self._arrive(dataset, queue, place, reached.get(row), now)
                else:
                    queue.put(place)
            if queue.count % rules.every == 0 and status[dataset] == testable:
                self._sweep(dataset, queue, offset, now)
                look = True
        return stop

    def _columns(self, view: View, start: int, stop: int) -> tuple[bytes, list[int]]:
        """Return values and thresholds of rows [start, stop), in grid steps."""
        everything = np.ones(stop - start, dtype=np.bool_)
        values, thresholds = self.tester.on_grid(view.batch, start, everything)
        return values.astype("<i8").tobytes(), np.broadcast_to(thresholds, stop - start).tolist()

    def _arrive(
        self, dataset: int, queue: RetryQueue, arrival: Waiting, gaps: Integers | None, now: int
    ) -> bool:
        """Test a query of a series that does not wait, and let it wait if it is a bottom; tell whether it is a top."""
        self.runs.accounts.next.tested[self.runs.name] += 1
        branch = None if gaps is None else self.tester.branch(dataset, gaps)
        if gaps is not None and branch is not None:
            self._report(dataset, arrival, branch, int(gaps[branch]), attempt=0, now=now)
            return True
        if len(queue.entries) >= self.rules.capacity:
            queue.remove(next(iter(queue.entries)))
            self.runs.skip("retry-overflow", 1)
        queue.put(arrival)
        return False

    def _report(self, dataset: int, place: Waiting, branch: int, gap: int, *, attempt: int, now: int) -> None:
        query = place.offset, place.row, place.threshold, place.series, place.query_id
        self.runs.report(Crossing(dataset, *query, branch, gap, attempt), now)

    def _sweep(self, dataset: int, queue: RetryQueue, offset: int, now: int) -> None:
        """Test every waiting series once more, oldest place first."""
        rules, runs = self.rules, self.runs
        lifetime = rules.lifetime
        for name, place in list(queue.entries.items()):
            too_old = lifetime.offsets is not None and offset - place.entered > lifetime.offsets
            too_late = lifetime.ms is not None and now - place.entered_ms > lifetime.ms
            if too_old or too_late or runs.is_muted(dataset, place.series, now):
                queue.remove(name)
        waiting = list(queue.entries.values())
        if not waiting:
            return
        columns = np.array(
            [(p.offset, p.row, p.threshold, queue.attempt(p)) for p in waiting], dtype=np.int64
        )
        offsets, rows, thresholds, attempts = np.ascontiguousarray(columns.T)
        values = np.frombuffer(b"".join([p.value for p in waiting]), dtype="<i8").astype(np.int64)
        numbers = np.full(len(waiting), dataset, dtype=np.int64)
        chosen, gaps = self.tester.reached(Tests(numbers, offsets, rows, values, thresholds, attempts))
        fired = {index: gaps[:, k] for k, index in enumerate(chosen.tolist())}
        for index, place in enumerate(waiting):
            branch = self.tester.branch(dataset, fired[index]) if index in fired else None
            attempt = queue.attempt(place)
            if branch is not None or attempt + 1 >= rules.attempts:
                queue.remove(place.name)
            if branch is not None:
                self._report(dataset, place, branch, int(fired[index][branch]), attempt=attempt, now=now)
                if runs.status[dataset] != Status.TESTABLE:
                    queue.count_sweep_up_to(place)
                    return
        queue.count_sweep()
