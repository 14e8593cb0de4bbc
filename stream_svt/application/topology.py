"""Compares the topics on the brokers with what the configuration needs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import TopicAuthorizationFailedError

from stream_svt.application.config import Config
from stream_svt.errors import BrokerError, ConfigError, Problem
from stream_svt.kafka.clients import CALL_DEADLINE, Cluster, deadline, partition_counts, started
from stream_svt.settings.fields import Retry
from stream_svt.settings.sources import LOG_PARTITIONS, log_topic
from stream_svt.wording import listed

log = logging.getLogger(__name__)

RETRY_AFTER = 1.0
"""Seconds before topics with problems are read again."""
CREATE = "; 'stream-svt check -c FILE --create-topics' creates it"
ALERT_TOPIC = (
    f"; the alert topic is topics.alerts of the configuration, by default '<application>.alerts'{CREATE}"
)
"""Hint for a topic that an option names."""
LOG_APPEND_TIME = "message.timestamp.type=LogAppendTime"
COUNTS, LOG, RAW = "sources.counts", "sources.log", "sources.topic"
"""Stand for the fields that name topics of counts, the event log, and topics of raw events."""
UNLIMITED = str(2**63 - 1)
SHOWN_TOPICS = 10
"""Maximum number of missing topics that a message names."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Topics on the brokers: partitions, visible settings, those with one replica, and those hidden from this user."""

    cluster_id: str
    partitions: Mapping[str, int]
    settings: Mapping[str, Mapping[str, str]]
    single: frozenset[str] = frozenset()
    hidden: frozenset[str] = frozenset()


def wanted_topics(config: Config) -> dict[str, str]:
    """Return the topics with a partition for each shard, with the configuration fields that name them."""
    names = ("control", "alerts", "state", "rejects", "config")
    own = {getattr(config.topics, name): f"topics.{name}" for name in names}
    counts = dict.fromkeys(counts_topics(config), COUNTS)
    return dict.fromkeys(config.spec.topics(), "monitors.topic") | counts | own


def counts_topics(config: Config) -> list[str]:
    """Return the topics of counts."""
    return [source.counts_topic(config.spec.application) for source in config.spec.sources]


def asked_topics(config: Config) -> list[str]:
    """Return the topics of counts that their counter reads, too: monitors ask questions about earlier windows."""
    asked = (source for source in config.spec.sources if config.spec.window_list(source).questions)
    return [source.counts_topic(config.spec.application) for source in asked]


def log_topics(config: Config) -> list[str]:
    """Return the topic of the event log of the application's sources, if it has any."""
    return [log_topic(config.spec.application)] if config.spec.sources else []


def raw_topics(config: Config) -> list[str]:
    """Return the topics of raw events, each once."""
    return list(dict.fromkeys(source.topic for source in config.spec.sources))


def created_topics(config: Config) -> dict[str, int]:
    """Return the topics that ``check --create-topics`` creates, with their numbers of partitions."""
    shards = dict.fromkeys(wanted_topics(config), config.topics.partitions)
    return shards | dict.fromkeys(log_topics(config), LOG_PARTITIONS)


def retention_of(settings: Mapping[str, str]) -> list[str]:
    """Return the settings of a topic by which it forgets records."""
    names = ("retention.ms", "retention.bytes")
    return [f"{name}={settings[name]}" for name in names if settings.get(name, "-1") != "-1"]


def command_to_set(config: Config, topic: str, setting: str) -> str:
    """Return the command of Apache Kafka that changes a setting of a topic."""
    changes = f"--alter --entity-type topics --entity-name {topic} --add-config {setting}"
    return _admin_command(config, "kafka-configs.sh", changes)


def _admin_command(config: Config, program: str, arguments: str) -> str:
    """Return a command of Apache Kafka about topics."""
    login = " --command-config client.properties" if config.kafka.security_protocol != "PLAINTEXT" else ""
    return f"'{program} --bootstrap-server {config.kafka.bootstrap_servers[0]}{login} {arguments}'"


def unseen(topic: str, operation: str) -> str:
    """Return a message for a topic that brokers do not list: it is missing, or this user has no right to it."""
    return (
        f"topic {topic!r} does not exist, or this user may not see it: then permission is missing, "
        f"operation {operation} on resource TOPIC {topic!r}"
    )


def partitions_of(counts: Mapping[str, int], topic: str, operation: str = "READ", hint: str = CREATE) -> int:
    """Return the number of partitions of a topic; raise BrokerError, ended by ``hint``, if brokers do not list it.

    Clients wait, without an error, for topics that are missing or hidden from this user. ``counts`` are those of
    `partition_counts`.
    """
    if not (count := counts.get(topic, 0)):
        raise BrokerError(unseen(topic, operation) + hint)
    return count


