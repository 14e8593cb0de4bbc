"""Examines the newest records of the query topics for values that the service refuses, clamps or replaces by a bound.

The result depends on values: it is for readers of the query topics only.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from stream_svt.application.config import Config
from stream_svt.application.keys import likeness, shown
from stream_svt.application.topology import partitions_of
from stream_svt.columns import decimals
from stream_svt.columns.query_batch import QueryBatch
from stream_svt.errors import ConfigError, Problem
from stream_svt.kafka import clients as kafka
from stream_svt.kafka.clients import Cluster
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.plain_text import look
from stream_svt.protocol.records import Record, Records
from stream_svt.queries.avro.records import Schemas, schema_numbers
from stream_svt.queries.avro.registry import SchemaRegistry
from stream_svt.queries.codec import QueryDecoder
from stream_svt.queries.dataset_index import DatasetIndex
from stream_svt.queries.reasons import OUTSIDE_PERIOD, REMEDIES, Reason, refused
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import DatasetSpec
from stream_svt.settings.fields import Mute
from stream_svt.settings.monitors import rows_asked
from stream_svt.settings.records import steps

_NO_VALUE = object()
OTHER_PARTITIONER = "other-partitioner"
"""Kind of finding: records on the partition of the other partitioner."""
NO_SERIES: Final = "no series"
"""Kind of finding: queries without the series that a monitor's mute or the topic's layout needs."""
TWINS: Final = "twins"
"""Kind of finding: a series that looks like another one."""
COUNTS: Final = 100
"""Most records of a topic of counts that are read, 900 kB each: nothing else shows why a worker refuses one."""
MAX_KEYS: Final = 10
"""Undeclared keys that are compared with the names of datasets, one by one."""

_STAMPS: Final = "set the producer's timestamps, or message.timestamp.type=LogAppendTime on the topic"
_UNITS: Final = {"seconds": (1000, 1), "microseconds": (1, 1000), "nanoseconds": (1, 1_000_000)}
"""Factor and divisor that make milliseconds of timestamps in other units."""
_EARLIEST_MS: Final = 946_684_800_000
"""Begin of the year 2000: earlier timestamps are wrong."""
_AHEAD_MS: Final = 600_000
"""Milliseconds that a timestamp may be ahead of this machine's clock, as for workers."""
_ADVICE = {
    "ahead": f"the timestamp is in the future: mutes, runs and periods would end too early; {_STAMPS}",
    "long ago": f"the timestamp is before the year 2000: mutes, runs and periods go by it; {_STAMPS}",
    **{
        unit: f"the timestamp is in {unit} instead of milliseconds: mutes, runs and periods go by it; {_STAMPS}"
        for unit in _UNITS
    },
    "no value": "the field 'value' is missing: the service takes the lower bound",
    "text": "'value' is a string: the service takes the lower bound; send a JSON number",
    "not a number": "'value' is not a number: the service takes the lower bound",
    "repeated": "the id was used before on the same dataset: a copy is tested, and may be reported, twice",
    "unread": "no monitor on this topic covers the dataset: the query is not tested",
    NO_SERIES: "the query has no 'series': its monitor's 'mute' has no effect on it, and each query may cost an alert",
    TWINS: "the series looks like another one and has other characters: each is muted, and reported, by itself",
    Reason.MISROUTED: "refused, misrouted: no known partitioner chooses this partition; let the producer choose none",
}


