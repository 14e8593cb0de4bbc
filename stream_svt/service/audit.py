"""Re-derives every charge from the alert topic and says whether the books balance.

The public form needs nothing but the published events, so whoever may read the alerts may hold the
service to its word. Checked are, per shard, that events are numbered without gaps and ids are unique; per
dataset, that the charges of all events add up to the running total each event shows, and that no total passes
its limit; per run, that runs and tops are numbered without gaps and no top comes after a run's end. With the
configuration at hand, also that every alert of a monitor as it is configured has the price of its branch, and its run
the price of a run's opening.

The operator's form reads the state as well, with the sealing key: every record opens and belongs where it is, each
ledger is the sum of the charges released (those that wait to be published included), reservations are those of the open
runs, closed runs have no secrets left, and no state is older than the alerts that stood beside it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from aiokafka import TopicPartition

from stream_svt.errors import BrokerError, UnreadableState
from stream_svt.monitor.books import read_dataset
from stream_svt.monitor.life_cycle import State as LifeCycle
from stream_svt.monitor.monitor_spec import MonitorSpec
from stream_svt.monitor.plan import Plan
from stream_svt.monitor.released import (
    LARGEST_SEQUENCE,
    Alert,
    Envelope,
    EventType,
    Lifecycle,
    decode,
    number_of,
    sequence_of,
)
from stream_svt.monitor.snapshot import DatasetRecord
from stream_svt.privacy.ledger import MAX_UNITS, Ledger
from stream_svt.privacy.loss import Kind, as_text
from stream_svt.protocol.journal import Journal, Restored, Topics
from stream_svt.protocol.sealing import Place
from stream_svt.service.config import Config
from stream_svt.service.kafka import CALL_DEADLINE, Cluster, deadline, read_partition, spans, started
from stream_svt.service.shard_log import ShardLog
from stream_svt.service.topology import require, unseen
from stream_svt.service.wire import home

MAX_FINDINGS = 100
"""Findings kept; the rest is only counted."""

_OLDER = (
    "the state is older than the alerts, which is what a restored backup looks like (or the last event is forged). A "
    "worker that takes the shard over refuses it, for it would spend budgets twice: put the newest state back, or give "
    "up the shard's budgets with 'stream-svt control mark-exhausted'"
)
_ENDS = frozenset({EventType.RUN_HALTED, EventType.RUN_CLOSED})
_GIVING_UP = frozenset({"marked-exhausted", "incompatible"})
"""Reasons with which runs are closed before a budget is given up."""
_KINDS = {kind.measure: kind for kind in Kind}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that does not balance, and where it shows; without an offset, in the state of a shard."""

    partition: int
    offset: int | None
    message: str

    def __str__(self) -> str:
        place = f"partition {self.partition} offset {self.offset}"
        return f"{f'state of shard {self.partition}' if self.offset is None else place}: {self.message}"


@dataclass(slots=True)
class DatasetBooks:
    """One dataset's books as its events tell them; amounts are exact, in ledger units.

    ``charged`` is the sum of the events' charges, ``before`` what was spent before the first event that the
    topic still holds.
    """

    dataset: str
    kind: Kind
    limit: int
    before: int = 0
    charged: int = 0
    reserved: int = 0
    alerts: int = 0
    events: int = 0

    @property
    def spent(self) -> int:
        """What the events say was spent in all."""
        return self.before + self.charged

    def text(self) -> str:
        """Return spent and limit for people."""
        amounts = f"{as_text(self.spent, self.kind)} of {as_text(self.limit, self.kind)}"
        return f"{self.kind.measure} {amounts}"


@dataclass(slots=True)
class RunBooks:
    """The runs of one monitor on one dataset: number of the newest one, its tops, whether it is over.

    ``opening`` is what its start was charged, in ledger units, None where the start is not known.
    """

    run: int = 0
    top: int = 0
    over: bool = False
    opening: int | None = None


