"""The neighbour test of a source of events: two raw topics that differ by one unit's records, each with its counter.

Both counters must write the same records of counts: keys, headers, times, ids, series, lengths. Each value of the topic
with the unit is larger by 0 to the most that its measure counts of a unit; the answer to a question moves by as much as
the question says. On brokers' timestamps the counters look,
read and restart at different times, on producers' they look at the same.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, NamedTuple

import pyarrow as pa
from msgspec import structs

from stream_svt.protocol.records import OneRecord, Records
from stream_svt.proving.streams import RandomSource
from stream_svt.queries.counts import MEASURE_HEADER, MONITOR_HEADER
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.document import quote
from stream_svt.settings.periods import DAY_MS
from stream_svt.settings.questions import Question
from stream_svt.settings.records import KEY, steps
from stream_svt.settings.sources import SourceSpec, WindowList
from stream_svt.sources.counter import Counter
from stream_svt.sources.counts import CountsRecord, closed_record
from stream_svt.sources.lists import Lists
from stream_svt.sources.log import decode, encode
from stream_svt.sources.questions import ClosedCounts
from stream_svt.sources.ticks import TickClock
from stream_svt.sources.units import KEY_BYTES

PARTITIONS: Final = 3
EVENTS, OF_UNIT, POLLS = 120, 40, 12
"""Events of other units, records of the unit that one topic lacks, and times at which a counter works."""
WINDOWS: Final = 3
MOST_TICKS: Final = 200
"""Ticks that are asked, where a source asks each of them."""
_NAMES, _UNITS = 12, 6
_BEGIN: Final = 2_900 * 7 * DAY_MS + 4 * DAY_MS
_OTHER: Final = "other"
_MALFORMED: Final = (b"", b"{", b"[]", b'{"a": 1}', b"null", b"\xff", b'"' + b"x" * 3000 + b'"')


@dataclass
class SourceSummary:
    """What the neighbour test of a source did with pairs of topics: ``cases``.

    Of ``answers`` that were compared the unit ``moved`` some; ``takeovers`` are restarts of counters. A
    ``counterexample`` says how the counts of the last pair told that the unit is there.
    """

    cases: int = 0
    events: int = 0
    answers: int = 0
    moved: int = 0
    takeovers: int = 0
    counterexample: str | None = None


class _Appended(NamedTuple):
    """A record of a raw topic, and when it was appended."""

    at_ms: int
    partition: int
    key: bytes | None
    value: bytes
    stamp_ms: int


def prove_source(spec: ApplicationSpec, source: SourceSpec, rngs: Iterable[RandomSource]) -> SourceSummary:
    """Run the neighbour test of a source of events, a pair for each generator, up to the first counterexample.

    Long lists of series and datasets are cut, and questions that read many windows are shortened. Avro events are
    tested as JSON: what decodes them is tested elsewhere.
    """
    summary, source = SourceSummary(), _small(source)
    listed = spec.window_list(source)
    listed = structs.replace(listed, questions=tuple(_shortened(one) for one in listed.questions))
    for rng in rngs:
        summary.cases += 1
        summary.counterexample = _compare(_Case(source, listed, rng), summary)
        if summary.counterexample is not None:
            break
    return summary


def _small(source: SourceSpec) -> SourceSpec:
    """Return a source of JSON events with few names."""
    changes: dict[str, Any] = {"format": "json"}
    for name in ("series", "dataset"):
        part = getattr(source, name)
        if part is not None and part.names:
            changes[name] = part.model_copy(update={"listed": part.names[:_NAMES], "file": None})
    return source.model_copy(update=changes)


def _shortened(question: Question) -> Question:
    """Return a question that reads few windows."""
    windows, at_least = question.holds
    lacking, usual, visits = max(windows - 3, 0), question.usual, question.visits
    among = min(visits.among, 3) if visits else 0
    return structs.replace(
        question,
        usual=usual and (min(usual[0], 2), min(usual[1], 2), *usual[2:]),
        mean=min(question.mean, 2),
        over=(1, min(question.over[1], 2)),
        excess=(question.excess[0], min(question.excess[1], 3)),
        holds=(windows - lacking, max(at_least - lacking, 1)),
        visits=visits and structs.replace(visits, at_most=min(visits.at_most, among - 1), among=among),
    )


class _Case:
    """A pair of topics, and the times at which their counters work."""

    def __init__(self, source: SourceSpec, listed: WindowList, rng: RandomSource) -> None:
        self.source, self.rng, self.clock, self.listed = source, rng, TickClock.of(source), listed
        self.stamped = rng.random() < 0.5
        self.begin_ms = self.clock.window_at(_BEGIN) + rng.randrange(0, source.window)
        windows = WINDOWS + max((one.look_back for one in listed.questions), default=0)
        length = self.clock.closes_after_ms + windows * source.window
        if self.clock.asks_ticks and not listed.questions:
            length = min(length, MOST_TICKS * source.every)
        self.end_ms = self.begin_ms + length + 2 * source.settle + source.every
        self._choices = _choices(source)
        others = [self._event(f"u{rng.randrange(0, _UNITS)}") for _ in range(EVENTS)]
        self.without = sorted(others, key=lambda one: one.at_ms)
        added = [self._event("x") for _ in range(rng.randrange(1, OF_UNIT))]
        self.with_unit = sorted([*others, *added], key=lambda one: one.at_ms)
        same = self._polls()
        self.polls = [same, self._polls() if self.stamped else same]

    def _polls(self) -> list[int]:
        between = (self.rng.randrange(self.begin_ms, self.end_ms) for _ in range(POLLS))
        return [self.begin_ms, *sorted(between), self.end_ms]

    def _event(self, unit: str) -> _Appended:
        rng, source = self.rng, self.source
        at_ms = rng.randrange(self.begin_ms - source.window, self.end_ms)
        near = rng.choice((0, 0, 1000, source.every, source.window, source.ahead, source.lateness))
        time_ms = at_ms + rng.randrange(-near, near + 1)
        stamp_ms = at_ms if self.stamped else rng.choice((at_ms, time_ms, 0, 2**62))
        content = {path: rng.choice(values) for path, values in self._choices.items()}
        if source.time is not None:
            content[source.time.field] = _written(time_ms, source.time.scale)
        content[source.unit] = unit
        key = str(content.pop(KEY, rng.choice(("a", "b")))).encode()
        value = json.dumps(_nested(content)).encode()
        if rng.random() < 0.1:
            value = rng.choice(_MALFORMED)
        return _Appended(at_ms, rng.randrange(0, PARTITIONS), key, value, stamp_ms)


def _choices(source: SourceSpec) -> dict[str, list[Any]]:
    """Return values for the fields of events, by path: those that count, and others."""
    found: dict[str, list[Any]] = {}
    for part in (source.series, source.dataset):
        if part is not None and part.field is not None:
            found.setdefault(part.field, []).extend([*part.names, _OTHER, None])
    for one in (*source.conditions, *(one for measure in source.measures for one in measure.conditions)):
        limits = [limit for limit in (one.at_least, one.below) if limit is not None]
        near = [_number(limit + step) for limit in limits for step in (-1, 0, 1)]
        found.setdefault(one.path, []).extend([*sorted(one.texts or ()), *near, _OTHER])
    return found


def _number(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)


def _written(ms: int, scale: str) -> int | float | str:
    """Return a time as it stands in an event."""
    if scale == "iso":
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat()
    return {"s": ms / 1000, "ms": ms, "us": 1000 * ms}[scale]


def _nested(content: dict[str, Any]) -> dict[str, Any]:
    """Return an object from values by path."""
    whole: dict[str, Any] = {}
    for path, value in content.items():
        *outer, last = steps(path)
        place = whole
        for name in outer:
            place = place.setdefault(name, {})
        place[last] = value
    return whole


class _Play:
    """The counter of one topic, on a modelled log."""

    def __init__(self, case: _Case, topic: Sequence[_Appended], polls: Sequence[int]) -> None:
        self._case, self._rng, self._topic = case, case.rng, topic
        self._log: list[tuple[int, bytes]] = []
        self.counts: list[CountsRecord] = []
        self.takeovers = 0
        counter = self._owner()
        for now_ms in polls:
            if self._rng.random() < 0.3:
                counter = self._owner()
            self._work(counter, now_ms)

    def _owner(self) -> Counter:
        counter = Counter(self._case.source, self._key)
        for offset, content in self._log:
            counter.replay(offset, decode(content))
        self.takeovers += bool(self._log)
        return counter

    def _key(self) -> bytes:
        return bytes(self._rng.randrange(0, 256) for _ in range(KEY_BYTES))

    def _held(self, partition: int, now_ms: int) -> list[_Appended]:
        until = bisect_right(self._topic, now_ms, key=lambda one: one.at_ms)
        return [one for one in self._topic[:until] if one.partition == partition]

    def _work(self, counter: Counter, now_ms: int) -> None:
        """Do all that is due at a moment."""
        stamped = self._case.stamped
        held = {number: self._held(number, now_ms) for number in range(PARTITIONS)}
        spans = {number: (0, len(records)) for number, records in held.items()}
        if not counter.has_begun:
            since = counter.reads_back_to(now_ms) if stamped else now_ms
            begins = {n: sum(one.at_ms < since for one in records) for n, records in held.items()}
            begun = {number: (begins[number], end) for number, (_, end) in spans.items()}
            counter.begin(begun, now_ms, by_broker=stamped, topic_id="topic")
            self._write(counter)
        counter.open_windows(now_ms, Lists([(0, self._case.listed)], now_ms))
        self._write(counter)
        if (moment := counter.look_due(now_ms)) is not None:
            counter.look(moment, spans, "topic", by_broker=stamped)
            self._write(counter)
        while ranges := counter.ranges():
            partition = self._rng.choice(sorted(ranges))
            at, end = ranges[partition]
            end = min(end, at + self._rng.choice((1, 7, 1000)))
            counter.fold(partition, self._records(held[partition], at, end), end)
            self._write(counter)

    def _records(self, held: Sequence[_Appended], at: int, end: int) -> Records:
        each = (OneRecord(at + n, one.stamp_ms, one.key, one.value) for n, one in enumerate(held[at:end]))
        return replace(Records.of(each), by_broker=self._case.stamped)

    def _write(self, counter: Counter) -> None:
        while True:
            if (closed := counter.to_recall) is not None:
                self._recall(counter, closed)
            if (step := counter.step()) is None:
                return
            if step.entries:
                offsets = [len(self._log) + number for number in range(len(step.entries))]
                self._log += zip(offsets, map(encode, step.entries), strict=True)
                self.counts += step.counts
                counter.stepped(offsets)

    def _recall(self, counter: Counter, closed: ClosedCounts) -> None:
        for one in self.counts:
            headers = dict(one.headers)
            if (
                found := closed_record(self._case.source, one.dataset.encode(), one.content, headers)
            ) is not None:
                closed.add(*found)
        counter.recall(closed)


def _compare(case: _Case, summary: SourceSummary) -> str | None:
    """Play both topics; return how their counts differ by more than one unit may, None if they do not."""
    topics = (case.without, case.with_unit)
    plays = [_Play(case, *each) for each in zip(topics, case.polls, strict=True)]
    summary.events += sum(map(len, topics))
    summary.takeovers += sum(play.takeovers for play in plays)
    first, second = (play.counts for play in plays)
    moves = {one.name.encode(): (Fraction(0), Fraction(one.at_most)) for one in case.source.measures}
    for asked in case.listed.questions:
        down, up = (Fraction(move, asked.parts) for move in asked.moves)
        moves[asked.rows.encode()] = -down, up
    for number, (one, other) in enumerate(zip(first, second, strict=False)):
        (before, low), (after, high) = _read(one), _read(other)
        if before != after:
            return f"record {number} of counts is {before} without the unit, and {after} with it"
        headers = dict(one.headers)
        least, most = moves[headers.get(MEASURE_HEADER) or headers[MONITOR_HEADER]]
        for row, (value, moved) in enumerate(zip(low, high, strict=True)):
            summary.answers += 1
            summary.moved += value != moved
            if not least <= Fraction(moved) - Fraction(value) <= most:
                allowed = f"one unit moves it by {quote(least)} to {quote(most)}"
                return f"row {row} of {before[:3]} moves from {value} to {moved}: {allowed}"
    if len(first) != len(second):
        return f"{len(first)} records of counts without the unit, and {len(second)} with it"
    return None


def _read(record: CountsRecord) -> tuple[tuple[Any, ...], list[int | Decimal]]:
    """Return what of a record of counts is public, and its values."""
    with pa.ipc.open_stream(record.content) as reader:
        table = reader.read_all().to_pydict()
    values = table.pop("value")
    public = (record.dataset, record.headers, record.timestamp_ms, len(record.content), table)
    return public, [value for value in values if value is not None]
