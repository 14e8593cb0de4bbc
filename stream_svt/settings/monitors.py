"""One monitor's specification: its keys, its values on the grid and in ledger units, and permitted changes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import translate
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from stream_svt.errors import MisuseError, Problem
from stream_svt.mechanisms import correction as corrections
from stream_svt.mechanisms.grid import BOUND_LIMIT, PARTS, VALUE_LIMIT, grid_floor, grid_sensitivity
from stream_svt.mechanisms.noise import Noise
from stream_svt.mechanisms.numbers import LARGEST_EPSILON, exact
from stream_svt.mechanisms.sampler import SAMPLER_VERSION
from stream_svt.mechanisms.sparse_vector import SparseVector, adaptive, ladder, sparse_vector
from stream_svt.privacy.loss import Kind, to_units, zcdp_general, zcdp_monotone
from stream_svt.settings import fields
from stream_svt.settings.datasets import Terms
from stream_svt.settings.document import Strict, consistent, quote
from stream_svt.settings.records import RecordLayout

_CONSTRUCTORS: dict[str, Callable[..., SparseVector]]
_CONSTRUCTORS = {"svt": sparse_vector, "adaptive": adaptive, "ladder": ladder}


def _pair(value: object) -> object:
    if isinstance(value, list | tuple) and len(value) == 2:
        return value
    raise ValueError(f"expected [low, high], such as [0, 100000], found {quote(value)}")


_NO_OUTCOME = frozenset({"name", "datasets", "beta"})
"""Fields that decide no outcome."""
ADDED_LATER: frozenset[str] = frozenset({"record"})
"""Keys added after the first release. Their default keeps the earlier behaviour and never changes, so that runs opened
by an earlier release continue."""

_STORED_BYTES = 899_900
"""Largest size in bytes of a monitor as JSON that fits into one state record."""


class MonitorSpec(Strict):
    """One sparse-vector monitor over the queries of one topic, run on each of its datasets."""

    name: fields.Name
    """Name of the monitor: lower-case letters, digits and dashes."""
    topic: fields.TopicName
    """The one query topic that the monitor reads."""
    record: RecordLayout | None = None
    """Layout of the topic's records; all monitors of a topic declare the same. Default: the service's own fields."""
    datasets: Annotated[tuple[fields.Text, ...], Field(min_length=1)] = ("*",)
    """Patterns of dataset names with * and ?. Default: all datasets, ["*"]."""
    form: Literal["svt", "adaptive", "ladder"] = Field(default="svt", alias="mechanism")
    """svt: one branch. adaptive: a second branch, with which answers far above the threshold cost half. ladder: more
    such branches. Default svt."""
    epsilon: fields.PositiveExact
    """Privacy loss of one whole run, exact."""
    cutoff: Annotated[int, Field(ge=1, le=1_000_000), BeforeValidator(fields.integer)]
    """Alerts that one run pays for; for adaptive and ladder, alerts at full price."""
    sensitivity: fields.PositiveExact
    """Largest change of one answer when one privacy unit changes, in real units. Too small a value voids the
    guarantee."""
    monotonic: fields.Flag = False
    """Whether one privacy unit moves all answers of a run in the same direction, as for counts. Halves the noise; a
    wrong declaration voids the guarantee. Default false."""
    granularity: fields.PositiveExact = Fraction(1)
    """Size of a step of the integer grid in real units: a decimal of at most 18 places. Default 1."""
    bounds: Annotated[tuple[fields.Exact, fields.Exact], BeforeValidator(_pair)]
    """[low, high] in real units. Values are clamped to them, and a value that is not a number counts as low."""
    threshold: fields.Exact
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
    """How far the bar is raised above the threshold. Default exposure."""
    expected_queries: Annotated[int, Field(ge=1, le=10**15), BeforeValidator(fields.integer)] | None = None
    """Queries that one run must last for; required by the corrections exposure and optimal. Too small a number wastes
    budget, too large a number misses alerts."""
    append: fields.AppendField = Field(default=None, json_schema_extra={"default": "off"})
    """Further tests of bottoms: sweep (finite sets) or retry (series of a stream). Default off."""
    mute: fields.MuteField = fields.Mute.PERIOD
    """How long a series is not tested after its alert: period means as long as the dataset lives. Queries without
    `series` are never muted: each may cost an alert. Default period."""
    max_mutes: Annotated[int, Field(ge=1, le=1_000_000), BeforeValidator(fields.integer)] = 10_000
    """Muted series that a dataset keeps; a further one replaces the oldest. Default 10000."""
    on_halt: Literal["resample", "stop"] = "resample"
    """After a run's last alert: resample (begin a new run, which pays for its threshold again) or stop. Default
    resample."""
    resample_every: fields.Duration | None = None
    """Interval after which a new run begins, on the broker's clock. Default: none."""
    max_runs: fields.MaxRunsField = fields.AUTO
    """How many runs on a dataset may begin within a time, such as 2 per 1d, by the timestamps of the queries; off:
    any number. auto: half of the runs that the limit pays for within a quarter of the horizon; without a horizon the
    same, and at most 2, within 1d. Default auto."""
    reserve: fields.NonNegativeExact = Fraction(0)
    """Budget that opening a run leaves to other monitors, in the ledger's measure. Default 0."""
    beta: fields.Proportion = Fraction(1, 20)
    """Largest error probability of the bound. Default 0.05."""

    # -- values on the grid and in ledger units

    def reserve_units(self, kind: Kind) -> int:
        """Return the reserve in ledger units, rounded up."""
        return -to_units(-self.reserve, kind) if self.reserve else 0

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
            return corrections.Explicit(tuple(ceil(real / self.granularity) for real in rule.table))
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
        return self.model_dump_json(by_alias=True)

    @classmethod
    @lru_cache(maxsize=256)
    def from_json(cls, text: str) -> MonitorSpec:
        """Return the specification that `to_json` wrote."""
        return cls.model_validate_json(text)

    def hash(self) -> str:
        """Return a short digest of everything that decides outcomes, including the sampler's version.

        A run is never replayed under another digest. The digest excludes `_NO_OUTCOME`, and keys of `ADDED_LATER` with
        their default.
        """
        known = type(self).model_fields
        usual = {name for name in ADDED_LATER if getattr(self, name) == known[name].get_default()}
        content = self.model_dump(mode="json", by_alias=True, exclude={*_NO_OUTCOME, *usual})
        return digest({"sampler": SAMPLER_VERSION, **content})

    # -- checks across fields

    @consistent
    def _problems(self) -> Iterator[tuple[str, str]]:
        problems = [*self._grid_problems(), *self._option_problems()]
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
        if PARTS % self.granularity.denominator:
            yield "granularity", f"must be a decimal of at most 18 places, found {quote(self.granularity)}"
        elif max(map(abs, self.grid_bounds)) >= VALUE_LIMIT:
            yield "bounds", f"{grid}, or narrower bounds"
        elif max(map(abs, self.bounds)) * self.granularity.denominator >= BOUND_LIMIT:
            far = "are too far from 0 for so fine a granularity"
            yield "bounds", f"{far}: use larger units, or a coarser granularity"
        if abs(ceil(self.threshold / self.granularity)) >= VALUE_LIMIT:
            yield "threshold", f"{grid}, or another threshold"
        if self.grid_sensitivity >= VALUE_LIMIT:
            yield "sensitivity", f"{grid}, or a smaller sensitivity"

    def _option_problems(self) -> Iterator[tuple[str, str]]:
        rule = self.correction
        if rule.kind in {"exposure", "optimal"} and self.expected_queries is None:
            why = f"is required by the correction {rule.kind}"
            yield "expected_queries", f"{why}: how many queries one run must last for, such as 1000000"
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


