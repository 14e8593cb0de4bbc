"""Plays the counter of a source on a modelled log: with stops, takeovers from the trimmed log, and outages.

What happens to a process: it is killed in its work; the request of a transaction is lost, or the reply; another process
takes over while it goes on, until a write is refused; its looks are late; it reads the configuration late.
"""

from __future__ import annotations

import json
import random
from collections import Counter as Multiset
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa

from stream_svt.protocol.records import Records
from stream_svt.settings.sources import SourceSpec
from stream_svt.sources.counter import Counter, CounterStep
from stream_svt.sources.counts import CountsRecord
from stream_svt.sources.log import Accepted, Began, Look, Park, decode, encode
from stream_svt.sources.state import CounterState
from tests.support.raw_events import LATER, SCHEMAS, UNUSABLE
from tests.support.raw_streams import Expected, History, RawTopic, reference

STOPS = 0.04
"""How often a transaction ends its process, and a poll."""


class Stopped(Exception):
    """The process was stopped, or the outcome of its transaction is not known."""


class SlowRegistry:
    """A registry, as a process sees it: it answers late, is away for a while, and gets a schema in the meantime."""

    def __init__(self, topic: RawTopic, rng: random.Random, happened: Multiset[str]) -> None:
        self._topic, self._rng, self._happened = topic, rng, happened
        self._known: dict[int, str] = {}
        self._asked: dict[int, str] = {}

    def get(self, number: int) -> str | None:
        return self._known.get(number)

    def request(self, number: int) -> str:
        self._happened["requests of schemas"] += 1
        self._asked.setdefault(number, self._answer(number))
        if not self._topic.history.is_away(self._topic.now_ms) and self._rng.random() < 0.5:
            self._known[number] = self._asked.pop(number)
        return "asked"

    def forget_absences(self) -> None:
        self._known = {number: text for number, text in self._known.items() if text}
        self._asked.clear()

    def _answer(self, number: int) -> str:
        if number == UNUSABLE:
            return "{"
        is_early = number == LATER and self._topic.now_ms < self._topic.history.registered_ms
        return "" if number not in SCHEMAS or is_early else json.dumps(SCHEMAS[number])


@dataclass
class Log:
    """The partition of the event log, with offsets that others' entries and markers use, and the topic of counts."""

    entries: list[tuple[int, bytes]] = field(default_factory=list)
    end: int = 0
    counts: list[CountsRecord] = field(default_factory=list)
    owner: Counter | None = None

    def refuses(self, counter: Counter) -> bool:
        """Return whether another counter has taken over."""
        return counter is not self.owner

    def write(self, step: CounterStep, rng: random.Random) -> list[int]:
        """Write a transaction; return the offsets of its entries."""
        offsets = []
        for entry in step.entries:
            self.end += rng.randrange(1, 4)
            self.entries.append((self.end, encode(entry)))
            offsets.append(self.end)
        self.counts += step.counts
        return offsets

    def trim(self, offset: int) -> None:
        self.entries = [one for one in self.entries if one[0] >= offset]


@dataclass(frozen=True)
class Poll:
    """A moment at which the process looks after its work, and how much of it it may do; None: all."""

    at_ms: int
    most: int | None


def polls_of(history: History, rng: random.Random, *, outages: int) -> list[Poll]:
    """Return random polls from begin to end; those around a loss, and the last, do all work."""
    begin, end, loss = history.begin_ms, history.end_ms, history.loss
    whole, gaps = {begin, end}, []
    if loss:
        whole |= {loss.quiet_ms, loss.at_ms + 5_000, loss.at_ms + 15_000, loss.accepted_ms}
        gaps = [(loss.quiet_ms, loss.at_ms)]
    for _ in range(rng.randrange(outages + 1)):
        start = rng.randrange(begin, end)
        gaps.append((start, start + rng.choice((20_000, 60_000, 300_000))))
    found, now = [Poll(at, None) for at in whole], begin
    while (now := now + rng.choice((1_000, 3_000, 3_000, 9_000))) < end:
        if now not in whole and not any(start < now < stop for start, stop in gaps):
            found.append(Poll(now, rng.choice((None, 3, 10))))
    return sorted(found, key=lambda one: one.at_ms)


