"""What the package changes in aiokafka, or reads of its internals: each with its reason, all of it in one place.

`pyproject.toml` pins the version that this rests on.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, TypeAlias

import aiokafka.admin.client
import aiokafka.client
import aiokafka.consumer.fetcher
import aiokafka.producer.sender
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.conn import create_conn
from aiokafka.errors import CorruptRecordException, KafkaError, NodeNotReadyError
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.transaction import EndTxnRequest
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import _MemoryRecordsPy
from aiokafka.record.util import decode_varint_py

from stream_svt.errors import MisuseError

Consumer: TypeAlias = Any  # aiokafka has no types

TRANSACTION_BACKOFF: Final = 0.002
"""Seconds aiokafka waits while a transaction's markers are written; its own 0.02 costs 20 ms per transaction."""
_COORDINATOR_PARTS: Final = ("coordination", "heartbeat", "commit_refresh", "reset_committed")
"""What a consumer's part in its group, or its lack of one, runs in: a task each."""
_MAGIC, _HEADERS_SINCE = 16, 2
"""Where a batch says which format it has, and the first one with headers."""


def read_every_header_name() -> None:
    """Have every consumer read header names that are no UTF-8, with replacement characters as Kafka's own clients do.

    Anybody who may write to a topic can make one, and aiokafka fails on it and on all records that came with it.
    """
    _replace(aiokafka.consumer.fetcher, "MemoryRecords", _Batches)


def apply_fixes() -> None:
    """Change what every client of this process does, those that exist included.

    Raises:
        MisuseError: This is another aiokafka.
    """
    read_every_header_name()
    record_connection_errors()
    _replace(aiokafka.producer.sender, "BACKOFF_OVERRIDE", TRANSACTION_BACKOFF)
    _replace(aiokafka.client, "MetadataRequest", _CreatesNothing)
    _replace(aiokafka.admin.client, "MetadataRequest", _CreatesNothing)


def _replace(module: Any, name: str, ours: Any) -> None:  # noqa: ANN401
    if not hasattr(module, name):
        raise MisuseError(
            f"aiokafka {aiokafka.__version__} has no {module.__name__.removeprefix('aiokafka.')}.{name}; install "
            "aiokafka>=0.14,<0.15"
        )
    setattr(module, name, ours)


def record_connection_errors() -> None:
    """Keep why connections are not made: aiokafka leaves that out of its exceptions."""
    _replace(aiokafka.client, "create_conn", _connect)


def connection_error(since: float) -> Exception | None:
    """Return, once, why the last connection was not made, where that was no earlier."""
    found = [error for error, at in _failures if at >= since]
    _failures.clear()
    return found[-1] if found else None


_failures: deque[tuple[Exception, float]] = deque(maxlen=1)


async def _connect(host: str, port: int, **options: Any) -> Any:  # noqa: ANN401
    """Open a connection; a client's first one is closed where its start is cancelled, which aiokafka leaves open."""
    try:
        connection = await create_conn(host, port, **options)
    except (OSError, KafkaError) as error:
        if not isinstance(error, TimeoutError):
            _failures.append((error, time.monotonic()))
        raise
    if "on_close" in options:
        return connection  # the client closes it
    send = connection.send

    async def send_first(request: Any) -> Any:  # noqa: ANN401
        del connection.send
        try:
            return await send(request)
        except asyncio.CancelledError:
            connection.close()
            raise

    connection.send = send_first
    return connection


class _CreatesNothing(MetadataRequest):  # type: ignore[misc]  # aiokafka has no types
    """Metadata request that does not let a broker create the topics it names.

    A topic made by a broker (auto.create.topics.enable, on by default) has default settings: retention would delete
    the state, and a query topic that was deleted would be back at once, empty.
    """

    def __init__(self, topics: list[str] | None = None) -> None:
        super().__init__(topics, allow_auto_topic_creation=False)


# Header names


class _Batches(_MemoryRecordsPy):  # type: ignore[misc]
    """The batches of an answer."""

    def next_batch(self) -> Any:  # noqa: ANN401
        content = self._next_slice
        batch = super().next_batch()
        return _Batch(batch, content) if content is not None and content[_MAGIC] >= _HEADERS_SINCE else batch


class _Batch:
    """A batch that is read by aiokafka's compiled code up to the first odd header name, and on in Python."""

    def __init__(self, batch: Any, content: Any) -> None:  # noqa: ANN401
        self._batch, self._content = batch, content

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._batch, name)

    def __next__(self) -> Any:  # noqa: ANN401
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        read = 0
        try:
            for record in self._batch:
                read += 1
                yield record
        except (UnicodeDecodeError, CorruptRecordException) as error:
            # Without its compiled parts aiokafka calls an odd name a corrupt record.
            if not isinstance(error.__cause__ or error, UnicodeDecodeError):
                raise
        else:
            return
        yield from islice(_PythonBatch(self._content), read, None)


class _PythonBatch(_DefaultRecordBatchPy):  # type: ignore[misc]
    """A batch that reads every header name."""

    _buffer: bytearray

    def __iter__(self) -> Any:  # noqa: ANN401
        self._maybe_uncompress()
        self._buffer = _Lenient(self._buffer)
        return self

    def _read_msg(self) -> Any:  # noqa: ANN401
        return super()._read_msg(decode_varint_py)