_DAY_MS = 86_400_000
_UNPLANNED_RUNS = 2
"""Largest number of runs a day on a dataset whose horizon is not known."""


@lru_cache(maxsize=10_000)
def _runs_allowed(
    monitor: MonitorSpec, kind: Kind, affordable: int, horizon_ms: int | None, sharing: int
) -> fields.MaxRuns:
    """Return the maximum for `max_runs: auto`.

    Half of the runs that the monitors can pay for with an equal share each, at least one, within a quarter of the
    horizon: that is more than the pace at which the budget lasts for its horizon. Runs by schedule come on top.
    """
    count = affordable // (2 * max(sharing, 1) * monitor.run_price(kind))
    within_ms = _DAY_MS if horizon_ms is None else max(horizon_ms // 4, 1)
    count = max(1, count if horizon_ms is not None else min(count, _UNPLANNED_RUNS))
    if monitor.resample_every is not None:
        count += within_ms // monitor.resample_every
    if count > fields.MOST_RUNS:
        within_ms, count = max(within_ms * fields.MOST_RUNS // count, 1), fields.MOST_RUNS
    return fields.MaxRuns(count, within_ms)


# -- changes of a live monitor

_KEEPS_RUNS = frozenset(
    {
        *("datasets", "threshold", "append", "mute", "max_mutes", "on_halt", "resample_every", "max_runs"),
        *("reserve", "beta"),
    }
)
"""Fields that can change without ending open runs; a change of any other field ends them."""


_TIED = "cannot change, because the runs of the monitor depend on it: declare a monitor with another name"


def changed_fields(old: MonitorSpec, new: MonitorSpec) -> list[str]:
    """Return the fields that differ, by their keys in the file."""
    known = MonitorSpec.model_fields.items()
    return [info.alias or name for name, info in known if getattr(old, name) != getattr(new, name)]


def ends_runs(old: MonitorSpec, new: MonitorSpec) -> bool:
    """Return whether a change ends open runs, because it changes their noise or price."""
    return not _KEEPS_RUNS.issuperset({*changed_fields(old, new)} - {"topic"})


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
    def of_event(cls, detail: Mapping[str, object]) -> Declared | None:
        """Return the declaration that an event shows; None if it shows none."""
        try:
            sensitivity = exact(str(detail.get("sensitivity")))
        except ValueError:
            return None
        return cls(sensitivity, detail.get("monotonic") is True) if sensitivity > 0 else None

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


def declared_by(monitors: Iterable[MonitorSpec]) -> dict[str, Declared]:
    """Return the most cautious declaration of each query topic."""
    found: dict[str, Declared] = {}
    for monitor in monitors:
        found[monitor.topic] = Declared.by(monitor) | found.get(monitor.topic)
    return found


def changes_refused(
    old: Mapping[str, MonitorSpec], declared: Mapping[str, Declared], new: Collection[MonitorSpec]
) -> list[Problem]:
    """Return the changes of monitors that a running application cannot adopt.

    ``old`` are the monitors in use by name, ``declared`` the declarations so far by query topic.
    """
    found = []
    wanted = declared_by(new)
    for monitor in new:
        topic, before = monitor.topic, old.get(monitor.name)
        refused: dict[str, str] = {}
        least = declared.get(topic)
        if before is not None:
            # Runs depend on the offsets of their topic, waiting queries on the form of append (but not its options).
            tied = {"topic": before.topic != topic, "append": type(before.append) is not type(monitor.append)}
            refused |= {name: _TIED for name, changes in tied.items() if changes}
            least = Declared.by(before) if before.topic == topic else None
        if topic in declared and declared[topic] | wanted[topic] != declared[topic]:
            # All monitors of the topic test the same answers: a lower declaration means too little noise.
            least = declared[topic] | wanted[topic]
        if least is not None:
            refused |= least.undercut(monitor)
        found += [Problem(0, f"monitors.{monitor.name}.{name}", why) for name, why in refused.items()]
    return found


@lru_cache(maxsize=1000)
def _matcher(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """Return a function that returns whether a name matches one of the patterns."""
    if "*" in patterns:
        return lambda _: True
    match = re.compile("|".join(map(translate, patterns))).match
    return lambda name: match(name) is not None


def digest(content: object) -> str:
    """Return a digest of a JSON-like content, as sixteen hex digits."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
