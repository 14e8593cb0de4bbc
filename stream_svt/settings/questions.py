"""Questions: values that monitors test in place of counts, computed from the counts of closed windows.

A question is a chain of operators in a fixed order. One unit moves the count of each window by 0 to k, and a question
by -a to b (`Question.moves`), in however many windows it has events. The value is tested as a monotonic value of
sensitivity a + b: a threshold that is b higher, or a lower, turns one case into the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from pydantic import AfterValidator, BeforeValidator, Field

from stream_svt.mechanisms.grid import FINEST
from stream_svt.settings import fields
from stream_svt.settings.document import Strict, consistent, did_you_mean, quote
from stream_svt.settings.periods import DAY_MS
from stream_svt.wording import SHOWN, listed

if TYPE_CHECKING:
    from stream_svt.settings.sources import SourceSpec

BOUND: Final = 2**46
"""Largest value of a question, in steps."""
MOST_WINDOWS: Final = 2_000
"""Windows from the oldest that a question reads to the one that it is about, at most."""
HIGHEST: Final = 2**40
"""Upper bound of a count, and of the threshold of a series."""
_LARGEST_PARTS: Final = 10**4
"""Values of 2^40 counts in such steps, times a factor of 100, have 64 bits."""


def _share(value: object) -> Fraction:
    """Return a share of the whole: a number below 1, or a text such as "1%"."""
    try:
        is_percent = isinstance(value, str) and value.endswith("%")
        found = fields.number(str(value)[:-1].strip()) / 100 if is_percent else fields.number(value)
    except ValueError:
        found = Fraction(0)
    if not 0 < found < 1:
        raise ValueError(f"expected a share such as 1% or 0.01, below 100%, found {quote(value)}")
    return _decimal(found, value)


def _decimal(found: Fraction, value: object) -> Fraction:
    if FINEST % found.denominator:
        raise ValueError(f"must be a decimal, found {quote(value)}")
    return found


def _factor(value: object) -> Fraction:
    if not 0 < (found := fields.number(value)) <= 100:
        raise ValueError(f"must be more than 0, and at most 100, found {quote(value)}")
    return _decimal(found, value)


_SHARE_SCHEMA = {
    "anyOf": [{"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, {"type": "string"}]
}
_Share = Annotated[Fraction, fields.Form(_share, _SHARE_SCHEMA, str)]
_Factor = Annotated[
    Fraction, fields.Form(_factor, {"type": "number", "exclusiveMinimum": 0, "maximum": 100}, str)
]
Count = Annotated[
    int, fields.Form(fields.integer, {"type": "integer", "minimum": 1}), Field(ge=1, le=MOST_WINDOWS)
]
Several = Annotated[
    int, fields.Form(fields.integer, {"type": "integer", "minimum": 2}), Field(ge=2, le=MOST_WINDOWS)
]


class ShareOptions(Strict):
    """The share of a part in the whole: what exceeds so much of it."""

    of: fields.Name
    """The measure of the part, such as errors: it has the conditions of the monitor's measure, and more."""
    above: _Share
    """The share that should not be exceeded, such as 1% or 0.01: the value is the part less this share of the whole."""


class UsualOptions(Strict):
    """The mean at the same time of earlier days or weeks, for comparison."""

    every: fields.Duration = 7 * DAY_MS
    """Time between the windows that are compared. Default 7d."""
    times: Count = 4
    """Number of earlier windows in the mean. Default 4."""
    factor: _Factor = Fraction(1)
    """The value is the count less the mean times this factor. Default 1."""


class VisitOptions(Strict):
    """The most windows in which a unit counts."""

    at_most: Count
    """Most of these windows in which a unit counts: its first ones."""
    in_: Several = Field(alias="in")
    """Number of consecutive windows."""

    @consistent
    def _problems(self) -> Iterator[tuple[str, str]]:
        if self.at_most >= self.in_:
            yield "at_most", f"must be less than in ({self.in_}), found {self.at_most}"


class ExcessOptions(Strict):
    """The largest sum of what the last windows have more than usual, for slow rises."""

    over: fields.NonNegativeExact
    """What a window has usually: a sum adds up what it has more."""
    windows: Several
    """How many windows a sum has at most."""
    visits: VisitOptions | None = None
    """For units that come rarely: with {at_most: 1, in: 24} a unit counts in one of any 24 windows at most, and a sum
    needs less distance. Default: a unit counts in each window."""


