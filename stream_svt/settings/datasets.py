"""Private datasets with one ledger each: declared by name, in a file of names, or by a generator of periods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Annotated

import msgspec
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
)

from stream_svt.privacy.loss import Kind
from stream_svt.settings import fields
from stream_svt.settings.document import Found, Strict, Used, consistent, quote, unused
from stream_svt.settings.periods import (
    DATE_SLOT,
    DAY_MS,
    NAME_SLOT,
    SLOTS,
    WEEK_SLOT,
    Renewal,
    Watermarks,
    length_ms,
    period_at,
    period_end,
    period_name,
    periods_of,
    with_length,
    written,
)

MAX_DATASETS = 1_000_000
HORIZON_MS = 30 * DAY_MS
"""Horizon of a dataset that declares none, in ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Budget and time of private datasets.

    Attributes:
        kind, limit, spent_before: The measure, the privacy budget, and the part of it that an earlier application
            spent, in units of `stream_svt.privacy.loss`.
        from_ms, until_ms, lateness_ms: Begin and end of a period, and how long after the end late queries still
            count. UTC milliseconds on the broker's clock.
        horizon_ms: How long the budget should last, for burn rates and `max_runs: auto`. It may change.
        pattern: The generator's pattern, "" for a dataset that is not generated.
        renewal: What a limit that renews promises; ``limit`` is its share of a period. ``unit`` repeats it.
    """

    kind: Kind
    limit: int
    unit: str
    from_ms: int | None = None
    until_ms: int | None = None
    lateness_ms: int | None = None
    horizon_ms: int = field(default=HORIZON_MS, compare=False)
    spent_before: int = 0
    pattern: str = field(default="", compare=False)
    renewal: Renewal | None = field(default=None, compare=False)

    @property
    def declaration(self) -> tuple[str, int, str, int | None, int | None]:
        """Kind, limit, unit and period, which never change while a dataset exists."""
        return (self.kind.value, self.limit, self.unit, self.from_ms, self.until_ms)

    @property
    def ends_ms(self) -> int | None:
        """The moment from which no query counts, None for datasets without a period."""
        return None if self.until_ms is None else self.until_ms + (self.lateness_ms or 0)


class DatasetSpec(msgspec.Struct, frozen=True, gc=False):
    """One private dataset: its name, and `Terms` that those declared with it share."""

    name: str
    terms: Terms


@dataclass(frozen=True, slots=True)
class Balance:
    """One dataset's ledger, in ledger units; ``declared`` is the limit declared, before commands raised it."""

    unit: str
    kind: Kind
    declared: int
    limit: int
    spent: int

    def continued(self, dataset: DatasetSpec) -> DatasetSpec:
        """Return a dataset with this limit and spending."""
        return DatasetSpec(dataset.name, replace(dataset.terms, limit=self.limit, spent_before=self.spent))


OR_PATTERN = fields.Shorthand(
    lambda value: {"pattern": value} if isinstance(value, str) else value, {"type": "string"}
)
"""Annotation of a mapping with a dataset's pattern, which may be written alone."""


