"""Released events as they stand on the alert topic, for tests that need no service to write them."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from typing import Any

from stream_svt.monitor.released import Account, Alert, EventType, Lifecycle, Position
from tests.support import alerts

_numbers = count(1)


def account_of(spent: float, *, charge: float = 0.1, reserved: float = 0.0, limit: float = 4.0) -> Account:
    return alerts.account_of(charge, spent, reserved, limit)


def alert(dataset: str, series: str | None = "item-1", *, at: float = 0.0, **changes: Any) -> bytes:
    """Return an alert charged at ``at`` (Unix time); ``changes`` replace fields."""
    position = Position(topic="counts", partition=0, offset=1, row=0)
    usual = {"account": account_of(0.5), "query_id": f"q{next(_numbers)}", "position": position}
    usual |= {"threshold": 400.0, "correction": 27.0, "gap": 31.0, "estimate": 458.0, "bound": 432.0}
    data = alerts.alert(dataset=dataset, series=series, **usual | changes)
    return written(EventType.ALERT, data, at)


def lifecycle(kind: EventType, dataset: str, *, reason: str = "first", at: float = 0.0, **more: Any) -> bytes:
    return written(kind, alerts.lifecycle(reason, dataset=dataset, **more), at)


def written(kind: EventType, data: Alert | Lifecycle, at: float) -> bytes:
    """Return an event as the service writes it, with an id of its own."""
    time = datetime.fromtimestamp(at, UTC).isoformat()
    return alerts.encoded(next(_numbers), data, kind=kind, application="shop", time=time)
