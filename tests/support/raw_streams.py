"""Random raw streams with and without the records of one unit, the topic that holds them, and what they must count.

All that happens to both streams is in a `History`, which is public: the configurations, the clocks of leaders, the
losses. A `RawTopic` plays one of the two streams: its offsets, open transactions and high watermarks are its own.
"""

from __future__ import annotations

import json
import random
from collections import Counter as Multiset
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stream_svt.protocol.records import Records
from stream_svt.settings.sources import SourceSpec, WindowList
from stream_svt.sources.lists import Lists
from stream_svt.sources.log import Look
from stream_svt.sources.ticks import TickClock

UNIT = "7"
"""The unit whose records one stream lacks."""
DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS
NOON = 20_000 * DAY_MS + DAY_MS // 2
FAR_MS = 600_000
LONG_MS = 25 * 60_000
LATER_SETTLE_MS = 7_000
REPLICATION_MS = 5_000
"""How long replication takes as long as it takes."""


@dataclass(frozen=True)
class Event:
    """What the event of a record says; its time only if the source has a field of it."""

    unit: str
    time_ms: int
    series: str
    dataset: str
    status: int


@dataclass(frozen=True)
class Append:
    """A record that a producer appends.

    Attributes:
        at_ms: When, in real time.
        partition: Where.
        content: Key and value.
        event: Its event, None for one that counts nothing.
        time_ms: The producer's timestamp.
        transaction: The transaction's number, None without one.
        is_damaged: Whether its batch cannot be read.
    """

    at_ms: int
    partition: int
    content: tuple[bytes | None, bytes | None]
    event: Event | None
    time_ms: int
    transaction: int | None = None
    is_damaged: bool = False


@dataclass(frozen=True)
class Loss:
    """What happens to the topic at a moment, and when an operator accepts it: kinds are those of `Park`.

    ``quiet_ms`` is when both counters stop before: what they have read until then is the same.
    """

    kind: str
    quiet_ms: int
    at_ms: int
    accepted_ms: int
    partition: int = 0


@dataclass(frozen=True)
class History:
    """What is public of a pair of streams.

    Attributes:
        seed: Its seed.
        sources: The configurations of the source, with the moments at which they were stored.
        begin_ms, end_ms: When the counter begins, and the last moment.
        stamps: Whose timestamps records have: the broker's, the producer's, or from ``switched_ms`` on the broker's
            ("mixed") or the producer's ("mixed back").
        added_ms: When each partition is added.
        missing: From when to when a partition is not found, and its number.
        skews: For each partition how far its leader's clock is ahead, from a moment on.
        ends: When each transaction ends, and whether it commits.
        others, unit: Records of the other units, and of the unit.
        loss: What is lost, if anything is.
        outages, stops: Outages of the process, at most, and how often a transaction ends it.
    """

    seed: int
    sources: tuple[tuple[int, SourceSpec], ...]
    begin_ms: int
    end_ms: int
    stamps: str
    switched_ms: int
    added_ms: tuple[int, ...]
    missing: tuple[int, int, int]
    skews: Mapping[int, Sequence[tuple[int, int]]]
    ends: Mapping[int, tuple[int, bool]]
    others: tuple[Append, ...]
    unit: tuple[Append, ...]
    loss: Loss | None
    outages: int
    stops: float

    @property
    def source(self) -> SourceSpec:
        """The first configuration."""
        return self.sources[0][1]

    @property
    def clock(self) -> TickClock:
        return TickClock.of(self.source)

    def source_at(self, now_ms: int) -> SourceSpec:
        """Return the configuration applied last."""
        return [source for stored, source in self.sources if stored <= now_ms][-1]

    def lists(self, known_to_ms: int) -> Lists:
        known = [one for one in self.sources if one[0] <= known_to_ms]
        return Lists([(stored, source.window_list()) for stored, source in known], known_to_ms)

    def skew(self, partition: int, now_ms: int) -> int:
        return [skew for since, skew in self.skews[partition] if since <= now_ms][-1]

    def visible_ms(self, partition: int, at_ms: int) -> int:
        """Return when what is appended at a moment lies below the high watermark, whatever else is appended."""
        part = at_ms // REPLICATION_MS
        parts = ((REPLICATION_MS * part - 1, part - 1), (at_ms, part))
        most = min(source.settle for _, source in self.sources) // 2
        return max(at + random.Random(f"{self.seed} {partition} {one}").randrange(most) for at, one in parts)

    def is_by_broker(self, at_ms: int) -> bool:
        if self.stamps.startswith("mixed"):
            return (at_ms >= self.switched_ms) is (self.stamps == "mixed")
        return self.stamps == "broker"


