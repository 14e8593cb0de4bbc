"""Types of configuration values, read exactly from YAML text or Python values, each with its own JSON Schema."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, Generic, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    Tag,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, core_schema

from stream_svt import plain_text
from stream_svt.errors import MisuseError
from stream_svt.mechanisms.noise import MONITORED, Noise
from stream_svt.mechanisms.numbers import exact
from stream_svt.privacy.ledger import MAX_UNITS
from stream_svt.privacy.loss import KINDS, Kind, to_units
from stream_svt.settings.document import KeyPath, Strict, did_you_mean, quote

Held = TypeVar("Held")

_DURATION_PART = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|h|d|w)", re.ASCII)
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_LONGEST_MS = 100 * 365 * 86_400_000
LAST_MS = 2**61
"""Timestamps beyond this, before or after 1970, count as this: a sum with a duration fits 62 bits."""
RATIO_SCHEMA = {
    "type": "string",
    "pattern": r"^[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?( ?/ ?[0-9]+)?$",
}
_DURATION = r"([0-9]+(\.[0-9]+)?(ms|s|m|h|d|w))+"
DURATION_SCHEMA = {"type": "string", "pattern": f"^{_DURATION}$"}
NUMBER_SCHEMA = {"anyOf": [{"type": "number"}, RATIO_SCHEMA]}


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """Annotation of a type: function to read a value, JSON Schema for editors, function to write it."""

    read: Callable[[Any], Any]
    schema: dict[str, Any]
    write: Callable[[Any], Any] | None = None

    def __get_pydantic_core_schema__(self, *_: object) -> CoreSchema:
        write = self.write and core_schema.plain_serializer_function_ser_schema(self.write)
        return core_schema.no_info_plain_validator_function(self.read, serialization=write)

    def __get_pydantic_json_schema__(self, *_: object) -> dict[str, Any]:
        return dict(self.schema)


@dataclass(frozen=True, slots=True, eq=False)
class Shorthand:
    """Annotation of a mapping that a simpler value may stand for: function to convert one, and its JSON Schema."""

    convert: Callable[[Any], Any]
    schema: dict[str, Any]

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.convert, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [self.schema, handler(schema)]}


def number(value: object) -> Fraction:
    """Return an exact number, or raise ValueError."""
    try:
        return exact(value)  # type: ignore[arg-type]  # raises TypeError for other types
    except (TypeError, ValueError):
        raise ValueError(f"expected a number such as 4, 0.25 or '1/3', found {quote(value)}") from None


def integer(value: object) -> object:
    """Return an integer, also for a decimal without a fraction such as 1e6, or raise ValueError."""
    if isinstance(value, Decimal) and value.is_finite() and abs(value) < 10**18 and value == int(value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"expected a whole number, found {quote(value)}")


def is_this_machine(host: str) -> bool:
    """Return whether a host name or address means the machine itself.

    >>> [is_this_machine(host) for host in ("localhost", "127.0.1.1", "::1", "0.0.0.0", "10.0.0.1", "broker")]
    [True, True, True, True, False, False]
    """
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified


def duration_ms(value: object) -> int:
    """Return milliseconds for a text such as "500ms", "10m" or "1h30m"; more than 0.

    >>> duration_ms("1h30m")
    5400000
    """
    text = value.replace(" ", "") if isinstance(value, str) else ""
    if text and _DURATION_PART.sub("", text) == "":
        parts = _DURATION_PART.findall(text)
        total = sum(Fraction(amount) * _MILLISECONDS[unit] for amount, unit in parts)
        if 1 <= total <= _LONGEST_MS:
            return math.floor(total)
        raise ValueError(f"must be between 1ms and 100 years, found {quote(value)}")
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
    return 0 if value in ("0s", "0ms", 0) and not isinstance(value, bool) else duration_ms(value)


def _limited(**limits: int) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": "number", **limits}, RATIO_SCHEMA]})


Exact = Annotated[Fraction, Form(number, NUMBER_SCHEMA, str)]
PositiveExact = Annotated[Exact, Field(gt=0), _limited(exclusiveMinimum=0)]
NonNegativeExact = Annotated[Exact, Field(ge=0), _limited(minimum=0)]
Proportion = Annotated[Exact, Field(gt=0, lt=1), _limited(exclusiveMinimum=0, exclusiveMaximum=1)]

Flag = Annotated[bool, Field(strict=True)]


def _pair(value: object) -> object:
    if isinstance(value, list | tuple) and len(value) == 2:
        return value
    raise ValueError(f"expected [low, high], such as [0, 100000], found {quote(value)}")


Bounds = Annotated[tuple[Exact, Exact], BeforeValidator(_pair)]

Duration = Annotated[int, Form(duration_ms, DURATION_SCHEMA, duration_text)]
DurationOrZero = Annotated[
    int, Form(_duration_or_zero, {"anyOf": [DURATION_SCHEMA, {"const": 0}]}, duration_text)
]


def within(least_ms: int, largest_ms: int) -> AfterValidator:
    """Return a validator for a range of durations in milliseconds."""

    def check(value: int) -> int:
        if not least_ms <= value <= largest_ms:
            limits = f"{duration_text(least_ms)} and {duration_text(largest_ms)}"
            raise ValueError(f"must be between {limits}, found {duration_text(value)}")
        return value

    return AfterValidator(check)


def http_address(text: str) -> str:
    """Return an address of HTTP, or raise ValueError with a message that does not repeat it."""
    with suppress(ValueError):
        parts = urlsplit(text)
        is_address = re.fullmatch(r"https?://[^\s/@]+(/\S*)?", text) and not plain_text.flaw(text)
        if is_address and parts.hostname and parts.port != 0:
            return text
    # It may hold a password.
    raise ValueError("expected an address such as https://host:port/path, without a user or password")


Url = Annotated[str, AfterValidator(http_address), Field(json_schema_extra={"pattern": "^https?://"})]


class Limit(NamedTuple):
    """A privacy budget: its measure, its units of `stream_svt.privacy.loss`, and the time in which it renews."""

    kind: Kind
    units: int
    per_ms: int | None = None


def _limit(value: object) -> Limit:
    kind, amount, per_ms = Kind.PURE, value, None
    if isinstance(value, dict):
        measures = {key: one for key, one in value.items() if key != "per"}
        if len(measures) != 1:
            raise ValueError(
                "expected one measure: a number, {epsilon: 4}, {epsilon: 4, per: 30d}, or {rho: 0.1}"
            )
        ((measure, amount),) = measures.items()
        if measure not in KINDS:
            near = did_you_mean(measure, KINDS)
            raise ValueError(f"unknown measure {quote(measure)}; expected epsilon or rho{near}")
        kind, per_ms = KINDS[measure], duration_ms(value["per"]) if "per" in value else None
    if (loss := number(amount)) <= 0:
        raise ValueError(f"must be greater than 0, found {quote(amount)}")
    if not 1 <= (units := to_units(loss, kind)) <= MAX_UNITS:
        limits = f"{1 / kind.units:.0e} and {MAX_UNITS / kind.units:.0e}"
        raise ValueError(f"must be between {limits}, found {quote(amount)}")
    return Limit(kind, units, per_ms)


def with_key(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a mapping with one key."""
    return {"type": "object", "properties": {name: schema}, "required": [name], "additionalProperties": False}


