"""One monitor's specification: its keys, its values on the grid and in ledger units, and permitted changes."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import translate
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

from stream_svt.errors import MisuseError, Problem
from stream_svt.mechanisms import correction as corrections
from stream_svt.mechanisms.grid import (
    BOUND_LIMIT,
    FINEST,
    VALUE_LIMIT,
    grid_ceil,
    grid_floor,
    grid_sensitivity,
)
from stream_svt.mechanisms.noise import Noise
from stream_svt.mechanisms.numbers import LARGEST_EPSILON, exact
from stream_svt.mechanisms.sampler import SAMPLER_VERSION
from stream_svt.mechanisms.sparse_vector import SparseVector, adaptive, ladder, sparse_vector
from stream_svt.privacy.loss import Kind, to_units, zcdp_general, zcdp_monotone
from stream_svt.settings import detection, fields, questions
from stream_svt.settings.datasets import Terms
from stream_svt.settings.document import Strict, consistent, quote
from stream_svt.settings.maintenance import MaintenanceField
from stream_svt.settings.records import RecordLayout

if TYPE_CHECKING:
    from stream_svt.settings.sources import SourceSpec

_CONSTRUCTORS: dict[str, Callable[..., SparseVector]]
_CONSTRUCTORS = {"svt": sparse_vector, "adaptive": adaptive, "ladder": ladder}


class Change(StrEnum):
    """What another value of a key does to a monitor, in words for its operator. Most keys end open runs."""

    ENDS_RUNS = "its open runs end: epsilon that they did not spend is released, rho stays spent"
    OLD_GRID = "waiting queries are dropped: their values are on the old grid"
    OLD_LAYOUT = "waiting queries are dropped: they were read with the old layout"
    NO_OUTCOME = "open runs continue with the same digest: the key decides no outcome"
    KEEPS_RUNS = "open runs continue, with another digest"
    FIXED = "cannot change, because the runs of the monitor depend on it: declare a monitor with another name"
    FORM_FIXED = (
        "cannot take another form, because waiting queries depend on it: declare a monitor with another name"
    )
    ADDED_LATER = "a key of a later release"
    """Its default keeps the earlier behaviour, never changes, and is not part of the digest, so that runs opened by an
    earlier release continue."""


_LARGEST_FACTOR = 1_000
"""Most times that values are sent multiplied, as for steps of a third; another fraction was computed in floats."""
_STORED_BYTES = 899_900
"""Largest size in bytes of a monitor as JSON that fits into one state record."""


OF_SOURCE = ("topic", "record", "datasets", "sensitivity", "monotonic", "granularity", "bounds")
"""Keys that follow from a monitor's source."""
_DECLARED = ("topic", "sensitivity", "bounds")
"""Those that are required without one."""
_OF_RUN = ("epsilon", "cutoff", "threshold")
"""Keys that are required without `detect`."""


def _without_source(schema: dict[str, Any]) -> None:
    """Change the JSON Schema of a monitor: its keys are declared, or follow from a source, and from `detect`."""
    schema["required"] = [name for name in schema["required"] if name not in (*_DECLARED, *_OF_RUN)]
    follow = {"required": ["source"], "properties": {key: False for key in OF_SOURCE if key != "datasets"}}
    schema["oneOf"] = [{"required": [*_DECLARED], "properties": {"source": False}}, follow]
    without = dict.fromkeys(detection.FOLLOW, False)
    detects = {"required": ["source", "detect"], "properties": without}
    schema["allOf"] = [{"oneOf": [{"required": [*_OF_RUN], "properties": {"detect": False}}, detects]}]


