"""Records of the alert topic, the filter of a destination, and the requests that deliver an event.

Webhooks get the bytes of the CloudEvent on the topic, signed according to Standard Webhooks. Alertmanager groups,
silences and routes by labels, which name the subject of an alert; gap, bound and estimate are annotations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

import msgspec
import standardwebhooks

from stream_svt.forward.config import AlertmanagerConfig, Destination, DestinationConfig, type_word
from stream_svt.monitor.released import CONTENT_TYPE, Alert, Envelope, EventType, Lifecycle, decode

_ENVELOPE = msgspec.json.Decoder(Envelope)
_SOURCE = "/stream-svt/"
_NAMES: Mapping[str, tuple[str, str]] = {
    EventType.ALERT: ("AboveThreshold", "page"),
    EventType.EXHAUSTED: ("MonitorExhausted", "ticket"),
    EventType.LIMITED: ("MonitorLimited", "ticket"),
    EventType.RUN_HALTED: ("RunHalted", "ticket"),
}
"""Name and severity of alerts by event type; the severities are those of deploy/prometheus."""

_NO_EVENT = Envelope("", "", "", "", "", "", 0, 0, "", msgspec.Raw())
_NO_DATA = Lifecycle(dataset="", monitor="", run=0, reason="", account=None)


@dataclass(frozen=True, slots=True)
class AlertRecord:
    """A record of the alert topic: its bytes, its position, and the event in it, if there is one.

    ``time`` is that of the event's charge, by the service's clock; without an event, that of reading.
    """

    body: bytes
    key: bytes | None = None
    partition: int = 0
    offset: int = 0
    envelope: Envelope = _NO_EVENT
    data: Alert | Lifecycle = _NO_DATA
    time: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def is_event(self) -> bool:
        """Whether this package released it."""
        return self.envelope is not _NO_EVENT


@dataclass(frozen=True, slots=True)
class Request:
    """A request without its address. ``headers`` may hold a signature, so ``repr`` leaves it out."""

    headers: Mapping[str, str] = field(repr=False)
    body: bytes


def receive(body: bytes, key: bytes | None = None, partition: int = 0, offset: int = 0) -> AlertRecord:
    """Return a record, with the event in it if there is one."""
    record = AlertRecord(body, key, partition, offset)
    try:
        body.decode()
        envelope = _ENVELOPE.decode(body)
        # The data of an unknown type, of a newer service, are not decoded: the attributes suffice.
        data = decode(body)[1] if envelope.type in list(EventType) else _NO_DATA
        time = datetime.fromisoformat(envelope.time)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return record
    # In other years adding a time zone or a duration may leave the calendar.
    usable = time.tzinfo is not None and 1970 <= time.year < 9999 and envelope.source.startswith(_SOURCE)
    return replace(record, envelope=envelope, data=data, time=time) if usable else record


def wants(config: DestinationConfig, event: AlertRecord) -> bool:
    """Tell whether a destination gets an event: its filters match, or the event ends alerts in Alertmanager."""
    return (
        _matches(event.data.monitor, config.monitors)
        and _matches(event.data.dataset, config.datasets)
        and (_matches(type_word(event.envelope.type), config.types) or bool(_ended_types(config, event)))
    )


def _matches(text: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def _ended_types(config: DestinationConfig, event: AlertRecord) -> list[str]:
    """Return the types whose alerts end with an event: those that a monitor's next run makes obsolete."""
    if config.alertmanager is None or event.envelope.type != EventType.RUN_STARTED:
        return []
    types = (EventType.EXHAUSTED, EventType.LIMITED, EventType.RUN_HALTED)
    return [kind for kind in types if _matches(type_word(kind), config.types)]


def request_of(destination: Destination, event: AlertRecord, now: datetime) -> Request:
    """Return the request that delivers an event to a destination at ``now``, in UTC."""
    config, kind = destination.config, event.envelope.type
    if config.alertmanager is None:
        identity = message_id(event.envelope.source, event.envelope.id)
        headers = {"Content-Type": CONTENT_TYPE, "webhook-id": identity}
        headers["webhook-timestamp"] = str(int(now.timestamp()))
        if destination.keys:
            headers["webhook-signature"] = signatures(destination.keys, identity, now, event.body)
        return Request(headers, event.body)
    alerts = [_alert(config.alertmanager, event, ended, now) for ended in _ended_types(config, event)]
    if not alerts or _matches(type_word(kind), config.types):
        # Counted from the delivery: an alert delivered late, after an outage, must not end at once.
        ends = now + timedelta(milliseconds=config.alertmanager.resolve_after)
        alerts.append(_alert(config.alertmanager, event, kind, ends) | {"annotations": _annotations(event)})
    return Request({"Content-Type": "application/json"}, msgspec.json.encode(alerts))


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


def _alert(settings: AlertmanagerConfig, event: AlertRecord, kind: str, ends: datetime) -> dict[str, Any]:
    name, severity = _NAMES.get(kind, ("ReleasedEvent", "ticket"))
    subject = {
        "application": event.envelope.source.removeprefix(_SOURCE),
        "dataset": event.data.dataset,
        "monitor": event.data.monitor,
        "series": event.data.series if isinstance(event.data, Alert) else None,
        "type": None if kind in _NAMES else type_word(kind),
    }
    labels = {"alertname": name, "severity": severity, **settings.labels}
    return {
        "labels": labels | {label: text for label, text in subject.items() if text},
        "startsAt": event.time.isoformat(timespec="milliseconds"),
        # Alertmanager refuses an alert that ends before it starts, which could happen when clocks differ.
        "endsAt": max(ends, event.time + timedelta(milliseconds=1)).isoformat(timespec="milliseconds"),
    }


def _annotations(event: AlertRecord) -> dict[str, str]:
    """Return the released fields as texts, without those that are None or empty."""
    data, envelope = event.data, event.envelope
    notes: dict[str, Any] = {"event_id": envelope.id, "event_time": envelope.time, "run": data.run}
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
        summaries: dict[str, str] = {
            EventType.EXHAUSTED: f"{subject} cannot pay for another run: its queries are skipped",
            EventType.LIMITED: f"{subject} has begun as many runs as max_runs allows: its queries are skipped",
            EventType.RUN_HALTED: f"{subject} has used all tops of run {data.run}",
        }
        other = f"{type_word(envelope.type)} {subject}".strip()
        notes |= {"summary": summaries.get(envelope.type, other), "reason": data.reason}
        notes |= {f"detail_{name}": value for name, value in data.detail.items()}
    if (account := data.account) is not None:
        notes["budget"] = f"{account.spent:.12g} of {account.limit:.12g} {account.measure} spent"
        notes["charge"] = f"{account.charge:.12g} {account.measure}"
    return {
        name: f"{value:.12g}" if isinstance(value, float) else str(value)
        for name, value in notes.items()
        if value is not None and value != ""
    }