_AMOUNT: list[dict[str, Any]] = [{"type": "number", "exclusiveMinimum": 0}, RATIO_SCHEMA]
_EPSILON_PER = with_key("epsilon", {"anyOf": _AMOUNT})
_EPSILON_PER["properties"]["per"] = DURATION_SCHEMA

LimitField = Annotated[
    Limit, Form(_limit, {"anyOf": [*_AMOUNT, _EPSILON_PER, with_key("rho", {"anyOf": _AMOUNT})]})
]


def _pattern(pattern: str, expected: str) -> Callable[[object], str]:
    compiled = re.compile(pattern)

    def check(value: object) -> str:
        if isinstance(value, str) and compiled.fullmatch(value):
            return value
        hint = ": put it in quotes" if isinstance(value, int | Decimal) else ""
        raise ValueError(f"expected {expected}, found {quote(value)}{hint}")

    return check


def _named(pattern: str, expected: str) -> Form:
    return Form(_pattern(pattern, expected), {"type": "string", "pattern": f"^{pattern}$"})


def visible(text: str) -> str:
    """Return a text whose characters can be told apart; ValueError for others: see `plain_text.flaw`."""
    if why := plain_text.flaw(text):
        raise ValueError(f"{quote(text)} {why}")
    return text


_DATASET_PATTERN = r"(?!-)[^\s/*?\[\]\x00-\x20\x7f]{1,200}"
_spaceless = _pattern(
    _DATASET_PATTERN,
    "a dataset name without spaces, slashes, any of * ? [ ], and a dash at its beginning (at most 200)",
)


