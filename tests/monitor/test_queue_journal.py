"""The journal of waiting queries: whatever happens, what is read back is what a queue never stored would be."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_svt.errors import UnreadableState
from stream_svt.monitor import pending, queue_journal
from stream_svt.monitor.pending import Block, OpenSets, RetryQueue, Waiting, place_name
from stream_svt.monitor.queue_journal import Position, QueueJournal, key_of
from stream_svt.monitor.snapshot import PlaceLine, QueueRecord, RemoveLine, SetLine
from tests.support.monitor_forms import (
    FORMS,
    assert_books_balance,
    counts,
    interrupted,
    spec_of,
    standing,
    stream,
    transcript,
    uninterrupted,
)

ATTEMPTS = 4


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every record be short, and compaction be due at once."""
    monkeypatch.setattr(queue_journal, "RECORD_BYTES", 400)
    monkeypatch.setattr(queue_journal, "_OVERHEAD", 10)
    monkeypatch.setattr(queue_journal, "_FLOOR", 0)
    monkeypatch.setattr(queue_journal, "_CREDIT", 300)
    monkeypatch.setattr(queue_journal, "SLACK", 600)
    monkeypatch.setattr(queue_journal, "_DELETED", 3)
    monkeypatch.setattr(pending, "_BLOCK_BYTES", 200)


