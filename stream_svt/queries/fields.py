"""Fields of queries as columns: what the decoder of each format of records returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np

from stream_svt.columns import decimals
from stream_svt.columns.byte_buffer import Integers, Mask
from stream_svt.columns.strings import TextList, TextSlices
from stream_svt.protocol.records import Records
from stream_svt.queries.reasons import Reason

Path: TypeAlias = tuple[str, ...]
"""Names of fields, from the outermost object inwards."""

BAD_TEXT: Final = {"id": Reason.BAD_ID, "series": Reason.BAD_SERIES, "set": Reason.BAD_SET}
"""Reason to refuse a text, by the name of its field."""


class Options(NamedTuple):
    """Options of queries by row, as in `QueryBatch`."""

    threshold: dict[int, Fraction]
    monitor: dict[int, str]
    markers: dict[int, str]

    @classmethod
    def none(cls) -> Options:
        """Return no options."""
        return cls({}, {}, {})

    def add(self, others: Options, rows: Sequence[int]) -> None:
        """Add the options of ``rows``, by their indexes in it."""
        self.threshold.update((rows[index], limit) for index, limit in others.threshold.items())
        self.monitor.update((rows[index], name) for index, name in others.monitor.items())
        self.markers.update((rows[index], name) for index, name in others.markers.items())

    def of(self, rows: Integers) -> Options:
        """Return the options of some rows, by their indexes in ``rows``."""
        number = {row: index for index, row in enumerate(rows.tolist())} if any(self) else {}
        return Options(*(_of(one, number) for one in self))


def _of(option: dict[int, Any], number: dict[int, int]) -> dict[int, Any]:
    return {number[row]: option[row] for row in sorted(option) if row in number}


class Fields(NamedTuple):
    """Fields of records: numbers, texts, options. The fields of ``rejects``, by row, are void."""

    numbers: decimals.Columns
    texts: Mapping[str, TextList | TextSlices]
    rejects: dict[int, Reason]
    options: Options


class RecordDecoder(Protocol):
    """Decodes the records of a topic: each has one query."""

    def decode(self, records: Records) -> Fields:
        """Return the fields of records, at least one."""


class FieldColumns:
    """Fields of records by row, as far as they are read; texts are slices of a buffer."""

    def __init__(self, count: int, names: Iterable[str]) -> None:
        self.whole = np.full(count, decimals.NO_NUMBER[0], np.int64)
        self.fraction = np.full(count, decimals.NO_NUMBER[1], np.int64)
        self.texts = {name: (np.zeros(count, np.int64), np.full(count, -1, np.int64)) for name in names}
        self.rejects: dict[int, Reason] = {}
        self.options = Options.none()

    def refuse(self, rows: Mask | Integers, reason: Reason) -> None:
        """Refuse some rows, unless there is a reason already."""
        for row in (np.flatnonzero(rows) if rows.dtype == np.bool_ else rows).tolist():
            self.rejects.setdefault(row, reason)

    def fields(self, buffer: bytes) -> Fields:
        """Return all fields, without the texts other than ids that no row has."""
        texts = {
            name: TextSlices(buffer, start, length)
            for name, (start, length) in self.texts.items()
            if name == "id" or (length >= 0).any()
        }
        return Fields((self.whole, self.fraction), texts, self.rejects, self.options)
