"""What is shown of a shard: its first datasets one by one, and sums over all of them.

The engine holds every dataset already; a view of each would be a second copy of the state. The projection keeps a
few numbers for each dataset and monitor in arrays, as of the last commit taken, and updates its sums by the
datasets that a commit changes. `Totals` and views leave the engine with the commit, and are shown once it is
durable.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stream_svt.monitor.accounts import Accounts
from stream_svt.monitor.dataset_account import DatasetAccount
from stream_svt.monitor.life_cycle import State
from stream_svt.monitor.released import DatasetView
from stream_svt.monitor.runner import Runner
from stream_svt.monitor.snapshot import RunState
from stream_svt.privacy.loss import Kind, to_float

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

PAUSED = "paused"
STATES = (*(state.value for state in State), PAUSED)
"""What a monitor may be doing on a dataset; a pause hides what is behind it."""

_IDLE = STATES.index(State.IDLE.value)
_NOT_COVERED = len(STATES)
_CODES: Mapping[str, int] = {state: code for code, state in enumerate(STATES)}
_NO_RUN = RunState()

DATASETS_AT_ONCE = 500
"""Datasets that `Projection.sum_up` takes between two yields: a few milliseconds of work."""


@dataclass(frozen=True, slots=True)
class MonitorTotals:
    """A monitor over the datasets of a shard.

    Attributes:
        states: Datasets by state.
        muted, queued: Series muted, and queries that wait for another test.
        spent, run_left: Of the datasets that are not shown one by one, by measure.
    """

    states: Mapping[str, int]
    muted: int
    queued: int
    spent: Mapping[str, float]
    run_left: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class OtherTotals:
    """The ledgers of one measure that are not shown one by one."""

    datasets: int
    limit: float
    spent: float
    reserved: float
    charges: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the datasets of a shard, as of a commit.

    Attributes:
        monitors: By name.
        others: Ledgers that are not shown one by one, by measure.
        raised: Limits in units of the ledger, where they are not the declared ones.
    """

    monitors: Mapping[str, MonitorTotals] = field(default_factory=dict)
    others: Mapping[str, OtherTotals] = field(default_factory=dict)
    raised: Mapping[str, int] = field(default_factory=dict)


class _Seats:
    """One monitor's numbers, an entry for each dataset."""

    __slots__ = ("left", "muted", "queued", "spent", "state", "sums")

    def __init__(self, covers: Mask) -> None:
        self.state = np.where(covers, _IDLE, _NOT_COVERED).astype(np.int8)
        self.muted = np.zeros(len(covers), dtype=np.int32)
        self.queued = np.zeros(len(covers), dtype=np.int32)
        self.spent = np.zeros(len(covers), dtype=np.int64)
        self.left = np.zeros(len(covers), dtype=np.int64)
        self.sums = _Sums(states=np.bincount(self.state, minlength=len(STATES) + 1))


@dataclass(slots=True)
class _Sums:
    """A monitor's sums; ``spent`` and ``left`` by whether the ledger counts zCDP."""

    states: Integers
    muted: int = 0
    queued: int = 0
    spent: list[int] = field(default_factory=lambda: [0, 0])
    left: list[int] = field(default_factory=lambda: [0, 0])


