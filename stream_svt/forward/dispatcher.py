"""Delivery of one event: attempts until the receiver has taken it, or somebody has to look."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from stream_svt.errors import StreamSvtError
from stream_svt.forward.alertmanager import Alertmanager
from stream_svt.forward.config import Destination
from stream_svt.forward.event import Received, Record
from stream_svt.forward.metrics import ForwardMetrics
from stream_svt.forward.parking import Parked
from stream_svt.forward.posting import HttpPosting, Request
from stream_svt.forward.retry import Answer, Result, delay
from stream_svt.forward.webhook import Webhook

log = logging.getLogger(__name__)

_NO_EVENT = Answer(Result.REFUSED, "no event of stream-svt")
_SAY_EVERY = 20
"""Failed attempts of an event between two lines about it; the first is always reported."""


class Refused(StreamSvtError):
    """A destination will never take an event, and is to stop rather than to lose it."""


class Dispatcher:
    """Delivers the events of one destination, each until it is taken.

    Parameters
    ----------
    wrapping, posting, parking
        What is posted, how, and where refused events go.
    clock, sleep, fraction
        Time and chance.
    """

    def __init__(
        self,
        destination: Destination,
        wrapping: Webhook | Alertmanager,
        posting: HttpPosting,
        parking: Parked,
        metrics: ForwardMetrics,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        fraction: Callable[[], float] = random.random,
    ) -> None:
        self.wants = wrapping.wants
        self.retrying = 0
        self._destination = destination
        self._wrapping = wrapping
        self._posting = posting
        self._parking = parking
        self._metrics = metrics
        self._clock = clock
        self._sleep = sleep
        self._fraction = fraction
        self._slots = asyncio.Semaphore(destination.config.concurrency)
        self._silent_until = 0.0

    async def deliver(self, event: Record) -> None:
        """Return once a record is delivered or parked.

        Raises
        ------
        Refused
            The receiver will not take it, or it is no event, and the destination is to stop.
        """
        if not isinstance(event, Received):
            # Whoever may write to the alert topic can put anything there; no receiver is to see it.
            await self._refused(event, _NO_EVENT, 0)
            return
        began = self._clock()
        patience = self._destination.config.retry.give_up_after
        attempt = 1
        failing = False
        try:
            while True:
                answer = await self._attempt(event)
                if answer.result is Result.ACCEPTED:
                    self._metrics.delivered(self._destination.name, event.when, datetime.now(UTC))
                    if failing:
                        self._say(logging.INFO, "forward_recovered", event, answer, attempt)
                    return
                spent = (self._clock() - began) * 1000
                if answer.result is Result.REFUSED or (patience is not None and spent >= patience):
                    await self._refused(event, answer, attempt)
                    return
                if attempt % _SAY_EVERY == 1:
                    self._say(logging.WARNING, "forward_failed", event, answer, attempt)
                if not failing:
                    failing = True
                    self.retrying += 1
                await self._sleep(
                    max(delay(self._destination.config.retry, attempt, self._fraction()), answer.wait)
                )
                attempt += 1
        finally:
            self.retrying -= failing

    async def _attempt(self, event: Received) -> Answer:
        """Post to every address; one that takes the event is enough."""
        async with self._slots:
            # A receiver that asks to be left alone means all requests, not only the one it answered.
            while (silence := self._silent_until - self._clock()) > 0:
                await self._sleep(silence)
            request = self._wrapping.wrap(event, datetime.now(UTC))
            answers = await asyncio.gather(*(self._timed(url, request) for url in self._destination.urls))
            order = list(Result)
            best = min(answers, key=lambda answer: order.index(answer.result))
            if best.result is Result.THROTTLED:
                self._silent_until = max(self._silent_until, self._clock() + best.wait)
        # Refused by one and unanswered by another: the other may take it.
        if best.result is Result.REFUSED:
            best = next((answer for answer in answers if answer.result is not Result.REFUSED), best)
        return best

    async def _timed(self, url: str, request: Request) -> Answer:
        began = self._clock()
        answer = await self._posting.post(url, request)
        self._metrics.attempted(self._destination.name, answer.result, self._clock() - began)
        return answer

    async def _refused(self, event: Record, answer: Answer, attempt: int) -> None:
        name = self._destination.name
        self._say(logging.ERROR, "forward_refused", event, answer, attempt)
        if self._destination.config.on_refused == "stop":
            raise Refused(
                f"destination {name!r} refused event {event.label!r} at partition {event.partition} "
                f"offset {event.offset} ({answer.reason}) and stopped: nothing is lost. Mend the receiver, or "
                "let refused events be parked (on_refused: park), and start again"
            )
        await self._parking.park(event, name, answer.reason)
        self._metrics.done(name, "parked")

    def _say(self, level: int, what: str, event: Record, answer: Answer, attempt: int) -> None:
        log.log(
            level,
            "event=%s destination=%s id=%r partition=%d offset=%d attempt=%d reason=%r",
            what,
            self._destination.name,
            event.label,
            event.partition,
            event.offset,
            attempt,
            answer.reason,
        )
