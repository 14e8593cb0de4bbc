"""Signed commands on a real broker: heard once, whoever owns the shard; copies and unsigned ones never."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from stream_svt.monitor.commands import Action
from stream_svt.monitor.released import EventType
from stream_svt.service.codec import home
from stream_svt.service.config import parse_config
from stream_svt.service.control import Reply, for_datasets
from stream_svt.service.signatures import SigningKey, signing_key
from tests.support.command_line import CommandLine
from tests.support.keys import ed25519_pair, write_secrets
from tests.support.worker import Scene, give, until

pytestmark = pytest.mark.kafka
SECRET = bytes(range(32)).hex()
KEYS = "control: {public_key_files: [alice.pub], hmac_key_files: [shared]}\n"


class Guarded:
    """An application that hears signed commands only, and its operator."""

    def __init__(self, scene: Scene, directory: Path) -> None:
        private, public = ed25519_pair()
        write_secrets(directory, {"alice.pem": private, "alice.pub": public, "shared": SECRET})
        self.scene = scene
        self.directory = directory
        self.config = parse_config(scene.text() + KEYS, directory=directory)
        self.alice = signing_key(private)
        self.topic = f"{scene.application}.control"

    async def command(self, action: Action, dataset: str, key: SigningKey | None = None) -> Reply:
        commands = for_datasets(self.config, action, [dataset])
        (reply,) = await give(self.config, commands, patience=10, signing_key=key or self.alice)
        return reply

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

    async def until_refused(self, wanted: dict[str, int]) -> None:
        """Wait until just these are refused; a test fails that never sees it."""
        async with asyncio.timeout(30):
            while await self.refused() != wanted:
                await asyncio.sleep(0.1)

    async def heard(self) -> list[str]:
        events = await self.scene.events()
        return [
            data.detail["action"] for envelope, data in events if envelope.type == EventType.COMMAND_REPLY
        ]


@pytest.fixture
def guarded(scene: Scene, tmp_path: Path) -> Guarded:
    return Guarded(scene, tmp_path)


async def begun(guarded: Guarded):
    """Start a worker and have each shard say something."""
    worker = await guarded.scene.start(guarded.config)
    for dataset in "abc":
        await guarded.scene.send(dataset, 0)
    await guarded.scene.settled(worker, 3)
    return worker


async def test_a_signed_command_is_heard_once_and_its_copies_never_takeovers_included(
    guarded: Guarded,
) -> None:
    scene = guarded.scene
    worker = await begun(guarded)
    assert (await guarded.command(Action.PAUSE, "a")).accepted
    assert (await guarded.command(Action.RESUME, "a")).accepted
    record, _ = await guarded.scene.read("control")
    await guarded.copy(record)
    await guarded.copy(record, partition=1 - record.partition)
    await scene.command("pause", "b", partition=home(b"b", 2))
    await _settled(guarded, worker)
    assert await guarded.refused() == {
        "command-stale": 1,
        "command-bad-signature": 1,
        "command-unsigned": 1,
    }
    said = worker.metrics.text().decode()
    assert f',reason="command-stale",topic="{guarded.topic}"}} 1.0\n' in said
    for again in (2, 3):
        await scene.stop(worker)
        await guarded.copy(record)  # read by an owner that has never seen the first one
        worker = await scene.start(guarded.config)
        await _settled(guarded, worker)
        assert (await guarded.refused())["command-stale"] == again
    assert await guarded.heard() == ["pause", "resume"]
    shared = signing_key(SECRET)
    assert (await guarded.command(Action.PAUSE, "a", shared)).accepted
    assert await guarded.heard() == ["pause", "resume", "pause"]


async def test_a_copy_is_refused_where_topic_and_state_were_made_anew(guarded: Guarded) -> None:
    """Whoever may delete topics, and has no key, cannot give an old command a second time."""
    scene = guarded.scene
    worker = await begun(guarded)
    for action in (Action.PAUSE, Action.RESUME, Action.PAUSE):
        assert (await guarded.command(action, "a")).accepted
    old = await guarded.scene.read("control")
    # The last one names the last number with its own id: it is answered once more, and has no effect.
    stale = {"command-stale": 2}
    for anew, refused in (
        (["control"], stale),
        (["control", "state", "alerts"], stale | {"command-other-state": 3}),
    ):
        await scene.stop(worker)
        for topic in anew:
            await scene.make_anew(topic)
        worker = await scene.start(guarded.config)
        for record in old:
            await guarded.copy(record)
        await guarded.until_refused(refused)
    assert await guarded.heard() == []


async def _settled(guarded: Guarded, worker) -> None:
    """Wait until everything on the control topic has been heard or refused, durably."""
    wanted = len(await guarded.scene.read("control"))
    found = 0
    while found < wanted:
        await until(lambda: worker.ready)
        found = sum((await guarded.refused()).values()) + len(await guarded.heard())


async def test_the_command_line_signs_and_refuses_before_it_sends_what_no_shard_would_hear(
    guarded: Guarded, capfd
) -> None:
    await begun(guarded)
    path = guarded.directory / "shop.yaml"
    path.write_text(guarded.scene.text() + KEYS)
    stranger = guarded.directory / "mallory.pem"
    stranger.write_text(ed25519_pair()[0])

    async def pause(*more: object):
        return await asyncio.to_thread(CommandLine(capfd), "control", "pause", "-c", path, "a", *more)

    assert (await pause()).code == 2
    refused = await pause("--signing-key", stranger)
    assert (refused.code, "may not give commands here" in refused.err) == (2, True)
    assert await guarded.scene.read("control") == []
    paused = await pause("--signing-key", guarded.directory / "alice.pem")
    assert (paused.code, "a: accepted" in paused.out) == (0, True), paused