def dataset_name(value: object) -> str:
    """Return the name of a dataset; ValueError if it is not valid, or may look like another one."""
    if isinstance(value, str):
        visible(value)
    return _spaceless(value)


DatasetName = Annotated[str, Form(dataset_name, {"type": "string", "pattern": f"^{_DATASET_PATTERN}$"})]
_PLAIN = r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?"
_PLAIN_TEXT = "a name of lower-case letters, digits and inner dashes (at most 64)"
_NAME = _named(_PLAIN, _PLAIN_TEXT)
plain_name: Callable[[object], str] = _NAME.read
"""Returns the name of an application, a monitor or a destination; ValueError if it is not valid."""

Name = Annotated[str, _NAME]
END: Final = ".end"
"""End of the name of a monitor that `end` of another one makes: no file may declare it."""
MonitorName = Annotated[str, Form(_pattern(f"{_PLAIN}(?:{re.escape(END)})?", _PLAIN_TEXT), _NAME.schema)]
TopicName = Annotated[
    str,
    _named(
        r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,248}",
        "a Kafka topic name (letters, digits, dot, underscore, dash; at most 249)",
    ),
]
_AnyText = Annotated[
    str,
    BeforeValidator(_pattern(r"(?s).*\S.*", "a text that is not empty")),
    StringConstraints(strip_whitespace=True, min_length=1),
]
Text = Annotated[_AnyText, AfterValidator(visible)]


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain a NUL character")
    return text


PathText = Annotated[_AnyText, AfterValidator(_without_nul)]
"""The name of a file, or an argument of a program: both may have any other character."""
Argv = Annotated[tuple[PathText, ...], Field(min_length=1)]
FileOrProgram = Annotated[
    Annotated[PathText, Tag("file")] | Annotated[Argv, Tag("program")],
    Discriminator(lambda value: "program" if isinstance(value, list | tuple) else "file"),
]


@dataclass(frozen=True, slots=True)
class Named(Generic[Held]):
    """A file, or a program with its arguments, that a key names, and what was read there when the key was checked.

    ``note`` is advice about it, such as on its permissions.
    """

    name: str | tuple[str, ...]
    held: Held = field(default=None, repr=False)  # type: ignore[assignment]  # of a model that is made by hand
    note: str = ""

    def __str__(self) -> str:
        return quote(self.name if isinstance(self.name, str) else self.name[0])