@dataclass(slots=True)
class Stay:
    """A dataset on one shard, from its first event there to the one that says it moved, or to the end.

    Attributes
    ----------
    number, last
        Which of its dataset's events the first and the newest one are, 0 where its id does not say.
    opened
        Number of the first run of each monitor that began here, and where.
    older
        What shows that the books went back to an older version: a finding, unless the budget was given up then.
    hidden
        What charges and raises explain that only an aborted transaction showed: a finding, unless the budget was given
        up for an older state.
    most_spent, most_limit
        The largest amounts that events showed here.
    began_at
        What the budget was given up at, for an older state, before anything was opened or released here; else -1.
    """

    partition: int
    offset: int
    number: int
    last: int
    books: DatasetBooks
    began_with: int
    most_spent: int
    most_limit: int
    runs: dict[str, RunBooks] = field(default_factory=dict)
    opened: dict[str, tuple[int, int]] = field(default_factory=dict)
    tops: dict[str, int] = field(default_factory=dict)
    older: list[tuple[int, str]] = field(default_factory=list)
    hidden: list[tuple[int, str]] = field(default_factory=list)
    given_up: bool = False
    began_at: int = -1
    left: bool = False


@dataclass(slots=True)
class Audit:
    """The outcome: books balance where ``findings`` is empty.

    ``truncated`` names the partitions whose oldest events are gone, by retention or with a topic made anew; what those
    charged is taken from the first event that is left and cannot be re-derived. ``ledgers`` is the number of ledgers in
    the state that the events were held against, None where the state was not looked at; ``unreadable`` says of which
    shards it could not be read, and why.
    """

    events: int = 0
    alerts: int = 0
    found: int = 0
    findings: list[Finding] = field(default_factory=list)
    truncated: set[int] = field(default_factory=set)
    datasets: dict[str, DatasetBooks] = field(default_factory=dict)
    last_sequence: dict[int, int] = field(default_factory=dict)
    ledgers: int | None = None
    unreadable: list[str] = field(default_factory=list)

    @property
    def balances(self) -> bool:
        """Whether everything was read, and nothing found."""
        return not self.found and not self.unreadable

    @property
    def problems(self) -> list[str]:
        """What could not be read, and what was found, in words."""
        return [*self.unreadable, *map(str, self.findings)]

    def find(self, partition: int, offset: int | None, message: str) -> None:
        """Note something that does not balance."""
        self.found += 1
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(Finding(partition, offset, message))


