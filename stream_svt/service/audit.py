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

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiokafka import TopicPartition

from stream_svt.errors import BrokerError, UnreadableState
from stream_svt.monitor.dataset_account import DatasetAccount, read_dataset
from stream_svt.monitor.life_cycle import State as LifeCycle
from stream_svt.monitor.plan import Plan
from stream_svt.monitor.released import (
    LARGEST_SEQUENCE,
    PERIOD_OVER,
    Alert,
    Envelope,
    EventType,
    Lifecycle,
    decode,
    identity_of,
    number_of,
)
from stream_svt.monitor.snapshot import DatasetRecord, ProgressRecord, from_bytes
from stream_svt.privacy.ledger import MAX_UNITS, Ledger
from stream_svt.privacy.loss import Kind, as_text
from stream_svt.protocol.journal import Journal, Restored
from stream_svt.service.codec import home
from stream_svt.service.config import Config
from stream_svt.service.kafka import Cluster, partition_counts, read_partition, spans, started
from stream_svt.service.stored_state import journal_of
from stream_svt.service.topology import require, unseen
from stream_svt.settings.datasets import Watermarks, is_over
from stream_svt.settings.monitors import MonitorSpec

MAX_FINDINGS = 100
"""Findings kept; the rest is only counted."""

_OLDER = (
    "the state is older than the alerts, which is what a restored backup looks like (or the last event is forged). A "
    "worker that takes the shard over parks it, for it would spend budgets twice: put the newest state back, or close "
    "the shard with 'stream-svt control close-application --give-up-state'"
)
_ENDS = frozenset({EventType.RUN_HALTED, EventType.RUN_CLOSED})
_KINDS = {kind.measure: kind for kind in Kind}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that does not balance, and where it shows.

    Without an offset, in the state of a shard; without a partition, between an application and the one before it.
    """

    partition: int | None
    offset: int | None
    message: str

    def __str__(self) -> str:
        if self.partition is None:
            return self.message
        place = f"partition {self.partition} offset {self.offset}"
        return f"{f'state of shard {self.partition}' if self.offset is None else place}: {self.message}"


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
class DatasetBooks:
    """One dataset's books as its events tell them, all of them on one partition; amounts in ledger units.

    Attributes
    ----------
    before, carried, charged
        What was spent before the first event that the topic still holds, what of that an earlier application spent,
        and the sum of the events' charges.
    last
        Which of its dataset's events the newest one is, 0 where its id does not say.
    tops
        Number of alerts by monitor.
    retired
        Why the dataset came to its end, "" where it did not.
    """

    dataset: str
    kind: Kind
    limit: int
    before: int = 0
    carried: int = 0
    charged: int = 0
    reserved: int = 0
    alerts: int = 0
    events: int = 0
    partition: int = 0
    last: int = 0
    runs: dict[str, RunBooks] = field(default_factory=dict)
    tops: dict[str, int] = field(default_factory=dict)
    retired: str = ""

    @property
    def spent(self) -> int:
        """What the events say was spent in all."""
        return self.before + self.charged

    def text(self) -> str:
        """Return spent and limit for people."""
        return f"{_amount(self.spent, self.kind)} of {as_text(self.limit, self.kind)}"


@dataclass(slots=True)
class Audit:
    """The outcome: books balance where ``findings`` is empty.

    ``truncated`` names the partitions whose oldest events are gone, by retention or with a topic made anew; what those
    charged is taken from the first event that is left and cannot be re-derived. ``ledgers`` is the number of ledgers in
    the state that the events were held against, None where the state was not looked at; ``unreadable`` says of which
    shards it could not be read, and why. ``carried_from`` names by partition the application that it goes on with, and
    ``closed`` for whom each partition was closed.
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
    carried_from: dict[int, str] = field(default_factory=dict)
    closed: dict[int, str] = field(default_factory=dict)

    @property
    def balances(self) -> bool:
        """Whether everything was read, and nothing found."""
        return not self.found and not self.unreadable

    @property
    def problems(self) -> list[str]:
        """What could not be read, and what was found, in words."""
        return [*self.unreadable, *map(str, self.findings)]

    def find(self, partition: int | None, offset: int | None, message: str) -> None:
        """Note something that does not balance."""
        self.found += 1
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(Finding(partition, offset, message))


