"""Fixtures of shards for the tests of groups and shards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from stream_svt.protocol.shard_states import ShardState
from tests.support.shard_play import Play


@pytest.fixture
async def played(monkeypatch) -> AsyncIterator[Callable[..., Play]]:
    """Start shards whose sessions end with the given endings; stop those still running after the test."""
    plays: list[Play] = []

    def play(*endings: object) -> Play:
        plays.append(Play(monkeypatch, *endings))
        return plays[-1]

    yield play
    for running in plays:
        if not running.shard.handed_over:
            await running.end()


@pytest.fixture
async def play(played) -> Play:
    """A shard whose session runs."""
    running: Play = played()
    await running.until(ShardState.RUNNING)
    return running