@dataclass(frozen=True, slots=True)
class RetiredDatasets:
    """Datasets that a shard's state records as retired: by period, or by names no longer declared."""

    watermarks: Watermarks = field(default_factory=dict)
    retired: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """An endless sequence of private datasets: one per period, or one per name and period.

    A dataset exists from its first query on, and is retired once its period and the lateness are over. ``each`` has
    the settings that the datasets share, ``names`` the values of the placeholder {name}, ("",) without one. Of the
    periods that end until ``begun_ms`` only the datasets in ``balances`` exist: an earlier application had begun them.
    """

    each: Terms
    names: tuple[str, ...]
    from_ms: int
    begun_ms: int = 0
    balances: Mapping[str, Balance] = field(default_factory=dict, compare=False, repr=False)

    @property
    def pattern(self) -> str:
        """The name with a placeholder for the period, its length and begins."""
        return self.each.pattern

    @property
    def written(self) -> str:
        """The pattern as the configuration has it."""
        return written(self.pattern)

    def periods(self, after_ms: int, before_ms: int) -> Iterator[DatasetSpec]:
        """Yield the datasets of the periods that end after one moment and begin before another."""
        for begin in self.begins(after_ms, before_ms):
            yield from self.period(begin)

    def begins(self, after_ms: int, before_ms: int) -> range:
        """Return the begins of the periods that end after one moment and begin before another."""
        first = max(self.from_ms, period_at(self.pattern, after_ms)[0])
        return range(first, before_ms, length_ms(self.pattern))

    def period(self, begin_ms: int) -> Iterator[DatasetSpec]:
        """Yield the datasets of the period that begins at a moment."""
        has_begun, balances = begin_ms < self.begun_ms, self.balances
        for dataset in self.named(begin_ms):
            balance = balances.get(dataset.name) if balances else None
            if balance is not None:
                yield balance.continued(dataset)
            elif not has_begun:
                yield dataset

    def named(self, begin_ms: int) -> Iterator[DatasetSpec]:
        """Yield the datasets of a period as declared, whatever an earlier application did."""
        text = period_name(self.pattern, begin_ms)
        until_ms = begin_ms + length_ms(self.pattern)
        terms = replace(self.each, from_ms=begin_ms, until_ms=until_ms)
        for name in self.names:
            yield DatasetSpec(text.replace(NAME_SLOT, name), terms)

    def find(self, name: str) -> DatasetSpec | None:
        """Return the dataset of a generated name, in any period; None for other names."""
        if (end := period_end(self.pattern, name)) is None or end <= self.from_ms:
            return None
        return next((one for one in self.period(end - length_ms(self.pattern)) if one.name == name), None)


def has_slots(pattern: str, names: int) -> bool:
    """Return whether a pattern of a source's datasets has one period at most, and {name} at most so many times."""
    is_plain = sum(map(pattern.count, SLOTS)) <= 1 and written(pattern) == pattern
    return is_plain and pattern.count(NAME_SLOT) <= names


_FORMS = ("name", "names", "file", "generate")
_GENERATED = Used("generate")


def generator_pattern(value: object) -> str:
    """Return the pattern of a generator's names; ValueError if the text is no pattern."""
    if not isinstance(value, str) or sum(value.count(slot) for slot in SLOTS) != 1:
        raise ValueError(f"expected a name with one of {' or '.join(SLOTS)} in it, found {quote(value)}")
    if value.count(NAME_SLOT) > 1:
        raise ValueError(f"expected {NAME_SLOT} once at most, found {quote(value)}")
    _generated_name(value, "name")
    return value


def _generated_name(pattern: str, name: str) -> str:
    """Return a name that a generator produces; ValueError if it is not a valid dataset name."""
    return fields.dataset_name(
        pattern.replace(periods_of(pattern).slot, "2026-01-05").replace(NAME_SLOT, name)
    )


def names_in(file: fields.Named[Sequence[str]], checked: Callable[[str], str]) -> list[str]:
    """Return the names in the lines of a file; ValueError without a name, or for one that ``checked`` refuses."""
    names: list[str] = []
    for number, line in enumerate(file.held, start=1):
        text = line.strip(" \t")
        try:
            names += [checked(text)] if text and not text.startswith("#") else []
        except ValueError as error:
            raise ValueError(f"{file} line {number}: {error}") from None
    if not names:
        raise ValueError(f"{file} contains no names")
    return names


def _named_in(file: fields.Named[Sequence[str]]) -> fields.Named[Sequence[str]]:
    return replace(file, held=names_in(file, fields.dataset_name))


