"""Writes transactions: requests on aiokafka's connections, one after another in the caller's task.

aiokafka's own producer uses a separate loop: five tasks and thirty turns of the event loop for each transaction.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple, TypeVar, cast

from aiokafka import TopicPartition, errors
from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from stream_svt.kafka.aiokafka_fixes import wait_for_topic

_T = TypeVar("_T")
log = logging.getLogger(__name__)

MAX_BATCH: Final = 1 << 18
"""Bytes of a record batch; one record may be larger."""
PAUSE: Final = 0.1
"""Seconds between two attempts of a request."""
MARKERS: Final = 0.0005
"""Seconds between two transactions: brokers refuse a request that comes before the end markers are written."""
FIRST_PAUSE: Final = 0.0003
"""Seconds after which such a request is repeated; each further pause is longer by half."""
REPEATED_QUIETLY: Final = 2.0
"""Seconds for which requests are repeated without a log line: new brokers first create their internal topics."""
_TIMER: Final = 0.002
"""Seconds of a sleep below which it matters that timers of an event loop are late by up to a millisecond."""
_SEQUENCES: Final = 1 << 31
_ALL_REPLICAS: Final = -1
_MOVED: Final = {errors.CoordinatorNotAvailableError, errors.NotCoordinatorError}
_LATER: Final = _MOVED | {
    errors.ConcurrentTransactions,
    errors.CoordinatorLoadInProgressError,
    errors.UnknownTopicOrPartitionError,
}


class NewRecords(NamedTuple):
    """Keys and values, at least one, for the end of a partition; a value of None is a tombstone."""

    partition: TopicPartition
    records: Iterable[tuple[bytes, bytes | None]]
    headers: Sequence[tuple[str, bytes]] = ()


class Appended(NamedTuple):
    """Offset of the newest record, and its time in milliseconds since 1970 if the broker has set it."""

    offset: int
    time_ms: int | None


class _Encoded(NamedTuple):
    content: bytes
    records: int


class TransactionalProducer:
    """The owner of a transactional id, writing one transaction at a time.

    After an error the outcome of a transaction is unknown: discard the producer. The start of the next producer with
    the same id fences it, and waits until the brokers have ended its transaction.

    Requests are repeated while brokers cannot be reached or move a partition: the caller sets a deadline.
    """

    def __init__(
        self, client: AIOKafkaClient, transactional_id: str, timeout_ms: int, request_ms: int
    ) -> None:
        self.transactional_id = transactional_id
        self._client = client
        self._timeout_ms, self._request_ms = timeout_ms, request_ms
        self._coordinator: int | None = None
        self._id = self._epoch = -1
        self._sequences: dict[TopicPartition, int] = defaultdict(int)
        self._unfinished, self._ended = False, 0.0
        self._logged: set[str] = set()
        self._repeated_since: float | None = None

    async def start(self) -> None:
        """Connect, fence earlier owners of the transactional id, and wait for the end of their transaction."""
        await self._client.bootstrap()
        response = await self._coordinate(InitProducerIdRequest(self.transactional_id, self._timeout_ms))
        self._id, self._epoch = response.producer_id, response.producer_epoch

    async def cluster_id(self) -> str:
        """Return the id of the cluster that it writes to."""
        node, request = await self._find_coordinator(), MetadataRequest([])
        response = await self._client.send(node, request, group=ConnectionGroup.COORDINATION)
        return str(response.cluster_id)

    async def stop(self) -> None:
        """Close all connections; an open transaction stays open."""
        await self._client.close()

    async def transact(
        self,
        appends: Sequence[NewRecords],
        timestamp_ms: int,
        joined: Iterable[TopicPartition] = (),
        *,
        commit: bool = True,
    ) -> dict[TopicPartition, Appended]:
        """Write everything in one transaction, and commit or abort it; return the newest record by partition.

        Partitions that are ``joined`` get an end marker, and their permissions are checked.

        Raises:
            KafkaError: The brokers refused, or a response was lost.
        """
        await self.begin({append.partition for append in appends}.union(joined))
        written = await self.append(appends, timestamp_ms)
        await self._coordinate(EndTxnRequest(self.transactional_id, self._id, self._epoch, commit))
        self._unfinished, self._ended = False, time.monotonic()
        return written

    async def require(self, topics: Iterable[str]) -> None:
        """Raise KafkaError if a topic does not exist; the producer stays usable."""
        for topic in topics:
            await wait_for_topic(self._client, topic)

    async def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Begin a transaction on these partitions."""
        if self._unfinished:
            raise errors.IllegalOperation("the last transaction has not ended; discard the producer")
        self._unfinished = True
        self._logged.clear()
        self._repeated_since = None
        await _pause(self._ended + MARKERS - time.monotonic())
        topics = _by_topic(partitions)
        await self.require(topic for topic, _ in topics)
        await self._coordinate(
            AddPartitionsToTxnRequest(self.transactional_id, self._id, self._epoch, topics)
        )

    async def append(
        self, appends: Iterable[NewRecords], timestamp_ms: int
    ) -> dict[TopicPartition, Appended]:
        """Append records in the current transaction; return the newest record by partition."""
        batches: dict[TopicPartition, list[_Encoded]] = defaultdict(list)
        for append in appends:
            batches[append.partition] += self._batches(append, timestamp_ms)
        written: dict[TopicPartition, Appended] = {}
        for sent in zip_longest(*batches.values()):  # one batch of each partition in a request
            written |= await self._produce(
                {one: each for one, each in zip(batches, sent, strict=True) if each}
            )
        return written

    def _batches(self, append: NewRecords, timestamp_ms: int) -> Iterator[_Encoded]:
        headers, builder, count = list(append.headers), None, 0
        for key, value in append.records:
            if builder is None or builder.append(count, timestamp_ms, key, value, headers) is None:
                if builder is not None:
                    yield self._built(append.partition, builder, count)
                builder, count = DefaultRecordBatchBuilder(2, 0, 1, -1, -1, 0, MAX_BATCH), 0
                builder.append(0, timestamp_ms, key, value, headers)
            count += 1
        if builder is not None:
            yield self._built(append.partition, builder, count)

    def _built(self, partition: TopicPartition, builder: DefaultRecordBatchBuilder, count: int) -> _Encoded:
        sequence = self._sequences[partition]
        builder.set_producer_state(self._id, self._epoch, sequence)
        self._sequences[partition] = (sequence + count) % _SEQUENCES
        return _Encoded(builder.build(), count)

    async def _produce(self, batches: Mapping[TopicPartition, _Encoded]) -> dict[TopicPartition, Appended]:
        """Write batches, again until each is written: brokers drop duplicates by their sequence numbers."""
        written: dict[TopicPartition, Appended] = {}
        while True:
            by_leader: dict[int | None, list[TopicPartition]] = defaultdict(list)
            for partition in batches:
                if partition not in written:
                    by_leader[self._client.cluster.leader_for_partition(partition)].append(partition)
            for answer in await all_sent([self._produce_to(*each, batches) for each in by_leader.items()]):
                written |= answer
            if len(written) == len(batches):
                return written
            await self._refresh()

    async def _produce_to(
        self,
        leader: int | None,
        partitions: Sequence[TopicPartition],
        batches: Mapping[TopicPartition, _Encoded],
    ) -> dict[TopicPartition, Appended]:
        """Send batches to their leader; return the written ones."""
        if leader is None or leader < 0:
            return {}
        content = _by_topic((topic, (number, batches[topic, number].content)) for topic, number in partitions)
        request = ProduceRequest(self.transactional_id, _ALL_REPLICAS, self._request_ms, content)
        written: dict[TopicPartition, Appended] = {}
        try:
            response = await self._client.send(leader, request)
        except errors.KafkaError as error:
            self._require_retriable(error)
            return written
        for topic, answers in response.topics:
            for number, code, offset, time_ms, *_ in answers:
                if code:
                    self._require_retriable(errors.for_code(code)(topic))
                else:
                    newest = offset + batches[topic, number].records - 1
                    written[TopicPartition(topic, number)] = Appended(
                        newest, None if time_ms == -1 else time_ms
                    )
        return written

    async def _coordinate(self, request: Any) -> Any:  # noqa: ANN401
        """Send a request to the coordinator until it is carried out; raise if the response is lost.

        Such a request may still arrive. If it were repeated, the next transaction would begin under the same epoch, and
        the first request would end it midway, or add a partition to it.
        """
        pause = FIRST_PAUSE
        while True:
            node = await self._find_coordinator()
            try:
                response = await self._client.send(node, request, group=ConnectionGroup.COORDINATION)
            except errors.NodeNotReadyError as error:  # not sent
                self._log(error)
                self._coordinator = None
                await asyncio.sleep(PAUSE)
                continue
            refusals = self._refusals(response)
            if not refusals:
                return response
            if not refusals.isdisjoint(_MOVED):
                self._coordinator = None
            for refusal in refusals - {errors.ConcurrentTransactions}:
                self._log(refusal(self.transactional_id))
            await _pause(pause if refusals == {errors.ConcurrentTransactions} else PAUSE)
            pause = min(pause * 1.5, PAUSE)

    def _refusals(self, response: Any) -> set[type[errors.KafkaError]]:  # noqa: ANN401
        """Return why a request has to be repeated, by its response; raise if repeating is useless."""
        topics = getattr(response, "errors", None)
        if topics is None:
            codes = [(response.error_code, "")]
        else:
            codes = [(code, topic) for topic, partitions in topics for _, code in partitions]
        refusals = {errors.for_code(code) for code, _ in codes if code}
        for refusal in refusals - _LATER - {errors.OperationNotAttempted}:
            denied = {topic for code, topic in codes if code == errors.TopicAuthorizationFailedError.errno}
            raise _meant(refusal(denied or self.transactional_id))
        return refusals

    async def _find_coordinator(self) -> int:
        while self._coordinator is None:
            try:
                self._coordinator = await self._client.coordinator_lookup(
                    CoordinationType.TRANSACTION, self.transactional_id
                )
            except errors.TransactionalIdAuthorizationFailed:
                raise errors.TransactionalIdAuthorizationFailed(self.transactional_id) from None
            except errors.KafkaError as error:
                self._require_retriable(error)
                await self._refresh()
        return self._coordinator

    async def _refresh(self) -> None:
        await self._client.force_metadata_update()
        await asyncio.sleep(PAUSE)

    def _require_retriable(self, error: errors.KafkaError) -> None:
        """Raise an error that would recur; log other errors, because the deadline may end the next attempt."""
        if not error.retriable:
            raise _meant(error)
        self._log(error)

    def _log(self, error: errors.KafkaError) -> None:
        """Log why a request is repeated for long, once a transaction: there are ten attempts a second."""
        now = time.monotonic()
        self._repeated_since = self._repeated_since or now
        if now - self._repeated_since >= REPEATED_QUIETLY and (text := str(error)) not in self._logged:
            self._logged.add(text)
            log.warning("event=request_repeated error=%r", text)


async def all_sent(sent: Sequence[Awaitable[_T]]) -> list[_T]:
    """Return the responses to the sent requests; raise the first error once all have arrived."""
    if len(sent) == 1:
        return [await sent[0]]  # without a task
    results = await asyncio.gather(*sent, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return cast("list[_T]", results)


async def _pause(seconds: float) -> None:
    """Sleep; a short sleep takes turns of the event loop until its time has come."""
    if seconds >= _TIMER:
        await asyncio.sleep(seconds)
        return
    end = time.monotonic() + seconds
    while time.monotonic() < end:  # noqa: ASYNC110  no timer is as exact
        await asyncio.sleep(0)


def _by_topic(content: Iterable[tuple[str, _T]]) -> list[tuple[str, list[_T]]]:
    topics: dict[str, list[_T]] = defaultdict(list)
    for topic, one in content:
        topics[topic].append(one)
    return list(topics.items())


def _meant(error: errors.KafkaError) -> errors.KafkaError:
    return errors.ProducerFenced() if isinstance(error, errors.InvalidProducerEpoch) else error
