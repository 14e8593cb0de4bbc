"""Commands on a modelled log: to all datasets in slices and over takeovers, and what nobody may do with old ones."""

from __future__ import annotations

import logging
from dataclasses import replace

import msgspec
import pytest

from stream_svt.monitor.operations import Action
from stream_svt.monitor.released import EventType
from stream_svt.protocol.command_reader import REPORTED
from tests.simulation.log import finish, lived
from tests.simulation.model import MANY, SPEC_OF_MANY, Model, has, nth


def refused(model: Model) -> list[bytes | None]:
    return [entry.value for entry in model.broker.read("rejects")]


@pytest.fixture
def model(few_at_once: None) -> Model:
    made = Model(SPEC_OF_MANY)
    made.serve()
    return made


def test_a_command_to_all_datasets_is_answered_once_with_what_came_of_it(model: Model) -> None:
    model.command("one", action=Action.PAUSE, dataset="d007")
    model.serve()
    model.command("all", action=Action.PAUSE)
    model.serve()
    paused = [event["dataset"] for event in model.told(EventType.PAUSED)]
    assert paused == ["d007", *(name for name in MANY if name != "d007")]
    why = "monitor 'm0' on dataset 'd007' is already paused; nothing was changed"
    assert model.replies()[1:] == [("accepted", 2, f"pause carried out on 59 datasets, refused on 1: {why}")]
    assert model.last_command()[1] == 2


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", range(2, 10))
def test_a_takeover_goes_on_with_a_command_to_all_datasets_and_does_nothing_twice(model, number, after):
    model.command("all", action=Action.CLOSE)
    model.dies_at(nth(number), after=after)
    model.serve(2)
    assert [event["dataset"] for event in model.told(EventType.RUN_CLOSED)] == MANY
    assert model.replies() == [("accepted", 1, "close carried out on 60 datasets, refused on 0")]
    assert model.last_command()[1] == 1


@pytest.mark.parametrize("slices", [2, 4, 5])
def test_a_takeover_replays_lost_tests_before_it_goes_on_with_a_command_to_all_datasets(model, slices):
    """A run that it closed before would end without the top that a dead owner has found in it."""
    last = MANY[-1]
    model.send(1, "low", dataset=last, value=0)
    model.serve()
    model.command("all", action=Action.CLOSE)
    late = lambda number: number == slices and model.send(1, "high", dataset=last)  # noqa: E731
    model.dies_at(has(EventType.ALERT), feed=model.feed(rounds=99, most=5, hook=late))
    assert 0 < len(model.told(EventType.RUN_CLOSED)) < len(MANY)
    model.serve(3)
    about = [event["type"] for event in model.events if event["data"]["dataset"] == last]
    assert about[-2:] == [EventType.ALERT, EventType.RUN_CLOSED]
    assert len(model.told(EventType.RUN_CLOSED)) == len(MANY)


def test_queries_are_tested_between_two_slices_of_a_command_to_all_datasets(model: Model) -> None:
    model.command("all", action=Action.PAUSE)
    late = lambda number: number == 2 and model.send(3, "late", dataset=MANY[-1])  # noqa: E731
    model.serve_a_while(12, late, interval="100ms")
    kinds = [event["type"] for event in model.events]
    last = len(kinds) - 1 - kinds[::-1].index(EventType.PAUSED)
    assert kinds.index(EventType.RUN_STARTED) < last


def test_where_no_monitor_that_is_meant_runs_a_command_to_all_is_refused(model: Model) -> None:
    model.command("all", action=Action.PAUSE, monitor="m7")
    model.serve()
    message = "no such monitor runs on a dataset of shard 0; nothing was changed"
    assert model.replies() == [("refused", 1, message)]
    assert model.last_command()[1] == 1


def test_a_flood_of_refused_commands_holds_up_nothing_and_names_a_few(model, caplog):
    state, _ = model.last_command()
    before = len(msgspec.msgpack.encode(model.stored_meta().commands))
    for number in range(3_000):
        wrong = {"number": 5} if number % 2 else {"state": "00"}
        text = {"id": f"f{number}", "action": "resample", "dataset": "d000", "state": state, "number": 1}
        model.broker.write("control", None, msgspec.json.encode(text | wrong) if number % 5 else b"{")
    sent = model.command("pause", action=Action.PAUSE, dataset="d000")
    model.send(1, "high", dataset="d001")
    with caplog.at_level(logging.WARNING):
        model.serve()
    assert [reason for reason, *_ in model.replies()] == ["accepted"]
    assert [event["dataset"] for event in model.told(EventType.ALERT)] == ["d001"]
    assert REPORTED < len(refused(model)) <= REPORTED + 60  # the model's clock goes on while it works
    assert len([record for record in caplog.records if "command" in record.message]) <= REPORTED + 80
    found = model.stored_meta().commands
    assert (found.number, found.id) == (1, sent.id)
    assert len(msgspec.msgpack.encode(found)) < before + 20


