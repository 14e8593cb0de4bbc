"""Datasets as they are declared in a file: by name, in a file of names, or by a generator of periods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field

from stream_svt.settings.datasets import MAX_DATASETS, NAME_SLOT, PERIODS, DatasetSpec, Generator, period_slot
from stream_svt.settings.fields import (
    DatasetName,
    Day,
    Duration,
    DurationOrZero,
    LimitField,
    Text,
    dataset_name,
    midnight_ms,
)
from stream_svt.settings.messages import quote
from stream_svt.settings.validation import Strict, consistent

ReadNames = Callable[[str], Sequence[str]]
"""Returns the lines of a file that a configuration names; raises OSError or UnicodeDecodeError."""

_FORMS = ("name", "names", "file", "generate")


def _generator(value: object) -> str:
    if not isinstance(value, str) or sum(value.count(slot) for slot in PERIODS) != 1:
        raise ValueError(f"expected a name with one of {' or '.join(PERIODS)} in it, found {quote(value)}")
    if value.count(NAME_SLOT) > 1:
        raise ValueError(f"expected {NAME_SLOT} once at most, found {quote(value)}")
    _longest(value, "name")
    return value


def _longest(pattern: str, name: str) -> str:
    """Return a name that a generator makes; ValueError where it is no name of a dataset."""
    return dataset_name(pattern.replace(period_slot(pattern), "2026-01-05").replace(NAME_SLOT, name))


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

    name: DatasetName | None = None
    """The name of one dataset: the key of its queries."""
    names: Annotated[tuple[DatasetName, ...], Field(min_length=1)] | None = None
    """Several names."""
    file: Text | None = None
    """A file with one name a line; lines beginning with # are skipped."""
    generate: Annotated[str, BeforeValidator(_generator)] | None = None
    """A name with {iso_week} (2026-w01) or {date} (2026-01-05): one dataset a period; with {name},
    too, one a name and period. Only for privacy units that lie in one period (an event, a user's
    day)."""
    from_: Day | None = Field(default=None, alias="from")
    """First day generated (UTC); for weeks, a Monday."""
    until: Day | None = None
    """First day no longer generated (UTC); for weeks, a Monday. Default: generated for ever."""
    lateness: DurationOrZero = 0
    """How long after its period's end a query still counts for it, on the broker's clock. Default 0."""
    new: bool = False
    """With carried_over: the earlier application never had these datasets. Needed where its alerts
    have gaps. Default false."""
    horizon: Duration | None = None
    """How long the budget is meant to last, such as 90d, for metrics and alerts. A generated dataset's
    is its period. Bears on no outcome. Default: not said."""
    limit: LimitField
    """Most that may ever be lost: epsilon, as a number or {epsilon: 4}, or {rho: 0.1} for zCDP."""
    unit: Text
    """The privacy unit in words, such as 'one basket' or 'one user'."""

    @consistent
    def _problems(self) -> Iterator[tuple[str, str]]:
        forms = [form for form in _FORMS if getattr(self, form) is not None]
        named = [form for form in forms if form != "generate" or NAME_SLOT not in (self.generate or "")]
        if not forms or len(named) > 1:
            which = f"{' and '.join(forms)} together" if forms else "none of them"
            yield "", f"expected exactly one of {', '.join(_FORMS)}, found {which}"
        else:
            yield from self._plain_problems() if self.generate is None else self._period_problems()

    def _plain_problems(self) -> Iterator[tuple[str, str]]:
        for key, value in (("from", self.from_), ("until", self.until), ("lateness", self.lateness or None)):
            if value is not None:
                yield key, "belongs to generated datasets only: remove it, or use generate"

    def _period_problems(self) -> Iterator[tuple[str, str]]:
        pattern = self.generate or ""
        if NAME_SLOT in pattern and not (self.name or self.names or self.file):
            yield "generate", f"{NAME_SLOT} stands for names: give names, or a file of names, next to it"
        if self.horizon is not None:
            yield "horizon", "a generated dataset's horizon is its period: remove it"
        if self.from_ is None:
            yield "from", "is required with generate: the first day, such as 2026-01-05"
            return
        length = PERIODS[period_slot(pattern)]
        for key, day in (("from", self.from_), ("until", self.until)):
            if day is not None and length.days == 7 and day.weekday():
                monday = day - timedelta(days=day.weekday())
                yield key, f"{day} is not a Monday; {monday} and {monday + timedelta(weeks=1)} are"
        if self.until is not None and self.until <= self.from_:
            yield "until", f"must be after from ({self.from_}), found {self.until}"
        elif self.until is not None and (self.until - self.from_) // length > MAX_DATASETS:
            yield "until", f"would generate more than {MAX_DATASETS} datasets"

    def expand(self, read_names: ReadNames | None) -> Iterator[DatasetSpec]:
        """Yield the datasets declared; of a generator without an end, those of its first period.

        Raises:
            ValueError: The file of names cannot be read, is empty, or has an invalid line; the message says
                where.
        """
        if (generator := self.generator(read_names)) is not None:
            end = generator.from_ms + 1 if self.until is None else midnight_ms(self.until)
            yield from generator.periods(generator.from_ms, end)
            return
        kind, limit = self.limit.kind, self.limit.units
        for name in self._names(read_names):
            yield DatasetSpec(name=name, kind=kind, limit=limit, unit=self.unit, horizon_ms=self.horizon)

    def generator(self, read_names: ReadNames | None) -> Generator | None:
        """Return what generates the datasets, None where they are not generated.

        Raises:
            ValueError: As `expand`.
        """
        if self.generate is None or self.from_ is None:
            return None
        names = tuple(self._names(read_names)) if NAME_SLOT in self.generate else ("",)
        _longest(self.generate, max(names, key=lambda name: len(name.encode())))
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
        if self.file is None:
            return self.names or (self.name or "",)
        names = []
        for number, line in enumerate(lines_of(self.file, read_names), start=1):
            text = line.strip()
            if text and not text.startswith("#"):
                try:
                    names.append(dataset_name(text))
                except ValueError as error:
                    raise ValueError(f"{quote(self.file)} line {number}: {error}") from None
        if not names:
            raise ValueError(f"{quote(self.file)} holds no names")
        return names


def lines_of(name: str, read_names: ReadNames | None) -> Sequence[str]:
    """Return the lines of a file that a configuration names.

    Raises:
        ValueError: It cannot be read, or nothing reads files here.
    """
    if read_names is None:
        raise ValueError(f"{quote(name)}: no file can be read here: write the names out")
    try:
        return read_names(name)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ValueError(f"cannot read {quote(name)}: {reason}") from None
