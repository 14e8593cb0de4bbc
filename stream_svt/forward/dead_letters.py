"""The topic of events that a destination refused: kept as they were, to be sent again or looked at."""

from __future__ import annotations

import logging
from typing import Any

import stamina
from aiokafka import AIOKafkaProducer

from stream_svt.forward.event import Record
from stream_svt.service.kafka import (
    CALL_DEADLINE,
    START_DEADLINE,
    BrokerUnavailable,
    Cluster,
    deadline,
    stop_quietly,
)

log = logging.getLogger(__name__)

DESTINATION_HEADER = "stream-svt-destination"
REASON_HEADER = "stream-svt-refused"
PLACE_HEADER = "stream-svt-place"

_AGAIN = 5.0


class DeadLetters:
    """Writes refused events to a topic. They count as parked once every replica in sync has them."""

    def __init__(self, cluster: Cluster, source: str, topic: str) -> None:
        self._cluster = cluster
        self._source = source
        self._topic = topic
        self._producer: Any = None

    async def start(self) -> None:
        """Connect."""
        self._producer = AIOKafkaProducer(
            **self._cluster.arguments, client_id="stream-svt-forward", acks="all", enable_idempotence=True
        )
        async with deadline(START_DEADLINE, "connecting the producer of parked events", "WRITE"):
            await self._producer.start()

    async def stop(self) -> None:
        """Disconnect."""
        if self._producer is not None:
            await stop_quietly(self._producer)

    async def add(self, event: Record, destination: str, reason: str) -> None:
        """Return once the event is durable, however long the broker is away.

        Raises:
            BrokerError: The broker refuses: trying again cannot help.
        """
        headers = {
            DESTINATION_HEADER: destination,
            REASON_HEADER: reason,
            PLACE_HEADER: f"{self._source}/{event.partition}/{event.offset}",
        }
        encoded = [(name, text.encode()) for name, text in headers.items()]

        def is_away(error: Exception) -> bool:
            if isinstance(error, BrokerUnavailable):
                log.warning("event=park_failed destination=%s error=%r", destination, str(error))
            return isinstance(error, BrokerUnavailable)

        async for attempt in stamina.retry_context(
            is_away, attempts=None, timeout=None, wait_initial=_AGAIN, wait_max=_AGAIN
        ):
            with attempt:
                async with deadline(CALL_DEADLINE, f"parking an event on topic {self._topic!r}", "WRITE"):
                    await self._producer.send_and_wait(
                        self._topic, event.body, key=event.key, headers=encoded
                    )
        line = "event=parked destination=%s id=%r topic=%s reason=%r"
        log.warning(line, destination, event.label, self._topic, reason)
