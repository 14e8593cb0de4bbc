"""Kafka clients with deadlines of our own, and what their errors mean.

aiokafka retries for ever where a broker does not answer, and reports a wrong password as "unable to
bootstrap". Every call of this package goes through `deadline`, which ends it and raises one of three errors:

`Fenced`             another producer has this shard's transactional id, or the broker gave the transaction
up;
`BrokerUnavailable`  the outcome is unknown or the broker is away: discard the producer, start again;
`BrokerError`        trying again cannot help: the message says what to change.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiokafka.admin.client
import aiokafka.client
import aiokafka.producer.sender
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition, errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.transaction import EndTxnRequest
from aiokafka.structs import OffsetAndMetadata

from stream_svt import header_decoding
from stream_svt.errors import BrokerError, MisuseError

log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")

_COORDINATOR_TASKS = (
    "_coordination_task",
    "_heartbeat_task",
    "_commit_refresh_task",
    "_reset_committed_task",
)
"""What a consumer's part in its group runs in, or its lack of one."""

TRANSACTION_BACKOFF = 0.002
"""Seconds aiokafka waits while a transaction's markers are written; its own 0.02 costs 20 ms per transaction."""

START_DEADLINE = 15.0
CALL_DEADLINE = 10.0
DISCARD_DEADLINE = 2.0
COORDINATOR_PAUSE = 0.2
EMPTY_FETCH = 0.15
"""Seconds in which a broker answers whether a partition may be read at all."""
REBALANCE_TIMEOUT = 20.0


on_answer: ContextVar[Callable[[], None]] = ContextVar("on_answer", default=lambda: None)
"""Told of every call to the broker that a task brings to an end; whoever watches a task sets it there.

Reading a long state is thousands of calls in one await of the caller, and each of them is a sign of life. So is each
piece of verifying what was read.
"""


class BrokerUnavailable(BrokerError):
    """The broker did not answer in time or cannot be reached; the same may succeed later."""

    retriable = True


class Denied(BrokerError):
    """A permission is missing."""


class TopicMissing(BrokerError):
    """A topic does not exist."""


class LoginRefused(BrokerError):
    """The brokers refused the login, or this side their certificate."""


class Fenced(BrokerError):
    """Somebody else has the shard's producer or its partition now, or the broker gave its transaction up."""

    retriable = True


