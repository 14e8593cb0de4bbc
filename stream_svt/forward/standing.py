"""Posts standing alerts to Alertmanager, independently of the delivery of other alerts.

The alert topic is folded from its beginning, for the partitions that the destinations' groups gave to this process.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from aiokafka import TopicPartition

from stream_svt.forward.conditions import Conditions, standing_alerts
from stream_svt.forward.config import ForwardConfig
from stream_svt.forward.delivery import LOG_EVERY, Route
from stream_svt.forward.event import request_with
from stream_svt.forward.metrics import Result
from stream_svt.kafka import clients as kafka

log = logging.getLogger(__name__)

LASTS: Final = 5
"""Intervals after which an alert that is not posted again expires."""
_SLICE: Final = 500
"""Records folded between two yields to deliveries: a few milliseconds of work."""
_READ_SECONDS: Final = 0.1
_LEAST_PAUSE: Final = 1.0
"""Least seconds between two posts to a destination, however frequent the changes."""
_PART: Final = 200
"""Largest number of alerts of a request."""


class StandingAlerts:
    """The conditions of the partitions of Alertmanager destinations in this process, and their alerts."""

    def __init__(self, config: ForwardConfig, routes: Sequence[Route]) -> None:
        self._config = config
        renews = {route: one.renew for route in routes if (one := route.destination.alertmanager) is not None}
        self._renews = renews
        self._kept_ms = LASTS * max(renews.values(), default=0)
        """Time for which an ended condition is kept: each destination has to post its end."""
        self._conditions: dict[int, Conditions] = {}
        self._changes = 0

    async def run(self) -> None:
        """Fold and post until cancelled; no error ends it."""
        if self._renews:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._fold_forever(), name="conditions")
                for route, renew_ms in self._renews.items():
                    group.create_task(
                        self._post_forever(route, renew_ms), name=f"standing alerts {route.name}"
                    )

    async def _fold_forever(self) -> None:
        doing = f"reading topic {self._config.topic!r} for standing alerts"
        while True:
            try:
                async with kafka.started(self._config.cluster.reader(), doing) as reader:
                    await self._fold(reader, doing)
            except Exception as error:  # noqa: BLE001  deliveries continue; alerts that are not posted expire
                log.warning("event=forward_standing_unread error=%r", str(error))
            self._conditions = {}
            await asyncio.sleep(_LEAST_PAUSE)

    async def _fold(self, reader: Any, doing: str) -> None:  # noqa: ANN401  aiokafka has no types
        ends: dict[TopicPartition, int] = {}
        while True:
            wanted = {number for route in self._renews for number in route.partitions}
            if wanted != self._conditions.keys():
                kept = [TopicPartition(self._config.topic, one) for one in wanted & self._conditions.keys()]
                starts = {place: await reader.position(place) for place in kept}
                new = [TopicPartition(self._config.topic, one) for one in wanted - self._conditions.keys()]
                spans = await kafka.edges(reader, new, doing) if new else {}
                ends = {place: end for place, end in ends.items() if place in starts}
                ends |= {place: end for place, (_, end) in spans.items()}
                kafka.seek_all(reader, starts | {place: first for place, (first, _) in spans.items()})
                fresh = {place.partition: Conditions() for place in new}
                self._conditions = fresh | {one.partition: self._conditions[one.partition] for one in kept}
            if not wanted:
                await asyncio.sleep(_READ_SECONDS)
                continue
            records = await kafka.poll(reader, _READ_SECONDS, doing, _SLICE)
            changes = sum(self._conditions[one.partition].take(one.value or b"") for one in records)
            for place, end in list(ends.items()):
                if await reader.position(place) >= end:
                    del ends[place]
                    self._conditions[place.partition].complete = True
                    changes += 1
            if changes:
                self._changes += 1
            await asyncio.sleep(0)

    async def _post_forever(self, route: Route, renew_ms: int) -> None:
        failed = 0
        while True:
            self._pass_time()
            seen = self._changes
            alerts = self._alerts(route, datetime.now(UTC), LASTS * renew_ms)
            refused = await self._post(route, alerts)
            failed = failed + 1 if refused else 0
            if failed % LOG_EVERY == 1:
                line = "event=forward_standing_failed destination=%s alerts=%d reason=%r"
                log.warning(line, route.name, len(alerts), refused)
            if refused:
                await asyncio.sleep(min(_LEAST_PAUSE * 2 ** min(failed, 5), renew_ms / 1000))
                continue
            due = time.monotonic() + renew_ms / 1000
            await asyncio.sleep(_LEAST_PAUSE)
            while time.monotonic() < due and self._changes == seen:
                self._pass_time()
                await asyncio.sleep(_LEAST_PAUSE / 4)

    def _pass_time(self) -> None:
        now_ms = int(time.time() * 1000)
        self._changes += sum(one.pass_time(now_ms, self._kept_ms) for one in self._conditions.values())

    def _alerts(self, route: Route, now: datetime, lasts_ms: int) -> list[dict[str, Any]]:
        ours = route.partitions
        complete = [one for number, one in self._conditions.items() if number in ours and one.complete]
        alerts, route.standing = standing_alerts(route.destination, complete, now, lasts_ms)
        return alerts

    async def _post(self, route: Route, alerts: Sequence[dict[str, Any]]) -> str:
        """Post to every address; return why an attempt failed, "" if each request was accepted by one."""
        why = ""
        for start in range(0, len(alerts), _PART):
            request = request_with(alerts[start : start + _PART])
            answers = await asyncio.gather(*(route.post(url, request) for url in route.destination.urls))
            if not any(answer.result is Result.ACCEPTED for answer in answers):
                why = answers[0].reason
        return why
