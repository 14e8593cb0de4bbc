"""Random raw streams with and without the records of one unit, the topic that holds them, and what they must count.

All that happens to both streams is in a `History`, which is public: the configurations, the clocks of leaders, the
losses. A `RawTopic` plays one of the two streams: its offsets, open transactions and high watermarks are its own.
"""

from __future__ import annotations

import random
from collections import Counter as Multiset
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple

from stream_svt.protocol.records import Records
from stream_svt.settings.sources import SourceSpec
from stream_svt.sources.lists import Lists
from stream_svt.sources.log import Look
from stream_svt.sources.ticks import TickClock
from tests.support import raw_events
from tests.support.raw_events import LATER, UNIT, Event

DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS
NOON = 20_000 * DAY_MS + DAY_MS // 2
FAR_MS = 600_000
LONG_MS = 25 * 60_000
LATER_SETTLE_MS = 7_000
REPLICATION_MS = 5_000
"""How long replication takes as long as it takes."""


@dataclass(frozen=True)
class Append:
    """A record that a producer appends.

    Attributes:
        at_ms: When, in real time.
        partition: Where.
        key, value: Its content.
        time_ms: The producer's timestamp.
        transaction: The transaction's number, None without one.
        is_damaged: Whether its batch cannot be read.
    """

    at_ms: int
    partition: int
    key: bytes | None
    value: bytes | None
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
        registered_ms: When the registry gets the schema `LATER`.
        away_ms: From when to when the registry gives no answer.
        skews: For each partition how far its leader's clock is ahead, from a moment on.
        ends: When each transaction ends, and whether it commits.
        others, unit: Records of the other units, and of the unit.
        loss: What is lost, if anything is.
        outages: Outages of the process, at most.
    """

    seed: int
    sources: tuple[tuple[int, SourceSpec], ...]
    begin_ms: int
    end_ms: int
    stamps: str
    switched_ms: int
    added_ms: tuple[int, ...]
    missing: tuple[int, int, int]
    registered_ms: int
    away_ms: tuple[int, int]
    skews: Mapping[int, Sequence[tuple[int, int]]]
    ends: Mapping[int, tuple[int, bool]]
    others: tuple[Append, ...]
    unit: tuple[Append, ...]
    loss: Loss | None
    outages: int

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

    @property
    def has_early_schemas(self) -> bool:
        """Whether the unit has records of a schema that the registry does not have yet."""
        return self.source.format == "avro" and any(
            raw_events.schema_of(one.value) == LATER and one.at_ms < self.registered_ms for one in self.unit
        )

    def is_away(self, at_ms: int) -> bool:
        """Return whether the registry gives no answer."""
        return self.away_ms[0] <= at_ms < self.away_ms[1]

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
        self.key, self.value = held.append.key, held.append.value
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
        used = {one.transaction for one in records}
        actions: list[tuple[int, int, Any]] = [(at, 0, None) for at in history.added_ms]
        actions += [(one.at_ms, 1, one) for one in records]
        actions += [(at, 2, number) for number, (at, _) in history.ends.items() if number in used]
        actions += [(loss.at_ms, 3, loss) for loss in (history.loss,) if loss]
        self._actions = sorted(actions, key=lambda one: one[:2])[::-1]

    def advance(self, now_ms: int) -> None:
        """Let everything happen up to a moment."""
        while self._actions and self._actions[-1][0] <= now_ms:
            at_ms, kind, action = self._actions.pop()
            if kind == 0:
                self.partitions.append([])
                self.begins.append(0)
                self._open.append({})
            elif kind == 1:
                self._append(action)
            elif kind == 2:
                self._end(at_ms, action)
            else:
                self._lose(action)
        self.now_ms = now_ms

    def _append(self, one: Append) -> None:
        held, by_broker = self.partitions[one.partition], self.history.is_by_broker(one.at_ms)
        stamp = one.at_ms + self.history.skew(one.partition, one.at_ms) if by_broker else one.time_ms
        if one.transaction is not None:
            self._open[one.partition].setdefault(one.transaction, len(held))
        held.append(Held(one, stamp, by_broker, self.history.visible_ms(one.partition, one.at_ms)))

    def _end(self, at_ms: int, transaction: int) -> None:
        if not self.history.ends[transaction][1]:
            self._aborted.add(transaction)
        for partition, opened in enumerate(self._open):
            if opened.pop(transaction, None) is not None:
                visible = self.history.visible_ms(partition, at_ms)
                self.partitions[partition].append(Held(None, at_ms, by_broker=False, visible_ms=visible))

    def _lose(self, loss: Loss) -> None:
        held, others = self.partitions[loss.partition], self.history.others

        def of_others_after(ms: int) -> list[int]:
            appended = ((index, one.append) for index, one in enumerate(held))
            return [index for index, one in appended if one is not None and one.at_ms > ms and one in others]

        if loss.kind == "records-lost":
            # Of what came since both counters stopped, the first half is gone; its end is a record of another unit.
            later = of_others_after(loss.quiet_ms)
            self.begins[loss.partition] = later[len(later) // 2] + 1
        elif loss.kind == "end-fell":
            del held[of_others_after(loss.quiet_ms - 60_000)[0] :]
        elif loss.kind == "topic-created-again":
            self.topic_id, count = "second", len(self.partitions)
            self.begins = [0] * count
            self.partitions, self._open = [[] for _ in range(count)], [{} for _ in range(count)]

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
        missing = lost if start <= self.now_ms < end else None
        return {one: (begin, self.end(one)) for one, begin in enumerate(self.begins) if one != missing}

    def spans_from(self, ms: int) -> dict[int, tuple[int, int]]:
        """Return `spans`, each from the first record with a timestamp that is not before a moment."""
        found = {}
        for one, (begin, end) in self.spans().items():
            held = enumerate(self.partitions[one][begin:end], begin)
            later = (index for index, each in held if each.append is not None and each.stamp_ms >= ms)
            found[one] = (next(later, end), end)
        return found

    def fetch(self, partition: int, at: int, end: int, most: int) -> tuple[Records, int]:
        """Return some committed records of a partition from an offset on, and up to where these are all."""
        until = min(end, self.stable_end(partition), at + most)
        found = [
            Raw(at + index, one)
            for index, one in enumerate(self.partitions[partition][at:until])
            if self.counts(one)
        ]
        return Records.of(found), max(at, until)

    def counts(self, held: Held) -> bool:
        """Return whether it is a record that can be read, and is not aborted."""
        one = held.append
        return one is not None and not one.is_damaged and one.transaction not in self._aborted


# What must be counted


class Expected(NamedTuple):
    """A query that must be asked, with its counts by series."""

    dataset: str
    measure: str
    tick: int
    counts: dict[str, int]


def reference(
    history: History, topic: RawTopic, looks: Sequence[Look], floors: Mapping[int, int]
) -> Iterator[Expected]:
    """Yield what must be asked, from the records alone.

    The topic lost nothing, and its transactions have ended.
    """
    clock, source, lists = history.clock, history.sources[-1][1], history.lists(history.end_ms)
    conditions = {measure.name: measure.conditions for measure in source.measures}
    first = clock.window_at(history.begin_ms)
    if not history.is_by_broker(history.begin_ms):
        first += clock.window_ms
    parts: dict[int, list[tuple[int, Event]]] = defaultdict(list)
    for window, tick, event in _placed(history, topic, looks, floors):
        if window >= first:
            parts[window].append((tick, event))
    for tick in range(first + clock.every_ms, looks[-1].moment_ms + 1, clock.every_ms):
        for window in range(clock.window_at(first), tick, clock.window_ms):
            if not clock.is_asked(window, tick):
                continue
            listed = lists.at(clock.opens_ms(window))
            assert listed is not None
            events = [event for since, event in parts[window] if since <= tick]
            for name, measure in product(listed.datasets, listed.measures):
                texts = [one.texts for one in conditions[measure.name]]
                matching = (
                    one
                    for one in events
                    if one.dataset == name and all(one.status in all_of for all_of in texts)
                )
                counts = dict.fromkeys(listed.series, 0)
                for (series, _), number in Multiset((one.series, one.unit) for one in matching).items():
                    if series in counts:
                        counts[series] += min(number, measure.at_most)
                yield Expected(source.dataset_at(window, name), measure.name, tick, counts)


def _placed(
    history: History, topic: RawTopic, looks: Sequence[Look], floors: Mapping[int, int]
) -> Iterator[tuple[int, int, Event]]:
    """Yield each event with its window, and the tick from which on it counts."""
    clock, source = history.clock, history.sources[-1][1]
    reads_back = history.is_by_broker(history.begin_ms)
    for partition, held in enumerate(topic.partitions):
        for offset, one in enumerate(held):
            if one.append is None or not topic.counts(one):
                continue
            event = raw_events.event_in(source, one.append.key, one.append.value)
            is_old = offset < floors.get(partition, 0) and not (one.by_broker and reads_back)
            is_far_ahead = one.by_broker and one.stamp_ms > one.append.at_ms + FAR_MS
            if event is None or is_old or is_far_ahead:
                continue
            if one.by_broker:
                appended, tick = one.stamp_ms, clock.tick_after(one.stamp_ms)
            else:
                seen = [one for one in looks if one.ends.get(partition, 0) > offset]
                if not seen:
                    continue
                # The first tick that this look serves: the one before served those until its own moment, and the first
                # look serves those of the window in which the counter began, too. Where brokers' timestamps say how
                # far a backlog is read, the last tick.
                before = [one.moment_ms for one in looks if one.moment_ms < seen[0].moment_ms]
                appended = seen[0].moment_ms - 1
                tick = clock.tick_after(max(before, default=clock.window_at(history.begin_ms)))
                if seen[0].by_broker:
                    tick = max(tick, clock.tick_after(appended))
            window = clock.window_at(one.stamp_ms if event.time_ms is None else event.time_ms)
            if tick <= clock.close_of(window) and window <= appended + clock.ahead_ms:
                tick = max(tick, window + clock.every_ms) if clock.asks_ticks else clock.close_of(window)
                yield window, tick, event


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
        format, stamps, ask, loss: What is not left to chance; there is a loss only if it is named.
        others: Fewest and most records of other units.
        unit: How many moments with records of the unit.
        waits: Transactions of the unit, at most.
        clock_changes: How often each leader's clock changes.
        far_ahead: How often it is a year ahead between two changes.
        outages: Outages of the process, at most.
        hostile: How often a record of the unit is odd.
        longer_ms: How much longer the history is than it must be; by default some are long enough for windows to open.
        wants: Keys of the source.
    """

    seed: int
    format: str | None = None
    stamps: str | None = None
    ask: str | None = None
    loss: str | None = None
    others: tuple[int, int] = (60, 160)
    unit: tuple[int, ...] = (1, 5, 30)
    waits: int = 2
    clock_changes: int = 6
    far_ahead: float = 0.1
    outages: int = 2
    hostile: float = 0.5
    longer_ms: int | None = None
    wants: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = rng = random.Random(self.seed)
        kinds = ("broker", "broker", "broker", "producer", "producer", "mixed", "mixed back")
        self.kind_of_stamps = self.stamps or rng.choice(kinds)
        every = rng.choice((10_000, 20_000, 30_000))
        measures: list[dict[str, Any]] = [{"name": "visitors"}]
        if rng.random() < 0.5:
            measures.append({"name": "errors", "where": {"status": [500, "503"]}})
        if rng.random() < 0.6:
            measures.append({"name": "events", "of": {"events": {"at_most": 3}}})
        wards = {"pattern": "web-{name}", "field": "ward", "names": ["a", "b"]}
        self.fields: dict[str, Any] = {
            "name": "s",
            "topic": "raw",
            "format": self.format or rng.choice(("json", "json", "avro")),
            "unit": rng.choice(("user", "user", "key")),
            "series": {"field": "page"} if rng.random() < 0.8 else None,
            "dataset": wards if rng.random() < 0.3 else {"pattern": rng.choice(("web", "web-{date}"))},
            "time": rng.choice(({"field": "ts", "in": "ms"}, {"field": "at.s", "in": "s"}, None)),
            "every": f"{every}ms",
            "window": f"{every * rng.choice((2, 3, 6))}ms",
            "lateness": f"{rng.choice((0, 5, 20, 60, 90))}s",
            "ahead": f"{rng.choice((0, 15, 60, 240))}s",
            "settle": f"{rng.choice((4, 10))}s",
            "ask": self.ask or rng.choice(("close", "tick")),
            "measures": measures,
            **self.wants,
        }
        self.source = self._source(["/", "/a"])
        self.clock = TickClock.of(self.source)

    def _source(self, names: list[str], **changes: Any) -> SourceSpec:
        fields = self.fields | changes
        if fields["series"]:
            fields["series"] = fields["series"] | {"names": names}
        return SourceSpec.model_validate({key: one for key, one in fields.items() if one is not None})

    def history(self) -> History:
        rng, clock = self.rng, self.clock
        length = clock.closes_after_ms + 3 * clock.window_ms + 60_000
        length += rng.choice((0,) * 7 + (LONG_MS,)) if self.longer_ms is None else self.longer_ms
        self.begin = begin = (
            NOON + rng.choice((0, DAY_MS // 2 - length // 2)) + rng.randrange(clock.window_ms)
        )
        self.last, end = begin + length, begin + length + clock.closes_after_ms
        self.count = rng.randrange(1, 4)
        self.added = (0,) * self.count
        if rng.random() < 0.2:
            self.added += (begin + rng.randrange(length),)
        self.registered = begin + rng.randrange(length)
        self.lost = loss = self._loss() if self.loss else None
        self.ends: dict[int, tuple[int, bool]] = {}
        opened = -rng.randrange(clock.window_ms + clock.ahead_ms)
        # Neither around a loss: a partition is seen, and what came before is read.
        missing, away = ((0, 0) if loss or rng.random() < 0.7 else self._pause(length) for _ in range(2))
        return History(
            seed=self.seed,
            sources=self._sources(length),
            begin_ms=begin,
            end_ms=max(end, self.last + clock.closes_after_ms) + 60_000,
            stamps=self.kind_of_stamps,
            switched_ms=begin + rng.choice((rng.randrange(length), opened)),
            added_ms=self.added,
            missing=(*missing, rng.randrange(self.count)),
            registered_ms=self.registered,
            away_ms=away,
            skews={number: self._skews() for number in range(len(self.added))},
            ends=self.ends,
            others=self._others(),
            unit=self._unit(),
            loss=loss,
            outages=self.outages,
        )

    def _sources(self, length: int) -> tuple[tuple[int, SourceSpec], ...]:
        rng, before = self.rng, self.clock.ahead_ms + 15 * 60_000
        sources = [(self.begin - 2 * before, self.source)]
        if rng.random() < 0.6:
            at = self.begin - before + rng.randrange(length)
            sources.append((at, self._source(["/a", "/b", "/"], settle=f"{LATER_SETTLE_MS}ms")))
            if rng.random() < 0.5:
                measures = [*self.fields["measures"], {"name": "late"}]
                sources.append((at + rng.randrange(1, length), self._source(["/b", "/"], measures=measures)))
        return tuple(sources)

    def _pause(self, length: int) -> tuple[int, int]:
        start = self.begin + self.rng.randrange(length)
        return start, start + self.rng.choice((15_000, 60_000))

    def _loss(self) -> Loss:
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
        return [(0, rng.randrange(-most, most + 1)), *skews]

    def _at(self) -> int:
        """Return a moment, often one near the end of a tick."""
        at = self.rng.randrange(self.begin - self.clock.window_ms - self.clock.ahead_ms, self.last)
        if self.rng.random() < 0.6:
            return at
        return min(self.clock.tick_after(at) + self.rng.randrange(-4_000, 4_000), self.last - 1)

    def _others(self) -> tuple[Append, ...]:
        rng, loss, found = self.rng, self.lost, []
        for _ in range(rng.randrange(*self.others)):
            at = self._at()
            user = rng.choice("abcdef") if rng.random() < 0.4 else f"user-{rng.randrange(60)}"
            found.append(self._record(at, self._near(at), user, self._partition(at)))
        if loss is not None:  # so that something of others is lost
            moments = [loss.quiet_ms + 1_000 * each for each in (*range(-50, -38), *range(1, 5))]
            found += [self._record(at, at, "b", loss.partition) for at in moments]
        for number in range(rng.randrange(4)):
            found += self._transaction(number, rng.randrange(1_000, 90_000), "cd")
        return tuple(sorted(found, key=lambda one: one.at_ms))

    def _unit(self) -> tuple[Append, ...]:
        rng, loss, found = self.rng, self.lost, []
        for _ in range(rng.choice(self.unit)):
            at = self._at()
            if loss and loss.kind == "end-fell" and loss.quiet_ms - 60_000 < at < loss.at_ms + 20_000:
                continue  # assumed: a unit's records do not hide that an end fell
            event = rng.choice((self._near(at), self._near(at), self._at(), 0, at + YEAR_MS, -5, 2**62))
            one = self._record(at, event, UNIT, self._partition(at), is_hostile=True)
            # Close together, some of the same cell.
            found += [replace(one, at_ms=at + 10 * each) for each in range(rng.choice((1, 1, 5)))]
        for number in range(rng.randrange(self.waits + 1)):
            most = rng.choice((5_000, 90_000, 600_000))
            found += self._transaction(100 + number, rng.randrange(most), UNIT)
        return tuple(sorted(found, key=lambda one: one.at_ms))

    def _transaction(self, number: int, most: int, users: str) -> list[Append]:
        rng, start, loss = self.rng, self._at(), self.lost
        end = min(start + most + 100, self.last + 20_000)
        partitions = [self._partition(start) for _ in range(2)]
        if (
            loss
            and loss.quiet_ms - 60_000 < end
            and start < loss.accepted_ms
            and (loss.kind, users) != ("compacted", UNIT)
        ):
            return []  # assumed: no loss of what one unit lets a tick wait for
        self.ends[number] = end, rng.random() < 0.7
        found = []
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(start, max(min(end, start + 60_000), start + 1))
            one = self._record(at, self._near(at), rng.choice(users), rng.choice(partitions))
            found.append(replace(one, transaction=number))
        return found

    def _partition(self, at: int) -> int:
        return self.rng.choice([number for number, since in enumerate(self.added) if since < at])

    def _near(self, at: int) -> int:
        rng, span = self.rng, self.clock.closes_after_ms
        return at + rng.choice((0, 0, rng.randrange(-8_000, 3_000), rng.randrange(-span, span)))

    def _record(
        self, at: int, event_ms: int, user: str, partition: int, *, is_hostile: bool = False
    ) -> Append:
        rng, source = self.rng, self.source
        is_odd = is_hostile and rng.random() < self.hostile
        page = rng.choice(("/", "/", "/a", "/b", "/none"))
        fields = {
            "user": user,
            "page": page,
            "ward": rng.choice("abc"),
            "status": rng.choice((200, 500, 503)),
        }
        fields |= {"ts": event_ms, "at": {"s": event_ms // 1000}}
        stamp = event_ms if source.time is None else at
        if is_hostile and source.time:
            stamp = rng.choice((at, at, at + DAY_MS, 0))
        if source.format == "json":
            value = raw_events.odd_json(fields, rng) if is_odd else raw_events.json_of(fields)
        else:
            known = (*raw_events.ALWAYS,) + (LATER,) * (2 * (at >= self.registered))
            number = rng.choice(known)
            value = raw_events.odd_avro(fields, rng) if is_odd else raw_events.avro_of(fields, number)
        key = user.encode() if source.unit == "key" else None
        return Append(at, partition, key, value, stamp, is_damaged=is_odd and rng.random() < 0.1)