class ForOptions(Strict):
    """A value that several windows have."""

    windows: Several
    """How many windows are read, the last one among them."""
    at_least: Count
    """How many of them must have it."""

    @consistent
    def _problems(self) -> Iterator[tuple[str, str]]:
        if self.at_least > self.windows:
            yield "at_least", f"must be at most windows ({self.windows}), found {self.at_least}"


def _for(value: object) -> object:
    if isinstance(value, Mapping | ForOptions):
        return value
    try:
        windows = fields.integer(value)
    except ValueError:
        expected = "expected a number of windows such as 5, or {windows: 5, at_least: 4}"
        raise ValueError(f"{expected}, found {quote(value)}") from None
    return {"windows": windows, "at_least": windows}


def _thresholds(file: fields.Named[Sequence[str]]) -> fields.Named[Sequence[str]]:
    thresholds_in(file)
    return file


def thresholds_in(file: fields.Named[Sequence[str]]) -> Mapping[str, int]:
    """Return the thresholds in the lines of a file, by series; ValueError for a line without one, or twice the same."""
    return _parsed(str(file), tuple(file.held or ()))


@lru_cache(maxsize=16)
def _parsed(file: str, lines: tuple[str, ...]) -> Mapping[str, int]:
    """Return what `thresholds_in` does; cached, because a file with many series is asked for several times."""
    found: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip(" \t")
        if not text or text.startswith("#"):
            continue
        first, _, name = text.partition(" ")
        try:
            threshold = fields.integer(Decimal(first))
        except (ArithmeticError, ValueError):
            threshold = None
        if not isinstance(threshold, int) or not 0 <= threshold <= HIGHEST or not name.strip():
            raise ValueError(
                f"{file} line {number}: expected a whole number up to 2^40 and a series, found {quote(text)}"
            )
        if name.strip() in found:
            raise ValueError(f"{file} line {number}: {quote(name.strip())} occurs twice")
        found[name.strip()] = threshold
    return found


def _span(value: object) -> object:
    if isinstance(value, list | tuple) and len(value) == 2:
        return value
    found = f"a list of {len(value)}" if isinstance(value, list | tuple) else quote(value)
    raise ValueError(f"expected a short and a longer time, such as [5m, 1h], found {found}")


ThresholdsFile = Annotated[fields.LinesFile, AfterValidator(_thresholds)]


class EndOptions(Strict):
    """When an incident is over: a test in separate runs, after the alert of its series."""

    below: fields.Exact
    """The end is reported if the value is below this: choose it below the threshold by more than values fluctuate. With
    `for` and `over` the largest value must be below it, where the alert tests the smallest."""
    longest: fields.Duration = 7 * DAY_MS
    """After this time the series is tested for alerts again, even if no end was reported. Default 7d."""
    epsilon: fields.PositiveExact | None = None
    """Privacy loss of one whole run of ends. Default: the epsilon of the monitor."""
    cutoff: Annotated[int, Field(ge=1, le=1_000_000), BeforeValidator(fields.integer)] | None = None
    """Ends that one run pays for. Default: the cutoff of the monitor."""


_COUNT_SCHEMA = {"type": "integer", "minimum": 2, "maximum": MOST_WINDOWS}
ForField = Annotated[ForOptions, fields.Shorthand(_for, _COUNT_SCHEMA)]
Span = Annotated[tuple[fields.Duration, fields.Duration], BeforeValidator(_span)]


class QuestionKeys(Strict):
    """The keys of a monitor that make a question, in the order in which they apply; see `MonitorSpec`."""

    thresholds: ThresholdsFile | None = None
    share: ShareOptions | None = None
    usual: UsualOptions | None = None
    mean: Several | None = None
    over: Span | None = None
    excess: ExcessOptions | None = None
    for_: ForField | None = Field(default=None, alias="for")


KEYS: Final = tuple(info.alias or name for name, info in QuestionKeys.model_fields.items())


class Visits(msgspec.Struct, frozen=True):
    """Counts of a measure in which a unit counts in ``at_most`` of any ``among`` consecutive windows at most."""

    measure: str
    at_most: int
    among: int

    @property
    def name(self) -> str:
        """The name of these counts, in place of a measure's; no measure has a space."""
        return f"{self.measure} {self.at_most}/{self.among}"


