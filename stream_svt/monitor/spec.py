"""The specification: which queries are tested, how, about which datasets, at what price.

The models below are the reference of the YAML file; their descriptions are also those of the exported JSON
Schema. Nothing here reads files: `load_spec` takes text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from stream_svt.errors import ConfigError, MisuseError, Problem
from stream_svt.mechanisms import correction as corrections
from stream_svt.mechanisms.lattice import VALUE_LIMIT, grid_floor, grid_sensitivity
from stream_svt.mechanisms.noise import Noise
from stream_svt.mechanisms.sampler import SAMPLER_VERSION
from stream_svt.mechanisms.sparse_vector import SparseVector, adaptive, ladder, sparse_vector
from stream_svt.monitor.datasets import MAX_DATASETS, DatasetDeclaration, DatasetSpec, ReadNames
from stream_svt.monitor.quantities import (
    Duration,
    Exact,
    Flag,
    Name,
    NonNegativeExact,
    PositiveExact,
    Proportion,
    Text,
    TopicName,
    Whole,
    did_you_mean,
    duration_ms,
    duration_text,
    found,
    number,
    one_of,
)
from stream_svt.monitor.yaml_source import Document, Strict, read, several
from stream_svt.privacy.loss import (
    Kind,
    as_text,
    to_units,
    zcdp_adaptive,
    zcdp_general,
    zcdp_monotone,
)

__all__ = [
    "Annealed",
    "Append",
    "ApplicationDocument",
    "ApplicationSpec",
    "DatasetDeclaration",
    "DatasetSpec",
    "Exposure",
    "Mean",
    "MechanismForm",
    "MonitorSpec",
    "Mute",
    "OnHalt",
    "Optimal",
    "Reload",
    "Retry",
    "Sweep",
    "Table",
    "Uncorrected",
    "load_spec",
    "parse_application",
    "reload_kind",
]

SERVICE_KEYS = ("kafka", "topics", "sealing", "web", "commit")
"""Keys of the same file that only the service reads."""

_MAX_ATTEMPTS = 255


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


# --- corrections -------------------------------------------------------------------------------------------------


class Exposure(Strict):
    """For streams: accounts for every test the budget must last for."""

    kind: Literal["exposure"] = "exposure"
    false_alerts: PositiveExact | None = Field(
        default=None,
        description="Alerts a whole run may waste if every query lay on the threshold. Default: cutoff / 10.",
    )


class Annealed(Strict):
    """For finite sets: the bar falls pass after pass. Only with `append: sweep`."""

    kind: Literal["annealed"] = "annealed"
    start: Exact = Field(
        default=Fraction(12), description="Correction of the first pass, in query-noise scales. Default 12."
    )
    end: Exact = Field(
        default=Fraction(-3), description="Correction of the last pass, in query-noise scales. Default -3."
    )
    step: PositiveExact = Field(
        default=Fraction(1), description="Fall from pass to pass, in query-noise scales. Default 1."
    )


class Optimal(Strict):
    """The published closed form for a finite number of queries tested once."""

    kind: Literal["optimal"] = "optimal"


class Mean(Strict):
    """Takes the mean of the noise away."""

    kind: Literal["mean"] = "mean"


class Uncorrected(Strict):
    """No correction."""

    kind: Literal["none"] = "none"


class Table(Strict):
    """Corrections in real units by attempt; the last one holds for all later attempts."""

    kind: Literal["table"] = "table"
    table: Annotated[tuple[Exact, ...], Field(min_length=1, max_length=_MAX_ATTEMPTS + 1)] = Field(
        description="Corrections in real units, by attempt."
    )


_CORRECTIONS: dict[str, type[Strict]] = {
    "exposure": Exposure,
    "annealed": Annealed,
    "optimal": Optimal,
    "mean": Mean,
    "none": Uncorrected,
    "table": Table,
}


def _correction(value: object) -> object:
    """Bring the short forms to {"kind": ..., ...}, which the union below understands."""
    if isinstance(value, Strict) or (isinstance(value, dict) and "kind" in value):
        return value
    short = [name for name in _CORRECTIONS if name != "table"]
    if isinstance(value, str) and value in short:
        return {"kind": value}
    if isinstance(value, dict) and len(value) == 1:
        ((name, options),) = value.items()
        if name == "table":
            return {"kind": "table", "table": options}
        if name in _CORRECTIONS:
            if not isinstance(options, dict | None):
                raise ValueError(f"expected a mapping of options for {name}, found {found(options)}")
            return {"kind": name, **(options or {})}
        raise ValueError(f"unknown correction {found(name)}{did_you_mean(name, list(_CORRECTIONS))}")
    if not isinstance(value, bool | dict | list | None):
        try:
            return {"kind": "table", "table": [number(value)]}
        except ValueError:
            pass
    raise ValueError(
        f"expected {', '.join(short)}, a number in real units, or one of them with options such as "
        f"{{annealed: {{start: 12, end: 3}}}}, found {found(value)}"
        f"{did_you_mean(value, short) if isinstance(value, str) else ''}"
    )


def _options(model: type[Strict]) -> dict[str, Any]:
    schema = model.model_json_schema()
    schema.get("properties", {}).pop("kind", None)
    return {
        key: schema[key]
        for key in ("type", "properties", "additionalProperties", "description")
        if key in schema
    }


def _with_options(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {name: schema}, "required": [name], "additionalProperties": False}


_CORRECTION_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"enum": [name for name in _CORRECTIONS if name != "table"]},
        {"type": "number"},
        *(_with_options(name, _options(_CORRECTIONS[name])) for name in ("exposure", "annealed")),
        _with_options("table", {"type": "array", "items": {"type": "number"}, "minItems": 1}),
    ]
}

CorrectionField = Annotated[
    Annotated[Exposure | Annealed | Optimal | Mean | Uncorrected | Table, Field(discriminator="kind")],
    BeforeValidator(_correction),
    WithJsonSchema(_CORRECTION_SCHEMA),
]


# --- append ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lifetime:
    """How long a bottom may wait for retries: offsets of its partition, or milliseconds of the broker's clock."""

    offsets: int | None = None
    ms: int | None = None

    def __str__(self) -> str:
        return str(self.offsets) if self.ms is None else duration_text(self.ms)


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
        raise ValueError(
            f"expected a number of offsets or a duration such as 10m, found {found(value)}"
        ) from None


