"""What `check` says without brokers, what it creates, and what it advises."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from stream_svt.application.config import parse_config
from stream_svt.application.signatures import signing_key
from stream_svt.application.topology import Topology
from stream_svt.kafka import clients as kafka
from stream_svt.kafka.clients import Cluster
from stream_svt.operate.check import advice as advice_of
from stream_svt.operate.check import check_offline, create_missing, topic_settings, unreadable_states
from stream_svt.planning.budget import reported_margin
from stream_svt.protocol.sealing import RecordContext, Sealing, key_id
from stream_svt.protocol.state_records import META
from stream_svt.settings.fields import Named
from stream_svt.settings.sections import SealingConfig
from tests.support.sources import WEB, changed

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
    "unclean.leader.election.enable": "false",
    "min.insync.replicas": "2",
    "max.message.bytes": "1048588",
}


def advice(
    state: dict[str, str], alerts: dict[str, str] | None = None, copies: int = 3, *, accepts: bool = False
) -> list[tuple[str, str]]:
    settings = {"shop.state": GOOD | state, "shop.alerts": {"retention.ms": "-1"} | (alerts or {})}
    checked = config(copies)
    if accepts:
        topics = checked.topics.model_copy(update={"allow_alert_retention": True})
        checked = replace(checked, topics=topics)
    return [(one.level, one.message) for one in advice_of(checked, Topology("c", {}, settings))]


def test_good_settings_need_no_advice():
    assert advice({}) == advice(LARGE | {"compression.type": "uncompressed"}) == []


LARGE = {"max.message.bytes": "10485760"}


@pytest.mark.parametrize(
    ("state", "level", "words"),
    [
        ({"unclean.leader.election.enable": "true"}, "note", "can lose the newest charges"),
        ({"min.insync.replicas": "1"}, "note", "--add-config min.insync.replicas=2'"),
        (
            {"segment.bytes": "1073741824", "segment.ms": "604800000"},
            "note",
            "--add-config segment.bytes=67108864'",
        ),
        (
            {"message.timestamp.type": "CreateTime"},
            "note",
            "--add-config message.timestamp.type=LogAppendTime'",
        ),
        (LARGE | {"compression.type": "producer"}, "note", "compressed batches of 10485760 bytes"),
        ({"max.message.bytes": "1000"}, "problem", "1000 bytes at most"),
    ],
)
def test_weak_settings_of_the_state_topic_are_noted_and_too_small_records_a_problem(state, level, words):
    [(found, message)] = advice(state)
    assert found == level
    assert words in message
    topic = "--alter --entity-type topics --entity-name shop.state --add-config "
    assert "'kafka-configs.sh --bootstrap-server 127.0.0.1:9092 " + topic in message


@pytest.mark.parametrize("limit", [{"retention.ms": "86400000"}, {"retention.bytes": "1000000"}])
def test_alerts_that_are_forgotten_are_a_problem_unless_that_is_accepted(limit):
    ((name, value),) = limit.items()
    [(level, message)] = advice({}, limit)
    assert level == "problem"
    assert f"forgets events ({name}={value}): `stream-svt audit` cannot re-derive" in message
    [(level, message)] = advice({}, limit, accepts=True)
    assert level == "note"
    assert "have nothing left. topics.allow_alert_retention accepts that" in message


def test_offline_the_ledger_and_sealing_are_always_mentioned():
    report = check_offline(config())
    assert not any(finding.level == "problem" for finding in report)
    assert report[0].message.endswith(": 1 monitor on 1 dataset")
    assert {finding.subject for finding in report} >= {"configuration", "memory", "sealing", "ledger"}


def message_about(subject: str, text: str = YAML, directory: Path = Path()) -> str:
    """Return the message about a subject from the checks without brokers."""
    report = check_offline(parse_config(text.replace("COPIES", "1"), directory=directory))
    (finding,) = [finding for finding in report if finding.subject == subject]
    return finding.message


def test_offline_it_is_said_how_much_memory_a_worker_takes():
    # The same with one shard, and only once.
    assert re.match(r"a worker takes up to about 2\d\d MiB;", message_about("memory"))
    names = ", ".join(f"d{number}" for number in range(5_000))
    many = message_about("memory", YAML.replace("name: today", f"names: [{names}]"))
    found = re.match(r"a worker takes up to about (\d+) MiB with all 4 shards, (\d+) MiB with one;", many)
    assert found
    alone, with_one = map(int, found.groups())
    assert 200 < with_one < alone < 300


def test_offline_it_is_said_who_may_give_commands(tmp_path):
    assert message_about("control") == "commands need no signature: the ACL of topic 'shop.control' decides"
    (tmp_path / "shared").write_text("07" * 32)
    words = message_about("control", YAML + "control: {keys: [shared]}", tmp_path)
    assert words == f"commands must be signed with {signing_key('07' * 32).name}"
    assert "0707" not in words


def test_topics_are_created_with_the_settings_they_need():
    wanted = config(3)
    state = topic_settings(wanted, "shop.state")
    assert (state["cleanup.policy"], state["segment.bytes"]) == ("compact", "67108864")
    assert float(state["min.cleanable.dirty.ratio"]) <= 0.1
    assert int(state["delete.retention.ms"]) <= 3_600_000  # every takeover reads the tombstones
    assert state["min.insync.replicas"] == "2"
    assert topic_settings(wanted, "shop.alerts")["retention.ms"] == "-1"
    assert "min.insync.replicas" not in topic_settings(config(1), "shop.state")
    for name in ("shop.state", "shop.alerts", "shop.control", "shop.rejects"):
        assert topic_settings(wanted, name)["compression.type"] == "uncompressed"
    for name in ("counts", "shop.state", "shop.alerts", "shop.control", "shop.rejects"):
        assert topic_settings(wanted, name)["message.timestamp.type"] == "LogAppendTime"


@pytest.mark.parametrize(("most", "noted"), [("-1", False), ("1000000", True)])
def test_counts_that_are_forgotten_by_size_are_noted(most, noted):
    """How far back a look reads is released, and compressed counts have sizes of their own."""
    settings = {"web.requests.counts": {"retention.bytes": most}}
    found = [
        one for one in advice_of(parse_config(WEB), Topology("c", {}, settings)) if "by size" in one.message
    ]
    assert [(one.level, one.subject) for one in found] == [("note", "sources.counts")] * noted


def test_topics_of_sources_are_created_for_nominal_times_and_for_ever():
    wanted = parse_config(WEB)
    counts, log = (topic_settings(wanted, name) for name in ("web.requests.counts", "web.sources"))
    assert (counts["message.timestamp.type"], counts["retention.ms"]) == ("CreateTime", "2592000000")
    assert counts["message.timestamp.before.max.ms"] == str(2**63 - 1)
    assert counts["retention.bytes"] == "-1"
    assert (log["message.timestamp.type"], log["retention.ms"]) == ("LogAppendTime", "-1")
    assert counts["cleanup.policy"] == log["cleanup.policy"] == "delete"


async def test_no_topic_is_created_beside_one_with_another_number_of_partitions(monkeypatch):
    async def counts(_cluster, _doing):
        return {"counts": 6}

    monkeypatch.setattr(kafka, "partition_counts", counts)
    (finding,) = await create_missing(config(), Cluster({}))
    assert (finding.level, "none was created: topic 'counts' has 6" in finding.message) == ("problem", True)


OLD, NEW = bytes(range(32)), bytes(range(1, 33))


def stored(*masters: bytes, shards: int = 1, cluster: str = "c") -> dict[int, bytes]:
    """Return the records `meta` of shards whose state is sealed so."""
    return {
        shard: Sealing(RecordContext(cluster, "shop", "shop.state", shard), masters, os.urandom).seal(
            META, 7, b"content"
        )
        for shard in range(shards)
    }


def sealed(*keys: bytes, adopt_plain: bool = False) -> SealingConfig:
    files = tuple(Named("key", key) for key in keys)
    return SealingConfig.model_construct(keys=files, adopt_plain=adopt_plain)


@pytest.mark.parametrize(
    ("sealing", "metas", "why"),
    [
        (sealed(), stored(shards=2), ""),
        (sealed(NEW, OLD), stored(NEW, shards=2), ""),
        (sealed(NEW, OLD), stored(OLD), ""),
        (sealed(NEW, OLD), {}, ""),
        (sealed(NEW, adopt_plain=True), stored(), ""),
        (
            sealed(NEW),
            stored(OLD, shards=3),
            (
                "no worker can open the state of shards 0, 1, 2 on topic 'shop.state': it is sealed with key "
                f"{key_id(OLD).hex()}, configured: {key_id(NEW).hex()}; "
                "correct a wrong file; an older key's file stands behind the current one in sealing.keys."
            ),
        ),
        (sealed(), stored(OLD), "configured: none; name the key's file in sealing.keys."),
        (sealed(NEW), stored(), "it is not sealed although a key is configured"),
        (
            sealed(OLD),
            stored(OLD, cluster="other"),
            "was written under another key, shard or cluster",
        ),
    ],
)
def test_a_state_that_the_configured_keys_do_not_open_is_a_problem_said_once_for_all_shards(
    sealing, metas, why
):
    found = unreadable_states(replace(config(), sealing=sealing), "c", metas)
    assert (len(found), why in "".join(found)) == (bool(why), True), found


@pytest.mark.parametrize(("below", "noted"), [(1, True), (0, False)])
def test_bounds_that_make_an_alert_unlikely_are_noted(below, noted):
    (monitor,) = config().spec.monitors
    high = monitor.threshold + reported_margin(monitor, 0.5) - below
    report = check_offline(parse_config(YAML.replace("COPIES", "1").replace("[0, 9]", f"[0, {high}]")))
    assert any("an alert is unlikely" in finding.message for finding in report) is noted


@pytest.mark.parametrize(
    ("changes", "noted"),
    [
        ([], ""),
        (
            [("cutoff: 5, threshold: 50,", "cutoff: 20, threshold: 50,")],
            "many-errors: only a value of 172 or more",
        ),
        (
            [("threshold: 500,", "threshold: 20,"), ("threshold: 50,", "threshold: 20,")],
            "many-users, many-errors: only",
        ),
        ([("threshold: 50,", "threshold: -50,")], ""),
        (
            [
                ("window: 1h", "window: 1h\n    ask: tick"),
                ("visitors}", "visitors, of: {events: {at_most: 5}}}"),
            ],
            "at_most",
        ),
    ],
)
def test_monitors_that_find_only_values_far_above_their_threshold_are_noted_once(changes, noted):
    report = check_offline(parse_config(changed(*changes, text=WEB)))
    notes = [one.message for one in report if one.subject == "monitors.threshold"]
    assert len(notes) == bool(noted)
    assert noted in "".join(notes)
    assert "sensitivity" not in "".join(notes)
    for text in notes:
        order = [text.index(part) for part in ("a higher epsilon", "a longer window", "a lower cutoff")]
        assert order == sorted(order)


def test_each_note_is_made_once():
    report = check_offline(parse_config(YAML.replace("COPIES", "1").replace("threshold: 5", "threshold: 50")))
    notes = [finding.message for finding in report if finding.level == "note"]
    assert any("threshold" in note for note in notes)
    assert len(notes) == len(set(notes))
