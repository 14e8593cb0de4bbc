"""Neighbouring datasets with the same released outcomes look the same, and services that leak do not."""

from __future__ import annotations

import logging

import pytest

from stream_svt.monitor.engine import Engine
from tests.soak.taint import AlignedEngine, pair, play


def test_an_outsider_cannot_tell_neighbours_apart_that_released_the_same() -> None:
    found = play(3)
    assert found.violations == []
    assert found.count == 3


def leaking(change):
    def wrap(base):
        return type("Leaking", (base,), {"step": lambda self, batch: change(self, batch, base.step)})

    return wrap(Engine), wrap(AlignedEngine)


def logs_a_value(engine, batch, step):
    logging.getLogger("stream_svt.leak").debug("largest value %d", batch.whole.max(initial=0))
    return step(engine, batch)


def commits_early_on_large_values(engine, batch, step):
    done = step(engine, batch)
    return type(done)(done.done, done.durable_first, done.urgent or bool(batch.whole.sum() % 2))


def refuses_by_value(engine, batch, step):
    refused = {offset for offset, _ in batch.rejects}
    if len(batch) and batch.whole[0] % 2 and batch.first not in refused:  # once, as decoders do
        batch.rejects.insert(0, (batch.first, "not-json"))
    return step(engine, batch)


@pytest.mark.parametrize("change", [logs_a_value, commits_early_on_large_values, refuses_by_value])
def test_a_service_that_leaks_is_caught(change) -> None:
    assert any(pair(seed, leaking(change))[1] for seed in range(3))


def test_noise_that_is_not_aligned_releases_something_else() -> None:
    """The pairs are what the alignment makes them: with the noise left alone the outcomes differ."""

    class Unmoved(AlignedEngine):
        def draw(self, runner, draw, *test):
            return draw(*test)

    assert any(pair(seed, (Engine, Unmoved))[1] for seed in range(3))