class Auditor:
    """Takes the records of the alert topic, each partition in offset order, the partitions in any.

    All events of a dataset stand on one partition. ``audit`` is the outcome, once every record was added.

    Parameters
    ----------
    monitors
        As configured, to hold alerts to their prices; those of another version of a monitor are taken as they are.
    """

    def __init__(self, monitors: Iterable[MonitorSpec] = ()) -> None:
        self._mechanisms = {plan.hash: plan.mechanism for plan in map(Plan.of, monitors)}
        self._ids: set[str] = set()
        self._place = (0, 0)
        self.audit = Audit()

    def add(self, partition: int, offset: int, record: bytes | None) -> None:
        """Check one record against all before it."""
        audit, self._place = self.audit, (partition, offset)
        try:
            envelope, data = decode(record or b"")
        except msgspec.DecodeError:
            self._find("is no event of stream-svt")
            return
        audit.events += 1
        if envelope.shard != partition:
            self._find(f"event of shard {envelope.shard}: every shard has its own partition")
        if envelope.id in self._ids:
            self._find(f"event {envelope.id} comes twice")
        self._ids.add(envelope.id)
        closes = envelope.type == EventType.APPLICATION_CLOSED
        gives_up = closes and isinstance(data, Lifecycle) and data.reason == "given-up"
        self._check_sequence(partition, envelope.sequence, may_skip=gives_up)
        # A shard that its owner closed may be given up once more where its key is lost.
        if partition in audit.closed and not gives_up:
            self._find(f"event {envelope.id} after the application was closed")
        if isinstance(data, Lifecycle):
            if envelope.type == EventType.STATE_BEGUN and "carried_from" in data.detail:
                audit.carried_from[partition] = str(data.detail["carried_from"])
            elif closes:
                audit.closed[partition] = str(data.detail.get("successor", ""))
        books = self._check_account(envelope, data)
        if isinstance(data, Alert):
            audit.alerts += 1
        if books is None:
            return
        # Its balance may be told once more.
        if books.retired and envelope.type not in (EventType.RETIRED, EventType.BALANCE):
            self._find(f"event {envelope.id} after dataset {data.dataset} was retired")
        if isinstance(data, Alert):
            self._check_top(data, books)
        elif envelope.type == EventType.RETIRED:
            books.retired = data.reason
        else:
            self._check_run(envelope.type, data, books)

    def lost(self, partition: int) -> None:
        """Note that events of a partition are gone; where one is left, it shows that by its number."""
        if not self.last(partition):
            self.audit.truncated.add(partition)

    def last(self, partition: int) -> int:
        """Return the number of the newest event of a partition, 0 where it has none."""
        return self.audit.last_sequence.get(partition, 0)

    def _find(self, message: str) -> None:
        self.audit.find(*self._place, message)

    def _check_sequence(self, partition: int, sequence: int, *, may_skip: bool) -> None:
        """Hold a number to the last one; the end of a state given up comes behind events never committed, too."""
        last = self.last(partition)
        if partition not in self.audit.last_sequence and sequence > 1:
            self.audit.truncated.add(partition)
        elif sequence != last + 1 and not (may_skip and sequence > last):
            self._find(f"event number {sequence}, expected {last + 1}")
        self.audit.last_sequence[partition] = sequence

    def _check_account(self, envelope: Envelope, data: Alert | Lifecycle) -> DatasetBooks | None:
        account, (partition, _), place = data.account, self._place, f"dataset {data.dataset}"
        if account is None:
            return None
        kind = _KINDS.get(account.measure)
        if kind is None:
            self._find(f"{place}: unknown measure {account.measure!r}")
            return None
        amounts = [account.charge, account.spent, account.reserved, account.limit]
        if not all(abs(amount) <= MAX_UNITS / kind.units for amount in amounts):
            self._find(f"{place}: an amount that no ledger holds")
            return None
        charge, spent, reserved, limit = (round(amount * kind.units) for amount in amounts)
        books = self.audit.datasets.get(data.dataset)
        if books is None:
            before, carried = spent - charge, self._carried(envelope.type, data, kind)
            books = DatasetBooks(data.dataset, kind, limit, before, carried, partition=partition)
            self.audit.datasets[data.dataset] = books
            if before != carried and partition not in self.audit.truncated:
                self._find(f"{place} begins with {_amount(before, kind)} spent")
        elif books.partition != partition:
            self._find(f"{place} has events on partition {books.partition} too")
        books.last = number_of(envelope.id)
        books.events += 1
        books.charged += charge
        books.reserved = reserved
        if kind is not books.kind:
            self._find(f"{place} changed its measure")
        if charge < 0:
            self._find(f"{place}: a charge below 0")
        if spent != books.spent:
            said = f"the event says {_amount(spent, kind)}"
            self._find(f"{place}: charges add up to {_amount(books.spent, kind)}, {said}")
            books.charged += spent - books.spent  # one gap is reported once
        if limit != books.limit:
            if envelope.type != EventType.BUDGET_RAISED or limit < books.limit:
                self._find(f"{place}: its limit changed without being raised")
            books.limit = limit
        if spent + reserved > limit:
            total = f"{_amount(spent + reserved, kind)} spent and reserved"
            self._find(f"{place}: {total} of {_amount(limit, kind)}")
        return books

    def _carried(self, event: str, data: Alert | Lifecycle, kind: Kind) -> int:
        """Return what a dataset's first event says that an earlier application spent."""
        if event != EventType.DECLARED or self._place[0] not in self.audit.carried_from:
            return 0
        before = data.detail.get("spent_before", 0) if isinstance(data, Lifecycle) else 0
        return round(before * kind.units) if isinstance(before, int | float) else 0

    def _check_top(self, alert: Alert, books: DatasetBooks) -> None:
        place = f"dataset {alert.dataset} monitor {alert.monitor}"
        books.alerts += 1
        books.tops[alert.monitor] = books.tops.get(alert.monitor, 0) + 1
        if books.kind is Kind.PURE and alert.account.charge <= 0:
            self._find(f"{place}: an alert that was not charged")
        if alert.gap < 0:
            self._find(f"{place}: an alert below its bar")
        run = books.runs.get(alert.monitor)
        self._check_prices(alert, books.kind, run, place)
        if run is None:
            run = books.runs[alert.monitor] = RunBooks()
            if books.partition in self.audit.truncated:
                run.run, run.top = alert.run, alert.top
                return
        if alert.run != run.run:
            self._find(f"{place}: a top of run {alert.run} while run {run.run} is open")
            run.run, run.top, run.over = alert.run, alert.top, False
            return
        if run.over:
            self._find(f"{place}: a top after run {run.run} had ended")
        if alert.top != run.top + 1:
            self._find(f"{place} run {run.run}: top {alert.top}, expected {run.top + 1}")
        run.top = alert.top

    def _check_prices(self, alert: Alert, kind: Kind, run: RunBooks | None, place: str) -> None:
        mechanism = self._mechanisms.get(alert.spec_hash)
        if mechanism is None or kind is not Kind.PURE:  # in zCDP a run is charged whole when it opens
            return
        charge = round(alert.account.charge * kind.units)
        price = next((one.charge for one in mechanism.branches if one.name == alert.branch), 0)
        if charge != price:
            self._find(
                f"{place}: an alert charged {_amount(charge, kind)}, its price is {_amount(price, kind)}"
            )
        if run is None or run.run != alert.run or run.opening is None:
            return
        opening, start = run.opening, mechanism.threshold_charge
        if opening != start:
            price_of_run = f"its price is {_amount(start, kind)}"
            self._find(f"{place}: run {run.run} was opened for {_amount(opening, kind)}, {price_of_run}")
        run.opening = None  # looked at once

    def _check_run(self, event: str, data: Lifecycle, books: DatasetBooks) -> None:
        run, place = books.runs.get(data.monitor), f"dataset {data.dataset} monitor {data.monitor}"
        if event == EventType.RUN_STARTED:
            expected = 1 if run is None else run.run + 1
            if data.run != expected and not (run is None and books.partition in self.audit.truncated):
                self._find(f"{place}: run {data.run} started, expected run {expected}")
            charge = 0.0 if data.account is None else data.account.charge
            if charge <= 0:
                self._find(f"{place}: run {data.run} started without a charge")
            books.runs[data.monitor] = RunBooks(data.run, opening=round(charge * books.kind.units))
        elif event in _ENDS:
            books.runs[data.monitor] = RunBooks(data.run, 0 if run is None else run.top, over=True)


