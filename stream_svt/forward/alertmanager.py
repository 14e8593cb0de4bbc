"""Requests to Alertmanager's API v2: one alert for a top, an exhausted monitor, a halted run.

Alertmanager groups, silences and routes by labels, so labels say what an alert is about and never what was
measured; gap, bound and estimate are annotations. Alerts with the same labels are one alert to it: a top of the
same series renews the alert of the last one.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import msgspec

from stream_svt.forward.config import Destination
from stream_svt.forward.document import TYPE_WORDS
from stream_svt.forward.event import Received, covered, wanted
from stream_svt.forward.posting import Request
from stream_svt.monitor.released import Account, Alert, EventType

ALERT_NAMES: dict[str, str] = {
    EventType.ALERT: "AboveThreshold",
    EventType.EXHAUSTED: "MonitorExhausted",
    EventType.RUN_HALTED: "RunHalted",
}
OTHER_NAME = "ReleasedEvent"
SEVERITIES: dict[str, str] = {EventType.ALERT: "page"}
"""The words of deploy/prometheus; everything else is a ticket."""


_ENDED_BY_A_RUN = (EventType.EXHAUSTED, EventType.RUN_HALTED)
_WORDS = {kind.value: word for word, kind in TYPE_WORDS.items()}


class Alertmanager:
    """Wraps events for the Alertmanagers of one destination."""

    def __init__(self, destination: Destination) -> None:
        if destination.config.alertmanager is None:
            raise ValueError(f"destination {destination.name!r} is no Alertmanager")
        self._config = destination.config
        self._settings = destination.config.alertmanager

    def wants(self, event: Received) -> bool:
        """Tell whether an event is wanted for itself, or ends an alert that was."""
        return wanted(self._config, event) or bool(self._ended(event))

    def wrap(self, event: Received, now: datetime) -> Request:
        """Return the request: the event's own alert, and the end of those that it ends."""
        alerts = [self._alert(event, kind, event.when, now) for kind in self._ended(event)]
        if not alerts or wanted(self._config, event):
            # Counted from the delivery: after an outage the first to hear of it must still be told.
            ends = now + timedelta(milliseconds=self._settings.resolve_after)
            alerts.append(self._alert(event, event.envelope.type, event.when, ends))
        return Request({"Content-Type": "application/json"}, msgspec.json.encode(alerts))

    def _ended(self, event: Received) -> list[EventType]:
        """Return the kinds of alerts that are over once a monitor's next run has begun."""
        if event.envelope.type != EventType.RUN_STARTED or not covered(self._config, event):
            return []
        return [kind for kind in _ENDED_BY_A_RUN if kind in self._config.types]

    def _alert(self, event: Received, kind: str, starts: datetime, ends: datetime) -> dict[str, Any]:
        alert = {
            "labels": self._labels(event, kind),
            "annotations": _annotations(event) if kind == event.envelope.type else {},
            "startsAt": _rfc3339(starts),
            # Alertmanager refuses an alert that ends before it starts, as with clocks that differ it might.
            "endsAt": _rfc3339(max(ends, starts + timedelta(milliseconds=1))),
        }
        template = self._settings.generator_url
        if template is not None:
            fields = {name: quote(text, safe="") for name, text in _about(event).items()}
            alert["generatorURL"] = template.format_map(fields)
        return alert

    def _labels(self, event: Received, kind: str) -> dict[str, str]:
        name = ALERT_NAMES.get(kind, OTHER_NAME)
        labels = {"alertname": name, "severity": SEVERITIES.get(kind, "ticket"), **self._settings.labels}
        labels |= {name: text for name, text in _about(event).items() if text}
        if name == OTHER_NAME:
            labels["type"] = _WORDS.get(kind, kind)
        if kind == EventType.ALERT and self._settings.one_per == "event":
            labels["event_id"] = event.envelope.id
        return labels


def _about(event: Received) -> dict[str, str]:
    series = event.data.series if isinstance(event.data, Alert) else None
    return {
        "application": event.application,
        "dataset": event.data.dataset,
        "monitor": event.data.monitor,
        "series": series or "",
    }


def _annotations(event: Received) -> dict[str, str]:
    data = event.data
    notes = {"event_id": event.envelope.id, "event_time": event.envelope.time}
    if not isinstance(data, Alert):
        word = _WORDS.get(event.envelope.type, event.envelope.type)
        notes |= {"summary": _summary(event, word), "reason": data.reason, "run": str(data.run)}
        notes |= {f"detail_{name}": str(text) for name, text in data.detail.items()}
        if data.account is not None:
            notes |= _books(data.account)
        return {name: text for name, text in notes.items() if text}
    certain = f"{100 * (1 - data.beta):.6g}%"
    what = data.series if data.series is not None else data.query_id
    bound = (
        "no bound is certified"
        if data.bound is None
        else f"the true value is at least {_number(data.bound)} ({certain} certain)"
    )
    notes |= {
        "summary": f"{what} of {data.dataset} is above {_number(data.threshold)} ({data.monitor})",
        "description": f"The noisy answer passed the noisy threshold by a gap of {_number(data.gap)}; {bound}.",
        "gap": _number(data.gap),
        "threshold": _number(data.threshold),
        "query_id": data.query_id,
        "run": str(data.run),
        "top": str(data.top),
        "attempt": str(data.attempt),
        "branch": data.branch,
    }
    if data.bound is not None:
        notes |= {"bound": _number(data.bound), "bound_certainty": certain}
    if data.estimate is not None:
        notes["estimate"] = _number(data.estimate)
    return notes | _books(data.account)


def _summary(event: Received, word: str) -> str:
    data = event.data
    match word:
        case "monitor.exhausted":
            return f"{data.monitor} on {data.dataset} cannot pay for another run: its queries are skipped"
        case "run.halted":
            return f"{data.monitor} on {data.dataset} has used all tops of run {data.run}"
    place = f" on {data.dataset}" if data.dataset else ""
    return f"{word}{place}" + (f", monitor {data.monitor}" if data.monitor else "")


def _books(account: Account) -> dict[str, str]:
    return {
        "budget": f"{_number(account.spent)} of {_number(account.limit)} {account.measure} spent",
        "charge": f"{_number(account.charge)} {account.measure}",
    }


def _number(value: float) -> str:
    return f"{value:.12g}"


def _rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
