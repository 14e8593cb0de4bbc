"""Datasets without an end on a real broker: a day opens, is over, and never opens again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from stream_svt.monitor.datasets import DAY_MS
from stream_svt.monitor.released import EventType, Lifecycle
from stream_svt.protocol import tenure
from stream_svt.protocol.shard_states import Cause, State
from stream_svt.service.audit import audit_state
from stream_svt.service.config import parse_config
from stream_svt.service.worker import cluster_of
from tests.support.worker import HIGH, Scene, is_open, until

pytestmark = pytest.mark.kafka


def _day(later: int = 0) -> str:
    return (datetime.now(UTC) + timedelta(days=later)).date().isoformat()


async def test_a_day_opens_with_its_first_query_is_over_and_never_opens_again(
    scene: Scene, monkeypatch
) -> None:
    old = f"datasets:\n  - names: [{scene.datasets}]\n"
    new = (
        f"datasets:\n  - generate: '{{name}}-{{date}}'\n    names: [north, south]\n    from: {_day(-2)}\n"
        "    lateness: 1h\n"
    )
    text = scene.text()
    assert old in text
    config = parse_config(text.replace(old, new), directory=Path())
    worker = await scene.start(config)
    assert worker.status()["datasets_declared"] == 2 * (1 + (datetime.now(UTC).hour < 1))

    today, north = f"south-{_day()}", f"north-{_day()}"
    await scene.send(today, HIGH)
    await scene.send(north, 0)
    await scene.send(f"south-{_day(1)}", HIGH)
    await scene.send(f"east-{_day()}", HIGH)
    await scene.released(EventType.ALERT)
    rejects = [record.value for record in await scene.rejected(2)]
    assert sorted(b"outside-period" in value for value in rejects) == [False, True]
    assert any(b"undeclared" in value for value in rejects)
    assert [alert.dataset for alert in await scene.alerts()] == [today]
    stored = await scene.live()
    assert {key for _, key in stored if key.startswith(b"d/")} == {
        f"d/{name}".encode() for name in (today, north)
    }

    # Two days go by: no record comes, and the shards' monitors have read all there are.
    monkeypatch.setattr(tenure, "IDLE_MARGIN", -3 * DAY_MS / 1000)
    workload = worker.workload
    await worker.advance_periods()
    assert worker.workload is workload, "it is the same day"
    for _ in range(2):
        before = worker.workload
        object.__setattr__(before, "now_ms", before.now_ms - 2 * DAY_MS)
        await worker.advance_periods()
        assert worker.workload is not before
        await until(lambda: is_open(worker))
    await scene.released(EventType.RETIRED, 2)
    ended = [
        (data.dataset, data.reason)
        for envelope, data in await scene.events()
        if isinstance(data, Lifecycle) and envelope.type == EventType.RETIRED
    ]
    assert sorted(ended) == [(north, "period-over"), (today, "period-over")]
    assert not [key for _, key in await scene.live() if key.startswith((b"d/", b"r/"))]

    await scene.send(today, HIGH)
    await scene.rejected(3)
    longer = parse_config(text.replace(old, new).replace("lateness: 1h", "lateness: 30d"), directory=Path())
    await scene.apply(worker, longer)
    await until(lambda: is_open(worker))
    await scene.send(today, HIGH)
    assert b"undeclared" in (await scene.rejected(4))[-1].value
    assert len(await scene.alerts()) == 1
    await scene.settled(worker, 6)
    assert (await audit_state(config, cluster_of(config))).findings == []

    # Somebody declares the day by its name.
    plain = parse_config(text.replace(f"[{scene.datasets}]", f"[{today}]"), directory=Path())
    await scene.apply(worker, plain)
    await until(lambda: any(one.state is State.PARKED for one in worker.statuses()))
    [parked] = [one for one in worker.statuses() if one.state is State.PARKED]
    assert parked.cause is Cause.CONFIGURATION
    assert f"{today} has the name of a period that a generator made and that is over" in parked.reason
