"""The journal of queues: its size, and what it refuses; `test_takeover` compares what is read back."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from stream_svt.errors import UnreadableState
from stream_svt.monitor.state import queue_journal
from stream_svt.monitor.state.queue_journal import Queue, QueueJournal, record_key
from stream_svt.monitor.state.snapshot import Waiting
from stream_svt.monitor.takeover import KINDS
from stream_svt.monitor.testing.retry import RetryQueue
from stream_svt.monitor.testing.sweep import OpenSets
from tests.support.monitor_forms import make_small


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


def arrive(queue: RetryQueue, series: str, offset: int = 0, query_id: str = "q") -> None:
    """Enqueue a query of a series, or update the entry of the series."""
    queue.count += 1
    entry = Waiting(queue.count, offset, 0, bytes(8), 5, offset, offset, queue.sweeps, series, query_id)
    known = queue.entries.get(series)
    queue.put(entry if known is None else msgspec.structs.replace(entry, number=known.number))


# -- size


def test_a_journal_stays_within_a_multiple_of_its_live_size_and_writes_each_byte_at_most_twice() -> None:
    """A thousand queues of 20 series each: values are replaced all the time, so nearly every byte is stale."""
    chance = random.Random(5)
    journal = QueueJournal()
    queues = [RetryQueue(journal, "m", f"dataset-{k}") for k in range(300)]
    records: dict[bytes, bytes] = {}
    written = appended = 0
    for offset in range(80_000):
        series = f"series-{chance.randrange(20)}"
        arrive(chance.choice(queues), series, offset, f"query-{offset}")
        if offset % 200 == 199:
            appended += sum(len(queue.unsaved) for queue in queues)
            changes = journal.save()
            written += sum(len(data or b"") + 130 for data in changes.values())
            put_into(records, changes)
            stored = sum(len(data) + 130 for data in records.values())
            assert stored == journal.size
            assert offset < 20_000 or stored <= 3 * journal.live + 2 * 65_536
    assert max(map(len, records.values())) <= queue_journal.RECORD_BYTES
    assert written / appended < 2 * 90, "a change is appended once, and written again at most once"


def test_entries_of_many_queues_that_all_stay_are_written_once() -> None:
    chance, journal = random.Random(5), QueueJournal()
    queues = [RetryQueue(journal, "a-monitor", f"dataset-{k}") for k in range(3_000)]
    written = 0
    for save in range(40):
        for k in range(500):
            arrive(chance.choice(queues), f"{save}-{k}")
        changes = journal.save()
        assert None not in changes.values()
        written += sum(len(data or b"") for data in changes.values())
    assert written > 10 * queue_journal.RECORD_BYTES


def test_the_counts_of_many_empty_queues_are_not_written_again_with_every_save() -> None:
    journal, records = QueueJournal(), {}
    queues = [RetryQueue(journal, "m", f"dataset-{k}") for k in range(3_000)]
    for queue in queues:
        arrive(queue, "x")
    put_into(records, journal.save())
    for queue in queues:
        queue.clear()
    put_into(records, journal.save())
    for k in range(100):
        put_into(records, journal.save())
        arrive(queues[k], "x")
        queues[k].clear()
    changes = [journal.save()]
    for k in range(20):
        arrive(queues[k], "x")
        queues[k].clear()
        changes.append(journal.save())
    assert sum(len(data or b"") for each in changes for data in each.values()) < 5_000
    for each in changes:
        put_into(records, each)
    again, found = loaded(records)
    assert again.live == journal.live
    assert [found[queue.dataset].count for queue in queues] == [queue.count for queue in queues]


def test_the_count_of_an_empty_queue_outlives_its_records(monkeypatch) -> None:
    make_small(monkeypatch)
    journal = QueueJournal()
    idle, busy = RetryQueue(journal, "m", "idle"), RetryQueue(journal, "m", "busy")
    arrive(idle, "x")
    idle.clear()
    records: dict[bytes, bytes] = {}
    for k in range(50):
        arrive(busy, "y", k)
        put_into(records, journal.save())
    assert b"w/0" not in records
    assert loaded(records)[1]["idle"].count == 1


@pytest.mark.parametrize("removed", [1, 2, 3, 5, 40])
def test_removals_and_new_entries_of_one_save_are_read_back_from_short_records(removed, monkeypatch) -> None:
    make_small(monkeypatch)
    journal, records = QueueJournal(), {}
    queue = RetryQueue(journal, "m", "d")
    for number in range(40):
        arrive(queue, f"s{number}")
    put_into(records, journal.save())
    for number in range(removed):
        queue.remove(f"s{number}")
        arrive(queue, f"t{number}", query_id="q" * 30)
    put_into(records, journal.save())
    (found,) = loaded(records)[1].values()
    assert found.entries == queue.entries
    assert max(map(len, records.values())) <= queue_journal.RECORD_BYTES


def test_a_sweep_of_all_entries_is_one_short_group() -> None:
    journal = QueueJournal()
    queue = RetryQueue(journal, "m", "dataset")
    for k in range(1000):
        arrive(queue, f"s{k}")
    assert sum(len(data or b"") for data in journal.save().values()) > 20_000
    queue.count_sweep()
    assert sum(len(data or b"") for data in journal.save().values()) < 60


def test_records_without_live_entries_are_deleted_a_hundred_at_a_time(monkeypatch) -> None:
    monkeypatch.setattr(queue_journal, "_FLOOR", 10**9)
    journal = QueueJournal()
    queue = RetryQueue(journal, "m", "dataset")
    for k in range(150):
        arrive(queue, f"s{k}")
        journal.save()
    monkeypatch.setattr(queue_journal, "_FLOOR", 0)
    queue.clear()
    deleted = [sum(data is None for data in journal.save().values()) for _ in range(2)]
    assert deleted[0] == 100
    assert 0 < deleted[1] <= 52
    assert journal.live == queue.group_bytes
    queue.drop()
    journal.save()
    assert journal.live == 0


# -- what cannot be read


def _stored() -> dict[bytes, bytes]:
    journal = QueueJournal()
    queue = RetryQueue(journal, "m", "dataset")
    records: dict[bytes, bytes] = {}
    for k in range(9):
        arrive(queue, f"s{k}")
        put_into(records, journal.save())
    return records


def test_a_record_that_is_missing_between_others_is_named() -> None:
    records = _stored()
    del records[record_key(3)]
    with pytest.raises(UnreadableState, match="w/3 is missing, w/4 is there"):
        loaded(records)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda group: group[6].pop(0), r"m on dataset s are damaged: the entry of set 1 is missing"),
        (
            lambda group: group[6][1].__setitem__(3, bytes(24)),
            r"damaged: the columns of a block differ in length",
        ),
        (lambda group: group[6][1].__setitem__(4, []), r"damaged: the columns of a block differ in length"),
        (lambda group: group.__setitem__(0, 1), "holds an entry of another kind of queue"),
        (lambda group: group.__setitem__(0, 9), "cannot be decoded"),
    ],
)
def test_entries_that_do_not_fit_are_refused(change: Callable[[Any], object], message: str) -> None:
    journal = QueueJournal()
    sets = OpenSets(journal, "m", "s")
    sets.add(sets.begin("set", 0), np.zeros((4, 1), dtype=np.int64), ["x"], ["q"])
    ((key, data),) = journal.save().items()
    record = msgspec.msgpack.decode(data or b"")
    change(record[1][0])
    with pytest.raises(UnreadableState, match=message):
        loaded({key: msgspec.msgpack.encode(record)})