@dataclass
class World:
    """Queues beside plain lists that are never stored; what they hold has to be the same after every restore."""

    seed: int
    offset_of_values: int = 0
    records: dict[bytes, bytes] = field(default_factory=dict)
    lengths: list[tuple[bytes, int]] = field(default_factory=list)
    written: int = 0
    clock: int = 1_790_000_000_000

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.journal = QueueJournal()
        self.offset = self.chance.choice([0, 2**40])
        self.queues: dict[str, RetryQueue | OpenSets] = {}
        self.plain: dict[str, Any] = {}

    # -- what happens

    def step(self) -> None:
        """Let something happen to a queue."""
        name = self.chance.choice(["r0", "r1", "r2", "s0", "s1"])
        self.clock += self.chance.choice([0, 5, 700])
        self.offset += 1
        if self.chance.random() < 0.004:
            if name in self.queues:
                self.queues.pop(name).drop()
                del self.plain[name]
        elif name.startswith("r"):
            self._retry(name)
        else:
            self._sets(name)

    def _retry(self, name: str) -> None:
        if name not in self.queues:
            self.queues[name] = RetryQueue(self.journal, f"m{name}", name)
            self.plain[name] = {"count": 0, "places": []}
        queue, plain = self.queues[name], self.plain[name]
        assert isinstance(queue, RetryQueue)
        queue.count += 1
        plain["count"] += 1
        self.journal.note(queue, 0)
        act = self.chance.random()
        if act < 0.75:
            self._arrive(queue, plain)
        elif act < 0.8 and plain["places"]:
            gone = self.chance.choice(plain["places"])
            plain["places"].remove(gone)
            queue.remove(self._name(gone))
        elif act < 0.95:
            self._sweep(queue, plain)
        elif act < 0.955:
            queue.forget()
            plain["places"].clear()

    def _arrive(self, queue: RetryQueue, plain: Any) -> None:
        series = self.chance.choice(
            [None, *(f"s{k}" * self.chance.choice([1, 1, 9]) for k in range(12)), "é🧺"]
        )
        value = self.chance.randrange(-(2**20), 2**20) + self.offset_of_values
        row, query_id = self.chance.randrange(3), f"q{self.offset}" + "ü" * self.chance.randrange(3)
        news = {
            "offset": self.offset,
            "row": row,
            "value": value,
            "threshold": self.offset % 7,
            "id": query_id,
        }
        known = next((p for p in plain["places"] if series is not None and p["series"] == series), None)
        if known is not None:
            known.update(news)
            place = queue.places[series]
            place.offset, place.row, place.value = self.offset, row, value
            place.threshold, place.query_id = self.offset % 7, query_id
            queue.replaced(place)
            return
        if len(plain["places"]) >= 9:
            queue.remove(self._name(plain["places"].pop(0)))
        entered = {"attempt": 1, "entered": self.offset, "entered_ms": self.clock, "series": series}
        plain["places"].append(news | entered)
        place = Waiting(
            self.offset, row, value, self.offset % 7, 1, self.offset, self.clock, series, query_id
        )
        queue.enter(place_name(series, self.offset, row), place)

    def _sweep(self, queue: RetryQueue, plain: Any) -> None:
        places = plain["places"]
        last = len(places) if self.chance.random() < 0.7 else self.chance.randrange(len(places) + 1)
        whole = last == len(places)
        tested = places[:last]
        number = queue.places[self._name(tested[-1])].number if tested else 0
        for place in tested:
            place["attempt"] += 1
            queue.places[self._name(place)].attempt += 1
            if place["attempt"] >= ATTEMPTS or self.chance.random() < 0.05:
                places.remove(place)
                queue.remove(self._name(place))
        queue.swept(None if whole else number)

    @staticmethod
    def _name(place: Any) -> str | tuple[int, int]:
        return place_name(place["series"], place["offset"], place["row"])

    def _sets(self, name: str) -> None:
        if name not in self.queues:
            self.queues[name] = OpenSets(self.journal, f"m{name}", name)
            self.plain[name] = {}
        sets, plain = self.queues[name], self.plain[name]
        assert isinstance(sets, OpenSets)
        set_id = f"set{self.chance.randrange(4)}"
        if set_id in plain and self.chance.random() < 0.2:
            del plain[set_id]
            sets.close(sets.open[set_id])
            return
        if set_id not in plain:
            plain[set_id] = {"opened": self.clock, "tops": 0, "rows": []}
            sets.begin(set_id, self.clock)
        if self.chance.random() < 0.3:
            plain[set_id]["tops"] += 1
            sets.open[set_id].tops += 1
            sets.touch(sets.open[set_id])
        count = self.chance.randrange(8)
        rows = [
            (self.offset, k, k + self.offset_of_values, 5, self.chance.choice([None, "x", "é"]), f"q{k}")
            for k in range(count)
        ]
        if rows:
            numbers = np.array([row[:4] for row in rows], dtype=np.int64).T
            block = Block(*numbers, [row[4] for row in rows], [row[5] for row in rows])
            sets.add(sets.open[set_id], block)
            plain[set_id]["rows"] += rows

    # -- storing

    def commit(self) -> None:
        """Make durable what changed."""
        limit = self.journal.pending_bytes + queue_journal.SLACK
        positions = {f"m{name}": Position(self.offset, self.clock) for name in ("r0", "r1", "r2", "s0", "s1")}
        changes = self.journal.save(positions)
        assert sum(len(data or b"") for data in changes.values()) <= limit
        for key, data in changes.items():
            self.lengths.append((key, -1 if data is None else len(data)))
            if data is None:
                del self.records[key]
            else:
                assert key not in self.records
                self.records[key] = data

    def restart(self) -> None:
        """Lose what is in memory, which is what was committed last."""
        self.journal = QueueJournal()
        made: list[RetryQueue | OpenSets] = []

        def new(monitor: str, dataset: str) -> RetryQueue | OpenSets:
            kind = RetryQueue if dataset.startswith("r") else OpenSets
            made.append(kind(self.journal, monitor, dataset))
            return made[-1]

        for key, data in sorted(self.records.items(), key=lambda item: int(item[0][2:])):
            self.journal.load(int(key[2:]), data, new)
        self.queues = {queue.dataset: queue for queue in self.journal.loaded()}  # type: ignore[misc]

    def check(self) -> None:
        """Compare the queues with what was never stored."""
        for name, plain in self.plain.items():
            queue = self.queues.get(name)
            if isinstance(queue, RetryQueue):
                assert queue.count == plain["count"]
                found = [_fields(place) for place in queue.places.values()]
                assert found == plain["places"]
                assert list(queue.places) == [self._name(place) for place in plain["places"]]
            elif isinstance(queue, OpenSets):
                assert {key: _rows(opened) for key, opened in queue.open.items()} == plain
            else:
                assert not plain or not plain.get("count")
        assert self.queues.keys() <= self.plain.keys()


