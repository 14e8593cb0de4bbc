"""Append on a stream: series whose last test was a bottom wait in a bounded queue and are tested again.

A newer query of a waiting series replaces its value, keeps its place and attempt count, and gets no test of its
own. Every ``every`` queries of the dataset the queue is tested once, oldest place first. A place is given up after
its last attempt, beyond its lifetime, or when the queue is full and a newer one comes. None of this reads a value.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stream_svt.errors import MisuseError
from stream_svt.monitor.accounts import Accounts
from stream_svt.monitor.announcer import Crossing
from stream_svt.monitor.monitor_spec import MonitorSpec
from stream_svt.monitor.options import Retry
from stream_svt.monitor.pending import PlaceName, RetryQueue, Waiting
from stream_svt.monitor.queue_journal import Queue
from stream_svt.monitor.runner import Mask, QueryNoise, Runner, Status, Tests, View
from stream_svt.monitor.shard_datasets import ShardDatasets


class RetryRunner(Runner):
    """A monitor with ``append: retry``. ``queues`` holds what waits, by dataset."""

    def __init__(
        self, accounts: Accounts, noise: QueryNoise, spec: MonitorSpec, datasets: ShardDatasets
    ) -> None:
        super().__init__(accounts, noise, spec, datasets)
        self.queues: dict[int, RetryQueue] = {}

    @property
    def rules(self) -> Retry:
        """Attempts, lifetime, capacity and pace, as specified now."""
        rules = self.spec.append
        if not isinstance(rules, Retry):
            message = f"monitor {self.name} has no retry queue"
            raise MisuseError(message)
        return rules

    @property
    def row_cost(self) -> int:
        """What a query costs: it is looked at by itself."""
        return 50

    def queued(self, dataset: int) -> int:
        """Return the number of series that wait."""
        return len(self.queues.get(dataset, ()))

    def forget_pending(self, dataset: int) -> None:
        """Drop what waits: the lattice it was measured on is no longer the monitor's."""
        queue = self.queues.get(dataset)
        if queue is not None:
            queue.forget()

    def drop_pending(self, dataset: int) -> None:
        """Drop what waits, and the count of queries."""
        queue = self.queues.pop(dataset, None)
        if queue is not None:
            queue.drop()

    def drop_all(self) -> None:
        """Drop what waits, and the counts of queries."""
        for dataset in list(self.queues):
            self.drop_pending(dataset)

    def new_queue(self, dataset: int, name: str) -> Queue:  # noqa: ARG002
        """Return an empty queue of a dataset."""
        return RetryQueue(self.accounts.queues, self.name, name)

    def take_back(self, dataset: int, queue: Queue) -> None:
        """Go on with a queue that was loaded."""
        if isinstance(queue, RetryQueue):
            self.queues[dataset] = queue

    # -- a batch ---------------------------------------------------------------------------------------------

    def _tests(self, view: View, at: int, stop: int) -> int:
        """Test rows [at, stop) on arrival or take them as news of a waiting series; sweep queues that are due.

        Noise is drawn for all arrival tests at once; which of them are made is decided row by row.
        """
        batch = view.batch
        datasets = batch.dataset[at:stop]
        live: Mask = self.status[datasets] == Status.TESTABLE
        if view.eligible is not None:
            live &= view.eligible[at:stop]
        reached = {
            row: (gaps[:, k], int(thresholds[k]))
            for rows, gaps, thresholds in self._candidates(view, at, live)
            for k, row in enumerate(rows)
        }
        columns: dict[int, tuple[list[int], list[int]]] = {}
        # Looked up once: this loop is what a query costs.
        rules, testable, journal, eligible = (
            self.rules,
            int(Status.TESTABLE),
            self.accounts.queues,
            view.eligible,
        )
        status, covers, names = self.status, self.covers, batch.series
        offsets, clock = batch.offset[at:stop].tolist(), view.clock[at:stop].tolist()
        one_plan, look = len(self.plans) == 1, True
        for row, dataset in enumerate(datasets.tolist(), start=at):
            if look or not row & 63:
                look = False
                if self.accounts.full:
                    return row
            if not covers[dataset] or (eligible is not None and not eligible[row]):
                continue
            now, offset = clock[row - at], offsets[row - at]
            if status[dataset] != testable:
                if status[dataset] == Status.WAITING:
                    self.open_run(dataset, now)
                    look = True
                if status[dataset] == Status.PENDING:
                    return row
                self.skip(self.accounts.slot(self.name, dataset).shown, 1)
                continue
            queue = self.queues.get(dataset)
            if queue is None:
                queue = RetryQueue(journal, self.name, self.datasets[dataset].name)
                self.queues[dataset] = queue
            queue.count += 1
            if not queue.changed:
                journal.note(queue, 0)
            series = names[row] if names else None
            if dataset in self.mutes and self.is_muted(dataset, series, now):
                self.skip("muted", 1)
            else:
                version = 0 if one_plan else int(self.version[dataset])
                if version not in columns:
                    columns[version] = self._columns(view, version, at, stop)
                values, thresholds = columns[version]
                name: PlaceName = (offset, int(batch.row[row])) if series is None else series
                place = queue.places.get(name)
                if place is None:
                    place = Waiting(
                        offset=offset,
                        row=int(batch.row[row]),
                        value=values[row - at],
                        threshold=thresholds[row - at],
                        attempt=1,
                        entered=offset,
                        entered_ms=now,
                        series=series,
                        query_id=batch.query_id[row],
                    )
                    look |= self._arrive(dataset, queue, name, place, reached.get(row), now)
                else:
                    place.offset, place.row, place.query_id = offset, int(batch.row[row]), batch.query_id[row]
                    place.value, place.threshold = values[row - at], thresholds[row - at]
                    queue.replaced(place)
            if queue.count % rules.every == 0 and status[dataset] == testable:
                self._sweep(dataset, queue, offset, now)
                look = True
        return stop

    def _columns(self, view: View, version: int, at: int, stop: int) -> tuple[list[int], list[int]]:
        """Return lattice values and thresholds of rows [at, stop) under a plan."""
        everything = np.ones(stop - at, dtype=np.bool_)
        values, thresholds = self._on_grid(view.batch, self.plans[version], at, everything)
        return values.tolist(), np.broadcast_to(thresholds, stop - at).tolist()

    def _arrive(
        self,
        dataset: int,
        queue: RetryQueue,
        name: PlaceName,
        arrival: Waiting,
        reached: tuple[NDArray[np.int64], int] | None,
        now: int,
    ) -> bool:
        """Test a query of a series that does not wait, and let it wait if it is a bottom; tell whether it is a top."""
        self.tested += 1
        branch = None if reached is None else self._branch(dataset, reached[0])
        if reached is not None and branch is not None:
            self._report(dataset, arrival, branch, int(reached[0][branch]), attempt=0, now=now)
            return True
        if len(queue.places) >= self.rules.capacity:
            queue.remove(next(iter(queue.places)))
            self.skip("retry-overflow", 1)
        queue.enter(name, arrival)
        return False

    def _report(self, dataset: int, place: Waiting, branch: int, gap: int, *, attempt: int, now: int) -> None:
        """Hand a top to the engine."""
        crossing = Crossing(
            dataset=dataset,
            branch=branch,
            gap=gap,
            threshold=place.threshold,
            attempt=attempt,
            offset=place.offset,
            row=place.row,
            series=place.series,
            query_id=place.query_id,
        )
        self.top(crossing, now)

    def _sweep(self, dataset: int, queue: RetryQueue, offset: int, now: int) -> None:
        """Test every waiting series once more, oldest place first."""
        rules = self.rules
        lifetime = rules.lifetime
        for name, place in list(queue.places.items()):
            too_old = lifetime.offsets is not None and offset - place.entered > lifetime.offsets
            too_late = lifetime.ms is not None and now - place.entered_ms > lifetime.ms
            if too_old or too_late or self.is_muted(dataset, place.series, now):
                queue.remove(name)
        waiting = list(queue.places.items())
        if not waiting:
            return
        columns = np.array(
            [(p.offset, p.row, p.value, p.threshold, p.attempt) for _, p in waiting], dtype=np.int64
        ).T
        tests = Tests(
            np.full(len(waiting), dataset, dtype=np.int64),
            np.ascontiguousarray(columns[0]),
            np.ascontiguousarray(columns[1]),
            np.ascontiguousarray(columns[2]),
            np.ascontiguousarray(columns[3]),
            np.ascontiguousarray(columns[4]),
        )
        chosen, gaps = self._reached(self.plan_of(dataset), tests)
        fired = {index: gaps[:, k] for k, index in enumerate(chosen.tolist())}
        for index, (name, place) in enumerate(waiting):
            branch = self._branch(dataset, fired[index]) if index in fired else None
            attempt = place.attempt
            place.attempt += 1
            if branch is not None or place.attempt >= rules.attempts:
                queue.remove(name)
            if branch is not None:
                self._report(dataset, place, branch, int(fired[index][branch]), attempt=attempt, now=now)
                if self.status[dataset] != Status.TESTABLE:
                    queue.swept(place.number)
                    return
        queue.swept()