_DURATION_SCHEMA = {"type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d|w))+$"}


class Sweep(Strict):
    """Queries carry a public set id; when a set closes, its bottoms are tested pass after pass."""

    kind: Literal["sweep"] = "sweep"
    tops_per_set: Annotated[Whole, Field(ge=1, le=1_000_000)] = Field(
        default=10, description="Tops after which the sweep of a set ends. Default 10."
    )
    max_open_sets: Annotated[Whole, Field(ge=1, le=100_000)] = Field(
        default=4,
        description="Sets a dataset may have open; queries of one more are tested on arrival only. Default 4.",
    )
    max_set_size: Annotated[Whole, Field(ge=1, le=10_000_000)] = Field(
        default=50_000,
        description="Queries a set remembers for its sweep; later ones are tested once. Default 50000.",
    )
    close_after: Duration | None = Field(
        default=None,
        description="Close a set so long after its first query, on the broker's clock. Default: only a marker record "
        "closes it.",
    )


class Retry(Strict):
    """A bounded queue of series whose last test was a bottom; each is tested again on its latest value."""

    kind: Literal["retry"] = "retry"
    attempts: Annotated[Whole, Field(ge=2, le=_MAX_ATTEMPTS)] = Field(
        default=5, description="Tests in all, the first included. Default 5."
    )
    lifetime: Annotated[
        Lifetime,
        PlainValidator(_lifetime),
        PlainSerializer(str, return_type=str),
        WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, _DURATION_SCHEMA]}),
    ] = Field(
        default=Lifetime(offsets=4000),
        description="How long a series stays in the queue: offsets of the partition, or a duration on the broker's "
        "clock. Must fit the topic's retention. Default 4000 offsets.",
    )
    capacity: Annotated[Whole, Field(ge=1, le=1_000_000)] = Field(
        default=1000, description="Series the queue holds; one more drops the oldest. Default 1000."
    )
    every: Annotated[Whole, Field(ge=1)] = Field(
        default=1000, description="Queries of the dataset between two rounds of retries. Default 1000."
    )


_APPENDS: dict[str, type[Strict]] = {"sweep": Sweep, "retry": Retry}


