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
from collections.abc import AsyncGenerator
from itertools import chain
from typing import Any, Generic, Literal, Self, overload

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError

from stream_svt.application.config import cluster_of
from stream_svt.application.topology import ALERT_TOPIC, read_partitions_of
from stream_svt.errors import MisuseError
from stream_svt.kafka import clients as kafka
from stream_svt.kafka.aiokafka_fixes import absence, record_connection_errors
from stream_svt.monitor.released import Alert, Data_co, Event, Lifecycle, received

__all__ = ["Subscription", "subscribe"]

_log = logging.getLogger(__name__)
_COMMIT_INTERVAL = 5.0
"""Seconds between two commits of a group's positions: the default of Kafka's clients."""
_COMMIT_TIMEOUT = 5.0
_ABSENT_POLLS = 3
"""Fetches in a row without topic or brokers, each of a second, after which a warning is logged."""


class Subscription(ConsumerRebalanceListener, Generic[Data_co]):  # type: ignore[misc]  # aiokafka has no types
    """Events of one alert topic, returned by `subscribe`: an asynchronous iterator and context manager.

    As a context manager it is connected when the body begins, and receives everything that is published from then on.
    Iterated without one, it connects at the first step, and disconnects a moment after the loop ends.

    For a group, an event counts as handled when the next one is requested. The event at which the loop ended, by an
    error or ``break``, is not handled and is received again.
    """

    def __init__(
        self, cluster: kafka.Cluster, topic: str, group: str | None, *, from_beginning: bool, lifecycle: bool
    ) -> None:
        self._cluster = cluster
        self._topic, self._doing = topic, f"subscribing to topic {topic!r}"
        self._group = group
        self._from_beginning = from_beginning
        self._lifecycle = lifecycle
        self._consumer: Any = None
        self._unhandled: tuple[TopicPartition, int] | None = None
        self._commit_at = 0.0
        self._absence, self._absent = "", 0

    async def __aenter__(self) -> Self:
        if self._consumer is not None:
            raise MisuseError(f"the subscription to {self._topic} is already open")
        record_connection_errors()
        partitions = await read_partitions_of(self._cluster, self._topic, self._doing, hint=ALERT_TOPIC)
        reset = "earliest" if self._from_beginning else "latest"
        options = {"group_id": self._group, "auto_offset_reset": reset, "fetch_max_wait_ms": 100}
        consumer = self._cluster.consumer("-subscriber", "read_committed", **options)
        self._consumer = consumer
        try:
            async with kafka.deadline(kafka.START_DEADLINE, self._doing, group=self._group or ""):
                if self._group is not None:
                    consumer.subscribe([self._topic], listener=self)
                    await consumer.start()
                    await self._commit()
                    return self
                await consumer.start()
                consumer.assign([TopicPartition(self._topic, partition) for partition in range(partitions)])
                await (consumer.seek_to_beginning() if self._from_beginning else consumer.seek_to_end())
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave the group and disconnect; a subscription may be iterated again afterwards."""
        await self._commit()
        consumer, self._consumer = self._consumer, None
        self._unhandled = None
        if consumer is not None:
            await kafka.stop_quietly(consumer, _COMMIT_TIMEOUT)

    async def __aiter__(self) -> AsyncGenerator[Event[Data_co], None]:
        """Yield events as they are published, without end.

        Raises:
            BrokerError: The brokers cannot be reached or refuse access; the message has the remedy.
        """
        async with contextlib.AsyncExitStack() as opened:
            if self._consumer is None:
                await opened.enter_async_context(self)
            while True:
                self._unhandled = None
                if asyncio.get_running_loop().time() >= self._commit_at:
                    await self._commit()
                try:
                    # One at a time: the committed position is then the position of the yielded event.
                    batch = await self._consumer.getmany(timeout_ms=1000, max_records=1)
                except KafkaError as error:
                    raise kafka.explain(error, self._doing, group=self._group or "") from error
                self._watch_absence("" if batch else absence(self._consumer, self._topic))
                for record in chain.from_iterable(batch.values()):
                    if (event := self._received(record)) is not None:
                        self._unhandled = TopicPartition(record.topic, record.partition), record.offset
                        yield event

    async def on_partitions_revoked(self, _: set[TopicPartition]) -> None:
        """Commit before another member of the group takes over the partitions."""
        await self._commit()

    async def on_partitions_assigned(self, _: set[TopicPartition]) -> None:
        """Do nothing."""

    async def _commit(self) -> None:
        """Commit the positions of a group, before the event that is not handled yet.

        This includes positions before the first event: a group without a position starts at the end, and would miss
        events published in between. If the commit fails, events are received again.
        """
        consumer = self._consumer
        if consumer is None or self._group is None:
            return
        try:
            async with asyncio.timeout(_COMMIT_TIMEOUT):
                offsets = {tp: await consumer.position(tp) for tp in consumer.assignment()}
                if self._unhandled is not None and self._unhandled[0] in offsets:
                    tp, offset = self._unhandled
                    offsets[tp] = min(offset, offsets[tp])
                if offsets:
                    await consumer.commit(offsets)
        except (KafkaError, TimeoutError, OSError) as error:
            message = "positions of group %r were not committed (%s): events may come again"
            _log.warning(message, self._group, type(error).__name__)
        self._commit_at = asyncio.get_running_loop().time() + _COMMIT_INTERVAL

    def _watch_absence(self, why: str) -> None:
        """Log once that topic or brokers are away; the loop continues once they are back."""
        self._absence, self._absent = why, self._absent + 1 if why == self._absence else 1
        if why and self._absent == _ABSENT_POLLS:
            _log.warning("waiting for topic %r: %s", self._topic, why)

    def _received(self, record: Any) -> Event[Data_co] | None:  # noqa: ANN401 - aiokafka is taken as Any
        position = (record.partition, record.offset)
        event: Event[Any] | None = received(record.value, *position)
        if event is None:
            _log.warning("record %s of topic %s is no event of stream-svt; skipped", position, self._topic)
        return event if event and (self._lifecycle or isinstance(event.data, Alert)) else None


@overload
def subscribe(
    *,
    bootstrap_servers: str | list[str],
    topic: str,
    group_id: str | None = None,
    from_beginning: bool = False,
    lifecycle: Literal[False] = False,
    password: str | None = None,
    **connection: Any,  # noqa: ANN401 - keys of the section `kafka`
) -> Subscription[Alert]: ...


@overload
def subscribe(
    *,
    bootstrap_servers: str | list[str],
    topic: str,
    group_id: str | None = None,
    from_beginning: bool = False,
    lifecycle: bool,
    password: str | None = None,
    **connection: Any,  # noqa: ANN401 - keys of the section `kafka`
) -> Subscription[Alert | Lifecycle]: ...


def subscribe(
    *,
    bootstrap_servers: str | list[str],
    topic: str,
    group_id: str | None = None,
    from_beginning: bool = False,
    lifecycle: bool = False,
    password: str | None = None,
    **connection: Any,
) -> Subscription[Any]:
    """Return the events of an alert topic as an asynchronous iterator.

    Args:
        bootstrap_servers: Brokers to ask first, "host:port" separated by commas or as a list.
        topic: The alert topic.
        group_id: Consumer group, whose members share the partitions and continue where the group stopped. Each event
            is handled at least once: it counts as handled when the next one is requested, and is received again after
            an error, a crash or a ``break`` before that. Without a group, a subscription reads all partitions.
        from_beginning: Start with the oldest event on the topic instead of the next one. A group with a position
            continues there.
        lifecycle: Also yield lifecycle events: runs started and halted, budgets exhausted or raised, replies to
            commands.
        password: The password of ``username``, instead of ``password_file``.
        connection: Further keys of the section `kafka` of a configuration file, such as ``security_protocol``,
            ``sasl_mechanism``, ``username``, ``oauth_token_command`` and ``ca_file``.

    Raises:
        ConfigError: The keys do not fit together, or name a file that cannot be read.
    """
    cluster = cluster_of({"bootstrap_servers": bootstrap_servers, **connection}, password)
    return Subscription(cluster, topic, group_id, from_beginning=from_beginning, lifecycle=lifecycle)
