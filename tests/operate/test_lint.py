"""What is unusual in records of a query topic is counted by kind, with the position of the first one."""

from __future__ import annotations

import json
import time
import zlib
from dataclasses import replace

import pytest
from aiokafka.structs import ConsumerRecord

from stream_svt.kafka.partitioning import Partitioning
from stream_svt.operate.lint import Sample
from stream_svt.settings.application import load_spec
from tests.support.counts import SOURCE, TOPIC, VISITORS, Counts, counting
from tests.support.partitioning import partition_of

PARTITIONS = 6
OTHER_WINDOW = SOURCE.replace("window: 1h", "window: 2h")
SPEC = load_spec("""
application: shop
datasets:
  - {names: [today, alone], limit: 4, unit: one basket}
  - {generate: "{date}", from: 2026-01-05, limit: 4, unit: one basket}
monitors:
  - {name: hot, topic: counts, datasets: ["2*", t*], epsilon: 1, cutoff: 10, sensitivity: 1, bounds: [0, 100],
     threshold: 50, expected_queries: 1000}
""")
HOME = partition_of(b"today", PARTITIONS)
LIBRDKAFKA = zlib.crc32(b"today") % PARTITIONS
DAY = b"2026-01-06"
NOON = 1_767_700_800_000
"""Noon of that day, in UTC milliseconds."""


def record(offset: int, value: bytes, key: bytes | None = b"today", timestamp: int = NOON) -> ConsumerRecord:
    return ConsumerRecord("counts", 0, offset, timestamp, 0, key, value, None, -1, len(value), ())


def query(**fields: object) -> bytes:
    return json.dumps({"id": "q", "series": "s", "value": 1} | fields).encode()


def lines(partition: int, *records: ConsumerRecord) -> list[str]:
    sample = Sample(SPEC, "counts", Partitioning(PARTITIONS, "murmur2"))
    sample.add(partition, records)
    return list(sample.lines())


@pytest.mark.parametrize(
    ("made", "partition", "finding"),
    [
        (record(7, b'{"id": "q", "series": "s"}'), HOME, "'value' is missing"),
        (record(7, query(), b"alone"), partition_of(b"alone", PARTITIONS), "no monitor on this topic covers"),
        (record(7, query(value="12")), HOME, "'value' is a string"),
        (record(7, query(value=None)), HOME, "'value' is not a number"),
        (record(7, b'{"id": "q", "series": "s", "value": 1e}'), HOME, "'value' is not a number"),
        (record(7, query(value=101)), HOME, "'value' is outside the bounds [0, 100] and counts as"),
        (record(7, query(value=100.5)), HOME, "outside the bounds [0, 100]"),
        (record(7, query(value=-0.5)), HOME, "outside the bounds [0, 100]"),
        (record(7, query(), key=None), HOME, "refused, no-key: let the producer set"),
        (record(7, query(), key=b"tomorrow"), partition_of(b"tomorrow", PARTITIONS), "refused, undeclared: "),
        (record(7, query()), LIBRDKAFKA, "partitioner=murmur2_random"),
        (
            record(7, query()),
            ({*range(PARTITIONS)} - {HOME, LIBRDKAFKA}).pop(),
            "refused, misrouted: no known",
        ),
        (
            record(7, b'{"id": "q", "value": 1}'),
            HOME,
            "the query has no 'series': its monitor's 'mute' has no",
        ),
        (record(7, b"{"), HOME, "refused, not-json"),
        (
            record(7, query(), DAY, NOON + 86_400_000),
            partition_of(DAY, PARTITIONS),
            "refused, outside-period: ",
        ),
    ],
)
def test_each_kind_has_a_line_with_its_count_and_first_position(made, partition, finding):
    [line] = lines(partition, made)
    assert line.startswith("1 of 1: ")
    assert finding in line
    assert line.endswith(f"(first at partition {partition}, offset 7)")


def test_an_id_is_repeated_on_its_own_dataset_only():
    again = [record(0, query()), record(1, query(id="r")), record(2, query())]
    [line] = lines(HOME, *again)
    assert line.startswith("1 of 3: the id was used before on the same dataset")
    assert line.endswith("offset 2)")


@pytest.mark.parametrize(
    ("stamp", "finding"),
    [
        (NOON // 1000, "in seconds"),
        (NOON * 1000, "in microseconds"),
        (NOON * 1_000_000 + 1, "in nanoseconds"),
        pytest.param(int(time.time() * 1000) + 3_600_000, "in the future", id="in an hour"),
        (4_000_000_000_000_000_000, "in the future"),
        (-1, "before the year 2000"),
        (5, "before the year 2000"),
    ],
)
def test_stamps_that_are_far_off_are_named_with_their_likely_unit(stamp, finding):
    found = lines(HOME, record(7, query(), timestamp=stamp), record(8, query(id="p"), timestamp=NOON))
    assert len(found) == 1
    assert found[0].startswith("1 of 2: the timestamp is ")
    assert finding in found[0]
    assert found[0].endswith(f"(first at partition {HOME}, offset 7)")


def test_good_records_are_not_mentioned():
    good = [
        record(0, query(value=100)),
        record(1, query(id="r", value=0)),
        record(2, b'{"set": "s", "closed": true}'),
    ]
    assert lines(HOME, *good) == []
    assert lines(partition_of(DAY, PARTITIONS), record(0, query(), DAY)) == []


MAPPED = load_spec("""
application: shop
datasets: [{name: today, limit: 4, unit: one basket}]
monitors:
  - {name: hot, topic: counts, record: {value: payload.count, series: payload.page}, epsilon: 1, cutoff: 10,
     sensitivity: 1, bounds: [0, 100], threshold: 50, expected_queries: 1000}
""")


@pytest.mark.parametrize(
    ("messages", "findings"),
    [
        ([b'{"payload":{"count":7,"page":"p"}}', b'{"payload":{"count":8,"page":1}}'], []),
        ([b'{"payload":{"page":"p"}}'] * 2, ["no record of the sample has field payload.count"]),
        (
            [b'{"payload":7}', b'{"payload":{"count":1}}'],
            ["has field payload.page", "field payload.count is missing"],
        ),
        ([b'{"payload":{"count":"8","page":"p"}}'], ["field payload.count is a string"]),
        ([b'{"payload":{"count":101,"page":"p"}}'], ["outside the bounds"]),
    ],
)
def test_a_layout_that_does_not_fit_is_named_with_its_path(messages, findings):
    sample = Sample(MAPPED, "counts", Partitioning(PARTITIONS, "murmur2"))
    sample.add(HOME, [record(number, message) for number, message in enumerate(messages)])
    found = list(sample.lines())
    assert len(found) == len(findings)
    assert all(finding in line for finding, line in zip(findings, found, strict=True))


def test_of_records_of_counts_only_refusals_are_found():
    spec = counting(VISITORS)
    good = Counts(spec.sources[0], "errors", "a", [2**41, 0])
    (other,) = counting(VISITORS, source=OTHER_WINDOW).sources
    records = [good.at(number) for number in range(3)]
    records += [replace(good, measure="others", offset=3), replace(good, source=other, offset=4)]
    records += [replace(good, timestamp_type=1, offset=5), replace(good, dataset="d", offset=6)]
    sample = Sample(spec, TOPIC, Partitioning(1, "murmur2"))
    sample.add(0, records)
    found = [line.partition(": ")[2].partition(":")[0] for line in sample.lines()]
    assert found == [
        f"refused, {reason}" for reason in ("unknown-measure", "not-counts", "broker-time", "undeclared")
    ]
