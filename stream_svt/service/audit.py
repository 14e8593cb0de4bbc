"""Re-derives every charge from the alert topic and says whether the books balance.

The public form: it needs nothing but the published events, so whoever may read the alerts may hold the
service to its word. Checked are, per shard, that events are numbered without gaps and ids are unique; per
dataset, that the charges of all events add up to the running total each event shows, and that no total passes
its limit; per run, that runs and tops are numbered without gaps and no top comes after a run's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from stream_svt.errors import BrokerError
from stream_svt.monitor.released import Account, Alert, Envelope, EventType, Lifecycle, decode
from stream_svt.privacy.loss import Kind, as_text
from stream_svt.service.kafka import CALL_DEADLINE, Cluster, deadline, read_partition, started

MAX_FINDINGS = 100
"""Findings kept; the rest is only counted."""

_ENDS = frozenset({EventType.RUN_HALTED, EventType.RUN_CLOSED})
_KINDS = {kind.measure: kind for kind in Kind}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that does not balance, and where it shows."""

    partition: int
    offset: int
    message: str

    def __str__(self) -> str:
        return f"partition {self.partition} offset {self.offset}: {self.message}"


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
class _RunBooks:
    run: int = 0
    top: int = 0
    over: bool = False
    known: bool = False


@dataclass(slots=True)
class Audit:
    """The outcome: books balance where ``findings`` is empty.

    ``truncated`` names the partitions whose oldest events retention has taken; what those charged is taken
    from the first event that is left and cannot be re-derived.
    """

    events: int = 0
    alerts: int = 0
    found: int = 0
    findings: list[Finding] = field(default_factory=list)
    truncated: set[int] = field(default_factory=set)
    datasets: dict[str, DatasetBooks] = field(default_factory=dict)
    last_sequence: dict[int, int] = field(default_factory=dict)

    @property
    def balances(self) -> bool:
        """Whether nothing was found."""
        return not self.found


