"""Retry queues: entries, attempts, lifetimes and capacity, none of which reads a value."""

from __future__ import annotations

import pytest

from tests.support.engine_play import Play, Query
from tests.support.monitor_forms import TOPIC, assert_books_balance, counts, spec_of

_FORM = (
    "topic: t, epsilon: 400, cutoff: 40, sensitivity: 1, monotonic: true, bounds: [0, 100000], threshold: 500, "
    "correction: {table: [40, 30, 20, 10, 0]}, mute: none"
)


def _play(rules: str, form: str = _FORM) -> Play:
    spec = spec_of(
        f"{form}, append: {{retry: {{{rules}}}}}", datasets="{names: [a, b], limit: 4000, unit: u}"
    )
    return Play(spec)


def _alerts(play: Play) -> list[tuple[str, int]]:
    return [(alert.query_id, alert.attempt) for alert in play.alerts()]


def _waiting(play: Play, dataset: int = 0) -> list[tuple[str, int, int]]:
    queue = play.runs().queues[dataset]
    return [(entry.series, entry.offset, queue.attempt(entry)) for entry in queue.entries.values()]


def test_bottoms_are_tested_again_after_a_number_of_queries_of_their_dataset():
    play = _play("attempts: 5, every: 4")
    queries = [Query(0, 514, "x"), *[Query(k % 2, 0, f"n{k}") for k in range(30)]]
    play.play(TOPIC, queries)
    # rounds come with queries 4, 8 and 12 of the dataset; the bar falls below 514 at attempt 4
    assert _alerts(play) == [("q0", 4)]
    assert play.runs().queues[0].count == 16
    assert play.runs().queues[1].count == 15


def test_a_newer_query_replaces_the_value_keeps_order_and_attempts_and_gets_no_test():
    play = _play("attempts: 5, every: 3")
    play.play(TOPIC, [Query(0, 0, "x"), Query(0, 0, "y"), Query(0, 0, "z")])
    assert _waiting(play) == [("x", 0, 2), ("y", 1, 2), ("z", 2, 2)]
    tested = counts(play)[0]["m0"]
    play.more(Query(0, 10**5, "y"))
    assert _waiting(play) == [("x", 0, 2), ("y", 3, 2), ("z", 2, 2)]
    assert counts(play)[0]["m0"] == tested == 3
    assert not _alerts(play)
    play.more(Query(0, 0, "x"), Query(0, 0, "z"))
    assert _alerts(play) == [("q3", 3)]
    assert _waiting(play) == [("x", 4, 3), ("z", 5, 3)]


def test_an_entry_leaves_after_its_last_attempt():
    play = _play("attempts: 3, every: 1")
    play.play(TOPIC, [Query(0, 0, "x")])
    assert _waiting(play) == [("x", 0, 2)]
    play.more(Query(0, 0, "y"))
    assert _waiting(play) == [("y", 1, 2)]
    play.more(Query(0, 0, "x"))
    assert _waiting(play) == [("x", 2, 2)]


def test_a_lifetime_in_offsets_counts_from_when_the_series_entered():
    play = _play("attempts: 99, every: 1, lifetime: 3")
    queries = [
        Query(0, 0, "x"),
        Query(0, 0, "x"),
        *[Query(1, 0, "other")] * 2,
        Query(0, 0, "y"),
        Query(0, 0, "z"),
    ]
    play.play(TOPIC, queries[:2])
    assert _waiting(play) == [("x", 1, 3)]
    play.play(TOPIC, queries[:5])
    assert [name for name, _, _ in _waiting(play)] == ["y"]


@pytest.mark.parametrize(("last_ms", "kept"), [(2_000, True), (2_001, False)])
def test_a_lifetime_in_time_is_measured_on_the_brokers_clock(last_ms, kept):
    play = _play("attempts: 99, every: 1, lifetime: 2s")
    play.play(
        TOPIC,
        [Query(0, 0, "x", time_ms=0), Query(0, 0, "x", time_ms=1_500), Query(0, 0, "y", time_ms=last_ms)],
    )
    assert [name for name, _, _ in _waiting(play)] == (["x", "y"] if kept else ["y"])


def test_the_oldest_entry_makes_room_and_is_counted():
    play = _play("attempts: 5, capacity: 2, every: 1000")
    play.play(TOPIC, [Query(0, 0, name) for name in ("x", "y", "z", "x")])
    assert [name for name, _, _ in _waiting(play)] == ["z", "x"]
    assert _waiting(play)[1] == ("x", 3, 1)
    assert counts(play)[1] == {("m0", "retry-overflow"): 2}


def test_queries_without_a_series_have_entries_that_no_series_name_matches():
    play = _play("attempts: 5, every: 1000")
    names = [None, None, "\x000.0", "0.0", "\x00"]
    play.play(TOPIC, [Query(0, 0, name) for name in names])
    assert [name for name, _, _ in _waiting(play)] == names
    play.crash()
    assert [name for name, _, _ in _waiting(play)] == names


def test_a_muted_series_leaves_the_queue_and_does_not_enter_it():
    play = _play("attempts: 5, every: 2", _FORM.replace("mute: none", "mute: 5s"))
    play.play(
        TOPIC, [Query(0, 0, "x"), Query(0, 10**5, "y"), Query(0, 0, "y"), Query(0, 0, "y", time_ms=9_000)]
    )
    assert _alerts(play) == [("q1", 1)]
    assert [name for name, _, _ in _waiting(play)] == ["x", "y"]
    assert counts(play)[1] == {("m0", "muted"): 1}


def test_a_sweep_stops_where_the_run_ends_and_continues_in_the_next_run():
    form = _FORM.replace("epsilon: 400, cutoff: 40", "epsilon: 40, cutoff: 2")
    play = _play("attempts: 5, every: 5", form)
    play.play(TOPIC, [Query(0, 536 if k else 0, f"s{k}") for k in range(5)])
    assert _alerts(play) == [("q1", 2), ("q2", 2)]
    assert _waiting(play) == [("s0", 0, 2), ("s3", 3, 1), ("s4", 4, 1)]
    play.crash()
    play.more(*[Query(0, 0, f"n{k}") for k in range(5)])
    assert _alerts(play)[2:] == [("q3", 2), ("q4", 2)]
    assert _waiting(play)[:2] == [("s0", 0, 3), ("n0", 5, 1)]
    assert play.run_state().run == 2
    assert_books_balance(play)


def test_markers_and_queries_for_others_are_not_counted():
    play = _play("attempts: 5, every: 2")
    others = [Query(0, None, None, "set", closes=True), Query(0, 0, "x", monitor="other")]
    play.play(TOPIC, [Query(0, 0, "x"), *others, *others])
    assert play.runs().queues[0].count == 1
    assert _waiting(play) == [("x", 0, 1)]