class Auditor:
    """Takes the records of the alert topic, each partition in offset order, the partitions in any.

    A dataset stays on one partition, unless the application was migrated to more of them: then it leaves one with an
    event that says so, without an open run, and goes on at another with the same books.

    Parameters
    ----------
    monitors
        As configured, to hold alerts to their prices; those of another version of a monitor are taken as they are.
    """

    def __init__(self, monitors: Iterable[MonitorSpec] = ()) -> None:
        plans = [Plan.of(monitor) for monitor in monitors]
        self._prices = {
            plan.hash: (
                plan.mechanism.threshold_charge,
                {branch.name: branch.charge for branch in plan.mechanism.branches},
            )
            for plan in plans
        }
        self._so_far = Audit()
        self._ids: set[str] = set()
        self._gaps: dict[int, tuple[int, str, int]] = {}
        self._here: dict[tuple[int, str], Stay] = {}
        self._stays: dict[str, list[Stay]] = {}

    def add(self, partition: int, offset: int, record: bytes | None) -> None:
        """Check one record against all before it."""
        try:
            envelope, data = decode(record or b"")
        except msgspec.DecodeError:
            self._find(partition, offset, "is no event of stream-svt")
            return
        audit = self._so_far
        audit.events += 1
        if envelope.shard != partition:
            self._find(
                partition, offset, f"event of shard {envelope.shard}: every shard has its own partition"
            )
        if envelope.id in self._ids:
            self._find(partition, offset, f"event {envelope.id} comes twice")
        self._ids.add(envelope.id)
        self._check_sequence(partition, offset, envelope)
        self._explain_gap(partition, envelope.type, data)
        stay = None
        if data.account is not None:
            stay = self._check_account(partition, offset, envelope, data)
        if isinstance(data, Alert):
            audit.alerts += 1
            self._check_top(offset, data, stay)
        elif stay is not None:
            self._check_run(offset, envelope.type, data, stay)

    @property
    def audit(self) -> Audit:
        """The outcome, once every record was added: what each partition shows, and how datasets moved between them."""
        audit = replace(self._so_far, findings=list(self._so_far.findings), datasets={})
        for partition, (offset, message, _) in self._gaps.items():
            audit.find(partition, offset, message)
        for dataset in self._stays:
            audit.datasets[dataset] = self._follow(audit, dataset)
        return audit

    def lost(self, partition: int) -> None:
        """Note that events of a partition are gone; where one is left, it shows that by its number."""
        if not self.last(partition):
            self._so_far.truncated.add(partition)

    def last(self, partition: int) -> int:
        """Return the number of the newest event of a partition, 0 where it has none."""
        return self._so_far.last_sequence.get(partition, 0)

    def present(self, partitions: Iterable[int]) -> list[str]:
        """Return the datasets that did not leave these partitions."""
        wanted = set(partitions)
        return [dataset for partition, dataset in self._here if partition in wanted]

    def stays(self, dataset: str) -> list[Stay]:
        """Return where a dataset was, in order."""
        return sorted(self._stays.get(dataset, ()), key=lambda stay: stay.number)

    def _follow(self, audit: Audit, dataset: str) -> DatasetBooks:
        """Check that a dataset's books go on where they were left; return them as a whole."""
        before: Stay | None = None
        runs: dict[str, int] = {}
        most, given_up = 0, False
        whole = replace(self.stays(dataset)[0].books, charged=0, alerts=0, events=0)
        # What retention took may have held a move.
        known = not audit.truncated
        for stay in self.stays(dataset):
            books, place = stay.books, (stay.partition, stay.offset)
            if before is None:
                gone = not known and (stay.partition in audit.truncated or stay.number > 1)
                # What only an aborted transaction showed was given up with the rest.
                if books.before and not gone and stay.began_at < 0:
                    amount = _amount(books.before, books.kind)
                    audit.find(*place, f"dataset {dataset} begins with {amount} spent")
            elif not before.left:
                audit.find(*place, f"dataset {dataset} has events on partition {before.partition} too")
            elif stay.began_at < most and (
                # Events that are gone can have charged and raised, and given nothing back.
                (books.before < before.books.spent or stay.began_with < before.books.limit)
                or (known and (books.before, stay.began_with) != (before.books.spent, before.books.limit))
            ):
                left = _amount(before.books.spent, before.books.kind)
                audit.find(
                    *place,
                    f"dataset {dataset} left partition {before.partition} with {left} spent and goes on "
                    f"with {_amount(books.before, books.kind)}, or with another limit",
                )
            for offset, message in [*stay.older, *stay.hidden]:
                audit.find(stay.partition, offset, message)
            for monitor, (run, offset) in stay.opened.items():
                expected = runs.get(monitor, 0) + 1
                if run != expected and known and (monitor in runs or not given_up):
                    message = (
                        f"dataset {dataset} monitor {monitor}: run {run} started, expected run {expected}"
                    )
                    audit.find(stay.partition, offset, message)
            if stay.given_up:
                runs, given_up = {}, True
            runs |= {monitor: run.run for monitor, run in stay.runs.items()}
            most = max(most, stay.most_spent, stay.most_limit)
            whole = replace(
                books,
                before=whole.before,
                charged=books.spent - whole.before,  # what is missing between two stays is reported once
                alerts=whole.alerts + books.alerts,
                events=whole.events + books.events,
            )
            before = stay
        return whole

    def _find(self, partition: int, offset: int, message: str) -> None:
        self._so_far.find(partition, offset, message)

    def _check_sequence(self, partition: int, offset: int, envelope: Envelope) -> None:
        audit = self._so_far
        last = audit.last_sequence.get(partition)
        if last is None and envelope.sequence > 1:
            audit.truncated.add(partition)
        elif envelope.sequence != (last or 0) + 1:
            expected = (last or 0) + 1
            self._report_gap(partition)
            message = f"event number {envelope.sequence}, expected {expected}"
            self._gaps[partition] = offset, message, envelope.sequence - 1
            if envelope.sequence < expected:
                self._report_gap(partition)
        audit.last_sequence[partition] = envelope.sequence

    def _explain_gap(self, partition: int, kind: str, data: Alert | Lifecycle) -> None:
        """Report that numbers were skipped, unless all budgets are given up there.

        Where a state was older than the events, numbers go on after those of every event that was ever sent, and an
        aborted transaction's are shown to nobody who may read this topic.
        """
        if partition not in self._gaps:
            return
        if _after(data) >= self._gaps[partition][2]:
            del self._gaps[partition]
        elif kind != EventType.DECLARED and not _gives_up(data):
            self._report_gap(partition)

    def _report_gap(self, partition: int) -> None:
        if partition in self._gaps:
            offset, message, _ = self._gaps.pop(partition)
            self._find(partition, offset, message)

    def _check_account(
        self, partition: int, offset: int, envelope: Envelope, data: Alert | Lifecycle
    ) -> Stay | None:
        dataset, account = data.dataset, data.account
        if account is None:
            return None
        kind = _KINDS.get(account.measure)
        if kind is None:
            self._find(partition, offset, f"dataset {dataset}: unknown measure {account.measure!r}")
            return None
        amounts = [account.charge, account.spent, account.reserved, account.limit]
        if not all(abs(amount) <= MAX_UNITS / kind.units for amount in amounts):
            self._find(partition, offset, f"dataset {dataset}: an amount that no ledger holds")
            return None
        charge, spent, reserved, limit = (round(amount * kind.units) for amount in amounts)
        stay = self._here.get((partition, dataset))
        if stay is None:
            books = DatasetBooks(dataset, kind, limit, before=spent - charge)
            stay = Stay(partition, offset, number_of(envelope.id), 0, books, limit, spent, limit)
            self._here[partition, dataset] = stay
            self._stays.setdefault(dataset, []).append(stay)
        books, stay.last = stay.books, number_of(envelope.id)
        books.events += 1
        books.charged += charge
        books.reserved = reserved
        if kind is not books.kind:
            self._find(partition, offset, f"dataset {dataset} changed its measure")
        if charge < 0:
            self._find(partition, offset, f"dataset {dataset}: a charge below 0")
        if spent != books.spent:
            message = f"charges add up to {_amount(books.spent, kind)}, the event says {_amount(spent, kind)}"
            self._doubt(stay, offset, f"dataset {dataset}: {message}", data, older=spent < books.spent)
            books.charged += spent - books.spent  # one gap is reported once
        if limit != books.limit:
            if envelope.type != EventType.BUDGET_RAISED or limit < books.limit:
                message = f"dataset {dataset}: its limit changed without being raised"
                # One that was shown before is an older one, or one that older books were given up at.
                self._doubt(stay, offset, message, data, older=limit <= stay.most_limit)
            books.limit = limit
        if spent + reserved > limit:
            total = f"{_amount(spent + reserved, kind)} spent and reserved"
            self._find(partition, offset, f"dataset {dataset}: {total} of {_amount(limit, kind)}")
        if envelope.type == EventType.MARKED_EXHAUSTED and spent == limit:
            self._check_given_up(stay, offset, spent, limit, data)
        stay.most_spent, stay.most_limit = max(stay.most_spent, spent), max(stay.most_limit, limit)
        return stay

    def _check_given_up(
        self, stay: Stay, offset: int, spent: int, limit: int, data: Alert | Lifecycle
    ) -> None:
        """Take a budget for given up where nothing of what was ever shown of it is left.

        Otherwise older books were closed at their older limit: raised again to what it had been, it is spent twice.
        An ordinary command closes the newest books: it explains nothing, and their runs go on as they are numbered.
        """
        if limit >= stay.most_limit and spent >= stay.most_spent:
            if _after(data) >= 0:
                stay.began_at = limit if not (stay.opened or stay.tops) else stay.began_at
                stay.older, stay.hidden, stay.runs, stay.given_up = [], [], {}, True
            return
        dataset, kind = stay.books.dataset, stay.books.kind
        given_up = f"{_amount(spent, kind)} of {as_text(limit, kind)}"
        shown = f"{_amount(stay.most_spent, kind)} of {as_text(stay.most_limit, kind)}"
        message = (
            f"given up at {given_up} spent, after events had shown {shown}: the difference can be spent twice"
        )
        self._find(stay.partition, offset, f"dataset {dataset}: {message}")

    def _doubt(self, stay: Stay, offset: int, message: str, data: Alert | Lifecycle, *, older: bool) -> None:
        """Note a finding; one that a rollback explains counts unless the budget is given up there, or then."""
        if older:
            stay.older.append((offset, message))
        elif _gives_up(data) or _after(data) >= 0:
            stay.hidden.append((offset, message))
        else:
            self._find(stay.partition, offset, message)

    def _check_top(self, offset: int, alert: Alert, stay: Stay | None) -> None:
        if stay is None:
            return
        partition, place = stay.partition, f"dataset {alert.dataset} monitor {alert.monitor}"
        stay.books.alerts += 1
        stay.tops[alert.monitor] = stay.tops.get(alert.monitor, 0) + 1
        if stay.books.kind is Kind.PURE and alert.account.charge <= 0:
            self._find(partition, offset, f"{place}: an alert that was not charged")
        if alert.gap < 0:
            self._find(partition, offset, f"{place}: an alert below its bar")
        self._check_prices(offset, alert, stay)
        run = stay.runs.get(alert.monitor)
        if run is None:
            run = stay.runs[alert.monitor] = RunBooks()
            if partition in self._so_far.truncated:
                run.run, run.top = alert.run, alert.top
                return
        if alert.run != run.run:
            self._find(partition, offset, f"{place}: a top of run {alert.run} while run {run.run} is open")
            run.run, run.top, run.over = alert.run, alert.top, False
            return
        if run.over:
            self._find(partition, offset, f"{place}: a top after run {run.run} had ended")
        if alert.top != run.top + 1:
            expected = run.top + 1
            self._find(partition, offset, f"{place} run {run.run}: top {alert.top}, expected {expected}")
        run.top = alert.top

    def _check_prices(self, offset: int, alert: Alert, stay: Stay) -> None:
        known, books = self._prices.get(alert.spec_hash), stay.books
        if known is None or books.kind is not Kind.PURE:  # in zCDP a run is charged whole when it opens
            return
        start, prices = known
        place = f"dataset {alert.dataset} monitor {alert.monitor}"
        charge = round(alert.account.charge * books.kind.units)
        price = prices.get(alert.branch, 0)
        if charge != price:
            message = (
                f"an alert charged {_amount(charge, books.kind)}, its price is {_amount(price, books.kind)}"
            )
            self._find(stay.partition, offset, f"{place}: {message}")
        run = stay.runs.get(alert.monitor)
        if run is None or run.run != alert.run or run.opening is None:
            return
        if run.opening != start:
            opening = _amount(run.opening, books.kind)
            message = f"run {run.run} was opened for {opening}, its price is {_amount(start, books.kind)}"
            self._find(stay.partition, offset, f"{place}: {message}")
        run.opening = None  # looked at once

    def _check_run(self, offset: int, kind: str, data: Lifecycle, stay: Stay) -> None:
        partition, run = stay.partition, stay.runs.get(data.monitor)
        if kind == EventType.RUN_STARTED:
            place = f"dataset {data.dataset} monitor {data.monitor}"
            if run is None and not stay.given_up:
                stay.opened[data.monitor] = data.run, offset
            elif run is None:
                pass  # a budget raised after it was given up: the older books had seen fewer runs
            elif data.run != run.run + 1:
                expected = run.run + 1
                self._find(partition, offset, f"{place}: run {data.run} started, expected run {expected}")
            if data.account is None or data.account.charge <= 0:
                self._find(partition, offset, f"{place}: run {data.run} started without a charge")
            charge = 0.0 if data.account is None else data.account.charge
            stay.runs[data.monitor] = RunBooks(data.run, opening=round(charge * stay.books.kind.units))
        elif kind in _ENDS:
            stay.runs[data.monitor] = RunBooks(data.run, 0 if run is None else run.top, over=True)
        elif kind == EventType.MOVED:
            for monitor, books in stay.runs.items():
                if not books.over:
                    message = f"moved while run {books.run} of monitor {monitor} was open"
                    self._find(partition, offset, f"dataset {data.dataset} {message}")
            stay.left = True
            del self._here[partition, data.dataset]


