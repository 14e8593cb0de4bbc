"""On a real broker, a query stamped far ahead parks its shard, which goes on by itself or once the query is gone."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from stream_svt.protocol.shard_states import OPEN, Cause
from stream_svt.protocol.tenure import FARTHEST_AHEAD
from stream_svt.service.config import parse_config
from stream_svt.service.wire import home
from tests.support.worker import HIGH, Scene, until

pytestmark = pytest.mark.kafka

BROKEN = 0


async def test_a_query_stamped_far_ahead_parks_its_shard_until_the_clock_has_caught_up_or_it_is_gone(
    broker, topics
) -> None:
    scene = Scene(broker.bootstrap_servers, topics.name("shop"), datasets=", ".join("abcdef"))
    homes = {home(name.encode(), scene.partitions): name for name in "abcdef"}
    early, other = homes[BROKEN], homes[1 - BROKEN]

    async def stamped_ahead(seconds: float) -> None:
        query = json.dumps({"id": "early", "value": HIGH, "series": f"s{seconds}"}).encode()
        at = int((time.time() + seconds) * 1000)
        await scene.producer.send_and_wait(scene.queries, query, key=early.encode(), timestamp_ms=at)

    async with scene.on_stage():
        worker = await scene.start(
            parse_config(scene.text().replace("mute: none", "mute: 1h"), directory=Path())
        )
        # The producer stands in for a broker whose clock is wrong; the check at a worker's start excludes it.
        await scene.configure("counts", {"message.timestamp.type": "CreateTime"})
        await scene.send(early, HIGH)
        await scene.settled(worker, 1)
        await stamped_ahead(FARTHEST_AHEAD + 5)
        (status,) = scene.statuses(BROKEN)
        await until(lambda: status.cause is Cause.TIMESTAMP_AHEAD)
        assert f"the record at offset 1 of '{scene.queries}' is stamped 60" in status.reason
        await scene.send(other, HIGH)
        await until(lambda: sum(scene.statuses(1 - BROKEN)[0].offsets.values()) == 1)
        await until(lambda: status.state in OPEN, 60)
        await scene.settled(worker, 3)
        assert len(await scene.alerts()) == 3

        await stamped_ahead(3_000)
        await until(lambda: status.cause is Cause.TIMESTAMP_AHEAD)
        await scene.delete_before("counts", 3)
        await scene.command("resume", partition=BROKEN, dataset=early)  # any command has it look at once
        await until(lambda: status.cause is Cause.RECORDS_LOST, 90)
        await scene.accept_losses(BROKEN)
        await until(lambda: status.state in OPEN)
        await scene.send(early, HIGH)
        await scene.settled(worker, 5)
        assert [alert.position.offset for alert in await scene.alerts() if alert.dataset == early] == [
            0,
            1,
            3,
        ]
