"""Alerts for Python programs: an asynchronous iterator over the alert topic.

>>> import stream_svt
>>> async def page_somebody() -> None:
...     async for event in stream_svt.subscribe(bootstrap_servers="127.0.0.1:9092", topic="retail.alerts"):
...         print(event.data.dataset, event.data.series, event.data.gap)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, overload

import msgspec
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    AuthenticationFailedError,
    GroupAuthorizationFailedError,
    KafkaError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
)

from stream_svt import aiokafka_fixes
from stream_svt.errors import BrokerError, MisuseError
from stream_svt.monitor.released import Alert, Lifecycle, decode

__all__ = ["Event", "Subscription", "subscribe"]

Data_co = TypeVar("Data_co", bound=Alert | Lifecycle, covariant=True)

_log = logging.getLogger(__name__)
_START_SECONDS = 20.0
_PATIENCE_MS = 1000
_COMMIT_EVERY = 5.0
"""Seconds between two commits of a group's positions: as often as Kafka's clients do by themselves."""
_COMMIT_PATIENCE = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(Generic[Data_co]):
    """An event as it was received.

    Attributes:
        id: The same for every copy of the event.
        type: CloudEvents type, one of `stream_svt.EventType`; of a newer service possibly another text.
        source, subject: Application ("/stream-svt/NAME"), and dataset or dataset/series.
        time: When the event was charged, by the service's clock.
        shard, sequence: Shard and number of the event in it, from 1, without gaps.
        stateid, command: Id of the shard's state, and number of the last command that the shard had used up.
        partition, offset: Where the record stands on the alert topic.
        data: The content.
    """

    id: str
    type: str
    source: str
    subject: str
    time: datetime
    shard: int
    sequence: int
    stateid: str
    command: int
    partition: int
    offset: int
    data: Data_co


class _LastWarning(logging.Handler):
    """Keeps the cause of a failed connection, which aiokafka logs but leaves out of its exceptions."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


