"""Group membership: assignments, revocations, errors of the client, and the division of shards."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from aiokafka.errors import GroupAuthorizationFailedError, KafkaConnectionError, KafkaError

from stream_svt.errors import ConfigError
from stream_svt.kafka import clients as kafka
from stream_svt.kafka.clients import BrokerUnavailable, Denied, Fenced
from stream_svt.protocol.shard_states import ShardState
from stream_svt.worker import group as module
from stream_svt.worker.group import STOP_TIMEOUT, StickyAssignor, share
from tests.support.scripted_shard import CONTROL, Member, ScriptedGroup, hang, watched
from tests.support.worker import until


async def test_a_worker_that_leaves_while_a_late_shard_is_cancelled_reports_no_error(monkeypatch) -> None:
    play = ScriptedGroup(monkeypatch)
    await play.assign(0)
    play.made[0].in_time = False
    revoked = asyncio.create_task(play.revoke())
    await asyncio.sleep(0)  # the shard is asked to pause
    await play.group.stop()
    await revoked
    assert play.fatal == []


async def test_a_shard_that_does_not_pause_in_time_is_cancelled_and_opened_again(monkeypatch) -> None:
    play = ScriptedGroup(monkeypatch)
    await play.assign(0, 1)
    assert play.consumer.paused == {TopicPartition(CONTROL, 0), TopicPartition(CONTROL, 1)}
    late, other = play.made
    late.in_time = False
    await play.revoke()
    await play.assign(0, 1)
    await asyncio.sleep(0)
    assert "release" not in late.calls
    assert "stop 0" in late.calls
    assert other.calls == ["hold", "release"]
    assert [shard.number for shard in play.made] == [0, 1, 0]
    assert play.group.shards == {0: play.made[2], 1: other}
    assert play.fatal == []


async def test_a_worker_that_stops_while_its_shards_are_paused_ends_all_of_them(monkeypatch) -> None:
    play = ScriptedGroup(monkeypatch)
    await play.assign(0, 1)
    await play.revoke()
    await play.group.stop()
    assert all(shard.calls[-1] == f"stop {STOP_TIMEOUT:g}" for shard in play.made)
    await play.assign(0, 1)
    assert len(play.made) == 2
    assert play.fatal == []


async def test_a_worker_leaves_its_group_after_an_error_of_a_shard(monkeypatch) -> None:
    play = ScriptedGroup(monkeypatch)
    await play.assign(0)
    left: list[object] = []

    async def stop(seconds: float) -> None:
        raise ValueError

    async def stop_quietly(consumer: Member, seconds: float) -> None:
        left.append(consumer)

    monkeypatch.setattr(play.made[0], "stop", stop)
    monkeypatch.setattr(kafka, "stop_quietly", stop_quietly)
    with pytest.raises(ValueError):
        await play.group.stop()
    assert left == [play.consumer]


async def test_a_worker_without_an_assignment_has_not_joined(monkeypatch) -> None:
    """A worker whose brokers are unreachable owns nothing and must not count as a standby, which is ready."""
    play = ScriptedGroup(monkeypatch)
    assert not play.group.joined
    await play.assign()
    assert play.group.joined
    assert play.group.shards == {}
    await play.revoke()
    assert not play.group.joined


async def test_a_control_topic_with_more_partitions_is_fatal(monkeypatch) -> None:
    play = ScriptedGroup(monkeypatch)
    play.consumer.topics[CONTROL].add(4)
    await play.assign(0, 4)
    (error,) = play.fatal
    assert isinstance(error, ConfigError)
    assert "topic 'control' has 5 partitions, topics.partitions says 4" in str(error)
    assert play.made == []


async def test_lag_of_topics_not_read_is_updated_and_again_after_any_error(monkeypatch, caplog) -> None:
    """Lag is known for paused topics and for shards not open, where the position is known."""
    failures: list[Exception] = [ValueError("value 4711")]

    async def spans(cluster, partitions, doing, isolation):
        if failures:
            raise failures.pop()
        if partitions[0].topic == "gone":
            raise BrokerUnavailable("x")
        return dict.fromkeys(partitions, (0, 50))

    monkeypatch.setattr(kafka, "spans", spans)
    monkeypatch.setattr(module, "LAG_INTERVAL", 0.01)
    play = ScriptedGroup(monkeypatch)
    await play.group.start()
    await play.assign(0, 1)
    for shard in play.made:
        shard.status.offsets = {"gone": 1, "counts": 20 + shard.number}
    await until(lambda: [shard.status.lag for shard in play.made] == [{"counts": 30}, {"counts": 29}])
    assert play.fatal == []
    assert "event=lag_unknown" in caplog.text
    assert "4711" not in caplog.text
    await play.group.stop()


class Coordinator:
    """The two tasks of aiokafka's coordinator; a test ends one."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._coordination_task, self._heartbeat_task = loop.create_future(), loop.create_future()
        self.errors: list[Exception] = []
        self.coordinator_id: int | None = 1

    def check_errors(self) -> None:
        if self.errors:
            raise self.errors.pop()


