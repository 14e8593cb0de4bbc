"""Signed commands on a real broker: heard once, whoever owns the shard; copies and unsigned ones never."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from stream_svt.monitor.commands import Action
from stream_svt.monitor.released import EventType
from stream_svt.service.codec import home
from stream_svt.service.control import for_datasets
from stream_svt.service.signatures import SigningKey, signing_key
from stream_svt.service.worker import Worker
from tests.support.keys import ed25519_pair, write_secrets
from tests.support.worker import Scene, give

pytestmark = pytest.mark.kafka
SECRET = bytes(range(32)).hex()
KEYS = "control: {public_key_files: [alice.pub], hmac_key_files: [shared]}\n"


class Guarded:
    """An application that hears signed commands only, and its operator."""

    def __init__(self, scene: Scene) -> None:
        private, public = ed25519_pair()
        write_secrets(scene.directory, {"alice.pem": private, "alice.pub": public, "shared": SECRET})
        self.scene = scene
        self.alice = signing_key(private)
        self.topic = f"{scene.application}.control"

    async def command(self, action: Action, dataset: str, key: SigningKey | None = None) -> None:
        """Have a command accepted."""
        config = self.scene.config()
        commands = for_datasets(config, action, [dataset])
        (reply,) = await give(config, commands, patience=10, signing_key=key or self.alice)
        assert reply.accepted, reply

    async def copy(self, record, partition: int | None = None) -> None:
        """Append a record once more, as whoever may write to the topic can."""
        partition = record.partition if partition is None else partition
        await self.scene.producer.send_and_wait(
            self.topic, record.value, key=record.key, partition=partition, headers=list(record.headers)
        )

    async def refused(self) -> Counter[str]:
        found = [json.loads(record.value) for record in await self.scene.read("rejects")]
        return Counter(reject["reason"] for reject in found if reject["topic"] == self.topic)

    async def heard(self) -> list[str]:
        events = await self.scene.events()
        return [
            data.detail["action"] for envelope, data in events if envelope.type == EventType.COMMAND_REPLY
        ]

    async def until_heard(self, commands: list[str], refused: dict[str, int]) -> None:
        """Wait until just these commands are carried out, and just these refused."""
        async with asyncio.timeout(30):
            while (await self.heard(), await self.refused()) != (commands, refused):
                await asyncio.sleep(0.1)


@pytest.fixture
async def guarded(scene: Scene) -> Guarded:
    """With a worker, of which each shard has said something."""
    scene.more = KEYS
    guarded = Guarded(scene)
    worker = await scene.start()
    for dataset in "abc":
        await scene.send(dataset, 0)
    await scene.settled(worker, 3)
    return guarded


async def restarted(scene: Scene) -> Worker:
    await scene.stop(scene.workers[0])
    return await scene.start()


async def test_a_signed_command_is_heard_once_and_its_copies_never_takeovers_included(
    guarded: Guarded,
) -> None:
    scene = guarded.scene
    await guarded.command(Action.PAUSE, "a")
    await guarded.command(Action.RESUME, "a")
    record, _ = await scene.read("control")
    await guarded.copy(record)
    await guarded.copy(record, partition=1 - record.partition)
    await scene.command("pause", "b", partition=home(b"b", 2))
    refused = {"command-stale": 1, "command-bad-signature": 1, "command-unsigned": 1}
    await guarded.until_heard(["pause", "resume"], refused)
    said = scene.workers[0].metrics.rendering()().decode()
    assert f',reason="command-stale",topic="{guarded.topic}"}} 1.0\n' in said
    for again in (2, 3):
        await guarded.copy(record)  # read by an owner that has never seen the first one
        await restarted(scene)
        await guarded.until_heard(["pause", "resume"], refused | {"command-stale": again})
    await guarded.command(Action.PAUSE, "a", signing_key(SECRET))
    assert await guarded.heard() == ["pause", "resume", "pause"]
