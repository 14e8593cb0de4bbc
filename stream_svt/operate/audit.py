"""Reads the alert topic and the stored state: for an audit, and for the budgets that a successor takes over."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping

import msgspec
from aiokafka import TopicPartition

from stream_svt.application.config import Config
from stream_svt.application.topology import ALERT_TOPIC, read_partitions_of, require, unseen
from stream_svt.errors import UnreadableState
from stream_svt.kafka import clients as kafka
from stream_svt.kafka.clients import Cluster
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.monitor.released import LARGEST_SEQUENCE, event_in
from stream_svt.protocol.history.audit import Audit, StoredShard
from stream_svt.protocol.history.carry_over import CarryOverRefused, ShardHistory, carry_over
from stream_svt.protocol.sealing import proof_checker
from stream_svt.settings.carried import Carried
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.worker.ports import journal_of


async def audit_state(config: Config, cluster: Cluster) -> Audit:
    """Audit the alert topic, and compare the sealed state with it."""
    topology = await require(config, cluster)
    alerts = config.topics.alerts
    partitions = [TopicPartition(alerts, shard) for shard in range(config.topics.partitions)]
    # The ends are read before the state: an event is published only after the transaction that charged it, so the
    # state has the charges of all events before these ends, even while workers run.
    spans = await kafka.spans(cluster, partitions, f"auditing alert topic {alerts!r}")
    states, unreadable = [], []
    for shard in range(config.topics.partitions):
        try:
            states.append(await _read_state(config, cluster, topology.cluster_id, shard))
        except UnreadableState as error:
            unreadable.append(str(error))
    known = {state.shard: (spans[partitions[state.shard]][1], state.last_event) for state in states}
    audit = await audit_topic(cluster, alerts, config.spec.monitors, known)
    audit.unreadable += unreadable
    # If events are left, the number of the first one shows that others were deleted.
    for tp, (first, _) in spans.items():
        if first and not audit.last_sequence[tp.partition]:
            audit.truncated.add(tp.partition)
    audit.compare(states, config.home)
    for tp, (first, _) in spans.items():
        if not first and tp.partition in audit.truncated:
            audit.report(
                "it begins at offset 0 and does not show the first events: the topic was created again, and events are "
                "gone",
                f"partition {tp.partition} of alert topic {alerts!r}",
            )
    return audit


async def _read_state(config: Config, cluster: Cluster, cluster_id: str, shard: int) -> StoredShard:
    journal = journal_of(config, cluster, cluster_id, shard)
    try:
        records = await journal.inspect()
    except UnreadableState:
        # A compaction during the first attempt can cause this.
        records = await journal.inspect()
    return StoredShard.of(shard, records, journal)


async def audit_topic(
    cluster: Cluster,
    topic: str,
    monitors: Iterable[MonitorSpec] = (),
    known: Mapping[int, tuple[int, int]] | None = None,
) -> Audit:
    """Audit all events on an alert topic; ``monitors`` are the configured ones, whose prices alerts must have.

    ``known`` has an offset and an event number per partition: events from that offset on with a higher number may be
    newer than the state to compare with, and are skipped.
    """
    audit = Audit(monitors)
    doing = f"auditing alert topic {topic!r}"
    partitions = await read_partitions_of(cluster, topic, doing, hint=ALERT_TOPIC)
    async with kafka.started(cluster.reader(), doing) as reader:
        for partition in range(partitions):
            end, last = (known or {}).get(partition, (LARGEST_SEQUENCE, 0))
            async for record in kafka.read_partition(reader, TopicPartition(topic, partition), None, doing):
                newer = event_in(record.value) if record.offset >= end else None
                if newer is None or newer.sequence <= last:
                    audit.add(partition, record.offset, record.value)
    return audit


async def read_balances(
    config: Config, cluster: Cluster, *, successor: str, source_ended: bool = False
) -> tuple[Carried, list[str]]:
    """Return the remaining budgets of a closed application, and notes for the operator.

    ``config`` names brokers and topics of the application or its mirror; for a mirror, ``source_ended`` asserts that
    the source has ended and the mirror has its last event. Raises CarryOverRefused if a shard is not closed, or was
    closed for another successor.
    """
    cluster_id = await kafka.cluster_id_of(cluster)
    shards = await _histories(config, cluster, cluster_id)
    partitioning = _partitioning(config, shards)
    shards = shards[: partitioning.partitions] + [
        _history(config, number) for number in range(len(shards), partitioning.partitions)
    ]
    for one in shards:
        one.end()
    return carry_over(
        config.spec,
        shards,
        cluster=cluster_id,
        alerts=config.topics.alerts,
        successor=successor,
        home=lambda name: partitioning.of(name.encode()),
        now_ms=int(time.time() * 1000),
        source_ended=source_ended,
    )


def _partitioning(config: Config, shards: Iterable[ShardHistory]) -> Partitioning:
    """Return the partitioning of the datasets, from the first event of each shard; as configured without events."""
    begun = sorted({(one.partitions, one.partitioner) for one in shards if one.partitions})
    if len(begun) > 1:
        shown = ", ".join(f"{partitions} with {partitioner}" for partitions, partitioner in begun)
        raise CarryOverRefused(
            f"the events of shards name different partitions or partitioners: {shown}. The alert topic holds events "
            "of several applications"
        )
    try:
        return msgspec.convert(begun[0], Partitioning) if begun else config.partitioning
    except msgspec.ValidationError:
        raise CarryOverRefused(
            f"the events of shards name no partitioner of this version: {begun[0][1]!r}"
        ) from None


async def _histories(config: Config, cluster: Cluster, cluster_id: str) -> list[ShardHistory]:
    """Read all alert partitions, including uncommitted records, and from the states which shards are closed."""
    topic = config.topics.alerts
    doing = f"reading alert topic {topic!r}"
    counts = await kafka.partition_counts(cluster, doing)
    if not counts.get(topic):
        raise CarryOverRefused(f"{unseen(topic, 'READ')}; nothing says what is left of any budget")
    histories = [_history(config, number) for number in range(counts[topic])]
    for one in histories[: counts.get(config.topics.state, 0)]:
        with contextlib.suppress(UnreadableState):
            one.closed = await journal_of(config, cluster, cluster_id, one.shard).read_closed()
    async with kafka.started(cluster.reader("read_uncommitted"), doing) as reader:
        for one in histories:
            async for record in kafka.read_partition(reader, TopicPartition(topic, one.shard), None, doing):
                one.take(record)
    return histories


def _history(config: Config, shard: int) -> ShardHistory:
    return ShardHistory(config.spec.application, shard, proof_checker(config.sealing.master_keys))
