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
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from stream_svt.monitor.snapshot import RunState, State

CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"
LARGEST_SEQUENCE = 2**63 - 1
PERIOD_OVER = "period-over"
"""Reason of a run or dataset that ends with its period and lateness."""


class EventType(StrEnum):
    """CloudEvents types. The list is permanent: a meaning never changes, a kind is never removed."""

    STATE_BEGUN = "io.stream-svt.state.begun.v1"
    ALERT = "io.stream-svt.alert.v1"
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
    SPEC_CHANGED = "io.stream-svt.spec.changed.v1"
    LOSS_ACCEPTED = "io.stream-svt.loss.accepted.v1"
    COMMAND_REPLY = "io.stream-svt.command.reply.v1"
    TOPIC_DECLARED = "io.stream-svt.topic.declared.v1"
    CONFIGURATION_ADOPTED = "io.stream-svt.configuration.adopted.v1"
    BALANCE = "io.stream-svt.budget.balance.v1"
    APPLICATION_CLOSED = "io.stream-svt.application.closed.v1"


CLOSING = frozenset({EventType.BALANCE, EventType.APPLICATION_CLOSED})
"""Events that a successor relies on: with a sealing key configured, they carry a proof of their writer."""


class Account(msgspec.Struct, frozen=True, gc=False):
    """A dataset's account after an event.

    ``charge`` is what this event added to ``spent``; ``measure`` is "epsilon" or "rho" and holds for all four.
    """

    measure: str
    charge: float
    spent: float
    reserved: float
    limit: float


class Position(msgspec.Struct, frozen=True, gc=False):
    """Position of a query on Kafka; ``row`` counts inside a columnar record and is 0 for JSON."""

    topic: str
    partition: int
    offset: int
    row: int


class NoiseLaw(msgspec.Struct, frozen=True, gc=False):
    """A noise family ("exponential", "laplace") and its scale in real units, public by configuration."""

    family: str
    scale: float


UnclockedEnd: TypeAlias = Literal["period", "run"]
"""End of a mute that is not a clock."""


class Alert(msgspec.Struct, frozen=True, gc=False):
    """A top: one released outcome of a charged test.

    Attributes:
        query_id, position, series: The query that was tested.
        threshold, correction, gap: Real units. The noisy value exceeded the corrected noisy threshold by
            ``gap`` (0 or more).
        branch, attempt: The branch of the mechanism that fired, and the attempt (1 is the first test).
        estimate: Threshold + correction + gap minus the mean noise; unbiased only before selection, None if
            the bound is not certified.
        bound, beta: With probability 1 - ``beta`` the true value is at least ``bound``, whatever was reported
            before; None if nothing can be certified.
        run, number: Number of the run within dataset and monitor, and of this alert within the run, both from 1.
        muted_until: End of the series' mute: "period" (permanent), "run", or a clock in ms; None without a mute. It
            follows from the position and the monitor's public rule.
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


class Lifecycle(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Any other event of a monitor, a dataset or a shard; the event's ``type`` names it.

    ``reason`` is one of a fixed set of words; ``detail`` holds further public facts (the new limit, the
    changed fields, a command's id and result).
    """

    dataset: str
    monitor: str
    run: int
    reason: str
    account: Account | None
    detail: dict[str, Any] = {}


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
    state: Annotated[str, Meta(description="idle, running, halted, exhausted, limited or paused.")]
    run: Annotated[int, Meta(description="Number of the latest run.")]
    run_alerts: Annotated[int, Meta(description="Alerts of the open run.")]
    alerts: Annotated[int, Meta(description="Alerts since the dataset was declared.")]
    runs: Annotated[int, Meta(description="Runs since then.")]
    halts: Annotated[int, Meta(description="Runs that reported their last alert.")]
    spent: Annotated[float, Meta(description="Privacy loss spent by it.")]
    run_left: Annotated[float, Meta(description="What the open run can still spend.")]
    muted: Annotated[int, Meta(description="Series muted after an alert.")]
    queued: Annotated[int, Meta(description="Queries that wait for another test.")]
    top_branch_only: Annotated[bool, Meta(description="Whether only the top branch is left.")]
    next_run: Annotated[
        int, Meta(description="If limited, when the next run may begin (Unix ms); else 0.")
    ] = 0


class DatasetView(msgspec.Struct, frozen=True):
    """Released state of one dataset and its monitors, as of the last commit."""

    dataset: Annotated[str, Meta(description="Its name.")]
    shard: Annotated[int, Meta(description="The shard that holds its ledger.")]
    unit: Annotated[str, Meta(description="The privacy unit, as declared.")]
    measure: Annotated[str, Meta(description="epsilon or rho.")]
    limit: Annotated[float, Meta(description="Of its ledger.")]
    spent: Annotated[float, Meta(description="Privacy loss spent.")]
    reserved: Annotated[float, Meta(description="Reserved by open runs.")]
    monitors: Annotated[list[MonitorView], Meta(description="Those that cover it.")]


