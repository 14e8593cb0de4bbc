"""The key `datasets` of the file: names, lists, files and generators.

Datasets are declared, never created by a message: a dataset that exists only because of what the data holds
would itself be an output without a charge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from stream_svt.settings.datasets import _PERIODS, MAX_DATASETS, NAME_SLOT, DatasetSpec, Generator, _slot
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
from stream_svt.settings.validation import Strict, several

ReadNames = Callable[[str], Sequence[str]]
"""Returns the lines of a file of dataset names; raises OSError or UnicodeDecodeError."""


_FORMS = ("name", "names", "file", "generate")


def _generator(value: object) -> str:
    if not isinstance(value, str) or sum(value.count(slot) for slot in _PERIODS) != 1:
        raise ValueError(f"expected a name with one of {' or '.join(_PERIODS)} in it, found {quote(value)}")
    if value.count(NAME_SLOT) > 1:
        raise ValueError(f"expected {NAME_SLOT} once at most, found {quote(value)}")
    dataset_name(value.replace(_slot(value), "2026").replace(NAME_SLOT, "name"))
    return value


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

        Raises:
            ValueError: The file of names cannot be read, is empty, or has an invalid line; the message says
                where.
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

        Raises:
            ValueError: As `expand`.
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
        raise ValueError(f"cannot read {quote(path)}: {reason}") from None
    names = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if text and not text.startswith("#"):
            try:
                names.append(dataset_name(text))
            except ValueError as error:
                raise ValueError(f"{quote(path)} line {number}: {error}") from None
    if not names:
        raise ValueError(f"{quote(path)} holds no names")
    return names
