"""Ledgers and monitors' states of a shard's datasets, and the next commit: stored records and released events."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from stream_svt.columns.query_batch import Mask
from stream_svt.columns.strings import KeyedHash
from stream_svt.errors import ConfigError, Problem, UnreadableState
from stream_svt.mechanisms.sparse_vector import SparseVector
from stream_svt.monitor.released import (
    Account,
    Alert,
    DatasetView,
    EventType,
    Lifecycle,
    ReleasedEvent,
    Totals,
)
from stream_svt.monitor.state.mutes import Mutes
from stream_svt.monitor.state.queue_journal import Queue, QueueJournal
from stream_svt.monitor.state.shard_datasets import ShardDatasets
from stream_svt.monitor.state.snapshot import (
    NO_SECRETS,
    VERSION,
    Figures,
    RunState,
    Signal,
    State,
    StateRecord,
    from_bytes,
    to_bytes,
)
from stream_svt.privacy.ledger import Ledger
from stream_svt.privacy.loss import Kind, as_text, to_float
from stream_svt.settings.datasets import DatasetSpec
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.settings.sources import SourceSpec


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a step, of the commit that follows it, and of what a transaction publishes.

    A transaction stores one commit and publishes events of the one before: with these defaults fewer than 5,000 records
    and 8 MB.

    Attributes:
        records, size, rejects: A commit is full at this many state records, (estimated) bytes of records and events,
            or refused records.
        cost: Maximum of queries times monitors in one step: about 50 ms. A query that is tested by itself, not with
            its whole batch, counts `Append.row_cost` times.
        published, published_size: Maximum number of events and rejects, and bytes of events, that one transaction
            publishes; a single larger event is allowed.
    """

    runs: int = 1_000
    records: int = 2_500
    size: int = 4_000_000
    rejects: int = 1_000
    cost: int = 1_000_000
    published: int = 2_000
    published_size: int = 3_000_000


BOUNDS = Bounds()

_RECORD_BYTES = 400
"""Bytes of a dataset's state record besides its content before the commit: its frame, and what it may grow."""
EVENT_BYTES = 1_000
"""Approximate size of an event, in the outbox and on the alert topic, without texts that a client chose."""
# A global is faster than an attribute of the enum: loading compares a state, and an alert signals a top.
_RUNNING, _TOP = State.RUNNING, Signal.TOP

Q = TypeVar("Q", bound=Queue[Any])

Amounts = tuple[int, int, int, int]
"""A dataset's limit, spent and reserved amounts, and its number of charges."""


