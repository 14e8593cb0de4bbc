"""Everything that may leave the trusted zone: events, views for metrics and status pages, and the fold of events.

A field belongs here only if it is public, a released outcome of a charged test, or an account of charges. Amounts have
at most nine (epsilon) or twelve (rho) decimals: ``round(amount * 10**9)`` is the ledger's exact integer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from stream_svt.monitor.state.snapshot import RunState, State

CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"
SOURCE = "/stream-svt/"
"""Source of an event, before the application's name."""
LARGEST_SEQUENCE = 2**63 - 1
PERIOD_OVER = "period-over"
"""Reason of a run or dataset that ends with its period and lateness."""


class EventType(StrEnum):
    """CloudEvents types. The list is permanent: a meaning never changes, a kind is never removed."""

    STATE_BEGUN = "io.stream-svt.state.begun.v1"
    ALERT = "io.stream-svt.alert.v1"
    ALERT_ENDED = "io.stream-svt.alert.ended.v1"
    NOT_RENEWED = "io.stream-svt.alert.not-renewed.v1"
    UNTESTED = "io.stream-svt.alert.untested.v1"
    DECLARED = "io.stream-svt.budget.declared.v1"
    BUDGET_RAISED = "io.stream-svt.budget.raised.v1"
    RETIRED = "io.stream-svt.budget.retired.v1"
    RUN_STARTED = "io.stream-svt.run.started.v1"
    RUN_HALTED = "io.stream-svt.run.halted.v1"
    RUN_CLOSED = "io.stream-svt.run.closed.v1"
    EXHAUSTED = "io.stream-svt.monitor.exhausted.v1"
    LIMITED = "io.stream-svt.monitor.limited.v1"
    PAUSED = "io.stream-svt.monitor.paused.v1"
    RESUMED = "io.stream-svt.monitor.resumed.v1"
    MUTED = "io.stream-svt.series.muted.v1"
    UNMUTED = "io.stream-svt.series.unmuted.v1"
    SPEC_CHANGED = "io.stream-svt.spec.changed.v1"
    LOSS_ACCEPTED = "io.stream-svt.loss.accepted.v1"
    COMMAND_REPLY = "io.stream-svt.command.reply.v1"
    DECILES = "io.stream-svt.deciles.v1"
    TOPIC_DECLARED = "io.stream-svt.topic.declared.v1"
    CONFIGURATION_ADOPTED = "io.stream-svt.configuration.adopted.v1"
    BALANCE = "io.stream-svt.budget.balance.v1"
    APPLICATION_CLOSED = "io.stream-svt.application.closed.v1"


_TYPES = frozenset(EventType)
CLOSING = frozenset({EventType.BALANCE, EventType.APPLICATION_CLOSED})
"""Events that a successor relies on: with a sealing key configured, they carry a proof of their writer."""


class Account(msgspec.Struct, frozen=True, gc=False):
    """A dataset's account after an event.

    ``charge`` is the amount that this event added to ``spent``; ``measure``, "epsilon" or "rho", is the unit of all
    four.
    """

    measure: str
    charge: float
    spent: float
    reserved: float
    limit: float


