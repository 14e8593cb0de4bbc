"""Topics and users of an application as resources of Strimzi's operators (API version v1: Strimzi 0.49 and newer)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import yaml

from stream_svt.application.config import Config
from stream_svt.application.topology import (
    asked_topics,
    counts_topics,
    created_topics,
    log_topics,
    raw_topics,
)
from stream_svt.operate.check import topic_settings

_LONGEST_NAME: Final = 63
_BOOTSTRAP = re.compile(r"(?P<cluster>[a-z0-9-]+)-kafka-bootstrap(?:\.(?P<namespace>[a-z0-9-]+))?[.:]")
_HEAD: Final = """\
# Made by `stream-svt check --print strimzi`. Leave out the topics that exist and the users that you do not need.
"""


class Acl(NamedTuple):
    """Permissions of a user on one resource; ``prefixed``: on all resources whose names begin with ``name``."""

    kind: str
    name: str
    operations: Sequence[str]
    prefixed: bool = False


def grants(config: Config) -> dict[str, list[Acl]]:
    """Return the least permissions by role: worker, counter, producer, subscriber, forwarder and operator.

    The operator may apply configurations and give commands, the forwarder run `stream-svt forward`. The counter alone
    may read raw topics; without sources there is none, and without query topics there is no producer.
    """
    own, name, counts = config.topics, config.spec.application, counts_topics(config)

    def topics(names: Sequence[str], *operations: str) -> list[Acl]:
        return [Acl("topic", one, operations) for one in names]

    queries = config.spec.topics()
    produced = [topic for topic in queries if topic not in counts]
    others = [topic for topic in (*counts, *log_topics(config)) if topic not in queries]
    alerts = topics([own.alerts], "Read")
    found = {
        "worker": [
            *topics([own.state, own.alerts], "Read", "Write"),
            *topics([*queries, own.control, own.config], "Read"),
            *topics([own.rejects], "Write"),
            Acl("group", name, ["Read"]),
            Acl("transactionalId", f"{name}-", ["Write"], prefixed=True),
        ],
        "counter": [
            *topics(raw_topics(config), "Read", "DescribeConfigs"),
            *topics(log_topics(config), "Read", "Write", "Delete", "DescribeConfigs"),
            *topics(counts, "Write", "DescribeConfigs"),
            *topics(asked_topics(config), "Read"),
            *topics([own.config], "Read"),
            Acl("group", f"{name}-counters", ["Read"]),
            Acl("transactionalId", f"{name}-sources-", ["Write"], prefixed=True),
        ],
        "producer": topics(produced, "Write"),
        "subscriber": [*alerts, Acl("group", f"{name}-readers", ["Read"], prefixed=True)],
        "forwarder": [*alerts, Acl("group", f"{own.alerts}.forward.", ["Read"], prefixed=True)],
        "operator": [
            *alerts,
            *topics([own.control], "Write"),
            *topics([own.config], "Read", "Write"),
            *topics([*queries, *others, own.state, own.rejects], "Describe"),
            Acl("group", name, ["Describe"]),
            Acl("transactionalId", f"{name}-config", ["Write"]),
        ],
    }
    needed = {"counter": bool(counts), "producer": bool(produced)}
    return {role: acls for role, acls in found.items() if needed.get(role, True)}


def resources(config: Config) -> Iterator[dict[str, Any]]:
    """Yield a KafkaTopic for each topic of the application, and a KafkaUser for each role.

    The worker's user is `kafka.username` if that is a valid name in Kubernetes. Cluster and namespace are taken from
    the name of Strimzi's bootstrap service.
    """
    found = _BOOTSTRAP.match(config.kafka.bootstrap_servers[0])
    labels = {"strimzi.io/cluster": found["cluster"] if found else "CLUSTER"}
    place = {"namespace": found["namespace"]} if found and found["namespace"] else {}

    def resource(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        metadata = {"name": name, **place, "labels": labels}
        return {"apiVersion": "kafka.strimzi.io/v1", "kind": kind, "metadata": metadata, "spec": spec}

    own = config.topics
    for topic, partitions in created_topics(config).items():
        counts = {"partitions": partitions, "replicas": own.replication_factor}
        spec = {"topicName": topic, **counts, "config": topic_settings(config, topic)}
        yield resource("KafkaTopic", kubernetes_name(topic), spec)
    login = {"authentication": {"type": "tls" if config.kafka.certificate_file else "scram-sha-512"}}
    if config.kafka.sasl_mechanism == "OAUTHBEARER":
        login = {}  # the operator gives out no credentials: permissions are those of the name in a token
    for role, acls in grants(config).items():
        name = f"{config.spec.application}-{role}"
        if role == "worker":
            name = config.kafka.username or name
        authorization = {"type": "simple", "acls": [_acl(one) for one in acls]}
        spec = {**login, "authorization": authorization}
        yield resource("KafkaUser", kubernetes_name(name), spec)


def kubernetes_name(name: str) -> str:
    """Return a valid name in Kubernetes; a changed name ends in a digest, so that names stay different.

    >>> kubernetes_name("shop.state"), kubernetes_name("Shop_A")
    ('shop.state', 'shop-a-5de33ab2')
    """
    plain = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")
    if plain == name and len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{plain[: _LONGEST_NAME - 9].strip('-.')}-{digest}".lstrip("-")


def documents(config: Config) -> str:
    """Return the resources as YAML."""
    known = _BOOTSTRAP.match(config.kafka.bootstrap_servers[0])
    note = "" if known else "# Replace CLUSTER with the name of your Kafka resource.\n"
    return f"{_HEAD}{note}" + yaml.safe_dump_all(
        resources(config), sort_keys=False, explicit_start=True, width=110, allow_unicode=True
    )


def _acl(acl: Acl) -> dict[str, Any]:
    pattern = "prefix" if acl.prefixed else "literal"
    resource = {"type": acl.kind, "name": acl.name, "patternType": pattern}
    return {"resource": resource, "operations": list(acl.operations)}