@dataclass(frozen=True, slots=True, eq=False)
class Outside:
    """Annotation of a `Named`: the method of pydantic's context that reads it, and the type of its name.

    The method takes the name and returns the `Named`, or raises ValueError with a message that does not repeat what is
    held. Without a context, nothing is read.
    """

    method: str
    name: Any = PathText

    def __get_pydantic_core_schema__(self, _: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        write = core_schema.plain_serializer_function_ser_schema(lambda named: named.name)
        return core_schema.with_info_after_validator_function(
            self._read, handler.generate_schema(self.name), serialization=write
        )

    def _read(self, name: Any, info: ValidationInfo) -> Named[Any]:  # noqa: ANN401  a file or a program
        return Named(name) if info.context is None else getattr(info.context, self.method)(name)


LinesFile = Annotated[Named[Sequence[str]], Outside("lines")]
FirstLine = Annotated[Named[str], Outside("first_line")]
SecretFile = Annotated[Named[Path], Outside("secret_file")]
KeyFile = Annotated[Named[bytes], Outside("key")]
Authorities = Annotated[Named[Path], Outside("authorities")]
Certificate = Annotated[Named[Path], Outside("certificate")]
PrivateKey = Annotated[Named[Path], Outside("private_key")]
Program = Annotated[Named[Path], Outside("directory", Argv)]
"""Holds the directory where it is started."""


def held_by(*named: Named[Held] | None) -> list[Held | None]:
    """Return what each file or program holds; None without one."""
    return [None if one is None else one.held for one in named]


def opened(read: Callable[[str], Held], name: str) -> Held:
    """Return what a function reads from a file; ValueError names the file that it cannot read."""
    try:
        return read(name)
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {quote(name)}: {getattr(error, 'strerror', None) or error}") from None


def advice(part: object, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Yield the advice about what a part of a configuration names, with the paths of its keys."""
    if isinstance(part, Named) and part.note:
        yield path, part.note
    steps = part if isinstance(part, Strict) else enumerate(part) if isinstance(part, tuple) else ()
    for step, one in steps:
        yield from advice(one, (*path, step))


def _day(value: object) -> date:
    try:
        return date.fromisoformat(value)  # type: ignore[arg-type]  # raises TypeError for other types
    except (TypeError, ValueError):
        raise ValueError(f"expected a day such as 2026-01-05, found {quote(value)}") from None


Day = Annotated[date, Form(_day, {"type": "string", "format": "date"})]


def midnight_ms(day: date) -> int:
    """Return the first millisecond of a day, UTC, since 1970."""
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1000


MAX_ATTEMPTS = 255


class Mute(StrEnum):
    """How long a series is muted after its top, other than a duration."""

    PERIOD = "period"
    RUN = "run"
    NONE = "none"


# --- corrections


class ExposureOptions(Strict):
    """For streams: accounts for every test that the budget must last for."""

    kind: Literal["exposure"] = "exposure"
    false_alerts: PositiveExact | None = None
    """Alerts a whole run may waste if every query lies on the threshold. Default: cutoff / 10."""


class AnnealedOptions(Strict):
    """For finite sets: the bar falls from pass to pass. Only with `append: sweep`."""

    kind: Literal["annealed"] = "annealed"
    start: Exact = Fraction(12)
    """Correction of the first pass, in query-noise scales. Default 12."""
    end: Exact = Fraction(-3)
    """Correction of the last pass, in query-noise scales. Default -3."""
    step: PositiveExact = Fraction(1)
    """Fall from pass to pass, in query-noise scales. Default 1."""


class Plain(Strict):
    """Without options: closed form for a finite number of queries, mean of the noise subtracted, or none."""

    kind: Literal["optimal", "mean", "none"]


class Table(Strict):
    """Corrections in real units by attempt; the last one applies to all later attempts."""

    kind: Literal["table"] = "table"
    table: Annotated[tuple[Exact, ...], Field(min_length=1, max_length=MAX_ATTEMPTS + 1)]
    """Corrections in real units, by attempt."""


def _tagged(value: object, forms: Collection[str], expected: str) -> object:
    """Convert a name or {name: options} to {"kind": name, ...}, for a discriminated union."""
    if isinstance(value, Strict) or (isinstance(value, dict) and "kind" in value):
        return value
    name, options = value, None
    if isinstance(value, dict) and len(value) == 1:
        ((name, options),) = value.items()
    if name in forms and isinstance(options, dict | None):
        return {"kind": name, **(options or {})}
    if name in forms:
        raise ValueError(f"expected a mapping of options for {name}, found {quote(options)}")
    near = did_you_mean(name, forms) if isinstance(name, str) else ""
    raise ValueError(f"expected {expected}, found {quote(name)}{near}")


def _options(name: str, model: type[Strict]) -> dict[str, Any]:
    schema = model.model_json_schema()
    del schema["title"], schema["properties"]["kind"]
    return with_key(name, schema)


_CORRECTION_NAMES = ("exposure", "annealed", "optimal", "mean", "none")
_CORRECTION_WORDS = (
    f"{', '.join(_CORRECTION_NAMES)}, a number in real units, {{table: [20, 10]}} with one for each pass, or a "
    "name with options such as {annealed: {start: 12, end: 3}}"
)


def _correction(value: object) -> object:
    if isinstance(value, dict) and value.keys() == {"table"}:
        return {"kind": "table", **value}
    if not isinstance(value, bool | dict | list | Strict | None):
        with suppress(ValueError):
            return {"kind": "table", "table": [number(value)]}
    return _tagged(value, _CORRECTION_NAMES, _CORRECTION_WORDS)


CorrectionField = Annotated[
    Annotated[ExposureOptions | AnnealedOptions | Plain | Table, Field(discriminator="kind")],
    BeforeValidator(_correction),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": [*_CORRECTION_NAMES]},
                NUMBER_SCHEMA,
                _options("exposure", ExposureOptions),
                _options("annealed", AnnealedOptions),
                with_key("table", {"type": "array", "items": NUMBER_SCHEMA, "minItems": 1}),
            ]
        }
    ),
]


# --- append


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Longest wait of a bottom: offsets of its partition, or milliseconds on the broker's clock."""

    offsets: int | None = None
    ms: int | None = None

    def written(self) -> int | str:
        """Return the lifetime as written in a file."""
        return (self.offsets or 0) if self.ms is None else duration_text(self.ms)


def _lifetime(value: object) -> Lifetime:
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise ValueError(f"must be at least 1 offset, found {value}")
        return Lifetime(offsets=value)
    try:
        return Lifetime(ms=duration_ms(value))
    except ValueError:
        expected = "expected a number of offsets or a duration such as 10m"
        raise ValueError(f"{expected}, found {quote(value)}") from None


class Sweep(Strict):
    """Queries carry a public set id; when a set closes, its bottoms are tested in passes."""

    kind: Literal["sweep"] = "sweep"
    alerts_per_set: Annotated[int, Field(ge=1, le=1_000_000), BeforeValidator(integer)] = 10
    """Alerts after which the sweep of a set ends. Default 10."""
    max_open_sets: Annotated[int, Field(ge=1, le=100_000), BeforeValidator(integer)] = 4
    """Open sets of a dataset; queries of further sets are tested on arrival only. Default 4."""
    max_set_size: Annotated[int, Field(ge=1, le=10_000_000), BeforeValidator(integer)] = 50_000
    """Queries a set keeps for its sweep; later ones are tested once. Default 50000."""
    close_after: Duration | None = None
    """Close a set this long after its first query, on the broker's clock. Default: only a marker record closes it."""


class Retry(Strict):
    """A bounded queue of series whose last test was a bottom; each is retested on its latest value."""

    kind: Literal["retry"] = "retry"
    attempts: Annotated[int, Field(ge=2, le=MAX_ATTEMPTS), BeforeValidator(integer)] = 5
    """Tests per query, including the first. Default 5."""
    lifetime: Annotated[
        Lifetime,
        Form(_lifetime, {"anyOf": [{"type": "integer", "minimum": 1}, DURATION_SCHEMA]}, Lifetime.written),
    ] = Lifetime(offsets=4000)
    """How long a series stays in the queue: offsets of the partition, or a duration. At most the topic's
    retention. Default 4000 offsets."""
    capacity: Annotated[int, Field(ge=1, le=1_000_000), BeforeValidator(integer)] = 1000
    """Series in the queue; another one drops the oldest. Default 1000."""
    every: Annotated[int, Field(ge=1), BeforeValidator(integer)] = 1000
    """Number of the dataset's queries between two rounds of retries. Default 1000."""


def _append(value: object) -> object:
    if value is None or value is False or value == "off":
        return None
    expected = "off, sweep, retry, or one with options such as {retry: {attempts: 5}}"
    return _tagged(value, ("sweep", "retry"), expected)


AppendField = Annotated[
    Annotated[Sweep | Retry, Field(discriminator="kind")] | None,
    BeforeValidator(_append),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["off", "sweep", "retry", False, None]},
                _options("sweep", Sweep),
                _options("retry", Retry),
            ]
        }
    ),
]