def _append(value: object) -> object:
    if value is None or value is False or value == "off":
        return None
    if isinstance(value, Strict) or (isinstance(value, dict) and "kind" in value):
        return value
    if isinstance(value, str) and value in _APPENDS:
        return {"kind": value}
    if isinstance(value, dict) and len(value) == 1:
        ((name, options),) = value.items()
        if name in _APPENDS:
            if not isinstance(options, dict | None):
                raise ValueError(f"expected a mapping of options for {name}, found {found(options)}")
            return {"kind": name, **(options or {})}
        raise ValueError(
            f"unknown form {found(name)}; expected sweep or retry{did_you_mean(name, list(_APPENDS))}"
        )
    near = did_you_mean(value, ["off", *_APPENDS]) if isinstance(value, str) else ""
    raise ValueError(
        f"expected off, sweep, retry, or one with options such as {{retry: {{attempts: 5}}}}, found {found(value)}{near}"
    )


Append = Sweep | Retry

AppendField = Annotated[
    Annotated[Sweep | Retry, Field(discriminator="kind")] | None,
    BeforeValidator(_append),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["off", "sweep", "retry", False, None]},
                *(_with_options(name, _options(model)) for name, model in _APPENDS.items()),
            ]
        }
    ),
]


# --- the monitor -------------------------------------------------------------------------------------------------


def _noise(value: object) -> Noise:
    if not isinstance(value, str):
        raise ValueError(f"expected exponential or laplace, found {found(value)}")
    try:
        return Noise.parse(value)
    except MisuseError as error:
        raise ValueError(f"{error}{did_you_mean(value, [noise.value for noise in Noise])}") from None


def _mute(value: object) -> Mute | int:
    if isinstance(value, str):
        words = [mute.value for mute in Mute]
        if value in words:
            return Mute(value)
        try:
            return duration_ms(value)
        except ValueError:
            raise ValueError(
                f"expected {', '.join(words)} or a duration such as 10m, found {found(value)}{did_you_mean(value, words)}"
            ) from None
    if value is None:
        return Mute.NONE
    raise ValueError(f"expected period, run, none or a duration such as 10m, found {found(value)}")


def _mute_text(mute: Mute | int) -> str:
    return mute.value if isinstance(mute, Mute) else duration_text(mute)


NoiseField = Annotated[
    Noise,
    PlainValidator(_noise),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"enum": [noise.value for noise in Noise]}),
]


