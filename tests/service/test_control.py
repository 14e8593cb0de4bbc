"""Where commands go, and which events answer them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from stream_svt.errors import ConfigError
from stream_svt.monitor.commands import Action
from stream_svt.monitor.released import EventType
from stream_svt.service import control
from stream_svt.service.config import parse_config
from stream_svt.service.control import _reply_in, for_datasets, for_shards
from stream_svt.service.kafka import Cluster
from stream_svt.service.wire import home
from tests.support.alerts import alert, encoded, lifecycle

CONFIG_TEXT = """
application: shop
topics: {partitions: 5}
datasets: [{names: [today, tomorrow, later], limit: 4, unit: one basket}]
monitors:
  - {name: hot, topic: t, epsilon: 1, cutoff: 1, sensitivity: 1, bounds: [0, 9], threshold: 5, expected_queries: 9}
"""
CONFIG = parse_config(CONFIG_TEXT)


def test_a_command_goes_to_the_home_of_its_dataset():
    commands = for_datasets(CONFIG, Action.PAUSE, ["today", "later"], monitor="hot")
    assert [one.shard for one in commands] == [home(b"today", 5), home(b"later", 5)]
    assert [(one.command.action, one.command.dataset, one.command.monitor) for one in commands] == [
        (Action.PAUSE, "today", "hot"),
        (Action.PAUSE, "later", "hot"),
    ]
    assert len({one.command.id for one in commands}) == 2
    assert all(one.command.issued_by for one in commands)


def test_application_wide_commands_are_fanned_out():
    assert [one.shard for one in for_shards(CONFIG, Action.ACCEPT_LOSS, None)] == [0, 1, 2, 3, 4]
    assert [one.shard for one in for_shards(CONFIG, Action.ACCEPT_LOSS, [3])] == [3]


def test_what_is_not_declared_is_refused_before_anything_is_sent():
    with pytest.raises(ConfigError) as refused:
        for_datasets(CONFIG, Action.PAUSE, ["never", "today", "nor"], monitor="cold")
    assert str(refused.value).splitlines() == [
        "no dataset 'never' is declared in configuration. Declared: today, tomorrow, later",
        "no dataset 'nor' is declared in configuration. Declared: today, tomorrow, later",
        "no monitor 'cold' is declared in configuration. Declared: hot",
    ]
    with pytest.raises(ConfigError, match=r"no dataset 'todya' .*; did you mean 'today'\? Declared: "):
        for_datasets(CONFIG, Action.PAUSE, ["todya"])
    with pytest.raises(ConfigError, match="shards are 0 to 4"):
        for_shards(CONFIG, Action.ACCEPT_LOSS, [5])


def test_of_many_declared_names_some_are_listed():
    names = ", ".join(f"d{number:02}" for number in range(14))
    many = parse_config(
        f"""
application: shop
datasets: [{{names: [{names}], limit: 4, unit: one basket}}]
monitors:
  - {{name: hot, topic: t, epsilon: 1, cutoff: 1, sensitivity: 1, bounds: [0, 9], threshold: 5, expected_queries: 9}}
""",
        source="shop.yaml",
    )
    with pytest.raises(ConfigError) as refused:
        for_datasets(many, Action.PAUSE, ["x"])
    assert str(refused.value).endswith(" is declared in shop.yaml. Declared: " + names[:48] + " and 4 more")


def test_only_replies_answer():
    detail = {"command": "c1", "action": "pause", "message": "done"}
    reply = encoded(1, lifecycle("accepted", detail=detail), kind=EventType.COMMAND_REPLY)
    assert _reply_in(reply) == ("c1", True, "done")
    refused = encoded(1, lifecycle("refused", detail=detail), kind=EventType.COMMAND_REPLY)
    assert _reply_in(refused) == ("c1", False, "done")
    for other in (encoded(1, alert()), encoded(1, lifecycle("first")), b"?", None):
        assert _reply_in(other) is None


class Counted(str):  # noqa: SLOT000  it has none of its own
    """A name that counts how often it is compared or hashed."""

    looks = 0

    def __eq__(self, other: object) -> bool:
        Counted.looks += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        Counted.looks += 1
        return str.__hash__(self)


def test_all_datasets_take_as_many_looks_as_there_are_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 3_000
    text = CONFIG_TEXT.replace("today, tomorrow, later", ", ".join(f"d{number}" for number in range(count)))
    config = parse_config(text)
    monkeypatch.setattr(Counted, "looks", 0)
    commands = for_datasets(config, Action.PAUSE, [Counted(dataset.name) for dataset in config.spec.datasets])
    assert len(commands) == count
    assert Counted.looks <= 10 * count


class Producer:
    """A producer that counts how often somebody waits for the broker, and how much is on its way meanwhile."""

    def __init__(self) -> None:
        self.waits = self.on_the_way = self.most = 0

    async def send(self, topic: str, value: bytes, **where: Any) -> asyncio.Future[Any]:
        del topic, value, where
        self.on_the_way += 1
        self.most = max(self.most, self.on_the_way)
        stored = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.01, self._store, stored)
        return stored

    def _store(self, stored: asyncio.Future[Any]) -> None:
        self.waits += self.on_the_way > 0
        self.on_the_way = 0
        stored.set_result(SimpleNamespace(offset=1))


async def test_commands_travel_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round trip for each of many datasets would take minutes."""
    producer = Producer()

    @contextlib.asynccontextmanager
    async def made(*_: object) -> AsyncIterator[Producer]:
        yield producer

    monkeypatch.setattr(control, "_producer", made)
    names = ["today", "tomorrow", "later"] * (control.AT_ONCE // 2)
    await control._produce(Cluster({}), "control", for_datasets(CONFIG, Action.PAUSE, names))
    assert producer.most == control.AT_ONCE
    assert producer.waits == 2
