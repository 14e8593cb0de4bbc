"""Records of counts: what a worker's decoder makes of them, and that nothing but values depends on values."""

from __future__ import annotations

import numpy as np
import pytest

from stream_svt.kafka.partitioning import Partitioning
from stream_svt.protocol.records import OneRecord
from stream_svt.queries.codec import QueryDecoder, concatenate
from stream_svt.queries.counts import LIST_HEADER, MAX_BYTES, MAX_ROWS, MEASURE_HEADER, SOURCE_HEADER
from stream_svt.queries.dataset_index import DatasetIndex
from stream_svt.settings.questions import HIGHEST
from stream_svt.settings.sources import SourceSpec
from stream_svt.sources.counts import CountsRecord, records_of

HOUR_MS = 3_600_000
WINDOW = 20_000 * 24 * HOUR_MS
TICK = WINDOW + HOUR_MS + 60_000


def source_of(**changes: object) -> SourceSpec:
    fields = {
        "name": "requests",
        "topic": "web.requests",
        "unit": "user",
        "series": {"field": "page", "names": ["/", "/a", "/b"]},
        "dataset": {"pattern": "web-{name}-{date}", "field": "ward", "names": ["x", "y"]},
        "window": "1h",
        "measures": [{"name": "visitors"}, {"name": "visits", "of": {"events": {"at_most": 3}}}],
    }
    return SourceSpec.model_validate({key: one for key, one in (fields | changes).items() if one is not None})


def written(source: SourceSpec, values: object) -> list[CountsRecord]:
    listed = source.window_list()
    return [*records_of(source, listed, WINDOW, TICK, np.broadcast_to(values, listed.cells).astype(np.int64))]


def decoded(source: SourceSpec, records: list[CountsRecord]):
    names = sorted({one.dataset for one in records})
    index = DatasetIndex(names, partition=0, partitioning=Partitioning(1, "murmur2"))
    decoder = QueryDecoder("web.requests.counts", index, [], source=source)
    left = [
        OneRecord(offset, one.timestamp_ms, one.dataset.encode(), one.content, one.headers)
        for offset, one in enumerate(records)
    ]
    parts = []
    while left:
        parts.append(decoder.decode(left))
        left = left[parts[-1].end - left[0].offset :]
    batch = concatenate(parts)
    assert not batch.rejects
    return batch


def test_a_worker_reads_each_cell_in_declared_order_and_the_last_row_closes_the_set():
    source = source_of()
    records = written(source, np.arange(12))
    assert [one.dataset for one in records] == ["web-x-2024-10-04"] * 2 + ["web-y-2024-10-04"] * 2
    batch = decoded(source, records)
    closing = [*batch.markers]
    rows = [row for row in range(len(batch)) if row not in batch.markers]
    assert batch.whole[rows].tolist() == [*range(12)]
    assert [batch.series[row] for row in rows] == ["/", "/a", "/b"] * 4
    assert {batch.query_id[row] for row in rows} == {"2024-10-04T00:00:00Z/2024-10-04T01:01:00Z"}
    assert set(batch.timestamp_ms.tolist()) == {TICK}
    assert closing == [3, 7, 11, 15]
    sets = ["2024-10-04T00:00:00Z/visitors", "2024-10-04T00:00:00Z/visits"]
    assert [batch.markers[row] for row in closing] == sets * 2
    assert batch.set_id == [one for one in sets * 2 for _ in range(4)]


def test_ticks_have_no_sets_and_a_source_without_series_has_no_series():
    source = source_of(ask="tick", series=None, dataset="web-{date}")
    batch = decoded(source, written(source, [5, 6]))
    assert batch.whole.tolist() == [5, 6]
    assert not len(batch.series)
    assert not batch.markers
    assert batch.set_id is None


def test_headers_say_source_measure_and_list():
    source = source_of()
    one = written(source, 0)[1]
    assert [name for name, _ in one.headers] == ["content-type", SOURCE_HEADER, MEASURE_HEADER, LIST_HEADER]
    headers = dict(one.headers)
    assert headers[SOURCE_HEADER].decode() == source.digest
    assert headers[MEASURE_HEADER] == b"visits"
    assert headers[LIST_HEADER].decode() == source.window_list().digest


def test_only_the_values_depend_on_values():
    source = source_of()
    low, high = (written(source, values) for values in (0, HIGHEST))
    for one, other in zip(low, high, strict=True):
        assert len(one.content) == len(other.content)
        assert (one.dataset, one.headers, one.timestamp_ms) == (
            other.dataset,
            other.headers,
            other.timestamp_ms,
        )
    first, second = decoded(source, low), decoded(source, high)
    for name in ("query_id", "series"):
        texts, others = getattr(first, name), getattr(second, name)
        assert [texts[row] for row in range(len(first))] == [others[row] for row in range(len(first))]
    assert first.markers == second.markers


def test_a_count_is_at_most_the_monitors_bound():
    source = source_of(series=None, measures=[{"name": "visitors"}], ask="tick", dataset="web")
    assert decoded(source, written(source, HIGHEST + 5)).whole.tolist() == [HIGHEST]


@pytest.mark.parametrize("ask", ["close", "tick"])
@pytest.mark.parametrize(
    "names",
    [
        [f"/{number}" for number in range(MAX_ROWS - 1)],
        [f"/{number}" for number in range(MAX_ROWS)],
        [f"/{number}" for number in range(2 * MAX_ROWS + 1)],
        [f"{number}{'é' * 200}" for number in range(5_000)],
        [f"{number}{'x' * 250}" for number in range(4_000)],
    ],
    ids=["one short of full", "full", "several", "long names", "longest names"],
)
def test_a_long_list_is_cut_into_records_that_a_broker_takes(names: list[str], ask: str):
    series = {"field": "page", "names": names}
    source = source_of(series=series, measures=[{"name": "visitors"}], dataset="web", ask=ask)
    records = written(source, np.arange(len(names)))
    assert all(len(one.content) <= MAX_BYTES for one in records)
    batch = decoded(source, records)
    rows = [row for row in range(len(batch)) if row not in batch.markers]
    assert [batch.series[row] for row in rows] == names
    assert batch.whole[rows].tolist() == [*range(len(names))]
    assert [*batch.markers] == ([len(names)] if ask == "close" else [])
    counts = np.bincount(batch.offset)
    assert counts.max() <= MAX_ROWS
    assert len(counts) == len(records)
