"""The filter of a destination, and the requests that deliver an event.

Webhooks get the bytes of the CloudEvent on the topic, signed according to Standard Webhooks. Alertmanager groups,
silences and routes by labels, which name the subject of an alert; gap, bound and estimate are annotations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

import msgspec
import standardwebhooks

from stream_svt.forward.config import DestinationConfig, type_word
from stream_svt.monitor.released import CONTENT_TYPE, Alert, AnyEvent, EventType
from stream_svt.plain_text import escaped

STANDING = frozenset({EventType.EXHAUSTED, EventType.LIMITED, EventType.PAUSED, EventType.RUN_HALTED})
"""Types whose events Alertmanager gets as standing alerts (see `conditions`)."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request without its address. ``headers`` may contain a signature, so ``repr`` omits them."""

    headers: Mapping[str, str] = field(repr=False)
    body: bytes


def wants(config: DestinationConfig, event: AnyEvent) -> bool:
    """Return whether a destination gets an event by itself: its filters match, without a standing alert."""
    return (
        matches(event.data.monitor, config.monitors)
        and matches(event.data.dataset, config.datasets)
        and matches(type_word(event.type), config.types)
        and (config.alertmanager is None or event.type not in STANDING)
    )


def matches(text: str, patterns: Sequence[str]) -> bool:
    """Return whether a text matches any pattern with * and ?."""
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def request_of(destination: DestinationConfig, event: AnyEvent, body: bytes, now: datetime) -> Request:
    """Return the request that delivers an event, ``body`` on the topic, to a destination at ``now``, in UTC."""
    if destination.alertmanager is None:
        identity = message_id(event.source, event.id)
        headers = {"Content-Type": CONTENT_TYPE, "webhook-id": identity}
        headers["webhook-timestamp"] = str(int(now.timestamp()))
        if destination.keys:
            headers["webhook-signature"] = signatures(destination.keys, identity, now, body)
        return Request(headers, body)
    alert = event.data if isinstance(event.data, Alert) else None
    subject = {
        "application": event.application,
        "dataset": event.data.dataset,
        "monitor": event.data.monitor,
        "series": alert.series if alert else None,
        "type": None if alert else type_word(event.type),
    }
    name, severity = ("AboveThreshold", alert.severity or "page") if alert else ("ReleasedEvent", "ticket")
    # Counted from the delivery: an alert delivered late, after an outage, must not end at once.
    ends_ms = int(now.timestamp() * 1000) + destination.alertmanager.resolve_after
    posted = alert_of(destination, name, severity, subject, event.time_ms, ends_ms)
    return request_with([posted | {"annotations": _annotations(event)}])


def request_with(alerts: Sequence[Mapping[str, Any]]) -> Request:
    """Return the request that posts alerts to Alertmanager."""
    return Request({"Content-Type": "application/json"}, msgspec.json.encode(alerts))


def alert_of(
    destination: DestinationConfig,
    name: str,
    severity: str,
    subject: Mapping[str, str | None],
    began_ms: int,
    ends_ms: int,
) -> dict[str, Any]:
    """Return an alert for Alertmanager without annotations; labels without a text are left out."""
    settings = destination.alertmanager
    labels = {"alertname": name, "severity": severity, **(settings.labels if settings else {})}
    # Alertmanager refuses an alert that ends before it starts, which could happen when clocks differ.
    moments = {"startsAt": began_ms, "endsAt": max(ends_ms, began_ms + 1)}
    times = {
        key: datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
        for key, ms in moments.items()
    }
    return {"labels": labels | {label: text for label, text in subject.items() if text}, **times}


def message_id(source: str, event_id: str) -> str:
    """Return the idempotency key of an event: the same for every copy and every attempt.

    It is a digest, because the event's id has the name of its dataset, whose characters a header may not allow.

    >>> message_id("/stream-svt/retail", "retail/shop/hot/1/4")
    'evt_25bac2dec8e305d174813d9b411abbe9'
    """
    digest = hashlib.sha256(f"{source}\0{event_id}".encode()).hexdigest()
    return f"evt_{digest[:32]}"


def signatures(keys: Sequence[bytes], identity: str, now: datetime, body: bytes) -> str:
    """Return the content of the signature header, with one signature for each key."""
    return " ".join(standardwebhooks.Webhook(key).sign(identity, now, body.decode()) for key in keys)


def _annotations(event: AnyEvent) -> dict[str, str]:
    """Return the released fields as texts for people, without empty ones and None; see `escaped`."""
    data, when = event.data, event.time.isoformat(timespec="milliseconds")
    notes: dict[str, Any] = {"event_id": event.id, "event_time": when, "run": data.run}
    if isinstance(data, Alert):
        bound = "no bound is certified"
        if data.bound is not None:
            bound = f"the true value is at least {data.bound:.12g} ({100 * (1 - data.beta):.6g}% certain)"
        subject = data.query_id if data.series is None else data.series
        notes |= {
            "summary": f"{subject} of {data.dataset} is above {data.threshold:.12g} ({data.monitor})",
            "description": f"The noisy answer passed the noisy threshold by a gap of {data.gap:.12g}; {bound}.",
        }
        names = ("gap", "threshold", "bound", "estimate", "query_id", "number", "attempt", "branch")
        notes |= {name: getattr(data, name) for name in names}
    else:
        subject = " on ".join(text for text in (data.monitor, data.dataset) if text)
        other = f"{type_word(event.type)} {subject}".strip()
        notes |= {"summary": other, "reason": data.reason}
        notes |= {f"detail_{name}": value for name, value in data.detail.items()}
    if (account := data.account) is not None:
        notes["budget"] = f"{account.spent:.12g} of {account.limit:.12g} {account.measure} spent"
        notes["charge"] = f"{account.charge:.12g} {account.measure}"
    return {
        name: f"{value:.12g}" if isinstance(value, float) else escaped(str(value))
        for name, value in notes.items()
        if value is not None and value != ""
    }
