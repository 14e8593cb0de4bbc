"""Looks at everything a worker will need, changes nothing unless asked to, and leaves no record behind.

Permissions to read are tried by fetching. Permissions to write are tried with a record that the broker
refuses as too large: it looks at the permission first, so its answer tells, and nothing is ever stored. The
transactional id tried is the application's prefix with a name no shard has, so that no live worker is fenced.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partialmethod
from math import ceil
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewTopic
from aiokafka.errors import MessageSizeTooLargeError, TopicAuthorizationFailedError, for_code

from stream_svt.errors import BrokerError, UnreadableState
from stream_svt.planning.memory import MIB, needed
from stream_svt.protocol.sealing import NO_KEY
from stream_svt.protocol.state_records import META
from stream_svt.service.config import Config
from stream_svt.service.control import standings
from stream_svt.service.kafka import (
    CALL_DEADLINE,
    START_DEADLINE,
    Cluster,
    deadline,
    group_offsets,
    partition_counts,
    read_partition,
    spans,
    started,
)
from stream_svt.service.stored_state import sealing_of
from stream_svt.service.topology import Topology, group_id, look, problems, wanted_topics
from stream_svt.settings.options import Retry

_BROKER_LIMIT: Final = 1_048_588
_LARGEST_PROBE: Final = 8 << 20
_FIRST_REACH: Final = 256
_LOOK_AGAIN: Final = 0.2
"""Seconds between looks at topics that were just created."""
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS


class Level(StrEnum):
    """How much a finding matters: as it should be, works but may not be meant, the service cannot work with it."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: its subject, and what to do where something is to be done."""

    level: Level
    subject: str
    message: str


@dataclass(slots=True)
class Report:
    """What was looked at, in order."""

    findings: list[Finding] = field(default_factory=list)

    @property
    def problems(self) -> list[Finding]:
        """What the service cannot work with."""
        return [finding for finding in self.findings if finding.level is Level.PROBLEM]

    def add(self, level: Level, subject: str, message: str) -> None:
        """Note what was found."""
        self.findings.append(Finding(level, subject, message))

    ok = partialmethod(add, Level.OK)
    note = partialmethod(add, Level.NOTE)
    problem = partialmethod(add, Level.PROBLEM)


def check_offline(config: Config) -> Report:
    """Return what can be said about a valid configuration without asking any broker."""
    report = Report()
    spec = config.current
    datasets, monitors = len(spec.datasets), len(spec.monitors)
    size = f"{monitors} monitor{'s' * (monitors != 1)} on {datasets} dataset{'s' * (datasets != 1)}"
    report.ok("configuration", f"{config.source}: {size}")
    report.ok("memory", _memory(config))
    for note in config.notes:  # those of the specification are among them
        report.note("configuration", str(note))
    if config.master_key is None:
        message = (
            "state is not sealed: whoever may read topic "
            f"{config.topics.state!r} can undo the noise; set sealing.key_file or key_command"
        )
        report.note("sealing", message)
    rule = f"need no signature: the ACL of topic {config.topics.control!r} decides"
    if config.control.required:
        rule = f"must be signed with {', '.join(key.name for key in config.command_keys)}"
    report.ok("control", f"commands {rule}")
    report.note(
        "ledger",
        "a dataset must belong to this application alone: a second application that monitors the same data "
        "keeps a second ledger, and the two losses add up. No check can see that",
    )
    return report


def _memory(config: Config) -> str:
    """Return how much memory workers take, in words."""
    shards = config.topics.partitions
    memory = needed(config.current, shards)
    one = f" with all {shards} shards, {ceil(memory.one_shard / MIB)} MiB with one" if shards > 1 else ""
    return f"a worker takes up to about {ceil(memory.all_shards / MIB)} MiB{one}; muted and waiting queries come on top"


