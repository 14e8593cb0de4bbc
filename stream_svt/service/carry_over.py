"""Reads the alert partitions of an application that was closed, and whether its state says so, too."""

from __future__ import annotations

import time

from stream_svt.errors import UnreadableState
from stream_svt.protocol.carry_over import CarryOverRefused, ShardHistory, carry_over
from stream_svt.protocol.sealing import proof_checker
from stream_svt.protocol.state_records import Closed
from stream_svt.service.codec import home
from stream_svt.service.config import Config
from stream_svt.service.kafka import Cluster, cluster_id_of, partition_counts, read_partition, started
from stream_svt.service.shard_log import journal_of, masters
from stream_svt.service.topology import unseen
from stream_svt.settings.carried import Carried


async def read_balances(
    config: Config,
    cluster: Cluster,
    *,
    successor: str,
    source_ended: bool = False,
) -> tuple[Carried, list[str]]:
    """Return what is left of each budget of an application, and what an operator should know of it; writes nothing.

    Args:
        config: The application as it was configured last; where it reads a mirror, with the mirror's brokers
            and topics.
        successor: Name of the application that goes on.
        source_ended: Whether the operator states, of a mirror, that the source has ended and that the mirror
            holds its last event.

    Raises:
        CarryOverRefused: The alert topic is not there, a shard is not closed, or it is closed for another
            successor.
        BrokerError: Topics cannot be read.
    """
    cluster_id = await cluster_id_of(cluster)
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
        home=lambda name: home(name.encode(), count),
        now_ms=int(time.time() * 1000),
        source_ended=source_ended,
    )


async def _histories(config: Config, cluster: Cluster, cluster_id: str) -> list[ShardHistory]:
    """Read all alert partitions to their ends, uncommitted records too."""
    topic = config.topics.alerts
    doing = f"reading alert topic {topic!r}"
    counts = await partition_counts(cluster, doing)
    count = counts.get(topic, 0)
    if not count:
        raise CarryOverRefused(f"{unseen(topic, 'READ')}; nothing says what is left of any budget")
    found = [_history(config, number) for number in range(count)]
    for one in found[: counts.get(config.topics.state, 0)]:
        one.closed = await _closed(config, cluster, cluster_id, one.shard)
    async with started(cluster.reader("read_uncommitted"), doing) as reader:
        for one in found:
            async for records in read_partition(reader, topic, one.shard, None, doing):
                for record in records:
                    one.take(record)
    return found


def _history(config: Config, shard: int) -> ShardHistory:
    return ShardHistory(config.spec.application, shard, proof_checker(masters(config)))


async def _closed(config: Config, cluster: Cluster, cluster_id: str, shard: int) -> Closed | None:
    """Return how a shard was closed, as its state says; None where it does not."""
    journal = journal_of(config, cluster, cluster_id, shard)
    try:
        return await journal.read_closed()
    except UnreadableState:
        return None
