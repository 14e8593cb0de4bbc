"""Kafka clients with deadlines, and errors with remedies.

aiokafka retries without end while a broker does not answer, and reports a wrong password as "unable to bootstrap".
Every call of this package to a broker goes through `deadline`, which bounds it and raises a `BrokerError` with cause
and remedy. After `BrokerUnavailable` and `Fenced` the outcome is unknown: discard the producer and start again.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition, errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from aiokafka.structs import OffsetAndMetadata

from stream_svt.errors import BrokerError
from stream_svt.kafka import aiokafka_fixes
from stream_svt.kafka.tokens import TokenRefused, TokenUnavailable, tokens_of
from stream_svt.kafka.topic_ids import topic_ids
from stream_svt.kafka.transactions import TransactionalProducer
from stream_svt.settings.fields import held_by
from stream_svt.settings.sections import KafkaConfig

_Answer = TypeVar("_Answer")
Client: TypeAlias = AIOKafkaConsumer | AIOKafkaProducer | TransactionalProducer | AIOKafkaAdminClient

START_DEADLINE = 15.0
"""Seconds for the start of a client: more than a request may take (kafka.request_timeout), because a cancelled start
leaves its first connection open for minutes."""
CALL_DEADLINE = 10.0
DISCARD_DEADLINE = 2.0
COORDINATOR_PAUSE = 0.2
EMPTY_FETCH = 0.15
"""Seconds within which a broker reports that reading a partition is not permitted."""
REBALANCE_TIMEOUT = 20.0
FIRST_LOOKBACK = 2
"""Distance in offsets from the end of a partition at which the search for its newest record begins: that record and
its commit marker. A fetch of many more takes megabytes several times over, and the process keeps that memory."""

QUERY_FETCH, LOG_FETCH = 4 << 20, 1 << 20
"""Bytes of a partition that one fetch may return, of query topics and of others. A client holds them three times at
once, and the process keeps that memory."""
MAX_OBJECTS = 2_000
"""Records that are read at once: each is an object, and tombstones of a day add up to hundreds of thousands."""

on_answer: ContextVar[Callable[[], None]] = ContextVar("on_answer", default=lambda: None)
"""Called after every completed broker call of a task; a watchdog sets it to see progress."""


class BrokerUnavailable(BrokerError):
    """The broker did not answer in time or cannot be reached; the call may succeed later."""

    retriable = True


class Denied(BrokerError):
    """A permission is missing."""


class TopicMissing(BrokerError):
    """A topic does not exist."""


class OtherCluster(BrokerError):
    """The brokers belong to another cluster than the worker found at its start."""

    def __init__(self, doing: str, found: str, expected: str) -> None:
        super().__init__(
            f"{doing}: kafka.bootstrap_servers lead to cluster {found}, and to cluster {expected} when this worker "
            "started; nothing was written. If the change is intended, restart the worker"
        )


class LoginRefused(BrokerError):
    """The brokers refused the login, or this client their certificate."""


class Fenced(BrokerError):
    """Another producer or group member took over the shard, or the broker aborted its transaction."""

    retriable = True


_ACL = "permission is missing: operation {} on resource {}; add an ACL that allows it to this user"
_MEANINGS: Final[dict[Any, tuple[type[BrokerError], str]]] = {
    errors.ProducerFenced: (Fenced, "another producer took over this shard's transactional id"),
    TimeoutError: (BrokerUnavailable, "no answer from the broker in time"),
    errors.TopicAuthorizationFailedError: (Denied, _ACL.format("{operation}", "TOPIC {detail!r}")),
    errors.GroupAuthorizationFailedError: (Denied, _ACL.format("READ", "GROUP {group!r}")),
    errors.TransactionalIdAuthorizationFailed: (Denied, _ACL.format("WRITE", "TRANSACTIONAL_ID {detail!r}")),
    errors.ClusterAuthorizationFailedError: (Denied, _ACL.format("{operation}", "CLUSTER 'kafka-cluster'")),
    (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError): (
        BrokerError,
        "a record is too large for the broker; set max.message.bytes of the topic to 1048588 (the default) or more",
    ),
    errors.InconsistentGroupProtocolError: (
        BrokerUnavailable,
        "group {group!r} is of another program, such as the workers of an application; choose another group",
    ),
    errors.InvalidSessionTimeoutError: (
        BrokerError,
        "kafka.session_timeout is outside the brokers' group.min.session.timeout.ms to group.max.session.timeout.ms",
    ),
    errors.InvalidTimestampError: (
        BrokerUnavailable,
        "the broker refused a record's timestamp; set this machine's clock, or message.timestamp.type=LogAppendTime",
    ),
    errors.UnknownTopicOrPartitionError: (
        TopicMissing,
        "a topic does not exist: {detail}; create it with 'stream-svt check --create-topics'",
    ),
    errors.IllegalSaslStateError: (
        LoginRefused,
        "this listener takes no login: set kafka.security_protocol to PLAINTEXT or SSL, or use the SASL listener",
    ),
    TokenRefused: (LoginRefused, "{detail}"),
    TokenUnavailable: (BrokerUnavailable, "{detail}"),
    (
        errors.SaslAuthenticationFailed,
        errors.AuthenticationFailedError,
        errors.UnsupportedSaslMechanismError,
    ): (
        LoginRefused,
        "the broker refused the login ({text}); check kafka.username, the password file and kafka.sasl_mechanism",
    ),
    ssl.SSLCertVerificationError: (
        LoginRefused,
        "the broker's certificate is not trusted ({text}); set kafka.ca_file to its CA",
    ),
    (errors.KafkaConnectionError, OSError): (
        BrokerUnavailable,
        (
            "no broker can be reached ({text}): start the broker, or correct kafka.bootstrap_servers; if it runs, "
            "check kafka.security_protocol, and kafka.certificate_file if it asks for a certificate"
        ),
    ),
    BaseException: (BrokerUnavailable, "{name}: {detail}"),
}
"""Meaning of aiokafka's errors: the first matching entry counts."""


