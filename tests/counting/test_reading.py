"""The loop of a source, without brokers: the clock gets its turn, and nothing is read or looked at twice."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from stream_svt.application.config import parse_config
from stream_svt.counting import source as module
from stream_svt.counting.applied import Applied
from stream_svt.counting.raw import Piece
from stream_svt.counting.source import SourceLoop
from stream_svt.protocol.records import OneRecord, Records
from stream_svt.sources.events import MOST_RECORDS
from tests.support.sources import WEB

COUNT = 9
"""Records of each of three partitions, at offsets from 0 on."""
MANY, STEP = 20_000, 700
"""Records of one partition, at every second offset, and how many of them are taken at once."""
PIECE = Piece(0, Records.of(OneRecord(2 * number, 0, None, b"{}") for number in range(MANY)), 2 * MANY)


class Raw:
    """A raw topic that gives everything at once, and notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[dict[int, tuple[int, int]]] = []

    async def read(self, begins: Mapping[int, int], _: float) -> list[Piece]:
        self.asked.append(dict(begins))
        return [
            Piece(n, Records.of(OneRecord(at, 0, None, b"{}") for at in range(begin, COUNT)), COUNT)
            for n, begin in begins.items()
        ]


class Slow:
    """A counter that folds a record in 40 ms, and lacks the schema of partition 1 at first."""

    def __init__(self) -> None:
        self.at = dict.fromkeys(range(3), 0)
        self.lacks, self.folded, self.end = "", list[tuple[int, int]](), COUNT
        self.looked: list[int] = []

    def ranges(self) -> dict[int, tuple[int, int]]:
        return {n: (at, self.end) for n, at in self.at.items() if at < self.end}

    def lack(self, records: Records) -> tuple[int, str]:
        self.looked.append(int(records.offset.max(initial=-1)))
        lacks = self.lacks and self.now == 1
        return (0, self.lacks) if lacks else (len(records), "")

    def fold(self, partition: int, records: Records, until: int) -> int:
        if not len(records):
            return self.at[partition]
        time.sleep(0.04)  # as work does
        self.folded.append((partition, int(records.offset[0])))
        self.at[partition] = min(int(records.offset[0]) + 1, until)
        return self.at[partition]


class Taking:
    """Takes `STEP` records of partition 0 at once; none from ``lacks`` on can be read."""

    def __init__(self, lacks: int = MANY) -> None:
        self.lacks, self.at, self.looked, self.given = lacks, 0, list[int](), list[int]()

    def ranges(self) -> dict[int, tuple[int, int]]:
        return {0: (self.at, 2 * MANY)} if self.at < 2 * MANY else {}

    def lack(self, records: Records) -> tuple[int, str]:
        self.looked.append(len(records))
        count = int((records.offset < 2 * self.lacks).sum())
        return count, "" if count == len(records) else "no schema"

    def fold(self, _: int, records: Records, next_offset: int) -> int:
        assert records.offset.tolist()[:1] in ([], [self.at])
        self.given.append(len(records))
        self.at = int(records.offset[STEP]) if len(records) > STEP else next_offset
        return self.at


@pytest.fixture
def loop() -> SourceLoop:
    config = parse_config(WEB)
    made = SourceLoop(config.spec.sources[0], config, Applied(config))
    made._raw = Raw()
    return made


async def test_the_clock_gets_its_turn_within_a_part_of_a_second_however_much_there_is_to_fold(loop):
    counter, turns = Slow(), 0
    while counter.ranges():
        began = len(counter.folded)
        assert await loop._read(counter)
        turns += 1
        assert len(counter.folded) - began <= module.FOLDED_WITHIN / 0.04 + 1
    assert turns >= 3 * COUNT * 0.04 / (module.FOLDED_WITHIN + 0.04)
    assert sorted(counter.folded) == [(n, at) for n in range(3) for at in range(COUNT)]
    asked = [(n, begin) for begins in loop._raw.asked for n, begin in begins.items()]
    assert sorted(asked) == [(n, 0) for n in range(3)]  # what was read waits for its turn


async def test_what_lies_beyond_a_look_waits_for_the_next_one_and_is_not_read_again(loop):
    counter = Slow()
    for counter.end in (3, 4):
        while counter.ranges():
            await loop._read(counter)
        assert not await loop._read(counter)
    assert sorted(counter.folded) == [(n, at) for n in range(3) for at in range(4)]
    assert loop._raw.asked == [dict.fromkeys(range(3), 0)]
    assert max(counter.looked) == 3, "nor is a schema asked for that only later records need"


def test_batches_that_are_left_out_are_logged_once_in_a_while(loop, caplog):
    counter = SimpleNamespace(late_records=0, parked=None)
    for loop._raw.dropped in (0, 2, 2, 3):
        loop._show(counter)
    assert [record.getMessage() for record in caplog.records] == [
        "event=batches_unreadable source=requests batches=2"
    ]


async def test_a_schema_that_one_partition_lacks_is_shown_and_holds_up_no_other(loop, monkeypatch):
    counter = Slow()
    counter.lacks = "schema 7 is being fetched"
    fold = SourceLoop._fold

    async def noted(loop, counter, piece, *rest):
        counter.now = piece.partition
        return await fold(loop, counter, piece, *rest)

    monkeypatch.setattr(SourceLoop, "_fold", noted)
    monkeypatch.setattr(module, "FOLDED_WITHIN", 60)
    assert await loop._read(counter)
    assert loop.waits == counter.lacks
    assert counter.at == {0: COUNT, 1: 0, 2: COUNT}
    assert not await loop._read(counter)
    counter.lacks = ""
    assert await loop._read(counter)
    assert (counter.at[1], loop.waits) == (COUNT, "")


async def test_a_piece_is_looked_at_in_slices_and_not_all_its_rest_at_each_step(loop):
    counter = Taking()
    assert await loop._fold(counter, PIECE)
    assert counter.at == 2 * MANY
    assert max(counter.looked) == max(counter.given) == MOST_RECORDS
    assert len(counter.given) <= 2 * MANY / STEP
    assert loop.waits == ""


async def test_a_slice_ends_at_the_next_record_and_a_piece_at_its_own_end(loop):
    class TakingAll(Taking):
        def fold(self, _: int, records: Records, next_offset: int) -> int:
            self.given.append(next_offset)
            self.at = next_offset
            return next_offset

    counter = TakingAll()
    assert await loop._fold(counter, PIECE)
    assert counter.given == [*range(2 * MOST_RECORDS, 2 * MANY, 2 * MOST_RECORDS), 2 * MANY]


async def test_schemas_behind_a_slice_that_waits_are_asked_for_too(loop):
    counter = Taking(lacks=5)
    assert await loop._fold(counter, PIECE)
    assert counter.at == 2 * 5
    assert counter.looked == [MOST_RECORDS, MOST_RECORDS, MANY - 5]
    assert loop.waits == "no schema"
    assert not await loop._fold(counter, PIECE)
