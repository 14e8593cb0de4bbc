"""Classifies the errors of shards and of the group membership, and surveys the partitions of a parked shard.

No error of a shard ends the process or the membership of its worker. If the worker may be the cause (its key, its
clock, its cluster), it tests itself and leaves the group if a test fails; the shard is parked meanwhile. A parked
shard reads its partitions without a producer, so it fences no other worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from aiokafka import TopicPartition

from stream_svt import errors
from stream_svt.application.topology import unseen
from stream_svt.kafka import clients as kafka
from stream_svt.kafka.clients import (
    BrokerUnavailable,
    Cluster,
    Denied,
    Fenced,
    LoginRefused,
    OtherCluster,
    TopicMissing,
)
from stream_svt.protocol.shard_states import Cause, ShardSignal
from stream_svt.settings.sections import TopicsConfig

MAYBE_LOCAL: Final = {Cause.SEALING_KEY, Cause.TIMESTAMP_AHEAD, Cause.OTHER_CLUSTER}
"""Causes that may lie in the worker rather than in the shard."""
UNPROVED: Final = {Cause.STATE_UNREADABLE, Cause.STATE_ROLLED_BACK, Cause.SEALING_KEY}
REFUSED_BY_BROKERS: Final = {Cause.TOPIC_MISSING, Cause.PERMISSION, Cause.BROKER_REFUSED}

_OF_SHARD: Final[dict[type[BaseException], tuple[ShardSignal, Cause]]] = {
    # Another worker may own the shard: this one proves its membership before it opens the shard again.
    Fenced: (ShardSignal.FAILED, Cause.FENCED),
    BrokerUnavailable: (ShardSignal.FAILED, Cause.UNAVAILABLE),
    LoginRefused: (ShardSignal.FAILED, Cause.UNAVAILABLE),
    errors.ConfigurationBehind: (ShardSignal.FAILED, Cause.CONFIGURATION),
    errors.RecordsUnreadable: (ShardSignal.FAILED, Cause.UNAVAILABLE),
    # The next session finds which records, and waits with its state proved.
    errors.RecordsLost: (ShardSignal.FAILED, Cause.RECORDS_LOST),
    errors.ApplicationClosed: (ShardSignal.PARKED, Cause.CLOSED),
    errors.UnknownKey: (ShardSignal.PARKED, Cause.SEALING_KEY),
    errors.StateRolledBack: (ShardSignal.PARKED, Cause.STATE_ROLLED_BACK),
    errors.UnreadableState: (ShardSignal.PARKED, Cause.STATE_UNREADABLE),
    errors.TimestampAhead: (ShardSignal.PARKED, Cause.TIMESTAMP_AHEAD),
    errors.ConfigError: (ShardSignal.PARKED, Cause.CONFIGURATION),
    TopicMissing: (ShardSignal.PARKED, Cause.TOPIC_MISSING),
    OtherCluster: (ShardSignal.PARKED, Cause.OTHER_CLUSTER),
    Denied: (ShardSignal.PARKED, Cause.PERMISSION),
    errors.BrokerError: (ShardSignal.PARKED, Cause.BROKER_REFUSED),
    errors.StreamSvtError: (ShardSignal.PARKED, Cause.REFUSED_DATA),
    BaseException: (ShardSignal.FAILED, Cause.ERROR),
}
"""Signal and reported cause for each error of a shard; the first matching line counts."""


def classify(error: BaseException) -> tuple[ShardSignal, Cause]:
    """Return the signal that an error of a shard leads to, and the cause to report."""
    return next(decision for kind, decision in _OF_SHARD.items() if isinstance(error, kind))


def cause_outside(error: BaseException) -> Cause:
    """Return the cause to report for a worker that an error keeps out of its group."""
    _, cause = classify(error)
    return Cause.GROUP if cause is Cause.ERROR else cause


def ends_start(error: BaseException) -> bool:
    """Return whether an error ends a worker that has not joined its group yet: no retry can succeed."""
    kinds = errors.ConfigError | errors.BrokerError | errors.MisuseError
    return isinstance(error, kinds) and not error.retriable


@dataclass(frozen=True, slots=True)
class Survey:
    """The state of a shard's partitions, by a reader without a producer.

    ``spans`` are topic, first offset and end offset (None for query and control topics). ``faults`` describe topics
    that cannot be read; ``missing``: whether one of them does not exist.
    """

    spans: tuple[tuple[str, int, int | None], ...] = ()
    faults: tuple[str, ...] = ()
    missing: bool = False
    control_end: int | None = field(default=None, compare=False)


async def survey(cluster: Cluster, shard: int, own: TopicsConfig, queries: Sequence[str]) -> Survey:
    """Read the offsets of a shard's partitions: query topics, and the application's own."""
    doing = f"shard {shard}: reading the offsets of its topics"
    written = (own.state, own.alerts)
    topics = [*queries, own.control, *written]
    counts = await kafka.partition_counts(cluster, doing)
    gone = [topic for topic in topics if counts.get(topic, 0) <= shard]
    partitions = [TopicPartition(topic, shard) for topic in topics if topic not in gone]
    faults = [unseen(topic, "READ") for topic in gone]
    found: kafka.Spans = {}
    try:
        async with kafka.started(cluster.reader(), doing) as reader:
            found = await kafka.edges(reader, partitions, doing)
            kafka.seek_all(reader, {tp: end for tp, (_, end) in found.items()})
            async with kafka.deadline(kafka.CALL_DEADLINE, doing):
                # Only a fetch shows whether READ is granted.
                await reader.getmany(*partitions, timeout_ms=300)
    except Denied as error:
        faults.append(str(error))
    ends = {tp.topic: end for tp, (_, end) in found.items()}
    spans = tuple(
        (tp.topic, first, ends[tp.topic] if tp.topic in written else None) for tp, (first, _) in found.items()
    )
    return Survey(spans, tuple(faults), bool(gone), ends.get(own.control))