def _amount(units: int, kind: Kind) -> str:
    return f"{kind.measure} {as_text(units, kind)}"


@dataclass(frozen=True, slots=True)
class ShardState:
    """What the state topic holds for one shard, verified.

    ``waiting`` are the events charged and not yet published; ``watermarks`` say which periods are over.
    """

    shard: int
    last_event: int
    datasets: dict[str, DatasetRecord] = field(repr=False)
    waiting: list[tuple[int, bytes, bytes]] = field(repr=False)
    watermarks: Watermarks = field(default_factory=dict)

    @classmethod
    def of(cls, shard: int, restored: Restored, journal: Journal) -> ShardState:
        """Return what a journal found that was looked at."""
        datasets = {
            key[2:].decode(): read_dataset(content, key.decode())
            for key, content in restored.records.items()
            if key.startswith(b"d/")
        }
        retired = (
            DatasetAccount.from_retired(content, key.decode())
            for key, content in restored.records.items()
            if key.startswith(b"r/")
        )
        datasets |= {books.name: books.record({}) for books in retired}
        progress = restored.progress
        watermarks = {} if progress is None else from_bytes(ProgressRecord, progress, key="meta").watermarks
        return cls(shard, restored.last_event, datasets, journal.waiting, watermarks)


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
            for message in _differences(audit, audit.datasets.get(name), record):
                audit.find(state.shard, None, f"dataset {name}: {message}")
            if homes(name) != state.shard:
                audit.find(state.shard, None, f"dataset {name} is at home at shard {homes(name)}")
    by_shard = {state.shard: state for state in states}
    for name, books in audit.datasets.items():
        if books.partition not in by_shard or any(name in state.datasets for state in states):
            continue
        if books.retired != PERIOD_OVER:
            audit.find(books.partition, None, f"dataset {name} has events and no ledger")
        elif not is_over(name, by_shard[books.partition].watermarks):
            message = f"dataset {name} is retired, and the state does not say that its period is over"
            audit.find(books.partition, None, f"{message}: it could be opened again")
    return audit


