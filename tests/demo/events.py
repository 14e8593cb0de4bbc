"""Released events for the demo's tests, as they stand on the alert topic."""

from __future__ import annotations

from stream_svt.monitor.released import (
    Account,
    Alert,
    EventType,
    Lifecycle,
    NoiseLaw,
    Position,
    ReleasedEvent,
    decode,
    encode,
)

SCALE = NoiseLaw(family="exponential", scale=8.75)


def account(spent: float, reserved: float = 0.0, limit: float = 4.0) -> Account:
    return Account(measure="epsilon", charge=0.1, spent=spent, reserved=reserved, limit=limit)


def alert(
    query_id: str, *, dataset: str, monitor: str, attempt: int = 1, spent: float = 0.3, certified: bool = True
):
    item = query_id.split("/")[1]
    content = Alert(
        dataset=dataset,
        monitor=monitor,
        series=f"item-{item}",
        query_id=query_id,
        position=Position(topic="counts", partition=0, offset=1, row=0),
        threshold=400.0,
        correction=27.0,
        gap=31.0,
        branch="top",
        attempt=attempt,
        threshold_noise=SCALE,
        query_noise=SCALE,
        estimate=458.0 if certified else None,
        bound=432.0 if certified else None,
        beta=0.05,
        run=1,
        top=1,
        account=account(spent, 0.5),
        spec_hash="0" * 16,
    )
    return _on_the_topic(EventType.ALERT, f"{dataset}/item-{item}", content)


def lifecycle(kind: EventType, *, dataset: str, monitor: str, run: int, spent: float = 0.0):
    content = Lifecycle(
        dataset=dataset, monitor=monitor, run=run, reason="cutoff", account=account(spent, 0.5)
    )
    return _on_the_topic(kind, dataset, content)


def _on_the_topic(kind, subject, content):
    event = ReleasedEvent(type=kind, id="e", sequence=1, subject=subject, data=content)
    return decode(encode(event, application="demo", shard=0, time="2026-01-01T00:00:00Z"))
