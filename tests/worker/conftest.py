"""Fixtures of shards for the tests of groups and shards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from stream_svt.protocol.shard_states import ShardState
from tests.support.scripted_shard import ScriptedShard


@pytest.fixture
async def played(monkeypatch) -> AsyncIterator[Callable[..., ScriptedShard]]:
    """Start shards whose sessions end with the given endings; stop those still running after the test."""
    plays: list[ScriptedShard] = []

    def play(*endings: object) -> ScriptedShard:
        plays.append(ScriptedShard(monkeypatch, *endings))
        return plays[-1]

    yield play
    for running in plays:
        if not running.shard.handed_over:
            await running.end()


@pytest.fixture
async def play(played) -> ScriptedShard:
    """A shard whose session runs."""
    running: ScriptedShard = played()
    await running.until(ShardState.RUNNING)
    return running
