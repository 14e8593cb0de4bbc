"""Whether the topics on the brokers are what the configuration needs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from stream_svt.errors import ConfigError, Problem
from stream_svt.service.config import Config
from stream_svt.service.kafka import CALL_DEADLINE, Cluster, deadline, started
from stream_svt.settings.options import Retry

log = logging.getLogger(__name__)

SECOND_LOOK = 1.0
"""Seconds after which topics that do not fit are looked at again."""

SHOWN_TOPICS = 10
"""Missing topics that a message names."""


@dataclass(frozen=True, slots=True)
class Topology:
    """What the brokers say.

    Attributes:
        cluster_id: Identity of the cluster; part of what seals state.
        partitions: Number of partitions by topic, for the topics that exist.
        settings: Topic settings by topic; a topic is absent where the user may not see them.
    """

    cluster_id: str
    partitions: Mapping[str, int]
    settings: Mapping[str, Mapping[str, str]]


def wanted_topics(config: Config) -> dict[str, str]:
    """Return every topic the application needs, with the configuration field that names it."""
    own = config.topics
    topics = dict.fromkeys(config.spec.topics(), "monitors.topic")
    return topics | {
        own.control: "topics.control",
        own.alerts: "topics.alerts",
        own.state: "topics.state",
        own.rejects: "topics.rejects",
        own.config: "topics.config",
    }


def unseen(topic: str, operation: str) -> str:
    """Say that the brokers do not show a topic: to whoever may do nothing with it, it is as if it were not there."""
    return (
        f"topic {topic!r} does not exist, or this user may not see it: then permission is missing, "
        f"operation {operation} on resource TOPIC {topic!r}"
    )


async def look(config: Config, cluster: Cluster) -> Topology:
    """Ask the brokers about the application's topics.

    Raises:
        BrokerError: They cannot be reached or refuse.
    """
    names = list(wanted_topics(config))
    doing = "looking at the topics"
    async with started(cluster.admin(), doing) as admin, deadline(CALL_DEADLINE, doing, "DESCRIBE"):
        described = await admin.describe_topics(names)
        cluster_id = (await admin.describe_cluster())["cluster_id"]
        partitions = {
            topic["topic"]: len(topic["partitions"]) for topic in described if topic["error_code"] == 0
        }
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in partitions]
        settings = _settings(await admin.describe_configs(resources)) if resources else {}
    return Topology(str(cluster_id), partitions, settings)


def _settings(responses: list[Any]) -> dict[str, dict[str, str]]:
    settings = {}
    for response in responses:
        for error, _, _, name, entries in response.resources:
            if error == 0:
                settings[name] = {entry[0]: entry[1] for entry in entries}
            else:
                log.warning("event=settings_unknown topic=%s needs=DESCRIBE_CONFIGS", name)
    return settings


def problems(config: Config, topology: Topology) -> list[Problem]:
    """Return what the configuration cannot work with, each with its remedy."""
    found = []
    count = config.topics.partitions
    missing = {}
    for topic, field in wanted_topics(config).items():
        has = topology.partitions.get(topic)
        if has is None:
            missing[topic] = field
        elif has != count:
            message = (
                f"topic {topic!r} has {has} partitions, topics.partitions says {count}: all topics of "
                "an application need the same number"
            )
            found.append(Problem(0, field, message))
    if missing:
        found.append(_missing(config, missing))
    found += _setting_problems(config, topology)
    return found


def _missing(config: Config, topics: Mapping[str, str]) -> Problem:
    """Return the one problem of topics that are not there, whether one or, before the first start, all of them."""
    count, rejects = config.topics.partitions, config.topics.rejects
    create = f"'stream-svt check -c {config.source} --create-topics'"
    if len(topics) == 1:
        [(topic, field)] = topics.items()
        operation = "WRITE" if topic == rejects else "READ"
        remedy = f"{create} creates it with {count} partition{'s' * (count != 1)}"
        return Problem(0, field, f"{unseen(topic, operation)}; {remedy}")
    names = list(topics)
    more = f" and {len(names) - SHOWN_TOPICS} more" if len(names) > SHOWN_TOPICS else ""
    also = f", operation WRITE on {rejects!r}" if rejects in topics else ""
    message = (
        f"{len(names)} topics do not exist: {', '.join(map(repr, names[:SHOWN_TOPICS]))}{more}: create them with "
        f"{create} (if they do exist, permission is missing: operation READ on resource TOPIC of each{also})"
    )
    return Problem(0, "topics", message)


def _setting_problems(config: Config, topology: Topology) -> Iterator[Problem]:
    def setting(topic: str, name: str, default: str = "") -> str:
        return topology.settings.get(topic, {}).get(name, default)

    own = config.topics
    for name, topic, what in (("state", own.state, "ledger"), ("config", own.config, "configuration")):
        policy = setting(topic, "cleanup.policy", "compact")
        if policy != "compact":
            harm = f"expected compact: retention would delete the {what}"
            yield Problem(0, f"topics.{name}", f"topic {topic!r} has cleanup.policy={policy}, {harm}")
    for topic in (own.alerts, own.rejects, own.control):
        if "compact" in setting(topic, "cleanup.policy"):
            harm = "expected delete: compaction would drop records"
            yield Problem(0, "topics", f"topic {topic!r} has cleanup.policy=compact, {harm}")
    for topic in config.spec.topics():
        policy = setting(topic, "cleanup.policy")
        if "compact" in policy:
            message = (
                f"topic {topic!r} has cleanup.policy={policy}, expected delete: of the queries of a dataset, which "
                "share its name as their key, compaction keeps the newest, and a takeover could not test the others "
                "again"
            )
            yield Problem(0, "monitors.topic", message)
    for topic in config.spec.topics_with_broker_time():
        settings = topology.settings.get(topic, {})
        if settings and settings.get("message.timestamp.type") != "LogAppendTime":
            message = (
                f"topic {topic!r} has message.timestamp.type={settings.get('message.timestamp.type')}, "
                "expected LogAppendTime: durations run on the broker's clock, not the producers'"
            )
            yield Problem(0, "monitors.topic", message)
    for number, monitor in enumerate(config.spec.monitors):
        retention = setting(monitor.topic, "retention.ms", "-1")
        lifetime = monitor.append.lifetime.ms if isinstance(monitor.append, Retry) else None
        if lifetime is not None and 0 <= int(retention) < lifetime:
            message = (
                f"{lifetime} ms is longer than topic {monitor.topic!r} keeps records "
                f"(retention.ms={retention}): waiting queries could not be read again after a takeover"
            )
            yield Problem(0, f"monitors[{number}].append.retry.lifetime", message)


async def require(config: Config, cluster: Cluster) -> Topology:
    """Return the topology, or refuse.

    Raises:
        ConfigError: With every problem found.
        BrokerError: As `look`.
    """
    topology = await look(config, cluster)
    found = problems(config, topology)
    if found:
        # A topic that was made a moment ago may not be known to every broker yet.
        await asyncio.sleep(SECOND_LOOK)
        topology = await look(config, cluster)
        found = problems(config, topology)
    if found:
        raise ConfigError(found, f"{config.source} against the topics of cluster {topology.cluster_id}")
    return topology
