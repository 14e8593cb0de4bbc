"""The journal of queues: whatever happens, what is read back is what a queue never stored would be."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_svt.errors import UnreadableState
from stream_svt.monitor import queue_journal, sweep
from stream_svt.monitor.loading import KINDS
from stream_svt.monitor.mutes import Mutes
from stream_svt.monitor.queue_journal import Queue, QueueJournal, key_of
from stream_svt.monitor.retry import RetryQueue
from stream_svt.monitor.snapshot import QueueRecord, Waiting
from stream_svt.monitor.sweep import OpenSets
from tests.support.monitor_forms import waiting

ATTEMPTS = 4
QUEUES = {"r0": RetryQueue, "r1": RetryQueue, "s0": OpenSets, "s1": OpenSets, "m0": Mutes}
SMALL = {
    "RECORD_BYTES": 400,
    "_OVERHEAD": 10,
    "_FLOOR": 0,
    "SLACK": 800,
    "_DELETED": 3,
    "_NUMBERS_AT_ONCE": 2,
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every record be short, and compaction be due at once."""
    for name, value in SMALL.items():
        monkeypatch.setattr(queue_journal, name, value)
    monkeypatch.setattr(sweep, "_BLOCK_BYTES", 200)


def put_into(records: dict[bytes, bytes], changes: dict[bytes, bytes | None]) -> None:
    """Store what a save returned."""
    for key, data in changes.items():
        if data is None:
            del records[key]
        else:
            assert key not in records
            records[key] = data


def loaded(records: dict[bytes, bytes]) -> tuple[QueueJournal, dict[str, Queue[Any]]]:
    """Return the journal in records, and its queues by dataset."""
    journal = QueueJournal()
    for key, data in sorted(records.items(), key=lambda item: int(item[0][2:])):
        journal.load(int(key[2:]), data, KINDS)
    return journal, {queue.dataset: queue for queue in journal.loaded()}


def arrive(
    queue: RetryQueue,
    series: str | None,
    offset: int = 0,
    *,
    query_id: str = "q",
    row: int = 0,
    value: int = 0,
) -> None:
    """Let a query of a series wait, in its place if it has one."""
    queue.count += 1
    data = value.to_bytes(8, "little", signed=True)
    place = Waiting(
        queue.count, offset, row, data, offset % 7, offset, offset, queue.sweeps, series, query_id
    )
    known = queue.entries.get(place.name)
    if known is not None:
        kept = {name: getattr(known, name) for name in ("number", "entered", "entered_ms", "begun")}
        place = msgspec.structs.replace(place, **kept)
    queue.put(place)


