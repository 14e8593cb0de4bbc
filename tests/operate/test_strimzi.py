"""What is printed for Strimzi: one topic for each, and users with the permissions that brokers were seen to need."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from stream_svt.application.config import Config, parse_config
from stream_svt.application.topology import created_topics
from stream_svt.operate.check import topic_settings
from stream_svt.operate.strimzi import documents, grants
from tests.support import permissions
from tests.support.keys import write_secrets
from tests.support.tls import Authority

TEXT = """
application: shop
kafka: {{bootstrap_servers: "{servers}"{login}}}
topics: {{partitions: 12, replication_factor: 3, state: "Trusted_state"}}
datasets: [{{name: week-1, limit: {{epsilon: 4}}, unit: one basket}}]
monitors:
  - {{name: hot, topic: shop.counts, epsilon: 1, cutoff: 3, sensitivity: 1, bounds: [0, 1000], threshold: 500,
     expected_queries: 1000}}
"""
SOURCE = """
sources: [{name: visits, topic: shop.clicks, unit: user, window: 1h, dataset: "clicks-{date}"}]
datasets: [{generate: "clicks-{date}", from: 2026-01-05, lateness: 1h, limit: {epsilon: 4}}]
monitors: [{name: busy, source: visits, measure: units, epsilon: 1, cutoff: 3, threshold: 500, expected_queries: 1000}]
"""
STRIMZI = "main-kafka-bootstrap.brokers.svc:9093"


def config(servers: str = STRIMZI, login: str = "") -> Config:
    return parse_config(TEXT.format(servers=servers, login=login))


def printed(found: Config) -> dict[str, list[dict[str, Any]]]:
    kinds: dict[str, list[dict[str, Any]]] = {}
    for document in yaml.safe_load_all(documents(found)):
        assert document["apiVersion"] == "kafka.strimzi.io/v1"
        kinds.setdefault(document["kind"], []).append(document)
    return kinds


def test_each_topic_is_printed_as_check_would_create_it():
    found = config()
    topics = {one["spec"]["topicName"]: one for one in printed(found)["KafkaTopic"]}
    assert {name: one["spec"]["partitions"] for name, one in topics.items()} == created_topics(found)
    for name, topic in topics.items():
        spec = topic["spec"]
        assert spec["replicas"] == 3
        assert spec["config"] == topic_settings(found, name)
    assert topics["Trusted_state"]["metadata"]["name"].startswith("trusted-state-")
    assert topics["shop.alerts"]["metadata"]["name"] == "shop.alerts"


@pytest.mark.parametrize(
    ("servers", "labels", "namespace"),
    [
        (STRIMZI, {"strimzi.io/cluster": "main"}, "brokers"),
        ("main-kafka-bootstrap:9092", {"strimzi.io/cluster": "main"}, None),
        ("kafka.example:9092", {"strimzi.io/cluster": "CLUSTER"}, None),
    ],
    ids=["service", "same-namespace", "elsewhere"],
)
def test_cluster_and_namespace_are_those_of_the_bootstrap_service(servers, labels, namespace):
    found = printed(config(servers))
    for document in (*found["KafkaTopic"], *found["KafkaUser"]):
        metadata = document["metadata"]
        assert (metadata["labels"], metadata.get("namespace")) == (labels, namespace)
    assert ("Replace CLUSTER" in documents(config(servers))) is ("CLUSTER" in labels.values())


TLS = ", security_protocol: SSL, certificate_file: cert, private_key_file: key"
SASL = ", security_protocol: SASL_SSL, sasl_mechanism: "
SCRAM = f"{SASL}SCRAM-SHA-512, username: svt, password_file: word"
TOKEN = f"{SASL}OAUTHBEARER, oauth_token_command: [token]"


@pytest.mark.parametrize(
    ("login", "authentication", "worker"),
    [
        ("", {"type": "scram-sha-512"}, "shop-worker"),
        (SCRAM, {"type": "scram-sha-512"}, "svt"),
        (TLS, {"type": "tls"}, "shop-worker"),
        (TOKEN, None, "shop-worker"),
    ],
    ids=["none", "scram", "tls", "token"],
)
def test_users_log_in_as_the_configuration_does(tmp_path, login, authentication, worker):
    authority = Authority.new()
    write_secrets(tmp_path, {"word": "word", "key": authority.broker_store().decode()})
    (tmp_path / "cert").write_bytes(authority.pem)
    found = parse_config(TEXT.format(servers=STRIMZI, login=login), directory=tmp_path)
    users = {one["metadata"]["name"]: one["spec"] for one in printed(found)["KafkaUser"]}
    assert set(users) == {worker, *(f"shop-{role}" for role in grants(found) if role != "worker")}
    for user in users.values():
        assert user.get("authentication") == authentication
        assert user["authorization"]["type"] == "simple"


def counting() -> Config:
    """Return a configuration of a source, without queries of others."""
    head, _, _ = TEXT.format(servers=STRIMZI, login="").partition("datasets:")
    return parse_config(head.replace(', state: "Trusted_state"', "") + SOURCE)


def granted(role: str, found: Config | None = None) -> set[tuple[str, str, str]]:
    """Return the printed permissions of a role in the form of tests/support/permissions.py."""
    kinds = {"transactionalId": "transactional_id"}
    plain = TEXT.replace(', state: "Trusted_state"', "").format(servers=STRIMZI, login="")
    found = found or parse_config(plain)
    [user] = [one for one in printed(found)["KafkaUser"] if one["metadata"]["name"] == f"shop-{role}"]
    acls = user["spec"]["authorization"]["acls"]
    for acl in acls:
        begins = acl["resource"]["name"].endswith(("-", ".", "-readers"))
        assert acl["resource"]["patternType"] == ("prefix" if begins else "literal")
    return {
        (
            re.sub("(?<=[a-z])(?=[A-Z])", "_", operation).lower(),
            kinds.get(acl["resource"]["type"], acl["resource"]["type"]),
            acl["resource"]["name"].removeprefix("shop"),
        )
        for acl in acls
        for operation in acl["operations"]
    }


def test_a_worker_is_granted_what_was_seen_to_be_the_least_on_a_broker():
    assert granted("worker") == set(permissions.WORKER)


def test_a_counter_alone_reads_raw_topics_and_writes_counts_and_deletes_from_its_log():
    found = counting()
    settings = {("describe_configs", "topic", f".{one}") for one in ("clicks", "sources", "visits.counts")}
    assert granted("counter", found) == {*permissions.COUNTER, *settings}
    worker = {(*rest, name.replace(".counts", ".visits.counts")) for *rest, name in permissions.WORKER}
    assert granted("worker", found) == worker
    for role in grants(found).keys() - {"counter"}:
        names = {name: operation for operation, kind, name in granted(role, found) if kind == "topic"}
        assert ".clicks" not in names
        assert names.get(".sources", "describe") == "describe"
    topics = {one["spec"]["topicName"]: one["spec"] for one in printed(found)["KafkaTopic"]}
    assert "shop.clicks" not in topics
    assert topics["shop.sources"]["partitions"] == 8
    assert topics["shop.visits.counts"]["config"]["message.timestamp.type"] == "CreateTime"


def test_a_counter_reads_the_counts_that_questions_read():
    head, _, _ = TEXT.format(servers=STRIMZI, login="").partition("datasets:")
    text = head.replace(', state: "Trusted_state"', "") + SOURCE
    asking = parse_config(text.replace("cutoff: 3,", "cutoff: 3, for: 3,"))
    more = granted("counter", asking) - granted("counter", counting())
    assert more == {("read", "topic", ".visits.counts")}


def test_who_has_nothing_to_do_is_not_printed():
    assert "counter" not in grants(config())
    assert "producer" not in grants(counting())


def test_an_operator_is_granted_commands_and_applying_and_a_subscriber_alerts_only():
    assert set(permissions.OPERATOR) < granted("operator")
    assert not any(operation == "write" and "state" in name for operation, _, name in granted("operator"))
    assert granted("subscriber") == {*permissions.AUDITOR, ("read", "group", "-readers")}
    assert granted("producer") == {("write", "topic", ".counts")}
    assert granted("forwarder") == {*permissions.AUDITOR, ("read", "group", ".alerts.forward.")}
