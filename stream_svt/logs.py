"""Logs of a process: one line for each event, as text or as JSON, to standard error; limits of repeated lines.

An event is logged as ``event=name key=value ..``, with a conversion for each value that varies. The JSON format takes
the fields from there.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import threading
import time
from datetime import UTC, datetime
from textwrap import indent
from typing import Any, Final

from stream_svt.plain_text import escaped

FORMATS: Final = ("text", "json")
TEXT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"

_FIELD = re.compile(r"(\w+)=(%[-#0 +]*[\d.]*[a-zA-Z]|\S+)")

log = logging.getLogger(__name__)


def log_to_stderr(level: str, form: str = "text") -> None:
    """Log to standard error from now on, one line for each event; ``form`` is one of `FORMATS`.

    Libraries log only warnings and errors. As JSON, warnings and uncaught exceptions are events, too: standard error
    gets no other text.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # Errors of aiokafka stay: no other record names a wrong password or certificate.
    for name in ("aiokafka", "faust", "mode", "kafka", "aiohttp.access"):
        logging.getLogger(name).setLevel(logging.WARNING)
    if form == "json":
        logging.captureWarnings(capture=True)
        sys.excepthook = lambda *error: log.critical("event=uncaught_exception", exc_info=error)
        threading.excepthook = lambda args: _log_uncaught(args.exc_value)
        sys.unraisablehook = lambda args: _log_uncaught(args.exc_value)


def logs_json() -> bool:
    """Return whether `log_to_stderr` chose JSON for this process."""
    return any(isinstance(one.formatter, JsonFormatter) for one in logging.getLogger().handlers)


def _log_uncaught(error: BaseException | None) -> None:
    log.error("event=uncaught_exception", exc_info=error)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of an event with their values; none for a record of a library."""
    if not isinstance(record.msg, str) or not record.msg.startswith("event="):
        return {}
    values = iter(record.args if isinstance(record.args, tuple) else ())
    return {
        name: _value(next(values, None), form) if form[0] == "%" else form
        for name, form in _FIELD.findall(record.msg)
    }


def _value(value: object, form: str) -> Any:  # noqa: ANN401  what JSON has
    if isinstance(value, float) and math.isfinite(value):  # JSON has no other
        return float(form % value) if form[-1] == "f" else value
    return value if isinstance(value, str | int | None) else str(value)


class TextFormatter(logging.Formatter):
    """One line of text without invisible characters, and an indented stack trace; its time is UTC."""

    converter = staticmethod(time.gmtime)
    default_msec_format = "%s,%03dZ"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  as of logging
        """Return the line."""
        return escaped(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: ANN401, N802  as of logging
        """Return the stack trace, whose last lines are a message from anywhere: none begins like an event."""
        return indent(escaped(super().formatException(ei), keep="\n"), "  ")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (RFC 3339, UTC), level, logger, the fields of an event, message, stack trace."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object as one line of ASCII."""
        document: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            **fields_of(record),
            "message": record.getMessage(),
        }
        if record.exc_info:
            document["stack"] = self.formatException(record.exc_info)
        elif record.stack_info:
            document["stack"] = self.formatStack(record.stack_info)
        return json.dumps(document)


WARNING_LIMIT = (3, 30.0)
"""Largest number of warnings and errors from one line of code, and its period in seconds."""
PROGRESS_LIMIT = (200, 200.0)
"""The same for other records: enough for a few records of each shard or command."""


class RateLimit(logging.Filter):
    """Limits the records of each line of code, except critical ones: an outage must not fill a disk."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[tuple[str, int, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a record; the first one after omitted records shows their number."""
        if record.levelno >= logging.CRITICAL or record.levelno < logging.INFO:
            return True
        allowed, seconds = WARNING_LIMIT if record.levelno >= logging.WARNING else PROGRESS_LIMIT
        origin, now = (record.pathname, record.lineno, record.levelno), time.monotonic()
        began, count = self._counts.get(origin, (now, 0))
        if now - began >= seconds:
            if count > allowed:
                _append(record, " left_out=%d", count - allowed)
            began, count = now, 0
        self._counts[origin] = began, count + 1
        return count < allowed


def _append(record: logging.LogRecord, text: str, value: int) -> None:
    """Add a field to the end of a record's message."""
    if record.args and not isinstance(record.args, tuple):
        record.msg, record.args = record.getMessage(), ()
    if not record.args:  # such a message is no template
        record.msg = str(record.msg).replace("%", "%%")
    record.msg, record.args = f"{record.msg}{text}", (*(record.args or ()), value)


def limit_logs() -> None:
    """Limit each handler."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(RateLimit())
