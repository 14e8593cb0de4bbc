"""`check` on a real broker: what it tries leaves no trace, and what it compares with the released events."""

from __future__ import annotations

import pytest

from stream_svt.operate.audit import audit_state
from stream_svt.subscription import subscribe
from stream_svt.worker.config_versions import propose, publish
from tests.support.sources import changed
from tests.support.topics import create_topics
from tests.support.worker import HIGH, Scene

pytestmark = pytest.mark.kafka


async def test_what_check_tries_is_seen_by_nobody_and_every_shard_opens_afterwards(scene, stream_svt):
    """Beside a worker, and while none runs; the newest state is still what the alerts name."""
    await scene.configure("alerts", {"retention.ms": "-1", "message.timestamp.type": "LogAppendTime"})
    worker = await scene.begun(HIGH, of="abc")
    file, topics = scene.write(), ("state", "alerts", "rejects")
    beside = await stream_svt("check", "-c", file)
    assert [line for line in beside.out.splitlines() if "FAIL" in line] == []
    assert (
        "compared with the newest events of 2 of 2 shards, accounts of 3 of 3 datasets: no difference"
        in beside.out
    )
    await scene.stop(worker)

    async def written() -> list:
        records = [record for topic in topics for record in await scene.read(topic, "read_uncommitted")]
        return sorted((one.topic, one.partition, one.offset, one.value or b"") for one in records)

    before = await written()
    idle = await stream_svt("check", "-c", file)
    assert (idle.code, "FAIL" in idle.out) == (0, False), idle
    assert await written() == before
    config = scene.config()
    assert (await audit_state(config, config.cluster())).balances
    async with subscribe(
        bootstrap_servers=scene.servers, topic=f"{scene.application}.alerts", from_beginning=True
    ) as alerts:
        events = aiter(alerts)
        assert {(await anext(events)).data.dataset for _ in range(3)} == {"a", "b", "c"}
    again = await scene.start()
    await scene.send("a", HIGH)
    await scene.settled(again, 4)
    assert len(await scene.alerts()) == 4


async def test_check_says_what_differs_from_the_released_events(scene: Scene, stream_svt) -> None:
    await scene.stop(await scene.begun(HIGH, of="abc"))
    file = scene.write()
    text = file.read_text()

    async def told(old: str, new: str) -> str:
        assert old in text
        file.write_text(text.replace(old, new))
        ended = await stream_svt("check", "-c", file)
        return ended.out

    larger = "{epsilon: 4}", "{epsilon: 9}"
    assert "FAIL datasets.limit: a declares epsilon 9, its ledger has 4, " in await told(*larger)
    file.write_text(text)
    config, brokers = scene.config(), scene.config().cluster()
    proposal = await propose(config, brokers)
    await publish(config, brokers, proposal.bundle, before=None)
    assert "FAIL datasets.a.limit: only an operator can raise a limit: run 'stream-svt" in await told(*larger)
    higher = await told("threshold: ", "threshold: 1")
    assert "note configuration: differs from version 1, which workers run: 'stream-svt apply -c " in higher
    file.write_text(text)
    assert "which workers run" not in (await stream_svt("check", "-c", file)).out
    renamed = await told("[a, b, c]", "[a, b, d]")
    assert "FAIL datasets" not in renamed
    assert (
        "note apply: - dataset c: permanently: no later version can declare the name again; open" in renamed
    )
    smaller = await told("sensitivity: 1", "sensitivity: 1/2")
    assert "was declared with sensitivity 1, and may still contain such answers" in smaller
    await scene.make_anew("state")
    file.write_text(text)
    lost = await stream_svt("check", "-c", file)
    assert lost.code == 2
    assert "FAIL topics.state: shard 0: nothing is stored, and alert partition 0 shows event " in lost.out


async def test_topics_of_sources_are_created_and_their_settings_are_checked(
    broker, topics, tmp_path, stream_svt
) -> None:
    """The raw topic is the user's: it is not created, and its timestamps and its retention are noted."""
    name = topics.name("web")
    raw = f"{name}.raw"
    file = tmp_path / "web.yaml"
    servers = ('bootstrap_servers: "127.0.0.1:9092"', f'bootstrap_servers: "{broker.bootstrap_servers}"')
    names = ("application: web", f"application: {name}"), ("topic: web.requests", f"topic: {raw}")
    file.write_text(changed(servers, *names))
    created = await stream_svt("check", "-c", file, "--create-topics")
    assert f"created '{name}.requests.counts' with 4 partitions" in created.out
    assert f"created '{name}.sources' with 8 partitions" in created.out
    [failed] = [line for line in created.out.splitlines() if "FAIL" in line]
    assert failed.startswith(f"FAIL sources.topic: topic '{raw}' does not exist, or this user may not see it")
    await create_topics(broker.bootstrap_servers, {raw: 3}, {"message.timestamp.type": "CreateTime"})
    noted = await stream_svt("check", "-c", file)
    assert (noted.code, "FAIL" in noted.out) == (0, False), noted
    assert f"note sources.topic: topic '{raw}' has timestamps of its producers" in noted.out
    assert "Source requests on topic" in noted.out
    applied = await stream_svt("apply", "-c", file, "--yes", "--wait", "0")
    assert applied.code == 0, applied
    assert "+ source requests on topic" in applied.out
    text = file.read_text()
    file.write_text(text.replace("window: 1h", "window: 30m"))
    refused = await stream_svt("apply", "-c", file, "--yes", "--wait", "0")
    assert refused.code == 2
    assert "sources.requests.window: decides counts and never changes" in refused.err
