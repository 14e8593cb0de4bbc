"""The runs of one monitor: opened, charged and ended here, and nowhere else; and the series that their tops mute.

What a query meets stands in arrays over the datasets of the shard: it costs the same whether they are one or 100,000.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice, takewhile
from typing import Any, ClassVar, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from stream_svt.mechanisms.estimates import estimate, lower_bound
from stream_svt.mechanisms.sampler import draw_threshold
from stream_svt.mechanisms.sparse_vector import SparseVector
from stream_svt.monitor.accounts import Accounts, DatasetAccount
from stream_svt.monitor.batch import Crossing, Grid, Integers, Mask
from stream_svt.monitor.queue_journal import Queue
from stream_svt.monitor.released import Alert, EventType, NoiseLaw, Position
from stream_svt.monitor.shard_datasets import NEVER
from stream_svt.monitor.snapshot import SECRETS, RunState, Signal, State, StoredMute
from stream_svt.privacy.loss import Kind, to_float
from stream_svt.settings.fields import Mute, OnHalt, Sweep
from stream_svt.settings.monitors import MonitorSpec

_RUNNING, _EXHAUSTED = State.RUNNING, State.EXHAUSTED  # looked up for every slot that is loaded

Q = TypeVar("Q", bound=Queue[Any])


FOR_EVER, UNTIL_RUN_ENDS = -1, -2
"""Instead of a clock: when a mute ends."""
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_LEAST, _LOAD = 2**12, 16


@dataclass(slots=True, repr=False, eq=False)
class Mutes(Queue[StoredMute]):
    """Muted series of a monitor on a dataset, oldest first."""

    kind: ClassVar[int] = 2
    entry_types: ClassVar[tuple[type, ...]] = (StoredMute,)

    def is_muted(self, series: str | None, clock_ms: int) -> bool:
        """Tell whether a series is muted at a clock."""
        mute = None if series is None else self.entries.get(series)
        return mute is not None and _holds(mute, clock_ms)

    def add(self, series: str, until: int, clock_ms: int, most: int) -> list[str]:
        """Mute a series; forget those that ran out, and return the oldest ones, which end beyond ``most``."""
        self._discard(takewhile(lambda mute: not _holds(mute, clock_ms), self.entries.values()))
        if series in self.entries:
            self.remove(series)
        self.count += 1
        self.put(StoredMute(self.count, series, until))
        return self._discard(islice(self.entries.values(), max(0, len(self.entries) - most)))

    def end_run(self) -> None:
        """End the mutes that hold until the run ends."""
        self._discard(mute for mute in self.entries.values() if mute.until == UNTIL_RUN_ENDS)

    def _discard(self, mutes: Iterable[StoredMute]) -> list[str]:
        names = [mute.series for mute in mutes]
        for series in names:
            self.remove(series)
        return names


def _holds(mute: StoredMute, clock_ms: int) -> bool:
    return mute.until in (FOR_EVER, UNTIL_RUN_ENDS) or clock_ms < mute.until


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is opened under; it keeps this until it ends, whatever the specification becomes."""

    spec: MonitorSpec
    hash: str
    mechanism: SparseVector
    grid: Grid

    @classmethod
    @lru_cache(maxsize=256)
    def of(cls, spec: MonitorSpec) -> Plan:
        """Return the plan of a specification; every takeover of every shard asks for the same few."""
        low, high = spec.grid_bounds
        return cls(spec, spec.hash(), spec.mechanism(), Grid(spec.granularity, low, high))


def series_hashes(series: Iterable[object], count: int) -> NDArray[np.uint64]:
    """Return one number for each series; equal series have equal numbers."""
    return np.fromiter(map(hash, series), dtype=np.int64, count=count).view(np.uint64)


