"""Sources: raw topics whose events are counted, so that the sensitivity is known and not declared."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import reduce
from itertools import combinations
from typing import Annotated, Any, Final, Literal

import msgspec
from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo, field_validator

from stream_svt.mechanisms.grid import PARTS, WHOLE_LIMIT
from stream_svt.settings import fields
from stream_svt.settings.answers import AnswersSpec, DatasetOfAnswer
from stream_svt.settings.datasets import HORIZON_MS, OR_PATTERN, DatasetDeclaration, has_slots, names_in
from stream_svt.settings.document import Found, Strict, consistent, did_you_mean, quote, required
from stream_svt.settings.monitors import digest
from stream_svt.settings.periods import (
    DATE_SLOT,
    DAY_MS,
    NAME_SLOT,
    SLOTS,
    WEEK_SLOT,
    period_name,
    periods_in,
    written,
)
from stream_svt.settings.questions import Question, Visits
from stream_svt.settings.records import KEY, Path, checked_path, is_inside, steps

LOG_PARTITIONS: Final = 8
"""Partitions of an application's event log."""
MAX_CELLS: Final = 2**20
MOST_EVENTS: Final = 100
LONGEST_TEXT: Final = 256
"""Most characters of a unit, a series, and a text that a condition compares."""


def log_topic(application: str) -> str:
    """Return the topic of an application's event log."""
    return f"{application}.sources"


def as_text(value: object) -> str:
    """Return a value in the form in which events are compared: a text; integers and booleans as their texts."""
    if isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        value = int(value)
    if isinstance(value, int):
        return quote(value)
    if isinstance(value, str) and 1 <= len(value) <= LONGEST_TEXT:
        return fields.visible(value)
    expected = f"expected a text of 1 to {LONGEST_TEXT} characters, a whole number, true or false"
    raise ValueError(f"{expected}, found {quote(value)}")


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"expected a list of texts, found {quote(value)}")
    return _once([as_text(one) for one in value])


def _once(names: Sequence[str]) -> tuple[str, ...]:
    """Return names as a tuple; ValueError if one occurs twice."""
    known = dict.fromkeys(names)
    if len(known) < len(names):
        twice = next(one for number, one in enumerate(names) if one in names[:number])
        raise ValueError(f"{quote(twice)} occurs twice: values are compared as texts, 1 and '1' are equal")
    return tuple(known)


def _names_file(file: fields.Named[Sequence[str]]) -> fields.Named[Sequence[str]]:
    return replace(file, held=_once(names_in(file, as_text)))


_TEXT_SCHEMA = {"type": ["string", "integer", "boolean"]}
_TEXTS_SCHEMA: dict[str, Any] = {"type": "array", "items": _TEXT_SCHEMA, "minItems": 1, "uniqueItems": True}
Texts = Annotated[tuple[str, ...], fields.Form(_texts, _TEXTS_SCHEMA, list)]
NamesFile = Annotated[fields.LinesFile, AfterValidator(_names_file)]


class _Names(Strict):
    """Names from a list or a file."""

    listed: Texts | None = Field(default=None, alias="names")
    """The names."""
    file: NamesFile | None = None
    """Instead, a file with one name a line; lines beginning with # are skipped."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the order declared."""
        return tuple(self.file.held) if self.file else self.listed or ()


class SeriesSpec(_Names):
    """The field of an event's series, and the series that are counted."""

    field: Path
    """Path of the series: a text, an integer or a boolean. An event of a series without a name here is dropped."""

    @consistent
    def _problems(self) -> Found:
        if (self.listed is None) is (self.file is None):
            yield "names", "or file is required, and only one of them: the series that are counted"


