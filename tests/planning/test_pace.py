"""The end of a budget as it is projected, against simulated charges whose future is known."""

from __future__ import annotations

import numpy as np
import pytest

from stream_svt.planning.pace import LEAST_PAYMENTS, exhaustion

DAY = 86_400.0


def test_a_steady_pace_is_continued_and_ends_in_no_past_of_a_clock_that_was_set_back() -> None:
    found = exhaustion([(day * DAY, 0.1) for day in range(11)], left=2.0, now=10 * DAY)
    assert found is not None
    assert found.expected == pytest.approx(30 * DAY)
    assert found.early < found.expected < found.late
    set_back = exhaustion([(day * DAY, 0.1) for day in range(6)], left=1.0, now=0.0)
    assert set_back is not None
    assert set_back.early > 0.0


@pytest.mark.parametrize(("seen", "to_come"), [(6, 1), (4, 3), (6, 20), (15, 5), (30, 30)])
def test_nine_times_in_ten_the_end_comes_within_the_interval(seen: int, to_come: int) -> None:
    """The past is observed for a fixed time, so that it ends between two payments."""
    random = np.random.default_rng(7)
    within = early = asked = 0
    for _ in range(2000):
        pace = float(random.uniform(0.5, 2.0)) * DAY
        times = np.cumsum(random.exponential(pace, 5 * (seen + to_come) + 50))
        now = float(seen * pace)
        past = times[times <= now]
        found = exhaustion([(float(time), 0.25) for time in past], left=0.25 * to_come, now=now)
        if found is None:
            continue
        asked += 1
        end = times[len(past) + to_come - 1]
        within += found.early <= end <= found.late
        early += end < found.early
    assert asked > 500
    assert 0.88 <= within / asked <= 0.97
    assert early / asked <= 0.07  # nobody is surprised by an end that comes too soon


def test_time_without_a_charge_moves_the_end_away() -> None:
    charges = [(day * DAY, 0.1) for day in range(6)]
    ends = [exhaustion(charges, left=1.0, now=now * DAY) for now in (5, 10, 20)]
    expected = [end.expected for end in ends if end is not None]
    assert expected == sorted(expected)
    assert len(set(expected)) == 3


def test_charges_of_one_moment_are_one_payment() -> None:
    one = exhaustion([(day * DAY, 0.2) for day in range(8)], left=1.0, now=7 * DAY)
    split = exhaustion([(day * DAY, 0.1) for day in range(8) for _ in "ab"], left=1.0, now=7 * DAY)
    assert one == split


def test_nothing_is_said_on_too_little_or_where_nothing_is_left() -> None:
    charges = [(day * DAY, 0.1) for day in range(LEAST_PAYMENTS + 1)]
    assert exhaustion(charges, left=1.0, now=9 * DAY) is not None
    assert exhaustion(charges[1:], left=1.0, now=9 * DAY) is None
    assert exhaustion(charges, left=0.0, now=9 * DAY) is None
    assert exhaustion([], left=1.0, now=0.0) is None
