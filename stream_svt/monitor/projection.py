"""Released state of a shard for metrics and status pages: views of the first datasets, and sums over all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import reduce
from typing import Any

import numpy as np

from stream_svt.columns.query_batch import Mask
from stream_svt.monitor.released import DatasetView, MonitorTotals, MonitorView, OtherTotals, Totals
from stream_svt.monitor.runner import Runner
from stream_svt.monitor.state.accounts import Accounts, Amounts, DatasetAccount
from stream_svt.monitor.state.mutes import Mutes
from stream_svt.monitor.state.queue_journal import Queue
from stream_svt.monitor.state.runs import Runs
from stream_svt.monitor.state.shard_datasets import KINDS, SHOWN
from stream_svt.monitor.state.snapshot import PAUSED, STOPPED, Figures, RunState, State
from stream_svt.privacy.loss import EPSILON_UNITS, Kind, to_float

STATES = (*(state.value for state in State), STOPPED, PAUSED)
"""States of a monitor on a dataset, as shown."""
_NO_RUN = RunState()


class _Counts(dict[int, int]):
    """Numbers by dataset, zero for most; ``total`` is their sum."""

    total = 0

    def put(self, dataset: int, count: int) -> None:
        """Store the number of a dataset."""
        self.total += count - self.pop(dataset, 0)
        if count:
            self[dataset] = count


class _MonitorSums:
    """Sums over the datasets that a monitor covers; ``spent`` and ``left`` by group of datasets."""

    def __init__(self, covers: Mask) -> None:
        self.covers = covers
        self.states = dict.fromkeys(STATES, 0) | {State.IDLE.value: int(covers.sum())}
        self.spent, self.left = [0, 0, 0], [0, 0, 0]
        self.muted, self.queued = _Counts(), _Counts()


class Projection:
    """Views and sums of the datasets of a shard, without changes since the last `take`.

    Sums are by group of datasets (see `ShardDatasets`).
    """

    def __init__(self, accounts: Accounts, runners: Mapping[str, Runner]) -> None:
        self._accounts = accounts
        self._runners = runners
        self._views_changed = True
        datasets = accounts.datasets
        self._group = datasets.group
        self._members = [self._group.count(group) for group in range(3)]
        self._amounts = [[*datasets.limits], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
        """Sums of each of `Amounts`."""
        self._totals: Totals | None = None  # unless a sum has changed
        self._monitors: dict[str, _MonitorSums] = {}

    def cover(self, name: str) -> None:
        """Add or reset a monitor on its datasets; `add_state` has to follow for datasets with a state."""
        runs = self._runners[name].runs
        self._monitors[name] = _MonitorSums(runs.covers)
        for queue in (*runs.mutes.of.values(), *runs.queues.values()):
            self.count_queue(queue)
        self._views_changed, self._totals = True, None

    def remove(self, name: str) -> None:
        """Remove a monitor."""
        del self._monitors[name]
        self._views_changed, self._totals = True, None

    def shown(self) -> list[DatasetView]:
        """Return the views of all datasets that are shown individually."""
        self._views_changed = False
        shown = np.flatnonzero(np.frombuffer(self._group, dtype=np.uint8) == SHOWN)
        return list(map(self.view, shown.tolist()))

    def take_views(self) -> list[DatasetView]:
        """Return the views that the next commit changes; at first, and after a change of monitors, all views."""
        if self._views_changed:
            return self.shown()
        return [
            self.view(number) for number in sorted(self._accounts.changed) if self._group[number] == SHOWN
        ]

    def take(self) -> Totals:
        """Return the sums with the changes of the next commit."""
        accounts = self._accounts
        for number, account in accounts.changed.items():
            before = accounts.before[number]
            if self._group[number] != SHOWN:
                amounts = account.amounts
                self._count(number, before.amounts, amounts)
                before.amounts = amounts
            for name, counted in before.figures.items():
                before.figures[name] = figures = account.run_states[name].figures
                self._count_state(name, number, counted, figures)
        return self.totals()

    def add(self, number: int, account: DatasetAccount) -> None:
        """Count an account that was loaded."""
        self._count(number, (self._accounts.datasets[number].terms.limit, 0, 0, 0), account.amounts)
        for name, run_state in account.run_states.items():
            self.add_state(name, number, run_state)

    def add_state(self, name: str, number: int, run_state: RunState) -> None:
        """Count a monitor's state on a dataset, the first since `cover`."""
        self._count_state(name, number, _NO_RUN.figures, run_state.figures)

    def count_queue(self, queue: Queue[Any]) -> None:
        """Count the entries of a queue that has changed."""
        sums, number = self._monitors.get(queue.monitor), self._accounts.datasets.number.get(queue.dataset)
        if sums is not None and number is not None and sums.covers[number]:
            counts = sums.muted if isinstance(queue, Mutes) else sums.queued
            counts.put(number, queue.waiting)
            self._totals = None

    def _count(self, number: int, before: Amounts, now: Amounts) -> None:
        group, self._totals = self._group[number], None
        for sums, old, new in zip(self._amounts, before, now, strict=True):
            sums[group] += new - old

    def _count_state(self, name: str, number: int, before: Figures, now: Figures) -> None:
        sums, group = self._monitors.get(name), self._group[number]
        if sums is not None and sums.covers[number]:
            sums.states[before[0]] -= 1
            sums.states[now[0]] += 1
            sums.spent[group] += now[1] - before[1]
            sums.left[group] += now[2] - before[2]
            self._totals = None

    def view(self, number: int) -> DatasetView:
        """Return the released state of a dataset."""
        account = self._accounts.read(number) or DatasetAccount.of(self._accounts.datasets[number])
        ledger, kind = account.ledger, account.ledger.kind
        units = kind.units  # as in `to_float`
        return DatasetView(
            account.name,
            self._accounts.shard,
            account.unit,
            kind.measure,
            ledger.limit / units,
            ledger.spent / units,
            ledger.reserved / units,
            [
                _view(number, runner.runs, account.run_states.get(name, _NO_RUN), units)
                for name, runner in self._runners.items()
                if runner.runs.covers[number]
            ],
        )

    def totals(self) -> Totals:
        """Return the sums."""
        if self._totals is None:
            self._totals = self._sums()
        return self._totals

    def _sums(self) -> Totals:
        limit, spent, reserved, charges = self._amounts
        return Totals(
            monitors={
                name: MonitorTotals(
                    states=dict(sums.states),
                    muted=sums.muted.total,
                    queued=sums.queued.total,
                    spent={kind.measure: to_float(sums.spent[n], kind) for n, kind in KINDS.items()},
                    run_left={kind.measure: to_float(sums.left[n], Kind.PURE) for n, kind in KINDS.items()},
                )
                for name, sums in self._monitors.items()
            },
            others={
                kind.measure: OtherTotals(
                    datasets=self._members[group],
                    limit=to_float(limit[group], kind),
                    spent=to_float(spent[group], kind),
                    reserved=to_float(reserved[group], kind),
                    charges=charges[group],
                )
                for group, kind in KINDS.items()
                if self._members[group]
            },
        )