class Projection:
    """What is shown of the datasets of a shard, kept up to date by what changes.

    Args:
        accounts: Of the shard; no dataset has a ledger yet.
        runners: Its monitors, by name.

    Attributes:
        changed: Datasets that the sums do not know as they are, beside those that changed since the last
            commit.
    """

    def __init__(self, accounts: Accounts, runners: Mapping[str, Runner]) -> None:
        self._accounts = accounts
        self._runners = runners
        self._datasets = datasets = accounts.datasets
        count = len(datasets)
        self.changed: set[int] = set()
        self._views_changed = False
        self._ledgers = {
            "limit": datasets.limit.copy(),
            "spent": np.zeros(count, dtype=np.int64),
            "reserved": np.zeros(count, dtype=np.int64),
            "charges": np.zeros(count, dtype=np.int64),
        }
        self._monitors: dict[str, _Seats] = {}
        self._raised: dict[str, int] = {}
        self._others: dict[str, dict[str, int]] = {}
        for kind in Kind:
            mine = self._of_kind(np.arange(count), kind)
            if len(mine):
                self._others[kind.measure] = {"datasets": len(mine)} | {
                    name: _sum(values[mine]) for name, values in self._ledgers.items()
                }

    def cover(self, name: str, covers: Mask) -> None:
        """Let a monitor begin anew on the datasets it covers; what it holds there is told by `update`."""
        self._monitors[name] = _Seats(covers)
        self._views_changed = True

    def remove(self, name: str) -> None:
        """Forget a monitor."""
        del self._monitors[name]
        self._views_changed = True

    def views(self) -> list[DatasetView]:
        """Return the released state of all datasets as it stands after loading."""
        return self._views(range(len(self._datasets)))

    def shown(self) -> list[DatasetView]:
        """Return the released state, as it stands after loading, of the datasets that are shown one by one."""
        self._views_changed = False
        return self._views(np.flatnonzero(self._datasets.shown).tolist())

    def changed_views(self) -> list[DatasetView]:
        """Return the views of what the next commit changes; where monitors changed, of every dataset shown."""
        if self._views_changed:
            return self.shown()
        return self._views(n for n in sorted(self._accounts.dirty) if self._datasets.shown[n])

    def take(self) -> Totals:
        """Sum up what the next commit changes."""
        self.changed |= self._accounts.dirty
        for _ in self.sum_up():
            pass
        return self.totals()

    def sum_up(self) -> Iterator[None]:
        """Sum up what changed, in slices: `totals` are those of the state when no slice is left."""
        numbers = sorted(self.changed)
        for at in range(0, len(numbers), DATASETS_AT_ONCE):
            if at:
                yield
            part = numbers[at : at + DATASETS_AT_ONCE]
            self.update(part)
            self.changed.difference_update(part)

    def _views(self, numbers: Iterable[int]) -> list[DatasetView]:
        runners = list(self._runners.items())
        found = []
        for number in numbers:
            account = self._accounts.held.get(number) or DatasetAccount(self._datasets[number])
            covering = [(name, runner) for name, runner in runners if runner.runs.covers[number]]
            muted = {name: runner.runs.mutes.count(number) for name, runner in covering}
            queued = {name: runner.runs.queued(number) for name, runner in covering}
            top_only = {
                name
                for name, runner in covering
                if (run_state := account.run_states.get(name)) is not None
                and runner.runs.top_branch_only(number, run_state)
            }
            found.append(account.view(self._accounts.shard, muted, queued, top_only))
        return found

    def update(self, numbers: Sequence[int]) -> None:
        """Take what datasets that have a ledger hold now, each named once."""
        if not numbers:
            return
        where = np.array(numbers, dtype=np.int64)
        held = [self._accounts.held[number] for number in numbers]
        self._update_ledgers(where, held)
        rest = [self._of_kind(np.arange(len(where)), kind, where) for kind in (Kind.PURE, Kind.ZCDP)]
        # Where a monitor has no slot, nothing has changed since `cover`.
        for name in {name for one in held for name in one.run_states} & self._monitors.keys():
            statuses, runner = self._monitors[name], self._runners[name]
            covered = runner.runs.covers[where]
            run_states = [one.run_states.get(name, _NO_RUN) for one in held]
            state = np.array(
                [_CODES[PAUSED if run_state.paused else run_state.state] for run_state in run_states],
                dtype=np.int8,
            )
            state[~covered] = _NOT_COVERED
            sums = statuses.sums
            sums.states += np.bincount(state, minlength=len(STATES) + 1)
            sums.states -= np.bincount(statuses.state[where], minlength=len(STATES) + 1)
            statuses.state[where] = state
            muted = _masked([runner.runs.mutes.count(number) for number in numbers], covered)
            sums.muted += _replace(statuses.muted, where, muted)
            queued = _masked([runner.runs.queued(number) for number in numbers], covered)
            sums.queued += _replace(statuses.queued, where, queued)
            for total, values, amounts in (
                (sums.spent, statuses.spent, [run_state.spent for run_state in run_states]),
                (sums.left, statuses.left, [run_state.left for run_state in run_states]),
            ):
                now = _masked(amounts, covered)
                for measure, mine in enumerate(rest):
                    total[measure] += _sum(now[mine]) - _sum(values[where[mine]])
                values[where] = now

    def totals(self) -> Totals:
        """Return the sums."""
        return Totals(
            monitors={name: _monitor_totals(statuses.sums) for name, statuses in self._monitors.items()},
            others={
                kind.measure: OtherTotals(
                    datasets=sums["datasets"],
                    limit=to_float(sums["limit"], kind),
                    spent=to_float(sums["spent"], kind),
                    reserved=to_float(sums["reserved"], kind),
                    charges=sums["charges"],
                )
                for kind in Kind
                if (sums := self._others.get(kind.measure)) is not None
            },
            raised=dict(self._raised),
        )

    def _of_kind(self, places: Integers, kind: Kind, numbers: Integers | None = None) -> Integers:
        """Return those of some places whose datasets count in a measure and are not shown one by one."""
        numbers = places if numbers is None else numbers
        mine: Mask = (self._datasets.zcdp[numbers] == (kind is Kind.ZCDP)) & ~self._datasets.shown[numbers]
        return places[mine]

    def _update_ledgers(self, where: Integers, held: Sequence[DatasetAccount]) -> None:
        ledgers = [account.ledger for account in held]
        now = {
            name: np.array(amounts, dtype=np.int64)
            for name, amounts in (
                ("limit", [ledger.limit for ledger in ledgers]),
                ("spent", [ledger.spent for ledger in ledgers]),
                ("reserved", [ledger.reserved for ledger in ledgers]),
                (
                    "charges",
                    [
                        sum([run_state.runs + run_state.tops for run_state in one.run_states.values()])
                        for one in held
                    ],
                ),
            )
        }
        # Under zCDP a run is charged as a whole when it begins.
        for place in np.flatnonzero(self._datasets.zcdp[where]).tolist():
            now["charges"][place] -= sum(run_state.tops for run_state in held[place].run_states.values())
        for place in np.flatnonzero(now["limit"] != self._datasets.limit[where]).tolist():
            self._raised[held[place].name] = ledgers[place].limit
        places = {kind: self._of_kind(where, kind) for kind in Kind}
        for name, values in self._ledgers.items():
            before = {kind: _sum(values[mine]) for kind, mine in places.items()}
            values[where] = now[name]
            for kind, mine in places.items():
                if len(mine):
                    self._others[kind.measure][name] += _sum(values[mine]) - before[kind]


