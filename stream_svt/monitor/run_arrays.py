"""The runs of one monitor as arrays over the datasets of a shard, with what is muted and what waits on each.

So a query costs the same whether the shard holds one dataset or a hundred thousand. Ledgers are changed through
`Accounts` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_svt.monitor.accounts import Accounts
from stream_svt.monitor.event_builder import Crossing
from stream_svt.monitor.mutes import FOR_EVER, UNTIL_RUN_ENDS, MonitorMutes, Mutes
from stream_svt.monitor.plan import Plan
from stream_svt.monitor.queue_journal import Queue
from stream_svt.monitor.shard_datasets import NEVER, ShardDatasets
from stream_svt.monitor.snapshot import SECRETS, RunState, State
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.settings.options import Mute, OnHalt, Sweep

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

_RUNNING, _EXHAUSTED = State.RUNNING, State.EXHAUSTED  # looked up for every slot that is taken over


class Status:
    """What a query of a dataset meets: it is skipped, opens a run, waits for durable noise, or is tested.

    Plain numbers, as they stand in the arrays: a member of an enumeration takes several times as long to look up.
    """

    SKIP: Final = 0
    WAITING: Final = 1
    PENDING: Final = 2
    TESTABLE: Final = 3


def status_of(run_state: RunState) -> int:
    """Return the `Status` of a slot whose open run, if there is one, is durable."""
    if run_state.paused or run_state.stopped or run_state.state is _EXHAUSTED:
        return Status.SKIP
    return Status.TESTABLE if run_state.state is _RUNNING else Status.WAITING


class RunArrays:
    """The runs of one monitor.

    Attributes:
        covers: Mask over the datasets of the shard: those that the monitor runs on.
        status, secrets, deadline: Arrays over the datasets of the shard. ``secrets`` are the `SECRETS` of the
            open runs, ``deadline`` is the clock (ms) at which a run ends by schedule.
        plan: What runs are opened under, and all open ones were.
        queues: What waits for another test, by dataset.
    """

    def __init__(self, accounts: Accounts, spec: MonitorSpec, datasets: ShardDatasets) -> None:
        count = len(datasets)
        self.name = spec.name
        self.accounts = accounts
        self.datasets = datasets
        self.covers = datasets.covers(spec)
        self.status = np.where(self.covers, Status.WAITING, Status.SKIP).astype(np.uint8)
        self.secrets = np.zeros(count, dtype=SECRETS)
        self.deadline = np.full(count, NEVER, dtype=np.int64)
        self.plan = Plan.of(spec)
        self.mutes = accounts.mutes.setdefault(spec.name, MonitorMutes())
        self.queues: dict[int, Queue[Any]] = {}

    @property
    def spec(self) -> MonitorSpec:
        """The specification of the monitor."""
        return self.plan.spec

    def take_over(self, datasets: Sequence[int]) -> list[int]:
        """Go on where the slots of some held datasets stand; return those that have one."""
        held = self.accounts.held
        found = [(n, slot) for n in datasets if (slot := held[n].run_states.get(self.name)) is not None]
        where = np.array([number for number, _ in found], dtype=np.int64)
        secrets = b"".join([run_state.secrets for _, run_state in found])
        self.secrets[where] = np.frombuffer(secrets, dtype=SECRETS)
        status = [status_of(run_state) for _, run_state in found]
        self.status[where] = np.where(self.covers[where], status, Status.SKIP)
        if self.spec.resample_every is not None:
            for number, run_state in found:
                if run_state.state is _RUNNING:
                    self.schedule(number, run_state)
        return [number for number, _ in found]

    # -- runs ------------------------------------------------------------------------------------------------

    def open_run(self, dataset: int, clock_ms: int) -> None:
        """Open a run on a dataset where the ledger admits one: compared once its noise is durable."""
        run_state = self.accounts.open_run(self.name, self.plan, dataset, clock_ms)
        if run_state is None:
            self.status[dataset] = status_of(self.accounts.run_state(self.name, dataset))
            return
        self.secrets[dataset] = np.frombuffer(run_state.secrets, dtype=SECRETS)[0]
        self.schedule(dataset, run_state)
        self.status[dataset] = Status.PENDING

    def is_open(self, dataset: int) -> bool:
        """Tell whether a run of a dataset is open, paused or not."""
        return self.accounts.run_state(self.name, dataset).state is _RUNNING

    def end_run(self, dataset: int, reason: str, *, full_price: bool = False, close: bool = False) -> None:
        """End the open run of a dataset, as `Accounts.end_run` says."""
        run_state = self.accounts.end_run(self.name, dataset, reason, full_price=full_price, close=close)
        self._run_ended(dataset, run_state)

    def _run_ended(self, dataset: int, run_state: RunState) -> None:
        """Forget the secrets of a run that ended, and end the mutes that held until then."""
        self.mutes.end_run(dataset)
        self.secrets[dataset] = 0
        self.deadline[dataset] = NEVER
        self.status[dataset] = status_of(run_state)

    def pause(self, dataset: int, *, paused: bool = True, at_full_price: bool = False) -> None:
        """Skip the queries of a dataset from now on, or test them again.

        An open run stays open, unless it is closed ``at_full_price``.
        """
        if at_full_price and self.is_open(dataset):
            self.end_run(dataset, "paused", full_price=True)
        self.status[dataset] = status_of(self.accounts.pause(self.name, dataset, paused=paused))

    def reopen(self, dataset: int) -> None:
        """Let the next query of a dataset open a new run with a new threshold."""
        if self.is_open(dataset):
            self.end_run(dataset, "command")
        run_state = self.accounts.account(dataset).run_state(self.name)
        run_state.stopped = False
        self.status[dataset] = status_of(run_state)

    def schedule(self, dataset: int, run_state: RunState) -> None:
        """Set when the open run of a dataset ends by schedule."""
        every = self.spec.resample_every
        self.deadline[dataset] = NEVER if every is None else run_state.started_ms + every

    def report(self, crossing: Crossing, clock_ms: int) -> list[str]:
        """Charge a top, release its alert, mute its series, and halt the run after its last one.

        Returns the series whose mutes ended early to make room.
        """
        dataset = crossing.dataset
        is_last = self.accounts.charge_top(self.plan, crossing)
        ended = self._mute(crossing, clock_ms)
        if is_last:
            stop = self.spec.on_halt is OnHalt.STOP
            self._run_ended(dataset, self.accounts.halt_run(self.name, dataset, stop=stop))
        return ended

    def _mute(self, crossing: Crossing, clock_ms: int) -> list[str]:
        rule, dataset, series = self.spec.mute, crossing.dataset, crossing.series
        if series is None or rule is Mute.NONE:
            return []
        until = FOR_EVER
        if rule is Mute.RUN:
            until = UNTIL_RUN_ENDS
        elif not isinstance(rule, Mute):
            until = clock_ms + rule
        if dataset not in self.mutes.held:
            self.mutes.hold(dataset, Mutes(self.accounts.queues, self.name, self.datasets[dataset].name))
        ended = self.mutes.add(dataset, series, until, clock_ms, self.spec.max_mutes)
        self.accounts.muted(self.name, dataset, series, until)
        return ended

    def top_branch_only(self, run_state: RunState) -> bool:
        """Tell whether what is left of an open run pays the cheapest branch only."""
        if run_state.state is not State.RUNNING:
            return False
        charges = [branch.charge for branch in self.plan.mechanism.branches]
        return len(charges) > 1 and run_state.left < max(charges)

    def skip(self, reason: str, count: int) -> None:
        """Count queries that were not tested."""
        if count:
            self.accounts.skipped[self.name, reason] += count

    # -- what waits for another test -------------------------------------------------------------------------

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
