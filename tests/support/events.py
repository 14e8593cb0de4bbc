"""Raw events of a source, read as columns, as rows that can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from stream_svt.protocol.records import OneRecord, Records
from stream_svt.queries.avro.records import Schemas
from stream_svt.settings.sources import SourceSpec
from stream_svt.sources.events import EventReader, Events, Fate

TIME = 1_764_403_200_250
"""Stands in records as their time, 2025-11-29T08:00:00.250Z."""
BETWEEN = b'}\n{"user":"eve"}\x00'
MEASURES = [
    {"name": "visitors"},
    {"name": "errors", "where": {"status": [500, 502, True, "down"]}},
    {"name": "slow", "where": {"ms": {"at_least": 2000}}},
    {"name": "middle", "where": {"ms": {"at_least": "-0.5", "below": "2000.25"}}},
]


def source(**changes: Any) -> SourceSpec:
    """Return a source; a change to None removes a key."""
    keys: dict[str, Any] = {
        "name": "requests",
        "topic": "web.requests",
        "unit": "user",
        "series": {"field": "page", "names": ["/", "/search", "7"]},
        "time": {"field": "ts", "in": "ms"},
        "window": "1h",
        "dataset": "web-{date}",
        "measures": MEASURES,
    }
    keys = {key: one for key, one in (keys | changes).items() if one is not None}
    return SourceSpec.model_validate(keys)


class Row(NamedTuple):
    """An event; what is void has its default."""

    fate: Fate
    unit: str = ""
    ms: int = 0
    series: int = 0
    dataset: int = 0
    measures: tuple[bool, ...] = ()


def reader_of(spec: SourceSpec, schemas: Schemas | None = None) -> EventReader:
    """Return a reader that was asked for all names of a source."""
    reader = EventReader(spec, schemas)
    for name in (*spec.series_names, *spec.dataset_names):
        reader.code(name)
    return reader


def records_of(
    values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None, timestamp: int = TIME
) -> Records:
    """Return records with these values."""
    keys = keys or [None] * len(values)
    return Records.of(
        OneRecord(offset, timestamp, key, value)
        for offset, (key, value) in enumerate(zip(keys, values, strict=True))
    )


def rows_of(events: Events) -> list[Row]:
    """Return events as rows."""
    buffer, start, length = events.unit
    found = []
    for row, fate in enumerate(map(Fate, events.fate.tolist())):
        if fate is not Fate.COUNTED:
            found.append(Row(fate))
            continue
        unit = buffer[start[row] : start[row] + length[row]].decode()
        numbers = (one.item(row) for one in (events.event_ms, events.series, events.dataset))
        found.append(Row(fate, unit, *numbers, tuple(events.measures[row].tolist())))
    return found


def spaced(records: Records) -> Records:
    """Return the same records with other bytes between them, as in batches."""
    values = [value or b"" for value in records.values()]
    start = np.array([*accumulate((len(value) + len(BETWEEN) for value in values), initial=len(BETWEEN))])
    buffer = BETWEEN.join([b"", *values, records.buffer])
    return replace(records, buffer=buffer, key_start=records.key_start + start[-1], value_start=start[:-1])


def read(
    reader: EventReader, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None
) -> list[Row]:
    """Return the events of records with these values, which do not depend on what stands between them."""
    records = records_of(values, keys)
    assert reader.lack(records) == (len(values), "")
    found = rows_of(reader.read(records))
    assert rows_of(reader.read(spaced(records))) == found
    return found
