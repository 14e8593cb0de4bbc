"""A record of the alert topic, which destination wants it, and the request that tells a receiver of it.

Webhooks get the CloudEvent exactly as it stands on the topic, signed as Standard Webhooks says
(https://www.standardwebhooks.com). Alertmanager groups, silences and routes by labels, so labels say what an alert is
about and never what was measured; gap, bound and estimate are annotations. Alerts with the same labels are one alert
to it: a top of the same series renews the alert of the last one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import quote

import msgspec
import standardwebhooks

from stream_svt.forward.config import (
    LINK_FIELD,
    TYPE_WORDS,
    AlertmanagerConfig,
    Destination,
    DestinationConfig,
)
from stream_svt.monitor.released import CONTENT_TYPE, Alert, Envelope, EventType, Lifecycle, decode

_ENVELOPE = msgspec.json.Decoder(Envelope)
_SOURCE = "/stream-svt/"
_EARLIEST, _LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
"""Moments that are taken for one: a zone or a duration away from them there still is a date. Records may claim any."""
_WORDS: Mapping[str, str] = {kind.value: word for word, kind in TYPE_WORDS.items()}
_NAMES: Mapping[str, tuple[str, str]] = {
    EventType.ALERT: ("AboveThreshold", "page"),
    EventType.EXHAUSTED: ("MonitorExhausted", "ticket"),
    EventType.RUN_HALTED: ("RunHalted", "ticket"),
}
"""Name and severity of alerts; the severities are those of deploy/prometheus."""
_OTHER = ("ReleasedEvent", "ticket")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What every record of the alert topic has, be it an event or not.

    Attributes:
        body, key: The record's exact bytes; of an event, a CloudEvent in structured mode.
        when: When an event was charged, by the service's clock; else when the record was written.
        label: How a log line names it: an event's id.
        dataset: What it must not overtake: records of the same dataset and partition are delivered in order.
    """

    body: bytes
    key: bytes | None
    partition: int
    offset: int
    when: datetime
    label: str = ""
    dataset: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received(Record):
    """A record that is an event; ``envelope`` and ``data`` are what it says."""

    envelope: Envelope
    data: Alert | Lifecycle


@dataclass(frozen=True, slots=True)
class Request:
    """A request without its address. ``headers`` may hold a signature, and stays out of ``repr``."""

    headers: Mapping[str, str] = field(repr=False)
    body: bytes


def receive(record: Any) -> Record:  # noqa: ANN401 - aiokafka is taken as Any
    """Return the event that a record holds, or a bare `Record` where it holds none."""
    body = record.value or b""
    place = {"body": body, "key": record.key, "partition": record.partition, "offset": record.offset}
    written = datetime.fromtimestamp(min(max(0, record.timestamp), _LATEST.timestamp() * 1000) / 1000, UTC)
    data: Alert | Lifecycle
    try:
        body.decode()
        envelope = _ENVELOPE.decode(body)
        if envelope.type in _WORDS:
            data = decode(body)[1]
        else:  # of a newer service: its attributes are enough to pass it on
            data = Lifecycle(dataset="", monitor="", run=0, reason="", account=None)
        when = datetime.fromisoformat(envelope.time)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return Record(**place, when=written)
    if when.tzinfo is None or not _EARLIEST <= when <= _LATEST or not envelope.source.startswith(_SOURCE):
        return Record(**place, when=written)
    return Received(**place, when=when, label=envelope.id, dataset=data.dataset, envelope=envelope, data=data)


def wants(config: DestinationConfig, event: Received) -> bool:
    """Tell whether an event is wanted for itself, or, at Alertmanager, ends an alert that was."""
    return _passes(config, event) or bool(_ended(config, event))


def _passes(config: DestinationConfig, event: Received) -> bool:
    kind = event.envelope.type
    asked = kind in config.types or (kind not in _WORDS and len(config.types) == len(EventType))
    return asked and _covers(config, event)


def _covers(config: DestinationConfig, event: Received) -> bool:
    return any(fnmatchcase(event.data.monitor, pattern) for pattern in config.monitors) and any(
        fnmatchcase(event.data.dataset, pattern) for pattern in config.datasets
    )


def _ended(config: DestinationConfig, event: Received) -> list[str]:
    """Return the kinds of alerts that are over once a monitor's next run has begun."""
    begins = event.envelope.type == EventType.RUN_STARTED and _covers(config, event)
    ending = (EventType.EXHAUSTED, EventType.RUN_HALTED) if config.alertmanager and begins else ()
    return [kind for kind in ending if kind in config.types]


