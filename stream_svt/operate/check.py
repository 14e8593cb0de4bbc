"""Checks everything that a worker needs; changes nothing unless asked to, and writes no record.

See `stream_svt.operate.permissions` for the way in which permissions are tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from functools import partial
from math import ceil
from typing import Final

from aiokafka import TopicPartition
from aiokafka.admin import NewTopic
from aiokafka.errors import TopicAuthorizationFailedError, for_code

from stream_svt.application.config import Config
from stream_svt.application.facts import read_facts
from stream_svt.application.topology import (
    COUNTS,
    LOG_APPEND_TIME,
    UNLIMITED,
    Topology,
    another_count,
    command_to_set,
    counter_problems,
    counts_topics,
    created_topics,
    log_topics,
    other_partitioner,
    problems,
    raw_topics,
    read_topology,
    retention_of,
    source_problems,
    wanted_topics,
)
from stream_svt.errors import BrokerError, ConfigError, UnreadableState
from stream_svt.kafka import clients as kafka
from stream_svt.kafka.aiokafka_fixes import wait_for_brokers
from stream_svt.kafka.clients import Cluster
from stream_svt.kafka.partitioning import PRODUCERS
from stream_svt.operate import running, succession
from stream_svt.operate.findings import CheckContext, Finding, behind, differences, note, ok, problem
from stream_svt.operate.lint import OTHER_PARTITIONER, Sample, sample
from stream_svt.operate.permissions import Tried, try_counter_permissions, try_permissions
from stream_svt.operate.source_topics import counts_kept_ms, source_advice
from stream_svt.planning.budget import SURE, reported_margin
from stream_svt.planning.difference import MIB, memory
from stream_svt.planning.promises import promises
from stream_svt.protocol.sealing import NO_KEY
from stream_svt.protocol.state_records import META
from stream_svt.settings.fields import Retry
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.wording import SHOWN, counted, listed, named
from stream_svt.worker.config_versions import changes, declared_in
from stream_svt.worker.ports import sealing_of

TRIED: Final = "tried"
UNTRIED: Final = "not tried"
"""Subjects of the findings that end a report."""
_BROKER_LIMIT: Final = 1_048_588
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
_FAR: Final = 3
"""Times the threshold: a monitor that surely reports only higher values than that is noted."""
_SAMPLE: Final = 200
"""Newest records of a query topic whose partitions are compared."""


def check_offline(config: Config) -> list[Finding]:
    """Check a valid configuration without brokers."""
    spec, shards = config.current, config.topics.partitions
    datasets, monitors = len(spec.datasets), len(spec.monitors)
    size = f"{counted(monitors, 'monitor')} on {counted(datasets, 'dataset')}"
    total, single = (ceil(size / MIB) for size in memory(spec, shards))
    one = f" with all {shards} shards, {single} MiB with one" if single < total else ""
    takes = f"a worker takes up to about {total} MiB{one}; muted and waiting queries come on top"
    findings = [
        ok("configuration", f"{config.source}: {size}"),
        ok("memory", takes),
        *(ok("promise", text) for text in promises(config.spec, int(time.time() * 1000))),
        *(note("configuration", str(one)) for one in config.notes),
        *(note(f"monitors.{one.name}.bounds", why) for one in spec.monitors if (why := _unreachable(one))),
        *_far_above(spec.monitors),
    ]
    if not config.sealing.master_keys:
        message = (
            f"state is not sealed: whoever may read topic {config.topics.state!r} can undo the noise; set "
            "sealing.keys"
        )
        findings.append(note("sealing", message))
    rule = f"need no signature: the ACL of topic {config.topics.control!r} decides"
    if config.control.keys:
        rule = f"must be signed with {', '.join(key.name for key in config.command_keys)}"
    alone = (
        "a dataset must belong to this application alone: a second application that monitors the same data "
        "keeps a second ledger, and the two losses add up. No check can see that"
    )
    return [*findings, ok("control", f"commands {rule}"), note("ledger", alone)]


def _unreachable(monitor: MonitorSpec) -> str:
    """Return why an alert of a monitor is unlikely whatever the values are, or ""."""
    needed, high = monitor.threshold + reported_margin(monitor, 0.5), monitor.bounds[1]
    if needed <= high:
        return ""
    return (
        f"values are clamped to {float(high):,g}, and a value of {float(needed):,g} is reported half of the time only: "
        "an alert is unlikely. Raise the upper bound or epsilon, or lower the threshold or the cutoff"
    )


def _far_above(monitors: Iterable[MonitorSpec]) -> Iterator[Finding]:
    """Yield that monitors of values from 0 on find only those far above their threshold, and what helps."""
    alike: dict[str, list[str]] = {}
    for one in monitors:
        margin = reported_margin(one, SURE)
        if one.detect or one.bounds[0] < 0 or not 0 < _FAR * one.threshold < one.threshold + margin:
            continue
        key = "sensitivity" if one.source is None else "at_most of its source's measures"
        remedies = {
            f"a higher epsilon (twice as much halves the {float(margin):,.6g} between them)": True,
            f"a lower {key} (now {float(one.sensitivity):g})": one.sensitivity > 1,
            "a longer window, with a threshold that is as many times higher": one.source is not None,
            f"a lower cutoff (now {one.cutoff})": one.cutoff > 1,
        }
        helps = listed([remedy for remedy, fits in remedies.items() if fits], len(remedies))
        text = (
            f"only a value of {float(one.threshold + margin):,g} or more is reported {SURE:.0%} of the time"
        )
        alike.setdefault(
            f"{text}, with a threshold of {float(one.threshold):,g}. What helps, in this order: {helps}", []
        ).append(one.name)
    for text, names in alike.items():
        yield note("monitors.threshold", f"{listed(names, SHOWN)}: {text}")


async def check_brokers(config: Config, cluster: Cluster, *, create_topics: bool = False) -> list[Finding]:
    """Check topics and permissions on the brokers, after creating missing topics if asked to."""
    created = await create_missing(config, cluster) if create_topics else []
    topology, state = await read_topology(config, cluster), config.topics.state
    findings = [ok("brokers", f"cluster {topology.cluster_id} answers"), *created]
    if state in topology.single:
        message = (
            f"topic {state!r} has one copy: losing that broker's disk loses the ledger, and no budget can be spent "
            "again; use replication factor 3 and min.insync.replicas 2 in production"
        )
        findings.append(note("topics.state", message))
    hidden = topology.hidden & {*raw_topics(config), *log_topics(config)}
    found = [*problems(config, topology), *([] if hidden else source_problems(config, topology))]
    good = f"all {len(wanted_topics(config))} topics exist, with {config.topics.partitions} partitions each"
    by = f"producers partition with {PRODUCERS[config.topics.partitioner]}"
    findings += [problem(one.field, one.message) for one in found] or [ok("topics", f"{good}; {by}")]
    if hidden:
        message = (
            "this user may not see what only a counter needs: 'stream-svt check --counter' checks as its user"
        )
        findings.append(ok("sources", message))
    findings += [*advice(config, topology), *source_advice(config, topology)]
    context = CheckContext(config, cluster, topology)
    checks = (_retention, _permissions, _partitioner, _applied, _released, _state, running.positions)
    for check in (*checks, running.shards, succession.predecessor, succession.move):
        try:
            findings += [one async for one in check(context)]
        except kafka.Denied as error:
            if not any(one.subject == "permissions" for one in findings):  # otherwise it is named already
                findings.append(problem("permissions", str(error)))
        except BrokerError as error:
            findings.append(problem("brokers", str(error)))
        except ConfigError as error:
            findings += [problem(one.field or error.source, one.message) for one in error.problems]
    return list(dict.fromkeys(findings))  # several checks may fail for the same reason


async def check_counter(config: Config, cluster: Cluster) -> list[Finding]:
    """Check topics and permissions of a counter on the brokers."""
    if not config.spec.sources:
        return [problem("sources", "the configuration declares none, so no counter has anything to do")]
    topology = await read_topology(config, cluster)
    wrong = [problem(one.field, one.message) for one in counter_problems(config, topology)]
    good = "raw topics, topics of counts and the event log are as a counter needs them"
    tried = await try_counter_permissions(config, cluster, topology)
    found = [*(wrong or [ok("topics", good)]), *source_advice(config, topology), *_outcomes(tried)]
    return [ok("brokers", f"cluster {topology.cluster_id} answers"), *found]


async def create_missing(config: Config, cluster: Cluster) -> list[Finding]:
    """Create missing topics; return findings for created topics and for failures.

    Creates none if an existing topic has another number of partitions: all would then need another number.
    """
    doing = "creating topics"
    counts = await kafka.partition_counts(cluster, doing)
    count, copies, creates = (
        config.topics.partitions,
        config.topics.replication_factor,
        created_topics(config),
    )
    for topic in wanted_topics(config):
        if counts.get(topic, count) != count:
            return [problem("topics", f"none was created: {another_count(topic, counts[topic], count)}")]
    wanted = [
        NewTopic(name, parts, copies, topic_configs=topic_settings(config, name))
        for name, parts in creates.items()
        if name not in counts
    ]
    if not wanted:
        return []
    async with (
        kafka.started(cluster.admin(), doing) as admin,
        kafka.deadline(kafka.START_DEADLINE, doing, "CREATE"),
    ):
        await wait_for_brokers(admin, controller=True)
        answer = await admin.create_topics(wanted)
    created = {name for name, code, *_ in answer.topic_errors if code == 0}
    findings = [ok("topics", f"created {name!r} with {creates[name]} partitions") for name in sorted(created)]
    for name, code, *rest in answer.topic_errors:
        if code:
            reason = rest[0] if rest and code != TopicAuthorizationFailedError.errno else None
            error = kafka.explain(for_code(code)(reason or name), f"creating topic {name!r}", "CREATE")
            findings.append(problem("topics", str(error)))
    # The controller has created the topics; brokers learn of them a moment later.
    end = time.monotonic() + kafka.CALL_DEADLINE
    while time.monotonic() < end:
        topology = await read_topology(config, cluster)
        if topology.partitions.keys() >= created:
            break
        await asyncio.sleep(0.2)
    return findings


def topic_settings(config: Config, topic: str) -> dict[str, str]:
    """Return the settings a topic is created with."""
    own = config.topics
    copies = {"min.insync.replicas": "2"} if own.replication_factor >= 3 else {}
    # Brokers refuse, or delete early, records with a producer's timestamp that is far off.
    clock = {"message.timestamp.type": "LogAppendTime"}
    # The service writes uncompressed records; see `advice` for why other writers may not.
    small = {"compression.type": "uncompressed", **clock}
    safe = {"unclean.leader.election.enable": "false", **small, **copies}
    if topic in (own.state, own.config):
        return {
            "cleanup.policy": "compact",
            "segment.bytes": str(64 << 20),
            "segment.ms": str(_HOUR_MS),
            "min.cleanable.dirty.ratio": "0.1",
            "max.compaction.lag.ms": str(_HOUR_MS),
            **(
                {"delete.retention.ms": str(_HOUR_MS)} if topic == own.state else {}
            ),  # a takeover reads tombstones, too
            **safe,
        }
    if topic in counts_topics(config):
        nominal = {"message.timestamp.type": "CreateTime", "message.timestamp.before.max.ms": UNLIMITED}
        return {
            "cleanup.policy": "delete",
            "retention.ms": str(counts_kept_ms(config, topic)),
            "retention.bytes": "-1",
            **safe,
            **nominal,
        }
    if topic in log_topics(config):
        # The counter deletes what it needs no more, in whole segments.
        return {"cleanup.policy": "delete", "retention.ms": "-1", "segment.bytes": str(64 << 20), **safe}
    kept, others = {
        own.alerts: (-1, safe),
        own.control: (30 * _DAY_MS, safe),
        own.rejects: (7 * _DAY_MS, small),
    }.get(topic, (7 * _DAY_MS, clock | copies))
    return {"cleanup.policy": "delete", "retention.ms": str(kept), **others}


def advice(config: Config, topology: Topology) -> Iterator[Finding]:
    """Check topic settings that are allowed but not advisable."""
    own = config.topics
    state, alerts = (topology.settings.get(topic, {}) for topic in (own.state, own.alerts))
    weak = partial(note, "topics.state")
    if state.get("unclean.leader.election.enable") == "true":
        yield weak(
            "unclean.leader.election.enable=true can lose the newest charges: "
            + command_to_set(config, own.state, "unclean.leader.election.enable=false")
        )
    if own.replication_factor >= 2 and state.get("min.insync.replicas") == "1":
        yield weak(
            "min.insync.replicas=1: a charge counts as durable on one broker: "
            + command_to_set(config, own.state, "min.insync.replicas=2")
        )
    if int(state.get("segment.bytes", 0)) > 256 << 20 and int(state.get("segment.ms", 0)) > _DAY_MS:
        yield weak(
            f"topic {own.state!r} rolls segments so rarely that compaction hardly ever runs: closed runs stay readable "
            f"and a takeover reads all of it: {command_to_set(config, own.state, 'segment.bytes=67108864')}"
        )
    if limits := retention_of(alerts):
        # After a loss of state, the remaining budgets are derived from these events.
        forever = command_to_set(config, own.alerts, "retention.ms=-1,retention.bytes=-1")
        finding, remedy = problem, f"{forever}, or accept it: topics.allow_alert_retention: true"
        if own.allow_alert_retention:
            finding, remedy = note, "topics.allow_alert_retention accepts that"
        yield finding(
            "topics.alerts",
            f"topic {own.alerts!r} forgets events ({', '.join(limits)}): `stream-svt audit` cannot re-derive what they "
            f"charged, and where a state is lost, datasets without an event that is left have nothing left. {remedy}",
        )
    for topic, path in wanted_topics(config).items():
        settings = topology.settings.get(topic, {})
        if path not in ("monitors.topic", COUNTS) and settings.get("message.timestamp.type") == "CreateTime":
            yield note(
                "topics",
                f"topic {topic!r} has timestamps of its producers: brokers refuse records of a clock that is an hour "
                "ahead, and delete early those of one that is behind: "
                + command_to_set(config, topic, LOG_APPEND_TIME),
            )
        if path == COUNTS and settings.get("retention.bytes", "-1") != "-1":
            yield note(
                path,
                f"topic {topic!r} forgets counts by size. If its batches are compressed, their size depends on counts, "
                "and so does how far back `stream-svt look` reads, which it shows: "
                + command_to_set(config, topic, "retention.bytes=-1"),
            )
        limit = int(settings.get("max.message.bytes", _BROKER_LIMIT))
        shrink = command_to_set(config, topic, f"max.message.bytes={_BROKER_LIMIT}")
        if topic in (own.state, own.alerts) and limit < _BROKER_LIMIT:
            yield problem("topics", f"topic {topic!r} takes records of {limit} bytes at most: {shrink}")
        if limit > _BROKER_LIMIT and settings.get("compression.type") != "uncompressed":
            yield note(
                path,
                f"topic {topic!r} takes compressed batches of {limit} bytes, and each can unpack to a thousand "
                f"times that in a worker's memory: {shrink}, or set "
                "compression.type=uncompressed: the limit then holds for what is unpacked",
            )


async def _retention(context: CheckContext) -> AsyncIterator[Finding]:
    """Compare lifetimes in offsets with the records still held by partitions that have lost some."""
    for number, monitor in enumerate(context.config.spec.monitors):
        lifetime = monitor.append.lifetime.offsets if isinstance(monitor.append, Retry) else None
        if lifetime is None:
            continue
        topic = monitor.topic
        partitions = [
            TopicPartition(topic, part) for part in range(context.topology.partitions.get(topic, 0))
        ]
        held = await kafka.spans(context.cluster, partitions, "looking at what query topics hold")
        short = [str(one.partition) for one, (first, end) in held.items() if 0 < first > end - lifetime]
        if short:
            message = (
                f"{lifetime} offsets is longer than topic {topic!r} keeps records: partitions {', '.join(short)} have "
                "lost records and hold fewer; raise retention or shorten the lifetime"
            )
            yield problem(f"monitors[{number}].append.retry.lifetime", message)


async def _permissions(context: CheckContext) -> AsyncIterator[Finding]:
    for one in _outcomes(await try_permissions(context.config, context.cluster, context.topology)):
        yield one


def _outcomes(tried: Tried) -> Iterator[Finding]:
    yield from (problem("permissions", refusal) for refusal in tried.refused)
    yield ok(TRIED, ", ".join(tried.allowed) or "nothing")
    yield ok(UNTRIED, ", ".join(tried.untried))


async def _partitioner(context: CheckContext) -> AsyncIterator[Finding]:
    """Compare the partitioner with the version applied last, and with the newest records of each query topic."""
    config, samples = context.config, dict[str, Sample]()
    with contextlib.suppress(BrokerError):  # `_permissions` says which one is missing
        applied = await context.applied()
        if applied is not None and applied.bundle.partitioner != config.topics.partitioner:
            raise other_partitioner(applied.bundle.partitioner, config)
        if context.fits(*config.spec.topics()):
            samples = await sample(config, context.cluster, _SAMPLE)
    for topic, found in samples.items():
        if count := found.found[OTHER_PARTITIONER]:
            # Older records may lie behind a change.
            finding = problem if 2 * count > found.records else note
            message = f"{topic}: {count} of the newest {found.records} records are refused: "
            yield finding("topics.partitioner", message + config.partitioning.misrouted())


async def _applied(context: CheckContext) -> AsyncIterator[Finding]:
    """Compare the configuration with the version applied last: changes, removals, and refusals."""
    config, own = context.config, context.config.topics
    if not context.fits(own.alerts) or (applied := await context.applied()) is None:
        return
    change = await changes(config, context.cluster, applied, declared_in(applied))
    for refused in change.refused:
        yield problem(refused.field, refused.message)
    for removed in change.removals:
        yield note("apply", removed)
    if change.has_changes:
        apply = f"'stream-svt apply -c {config.source}' shows the changes and asks"
        yield note("configuration", f"differs from version {applied.number}, which workers run: {apply}")


async def _state(context: CheckContext) -> AsyncIterator[Finding]:
    """Check that a worker can open the stored state of all shards."""
    config = context.config
    if not context.fits(config.topics.state):
        return
    stored = await context.states()
    refused = [
        problem("sealing.keys", why) for why in unreadable_states(config, context.topology.cluster_id, stored)
    ]
    key = "with the configured keys" if config.sealing.master_keys else "without a key"
    message = f"what {len(stored)} of {config.topics.partitions} shards have stored opens {key}"
    for finding in refused or [ok("state", message if stored else "nothing is stored yet")]:
        yield finding


async def _released(context: CheckContext) -> AsyncIterator[Finding]:
    """Compare the configuration and the states with the newest events."""
    config, own = context.config, context.config.topics
    if not context.fits(own.alerts, own.state, own.config):
        return
    # Before the states, which include all events published before.
    shown = await read_facts(config, context.cluster)
    stored, applied = await context.states(), await context.applied()
    found = [
        *differences(config, shown, version=(0, "") if applied is None else (applied.number, applied.digest)),
        *behind(stored, await context.metas(), shown),
    ]
    for one in found:
        yield one
    shards = f"{sum(one.events > 0 for one in shown.shards.values())} of {own.partitions} shards"
    seen = f"events of {shards}, accounts of {len(shown.accounts)} of {len(config.current.datasets)} datasets"
    yield ok("alerts", f"compared with the newest {seen}" + ("" if found else ": no difference"))


def unreadable_states(config: Config, cluster_id: str, stored: Mapping[int, bytes]) -> list[str]:
    """Return the reasons why a worker would refuse the record `meta` of shards, each once."""
    shards: dict[str, list[int]] = {}
    for shard, record in stored.items():
        try:
            opened = sealing_of(config, cluster_id, shard).open(META, record)
        except UnreadableState as error:
            # The worker's message, without its prefix and its end about parking.
            why = str(error).partition(": ")[2].removesuffix(" Nothing was changed.")
        else:
            if not config.sealing.master_keys or opened.key_id != NO_KEY or config.sealing.adopt_plain:
                continue
            why = (
                "it is not sealed although a key is configured. If it never was, set sealing.adopt_plain for one "
                "start, which seals it; if it was, somebody replaced it."
            )
        shards.setdefault(why, []).append(shard)
    return [
        f"no worker can open the state of {named('shard', numbers, running.SHARDS_SHOWN)} on topic "
        f"{config.topics.state!r}: {why}"
        for why, numbers in shards.items()
    ]
