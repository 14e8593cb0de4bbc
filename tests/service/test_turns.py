"""However many shards have work at hand, one does a piece of it in a round of the event loop."""

from __future__ import annotations

import asyncio

import pytest

from stream_svt.service.shard import CLOCK
from stream_svt.service.turns import rest
from stream_svt.service.worker import _give_way

SHARDS, PIECES = 64, 5


@pytest.mark.parametrize("wait", [lambda: CLOCK.sleep(0), _give_way], ids=["session", "journal"])
async def test_one_piece_is_done_in_a_round_and_every_shard_gets_its_turn(wait) -> None:
    rounds: list[list[int]] = [[]]
    ended = asyncio.Event()

    async def count() -> None:
        while not ended.is_set():
            rounds.append([])
            await asyncio.sleep(0)

    async def work(shard: int) -> None:
        for _ in range(PIECES):
            await wait()
            rounds[-1].append(shard)

    counting = asyncio.create_task(count())
    await asyncio.gather(*(work(shard) for shard in range(SHARDS)))
    ended.set()
    await counting
    assert max(map(len, rounds)) == 1
    done = [shard for one in rounds for shard in one]
    assert done == PIECES * list(range(SHARDS))  # in turn: none waits longer than the others


async def test_who_is_told_to_stop_while_it_waits_takes_nobodys_turn() -> None:
    done: list[int] = []

    async def work(shard: int) -> None:
        await rest(0)
        done.append(shard)

    tasks = [asyncio.create_task(work(shard)) for shard in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert done == [0, 3]


async def test_a_time_is_slept() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await rest(0.05)
    assert loop.time() - began >= 0.05
