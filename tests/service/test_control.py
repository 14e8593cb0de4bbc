"""Where commands go, and which events answer them."""

from __future__ import annotations

import pytest

from stream_svt.errors import ConfigError
from stream_svt.monitor.commands import Action
from stream_svt.monitor.released import EventType
from stream_svt.service.config import parse_config
from stream_svt.service.control import _reply_in, for_datasets, for_shards
from stream_svt.service.wire import home
from tests.support.alerts import alert, encoded, lifecycle

CONFIG = parse_config(
    """
application: shop
topics: {partitions: 5}
datasets: [{names: [today, tomorrow, later], limit: 4, unit: one basket}]
monitors:
  - {name: hot, topic: t, epsilon: 1, cutoff: 1, sensitivity: 1, bounds: [0, 9], threshold: 5, expected_queries: 9}
"""
)


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
