"""What the newest events show: bounded reading, the last word counts, and what differs is said."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from aiokafka import TopicPartition

from stream_svt.application.config import parse_config
from stream_svt.application.facts import ApplicationFacts, ShardFacts
from stream_svt.kafka import clients as kafka
from stream_svt.monitor.released import Account, EventType
from stream_svt.operate.findings import behind, differences
from stream_svt.settings.monitors import Declared
from tests.support.alerts import account_of, encoded, lifecycle
from tests.support.partition_reader import Reader
from tests.support.shop import SPEC

CONFIG = parse_config(SPEC + "topics: {partitions: 1}\n")


def event(
    number: int, dataset: str, spent: float, kind: EventType = EventType.RUN_STARTED, **detail: Any
) -> bytes:
    account = account_of(spent=spent) if dataset else None
    return encoded(number, lifecycle("first", dataset=dataset, account=account, detail=detail), kind=kind)


async def read(
    events: list[bytes | None], wanted: set[str], most: int = 10_000
) -> tuple[ApplicationFacts, int]:
    shown, reader = ApplicationFacts(), Reader(events)
    place = TopicPartition("alerts", 0)
    await kafka.newest(cast(Any, reader), place, shown.parser(0, wanted), "reading", max_lookback=most)
    return shown, reader.read


async def test_the_newest_account_of_each_dataset_counts_and_reading_ends_once_all_are_found() -> None:
    old = [event(number, "a", 0.1) for number in range(1, 9_001)]
    shown, count = await read([*old, event(9_001, "b", 0.5), event(9_002, "a", 0.7), None], {"a", "b"})
    assert {name: account.spent for name, account in shown.accounts.items()} == {"a": 0.7, "b": 0.5}
    assert count < 1_000
    assert shown.shards[0].events == 9_002


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


async def test_of_declarations_of_several_shards_the_most_cautious_one_counts() -> None:
    shown = ApplicationFacts()
    for shard, sensitivity, monotonic in ((0, "5", True), (1, "1", False), (2, "?", True)):
        detail = {"topic": "counts", "sensitivity": sensitivity, "monotonic": monotonic}
        released = event(1, "", 0, EventType.TOPIC_DECLARED, **detail)
        moved = msgspec.json.encode(msgspec.json.decode(released) | {"shard": shard})
        shown.parser(shard, {"a"})(SimpleNamespace(value=moved))
    assert shown.topics == {"counts": Declared(Fraction(5), monotonic=False)}


def told(**changes: Any) -> list[str]:
    shown = ApplicationFacts(shards={0: ShardFacts(events=9, state="5e")}, **changes)
    return [one.message for one in differences(CONFIG, shown, version=(2, "2"))]


def began_with(what: str) -> str:
    return (
        f"the application began with {what}, and this worker has 1 and murmur2: a dataset would get a second ledger. "
        "Restore both; to change them, close the application and carry its budgets over to a successor"
    )


def account(limit: float, measure: str = "epsilon") -> Account:
    return msgspec.structs.replace(account_of(limit=limit), measure=measure)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accounts": {"a": account(4)}}, None),
        ({"accounts": {"a": account(5)}}, "a declares epsilon 4, its ledger has 5, 0.1 of it spent"),
        ({"accounts": {"a": account(4, "rho")}}, "a declares epsilon, its ledger is kept in rho"),
        ({"partitioning": {(1, "murmur2")}}, None),
        (
            {"partitioning": {(4, "murmur2")}},
            began_with("topics.partitions: 4 and topics.partitioner: murmur2"),
        ),
        ({"partitioning": {(1, "crc32")}}, began_with("topics.partitions: 1 and topics.partitioner: crc32")),
        ({"topics": {"counts": Declared(Fraction(1), monotonic=True)}}, None),
    ],
    ids=[
        "same limit",
        "another limit",
        "another measure",
        "same homes",
        "more partitions",
        "another partitioner",
        "same topic",
    ],
)
def test_a_declaration_that_differs_from_the_events_is_told(changes, message):
    assert told(**changes) == ([] if message is None else [message])


def test_a_larger_sensitivity_that_was_declared_before_is_a_problem() -> None:
    topic = CONFIG.spec.monitors[0].topic
    shown = ApplicationFacts(topics={topic: Declared(Fraction(1000), monotonic=False)})
    found = list(differences(CONFIG, shown))
    assert found[0].subject == "monitors[0].sensitivity"
    assert "Declare at least 1000" in found[0].message
    assert found[0].level == "problem"


@pytest.mark.parametrize(
    ("version", "level", "words"),
    [
        ((3, "3"), None, ""),
        ((4, "4"), "note", "shard 0 did not adopt version 4 yet"),
        ((2, "2"), "problem", "shard 0 adopted version 3, and version 2 would be refused: the topic was"),
        ((3, "x"), "problem", "shard 0 adopted another version 3, and version 3 would be refused"),
        ((0, ""), "problem", "created again. Apply with --above 3"),
    ],
)
def test_versions_that_shards_adopted_are_compared(version, level, words):
    shown = ApplicationFacts(shards={0: ShardFacts(events=9, version=(3, "3"))})
    found = list(differences(CONFIG, shown, version=version))
    assert [one.level for one in found] == ([] if level is None else [level])
    assert all(words in one.message for one in found)


def test_a_shard_with_events_and_without_state_would_park() -> None:
    shown = ApplicationFacts(shards={0: ShardFacts(events=9, state="5e"), 1: ShardFacts()})
    (found,) = behind((), {}, shown)
    assert found.message == "shard 0: nothing is stored, and alert partition 0 shows event 9: it would park"
