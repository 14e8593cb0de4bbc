"""Declarations of private datasets: by name, by list, by file, or generated from the calendar.

Datasets are declared, never created by a message: a dataset that exists only because of what the data holds
would itself be an output nobody charged for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from stream_svt.monitor.quantities import (
    DatasetName,
    Day,
    Duration,
    DurationOrZero,
    LimitField,
    Text,
    dataset_name,
    found,
    midnight_ms,
)
from stream_svt.monitor.yaml_source import Strict, several
from stream_svt.privacy.loss import Kind

ReadNames = Callable[[str], Sequence[str]]
"""Returns the lines of a file of dataset names; raises OSError or UnicodeDecodeError."""

MAX_DATASETS = 1_000_000

_FORMS = ("name", "names", "file", "generate")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSpec:
    """One private dataset with its budget.

    Attributes
    ----------
    name
        The key of its queries on Kafka.
    kind, limit
        What the ledger counts, and the most that may ever be lost, in units of `stream_svt.privacy.loss`.
    unit
        The privacy unit in words: whose, or which, presence is hidden.
    from_ms, until_ms, lateness_ms
        For a period: queries count from the first moment, before the second, and for records that come late,
        until so long after it. UTC milliseconds on the broker's clock. None for a dataset without a period.
    horizon_ms
        How long the budget is meant to last: what burn rates are measured against. It bears on no outcome, so two
        specifications that differ in it alone are equal, and it may change.
    spent_before
        What an earlier application spent of the limit.
    pattern
        The generator's pattern, "" for a dataset that is not generated.
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
_PERIODS = {"{iso_week}": timedelta(weeks=1), "{date}": timedelta(days=1)}
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


def _slot(pattern: str) -> str:
    return next(slot for slot in _PERIODS if slot in pattern)


def _generator(value: object) -> str:
    if not isinstance(value, str) or sum(value.count(slot) for slot in _PERIODS) != 1:
        raise ValueError(f"expected a name with one of {' or '.join(_PERIODS)} in it, found {found(value)}")
    if value.count(NAME_SLOT) > 1:
        raise ValueError(f"expected {NAME_SLOT} once at most, found {found(value)}")
    dataset_name(value.replace(_slot(value), "2026").replace(NAME_SLOT, "name"))
    return value


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
        return midnight_ms(first + _PERIODS[_slot(pattern)])
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
    return _PERIODS[_slot(pattern)] // timedelta(milliseconds=1)


def is_over(name: str, watermarks: Watermarks) -> bool:
    """Tell whether a name is that of a period that is over, whoever declares it."""
    return any(
        (end := period_end(pattern, name)) is not None and end <= watermark
        for pattern, watermark in watermarks.items()
    )


