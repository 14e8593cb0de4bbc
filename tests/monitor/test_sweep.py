"""Sweeps of finite sets: when they begin and end, and the effect of their caps."""

from __future__ import annotations

import pytest

from stream_svt.mechanisms.sparse_vector import SparseVector
from stream_svt.monitor.testing.sweep import SweepAppend
from tests.support.engine_play import Play, Query, exhaust
from tests.support.monitor_forms import TOPIC, assert_books_balance, counts, spec_of

_FORM = (
    "topic: t, epsilon: 400, cutoff: 40, sensitivity: 1, monotonic: true, bounds: [0, 100000], threshold: 500, "
    "correction: {table: [40, 30, 20, 10, 0]}, mute: none"
)
_LIMIT = "{names: [a, b], limit: 4000, unit: one basket}"


def _play(append: str = "sweep", *more: str, form: str = _FORM) -> Play:
    return Play(spec_of(f"{form}, append: {append}", *more, datasets=_LIMIT))


def _alerts(play: Play, monitor: str = "m0") -> list[tuple[str, int]]:
    return [(alert.query_id, alert.attempt) for alert in play.alerts(monitor)]


def _close(set_id: str = "set", dataset: int = 0, **fields) -> Query:
    return Query(dataset, None, None, set_id, closes=True, **fields)


def test_the_first_test_meets_the_highest_bar_and_each_pass_a_lower_one():
    """Noise is below one step here, so that values decide: the bar falls 540, 530, 520, 510, 500."""
    play = _play()
    play.play(TOPIC, [Query(0, value, f"s{value}", "set") for value in (497, 503, 514, 526, 545)])
    assert _alerts(play) == [("q4", 1)]
    play.more(_close())
    assert _alerts(play) == [("q4", 1), ("q3", 3), ("q2", 4), ("q1", 5)]
    assert play.runs().queued(0) == 0


def test_a_sweep_ends_with_the_tops_allowed_for_the_set():
    play = _play("{sweep: {alerts_per_set: 3}}")
    play.play(
        TOPIC, [*[Query(0, 535, f"s{k}", "set") for k in range(6)], Query(0, 600, "x", "set"), _close()]
    )
    assert _alerts(play) == [("q6", 1), ("q0", 2), ("q1", 2)]


def test_tops_on_arrival_count_for_the_set_and_are_never_held_back():
    play = _play("{sweep: {alerts_per_set: 2}}")
    play.play(
        TOPIC, [*[Query(0, 900, f"s{k}", "set") for k in range(5)], Query(0, 535, "x", "set"), _close()]
    )
    assert [attempt for _, attempt in _alerts(play)] == [1] * 5


def test_a_set_is_removed_after_it_has_closed_and_its_name_may_be_used_again():
    play = _play()
    play.play(TOPIC, [Query(0, 0, "x", "set"), _close(), Query(0, 505, "y", "set")])
    assert play.runs().queued(0) == 1
    play.crash()
    play.more(_close(), _close(), _close("unknown"))
    assert _alerts(play) == [("q2", 5)]
    for _ in range(2):
        assert not play.runs().queues[0].entries
        play.crash()


def test_a_set_belongs_to_one_dataset():
    play = _play()
    play.play(TOPIC, [Query(0, 505, "x", "set"), Query(1, 505, "x", "set"), _close(dataset=1)])
    assert _alerts(play) == [("q1", 5)]
    assert [play.runs().queued(number) for number in range(2)] == [1, 0]


def test_a_marker_for_another_monitor_closes_nothing():
    play = _play("sweep", f"{_FORM}, append: sweep")
    play.play(TOPIC, [Query(0, 505, "x", "set"), _close(monitor="m1")])
    assert (_alerts(play), _alerts(play, "m1")) == ([], [("q0", 5)])


def test_a_marker_is_no_query_and_counts_as_none():
    play = _play("sweep", _FORM.replace("mute: none", "mute: none, on_halt: stop"))
    play.play(TOPIC, [_close(), Query(0, 0, "x", "set"), _close(), _close()])
    tested, skipped = counts(play)
    assert tested == {"m0": 1, "m1": 1}
    assert not skipped
    assert play.run_state().runs == 1


def test_queries_of_a_set_beyond_the_cap_are_tested_on_arrival_only_and_counted():
    play = _play("{sweep: {max_open_sets: 2}}")
    queries = [Query(0, 505, f"s{k}", f"set{k}") for k in range(4)]
    play.play(TOPIC, [*queries, Query(0, 900, "x", "set3"), *[_close(f"set{k}") for k in range(4)]])
    assert _alerts(play) == [("q4", 1), ("q0", 5), ("q1", 5)]
    assert counts(play)[1] == {("m0", "set-overflow"): 2}
    assert counts(play)[0] == {"m0": 5}


def test_a_set_remembers_its_first_queries_up_to_the_cap():
    play = _play("{sweep: {max_set_size: 3}}")
    play.play(TOPIC, [*[Query(0, 505, f"s{k}", "set") for k in range(5)], _close()])
    assert _alerts(play) == [("q0", 5), ("q1", 5), ("q2", 5)]
    assert counts(play)[1] == {("m0", "set-overflow"): 2}


