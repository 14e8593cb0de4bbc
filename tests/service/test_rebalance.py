"""A shard over a rebalance: it stands by and goes on, and whatever is unclear is opened anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiokafka.errors import IllegalStateError

from stream_svt.protocol.shard_states import State
from stream_svt.service.kafka import BrokerUnavailable, Fenced
from stream_svt.service.shard_feed import ShardFeed
from tests.service.test_shard_failures import Play
from tests.service.test_watchdog import watched


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def hold(play: Play) -> None:
    play.shard.hold()
    assert await play.shard.settle(2.0)


async def test_a_shard_that_stays_goes_on_and_is_not_opened_again(monkeypatch) -> None:
    play = Play(monkeypatch)
    await play.until(State.RUNNING)
    for round_ in range(1, 4):
        await hold(play)
        await asyncio.sleep(0.02)
        assert play.kept == round_ - 1
        play.shard.release()
        await until(lambda round_=round_: play.kept == round_)
    assert len(play.opened) == 1
    await play.end()


async def test_a_second_revocation_changes_nothing_for_who_stands_by(monkeypatch) -> None:
    play = Play(monkeypatch)
    await play.until(State.RUNNING)
    await hold(play)
    await hold(play)
    play.shard.release()
    await until(lambda: play.kept)
    assert (play.kept, len(play.opened)) == (1, 1)
    await play.end()


async def test_whoever_stands_by_ends_where_its_partition_went_elsewhere(monkeypatch) -> None:
    play = Play(monkeypatch)
    await play.until(State.RUNNING)
    await hold(play)
    await play.shard.stop(1.0)
    assert play.shard.status.state is State.STOPPED
    assert (play.kept, len(play.opened)) == (0, 1)


@pytest.mark.parametrize("error", [Fenced("x"), BrokerUnavailable("x"), IllegalStateError("x")], ids=repr)
async def test_a_shard_that_cannot_prove_itself_is_opened_anew(monkeypatch, error: Exception) -> None:
    play = Play(monkeypatch)
    play.fenced = [error]
    await play.until(State.RUNNING)
    await hold(play)
    play.shard.release()
    await until(lambda: len(play.opened) == 2)
    await play.until(State.RUNNING)
    assert play.shard.status.reason == ""
    await play.end()


async def test_a_hand_over_that_takes_too_long_is_told(monkeypatch) -> None:
    play = Play(monkeypatch)
    play.hand_over = lambda: asyncio.sleep(1000)  # type: ignore[method-assign]
    await play.until(State.RUNNING)
    play.shard.hold()
    assert not await play.shard.settle(0.05)
    await play.shard.stop(0.0)
    assert await play.shard.settle(0.05)


async def test_a_shard_that_is_being_opened_goes_on_and_stands_by_then(monkeypatch) -> None:
    ready = asyncio.Event()

    async def slowly() -> None:
        await ready.wait()

    play = Play(monkeypatch, slowly)
    await asyncio.sleep(0.02)
    await hold(play)  # it does not wait for the opening, which may take minutes
    ready.set()
    await play.until(State.RUNNING)
    await asyncio.sleep(0.02)
    assert play.kept == 0
    play.shard.release()
    await until(lambda: play.kept)
    assert (play.kept, len(play.opened)) == (1, 1)
    await play.end()


async def test_a_shard_that_is_being_opened_for_another_worker_ends(monkeypatch) -> None:
    async def slowly() -> None:
        await asyncio.sleep(1000)

    play = Play(monkeypatch, slowly)
    await asyncio.sleep(0.02)
    await hold(play)
    async with asyncio.timeout(2):
        await play.shard.stop(0.05)
    assert play.shard._task is not None
    assert play.shard._task.done()


async def test_nothing_is_opened_during_a_rebalance(monkeypatch) -> None:
    """Whoever opened then would fence the worker that got the shard meanwhile."""
    play = Play(monkeypatch)
    await play.until(State.RUNNING)
    await hold(play)
    play.shard.reload()
    await asyncio.sleep(0.1)
    assert len(play.opened) == 1
    play.shard.release()
    await until(lambda: len(play.opened) == 2)
    await play.until(State.RUNNING)
    await play.end()


async def test_a_shard_begins_where_an_earlier_one_of_this_worker_has_ended(monkeypatch) -> None:
    play = Play(monkeypatch)
    await play.until(State.RUNNING)
    await play.shard.stop(1.0)
    closing = asyncio.Event()
    earlier = Play(monkeypatch)
    earlier.hand_over = closing.wait  # type: ignore[assignment]
    await earlier.until(State.RUNNING)
    earlier.shard.hold()
    await asyncio.sleep(0.02)
    earlier.shard.halt()
    play.shard._handed_over = False
    play.shard.start(earlier.shard)
    await asyncio.sleep(0.05)
    assert len(play.opened) + len(earlier.opened) == 2
    closing.set()
    await earlier.end()
    await until(lambda: len(play.opened) + len(earlier.opened) == 3)
    await play.shard.stop(1.0)


async def test_the_watchdog_leaves_whoever_stands_by_alone(monkeypatch) -> None:
    play = Play(monkeypatch)
    await play.until(State.RUNNING)
    await hold(play)
    play.shard.status.beat = 0.0
    async with watched(monkeypatch, play):
        await asyncio.sleep(0.3)
        assert len(play.opened) == 1
        play.shard.release()
        await until(lambda: play.kept)
    assert (play.kept, len(play.opened)) == (1, 1)
    await play.end()


async def test_a_stranger_tries_again_once_the_group_gave_it_the_partition(monkeypatch) -> None:
    play = Play(monkeypatch, Fenced("x"))
    play.consumer.refuse = True
    await play.until(State.NOT_MEMBER)
    await hold(play)
    play.consumer.refuse = False
    await asyncio.sleep(0.7)
    assert (play.consumer.commits, len(play.opened)) == (1, 1)
    play.shard.release()
    await play.until(State.RUNNING)
    assert (play.consumer.commits, len(play.opened)) == (2, 2)
    await play.end()


async def test_a_shard_that_ended_knows_where_it_read_commands(monkeypatch) -> None:
    """Its worker takes its sign of life back there, or the next one would wait for it."""
    play = Play(monkeypatch)
    await play.until(State.RUNNING)
    assert play.shard.commands_next is None
    assert play.shard._reader is not None
    ShardFeed.seek(play.shard._reader, "control", 9)
    await play.shard.stop(1.0)
    assert play.shard._reader is None
    assert play.shard.commands_next == 9
