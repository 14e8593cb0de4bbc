"""What a monitor may choose from: corrections, further tests of bottoms, mutes and noise."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from stream_svt.errors import MisuseError
from stream_svt.mechanisms.noise import MONITORED, Noise
from stream_svt.settings.fields import (
    DURATION_SCHEMA,
    NUMBER_SCHEMA,
    Duration,
    Exact,
    Form,
    PositiveExact,
    duration_ms,
    duration_text,
    number,
    whole,
    with_key,
)
from stream_svt.settings.validation import Strict, did_you_mean, quote

MAX_ATTEMPTS = 255


class MechanismForm(StrEnum):
    """Branches of the mechanism."""

    SVT = "svt"
    ADAPTIVE = "adaptive"
    LADDER = "ladder"


class OnHalt(StrEnum):
    """What follows a run that has used its tops."""

    RESAMPLE = "resample"
    STOP = "stop"


class Mute(StrEnum):
    """How long a series is left alone after its top, where that is no duration."""

    PERIOD = "period"
    RUN = "run"
    NONE = "none"


# --- corrections


class ExposureOptions(Strict):
    """For streams: accounts for every test the budget must last for."""

    kind: Literal["exposure"] = "exposure"
    false_alerts: PositiveExact | None = None
    """Alerts a whole run may waste if every query lay on the threshold. Default: cutoff / 10."""


class AnnealedOptions(Strict):
    """For finite sets: the bar falls pass after pass. Only with `append: sweep`."""

    kind: Literal["annealed"] = "annealed"
    start: Exact = Fraction(12)
    """Correction of the first pass, in query-noise scales. Default 12."""
    end: Exact = Fraction(-3)
    """Correction of the last pass, in query-noise scales. Default -3."""
    step: PositiveExact = Fraction(1)
    """Fall from pass to pass, in query-noise scales. Default 1."""


class Plain(Strict):
    """Without options: the closed form for a finite number of queries, the noise's mean taken away, or none."""

    kind: Literal["optimal", "mean", "none"]


class Table(Strict):
    """Corrections in real units by attempt; the last one holds for all later attempts."""

    kind: Literal["table"] = "table"
    table: Annotated[tuple[Exact, ...], Field(min_length=1, max_length=MAX_ATTEMPTS + 1)]
    """Corrections in real units, by attempt."""


def _tagged(value: object, forms: Collection[str], expected: str) -> object:
    """Bring a name, or {name: options}, to {"kind": name, ...}, which a union with tags understands."""
    if isinstance(value, Strict) or (isinstance(value, dict) and "kind" in value):
        return value
    name: object = value
    options: object = {}
    if isinstance(value, dict) and len(value) == 1:
        ((name, options),) = value.items()
        if name == "table" and name in forms:
            return {"kind": name, "table": options}
        if name in forms and not isinstance(options, dict | None):
            raise ValueError(f"expected a mapping of options for {name}, found {quote(options)}")
    if isinstance(name, str) and name in forms and value != "table":
        return {"kind": name, **(options if isinstance(options, dict) else {})}
    near = did_you_mean(name, forms) if isinstance(name, str) else ""
    raise ValueError(f"expected {expected}, found {quote(name)}{near}")


def _options(name: str, model: type[Strict]) -> dict[str, Any]:
    schema = model.model_json_schema()
    del schema["title"], schema["properties"]["kind"]
    return with_key(name, schema)


_SHORT = ("exposure", "annealed", "optimal", "mean", "none")
_CORRECTION_WORDS = (
    f"{', '.join(_SHORT)}, a number in real units, or one of them with options such as "
    "{annealed: {start: 12, end: 3}}"
)


def _correction(value: object) -> object:
    if not isinstance(value, bool | dict | list | Strict | None):
        with suppress(ValueError):
            return {"kind": "table", "table": [number(value)]}
    return _tagged(value, (*_SHORT, "table"), _CORRECTION_WORDS)


CorrectionField = Annotated[
    Annotated[ExposureOptions | AnnealedOptions | Plain | Table, Field(discriminator="kind")],
    BeforeValidator(_correction),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": [*_SHORT]},
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
    """How long a bottom may wait: offsets of its partition, or milliseconds on the broker's clock."""

    offsets: int | None = None
    ms: int | None = None

    def written(self) -> int | str:
        """Return the lifetime as it stands in a file."""
        return (self.offsets or 0) if self.ms is None else duration_text(self.ms)


def _lifetime(value: object) -> Lifetime:
    if isinstance(value, Lifetime):
        return value
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
    """Queries carry a public set id; when a set closes, its bottoms are tested pass after pass."""

    kind: Literal["sweep"] = "sweep"
    tops_per_set: Annotated[int, Field(ge=1, le=1_000_000), BeforeValidator(whole)] = 10
    """Tops after which the sweep of a set ends. Default 10."""
    max_open_sets: Annotated[int, Field(ge=1, le=100_000), BeforeValidator(whole)] = 4
    """Sets a dataset may have open; queries of one more are tested on arrival only. Default 4."""
    max_set_size: Annotated[int, Field(ge=1, le=10_000_000), BeforeValidator(whole)] = 50_000
    """Queries a set remembers for its sweep; later ones are tested once. Default 50000."""
    close_after: Duration | None = None
    """Close a set so long after its first query, on the broker's clock. Default: only a marker record closes it."""


class Retry(Strict):
    """A bounded queue of series whose last test was a bottom; each is tested again on its latest value."""

    kind: Literal["retry"] = "retry"
    attempts: Annotated[int, Field(ge=2, le=MAX_ATTEMPTS), BeforeValidator(whole)] = 5
    """Tests in all, the first included. Default 5."""
    lifetime: Annotated[
        Lifetime,
        Form(_lifetime, {"anyOf": [{"type": "integer", "minimum": 1}, DURATION_SCHEMA]}, Lifetime.written),
    ] = Lifetime(offsets=4000)
    """How long a series stays in the queue: offsets of the partition, or a duration. Must fit the
    topic's retention. Default 4000 offsets."""
    capacity: Annotated[int, Field(ge=1, le=1_000_000), BeforeValidator(whole)] = 1000
    """Series the queue holds; one more drops the oldest. Default 1000."""
    every: Annotated[int, Field(ge=1), BeforeValidator(whole)] = 1000
    """Queries of the dataset between two rounds of retries. Default 1000."""


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
