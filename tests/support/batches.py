"""Record batches made by hand, also such as no producer writes; and what two readers make of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from aiokafka import TopicPartition, codec
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.record.util import calc_crc32c, encode_varint

from stream_svt.kafka.batches import Batches, Unread, take_whole
from stream_svt.protocol.records import Records

PLACE = TopicPartition("counts", 0)
CODECS = (lambda data: data, codec.gzip_encode, codec.snappy_encode, codec.lz4_encode, codec.zstd_encode)
LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 8, 16, 32
ABORT, COMMIT = bytes(4), b"\0\0\0\1"


def varint(number: int) -> bytes:
    found = bytearray()
    encode_varint(number, found.append)
    return bytes(found)


def sized(part: bytes | None) -> bytes:
    return varint(-1) if part is None else varint(len(part)) + part


@dataclass(frozen=True)
class Wire:
    """A record."""

    offset: int
    time: int = 0
    key: bytes | None = b"key"
    value: bytes | None = b"value"
    headers: Sequence[tuple[bytes, bytes | None]] = ()

    def encode(self) -> bytes:
        headers = b"".join(sized(name) + sized(value) for name, value in self.headers)
        body = b"\0" + varint(self.time) + varint(self.offset) + sized(self.key) + sized(self.value)
        return sized(body + varint(len(self.headers)) + headers)


@dataclass(frozen=True)
class Batch:
    """A batch; ``content`` replaces the records' bytes, ``number`` their count, ``damaged`` spoils the checksum."""

    base: int
    records: Sequence[Wire] = ()
    codec: int = 0
    attributes: int = 0
    producer: int = -1
    first_time: int = 1_790_000_000_000
    max_time: int = 1_790_000_999_999
    last: int | None = None
    content: bytes | None = None
    compressed: bytes | None = None
    number: int | None = None
    damaged: bool = False

    @property
    def plain(self) -> bytes:
        """The records' bytes."""
        return b"".join(record.encode() for record in self.records) if self.content is None else self.content

    def encode(self) -> bytes:
        last = max((one.offset for one in self.records), default=0) if self.last is None else self.last
        number = len(self.records) if self.number is None else self.number
        content = CODECS[self.codec](self.plain) if self.compressed is None else self.compressed
        fields = (self.attributes | self.codec, 2), (last, 4), (self.first_time, 8), (self.max_time, 8)
        numbers = *fields, (self.producer, 8), (0, 2), (0, 4), (number, 4)
        covered = b"".join(one.to_bytes(size, "big", signed=True) for one, size in numbers) + content
        checksum = calc_crc32c(covered) ^ self.damaged
        head = self.base.to_bytes(8, "big") + (len(covered) + 9).to_bytes(4, "big") + bytes(4)
        return head + b"\x02" + checksum.to_bytes(4, "big") + covered

    def changed(self, **changes: Any) -> Batch:
        return replace(self, **changes)


def marker(base: int, producer: int, kind: bytes = ABORT) -> Batch:
    """Return the batch that ends a transaction."""
    return Batch(
        base, [Wire(0, key=kind, value=bytes(6))], attributes=TRANSACTIONAL | CONTROL, producer=producer
    )


@dataclass
class Found:
    """What a reader found: records, and either the position after them or the error that ended it."""

    records: list[tuple[Any, ...]] = field(default_factory=list)
    position: int | None = None
    error: type[Exception] | None = None


def _partition(
    content: bytes, offset: int, aborted: Sequence[tuple[int, int]], *, whole: bool
) -> PartitionRecords:
    partition = PartitionRecords(PLACE, Batches(content), [*aborted], offset, None, None, True, 1)
    if whole:
        take_whole(partition)
    return partition


def _shown(record: Any) -> tuple[Any, ...]:
    return (record.offset, record.timestamp, record.key, record.value, *record.headers)


def by_client(content: bytes, offset: int = 0, aborted: Sequence[tuple[int, int]] = ()) -> Found:
    """Read as aiokafka does."""
    found, reader = Found(), _partition(content, offset, aborted, whole=False)
    try:
        found.records.extend(map(_shown, reader))
    except Exception as error:  # noqa: BLE001
        found.error = type(error)
    else:
        found.position = reader.next_fetch_offset
    return found


def as_columns(
    content: bytes,
    offset: int = 0,
    aborted: Sequence[tuple[int, int]] = (),
    *,
    most: Iterable[int] = (1 << 30,),
    text: bool = False,
) -> Found:
    """Read as a feed does, in pieces of these sizes in turn."""
    found, reader = Found(), _partition(content, offset, aborted, whole=True)
    unread, taken = Unread(offset, text=text), []
    try:
        taken.extend(reader)
    except Exception as error:  # noqa: BLE001
        found.error = type(error)
    else:
        found.position = reader.next_fetch_offset
    unread.add(taken)
    sizes = itertools.cycle(most)
    try:
        while unread:
            size = next(sizes)
            records = unread.read(size)
            assert isinstance(records, Records)
            assert len(records) <= size
            found.records.extend(_shown(record) for record in records)
    except Exception as error:  # noqa: BLE001
        found.error, found.position = type(error), None
    return found


def disagreement(content: bytes, *arguments: Any, **options: Any) -> tuple[Found, Found] | None:
    """Return what the two readers find where they differ; of a batch with an error they may show more or less."""
    found, wanted = as_columns(content, *arguments, **options), by_client(content, *arguments)
    if wanted.error is not None:
        both = min(len(found.records), len(wanted.records))
        found.records, wanted.records = found.records[:both], wanted.records[:both]
    return None if found == wanted else (found, wanted)


def whole_batches(*batches: Batch) -> list[Any]:
    """Return what aiokafka makes of batches that are taken whole."""
    return list(_partition(b"".join(one.encode() for one in batches), 0, (), whole=True))
