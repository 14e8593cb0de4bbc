"""Topics that were not made for this service: mapped JSON, and Avro by a Schema Registry, on a real broker."""

from __future__ import annotations

import json

import pytest

from stream_svt.errors import ConfigError
from stream_svt.operate.check import check_brokers
from stream_svt.operate.lint import sample
from stream_svt.protocol.shard_states import Cause, ShardState
from stream_svt.queries.avro.registry import NOT_CONFIGURED, SchemaRegistry
from stream_svt.worker.worker import WorkerState
from tests.support.avro import NESTED, Registry, encode
from tests.support.worker import HIGH, LOW, Scene, until

pytestmark = pytest.mark.kafka

JSON = "    record: {value: payload.count, series: payload.page}\n"
AVRO = "    record: {format: avro, value: payload.count, series: payload.page, id: meta.id}\n"


async def send(scene: Scene, *values: bytes, key: str = "a") -> None:
    for value in values:
        await scene.producer.send_and_wait(
            scene.queries, value, key=key.encode(), partition=scene.config().home(key)
        )


def event(value: int, name: str, number: int = 1) -> bytes:
    content = {"op": "c", "meta": {"id": name}, "payload": {"count": value, "page": "/home"}}
    return encode(NESTED, content, number)


async def test_json_records_with_other_fields_lead_to_an_alert_that_names_their_offset(scene):
    scene.more = JSON
    await scene.start()
    low = json.dumps({"op": "c", "payload": {"count": LOW, "page": "/home"}}).encode()
    high = json.dumps({"op": "c", "payload": {"count": HIGH, "page": "/home"}}).encode()
    await send(scene, low, b'{"payload":null}', high)
    [alert] = await scene.alerted()
    assert (alert.query_id, alert.series, alert.dataset) == ("2", "/home", "a")


async def test_an_avro_topic_waits_for_a_schema_visibly_and_holds_nobody_else(scene, caplog):
    other = scene.text().partition("monitors:\n")[2].replace("name: hot", "name: plain")
    other = other.replace(scene.queries, f"{scene.queries}.plain").partition("web:")[0]
    async with Registry({1: NESTED}).started() as server:
        scene.more = AVRO + other + f"schema_registry: {{url: '{server.url}'}}\n"
        await scene.create("counts.plain")
        worker = await scene.start()
        await send(scene, event(LOW, "q1"), event(HIGH, "q2"), event(HIGH, "q3", 2), event(HIGH, "q4"))
        [first] = await scene.alerted()
        assert (first.query_id, first.series) == ("q2", "/home")
        status = worker.statuses()[scene.config().home("a")]
        await until(lambda: status.cause is Cause.SCHEMA_MISSING)
        assert status.state is ShardState.RUNNING
        assert "waits at offset 2: schema 2 of the registry is missing: it does not know" in status.reason
        await scene.send("a", HIGH, topic=f"{scene.queries}.plain")
        assert [alert.monitor for alert in await scene.alerted(2)] == ["hot", "plain"]
        server.schemas[2] = NESTED
        found = await scene.alerted(4)
        assert [alert.query_id for alert in found if alert.monitor == "hot"] == ["q2", "q3", "q4"]
        await until(lambda: status.cause is Cause.NONE)
        assert server.asked.count(1) == 1


async def test_a_worker_that_cannot_read_avro_stays_outside_the_group(scene, monkeypatch):
    monkeypatch.setattr(SchemaRegistry, "lack", lambda *_: NOT_CONFIGURED)
    scene.more = AVRO + "schema_registry: {url: 'http://127.0.0.1:1'}\n"
    worker = await scene.start(ready=False)
    await until(lambda: worker.fault is not None)
    assert worker.state is WorkerState.OUTSIDE
    assert "no schema_registry.url" in worker.fault.reason


async def test_check_and_lint_read_avro_and_name_a_schema_that_the_registry_does_not_give(scene):
    async with Registry({1: NESTED}).started() as server:
        scene.more = AVRO + f"schema_registry: {{url: '{server.url}'}}\n"
        config = scene.config()
        await send(scene, event(LOW, "q1"), event(200_000, "q1"))
        [found] = (await sample(config, config.cluster(), 100)).values()
        assert set(found.found) == {"repeated", "outside the bounds [0, 100000]"}
        findings = await check_brokers(config, config.cluster())
        assert "schema_registry" not in {one.subject for one in findings}
        await send(scene, event(LOW, "q2", 5))
        with pytest.raises(ConfigError, match="schema 5 of the registry is missing"):
            await sample(config, config.cluster(), 100)
        [problem] = [
            one for one in await check_brokers(config, config.cluster()) if one.subject == "schema_registry"
        ]
        assert "it does not know the schema" in problem.message