def explain(
    error: BaseException, doing: str, operation: str = "READ", group: str = "", since: float | None = None
) -> BrokerError:
    """Return a `BrokerError` with cause and remedy for an error of aiokafka.

    If a permission is missing, the message names ``operation``, on the topic, or ``group``. Connection errors from
    before ``since``, the monotonic time at which the call began, are not its cause.
    """
    if isinstance(error, BrokerError):
        return error
    if isinstance(error, errors.KafkaConnectionError):
        since = time.monotonic() - CALL_DEADLINE if since is None else since
        error = aiokafka_fixes.connection_error(since) or error
    name = type(error).__name__
    parts = [sorted(arg) if isinstance(arg, set | frozenset) else [arg] for arg in error.args]
    detail = ", ".join(map(str, chain.from_iterable(parts))) or name
    kind, meaning = next(entry for types, entry in _MEANINGS.items() if isinstance(error, types))
    group = group or detail
    message = meaning.format(operation=operation, detail=detail, group=group, name=name, text=error)
    return kind(f"{doing}: {message}")


@contextlib.asynccontextmanager
async def deadline(
    seconds: float, doing: str, operation: str = "READ", group: str = ""
) -> AsyncIterator[None]:
    """Bound a call to the broker and translate its errors with `explain`; messages begin with ``doing``."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(seconds):
            yield
    except (errors.KafkaError, errors.IllegalOperation, TimeoutError, OSError) as error:
        raise explain(error, doing, operation, group, began) from error
    on_answer.get()()


async def stop_quietly(client: Client, seconds: float = DISCARD_DEADLINE) -> None:
    """Stop a client within a deadline, whatever it raises, and end its tasks and connections."""
    stop: Callable[[], Any] = client.close if isinstance(client, AIOKafkaAdminClient) else client.stop
    # In a separate task: when the broker is gone, stop() of a consumer can raise the CancelledError of its tasks.
    stopping = asyncio.ensure_future(stop())
    try:
        await asyncio.wait([stopping], timeout=seconds)
    finally:
        if not stopping.done() or stopping.cancelled() or stopping.exception() is not None:
            unfinished = aiokafka_fixes.unfinished_tasks(client) | {stopping}
            for task in unfinished:
                task.cancel()
            await _wait(*unfinished)
            # Over TLS, closing waits for the broker on futures that `stopping` may have cancelled.
            await _wait(aiokafka_fixes.connections(client).close())


async def _wait(*tasks: Awaitable[Any]) -> None:
    """Wait within a deadline until all tasks are done, cancelled or failed."""
    # A gather would wait for a task that ignores its cancellation, whatever the deadline.
    done, _ = await asyncio.wait([asyncio.ensure_future(task) for task in tasks], timeout=DISCARD_DEADLINE)
    await asyncio.gather(*done, return_exceptions=True)


def tls_context(
    authorities: Path | None, certificate: Path | None = None, private_key: Path | None = None
) -> ssl.SSLContext:
    """Return the settings of a TLS connection from PEM files, by default with the system's authorities.

    Raises OSError or ssl.SSLError for a file that is not usable.
    """
    context = ssl.create_default_context(cafile=authorities)
    if certificate is not None:
        # OpenSSL would ask for the password of an encrypted key on the terminal.
        context.load_cert_chain(certificate, private_key, password="")
    return context


@dataclass(frozen=True, slots=True)
class Cluster:
    """A factory of clients; every client gets ``arguments``, with credentials: ``repr`` hides them."""

    arguments: Mapping[str, Any] = field(repr=False)
    config: KafkaConfig = field(default_factory=KafkaConfig)

    def __post_init__(self) -> None:
        protocol = aiokafka_fixes.ClientMarker(self.arguments.get("security_protocol", "PLAINTEXT"))
        object.__setattr__(self, "arguments", {**self.arguments, "security_protocol": protocol})

    @classmethod
    def of(cls, kafka: KafkaConfig) -> Cluster:
        """Return the cluster of a section `kafka`, checked with the files that it names."""
        tokens, [password] = tokens_of(kafka), held_by(kafka.password_file)
        files = held_by(kafka.ca_file, kafka.certificate_file, kafka.private_key_file)
        arguments = {
            "bootstrap_servers": list(kafka.bootstrap_servers),
            "security_protocol": kafka.security_protocol,
            "sasl_mechanism": kafka.sasl_mechanism if tokens is None else "OAUTHBEARER",
            "sasl_plain_username": kafka.username,
            "sasl_plain_password": password,
            "sasl_oauth_token_provider": tokens,
            "ssl_context": tls_context(*files) if kafka.encrypts else None,
            "connections_max_idle_ms": kafka.connections_max_idle,
        }
        return cls(arguments, kafka)

    @property
    def commit_deadline(self) -> float:
        """Seconds one transaction may take: less than the broker's timeout."""
        return min(CALL_DEADLINE, 0.7 * self.config.transaction_timeout / 1000)

    def consumer(self, name: str, isolation: str, **options: Any) -> AIOKafkaConsumer:  # noqa: ANN401
        """Return a consumer, not started, without automatic commits; ``name`` ends its client id."""
        aiokafka_fixes.read_every_header_name()
        return AIOKafkaConsumer(
            **self.arguments,
            client_id=self.config.client_id + name,
            isolation_level=isolation,
            enable_auto_commit=False,
            **options,
        )

    def member(self, group: str, assignor: Any = RangePartitionAssignor) -> AIOKafkaConsumer:  # noqa: ANN401
        """Return a group's consumer, not started and not yet subscribed."""
        return self.consumer(
            "",
            "read_committed",
            group_id=group,
            group_instance_id=self.config.group_instance_id,
            partition_assignment_strategy=(assignor,),
            # "earliest" would skip records that retention deleted, without an error.
            auto_offset_reset="none",
            fetch_max_wait_ms=100,
            # A member that does not fetch learns of deleted and recreated topics only from metadata.
            metadata_max_age_ms=self.config.metadata_max_age,
            session_timeout_ms=self.config.session_timeout,
            heartbeat_interval_ms=self.config.heartbeat_interval,
            rebalance_timeout_ms=int(REBALANCE_TIMEOUT * 1000),
            # A standby without partitions does not fetch and would be removed from the group every few minutes.
            # Each shard has its own watchdog.
            max_poll_interval_ms=2**31 - 1,
        )

    def reader(
        self,
        isolation: str = "read_committed",
        *,
        reset: str = "earliest",
        fetch_wait_ms: int = 100,
        longest_wait_ms: int = 0,
        fetch_bytes: int = LOG_FETCH,
    ) -> AIOKafkaConsumer:
        """Return a consumer without a group; ``reset`` is its policy for deleted offsets.

        A fetch waits ``fetch_wait_ms`` at the broker for new records; other requests queue behind it.
        ``longest_wait_ms`` is the longest wait that is set later; the timeout of requests grows by it.
        """
        return self.consumer(
            "-reader",
            isolation,
            group_id=None,
            auto_offset_reset=reset,
            fetch_max_wait_ms=fetch_wait_ms,
            max_partition_fetch_bytes=fetch_bytes,
            consumer_timeout_ms=max(200, 2 * fetch_wait_ms, longest_wait_ms),
            request_timeout_ms=self.config.request_timeout + longest_wait_ms,
        )

    def producer(self, transactional_id: str) -> TransactionalProducer:
        """Return a transactional producer, not started."""
        client = AIOKafkaClient(
            **self.arguments,
            client_id=f"{self.config.client_id}-{transactional_id}",
            request_timeout_ms=self.config.request_timeout,
        )
        return TransactionalProducer(
            client, transactional_id, self.config.transaction_timeout, self.config.request_timeout
        )

    def admin(self) -> AIOKafkaAdminClient:
        """Return an admin client, not started."""
        return AIOKafkaAdminClient(
            **self.arguments, client_id=f"{self.config.client_id}-admin", request_timeout_ms=10000
        )


