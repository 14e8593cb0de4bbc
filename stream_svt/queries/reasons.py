"""Why records of a query topic are rejected, and the limits that messages and columnar records share."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

MAX_BYTES: Final = 1 << 20
"""Maximum size of a message in bytes."""

MAX_TEXT: Final = 256
"""Maximum length of an id, series or set in characters."""


class Reason(StrEnum):
    """Why a record was rejected. Reasons are public: none depends on a value."""

    NO_KEY = "no-key"
    UNDECLARED = "undeclared"
    MISROUTED = "misrouted"
    EMPTY = "empty"
    TOO_LARGE = "too-large"
    UNSUPPORTED_CONTENT_TYPE = "unsupported-content-type"
    NOT_JSON = "not-json"
    NOT_AN_OBJECT = "not-an-object"
    NOT_ARROW = "not-arrow"
    NOT_AVRO = "not-avro"
    UNUSABLE_SCHEMA = "unusable-schema"
    MISSING_ID = "missing-id"
    BAD_ID = "bad-id"
    BAD_SERIES = "bad-series"
    BAD_SET = "bad-set"
    BAD_THRESHOLD = "bad-threshold"
    UNKNOWN_MONITOR = "unknown-monitor"
    BAD_TIME = "bad-time"
    NOT_COUNTS = "not-counts"
    UNKNOWN_MEASURE = "unknown-measure"
    BROKER_TIME = "broker-time"


OUTSIDE_PERIOD: Final = "outside-period"
"""Why a monitor's dataset refuses a query: a reason on the reject topic that needs the dataset's period."""
_ENCODING = "send one JSON object in UTF-8, or an Arrow IPC stream with its content-type"
_TEXT = f"a string of 1 to {MAX_TEXT} characters"
REMEDIES: Final[Mapping[str, str]] = {
    Reason.NO_KEY: "let the producer set the record's key: the name of the dataset; "
    "for a topic with other keys see 'Topics that exist already' in docs/configuration.md",
    Reason.UNDECLARED: "declare the dataset and apply the configuration, or correct the producer's key; "
    "'stream-svt lint' shows keys that look like the name of a dataset, and why they are not",
    Reason.MISROUTED: "let the producer choose no partition; where it chooses none, 'stream-svt lint' helps",
    Reason.EMPTY: "let the producer send a value: compaction's tombstones are no queries",
    Reason.TOO_LARGE: "let the producer send smaller records",
    Reason.UNSUPPORTED_CONTENT_TYPE: "correct the header content-type, or leave it out",
    Reason.NOT_JSON: _ENCODING,
    Reason.NOT_AN_OBJECT: _ENCODING,
    Reason.NOT_ARROW: "write an uncompressed, little-endian Arrow IPC stream that extends no dictionary",
    Reason.NOT_AVRO: "let a serializer of the Schema Registry write the value: magic byte, schema id, Avro",
    Reason.UNUSABLE_SCHEMA: "register a flat record schema for the query topic, and let the producer use it",
    Reason.MISSING_ID: "let the producer give each query an id of its own",
    Reason.BAD_ID: f"send as 'id' {_TEXT}",
    Reason.BAD_SERIES: f"send as 'series' {_TEXT}",
    Reason.BAD_SET: f"send as 'set' {_TEXT}, also with 'closed'",
    Reason.BAD_THRESHOLD: "send 'threshold' as a JSON number, or leave it out",
    Reason.UNKNOWN_MONITOR: "correct 'monitor', or apply a configuration with a monitor of this name on the topic",
    Reason.BAD_TIME: "send 'time' as a string or a number, or leave it out",
    Reason.NOT_COUNTS: "let only the counter of this source, as it is applied, write to a topic of counts",
    Reason.UNKNOWN_MEASURE: "apply a configuration whose source has the measure of the record's header",
    Reason.BROKER_TIME: "set message.timestamp.type=CreateTime on the topic of counts: ticks are nominal times",
    OUTSIDE_PERIOD: "send queries while their period lasts, or apply a longer 'lateness'",
}
"""What to do for each reason of a refused query."""


def refused(reason: str) -> str:
    """Return that a query is refused, why, and what to do."""
    return f"refused, {reason}: {REMEDIES[reason]}"
