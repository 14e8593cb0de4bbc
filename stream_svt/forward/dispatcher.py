"""Delivery of one event: attempts until the receiver has taken it, or somebody has to look."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from datetime import UTC, datetime

import stamina

from stream_svt.errors import StreamSvtError
from stream_svt.forward.config import Destination
from stream_svt.forward.dead_letters import DeadLetters
from stream_svt.forward.event import Received, Record, Request, request_of
from stream_svt.forward.metrics import ForwardMetrics
from stream_svt.forward.posting import Answer, HttpPosting, Result

# Its own log lines and metrics would have a series for the number of every attempt, and these go on for ever.
stamina.instrumentation.set_on_retry_hooks([])

log = logging.getLogger(__name__)

_SAY_EVERY = 20
"""Failed attempts of an event between two lines about it; the first is always reported."""


class Refused(StreamSvtError):
    """A destination will never take an event, and is to stop rather than to lose it."""


class _AgainError(Exception):
    """An attempt failed; the next one is due after ``wait`` seconds."""

    def __init__(self, wait: float) -> None:
        self.wait = wait


class Dispatcher:
    """Delivers the events of one destination, each until it is taken.

    Attributes:
        retrying: Events of which an attempt failed and that wait for another.
    """

    def __init__(
        self,
        destination: Destination,
        posting: HttpPosting,
        dead_letters: DeadLetters,
        metrics: ForwardMetrics,
    ) -> None:
        self.retrying = 0
        self._destination = destination
        self._config = destination.config
        self._posting = posting
        self._dead_letters = dead_letters
        self._metrics = metrics
        self._slots = asyncio.Semaphore(destination.config.concurrency)
        self._silent_until = 0.0

    async def deliver(self, event: Record) -> None:
        """Return once a record is delivered or among the dead letters.

        Raises:
            Refused: The receiver will not take it, or it is no event, and the destination is to stop.
        """
        if not isinstance(event, Received):
            # Whoever may write to the alert topic can put anything there; no receiver is to see it.
            await self._refused(event, Answer(Result.REFUSED, "no event of stream-svt"), 0)
            return
        answer, number = await self._insist(event)
        if answer.result is not Result.ACCEPTED:
            await self._refused(event, answer, number)
            return
        self._metrics.delivered(self._destination.name, event.when, datetime.now(UTC))
        if number > 1:
            self._say(logging.INFO, "forward_recovered", event, answer, number)

    async def _insist(self, event: Received) -> tuple[Answer, int]:
        """Attempt until an answer is final or patience ends; return the last answer, and how many there were."""
        retry = self._config.retry
        failed = False
        try:
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
                    self.retrying += not failed
                    failed = True
                    # Forwarders that failed together must not come back together.
                    raise _AgainError(max(answer.wait, attempt.next_wait * random.uniform(0.5, 1)))  # noqa: S311
        except _AgainError:
            pass
        finally:
            self.retrying -= failed
        return answer, attempt.num

    async def _attempt(self, event: Received) -> Answer:
        """Post to every address; one that takes the event is enough."""
        async with self._slots:
            # A receiver that asks to be left alone means all requests, not only the one it answered.
            while (silence := self._silent_until - time.monotonic()) > 0:  # noqa: ASYNC110  it may grow meanwhile
                await asyncio.sleep(silence)
            request = request_of(self._destination, event, datetime.now(UTC))
            answers = await asyncio.gather(*(self._timed(url, request) for url in self._destination.urls))
            best = min(answers, key=lambda answer: list(Result).index(answer.result))
            if best.result is Result.THROTTLED:
                self._silent_until = max(self._silent_until, time.monotonic() + best.wait)
        return best

    async def _timed(self, url: str, request: Request) -> Answer:
        began = time.monotonic()
        answer = await self._posting.post(url, request)
        self._metrics.attempted(self._destination.name, answer.result, time.monotonic() - began)
        return answer

    async def _refused(self, event: Record, answer: Answer, attempt: int) -> None:
        name = self._destination.name
        self._say(logging.ERROR, "forward_refused", event, answer, attempt)
        if self._config.on_refused == "stop":
            raise Refused(
                f"destination {name!r} refused event {event.label!r} at partition {event.partition} "
                f"offset {event.offset} ({answer.reason}) and stopped: nothing is lost. Mend the receiver, or "
                "let refused events be parked (on_refused: park), and start again"
            )
        await self._dead_letters.add(event, name, answer.reason)
        self._metrics.done(name, "parked")

    def _say(self, level: int, what: str, event: Record, answer: Answer, attempt: int) -> None:
        line = "event=%s destination=%s id=%r partition=%d offset=%d attempt=%d reason=%r"
        place = (event.label, event.partition, event.offset)
        log.log(level, line, what, self._destination.name, *place, attempt, answer.reason)