class MonitorSpec(Strict):
    """One sparse-vector monitor over the queries of one topic, run on each of its datasets."""

    model_config = ConfigDict(json_schema_extra=_without_source)

    name: Annotated[fields.MonitorName, Change.NO_OUTCOME]
    """Name of the monitor: lower-case letters, digits and dashes."""
    topic: Annotated[fields.TopicName, Change.FIXED]
    """The one query topic that the monitor reads. Required without `source`."""
    source: Annotated[fields.Name | None, Change.ADDED_LATER, Change.FIXED] = None
    """The source whose counts or answers the monitor tests. `topic`, `record`, `sensitivity`, `monotonic`,
    `granularity` and `bounds` then follow from it. So do `datasets`, unless answers name theirs in a field, and for
    counts by default `expected_queries`. Default: a query topic."""
    measure: Annotated[fields.Name | None, Change.ADDED_LATER, Change.FIXED] = None
    """The measure of the source; required if it has several. Default: the only one."""
    thresholds: Annotated[
        questions.ThresholdsFile | None, Change.ADDED_LATER, Change.NO_OUTCOME, Change.FORM_FIXED
    ] = None
    """A file with a threshold and a series on each line, such as ``500 /checkout``: what is tested is the count less
    the threshold of its series. `threshold` is then 0 by default. Only with `source`, and so are the keys up to `for`,
    which apply in this order to counts of closed windows."""
    share: Annotated[questions.ShareOptions | None, Change.ADDED_LATER, Change.FIXED] = None
    """What a part has above its share, such as {of: errors, above: 1%}: the value is the errors less 1 % of the
    measure."""
    usual: Annotated[questions.UsualOptions | None, Change.ADDED_LATER, Change.FIXED] = None
    """What a window has more than usual: {every: 7d, times: 4, factor: 1.1} takes off 1.1 times the mean of the same
    hour of the last four weeks."""
    mean: Annotated[questions.Several | None, Change.ADDED_LATER, Change.FIXED] = None
    """The mean of the last windows, of so many."""
    over: Annotated[questions.Span | None, Change.ADDED_LATER, Change.FIXED] = None
    """The smaller of two means, of a short and of a long time, such as [5m, 1h]: a burn rate."""
    excess: Annotated[questions.ExcessOptions | None, Change.ADDED_LATER, Change.FIXED] = None
    """The largest sum of what the last windows have more than usual: {over: 512, windows: 24} finds slow rises."""
    for_: Annotated[questions.ForField | None, Change.ADDED_LATER, Change.FIXED] = Field(
        default=None, alias="for"
    )
    """How many windows must have the value: 5, or {windows: 5, at_least: 4}."""
    detect: Annotated[detection.DetectOptions | None, Change.ADDED_LATER, Change.NO_OUTCOME] = None
    """What shall be found, such as {above: 500, surely_from: 700, alerts: 10, per: 30d}: `threshold`, `epsilon`,
    `cutoff`, `split`, `correction`, `expected_queries` and `on_halt` then follow. Only for counts of a source; required
    there unless these keys are given."""
    end: Annotated[questions.EndOptions | None, Change.ADDED_LATER, Change.KEEPS_RUNS] = None
    """When an incident is over, such as {below: 400, longest: 7d}: after its alert a series is tested for a value below
    400, in runs of their own, and not for alerts. `mute` then follows. Only for counts of a source. Default: `mute`
    alone."""
    record: Annotated[RecordLayout | None, Change.ADDED_LATER, Change.OLD_LAYOUT] = None
    """Layout of the records. Default: the service's own fields."""
    datasets: Annotated[tuple[fields.Text, ...], Field(min_length=1), Change.NO_OUTCOME] = ("*",)
    """Patterns of dataset names with * and ?. Default: all datasets, ["*"]."""
    form: Literal["svt", "adaptive", "ladder"] = Field(default="svt", alias="mechanism")
    """svt: one branch. adaptive: a second branch, which halves the price of answers far above the threshold.
    ladder: more such branches. Default svt."""
    epsilon: fields.PositiveExact
    """Privacy loss of one whole run, exact. It and the other keys of runs are required without `detect`."""
    cutoff: Annotated[int, Field(ge=1, le=1_000_000), BeforeValidator(fields.integer)]
    """Alerts that one run pays for; for adaptive and ladder, alerts at full price."""
    sensitivity: fields.PositiveExact
    """Largest change of one answer when one privacy unit changes, in real units. Too small a value voids the
    guarantee. Required without `source`."""
    monotonic: fields.Flag = False
    """Whether one privacy unit moves all answers of a run in the same direction, as for counts. True halves the
    noise; a wrong declaration voids the guarantee. Default false."""
    granularity: Annotated[fields.PositiveExact, Change.OLD_GRID] = Fraction(1)
    """Step of the integer grid in real units: a decimal of at most 12 places. Values are rounded down, or up if the
    next step is within 1/1024 of a step. Default 1."""
    bounds: Annotated[fields.Bounds, Change.OLD_GRID]
    """[low, high] in real units. Values are clamped to them; a value that is not a number counts as low. Required
    without `source`."""
    threshold: Annotated[fields.Exact, Change.KEEPS_RUNS]
    """Public threshold in real units; a query's own threshold replaces it."""
    query_noise: fields.NoiseField = Noise.EXPONENTIAL
    """Noise of each test. Default exponential."""
    threshold_noise: fields.NoiseField = Noise.EXPONENTIAL
    """Noise of a run's threshold. Only one-sided noise (exponential) gives certified bounds. Default exponential."""
    split: fields.PositiveExact | None = None
    """Epsilon of all queries / epsilon of the threshold; for adaptive, the threshold's share of epsilon (theta,
    below 1). Default: depends on the correction."""
    correction: fields.CorrectionField = Field(
        default=fields.ExposureOptions(), json_schema_extra={"default": "exposure"}
    )
    """Height of the bar above the threshold. Default exposure."""
    expected_queries: Annotated[int, Field(ge=1, le=10**15), BeforeValidator(fields.integer)] | None = None
    """Queries that one run must last for; required by the corrections exposure and optimal. Too small a number
    wastes budget, too large a number misses alerts."""
    append: Annotated[fields.AppendField, Change.FORM_FIXED] = Field(
        default=None, json_schema_extra={"default": "off"}
    )
    """Further tests of bottoms: sweep (finite sets) or retry (series of a stream). Default off."""
    mute: Annotated[fields.MuteField, Change.KEEPS_RUNS] = fields.Mute.PERIOD
    """How long a series is not tested after its alert; period is the life of the dataset. Queries without `series`
    are never muted: each may cost an alert. Default period."""
    max_mutes: Annotated[
        int, Field(ge=1, le=1_000_000), BeforeValidator(fields.integer), Change.KEEPS_RUNS
    ] = 10_000
    """Muted series that a dataset keeps; another one replaces the oldest. Default 10000."""
    not_renewed: Annotated[
        Annotated[int, Field(ge=1, le=1000), BeforeValidator(fields.integer)] | None,
        Change.ADDED_LATER,
        Change.KEEPS_RUNS,
    ] = None
    """Windows of a series that have to be tested after its mute without an alert, so that an event says: not renewed.
    Only with a source of counts with series, and a `mute` that is a duration. It costs nothing. Default: none."""
    on_halt: Annotated[Literal["resample", "stop"], Change.KEEPS_RUNS] = "resample"
    """After a run's last alert: resample (begin and pay a new run) or stop. Default resample."""
    resample_every: Annotated[fields.Duration | None, Change.KEEPS_RUNS] = None
    """Interval after which a new run begins, on the broker's clock. Default: none."""
    max_runs: Annotated[fields.MaxRunsField, Change.KEEPS_RUNS] = fields.AUTO
    """Runs that may begin on a dataset within a time, such as 2 per 1d, by the timestamps of queries. auto: half of
    the runs that the limit pays for (an equal share for each monitor of the dataset, at least one run) within 6h, or
    a quarter of a shorter horizon. off: any number. Default auto."""
    reserve: Annotated[fields.NonNegativeExact, Change.KEEPS_RUNS] = Fraction(0)
    """Budget that opening a run leaves to other monitors, in the ledger's measure. Default 0."""
    beta: Annotated[fields.Proportion, Change.NO_OUTCOME] = Fraction(1, 20)
    """Largest error probability of the bound. Default 0.05."""
    severity: Annotated[dict[fields.Name, fields.Exact], Change.NO_OUTCOME] = Field(default={})
    """Severities of alerts with the bounds from which they hold, such as {page: 800, ticket: 500}. An alert has the one
    with the largest number that its bound reaches, else, also without a bound, the one with the smallest. It tells of
    the alert, not of the incident. Default: none; the forwarder then says page."""
    maintenance: Annotated[tuple[MaintenanceField, ...], Change.ADDED_LATER, Change.KEEPS_RUNS] = ()
    """Times in which nothing is tested, in UTC, declared before they begin: intervals such as
    {from: 2026-12-01T22:00Z, until: 2026-12-02T02:00Z}, or times of each week such as {every: Sun 02:00-04:00}. A count
    is not tested if its window overlaps one, another query if its timestamp lies in one. Default: none."""

    # -- values on the grid and in ledger units

    def reserve_units(self, kind: Kind) -> int:
        """Return the reserve in ledger units, rounded up."""
        return math.ceil(self.reserve * kind.units)

    @property
    def grid_sensitivity(self) -> int:
        """D: sensitivity in grid steps, rounded up."""
        return grid_sensitivity(self.sensitivity, self.granularity)

    @property
    def grid_bounds(self) -> tuple[int, int]:
        """Bounds of the values in grid steps."""
        low, high = self.bounds
        return grid_floor(low, self.granularity), grid_floor(high, self.granularity)

    @property
    def attempts(self) -> int:
        """Largest number of tests of a query, including the first."""
        if isinstance(self.append, fields.Retry):
            return self.append.attempts
        has_passes = isinstance(self.correction, fields.AnnealedOptions | fields.Table)
        if has_passes and isinstance(self.append, fields.Sweep):
            return len(self.correction_rule().table(corrections.Comparison(scale=Fraction(1))))
        return 1

    @property
    def needs_broker_time(self) -> bool:
        """Whether the query topic must be LogAppendTime because the specification has durations."""
        waits = isinstance(self.append, fields.Retry) and self.append.lifetime.ms is not None
        waits = waits or (isinstance(self.append, fields.Sweep) and self.append.close_after is not None)
        waits = waits or bool(self.maintenance)
        return waits or self.resample_every is not None or not isinstance(self.mute, fields.Mute)

    def correction_rule(self) -> corrections.Correction:
        """Return the correction as an object of the mechanisms."""
        rule = self.correction
        if isinstance(rule, fields.ExposureOptions):
            tolerated = Fraction(self.cutoff, 10) if rule.false_alerts is None else rule.false_alerts
            return corrections.Exposure(
                expected_queries=self.expected_queries or 1,
                false_alerts=tolerated,
                attempts=self.append.attempts if isinstance(self.append, fields.Retry) else 1,
            )
        if isinstance(rule, fields.AnnealedOptions):
            return corrections.Annealed(start=rule.start, end=rule.end, step=rule.step)
        if isinstance(rule, fields.Table):
            return corrections.Explicit(tuple(grid_ceil(real, self.granularity) for real in rule.table))
        if rule.kind == "optimal":
            return corrections.Optimal(queries=self.expected_queries or 1, cutoff=self.cutoff)
        return corrections.Mean() if rule.kind == "mean" else corrections.Uncorrected()

    def mechanism(self) -> SparseVector:
        """Return the mechanism of one whole run; MisuseError if epsilon cannot be divided on this grid."""
        return _CONSTRUCTORS[self.form](
            epsilon=self.epsilon,
            cutoff=self.cutoff,
            monotonic=self.monotonic,
            correction=self.correction_rule(),
            sensitivity=self.grid_sensitivity,
            query_noise=self.query_noise,
            threshold_noise=self.threshold_noise,
            **{"theta" if self.form == "adaptive" else "split": self.split},
        )

    def run_price(self, kind: Kind) -> int:
        """Return what one whole run costs, in units of ``kind`` (for zCDP, rounded up)."""
        mechanism = self.mechanism()
        if kind is Kind.PURE:
            return mechanism.epsilon_units
        if not mechanism.monotonic:
            return zcdp_general(mechanism.epsilon_units)
        return zcdp_monotone(mechanism.epsilon_units, mechanism.threshold_units)

    def price_with(self, kind: Kind, **changed: Any) -> int:  # noqa: ANN401  values of keys
        """Return what a run with other values of some keys costs."""
        return self.model_copy(update=changed).run_price(kind)

    def __hash__(self) -> int:
        """Return a hash that is fast to compute: this is a key of caches that each begin of a run asks."""
        return hash(self.name)

    def runs_allowed(self, dataset: Terms, sharing: int) -> fields.MaxRuns | None:
        """Return how many runs on a dataset may begin within a time, None for any number.

        ``sharing`` is the number of monitors on the dataset.
        """
        if isinstance(self.max_runs, str):
            affordable = dataset.limit - dataset.spent_before
            return _runs_allowed(self, dataset.kind, affordable, dataset.horizon_ms, sharing)
        return self.max_runs

    @property
    def covers(self) -> Callable[[str], bool]:
        """A function that returns whether the monitor runs on a dataset; get it once for many names."""
        return _matcher(self.datasets)

    def to_json(self) -> str:
        """Return the specification as JSON for `from_json`; it contains no secrets."""
        return self.model_dump_json(by_alias=True, exclude=self._left_out)

    @property
    def content(self) -> dict[str, Any]:
        """The specification as JSON-like data."""
        return self.model_dump(mode="json", by_alias=True, exclude=self._left_out)

    @property
    def _left_out(self) -> set[str]:
        """Keys of later releases where they are not used."""
        unused = {name for name in questions.QuestionKeys.model_fields if getattr(self, name) is None}
        later = ("detect", "end", "severity", "maintenance", "not_renewed")
        unused |= {name for name in later if not getattr(self, name)}
        return unused | (set() if self.source else {"source", "measure"})

    @property
    def asks(self) -> bool:
        """Whether it tests answers to a question about counts, and not counts; see `questions`."""
        keys = questions.QuestionKeys.model_fields
        asked = any(getattr(self, name) is not None for name in keys)
        return self.source is not None and (asked or bool(self.ends))

    @property
    def ends(self) -> str:
        """The monitor whose incidents it ends, if `end` of that one makes it; "" for others."""
        return self.name.removesuffix(fields.END) if self.name.endswith(fields.END) else ""

    def ending(self, source: SourceSpec) -> MonitorSpec:
        """Return the monitor that tests for ends, as `end` says; ValidationError if it cannot be."""
        end = self.end or questions.EndOptions(below=self.threshold)
        low, high = self.bounds
        cutoff = end.cutoff or self.cutoff
        tests = cutoff * math.ceil(Fraction(end.longest, source.window))  # of as many incidents as a run ends
        found = self.model_copy(
            update={
                "name": f"{self.name}{fields.END}",
                "end": None,
                "detect": None,
                "not_renewed": None,
                "epsilon": end.epsilon or self.epsilon,
                "cutoff": cutoff,
                "threshold": -end.below,
                "bounds": (-high, -low),
                "expected_queries": tests if self.correction.kind in {"exposure", "optimal"} else None,
                "mute": fields.Mute.NONE,
                "severity": {},
                "resample_every": None,
            }
        )
        self.from_json(found.to_json())  # which has no lines of files
        return found

    @property
    def tested(self) -> str | None:
        """The name of the rows that it tests on a topic of counts, a measure or a question; None on a query topic."""
        return questions.rows_of(self.rows) if self.asks else self.measure

    @property
    def rows(self) -> str:
        """The name of its question's answers in records: the monitor, and a digest of the question without thresholds.

        A monitor with the name of another one, which was removed, must not test answers to that one's question: they
        may move further.
        """
        asked = [getattr(self, name) for name in questions.QuestionKeys.model_fields if name != "thresholds"]
        return _rows(self.name, self.source, self.measure, self.thresholds is not None, *asked)

    def question(self, source: SourceSpec) -> questions.Question:
        """Return the question that it asks of its source; only if it `asks`."""
        asked = questions.asked_by(self.name, self, self.measure or "", source, self.rows)
        return asked.ending() if self.ends else asked

    @property
    def declares_about(self) -> str:
        """What its sensitivity is declared about: its query topic, or its question's answers alone."""
        return f"{self.topic}, {questions.rows_of(self.rows)}" if self.asks else self.topic

    @classmethod
    @lru_cache(maxsize=256)
    def from_json(cls, text: str) -> MonitorSpec:
        """Return the specification that `to_json` wrote."""
        return cls.model_validate_json(text)

    def hash(self) -> str:
        """Return a short digest of everything that decides outcomes, including the sampler's version.

        A run is never replayed under another digest.
        """
        usual = {
            name
            for name, info in type(self).model_fields.items()
            if Change.NO_OUTCOME in info.metadata
            or (Change.ADDED_LATER in info.metadata and getattr(self, name) == info.get_default())
        }
        content = self.model_dump(mode="json", by_alias=True, exclude=usual)
        return digest({"sampler": SAMPLER_VERSION, **content})

    # -- checks across fields

    @consistent
    def _problems(self) -> Iterator[tuple[str, str]]:
        problems = [*self._grid_problems(), *self._option_problems(), *self._watch_problems()]
        yield from problems
        if (size := len(self.to_json().encode())) > _STORED_BYTES:
            stored = f"the monitor takes {size} bytes, and its record has room for {_STORED_BYTES}"
            yield "datasets", f"{stored}: use patterns with * and ?, or declare several monitors"
        elif not problems:
            try:
                self.mechanism()
            except MisuseError as error:
                yield "epsilon", str(error)
            except (OverflowError, ZeroDivisionError):
                yield "", "the noise cannot be computed: one of the numbers is far too large or far too small"

    def _grid_problems(self) -> Iterator[tuple[str, str]]:
        low, high = self.bounds
        if low >= high:
            yield "bounds", f"low must be below high, found [{quote(low)}, {quote(high)}]"
        elif self.grid_bounds[0] == self.grid_bounds[1]:
            yield "granularity", "is wider than the bounds: all values would be on the same step"
        grid = f"more than 2^47 steps of {quote(self.granularity)}: use a coarser granularity"
        if FINEST % self.granularity.denominator:
            found = f"must be a decimal of at most 12 places, found {quote(self.granularity)}"
            times = self.granularity.denominator
            advice = "round it, or count in larger units"
            if times <= _LARGEST_FACTOR:
                other = "sensitivity, bounds and threshold"
                advice = f"send {times} times the values, and multiply {other} by {times}, too"
            yield "granularity", f"{found}: {advice}"
        elif max(map(abs, self.grid_bounds)) >= VALUE_LIMIT:
            yield "bounds", f"{grid}, or narrower bounds"
        elif max(map(abs, self.bounds)) * self.granularity.denominator >= BOUND_LIMIT:
            far = "are too far from 0 for so fine a granularity"
            yield "bounds", f"{far}: use larger units, or a coarser granularity"
        if abs(grid_ceil(self.threshold, self.granularity)) >= VALUE_LIMIT:
            yield "threshold", f"{grid}, or another threshold"
        if self.grid_sensitivity >= VALUE_LIMIT:
            yield "sensitivity", f"{grid}, or a smaller sensitivity"

    def _option_problems(self) -> Iterator[tuple[str, str]]:
        rule = self.correction
        if self.source is None:
            keys = ("measure", "end", *questions.QuestionKeys.model_fields)
            for key in (one for one in keys if getattr(self, one) is not None):
                yield key.rstrip("_"), "is used with source only: remove it, or set that"
        if rule.kind in {"exposure", "optimal"} and self.expected_queries is None:
            why = f"is required by the correction {rule.kind}"
            yield "expected_queries", f"{why}: how many queries one run must last for, such as 1000000"
        if self.end is not None and self.append is not None:
            yield (
                "end",
                "cannot be combined with append: waiting values are older than the end of an incident",
            )
        if self.end is not None and self.not_renewed is not None:
            yield (
                "not_renewed",
                "cannot be combined with end, which says when an incident is over: remove one of them",
            )
        if self.end is not None and self.end.below > self.threshold:
            yield (
                "end.below",
                f"must not be above the threshold {quote(self.threshold)}, found {quote(self.end.below)}",
            )
        if len({*self.severity.values()}) < len(self.severity):
            yield "severity", "two severities have the same number: an alert has one of them"
        if isinstance(rule, fields.AnnealedOptions):
            if not isinstance(self.append, fields.Sweep):
                form = "off" if self.append is None else self.append.kind
                why = "new queries of a stream would face the lowest bar: use exposure, or declare sets"
                yield "correction", f"annealed needs append: sweep, found {form}; {why}"
            if rule.end > rule.start:
                message = f"must not be above start ({quote(rule.start)}), found {quote(rule.end)}"
                yield "correction.annealed.end", message
            elif (rule.start - rule.end) / rule.step > fields.MAX_ATTEMPTS:
                message = f"makes more than {fields.MAX_ATTEMPTS + 1} passes: take larger steps"
                yield "correction.annealed.step", message
        if self.form == "adaptive" and self.split is not None and self.split >= 1:
            message = "for adaptive, split is the threshold's share of epsilon and must be below 1"
            yield "split", f"{message}, found {quote(self.split)}"
        if to_units(self.epsilon, Kind.PURE) < 1:
            yield "epsilon", "must be at least 1e-9, the unit of the ledger"
        elif self.epsilon > LARGEST_EPSILON:
            yield "epsilon", f"must be at most {LARGEST_EPSILON}; far smaller values already give no privacy"

    def _watch_problems(self) -> Iterator[tuple[str, str]]:
        if self.not_renewed is None:
            return
        if self.source is None or self.measure is None:
            what = "is used with a source of counts only, whose windows tell what is tested"
            yield "not_renewed", f"{what}: remove it"
        if isinstance(self.mute, fields.Mute):
            found = f"needs a mute that is a duration, found {self.mute}"
            yield "not_renewed", f"{found}: set mute, such as 1h, or remove it"
        if self.append is not None:
            why = "append does not test each window again, but the newest values or a part of a set"
            yield "not_renewed", f"{why}: leave one of them out"

    def notes(self) -> Iterator[tuple[str, str]]:
        """Yield advice about settings that are allowed but may be unintended, as (field, advice)."""
        rule, (low, high) = self.correction, self.bounds
        sweeps = isinstance(self.append, fields.Sweep)
        if not sweeps and rule.kind == "optimal":
            why = "is for a finite set tested once; on a stream it wastes budget on false alerts"
            yield "correction", f"optimal {why}: consider exposure"
        if not sweeps and rule.kind in {"mean", "none"}:
            why = "about half of the queries near the threshold are reported and soon use up the cutoff"
            yield "correction", f"with {rule.kind}, {why}: consider exposure"
        if isinstance(self.append, fields.Retry):
            yield "append", "retries help only if series drift: a query without a series keeps its value"
        if sweeps and self.attempts == 1:
            why = f"a sweep with the correction {rule.kind} has no further pass over its set"
            yield "append", f"{why}: consider annealed"
        if isinstance(rule, fields.ExposureOptions) and (rule.false_alerts or 0) > self.cutoff:
            why = f"false_alerts exceeds the cutoff {self.cutoff}: values near the threshold may use up whole runs"
            yield "correction", why
        if self.expected_queries is not None and rule.kind not in {"exposure", "optimal"}:
            yield "expected_queries", f"is not used by the correction {rule.kind}"
        interval, most = self.resample_every, self.max_runs
        if interval and isinstance(most, fields.MaxRuns) and most.count * interval < most.within_ms:
            why = f"runs begin {most} at most, less often than resample_every says, and go on until the next may begin"
            yield "max_runs", why
        if self.threshold > high:
            yield "threshold", f"lies above the upper bound {quote(high)}: only noise reaches it"
        if self.threshold <= low:
            yield "threshold", f"is not above the lower bound {quote(low)}: every value reaches it"
        if not self.threshold_noise.is_one_sided:
            noise = f"{self.threshold_noise} threshold noise"
            yield "threshold_noise", f"no bound is certified for alerts with {noise}"
        steps = self.grid_sensitivity * self.granularity
        if steps != self.sensitivity:
            rounded = f"sensitivity {quote(self.sensitivity)} rounds up to {quote(steps)}"
            yield "granularity", f"{rounded}: choose a granularity that divides it"


