"""Of all commands that name one number at most one is carried out, whatever is read, how often, and in which order."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_svt.monitor.operations import ID_LENGTH, Action, Command, CommandProgress
from stream_svt.protocol.controls import (
    CLOCK_KEY,
    COMMAND_LIMIT,
    CommandPhase,
    CommandState,
    Controls,
    Refusal,
    Repeated,
    accept_all,
    decode_command,
)
from tests.simulation.log import Entry

STATE = "5e"
NOW, LATER = 1_000, 2_000
sent = partial(Entry, "control", timestamp=0, key=None)


def record(offset: int, number: int, action: str = "close", /, **fields: Any) -> Entry:
    command = Command(
        **{"id": f"at-{offset}", "dataset": "d", "state": STATE, "expires": LATER} | fields,
        action=Action(action),
        number=number,
    )
    return sent(offset=offset, value=msgspec.json.encode(command))


def carry_out(controls: Controls, *records: Entry, phase: CommandPhase = CommandPhase.OPEN) -> list[str]:
    """Do what a shard does with records at one barrier; return what happened to each."""
    happened = []
    for one in records:
        if (waited := controls.ready(phase, NOW)) is not None:
            happened.append(f"done {waited.id}")
            controls.consume_number(waited, accepted=True)
        found = controls.read(one, phase)
        if isinstance(found, Command):
            happened.append(f"done {found.id}")
            if (stale := controls.consume_number(found, accepted=True)) is not None:
                happened.append(f"stale at-{stale}")
        elif isinstance(found, Repeated):
            happened.append(f"repeated {found.command.id}")
        elif found is not None:
            happened.append(found)
    return happened


def test_only_the_next_number_of_this_state_is_carried_out() -> None:
    controls = Controls(CommandState(number=4, id="old"), STATE)
    expected = [
        (record(0, 4), Refusal.STALE),
        (record(1, 6), Refusal.AHEAD),
        (record(2, 5, state="other"), Refusal.OTHER_STATE),
        (record(3, 5), "done at-3"),
        (record(4, 5), Refusal.STALE),
        (record(5, 6), "done at-5"),
        (record(6, 1), Refusal.STALE),
    ]
    assert carry_out(controls, *(sent for sent, _ in expected)) == [happened for _, happened in expected]
    assert (controls.snapshot.number, controls.snapshot.id, controls.snapshot.next) == (6, "at-5", 7)


def test_the_last_command_once_more_is_answered_and_not_carried_out() -> None:
    controls = Controls(CommandState(), STATE)
    again = replace(record(0, 1), offset=1)
    assert carry_out(controls, record(0, 1), again) == ["done at-0", "repeated at-0"]
    later = Controls(controls.snapshot, STATE)
    assert carry_out(later, replace(again, offset=2), record(3, 2)) == ["repeated at-0", "done at-3"]
    assert carry_out(later, replace(again, offset=4)) == [Refusal.STALE]
    found = Controls(CommandState(number=1, id="x", accepted=False), STATE).read(
        record(0, 1, id="x"), CommandPhase.OPEN
    )
    assert isinstance(found, Repeated) and not found.stored.accepted  # noqa: PT018


def test_before_the_replay_a_command_waits_and_what_names_its_number_later_is_stale() -> None:
    controls = Controls(CommandState(), STATE)
    assert carry_out(controls, record(7, 1), record(8, 1), record(9, 2), phase=CommandPhase.REPLAY) == [
        Refusal.STALE,
        Refusal.AHEAD,
    ]
    assert controls.snapshot.next == 7
    assert carry_out(controls, record(10, 2), phase=CommandPhase.OPEN) == ["done at-7", "done at-10"]
    assert controls.snapshot.next == 11


def test_a_pause_now_takes_the_number_of_a_command_that_waits() -> None:
    controls = Controls(CommandState(), STATE)
    found = carry_out(
        controls, record(0, 1, "resample"), record(1, 1, "pause", now=True), phase=CommandPhase.REPLAY
    )
    assert found == ["done at-1", "stale at-0"]
    assert controls.ready(CommandPhase.OPEN, NOW) is None
    assert controls.snapshot.next == 2


@pytest.mark.parametrize(
    ("action", "fields"),
    [
        ("pause", {"dataset": "d"}),
        *((action, {"dataset": ""}) for action in ("close-application", "withdraw")),
    ],
)
def test_a_command_that_names_several_datasets_names_nothing_else(
    action: str, fields: dict[str, str]
) -> None:
    controls = Controls(CommandState(), STATE)
    wrong = record(0, 1, action, datasets=["a", "b"], **fields)
    assert controls.read(wrong, CommandPhase.OPEN) == Refusal.BAD_FIELD
    right = controls.read(record(1, 1, "pause", datasets=["a", "b"], dataset=""), CommandPhase.OPEN)
    assert isinstance(right, Command)
    assert right.for_many


def test_nothing_else_is_carried_out_while_a_command_to_all_datasets_is_under_way() -> None:
    controls = Controls(CommandState(), STATE)
    for_all = controls.read(record(0, 1, "pause", dataset=""), CommandPhase.OPEN)
    assert isinstance(for_all, Command)
    assert for_all.for_many
    controls.consume_number(for_all, accepted=False, in_progress=CommandProgress(for_all))
    # Read again it is no command of its own, and a takeover goes on with it.
    assert carry_out(controls, record(1, 1, "pause", id="at-0", dataset=""), record(2, 2)) == []
    later = Controls(controls.snapshot, STATE)
    assert later.in_progress == CommandProgress(for_all)
    assert later.snapshot.next == 2
    assert carry_out(later, record(2, 2), record(3, 2, "pause", now=True)) == [Refusal.STALE]
    later.advance(CommandProgress(for_all, "d", done=1))
    later.end(accepted=True)
    assert (later.snapshot.accepted, later.in_progress) == (True, None)
    assert carry_out(later, record(4, 3)) == ["done at-2", "done at-4"]


def test_an_acceptance_leaves_a_command_to_all_datasets_under_way() -> None:
    for_all = Command("all", Action.PAUSE, state=STATE, number=1)
    controls = Controls(
        CommandState(number=1, id="all", in_progress=CommandProgress(for_all, "m", done=3)), STATE
    )
    accept = record(0, 2, "accept-loss", dataset="", topic="t")
    assert carry_out(controls, accept, phase=CommandPhase.LOSS) == ["done at-0"]
    assert controls.in_progress == CommandProgress(for_all, "m", done=3)
    controls.end(accepted=False)
    assert (controls.snapshot.number, controls.snapshot.accepted) == (2, True)


@pytest.mark.parametrize(
    ("stored", "first", "end", "place"), [(5, 0, 9, 5), (5, 5, 5, 5), (5, 0, 4, 0), (5, 7, 9, 7)]
)
def test_a_place_outside_of_the_partition_is_its_beginning(stored, first, end, place):
    controls = Controls(CommandState(next=stored), STATE)
    assert controls.begin_at(first, end) == place
    assert controls.snapshot.next == place


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from("abc"), st.sampled_from(["close", "pause"])), max_size=30
    ),
    st.data(),
)
def test_no_copy_reordering_or_takeover_carries_a_number_out_twice(sent, data):
    """Whatever stands on the partition, takeovers at any place and rereadings included."""
    stored, done = CommandState(), []
    records = [
        record(offset, number, action, id=name, now=action == "pause")
        for offset, (number, name, action) in enumerate(sent)
    ]
    for _ in range(data.draw(st.integers(1, 4))):
        controls = Controls(stored, STATE)
        controls.begin_at(*data.draw(st.sampled_from([(0, len(records)), (0, 0)])))
        phase = data.draw(st.sampled_from(list(CommandPhase)))
        for one in records[: data.draw(st.integers(0, len(records)))]:
            found = controls.ready(phase, NOW) or controls.read(one, phase)
            if isinstance(found, Command):
                assert found.number == controls.snapshot.number + 1
                if data.draw(st.booleans()):
                    break  # the owner dies before the transaction: neither number nor effect
                controls.consume_number(found, accepted=True)
                stored = controls.snapshot
                done.append(found.number)
    assert done == list(range(1, len(done) + 1))


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
        (b'{"id":"a","action":"pause","number":-1}', "field"),
        (b'{"id":"a","action":"pause","number":1,"state":"5e"}', "field"),
        (b'{"id":"a","action":"pause","number":1,"state":"5e","expires":-1}', "field"),
        (b'{"id":"a","action":"pause","state":"5e"}', "field"),
        (b'{"id":"a","action":"pause","number":1}', "field"),
        (b'{"id":"a","action":"pause","number":9223372036854775808}', "field"),
        (b'{"id":"' + b"a" * (ID_LENGTH + 1) + b'","action":"pause"}', "field"),
        (b" " * (COMMAND_LIMIT + 1), "too-large"),
        (b'{"id":"\xff"}', "not-json"),
        (b'{"id":' + b"[" * 60_000, "field"),
        (b'{"x":' + b"[" * 60_000, "field"),
        (b"[" * 60_000, "field"),
    ],
)
def test_what_is_no_command_gets_a_reason_without_its_content(value: bytes | None, reason: str) -> None:
    found = decode_command(sent(offset=0, value=value), accept_all)
    assert found in set(Refusal)
    assert reason in found
    assert "secret" not in found


def test_a_withdrawal_takes_the_number_of_the_command_that_waits_at_any_gate() -> None:
    for phase in CommandPhase:
        controls = Controls(CommandState(), STATE)
        found = carry_out(
            controls, record(0, 1), record(1, 1, "withdraw", expires=0), phase=CommandPhase.REPLAY
        )
        assert found == ["done at-1", "stale at-0"], phase
        assert (controls.snapshot.number, controls.snapshot.action) == (1, "withdraw")
        assert carry_out(controls, record(2, 1), record(3, 2)) == [Refusal.STALE, "done at-3"]


def test_a_command_that_will_be_withdrawn_waits_and_stays_stored_until_then() -> None:
    """So an owner that dies in between leaves the next one the command that the answer names."""
    records = [record(0, 1), record(1, 1, "pause", now=True), record(2, 1, "withdraw", expires=0)]
    for phase in CommandPhase:
        controls = Controls(CommandState(), STATE)
        for one in records:
            controls.note_withdrawal(one)
        assert carry_out(controls, *records[:2], phase=phase) == [Refusal.STALE]
        assert controls.ready(phase, NOW) is None
        assert controls.snapshot.next == 0
        assert carry_out(controls, records[2], phase=phase) == ["done at-2", "stale at-0"]


@pytest.mark.parametrize("wrong", [{"state": "other"}, {"number": 2}, {"number": 3}])
def test_a_withdrawal_of_another_number_or_state_holds_nothing_up(wrong: dict[str, Any]) -> None:
    controls = Controls(CommandState(), STATE)
    number = wrong.pop("number", 1)
    controls.note_withdrawal(record(1, number, "withdraw", **wrong))
    assert carry_out(controls, record(0, 1)) == ["done at-0"]


def test_a_withdrawal_that_nobody_signed_who_may_holds_nothing_up() -> None:
    controls = Controls(CommandState(), STATE, lambda record: Refusal.UNSIGNED if record.offset else None)
    controls.note_withdrawal(record(1, 1, "withdraw"))
    assert carry_out(controls, record(0, 1), record(1, 1, "withdraw")) == ["done at-0", Refusal.UNSIGNED]


def test_an_expired_command_leaves_its_gate_and_no_other_does() -> None:
    controls = Controls(CommandState(), STATE)
    assert carry_out(controls, record(0, 1), phase=CommandPhase.REPLAY) == []
    assert controls.ready(CommandPhase.REPLAY, LATER) is None
    found = controls.ready(CommandPhase.REPLAY, LATER + 1)
    assert found is not None
    controls.consume_number(found, accepted=False, expired=True)
    assert (controls.snapshot.number, controls.snapshot.outcome) == (1, "had expired")


def test_a_sender_may_ask_for_the_brokers_time_without_a_trace() -> None:
    controls = Controls(CommandState(), STATE)
    asked = Entry("control", timestamp=0, key=CLOCK_KEY, offset=0, value=b"")
    assert controls.read(asked, CommandPhase.OPEN) is None
    assert controls.snapshot.next == 1
    assert controls.read(replace(asked, offset=1, value=b"{}"), CommandPhase.OPEN) == Refusal.BAD_FIELD
