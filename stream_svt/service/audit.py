"""Reads the alert topic, and the stored state, for an audit and for what a successor begins with."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from aiokafka import TopicPartition

from stream_svt.errors import BrokerError, UnreadableState
from stream_svt.monitor.released import LARGEST_SEQUENCE, identity_of
from stream_svt.protocol.audit import Audit, StoredShard
from stream_svt.protocol.carry_over import CarryOverRefused, ShardHistory, carry_over
from stream_svt.protocol.sealing import proof_checker
from stream_svt.service import kafka
from stream_svt.service.codec import partition_of
from stream_svt.service.config import Config
from stream_svt.service.kafka import Cluster
from stream_svt.service.ports import journal_of
from stream_svt.service.topology import require, unseen
from stream_svt.settings.application import Carried
from stream_svt.settings.monitors import MonitorSpec


async def audit_state(config: Config, cluster: Cluster) -> Audit:
    """Audit the alert topic, and hold the sealed state to it."""
    topology = await require(config, cluster)
    alerts = config.topics.alerts
    places = [TopicPartition(alerts, shard) for shard in range(config.topics.partitions)]
    # Asked for before the state is read: an event is committed only after the transaction that charged it, so the
    # newest state knows every event before these ends, whatever a running worker does meanwhile.
    ends = await kafka.spans(cluster, places, f"auditing alert topic {alerts!r}")
    states, unreadable = [], []
    for shard in range(config.topics.partitions):
        try:
            states.append(await _read_state(config, cluster, topology.cluster_id, shard))
        except UnreadableState as error:
            unreadable.append(str(error))
    newer = {state.shard: (ends[places[state.shard]][1], state.last_event) for state in states}
    audit = await audit_topic(cluster, alerts, config.spec.monitors, newer)
    audit.unreadable += unreadable
    for place, (first, _) in ends.items():
        if first:
            audit.lost(place.partition)
    return audit.compare(states, lambda name: partition_of(name.encode(), config.topics.partitions))


async def _read_state(config: Config, cluster: Cluster, cluster_id: str, shard: int) -> StoredShard:
    """Read and verify the state of a shard; once more where a compaction may have come in between."""
    journal = journal_of(config, cluster, cluster_id, shard)
    try:
        records = await journal.look()
    except UnreadableState:
        records = await journal.look()
    return StoredShard.of(shard, records, journal)


async def audit_topic(
    cluster: Cluster,
    topic: str,
    monitors: Iterable[MonitorSpec] = (),
    newer: Mapping[int, tuple[int, int]] = MappingProxyType({}),
) -> Audit:
    """Audit everything an alert topic holds; ``monitors`` are those configured, to hold alerts to their prices.

    Left out are events that may be newer than the state they are held against: per partition those from an offset on
    with a number above one, as far as ``newer`` names both.
    """
    audit = Audit(monitors)
    doing = f"auditing alert topic {topic!r}"
    partitions = (await kafka.partition_counts(cluster, doing)).get(topic, 0)
    if not partitions:
        raise BrokerError(
            f"{unseen(topic, 'READ')}; the alert topic is topics.alerts of the configuration, by default "
            "'<application>.alerts'"
        )
    async with kafka.started(cluster.reader(), doing) as reader:
        for partition in range(partitions):
            end, last = newer.get(partition, (0, LARGEST_SEQUENCE))
            async for records in kafka.read_partition(reader, topic, partition, None, doing):
                for record in records:
                    if record.offset < end or identity_of(record.value)[0] <= last:
                        audit.add(partition, record.offset, record.value)
    return audit


async def read_balances(
    config: Config, cluster: Cluster, *, successor: str, source_ended: bool = False
) -> tuple[Carried, list[str]]:
    """Return what is left of each budget of a closed application, and what an operator should know of it.

    Of a mirror, ``config`` has the brokers and topics, and ``source_ended`` states that its source has ended and that
    it holds the last event. Raises CarryOverRefused where a shard is not closed, or for another successor.
    """
    cluster_id = await kafka.cluster_id_of(cluster)
    shards = await _histories(config, cluster, cluster_id)
    counts = {one.partitions for one in shards if one.partitions}
    if len(counts) > 1:
        raise CarryOverRefused(
            f"the shards do not agree how many there are: {', '.join(map(str, sorted(counts)))}. The alert topic holds "
            "the events of several applications"
        )
    count = counts.pop() if counts else config.topics.partitions
    shards = shards[:count] + [_history(config, number) for number in range(len(shards), count)]
    for one in shards:
        one.end()
    return carry_over(
        config.spec,
        shards,
        cluster=cluster_id,
        alerts=config.topics.alerts,
        successor=successor,
        home=lambda name: partition_of(name.encode(), count),
        now_ms=int(time.time() * 1000),
        source_ended=source_ended,
    )


async def _histories(config: Config, cluster: Cluster, cluster_id: str) -> list[ShardHistory]:
    """Read all alert partitions to their ends, uncommitted records too, and whether states say that they are closed."""
    topic = config.topics.alerts
    doing = f"reading alert topic {topic!r}"
    counts = await kafka.partition_counts(cluster, doing)
    if not counts.get(topic):
        raise CarryOverRefused(f"{unseen(topic, 'READ')}; nothing says what is left of any budget")
    found = [_history(config, number) for number in range(counts[topic])]
    for one in found[: counts.get(config.topics.state, 0)]:
        with contextlib.suppress(UnreadableState):
            one.closed = await journal_of(config, cluster, cluster_id, one.shard).read_closed()
    async with kafka.started(cluster.reader("read_uncommitted"), doing) as reader:
        for one in found:
            async for records in kafka.read_partition(reader, topic, one.shard, None, doing):
                for record in records:
                    one.take(record)
    return found


def _history(config: Config, shard: int) -> ShardHistory:
    return ShardHistory(config.spec.application, shard, proof_checker(config.master_keys))
