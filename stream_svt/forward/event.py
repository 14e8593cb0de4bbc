"""An event as the forwarder holds it, and which destination wants it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from stream_svt.forward.document import DestinationConfig
from stream_svt.monitor.released import Alert, Envelope, EventType, Lifecycle, decode

_ENVELOPE = msgspec.json.Decoder(Envelope)
_KNOWN = frozenset(kind.value for kind in EventType)
_SOURCE = "/stream-svt/"
_EARLIEST, _LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
"""Moments that are taken for one: a zone or a duration away from them there still is a date. Records may claim any."""


@dataclass(frozen=True, slots=True)
class Record:
    """What every record of the alert topic has, be it an event or not.

    Attributes
    ----------
    body, key
        The record's exact bytes; of an event, a CloudEvent in structured mode.
    partition, offset
        Where it stands.
    when
        When an event was charged, by the service's clock; else when the record was written.
    """

    body: bytes
    key: bytes | None
    partition: int
    offset: int
    when: datetime

    @property
    def label(self) -> str:
        """How a log line names it."""
        return ""

    @property
    def queue_key(self) -> str:
        """What it must not overtake: records with the same key of a partition are delivered in order."""
        return ""


@dataclass(frozen=True, slots=True)
class Received(Record):
    """A record that is an event; ``envelope`` and ``data`` are what it says."""

    envelope: Envelope
    data: Alert | Lifecycle

    @property
    def label(self) -> str:
        """The event's id."""
        return self.envelope.id

    @property
    def queue_key(self) -> str:
        """The dataset."""
        return self.data.dataset

    @property
    def application(self) -> str:
        """The application that released it."""
        return self.envelope.source.removeprefix(_SOURCE)


def receive(record: Any) -> Record:  # noqa: ANN401 - aiokafka is taken as Any
    """Return the event that a record holds, or a bare `Record` where it holds none."""
    body = record.value or b""
    written = datetime.fromtimestamp(min(max(0, record.timestamp), _LATEST.timestamp() * 1000) / 1000, UTC)
    bare = Record(body, record.key, record.partition, record.offset, written)
    data: Alert | Lifecycle
    try:
        envelope = _ENVELOPE.decode(body)
        if envelope.type in _KNOWN:
            data = decode(body)[1]
        else:  # of a newer service: its attributes are enough to pass it on
            data = Lifecycle(dataset="", monitor="", run=0, reason="", account=None)
        when = datetime.fromisoformat(envelope.time)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return bare
    if when.tzinfo is None or not _EARLIEST <= when <= _LATEST or not envelope.source.startswith(_SOURCE):
        return bare
    return Received(body, record.key, record.partition, record.offset, when, envelope, data)


def wanted(destination: DestinationConfig, event: Received) -> bool:
    """Tell whether a destination's filters let an event pass."""
    kinds = destination.types
    return (
        event.envelope.type in kinds or (event.envelope.type not in _KNOWN and len(kinds) == len(EventType))
    ) and covered(destination, event)


def covered(destination: DestinationConfig, event: Received) -> bool:
    """Tell whether an event is about a monitor and a dataset that a destination asks for."""
    return _matches(destination.monitors, event.data.monitor) and _matches(
        destination.datasets, event.data.dataset
    )


def _matches(patterns: tuple[str, ...], name: str) -> bool:
    return any(pattern == "*" or fnmatchcase(name, pattern) for pattern in patterns)
