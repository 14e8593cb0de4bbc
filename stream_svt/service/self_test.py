"""What may be wrong with one worker alone: tested before it joins the group, and again where it shows.

A group cannot decline one partition, so a worker that fails a test takes none: others take its place. There is no test
of the disk, for a worker writes to none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import IllegalOperation, InvalidTxnState, KafkaError

from stream_svt.errors import UnknownKey, UnreadableState
from stream_svt.protocol.shard_states import Cause
from stream_svt.protocol.state_records import META
from stream_svt.service.check import newest_meta
from stream_svt.service.config import Config
from stream_svt.service.kafka import (
    CALL_DEADLINE,
    Cluster,
    Fenced,
    deadline,
    started,
)
from stream_svt.service.shard_log import sealing_of

log = logging.getLogger(__name__)

CLOCK_TOLERANCE = 600.0
"""Seconds that the worker's clock may be off the brokers'."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why this worker cannot take part: a word for machines, and words with the remedy."""

    cause: Cause
    reason: str


async def self_test(
    config: Config, cluster: Cluster, cluster_id: str, *, epoch: Callable[[], float] = time.time
) -> Fault | None:
    """Return the first fault of this worker alone, None where it may join."""
    if (fault := await _foreign_key(config, cluster, cluster_id)) is not None:
        return fault
    now = await broker_time(config, cluster)
    return None if now is None else compare_clocks(epoch(), now)


async def _foreign_key(config: Config, cluster: Cluster, cluster_id: str) -> Fault | None:
    """Tell whether no shard's state opens, each for being sealed with a key that this worker lacks.

    One that does open shows that the keys are right; what does not is then the fault of that shard's records. Where the
    key is said to be lost, no other worker has it either.
    """
    if config.sealing.key_lost:
        return None
    own = config.topics
    doing = f"reading topic {own.state!r}"
    unknown: UnknownKey | None = None
    async with started(cluster.reader(), doing) as reader:
        for shard in range(own.partitions):
            record = await newest_meta(reader, own.state, shard, doing)
            if record is None:
                continue
            try:
                sealing_of(config, cluster_id, shard).open(META, record)
            except UnknownKey as error:
                unknown = error
            except UnreadableState:
                continue  # damaged: says nothing about keys
            else:
                return None
    if unknown is None:
        return None
    return Fault(Cause.SEALING_KEY, f"no shard's state opens with this worker's sealing keys: {unknown}")


def compare_clocks(mine: float, brokers: float) -> Fault | None:
    """Return the fault of a worker whose clock is far off the brokers', in seconds since 1970."""
    off = mine - brokers
    if abs(off) <= CLOCK_TOLERANCE:
        return None
    return Fault(
        Cause.CLOCK,
        f"this machine's clock is {abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} the brokers'; set it",
    )


async def broker_time(config: Config, cluster: Cluster) -> float | None:
    """Return the brokers' time in seconds since 1970, None where they do not tell.

    They tell it in the answer to a record on a topic that goes by their clock. The record is sent to the reject topic
    in a transaction that is aborted, so nobody reads it.
    """
    name = f"{config.spec.application}-check"
    doing = f"asking for the brokers' time as {name!r}"
    place = TopicPartition(config.topics.rejects, 0)
    try:
        async with (
            started(cluster.producer(name), doing, "WRITE") as producer,
            deadline(CALL_DEADLINE, doing, "WRITE"),
        ):
            return await _stamp(producer, place)
    except Fenced:  # another worker asks at the same moment
        return None


async def _stamp(producer: Any, place: TopicPartition) -> float | None:  # noqa: ANN401  aiokafka has no types
    await producer.begin_transaction()
    sent = await (await producer.send(place.topic, b"", key=b"clock", partition=place.partition))
    try:
        await producer.abort_transaction()
    except (KafkaError, IllegalOperation, InvalidTxnState) as error:
        # The brokers abort it by themselves.
        log.debug("event=clock_abort_failed error=%s", type(error).__name__)
    return sent.timestamp / 1000 if sent.timestamp_type == 1 else None
