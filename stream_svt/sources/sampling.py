"""What would become of events that a topic has, before a source counts them; why others would not count, and remedies.

Silent zeros are the first mistake: with a field misspelt, or with times in another unit, nothing ever alerts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np

from stream_svt.protocol.records import Records
from stream_svt.queries.avro.records import EventSchemas, schema_numbers
from stream_svt.queries.fields import Path
from stream_svt.settings.document import did_you_mean, quote
from stream_svt.settings.records import KEY, MAX_DEPTH, steps
from stream_svt.settings.sources import SourceSpec
from stream_svt.sources.answers import AnswerReader
from stream_svt.sources.events import EventReader, Fate
from stream_svt.sources.ticks import TickClock

_SCALES: Final = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "iso": "texts in ISO 8601"}
_EXAMPLES: Final = 100
"""Events whose fields are suggested."""
_MOST_NAMES: Final = 1_000
_SPECIAL: Final = re.compile(r"([\\.])")


@dataclass
class EventSample:
    """How many records would have each fate, and how many of those that count match each measure of the source."""

    fates: Counter[Fate] = field(default_factory=Counter)
    matches: Counter[str] = field(default_factory=Counter)


def sampled(
    source: SourceSpec, records: Records, now_ms: int, schemas: EventSchemas | None = None
) -> EventSample:
    """Return what would become of some records, if a counter had looked at each when it was appended.

    ``now_ms`` stands for later times of append, which a producer wrote. All schemas must be known, or absent.
    """
    found, names = EventSample(), [one.name for one in source.measures]
    if source.answers is not None:
        answers = AnswerReader(source, schemas)
        for part in _parts(answers, records):
            found.fates.update(fate for fate, _ in answers.read(0, part, now_ms))
        return found
    reader, clock = EventReader(source, schemas), TickClock.of(source)
    datasets, series = (
        [reader.code(one) for one in listed] for listed in (source.dataset_names, source.series_names)
    )
    for part in _parts(reader, records):
        events = reader.read(part)
        placed = clock.place(events.event_ms, np.minimum(part.timestamp, now_ms), 0)
        fate = events.fate.copy()
        for mask, why in (
            (placed.late, Fate.LATE),
            (placed.early, Fate.EARLY),
            (~np.isin(events.dataset, datasets), Fate.OTHER_DATASET),
            (~np.isin(events.series, series), Fate.OTHER_SERIES),
        ):
            np.putmask(fate, mask & (fate == Fate.COUNTED), why)
        found.fates.update(map(Fate, fate.tolist()))
        matching = events.measures[fate == Fate.COUNTED].sum(axis=0).tolist()
        found.matches.update(dict(zip(names, matching, strict=True)))
    return found


def _parts(reader: EventReader | AnswerReader, records: Records) -> Iterator[Records]:
    """Yield records, as many as a reader takes at a time."""
    while len(records):
        count = reader.at_once(records)
        reader.lack(records[:count])
        yield records[:count]
        records = records[count:]


def remedies(
    source: SourceSpec, records: Records, now_ms: int, schemas: EventSchemas | None = None
) -> Iterator[str]:
    """Yield what is probably wrong with a source: fields that no event has, and times in another unit."""
    counted = sampled(source, records, now_ms, schemas).fates[Fate.COUNTED]
    events = [*_shapes(records, schemas)] if source.format == "avro" else [*_objects(records)]
    names: dict[str, None] = {}
    for event in events[:_EXAMPLES]:
        _add_names(names, event, ())
    for path in source.paths:
        if path != KEY and events and not any(_has(event, steps(path)) for event in events):
            yield f"no event of the sample has a field {quote(path)}{did_you_mean(path, names)}"
    if (time := source.time) is None or counted == len(records):
        return
    for scale, text in _SCALES.items():
        other = source.model_copy(update={"time": time.model_copy(update={"scale": scale})})
        better = sampled(other, records, now_ms, schemas).fates[Fate.COUNTED]
        if better > 2 * counted:
            field = f"{quote(time.field)} seems to be in {text}"
            yield f"{field}: with time.in {scale}, {better} of {len(records)} events would count"


def _objects(records: Records) -> Iterator[Any]:
    """Yield JSON events."""
    for value in records.values():
        with suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            yield msgspec.json.decode(value or b"")


def _shapes(records: Records, schemas: EventSchemas | None) -> Iterator[Any]:
    """Yield an object with all fields of each schema of Avro events."""
    for number in np.unique(schema_numbers(records)).tolist():
        text = schemas.get(number) if schemas and number >= 0 else None
        with suppress(msgspec.DecodeError, RecursionError):
            yield _shape(msgspec.json.decode(text or "null"), {}, 0)


def _shape(schema: Any, named: dict[str, Any], depth: int) -> dict[str, Any]:  # noqa: ANN401  any schema
    """Return the fields of a type, each with those inside; ``named`` are the records that were defined before."""
    if depth > 2 * MAX_DEPTH:
        return {}
    if isinstance(schema, list):
        return {name: inner for branch in schema for name, inner in _shape(branch, named, depth + 1).items()}
    if isinstance(schema, str):
        return _shape(named.get(schema.rpartition(".")[2]), named, depth + 1)
    if not isinstance(schema, dict):
        return {}
    fields = schema.get("fields")
    if not isinstance(fields, list):
        kind = schema.get("type")
        return _shape(kind, named, depth + 1) if isinstance(kind, dict | list) else {}
    named[str(schema.get("name")).rpartition(".")[2]] = schema
    return {
        str(one.get("name")): _shape(one.get("type"), named, depth + 1)
        for one in fields
        if isinstance(one, dict)
    }


def _has(event: Any, path: Path) -> bool:  # noqa: ANN401  any value
    for step in path:
        if not isinstance(event, dict) or step not in event:
            return False
        event = event[step]
    return True


def _add_names(names: dict[str, None], event: Any, around: Path) -> None:  # noqa: ANN401  any value
    for name, inner in event.items() if isinstance(event, dict) and len(around) < MAX_DEPTH else ():
        if len(names) < _MOST_NAMES:
            path = (*around, name)
            names[".".join(_SPECIAL.sub(r"\\\1", step) for step in path)] = None
            _add_names(names, inner, path)
