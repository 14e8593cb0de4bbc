"""Commands are done in order and once; pausing does not wait for a replay."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from stream_svt.monitor.commands import Action, Command
from stream_svt.protocol.controls import COMMAND_LIMIT, Controls, parse


@dataclass
class Record:
    offset: int
    value: bytes | None


def record(offset: int, action: str) -> Record:
    return Record(offset, b'{"id":"%d","action":"%s"}' % (offset, action.encode()))


def test_after_the_replay_everything_is_due_in_order() -> None:
    controls = Controls(3)
    controls.add([record(3, "close"), record(5, "pause"), record(6, "resample")])
    assert [offset for offset, _ in controls.due(replayed=True)] == [3, 5, 6]


def test_before_the_replay_only_pause_resume_and_refusals_are_due() -> None:
    controls = Controls(0)
    controls.add([record(0, "raise-budget"), record(1, "pause"), Record(2, b"{"), record(3, "resume")])
    assert [offset for offset, _ in controls.due(replayed=False)] == [1, 2, 3]


def test_what_overtook_is_remembered_across_a_takeover() -> None:
    records = [record(0, "raise-budget"), record(1, "pause"), record(4, "resume"), record(5, "close")]
    controls = Controls(0)
    controls.add(records)
    controls.done(1)
    controls.done(4)
    assert controls.position == (0, [1, 4])
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


def test_a_command_is_found_by_its_action() -> None:
    controls = Controls(0)
    controls.add([record(0, "close"), record(2, "accept-loss")])
    assert controls.first(Action.ACCEPT_LOSS) == (2, Command(id="2", action=Action.ACCEPT_LOSS))
    assert controls.first(Action.PAUSE) is None


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