class MuteFilter:
    """Finds the queries that may meet a mute of a monitor: all that do, and few others, which spares most look-ups.

    What it finds is looked up: outcomes do not depend on Python's hash, which differs between processes.
    """

    def __init__(self, mutes: Mapping[int, Mutes]) -> None:
        self._mutes = mutes
        self._begin()

    def hits(self, datasets: Integers, hashes: NDArray[np.uint64]) -> Integers:
        """Return which queries may be muted, by dataset and hash of their series."""
        return np.flatnonzero(self._marks[self._places(datasets, hashes)])

    def add(self, dataset: int, series: Collection[object]) -> None:
        """Take in new mutes of a dataset; those that have ended are forgotten where the filter is made anew."""
        self._count += len(series)
        if self._count * _LOAD > len(self._marks):
            self._begin()
        else:
            hashes = series_hashes(series, len(series))
            self._marks[self._places(np.full(len(series), dataset), hashes)] = True

    def _begin(self) -> None:
        entries = [mutes.entries for mutes in self._mutes.values()]
        sizes = [len(one) for one in entries]
        self._count = sum(sizes)
        self._marks = np.zeros(max(_LEAST, 1 << (2 * _LOAD * self._count).bit_length()), dtype=np.bool_)
        datasets = np.repeat(np.array(list(self._mutes), dtype=np.int64), sizes)
        self._marks[self._places(datasets, series_hashes(chain.from_iterable(entries), self._count))] = True

    def _places(self, datasets: Integers, hashes: NDArray[np.uint64]) -> Integers:
        keys = (hashes ^ (datasets.view(np.uint64) * _SPREAD)) * _SPREAD
        return (keys >> np.uint64(64 - (len(self._marks).bit_length() - 1))).view(np.int64)


class Status:
    """What a query of a dataset meets: it is skipped, opens a run, waits for durable noise, or is tested."""

    SKIP: Final = 0
    WAITING: Final = 1
    PENDING: Final = 2
    TESTABLE: Final = 3


def _status_of(run_state: RunState) -> int:
    """Return the `Status` of a slot whose open run, if there is one, is durable."""
    if run_state.paused or run_state.stopped or run_state.state is _EXHAUSTED:
        return Status.SKIP
    return Status.TESTABLE if run_state.state is _RUNNING else Status.WAITING