async def check_brokers(config: Config, cluster: Cluster, *, create_topics: bool = False) -> Report:
    """Return what the brokers say about topics and permissions, after creating what is missing if asked to.

    Raises:
        BrokerError: They cannot be reached, or refuse the login.
    """
    report = Report()
    topology = await _topology(config, cluster, report, create_topics=create_topics)
    found = problems(config, topology)
    for problem in found:
        report.problem(problem.field, problem.message)
    if not found:
        count = config.topics.partitions
        report.ok("topics", f"all {len(wanted_topics(config))} topics exist, with {count} partitions each")
    _hint(config, topology, report)
    await _check_retention(config, cluster, topology, report)
    await _check_permissions(config, cluster, topology, report)
    await _check_state(config, cluster, topology, report)
    await _check_predecessor(config, cluster, topology, report)
    return report


async def create_missing(config: Config, cluster: Cluster) -> Report:
    """Create the topics that are not there; return what was done, and what could not be.

    Raises:
        BrokerError: The brokers cannot be reached, or refuse the login.
    """
    report = Report()
    await _topology(config, cluster, report, create_topics=True)
    return report


async def _topology(config: Config, cluster: Cluster, report: Report, *, create_topics: bool) -> Topology:
    doing = "looking at the topics"
    wanted = wanted_topics(config)
    async with started(cluster.admin(), doing) as admin, deadline(START_DEADLINE, doing, "DESCRIBE"):
        # All topics: one asked for by its name would be created by a lenient broker.
        described = {topic["topic"]: topic["partitions"] for topic in await admin.describe_topics()}
        cluster_id = str((await admin.describe_cluster())["cluster_id"])
        report.ok("brokers", f"cluster {cluster_id} answers")
        missing = [topic for topic in wanted if topic not in described]
        if missing and create_topics:
            missing = await _create(admin, config, missing, report)
    state = config.topics.state
    if {len(part["replicas"]) for part in described.get(state, ())} == {1}:
        report.note(
            "topics.state",
            f"topic {state!r} has one copy: losing that broker's disk loses the ledger, and no budget can be spent "
            "again; use replication factor 3 and min.insync.replicas 2 in production",
        )
    if missing:
        partitions = {topic: len(parts) for topic, parts in described.items() if topic in wanted}
        created = set(wanted) - set(missing) - set(partitions)
        counts = partitions | dict.fromkeys(created, config.topics.partitions)
        return Topology(cluster_id, counts, {})
    end = time.monotonic() + CALL_DEADLINE
    topology = await look(config, cluster)
    # The controller has created them; each broker learns of it a moment later.
    while create_topics and not topology.partitions.keys() >= wanted.keys() and time.monotonic() < end:
        await asyncio.sleep(_LOOK_AGAIN)
        topology = await look(config, cluster)
    return topology


def topic_settings(config: Config, topic: str) -> dict[str, str]:
    """Return the settings a topic is created with."""
    own = config.topics
    copies = {"min.insync.replicas": "2"} if own.replication_factor >= 3 else {}
    # The brokers' clock everywhere: no broker takes, or keeps, a record from a clock that is far off.
    clock = {"message.timestamp.type": "LogAppendTime"}
    # What the service writes it does not compress, and nobody else shall: see _hint.
    small = {"compression.type": "uncompressed", **clock}
    safe = {"unclean.leader.election.enable": "false", **small, **copies}
    if topic in (own.state, own.config):
        return {
            "cleanup.policy": "compact",
            "segment.bytes": str(64 << 20),
            "segment.ms": str(_HOUR_MS),
            "min.cleanable.dirty.ratio": "0.1",
            "max.compaction.lag.ms": str(_HOUR_MS),
            **safe,
        }
    if topic == own.alerts:
        return {"cleanup.policy": "delete", "retention.ms": "-1", **safe}
    if topic == own.control:
        return {"cleanup.policy": "delete", "retention.ms": str(30 * _DAY_MS), **safe}
    if topic == own.rejects:
        return {"cleanup.policy": "delete", "retention.ms": str(7 * _DAY_MS), **small}
    return {"cleanup.policy": "delete", "retention.ms": str(7 * _DAY_MS), **clock, **copies}