class _Lenient(bytearray):
    """Bytes in which every text can be read."""

    def __getitem__(self, place: Any) -> Any:  # noqa: ANN401
        found = super().__getitem__(place)
        return _Lenient(found) if isinstance(place, slice) else found

    def decode(self, encoding: str = "utf-8", errors: str = "") -> str:
        """Return the text, with replacement characters where it is none."""
        del errors
        return super().decode(encoding, "replace")


# Reading: `getmany` waits for what it takes out of the client, but whose turn it is to take must be asked in between.


def is_buffered(consumer: Consumer, *places: TopicPartition) -> bool:
    """Tell whether the client keeps something of these places, records or an error, that `getmany` takes out."""
    return not consumer._fetcher._records.keys().isdisjoint(places)  # noqa: SLF001


async def wait_for_records(consumer: Consumer, *places: TopicPartition, seconds: float) -> None:
    """Wait until something of these places is at hand, at most so long; takes nothing out of the client."""
    end = time.monotonic() + seconds
    while not is_buffered(consumer, *places) and (left := end - time.monotonic()) > 0:
        waiter = consumer._fetcher._create_fetch_waiter()  # noqa: SLF001
        try:
            await asyncio.wait([waiter], timeout=left)
            if waiter.done():
                waiter.result()
        finally:
            waiter.cancel()


def set_fetch_wait(consumer: Consumer, milliseconds: int) -> None:
    """Have fetches from now on wait so long at the brokers; one that is under way ends as it began."""
    consumer._fetcher._fetch_max_wait_ms = milliseconds  # noqa: SLF001


def has_failed(consumer: Consumer) -> bool:
    """Tell whether the client's fetch loop has ended, which it tells nobody: it would return nothing for ever."""
    return bool(consumer._fetcher.error_future.done())  # noqa: SLF001


def is_denied(consumer: Consumer, topic: str) -> bool:
    """Tell whether the brokers answer that this user may not see a topic; a fetch waits for it all the same."""
    return topic in consumer._client.cluster.unauthorized_topics  # noqa: SLF001


async def request_metadata(consumer: Consumer, topics: list[str]) -> None:
    """Ask for topics at once; else a client asks for one unknown topic at a time, and pauses after each."""
    await consumer._client.set_topics(topics)  # noqa: SLF001


# Membership: what ends it is told to nobody who does not fetch.


def membership_error(consumer: Consumer) -> BaseException | None:
    """Return what ended a task of the client's that membership hangs on; none of them begins again by itself."""
    coordinator = consumer._coordinator  # noqa: SLF001
    joining, heartbeat = coordinator._coordination_task, coordinator._heartbeat_task  # noqa: SLF001
    for task in (joining, heartbeat):
        if task is not None and task.done() and not task.cancelled() and (error := task.exception()):
            found: BaseException = error
            return found
    # The heartbeat's task ends without an error before each time the client joins.
    return KafkaError("the client's coordination task ended") if joining.done() else None


def check_errors(consumer: Consumer) -> None:
    """Raise the group's own errors, as a fetch does."""
    consumer._coordinator.check_errors()  # noqa: SLF001


# Transactions


def send_end_txn_once(producer: AIOKafkaProducer) -> None:
    """Let the producer fail where the answer to EndTxn is lost, instead of sending it again.

    The first one may be on its way. Once the second is answered the next transaction begins, under the same
    epoch, and the first, late, would end that one in the middle. A new producer's epoch fences it.
    """
    send = producer.client.send

    async def send_once(node_id: int, request: Any, **options: Any) -> Any:  # noqa: ANN401
        try:
            return await send(node_id, request, **options)
        except NodeNotReadyError:  # not sent
            raise
        except KafkaError as error:
            if isinstance(request, EndTxnRequest):
                producer._txn_manager.fatal_error(error)  # noqa: SLF001
            raise

    producer.client.send = send_once


def join_transaction(producer: AIOKafkaProducer, place: TopicPartition) -> None:
    """Make a partition part of the transaction: that asks for the right to write there, and writes nothing."""
    producer._txn_manager.maybe_add_partition_to_txn(place)  # noqa: SLF001


def transaction_error(producer: AIOKafkaProducer) -> BaseException | None:
    """Return why a transaction has failed, which an error met on the way can hide; None where it has not."""
    waiter = producer._txn_manager.wait_for_transaction_end()  # noqa: SLF001
    return waiter.exception() if waiter.done() else None


def retrieve_error(producer: AIOKafkaProducer) -> None:
    """Ask for the error of a producer that is gone, or asyncio logs that nobody did."""
    waiter = getattr(getattr(producer, "_txn_manager", None), "_transaction_waiter", None)
    if waiter is not None and waiter.done() and not waiter.cancelled():
        waiter.exception()


# Stopping


def unfinished_tasks(client: Any) -> set[asyncio.Future[Any]]:  # noqa: ANN401
    """Return the tasks that a client leaves behind where its stop() fails or hangs."""
    fetcher, coordinator = getattr(client, "_fetcher", None), getattr(client, "_coordinator", None)
    tasks = [
        getattr(getattr(client, "_sender", None), "sender_task", None),
        getattr(fetcher, "_fetch_task", None),
        *getattr(fetcher, "_pending_tasks", ()),
        *(getattr(coordinator, f"_{name}_task", None) for name in _COORDINATOR_PARTS),
    ]
    return {task for task in tasks if task is not None}


def connections(client: AIOKafkaConsumer | AIOKafkaProducer) -> Any:  # noqa: ANN401
    """Return what holds a client's connections, and closes them."""
    return getattr(client, "_client", None) or getattr(client, "client", None)
