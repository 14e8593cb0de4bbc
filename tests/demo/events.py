"""Released events for the demo's tests, as they stand on the alert topic."""

from __future__ import annotations

from stream_svt.monitor.released import EventType, decode
from tests.support import alerts
from tests.support.alerts import account_of, encoded


def alert(
    query_id: str, *, dataset: str, monitor: str, attempt: int = 1, spent: float = 0.3, certified: bool = True
):
    data = alerts.alert(
        dataset=dataset,
        monitor=monitor,
        series=f"item-{query_id.split('/')[1]}",
        account=account_of(spent=spent, reserved=0.5),
        query_id=query_id,
        attempt=attempt,
        gap=31.0,
        estimate=458.0 if certified else None,
        bound=432.0 if certified else None,
    )
    return decode(encoded(1, data))


def lifecycle(kind: EventType, *, dataset: str, monitor: str, run: int, spent: float = 0.0):
    account = account_of(spent=spent, reserved=0.5)
    data = alerts.lifecycle("cutoff", dataset=dataset, monitor=monitor, run=run, account=account)
    return decode(encoded(1, data, kind=kind))
