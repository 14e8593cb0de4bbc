"""Records whose header names are no UTF-8: aiokafka fails on them, and on all that came with them.

Anybody who may write to a topic can make one. Kafka's own clients read such a name with replacement characters; so
does this, by reading once more what the client failed on. What such a record is taken for then depends on its key,
its value and its other headers, as always, and its neighbours are never lost.

Rests on internals of aiokafka, which `pyproject.toml` pins.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.errors import (
    CorruptRecordException,
    NoError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    for_code,
)
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import _MemoryRecordsPy
from aiokafka.record.util import decode_varint_py

Consumer: TypeAlias = Any  # aiokafka has no types

_MAGIC: Final = 16
"""Where a batch says which format it has."""

_HEADERS_SINCE: Final = 2
"""The first format with headers."""

PARSED_AT_ONCE: Final = 1_000
"""Records parsed between two turns of the event loop: in Python, some ten milliseconds of work."""


def at_hand(consumer: Consumer, *places: TopicPartition) -> bool:
    """Tell whether the client keeps something of these places, records or an error, that `getmany` takes out."""
    return not consumer._fetcher._records.keys().isdisjoint(places)  # noqa: SLF001


async def news(consumer: Consumer, *places: TopicPartition, seconds: float) -> None:
    """Wait until something of these places is at hand, at most so long; takes nothing out of the client."""
    end = time.monotonic() + seconds
    while not at_hand(consumer, *places) and (left := end - time.monotonic()) > 0:
        waiter = consumer._fetcher._create_fetch_waiter()  # noqa: SLF001
        try:
            await asyncio.wait([waiter], timeout=left)
            if waiter.done():
                waiter.result()
        finally:
            waiter.cancel()


async def _next_round() -> None:
    await asyncio.sleep(0)


async def getmany(
    consumer: Consumer,
    *places: TopicPartition,
    timeout_ms: int = 0,
    max_records: int | None = None,
    give_way: Callable[[], Awaitable[None]] = _next_round,
) -> dict[TopicPartition, list[Any]]:
    """Return what ``consumer.getmany`` returns, records with odd header names among it.

    Args:
        give_way: Awaited between pieces of what is parsed in Python.

    Raises:
        KafkaError: As ``consumer.getmany``.
    """
    before = _positions(consumer, places)
    try:
        found: dict[TopicPartition, list[Any]] = await consumer.getmany(
            *places, timeout_ms=timeout_ms, max_records=max_records
        )
    except (UnicodeDecodeError, CorruptRecordException) as error:
        if not _about_text(error):
            raise
    else:
        return found
    # What was taken out of the buffer for other partitions, or before the record, was not returned.
    for place in before.keys() & consumer.assignment():
        consumer.seek(place, before[place])
    left = max_records
    found = {}
    for place in before:
        if left == 0:
            break
        records = await _read(consumer, place, left, give_way)
        if records:
            found[place] = records
            left = None if left is None else left - len(records)
    return found


def _about_text(error: Exception) -> bool:
    """Tell whether a text was the reason; without its compiled parts aiokafka calls that a corrupt record."""
    return isinstance(error, UnicodeDecodeError) or isinstance(error.__cause__, UnicodeDecodeError)


def _positions(consumer: Consumer, places: tuple[TopicPartition, ...]) -> dict[TopicPartition, int]:
    """Return where the partitions are read from that a call can return records of."""
    found = {}
    for place in places or consumer.assignment():
        state = state_of(consumer, place)
        if state is not None and state.has_valid_position and not state.paused:
            found[place] = state.position
    return found


def state_of(consumer: Consumer, place: TopicPartition) -> Any:  # noqa: ANN401
    """Return what the client keeps about a partition of its assignment, None for any other one."""
    subscription = consumer._subscription  # noqa: SLF001
    if not subscription.is_assigned(place):
        return None
    return subscription.subscription.assignment.state_value(place)


async def _read(
    consumer: Consumer,
    place: TopicPartition,
    max_records: int | None,
    give_way: Callable[[], Awaitable[None]],
) -> list[Any]:
    """Read a partition on by one request of our own."""
    fetcher, client = consumer._fetcher, consumer._client  # noqa: SLF001
    state = state_of(consumer, place)
    node = client.cluster.leader_for_partition(place)
    if state is None or node is None or node < 0:
        return []
    offset = state.position
    request = FetchRequest(
        0,
        fetcher._fetch_min_bytes,  # noqa: SLF001
        fetcher._fetch_max_bytes,  # noqa: SLF001
        fetcher._isolation_level,  # noqa: SLF001
        [(place.topic, [(place.partition, offset, fetcher._max_partition_fetch_bytes)])],  # noqa: SLF001
        rack_id="",
    )
    response = await client.send(node, request)
    ((_, ((_, code, _, *content),)),) = response.topics
    if for_code(code) is not NoError:
        raise _as_told(for_code(code), place, offset)
    aborted = content[2] if response.API_VERSION >= 11 else content[-2]
    records = PartitionRecords(
        place,
        _Batches(content[-1]),
        aborted,
        0,  # a batch is parsed from its beginning: what lies before the offset is passed over below, in pieces too
        None,
        None,
        fetcher._check_crcs,  # noqa: SLF001
        fetcher._isolation_level,  # noqa: SLF001
    )
    found = []
    for number, record in enumerate(records, start=1):
        if number % PARSED_AT_ONCE == 0:
            await give_way()
        if record.offset >= offset:
            found.append(record)
        if len(found) == max_records:
            break
    # Without an await from here on: what was moved meanwhile is read again from where it is now.
    if state_of(consumer, place) is not state or state.position != offset or state.paused:
        return []
    consumer.seek(place, max(offset, records.next_fetch_offset))
    return found


def _as_told(kind: type[Exception], place: TopicPartition, offset: int) -> Exception:
    """Return an error with the arguments that the client gives it."""
    arguments: dict[type[Exception], object] = {
        OffsetOutOfRangeError: {place: offset},
        TopicAuthorizationFailedError: place.topic,
    }
    return kind(arguments.get(kind, place))


class _Batches(_MemoryRecordsPy):  # type: ignore[misc]  # aiokafka has no types
    """The batches of an answer."""

    def next_batch(self) -> Any:  # noqa: ANN401
        content = self._next_slice
        batch = super().next_batch()
        return _Batch(content) if content is not None and content[_MAGIC] >= _HEADERS_SINCE else batch


class _Batch(_DefaultRecordBatchPy):  # type: ignore[misc]
    """A batch that reads every header name."""

    _buffer: bytearray

    def _maybe_uncompress(self) -> None:
        super()._maybe_uncompress()
        self._buffer = _Lenient(self._buffer)

    def _read_msg(self) -> Any:  # noqa: ANN401
        return super()._read_msg(decode_varint_py)


class _Lenient(bytearray):
    """Bytes in which every text can be read."""

    def __getitem__(self, place: Any) -> Any:  # noqa: ANN401
        found = super().__getitem__(place)
        return _Lenient(found) if isinstance(place, slice) else found

    def decode(self, encoding: str = "utf-8", errors: str = "replace") -> str:
        """Return the text, with replacement characters where it is none."""
        del errors
        return super().decode(encoding, "replace")
