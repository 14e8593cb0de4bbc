"""A shard over a rebalance: it stands by and goes on, and whatever is unclear is opened anew."""

from __future__ import annotations

import asyncio

import pytest

from stream_svt.protocol.shard_states import State
from stream_svt.service.kafka import BrokerUnavailable, Fenced
from tests.service.test_watchdog import hang, watched
from tests.support.worker import until


async def test_a_shard_that_stays_goes_on_and_is_not_opened_again(play) -> None:
    for round_ in range(1, 4):
        for _ in range(round_):  # a second revocation changes nothing for who stands by
            await play.hold()
        await asyncio.sleep(0.02)
        assert play.kept == round_ - 1
        play.shard.release()
        await until(lambda round_=round_: play.kept == round_)
    assert play.opened == 1


async def test_whoever_stands_by_ends_where_its_partition_went_elsewhere(play) -> None:
    await play.hold()
    await play.shard.stop(1.0)
    assert play.shard.status.state is State.STOPPED
    assert (play.kept, play.opened) == (0, 1)


@pytest.mark.parametrize("error", [Fenced("x"), BrokerUnavailable("x")], ids=repr)
async def test_a_shard_that_cannot_prove_itself_is_opened_anew(play, error: Exception) -> None:
    play.fenced = [error]
    await play.hold()
    play.shard.release()
    await until(lambda: play.opened == 2)
    await play.until(State.RUNNING)
    assert play.shard.status.reason == ""


async def test_a_hand_over_that_takes_too_long_is_told(play) -> None:
    play.hand_over = lambda: asyncio.sleep(1000)  # type: ignore[method-assign]
    play.shard.hold()
    assert not await play.shard.settle(0.05)
    await play.shard.stop(0.0)
    assert await play.shard.settle(0.05)


async def test_a_shard_that_is_being_opened_goes_on_and_stands_by_then(played) -> None:
    ready = asyncio.Event()

    play = played(ready.wait)
    await asyncio.sleep(0.02)
    await play.hold()  # it does not wait for the opening, which may take minutes
    ready.set()
    await play.until(State.RUNNING)
    await asyncio.sleep(0.02)
    assert play.kept == 0
    play.shard.release()
    await until(lambda: play.kept)
    assert (play.kept, play.opened) == (1, 1)


async def test_a_shard_that_is_being_opened_for_another_worker_ends(played) -> None:
    play = played(hang)
    await asyncio.sleep(0.02)
    await play.hold()
    async with asyncio.timeout(2):
        await play.shard.stop(0.05)
    assert play.shard._task is not None
    assert play.shard._task.done()


async def test_nothing_is_opened_during_a_rebalance(play) -> None:
    """Whoever opened then would fence the worker that got the shard meanwhile."""
    await play.hold()
    play.shard.configure()
    await asyncio.sleep(0.1)
    assert play.opened == 1
    play.shard.release()
    await until(lambda: play.opened == 2)
    await play.until(State.RUNNING)


async def test_the_watchdog_leaves_whoever_stands_by_alone(play, monkeypatch) -> None:
    await play.hold()
    play.shard.status.beat = 0.0
    async with watched(monkeypatch, play):
        await asyncio.sleep(0.3)
        assert play.opened == 1
        play.shard.release()
        await until(lambda: play.kept)
    assert (play.kept, play.opened) == (1, 1)


async def test_a_stranger_tries_again_once_the_group_gave_it_the_partition(played) -> None:
    play = played(Fenced("x"))
    play.consumer.refuse = True
    await play.until(State.NOT_MEMBER)
    await play.hold()
    play.consumer.refuse = False
    await asyncio.sleep(0.7)
    assert (play.consumer.commits, play.opened) == (1, 1)
    play.shard.release()
    await play.until(State.RUNNING)
    assert (play.consumer.commits, play.opened) == (2, 2)