@dataclass(frozen=True, slots=True)
class Gone:
    """What a shard's state says of datasets that never come back.

    Attributes
    ----------
    watermarks
        Which periods are over.
    retired
        Names of datasets that are declared no longer.
    """

    watermarks: Watermarks = field(default_factory=dict)
    retired: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """Private datasets without an end: one a period, or one a name and period.

    A dataset exists from its first query on, and is retired once its period, and the lateness, are over.

    Attributes
    ----------
    pattern
        The datasets' names, with a slot for the period and one for the name where there are ``names``.
    names
        What stands in the slot for the name, ("",) where there is none.
    from_ms
        Begin of the first period, UTC milliseconds.
    lateness_ms, kind, limit, unit
        As in `DatasetSpec`.
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


class DatasetDeclaration(Strict):
    """One or more private datasets that share limit and unit; each has a ledger of its own."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["name"]},
                {"required": ["names"], "not": {"required": ["generate"]}},
                {"required": ["file"], "not": {"required": ["generate"]}},
                {"required": ["generate"]},
            ]
        }
    )

    name: DatasetName | None = Field(
        default=None, description="The name of one dataset: the key of its queries."
    )
    names: Annotated[tuple[DatasetName, ...], Field(min_length=1)] | None = Field(
        default=None, description="Several names."
    )
    file: Text | None = Field(
        default=None,
        description="A file with one name a line; empty lines and lines beginning with # are skipped. "
        "Relative to "
        "the configuration file.",
    )
    generate: Annotated[str, BeforeValidator(_generator)] | None = Field(
        default=None,
        description="A name with {iso_week} (2026-w01) or {date} (2026-01-05) in it: one dataset a period. With {name} "
        "in it, too, and names or file: one dataset a name and period. A dataset exists from its first query on, and "
        "is retired when period and lateness are over. Only for privacy units that lie in one period (an event, a "
        "user's day).",
    )
    from_: Day | None = Field(
        default=None, alias="from", description="First day generated (UTC); for weeks, a Monday."
    )
    until: Day | None = Field(
        default=None,
        description="First day no longer generated (UTC); for weeks, a Monday. Default: generated for ever.",
    )
    lateness: DurationOrZero = Field(
        default=0,
        description="How long after its period's end a query still counts for it, on the broker's clock. "
        "Default 0.",
    )
    new: bool = Field(
        default=False,
        description="With carried_over: true for datasets that the earlier application never had. Needed where its "
        "alerts have gaps. Default false.",
    )
    horizon: Duration | None = Field(
        default=None,
        description="How long the budget is meant to last, such as 90d: metrics and alerts measure its use "
        "against this. A generated dataset's is its period. Bears on no outcome. Default: not said.",
    )
    limit: LimitField = Field(
        description="Most that may ever be lost: epsilon as a number, or {epsilon: 4}, or {rho: 0.1} for "
        "zCDP; "
        "greater than 0."
    )
    unit: Text = Field(description="The privacy unit in words, such as 'one basket' or 'one user'.")

    @model_validator(mode="after")
    def _one_form(self) -> DatasetDeclaration:
        problems = []
        forms = [form for form in _FORMS if getattr(self, form) is not None]
        generated = forms[-1:] == ["generate"]
        named = forms[:-1] if generated and NAME_SLOT in (self.generate or "") else forms
        if not forms or len(named) > 1:
            which = f"{' and '.join(forms)} together" if forms else "none of them"
            problems.append(("", f"expected exactly one of {', '.join(_FORMS)}, found {which}"))
        elif not generated:
            problems += [
                (key, "belongs to generated datasets only: remove it, or use generate")
                for key, value in (
                    ("from", self.from_),
                    ("until", self.until),
                    ("lateness", self.lateness or None),
                )
                if value is not None
            ]
        else:
            if not named:
                message = f"{NAME_SLOT} stands for names: give names, or a file of names, next to it"
                problems.append(("generate", message))
            if self.horizon is not None:
                problems.append(("horizon", "a generated dataset's horizon is its period: remove it"))
            problems += self._period_problems()
        if problems:
            raise several(problems)
        return self

    def _period_problems(self) -> list[tuple[str, str]]:
        if self.from_ is None:
            return [("from", "is required with generate: the first day, such as 2026-01-05")]
        problems = []
        length = _PERIODS[_slot(self.generate or "")]
        if length.days == 7:
            for key, day in (("from", self.from_), ("until", self.until)):
                if day is not None and day.weekday():
                    monday = day - timedelta(days=day.weekday())
                    problems.append(
                        (key, f"{day} is not a Monday; {monday} and {monday + timedelta(weeks=1)} are")
                    )
        if self.until is None:
            return problems
        if self.until <= self.from_:
            problems.append(("until", f"must be after from ({self.from_}), found {self.until}"))
        elif (self.until - self.from_) // length > MAX_DATASETS:
            problems.append(("until", f"would generate more than {MAX_DATASETS} datasets"))
        return problems

    def expand(self, read_names: ReadNames | None) -> Iterator[DatasetSpec]:
        """Yield the datasets declared; of a generator without an end, none.

        Raises
        ------
        ValueError
            The file of names cannot be read, is empty, or has an invalid line; the message says where.
        """
        if self.generate is not None:
            if self.until is not None and (generator := self.generator(read_names)) is not None:
                yield from generator.periods(generator.from_ms, midnight_ms(self.until))
            return
        for name in self._names(read_names):
            yield DatasetSpec(
                name=name,
                kind=self.limit.kind,
                limit=self.limit.units,
                unit=self.unit,
                horizon_ms=self.horizon,
            )

    def generator(self, read_names: ReadNames | None) -> Generator | None:
        """Return what generates the datasets, None where they are not generated.

        Raises
        ------
        ValueError
            As `expand`.
        """
        if self.generate is None or self.from_ is None:
            return None
        names = tuple(self._names(read_names)) if NAME_SLOT in self.generate else ("",)
        longest = max(names, key=lambda name: len(name.encode()))
        dataset_name(self.generate.replace(_slot(self.generate), "2026-01-05").replace(NAME_SLOT, longest))
        return Generator(
            pattern=self.generate,
            names=names,
            from_ms=midnight_ms(self.from_),
            lateness_ms=self.lateness,
            kind=self.limit.kind,
            limit=self.limit.units,
            unit=self.unit,
        )

    def _names(self, read_names: ReadNames | None) -> Sequence[str]:
        if self.file is not None:
            return _names_in(self.file, read_names)
        return self.names or (self.name or "",)


def _names_in(path: str, read_names: ReadNames | None) -> list[str]:
    if read_names is None:
        raise ValueError("a file of names cannot be read here: write the names out")
    try:
        lines = read_names(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ValueError(f"cannot read {found(path)}: {reason}") from None
    names = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if text and not text.startswith("#"):
            try:
                names.append(dataset_name(text))
            except ValueError as error:
                raise ValueError(f"{found(path)} line {number}: {error}") from None
    if not names:
        raise ValueError(f"{found(path)} holds no names")
    return names
