"""What answers mean, and how long is waited."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stream_svt.forward.document import RetryConfig
from stream_svt.forward.retry import LONGEST_REQUESTED_S, Result, delay, meaning
from tests.support.forwarding import moment

NOW = moment("2026-01-05T10:00:00+00:00")


@pytest.mark.parametrize(
    ("statuses", "result"),
    [
        ((200, 201, 202, 204, 409), Result.ACCEPTED),
        ((400, 413, 414, 415, 422, 431), Result.REFUSED),
        ((429,), Result.THROTTLED),
        (
            (100, 301, 302, 307, 401, 403, 404, 405, 408, 410, 425, 500, 501, 502, 503, 504, 599),
            Result.FAILED,
        ),
    ],
)
def test_only_what_is_about_the_event_itself_is_final(statuses, result):
    assert {meaning(status, None, NOW).result for status in statuses} == {result}


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 0),
        ("7", 7),
        (" 7 ", 7),
        ("Mon, 05 Jan 2026 10:01:00 GMT", 60),
        ("Mon, 05 Jan 2026 09:00:00 GMT", 0),
        ("999999", LONGEST_REQUESTED_S),
        ("9" * 500, LONGEST_REQUESTED_S),
        ("Fri, 31 Dec 2100 00:00:00 GMT", LONGEST_REQUESTED_S),
        ("-5", 0),
        ("soon", 0),
        ("", 0),
        ("\u0663", 0),
        ("1e3", 0),
    ],
)
def test_retry_after_is_heard_as_far_as_it_makes_sense(header, seconds):
    assert meaning(429, header, NOW).wait == seconds


DATES = [
    "Mon, 01 Jan 99999999999 00:00:00 GMT",
    "Mon, 01 Jan 2026 00:00:00 +99999999999",
    "Mon, 01 Jan 0001 00:00:00 +2359",
    "Mon, 31 Dec 9999 23:59:59 -2359",
    "Thu, 01 Jan 2026 99999999999999999999:00:00 GMT",
    "Mon, 01 Jan " + "9" * 5000 + " 00:00:00 GMT",
    "Mon, 05 Jan 2026 10:01:00 GMT",
    "1 Jan",
]


@given(
    st.text(max_size=60)
    | st.text("0123456789 :,+-()JanMonGT", max_size=60)
    | st.builds(
        lambda text, at, end, middle: text[:at] + middle + text[end:],
        st.sampled_from(DATES),
        st.integers(0, 40),
        st.integers(0, 40),
        st.text('0123456789 :,+-.;()\\"\x00Z', max_size=12),
    )
)
@example(DATES[0]).via("found by attack")
@example(DATES[1]).via("found by attack")
@example(DATES[5])
def test_nothing_that_a_receiver_writes_there_raises(header):
    assert 0 <= meaning(503, header, NOW).wait <= LONGEST_REQUESTED_S


def test_a_service_unavailable_that_names_a_time_is_meant_for_all_requests():
    assert meaning(503, "5", NOW).result is Result.THROTTLED
    assert meaning(503, None, NOW).result is Result.FAILED


def test_waits_double_up_to_the_longest_and_chance_halves_them_at_most():
    config = RetryConfig(first="1s", most="1m")
    assert [delay(config, attempt, 1.0) for attempt in (1, 2, 3, 7, 8, 10**6)] == [1, 2, 4, 60, 60, 60]
    assert delay(config, 3, 0.0) == 2
    assert 2 < delay(config, 3, 0.3) < 4