class RecordLinter:
    """Finds unusual records of one query topic; repeated ids only if it ``keeps_ids``."""

    def __init__(
        self,
        spec: ApplicationSpec,
        topic: str,
        partitioning: Partitioning,
        *,
        keeps_ids: bool = False,
        schemas: Schemas | None = None,
    ) -> None:
        self._ids: set[tuple[str, str | None]] | None = set() if keeps_ids else None
        self._now_ms = int(time.time() * 1000)
        self._likenesses: dict[bytes, str] = {}
        self._looks: dict[str, str] = {}
        self._spec, self._topic, self._partitioning, self._schemas = spec, topic, partitioning, schemas
        self._monitors = [monitor for monitor in spec.monitors if monitor.topic == topic]
        self.layout = next((monitor.record for monitor in self._monitors), None)
        self._source = next(
            (one for one in spec.sources if one.counts_topic(spec.application) == topic), None
        )

    def findings(self, partition: int, records: Sequence[Record]) -> Iterator[tuple[int, str]]:
        """Yield offset and kind of every finding in consecutive records of a partition, at least one.

        A record may have several. ``advice`` explains a kind.
        """
        datasets = list(self._datasets(partition, records))
        index = DatasetIndex(
            [one.name for one in datasets], partition=partition, partitioning=self._partitioning
        )
        names = [one.name for one in self._monitors]
        asked = rows_asked(self._monitors)
        decoder = QueryDecoder(self._topic, index, names, self.layout, self._schemas, self._source, asked)
        if why := decoder.lack(records)[1]:
            raise ConfigError([Problem(0, "schema_registry", f"topic {self._topic!r}: {why}")])
        by_offset = {record.offset: record for record in records}
        while records:
            batch = decoder.decode(records)
            yield from self._in_batch(partition, batch, datasets, by_offset)
            records = [record for record in records if record.offset >= batch.end]

    def _in_batch(
        self, partition: int, batch: QueryBatch, datasets: list[DatasetSpec], by_offset: Mapping[int, Record]
    ) -> Iterator[tuple[int, str]]:
        covering = [[one for one in self._monitors if one.covers(each.name)] for each in datasets]
        for offset, reason in batch.rejects:
            yield offset, self._why(reason, by_offset[offset].key, partition)
        if self._source is not None:  # a counter's values and ids have the right form
            return
        for row in (row for row in range(len(batch)) if row not in batch.markers):
            number, offset = int(batch.dataset[row]), int(batch.offset[row])
            dataset, only = datasets[number], batch.monitor.get(row)
            readers = [one for one in covering[number] if only in (None, one.name)]
            if not readers:
                yield offset, "unread"
            wanted = any(one.mute is not Mute.NONE for one in readers) or (self.layout and self.layout.series)
            if wanted and not (batch.series and batch.series[row]):
                yield offset, NO_SERIES
            if self._ids is not None:
                if (identity := (dataset.name, batch.query_id[row])) in self._ids:
                    yield offset, "repeated"
                self._ids.add(identity)
                if batch.series and self._has_twin(batch.series[row] or ""):
                    yield offset, TWINS
            terms, stamp = dataset.terms, int(batch.timestamp_ms[row])
            if (wrong := self._wrong_stamp(stamp)) is not None:
                yield offset, wrong
            elif not (terms.from_ms or 0) <= stamp < (terms.ends_ms or 1 << 62):
                yield offset, OUTSIDE_PERIOD
            whole, more = int(batch.whole[row]), batch.fraction is not None and bool(batch.fraction[row])
            if whole == decimals.NO_NUMBER[0]:
                yield offset, self._kind(by_offset[offset])
                continue
            for low, high in dict.fromkeys(one.bounds for one in readers):
                if whole < low or whole + more > high:
                    yield offset, f"outside the bounds [{low}, {high}]"

    def _wrong_stamp(self, stamp: int) -> str | None:
        """Return the problem of a timestamp, None without one; a valid one is in milliseconds since 1970."""
        if self._ids is None or _EARLIEST_MS <= stamp <= self._now_ms + _AHEAD_MS:
            return None  # without ids, these are no records of a topic yet
        for unit, (factor, divisor) in _UNITS.items():
            if _EARLIEST_MS <= stamp * factor // divisor <= self._now_ms + _AHEAD_MS:
                return unit
        return "ahead" if stamp > self._now_ms else "long ago"

    def advice(self, kind: str) -> str:
        """Return the meaning of a kind of finding, and its remedy."""
        if path := self.path_of(kind):
            effect = "the service takes the lower bound"
            if kind == NO_SERIES:
                effect = "the query has no series, and 'mute' has no effect on it"
            return f"field {path} is missing: {effect}"
        if kind in self._likenesses.values():
            return f"refused, {Reason.UNDECLARED}: {kind}"
        if kind == OTHER_PARTITIONER:
            return f"refused, {self._partitioning.misrouted()}"
        if kind in REMEDIES and kind not in _ADVICE:
            return refused(kind)
        said = _ADVICE.get(kind, f"'value' is {kind} and counts as the nearer one; correct it, or the bounds")
        return said if self.layout is None else said.replace("'value'", f"field {self.layout.value}")

    def path_of(self, kind: str) -> str | None:
        """Return the field of the layout that records lack; None for other kinds."""
        if self.layout is None:
            return None
        return {"no value": self.layout.value, NO_SERIES: self.layout.series}.get(kind)

    def _kind(self, record: Record) -> str:
        """Return why a value is not a number."""
        try:
            value: Any = json.loads(record.value or b"")
            for name in ("value",) if self.layout is None else steps(self.layout.value):
                value = value.get(name, _NO_VALUE) if isinstance(value, dict) else _NO_VALUE
        except (ValueError, RecursionError):  # a columnar record, or a value that is not JSON
            return "not a number"
        return "no value" if value is _NO_VALUE else "text" if isinstance(value, str) else "not a number"

    def _why(self, reason: str, key: bytes | None, partition: int) -> str:
        """Return why a record is refused; a misrouted one may be on the partition of the other partitioner."""
        if reason == Reason.MISROUTED and self._partitioning.other.of(key or b"") == partition:
            return OTHER_PARTITIONER
        if reason == Reason.UNDECLARED and key is not None:
            if key not in self._likenesses and len(self._likenesses) < MAX_KEYS:
                self._likenesses[key] = likeness(key, self._spec)
            return self._likenesses.get(key) or reason
        return reason

    def _has_twin(self, series: str) -> bool:
        """Return whether a series looks like one before it, and differs from it."""
        return self._looks.setdefault(look(series), series) != series

    def _datasets(self, partition: int, records: Sequence[Record]) -> Iterator[DatasetSpec]:
        for key in {record.key for record in records if record.key is not None}:
            try:
                dataset = self._spec.dataset(key.decode())
            except (KeyError, UnicodeDecodeError):
                continue
            if self._partitioning.of(key) == partition:
                yield dataset