def _fields(place: Waiting) -> dict[str, Any]:
    return {
        "offset": place.offset,
        "row": place.row,
        "value": place.value,
        "threshold": place.threshold,
        "id": place.query_id,
        "attempt": place.attempt,
        "entered": place.entered,
        "entered_ms": place.entered_ms,
        "series": place.series,
    }


def _rows(opened: Any) -> dict[str, Any]:
    rows = [
        row
        for b in opened.blocks
        for row in zip(
            b.offset.tolist(),
            b.row.tolist(),
            b.value.tolist(),
            b.threshold.tolist(),
            b.series,
            b.query_id,
            strict=True,
        )
    ]
    assert len(opened) == len(rows)
    return {"opened": opened.opened_ms, "tops": opened.tops, "rows": rows}


def history(seed: int, steps: int = 400, **options: int) -> World:
    """Play a history with commits and restarts at random places, comparing at each restart."""
    world = World(seed, **options)
    often = world.chance.choice([0.05, 0.3, 0.9])
    for _ in range(steps):
        world.step()
        if world.chance.random() < often:
            world.commit()
            if world.chance.random() < 0.1:
                world.restart()
                world.check()
    world.commit()
    world.restart()
    world.check()
    return world


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(25))
def test_a_queue_that_is_stored_and_read_again_is_the_one_that_never_was(seed: int) -> None:
    history(seed)


@pytest.mark.parametrize("seed", range(5))
def test_so_is_one_in_records_of_the_usual_size(seed: int) -> None:
    history(seed, 1000)


