"""Every change to aiokafka and every use of its internals, each with its reason.

Only the connections of this package's clients are changed, which `ClientMarker` marks: other connections of a
program that hosts a worker or a subscription stay unchanged. `pyproject.toml` pins the version with these internals.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections import deque
from collections.abc import Collection
from typing import Any, Final, TypeAlias

import aiokafka.client
import aiokafka.conn
import aiokafka.consumer.fetcher
from aiokafka import TopicPartition
from aiokafka.conn import AIOKafkaConnection, CloseReason, OAuthAuthenticator
from aiokafka.errors import (
    CorruptRecordException,
    KafkaError,
    SaslAuthenticationFailed,
    UnknownTopicOrPartitionError,
)
from aiokafka.protocol.admin import ApiVersionRequest, SaslAuthenticateRequest, SaslHandShakeRequest
from aiokafka.protocol.group import HeartbeatRequest
from aiokafka.protocol.metadata import MetadataRequest

from stream_svt.errors import MisuseError
from stream_svt.kafka.batches import Batches, take_whole
from stream_svt.kafka.frames import ResponseProtocol

Consumer: TypeAlias = Any  # aiokafka has no types


def read_every_header_name() -> None:
    """Decode header names that are not UTF-8 with replacement characters, as Kafka's own clients do.

    Any producer can write such a name; aiokafka would fail on its record and on the rest of the batch.
    """
    _replace(aiokafka.consumer.fetcher, "MemoryRecords", Batches)


def apply_fixes() -> None:
    """Apply the changes to this process, including existing clients.

    Raises:
        MisuseError: The installed version of aiokafka is not supported.
    """
    read_every_header_name()
    record_connection_errors()


def _replace(module: Any, name: str, ours: Any) -> None:  # noqa: ANN401
    if not hasattr(module, name):
        raise MisuseError(
            f"aiokafka {aiokafka.__version__} has no {module.__name__.removeprefix('aiokafka.')}.{name}; install "
            "aiokafka>=0.14,<0.15"
        )
    setattr(module, name, ours)


class ClientMarker(str):
    """A security protocol that marks a client of this package: aiokafka hands it on to each of its connections."""

    __slots__ = ()


def record_connection_errors() -> None:
    """Record why a connection of ours failed: aiokafka's exceptions do not say."""
    _replace(aiokafka.client, "create_conn", _connect)


def connection_error(since: float) -> Exception | None:
    """Return the error of the last failed connection since this monotonic time, once; None without one."""
    errors = [error for error, at in _connection_errors if at >= since]
    _connection_errors.clear()
    return errors[-1] if errors else None


_connection_errors: deque[tuple[Exception, float]] = deque(maxlen=1)
_refused_at: dict[tuple[str, int], float] = {}
_PAUSE: Final = 0.1
"""Seconds between two connections to an address that refuses them, and between two questions for the metadata of a
missing topic: aiokafka makes none. Kafka's own clients wait as long (retry.backoff.ms)."""


def _record(error: Exception) -> None:
    _connection_errors.append((error, time.monotonic()))


async def _connect(host: str, port: int, **options: Any) -> Any:  # noqa: ANN401
    """Open a connection; close a client's first one if its start is cancelled, which aiokafka leaves open."""
    if not isinstance(options.get("security_protocol"), ClientMarker):
        return await aiokafka.conn.create_conn(host, port, **options)
    if (pause := _refused_at.get((host, port), 0.0) + _PAUSE - time.monotonic()) > 0:
        await asyncio.sleep(pause)
    try:
        connection = await create_conn(host, port, **options)
    except (OSError, KafkaError) as error:
        if isinstance(error, socket.gaierror):  # its text names no host
            error.strerror = f"{error.strerror}: {host}"
        _refused_at[host, port] = time.monotonic()
        if not isinstance(error, TimeoutError):
            _record(error)
        raise
    _refused_at.pop((host, port), None)
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


async def create_conn(host: str, port: int, **options: Any) -> Any:  # noqa: ANN401
    """Return an open connection, as aiokafka's function of this name."""
    connection = _Connection(host, port, **options)
    await connection.connect()
    return connection


