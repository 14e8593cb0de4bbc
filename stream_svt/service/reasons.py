"""Why records of a query topic are rejected, and the limits that messages and columnar records share."""

from __future__ import annotations

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
    INVALID_UTF8 = "invalid-utf8"
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