@dataclass
class World:
    """Queues beside others of a journal that is never saved; both have to hold the same after every restore."""

    seed: int
    offset_of_values: int = 0
    records: dict[bytes, bytes] = field(default_factory=dict)
    lengths: list[tuple[bytes, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.offset = self.chance.choice([0, 2**40])
        self.journal = QueueJournal()
        self.queues: dict[str, Queue[Any]] = {}
        self.plain: dict[str, Queue[Any]] = {}

    def step(self) -> None:
        """Let something happen to a queue."""
        name = self.chance.choice(list(QUEUES))
        self.offset += self.chance.choice([1, 5, 700])
        if self.chance.random() < 0.004:
            if name in self.queues:
                self.queues.pop(name).drop()
                del self.plain[name]
            return
        self.plain.setdefault(name, QUEUES[name](QueueJournal(), f"m{name}", name))
        self.queues.setdefault(name, QUEUES[name](self.journal, f"m{name}", name))
        state = self.chance.getstate()
        for queue in (self.queues[name], self.plain[name]):
            self.chance.setstate(state)
            {RetryQueue: self._retry, OpenSets: self._sets, Mutes: self._mutes}[type(queue)](queue)

    def _retry(self, queue: RetryQueue) -> None:
        act, names, chance = self.chance.random(), list(queue.entries), self.chance
        if act < 0.75:
            if len(names) >= 9:
                queue.remove(names[0])
            series = chance.choice([None, *(f"s{k}" * chance.choice([1, 1, 9]) for k in range(12)), "é🧺"])
            value = chance.randrange(-(2**20), 2**20) + self.offset_of_values
            query_id = f"q{self.offset}" + "ü" * chance.randrange(3)
            arrive(queue, series, self.offset, query_id=query_id, row=chance.randrange(3), value=value)
        elif act < 0.8 and names:
            queue.remove(chance.choice(names))
        elif act < 0.95:
            self._sweep(queue)
        elif act < 0.955:
            queue.forget()

    def _sweep(self, queue: RetryQueue) -> None:
        places = list(queue.entries.values())
        tested = places if self.chance.random() < 0.7 else places[: self.chance.randrange(len(places) + 1)]
        for entry in tested:
            if queue.attempt(entry) + 1 >= ATTEMPTS or self.chance.random() < 0.05:
                queue.remove(entry.name)
        if tested is places:
            queue.swept()
        elif tested:
            queue.swept_up_to(tested[-1])

    def _sets(self, sets: OpenSets) -> None:
        set_id, chance = f"set{self.chance.randrange(4)}", self.chance
        growing = sets.open(set_id)
        if growing is not None and chance.random() < 0.2:
            sets.close(set_id)
            return
        growing = growing or sets.begin(set_id, self.offset)
        if chance.random() < 0.3:
            sets.put(msgspec.structs.replace(growing, tops=growing.tops + 1))
        count = chance.randrange(8)
        if count:
            values = [k + self.offset_of_values for k in range(count)]
            numbers = np.array([[self.offset] * count, range(count), values, [5] * count], dtype=np.int64)
            series = [chance.choice([None, "x", "é"]) for _ in range(count)]
            sets.add(growing, numbers, series, [f"q{k}" for k in range(count)])

    def _mutes(self, mutes: Mutes) -> None:
        series = f"é{self.chance.randrange(30)}"
        if self.chance.random() < 0.8:
            known = series in mutes.entries
            assert mutes.add(series, self.offset) is known
        elif mutes.entries:
            mutes.remove(self.chance.choice(list(mutes.entries)))

    def commit(self) -> None:
        """Make durable what changed."""
        limit = self.journal.pending_bytes + queue_journal.SLACK
        changes = self.journal.save()
        assert sum(len(data or b"") for data in changes.values()) <= limit
        self.lengths += [(key, -1 if data is None else len(data)) for key, data in changes.items()]
        put_into(self.records, changes)

    def restart_and_check(self) -> None:
        """Lose what is in memory, which is what was committed last, and compare with what was never stored."""
        self.journal, self.queues = loaded(self.records)
        assert self.queues.keys() <= self.plain.keys()
        for name, plain in self.plain.items():
            queue = self.queues.get(name)
            if queue is None:
                assert not plain.entries
                assert not isinstance(plain, RetryQueue) or not plain.count
            else:
                assert waiting(queue) == waiting(plain)
                assert queue.waiting == plain.waiting
                assert list(queue.entries) == list(plain.entries)
                for entry, other in zip(queue.entries.values(), plain.entries.values(), strict=True):
                    assert not isinstance(entry, Waiting) or queue.attempt(entry) == plain.attempt(other)
                    assert entry == other or isinstance(entry, Waiting)


def history(seed: int, steps: int = 400, **options: int) -> World:
    """Play a history with commits and restarts at random places, comparing at each restart."""
    world = World(seed, **options)
    often = world.chance.choice([0.05, 0.3, 0.9])
    for _ in range(steps):
        world.step()
        if world.chance.random() < often:
            world.commit()
            if world.chance.random() < 0.1:
                world.restart_and_check()
    world.commit()
    world.restart_and_check()
    return world


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(25))
def test_a_queue_that_is_stored_and_read_again_is_the_one_that_never_was(seed: int) -> None:
    history(seed)


@pytest.mark.parametrize("seed", range(5))
def test_so_is_one_in_records_of_the_usual_size(seed: int) -> None:
    history(seed, 1000)


@given(st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
def test_the_length_of_no_record_depends_on_a_value(seed: int) -> None:
    lengths = history(seed, 150).lengths
    assert history(seed, 150, offset_of_values=2**46).lengths == lengths
    assert history(seed, 150, offset_of_values=-(2**46)).lengths == lengths


def _never_dropped(original: Any) -> Any:
    def write(self: Any, queue: Any, *entry: Any, gone: Any = ()) -> None:
        queue.dropped = False
        original(self, queue, *entry, gone=gone)

    return write


def _still_there(original: Any) -> Any:
    def remove(self: Any, name: Any) -> Any:
        entry = original(self, name)
        self.gone.remove(entry.number)
        return entry

    return remove


def _late(original: Any) -> Any:
    """Let what changed be kept where its first line is."""

    def put(self: Any, entry: Any) -> None:
        known = entry.name in self.entries and entry.name not in self.touched
        original(self, entry)
        if known:
            del self.touched[entry.name]

    return put


def _without_rounds(original: Any) -> Any:
    def loaded(self: QueueJournal) -> Iterator[Queue[Any]]:
        for queue in original(self):
            queue.sweeps = 0
            yield queue

    return loaded


MUTANTS = {
    "loses removals": (Queue, "remove", _still_there),
    "loses drops": (queue_journal._Writer, "write", _never_dropped),
    "loses replacements": (Queue, "put", _late),
    "loses all rounds": (QueueJournal, "loaded", _without_rounds),
    "deletes a record in which something lives": (
        queue_journal._Stored,
        "entries",
        lambda _: property(lambda self: [], lambda self, value: None),
    ),
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("mutant", sorted(MUTANTS))
def test_a_journal_that_is_broken_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, broken = MUTANTS[mutant]
    monkeypatch.setattr(owner, name, broken(getattr(owner, name)))
    with pytest.raises((AssertionError, UnreadableState, KeyError)):
        [history(seed) for seed in range(25)]


# -- size


def test_a_journal_stays_within_a_multiple_of_what_lives_and_writes_each_byte_twice_at_most() -> None:
    """A thousand queues of 20 series each: values are replaced all the time, so nearly all that is written is stale."""
    chance = random.Random(5)
    journal = QueueJournal()
    queues = [RetryQueue(journal, "m", f"dataset-{k}") for k in range(300)]
    records: dict[bytes, bytes] = {}
    written = appended = 0
    for offset in range(80_000):
        series = f"series-{chance.randrange(20)}"
        arrive(chance.choice(queues), series, offset, query_id=f"query-{offset}")
        if offset % 200 == 199:
            appended += sum(len(queue.touched) for queue in queues)
            changes = journal.save()
            written += sum(len(data or b"") + 130 for data in changes.values())
            put_into(records, changes)
            stored = sum(len(data) + 130 for data in records.values())
            assert stored == journal.size
            assert offset < 20_000 or stored <= 3 * journal.live + 2 * 65_536
    assert max(map(len, records.values())) <= queue_journal.RECORD_BYTES
    assert written / appended < 2 * 90, "a change is appended once, and written again at most once"


@pytest.mark.usefixtures("small")
def test_the_count_of_a_queue_in_which_nothing_waits_outlives_the_records_that_had_it() -> None:
    journal = QueueJournal()
    idle, busy = RetryQueue(journal, "m", "idle"), RetryQueue(journal, "m", "busy")
    arrive(idle, "x")
    idle.forget()
    records: dict[bytes, bytes] = {}
    for k in range(50):
        arrive(busy, "y", k)
        put_into(records, journal.save())
    assert b"w/0" not in records
    assert loaded(records)[1]["idle"].count == 1


def test_a_sweep_of_all_places_is_one_short_group() -> None:
    journal = QueueJournal()
    queue = RetryQueue(journal, "m", "dataset")
    for k in range(1000):
        arrive(queue, f"s{k}")
    assert sum(len(data or b"") for data in journal.save().values()) > 20_000
    queue.swept()
    assert sum(len(data or b"") for data in journal.save().values()) < 60


def test_records_in_which_nothing_lives_are_deleted_a_hundred_at_a_time(monkeypatch) -> None:
    monkeypatch.setattr(queue_journal, "_FLOOR", 10**9)
    journal = QueueJournal()
    queue = RetryQueue(journal, "m", "dataset")
    for k in range(150):
        arrive(queue, f"s{k}")
        journal.save()
    monkeypatch.setattr(queue_journal, "_FLOOR", 0)
    queue.forget()
    deleted = [sum(data is None for data in journal.save().values()) for _ in range(2)]
    assert deleted[0] == 100
    assert 0 < deleted[1] <= 52
    assert journal.live == 0


# -- what cannot be read


def _stored() -> dict[bytes, bytes]:
    world = World(1)
    for _ in range(60):
        world.step()
        world.commit()
    return world.records


def test_a_record_that_is_missing_between_others_is_named() -> None:
    records = _stored()
    keys = sorted(int(key[2:]) for key in records)
    del records[key_of(keys[3])]
    with pytest.raises(UnreadableState, match=rf"w/{keys[3]} is missing, w/{keys[4]} is there"):
        loaded(records)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda group: group[6].pop(0), r"m on dataset s are damaged: there is no line of set 1"),
        (lambda group: group[6][1].__setitem__(3, bytes(24)), r"damaged: its columns are not of one length"),
        (lambda group: group[6][1].__setitem__(4, []), r"damaged: its columns are not of one length"),
        (lambda group: group.__setitem__(0, 1), "holds an entry of another kind of queue"),
        (lambda group: group.__setitem__(0, 9), "cannot be decoded"),
    ],
)
def test_entries_that_do_not_fit_are_refused(change: Callable[[Any], object], said: str) -> None:
    journal = QueueJournal()
    sets = OpenSets(journal, "m", "s")
    sets.add(sets.begin("set", 0), np.zeros((4, 1), dtype=np.int64), ["x"], ["q"])
    ((key, data),) = journal.save().items()
    record = msgspec.msgpack.decode(data or b"")
    change(record[1][0])
    with pytest.raises(UnreadableState, match=said):
        loaded({key: msgspec.msgpack.encode(record)})


def test_records_do_not_show_their_numbers() -> None:
    for data in _stored().values():
        for group in msgspec.msgpack.decode(data, type=QueueRecord).groups:
            assert repr(group) == "QueueGroup()"
            assert all(repr(entry) == f"{type(entry).__name__}()" for entry in group.entries)
