"""Turns of shards on an event loop, and who goes ahead of them."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from stream_svt.worker import event_loop
from stream_svt.worker.event_loop import ahead, pause


async def turns(of: list[str], name: str) -> None:
    for _ in range(3):
        await pause()
        of.append(name)


async def is_waited_for(found: list[str]) -> bool:
    """Tell whether another shard has no turn while this one releases."""
    before = len(found)
    with ahead():
        other = asyncio.create_task(turns(found, "other"))
        for _ in range(20):
            await asyncio.sleep(0)
        waits = len(found) == before
    await other
    return waits


async def test_no_other_shard_has_a_turn_while_one_is_ahead_and_each_has_its_own_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_loop, "LONGEST_AHEAD", 3600.0)
    found: list[str] = []
    with ahead():
        others = [asyncio.create_task(turns(found, name)) for name in "ab"]
        await turns(found, "ahead")
        for _ in range(20):
            await asyncio.sleep(0)
        assert found == ["ahead"] * 3
    await asyncio.gather(*others)
    assert found[3:] == ["a", "b"] * 3


async def test_the_last_of_those_that_are_ahead_lets_the_others_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "LONGEST_AHEAD", 3600.0)
    found: list[str] = []
    ends = [asyncio.Event(), asyncio.Event()]

    async def stay(end: asyncio.Event) -> None:
        with ahead():
            await end.wait()

    staying = [asyncio.create_task(stay(end)) for end in ends]
    await asyncio.sleep(0)
    other = asyncio.create_task(turns(found, "a"))
    for end, task in zip(ends, staying, strict=True):
        assert not found
        end.set()
        await task
    await other


async def test_the_others_wait_for_a_bounded_time_and_have_as_long_before_they_wait_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(event_loop, "_now", lambda: now)
    found: list[str] = []
    with ahead():
        now += event_loop.LONGEST_AHEAD
        await asyncio.create_task(turns(found, "too long"))
    now += 0.9 * event_loop.LONGEST_AHEAD
    with ahead():
        await asyncio.create_task(turns(found, "too soon"))
    now += 0.2 * event_loop.LONGEST_AHEAD
    with ahead():
        other = asyncio.create_task(turns(found, "waits"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert found == ["too long"] * 3 + ["too soon"] * 3
    await other


async def test_shards_that_are_ahead_take_turns_and_a_round_of_the_loop_has_one_piece(monkeypatch):
    monkeypatch.setattr(event_loop, "LONGEST_AHEAD", 3600.0)
    rounds, pieces = 0, list[int]()

    async def count() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    async def release() -> None:
        with ahead():
            for _ in range(3):
                await pause()
                pieces.append(rounds)

    counting = asyncio.create_task(count())
    await asyncio.gather(*(release() for _ in range(64)))
    counting.cancel()
    assert len(set(pieces)) == len(pieces) == 3 * 64


async def test_a_shard_whose_brokers_are_slow_keeps_no_other_from_going_ahead(monkeypatch):
    now = 100.0
    monkeypatch.setattr(event_loop, "_now", lambda: now)
    found: list[str] = []
    with ahead():
        now += event_loop.LONGEST_AHEAD
        assert not await asyncio.create_task(is_waited_for(found))  # in the time of the others
        now += event_loop.LONGEST_AHEAD
        assert await asyncio.create_task(is_waited_for(found))


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError], ids=["error", "cancelled"])
async def test_a_failed_or_cancelled_release_lets_the_others_on(error, monkeypatch):
    monkeypatch.setattr(event_loop, "LONGEST_AHEAD", 3600.0)
    with pytest.raises(error), ahead():
        raise error
    await asyncio.wait_for(turns([], "other"), 60)


def test_an_event_loop_that_is_closed_is_freed_once_another_begins():
    async def contend() -> None:
        with ahead():
            others = [asyncio.create_task(turns([], name)) for name in "ab"]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await asyncio.gather(*others)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(contend())
    loop.close()
    freed = weakref.ref(loop)
    del loop
    asyncio.run(contend())
    gc.collect()
    assert freed() is None
