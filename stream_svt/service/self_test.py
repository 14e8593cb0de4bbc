"""What may be wrong with one worker alone: tested before it joins the group, and again where it shows.

A group cannot decline one partition, so a worker that fails a test takes none: others take its place. There is no test
of the disk, for a worker writes to none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import NamedTuple

from aiokafka.errors import IllegalOperation, InvalidTxnState, KafkaError

from stream_svt.errors import UnknownKey, UnreadableState
from stream_svt.protocol.shard_states import Cause
from stream_svt.protocol.state_records import META
from stream_svt.service.config import Config
from stream_svt.service.kafka import CALL_DEADLINE, Cluster, Fenced, deadline, started
from stream_svt.service.shard_log import sealing_of, stored_metas

CLOCK_TOLERANCE = 600.0
"""Seconds that the worker's clock may be off the brokers'."""


class WorkerFault(NamedTuple):
    """Why this worker cannot take part: a word for machines, and words with the remedy."""

    cause: Cause
    reason: str


async def self_test(
    config: Config, cluster: Cluster, cluster_id: str, *, epoch: Callable[[], float] = time.time
) -> WorkerFault | None:
    """Return the first fault of this worker alone, None where it may join."""
    if (fault := await _foreign_key(config, cluster, cluster_id)) is not None:
        return fault
    now = await broker_time(config, cluster)
    return None if now is None else compare_clocks(epoch(), now)


async def _foreign_key(config: Config, cluster: Cluster, cluster_id: str) -> WorkerFault | None:
    """Tell whether no shard's state opens, each for being sealed with a key that this worker lacks.

    One that does open shows that the keys are right; what does not is then the fault of that shard's records. Where the
    key is said to be lost, no other worker has it either.
    """
    if config.sealing.key_lost:
        return None
    unknown: UnknownKey | None = None
    async with aclosing(stored_metas(config, cluster)) as stored:
        async for shard, record in stored:
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
    return WorkerFault(
        Cause.SEALING_KEY, f"no shard's state opens with this worker's sealing keys: {unknown}"
    )


def compare_clocks(mine: float, brokers: float) -> WorkerFault | None:
    """Return the fault of a worker whose clock is far off the brokers', in seconds since 1970."""
    off = mine - brokers
    if abs(off) <= CLOCK_TOLERANCE:
        return None
    return WorkerFault(
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
    try:
        async with (
            started(cluster.producer(name), doing, "WRITE") as producer,
            deadline(CALL_DEADLINE, doing, "WRITE"),
        ):
            await producer.begin_transaction()
            sent = await (await producer.send(config.topics.rejects, b"", key=b"clock", partition=0))
            # Where this fails the brokers abort it by themselves.
            with suppress(KafkaError, IllegalOperation, InvalidTxnState):
                await producer.abort_transaction()
    except Fenced:  # another worker asks at the same moment
        return None
    return sent.timestamp / 1000 if sent.timestamp_type == 1 else None