def _gives_up(data: Alert | Lifecycle) -> bool:
    """Tell whether an event closes a run as runs are closed before a budget is given up."""
    return isinstance(data, Lifecycle) and data.reason in _GIVING_UP


def _after(data: Alert | Lifecycle) -> int:
    """Return the number after which an event says that books go on which were given up, -1 where it does not."""
    after = data.detail.get("after") if isinstance(data, Lifecycle) else None
    return after if isinstance(after, int) else -1


def _amount(units: int, kind: Kind) -> str:
    return f"{kind.measure} {as_text(units, kind)}"


@dataclass(frozen=True, slots=True)
class ShardState:
    """What the state topic holds for one shard, verified; ``waiting`` are the events charged and not yet published."""

    shard: int
    last_event: int
    datasets: dict[str, DatasetRecord] = field(repr=False)
    waiting: list[tuple[int, bytes, bytes]] = field(repr=False)

    @classmethod
    def of(cls, shard: int, restored: Restored, journal: Journal) -> ShardState:
        """Return what a journal found that was looked at."""
        datasets = {
            key[2:].decode(): read_dataset(content, key.decode())
            for key, content in restored.records.items()
            if key.startswith(b"d/")
        }
        return cls(shard, restored.last_event, datasets, journal.waiting)


def compare(auditor: Auditor, states: Sequence[ShardState], homes: Callable[[str], int]) -> Audit:
    """Hold ledgers to what was added to the auditor, up to the last event that each state knows.

    Parameters
    ----------
    homes
        Returns the shard at which a dataset is at home.
    """
    for state in states:
        for number, _, event in state.waiting:
            if number > auditor.last(state.shard):
                auditor.add(state.shard, number, event)
        if state.last_event and not auditor.last(state.shard):
            auditor.lost(state.shard)  # the partition was made anew, and nothing was published since
    audit = auditor.audit
    audit.ledgers = 0
    for state in states:
        last = auditor.last(state.shard)
        if last != state.last_event and (last or state.shard not in audit.truncated):
            message = (
                f"it knows events up to number {state.last_event}, the alert topic holds them up to {last}"
            )
            if last > state.last_event:
                message += f": {_OLDER}"
            audit.find(state.shard, None, message)
        for name, record in state.datasets.items():
            audit.ledgers += 1
            for message in _differences(audit, state.shard, auditor.stays(name), record):
                audit.find(state.shard, None, f"dataset {name}: {message}")
            if homes(name) != state.shard:
                audit.find(state.shard, None, f"dataset {name} is at home at shard {homes(name)}")
    for name in auditor.present(state.shard for state in states):
        if not any(name in state.datasets for state in states):
            audit.find(auditor.stays(name)[-1].partition, None, f"dataset {name} has events and no ledger")
    return audit


