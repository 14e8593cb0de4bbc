"""Recomputes every charge from released events, and checks that the ledgers balance.

Per shard, events are numbered without gaps and ids are unique. Per dataset, the charges of all events add up to the
running total of each event, and no total exceeds its limit. Per run, runs and alerts are numbered without gaps, and
no top follows a run's end. Alerts of the configured monitors have the price of their branch, and their runs the
price of opening a run. The stored state, if it can be read, has the same ledgers, including waiting events. Its
reservations are the reservations of the open runs, its closed runs have no secrets, and it is not older than its
alerts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

from stream_svt.monitor.released import (
    PERIOD_OVER,
    Alert,
    AnyEvent,
    EventType,
    Lifecycle,
    ReportedTop,
    event_in,
    number_of,
    top_in,
)
from stream_svt.monitor.state.accounts import DatasetAccount
from stream_svt.monitor.state.plan import Plan
from stream_svt.monitor.state.snapshot import ProgressRecord, from_bytes
from stream_svt.monitor.state.snapshot import State as LifeCycle
from stream_svt.privacy.ledger import MAX_UNITS
from stream_svt.privacy.loss import KINDS, Kind, amount_text
from stream_svt.protocol.journal import Journal
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.settings.periods import Watermarks, is_over

MAX_FINDINGS = 100
"""Largest number of findings that are kept; the others are only counted."""
_OLDER = (
    "the state is older than the alerts, which is typical of a restored backup (or the last event is forged). A worker "
    "that takes the shard over parks it, for it would spend budgets twice: restore the newest state, or close the "
    "shard with 'stream-svt control close-application --give-up-state'"
)


@dataclass(slots=True)
class RunTally:
    """The newest run of one monitor on one dataset: its number, its alerts, whether it is over.

    ``opening`` is the charge of its start, in ledger units; None if the start is not known or was checked.
    """

    run: int = 0
    alerts: int = 0
    over: bool = False
    opening: int | None = None


@dataclass(slots=True)
class DatasetTally:
    """Totals of the events of one dataset, all on one partition; amounts in ledger units.

    ``before`` was spent before the first event that the topic still has, and ``carried`` of it by an earlier
    application. ``charge``, ``reserved`` and ``last`` (the number in the id) are from the newest event.
    ``monitor_alerts`` counts alerts by monitor; ``retired`` is the reason of the dataset's end.
    """

    dataset: str
    kind: Kind
    limit: int
    before: int = 0
    carried: int = 0
    charged: int = 0
    charge: int = 0
    reserved: int = 0
    alerts: int = 0
    events: int = 0
    partition: int = 0
    last: int = 0
    runs: dict[str, RunTally] = field(default_factory=dict)
    monitor_alerts: Counter[str] = field(default_factory=Counter)
    retired: str = ""

    @property
    def spent(self) -> int:
        """Total spent, by the events."""
        return self.before + self.charged


@dataclass(frozen=True, slots=True)
class StoredShard:
    """Verified content of the state topic for one shard; ``waiting`` are charged events that are not yet published."""

    shard: int
    last_event: int
    datasets: dict[str, DatasetAccount] = field(repr=False)
    waiting: list[tuple[int, bytes, bytes]] = field(repr=False)
    watermarks: Watermarks = field(default_factory=dict)

    @classmethod
    def of(cls, shard: int, records: Mapping[bytes, bytes], journal: Journal) -> StoredShard:
        """Return the content of an inspected journal."""
        datasets = {
            key[2:].decode(): from_bytes(DatasetAccount, content, key=key.decode())
            for key, content in records.items()
            if key.startswith((b"d/", b"r/"))
        }
        progress = journal.meta.progress
        watermarks = {} if progress is None else from_bytes(ProgressRecord, progress, key="meta").watermarks
        return cls(shard, journal.meta.last_event, datasets, journal.records.outbox, watermarks)


@dataclass
class Audit:
    """Checks the records of the alert topic: each partition in offset order, the partitions in any order.

    All ledgers balance if ``findings`` is empty. Alerts are checked against the prices of the configured ``monitors``;
    prices of another version of a monitor are not checked.

    ``truncated`` has the partitions whose oldest events are gone; their earlier charges are taken from the first
    event left. ``ledgers`` counts the ledgers in the state, None if no state was read. ``unreadable`` has the shards
    that could not be read, with the reason. ``carried_from`` and ``closed`` name the applications before and after.
    ``partitioning`` is the number of partitions and the partitioner by which the application began.
    """

    monitors: InitVar[Iterable[MonitorSpec]] = ()
    events: int = 0
    alerts: int = 0
    found: int = 0
    findings: list[str] = field(default_factory=list)
    truncated: set[int] = field(default_factory=set)
    datasets: dict[str, DatasetTally] = field(default_factory=dict)
    last_sequence: Counter[int] = field(default_factory=Counter)
    ledgers: int | None = None
    unreadable: list[str] = field(default_factory=list)
    carried_from: dict[int, str] = field(default_factory=dict)
    closed: dict[int, str] = field(default_factory=dict)
    partitioning: tuple[int, str] | None = None
    _ids: set[str] = field(default_factory=set, init=False)
    _position: tuple[int, int] = field(default=(0, 0), init=False)

    def __post_init__(self, monitors: Iterable[MonitorSpec]) -> None:
        self._mechanisms = {plan.hash: plan.mechanism for plan in map(Plan.of, monitors)}

    @property
    def balances(self) -> bool:
        """Whether everything was read and there are no findings."""
        return not self.found and not self.unreadable

    @property
    def problems(self) -> list[str]:
        """The shards that could not be read, and the findings, in words."""
        return [*self.unreadable, *self.findings]

    def report(self, message: str, subject: str = "") -> None:
        """Record a finding about a subject."""
        self.found += 1
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(f"{subject}: {message}" if subject else message)

    def add(self, partition: int, offset: int, record: bytes | None) -> None:
        """Check one record against all before it."""
        self._position = partition, offset
        if (event := event_in(record)) is None:
            self._report("is no event of stream-svt")
            return
        data = event.data
        self.events += 1
        if event.shard != partition:
            self._report(f"event of shard {event.shard}: every shard has its own partition")
        if event.id in self._ids:
            self._report(f"event {event.id} comes twice")
        self._ids.add(event.id)
        closes = event.type == EventType.APPLICATION_CLOSED
        gives_up = closes and isinstance(data, Lifecycle) and data.reason == "given-up"
        last = self.last_sequence[partition]
        if partition not in self.last_sequence and event.sequence > 1:
            self.truncated.add(partition)
        # Giving up a state may skip numbers that were never committed.
        elif event.sequence != last + 1 and not (gives_up and event.sequence > last):
            self._report(f"event number {event.sequence}, expected {last + 1}")
        self.last_sequence[partition] = event.sequence
        # A shard that its owner closed may still be given up if its key is lost.
        if partition in self.closed and not gives_up:
            self._report(f"event {event.id} after the application was closed")
        if isinstance(data, Lifecycle):
            if event.type == EventType.STATE_BEGUN:
                self._begin(partition, data.detail)
            elif closes:
                self.closed[partition] = str(data.detail.get("successor", ""))
        tally = self._check_account(event)
        top = top_in(event.type, data)
        self.alerts += top is not None
        if tally is None:
            return
        # Its balance may be published once more.
        if tally.retired and event.type not in (EventType.RETIRED, EventType.BALANCE):
            self._report(f"event {event.id} after dataset {data.dataset} was retired")
        if top is not None:
            self._check_top(data, top, tally)
        elif event.type == EventType.RETIRED and isinstance(data, Lifecycle):
            tally.retired = data.reason
        elif isinstance(data, Lifecycle):
            self._check_run(event.type, data, tally)

    def _begin(self, partition: int, detail: Mapping[str, Any]) -> None:
        if "carried_from" in detail:
            self.carried_from[partition] = str(detail["carried_from"])
        partitioning = detail.get("partitions", 0), str(detail.get("partitioner", ""))
        self.partitioning = self.partitioning or partitioning
        if partitioning != self.partitioning:
            began, other = ("{} partitions with {}".format(*one) for one in (self.partitioning, partitioning))
            self._report(
                f"the shard began with {other}, another one with {began}: a dataset may have two ledgers"
            )

    def _report(self, message: str) -> None:
        self.report(message, "partition {} offset {}".format(*self._position))

    def _check_account(self, event: AnyEvent) -> DatasetTally | None:
        data, (partition, _) = event.data, self._position
        account, subject = data.account, f"dataset {data.dataset}"
        if account is None:
            return None
        kind = KINDS.get(account.measure)
        if kind is None:
            self._report(f"{subject}: unknown measure {account.measure!r}")
            return None
        amounts = [account.charge, account.spent, account.reserved, account.limit]
        if not all(abs(amount) <= MAX_UNITS / kind.units for amount in amounts):
            self._report(f"{subject}: an amount that no ledger holds")
            return None
        charge, spent, reserved, limit = (round(amount * kind.units) for amount in amounts)
        tally = self.datasets.get(data.dataset)
        if tally is None:
            before = spent - charge
            is_carried = event.type == EventType.DECLARED and partition in self.carried_from
            said = data.detail.get("spent_before") if isinstance(data, Lifecycle) and is_carried else 0
            carried = round(said * kind.units) if isinstance(said, int | float) else 0
            tally = DatasetTally(data.dataset, kind, limit, before, carried, partition=partition)
            self.datasets[data.dataset] = tally
            if before != carried and partition not in self.truncated:
                self._report(f"{subject} begins with {amount_text(before, kind)} spent")
        elif tally.partition != partition:
            self._report(f"{subject} has events on partition {tally.partition} too")
        tally.last, tally.charge, tally.reserved = number_of(event.id), charge, reserved
        tally.events += 1
        tally.charged += charge
        if kind is not tally.kind:
            self._report(f"{subject} changed its measure")
        if charge < 0:
            self._report(f"{subject}: a charge below 0")
        if spent != tally.spent:
            said = f"the event says {amount_text(spent, kind)}"
            self._report(f"{subject}: charges add up to {amount_text(tally.spent, kind)}, {said}")
            tally.charged += spent - tally.spent  # one gap is reported once
        if limit != tally.limit:
            if event.type != EventType.BUDGET_RAISED or limit < tally.limit:
                self._report(f"{subject}: its limit changed without being raised")
            tally.limit = limit
        if spent + reserved > limit:
            total = f"{amount_text(spent + reserved, kind)} spent and reserved"
            self._report(f"{subject}: {total} of {amount_text(limit, kind)}")
        return tally

    def _check_top(self, data: Alert | Lifecycle, top: ReportedTop, tally: DatasetTally) -> None:
        subject = f"dataset {data.dataset} monitor {data.monitor}"
        tally.alerts += 1
        tally.monitor_alerts[data.monitor] += 1
        if tally.kind is Kind.PURE and tally.charge <= 0:
            self._report(f"{subject}: an alert that was not charged")
        if top.gap < 0:
            self._report(f"{subject}: an alert below its bar")
        first = (data.run, top.number - 1) if tally.partition in self.truncated else (0, 0)
        run = tally.runs.setdefault(data.monitor, RunTally(*first))
        self._check_prices(top, data.run, tally, run, subject)
        if data.run != run.run:
            self._report(f"{subject}: a top of run {data.run} while run {run.run} is open")
        elif run.over:
            self._report(f"{subject}: a top after run {run.run} had ended")
        elif top.number != run.alerts + 1:
            self._report(f"{subject} run {run.run}: alert {top.number}, expected {run.alerts + 1}")
        run.over = run.over and data.run == run.run
        run.run, run.alerts = data.run, top.number

    def _check_prices(
        self, top: ReportedTop, number: int, tally: DatasetTally, run: RunTally, subject: str
    ) -> None:
        mechanism, kind = self._mechanisms.get(top.spec_hash), tally.kind
        if mechanism is None or kind is not Kind.PURE:  # under zCDP a run is charged in full when it opens
            return
        price = next((one.charge_units for one in mechanism.branches if one.name == top.branch), 0)
        checks = [("an alert charged", tally.charge, price)]
        if run.run == number and run.opening is not None:
            checks.append((f"run {run.run} was opened for", run.opening, mechanism.threshold_units))
            run.opening = None  # checked once
        for what, paid, due in checks:
            if paid != due:
                prices = f"{amount_text(paid, kind)}, its price is {amount_text(due, kind)}"
                self._report(f"{subject}: {what} {prices}")

    def _check_run(self, event: str, data: Lifecycle, tally: DatasetTally) -> None:
        run, subject = tally.runs.get(data.monitor), f"dataset {data.dataset} monitor {data.monitor}"
        if event == EventType.RUN_STARTED:
            expected = 1 if run is None else run.run + 1
            if data.run != expected and not (run is None and tally.partition in self.truncated):
                self._report(f"{subject}: run {data.run} started, expected run {expected}")
            if tally.charge <= 0:
                self._report(f"{subject}: run {data.run} started without a charge")
            tally.runs[data.monitor] = RunTally(data.run, opening=tally.charge)
        elif event in (EventType.RUN_HALTED, EventType.RUN_CLOSED):
            tally.runs[data.monitor] = RunTally(data.run, 0 if run is None else run.alerts, over=True)

    def follow(self, earlier: Audit, application: str) -> None:
        """Compare the application with the ``earlier`` one, of this name, whose budgets it continues; adds findings."""
        for partition, name in self.carried_from.items():
            if name != application:
                message = f"it continues the budgets of application {name!r}, not {application!r}"
                self.report(message, f"state of shard {partition}")
        if not self.carried_from:
            message = f"it does not continue the budgets of application {application!r}"
            none = "" if self.events else ": it has no events yet; apply its configuration first"
            self.report(f"{message}{none}")
        for name, tally in earlier.datasets.items():
            now = self.datasets.get(name)
            if now is None:
                continue
            if now.kind is not tally.kind:
                self.report(f"dataset {name} changed its measure with the application")
            elif now.before < tally.spent:
                begun, spent = amount_text(now.before, now.kind), amount_text(tally.spent, tally.kind)
                self.report(f"dataset {name} begins with {begun}, and {application!r} had spent {spent}")

    def compare(self, states: Sequence[StoredShard], shard_of: Callable[[str], int]) -> Audit:
        """Compare stored ledgers with the events; ``shard_of`` returns the shard of a dataset."""
        self.ledgers = 0
        for state in states:
            for number, _, event in state.waiting:
                if number > self.last_sequence[state.shard]:
                    self.add(state.shard, number, event)
            last, subject = self.last_sequence[state.shard], f"state of shard {state.shard}"
            if state.last_event and not last:
                # The partition was recreated, and no event was published since.
                self.truncated.add(state.shard)
            elif last != state.last_event:
                message = f"it knows events up to number {state.last_event}, the alert topic holds them up to {last}"
                self.report(f"{message}: {_OLDER}" if last > state.last_event else message, subject)
            for name, record in state.datasets.items():
                self.ledgers += 1
                for message in _differences(self.datasets.get(name), record, state.shard in self.truncated):
                    self.report(f"dataset {name}: {message}", subject)
                if shard_of(name) != state.shard:
                    self.report(f"dataset {name} is at home at shard {shard_of(name)}", subject)
        by_shard = {state.shard: state for state in states}
        for name, tally in self.datasets.items():
            if tally.partition not in by_shard or any(name in state.datasets for state in states):
                continue
            subject = f"state of shard {tally.partition}"
            if tally.retired != PERIOD_OVER:
                self.report(f"dataset {name} has events and no ledger", subject)
            elif not is_over(name, by_shard[tally.partition].watermarks):
                message = f"dataset {name} is retired, and the state does not say that its period is over"
                self.report(f"{message}: it could be opened again", subject)
        return self


def _differences(tally: DatasetTally | None, record: DatasetAccount, is_truncated: bool) -> Iterator[str]:
    """Yield the differences between a ledger and the dataset's events."""
    ledger, kind = record.ledger, record.ledger.kind
    running = {name for name, run in record.run_states.items() if run.state is LifeCycle.RUNNING}
    if kind is Kind.PURE and sum(record.run_states[name].left for name in running) != ledger.reserved:
        yield f"{amount_text(ledger.reserved, kind)} is reserved, and not by the open runs"
    for name, run_state in record.run_states.items():
        if name not in running and (run_state.left or any(run_state.secrets)):
            yield f"monitor {name}: run {run_state.run} is closed and has something left"
    if tally is None:
        if not is_truncated:
            yield "it has a ledger and no events"
        return
    for what, stored, shown in (
        ("spent", ledger.spent, tally.spent),
        ("reserved", ledger.reserved, tally.reserved),
        ("the limit", ledger.limit, tally.limit),
    ):
        if stored != shown or kind is not tally.kind:
            said = f"the events say {amount_text(shown, tally.kind)}"
            yield f"in the ledger {amount_text(stored, kind)} is {what}, {said}"
    if tally.last and record.events != tally.last:
        yield f"{record.events} events are counted, the newest one is number {tally.last}"
    for name, run_state in record.run_states.items():
        run = tally.runs.get(name, RunTally(over=True))
        if run.run == run_state.run and run.over is (name in running):
            yield f"monitor {name}: run {run_state.run} is {'open' if run.over else 'closed'}, the events say otherwise"
        if is_truncated:
            continue
        if run.run != run_state.run:
            yield f"monitor {name} is at run {run_state.run}, the events are at run {run.run}"
        if run_state.tops != tally.monitor_alerts[name]:
            yield f"monitor {name} has counted {run_state.tops} alerts, {tally.monitor_alerts[name]} were released"