async def _create(admin: Any, config: Config, missing: list[str], report: Report) -> list[str]:  # noqa: ANN401
    """Create topics and return those that could not be."""
    response = await admin.create_topics(
        [
            NewTopic(
                name=topic,
                num_partitions=config.topics.partitions,
                replication_factor=config.topics.replication_factor,
                topic_configs=topic_settings(config, topic),
            )
            for topic in missing
        ]
    )
    failed = []
    for name, code, *rest in response.topic_errors:
        if code == 0:
            report.ok("topics", f"created {name!r} with {config.topics.partitions} partitions")
        else:
            failed.append(name)
            detail = (rest[0] if rest else None) or for_code(code).__name__
            if code == TopicAuthorizationFailedError.errno:
                detail = f"permission is missing: operation CREATE on resource TOPIC {name!r}"
            report.problem("topics", f"topic {name!r} could not be created: {detail}")
    return failed


def _hint(config: Config, topology: Topology, report: Report) -> None:
    own = config.topics
    state = topology.settings.get(own.state, {})
    if int(state.get("segment.bytes", 0)) > 256 << 20 and int(state.get("segment.ms", 0)) > _DAY_MS:
        report.note(
            "topics.state",
            f"topic {own.state!r} rolls segments of {state['segment.bytes']} bytes: compaction never "
            "touches the newest one, so a takeover reads all of it and closed runs stay readable; set "
            "segment.bytes=67108864",
        )
    if float(state.get("min.cleanable.dirty.ratio", 0)) > 0.3:
        ratio = state["min.cleanable.dirty.ratio"]
        report.note(
            "topics.state", f"min.cleanable.dirty.ratio={ratio} compacts late; 0.1 keeps takeovers short"
        )
    if state.get("unclean.leader.election.enable") == "true":
        message = "unclean.leader.election.enable=true can lose the newest charges; set it to false"
        report.note("topics.state", message)
    if own.replication_factor >= 2 and state.get("min.insync.replicas") == "1":
        message = "min.insync.replicas=1: a charge counts as durable on one broker; set it to 2"
        report.note("topics.state", message)
    _check_alert_retention(config, topology, report)
    for topic in (own.state, own.alerts, own.rejects, own.control, own.config):
        if topology.settings.get(topic, {}).get("message.timestamp.type") == "CreateTime":
            report.note(
                "topics",
                f"topic {topic!r} goes by its writers' clocks: a broker refuses the records of one that is an hour "
                "ahead, and deletes early those of one that is behind; set message.timestamp.type=LogAppendTime",
            )
    for topic in (own.state, own.alerts):
        limit = int(topology.settings.get(topic, {}).get("max.message.bytes", _BROKER_LIMIT))
        if limit < _BROKER_LIMIT:
            least = f"at least {_BROKER_LIMIT} are needed"
            report.problem("topics", f"topic {topic!r} takes records of {limit} bytes at most; {least}")
    for topic, path in wanted_topics(config).items():
        settings = topology.settings.get(topic, {})
        limit = int(settings.get("max.message.bytes", _BROKER_LIMIT))
        if limit > _BROKER_LIMIT and settings.get("compression.type") != "uncompressed":
            report.note(
                path,
                f"topic {topic!r} takes compressed batches of {limit} bytes, and each can unpack to a thousand "
                f"times that in a worker's memory; set max.message.bytes={_BROKER_LIMIT}, or "
                "compression.type=uncompressed: the limit then holds for what is unpacked",
            )


def _check_alert_retention(config: Config, topology: Topology, report: Report) -> None:
    """Refuse an alert topic that forgets: what is left of the budgets of a lost state is read from it."""
    own, settings = config.topics, topology.settings.get(config.topics.alerts, {})
    names = ("retention.ms", "retention.bytes")
    limits = [f"{name}={settings[name]}" for name in names if settings.get(name, "-1") != "-1"]
    if not limits:
        return
    loss = (
        f"topic {own.alerts!r} forgets events ({', '.join(limits)}): `stream-svt audit` cannot re-derive what they "
        "charged, and where a state is lost, datasets without an event that is left have nothing left"
    )
    if own.allow_alert_retention:
        report.note("topics.alerts", f"{loss}; topics.allow_alert_retention accepts that")
    else:
        report.problem(
            "topics.alerts", f"{loss}. Set both to -1, or accept it: topics.allow_alert_retention: true"
        )


