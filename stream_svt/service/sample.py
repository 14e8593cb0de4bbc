"""Examines the newest records of the query topics: what the service refuses, clamps or takes for the lower bound.

The result depends on values: it is for those who may read the query topics.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from aiokafka import TopicPartition

from stream_svt.errors import BrokerError
from stream_svt.protocol.ports import Record
from stream_svt.service import exact, kafka
from stream_svt.service.codec import DatasetIndex, QueryDecoder
from stream_svt.service.config import Config
from stream_svt.service.homes import Homes
from stream_svt.service.kafka import Cluster
from stream_svt.service.reasons import Reason
from stream_svt.service.topology import unseen
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.datasets import DatasetSpec
from stream_svt.settings.records import steps

_NO_VALUE = object()
_OTHER = "other-partitioner"
"""What is counted where records are on the partition of the other partitioner."""

_ADVICE = {
    "no value": "the field 'value' is missing: the query counts as the lower bound",
    "text": "'value' is a string: the query counts as the lower bound; send a JSON number",
    "not a number": "'value' is not a number: the query counts as the lower bound",
    "repeated": "the id was used before on the same dataset: a copy is tested, and may be reported, twice",
    "outside-period": "the broker's timestamp is outside the period of the dataset: the query is refused",
    Reason.NO_KEY: "refused, no key: the key of a record names the dataset",
    Reason.UNDECLARED: "refused, the key is not a declared dataset",
    Reason.MISROUTED: "refused, on another partition than the dataset's",
}


class Sample:
    """Counts of what is unusual in records of one query topic, each with the position of its first record."""

    def __init__(self, spec: ApplicationSpec, topic: str, homes: Homes) -> None:
        self.records = 0
        self.found: Counter[str] = Counter()
        self.first: dict[str, tuple[int, int]] = {}
        self._spec, self._topic, self._homes = spec, topic, homes
        self._monitors = [monitor for monitor in spec.monitors if monitor.topic == topic]
        self._layout = next((monitor.record for monitor in self._monitors), None)
        self._ids: set[tuple[str, str]] = set()

    def add(self, partition: int, records: Sequence[Record]) -> None:
        """Examine consecutive records of a partition, at least one."""
        self.records += len(records)
        datasets = list(self._datasets(partition, records))
        bounds = [{one.bounds for one in self._monitors if one.covers(each.name)} for each in datasets]
        index = DatasetIndex([one.name for one in datasets], partition=partition, homes=self._homes)
        names = [one.name for one in self._monitors]
        batch = QueryDecoder(self._topic, index, names, self._layout).decode(records)
        by_offset = {record.offset: record for record in records}
        for offset, reason in batch.rejects:
            self._count(self._why(reason, by_offset[offset].key, partition), partition, offset)
        for row in (row for row in range(len(batch)) if row not in batch.markers):
            number, offset = int(batch.dataset[row]), int(batch.offset[row])
            dataset = datasets[number]
            whole, more = int(batch.whole[row]), batch.fraction is not None and bool(batch.fraction[row])
            if self._layout and self._layout.series and batch.series[row] is None:
                self._count("no series", partition, offset)
            if (identity := (dataset.name, batch.query_id[row])) in self._ids:
                self._count("repeated", partition, offset)
            self._ids.add(identity)
            if not (dataset.from_ms or 0) <= batch.timestamp_ms[row] < (dataset.ends_ms or 1 << 62):
                self._count("outside-period", partition, offset)
            if whole == exact.NO_NUMBER[0]:
                self._count(self._kind(by_offset[offset]), partition, offset)
                continue
            for low, high in bounds[number]:
                if whole < low or whole + more > high:
                    self._count(f"outside the bounds [{low}, {high}]", partition, offset)

    def _why(self, reason: str, key: bytes | None, partition: int) -> str:
        """Return why a record is refused; a misrouted one may be where the other partitioner puts its key."""
        if reason == Reason.MISROUTED and self._homes.other.of(key or b"") == partition:
            return _OTHER
        return reason

    def _datasets(self, partition: int, records: Sequence[Record]) -> Iterator[DatasetSpec]:
        for key in {record.key for record in records if record.key is not None}:
            try:
                dataset = self._spec.dataset(key.decode())
            except (KeyError, UnicodeDecodeError):
                continue
            if self._homes.of(key) == partition:
                yield dataset

    def _count(self, what: str, partition: int, offset: int) -> None:
        self.found[what] += 1
        self.first.setdefault(what, (partition, offset))

    def _kind(self, record: Record) -> str:
        """Return why a value is not a number."""
        try:
            value: Any = json.loads(record.value or b"")
            for name in ("value",) if self._layout is None else steps(self._layout.value):
                value = value.get(name, _NO_VALUE) if isinstance(value, dict) else _NO_VALUE
        except (ValueError, RecursionError):  # a columnar record, or a value that is not JSON
            return "not a number"
        return "no value" if value is _NO_VALUE else "text" if isinstance(value, str) else "not a number"

    def _missing(self, what: str, count: int) -> str | None:
        """Return what to say of a field that a layout names and records lack."""
        path = None
        if self._layout is not None:
            path = {"no value": self._layout.value, "no series": self._layout.series}.get(what)
        if path is None:
            return None
        effect = "the query counts as the lower bound" if what == "no value" else "the query has no series"
        if count == self.records:
            return f"no record of the sample has field {path}: {effect}; correct the monitor's record"
        return f"field {path} is missing: {effect}"

    def lines(self) -> Iterator[str]:
        """Yield a line for each kind of finding, the most frequent first."""
        for what, count in self.found.most_common():
            refused = f"refused, {what}" if what in set(Reason) else f"{what}: the value is clamped"
            where = "first at partition {}, offset {}".format(*self.first[what])
            said = self._missing(what, count) or _ADVICE.get(what, refused)
            if what == _OTHER:
                said = f"refused, {self._homes.misrouted()}"
            yield f"{count} of {self.records}: {said} ({where})"


async def sample(config: Config, cluster: Cluster, records: int) -> dict[str, Sample]:
    """Return what the newest ``records`` of each query topic show, evenly from its partitions that have any."""
    found, doing = {}, "reading query topics"
    counts = await kafka.partition_counts(cluster, doing)
    async with kafka.started(cluster.reader(), doing) as reader:
        for topic in config.spec.topics():
            if not (count := counts.get(topic, 0)):
                raise BrokerError(unseen(topic, "READ"))
            one = found[topic] = Sample(config.spec, topic, config.homes)
            spans = await kafka.edges(
                reader, [TopicPartition(topic, number) for number in range(count)], doing
            )
            ends = {tp: end for tp, (first, end) in spans.items() if first < end}
            for tp, end in ends.items():
                start = max(0, end - -(-records // len(ends)))
                async for batch in kafka.read_partition(reader, topic, tp.partition, start, doing):
                    one.add(tp.partition, batch)
    return found
