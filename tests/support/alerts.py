"""Released events as a shard would publish them, with books that balance."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from stream_svt.monitor.released import (
    Account,
    Alert,
    EventType,
    Lifecycle,
    NoiseLaw,
    Position,
    ReleasedEvent,
    encode,
)

TIME = "2026-01-05T10:00:00.000Z"


def account_of(charge: float = 0.1, spent: float = 0.1, reserved: float = 0.0, limit: float = 4.0) -> Account:
    return Account(measure="epsilon", charge=charge, spent=spent, reserved=reserved, limit=limit)


def alert(
    *,
    top: int = 1,
    run: int = 1,
    dataset: str = "shop",
    monitor: str = "hot",
    series: str | None = "milk",
    account: Account | None = None,
    **changes: Any,
) -> Alert:
    """Return an alert; ``changes`` replace fields."""
    plain = Alert(
        dataset=dataset,
        monitor=monitor,
        series=series,
        query_id=f"q{top}",
        position=Position(topic="queries", partition=0, offset=40 + top, row=0),
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
        top=top,
        account=account or account_of(),
        spec_hash="5f0c",
    )
    return structs.replace(plain, **changes)


def lifecycle(
    reason: str,
    *,
    dataset: str = "shop",
    monitor: str = "hot",
    run: int = 1,
    account: Account | None = None,
    detail: dict[str, object] | None = None,
) -> Lifecycle:
    return Lifecycle(
        dataset=dataset, monitor=monitor, run=run, reason=reason, account=account, detail=detail or {}
    )


def encoded(
    sequence: int,
    data: Alert | Lifecycle,
    *,
    kind: EventType | None = None,
    shard: int = 0,
    event_id: str | None = None,
    origin: str = "1-00000000000000aa",
    application: str = "retail-watch",
    time: str = TIME,
) -> bytes:
    kind = kind or (EventType.ALERT if isinstance(data, Alert) else EventType.RUN_STARTED)
    subject = data.dataset + (f"/{data.series}" if isinstance(data, Alert) and data.series else "")
    event = ReleasedEvent(
        type=kind, id=event_id or f"{data.dataset}-{sequence}", sequence=sequence, subject=subject, data=data
    )
    return encode(event, application=application, shard=shard, time=time, origin=origin)
