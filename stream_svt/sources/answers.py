"""The counter of a source of answers: it passes on answers that exist already, each once, to the home of its dataset.

Answers are passed on in the order of look, partition and offset, stamped with the look's moment, the end of a tick.
They are written in blocks: the next `MAX_ROWS` records of a partition, or what a look still covers of it. A block has a
record of counts, or several, for each of its datasets. So what is in which record follows from the records of the
topic alone, and not from fetches, transactions or stops: each transaction ends at the end of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Final

import numpy as np

from stream_svt.columns import decimals
from stream_svt.mechanisms.grid import PARTS
from stream_svt.protocol.records import Records
from stream_svt.queries.avro.records import AvroRecords, EventSchemas, NoSchemas
from stream_svt.queries.counts import MAX_ROWS
from stream_svt.queries.fast_json.columns import FastJson
from stream_svt.queries.fields import Fields
from stream_svt.queries.json_records import JsonRecords
from stream_svt.queries.reasons import MAX_BYTES, MAX_TEXT, Reason
from stream_svt.settings.answers import AnswersSpec
from stream_svt.settings.records import KEY, OFFSET
from stream_svt.settings.sources import SourceSpec
from stream_svt.sources.counts import Answer, records_of_answers
from stream_svt.sources.events import MOST_BYTES, MOST_RECORDS, Fate
from stream_svt.sources.log import Entry, Look, Read
from stream_svt.sources.looks import CounterStep, SourceCounter

_FATES: Final = {
    Reason.EMPTY: Fate.EMPTY,
    Reason.UNUSABLE_SCHEMA: Fate.UNUSABLE_SCHEMA,
    Reason.BAD_SET: Fate.OTHER_DATASET,
    **dict.fromkeys((Reason.BAD_ID, Reason.MISSING_ID, Reason.BAD_SERIES), Fate.BAD_TEXT),
}
"""What becomes of refused records; of others, they are unreadable."""


class AnswerReader:
    """Reads the answers of a source from its topic, by the rules of query topics with a layout."""

    def __init__(self, source: SourceSpec, schemas: EventSchemas | None = None) -> None:
        assert source.answers is not None  # noqa: S101  it is a source of answers
        self._spec: AnswersSpec = source.answers
        self._dataset_at = lru_cache(maxsize=8)(source.dataset_at)
        self._schemas = schemas or NoSchemas()
        layout = self._spec.layout(source.format)
        self._avro = AvroRecords(source.topic, layout, self._schemas) if source.format == "avro" else None
        self._decoder = self._avro or FastJson(JsonRecords(layout, ()))

    def lack(self, records: Records) -> tuple[int, str]:
        """Return how many records, from the first, can be read, and why the next one cannot yet, if there is one."""
        if self._avro is None:
            return len(records), ""
        return self._avro.lack(records, lambda some: np.zeros(len(some), np.int64))

    def forget_absences(self) -> None:
        """Ask the registry again for schemas that it did not have; see `EventReader.forget_absences`."""
        if self._avro is not None:
            self._avro.forget_unusable()
            self._schemas.forget_absences()

    def at_once(self, records: Records) -> int:
        """Return how many of some records, from the first and at least one, `read` takes without a long step."""
        size = np.cumsum(np.clip(records.value_length[:MOST_RECORDS], 0, MAX_BYTES))
        some = records[: max(1, int(np.searchsorted(size, MOST_BYTES, "right")))]
        return len(some if self._avro is None else self._avro.at_once(some))

    def read(
        self, partition: int, records: Records, tick: int
    ) -> Iterator[tuple[Fate, tuple[str, Answer] | None]]:
        """Yield the fate of each record, none of which has a `lack`, with dataset and answer, None if it is dropped."""
        found, count, spec = self._decoder.decode(records), len(records), self._spec
        (whole, fraction), ids = found.numbers, self._texts("id", spec.id, found, records)
        if spec.id == OFFSET:
            ids = [f"{partition}/{offset}" for offset in records.offset.tolist()]
        series = self._texts("series", spec.series, found, records)
        datasets = self._texts("set", spec.dataset.field, found, records)
        if spec.dataset.field is None:
            datasets = [self._dataset_at(tick, "")] * count
        columns = zip(datasets, ids, series, whole.tolist(), fraction.tolist(), strict=True)
        for row, (dataset, name, of, integer, rest) in enumerate(columns):
            if row in found.rejects:
                yield _FATES.get(found.rejects[row], Fate.UNREADABLE), None
            elif not name or of == "":
                yield Fate.BAD_TEXT, None
            elif not dataset:
                yield Fate.OTHER_DATASET, None
            else:
                is_number = integer != decimals.NO_NUMBER[0]
                fate = Fate.COUNTED if is_number else Fate.NO_NUMBER
                yield fate, (dataset, (name, of, integer * PARTS + rest))

    def _texts(self, name: str, path: str | None, found: Fields, records: Records) -> list[str | None]:
        """Return the texts at a path by record, None for none, and "" for a key that is no text of 1 to 256."""
        if path == KEY:
            return [*map(_text_of, records.keys())]
        texts = found.texts.get(name, ())
        return [texts[row] for row in range(len(texts))] or [None] * len(records)


def _text_of(key: bytes | None) -> str | None:
    try:
        text = None if key is None else key.decode()
    except UnicodeDecodeError:
        return ""
    return "" if text is not None and len(text) > MAX_TEXT else text


@dataclass
class _Block:
    """Consecutive records of a partition that a look covers, and their answers by dataset."""

    records: int = 0
    answers: dict[str, list[Answer]] = field(default_factory=dict)


class AnswersCounter(SourceCounter):
    """The counter of one source of answers.

    All answers of a block are passed on, also those of datasets that are not declared: which are declared when they are
    read depends on the progress of reading. Workers refuse them; ``declares`` tells of them for the fates alone.
    """

    _reader: AnswerReader

    def __init__(
        self,
        source: SourceSpec,
        schemas: EventSchemas | None = None,
        declares: Callable[[str], bool] = lambda _: True,
    ) -> None:
        super().__init__(source, AnswerReader(source, schemas))
        self._declares = declares
        self._block, self._ready = _Block(), list[_Block]()

    # -- reading

    def fold(self, partition: int, records: Records, next_offset: int) -> int:
        """See `SourceCounter`; records of the first partition of `ranges` are taken only."""
        ranges = self.ranges()
        if partition != min(ranges, default=None):
            return self._position(partition) or 0
        until = super().fold(partition, records, next_offset)
        if self._block.records == MAX_ROWS or until >= ranges[partition][1]:
            self._ready.append(self._block)
            self._block = _Block()
        return until

    def _has_room(self, limit: Look) -> bool:
        del limit
        return sum(one.records for one in self._ready) < MAX_ROWS

    def _take(self, partition: int, records: Records) -> int:
        count = min(self._reader.at_once(records), MAX_ROWS - self._block.records)
        records = records[:count]
        self._block.records += count
        declares = lru_cache(self._declares)
        for fate, found in self._reader.read(partition, records, self._limit.moment_ms):
            if found is not None:
                self._block.answers.setdefault(found[0], []).append(found[1])
            is_declared = found is None or declares(found[0])
            self.fates[fate if is_declared else Fate.OTHER_DATASET] += 1
        return count

    # -- writing

    def _step(self, limit: Look) -> CounterStep | None:
        tick, positions = limit.moment_ms, self._positions()
        if not self._unread(limit) and tick >= self.state.next_tick:
            entry: Entry = self.state.done(tick, positions)
        elif not self.ranges():  # all is read, or enough for a transaction: blocks are whole
            entry = Read(positions)
        else:
            return None
        parts = [part for block in self._ready for part in block.answers.items()]
        self._ready = []
        return self._fly((entry,), chain(*(records_of_answers(self.source, *part, tick) for part in parts)))

    # -- inside

    def _discard(self) -> None:
        self._block, self._ready = _Block(), []