@dataclass(frozen=True, slots=True)
class MonitorTotals:
    """Sums of a monitor over a shard; ``spent`` and ``run_left``, by measure, are of the datasets not shown singly."""

    states: Mapping[str, int]
    muted: int
    queued: int
    spent: Mapping[str, float]
    run_left: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class OtherTotals:
    """Sums over the ledgers of one measure that are not shown one by one."""

    datasets: int
    limit: float
    spent: float
    reserved: float
    charges: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the datasets of a shard after a commit; ``others`` are those not shown one by one, by measure."""

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

    ``time`` is RFC 3339 text. ``origin`` identifies the transaction that charged the event, by its sequence and random
    bits; ``state_id`` the shard's state; ``command`` is the number of the last command that was carried out or refused.
    ``prove`` makes a proof of the writer from `proved_content`.
    """
    document = _Document(
        "1.0",
        event.id,
        f"/stream-svt/{application}",
        event.type,
        event.subject,
        time,
        "application/json",
        shard,
        event.sequence,
        origin,
        state_id,
        command,
        msgspec.UNSET,
        event.data,
    )
    encoded = _ENCODER.encode(document)
    if prove is None:
        return encoded
    proof = prove(proved_content(_ENVELOPE.decode(encoded)))
    return _ENCODER.encode(msgspec.structs.replace(document, proof=proof))


class _Document(msgspec.Struct, gc=False):
    """An event in the order in which its attributes are written."""

    specversion: str
    id: str
    source: str
    type: EventType
    subject: str
    time: str
    datacontenttype: str
    shard: int
    sequence: int
    origin: str
    stateid: str
    command: int
    proof: str | msgspec.UnsetType
    data: Alert | Lifecycle


class Envelope(msgspec.Struct, frozen=True):
    """The attributes of a received event; ``data`` is still encoded."""

    specversion: str
    id: str
    source: str
    type: str
    subject: str
    time: str
    shard: int
    sequence: int
    origin: str
    data: msgspec.Raw
    stateid: str = ""
    command: int = 0
    proof: str = ""


def proved_content(envelope: Envelope) -> bytes:
    """Return the bytes that the proof of an event covers: the event without the proof."""
    return _ENCODER.encode(msgspec.structs.replace(envelope, proof=""))


_ENVELOPE = msgspec.json.Decoder(Envelope)
_ALERT = msgspec.json.Decoder(Alert)
_LIFECYCLE = msgspec.json.Decoder(Lifecycle)


def identity_of(record: bytes | None) -> tuple[int, str]:
    """Return an event's sequence and origin; 0 and empty if the record is not an event of this package."""
    try:
        envelope, _ = decode(record or b"")
    except msgspec.DecodeError:
        return 0, ""
    return (envelope.sequence, envelope.origin) if 0 < envelope.sequence <= LARGEST_SEQUENCE else (0, "")


def number_of(event_id: str) -> int:
    """Return the number, at the end of its id, of an event among those of its dataset; 0 for an impossible one."""
    last = event_id.rpartition("/")[2]
    number = int(last) if last.isascii() and last.isdigit() and len(last) < 20 else 0
    return number if number <= LARGEST_SEQUENCE else 0


def decode(record: bytes) -> tuple[Envelope, Alert | Lifecycle]:
    """Return envelope and content of an encoded event; `msgspec.DecodeError` if it is not of this package."""
    try:
        envelope = _ENVELOPE.decode(record)
        decoder = _ALERT if envelope.type == EventType.ALERT else _LIFECYCLE
        return envelope, decoder.decode(envelope.data)
    except msgspec.MsgspecError:
        raise
    except (ValueError, RecursionError):
        raise msgspec.DecodeError(
            "a text is not UTF-8, a number is too long, or the nesting too deep"
        ) from None


# -- the fold of events --------------------------------------------------------------------------------------

CHARGES_KEPT = 50
"""Number of latest charges kept of a dataset: enough to estimate its pace."""

_AFTER: Mapping[str, State] = {
    EventType.ALERT: State.RUNNING,
    EventType.RUN_STARTED: State.RUNNING,
    EventType.RUN_HALTED: State.HALTED,
    EventType.RUN_CLOSED: State.HALTED,
    EventType.EXHAUSTED: State.EXHAUSTED,
    EventType.LIMITED: State.LIMITED,
}


@dataclass(slots=True)
class Budget:
    """A dataset's account after its latest event; without ``reported`` no event carried it: the limit is as declared.

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
        """What may still be spent, reservations of open runs included."""
        return max(self.limit - self.spent, 0.0)


class ReleasedStatus:
    """Folds released events, in the order read, into accounts and states; ignores those about unknown datasets.

    ``statuses`` has state, run, tops and halts by monitor and dataset, as far as the events contain them.
    """

    def __init__(self, budgets: Mapping[str, Budget], covers: Mapping[str, Iterable[str]]) -> None:
        self.budgets = dict(budgets)
        self.statuses = {
            monitor: {dataset: RunState() for dataset in datasets} for monitor, datasets in covers.items()
        }

    def take(self, envelope: Envelope, data: Alert | Lifecycle) -> None:
        """Fold one event."""
        budget, kind = self.budgets.get(data.dataset), envelope.type
        if budget is None:
            return
        if (account := data.account) is not None:
            budget.measure, budget.limit = account.measure, account.limit
            budget.spent, budget.reserved, budget.reported = account.spent, account.reserved, True
            if account.charge > 0:
                budget.charges.append((datetime.fromisoformat(envelope.time).timestamp(), account.charge))
        if kind == EventType.BUDGET_RAISED:
            for status in self.of_dataset(data.dataset).values():
                if status.state is State.EXHAUSTED:
                    status.state = State.IDLE
        own = self.statuses.get(data.monitor, {}).get(data.dataset)
        if own is not None:
            own.run = data.run
            own.tops += kind == EventType.ALERT
            own.halts += kind == EventType.RUN_HALTED
            if kind in (EventType.PAUSED, EventType.RESUMED):
                own.paused = kind == EventType.PAUSED
            own.state = _AFTER.get(kind, own.state)

    def of_dataset(self, dataset: str) -> dict[str, RunState]:
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
