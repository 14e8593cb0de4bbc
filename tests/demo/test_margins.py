"""The demo shows what it promises for any noise: its settings leave margins.

The real engine runs on the demo's own configuration, with different noise each time. Left out are items that never come
within 100 of the threshold, at a noise scale of at most 10: one in 1,000 demos alerts them. The smallest figures of 60
demos, by the code here: precision 0.98 (append) and 1 (adaptive), recall 0.69 and 0.6, 7 and 1 halts, 5 and 1
resamples, 9 alerts at a later attempt, one monitor exhausted.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
import pytest
from msgspec import structs

from stream_svt.application.config import Config
from stream_svt.demo.board import Board
from stream_svt.demo.scenario import (
    ADAPTIVE,
    APPEND,
    LIMITS,
    SERIES,
    THRESHOLD,
    Baskets,
    counts_of,
    windows,
)
from stream_svt.monitor.released import decode, encode
from tests.support.engine_play import Play, Query, batch_of

WEEKS = [*LIMITS]


def near_queries(stream: list) -> tuple[list[Query], list[str]]:
    """Return the queries about items near the threshold, and their ids; windows ask all weeks."""
    near = np.flatnonzero(np.max([counts for _, counts in stream], axis=0) >= THRESHOLD - 100).tolist()
    sent, ids = [], []
    for window, counts in stream:
        own = WEEKS.index(window.dataset)
        for week in range(len(WEEKS)):
            for item in near:
                value = int(counts[item]) if week == own else 0
                sent.append(Query(week, value, series=SERIES % (item + 1), set_id=window.set_id))
                ids.append(f"{window.set_id}/{item + 1}")
            sent.append(Query(week, None, set_id=window.set_id, closes=True))
            ids.append("")
    return sent, ids


def played(config: Config, stream: Iterable, sent: list[Query], ids: list[str], seed: int) -> Board:
    """Return the board after a demo with the noise of a seed."""
    play = Play(config.spec, entropy=random.Random(seed).randbytes)
    board = Board()
    for point, counts in stream:
        board.add_counts(point, counts)
    (topic,) = play.engine.topics()
    batch = batch_of(topic, sent, 0, len(sent))
    batch.measures, batch.measure = ("units",), np.zeros(len(sent), np.int64)
    play.step(batch)
    play.commit()
    for event in play.events:
        record = encode(
            event, application="demo", shard=0, time="2026-01-01T00:00:00Z", origin="1-00000000000000aa"
        )
        found = decode(record)
        if event.type.endswith("alert.v1"):
            # A play names the query at offset 7 "q7".
            data = structs.replace(found.data, query_id=ids[int(found.data.query_id[1:])])
            found = structs.replace(found, data=data)
        board.add(found)
    for budget in board.budgets.values():
        assert budget.spent <= budget.limit
    return board


@pytest.mark.parametrize("seed", range(3))
def test_every_promise_is_kept_with_a_margin(baskets: Baskets, counted, seed):
    stream = [(window, counts_of(baskets, window)) for window in windows(0)]
    board = played(counted, stream, *near_queries(stream), seed)
    append, adaptive = map(board.figures, (APPEND, ADAPTIVE))
    assert min(append["precision*"], adaptive["precision*"]) >= 0.88
    assert append["recall*"] >= 0.55
    assert adaptive["recall*"] >= 0.45
    assert append["halts"] >= 4
    assert append["resamples"] >= 3
    assert append["retried"] >= 3
    assert "exhausted" in {status.shown for status in board.of_dataset("retail-week-2").values()}
