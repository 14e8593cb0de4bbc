"""Raw events as columns: unit, time, series, dataset and measures of each record, decoded as if it stood alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from stream_svt.columns.query_batch import Integers, Mask
from stream_svt.protocol.records import Records
from stream_svt.queries.avro.records import NoSchemas, Schemas

if TYPE_CHECKING:
    from stream_svt.settings.sources import SourceSpec


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

    @property
    def text(self) -> str:
        """What it means."""
        return _TEXTS[self]


_TEXTS: Final[Mapping[Fate, str]] = {
    Fate.COUNTED: "counted",
    Fate.EMPTY: "has no value",
    Fate.UNREADABLE: "is not one JSON object, or no Avro record of its schema, or is larger than a megabyte",
    Fate.UNUSABLE_SCHEMA: "the registry has no Avro schema of its id, or one that cannot be read at the paths",
    Fate.FILTERED: "does not match where of the source",
    Fate.NO_MEASURE: "matches where of no measure",
    Fate.NO_UNIT: "has no unit: a text of 1 to 256 characters, an integer or a boolean",
    Fate.NO_TIME: "has no time of the declared form",
    Fate.LATE: "came after its window's close",
    Fate.EARLY: "is of a window too far ahead",
    Fate.OTHER_SERIES: "is of a series without a name in the window's list",
    Fate.OTHER_DATASET: "is of a dataset without a name in the window's list",
    Fate.NOT_ASKED: "is of a window that is not asked: before the source began, or after a loss",
    Fate.FAR_AHEAD: "has an append time more than ten minutes after the look that covers it",
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

    def __init__(self, source: SourceSpec, schemas: Schemas | None = None) -> None:
        self.names: dict[str, int] = {"": 0}
        self._source, self._schemas = source, schemas or NoSchemas()

    def code(self, name: str) -> int:
        """Return the code of a name, from now on also in events."""
        return self.names.setdefault(name, len(self.names))

    def lack(self, records: Records) -> tuple[int, str]:
        """Return how many records, from the first, can be read, and why the next one cannot yet, if there is one."""
        raise NotImplementedError

    def at_once(self, records: Records) -> int:
        """Return how many of some records, from the first and at least one, `read` takes without a long step."""
        raise NotImplementedError

    def read(self, records: Records) -> Events:
        """Return the events of records, none of which has a `lack`; each as if it were read alone."""
        raise NotImplementedError
