"""Reads the reject topic, with the remedy for each reason, and the record at a position of another topic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from stream_svt.application.config import Config
from stream_svt.application.keys import likeness
from stream_svt.application.topology import read_partitions_of, unseen
from stream_svt.errors import BrokerError, StreamSvtError
from stream_svt.kafka import clients as kafka
from stream_svt.kafka.clients import Cluster
from stream_svt.plain_text import escaped
from stream_svt.protocol.controls import Refusal
from stream_svt.protocol.records import Record
from stream_svt.queries import reasons
from stream_svt.settings.application import ApplicationSpec
from stream_svt.wording import more
from stream_svt.worker.ports import Reject

_OPERATOR = "send commands with 'stream-svt control' only"
_NO_TIME = (ValueError, OverflowError, OSError)
"""Errors for a timestamp that is no date: a producer chooses it, and may count in microseconds."""
_SIGN = "send it again with --signing-key; if nobody of yours sent it, restrict WRITE on the control topic"

REMEDIES: Final[Mapping[str, str]] = {
    **reasons.REMEDIES,
    Refusal.EMPTY: _OPERATOR,
    Refusal.TOO_LARGE: _OPERATOR,
    Refusal.NOT_JSON: _OPERATOR,
    Refusal.BAD_FIELD: f"{_OPERATOR}, of the workers' release",
    Refusal.OTHER_STATE: "send the command again: the topics were created again since, or it was for another shard",
    Refusal.STALE: "nothing, if 'stream-svt control' succeeded: another command was faster, and it tried again",
    Refusal.AHEAD: "send the command again with 'stream-svt control', which asks for the number",
    Refusal.WITHDRAWN: "nothing: a later 'withdraw' took it back",
    Refusal.UNSIGNED: _SIGN,
    Refusal.UNKNOWN_KEY: f"add the key to section control, or {_SIGN}",
    Refusal.BAD_SIGNATURE: _SIGN,
}
"""Remedy for each reason on the reject topic."""


@dataclass(slots=True)
class RejectCount:
    """Records refused for one reason on a partition: their number, and time and offset of the last one."""

    topic: str
    partition: int
    reason: str
    count: int
    newest: datetime
    offset: int


@dataclass
class Rejects:
    """Content of the reject topic: groups, number of records, and number of older ones that the limit left out.

    ``unreadable`` counts records that no worker wrote.
    """

    groups: dict[tuple[str, int, str], RejectCount]
    read: int = 0
    left_out: int = 0
    unreadable: int = 0

    def take(self, record: Record) -> None:
        """Count a record of the reject topic."""
        self.read += 1
        try:
            reject = msgspec.json.decode(record.value or b"", type=Reject)
            when = datetime.fromtimestamp(record.timestamp / 1000, UTC)
        except (msgspec.MsgspecError, *_NO_TIME, RecursionError):
            self.unreadable += 1
            return
        if reject.reason not in REMEDIES:  # of another release
            self.unreadable += 1
            return
        key = (_text(reject.topic.encode(errors="replace")), reject.partition, reject.reason)
        group = self.groups.setdefault(key, RejectCount(*key, 0, when, reject.offset))
        group.count += 1
        if when >= group.newest:
            group.newest, group.offset = when, reject.offset

    def sorted(self) -> list[RejectCount]:
        """Return the groups by topic and reason, the most records first in each."""
        return sorted(
            self.groups.values(), key=lambda one: (one.topic, one.reason, -one.count, one.partition)
        )


async def read_rejects(config: Config, cluster: Cluster, since_ms: int | None, limit: int) -> Rejects:
    """Count the newest records of the reject topic: at most ``limit``, evenly from its non-empty partitions.

    Records before ``since_ms``, in milliseconds since 1970, are left out.
    """
    topic = config.topics.rejects
    doing, found = f"reading reject topic {topic!r}", Rejects({})
    count = await read_partitions_of(cluster, topic, doing)
    async with kafka.started(cluster.reader(), doing) as reader:
        spans = await kafka.edges(reader, [TopicPartition(topic, number) for number in range(count)], doing)
        if since_ms is not None:
            spans = await _since(reader, spans, since_ms, doing)
        spans = {tp: (first, end) for tp, (first, end) in spans.items() if first < end}
        for tp, (first, end) in spans.items():
            start = max(first, end - max(1, limit // len(spans)))
            found.left_out += start - first
            async for record in kafka.read_partition(reader, tp, start, doing):
                found.take(record)
    return found


async def _since(reader: AIOKafkaConsumer, spans: kafka.Spans, since_ms: int, doing: str) -> kafka.Spans:
    async with kafka.deadline(kafka.CALL_DEADLINE, doing):
        places = await reader.offsets_for_times(dict.fromkeys(spans, since_ms))
    return {
        tp: (max(first, places[tp].offset) if places.get(tp) is not None else end, end)
        for tp, (first, end) in spans.items()
    }


async def record_at(
    config: Config, cluster: Cluster, topic: str, partition: int, offset: int
) -> ConsumerRecord:
    """Return the record at a position of a query topic, or of the control topic.

    Raises:
        StreamSvtError: Another topic, or no record there: deleted, aborted, or a marker of a transaction.
        BrokerError: The topic cannot be read.
    """
    readable = [*config.spec.produced_topics(), config.topics.control]
    if topic not in readable:
        raise StreamSvtError(
            f"{topic!r} is no query topic of the configuration, which has {', '.join(readable)}"
        )
    tp, doing = TopicPartition(topic, partition), f"reading partition {partition} of topic {topic!r}"
    if await read_partitions_of(cluster, topic, doing) <= partition:
        raise BrokerError(unseen(topic, "READ"))
    async with kafka.started(cluster.reader(), doing) as reader:
        first, end = (await kafka.edges(reader, [tp], doing))[tp]
        if first <= offset < end:
            async for record in kafka.read_partition(reader, tp, offset, doing):
                if record.offset == offset:
                    return record
                break
        raise StreamSvtError(
            f"no record at offset {offset} of partition {partition}: the topic holds offsets {first} to {end - 1}; "
            "others were deleted, and some are markers of transactions, or aborted"
        )


def lines_of(record: ConsumerRecord, most: int, spec: ApplicationSpec | None = None) -> Iterator[str]:
    """Yield a record as lines of text without control characters: a producer may write escape codes of terminals.

    At most ``most`` bytes of its value are shown. With a ``spec``, an undeclared key that looks like the name of a
    dataset has a note.
    """
    try:
        when = datetime.fromtimestamp(record.timestamp / 1000, UTC).isoformat(timespec="milliseconds")
    except _NO_TIME:
        when = f"none: {record.timestamp} ms since 1970 is beyond the year 9999"
    yield f"time: {when}"
    yield f"key: {_text(record.key)}"
    if spec is not None and record.key is not None:
        is_declared = spec.find(record.key.decode(errors="replace")) is not None
        if not is_declared and (note := likeness(record.key, spec)):
            yield f"note: {note}"
    for name, value in record.headers:
        yield f"header {_text(name.encode())}: {_text(value)}"
    value = record.value or b""
    yield f"value ({len(value)} bytes): {_text(record.value if record.value is None else value[:most])}"
    if left_out := more(len(value) - most):
        yield f"..{left_out} bytes: give --limit"


def _text(content: bytes | None) -> str:
    """Return content on one line: text with escaped control characters, other bytes as Python writes them."""
    if content is None:
        return "none"
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return repr(content)
    return escaped(text)