class DatasetOfEvent(_Names):
    """The dataset of an event: a pattern, with a slot for the value of a field."""

    pattern: Annotated[str, Field(strict=True)]
    """A dataset's name, with {date} or {iso_week} for the period in which a window begins, and {name} with a field."""
    field: Path | None = None
    """Path of the value for {name}, a text, an integer or a boolean. If a unit may have several values, use `series`
    instead: the losses of its datasets add up. Default: none."""

    @consistent
    def _problems(self) -> Found:
        if not has_slots(self.pattern, 1):
            slots = f"{' or '.join(SLOTS)} once at most, and {NAME_SLOT} once at most"
            yield "pattern", f"expected {slots}, found {quote(self.pattern)}"
            return
        has_names = self.listed is not None or self.file is not None
        if (NAME_SLOT in self.pattern) is not (self.field is not None and has_names):
            slot = f"{NAME_SLOT} is the place of the value of a field"
            yield "pattern", f"{slot}: declare {NAME_SLOT}, field and names together, or none of them"
        elif self.listed is not None and self.file is not None:
            yield "file", "names are listed, too: remove one of them"
        for name in self.names or ("name",):
            try:
                fields.dataset_name(period_name(self.pattern, 0).replace(NAME_SLOT, name))
            except ValueError as error:
                yield "pattern" if not self.names else "file" if self.file else "names", str(error)
                break


def _no_dataset() -> DatasetOfEvent:
    """Return the placeholder for the dataset of events of a source that passes on answers."""
    return DatasetOfEvent.model_construct(pattern="")


class TimeOfEvent(Strict):
    """The field of an event's time."""

    field: Path
    """Path of the time, a number or a text of one; fractions are rounded down."""
    scale: Literal["s", "ms", "us", "iso"] = Field(alias="in")
    """Since 1970 in seconds, milliseconds or microseconds; or iso, a text such as 2026-01-05T10:00:00Z (without a zone,
    in UTC)."""


@dataclass(frozen=True, slots=True)
class EventCondition:
    """A condition on the value at a path: it is one of some texts, or a finite number (never a text) in a range."""

    path: str
    texts: frozenset[str] | None = None
    at_least: Fraction | None = None
    below: Fraction | None = None


_LIMITS = ("at_least", "below")


def _condition(path: str, value: object) -> EventCondition:
    if not isinstance(value, dict):
        return EventCondition(path, frozenset(_texts(value if isinstance(value, list | tuple) else [value])))
    if not value or not {*value} <= {*_LIMITS}:
        unknown = next((one for one in value if one not in _LIMITS), None)
        near = "" if unknown is None else did_you_mean(unknown, _LIMITS)
        raise ValueError(f"expected texts, or at_least, below or both, found {quote(unknown)}{near}")
    limits = {name: fields.number(limit) for name, limit in value.items()}
    for name, limit in limits.items():
        # Numbers of events are exact within these limits.
        if abs(limit) >= WHOLE_LIMIT or (limit * PARTS).denominator != 1:
            wrong = f"{name} must be less than 2^62 in size, with at most 18 decimals"
            raise ValueError(f"{wrong}, found {quote(value[name])}")
    if len(limits) == 2 and limits["at_least"] >= limits["below"]:
        raise ValueError(f"at_least must be less than below ({quote(limits['below'])}): no number is between")
    return EventCondition(path, None, limits.get("at_least"), limits.get("below"))


def _where(value: object) -> tuple[EventCondition, ...]:
    if not isinstance(value, dict):
        wrong = f"expected a mapping such as {{status: [500, 503]}}, found {quote(value)}"
        raise ValueError(wrong)  # noqa: TRY004  pydantic takes no TypeError
    found = []
    for path, one in value.items():
        try:
            found.append(_condition(checked_path(path), one))
        except ValueError as error:
            raise ValueError(f"{quote(path)}: {error}") from None
    return tuple(found)


def _written(conditions: Sequence[EventCondition]) -> dict[str, Any]:
    """Return conditions in the form of a configuration file."""
    return {
        one.path: sorted(one.texts)
        if one.texts is not None
        else {name: str(limit) for name in _LIMITS if (limit := getattr(one, name)) is not None}
        for one in conditions
    }


_RANGE = dict.fromkeys(_LIMITS, fields.NUMBER_SCHEMA)
_CONDITION_SCHEMA = {
    "anyOf": [
        _TEXT_SCHEMA,
        _TEXTS_SCHEMA,
        {"type": "object", "properties": _RANGE, "additionalProperties": False, "minProperties": 1},
    ]
}
Conditions = Annotated[
    tuple[EventCondition, ...],
    fields.Form(_where, {"type": "object", "additionalProperties": _CONDITION_SCHEMA}, _written),
]


