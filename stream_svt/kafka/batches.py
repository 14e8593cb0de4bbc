"""Record batches of a fetch: read by aiokafka, or taken whole and read as columns.

A batch that is taken whole passes through aiokafka's own loop as one record, so that this loop still handles
checksums, aborted transactions, control batches and positions.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import islice
from struct import Struct
from typing import Any, Final

import cramjam
import numpy as np
from aiokafka import codec
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecord
from aiokafka.record.memory_records import _MemoryRecordsPy

from stream_svt.kafka.columns import Body, Irregular, ManyHeaders, read
from stream_svt.protocol.records import Records

LARGEST: Final = 1 << 27
"""Bytes to which the records of a batch may decompress; a batch has 1 MB at most by default."""
LARGEST_RAW: Final = 1 << 24
"""Instead, of a raw topic, where one producer's batches must not hold up the others' events."""
MALFORMED: Final = 1 << 22
"""Bytes of the records of a batch up to which aiokafka reads them if they are irregular."""
PIECE: Final = 1 << 22
"""Bytes that are read at once, if they are of several batches: a few milliseconds of work."""
OBJECTS: Final = 2_000
"""Records that aiokafka's reader reads at once: some milliseconds of work."""
HEADERS: Final = 50_000
"""Headers that are read at once: some tens of milliseconds of work."""
SLICE: Final = 50_000
"""Records of a batch that are checked at once, before any of them is returned."""
FEW: Final = 250
"""Fewer records than this are read together with the next batches, although each batch may be read alone."""
SMALL: Final = 1 << 10
"""Bytes of a batch up to which aiokafka's checksum is as fast as the compiled one, which needs an array."""
_NUMBER: Final = Struct(">i")
_CHECKSUM: Final = Struct(">I")
_FORMAT: Final = 16
"""Index of the format's number in a batch; since format 2, records have headers. The checksum follows it."""
_COVERED: Final = 21
"""Index of the first byte that the checksum covers."""
_HEADER: Final = 61
"""Bytes before the records of a batch, which end with their number."""
_SNAPPY: Final = 2
_DECODERS: Final = {1: cramjam.gzip, 3: cramjam.lz4, 4: cramjam.zstd}


