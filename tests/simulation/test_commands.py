"""Commands on a modelled log: to all datasets in slices and over takeovers, and what nobody may do with old ones."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from stream_svt.monitor.commands import Action
from stream_svt.monitor.released import EventType
from stream_svt.protocol.committer import REPORTED
from tests.simulation.model import (
    PLAIN,
    Feed,
    Model,
    command,
    declared,
    dies_at,
    has,
    replies,
    send,
    serve_a_while,
    standing,
    stored_meta,
    told,
)

NAMES = [f"d{number:03}" for number in range(60)]
SPEC = declared(PLAIN, names=", ".join(NAMES))


def refused(model: Model) -> list[bytes | None]:
    return [entry.value for entry in model.broker.read("rejects")]


@pytest.fixture
def model(few_at_once: None) -> Model:
    made = Model(SPEC)
    made.serve()
    return made


def nth(number: int) -> Callable[[Any], bool]:
    """Return what is true of the commit with this number."""
    count = itertools.count()
    return lambda content: next(count) == number


def test_a_command_to_all_datasets_is_answered_once_with_what_came_of_it(model: Model) -> None:
    command(model, "one", action=Action.PAUSE, dataset="d007")
    model.serve()
    command(model, "all", action=Action.PAUSE)
    model.serve()
    paused = [event["dataset"] for event in told(model, EventType.PAUSED)]
    assert paused == ["d007", *(name for name in NAMES if name != "d007")]
    why = "monitor 'm0' on dataset 'd007' is paused already; nothing was changed"
    assert replies(model)[1:] == [("accepted", 2, f"pause carried out on 59 datasets, refused on 1: {why}")]
    assert standing(model)[1] == 2


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", range(2, 10))
def test_a_takeover_goes_on_with_a_command_to_all_datasets_and_does_nothing_twice(
    model: Model, number: int, after: bool
) -> None:
    command(model, "all", action=Action.CLOSE)
    dies_at(model, nth(number), after=after)
    for _ in range(2):
        model.serve()
    assert [event["dataset"] for event in told(model, EventType.RUN_CLOSED)] == NAMES
    assert replies(model) == [("accepted", 1, "close carried out on 60 datasets, refused on 0")]
    assert standing(model)[1] == 1


@pytest.mark.parametrize("slices", [2, 4, 5])
def test_a_takeover_replays_lost_tests_before_it_goes_on_with_a_command_to_all_datasets(
    model: Model, slices: int
) -> None:
    """A run that it closed before would end without the top that a dead owner has found in it."""
    last = NAMES[-1]
    send(model, 1, "low", dataset=last, value=0)
    model.serve()
    command(model, "all", action=Action.CLOSE)

    class Late(Feed):
        rounds, most = 99, 5

        def hook(self, number: int) -> None:
            if number == slices:
                send(model, 1, "high", dataset=last)

    dies_at(model, has(EventType.ALERT), feed=Late)
    assert 0 < len(told(model, EventType.RUN_CLOSED)) < len(NAMES)
    for _ in range(3):
        model.serve()
    about = [event["type"] for event in model.events if event["data"]["dataset"] == last]
    assert about[-2:] == [EventType.ALERT, EventType.RUN_CLOSED]
    assert len(told(model, EventType.RUN_CLOSED)) == len(NAMES)


def test_queries_are_tested_between_two_slices_of_a_command_to_all_datasets(model: Model) -> None:
    command(model, "all", action=Action.PAUSE)
    late = lambda number: number == 2 and send(model, 3, "late", dataset=NAMES[-1])  # noqa: E731
    serve_a_while(model, 12, late, interval=0.1)
    kinds = [event["type"] for event in model.events]
    last = len(kinds) - 1 - kinds[::-1].index(EventType.PAUSED)
    assert kinds.index(EventType.RUN_STARTED) < last


def test_where_no_monitor_that_is_meant_runs_a_command_to_all_is_refused(model: Model) -> None:
    command(model, "all", action=Action.PAUSE, monitor="m7")
    model.serve()
    message = "no such monitor runs on a dataset of shard 0; nothing was changed"
    assert replies(model) == [("refused", 1, message)]
    assert standing(model)[1] == 1


def test_a_flood_of_refused_commands_holds_up_nothing_and_names_a_few(
    model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    state, _ = standing(model)
    before = len(msgspec.msgpack.encode(stored_meta(model).commands))
    for number in range(3_000):
        wrong = {"number": 5} if number % 2 else {"state": "00"}
        text = {"id": f"f{number}", "action": "resample", "dataset": "d000", "state": state, "number": 1}
        model.broker.write("control", None, msgspec.json.encode(text | wrong) if number % 5 else b"{")
    sent = command(model, "pause", action=Action.PAUSE, dataset="d000")
    send(model, 1, "high", dataset="d001")
    with caplog.at_level(logging.WARNING):
        model.serve()
    assert [reason for reason, *_ in replies(model)] == ["accepted"]
    assert [event["dataset"] for event in told(model, EventType.ALERT)] == ["d001"]
    assert REPORTED < len(refused(model)) <= REPORTED + 60  # the model's clock goes on while it works
    assert len([record for record in caplog.records if "command" in record.message]) <= REPORTED + 80
    found = stored_meta(model).commands
    assert (found.number, found.id) == (1, sent.id)
    assert len(msgspec.msgpack.encode(found)) < before + 20


def test_a_flood_of_copies_of_the_last_command_is_answered_a_few_times(model: Model) -> None:
    sent = command(model, "pause", action=Action.PAUSE, dataset="d000")
    for _ in range(1_000):
        model.broker.write("control", None, msgspec.json.encode(sent))
    model.serve()
    assert len(told(model, EventType.PAUSED)) == 1
    assert 1 < len(replies(model)) <= REPORTED + 60
    assert replies(model)[1] == ("accepted", 1, "it was carried out before")