def _differences(audit: Audit, shard: int, stays: Sequence[Stay], record: DatasetRecord) -> Iterator[str]:
    """Yield in what a ledger on a shard differs from the dataset's events."""
    ledger = Ledger.from_bytes(record.ledger)
    kind = ledger.kind
    running = {name: slot for name, slot in record.slots.items() if slot.state == LifeCycle.RUNNING.value}
    if kind is Kind.PURE and sum(slot.left for slot in running.values()) != ledger.reserved:
        yield f"{_amount(ledger.reserved, kind)} is reserved, and not by the open runs"
    for name, slot in record.slots.items():
        if name not in running and (slot.left or any(slot.secrets)):
            yield f"monitor {name}: run {slot.run} is closed and has something left"
    books = audit.datasets.get(record.name)
    if books is None:
        if not audit.truncated:
            yield "it has a ledger and no events"
        return
    # What it did at its new home is gone: that can have charged and raised, and given nothing back.
    gone = stays[-1].left and shard in audit.truncated
    for what, stored, told in (
        ("spent", ledger.spent, books.spent),
        ("reserved", ledger.reserved, books.reserved),
        ("the limit", ledger.limit, books.limit),
    ):
        if (stored < told if gone else stored != told) or kind is not books.kind:
            yield f"in the ledger {_amount(stored, kind)} is {what}, the events say {_amount(told, books.kind)}"
    last = stays[-1].last
    if last and (record.events < last if gone else record.events != last):
        yield f"{record.events} events are counted, the newest one is number {last}"
    for name, slot in record.slots.items():
        run = _newest_run(stays, name, slot.run)
        if run.run != slot.run and not audit.truncated:
            yield f"monitor {name} is at run {slot.run}, the events are at run {run.run}"
        elif run.run == slot.run and run.over is (name in running):
            yield f"monitor {name}: run {slot.run} is {'open' if run.over else 'closed'}, the events say otherwise"
        tops = sum(stay.tops.get(name, 0) for stay in stays)
        given_up = any(stay.given_up for stay in stays)
        if not (audit.truncated or given_up) and slot.tops != tops:
            yield f"monitor {name} has counted {slot.tops} tops, {tops} were released"