class DatasetAccount(StateRecord, array_like=True, gc=False):
    """A dataset's ledger and the states of its monitors, stored in this layout. Amounts are in ledger units."""

    name: str
    unit: str
    declared_limit: int
    ledger: Ledger
    events: int = 0
    run_states: dict[str, RunState] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, spec: DatasetSpec) -> DatasetAccount:
        """Return a new account for a dataset."""
        ledger = Ledger(spec.terms.kind, spec.terms.limit, spec.terms.spent_before)
        return cls(VERSION, spec.name, spec.terms.unit, spec.terms.limit, ledger)

    def run_state(self, monitor: str) -> RunState:
        """Return the state of a monitor; create it if the monitor has none yet."""
        found = self.run_states.get(monitor)
        if found is None:
            found = self.run_states[monitor] = RunState()
        return found

    def account(self, charge: int) -> Account:
        """Return the account after a charge, in the form that events carry."""
        ledger, kind = self.ledger, self.ledger.kind
        units = kind.units  # as in `to_float`
        return Account(
            kind.measure, charge / units, ledger.spent / units, ledger.reserved / units, ledger.limit / units
        )

    def payable(self, spec: MonitorSpec, mechanism: SparseVector) -> SparseVector | None:
        """Return the mechanism of the run that the ledger can pay for, whole or shortened; None if it cannot pay."""
        ledger = self.ledger
        available = ledger.available - spec.reserve_units(ledger.kind)
        if ledger.kind is Kind.ZCDP:
            return None if ledger.run_open or spec.run_price(Kind.ZCDP) > available else mechanism
        return mechanism if available >= mechanism.epsilon_units else mechanism.shortened(available)

    def admit(self, run_state: RunState, spec: MonitorSpec, mechanism: SparseVector) -> int | None:
        """Begin a run: return the charge for its threshold, None if the ledger cannot pay for a run.

        The run gets the mechanism's full epsilon or, if the ledger cannot pay that, a shorter run with fewer tops, and
        with at least the cheapest of several branches. The monitor's reserve stays available to other monitors. Under
        zCDP the full run is charged now, and no run is admitted while another one is open.
        """
        ledger, paid = self.ledger, self.payable(spec, mechanism)
        run_state.signal(Signal.REFUSED if paid is None else Signal.ADMITTED)
        if paid is None:
            return None
        price = spec.run_price(ledger.kind) if ledger.kind is Kind.ZCDP else paid.epsilon_units
        charge = ledger.open_run(price) + ledger.spend_reserved(paid.threshold_units)
        run_state.run += 1
        run_state.runs += 1
        run_state.left, run_state.run_tops = paid.top_units, 0
        run_state.spent += charge
        return charge

    def charge_top(self, run_state: RunState, left: int) -> int:
        """Pay for a top after which the run has ``left`` units; return the increase of the ledger's total."""
        run_state.signal(_TOP)
        charge = self.ledger.spend_reserved(run_state.left - left)
        run_state.left = left
        run_state.run_tops += 1
        run_state.tops += 1
        run_state.spent += charge
        return charge

    def end_run(self, run_state: RunState, signal: Signal, *, full_price: bool = False) -> int:
        """End a run, if one is open, and overwrite its secrets: no later reader of the state can recompute its noise.

        The rest of its reservation is released (pure only). At ``full_price`` it counts as spent, because outcomes may
        have been computed and lost. Returns the increase of the ledger's total.
        """
        was_open = run_state.state is _RUNNING
        run_state.signal(signal)
        if not was_open:
            return 0
        lost = self.ledger.spend_reserved(run_state.left) if full_price else 0
        self.ledger.close_run(0 if full_price else run_state.left)
        run_state.spent += lost
        run_state.halts += signal is Signal.LAST_TOP
        run_state.left, run_state.secrets = 0, NO_SECRETS
        return lost

    @property
    def amounts(self) -> Amounts:
        """What sums over datasets count; under zCDP a run is charged once, when it begins."""
        ledger, pure = self.ledger, self.ledger.kind is Kind.PURE
        charges = sum([run_state.runs + pure * run_state.tops for run_state in self.run_states.values()])
        return ledger.limit, ledger.spent, ledger.reserved, charges

    def check(self, spec: DatasetSpec | None, same: Container[str]) -> None:
        """Refuse a loaded account that this release or declaration cannot use; ``spec`` is None if none declares it.

        Raises `ConfigError` if the declaration differs from the stored one, `UnreadableState` for an open run of a
        monitor outside ``same``, the monitors whose specification still has the stored hash.
        """
        if spec is not None:
            self._refuse_changed(spec)
        for name, run_state in self.run_states.items():
            if run_state.state is _RUNNING and name not in same:
                message = (
                    f"dataset {self.name}, monitor {name}: run {run_state.run} is open under a specification "
                    "that this release cannot continue: use the release that wrote the state, and close the run "
                    "there first"
                )
                raise UnreadableState(message)

    def _refuse_changed(self, spec: DatasetSpec) -> None:
        terms, kind, field = spec.terms, self.ledger.kind, "limit"
        if terms.unit != self.unit:
            field = "unit"
            message = f"the privacy unit is journaled as '{self.unit}' and cannot change; declare a new dataset instead"
        elif terms.kind is not kind:
            message = f"the limit is journaled in {kind.measure}; the measure cannot change"
        elif terms.limit in (self.declared_limit, self.ledger.limit):
            return
        else:
            journaled, wanted = as_text(self.ledger.limit, kind), as_text(terms.limit, kind)
            message = (
                f"the limit is journaled as {kind.measure} {journaled}, the file says {wanted}. "
                f"Write {journaled} here; "
            )
            # The command needs a running worker, and a worker starts with the journaled limit only.
            message += (
                f"to raise it to {wanted} permanently, start a worker with {journaled}, then run: "
                f"stream-svt control raise-budget -c FILE {shlex.quote(spec.name)} --limit {wanted}"
                if terms.limit > self.ledger.limit
                else "a limit cannot be lowered"
            )
        raise ConfigError([Problem(0, f"datasets.{spec.name}.{field}", message)])


