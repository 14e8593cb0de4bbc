"""Topics that would break a promise are refused before anything runs."""

from __future__ import annotations

import pytest

from stream_svt.application.config import Config, parse_config
from stream_svt.application.topology import Topology, command_to_set, problems, wanted_topics
from tests.support.shop import SPEC as SHOP

SPEC = SHOP.replace("datasets:", "topics: {partitions: 2}\ndatasets:")

GOOD = {
    "shop.state": {"cleanup.policy": "compact"},
    "counts": {"message.timestamp.type": "CreateTime", "retention.ms": "1000"},
}


def config(extra: str = "") -> Config:
    return parse_config(SPEC.replace("correction: none", f"correction: none{extra}"))


def found(wanted: Config, *, settings: dict | None = None, **partitions: int) -> list[str]:
    counts = dict.fromkeys(wanted_topics(wanted), 2) | {
        name.replace("_", "."): n for name, n in partitions.items()
    }
    topology = Topology(
        "c", {name: n for name, n in counts.items() if n}, GOOD if settings is None else settings
    )
    return [str(problem) for problem in problems(wanted, topology)]


def test_topics_that_fit_are_accepted_and_settings_that_may_not_be_seen_are_not_guessed() -> None:
    assert found(config()) == found(config(", mute: 10m"), settings={}) == []


def test_every_wrong_count_and_missing_topic_is_named() -> None:
    messages = found(config(), counts=3, shop_rejects=0)
    assert len(messages) == 2
    assert "topic 'counts' has 3 partitions, topics.partitions says 2" in messages[0]
    assert "'shop.rejects' does not exist" in messages[1]
    assert "'stream-svt check -c configuration --create-topics' creates it" in messages[1]
    assert "operation WRITE on resource TOPIC 'shop.rejects'" in messages[1]


def test_topics_that_are_not_there_yet_are_one_problem_that_names_some() -> None:
    missing = dict.fromkeys(["counts", "shop_state", "shop_alerts", "shop_rejects", "shop_control"], 0)
    (message,) = found(config(), settings={}, **missing)
    assert message == (
        "topics: 5 topics do not exist: 'counts', 'shop.control', 'shop.alerts', 'shop.state', 'shop.rejects': create "
        "them with 'stream-svt check -c configuration --create-topics' (if they do exist, permission is missing: "
        "operation READ on resource TOPIC of each, operation WRITE on 'shop.rejects')"
    )
    monitor = SPEC[SPEC.index("  - {name") :]
    many = "".join(monitor.replace("hot", f"m{n}").replace("counts", f"t{n:02}") for n in range(12))
    wanted = parse_config(SPEC.replace(monitor, many).replace("epsilon: 4}", "epsilon: 12}"))
    (message,) = [str(problem) for problem in problems(wanted, Topology("c", {}, {}))]
    assert "17 topics do not exist: 't00', " in message
    assert "'t09' and 7 more: create them" in message
    assert "'t10'" not in message


@pytest.mark.parametrize(
    ("topic", "policy", "why"),
    [
        ("shop.state", "delete", "retention would delete the ledger"),
        ("shop.state", "compact,delete", "retention would delete the ledger"),
        *((f"shop.{log}", "compact", f"'shop.{log}'") for log in ("alerts", "rejects", "control")),
        ("counts", "compact", "topic 'counts' has cleanup.policy=compact, expected delete"),
        ("counts", "compact,delete", "topic 'counts' has cleanup.policy=compact,delete, expected delete"),
        ("counts", "delete,compact", "topic 'counts' has cleanup.policy=delete,compact, expected delete"),
    ],
)
def test_a_topic_that_would_lose_what_must_stay_is_refused(topic: str, policy: str, why: str) -> None:
    (message,) = found(config(), settings=GOOD | {topic: {"cleanup.policy": policy}})
    assert why in message
    wanted = "compact" if topic == "shop.state" else "delete"
    assert f"--entity-name {topic} --add-config cleanup.policy={wanted}'" in message
    assert ("copy the queries to a topic of their own" in message) is (topic == "counts")


def test_a_command_for_brokers_with_a_login_names_its_file() -> None:
    text = SPEC + "kafka: {bootstrap_servers: 'broker:9093', security_protocol: SSL}\n"
    command = command_to_set(parse_config(text), "counts", "a=b")
    assert "--bootstrap-server broker:9093 --command-config client.properties --alter" in command


def test_durations_need_the_brokers_clock_and_a_retry_lifetime_within_retention() -> None:
    by_broker = {"message.timestamp.type": "LogAppendTime", "retention.ms": "1000"}
    for wanted in (config(", mute: 10m"), config(", append: {retry: {lifetime: 1s}}")):
        (message,) = found(wanted)
        assert "expected LogAppendTime" in message
        command = "kafka-configs.sh --bootstrap-server 127.0.0.1:9092 --alter --entity-type topics --entity-name counts"
        assert f"'{command} --add-config message.timestamp.type=LogAppendTime'" in message
        assert "every reader of the topic then sees the time of the append" in message
        assert found(wanted, settings=GOOD | {"counts": by_broker}) == []
    wanted = config(", append: {retry: {lifetime: 10m}}")
    (message,) = found(wanted, settings=GOOD | {"counts": by_broker})
    assert "600000 ms is longer than topic 'counts' keeps records" in message
    assert found(wanted, settings=GOOD | {"counts": by_broker | {"retention.ms": "-1"}}) == []