class Runs:
    """The runs of one monitor, all opened under one ``plan``.

    Over the datasets of the shard, ``covers`` says on which of them it runs, ``status`` what a query meets, ``secrets``
    are the `SECRETS` of the open runs, and ``deadline`` is the clock (ms) at which a run ends by schedule. What waits
    for another test is in ``queues``, by dataset.
    """

    def __init__(self, accounts: Accounts, spec: MonitorSpec) -> None:
        count = len(accounts.datasets)
        self.name = spec.name
        self.accounts = accounts
        self.plan = Plan.of(spec)
        self.status = np.zeros(count, dtype=np.uint8)
        self.secrets = np.zeros(count, dtype=SECRETS)
        self.deadline = np.full(count, NEVER, dtype=np.int64)
        self.mutes = accounts.mutes.setdefault(spec.name, {})
        self.filter = MuteFilter(self.mutes)
        self.queues: dict[int, Queue[Any]] = {}
        self.cover(accounts.datasets.covers(spec))

    @property
    def spec(self) -> MonitorSpec:
        """The specification of the monitor."""
        return self.plan.spec

    def cover(self, covers: Mask) -> None:
        """Run on these datasets; `refresh` has to follow for those that hold an account."""
        self.covers = covers
        self.status[:] = np.where(covers, Status.WAITING, Status.SKIP)

    def refresh(self, datasets: Sequence[int]) -> list[int]:
        """Go by the slots of some held datasets, whose open runs are durable; return those that have one."""
        held, every = self.accounts.held, self.spec.resample_every
        found = [(n, slot) for n in datasets if (slot := held[n].run_states.get(self.name)) is not None]
        where = np.array([number for number, _ in found], dtype=np.int64)
        secrets = b"".join([run_state.secrets for _, run_state in found])
        self.secrets[where] = np.frombuffer(secrets, dtype=SECRETS)
        status = [_status_of(run_state) for _, run_state in found]
        self.status[where] = np.where(self.covers[where], status, Status.SKIP)
        self.deadline[where] = [
            NEVER if every is None or run_state.state is not _RUNNING else run_state.started_ms + every
            for _, run_state in found
        ]
        return [number for number, _ in found]

    def run_state(self, dataset: int) -> RunState:
        """Return the slot of a dataset, to read."""
        return self.accounts.run_state(self.name, dataset)

    def _slot(self, dataset: int) -> tuple[DatasetAccount, RunState]:
        """Return the account of a dataset and the monitor's slot in it, to change."""
        account = self.accounts.account(dataset)
        return account, account.run_state(self.name)

    def _announce(
        self, kind: EventType, dataset: int, reason: str, charge: int = 0, **detail: object
    ) -> None:
        account, run_state = self._slot(dataset)
        self.accounts.announce(kind, account, reason, self.name, run_state.run, charge, **detail)

    def is_open(self, dataset: int) -> bool:
        """Tell whether a run of a dataset is open, paused or not."""
        return self.run_state(dataset).state is _RUNNING

    # -- runs ------------------------------------------------------------------------------------------------

    def open_run(self, dataset: int, clock_ms: int) -> None:
        """Open a run where the ledger admits one: charged and drawn now, compared once its noise is durable."""
        accounts, plan = self.accounts, self.plan
        account, run_state = self._slot(dataset)
        if run_state.stopped or run_state.state is _EXHAUSTED or account.ledger.run_open:
            self.refresh([dataset])
            return
        charge = account.admit(run_state, plan)
        if charge is None:
            run_state.signal(Signal.REFUSED)
            self._announce(EventType.EXHAUSTED, dataset, "budget")
            self.refresh([dataset])
            return
        run_state.signal(Signal.ADMITTED)
        run_state.run += 1
        run_state.runs += 1
        run_state.run_tops = 0
        run_state.started_ms = clock_ms
        mechanism = plan.mechanism
        noise = draw_threshold(mechanism.threshold_law, accounts.entropy)
        run_state.secrets = noise.to_bytes(8, "little", signed=True) + accounts.entropy(16)
        accounts.next.opened.append((self.name, dataset, run_state.run))
        reason, left = "first" if run_state.run == 1 else "resampled", to_float(run_state.left, Kind.PURE)
        self._announce(EventType.RUN_STARTED, dataset, reason, charge, tops_charge_left=left)
        self.refresh([dataset])
        self.status[dataset] = Status.PENDING

    def committed(self, dataset: int, run: int) -> None:
        """Take note that the noise of an opened run is durable: it may be compared from now on."""
        if self.status[dataset] == Status.PENDING and self.run_state(dataset).run == run:
            self.status[dataset] = Status.TESTABLE

    def report(self, crossing: Crossing, clock_ms: int) -> list[str]:
        """Charge a top, release and mute, halt after the last one; return series whose mutes ended to make room."""
        accounts, dataset = self.accounts, crossing.dataset
        account, run_state = self._slot(dataset)
        charge = account.charge_top(run_state, self.plan.mechanism.branches[crossing.branch].charge)
        run_state.run_tops += 1
        run_state.tops += 1
        is_last = run_state.left < self.plan.mechanism.smallest_charge
        run_state.signal(Signal.LAST_TOP if is_last else Signal.TOP)
        series = crossing.series
        subject = account.name if series is None else f"{account.name}/{series}"
        accounts.release(EventType.ALERT, account, self._alert(account, run_state, crossing, charge), subject)
        accounts.add_size(series or "", crossing.query_id)
        ended = self._mute(crossing, clock_ms)
        if is_last:
            run_state.halts += 1
            run_state.stopped = run_state.stopped or self.spec.on_halt is OnHalt.STOP
            account.end_run(run_state)
            self._announce(EventType.RUN_HALTED, dataset, "cutoff")
            self._ended(dataset)
        return ended

    def _alert(self, account: DatasetAccount, run_state: RunState, crossing: Crossing, charge: int) -> Alert:
        spec, mechanism, grid = self.spec, self.plan.mechanism, self.plan.grid
        branch = mechanism.branches[crossing.branch]
        correction = branch.correction(crossing.attempt)
        bar = crossing.threshold + correction
        laws = {"query": mechanism.branch_laws[crossing.branch], "threshold": mechanism.threshold_law}
        bound = lower_bound(bar, crossing.gap, **laws, beta=spec.beta)
        guess = None
        if bound is not None:
            guess = estimate(bar, crossing.gap, **laws) * float(grid.granularity)
        place = Position(
            topic=spec.topic, partition=self.accounts.shard, offset=crossing.offset, row=crossing.row
        )
        scale = float(grid.granularity / mechanism.threshold_rate)
        query_scale = float(grid.granularity / branch.rate)
        return Alert(
            dataset=account.name,
            monitor=spec.name,
            series=crossing.series,
            query_id=crossing.query_id,
            position=place,
            threshold=grid.real(crossing.threshold),
            correction=grid.real(correction),
            gap=grid.real(crossing.gap),
            branch=branch.name,
            attempt=crossing.attempt + 1,
            threshold_noise=NoiseLaw(family=mechanism.threshold_noise.value, scale=scale),
            query_noise=NoiseLaw(family=mechanism.query_noise.value, scale=query_scale),
            estimate=guess,
            bound=None if bound is None else grid.real(bound),
            beta=float(spec.beta),
            run=run_state.run,
            top=run_state.run_tops,
            account=account.account(charge),
            spec_hash=self.plan.hash,
        )

    def _mute(self, crossing: Crossing, clock_ms: int) -> list[str]:
        rule, dataset, series = self.spec.mute, crossing.dataset, crossing.series
        if series is None or rule is Mute.NONE:
            return []
        until: int = FOR_EVER
        said: str | int = "period"
        if rule is Mute.RUN:
            until, said = UNTIL_RUN_ENDS, "run"
        elif not isinstance(rule, Mute):
            until = said = clock_ms + rule
        if dataset not in self.mutes:
            self.mutes[dataset] = self.new_queue(Mutes, dataset)
        ended = self.mutes[dataset].add(series, until, clock_ms, self.spec.max_mutes)
        self.filter.add(dataset, [series])
        self._announce(EventType.MUTED, dataset, "top", series=series, until=said)
        return ended

    def end_run(self, dataset: int, reason: str, *, full_price: bool = False, close: bool = False) -> None:
        """End the open run of a dataset before its last top, as `DatasetAccount.end_run` says.

        ``close``: no other one follows until an operator reopens the monitor; there need not be an open one.
        """
        account, run_state = self._slot(dataset)
        is_open = run_state.state is _RUNNING
        run_state.signal(Signal.CLOSED if close else Signal.ENDED)
        run_state.stopped = run_state.stopped or close
        lost = account.end_run(run_state, full_price=full_price) if is_open else 0
        self._announce(EventType.RUN_CLOSED, dataset, reason, lost)
        self._ended(dataset)

    def _ended(self, dataset: int) -> None:
        """Forget the secrets of a run, and end the mutes that held until then."""
        if dataset in self.mutes:
            self.mutes[dataset].end_run()
        self.refresh([dataset])

    def pause(self, dataset: int, *, paused: bool = True, full_price: bool = False) -> None:
        """Skip the queries of a dataset, or test them again; an open run stays open, or is closed ``full_price``."""
        if full_price and self.is_open(dataset):
            self.end_run(dataset, "paused", full_price=True)
        self._slot(dataset)[1].paused = paused
        self._announce(EventType.PAUSED if paused else EventType.RESUMED, dataset, "command")
        self.refresh([dataset])

    def reopen(self, dataset: int) -> None:
        """Let the next query of a dataset open a new run with a new threshold."""
        if self.is_open(dataset):
            self.end_run(dataset, "command")
        self._slot(dataset)[1].stopped = False
        self.refresh([dataset])

    def top_branch_only(self, run_state: RunState) -> bool:
        """Tell whether what is left of an open run pays the cheapest branch only."""
        charges = [branch.charge for branch in self.plan.mechanism.branches]
        return run_state.state is _RUNNING and len(charges) > 1 and run_state.left < max(charges)

    def skip(self, reason: str, count: int) -> None:
        """Count queries that were not tested."""
        if count:
            self.accounts.next.skipped[self.name, reason] += count

    # -- what waits for another test -------------------------------------------------------------------------

    def new_queue(self, kind: type[Q], dataset: int) -> Q:
        """Return an empty queue for a dataset."""
        return kind(self.accounts.queues, self.name, self.accounts.datasets[dataset].name)

    def muted(self, dataset: int) -> int:
        """Return the number of muted series of a dataset."""
        mutes = self.mutes.get(dataset)
        return 0 if mutes is None else mutes.waiting

    def is_muted(self, dataset: int, series: str | None, clock_ms: int) -> bool:
        """Tell whether a series of a dataset is muted at a clock."""
        mutes = self.mutes.get(dataset)
        return mutes is not None and mutes.is_muted(series, clock_ms)

    def queued(self, dataset: int) -> int:
        """Return the number of queries of a dataset that wait for another test."""
        queue = self.queues.get(dataset)
        return 0 if queue is None else queue.waiting

    def acts_on_queries_alone(self, dataset: int) -> bool:
        """Tell whether nothing happens to a dataset before its next query, so that this may be prepared for."""
        return not (isinstance(self.spec.append, Sweep) and self.queues.get(dataset))

    def forget_waiting(self, dataset: int) -> None:
        """Drop what waits on a dataset: the grid it was measured on is no longer the monitor's."""
        queue = self.queues.get(dataset)
        if queue is not None:
            queue.forget()
