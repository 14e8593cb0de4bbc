"""What answers mean, and how long is waited."""

from __future__ import annotations

import pytest

from stream_svt.forward.document import RetryConfig
from stream_svt.forward.retry import LONGEST_REQUESTED_S, Result, delay, meaning
from tests.support.forwarding import moment

NOW = moment("2026-01-05T10:00:00+00:00")


@pytest.mark.parametrize(
    ("statuses", "result"),
    [
        ((200, 201, 202, 204), Result.ACCEPTED),
        ((400, 409, 413, 414, 415, 422, 431), Result.REFUSED),
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


def test_a_service_unavailable_that_names_a_time_is_meant_for_all_requests():
    assert meaning(503, "5", NOW).result is Result.THROTTLED
    assert meaning(503, None, NOW).result is Result.FAILED


def test_waits_double_up_to_the_longest_and_chance_halves_them_at_most():
    config = RetryConfig(first="1s", most="1m")
    assert [delay(config, attempt, 1.0) for attempt in (1, 2, 3, 7, 8, 10**6)] == [1, 2, 4, 60, 60, 60]
    assert delay(config, 3, 0.0) == 2
    assert 2 < delay(config, 3, 0.3) < 4
