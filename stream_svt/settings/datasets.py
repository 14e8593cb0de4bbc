"""Private datasets: one ledger each, declared one by one or generated from the calendar."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cache

from stream_svt.privacy.loss import Kind
from stream_svt.settings.fields import midnight_ms

MAX_DATASETS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSpec:
    """One private dataset with its budget.

    Attributes:
        name: The key of its queries on Kafka.
        kind, limit: What the ledger counts, and the most that may ever be lost, in units of
            `stream_svt.privacy.loss`.
        unit: The privacy unit in words: whose, or which, presence is hidden.
        from_ms, until_ms, lateness_ms: For a period: queries count from the first moment, before the second,
            and for records that come late, until so long after it. UTC milliseconds on the broker's clock.
            None for a dataset without a period.
        horizon_ms: How long the budget is meant to last: what burn rates are measured against. It bears on no
            outcome, so two specifications that differ in it alone are equal, and it may change.
        spent_before: What an earlier application spent of the limit.
        pattern: The generator's pattern, "" for a dataset that is not generated.
    """

    name: str
    kind: Kind
    limit: int
    unit: str
    from_ms: int | None = None
    until_ms: int | None = None
    lateness_ms: int | None = None
    horizon_ms: int | None = field(default=None, compare=False)
    spent_before: int = 0
    pattern: str = field(default="", compare=False)

    @property
    def ends_ms(self) -> int | None:
        """The moment from which no query counts any more, None for a dataset without a period."""
        return None if self.until_ms is None else self.until_ms + (self.lateness_ms or 0)

    @property
    def is_period(self) -> bool:
        """Whether the dataset holds one period only."""
        return self.from_ms is not None

    @property
    def declaration(self) -> tuple[str, int, str, int | None, int | None]:
        """What may not change while the dataset exists: kind, limit, unit and period."""
        return (self.kind.value, self.limit, self.unit, self.from_ms, self.until_ms)


NAME_SLOT = "{name}"
PERIODS = {"{iso_week}": timedelta(weeks=1), "{date}": timedelta(days=1)}

_YEAR = "(?P<year>[0-9]{4})"
_WRITTEN = {
    "{iso_week}": _YEAR + "-w(?P<week>[0-9]{2})",
    "{date}": _YEAR + "-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})",
    NAME_SLOT: ".+",
}

DAY_MS = 86_400_000
_FIRST_MONDAY_MS = 4 * DAY_MS

Watermarks = Mapping[str, int]
"""By pattern of a generator, the end of the last period that is over, in UTC milliseconds."""


def period_slot(pattern: str) -> str:
    """Return which period stands in a generator's pattern."""
    return next(slot for slot in PERIODS if slot in pattern)


@cache
def _matcher(pattern: str) -> re.Pattern[str]:
    text = re.escape(pattern)
    for slot, written in _WRITTEN.items():
        text = text.replace(re.escape(slot), written)
    return re.compile(text, re.DOTALL)


def period_end(pattern: str, name: str) -> int | None:
    """Return when the period that a generated name holds ends, in UTC milliseconds; None where the name is another."""
    match = _matcher(pattern).fullmatch(name)
    if match is None:
        return None
    part = {key: int(digits) for key, digits in match.groupdict().items()}
    try:
        if "week" in part:
            first = date.fromisocalendar(part["year"], part["week"], 1)
        else:
            first = date(part["year"], part["month"], part["day"])
        return midnight_ms(first + PERIODS[period_slot(pattern)])
    except (ValueError, OverflowError):
        return None


def last_end(pattern: str, ms: int) -> int:
    """Return when the last period of a generator ended before or at a moment; both in UTC milliseconds."""
    length = _length_ms(pattern)
    return ms - (ms - (_FIRST_MONDAY_MS if length > DAY_MS else 0)) % length


def begun_by(pattern: str, ms: int) -> int:
    """Return when the last period ends that a generator has begun by a moment; both in UTC milliseconds."""
    return last_end(pattern, ms) + _length_ms(pattern)


def _length_ms(pattern: str) -> int:
    return PERIODS[period_slot(pattern)] // timedelta(milliseconds=1)


def is_over(name: str, watermarks: Watermarks) -> bool:
    """Tell whether a name is that of a period that is over, whoever declares it."""
    return any(
        (end := period_end(pattern, name)) is not None and end <= watermark
        for pattern, watermark in watermarks.items()
    )


@dataclass(frozen=True, slots=True)
class Gone:
    """What a shard's state says of datasets that never come back.

    Attributes:
        watermarks: Which periods are over.
        retired: Names of datasets that are declared no longer.
    """

    watermarks: Watermarks = field(default_factory=dict)
    retired: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """Private datasets without an end: one a period, or one a name and period.

    A dataset exists from its first query on, and is retired once its period, and the lateness, are over.

    Attributes:
        pattern: The datasets' names, with a slot for the period and one for the name where there are
            ``names``.
        names: What stands in the slot for the name, ("",) where there is none.
        from_ms: Begin of the first period, UTC milliseconds.
        lateness_ms, kind, limit, unit: As in `DatasetSpec`.
    """

    pattern: str
    names: tuple[str, ...]
    from_ms: int
    lateness_ms: int
    kind: Kind
    limit: int
    unit: str

    @property
    def length_ms(self) -> int:
        """How long a period is."""
        return _length_ms(self.pattern)

    def periods(self, after_ms: int, before_ms: int) -> Iterator[DatasetSpec]:
        """Yield the datasets of all periods that end after one moment and begin before another."""
        for begin in self.begins(after_ms, before_ms):
            yield from self.period(begin)

    def begins(self, after_ms: int, before_ms: int) -> range:
        """Return when all periods begin that end after one moment and begin before another."""
        return range(max(self.from_ms, last_end(self.pattern, after_ms)), before_ms, self.length_ms)

    def count(self, after_ms: int, before_ms: int) -> int:
        """Return how many datasets `periods` yields."""
        return len(self.names) * len(self.begins(after_ms, before_ms))

    def period(self, begin_ms: int) -> Iterator[DatasetSpec]:
        """Yield the datasets of the period that begins then."""
        day = datetime.fromtimestamp(begin_ms / 1000, UTC).date()
        year, week, _ = day.isocalendar()
        text = self.pattern.replace("{iso_week}", f"{year}-w{week:02d}").replace("{date}", day.isoformat())
        for name in self.names:
            yield DatasetSpec(
                name=text.replace(NAME_SLOT, name),
                kind=self.kind,
                limit=self.limit,
                unit=self.unit,
                from_ms=begin_ms,
                until_ms=begin_ms + self.length_ms,
                lateness_ms=self.lateness_ms,
                horizon_ms=self.length_ms,
                pattern=self.pattern,
            )

    def open_at(self, now_ms: int) -> Iterator[DatasetSpec]:
        """Yield the datasets that queries may count for now; before the first period, those of that one."""
        now_ms = max(now_ms, self.from_ms)
        yield from self.periods(now_ms - self.lateness_ms, now_ms + 1)

    def find(self, name: str) -> DatasetSpec | None:
        """Return the dataset of a name, whether or not its period has come; None where the name is another."""
        end = period_end(self.pattern, name)
        if end is None or end <= self.from_ms:
            return None
        return next((one for one in self.period(end - self.length_ms) if one.name == name), None)