class Auditor:
    """Takes the records of the alert topic, each partition in offset order."""

    def __init__(self) -> None:
        self.audit = Audit()
        self._ids: set[str] = set()
        self._runs: dict[tuple[str, str], _RunBooks] = {}
        self._homes: dict[str, int] = {}

    def add(self, partition: int, offset: int, record: bytes | None) -> None:
        """Check one record against all before it."""
        try:
            envelope, data = decode(record or b"")
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._find(partition, offset, "is no event of stream-svt")
            return
        audit = self.audit
        audit.events += 1
        if envelope.shard != partition:
            self._find(
                partition, offset, f"event of shard {envelope.shard}: every shard has its own partition"
            )
        if envelope.id in self._ids:
            self._find(partition, offset, f"event {envelope.id} comes twice")
        self._ids.add(envelope.id)
        self._check_sequence(partition, offset, envelope)
        account = data.account
        if account is not None:
            self._check_account(partition, offset, envelope, data.dataset, account)
        if isinstance(data, Alert):
            audit.alerts += 1
            self._check_top(partition, offset, data)
        else:
            self._check_run(partition, offset, envelope.type, data)

    def _find(self, partition: int, offset: int, message: str) -> None:
        self.audit.found += 1
        if len(self.audit.findings) < MAX_FINDINGS:
            self.audit.findings.append(Finding(partition, offset, message))

    def _check_sequence(self, partition: int, offset: int, envelope: Envelope) -> None:
        last = self.audit.last_sequence.get(partition)
        if last is None and envelope.sequence > 1:
            self.audit.truncated.add(partition)
        elif envelope.sequence != (last or 0) + 1:
            expected = (last or 0) + 1
            self._find(partition, offset, f"event number {envelope.sequence}, expected {expected}")
        self.audit.last_sequence[partition] = envelope.sequence

    def _check_account(
        self, partition: int, offset: int, envelope: Envelope, dataset: str, account: Account
    ) -> None:
        kind = _KINDS.get(account.measure)
        if kind is None:
            self._find(partition, offset, f"dataset {dataset}: unknown measure {account.measure!r}")
            return
        charge, spent, reserved, limit = (
            round(amount * kind.units)
            for amount in (account.charge, account.spent, account.reserved, account.limit)
        )
        books = self.audit.datasets.get(dataset)
        if books is None:
            books = self._first(partition, offset, dataset, kind, limit, spent - charge)
        if self._homes[dataset] != partition:
            self._find(
                partition, offset, f"dataset {dataset} has events on partition {self._homes[dataset]} too"
            )
        books.events += 1
        books.charged += charge
        if kind is not books.kind:
            self._find(partition, offset, f"dataset {dataset} changed its measure")
        if charge < 0:
            self._find(partition, offset, f"dataset {dataset}: a charge below 0")
        if spent != books.spent:
            message = f"charges add up to {_amount(books.spent, kind)}, the event says {_amount(spent, kind)}"
            self._find(partition, offset, f"dataset {dataset}: {message}")
            books.charged += spent - books.spent  # one gap is reported once
        if limit != books.limit:
            if envelope.type != EventType.BUDGET_RAISED or limit < books.limit:
                self._find(partition, offset, f"dataset {dataset}: its limit changed without being raised")
            books.limit = limit
        if spent + reserved > limit:
            total = f"{_amount(spent + reserved, kind)} spent and reserved"
            self._find(partition, offset, f"dataset {dataset}: {total} of {_amount(limit, kind)}")

    def _first(
        self, partition: int, offset: int, dataset: str, kind: Kind, limit: int, before: int
    ) -> DatasetBooks:
        self._homes[dataset] = partition
        if before and partition not in self.audit.truncated:
            self._find(partition, offset, f"dataset {dataset} begins with {_amount(before, kind)} spent")
        books = DatasetBooks(dataset, kind, limit, before=before)
        self.audit.datasets[dataset] = books
        return books

    def _check_top(self, partition: int, offset: int, alert: Alert) -> None:
        place = f"dataset {alert.dataset} monitor {alert.monitor}"
        books = self.audit.datasets.get(alert.dataset)
        if books is not None:
            books.alerts += 1
            if books.kind is Kind.PURE and alert.account.charge <= 0:
                self._find(partition, offset, f"{place}: an alert that was not charged")
        if alert.gap < 0:
            self._find(partition, offset, f"{place}: an alert below its bar")
        run = self._runs.setdefault((alert.dataset, alert.monitor), _RunBooks())
        if not run.known:
            run.known = True
            if partition in self.audit.truncated:
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

    def _check_run(self, partition: int, offset: int, kind: str, data: Lifecycle) -> None:
        if kind == EventType.RUN_STARTED:
            place = f"dataset {data.dataset} monitor {data.monitor}"
            run = self._runs.setdefault((data.dataset, data.monitor), _RunBooks())
            expected = data.run if partition in self.audit.truncated and not run.known else run.run + 1
            if data.run != expected:
                self._find(partition, offset, f"{place}: run {data.run} started, expected run {expected}")
            if data.account is None or data.account.charge <= 0:
                self._find(partition, offset, f"{place}: run {data.run} started without a charge")
            run.known, run.run, run.top, run.over = True, data.run, 0, False
        elif kind in _ENDS:
            run = self._runs.setdefault((data.dataset, data.monitor), _RunBooks())
            run.known, run.run, run.over = True, data.run, True


def _amount(units: int, kind: Kind) -> str:
    return f"{kind.measure} {as_text(units, kind)}"


async def audit_topic(cluster: Cluster, topic: str, *, on_records: Any = None) -> Audit:  # noqa: ANN401
    """Audit everything an alert topic holds; ``on_records(count)`` is called as it goes.

    Raises
    ------
    BrokerError
        The topic cannot be read.
    """
    auditor = Auditor()
    doing = f"auditing alert topic {topic!r}"
    async with started(cluster.admin(), doing) as admin, deadline(CALL_DEADLINE, doing, "DESCRIBE"):
        # Asked for by name, a lenient broker would create it.
        described = {found["topic"]: found["partitions"] for found in await admin.describe_topics()}
    partitions: Sequence[int] = [part["partition"] for part in described.get(topic, ())]
    if not partitions:
        raise _missing(topic)
    async with started(cluster.reader(), doing) as reader:
        for partition in sorted(partitions):
            async for records in read_partition(reader, topic, partition, None, doing):
                for record in records:
                    auditor.add(partition, record.offset, record.value)
                if on_records is not None:
                    on_records(len(records))
    return auditor.audit


def _missing(topic: str) -> BrokerError:
    return BrokerError(
        f"topic {topic!r} does not exist or may not be seen by this user; the alert topic is "
        "topics.alerts of the configuration, by default '<application>.alerts'"
    )