class DatasetDeclaration(Strict):
    """One or more private datasets with the same limit and unit; each has its own ledger."""

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

    name: fields.DatasetName | None = None
    """The name of one dataset: the key of its queries."""
    names: Annotated[tuple[fields.DatasetName, ...], Field(min_length=1)] | None = None
    """Several names."""
    file: Annotated[fields.LinesFile, AfterValidator(_named_in)] | None = None
    """A file with one name a line; lines beginning with # are skipped."""
    generate: Annotated[str, BeforeValidator(generator_pattern)] | None = None
    """A name with {iso_week} (2026-w01) or {date} (2026-01-05): one dataset per period; with {name} as
    well, one per name and period. Only for privacy units within one period (an event, a user's day)."""
    from_: Annotated[fields.Day | None, _GENERATED] = Field(default=None, alias="from")
    """First day generated (UTC); for weeks, a Monday."""
    until: Annotated[fields.Day | None, _GENERATED] = None
    """First day that is not generated (UTC); for weeks, a Monday. Default: no end."""
    lateness: Annotated[fields.DurationOrZero, _GENERATED] = 0
    """Time after the end of its period during which a dataset accepts queries, on the broker's clock. Default 0."""
    every: Annotated[fields.Duration, _GENERATED] | None = None
    """With {date}: length of a period, in whole days from `from` on; its name has its first day. Required with a limit
    `per`. Default 1d."""
    looks_back: Annotated[fields.DurationOrZero, _GENERATED] = 0
    """With a limit `per`: the longest time from the begin of the oldest window that a question reads to the begin of
    the window that it tests. Default 0."""
    new: bool = False
    """With carried_over: the predecessor never had these datasets. Required if its alerts have gaps. Default
    false."""
    horizon: fields.Duration | None = None
    """Planned life of the budget, such as 90d, for burn rates and max_runs: auto. For a generated dataset its
    period. Default 30d."""
    limit: fields.LimitField
    """Privacy budget, the largest total loss: epsilon as a number or {epsilon: 4}, or {rho: 0.1} for zCDP. With
    {epsilon: 4, per: 30d} for the events of any 30 days, however many periods there are: each dataset gets its part."""
    unit: fields.Text | None = None
    """The privacy unit in words, such as 'one basket' or 'one user'. Required, unless a source fills the datasets: it
    then follows from the source."""

    @consistent
    def _problems(self) -> Found:
        forms = [form for form in _FORMS if getattr(self, form) is not None]
        named = [form for form in forms if form != "generate" or NAME_SLOT not in (self.generate or "")]
        if not forms or len(named) > 1:
            which = f"{' and '.join(forms)} together" if forms else "none of them"
            yield "", f"expected exactly one of {', '.join(_FORMS)}, found {which}"
        elif self.generate is not None:
            yield from self._period_problems(self.generate)
            yield from self._renewal_problems(self.generate)
        else:
            yield from unused(self)
            if self.limit.per_ms:
                yield "limit", "per needs periods: declare generate, and every, their length; or remove per"

    def _period_problems(self, pattern: str) -> Found:
        if NAME_SLOT in pattern and not (self.name or self.names or self.file):
            yield "generate", f"with {NAME_SLOT} one of name, names and file is required too"
        if self.horizon is not None:
            yield "horizon", "a generated dataset's horizon is its period: remove horizon"
        if self.from_ is None:
            yield "from", "is required with generate: the first day, such as 2026-01-05"
            return
        is_weekly, length = WEEK_SLOT in pattern, timedelta(milliseconds=length_ms(self.pattern))
        for key, day in (("from", self.from_), ("until", self.until)):
            if day is not None and is_weekly and day.weekday():
                monday = day - timedelta(days=day.weekday())
                yield key, f"{day} is not a Monday: write {monday} or {monday + timedelta(weeks=1)}"
        if self.until is not None and self.until <= self.from_:
            yield "until", f"must be after from ({self.from_}), found {self.until}"
        elif self.until is not None and (self.until - self.from_) // length > MAX_DATASETS:
            yield "until", f"would generate more than {MAX_DATASETS} datasets"
        elif self.until is not None and not is_weekly and (rest := (self.until - self.from_) % length):
            days = f"{self.until - rest} or {self.until - rest + length}"
            yield "until", f"must be whole periods after from: write {days}, found {self.until}"
        # A name may combine with what stands beside it in the pattern: to other letters, or to one more.
        names = self._names if NAME_SLOT in pattern else ()
        for name in {
            max(names, key=len, default=""),
            *(one for one in names if not (pattern + one).isascii()),
        }:
            try:
                _generated_name(pattern, name)
            except ValueError as error:
                yield "file" if self.file else "generate", str(error)
                break

    def _renewal_problems(self, pattern: str) -> Found:
        kind, _, per_ms = self.limit
        if self.every is not None and WEEK_SLOT in pattern:
            yield "every", f"periods of {WEEK_SLOT} are weeks: remove every, or write {DATE_SLOT}"
        elif self.every is not None and self.every % DAY_MS:
            found = fields.duration_text(self.every)
            yield "every", f"must be whole days, found {found}: a period's name has its first day"
        if per_ms is None:
            if self.looks_back:
                yield "looks_back", "is used with a limit per only, such as {epsilon: 4, per: 30d}: remove it"
        elif kind is not Kind.PURE:
            message = (
                "per is impossible with rho: two runs with rho must not be open at once, and of two periods"
            )
            yield "limit", f"{message} each can have one. Write epsilon"
        elif self.every is None and WEEK_SLOT not in pattern:
            half = -(-(per_ms + self.looks_back) // (2 * DAY_MS))
            length = f"the length of a period, such as {half}d"
            yield (
                "every",
                f"is required with a limit per: {length}; 'stream-svt check' compares it with others",
            )
        elif (renewal := self.renewal) and not renewal.share:
            yield "limit", f"is too small for parts of {renewal.periods} periods: use longer ones"

    @property
    def pattern(self) -> str:
        """The pattern of a generator, with the length and begins of its periods: see `periods.with_length`."""
        if self.from_ is None or self.every is None or WEEK_SLOT in (self.generate or ""):
            return self.generate or ""
        days = -(-self.every // DAY_MS)
        return with_length(self.generate or "", days, fields.midnight_ms(self.from_) // DAY_MS)

    @property
    def renewal(self) -> Renewal | None:
        """The limit per time of these datasets, None without one."""
        _, limit, per_ms = self.limit
        return None if per_ms is None else Renewal(limit, per_ms, self.looks_back, length_ms(self.pattern))

    @property
    def _names(self) -> Sequence[str]:
        return self.file.held if self.file else self.names or (self.name or "",)

    def samples(self, begin_ms: int) -> Sequence[str]:
        """Return the names declared; for a generator, the names of the period that begins at a moment (UTC ms)."""
        if self.generate is None:
            return self._names
        pattern = period_name(self.pattern, begin_ms)
        return [pattern.replace(NAME_SLOT, name) for name in self._names]

    def expand(self) -> tuple[Iterator[DatasetSpec], Generator | None]:
        """Return the datasets declared; for a generator without an end, its first period, and the generator."""
        kind, limit, _ = self.limit
        each = Terms(kind=kind, limit=limit, unit=self.unit or "", horizon_ms=self.horizon or HORIZON_MS)
        if self.generate is None or self.from_ is None:
            return (DatasetSpec(name, each) for name in self._names), None
        pattern, renewal = self.pattern, self.renewal
        each = replace(each, lateness_ms=self.lateness, horizon_ms=length_ms(pattern), pattern=pattern)
        if renewal is not None:
            each = replace(
                each, limit=renewal.share, unit=f"{each.unit} ({renewal.promise})", renewal=renewal
            )
        names = tuple(self._names) if NAME_SLOT in self.generate else ("",)
        generator = Generator(each=each, names=names, from_ms=fields.midnight_ms(self.from_))
        if self.until is None:
            return generator.named(generator.from_ms), generator
        return generator.periods(generator.from_ms, fields.midnight_ms(self.until)), None