# --- runs

AUTO: Final = "auto"
"""Value of `max_runs` that `MonitorSpec.runs_allowed` replaces by a maximum of each dataset."""
MOST_RUNS = 100
"""Largest maximum: the state holds the begins of so many runs for a monitor on a dataset."""


@dataclass(frozen=True, slots=True)
class MaxRuns:
    """The largest number of runs of a monitor on a dataset that may begin within ``within_ms``."""

    count: int
    within_ms: int

    def __str__(self) -> str:
        return f"{self.count} per {duration_text(self.within_ms)}"


_MAX_RUNS = re.compile(r"(\d{1,9}) per (\S.*)", re.ASCII)


def _max_runs(value: object) -> MaxRuns | str | None:
    if value is None or value is False or value == "off":
        return None
    if value == AUTO or isinstance(value, MaxRuns):
        return value
    if not isinstance(value, str) or (match := _MAX_RUNS.fullmatch(value.strip())) is None:
        raise ValueError(f"expected auto, off, or a maximum such as 2 per 1d, found {quote(value)}")
    if not 1 <= (count := int(match[1])) <= MOST_RUNS:
        raise ValueError(f"must be between 1 and {MOST_RUNS} runs, or off, found {quote(value)}")
    return MaxRuns(count, duration_ms(match[2]))