def _compiled_checksum() -> Callable[[object], int] | None:
    """Return CRC-32C by the processor's instructions; None if google-crc32c is not compiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # in which case it warns
        try:
            from google_crc32c.cext import value
        except ImportError:
            return None
    checksum: Callable[[object], int] = value
    return checksum


_crc32c = _compiled_checksum()


class UnreadableBatch(CorruptRecordException):  # type: ignore[misc]  # aiokafka has no types
    """A batch that cannot be read; its text has nothing of the records."""


def why_unreadable(error: Exception) -> str:
    """Return the text of an error, or only its type: codecs and aiokafka repeat bytes of the records."""
    text = str(error.args[0]) if error.args else ""
    is_safe = isinstance(error, UnreadableBatch) or text.startswith("Invalid CRC")
    return text if is_safe else type(error).__name__


class Batches(_MemoryRecordsPy):  # type: ignore[misc]  # aiokafka has no types
    """Batches of a fetch response; with ``whole``, each one takes the place of its records."""

    whole = False

    def next_batch(self) -> Any:  # noqa: ANN401
        """Return the next batch."""
        content, end = self._next_slice, self._pos
        if content is None or len(content) <= _FORMAT or content[_FORMAT] < 2:
            return super().next_batch()
        if len(content) < _HEADER:
            raise UnreadableBatch(f"a batch of {len(content)} bytes has no room for its header")
        batch = super().next_batch()
        return (WholeBatch if self.whole else _Batch)(batch, content, end - len(content))


def take_whole(fetched: Any) -> None:  # noqa: ANN401
    """Make the `PartitionRecords` of a fetch return each batch whole, from the next batch on."""
    fetched._records.whole = True  # noqa: SLF001
    fetched._consumer_record = lambda _, record: record  # noqa: SLF001


class _Batch:
    """A batch that aiokafka reads, up to the first malformed name of a header; the rest is read as columns.

    ``limit`` are the bytes to which the records may decompress; None for `LARGEST`.
    """

    limit: int | None = None

    def __init__(self, batch: Any, content: memoryview, start: int) -> None:  # noqa: ANN401
        self._batch, self._content, self._start = batch, content, start
        # What aiokafka's loop over batches reads.
        self.base_offset, self.next_offset = batch.base_offset, batch.next_offset
        self.producer_id, self.is_transactional = batch.producer_id, batch.is_transactional
        self.is_control_batch = batch.is_control_batch
        [self.number] = _NUMBER.unpack_from(content, _HEADER - 4)

    def validate_crc(self) -> bool:
        """Return whether the checksum fits the batch."""
        if _crc32c is None or len(self._content) <= SMALL:
            return bool(self._batch.validate_crc())
        size, content = len(self._content) - _COVERED, self._content
        buffer: Any = content.obj
        covered = np.frombuffer(buffer, np.uint8, size, self._start + _COVERED)
        return _CHECKSUM.unpack_from(content, _FORMAT + 1) == (_crc32c(covered),)

    def __next__(self) -> Any:  # noqa: ANN401
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        done = 0
        try:
            for record in self._batch:
                if not self.base_offset <= record.offset < self.next_offset:  # brokers take it
                    raise _malformed(self.base_offset)
                done += 1
                yield record
        except Exception as error:  # of any kind: decompressing raises what the codecs do
            # Without its compiled extensions aiokafka reports a malformed name as a corrupt record.
            if not isinstance(error.__cause__ or error, UnicodeDecodeError):
                if isinstance(error, CorruptRecordException):
                    raise
                message = (
                    f"the batch at offset {self.base_offset} cannot be decompressed: {type(error).__name__}"
                )
                raise UnreadableBatch(message) from error
        else:
            return
        try:
            records = read([self.body()])
        except Irregular:
            raise _malformed(self.base_offset) from None
        kind = self._batch.timestamp_type
        for one in records[done:]:
            yield DefaultRecord(one.offset, one.timestamp, kind, one.key, one.value, list(one.headers))

    def body(self) -> Body:
        """Return the records, decompressed; raises `Irregular` or `UnreadableBatch`."""
        batch, content = self._batch, self._content
        buffer: Any = content.obj
        start, stop = self._start + _HEADER, self._start + len(content)
        if batch.compression_type:
            buffer = _decompress(batch, content[_HEADER:], self.limit)
            start, stop = 0, len(buffer)
        by_broker = bool(batch.timestamp_type)
        time = batch.max_timestamp if by_broker else batch.first_timestamp
        return Body(buffer, start, stop, self.number, self.base_offset, self.next_offset, time, by_broker)


class WholeBatch(_Batch):
    """A batch as its only record, with the offset of its last record."""

    def __init__(self, batch: Any, content: memoryview, start: int) -> None:  # noqa: ANN401
        super().__init__(batch, content, start)
        self.offset = self.next_offset - 1

    def __iter__(self) -> Iterator[Any]:
        # aiokafka then checks that there are no bytes of records; decompressing has a bound elsewhere.
        return iter((self,)) if self.number > 0 or self._batch.compression_type else self.records()

    def records(self) -> Iterator[Any]:
        """Return the records as aiokafka reads them."""
        return super().__iter__()

    @cached_property
    def unread(self) -> Body:
        """Records that were not read yet; set again after each read. Raises the errors of `body`."""
        return self.body()


def _decompress(batch: Any, content: memoryview, limit: int | None) -> bytes:  # noqa: ANN401
    """Return the records of a batch; raises `UnreadableBatch` above the limit, otherwise `Irregular`."""
    if batch.compression_type == _SNAPPY:
        return _decompress_snappy(batch, content, limit or LARGEST)
    if batch.compression_type not in _DECODERS:
        raise Irregular
    sizes = (limit,) if limit else (1 << 20, LARGEST)
    for size in sizes:
        into = np.empty(size, np.uint8)  # uses memory only for written parts
        try:
            return into[: _DECODERS[batch.compression_type].decompress_into(content, into)].tobytes()
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise Irregular from error
    raise _too_large(batch, sizes[-1])


def _decompress_snappy(batch: Any, content: memoryview, limit: int) -> bytes:  # noqa: ANN401
    """Decompress one block, or the many of Java's stream, once their lengths are known."""
    size, at = 0, 16
    try:
        if not codec._detect_xerial_stream(content):  # noqa: SLF001
            size = cramjam.snappy.decompress_raw_len(content)
            at = len(content)
        while at < len(content):
            block = int.from_bytes(content[at : at + 4], "big", signed=True)
            if block < 0:  # aiokafka would read it without end
                raise UnreadableBatch(f"the batch at offset {batch.base_offset} is not snappy")
            size += cramjam.snappy.decompress_raw_len(content[at + 4 : at + 4 + block])
            at += 4 + block
        if size <= limit:
            return bytes(codec.snappy_decode(content.tobytes()))
    except UnreadableBatch:
        raise
    except Exception as error:  # of any kind: decompressing raises what the codecs do
        raise Irregular from error
    raise _too_large(batch, limit)