def _newest_run(stays: Sequence[Stay], monitor: str, stored: int) -> RunBooks:
    """Return the newest run that the events tell of; the stored one, over, where older books had seen fewer."""
    for stay in reversed(stays):
        if monitor in stay.runs:
            return stay.runs[monitor]
        if stay.given_up:
            return RunBooks(stored, over=True)
    return RunBooks(over=True)


async def audit_state(config: Config, cluster: Cluster, *, on_records: Any = None) -> Audit:  # noqa: ANN401
    """Audit the alert topic, and hold the sealed state to it; disturbs no running worker.

    Raises
    ------
    BrokerError, ConfigError
        Topics cannot be read or do not fit.
    """
    topology = await require(config, cluster)
    alerts = config.topics.alerts
    places = [TopicPartition(alerts, shard) for shard in range(config.topics.partitions)]
    # Asked for before the state is read: an event is committed only after the transaction that charged it, so the
    # newest state knows every event before these ends, whatever a running worker does meanwhile.
    ends = await spans(cluster, places, f"auditing alert topic {alerts!r}")
    unreadable: list[str] = []
    states = []
    for shard in range(config.topics.partitions):
        try:
            states.append(await _read_state(config, cluster, topology.cluster_id, shard))
        except UnreadableState as error:
            unreadable.append(str(error))
    auditor = Auditor(config.spec.monitors)
    newer = {state.shard: (ends[places[state.shard]][1], state.last_event) for state in states}
    await _add_topic(auditor, cluster, alerts, on_records, newer)
    for place, (first, _) in ends.items():
        if first:
            auditor.lost(place.partition)
    audit = compare(auditor, states, lambda name: home(name.encode(), config.topics.partitions))
    audit.unreadable = unreadable
    return audit