class Sample:
    """Counts of findings in records of one query topic, each with the position of its first record."""

    def __init__(
        self, spec: ApplicationSpec, topic: str, partitioning: Partitioning, schemas: Schemas | None = None
    ) -> None:
        self.records = 0
        self.found: Counter[str] = Counter()
        self.first: dict[str, tuple[int, int]] = {}
        self.examples: dict[str, str] = {}
        self.linter = RecordLinter(spec, topic, partitioning, keeps_ids=True, schemas=schemas)

    def add(self, partition: int, records: Sequence[Record]) -> None:
        """Examine consecutive records of a partition, at least one."""
        self.records += len(records)
        for offset, what in self.linter.findings(partition, records):
            self.found[what] += 1
            if what not in self.first:
                self.first[what] = (partition, offset)
                record = next(one for one in records if one.offset == offset)
                self.examples[what] = _example(what, record)

    def lines(self) -> Iterator[str]:
        """Yield a line for each kind of finding, the most frequent first."""
        for what, count in self.found.most_common():
            where = "first at partition {}, offset {}".format(*self.first[what])
            said, path = self.linter.advice(what), self.linter.path_of(what)
            if path and count == self.records:
                effect = said.partition(": ")[2]
                said = f"no record of the sample has field {path}: {effect}; correct the monitor's record"
            yield f"{count} of {self.records}: {said}{self.examples[what]} ({where})"


def _example(kind: str, record: Record) -> str:
    """Return the part of a record that a kind of finding, other than of a value, adds to the advice."""
    if kind == Reason.UNDECLARED and record.key is not None:
        return f", such as key {shown(record.key)}"
    if kind == Reason.UNSUPPORTED_CONTENT_TYPE:
        found = next((content for name, content in record.headers if name.lower() == "content-type"), None)
        return f", such as {shown(found or b'')}"
    return ""


async def request_schemas(schemas: SchemaRegistry, records: Sequence[Record]) -> None:
    """Fetch the schemas of records."""
    for number in set(schema_numbers(Records.of(records)).tolist()):
        if number >= 0 and schemas.get(number) is None:
            schemas.request(number)
    await schemas.wait()


async def sample(config: Config, cluster: Cluster, records: int) -> dict[str, Sample]:
    """Return the findings in the newest ``records`` of each query topic, evenly from its non-empty partitions."""
    found, doing = {}, "reading query topics"
    counts = await kafka.partition_counts(cluster, doing)
    schemas = SchemaRegistry(config.schema_registry)
    if lack := schemas.lack(config.spec):
        raise ConfigError([Problem(0, "schema_registry", lack)])
    async with kafka.started(cluster.reader(), doing) as reader:
        for topic in config.spec.topics():
            most = min(records, COUNTS) if topic in config.spec.counts_topics() else records
            count = partitions_of(counts, topic)
            one = found[topic] = Sample(config.spec, topic, config.partitioning, schemas)
            async for partition, last in newest(reader, topic, count, most, doing):
                if (layout := one.linter.layout) is not None and layout.format == "avro":
                    await request_schemas(schemas, last)
                one.add(partition, last)
    return found


async def newest(
    reader: AIOKafkaConsumer, topic: str, partitions: int, most: int, doing: str
) -> AsyncIterator[tuple[int, list[Record]]]:
    """Yield the newest ``most`` records of a topic by partition, evenly from those that have any."""
    spans = await kafka.edges(reader, [TopicPartition(topic, one) for one in range(partitions)], doing)
    held = {tp: span for tp, span in spans.items() if span[0] < span[1]}
    for tp, span in held.items():
        if last := await _newest_of(reader, tp, span, -(-most // len(held)), doing):
            yield tp.partition, last


async def _newest_of(
    reader: AIOKafkaConsumer, tp: TopicPartition, span: tuple[int, int], most: int, doing: str
) -> list[Record]:
    """Return the newest records of a partition, skipping markers, aborted and compacted offsets."""
    found: list[Record] = []
    for lookback in (most, 16 * most, 256 * most):
        start = max(span[0], span[1] - lookback)
        found = [record async for record in kafka.read_partition(reader, tp, start, doing)][-most:]
        if len(found) == most or start == span[0]:
            break
    return found
