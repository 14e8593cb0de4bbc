"""What the screen learns from the service's status."""

from __future__ import annotations

import pytest

from stream_svt.demo.released_zone import looked_at


def status(*offsets: int) -> dict:
    return {"shards": [{"offsets": {"demo.counts": offset, "demo.control": 7}} for offset in offsets]}


@pytest.mark.parametrize(
    ("offsets", "queries"),
    [((), 0), ((0, 0), 0), ((100, 5), 105), ((16_471,), 16_470), ((16_471, 2 * 16_471), 3 * 16_470)],
)
def test_queries_are_counted_without_the_markers_that_close_sets(offsets, queries):
    assert looked_at(status(*offsets), "demo.counts") == queries


def test_a_shard_that_has_read_nothing_yet_counts_as_nothing():
    assert looked_at({"shards": [{"offsets": {}}]}, "demo.counts") == 0