class Position(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Position of a query on Kafka; ``row`` is the row of a columnar record, and 0 for JSON.

    On a topic of counts ``window`` stands for the record: the window's begin and the tick's end, of one monitor's
    measure and one dataset. Its offset is not shown (-1): transactions that were aborted move it.
    """

    topic: str
    partition: int
    offset: int
    row: int
    window: str = ""


class NoiseLaw(msgspec.Struct, frozen=True, gc=False):
    """A noise family ("exponential", "laplace") and its scale in real units, public by configuration."""

    family: str
    scale: float


UnclockedEnd: TypeAlias = Literal["period", "run"]
"""End of a mute that is not a time."""


class Alert(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A top: one released outcome of a charged test.

    Attributes:
        query_id, position, series: The query that was tested.
        threshold, correction, gap: Real units. The noisy value exceeded the corrected noisy threshold by
            ``gap`` (0 or more).
        branch, attempt: The branch of the mechanism that fired, and the number of the test, from 1.
        estimate: Threshold + correction + gap minus the mean noise; unbiased only before selection, None if
            the bound is not certified.
        bound, beta: With probability 1 - ``beta`` the true value is at least ``bound``, whatever was reported
            before; None if nothing can be certified.
        run, number: Number of the run within dataset and monitor, and of this alert within the run, both from 1.
        muted_until: End of the series' mute: "period" (permanent), "run", or a clock in ms; None without a mute. It
            follows from the position and the monitor's public rule.
        severity: Name of the monitor's severity that ``bound`` reaches; None if the monitor has none.
        watched_until: Clock (ms) by which `NOT_RENEWED` or `UNTESTED` follows, or `ALERT_ENDED` may, unless the series
            is reported again, or its dataset or monitor ends; None if none of them does.
    """

    dataset: str
    monitor: str
    series: str | None
    query_id: str
    position: Position
    threshold: float
    correction: float
    gap: float
    branch: str
    attempt: int
    threshold_noise: NoiseLaw
    query_noise: NoiseLaw
    estimate: float | None
    bound: float | None
    beta: float
    run: int
    number: int
    muted_until: UnclockedEnd | int | None
    account: Account
    spec_hash: str
    severity: str | None = None
    watched_until: int | None = None


class ReportedTop(msgspec.Struct, frozen=True, gc=False):
    """What an alert and the end of an incident have in common: a charged top of a run; see `Alert`."""

    branch: str
    attempt: int
    gap: float
    number: int
    spec_hash: str
    position: Position


class Lifecycle(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Any other event of a monitor, a dataset or a shard; the event's ``type`` names it.

    ``reason`` is one of a fixed set of words; ``detail`` has further public facts (the new limit, the changed
    fields, a command's id and result).
    """

    dataset: str
    monitor: str
    run: int
    reason: str
    account: Account | None
    detail: dict[str, Any] = {}


Data_co = TypeVar("Data_co", bound=Alert | Lifecycle, covariant=True)


class ReleasedEvent(msgspec.Struct, frozen=True, gc=False):
    """One event without its time, which the service sets when the event enters the outbox.

    Attributes:
        id: Function of application, dataset, monitor, run and the dataset's event number: an event that is
            computed or read again has the same id.
        sequence: Number of the event in its shard, from 1, without gaps.
        subject: "dataset" or "dataset/series".
    """

    type: EventType
    id: str
    sequence: int
    subject: str
    data: Alert | Lifecycle


class MonitorView(msgspec.Struct, frozen=True):
    """Released state of one monitor on one dataset, as of the last commit; amounts are in the ledger's measure."""

    monitor: Annotated[str, Meta(description="Its name.")]
    state: Annotated[str, Meta(description="idle, running, halted, exhausted, limited, stopped or paused.")]
    run: Annotated[int, Meta(description="Number of the latest run.")]
    run_alerts: Annotated[int, Meta(description="Alerts of the open run.")]
    alerts: Annotated[int, Meta(description="Alerts since the dataset was declared.")]
    runs: Annotated[int, Meta(description="Runs since then.")]
    halts: Annotated[int, Meta(description="Runs that reported their last alert.")]
    spent: Annotated[float, Meta(description="Privacy loss that the monitor spent.")]
    run_left: Annotated[float, Meta(description="Amount that the open run can still spend.")]
    muted: Annotated[int, Meta(description="Series muted after an alert.")]
    queued: Annotated[int, Meta(description="Queries that wait for another test.")]
    top_branch_only: Annotated[bool, Meta(description="Whether only the top branch is left.")]
    until: Annotated[
        int, Meta(description="Time at which a limit or pause ends by itself (Unix ms), else 0.")
    ] = 0
    since: Annotated[
        int,
        Meta(
            description="Time since which queries are skipped (Unix ms, broker's clock), 0 if they are tested."
        ),
    ] = 0
    beneath: Annotated[str, Meta(description="The state that a pause hides, else empty.")] = ""
    beneath_until: Annotated[
        int, Meta(description="The time at which that state ends by itself, else 0.")
    ] = 0


class DatasetView(msgspec.Struct, frozen=True):
    """Released state of one dataset and its monitors, as of the last commit."""

    dataset: Annotated[str, Meta(description="Its name.")]
    shard: Annotated[int, Meta(description="Shard of its ledger.")]
    unit: Annotated[str, Meta(description="The privacy unit, as declared.")]
    measure: Annotated[str, Meta(description="epsilon or rho.")]
    limit: Annotated[float, Meta(description="Limit of the ledger.")]
    spent: Annotated[float, Meta(description="Privacy loss spent.")]
    reserved: Annotated[float, Meta(description="Reserved by open runs.")]
    monitors: Annotated[list[MonitorView], Meta(description="Monitors that cover it.")]


@dataclass(frozen=True, slots=True)
class MonitorTotals:
    """Sums of a monitor over a shard; ``spent`` and ``run_left``, by measure, over datasets not shown individually."""

    states: Mapping[str, int]
    muted: int
    queued: int
    spent: Mapping[str, float]
    run_left: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class OtherTotals:
    """Sums over the ledgers of one measure that are not shown individually."""

    datasets: int
    limit: float
    spent: float
    reserved: float
    charges: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over a shard's datasets after a commit; ``others``, by measure, over datasets not shown individually."""

    monitors: Mapping[str, MonitorTotals] = field(default_factory=dict)
    others: Mapping[str, OtherTotals] = field(default_factory=dict)


_ENCODER = msgspec.json.Encoder()


def encode(
    event: ReleasedEvent,
    *,
    application: str,
    shard: int,
    time: str,
    origin: str,
    state_id: str = "",
    command: int = 0,
    prove: Callable[[bytes], str] | None = None,
) -> bytes:
    """Return the event as a CloudEvents 1.0 JSON document.

    ``time`` is RFC 3339 text. ``origin`` identifies the transaction that charged the event, by its sequence and
    random bits. ``state_id`` identifies the shard's state. ``command`` is the number of the last command that was
    carried out or refused. ``prove`` makes a proof of the writer from `proved_content`.
    """
    document: dict[str, Any] = {
        "specversion": "1.0",
        "id": event.id,
        "source": SOURCE + application,
        "type": event.type,
        "subject": event.subject,
        "time": time,
        "datacontenttype": "application/json",
        "shard": shard,
        "sequence": event.sequence,
        "origin": origin,
        "stateid": state_id,
        "command": command,
        "data": event.data,
    }
    if prove is not None:
        document["proof"] = prove(proved_content(_ENCODER.encode(document)))
    return _ENCODER.encode(document)


class Event(msgspec.Struct, Generic[Data_co], frozen=True, kw_only=True):
    """A received event.

    Attributes:
        id: Identical in all copies of the event.
        type: CloudEvents type: one of `EventType`, or another text from a newer service.
        source, subject: Application ("/stream-svt/NAME"), and dataset or dataset/series.
        time: When the event was charged, by the service's clock.
        shard, sequence: Shard, and number of the event in the shard, from 1, without gaps.
        origin: The transaction that charged it.
        stateid, command: Id of the shard's state, and number of the last command that the shard used up.
        proof: Proof of origin, verified by the service itself; empty if state is not sealed.
        partition, offset: Position of the record on the alert topic, -1 if only the record's value is known.
        data: The content; `UNKNOWN` for a type of a newer service with content of another form.
    """

    specversion: str = "1.0"
    id: str
    type: str
    source: str
    subject: str
    time: Annotated[datetime, Meta(tz=True)]
    datacontenttype: str = "application/json"
    shard: int
    sequence: Annotated[int, Meta(ge=1, le=LARGEST_SEQUENCE)]
    origin: str
    stateid: str = ""
    command: int = 0
    proof: str = ""
    partition: int = -1
    offset: int = -1
    data: Data_co

    @property
    def application(self) -> str:
        """Name of the application that released it."""
        return self.source.removeprefix(SOURCE)

    @property
    def time_ms(self) -> int:
        """Its time as Unix time in ms."""
        return int(self.time.timestamp() * 1000)


AnyEvent: TypeAlias = Event[Alert | Lifecycle]
UNKNOWN: Final = Lifecycle(dataset="", monitor="", run=0, reason="", account=None)
"""Content of an event of an unknown type, if it does not have the form of `Lifecycle`."""

# The type determines how the data is decoded.
_ENCODED: msgspec.json.Decoder[Event[Any]] = msgspec.json.Decoder(Event[msgspec.Raw])  # type: ignore[type-var]
_ALERT = msgspec.json.Decoder(Alert)
_LIFECYCLE = msgspec.json.Decoder(Lifecycle)


def proved_content(record: bytes) -> bytes:
    """Return the bytes that the proof of an event covers: the event without proof and position."""
    return _ENCODER.encode(
        msgspec.structs.replace(_ENCODED.decode(record), proof="", partition=-1, offset=-1)
    )


def number_of(event_id: str) -> int:
    """Return the number of an event within its dataset, from the end of its id; 0 for an impossible id."""
    last = event_id.rpartition("/")[2]
    number = int(last) if last.isascii() and last.isdigit() and len(last) < 20 else 0
    return number if number <= LARGEST_SEQUENCE else 0


def decode(record: bytes, partition: int = -1, offset: int = -1) -> AnyEvent:
    """Return the event in the value of a record; `msgspec.DecodeError` if this package did not release it.

    An event of this package is JSON in UTF-8. It has a sequence that a shard can have written, the source of an
    application, a time with a time zone in the years 1970 to 9998, and the content of its type.
    """
    try:
        record.decode()  # other fields are ignored
        event = _ENCODED.decode(record)
        if not event.source.startswith(SOURCE):
            raise msgspec.ValidationError("its source is no application of stream-svt")
        if not 1970 <= event.time.year < 9999:  # adding a time zone or a duration may leave the calendar
            raise msgspec.ValidationError("its time is impossible")
        data = _data(event.type, event.data)
    except msgspec.MsgspecError:
        raise
    except (ValueError, RecursionError):
        raise msgspec.DecodeError(
            "a text is not UTF-8, a number is too long, or the nesting too deep"
        ) from None
    return msgspec.structs.replace(event, data=data, partition=partition, offset=offset)


def _data(kind: str, content: msgspec.Raw) -> Alert | Lifecycle:
    if kind == EventType.ALERT:
        return _ALERT.decode(content)
    try:
        found = _LIFECYCLE.decode(content)
        top_in(kind, found)
        return found
    except msgspec.ValidationError:
        if kind in _TYPES:
            raise
        return UNKNOWN


def top_in(kind: str, data: Alert | Lifecycle) -> ReportedTop | None:
    """Return the top that an event of a type reports, None for others; `msgspec.ValidationError` if it lacks a part."""
    if isinstance(data, Alert):
        return ReportedTop(*(getattr(data, name) for name in ReportedTop.__struct_fields__))
    return msgspec.convert(data.detail, ReportedTop) if kind == EventType.ALERT_ENDED else None


def received(record: bytes | None, partition: int = -1, offset: int = -1) -> AnyEvent | None:
    """Return the event in the value of a record; None if this package did not release it."""
    try:
        return decode(record or b"", partition, offset)
    except msgspec.DecodeError:
        return None


def event_in(record: bytes | None) -> AnyEvent | None:
    """Return the event in the value of a record; None also if its content is unknown."""
    event = received(record)
    return None if event is None or event.data is UNKNOWN else event


def lifecycle_in(record: bytes | None, kind: EventType) -> Lifecycle | None:
    """Return the content of a lifecycle event of this type, None for other records."""
    if kind.encode() not in (record or b""):  # most records need not be decoded
        return None
    event = event_in(record)
    return event.data if event and event.type == kind and isinstance(event.data, Lifecycle) else None


# -- the fold of events --------------------------------------------------------------------------------------

CHARGES_KEPT = 50
"""Number of latest charges of a dataset that are kept: enough to estimate its pace."""

_AFTER: Mapping[str, State] = {
    EventType.ALERT: State.RUNNING,
    EventType.ALERT_ENDED: State.RUNNING,
    EventType.RUN_STARTED: State.RUNNING,
    EventType.RUN_HALTED: State.HALTED,
    EventType.RUN_CLOSED: State.HALTED,
    EventType.EXHAUSTED: State.EXHAUSTED,
    EventType.LIMITED: State.LIMITED,
}


_RAISED: Mapping[State, State] = {State.EXHAUSTED: State.IDLE, State.LIMITED: State.HALTED}
"""State after a raise of the limit: the next query begins a run."""


@dataclass(slots=True)
class Budget:
    """A dataset's account after its latest event; without ``reported`` no event had it: the limit is as declared.

    ``charges`` are the latest ones as (Unix time in seconds, amount), oldest first.
    """

    limit: float
    measure: str = "epsilon"
    spent: float = 0.0
    reserved: float = 0.0
    charges: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=CHARGES_KEPT))
    reported: bool = False

    @property
    def left(self) -> float:
        """Amount that may still be spent, including reservations of open runs."""
        return max(self.limit - self.spent, 0.0)


class MonitorStatus(RunState, array_like=True, gc=False):
    """State of a monitor on a dataset by its events.

    ``shown_ms`` is the time (Unix ms) of the event that began the state; ``limited_until`` is the end (Unix ms) of a
    limit in its event, 0 for none.
    """

    shown_ms: int = 0
    limited_until: int = 0

    @property
    def until_ms(self) -> int:
        """Time at which the state ends by itself (Unix ms); 0 if it does not, or no event has it."""
        return self.paused_until if self.paused else self.beneath_until_ms

    @property
    def beneath_until_ms(self) -> int:
        """Time at which the state without a pause ends by itself (Unix ms); 0 if it does not, or no event has it."""
        return self.limited_until if self.beneath == State.LIMITED else 0

    def take(self, event: AnyEvent) -> None:
        """Fold an event about the monitor, or about its dataset."""
        kind, data, before = event.type, event.data, self.shown
        if kind == EventType.BUDGET_RAISED:
            self.state = _RAISED.get(self.state, self.state)
        else:
            self.run = data.run
            self.tops += kind in (EventType.ALERT, EventType.ALERT_ENDED)
            self.halts += kind == EventType.RUN_HALTED
            detail = {} if isinstance(data, Alert) else data.detail
            if kind in (EventType.PAUSED, EventType.RESUMED):
                self.paused, self.paused_until = kind == EventType.PAUSED, _time(detail)
            if kind in _AFTER:
                self.state, self.limited_until = _AFTER[kind], _time(detail)
                self.stopped = detail.get("stopped") is True
        if self.shown != before:
            self.shown_ms = event.time_ms
        self.note_blind(event.time_ms)


def _time(detail: Mapping[str, Any]) -> int:
    until = detail.get("until")
    return until if isinstance(until, int) and 0 < until < LARGEST_SEQUENCE else 0


class ReleasedStatus:
    """Folds released events, in order, into accounts and states; ignores events about unknown datasets.

    ``statuses`` has the state by monitor and dataset, if an event has it.
    """

    def __init__(self, budgets: Mapping[str, Budget], covers: Mapping[str, Iterable[str]]) -> None:
        self.budgets = dict(budgets)
        self.statuses = {
            monitor: {dataset: MonitorStatus() for dataset in datasets}
            for monitor, datasets in covers.items()
        }

    def take(self, event: AnyEvent) -> None:
        """Fold one event."""
        data = event.data
        budget = self.budgets.get(data.dataset)
        if budget is None:
            return
        if (account := data.account) is not None:
            budget.measure, budget.limit = account.measure, account.limit
            budget.spent, budget.reserved, budget.reported = account.spent, account.reserved, True
            if account.charge > 0:
                budget.charges.append((event.time.timestamp(), account.charge))
        concerned = self.of_dataset(data.dataset)
        if event.type != EventType.BUDGET_RAISED:
            concerned = {data.monitor: concerned[data.monitor]} if data.monitor in concerned else {}
        for status in concerned.values():
            status.take(event)

    def of_dataset(self, dataset: str) -> dict[str, MonitorStatus]:
        """Return the monitors on a dataset, by name."""
        return {
            monitor: statuses[dataset] for monitor, statuses in self.statuses.items() if dataset in statuses
        }

    def exhausted(self) -> list[str]:
        """Return the datasets all of whose monitors are exhausted."""
        return [
            dataset
            for dataset in self.budgets
            if (statuses := self.of_dataset(dataset).values())
            and all(status.state is State.EXHAUSTED for status in statuses)
        ]