class _Causes(logging.Handler):
    """Keeps what aiokafka logs about failed connections, for it leaves the cause out of its exceptions."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._last = ""
        self._at = -math.inf

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message.startswith("Unable connect to") or "uthentication" in message:
            self._last, self._at = message, time.monotonic()

    def take(self, since: float) -> str:
        """Return the cause that was logged last, once, where it is no older than the call that failed."""
        cause, self._last = self._last, ""
        return cause if self._at >= since else ""


_causes = _Causes()


class _CreatesNothing(MetadataRequest):  # type: ignore[misc]  # aiokafka has no types
    """Metadata request that does not let a broker create the topics it names.

    A topic made by a broker (auto.create.topics.enable, on by default) has default settings: retention would delete
    the state, and a query topic that was deleted would be back at once, empty.
    """

    def __init__(self, topics: list[str] | None = None) -> None:
        super().__init__(topics, allow_auto_topic_creation=False)


_create_conn = aiokafka.client.create_conn


async def _create_closing_conn(*args: Any, **options: Any) -> Any:  # noqa: ANN401  aiokafka has no types
    """Open a connection; one that a client opens for its first request is closed where that request is cancelled.

    Nothing but aiokafka's `bootstrap` holds this connection, and `bootstrap` closes it after errors only.
    """
    connection = await _create_conn(*args, **options)
    if options.get("on_close") is None:
        send = connection.send

        async def closing_send(request: Any) -> Any:  # noqa: ANN401
            try:
                return await send(request)
            except asyncio.CancelledError:
                connection.close()
                raise

        connection.send = closing_send
    return connection


_TUNED: tuple[tuple[Any, str, Any], ...] = (
    (aiokafka.producer.sender, "BACKOFF_OVERRIDE", TRANSACTION_BACKOFF),
    (aiokafka.client, "MetadataRequest", _CreatesNothing),
    (aiokafka.client, "create_conn", _create_closing_conn),
    (aiokafka.admin.client, "MetadataRequest", _CreatesNothing),
)


def tune() -> None:
    """Shorten aiokafka's wait between transactions, let no client create topics or leak its first connection.

    What aiokafka logs about failed connections is kept for `explain`.

    Holds for every client of the process, those that exist included.
    """
    for module, name, ours in _TUNED:
        if not hasattr(module, name):
            raise MisuseError(
                f"aiokafka {aiokafka.__version__} has no {module.__name__.removeprefix('aiokafka.')}.{name}; install "
                "aiokafka>=0.14,<0.15"
            )
        setattr(module, name, ours)
    connections = logging.getLogger("aiokafka")
    if _causes not in connections.handlers:
        connections.addHandler(_causes)


def explain(
    error: BaseException, doing: str, operation: str = "READ", group: str = "", since: float | None = None
) -> BrokerError:
    """Return what an error of the client means, with cause and remedy.

    ``operation`` is what the call needed on its topic, ``group`` the consumer group it spoke of: they are
    named where a permission is missing. ``since`` is the monotonic time at which the call began, where it is
    known: an older failure to connect, of another client say, is not its cause.
    """
    if isinstance(error, BrokerError):
        return error
    parts = [
        part for arg in error.args for part in (sorted(arg) if isinstance(arg, set | frozenset) else [arg])
    ]
    detail = ", ".join(map(str, parts)) or type(error).__name__
    match error:
        case errors.ProducerFenced():
            return Fenced(f"{doing}: another producer took over this shard's transactional id")
        case TimeoutError():
            return BrokerUnavailable(f"{doing}: no answer from the broker in time")
        case errors.TopicAuthorizationFailedError():
            return _denied(doing, "TOPIC", detail, operation)
        case errors.GroupAuthorizationFailedError():
            return _denied(doing, "GROUP", group or detail, "READ")
        case errors.TransactionalIdAuthorizationFailed():
            return _denied(doing, "TRANSACTIONAL_ID", detail, "WRITE")
        case errors.ClusterAuthorizationFailedError():
            return _denied(doing, "CLUSTER", "kafka-cluster", operation)
        case errors.MessageSizeTooLargeError() | errors.RecordListTooLargeError():
            return BrokerError(
                f"{doing}: the broker refused a record as too large; raise max.message.bytes of the topic to at "
                "least 1048588 bytes (Kafka's default)"
            )
        case errors.InvalidSessionTimeoutError():
            return BrokerError(
                f"{doing}: the brokers do not allow this kafka.session_timeout; it must lie between their "
                "group.min.session.timeout.ms (6s by default) and group.max.session.timeout.ms"
            )
        case errors.InvalidTimestampError():
            return BrokerUnavailable(
                f"{doing}: the broker refused a record for its time; set this machine's clock, or "
                "message.timestamp.type=LogAppendTime on the application's topics"
            )
        case errors.UnknownTopicOrPartitionError():
            return TopicMissing(
                f"{doing}: a topic does not exist: {detail}; create it with 'stream-svt check --create-topics'"
            )
        case (
            errors.SaslAuthenticationFailed()
            | errors.AuthenticationFailedError()
            | errors.UnsupportedSaslMechanismError()
        ):
            return LoginRefused(f"{doing}: {_login(detail)}")
        case errors.KafkaConnectionError():
            return _unreachable(doing, detail, time.monotonic() - CALL_DEADLINE if since is None else since)
    return BrokerUnavailable(f"{doing}: {type(error).__name__}: {detail}")


def _denied(doing: str, resource: str, name: str, operation: str) -> Denied:
    return Denied(
        f"{doing}: permission is missing: operation {operation} on resource {resource} {name!r}; add an ACL that "
        "allows it to this user"
    )


def _login(detail: str) -> str:
    if "IllegalSaslState" in detail:
        return (
            "this listener takes no login: set kafka.security_protocol to PLAINTEXT or SSL, or use the port of the "
            "SASL listener"
        )
    return f"the broker refused the login ({detail}); check kafka.username, the password file and kafka.sasl_mechanism"


def _unreachable(doing: str, detail: str, since: float) -> BrokerError:
    cause = _causes.take(since)
    if "CERTIFICATE_VERIFY_FAILED" in cause:
        return LoginRefused(
            f"{doing}: the broker's certificate is not trusted ({cause}); set kafka.ca_file to its CA"
        )
    if "uthentication" in cause or "Sasl" in cause:
        return LoginRefused(f"{doing}: {_login(cause)}")
    return BrokerUnavailable(
        f"{doing}: no broker can be reached ({cause or detail}); check kafka.bootstrap_servers, "
        "kafka.security_protocol and that the broker runs"
    )


@contextlib.asynccontextmanager
async def deadline(
    seconds: float, doing: str, operation: str = "READ", group: str = ""
) -> AsyncIterator[None]:
    """Bound a call to the broker and translate its errors.

    Raises:
        BrokerError: See `explain`; ``doing`` opens the message.
    """
    began = time.monotonic()
    try:
        async with asyncio.timeout(seconds):
            yield
    except (errors.KafkaError, errors.IllegalOperation, TimeoutError, OSError) as error:
        raise explain(error, doing, operation, group, began) from error
    on_answer.get()()


def _end_once(producer: AIOKafkaProducer) -> None:
    """Let the producer fail where the answer to EndTxn is lost, instead of sending it again.

    The first one may be on its way. Once the second is answered the next transaction begins, under the same
    epoch, and the first, late, would end that one in the middle. A new producer's epoch fences it.
    """
    send = producer.client.send

    async def send_once(node_id: int, request: Any, **options: Any) -> Any:  # noqa: ANN401
        try:
            return await send(node_id, request, **options)
        except errors.NodeNotReadyError:  # not sent
            raise
        except errors.KafkaError as error:
            if isinstance(request, EndTxnRequest):
                producer._txn_manager.fatal_error(error)  # noqa: SLF001
            raise

    producer.client.send = send_once


async def discard_producer(producer: AIOKafkaProducer | None) -> None:
    """End a producer whatever state it is in; never hangs, never raises, leaves no unretrieved exception."""
    if producer is None:
        return
    try:
        await stop_quietly(producer, DISCARD_DEADLINE)
    finally:
        # asyncio reports exceptions that nobody looked at; these belong to a producer that is gone.
        waiter = getattr(getattr(producer, "_txn_manager", None), "_transaction_waiter", None)
        if waiter is not None and waiter.done() and not waiter.cancelled():
            waiter.exception()


async def stop_quietly(
    client: AIOKafkaConsumer | AIOKafkaProducer | AIOKafkaAdminClient, seconds: float = DISCARD_DEADLINE
) -> None:
    """Stop a client within a deadline; errors and delays end here, and so do its tasks and connections."""
    stop: Callable[[], Any] = client.close if isinstance(client, AIOKafkaAdminClient) else client.stop
    # In a task of its own: a consumer whose broker is gone lets the cancellation of its own tasks escape
    # from stop().
    stopping = asyncio.ensure_future(stop())
    stopped = False
    try:
        await asyncio.wait([stopping], timeout=seconds)
        stopped = stopping.done() and not stopping.cancelled() and stopping.exception() is None
    finally:
        if not stopped:
            await _cut_off(client, stopping)


async def _cut_off(client: Any, stopping: asyncio.Future[Any]) -> None:  # noqa: ANN401  of three kinds
    """End what a client left behind whose stop() failed or hangs: its tasks, then the connections."""
    fetcher, coordinator = getattr(client, "_fetcher", None), getattr(client, "_coordinator", None)
    tasks = [
        stopping,
        getattr(getattr(client, "_sender", None), "sender_task", None),
        getattr(fetcher, "_fetch_task", None),
        *getattr(fetcher, "_pending_tasks", ()),
        *(getattr(coordinator, name, None) for name in _COORDINATOR_TASKS),
    ]
    left = {task for task in tasks if task is not None}
    for task in left:
        task.cancel()
    ended, _ = await asyncio.wait(left, timeout=DISCARD_DEADLINE)
    for task in ended:
        _ = task.cancelled() or task.exception()  # or asyncio logs that nobody asked
    connections: Any = getattr(client, "_client", None) or getattr(client, "client", None)
    with contextlib.suppress(Exception):
        async with asyncio.timeout(DISCARD_DEADLINE):
            await connections.close()


@dataclass(frozen=True, slots=True)
class Cluster:
    """How to reach the brokers, and the clients built from that.

    Attributes:
        arguments: Keyword arguments every client gets: servers, protocol, credentials. Kept out of ``repr``.
        session_timeout, heartbeat_interval, transaction_timeout: Seconds.
        group_instance_id: Name of a static group member, or None.
    """

    arguments: Mapping[str, Any] = field(repr=False)
    session_timeout: float = 6.0
    heartbeat_interval: float = 0.5
    transaction_timeout: float = 15.0
    group_instance_id: str | None = None

    @property
    def commit_deadline(self) -> float:
        """Seconds one transaction may take: well before the broker gives it up."""
        return min(CALL_DEADLINE, 0.7 * self.transaction_timeout)

    def _consumer(self, name: str, **options: Any) -> AIOKafkaConsumer:  # noqa: ANN401
        return AIOKafkaConsumer(
            **self.arguments,
            client_id=name,
            enable_auto_commit=False,
            max_partition_fetch_bytes=4 << 20,
            **{
                "group_id": None,
                "isolation_level": "read_committed",
                # "earliest" would jump over records that retention took, in silence.
                "auto_offset_reset": "none",
                # Requests queue behind a waiting fetch, a resumed partition's first one too.
                "fetch_max_wait_ms": 100,
                **options,
            },
        )

    def member(self, group: str, assignor: Any = RangePartitionAssignor) -> AIOKafkaConsumer:  # noqa: ANN401
        """Return a group's consumer, not started and not yet subscribed."""
        return self._consumer(
            "stream-svt",
            group_id=group,
            group_instance_id=self.group_instance_id,
            partition_assignment_strategy=(assignor,),
            session_timeout_ms=int(self.session_timeout * 1000),
            heartbeat_interval_ms=int(self.heartbeat_interval * 1000),
            rebalance_timeout_ms=int(REBALANCE_TIMEOUT * 1000),
            # A standby without partitions never fetches, and would leave the group for that every few minutes.
            # Each shard has a watchdog of its own.
            max_poll_interval_ms=2**31 - 1,
        )

    def queries(self) -> AIOKafkaConsumer:
        """Return the worker's consumer of query topics, outside any group, not started and not yet assigned."""
        return self._consumer("stream-svt-queries")

    def reader(self, isolation: str = "read_committed", *, fetch_wait_ms: int = 100) -> AIOKafkaConsumer:
        """Return a consumer outside any group; ``fetch_wait_ms`` is how long a fetch waits for new records."""
        return self._consumer(
            "stream-svt-reader",
            isolation_level=isolation,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=fetch_wait_ms,
        )

    def producer(self, transactional_id: str) -> AIOKafkaProducer:
        """Return a transactional producer, not started."""
        producer = AIOKafkaProducer(
            **self.arguments,
            transactional_id=transactional_id,
            client_id="stream-svt-" + transactional_id,
            acks="all",
            transaction_timeout_ms=int(self.transaction_timeout * 1000),
            request_timeout_ms=5000,
            max_batch_size=1 << 18,
        )
        _end_once(producer)
        return producer

    def admin(self) -> AIOKafkaAdminClient:
        """Return an admin client, not started."""
        return AIOKafkaAdminClient(**self.arguments, client_id="stream-svt-admin", request_timeout_ms=10000)