async def _read_state(config: Config, cluster: Cluster, cluster_id: str, shard: int) -> ShardState:
    """Read and verify the state of a shard; once more where a compaction may have come in between."""
    topics = config.topics
    written = Topics(topics.state, topics.alerts, topics.rejects)
    journal = Journal(
        ShardLog(cluster, config.spec.application, shard, written),
        Place(cluster_id, config.spec.application, topics.state, shard),
        written,
        partitions=topics.partitions,
        masters=() if config.master_key is None else (config.master_key, *config.previous_keys),
        adopt_plain=config.sealing.adopt_plain,
        entropy=os.urandom,
        epoch=time.time,
    )
    try:
        restored = await journal.look()
    except UnreadableState:
        restored = await journal.look()
    return ShardState.of(shard, restored, journal)


async def audit_topic(
    cluster: Cluster,
    topic: str,
    monitors: Iterable[MonitorSpec] = (),
    *,
    on_records: Any = None,  # noqa: ANN401
) -> Audit:
    """Audit everything an alert topic holds; ``on_records(count)`` is called as it goes.

    ``monitors`` are those configured, to hold alerts to their prices.

    Raises
    ------
    BrokerError
        The topic cannot be read.
    """
    auditor = Auditor(monitors)
    await _add_topic(auditor, cluster, topic, on_records)
    return auditor.audit


async def _add_topic(
    auditor: Auditor,
    cluster: Cluster,
    topic: str,
    on_records: Any = None,  # noqa: ANN401
    newer: Mapping[int, tuple[int, int]] | None = None,
) -> None:
    """Add the events of a topic.

    Left out are events that may be newer than the state they are held against: per partition those from an offset on
    with a number above one, as far as ``newer`` names both.
    """
    doing = f"auditing alert topic {topic!r}"
    async with started(cluster.admin(), doing) as admin, deadline(CALL_DEADLINE, doing, "DESCRIBE"):
        # Asked for by name, a lenient broker would create it.
        described = {found["topic"]: found["partitions"] for found in await admin.describe_topics()}
    partitions: Sequence[int] = [part["partition"] for part in described.get(topic, ())]
    if not partitions:
        raise _missing(topic)
    async with started(cluster.reader(), doing) as reader:
        for partition in sorted(partitions):
            end, last = (newer or {}).get(partition, (0, LARGEST_SEQUENCE))
            async for records in read_partition(reader, topic, partition, None, doing):
                for record in records:
                    if record.offset >= end and sequence_of(record.value) > last:
                        continue
                    auditor.add(partition, record.offset, record.value)
                if on_records is not None:
                    on_records(len(records))


def _missing(topic: str) -> BrokerError:
    return BrokerError(
        f"{unseen(topic, 'READ')}; the alert topic is topics.alerts of the configuration, by default "
        "'<application>.alerts'"
    )
