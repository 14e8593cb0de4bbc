"""What the newest events show: bounded reading, the last word counts, and what differs is said."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest
from aiokafka import TopicPartition

from stream_svt.monitor.released import Account, EventType
from stream_svt.service import kafka
from stream_svt.service.comparison import Differs, behind, differences
from stream_svt.service.config import parse_config
from stream_svt.service.shown import ApplicationShown, ShardShown
from tests.service.test_metrics import SPEC
from tests.support.alerts import account_of, encoded, lifecycle
from tests.support.partition_reader import Reader

CONFIG = parse_config(SPEC + "topics: {partitions: 1}\n")


def event(
    number: int, dataset: str, spent: float, kind: EventType = EventType.RUN_STARTED, **detail: Any
) -> bytes:
    account = account_of(spent=spent) if dataset else None
    return encoded(number, lifecycle("first", dataset=dataset, account=account, detail=detail), kind=kind)


async def read(
    events: list[bytes | None], wanted: set[str], most: int = 10_000
) -> tuple[ApplicationShown, int]:
    shown, reader = ApplicationShown(), Reader(events)
    place = TopicPartition("alerts", 0)
    await kafka.newest(cast(Any, reader), place, shown.parser(0, wanted), "reading", max_lookback=most)
    return shown, reader.read


async def test_the_newest_account_of_each_dataset_counts_and_reading_ends_once_all_are_found() -> None:
    old = [event(number, "a", 0.1) for number in range(1, 9_001)]
    shown, count = await read([*old, event(9_001, "b", 0.5), event(9_002, "a", 0.7), None], {"a", "b"})
    assert {name: account.spent for name, account in shown.accounts.items()} == {"a": 0.7, "b": 0.5}
    assert count < 1_000
    assert (shown.shards[0].events, shown.shards[0].whole) == (9_002, False)


async def test_reading_is_bounded_where_a_dataset_has_no_event() -> None:
    shown, count = await read(
        [event(number, "a", 0.1) for number in range(1, 20_001)], {"a", "missing"}, 3_000
    )
    assert set(shown.accounts) == {"a"}
    assert count <= 3_000 + 256 + 1_000


async def test_records_that_are_no_events_or_of_another_shard_say_nothing() -> None:
    foreign = msgspec.json.encode(msgspec.json.decode(event(7, "a", 0.9)) | {"shard": 3})
    shown, _ = await read([b"?", foreign, event(1, "a", 0.1), b"{}"], {"a"})
    assert shown.accounts["a"].spent == 0.1
    assert shown.shards[0].whole


def told(**changes: Any) -> list[str]:
    shown = ApplicationShown(shards={0: ShardShown(events=9, state="5e")}, **changes)
    return [one.message for one in differences(CONFIG, shown, version=2)]


def account(limit: float, measure: str = "epsilon") -> Account:
    return msgspec.structs.replace(account_of(limit=limit), measure=measure)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accounts": {"a": account(4)}}, None),
        ({"accounts": {"a": account(5)}}, "a declares epsilon 4, its ledger has 5, 0.1 of it spent"),
        ({"accounts": {"a": account(4, "rho")}}, "a declares epsilon, its ledger is kept in rho"),
        ({"partitions": {1}}, None),
        ({"partitions": {4}}, "the application began with 4 partitions: a dataset would get a second ledger"),
        ({"topics": {"counts": {"sensitivity": "1", "monotonic": True}}}, None),
    ],
    ids=[
        "same limit",
        "another limit",
        "another measure",
        "same partitions",
        "more partitions",
        "same topic",
    ],
)
def test_a_declaration_that_differs_from_the_events_is_told(
    changes: dict[str, Any], message: str | None
) -> None:
    assert told(**changes) == ([] if message is None else [message])


def test_a_larger_sensitivity_that_was_declared_before_is_a_problem() -> None:
    topic = CONFIG.spec.monitors[0].topic
    shown = ApplicationShown(topics={topic: {"topic": topic, "sensitivity": "1000", "monotonic": False}})
    found = list(differences(CONFIG, shown, version=0))
    assert found[0] == Differs(
        "monitors[0].sensitivity",
        f"{CONFIG.spec.monitors[0].name} declares less than 1000, which topic {topic!r} was declared with",
        serious=True,
    )


@pytest.mark.parametrize(("version", "serious"), [(3, None), (4, False), (2, True), (0, True)])
def test_versions_that_shards_adopted_are_compared(version: int, serious: bool | None) -> None:
    found = list(
        differences(CONFIG, ApplicationShown(shards={0: ShardShown(events=9, version=3)}), version=version)
    )
    assert [one.serious for one in found] == ([] if serious is None else [serious])


def test_a_shard_with_events_and_without_state_would_park() -> None:
    shown = ApplicationShown(shards={0: ShardShown(events=9, state="5e"), 1: ShardShown()})
    (found,) = behind(CONFIG, "cluster", {}, shown)
    assert found.message == "shard 0: nothing is stored, and alert partition 0 shows event 9: it would park"
