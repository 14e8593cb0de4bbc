"""Periods of generated datasets, whose length and begins a pattern has, and limits that renew with them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import cache

from stream_svt.privacy.loss import Kind, as_text
from stream_svt.settings import fields

DAY_MS = 86_400_000
EPOCH_MS = 4 * DAY_MS
"""Monday, 5 January 1970, UTC: weeks begin on Mondays, and ticks and windows are counted from here."""
NAME_SLOT = "{name}"
WEEK_SLOT, DATE_SLOT = "{iso_week}", "{date}"
SLOTS = (WEEK_SLOT, DATE_SLOT)
_SLOT = re.compile(r"\{(?:iso_week|date(?:/([1-9][0-9]{0,5})d\+([0-9]{1,6}))?)\}")
"""A slot as it is written; or {date/15d+3} for periods of 15 days, one of which begins three days after 1970-01-01.

Only programs write the longer form: states and carried-over files hold it, so that a pattern alone tells its periods.
"""
END_OF_TIME_MS = 253_402_300_800_000
"""End of the year 9999."""

Watermarks = Mapping[str, int]
"""By pattern of a generator, the end of the last period that is over, in UTC milliseconds."""


@dataclass(frozen=True, slots=True)
class Periods:
    """Consecutive periods: their slot, also as it is written, their length, and the begin of one of them."""

    text: str
    slot: str
    length_ms: int
    origin_ms: int

    @property
    def words(self) -> str:
        """The length in words."""
        return "a week" if self.slot == WEEK_SLOT else in_words(self.length_ms)


@cache
def periods_in(pattern: str) -> Periods | None:
    """Return the periods of a pattern, None for a name without a slot for them."""
    if (match := _SLOT.search(pattern)) is None:
        return None
    if match[0] == WEEK_SLOT:
        return Periods(WEEK_SLOT, WEEK_SLOT, 7 * DAY_MS, EPOCH_MS)
    return Periods(match[0], DATE_SLOT, int(match[1] or 1) * DAY_MS, int(match[2] or 0) * DAY_MS)


def periods_of(pattern: str) -> Periods:
    """Return the periods of a generator's pattern."""
    if (found := periods_in(pattern)) is None:
        raise ValueError(f"{pattern!r} has no slot for a period")
    return found


def with_length(pattern: str, days: int, begin: int) -> str:
    """Return a pattern with the length of its periods in days, and a day since 1970-01-01 at which one begins."""
    return pattern if days == 1 else pattern.replace(DATE_SLOT, f"{{date/{days}d+{begin % days}}}")


def written(pattern: str) -> str:
    """Return a pattern as a configuration has it."""
    periods = periods_in(pattern)
    return pattern if periods is None else pattern.replace(periods.text, periods.slot)


@cache
def _matcher(pattern: str) -> re.Pattern[str]:
    text = re.escape(written(pattern)).replace(re.escape(NAME_SLOT), ".+")
    text = text.replace(re.escape(WEEK_SLOT), "([0-9]{4}-w[0-9]{2})")
    return re.compile(text.replace(re.escape(DATE_SLOT), "([0-9]{4}-[0-9]{2}-[0-9]{2})"), re.DOTALL)


def period_end(pattern: str, name: str) -> int | None:
    """Return the end of the period in a generated name, in UTC milliseconds; None for other names."""
    if (match := _matcher(pattern).fullmatch(name)) is None:
        return None
    try:
        first = date.fromisoformat(f"{match[1].upper()}-1" if "w" in match[1] else match[1])
    except ValueError:
        return None
    begin, end = period_at(pattern, first_ms := fields.midnight_ms(first))
    return end if begin == first_ms and end < END_OF_TIME_MS else None


def length_ms(pattern: str) -> int:
    """Return the length of a generator's periods in milliseconds."""
    return periods_of(pattern).length_ms


def period_at(pattern: str, ms: int) -> tuple[int, int]:
    """Return begin and end of the period that contains a moment; all in UTC milliseconds."""
    periods = periods_of(pattern)
    begin = ms - (ms - periods.origin_ms) % periods.length_ms
    return begin, begin + periods.length_ms


def period_name(pattern: str, ms: int) -> str:
    """Return a pattern with the period that contains a moment, UTC milliseconds, in the place of its slot."""
    if periods_in(pattern) is None:
        return pattern
    day = datetime.fromtimestamp(period_at(pattern, ms)[0] / 1000, UTC).date()
    year, week, _ = day.isocalendar()
    return written(pattern).replace(WEEK_SLOT, f"{year}-w{week:02d}").replace(DATE_SLOT, day.isoformat())


def is_over(name: str, watermarks: Watermarks) -> bool:
    """Return whether a name belongs to a period that is over, whether generated or declared."""
    ends = ((period_end(pattern, name), watermark) for pattern, watermark in watermarks.items())
    return any(end is not None and end <= watermark for end, watermark in ends)


def in_words(ms: int) -> str:
    """Return a duration in days, or in its largest unit if it is not whole days."""
    days, rest = divmod(ms, DAY_MS)
    return fields.duration_text(ms) if rest else "a day" if days == 1 else f"{days} days"


@dataclass(frozen=True, slots=True)
class Renewal:
    """A limit, in ledger units of epsilon, for the events whose own time is in any ``per_ms``.

    Questions read windows up to ``looks_back_ms`` before the one tested. So at most `periods` ledgers are charged for
    these events (docs/privacy-guarantee.md), and each has a `share` of the limit.
    """

    limit: int
    per_ms: int
    looks_back_ms: int
    length_ms: int

    @property
    def periods(self) -> int:
        """The most periods that any interval of ``per_ms`` and ``looks_back_ms`` touches."""
        return -(-(self.per_ms + self.looks_back_ms) // self.length_ms) + 1

    @property
    def share(self) -> int:
        """The limit of each period's ledger, rounded down."""
        return self.limit // self.periods

    @property
    def others(self) -> list[Renewal]:
        """The same limit with other lengths: whole days, `per` and the look-back in equal parts.

        Lengths between two of these are in as many periods as the longer one.
        """
        days = -(-(self.per_ms + self.looks_back_ms) // DAY_MS)
        lengths = {-(-days // parts) * DAY_MS for parts in range(1, days + 1)} - {self.length_ms}
        return [replace(self, length_ms=one) for one in sorted(lengths)]

    @property
    def promise(self) -> str:
        """The promise in words: ledgers store it as a part of their unit, so that it never changes."""
        back = f", looking back {in_words(self.looks_back_ms)}" if self.looks_back_ms else ""
        return f"any {in_words(self.per_ms)}{back}: at most epsilon {as_text(self.limit, Kind.PURE)}"