_RUNS_SCHEMA = {"type": "string", "pattern": f"^[0-9]+ per {_DURATION}$", "examples": ["2 per 1d"]}
MaxRunsField = Annotated[
    MaxRuns | Literal["auto"] | None,
    Form(_max_runs, {"anyOf": [{"enum": [AUTO, "off"]}, _RUNS_SCHEMA]}, lambda rule: str(rule or "off")),
]


# --- noise and mutes


def _noise(value: object) -> Noise:
    try:
        return Noise.parse(str(value))
    except MisuseError as error:
        raise ValueError(f"{error}{did_you_mean(value, MONITORED)}") from None


def _mute(value: object) -> Mute | int:
    if value is None or value in list(Mute):
        return Mute(str(value or Mute.NONE))
    try:
        return duration_ms(value)
    except ValueError:
        near = did_you_mean(value, Mute) if isinstance(value, str) else ""
        expected = "period, run, none or a duration such as 10m"
        raise ValueError(f"expected {expected}, found {quote(value)}{near}") from None


NoiseField = Annotated[Noise, Form(_noise, {"enum": [*map(str, MONITORED)]}, str)]

MuteField = Annotated[
    Mute | int,
    Form(
        _mute,
        {"anyOf": [{"enum": [*map(str, Mute)]}, DURATION_SCHEMA]},
        lambda mute: mute if isinstance(mute, Mute) else duration_text(mute),
    ),
]
