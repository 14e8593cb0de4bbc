"""Types of configuration values: exact numbers, durations, limits, names.

Each type reads YAML text (never a binary float) or a Python value, and has its own JSON Schema.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Annotated

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
)

from stream_svt.privacy.ledger import MAX_UNITS
from stream_svt.privacy.loss import Kind, as_text, exact, to_units
from stream_svt.settings.messages import did_you_mean, quote

_DURATION_PART = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|h|d|w)", re.ASCII)
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_LONGEST_MS = 100 * 365 * 86_400_000
RATIO_SCHEMA = {
    "type": "string",
    "pattern": r"^[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?( ?/ ?[0-9]+)?$",
}
DURATION_SCHEMA = {"type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d|w))+$"}
NUMBER_SCHEMA = {"anyOf": [{"type": "number"}, RATIO_SCHEMA]}


def number(value: object) -> Fraction:
    """Return an exact number, or raise ValueError saying what was found."""
    try:
        return exact(value)  # type: ignore[arg-type]  # refuses what it does not know
    except (TypeError, ValueError):
        hint = ", which is binary and inexact: write it as text" if isinstance(value, float) else ""
        raise ValueError(f"expected a number such as 4, 0.25 or '1/3', found {quote(value)}{hint}") from None


def whole(value: object) -> object:
    """Let integers and decimals without a fraction pass (1e6), and nothing else."""
    if isinstance(value, Decimal) and value.is_finite() and abs(value) < 10**18 and value == int(value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"expected a whole number, found {quote(value)}")


def duration_ms(value: object) -> int:
    """Return milliseconds for a text such as "500ms", "10m" or "1h30m"; more than 0.

    >>> duration_ms("1h30m")
    5400000
    """
    if isinstance(value, str):
        text = value.replace(" ", "")
        if text and _DURATION_PART.sub("", text) == "":
            total = sum(
                Fraction(amount) * _MILLISECONDS[unit] for amount, unit in _DURATION_PART.findall(text)
            )
            if 1 <= total <= _LONGEST_MS:
                return math.floor(total)
            raise ValueError(f"a duration lies between 1ms and 100 years, found {quote(value)}")
    unit = ": the unit is missing" if isinstance(value, int | Decimal) and not isinstance(value, bool) else ""
    raise ValueError(
        f"expected a duration such as 500ms, 30s, 10m, 12h, 7d or 1h30m, found {quote(value)}{unit}"
    )


def duration_text(milliseconds: int) -> str:
    """Return a duration in the largest unit that divides it."""
    if milliseconds == 0:
        return "0s"
    size, unit = max((size, unit) for unit, size in _MILLISECONDS.items() if milliseconds % size == 0)
    return f"{milliseconds // size}{unit}"


def _duration_or_zero(value: object) -> int:
    if value == 0 and not isinstance(value, bool):
        return 0
    return 0 if value in {"0s", "0ms"} else duration_ms(value)


def _schema(**constraints: object) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": "number", **constraints}, RATIO_SCHEMA]})


_AS_TEXT = PlainSerializer(str, return_type=str)

Exact = Annotated[Fraction, PlainValidator(number), _AS_TEXT, WithJsonSchema(NUMBER_SCHEMA)]
PositiveExact = Annotated[Exact, Field(gt=0), _schema(exclusiveMinimum=0)]
NonNegativeExact = Annotated[Exact, Field(ge=0), _schema(minimum=0)]
Proportion = Annotated[Exact, Field(gt=0, lt=1), _schema(exclusiveMinimum=0, exclusiveMaximum=1)]

Flag = Annotated[bool, Field(strict=True)]

_DURATION_AS_TEXT = PlainSerializer(duration_text, return_type=str)

Duration = Annotated[int, PlainValidator(duration_ms), _DURATION_AS_TEXT, WithJsonSchema(DURATION_SCHEMA)]
DurationOrZero = Annotated[
    int,
    PlainValidator(_duration_or_zero),
    _DURATION_AS_TEXT,
    WithJsonSchema({"anyOf": [DURATION_SCHEMA, {"const": 0}]}),
]


def within(least_ms: int, most_ms: int) -> AfterValidator:
    """Return what refuses a duration outside of these milliseconds."""

    def check(value: int) -> int:
        if not least_ms <= value <= most_ms:
            limits = f"{duration_text(least_ms)} and {duration_text(most_ms)}"
            raise ValueError(f"must lie between {limits}, found {duration_text(value)}")
        return value

    return AfterValidator(check)


@dataclass(frozen=True, slots=True)
class Limit:
    """Most that may ever be lost about a dataset: ``units`` of ``kind`` (see `stream_svt.privacy.loss`)."""

    kind: Kind
    units: int

    def written(self) -> dict[str, str]:
        """Return the limit as it stands in a file."""
        return {self.kind.measure: as_text(self.units, self.kind)}


def _limit(value: object) -> Limit:
    if isinstance(value, Limit):
        return value
    kind, amount = Kind.PURE, value
    if isinstance(value, dict):
        measures = {kind.measure: kind for kind in Kind}
        if len(value) != 1:
            raise ValueError("expected one measure: a number, {epsilon: 4} or {rho: 0.1}")
        ((measure, amount),) = value.items()
        if measure not in measures:
            near = did_you_mean(measure, list(measures))
            raise ValueError(f"unknown measure {quote(measure)}; expected epsilon or rho{near}")
        kind = measures[measure]
    loss = number(amount)
    units = to_units(loss, kind)
    if loss <= 0:
        raise ValueError(f"must be greater than 0, found {quote(amount)}")
    if not 1 <= units <= MAX_UNITS:
        raise ValueError(
            f"a limit lies between {1 / kind.units:.0e} and {MAX_UNITS / kind.units:.0e}, found "
            f"{quote(amount)}"
        )
    return Limit(kind, units)


_MEASURE = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, RATIO_SCHEMA]}
_MEASURES = [
    {
        "type": "object",
        "properties": {kind.measure: _MEASURE},
        "required": [kind.measure],
        "additionalProperties": False,
    }
    for kind in Kind
]

LimitField = Annotated[
    Limit,
    PlainValidator(_limit),
    PlainSerializer(Limit.written),
    WithJsonSchema({"anyOf": [*_MEASURE["anyOf"], *_MEASURES]}),
]


def _pattern(pattern: str, expected: str) -> Callable[[object], str]:
    compiled = re.compile(pattern)

    def check(value: object) -> str:
        if isinstance(value, str) and compiled.fullmatch(value):
            return value
        hint = ": put it in quotes" if isinstance(value, int | Decimal) else ""
        raise ValueError(f"expected {expected}, found {quote(value)}{hint}")

    return check


_NAME = r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?"
_TOPIC = r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,248}"
_DATASET = r"[^\s/*?\[\]\x00-\x20\x7f]{1,200}"


Name = Annotated[
    str,
    PlainValidator(_pattern(_NAME, "a name of lower-case letters, digits and inner dashes (at most 64)")),
    WithJsonSchema({"type": "string", "pattern": f"^{_NAME}$"}),
]

TopicName = Annotated[
    str,
    PlainValidator(
        _pattern(_TOPIC, "a Kafka topic name (letters, digits, dot, underscore, dash; at most 249)")
    ),
    WithJsonSchema({"type": "string", "pattern": f"^{_TOPIC}$"}),
]


dataset_name = _pattern(_DATASET, "a dataset name without spaces, slashes or any of * ? [ ] (at most 200)")

DatasetName = Annotated[
    str, PlainValidator(dataset_name), WithJsonSchema({"type": "string", "pattern": f"^{_DATASET}$"})
]


Text = Annotated[
    str,
    BeforeValidator(_pattern(r"(?s).*\S.*", "a text that is not empty")),
    StringConstraints(strip_whitespace=True, min_length=1),
]


def _day(value: object) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    raise ValueError(f"expected a day such as 2026-01-05, found {quote(value)}")


Day = Annotated[date, PlainValidator(_day), _AS_TEXT, WithJsonSchema({"type": "string", "format": "date"})]


def midnight_ms(day: date) -> int:
    """Return the first millisecond of a day, UTC, since 1970."""
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1000
