"""The form of a record of counts: what the counter of a source writes to a topic of counts, and a worker reads.

It is an Arrow IPC stream with the key and columns of any columnar query record: `id`, of one entry, `series` unless
the source has none, and `value` of int64. Where each query of a window is asked once, `set` names the window and the
measure, and the last row of its last record closes it. The timestamp, the end of the tick, is the counter's
(CreateTime), never the broker's.

Answers that a source passes on as they are have no measure (an empty header) and no set, ids of their own, and values
of decimal128(38, 18). Such values have answers to the question of a monitor, too: a record of their own, after those of
all measures, with the series that were asked. Nine values without series request deciles (`stream-svt look`).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

SOURCE_HEADER: Final = "source"
"""Header with the digest of what never changes of a source, in ASCII."""

MEASURE_HEADER: Final = "measure"
"""Header with the name of the measure whose monitors test the rows."""

MONITOR_HEADER: Final = "monitor"
"""Header with the name of a monitor and a digest of its question, instead: the rows answer it, for it alone."""

DECILES_HEADER: Final = "deciles"
"""Header with a `DecilesRequest` as JSON, instead: the rows are the deciles of what a monitor tests."""

LIST_HEADER: Final = "list"
"""Header with the digest of the names of the series."""

MAX_ROWS: Final = 20_000
"""Maximum rows of a record, with the one that closes a set."""

MAX_BYTES: Final = 900_000
"""Maximum bytes of a record's content: brokers take 1 MB."""

_SINCE: Final = datetime(1970, 1, 1, tzinfo=UTC)


def query_id(window_ms: int, tick_ms: int) -> str:
    """Return the id of the queries of a window at a tick, from the window's begin and the tick's end, both UTC.

    It is unique for whole seconds, and has 41 characters: how long records are must tell nothing.
    """
    return f"{_time(window_ms)}/{_time(tick_ms)}"


def window_of(identity: str) -> int | None:
    """Return the begin of the window, in ms, whose `query_id` this is; None for an id of another form.

    >>> window_of(query_id(7_200_000, 10_860_000))
    7200000
    """
    return moment_ms(identity[:20])


@lru_cache(maxsize=64)
def moment_ms(text: str) -> int | None:
    """Return a moment of a `query_id` in ms; None for another text."""
    try:
        return (datetime.fromisoformat(text) - _SINCE) // timedelta(milliseconds=1)
    except (TypeError, ValueError):
        return None


def set_id(window_ms: int, measure: str) -> str:
    """Return the set of the queries of a measure about a window: its begin, in 20 characters, and the measure."""
    return f"{_time(window_ms)}/{measure}"


def _time(moment_ms: int) -> str:
    """Return whole seconds of UTC in ISO 8601."""
    return f"{(_SINCE + timedelta(milliseconds=moment_ms)).isoformat()[:19]}Z"
