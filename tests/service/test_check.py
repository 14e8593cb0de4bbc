"""What `check` says without brokers, what it creates, and what it advises."""

from __future__ import annotations

import pytest

from stream_svt.service.check import Level, Report, _hint, check_offline, topic_settings
from stream_svt.service.config import parse_config
from stream_svt.service.signatures import signing_key
from stream_svt.service.topology import Topology

YAML = """
application: shop
topics: {replication_factor: COPIES}
datasets: [{name: today, limit: 4, unit: one basket}]
monitors:
  - {name: hot, topic: counts, epsilon: 1, cutoff: 10, sensitivity: 1, bounds: [0, 9], threshold: 5,
     expected_queries: 9}
"""


def config(copies: int = 1):
    return parse_config(YAML.replace("COPIES", str(copies)))


GOOD = {
    "cleanup.policy": "compact",
    "segment.bytes": "67108864",
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.1",
    "unclean.leader.election.enable": "false",
    "min.insync.replicas": "2",
    "max.message.bytes": "1048588",
}


def advice(
    state: dict[str, str], alerts: dict[str, str] | None = None, copies: int = 3
) -> list[tuple[Level, str]]:
    report = Report()
    settings = {"shop.state": GOOD | state, "shop.alerts": {"retention.ms": "-1"} | (alerts or {})}
    _hint(config(copies), Topology("c", {}, settings), report)
    return [(finding.level, finding.message) for finding in report.findings]


def test_good_settings_need_no_advice():
    assert advice({}) == []


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"segment.bytes": "1073741824", "segment.ms": "604800000"}, "set segment.bytes=67108864"),
        ({"min.cleanable.dirty.ratio": "0.5"}, "0.1 keeps takeovers short"),
        ({"unclean.leader.election.enable": "true"}, "can lose the newest charges"),
        ({"min.insync.replicas": "1"}, "set it to 2"),
        ({"message.timestamp.type": "CreateTime"}, "set message.timestamp.type=LogAppendTime"),
    ],
)
def test_weak_settings_of_the_state_topic_are_noted(state, words):
    [(level, message)] = advice(state)
    assert level is Level.NOTE
    assert words in message


def test_alerts_that_are_forgotten_are_noted():
    [(level, message)] = advice({}, {"retention.ms": "86400000"})
    assert level is Level.NOTE
    assert "`stream-svt audit` can then not re-derive" in message


def test_topics_for_small_records_are_a_problem():
    [(level, message)] = advice({"max.message.bytes": "1000"})
    assert level is Level.PROBLEM
    assert "1000 bytes at most" in message


def test_room_for_large_compressed_batches_is_noted():
    large = {"max.message.bytes": "10485760"}
    [(level, message)] = advice(large | {"compression.type": "producer"})
    assert level is Level.NOTE
    assert "compressed batches of 10485760 bytes" in message
    assert advice(large | {"compression.type": "uncompressed"}) == []


def test_offline_the_ledger_and_sealing_are_always_mentioned():
    report = check_offline(config())
    assert report.problems == []
    assert {finding.subject for finding in report.findings} >= {"configuration", "sealing", "ledger"}


def test_offline_it_is_said_who_may_give_commands(tmp_path):
    def said(text: str) -> str:
        report = check_offline(parse_config(YAML.replace("COPIES", "1") + text, directory=tmp_path))
        (finding,) = [finding for finding in report.findings if finding.subject == "control"]
        return finding.message

    assert said("") == "commands need no signature: the ACL of topic 'shop.control' decides"
    (tmp_path / "shared").write_text("07" * 32)
    words = said("control: {hmac_key_files: [shared]}")
    assert words == f"commands must be signed with {signing_key('07' * 32).name}"
    assert "0707" not in words


def test_topics_are_created_with_the_settings_they_need():
    wanted = config(3)
    state = topic_settings(wanted, "shop.state")
    assert (state["cleanup.policy"], state["segment.bytes"]) == ("compact", "67108864")
    assert float(state["min.cleanable.dirty.ratio"]) <= 0.1
    assert state["min.insync.replicas"] == "2"
    assert topic_settings(wanted, "shop.alerts")["retention.ms"] == "-1"
    assert "min.insync.replicas" not in topic_settings(config(1), "shop.state")
    for name in ("shop.state", "shop.alerts", "shop.control", "shop.rejects"):
        assert topic_settings(wanted, name)["compression.type"] == "uncompressed"
    for name in ("counts", "shop.state", "shop.alerts", "shop.control", "shop.rejects"):
        assert topic_settings(wanted, name)["message.timestamp.type"] == "LogAppendTime"
