"""However a stream is cut into batches, commits and crashes, the same alerts come out, at the same price."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stream_svt.monitor.released import EventType
from tests.support.engine_play import Query
from tests.support.monitor_forms import (
    FORMS,
    assert_books_balance,
    assert_same,
    counts,
    interrupted,
    spec_of,
    standing,
    stream,
    transcript,
    uninterrupted,
)

_SEEDS = 12


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_any_batching_and_any_crashes_release_the_same(form):
    spec = spec_of(FORMS[form])
    queries = stream(7, 1200, monitors=["m0", "other"])
    expected = uninterrupted(spec, queries)
    assert any(event.type is EventType.ALERT for event in expected.events)
    for seed in range(_SEEDS):
        rng = random.Random(seed)
        play = interrupted(spec, queries, rng.randrange)
        assert_same(play, expected)


@pytest.mark.parametrize(
    "forms",
    [("plain", "adaptive"), ("sweep", "retry", "muted for the run"), ("resampled", "sweep by clock", "fine")],
    ids=" and ".join,
)
def test_monitors_that_share_a_topic_replay_each_from_its_own_place(forms):
    limit = "{names: [a, b, c], limit: 1000, unit: one basket}"
    spec = spec_of(*(FORMS[form] for form in forms), datasets=limit)
    queries = stream(11, 900, monitors=["m0", "m1", "m2"])
    expected = uninterrupted(spec, queries)
    for seed in range(_SEEDS):
        rng = random.Random(seed)
        play = interrupted(spec, queries, rng.randrange)
        assert {k: v for k, v in transcript(play).items() if k[1]} == {
            k: v for k, v in transcript(expected).items() if k[1]
        }, seed
        assert counts(play) == counts(expected), seed
        assert standing(play) == standing(expected), seed
        assert_books_balance(play)


_QUERY = st.builds(
    Query,
    dataset=st.integers(0, 1),
    value=st.sampled_from([0, 480, 510, 530, 560, 700, None]),
    series=st.sampled_from([None, "x", "y", "z"]),
    set_id=st.sampled_from([None, "one", "two"]),
    time_ms=st.integers(0, 20_000),
)
_MARKER = st.builds(
    Query,
    dataset=st.integers(0, 1),
    value=st.none(),
    set_id=st.sampled_from(["one", "two"]),
    closes=st.just(value=True),
    time_ms=st.integers(0, 20_000),
)


@given(
    form=st.sampled_from(sorted(FORMS)),
    queries=st.lists(st.one_of(_QUERY, _QUERY, _QUERY, _MARKER), min_size=1, max_size=60),
    data=st.data(),
)
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
def test_small_streams_replay_from_every_place(form, queries, data):
    spec = spec_of(FORMS[form], datasets="{names: [a, b], limit: 5, unit: one basket}")
    expected = uninterrupted(spec, queries)
    play = interrupted(spec, queries, lambda below: data.draw(st.integers(0, max(0, below - 1))))
    assert_same(play, expected)
