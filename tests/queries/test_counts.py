"""Topics of counts: whose records are read, for which monitors, and that their length tells nothing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stream_svt.columns.query_batch import OF_DECILES, QueryBatch
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.protocol.records import LOG_APPEND_TIME, OneRecord, Records
from stream_svt.queries import codec
from stream_svt.queries.codec import QueryDecoder
from stream_svt.queries.counts import MEASURE_HEADER, SOURCE_HEADER, query_id, set_id
from stream_svt.queries.dataset_index import DatasetIndex
from stream_svt.queries.reasons import Reason
from stream_svt.settings.application import load_spec
from stream_svt.settings.sources import SourceSpec
from stream_svt.sources.counts import record_of_deciles, records_of, records_of_answers
from tests.support.counts import HOUR_MS, PAGES, SOURCE, TOPIC, VISITORS, WINDOW_MS, Counts, counting, hours
from tests.support.deciles import ONE, PARTS
from tests.support.sources import ANSWERS

(REQUESTS,) = counting(VISITORS).sources
INDEX = DatasetIndex(["a", "b", "c"], partition=0, partitioning=Partitioning(1, "murmur2"))
GOOD = Counts(REQUESTS, "errors", "a", [1, 2, 3])


def decode(records: Sequence[Any], source: SourceSpec = REQUESTS) -> QueryBatch:
    return QueryDecoder(TOPIC, INDEX, ["m0", "m1"], source=source).decode(records)


def of_measures(batch: QueryBatch) -> list[str | None]:
    """Return the measure of each row."""
    return [batch.measure_at(row) for row in range(len(batch))]


def test_each_row_is_for_the_monitors_of_its_records_measure():
    records = [*hours(REQUESTS, [[5]] * 3)]
    batch = decode(records)
    rows = len(PAGES) + 1  # with the one that closes the set
    assert of_measures(batch) == ["visitors"] * rows + ["errors"] * rows + ["visitors"] * rows
    assert (batch.offset.tolist(), batch.row.tolist()) == (
        [0] * rows + [1] * rows + [2] * rows,
        [*range(rows)] * 3,
    )
    assert batch.dataset.tolist() == [0] * 2 * rows + [1] * rows
    assert {*batch.timestamp_ms.tolist()} == {WINDOW_MS + HOUR_MS + 60_000}
    assert [*batch.series][: rows - 1] == [*PAGES]
    assert batch.query_id[3] == query_id(WINDOW_MS, WINDOW_MS + HOUR_MS + 60_000)
    assert batch.markers == {
        rows * n + rows - 1: set_id(WINDOW_MS, name)
        for n, name in enumerate(["visitors", "errors", "visitors"])
    }
    starts = [0, rows, 2 * rows]
    assert [batch.of_one_measure(start, 3 * rows) for start in starts] == [rows, 2 * rows, 3 * rows]
    assert batch.of_one_measure(3, 5) == 5


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({SOURCE_HEADER: b"0123456789abcdef"}, Reason.NOT_COUNTS),
        ({SOURCE_HEADER: None}, Reason.NOT_COUNTS),
        ({"content-type": b"application/json"}, Reason.NOT_COUNTS),
        ({"content-type": None}, Reason.NOT_COUNTS),
        ({MEASURE_HEADER: b"error"}, Reason.UNKNOWN_MEASURE),
        ({MEASURE_HEADER: b"\xff"}, Reason.UNKNOWN_MEASURE),
        ({MEASURE_HEADER: None}, Reason.UNKNOWN_MEASURE),
        ({}, Reason.BROKER_TIME),
    ],
)
def test_another_sources_record_and_one_at_a_brokers_time_are_refused_and_disturb_no_neighbour(
    changed, reason
):
    headers = [(name, changed.get(name, value)) for name, value in GOOD.headers]
    record = OneRecord(7, GOOD.tick, GOOD.key, GOOD.value, [pair for pair in headers if pair[1] is not None])
    if reason is Reason.BROKER_TIME:
        record = replace(GOOD, offset=7, timestamp_type=LOG_APPEND_TIME)
    for records in ([record], Records.of([record])):
        batch = decode(records)
        assert (len(batch), batch.rejects, batch.end) == (0, [(7, reason)], 8)
    batch = decode([GOOD.at(6), record, GOOD.at(8)])
    assert (batch.rejects, {*batch.offset.tolist()}) == ([(7, reason)], {6, 8})
    assert {*of_measures(batch)} == {"errors"}


def asking(**changes: Any) -> OneRecord:
    """Return a request for deciles, with other headers, values or time type."""
    request, values = changes.pop("request", ONE), changes.pop("values", [*range(9)])
    made = record_of_deciles(REQUESTS, "a", request, [one * PARTS for one in values], GOOD.tick)
    headers = [(name, changes.get(name, value)) for name, value in made.headers]
    return OneRecord(7, GOOD.tick, b"a", made.content, headers)


def test_a_request_for_deciles_is_for_no_monitors_queries():
    batch = decode([GOOD.at(6), asking(), GOOD.at(8)])
    rows = len(GOOD.values) + 1  # with the one that closes the set
    assert batch.requests == {rows: ONE}
    assert of_measures(batch) == ["errors"] * rows + [OF_DECILES] * 9 + ["errors"] * rows
    assert batch.whole[rows : rows + 9].tolist() == [*range(9)]
    ends = [rows, rows + 9, 2 * rows + 9]
    assert [batch.of_one_measure(start, ends[2]) for start in (0, *ends[:2])] == ends


@pytest.mark.parametrize("values", [[], [0] * 8, [0] * 10])
def test_a_request_with_another_number_of_values_is_not_heard(values):
    batch = decode([asking(values=values)])
    assert (batch.requests, batch.end) == ({}, 8)


@pytest.mark.parametrize(
    "header",
    [b"", b"{}", b"[]", b"\xff", b'{"id":"","monitor":"m0","epsilon":1,"from_ms":1,"until_ms":2,"values":1}']
    + [
        b'{"id":"a","monitor":"m0","epsilon":%s,"from_ms":1,"until_ms":2,"values":1}' % number
        for number in (b"0", b"-1", b"0.5", b"1e400", b"99999999999999999999", b"null")
    ],
)
def test_a_malformed_request_is_refused(header):
    batch = decode([asking(deciles=header)])
    assert (len(batch), batch.rejects, batch.requests) == (0, [(7, Reason.NOT_COUNTS)], {})


def test_the_digest_is_of_what_never_changes_so_that_new_names_are_read_at_once():
    (later,) = counting(VISITORS, source=SOURCE.replace("s6]", "s6, s7]")).sources
    (other,) = counting(VISITORS, source=SOURCE.replace("window: 1h", "window: 2h")).sources
    assert decode([GOOD], later).rejects == []
    assert decode([GOOD], other).rejects == [(0, Reason.NOT_COUNTS)]


def test_each_row_is_about_the_window_of_its_record():
    records = [*hours(REQUESTS, [[5]] * 7)]
    odd = replace(GOOD, window=WINDOW_MS + 5 * HOUR_MS, offset=40)
    batch = decode([*records, odd])
    rows = len(PAGES) + 1
    expected = [0] * 6 * rows + [HOUR_MS] * rows + [5 * HOUR_MS] * 4
    begins, ends = batch.nominal_ms
    assert (begins - WINDOW_MS).tolist() == expected
    assert {*(ends - begins).tolist()} == {HOUR_MS}


def test_an_answer_is_about_the_tick_that_ends_at_its_timestamp():
    """Also where its own id looks like a window."""
    (source,) = load_spec(ANSWERS).sources
    tick, index = (
        WINDOW_MS + 60_000,
        DatasetIndex(["a"], partition=0, partitioning=Partitioning(1, "murmur2")),
    )
    answers = [(query_id(0, 60_000), "s0", 5), ("q", "s1", 5)]
    records = [
        OneRecord(0, one.timestamp_ms, b"a", one.content, one.headers)
        for one in records_of_answers(source, "a", answers, tick)
    ]
    batch = QueryDecoder(TOPIC, index, ["m0"], source=source).decode(records)
    begins, ends = batch.nominal_ms
    assert (begins.tolist(), ends.tolist()) == ([tick - 10_000] * 2, [tick] * 2)


def test_a_batch_is_short_because_each_step_through_a_measure_looks_at_it(monkeypatch):
    monkeypatch.setattr(codec, "COUNTS_AT_ONCE", 10)
    records = Records.of(hours(REQUESTS, [[5]] * 5))
    ends, measures = [], []
    while records:
        batch = decode(records)
        ends.append(batch.end)
        measures += of_measures(batch)
        records = records[int(np.searchsorted(records.offset, batch.end)) :]
    assert ends == [2, 4, 5]
    assert [name for name, _ in itertools.groupby(measures)] == ["visitors", "errors"] * 2 + ["visitors"]


def test_ids_and_sets_of_a_source_have_one_length_and_name_each_query_of_a_dataset_and_measure_once():
    minutes = range(-60_000 * 60 * 24, 60_000 * 60 * 24 * 400, 3_599_000)
    ids = [query_id(WINDOW_MS + at, WINDOW_MS + at + 7_000) for at in minutes]
    sets = [set_id(WINDOW_MS + at, "errors") for at in minutes]
    assert {*map(len, ids)} == {41}
    assert {*map(len, sets)} == {27}
    assert len({*ids}) == len({*sets}) == len(ids)
    assert query_id(WINDOW_MS, WINDOW_MS + 1000) != query_id(WINDOW_MS, WINDOW_MS + 2000)
    assert query_id(0, 3_661_000) == "1970-01-01T00:00:00Z/1970-01-01T01:01:01Z"


@pytest.mark.parametrize("form", [SOURCE, SOURCE.replace("window", "ask: tick, window")])
def test_what_a_counter_writes_is_read_as_the_same_records_written_by_hand(form):
    (source,) = counting(VISITORS, source=form).sources
    values = np.arange(source.window_list().cells)
    tick = WINDOW_MS + HOUR_MS
    written = [*records_of(source, source.window_list(), WINDOW_MS, tick, values)]
    by_counter = [
        OneRecord(at, one.timestamp_ms, one.dataset.encode(), one.content, one.headers)
        for at, one in enumerate(written)
    ]
    keys = [(one.dataset, dict(one.headers)[MEASURE_HEADER].decode()) for one in written]
    by_hand = [
        Counts(source, measure, name, part.tolist(), tick=tick, offset=at)
        for at, ((name, measure), part) in enumerate(zip(keys, values.reshape(len(keys), -1), strict=True))
    ]
    assert [one.headers for one in by_hand] == [tuple(one.headers) for one in by_counter]
    found, expected = decode(by_counter, source), decode(by_hand, source)
    assert (found.rejects, found.markers, found.set_id) == ([], expected.markers, expected.set_id)
    assert (of_measures(found), found.whole.tolist()) == (of_measures(expected), expected.whole.tolist())
    rows = [row for row in range(len(found)) if row not in found.markers]
    for texts in ("series", "query_id"):
        assert [getattr(found, texts)[row] for row in rows] == [getattr(expected, texts)[row] for row in rows]
