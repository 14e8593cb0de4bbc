"""The demo's queries for a service that runs elsewhere: how they are paced, and what they refuse."""

from __future__ import annotations

import asyncio

import pytest

from stream_svt.demo import feed
from stream_svt.demo.clock import Clock
from stream_svt.demo.config import Setting, yaml
from stream_svt.demo.data import LINES
from stream_svt.demo.feed import Metronome, run_feed
from stream_svt.errors import BrokerError, ConfigError
from stream_svt.service.config import Config, parse_config

OTHER = """
application: shop
datasets: [{name: a, limit: {epsilon: 4}, unit: one basket}]
monitors:
  - {name: hot, topic: counts, epsilon: 1, cutoff: 3, sensitivity: 1, bounds: [0, 9], threshold: 5,
  correction: none}
"""


def demo_config(directory, bootstrap: str = "127.0.0.1:1") -> Config:
    key = directory / "sealing.key"
    key.write_text("00" * 32)
    return parse_config(yaml(Setting(bootstrap=bootstrap, key_file=key), Clock(LINES)))


async def test_the_metronome_beats_at_once_and_then_every_so_often():
    metronome, loop = Metronome(0.05), asyncio.get_running_loop()
    began = loop.time()
    assert await metronome.may_send(0)
    assert loop.time() - began < 0.04
    for _ in range(3):
        assert await metronome.may_send(0)
    assert loop.time() - began >= 0.15


async def test_a_metronome_that_was_late_does_not_hurry_to_catch_up():
    metronome, loop = Metronome(0.05), asyncio.get_running_loop()
    assert await metronome.may_send(0)
    await asyncio.sleep(0.2)
    assert await metronome.may_send(0)
    again = loop.time()
    assert await metronome.may_send(0)
    assert loop.time() - again >= 0.04


async def test_a_stopped_metronome_lets_nobody_wait():
    metronome = Metronome(60.0)
    assert await metronome.may_send(0)
    waiting = asyncio.create_task(metronome.may_send(0))
    await asyncio.sleep(0)
    metronome.stop()
    async with asyncio.timeout(5):
        assert not await waiting
    assert not await metronome.may_send(0)


def test_a_configuration_of_something_else_is_refused_before_anything_connects():
    with pytest.raises(ConfigError, match="demo --show-config"):
        run_feed(parse_config(OTHER))


@pytest.mark.loopback
def test_brokers_that_do_not_answer_are_named(tmp_path):
    with pytest.raises(BrokerError, match="no broker can be reached"):
        run_feed(demo_config(tmp_path))


def test_what_is_said_depends_on_the_clock_alone(monkeypatch, tmp_path):
    async def no_brokers(config, cluster):
        del config, cluster

    async def produce(baskets, clock, *, kafka, topic, partitions, may_send, report):
        assert (kafka["bootstrap_servers"], topic, partitions) == (["127.0.0.1:1"], "retail-demo.counts", 4)
        for number, point in enumerate(clock.checkpoints(), start=1):
            if not await may_send(0):
                return
            report(feed.Progress(point.dataset, point.set_id, 16_470 * number, point.end))

    monkeypatch.setattr(feed, "require", no_brokers)
    monkeypatch.setattr(feed, "produce", produce)
    said: list[str] = []
    config = demo_config(tmp_path)
    assert run_feed(config, seconds=0, say=said.append, clock=Clock(LINES, every=14_700)) == 0
    assert said[0] == (
        "line 14,700 of 88,162: set line-14700 of retail-week-1 is closed, 16,470 queries so far"
    )
    assert len(said) == 6