class MonitorSpec(Strict):
    """One sparse-vector monitor over the queries of one topic, run on each of its datasets."""

    name: Name = Field(description="Name of the monitor: lower-case letters, digits and dashes.")
    topic: TopicName = Field(description="The query topic it reads; exactly one.")
    datasets: Annotated[tuple[Text, ...], Field(min_length=1)] = Field(
        default=("*",), description='Patterns of dataset names with * and ?. Default: all datasets, ["*"].'
    )
    form: Annotated[MechanismForm, BeforeValidator(one_of([form.value for form in MechanismForm]))] = Field(
        default=MechanismForm.SVT,
        alias="mechanism",
        description="svt: one branch. adaptive: answers far above the threshold cost half. ladder: more such branches. "
        "Default svt.",
    )
    epsilon: PositiveExact = Field(description="Privacy loss of one whole run; greater than 0, exact.")
    cutoff: Annotated[Whole, Field(ge=1, le=1_000_000)] = Field(
        description="Tops one run pays for; for adaptive and ladder, tops at full price. At least 1."
    )
    sensitivity: PositiveExact = Field(
        description="Most that one answer changes when one privacy unit changes, in real units; greater than 0. Not "
        "checkable from the queries: too small a figure voids the guarantee."
    )
    monotonic: Flag = Field(
        default=False,
        description="Whether one privacy unit moves all answers of a run the same way, as it does counts under adding or "
        "removing. Halves the noise; wrongly declared it voids the guarantee. Default false.",
    )
    granularity: PositiveExact = Field(
        default=Fraction(1),
        description="Real units a step of the integer lattice stands for; greater than 0. Default 1.",
    )
    bounds: Annotated[
        tuple[Exact, Exact],
        WithJsonSchema({"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}),
    ] = Field(
        description="[low, high] in real units. Values are clamped to them, and what is no number counts as low."
    )
    threshold: Exact = Field(description="Public bar in real units; a query's own threshold replaces it.")
    query_noise: NoiseField = Field(
        default=Noise.EXPONENTIAL,
        description="Noise of each test: exponential or laplace. Default exponential.",
    )
    threshold_noise: NoiseField = Field(
        default=Noise.EXPONENTIAL,
        description="Noise of a run's threshold: exponential or laplace. Bounds of reported alerts are certified with "
        "exponential only. Default exponential.",
    )
    split: PositiveExact | None = Field(
        default=None,
        description="Epsilon of all queries / epsilon of the threshold; for adaptive, the threshold's share of epsilon "
        "(theta, below 1). Default: the correction's own.",
    )
    correction: CorrectionField = Field(
        default=Exposure(),
        json_schema_extra={"default": "exposure"},
        description="How far the bar is raised above the threshold: exposure (streams), annealed (sweeps), optimal, mean, "
        "none, a number in real units, or a table by attempt. Default exposure.",
    )
    expected_queries: Annotated[Whole, Field(ge=1, le=10**15)] | None = Field(
        default=None,
        description="Queries one run must last for; required by the corrections exposure and optimal. Too small a figure "
        "wastes budget on false alerts, too large a figure misses alerts; privacy is not affected.",
    )
    append: AppendField = Field(
        default=None,
        json_schema_extra={"default": "off"},
        description="Further tests of bottoms: off, sweep (finite sets) or retry (series of a stream). Default off.",
    )
    mute: Annotated[
        Mute | int,
        PlainValidator(_mute),
        PlainSerializer(_mute_text, return_type=str),
        WithJsonSchema({"anyOf": [{"enum": [mute.value for mute in Mute]}, _DURATION_SCHEMA]}),
    ] = Field(
        default=Mute.PERIOD,
        description="How long a series is left alone after its top: period (the dataset's life), run, none, or a duration "
        "on the broker's clock. Default period.",
    )
    max_mutes: Annotated[Whole, Field(ge=1, le=1_000_000)] = Field(
        default=10_000,
        description="Muted series a dataset remembers; one more forgets the oldest. Default 10000.",
    )
    on_halt: Annotated[OnHalt, BeforeValidator(one_of([policy.value for policy in OnHalt]))] = Field(
        default=OnHalt.RESAMPLE,
        description="After a run's last top: resample (begin a new run, which costs its threshold again) or stop. Default "
        "resample.",
    )
    resample_every: Duration | None = Field(
        default=None, description="Begin a new run so often, on the broker's clock. Default: never."
    )
    reserve: NonNegativeExact = Field(
        default=Fraction(0),
        description="Loss left in the ledger for other monitors when a run is opened, in the ledger's measure. Default 0.",
    )
    beta: Proportion = Field(
        default=Fraction(1, 20),
        description="Level of the bound: it fails with at most this probability. Default 0.05.",
    )

    # -- what the file says, on the lattice and in units ------------------------------------------------------

    @property
    def epsilon_units(self) -> int:
        """Units of one whole run, rounded down."""
        return to_units(self.epsilon, Kind.PURE)

    def reserve_units(self, kind: Kind) -> int:
        """Return the units left for other monitors, rounded up."""
        return -to_units(-self.reserve, kind)

    @property
    def lattice_sensitivity(self) -> int:
        """D: sensitivity in grid steps, rounded up."""
        return grid_sensitivity(self.sensitivity, self.granularity)

    @property
    def lattice_bounds(self) -> tuple[int, int]:
        """Bounds of the values in grid steps."""
        low, high = self.bounds
        return grid_floor(low, self.granularity), grid_floor(high, self.granularity)

    @property
    def lattice_threshold(self) -> int:
        """Threshold in grid steps: the least step not below it."""
        return ceil(self.threshold / self.granularity)

    @property
    def attempts(self) -> int:
        """Tests a query may get, the first included."""
        if isinstance(self.append, Retry):
            return self.append.attempts
        if isinstance(self.append, Sweep) and isinstance(self.correction, Annealed | Table):
            rule = self.correction_rule()
            return len(rule.table(Fraction(1)))
        return 1

    @property
    def mute_ms(self) -> int | None:
        """The mute's duration where it is one."""
        return None if isinstance(self.mute, Mute) else self.mute

    @property
    def needs_broker_time(self) -> bool:
        """Whether the query topic must be LogAppendTime, because the specification measures durations."""
        waits = isinstance(self.append, Retry) and self.append.lifetime.ms is not None
        waits = waits or (isinstance(self.append, Sweep) and self.append.close_after is not None)
        return waits or self.resample_every is not None or self.mute_ms is not None

    def correction_rule(self) -> corrections.Correction:
        """Return the correction as the mechanisms know it."""
        rule = self.correction
        if isinstance(rule, Exposure):
            tolerated = Fraction(self.cutoff, 10) if rule.false_alerts is None else rule.false_alerts
            attempts = self.append.attempts if isinstance(self.append, Retry) else 1
            return corrections.Exposure(
                expected_queries=self.expected_queries or 1, false_alerts=tolerated, attempts=attempts
            )
        if isinstance(rule, Annealed):
            return corrections.Annealed(start=rule.start, end=rule.end, step=rule.step)
        if isinstance(rule, Optimal):
            return corrections.Optimal(queries=self.expected_queries or 1, cutoff=self.cutoff)
        if isinstance(rule, Mean):
            return corrections.Mean()
        if isinstance(rule, Table):
            return corrections.Explicit(tuple(ceil(real / self.granularity) for real in rule.table))
        return corrections.Uncorrected()

    def mechanism(self) -> SparseVector:
        """Return the mechanism of one whole run.

        Raises
        ------
        MisuseError
            Epsilon cannot be divided among the threshold and so many tops on this lattice.
        """
        common: dict[str, Any] = {
            "epsilon": self.epsilon_units,
            "cutoff": self.cutoff,
            "monotonic": self.monotonic,
            "correction": self.correction_rule(),
            "sensitivity": self.lattice_sensitivity,
            "query_noise": self.query_noise,
            "threshold_noise": self.threshold_noise,
        }
        if self.form is MechanismForm.ADAPTIVE:
            return adaptive(**common, theta=self.split)
        build = ladder if self.form is MechanismForm.LADDER else sparse_vector
        return build(**common, split=self.split)

    def run_price(self, kind: Kind) -> int:
        """Return what one whole run costs, in units of ``kind`` (for zCDP, rounded up)."""
        mechanism = self.mechanism()
        if kind is Kind.PURE:
            return mechanism.epsilon
        if not mechanism.monotonic:
            return zcdp_general(mechanism.epsilon)
        if len(mechanism.branches) > 1:
            return zcdp_adaptive(mechanism.epsilon, mechanism.threshold_charge)
        return zcdp_monotone(mechanism.threshold_charge, mechanism.branches[0].charge, mechanism.cutoff)

    def covers(self, dataset: str) -> bool:
        """Tell whether the monitor runs on a dataset."""
        return _matches(self, dataset)

    def to_json(self) -> str:
        """Return the specification as JSON for `from_json`; everything in it is public."""
        return self.model_dump_json(by_alias=True)

    @classmethod
    def from_json(cls, text: str) -> MonitorSpec:
        """Return the specification that `to_json` wrote."""
        return cls.model_validate_json(text)

    def hash(self) -> str:
        """Return a short digest of all that decides outcomes, the sampler's version included.

        Runs opened under different digests are not replayed into one another. Left out are the name, the
        patterns of datasets and the level of the bound, which decide no outcome.
        """
        content = self.model_dump(mode="json", by_alias=True, exclude={"name", "datasets", "beta"})
        return _digest({"sampler": SAMPLER_VERSION, **content})

    # -- checks across fields ---------------------------------------------------------------------------------

    @model_validator(mode="after")
    def _consistent(self) -> MonitorSpec:
        problems = [*self._lattice_problems(), *self._option_problems()]
        if not problems:
            try:
                self.mechanism()
            except MisuseError as error:
                problems.append(("epsilon", str(error)))
        if problems:
            raise several(problems)
        return self

    def _lattice_problems(self) -> list[tuple[str, str]]:
        problems = []
        low, high = self.bounds
        if low >= high:
            problems.append(("bounds", f"low must be below high, found [{low}, {high}]"))
        grid = f"the lattice holds less than 2^47 steps of granularity {self.granularity}: use a coarser granularity"
        if max(map(abs, self.lattice_bounds)) >= VALUE_LIMIT:
            problems.append(("bounds", f"{grid}, or narrower bounds"))
        if abs(self.lattice_threshold) >= VALUE_LIMIT:
            problems.append(("threshold", f"{grid}, or another threshold"))
        if self.lattice_sensitivity >= VALUE_LIMIT:
            problems.append(("sensitivity", f"{grid}, or a smaller sensitivity"))
        return problems

    def _option_problems(self) -> list[tuple[str, str]]:
        problems = []
        if isinstance(self.correction, Exposure | Optimal) and self.expected_queries is None:
            message = (
                f"is required by the correction {self.correction.kind}: the number of queries one run must last for, "
                "such as 1000000"
            )
            problems.append(("expected_queries", message))
        if isinstance(self.correction, Annealed):
            problems += self._annealed_problems(self.correction)
        if self.form is MechanismForm.ADAPTIVE and self.split is not None and self.split >= 1:
            message = "for adaptive this is the threshold's share of epsilon and must be below 1"
            problems.append(("split", f"{message}, found {self.split}"))
        if self.epsilon_units < 1:
            problems.append(
                ("epsilon", f"must be at least 1e-9, the unit of the ledger, found {self.epsilon}")
            )
        return problems

    def _annealed_problems(self, rule: Annealed) -> list[tuple[str, str]]:
        problems = []
        if not isinstance(self.append, Sweep):
            form = "off" if self.append is None else self.append.kind
            message = (
                f"annealed needs append: sweep, found {form}. On an open stream fresh queries would keep reaching the "
                "last and lowest bar and waste the budget: use exposure, or declare sets"
            )
            problems.append(("correction", message))
        if rule.end > rule.start:
            problems.append(
                ("correction.annealed.end", f"must not be above start ({rule.start}), found {rule.end}")
            )
        elif (rule.start - rule.end) / rule.step > _MAX_ATTEMPTS:
            problems.append(
                ("correction.annealed.step", f"makes more than {_MAX_ATTEMPTS + 1} passes: take larger steps")
            )
        return problems

    def notes(self) -> list[tuple[str, str]]:
        """Return what is allowed but may not be meant, as (field, advice)."""
        notes = []
        stream = not isinstance(self.append, Sweep)
        rule = self.correction
        if stream and isinstance(rule, Optimal):
            notes.append(
                (
                    "correction",
                    "optimal is meant for a finite set tested once; on a stream, and more so with retries, it "
                    "wastes budget on false alerts: consider exposure",
                )
            )
        if stream and isinstance(rule, Mean | Uncorrected):
            notes.append(
                (
                    "correction",
                    f"with {rule.kind}, queries near the threshold are reported about half of the time and "
                    "soon use up the cutoff: consider exposure",
                )
            )
        if isinstance(self.append, Retry):
            notes.append(
                (
                    "append",
                    "retries help only series that drift; a query without a series is retried with its fixed "
                    "value, which buys nothing once the exposure is counted",
                )
            )
        if isinstance(self.append, Sweep) and self.attempts == 1:
            notes.append(
                ("append", f"a sweep with the correction {rule.kind} has no further pass: consider annealed")
            )
        if self.expected_queries is not None and not isinstance(rule, Exposure | Optimal):
            notes.append(("expected_queries", f"is not used by the correction {rule.kind}"))
        low, high = self.bounds
        if self.threshold > high:
            notes.append(("threshold", f"lies above the upper bound {high}: only noise can reach it"))
        if self.threshold <= low:
            notes.append(("threshold", f"lies at or below the lower bound {low}: every query is above it"))
        if self.threshold_noise is Noise.LAPLACE:
            notes.append(
                ("threshold_noise", "no bound is certified for reported alerts with laplace threshold noise")
            )
        if self.lattice_sensitivity * self.granularity != self.sensitivity:
            paid = self.lattice_sensitivity * self.granularity
            notes.append(("granularity", f"sensitivity rounds up to {paid}: choose a divisor of it"))
        return notes


class Reload(StrEnum):
    """When a changed field takes effect in a live application."""

    NOW = "now"
    NEXT_RUN = "next_run"
    NEVER = "never"


_RELOAD: Mapping[str, Reload] = {
    **dict.fromkeys(("name", "topic"), Reload.NEVER),
    **dict.fromkeys(
        ("datasets", "threshold", "mute", "max_mutes", "on_halt", "resample_every", "reserve", "beta"),
        Reload.NOW,
    ),
    **dict.fromkeys(
        (
            "form",
            "epsilon",
            "cutoff",
            "sensitivity",
            "monotonic",
            "granularity",
            "bounds",
            "query_noise",
            "threshold_noise",
            "split",
            "correction",
            "expected_queries",
            "append",
        ),
        Reload.NEXT_RUN,
    ),
}


def reload_kind(old: MonitorSpec, new: MonitorSpec) -> dict[str, Reload]:
    """Return when each changed field takes effect, by its name in the file; empty where nothing changed.

    A change that can never take effect (another topic) needs a monitor of another name: its runs are tied to the
    offsets of the topic they began on. What tests a run makes, `append` included, changes with the next run.
    """
    return {
        MonitorSpec.model_fields[name].alias or name: kind
        for name, kind in _RELOAD.items()
        if getattr(old, name) != getattr(new, name)
    }


# --- the application ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ApplicationSpec:
    """Everything a shard's engine needs to know.

    Attributes
    ----------
    application
        Name of the application; part of every Kafka identity it takes.
    datasets, monitors
        In the order declared.
    notes
        Advice about what is allowed but may not be meant.
    """

    application: str
    datasets: tuple[DatasetSpec, ...]
    monitors: tuple[MonitorSpec, ...]
    notes: tuple[Problem, ...] = field(default=(), compare=False)

    def monitors_of(self, dataset: str) -> tuple[MonitorSpec, ...]:
        """Return the monitors that run on a dataset, in order; empty for a name that is not declared."""
        return self._monitors_by_dataset.get(dataset, ())

    def dataset(self, name: str) -> DatasetSpec:
        """Return a dataset by name; KeyError where it is not declared."""
        return self._datasets_by_name[name]

    def monitor(self, name: str) -> MonitorSpec:
        """Return a monitor by name; KeyError where there is none."""
        return self._monitors_by_name[name]

    def topics(self) -> tuple[str, ...]:
        """Return the query topics, sorted."""
        return tuple(sorted({monitor.topic for monitor in self.monitors}))

    def topics_with_broker_time(self) -> tuple[str, ...]:
        """Return the query topics that must be LogAppendTime, sorted."""
        periods = {dataset.name for dataset in self.datasets if dataset.is_period}
        timed = {
            monitor.topic
            for monitor in self.monitors
            if monitor.needs_broker_time or any(_matches(monitor, name) for name in periods)
        }
        return tuple(sorted(timed))

    def hash(self) -> str:
        """Return a short digest; two workers of one application must agree on it."""
        return _digest(
            {
                "application": self.application,
                "sampler": SAMPLER_VERSION,
                "datasets": [
                    [dataset.name, *dataset.declaration, dataset.lateness_ms] for dataset in self.datasets
                ],
                "monitors": [monitor.model_dump(mode="json", by_alias=True) for monitor in self.monitors],
            }
        )

    @cached_property
    def _datasets_by_name(self) -> dict[str, DatasetSpec]:
        return {dataset.name: dataset for dataset in self.datasets}

    @cached_property
    def _monitors_by_name(self) -> dict[str, MonitorSpec]:
        return {monitor.name: monitor for monitor in self.monitors}

    @cached_property
    def _monitors_by_dataset(self) -> dict[str, tuple[MonitorSpec, ...]]:
        return {
            dataset.name: tuple(monitor for monitor in self.monitors if _matches(monitor, dataset.name))
            for dataset in self.datasets
        }


class ApplicationDocument(Strict):
    """The part of the file that says what is monitored."""

    application: Name = Field(
        description="Name of the application; part of its consumer group, transactional ids and sealing."
    )
    datasets: Annotated[tuple[DatasetDeclaration, ...], Field(min_length=1)] = Field(
        description="The private datasets, each with a ledger. A dataset belongs to one application: two applications "
        "are two ledgers."
    )
    monitors: Annotated[tuple[MonitorSpec, ...], Field(min_length=1)] = Field(description="The monitors.")


def load_spec(
    text: str, source: str = "configuration", read_names: ReadNames | None = None
) -> ApplicationSpec:
    """Return the specification in a YAML text; the service's own keys are left unread.

    Raises
    ------
    ConfigError
        With every problem found, sorted by line.
    """
    document = read(text, source)
    spec = parse_application(document, read_names)
    document.finish()
    if spec is None:  # pragma: no cover - whoever returns None has reported why
        raise ConfigError([], source)
    return spec


def parse_application(document: Document, read_names: ReadNames | None = None) -> ApplicationSpec | None:
    """Return the specification in a document, or None after reporting to it what is wrong."""
    data: dict[str, Any] = document.data
    known = [*ApplicationDocument.model_fields, *SERVICE_KEYS]
    for key in data:
        if key not in known:
            document.report(
                (key,), f"unknown key{did_you_mean(key, known) or '; expected one of ' + ', '.join(known)}"
            )
    application = _application(document)
    datasets = _datasets(document, read_names)
    monitors = _monitors(document)
    _compare(document, datasets, monitors)
    if document.problems or application is None:
        return None
    specs = tuple(dataset for dataset, _ in datasets.values())
    notes = _notes(document, datasets, monitors)
    return ApplicationSpec(
        application, specs, tuple(monitor for _, monitor in monitors), tuple(sorted(notes))
    )


_Datasets = dict[str, tuple[DatasetSpec, int]]
_Monitors = list[tuple[int, MonitorSpec]]


_NAME: TypeAdapter[str] = TypeAdapter(Name)


def _application(document: Document) -> str | None:
    if "application" not in document.data:
        document.report(("application",), "is required: the name of the application, such as retail-watch")
        return None
    try:
        return _NAME.validate_python(document.data["application"])
    except ValidationError as error:
        document.report(("application",), error.errors()[0]["msg"].removeprefix("Value error, "))
        return None


def _items(document: Document, key: str) -> list[Any]:
    raw = document.data.get(key)
    if raw is None or raw == []:
        document.report((key,), f"is required: a list with at least one of the {key}")
        return []
    if not isinstance(raw, list):
        document.report((key,), f"expected a list, each item beginning with a dash, found {found(raw)}")
        return []
    return raw


def _datasets(document: Document, read_names: ReadNames | None) -> _Datasets:
    datasets: _Datasets = {}
    for index in range(len(_items(document, "datasets"))):
        path = ("datasets", index)
        declaration = document.check(DatasetDeclaration, path)
        if declaration is None:
            continue
        try:
            for dataset in declaration.expand(read_names):
                if dataset.name in datasets:
                    first = document.line(("datasets", datasets[dataset.name][1]))
                    document.report(
                        path, f"dataset {found(dataset.name)} is already declared at line {first}"
                    )
                    break
                datasets[dataset.name] = (dataset, index)
        except ValueError as error:
            document.report((*path, "file"), str(error))
        if len(datasets) > MAX_DATASETS:
            document.report(path, f"declares more than {MAX_DATASETS} datasets in all")
            break
    return datasets


def _monitors(document: Document) -> _Monitors:
    monitors: _Monitors = []
    names: dict[str, int] = {}
    for index, raw in enumerate(_items(document, "monitors")):
        path = ("monitors", index)
        monitor = document.check(MonitorSpec, path)
        name = raw.get("name") if isinstance(raw, dict) else None
        if isinstance(name, str):
            if name in names:
                line = document.line(("monitors", names[name], "name"))
                document.report((*path, "name"), f"monitor {found(name)} is already declared at line {line}")
                continue
            names[name] = index
        if monitor is not None:
            monitors.append((index, monitor))
    return monitors


def _matches(monitor: MonitorSpec, dataset: str) -> bool:
    return any(pattern == "*" or fnmatchcase(dataset, pattern) for pattern in monitor.datasets)


def _compare(document: Document, datasets: _Datasets, monitors: _Monitors) -> None:
    """Report what is wrong between monitors and the datasets they run on."""
    if not datasets:
        return
    declarations_broken = bool(document.problems)
    for index, monitor in monitors:
        path = ("monitors", index)
        for place, pattern in enumerate(monitor.datasets):
            if not declarations_broken and not any(fnmatchcase(name, pattern) for name in datasets):
                message = f"pattern {found(pattern)} matches no declared dataset"
                document.report(
                    (*path, "datasets", place), message + did_you_mean(pattern, list(datasets)[:1000])
                )
        budgets = {
            (dataset.kind, dataset.limit): dataset.name
            for dataset, _ in reversed(datasets.values())
            if _matches(monitor, dataset.name)
        }
        for (kind, limit), name in budgets.items():
            price = monitor.run_price(kind)
            kept = monitor.reserve_units(kind)
            limit_text = f"the limit {kind.measure} {as_text(limit, kind)} of dataset {found(name)}"
            if price > limit:
                cost = f"one whole run costs {kind.measure} {as_text(price, kind)}"
                document.report((*path, "epsilon"), f"{cost}, above {limit_text}")
            elif price + kept > limit:
                message = f"leaves no room for a whole run of {kind.measure} {as_text(price, kind)} within {limit_text}"
                document.report((*path, "reserve"), message)


def _notes(document: Document, datasets: _Datasets, monitors: _Monitors) -> list[Problem]:
    notes = []
    for index, monitor in monitors:
        for name, message in monitor.notes():
            path = ("monitors", index, name)
            notes.append(Problem(document.line(path), f"monitors[{index}].{name}", message))
    for position in sorted({declared for _, declared in datasets.values()}):
        mine = [dataset for dataset, declared in datasets.values() if declared == position]
        users = {monitor.name for _, monitor in monitors if any(_matches(monitor, one.name) for one in mine)}
        line = document.line(("datasets", position))
        if not users:
            notes.append(Problem(line, f"datasets[{position}]", "no monitor runs on these datasets"))
        elif mine[0].kind is Kind.ZCDP and len(users) > 1:
            message = (
                f"with rho one run at most is open on a dataset: its {len(users)} monitors take turns, and each waits "
                "until the other's run ends"
            )
            notes.append(Problem(line, f"datasets[{position}].limit", message))
    return notes


def _digest(content: object) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
