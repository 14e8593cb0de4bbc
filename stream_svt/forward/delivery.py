"""Delivery of one event: requests until the receiver has taken it, or it is parked, or somebody has to look."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

import aiohttp

import stream_svt
from stream_svt.errors import StreamSvtError
from stream_svt.forward.config import Destination, ForwardConfig
from stream_svt.forward.event import AlertRecord, Request, request_of
from stream_svt.forward.metrics import ForwardMetrics, Result
from stream_svt.service.kafka import CALL_DEADLINE, deadline

log = logging.getLogger(__name__)

DESTINATION_HEADER = "stream-svt-destination"
REASON_HEADER = "stream-svt-refused"
PLACE_HEADER = "stream-svt-place"
_SAY_EVERY = 20
"""Failed attempts of an event between two lines about it; the first is always reported."""
LONGEST_REQUESTED_S = 3600.0
"""Most seconds for which a receiver may ask with Retry-After."""
_ALREADY_THERE = 409
"""Conflict: how receivers say that they have an event of this id. The id is the same for every copy, so they do."""
_ABOUT_THE_EVENT = frozenset({400, 413, 414, 415, 422, 431})
"""What says that this request will never be taken. Anything else a receiver can mend: an address, a token, a limit."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. ``reason`` holds nothing of the receiver's own words; ``wait`` is its Retry-After in seconds."""

    result: Result
    reason: str
    wait: float = 0.0


Post: TypeAlias = Callable[[str, Request], Awaitable[Answer]]


def meaning(status: int, retry_after: str | None) -> Answer:
    """Return what an HTTP answer means; of Retry-After, seconds are heard and dates are not."""
    reason, text = f"status {status}", (retry_after or "").strip()
    if 200 <= status < 300 or status == _ALREADY_THERE:
        return Answer(Result.ACCEPTED, reason)
    if status in _ABOUT_THE_EVENT:
        return Answer(Result.REFUSED, reason)
    wait = min(float(text[:9]), LONGEST_REQUESTED_S) if text.isascii() and text.isdigit() else 0.0
    throttled = status == 429 or (status == 503 and wait)
    return Answer(Result.THROTTLED if throttled else Result.FAILED, reason, wait)


@contextlib.asynccontextmanager
async def posting(destination: Destination) -> AsyncIterator[Post]:
    """Yield what posts to a destination once, and never raises for what a receiver does.

    Redirects are not followed: they would carry the event and its signature to an address nobody configured.
    Proxies of the environment are not used, and cookies not kept. Of an answer only status and Retry-After are
    looked at, so that no receiver can fill memory or log.
    """
    headers = {"User-Agent": f"stream-svt/{stream_svt.__version__}"}
    if destination.authorization is not None:
        headers["Authorization"] = destination.authorization
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=2 * destination.config.concurrency),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=destination.config.timeout / 1000),
    ) as session:

        async def post(url: str, request: Request) -> Answer:
            try:
                async with session.post(
                    url, data=request.body, headers=request.headers, allow_redirects=False
                ) as response:
                    return meaning(response.status, response.headers.get("Retry-After"))
            except TimeoutError:
                return Answer(Result.TIMEOUT, "no answer in time")
            except aiohttp.ClientConnectorCertificateError:
                return Answer(Result.UNREACHABLE, "its certificate is not trusted")
            except (aiohttp.ClientError, OSError, ValueError) as error:
                # Its text may hold the address, which may be a secret.
                return Answer(Result.UNREACHABLE, type(error).__name__)

        yield post


class DeliveryRefused(StreamSvtError):
    """A destination will never take an event, and is to stop rather than to lose it."""


