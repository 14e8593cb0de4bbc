"""Periods: a query counts for its own period only, by the broker's clock, and is refused once otherwise."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest

from stream_svt.monitor.released import EventType
from tests.support.engine_play import Play, Query
from tests.support.monitor_forms import FORMS, TOPIC, assert_books_balance, interrupted, of_monitors, spec_of

_MONDAY = int(datetime(2026, 1, 5, tzinfo=UTC).timestamp() * 1000)
_WEEK = 7 * 86_400_000
_HOUR = 3_600_000
_WEEKS = (
    '{generate: "retail-{iso_week}", from: 2026-01-05, until: 2026-02-02, lateness: 2h, limit: 2, unit: u}'
)


def _rejected(play: Play) -> list[tuple[str, int, str]]:
    return [reject for commit in play.commits for reject in commit.rejects]


def _outside(play: Play, monitor: str = "m0") -> int:
    return sum(commit.skipped.get((monitor, "outside-period"), 0) for commit in play.commits)


def test_each_week_is_a_dataset_with_a_budget_of_its_own():
    play = Play(spec_of(FORMS["plain"], datasets=_WEEKS))
    assert [dataset.name for dataset in play.engine.datasets] == [
        f"retail-2026-w{k:02d}" for k in (2, 3, 4, 5)
    ]
    queries = [Query(k // 5, 10**6, f"s{k}", time_ms=_MONDAY + k // 5 * _WEEK + k) for k in range(20)]
    play.play(TOPIC, queries)
    for number in range(4):
        assert play.ledger(number).spent > 0
        assert play.ledger(number).spent == play.ledger().spent
    assert not _rejected(play)
    assert_books_balance(play)


def test_a_monitor_that_stops_has_one_run_in_each_period_however_much_the_limit_could_pay():
    """So the price that `check` names for a monitor with `detect` is that of one run."""
    play = Play(spec_of(f"{FORMS['plain']}, on_halt: stop", datasets=_WEEKS.replace("limit: 2", "limit: 50")))
    cutoff = play.spec.monitors[0].cutoff
    queries = [Query(k // 99, 10**6, f"s{k}", time_ms=_MONDAY + k // 99 * _WEEK + k) for k in range(2 * 99)]
    play.play(TOPIC, queries)
    told = [(event.type, event.data.dataset) for event in play.events]
    for number in (2, 3):
        dataset = f"retail-2026-w{number:02d}"
        assert told.count((EventType.RUN_HALTED, dataset)) == 1
        assert told.count((EventType.ALERT, dataset)) == cutoff < 99


@pytest.mark.parametrize(
    ("time_ms", "counts"),
    [
        (_MONDAY - 1, False),
        (_MONDAY, True),
        (_MONDAY + _WEEK - 1, True),
        (_MONDAY + _WEEK, True),
        (_MONDAY + _WEEK + 2 * _HOUR - 1, True),
        (_MONDAY + _WEEK + 2 * _HOUR, False),
        (0, False),
    ],
)
def test_a_query_counts_from_its_periods_begin_to_its_end_and_lateness(time_ms, counts):
    play = Play(spec_of(FORMS["plain"], datasets=_WEEKS))
    play.play(TOPIC, [Query(0, 10**6, time_ms=time_ms)])
    assert any(event.type is EventType.ALERT for event in play.events) == counts
    assert _rejected(play) == ([] if counts else [(TOPIC, 0, "outside-period")])
    assert _outside(play) == (not counts)
    assert bool(play.engine.accounts.numbers()) == counts, "a query outside its period must not open books"


def test_the_clock_is_the_running_maximum_of_all_records():
    """A record whose own timestamp lies in the period is late once the clock has moved on."""
    play = Play(spec_of(FORMS["plain"], datasets=_WEEKS))
    late = Query(0, 10**6, "late", time_ms=_MONDAY + 5)
    play.play(TOPIC, [Query(1, 0, time_ms=_MONDAY + _WEEK + 3 * _HOUR), late])
    assert _rejected(play) == [(TOPIC, 1, "outside-period")]
    assert play.engine.runners["m0"].clock_ms == _MONDAY + _WEEK + 3 * _HOUR
    play.crash()
    play.play(TOPIC, [late, late, late])
    assert _rejected(play) == [(TOPIC, 1, "outside-period"), (TOPIC, 2, "outside-period")]


@pytest.mark.parametrize("form", ["plain", "sweep", "retry", "resampled"])
def test_late_and_early_records_are_refused_once_however_the_stream_is_cut(form):
    rng = random.Random(3)
    queries, clock = [], _MONDAY - 3 * _HOUR
    for k in range(500):
        clock += rng.randrange(0, 2 * _WEEK // 250)
        week = min(3, max(0, (clock - _MONDAY) // _WEEK)) if rng.random() < 0.8 else rng.randrange(4)
        queries.append(
            Query(int(week), rng.choice([0, 520, 10**6]), f"s{k % 30}", f"set{k // 80}", time_ms=clock)
        )
    spec = spec_of(FORMS[form], FORMS["adaptive"], datasets=_WEEKS.replace("limit: 2", "limit: 99"))
    expected = Play(spec)
    expected.play(TOPIC, queries)
    refused = [offset for _, offset, _ in _rejected(expected)]
    assert 20 < len(refused) == len(set(refused))
    assert _outside(expected) == _outside(expected, "m1") == len(refused)
    for seed in range(3):
        play = interrupted(spec, queries, random.Random(seed).randrange)
        assert sorted(offset for _, offset, _ in _rejected(play)) == sorted(refused)
        assert of_monitors(play) == of_monitors(expected)


def test_a_record_is_refused_for_the_first_monitor_that_it_is_for():
    """The first monitor of the topic does not cover the dataset: the second one reports."""
    spec = spec_of(
        f"{FORMS['plain']}, datasets: [other]",
        FORMS["plain"],
        FORMS["adaptive"],
        datasets=(f"{_WEEKS}\n  - {{name: other, limit: 3, unit: u}}"),
    )
    play = Play(spec)
    play.play(TOPIC, [Query(0, 0, time_ms=1), Query(0, 0, time_ms=1, monitor="m2"), Query(4, 0, time_ms=1)])
    assert _rejected(play) == [(TOPIC, 0, "outside-period"), (TOPIC, 1, "outside-period")]
    assert (_outside(play, "m0"), _outside(play, "m1"), _outside(play, "m2")) == (0, 1, 2)