def _malformed(offset: int) -> UnreadableBatch:
    return UnreadableBatch(f"the batch at offset {offset} is malformed")


def _too_large(batch: Any, limit: int) -> UnreadableBatch:  # noqa: ANN401
    return UnreadableBatch(
        f"the batch at offset {batch.base_offset} decompresses to more than {limit >> 20} MiB"
    )


class Unread:
    """Records taken from a partition and not yet read, from ``position`` on.

    With ``text``, keys and values contain no zero byte (see `stream_svt.kafka.columns.read`). ``dropped`` counts
    batches that were left out, which only `Droppable` does.
    """

    dropped = 0

    def __init__(self, position: int, *, text: bool) -> None:
        self.position, self._text = position, text
        self._parts: deque[WholeBatch | Records | Iterator[Any]] = deque()
        self._together = 1 << 20  # number of batches read at once; few after an irregular batch
        self._most = 1 << 30  # number of records read at once; fewer after many headers
        self._failure: Exception | None = None

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, taken: Iterable[Any]) -> None:
        """Add what aiokafka returned: records, some of which are whole batches."""
        records: list[Any] = []
        for record in taken:
            if isinstance(record, WholeBatch):
                self._add(records)
                self._add_whole(record)
            else:
                records.append(record)
        self._add(records)

    def _add(self, records: list[Any]) -> None:
        if records:
            self._parts.append(Records.of(records))
            records.clear()

    def _add_whole(self, batch: WholeBatch) -> None:
        self._parts.append(batch)

    def read(self, most: int) -> Records:
        """Return at most so many next records; none at the end. Raises the errors of aiokafka's reader.

        Records before unreadable ones are returned first.
        """
        if self._failure is not None:
            raise self._failure
        found: list[Records] = []
        count = size = 0
        dropped = self.dropped  # after a batch that is left out the caller gets a turn
        while self._parts and count < min(most, FEW) and size < PIECE and self.dropped == dropped:
            try:
                records = self._read(min(most - count, self._most))
            except Exception as error:  # of any kind: decompressing raises what the codecs do
                self._failure = error
                if not found:
                    raise
                break
            records = records[int(np.searchsorted(records.offset, self.position)) :]
            if len(records):
                found.append(records)
                self.position = int(records.offset[-1]) + 1
                count, size = count + len(records), size + records.size
        return Records.concatenated(found)

    def _read(self, most: int) -> Records:
        part, bodies = self._parts[0], []
        if isinstance(part, Records):
            self._parts.popleft()
            if len(part) > most:
                self._parts.appendleft(part[most:])
            return part[:most]
        if not isinstance(part, WholeBatch):
            found = list(islice(part, min(most, OBJECTS)))
            if not found:
                self._parts.popleft()
            return Records.of(found)
        try:
            bodies = self._bodies(most)
            head, rest = bodies[0].cut(most) if bodies[0].number > most else (bodies[0], None)
            records = read([head, *bodies[1:]], text=self._text, headers=HEADERS)
        except ManyHeaders:
            self._most = max(min(most, sum(body.number for body in bodies)) // 2, 1)
            return Records.of(())
        except Irregular:
            if len(bodies) > 1:
                self._together = len(bodies) // 2
            elif bodies and bodies[0].stop - bodies[0].start > MALFORMED:
                # aiokafka makes objects without a bound.
                raise _malformed(bodies[0].offset) from None
            else:
                self._parts[0] = self._ascending(part.records())
            return Records.of(())
        self._together *= 2
        if rest is not None:
            part.unread = rest
            return records
        for _ in bodies:
            self._parts.popleft()
        return records

    def _bodies(self, most: int) -> list[Body]:
        """Return the bodies of the next batches that can be read at once; raises the errors of `WholeBatch.unread`."""
        bodies: list[Body] = []
        count = size = 0
        for part in self._parts:
            if not isinstance(part, WholeBatch) or len(bodies) == self._together or size >= PIECE:
                break
            try:
                body = part.unread
            except Exception:  # of any kind: decompressing raises what the codecs do
                if bodies:
                    break
                raise
            count, size = count + body.number, size + body.stop - body.start
            if bodies and (count > most or size > PIECE):
                break
            bodies.append(body)
        return bodies

    def _ascending(self, records: Iterator[Any]) -> Iterator[Any]:
        """Yield the records from the position on; like aiokafka, only records with ascending offsets."""
        position = self.position
        for record in records:
            if record.offset >= position:
                position = record.offset + 1
                yield record


class Droppable(Unread):
    """Records of which a batch that cannot be read is left out whole; headers are not read.

    No record of a batch is returned if another one is damaged, however many are read at once. A read ends after a batch
    that is left out, with the position behind it and possibly without records.
    """

    def _add_whole(self, batch: WholeBatch) -> None:
        batch.limit = LARGEST_RAW
        super()._add_whole(batch)

    def _read(self, most: int) -> Records:
        part = self._parts[0]
        if not isinstance(part, WholeBatch):
            return super()._read(most)
        bodies: list[Body] = []
        rest: Body | Records | None = None
        try:
            bodies = self._bodies(most)
            if bodies[0].number > most:
                if bodies[0].number == part.number:
                    self._check(bodies[0])
                bodies[0], rest = bodies[0].cut(most)
            records = read(bodies, text=self._text, headers=None)
        except Exception as error:  # noqa: BLE001  decompressing raises what the codecs do
            if len(bodies) > 1:
                self._together = len(bodies) // 2
                return Records.of(())
            is_large = bool(bodies) and bodies[0].stop - bodies[0].start > MALFORMED
            records = self._alone(part, error, by_client=isinstance(error, Irregular) and not is_large)
            if len(records) > most:
                records, rest = records[:most], records[most:]
        self._together *= 2
        if isinstance(rest, Body):
            part.unread = rest
            return records
        for _ in range(max(len(bodies), 1)):
            self._parts.popleft()
        if rest is not None:
            self._parts.appendleft(rest)
        return records

    def _check(self, body: Body) -> None:
        """Raise `Irregular` unless all records of a batch can be read."""
        offset, rest = -1, body
        while rest.number:
            head, rest = rest.cut(SLICE) if rest.number > SLICE else (rest, rest._replace(number=0))
            found = read([head], text=self._text, headers=None).offset
            if found[0] <= offset:
                raise Irregular
            offset = int(found[-1])

    def _alone(self, batch: WholeBatch, error: Exception, *, by_client: bool) -> Records:
        """Return the records of an irregular batch as aiokafka reads them, or none."""
        try:
            if not by_client:
                raise error
            records, parts = self._ascending(batch.records()), list[Records]()
            while some := list(islice(records, OBJECTS)):
                parts.append(replace(Records.of(some), headers={}))
            return Records.concatenated(parts)
        except Exception as why:  # noqa: BLE001  of any kind, as above
            _require_memory(why)
            self.dropped += 1
            self.position = max(self.position, batch.next_offset)
            return Records.of(())


def _require_memory(error: BaseException | None) -> None:
    """Raise a lack of memory among the causes of an error: it says nothing about a batch."""
    while error is not None:
        if isinstance(error, MemoryError):
            raise error
        error = error.__cause__ or error.__context__
