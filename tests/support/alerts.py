"""Released events as a shard would publish them, with books that balance."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from stream_svt.monitor.released import (
    Account,
    Alert,
    AnyEvent,
    EventType,
    Lifecycle,
    NoiseLaw,
    Position,
    ReleasedEvent,
    decode,
    encode,
)

TIME = "2026-01-05T10:00:00.000Z"


def account_of(charge: float = 0.1, spent: float = 0.1, reserved: float = 0.0, limit: float = 4.0) -> Account:
    return Account(measure="epsilon", charge=charge, spent=spent, reserved=reserved, limit=limit)


def alert(
    *, number: int = 1, run: int = 1, dataset: str = "shop", account: Account | None = None, **changes: Any
) -> Alert:
    """Return an alert; ``changes`` replace fields."""
    plain = Alert(
        dataset=dataset,
        monitor="hot",
        series="milk",
        query_id=f"q{number}",
        position=Position(topic="queries", partition=0, offset=40 + number, row=0),
        threshold=500.0,
        correction=60.0,
        gap=12.0,
        branch="top",
        attempt=1,
        threshold_noise=NoiseLaw(family="exponential", scale=10.0),
        query_noise=NoiseLaw(family="exponential", scale=10.0),
        estimate=562.0,
        bound=None,
        beta=0.05,
        run=run,
        number=number,
        muted_until="period",
        account=account or account_of(),
        spec_hash="5f0c",
    )
    return structs.replace(plain, **changes)


def lifecycle(reason: str, **changes: Any) -> Lifecycle:
    """Return a life-cycle event; ``changes`` replace fields."""
    usual = {"dataset": "shop", "monitor": "hot", "run": 1, "account": None}
    return Lifecycle(reason=reason, **usual | changes)


def encoded(
    sequence: int,
    data: Alert | Lifecycle,
    *,
    kind: EventType | None = None,
    event_id: str | None = None,
    **changes: Any,
) -> bytes:
    """Return the event as a record of the alert topic; ``changes`` replace arguments of `encode`."""
    kind = kind or (EventType.ALERT if isinstance(data, Alert) else EventType.RUN_STARTED)
    subject = data.dataset + (f"/{data.series}" if isinstance(data, Alert) and data.series else "")
    event_id = event_id or f"{data.dataset}-{sequence}"
    event = ReleasedEvent(type=kind, id=event_id, sequence=sequence, subject=subject, data=data)
    usual = {"application": "retail-watch", "shard": 0, "time": TIME, "origin": "1-00000000000000aa"}
    return encode(event, **usual | changes)


def event(data: Alert | Lifecycle | None = None, kind: EventType | None = None) -> AnyEvent:
    """Return an event, by default an alert, as a subscriber receives it."""
    return decode(encoded(1, data or alert(), kind=kind), partition=0, offset=3)
