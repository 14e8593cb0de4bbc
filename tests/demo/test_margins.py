"""The demo shows what it promises for any noise: its settings leave margins.

The real engine runs on the demo's own configurations, with different noise each time. Left out are items that never
come within 270 of the threshold of queries, at a noise scale of at most 20, or 100 of that of windows, at one of at
most 10: one in 1,000 demos alerts them. The smallest figures of 5,000 demos with queries, simulated by other code,
were: precision 0.93 (append) and 0.97 (adaptive), 9 and 4 halts, 7 and 3 resamples, 60 alerts at a later attempt, one
dataset exhausted. Those of 60 demos with raw events, by the code here: precision 0.98 and 1, recall 0.69 and 0.6, 7 and
1 halts, 5 and 1 resamples, 9 alerts at a later attempt, one monitor exhausted.
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
    EVENTS,
    LIMITS,
    QUERIES,
    SERIES,
    Baskets,
    DemoInput,
    windows,
)
from stream_svt.monitor.released import decode, encode
from tests.support.engine_play import Play, Query, batch_of

WEEKS = [*LIMITS]


def near_queries(stream: list, distance: int, form: DemoInput) -> tuple[list[Query], list[str]]:
    """Return the queries about items near the threshold, and their ids; windows ask all weeks."""
    near = np.flatnonzero(
        np.max([counts for _, counts in stream], axis=0) >= form.threshold - distance
    ).tolist()
    sent, ids = [], []
    for point, counts in stream:
        own = WEEKS.index(point.dataset)
        for week in [own] if form is QUERIES else range(len(WEEKS)):
            for item in near:
                value = int(counts[item]) if week == own else 0
                sent.append(Query(week, value, series=SERIES % (item + 1), set_id=point.set_id))
                ids.append(f"{point.set_id}/{item + 1}")
            sent.append(Query(week, None, set_id=point.set_id, closes=True))
            ids.append("")
    return sent, ids


def played(
    config: Config, form: DemoInput, stream: Iterable, sent: list[Query], ids: list[str], seed: int
) -> Board:
    """Return the board after a demo with the noise of a seed."""
    play = Play(config.spec, entropy=random.Random(seed).randbytes)
    board = Board(form)
    for point, counts in stream:
        board.add_counts(point, counts)
    (topic,) = play.engine.topics()
    batch = batch_of(topic, sent, 0, len(sent))
    if form is EVENTS:
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
def test_every_promise_is_kept_with_a_margin(stream, near, parsed, seed):
    board = played(parsed, QUERIES, stream, *near, seed)
    for name, halts in ((APPEND, 5), (ADAPTIVE, 2)):
        figures = board.figures(name)
        assert figures["precision*"] >= 0.88
        assert figures["recall*"] >= 0.5
        assert figures["halts"] >= halts
        assert figures["resamples"] >= halts
    assert board.figures(APPEND)["retried"] >= 20
    assert "retail-week-2" in board.exhausted()


@pytest.fixture(scope="module")
def near(stream) -> tuple[list[Query], list[str]]:
    return near_queries(stream, 270, QUERIES)


@pytest.mark.parametrize("seed", range(3))
def test_with_raw_events_every_promise_is_kept_with_a_margin(baskets: Baskets, counted, seed):
    stream = [*windows(baskets, 0)]
    board = played(counted, EVENTS, stream, *near_queries(stream, 100, EVENTS), seed)
    append, adaptive = map(board.figures, (APPEND, ADAPTIVE))
    assert min(append["precision*"], adaptive["precision*"]) >= 0.88
    assert append["recall*"] >= 0.55
    assert adaptive["recall*"] >= 0.45
    assert append["halts"] >= 4
    assert append["resamples"] >= 3
    assert append["retried"] >= 3
    assert "exhausted" in {status.shown for status in board.of_dataset("retail-week-2").values()}
