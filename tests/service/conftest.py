"""What several suites of the service share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from stream_svt.protocol.shard_states import ShardState
from tests.support.shard_play import Play


@pytest.fixture
async def played(monkeypatch) -> AsyncIterator[Callable[..., Play]]:
    """Begin a shard whose sessions end as the arguments say; one that no test has stopped ends in order."""
    plays: list[Play] = []

    def play(*endings: object) -> Play:
        plays.append(Play(monkeypatch, *endings))
        return plays[-1]

    yield play
    for one in plays:
        if not one.shard.handed_over:
            await one.end()


@pytest.fixture
async def play(played) -> Play:
    """A shard that runs."""
    running: Play = played()
    await running.until(ShardState.RUNNING)
    return running
