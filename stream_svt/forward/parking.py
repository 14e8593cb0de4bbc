"""The topic of events that a destination refused: kept as they were, to be sent again or looked at."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from stream_svt.forward.event import Record
from stream_svt.service.kafka import (
    CALL_DEADLINE,
    START_DEADLINE,
    BrokerUnavailable,
    Cluster,
    deadline,
    discard_producer,
    explain,
)

log = logging.getLogger(__name__)

DESTINATION_HEADER = "stream-svt-destination"
REASON_HEADER = "stream-svt-refused"
PLACE_HEADER = "stream-svt-place"

_AGAIN = 5.0


class Parked:
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
        producer, self._producer = self._producer, None
        await discard_producer(producer)

    async def park(self, event: Record, destination: str, reason: str) -> None:
        """Return once the event is durable, however long the broker is away.

        Raises
        ------
        BrokerError
            The broker refuses: trying again cannot help.
        """
        place = f"{self._source}/{event.partition}/{event.offset}"
        headers = [
            (DESTINATION_HEADER, destination.encode()),
            (REASON_HEADER, reason.encode()),
            (PLACE_HEADER, place.encode()),
        ]
        while True:
            try:
                async with asyncio.timeout(CALL_DEADLINE):
                    await self._producer.send_and_wait(
                        self._topic, event.body, key=event.key, headers=headers
                    )
                break
            except (KafkaError, TimeoutError, OSError) as error:
                meaning = explain(error, f"parking an event on topic {self._topic!r}", "WRITE")
                if not isinstance(meaning, BrokerUnavailable):
                    raise meaning from error
                log.warning("event=park_failed destination=%s error=%r", destination, str(meaning))
            await asyncio.sleep(_AGAIN)
        log.warning(
            "event=parked destination=%s id=%r topic=%s reason=%r",
            destination,
            event.label,
            self._topic,
            reason,
        )