@contextlib.asynccontextmanager
async def started(
    client: AIOKafkaConsumer | AIOKafkaProducer | AIOKafkaAdminClient, doing: str, operation: str = "READ"
) -> AsyncIterator[Any]:
    """Start a client and stop it at the end, both within deadlines."""
    try:
        async with deadline(START_DEADLINE, doing, operation):
            await client.start()
        yield client
    finally:
        await stop_quietly(client)


async def group_offsets(cluster: Cluster, group: str, doing: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the positions that a group has committed."""
    return await _ask_coordinator(
        cluster, group, doing, lambda admin: admin.list_consumer_group_offsets(group)
    )


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a consumer group: its client id and host, and the user data that it joined with."""

    client: str
    host: str
    user_data: bytes


async def members(cluster: Cluster, group: str, doing: str) -> list[Member]:
    """Return the members of a group; while the group rebalances, nobody is told who they are, and it is asked again."""

    async def ask(admin: AIOKafkaAdminClient) -> list[Member]:
        while True:
            [response] = await admin.describe_consumer_groups([group])
            [(_, _, state, _, _, found, *_)] = response.groups
            if not state.endswith("Rebalance"):
                return [
                    Member(client, host, ConsumerProtocolMemberMetadata.decode(metadata).user_data)
                    for _, client, host, metadata, _, *_ in (tuple(one) for one in found)
                ]
            await asyncio.sleep(COORDINATOR_PAUSE)

    return await _ask_coordinator(cluster, group, doing, ask)


async def _ask_coordinator(
    cluster: Cluster, group: str, doing: str, ask: Callable[[AIOKafkaAdminClient], Awaitable[_Answer]]
) -> _Answer:
    async with started(cluster.admin(), doing) as admin, deadline(CALL_DEADLINE, doing, group=group):
        while True:
            try:
                return await ask(admin)
            except (
                errors.GroupCoordinatorNotAvailableError,
                errors.GroupLoadInProgressError,
                errors.NotCoordinatorForGroupError,
            ):
                # A broker that never had a group makes the topic for their offsets first.
                await asyncio.sleep(COORDINATOR_PAUSE)


async def partition_counts(cluster: Cluster, doing: str) -> dict[str, int]:
    """Return the number of partitions of every topic that this user may see.

    Of all topics: one asked for by its name would be created by a lenient broker.
    """
    async with started(cluster.admin(), doing) as admin, deadline(CALL_DEADLINE, doing, "DESCRIBE"):
        return {topic["topic"]: len(topic["partitions"]) for topic in await admin.describe_topics()}


async def spans(
    cluster: Cluster, places: Sequence[TopicPartition], doing: str
) -> dict[TopicPartition, tuple[int, int]]:
    """Return first and end offset of partitions, asked on a connection where no fetch is waiting."""
    async with started(cluster.reader(), doing) as reader, deadline(CALL_DEADLINE, doing):
        # Else it asks for one unknown topic at a time, and pauses after each.
        await reader._client.set_topics([place.topic for place in places])  # noqa: SLF001
        first = await reader.beginning_offsets(places)
        end = await reader.end_offsets(places)
    return {place: (first[place], end[place]) for place in places}


async def read_partition(
    consumer: AIOKafkaConsumer, topic: str, partition: int, start: int | None, doing: str
) -> AsyncIterator[Sequence[Any]]:
    """Yield the records of a partition from ``start`` (None: its beginning) to its end at the time of the call.

    Positions are compared, not records counted: markers and compacted records take offsets too.

    Raises:
        BrokerUnavailable: The position did not move for `CALL_DEADLINE` seconds: a client whose broker is
            gone returns nothing, again and again, and so does one whose partition was cut short after its end
            was asked for.
    """
    place = TopicPartition(topic, partition)
    async with deadline(CALL_DEADLINE, doing):
        consumer.assign([place])
        first = (await consumer.beginning_offsets([place]))[place]
        end = (await consumer.end_offsets([place]))[place]
        position = first if start is None else max(first, start)
        consumer.seek(place, position)
        if position >= end:
            # Fetch from an empty partition too: that the right to READ is missing would only show at a later takeover.
            until = time.monotonic() + EMPTY_FETCH
            while consumer.highwater(place) is None and time.monotonic() < until:
                await header_decoding.getmany(consumer, place, timeout_ms=10)
    moved = time.monotonic()
    while position < end:
        async with deadline(CALL_DEADLINE, doing):
            batch = await header_decoding.getmany(consumer, place, timeout_ms=200, max_records=20_000)
            advanced = await consumer.position(place)
        stands = advanced <= position
        if stands and time.monotonic() - moved > CALL_DEADLINE:
            raise BrokerUnavailable(
                f"{doing}: nothing came from the broker for {CALL_DEADLINE:g} seconds, at offset {position} "
                f"of {end} of partition {partition}"
            )
        position = max(position, advanced)
        if batch.get(place):
            yield batch[place]
        if not stands:
            moved = time.monotonic()  # only now: what the caller does with records is not the broker's delay