def test_a_flood_of_copies_of_the_last_command_is_answered_a_few_times(model: Model) -> None:
    sent = model.command("pause", action=Action.PAUSE, dataset="d000")
    for _ in range(1_000):
        model.broker.write("control", None, msgspec.json.encode(sent))
    model.serve()
    assert len(model.told(EventType.PAUSED)) == 1
    assert 1 < len(model.replies()) <= REPORTED + 60
    assert model.replies()[1] == ("accepted", 1, "it was carried out before")


# --- expiry and withdrawal


def outcomes(model: Model) -> list[tuple[str, int]]:
    return [(reason, number) for reason, number, _ in model.replies()]


def test_a_command_that_nobody_came_to_in_time_changes_nothing_uses_its_number_up_and_says_so(model):
    sent = model.command("late", action=Action.CLOSE, dataset="d007", expires=int(model.now * 1000) + 30_000)
    model.now += 31
    model.serve()
    assert model.told(EventType.RUN_CLOSED) == []
    [(reason, number, message)] = model.replies()
    assert (reason, number) == ("expired", 1)
    assert message.startswith("expired at 2026-09-21 ")
    assert message.endswith(" by the brokers' clock; nothing was changed")
    model.broker.write("control", None, msgspec.json.encode(sent))
    model.command("next", action=Action.CLOSE, dataset="d007")
    model.serve()
    assert model.replies()[1:] == [
        ("expired", 1, "it had expired before"),
        ("accepted", 2, "close carried out for m0 on d007"),
    ]


def test_a_command_to_all_datasets_that_has_begun_goes_on_past_its_expiry(model: Model) -> None:
    model.command("all", action=Action.CLOSE, expires=int(model.now * 1000) + 5_000)
    model.dies_at(nth(7))
    assert 0 < len(model.told(EventType.RUN_CLOSED)) < len(MANY)
    model.now += 3_600
    model.serve(2)
    assert [event["dataset"] for event in model.told(EventType.RUN_CLOSED)] == MANY
    assert outcomes(model) == [("accepted", 1)]


def test_a_command_expires_by_the_brokers_clock_not_by_the_workers(model: Model) -> None:
    """The worker's clock is ten minutes ahead: the brokers' decides."""
    model.command("in-time", action=Action.CLOSE, dataset="d007", expires=int(model.now * 1000) + 30_000)
    finish(lived(model.session(clock=replace(model.clock, epoch=lambda: model.now + 600))))
    assert [reason for reason, *_ in model.replies() or [("accepted",)]] == ["accepted"]
    assert [event["dataset"] for event in model.told(EventType.RUN_CLOSED)] in ([], ["d007"])
    model.serve()
    assert outcomes(model) == [("accepted", 1)]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", [None, 1, 2, 3, 4])
def test_a_withdrawal_wins_over_the_command_before_it_whoever_takes_over(model, number, after):
    """Even where the command and its withdrawal are not read together."""
    model.command("bad", action=Action.CLOSE)
    for _ in range(40):
        model.broker.write("control", None, b"{")
    model.command("back", action=Action.WITHDRAW, expires=0)
    few = model.feed(rounds=99, most=5)
    if number is None:
        model.serve(feed=few)
    else:
        model.dies_at(nth(number), after=after, feed=few)
    model.serve(2)
    assert model.told(EventType.RUN_CLOSED) == []
    assert model.replies() == [("accepted", 1, "close of shard 0 is withdrawn, and changed nothing")]
    assert b"command-withdrawn" in refused(model)


def test_a_withdrawal_that_comes_after_the_command_says_what_happened(model: Model) -> None:
    model.command("back", action=Action.WITHDRAW)
    model.command("one", number=2, action=Action.PAUSE, dataset="d007")
    model.serve()
    model.command("back2", action=Action.WITHDRAW)
    model.serve()
    assert model.replies() == [
        ("refused", 1, "no command waits: there was none before; nothing was changed"),
        ("accepted", 2, "pause carried out for m0 on d007"),
        (
            "refused",
            3,
            "no command waits: the last one, number 2 (pause), was carried out; nothing was changed",
        ),
    ]


def test_a_shard_that_waits_for_an_acceptance_takes_commands_back_and_lets_them_expire(model: Model) -> None:
    model.send(4, "gone")
    model.broker.first["t"] = 3
    model.command("pause", action=Action.PAUSE, dataset="d007")
    model.command("back", action=Action.WITHDRAW)
    soon = int(model.now * 1000) + 1
    model.command("late", action=Action.ACCEPT_LOSS, topic="t", offset=0, number=2, expires=soon)
    model.now += 10
    model.waits()
    assert outcomes(model) == [("accepted", 1), ("expired", 2)]