class Question(msgspec.Struct, frozen=True):
    """What the counter of a source computes for one monitor, exactly, in steps of 1 / `parts`.

    Attributes:
        monitor: The monitor.
        rows: The name of its answers in records: see `MonitorSpec.rows`.
        measure: The measure of the counts.
        at_most: The most that one unit adds to a count.
        thresholds: The amounts subtracted from counts, by series of the window's list; () without any.
        share: The measure of the part, and the share as numerator and denominator; None without a share.
        usual: Windows between two earlier values, their number, and the factor as numerator and denominator; or None.
        mean: Windows of the mean.
        over: Windows of the short and of the long mean.
        excess: The usual value of a window, in steps, and the most windows of a sum.
        holds: How many windows are read, and how many of them must have the value.
        visits: The counts with visits that are read; None if a unit counts in each window.
        ends: Whether it asks for the end of an incident: the value is negated, so that lower values are reported.
    """

    monitor: str
    rows: str
    measure: str
    at_most: int
    thresholds: tuple[int, ...] = ()
    share: tuple[str, int, int] | None = None
    usual: tuple[int, int, int, int] | None = None
    mean: int = 1
    over: tuple[int, int] = (1, 1)
    excess: tuple[int, int] = (0, 1)
    holds: tuple[int, int] = (1, 1)
    visits: Visits | None = None
    ends: bool = False

    def ending(self) -> Question:
        """Return the question about the end of the incident: the value is exceeded in no window and no mean."""
        return msgspec.structs.replace(self, holds=(self.holds[0], 1), ends=True)

    @property
    def parts(self) -> int:
        """Steps of one unit of a count."""
        return (self.share[2] if self.share else 1) * (self.usual[3] if self.usual else 1)

    @property
    def moves(self) -> tuple[int, int]:
        """(a, b): one unit moves the value by -a to b, in steps, and each count by 0 to `at_most`.

        This holds between any two sets of a unit's events of which one contains the other. A minimum, a maximum, an
        ordered value and a mean rounded down to a step move by no more than the values do, and so do compositions.
        """
        down, up = 0, self.at_most
        if self.share is not None:
            _, part, whole = self.share
            down, up = part * up, whole * up
        if self.usual is not None:
            *_, factor, per = self.usual
            down, up = per * down + factor * up, per * up + factor * down
        if self.visits is not None:
            # Without its first visit a unit's later one may count.
            sums = -(-self.excess[1] // self.visits.among) * self.visits.at_most * up
            return sums, sums
        moves = down * self.excess[1], up * self.excess[1]
        return (moves[1], moves[0]) if self.ends else moves

    @property
    def earlier(self) -> int:
        """Number of windows before a window that are read in its period; `usual` reads other windows, too."""
        return self.mean + max(self.over) + self.excess[1] + self.holds[0] - 4

    @property
    def look_back(self) -> int:
        """Number of windows from the oldest one that is read to the one that the value is about."""
        return self.earlier + (self.usual[0] * self.usual[1] if self.usual else 0)

    def of_series(self, first: int, end: int) -> Question:
        """Return the question about some series of the list."""
        return msgspec.structs.replace(self, thresholds=self.thresholds[first:end])

    def continued(self, more: Question) -> Question:
        """Return the question with further series."""
        return msgspec.structs.replace(self, thresholds=self.thresholds + more.thresholds)

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures whose counts are read; with visits, the name of their counts."""
        if self.visits is not None:
            return (self.visits.name,)
        return (self.measure,) if self.share is None else (self.measure, self.share[0])


def rows_of(rows: str) -> str:
    """Return the name of the rows with answers to a question, in place of a measure's; no measure has a space."""
    return f"monitor {rows}"


def asked_by(monitor: str, keys: Any, measure: str, source: SourceSpec, rows: str = "") -> Question:  # noqa: ANN401  see below
    """Return the question of a monitor about a measure of a source.

    ``keys`` has the attributes of `QuestionKeys`, and ``rows`` goes into records.

    Raises:
        NotAsked: The keys contradict each other or the source.
    """
    asking = _Asking(keys, source, measure)
    found = Question(
        monitor,
        rows,
        measure,
        asking.of.at_most,
        asking.thresholds(),
        asking.share(),
        asking.usual(),
        keys.mean or 1,
        asking.over(),
        holds=(keys.for_.windows, keys.for_.at_least) if keys.for_ else (1, 1),
    )
    if keys.excess is not None:
        steps = keys.excess.over * found.parts
        if steps.denominator != 1 or steps > BOUND:
            multiple = "whole number" if found.parts == 1 else f"multiple of 1/{found.parts}"
            most = BOUND // found.parts
            wrong = f"must be a {multiple} of at most {most:,}, found {quote(keys.excess.over)}"
            asking.problems["excess.over"] = wrong
        excess = int(steps), keys.excess.windows
        found = msgspec.structs.replace(found, excess=excess, visits=asking.visits())
    if found.parts > _LARGEST_PARTS:
        both = "share.above and this factor together make" if keys.share and keys.usual else "it makes"
        steps_of_count = f"{found.parts:,} steps of a count, and at most {_LARGEST_PARTS:,} are kept"
        wrong = f"has too many decimals: {both} {steps_of_count}"
        asking.problems["usual.factor" if keys.usual else "share.above"] = wrong
    if found.look_back > MOST_WINDOWS:
        far = f"reads {found.look_back} windows back, and at most {MOST_WINDOWS} are kept"
        asking.problems[
            next(key for key in ("usual", "over", "mean", "excess", "for") if _has(keys, key))
        ] = far
    if asking.problems:
        raise NotAsked(asking.problems)
    return found


class _Asking:
    """Reads the keys of a question about a measure of a source, and collects their problems."""

    def __init__(self, keys: Any, source: SourceSpec, measure: str) -> None:  # noqa: ANN401  see `asked_by`
        self.keys, self.source, self.measure = keys, source, measure
        self.known = {one.name: one for one in source.measures}
        self.of = self.known[measure]
        self.problems: dict[str, str] = {}

    def thresholds(self) -> tuple[int, ...]:
        file = self.keys.thresholds
        if file is None or file.held is None:
            return ()
        by_series = thresholds_in(file)
        if lacking := [name for name in self.source.series_names if name not in by_series]:
            self.problems["thresholds"] = f"{file} has no threshold of {listed(lacking, SHOWN)}"
        return tuple(by_series.get(name, 0) for name in self.source.series_names)

    def share(self) -> tuple[str, int, int] | None:
        share: ShareOptions | None = self.keys.share
        if share is None:
            return None
        part = self.known.get(share.of)
        if part is None:
            near = did_you_mean(share.of, self.known) or f"; expected one of {', '.join(self.known)}"
            wrong = f"source {quote(self.source.name)} has no measure {quote(share.of)}{near}"
            self.problems["share.of"] = wrong
        elif (
            part is self.of
            or part.at_most != self.of.at_most
            or not {*self.of.conditions} <= {*part.conditions}
        ):
            must = (
                f"must be another measure with the same of, and with all conditions of {quote(self.measure)}"
            )
            self.problems["share.of"] = f"{must}: a part of what that counts"
        return (share.of, *share.above.as_integer_ratio())

    def usual(self) -> tuple[int, int, int, int] | None:
        usual: UsualOptions | None = self.keys.usual
        if usual is None:
            return None
        return (self._windows("usual.every", usual.every), usual.times, *usual.factor.as_integer_ratio())

    def over(self) -> tuple[int, int]:
        if self.keys.over is None:
            return (1, 1)
        short, long = self.keys.over
        if short >= long:
            self.problems["over"] = "expected a short and a longer time, such as [5m, 1h]"
        return self._windows("over", short), self._windows("over", long)

    def visits(self) -> Visits | None:
        visits: VisitOptions | None = self.keys.excess.visits
        if visits is None:
            return None
        if others := [key for key in ("share", "usual", "mean", "over") if _has(self.keys, key)]:
            self.problems["excess.visits"] = f"is for sums of counts: remove {listed(others, SHOWN)}"
        return Visits(self.measure, visits.at_most, visits.in_)

    def _windows(self, key: str, length_ms: int) -> int:
        if length_ms % self.source.window:
            window, length = map(fields.duration_text, (self.source.window, length_ms))
            self.problems[key] = f"must be a multiple of the window ({window}), found {length}"
        return max(length_ms // self.source.window, 1)


def _has(keys: Any, key: str) -> bool:  # noqa: ANN401
    return getattr(keys, "for_" if key == "for" else key) is not None


class NotAsked(Exception):
    """The keys of a question contradict each other or the source: a message by key."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__(problems)
        self.problems = problems
