"""Commands are done in order and once; only a pause that is to act now does not wait for a replay."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_svt.monitor.commands import Action, Command
from stream_svt.protocol.controls import (
    COMMAND_LIMIT,
    WAITING_BYTES,
    WAITING_LIMIT,
    Controls,
    Malformed,
    Runs,
    parse,
)
from stream_svt.protocol.journal import RECORD_LIMIT, Meta


@dataclass
class Record:
    offset: int
    value: bytes | None


def record(offset: int, action: str, *, now: bool = False) -> Record:
    return Record(offset, msgspec.json.encode(Command(id=str(offset), action=Action(action), now=now)))


def test_after_the_replay_everything_is_due_in_order() -> None:
    controls = Controls(3)
    controls.add([record(3, "close"), record(5, "pause"), record(6, "resample")])
    assert [offset for offset, _ in controls.due(replayed=True)] == [3, 5, 6]


def test_before_the_replay_only_a_pause_that_acts_now_and_refusals_are_due() -> None:
    controls = Controls(0)
    controls.add([record(0, "raise-budget"), record(1, "pause", now=True), Record(2, b"{")])
    controls.add([record(3, "resume"), record(4, "pause"), record(5, "close", now=True)])
    assert [offset for offset, _ in controls.due(replayed=False)] == [1, 2]


def test_what_overtook_is_remembered_across_a_takeover() -> None:
    records = [record(0, "raise-budget"), record(1, "pause"), record(4, "resume"), record(5, "close")]
    controls = Controls(0)
    controls.add(records)
    controls.done(1)
    controls.done(4)
    # 1 to 4, of which 2 and 3 were never commands.
    assert controls.position == (0, [1, -3])
    again = Controls(*controls.position)
    again.add(records)
    assert [offset for offset, _ in again.due(replayed=True)] == [0, 5]
    again.done(0)
    assert again.position == (5, [])
    again.done(5)
    assert again.position == (6, [])


def test_records_read_twice_count_once() -> None:
    controls = Controls(0)
    for _ in range(2):
        controls.add([record(0, "close")])
    controls.done(0)
    controls.add([record(0, "close")])
    assert controls.waiting == 0


def test_a_command_is_searched_by_its_action_and_what_else_comes_is_read_again() -> None:
    records = [record(0, "close"), Record(1, b"{"), record(2, "accept-loss"), record(3, "accept-loss")]
    controls = Controls(0)
    assert controls.search(records, Action.PAUSE) == (None, [(1, "command-not-json")])
    sought = (2, Command(id="2", action=Action.ACCEPT_LOSS))
    assert controls.search(records, Action.ACCEPT_LOSS) == (sought, [(1, "command-not-json")])
    assert controls.waiting == 0
    controls.done(2)
    assert controls.position == (0, [2])
    again, _ = Controls(*controls.position).search(records, Action.ACCEPT_LOSS)
    assert again is not None
    assert again[0] == 3
    controls.add(records)
    assert [offset for offset, _ in controls.due(replayed=True)] == [0, 1, 3]


def test_refused_commands_behind_a_waiting_one_do_not_make_the_books_grow() -> None:
    controls = Controls(0)
    controls.add([record(0, "resample")])
    for start in range(1, 60_000, 1_000):
        controls.add([Record(offset, b"x") for offset in range(start, start + 1_000)])
        for offset, _ in controls.due(replayed=False):
            controls.done(offset)
    assert controls.waiting == 1
    assert controls.position == (0, [1, -59_999])
    again = Controls(*controls.position)
    again.add([record(0, "resample"), *(Record(offset, b"x") for offset in range(1, 60_002))])
    assert [offset for offset, _ in again.due(replayed=True)] == [0, 60_001]


class Counted(int):
    """An offset that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) < int(other)

    def __gt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) > int(other)


def test_a_flood_of_refused_records_costs_each_of_them_the_same() -> None:
    def comparisons(flood: int) -> int:
        Counted.compared = 0
        controls = Controls(0)
        controls.add([record(Counted(0), "resample")])
        controls.add([Record(Counted(offset), b"x") for offset in range(1, flood + 1)])
        for offset, _ in controls.due(replayed=False):
            controls.done(offset)
        assert controls.position == (0, [1, 1 - flood])
        return Counted.compared

    few, many = comparisons(100), comparisons(2_000)
    assert many <= 21 * few


def test_only_so_many_commands_wait_and_the_rest_is_refused() -> None:
    controls = Controls(0)
    refused = controls.add([record(offset, "resample") for offset in range(WAITING_LIMIT + 2)])
    assert refused == [(WAITING_LIMIT, "command-too-many"), (WAITING_LIMIT + 1, "command-too-many")]
    controls.done(5)
    assert controls.add([record(WAITING_LIMIT + 2, "resample")]) == []
    long = Record(0, b'{"id":"' + b"i" * 60_000 + b'","action":"close"}')
    controls = Controls(0)
    refused = controls.add([replace(long, offset=offset) for offset in range(1_000)])
    assert 1_000 - len(refused) == WAITING_BYTES // len(long.value or b"")


def test_a_record_of_nothing_but_waiting_commands_and_refusals_fits_into_the_books() -> None:
    """The worst that can stand in `control_ahead`: every other record is done, at offsets as long as Kafka has them."""
    first = (1 << 63) - 4 * WAITING_LIMIT
    controls = Controls(first)
    records = [
        record(first + place, "resample") if place % 2 else Record(first + place, b"x")
        for place in range(2 * WAITING_LIMIT)
    ]
    controls.add(records)
    for offset, _ in controls.due(replayed=False):
        controls.done(offset)
    following, ahead = controls.position
    meta = Meta(
        partitions=1, noise_key=bytes(32), digest_key=bytes(32), control_next=following, control_ahead=ahead
    )
    assert controls.waiting == WAITING_LIMIT
    assert len(msgspec.msgpack.encode(meta)) < RECORD_LIMIT / 4


@given(st.sets(st.integers(0, 60)), st.lists(st.integers(-(1 << 63), (1 << 64) - 1)))
def test_offsets_survive_packing_and_no_forged_numbers_raise(offsets: set[int], forged: list[int]) -> None:
    packed = Runs((offset, offset + 1) for offset in offsets).packed
    found = Runs.unpacked(packed)
    assert {offset for offset in range(62) if offset in found} == offsets
    assert Runs.unpacked(sorted(offsets)).packed == packed
    msgspec.msgpack.encode(Runs.unpacked(forged).packed)


@pytest.mark.parametrize(
    "value", [b'{"id":"\xff"}', b'{"id":' + b"[" * 60_000, b'{"x":' + b"[" * 60_000, b"[" * 60_000]
)
def test_a_poisoned_command_is_refused_in_a_fixed_word(value: bytes) -> None:
    assert parse(value) in set(Malformed)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "empty"),
        (b"", "not-json"),
        (b"\xff", "not-json"),
        (b"[]", "field"),
        (b'{"id":"a"}', "field"),
        (b'{"id":"a","action":"secret"}', "field"),
        (b'{"id":"a","action":"pause","secret":1}', "field"),
        (b" " * (COMMAND_LIMIT + 1), "too-large"),
    ],
)
def test_what_is_no_command_gets_a_reason_without_its_content(value: bytes | None, reason: str) -> None:
    found = parse(value)
    assert isinstance(found, str)
    assert reason in found
    assert "secret" not in found
