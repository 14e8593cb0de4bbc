"""Released state of a shard for metrics and status pages: views of the first datasets, and sums over all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_svt.monitor.accounts import Accounts, DatasetAccount
from stream_svt.monitor.batch import Integers, Mask
from stream_svt.monitor.released import DatasetView, MonitorTotals, MonitorView, OtherTotals, Totals
from stream_svt.monitor.runner import Runner
from stream_svt.monitor.snapshot import PAUSED, RunState, State
from stream_svt.privacy.loss import Kind, to_float

STATES = (*(state.value for state in State), PAUSED)
"""States of a monitor on a dataset, as shown: a pause hides the state behind it."""
_NOT_COVERED = len(STATES)
_CODES: Mapping[str, int] = {state: code for code, state in enumerate(STATES)}
_NO_RUN = RunState()
_KINDS: Mapping[int, Kind] = {1: Kind.PURE, 2: Kind.ZCDP}
"""Measure of the ledgers in each group of datasets that are not shown one by one."""
DATASETS_AT_ONCE = 500
"""Datasets that `Projection.sum_up` takes between two yields: a few milliseconds of work."""


class _Table:
    """Numbers of datasets in columns, and their exact sums by group.

    Group 0 are the datasets shown one by one, group 1 the others with ledgers in epsilon, group 2 those in rho.
    ``states`` counts the datasets of each of `STATES`, in a table of a monitor.
    """

    def __init__(
        self, group: NDArray[np.int8], state: NDArray[np.int8] | None = None, **columns: NDArray[Any]
    ) -> None:
        self._group = group
        self._columns = columns
        self._state = np.zeros(0, dtype=np.int8) if state is None else state
        self.states = np.bincount(self._state, minlength=len(STATES) + 1)
        members = [group == number for number in range(3)]
        self.sums = {
            name: [sum(column[rows].tolist()) for rows in members] if column.any() else [0, 0, 0]
            for name, column in columns.items()
        }

    def put(self, rows: Integers, states: Sequence[str] = (), **values: Sequence[int]) -> None:
        """Store new numbers and states of some datasets."""
        if states:
            codes = np.array([_CODES[state] for state in states], dtype=np.int8)
            self.states += np.bincount(codes, minlength=len(STATES) + 1)
            self.states -= np.bincount(self._state[rows], minlength=len(STATES) + 1)
            self._state[rows] = codes
        groups = self._group[rows].tolist()
        for name, now in values.items():
            column, sums = self._columns[name], self.sums[name]
            for group, old, new in zip(groups, column[rows].tolist(), now, strict=True):
                sums[group] += new - old
            column[rows] = now


class Projection:
    """Views and sums of the datasets of a shard.

    ``changed`` are datasets that the sums have not taken yet, besides those with changes since the last commit.
    """

    def __init__(self, accounts: Accounts, runners: Mapping[str, Runner]) -> None:
        self._accounts = accounts
        self._runners = runners
        self.changed: set[int] = set()
        self._views_changed = True
        datasets = accounts.datasets
        self._group = np.where(datasets.shown, 0, 1 + datasets.zcdp).astype(np.int8)
        spent, reserved, charges = np.zeros((3, len(datasets)), dtype=np.int64)
        limit = datasets.limit.copy()
        self._ledgers = _Table(self._group, limit=limit, spent=spent, reserved=reserved, charges=charges)
        self._members = np.bincount(self._group, minlength=3).tolist()
        self._monitors: dict[str, _Table] = {}

    def cover(self, name: str, covers: Mask) -> None:
        """Add or reset a monitor on the datasets it covers; `update` adds its numbers there."""
        state = np.where(covers, _CODES[State.IDLE], _NOT_COVERED).astype(np.int8)
        muted, queued = np.zeros((2, len(covers)), dtype=np.int32)
        spent, left = np.zeros((2, len(covers)), dtype=np.int64)
        self._monitors[name] = _Table(self._group, state, muted=muted, queued=queued, spent=spent, left=left)
        self._views_changed = True

    def remove(self, name: str) -> None:
        """Remove a monitor."""
        del self._monitors[name]
        self._views_changed = True

    def shown(self) -> list[DatasetView]:
        """Return the views of all datasets that are shown one by one."""
        self._views_changed = False
        return list(map(self.view, np.flatnonzero(self._accounts.datasets.shown).tolist()))

    def take_views(self) -> list[DatasetView]:
        """Return the views that the next commit changes: at first, and if the monitors changed, all."""
        if self._views_changed:
            return self.shown()
        is_shown = self._accounts.datasets.shown
        return [self.view(number) for number in sorted(self._accounts.dirty) if is_shown[number]]

    def take(self) -> Totals:
        """Return the sums with the changes of the next commit."""
        self.changed |= self._accounts.dirty
        for _ in self.sum_up():
            pass
        return self.totals()

    def sum_up(self) -> Iterator[None]:
        """Update the sums from ``changed``, in slices: `totals` is valid after the last one."""
        numbers = sorted(self.changed)
        for start in range(0, len(numbers), DATASETS_AT_ONCE):
            if start:
                yield
            part = numbers[start : start + DATASETS_AT_ONCE]
            self.update(part)
            self.changed.difference_update(part)

    def view(self, number: int) -> DatasetView:
        """Return the released state of a dataset."""
        account = self._accounts.held.get(number) or DatasetAccount.of(self._accounts.datasets[number])
        ledger, kind = account.ledger, account.ledger.kind
        return DatasetView(
            dataset=account.name,
            shard=self._accounts.shard,
            unit=account.unit,
            measure=kind.measure,
            limit=to_float(ledger.limit, kind),
            spent=to_float(ledger.spent, kind),
            reserved=to_float(ledger.reserved, kind),
            monitors=[
                MonitorView(
                    monitor=name,
                    state=run_state.shown,
                    run=run_state.run,
                    run_alerts=run_state.run_tops,
                    alerts=run_state.tops,
                    runs=run_state.runs,
                    halts=run_state.halts,
                    spent=to_float(run_state.spent, kind),
                    run_left=to_float(run_state.left, Kind.PURE),
                    muted=runner.runs.muted(number),
                    queued=runner.runs.queued(number),
                    top_branch_only=runner.runs.top_branch_only(run_state),
                    next_run=runner.runs.limited_until(number, run_state),
                )
                for name, runner in self._runners.items()
                if runner.runs.covers[number]
                for run_state in [account.run_states.get(name, _NO_RUN)]
            ],
        )

    def update(self, numbers: Sequence[int]) -> None:
        """Take the present numbers of some datasets that have an account; no number occurs twice."""
        held = {number: self._accounts.held[number] for number in numbers}
        rows = np.array(numbers, dtype=np.int64)
        self._ledgers.put(
            rows,
            limit=[account.ledger.limit for account in held.values()],
            spent=[account.ledger.spent for account in held.values()],
            reserved=[account.ledger.reserved for account in held.values()],
            charges=[account.charges for account in held.values()],
        )
        # A monitor without a state on a dataset has not changed since `cover`.
        for name in {name for one in held.values() for name in one.run_states} & self._monitors.keys():
            table, runs = self._monitors[name], self._runners[name].runs
            slots = {
                number: account.run_states[name]
                for number, account in held.items()
                if name in account.run_states and runs.covers[number]
            }
            rows = np.array(list(slots), dtype=np.int64)
            table.put(
                rows,
                [run_state.shown for run_state in slots.values()],
                muted=list(map(runs.muted, slots)),
                queued=list(map(runs.queued, slots)),
                spent=[run_state.spent for run_state in slots.values()],
                left=[run_state.left for run_state in slots.values()],
            )

    def totals(self) -> Totals:
        """Return the sums."""
        sums = self._ledgers.sums
        return Totals(
            monitors={
                name: MonitorTotals(
                    states=dict(zip(STATES, table.states.tolist(), strict=False)),
                    muted=sum(table.sums["muted"]),
                    queued=sum(table.sums["queued"]),
                    spent={
                        kind.measure: to_float(table.sums["spent"][n], kind) for n, kind in _KINDS.items()
                    },
                    run_left={
                        kind.measure: to_float(table.sums["left"][n], Kind.PURE) for n, kind in _KINDS.items()
                    },
                )
                for name, table in self._monitors.items()
            },
            others={
                kind.measure: OtherTotals(
                    datasets=self._members[group],
                    limit=to_float(sums["limit"][group], kind),
                    spent=to_float(sums["spent"][group], kind),
                    reserved=to_float(sums["reserved"][group], kind),
                    charges=sums["charges"][group],
                )
                for group, kind in _KINDS.items()
                if self._members[group]
            },
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