@dataclass(slots=True, repr=False)
class Commit:
    """Everything that one transaction makes durable.

    Attributes:
        records: State records (plain bytes, to be sealed) by key; None deletes the key.
        progress: Positions, clocks and counters, for the transaction's meta record.
        events: Released events in order: durable with this transaction, published with the next one.
        rejects: (topic, offset, reason) of refused records.
        views, totals: Datasets that changed, of those shown one by one, and sums over all: valid once durable.
        tested, skipped: Numbers of queries since the last commit, by monitor and by (monitor, reason).
        opened: (monitor, dataset number, run) of each run opened since then.
    """

    records: dict[bytes, bytes | None] = field(default_factory=dict)
    progress: bytes = b""
    events: list[ReleasedEvent] = field(default_factory=list)
    rejects: list[tuple[str, int, str]] = field(default_factory=list)
    views: list[DatasetView] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    tested: Counter[str] = field(default_factory=Counter)
    skipped: Counter[tuple[str, str]] = field(default_factory=Counter)
    opened: list[tuple[str, int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Before:
    """What sums have counted of a changed account: amounts, and figures of the monitors that may have changed."""

    amounts: Amounts
    figures: dict[str, Figures] = field(default_factory=dict)


class Accounts:
    """Accounts of a shard by dataset number, and the next commit.

    An account at rest is its record, as on the state topic. It is decoded to be read, and to be changed; `take_commit`
    encodes the changed ones. So an account that `read` or `account` returned is used before the next commit only.

    Attributes:
        hashing: The hash by which mutes know series: keyed with a secret of the shard.
        changed: The accounts that changed since the last commit.
        before: What `Projection` has counted of each of these.
        queues, mutes: The journal of queues; muted series by monitor, removed ones included, and dataset number.
        sources: The sources of the specification in use; what a name stands for never changes.
        carried_from: The application whose incidents were taken over, empty without one.
        sequence, shard_events: Number of events of the shard so far, and of those about no dataset.
        covered: The mask of the datasets that each monitor in use covers.
    """

    def __init__(
        self,
        application: str,
        shard: int,
        datasets: ShardDatasets,
        entropy: Callable[[int], bytes],
        hashing: KeyedHash,
        bounds: Bounds,
    ) -> None:
        self.application = application
        self.shard = shard
        self.datasets = datasets
        self.entropy = entropy
        self.hashing = hashing
        self.queues = QueueJournal()
        self.mutes: dict[str, dict[int, Mutes]] = {}
        self.changed: dict[int, DatasetAccount] = {}
        self.before: dict[int, Before] = {}
        self.sequence = 0
        self.shard_events = 0
        self.next = Commit()
        self.covered: dict[str, Mask] = {}
        self.sources: Sequence[SourceSpec] = ()
        self.carried_from = ""
        self._stored = [b""] * len(datasets)
        self._bounds = bounds
        self._size = 0

    @property
    def full(self) -> bool:
        """Whether the next commit has reached its bounds: no run is opened and no query tested before it."""
        following, bounds = self.next, self._bounds
        return (
            len(following.opened) >= bounds.runs
            or len(following.rejects) >= bounds.rejects
            or len(self.changed) + len(following.records) >= bounds.records
            or self._size + self.queues.pending_bytes >= bounds.size
        )

    def take_commit(self) -> Commit:
        """Return the commit with the records of changed accounts and queues, and begin the next one."""
        commit, self.next = self.next, Commit()
        commit.records |= self.queues.save()
        for number, account in sorted(self.changed.items()):
            # An encoder's bytes keep room to grow; a copy has none.
            data = self._stored[number] = bytes(memoryview(to_bytes(account)))
            commit.records[f"d/{account.name}".encode()] = data
        self.changed, self.before, self._size = {}, {}, 0
        return commit

    def discard(self) -> None:
        """Free all accounts and queues."""
        self._stored, self.changed, self.mutes, self.queues = [], {}, {}, QueueJournal()

    def hold(self, number: int, data: bytes) -> None:
        """Keep the stored record of a dataset's account."""
        self._stored[number] = data

    def numbers(self) -> list[int]:
        """Return the numbers of the datasets that have an account, in ascending order."""
        return [number for number, data in enumerate(self._stored) if data or number in self.changed]

    def read(self, number: int) -> DatasetAccount | None:
        """Return the account of a dataset, to read; None if it has none yet."""
        account = self.changed.get(number)
        if account is None and (data := self._stored[number]):
            return from_bytes(DatasetAccount, data, key=f"d/{self.datasets[number].name}")
        return account

    def account(self, number: int) -> DatasetAccount:
        """Return the account of a dataset, to change; a new account is announced."""
        account = self.changed.get(number)
        if account is not None:
            return account
        account = self.read(number)
        self._size += _RECORD_BYTES + len(self._stored[number])
        if account is None:
            spec = self.datasets[number]
            account = self.changed[number] = DatasetAccount.of(spec)
            self.before[number] = Before((spec.terms.limit, 0, 0, 0))
            detail: dict[str, Any] = {"unit": account.unit}
            if spec.terms.spent_before:
                detail["spent_before"] = to_float(spec.terms.spent_before, spec.terms.kind)
            self.announce(EventType.DECLARED, account, "first-start", **detail)
        else:
            self.changed[number], self.before[number] = account, Before(account.amounts)
        return account

    def new_queue(self, kind: type[Q], monitor: str, number: int) -> Q:
        """Return an empty queue of a monitor for a dataset."""
        return kind(self.queues, monitor, self.datasets[number].name)

    def to_change(self, monitor: str, number: int) -> tuple[DatasetAccount, RunState]:
        """Return the account of a dataset and the state of a monitor in it, to change."""
        account = self.changed.get(number) or self.account(number)
        run_state = account.run_states.get(monitor) or account.run_state(monitor)
        figures = self.before[number].figures
        if monitor not in figures:
            figures[monitor] = run_state.figures
        return account, run_state

    def run_state(self, monitor: str, number: int) -> RunState:
        """Return the state of a monitor on a dataset, to read."""
        account = self.read(number)
        return RunState() if account is None else account.run_states.get(monitor) or RunState()

    def sharing(self, number: int) -> int:
        """Return how many monitors share the budget of a dataset."""
        return sum(bool(mask[number]) for mask in self.covered.values())

    def raise_limit(self, number: int, limit: int) -> None:
        """Raise a dataset's limit, in ledger units; exhausted monitors become idle. `MisuseError` if it would fall."""
        account = self.account(number)
        account.ledger.raise_limit(limit)
        self.announce(EventType.BUDGET_RAISED, account, "command")
        for monitor, run_state in account.run_states.items():
            if run_state.state is State.EXHAUSTED:
                self.to_change(monitor, number)
                run_state.signal(Signal.BUDGET_RAISED)

    # -- events ----------------------------------------------------------------------------------------------

    def release(
        self,
        kind: EventType,
        account: DatasetAccount | None,
        data: Alert | Lifecycle,
        subject: str = "",
        texts: int = 0,
    ) -> None:
        """Release an event about a dataset or one of its series; without an account, about the shard.

        ``texts`` is the length of the texts in it that a client chose.
        """
        self._size += EVENT_BYTES + 4 * texts
        if account is None:
            self.shard_events += 1
            subject = f"shard-{self.shard}"
            name = f"{self.application}/{subject}/{self.shard_events}"
        else:
            account.events += 1
            subject = subject or account.name
            name = f"{self.application}/{account.name}/{data.monitor}/{data.run}/{account.events}"
        self.sequence += 1
        self.next.events.append(ReleasedEvent(kind, name, self.sequence, subject, data))

    def announce(
        self,
        kind: EventType,
        account: DatasetAccount | None,
        reason: str,
        monitor: str = "",
        run: int = 0,
        charge: int = 0,
        **detail: object,
    ) -> None:
        """Release a life-cycle event about a dataset, with its account, or about the shard."""
        data = Lifecycle(
            dataset="" if account is None else account.name,
            monitor=monitor,
            run=run,
            reason=reason,
            account=None if account is None else account.account(charge),
            detail=detail,
        )
        texts = sum([len(text) for text in detail.values() if isinstance(text, str)])
        self.release(kind, account, data, texts=texts)