def test_a_query_without_a_set_is_tested_once():
    play = _play()
    play.play(TOPIC, [Query(0, 505), Query(0, 505, "x"), _close()])
    assert not _alerts(play)
    assert play.runs().queued(0) == 0


@pytest.mark.parametrize("batches", [[9], [1] * 9, [4, 5], [7, 2]])
def test_the_clock_closes_sets_at_the_same_query_whatever_the_batches(batches):
    play = _play("{sweep: {close_after: 10s}}")
    times = [0, 5_000, 9_999, 10_000, 10_001, 12_000, 19_999, 20_001, 40_000]
    sets = ["one", "one", "one", "one", "two", "two", "two", None, None]
    queries = [
        Query(0, 505, f"s{k}", name, time_ms=at) for k, (name, at) in enumerate(zip(sets, times, strict=True))
    ]
    last = 0
    for size in batches:
        last += size
        play.feed(TOPIC, queries, last)
        play.commit()
    # "one" opens at 0 and closes before the query at 10 000, which opens it again until 20 000
    assert _alerts(play) == [(f"q{k}", 5) for k in range(7)]
    closed = [alert.position.offset for alert in play.alerts()]
    assert closed == list(range(7))


def test_series_muted_since_their_test_are_left_out_of_the_sweep():
    play = _play(form=_FORM.replace("mute: none", "mute: period"))
    play.play(
        TOPIC, [Query(0, 535, "x", "set"), Query(0, 900, "x", "set"), Query(0, 535, "y", "set"), _close()]
    )
    assert _alerts(play) == [("q1", 1), ("q2", 2)]


def test_a_sweep_mutes_a_series_and_then_skips_its_other_queries():
    play = _play(form=_FORM.replace("mute: none", "mute: period"))
    play.play(TOPIC, [Query(0, 535, "x", "set"), Query(0, 536, "x", "set"), _close()])
    assert _alerts(play) == [("q0", 2)]


def test_a_sweep_stops_when_the_run_ends_and_the_books_balance():
    form = _FORM.replace("epsilon: 400, cutoff: 40", "epsilon: 40, cutoff: 3")
    play = _play("{sweep: {alerts_per_set: 10}}", form=form)
    play.play(TOPIC, [*[Query(0, 536, f"s{k}", "set") for k in range(8)], _close(), Query(0, 0)])
    assert len(_alerts(play)) == 3
    assert play.run_state().run == 2
    assert_books_balance(play)


def test_a_sweep_waits_for_durable_noise_where_the_run_ended_before_the_set_closed():
    form = _FORM.replace("epsilon: 400, cutoff: 40", "epsilon: 40, cutoff: 1")
    play = _play(form=form)
    play.play(TOPIC, [Query(0, 535, "x", "set"), Query(0, 900, "y", "set")])
    assert play.run_state().run == 1
    barriers = play.barriers
    play.more(_close())
    assert play.barriers == barriers + 1
    assert _alerts(play) == [("q1", 1), ("q0", 2)]
    assert play.run_state().run == 2


def test_an_exhausted_monitor_closes_its_sets_without_a_test(monkeypatch):
    play = _play()
    play.play(TOPIC, [Query(0, 535, "x", "set")])
    exhaust(play.engine)
    play.commit()
    monkeypatch.setattr(SparseVector, "reached", None)
    play.play(TOPIC, [Query(0, 0), _close(), Query(0, 900, "x", "set")])
    assert play.runs().queued(0) == 0


def test_interleaved_sets_and_datasets_share_records_and_cost_little_time(monkeypatch):
    """Rows of 64 sets in turn: each set is one block, and the batch is put on the grid once."""
    from stream_svt.columns.query_batch import Grid

    calls = []
    values = Grid.values
    monkeypatch.setattr(Grid, "values", lambda *args: calls.append(args) or values(*args))
    play = _play("{sweep: {max_open_sets: 64}}")
    play.play(TOPIC, [Query(k % 2, 0, f"s{k}", f"set{k % 64}") for k in range(20_000)])
    assert len(calls) <= 4
    assert play.runs().queued(0) == 10_000
    assert len([key for key in play.records if key.startswith(b"w/")]) <= 13


def test_the_time_per_marker_does_not_depend_on_the_batch(monkeypatch):
    play = _play("{sweep: {max_open_sets: 5000, close_after: 1h}}")
    sizes = []
    oldest = SweepAppend._oldest
    monkeypatch.setattr(SweepAppend, "_oldest", lambda self: sizes.append(len(self.opened)) or oldest(self))
    queries = [Query(0, 0, f"s{k}", f"set{k}") for k in range(2000)] + [
        _close(f"set{k}") for k in range(2000)
    ]
    play.play(TOPIC, queries)
    assert play.runs().queued(0) == 0
    assert len(sizes) < 3 * 2000 + 100