@dataclass
class Held:
    """A record of a partition, or a marker (without ``append``)."""

    append: Append | None
    stamp_ms: int
    by_broker: bool
    visible_ms: int


class Raw:
    """A record as aiokafka returns it: with whose its timestamp is."""

    def __init__(self, offset: int, held: Held) -> None:
        assert held.append is not None
        self.offset, self.timestamp, self.headers = offset, held.stamp_ms, ()
        self.key, self.value = held.append.content
        self.timestamp_type = int(held.by_broker)


class RawTopic:
    """A raw topic with the records of the other units, and those of the unit or not."""

    def __init__(self, history: History, *, has_unit: bool) -> None:
        self.history = history
        self.topic_id = "first"
        self.partitions: list[list[Held]] = []
        self.begins: list[int] = []
        self.now_ms = 0
        self._open: list[dict[int, int]] = []
        self._aborted: set[int] = set()
        records = sorted((*history.others, *(history.unit if has_unit else ())), key=lambda one: one.at_ms)
        actions = [(one.at_ms, 1, one) for one in records]
        used = {one.transaction for one in records}
        actions += [(at, 2, number) for number, (at, _) in history.ends.items() if number in used]
        actions += [(at, 0, None) for at in history.added_ms]
        if history.loss:
            actions.append((history.loss.at_ms, 3, history.loss))
        self._actions = sorted(actions, key=lambda one: one[:2])[::-1]

    def advance(self, now_ms: int) -> None:
        """Let everything happen up to a moment."""
        while self._actions and self._actions[-1][0] <= now_ms:
            at_ms, _, action = self._actions.pop()
            if action is None:
                self.partitions.append([])
                self.begins.append(0)
                self._open.append({})
            elif isinstance(action, Append):
                self._append(action)
            elif isinstance(action, Loss):
                self._lose(action)
            else:
                self._end(at_ms, action)
        self.now_ms = now_ms

    def _append(self, one: Append) -> None:
        by_broker = self.history.is_by_broker(one.at_ms)
        stamp = one.at_ms + self.history.skew(one.partition, one.at_ms) if by_broker else one.time_ms
        if one.transaction is not None:
            self._open[one.partition].setdefault(one.transaction, len(self.partitions[one.partition]))
        visible = self.history.visible_ms(one.partition, one.at_ms)
        self.partitions[one.partition].append(Held(one, stamp, by_broker, visible))

    def _end(self, at_ms: int, transaction: int) -> None:
        if not self.history.ends[transaction][1]:
            self._aborted.add(transaction)
        for partition, opened in enumerate(self._open):
            if opened.pop(transaction, None) is not None:
                visible = self.history.visible_ms(partition, at_ms)
                self.partitions[partition].append(Held(None, at_ms, by_broker=False, visible_ms=visible))

    def _lose(self, loss: Loss) -> None:
        held = self.partitions[loss.partition]
        old = [
            index for index, one in enumerate(held) if one.append is None or one.append.at_ms <= loss.quiet_ms
        ]
        kept = (old[-1] if old else -1) + 1
        if loss.kind == "records-lost":
            # Of what came since both counters stopped, the first half is gone; its end is a record of another unit.
            later = [
                index for index in range(kept, len(held)) if self._is_others_after(held[index], loss.quiet_ms)
            ]
            self.begins[loss.partition] = later[len(later) // 2] + 1
        elif loss.kind == "end-fell":
            later = (
                index for index, one in enumerate(held) if self._is_others_after(one, loss.quiet_ms - 60_000)
            )
            del held[next(later) :]
        elif loss.kind == "topic-created-again":
            self.topic_id = "second"
            self.partitions = [[] for _ in self.partitions]
            self.begins = [0 for _ in self.partitions]
            self._open = [{} for _ in self.partitions]

    def _is_others_after(self, held: Held, ms: int) -> bool:
        one = held.append
        return one is not None and one.at_ms > ms and one in self.history.others

    def end(self, partition: int) -> int:
        """Return the high watermark."""
        held = self.partitions[partition]
        late = (index for index, one in enumerate(held) if one.visible_ms > self.now_ms)
        return max(next(late, len(held)), self.begins[partition])

    def stable_end(self, partition: int) -> int:
        """Return the last stable offset."""
        return min([self.end(partition), *self._open[partition].values()])

    def spans(self) -> dict[int, tuple[int, int]]:
        """Return begin and high watermark of each partition that is found."""
        start, end, lost = self.history.missing
        is_missing = start <= self.now_ms < end
        found = (one for one in range(len(self.partitions)) if not (is_missing and one == lost))
        return {one: (self.begins[one], self.end(one)) for one in found}

    def spans_from(self, ms: int) -> dict[int, tuple[int, int]]:
        """Return `spans`, each from the first record with a timestamp that is not before a moment."""
        found = {}
        for one, (begin, end) in self.spans().items():
            held = self.partitions[one]
            later = (
                index
                for index in range(begin, end)
                if held[index].append is not None and held[index].stamp_ms >= ms
            )
            found[one] = (next(later, end), end)
        return found

    def fetch(self, partition: int, at: int, end: int, most: int) -> tuple[Records, int]:
        """Return some committed records of a partition from an offset on, and up to where these are all."""
        held, until = self.partitions[partition], min(end, self.stable_end(partition), at + most)
        found = [
            Raw(offset, one)
            for offset, one in enumerate(held[at:until], at)
            if one.append is not None
            and not one.append.is_damaged
            and one.append.transaction not in self._aborted
        ]
        return Records.of(found), max(at, until)


# What must be counted


@dataclass(frozen=True)
class Expected:
    """A query that must be asked, with its counts by series."""

    dataset: str
    measure: str
    tick: int
    counts: dict[str, int]


def reference(
    history: History, topic: RawTopic, looks: Sequence[Look], floors: Mapping[int, int]
) -> list[Expected]:
    """Return what must be asked, from the records alone.

    The topic lost nothing, and its transactions have ended.
    """
    clock, source = history.clock, history.sources[-1][1]
    first = clock.window_at(history.begin_ms)
    if not history.is_by_broker(history.begin_ms):
        first += clock.window_ms
    lists = history.lists(history.end_ms)
    parts: dict[tuple[int, int], Multiset[tuple[str, str, str, str]]] = defaultdict(Multiset)
    for partition, held in enumerate(topic.partitions):
        for offset, one in enumerate(held):
            event = one.append and one.append.event
            if event is None or one.append.is_damaged or one.append.transaction in topic._aborted:
                continue
            is_old = offset < floors.get(partition, 0)
            if is_old and not history.is_by_broker(history.begin_ms):
                continue
            if one.by_broker:
                appended, tick = one.stamp_ms, clock.tick_after(one.stamp_ms)
                if one.stamp_ms > one.append.at_ms + FAR_MS:
                    continue
            else:
                seen = [one for one in looks if one.ends.get(partition, 0) > offset]
                if is_old or not seen:
                    continue
                # The first tick that this look serves: the one before served those until its own moment. Where
                # brokers' timestamps say how far a backlog is read, the last tick.
                before = [one.moment_ms for one in looks if one.moment_ms < seen[0].moment_ms]
                appended, tick = (
                    seen[0].moment_ms - 1,
                    clock.tick_after(max(before, default=history.begin_ms)),
                )
                if seen[0].by_broker:
                    tick = max(tick, clock.tick_after(appended))
            window = clock.window_at(event.time_ms if source.time else one.stamp_ms)
            if window < first or tick > clock.close_of(window) or window > appended + clock.ahead_ms:
                continue
            tick = max(tick, window + clock.every_ms) if clock.asks_ticks else clock.close_of(window)
            for measure in source.measures:
                if all(str(event.status) in one.texts for one in measure.conditions):
                    cell = event.dataset, measure.name, event.series, event.unit
                    parts[window, tick][cell] += 1
    return list(_asked(clock, source, lists, first, looks[-1].moment_ms, parts))


def _asked(
    clock: TickClock,
    source: SourceSpec,
    lists: Lists,
    first: int,
    last_ms: int,
    parts: Mapping[tuple[int, int], Multiset[tuple[str, str, str, str]]],
) -> Iterator[Expected]:
    tick = first + clock.every_ms
    while tick <= last_ms:
        for window in range(clock.window_at(first), tick, clock.window_ms):
            if not clock.is_asked(window, tick):
                continue
            units: Multiset[tuple[str, str, str, str]] = Multiset()
            for (of_window, since), found in parts.items():
                if of_window == window and since <= tick:
                    units += found
            listed = lists.at(clock.opens_ms(window))
            assert listed is not None
            yield from _queries(source, listed, window, tick, units)
        tick += clock.every_ms


def _queries(
    source: SourceSpec,
    listed: WindowList,
    window: int,
    tick: int,
    units: Multiset[tuple[str, str, str, str]],
) -> Iterator[Expected]:
    for name in listed.datasets:
        for measure in listed.measures:
            counts = dict.fromkeys(listed.series, 0)
            for (dataset, kind, series, _), events in units.items():
                if (dataset, kind) == (name, measure.name) and series in counts:
                    counts[series] += min(events, measure.at_most)
            yield Expected(source.dataset_at(window, name), measure.name, tick, counts)


# Random histories


LOSSES = (None, None, None, None, "records-lost", "end-fell", "topic-created-again", "compacted")


def history_of(seed: int) -> History:
    """Return a random history, half of them with a loss."""
    return Making(seed, loss=LOSSES[seed % len(LOSSES)]).history()


@dataclass
class Making:
    """Makes a random history.

    Attributes:
        seed: Its seed.
        stamps, ask, loss: What is not left to chance; there is a loss only if it is named.
        others: Fewest and most records of other units.
        unit: How many moments with records of the unit.
        waits: Transactions of the unit, at most.
        clock_changes: How often each leader's clock changes.
        far_ahead: How often it is a year ahead between two changes.
        outages, stops: Outages of the process, at most, and how often a transaction ends it.
        hostile: How often a record of the unit is odd.
        longer_ms: How much longer the history is than it must be; by default some are long enough for windows to open.
        wants: Keys of the source.
    """

    seed: int
    stamps: str | None = None
    ask: str | None = None
    loss: str | None = None
    others: tuple[int, int] = (60, 160)
    unit: tuple[int, ...] = (1, 5, 30)
    waits: int = 2
    clock_changes: int = 6
    far_ahead: float = 0.1
    outages: int = 2
    stops: float = 0.04
    hostile: float = 0.5
    longer_ms: int | None = None
    wants: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def history(self) -> History:
        rng = self.rng
        self.ask = self.ask or rng.choice(("close", "tick"))
        self.stamps = self.stamps or rng.choice(
            ("broker", "broker", "broker", "producer", "producer", "mixed", "mixed back")
        )
        every = rng.choice((10_000, 20_000, 30_000))
        self.fields: dict[str, Any] = {
            "name": "s",
            "topic": "raw",
            "unit": rng.choice(("user", "user", "key")),
            "series": {"field": "page"} if rng.random() < 0.8 else None,
            "dataset": {"pattern": rng.choice(("web", "web-{date}"))},
            "time": rng.choice(({"field": "ts", "in": "ms"}, {"field": "at.s", "in": "s"}, None)),
            "every": f"{every}ms",
            "window": f"{every * rng.choice((2, 3, 6))}ms",
            "lateness": f"{rng.choice((0, 5, 20, 60, 90))}s",
            "ahead": f"{rng.choice((0, 15, 60, 240))}s",
            "settle": f"{rng.choice((4, 10))}s",
            "ask": self.ask,
            "measures": [{"name": "visitors"}],
        }
        if rng.random() < 0.3:
            self.fields["dataset"] |= {"pattern": "web-{name}", "field": "ward", "names": ["a", "b"]}
        if rng.random() < 0.5:
            self.fields["measures"].append({"name": "errors", "where": {"status": [500, "503"]}})
        if rng.random() < 0.6:
            self.fields["measures"].append({"name": "events", "of": {"events": {"at_most": 3}}})
        self.fields |= self.wants
        return self._of(self._source(["/", "/a"]))

    def _source(self, names: list[str], **changes: Any) -> SourceSpec:
        fields = self.fields | changes
        if fields["series"]:
            fields["series"] = fields["series"] | {"names": names}
        return SourceSpec.model_validate({key: one for key, one in fields.items() if one is not None})

    def _of(self, source: SourceSpec) -> History:
        rng, clock = self.rng, TickClock.of(source)
        length = clock.closes_after_ms + 3 * clock.window_ms + 60_000
        length += rng.choice((0,) * 7 + (LONG_MS,)) if self.longer_ms is None else self.longer_ms
        begin = NOON + rng.choice((0, DAY_MS // 2 - length // 2)) + rng.randrange(clock.window_ms)
        end = begin + length + clock.closes_after_ms
        before = clock.ahead_ms + 15 * 60_000
        later = self._source(["/a", "/b", "/"], settle=f"{LATER_SETTLE_MS}ms")
        more = self._source(["/b", "/"], measures=[*self.fields["measures"], {"name": "late"}])
        sources = [(begin - 2 * before, source)]
        if rng.random() < 0.6:
            sources.append((begin - before + rng.randrange(length), later))
            sources += [(sources[-1][0] + rng.randrange(1, length), more)] * (rng.random() < 0.5)
        self.begin, self.last, self.span = begin, begin + length, clock.closes_after_ms
        self.source, self.clock = source, clock
        self.count = rng.randrange(1, 4)
        added = (0,) * self.count + ((begin + rng.randrange(length),) if rng.random() < 0.2 else ())
        loss = self._loss(end) if self.loss else None
        self.ends: dict[int, tuple[int, bool]] = {}
        self.quiet = (loss.quiet_ms, loss.accepted_ms) if loss else (0, 0)
        others = self._others(added, loss)
        unit = self._unit(added, loss)
        skews = {number: self._skews() for number in range(len(added))}
        switched = begin + rng.choice(
            (rng.randrange(length), -rng.randrange(clock.window_ms + clock.ahead_ms))
        )
        assert self.stamps is not None
        return History(
            self.seed, tuple(sources), begin, max(end, self.last + self.span) + 60_000, self.stamps, switched, added,
            self._missing(length), skews, self.ends, tuple(others), tuple(unit), loss, self.outages, self.stops,
        )  # fmt: skip

    def _missing(self, length: int) -> tuple[int, int, int]:
        """Return from when to when the partition of a number is not found; not around a loss, which is to be seen."""
        if self.loss or self.rng.random() < 0.7:
            return 0, 0, 0
        start = self.begin + self.rng.randrange(length)
        return start, start + self.rng.choice((15_000, 60_000)), self.rng.randrange(self.count)

    def _loss(self, end: int) -> Loss:
        quiet = self.begin + self.rng.randrange(self.last - self.begin) + 60_000
        at = quiet + (self.rng.randrange(60_000, 120_000) if self.loss == "records-lost" else 1_000)
        accepted = at + 30_000 + self.rng.randrange(30_000)
        self.last = max(self.last, accepted + self.clock.ahead_ms + 2 * self.clock.window_ms)
        assert self.loss is not None
        return Loss(self.loss, quiet, at, accepted, self.rng.randrange(self.count))

    def _skews(self) -> list[tuple[int, int]]:
        """Return how far a leader's clock is ahead: clocks agree, with replication, within `settle`."""
        most = min(self.source.settle, LATER_SETTLE_MS) // 2
        rng, changes = self.rng, self.clock_changes
        moments = sorted(self._at() for _ in range(changes))
        skews = [(at, rng.choice((-most, most, rng.randrange(-most, most + 1)))) for at in moments]
        if rng.random() < self.far_ahead:
            number = rng.randrange(1, changes)
            skews[number] = (skews[number][0], YEAR_MS)
        return [(0, self.rng.randrange(-most, most + 1)), *skews]

    def _at(self) -> int:
        """Return a moment, often one near the end of a tick."""
        at = self.rng.randrange(self.begin - self.clock.window_ms - self.clock.ahead_ms, self.last)
        if self.rng.random() < 0.6:
            return at
        return min(self.clock.tick_after(at) + self.rng.randrange(-4_000, 4_000), self.last - 1)

    def _others(self, added: Sequence[int], loss: Loss | None) -> list[Append]:
        rng, found = self.rng, []
        for _ in range(rng.randrange(*self.others)):
            at = self._at()
            user = rng.choice("abcdef") if rng.random() < 0.4 else f"user-{rng.randrange(60)}"
            found.append(self._record(at, self._near(at), user, self._partition(at, added)))
        if loss is not None:  # so that something of others is lost
            moments = [loss.quiet_ms - 50_000 + 1_000 * each for each in range(12)]
            moments += [loss.quiet_ms + 1_000 * each for each in range(1, 5)]
            found += [self._record(at, at, "b", loss.partition) for at in moments]
        for number in range(rng.randrange(4)):
            found += self._transaction(number, rng.randrange(1_000, 90_000), "cd", added)
        return sorted(found, key=lambda one: one.at_ms)

    def _unit(self, added: Sequence[int], loss: Loss | None) -> list[Append]:
        rng, found = self.rng, []
        for _ in range(rng.choice(self.unit)):
            at = self._at()
            if loss and loss.kind == "end-fell" and loss.quiet_ms - 60_000 < at < loss.at_ms + 20_000:
                continue  # assumed: a unit's records do not hide that an end fell
            event = rng.choice((self._near(at), self._near(at), self._at(), 0, at + YEAR_MS, -5, 2**62))
            one = self._record(at, event, UNIT, self._partition(at, added), is_hostile=True)
            # Close together, some of the same cell.
            found += [replace(one, at_ms=at + 10 * each) for each in range(rng.choice((1, 1, 5)))]
        for number in range(rng.randrange(self.waits + 1)):
            most = rng.choice((5_000, 90_000, 600_000))
            found += self._transaction(100 + number, rng.randrange(most), UNIT, added)
        return sorted(found, key=lambda one: one.at_ms)

    def _transaction(self, number: int, most: int, users: str, added: Sequence[int]) -> list[Append]:
        rng, start = self.rng, self._at()
        end, low, high = min(start + most + 100, self.last + 20_000), *self.quiet
        partitions = {self._partition(start, added) for _ in range(2)}
        if self.loss and low - 60_000 < end and start < high and (self.loss, users) != ("compacted", UNIT):
            return []  # assumed: no loss of what one unit lets a tick wait for
        self.ends[number] = end, rng.random() < 0.7
        found = []
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(start, max(min(end, start + 60_000), start + 1))
            partition = rng.choice(sorted(partitions))
            one = self._record(at, self._near(at), rng.choice(users), partition)
            found.append(replace(one, transaction=number))
        return found

    def _partition(self, at: int, added: Sequence[int]) -> int:
        return self.rng.choice([number for number, since in enumerate(added) if since < at])

    def _near(self, at: int) -> int:
        rng = self.rng
        return at + rng.choice((0, 0, rng.randrange(-8_000, 3_000), rng.randrange(-self.span, self.span)))

    def _record(
        self, at: int, event_ms: int, user: str, partition: int, *, is_hostile: bool = False
    ) -> Append:
        rng, source = self.rng, self.source
        scale = source.time.scale if source.time else "ms"
        time_ms = event_ms - event_ms % 1000 if scale == "s" else event_ms
        page, ward, status = (
            rng.choice(("/", "/", "/a", "/b", "/none")),
            rng.choice("abc"),
            rng.choice((200, 500, 503)),
        )
        stamp = event_ms if source.time is None else at
        fields: dict[str, Any] = {"user": user, "page": page, "ward": ward, "status": status}
        fields |= {"ts": time_ms, "at": {"s": time_ms // 1000}}
        key: bytes | None = user.encode() if source.unit == "key" else None
        event: Event | None = Event(
            user, time_ms, page if source.series else "", ward if source.dataset_field else "", status
        )
        value = json.dumps(fields).encode()
        is_damaged = False
        if is_hostile and source.time:
            stamp = rng.choice((at, at, at + DAY_MS, 0))
        if is_hostile and rng.random() < self.hostile:
            event, key, value, is_damaged = self._hostile(event, key, fields)
        return Append(at, partition, (key, value), event, stamp, None, is_damaged)

    def _hostile(
        self, event: Event | None, key: bytes | None, fields: dict[str, Any]
    ) -> tuple[Event | None, bytes | None, bytes | None, bool]:
        rng = self.rng
        text = json.dumps(fields)
        kind = rng.randrange(9)
        if kind == 0:
            return (
                None,
                key,
                rng.choice((None, b"", b"{", b"[]", b"\xff{}", text[:-1].encode(), b"null")),
                False,
            )
        if kind == 1 and self.source.unit == "user":
            fields["user"] = rng.choice((None, 1.5, "x" * 257, "", [], {"user": UNIT}))
            return None, key, json.dumps(fields).encode(), False
        if kind == 2:
            return (
                event,
                key,
                text.replace(f'"user": "{UNIT}"', f'"\\u0075ser": "\\u00{ord(UNIT):02x}"').encode(),
                False,
            )
        if kind == 3:
            return event, key, text.replace(f'"user": "{UNIT}"', f'"user": {UNIT}').encode(), False
        if kind == 4:
            return None, key, json.dumps(fields | {"pad": "x" * 1_100_000}).encode(), False
        if kind == 5:
            return event, key, json.dumps(fields | {"pad": "x" * 30_000}).encode(), False
        if kind == 6:
            return event, key, text.encode(), True
        if kind == 7 and self.source.time is not None:
            fields |= rng.choice(({"ts": "soon", "at": {"s": None}}, {"ts": None, "at": 5}))
            return None, key, json.dumps(fields).encode(), False
        return event, key, f"  {text}\n".encode(), False