class Play:
    """The counter on one of two streams.

    Args:
        history: What is public.
        has_unit: Whether the stream has the unit's records.
        polls: When the process runs.
        seed: Of what else may differ: reading, stops, delays of the configuration.

    Attributes:
        counts: The records of counts.
        looks: The looks that became durable.
        happened: How often each thing happened to its processes.
        takeover: How the state of a takeover differed from that of going on; "" if it never did.
    """

    def __init__(self, history: History, *, has_unit: bool, polls: Sequence[Poll], seed: str) -> None:
        self.history = history
        self.topic = RawTopic(history, has_unit=has_unit)
        self.log, self.rng = Log(), random.Random(seed)
        self.counter: Counter | None = None
        self.looks: list[Look] = []
        self.floors: dict[int, int] = {}
        self.happened: Multiset[str] = Multiset()
        self.takeover = ""
        for poll in polls:
            self.topic.advance(poll.at_ms)
            self._poll(poll)

    @property
    def counts(self) -> list[CountsRecord]:
        return self.log.counts

    def _poll(self, poll: Poll) -> None:
        replaced = None
        if self.rng.random() < STOPS / 4:
            replaced, self.counter = self.counter, None
        while not self._is_done(self._owner(poll.at_ms), poll):
            self.counter = None
        if replaced is not None:
            self._is_done(replaced, poll)

    def _is_done(self, counter: Counter, poll: Poll) -> bool:
        """Let a counter do its work; return whether it still runs."""
        try:
            self._clock(counter, poll)
            self._work(counter, poll)
        except Stopped:
            return False
        return True

    def _owner(self, now_ms: int) -> Counter:
        """Return the counter, after a takeover if there is none."""
        source = self.history.source_at(now_ms)
        if self.counter is None:
            self.happened["takeovers"] += bool(self.log.entries)
            self.counter = self.log.owner = self._replayed(source)
        if source is not self.counter.source:
            self.counter.adopt(source)
        return self.counter

    def _replayed(self, source: SourceSpec) -> Counter:
        """Return a counter that takes over what is durable."""
        registry = SlowRegistry(self.topic, self.rng, self.happened)
        counter = Counter(source, lambda: self.rng.randbytes(16), registry)
        for offset, entry in self.log.entries:
            counter.replay(offset, decode(entry))
        return counter

    def _clock(self, counter: Counter, poll: Poll) -> None:
        """Tell the counter the time, as the service does, until what it decides by it is durable."""
        topic, history, loss, now_ms = self.topic, self.history, self.history.loss, poll.at_ms
        if not counter.has_begun:
            by_broker = history.is_by_broker(now_ms)
            spans = topic.spans_from(counter.reads_back_to(now_ms)) if by_broker else topic.spans()
            counter.begin(spans, now_ms, by_broker=by_broker, topic_id=topic.topic_id)
        if loss and loss.kind == "compacted" and loss.at_ms <= now_ms < loss.accepted_ms:
            counter.park(Park.COMPACTED)
        if loss and now_ms == loss.accepted_ms and not self.happened["accepted losses"]:
            self._write(counter)
            counter.accept_loss(now_ms, topic.spans(), topic.topic_id)
        self._write(counter)
        known_to = now_ms if poll.most is None else now_ms - self.rng.choice((0, 0, 20_000))
        counter.open_windows(now_ms, history.lists(known_to))
        if (moment := counter.look_due(now_ms)) is not None:
            self.happened["late looks"] += moment - counter.state.looked_ms > counter.source.every
            counter.look(moment, topic.spans(), topic.topic_id, by_broker=history.is_by_broker(now_ms))
        self._write(counter)

    def _write(self, counter: Counter) -> None:
        """Write what the counter decided."""
        while counter._queued:
            self._step(counter)

    def _step(self, counter: Counter) -> bool:
        """Take a step; its transaction may be lost, or its answer. Return whether there was something to do."""
        step, chance = counter.step(), self.rng.random()
        if step is None:
            return False
        if not step.entries:
            return True
        if self.log.refuses(counter):
            self._stop("fences")
        if chance < STOPS / 2:
            self._stop("lost requests")
        offsets = self.log.write(step, self.rng)
        for entry in step.entries:
            if isinstance(entry, Look):
                self.looks.append(entry)
            self.happened["accepted losses"] += isinstance(entry, Accepted)
            if isinstance(entry, Began):
                self.floors = entry.standing.floors
        if chance < STOPS:
            self._stop("lost replies")
        counter.stepped(offsets)
        if chance > 0.98:
            state, again = fingerprint(counter.state), fingerprint(self._replayed(counter.source).state)
            self.takeover = self.takeover or ("" if state == again else f"{state} is taken over as {again}")
        if chance < 0.5 and counter.needed_offset is not None:
            self.log.trim(counter.needed_offset)
        return True

    def _stop(self, why: str) -> None:
        self.happened[why] += 1
        raise Stopped

    def _work(self, counter: Counter, poll: Poll) -> None:
        """Read and write, in any order, as much as the poll may; the last steps may stay undone."""
        rng, left = self.rng, 1 << 30 if poll.most is None else poll.most
        while left > 0:
            left -= 1
            ranges = counter.ranges()
            is_read = bool(ranges) and rng.random() < 0.7 and self._read(counter, ranges, rng)
            if not is_read and not self._step(counter) and not self._read_all(counter):
                return
        if poll.most is not None and rng.random() < STOPS:
            self._stop("kills")

    def _read(self, counter: Counter, ranges: dict[int, tuple[int, int]], rng: random.Random) -> bool:
        """Read some records of a partition; return whether that led further."""
        partition = rng.choice(sorted(ranges))
        at, end = ranges[partition]
        # A batch is returned whole: also what lies beyond the look.
        end, most = rng.choice(((end, 1), (end, 5), (end, 1000), (1 << 60, 1000)))
        self._fold(counter, partition, *self.topic.fetch(partition, at, end, most))
        return counter.ranges() != ranges

    def _read_all(self, counter: Counter) -> bool:
        """Read every partition as far as possible; return whether that led further, or schemas are to come."""
        before, asked = counter.ranges(), self.happened["requests of schemas"]
        for partition, (at, end) in before.items():
            self._fold(counter, partition, *self.topic.fetch(partition, at, end, 1000))
        is_answered = self.happened["requests of schemas"] > asked and not self.history.is_away(
            self.topic.now_ms
        )
        return counter.ranges() != before or is_answered

    def _fold(self, counter: Counter, partition: int, records: Records, until: int) -> None:
        """Fold some records up to the first whose schema is not known yet."""
        count, _ = counter.lack(records)
        if count < len(records):
            records, until = records[:count], int(records.offset[count])
        counter.fold(partition, records, until)


