"""Raw events as columns: unit, time, series, dataset and measures of each record, decoded as if it stood alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stream_svt.columns.byte_buffer import Integers, Mask
from stream_svt.protocol.records import Records
from stream_svt.queries.avro.columns import RecordSchema, Source, UnusableSchema
from stream_svt.queries.avro.records import HEADER, EventSchemas, NoSchemas, schema_numbers
from stream_svt.queries.reasons import MAX_BYTES
from stream_svt.settings.records import KEY, steps
from stream_svt.settings.sources import EventCondition, SourceSpec
from stream_svt.sources import times
from stream_svt.sources.fields import AvroColumn, Column, Names, ValueColumn
from stream_svt.sources.json_values import JsonValues

MOST_RECORDS: Final = 4_000
MOST_BYTES: Final = 1 << 19
"""Records, and bytes of them, that are read in one step: at most 20 ms of work."""
MOST_BYTES_OF_ITEMS: Final = 1 << 16
"""Instead, where schemas have arrays or maps; one such record of a megabyte takes 0.2 s."""
_EACH: Final = 32
"""Bytes that count for each record in addition."""
_REQUESTS: Final = 8
"""Schemas that are asked for at the same time."""
_UNUSABLE: Final = -2
"""Stands for the numbers of all schemas that cannot be used."""


class Fate(IntEnum):
    """What became of an event."""

    COUNTED = 0
    EMPTY = 1
    UNREADABLE = 2
    UNUSABLE_SCHEMA = 3
    FILTERED = 4
    NO_MEASURE = 5
    NO_UNIT = 6
    NO_TIME = 7
    LATE = 8
    EARLY = 9
    OTHER_SERIES = 10
    OTHER_DATASET = 11
    NOT_ASKED = 12
    FAR_AHEAD = 13
    BAD_TEXT = 14
    NO_NUMBER = 15

    @property
    def text(self) -> str:
        """What it means."""
        return _TEXTS[self]


_TEXTS: Final[Mapping[Fate, str]] = {
    Fate.COUNTED: "counted",
    Fate.EMPTY: "has no value",
    Fate.UNREADABLE: "is not one JSON object, or no Avro record of its schema, or is larger than a megabyte",
    Fate.UNUSABLE_SCHEMA: "the registry has no Avro schema of its id, or refuses it, or it has no such paths",
    Fate.FILTERED: "does not match where of the source",
    Fate.NO_MEASURE: "matches where of no measure",
    Fate.NO_UNIT: "has no unit: a text of 1 to 256 characters, an integer or a boolean",
    Fate.NO_TIME: "has no time of the declared form",
    Fate.LATE: "came after its window's close",
    Fate.EARLY: "is of a window too far ahead",
    Fate.OTHER_SERIES: "is of a series without a name in the window's list",
    Fate.OTHER_DATASET: "is of a dataset without a name in the window's list, or that is not declared",
    Fate.NOT_ASKED: "is of a window that is not asked: before the first one that is, or after a loss",
    Fate.FAR_AHEAD: "has an append time more than ten minutes after the look that covers it",
    Fate.BAD_TEXT: "has no id where one is declared, or an id or a series that is no text, integer or boolean",
    Fate.NO_NUMBER: "has a value that is no number, and is passed on as the lower bound",
}


@dataclass(frozen=True, slots=True, repr=False)
class Events:
    """Events by row.

    Attributes:
        fate: `Fate` of each, `COUNTED` as far as the event itself decides; the other columns are void elsewhere.
        event_ms: Its time, from 0 to `LAST_MS`.
        unit: Its unit in UTF-8: a buffer, and where it begins and how many bytes it has (1 to 1024; 0 where void).
        series, dataset: Code of its name in `EventReader.names`, 0 where the source has no such field, -1 for a name
            that nobody asked for.
        measures: Shape (events, measures): whether it matches a measure's `where`, in the order of the source.
    """

    fate: NDArray[np.uint8]
    event_ms: Integers
    unit: tuple[bytes, Integers, Integers]
    series: Integers
    dataset: Integers
    measures: Mask

    def __len__(self) -> int:
        return len(self.fate)


class EventReader:
    """Reads the events of a source from its raw topic.

    Attributes:
        names: Code of each name of a series or a dataset that was asked for; "" has code 0.
    """

    def __init__(self, source: SourceSpec, schemas: EventSchemas | None = None) -> None:
        self._names = Names()
        self.names: Mapping[str, int] = self._names.codes
        self._source, self._schemas = source, schemas or NoSchemas()
        self._paths = {path: steps(path) for path in source.paths if path != KEY}
        self._json = JsonValues([*self._paths.values()])
        self._known: dict[int, RecordSchema | None] = {}
        self._absent: set[int] = set()
        self._ahead = 0

    def code(self, name: str) -> int:
        """Return the code of a name of a series or a dataset, from now on also in events."""
        return self._names.code(name)

    def lack(self, records: Records) -> tuple[int, str]:
        """Return how many records, from the first, can be read, and why the next one cannot yet, if there is one.

        Begins to fetch the schemas that are unknown, some at a time.
        """
        if self._source.format == "json":
            return len(records), ""
        number = schema_numbers(records)
        found, row = np.unique(number, return_index=True)
        missing = sorted(
            (first, one) for one, first in zip(found.tolist(), row.tolist(), strict=True) if one >= 0
        )
        missing = [(first, one) for first, one in missing if one not in self._known]
        for place, (first, one) in enumerate(missing):
            if why := self._look_up(one):
                self._look_ahead([number for _, number in missing[place + 1 :]])
                return first, why
        return len(records), ""

    def _look_ahead(self, numbers: Sequence[int]) -> None:
        """Begin to fetch some schemas, other ones at each call.

        A schema that the registry refuses is given up only once another one is read: refused ones must not hide it.
        """
        at = self._ahead % len(numbers) if numbers else 0
        waiting = (one for one in (*numbers[at:], *numbers[:at]) if self._look_up(one))
        self._ahead += sum(1 for _ in islice(waiting, _REQUESTS - 1))

    def _look_up(self, number: int) -> str:
        """Compile a schema; return why it is not known yet."""
        if (text := self._schemas.get(number)) is None:
            return self._schemas.request(number)
        try:
            self._known[number] = RecordSchema(text, [*self._paths.values()], public=range(len(self._paths)))
        except UnusableSchema:
            self._known[number] = None
            if not text:
                self._absent.add(number)
        return ""

    def forget_absences(self) -> None:
        """Ask the registry again for schemas that it did not have.

        To be called after a look, before records below it are read: what was asked for the records of an earlier look,
        which one unit may have written, must not decide about later ones.
        """
        for number in self._absent:
            self._known.pop(number, None)
        self._absent.clear()
        self._schemas.forget_absences()

    def at_once(self, records: Records) -> int:
        """Return how many of some records, from the first and at least one, `read` takes without a long step."""
        size = np.cumsum(np.clip(records.value_length[:MOST_RECORDS], 0, MAX_BYTES) + _EACH)
        has_items = any(one is not None and one.has_items for one in self._known.values())
        return max(1, int(np.searchsorted(size, MOST_BYTES_OF_ITEMS if has_items else MOST_BYTES, "right")))

    def read(self, records: Records) -> Events:
        """Return the events of records, none of which has a `lack`; each as if it were read alone."""
        if self._source.format == "json":
            return self._read_json(records)
        number = schema_numbers(records)
        if len(number) and (number == number[0]).all():
            return self._read_avro(records, number.item(0))
        unusable = [one for one in np.unique(number).tolist() if one >= 0 and self._known[one] is None]
        number[np.isin(number, unusable)] = _UNUSABLE
        rows = [np.flatnonzero(number == one) for one in np.unique(number)]
        parts = [self._read_avro(records.taken(some), number.item(some[0])) for some in rows]
        return _scattered(len(records), rows, parts, len(self._source.measures))

    def _read_json(self, records: Records) -> Events:
        found, is_bad = self._json.read(records)
        columns: dict[str, Column] = {
            path: ValueColumn(values) for path, values in zip(self._paths, found, strict=True)
        }
        return self._events(records, columns, np.where(is_bad, np.uint8(Fate.UNREADABLE), np.uint8(0)))

    def _read_avro(self, records: Records, number: int) -> Events:
        """Return the events of records of one schema, of none (-1) or of unusable ones."""
        schema = self._known.get(number)
        if schema is None:
            fate = Fate.UNREADABLE if number == -1 else Fate.UNUSABLE_SCHEMA
            return self._events(records, {}, np.full(len(records), fate, np.uint8))
        source = Source(records.buffer, records.value_start + HEADER, records.value_length - HEADER)
        located = schema.locate(source, np.arange(len(records)))
        columns: dict[str, Column] = {
            path: AvroColumn(located, slot) for slot, path in enumerate(self._paths)
        }
        return self._events(
            records, columns, np.where(located.is_valid, np.uint8(0), np.uint8(Fate.UNREADABLE))
        )

    def _events(self, records: Records, columns: dict[str, Column], fate: NDArray[np.uint8]) -> Events:
        """Return events, given their values and which are void for another reason."""
        fate[records.value_length <= 0] = Fate.EMPTY
        if fate.all():
            return _nothing(fate, len(self._source.measures))
        source, count = self._source, len(records)
        if KEY in source.paths:
            columns[KEY] = ValueColumn([*map(_decoded, records.keys())])

        def matching(conditions: Sequence[EventCondition]) -> Mask:
            mask = np.ones(count, np.bool_)
            for one in conditions:
                mask &= columns[one.path].matches(one)
            return mask

        def coded(path: str | None) -> Integers:
            return np.zeros(count, np.int64) if path is None else columns[path].codes(self._names)

        event_ms = (
            columns[source.time.field].times(source.time.scale)
            if source.time
            else times.in_range(records.timestamp)
        )
        buffer, start, length = columns[source.unit].texts
        measures = [matching(one.conditions) for one in source.measures]
        for fits, why in (
            (matching(source.conditions), Fate.FILTERED),
            (np.logical_or.reduce(measures), Fate.NO_MEASURE),
            (length > 0, Fate.NO_UNIT),
            (event_ms != times.NO_TIME, Fate.NO_TIME),
        ):
            np.putmask(fate, ~fits & (fate == Fate.COUNTED), why)
        series, dataset = coded(source.series.field if source.series else None), coded(source.dataset_field)
        return Events(
            fate,
            event_ms,
            (buffer, start, np.maximum(length, 0)),
            series,
            dataset,
            np.stack(measures, axis=1),
        )


def _decoded(key: bytes | None) -> str | None:
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return None


def _nothing(fate: NDArray[np.uint8], measures: int) -> Events:
    none = np.zeros(len(fate), np.int64)
    return Events(fate, none, (b"", none, none), none, none, np.zeros((len(fate), measures), np.bool_))


def _scattered(count: int, rows: Sequence[Integers], parts: Sequence[Events], measures: int) -> Events:
    """Return the events of some parts, given the rows of each."""
    found = _nothing(np.zeros(count, np.uint8), measures)
    event_ms, start, length, series, dataset = np.zeros((5, count), np.int64)
    shift = 0
    for some, part in zip(rows, parts, strict=True):
        found.fate[some], found.measures[some] = part.fate, part.measures
        event_ms[some], series[some], dataset[some] = part.event_ms, part.series, part.dataset
        buffer, start[some], length[some] = part.unit
        start[some] += shift
        shift += len(buffer)
    buffer = b"".join(part.unit[0] for part in parts)
    return Events(found.fate, event_ms, (buffer, start, length), series, dataset, found.measures)