@given(st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_the_length_of_no_record_depends_on_a_value(seed: int) -> None:
    lengths = history(seed, 150).lengths
    assert history(seed, 150, offset_of_values=2**46).lengths == lengths
    assert history(seed, 150, offset_of_values=-(2**46)).lengths == lengths


def _without(kind: type) -> Any:
    def changed(original: Any) -> Any:
        def changes(self: Any, at: Position) -> Iterator[Any]:
            return (change for change in original(self, at) if not isinstance(change[1], kind))

        return changes

    return changed


def _again_as_new(original: Any) -> Any:
    def line(self: RetryQueue, entry: Any, at: Position) -> Any:
        found = original(self, entry, at)
        if entry.home >= 0:
            found.attempt = 1
        return found

    return line


def _unordered(original: Any) -> Any:
    def settle(self: RetryQueue) -> None:
        if self.loading is not None:
            self.loading.places = dict(enumerate(self.loading.places.values(), 10**6))
        original(self)

    return settle


MUTANTS = {
    "loses removals": (RetryQueue, "changes", _without(RemoveLine)),
    "loses replacements": (RetryQueue, "changes", _without(pending.ReplaceLine)),
    "loses sweeps": (RetryQueue, "changes", _without(pending.SweepLine)),
    "loses drops": (RetryQueue, "changes", _without(pending.DropLine)),
    "loses closed sets": (OpenSets, "changes", _without(pending.CloseLine)),
    "loses tops of sets": (OpenSets, "changes", _without(pending.TopsLine)),
    "writes again what a place was": (RetryQueue, "line", _again_as_new),
    "keeps places in the order of their records": (RetryQueue, "settle", _unordered),
    "loses the count once records are gone": (RetryQueue, "keeps_head", lambda _: False),
    "deletes a record in which something lives": (
        queue_journal._Stored,
        "alive",
        lambda _: property(lambda self: 0, lambda self, value: None),
    ),
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("mutant", sorted(MUTANTS))
def test_a_journal_that_is_broken_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, broken = MUTANTS[mutant]
    monkeypatch.setattr(place, name, broken(getattr(place, name)))
    with pytest.raises((AssertionError, UnreadableState, KeyError)):
        _histories(25)


def _histories(count: int) -> None:
    for seed in range(count):
        history(seed)


@pytest.mark.parametrize("form", ["retry", "retry by clock", "retry resampled", "sweep", "sweep caps"])
def test_a_stream_replays_the_same_from_a_journal_that_is_always_compacted(form: str, small: None) -> None:
    spec, queries = spec_of(FORMS[form]), stream(3, 700)
    expected = uninterrupted(spec, queries)
    chance = random.Random(11)
    play = interrupted(spec, queries, lambda below: chance.randrange(max(1, min(below, 40))))
    assert transcript(play) == transcript(expected)
    assert counts(play) == counts(expected)
    assert standing(play) == standing(expected)
    assert_books_balance(play)
    play.crash()
    assert standing(play) == standing(expected)


# -- size


def _series_of(journal: QueueJournal, count: int) -> list[RetryQueue]:
    return [RetryQueue(journal, "m", f"dataset-{k}") for k in range(count)]


def test_a_journal_stays_within_a_multiple_of_what_lives_and_writes_each_byte_twice_at_most() -> None:
    """A thousand queues of 20 series each: values are replaced all the time, so nearly all that is written is stale."""
    chance = random.Random(5)
    journal = QueueJournal()
    queues = _series_of(journal, 300)
    records: dict[bytes, bytes] = {}
    written = offset = 0
    appended = 0
    for round_ in range(400):
        for _ in range(200):
            offset += 1
            queue, series = chance.choice(queues), f"series-{chance.randrange(20)}"
            queue.count += 1
            known = queue.places.get(series)
            if known is None:
                queue.enter(series, Waiting(offset, 0, 1, 500, 1, offset, offset, series, f"query-{offset}"))
            else:
                known.offset, known.query_id = offset, f"query-{offset}"
                queue.replaced(known)
        changed = sum(len(queue.touched) for queue in queues)
        appended += changed
        changes = journal.save({"m": Position(offset, offset)})
        for key, data in changes.items():
            written += len(data or b"") + 130
            if data is None:
                del records[key]
            else:
                records[key] = data
        stored = sum(len(data) + 130 for data in records.values())
        assert stored == journal.size
        if round_ > 100:
            assert stored <= 3 * journal.live + 2 * 65_536
    assert max(map(len, records.values())) <= queue_journal.RECORD_BYTES
    each = written / appended
    assert each < 2 * 60, f"{each} bytes a change: appended once, written again at most once"


def test_a_sweep_of_all_places_is_one_short_line() -> None:
    journal = QueueJournal()
    (queue,) = _series_of(journal, 1)
    for k in range(1000):
        queue.count += 1
        queue.enter(f"s{k}", Waiting(k, 0, 1, 500, 1, k, k, f"s{k}", f"q{k}"))
    (data,) = journal.save({}).values()
    assert data is not None
    assert len(data) > 20_000
    for _ in range(3):
        for place in queue.places.values():
            place.attempt += 1
        queue.swept()
    for name in list(queue.places)[:600]:
        queue.remove(name)
    (data,) = journal.save({}).values()
    assert data is not None
    assert len(data) < 60


def test_records_in_which_nothing_lives_are_deleted_a_few_hundred_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_journal, "_FLOOR", 10**9)
    journal = QueueJournal()
    (queue,) = _series_of(journal, 1)
    for k in range(700):
        queue.count += 1
        queue.enter(f"s{k}", Waiting(k, 0, 1, 500, 1, k, k, f"s{k}", f"q{k}"))
        journal.save({})
    queue.forget()
    deleted = [
        sum(data is None for data in journal.save({}).values()),
        sum(data is None for data in journal.save({}).values()),
    ]
    assert deleted == [500, 200]
    assert journal.live < 100


def test_pending_bytes_grow_with_every_change_and_bound_what_is_written() -> None:
    journal = QueueJournal()
    assert journal.pending_bytes == 0
    (queue,) = _series_of(journal, 1)
    before = 0
    for k in range(200):
        queue.count += 1
        series = f"é{k % 50}" * 60
        if series in queue.places:
            queue.places[series].query_id = f"🧺{k}" * 60
            queue.replaced(queue.places[series])
        else:
            queue.enter(series, Waiting(2**46, 2**30, 2**46, 2**46, 1, 0, 2**41, series, "🧺" * 250))
        assert journal.pending_bytes > before
        before = journal.pending_bytes
    assert sum(len(data or b"") for data in journal.save({}).values()) <= before + queue_journal.SLACK


# -- what cannot be read


def _stored() -> dict[bytes, bytes]:
    world = World(1)
    for _ in range(60):
        world.step()
        world.commit()
    return world.records


def _load(records: dict[bytes, bytes]) -> list[Any]:
    journal = QueueJournal()

    def new(monitor: str, dataset: str) -> RetryQueue | OpenSets:
        return (RetryQueue if dataset.startswith("r") else OpenSets)(journal, monitor, dataset)

    for key, data in sorted(records.items(), key=lambda item: int(item[0][2:])):
        journal.load(int(key[2:]), data, new)
    return list(journal.loaded())


def test_a_record_that_is_missing_between_others_is_named() -> None:
    records = _stored()
    keys = sorted(int(key[2:]) for key in records)
    del records[key_of(keys[3])]
    with pytest.raises(UnreadableState, match=rf"w/{keys[3]} is missing, w/{keys[4]} is there"):
        _load(records)


def test_a_line_of_another_kind_of_queue_is_refused() -> None:
    journal = QueueJournal()
    for queue, line in (
        (RetryQueue(journal, "m", "a"), SetLine(0, "set", 0, 0)),
        (OpenSets(journal, "m", "a"), PlaceLine(0, 0, 0, bytes(8), 0, 1, 0, 0, "x", "q")),
    ):
        queue.set_head(1)
        with pytest.raises(ValueError, match="there is a line of"):
            queue.take(line, Position(0, 0), 0, 10)


def test_a_block_whose_set_is_nowhere_is_refused() -> None:
    journal = QueueJournal()
    sets = OpenSets(journal, "m", "s")
    opened = sets.begin("set", 0)
    numbers = np.zeros(1, dtype=np.int64)
    sets.add(opened, Block(numbers, numbers, numbers, numbers, ["x"], ["q"]))
    ((key, data),) = journal.save({}).items()
    assert data is not None
    record = msgspec.msgpack.decode(data)
    lines = record[1][0][3][0][2]
    del lines[0]
    with pytest.raises(
        UnreadableState, match=r"w/\* of monitor m on dataset s are damaged: there is no line of set 0"
    ):
        _load({key: msgspec.msgpack.encode(record)})


def test_what_waits_for_a_dataset_or_monitor_that_is_not_there_goes_for_good() -> None:
    records = _stored()
    journal = QueueJournal()
    for key, data in sorted(records.items(), key=lambda item: int(item[0][2:])):
        journal.load(int(key[2:]), data, lambda monitor, dataset: None)
    assert list(journal.loaded()) == []
    assert journal.live == 0
    for key, data in journal.save({}).items():
        if data is None:
            del records[key]
        else:
            records[key] = data
    assert _load(records) == []


def test_records_do_not_show_their_numbers() -> None:
    for data in _stored().values():
        record = msgspec.msgpack.decode(data, type=QueueRecord)
        for section in record.sections:
            assert repr(section) == "QueueSection()"
            assert {repr(line) for group in section.groups for line in group.lines} <= {
                f"{type(line).__name__}()" for group in section.groups for line in group.lines
            }