def _differences(audit: Audit, books: DatasetBooks | None, record: DatasetRecord) -> Iterator[str]:
    """Yield in what a ledger differs from the dataset's events."""
    ledger = Ledger.from_bytes(record.ledger)
    kind = ledger.kind
    running = {name: slot for name, slot in record.slots.items() if slot.state == LifeCycle.RUNNING.value}
    if kind is Kind.PURE and sum(slot.left for slot in running.values()) != ledger.reserved:
        yield f"{_amount(ledger.reserved, kind)} is reserved, and not by the open runs"
    for name, slot in record.slots.items():
        if name not in running and (slot.left or any(slot.secrets)):
            yield f"monitor {name}: run {slot.run} is closed and has something left"
    if books is None:
        if not audit.truncated:
            yield "it has a ledger and no events"
        return
    for what, stored, shown in (
        ("spent", ledger.spent, books.spent),
        ("reserved", ledger.reserved, books.reserved),
        ("the limit", ledger.limit, books.limit),
    ):
        if stored != shown or kind is not books.kind:
            yield f"in the ledger {_amount(stored, kind)} is {what}, the events say {_amount(shown, books.kind)}"
    if books.last and record.events != books.last:
        yield f"{record.events} events are counted, the newest one is number {books.last}"
    for name, slot in record.slots.items():
        run = books.runs.get(name, RunBooks(over=True))
        if run.run != slot.run and not audit.truncated:
            yield f"monitor {name} is at run {slot.run}, the events are at run {run.run}"
        elif run.run == slot.run and run.over is (name in running):
            yield f"monitor {name}: run {slot.run} is {'open' if run.over else 'closed'}, the events say otherwise"
        tops = books.tops.get(name, 0)
        if not audit.truncated and slot.tops != tops:
            yield f"monitor {name} has counted {slot.tops} tops, {tops} were released"


def follow(audit: Audit, earlier: Audit, application: str) -> None:
    """Hold an application to the one whose budgets it goes on with: what that spent was spent before.

    Adds to the findings of ``audit``; ``application`` is the name of the earlier one.
    """
    for partition, name in audit.carried_from.items():
        if name != application:
            audit.find(
                partition, None, f"it goes on with the budgets of application {name!r}, not {application!r}"
            )
    if not audit.carried_from:
        audit.find(None, None, f"it does not go on with the budgets of application {application!r}")
    for name, books in earlier.datasets.items():
        now = audit.datasets.get(name)
        if now is None:
            continue
        if now.kind is not books.kind:
            audit.find(None, None, f"dataset {name} changed its measure with the application")
        elif now.before < books.spent:
            begun, spent = _amount(now.before, now.kind), _amount(books.spent, books.kind)
            audit.find(
                None, None, f"dataset {name} begins with {begun}, and {application!r} had spent {spent}"
            )


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
    auditor, states = Auditor(config.spec.monitors), []
    for shard in range(config.topics.partitions):
        try:
            states.append(await _read_state(config, cluster, topology.cluster_id, shard))
        except UnreadableState as error:
            auditor.audit.unreadable.append(str(error))
    newer = {state.shard: (ends[places[state.shard]][1], state.last_event) for state in states}
    await _add_topic(auditor, cluster, alerts, on_records, newer)
    for place, (first, _) in ends.items():
        if first:
            auditor.lost(place.partition)
    return compare(auditor, states, lambda name: home(name.encode(), config.topics.partitions))


async def _read_state(config: Config, cluster: Cluster, cluster_id: str, shard: int) -> ShardState:
    """Read and verify the state of a shard; once more where a compaction may have come in between."""
    journal = journal_of(config, cluster, cluster_id, shard)
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
    partitions = (await partition_counts(cluster, doing)).get(topic, 0)
    if not partitions:
        raise BrokerError(
            f"{unseen(topic, 'READ')}; the alert topic is topics.alerts of the configuration, by default "
            "'<application>.alerts'"
        )
    async with started(cluster.reader(), doing) as reader:
        for partition in range(partitions):
            end, last = (newer or {}).get(partition, (0, LARGEST_SEQUENCE))
            async for records in read_partition(reader, topic, partition, None, doing):
                for record in records:
                    if record.offset >= end and identity_of(record.value)[0] > last:
                        continue
                    auditor.add(partition, record.offset, record.value)
                if on_records is not None:
                    on_records(len(records))
