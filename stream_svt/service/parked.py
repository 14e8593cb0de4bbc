"""What a parked shard watches: it is opened again once something around it has changed.

It reads without a producer, so it fences nobody. Each look compares its surroundings with those seen last: first
offsets and ends of its state and alert partitions, where its query and control partitions begin, and what cannot be
read. A record on its control partition opens it, too. What the brokers refused is tried once nothing speaks against it.

Where the state cannot be proved, all of this only makes the shard read its state again, and one that proves opens it.
One command is carried out meanwhile: the one that gives the state up and closes the shard.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aiokafka import TopicPartition

from stream_svt.errors import ApplicationClosed, StreamSvtError, UnreadableState
from stream_svt.protocol.controls import Verify, heard
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.ports import Record
from stream_svt.protocol.shard_states import Cause
from stream_svt.service import kafka
from stream_svt.service.kafka import Cluster
from stream_svt.service.topology import unseen
from stream_svt.settings.sections import TopicsConfig

log = logging.getLogger(__name__)

LOOK_AGAIN = (2.0, 5.0, 15.0, 30.0, 60.0)
"""Seconds between looks, one after the other; the last one for ever."""
UNPROVED = {Cause.STATE_UNREADABLE, Cause.STATE_ROLLED_BACK, Cause.SEALING_KEY}
_REFUSED_BY_BROKERS = {Cause.TOPIC_MISSING, Cause.PERMISSION, Cause.BROKER_REFUSED}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What can be seen of a shard's partitions without a producer.

    ``spans`` are topic, first offset and end, but of a query or control topic no end. ``faults`` say what cannot be
    read, and ``missing`` that a topic is not there.
    """

    spans: tuple[tuple[str, int, int | None], ...] = ()
    faults: tuple[str, ...] = ()
    missing: bool = False
    control_end: int | None = field(default=None, compare=False)


async def look_around(
    cluster: Cluster, shard: int, own: TopicsConfig, queries: Sequence[str]
) -> Surroundings:
    """Look at the partitions that a shard reads: query topics, and the application's own."""
    doing = f"shard {shard}: looking at its topics"
    written = (own.state, own.alerts)
    topics = [*queries, own.control, *written]
    counts = await kafka.partition_counts(cluster, doing)
    gone = [topic for topic in topics if counts.get(topic, 0) <= shard]
    places = [TopicPartition(topic, shard) for topic in topics if topic not in gone]
    faults = [unseen(topic, "READ") for topic in gone]
    found: kafka.Spans = {}
    try:
        async with kafka.started(cluster.reader(), doing) as reader:
            found = await kafka.edges(reader, places, doing)
            kafka.seek_all(reader, {place: end for place, (_, end) in found.items()})
            async with kafka.deadline(kafka.CALL_DEADLINE, doing):
                # The right to READ shows only in a fetch.
                await reader.getmany(*places, timeout_ms=300)
    except kafka.Denied as error:
        faults.append(str(error))
    spans = tuple(
        (one.topic, first, end if one.topic in written else None) for one, (first, end) in found.items()
    )
    _, control_end = found.get(TopicPartition(own.control, shard), (None, None))
    return Surroundings(spans, tuple(faults), bool(gone), control_end)


def worth_a_try(cause: Cause, before: Surroundings | None, now: Surroundings) -> bool:
    """Tell whether a shard that is parked for a cause should be opened, by this look and the one before it."""
    if before is None:
        return False
    return now != before or (cause in _REFUSED_BY_BROKERS and not now.faults)


async def proves(journal: Journal) -> bool:
    """Read a state again, without a producer, and tell whether to open its shard: it proves, or is closed."""
    try:
        await journal.look(beside_alerts=True)
    except ApplicationClosed:
        return True
    except UnreadableState:
        return False
    finally:
        await journal.close()
    return True


async def give_up(
    shard: int, records: Sequence[Record], verify: Verify, make_journal: Callable[[], Journal]
) -> None:
    """Give a shard's state up where a command asks for it; a refused one changes nothing, and the log says why."""
    for record in records:
        command = heard(record, verify)
        if isinstance(command, str) or not command.gives_up:
            continue
        journal = make_journal()
        try:
            await journal.give_up(command)
        except StreamSvtError as error:
            log.warning(
                "event=command_refused shard=%d action=%s error=%r", shard, command.action, str(error)
            )
        else:
            log.critical("event=shard_closed shard=%d successor=%s", shard, command.successor)
        finally:
            await journal.close()