class Delivery:
    """Delivers the events of one destination, each until it is taken; ``producer`` writes what is parked."""

    def __init__(
        self,
        config: ForwardConfig,
        destination: Destination,
        post: Post,
        metrics: ForwardMetrics,
        producer: Any = None,  # noqa: ANN401 - aiokafka is taken as Any
    ) -> None:
        self.destination = destination
        self.metrics = metrics
        self._config = config
        self._post = post
        self._producer = producer
        self._slots = asyncio.Semaphore(destination.config.concurrency)
        self._silent_until = 0.0

    async def deliver(self, event: AlertRecord) -> None:
        """Return once a record is delivered or parked; raises Refused where the destination is to stop."""
        # Whoever may write to the alert topic can put anything there; no receiver is to see it.
        answer, attempts = Answer(Result.REFUSED, "no event of stream-svt"), 0
        if event.is_event:
            answer, attempts = await self._insist(event)
        name = self.destination.name
        if answer.result is Result.ACCEPTED:
            self.metrics.events.labels(name, "delivered").inc()
            delay = (datetime.now(UTC) - event.when).total_seconds()
            self.metrics.delay_seconds.labels(name).observe(max(0.0, delay))
            if attempts > 1:
                self._say(logging.INFO, "forward_recovered", event, answer, attempts)
            return
        self._say(logging.ERROR, "forward_refused", event, answer, attempts)
        if self.destination.config.on_refused == "stop":
            raise DeliveryRefused(
                f"destination {name!r} refused event {event.envelope.id!r} at partition {event.partition} "
                f"offset {event.offset} ({answer.reason}) and stopped: nothing is lost. Mend the receiver, or "
                "let refused events be parked (on_refused: park), and start again"
            )
        await self._park(event, answer.reason)
        self.metrics.events.labels(name, "parked").inc()

    async def _insist(self, event: AlertRecord) -> tuple[Answer, int]:
        """Attempt until an answer is final or patience ends; return the last answer, and how many there were."""
        retry, began = self.destination.config.retry, time.monotonic()
        longest = retry.first / 1000
        for attempt in itertools.count(1):
            answer = await self._attempt(event)
            if answer.result in {Result.ACCEPTED, Result.REFUSED}:
                break
            if attempt % _SAY_EVERY == 1:
                self._say(logging.WARNING, "forward_failed", event, answer, attempt)
            if retry.give_up_after is not None and time.monotonic() - began >= retry.give_up_after / 1000:
                break
            # Forwarders that failed together must not come back together.
            await asyncio.sleep(max(answer.wait, longest * random.uniform(0.5, 1)))  # noqa: S311
            longest = min(2 * longest, retry.most / 1000)
        return answer, attempt

    async def _attempt(self, event: AlertRecord) -> Answer:
        """Post to every address; one that takes the event is enough."""
        async with self._slots:
            # A receiver that asks to be left alone means all requests, not only the one it answered.
            while (silence := self._silent_until - time.monotonic()) > 0:  # noqa: ASYNC110  it may grow meanwhile
                await asyncio.sleep(silence)
            request = request_of(self.destination, event, datetime.now(UTC))
            answers = await asyncio.gather(*(self._post(url, request) for url in self.destination.urls))
            for answer in answers:
                self.metrics.attempts.labels(self.destination.name, answer.result).inc()
            best = min(answers, key=lambda answer: list(Result).index(answer.result))
            if best.result is Result.THROTTLED:
                self._silent_until = max(self._silent_until, time.monotonic() + best.wait)
        return best

    async def _park(self, event: AlertRecord, reason: str) -> None:
        """Return once every replica in sync has the event as it was."""
        headers = [
            (DESTINATION_HEADER, self.destination.name.encode()),
            (REASON_HEADER, reason.encode()),
            (PLACE_HEADER, f"{self._config.topic}/{event.partition}/{event.offset}".encode()),
        ]
        topic = self._config.park_topic
        async with deadline(CALL_DEADLINE, f"parking an event on topic {topic!r}", "WRITE"):
            await self._producer.send_and_wait(topic, event.body, key=event.key, headers=headers)

    def _say(self, level: int, what: str, event: AlertRecord, answer: Answer, attempt: int) -> None:
        line = "event=%s destination=%s id=%r partition=%d offset=%d attempt=%d reason=%r"
        place = (event.envelope.id, event.partition, event.offset)
        log.log(level, line, what, self.destination.name, *place, attempt, answer.reason)