def fingerprint(state: CounterState) -> dict[str, Any]:
    """Return what a state must have in common with that of a takeover."""
    names = "has_begun asked topic_id first next_window looked_ms ends offsets floors queue parked serves"
    windows = {}
    for begin, window in state.windows.items():
        window.counted(state.next_tick)
        keys = {
            tick: np.sort(np.concatenate([*tally.parts()])).tolist() for tick, tally in window.tallies.items()
        }
        windows[begin] = window.key, window.cells.list, window.is_whole, keys
    return {name: getattr(state, name) for name in names.split()} | {"windows": windows}


@dataclass(frozen=True)
class Query:
    """A record of counts: all of it that is public, and its values."""

    public: tuple[Any, ...]
    measure: str
    series: tuple[str, ...]
    values: tuple[int, ...]


def query_of(record: CountsRecord) -> Query:
    """Return a record of counts, decoded."""
    return _query(record.dataset, record.headers, record.timestamp_ms, record.content)


@lru_cache(maxsize=2_000)
def _query(dataset: str, headers: tuple[tuple[str, bytes], ...], timestamp_ms: int, content: bytes) -> Query:
    with pa.ipc.open_stream(content) as reader:
        table = reader.read_all().to_pydict()
    values = table.pop("value")
    public = (dataset, headers, timestamp_ms, len(content), repr(table))
    series = table.get("series", [""] * len(values))
    rows = [row for row, closes in enumerate(table.get("closed", [False] * len(values))) if not closes]
    measure = dict(headers)["measure"].decode()
    return Query(public, measure, tuple(series[row] for row in rows), tuple(values[row] for row in rows))


def played(history: History) -> tuple[Play, Play]:
    """Play both streams: on brokers' timestamps with different processes, else with the same moments of looks."""
    seed, outages = history.seed, history.outages
    polls = [polls_of(history, random.Random(f"{seed} {name}"), outages=outages) for name in "ab"]
    if history.stamps != "broker":
        polls[1] = polls[0]
    first = Play(history, has_unit=False, polls=polls[0], seed=f"{seed} first")
    return first, Play(history, has_unit=True, polls=polls[1], seed=f"{seed} second")


def problem_of(history: History, plays: tuple[Play, Play] | None = None) -> str:
    """Play both streams; return how they differ by more than one unit may, or from what the records say; "" if not."""
    first, second = plays = plays or played(history)
    at_most = {one.name: one.at_most for one in history.sources[-1][1].measures}
    if found := difference(first.counts, second.counts, at_most):
        return f"neighbours: {found}"
    if found := first.takeover or second.takeover:
        return f"takeover: {found}"
    if history.loss is not None:
        return "" if all(one.happened["accepted losses"] for one in plays) else "the loss was not seen"
    # Whether a record counts that came before its schema depends on when the registry was asked.
    for play in plays[: 1 if history.has_early_schemas else 2]:
        expected = [*reference(history, play.topic, play.looks, play.floors)]
        if found := inexact(play.counts, expected):
            return f"exact: {found}"
    return ""


def inexact(counts: Sequence[CountsRecord], expected: Sequence[Expected]) -> str:
    """Return how records of counts differ from what is expected; "" if they do not."""
    queries = [(one.dataset, one.timestamp_ms, query_of(one)) for one in counts]
    found = [
        Expected(dataset, one.measure, tick, dict(zip(one.series, one.values, strict=True)))
        for dataset, tick, one in queries
    ]
    wrong = ((one, other) for one, other in zip_longest(found, expected) if one != other)
    return next((f"{one} is counted, not {other}" for one, other in wrong), "")


def difference(first: Sequence[CountsRecord], second: Sequence[CountsRecord], at_most: dict[str, int]) -> str:
    """Return how two streams of counts differ by more than one unit may; "" if they do not.

    ``at_most``: the most that a unit adds to a count, by measure.
    """
    if len(first) != len(second):
        return f"{len(first)} records, and {len(second)} with the unit"
    for one, other in zip(map(query_of, first), map(query_of, second), strict=True):
        if one.public != other.public:
            return f"{one.public} differs from {other.public}"
        for series, low, high in zip(one.series, one.values, other.values, strict=True):
            if not low <= high <= low + at_most[one.measure]:
                return (
                    f"{one.public}: {series!r} moves from {low} to {high}, by {at_most[one.measure]} at most"
                )
    return ""