@contextlib.asynccontextmanager
async def started(client: Client, doing: str, operation: str = "READ") -> AsyncIterator[Any]:
    """Start a client and stop it at the end, both within deadlines."""
    try:
        async with deadline(START_DEADLINE, doing, operation):
            await client.start()
            await aiokafka_fixes.wait_for_brokers(client)
        yield client
    finally:
        await stop_quietly(client)


async def group_offsets(cluster: Cluster, group: str, doing: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets that a group has committed."""
    return await _ask_group(cluster, group, doing, lambda admin: admin.list_consumer_group_offsets(group))


async def members(cluster: Cluster, group: str, doing: str) -> list[tuple[str, bytes]]:
    """Return client id and host of each member of a group, and the user data of its join request."""

    async def ask(admin: AIOKafkaAdminClient) -> list[tuple[str, bytes]]:
        [response] = await admin.describe_consumer_groups([group])
        [(_, _, state, _, _, joined, *_)] = response.groups
        if state.endswith("Rebalance"):  # brokers return no metadata of members then
            raise errors.GroupLoadInProgressError
        named = [(f"{client} at {host.lstrip('/')}", data) for _, client, host, data, *_ in joined]
        return [(name, ConsumerProtocolMemberMetadata.decode(data).user_data) for name, data in named]

    return await _ask_group(cluster, group, doing, ask)


async def try_membership(cluster: Cluster, group: str) -> None:
    """Raise `Denied` unless this user may join a group: a heartbeat of an unknown member, which changes nothing."""

    async def ask(admin: AIOKafkaAdminClient) -> None:
        code = await aiokafka_fixes.heartbeat_of_nobody(admin, group)
        if code not in (0, errors.UnknownMemberIdError.errno, errors.IllegalGenerationError.errno):
            raise errors.for_code(code)(group)

    await _ask_group(cluster, group, f"joining group {group!r}", ask)


async def _ask_group(
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
                # A new cluster first creates the topic of group offsets.
                await asyncio.sleep(COORDINATOR_PAUSE)


async def cluster_id_of(cluster: Cluster) -> str:
    """Return a cluster's id."""
    doing = "asking for the cluster's id"
    async with started(cluster.admin(), doing) as admin, deadline(CALL_DEADLINE, doing, "DESCRIBE"):
        return str((await admin.describe_cluster())["cluster_id"])


async def partition_counts(cluster: Cluster, doing: str) -> dict[str, int]:
    """Return the number of partitions of every topic that this user may see.

    The request names no topic: brokers may create topics that are named.
    """
    async with started(cluster.admin(), doing) as admin, deadline(CALL_DEADLINE, doing, "DESCRIBE"):
        return {topic["topic"]: len(topic["partitions"]) for topic in await admin.describe_topics()}


async def read_topic_ids(cluster: Cluster, topics: Sequence[str], doing: str) -> dict[str, str]:
    """Return the id of each topic that this user may see; a topic that is created again has another id."""
    async with started(cluster.admin(), doing) as admin, deadline(CALL_DEADLINE, doing, "DESCRIBE"):
        return await topic_ids(aiokafka_fixes.connections(admin), topics)


Spans: TypeAlias = dict[TopicPartition, tuple[int, int]]


async def edges(reader: AIOKafkaConsumer, partitions: Sequence[TopicPartition], doing: str) -> Spans:
    """Return first and end offset of partitions, read with an existing consumer."""
    async with deadline(CALL_DEADLINE, doing):
        await aiokafka_fixes.request_metadata(reader, [partition.topic for partition in partitions])
        first = await reader.beginning_offsets(partitions)
        end = await reader.end_offsets(partitions)
    return {partition: (first[partition], end[partition]) for partition in partitions}


def seek_all(reader: AIOKafkaConsumer, starts: Mapping[TopicPartition, int]) -> None:
    """Assign these partitions to a reader, each at its start offset."""
    reader.assign(list(starts))
    for partition, start in starts.items():
        reader.seek(partition, start)


async def spans(
    cluster: Cluster, partitions: Sequence[TopicPartition], doing: str, isolation: str = "read_committed"
) -> Spans:
    """Return first and end offset of partitions, on a new connection, where no fetch delays the answer."""
    async with started(cluster.reader(isolation), doing) as reader:
        return await edges(reader, partitions, doing)


async def spans_and_ids(
    cluster: Cluster, partitions: Sequence[TopicPartition], doing: str
) -> tuple[Spans, dict[str, str]]:
    """Return first and end offset of partitions, and the ids of their topics, on a new connection."""
    topics = sorted({one.topic for one in partitions})
    async with started(cluster.reader(), doing) as reader:
        found = await edges(reader, partitions, doing)
        async with deadline(CALL_DEADLINE, doing, "DESCRIBE"):
            # Last, so that no id of a deleted topic comes with the offsets of the one that replaces it.
            return found, await topic_ids(aiokafka_fixes.connections(reader), topics)


async def read_partition(
    consumer: AIOKafkaConsumer, tp: TopicPartition, start: int | None, doing: str
) -> AsyncIterator[Any]:
    """Yield the records of a partition from ``start`` (None: its beginning) to its end at the time of the call.

    Positions decide when the end is reached: markers and compacted records take offsets too. If the broker is gone or
    the partition was truncated, the consumer returns no records, and the deadline ends the call.
    """
    first, end = (await edges(consumer, [tp], doing))[tp]
    async for records in _read_span(consumer, tp, first if start is None else max(first, start), end, doing):
        for record in records:
            yield record


async def _read_span(
    consumer: AIOKafkaConsumer, tp: TopicPartition, position: int, end: int, doing: str
) -> AsyncIterator[Sequence[Any]]:
    """Yield the records of a partition from one offset to another."""
    # At once: a partition that is assigned without a position is fetched from its beginning.
    seek_all(consumer, {tp: position})
    if position >= end:
        # Also fetch from an empty partition: otherwise a missing right to READ would be found only at a later takeover.
        until = time.monotonic() + EMPTY_FETCH
        async with deadline(CALL_DEADLINE, doing):
            while consumer.highwater(tp) is None and time.monotonic() < until:
                await consumer.getmany(tp, timeout_ms=10)
    while position < end:
        async with deadline(
            CALL_DEADLINE, f"{doing}: offset {position} of {end} of partition {tp.partition}"
        ):
            batch: dict[TopicPartition, Sequence[Any]] = {}
            while (advanced := await consumer.position(tp)) <= position:
                batch = await consumer.getmany(tp, timeout_ms=200, max_records=MAX_OBJECTS)
        position = advanced
        if batch.get(tp):
            yield batch[tp]


async def poll(
    reader: AIOKafkaConsumer, seconds: float, doing: str, max_records: int | None = None
) -> list[Any]:
    """Return the next records of a reader's partitions, empty if none comes within some seconds."""
    async with deadline(seconds + CALL_DEADLINE, doing):
        batches = await reader.getmany(timeout_ms=int(1000 * seconds), max_records=max_records)
    return [*chain.from_iterable(batches.values())]


async def newest(
    consumer: AIOKafkaConsumer,
    tp: TopicPartition,
    parse: Callable[[Any], _Answer | None],
    doing: str,
    max_lookback: int | None = None,
) -> _Answer | None:
    """Return the newest result of ``parse`` that is not None, searching backwards at most ``max_lookback`` offsets."""
    first, end = (await edges(consumer, [tp], doing))[tp]
    if max_lookback is not None:
        first = max(first, end - max_lookback)
    lookback = FIRST_LOOKBACK
    while first < end:
        start, found = max(first, end - lookback), None
        async for records in _read_span(consumer, tp, start, end, doing):
            for record in records:
                found = parse(record) or found
        if found is not None or start == first:
            return found
        lookback = 16 * max(lookback, 16)
    return None


async def try_fetch(cluster: Cluster, topic: str) -> None:
    """Fetch from a topic's first partition: only a fetch shows whether READ is granted."""
    partition, doing = TopicPartition(topic, 0), f"reading topic {topic!r}"
    async with started(cluster.reader(), doing) as reader, deadline(CALL_DEADLINE, doing):
        reader.assign([partition])
        await reader.seek_to_beginning()
        await reader.getmany(partition, timeout_ms=300, max_records=1)