_LONGEST_MS = 6 * 3_600_000
"""Longest time for which one burst of high values stops a monitor by default, in ms."""


@lru_cache(maxsize=10_000)
def _runs_allowed(
    monitor: MonitorSpec, kind: Kind, affordable: int, horizon_ms: int, sharing: int
) -> fields.MaxRuns:
    """Return the maximum for `max_runs: auto`.

    Half of the runs that the monitors can pay for with an equal share each, at least one, within a quarter of the
    horizon, at most `_LONGEST_MS`. So a burst spends half of the share and stops the monitor for hours; a budget that
    is spent evenly over its horizon never reaches the maximum. Runs by schedule come on top.
    """
    count = max(1, affordable // (2 * max(sharing, 1) * monitor.run_price(kind)))
    within_ms = max(min(horizon_ms // 4, _LONGEST_MS), 1)
    if monitor.resample_every is not None:
        count += within_ms // monitor.resample_every
    if count > fields.MOST_RUNS:
        within_ms, count = max(within_ms * fields.MOST_RUNS // count, 1), fields.MOST_RUNS
    return fields.MaxRuns(count, within_ms)


# -- changes of a live monitor

_KEPT = {Change.NO_OUTCOME, Change.KEEPS_RUNS, Change.FIXED, Change.FORM_FIXED}


def _changed(old: MonitorSpec, new: MonitorSpec) -> Iterator[tuple[str, FieldInfo]]:
    known = MonitorSpec.model_fields.items()
    return ((name, info) for name, info in known if getattr(old, name) != getattr(new, name))


def changed_fields(old: MonitorSpec, new: MonitorSpec) -> list[str]:
    """Return the fields that differ, by their keys in the file."""
    return [info.alias or name for name, info in _changed(old, new)]


def effects(old: MonitorSpec, new: MonitorSpec) -> list[Change]:
    """Return what a change costs: open runs, because noise or price change, and waiting queries."""
    marks = [{one for one in info.metadata if isinstance(one, Change)} for _, info in _changed(old, new)]
    found = {Change.ENDS_RUNS} if any(not _KEPT & each for each in marks) else set[Change]()
    costs = (Change.ENDS_RUNS, Change.OLD_GRID, Change.OLD_LAYOUT)
    return [one for one in costs if one in found.union(*marks)]


def ends_runs(old: MonitorSpec, new: MonitorSpec) -> bool:
    """Return whether a change ends open runs."""
    return Change.ENDS_RUNS in effects(old, new)


@dataclass(frozen=True, slots=True)
class Declared:
    """Declared properties of the answers on a query topic; ``|`` returns the more cautious of two declarations."""

    sensitivity: Fraction
    monotonic: bool

    @classmethod
    def by(cls, spec: MonitorSpec) -> Declared:
        """Return the declaration of a monitor."""
        return cls(spec.sensitivity, spec.monotonic)

    @classmethod
    def add_event(cls, topics: dict[str, Declared], detail: Mapping[str, object]) -> None:
        """Add the declaration that an event shows, if it shows one, to those by topic."""
        topic = str(detail.get("topic", ""))
        with suppress(ValueError):
            sensitivity = exact(str(detail.get("sensitivity")))
            if sensitivity > 0:
                topics[topic] = cls(sensitivity, detail.get("monotonic") is True) | topics.get(topic)

    def __or__(self, other: Declared | None) -> Declared:
        other = other or self
        return Declared(max(self.sensitivity, other.sensitivity), self.monotonic and other.monotonic)

    def undercut(self, spec: MonitorSpec) -> dict[str, str]:
        """Return the fields in which a monitor declares less, each with a remedy.

        The topic may still contain answers that match only the earlier declaration.
        """
        undercut = {}
        topic, rest = f"topic {spec.topic!r} was declared", "or let the monitor read another query topic"
        if spec.sensitivity < self.sensitivity:
            least = quote(self.sensitivity)
            declared = f"{topic} with sensitivity {least}, and may still contain such answers"
            undercut["sensitivity"] = f"{declared}. Declare at least {least}, {rest}"
        if spec.monotonic and not self.monotonic:
            declared = f"{topic} not monotonic, and may still contain such answers"
            undercut["monotonic"] = f"{declared}. Declare monotonic: false, {rest}"
        return undercut


def rows_asked(monitors: Iterable[MonitorSpec]) -> list[str]:
    """Return the name of the answers to the questions of some monitors, in place of a measure's."""
    return [one.tested for one in monitors if one.asks and one.tested is not None]


def declared_by(monitors: Iterable[MonitorSpec]) -> dict[str, Declared]:
    """Return the most cautious declaration about each query topic, and about answers to each question."""
    found: dict[str, Declared] = {}
    for monitor in monitors:
        about = monitor.declares_about
        found[about] = Declared.by(monitor) | found.get(about)
    return found


def _refused(old: MonitorSpec, new: MonitorSpec) -> Iterator[tuple[str, str]]:
    """Yield changed fields that runs depend on (offsets of their topic) or waiting queries (the form of `append`)."""
    for name, info in _changed(old, new):
        key = info.alias or name
        if Change.FIXED in info.metadata:
            yield key, Change.FIXED
        elif Change.FORM_FIXED in info.metadata and type(getattr(old, name)) is not type(getattr(new, name)):
            yield key, Change.FORM_FIXED


def changes_refused(
    old: Mapping[str, MonitorSpec], declared: Mapping[str, Declared], new: Collection[MonitorSpec]
) -> list[Problem]:
    """Return the changes of monitors that a running application cannot adopt.

    ``old`` are the monitors in use by name, ``declared`` the declarations so far (see `declared_by`).
    """
    found = []
    for monitor in new:
        about, before = monitor.declares_about, old.get(monitor.name)
        refused: dict[str, str] = {}
        if before is not None:
            refused |= dict(_refused(before, monitor))
        if about in declared:
            refused |= declared[about].undercut(monitor)
        found += [Problem(0, f"monitors.{monitor.name}.{name}", why) for name, why in refused.items()]
    return found


@lru_cache(maxsize=1000)
def _matcher(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """Return a function that returns whether a name matches one of the patterns."""
    if "*" in patterns:
        return lambda _: True
    match = re.compile("|".join(map(translate, patterns))).match
    return lambda name: match(name) is not None


@lru_cache(maxsize=1000)
def _rows(name: str, *asked: object) -> str:
    """Return the name of a question's answers in records: its monitor, and a digest of the question."""
    content = [
        one.model_dump(mode="json", by_alias=True) if isinstance(one, Strict) else one for one in asked
    ]
    return f"{name} {digest(content)}"


def digest(content: object) -> str:
    """Return a digest of a JSON-like content, as sixteen hex digits."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