async def _check_retention(config: Config, cluster: Cluster, topology: Topology, report: Report) -> None:
    """Compare lifetimes counted in offsets with what partitions that already lose records still hold."""
    doing = "looking at what query topics hold"
    for number, monitor in enumerate(config.spec.monitors):
        lifetime = monitor.append.lifetime.offsets if isinstance(monitor.append, Retry) else None
        if lifetime is None or monitor.topic not in topology.partitions:
            continue
        places = [TopicPartition(monitor.topic, part) for part in range(topology.partitions[monitor.topic])]
        held = await spans(cluster, places, doing)
        short = [
            place.partition for place, (first, end) in held.items() if first > 0 and end - first < lifetime
        ]
        if short:
            report.problem(
                f"monitors[{number}].append.retry.lifetime",
                f"{lifetime} offsets is longer than topic {monitor.topic!r} keeps records: partitions "
                f"{', '.join(map(str, short))} have lost records and hold fewer; raise retention or "
                "shorten the lifetime",
            )


async def _check_state(config: Config, cluster: Cluster, topology: Topology, report: Report) -> None:
    """Look whether a worker could open what the shards have stored."""
    own = config.topics
    if topology.partitions.get(own.state) != own.partitions:
        return
    doing = f"reading topic {own.state!r}"
    stored: dict[int, bytes] = {}
    try:
        async with started(cluster.reader(), doing) as reader:
            for shard in range(own.partitions):
                newest = await newest_record(reader, own.state, shard, META, doing)
                if newest is not None:
                    stored[shard] = newest
    except BrokerError as error:
        if str(error) not in {problem.message for problem in report.problems}:
            report.problem("topics.state", str(error))
        return
    refused = unopened(config, topology.cluster_id, stored)
    for message in refused:
        report.problem("sealing.key_command" if config.sealing.key_command else "sealing.key_file", message)
    if not refused:
        key = "without a key" if config.master_key is None else "with the configured keys"
        found = f"what {len(stored)} of {own.partitions} shards have stored opens {key}"
        report.ok("state", found if stored else "nothing is stored yet")


async def _check_predecessor(config: Config, cluster: Cluster, topology: Topology, report: Report) -> None:
    """Look, where its alerts can be seen, whether the application carried over was closed for this one."""
    carried = config.spec.carried
    if carried is None or carried.cluster != topology.cluster_id:
        return
    doing = f"looking at the end of alert topic {carried.alerts!r}"
    try:
        count = (await partition_counts(cluster, doing)).get(carried.alerts, 0)
        places = [TopicPartition(carried.alerts, shard) for shard in range(count)]
        async with started(cluster.reader(), doing) as reader:
            ends = await standings(reader, places) if places else {}
    except BrokerError as error:
        report.note("carried_over", str(error))
        return
    application = f"application {carried.application!r}"
    others = sorted({one.successor for one in ends.values()} - {config.spec.application, ""})
    still_open = ", ".join(str(shard) for shard, one in sorted(ends.items()) if not one.successor)
    if others:
        message = f"{application} was closed for {others[0]!r}: both would spend what it left"
        report.problem("carried_over", message)
    elif still_open:
        message = f"{application} is not closed: shard {still_open} may still spend what was carried over"
        report.problem("carried_over", message)
    elif ends:
        report.ok("carried_over", f"{application} was closed for this one")
    else:
        message = f"the alerts of {application} are not there: no check can see that it was closed"
        report.note("carried_over", message)