# Logging in

SESSION_USED: Final = 0.85
"""Part of a session after which a connection logs in again: as early as Kafka's own clients do."""
_SHORTEST: Final = 1.1
"""Seconds between two logins; brokers refuse the second within one second."""
_OF_LOGIN: Final = (ApiVersionRequest, SaslHandShakeRequest, SaslAuthenticateRequest)


class _Connection(AIOKafkaConnection):  # type: ignore[misc]  # aiokafka has no types
    """A connection that creates no topics, and logs in again before the broker ends its session (KIP-368).

    Topics that brokers create (auto.create.topics.enable, on by default) have default settings: retention would
    delete the state, and a deleted query topic would reappear at once, empty.

    A broker may limit sessions (connections.max.reauth.ms), and closes a connection at the first request after the end
    of its session: a transaction in progress would be lost. aiokafka does not log in again. Requests wait for the two
    round trips of a login, and not for the next token, as long as one is valid.

    aiokafka asks for the metadata of a missing topic again and again without a pause: each answer makes it ask.
    """

    _login_at = _session_end = math.inf
    _metadata_at = 0.0
    _login: asyncio.Task[None] | None = None
    _takes_requests = True

    def _create_reader_task(self) -> Any:  # noqa: ANN401
        self._writer.transport.set_protocol(ResponseProtocol(self, self._protocol))
        return super()._create_reader_task()  # which hears of the end of the connection only

    def send(self, request: Any, expect_response: bool = True) -> Any:  # noqa: ANN401
        if isinstance(request, SaslAuthenticateRequest):
            return self._authenticate(request)
        if isinstance(request, MetadataRequest):
            return self._request_metadata(request)
        if isinstance(request, _OF_LOGIN):
            return super().send(request, expect_response)
        return self._send(request, expect_response)

    async def _request_metadata(self, request: Any) -> Any:  # noqa: ANN401
        request._allow_auto_topic_creation = False  # noqa: SLF001
        if (pause := self._metadata_at - time.monotonic()) > 0:
            await asyncio.sleep(pause)
        response = await self._send(request, True)
        if any(error for error, *_ in response.topics):
            self._metadata_at = time.monotonic() + _PAUSE
        return response

    def _send(self, request: Any, expect_response: bool) -> Any:  # noqa: ANN401
        now = time.monotonic()
        if now >= self._login_at and self._login is None:
            self._login = asyncio.create_task(self._log_in_again(), name="login")
        if self._login is None or (self._takes_requests and now < self._session_end):
            return super().send(request, expect_response)
        return self._send_after(self._login, request, expect_response)

    async def _send_after(self, login: asyncio.Task[None], request: Any, expect_response: bool) -> Any:  # noqa: ANN401
        await asyncio.wait([login])
        return await super().send(request, expect_response)

    async def _log_in_again(self) -> None:
        try:
            if self._sasl_oauth_token_provider is not None:
                await self._sasl_oauth_token_provider.token()
            self._takes_requests = False
            await self._do_sasl_handshake()
        except Exception as error:  # noqa: BLE001  whatever it is, the broker takes no request any more
            _record(error)
            self.close(reason=CloseReason.CONNECTION_BROKEN, exc=error)
        finally:
            self._login, self._takes_requests = None, True

    async def _authenticate(self, request: Any) -> Any:  # noqa: ANN401
        request._payload = _Hidden(request._payload)  # noqa: SLF001
        response = await super().send(request)
        seconds = getattr(response, "session_lifetime_ms", 0) / 1000 or math.inf
        self._session_end = time.monotonic() + seconds
        self._login_at = time.monotonic() + max(_SHORTEST, SESSION_USED * seconds)
        return response

    async def _do_sasl_handshake(self) -> None:
        try:
            await super()._do_sasl_handshake()
        except SaslAuthenticationFailed as error:
            if self._sasl_oauth_token_provider is None or type(error) is not SaslAuthenticationFailed:
                raise
            raise self._sasl_oauth_token_provider.refused() from error

    def authenticator_oauth(self) -> Any:  # noqa: ANN401
        return _OAuth(sasl_oauth_token_provider=self._sasl_oauth_token_provider)


