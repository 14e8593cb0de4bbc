"""Prometheus metrics of a counter. They depend on the data, and belong to the trusted zone."""

from __future__ import annotations

from typing import Final

from stream_svt.sources.events import Fate
from stream_svt.worker.metrics import Metric, lines_of

PREFIX: Final = "stream_svt_counter_"
_gauge, _counter, _ = lines_of(PREFIX, ())

METRICS: Final[tuple[Metric, ...]] = (
    _counter("events_total", "source fate", "Events read, by what became of them."),
    _counter(
        "measured_events_total",
        "source measure",
        "Events that count, by each measure whose `where` they match.",
    ),
    _counter("late_records_total", "source", "Records stamped before a look that did not cover them."),
    _gauge("tick_timestamp_seconds", "source", "End of the newest tick asked."),
    _gauge("behind_seconds", "source", "Time since the oldest tick that is due and not asked, or 0."),
    _gauge("parked", "source reason", "1 for a parked source; absent otherwise."),
    _gauge(
        "open_transaction_seconds",
        "source partition",
        "Time for which a transaction on a raw partition has held a tick up; absent otherwise.",
    ),
    _gauge("clocks_apart_seconds", "source", "The brokers' clock less the counter's."),
    _gauge("pairs", "source", "Stored pairs of cell and unit, of all open windows."),
    _gauge("open_windows", "source", "Windows that are open."),
)
"""Names with `stream_svt.worker.metrics.COMMON_LABELS` before their own labels."""

FATES: Final = {fate: fate.name.lower().replace("_", "-") for fate in Fate}
"""Labels of fates."""
