"""Declarations of private datasets: by name, by list, by file, or generated from the calendar.

Datasets are declared, never created by a message: a dataset that exists only because of what the data holds
would itself be an output nobody charged for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
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
        specifications that differ in it alone are equal, and it may change by a reload.
    spent_before
        What an earlier application spent of the limit.
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


def _generator(value: object) -> str:
    if not isinstance(value, str) or sum(value.count(slot) for slot in _PERIODS) != 1:
        raise ValueError(f"expected a name with one of {' or '.join(_PERIODS)} in it, found {found(value)}")
    slot = next(slot for slot in _PERIODS if slot in value)
    dataset_name(value.replace(slot, "2026"))
    return value


_PERIODS = {"{iso_week}": timedelta(weeks=1), "{date}": timedelta(days=1)}


class DatasetDeclaration(Strict):
    """One or more private datasets that share limit and unit; each has a ledger of its own."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [form]} for form in _FORMS]})

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
        description="A name with {iso_week} (2026-w01) or {date} (2026-01-05) in it: one dataset a "
        "period. Only for "
        "privacy units that lie in one period (an event, a user's day).",
    )
    from_: Day | None = Field(
        default=None, alias="from", description="First day generated (UTC); for weeks, a Monday."
    )
    until: Day | None = Field(
        default=None, description="First day no longer generated (UTC); for weeks, a Monday."
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
        if len(forms) != 1:
            which = f"{' and '.join(forms)} together" if forms else "none of them"
            problems.append(("", f"expected exactly one of {', '.join(_FORMS)}, found {which}"))
        elif self.generate is None:
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
            if self.horizon is not None:
                problems.append(("horizon", "a generated dataset's horizon is its period: remove it"))
            problems += self._period_problems()
        if problems:
            raise several(problems)
        return self

    def _period_problems(self) -> list[tuple[str, str]]:
        problems = [
            (key, f"is required with generate: the {which} day, such as 2026-01-05")
            for key, day, which in (("from", self.from_, "first"), ("until", self.until, "first excluded"))
            if day is None
        ]
        if self.from_ is None or self.until is None:
            return problems
        if self._length.days == 7:
            for key, day in (("from", self.from_), ("until", self.until)):
                if day.weekday():
                    monday = day - timedelta(days=day.weekday())
                    problems.append(
                        (key, f"{day} is not a Monday; {monday} and {monday + timedelta(weeks=1)} are")
                    )
        if self.until <= self.from_:
            problems.append(("until", f"must be after from ({self.from_}), found {self.until}"))
        elif (self.until - self.from_) // self._length > MAX_DATASETS:
            problems.append(("until", f"would generate more than {MAX_DATASETS} datasets"))
        return problems

    @property
    def _length(self) -> timedelta:
        return next(length for slot, length in _PERIODS.items() if slot in (self.generate or ""))

    def expand(self, read_names: ReadNames | None) -> Iterator[DatasetSpec]:
        """Yield the datasets declared.

        Raises
        ------
        ValueError
            The file of names cannot be read, is empty, or holds what is no name; the message says where.
        """
        if self.generate is not None and self.from_ is not None and self.until is not None:
            yield from self._periods(self.generate, self.from_, self.until)
            return
        names: Sequence[str] = (
            self.names or (self.name or "",) if self.file is None else _names_in(self.file, read_names)
        )
        for name in names:
            yield DatasetSpec(
                name=name,
                kind=self.limit.kind,
                limit=self.limit.units,
                unit=self.unit,
                horizon_ms=self.horizon,
            )

    def _periods(self, pattern: str, day: date, until: date) -> Iterator[DatasetSpec]:
        length = self._length
        while day < until:
            year, week, _ = day.isocalendar()
            name = pattern.replace("{iso_week}", f"{year}-w{week:02d}").replace("{date}", day.isoformat())
            yield DatasetSpec(
                name=name,
                kind=self.limit.kind,
                limit=self.limit.units,
                unit=self.unit,
                from_ms=midnight_ms(day),
                until_ms=midnight_ms(day + length),
                lateness_ms=self.lateness,
                horizon_ms=length // timedelta(milliseconds=1),
            )
            day += length


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
