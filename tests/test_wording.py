"""Parts of messages."""

from __future__ import annotations

import pytest

from stream_svt.wording import lasting


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (19_460_000, "5h 24m"),
        (6 * 86_400_000, "6d"),
        (51 * 3_600_000, "2d 3h"),
        (86_405_000, "1d"),
        (814_999.5, "13m 34s"),
        (40_000, "40s"),
        (250, "250ms"),
    ],
)
def test_a_duration_has_its_two_largest_units(ms: float, text: str) -> None:
    assert lasting(ms) == text