def _view(number: int, runs: Runs, run_state: RunState, units: int) -> MonitorView:
    """Return the released state of a monitor on a dataset; ``units`` of its ledger are a loss of 1."""
    paused, limit_end = run_state.paused, runs.limit_end(number, run_state)
    return MonitorView(  # by position, like an alert
        runs.name,
        run_state.shown,
        run_state.run,
        run_state.run_tops,
        run_state.tops,
        run_state.runs,
        run_state.halts,
        run_state.spent / units,
        run_state.left / EPSILON_UNITS,
        runs.mutes.count(number),
        runs.queued(number),
        runs.top_branch_only(run_state),
        run_state.paused_until if paused else limit_end,
        run_state.blind_ms,
        run_state.beneath if paused else "",
        limit_end if paused else 0,
    )


def sums_of(totals: Iterable[Totals]) -> Totals:
    """Return the sums over several shards."""
    return reduce(_plus, totals, Totals())


def _plus(one: Any, other: Any) -> Any:  # noqa: ANN401 - records, mappings and numbers
    """Return the sum of two records by field, two mappings by key, or two numbers."""
    if isinstance(one, Mapping):
        return {**one, **other} | {name: _plus(one[name], other[name]) for name in one if name in other}
    if is_dataclass(one):
        record: Any = type(one)
        return record(*(_plus(getattr(one, each.name), getattr(other, each.name)) for each in fields(one)))
    return one + other