async def read_partitions_of(
    cluster: Cluster, topic: str, doing: str, operation: str = "READ", hint: str = CREATE
) -> int:
    """Read the number of partitions of a topic, as `partitions_of` does."""
    return partitions_of(await partition_counts(cluster, doing), topic, operation, hint)


async def read_topology(config: Config, cluster: Cluster) -> Topology:
    """Read the application's topics and their settings from the brokers."""
    doing = "looking at the topics"
    async with started(cluster.admin(), doing) as admin, deadline(CALL_DEADLINE, doing, "DESCRIBE"):
        described = await admin.describe_topics([*created_topics(config), *raw_topics(config)])
        parts = {topic["topic"]: topic["partitions"] for topic in described if topic["error_code"] == 0}
        cluster_id = str((await admin.describe_cluster())["cluster_id"])
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in parts]
        answers = await admin.describe_configs(resources) if resources else []
    settings = {}
    for error, _, _, name, entries in chain.from_iterable(answer.resources for answer in answers):
        if error == 0:
            settings[name] = {entry[0]: entry[1] for entry in entries}
        else:
            log.warning("event=settings_unknown topic=%s needs=DESCRIBE_CONFIGS", name)
    single = frozenset(name for name, part in parts.items() if {len(one["replicas"]) for one in part} == {1})
    denied = TopicAuthorizationFailedError.errno
    hidden = frozenset(topic["topic"] for topic in described if topic["error_code"] == denied)
    return Topology(cluster_id, {name: len(part) for name, part in parts.items()}, settings, single, hidden)


def problems(config: Config, topology: Topology) -> list[Problem]:
    """Return why workers cannot work with these topics, with remedies."""
    return _problems(config, topology, wanted_topics(config))


def counter_problems(config: Config, topology: Topology) -> list[Problem]:
    """Return why a counter cannot work with these topics, with remedies; of the workers' own it needs one only."""
    fields = (COUNTS, "topics.config")
    needed = {topic: field for topic, field in wanted_topics(config).items() if field in fields}
    return [*_problems(config, topology, needed), *source_problems(config, topology)]


def _problems(config: Config, topology: Topology, wanted: Mapping[str, str]) -> list[Problem]:
    count, missing, found = config.topics.partitions, {}, []
    for topic, field in wanted.items():
        has = topology.partitions.get(topic)
        if has is None:
            missing[topic] = field
        elif has != count:
            found.append(Problem(0, field, another_count(topic, has, count)))
    if missing:
        found.append(_missing(config, missing))
    return [*found, *_setting_problems(config, topology)]


def source_problems(config: Config, topology: Topology) -> list[Problem]:
    """Return what is wrong with the raw topics and the event log, with remedies."""
    found = []
    for topic in log_topics(config):
        if (has := topology.partitions.get(topic)) is None:
            found.append(Problem(0, LOG, unseen(topic, "READ") + CREATE))
        elif has != LOG_PARTITIONS:
            message = f"topic {topic!r} has {has} partitions, expected {LOG_PARTITIONS}: create it again"
            found.append(Problem(0, LOG, f"{message} while no source has begun"))
        wrong = "the counter would lose what an open window needs"
        wanted = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        found += _unlike(config, topology, topic, LOG, wanted, wrong)
        clock = {"message.timestamp.type": "LogAppendTime"}
        found += _unlike(config, topology, topic, LOG, clock, "the counter reads the brokers' clock there")
    for topic in raw_topics(config):
        if topic not in topology.partitions:
            remedy = _admin_command(
                config, "kafka-topics.sh", f"--create --topic {topic} --config {LOG_APPEND_TIME}"
            )
            own = f"A topic of raw events is yours: --create-topics does not create it, {remedy} does"
            found.append(Problem(0, RAW, f"{unseen(topic, 'READ')}. {own}"))
        if "compact" in (policy := topology.settings.get(topic, {}).get("cleanup.policy", "")):
            message = (
                f"topic {topic!r} has cleanup.policy={policy}: compaction drops events that were not counted"
            )
            found.append(Problem(0, RAW, f"{message} yet. Count a topic that is not compacted"))
    return found


def _unlike(
    config: Config, topology: Topology, topic: str, field: str, wanted: Mapping[str, str], why: str
) -> Iterator[Problem]:
    """Yield the visible settings of a topic that are not as wanted."""
    settings = topology.settings.get(topic, {})
    for name, value in wanted.items():
        if (has := settings.get(name, value)) != value:
            remedy = command_to_set(config, topic, f"{name}={value}")
            yield Problem(0, field, f"topic {topic!r} has {name}={has}, expected {value}: {why}; {remedy}")


