"""Delivery of one event: attempts until the receiver has taken it, or it is parked, or somebody has to look."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from datetime import UTC, datetime
from typing import Any

import stamina

from stream_svt.errors import StreamSvtError
from stream_svt.forward.config import Destination, ForwardConfig
from stream_svt.forward.event import Received, Record, Request, request_of
from stream_svt.forward.metrics import ForwardMetrics
from stream_svt.forward.posting import Answer, HttpPosting, Result
from stream_svt.service.kafka import CALL_DEADLINE, deadline

# Its own log lines and metrics would have a series for the number of every attempt, and these go on for ever.
stamina.instrumentation.set_on_retry_hooks([])

log = logging.getLogger(__name__)

DESTINATION_HEADER = "stream-svt-destination"
REASON_HEADER = "stream-svt-refused"
PLACE_HEADER = "stream-svt-place"
_SAY_EVERY = 20
"""Failed attempts of an event between two lines about it; the first is always reported."""


class Refused(StreamSvtError):
    """A destination will never take an event, and is to stop rather than to lose it."""


class _AgainError(Exception):
    """An attempt failed; the next one is due after ``wait`` seconds."""

    def __init__(self, wait: float) -> None:
        self.wait = wait


class Delivery:
    """Delivers the events of one destination, each until it is taken; ``producer`` writes what is parked."""

    def __init__(
        self,
        config: ForwardConfig,
        destination: Destination,
        posting: HttpPosting,
        metrics: ForwardMetrics,
        producer: Any = None,  # noqa: ANN401 - aiokafka is taken as Any
    ) -> None:
        self._destination = destination
        self._config = config
        self._posting = posting
        self._metrics = metrics
        self._producer = producer
        self._slots = asyncio.Semaphore(destination.config.concurrency)
        self._silent_until = 0.0

    async def deliver(self, event: Record) -> None:
        """Return once a record is delivered or parked.

        Raises:
            Refused: The receiver will not take it, or it is no event, and the destination is to stop.
            BrokerError: It cannot be parked.
        """
        # Whoever may write to the alert topic can put anything there; no receiver is to see it.
        answer, attempts = Answer(Result.REFUSED, "no event of stream-svt"), 0
        if isinstance(event, Received):
            answer, attempts = await self._insist(event)
        name = self._destination.name
        if answer.result is Result.ACCEPTED:
            self._metrics.delivered(name, event.when, datetime.now(UTC))
            if attempts > 1:
                self._say(logging.INFO, "forward_recovered", event, answer, attempts)
            return
        self._say(logging.ERROR, "forward_refused", event, answer, attempts)
        if self._destination.config.on_refused == "stop":
            raise Refused(
                f"destination {name!r} refused event {event.label!r} at partition {event.partition} "
                f"offset {event.offset} ({answer.reason}) and stopped: nothing is lost. Mend the receiver, or "
                "let refused events be parked (on_refused: park), and start again"
            )
        await self._park(event, answer.reason)
        self._metrics.done(name, "parked")

    async def _insist(self, event: Received) -> tuple[Answer, int]:
        """Attempt until an answer is final or patience ends; return the last answer, and how many there were."""
        retry = self._destination.config.retry
        with contextlib.suppress(_AgainError):
            async for attempt in stamina.retry_context(
                on=lambda error: isinstance(error, _AgainError) and error.wait,
                attempts=None,
                timeout=None if retry.give_up_after is None else retry.give_up_after / 1000,
                wait_initial=retry.first / 1000,
                wait_max=retry.most / 1000,
            ):
                with attempt:
                    answer = await self._attempt(event)
                    if answer.result in {Result.ACCEPTED, Result.REFUSED}:
                        break
                    if attempt.num % _SAY_EVERY == 1:
                        self._say(logging.WARNING, "forward_failed", event, answer, attempt.num)
                    # Forwarders that failed together must not come back together.
                    raise _AgainError(max(answer.wait, attempt.next_wait * random.uniform(0.5, 1)))  # noqa: S311
        return answer, attempt.num

    async def _attempt(self, event: Received) -> Answer:
        """Post to every address; one that takes the event is enough."""
        async with self._slots:
            # A receiver that asks to be left alone means all requests, not only the one it answered.
            while (silence := self._silent_until - time.monotonic()) > 0:  # noqa: ASYNC110  it may grow meanwhile
                await asyncio.sleep(silence)
            request = request_of(self._destination, event, datetime.now(UTC))
            answers = await asyncio.gather(*(self._post(url, request) for url in self._destination.urls))
            best = min(answers, key=lambda answer: list(Result).index(answer.result))
            if best.result is Result.THROTTLED:
                self._silent_until = max(self._silent_until, time.monotonic() + best.wait)
        return best

    async def _post(self, url: str, request: Request) -> Answer:
        answer = await self._posting.post(url, request)
        self._metrics.attempted(self._destination.name, answer.result)
        return answer

    async def _park(self, event: Record, reason: str) -> None:
        """Return once every replica in sync has the event as it was."""
        headers = {
            DESTINATION_HEADER: self._destination.name,
            REASON_HEADER: reason,
            PLACE_HEADER: f"{self._config.topic}/{event.partition}/{event.offset}",
        }
        encoded = [(name, text.encode()) for name, text in headers.items()]
        topic = self._config.park_topic
        async with deadline(CALL_DEADLINE, f"parking an event on topic {topic!r}", "WRITE"):
            await self._producer.send_and_wait(topic, event.body, key=event.key, headers=encoded)

    def _say(self, level: int, what: str, event: Record, answer: Answer, attempt: int) -> None:
        line = "event=%s destination=%s id=%r partition=%d offset=%d attempt=%d reason=%r"
        place = (event.label, event.partition, event.offset)
        log.log(level, line, what, self._destination.name, *place, attempt, answer.reason)
