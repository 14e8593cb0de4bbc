"""Reads the alert topic, and the stored state, for an audit (`stream_svt.protocol.audit`); disturbs no worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from aiokafka import TopicPartition

from stream_svt.errors import BrokerError, UnreadableState
from stream_svt.monitor.released import LARGEST_SEQUENCE, identity_of
from stream_svt.protocol.audit import Audit, Auditor
from stream_svt.protocol.audit_state import ShardState, compare
from stream_svt.service.codec import home
from stream_svt.service.config import Config
from stream_svt.service.kafka import Cluster, partition_counts, read_partition, spans, started
from stream_svt.service.shard_log import journal_of
from stream_svt.service.topology import require, unseen
from stream_svt.settings.monitors import MonitorSpec

OnRecords = Callable[[int], None]
"""Told the number of records read, as reading goes on."""


async def audit_state(config: Config, cluster: Cluster, *, on_records: OnRecords | None = None) -> Audit:
    """Audit the alert topic, and hold the sealed state to it; disturbs no running worker.

    Raises:
        BrokerError, ConfigError: Topics cannot be read or do not fit.
    """
    topology = await require(config, cluster)
    alerts = config.topics.alerts
    places = [TopicPartition(alerts, shard) for shard in range(config.topics.partitions)]
    # Asked for before the state is read: an event is committed only after the transaction that charged it, so the
    # newest state knows every event before these ends, whatever a running worker does meanwhile.
    ends = await spans(cluster, places, f"auditing alert topic {alerts!r}")
    auditor, states = Auditor(config.spec.monitors), []
    for shard in range(config.topics.partitions):
        try:
            states.append(await _read_state(config, cluster, topology.cluster_id, shard))
        except UnreadableState as error:
            auditor.audit.unreadable.append(str(error))
    newer = {state.shard: (ends[places[state.shard]][1], state.last_event) for state in states}
    await _add_topic(auditor, cluster, alerts, on_records, newer)
    for place, (first, _) in ends.items():
        if first:
            auditor.lost(place.partition)
    return compare(auditor, states, lambda name: home(name.encode(), config.topics.partitions))


async def _read_state(config: Config, cluster: Cluster, cluster_id: str, shard: int) -> ShardState:
    """Read and verify the state of a shard; once more where a compaction may have come in between."""
    journal = journal_of(config, cluster, cluster_id, shard)
    try:
        records = await journal.look()
    except UnreadableState:
        records = await journal.look()
    return ShardState.of(shard, records, journal)


async def audit_topic(
    cluster: Cluster,
    topic: str,
    monitors: Iterable[MonitorSpec] = (),
    *,
    on_records: OnRecords | None = None,
) -> Audit:
    """Audit everything an alert topic holds; ``on_records(count)`` is called as it goes.

    ``monitors`` are those configured, to hold alerts to their prices.
    """
    auditor = Auditor(monitors)
    await _add_topic(auditor, cluster, topic, on_records)
    return auditor.audit


async def _add_topic(
    auditor: Auditor,
    cluster: Cluster,
    topic: str,
    on_records: OnRecords | None = None,
    newer: Mapping[int, tuple[int, int]] | None = None,
) -> None:
    """Add the events of a topic.

    Left out are events that may be newer than the state they are held against: per partition those from an offset on
    with a number above one, as far as ``newer`` names both.
    """
    doing = f"auditing alert topic {topic!r}"
    partitions = (await partition_counts(cluster, doing)).get(topic, 0)
    if not partitions:
        raise BrokerError(
            f"{unseen(topic, 'READ')}; the alert topic is topics.alerts of the configuration, by default "
            "'<application>.alerts'"
        )
    async with started(cluster.reader(), doing) as reader:
        for partition in range(partitions):
            end, last = (newer or {}).get(partition, (0, LARGEST_SEQUENCE))
            async for records in read_partition(reader, topic, partition, None, doing):
                for record in records:
                    if record.offset >= end and identity_of(record.value)[0] > last:
                        continue
                    auditor.add(partition, record.offset, record.value)
                if on_records is not None:
                    on_records(len(records))