def another_count(topic: str, has: int, wanted: int) -> str:
    """Return a message for a topic whose number of partitions differs from the configuration."""
    return (
        f"topic {topic!r} has {has} partitions, topics.partitions says {wanted}: all topics of an application need "
        "the same number. Before its first start, declare that of the query topics, and create its own topics with "
        "it; later, close the application and carry its budgets over to a successor"
    )


def other_partitioner(applied: str, config: Config) -> ConfigError:
    """Return the error for a configuration with another partitioner than every version of the application has."""
    message = (
        f"is {config.topics.partitioner}, and the application began with {applied}, which fixes the shard of every "
        "dataset: a dataset would get a second ledger. Restore it; to change it, close the application and carry its "
        "budgets over to a successor"
    )
    return ConfigError([Problem(0, "topics.partitioner", message)], config.source)


def _missing(config: Config, topics: Mapping[str, str]) -> Problem:
    """Return one problem for all missing topics: before the first start, none exists."""
    create, rejects = f"'stream-svt check -c {config.source} --create-topics'", config.topics.rejects
    if len(topics) == 1:
        [(topic, field)] = topics.items()
        reason = unseen(topic, "WRITE" if topic == rejects else "READ")
        return Problem(0, field, f"{reason}; {create} creates it")
    names = list(map(repr, topics))
    also = f", operation WRITE on {rejects!r}" if rejects in topics else ""
    message = (
        f"{len(names)} topics do not exist: {listed(names, SHOWN_TOPICS)}: create them with "
        f"{create} (if they do exist, permission is missing: operation READ on resource TOPIC of each{also})"
    )
    return Problem(0, "topics", message)


def _setting_problems(config: Config, topology: Topology) -> Iterator[Problem]:
    own = config.topics
    for topic, field in wanted_topics(config).items():
        policy = topology.settings.get(topic, {}).get("cleanup.policy")
        wanted = "compact" if topic in (own.state, own.config) else "delete"
        # Settings may be hidden from this user.
        if policy is None or policy == wanted or (wanted == "delete" and "compact" not in policy):
            continue
        harm = "compaction would drop records"
        if wanted == "compact":
            harm = f"retention would delete the {'ledger' if topic == own.state else 'configuration'}"
        elif field in ("monitors.topic", COUNTS):
            harm = (
                "of the queries of a dataset, which share its name as their key, compaction keeps the newest, and a "
                "takeover could not test the others again"
            )
        remedy = command_to_set(config, topic, f"cleanup.policy={wanted}")
        if field == "monitors.topic":
            remedy = (
                f"copy the queries to a topic of their own, or, if no reader needs the compaction, {remedy}"
            )
        message = f"topic {topic!r} has cleanup.policy={policy}, expected {wanted}: {harm}; {remedy}"
        yield Problem(0, field, message)
    for topic in counts_topics(config):
        nominal = "their timestamps are the ends of ticks, which the counter may write much later"
        clock = {"message.timestamp.type": "CreateTime", "message.timestamp.before.max.ms": UNLIMITED}
        yield from _unlike(config, topology, topic, COUNTS, clock, nominal)
    for topic in config.spec.topics_with_broker_time():
        settings = topology.settings.get(topic, {})
        if settings and settings.get("message.timestamp.type") != "LogAppendTime":
            message = (
                f"topic {topic!r} has message.timestamp.type={settings.get('message.timestamp.type')}, "
                "expected LogAppendTime: durations run on the broker's clock, not the producers'. "
                f"{command_to_set(config, topic, LOG_APPEND_TIME)} sets it for later records; every reader of "
                "the topic then sees the time of the append instead of the producer's, in its windows and joins, "
                "too. If one needs the producer's time, copy the queries to a topic of their own"
            )
            yield Problem(0, "monitors.topic", message)
    for number, monitor in enumerate(config.spec.monitors):
        retention = topology.settings.get(monitor.topic, {}).get("retention.ms", "-1")
        lifetime = monitor.append.lifetime.ms if isinstance(monitor.append, Retry) else None
        if lifetime is not None and 0 <= int(retention) < lifetime:
            message = (
                f"{lifetime} ms is longer than topic {monitor.topic!r} keeps records "
                f"(retention.ms={retention}): waiting queries could not be read again after a takeover"
            )
            yield Problem(0, f"monitors[{number}].append.retry.lifetime", message)


async def require(config: Config, cluster: Cluster, *, sources: bool = False) -> Topology:
    """Return the topology, or raise ConfigError with all problems of a worker, or with ``sources`` of a counter."""
    problems_of = counter_problems if sources else problems
    topology = await read_topology(config, cluster)
    if problems_of(config, topology):
        # Not every broker knows a topic right after its creation.
        await asyncio.sleep(RETRY_AFTER)
        topology = await read_topology(config, cluster)
    if found := problems_of(config, topology):
        raise ConfigError(found, f"{config.source} against the topics of cluster {topology.cluster_id}")
    return topology
