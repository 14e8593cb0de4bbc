"""The loop of a source, without brokers: how much of a piece is looked at for each step."""

from __future__ import annotations

import pytest

from stream_svt.application.config import parse_config
from stream_svt.counting.applied import Applied
from stream_svt.counting.raw import Piece
from stream_svt.counting.source import SourceLoop
from stream_svt.protocol.records import OneRecord, Records
from stream_svt.sources.events import MOST_RECORDS
from tests.support.sources import WEB

COUNT = 20_000
STEP = 700


class Taking:
    """Takes `STEP` records of partition 0 at once; none from ``lacks`` on can be read."""

    def __init__(self, lacks: int = COUNT) -> None:
        self.lacks, self.at, self.looked, self.given = lacks, 0, list[int](), list[int]()

    def ranges(self) -> dict[int, tuple[int, int]]:
        return {0: (self.at, 2 * COUNT)} if self.at < 2 * COUNT else {}

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
    return SourceLoop(config.spec.sources[0], config, Applied(config))


# Every second offset has a record.
PIECE = Piece(0, Records.of(OneRecord(2 * number, 0, None, b"{}") for number in range(COUNT)), 2 * COUNT)


async def test_a_piece_is_looked_at_in_slices_and_not_all_its_rest_at_each_step(loop):
    counter = Taking()
    assert await loop._fold(counter, PIECE)
    assert counter.at == 2 * COUNT
    assert max(counter.looked) == max(counter.given) == MOST_RECORDS
    assert len(counter.given) <= 2 * COUNT / STEP
    assert loop.waits == ""


async def test_a_slice_ends_at_the_next_record_and_a_piece_at_its_own_end(loop):
    class TakingAll(Taking):
        def fold(self, _: int, records: Records, next_offset: int) -> int:
            self.given.append(next_offset)
            self.at = next_offset
            return next_offset

    counter = TakingAll()
    assert await loop._fold(counter, PIECE)
    assert counter.given == [*range(2 * MOST_RECORDS, 2 * COUNT, 2 * MOST_RECORDS), 2 * COUNT]


async def test_schemas_behind_a_slice_that_waits_are_asked_for_too(loop):
    counter = Taking(lacks=5)
    assert await loop._fold(counter, PIECE)
    assert counter.at == 2 * 5
    assert counter.looked == [MOST_RECORDS, MOST_RECORDS, COUNT - 5]
    assert loop.waits == "no schema"
    assert not await loop._fold(counter, PIECE)