class _HandOver(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """Says when partitions go to another member of the group."""

    def __init__(self, revoked: Callable[[], Awaitable[None]]) -> None:
        self._revoked = revoked

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        del revoked
        await self._revoked()

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        del assigned


class Subscription(Generic[Data_co]):
    """Events of one alert topic: an asynchronous iterator, and an asynchronous context manager.

    Made by `subscribe`. Used as a context manager it is connected when the body begins, so that what is
    published from then on is not missed; iterated without one, it connects at the first step and
    disconnects when the loop over it is left (which Python does a moment later).

    For a group an event counts as handled once the next one is asked for. The one at which the loop was left, by an
    error or by ``break``, is not: it comes again.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str | list[str],
        topic: str,
        group_id: str | None,
        from_beginning: bool,
        lifecycle: bool,
        security: dict[str, Any],
    ) -> None:
        self._servers = bootstrap_servers
        self._topic = topic
        self._group = group_id
        self._from_beginning = from_beginning
        self._lifecycle = lifecycle
        self._security = security
        self._consumer: Any = None
        self._in_hand: tuple[TopicPartition, int] | None = None
        self._commit_at = 0.0

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave the group and disconnect; a subscription may be iterated again afterwards."""
        await self._commit()
        consumer, self._consumer = self._consumer, None
        self._in_hand = None
        if consumer is not None:
            with contextlib.suppress(KafkaError, TimeoutError, OSError):
                async with asyncio.timeout(5):
                    await consumer.stop()

    async def __aiter__(self) -> AsyncGenerator[Event[Data_co], None]:
        """Yield events as they are published; never ends by itself.

        Raises:
            BrokerError: The brokers cannot be reached or refuse: the message says what to change.
        """
        opened = self._consumer is None
        if opened:
            await self._start()
        try:
            while True:
                self._in_hand = None
                if asyncio.get_running_loop().time() >= self._commit_at:
                    await self._commit()
                try:
                    # One at a time: the consumer's position, which is committed, says what was yielded.
                    found = await self._consumer.getmany(timeout_ms=_PATIENCE_MS, max_records=1)
                except KafkaError as error:
                    raise self._explained(error, "") from error
                for record in chain.from_iterable(found.values()):
                    event = self._received(record)
                    if event is not None:
                        place = TopicPartition(record.topic, record.partition)
                        self._in_hand = place, record.offset
                        yield event
        finally:
            if opened:
                await self.close()

    async def _commit(self) -> None:
        """Commit how far a group has come, without the event that is in hand.

        Before the first event, too: a group without a position would begin at the end once more, behind what came
        in between. What cannot be committed comes again.
        """
        consumer = self._consumer
        if consumer is None or self._group is None:
            return
        try:
            async with asyncio.timeout(_COMMIT_PATIENCE):
                offsets = {place: await consumer.position(place) for place in consumer.assignment()}
                if self._in_hand is not None and self._in_hand[0] in offsets:
                    place, offset = self._in_hand
                    offsets[place] = min(offset, offsets[place])
                if offsets:
                    await consumer.commit(offsets)
        except (KafkaError, TimeoutError, OSError) as error:
            cause = type(error).__name__
            _log.warning(
                "positions of group %r were not committed (%s): events may come again", self._group, cause
            )
        self._commit_at = asyncio.get_running_loop().time() + _COMMIT_EVERY

    def _received(self, record: Any) -> Event[Data_co] | None:  # noqa: ANN401 - aiokafka is taken as Any
        try:
            envelope, data = decode(record.value or b"")
            time = datetime.fromisoformat(envelope.time)
        except (msgspec.DecodeError, ValueError):
            place = (record.partition, record.offset)
            _log.warning("record %s of topic %s is no event of stream-svt; skipped", place, self._topic)
            return None
        if not self._lifecycle and not isinstance(data, Alert):
            return None
        wanted: Any = data
        return Event(
            id=envelope.id,
            type=envelope.type,
            source=envelope.source,
            subject=envelope.subject,
            time=time,
            shard=envelope.shard,
            sequence=envelope.sequence,
            stateid=envelope.stateid,
            command=envelope.command,
            partition=record.partition,
            offset=record.offset,
            data=wanted,
        )

    async def _start(self) -> None:
        if self._consumer is not None:
            raise MisuseError(f"the subscription to {self._topic} is already open")
        aiokafka_fixes.read_every_header_name()
        cause = _LastWarning()
        connections = logging.getLogger("aiokafka")
        connections.addHandler(cause)
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self._connect(await self._partitions())
        except (KafkaError, TimeoutError, OSError) as error:
            await self.close()
            raise self._explained(error, cause.text) from error
        except BaseException:
            await self.close()
            raise
        finally:
            connections.removeHandler(cause)

    async def _partitions(self) -> list[int]:
        """Look the topic up among all: asking for it by name would create it on a lenient broker."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self._servers, **self._security)
        try:
            await admin.start()
            topics = {topic["topic"]: topic for topic in await admin.describe_topics()}
        finally:
            with contextlib.suppress(KafkaError, OSError):
                await admin.close()
        if self._topic not in topics:
            raise BrokerError(
                f"topic {self._topic!r} does not exist or may not be seen by this user; the alert topic is "
                "topics.alerts of the configuration, by default '<application>.alerts'"
            )
        return sorted(partition["partition"] for partition in topics[self._topic]["partitions"])

    async def _connect(self, partitions: list[int]) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._servers,
            group_id=self._group,
            isolation_level="read_committed",
            auto_offset_reset="earliest" if self._from_beginning else "latest",
            enable_auto_commit=False,  # it would commit the event in hand
            fetch_max_wait_ms=100,
            **self._security,
        )
        self._consumer = consumer
        if self._group is not None:
            consumer.subscribe([self._topic], listener=_HandOver(self._commit))
            await consumer.start()
            await self._commit()
            return
        await consumer.start()
        consumer.assign([TopicPartition(self._topic, partition) for partition in partitions])
        if self._from_beginning:
            await consumer.seek_to_beginning()
        else:
            await consumer.seek_to_end()

    def _explained(self, error: BaseException, cause: str) -> BrokerError:
        doing = f"subscribing to topic {self._topic!r}"
        servers = self._servers if isinstance(self._servers, str) else ",".join(self._servers)
        match error:
            case TopicAuthorizationFailedError():
                return BrokerError(f"{doing}: permission READ on the topic is missing; add an ACL")
            case GroupAuthorizationFailedError():
                return BrokerError(f"{doing}: permission READ on group {self._group!r} is missing")
            case SaslAuthenticationFailed() | AuthenticationFailedError():
                cause = str(error)
        if "uthentication" in cause or "Sasl" in cause:
            return BrokerError(f"{doing}: the broker at {servers} refused the login; check user and password")
        if "CERTIFICATE_VERIFY_FAILED" in cause:
            return BrokerError(f"{doing}: the certificate of {servers} is not trusted; check the CA file")
        return BrokerError(
            f"{doing}: no answer from a broker at {servers} "
            f"({cause or str(error) or type(error).__name__}); check the address, "
            "the security protocol and that the broker runs"
        )


@overload
def subscribe(
    *,
    bootstrap_servers: str | list[str],
    topic: str,
    group_id: str | None = None,
    from_beginning: bool = False,
    lifecycle: Literal[False] = False,
    **security: Any,  # noqa: ANN401 - whatever aiokafka takes
) -> Subscription[Alert]: ...


@overload
def subscribe(
    *,
    bootstrap_servers: str | list[str],
    topic: str,
    group_id: str | None = None,
    from_beginning: bool = False,
    lifecycle: bool,
    **security: Any,  # noqa: ANN401 - whatever aiokafka takes
) -> Subscription[Alert | Lifecycle]: ...


def subscribe(
    *,
    bootstrap_servers: str | list[str],
    topic: str,
    group_id: str | None = None,
    from_beginning: bool = False,
    lifecycle: bool = False,
    **security: Any,
) -> Subscription[Any]:
    """Return the events of an alert topic as an asynchronous iterator.

    Args:
        bootstrap_servers: Brokers to ask first, "host:port" separated by commas or as a list.
        topic: The alert topic.
        group_id: A consumer group: its members share the partitions and go on where the group stopped. Each
            event is then handled at least once: it counts as handled once the next one is asked for, and
            comes again after an error, a crash or a ``break`` before that. Without a group, every
            subscription sees every partition.
        from_beginning: Begin with the oldest event the topic holds instead of the next one. A group that has
            a position goes on there.
        lifecycle: Also yield lifecycle events: runs started and halted, budgets exhausted or raised, replies
            to commands.
        security: Further arguments of `aiokafka.AIOKafkaConsumer`: ``security_protocol``, ``sasl_mechanism``,
            ``sasl_plain_username``, ``sasl_plain_password``, ``ssl_context``.
    """
    return Subscription(
        bootstrap_servers=bootstrap_servers,
        topic=topic,
        group_id=group_id,
        from_beginning=from_beginning,
        lifecycle=lifecycle,
        security=security,
    )