def request_of(destination: Destination, event: Received, now: datetime) -> Request:
    """Return the request that tells a destination of an event, as of ``now``, in UTC."""
    config = destination.config
    if config.alertmanager is None:
        identity = message_id(event.envelope.source, event.envelope.id)
        headers = {
            "Content-Type": CONTENT_TYPE,
            "webhook-id": identity,
            "webhook-timestamp": str(int(now.timestamp())),
        }
        if destination.keys:
            headers["webhook-signature"] = signatures(destination.keys, identity, now, event.body)
        return Request(headers, event.body)
    alerts = [_alert(config.alertmanager, event, kind, now) for kind in _ended(config, event)]
    if not alerts or _passes(config, event):
        # Counted from the delivery: after an outage the first to hear of it must still be told.
        ends = now + timedelta(milliseconds=config.alertmanager.resolve_after)
        alerts.append(_alert(config.alertmanager, event, event.envelope.type, ends))
    return Request({"Content-Type": "application/json"}, msgspec.json.encode(alerts))


def message_id(source: str, event_id: str) -> str:
    """Return the idempotency key of an event: the same for every copy and every attempt.

    A digest, for an event's id holds the dataset's name, which may hold what no header may.

    >>> message_id("/stream-svt/retail", "retail/shop/hot/1/4")
    'evt_25bac2dec8e305d174813d9b411abbe9'
    """
    digest = hashlib.sha256(f"{source}\0{event_id}".encode()).hexdigest()
    return f"evt_{digest[:32]}"


def signatures(keys: Sequence[bytes], identity: str, now: datetime, body: bytes) -> str:
    """Return the signature header's content, one signature for each key."""
    return " ".join(standardwebhooks.Webhook(key).sign(identity, now, body.decode()) for key in keys)


def _alert(settings: AlertmanagerConfig, event: Received, kind: str, ends: datetime) -> dict[str, Any]:
    data = event.data
    about = {
        "application": event.envelope.source.removeprefix(_SOURCE),
        "dataset": data.dataset,
        "monitor": data.monitor,
        "series": (data.series if isinstance(data, Alert) else None) or "",
    }
    name, severity = _NAMES.get(kind, _OTHER)
    labels = {"alertname": name, "severity": severity, **settings.labels}
    labels |= {label: text for label, text in about.items() if text}
    if kind not in _NAMES:
        labels["type"] = _WORDS.get(kind, kind)
    if kind == EventType.ALERT and settings.one_per == "event":
        labels["event_id"] = event.envelope.id
    alert = {
        "labels": labels,
        "annotations": _annotations(event) if kind == event.envelope.type else {},
        "startsAt": _rfc3339(event.when),
        # Alertmanager refuses an alert that ends before it starts, as with clocks that differ it might.
        "endsAt": _rfc3339(max(ends, event.when + timedelta(milliseconds=1))),
    }
    if settings.generator_url is not None:
        alert["generatorURL"] = LINK_FIELD.sub(
            lambda found: quote(about[found[1]], safe=""), settings.generator_url
        )
    return alert


def _annotations(event: Received) -> dict[str, str]:
    data = event.data
    notes: dict[str, Any] = {
        "event_id": event.envelope.id,
        "event_time": event.envelope.time,
        "run": str(data.run),
    }
    if isinstance(data, Alert):
        certain = f"{100 * (1 - data.beta):.6g}%"
        bound = "no bound is certified"
        if data.bound is not None:
            bound = f"the true value is at least {_number(data.bound)} ({certain} certain)"
            notes["bound_certainty"] = certain
        what = data.series if data.series is not None else data.query_id
        notes |= {
            "summary": f"{what} of {data.dataset} is above {_number(data.threshold)} ({data.monitor})",
            "description": f"The noisy answer passed the noisy threshold by a gap of {_number(data.gap)}; {bound}.",
            "gap": data.gap,
            "threshold": data.threshold,
            "bound": data.bound,
            "estimate": data.estimate,
            "query_id": data.query_id,
            "top": str(data.top),
            "attempt": str(data.attempt),
            "branch": data.branch,
        }
    else:
        notes |= {"summary": _summary(event), "reason": data.reason}
        notes |= {f"detail_{name}": str(text) for name, text in data.detail.items()}
    if (account := data.account) is not None:
        notes["budget"] = f"{_number(account.spent)} of {_number(account.limit)} {account.measure} spent"
        notes["charge"] = f"{_number(account.charge)} {account.measure}"
    return {
        name: _number(value) if isinstance(value, float) else value
        for name, value in notes.items()
        if value not in {None, ""}
    }


def _summary(event: Received) -> str:
    data, kind = event.data, event.envelope.type
    if kind == EventType.EXHAUSTED:
        return f"{data.monitor} on {data.dataset} cannot pay for another run: its queries are skipped"
    if kind == EventType.RUN_HALTED:
        return f"{data.monitor} on {data.dataset} has used all tops of run {data.run}"
    place = f" on {data.dataset}" if data.dataset else ""
    return f"{_WORDS.get(kind, kind)}{place}" + (f", monitor {data.monitor}" if data.monitor else "")


def _number(value: float) -> str:
    return f"{value:.12g}"


def _rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
