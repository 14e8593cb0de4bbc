"""Keys on a real broker: a sealing key is replaced, and signed commands are heard once, whoever owns the shard."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import pytest

from stream_svt.application.config import Config
from stream_svt.application.signatures import SigningKey, signing_key
from stream_svt.monitor.operations import Action
from stream_svt.monitor.released import EventType
from stream_svt.operate.check import check_brokers
from stream_svt.protocol.sealing import key_id
from stream_svt.protocol.shard_states import Cause
from stream_svt.web import ready, status
from stream_svt.worker.worker import Worker, WorkerState
from tests.support.keys import ed25519_pair, write_secrets
from tests.support.partitioning import partition_of
from tests.support.worker import HIGH, Scene, grown, until

pytestmark = pytest.mark.kafka
OLD, NEW = bytes(range(32)), bytes(range(1, 33))
SECRET = bytes(range(32)).hex()
KEYS = "control: {keys: [alice.pub, shared]}\n"


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
        reply = await self.scene.operate(action, dataset, key=key or self.alice)
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
        return [data.detail["action"] for data in await self.scene.told(EventType.COMMAND_REPLY)]

    async def answers(self) -> list[tuple[str, str]]:
        replies = await self.scene.told(EventType.COMMAND_REPLY)
        return [(data.reason, data.detail["message"]) for data in replies]

    async def until_heard(self, commands: list[str], refused: dict[str, int]) -> None:
        """Wait until just these commands are carried out, and just these refused."""

        async def done() -> bool:
            return (await self.heard(), await self.refused()) == (commands, refused)

        await until(done)


@pytest.fixture
async def guarded(scene: Scene) -> Guarded:
    """With a worker, of which each shard has said something."""
    scene.more = KEYS
    guarded = Guarded(scene)
    await scene.begun(0, of="abc")
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
    record, _ = [one for one in await scene.read("control") if one.value]
    await guarded.copy(record)
    await guarded.copy(record, partition=1 - record.partition)
    await scene.command("pause", "b", partition=partition_of(b"b", 2))
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


async def test_a_command_that_no_worker_came_to_in_time_expires_and_one_that_may_wait_is_withdrawn(
    guarded, stream_svt
):
    """Signed, and taken over: neither strikes later."""
    scene = guarded.scene
    file, signed = scene.write(more=KEYS), ("--signing-key", scene.directory / "alice.pem")

    async def told(*arguments: object) -> str:
        return (await stream_svt("control", *arguments, "--timeout", 2)).err

    await scene.stop(scene.workers[0])
    late = await told("close", "-c", file, "a", *signed)
    assert "it expires at" in late
    await scene.start()
    [(reason, _)] = await grown(guarded.answers, 1)
    assert reason == "expired"
    await scene.stop(scene.workers[-1])
    waits = await told("close", "-c", file, "a", "--expires", "7d", *signed)
    assert "takes it back before" in waits
    back = await told("withdraw", "-c", file, "a", *signed)
    assert "the withdrawal stays on the control topic" in back
    await scene.start()
    answers = await grown(guarded.answers, 2)
    assert answers[1] == ("accepted", "close of dataset 'a' is withdrawn, and changed nothing")
    assert EventType.RUN_CLOSED not in [event.type for event in await scene.events()]
    again = await told("withdraw", "-c", file, "a", *signed)
    assert "refused: no command waits: the last one, number 2 (withdraw), was carried out" in again


@pytest.fixture
def config(scene: Scene) -> Callable[[str], Config]:
    """Return configurations with these keys of ``sealing``."""
    write_secrets(scene.directory, {"old": OLD.hex(), "new": NEW.hex(), "third": bytes(32).hex()})
    return lambda sealing: scene.config(more=f"sealing: {{{sealing}}}\n")


async def test_the_old_key_may_go_once_status_shows_it_for_no_shard(scene: Scene, config) -> None:
    """And `check` says before a worker starts whether it could open what is stored."""
    old, new = key_id(OLD).hex(), key_id(NEW).hex()

    def shown(worker: Worker) -> set[str]:
        return {shard.key_id for shard in status(worker).shards}

    def spent(worker: Worker) -> dict[str, float]:
        return {view.dataset: view.spent for view in status(worker).datasets}

    async def started(sealing: str) -> Worker:
        worker = await scene.start(config(sealing))
        await until(lambda: all(shown(worker)))
        return worker

    async def checked(sealing: str) -> list[tuple[str, str]]:
        """Return what `check` says of the state."""

        async def said() -> list[tuple[str, str]]:
            found = await check_brokers(config(sealing), config(sealing).cluster())
            return [(one.level, one.message) for one in found if one.subject in {"state", "sealing.keys"}]

        return await grown(said, 1)  # topics that were made a moment ago may not be known yet

    async def fails(sealing: str) -> str:
        """Return why a worker stays out of the group: it has no key that opens the state."""
        worker = await scene.start(config(sealing), ready=False)
        assert worker.fault is not None
        assert worker.fault.cause is Cause.SEALING_KEY
        assert worker.statuses() == []
        assert worker.alive
        await scene.stop(worker)
        return worker.fault.reason

    assert await checked("keys: [old]") == [("ok", "nothing is stored yet")]
    opens = [("ok", "what 2 of 2 shards have stored opens with the configured keys")]
    worker = await started("keys: [old]")
    assert await checked("keys: [old]") == opens
    assert shown(worker) == {old}
    await scene.send("a", HIGH)
    await scene.settled(worker, 1)
    before = spent(worker)
    await scene.stop(worker)
    # Too early: nothing was rewritten yet, and nothing is touched.
    reason = await fails("keys: [new]")
    assert f"sealed with key {old}" in reason
    assert "an older key's file" in reason
    ((level, problem),) = await checked("keys: [new]")
    assert level == "problem"
    assert f"shards 0, 1 on topic '{scene.application}.state': it is sealed with key {old}" in problem
    both = "keys: [new, old]"
    assert await checked(both) == opens
    worker = await started(both)
    await until(lambda: shown(worker) == {new})
    await scene.stop(worker)
    # Outbox records that no longer count are left as they are.
    live = {place: value for place, value in (await scene.live()).items() if place[1][:3] != b"ob/"}
    assert {value[10:18].hex() for value in live.values()} == {new}
    worker = await started("keys: [new]")
    assert spent(worker) == before
    await scene.stop(worker)
    assert f"sealed with key {new}" in await fails("keys: [old]")


async def test_a_standby_whose_keys_do_not_open_every_state_is_not_ready_and_says_why(
    scene: Scene, config
) -> None:
    """A shard sealed with a newer key, one with the old key: the standby with both is ready, with one it is not."""
    both = config("keys: [new, old]")
    first = await scene.start(config("keys: [old]"))
    assert first.ready  # nothing is stored: no shard asks for a key
    for dataset in "abc":
        await scene.send(dataset, HIGH)
    await scene.settled(first, 3)
    second = await scene.start(both)
    await until(lambda: [len(one.statuses()) for one in (first, second)] == [1, 1])
    await until(lambda: second.ready)
    [newer] = [status.shard for status in second.statuses()]
    standby = await scene.start(config("keys: [old]"), ready=False)
    await until(lambda: standby.lacks != "")
    assert (standby.state, standby.statuses(), standby.ready) == (WorkerState.MEMBER, [], False)
    said = ready(standby)
    assert said.status == 503
    assert f"lacks the sealing key of shard {newer}: state record 'meta' of shard {newer} " in said.text
    assert f"sealed with key {key_id(NEW).hex()}, configured: {key_id(OLD).hex()}" in said.text
    assert status(standby).lacks in said.text
    foreign = await scene.start(config("keys: [third]"), ready=False)
    await until(lambda: foreign.fault is not None)
    assert (foreign.fault.cause, foreign.ready) == (Cause.SEALING_KEY, False)
    right, lost = [
        await scene.start(one, ready=False) for one in (both, config("keys: [old], key_lost: true"))
    ]
    await until(lambda: right.ready and lost.ready)
    assert (right.lacks, lost.lacks) == ("", "")
