"""The demo shows what it promises whatever the noise: its settings leave margins.

The real engine runs on the demo's own configuration, again and again with other noise. Items that never
come within 270 of the threshold are left out: at a noise scale of at most 20 their alerts are a matter of
one in 10^5 demos. Over 5,000 demos simulated by other code the least were: precision 0.93 (append) and 0.97
(adaptive), 9 and 4 halts, 7 and 3 resamples, 60 alerts at a later attempt, one dataset exhausted.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from msgspec import structs

from stream_svt.demo.board import Board, Truth, truth_of
from stream_svt.demo.scenario import ADAPTIVE, APPEND, SERIES, THRESHOLD, Setting
from stream_svt.monitor.released import decode, encode
from tests.support.engine_play import Play, Query

NEAR = THRESHOLD - 270


@pytest.fixture(scope="module")
def queries(stream, clock) -> tuple[list[Query], list[str]]:
    """Every query about an item that matters, and their ids."""
    near = np.flatnonzero(np.max([counts for _, counts in stream], axis=0) >= NEAR).tolist()
    asked, ids = [], []
    for point, counts in stream:
        week = clock.weeks().index(point.dataset)
        for item in near:
            asked.append(Query(week, int(counts[item]), series=SERIES % (item + 1), set_id=point.set_id))
            ids.append(f"{point.set_id}/{item + 1}")
        asked.append(Query(week, None, set_id=point.set_id, closes=True))
        ids.append("")
    return asked, ids


@pytest.fixture(scope="module")
def truth(baskets, clock) -> Truth:
    return truth_of(baskets, clock, THRESHOLD)


@pytest.mark.parametrize("seed", range(3))
def test_every_promise_is_kept_with_room_to_spare(clock, queries, parsed, truth, seed):
    asked, ids = queries
    play = Play(parsed.spec, entropy=random.Random(seed).randbytes)
    board = Board(dict.fromkeys(clock.weeks(), 4.0), truth)
    board.asked = [point.set_id for point in clock.checkpoints()]
    for event in play.play(Setting().topic("counts"), asked):
        record = encode(
            event, application="demo", shard=0, time="2026-01-01T00:00:00Z", origin="1-00000000000000aa"
        )
        envelope, data = decode(record)
        if event.type.endswith("alert.v1"):
            # A play calls the query at an offset "q" and the offset.
            data = structs.replace(data, query_id=ids[int(data.query_id[1:])])
        board.tell(envelope, data)
    summary = board.document()
    for name, halts in ((APPEND, 5), (ADAPTIVE, 2)):
        part = summary["monitors"][name]
        assert part["precision"] >= 0.88
        assert part["recall"] >= 0.5
        assert part["halts"] >= halts
        assert part["resamples"] >= halts
    assert summary["monitors"][APPEND]["alerts_at_later_attempts"] >= 20
    assert "retail-week-2" in summary["exhausted"]
    for books in summary["datasets"].values():
        assert books["spent"] <= books["limit"]
