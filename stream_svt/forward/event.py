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
from shlex import quote
from typing import Any

import msgspec
import standardwebhooks

from stream_svt.forward.config import DestinationConfig, type_word
from stream_svt.monitor.released import CONTENT_TYPE, Alert, AnyEvent, EventType, Lifecycle
from stream_svt.plain_text import escaped
from stream_svt.settings.fields import END
from stream_svt.wording import counted

STANDING = frozenset({EventType.EXHAUSTED, EventType.LIMITED, EventType.PAUSED, EventType.RUN_HALTED})
"""Types whose events Alertmanager gets as standing alerts (see `conditions`)."""
ENDING = frozenset({EventType.NOT_RENEWED, EventType.UNTESTED, EventType.ALERT_ENDED})
"""Types whose events end an alert in Alertmanager: it gets them with the alerts."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request without its address. ``headers`` may contain a signature, so ``repr`` omits them."""

    headers: Mapping[str, str] = field(repr=False)
    body: bytes


def wants(config: DestinationConfig, event: AnyEvent) -> bool:
    """Return whether a destination gets an event by itself: its filters match, without a standing alert."""
    with_alerts = config.alertmanager is not None and event.type in ENDING
    return (
        is_of(event.data.monitor, config)
        and matches(event.data.dataset, config.datasets)
        and matches(type_word(EventType.ALERT if with_alerts else event.type), config.types)
        and (config.alertmanager is None or event.type not in STANDING)
    )


def is_of(monitor: str, config: DestinationConfig) -> bool:
    """Return whether a destination gets a monitor by its name, or by that of the one whose incidents it ends."""
    return any(matches(name, config.monitors) for name in (monitor, monitor.removesuffix(END)))


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
    data, now_ms, is_end = event.data, int(now.timestamp() * 1000), event.type in ENDING
    monitor = data.monitor.removesuffix(END) if is_end else data.monitor
    applications, subject = [event.application], {"dataset": data.dataset, "monitor": monitor}
    name, severities = "ReleasedEvent", ["ticket"]
    began_ms, last_ms = event.time_ms, now_ms
    if isinstance(data, Alert):
        name, severities, subject["series"] = "AboveThreshold", [data.severity or "page"], data.series or ""
        last_ms = max(now_ms, data.watched_until or 0)
    elif is_end:
        # The alerts of an incident may have had any severity: none that did not fire is told about.
        known = data.detail.get("severities") or [data.detail.get("severity") or "page"]
        name, severities = "AboveThreshold", [str(one) for one in known]
        subject["series"] = str(data.detail.get("series", ""))
        if predecessor := data.detail.get("carried_from"):
            applications.append(str(predecessor))
        began_ms = min(event.time_ms, now_ms) - 1  # Alertmanager keeps the alert's own begin
    else:
        subject["type"] = type_word(event.type)
    # Counted from the delivery: an alert delivered late, after an outage, must not end at once.
    ends_ms = began_ms + 1 if is_end else last_ms + destination.alertmanager.resolve_after
    notes = {"annotations": _annotations(event)}
    posted = (
        alert_of(destination, name, severity, {"application": one} | subject, began_ms, ends_ms)
        for one in applications
        for severity in severities
    )
    return request_with([one | notes for one in posted])


def request_with(alerts: Sequence[Mapping[str, Any]]) -> Request:
    """Return the request that posts alerts to Alertmanager."""
    return Request({"Content-Type": "application/json"}, msgspec.json.encode(alerts))


def alert_of(
    destination: DestinationConfig,
    name: str,
    severity: str,
    subject: Mapping[str, str],
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


def silence_of(kind: str, data: Lifecycle) -> str:
    """Return what the end of an alert says, in words."""
    if kind == EventType.ALERT_ENDED:
        below, bound = data.detail.get("below", 0), data.detail.get("bound")
        at_most = "no bound is certified" if bound is None else f"that value is at most {bound:,.12g}"
        return f"ended: the value tested for the end is below {below:,.12g}; {at_most}"
    detail, windows = data.detail, counted(data.detail.get("windows", 0), "window")
    if kind == EventType.UNTESTED:
        return f"nobody knows whether it goes on: the {windows} after its mute were not all tested ({data.reason})"
    odds, missed = [detail.get(name) for name in ("silent_half", "silent_rarely")], ""
    if all(isinstance(one, float) for one in odds):
        half, rarely = (f"{one:,.12g}" for one in odds)
        missed = (
            f"; {half} above the threshold is silent so long half of the time, {rarely} above 5 times in 100"
        )
    return f"not renewed: {windows} were tested, none was reported{missed}"


def _annotations(event: AnyEvent) -> dict[str, str]:
    """Return the released fields as texts for people, without empty ones and None; see `escaped`."""
    data, when = event.data, event.time.isoformat(timespec="milliseconds")
    notes: dict[str, Any] = {"event_id": event.id, "event_time": when, "run": data.run}
    if isinstance(data, Alert):
        bound = "no bound is certified"
        if data.bound is not None:
            bound = f"that value is at least {data.bound:.12g} ({100 * (1 - data.beta):.6g}% certain)"
        subject = f"{data.query_id if data.series is None else data.series} of {data.dataset}"
        above = f"the value that it tests is above {data.threshold:.12g}"
        notes |= {
            "summary": f"monitor {data.monitor} reports {subject}: {above}",
            "description": f"With noise, the value passed the noisy threshold by a gap of {data.gap:.12g}; {bound}. "
            f"What value that is: stream-svt explain -c FILE {quote(event.id)}",
        }
        names = ("gap", "threshold", "bound", "estimate", "query_id", "number", "attempt", "branch")
        notes |= {name: getattr(data, name) for name in names}
    else:
        subject = " on ".join(text for text in (data.monitor, data.dataset) if text)
        other = f"{type_word(event.type)} {subject}".strip()
        if event.type in ENDING:
            series, says = data.detail.get("series", ""), silence_of(event.type, data)
            other = f"{series} of {data.dataset} ({data.monitor.removesuffix(END)}): {says}"
        notes |= {"summary": other, "reason": data.reason}
        # Noise, position and lists are for programs, which read the topic.
        details = data.detail.items()
        notes |= {f"detail_{name}": value for name, value in details if not isinstance(value, dict | list)}
    if (account := data.account) is not None:
        notes["budget"] = f"{account.spent:.12g} of {account.limit:.12g} {account.measure} spent"
        notes["charge"] = f"{account.charge:.12g} {account.measure}"
    return {
        name: f"{value:.12g}" if isinstance(value, float) else escaped(str(value))
        for name, value in notes.items()
        if value is not None and value != ""
    }