async def newest_record(
    reader: AIOKafkaConsumer, topic: str, partition: int, key: bytes, doing: str
) -> bytes | None:
    """Return the newest value under a key that every transaction writes; looks from the end."""
    place = TopicPartition(topic, partition)
    async with deadline(CALL_DEADLINE, doing):
        first = (await reader.beginning_offsets([place]))[place]
        end = (await reader.end_offsets([place]))[place]
    reach = _FIRST_REACH
    while first < end:
        start = max(first, end - reach)
        found: list[bytes] = []
        async for records in read_partition(reader, topic, partition, start, doing):
            found += [one.value for one in records if one.key == key and one.value is not None]
        if found or start == first:
            return found[-1] if found else None
        reach *= 16
    return None


def unopened(config: Config, cluster_id: str, stored: Mapping[int, bytes]) -> list[str]:
    """Return why a worker would refuse the record `meta` of shards, each reason once."""
    shards: dict[str, list[int]] = {}
    for shard, record in stored.items():
        try:
            opened = sealing_of(config, cluster_id, shard).open(META, record)
        except UnreadableState as error:
            # In the words of the worker, but for what becomes of its shard.
            why = str(error).partition(": ")[2].removesuffix(" The shard is parked; nothing was changed.")
        else:
            if config.master_key is None or opened.key_id != NO_KEY or config.sealing.adopt_plain:
                continue
            why = (
                "it is not sealed although a key is configured. If it never was, set sealing.adopt_plain for one "
                "start, which seals it; if it was, somebody replaced it."
            )
        shards.setdefault(why, []).append(shard)
    return [
        f"no worker can open the state of shard{'s' * (len(numbers) != 1)} {', '.join(map(str, numbers))} on topic "
        f"{config.topics.state!r}: {why}"
        for why, numbers in shards.items()
    ]


async def _check_permissions(config: Config, cluster: Cluster, topology: Topology, report: Report) -> None:
    before = len(report.problems)
    for attempt in _attempts(config, cluster, topology, report):
        try:
            await attempt
        except BrokerError as error:
            report.problem("permissions", str(error))
    if len(report.problems) == before:
        report.ok(
            "permissions", "reading, writing, transactions and the group are allowed, as far as can be tried"
        )


def _attempts(
    config: Config, cluster: Cluster, topology: Topology, report: Report
) -> Iterator[Awaitable[object]]:
    own, group = config.topics, group_id(config.spec.application)
    for topic in (*config.spec.topics(), own.config, own.control, own.state, own.alerts):
        if topic in topology.partitions:
            yield _read(cluster, topic)
    for topic in (own.state, own.alerts, own.rejects):
        if topic in topology.partitions:
            yield _write(cluster, topic, topology.settings.get(topic, {}), report)
    yield _begin_transactions(cluster, f"{config.spec.application}-check")
    yield group_offsets(cluster, group, f"looking at group {group!r}")


async def _read(cluster: Cluster, topic: str) -> None:
    doing = f"reading topic {topic!r}"
    place = TopicPartition(topic, 0)
    async with started(cluster.reader(), doing) as reader, deadline(CALL_DEADLINE, doing):
        reader.assign([place])
        await reader.seek_to_beginning(place)
        await reader.getmany(place, timeout_ms=300, max_records=1)


async def _write(cluster: Cluster, topic: str, settings: Mapping[str, str], report: Report) -> None:
    doing = f"writing to topic {topic!r}"
    limit = int(settings.get("max.message.bytes", _LARGEST_PROBE))
    if limit >= _LARGEST_PROBE:
        report.note("permissions", f"{doing} was not tried: its largest record is not known or beyond 8 MiB")
        return
    producer = AIOKafkaProducer(
        **cluster.arguments, acks="all", max_request_size=2 * _LARGEST_PROBE, client_id="stream-svt-check"
    )
    async with started(producer, doing, "WRITE"), deadline(CALL_DEADLINE, doing, "WRITE"):
        with contextlib.suppress(MessageSizeTooLargeError):
            await producer.send_and_wait(topic, bytes(limit + 1024), key=b"check", partition=0)


async def _begin_transactions(cluster: Cluster, name: str) -> None:
    async with started(cluster.producer(name), f"starting a transaction as {name!r}", "WRITE"):
        pass
