"""Avro query records in the wire format of Confluent's Schema Registry: a zero byte, the schema's id, Avro binary.

A schema comes from the registry, records from anybody. What stands at the path of the value never decides whether a
record is rejected: the lower bound stands for anything that is no number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

import numpy as np

from stream_svt.columns.byte_buffer import Integers
from stream_svt.columns.strings import first_words
from stream_svt.protocol.records import Records
from stream_svt.queries.avro.columns import RecordSchema, Source, UnusableSchema
from stream_svt.queries.fields import BAD_TEXT, FieldColumns, Fields
from stream_svt.queries.reasons import MAX_BYTES, MAX_TEXT, Reason
from stream_svt.settings.records import RecordLayout, steps

log = logging.getLogger(__name__)

AT_ONCE: Final = 1 << 18
"""Bytes of records with arrays or maps that are decoded at once: at most a tenth of a second of work."""
HEADER: Final = 5
"""Bytes before the record: zero, and the schema's id."""


class Schemas(Protocol):
    """Schemas by id."""

    def get(self, number: int) -> str | None:
        """Return a schema as JSON; None if it is not known yet."""
        ...

    def request(self, number: int) -> str:
        """Begin to fetch a schema, unless that is in progress; return why it is not known yet."""
        ...


class EventSchemas(Schemas, Protocol):
    """Schemas by id, of raw events: an empty one is the registry's answer that it has none of this id."""

    def forget_absences(self) -> None:
        """Take such answers as void, also those to requests in progress: an id may be registered by now."""
        ...


class NoSchemas:
    """Stands for a registry where none is at hand."""

    def forget_absences(self) -> None:
        """Do nothing."""

    def get(self, number: int) -> None:
        """Return None."""

    def request(self, number: int) -> str:
        """Return why no schema is known."""
        return f"schema {number} cannot be fetched here"


class AvroRecords:
    """Decodes the records of one topic by its layout."""

    def __init__(self, topic: str, layout: RecordLayout, schemas: Schemas) -> None:
        self._topic, self._schemas = topic, schemas
        self._names = list(layout.texts)
        self._paths = [steps(layout.value), *layout.texts.values()]
        self._known: dict[int, RecordSchema | None] = {}

    def lack(self, records: Records, datasets: Callable[[Records], Integers]) -> tuple[int, str]:
        """Return how many records, from the first, can be decoded, and why the next one cannot yet, if there is one.

        Records whose key is refused, whose number of a dataset is below 0, need no schema.
        """
        number = schema_numbers(records)
        unknown = [one for one in _distinct(number) if one >= 0 and one not in self._known]
        if unknown:
            number = np.where(datasets(records) < 0, -1, number)
            rows = np.flatnonzero(np.isin(number, unknown))
            for row, one in zip(rows.tolist(), number[rows].tolist(), strict=True):
                if one not in self._known and (why := self._look_up(one)):
                    return row, why
        return len(records), ""

    def _look_up(self, number: int) -> str:
        """Compile a schema; return why it is not known yet."""
        text = self._schemas.get(number)
        if text is None:
            return self._schemas.request(number)
        try:
            self._known[number] = found = RecordSchema(text, self._paths, public=range(1, len(self._paths)))
            lacks = [path for path, leaves in zip(self._paths, found.leaves, strict=True) if not leaves]
            if lacks:
                missing = ", ".join(map(".".join, lacks))
                log.warning(
                    "event=schema_lacks_fields topic=%s schema=%d fields=%s", self._topic, number, missing
                )
        except UnusableSchema as error:
            self._known[number] = None
            log.error("event=schema_unusable topic=%s schema=%d error=%r", self._topic, number, str(error))  # noqa: TRY400
        return ""

    def forget_unusable(self) -> None:
        """Look up again the schemas that could not be used: the registry may have one by now that it did not have."""
        self._known = {number: schema for number, schema in self._known.items() if schema is not None}

    def at_once(self, records: Records) -> Records:
        """Return the first of some records, at least one: as many as may be decoded without a pause."""
        sizes = np.cumsum(np.clip(records.value_length, 0, MAX_BYTES))
        if sizes[-1] <= AT_ONCE or not any(one is not None and one.has_items for one in self._known.values()):
            return records
        return records[: max(1, int(np.searchsorted(sizes, AT_ONCE, "right")))]

    def decode(self, records: Records) -> Fields:
        """Return the fields of records, none of which has a `lack`."""
        length = records.value_length
        found = FieldColumns(len(records), self._names)
        number = schema_numbers(records)
        found.refuse(length <= 0, Reason.EMPTY)
        found.refuse(length > MAX_BYTES, Reason.TOO_LARGE)
        found.refuse(number < 0, Reason.NOT_AVRO)
        candidates = np.flatnonzero(number >= 0)
        if not len(candidates):
            return found.fields(b"")
        source = Source(records.buffer, records.value_start[candidates] + HEADER, length[candidates] - HEADER)
        number = number[candidates]
        for one in _distinct(number):
            rows = np.flatnonzero(number == one)
            _read(self._known[one], source, rows, candidates[rows], found)
        return found.fields(source.buffer)


def _read(
    schema: RecordSchema | None, source: Source, records: Integers, rows: Integers, found: FieldColumns
) -> None:
    """Take over the fields of records of one schema, given their indexes in the source and their rows."""
    if schema is None:
        found.refuse(rows, Reason.UNUSABLE_SCHEMA)
        return
    located = schema.locate(source, records)
    found.whole[rows], found.fraction[rows] = located.numbers(0)
    found.refuse(rows[~located.is_valid], Reason.NOT_AVRO)
    for slot, (name, (start, length)) in enumerate(found.texts.items(), 1):
        start[rows], length[rows], is_bad = located.texts(slot, MAX_TEXT)
        found.refuse(rows[is_bad], BAD_TEXT[name])
        if name == "id":
            found.refuse(rows[~is_bad & (length[rows] < 0)], Reason.MISSING_ID)


def _distinct(number: Integers) -> list[int]:
    """Return each number once; most often there is only one."""
    found: list[int] = (number[:1] if (number == number[:1]).all() else np.unique(number)).tolist()
    return found


def schema_numbers(records: Records) -> Integers:
    """Return the id of each record's schema, -1 where it has none or the record is too large."""
    length = records.value_length
    has_header = (length >= HEADER) & (length <= MAX_BYTES)
    word = first_words(records.buffer, records.value_start, length).byteswap()
    is_avro = has_header & (word >> np.uint64(56) == 0)
    return np.where(is_avro, (word >> np.uint64(24)).view(np.int64), -1)
