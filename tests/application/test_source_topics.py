"""Topics of sources: what a counter and a worker need of them, what check creates, and what it advises."""

from __future__ import annotations

from typing import Any

import pytest

from stream_svt.application.config import Config, parse_config
from stream_svt.application.topology import (
    UNLIMITED,
    Topology,
    created_topics,
    problems,
    source_problems,
    wanted_topics,
)
from stream_svt.operate.check import topic_settings
from stream_svt.operate.source_topics import source_advice
from tests.support.sources import ANSWERS, WEB

DAY_MS = 86_400_000
RAW = {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime", "retention.ms": "604800000"}


def config() -> Config:
    return parse_config(WEB)


def topology(changes: dict[str, dict[str, str] | None], **partitions: int) -> Topology:
    """Return topics as check creates them, with other settings of some; None for topics that are missing."""
    wanted = config()
    settings: dict[str, Any] = {name: topic_settings(wanted, name) for name in created_topics(wanted)}
    settings["web.requests"] = RAW
    settings |= {name: change and settings[name] | change for name, change in changes.items()}
    counts = (
        created_topics(wanted) | {"web.requests": 3} | {f"web.{name}": n for name, n in partitions.items()}
    )
    kept = {name: one for name, one in settings.items() if one is not None}
    return Topology("c", {name: counts[name] for name in kept}, kept)


def wrong(changes: dict[str, dict[str, str] | None], **partitions: int) -> list[str]:
    found = topology(changes, **partitions)
    return [str(one) for one in (*problems(config(), found), *source_problems(config(), found))]


def advice(changes: dict[str, dict[str, str] | None]) -> list[tuple[str, str, str]]:
    return [(one.level, one.subject, one.message) for one in source_advice(config(), topology(changes))]


def test_topics_as_check_creates_them_fit_and_the_raw_one_has_any_number_of_partitions() -> None:
    assert wrong({}) == wrong({}, requests=17) == []
    assert [level for level, *_ in advice({})] == ["ok"]
    assert created_topics(config())["web.sources"] == 8
    assert "web.requests" not in created_topics(config())


def test_a_worker_needs_neither_the_raw_topic_nor_the_log() -> None:
    assert wanted_topics(config()).keys() == created_topics(config()).keys() - {"web.sources"}
    assert problems(config(), topology({"web.requests": None, "web.sources": None})) == []


@pytest.mark.parametrize(
    ("topic", "settings", "says"),
    [
        ("web.requests", None, "topic 'web.requests' does not exist, or this user may not see it"),
        ("web.sources", None, "topic 'web.sources' does not exist, or this user may not see it"),
        ("web.requests.counts", None, "'web.requests.counts' does not exist"),
        ("web.requests", {"cleanup.policy": "compact"}, "compaction drops events that were not counted"),
        ("web.requests", {"cleanup.policy": "compact,delete"}, "cleanup.policy=compact,delete"),
        ("web.sources", {"cleanup.policy": "compact"}, "has cleanup.policy=compact, expected delete"),
        ("web.sources", {"retention.ms": "1000"}, "--add-config retention.ms=-1'"),
        ("web.sources", {"retention.bytes": "1000"}, "would lose what an open window needs"),
        ("web.sources", {"message.timestamp.type": "CreateTime"}, "expected LogAppendTime"),
        ("web.requests.counts", {"message.timestamp.type": "LogAppendTime"}, "expected CreateTime"),
        ("web.requests.counts", {"message.timestamp.before.max.ms": "1000"}, f"expected {UNLIMITED}"),
        (
            "web.requests.counts",
            {"cleanup.policy": "compact"},
            "expected delete: of the queries of a dataset",
        ),
    ],
)
def test_a_topic_that_would_break_a_promise_is_refused(
    topic: str, settings: dict[str, str] | None, says: str
) -> None:
    (message,) = wrong({topic: settings})
    assert says in message
    if settings and topic != "web.requests":
        assert f"--entity-name {topic} --add-config {next(iter(settings))}=" in message


def test_a_missing_raw_topic_is_the_users_own_and_created_by_a_command_with_the_brokers_timestamps() -> None:
    (message,) = wrong({"web.requests": None})
    assert "A topic of raw events is yours: --create-topics does not create it" in message
    command = "--create --topic web.requests --config message.timestamp.type=LogAppendTime'"
    assert f"'kafka-topics.sh --bootstrap-server 127.0.0.1:9092 {command} does" in message


def test_the_log_has_one_number_of_partitions() -> None:
    (message,) = wrong({}, sources=4)
    assert "topic 'web.sources' has 4 partitions, expected 8" in message


def test_producers_timestamps_are_noted_with_the_command_and_its_harm() -> None:
    (clock, kept) = advice({"web.requests": {"message.timestamp.type": "CreateTime"}})
    assert clock[:2] == ("note", "sources.topic")
    assert "--entity-name web.requests --add-config message.timestamp.type=LogAppendTime'" in clock[2]
    assert "every reader of the topic then sees the time of the append" in clock[2]
    assert "deletes events by size, or by producers' timestamps (retention.ms=604800000)" in kept[2]


def test_whose_timestamps_answers_have_does_not_matter() -> None:
    settings = {"flink.hits": RAW | {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}}
    assert [*source_advice(parse_config(ANSWERS), Topology("c", {"flink.hits": 3}, settings))] == []


def test_retention_by_size_and_a_short_one_of_counts_are_noted() -> None:
    assert [one[0] for one in advice({"web.requests": {"retention.bytes": "-1"}})] == ["ok"]
    _, size = advice({"web.requests": {"retention.bytes": "1000"}})
    assert (
        "deletes events by size (retention.bytes=1000): one unit's events may delete those of others"
        in size[2]
    )
    _, short = advice({"web.requests.counts": {"retention.ms": str(2 * DAY_MS)}})
    assert "keeps counts for 2d" in short[2]
    assert f"--add-config retention.ms={30 * DAY_MS}'" in short[2]


def test_settings_that_may_not_be_seen_are_not_guessed() -> None:
    counts = created_topics(config()) | {"web.requests": 1}
    hidden = Topology("c", counts, {})
    assert [
        *problems(config(), hidden),
        *source_problems(config(), hidden),
        *source_advice(config(), hidden),
    ] == []


def test_a_topic_of_counts_keeps_what_questions_read() -> None:
    """Else which queries are asked would depend on when a counter takes over."""
    monitor = "{name: lasting, source: requests, measure: visitors, epsilon: 1/2, cutoff: 5, threshold: 5, for: 100}"
    asking = parse_config(
        WEB.replace("monitors:\n", f"monitors:\n  - {monitor}\n").replace("epsilon: 2}", "epsilon: 3}")
    )
    settings: dict[str, Any] = {name: topic_settings(asking, name) for name in created_topics(asking)}
    created = settings["web.requests.counts"]["retention.ms"]
    assert int(created) == 30 * 86_400_000 + 99 * 3_600_000

    def levels(**changes: str) -> list[str]:
        kept = {"web.requests.counts": settings["web.requests.counts"] | changes}
        found = source_advice(asking, Topology("c", {"web.requests.counts": 4}, kept))
        return [one.level for one in found if one.subject == "sources.counts"]

    assert levels() == []
    assert levels(**{"retention.ms": str(10 * 86_400_000)}) == ["note"]
    assert levels(**{"retention.ms": str(98 * 3_600_000)}) == ["problem"]
    assert levels(**{"retention.bytes": "1000000"}) == ["problem"]
