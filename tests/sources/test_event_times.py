"""Times of events as texts: ISO 8601 as RFC 3339 has it, fractions rounded down, UTC without a zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_svt.settings.fields import LAST_MS
from stream_svt.sources import times
from stream_svt.sources.times import NO_TIME

MOMENT = int(datetime(2026, 1, 5, 10, tzinfo=UTC).timestamp()) * 1000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-01-05T10:00:00Z", MOMENT), ("2026-01-05t10:00:00z", MOMENT), ("2026-01-05 10:00:00", MOMENT),
        ("2026-01-05T10:00", MOMENT), ("2026-01-05T10:00Z", MOMENT), ("2026-01-05", MOMENT - 36_000_000),
        ("2026-01-05T10:00:00.1Z", MOMENT + 100), ("2026-01-05T10:00:00,1239999999999999Z", MOMENT + 123),
        ("2026-01-05T10:00:00.0009", MOMENT), ("2026-01-05T10:00:00.999999999Z", MOMENT + 999),
        ("2026-01-05T11:30:00+01:30", MOMENT), ("2026-01-05T08:00:00.5-0200", MOMENT + 500),
        ("2026-01-05T12+02", NO_TIME), ("2026-01-05T12:00+02", MOMENT), ("2026-01-05T10:00:00+00:00", MOMENT),
        ("2026-01-05T09:59:60Z", MOMENT), ("2026-01-05T10:00:00-00:00", MOMENT), ("2026-01-06T00:00:00+14:00", MOMENT),
        ("1970-01-01T00:00:00Z", 0), ("1970-01-01T00:00:00+00:01", NO_TIME), ("1969-12-31T23:59:59.999Z", NO_TIME),
        ("1969-12-31T23:59:00-00:01", 0), ("2999-12-31T23:59:59Z", 32_503_679_999_000),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
        ("0001-01-01T00:00:00Z", NO_TIME), ("0000-01-01T00:00:00Z", NO_TIME), ("2024-02-29", 1_709_164_800_000),
    ],
)  # fmt: skip
def test_a_time_is_read_to_the_millisecond(text: str, ms: int):
    assert times.of_text(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "", "T", "2026", "2026-01", "2026-1-5", "2026-13-01", "2026-02-29", "2026-01-05T", "2026-01-05T24:00:00Z",
        "2026-01-05T10:60:00Z", "2026-01-05T10:00:61Z", "2026-01-05T10:00:00.Z", "2026-01-05T10:00:00+24:00",
        "2026-01-05T10:00:00+01:60", "2026-01-05T10:00:00 Z", " 2026-01-05T10:00:00Z", "2026-01-05T10:00:00Z\n",
        "2026-01-05T10:00:00ZZ", "20260105T100000Z", "2026-W02-1", "2026-005", "+2026-01-05T10:00:00Z", "-2026-01-05",
        "2026-01-05T10:00:00Europe/Berlin", "05.01.2026", "Mon, 05 Jan 2026 10:00:00 GMT", "\uff12026-01-05",
        "1767607200",
        "2026-01-05T10:00:00." + "1" * 50, "2026-01-05T10:00:00.1234567890123456789012345678901234567890123Z+",
    ],
)  # fmt: skip
def test_other_texts_are_no_time(text: str):
    assert times.of_text(text) == NO_TIME


@given(
    st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(9998, 1, 1)),  # noqa: DTZ001  a zone is added
    st.none() | st.integers(-1439, 1439),
    st.sampled_from(["auto", "seconds", "milliseconds", "microseconds"]),
)
def test_times_are_those_of_python_s_own_texts(moment: datetime, minutes: int | None, digits: str):
    zone = UTC if minutes is None else timezone(timedelta(minutes=minutes))
    moment = moment.replace(tzinfo=zone)
    if digits == "seconds":
        moment = moment.replace(microsecond=0)
    text = (moment.replace(tzinfo=None) if minutes is None else moment).isoformat(timespec=digits)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    assert times.of_text(text) == since // timedelta(milliseconds=1)


def test_times_of_many_texts_are_those_of_each():
    texts = ["2026-01-05T10:00:00Z", None, "x", "2026-01-05T10:00:00.5Z"] * 50
    assert times.of_texts(texts).tolist() == [MOMENT, NO_TIME, NO_TIME, MOMENT + 500] * 50
    assert times.of_texts([]).tolist() == []


@pytest.mark.parametrize("scale", ["s", "ms", "us"])
def test_numbers_of_any_size_do_not_overflow(scale: str):
    whole = np.array(
        [-(2**62), -1, 0, LAST_MS // 1000, LAST_MS // 1000 + 1, LAST_MS, LAST_MS + 1, 2**62], np.int64
    )
    fraction = np.full(len(whole), 999_999_999_999_999_999, np.int64)
    parts = {"s": (1000, 999), "ms": (1, 0), "us": (1, 0)}[scale]
    exact = [int(one) * parts[0] + parts[1] if scale != "us" else int(one) // 1000 for one in whole]
    found = times.of_numbers(whole, fraction, scale).tolist()
    assert found == [one if 0 <= one <= LAST_MS else NO_TIME for one in exact]
