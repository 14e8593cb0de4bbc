"""Decides what follows an error of a shard or of its worker's membership, and when a parked shard is tried again.

No error of a shard ends the process or the membership of its worker. Where the cause may be the worker's own (its key,
its clock), the worker tests itself and leaves if a test fails; the shard is parked meanwhile. A parked shard looks at
its partitions without a producer, so it fences nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from aiokafka import TopicPartition

from stream_svt import errors
from stream_svt.protocol.shard_states import Cause, ShardSignal
from stream_svt.service import kafka
from stream_svt.service.kafka import BrokerUnavailable, Cluster, Denied, Fenced, LoginRefused, TopicMissing
from stream_svt.service.topology import unseen
from stream_svt.settings.sections import TopicsConfig

MAYBE_LOCAL: Final = {Cause.SEALING_KEY, Cause.TIMESTAMP_AHEAD}
"""Causes that may be the worker's own."""
UNPROVED: Final = {Cause.STATE_UNREADABLE, Cause.STATE_ROLLED_BACK, Cause.SEALING_KEY}
REFUSED_BY_BROKERS: Final = {Cause.TOPIC_MISSING, Cause.PERMISSION, Cause.BROKER_REFUSED}

_OF_SHARD: Final[dict[type[BaseException], tuple[ShardSignal, Cause]]] = {
    # Somebody else may own the shard: it proves its membership before it is opened again.
    Fenced: (ShardSignal.FAILED, Cause.FENCED),
    BrokerUnavailable: (ShardSignal.FAILED, Cause.UNAVAILABLE),
    LoginRefused: (ShardSignal.FAILED, Cause.UNAVAILABLE),
    errors.ConfigurationBehind: (ShardSignal.FAILED, Cause.CONFIGURATION),
    # The next session finds out which, and waits with its state proved.
    errors.RecordsLost: (ShardSignal.FAILED, Cause.RECORDS_LOST),
    errors.ApplicationClosed: (ShardSignal.PARKED, Cause.CLOSED),
    errors.UnknownKey: (ShardSignal.PARKED, Cause.SEALING_KEY),
    errors.StateRolledBack: (ShardSignal.PARKED, Cause.STATE_ROLLED_BACK),
    errors.UnreadableState: (ShardSignal.PARKED, Cause.STATE_UNREADABLE),
    errors.TimestampAhead: (ShardSignal.PARKED, Cause.TIMESTAMP_AHEAD),
    errors.ConfigError: (ShardSignal.PARKED, Cause.CONFIGURATION),
    TopicMissing: (ShardSignal.PARKED, Cause.TOPIC_MISSING),
    Denied: (ShardSignal.PARKED, Cause.PERMISSION),
    errors.BrokerError: (ShardSignal.PARKED, Cause.BROKER_REFUSED),
    errors.StreamSvtError: (ShardSignal.PARKED, Cause.REFUSED_DATA),
    BaseException: (ShardSignal.FAILED, Cause.ERROR),
}
"""What follows an error of a shard, and the cause to show: the first line that fits."""


def classify(error: BaseException) -> tuple[ShardSignal, Cause]:
    """Return what follows an error of a shard, and the cause to show."""
    return next(decision for kind, decision in _OF_SHARD.items() if isinstance(error, kind))


def cause_outside(error: BaseException) -> Cause:
    """Return the cause to show of a worker that an error keeps out of its group."""
    _, cause = classify(error)
    return Cause.GROUP if cause is Cause.ERROR else cause


def ends_start(error: BaseException) -> bool:
    """Tell whether an error ends a worker that has not been a member yet: it cannot pass."""
    return (
        isinstance(error, errors.ConfigError | errors.BrokerError | errors.MisuseError)
        and not error.retriable
    )


@dataclass(frozen=True, slots=True)
class Survey:
    """What can be seen of a shard's partitions without a producer.

    ``spans`` are topic, first offset and end, but of a query or control topic no end. ``faults`` say what cannot be
    read, and ``missing`` that a topic is not there.
    """

    spans: tuple[tuple[str, int, int | None], ...] = ()
    faults: tuple[str, ...] = ()
    missing: bool = False
    control_end: int | None = field(default=None, compare=False)


async def survey(cluster: Cluster, shard: int, own: TopicsConfig, queries: Sequence[str]) -> Survey:
    """Look at the partitions that a shard reads: query topics, and the application's own."""
    doing = f"shard {shard}: looking at its topics"
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
                # The right to READ shows only in a fetch.
                await reader.getmany(*partitions, timeout_ms=300)
    except Denied as error:
        faults.append(str(error))
    spans = tuple(
        (one.topic, first, end if one.topic in written else None) for one, (first, end) in found.items()
    )
    _, control_end = found.get(TopicPartition(own.control, shard), (None, None))
    return Survey(spans, tuple(faults), bool(gone), control_end)