def _of(value: object) -> int:
    if value == "units":
        return 1
    events = value.get("events") if isinstance(value, dict) and len(value) == 1 else None
    if isinstance(events, dict) and events.keys() == {"at_most"}:
        most = fields.integer(events["at_most"])
        if isinstance(most, int) and 1 <= most <= MOST_EVENTS:
            return most
        raise ValueError(f"at_most must be between 1 and {MOST_EVENTS}, found {quote(most)}")
    raise ValueError(f"expected units, or {{events: {{at_most: 5}}}}, found {quote(value)}")


_EVENTS_SCHEMA = fields.with_key("at_most", {"type": "integer", "minimum": 1, "maximum": MOST_EVENTS})
Contribution = Annotated[
    int,
    fields.Form(
        _of,
        {"anyOf": [{"const": "units"}, fields.with_key("events", _EVENTS_SCHEMA)]},
        lambda most: "units" if most == 1 else {"events": {"at_most": most}},
    ),
]


class MeasureSpec(Strict):
    """A count of the events of a window and a series."""

    name: fields.Name
    """Name of the measure, which monitors have as `measure`."""
    conditions: Conditions = Field(default=(), alias="where")
    """Which events count, in addition to the source's `where`: for each path a text, a list of texts (numbers and
    booleans are compared as texts), or at_least and below for finite numbers. All must match. Default: all events."""
    at_most: Contribution = Field(default=1, alias="of", json_schema_extra={"default": "units"})
    """units counts the different units; {events: {at_most: 5}} counts events, at most 5 (1 to 100) of each unit.
    Default units."""


class ListedMeasure(msgspec.Struct, frozen=True):
    """A measure of a window: its name, and the most that one unit adds to a count."""

    name: str
    at_most: int


class WindowList(msgspec.Struct, frozen=True):
    """The counts of a window, and the questions that monitors ask about them once it is closed.

    ``datasets`` are the values of {name} in the dataset. It is ("",) without {name}, and ``series`` without series.
    """

    datasets: tuple[str, ...]
    measures: tuple[ListedMeasure, ...]
    series: tuple[str, ...]
    questions: tuple[Question, ...] = ()

    def index_of(self, measure: str) -> int:
        """Return the index of a measure in the list."""
        return [one.name for one in self.measures].index(measure)

    def part(self, first: int, end: int) -> WindowList:
        """Return the list with some of its series."""
        asked = tuple(one.of_series(first, end) for one in self.questions)
        return WindowList(self.datasets, self.measures, self.series[first:end], asked)

    def continued(self, part: WindowList) -> WindowList:
        """Return the list with the series of another part appended."""
        asked = tuple(one.continued(more) for one, more in zip(self.questions, part.questions, strict=True))
        return WindowList(self.datasets, self.measures, self.series + part.series, asked)

    @property
    def visits(self) -> tuple[Visits, ...]:
        """The counts with visits that its questions read, each once."""
        return tuple(dict.fromkeys(one.visits for one in self.questions if one.visits is not None))

    @property
    def remembered(self) -> int:
        """Number of closed windows that a window with visits reads from memory: no topic has their counts."""
        asked = ((one.visits.among - 1, one.look_back) for one in self.questions if one.visits is not None)
        return max(map(max, asked), default=0)

    @property
    def cells(self) -> int:
        """Number of counts. The index of a cell is (dataset * measures + measure) * series + its series."""
        return len(self.datasets) * len(self.measures) * len(self.series)

    @property
    def digest(self) -> str:
        """Digest of the series' names: eight hex digits."""
        return hashlib.sha256(msgspec.json.encode(self.series)).hexdigest()[:8]


_OF_EVENTS = ("unit", "dataset", "window")
"""Keys that are required to count events."""
_OF_ANSWERS = ("name", "topic", "format", "answers", "every", "settle")
"""Keys that are used to pass on answers."""


def _of_either(schema: dict[str, Any]) -> None:
    """Change the JSON Schema of a source: it counts events, or passes on answers."""
    for name in _OF_EVENTS:
        schema["properties"][name].pop("default", None)
    others = {name: False for name in schema["properties"] if name not in _OF_ANSWERS}
    counts = {"required": [*_OF_EVENTS], "properties": {"answers": False}}
    schema["oneOf"] = [counts, {"required": ["answers"], "properties": others}]


_DIGIT: Final = "0123456789"
_PERIOD_SHAPES: Final = {DATE_SLOT: "0000-00-00", WEEK_SLOT: "0000-w00"}


