"""An application whose monitors test a source's counts, and records of counts written by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from stream_svt.queries.codec import ARROW_STREAM
from stream_svt.queries.counts import LIST_HEADER, MEASURE_HEADER, SOURCE_HEADER, query_id, set_id
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.sources import SourceSpec

TOPIC = "web.requests.counts"
WINDOW_MS = 1_790_000_000_000 // 86_400_000 * 86_400_000
"""Begin of a first window, at midnight."""
HOUR_MS = 3_600_000
PAGES = tuple(f"s{number}" for number in range(7))
SOURCE = (
    'name: requests, topic: web.requests, unit: user, dataset: {pattern: "{name}", field: ward, names: [a, b, c]}, '
    f"series: {{field: page, names: [{', '.join(PAGES)}]}}, window: 1h, "
    "measures: [{name: visitors}, {name: errors, where: {status: [500]}, of: {events: {at_most: 3}}}]"
)
LONG = SOURCE.replace(", ".join(PAGES), ", ".join(f"p{number}" for number in range(700)))
"""The same source with more series than are tested with others."""
MONITOR = "source: requests, epsilon: 1, cutoff: 3, threshold: 500"
VISITORS, ERRORS = (f"{MONITOR}, measure: {name}" for name in ("visitors", "errors"))


def counting(
    *monitors: str, source: str = SOURCE, datasets: str = "{names: [a, b, c], limit: 9}"
) -> ApplicationSpec:
    """Return an application with a monitor for each text, named m0, m1, .."""
    named = "\n".join(f"  - {{name: m{number}, {monitor}}}" for number, monitor in enumerate(monitors))
    parts = f"sources:\n  - {{{source}}}\ndatasets:\n  - {datasets}\nmonitors:\n{named}\n"
    return load_spec(f"application: web\n{parts}")


@dataclass(frozen=True)
class Counts:
    """A record of counts: the values of a measure and dataset about a window, at its tick.

    ``offset`` is set by whoever writes it to a log; ``timestamp_type`` 1 means that the timestamp is the broker's.
    """

    source: SourceSpec
    measure: str
    dataset: str
    values: Sequence[int]
    window: int = WINDOW_MS
    tick: int = WINDOW_MS + HOUR_MS + 60_000
    offset: int = 0
    timestamp_type: int = 0

    @property
    def key(self) -> bytes:
        return self.dataset.encode()

    @property
    def timestamp(self) -> int:
        return self.tick

    @cached_property
    def headers(self) -> tuple[tuple[str, bytes], ...]:
        return (
            ("content-type", ARROW_STREAM.encode()),
            (SOURCE_HEADER, self.source.digest.encode()),
            (MEASURE_HEADER, self.measure.encode()),
            (LIST_HEADER, self.source.window_list().digest.encode()),
        )

    @cached_property
    def value(self) -> bytes:
        names = [name for name in self.source.series_names if name]
        rows = len(self.values)
        columns: dict[str, Any] = {"id": [query_id(self.window, self.tick)] * rows, "value": [*self.values]}
        if names:
            columns["series"] = names[:rows]
        if self.source.ask == "close":
            columns = {name: [*column, column[-1]] for name, column in columns.items()}
            columns["set"] = [set_id(self.window, self.measure)] * (rows + 1)
            columns["closed"] = [*[False] * rows, True]
        arrays = {name: pa.array(column) for name, column in columns.items()}
        texts = [name for name in arrays if name in ("id", "series", "set")]
        arrays |= {name: arrays[name].dictionary_encode() for name in texts}
        batch, sink = pa.record_batch(arrays), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        content: bytes = sink.getvalue().to_pybytes()
        return content

    def at(self, offset: int) -> Counts:
        """Return the record at another offset."""
        return replace(self, offset=offset)


def hours(source: SourceSpec, values: Sequence[Sequence[int]], *, gap: int = 1) -> Iterator[Counts]:
    """Yield the records of one window after another, as a counter writes them: of each dataset, each measure.

    ``values`` has for each record the counts of its first series; those of the others are 0. Offsets have a ``gap``
    between windows, as markers of transactions leave it.
    """
    offset, given = 0, iter(values)
    for number in range(len(values)):
        begin = WINDOW_MS + number * HOUR_MS
        for dataset in source.dataset_names:
            for measure in source.measures:
                if (some := next(given, None)) is None:
                    return
                row = [*some, *[0] * (len(source.series_names) - len(some))]
                tick = begin + HOUR_MS + source.lateness
                yield Counts(
                    source, measure.name, source.dataset_at(begin, dataset), row, begin, tick, offset
                )
                offset += 1
        offset += gap
