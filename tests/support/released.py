"""Released events as they stand on the alert topic, for tests that need no service to write them."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from typing import Any

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

_numbers = count(1)


def account(spent: float, *, charge: float = 0.1, reserved: float = 0.0, limit: float = 4.0) -> Account:
    return Account(measure="epsilon", charge=charge, spent=spent, reserved=reserved, limit=limit)


def alert(
    dataset: str,
    series: str | None = "item-1",
    *,
    books: Account | None = None,
    monitor: str = "hot",
    at: float = 0.0,
    shard: int = 0,
    **changes: Any,
) -> bytes:
    """Return an alert charged at ``at`` (Unix time); ``changes`` replace fields."""
    fields: dict[str, Any] = {
        "threshold": 400.0,
        "correction": 27.0,
        "gap": 31.0,
        "estimate": 458.0,
        "bound": 432.0,
        "beta": 0.05,
        "run": 1,
        "top": 1,
    } | changes
    law = NoiseLaw(family="exponential", scale=8.75)
    data = Alert(
        dataset=dataset,
        monitor=monitor,
        series=series,
        query_id=f"q{next(_numbers)}",
        position=Position(topic="counts", partition=shard, offset=1, row=0),
        branch="top",
        attempt=1,
        threshold_noise=law,
        query_noise=law,
        account=books or account(0.5),
        spec_hash="0" * 16,
        **fields,
    )
    return written(EventType.ALERT, data, f"{dataset}/{series}", at, shard)


def lifecycle(
    kind: EventType,
    dataset: str,
    *,
    books: Account | None = None,
    monitor: str = "hot",
    at: float = 0.0,
    run: int = 1,
    reason: str = "first",
    shard: int = 0,
    detail: dict[str, Any] | None = None,
) -> bytes:
    """Return anything else that happened."""
    data = Lifecycle(
        dataset=dataset, monitor=monitor, run=run, reason=reason, account=books, detail=detail or {}
    )
    return written(kind, data, dataset, at, shard)


def written(kind: EventType, data: Alert | Lifecycle, subject: str, at: float, shard: int) -> bytes:
    """Return an event as the service writes it, with an id of its own."""
    number = next(_numbers)
    event = ReleasedEvent(type=kind, id=f"shop/{number}", sequence=number, subject=subject, data=data)
    time = datetime.fromtimestamp(at, UTC).isoformat()
    return encode(event, application="shop", shard=shard, time=time)