def _matches_some(pattern: str, name: str) -> bool:
    """Return whether a pattern with * and ? matches a dataset's name in some period, with any digits in its slot."""
    tokens = re.findall(r"\[!?\]?[^\]]*\]|.", pattern, re.DOTALL)

    def with_empty(places: set[int]) -> set[int]:
        for place, one in enumerate(tokens):
            if one == "*" and place in places:
                places.add(place + 1)
        return places

    slot = periods.slot if (periods := periods_in(name)) else ""
    before, _, after = name.partition(slot) if slot else (name, "", "")
    period = [_DIGIT if one == "0" else one for one in _PERIOD_SHAPES.get(slot, "")]
    places = with_empty({0})
    for choices in (*before, *period, *after):
        reached = set()
        for place in places - {len(tokens)}:
            if tokens[place] == "*":
                reached.add(place)
            elif any(fnmatchcase(one, tokens[place]) for one in choices):
                reached.add(place + 1)
        places = with_empty(reached)
    return len(tokens) in places


class SourceSpec(Strict):
    """A raw topic: a counter counts its events by windows for monitors, or passes on its answers to them."""

    model_config = ConfigDict(json_schema_extra=_of_either)

    name: fields.Name
    """Name of the source: lower-case letters, digits and dashes."""
    topic: fields.TopicName
    """The raw topic. It may have any number of partitions, and must not be compacted."""
    format: Literal["json", "avro"] = "json"
    """Format of its records: json, or avro in the wire format of Confluent's Schema Registry (section
    `schema_registry`). Default json."""
    answers: AnswersSpec | None = None
    """Existing answers, which are passed on as they are. Excludes measures and all other keys about events. Default:
    events are counted."""
    unit: Path = ""
    r"""Path of the privacy unit, such as a user: a text of 1 to 256 characters, an integer or a boolean. key is the
    record's key, here and in every other path (a field of that name is `\key`). Required without `answers`, as are
    `dataset` and `window`."""
    series: SeriesSpec | None = None
    """Field and names of the series. Default: one count for all events of a window."""
    dataset: Annotated[DatasetOfEvent, OR_PATTERN] = Field(default_factory=_no_dataset)
    """The dataset whose budget the counts spend: a name, a pattern with {date} or {iso_week}, or a mapping with
    pattern, field and names. Its `unit` follows from the source."""
    time: TimeOfEvent | None = None
    """Field of an event's own time. Default: the record's timestamp."""
    conditions: Conditions = Field(default=(), alias="where")
    """Which events count; as `where` of measures. Default: all events."""
    measures: Annotated[tuple[MeasureSpec, ...], Field(min_length=1)] = (MeasureSpec(name="units"),)
    """The counts, which share one ledger. Default: one measure of the name units."""
    every: Annotated[fields.Duration, fields.within(1000, 7 * DAY_MS)] = 10_000
    """Length of a tick; windows, lateness and periods are multiples of it. Default 10s."""
    window: fields.Duration = 0
    """Length of a window: a part of a day, or whole days. Windows are counted from a Monday, UTC."""
    lateness: fields.DurationOrZero = Field(default="1m", validate_default=True)
    """How long a window takes events after its end; rounded up to a tick. Default 1m."""
    ahead: Annotated[fields.DurationOrZero, fields.within(0, 7 * DAY_MS)] = 600_000
    """How far an event's own time may be ahead of its append. Default 10m."""
    settle: Annotated[fields.DurationOrZero, fields.within(0, 600_000)] = 10_000
    """How long the counter waits after a tick's end before it looks at the topic: longer than the differences between
    the brokers' clocks and the delay of replication. Default 10s."""
    ask: Literal["close", "tick"] = "close"
    """close: one query for each count, when its window closes. tick: at each tick until then. Default close."""

    @field_validator("lateness")
    @classmethod
    def _whole_ticks(cls, value: int, info: ValidationInfo) -> int:
        every: int = info.data.get("every", 1)
        return value + -value % every

    def __hash__(self) -> int:
        return hash(self.name)

    # -- paths

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all fields that are read, each once; `KEY` is the record's key."""
        return tuple(dict.fromkeys(path for _, path in self._paths()))

    def _paths(self) -> Iterator[tuple[str, str]]:
        """Yield the keys of all paths with the paths."""
        if self.answers is not None:
            yield from ((f"answers.{key}", path) for key, path in self.answers.paths.items())
            return
        yield "unit", self.unit
        parts = {"series": self.series, "dataset": self.dataset, "time": self.time}
        yield from ((f"{key}.field", part.field) for key, part in parts.items() if part and part.field)
        yield from (("where", one.path) for one in self.conditions)
        yield from (("measures", one.path) for measure in self.measures for one in measure.conditions)

    # -- counts

    @property
    def closes_of_a_period(self) -> int:
        """Number of queries of a measure at closes of windows, on one dataset in its period, or in `HORIZON_MS`.

        The number of series is rounded up to a power of two, so that a new name seldom ends a run.
        """
        windows = (self.period_ms or HORIZON_MS) // self.window or 1
        return windows << (len(self.series_names) - 1).bit_length()

    @property
    def queries_of_a_period(self) -> int:
        """Number of queries of a measure on one dataset in its period, or in `HORIZON_MS`."""
        return self.closes_of_a_period * len(self.asked_after_ms())

    def asked_after_ms(self, *, at_close: bool = False) -> range:
        """Return when each window is asked, in ms after its begin; ``at_close``: as questions are."""
        close = self.window + self.lateness
        first = close if at_close or self.ask == "close" else self.every
        return range(first, close + 1, self.every)

    @property
    def sensitivity(self) -> int:
        """The most by which one unit changes a count: the largest ``at_most`` of the measures."""
        return max(one.at_most for one in self.measures)

    def measure(self, name: str) -> MeasureSpec | None:
        """Return the measure of a name, or None."""
        return next((one for one in self.measures if one.name == name), None)

    @property
    def measure_names(self) -> tuple[str, ...]:
        """The names of the measures; ("",) for answers."""
        return tuple(one.name for one in self.measures) if self.answers is None else ("",)

    @property
    def _dataset(self) -> DatasetOfEvent | DatasetOfAnswer:
        return self.dataset if self.answers is None else self.answers.dataset

    @property
    def dataset_pattern(self) -> str:
        """The dataset's name, with its slots; empty if each answer names its dataset."""
        return self._dataset.pattern

    @property
    def dataset_field(self) -> str | None:
        """Path of the value for {name}, or of an answer's dataset; None without one."""
        return self._dataset.field

    @property
    def dataset_names(self) -> tuple[str, ...]:
        """The values of {name}; ("",) without one."""
        return self.dataset.names or ("",)

    @property
    def series_names(self) -> tuple[str, ...]:
        """The names of the series; ("",) without any."""
        return self.series.names if self.series else ("",)

    @property
    def datasets(self) -> str:
        """Pattern of the names of its datasets, with * and ?."""
        shapes = {DATE_SLOT: "????-??-??", WEEK_SLOT: "????-w??", NAME_SLOT: "*"}
        return reduce(
            lambda text, slot: text.replace(slot, shapes[slot]), shapes, written(self.dataset_pattern)
        )

    def covers(self, name: str) -> bool:
        """Return whether a name may be the name of one of its datasets, by the source's own pattern."""
        return fnmatchcase(name, self.datasets)

    def may_fill(self, pattern: str) -> bool:
        """Return whether a pattern with * and ? matches one of its datasets, in any period."""
        text = written(self.dataset_pattern)
        return any(_matches_some(pattern, text.replace(NAME_SLOT, name)) for name in self.dataset_names)

    @property
    def unit_text(self) -> str:
        """The privacy unit of its datasets in words, which are stored with each ledger and never change."""
        periods = periods_in(self.dataset_pattern)
        return f"all events of one `{self.unit}`{f' in {periods.words}' if periods else ''}"

    @property
    def period_ms(self) -> int | None:
        """Length of a dataset's period, None without one."""
        periods = periods_in(self.dataset_pattern)
        return None if periods is None else periods.length_ms

    def with_periods(self, declared: Iterable[DatasetDeclaration]) -> SourceSpec:
        """Return the source with the periods (length and begin) of the dataset declaration that it fills."""
        found = (periods_in(one.pattern) for one in declared if any(map(self.covers, one.samples(0))))
        if (periods := next(found, None)) is None:
            return self
        pattern = self.dataset_pattern.replace(DATE_SLOT, periods.text)
        changed: dict[str, Any] = {"dataset": self._dataset.model_copy(update={"pattern": pattern})}
        if self.answers is not None:
            changed = {"answers": self.answers.model_copy(update=changed)}
        return self.model_copy(update=changed)

    def dataset_at(self, begin_ms: int, name: str) -> str:
        """Return the dataset of a window that begins, or of a tick that ends, at a moment in UTC milliseconds."""
        return period_name(self.dataset_pattern, begin_ms).replace(NAME_SLOT, name)

    def window_list(self) -> WindowList:
        """Return the list of windows that are opened under this specification."""
        measures = tuple(ListedMeasure(one.name, one.at_most) for one in self.measures)
        return WindowList(self.dataset_names, measures, self.series_names)

    @property
    def decisive(self) -> dict[str, Any]:
        """The keys that decide counts and never change: all except settle, measures, and names of series and datasets.

        Measures of no larger sensitivity may be added, and no measure is removed, so the sensitivity never changes. For
        answers, sensitivity and direction are left out: their monitors refuse such changes.
        """
        if self.answers is not None:
            places: Any = dict.fromkeys(("name", "topic", "format", "every"), True)
            places["answers"] = {"value", "id", "series", "dataset"}
            return self.model_dump(mode="json", by_alias=True, include=places)
        names = {"listed", "file"}
        left_out: dict[str, Any] = {"settle": True, "measures": True, "series": names, "dataset": names}
        left_out["answers"] = True
        content = self.model_dump(mode="json", by_alias=True, exclude=left_out)
        return content | {"sensitivity": self.sensitivity}

    @property
    def digest(self) -> str:
        """Digest of the keys that never change: sixteen hex digits."""
        return digest(self.decisive)

    def digests(self) -> dict[str, str]:
        """Return the source's digest by its name, and each measure's digest by ``<source>/<measure>``."""
        measures = self.measures if self.answers is None else ()
        each = {
            f"{self.name}/{one.name}": digest(one.model_dump(mode="json", by_alias=True)) for one in measures
        }
        return {self.name: self.digest, **each}

    def counts_topic(self, application: str) -> str:
        """Return the topic of its counts."""
        return f"{application}.{self.name}.counts"

    # -- checks across fields

    @consistent
    def _problems(self) -> Found:
        if found := [*self._form_problems()]:
            yield from found
            return
        if self.every % 1000:
            yield "every", f"must be whole seconds, found {fields.duration_text(self.every)}"
        if self.answers is not None:
            return
        yield from self._time_problems()
        yield from self._path_problems()
        names = [one.name for one in self.measures]
        for number, name in enumerate(names):
            if name in names[:number]:
                yield ("measures", number, "name"), f"measure {quote(name)} is declared already"
        if (cells := self.window_list().cells) > MAX_CELLS:
            each = f"{len(self.dataset_names)} datasets, {len(names)} measures and {len(self.series_names)} series"
            message = f"{each} are {cells} counts of a window, more than {MAX_CELLS}"
            yield "series" if self.series else "measures", f"{message}: declare fewer names"

    def _form_problems(self) -> Found:
        """Yield keys about events that are set beside answers, or that are missing without answers."""
        for name, info in type(self).model_fields.items():
            is_set, key = name in self.model_fields_set, info.alias or name
            if self.answers is not None and is_set and name not in _OF_ANSWERS:
                yield (
                    key,
                    "is about counting events, but answers are passed on as they are: remove it",
                )
            elif self.answers is None and not is_set and name in _OF_EVENTS:
                yield key, required(info)

    def _time_problems(self) -> Found:
        every, window = fields.duration_text(self.every), fields.duration_text(self.window)
        if DAY_MS % self.window and self.window % DAY_MS:
            yield "window", f"must divide a day, such as 1h, or be whole days, found {window}"
        elif self.window % self.every:
            yield "window", f"must be a multiple of every ({every}), found {window}"

    def _path_problems(self) -> Found:
        for (one, first), (other, second) in combinations(self._paths(), 2):
            if KEY not in (first, second) and is_inside(steps(first), steps(second)):
                message = f"{quote(second)} and {quote(first)} of {one}"
                yield other, f"{message}: one of the paths is inside the other"
                return