class Watched(ScriptedGroup):
    """A member whose watch runs every 10 milliseconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        monkeypatch.setattr(module, "WATCH_INTERVAL", 0.01)
        self.coordinator = self.consumer._coordinator = Coordinator()
        self.group._tasks = [asyncio.create_task(self.group._watch())]
        self.group._tasks[0].add_done_callback(self.group._report)


@pytest.mark.parametrize(
    ("task", "error", "kind"),
    [
        ("_heartbeat_task", KafkaError("UnknownError"), BrokerUnavailable),
        ("_heartbeat_task", ValueError("x"), BrokerUnavailable),
        ("_heartbeat_task", GroupAuthorizationFailedError("shop"), Denied),
        ("_coordination_task", KafkaError("Unexpected error during coordination"), BrokerUnavailable),
        ("_coordination_task", asyncio.CancelledError(), BrokerUnavailable),
    ],
    ids=repr,
)
async def test_a_membership_that_the_client_ended_is_reported(monkeypatch, task, error, kind):
    """The client does not join again by itself: a standby would stay ready, and shards would stay paused."""
    play = Watched(monkeypatch)
    ended = getattr(play.coordinator, task)
    ended.cancel() if isinstance(error, asyncio.CancelledError) else ended.set_exception(error)
    await until(lambda: bool(play.fatal))
    assert [type(error) for error in play.fatal] == [kind]
    assert "consumer group 'shop'" in str(play.fatal[0])


async def test_unreachable_brokers_and_a_heartbeat_during_a_rejoin_end_no_membership(monkeypatch) -> None:
    play = Watched(monkeypatch)
    play.coordinator.errors = [KafkaConnectionError("away")]
    play.coordinator._heartbeat_task.set_result(None)
    await asyncio.sleep(0.05)
    play.coordinator._heartbeat_task = None
    await asyncio.sleep(0.05)
    assert play.fatal == []
    await play.group.stop()


async def test_a_client_that_ends_because_the_worker_stops_is_not_reported(monkeypatch) -> None:
    play = Watched(monkeypatch)

    async def stop() -> None:
        play.coordinator._coordination_task.set_result(None)
        await asyncio.sleep(0.05)

    play.consumer.stop = stop
    await play.group.stop()
    assert play.fatal == []


@pytest.mark.parametrize("error", [Fenced("x"), BrokerUnavailable("x")], ids=repr)
async def test_a_shard_that_fails_to_prove_itself_is_opened_again(play, error: Exception) -> None:
    play.fenced = [error]
    await play.hold()
    play.shard.release()
    await until(lambda: play.opened == 2)
    await play.until(ShardState.RUNNING)
    assert play.shard.status.reason == ""


async def test_a_hand_over_that_takes_too_long_is_reported(play) -> None:
    play.hand_over = lambda: asyncio.sleep(1000)  # type: ignore[method-assign]
    assert not await play.shard.hold(0.05)
    await play.shard.stop(0.0)
    assert await play.shard.hold(0.05)


async def test_an_opening_shard_completes_the_opening_and_then_pauses(played) -> None:
    ready = asyncio.Event()
    play = played(ready.wait)
    await asyncio.sleep(0.02)
    await play.hold()  # it does not wait for the opening, which may take minutes
    ready.set()
    await play.until(ShardState.RUNNING)
    await asyncio.sleep(0.02)
    assert play.kept == 0
    play.shard.release()
    await until(lambda: play.kept)
    assert (play.kept, play.opened) == (1, 1)


async def test_an_opening_shard_that_moves_to_another_worker_ends(played) -> None:
    play = played(hang)
    await asyncio.sleep(0.02)
    await play.hold()
    async with asyncio.timeout(2):
        await play.shard.stop(0.05)
    assert play.shard._task.done()


async def test_nothing_is_opened_during_a_rebalance(play) -> None:
    """A session opened then would fence the worker that got the shard meanwhile."""
    await play.hold()
    play.shard.configure()
    await asyncio.sleep(0.1)
    assert play.opened == 1
    play.shard.release()
    await until(lambda: play.opened == 2)
    await play.until(ShardState.RUNNING)


async def test_the_watchdog_does_not_restart_a_paused_shard(play, monkeypatch) -> None:
    await play.hold()
    play.shard.status.beat = 0.0
    async with watched(monkeypatch, play):
        await asyncio.sleep(0.3)
        assert play.opened == 1
        play.shard.release()
        await until(lambda: play.kept)
    assert (play.kept, play.opened) == (1, 1)


async def test_a_non_member_tries_again_once_it_is_assigned_the_partition(played) -> None:
    play = played(Fenced("x"))
    play.consumer.refuse = True
    await play.until(ShardState.NOT_MEMBER)
    await play.hold()
    play.consumer.refuse = False
    await asyncio.sleep(0.7)
    assert (play.consumer.commits, play.opened) == (1, 1)
    play.shard.release()
    await play.until(ShardState.RUNNING)
    assert (play.consumer.commits, play.opened) == (2, 2)


# Division of shards


def moved(before: dict[str, list[int]], after: dict[str, list[int]]) -> int:
    """Count the shards that moved although their worker is still a member."""
    owner = {shard: member for member, shards in before.items() for shard in shards}
    return sum(
        owner.get(shard) in after and owner[shard] != member
        for member, shards in after.items()
        for shard in shards
    )


def claims(given: dict[str, list[int]]) -> dict[str, dict[int, int]]:
    return {member: dict.fromkeys(shards, 1) for member, shards in given.items()}


def test_shard_counts_of_workers_differ_by_one_at_most() -> None:
    chance = random.Random(1)
    for _ in range(500):
        shards = range(chance.randint(0, 20))
        members = [f"m{number}" for number in range(chance.randint(1, 7))]
        held = {
            member: {chance.randrange(25): chance.randrange(9) for _ in range(chance.randint(0, 9))}
            for member in members
        }
        given = share(shards, held)
        assert sorted(shard for mine in given.values() for shard in mine) == list(shards)
        counts = [len(mine) for mine in given.values()]
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(("shards", "members"), [(4, 1), (64, 5), (7, 3), (8, 4), (3, 4)])
def test_a_joining_worker_gets_its_share_and_no_other_shard_moves(shards: int, members: int) -> None:
    before = share(range(shards), {f"m{number}": {} for number in range(members)})
    after = share(range(shards), {**claims(before), "a-new-one": {}})
    assert moved(before, after) == len(after["a-new-one"])
    assert len(after["a-new-one"]) in {shards // (members + 1), shards // (members + 1) + 1}


def test_only_the_shards_of_a_leaving_worker_move() -> None:
    before = share(range(64), {f"m{number}": {} for number in range(5)})
    left = {member: shards for member, shards in before.items() if member != "m2"}
    assert moved(left, share(range(64), claims(left))) == 0


def test_of_two_workers_that_hold_a_shard_the_one_with_more_transactions_keeps_it() -> None:
    assert share([0, 1], {"a-frozen": {0: 10, 1: 10}, "owner": {0: 12, 1: 12}, "c": {}}) == {
        "owner": [0],
        "a-frozen": [1],
        "c": [],
    }
    assert share([0, 1], {"owner": {0: 12}, "z-frozen": {0: 10}})["owner"] == [0]


@pytest.mark.parametrize(
    "held", [b"", b"x", b"[1]", b"null", b'[["a", 1]]', b"\xff", b"[[0, -5]]", b"[[-1, 5]]"]
)
def test_a_member_with_unreadable_user_data_holds_nothing(held: bytes) -> None:
    ours = StickyAssignor(lambda: {1: 5})
    members = {
        "odd": ConsumerProtocolMemberMetadata(0, ["control"], b'{"held": %s}' % held),
        "us": ConsumerProtocolMemberMetadata.decode(ours.metadata(["control"]).encode()),
    }
    cluster = SimpleNamespace(partitions_for_topic={"control": {0, 1}}.get)
    given = ours.assign(cluster, members)
    assert {member: assignment.assignment for member, assignment in given.items()} == {
        "us": [("control", [1])],
        "odd": [("control", [0])],
    }