class _OAuth(OAuthAuthenticator):  # type: ignore[misc]
    """A login with a token that ends as RFC 7628 says; aiokafka takes a refusal for a success."""

    async def step(self, payload: bytes | None) -> tuple[bytes, bool] | None:
        # A broker describes a refusal first, and refuses once the client has answered.
        return (b"\x01", True) if payload else await super().step(payload)


class _Hidden(bytes):
    """A password or token; aiokafka logs its requests at level DEBUG."""

    def __repr__(self) -> str:
        return "<hidden>"

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401
        # The beginning of a long text is logged; the whole is sent.
        return _Hidden() if isinstance(index, slice) else super().__getitem__(index)

    def __add__(self, other: Any) -> _Hidden:  # noqa: ANN401
        return _Hidden(bytes(self) + other)


# Reading: `getmany` waits and takes records in one call; shards wait first, and take when it is their turn.


def buffered(consumer: Consumer, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
    """Return the partitions of which the consumer holds records or an error for `getmany`, the first fetched first."""
    return [partition for partition in consumer._fetcher._records if partition in partitions]  # noqa: SLF001


async def take(consumer: Consumer, partition: TopicPartition, *, whole: bool, most: int) -> list[Any]:
    """Return `getmany`'s records of one partition, or none; each batch is one record if ``whole``.

    Only records that are buffered on entry are taken: a fetch that arrives later is not marked as whole. Raises
    CorruptRecordException; the fetched records are then dropped and fetched again.
    """
    fetcher = consumer._fetcher  # noqa: SLF001
    if (found := fetcher._records.get(partition)) is None:  # noqa: SLF001
        return []
    fetched = getattr(found, "_partition_records", None)
    if whole and isinstance(getattr(fetched, "_records", None), Batches):
        take_whole(fetched)
    try:
        taken: dict[TopicPartition, list[Any]] = await consumer.getmany(partition, max_records=most)
    except CorruptRecordException:
        if fetcher._records.pop(partition, None) is not None:  # noqa: SLF001
            fetcher._notify(fetcher._wait_consume_future)  # noqa: SLF001
        raise
    return taken.get(partition, [])


async def wait_for_records(
    consumer: Consumer, partitions: Collection[TopicPartition], seconds: float, until: asyncio.Future[None]
) -> None:
    """Wait until records are `buffered`, another future is done, or ``seconds`` have passed; take no record."""
    end = time.monotonic() + seconds
    while not (buffered(consumer, partitions) or until.done()) and (left := end - time.monotonic()) > 0:
        waiter = consumer._fetcher._create_fetch_waiter()  # noqa: SLF001
        try:
            await asyncio.wait([waiter, until], timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if waiter.done():
                waiter.result()
        finally:
            waiter.cancel()


def set_fetch_wait(consumer: Consumer, milliseconds: int) -> None:
    """Set how long later fetches wait at the broker for records."""
    consumer._fetcher._fetch_max_wait_ms = milliseconds  # noqa: SLF001


def fetch_together(consumer: Consumer, seconds: float) -> None:
    """Let the client fetch from a broker only once all its fetched records are taken, or after ``seconds``.

    By itself it fetches the other partitions after 0.1 seconds. That fetch waits at the broker for new records, and the
    partitions whose records are taken meanwhile are not fetched before it ends.
    """
    consumer._fetcher._prefetch_backoff = seconds  # noqa: SLF001


def has_failed(consumer: Consumer) -> bool:
    """Return whether the consumer's fetch loop has ended: `getmany` then returns no records, and raises no error."""
    return bool(consumer._fetcher.error_future.done())  # noqa: SLF001


def is_denied(consumer: Consumer, topic: str) -> bool:
    """Return whether the brokers deny this user the topic; a fetch would wait without an error."""
    return topic in consumer._client.cluster.unauthorized_topics  # noqa: SLF001


def absence(consumer: Consumer, topic: str) -> str:
    """Return why a consumer waits in vain for a topic, by its newest metadata; "" if it does not."""
    cluster = consumer._client.cluster  # noqa: SLF001
    if cluster._last_refresh_ms > cluster._last_successful_refresh_ms:  # noqa: SLF001
        return "no broker answers"
    return "" if cluster.partitions_for_topic(topic) else "the topic does not exist any more"


async def request_metadata(consumer: Consumer, topics: list[str]) -> None:
    """Request the metadata of all topics at once; by itself a client requests one topic at a time, with pauses."""
    await consumer._client.set_topics(topics)  # noqa: SLF001


# Membership: aiokafka reports the end of a membership only to callers that fetch


def membership_error(consumer: Consumer) -> BaseException | None:
    """Return the error that ended the coordination or heartbeat task, None while both run; neither restarts."""
    coordinator = consumer._coordinator  # noqa: SLF001
    joining, heartbeat = coordinator._coordination_task, coordinator._heartbeat_task  # noqa: SLF001
    for task in (joining, heartbeat):
        if task is not None and task.done() and not task.cancelled() and (error := task.exception()):
            failure: BaseException = error
            return failure
    # The heartbeat task ends without an error before each join.
    return KafkaError("the client's coordination task ended") if joining.done() else None


def check_errors(consumer: Consumer) -> None:
    """Raise the coordinator's errors, as a fetch does."""
    consumer._coordinator.check_errors()  # noqa: SLF001


def has_coordinator(consumer: Consumer) -> bool:
    """Return whether the client could reach the group's coordinator at its last request."""
    return consumer._coordinator.coordinator_id is not None  # noqa: SLF001


async def heartbeat_of_nobody(admin: Any, group: str) -> int:  # noqa: ANN401
    """Send the heartbeat of a nonexistent member; return the error code, which shows whether it may join."""
    request, coordinator = HeartbeatRequest(group, -1, ""), await admin.find_coordinator(group)
    response = await admin._send_request(request, coordinator)  # noqa: SLF001
    return int(response.error_code)


# Metadata


async def wait_for_brokers(client: Any, *, controller: bool = False) -> None:  # noqa: ANN401
    """Wait until a started client knows a broker, with ``controller`` also the controller.

    The answer to a request for metadata names neither while all brokers are fenced, as after a pause of the machine:
    the client starts, and its requests fail.
    """
    cluster = connections(client).cluster
    while not cluster.brokers() or (controller and cluster.controller is None):
        await connections(client).force_metadata_update()
        await asyncio.sleep(_PAUSE)


# Writing


async def wait_for_topic(client: Any, topic: str) -> None:  # noqa: ANN401
    """Wait until a client knows the leaders of a topic; raise if the brokers do not know the topic."""
    while True:
        try:
            await client._wait_on_metadata(topic)  # noqa: SLF001
        except UnknownTopicOrPartitionError:
            if await client.force_metadata_update():  # also raises if no broker answers
                raise UnknownTopicOrPartitionError(topic) from None
        else:
            return


# Stopping


def unfinished_tasks(client: Any) -> set[asyncio.Future[Any]]:  # noqa: ANN401
    """Return the tasks that a client leaves running when its stop() fails or hangs."""
    fetcher, coordinator = getattr(client, "_fetcher", None), getattr(client, "_coordinator", None)
    parts = ("coordination", "heartbeat", "commit_refresh", "reset_committed")
    tasks = [
        getattr(getattr(client, "_sender", None), "sender_task", None),
        getattr(fetcher, "_fetch_task", None),
        *getattr(fetcher, "_pending_tasks", ()),
        *(getattr(coordinator, f"_{part}_task", None) for part in parts),
    ]
    return {task for task in tasks if task is not None}


def connections(client: Any) -> Any:  # noqa: ANN401
    """Return the object that holds and closes a client's connections."""
    return getattr(client, "_client", None) or getattr(client, "client", None)