def _masked(values: Sequence[int], covered: Mask) -> Integers:
    found = np.array(values, dtype=np.int64)
    found[~covered] = 0
    return found


def _replace(values: NDArray[np.int32], where: Integers, now: Integers) -> int:
    """Store new values; return by how much their sum rose."""
    rose = int(now.sum()) - int(values[where].sum(dtype=np.int64))
    values[where] = now
    return rose


def _sum(values: Integers) -> int:
    """Return the exact sum: that of many limits does not fit 64 bits."""
    high, low = values >> 32, values & 0xFFFFFFFF
    return (int(high.sum()) << 32) + int(low.sum())


def _monitor_totals(sums: _Sums) -> MonitorTotals:
    return MonitorTotals(
        states={state: int(sums.states[code]) for state, code in _CODES.items()},
        muted=sums.muted,
        queued=sums.queued,
        spent=_by_measure(sums.spent, (Kind.PURE, Kind.ZCDP)),
        run_left=_by_measure(sums.left, (Kind.PURE, Kind.PURE)),
    )


def _by_measure(amounts: Sequence[int], kinds: Sequence[Kind]) -> dict[str, float]:
    """Return amounts of pure and zCDP ledgers, which are in units of ``kinds``, by the ledger's measure."""
    measures = (Kind.PURE.measure, Kind.ZCDP.measure)
    return {
        measure: to_float(amount, kind)
        for measure, amount, kind in zip(measures, amounts, kinds, strict=True)
    }


def sums_of(totals: Sequence[Totals]) -> Totals:
    """Return the sums over several shards."""
    monitors: dict[str, list[MonitorTotals]] = defaultdict(list)
    others: dict[str, list[OtherTotals]] = defaultdict(list)
    raised: dict[str, int] = {}
    for one in totals:
        raised |= one.raised
        for name, monitor in one.monitors.items():
            monitors[name].append(monitor)
        for measure, other in one.others.items():
            others[measure].append(other)
    return Totals(
        monitors={
            name: MonitorTotals(
                states={state: sum(one.states[state] for one in each) for state in STATES},
                muted=sum(one.muted for one in each),
                queued=sum(one.queued for one in each),
                spent={measure: sum(one.spent[measure] for one in each) for measure in each[0].spent},
                run_left={
                    measure: sum(one.run_left[measure] for one in each) for measure in each[0].run_left
                },
            )
            for name, each in monitors.items()
        },
        others={
            measure: OtherTotals(
                datasets=sum(one.datasets for one in each),
                limit=sum(one.limit for one in each),
                spent=sum(one.spent for one in each),
                reserved=sum(one.reserved for one in each),
                charges=sum(one.charges for one in each),
            )
            for measure, each in others.items()
        },
        raised=raised,
    )
