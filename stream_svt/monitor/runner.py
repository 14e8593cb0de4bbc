"""One monitor over the datasets of a shard: a struct of arrays, stepped through batches of queries.

Every dataset is a row of the arrays below; a batch is tested at once, with one draw of noise for each branch, and
only what reached the noisy threshold is then handled one by one, in order. So a query costs the same whether the
shard holds one dataset or a hundred thousand.

A monitor stops at a row whose run has threshold noise that is not durable yet (*blocked*). It goes on from there
once the shard has committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from stream_svt.errors import MisuseError
from stream_svt.mechanisms.noise import Noise
from stream_svt.mechanisms.sampler import Salt
from stream_svt.monitor.accounts import Accounts
from stream_svt.monitor.announcer import Crossing
from stream_svt.monitor.batch import QueryBatch
from stream_svt.monitor.books import FOR_EVER, UNTIL_RUN_ENDS
from stream_svt.monitor.life_cycle import State
from stream_svt.monitor.monitor_spec import MonitorSpec
from stream_svt.monitor.mutes import MuteFilter, Mutes, series_hashes
from stream_svt.monitor.options import Mute, OnHalt
from stream_svt.monitor.pending import Block
from stream_svt.monitor.plan import Plan
from stream_svt.monitor.queue_journal import Queue
from stream_svt.monitor.shard_datasets import NEVER, ShardDatasets
from stream_svt.monitor.snapshot import SECRETS, Slot, unpack_secrets

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

_NEVER = NEVER
_RUNNING, _EXHAUSTED = State.RUNNING, State.EXHAUSTED  # looked up for every slot that is taken over


class Status:
    """What a query of a dataset meets: it is skipped, opens a run, waits for durable noise, or is tested.

    Plain numbers, as they stand in the arrays: a member of an enumeration takes several times as long to look up.
    """

    SKIP: Final = 0
    WAITING: Final = 1
    PENDING: Final = 2
    TESTABLE: Final = 3


def status_of(slot: Slot) -> int:
    """Return the `Status` of a slot whose open run, if there is one, is durable."""
    if slot.paused or slot.stopped or slot.state is _EXHAUSTED:
        return Status.SKIP
    return Status.TESTABLE if slot.state is _RUNNING else Status.WAITING


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
class Tests:
    """Queries to be tested, as columns; ``attempt`` counts from 0 and is one number for all or one for each."""

    dataset: Integers
    offset: Integers
    row: Integers
    value: Integers
    threshold: Integers | int
    attempt: Integers | int


@dataclass(slots=True, repr=False)
class View:
    """A batch as one monitor sees it: from row ``start`` on, with the clock at each row.

    ``eligible`` says which rows are queries for the monitor (None: all), ``outside`` which would be but for their
    dataset's period, ``markers`` which close a set of a dataset it covers; ``marked`` are their rows in order.
    """

    batch: QueryBatch
    start: int
    clock: Integers
    eligible: Mask | None
    outside: Integers
    markers: dict[int, str]
    marked: list[int]


_NO_ROWS = np.zeros(0, dtype=np.int64)
_NO_ROW = np.zeros(0, dtype=np.bool_)


class Runner:
    """A monitor without append: every query is tested once.

    Attributes
    ----------
    status, version, threshold_noise, salt_high, salt_low, deadline
        Arrays over the datasets of the shard. ``version`` indexes ``plans``.
    offset, row, clock_ms
        The next query to look at, and the running maximum of the broker's timestamps before it.
    refused
        Rows of the batch that came outside their dataset's period: since the engine took note of them last.
    """

    def __init__(
        self,
        accounts: Accounts,
        noise: QueryNoise,
        spec: MonitorSpec,
        datasets: ShardDatasets,
    ) -> None:
        count = len(datasets)
        self.accounts = accounts
        self.noise = noise
        covers = datasets.covers(spec)
        self.covers = covers
        self.covers_all = bool(covers.all())
        self.datasets = datasets
        self.status = np.where(covers, Status.WAITING, Status.SKIP).astype(np.uint8)
        self.version = np.zeros(count, dtype=np.int16)
        self.threshold_noise = np.zeros(count, dtype=np.int64)
        self.salt_high = np.zeros(count, dtype=np.uint64)
        self.salt_low = np.zeros(count, dtype=np.uint64)
        self.deadline = np.full(count, _NEVER, dtype=np.int64)
        self.name = spec.name
        self.plans: list[Plan] = [Plan.of(spec)]
        self.offset = 0
        self.row = 0
        self.clock_ms = 0
        self.started = False
        self.mutes: dict[int, Mutes] = {}
        self.mute_filter = MuteFilter()
        self.tested = 0
        self.skipped: dict[str, int] = {}
        self.refused: list[int] = []
        self.periods = datasets.periods

    @property
    def spec(self) -> MonitorSpec:
        """The specification that new runs are opened under."""
        return self.plan.spec

    @property
    def plan(self) -> Plan:
        """The plan that new runs are opened under."""
        return self.plans[-1]

    @property
    def row_cost(self) -> int:
        """What a query costs, as a multiple of one that is tested with a whole batch at once."""
        return 1

    def plan_of(self, dataset: int) -> Plan:
        """Return the plan of a dataset's open run."""
        return self.plans[int(self.version[dataset])]

    def change(self, plan: Plan, running: Mask) -> None:
        """Open runs under another plan from now on; those that are open, as the mask says, go on under theirs."""
        used = np.unique(self.version[running]).tolist()
        kept = [self.plans[version] for version in used if self.plans[version].hash != plan.hash]
        place = {known.hash: index for index, known in enumerate([*kept, plan])}
        places = np.full(len(self.plans), len(kept), dtype=np.int16)
        places[used] = [place[self.plans[version].hash] for version in used]
        self.version = np.where(running, places[self.version], len(kept)).astype(np.int16)
        self.plans = [*kept, plan]

    def open_run(self, dataset: int, clock_ms: int) -> None:
        """Open a run on a dataset where the ledger admits one: compared once its noise is durable."""
        opening = self.accounts.open_run(self.name, self.plan, dataset, clock_ms)
        if opening is None:
            self.status[dataset] = status_of(self.accounts.slot(self.name, dataset))
            return
        slot = opening.slot
        if opening.new_grid:
            self.forget_pending(dataset)
        self.version[dataset] = len(self.plans) - 1
        secrets = unpack_secrets(slot.secrets)
        self.threshold_noise[dataset], self.salt_high[dataset], self.salt_low[dataset] = secrets
        self.schedule(dataset, slot)
        self.status[dataset] = Status.PENDING

    def end_run(self, dataset: int, reason: str) -> None:
        """End the open run of a dataset; what it did not spend is released (pure only)."""
        self.run_ended(dataset, self.accounts.end_run(self.name, dataset, reason))

    def take_over(self, datasets: Sequence[int], slots: Sequence[Slot]) -> None:
        """Go on where the slots of some datasets stand."""
        known = {plan.hash for plan in self.plans}
        for old in sorted({slot.spec_hash for slot in slots if slot.state is _RUNNING} - known):
            self.plans.insert(0, self.accounts.plans[old])
            self.version += 1
        version = {plan.hash: index for index, plan in enumerate(self.plans)}
        where = np.array(datasets, dtype=np.int64)
        self.version[where] = [version.get(slot.spec_hash, 0) for slot in slots]
        secrets = np.frombuffer(b"".join([slot.secrets for slot in slots]), dtype=SECRETS)
        self.threshold_noise[where] = secrets["noise"]
        self.salt_high[where], self.salt_low[where] = secrets["salt_high"], secrets["salt_low"]
        status = [status_of(slot) for slot in slots]
        self.status[where] = np.where(self.covers[where], status, Status.SKIP)
        for dataset in datasets:
            held = self.accounts.held[dataset].mutes
            if held and (mutes := held.get(self.name)) is not None:
                self._hold_mutes(dataset, mutes)
        if self.spec.resample_every is not None:
            for dataset, slot in zip(datasets, slots, strict=True):
                if slot.state is _RUNNING:
                    self.schedule(dataset, slot)

    def schedule(self, dataset: int, slot: Slot) -> None:
        """Set when the open run of a dataset ends by schedule."""
        every = self.spec.resample_every
        self.deadline[dataset] = _NEVER if every is None else slot.started_ms + every

    def top_branch_only(self, dataset: int, slot: Slot) -> bool:
        """Tell whether what is left of an open run pays the cheapest branch only."""
        if slot.state is not State.RUNNING:
            return False
        charges = [branch.charge for branch in self.plan_of(dataset).mechanism.branches]
        return len(charges) > 1 and slot.left < max(charges)

    def run_ended(self, dataset: int, slot: Slot) -> None:
        """Forget the secrets of a run that ended, and end the mutes that held until then."""
        self._end_run_mutes(dataset)
        self.threshold_noise[dataset] = 0
        self.salt_high[dataset] = self.salt_low[dataset] = 0
        self.deadline[dataset] = _NEVER
        self.status[dataset] = status_of(slot)

    def _hold_mutes(self, dataset: int, mutes: Mutes) -> None:
        """Take the mutes of a dataset, which its books hold, into the filter; those added later count by `_mute`."""
        self.mutes[dataset] = mutes
        self.mute_filter.add(dataset, mutes, self.mutes)

    def _mute(self, crossing: Crossing, clock_ms: int) -> list[str]:
        """Mute the series of a top as declared; return the oldest, whose mutes end where there are too many."""
        rule, dataset, series = self.spec.mute, crossing.dataset, crossing.series
        if series is None or rule is Mute.NONE:
            return []
        until = FOR_EVER
        if rule is Mute.RUN:
            until = UNTIL_RUN_ENDS
        elif not isinstance(rule, Mute):
            until = clock_ms + rule
        if dataset not in self.mutes:
            self._hold_mutes(dataset, self.accounts.mutes(self.name, dataset))
        mutes = self.mutes[dataset]
        self._end_expired_mutes(dataset, clock_ms)
        if not mutes.add(series, until):
            self.mute_filter.add(dataset, [series], self.mutes)
        ended = list(islice(mutes, max(0, len(mutes) - self.spec.max_mutes)))
        for oldest in ended:
            self._unmute(dataset, oldest)
        self.accounts.muted(self.name, dataset, series, until)
        return ended

    def _end_expired_mutes(self, dataset: int, clock_ms: int) -> None:
        """Forget the oldest mutes as far as they ran out."""
        mutes = self.mutes[dataset]
        while len(mutes):
            series, until = next(mutes.items())
            if until in (FOR_EVER, UNTIL_RUN_ENDS) or clock_ms < until:
                return
            self._unmute(dataset, series)

    def _unmute(self, dataset: int, series: str) -> None:
        """End a mute."""
        self.mutes[dataset].discard(series)
        self.mute_filter.remove(dataset, series)

    def _end_run_mutes(self, dataset: int) -> None:
        """End the mutes that hold until the run ends."""
        if dataset in self.mutes:
            held = self.mutes[dataset].items()
            for series in [series for series, until in held if until == UNTIL_RUN_ENDS]:
                self._unmute(dataset, series)

    def skip(self, reason: str, count: int) -> None:
        """Count queries that were not tested."""
        if count:
            self.skipped[reason] = self.skipped.get(reason, 0) + count

    def is_muted(self, dataset: int, series: str | None, clock_ms: int) -> bool:
        """Tell whether a series of a dataset is muted at a clock."""
        if series is None or dataset not in self.mutes:
            return False
        until = self.mutes[dataset].get(series)
        return until is not None and (until in (FOR_EVER, UNTIL_RUN_ENDS) or clock_ms < until)

    def queued(self, dataset: int) -> int:  # noqa: ARG002 - without append nothing waits
        """Return the number of queries of a dataset that wait for another test."""
        return 0

    def forget_pending(self, dataset: int) -> None:
        """Drop what waits for another test."""

    def drop_pending(self, dataset: int) -> None:
        """Drop what waits for another test, and that anything ever did."""

    def drop_all(self) -> None:
        """Drop what waits for another test on any dataset."""

    def new_queue(self, dataset: int, name: str) -> Queue:  # noqa: ARG002 - there should be none
        """Return an empty queue of a dataset of this name, to be loaded; ValueError where there can be none."""
        message = "there are waiting queries of a monitor without append"
        raise ValueError(message)

    def take_back(self, dataset: int, queue: Queue) -> None:  # noqa: ARG002 - there should be none
        """Go on with a queue that was loaded."""
        message = f"monitor {self.name} has no queues"
        raise MisuseError(message)

    # -- a batch ---------------------------------------------------------------------------------------------

    def advance(self, batch: QueryBatch) -> bool:
        """Consume the batch from where the monitor stands.

        False where the engine has to commit before the end: durable noise is needed, or the commit is full.
        """
        view = self._view(batch)
        at, size = view.start, len(batch)
        self._open_waiting(view, at, size, ahead=True)
        while True:
            if self.accounts.full and at < size:
                self._stop_at(view, at)
                return False
            stop = self._boundary(view, at)
            reached = self._tests(view, at, stop)
            if at < reached < stop:
                at = reached  # cut short, to look again at what comes next
                continue
            if reached < stop or not self._happen(view, reached):
                self._stop_at(view, reached)
                return False
            at = reached
            if at >= size:
                break
            at += at in view.markers
        self._refuse_outside(view, size)
        if size > view.start:
            self.clock_ms = int(view.clock[-1])
        # Where monitors of a topic stand apart, a batch may lie behind this one.
        self.offset, self.row = max((self.offset, self.row), (batch.end, batch.end_row))
        return True

    def _view(self, batch: QueryBatch) -> View:
        """Return the batch as this monitor sees it."""
        start = 0
        if self.offset > batch.first or self.row > 0:
            start = int(np.searchsorted(batch.offset, self.offset))
            while start < len(batch) and batch.offset[start] == self.offset and batch.row[start] < self.row:
                start += 1
        clock = batch.timestamp_ms.copy()
        if start < len(batch):
            clock[start] = max(self.clock_ms, int(clock[start]))
            np.maximum.accumulate(clock[start:], out=clock[start:])
        eligible, outside = self._eligible(batch, start, clock)
        markers = {
            row: name
            for row, name in batch.markers.items()
            if row >= start
            and self.covers[batch.dataset[row]]
            and batch.monitor.get(row, self.name) == self.name
        }
        return View(batch, start, clock, eligible, outside, markers, sorted(markers))

    def _eligible(self, batch: QueryBatch, start: int, clock: Integers) -> tuple[Mask | None, Integers]:
        """Return which rows are queries for this monitor (None: all), and which are but for their period."""
        if self.covers_all and not batch.markers and not batch.monitor and self.periods is None:
            return None, _NO_ROWS
        eligible: Mask = self.covers[batch.dataset]
        eligible[list(batch.markers)] = False
        for row, name in batch.monitor.items():
            if name != self.name:
                eligible[row] = False
        if self.periods is None:
            return eligible, _NO_ROWS
        begins, ends = self.periods
        inside = (clock >= begins[batch.dataset]) & (clock < ends[batch.dataset])
        outside = np.flatnonzero(eligible & ~inside)
        return eligible & inside, outside[outside >= start]

    def _refuse_outside(self, view: View, end: int) -> None:
        """Count and note the rows before ``end`` that came outside their dataset's period."""
        outside = view.outside[view.outside < end].tolist()
        self.skip("outside-period", len(outside))
        self.refused += outside

    def _stop_at(self, view: View, at: int) -> None:
        """Remember row ``at`` as the next one."""
        self._refuse_outside(view, at)
        if at > view.start:
            self.clock_ms = int(view.clock[at - 1])
        self.offset, self.row = int(view.batch.offset[at]), int(view.batch.row[at])

    def _acts_on_queries_alone(self, dataset: int) -> bool:  # noqa: ARG002 - sweeps know better
        """Whether nothing happens to a dataset before its next query, so that this may be prepared for."""
        return True

    def _open_waiting(self, view: View, first: int, last: int, *, ahead: bool = False) -> int:
        """Open runs for datasets that have a query in rows [first, last) and no run, in order of appearance.

        ``ahead`` of the tests this is done for a whole batch, so that one commit makes all of them durable. Returns
        the row reached: ``last``, or the first one whose run has to wait for the next commit.
        """
        waiting = self.status[view.batch.dataset[first:last]] == Status.WAITING
        if view.eligible is not None:
            waiting &= view.eligible[first:last]
        if not waiting.any():
            return last
        rows = np.flatnonzero(waiting) + first
        _, appearance = np.unique(view.batch.dataset[rows], return_index=True)
        for row in rows[np.sort(appearance)].tolist():
            dataset = int(view.batch.dataset[row])
            if not ahead or self._acts_on_queries_alone(dataset):
                if self.accounts.full:
                    return int(row)
                self.open_run(dataset, int(view.clock[row]))
        return last

    def _boundary(self, view: View, at: int) -> int:
        """Return the next row from ``at`` on before which something happens; the batch's size where nothing does."""
        due = self._resample_due(view, at)
        return at + int(due.argmax()) if due.any() else len(view.batch)

    def _resample_due(self, view: View, at: int) -> Mask:
        """Return which of the rows from ``at`` on are queries that meet a run past its scheduled end."""
        if self.spec.resample_every is None:
            return _NO_ROW
        datasets = view.batch.dataset[at:]
        due: Mask = (view.clock[at:] >= self.deadline[datasets]) & (self.status[datasets] == Status.TESTABLE)
        if view.eligible is not None:
            due &= view.eligible[at:]
        return due

    def _happen(self, view: View, at: int) -> bool:
        """Carry out what happens before row ``at``; False where durable noise is needed first.

        Where a run is due, so are those of other datasets whose next query comes too late for theirs: all are
        opened now, each at the clock of its own query, for one commit to make them durable.
        """
        due = self._resample_due(view, at)
        if not due.any() or not due[0]:
            return True
        queries = np.arange(len(due)) if view.eligible is None else np.flatnonzero(view.eligible[at:])
        _, first = np.unique(view.batch.dataset[at:][queries], return_index=True)
        for row in np.sort(queries[first]).tolist():
            dataset = int(view.batch.dataset[at + row])
            if due[row] and (row == 0 or self._acts_on_queries_alone(dataset)):
                if row and self.accounts.full:
                    break
                self.end_run(dataset, "schedule")
                self.open_run(dataset, int(view.clock[at + row]))
        return True

    # -- tests on arrival ------------------------------------------------------------------------------------

    def _tests(self, view: View, at: int, stop: int) -> int:
        """Test rows [at, stop) once; return the row reached, before ``stop`` where a run is not durable yet."""
        stop = self._open_waiting(view, at, stop)
        datasets = view.batch.dataset[at:stop]
        status = self.status[datasets]
        eligible = None if view.eligible is None else view.eligible[at:stop]
        pending = status == Status.PENDING
        if eligible is not None:
            pending &= eligible
        if pending.any():
            stop = at + int(pending.argmax())
            datasets, status = datasets[: stop - at], status[: stop - at]
            eligible = None if eligible is None else eligible[: stop - at]
        live = status == Status.TESTABLE
        if eligible is not None:
            live &= eligible
        silent = np.zeros(len(live), dtype=np.bool_)
        if len(self.mute_filter):
            self._silence(view, at, live, silent)
        reached, tops = self._resolve(view, at, stop, live, silent)
        live, silent = live[: reached - at], silent[: reached - at]
        self.tested += int(live.sum())
        self.skip("muted", int(silent.sum()))
        if not live.all():
            idle = ~live & ~silent & self.covers[datasets[: reached - at]]
            self._count_idle(
                datasets[: reached - at][idle if eligible is None else idle & eligible[: reached - at]]
            )
        self._tested(view, at, live, tops)
        return reached

    def _tested(self, view: View, at: int, live: Mask, tops: list[int]) -> None:
        """Take note of which rows from ``at`` on were tested and which of them are tops."""

    def _count_idle(self, datasets: Integers) -> None:
        """Count the queries of datasets that are not tested now, by reason."""
        for dataset, count in zip(*np.unique(datasets, return_counts=True), strict=True):
            self.skip(self.accounts.slot(self.name, int(dataset)).shown, int(count))

    def _silence(self, view: View, at: int, live: Mask, silent: Mask) -> None:
        """Move the queries of muted series from ``live`` to ``silent``."""
        if not view.batch.series:
            return
        datasets, names, clock = view.batch.dataset, view.batch.series, view.clock
        last = at + len(live)
        hits = self.mute_filter.hits(datasets[at:last], _hashes(view.batch)[at:last])
        hits = hits[live[hits]] + at
        muted = [
            row - at
            for row, dataset in zip(hits.tolist(), datasets[hits].tolist(), strict=True)
            if self.is_muted(dataset, names[row], int(clock[row]))
        ]
        live[muted] = False
        silent[muted] = True

    def _resolve(self, view: View, at: int, stop: int, live: Mask, silent: Mask) -> tuple[int, list[int]]:
        """Handle the tests of ``live`` that reached the threshold, in order; return the row reached and the tops.

        Rows that a top mutes leave ``live`` for ``silent``, those that meet an ended run leave both.
        """
        batch, tops = view.batch, list[int]()
        for rows, gaps, threshold in self._candidates(view, at, live):
            for k, row in enumerate(rows):
                if row >= stop:
                    break
                if not live[row - at]:
                    continue
                dataset = int(batch.dataset[row])
                branch = self._branch(dataset, gaps[:, k])
                if branch is None:
                    continue
                crossing = Crossing(
                    dataset=dataset,
                    branch=branch,
                    gap=int(gaps[branch, k]),
                    threshold=int(threshold[k]),
                    attempt=0,
                    offset=int(batch.offset[row]),
                    row=int(batch.row[row]),
                    series=batch.series[row] if batch.series else None,
                    query_id=batch.query_id[row],
                )
                tops.append(row)
                woken = self.top(crossing, int(view.clock[row]))
                stop = self._after_top(view, at, stop, row, crossing, live, silent, woken)
                if self.accounts.full:
                    stop = min(stop, row + 1)
        return stop, tops

    def _candidates(self, view: View, at: int, live: Mask) -> list[tuple[list[int], Integers, Integers]]:
        """Return (rows, gaps, thresholds) of the tests in ``live`` that reach the threshold at some branch.

        One entry, in order of rows: tests of different plans are merged.
        """
        tests, rows = self.tests(view, at, live)
        if len(tests.dataset) == 0:
            return []
        versions = self.version[tests.dataset]
        if (versions == versions[0]).all():
            plan = self.plans[int(versions[0])]
            tests.value, tests.threshold = self._on_grid(view.batch, plan, at, live)
            chosen, gaps = self._reached(plan, tests)
            thresholds = np.broadcast_to(tests.threshold, len(tests.dataset))[chosen]
            return [(rows[chosen].tolist(), gaps, thresholds)]
        found: list[tuple[int, Integers, int]] = []
        most = max(len(plan.mechanism.branches) for plan in self.plans)
        for version in np.unique(versions).tolist():
            plan, mine = self.plans[version], live.copy()
            mine[rows[versions != version] - at] = False
            part, part_rows = self.tests(view, at, mine)
            part.value, part.threshold = self._on_grid(view.batch, plan, at, mine)
            chosen, gaps = self._reached(plan, part)
            thresholds = np.broadcast_to(part.threshold, len(part.dataset))[chosen]
            padded = np.full((most, len(chosen)), -1, dtype=np.int64)
            padded[: len(gaps)] = gaps
            found.extend(zip(part_rows[chosen].tolist(), padded.T, thresholds.tolist(), strict=True))
        found.sort(key=lambda entry: entry[0])
        if not found:
            return []
        columns = np.array([gaps for _, gaps, _ in found]).T
        return [([row for row, _, _ in found], columns, np.array([t for _, _, t in found]))]

    def tests(self, view: View, at: int, live: Mask) -> tuple[Tests, Integers]:
        """Return the tests of ``live`` and their rows; values and thresholds are still to be set."""
        batch = view.batch
        if live.all():
            part = slice(at, at + len(live))
            rows = np.arange(part.start, part.stop)
            return Tests(batch.dataset[part], batch.offset[part], batch.row[part], _NO_ROWS, 0, 0), rows
        rows = np.flatnonzero(live) + at
        return Tests(batch.dataset[rows], batch.offset[rows], batch.row[rows], _NO_ROWS, 0, 0), rows

    def _on_grid(self, batch: QueryBatch, plan: Plan, at: int, live: Mask) -> tuple[Integers, Integers | int]:
        """Return lattice values and thresholds of the tests in ``live``."""
        values = plan.grid.values(batch, at, at + len(live))
        common = plan.grid.threshold(self.spec.threshold)
        whole = bool(live.all())
        if not batch.threshold:
            return (values if whole else values[live]), common
        thresholds = np.full(len(live), common, dtype=np.int64)
        for row, threshold in batch.threshold.items():
            if at <= row < at + len(live):
                thresholds[row - at] = plan.grid.threshold(threshold)
        return (values, thresholds) if whole else (values[live], thresholds[live])

    def _reached(self, plan: Plan, tests: Tests) -> tuple[Integers, Integers]:
        """Return which tests reach the noisy threshold at some branch, and their gaps at every branch."""
        gaps = plan.mechanism.branch_gaps(
            tests.value,
            tests.threshold,
            self.threshold_noise[tests.dataset],
            tests.attempt,
            lambda branch: self._draw(plan, tests, branch),
        )
        best = gaps[0] if len(gaps) == 1 else gaps.max(axis=0)
        chosen = np.flatnonzero(best >= 0)
        return chosen, gaps[:, chosen]

    def _draw(self, plan: Plan, tests: Tests, branch: int) -> Integers:
        """Return the query noise of every test for a branch: a function of run, place, attempt and value."""
        mechanism = plan.mechanism
        return self.noise.draw(
            mechanism.query_noise,
            mechanism.branches[branch].rate,
            salt=(self.salt_high[tests.dataset], self.salt_low[tests.dataset]),
            offset=tests.offset,
            row=tests.row if tests.row.any() else 0,
            attempt=tests.attempt,
            branch=branch,
            value=tests.value,
        )

    def top(self, crossing: Crossing, clock_ms: int) -> list[str]:
        """Charge a top, release its alert, mute its series, and halt the run after its last one.

        Returns the series whose mutes ended early to make room.
        """
        dataset = crossing.dataset
        is_last = self.accounts.charge_top(self.spec, self.plan_of(dataset), crossing)
        ended = self._mute(crossing, clock_ms)
        if is_last:
            stop = self.spec.on_halt is OnHalt.STOP
            self.run_ended(dataset, self.accounts.halt_run(self.name, dataset, stop=stop))
        return ended

    def _branch(self, dataset: int, gaps: Integers) -> int | None:
        """Return the first branch that fired and that the run can still pay."""
        left = self.accounts.slot(self.name, dataset).left
        return self.plan_of(dataset).mechanism.branch_of(gaps, left)

    def _after_top(
        self,
        view: View,
        at: int,
        stop: int,
        row: int,
        crossing: Crossing,
        live: Mask,
        silent: Mask,
        woken: list[str],
    ) -> int:
        """Take what a top changes for later rows out of ``live``; return where the segment ends now.

        It ends where a new run may begin, or at a query of a series that is no longer muted.
        """
        dataset = crossing.dataset
        later = np.flatnonzero(view.batch.dataset[row + 1 : stop] == dataset) + row + 1
        if view.eligible is not None:
            later = later[view.eligible[later]]
        if len(later) == 0:
            return stop
        if self.status[dataset] == Status.WAITING:
            return int(later[0])
        if self.status[dataset] == Status.SKIP:
            live[later - at] = silent[later - at] = False
            return stop
        muted = self._muted_by(view, crossing, later)
        muted = muted[live[muted - at]]
        live[muted - at] = False
        silent[muted - at] = True
        if woken:
            names = view.batch.series
            return next((k for k in later.tolist() if silent[k - at] and names[k] in woken), stop)
        return stop

    def _muted_by(self, view: View, crossing: Crossing, rows: Integers) -> Integers:
        """Return those of some rows of a top's dataset that have the top's series, where that is muted now."""
        series = crossing.series
        if series is None or not self.mutes.get(crossing.dataset):
            return _NO_ROWS
        names, clock = view.batch.series, view.clock
        alike = rows[_hashes(view.batch)[rows] == series_hashes([series], 1)]
        muted = [
            row
            for row in alike.tolist()
            if names[row] == series and self.is_muted(crossing.dataset, series, int(clock[row]))
        ]
        return np.array(muted, dtype=np.int64)


def _hashes(batch: QueryBatch) -> NDArray[np.uint64]:
    """Return a number for the series of each row, computed once for all monitors."""
    if batch.series_hashes is None:
        batch.series_hashes = series_hashes(batch.series, len(batch))
    return batch.series_hashes


def block_of(view: View, rows: Integers, values: Integers, thresholds: Integers) -> Block:
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
