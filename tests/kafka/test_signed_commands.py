"""Signed commands on a real broker: heard once, whoever owns the shard; copies and unsigned ones never."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from stream_svt.errors import BrokerError
from stream_svt.monitor.commands import Action
from stream_svt.monitor.released import EventType
from stream_svt.service import control
from stream_svt.service.config import Config, parse_config
from stream_svt.service.control import Reply, for_datasets, send
from stream_svt.service.signatures import SigningKey, signing_key
from stream_svt.service.wire import home
from stream_svt.service.worker import cluster_of
from tests.support.command_line import CommandLine
from tests.support.keys import ed25519_pair
from tests.support.worker import Scene, until

pytestmark = pytest.mark.kafka
SECRET = bytes(range(32)).hex()
KEYS = "control: {public_key_files: [alice.pub], hmac_key_files: [shared]}\n"


class Guarded:
    """An application that hears signed commands only, and its operator."""

    def __init__(self, scene: Scene, directory: Path) -> None:
        private, public = ed25519_pair()
        (directory / "alice.pem").write_text(private)
        (directory / "alice.pub").write_text(public)
        (directory / "shared").write_text(SECRET)
        (directory / "shared").chmod(0o600)
        self.scene = scene
        self.directory = directory
        self.alice = signing_key(private)
        self.topic = f"{scene.application}.control"

    def config(self) -> Config:
        return parse_config(self.scene.text() + KEYS, directory=self.directory)

    async def command(self, action: Action, dataset: str, key: SigningKey | None = None) -> Reply:
        config = self.config()
        (reply,) = await send(
            cluster_of(config),
            control=self.topic,
            alerts=config.topics.alerts,
            commands=for_datasets(config, action, [dataset]),
            patience=10,
            application=config.spec.application,
            signing_key=key or self.alice,
        )
        return reply

    async def records(self) -> list:
        return await self.scene.read("control")

    async def copy(self, record, partition: int | None = None) -> None:
        """Append a record once more, as whoever may write to the topic can."""
        await self.scene.producer.send_and_wait(
            self.topic,
            record.value,
            key=record.key,
            partition=record.partition if partition is None else partition,
            headers=list(record.headers),
        )

    async def refused(self) -> Counter[str]:
        found = [json.loads(record.value) for record in await self.scene.read("rejects")]
        return Counter(reject["reason"] for reject in found if reject["topic"] == self.topic)

    async def heard(self) -> list[str]:
        events = await self.scene.events()
        return [
            data.detail["action"] for envelope, data in events if envelope.type == EventType.COMMAND_REPLY
        ]


@pytest.fixture
async def guarded(broker, topics, tmp_path) -> AsyncIterator[Guarded]:
    async with Scene(broker.bootstrap_servers, topics.name("shop")).on_stage() as scene:
        yield Guarded(scene, tmp_path)


async def test_a_signed_command_is_heard_once_and_its_copies_never_takeovers_included(
    guarded: Guarded,
) -> None:
    scene = guarded.scene
    worker = await scene.start(guarded.config())
    reply = await guarded.command(Action.PAUSE, "a")
    assert reply.accepted, reply
    (record,) = await guarded.records()
    await guarded.copy(record)
    await guarded.copy(record, partition=1 - record.partition)
    await scene.command("pause", "b", partition=home(b"b", 2))
    await _settled(guarded, worker)
    assert await guarded.refused() == {
        "command-replayed": 1,
        "command-bad-signature": 1,
        "command-unsigned": 1,
    }
    said = worker.metrics.text().decode()
    assert f',reason="command-replayed",topic="{guarded.topic}"}} 1.0\n' in said
    for again in (2, 3):
        await scene.stop(worker)
        await guarded.copy(record)  # read by an owner that has never seen the first one
        worker = await scene.start(guarded.config())
        await _settled(guarded, worker)
        assert (await guarded.refused())["command-replayed"] == again
    assert await guarded.heard() == ["pause"]
    shared = signing_key(SECRET)
    assert (await guarded.command(Action.RESUME, "a", shared)).accepted
    assert await guarded.heard() == ["pause", "resume"]


async def test_a_copy_is_refused_where_topic_and_books_were_made_anew_and_offsets_fit_again(
    guarded: Guarded,
) -> None:
    """Whoever may delete topics, and has no key, cannot give an old command a second time."""
    scene = guarded.scene
    worker = await scene.start(guarded.config())
    for action in (Action.PAUSE, Action.RESUME, Action.PAUSE):
        assert (await guarded.command(action, "a")).accepted
    old = await guarded.records()
    partition = old[0].partition
    assert [record.offset for record in old] == [0, 1, 2]
    await scene.stop(worker)
    await scene.make_anew("control")
    worker = await scene.start(guarded.config())
    for record in old:
        await guarded.copy(record)
    await _refused_as_too_old(guarded, 3)
    await scene.stop(worker)
    await scene.make_anew("control")
    await scene.make_anew("state")
    await scene.make_anew("alerts")
    worker = await scene.start(guarded.config())
    for record in old:
        await guarded.copy(record)
    await until(lambda: worker.ready)
    await _refused_as_too_old(guarded, 6)
    assert await guarded.heard() == []
    assert (await guarded.command(Action.PAUSE, "a")).accepted
    assert (await guarded.records())[-1].partition == partition


async def _refused_as_too_old(guarded: Guarded, count: int) -> None:
    """Wait until so many commands are refused, all for their age; a test fails that never sees it."""
    async with asyncio.timeout(30):
        while (await guarded.refused()).total() < count:
            await asyncio.sleep(0.1)
    assert await guarded.refused() == {"command-too-old": count}


async def _settled(guarded: Guarded, worker) -> None:
    """Wait until everything on the control topic has been heard or refused, durably."""
    wanted = len(await guarded.records())
    found = 0
    while found < wanted:
        await until(lambda: worker.ready)
        found = sum((await guarded.refused()).values()) + len(await guarded.heard())


class Crowd(AIOKafkaProducer):
    """A producer that somebody else is always a little faster than, so many times."""

    ahead = 0

    async def send(self, topic, value=None, key=None, partition=None, *more, **others):
        if Crowd.ahead and value != b"noise":
            Crowd.ahead -= 1
            await self.send_and_wait(topic, b"noise", partition=partition)
        return await super().send(topic, value, key, partition, *more, **others)


async def test_a_command_whose_place_was_taken_is_signed_again_and_heard_once(
    guarded: Guarded, monkeypatch
) -> None:
    monkeypatch.setattr(control, "AIOKafkaProducer", Crowd)
    Crowd.ahead = 2
    worker = await guarded.scene.start(guarded.config())
    assert (await guarded.command(Action.PAUSE, "a")).accepted
    await _settled(guarded, worker)
    assert await guarded.heard() == ["pause"]
    assert await guarded.refused() == {"command-unsigned": 2, "command-replayed": 2}


async def test_many_signed_commands_travel_together_and_those_whose_places_were_taken_once_more(
    guarded: Guarded, monkeypatch
) -> None:
    """Somebody writes once in the middle: what comes behind it is signed again, and nothing is heard twice."""
    monkeypatch.setattr(control, "AIOKafkaProducer", Crowd)
    looks: list[int] = []
    whole = control._send_together

    async def counted(producer, topic, commands):
        looks.append(len(commands))
        if len(looks) == 1:
            first, *rest = commands
            stored = await whole(producer, topic, [first])
            Crowd.ahead = 1
            return stored + await whole(producer, topic, rest)
        return await whole(producer, topic, commands)

    monkeypatch.setattr(control, "_send_together", counted)
    monkeypatch.setattr(control, "AT_ONCE", 8)
    worker = await guarded.scene.start(guarded.config())
    config = guarded.config()
    replies = await send(
        cluster_of(config),
        control=guarded.topic,
        alerts=config.topics.alerts,
        commands=for_datasets(config, Action.CLOSE, ["a"] * 20),
        patience=20,
        application=config.spec.application,
        signing_key=guarded.alice,
    )
    assert len(replies) == 20
    assert all(reply.accepted is not None for reply in replies)
    await _settled(guarded, worker)
    assert looks == [8, 8, 8, 3]
    assert (await guarded.refused())["command-replayed"] == 7


async def test_an_operator_is_told_that_others_write_faster(guarded: Guarded, monkeypatch) -> None:
    monkeypatch.setattr(control, "AIOKafkaProducer", Crowd)
    Crowd.ahead = 100
    with pytest.raises(BrokerError, match="took the place of the signed command 5 times"):
        await guarded.command(Action.PAUSE, "a")
    Crowd.ahead = 0


async def test_the_command_line_signs_and_refuses_before_it_sends_what_no_shard_would_hear(
    guarded: Guarded, capfd
) -> None:
    await guarded.scene.start(guarded.config())
    path = guarded.directory / "shop.yaml"
    path.write_text(guarded.scene.text() + KEYS)
    stranger = guarded.directory / "mallory.pem"
    stranger.write_text(ed25519_pair()[0])

    async def pause(*more: object):
        return await asyncio.to_thread(CommandLine(capfd), "control", "pause", "-c", path, "a", *more)

    assert (await pause()).code == 2
    refused = await pause("--signing-key", stranger)
    assert (refused.code, "may not give commands here" in refused.err) == (2, True)
    assert await guarded.records() == []
    paused = await pause("--signing-key", guarded.directory / "alice.pem")
    assert (paused.code, "a: accepted" in paused.out) == (0, True), paused
