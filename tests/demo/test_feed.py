"""The demo's queries for a service that runs elsewhere: how they are paced, and what they refuse."""

from __future__ import annotations

import pytest

from stream_svt.demo import feed
from stream_svt.demo.clock import Clock
from stream_svt.demo.config import Setting, yaml
from stream_svt.demo.data import LINES
from stream_svt.demo.feed import run_feed
from stream_svt.demo.producer import Progress
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


def test_a_configuration_of_something_else_is_refused_before_anything_connects():
    with pytest.raises(ConfigError, match="demo --show-config"):
        run_feed(parse_config(OTHER))


@pytest.mark.loopback
def test_brokers_that_do_not_answer_are_named(tmp_path):
    with pytest.raises(BrokerError, match="no broker can be reached"):
        run_feed(demo_config(tmp_path))


def test_what_is_said_and_when_depends_on_the_clock_alone(monkeypatch, tmp_path):
    async def no_brokers(config, cluster):
        del config, cluster

    async def produce(baskets, clock, *, kafka, topic, partitions):
        assert (kafka["bootstrap_servers"], topic, partitions) == (["127.0.0.1:1"], "retail-demo.counts", 4)
        for number, point in enumerate(clock.checkpoints(), start=1):
            yield Progress(point.dataset, point.set_id, 16_470 * number, point.end)

    monkeypatch.setattr(feed, "require", no_brokers)
    monkeypatch.setattr(feed, "produce", produce)
    said: list[str] = []
    config = demo_config(tmp_path)
    assert run_feed(config, seconds=0, say=said.append, clock=Clock(LINES, every=14_700)) == 0
    assert said[0] == (
        "line 14,700 of 88,162: set line-14700 of retail-week-1 is closed, 16,470 queries so far"
    )
    assert len(said) == 6
    said.clear()
    assert run_feed(config, seconds=0.2, duration=0.5, say=said.append, clock=Clock(LINES)) == 0
    assert 1 <= len(said) <= 3
