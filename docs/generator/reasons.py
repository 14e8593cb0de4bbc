"""Why a record is refused: every word that may stand on the reject topic, with what it means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stream_svt.protocol.controls import COMMAND_LIMIT, Malformed, Untimely
from stream_svt.service.codec import ARROW_STREAM, MAX_BYTES, MAX_TEXT, Reason
from stream_svt.service.columnar import MAX_ROWS, MAX_TEXT_IN_ALL
from stream_svt.service.signatures import Refusal

QUERIES: Final[Mapping[str, str]] = {
    Reason.NO_KEY: "The record has no key.",
    Reason.UNDECLARED: "Its key is no declared dataset.",
    Reason.MISROUTED: "It stands on another partition than the home of its dataset: key it by dataset.",
    Reason.EMPTY: "The record has no content.",
    Reason.TOO_LARGE: f"It is longer than {MAX_BYTES:,} bytes, or an Arrow stream has more than {MAX_ROWS:,} rows or "
    f"{MAX_TEXT_IN_ALL:,} characters in the texts of its rows.",
    Reason.UNSUPPORTED_CONTENT_TYPE: f"Its content-type is neither application/json nor {ARROW_STREAM}.",
    Reason.INVALID_UTF8: "It is not UTF-8.",
    Reason.NOT_JSON: "It is not one JSON document.",
    Reason.NOT_AN_OBJECT: "It is JSON, but no object.",
    Reason.NOT_ARROW: "It is no Arrow IPC stream, a compressed one, or one of big-endian numbers.",
    Reason.MISSING_ID: "It has no `id`.",
    Reason.BAD_ID: f"Its `id` is no text of 1 to {MAX_TEXT} characters.",
    Reason.BAD_SERIES: f"Its `series` is no text of 1 to {MAX_TEXT} characters.",
    Reason.BAD_SET: f"Its `set` is no text of 1 to {MAX_TEXT} characters, or a marker names no set.",
    Reason.BAD_THRESHOLD: "Its `threshold` is no number, or one of extreme length.",
    Reason.UNKNOWN_MONITOR: "No monitor of the topic has the name in `monitor`.",
    Reason.BAD_TIME: "Its `time` is neither text nor number.",
    "outside-period": "It came outside the period of its dataset, on the broker's clock.",
}
"""Reasons for queries. `value` is never one."""

COMMANDS: Final[Mapping[str, str]] = {
    Malformed.EMPTY: "The record has no content.",
    Malformed.TOO_LARGE: f"It is longer than {COMMAND_LIMIT:,} bytes.",
    Malformed.NOT_JSON: "It is not JSON.",
    Malformed.BAD_FIELD: "A field is missing, unknown or of the wrong kind.",
    Untimely.OTHER_STATE: "It names another state than the shard's: of another shard, or of one made anew.",
    Untimely.STALE: "Its number is used up, or a command that waits has it: a copy, or another command was faster.",
    Untimely.AHEAD: "Its number does not come next.",
    Refusal.UNSIGNED: "Signatures are required, and it has none.",
    Refusal.UNKNOWN_KEY: "It is signed with a key that the configuration does not name.",
    Refusal.BAD_SIGNATURE: "The signature does not fit the record and its place.",
}
"""Reasons for commands."""

REASONS: Final = [str(reason) for reason in (*QUERIES, *COMMANDS)]
