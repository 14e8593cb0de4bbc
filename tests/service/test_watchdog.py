"""Which shards the watchdog starts anew: those without a sign of life, and none that was handed over."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from stream_svt.protocol.shard_states import State
from stream_svt.service import group as groups
from stream_svt.service import shard as shards
from stream_svt.service.kafka import BrokerUnavailable, deadline
from stream_svt.service.worker import _give_way
from tests.service import test_group as groups_play
from tests.support.shard_play import Play

STUCK = 0.5


@contextlib.asynccontextmanager
async def watched(monkeypatch: pytest.MonkeyPatch, play: Play) -> AsyncIterator[None]:
    """Watch the shard, with the watchdog's patience cut to `STUCK`."""
    monkeypatch.setattr(groups, "STUCK", STUCK)
    monkeypatch.setattr(groups, "WATCH_INTERVAL", 0.05)
    made = groups_play.Play().group
    monkeypatch.setattr(made, "_check_client", lambda: None)
    made.shards[0] = play.shard
    watch = asyncio.create_task(made._watch())
    try:
        yield
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


async def hang() -> None:
    await asyncio.sleep(1000)


async def read_on() -> None:
    """Open for three times as long as the watchdog waits, one short call to the broker after another."""
    end = time.monotonic() + 3 * STUCK
    while time.monotonic() < end:
        async with deadline(1.0, "reading"):
            await asyncio.sleep(0.05)


async def verify() -> None:
    """Open for as long without any call to the broker, one piece of verifying after another."""
    end = time.monotonic() + 3 * STUCK
    while time.monotonic() < end:
        await _give_way()
        await asyncio.sleep(0.05)


async def test_a_shard_without_a_sign_of_life_is_started_anew(played, monkeypatch) -> None:
    play = played(hang)
    async with watched(monkeypatch, play):
        await play.until(State.RUNNING)
    assert play.opened == 2


@pytest.mark.parametrize("restore", [read_on, verify])
async def test_a_long_restore_that_moves_is_left_alone(played, monkeypatch, restore) -> None:
    play = played(restore)
    async with watched(monkeypatch, play):
        await play.until(State.RUNNING)
    assert play.opened == 1


async def test_brokers_that_stay_away_do_not_make_a_shard_stuck(played, monkeypatch, caplog) -> None:
    async def away() -> None:
        await asyncio.sleep(0.6 * STUCK)
        raise BrokerUnavailable("x")

    play = played(*[away] * 4)
    async with watched(monkeypatch, play):
        await play.until(State.RUNNING)
    assert play.opened == 5
    assert "shard_stuck" not in caplog.text


async def test_nothing_begins_after_a_hand_over_that_overtakes_a_restart(played) -> None:
    play = played(hang)
    # A producer whose brokers are away is given up after some seconds.
    play.make_journal = lambda number: SimpleNamespace(close=lambda: asyncio.sleep(0.2))
    await asyncio.sleep(0.05)
    assert play.opened == 1
    restart = asyncio.create_task(play.shard.restart())
    await asyncio.sleep(0.05)
    play.shard.halt()
    await play.shard.stop(5.0)
    await restart
    await asyncio.sleep(0.3)
    assert play.opened == 1
    assert [task for task in asyncio.all_tasks() if task.get_name() == "shard-0"] == []


async def test_a_shard_that_was_handed_over_is_not_started_anew(play, monkeypatch) -> None:
    await play.shard.stop(1.0)
    play.shard.status.beat = 0.0
    async with watched(monkeypatch, play):
        await asyncio.sleep(0.3)
    assert play.opened == 1


async def test_no_tenure_begins_beside_one_that_is_still_being_given_up(played, monkeypatch) -> None:
    monkeypatch.setattr(shards, "START_DEADLINE", 0.05)
    given_up = asyncio.Event()
    play = played(hang)
    play.make_journal = lambda number: SimpleNamespace(close=given_up.wait)
    await asyncio.sleep(0.05)
    assert play.opened == 1
    await play.shard.restart()
    assert play.opened == 1
    async with watched(monkeypatch, play):
        play.shard.status.beat = 0.0
        given_up.set()
        await play.until(State.RUNNING)
    assert play.opened == 2
