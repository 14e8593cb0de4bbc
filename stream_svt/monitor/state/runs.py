"""The runs of one monitor: only this module opens, charges and ends them.

The state that a query needs is in arrays over the shard's datasets, so that its time does not depend on their number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from stream_svt.columns.query_batch import Crossing, Integers, Mask
from stream_svt.mechanisms.sampler import draw_threshold
from stream_svt.monitor.released import EventType, UnclockedEnd
from stream_svt.monitor.state.accounts import Accounts, DatasetAccount
from stream_svt.monitor.state.mutes import FOR_EVER, UNTIL_RUN_ENDS
from stream_svt.monitor.state.plan import Plan, end_of
from stream_svt.monitor.state.queue_journal import Queue
from stream_svt.monitor.state.series_mutes import SeriesMutes
from stream_svt.monitor.state.shard_datasets import NEVER
from stream_svt.monitor.state.snapshot import (
    INTERRUPTED,
    PAUSED,
    SECRETS,
    STOPPED,
    UNCOVERED,
    RunState,
    Signal,
    State,
    WatchedMute,
)
from stream_svt.privacy.loss import Kind, to_float
from stream_svt.settings.fields import MaxRuns, Mute, Sweep
from stream_svt.settings.monitors import MonitorSpec

# As in `accounts`.
_RUNNING, _EXHAUSTED, _LIMITED = State.RUNNING, State.EXHAUSTED, State.LIMITED
_ALERT, _ENDED = EventType.ALERT, EventType.ALERT_ENDED

_ENDS: Mapping[Mute | int, int | None] = {Mute.NONE: None, Mute.PERIOD: FOR_EVER, Mute.RUN: UNTIL_RUN_ENDS}
_STORED_ENDS: Mapping[UnclockedEnd, int] = {"period": FOR_EVER, "run": UNTIL_RUN_ENDS}
"""Ends of mutes that are not a clock, by rule, and by their word in alerts."""

_AT_ONCE = int(np.iinfo(np.int64).min)
"""Before all timestamps: brokers accept negative ones too."""


class Status:
    """What happens to a dataset's next query: it is skipped, opens a run, waits for durable noise, or is tested.

    Up to EXHAUSTED it is skipped. From LIMITED on it is skipped before the deadline; from then on it opens a run, or
    ends the pause. With PAUSED_RUN and PAUSED_RUN_UNTIL a run is open.
    """

    NOT_COVERED: Final = 0
    PAUSED: Final = 1
    PAUSED_RUN: Final = 2
    STOPPED: Final = 3
    EXHAUSTED: Final = 4
    WAITING: Final = 5
    PENDING: Final = 6
    TESTABLE: Final = 7
    LIMITED: Final = 8
    PAUSED_UNTIL: Final = 9
    PAUSED_RUN_UNTIL: Final = 10


_OPEN = frozenset({Status.PAUSED_RUN, Status.PAUSED_RUN_UNTIL, Status.PENDING, Status.TESTABLE})
_SHOWN: Mapping[int, str] = {
    Status.PAUSED: PAUSED,
    Status.PAUSED_RUN: PAUSED,
    Status.PAUSED_UNTIL: PAUSED,
    Status.PAUSED_RUN_UNTIL: PAUSED,
    Status.STOPPED: STOPPED,
    Status.EXHAUSTED: State.EXHAUSTED.value,
    Status.LIMITED: State.LIMITED.value,
}
"""`RunState.shown` of the states that one status stands for."""


def _stop(run_state: RunState) -> dict[str, bool]:
    """Return the detail of an event after which no run begins until an operator resamples."""
    return {"stopped": True} if run_state.stopped else {}


def _status_of(run_state: RunState) -> int:
    """Return the `Status` of a state whose open run, if any, is durable."""
    state = run_state.state
    if run_state.paused and run_state.paused_until:
        return Status.PAUSED_RUN_UNTIL if state is _RUNNING else Status.PAUSED_UNTIL
    if run_state.paused:
        return Status.PAUSED_RUN if state is _RUNNING else Status.PAUSED
    if state is _EXHAUSTED:
        return Status.EXHAUSTED
    if run_state.stopped:
        return Status.STOPPED
    if state is _LIMITED:
        return Status.LIMITED
    return Status.TESTABLE if state is _RUNNING else Status.WAITING


def _with(column: Integers, dataset: int, value: int) -> Integers:
    """Return a column with another entry; a column that is one number for all datasets is copied first."""
    if column[dataset] != value:
        column = column if column.flags.writeable else column.copy()
        column[dataset] = value
    return column


class Runs:
    """The runs of one monitor, all under one ``plan``.

    Arrays by dataset number: ``covers`` (whether the monitor runs there), ``status`` (`Status`), ``secrets`` (`SECRETS`
    of the open run), ``left`` (what that may still spend, in epsilon units), ``deadline`` (the timestamp of a query, in
    ms, that ends the run by schedule, lets a limited monitor begin the next one, or ends a pause) and ``window`` (the
    timestamp before which the latest begin does not count); the last two are one number for all while no dataset has
    any. ``timed`` counts the datasets whose queries are skipped before the deadline, ``pending`` has the runs whose
    noise is not durable. ``queues`` has the queries that wait for another test, by dataset number. ``clock_ms`` is the
    maximum of the broker's timestamps that the monitor has read. ``covered_again`` has the datasets whose pause or stop
    no event shows since the configuration covers them again.

    ``ending`` has the runs that test for the ends of its incidents, and ``ended`` of these the runs that report the
    incidents (see `MonitorSpec.ending`). The mutes of the first are the incidents that go on: what they test.
    """

    def __init__(self, accounts: Accounts, spec: MonitorSpec) -> None:
        count = len(accounts.datasets)
        self.name = spec.name
        self.accounts = accounts
        self.plan = Plan.of(spec)
        self.status = np.zeros(count, dtype=np.uint8)
        self.secrets = np.zeros(count, dtype=SECRETS)
        self._secret_bytes = self.secrets.view(np.uint8).data
        self.deadline = np.broadcast_to(np.int64(NEVER), count)
        self.window = np.broadcast_to(np.int64(_AT_ONCE), count)
        self.left = np.zeros(count, dtype=np.int64)
        self.clock_ms = 0
        self.pending: dict[int, int] = {}
        self.mutes = SeriesMutes(accounts, spec.name)
        self.queues: dict[int, Queue[Any]] = {}
        self.ending: Runs | None = None
        self.ended: Runs | None = None
        self.cover(accounts.datasets.covers(spec))

    @property
    def spec(self) -> MonitorSpec:
        """The specification of the monitor."""
        return self.plan.spec

    def pair(self, ending: Runs) -> None:
        """Let other runs test for the ends of the incidents of these."""
        self.ending, ending.ended = ending, self

    def cover(self, covers: Mask) -> None:
        """Run on these datasets; `show` has to follow for those where the monitor has a state."""
        self.covers = self.accounts.covered[self.name] = covers
        self.covers_all = bool(covers.all())
        self.timed = 0
        self.covered_again: set[int] = set()
        self.status[:] = np.where(covers, Status.WAITING, Status.NOT_COVERED)

    def changed(self, dataset: int, run_state: RunState, time_ms: int | None = None) -> None:
        """Update what follows from a change of the state on a dataset at a time, by default that of the last query."""
        run_state.note_blind(self.clock_ms if time_ms is None else time_ms)
        self.show(dataset, run_state)

    def show(self, dataset: int, run_state: RunState) -> None:
        """Update the arrays from the state on a dataset."""
        status = _status_of(run_state) if self.covers[dataset] else Status.NOT_COVERED
        if status == Status.TESTABLE and dataset in self.pending:
            status = Status.PENDING
        self.timed += (status >= Status.LIMITED) - int(self.status[dataset] >= Status.LIMITED)
        self.status[dataset] = status
        size = SECRETS.itemsize
        self._secret_bytes[size * dataset : size * (dataset + 1)] = run_state.secrets
        self.left[dataset] = run_state.left
        if run_state.blind_ms == UNCOVERED and status != Status.NOT_COVERED:
            self.covered_again.add(dataset)
        is_timed = self.spec.resample_every is not None or run_state.state is _LIMITED or run_state.paused
        deadline = self._deadline(dataset, run_state) if is_timed else NEVER
        self.deadline = _with(self.deadline, dataset, deadline)
        self.window = _with(self.window, dataset, self._window(dataset, run_state))

    def _window(self, dataset: int, run_state: RunState) -> int:
        """Return before which timestamp the latest begin of a limited monitor lies too far ahead to count."""
        if run_state.state is not _LIMITED or run_state.paused or not (begins := run_state.begins):
            return _AT_ONCE
        most = self._most(dataset, run_state)
        return _AT_ONCE if most is None else begins[-1] - most.within_ms

    def _deadline(self, dataset: int, run_state: RunState) -> int:
        interval = self.spec.resample_every
        if run_state.paused:
            return run_state.paused_until or NEVER
        if run_state.state is _LIMITED:
            return self.next_begin(dataset, run_state)
        if interval is None or run_state.state is not _RUNNING or run_state.started_ms is None:
            return NEVER
        end = run_state.started_ms + interval
        # A scheduled run goes on while `max_runs` allows no other. With `auto` it ends: horizon and limit of the
        # dataset may change before a replay, which has to end each run where it ended before.
        return end if isinstance(self.spec.max_runs, str) else max(end, self.next_begin(dataset, run_state))

    def next_begin(self, dataset: int, run_state: RunState) -> int:
        """Return the timestamp (ms) of a query from which `max_runs` allows the next run, `_AT_ONCE` for any."""
        most, begins = self._most(dataset, run_state), run_state.begins
        return _AT_ONCE if most is None or len(begins) < most.count else begins[-most.count] + most.within_ms

    def _most(self, dataset: int, run_state: RunState) -> MaxRuns | None:
        """Return how many runs may begin within a time, None for any number, and before the first one."""
        if run_state.runs == 0:
            return None
        return self.spec.runs_allowed(self.accounts.datasets[dataset].terms, self.accounts.sharing(dataset))

    def limit_end(self, dataset: int, run_state: RunState) -> int:
        """Return the timestamp (ms) of a query that ends a limit; 0 if time ends none."""
        return max(self.next_begin(dataset, run_state), 0) if run_state.state is _LIMITED else 0

    def due(self, datasets: Integers | int, time_ms: Integers | int) -> Mask | np.bool_:
        """Return which queries, by dataset and timestamp, open a run or end a pause because a deadline has passed."""
        passed = (time_ms >= self.deadline[datasets]) | (time_ms < self.window[datasets])
        return passed & (self.status[datasets] >= Status.TESTABLE)

    def renew(self, dataset: int, time_ms: int) -> None:
        """End the pause of a query that is `due`, or open its run and end the one before."""
        if self.status[dataset] >= Status.PAUSED_UNTIL:
            self.resume(dataset, "time", time_ms)
            if self.status[dataset] != Status.WAITING and not self.due(dataset, time_ms):
                return
        if self.status[dataset] == Status.TESTABLE:
            self.end_run(dataset, "schedule")
        self.open_run(dataset, time_ms)

    def opens(self, dataset: int, time_ms: int) -> bool:
        """Return whether a query with this timestamp opens a run."""
        status = self.status[dataset]
        return bool(status == Status.WAITING or (status == Status.LIMITED and self.due(dataset, time_ms)))

    def run_state(self, dataset: int) -> RunState:
        """Return the state on a dataset, to read."""
        return self.accounts.run_state(self.name, dataset)

    def _to_change(self, dataset: int) -> tuple[DatasetAccount, RunState]:
        """Return the account of a dataset and the monitor's state in it, to change."""
        return self.accounts.to_change(self.name, dataset)

    def _announce(
        self, kind: EventType, dataset: int, reason: str, charge: int = 0, **detail: object
    ) -> None:
        account, run_state = self._to_change(dataset)
        self.accounts.announce(kind, account, reason, self.name, run_state.run, charge, **detail)

    def has_waiting(self, datasets: Integers) -> bool:
        """Return whether the next query of one of these datasets opens a run."""
        return Status.WAITING in self.status.take(datasets).tobytes()

    def is_open(self, dataset: int) -> bool:
        """Return whether a run of a dataset is open, paused or not."""
        return int(self.status[dataset]) in _OPEN

    def open_datasets(self) -> list[int]:
        """Return the datasets with an open run, in ascending order."""
        opened: list[int] = np.flatnonzero(np.isin(self.status, [*_OPEN])).tolist()
        return opened

    def shown(self, dataset: int) -> str:
        """Return the state on a dataset as shown."""
        return _SHOWN.get(int(self.status[dataset])) or self.run_state(dataset).shown

    # -- runs ------------------------------------------------------------------------------------------------

    def open_run(self, dataset: int, time_ms: int) -> None:
        """Open a run if `max_runs` and the ledger admit it: charge it and draw its noise, to be used once durable.

        ``time_ms`` is the timestamp of the query that needs the run.
        """
        accounts, plan = self.accounts, self.plan
        account, run_state = self._to_change(dataset)
        is_barred = run_state.stopped or run_state.state is _EXHAUSTED or account.ledger.run_open
        if self._is_limited(dataset, time_ms) or is_barred:
            self.changed(dataset, run_state, time_ms)
            return
        charge = account.admit(run_state, plan.spec, plan.mechanism)
        if charge is None:
            self._announce(EventType.EXHAUSTED, dataset, "budget")
            self.changed(dataset, run_state, time_ms)
            return
        self._count_begin(dataset, time_ms)
        noise = draw_threshold(plan.mechanism.threshold_law, accounts.entropy)
        run_state.secrets = noise.to_bytes(8, "little", signed=True) + accounts.entropy(16)
        accounts.next.opened.append((self.name, dataset, run_state.run))
        reason, left = "first" if run_state.run == 1 else "resampled", to_float(run_state.left, Kind.PURE)
        self._announce(EventType.RUN_STARTED, dataset, reason, charge, alerts_charge_left=left)
        self.pending[dataset] = run_state.run
        self.changed(dataset, run_state, time_ms)

    def _is_limited(self, dataset: int, time_ms: int) -> bool:
        """Update whether `max_runs` keeps a dataset from a run that it could pay for; return it."""
        account, run_state = self._to_change(dataset)
        self._forget_ahead(dataset, run_state, time_ms)
        begin, was_limited = self.next_begin(dataset, run_state), run_state.state is _LIMITED
        if time_ms >= begin:
            if was_limited:
                run_state.signal(Signal.LIMIT_PASSED)
            return False
        if was_limited or run_state.stopped or run_state.state is _EXHAUSTED:
            return was_limited
        if account.payable(self.plan.spec, self.plan.mechanism) is None:
            return False
        run_state.signal(Signal.LIMIT_REACHED)
        self._announce(
            EventType.LIMITED, dataset, "max-runs", until=begin, max_runs=str(self._most(dataset, run_state))
        )
        return True

    def _forget_ahead(self, dataset: int, run_state: RunState, time_ms: int) -> None:
        """Count no begin that lies ahead of a query by more than the window: its timestamp was wrong."""
        if (most := self._most(dataset, run_state)) is None:
            return
        kept = [one for one in run_state.begins if one <= time_ms + most.within_ms]
        if len(kept) < len(run_state.begins):
            run_state.remember(kept)
            run_state.started_ms = None

    def _count_begin(self, dataset: int, time_ms: int) -> None:
        """Store the timestamp of a run that begins, and those of earlier ones as long as they count."""
        run_state = self._to_change(dataset)[1]
        most = self._most(dataset, run_state)
        earlier = [] if most is None else [one for one in run_state.begins if one > time_ms - most.within_ms]
        if most is not None:
            del earlier[: max(0, len(earlier) + 1 - most.count)]
        run_state.remember(earlier)
        run_state.started_ms = time_ms

    def committed(self, dataset: int, run: int) -> None:
        """Note that the noise of a run is durable: queries may be tested in it from now on."""
        if self.pending.get(dataset) == run:
            del self.pending[dataset]
            if self.status[dataset] == Status.PENDING:
                self.status[dataset] = Status.TESTABLE

    def report(self, crossing: Crossing, clock_ms: int) -> list[int]:
        """Charge and release a top, mute its series, halt after the last top; return hashes unmuted to make room."""
        accounts, dataset, plan = self.accounts, crossing.dataset, self.plan
        account, run_state = accounts.to_change(self.name, dataset)
        charge = account.charge_top(run_state, crossing.left)
        series = crossing.series
        subject = account.name if series is None else f"{account.name}/{series}"
        until = self._mute_end(series, clock_ms)
        watch = plan.watch(accounts.sources, until, accounts.datasets[dataset].terms.until_ms)
        by = until if self.ending is not None else watch and watch[3]
        alert = plan.alert(account, accounts.shard, run_state, crossing, charge, until, by)
        kind, content = (
            (_ALERT, alert)
            if self.ended is None
            else (_ENDED, end_of(alert, self.ended.plan, accounts.carried_from))
        )
        accounts.release(kind, account, content, subject, len(subject) + len(crossing.query_id))
        ended: list[int] = []
        if series is not None and self.ended is not None:
            for runs in (self, self.ended):
                runs.mutes.remove(dataset, self.mutes.hash_of(series))
        elif series is not None and until is not None:
            known = self.mutes.hash_of(series) if crossing.series_hash is None else crossing.series_hash
            about = (series, run_state.run, account.events, alert.severity)
            ended = self._mute(dataset, known, until, clock_ms, () if watch is None else (*about, *watch))
            if self.ending is not None:
                self.ending.mutes.add(dataset, known, until, clock_ms, plan.spec.max_mutes)
        if plan.mechanism.is_spent(run_state.left):
            account.end_run(run_state, Signal.LAST_TOP)
            if plan.spec.on_halt == "stop":
                run_state.signal(Signal.CLOSED)
            self._announce(EventType.RUN_HALTED, dataset, "cutoff", **_stop(run_state))
            self._ended(dataset, run_state, clock_ms)
        else:
            self.left[dataset] = run_state.left
        return ended

    def _mute(
        self, dataset: int, series: int, until: int, clock_ms: int, watch: tuple[Any, ...] = ()
    ) -> list[int]:
        """Mute a series, by hash; return hashes unmuted to make room."""
        watched = {**self.mutes.of[dataset].watched} if dataset in self.mutes.watching else {}
        ended = self.mutes.add(dataset, series, until, clock_ms, self.spec.max_mutes, watch)
        for one in (watched[each] for each in ended if each in watched):
            self.announce_watch(EventType.UNTESTED, dataset, one, "max-mutes")
        return ended

    def announce_watch(
        self, kind: EventType, dataset: int, mute: WatchedMute, reason: str, **more: object
    ) -> None:
        """Release the end of the watch of an alert's series."""
        place = f"{self.accounts.application}/{self.accounts.datasets[dataset].name}/{self.name}"
        detail: dict[str, Any] = {"series": mute.text, "alert": f"{place}/{mute.alert_run}/{mute.alert}"}
        detail |= {"windows": mute.windows, "severity": mute.severity or "", **more}
        self._announce(kind, dataset, reason, **detail)

    def _mute_end(self, series: str | None, clock_ms: int) -> int | None:
        """Return the clock (ms) at which the mute of a top's series ends, or its code; None without a mute."""
        rule = self.plan.spec.mute
        if series is None:
            return None
        return _ENDS[rule] if isinstance(rule, Mute) else clock_ms + rule

    def end_run(self, dataset: int, reason: str, *, full_price: bool = False, close: bool = False) -> None:
        """End the open run of a dataset before its last top: see `DatasetAccount.end_run`.

        ``close``: no run follows until an operator reopens the monitor; a run need not be open.
        """
        account, run_state = self._to_change(dataset)
        signal = Signal.CLOSED if close else Signal.ENDED
        lost = account.end_run(run_state, signal, full_price=full_price)
        self._announce(EventType.RUN_CLOSED, dataset, reason, lost, **_stop(run_state))
        self._ended(dataset, run_state)

    def _ended(self, dataset: int, run_state: RunState, time_ms: int | None = None) -> None:
        """Remove the secrets of an ended run, and the mutes that end with it."""
        self.mutes.end_run(dataset)
        self.pending.pop(dataset, None)
        self.changed(dataset, run_state, time_ms)

    def uncover(self, dataset: int) -> None:
        """Announce the end of a state in which queries are skipped: the configuration no longer covers the dataset."""
        if int(self.status[dataset]) not in _SHOWN:
            return
        run_state = self._to_change(dataset)[1]
        if run_state.state in (_EXHAUSTED, _LIMITED):
            run_state.signal(Signal.ENDED)
        self._announce(EventType.RUN_CLOSED, dataset, "removed")
        run_state.blind_ms = UNCOVERED
        self.changed(dataset, run_state)

    def announce_again(self, dataset: int) -> None:
        """Announce a stop and a pause from before the time in which the configuration did not cover the dataset."""
        self.covered_again.remove(dataset)
        run_state = self._to_change(dataset)[1]
        if run_state.stopped:
            self._announce(EventType.RUN_CLOSED, dataset, "covered", **_stop(run_state))
        if run_state.paused:
            self._announce(EventType.PAUSED, dataset, "covered", until=run_state.paused_until)
        run_state.blind_ms = 0
        self.changed(dataset, run_state)

    def pause(self, dataset: int, *, full_price: bool = False, until_ms: int = 0) -> None:
        """Skip the queries of a dataset; an open run stays open, or closes at ``full_price``.

        ``until_ms``: the timestamp of a query that ends the pause; 0 for a pause that only an operator ends.
        """
        if full_price and self.is_open(dataset):
            self.end_run(dataset, "paused", full_price=True)
        run_state = self._to_change(dataset)[1]
        run_state.signal(Signal.PAUSED)
        run_state.paused_until = until_ms
        if dataset in self.mutes.watching:
            mutes = self.mutes.of[dataset]
            for one in [each for each in mutes.watched.values() if each.run > 0]:
                mutes.put(replace(one, run=INTERRUPTED))
        self._announce(EventType.PAUSED, dataset, "command", until=until_ms)
        self.changed(dataset, run_state)

    def resume(self, dataset: int, reason: str = "command", time_ms: int | None = None) -> None:
        """End the pause of a dataset at a time, by default that of the last query."""
        run_state = self._to_change(dataset)[1]
        run_state.signal(Signal.RESUMED)
        run_state.paused_until = 0
        self._announce(EventType.RESUMED, dataset, reason)
        self.changed(dataset, run_state, time_ms)

    def mute_on_command(self, dataset: int, series: str, until: UnclockedEnd | int) -> None:
        """Mute a series of a dataset for an operator: its queries are skipped, and cost nothing.

        ``until`` is the clock (ms) at which the mute ends, or a word.
        """
        code = until if isinstance(until, int) else _STORED_ENDS[until]
        known = self.mutes.hash_of(series)
        self._end_watch(dataset, series)
        self._mute(dataset, known, code, self.clock_ms)
        if self.ending is not None:  # the operator ends this mute
            self.ending.mutes.remove(dataset, known)
        self._announce(EventType.MUTED, dataset, "command", series=series, muted_until=until)

    def unmute(self, dataset: int, series: str) -> None:
        """End the mute of a series, whether an alert or an operator muted it."""
        self._end_watch(dataset, series)
        for runs in filter(None, (self, self.ending)):
            runs.mutes.remove(dataset, self.mutes.hash_of(series))
        self._announce(EventType.UNMUTED, dataset, "command", series=series)

    def _end_watch(self, dataset: int, series: str) -> None:
        """Release that a series is no longer watched, because an operator mutes or unmutes it."""
        if dataset in self.mutes.watching:
            watched = self.mutes.of[dataset].watched.get(self.mutes.hash_of(series))
            if watched is not None:
                self.announce_watch(EventType.UNTESTED, dataset, watched, "command")

    def reopen(self, dataset: int) -> None:
        """End the open run, so that the next query of a dataset opens a new one with new noise."""
        run_state = self._to_change(dataset)[1]
        was_barred = run_state.stopped or run_state.state is _LIMITED
        run_state.signal(Signal.REOPENED)
        if self.is_open(dataset):
            self.end_run(dataset, "command")
        elif was_barred:
            self._announce(EventType.RUN_CLOSED, dataset, "command")
        self.allow_run(dataset)

    def allow_run(self, dataset: int) -> None:
        """Let a run begin, if none is open, though `max_runs` would prevent it: it takes the place of the last one."""
        run_state = self.run_state(dataset)
        if run_state.state is not _RUNNING and run_state.begins:
            run_state = self._to_change(dataset)[1]
            if (most := self._most(dataset, run_state)) is not None and len(run_state.begins) >= most.count:
                run_state.remember(run_state.begins[-most.count : -1])
                run_state.started_ms = None
            if run_state.state is _LIMITED:
                run_state.signal(Signal.LIMIT_PASSED)
        self.changed(dataset, run_state)

    def top_branch_only(self, run_state: RunState) -> bool:
        """Return whether the rest of an open run cannot pay its most expensive branch."""
        return run_state.state is _RUNNING and run_state.left < self.plan.mechanism.largest_units

    def skip(self, reason: str, count: int) -> None:
        """Count queries that were not tested."""
        if count:
            self.accounts.next.skipped[self.name, reason] += count

    def skip_idle(self, datasets: Integers) -> None:
        """Count queries, by their datasets, that were not tested because of the state there."""
        status = self.status[datasets]
        others = np.ones(len(status), dtype=np.bool_)
        for each, shown in _SHOWN.items():
            of_status = status == each
            self.skip(shown, int(np.count_nonzero(of_status)))
            others &= ~of_status
        for dataset, count in zip(*np.unique(datasets[others], return_counts=True), strict=True):
            self.skip(self.shown(int(dataset)), int(count))

    # -- waiting queries -------------------------------------------------------------------------------------

    def queued(self, dataset: int) -> int:
        """Return the number of queries of a dataset that wait for another test."""
        return self.queues[dataset].waiting if dataset in self.queues else 0

    def acts_on_queries_alone(self, dataset: int) -> bool:
        """Return whether only queries change a dataset, so that its next query may be prepared for."""
        return not (isinstance(self.spec.append, Sweep) and self.queues.get(dataset))

    def drop_waiting(self, dataset: int) -> None:
        """Drop the waiting queries of a dataset."""
        if dataset in self.queues:
            self.queues[dataset].clear()
