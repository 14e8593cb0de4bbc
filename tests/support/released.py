"""Released events as they stand on the alert topic, for tests that need no service to write them."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from typing import Any

from stream_svt.monitor.released import Account, Alert, EventType, Lifecycle, Position, ReleasedEvent, encode
from tests.support import alerts

_numbers = count(1)


def account_of(spent: float, *, charge: float = 0.1, reserved: float = 0.0, limit: float = 4.0) -> Account:
    return Account(measure="epsilon", charge=charge, spent=spent, reserved=reserved, limit=limit)


def alert(
    dataset: str,
    series: str | None = "item-1",
    *,
    account: Account | None = None,
    at: float = 0.0,
    **changes: Any,
) -> bytes:
    """Return an alert charged at ``at`` (Unix time); ``changes`` replace fields."""
    data = alerts.alert(
        dataset=dataset,
        series=series,
        account=account or account_of(0.5),
        query_id=f"q{next(_numbers)}",
        position=Position(topic="counts", partition=0, offset=1, row=0),
        **{"threshold": 400.0, "correction": 27.0, "gap": 31.0, "estimate": 458.0, "bound": 432.0} | changes,
    )
    return written(EventType.ALERT, data, f"{dataset}/{series}", at)


def lifecycle(kind: EventType, dataset: str, *, reason: str = "first", at: float = 0.0, **more: Any) -> bytes:
    """Return anything else that happened."""
    return written(kind, alerts.lifecycle(reason, dataset=dataset, **more), dataset, at)


def written(kind: EventType, data: Alert | Lifecycle, subject: str, at: float) -> bytes:
    """Return an event as the service writes it, with an id of its own."""
    number = next(_numbers)
    event = ReleasedEvent(type=kind, id=f"shop/{number}", sequence=number, subject=subject, data=data)
    time = datetime.fromtimestamp(at, UTC).isoformat()
    return encode(event, application="shop", shard=0, time=time, origin="1-00000000000000aa")
